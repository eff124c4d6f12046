"""A study as figures: models × tasks, and the way to the figures of its analyses."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, keywords
from ...components import Unit
from ...ensemble.decomposition import NormAt
from ...studies.study import AVERAGE, QUANTITIES, Form, Study
from .. import style
from .correlations import correlation_bars
from .depth_panels import depth_panels
from .layout import arrange, beneath, beside, buttons, tilted
from .paper_figures import scaling_curve, share_bars, tradeoff_steps
from .size_panels import information_panels, size_panels

if TYPE_CHECKING:
    import pandas as pd

# Quantities with a button, and what each says; others can be asked for.
_SWITCH = ("accuracy", "MSE", "diversity", "diversity centered", "diversity_logit centered", "cross-entropy")
_MEANING = {
    "accuracy": ("%", "Right answers in percent."),
    "MSE": (
        "less uniform",
        "Squared error of probabilities (Eq. 14) in hundredths. Color: less the uniform predictor's.",
    ),
    "uniform": ("hundredths", "Squared error of the uniform predictor (Eq. 14), in hundredths."),
    "bias": ("less uniform", "Bias of probabilities (Eq. 14) in hundredths. Color: less the uniform predictor's."),
    "diversity": ("logits²", "Diversity (Theorem 1), raw as in the paper: with what softmax cannot see."),
    "diversity centered": ("logits²", "Diversity as softmax sees it, centered over the options."),
    "diversity_logit": ("logits²", "|L|² × diversity, which cuts and sizes share; raw."),
    "diversity_logit centered": (
        "logits²",
        "|L|² × diversity as softmax sees it: fair between models of different depth.",
    ),
    "cross-entropy": ("nats", "Cross-entropy over the options."),
    "entropy": ("nats", "Entropy of the model's answer over the options."),
}


def study_table_map(
    study: Study, quantity: str = "accuracy", unit: Unit = "sublayer", title: str | None = None
) -> go.Figure:
    """A map model × task of one quantity of `Study.table`, its value in every cell; buttons show another.

    Accuracy is colored from 0 to 100, MSE and bias by how far they are from the uniform predictor's (blue
    below), all others from 0 to the largest. Cells that the study lacks are empty, and so is the average of a
    model that lacks one. Raises InputError for an unknown quantity or unit.
    """
    choice("quantity", quantity, QUANTITIES)
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
    """Colors, texts and hovers of one quantity."""
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


def _draw(function: Callable[..., go.Figure], numbers: Any, options: dict[str, Any]) -> go.Figure:
    """The figure, after its options are held against its annotations, as `figure` does."""
    keywords(function, options)
    return function(numbers, **options)


def _correlations(
    study: Study, unit: Unit = "sublayer", n_resamples: int = 1000, seed: int = 0, **options: Any
) -> go.Figure:
    """`correlation_bars` of a study."""
    return _draw(correlation_bars, study.correlations(unit, n_resamples, seed), options)


def _curves(study: Study, unit: Unit = "sublayer", norm: NormAt = "frozen", **options: Any) -> go.Figure:
    """`depth_panels` of a study."""
    return _draw(depth_panels, study.curves(unit, norm), options)


def _shares(study: Study, unit: Unit = "sublayer", form: Form = "squared", **options: Any) -> go.Figure:
    """`share_bars` of a study, its models in the study's order."""
    order = {"models": list(dict.fromkeys(study.metrics.loc[study.metrics["unit"] == unit, "model"]))}
    return _draw(share_bars, study.shares(unit, form), order | options)


def _scaling(
    study: Study,
    unit: Unit = "sublayer",
    quantity: str = "accuracy",
    least_parameters: float = 0.0,
    **options: Any,
) -> go.Figure:
    """`scaling_curve` of a study."""
    fit = study.scaling(quantity, unit, least_parameters)
    means = study.table(unit)[quantity][AVERAGE].dropna()
    large = study.models(unit).query("parameters >= @least_parameters")["model"]
    titles = {
        "names": [name for name in means.index if name in set(large)],
        # Differences from the uniform predictor are colors of the map only.
        "y_title": f"{quantity}, mean over tasks ({_MEANING[quantity][0].replace('less uniform', 'hundredths')})",
    }
    return _draw(scaling_curve, fit, titles | options)


def _tradeoff(
    study: Study, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0, **options: Any
) -> go.Figure:
    """`tradeoff_steps` of a study."""
    return _draw(tradeoff_steps, study.tradeoff_signs(unit, still, n_resamples, seed), options)


def _information(
    study: Study, estimator: str = "gaussian", unit: Unit = "sublayer", title: str | None = None, **options: Any
) -> go.Figure:
    """`information_panels` of a study; options are those of `Study.information`, and `against`."""
    against = options.pop("against", "members")
    return information_panels(study.information(estimator, unit, **options), study.models(unit), against, title)


# What can be drawn of a study; each takes the options of its analysis and of its figure function.
STUDY_KINDS: dict[str, Callable[..., go.Figure]] = {
    "table": study_table_map,
    "correlations": _correlations,
    "curves": _curves,
    "shares": _shares,
    "scaling": _scaling,
    "tradeoff": _tradeoff,
    "size": size_panels,
    "information": _information,
}
