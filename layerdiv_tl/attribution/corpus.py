"""Bias and diversity over the whole vocabulary, averaged over the tokens of many texts (MATHS 9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from .._checks import ordered
from ..components import Component, Unit, component_columns
from ..ensemble.intervals import RunningMean, interval_note
from ..errors import InputError
from ..model import tokenization as reading
from ..results import Result
from .profile import Loss, _blocks, _Gaps, _Job, _job, _texts, _windows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class CorpusProfile(Result):
    """Means over the tokens of many texts, from running sums: one row per component. Made by `corpus_profile`.

    components
        The names of the rows.
    terms
        By the name of a column: mean, low, high `[3, component]`. Intervals are over texts; NaN for fewer than 8.
    losses
        Mean, low, high of the model's own loss in nats.
    texts, positions
        How many texts and how many tokens with a next one.
    loss, unit, model, vocabulary, window, stride, identity_gap, absolute_gap, soft_cap
        As in `Profile`; the gaps are the largest.
    """

    components: tuple[Component, ...]
    terms: dict[str, Float[np.ndarray, "3 component"]]
    losses: Float[np.ndarray, " 3"]
    texts: int
    positions: int
    measured_in: str
    identity_gap: float
    absolute_gap: float
    vocabulary: int
    window: int
    stride: int
    model: str
    unit: str
    soft_cap: float | None

    @property
    def loss(self) -> float:
        """The model's own mean cross-entropy of the next token, in nats."""
        return float(self.losses[0])

    def frame(self) -> pd.DataFrame:
        """The same as `by_component`."""
        return self.by_component()

    def by_component(self) -> pd.DataFrame:
        """One row per component: mean, `_low` and `_high` of every term."""
        import pandas as pd

        rows = component_columns(self.components)
        for name, (mean, low, high) in self.terms.items():
            rows |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {
            name: "logits" if name.startswith("target_logit") else self.measured_in
            for name in frame.columns
            if name.removesuffix("_low").removesuffix("_high") in self.terms
        }
        frame.attrs |= {"texts": self.texts, "positions": self.positions, "identity_gap": self.identity_gap}
        frame.attrs |= {"loss": self.losses.tolist(), "soft_cap": self.soft_cap}
        frame.attrs["intervals"] = interval_note(self.texts, "texts")
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
    """The same, averaged over the tokens of any number of texts, keeping running sums only.

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
    reading.refuse_tables(texts, "texts")
    ordered("texts", texts, "an iterable of texts or of lists of token ids; for one text use profile")
    job = _job(model, unit, loss, tau, window, stride, precision, batch_tokens)
    running: dict[str, RunningMean] = {}
    losses, gaps, count = RunningMean(), _Gaps(), 0
    names: tuple[Component, ...] = ()
    for ids in _groups(job, texts):
        windows = [w for number, row in enumerate(ids) for w in _windows(job, number, len(row))]
        starts = np.cumsum([0] + [len(row) for row in ids])
        sums: dict[int, dict[str, Any]] = {}
        waiting = {number: len(row) for number, row in enumerate(ids)}
        for block in _blocks(job, ids, windows, None, starts, gaps, None):
            if names and block.components != names:
                raise InputError(f"{job.model.name} ran its layers a different number of times for different texts.")
            names = block.components
            part = job.form(
                components=names,
                token_ids=np.zeros(len(block.documents), dtype=np.int64),
                tokens=("",) * len(block.documents),
                documents=block.documents,
                contexts=np.zeros(len(block.documents), dtype=np.int64),
                identity_gap=0.0,
                absolute_gap=0.0,
                **block.sheet.columns(),
            )
            for number in map(int, np.unique(block.documents)):
                here = block.documents == number
                inside = np.flatnonzero(here & part.has_target)
                into = sums.setdefault(number, {"loss": 0.0, "count": 0})
                for name, table in part._terms(inside).items():
                    into[name] = into.get(name, 0.0) + table.sum(0)
                into["loss"] += part.losses[inside].sum()
                into["count"] += len(inside)
                waiting[number] -= int(here.sum())
                if not waiting[number]:  # the text is done: from here on it is part of the sums
                    found = sums.pop(number)
                    tokens = found.pop("count")
                    losses.add(found.pop("loss"), tokens)
                    for name, total in found.items():
                        running.setdefault(name, RunningMean()).add(total, tokens)
        count += len(ids)
    if not count:
        raise InputError("there are no texts: give at least one text or list of token ids.")
    if not losses.count:
        raise InputError(f"none of the {count} texts has a second token, so there is nothing to predict.")
    return CorpusProfile(
        components=names,
        terms={name: np.stack([mean.mean, *mean.interval()]) for name, mean in running.items()},
        losses=np.stack([losses.mean, *losses.interval()]),
        texts=count,
        positions=int(losses.count),
        measured_in=job.result.measured_in,
        identity_gap=gaps.relative,
        absolute_gap=gaps.absolute,
        vocabulary=job.reader.vocabulary.size,
        window=job.window,
        stride=job.stride,
        model=job.model.name,
        unit=unit,
        soft_cap=job.model.architecture.soft_cap,
    )


def _groups(job: _Job, texts: Iterable[Any]) -> Iterator[list[tuple[int, ...]]]:
    """Texts as they come, encoded, in groups worth a few passes."""
    group: list[tuple[int, ...]] = []
    for number, text in enumerate(texts):
        if isinstance(text, int | np.integer):
            raise InputError("a corpus holds texts, but this one holds numbers: for one list of token ids use profile.")
        try:
            (row,) = _texts(job, [text])
        except InputError as error:
            raise InputError(f"text {number} of the corpus: {error}") from error
        group.append(row)
        if sum(map(len, group)) >= 4 * job.batch_tokens:
            yield group
            group = []
    if group:
        yield group
