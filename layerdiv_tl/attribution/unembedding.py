"""Direct logit attribution for some answer options: from a pass to contributions `[row, component, option]`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import HALF, Architecture, OutputMap
from ..model.capture import Activations
from ..model.cuts import UnitLike
from ..model.forward_pass import ReconstructionError
from .next_token import NextToken
from .stream_writes import ALIKE, Parts, StreamWalk, VectorParts, check_finite, pull_back
from .vocab_gram import folded_rows

# Parts are compared with their own size, but with no less than this share of the largest.
NOTICED = 0.01


class OptionReadout:
    """Option directions: a stream vector x contributes `x @ direction / σ` to an option's logit.

    Gain, centering and logit multiplier are folded into the directions, once for every distinct option token; `index`
    `[example, option]` says which direction belongs where. `error` grows with everything that is read out. With
    `probes`, directions of the stream after the final norm, `option_ids` are numbers of these.
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
        self.tokens = torch.as_tensor(distinct)
        if probes is None:
            directions, constant = folded_rows(architecture, self.tokens, torch.float64)
        else:
            norm = architecture.norm
            directions = norm.fold(probes)
            constant = torch.zeros(len(probes)) if norm.bias is None else probes @ norm.bias.to(probes)
        self.option_ids = option_ids
        self.index = torch.as_tensor(index.reshape(option_ids.shape))
        self.directions: Float[Tensor, "token d"] = directions.cpu()
        self.constant: Float[Tensor, " token"] | None = constant.cpu() if architecture.constant else None
        # Directions before each output map, the same for all batches that need the same options.
        self._before: dict[OutputMap, Float[Tensor, "token part width"]] = {}
        # By example, what the last of the added readers divides by instead of the stream's own statistic.
        self.statistics: Float[Tensor, " example"] | None = None
        # Squared norms, summed over rows: of what a unit's parts leave of each write, and of that write.
        self.unexplained: dict[Component, tuple[float, float]] = {}

    def add_readers(
        self, readers: Sequence[tuple[Float[Tensor, "token d"], Float[Tensor, " token"]]], again: int | None = None
    ) -> None:
        """Read the options by other directions and constants of the same tokens, too: as many columns for each.

        Last come the columns of `again`, where one of them, counted from 0, is to be read with two statistics.
        """
        blocks = [*range(len(readers) + 1)] + ([] if again is None else [again + 1])
        shifts = len(self.tokens) * torch.tensor(blocks)
        self.index = (self.index[:, None] + shifts[:, None]).flatten(1)
        self.directions = torch.cat([self.directions, *(directions for directions, _ in readers)])
        others = [constant for _, constant in readers]
        if self.constant is None and any(constant.any() for constant in others):
            self.constant = torch.zeros(len(self.tokens), dtype=torch.float64)
        if self.constant is not None:
            self.constant = torch.cat([self.constant, *others])

    def for_rows(self, rows: Int[Tensor, " row"]) -> OptionReadout:
        """The read-out of some examples, without the directions that they do not need."""
        own = copy(self)
        needed, own.index = self.index[rows].unique(return_inverse=True)
        if len(needed) < len(self.directions):
            own.directions, own._before = self.directions[needed], {}
            own.constant = None if self.constant is None else self.constant[needed]
        own.statistics = None if self.statistics is None else self.statistics[rows]
        return own

    def divisors(self, sigma: Float[Tensor, "row 1 1"]) -> Float[Tensor, "row 1 #column"]:
        """What `x @ direction` is divided by: σ, or for the last reader another model's."""
        if self.statistics is None:
            return sigma
        columns, last = self.index.shape[1], self.option_ids.shape[1]
        other = self.statistics[:, None, None]
        return torch.cat([sigma.expand(-1, -1, columns - last), other.expand(-1, -1, last)], 2)

    def answers(self, done: Activations, rows: Int[np.ndarray, " row"]) -> tuple[Tensor, Tensor]:
        """What the model itself gives for each row's options, before and after its transform of logits."""
        if self.probes is not None:
            given = self.walk.architecture.norm(done.final.double().cpu()) @ self.probes.T
            return given, given
        options = torch.as_tensor(self.option_ids[rows]).to(done.logits.device)
        return done.unembedded.gather(1, options).double().cpu(), done.logits.gather(1, options).double().cpu()

    def __call__(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part option"]:
        """`x @ direction` for each row's own options; the division by σ is the caller's."""
        return self._own(x @ self.directions.T)

    def read_parts(self, parts: Parts | VectorParts) -> Float[Tensor, "row part option"]:
        """The same for the parts of one write and, last, their bias where there is one."""
        if isinstance(parts, VectorParts):
            return parts.scattered(self(parts.slots.cpu()))
        key = parts.output_map
        # Options are taken back through the output map: a product for every option, not for every row.
        if key not in self._before:
            before = pull_back(parts.output_map, self.directions).double()
            self._before[key] = before.unflatten(1, (parts.output_map.count, -1))
        u = torch.einsum("rpe,tpe->rpt", parts.values.double().cpu(), self._before[key])
        u = self._own(u if parts.divisor is None else u / parts.divisor.cpu()[:, None, None])
        return torch.cat([u, self(parts.bias().cpu()[:, None])], 1) if parts.output_map.bias else u

    def _own(self, per_token: Float[Tensor, "row part token"]) -> Float[Tensor, "row part option"]:
        return per_token.gather(2, self.index[:, None].expand(-1, per_token.shape[1], -1))


@dataclass(frozen=True, eq=False)
class BatchContributions:
    """Contributions of some rows of a pass, float64.

    Attributes:
        components, values, count: The components that were asked for, of `count` in all, and theirs `[row, component,
            option]`; after the options, those of other readers.
        logits: The model's own, `[row, option]`, after any soft-cap.
        expectations, vocabulary_means: E_p of the components' logits, with p the model's next-token distribution, and
            their means over the vocabulary, `[row, component]`.
        log_likelihood, normalizer, likelihood_gap: `[row, option]`: log p of each, what of it no component holds, how
            far that is from −H(p) and a soft-cap's effect. These five are None where they were not asked for.
        statistic: The final norm's, of the whole stream.
        stream_gap: What the stream holds beyond all that was written, `[row]`, relative to max Σ|u_i|.
    """

    rows: Int[np.ndarray, " row"]
    count: int
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    logits: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    statistic: Float[np.ndarray, " row"]
    junctions: tuple[Component, ...]
    stream_gap: Float[np.ndarray, " row"]
    expectations: Float[np.ndarray, "row component *option"] | None = None
    vocabulary_means: Float[np.ndarray, "row component"] | None = None
    log_likelihood: Float[np.ndarray, "row option"] | None = None
    normalizer: Float[np.ndarray, "row option"] | None = None
    likelihood_gap: Float[np.ndarray, "row option"] | None = None


def read_out(
    readout: OptionReadout,
    activations: Activations,
    rows: Int[np.ndarray, " row"],
    keep: Set[Component] | None,
    expected: NextToken | None = None,
    uniform: NextToken | None = None,
) -> BatchContributions:
    """Contributions of some rows of a pass, on the CPU; `keep` None keeps all components."""
    walk, error, architecture = readout.walk, readout.error, readout.walk.architecture
    readout = readout.for_rows(torch.as_tensor(rows))
    unembedded, logits = readout.answers(activations, rows)

    writes = walk.writes(activations)
    stream, final = torch.stack([write.vector for write in writes], 1).double().cpu(), activations.final.double().cpu()
    check_finite(writes, final, logits)
    # u_i = W_U (gain · center(z_i)) / σ, of whole writes; cut ones are compared with theirs.
    sigma = architecture.norm.statistic(final)[:, None, None]
    divisors = readout.divisors(sigma)
    whole = readout(stream) / divisors
    averages = [each for each in (expected, uniform) if each is not None]
    whole_means = [each.of_whole(stream) / sigma[:, :, 0] for each in averages]

    names: list[Component] = []
    values: list[Tensor] = []
    kept_means: list[list[Tensor]] = [[] for _ in averages]
    total, size = torch.zeros_like(whole[:, 0]), torch.zeros_like(whole[:, 0])
    mean_totals = [torch.zeros_like(logits[:, 0]) for _ in averages]
    count = 0
    # Of a write that adds nothing to some logit only rounding is left, which is not to be compared with itself.
    least = max(NOTICED * float(whole.abs().sum(1).max()), 1e-30)

    def add(
        components: Sequence[Component], u: Float[Tensor, "row part option"], means: list[Float[Tensor, "row part"]]
    ) -> None:
        nonlocal count
        count += len(components)
        total.add_(u.sum(1))
        size.add_(u.abs().sum(1))
        for so_far, mean in zip(mean_totals, means, strict=True):
            so_far.add_(mean.sum(1))
        if keep is not None:
            chosen = [i for i, component in enumerate(components) if component in keep]
            components, u = [components[i] for i in chosen], u[:, chosen]
            means = [mean[:, chosen] for mean in means]
        names.extend(components)
        values.append(u)
        for kept, mean in zip(kept_means, means, strict=True):
            kept.append(mean)

    for before, write in pairwise(writes):
        if write.junction.kind.endswith(".error"):
            squares = (write.vector.square().sum(), (before.vector + write.vector).square().sum())
            so_far = readout.unexplained.get(write.junction, (0.0, 0.0))
            readout.unexplained[write.junction] = (so_far[0] + float(squares[0]), so_far[1] + float(squares[1]))
    for number, write in enumerate(writes):
        u, means = whole[:, number : number + 1], [mean[:, number : number + 1] for mean in whole_means]
        if write.parts is not None:
            u = readout.read_parts(write.parts) / divisors
            means = [each.of_parts(write.parts) / sigma[:, :, 0] for each in averages]
            error.add("split", (u.sum(1) - whole[:, number]).abs() / u.abs().sum(1).clamp_min(least))
        add(write.components, u, means)
    # What half precision lost at every addition, so that the parts still sum to the whole.
    lost, written = (readout(final[:, None]) / divisors)[:, 0] - total, [so_far.clone() for so_far in mean_totals]
    if readout.constant is not None:  # what the read-out itself adds to each row's own options
        means = [each.constant[:, None].expand(len(final), 1) for each in averages]
        add([Component("constant")], readout.constant[readout.index][:, None], means)
    if activations.dtype in HALF:
        wholes = [each.of_whole(final[:, None]) / sigma[:, :, 0] for each in averages]
        means = [x - so_far[:, None] for x, so_far in zip(wholes, written, strict=True)]
        add([Component("rounding")], lost[:, None], means)

    total, size, lost = (x[:, : logits.shape[1]] for x in (total, size, lost))  # the model's own reading
    stream_gap = lost.abs().amax(1) / size.max().clamp_min(1e-300)
    error.dtypes = (activations.dtype, activations.answer_dtype)
    error.add("stream", stream_gap)
    if readout.probes is None:
        error.add("unexplained", (architecture.transform(unembedded) - logits).abs())
        unembedded = unembedded * architecture.logit_multiplier
    error.add("absolute", (total - unembedded).abs())
    error.add("size", size)
    likelihood: dict[str, np.ndarray] = {}
    if uniform is not None:
        likelihood["vocabulary_means"] = torch.cat(kept_means[-1], 1).numpy()
    if expected is not None:
        log_likelihood = logits - expected.log_partition[:, None]
        normalizer = log_likelihood - (total - mean_totals[0][:, None])
        # −H(p) and, as a soft-cap is no sum over components, what that changes; the rest is rounding.
        capped = 0.0 if architecture.soft_cap is None else logits - unembedded
        minus_entropy = (expected.mean_logit - expected.log_partition)[:, None]
        likelihood |= {
            "expectations": torch.cat(kept_means[0], 1).numpy(),
            "log_likelihood": log_likelihood.numpy(),
            "normalizer": normalizer.numpy(),
            "likelihood_gap": (normalizer - minus_entropy - capped).numpy(),
        }
    statistics = architecture.norm.statistic(stream.cumsum(1))
    return BatchContributions(
        rows=rows,
        count=count,
        components=tuple(names),
        values=torch.cat(values, 1).numpy(),
        logits=logits.numpy(),
        junction_scale=(statistics / statistics[:, -1:]).numpy(),
        statistic=sigma[:, 0, 0].numpy(),
        junctions=tuple(write.junction for write in writes),
        stream_gap=stream_gap.numpy(),
        **likelihood,
    )


class Gathered:
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
        values, scale = dict(zip(part.components, part.values.swapaxes(0, 1), strict=True)), part.junction_scale
        nothing = np.zeros_like(part.values[:, 0])
        # A stream to which nothing is added is what it was at the junction before.
        last = np.array([name in part.junctions for name in junctions]).cumsum() - 1
        stacked = np.stack([values.get(name, nothing) for name in names], 1)
        for field in ("expectations", "vocabulary_means"):
            if (known := getattr(part, field)) is not None:
                means, none = dict(zip(part.components, known.swapaxes(0, 1), strict=True)), np.zeros_like(known[:, 0])
                own: dict[str, Any] = {field: np.stack([means.get(name, none) for name in names], 1)}
                part = replace(part, **own)
        part = replace(part, components=names, values=stacked)
        aligned.append(replace(part, junctions=junctions, junction_scale=scale[:, last]))
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
