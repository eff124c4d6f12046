"""Bias and diversity of every component at every token of a text, over the whole vocabulary (MATHS 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from ..components import Component, Unit
from ..ensemble.validation import LARGEST, numbers
from ..errors import InputError
from ..model import tokenization
from ..model.batches import inference_mode_for, pad
from ..model.forward_pass import run_all_positions
from .full_vocab import component_table
from .profile_base import Profile
from .profile_passes import (
    ColumnStore,
    Loss,
    ProfileSettings,
    encode_texts,
    profile_blocks,
    profile_settings,
    same_components,
    windows_of,
)
from .profile_terms import LargestGaps

if TYPE_CHECKING:
    import pandas as pd


def profile(
    model: Any,
    text_or_ids: Any,
    unit: Unit = "sublayer",
    *,
    loss: Loss = "squared",
    target: Float[np.ndarray, "position vocabulary"] | None = None,
    tau: float | None = None,
    window: int | None = None,
    stride: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    batch_tokens: int | None = None,
) -> Profile:
    """Bias, diversity and net of every component at every token, over the whole vocabulary.

    The logits of components are never formed: their sums over the vocabulary are products of small
    matrices. Position t is the prediction of token t + 1.

    model, unit
        As in `contributions`. A `Model` keeps what is worked out from its weights: a second profile starts at once.
    text_or_ids
        A text, a list of token ids, or several of either.
    loss
        "squared": Theorem 1 against the next token (`SquaredProfile`); "cross_entropy": in nats, which
        goes through the vocabulary once for every component (`CrossEntropyProfile`; not for neurons).
    target
        For the squared error: other logits to compare with, `[position, vocabulary]`, of all texts one
        after another (a teacher's).
    tau
        For cross-entropy: what logits are multiplied by before the softmax; default |L|.
    window, stride
        A text longer than `window` tokens (default: the model's context) is read in windows that move on
        by `stride` tokens (default: half a window); each token is measured in the first window that holds it,
        with at least window − stride tokens before it in view, or all there are.
    precision
        Of products; sums over the vocabulary are float64 in either. The model itself runs as it is.
    batch_tokens
        The most padded tokens in one forward pass; None is what is fast on the model's device.

    Raises InputError for input that cannot be used, and for a model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> p = ld.profile(tiny, [1, 2, 3, 4])
    >>> p.bias.shape, bool(np.allclose((p.bias - p.diversity).mean(0)[:3], p.mse[:3]))
    ((5, 4), True)
    """
    settings = profile_settings(model, unit, loss, tau, window, stride, precision, batch_tokens)
    ids = encode_texts(settings, text_or_ids)
    lengths = [len(row) for row in ids]
    dense = None if target is None else _dense_target(settings, target, sum(lengths))
    half = unit == "neuron" and precision == "float32"
    _check_memory(settings, sum(lengths), 4 if half else 8)
    store, gaps = ColumnStore(sum(lengths), torch.float32 if half else torch.float64), LargestGaps()
    names: tuple[Component, ...] = ()
    for components, _, _ in profile_blocks(settings, ids, gaps, store, dense):
        names = same_components(settings, names, components)
    token_ids = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
    return settings.result(
        names,
        gaps,
        token_ids=token_ids,
        tokens=tokenization.token_texts(settings.model, token_ids),
        documents=np.repeat(np.arange(len(ids)), lengths),
        contexts=np.concatenate([np.arange(w.first, w.stop) - w.start + 1 for w in windows_of(settings, ids)]),
        token_lookup=_TokenLookup(settings, ids),
        **store.arrays(),
    )


def _dense_target(settings: ProfileSettings, target: Any, count: int) -> Float[np.ndarray, "position vocabulary"]:
    if settings.loss != "squared":
        raise InputError("a dense target is for loss='squared'; the cross-entropy is that of the next token.")
    logits = numbers(target, "target", "[position, vocabulary]")
    shape = (count, settings.readout.vocabulary.size)
    if logits.shape != shape:
        raise InputError(f"target has the shape {logits.shape}, but must be [position, vocabulary] = {shape}.")
    if not np.isfinite(logits).all() or np.abs(logits).max() > LARGEST:
        raise InputError("target holds numbers that are not finite, or so large that their squares overflow.")
    return logits


def _check_memory(settings: ProfileSettings, count: int, itemsize: int) -> None:
    """Refuse tables that memory cannot hold, before the model runs."""
    import psutil

    tables, width = 4, settings.readout.width
    needed = count * width * tables * itemsize
    if needed > psutil.virtual_memory().available:
        raise InputError(
            f"{count} tokens × {width} components need {needed / 2**30:.1f} GiB, more than is free here: take a "
            "shorter text, another unit, or corpus_profile, which keeps sums only."
        )


@dataclass(frozen=True, eq=False)
class _TokenLookup:
    """Runs the model up to a token again and reads components out over the whole vocabulary."""

    settings: ProfileSettings
    ids: list[tuple[int, ...]]

    def __call__(
        self, components: Sequence[Component], columns: Sequence[int], document: int, position: int, k: int
    ) -> pd.DataFrame:
        """The k largest and k smallest logits of some components at a position of a text."""
        import pandas as pd

        model, readout, row = self.settings.model, self.settings.readout, self.ids[document]
        window = next(w for w in windows_of(self.settings, [row]) if w.first <= position < w.stop)
        # A model that reads long texts in another way must see the text as long as it was.
        stop = position + 1 if model.architecture.length_switch is None else window.stop
        at = position - window.start
        with inference_mode_for(model.architecture):
            tokens, mask = pad([row[window.start : stop]])
            activations = run_all_positions(model.architecture, tokens, mask, readout.unit)
            table = component_table(readout, activations.at_positions(slice(at, at + 1)))
            means = (table.vectors(columns)[0].to(table.final.device) @ readout.vocabulary.mean).cpu()
            means[[column == table.constant for column in columns]] = readout.vocabulary.constant_mean
            ids, logits = (x[0].cpu() for x in table.extreme_ids(columns, k))
        # [component, promotes or suppresses, rank] as rows, all promoted first.
        token_id, centered = (x.view(-1, 2, k).transpose(0, 1).flatten().numpy() for x in (ids, logits.double()))
        frame = pd.DataFrame(
            {
                "component": np.tile(np.repeat([c.label for c in components], k), 2),
                "effect": np.repeat(["promotes", "suppresses"], len(components) * k),
                "rank": np.tile(np.arange(1, k + 1), 2 * len(components)),
                "token": tokenization.token_texts(model, token_id),
                "token_id": token_id,
                "contribution": centered + np.tile(np.repeat(means.numpy(), k), 2),
                "contribution_centered": centered,
            }
        )
        frame.attrs["units"] = {"contribution": "logits", "contribution_centered": "logits"}
        return frame
