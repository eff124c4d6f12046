"""Figures of a study: models × tasks, and the paper's claims over models (Fig. 3, 4 and 6; Section 5.4)."""

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
    from ...studies.study import Study

# {quantity of `Study.table`: (unit, description)}.
QUANTITIES = {
    "accuracy": ("%", "Right answers."),
    "logit difference": ("logits", "Logit of the right option minus the mean of the others; nats for sequences."),
    "MSE": ("hundredths", "Squared error of probabilities (Eq. 14)."),
    "uniform": ("hundredths", "Squared error of the uniform predictor (Eq. 14)."),
    "bias": ("hundredths", "Bias of probabilities (Eq. 14)."),
    "diversity": ("logits²", "Diversity (Theorem 1), raw as in the paper."),
    "diversity centered": ("logits²", "Diversity, centered over the options."),
    "diversity_logit": ("logits²", "|L|² × diversity, raw, which cuts and sizes share."),
    "diversity_logit centered": ("logits²", "|L|² × diversity, centered: fair between models of different depth."),
    "cross-entropy": ("nats", "Cross-entropy over the options."),
    "entropy": ("nats", "Entropy of the model's answer over the options."),
}
# Quantities in the menu; others are available as an option.
_MENU = ("accuracy", "logit difference", "cross-entropy", "MSE", "diversity", "diversity_logit centered")
_WHERE = {
    "pooled": "over the junctions of all models",
    "per_model": "over a model's junctions, mean over models",
    "final": "over the models' last junctions",
}
_AGGREGATIONS = {"pooled": "pooled", "per_model": "mean over models", "final": "last junction"}
_METRICS = ("mse", "bias", "bias_centered", "diversity", "diversity_centered", "cross_entropy")
_IN_TITLE = ("mse", "bias_centered", "diversity_centered")
# So many models leave room for panels below each other.
_FEW = 4
_GUESSING = "guessing evenly"


def said(quantity: str) -> str:
    """Write the name of a quantity for a reader."""
    return quantity.replace("diversity_logit", "|L|² × diversity").replace(" centered", ", centered")


def rows_counted(study: Study, unit: Unit, shown: Sequence[str] = ()) -> str:
    """Say how many rows of each task a study has, or its models `shown`."""
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] == unit]
    rows = {cell["rows"] for cell in cells if not shown or cell["model"] in shown}
    return f"{' to '.join(f'{count:,}' for count in sorted({min(rows), max(rows)}))} rows a task."


def counted(study: Study, unit: Unit, shown: Sequence[str] = ()) -> str:
    """Say which model, or how many, and how many rows of each task a study has, or its models `shown`."""
    models = shown or list(study.models(unit)["model"])
    whose = f"{len(models)} models" if len(models) > 1 else models[0]
    return f"{whose}, {rows_counted(study, unit, shown)}"


def table_map(study: Study, quantity: str = "accuracy", unit: Unit = "sublayer") -> go.Figure:
    """Draw a map model × task of one quantity of `Study.table`, its value in every cell; a menu shows others.

    MSE and bias are colored relative to the uniform predictor, which is the last row. The average of a model with
    missing cells is missing.
    """
    choice("quantity", quantity, QUANTITIES)
    table, texts = study.table(unit), study.table(unit, intervals=True)
    chance = study.summary(unit).groupby("task")["chance"].mean()
    even = {"accuracy": 100 * chance, "logit difference": 0 * chance, "cross-entropy": -np.log(chance)}
    row, columns = list[float](), list[Any](table.columns)
    for name, task in columns:
        values = table["uniform"].max() if name in ("MSE", "uniform", "bias") else even.get(name, chance * np.nan)
        row.append(values.mean() if task not in values else values[task])
    table.loc[_GUESSING] = row
    texts.loc[_GUESSING] = [f"{value:.4g}" if np.isfinite(value) else "" for value in row]
    names = _MENU if quantity in _MENU else (quantity, *_MENU)
    views = {said(name): _cells(table, texts, name, counted(study, unit)) for name in names}
    return layout.choose(views, said(quantity), type="dropdown", direction="down")


def _cells(table: pd.DataFrame, texts: pd.DataFrame, quantity: str, rows_of: str) -> go.Figure:
    """Draw the map of one quantity, with numbers in the cells."""
    values, uniform = (table[name].to_numpy(dtype=float) for name in (quantity, "uniform"))
    (unit, about), (*tasks, average), relative = QUANTITIES[quantity], table[quantity], quantity in ("MSE", "bias")
    z, beside = (values - uniform, f"\nuniform {style.number(np.nanmax(uniform))}") if relative else (values, "")
    rows = zip(table.index, pd.DataFrame(texts[quantity]).map(style.estimate_of_text).to_numpy(str), strict=True)
    told = [[f"{m}\n{t}\n{quantity} {x}{beside}" for t, x in zip(table[quantity], row, strict=True)] for m, row in rows]
    digits = 2 if quantity == "accuracy" else 3
    written = [[style.number(v, digits) if np.isfinite(v) else "" for v in row] for row in values]
    x, limit = [*range(len(tasks)), len(tasks) + 0.2], 100.0 if quantity == "accuracy" else kit.robust_limit(z, 1.0)
    signed, unit_name = relative or unit == "logits", f"{unit}, minus uniform" if relative else unit
    look: dict[str, Any] = {"x": x, "text": written, "texttemplate": "%{text}", "xgap": 2, "ygap": 2, "signed": signed}
    models, own = len(table) - 1, tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    whose = table.index[0] if models == 1 else f"{models} models"
    title = f"{said(quantity)}{',' * (', ' in said(quantity))} of {whose} on {own}"
    title = f"{title[0].upper()}{title[1:]}"
    if len(known := table[quantity][average].drop(_GUESSING).dropna()):
        ends = dict.fromkeys(map(style.number, (known.min(), known.max())))
        title += f": {'from ' * (len(ends) > 1)}{' to '.join(ends)} {unit}{' on average' * (len(tasks) > 1)}"
        who = "only one" if len(known) == 1 else str(len(known))
        title += f" for the {who} with all tasks" * (len(known) < models)
    sides: dict[str, Any] = {"x": axes.named_columns([*tasks, average], x), "y": axes.named_rows(table.index)}
    heat = kit.heat(z, np.array(told), unit_name, limit, **look)
    about += f" {rows_of} 95 % intervals over rows are in the hover."
    return layout.finish(heat, title, about, plot=max(120, 34 * len(table)), below=70, **sides)


def correlation_bars(
    study: Study,
    unit: Unit = "sublayer",
    n_resamples: int = 1000,
    seed: int = 0,
    aggregation: Aggregation = "pooled",
    metrics: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the correlation of sign × metric with accuracy, by task and on average: Pearson, then Spearman (Fig. 3).

    Buttons show the aggregations, `aggregation` first. A bar is full where p < 0.05 (`p_permutation`; `p_t` for
    "final", which has no depth), hollow where it is not, hatched without a test. Raises InputError for metrics that the
    study lacks.
    """
    table = study.correlations(unit, n_resamples, seed).rename(columns={"low": "r_low", "high": "r_high"})
    present, tasks = list(dict.fromkeys(table["metric"])), list(dict.fromkeys(table["task"]))
    chosen = [name for name in _METRICS if name in present] or present
    chosen = chosen if metrics is None else some_of("metrics", metrics, present)
    x = np.array([place + 0.3 * (task == AVERAGE) for place, task in enumerate(tasks)])
    whiskers = "Whiskers: 95 % intervals over models."
    if table["r_low"].isna().all():
        whiskers = f"No whiskers: an interval needs {LEAST} models (here: {table['models'].max():.0f})."
    subtitle = (
        f"Full: p < {style.SIGNIFICANT}; hollow: p ≥ {style.SIGNIFICANT}; hatched: not tested. The test "
        "swaps curves between equally deep models; at the last junction it is Student's t-test. The sign is − "
        f"for MSE and bias, which should fall where accuracy rises. {whiskers} {counted(study, unit)}"
    )
    headings = [f"{k.title()}'s r" for k in COEFFICIENTS]
    look: dict[str, Any] = {"x": axes.named_columns(tasks, x) | {"range": [-0.6, x[-1] + 0.6]}}
    look |= {"y": {"range": [-1.05, 1.05]}, "plot": 480, "below": 60, "barmode": "group", "bargap": 0.22}
    views = {}
    for name in AGGREGATIONS:
        of_panel = table[table["aggregation"] == name].groupby(["coefficient", "metric"])
        rows = {key: part.set_index("task").loc[tasks] for key, part in of_panel}
        contents = [[_correlations(rows[k, m], x, m, name) for m in chosen] for k in COEFFICIENTS]
        figure = layout.panels(contents, [f"{heading} with accuracy" for heading in headings])
        figure.update_traces(showlegend=False)
        for bar in contents[0]:  # a legend entry of its own would be hollow like the first bar
            entry = {"name": bar.name, "marker": {"symbol": "square", "size": 11}}
            figure.add_trace(kit.trace(table, [None], [None], bar.marker.line.color, [""], **entry))
        told = [
            f"{style.number(rows['pearson', metric]['r'].iloc[-1], 2)} ({bar.name})"
            for bar, metric in zip(contents[0], chosen, strict=True)
            if (metric in _IN_TITLE or metrics is not None) and rows["pearson", metric]["r"].notna().iloc[-1]
        ]
        found = ", ".join(told) or "undefined here"
        tests = [row["p_t" if name == "final" else "p_permutation"].notna().any() for row in rows.values()]
        mean = "Mean Pearson's r" if len(tasks) > 2 else "Pearson's r"
        title = f"{mean} with accuracy {_WHERE[name]}: {found}{'' if any(tests) else ' (not tested)'}"
        views[_AGGREGATIONS[name]] = layout.finish(figure, title, subtitle, **look)
    return layout.choose(views, _AGGREGATIONS[aggregation])


def _correlations(rows: pd.DataFrame, x: np.ndarray, metric: str, aggregation: str) -> go.Bar:
    """Draw the bars of one metric: full, hollow or hatched."""
    # The last junction has no depth that all models could share: Student's test over models is right.
    p = rows["p_t" if aggregation == "final" else "p_permutation"].to_numpy(dtype=float)
    name = ("−" if rows["sign"].iloc[0] < 0 else "") + style.term_name(metric)
    named, color = rows.assign(component=name + ", " + rows.index), style.TERM.get(metric, style.SERIES[0])
    tests = zip(
        *(rows[name].map(style.p_value) for name in ("p_permutation", "p_t")), rows["n"], rows["models"], strict=True
    )
    told = [
        f"models permuted: {one}\nStudent: {other}\nn {n:.0f}, models {count:.0f}" for one, other, n, count in tests
    ]
    texts = kit.hover(named, ["r"], [line.replace("p = nan", "not tested") for line in told], rows["note"])
    shapes = ["" if np.isfinite(value) else "/" for value in p]
    pattern = {"shape": shapes, "fillmode": "replace", "fgcolor": color, "bgcolor": style.CLEAR, "size": 5}
    marker = {"line": {"color": color, "width": 1.5}, "pattern": pattern}
    look: dict[str, Any] = {"shape": "bars", "name": name, "offsetgroup": metric, "width": None, "marker": marker}
    fills = [style.CLEAR if value >= style.SIGNIFICANT else color for value in p]
    return kit.trace(named, x, "r", fills, texts, **look)


def share_bars(
    study: Study,
    unit: Unit = "sublayer",
    form: Literal["squared", "paper"] = "squared",
    models: Sequence[str] | None = None,
) -> go.Figure:
    """Draw each module's share of bias and diversity, a bar per model, raw and centered (Fig. 4).

    Diamonds are the module boundaries if every module held its share n_g/|L| of the members.
    """
    shares = study.shares(unit, form)
    present = list(dict.fromkeys(study.metrics.loc[study.metrics["unit"] == unit, "model"]))
    names = present if models is None else some_of("models", models, present)
    shares = shares[shares["model"].isin(names)].rename(columns={"low": "share_low", "high": "share_high"})
    order, contents, headings = list(style.MODULE), [], []
    for (term, gauge), panel in shares.groupby(["term", "gauge"], sort=False):
        panel = panel.sort_values("module", key=lambda column: column.map(order.index), kind="stable")
        panel = panel.assign(component=panel["model"] + ", " + panel["module"].map(style.MODULE_NAME))
        over = np.where(panel["share_low"].notna(), "over " + panel["tasks"].astype(str) + " tasks", "no interval")
        excess = panel["member_share"].map(style.percent) + ", excess " + (100 * panel["excess"]).map(style.signed)
        told = "share of the members " + excess + " points"
        texts, places = kit.hover(panel, ["share"], over, told), panel["model"].map(names.index).to_numpy()
        traces = kit.by_module(panel, panel["share"].to_numpy(), places, texts, shape="across", width=None)
        edges = panel.assign(edge=panel.groupby("model")["member_share"].cumsum(), row=places)
        edges = edges[edges.duplicated("model", keep="last")]
        marker = {"symbol": "diamond", "line": {"color": style.LIGHT.ink, "width": 1}}
        look: dict[str, Any] = {"marker": marker, "name": "if all components held the same"}
        traces.append(kit.trace(edges, edges["edge"], edges["row"], style.LIGHT.paper, edges["component"], **look))
        contents.append(traces)
        headings.append(f"{term}, {gauge}")
    columns = 1 if len(names) <= _FEW else 2
    figure = layout.panels(contents, headings, columns, across=0.14, gap=0.4, shared_xaxes=False)
    title = _largest_share(study, unit, form, names, shares)
    about = f"Means over {', '.join(dict.fromkeys(study.metrics['task']))}. {counted(study, unit, names)}"
    x, y = axes.ticks([0, 0.5, 1], ["0", "50 %", "100 %"]) | {"range": [0, 1]}, axes.named_rows(names)
    plot = max(100, 30 * len(names)) * -(-len(contents) // columns) + 40
    lack = f"No intervals: they would be over tasks, and need at least {LEAST}."
    about += f" {lack if shares['share_low'].isna().all() else '95 % intervals over tasks are in the hover.'}"
    return layout.finish(figure, title, about, x=x, y=y, plot=plot, barmode="stack", bargap=0.3)


def _largest_share(study: Study, unit: Unit, form: str, names: Sequence[str], shares: pd.DataFrame) -> str:
    """Write a title that counts pairs of model and task: a mean alone would hide that they disagree."""
    cells = study.metrics.query("unit == @unit and table == 'modules' and loss == @form and model in @names")
    cells = cells[cells["term"] == "diversity_centered"].reset_index(drop=True)
    first = cells.loc[cells.groupby(["model", "task"])["mean"].idxmax().dropna(), "module"].value_counts()
    mean = shares.query("term == 'diversity' and gauge == 'centered' and module == @first.index[0]")["share"].mean()
    of, count = "the centered diversity" + f" of {names[0]}" * (len(names) == 1), first.sum()
    named, every = style.MODULE_NAME[first.index[0]], "task" if len(names) == 1 else "pair of model and task"
    if count == 1:
        return f"{named} holds {style.percent(mean)} of {of}, the largest share"
    if len(first) == 1:
        return f"{named} holds the largest share of {of} in every {every}, {style.percent(mean)} on average"
    each = " and ".join(f"{style.MODULE_NAME[name]} in {pairs}" for name, pairs in first.items())
    return f"No module holds the largest share of {of} in every {every}: {each} of {count}"


def scaling_curve(
    study: Study, unit: Unit = "sublayer", quantity: str = "accuracy", least_parameters: float = 0.0
) -> go.Figure:
    """Draw a quantity's mean over tasks against the number of components, and the fitted a + b ln x (Fig. 6)."""
    fit = study.scaling(quantity, unit, least_parameters)
    names = study.shape_means(quantity, unit, least_parameters)["model"].tolist()
    unit_of = QUANTITIES[quantity][0]
    points = f"points of {said(quantity)}" if unit_of == "%" else unit_of
    figure = fit_curve(fit, names, y_title=f"{said(quantity)}, mean over tasks ({unit_of})", unit=points)
    tasks = ", ".join(dict.fromkeys(study.metrics["task"]))
    remark = f"A point is a model, training seeds averaged, at unit {unit}, its mean over {tasks}."
    if quantity == "accuracy" and any(not 0 <= end <= 100 for trace in figure.data for end in trace.y):
        figure.update_yaxes(range=[-4, 104])
        remark += " The fit goes on beyond 0 and 100 %, which no accuracy does."
    return layout.retitle(figure, remark=f"{remark} {counted(study, unit)}")


def fit_curve(
    fit: LogFit,
    names: Sequence[str] | None = None,
    x_title: str = "number of components",
    y_title: str = "mean over tasks",
    unit: str = "",
) -> go.Figure:
    """Draw points and y = a + b ln x with the 95 % band of the mean curve; `names` has a name per point,
    and `unit` is that of y.

    The band assumes independent and equally noisy points; coefficients' intervals allow for unequal noise. Raises
    InputError for a wrong number of names.
    """
    given = [f"point {number}" for number in range(len(fit.x))]
    if names is not None:
        names = listed("names", names, "a list with a name for each point")
        given = [text("names", name, empty=True) for name in names]
    if len(given) != len(fit.x):
        raise InputError(f"there are {len(given)} names for {len(fit.x)} points: give one for each.")
    curve, frame = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), 200)), fit.frame()
    color, level, traces = style.SERIES[0], style.percent(fit.confidence_level), list[Any]()
    if np.isfinite(curve["low"]).all():
        traces.append(kit.band(curve["x"], curve["low"], curve["high"], color, name=f"{level} band of the curve"))
    traces.append(kit.line(curve["x"], curve["y"], color, name="a + b ln x"))
    fitted = np.asarray(fit.predict(fit.x)["y"])
    shown = zip(given, *(map(style.number, side) for side in (fit.x, fit.y, fitted)), strict=True)
    texts = [f"{name}\nx {x}\ny {y}, fitted {line}" for name, x, y, line in shown]
    look: dict[str, Any] = {"name": "models" if names is not None else "points", "marker": {"size": 9}}
    traces.append(kit.trace(frame, fit.x, fit.y, style.SERIES[1], texts, **look))
    terms = frame.set_index("term")[["estimate", "robust_low", "robust_high"]]
    aic = style.number(terms["estimate"].loc["aic_difference"])
    rows = terms.loc[["slope", "curvature"]].to_numpy(dtype=float).tolist()
    slope, curvature, bent = style.estimate(*rows[0], unit=unit), style.estimate(*rows[1]), rows[1][1:]
    how = f" ({level} intervals by HC3 errors)" if np.isfinite(bent[0]) else ""
    sign = "its sign is not clear" if bent[0] <= 0 <= bent[1] else "below 0 returns diminish"
    subtitle = f"Curvature {curvature}{how}; {sign}. AIC of a straight line minus that of the logarithm: {aic}."
    if not np.isfinite(rows).all():
        subtitle = (
            f"{len(fit.x)} points at {len(np.unique(fit.x))} sizes are too few to tell a bend from a straight line"
        )
        subtitle += ", or for intervals." if np.isnan(rows[0][1]) else "."
    is_clear = rows[0][1] > 0 or rows[0][2] < 0
    title = f"{'Scaling' if is_clear else 'No clear scaling'} with size: slope {slope} per unit of ln({x_title})"
    y: dict[str, Any] = {"title_text": y_title}
    if np.ptp(fit.y) <= 1e-9 * np.abs(fit.y).max():  # the rest is rounding
        title = f"No scaling with size: at all {len(np.unique(fit.x))} sizes it is {style.number(fit.y[0])}"
        subtitle, traces, y["range"] = (
            "No curve is fitted.",
            traces[-1:],
            sorted((0, 2 * fit.y[0])) if fit.y[0] else None,
        )
    return layout.finish(traces, title, subtitle, x=x_title, y=y, plot=360)
