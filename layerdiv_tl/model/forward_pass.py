"""One forward pass of a model as `Activations`, run now or cached through TransformerLens before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..components import Unit
from ..errors import InputError
from .architecture import HALF, Architecture
from .batches import upcast
from .capture import Activations, RawCapture, SublayerOutput, capture
from .looped import find_loop_norms, number_repeats, order_of_sublayers
from .reconstruction import UNNAMED, find_mismatch

if TYPE_CHECKING:
    from .load import Model


def run(
    architecture: Architecture,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    unit: Unit = "sublayer",
    at: Int[Tensor, " row"] | None = None,
) -> Activations:
    """Run the model once and read one position of each row, or, with `at` None, every real token, row after row.

    The unembedding is shown that one position, or each row's last token. `unit`: also read heads or neurons. Raises
    InputError where a hook point is not reached, and where a half-precision stream moves by more than its additions can
    round: what they do lose becomes the rounding component and not a gap, so it must be bounded here.
    """
    half = architecture.dtype in HALF
    points = architecture.hook_points(unit) + (list(architecture.blocks) if half else [])
    rows, positions = mask.nonzero(as_tuple=True) if at is None else (torch.arange(len(ids)), at)
    raw = capture(architecture, points, ids, mask, rows, positions, mask.sum(1) - 1 if at is None else at)
    if half and (place := find_mismatch(architecture, raw)) is not None:
        raise InputError(f"this model cannot be decomposed: {UNNAMED} {place}.")
    return assemble(architecture, raw, unit)


def assemble(architecture: Architecture, raw: RawCapture, unit: Unit) -> Activations:
    """The activations of a pass from what was captured. Raises InputError for a place that was never reached."""
    pos_embed = None if architecture.pos_embed is None else raw.at(architecture.pos_embed, "the position embedding")[0]
    embed = raw.at(architecture.stream_in, "the input of the first block")[0]
    if pos_embed is not None:
        embed = embed - pos_embed
    for sublayer in architecture.sublayers:
        raw.at(sublayer.hook_point, str(sublayer))
    finals = raw.at(architecture.stream_out, "the input of the final norm")
    outputs = tuple(_sublayer_outputs(architecture, raw, unit))
    repeats = number_repeats([(output.sublayer.kind, output.sublayer.layer) for output in outputs])
    loop_norms = tuple(find_loop_norms(architecture, raw, outputs)) if len(finals) > 1 else ()
    answers = (raw.unembedded, raw.logits, raw.dtype, raw.answer_dtype)
    return Activations(embed, pos_embed, outputs, repeats, finals[-1], *answers, loop_norms)


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


def tokens_and_mask(tokens: Any, attention_mask: Any) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Ids and mask as `[row, token]` tensors. Raises InputError where their shapes do not fit."""
    if tokens is None:
        raise InputError("cache= needs tokens=, the token ids [row, token] that the cache was taken with.")
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError) as error:
        raise InputError("tokens must be token ids [row, token], with every row of one length (padded).") from error
    ids = torch.atleast_2d(ids)
    if ids.dim() != 2 or ids.is_floating_point() or ids.numel() == 0:
        raise InputError(f"tokens must be token ids [row, token], but have the shape {tuple(ids.shape)}.")
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = torch.atleast_2d(torch.as_tensor(attention_mask, device=ids.device))
    if mask.shape != ids.shape:
        raise InputError(f"attention_mask has the shape {tuple(mask.shape)}, but tokens have {tuple(ids.shape)}.")
    mask = (mask != 0).long()
    # Real tokens must be one run: a hole in the middle is not a text.
    one_run = mask.diff(dim=1).abs().sum(1) <= 1
    if not bool((mask.sum(1) > 0).all()) or not bool(one_run.all()):
        raise InputError("attention_mask must be 1 on one run of tokens in every row, with padding on one side only.")
    return ids, mask


def read_cache(model: Model, cache: Any, ids: Tensor, column: Int[Tensor, " row"], unit: Unit) -> Activations:
    """The activations a cache holds, at one column of each row; the read-out runs the model's own modules.

    Raises InputError for names the cache lacks, for the wrong shapes, and for repeated layers.
    """
    architecture = model.architecture
    points = architecture.hook_points(unit)
    if any(repeat is not None for _, repeat in model.sublayer_order):
        raise InputError("this model runs some layers more than once, and a cache keeps their last run: give prompts.")
    if missing := [point.name for point in points if point.name not in cache]:
        raise InputError(
            f"the cache lacks {missing[0]} ({len(missing)} of {len(points)} names): take it with "
            f"names_filter=list(model.hook_names({unit!r})), where model = layerdiv_tl.load_model(...)."
        )
    row = torch.arange(len(ids))
    seen = {}
    for point in points:
        x = cache[point.name]
        x = x[None] if x.shape[0] == ids.shape[1] and len(ids) == 1 and x.shape[:2] != ids.shape else x
        if point is architecture.pos_embed and len(x) == 1:  # learned positions may be one row for all
            x = x.expand(len(ids), *x.shape[1:])
        if x.shape[:2] != ids.shape:
            shapes = f"{tuple(x.shape)}, but tokens have {tuple(ids.shape)}"
            raise InputError(f"the cache's {point.name} has the shape {shapes}: give the tokens it was taken with.")
        seen[id(point)] = [upcast(x[row.to(x.device), column.to(x.device)].flatten(1)).to(architecture.device)]
    with torch.no_grad():
        final = seen[id(architecture.stream_out)][0].to(architecture.dtype)[:, None]
        unembedded = architecture.unembed(architecture.norm_module(final))[:, 0]
        logits = architecture.transform(unembedded)
    order = [id(sublayer.hook_point) for sublayer in architecture.sublayers]
    dtypes = (cache[architecture.stream_out.name].dtype, unembedded.dtype)
    return assemble(architecture, RawCapture(seen, order, upcast(unembedded), upcast(logits), *dtypes), unit)
