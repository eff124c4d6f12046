"""The user's own hooks in a loaded model: their effects in a pass.

The rule: a hook on a sublayer's output changes that component; a hook on the stream (the input or output of a block,
the final norm's input, the embedding) adds a component of its own, an intervention, after its layer. This is checked by
measurement: the stream must differ from the sum of all outputs by exactly the changes of these hooks. Any other change
of the stream by a hook raises InputError with the names of the hooked modules.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from .architecture import Architecture, HookPoint, Sublayer
from .capture import Positions, RawCapture, SublayerOutput, first_values
from .reconstruction import stream_gaps
from .weights import modules_of

# Libraries whose hooks and functions belong to loading, quantizing or distributing a model.
LIBRARIES = frozenset(
    "torch transformers transformer_lens accelerate peft bitsandbytes torchao kernels liger_kernel optimum gptqmodel "
    "awq hqq eetq compressed_tensors auto_round fla mamba_ssm causal_conv1d flash_attn transformers_modules".split()
)
OWN = frozenset({*LIBRARIES, __name__.split(".")[0]})


def hooked_places(architecture: Architecture) -> list[HookPoint]:
    """List the inputs and outputs of modules on which the user has hooks."""
    found: list[HookPoint] = []
    for module in modules_of(*architecture.roots):
        if module._forward_pre_hooks and users_hooks(module, "in"):
            found.append(HookPoint(module, "in"))
        if module._forward_hooks and users_hooks(module, "out"):
            found.append(HookPoint(module, "out"))
    return found


def with_interventions(
    architecture: Architecture, raw: RawCapture, hooked: Sequence[HookPoint], where: Positions
) -> RawCapture:
    """Return the pass with the sublayers' outputs as changed by hooks, and with the hooks' own additions to the stream.

    A gap in the stream that the hooks do not explain stays unchanged.
    """
    if not raw.changes or architecture.stream_ops:
        return raw
    seen = {point: list(values) for point, values in raw.seen.items()}
    hooked_outputs = set(_changed_behind_values(architecture, raw))
    added: dict[int, tuple[int | None, Tensor]] = {}  # by junction: the layer before it, and the vector
    if any(change.after <= raw.order.index(architecture.stream_in) for change in raw.changes):
        points = [architecture.stream_in, *filter(None, [architecture.pos_embed])]
        with ExitStack() as stack:
            for place in hooked:
                stack.enter_context(_without_users_hooks(place))
            plain = first_values(architecture, points, where.ids, where.mask)
        for point, x in plain.items():
            seen[point][0] = where.of(x)
        added[raw.order.index(architecture.blocks[0])] = None, raw.seen[points[0]][0] - seen[points[0]][0]
    layers = {sublayer.hook_point: sublayer.layer for sublayer in architecture.sublayers}
    targets = _targets(architecture, hooked)
    for gap in stream_gaps(architecture, raw):
        ran = [layers[point] for point in raw.order[gap.start : gap.stop] if point in layers]
        if not ran:
            continue
        inside = [c for c in raw.changes if gap.start < c.after <= gap.stop and c.point in targets]
        # The sublayer of each change, and the change's addition to the stream.
        shape = gap.missing.shape
        known = [(targets[c.point], c.after, c.by) for c in inside if c.by is not None and c.by.shape == shape]
        moves = [by if owner is None else by * owner.scale for owner, _, by in known]
        left = gap.missing - sum(moves)
        if bool((left.abs() > 2 * gap.rounding + 1e-6 * sum(by.abs() for by in moves)).any()):
            known = []  # something else moved the stream: the gap stays
        moved = torch.zeros_like(gap.missing)
        for (owner, after, by), move in zip(known, moves, strict=False):
            if owner is None:
                moved = moved + move
            else:
                point, repeat = owner.hook_point, raw.order[:after].count(owner.hook_point) - 1
                seen[point][repeat] = seen[point][repeat] + by
                hooked_outputs.add((point, repeat))
                gap.missing.sub_(move)
        # If hooks on the stream added nothing, only rounding is missing.
        added[gap.stop] = ran[-1], torch.where(moved.any(-1, keepdim=True), gap.missing, 0.0)
    changed = {layer for layer, x in added.values() if bool(x.any())}
    # All repeats of a layer have the row if one has it.
    place = HookPoint(architecture.norm_module)
    interventions = {
        junction: SublayerOutput(Sublayer("intervention", cast(int, layer), place), x)
        for junction, (layer, x) in added.items()
        if layer in changed
    }
    return replace(raw, seen=seen, changes=(), hooked=frozenset(hooked_outputs), interventions=interventions)


def _targets(architecture: Architecture, hooked: Sequence[HookPoint]) -> dict[HookPoint, Sublayer | None]:
    """Find what a change at each hooked place belongs to: a sublayer that holds the module, or the stream (None).

    The stream is changed at blocks, at their modules without weights (e.g. a bridge's hook points), and at the final
    norm's input. A hook point of a sublayer's output belongs to that component. Other places have no target.
    """
    blocks = {block.module for block in architecture.blocks}
    outputs = {sublayer.hook_point.module: sublayer for sublayer in architecture.sublayers}
    # A bridge's blocks are recognized by the hook points at their inputs.
    modules = modules_of(*architecture.roots)
    whole = blocks | {m for m in modules if any(child in blocks and _is_idle(child) for child in m.children())}
    on_stream = whole | {child for block in whole for child in block.children() if _is_idle(child)} - set(outputs)
    targets: dict[HookPoint, Sublayer | None] = {}
    for point in hooked:
        inner = set(point.module.modules())
        held = [] if inner & blocks else [outputs[module] for module in inner & set(outputs)]
        if point.side == "out" and len(held) == 1 and point.module not in outputs:
            targets[point] = held[0]
        elif point.module in on_stream or (point.module is architecture.norm_module and point.side == "in"):
            targets[point] = None
    return targets


def _is_idle(module: nn.Module) -> bool:
    return next(module.parameters(), None) is None


def _changed_behind_values(architecture: Architecture, raw: RawCapture) -> Iterator[tuple[HookPoint, int]]:
    """The (hook point, repeat) of outputs that a hook changed between their heads or neurons and the stream."""
    for sublayer in architecture.sublayers:
        if sublayer.output_map is not None and sublayer.output_map.hook_point in raw.seen:
            points = sublayer.output_map.hook_point, sublayer.hook_point
            places = ([place for place, point in enumerate(raw.order) if point is end] for end in points)
            for repeat, (start, end) in enumerate(zip(*places, strict=False)):
                if any(start < change.after <= end for change in raw.changes):
                    yield sublayer.hook_point, repeat


@contextmanager
def _without_users_hooks(place: HookPoint) -> Iterator[None]:
    """Remove the user's hooks from a place for a while; the same dictionary, which handles refer to, is restored."""
    name = "_forward_hooks" if place.side == "out" else "_forward_pre_hooks"
    module: nn.Module = place.module
    hooks, users = getattr(module, name), users_hooks(module, place.side)
    setattr(module, name, OrderedDict((key, hook) for key, hook in hooks.items() if key not in users))
    try:
        yield
    finally:
        setattr(module, name, hooks)


def users_hooks(module: nn.Module, side: Literal["in", "out"]) -> list[int]:
    """The keys of hooks on a module's input ("in") or output ("out") that no library put there."""
    hooks = module._forward_hooks if side == "out" else module._forward_pre_hooks
    if side == "out" and getattr(module, "fwd_hooks", None):  # TransformerLens wraps the user's in functions of its own
        return list(hooks)
    return [key for key, hook in hooks.items() if not is_from(hook, OWN)]


def is_from(code: Any, libraries: frozenset[str], file: str | None = None) -> bool:
    """True if a function and those that it wraps come from some libraries, or from the Python module `file`."""
    modules, code = set(), _unwrap(code)
    while isinstance(code, FunctionType):  # `wraps` copies names, not these
        modules.add(str(code.__globals__.get("__name__") or code.__module__))
        code = _unwrap(getattr(code, "__wrapped__", None))
    if code is not None and not isinstance(code, BuiltinFunctionType):
        modules.add(str(getattr(code, "__module__", None) or type(code).__module__))
    return all(module == file or module.split(".")[0] in libraries for module in modules)


def _unwrap(code: Any) -> Any:
    while isinstance(code, functools.partial | MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    return code
