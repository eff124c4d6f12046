"""Figures of decompositions and of information are the frames that they draw."""

import dataclasses

import numpy as np
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import kit, style
from tests.conftest import llama, tied
from tests.oracles.families import family

PROMPTS = [[1, 2, 3], [4, 5], [6], [9, 2, 7], [3, 8], [5, 5, 1], [2], [7, 4]]
OPTIONS, LABELS = [7, 30, 11], [0, 1, 0, 2, 1, 2, 0, 1]


def heads(**options):
    """A decomposition of a model that runs two of its blocks twice, by heads."""
    return ld.decompose(ld.contributions(tied(0, 1, 2, 0, 1), PROMPTS, OPTIONS, unit="head"), LABELS, **options)


def on(figure, number):
    """The traces of a panel."""
    return [t for t in figure.data if (t.yaxis or "y") == f"y{number + 1 if number else ''}"]


def places(traces):
    """{label: (x, y)} of bars and marks, by the first line of their hover."""
    shown = [t for t in traces if t.hovertext is not None and (t.type == "bar" or t.mode == "markers")]
    rows = [(h, t.x[i], t.y[i]) for t in shown for i, h in enumerate(np.ravel(t.hovertext))]
    return {label.split("</b>")[0].removeprefix("<b>"): (x, y) for label, x, y in rows}


def text(title):
    return (title.text or "").replace("<br>", "").replace("\xa0", " ")


@pytest.mark.parametrize(
    ("loss", "gauge"),
    [
        ("squared", "centered"),
        ("squared", "raw"),
        ("squared", "shift"),
        ("paper", "centered"),
        ("cross_entropy", "raw"),
    ],
)
def test_bars_and_the_scatter_are_the_frame(loss, gauge):
    """Bars are columns in their units, from the zero baseline; marks are bias and diversity; titles are short."""
    d = heads(loss=loss, gauge=gauge)
    frame, figure = d.by_component(full=True), d.plot()
    for number, term in enumerate(("bias", "diversity")):
        tops = {label: x for label, (_, x) in places(on(figure, number)).items()}
        base = {bar.base for bar in on(figure, number)}
        assert [tops[label] + base.copy().pop() for label in frame["component"]] == pytest.approx(frame[term].tolist())
        assert figure.layout[f"yaxis{number + 1 if number else ''}"].title.text == frame.attrs["units"][term]
    assert figure.layout.shapes[0].y0 == pytest.approx(d.zero_bias)
    assert all(style.number(x, 3) in text(figure.layout.title.subtitle) for x in (d.loss, d.bias, d.diversity))
    scatter = d.plot("scatter")
    assert places(scatter.data) == {row.component: (row.bias, row.diversity) for row in frame.itertuples()}
    guides = {trace.name: trace for trace in scatter.data if trace.mode == "lines"}
    assert set(guides["zero baseline"].x) == {d.zero_bias}
    assert ("net = 0" in guides) == (loss != "paper")
    for kind in set(d.figures) - ({"tradeoff"} if loss != "squared" else set()):
        title = text(d.plot(kind).layout.title)
        assert len(title.split()) <= 8
        assert not d.plot(kind).layout.updatemenus
    assert text(figure.layout.title).endswith(gauge) == (loss == "squared")
    if loss != "squared":
        with pytest.raises(ld.InputError, match="squared"):
            d.plot("tradeoff")


def test_the_cross_entropy_is_drawn_when_asked_for():
    """Whatever the loss: the means of net_linear, as bars or a map of heads; what has no labels has no such figure."""
    for unit in ("sublayer", "head"):
        c = ld.contributions(llama(), PROMPTS, OPTIONS, unit=unit)
        d, nats = ld.decompose(c, LABELS), ld.decompose(c, LABELS, loss="cross_entropy")
        net = dict(zip((c.label for c in c.components), nats.net_linear.mean(0), strict=True))
        figure = d.plot("cross_entropy")
        if unit == "sublayer":
            assert {label: y for label, (_, y) in places(figure.data).items()} == pytest.approx(net)
        else:
            expected = [[net[f"L{layer}.H{head}"] for head in range(4)] for layer in range(3)]
            np.testing.assert_allclose(np.array(figure.data[0].z, dtype=float), expected)
    with pytest.raises(ld.InputError, match="labels="):
        ld.decompose(c.values, target=c.values.sum(1)).plot("cross_entropy")


@pytest.mark.parametrize("norm", ["frozen", "recomputed"])
def test_depth_curves_are_the_prefixes(norm):
    """Curves, bands and marks are `by_depth`'s columns; open marks are partial sums; guessing is the largest class."""
    d = ld.decompose(ld.contributions(family("neox_parallel"), PROMPTS, OPTIONS, unit="head"), LABELS)
    frame = d.by_depth(norm)
    assert frame["partial"].any()
    for fair in (True, False):
        figure = d.plot("depth", norm=norm, size_fair=fair)
        for number, column in enumerate(["accuracy", "loss", "bias", "diversity_logit" if fair else "diversity"]):
            band, curve, *points = on(figure, number)
            if column == "accuracy":
                assert set(points.pop().y) == {3 / 8} == {d.chance}
            np.testing.assert_array_equal(curve.y, frame[column])
            there_and_back = np.concatenate([frame[f"{column}_high"], frame[f"{column}_low"][::-1]])
            np.testing.assert_array_equal(band.y, there_and_back)
            seen = {x: (y, s) for t in points for x, y, s in zip(t.x, t.y, t.marker.symbol, strict=True)}
            partial = {True: "circle-open", False: "circle"}
            assert seen == {i: (row[column], partial[row["partial"]]) for i, row in frame.iterrows()}
    without = ld.decompose(d.values, target=np.zeros((8, 3)), components=d.components).plot("depth")
    assert len(without.layout.annotations) == 3  # no accuracy


def test_module_shares_stand_next_to_count_shares():
    d = heads()
    frame, figure = d.by_module().set_index("module"), d.plot("modules")
    bars = [t for t in figure.data if t.type == "bar"]
    for trace in bars:
        column = ("bias_share", "diversity_share")[round(trace.x[0])]
        assert trace.y[0] == frame.loc[trace.legendgroup, column]
        assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(frame.loc[trace.legendgroup, f"{column}_low"])
    assert len(bars) == 2 * len(frame)
    assert all(list(t.y) == frame["member_share"].tolist() for t in figure.data if t.type == "scatter")


@pytest.mark.parametrize("term", ["net", "diversity", "logit_difference", "constant_share"])
def test_the_grid_holds_every_head_where_it_is(term):
    """Row = layer, column = head; next to it the MLPs; within a layer, minus the layer's mean; gaps stay empty."""
    d = ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS, unit="head"), LABELS)
    frame = d.by_component(full=True).set_index("component")[term] - (d.zero_net if term == "net" else 0.0)
    grid, mlps = d.plot("heads", term=term).data
    expected = [[frame[f"L{layer}.H{head}"] for head in range(4)] for layer in range(3)]
    np.testing.assert_array_equal(grid.z, expected)
    np.testing.assert_array_equal(mlps.x, [frame[f"L{layer}.mlp"] for layer in range(3)])
    assert "L2.H3" in grid.hovertext[2][3]
    within = d.plot("heads", term=term, within_layer=True).data[0]
    np.testing.assert_allclose(within.z, np.array(expected) - np.mean(expected, 1, keepdims=True), atol=1e-15)
    kept = [i for i, c in enumerate(d.components) if c.label in ("L0.H3", "L2.H0", "L2.H1")]
    few = dataclasses.replace(d, values=d.values[:, kept], components=tuple(d.components[i] for i in kept))
    (gaps,) = few.plot("heads").data
    assert {(int(r), int(c)) for r, c in zip(*np.nonzero(np.isfinite(gaps.z)), strict=True)} == {(0, 3), (1, 0), (1, 1)}
    with pytest.raises(ld.InputError, match="no heads here"):
        ld.decompose(d.values, LABELS).plot("heads")
    for wrong in ("color", "kind", "layer"):
        with pytest.raises(ld.InputError, match=f"term='{wrong}'"):
            d.plot("heads", term=wrong)


def test_the_pairs_are_cosines_of_neighbors():
    """Cells equal cosines computed from the values, in the order of `pairwise`; the strip has the modules' colors."""
    d = ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS, unit="head"), LABELS)
    u = d.values - d.values.mean(2, keepdims=True)
    flat = np.moveaxis(u, 1, 0).reshape(u.shape[1], -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    cosine = dict(zip((c.label for c in d.components), flat, strict=True))
    figure = d.plot("pairwise")
    matrix, labels = figure.data[0], list(figure.data[0].x)
    assert list(matrix.y) == labels == list(figure.layout.xaxis.categoryarray) == d.pairwise().attrs["order"]
    expected = np.array([[cosine[a] @ cosine[b] for b in labels] for a in labels])
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_allclose(matrix.z, expected, atol=1e-6)
    strip = {x: trace.name for trace in figure.data if trace.type == "bar" for x in trace.x}
    assert strip == {c.label: style.MODULE_NAME[c.module] for c in d.components}
    frame = d.pairwise("distance").set_index(["component", "other"])["distance"]
    few = d.plot("pairwise", by="distance", max_components=5).data[0]
    assert len(few.x) == 5
    assert few.z[0][1] == pytest.approx(frame.get(tuple(few.x[:2]), frame.get(tuple(few.x[1::-1]))), rel=1e-6)


@pytest.mark.parametrize("gauge", ["centered", "raw"])
def test_trade_off_bars_are_theorem_3(gauge):
    """Bars are the summands, the last their sum; Ω's rows are shaded, and are those that stand in both."""
    d = heads(gauge=gauge)
    table, figure = d.tradeoff(), d.plot("tradeoff")
    for trace, term in zip(figure.data, ("bias", "diversity"), strict=True):
        np.testing.assert_allclose(trace.x[:-1], table[term], atol=1e-12)
        assert trace.x[-1] == pytest.approx(table[term].sum())
        np.testing.assert_allclose((trace.x + trace.error_x.array)[:-1], table[f"{term}_high"], atol=1e-12)
        assert trace.x[-1] == pytest.approx(getattr(d, term))
    shade = figure.layout.shapes[0]
    omega = np.flatnonzero(table["term"].str.contains("Ω"))
    assert [i for i in range(len(table)) if shade.y0 < i < shade.y1] == omega.tolist()


def test_roles_are_sizes_next_to_what_components_do_alone():
    """Marks are the frame's logit difference and √diversity, colored by accuracy − guessing; costs those of effects."""
    task = ld.task("synthetic/recall", limit=24)
    chosen, others = task.select(range(16)), task.select(range(16, 24))
    d = ld.decompose(ld.contributions("zoo/d4", chosen), chosen.labels)
    effects = [ld.effects("zoo/d4", others, ablation=how, components=["L1.attn", "L3.mlp"]) for how in ("mean", "zero")]
    frame = d.by_component(full=True)
    columns = [frame[name] for name in ("logit_difference", "diversity", "accuracy")]
    for figure in (d.plot("roles"), d.plot("roles", effects=effects)):
        both = [trace for trace in figure.data if trace.marker.colorbar.title.text]  # without and with a name
        x, y, color = (np.concatenate(each) for each in zip(*((t.x, t.y, t.marker.color) for t in both), strict=True))
        ends = np.array([float(label.rstrip(" %")) / 100 for label in both[-1].marker.colorbar.ticktext])
        assert 0 <= ends[0] <= ends[1] <= ends[2] <= 1
        assert ends[1] == pytest.approx(d.chance, abs=0.006)
        drawn = [x, np.square(y), np.interp(color, [-1, 0, 1], [0.0, d.chance, 1.0])]
        np.testing.assert_allclose(sorted(zip(*drawn, strict=True)), sorted(zip(*columns, strict=True)))
    for e, name in zip(effects, ("mean ablation", "zero ablation"), strict=True):
        (trace,) = (trace for trace in figure.data if trace.name == name)
        np.testing.assert_allclose(trace.x, e.frame()["cost"])
    names = {label.strip() for trace in figure.data if trace.mode == "markers+text" for label in trace.text}
    assert {*effects[0].names, frame["component"][frame["logit_difference"].argmax()]} <= names
    every = ld.effects("zoo/d4", others, unit="head")
    (drawn,) = (trace for trace in d.plot("roles", effects=every).data if trace.name == "mean ablation")
    assert sorted(drawn.x) == pytest.approx(sorted(every.frame()["cost"].sort_values(key=abs).tail(12)))
    with pytest.raises(ld.InputError, match="labels"):
        ld.decompose(d.values, target=d.target).plot("roles")
    with pytest.raises(ld.InputError, match="effects"):
        d.plot("roles", effects=[d])
    with pytest.raises(ld.InputError, match="of zoo/d2, but the decomposition is of zoo/d4"):
        d.plot("roles", effects=ld.effects("zoo/d2", others, components=["L1.mlp"]))


def test_a_constant_that_writes_the_larger_class_is_not_drawn_above_guessing():
    """At 70:30 labels it is right in 70 % of rows, and gray; a reader is not."""
    labels = np.array([0] * 70 + [1] * 30)
    u = np.zeros((100, 3, 2))
    u[:, 0, 0], u[:, 1] = 5.0, 2 * np.eye(2)[labels]
    u[:, 2] = np.random.default_rng(0).normal(size=(100, 2))
    figure = ld.decompose(u, labels).plot("roles")
    marks = [trace for trace in figure.data if trace.marker.colorbar.title.text]
    hovers = [hover.split("</b>")[0] for trace in marks for hover in trace.hovertext]
    colors = dict(zip(hovers, np.concatenate([trace.marker.color for trace in marks]), strict=True))
    assert colors["<b>M0"] == 0
    assert colors["<b>M1"] == 1


def test_of_many_components_the_largest_are_shown():
    """Those with the largest diversity, in stream order, and the figure says so."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(6, 1700, 3)) + 5 * rng.normal(size=(6, 1700, 1)) * (np.arange(1700) % 2)[:, None]
    d = ld.decompose(u, [0, 1, 2, 0, 1, 2])
    sizes = d.diversities.mean(0)
    for kind, axis in (("bars", "y2"), ("scatter", "y")):
        figure = d.plot(kind, max_components=1200)
        traces = [t for t in figure.data if (t.yaxis or "y") == axis and (t.type == "bar" or t.mode == "markers")]
        seen = [y for trace in traces for y in trace.y]
        np.testing.assert_array_equal(seen, sizes[np.sort(np.argsort(-sizes)[:1200])])
        assert "1,200 of 1,700" in text(figure.layout.title.subtitle)


def test_one_member_is_drawn_or_answered_in_a_sentence():
    """The embedding alone has no diversity."""
    task = ld.task("synthetic/recall", limit=16)
    alone = ld.decompose(ld.contributions("zoo/d4", task).select(kind="embed"), task.labels)
    for kind in ("bars", "scatter", "depth", "modules", "tradeoff"):
        assert isinstance(alone.plot(kind), go.Figure)
    with pytest.raises(ld.InputError, match="decompose several"):
        alone.plot("roles")


def test_information_is_the_frames_over_its_nulls():
    rng, y = np.random.default_rng(0), np.arange(600) % 2
    noise = np.repeat(rng.normal(size=(600, 3)), 2, axis=1) + 0.7 * rng.normal(size=(600, 6))
    i = ld.information(y[:, None] * 0.8 + noise, y, n_permutations=20, n_resamples=20)
    frame, (band, marks, bound) = i.frame(), i.plot().data
    np.testing.assert_allclose(marks.x, frame["bits"])
    np.testing.assert_allclose(marks.x + marks.error_x.array, frame["high"])
    np.testing.assert_allclose(marks.x - marks.error_x.arrayminus, frame["low"])
    np.testing.assert_allclose(np.array(band.base, dtype=float), frame["null_low"])
    np.testing.assert_allclose(np.add(band.base, band.x).astype(float), frame["null_high"])
    assert (bound.x[0], frame["term"][int(bound.y[0])]) == (i.lower_bound.value, "joint")
    assert i.plot().layout.shapes[0].x0 == pytest.approx(i.label_entropy)
    members, drawn = i.by_component(), i.plot("members")
    for number, column in enumerate(("relevancy", "gain")):
        heights = [y for t in on(drawn, number) if t.type == "bar" for y in t.y]
        np.testing.assert_allclose(heights, members[column], atol=1e-12)
    frame, figure = i.along(), i.plot("along", terms=("joint", "diversity"))
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    for trace, term in zip(lines, ("joint", "diversity"), strict=True):
        np.testing.assert_allclose(trace.y, frame[term])
    warned = dataclasses.replace(i, warnings=("what the estimate leaves out",))
    assert "what the estimate leaves out" in text(warned.plot().layout.title.subtitle)
    assert kit.most(members, "relevancy")["relevancy"] == members["relevancy"].max()
