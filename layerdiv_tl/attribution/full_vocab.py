"""Sums over the whole vocabulary for every component of a pass, without a table of logits.

Of a component's logit vector u_i only its norm and some inner products are needed. They follow from a sublayer's output
z_i, from a head's few values before the output map, from a neuron's one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import counted
from ..components import Component
from ..model.architecture import HALF, Architecture, OutputMap
from ..model.batches import inference_mode_for, upcast
from ..model.capture import Activations
from ..model.cuts import SublayerCut, UnitLike, unit_of
from ..model.load import Model
from .stream_writes import Parts, StreamWalk, pull_back
from .vocab_gram import CHUNK, Vocabulary, part_gram, squared_norms, vocabulary_of

# Numbers of one table (positions × rows × width, or positions × vocabulary) that are held at a time.
NUMBERS = 16_000_000
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


class VocabularyReadout:
    """A model's read-out to the whole vocabulary at one unit; `dtype` is the precision of products."""

    def __init__(self, vocabulary: Vocabulary, unit: UnitLike, dtype: torch.dtype) -> None:
        self.vocabulary, self.unit, self.dtype = vocabulary, unit, dtype
        self.architecture = vocabulary.architecture
        self.walk = StreamWalk(vocabulary.architecture, unit)
        self._grams: dict[OutputMap, tuple[Tensor, Tensor]] = {}

    def gram(self, output_map: OutputMap) -> tuple[Tensor, Tensor]:
        """The `part_gram` of one write, worked out when first needed."""
        if output_map not in self._grams:
            self._grams[output_map] = part_gram(output_map, self.vocabulary, self.dtype)
        return self._grams[output_map]

    @cached_property
    def _cuts(self) -> list[SublayerCut | None]:
        return [sublayer.cut(self.unit) for sublayer in self.architecture.sublayers]

    @cached_property
    def width(self) -> int:
        """The number of components if every listed block runs once; only a pass shows more."""
        blocks = [tap.module for tap in self.architecture.blocks]
        return len(self.architecture.components(self.unit)) * len(blocks) // len(set(blocks))

    @property
    def step(self) -> int:
        """How many positions are read out together."""
        # Parts that are stream vectors are held as such; heads, neurons and latents are not.
        vectors = sum(cut is not None and cut.output_map is None for cut in self._cuts) and self.width
        streams = (len(self._cuts) + 2 + vectors) * self.architecture.norm.gain.numel()
        return max(1, NUMBERS // max(streams, self.architecture.outputs, self.width))


def vocabulary_readout(model: Model, unit: UnitLike, precision: str) -> VocabularyReadout:
    """The read-out of a model, which it keeps for as long as its weights are the same."""
    parameters = [parameter for root in model.architecture.roots for parameter in root.parameters()]
    weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
    if model.cache.get("weights") != weights:
        model.cache.clear()
        model.cache["weights"] = weights
    if (unit, precision) not in model.cache:
        unit_of(unit)
        model.architecture.components(unit)  # refuses a unit that this model does not have
        with inference_mode_for(model.architecture):
            if precision not in model.cache:
                model.cache[precision] = vocabulary_of(model.architecture, PRECISIONS[precision])
            made = VocabularyReadout(model.cache[precision], unit, PRECISIONS[precision])
        if not isinstance(unit, str):  # a user may make any number of these
            return made
        model.cache[unit, precision] = made
    return model.cache[unit, precision]


@dataclass(frozen=True, eq=False)
class PartColumns:
    """One write that is cut: the columns of its heads or neurons, next to one another, and that of their bias."""

    parts: Parts
    columns: slice
    bias: int | None
    vector: Float[Tensor, "position d"]


@dataclass(frozen=True, eq=False)
class ComponentTable:
    """The components of some positions of a pass; `whole` and its `columns` are not cut, `cut` ones are.

    Sums are written into `out` tables `[position, component]`, which the caller provides; the column of the constant,
    which is not a stream vector, is left to the caller. `sigma` is the final norm's statistic, `final` the final
    stream, in float64; `missing` what it holds beyond all that was written, relative to the sum of the writes' norms.
    """

    readout: VocabularyReadout
    components: tuple[Component, ...]
    whole: Float[Tensor, "position row d"]
    columns: tuple[int, ...]
    cut: tuple[PartColumns, ...]
    sigma: Float[Tensor, " position"]
    final: Float[Tensor, "position d"]
    constant: int | None
    missing: Float[Tensor, " position"]

    def inner(self, queries: Sequence[Float[Tensor, "position d"]], out: Sequence[Tensor]) -> None:
        """z_i · query / σ of every component, a table for every query."""
        stacked = torch.stack([query / self.sigma[:, None] for query in queries], 1).to(self.readout.dtype)
        # Parts first: they fill a new table side by side, and the first touch of its memory is what costs.
        for block in self.cut:
            parts, values = block.parts, block.parts.values.to(stacked.dtype)
            scaled = stacked if parts.divisor is None else stacked / parts.divisor.to(stacked)[:, None, None]
            back = pull_back(parts.output_map, scaled.transpose(0, 1).flatten(0, 1), stacked.dtype)
            for table, product in zip(out, back.view(len(out), *values.shape), strict=True):
                if values.shape[2] > 1:
                    table[:, block.columns] = torch.mul(product, values, out=product).sum(2)
                else:  # for neurons, a copy costs as much as the arithmetic
                    torch.mul(product[:, :, 0], values[:, :, 0], out=table[:, block.columns])
        products = self.whole @ stacked.transpose(1, 2)
        for number, table in enumerate(out):
            table[:, self.columns] = products[:, :, number].to(table.dtype)

    def moments(self, means: Tensor, sizes: Tensor | None = None) -> None:
        """Each component's logit averaged over the vocabulary, and Σ_v of its squared distance from that."""
        vocabulary = self.readout.vocabulary
        for block in self.cut:
            (roots, part_means), values = self.readout.gram(block.parts.output_map), self._scaled(block.parts)
            if values.shape[2] > 1:
                mean = (block.parts.values.double() * part_means.view(values.shape[1:])).sum(2)
                means[:, block.columns] = (mean / self._divisor(block.parts)[:, None]).to(means.dtype)
                if sizes is not None:
                    rooted = torch.bmm(values.transpose(0, 1), roots.transpose(1, 2))
                    sizes[:, block.columns] = rooted.square_().sum(2).T.to(sizes.dtype)
                continue
            torch.mul(values[:, :, 0], part_means.to(means.dtype), out=means[:, block.columns])
            if sizes is not None:
                torch.square(values[:, :, 0] * roots[:, 0, 0], out=sizes[:, block.columns])
        # In float64: what all ids have in common is large along some directions, and these cancel.
        mean = self.whole.double() @ vocabulary.mean.to(self.whole.device) / self.sigma[:, None]
        means[:, self.columns] = mean.to(means.dtype)
        if sizes is not None:
            size = squared_norms(vocabulary.root, self.whole.flatten(0, 1)).view(mean.shape)
            sizes[:, self.columns] = (size / self.sigma[:, None].square()).to(sizes.dtype)

    def log_partitions(self, tau: float, out: Float[Tensor, "position component"]) -> None:
        """log Σ_v exp(τ (u_i(v) − its mean)), a few thousand ids at a time; the constant's too."""
        dtype, scale = self.readout.dtype, (tau / self.sigma).to(self.readout.dtype)
        out.fill_(-torch.inf)

        def add(columns: slice | Sequence[int], values: Tensor) -> None:
            out[:, columns] = torch.logaddexp(out[:, columns], values)

        # At fewer positions than values a part's stream vectors are cheaper than all ids before its output map.
        spread = [len(self.sigma) < block.parts.values.shape[2] for block in self.cut]
        blocks: list[tuple[slice | Sequence[int], Tensor]] = [(self.columns, self.whole)]
        blocks += [(b.columns, b.parts.vectors().to(dtype)) for b, few in zip(self.cut, spread, strict=True) if few]
        rest = [block for block, few in zip(self.cut, spread, strict=True) if not few]
        for _, rows, constant in self.readout.vocabulary.chunks(dtype):
            for columns, z in blocks:
                step = max(1, NUMBERS // (z.shape[1] * len(rows)))
                scaled = zip(z.split(step), scale.split(step), strict=True)
                add(columns, torch.cat([((x * s[:, None, None]) @ rows.T).double().logsumexp(2) for x, s in scaled]))
            for block in rest:
                before = pull_back(block.parts.output_map, rows, rows.dtype)
                before = before.unflatten(1, (block.parts.output_map.count, -1))
                logits = torch.bmm((self._scaled(block.parts) * tau).transpose(0, 1), before.permute(1, 2, 0))
                add(block.columns, logits.double().logsumexp(2).T)
            if self.constant is not None:
                add([self.constant], (tau * constant.double()).logsumexp(0).expand(len(out), 1))

    def vectors(self, columns: Sequence[int]) -> Float[Tensor, "position column d"]:
        """The stream vectors of some components, divided by σ, in float64 on the CPU; the constant's is zero."""
        out = torch.zeros(len(self.sigma), len(columns), self.final.shape[1], dtype=torch.float64)
        blocks: list[tuple[Sequence[int], Callable[[list[int]], Tensor]]]
        blocks = [(range(block.columns.start, block.columns.stop), block.parts.vectors) for block in self.cut]
        blocks.append((self.columns, lambda rows: self.whole[:, rows].double()))
        for own, vectors_of in blocks:
            row_of = {column: row for row, column in enumerate(own)}
            wanted = {number: row_of[column] for number, column in enumerate(columns) if column in row_of}
            if wanted:  # all parts of a write together: one by one, hundreds of heads take seconds
                out[:, list(wanted)] = vectors_of(list(wanted.values())).cpu()
        return out / self.sigma.cpu()[:, None, None]

    def extreme_ids(
        self, columns: Sequence[int], k: int
    ) -> tuple[Int[Tensor, "position column rank"], Float[Tensor, "position column rank"]]:
        """Ids and centered logits of the k largest, then the k smallest of some components, the extreme ones first."""
        z = self.vectors(columns).to(self.final.device, self.readout.dtype)
        is_constant = torch.tensor([column == self.constant for column in columns], device=z.device)
        ids, logits = extremes(self.readout, z.flatten(0, 1), is_constant.expand(z.shape[:2]).flatten(), k)
        return ids.view(*z.shape[:2], 2 * k), logits.view(*z.shape[:2], 2 * k)

    def _scaled(self, parts: Parts) -> Float[Tensor, "position part width"]:
        """Values divided by σ and by the statistic of the norm after the sublayer."""
        dtype = self.readout.dtype
        return parts.values.to(dtype) / self._divisor(parts).to(dtype)[:, None, None]

    def _divisor(self, parts: Parts) -> Float[Tensor, " position"]:
        return self.sigma if parts.divisor is None else self.sigma * parts.divisor


def extremes(
    readout: VocabularyReadout, rows: Float[Tensor, "row d"], is_constant: Tensor, k: int
) -> tuple[Int[Tensor, "row rank"], Float[Tensor, "row rank"]]:
    """Ids and centered logits of the k largest, then the k smallest of stream vectors over σ; or of the constant.

    Only rows whose largest or smallest number in a chunk of the vocabulary is among these are sorted there.
    """
    vocabulary = readout.vocabulary
    # The largest of the logits, and of the logits with their signs turned.
    values = torch.full((2, len(rows), k), -torch.inf, dtype=rows.dtype, device=rows.device)
    ids = torch.zeros(2, len(rows), k, dtype=torch.int64, device=rows.device)
    chunks, count = vocabulary.chunks(readout.dtype), -(-vocabulary.size // CHUNK)
    for chunk, directions, constant in counted(chunks, "promoted tokens", count, "part"):
        step = max(1, NUMBERS // len(directions))
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            logits = rows[block] @ directions.T
            logits[is_constant[block]] = constant
            smallest, largest = logits.aminmax(dim=1)
            for sign, extreme in enumerate((largest, -smallest)):
                better = (extreme > values[sign, block, -1]).nonzero()[:, 0]
                new = (logits[better] if sign == 0 else -logits[better]).topk(min(k, logits.shape[1]), dim=1)
                better += start
                known = torch.cat([values[sign, better], new.values], 1)
                names = torch.cat([ids[sign, better], new.indices + chunk.start], 1)
                best = known.topk(k, dim=1)
                values[sign, better], ids[sign, better] = best.values, names.gather(1, best.indices)
    return torch.cat([*ids], 1), torch.cat([values[0], -values[1]], 1)


def component_table(readout: VocabularyReadout, activations: Activations) -> ComponentTable:
    """The components of a pass, or of some of its positions, by name."""
    architecture, final = readout.architecture, activations.final.double()
    components: list[Component] = []
    whole: dict[int, Tensor] = {}
    cut: list[PartColumns] = []
    written, size = torch.zeros_like(final), torch.zeros_like(final[:, 0])

    def add(component: Component, z: Tensor) -> None:
        whole[len(components)] = z
        components.append(component)

    for write in readout.walk.writes(activations):
        written += write.vector
        size += write.vector.norm(dim=1)
        if not isinstance(write.parts, Parts):
            vectors = [write.vector] if write.parts is None else write.parts.vectors().unbind(1)
            for component, vector in zip(write.components, vectors, strict=True):
                add(component, vector)
            continue
        start, stop = len(components), len(components) + write.parts.output_map.count
        components += write.components[: stop - start]
        bias = stop if len(write.components) > stop - start else None
        cut.append(PartColumns(write.parts, slice(start, stop), bias, write.vector))
        if bias is not None:
            add(write.components[-1], write.parts.bias())
    constant = len(components) if architecture.constant else None
    components += [Component("constant")] * architecture.constant
    missing = (final - written).norm(dim=1) / size.clamp_min(1e-300)
    if activations.dtype in HALF:
        # What half precision lost at every addition, so that the parts still sum to the whole.
        missing = torch.zeros_like(missing)
        total = torch.stack([*whole.values()], 1).double().sum(1)
        for block in cut:
            total += block.parts.total()
        add(Component("rounding"), final - total)
    z = torch.stack([x.to(readout.dtype) for x in whole.values()], 1)
    sigma = architecture.norm.statistic(final)
    return ComponentTable(readout, tuple(components), z, tuple(whole), tuple(cut), sigma, final, constant, missing)


def model_logits(architecture: Architecture, final: Float[Tensor, "position d"]) -> tuple[Tensor, Tensor]:
    """(the unembedding's output, the logits) for some final streams, by the model's modules, past the user's hooks."""
    normed = architecture.norm_module.forward(final.to(architecture.dtype)[:, None])
    unembedded = architecture.unembed.forward(architecture.to_unembed(normed))
    return upcast(unembedded[:, 0]).to(final.device), upcast(architecture.transform(unembedded)[:, 0]).to(final.device)
