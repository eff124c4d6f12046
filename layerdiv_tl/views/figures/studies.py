"""A study as figures: models × tasks, and the way to the figures of its analyses."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ...components import Unit
from ...errors import InputError
from ...studies.study import AVERAGE, QUANTITIES, Study
from .. import style
from .claims import scaling_curve, share_bars, tradeoff_steps
from .correlations import correlation_bars
from .curves import depth_panels
from .layout import arrange, beneath, beside, buttons, tilted

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("table", "correlations", "curves", "shares", "scaling", "tradeoff")
# Quantities with a button, and what each says; others can be asked for.
_SWITCH = ("accuracy", "MSE", "diversity", "diversity centred", "diversity_logit centred", "cross-entropy")
_MEANING = {
    "accuracy": ("%", "Right answers in percent."),
    "MSE": (
        "less uniform",
        "Squared error of probabilities (Eq. 14) in hundredths. Colour: less the uniform predictor's.",
    ),
    "uniform": ("hundredths", "Squared error of the uniform predictor (Eq. 14), in hundredths."),
    "bias": ("less uniform", "Bias of probabilities (Eq. 14) in hundredths. Colour: less the uniform predictor's."),
    "diversity": ("logits²", "Diversity (Theorem 1), raw as in the paper: with what softmax cannot see."),
    "diversity centred": ("logits²", "Diversity as softmax sees it, centred over the options."),
    "diversity_logit": ("logits²", "|L|² × diversity, which cuts and sizes share; raw."),
    "diversity_logit centred": (
        "logits²",
        "|L|² × diversity as softmax sees it: fair between models of different depth.",
    ),
    "cross-entropy": ("nats", "Cross-entropy over the options."),
    "entropy": ("nats", "Entropy of the model's answer over the options."),
}


def study_figure(study: Study, kind: str = "table", unit: Unit = "sublayer", **options: Any) -> go.Figure:
    """The figure of a study's analysis; `options` are those of the analysis and of its figure function.

    kind
        "table" (`study_table_map`), "correlations" (`correlation_bars`), "curves" (`depth_panels`),
        "shares" (`share_bars`), "scaling" (`scaling_curve`), "tradeoff" (`tradeoff_steps`).

    Raises InputError for an unknown kind, and what the analysis raises.
    """

    def taken(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    match kind:
        case "table":
            return study_table_map(study, unit=unit, **options)
        case "correlations":
            return correlation_bars(study.correlations(unit, **taken("draws", "seed")), **options)
        case "curves":
            return depth_panels(study.curves(unit, **taken("norm")), **options)
        case "shares":
            order = {"models": list(dict.fromkeys(study.metrics.loc[study.metrics["unit"] == unit, "model"]))}
            return share_bars(study.shares(unit, **taken("form")), **order | options)
        case "scaling":
            quantity = options.pop("quantity", "accuracy")
            fit = study.scaling(quantity, unit)
            names = study.table(unit)[quantity][AVERAGE].dropna().index.tolist()
            titles = {"names": names, "y_title": f"{quantity}, mean over tasks ({_MEANING[quantity][0]})"}
            return scaling_curve(fit, **titles | options)
        case "tradeoff":
            return tradeoff_steps(study.tradeoff(unit, **taken("still", "draws", "seed")), **options)
    raise InputError(f"kind={kind!r} is unknown: use {', '.join(map(repr, KINDS))}.")


def study_table_map(
    study: Study, quantity: str = "accuracy", unit: Unit = "sublayer", title: str | None = None
) -> go.Figure:
    """A map model × task of one quantity of `Study.table`, its value in every cell; buttons show another.

    Accuracy is coloured from 0 to 100, MSE and bias by how far they are from the uniform predictor's (blue
    below), all others from 0 to the largest. Cells that the study lacks are empty, and so is the average of a
    model that lacks one. Raises InputError for an unknown quantity or unit.
    """
    if quantity not in QUANTITIES:
        raise InputError(f"quantity={quantity!r} is unknown: use {', '.join(map(repr, QUANTITIES))}.")
    table, texts = study.table(unit), study.table(unit, intervals=True)
    tasks, models = list(table[quantity].columns), list(table.index)
    shown = _SWITCH if quantity in _SWITCH else (quantity, *_SWITCH)
    cells = {one: _cells(table, texts, one) for one in shown}
    at = [*range(len(tasks) - 1), len(tasks) - 0.8]
    figure = go.Figure(
        go.Heatmap(
            x=at,
            y=list(range(len(models))),
            autocolorscale=True,
            texttemplate="%{text}",
            hoverinfo="text",
            xgap=2,
            ygap=2,
            **cells[quantity],
        )
    )
    entries = []
    for one in shown:
        new, bar = dict(cells[one]), cells[one]["colorbar"]
        del new["colorbar"]
        update = {key: [value] for key, value in new.items()} | {"colorbar.title.text": bar["title"]["text"]}
        entries.append(
            {"label": one, "method": "update", "args": [update, {"title.subtitle.text": html.escape(_MEANING[one][1])}]}
        )
    arrange(
        figure,
        title or "Models and tasks",
        _MEANING[quantity][1],
        plot=max(120, 34 * len(models)),
        below=48 + tilted(tasks),
        menus=[buttons(entries, shown.index(quantity))],
    )
    figure.update_xaxes(**beneath(tasks, at))
    figure.layout.xaxis.ticktext = (*figure.layout.xaxis.ticktext[:-1], f"<b>{AVERAGE}</b>")
    return figure.update_yaxes(**beside(models), autorange="reversed")


def _cells(table: pd.DataFrame, texts: pd.DataFrame, quantity: str) -> dict[str, Any]:
    """Colours, texts and hovers of one quantity."""
    values = table[quantity].to_numpy(dtype=float)
    signed = _MEANING[quantity][0] == "less uniform"
    uniform = table["uniform"].to_numpy(dtype=float)
    z = values - uniform if signed else values
    most = 100.0 if quantity == "accuracy" else float(np.nanmax(np.abs(z), initial=0.0)) or 1.0
    hover = [
        [
            f"<b>{html.escape(model)}</b><br>{html.escape(task)}<br>{quantity} {said}"
            + (f"<br>uniform {style.number(least)}" if signed else "")
            for task, said, least in zip(table[quantity].columns, row, uniform_row, strict=True)
        ]
        for model, row, uniform_row in zip(table.index, texts[quantity].to_numpy(), uniform, strict=True)
    ]
    return {
        "z": z,
        "text": [[f"{v:.4g}" if np.isfinite(v) else "" for v in row] for row in values],
        "hovertext": hover,
        "zmin": -most if signed else 0.0,
        "zmax": most,
        "colorbar": {
            "title": {"text": _MEANING[quantity][0], "side": "right", "font": {"size": 12}},
            "thickness": 12,
            "outlinewidth": 0,
        },
    }
