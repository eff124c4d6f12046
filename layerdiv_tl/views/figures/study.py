"""Figures of a study: models × tasks, against size, and the paper's claims over models (Fig. 3, 4 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, listed, some_of, text
from ...components import Unit
from ...ensemble.intervals import LEAST
from ...errors import InputError
from ...replication.correlation import AGGREGATIONS, AVERAGE, COEFFICIENTS, Aggregation
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...ensemble.fits import LogFit
    from ...replication.tradeoff import TradeOff
    from ...studies.study import Study

# {quantity of `Study.table`: (unit, reference of its colors, description)}.
QUANTITIES = {
    "accuracy": ("%", "", "Right answers."),
    "logit difference": ("logits", "", "Logit of the right option minus the mean of the others; nats for sequences."),
    "MSE": ("hundredths", "uniform", "Squared error of probabilities (Eq. 14)."),
    "uniform": ("hundredths", "", "Squared error of the uniform predictor (Eq. 14)."),
    "bias": ("hundredths", "uniform", "Bias of probabilities (Eq. 14)."),
    "diversity": ("logits²", "", "Diversity (Theorem 1), raw as in the paper."),
    "diversity centered": ("logits²", "", "Diversity, centered over the options."),
    "diversity_logit": ("logits²", "", "|L|² × diversity, raw, which cuts and sizes share."),
    "diversity_logit centered": ("logits²", "", "|L|² × diversity, centered: fair between models of different depth."),
    "cross-entropy": ("nats", "", "Cross-entropy over the options."),
    "entropy": ("nats", "", "Entropy of the model's answer over the options."),
}
# Quantities in the menu; others are available as an option.
_MENU = ("accuracy", "logit difference", "cross-entropy", "MSE", "diversity", "diversity_logit centered")
_AGGREGATIONS = {"pooled": "pooled", "per_model": "mean over models", "final": "last junction"}
_METRICS = {
    "mse": "MSE",
    "bias": "bias",
    "bias_centered": "bias, centered",
    "diversity": "diversity",
    "diversity_centered": "diversity, centered",
    "cross_entropy": "cross-entropy",
}
# The last junction has no depth that all models could share: Student's test over models is right.
_TEST = {"pooled": "p_permutation", "per_model": "p_permutation", "final": "p_t"}
_GUESSING = "guessing evenly"


def table_map(study: Study, quantity: str = "accuracy", unit: Unit = "sublayer") -> go.Figure:
    """Draw a map model × task of one quantity of `Study.table`, its value in every cell; a menu shows another.

    Accuracy is colored from 0 to 100, MSE and bias relative to the uniform predictor, logit differences around 0, all
    others from 0 to the maximum. Missing cells are empty, and so is the average of a model with missing cells. The last
    row is the uniform predictor.
    """
    choice("quantity", quantity, QUANTITIES)
    table, texts = _with_guessing(study, unit)
    names = _MENU if quantity in _MENU else (quantity, *_MENU)
    return layout.choose(
        {name: _cells(table, texts, name) for name in names}, quantity, type="dropdown", direction="down"
    )


def _with_guessing(study: Study, unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `Study.table` as numbers and as texts, with a last row for the uniform predictor."""
    from ...studies.tables import AVERAGE

    table, texts = study.table(unit), study.table(unit, intervals=True)
    chance = study.summary(unit).groupby("task")["chance"].mean()
    even = {"accuracy": 100 * chance, "logit difference": 0 * chance, "cross-entropy": -np.log(chance)}
    even = {name: pd.concat([values, pd.Series({AVERAGE: values.mean()})]) for name, values in even.items()}
    even |= dict.fromkeys(("MSE", "uniform", "bias"), table["uniform"].max())
    columns: list[Any] = table.columns.to_list()
    row = [even[quantity].get(task, np.nan) if quantity in even else np.nan for quantity, task in columns]
    table.loc[_GUESSING] = row
    texts.loc[_GUESSING] = [f"{value:.4g}" if np.isfinite(value) else "" for value in row]
    return table, texts


def _cells(table: pd.DataFrame, texts: pd.DataFrame, quantity: str) -> go.Figure:
    """Draw the map of one quantity, with numbers in the cells."""
    values, uniform = (table[name].to_numpy(dtype=float) for name in (quantity, "uniform"))
    unit, relative, about = QUANTITIES[quantity]
    *tasks, average = table[quantity].columns
    z, written = (
        values - uniform if relative else values,
        np.where(np.isfinite(values), np.vectorize("{:.4g}".format)(values), ""),
    )
    told = kit.hovers(list(table.index), [*tasks, average], values, unit)
    told = (
        np.array([[text.rpartition("\n")[0] for text in row] for row in told])
        + ("\n" + quantity + " ")
        + texts[quantity].to_numpy(str)
    )
    told = told + (f"\nuniform {np.nanmax(uniform):.3g}" if relative else "")
    x, limit = [*range(len(tasks)), len(tasks) + 0.2], 100.0 if quantity == "accuracy" else kit.robust_limit(z, 1.0)
    look: dict[str, Any] = {"x": x, "text": written, "texttemplate": "%{text}", "xgap": 2, "ygap": 2}
    color, signed = f"{unit}, minus uniform" if relative else unit, bool(relative) or unit == "logits"
    known = table[quantity][average].drop(_GUESSING).dropna()
    title = f"{quantity[0].upper()}{quantity[1:]} of {len(table) - 1} models on {len(tasks)} tasks"
    if len(known):
        title += f": from {known.min():.4g} to {known.max():.4g} {unit} on average"
    figure, y = go.Figure(kit.heat(z, told, color, limit, signed=signed, **look)), axes.named_rows(list(table.index))
    plot = max(120, 34 * len(table))
    return layout.finish(figure, title, about, x=axes.named_columns([*tasks, average], x), y=y, plot=plot, below=70)


def correlation_bars(
    study: Study,
    unit: Unit = "sublayer",
    n_resamples: int = 1000,
    seed: int = 0,
    aggregation: Aggregation = "pooled",
    metrics: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the correlation of every metric with accuracy, by task and on average: Pearson, then Spearman (Fig. 3).

    r is that of sign × metric, so that up is as expected. Buttons show the aggregations, `aggregation` first. `metrics`
    None takes the paper's three, the centered ones, and cross-entropy. A bar is full where `p_permutation` (`p_t` for
    "final", which has no depth) is below 0.05, hollow where it is not, hatched where there is no test. Raises
    InputError for metrics that the study lacks.
    """
    table = study.correlations(unit, n_resamples, seed)
    present = list(dict.fromkeys(table["metric"]))
    chosen = [name for name in _METRICS if name in present] or present
    chosen = chosen if metrics is None else some_of("metrics", metrics, present)
    table = table.rename(columns={"low": "r_low", "high": "r_high"})
    tasks = list(dict.fromkeys(table["task"]))
    x = np.array([place + 0.3 * (task == AVERAGE) for place, task in enumerate(tasks)])
    whiskers = (
        "Whiskers: 95 % intervals over models."
        if np.isfinite(table["r_low"]).any()
        else (f"No whiskers: {table['models'].max():.0f} of {LEAST} models that an interval needs.")
    )
    views, y = {}, {"range": [-1.05, 1.05]}
    ticks = axes.named_columns(tasks, x) | {"range": [-0.6, x[-1] + 0.6]}
    subtitle = (
        f"Full: p < {style.SIGNIFICANT}; hollow: p ≥ {style.SIGNIFICANT}; hatched: not tested. {whiskers} The test "
        "gives models the curves of others of their depth; at the last junction it is Student's."
    )
    for name in AGGREGATIONS:
        contents = []
        for kind in COEFFICIENTS:
            rows = table[(table["aggregation"] == name) & (table["coefficient"] == kind)].set_index("task")
            contents.append(
                [_correlations(rows[rows["metric"] == metric].loc[tasks], x, metric, name) for metric in chosen]
            )
        figure = layout.panels(contents, [f"{kind.title()}'s r of sign × metric" for kind in COEFFICIENTS])
        for bar in contents[0]:  # a legend entry of its own would be hollow like the first bar
            bar.showlegend, marker = False, {"symbol": "square", "size": 11}
            figure.add_trace(
                kit.trace(table, [None], [None], bar.marker.line.color, [""], name=bar.name, marker=marker)
            )
        figure.update_traces(showlegend=False, selector={"type": "bar"})
        title = "Do MSE, bias and diversity follow accuracy along depth?"
        look: dict[str, Any] = {"plot": 480, "below": 60, "barmode": "group", "bargap": 0.22}
        views[_AGGREGATIONS[name]] = layout.finish(figure, title, subtitle, x=ticks, y=y, **look)
    return layout.choose(views, _AGGREGATIONS[aggregation])


def _correlations(rows: pd.DataFrame, x: np.ndarray, metric: str, aggregation: str) -> go.Bar:
    """Draw the bars of one metric: full, hollow or hatched."""
    color, p = style.TERM.get(metric, style.SERIES[0]), rows[_TEST[aggregation]].to_numpy(dtype=float)
    name = ("−" if rows["sign"].iloc[0] < 0 else "") + _METRICS.get(metric, metric)
    named = rows.assign(component=[f"{name}, {task}" for task in rows.index])
    tests = [f"p, models permuted {row.p_permutation:.3g}\np, Student {row.p_t:.3g}" for row in rows.itertuples()]
    counts = [f"n {row.n:.0f}, models {row.models:.0f}" for row in rows.itertuples()]
    texts = kit.hover(named, ["r"], [test.replace("nan", "not tested") for test in tests], counts, rows["note"])
    shapes = ["" if np.isfinite(value) else "/" for value in p]
    pattern = {"shape": shapes, "fillmode": "replace", "fgcolor": color, "bgcolor": style.CLEAR, "size": 5}
    fills = [style.CLEAR if value >= style.SIGNIFICANT else color for value in p]
    marker = {"line": {"color": color, "width": 1.5}, "pattern": pattern}
    look: dict[str, Any] = {"shape": "bars", "name": name, "offsetgroup": metric, "width": None}
    return kit.trace(named, x, "r", fills, texts, marker=marker, **look)


def share_bars(
    study: Study,
    unit: Unit = "sublayer",
    form: Literal["squared", "paper"] = "squared",
    models: Sequence[str] | None = None,
) -> go.Figure:
    """Draw each module's share of bias and diversity, a bar per model, raw and centered (Fig. 4).

    Diamonds are the module boundaries if every module held its share n_g/|L| of the members; the hover has shares,
    their intervals over tasks, and excess. `models` None is all, in the study's order.
    """
    shares = study.shares(unit, form)
    present = list(dict.fromkeys(study.metrics.loc[study.metrics["unit"] == unit, "model"]))
    names = present if models is None else some_of("models", models, present)
    shares = shares[shares["model"].isin(names)].rename(columns={"low": "share_low", "high": "share_high"})
    modules = [module for module in style.MODULE if (shares["module"] == module).any()]
    contents, headings = [], []
    for (term, gauge), panel in shares.groupby(["term", "gauge"], sort=False):
        panel = panel.sort_values("module", key=lambda column: column.map(modules.index), kind="stable")
        panel = panel.assign(component=panel["model"] + ", " + panel["module"].map(style.MODULE_NAME))
        over = np.where(panel["share_low"].notna(), "over " + panel["tasks"].astype(str) + " tasks", "no interval")
        told = [f"share of the members {row.member_share:.1%}, excess {row.excess:+.1%}" for row in panel.itertuples()]
        texts, places = kit.hover(panel, ["share"], over, told), panel["model"].map(names.index).to_numpy()
        traces = kit.by_module(panel, panel["share"].to_numpy(), places, texts, shape="across", width=None)
        # Module boundaries if each held its share of the members.
        edges = panel.assign(edge=panel.groupby("model")["member_share"].cumsum(), row=places)
        edges = edges[edges.duplicated("model", keep="last")]
        marker = {"symbol": "diamond", "line": {"color": style.LIGHT.ink, "width": 1}}
        look: dict[str, Any] = {"marker": marker, "name": "by shares of the members, n_g/|L|"}
        traces.append(kit.trace(edges, edges["edge"], edges["row"], style.LIGHT.paper, edges["component"], **look))
        contents.append(traces)
        headings.append(f"{term}, {gauge}")
    figure = layout.panels(contents, headings, 2, across=0.14, gap=0.4, shared_xaxes=False)
    means = shares.query("term == 'diversity' and gauge == 'centered'").groupby("module")[["share"]].mean()
    most = kit.most(means.reset_index(), "share")
    title = f"{style.MODULE_NAME[most['module']]} holds most of the centered diversity: {most['share']:.0%}"
    x, y = axes.ticks([0, 0.5, 1], ["0", "50 %", "100 %"]) | {"range": [0, 1]}, axes.named_rows(names)
    plot = max(100, 30 * len(names)) * -(-len(contents) // 2) + 40
    return layout.finish(figure, title, "Means over tasks.", x=x, y=y, plot=plot, barmode="stack", bargap=0.3)


def scaling_curve(
    study: Study, unit: Unit = "sublayer", quantity: str = "accuracy", least_parameters: float = 0.0
) -> go.Figure:
    """Draw `fit_curve` of a quantity's mean over tasks against the number of components, for a study (Fig. 6)."""
    fit = study.scaling(quantity, unit, least_parameters)
    names = study.shape_means(quantity, unit, least_parameters)["model"].tolist()
    return fit_curve(fit, names, y_title=f"{quantity}, mean over tasks ({QUANTITIES[quantity][0]})")


def fit_curve(
    fit: LogFit,
    names: Sequence[str] | None = None,
    x_title: str = "number of components",
    y_title: str = "mean over tasks",
) -> go.Figure:
    """Draw points and y = a + b ln x with the 95 % band of the mean curve; `names` has a name per point.

    The band needs three points and assumes that they are independent (models of one family are not) and equally noisy;
    coefficients' intervals allow for unequal noise, as in claim 7. Raises InputError for a wrong number of names.
    """
    given = [f"point {number}" for number in range(len(fit.x))]
    if names is not None:
        given = [
            text("names", name, empty=True) for name in listed("names", names, "a list with a name for each point")
        ]
    if len(given) != len(fit.x):
        raise InputError(f"there are {len(given)} names for {len(fit.x)} points: give one for each.")
    curve = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), 200))
    color, level, figure = style.SERIES[0], f"{fit.confidence_level:.0%}", go.Figure()
    if np.isfinite(curve["low"]).all():
        figure.add_trace(kit.band(curve["x"], curve["low"], curve["high"], color, name=f"{level} band of the curve"))
    figure.add_trace(kit.line(curve["x"], curve["y"], color, name="a + b ln x"))
    rows = zip(given, fit.x, fit.y, fit.predict(fit.x)["y"], strict=True)
    texts = [f"{name}\nx {x:.3g}\ny {y:.3g}, fitted {fitted:.3g}" for name, x, y, fitted in rows]
    look: dict[str, Any] = {"name": "models" if names is not None else "points", "marker": {"size": 9}}
    figure.add_trace(kit.trace(fit.frame(), fit.x, fit.y, style.SERIES[1], texts, **look))
    terms = fit.frame().set_index("term")
    ends = [style.interval(*terms.loc[name, ["robust_low", "robust_high"]]) for name in ("slope", "curvature")]
    how = f" ({level} intervals by HC3 errors)" if "[" in ends[0] else ""
    estimates = terms["estimate"].map(style.number)
    title = f"Scaling with size: slope {estimates['slope']} {ends[0]} per ln x"
    subtitle = f"Curvature {estimates['curvature']} {ends[1]}{how}; below 0 returns diminish. AIC of a straight line "
    subtitle += f"minus that of the logarithm: {estimates['aic_difference']}."
    return layout.finish(figure, title, subtitle, x=x_title, y=y_title, plot=360)


def tradeoff_of(
    study: Study, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0
) -> go.Figure:
    """Draw `tradeoff_steps` of a study."""
    return tradeoff_steps(study.tradeoff_signs(unit, still, n_resamples, seed))


def tradeoff_steps(tradeoff: TradeOff) -> go.Figure:
    """Draw the share of steps in which bias and diversity move together, by what accuracy does (Section 5.4).

    Whiskers are Wilson's, which take steps for independent; the subtitle's interval is over models.
    """
    frame = tradeoff.frame().rename(columns={"low": "share_low", "high": "share_high"})
    frame = frame.assign(component=[f"accuracy {name}" for name in frame["accuracy"]])
    rows: list[Any] = list(frame.itertuples())
    counts = [f"together {r.same_sign}, apart {r.opposite_sign}, one does not move {r.unchanged}" for r in rows]
    over = f"not given: it needs {LEAST} models, and there {'is' if tradeoff.models == 1 else 'are'} {tradeoff.models}"
    if np.isfinite(tradeoff.low):
        over = f"{style.interval(tradeoff.low, tradeoff.high)} over {tradeoff.models} models"
    null = "Not tested: too few models of one depth"
    if np.isfinite(tradeoff.p):
        ends = style.interval(tradeoff.null_low, tradeoff.null_high)
        null = f"With bias and diversity of another model of the same depth {ends}, p = {style.number(tradeoff.p)}"
    where = (
        "more often where accuracy stands still" if tradeoff.difference > 0 else "no more often where it stands still"
    )
    title = f"Bias and diversity move together {where}: difference {style.number(tradeoff.difference)}"
    subtitle = f"Interval {over}. {null}. The paper claims a difference above 0. Whiskers treat steps as independent."
    texts, places = kit.hover(frame, ["share"], counts), np.arange(len(frame))
    x = axes.ticks(places, [f"{r.accuracy}\n{r.same_sign + r.opposite_sign} steps" for r in rows])
    x |= {"title_text": "accuracy, from junction to junction"}
    y = {"title_text": "share of steps: both up or both down", "range": [0, 1.03], "tickformat": ".0%", "dtick": 0.25}
    figure = go.Figure(kit.trace(frame, places, "share", style.SERIES[0], texts, shape="bars", width=0.5))
    return layout.finish(figure, title, subtitle, x=x, y=y)
