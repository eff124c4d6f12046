"""Inner products of logit vectors over the whole vocabulary, without forming a logit.

A stream vector z (frozen norm: z/σ) gives the vocabulary u(v) = W_v · z, with gain, centering and
multiplier folded into W. Sums over v are then products of small matrices:

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
from .stream_writes import pull_back

# Rows of the unembedding that are worked on together.
CHUNK = 4096
# Columns of R that are worked on together: the zeros left of the diagonal are not multiplied.
BAND = 144


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Moments of all rows of the unembedding, for stream vectors before the division by σ.

    Attributes:
        size, mean, gram: The number of ids, V; w̄ `[d]`, G `[d, d]`, float64.
        constant_mean, constant_power, constant_product: Of what the read-out adds by itself, c(v): its mean, Σ_v (c −
            c̄)², and `[d]` with h · z = Σ_v (c − c̄)(u − ū); 0 where there is none.
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
        """R, upper triangular with RᵀR = G, by Cholesky unless G is singular (a centering norm leaves one out)."""
        factor, failed = torch.linalg.cholesky_ex(self.gram, upper=True)
        if not failed:
            return factor
        values, vectors = torch.linalg.eigh(self.gram)
        return torch.linalg.qr(values.clamp_min(0).sqrt()[:, None] * vectors.T).R

    def rows(self, ids: Int[Tensor, " position"]) -> tuple[Float[Tensor, "position d"], Float[Tensor, " position"]]:
        """Each id's stream direction and constant, less their means over the vocabulary; float64."""
        distinct, index = ids.unique(return_inverse=True)
        rows, constant = folded_rows(self.architecture, distinct, torch.float64)
        return (rows - self.mean)[index], (constant - self.constant_mean)[index]

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[slice, Float[Tensor, "id d"], Float[Tensor, " id"]]]:
        """(which ids, their rows, their constants), CHUNK ids at a time, less the means over the vocabulary."""
        mean = self.mean.to(dtype)  # most of a row, which would take the digits of what distinguishes ids
        for ids, rows, constant in _chunks(self.architecture, dtype):
            yield ids, rows - mean, constant - self.constant_mean

    def weighted_rows(self, dtype: torch.dtype, weights: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
        """(Σ_v weight · W_v `[position, d]`, Σ_v weight · constant `[position]`), both less their means."""
        directions = torch.zeros(len(weights), len(self.mean), dtype=torch.float64, device=weights.device)
        constants = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        for ids, rows, constant in self.chunks(dtype):
            chunk = weights[:, ids].to(dtype)
            directions += chunk @ rows
            constants += chunk @ constant
        return directions, constants


def vocabulary_of(architecture: Architecture, dtype: torch.dtype) -> Vocabulary:
    """The moments of an unembedding, in two rounds of a few thousand rows at a time; `dtype` is that of products."""
    size, device = architecture.outputs, architecture.device
    mean, constant_mean = vocabulary_mean(architecture, dtype)
    gram = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=device)
    product, power = torch.zeros_like(mean), 0.0
    for _, rows, constant in _chunks(architecture, dtype):
        rows = rows - mean.to(dtype)
        constant = constant - constant_mean
        gram += (rows.T @ rows).double()
        product += (constant @ rows).double()
        power += float(constant.double().square().sum())
    return Vocabulary(architecture, size, mean, gram, constant_mean, power, product)


def vocabulary_mean(architecture: Architecture, dtype: torch.dtype) -> tuple[Float[Tensor, " d"], float]:
    """The mean over all ids of the folded rows, and of the constant; float64."""
    mean = torch.zeros_like(architecture.norm.gain, dtype=torch.float64, device=architecture.device)
    constant_mean = 0.0
    for _, rows, constant in _chunks(architecture, dtype):
        mean += rows.double().sum(0) / architecture.outputs
        constant_mean += float(constant.double().sum()) / architecture.outputs
    return mean, constant_mean


def _chunks(architecture: Architecture, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor]]:
    for start in range(0, architecture.outputs, CHUNK):
        stop = min(start + CHUNK, architecture.outputs)
        yield slice(start, stop), *folded_rows(architecture, torch.arange(start, stop), dtype)


def folded_rows(architecture: Architecture, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The unembedding's rows with the final norm's gain and centering folded in, and what the read-out adds."""
    norm, device = architecture.norm, architecture.device
    rows, bias = architecture.unembed_rows(ids)
    rows = rows.to(device, dtype) * architecture.logit_multiplier
    constant = torch.zeros(len(ids), dtype=dtype, device=device)
    if norm.bias is not None:
        constant += rows @ norm.bias.to(device, dtype)
    if bias is not None:
        constant += bias.to(device, dtype) * architecture.logit_multiplier
    return norm.fold(rows), constant


def squared_norms(root: Float[Tensor, "d d"], z: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """|Rz|² of each row, products in the precision of z, sums of at most BAND of them; float64."""
    root = root.to(z.dtype)
    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for start in range(0, len(root), BAND):
        band = z[:, start:] @ root[start : start + BAND, start:].T
        total += band.square_().sum(1).double()
    return total


def part_gram(
    output_map: OutputMap, vocabulary: Vocabulary, dtype: torch.dtype
) -> tuple[Float[Tensor, "part width width"], Float[Tensor, " _"]]:
    """Moments over the vocabulary of the heads or neurons of one write, before their values and scales.

    Roots of `dtype`, whose products with a part's values have the norm of its logits (not the Gram matrices: a head
    whose values nearly cancel would lose twice as many digits), and means `[part·width]`, float64.
    """
    weight, _ = output_map.projection()
    single = len(weight) == output_map.count
    root = vocabulary.root.to(dtype) if single else vocabulary.root
    back = pull_back(output_map, root, root.dtype).double().unflatten(1, (output_map.count, -1))
    roots = back.square().sum(0).sqrt()[:, :, None] if single else torch.linalg.qr(back.transpose(0, 1), mode="r").R
    return roots.to(dtype), pull_back(output_map, vocabulary.mean[None], torch.float64)[0]


def log_sum_exp(logits: Float[Tensor, "position v"]) -> Float[Tensor, " position"]:
    """In float64; NaN or infinite where a logit is."""
    return torch.cat([rows.double().logsumexp(1) for rows in logits.split(16)])  # which stay in the processor's cache


def probabilities(
    logits: Float[Tensor, "position v"],
) -> tuple[Float[Tensor, "position v"], Float[Tensor, " position"]]:
    """The softmax, kept in the precision of the logits, and its entropy in nats, float64."""
    p, entropies = torch.empty_like(logits), []
    for rows, out in zip(logits.split(16), p.split(16), strict=True):
        log_p = rows.double().log_softmax(1)
        out.copy_(log_p.exp())
        entropies.append(-(log_p.exp() * log_p.clamp_min(-1e30)).sum(1))
    return p, torch.cat(entropies)


def mean_and_power(logits: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
    """The mean of every row and Σ_v of its squared distance from that, float64."""
    moments = []
    for rows in logits.split(16):
        wide = rows.double()
        mean = wide.mean(1)
        moments.append(torch.stack([mean, (wide - mean[:, None]).square_().sum(1)]))
    mean, power = torch.cat(moments, 1)
    return mean, power
