"""A pass that already happened: activations cached through TransformerLens."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..components import Unit
from ..errors import InputError
from .batches import upcast
from .capture import Activations, RawCapture
from .forward_pass import assemble
from .load import Model


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


def read(model: Model, cache: Any, ids: Tensor, column: Int[Tensor, " row"], unit: Unit) -> Activations:
    """The activations a cache holds, at one column of each row; the read-out runs the model's own modules.

    Raises InputError for names the cache lacks, for the wrong shapes, and for repeated layers.
    """
    architecture = model.architecture
    points = architecture.hook_points(unit)
    if any(repeat is not None for _, repeat in model.sublayer_order):
        raise InputError(
            "this model runs some layers more than once, and a cache keeps their last run only: give prompts instead."
        )
    missing = [point.name for point in points if point.name not in cache]
    if missing:
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
            raise InputError(
                f"the cache's {point.name} has the shape {tuple(x.shape)}, which does not fit tokens of the shape "
                f"{tuple(ids.shape)}: give the tokens the cache was taken with."
            )
        seen[id(point)] = [upcast(x[row.to(x.device), column.to(x.device)].flatten(1)).to(architecture.device)]
    with torch.no_grad():
        final = seen[id(architecture.stream_out)][0].to(architecture.dtype)[:, None]
        unembedded = architecture.unembed(architecture.norm_module(final))
        logits = architecture.transform(unembedded)
    order = [id(sublayer.hook_point) for sublayer in architecture.sublayers]
    answers = (upcast(unembedded[:, 0]), upcast(logits[:, 0]))
    dtype = cache[architecture.stream_out.name].dtype
    return assemble(architecture, RawCapture(seen, order, *answers, dtype, unembedded.dtype), unit)
