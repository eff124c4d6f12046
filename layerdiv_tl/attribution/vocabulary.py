"""Directions of a whole vocabulary: means, sums of squares, log-sum-exps and extremes of every row's logits.

The vocabulary's logits of a component are not formed where sums suffice. Let G be the Gram matrix of all directions
around their mean, and R its triangular root: Σ_v (u(v) − ū)(u'(v) − ū') = z · G z' = Rz · Rz'. Let p be the model's
distribution at a position, H its entropy and l = Σ_i u_i its logits:

    log p(t) = l(t) − log Σ_v exp l(v) = Σ_i (u_i(t) − E_p[u_i]) − H(p)

E_p[u_i] is the inner product of component i with one direction, the mean of all directions under p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import counted
from ..model.architecture import Architecture, OutputMap, UnitLike
from ..model.batches import inference_mode_for, upcast
from ..model.capture import Activations
from ..model.cuts import unit_of
from ..model.load import Model
from ..model.weights import parameters_of
from .blocks import Rows, StreamWalk
from .directions import Directions, fold, pull_back, token_directions

# Rows of the unembedding that are processed together; in float64, few enough to stay in a core's cache.
CHUNK, FINE = 4096, 1024
# Columns of R that are processed together, which skips the zeros left of the diagonal.
BAND = 144
# The most numbers of one table (positions × rows × width, or positions × vocabulary) held at a time.
NUMBERS = 16_000_000
# The most positions whose probabilities are held at a time.
STEP = 128
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


class Vocabulary:
    """The directions of all of a model's ids, and their moments; on its device."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture, self.size = architecture, architecture.outputs
        self._grams: dict[torch.dtype, Float[Tensor, "d+1 d+1"]] = {}
        self._roots: dict[torch.dtype, Float[Tensor, "d d"]] = {}

    @cached_property
    def _mean_row(self) -> tuple[Float[Tensor, "1 d"], Float[Tensor, " 1"] | None]:
        """The mean of the unembedding's own rows, and of its bias; float64, to the bit whatever else is computed."""
        rows, bias = self.architecture.unembed_rows(None)
        total = _weighted_sum(torch.ones(1, len(rows), dtype=torch.float64, device=self.architecture.device), rows)
        return total / len(rows), None if bias is None else bias.to(total).mean(0, keepdim=True)

    @cached_property
    def mean(self) -> Float[Tensor, " d+1"]:
        """The mean direction, whose product with a row is the row's mean logit; float64."""
        return fold(self.architecture, *self._mean_row)[0]

    def rows(self, ids: Int[Tensor, " position"]) -> Float[Tensor, "position d+1"]:
        """Each id's direction minus the mean, float64."""
        distinct, index = ids.unique(return_inverse=True)
        return (token_directions(self.architecture, distinct) - self.mean)[index]

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[slice, Float[Tensor, "id d+1"]]]:
        """Yield a slice of ids and their directions minus the mean, CHUNK ids at a time."""
        mean = self.mean.to(dtype)  # the mean is most of a row and would cost the digits that distinguish ids
        for start in range(0, self.size, CHUNK):
            ids = torch.arange(start, min(start + CHUNK, self.size))
            yield slice(start, start + len(ids)), token_directions(self.architecture, ids, dtype).sub_(mean)

    def average(
        self, weights: Float[Tensor, "position v"], dtype: torch.dtype = torch.float64
    ) -> Float[Tensor, "position d+1"]:
        """Σ_v weight · direction at each position, in float64; `dtype` is that of the products."""
        rows, bias = self.architecture.unembed_rows(None)
        if dtype == torch.float64:
            total = _weighted_sum(weights, rows)
        else:
            mean, total = self._mean_row[0], torch.zeros(1, dtype=torch.float64, device=weights.device)
            for start in range(0, len(rows), CHUNK):
                some = rows[start : start + CHUNK].to(weights.device, dtype)
                # The mean would cost the digits that distinguish ids.
                total = total + weights[:, start : start + CHUNK].to(dtype) @ (some - mean.to(some))
            total = total + weights.double().sum(1, keepdim=True) * mean.to(total)
        return fold(self.architecture, total, None if bias is None else weights.to(total) @ bias.to(total))

    def gram(self, dtype: torch.dtype) -> Float[Tensor, "d+1 d+1"]:
        """G, the Gram matrix of all directions around their mean, float64; `dtype` is that of the products."""
        if dtype not in self._grams:
            width = len(self.mean)
            gram = torch.zeros(width, width, dtype=torch.float64, device=self.mean.device)
            for _, rows in self.chunks(dtype):
                gram += (rows.T @ rows).double()
            self._grams[dtype] = gram
        return self._grams[dtype]

    def root(self, dtype: torch.dtype) -> Float[Tensor, "d d"]:
        """R, upper triangular with RᵀR = G, for stream vectors; float64.

        Computed by Cholesky unless G is singular (a centering norm removes one dimension).
        """
        if dtype not in self._roots:
            gram = self.gram(dtype)[:-1, :-1]
            factor, failed = torch.linalg.cholesky_ex(gram, upper=True)
            if failed:
                values, vectors = torch.linalg.eigh(gram)
                factor = torch.linalg.qr(values.clamp_min(0).sqrt()[:, None] * vectors.T).R
            self._roots[dtype] = factor
        return self._roots[dtype]


def _weighted_sum(weights: Float[Tensor, "n v"], rows: Float[Tensor, "v d"]) -> Float[Tensor, "n d"]:
    """weights @ rows in float64, FINE rows at a time, where the weights are."""
    total = torch.zeros(len(weights), rows.shape[1], dtype=torch.float64, device=weights.device)
    for start in range(0, len(rows), FINE):
        some = rows[start : start + FINE].to(total)
        total.addmm_(weights[:, start : start + FINE].to(total), some)
    return total


class VocabularyReadout:
    """A model's read-out to the whole vocabulary at one unit; `dtype` is the precision of products."""

    def __init__(self, vocabulary: Vocabulary, unit: UnitLike, dtype: torch.dtype) -> None:
        self.vocabulary, self.unit, self.dtype = vocabulary, unit, dtype
        self.architecture = vocabulary.architecture
        self.walk = StreamWalk(vocabulary.architecture, unit)
        self._mean = Directions(vocabulary.mean[None], precision=torch.float64)
        self._roots: dict[OutputMap, Float[Tensor, "part width width"]] = {}

    @cached_property
    def width(self) -> int:
        """The number of components if every listed block runs once; repeats are known only after a pass."""
        blocks = [tap.module for tap in self.architecture.blocks]
        return len(self.architecture.components(self.unit)) * len(blocks) // len(set(blocks))

    @cached_property
    def step(self) -> int:
        """The number of positions that are read out together."""
        cuts = [sublayer.cut(self.unit) for sublayer in self.architecture.sublayers]
        # Parts that are stream vectors are held as such; heads, neurons and latents are not.
        vectors = sum(cut is not None and cut.output_map is None for cut in cuts) and self.width
        streams = (len(cuts) + 2 + vectors) * self.architecture.norm.gain.numel()
        return max(1, NUMBERS // max(streams, self.architecture.outputs, self.width))

    def rows_of(self, activations: Activations) -> Rows:
        """The rows of a pass, or of some of its positions."""
        return Rows(self.walk, activations, self.dtype)

    def means(self, rows: Rows, out: Float[Tensor, "position row"]) -> None:
        """Write each row's logit averaged over the vocabulary."""
        # In float64: the part that all ids share is large along some directions, which cancel.
        self._mean.fill(rows, [out])

    def sizes(self, rows: Rows, out: Float[Tensor, "position row"]) -> None:
        """Write Σ_v of the squared distance of each row's logits from their mean."""
        root, gram = self.vocabulary.root(self.dtype), self.vocabulary.gram(self.dtype)
        of_slots = squared_norms(root, rows.streams.flatten(0, 1).to(self.dtype)).view(rows.streams.shape[:2])
        slots = iter(of_slots.split([b.x.shape[1] for b in rows.blocks if b.is_stream], 1))
        for block, place in zip(rows.blocks, rows.places, strict=True):
            if block.is_constant:
                out[:, place] = gram[-1, -1]
            elif block.output_map is None and block.index is None:
                out[:, place] = next(slots).to(out.dtype)
            elif block.output_map is None:  # slots of one row add up before they are squared
                next(slots)
                vectors = block.scattered(block.x).to(self.dtype)
                out[:, place] = squared_norms(root, vectors.flatten(0, 1)).view(vectors.shape[:2]).to(out.dtype)
            elif block.x.shape[2] > 1:
                values = block.x.to(self.dtype).transpose(0, 1)
                rooted = torch.bmm(values, self._part_roots(block.output_map).transpose(1, 2))
                out[:, place] = rooted.square_().sum(2).T.to(out.dtype)
            else:
                torch.square(block.x[:, :, 0] * self._part_roots(block.output_map)[:, 0, 0], out=out[:, place])

    def _part_roots(self, output_map: OutputMap) -> Float[Tensor, "part width width"]:
        """Compute matrices whose products with a head's or neuron's values have the norm of its centered logits.

        These are not Gram matrices, with which a head whose values nearly cancel would lose twice as many digits.
        """
        if output_map not in self._roots:
            single = len(output_map.projection()[0]) == output_map.count
            root = self.vocabulary.root(self.dtype)
            root = root.to(self.dtype) if single else root
            back = pull_back(output_map, root, root.dtype).double().unflatten(1, (output_map.count, -1))
            if single:
                roots = back.square().sum(0).sqrt()[:, :, None]
            else:
                roots = torch.linalg.qr(back.transpose(0, 1), mode="r").R
            self._roots[output_map] = roots.to(self.dtype)
        return self._roots[output_map]


def vocabulary_of(model: Model) -> Vocabulary:
    """Get a model's vocabulary, which is cached for as long as its weights are the same."""
    parameters = parameters_of(*model.architecture.roots)
    weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
    if model.cache.get("weights", weights) != weights:
        model.cache.clear()
    if "vocabulary" not in model.cache:
        model.cache.update(weights=weights, vocabulary=Vocabulary(model.architecture))
    vocabulary: Vocabulary = model.cache["vocabulary"]
    return vocabulary


def vocabulary_readout(model: Model, unit: UnitLike, precision: str) -> VocabularyReadout:
    """Get a model's read-out at a unit, cached with its vocabulary if the unit has a name."""
    model.architecture.components(unit_of(unit))  # raises for a unit that this model does not have
    vocabulary = vocabulary_of(model)
    if (unit, precision) in model.cache:
        kept: VocabularyReadout = model.cache[unit, precision]
        return kept
    with inference_mode_for(model.architecture):
        made = VocabularyReadout(vocabulary, unit, PRECISIONS[precision])
    if isinstance(unit, str):  # a user may make any number of custom units
        model.cache[unit, precision] = made
    return made


class NextTokenDistribution:
    """The distribution p of the next token at each position of a pass; on the CPU, in float64.

    Attributes:
        log_partition, mean_logit, average_logit: `[position]`: log Σ_v exp of the logits, and the means under p and
            over the vocabulary of the logits before any soft-cap.
        directions: One for every position: the mean of all tokens' directions under p.
    """

    def __init__(self, vocabulary: Vocabulary, logits: Tensor, unembedded: Tensor) -> None:
        steps = []
        for own, before in zip(logits.split(STEP), unembedded.split(STEP), strict=True):
            log_partition = log_sum_exp(own)
            p = (own.double() - log_partition[:, None]).exp_()
            mean_logit = torch.cat([*map(_dot, p.split(16), before.split(16))])
            average = before.mean(1, dtype=torch.float64)
            means = (x * vocabulary.architecture.logit_multiplier for x in (mean_logit, average))
            steps.append((log_partition, *means, vocabulary.average(p)[:, None]))
        joined = (torch.cat(x).cpu() for x in zip(*steps, strict=True))
        self.log_partition, self.mean_logit, self.average_logit, vectors = joined
        self.directions = Directions(vectors)

    def at(self, some: slice) -> NextTokenDistribution:
        """Select some positions."""
        own = copy(self)
        own.log_partition, own.mean_logit = self.log_partition[some], self.mean_logit[some]
        own.average_logit = self.average_logit[some]
        own.directions = self.directions.at(some)
        return own


def extremes(
    readout: VocabularyReadout, vectors: Float[Tensor, "row d+1"], k: int
) -> tuple[Int[Tensor, "row rank"], Float[Tensor, "row rank"]]:
    """Find ids and centered logits of the k largest, then the k smallest, for some rows' vectors (`Rows.vectors`).

    In each chunk of the vocabulary, only rows whose extremes there would enter the result are sorted.
    """
    vocabulary, vectors = readout.vocabulary, vectors.to(readout.dtype)
    # The largest of the logits and of the negated logits.
    values = torch.full((2, len(vectors), k), -torch.inf, dtype=vectors.dtype, device=vectors.device)
    ids = torch.zeros(2, len(vectors), k, dtype=torch.int64, device=vectors.device)
    chunks, count = vocabulary.chunks(readout.dtype), -(-vocabulary.size // CHUNK)
    for chunk, directions in counted(chunks, "promoted tokens", count, "part"):
        step = max(1, NUMBERS // len(directions))
        for start in range(0, len(vectors), step):
            some = slice(start, start + step)
            logits = vectors[some] @ directions.T
            smallest, largest = logits.aminmax(dim=1)
            for sign, extreme in enumerate((largest, -smallest)):
                better = (extreme > values[sign, some, -1]).nonzero()[:, 0]
                new = (logits[better] if sign == 0 else -logits[better]).topk(min(k, logits.shape[1]), dim=1)
                better += start
                known = torch.cat([values[sign, better], new.values], 1)
                names = torch.cat([ids[sign, better], new.indices + chunk.start], 1)
                best = known.topk(k, dim=1)
                values[sign, better], ids[sign, better] = best.values, names.gather(1, best.indices)
    return torch.cat([*ids], 1), torch.cat([values[0], -values[1]], 1)


def squared_norms(root: Float[Tensor, "d d"], z: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """|Rz|² of each row, products in the precision of z, sums of at most BAND of them; float64."""
    root = root.to(z.dtype)
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for start in range(0, len(root), BAND):
        band = z[:, start:] @ root[start : start + BAND, start:].T
        total += band.square_().sum(1).double()
    return total


def _by_rows(logits: Tensor, of_rows: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Tensor]:
    """Compute numbers of every row in float64, a few rows at a time, which stay in the processor's cache."""
    return [torch.cat(parts) for parts in zip(*(of_rows(rows.double()) for rows in logits.split(16)), strict=True)]


def _dot(a: Float[Tensor, "n v"], b: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """The inner products of some rows, in the precision of a."""
    return torch.bmm(a[:, None], b.to(a)[:, :, None])[:, 0, 0]


def log_sum_exp(logits: Float[Tensor, "position v"]) -> Float[Tensor, " position"]:
    """log Σ_v exp of each row, in float64; NaN or infinite where a logit is."""
    return _by_rows(logits, lambda rows: (rows.logsumexp(1),))[0]


def probabilities(logits: Float[Tensor, "position v"]) -> list[Tensor]:
    """The softmax, kept in the precision of the logits, and its entropy in nats, float64."""

    def of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
        log_p = rows.log_softmax(1)
        return log_p.exp().to(logits.dtype), -(log_p.exp() * log_p.clamp_min(-1e30)).sum(1)

    return _by_rows(logits, of_rows)


def mean_and_power(logits: Float[Tensor, "position v"]) -> list[Tensor]:
    """The mean of every row and Σ_v of its squared distance from that, float64."""

    def of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
        mean = rows.mean(1)
        return mean, (rows - mean[:, None]).square_().sum(1)

    return _by_rows(logits, of_rows)


def model_logits(architecture: Architecture, final: Float[Tensor, "position d"]) -> tuple[Tensor, Tensor]:
    """Run some final streams through the model's modules, without the user's hooks: (unembedding's output, logits)."""
    normed = architecture.norm_module.forward(final.to(architecture.dtype)[:, None])
    unembedded = architecture.unembed.forward(architecture.to_unembed(normed))
    return upcast(unembedded[:, 0]).to(final.device), upcast(architecture.transform(unembedded)[:, 0]).to(final.device)
