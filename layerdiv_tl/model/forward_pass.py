"""One forward pass of a model as `Activations`: run it, check its sum, name what was read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from ..components import Unit
from ..errors import InputError
from .architecture import HALF, Architecture
from .capture import Activations, RawCapture, SublayerOutput, capture
from .looped import find_loop_norms, number_repeats, order_of_sublayers
from .reconstruction import UNNAMED, find_mismatch


def run(
    architecture: Architecture,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    at: Int[Tensor, " row"],
    unit: Unit = "sublayer",
) -> Activations:
    """Run the model once. The unembedding is shown the wanted positions only, whatever the family.

    `unit`: also read the values of the heads or neurons. Raises InputError where a hook point is not
    reached, and where a half-precision stream moves by more than its additions can round: what they do lose becomes the
    rounding component and not a gap, so it must be bounded here.
    """
    return _run(architecture, ids, mask, torch.arange(len(ids)), at, at, unit)


def run_all_positions(
    architecture: Architecture,
    ids: Int[Tensor, "prompt token"],
    mask: Int[Tensor, "prompt token"],
    unit: Unit = "sublayer",
) -> Activations:
    """Run the model once and read every real token, one prompt's after another's.

    The unembedding is shown each prompt's last token only, so logits are not formed. Raises as `run`.
    """
    prompt, at = mask.nonzero(as_tuple=True)
    return _run(architecture, ids, mask, prompt, at, mask.sum(1) - 1, unit)


def _run(
    architecture: Architecture, ids: Tensor, mask: Tensor, prompt: Tensor, at: Tensor, answer_at: Tensor, unit: Unit
) -> Activations:
    half = architecture.dtype in HALF
    points = architecture.hook_points(unit) + (list(architecture.blocks) if half else [])
    raw = capture(architecture, points, ids, mask, prompt, at, answer_at)
    if half and (place := find_mismatch(architecture, raw)) is not None:
        raise InputError(f"this model cannot be decomposed: {UNNAMED} {place}.")
    return assemble(architecture, raw, unit)


def assemble(architecture: Architecture, raw: RawCapture, unit: Unit) -> Activations:
    """The activations of a pass from what was captured. Raises InputError for a place that was never reached."""
    pos_embed = None if architecture.pos_embed is None else raw.at(architecture.pos_embed, "position embedding")[0]
    embed = raw.at(architecture.stream_in, "input of the first block")[0]
    if pos_embed is not None:
        embed = embed - pos_embed
    for sublayer in architecture.sublayers:
        raw.at(sublayer.hook_point, f"{'attention' if sublayer.kind == 'attn' else 'MLP'} of layer {sublayer.layer}")
    finals = raw.at(architecture.stream_out, "input of the final norm")
    outputs = tuple(_sublayer_outputs(architecture, raw, unit))
    return Activations(
        embed,
        pos_embed,
        outputs,
        number_repeats([(output.sublayer.kind, output.sublayer.layer) for output in outputs]),
        finals[-1],
        raw.unembedded,
        raw.logits,
        raw.dtype,
        raw.answer_dtype,
        tuple(find_loop_norms(architecture, raw, outputs)) if len(finals) > 1 else (),
    )


def _sublayer_outputs(architecture: Architecture, raw: RawCapture, unit: Unit) -> Iterator[SublayerOutput]:
    """The output of every run of every sublayer in stream order."""
    count: dict[int, int] = {}
    for sublayer in order_of_sublayers(architecture, raw):
        repeat = count[id(sublayer)] = count.get(id(sublayer), -1) + 1
        output = raw.seen[id(sublayer.hook_point)][repeat]
        output = output if sublayer.scale == 1.0 else output * sublayer.scale
        output_map = sublayer.output_map if sublayer.is_cut(unit) else None
        if output_map is None:
            yield SublayerOutput(sublayer, output)
        else:
            point = output_map.post_hook_point
            post = None if point is None else raw.seen[id(point)][repeat]
            yield SublayerOutput(sublayer, output, raw.seen[id(output_map.hook_point)][repeat], post)
