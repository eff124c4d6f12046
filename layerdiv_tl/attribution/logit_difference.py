"""`LogitDifference`: the components' terms of one answer's logit minus another's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..components import Component, component_columns
from ..ensemble.intervals import estimate, estimates_frame
from ..ensemble.losses import hits
from ..results import Plot, Result

Score = Literal["logits", "log_likelihood"]


# Columns of every frame with a row per component, and the ends of the difference's interval.
_COLUMNS = ("component", "kind", "module", "layer", "index", "repeat", "difference_low", "difference_high")


def _leading_frame(difference: LogitDifference, most: int = 24) -> pd.DataFrame:
    """The total, and the `most` components with the largest mean difference."""
    frame = difference.frame()
    total = estimate(difference.total).columns("difference") | {"component": "total", "module": "total"}
    order = frame["difference"].abs().sort_values(ascending=False, kind="stable").index[:most]
    rows = pd.concat([pd.DataFrame([total]), frame.loc[order]], ignore_index=True)
    rows.attrs = frame.attrs
    return rows


@dataclass(frozen=True, eq=False)
class LogitDifference(Result):
    """Contributions to one answer's logit minus another's: Σ over components = the logit difference.

    Attributes:
        values: float64 `[example, component]`: contributions to the first answer minus those to the second, in logits;
            for answers of several tokens the difference of their log-likelihoods, in nats.
        model_difference: float64 `[example]`, the model's own, after any `soft_cap`.
        pairs, names: The two answers, or the two of every example; and the names of the columns that they came from.
        sides: float64 `[example, component, 2]`: contributions to either answer, whose difference is `values`. Logits
            are relative to the component's mean over the vocabulary, the only zero that is invariant to constants;
            log-likelihoods need none. None where neither is known (`Contributions.vocabulary_means`).
        identity_gap, absolute_gap, complete, soft_cap, score, model, unit, task, prompt_ends: As in
            `Contributions`.
    """

    values: Float[np.ndarray, "example component"]
    sides: Float[np.ndarray, "example component 2"] | None
    components: tuple[Component, ...]
    model_difference: Float[np.ndarray, " example"]
    pairs: tuple[Any, ...]
    identity_gap: float
    absolute_gap: float
    complete: bool
    soft_cap: float | None
    score: Score
    model: str
    unit: str
    task: str = ""
    prompt_ends: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def total(self) -> Float[np.ndarray, " example"]:
        """The sum over the components here."""
        return self.values.sum(1)

    @property
    def positive(self) -> Float[np.ndarray, " example"]:
        """The sum over the components that raise the first answer over the second. `positive + negative` is `total`."""
        return np.maximum(self.values, 0.0).sum(1)

    @property
    def negative(self) -> Float[np.ndarray, " example"]:
        """The sum over the components that raise the second answer over the first."""
        return np.minimum(self.values, 0.0).sum(1)

    @property
    def mean(self) -> Float[np.ndarray, " component"]:
        """The mean difference of each component over examples."""
        return self.values.mean(0)

    @property
    def accuracy(self) -> float:
        """The share of examples where the model prefers the first answer; ties count half."""
        return float(hits(np.stack([self.model_difference, 0 * self.model_difference], 1), np.zeros(1, int)).mean())

    figures: ClassVar = {
        "bars": Plot(
            "Contributions to the difference",
            "The sum over all components, and the components with the largest mean contribution.",
            "special.across",
            _leading_frame,
            {"column": "difference", "rule": 1},
        ),
        "heads": Plot(
            "Contribution of every head and MLP",
            "A map head × layer of mean contributions, the MLPs as its last row.",
            "special.heads",
            "frame",
            {"value": "difference"},
        ),
    }

    def _plots(self) -> Mapping[str, Plot]:
        """Heads have their map first."""
        if any(c.kind == "head" for c in self.components):
            return {"heads": self.figures["heads"], "bars": self.figures["bars"]}
        return {"bars": self.figures["bars"]}

    def frame(self) -> pd.DataFrame:
        """One row per component: its mean difference, the means of its positive and negative values, and its `sides`.

        The columns of `sides` have the names of the columns that the answers came from; `first` and `second` where
        there are none, or where these would be a second column of one name.

        `attrs` holds the same three for the sum of all components (not shares: signed terms may be larger than their
        sum), and the model's accuracy.
        """
        parts = {
            "difference": self.values,
            "positive": np.maximum(self.values, 0),
            "negative": np.minimum(self.values, 0),
        }
        columns = {"difference": estimate(self.values)}
        columns |= {name: parts[name].mean(0) for name in ("positive", "negative")}
        if self.sides is not None:
            is_free = len({*self.names} - {*columns, *_COLUMNS}) == 2
            columns |= dict(zip(self.names if is_free else ("first", "second"), self.sides.mean(0).T, strict=True))
        units = dict.fromkeys(columns, "logits" if self.score == "logits" else "nats")
        frame = estimates_frame(component_columns(self.components) | columns, units)
        totals = {name: x.sum(1).mean() for name, x in parts.items()}
        totals |= estimate(self.total).columns("difference")
        frame.attrs |= {name: float(x) for name, x in totals.items()}
        frame.attrs["answers"] = self._answers if isinstance(self.pairs[0], str) or self.names else ""
        frame.attrs |= {"accuracy": self.accuracy, "identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame

    @property
    def _answers(self) -> str:
        """What is subtracted from what."""
        first, second = self.pairs if isinstance(self.pairs[0], str) else self.names or ("first", "second")
        return f"{first!r} − {second!r}"

    def __repr__(self) -> str:
        n = len(self.values)
        most, unit = int(np.abs(self.mean).argmax()), "logits" if self.score == "logits" else "nats"
        over = "" if n == 1 else f", mean over {n} examples (the first is preferred in {self.accuracy:.0%})"
        whole = f"{self._answers} = {self.total.mean():.3g} {unit}{over}"
        return (
            f"LogitDifference({self.model}: {whole}; most from {self.components[most].label}, {self.mean[most]:+.3g})"
        )
