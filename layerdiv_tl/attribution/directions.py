"""Directions of the read-out, and the central product of attribution: every row of a pass with some of them.

A direction is a row of the unembedding with the final norm's gain and centering and the logits' multiplier folded in, d
numbers, and one more for the read-out's constant. A component's contribution to a token's logit is its inner product
with the token's direction, over σ (`blocks.Rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.architecture import Architecture, OutputMap
from ..model.reconstruction import ReconstructionError
from .blocks import Block, Rows

# Errors of parts are relative to their own size, but to at least this share of the largest.
NOTICED = 0.01


def fold(architecture: Architecture, rows: Float[Tensor, "n d"], bias: Tensor | None) -> Float[Tensor, "n d+1"]:
    """Turn rows of an unembedding and their biases into directions."""
    multiplier = architecture.logit_multiplier
    return _behind_norm(architecture, rows * multiplier, None if bias is None else bias.to(rows) * multiplier)


def _behind_norm(architecture: Architecture, rows: Tensor, constant: Tensor | None) -> Tensor:
    norm = architecture.norm
    constant = torch.zeros(len(rows)).to(rows) if constant is None else constant
    constant = constant if norm.bias is None else rows @ norm.bias.to(rows) + constant
    return torch.cat([norm.fold(rows), constant[:, None]], 1)


def token_directions(
    architecture: Architecture, ids: Int[Tensor, " id"], dtype: torch.dtype = torch.float64
) -> Float[Tensor, "id d+1"]:
    """Make the directions of some tokens, on the model's device."""
    rows, bias = architecture.unembed_rows(ids)
    return fold(architecture, rows.to(architecture.device, dtype), bias)


def probe_directions(architecture: Architecture, probes: Float[Tensor, "probe d"]) -> Float[Tensor, "probe d+1"]:
    """Make the directions of vectors that are read after the final norm."""
    return _behind_norm(architecture, probes, None)


class Directions:
    """Read-out directions, and the choice of those along which each position is read.

    Attributes:
        vectors: `[direction, d+1]`, shared by all positions, or `[position, direction, d+1]`, separate for each.
        index: `[position, column]`: the shared directions along which each position is read; None means all.
        precision: The precision of products that pull directions back through an output map; None is that of its
            weights, at least float32.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "*position direction d+1"],
        index: Int[Tensor, "position column"] | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        self.vectors, self.index, self.precision = vectors, index, precision
        # Shared directions pulled back through each output map, whose weights are thus read only once.
        self._before: dict[OutputMap, Float[Tensor, "direction part width"]] = {}

    @property
    def columns(self) -> int:
        """The number of columns of a product."""
        return self.vectors.shape[-2] if self.index is None else self.index.shape[1]

    def at(self, some: slice | Int[Tensor, " position"]) -> Directions:
        """Select some positions, and the directions that they need."""
        own = copy(self)
        if self.vectors.dim() == 3:
            own.vectors = self.vectors[some]
        elif self.index is not None:
            needed, own.index = self.index[some].unique(return_inverse=True)
            if len(needed) < len(self.vectors):
                own.vectors, own._before = self.vectors[needed], {}
        return own

    def inner(self, rows: Rows) -> Float[Tensor, "position row column"]:
        """Multiply every row with each position's directions."""
        found = torch.empty(len(rows.sigma), len(rows.components), self.columns).to(self.vectors)
        self.fill(rows, found.unbind(2))
        return found

    def fill(self, rows: Rows, out: Sequence[Float[Tensor, "position row"]]) -> None:
        """Write the products with each position's directions into tables, one for each column."""
        slots = iter(self.of_streams(rows.streams).split([b.x.shape[1] for b in rows.blocks if b.is_stream], 1))
        for block, place in zip(rows.blocks, rows.places, strict=True):
            if block.output_map is not None and block.x.shape[2] == 1 and self.index is None:
                # For neurons, a copy costs as much as the arithmetic.
                values, back = block.x[:, :, 0], self.before(block).to(block.x)[..., 0]
                for table, own in zip(out, back.unbind(-2), strict=True):
                    torch.mul(values, own, out=table[:, place])
                continue
            u = block.scattered(next(slots)) if block.is_stream else self.of_block(block)
            for table, column in zip(out, u.unbind(2), strict=True):
                table[:, place] = column.to(table.dtype)

    def of_block(self, block: Block) -> Float[Tensor, "position row column"]:
        """Multiply one block's rows with each position's directions."""
        if block.is_constant:
            return self._own(block.x * self.vectors[..., None, :, -1].double())
        if block.is_stream:
            return block.scattered(self.of_streams(block.x))
        back = self.before(block)
        if self.vectors.dim() == 3:
            return back.mul_(block.x.to(back)[:, None]).sum(3).transpose(1, 2)
        return self._own(torch.einsum("npw,mpw->npm", block.x.to(back), back))

    def of_streams(self, vectors: Float[Tensor, "position slot d"]) -> Float[Tensor, "position slot column"]:
        """Multiply stream vectors with each position's directions, without the read-out's constant."""
        return self._own(vectors.to(self.vectors) @ self.vectors[..., :-1].transpose(-1, -2))

    def before(self, block: Block) -> Float[Tensor, "*position direction part width"]:
        """Pull the directions back to the values before a block's output map."""
        output_map = block.output_map
        assert output_map is not None
        if output_map not in self._before:
            flat = self.vectors[..., :-1].flatten(0, -2)
            back = pull_back(output_map, flat, self.precision).to(flat)
            back = back.view(*self.vectors.shape[:-1], output_map.count, -1)
            if self.vectors.dim() == 3:
                return back
            self._before[output_map] = back
        return self._before[output_map]

    def _own(self, u: Float[Tensor, "position row direction"]) -> Float[Tensor, "position row column"]:
        """Pick the columns of each position from those of all directions."""
        if self.index is None:
            return u
        return u.gather(2, self.index[:, None].expand(-1, u.shape[1], -1))


def pull_back(
    output_map: OutputMap, directions: Float[Tensor, "n d"], dtype: torch.dtype | None = None
) -> Float[Tensor, "n _"]:
    """Pull stream directions back to the values before an output map, `[n, part·width]`, on their own device.

    The maps behind the projection are folded in. `dtype` is that of the product; None is the weights' own, at least
    float32.
    """
    weight, _ = output_map.projection()
    dtype = dtype or torch.promote_types(weight.dtype, torch.float32)
    folded = directions
    for linear in reversed(output_map.maps):
        folded = linear.fold(folded)
    return (folded.to(weight.device, dtype) @ weight.to(dtype).T).to(directions.device)


def reconstruct(
    error: ReconstructionError,
    rows: Rows,
    along: Directions,
    u: Callable[[slice], Float[Tensor, "position row column"]],
    logits: Float[Tensor, "position column"],
) -> Float[Tensor, " position"]:
    """Add to `error` the gaps between the rows `u` and the model's logits, rows and stream, and parts and their write.

    Returns the part of the stream that was not written by any component, relative to max Σ|u_i|.
    """
    total, size, written = (torch.zeros_like(logits) for _ in range(3))
    cut, sizes, start = list[tuple[Tensor, Tensor, Tensor]](), torch.zeros_like(logits), 0
    for write in rows.writes:
        stop = start + len(write.components)
        # Write by write: one float32 sum over thousands of neurons loses digits.
        own, start = u(slice(start, stop)), stop
        added, norm = own.sum(1).double(), own.abs().sum(1).double()
        total, size = total + added, size + norm
        if write.junction is None:
            continue
        written, sizes = written + added, sizes + added.abs()
        if write.is_cut:
            cut.append((write.vector, added, norm))
    sigma = rows.sigma[:, None, None]
    # The rows that must sum to the stream: all but the read-out's constant and the row defined as the rest.
    lost = along.of_streams(rows.final[:, None] / sigma)[:, 0].double() - written
    stream_gap = lost.abs().amax(1) / size.max().clamp_min(1e-300)
    if cut:
        # A write that adds nothing to some logit leaves only rounding, which must not be compared with itself.
        least = max(NOTICED * float(sizes.max()), 1e-30)
        whole = along.of_streams(torch.stack([vector for vector, _, _ in cut], 1).to(sigma) / sigma).double()
        for (_, added, norm), own in zip(cut, whole.unbind(1), strict=True):
            error.add("split", (added - own).abs() / norm.clamp_min(least))
    error.add("stream", stream_gap)
    error.add("absolute", (total - logits).abs())
    error.add("size", size)
    return stream_gap
