"""Figures of a study: every number drawn is the frame's, under its own name, whichever button is pressed."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl.ensemble.fits import log_fit
from layerdiv_tl.replication.correlation import AGGREGATIONS
from layerdiv_tl.studies.runner import run_study
from layerdiv_tl.studies.tables import QUANTITIES
from layerdiv_tl.views import style
from layerdiv_tl.views.figures import FIGURES
from layerdiv_tl.views.figures.curves import depth_panels
from layerdiv_tl.views.figures.paper import correlation_bars, scaling_curve, share_bars, tradeoff_steps
from layerdiv_tl.views.figures.studies import study_table_map
from layerdiv_tl.views.html import Page
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

HOSTILE = "</script><img src=x onerror=alert(1)>"
LAYERS = {"2 layers": 2, "3 layers": 3, "5 layers": 5}
STUDY_KINDS = FIGURES["Study"]
TASKS = ("first", "second", "third")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Three tiny models of different depth on three tasks of random words."""
    words = word_tokenizer(["[UNK]", "yes", "no", *(f"w{i}" for i in range(58))])
    models = {
        name: ld.load_model(llama(seed=layers, num_hidden_layers=layers), tokenizer=words)
        for name, layers in LAYERS.items()
    }
    tasks = []
    for seed, name in enumerate(TASKS):
        rng = np.random.default_rng(seed)
        texts = [" ".join(f"w{i}" for i in rng.integers(0, 58, 6)) for _ in range(40)]
        frame = pd.DataFrame({"text": texts, "label": rng.integers(0, 2, 40)})
        tasks.append(ld.Task.from_frame(frame, template="{text} {answer}", options=["yes", "no"], name=name))
    return run_study(models, tasks, out=tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def gappy(study):
    """The same without the cell of one model on one task."""
    metrics = study.metrics
    return replace(study, metrics=metrics[(metrics["model"] != "3 layers") | (metrics["task"] != "second")])


def mean(study, model, task, loss, term):
    """One number of the long frame; NaN where it has none."""
    m = study.metrics
    here = (m["model"] == model) & (m["task"] == task) & (m["loss"] == loss) & (m["term"] == term)
    found = m[here & (m["table"] == "totals")]["mean"]
    return found.item() if len(found) else np.nan


def pressed(figure, button):
    """The figure after a button of a menu was pressed."""
    new = go.Figure(figure)
    update, *rest = button.args
    traces = rest[0] if rest and isinstance(rest[0], list | tuple) else range(len(new.data))
    for place, trace in enumerate(traces):
        values = {k: v[place] if isinstance(v, list | tuple) else v for k, v in update.items()}
        new.data[trace].update({k.replace(".", "_"): v for k, v in values.items()})
    if rest and isinstance(rest[0], dict):
        new.update_layout({k.replace(".", "_"): v for k, v in rest[0].items()})
    return new


# Quantities whose value for guessing evenly is the uniform predictor's.
PER_UNIFORM = ("MSE", "bias", "uniform")


@pytest.mark.full
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_table_holds_the_cells_of_its_quantity(gappy, quantity):
    """Texts are the frame's means in the table's factor, empty without a cell; color is less uniform for MSE, bias."""
    loss, term, factor = QUANTITIES[quantity]
    wanted = np.array([[factor * mean(gappy, m, t, loss, term) for t in TASKS] for m in LAYERS])
    wanted = np.column_stack([wanted, wanted.mean(1)])
    even = {"accuracy": 50, "logit difference": 0, "cross-entropy": np.log(2)} | dict.fromkeys(PER_UNIFORM, 25)
    wanted = np.vstack([wanted, np.full(wanted.shape[1], even.get(quantity, np.nan))])  # two options
    figure = gappy.plot(quantity=quantity)
    drawn = figure.data[0]
    assert [list(row) for row in drawn.text] == [[f"{v:.4g}" if v == v else "" for v in row] for row in wanted]
    assert drawn.text[1][1] == ""
    assert drawn.text[1][-1] == ""
    z = wanted
    if quantity in ("MSE", "bias"):
        z = wanted - 25  # two options, Eq. 14
        assert drawn.zmin == -drawn.zmax
        assert "uniform 25" in drawn.hovertext[0][0]
    elif quantity == "logit difference":
        assert drawn.zmin == -drawn.zmax
    else:
        assert drawn.zmin == 0
    np.testing.assert_allclose(np.array(drawn.z, dtype=float), z, rtol=1e-9, atol=1e-9)
    assert drawn.zmax == (100 if quantity == "accuracy" else pytest.approx(np.nanmax(np.abs(z))))
    assert drawn.hovertext[2][0].startswith("<b>5 layers</b><br>first<br>")
    assert list(figure.layout.yaxis.ticktext) == [*LAYERS, "guessing evenly"]
    assert list(figure.layout.xaxis.ticktext) == [*TASKS, "<b>Avg.</b>"]
    menu = figure.layout.updatemenus[0]
    assert menu.buttons[menu.active].label == quantity


@pytest.mark.nightly
def test_a_tables_menu_puts_the_figure_of_its_quantity(gappy):
    """A chosen entry and the figure that was asked for are the same."""
    figure = gappy.plot()
    assert len(figure.layout.updatemenus[0].buttons) == 6
    for button in figure.layout.updatemenus[0].buttons:
        after, asked = pressed(figure, button), study_table_map(gappy, button.label)
        np.testing.assert_array_equal(np.array(after.data[0].z), np.array(asked.data[0].z))
        for name in ("text", "hovertext", "zmin", "zmax", "colorbar"):
            assert getattr(after.data[0], name) == getattr(asked.data[0], name)
        assert after.layout.title.subtitle.text == asked.layout.title.subtitle.text


@pytest.mark.full
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_bars_of_correlations_are_the_frames(study, aggregation):
    """Height r, whiskers the interval; full where p < 0.05, hollow where not, hatched where there is no p."""
    table = study.correlations(n_resamples=50)
    first = correlation_bars(table)
    button = first.layout.updatemenus[0].buttons[AGGREGATIONS.index(aggregation)]
    metrics = ["mse", "bias", "bias_centered", "diversity", "diversity_centered", "cross_entropy"]
    for figure in (pressed(first, button), correlation_bars(table, aggregation)):
        bars = [trace for trace in figure.data if trace.type == "bar"]
        assert len(bars) == 2 * len(metrics)
        for trace, (kind, metric) in zip(bars, [(k, m) for k in ("pearson", "spearman") for m in metrics], strict=True):
            rows = table[(table.aggregation == aggregation) & (table.coefficient == kind) & (table.metric == metric)]
            rows = rows.set_index("task").loc[[*TASKS, "average"]]
            np.testing.assert_allclose(trace.y, rows["r"])
            inside = (rows["low"] <= rows["r"]) & (rows["r"] <= rows["high"])
            whiskers = np.array([trace.error_y.array, trace.error_y.arrayminus])[:, inside]
            np.testing.assert_allclose(
                whiskers, np.array([rows["high"] - rows["r"], rows["r"] - rows["low"]])[:, inside]
            )
            p = rows["p_t" if aggregation == "final" else "p_permutation"].tolist()
            for fill, shape, value in zip(trace.marker.color, trace.marker.pattern.shape, p, strict=True):
                assert (fill == style.CLEAR) == (value >= 0.05)
                assert (shape == "/") == (value != value)
            assert trace.yaxis == ("y" if kind == "pearson" else "y2")
            assert style.number(rows["p_t"].iloc[0]) in trace.hovertext[0] or np.isnan(rows["p_t"].iloc[0])
            assert html.escape(rows["note"].iloc[-1])[:40] in trace.hovertext[-1]
    legend = {t.legendgroup: t.name for t in first.data if t.showlegend is not False}
    assert legend["mse"] == "−MSE"
    assert legend["diversity_centered"] == "diversity, centered"


@pytest.mark.full
def test_correlations_of_other_metrics(study):
    """Metrics in the order asked for; unknown ones are refused."""
    table = study.correlations(n_resamples=20)
    figure = correlation_bars(table, metrics=["entropy", "mse"])
    assert [t.legendgroup for t in figure.data if t.type == "bar"] == ["entropy", "mse"] * 2
    assert ("Whiskers" in figure.layout.title.subtitle.text) == np.isfinite(table["low"]).any()
    alone = correlation_bars(table.assign(low=np.nan, high=np.nan))
    assert "No whiskers" in alone.layout.title.subtitle.text
    with pytest.raises(ld.InputError, match="'color'"):
        correlation_bars(table, metrics=["color"])
    with pytest.raises(ld.InputError, match="aggregation='middle'"):
        study.plot(kind="correlations", aggregation="middle", n_resamples=20)


@pytest.mark.full
@pytest.mark.parametrize("depth", ["relative", "junction"])
@pytest.mark.parametrize("part", ["raw", "centered"])
def test_curves_are_the_standardized_ones(study, depth, part):
    """Whichever model and half is chosen, heights are `curves(standardized=True)`, the hover the raw values."""
    wanted, raw = study.curves(standardized=True), study.curves()
    figure = study.plot(kind="curves", depth=depth, part=part)
    halves, menu = figure.layout.updatemenus
    assert [b.label for b in menu.buttons] == [*LAYERS, "all 3 together"]
    assert halves.active == ["raw", "centered"].index(part)
    for button in menu.buttons[:-1]:
        after = pressed(figure, button)
        for trace in after.data:
            task = figure.layout.annotations[int(trace.xaxis[1:] or 1) - 1].text
            term = {"MSE": "mse"}.get(trace.name, trace.name.replace(", ", "_"))
            rows = wanted[(wanted.model == button.label) & (wanted.task == task)]
            np.testing.assert_allclose(np.array(trace.y, dtype=float), rows[term], atol=6e-5)
            x = np.arange(len(rows)) / (len(rows) - 1 if depth == "relative" else 1)
            np.testing.assert_allclose(np.array(trace.x, dtype=float), x, atol=6e-5)
            values = raw.loc[rows.index, term]
            assert [c[0] for c in trace.customdata] == [style.number(v) for v in values]
            assert [c[1] for c in trace.customdata] == rows["component"].tolist()
            assert set(trace.text) == {button.label}
    assert pressed(figure, menu.buttons[0]).data[0].y == figure.data[0].y
    for button, half in zip(halves.buttons, ("raw", "centered"), strict=True):
        after = pressed(figure, button)
        seen = {trace.name for trace in after.data if trace.visible}
        ends = "" if half == "raw" else ", centered"
        assert seen == {"accuracy", "MSE", "bias" + ends, "diversity" + ends}


def test_models_together_are_apart(study):
    """Curves of several models in one trace have a gap between them."""
    menu = study.plot(kind="curves").layout.updatemenus[1]
    together = menu.buttons[-1].args[0]["y"][0]
    single = [list(button.args[0]["y"][0]) for button in menu.buttons[:-1]]
    assert list(together) == [*single[0], None, *single[1], None, *single[2]]


@pytest.mark.full
def test_the_best_models_are_those_with_the_highest_last_accuracy(study):
    """`models` as a number takes the best first; more than five are never drawn together."""
    curves = study.curves()
    last = {
        m: np.mean(
            [of.sort_values("junction")["accuracy"].iloc[-1] for _, of in curves[curves.model == m].groupby("task")]
        )
        for m in LAYERS
    }
    best = sorted(last, key=lambda m: -last[m])
    labels = [b.label for b in depth_panels(curves, models=2).layout.updatemenus[1].buttons]
    assert labels == [*best[:2], "all 2 together"]
    alone = depth_panels(curves, models=["5 layers"])
    assert len(alone.layout.updatemenus) == 1
    assert set(alone.data[0].text) == {"5 layers"}
    many = pd.concat([curves.assign(model=f"{name} {i}") for i in range(6) for name in LAYERS])
    assert len(depth_panels(many).layout.updatemenus[1].buttons) == 18
    for wrong, said in (
        ({"models": ["six"]}, "'six'"),
        ({"models": 0}, "models=0"),
        ({"models": []}, "models"),
    ):
        with pytest.raises(ld.InputError, match=said):
            depth_panels(curves, **wrong)
    with pytest.raises(ld.InputError, match="depth='deep'"):
        study.plot(kind="curves", depth="deep")


def test_a_curve_that_never_moves_is_not_drawn(study):
    """As in the frame: it has no standard deviation to be divided by."""
    flat = study.curves().assign(accuracy=0.5)
    figure = depth_panels(flat)
    assert {y for t in figure.data if t.name == "accuracy" for y in t.y} == {None}


@pytest.mark.full
@pytest.mark.parametrize("form", ["squared", "paper"])
def test_shares_fill_a_bar(study, form):
    """Segments are the frame's shares and add up to one; diamonds stand at the cumulated shares of the members."""
    frame = study.shares(form=form)
    figure = study.plot(kind="shares", form=form)
    panels = {"x": "bias", "x2": "bias centered", "x3": "diversity", "x4": "diversity centered"}
    if form == "paper":
        present = list(dict.fromkeys(zip(frame.term, frame.gauge, strict=True)))
        order = [("bias", "raw"), ("bias", "centered"), ("diversity", "raw"), ("diversity", "centered")]
        shown = [f"{t} {g}".removesuffix(" raw") for t, g in order if (t, g) in present]
        panels = dict(zip(panels, shown, strict=False))
    totals: dict[tuple[str, float], float] = {}
    for trace in figure.data:
        term, _, gauge = panels[trace.xaxis].partition(" ")
        if trace.type == "bar":
            module = {v: k for k, v in style.MODULE_NAME.items()}[trace.name]
            for x, y in zip(trace.x, trace.y, strict=True):
                at = (frame.model == list(LAYERS)[int(y)]) & (frame.module == module) & (frame.term == term)
                assert x == frame[at & (frame.gauge == (gauge or "raw"))]["share"].item()
                totals[trace.xaxis, y] = totals.get((trace.xaxis, y), 0) + x
        else:
            # embedding, then n attention, then n MLP sublayers
            edges = [e for n in LAYERS.values() for e in (1 / (2 * n + 1), (n + 1) / (2 * n + 1))]
            np.testing.assert_allclose(trace.x, edges)
    assert len(totals) == len(panels) * len(LAYERS)
    np.testing.assert_allclose(list(totals.values()), 1)
    one = share_bars(frame, models=["5 layers"])
    assert {len(t.x) for t in one.data if t.type == "bar"} == {1}
    with pytest.raises(ld.InputError, match="'six'"):
        share_bars(frame, models=["six"])


@pytest.mark.full
def test_a_scaling_curve_is_the_fit(study):
    """Points with their models' names, and a + b ln x between them with its band."""
    fit = study.scaling("cross-entropy")
    figure = study.plot(kind="scaling", quantity="cross-entropy")
    band, line, points = figure.data
    np.testing.assert_array_equal(points.x, [2 * n + 1 for n in LAYERS.values()])
    table = study.table()["cross-entropy"]["Avg."]
    np.testing.assert_allclose(points.y, table)
    assert [text.split("<br>")[0] for text in points.hovertext] == [f"<b>{m}</b>" for m in LAYERS]
    b, a = np.polyfit(np.log(points.x), points.y, 1)
    np.testing.assert_allclose(line.y, a + b * np.log(line.x))
    assert (line.x[0], line.x[-1]) == pytest.approx((5, 11))
    curve = fit.predict(np.array(line.x))
    np.testing.assert_allclose(band.y, np.r_[curve["high"], curve["low"][::-1]])
    assert band.fill == "toself"
    assert style.number(b) in figure.layout.title.subtitle.text
    assert figure.layout.yaxis.title.text == "cross-entropy, mean over tasks (nats)"
    own = scaling_curve(fit, x_title="<b>", y_title="y")
    assert own.layout.xaxis.title.text == "&lt;b&gt;"
    with pytest.raises(ld.InputError, match="2 names for 3 points"):
        scaling_curve(fit, names=["a", "b"])


def test_the_intervals_of_a_scaling_curve_are_those_of_the_claim():
    """They allow for unequal noise: Student's miss a curvature in up to 31 %."""
    rng, x = np.random.default_rng(0), np.arange(4.0, 16)
    fit = log_fit(x, np.log(x) + rng.normal(size=12) * x / 8)
    said = fit.plot().layout.title.subtitle.text
    for row in fit.frame().set_index("term").loc[["slope", "curvature"]].itertuples():
        assert style.interval(row.robust_low, row.robust_high) in said
        assert style.interval(row.low, row.high) not in said


def test_two_points_have_no_band():
    """A curve through two points has no error to be judged by."""
    figure = log_fit([1.0, 2.0], [0.0, 1.0]).plot()
    assert "[" not in figure.layout.title.subtitle.text
    assert [t.mode for t in figure.data] == ["lines", "markers"]
    assert "(no interval)" in figure.layout.title.subtitle.text


def test_steps_are_shares_of_the_counts(study):
    """Heights are together / (together + apart), with the number of such steps beneath."""
    result = study.tradeoff_signs(n_resamples=50)
    figure = tradeoff_steps(result)
    together, apart, _ = result.counts.T
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(figure.data[0].y, together / (together + apart))
    ticks = [f"{name}<br>{n} steps" for name, n in zip(("rises", "still", "falls"), together + apart, strict=True)]
    assert list(figure.layout.xaxis.ticktext) == ticks
    frame = result.frame()
    np.testing.assert_allclose(figure.data[0].y + figure.data[0].error_y.array, frame["high"])
    np.testing.assert_allclose(figure.data[0].y - figure.data[0].error_y.arrayminus, frame["low"])
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    known = [x for x in (result.low, result.high, result.null_low, result.null_high, result.p) if np.isfinite(x)]
    for value in (result.difference, *known):
        assert style.number(value) in said
    assert "nan" not in said
    still = study.plot(kind="tradeoff", still=1.0, n_resamples=20)
    assert still.layout.xaxis.ticktext[0] == "rises<br>0 steps"
    assert np.isnan(still.data[0].y[0])


def test_weights_stand_on_one(study):
    """A bar reaches from 1 to the mark at the weight; the subtitle has held-out accuracy before and after."""
    result = study.reweight("3 layers", "first", l1=0.001)
    figure = result.plot()
    for trace in figure.data:
        start = trace.base if trace.type == "bar" else 0.0
        np.testing.assert_allclose(start + trace.y, result.weights[trace.x])
        assert {style.MODULE_NAME[result.components[i].module] for i in trace.x} == {trace.name}
    assert sorted(i for trace in figure.data for i in trace.x) == sorted([*range(7)] * 2)
    held = ~result.is_train
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    for logits in (result.before, result.after):
        assert f"{style.number((logits.argmax(1) == result.gold)[held].mean())} [" in said
    assert f"{held.sum()} rows not learned from" in said


def test_a_stored_cell_is_drawn_as_contributions_are(study):
    """A shard's figure is the map of its contributions."""
    shard = study.contributions("5 layers", "second")
    drawn = shard.plot(example=3, centered=False)
    np.testing.assert_array_equal(np.array(drawn.data[0].z), shard.values[3].T)
    assert list(drawn.layout.yaxis.ticktext) == [html.escape(repr(option)) for option in shard.options]


@pytest.mark.full
def test_every_kind_has_a_figure_and_others_are_refused(study):
    """Kinds are named where one is unknown; an unknown unit and quantity say what there is."""
    titles = {kind: study.plot(kind=kind).layout.title.text for kind in STUDY_KINDS}
    assert len(set(titles.values())) == len(STUDY_KINDS)
    assert study.plot().layout.title.text == titles["table"]
    dark = study.plot(dark=True)
    assert dark.layout.template.layout.paper_bgcolor == style.DARK.paper
    with pytest.raises(ld.InputError, match="kind='pie' is unknown: use 'table', .*'correlations'"):
        study.plot(kind="pie")
    with pytest.raises(ld.InputError, match="quantity='color'"):
        study.plot(quantity="color")
    with pytest.raises(ld.InputError, match="unit='head'"):
        study.plot(unit="head")


@pytest.mark.full
def test_one_model_on_one_task_has_figures(study):
    """Everything but a scaling curve, which needs two sizes, can be drawn of a single cell."""
    m = study.metrics
    alone = replace(study, metrics=m[(m["model"] == "2 layers") & (m["task"] == "first")])
    for kind in STUDY_KINDS:
        if kind == "scaling":
            with pytest.raises(ld.InputError, match="two different x"):
                alone.plot(kind=kind)
        else:
            alone.plot(kind=kind).to_json()
    assert "1 of 8 models" in alone.plot(kind="tradeoff").layout.title.subtitle.text
    assert len(alone.plot(kind="curves").layout.updatemenus) == 1


@pytest.mark.nightly
def test_missing_cells_leave_gaps(gappy):
    """A model that lacks a task is drawn where it has one."""
    figure = gappy.plot(kind="curves", models=["3 layers"])
    lengths: dict[str, set[int]] = {}
    for trace in figure.data:
        task = figure.layout.annotations[int(trace.xaxis[1:] or 1) - 1].text
        lengths.setdefault(task, set()).add(sum(y is not None for y in trace.y))
        assert len(trace.x) > 0  # or the legend would lose it
    assert lengths == {"first": {7}, "second": {0}, "third": {7}}
    for kind in STUDY_KINDS:
        gappy.plot(kind=kind).to_json()


def colors(layout):
    """Every color that a layout sets itself."""
    if isinstance(layout, dict):
        found = [v for k, v in layout.items() if k.endswith("color") and isinstance(v, str)]
        return found + [c for v in layout.values() for c in colors(v)]
    return [c for v in layout for c in colors(v)] if isinstance(layout, list | tuple) else []


@pytest.mark.nightly
def test_hostile_names_stay_text_and_colors_are_the_templates(study):
    """No name becomes HTML in any figure or page, and no layout sets what differs between light and dark."""
    metrics = study.metrics.replace(
        {"model": {"3 layers": HOSTILE, "2 layers": "%{y}<b>"}, "task": {"second": HOSTILE + "2"}}
    )
    names = {"3 layers": HOSTILE, "2 layers": "%{y}<b>"}
    cells = [
        c | {"settings": c["settings"] | {"model": names.get(m := c["settings"]["model"], m)}} for c in study.cells
    ]
    evil = replace(study, metrics=metrics, cells=tuple(cells))
    page = Page("hostile")
    for kind in STUDY_KINDS:
        figure = evil.plot(kind=kind)
        assert "<img" not in figure.to_json().replace("\\u003c", "<")
        layout = figure.to_plotly_json()["layout"]
        for buttons in ("template", "updatemenus"):  # what buttons put into traces is not a layout
            layout.pop(buttons, None)
        assert not colors(layout)
        page.figure(figure, HOSTILE)
    for trace in evil.plot(kind="curves").data:
        assert "<b>%{y}" not in trace.hovertemplate
    assert "&lt;img" in str(evil.plot().layout.yaxis.ticktext)
    assert "<img" not in page.html()
    assert "<img" not in evil.scaling().plot(names=[HOSTILE] * 3, title=HOSTILE).to_json()


@pytest.mark.full
def test_units_and_intervals_are_those_of_the_numbers(study):
    """The axis of returns has the unit of what is drawn; a share of one task is said to have no interval."""
    for quantity, unit in (("MSE", "hundredths"), ("bias", "hundredths"), ("accuracy", "%"), ("entropy", "nats")):
        figure = study.plot(kind="scaling", quantity=quantity)
        assert figure.layout.yaxis.title.text == f"{quantity}, mean over tasks ({unit})"
        np.testing.assert_allclose(figure.data[-1].y, study.table()[quantity]["Avg."])
    one = replace(study, metrics=study.metrics[study.metrics["task"] == "first"])
    hovers = [text for trace in one.plot(kind="shares").data for text in trace.hovertext or ()]
    assert hovers
    assert all("no interval" in text and "nan" not in text for text in hovers)
