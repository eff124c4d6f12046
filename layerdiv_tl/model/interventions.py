"""The user's own hooks: what they change in a pass, and where that is written to the residual stream.

One rule: a hook on a sublayer's output changes that component; a hook on the stream (the input or output of a block,
the final norm's input, the embedding) adds a component of its own, an intervention, after the layer where it stands. It
is checked by measuring: the stream must differ from what was written by just what these hooks were seen to change.
Anything else that a hook does to the stream is refused, with the names of the hooked modules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .architecture import Architecture, HookPoint, Sublayer
from .capture import RawCapture, at_positions, on
from .foreign_code import users_hooks
from .stream_gaps import stream_gaps

HookPlace = tuple[nn.Module, str]


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
    on_stream = _stream_places(architecture)
    hooked_outputs = _between_values_and_output(architecture, raw)
    for gap in stream_gaps(architecture, raw):
        ran = [layers[point] for point in order[gap.start : gap.stop] if point in layers]
        inside = [change for change in raw.changes if gap.start < change.after <= gap.stop]
        added, of_sublayers, left, size = None, list[tuple[Sublayer, int, Tensor]](), gap.missing, 2 * gap.rounding
        for change in inside if ran else ():
            owner, side = _owner(architecture, change.point), (change.point.module, change.point.side)
            if change.by is None or change.by.shape != left.shape or not (owner or side in on_stream):
                continue
            by = change.by if owner is None else change.by * owner.scale
            left, size = left - by, size + 1e-6 * by.abs()
            if owner is None:
                added = by if added is None else added + by
            else:
                of_sublayers.append((owner, change.after, change.by))
        if bool((left.abs() > size).any()):  # something else moved the stream: the gap stays as it is
            added, of_sublayers = None, []
        for owner, after, by in of_sublayers:
            point, repeat = owner.hook_point, order[:after].count(owner.hook_point) - 1
            seen[point][repeat] = seen[point][repeat] + by
            gap.missing.sub_(by * owner.scale)
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


def _stream_places(architecture: Architecture) -> set[HookPlace]:
    """Where a hook changes the stream itself: at blocks, at what these hold that has no weights, as the hook points of
    a bridge are, and at the final norm's input. A hook point of a sublayer's output is that component's.
    """
    blocks = {block.module for block in architecture.blocks}
    # A bridge's blocks are known by the hook points at their inputs.
    modules = [module for root in architecture.roots if root is not None for module in root.modules()]
    blocks |= {m for m in modules if any(child in blocks and _is_idle(child) for child in m.children())}
    outputs = {sublayer.hook_point.module for sublayer in architecture.sublayers}
    idle = {child for block in blocks for child in block.children() if _is_idle(child)} - outputs
    return {(module, side) for module in blocks | idle for side in ("in", "out")} | {(architecture.norm_module, "in")}


def _is_idle(module: nn.Module) -> bool:
    return next(module.parameters(), None) is None


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
