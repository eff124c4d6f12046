"""The user's own hooks: what they change in a pass, and where that is written to the residual stream.

A hook that changes what a sublayer writes changes that component. What hooks add to the stream elsewhere is a component
of its own, an intervention: after the layer where it happens, or at the embedding. It is found by measuring: the stream
must differ from what was written by just what some hooks were seen to change, or the model stays refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import combinations
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .architecture import Architecture, HookPoint, Sublayer
from .capture import Change, RawCapture, at_positions, on
from .foreign_code import users_hooks
from .stream_gaps import StreamGap, stream_gaps

# So many changes between two junctions are tried together: every subset of them.
MOST_CHANGES = 8


class _Started(Exception):
    """The first block is reached; the rest of the pass is not needed."""


def hooked_places(architecture: Architecture) -> list[HookPoint]:
    """The inputs and outputs of modules on which the user has hooks."""
    found: list[HookPoint] = []
    waiting, known = list(architecture.roots), set[nn.Module | None]()
    while waiting:
        module = waiting.pop()
        if module is None or module in known:
            continue
        known.add(module)
        own = module.__dict__
        waiting.extend(own["_modules"].values())
        if own["_forward_pre_hooks"] and users_hooks(module, "in"):
            found.append(HookPoint(module, "in"))
        if own["_forward_hooks"] and users_hooks(module, "out"):
            found.append(HookPoint(module, "out"))
    return found


def with_interventions(
    architecture: Architecture,
    raw: RawCapture,
    hooked: Sequence[HookPoint],
    ids: Tensor,
    mask: Tensor,
    rows: Tensor,
    at: Tensor,
) -> tuple[Architecture, RawCapture]:
    """The pass with the sublayers' outputs as hooks changed them, and with interventions among the sublayers.

    A gap in the stream that the hooks do not explain stays as it is.
    """
    if not raw.changes:
        return architecture, raw
    seen, order = {point: list(values) for point, values in raw.seen.items()}, list(raw.order)
    first = order.index(architecture.stream_in)
    written: list[tuple[int, int | None, Tensor | None]] = []  # place in the order, layer, what was added
    if any(change.after <= first for change in raw.changes):
        points = [architecture.stream_in, *filter(None, [architecture.pos_embed])]
        plain = _start_without(architecture, points, hooked, ids, mask, rows, at)
        changed = seen[points[0]][0] - plain[points[0]]
        for point, start in plain.items():
            seen[point][0] = start
        if bool((changed != 0).any()):
            written.append((first + 1, None, changed))
    layers = {sublayer.hook_point: sublayer.layer for sublayer in architecture.sublayers}
    owners = [_owner(architecture, change.point) for change in raw.changes]
    changes = [(change, owner) for change, owner in zip(raw.changes, owners, strict=True) if change.by is not None]
    hooked_outputs = _between_values_and_output(architecture, raw)
    for gap in stream_gaps(architecture, raw):
        ran = [layers[point] for point in order[gap.start : gap.stop] if point in layers]
        inside = [(change, owner) for change, owner in changes if gap.start < change.after <= gap.stop]
        added: Tensor | None = None
        for change, owner in _explanation(gap, inside) if ran else ():
            assert change.by is not None
            if owner is None:
                added = change.by if added is None else added + change.by
                continue
            point = owner.hook_point
            repeat = order[: change.after].count(point) - 1
            seen[point][repeat] = seen[point][repeat] + change.by
            gap.missing.sub_(change.by * owner.scale)
            hooked_outputs.add((point, repeat))
        if added is not None:  # where nothing was added, only rounding is missing
            added = torch.where((added != 0).any(-1, keepdim=True), gap.missing, 0.0)
        if ran:
            written.append((gap.stop, ran[-1], added))
    where = {layer for _, layer, added in written if added is not None}
    everywhere = torch.zeros_like(seen[architecture.stream_in][0])
    written = [(place, layer, added) for place, layer, added in written if layer in where]
    for _, layer, added in written:  # every repeat of a layer has the row if one has it
        point = _intervention(architecture, layer).hook_point
        seen.setdefault(point, []).append(everywhere if added is None else added)
    for place, layer, _ in reversed(written):
        order.insert(place, _intervention(architecture, layer).hook_point)
    raw = replace(raw, seen=seen, order=order, changes=(), hooked=frozenset(hooked_outputs))
    return replace(architecture, sublayers=tuple(_sublayers_with(architecture, where))), raw


def _explanation(
    gap: StreamGap, inside: Sequence[tuple[Change, Sublayer | None]]
) -> Sequence[tuple[Change, Sublayer | None]]:
    """The changes that sum to what is missing at a junction; none where no subset does so up to rounding.

    Of subsets that explain it equally well it is the largest: what one hook takes away another may restore.
    """
    moved = {
        i: change.by * (1.0 if owner is None else owner.scale)
        for i, (change, owner) in enumerate(inside)
        if change.by is not None and change.by.shape == gap.missing.shape
    }
    # What is nearest to the junction, or is known to belong to a sublayer, comes first.
    likely = sorted(moved, key=lambda i: (inside[i][1] is None, -inside[i][0].after))[:MOST_CHANGES]
    nothing = torch.zeros_like(gap.missing)
    tried: list[tuple[float, tuple[int, ...], Tensor]] = []
    for count in range(len(likely) + 1):
        for subset in combinations(likely, count):
            left = gap.missing - sum((moved[i] for i in subset), nothing)
            tried.append((float(left.norm()), subset, left))
    least = 2 * min(left for left, _, _ in tried) + 1e-3 * float(gap.rounding.norm())
    _, subset, left = max((entry for entry in tried if entry[0] <= least), key=lambda entry: (len(entry[1]), -entry[0]))
    rounding = gap.rounding * 2 + 1e-6 * sum((moved[i].abs() for i in subset), nothing)
    return [inside[i] for i in subset] if bool((left.abs() <= rounding).all()) else []


def _owner(architecture: Architecture, point: HookPoint) -> Sublayer | None:
    """The sublayer that a hooked module holds or is: what is added to its output is added to that sublayer's."""
    if point.side == "in":
        return None
    inner = set(point.module.modules())
    if inner & {block.module for block in architecture.blocks}:
        return None
    held = [s for s in architecture.sublayers if s.hook_point.module in inner]
    return held[0] if len(held) == 1 and held[0].hook_point.module is not point.module else None


def _between_values_and_output(architecture: Architecture, raw: RawCapture) -> set[tuple[HookPoint, int]]:
    """(hook point, repeat) of the outputs on whose way from heads or neurons a hook changed something."""
    found: set[tuple[HookPoint, int]] = set()
    for sublayer in architecture.sublayers:
        if sublayer.output_map is None or sublayer.output_map.hook_point not in raw.seen:
            continue
        ends, starts = ([i for i, point in enumerate(raw.order) if point == of.hook_point]
                        for of in (sublayer, sublayer.output_map))  # fmt: skip
        for repeat, (start, end) in enumerate(zip(starts, ends, strict=False)):
            if any(start < change.after <= end for change in raw.changes):
                found.add((sublayer.hook_point, repeat))
    return found


def _intervention(architecture: Architecture, layer: int | None) -> Sublayer:
    """The place of an intervention among the sublayers; one for all passes, which know it by its id."""
    if layer not in architecture.interventions:
        point = HookPoint(architecture.norm_module)
        architecture.interventions[layer] = Sublayer("intervention", cast(int, layer), point)
    return architecture.interventions[layer]


def _sublayers_with(architecture: Architecture, layers: set[int | None]) -> Iterator[Sublayer]:
    """The sublayers in stream order, with an intervention after some layers; None is the embedding."""
    if None in layers:
        yield _intervention(architecture, None)
    for sublayer, following in zip(architecture.sublayers, (*architecture.sublayers[1:], None), strict=True):
        yield sublayer
        if sublayer.layer in layers and (following is None or following.layer != sublayer.layer):
            yield _intervention(architecture, sublayer.layer)


def _start_without(
    architecture: Architecture,
    points: Sequence[HookPoint],
    hooked: Sequence[HookPoint],
    ids: Tensor,
    mask: Tensor,
    rows: Tensor,
    at: Tensor,
) -> dict[HookPoint, Float[Tensor, "row d"]]:
    """What the stream starts from where no hook of the user's runs: a pass up to the first block."""
    ids, mask, rows, at = (x.to(architecture.device) for x in (ids, mask, rows, at))
    seen: dict[HookPoint, Tensor] = {}

    def keep(point: HookPoint, x: Tensor) -> None:
        seen[point] = at_positions(x, ids, rows, at).to(architecture.device)
        if point is points[0]:
            raise _Started

    with ExitStack() as stack:
        for place in hooked:
            stack.enter_context(_without_users_hooks(place))
        for point in points:
            stack.enter_context(on(point, lambda args, kwargs, x, point=point: keep(point, x)))  # type: ignore[misc]
        try:
            architecture.logits(ids, mask)
        except _Started:
            return seen
    raise InputError("the first block of this model was never reached without the hooks on it: remove them.")


@contextmanager
def _without_users_hooks(place: HookPoint) -> Iterator[None]:
    """Take the user's hooks off a place for a while: their handles know the very dictionary that is put back."""
    name = "_forward_hooks" if place.side == "out" else "_forward_pre_hooks"
    module: nn.Module = place.module
    hooks, users = getattr(module, name), users_hooks(module, place.side)
    setattr(module, name, OrderedDict((key, hook) for key, hook in hooks.items() if key not in users))
    try:
        yield
    finally:
        setattr(module, name, hooks)
