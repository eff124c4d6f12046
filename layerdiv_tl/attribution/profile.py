"""Bias and diversity of every component over the whole vocabulary, at every token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from .._checks import check_memory, choice, whole_number
from ..ensemble.losses import Gauge
from ..errors import InputError
from ..model.batches import pad
from ..model.load import Model, as_model
from ..model.passes import Pass
from ..model.prompts import Prompts, encode, prompt_ends, token_texts, with_mask
from ..model.units import UnitLike, check_unit, cut_of, unit_name, unit_of
from .profile_passes import PRECISIONS, ProfileRun, Texts, Window, windows
from .profile_results import Profile
from .promoted_tokens import promotions_of_pairs


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
    choice("precision", precision, PRECISIONS)
    model, unit = as_model(model), unit_of(unit)
    check_unit(unit, model.path)
    # No more than the model's context; and windows with gaps between them would skip tokens.
    window = (model.context or 2048) if window is None else whole_number("window", window, 1, model.context)
    stride = max(1, window // 2) if stride is None else whole_number("stride", stride, 1, window)
    ids = encode(model, with_mask(text_or_ids, attention_mask), any_length=True)
    run = ProfileRun(model, unit, PRECISIONS[precision], batch_tokens or model.batch_tokens)
    return run_profile(run, ids, gauge, window, stride)


def profile_of_pass(model: Model, ids: Sequence[int], unit: UnitLike, seen: Pass) -> Profile:
    """Make the `profile` of one text, at most as long as the model's context, from its recorded pass."""
    run = ProfileRun(model, unit, torch.float32, model.batch_tokens)
    return run_profile(run, Prompts([ids]), "centered", len(ids), len(ids), seen)


def run_profile(
    run: ProfileRun, ids: Texts, gauge: Gauge, window: int, stride: int, known: Pass | None = None
) -> Profile:
    """Run the profile of texts with checked arguments. Raises InputError where the tables do not fit into memory."""
    model = run.model
    if any(token >= model.path.outputs for row in ids for token in row[1:]):
        raise InputError(
            f"{model.name} takes ids beyond the {model.path.outputs} that it has logits of, as next tokens."
        )
    lengths, width = [len(row) for row in ids], len(model.components(run.unit))
    count = sum(lengths)
    dtype = torch.float32 if run.unit == "neuron" and run.dtype == torch.float32 else torch.float64
    needed = count * width * 4 * dtype.itemsize
    check_memory(needed, f"{count} tokens × {width} components", "take a shorter text, or another unit")
    cuts = list(windows(ids, window, stride))
    columns = dict[str, torch.Tensor]()
    for places, found in run.blocks(ids, cuts, known):
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
        contexts=np.concatenate([np.arange(w.first, w.stop) - w.start + 1 for w in cuts]),
        token_lookup=partial(_top_tokens, run, ids, cuts),
        prompt_ends=prompt_ends(model, ids),
        components=run.components,
        window=window,
        stride=stride,
        identity_gap=run.gap / max(run.size, 1e-300),
        absolute_gap=run.gap,
        vocabulary=model.path.outputs,
        unit=unit_name(run.unit),
        model=model.name,
        soft_cap=model.path.soft_cap,
    )


def _top_tokens(
    run: ProfileRun, ids: Texts, cuts: Sequence[Window], columns: Sequence[int], document: int, position: int, k: int
) -> pd.DataFrame:
    """Find the k largest and smallest logits of some components at a position of a text, with another pass up to it."""
    model, path = run.model, run.model.path
    window = next(w for w in cuts if w.document == document and w.first <= position < w.stop)
    # A model that reads long texts differently must see the text at its full length.
    stop = position + 1 if path.length_switch is None else window.stop
    with path.session():
        tokens = pad([ids[document][window.start : stop]])
        at = torch.tensor([0]), torch.tensor([position - window.start])
        seen = path.record(*tokens, *at, partial(cut_of, run.unit))
        pairs = [(0, run.components[column]) for column in columns]
        token_ids, logits, means = promotions_of_pairs(model, [(run.unit, seen)], pairs, k)
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
