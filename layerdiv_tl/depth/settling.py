"""When predictions settle along depth: the deep-thinking ratio."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._checks import number
from ..components import Component
from ..ensemble.intervals import cluster_means
from ..errors import InputError
from ..model.architecture import Architecture
from ..model.batches import pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model, as_model
from ..model.patched_forward import LOGITS, logits_of
from .inputs import check_choices, read_answers, read_texts
from .logit_lens import layer_ends, read_out
from .passes import map_batches, same_components
from .token_stats import TokenResult, labeled_frame, mean_columns, sums_per_text, with_ends

LensNorm = Literal["recomputed", "none"]


@dataclass(frozen=True, eq=False, repr=False)
class DeepThinking(TokenResult):
    """Where along depth the prediction of each token comes within a threshold of the last one.

    Attributes:
        components: The layers.
        divergence: `[token, layer]`: Jensen-Shannon divergence in bits, between 0 and 1, of the prediction after every
            layer from the model's; 0 after the last.
        shuffled: The same with the layers' streams of another token, but after the last layer: a lens that says
            nothing about this token.
        text: `[token]`, which text a token is from.
        threshold, depth: g and ρ: a token is deep if it first comes within g at layer ⌈ρL⌉ or later.
    """

    components: tuple[Component, ...]
    divergence: Float[np.ndarray, "token layer"]
    shuffled: Float[np.ndarray, "token layer"]
    text: Int[np.ndarray, " token"]
    threshold: float
    depth: float
    norm: str
    model: str

    @property
    def settled(self) -> Int[np.ndarray, " token"]:
        """The layer, from 1, after which a token first is within the threshold (c_t of the paper)."""
        return _first(self.divergence <= self.threshold)

    @property
    def settled_for_good(self) -> Int[np.ndarray, " token"]:
        """The layer, from 1, from which on a token stays within the threshold: the strict form."""
        return _last(self.divergence > self.threshold)

    def ratio(self) -> pd.DataFrame:
        """The deep-thinking ratio, the share of deep tokens, with 95 % intervals over texts.

        One row for each way to count: "first" as published, "last" by the layer from which on a token stays settled;
        `shuffled` is the same for a lens of other tokens.
        """
        least = ceil(self.depth * len(self.components))
        records = []
        for way, settle in (("first", _first), ("last", _last)):
            record: dict[str, Any] = {"settled": way, "least_layer": least}
            for name, values in (("ratio", self.divergence), ("shuffled", self.shuffled)):
                close = values <= self.threshold
                deep = (settle(close if way == "first" else ~close) >= least).astype(float)
                sums, counts = sums_per_text(deep[:, None], self.text)
                record |= with_ends(name, *(float(x[0]) for x in cluster_means(sums, counts)))
            records.append(record)
        return labeled_frame(records, {"ratio": "share of tokens", "shuffled": "share of tokens"})

    def frame(self) -> pd.DataFrame:
        """One row per layer: the divergence, and shares of tokens that have settled by then; intervals over texts.

        `settled`: within the threshold after this layer or one before; `settled_for_good`: from this layer on;
        `_shuffled`: with the lens of other tokens.
        """
        layers = np.arange(1, len(self.components) + 1)
        columns: dict[str, Any] = {}
        for name, values in (
            ("divergence", self.divergence),
            ("settled", self.settled[:, None] <= layers),
            ("settled_for_good", self.settled_for_good[:, None] <= layers),
            ("divergence_shuffled", self.shuffled),
            ("settled_shuffled", _first(self.shuffled <= self.threshold)[:, None] <= layers),
        ):
            columns |= mean_columns(name, *sums_per_text(values.astype(float), self.text))
        shares = dict.fromkeys(("settled", "settled_for_good", "settled_shuffled"), "share of tokens")
        return self._with_units(columns, {"divergence": "bits", "divergence_shuffled": "bits"} | shares)


def deep_thinking(
    model: Any,
    texts: Any,
    answers: Any = None,
    *,
    threshold: float = 0.5,
    depth: float = 0.85,
    norm: LensNorm = "recomputed",
    batch_tokens: int | None = None,
) -> DeepThinking:
    """The deep-thinking ratio: the share of tokens whose prediction settles in the last layers.

    *Think Deep, Not Just Long* (arXiv 2602.13517): D_l = JSD(p_L, p_l) of the prediction after layer l and the model's,
    c the first layer at which D ≤ g, deep if c ≥ ⌈ρL⌉. The paper gives no base of the logarithm; its sweep of g passes
    ln 2, so it is bits. Its algorithm has ⌈(1 − ρ)L⌉, which does not fit its numbers. A running minimum, as it takes,
    changes nothing about the first crossing; a token may leave again, which `settled_for_good` counts. Ratios of
    different models are not comparable.

    Args:
        model, texts, batch_tokens: As in `residual_norms`.
        answers: Whose predictions are measured, as in `integrated_gradients`: the paper's are generated tokens. None:
            those of every token.
        threshold, depth: g and ρ.
        norm: "recomputed": the final norm of every layer's stream, then the unembedding; "none": the unembedding of the
            stream as it is, as printed, but for the last layer, which is the model.

    Every layer costs two unembeddings of every token. Raises InputError for input that cannot be used, and for models
    whose stream after a layer cannot be read out.

    >>> import layerdiv_tl as ld
    >>> found = ld.depth.deep_thinking("zoo/d2", [[1, 2, 3], [4, 5]])
    >>> found.divergence.shape, float(found.divergence[:, -1].max()), found.ratio().settled.tolist()
    ((5, 2), 0.0, ['first', 'last'])
    """
    check_choices(norm=(norm, LensNorm))
    threshold = number("threshold", threshold, least=0, most=1)
    depth = number("depth", depth, above=0, most=1)
    model = readable(as_model(model))
    if answers is None:
        ids = read_texts(model, texts, 2, "the shuffled lens is that of another token")
        measured = [np.ones(len(row), dtype=bool) for row in ids]
    else:
        ids, sizes = read_answers(model, texts, answers)
        measured = [_before_last(len(row), size) for row, size in zip(ids, sizes, strict=True)]

    def measure(rows: list[int]) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
        activations = run(model.architecture, *pad([ids[row] for row in rows]))
        where = torch.as_tensor(np.concatenate([measured[row] for row in rows]))
        text = np.repeat(rows, [measured[row].sum() for row in rows])
        return *_divergences(model.architecture, activations, where, norm), text

    components, tables, of_text = zip(*map_batches(model, ids, batch_tokens, measure), strict=True)
    text = np.concatenate(of_text)
    order = np.argsort(text, kind="stable")
    own, shuffled = np.concatenate(tables, 1)[:, order]
    named = same_components(model, components)
    return DeepThinking(named, own, shuffled, text[order], threshold, depth, norm, model.name)


def readable(model: Model) -> Model:
    """The model. Raises InputError where what it would answer after a layer has no meaning."""
    if not model.architecture.has_prefixes:
        raise InputError(
            f"the stream of {model.name} passes norms, gates or a mixing of streams after its layers, and what it "
            "would answer there has no meaning."
        )
    return model


def _divergences(
    architecture: Architecture, activations: Activations, where: Bool[Tensor, " token"], norm: LensNorm
) -> tuple[tuple[Component, ...], Float[np.ndarray, "2 token layer"]]:
    """In bits, of every layer's prediction at some tokens, by their own streams and by another token's."""
    places = where.nonzero()[:, 0]
    count = len(places)
    other = torch.arange(count).roll(max(1, count // 2))
    if count == 1:  # measured alone: its other token is one of its text
        places, other = torch.cat([places, (places + len(where) // 2) % len(where)]), torch.ones_like(other)
    activations = activations.at_positions(places.to(activations.final.device))
    ends = layer_ends(architecture, activations)[1:]
    table = np.zeros((2, count, len(ends)))
    step = max(1, LOGITS // architecture.outputs)
    for start in range(0, count, step):
        chunk = slice(start, min(start + step, count))
        final = read_out(architecture, activations.final[chunk], None).log_softmax(-1)
        for layer, (_, stream) in enumerate(ends[:-1]):
            for row, taken in enumerate((stream[chunk], stream[other[chunk].to(stream.device)])):
                logits = read_out(architecture, taken, None) if norm == "recomputed" else _unnormed(architecture, taken)
                table[row, chunk, layer] = _jensen_shannon(final, logits.log_softmax(-1)).cpu().numpy()
    return tuple(component for component, _ in ends), table


def _unnormed(architecture: Architecture, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
    return logits_of(architecture, architecture.to_unembed(stream.to(architecture.dtype)))


def _jensen_shannon(a: Float[Tensor, "n v"], b: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """Of two tables of log-probabilities, in bits.

    >>> logs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]).log()
    >>> _jensen_shannon(logs[:1], logs[1:]).tolist(), _jensen_shannon(logs, logs).tolist()
    ([1.0], [0.0, 0.0])
    """
    p, q = a.exp(), b.exp()
    mixed = ((p + q) / 2).clamp_min(1e-38).log()
    # Where a probability is 0 so is its term, whatever the logarithm.
    parts = [(w * (log - mixed)).masked_fill(w == 0, 0).sum(-1, dtype=torch.float64) for w, log in ((p, a), (q, b))]
    return ((parts[0] + parts[1]) / 2 / np.log(2)).clamp(0, 1)


def _first(close: Bool[np.ndarray, "token layer"]) -> Int[np.ndarray, " token"]:
    """The first layer, from 1, where it holds; it holds after the last."""
    return close.argmax(1) + 1


def _last(far: Bool[np.ndarray, "token layer"]) -> Int[np.ndarray, " token"]:
    """One after the last layer where it holds, from 1."""
    layers = far.shape[1]
    return np.where(far.any(1), layers - far[:, ::-1].argmax(1), 0) + 1


def _before_last(length: int, size: int) -> Bool[np.ndarray, " token"]:
    """The tokens that predict the last so many."""
    places = np.arange(length)
    return (places >= length - size - 1) & (places < length - 1)
