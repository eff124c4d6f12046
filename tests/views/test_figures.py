"""Figures of a decomposition and of a profile: what is drawn is what the frames say, and nothing else."""

import dataclasses
import importlib
import pkgutil
import subprocess
import sys
from typing import get_args

import numpy as np
import plotly.graph_objects as go
import pytest
from scipy.cluster.hierarchy import cophenet, linkage

import layerdiv_tl as ld
from layerdiv_tl.components import Component
from layerdiv_tl.results import Result
from layerdiv_tl.views import plotting as kit
from layerdiv_tl.views import style
from layerdiv_tl.views.figures import FIGURES
from tests.conftest import llama, tied
from tests.oracles.families import family

PARTS = ("raw", "centered", "shift")
HOSTILE = "</script><img src=x onerror=alert(1)>"
PROMPTS = [[1, 2, 3], [4, 5], [6], [9, 2, 7], [3, 8], [5, 5, 1], [2], [7, 4]]
OPTIONS, LABELS = [7, 30, 11], [0, 1, 0, 2, 1, 2, 0, 1]


@pytest.fixture(scope="module")
def heads():
    return ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS, unit="head"), LABELS)


@pytest.fixture(scope="module")
def reused():
    """A model that runs two of its blocks twice, which has every figure that there is."""
    c = ld.contributions(tied(0, 1, 2, 0, 1), PROMPTS, OPTIONS, unit="head")
    return ld.decompose(c, LABELS)


@pytest.fixture(scope="module")
def parallel():
    """A model whose attention and MLP read the same stream, so that the junction between is not a place in it."""
    c = ld.contributions(family("neox_parallel"), PROMPTS, OPTIONS, unit="head")
    return ld.decompose(c, LABELS)


@pytest.fixture(scope="module")
def many():
    """More members than a figure shows, of very different sizes."""
    rng = np.random.default_rng(0)
    return ld.decompose(rng.normal(size=(6, 1700, 3)) * rng.exponential(size=(1, 1700, 1)), [0, 1, 2, 0, 1, 2])


def suffix(part):
    return "" if part == "raw" else f"_{part}"


def after(figure, number):
    """The figure once a button was pressed, as plotly.js presses it."""
    pressed = go.Figure(figure)
    update, *moved = figure.layout.updatemenus[0].buttons[number].args
    for key, values in update.items():
        assert len(values) == len(pressed.data)
        for trace, value in zip(pressed.data, values, strict=True):
            if value is not None:
                trace[key] = value
    for key, value in (moved[0] if moved else {}).items():
        at, _, name = key.partition("].")
        if name:
            getattr(pressed.layout, at.partition("[")[0])[int(at.partition("[")[2])][name] = value
        else:
            pressed.layout[at.replace(".", "_")] = value
    return pressed


def marks(figure):
    """{label: (x, y)} of all marks that have a hover."""
    return {
        label: (x, y)
        for trace in figure.data
        if trace.mode == "markers"
        for label, x, y in zip(trace.hovertext, trace.x, trace.y, strict=True)
    }


@pytest.mark.full
def test_every_kind_is_reached_by_name_and_an_unknown_one_is_told_the_others(heads, reused):
    """The first kind is the natural one; an unknown kind answers with the names that this result has."""
    for kind, draw in FIGURES["Decomposition"].items():
        assert reused.plot(kind=kind).to_json() == draw(reused).to_json()
    assert heads.plot().to_json() == heads.plot(kind="bars").to_json()
    with pytest.raises(ld.InputError, match="use 'bars', 'cross_entropy'.*'modules'.* 'tradeoff'"):
        heads.plot(kind="pie")
    profile = ld.profile(llama(), [1, 2, 3])
    with pytest.raises(ld.InputError, match="use 'map', 'depth', 'loss' or 'scatter'"):
        profile.plot(kind="tradeoff")
    for dark, theme in ((True, style.DARK), (False, style.LIGHT), (None, style.BOTH)):
        assert heads.plot(kind="scatter", dark=dark).layout.template.layout.paper_bgcolor == theme.paper


def test_a_figure_reads_in_every_notebook():
    """Text has contrast on the grounds of JupyterLab and VS Code, light and dark, and nothing covers these."""

    def luminance(color):
        channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [
            0.2126,
            0.7152,
            0.0722,
        ]

    for ground in ("#ffffff", "#111111", "#1f1f1f"):
        for text in (style.BOTH.ink, style.BOTH.muted):
            lower, higher = sorted(luminance(color) + 0.05 for color in (ground, text))
            assert higher / lower >= 4
    layout = style.template(style.BOTH).layout
    assert {layout.paper_bgcolor, layout.plot_bgcolor} == {style.CLEAR}
    for scale in (style.BOTH.sequential, style.BOTH.diverging):
        assert {color.split(",")[-1].strip(" )") for _, color in scale} == {"0", "1"}  # nothing is seen where zero is


@pytest.mark.parametrize("loss", ["squared", "paper", "cross_entropy", "brier"])
def test_the_default_figure_is_of_the_decompositions_own_loss(heads, loss):
    """Bars of every loss average to its `bias` and `diversity`, and the subtitle has these; another loss has a name."""
    d = ld.decompose(heads.values, LABELS, loss=loss, components=heads.components)
    figure = d.plot()
    assert figure.to_json() == d.plot(kind="bars").to_json()
    for axis, term in (("y", "bias"), ("y2", "diversity")):
        tops = np.concatenate([np.add(t.base, t.y) for t in figure.data if t.yaxis == axis])
        assert len(tops) == len(d.components)
        assert tops.mean() == pytest.approx(getattr(d, term))
    subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert all(style.number(x) in subtitle for x in (d.loss, d.bias, d.diversity))
    if d.halves:  # buttons exchange the numbers, too
        half = figure.layout.updatemenus[0].buttons[1].args[1]["title.subtitle.text"]
        assert style.number(d.centered.loss) in half
        assert style.number(d.loss) not in half


def test_the_cross_entropy_is_drawn_when_asked_for(heads):
    """Whatever the loss: the means of net_linear, a map of heads or bars; what has no labels has no such figure."""
    nats = ld.decompose(heads.values, LABELS, loss="cross_entropy", components=heads.components)
    net = dict(zip((c.label for c in heads.components), nats.net_linear.mean(0), strict=True))
    grid = heads.plot(kind="cross_entropy").data[0]
    expected = [[net[f"L{layer}.H{head}"] for head in range(4)] for layer in range(3)]
    np.testing.assert_allclose(np.array(grid.z, dtype=float), expected)
    whole = ld.decompose(heads.values, LABELS).plot(kind="cross_entropy")
    drawn = {text.split("<")[1][2:]: y for t in whole.data for text, y in zip(t.hovertext, t.y, strict=True)}
    np.testing.assert_allclose(list(drawn.values()), nats.net_linear.mean(0))
    for other in (ld.decompose(heads.values, target=heads.values.sum(1)), heads.centered):
        with pytest.raises(ld.InputError, match="labels="):
            other.plot(kind="cross_entropy")


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_a_difference_is_drawn_with_its_two_sides(unit):
    """Each relative to the vocabulary's mean: of a difference's figure, and of contributions to two options.

    The second source are contributions to every id, averaged.
    """
    model, first, second = llama(), 7, 30
    c = ld.contributions(model, PROMPTS, [first, second], unit=unit)
    vocabulary = ld.contributions(model, PROMPTS, list(range(model.config.vocab_size)), unit=unit).values
    sides = (vocabulary[:, :, [first, second]] - vocabulary.mean(2, keepdims=True)).mean(0)
    figure = ld.logit_difference(model, PROMPTS, [first] * 8, [second] * 8, unit=unit).plot()
    labels = list(figure.layout.yaxis.ticktext)
    row = {c.label: i for i, c in enumerate(c.components)}
    marks = [t for t in figure.data if isinstance(t, go.Scatter)]
    assert len(marks) == 2
    for side, trace in enumerate(marks):
        for place, x in zip(trace.y, trace.x, strict=True):
            label = labels[int(place)]
            truth = sides[:, side].sum() if label == "their sum" else sides[row[label], side]
            assert x == pytest.approx(truth, abs=1e-6)
    if unit == "sublayer":
        drawn = np.array(c.plot().data[0].z, dtype=float)
        np.testing.assert_allclose(drawn, [sides[:, 0] - sides[:, 1], *sides.T], atol=1e-6)
        assert not np.allclose(drawn[1], -drawn[2])  # no mirror images
    else:
        panels = [np.array(t.z, dtype=float) for t in c.plot().data]
        heads = [i for i, c in enumerate(c.components) if c.kind == "head"]
        for panel, truth in zip(panels, [sides[:, 0] - sides[:, 1], *sides.T], strict=True):
            np.testing.assert_allclose(panel[:, :4].ravel(), truth[heads], atol=1e-6)
    directions = ld.contributions(model, PROMPTS, directions=np.eye(2, model.config.hidden_size), unit=unit)
    assert directions.difference().sides is None
    assert len(directions.plot().data) == 1


@pytest.mark.parametrize(("low", "high"), [(0.11, 0.13), (0.3, 4.0), (1e-3, 2e2), (1e-9, 1e6), (5.0, 5.0)])
def test_logarithmic_axes_have_plain_ticks(low, high):
    """1, 10, 100, or 1, 2 and 5 times these: at most seven, inside, and each labeled by its own number."""
    axis = kit.log_axis([low, high, 0.0, np.nan])
    ticks, (first, last) = np.array(axis["tickvals"]), axis["range"]
    assert first < np.log10(low) <= np.log10(high) < last
    assert 1 <= len(ticks) <= 7
    assert ((np.log10(ticks) >= first) & (np.log10(ticks) <= last)).all()
    written = [text.replace("10<sup>", "1e").replace("</sup>", "").replace("−", "-") for text in axis["ticktext"]]
    np.testing.assert_allclose(np.array(written, dtype=float), ticks)
    assert {text.strip("0.").rstrip("0")[:1] for text in written if "e" not in text} <= {"1", "2", "5"}


@pytest.mark.parametrize("kind", ["bars", "scatter", "depth", "heads", "pairwise", "tradeoff", "repeats"])
def test_an_unknown_part_is_refused(reused, kind):
    with pytest.raises(ld.InputError, match="part='middle'"):
        reused.plot(kind=kind, part="middle")


@pytest.mark.full
def test_bars_of_uses_show_what_by_use_says(reused):
    """One bar a block, kind and head in three panels; buttons change the part, and the share in the subtitle."""
    frame, figure = reused.by_repeat(), reused.plot(kind="repeats")
    modules = np.where(frame["kind"] == "mlp", "MLP", "Attention")
    for row, at in enumerate(("diversity_centered", "cosine_centered", "share_centered")):
        drawn = [t for t in figure.data if t.yaxis == ("y" if row == 0 else f"y{row + 1}")]
        assert {t.name for t in drawn} == {"Attention", "MLP"}
        for trace in drawn:
            np.testing.assert_array_equal(trace.y, frame[at][modules == trace.name])
            np.testing.assert_array_equal(trace.x, np.flatnonzero(modules == trace.name))
    share = f"{100 * frame.attrs['share_centered']:.3g} %"
    assert share in figure.layout.title.subtitle.text
    raw, _, shift = figure.layout.updatemenus[0].buttons
    assert f"{100 * frame.attrs['share']:.3g} % " in raw.args[1]["title.subtitle.text"]
    np.testing.assert_array_equal(shift.args[0]["y"][0], frame["diversity_shift"][modules == "Attention"])
    np.testing.assert_array_equal(shift.args[0]["y"][2], frame["cosine_centered"][modules == "Attention"])
    few = reused.plot(kind="repeats", max_components=3)
    assert "The 3 of 10 with the largest." in few.layout.title.subtitle.text.replace("<br>", " ")
    assert sum(len(t.y) for t in few.data) == 9


@pytest.mark.full
@pytest.mark.parametrize("loss", ["squared", "paper", "cross_entropy", "brier"])
def test_every_loss_has_the_figures_that_its_numbers_allow(heads, loss):
    """All kinds but Theorem 3's, which is about the squared error; net = 0 where bias and diversity have one unit."""
    d = ld.decompose(heads.values, LABELS, loss=loss, components=heads.components)
    for kind in ("bars", "scatter", "depth", "modules", "heads", "pairwise"):
        assert isinstance(d.plot(kind=kind), go.Figure)
    names = [trace.name for trace in d.plot(kind="scatter").data]
    assert ("net = 0" in names) == (loss != "paper")
    titles = [a.text for a in d.plot(kind="depth").layout.annotations]
    assert ("Loss = bias − diversity" in titles) == (loss != "paper")
    if loss != "squared":
        with pytest.raises(ld.InputError, match="squared"):
            d.plot(kind="tradeoff")


@pytest.mark.full
def test_the_scatter_shows_bias_against_diversity_in_every_part(heads):
    """x and y are the frame's columns, at first and after every button, and the guides are where they belong."""
    frame = heads.by_component(full=True).set_index("component")
    for first, part in enumerate(PARTS):
        figure = heads.plot(kind="scatter", part=part)
        assert figure.layout.updatemenus[0].active == first
        for number, other in enumerate(PARTS):
            shown = after(figure, number)
            expected = frame[[f"bias{suffix(other)}", f"diversity{suffix(other)}"]]
            assert marks(shown) == {label: tuple(row) for label, row in zip(frame.index, expected.values, strict=True)}
            guides = {trace.name: trace for trace in shown.data if trace.mode == "lines"}
            silent = (heads if other == "raw" else getattr(heads, other)).zero_bias
            assert set(guides["a component that writes nothing"].x) == {silent}
            assert guides["net = 0"].x == guides["net = 0"].y
            # Every mark is inside the axes.
            for axis, column in (("xaxis", expected.iloc[:, 0]), ("yaxis", expected.iloc[:, 1])):
                low, high = shown.layout[axis].range
                assert shown.layout[axis].type == "log"
                assert (low < np.log10(column)).all()
                assert (np.log10(column) < high).all()
        assert marks(figure) == marks(after(figure, first))


def test_the_scatter_names_extremes_and_its_hover_has_intervals(heads):
    """The most diverse component is named at its place; custom data are the intervals that the template asks for."""
    frame = heads.by_component(full=True)
    figure = heads.plot(kind="scatter", part="raw")
    names = figure.data[-1]
    top = frame.loc[frame["diversity"].idxmax()]
    assert names.text[0].strip() == top["component"]
    assert (names.x[0], names.y[0]) == (top["bias"], top["diversity"])
    assert len(names.text) <= 8
    heads_only = next(trace for trace in figure.data if trace.name == "Attention")
    rows = frame.set_index("component").loc[list(heads_only.hovertext)]
    asked = heads_only.hovertemplate
    for term in ("bias", "diversity", "net"):
        line = asked[asked.index(f"<br>{term} ") :].split("<br>")[2]
        low, high = (int(piece.split("]")[0]) for piece in line.split("customdata[")[1:])
        for at, end in ((low, "low"), (high, "high")):
            np.testing.assert_allclose(heads_only.customdata[:, at], rows[f"{term}_{end}"], rtol=1e-6)


def test_axes_are_linear_where_a_logarithm_has_no_value():
    """A member that says what the ensemble says has diversity 0."""
    one = ld.decompose(np.array([[[2.0, 0.0]], [[1.0, 3.0]]]), [0, 1])
    assert one.plot(kind="scatter").layout.yaxis.type == "linear"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "count"), [("bars", 300), ("scatter", 1500)])
def test_of_many_the_most_diverse_are_shown_and_the_figure_says_so(many, kind, count):
    """The kept are the largest by the part shown, in stream order, named in the subtitle; marks are WebGL's."""
    figure = many.plot(kind=kind, part="centered", max_components=count)
    size = many.by_component(full=True)["diversity_centered"].to_numpy()
    kept = np.sort(np.argsort(-size)[:count])
    drawn = figure.data[1 if kind == "bars" else 0].y  # bars: bias, diversity, net
    np.testing.assert_array_equal(drawn, size[kept])
    assert f"the {count:,} of 1,700" in figure.layout.title.subtitle.text
    if kind == "scatter":
        assert figure.data[0].type == "scattergl"
        assert many.plot(kind=kind, max_components=900).data[0].type == "scatter"


@pytest.mark.full
@pytest.mark.parametrize("norm", ["frozen", "recomputed"])
def test_depth_curves_are_the_prefixes_in_every_view(parallel, norm):
    """Curves, bands and marks are `by_depth`'s columns after every button; |L|² × diversity is a view of its own."""
    frame = parallel.by_depth(norm)
    figure = parallel.plot(kind="depth", norm=norm)
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    views = [(part, "diversity") for part in PARTS]
    views += [(part, "diversity_logit") for part in PARTS[:2]]
    assert labels == [p if d == "diversity" else f"{p}, |L|² × diversity" for p, d in views]
    for number, (part, diversity) in enumerate(views):
        shown = after(figure, number)
        columns = ["accuracy", *(term + suffix(part) for term in ("loss", "bias", diversity))]
        for axis, column in zip(("y", "y2", "y3", "y4"), columns, strict=True):
            traces = [trace for trace in shown.data if trace.yaxis == axis]
            if column == "accuracy":
                guide = traces.pop()
                assert (guide.name, set(guide.y)) == ("accuracy of one option in 3", {1 / 3})
            band, curve, *points = traces
            np.testing.assert_array_equal(curve.y, frame[column])
            there_and_back = np.concatenate([frame[f"{column}_high"], frame[f"{column}_low"][::-1]])
            np.testing.assert_array_equal(band.y, there_and_back)
            seen = {x: (y, t.marker.symbol) for t in points for x, y in zip(t.x, t.y, strict=True)}
            partial = {True: "circle-open", False: "circle"}
            assert seen == {i: (row[column], partial[row["partial"]]) for i, row in frame.iterrows()}
        assert ("|L|²" in shown.layout.annotations[3].text) == (diversity == "diversity_logit")
    assert frame["partial"].any()
    first = parallel.plot(kind="depth", norm=norm, part="raw", size_fair=True)
    assert first.layout.updatemenus[0].active == 3
    np.testing.assert_array_equal(first.data[-1 - (len(first.data) - 1) // 4 + 1].y, frame["diversity_logit"])


def test_depth_without_labels_has_no_accuracy(heads):
    d = ld.decompose(heads.values, target=np.zeros((8, 3)), components=heads.components)
    assert [a.text for a in d.plot(kind="depth").layout.annotations] == ["Loss = bias − diversity", "Bias", "Diversity"]
    with pytest.raises(ld.InputError, match="norm"):
        d.plot(kind="depth", norm="melted")


@pytest.mark.full
def test_module_shares_stand_next_to_count_shares(heads):
    """Bars are the shares, raw left and centered right; a line across each is n_g/|L|, at the bar's own place."""
    frame = heads.by_module().set_index("module")
    figure = heads.plot(kind="modules")
    lines = {(s.xref, round((s.x0 + s.x1) / 2, 9)): s.y0 for s in figure.layout.shapes}
    assert len(figure.data) == 2 * len(frame)
    for trace in figure.data:
        module = trace.legendgroup
        end = "" if trace.xaxis == "x" else "_centered"
        expected = [frame.loc[module, f"{term}_share{end}"] for term in ("bias", "diversity")]
        np.testing.assert_array_equal(trace.y, expected)
        low = [frame.loc[module, f"{term}_share{end}_low"] for term in ("bias", "diversity")]
        np.testing.assert_allclose(trace.y - trace.error_y.arrayminus, low)
        assert trace.marker.color == style.MODULE[module]
        for x in trace.x:
            assert lines[trace.xaxis, round(x, 9)] == len([c for c in heads.components if c.module == module]) / len(
                heads.components
            )


@pytest.mark.full
@pytest.mark.parametrize(
    ("term", "part", "at"), [("net", "raw", "net"), ("diversity", "centered", "diversity_centered")]
)
def test_the_grid_holds_every_head_where_it_is(heads, term, part, at):
    """Row = layer, column = head; next to it the MLPs; within a layer, what is left once the layer's mean is gone."""
    frame = heads.by_component(full=True).set_index("component")
    figure = heads.plot(kind="heads", term=term, part=part)
    grid, mlps = figure.data
    frame[at] -= heads.zero_net if term == "net" else 0.0
    expected = [[frame.loc[f"L{layer}.H{head}", at] for head in range(4)] for layer in range(3)]
    np.testing.assert_array_equal(grid.z, expected)
    np.testing.assert_array_equal(mlps.x, [frame.loc[f"L{layer}.mlp", at] for layer in range(3)])
    np.testing.assert_array_equal(mlps.y, [0, 1, 2])
    assert "L2.H3" in grid.hovertext[2][3]
    assert "1 other component left out" in figure.layout.title.subtitle.text.replace("<br>", " ")
    assert list(figure.layout.yaxis.ticktext) == ["L0", "L1", "L2"]
    within = heads.plot(kind="heads", term=term, part=part, within_layer=True).data[0]
    np.testing.assert_allclose(within.z, np.array(expected) - np.mean(expected, 1, keepdims=True))
    assert within.zmin == -within.zmax
    np.testing.assert_array_equal(within.hovertext, grid.hovertext)


def test_the_grid_needs_heads_and_a_column_of_numbers(heads):
    whole = ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS), LABELS)
    with pytest.raises(ld.InputError, match="no heads here"):
        whole.plot(kind="heads")
    for wrong in ("color", "kind", "layer"):
        with pytest.raises(ld.InputError, match=f"term='{wrong}'"):
            heads.plot(kind="heads", term=wrong)


def test_the_grid_has_gaps_where_heads_are_missing(heads):
    """A selection of heads leaves the others empty; nothing moves up."""
    kept = [i for i, c in enumerate(heads.components) if c.label in ("L0.H3", "L2.H0", "L2.H1")]
    some = dataclasses.replace(heads, values=heads.values[:, kept], components=tuple(heads.components[i] for i in kept))
    (grid,) = some.plot(kind="heads").data
    known = {(int(r), int(c)) for r, c in zip(*np.nonzero(np.isfinite(grid.z)), strict=True)}
    assert known == {(0, 3), (1, 0), (1, 1)}


def test_the_pairs_are_the_cosines_in_the_order_of_the_tree(heads):
    """Cells equal cosines computed from the values; the tree joins leaves at the heights scipy finds for them."""
    u = heads.values - heads.values.mean(2, keepdims=True)
    flat = np.moveaxis(u, 1, 0).reshape(u.shape[1], -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    cosine = dict(zip((c.label for c in heads.components), flat, strict=True))
    figure = heads.plot(kind="pairwise")
    matrix = figure.data[0]
    labels = list(matrix.x)
    assert sorted(labels) == sorted(cosine)
    assert list(matrix.y) == labels == list(figure.layout.xaxis.categoryarray)
    expected = np.array([[cosine[a] @ cosine[b] for b in labels] for a in labels])
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_allclose(matrix.z, expected, atol=1e-6)
    strip = {x: trace.name for trace in figure.data if trace.type == "bar" for x in trace.x}
    assert strip == {c.label: style.MODULE_NAME[c.module] for c in heads.components}
    # Leaves stand at 0, 1, 2, … in the order of the axis, and joins are where an own clustering has them.
    links = [
        np.array([point.split(",") for point in link.strip().split(" L")], dtype=float)
        for link in figure.layout.shapes[0].path.split("M")[1:]
    ]
    leaves = sorted(x for link in links for x, y in link if y == 0)
    assert leaves == list(range(len(labels)))
    apart = 1 - expected[np.triu_indices(len(labels), 1)]
    joined = linkage(apart, "average")
    np.testing.assert_allclose(sorted(link[1, 1] for link in links), sorted(joined[:, 2]), rtol=1e-3)
    # Two leaves under one join of the figure are as far apart as scipy says.
    low = next(link for link in links if link[0, 1] == link[3, 1] == 0)
    one, other = int(low[0, 0]), int(low[3, 0])
    far = np.zeros((len(labels), len(labels)))
    far[np.triu_indices(len(labels), 1)] = cophenet(joined)
    assert low[1, 1] == pytest.approx(far[min(one, other), max(one, other)], rel=1e-3)


@pytest.mark.full
def test_other_columns_of_pairs_and_many_components(heads, many):
    """`by` and `part` choose the column; of many components those most diverse are compared, and it says so."""
    frame = heads.pairwise("distance").set_index(["component", "other"])["distance"]
    matrix = heads.plot(kind="pairwise", by="distance", part="raw").data[0]
    place = {label: i for i, label in enumerate(matrix.x)}
    for (one, other), value in frame.items():
        assert matrix.z[place[one]][place[other]] == pytest.approx(value, rel=1e-6)
        assert matrix.z[place[other]][place[one]] == pytest.approx(value, rel=1e-6)
    assert matrix.zmin == 0
    some = many.plot(kind="pairwise", max_components=40)
    size = many.centered.diversities.mean(0)
    assert {int(label[1:]) for label in some.data[0].x} == set(np.argsort(-size)[:40].tolist())
    assert "the 40 of 1,700 most diverse" in some.layout.title.subtitle.text
    with pytest.raises(ld.InputError, match="by='color'"):
        heads.plot(kind="pairwise", by="color")


@pytest.mark.parametrize("paper", [False, True])
def test_trade_off_bars_are_theorem_3_of_every_part(heads, paper):
    """Bars are the summands, the last their sum; Ω's rows are shaded, and are those that stand in both."""
    figure = heads.plot(kind="tradeoff", paper=paper)
    for number, part in enumerate(PARTS):
        half = heads if part == "raw" else getattr(heads, part)
        table = half.tradeoff(paper)
        shown = after(figure, number)
        for trace, term in zip(shown.data, ("bias", "diversity"), strict=True):
            np.testing.assert_allclose(trace.x[:-1], table[term], atol=1e-12)
            assert trace.x[-1] == pytest.approx(table[term].sum())
            np.testing.assert_allclose((trace.x + trace.error_x.array)[:-1], table[f"{term}_high"], atol=1e-12)
            if not paper:
                assert trace.x[-1] == pytest.approx(getattr(half, term))
    shade = figure.layout.shapes[0]
    inside = [i for i in range(len(table)) if shade.y0 < i < shade.y1]
    both = table[(heads.tradeoff(paper)["bias"] != 0) & (heads.tradeoff(paper)["diversity"] != 0)]
    assert inside == both.index.tolist()
    assert ("Eq. 11" in figure.layout.title.subtitle.text) == paper


@pytest.mark.full
def test_a_profile_along_depth_is_its_means_over_tokens():
    """Bars are the mean of the profile's columns over the tokens that have a next one."""
    p = ld.profile(llama(), [[1, 2, 3, 4, 5], [6, 7, 8]])
    for part in PARTS:
        half = p if part == "raw" else getattr(p, part)
        heights = {}
        for trace in p.plot(kind="depth", part=part).data:
            heights |= {(trace.yaxis, int(x)): y for x, y in zip(trace.x, trace.y, strict=True)}
        for axis, term in (("y", "bias"), ("y2", "diversity"), ("y3", "net")):
            expected = np.nanmean(getattr(half, term)[:, p.has_target], 1)
            np.testing.assert_allclose([heights[axis, i] for i in range(len(p.components))], expected, rtol=1e-9)
    assert "6 tokens" in p.plot(kind="depth").layout.title.text
    assert set(marks(p.plot(kind="scatter"))) == {c.label for c in p.components}


def test_whiskers_that_would_dwarf_the_bars_are_left_to_the_hover(heads):
    """An interval wider than twice the tallest bar is not drawn, and is still said."""
    frame = heads.by_component(full=True)
    for term, width in (("bias", 0.1), ("diversity", 1.9), ("net", 2.1)):
        tallest = frame[term].abs().max()
        frame[f"{term}_low"], frame[f"{term}_high"] = frame[term], frame[term] + width * tallest

    class Wide:
        components = heads.components

        def by_component(self):
            return frame

    figure = FIGURES["Decomposition"]["bars"](Wide(), part="raw")
    drawn = {trace.yaxis: trace.error_y.visible for trace in figure.data}
    assert drawn == {"y": True, "y2": True, "y3": False}
    assert all("95 %" in text for trace in figure.data for text in trace.hovertext)


@pytest.mark.full
@pytest.mark.parametrize("kind", FIGURES["Decomposition"])
def test_a_hostile_label_stays_text(reused, kind, monkeypatch):
    """A name that looks like HTML never becomes HTML: not in a tick, a hover, a title or a mark's name."""
    label = Component.label.fget
    monkeypatch.setattr(Component, "label", property(lambda self: label(self) + HOSTILE))
    text = str(reused.plot(kind=kind).to_dict())
    assert "<img" not in text
    assert ("&lt;img" in text) == (kind not in ("modules", "tradeoff"))


@pytest.mark.full
def test_figures_leave_light_and_dark_to_the_template(reused):
    """No figure says an ink, grid or ground color of either theme."""
    varying = {
        getattr(theme, name)
        for theme in (style.LIGHT, style.DARK)
        for name in ("ink", "muted", "grid", "zero", "paper", "ground")
    }
    for kind in FIGURES["Decomposition"]:
        bare = reused.plot(kind=kind).update_layout(template=None).to_json()
        assert not [color for color in varying if color in bare]


def test_every_result_has_a_natural_figure():
    """Whatever can be saved can be drawn; nothing that can be drawn is left without a kind."""
    from layerdiv_tl.results import Result

    def under(kind):
        return [kind, *(c for below in kind.__subclasses__() for c in under(below))]

    for kind in under(Result)[1:]:
        assert kind.__subclasses__() or any(base.__name__ in FIGURES for base in kind.__mro__), (
            f"{kind.__name__} has no figure"
        )


@pytest.mark.full
def test_what_rows_of_attention_sum_to_is_said():
    """Heads with a sink next to the tokens give them less than 1."""
    patterns = ld.attention_patterns(llama(), [1, 2, 3, 4])
    sunk = dataclasses.replace(patterns, patterns=0.7 * patterns.patterns)
    said = [p.plot().layout.title.subtitle.text for p in (patterns, sunk)]
    assert ["sums to 1." in text for text in said] == [True, False]
    assert "at most 1" in said[1]


@pytest.mark.full
def test_maps_of_attention_are_the_patterns():
    """Row by row below the diagonal, nothing above it; of many heads the most pointed."""
    patterns = ld.attention_patterns(llama(), [1, 2, 3, 4])
    figure = patterns.plot()
    assert len(figure.data) == len(patterns.components) == 12
    for drawn, pattern, component in zip(figure.data, patterns.patterns, patterns.components, strict=True):
        values = np.array(drawn.z, dtype=float)
        np.testing.assert_array_equal(np.isnan(values), np.triu(np.ones((4, 4), dtype=bool), 1))
        np.testing.assert_array_equal(np.nan_to_num(values), pattern)
        assert component.label in drawn.hovertemplate
    entropy = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in patterns.patterns]
    few = patterns.plot(max_heads=2)
    expected = {patterns.components[i].label for i in np.argsort(entropy)[:2]}
    assert {note.text for note in few.layout.annotations} == expected
    assert "the 2 most pointed of 12 heads" in few.layout.title.text
    with pytest.raises(ld.InputError, match="max_heads=0"):
        patterns.plot(max_heads=0)


def test_a_task_is_counted():
    task = ld.task("sample/topic")
    drawn = task.plot()
    assert list(drawn.data[0].x) == np.bincount(task.labels).tolist()
    assert list(drawn.layout.yaxis.ticktext) == [option.strip() for option in task.options]


@pytest.mark.full
def test_a_figure_of_numbers_does_not_load_torch():
    """Nobody who decomposes an array waits for torch, whichever figure of it is drawn."""
    code = """
import sys, numpy as np, layerdiv_tl as ld
d = ld.decompose(np.random.default_rng(0).normal(size=(9, 5, 3)), [0, 1, 2] * 3)
for kind in ("bars", "scatter", "depth", "modules", "pairwise", "tradeoff"):
    d.plot(kind=kind)
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["bars", "scatter"])
def test_the_largest_of_many_are_those_of_the_part_drawn(kind):
    """The paper's loss has its diversity in parts and its bias in none: raw is drawn, and raw is what is ranked."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(6, 60, 3)) + 5 * rng.normal(size=(6, 60, 1)) * (np.arange(60) % 2)[:, None]
    d = ld.decompose(u, [0, 1, 2, 0, 1, 2], loss="paper")
    frame = d.by_component(full=True)
    largest = frame.nlargest(10, "diversity")["diversity"].to_numpy()
    assert set(frame.nlargest(10, "diversity_centered")["component"]) != set(
        frame.nlargest(10, "diversity")["component"]
    )
    drawn = np.concatenate(
        [
            np.ravel(axis)
            for trace in d.plot(kind=kind, max_components=10).data
            for axis in (trace.x, trace.y)
            if axis is not None and np.issubdtype(np.asarray(axis).dtype, np.number)
        ]
    )
    assert all(np.isclose(drawn, value, rtol=1e-9).any() for value in largest)


def test_roles_are_sizes_beside_what_components_do_alone():
    """Marks are the frame's logit difference and √(centered diversity), colored by accuracy; costs those of effects."""
    task = ld.task("synthetic/recall", limit=24)
    chosen, others = task.take(range(16)), task.take(range(16, 24))
    d = ld.decompose(ld.contributions("zoo/d4", chosen), chosen.labels)
    effects = [ld.effects("zoo/d4", others, ablation=how, components=["L1.attn", "L3.mlp"]) for how in ("mean", "zero")]
    frame = d.centered.by_component(full=True)
    for figure in (d.plot(kind="roles"), d.plot(kind="roles", effects=effects)):
        (marks,) = (trace for trace in figure.data if trace.marker.colorbar.title.text)
        np.testing.assert_allclose(marks.x, frame["logit_difference"])
        np.testing.assert_allclose(np.square(marks.y), frame["diversity"])
        np.testing.assert_allclose(marks.marker.color, frame["accuracy"] - 1 / len(task.options))
        assert d.centered.plot(kind="roles").data[1].x == pytest.approx(marks.x)
    for e, name in zip(effects, ("mean ablation", "zero ablation"), strict=True):
        (trace,) = (trace for trace in figure.data if trace.name == name)
        np.testing.assert_allclose(trace.x, -e.frame()["total_loss"])
    with pytest.raises(ld.InputError, match="labels"):
        ld.decompose(d.values, target=d.target).plot(kind="roles")
    with pytest.raises(ld.InputError, match="effects"):
        d.plot(kind="roles", effects=[d])


def test_the_kinds_of_plot_are_those_of_the_registry():
    """What Tab, help and type checkers see of `plot(kind=…)` is what can be drawn."""
    for module in pkgutil.walk_packages(ld.__path__, "layerdiv_tl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name, kinds in FIGURES.items():
        plot = Result._classes[name].plot
        if plot is Result.plot:
            continue
        literal, _ = get_args(eval(plot.__annotations__["kind"], vars(sys.modules[plot.__module__])))
        own = FIGURES.get(plot.__qualname__.split(".")[0], kinds)  # a class may have its base's
        assert get_args(literal) == tuple(own), name
    plain = {name for name in FIGURES if Result._classes[name].plot is Result.plot}
    assert plain <= {"LowerBound"}  # which leave with a later step
