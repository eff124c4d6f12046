"""Gradient × write on the frozen path: the one product behind every contribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..components import Component
from .frozen import HALF, TOLERANCE
from .passes import Pass, Replay
from .patching import noise, parameters_of, silent
from .path import Path
from .units import CustomUnit, UnitLike, check_unit, cut_of, split, total

# The last three rows: biases of the path, what users' hooks added, what half-precision additions lost.
_MAY_BE_ZERO = ("attn_bias", "mixer_bias", "mlp_bias", "shared_expert", "constant", "added")
REST = (Component("constant"), Component("added"), Component("rounding"))


@dataclass(frozen=True, eq=False)
class Attribution:
    """Contributions `values [n, component, K]` of all components to K directions at each read, float64.

    `sums` `[n, K]` are the replayed path's own dot products with the directions, to which the values sum; `slopes` the
    gradients by which they were computed.
    """

    components: tuple[Component, ...]
    values: Float[Tensor, "n component K"]
    sums: Float[Tensor, "n K"]
    slopes: list[list[Tensor]]


def attribute(
    path: Path,
    seen: Pass,
    directions: Float[Tensor, "n K d"],
    unit: UnitLike = "sublayer",
    slopes: list[list[Tensor]] | None = None,
) -> Attribution:
    """Contributions to the dot product of the unembedding's input with some directions, from a recorded pass.

    With everything nonlinear frozen the path is affine, normed = Σ_i J_i z_i + constant, so that the contribution of
    write z_i to w · normed is its gradient Jᵢᵀ w times itself. With the `slopes` of another pass over the same rows it
    is what the write would be worth on that pass's path, and the sum is not `sums`.
    """
    replay = path.replay(seen)
    slopes = gradients(replay, directions) if slopes is None else slopes
    at_writes, at_constants, at_edits, at_rounding = slopes
    names: list[Component] = []
    columns: list[Tensor] = []
    device = replay.normed.device
    calls = zip(seen.calls, seen.components(), seen.writes, seen.inputs, at_writes, strict=True)
    changed = directions.new_zeros(directions.shape[1], len(seen.ids))
    for (writer, _), whole, write, received, g in calls:
        if writer in seen.hooked:  # what hooks changed in a write is no part's
            changed = changed + total(g, write).to(changed)
        for components, u in split(unit, writer, whole, write, received, g):
            names.extend(components)
            columns.append(u.to(device))
            if writer in seen.hooked:
                changed = changed - u.sum(-1).to(changed)
    if isinstance(unit, CustomUnit):
        names, joined = unit.merged(names, torch.cat(columns, -1))
        columns = [joined]
    n = len(seen.ids)
    for leaves, found, axes in (
        (replay.constants, at_constants, replay.constant_axes),
        (replay.edits, at_edits, [0] * len(at_edits)),
        (replay.rounding, at_rounding, [0] * len(at_rounding)),
    ):
        row = directions.new_zeros(directions.shape[1], n)
        for g, leaf, axis in zip(found, leaves, axes, strict=True):
            # Other axes are tokens, which may be merged with the reads, streams and numbers of a vector.
            row = row + (g * leaf.detach()).movedim(1 + axis, 1).reshape(len(g), n, -1).sum(-1).to(row)
        columns.append(row[..., None])
    if unit != "sublayer" and seen.hooked:
        size = torch.cat(columns, -1).abs().sum(-1).max()
        if bool(changed.abs().max() > TOLERANCE[path.dtype] * size):  # more than rounding
            columns[-2] = columns[-2] + changed[..., None]
    values = torch.cat(columns, -1).permute(1, 2, 0)
    sums = torch.einsum("nd,nkd->nk", replay.normed.detach(), directions.to(replay.normed))
    return Attribution((*names, *REST), values, sums, slopes)


def gradients(replay: Replay, directions: Float[Tensor, "n K d"]) -> list[list[Tensor]]:
    """Gradients `[K, *leaf]` of the dot products at writes, constants, edits and rounding."""
    # Where the path adds up all writes, each has the gradient of the sum.
    of_writes = [replay.final] if replay.adds else replay.writes
    groups = [of_writes, replay.constants, replay.edits, replay.rounding]
    leaves = [leaf for group in groups for leaf in group]
    found = [
        torch.autograd.grad(
            replay.normed, leaves, w.to(replay.normed), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for w in directions.unbind(1)
    ]
    stacked = iter([torch.stack(g) for g in zip(*found, strict=True)])
    by_group = [[next(stacked) for _ in group] for group in groups]
    if replay.adds:
        by_group[0] *= len(replay.writes)
    return by_group


def rows_of(path: Path, unit: UnitLike) -> tuple[Component, ...]:
    """The components of a pass at a unit, in stream order. Raises InputError for a unit without rows here."""
    check_unit(unit, path)
    # A bias that was zero may be another number now.
    weights = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters_of(path.module))
    known = path.rows.get(unit) if isinstance(unit, str) else None
    if known is not None and known[0] == weights:
        return known[1]
    with path.session(), silent(path.module):
        ids = path.probe_ids
        seen = path.record(ids, None, *path.probe_reads, partial(cut_of, unit))
        directions = noise(torch.zeros(len(ids), 1, path.read_width, dtype=path.wide))
        found = attribute(path, seen, directions.to(path.device), unit)
        bias = path.unembed_rows(None)[1]
    values = found.values.cpu()
    if bias is not None:
        values[:, found.components.index(Component("constant"))] += float(bias.abs().max())
    rows = tuple(found.components[i] for i in present(path, found.components, values))
    if isinstance(unit, str):
        path.rows[unit] = weights, rows
    return rows


def present(path: Path, components: Sequence[Component], values: Tensor | np.ndarray) -> list[int]:
    """The components that a model has: biases, constants and what hooks added count where they are not all zero.

    Half-precision models have a row of rounding; in others it is part of the identity gap.
    """
    kept = []
    for i, component in enumerate(components):
        if component.kind == "rounding":
            is_there = path.dtype in HALF
        else:
            is_there = component.kind not in _MAY_BE_ZERO or bool((values[:, i] != 0).any())
        if is_there:
            kept.append(i)
    return kept
