"""Bias and diversity of every component over the whole vocabulary: at every token of a text, or averaged over many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float

from .._checks import check_memory, ordered, refuse_tables
from ..ensemble.intervals import RunningMean
from ..ensemble.validation import LARGEST, numbers
from ..errors import InputError
from ..model import forward_pass
from ..model.architecture import UnitLike
from ..model.batches import inference_mode_for, pad
from ..model.cuts import is_fine
from ..model.prompts import Prompts, prompt_ends, token_texts, with_mask
from .profile_passes import Loss, ProfileRun, Texts, profile_blocks, profile_run
from .profile_results import Profile, ProfileSource
from .promoted_tokens import promotions_of_pairs

if TYPE_CHECKING:
    from ..model.capture import Activations
    from ..model.load import Model


def profile(
    model: Any,
    text_or_ids: Any,
    unit: UnitLike = "sublayer",
    *,
    loss: Loss = "squared",
    target: Float[np.ndarray, "position vocabulary"] | None = None,
    tau: float | None = None,
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
        loss: "squared": Theorem 1 against the next token (`SquaredProfile`); "cross_entropy": in nats, at the cost of
            one vocabulary pass per component (`CrossEntropyProfile`; not for neurons).
        target: For the squared error: other target logits, `[position, vocabulary]`, e.g. a teacher's, with all texts
            concatenated.
        tau: For cross-entropy: the factor on logits before the softmax; default |L|.
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
    run = profile_run(model, unit, loss, tau, window, stride, precision, batch_tokens)
    ids = run.encode(with_mask(text_or_ids, attention_mask))
    dense = None if target is None else _dense_target(run, target, sum(map(len, ids)))
    return run_profile(run, ids, dense)[0]


def profile_of_pass(model: Model, ids: Sequence[int], unit: UnitLike, activations: Activations) -> Profile:
    """Make the squared `profile` of one text, at most as long as the model's context, from an earlier pass."""
    run = profile_run(model, unit, "squared", None, None, None, "float32", None)
    return run_profile(run, run.encode(Prompts([ids])), None, activations)[0]


def run_profile(
    run: ProfileRun,
    ids: Texts,
    dense: Float[np.ndarray, "position vocabulary"] | None = None,
    activations: Activations | None = None,
) -> tuple[Profile, dict[str, np.ndarray]]:
    """Run the profile of texts with checked arguments; also return the columns that `run.readers` add.

    Raises InputError where the tables do not fit into memory.
    """
    lengths, width = [len(row) for row in ids], run.readout.width
    tables, count = 0 if run.readers is None else 1 + len(run.readers), sum(lengths)
    half = is_fine(run.readout.unit) and run.readout.dtype == torch.float32
    needed = count * width * (4 + tables) * (4 if half else 8)
    instead = "take a shorter text, another unit, or corpus_profile, which keeps sums only"
    check_memory(needed, f"{count} tokens × {width} components", instead)  # before the model runs
    columns = dict[str, torch.Tensor]()
    for places, found in profile_blocks(run, ids, dense, activations, torch.float32 if half else torch.float64, count):
        for name, x in found.items():
            if (
                name not in columns
            ):  # by torch: numpy requests huge pages, whose first touch costs up to ten times as much
                columns[name] = torch.empty(count, *x.shape[1:], dtype=x.dtype)
            columns[name][torch.as_tensor(places)] = x.cpu()
        found.clear()  # else it would be held while the next positions are read out
    token_ids = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
    return run.result(
        {name: x.numpy() for name, x in columns.items()},
        token_ids=token_ids,
        tokens=token_texts(run.model, token_ids),
        documents=np.repeat(np.arange(len(ids)), lengths),
        contexts=np.concatenate([np.arange(w.first, w.stop) - w.start + 1 for w in run.windows(ids)]),
        token_lookup=partial(_top_tokens, run, ids),
        prompt_ends=prompt_ends(run.model, ids),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class CorpusProfile(ProfileSource):
    """Means over the tokens of many texts, from running sums: one row per component. Made by `corpus_profile`.

    Attributes:
        terms, losses: By column name: mean, low, high `[3, component]`, and the same three of the model's own loss in
            nats. Intervals are over texts; NaN for fewer than 8.
        texts, positions, measured_in: The number of texts, the number of tokens that have a next one, and the unit of
            bias, diversity and net.
    """

    terms: dict[str, Float[np.ndarray, "3 component"]]
    losses: Float[np.ndarray, " 3"]
    texts: int
    positions: int
    measured_in: str

    @property
    def loss(self) -> float:
        """The model's own mean cross-entropy of the next token, in nats."""
        return float(self.losses[0])

    figures: ClassVar = {"bars": "ensemble.profile_bars", "scatter": "ensemble.bias_diversity_scatter"}

    def plot(self, kind: Literal["bars", "scatter"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per component: mean, `_low` and `_high` of every term."""
        frame = self._mean_frame(self.terms, self.measured_in, self.texts)
        frame.attrs |= {"texts": self.texts, "positions": self.positions, "loss": self.losses.tolist()}
        return frame

    by_component = frame

    def __repr__(self) -> str:
        mean, low, high = self.losses
        ends = f" [{low:.4g}, {high:.4g}]" if np.isfinite(low) else ""
        return (
            f"CorpusProfile({self.model}: {self.positions} tokens of {self.texts} texts × {len(self.components)} "
            f"components; loss {mean:.4g}{ends} nats; identity gap {self.identity_gap:.1e})"
        )


def corpus_profile(
    model: Any,
    texts: Iterable[Any],
    unit: UnitLike = "sublayer",
    *,
    loss: Loss = "squared",
    tau: float | None = None,
    window: int | None = None,
    stride: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    batch_tokens: int | None = None,
) -> CorpusProfile:
    """Average bias, diversity and net of every component over the tokens of any number of texts, by running sums.

    Args:
        texts: An iterable of texts or of lists of token ids, read once; it may be longer than memory. The other
            arguments are those of `profile`.

    Intervals are over texts; fewer than 8 have none. Raises InputError for no texts, and as `profile`.

    >>> import layerdiv_tl as ld
    >>> c = ld.corpus_profile("zoo/d4", ([i, i + 1, i + 2] for i in range(10)))
    >>> c.texts, c.frame().component.tolist()[:3]
    (10, ['embed', 'L0.attn', 'L0.mlp'])
    """
    refuse_tables("texts", texts)
    ordered("texts", texts, "an iterable of texts or of lists of token ids; for one text use profile")
    run = profile_run(model, unit, loss, tau, window, stride, precision, batch_tokens)
    running: dict[str, RunningMean] = {}
    count, positions, part = 0, 0, None
    for ids in _groups(run, texts):
        count += len(ids)
        sums: dict[int, dict[str, Any]] = {}
        waiting = [len(row) for row in ids]
        document_of = np.repeat(np.arange(len(ids)), waiting)
        for places, found in profile_blocks(run, ids):
            # Token ids and contexts are not needed.
            fields = {"token_ids": places, "contexts": places, "documents": document_of[places], "tokens": ()}
            part, _ = run.result({name: x.cpu().numpy() for name, x in found.items()}, **fields)
            for document in map(int, np.unique(part.documents)):
                inside = part.documents == document
                text = sums.setdefault(document, {})
                for name, total in part._sums(np.flatnonzero(inside & part.has_target)).items():
                    text[name] = text.get(name, 0.0) + total
                waiting[document] -= int(inside.sum())
                if not waiting[document]:  # the whole text is measured: a cluster of its own
                    tokens = len(ids[document]) - 1
                    for name, total in sums.pop(document).items():
                        running.setdefault(name, RunningMean()).add(total, tokens)
                    positions += tokens
    if part is None:
        raise InputError("there are no texts: give at least one text or list of token ids.")
    if not positions:
        raise InputError(f"none of the {count} texts has a second token, so there is nothing to predict.")
    means = {name: np.stack([mean.mean, *mean.interval()]) for name, mean in running.items()}
    counts: dict[str, Any] = {"texts": count, "positions": positions, "measured_in": part.measured_in}
    return CorpusProfile(losses=means.pop("loss"), terms=means, **counts, **run.source())


def _groups(run: ProfileRun, texts: Iterable[Any]) -> Iterator[Texts]:
    """Encode texts as they come, in groups worth a few passes."""
    group: list[tuple[int, ...]] = []
    for number, text in enumerate(texts):
        if isinstance(text, int | np.integer):
            raise InputError("a corpus holds texts, but this one holds numbers: for one list of token ids use profile.")
        try:
            group += run.encode([text])
        except InputError as error:
            raise InputError(f"text {number} of the corpus: {error}") from error
        if sum(map(len, group)) >= 4 * run.batch_tokens:
            yield group
            group = []
    if group:
        yield group


def _dense_target(run: ProfileRun, target: Any, count: int) -> Float[np.ndarray, "position vocabulary"]:
    if run.loss != "squared":
        raise InputError("a dense target is for loss='squared'; the cross-entropy is that of the next token.")
    logits = numbers(target, "target", "[position, vocabulary]")
    shape = (count, run.readout.vocabulary.size)
    if logits.shape != shape:
        raise InputError(f"target has the shape {logits.shape}, but must be [position, vocabulary] = {shape}.")
    if not np.isfinite(logits).all() or np.abs(logits).max() > LARGEST:
        raise InputError("target holds numbers that are not finite, or so large that their squares overflow.")
    return logits


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
