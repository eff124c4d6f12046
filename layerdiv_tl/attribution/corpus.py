"""Bias and diversity over the whole vocabulary, averaged over the tokens of many texts (MATHS 9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from .._checks import ordered
from ..components import Component, Unit
from ..ensemble.intervals import RunningMean
from ..errors import InputError
from ..model import tokenization
from .profile_base import ProfileSource, mean_frame
from .profile_passes import (
    Loss,
    ProfileSettings,
    encode_texts,
    profile_blocks,
    profile_settings,
    same_components,
)
from .profile_terms import LargestGaps

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class CorpusProfile(ProfileSource):
    """Means over the tokens of many texts, from running sums: one row per component. Made by `corpus_profile`.

    terms
        By the name of a column: mean, low, high `[3, component]`. Intervals are over texts; NaN for fewer than 8.
    losses
        Mean, low, high of the model's own loss in nats.
    texts, positions
        How many texts and how many tokens with a next one.
    measured_in
        The unit of bias, diversity and net.
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

    def frame(self) -> pd.DataFrame:
        """The same as `by_component`."""
        return self.by_component()

    def by_component(self) -> pd.DataFrame:
        """One row per component: mean, `_low` and `_high` of every term."""
        frame = mean_frame(self.components, self.terms, self.measured_in, self.texts)
        frame.attrs |= {"texts": self.texts, "positions": self.positions, "identity_gap": self.identity_gap}
        frame.attrs |= {"loss": self.losses.tolist(), "soft_cap": self.soft_cap}
        return frame

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
    unit: Unit = "sublayer",
    *,
    loss: Loss = "squared",
    tau: float | None = None,
    window: int | None = None,
    stride: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    batch_tokens: int | None = None,
) -> CorpusProfile:
    """Bias, diversity and net of every component, averaged over the tokens of any number of texts by running sums.

    texts
        An iterable of texts or of lists of token ids; it is gone through once and may be longer than
        memory. The other arguments are those of `profile`.

    Intervals are over texts; fewer than 8 have none. Raises InputError for no texts, and as `profile`.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> c = ld.corpus_profile(tiny, ([i, i + 1, i + 2] for i in range(10)))
    >>> c.texts, c.positions, c.frame().component.tolist()
    (10, 20, ['embed', 'L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp'])
    """
    tokenization.refuse_tables(texts, "texts")
    ordered("texts", texts, "an iterable of texts or of lists of token ids; for one text use profile")
    settings = profile_settings(model, unit, loss, tau, window, stride, precision, batch_tokens)
    running: dict[str, RunningMean] = {}
    gaps, count, positions = LargestGaps(), 0, 0
    names: tuple[Component, ...] = ()
    for ids in _groups(settings, texts):
        sums: dict[int, dict[str, Any]] = {}
        waiting = {document: len(row) for document, row in enumerate(ids)}
        for components, documents, store in profile_blocks(settings, ids, gaps):
            names = same_components(settings, names, components)
            unknown = np.zeros(len(documents), dtype=np.int64)
            part = settings.result(
                names,
                LargestGaps(),
                token_ids=unknown,
                tokens=("",) * len(documents),
                documents=documents,
                contexts=unknown,
                **store.arrays(),
            )
            for document in map(int, np.unique(documents)):
                inside = documents == document
                text = sums.setdefault(document, {})
                for name, total in part._sums(np.flatnonzero(inside & part.has_target)).items():
                    text[name] = text.get(name, 0.0) + total
                waiting[document] -= int(inside.sum())
                if not waiting[document]:  # the whole text is measured: a cluster of its own
                    tokens = len(ids[document]) - 1
                    for name, total in sums.pop(document).items():
                        running.setdefault(name, RunningMean()).add(total, tokens)
                    positions += tokens
        count += len(ids)
    if not count:
        raise InputError("there are no texts: give at least one text or list of token ids.")
    if not positions:
        raise InputError(f"none of the {count} texts has a second token, so there is nothing to predict.")
    means = {name: np.stack([mean.mean, *mean.interval()]) for name, mean in running.items()}
    return CorpusProfile(
        **settings.source(names, gaps),
        losses=means.pop("loss"),
        terms=means,
        texts=count,
        positions=positions,
        measured_in=part.measured_in,
    )


def _groups(settings: ProfileSettings, texts: Iterable[Any]) -> Iterator[list[tuple[int, ...]]]:
    """Texts as they come, encoded, in groups worth a few passes."""
    group: list[tuple[int, ...]] = []
    for number, text in enumerate(texts):
        if isinstance(text, int | np.integer):
            raise InputError("a corpus holds texts, but this one holds numbers: for one list of token ids use profile.")
        try:
            group += encode_texts(settings, [text])
        except InputError as error:
            raise InputError(f"text {number} of the corpus: {error}") from error
        if sum(map(len, group)) >= 4 * settings.batch_tokens:
            yield group
            group = []
    if group:
        yield group
