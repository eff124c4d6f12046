"""Every kind of figure at a notebook's width and wider: no text is cut off, none lies on another."""

import importlib.util
from pathlib import Path

import pytest

ASSETS = Path(__file__).parents[2] / "assets"


@pytest.mark.nightly
def test_no_text_of_any_figure_is_cut_off_or_covered(tmp_path, browser):
    spec = importlib.util.spec_from_file_location("contact_sheet", ASSETS / "contact_sheet.py")
    sheet = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sheet)
    with browser.open(sheet.write(tmp_path / "sheet.html"), width=1500) as opened:
        assert sheet.faults(opened.page) == {}
        assert opened.requests == []
        assert opened.complaints == []
