"""Components in the normed residual stream: every write carried along the frozen path to the unembedding's input.

With the path frozen, what component i writes reaches the unembedding as y_i = J_i z_i, and its logit of token v is
W_v · y_i. J_i itself is never formed: v ↦ J_iᵀ v is linear in v, and its derivative in v, applied to z_i, is J_i z_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..components import Component, Kind
from ..errors import InputError
from ..model.attribute import rows_of
from ..model.frozen import TOLERANCE
from ..model.passes import Pass, Replay
from ..model.path import Path
from ..model.probe import transformed
from ..model.units import UnitLike, part_vectors, unit_name

# The most numbers of carried vectors that are held at a time.
NUMBERS = 16_000_000
# Some components, and their vectors.
Block = tuple[tuple[Component, ...], Float[Tensor, "component n d+1"]]
# The number of a write in a pass.
Place = int


def carried(path: Path, seen: Pass, unit: UnitLike, replay: Replay | None = None) -> Iterator[Block]:
    """Yield components at all reads of a pass, some at a time, in stream order.

    A vector's logits are its products with (W_v, b_v): its last number is the weight of the unembedding's bias, which
    only `constant` has. Together they sum to the unembedding's input (and 1), times the logits' factor.

    `replay` is that of the pass, if it was made. Raises InputError for units that are no sublayers, heads or neurons,
    and at the end where the vectors do not sum to the logits of the pass.
    """
    if unit not in ("sublayer", "head", "neuron"):
        raise InputError(
            f"unit={unit_name(unit)!r} has no vectors in the stream here: use 'sublayer', 'head' or 'neuron'."
        )
    replay = path.replay(seen) if replay is None else replay
    total = replay.normed.new_zeros(*replay.normed.shape[:-1], path.read_width + 1)
    with torch.inference_mode(False), torch.enable_grad():
        v = torch.zeros_like(replay.normed, requires_grad=True)
        groups = [replay.writes, replay.constants, replay.edits, replay.rounding]
        leaves = [leaf for group in groups for leaf in group]
        pulled = torch.autograd.grad(replay.normed, leaves, v, create_graph=True, allow_unused=True)

        def carry(place: int, z: Float[Tensor, "m ..."]) -> Float[Tensor, "m n d+1"]:
            back = pulled[place]
            if back is None:  # it does not reach the logits
                return z.new_zeros(len(z), *v.shape[:-1], v.shape[-1] + 1)
            (y,) = torch.autograd.grad(back, v, z, retain_graph=True, is_grads_batched=True)
            return torch.cat([y, torch.zeros_like(y[..., :1])], -1) * path.factor

        known = set(rows_of(path, unit))
        changed = torch.zeros(1, *v.shape[:-1], v.shape[-1] + 1, dtype=v.dtype, device=v.device)

        def parts() -> Iterator[tuple[Place, tuple[Component, ...], Tensor]]:
            nonlocal changed
            calls = zip(seen.calls, seen.components(), seen.writes, seen.inputs, strict=True)
            for place, ((writer, _), whole, write, received) in enumerate(calls):
                step = max(1, NUMBERS // max(1, write.numel()))
                rest = write.to(leaves[place])
                for components, z in part_vectors(writer, whole, write, received, unit, step):
                    rest = rest - z.sum(0).to(rest)
                    if components[0] in known:
                        yield place, components, z.to(leaves[place])
                # What hooks changed in a write is no part's.
                if writer in seen.hooked and bool(rest.abs().max() > TOLERANCE[path.dtype] * write.abs().max()):
                    changed = changed + carry(place, rest[None])

        for place, components, z in _joined(parts(), pulled):
            y = carry(place, z)
            total = total + y.detach().sum(0)
            yield components, y
        start = len(replay.writes)
        others: tuple[Kind, ...] = ("constant", "added", "rounding")
        for name, group in zip(others, groups[1:], strict=True):
            places = range(start, start + len(group))
            start += len(group)
            y = torch.zeros(1, *v.shape[:-1], v.shape[-1] + 1, dtype=v.dtype, device=v.device)
            for place in places:
                y = y + carry(place, leaves[place].detach()[None])
            if name == "constant":
                y[..., -1] = path.factor
            if name == "added":
                y = y + changed
            total = total + y.detach().sum(0)
            if Component(name) in known or (name == "added" and bool(y.any())):
                yield (Component(name),), y
        _check_sum(path, seen, total)


def _check_sum(path: Path, seen: Pass, total: Float[Tensor, "n d+1"]) -> None:
    """Raise InputError unless the sum of all vectors gives the largest logits of the pass."""
    assert seen.logits is not None
    known = seen.logits.topk(min(8, path.outputs), dim=1)
    rows, bias = path.unembed_rows(known.indices)
    logits = torch.einsum("nd,nkd->nk", total[:, :-1], rows.to(total))
    logits = logits if bias is None else logits + total[:, -1:] * bias.to(logits)
    gap = float((transformed(logits, 1.0, path.soft_cap) - known.values.to(logits)).abs().max())
    # Σ|u| is about ten times as large as the logits.
    if not gap <= 10 * TOLERANCE[path.dtype] * float(known.values.abs().max()):
        raise InputError(
            f"{path.name} cannot be decomposed: its components miss its logits by {gap:.1e}. Something on the way to "
            "them is not linear even with norms and gates held, or a hook changes its final norm or unembedding."
        )


def _joined(
    parts: Iterator[tuple[Place, tuple[Component, ...], Tensor]], pulled: Sequence[Tensor | None]
) -> Iterator[tuple[Place, tuple[Component, ...], Tensor]]:
    """Join successive parts whose gradients are one tensor, as of writes that are added to the same stream."""
    first, names, vectors = 0, list[Component](), list[Tensor]()
    for place, components, z in parts:
        is_another = pulled[place] is not pulled[first]
        if vectors and (is_another or sum(x.numel() for x in vectors) + z.numel() > NUMBERS):
            yield first, tuple(names), torch.cat(vectors)
            names, vectors = [], []
        if not vectors:
            first = place
        names += components
        vectors.append(z)
    if vectors:
        yield first, tuple(names), torch.cat(vectors)
