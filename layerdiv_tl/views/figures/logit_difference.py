"""What raises one answer above another, and what it does to either."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.intervals import mean_interval
from .. import plotting as kit
from .. import style
from ..html import quoted

if TYPE_CHECKING:
    from ...attribution.contribution_results import LogitDifference


# The marks of the two sides.
SIDES = style.SERIES[1], style.SERIES[0]


@figure_of("bars", "LogitDifference")
def difference_bars(difference: LogitDifference, max_components: int = 24) -> go.Figure:
    """The sums of all positive and of all negative contributions, and the components with the largest difference.

    Bars are means over examples, whiskers their 95 % intervals. Positive and negative contributions stand apart: a
    share of their sum would mean nothing. Marks are a difference's two sides (`LogitDifference.sides`): a component may
    raise the difference because it lowers the second answer.
    """
    frame = difference.frame()
    unit = frame.attrs["units"]["difference"]
    kept = kit.largest(frame["difference"].to_numpy(), max_components)
    kept = kept[np.argsort(-np.abs(frame["difference"].to_numpy()[kept]), kind="stable")]
    shown, components = frame.iloc[kept], [difference.components[i] for i in kept]
    shown.attrs |= frame.attrs
    sums = {"all that is positive": difference.positive, "all that is negative": difference.negative}
    sums["their sum"] = difference.total
    ends = [mean_interval(values) for values in sums.values()]
    means, (low, high) = [float(x.mean()) for x in sums.values()], np.array(ends).T
    hover = [
        f"<b>{name}</b><br>{style.measured(mean, a, b, unit=unit)}"
        for name, mean, a, b in zip(sums, means, low, high, strict=True)
    ]
    first = len(sums)
    bars = [kit.bar(means, np.arange(first), style.NEUTRAL, across=True, hover=hover)]
    bars[0].update(error_x=kit.error_bars(means, low, high, color=None))

    def across(places: np.ndarray, values: np.ndarray, **options: Any) -> go.Bar:
        return kit.bar(values, places, across=True, **options)

    bars += kit.module_traces(
        components,
        shown["difference"],
        kit.hovers(shown, "difference"),
        x=first + np.arange(len(kept)),
        draw=across,
        error=kit.whiskers(shown, "difference"),
    )
    pair = difference.pairs if isinstance(difference.pairs[0], str) else None
    of = f"{pair[0]!r} − {pair[1]!r}" if pair else f"two answers each of {len(difference.values)} prompts"
    subtitle = f"{of}; the model prefers the first in {difference.accuracy:.0%} of {len(difference.values)} examples. "
    if len(kept) < len(frame):
        subtitle += f"The {len(kept)} largest of {len(frame):,} components. "
    subtitle += kit.whiskered(frame)
    if difference.sides is not None:
        names = [quoted(answer) for answer in pair] if pair else ["the first answer", "the second answer"]
        rows = [first - 1, *(first + np.arange(len(kept)))]
        for column, name, symbol, color in zip((0, 1), names, ("circle", "diamond"), SIDES, strict=True):
            values = [difference.sides[:, :, column].sum(1).mean(), *difference.sides[:, kept, column].mean(0)]
            told = [f"{x:+.3g} {unit} to {html.escape(name)}" for x in values]
            look: dict[str, Any] = {"symbol": symbol, "size": 8, "edge": 1, "name": f"to {html.escape(name)}"}
            bars.append(kit.dots(values, rows, color, hover=told, **look))
        zero = "relative to the mean over the vocabulary" if difference.score == "logits" else "in its log-likelihood"
        subtitle += f" Marks: what is added to either answer, {zero}."
    y = kit.named_rows([*sums, *(c.label for c in components)])
    what = "Logit difference" if difference.score == "logits" else "Difference of log-likelihoods"
    figure = kit.arrange(
        go.Figure(bars),
        f"{what}, component by component",
        subtitle,
        x={"title_text": html.escape(f"mean contribution, {unit}"), "zeroline": True},
        y=y,
        plot=40 + 20 * (first + len(kept)),
        barmode="overlay",
    )
    return figure.add_hline(y=first - 0.5, line=kit.DOTTED)
