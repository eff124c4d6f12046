"""Figures and pages: every number under its name, hostile text harmless, no network."""

import re
from importlib import metadata
from pathlib import Path

import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import html, style
from layerdiv_tl.views.html import Page
from tests.conftest import llama

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def contributions():
    return ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30], unit="head")


@pytest.fixture(scope="module")
def decomposition(contributions):
    return ld.decompose(contributions, [0, 1, 0])


def test_colors_stand_in_one_place():
    """Scripts, style sheets and figures take theirs from style.py."""
    views = Path(style.__file__).parent
    files = [file for file in views.rglob("*.*") if file.suffix in (".py", ".css", ".js") and file.name != "style.py"]
    assert len(files) > 20
    found = {file.name: re.findall(r"#[0-9a-fA-F]{6}\b|rgba?\(", file.read_text(encoding="utf-8")) for file in files}
    assert not {name: colors for name, colors in found.items() if colors}


def test_hostile_text_stays_text(contributions, decomposition):
    """Option and model names that look like HTML never become HTML, on a page or in a figure."""
    import dataclasses

    evil = dataclasses.replace(contributions, options=(HOSTILE, "b"), model=HOSTILE)
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.text(HOSTILE)
    page.text(HOSTILE, "small")
    page.add("code", HOSTILE)
    frame = decomposition.by_module()[["module"]].assign(module=HOSTILE)
    page.table(frame.rename(columns={"module": HOSTILE}), HOSTILE)
    page.figure(evil.plot(), HOSTILE)
    assert "<img" not in page.html()
    assert page.html().count("</script>") == page.html().count("<script")


def test_boxes_of_a_page_end_where_they_should():
    """What is folded or boxed ends with an element, not with the text of one."""
    page = Page("a page")
    with page.within("findings"), page.folded("more"):
        page.text("1 < 2")
    assert '<details><summary>more</summary>\n<p class="plain">1 &lt; 2</p>\n</details>\n</div>' in page.html()


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
    long = d.plot(kind="depth", title="A title that takes several lines " * 5)
    for figure in (d.plot(), d.plot(kind="depth"), long, d.plot(kind="modules"), contributions.plot()):
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
              const named = '.xtick text, .x2tick text, .gtitle, .gtitle-subtitle, .updatemenu-header, ' +
                '.updatemenu-button';
              const ticks = [...chart.querySelectorAll(named)];
              const inside = (x) => box(x).right <= box(chart).right + 1 && box(x).left >= box(chart).left - 1;
              const beyond = ticks.filter((x) => !inside(x));
              const into = ticks.filter((x, i) => ticks.some((y, j) => j > i && !apart(box(x), box(y))));
              return [...beyond, ...into].map((x) => x.textContent);
            })"""
        )
        assert faults == []


def test_a_missing_circuitsvis_is_said(monkeypatch, tmp_path):
    """Not installed, or of a version that has its script elsewhere."""

    class Moved:
        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    def gone(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    for found in (gone, lambda name: Moved()):
        monkeypatch.setattr(metadata, "distribution", found)
        html.circuitsvis.cache_clear()
        with pytest.raises(ld.InputError, match="circuitsvis"):
            html.circuitsvis()
