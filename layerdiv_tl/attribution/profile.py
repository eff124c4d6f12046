"""Bias and diversity of every component over the whole vocabulary, at every token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch

from .._checks import check_memory, choice
from ..ensemble.losses import Gauge
from ..errors import InputError
from ..model.batches import pad
from ..model.load import as_model
from ..model.prompts import encode, prompt_ends, token_texts, with_mask
from ..model.units import UnitLike, check_unit, cut_of, unit_name, unit_of
from .profile_passes import ProfileRun, Texts
from .profile_results import Profile
from .promoted_tokens import promotions_of_pairs


def profile(
    model: Any,
    text_or_ids: Any,
    unit: UnitLike = "sublayer",
    *,
    gauge: Gauge = "centered",
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Profile:
    """Compute bias, diversity and net of every component at every token, over the whole vocabulary.

    The logits of components are never formed: their sums over the vocabulary are products of small matrices. Position t
    is the prediction of token t + 1.

    Args:
        model, unit: As in `contributions`. A `Model` caches what it computes from its weights, so that a second profile
            starts at once.
        text_or_ids: A text, a list of token ids, or several of either; each at most as long as the model reads.
        gauge: "centered" (what softmax sees), "shift" (common to all ids) or "raw", their sum.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.
        attention_mask: `[row, token]`, 1 for real token ids and 0 for padding.

    Raises InputError for unusable input, and for a model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> p = ld.profile("zoo/d4", [1, 2, 3, 4])
    >>> p.bias.shape, bool(np.allclose((p.bias - p.diversity).mean(0)[:3], p.mse[:3]))
    ((9, 4), True)
    """
    choice("gauge", gauge, get_args(Gauge))
    model, unit = as_model(model), unit_of(unit)
    check_unit(unit, model.path)
    ids = encode(model, with_mask(text_or_ids, attention_mask))
    if any(token >= model.path.outputs for row in ids for token in row[1:]):
        raise InputError(
            f"{model.name} takes ids beyond the {model.path.outputs} that it has logits of, as next tokens."
        )
    run = ProfileRun(model, unit, batch_tokens or model.batch_tokens)
    lengths, width = [len(row) for row in ids], len(model.components(unit))
    count = sum(lengths)
    dtype = run.dtype if unit == "neuron" else torch.float64
    needed = count * width * 4 * dtype.itemsize
    check_memory(needed, f"{count} tokens × {width} components", "take a shorter text, or another unit")
    columns = dict[str, torch.Tensor]()
    for places, found in run.blocks(ids):
        for name, x in found.items():
            if name not in columns:
                # By torch: numpy requests huge pages, whose first touch costs up to ten times as much.
                columns[name] = torch.empty(count, *x.shape[1:], dtype=dtype if x.dim() == 2 else torch.float64)
            columns[name][torch.as_tensor(places)] = x.detach().to(columns[name].dtype).cpu()
        found.clear()  # else it would be held while the next positions are read out
    token_ids = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
    return Profile(
        **{name: x.numpy() for name, x in columns.items()},
        gauge=gauge,
        token_ids=token_ids,
        tokens=token_texts(model, token_ids),
        documents=np.repeat(np.arange(len(ids)), lengths),
        token_lookup=partial(_top_tokens, run, ids),
        prompt_ends=prompt_ends(model, ids),
        components=run.components,
        identity_gap=run.gap / max(run.size, 1e-300),
        absolute_gap=run.gap,
        vocabulary=model.path.outputs,
        unit=unit_name(unit),
        model=model.name,
        soft_cap=model.path.soft_cap,
    )


def _top_tokens(
    run: ProfileRun, ids: Texts, columns: Sequence[int], document: int, position: int, k: int
) -> pd.DataFrame:
    """Find the k largest and smallest logits of some components at a position of a text, with another pass up to it."""
    model, path = run.model, run.model.path
    # A model that reads long texts differently must see the text at its full length.
    stop = position + 1 if path.length_switch is None else None
    with path.session():
        tokens, at = pad([ids[document][:stop]]), (torch.tensor([0]), torch.tensor([position]))
        seen = path.record(*tokens, *at, partial(cut_of, run.unit))
        pairs = [(0, run.components[column]) for column in columns]
        token_ids, logits, means = promotions_of_pairs(model, seen, run.unit, pairs, k)
    # [component, promotes or suppresses, rank] as rows, all promoted first.
    token_id, centered = (x.reshape(-1, 2, k).swapaxes(0, 1).ravel() for x in (token_ids, logits.astype(np.float64)))
    frame = pd.DataFrame(
        {
            "component": np.tile(np.repeat([run.components[column].label for column in columns], k), 2),
            "effect": np.repeat(["promotes", "suppresses"], len(columns) * k),
            "rank": np.tile(np.arange(1, k + 1), 2 * len(columns)),
            "token": token_texts(model, token_id),
            "token_id": token_id,
            "contribution": centered + np.tile(np.repeat(means, k), 2),
            "contribution_centered": centered,
        }
    )
    frame.attrs["units"] = {"contribution": "logits", "contribution_centered": "logits"}
    return frame
