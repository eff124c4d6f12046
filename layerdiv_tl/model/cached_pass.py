"""A pass that TransformerLens cached before, as `Activations`: with the tokens it was taken with, which are checked."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .architecture import UnitLike
from .batches import inference_mode_for, upcast
from .capture import Activations, Positions, RawCapture, first_values
from .forward_pass import assemble
from .load import Model


def tokens_and_mask(tokens: Any, attention_mask: Any) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Ids and mask as `[row, token]` tensors. Raises InputError where their shapes do not fit."""
    if tokens is None:
        raise InputError("cache= needs tokens=, the token ids [row, token] that the cache was taken with.")
    try:
        ids = torch.atleast_2d(torch.as_tensor(tokens))
    except (TypeError, ValueError) as error:
        raise InputError("tokens must be token ids [row, token], with every row of one length (padded).") from error
    if ids.dim() != 2 or ids.is_floating_point() or ids.numel() == 0:
        raise InputError(f"tokens must be token ids [row, token], but have the shape {tuple(ids.shape)}.")
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = torch.atleast_2d(torch.as_tensor(attention_mask, device=ids.device))
    if mask.shape != ids.shape:
        raise InputError(f"attention_mask has the shape {tuple(mask.shape)}, but tokens have {tuple(ids.shape)}.")
    mask = (mask != 0).long()
    if not bool(((mask.sum(1) > 0) & (mask.diff(dim=1).abs().sum(1) <= 1)).all()):  # a hole is not a text
        raise InputError("attention_mask must be 1 on one run of tokens in every row, with padding on one side only.")
    return ids, mask


def _check_embedding(model: Model, cached: Tensor, ids: Tensor, mask: Tensor) -> None:
    """Refuse a cache whose stream does not begin with the embedding of these tokens."""
    start = model.architecture.stream_in
    with inference_mode_for(model.architecture):
        own = upcast(first_values(model.architecture, [start], ids, mask)[start]).to(cached.device)
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
    model: Model, cache: Any, ids: Tensor, mask: Tensor, column: Int[Tensor, " row"], unit: UnitLike
) -> Activations:
    """The activations a cache holds, at one column of each row; the read-out runs the model's own modules.

    Raises InputError for names the cache lacks, for the wrong shapes, for other tokens, and for repeated layers.
    """
    architecture = model.architecture
    points = architecture.hook_points(unit)
    if any(repeat is not None for _, repeat in model.sublayer_order):
        raise InputError("this model runs some layers more than once, and a cache keeps their last run: give prompts.")
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
        rows = 1 if point is architecture.pos_embed and len(x) == 1 else len(ids)  # learned ones may be alike for all
        if x.shape[:2] != (rows, ids.shape[1]):
            shapes = f"{tuple(x.shape)}, but tokens have {tuple(ids.shape)}"
            raise InputError(f"the cache's {point.name} has the shape {shapes}: give the tokens it was taken with.")
        if point is architecture.stream_in:
            _check_embedding(model, x, ids, mask)
        seen[point] = [where.of(x)]
    with torch.no_grad():
        final = seen[architecture.stream_out][0].to(architecture.dtype)[:, None]
        unembedded = architecture.unembed(architecture.to_unembed(architecture.norm_module(final)))[:, 0]
        logits = architecture.transform(unembedded)
    order = [sublayer.hook_point for sublayer in architecture.sublayers]
    dtypes = (cache[architecture.stream_out.name].dtype, unembedded.dtype)
    return assemble(architecture, RawCapture(seen, order, upcast(unembedded), upcast(logits), *dtypes), unit)
