"""Bias and diversity of every component over the whole vocabulary, at every token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from .._checks import check_memory, choice
from ..ensemble.losses import Gauge
from ..model import forward_pass
from ..model.architecture import UnitLike
from ..model.batches import inference_mode_for, pad
from ..model.cuts import is_fine
from ..model.prompts import Prompts, prompt_ends, token_texts, with_mask
from .profile_passes import ProfileRun, Texts, profile_blocks, profile_run
from .profile_results import Profile
from .promoted_tokens import promotions_of_pairs

if TYPE_CHECKING:
    from ..model.capture import Activations
    from ..model.load import Model


def profile(
    model: Any,
    text_or_ids: Any,
    unit: UnitLike = "sublayer",
    *,
    gauge: Gauge = "centered",
    window: int | None = None,
    stride: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Profile:
    """Compute bias, diversity and net of every component at every token, over the whole vocabulary.

    The logits of components are never formed: their sums over the vocabulary are products of small matrices. Position t
    is the prediction of token t + 1.

    Args:
        model, unit: As in `contributions`. A `Model` caches what it computes from its weights, so that a second profile
            starts at once.
        text_or_ids: A text, a list of token ids, or several of either.
        gauge: "centered" (what softmax sees), "shift" (common to all ids) or "raw", their sum.
        window, stride: A text longer than `window` tokens (default: the model's context) is read in windows that move
            on by `stride` tokens (default: half a window). Each token is measured in the first window that holds it,
            with a context of at least window − stride tokens, or of all there are.
        precision: Product precision; sums over the vocabulary are always float64. The model itself runs unchanged.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.
        attention_mask: `[row, token]`, 1 for real token ids and 0 for padding.

    Raises InputError for unusable input, and for a model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> p = ld.profile("zoo/d4", [1, 2, 3, 4])
    >>> p.bias.shape, bool(np.allclose((p.bias - p.diversity).mean(0)[:3], p.mse[:3]))
    ((9, 4), True)
    """
    choice("gauge", gauge, get_args(Gauge))
    run = profile_run(model, unit, window, stride, precision, batch_tokens)
    return run_profile(run, run.encode(with_mask(text_or_ids, attention_mask)), gauge)


def profile_of_pass(model: Model, ids: Sequence[int], unit: UnitLike, activations: Activations) -> Profile:
    """Make the `profile` of one text, at most as long as the model's context, from an earlier pass."""
    run = profile_run(model, unit, None, None, "float32", None)
    return run_profile(run, run.encode(Prompts([ids])), "centered", activations)


def run_profile(run: ProfileRun, ids: Texts, gauge: Gauge, activations: Activations | None = None) -> Profile:
    """Run the profile of texts with checked arguments. Raises InputError where the tables do not fit into memory."""
    lengths, width = [len(row) for row in ids], run.readout.width
    count = sum(lengths)
    half = is_fine(run.readout.unit) and run.readout.dtype == torch.float32
    needed = count * width * 4 * (4 if half else 8)
    check_memory(needed, f"{count} tokens × {width} components", "take a shorter text, or another unit")
    columns = dict[str, torch.Tensor]()
    for places, found in profile_blocks(run, ids, activations, torch.float32 if half else torch.float64, count):
        for name, x in found.items():
            if name not in columns:
                # By torch: numpy requests huge pages, whose first touch costs up to ten times as much.
                columns[name] = torch.empty(count, *x.shape[1:], dtype=x.dtype)
            columns[name][torch.as_tensor(places)] = x.cpu()
        found.clear()  # else it would be held while the next positions are read out
    token_ids = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
    return run.result(
        {name: x.numpy() for name, x in columns.items()},
        gauge=gauge,
        token_ids=token_ids,
        tokens=token_texts(run.model, token_ids),
        documents=np.repeat(np.arange(len(ids)), lengths),
        contexts=np.concatenate([np.arange(w.first, w.stop) - w.start + 1 for w in run.windows(ids)]),
        token_lookup=partial(_top_tokens, run, ids),
        prompt_ends=prompt_ends(run.model, ids),
    )


def _top_tokens(
    run: ProfileRun, ids: Texts, columns: Sequence[int], document: int, position: int, k: int
) -> pd.DataFrame:
    """Find the k largest and smallest logits of some components at a position of a text, with another pass up to it."""
    model, readout, row = run.model, run.readout, ids[document]
    window = next(w for w in run.windows([row]) if w.first <= position < w.stop)
    # A model that reads long texts differently must see the text at its full length.
    stop = position + 1 if model.architecture.length_switch is None else window.stop
    at = position - window.start
    with inference_mode_for(model.architecture):
        tokens = pad([row[window.start : stop]])
        activations = forward_pass.run(model.architecture, *tokens, readout.unit, interventions=True)
        token_ids, logits, means = promotions_of_pairs(readout, activations, [(at, column) for column in columns], k)
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
