"""The test of regimes beside planted networks; and when predictions settle, and what is guessed before."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...depth.ensemble_results import EnsembleTest
    from ...depth.guessing import Guesses
    from ...depth.settling import DeepThinking

# What is drawn of a test, in this order, and what it is called there.
_SHOWN = {
    "kappa": "κ",
    "gain": "gain of the members' writes",
    "repeat": "one in place of its part",
    "reverse": "reverse order",
    "shuffle": "random order",
    "parallel": "side by side",
    "keep_half": "half kept, rescaled",
    "rescaled_to_dropped": "rescaled ÷ dropped",
    "direct_share": "direct share of a skip",
    "icc": "mean correlation",
    "far_correlation": "correlation, far apart",
    "neighbor_cosine": "cosine of neighbors",
    "corrections": "neighbors that oppose",
}
_REGIMES = ("averaging", "copies", "slices", "flow", "composition")
_LEAST, _MOST = -0.6, 2.2


@figure_of("dots", "EnsembleTest", default=True)
def regime_dots(test: EnsembleTest) -> go.Figure:
    """Every statistic with its 95 % interval, beside the middle 90 % of planted networks of each regime."""
    frame, beside = test.frame().set_index("statistic"), test.beside_planted()
    names = [name for name in _SHOWN if name in frame.index and np.isfinite(test.statistics[name][0])]
    figure = go.Figure()
    for number, regime in enumerate(_REGIMES):
        rows = beside[beside["regime"] == regime].set_index("statistic")
        kept = [name for name in names if name in rows.index]
        ends = ["planted", "planted_low", "planted_high"]
        median, low, high = (rows.loc[kept, column].clip(_LEAST, _MOST) for column in ends)
        y = [names.index(name) + 0.1 + 0.14 * (number - 1) for name in kept]
        values = rows.loc[kept, ends].itertuples(index=False)
        hover = [f"{regime}<br>{_SHOWN[n]} {kit.estimated(*v)}" for n, v in zip(kept, values, strict=True)]
        error = kit.error_bars(median, low, high, thickness=2, width=0)
        color = style.SERIES[number % len(style.SERIES)]
        named: dict[str, Any] = {"hover": hover, "error": error, "name": f"planted: {regime}"}
        figure.add_trace(kit.dots(median, y, color, size=6, across=True, **named))
    shown = frame.loc[names]
    hover = [
        f"<b>{html.escape(test.model)}</b><br>{_SHOWN[n]} {kit.estimated(*v)}"
        for n, v in zip(names, shown[["value", "value_low", "value_high"]].itertuples(index=False), strict=True)
    ]
    error = kit.error_bars(*(shown[c].clip(_LEAST, _MOST) for c in ("value", "value_low", "value_high")), width=5)
    y = [i - 0.22 for i in range(len(names))]
    own = kit.dots(
        shown["value"].clip(_LEAST, _MOST),
        y,
        style.MODULE["layer"],
        size=11,
        symbol="diamond",
        across=True,
        hover=hover,
        error=error,
        name=html.escape(test.model),
    )
    figure.add_trace(own)
    figure.add_vline(x=0, line={"color": style.NEUTRAL, "width": 1})
    figure.add_vline(x=1, line={"color": style.NEUTRAL, "width": 1, "dash": "dot"})
    subtitle = (
        f"Verdict: {test.verdict.word}. Costs are shares of what leaving the group out costs; what is past the "
        "axis stands at its end."
    )
    x = {"title_text": "statistic", "range": [_LEAST, _MOST + 0.06]}
    y_axis = kit.named_rows([_SHOWN[name] for name in names])
    title = f"Do the layers of {test.model} average?"
    return kit.arrange(figure, title, subtitle, x=x, y=y_axis, plot=42 * len(names))


@figure_of("lines", "DeepThinking", default=True)
def settling_lines(found: DeepThinking) -> go.Figure:
    """The share of tokens whose prediction has settled after every layer, beside a lens of other tokens."""
    frame = found.frame()
    x = np.arange(len(frame))
    figure = go.Figure()
    for column, name, color, dash in (
        ("settled", "settled once", style.SERIES[0], "solid"),
        ("settled_for_good", "settled for good", style.SERIES[1], "solid"),
        ("settled_shuffled", "other tokens' lens", style.NEUTRAL, "dot"),
    ):
        if np.isfinite(frame[f"{column}_low"]).all():
            figure.add_trace(kit.band(x, frame[f"{column}_low"], frame[f"{column}_high"], color))
        hover = kit.hover_lines(frame, {name: column})
        figure.add_trace(kit.line(x, frame[column], color, dash=dash, hover=hover, name=name))
    first = found.ratio().to_dict("records")[0]
    share = kit.estimated(*(first[name] for name in ("ratio", "ratio_low", "ratio_high")))
    subtitle = (
        f"Within {found.threshold:g} bits of the model's prediction. Deep-thinking ratio {share}, with other tokens' "
        f"lens {style.number(first['shuffled'])}. {kit.whiskered(frame, 'Bands')}"
    )
    y = {"title_text": "share of tokens", "range": [0, 1.02]}
    title = f"After which layer do predictions of {found.model} settle?"
    return kit.arrange(figure, title, subtitle, x=kit.component_axis(found.components, edge=0.5), y=y, plot=320)


@figure_of("lines", "Guesses", default=True)
def guess_lines(found: Guesses) -> go.Figure:
    """The share of guesses after every layer that are among the most frequent tokens, by bucket of frequency."""
    frame, figure = found.frame(), go.Figure()
    for number, bucket in enumerate(frame["bucket"].unique()):
        rows = frame[frame["bucket"] == bucket]
        x, color = np.arange(len(rows)), style.SERIES[number % len(style.SERIES)]
        if np.isfinite(rows["share_low"]).all():
            figure.add_trace(kit.band(x, rows["share_low"], rows["share_high"], color))
        hover = kit.hover_lines(rows, {f"rank {bucket}": "share", "replaced later": "flips"})
        figure.add_trace(kit.line(x, rows["share"], color, hover=hover, name=f"rank {bucket}"))
    subtitle = f"Ranks of tokens by frequency, counted in {found.counted}. {kit.whiskered(frame, 'Bands')}"
    y = {"title_text": "share of guesses", "range": [0, 1.02]}
    title = f"How frequent are the tokens that {found.model} would predict after each layer?"
    return kit.arrange(figure, title, subtitle, x=kit.component_axis(found.components, edge=0.5), y=y, plot=320)
