"""One forward pass of a model as `Activations`: run now, or cached by TransformerLens before.

A cache comes with the tokens it was taken with, which are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .architecture import HALF, Architecture, HookPoint, Sublayer, UnitLike, Vectors
from .batches import inference_mode_for, pad, upcast
from .capture import Activations, Positions, RawCapture, SublayerOutput, capture, first_values
from .interventions import hooked_places, with_interventions
from .norm import AffineStep
from .reconstruction import UNNAMED, find_mismatch
from .stream_path import number_repeats, trace


def run(
    architecture: Architecture,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    unit: UnitLike = "sublayer",
    at: Int[Tensor, " n"] | None = None,
    of: Int[Tensor, " n"] | None = None,
    interventions: bool = False,
    **extra: Tensor,
) -> Activations:
    """Run the model once and read one position of each row, or, with `at` None, every real token, row after row.

    `of` gives the rows of the positions if there is not one per row. The unembedding gets these positions, or each
    row's last token. `unit`: also read heads or neurons. `interventions`: outputs that the user's hooks add to the
    stream are separate. `extra` goes to the model. Raises InputError if a hook point is not reached, and if a
    half-precision stream moves by more than the rounding of its additions: their rounding error becomes a component,
    not a gap, so it must be bounded here.
    """
    half, hooked = architecture.dtype in HALF, hooked_places(architecture) if interventions else []
    answer_at = mask.sum(1) - 1 if at is None else None
    rows, at = mask.nonzero(as_tuple=True) if at is None else (torch.arange(len(ids)) if of is None else of, at)
    where = Positions(*(x.to(architecture.device) for x in (ids, mask, rows, at)))
    points = architecture.hook_points(unit) + (list(architecture.blocks) if half or hooked else [])
    raw = with_interventions(
        architecture, capture(architecture, points, where, answer_at, hooked, **extra), hooked, where
    )
    if half and (place := find_mismatch(architecture, raw)) is not None:
        raise InputError(f"this model cannot be decomposed: {UNNAMED} {place}.")
    return assemble(architecture, raw, unit)


def assemble(architecture: Architecture, raw: RawCapture, unit: UnitLike) -> Activations:
    """Make the activations of a pass from its capture. Raises InputError for a place that was never reached."""
    pos_embed = None if architecture.pos_embed is None else raw.at(architecture.pos_embed, "the position embedding")[0]
    embed = raw.at(architecture.stream_in, "the input of the first block")[0]
    if embed.shape != raw.at(architecture.stream_out, "the input of the final norm")[-1].shape:
        raise InputError(
            "this model cannot be decomposed: its blocks work on several residual streams, or on one of another width "
            "than its final norm."
        )
    if pos_embed is not None:
        embed = embed - pos_embed
    for sublayer in architecture.sublayers:
        raw.at(sublayer.hook_point, str(sublayer))
    outputs: list[SublayerOutput] = []
    path: list[AffineStep] = []
    for place, item, number in trace(architecture, raw):
        if isinstance(item, Sublayer):
            outputs.append(_sublayer_output(raw, item, number, unit))
        elif isinstance(item, AffineStep):
            path.append(replace(item, after=len(outputs)))
        elif place in raw.interventions:
            outputs.append(raw.interventions[place])
    repeats = number_repeats([(output.sublayer.kind, output.sublayer.layer) for output in outputs])
    return Activations(
        embed=embed,
        pos_embed=pos_embed,
        sublayer_outputs=tuple(outputs),
        repeats=repeats,
        final=raw.seen[architecture.stream_out][-1],
        unembedded=raw.unembedded,
        logits=raw.logits,
        dtype=raw.dtype,
        answer_dtype=raw.answer_dtype,
        path=tuple(path),
    )


def _sublayer_output(raw: RawCapture, sublayer: Sublayer, repeat: int, unit: UnitLike) -> SublayerOutput:
    """The output of one run of a sublayer, as it is added to the stream."""
    output = sublayer.added(raw.seen[sublayer.hook_point][repeat])
    if (cut := sublayer.cut(unit)) is None:
        return SublayerOutput(sublayer, output)

    def seen(point: HookPoint) -> Tensor:
        return raw.at(point, f"what a cut of {sublayer} reads")[repeat]

    point = None if cut.output_map is None else cut.output_map.post_hook_point
    post = None if point is None else seen(point)
    hooked = (sublayer.hook_point, repeat) in raw.hooked
    parts = cut.read(seen, output)
    values, vectors = (None, parts) if isinstance(parts, Vectors) else (parts, None)
    return SublayerOutput(sublayer, output, values, post, hooked, None, cut, vectors)


def locate_mismatch(architecture: Architecture, ids: Sequence[int]) -> str:
    """Explain, with one more run, why the sublayers do not sum to the stream at the last token of a prompt."""
    points, hooked = [*architecture.hook_points(), *architecture.blocks], hooked_places(architecture)
    tensors = *pad([ids]), torch.tensor([0]), torch.tensor([len(ids) - 1])
    where = Positions(*(x.to(architecture.device) for x in tensors))
    with inference_mode_for(architecture):
        raw = capture(architecture, points, where, hooked=hooked)
        place = find_mismatch(architecture, with_interventions(architecture, raw, hooked, where))
    if place is not None:
        paths = {module: path for root in architecture.roots for path, module in root.named_modules()}
        names = ", ".join(dict.fromkeys(paths.get(point.module) or "the model" for point in hooked))
        hint = "; a hook may stand on a block, a sublayer's output, the embedding or the final norm's input, and yours"
        return f"{UNNAMED} {place}" + (f"{hint} stand on {names}" if hooked else "")
    if hooked:
        return "hooks on it add to its residual stream, which only contributions and profile take apart: remove them"
    return "its sublayers do not add up to its residual stream"


def cached_tokens(architecture: Architecture, cache: Any) -> Int[Tensor, "row token"]:
    """The token ids that a cache was taken with, if it holds them (a bridge's does); else −1 for each."""
    if architecture.stream_out.name not in cache:
        raise InputError(
            f"the cache lacks {architecture.stream_out.name}: take it without names_filter=, or with "
            "names_filter=list(model.hook_names(unit))."
        )
    stream = cache[architecture.stream_out.name]
    own = [cache[name] for name in ("embed.hook_in",) if name in cache]
    own = [ids for ids in own if not ids.is_floating_point() and ids.shape == stream.shape[:-1]]
    return torch.atleast_2d(own[0] if own else torch.full(stream.shape[:-1], -1))


def tokens_and_mask(tokens: Any, attention_mask: Any) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Convert ids and mask to `[row, token]` tensors. Raises InputError where their shapes do not fit."""
    try:
        ids = torch.atleast_2d(torch.as_tensor(tokens))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError("the prompts of a cache are its token ids [row, token], padded to one length.") from error
    if ids.dim() != 2 or ids.is_floating_point() or ids.numel() == 0:
        raise InputError(f"the prompts of a cache are its token ids [row, token], not of shape {tuple(ids.shape)}.")
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = torch.atleast_2d(torch.as_tensor(attention_mask, device=ids.device))
    if mask.shape != ids.shape:
        raise InputError(f"attention_mask has the shape {tuple(mask.shape)}, but tokens have {tuple(ids.shape)}.")
    mask = (mask != 0).long()
    if not bool(((mask.sum(1) > 0) & (mask.diff(dim=1).abs().sum(1) <= 1)).all()):  # a text has no gaps
        raise InputError("attention_mask must be 1 on one run of tokens in every row, with padding on one side only.")
    return ids, mask


def _check_embedding(architecture: Architecture, cached: Tensor, ids: Tensor, mask: Tensor) -> None:
    """Raise InputError for a cache whose stream does not begin with the embedding of these tokens."""
    start = architecture.stream_in
    with inference_mode_for(architecture):
        own = upcast(first_values(architecture, [start], ids, mask)[start]).to(cached.device)
    off = (upcast(cached) - own).norm(dim=2) > 0.01 * own.norm(dim=2) + 1e-6
    off &= mask.to(off.device).bool()
    if bool(off.any()):
        row, token = (int(i) for i in off.nonzero()[0])
        raise InputError(
            f"the cache was taken with other tokens: at row {row}, token {token} its stream does not begin with the "
            f"embedding of token {int(ids[row, token])}. Give the tokens and attention_mask of its own pass, "
            "which must have run in evaluation mode (without dropout) and with today's hooks on the embedding."
        )


def read_cache(
    architecture: Architecture,
    cache: Any,
    ids: Tensor,
    mask: Tensor,
    column: Int[Tensor, " row"],
    unit: UnitLike,
    given: bool = True,
) -> Activations:
    """Read the activations in a cache at one column of each row; the read-out runs the model's own modules.

    `given` tokens are compared with the cache's embedding. Raises InputError for missing names, wrong shapes, and other
    tokens.
    """
    points = architecture.hook_points(unit)
    if not all(point.name for point in points):
        raise InputError("a cache has no names for what this unit reads: give prompts, or another unit.")
    if missing := [point.name for point in points if point.name not in cache]:
        raise InputError(
            f"the cache lacks {missing[0]} ({len(missing)} of {len(points)} names): take it with "
            f"names_filter=list(model.hook_names({unit!r})), where model = layerdiv_tl.load_model(...)."
        )
    where = Positions(*(x.to(architecture.device) for x in (ids, mask, torch.arange(len(ids)), column)))
    seen = {}
    for point in points:
        x = cache[point.name]
        x = x[None] if x.shape[0] == ids.shape[1] and len(ids) == 1 and x.shape[:2] != ids.shape else x
        rows = 1 if point is architecture.pos_embed and len(x) == 1 else len(ids)  # learned ones: one row for all
        if x.shape[:2] != (rows, ids.shape[1]):
            shapes = f"{tuple(x.shape)}, but tokens have {tuple(ids.shape)}"
            raise InputError(f"the cache's {point.name} has the shape {shapes}: give the tokens it was taken with.")
        if point is architecture.stream_in and given:
            _check_embedding(architecture, x, ids, mask)
        seen[point] = [where.of(x)]
    with torch.no_grad():
        final = seen[architecture.stream_out][0].to(architecture.dtype)[:, None]
        unembedded = architecture.unembed(architecture.to_unembed(architecture.norm_module(final)))[:, 0]
        logits = architecture.transform(unembedded)
    order = [sublayer.hook_point for sublayer in architecture.sublayers]
    dtypes = (cache[architecture.stream_out.name].dtype, unembedded.dtype)
    return assemble(architecture, RawCapture(seen, order, upcast(unembedded), upcast(logits), *dtypes), unit)
