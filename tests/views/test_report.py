"""A grid's page: opens from disk without a network, shows every cell, and escapes what models and data say."""

from dataclasses import replace

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.studies import tables
from layerdiv_tl.views.report import report
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture
def grid(tmp_path):
    grid = ld.Grid(tmp_path / "grid").run(ld.contributions, ["zoo/d1", "zoo/d2"], "synthetic/recall", limit=12)
    return grid.run(ld.depth.skip, "zoo/d2", "synthetic/recall", limit=8)


def test_the_page_has_every_cell_and_the_tables(grid, tmp_path):
    page = report(grid, tmp_path / "page.html").read_text(encoding="utf-8")
    for cell in grid.cells():
        assert f"{cell.about['analysis']} · {cell.about['model']} · synthetic/recall" in page
    assert page.count('class="chart"') + page.count("class=chart>") + page.count("class=chart ") >= 3
    accuracy = tables.table(grid).loc["zoo/d2", ("accuracy", "synthetic/recall")]
    assert f">{accuracy:.4g}<" in page


def test_mixed_options_have_cells_and_no_tables(grid, tmp_path):
    grid.run(ld.contributions, "zoo/d2", "synthetic/recall", limit=12, unit="head")
    page = report(grid, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "unit=&#39;head&#39;" in page
    with pytest.raises(ld.InputError, match="no finished cells"):
        report(ld.Grid(tmp_path / "empty"), tmp_path / "page.html")
    with pytest.raises(ld.InputError, match="cannot be written"):
        report(grid, tmp_path)


def hostile_grid(folder):
    tokenizer = word_tokenizer(["[UNK]", "yes", "no", *(f"w{i}" for i in range(58))])
    task = ld.Task(HOSTILE, (f"w1 {HOSTILE}", "w3 w4"), (" yes", " no"), np.array([0, 1]), ("", ""), "", HOSTILE, "")
    model = replace(ld.load_model(llama(), tokenizer=tokenizer), name=HOSTILE)
    grid = ld.Grid(folder).run(ld.contributions, {HOSTILE: model}, task)
    grid.run(ld.depth.residual_norms, {HOSTILE: model}, task)
    grid.failures.append(HOSTILE)
    return grid


def test_text_of_models_and_data_is_escaped(tmp_path):
    page = report(hostile_grid(tmp_path / "grid"), tmp_path / "page.html", HOSTILE).read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "</script><script>alert" not in page
    assert "&lt;img src=x" in page


@pytest.mark.full
def test_the_page_opens_from_disk(grid, tmp_path, browser):
    for made in (grid, hostile_grid(tmp_path / "hostile")):
        path = report(made, tmp_path / "page.html")
        with browser.open(path) as opened:
            opened.scroll()
            opened.page.wait_for_function("[...document.querySelectorAll('.chart')].every((chart) => chart.data)")
            assert opened.wider_than_window() <= 0
            assert opened.requests == []
            assert opened.complaints == []
