"""The whole vocabulary at once: inner products of logit vectors, and not one logit formed (MATHS 9).

A stream vector z (frozen norm: z/σ) gives the vocabulary u(v) = W_v · z, with gain, centring and
multiplier folded into W. Sums over v are then products of small things:

    mean_v u(v) = w̄ · z          Σ_v (u(v) − ū)(u'(v) − ū') = z · G z' = Rz · Rz'

with G the Gram matrix `[d, d]` of the rows of W around their mean w̄, and R its triangular root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.architecture import Architecture, OutputMap

# Rows of the unembedding that are worked on together.
CHUNK = 4096
# Columns of R that are worked on together: the zeros left of the diagonal are not multiplied.
BAND = 144


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What all rows of the unembedding are together, for stream vectors before the division by σ.

    size
        How many ids there are, V.
    mean, gram, root
        w̄ `[d]`, G `[d, d]`, R `[d, d]` upper triangular with RᵀR = G; float64. R is made when first needed.
    constant_mean, constant_power, constant_product
        Of what the read-out adds by itself, c(v): its mean, Σ_v (c − c̄)², and `[d]` with
        h · z = Σ_v (c − c̄)(u − ū); None, 0 where there is none.
    """

    architecture: Architecture
    size: int
    mean: Float[Tensor, " d"]
    gram: Float[Tensor, "d d"]
    constant_mean: float
    constant_power: float
    constant_product: Float[Tensor, " d"]

    @cached_property
    def root(self) -> Float[Tensor, "d d"]:
        """Upper triangular R with RᵀR = G."""
        return _root(self.gram)

    def rows(self, ids: Int[Tensor, " position"]) -> tuple[Float[Tensor, "position d"], Float[Tensor, " position"]]:
        """Every position's own stream direction and what the read-out adds to its id, less the means; float64."""
        distinct, index = ids.unique(return_inverse=True)
        rows, constant = _rows(self.architecture, distinct, torch.float64)
        return (rows - self.mean)[index], (constant - self.constant_mean)[index]

    def chunks(self, wide: torch.dtype) -> Iterator[tuple[slice, Float[Tensor, "id d"], Float[Tensor, " id"]]]:
        """(which ids, their rows, their constants), CHUNK ids at a time, less the means over the vocabulary.

        What all ids have in common is most of a row, and would take the digits of what tells them apart.
        """
        mean = self.mean.to(wide)
        for ids, rows, constant in _chunks(self.architecture, wide):
            yield ids, rows - mean, constant - self.constant_mean


def vocabulary_of(architecture: Architecture, wide: torch.dtype) -> Vocabulary:
    """Go through the unembedding twice, a few thousand rows at a time; `wide` is the precision of products."""
    size, width = architecture.outputs, architecture.norm.gain.numel()
    device = architecture.device
    mean = torch.zeros(width, dtype=torch.float64, device=device)
    constant_mean = 0.0
    for _, rows, constant in _chunks(architecture, wide):
        mean += rows.double().sum(0) / size
        constant_mean += float(constant.double().sum()) / size
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    product, power = torch.zeros_like(mean), 0.0
    for _, rows, constant in _chunks(architecture, wide):
        rows = rows - mean.to(wide)
        constant = constant - constant_mean
        gram += (rows.T @ rows).double()
        product += (constant @ rows).double()
        power += float(constant.double().square().sum())
    return Vocabulary(architecture, size, mean, gram, constant_mean, power, product)


def _chunks(architecture: Architecture, wide: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor]]:
    for start in range(0, architecture.outputs, CHUNK):
        stop = min(start + CHUNK, architecture.outputs)
        yield slice(start, stop), *_rows(architecture, torch.arange(start, stop), wide)


def _rows(architecture: Architecture, ids: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    norm, device = architecture.norm, architecture.device
    rows, bias = architecture.unembed_rows(ids)
    rows = rows.to(device, wide) * architecture.logit_multiplier
    constant = torch.zeros(len(ids), dtype=wide, device=device)
    if norm.bias is not None:
        constant += rows @ norm.bias.to(device, wide)
    if bias is not None:
        constant += bias.to(device, wide) * architecture.logit_multiplier
    folded = rows * norm.gain.to(device, wide)
    return folded - folded.mean(1, keepdim=True) if norm.centered else folded, constant


def _root(gram: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """By Cholesky; a G that is singular (a centring norm leaves a direction out) takes a longer way."""
    factor, failed = torch.linalg.cholesky_ex(gram, upper=True)
    if not failed:
        return factor
    values, vectors = torch.linalg.eigh(gram)
    return torch.linalg.qr(values.clamp_min(0).sqrt()[:, None] * vectors.T).R


def sizes_of(root: Float[Tensor, "d d"], z: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """|Rz|² of each row, products in the precision of z, sums of at most BAND of them; float64."""
    root = root.to(z.dtype)
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for start in range(0, len(root), BAND):
        band = z[:, start:] @ root[start : start + BAND, start:].T
        total += band.square_().sum(1).double()
    return total


@dataclass(frozen=True, eq=False)
class Cut:
    """What the heads or neurons of one write are to the whole vocabulary, before their values and scales.

    roots `[part, width, width]`, whose products with a part's values have the size of its logits (not the
    Gram matrices: a head whose values nearly cancel would lose twice as many digits), in the precision of
    products; and means `[part·width]`, in float64.
    """

    roots: Float[Tensor, "part width width"]
    means: Float[Tensor, " _"]


def cut_of(split: OutputMap, vocabulary: Vocabulary, wide: torch.dtype) -> Cut:
    """Take the root and the mean of the vocabulary back through an output map, once."""
    weight, _ = split.projection()
    single = len(weight) == split.count
    root = vocabulary.root.to(wide) if single else vocabulary.root
    seen = through(split, root, weight).double().unflatten(1, (split.count, -1))
    roots = seen.square().sum(0).sqrt()[:, :, None] if single else torch.linalg.qr(seen.transpose(0, 1), mode="r").R
    return Cut(roots.to(wide), through(split, vocabulary.mean[None], weight)[0])


def through(split: OutputMap, queries: Float[Tensor, "n d"], weight: Tensor) -> Float[Tensor, "n _"]:
    """Stream directions as directions of the values before an output map, norm and scale behind it folded in."""
    queries = queries * split.scale
    if split.post is not None:
        queries = queries * split.post.gain.to(queries)
        if split.post.centered:
            queries = queries - queries.mean(1, keepdim=True)
    return queries @ weight.to(queries.device, queries.dtype).T
