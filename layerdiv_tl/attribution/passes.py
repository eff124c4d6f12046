"""The passes of `contributions`: prompts in batches, read out a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
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
from ..model.reconstruction import ReconstructionError
from .blocks import ALIKE, Rows, StreamWalk, check_finite
from .contexts import BatchContributions, Contexts, can_pack
from .directions import Directions, probe_directions, reconstruct, token_directions
from .question import LogitQuestion
from .vocabulary import NextTokenDistribution, vocabulary_of

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000


class OptionReader:
    """Reads contributions to some examples' options out of their passes; `error` grows with everything that is read.

    Attributes:
        option_ids, tokens: `[example, option]`, and the distinct ones. With `probes`, vectors that are read after the
            final norm, option ids are numbers of these.
        vectors, index: The options' directions, and which each example has.
        directions: The same, and after them others that passes are read along, too.
        statistics: `[example]`, what the last columns are divided by instead of the stream's own statistic.
        unexplained: Squared norms, summed over rows: of what a unit's parts leave of each write, and of that write.
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
        self.vectors, self.index = vectors, torch.as_tensor(index.reshape(option_ids.shape))
        self.directions = Directions(self.vectors, self.index)
        self.statistics: Float[Tensor, " example"] | None = None
        self.unexplained: dict[Component, tuple[float, float]] = {}

    def read_along(self, others: Sequence[Float[Tensor, "token d+1"]], columns: Sequence[int], constant: bool) -> None:
        """Also read passes along other directions of the same tokens.

        `columns` says which stand where, as many columns for each: 0 are the model's own, then come the others in their
        order. `constant`: what these add by themselves is a row, even where the model's own read-out adds nothing.
        """
        stacked, shifts = torch.cat([self.vectors, *others]), len(self.tokens) * torch.tensor(columns)
        self.directions = Directions(stacked, (self.index[:, None] + shifts[:, None]).flatten(1))
        self.walk.has_constant |= constant and bool(stacked[:, -1].any())

    def read(
        self,
        activations: Activations,
        examples: Int[np.ndarray, " row"],
        keep: Set[Component] | None = None,
        expected: NextTokenDistribution | None = None,
        uniform: Directions | None = None,
    ) -> BatchContributions:
        """Contributions of some rows of a pass, on the CPU; `keep` None keeps all components.

        `expected` and `uniform` are the model's next-token distribution and the mean over the vocabulary.
        """
        architecture, (k,) = self.walk.architecture, self.option_ids.shape[1:]
        own = torch.as_tensor(examples)
        unembedded, logits = self._answers(activations, examples)
        rows = Rows(self.walk, activations, device=torch.device("cpu"), divide=False)
        check_finite(rows.writes, rows.final, logits)

        # u_i of every row along the options, and along the means over the next token and over the vocabulary.
        options = self.directions.at(own)
        sigma = rows.sigma[:, None, None].expand(-1, -1, options.columns)
        if self.statistics is not None:
            sigma = torch.cat([sigma[:, :, k:], self.statistics[own][:, None, None].expand(-1, -1, k)], 2)
        u = options.inner(rows).div_(sigma)  # after the product: what two models write alike cancels to the last bit
        means = {} if expected is None else {"expectations": expected.directions}
        means |= {} if uniform is None else {"vocabulary_means": uniform}
        likelihood = {name: along.inner(rows)[:, :, 0] / rows.sigma[:, None] for name, along in means.items()}

        self.error.dtypes = (activations.dtype, activations.answer_dtype)
        if self.probes is None:
            self.error.add("unexplained", (architecture.transform(unembedded) - logits).abs())
            unembedded = unembedded * architecture.logit_multiplier
        of_model = Directions(self.vectors, self.index[own])
        stream_gap = reconstruct(self.error, rows, of_model, lambda some: u[:, some, :k], unembedded)
        self._keep_unexplained(rows)

        names = rows.components
        chosen = [i for i, name in enumerate(names) if keep is None or name in keep]
        if expected is not None:
            likelihood["log_likelihood"] = logits - expected.log_partition[:, None]
            parts = u[:, :, :k].sum(1) - likelihood["expectations"].sum(1, keepdim=True)
            normalizer = likelihood["normalizer"] = likelihood["log_likelihood"] - parts
            # −H(p) and, as a soft-cap is no sum over components, what that changes; the rest is rounding.
            capped = 0.0 if architecture.soft_cap is None else logits - unembedded
            minus_entropy = (expected.mean_logit - expected.log_partition)[:, None]
            likelihood["likelihood_gap"] = normalizer - minus_entropy - capped
        for name in means:
            likelihood[name] = likelihood[name][:, chosen]
        stream = torch.stack([write.vector for write in rows.writes if write.junction], 1).double().cpu()
        statistics = architecture.norm.statistic(stream.cumsum(1))
        return BatchContributions(
            rows=examples,
            count=len(names),
            components=tuple(names[i] for i in chosen),
            values=(u if len(chosen) == len(names) else u[:, chosen]).numpy(),
            logits=logits.numpy(),
            junction_scale=(statistics / statistics[:, -1:]).numpy(),
            statistic=rows.sigma.numpy(),
            junctions=tuple(write.junction for write in rows.writes if write.junction),
            stream_gap=stream_gap.numpy(),
            **{name: x.numpy() for name, x in likelihood.items()},
        )

    def _answers(self, done: Activations, examples: Int[np.ndarray, " row"]) -> tuple[Tensor, Tensor]:
        """What the model itself gives for each row's options, before and after its transform of logits."""
        if self.probes is not None:
            given = self.walk.architecture.norm(done.final.double().cpu()) @ self.probes.T
            return given, given
        options = torch.as_tensor(self.option_ids[examples]).to(done.logits.device)
        return done.unembedded.gather(1, options).double().cpu(), done.logits.gather(1, options).double().cpu()

    def _keep_unexplained(self, rows: Rows) -> None:
        """Keep what cuts leave of their writes, which is a row of its own after each."""
        for before, write in pairwise(rows.writes):
            if write.junction and write.junction.kind.endswith(".error"):
                squares = (write.vector.square().sum(), (before.vector + write.vector).square().sum())
                so_far = self.unexplained.get(write.junction, (0.0, 0.0))
                self.unexplained[write.junction] = (so_far[0] + float(squares[0]), so_far[1] + float(squares[1]))


@dataclass(frozen=True)
class PassShape:
    """A forward pass: its rows, tokens in each (with padding), and how many positions are read in all."""

    rows: int
    tokens: int
    positions: int


class ContributionPasses:
    """The contributions of some prompts to some options, batch after batch; `reader.error` grows with each.

    Raises InputError for options of several tokens with a cache, and for prompts too long for theirs.
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
        targets = question.option_ids[:, :, 0, 0]
        if not question.is_single:
            self.contexts = Contexts(question.beginnings, question.option_ids, model.architecture.length_switch)
            targets = self.contexts.target_ids
            if cached is not None:
                raise InputError("a cache does not hold what follows options of several tokens: give the prompts.")
            self.contexts.check(model, sides=True)
        self.reader = OptionReader(model.architecture, targets, unit, question.directions)
        self._members = len(model.architecture.components(unit))

    def batches(self, keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some examples at a time; `keep` None keeps all components."""
        bar = progress(self.model.name, len(self.question.ids), "prompt")
        with inference_mode_for(self.model.architecture), bar as advance:
            for examples, passes in self._passes():
                steps = chain.from_iterable(self._steps(numbers, done, keep) for numbers, done in passes)
                yield from steps if self.contexts is None else [self.contexts.by_option(examples, steps)]
                del passes, steps  # or they would be held during the next pass
                advance(len(examples))

    def cuts(self) -> list[list[int]]:
        """The examples of each pass."""
        switch = self.model.architecture.length_switch
        if self.contexts is None:
            return batches([len(row) for row in self.question.ids], self.batch_tokens, switch)
        packed = can_pack(self.model, self.contexts)
        lengths = [self.contexts.length(example, packed) for example in range(len(self.question.ids))]
        # Where positions change with the length of a pass, no other row may share it.
        return batches(lengths, self.batch_tokens if switch is None else 1)

    def shape(self, examples: Sequence[int]) -> PassShape:
        """The shape of a pass of some examples."""
        if self.contexts is None:
            return PassShape(len(examples), max(len(self.question.ids[example]) for example in examples), len(examples))
        packed, positions = can_pack(self.model, self.contexts), len(self.contexts.numbers(examples))
        if packed:
            return PassShape(len(examples), max(self.contexts.length(e, True) for e in examples), positions)
        rows, *_ = self.contexts.plain_rows(examples)
        return PassShape(len(rows), max(map(len, rows)), positions)

    def _passes(self) -> Iterator[tuple[list[int], Iterable[tuple[Int[np.ndarray, " row"], Activations]]]]:
        """Examples, and their passes with the numbers of the rows that these show, batch after batch."""
        architecture, contexts = self.model.architecture, self.contexts
        if self.cached is not None:
            yield list(range(len(self.question.ids))), [(np.arange(len(self.question.ids)), self.cached)]
        elif contexts is None:
            for rows in self.cuts():
                (tokens, mask), at = (
                    pad([self.question.ids[row] for row in rows]),
                    torch.as_tensor(self.question.at[rows]),
                )
                yield rows, [(np.array(rows), run(architecture, tokens, mask, self.unit, at, interventions=True))]
        else:
            packed = can_pack(self.model, contexts)
            for rows in self.cuts():
                yield rows, contexts.passes(architecture, rows, self.unit, packed)

    def _steps(
        self, numbers: Int[np.ndarray, " row"], activations: Activations, keep: Set[Component] | None
    ) -> Iterator[BatchContributions]:
        """The rows of one pass, some at a time."""
        architecture = self.model.architecture
        per_row = self.reader.directions.columns * self._members
        step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
        expected = uniform = None
        if self.reader.probes is None:
            vocabulary = vocabulary_of(self.model)
            expected = NextTokenDistribution(vocabulary, activations.logits, activations.unembedded)
            uniform = Directions(vocabulary.mean[None].cpu()) if self.contexts is None else None
        for start in range(0, len(numbers), step):
            some = slice(start, start + step)
            own = None if expected is None else expected.at(some)
            yield self.reader.read(activations.rows(some), numbers[some], keep, own, uniform)


class ContributionBuffer:
    """The contributions of many passes in the prompts' order, each array made once, at the first of them.

    Small arrays that each pass would leave behind lie between the large ones of the next passes, and keep the memory of
    these from being used again.
    """

    def __init__(self, rows: int) -> None:
        self.rows, self.complete = rows, True
        # One for all passes; where hooks steer only some rows, one for each list of components.
        self._groups: list[tuple[BatchContributions, np.ndarray]] = []

    def add(self, part: BatchContributions) -> None:
        """Keep the rows of a part."""
        # Compared and not hashed: a unit's components are the same objects in every pass, and may be many.
        alike = [g for g in self._groups if (g[0].components, g[0].junctions) == (part.components, part.junctions)]
        if not alike:
            whole: dict[str, Any] = {n: np.empty((self.rows, *x.shape[1:]), x.dtype) for n, x in _arrays(part)}
            alike = [(replace(part, **whole), np.zeros(self.rows, dtype=bool))]
            self._groups += alike
        group, known = alike[0]
        for name, x in _arrays(part):
            getattr(group, name)[part.rows] = x
        known[part.rows] = True
        self.complete &= len(part.components) == part.count

    def all(self) -> BatchContributions:
        """All rows, with every intervention in all of them: where only some are steered, it is zero in the others.

        Raises InputError where passes differ in other components.
        """
        if len(self._groups) == 1:
            return self._groups[0][0]
        parts = []
        for group, known in self._groups:
            own: dict[str, Any] = {name: x[known] for name, x in _arrays(group)}
            parts.append(replace(group, **own))
        order = np.argsort(np.concatenate([part.rows for part in parts]))
        parts = _aligned(parts)
        columns = [dict(_arrays(part)) for part in parts]
        together: dict[str, Any] = {name: np.concatenate([x[name] for x in columns])[order] for name in columns[0]}
        return replace(parts[0], **together)


def _arrays(part: BatchContributions) -> list[tuple[str, np.ndarray]]:
    """The fields that have a row for every row."""
    return [(field.name, x) for field in fields(part) if isinstance(x := getattr(part, field.name), np.ndarray)]


def _aligned(parts: Sequence[BatchContributions]) -> list[BatchContributions]:
    """Parts of the same components: what some lack is zero there."""
    names, junctions = (_merged([getattr(part, name) for part in parts]) for name in ("components", "junctions"))
    aligned = []
    for part in parts:
        place_of = {name: place for place, name in enumerate(names)}
        own: dict[str, Any] = {}
        for field in ("values", "expectations", "vocabulary_means"):
            if (known := getattr(part, field)) is not None:
                own[field] = np.zeros((len(known), len(names), *known.shape[2:]))
                own[field][:, [place_of[name] for name in part.components]] = known
        # A stream to which nothing is added is what it was at the junction before.
        last = np.array([name in part.junctions for name in junctions]).cumsum() - 1
        own |= {"components": names, "junctions": junctions, "junction_scale": part.junction_scale[:, last]}
        aligned.append(replace(part, **own))
    return aligned


def _merged(several: Sequence[Sequence[Component]]) -> tuple[Component, ...]:
    """All components in stream order; what some lack must be interventions."""
    merged = list(several[0])
    for names in several[1:]:
        for place, name in enumerate(names):
            if name not in merged:
                merged.insert(merged.index(names[place - 1]) + 1 if place else 0, name)
    if any(name.kind != "intervention" for names in several for name in set(merged) - set(names)):
        raise InputError(f"this model ran its layers a different number of times for different prompts: {ALIKE}.")
    return tuple(merged)
