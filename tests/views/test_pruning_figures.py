"""Figures of agreements and of plans of what to drop: what is drawn is what the frames say."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.depth.agreement import Agreement
from layerdiv_tl.views import style
from layerdiv_tl.views.figures import FIGURES
from layerdiv_tl.views.figures.agreement import measures
from layerdiv_tl.views.figures.pruning import _compared
from tests.conftest import llama

HOSTILE = "</script><img src=x onerror=alert(1)>"
IDS = [[i % 61, (3 * i) % 61, 5, i // 2, 7, 11 + i, 40 - i] for i in range(12)]


@pytest.fixture(scope="module")
def model():
    return ld.load_model(llama(num_hidden_layers=4))


@pytest.fixture(scope="module")
def agreement(model):
    return ld.depth.agreement(model, IDS)


@pytest.fixture(scope="module")
def plan(model):
    return ld.depth.drop_plan(model, IDS, 3, part="sublayer", random=4)


def on(figure, axis):
    """The traces of one panel."""
    return [trace for trace in figure.data if (trace.yaxis or "y") == axis]


@pytest.mark.full
@pytest.mark.parametrize("effect", ["loss", "accuracy"])
@pytest.mark.parametrize("scale", ["rank", "value"])
def test_each_panel_has_every_component_where_the_frame_puts_it(agreement, effect, scale):
    """x is a measure's rank, y the effect or its rank; 1 is at the right and at the top; modules have their colors."""
    frame, figure = agreement.frame().set_index("component"), agreement.plot(effect=effect, scale=scale)
    module = {c.label: c.module for c in agreement.components}
    at = effect if scale == "value" else f"{effect}_rank"
    for number, measure in enumerate(measures(agreement)):
        seen = {}
        for trace in (t for t in on(figure, f"y{number + 1}" if number else "y") if t.mode == "markers"):
            for x, y, hover in zip(trace.x, trace.y, trace.hovertext, strict=True):
                label = hover.split("</b>")[0].removeprefix("<b>")
                assert style.MODULE[module[label]] == trace.marker.color
                assert f"rank {style.number(frame[f'{measure}_rank'][label])} " in hover
                assert style.number(frame[measure][label]) in hover
                assert style.number(frame[effect][label]) in hover
                seen[label] = (x, y)
        assert seen == {c: (frame[f"{measure}_rank"][c], frame[at][c]) for c in frame.index}
    left, right = figure.layout.xaxis.range
    assert left > right
    bottom, top = figure.layout.yaxis.range
    assert (bottom > top) == (scale == "rank")
    assert min(bottom, top) < frame[at].min() <= frame[at].max() < max(bottom, top)


@pytest.mark.full
def test_names_stand_at_their_marks(agreement):
    """A named mark is a component of the frame, at that component's place, and the first by the effect is named."""
    frame = agreement.frame().set_index("component")
    for scale, at in (("rank", "loss_rank"), ("value", "loss")):
        figure = agreement.plot(scale=scale)
        for number, measure in enumerate(measures(agreement)):
            (names,) = [t for t in on(figure, f"y{number + 1}" if number else "y") if t.mode == "text"]
            places = {text.strip(): place for text, *place in zip(names.text, names.x, names.y, strict=True)}
            assert frame["loss"].idxmax() in places
            for label, (x, y) in places.items():
                assert (x, y) == (frame[f"{measure}_rank"][label], frame[at][label])


@pytest.mark.full
def test_the_other_button_gives_the_other_figure(agreement):
    """What a button puts in place of the marks is what the option would have drawn."""
    ranked, valued = agreement.plot(), agreement.plot(scale="value")
    for figure, other in ((ranked, valued), (valued, ranked)):
        (menu,) = figure.layout.updatemenus
        update, layout = menu.buttons[1 - menu.active].args
        for number, trace in enumerate(other.data):
            np.testing.assert_array_equal(update["x"][number], trace.x)
            np.testing.assert_array_equal(update["y"][number], trace.y)
            assert update["error_y"][number]["visible"] == trace.error_y.visible
            assert tuple(update["text"][number] or ()) == (trace.text or ())
        assert layout["yaxis.title.text"] == other.layout.yaxis.title.text
        assert tuple(layout["yaxis.range"]) == tuple(layout["yaxis5.range"]) == other.layout.yaxis.range


@pytest.mark.full
def test_headings_say_the_correlation(agreement):
    """Each panel's heading has the pooled correlation; raw stands next to centered."""
    frame = agreement.correlations().query("kind == 'all' and effect == 'accuracy'")
    headings = [note.text.replace("−", "-") for note in agreement.plot(effect="accuracy").layout.annotations]
    assert [heading.split(":")[0] for heading in headings[:2]] == ["Diversity, raw", "Diversity, centered"]
    for heading, row in zip(headings, frame.itertuples(), strict=True):
        if np.isfinite(row.correlation):
            assert heading.endswith(f"ρ = {row.correlation:.2f}")
        else:
            assert "ρ" not in heading


def test_the_map_holds_every_rank(agreement):
    """Rows are effects, a gap, measures; columns are components in stream order; each row is named at its middle."""
    frame, figure = agreement.frame(), agreement.plot(kind="ranks")
    heat = figure.data[0]
    quantities = ["loss", "accuracy", *measures(agreement)]
    z = np.array(heat.z, dtype=float)
    assert np.isnan(z[2]).all()
    np.testing.assert_array_equal(np.delete(z, 2, 0), frame[[f"{q}_rank" for q in quantities]].to_numpy().T)
    middles = np.delete((np.array(heat.y)[1:] + np.array(heat.y)[:-1]) / 2, 2)
    np.testing.assert_allclose(middles, figure.layout.yaxis.tickvals)
    assert figure.layout.yaxis.ticktext[2:4] == ("Diversity, raw", "Diversity, centered")
    for hovers, quantity in zip([*heat.hovertext[:2], *heat.hovertext[3:]], quantities, strict=True):
        for hover, label, value in zip(hovers, frame["component"], frame[quantity], strict=True):
            assert hover.startswith(f"<b>{label}</b>")
            assert style.number(value) in hover
    # Rank 1 takes the strong end of the scale.
    assert (heat.zmin, heat.zmax, heat.reversescale) == (1, len(frame), True)
    strip = {int(x): trace.marker.color for trace in figure.data[1:] for x in trace.x}
    assert strip == {i: style.MODULE[c.module] for i, c in enumerate(agreement.components)}


@pytest.mark.parametrize("effect", ["loss", "accuracy"])
def test_bars_are_the_correlations(agreement, effect):
    """One color per kind, one bar per measure, and no whiskers: rows have no interval that holds."""
    frame = agreement.correlations().query("effect == @effect")
    figure = agreement.plot(kind="correlations", effect=effect)
    assert len(figure.data) == frame["kind"].nunique() == 3
    for trace, (_, rows) in zip(figure.data, frame.groupby("kind", sort=False), strict=True):
        np.testing.assert_array_equal(trace.y, rows["correlation"])
        assert trace.error_y.array is None
        for hover, row in zip(trace.hovertext, rows.itertuples(), strict=True):
            assert style.number(row.low_components) in hover
    assert len({trace.marker.color for trace in figure.data}) == 3
    assert figure.layout.yaxis.zeroline


@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_the_curve_is_the_frame(plan, quantity):
    """Lines begin at the model as it is, bands are the intervals, every random plan has its ring at the budget."""
    frame, figure = plan.frame(), plan.plot(quantity=quantity)
    bands = [t for t in figure.data if t.fill == "toself"]
    lines = [t for t in figure.data if t.mode == "lines+markers"]
    for key, band, line in zip(["plan", "block_influence"], bands, lines, strict=True):
        rows = frame[frame["plan"].isin(["none", key])]
        np.testing.assert_array_equal(line.x, [0, 1, 2, 3])
        np.testing.assert_array_equal(line.y, rows[quantity])
        np.testing.assert_array_equal(band.y[:4], rows[f"{quantity}_high"])
        np.testing.assert_array_equal(band.y[4:][::-1], rows[f"{quantity}_low"])
        gone = plan.dropped if key == "plan" else plan.influence_dropped
        assert all(c.label in text for c, text in zip(gone, line.hovertext[1:], strict=True))
    rings, mean = figure.data[-2:]
    np.testing.assert_array_equal(rings.x, [3] * 4)
    np.testing.assert_array_equal(rings.y, plan.random_plans()[quantity])
    np.testing.assert_allclose(np.mean(rings.y), mean.y[0])
    assert figure.layout.shapes[0].y0 == frame[quantity].iloc[0]
    assert list(figure.layout.updatemenus[0].buttons[1].args[0]["visible"]) == [True] * 4 + [False] * 2
    assert "3 of 8 sublayers" in figure.layout.title.text
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert "Chosen on 6 rows of texts, measured on 6 others" in said
    for value in plan.compare()[quantity]:
        assert f"{style.number(abs(value))} {'nats ' * (quantity == 'loss')}{'below' if value < 0 else 'above'}" in said


def test_random_plans_are_what_the_model_is_without_them(model, plan):
    """A random plan's loss is that of a plan that drops the same, found on its own; there may be none."""
    frame = plan.random_plans()
    gone = {c.label for c in plan.random_dropped[1]}
    assert frame["components"][1].split(", ") == [c.label for c in plan.random_dropped[1]]
    scores = {c.label: float(c.label not in gone) for c in plan.candidates}
    same = ld.depth.drop_plan(model, IDS, 3, scores, part="sublayer", random=0)
    assert {c.label for c in same.dropped} == gone
    row = same.frame().query("plan == 'plan' and dropped == 3").iloc[0]
    assert frame["loss"][1] == pytest.approx(row["loss"])
    assert frame["accuracy"][1] == pytest.approx(row["accuracy"])
    assert len(same.random_plans()) == 0
    figure = same.plot()
    assert "given; block influence chose on 6 rows" in figure.layout.title.subtitle.text.replace("<br>", " ")
    assert len(figure.data) == 4
    assert not figure.layout.updatemenus


def test_bars_of_candidates_are_their_scores(plan):
    """Every candidate has its bar; what goes is solid and numbered in order, what stays is seen through."""
    frame, figure = plan.scores(), plan.plot(kind="components")
    seen = {}
    for trace in figure.data:
        for x, y, text, color in zip(trace.x, trace.y, trace.text, trace.marker.color, strict=True):
            seen[int(x)] = (y, text)
            whole = style.MODULE[plan.candidates[x].module]
            assert (color == whole) == frame["drop"][x]
    places = [str(place) if place else "" for place in frame["drop_order"]]
    assert [seen[i] for i in range(len(frame))] == list(zip(frame["score"], places, strict=True))


def test_unknown_options_are_refused(agreement, plan):
    """An option that does not exist is named with those that do."""
    for kind in ("scatter", "correlations"):
        with pytest.raises(ld.InputError, match="effect='speed'"):
            agreement.plot(kind=kind, effect="speed")
    with pytest.raises(ld.InputError, match="scale='log'"):
        agreement.plot(scale="log")
    with pytest.raises(ld.InputError, match="quantity='loss_growth'"):
        plan.plot(quantity="loss_growth")


@pytest.mark.full
def test_what_too_few_components_or_rows_cannot_show(agreement):
    """Two components have marks and ranks, but no correlation."""
    two = dataclasses.replace(agreement, components=agreement.components[:2], sums=agreement.sums[:, :, :2])
    assert not any("ρ" in note.text for note in two.plot().layout.annotations)
    assert len(two.plot(kind="ranks").data[0].z[0]) == 2
    with pytest.raises(ld.InputError, match="fewer than three components"):
        two.plot(kind="correlations")


@pytest.mark.full
def test_layers_are_called_layers(model):
    """Whole layers are one group in their own color."""
    layers = ld.depth.agreement(model, IDS, "layer")
    assert isinstance(layers, Agreement)
    figure = layers.plot(kind="correlations")
    assert [trace.marker.color for trace in figure.data] == [style.MODULE["layer"]]
    assert "which layers" in layers.plot().layout.title.text


@pytest.mark.full
def test_hostile_names_stay_text_and_dark_is_left_to_the_template(agreement, plan):
    """Nothing that a model or a task says becomes markup; no figure names an ink or a ground of its own."""
    rows = plan.provenance["rows"] | {"where": HOSTILE}
    results = [
        dataclasses.replace(agreement, model=HOSTILE, rows=HOSTILE),
        dataclasses.replace(plan, model=HOSTILE, score="given", provenance=plan.provenance | {"rows": rows}),
    ]
    own = [getattr(theme, at) for theme in (style.LIGHT, style.DARK) for at in ("ink", "grid", "muted", "paper")]
    for result in results:
        for kind in FIGURES[type(result).__name__]:
            figure = result.plot(kind=kind)
            text = str(figure.to_dict())
            assert "<img" not in text
            assert "</script" not in text
            assert "&lt;" in text
            bare = figure.update_layout(template=None).to_json()
            assert not [color for color in own if color in bare]
            assert result.plot(kind=kind, dark=True).layout.template.layout.paper_bgcolor == style.DARK.paper


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_the_caption_says_on_which_side_another_plan_lies(sign, quantity):
    """Above or below, by a positive number and its interval's ends in order, as `compare` has them."""
    row = {"other": "block_influence", "dropped": 1, "win_rate": 0.5}
    ends = (0.05, 0.01, 0.09) if sign > 0 else (-0.05, -0.09, -0.01)
    row |= {f"{quantity}{end}": x for end, x in zip(("", "_low", "_high"), ends, strict=True)}
    frame = pd.DataFrame([row])
    frame.attrs["units"] = {"loss": "nats", "accuracy": "share"}
    said = _compared(SimpleNamespace(compare=lambda: frame, dropped=(1,)), quantity)
    unit = " nats" if quantity == "loss" else ""
    assert f"is 0.05{unit} {'above' if sign > 0 else 'below'} block influence's [0.01, 0.09]" in said
    assert " off " not in said
