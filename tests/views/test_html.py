"""Figures and pages: every number under its name, hostile text harmless, no network."""

import re
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import style
from layerdiv_tl.views.figures.components import component_bars
from layerdiv_tl.views.html import Page
from tests.conftest import llama

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def contributions():
    return ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30], unit="head")


@pytest.fixture(scope="module")
def decomposition(contributions):
    return ld.decompose(contributions, [0, 1, 0])


def bar_heights(figure, heights=None, bases=None):
    """{(row of the subplot, place): where the bar ends} of all bars."""
    ends = zip(heights or [t.y for t in figure.data], bases or [t.base for t in figure.data], strict=True)
    return {
        (trace.yaxis, int(x)): base + y
        for trace, (ys, base) in zip(figure.data, ends, strict=True)
        for x, y in zip(trace.x, ys, strict=True)
    }


@pytest.mark.full
def test_bars_show_the_frame_in_every_part(decomposition):
    """Bars end at the frame's columns, and each button puts its own part's there; bias and net begin at u = 0's."""
    frame = decomposition.by_component(full=True)
    axes = {"y": "bias", "y2": "diversity", "y3": "net"}
    for shown in ("raw", "centered", "shift"):
        figure = decomposition.plot(kind="bars", part=shown)
        for label, button in zip(("raw", "centered", "shift"), figure.layout.updatemenus[0].buttons, strict=True):
            suffix = "" if label == "raw" else f"_{label}"
            drawn = bar_heights(figure, button.args[0]["y"], button.args[0]["base"])
            for (axis, place), height in drawn.items():
                assert height == pytest.approx(frame[axes[axis] + suffix][place])
            half = decomposition if label == "raw" else getattr(decomposition, label)
            assert button.args[1]["shapes[0].y0"] == pytest.approx(half.zero_bias)
            assert button.args[1]["shapes[1].y0"] == pytest.approx(half.zero_net)
            if label == shown:
                assert bar_heights(figure) == pytest.approx(drawn)
    assert [shape.name for shape in figure.layout.shapes] == ["a component that writes nothing"] * 2
    assert {t.base for t in figure.data} == {0.0, *(shape.y0 for shape in figure.layout.shapes)}


def test_colors_stand_in_one_place():
    """Scripts, style sheets and figures take theirs from style.py."""
    views = Path(style.__file__).parent
    files = [file for file in views.rglob("*.*") if file.suffix in (".py", ".css", ".js") and file.name != "style.py"]
    assert len(files) > 20
    found = {file.name: re.findall(r"#[0-9a-fA-F]{6}\b|rgba?\(", file.read_text(encoding="utf-8")) for file in files}
    assert not {name: colors for name, colors in found.items() if colors}


def test_colors_are_those_of_the_modules(decomposition):
    figure = decomposition.plot(kind="bars")
    assert {t.name: t.marker.color for t in figure.data} == {
        style.MODULE_NAME[m]: style.MODULE[m] for m in ("embedding", "attention", "mlp")
    }


@pytest.mark.full
def test_a_half_and_a_plain_array_have_a_figure(decomposition):
    assert isinstance(decomposition.centered.plot(), go.Figure)
    many = ld.decompose(np.random.default_rng(0).normal(size=(5, 400, 3)), [0, 1, 2, 0, 1])
    assert isinstance(many.plot(), go.Figure)
    with pytest.raises(ld.InputError, match="part='middle'"):
        component_bars(decomposition, part="middle")


def test_heads_are_a_map_of_layers_and_heads_for_every_option(contributions):
    """The difference and its sides, each row a layer, each column a head; the MLPs stand beside them."""
    figure, u = contributions.plot(), contributions.values.mean(0)
    centered = np.c_[u[:, 0] - u[:, 1], contributions.sides.mean(0)]
    assert len(figure.data) == 3
    for option, panel in enumerate(figure.data):
        for i, c in enumerate(contributions.components):
            if c.kind in ("head", "mlp"):
                column = c.index if c.kind == "head" else -1
                assert panel.z[c.layer][column] == pytest.approx(centered[i, option])
                assert c.label in panel.hovertext[c.layer][column]
        assert panel.zmin == -panel.zmax == -figure.data[0].zmax


def test_the_map_shows_the_contributions():
    contributions = ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30])
    raw = contributions.plot(example=1, centered=False).data[0]
    np.testing.assert_array_equal(np.array(raw.z), contributions.values[1].T)
    mean, sides = contributions.values.mean(0), contributions.sides.mean(0)
    seen = contributions.plot().data[0]
    np.testing.assert_allclose(np.array(seen.z), np.c_[mean[:, 0] - mean[:, 1], sides].T)
    assert seen.zmin == -seen.zmax
    with pytest.raises(ld.InputError, match="example=3"):
        contributions.plot(example=3)


@pytest.mark.full
@pytest.mark.parametrize("loss", ["paper", "cross_entropy", "brier"])
def test_every_loss_has_bars_in_its_units(contributions, loss):
    """Bias, diversity, net where there is one; a line at the uniform predictor; no buttons without halves."""
    d = ld.decompose(contributions, [0, 1, 0], loss=loss)
    figure, frame = d.plot(kind="bars"), d.by_component()
    heights = bar_heights(figure)
    for axis, term in (("y", "bias"), ("y2", "diversity"), ("y3", "net")):
        if term in frame:
            assert [heights[axis, i] for i in range(len(frame))] == pytest.approx(frame[term].tolist())
    assert figure.layout.yaxis.title.text == frame.attrs["units"]["bias"]
    assert figure.layout.yaxis2.title.text == frame.attrs["units"]["diversity"]
    assert figure.layout.shapes[0].y0 == pytest.approx(d.zero_bias)
    assert not figure.layout.updatemenus


@pytest.mark.full
@pytest.mark.parametrize("term", ["bias", "diversity", "net", "target_logit"])
def test_a_profile_is_a_map_of_its_numbers(term):
    """Rows and columns are the profile's, in its units; many components are cut to the largest."""
    ids = [[1, 2, 3, 4], [9, 8]]
    p = ld.profile(llama(), ids)
    for part in ("raw", "centered", "shift"):
        half = p if part == "raw" or term == "target_logit" else getattr(p, part)
        drawn = p.plot(term=term, part=part).data[0]
        np.testing.assert_array_equal(np.array(drawn.z, dtype=float), getattr(half, term))
        assert (drawn.zmin < 0) == (term in ("net", "target_logit"))
    nats = ld.profile(llama(), ids, loss="cross_entropy").plot(term=term)
    assert nats.data[0].colorbar.title.text == ("logits" if term == "target_logit" else "nats")
    many = ld.profile(llama(intermediate_size=200), ids, "neuron").plot(term=term)
    assert len(many.data[0].z) == 400
    assert "the 400 largest of 604" in many.layout.title.text.replace("<br>", " ")
    with pytest.raises(ld.InputError, match="term='color'"):
        p.plot(term="color")
    with pytest.raises(ld.InputError, match="part='middle'"):
        p.plot(part="middle")


def test_a_corpus_has_bars():
    corpus = ld.corpus_profile(llama(), [[1, 2, 3], [4, 5, 6, 7], [8, 9]])
    heights, frame = bar_heights(corpus.plot(part="raw")), corpus.frame()
    assert [heights["y2", i] for i in range(len(frame))] == pytest.approx(frame["diversity"].tolist())


def test_hostile_tokens_stay_text():
    """A token is text of the model's, on the axis and in the hover."""
    import dataclasses

    p = ld.profile(llama(), [1, 2])
    figure = dataclasses.replace(p, tokens=(HOSTILE, "<b>x")).plot()
    assert "<img" not in figure.layout.xaxis.ticktext[0]
    assert "<img" not in str(figure.data[0].hovertext)


def test_hostile_text_stays_text(contributions, decomposition):
    """Option and model names that look like HTML never become HTML, on a page or in a figure."""
    import dataclasses

    evil = dataclasses.replace(contributions, options=(HOSTILE, "b"), model=HOSTILE)
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.text(HOSTILE, "small")
    page.terms({HOSTILE: HOSTILE})
    page.list([HOSTILE])
    page.code(HOSTILE)
    frame = decomposition.by_module()[["module"]].assign(module=HOSTILE)
    page.table(frame.rename(columns={"module": HOSTILE}), HOSTILE)
    page.figure(evil.plot(), HOSTILE)
    assert "<img" not in page.html()
    assert page.html().count("</script>") == page.html().count("<script")


def test_pages_ask_the_network_for_nothing(contributions, tmp_path):
    """No element of a page refers to another host, and plotly's upload button is gone."""
    page = Page("quiet")
    page.figure(contributions.plot(), "a figure")
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    own = text.replace(text[text.index("<script>") : text.index("</script>")], "", 1)
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*['\"]?https?:", own)
    assert "sendChartToCloud" in own
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.nightly
@pytest.mark.parametrize("contents", [False, True])
def test_a_page_takes_the_width_that_there_is(contributions, tmp_path, browser, contents):
    """Also one without links to its sections, which would stand beside it."""
    page = Page("wide", contents=contents)
    page.heading("a section")
    page.figure(contributions.plot(), "a figure")
    with browser.open(page.write(tmp_path / "page.html"), 1440) as opened:
        assert opened.page.evaluate("document.querySelector('main').clientWidth") > 1000


@pytest.mark.nightly
@pytest.mark.parametrize("width", [400, 700, 1440])
def test_nothing_on_a_page_runs_into_anything(contributions, tmp_path, browser, width):
    """Titles, buttons and ticks of figures keep apart and inside their figure, which rolls as tables do."""
    page, d = Page("narrow"), ld.decompose(contributions, [0] * len(contributions.values))
    for figure in (d.plot(), d.plot(kind="depth"), d.plot(kind="modules"), contributions.plot()):
        page.figure(figure, "a figure")
    page.table(d.by_component(full=True), "a table")
    with browser.open(page.write(tmp_path / "page.html"), width) as opened:
        opened.scroll()
        opened.page.wait_for_function("[...document.querySelectorAll('.chart')].every((c) => c.data)")
        assert opened.wider_than_window() <= 0
        faults = opened.page.evaluate(
            """() => [...document.querySelectorAll('.chart')].flatMap((chart) => {
              const box = (x) => x.getBoundingClientRect();
              const beside = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
              const apart = (a, b) => beside(a, b) || beside(b, a);
              const named = '.xtick text, .x2tick text, .gtitle, .gtitle-subtitle, .updatemenu-button';
              const ticks = [...chart.querySelectorAll(named)];
              const inside = (x) => box(x).right <= box(chart).right + 1 && box(x).left >= box(chart).left - 1;
              const beyond = ticks.filter((x) => !inside(x));
              const into = ticks.filter((x, i) => ticks.some((y, j) => j > i && !apart(box(x), box(y))));
              return [...beyond, ...into].map((x) => x.textContent);
            })"""
        )
        assert faults == []


def test_the_loss_curve_shows_the_losses():
    """A bar at the token that was to be said; a line where a blind guess lies."""
    profile = ld.profile(llama(), [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13])
    figure = profile.plot(kind="loss")
    bars = figure.data[0]
    assert list(bars.x) == list(range(1, 12))
    np.testing.assert_allclose(bars.y, profile.loss[:11])
    assert figure.layout.shapes[0].y0 == pytest.approx(np.log(61))
    assert bars.hovertext[3].startswith("<b>token␣5</b> at 4")
