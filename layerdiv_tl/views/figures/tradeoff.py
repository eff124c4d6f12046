"""Theorem 3, the terms that bias and diversity share, and how often both move together along depth (Section 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...components import Unit
from ...ensemble.decomposition import Decomposition
from ...ensemble.intervals import ENDS, LEAST
from .. import axes, kit, layout, style
from .ensemble import gauge_note, rows_note
from .study import counted

if TYPE_CHECKING:
    from ...replication.tradeoff import TradeOff
    from ...studies.study import Study


def tradeoff_bars(decomposition: Decomposition) -> go.Figure:
    """Draw the summands of bias and of diversity side by side, and their sums (Theorem 3, `tradeoff`).

    The shaded rows, Ω, are part of both sums. Raises InputError for a loss other than the squared error.
    """
    frame, total = decomposition.tradeoff(), decomposition.frame().iloc[0]
    sums = {term + end: total[term + end] for term in ("bias", "diversity") for end in ENDS}
    rows = pd.concat([frame, pd.DataFrame([{"term": "sum", **sums}])], ignore_index=True)
    rows = rows.rename(columns={"term": "component"})
    rows.attrs, count, figure = frame.attrs, len(frame), go.Figure()
    for term, side in (("bias", -0.19), ("diversity", 0.19)):
        look: dict[str, Any] = {"shape": "across", "width": 0.36, "name": term}
        figure.add_trace(kit.trace(rows, term, np.arange(count + 1) + side, style.TERM[term], **look))
    shared = np.flatnonzero(frame["term"].str.contains("Ω"))
    shade = {"fillcolor": style.faint(style.NEUTRAL), "line_width": 0, "layer": "below"}
    figure.add_hrect(y0=shared.min() - 0.5, y1=shared.max() + 0.5, **shade)
    figure.add_hline(y=count - 0.5, line={"width": 1})
    names = [*(f"{row.term}\n{row.formula}" for row in frame.itertuples()), "sum"]
    y = axes.ticks(range(count + 1), names) | {"range": [count + 0.5, -0.5]}
    title = f"Terms of bias and diversity, Theorem 3{gauge_note(decomposition)}"
    about = f"{rows_note(decomposition)} Shaded: Ω, part of both. {kit.intervals(frame)}"
    return layout.finish(figure, title, about, x=frame.attrs["units"]["bias"], y=y, plot=380, barmode="overlay")


def tradeoff_of(
    study: Study, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0
) -> go.Figure:
    """Draw the share of steps in which bias and diversity move together, by what accuracy does (Section 5.4)."""
    figure = tradeoff_steps(study.tradeoff_signs(unit, still, n_resamples, seed))
    tasks = ", ".join(dict.fromkeys(study.metrics["task"]))
    remark = (
        f"Bias and diversity of the prefix ensembles, centered over the options, on {tasks}. {counted(study, unit)}"
    )
    return layout.retitle(figure, remark=remark)


def tradeoff_steps(tradeoff: TradeOff) -> go.Figure:
    """Draw the share of steps in which bias and diversity move together, by what accuracy does (Section 5.4).

    Whiskers are Wilson's, which take steps for independent; the subtitle's interval is over models.
    """
    frame = tradeoff.frame().rename(columns={"low": "share_low", "high": "share_high"})
    frame = frame.assign(component="accuracy " + frame["accuracy"])
    rows: list[Any] = list(frame.itertuples())
    counts = [f"together {r.same_sign}, apart {r.opposite_sign}, one does not move {r.unchanged}" for r in rows]
    over = f"No interval of their difference: that needs {LEAST} models, not counting other seeds of one (here: "
    over += f"{tradeoff.models})"
    if np.isfinite(tradeoff.low):
        ends = style.interval(tradeoff.low, tradeoff.high)
        over = f"Their difference has the interval {ends} over {tradeoff.models} models"
    together, either = frame["same_sign"], frame["same_sign"] + frame["opposite_sign"]
    stands = frame["accuracy"] == "still"
    still, moving = (style.percent(together[at].sum() / max(1, either[at].sum())) for at in (stands, ~stands))
    title = f"Bias and diversity move together in {still} of steps where accuracy stands still, in {moving} where it "
    title += "moves (not tested)"
    if not np.isfinite(tradeoff.difference):
        title = "Bias and diversity: there are no steps to compare"
    null = "Not tested: too few models have the same depth"
    if np.isfinite(tradeoff.p):
        ends = style.interval(tradeoff.null_low, tradeoff.null_high)
        null = (
            f"With another model's bias and diversity, {100 * tradeoff.confidence_level:g} % of the differences lie in "
        )
        null += f"{ends}, "
        null += style.p_value(tradeoff.p)
        share = style.percent(together.sum() / max(1, either.sum()))
        title = f"Bias and diversity move together in {share} of the steps, whatever accuracy does"
        if tradeoff.p < style.SIGNIFICANT and not tradeoff.low <= 0 <= tradeoff.high:
            more = "more" if tradeoff.difference > 0 else "less"
            title = f"Bias and diversity move together {more} often where accuracy stands still"
        size = (
            style.estimate(tradeoff.difference, tradeoff.low, tradeoff.high, gap=", ").replace("(", "").replace(")", "")
        )
        title += f" (difference {size}, {style.p_value(tradeoff.p)})"
    subtitle = f"{over}. {null}. Section 5.4 of arXiv 2505.24009 claims that the share is larger where "
    subtitle += "accuracy stands still. Whiskers: Wilson's intervals, which treat steps as independent."
    x = axes.ticks(range(len(rows)), [f"{r.accuracy}\n{r.same_sign + r.opposite_sign} steps" for r in rows])
    x |= {"title_text": "accuracy, from junction to junction"}
    y = axes.share_axis(1.0) | {"title_text": "share of steps: both up or both down"}
    texts = kit.hover(frame, ["share"], counts)
    bars = kit.trace(frame, frame.index, "share", style.SERIES[0], texts, shape="bars", width=0.5)
    return layout.finish(bars, title, subtitle, x=x, y=y)
