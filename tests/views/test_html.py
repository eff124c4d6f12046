"""Figures and pages: every number under its name, hostile text harmless, no network."""

import re
from pathlib import Path

import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import style
from layerdiv_tl.views.html import Page
from tests.conftest import llama
from tests.views.figure_results import MAKERS, made

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
    page.figure(evil.plot())
    assert "<img" not in page.html()
    assert page.html().count("</script>") == page.html().count("<script")


def test_pages_ask_the_network_for_nothing(contributions, tmp_path):
    """No element of a page refers to another host, and plotly's upload button is gone."""
    page = Page("quiet")
    page.figure(contributions.plot())
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    own = text.replace(text[text.index("<script>") : text.index("</script>")], "", 1)
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*['\"]?https?:", own)
    assert "sendChartToCloud" in own
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.nightly
def test_a_page_takes_the_width_that_there_is(contributions, tmp_path, browser):
    page = Page("wide")
    page.heading("a section")
    page.figure(contributions.plot())
    with browser.open(page.write(tmp_path / "page.html"), 1440) as opened:
        assert opened.page.evaluate("document.querySelector('main').clientWidth") > 1000


# Texts of a figure that its edge cuts off, and pairs that lie on one another; boxes of slanted ticks overlap though
# the ticks do not.
FAULTS = """() => [...document.querySelectorAll('.chart')].flatMap((chart) => {
  const edge = chart.getBoundingClientRect(), name = chart.querySelector('.gtitle').textContent;
  const texts = [...chart.querySelectorAll('svg text')].filter((t) => t.textContent.trim()).map((t) => ({
    box: t.getBoundingClientRect(), text: t.textContent.slice(0, 40),
    turned: /rotate\\((?!0,)[^)]+\\)/.test(t.getAttribute('transform') || '')})).filter((t) => t.box.width);
  const cut = texts.filter(({box}) => Math.min(box.left - edge.left, edge.right - box.right, box.top - edge.top,
    edge.bottom - box.bottom) < -2).map((t) => `${name}: cut off: ${t.text}`);
  const over = [];
  texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
    if (a.turned || b.turned) return;
    const x = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const y = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (x > 3 && y > 5) over.push(`${name}: ${a.text} over ${b.text}`);
  }));
  return [...cut, ...over];
})"""


@pytest.mark.nightly
@pytest.mark.parametrize("width", [400, 1200])
def test_no_text_of_any_figure_is_cut_off_or_covered(tmp_path, browser, width):
    """Every kind of figure, and tables: nothing is wider than the window."""
    page = Page("every figure")
    for name in MAKERS:
        for kind in made(name)._plots():
            page.figure(made(name).plot(kind))
    page.table(made("Decomposition").by_component(full=True), "a table")
    with browser.open(page.write(tmp_path / "page.html"), width) as opened:
        opened.scroll()
        opened.page.wait_for_function("[...document.querySelectorAll('.chart')].every((c) => c.data)")
        assert opened.wider_than_window() <= 0
        found = opened.page.evaluate(FAULTS)
        assert not found, "\n".join(found)
        assert opened.requests == []
