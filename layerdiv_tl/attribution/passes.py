"""The passes of `contributions`: prompts in batches, read out a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.architecture import Architecture, UnitLike
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from ..model.prompts import Ids
from ..model.reconstruction import UNNAMED, ReconstructionError
from ..model.remote import check_unit
from .blocks import ALIKE, Rows, StreamWalk, check_finite, in_rows, merge
from .contexts import TABLES, BatchContributions, Contexts
from .directions import Directions, probe_directions, reconstruct, token_directions
from .question import LogitQuestion
from .vocabulary import NextTokenDistribution, vocabulary_of

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000
# How far a half-precision stream may move on a remote model, relative to the rounding of its additions.
SLACK = 2.0


class OptionReader:
    """Read contributions to some examples' options out of their passes; `error` grows with everything that is read.

    Attributes:
        option_ids, tokens: `[example, option]`, and the distinct ones. With `probes`, vectors that are read after the
            final norm, option ids are indices of these.
        directions: The options' directions, and the choice of directions for each example.
        unexplained: Squared norms, summed over rows: the error of a unit's parts in each write, and that write.
    """

    def __init__(
        self,
        architecture: Architecture,
        option_ids: Int[np.ndarray, "example option"],
        unit: UnitLike = "sublayer",
        probes: Float[Tensor, "option d"] | None = None,
    ) -> None:
        self.walk, self.error, self.probes = StreamWalk(architecture, unit), ReconstructionError(), probes
        distinct, index = np.unique(option_ids, return_inverse=True)
        self.option_ids, self.tokens = option_ids, torch.as_tensor(distinct)
        if probes is None:
            vectors = token_directions(architecture, self.tokens).cpu()
        else:
            vectors = probe_directions(architecture, probes)
        self.directions = Directions(vectors, torch.as_tensor(index.reshape(option_ids.shape)))
        self.unexplained: dict[Component, tuple[float, float]] = {}

    def read(
        self,
        activations: Activations,
        examples: Int[np.ndarray, " row"],
        expected: NextTokenDistribution | None = None,
        uniform: Float[Tensor, " d+1"] | None = None,
    ) -> BatchContributions:
        """Compute the contributions of some rows of a pass, on the CPU.

        `expected` and `uniform`: mean directions under the model's next-token distribution and over the vocabulary.
        """
        architecture, (k,) = self.walk.architecture, self.option_ids.shape[1:]
        own = torch.as_tensor(examples)
        unembedded, logits = self._answers(activations, examples)
        rows = Rows(self.walk, activations, device=torch.device("cpu"), divide=False)
        check_finite(rows.writes, rows.final, logits)

        # u_i of every row along the options, and along the means over the next token and over the vocabulary.
        u = self.directions.at(own).inner(rows).div_(rows.sigma[:, None, None])
        likelihood: dict[str, Tensor] = {}
        if expected is not None:
            means = {"expectations": expected.directions.vectors}
            means |= {} if uniform is None else {"vocabulary_means": uniform.expand_as(means["expectations"])}
            # One product for both: it reads all weights.
            both = Directions(torch.cat([*means.values()], 1)).inner(rows).div_(rows.sigma[:, None, None])
            likelihood = dict(zip(means, both.unbind(2), strict=True))

        self.error.dtypes = (activations.dtype, activations.answer_dtype)
        if self.probes is None:
            self.error.add("unexplained", (architecture.transform(unembedded) - logits).abs())
            unembedded = unembedded * architecture.logit_multiplier
        options = self.directions.at(own)
        stream_gap = reconstruct(self.error, rows, options, lambda some: u[:, some, :k], unembedded)
        self._keep_unexplained(rows)

        if expected is not None:
            moments = expected.log_partition, expected.mean_logit
            parts = u[:, :, :k].sum(1) - likelihood["expectations"].sum(1, keepdim=True)
            likelihood |= likelihoods(architecture, parts, logits, unembedded, *moments)
            self.error.add("averages", likelihood["likelihood_gap"].abs())
            if uniform is not None:
                self.error.add("averages", (likelihood["vocabulary_means"].sum(1) - expected.average_logit).abs())
        stream = torch.stack([write.vector for write in rows.writes if write.junction], 1).double().cpu()
        statistics = architecture.norm.statistic(stream.cumsum(1))
        return BatchContributions(
            rows=examples,
            components=tuple(rows.components),
            values=u.numpy(),
            logits=logits.numpy(),
            junction_scale=(statistics / statistics[:, -1:]).numpy(),
            statistic=rows.sigma.numpy(),
            junctions=tuple(write.junction for write in rows.writes if write.junction),
            stream_gap=stream_gap.numpy(),
            **{name: x.numpy() for name, x in likelihood.items()},
        )

    def _answers(self, done: Activations, examples: Int[np.ndarray, " row"]) -> tuple[Tensor, Tensor]:
        """Get the model's own numbers for each row's options, before and after its transform of logits."""
        if self.probes is not None:
            given = self.walk.architecture.norm(done.final.double().cpu()) @ self.probes.T
            return given, given
        options = torch.as_tensor(self.option_ids[examples]).to(done.logits.device)
        return done.unembedded.gather(1, options).double().cpu(), done.logits.gather(1, options).double().cpu()

    def _keep_unexplained(self, rows: Rows) -> None:
        """Keep the errors of cut writes, each a row of its own after the write's parts."""
        for before, write in pairwise(rows.writes):
            if write.junction and write.junction.kind.endswith(".error"):
                squares = (write.vector.square().sum(), (before.vector + write.vector).square().sum())
                so_far = self.unexplained.get(write.junction, (0.0, 0.0))
                self.unexplained[write.junction] = (so_far[0] + float(squares[0]), so_far[1] + float(squares[1]))


def likelihoods(
    architecture: Architecture,
    parts: Float[Tensor, "row option"],
    logits: Float[Tensor, "row option"],
    unembedded: Float[Tensor, "row option"],
    log_partition: Float[Tensor, " row"],
    mean_logit: Float[Tensor, " row"],
) -> dict[str, Float[Tensor, "row option"]]:
    """Return log p of each option, the part of it that the components' `parts` do not hold, and the error of that part.

    `unembedded` are the logits before any soft-cap, whose mean under p is `mean_logit`.
    """
    log_likelihood = logits - log_partition[:, None]
    normalizer = log_likelihood - parts
    # −H(p) and the effect of a soft-cap, which is no sum over components; the rest is rounding.
    capped = 0.0 if architecture.soft_cap is None else logits - unembedded
    gap = normalizer - (mean_logit - log_partition)[:, None] - capped
    return {"log_likelihood": log_likelihood, "normalizer": normalizer, "likelihood_gap": gap}


class ContributionPasses:
    """Compute contributions of prompts to options, batch after batch; `reader.error` grows with each.

    Raises InputError for options of several tokens with a cache, and for prompts too long for their options.
    """

    def __init__(
        self,
        model: Model,
        question: LogitQuestion,
        unit: UnitLike,
        batch_tokens: int,
        cached: Activations | None = None,
    ) -> None:
        self.model, self.question, self.unit = model, question, unit
        self.batch_tokens, self.cached = batch_tokens, cached
        self.contexts: Contexts | None = None
        self.targets = question.option_ids[:, :, 0]
        if not question.is_single:
            self.contexts = Contexts(question.beginnings, question.option_ids, model.architecture.length_switch)
            self.targets = self.contexts.target_ids
            if cached is not None:
                raise InputError(
                    "a cache ends with its prompts, so options of several tokens cannot be read from it: give the "
                    "model and the prompts in its place."
                )
            self.contexts.check(model, sides=model.engine is None)
        self.reader: OptionReader = self._reader()

    def _reader(self) -> Any:
        return OptionReader(self.model.architecture, self.targets, self.unit, self.question.directions)

    def batches(self) -> Iterator[BatchContributions]:
        """Yield the contributions of some examples at a time."""
        every = list(range(len(self.question.ids)))
        with progress(self.model.name, len(every), "prompt") as advance:
            for examples in self.cuts() if self.cached is None else [every]:
                parts = self._parts(examples)
                yield from parts if self.contexts is None else [self.contexts.by_option(examples, parts)]
                advance(len(examples))

    def cuts(self) -> list[list[int]]:
        """The examples of each pass."""
        contexts, switch = self.contexts, self.model.architecture.length_switch
        if contexts is None:
            return batches([len(row) for row in self.question.ids], self.batch_tokens, switch)
        lengths = [contexts.length(example) for example in range(len(self.question.ids))]
        # Where positions change with the length of a pass, no other row may share it.
        return batches(lengths, self.batch_tokens if switch is None else 1)

    def _rows(self, examples: Sequence[int]) -> tuple[list[Ids], Int[Tensor, " context"], Int[Tensor, " context"]]:
        """Return rows of tokens, and the row and token of each position read."""
        if self.contexts is not None:
            return self.contexts.plain_rows(examples)
        at = torch.as_tensor(self.question.at[examples])
        return [self.question.ids[example] for example in examples], torch.arange(len(at)), at

    def _parts(self, examples: list[int]) -> Iterator[BatchContributions]:
        """Yield the contributions of some examples, or of their contexts, pass by pass and some rows at a time."""
        architecture = self.model.architecture
        with inference_mode_for(architecture):
            if self.contexts is not None:
                passes = self.contexts.passes(architecture, examples, self.unit)
            else:
                passes = iter([(np.array(examples), self.cached or self._run(examples))])
            for numbers, activations in passes:
                yield from self._steps(numbers, activations)
                del activations  # else they would be held during the next pass

    def _run(self, examples: list[int]) -> Activations:
        rows, of, at = self._rows(examples)
        return run(self.model.architecture, *pad(rows), self.unit, at, of, interventions=True)

    def _steps(self, numbers: Int[np.ndarray, " row"], activations: Activations) -> Iterator[BatchContributions]:
        """Yield the rows of one pass, some at a time."""
        architecture = self.model.architecture
        per_row = self.targets.shape[1] * len(architecture.components(self.unit))
        step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
        expected = uniform = None
        if self.reader.probes is None:
            vocabulary = vocabulary_of(self.model)
            expected = NextTokenDistribution(vocabulary, activations.logits, activations.unembedded)
            uniform = vocabulary.mean.cpu() if self.contexts is None else None
        for start in range(0, len(numbers), step):
            some = slice(start, start + step)
            own = None if expected is None else expected.at(some)
            yield self.reader.read(activations.rows(some), numbers[some], own, uniform)


class RemoteReadOut(ContributionPasses):
    """`ContributionPasses` for a model with an engine: the same batches, projected where the model runs."""

    def _reader(self) -> SimpleNamespace:
        assert self.model.engine is not None
        self._named = check_unit(self.model.engine, self.model.architecture, self.unit, self.model.name)
        return SimpleNamespace(error=ReconstructionError(), unexplained={})

    def _parts(self, examples: list[int]) -> Iterator[BatchContributions]:
        """Yield the contributions of some examples, or of their contexts, checked as in `OptionReader.read`."""
        architecture, error, engine = self.model.architecture, self.reader.error, self.model.engine
        numbers = np.array(examples) if self.contexts is None else self.contexts.numbers(examples)
        targets = torch.as_tensor(self.targets[numbers])
        assert engine is not None
        with torch.no_grad():
            done = engine.run(architecture, self._named, *self._rows(examples), targets)
        if not all(bool(x.isfinite().all()) for x in done.values()):
            raise InputError(f"{self.model.name} gives numbers that are not finite: are its weights broken?")
        if float(done["excess"].max()) > SLACK:
            raise InputError(f"this model cannot be decomposed: {UNNAMED}.")
        names, values, means = architecture.components(self.unit), done["values"], done["means"]
        total, size = values.sum(1), values.abs().sum(1)
        stream_gap = done["lost"].abs().amax(1) / size.max().clamp_min(1e-300)
        unembedded = done["unembedded"] * architecture.logit_multiplier
        error.dtypes = (architecture.dtype, architecture.dtype)
        error.add("split", done["split"])
        error.add("stream", stream_gap)
        error.add("unexplained", (architecture.transform(done["unembedded"]) - done["logits"]).abs())
        error.add("absolute", (total - unembedded).abs())
        error.add("size", size)
        parts = total - means.sum(1)[:, None]
        moments = done["log_partition"], done["mean_logit"]
        likelihood = likelihoods(architecture, parts, done["logits"], unembedded, *moments)
        junctions = [Component("embed")] + [Component("pos_embed")] * (architecture.pos_embed is not None)
        yield BatchContributions(
            rows=numbers,
            components=names,
            values=values.numpy(),
            logits=done["logits"].numpy(),
            junction_scale=(done["statistics"] / done["statistics"][:, -1:]).numpy(),
            statistic=done["statistic"].numpy(),
            junctions=tuple(junctions + [Component(s.kind, s.layer) for s in architecture.sublayers]),
            stream_gap=stream_gap.numpy(),
            expectations=means.numpy(),
            **{name: x.numpy() for name, x in likelihood.items()},
        )


class ContributionBuffer:
    """Contributions of many passes in the prompts' order, in preallocated arrays.

    Small arrays left behind by each pass would lie between the large ones of later passes and fragment their memory.
    Where only some rows are steered, an intervention is zero in the others.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.whole: BatchContributions | None = None

    def add(self, part: BatchContributions) -> None:
        """Keep the rows of a part. Raises InputError where its components differ, except interventions."""
        if self.whole is None:
            empty: dict[str, Any] = {n: np.empty((self.rows, *x.shape[1:]), x.dtype) for n, x in _arrays(part)}
            self.whole = replace(part, **empty)
        # Compared, not hashed: a unit's components are the same objects in every pass, and may be thousands.
        elif (self.whole.components, self.whole.junctions) != (part.components, part.junctions):
            both = (self.whole, part)
            names, junctions = merge([x.components for x in both]), merge([x.junctions for x in both])
            if any(name.kind != "intervention" for x in both for name in set(names) - set(x.components)):
                raise InputError(
                    f"this model ran its layers a different number of times for different prompts: {ALIKE}."
                )
            self.whole, part = (_aligned(x, names, junctions) for x in both)
        for name, x in _arrays(part):
            getattr(self.whole, name)[part.rows] = x


def _arrays(part: BatchContributions) -> list[tuple[str, np.ndarray]]:
    """The fields with a first axis over examples."""
    return [(field.name, x) for field in fields(part) if isinstance(x := getattr(part, field.name), np.ndarray)]


def _aligned(
    part: BatchContributions, names: tuple[Component, ...], junctions: tuple[Component, ...]
) -> BatchContributions:
    """Extend a part to more components, with zeros for those it lacks."""
    tables = [(name, x) for name in TABLES if (x := getattr(part, name)) is not None]
    own: dict[str, Any] = {name: in_rows(names, part.components, x) for name, x in tables}
    # A stream to which nothing is added is the same as at the junction before.
    last = np.array([name in part.junctions for name in junctions]).cumsum() - 1
    scale = part.junction_scale[:, last]
    return replace(part, **own, components=names, junctions=junctions, junction_scale=scale)
