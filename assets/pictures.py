"""The README's pictures, from the default model, in light and dark.

    python assets/pictures.py

Needs `pip install playwright` and a Chrome or Chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import layerdiv_tl as ld
from layerdiv_tl.model.load import Model
from layerdiv_tl.views.html import Page

HERE = Path(__file__).parent
TEXT = "The Eiffel Tower is in the city of"


def shoot(page: Path, name: str, width: int, height: int) -> None:
    """Pictures of a page, light and dark."""
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            size = {"width": width, "height": height}
            context = browser.new_context(viewport=size, color_scheme=scheme, offline=True, device_scale_factor=2)
            shown = context.new_page()
            shown.goto(page.resolve().as_uri())
            shown.wait_for_timeout(1000)
            shown.screenshot(path=HERE / f"{name}{'-dark' * (scheme == 'dark')}.png")
        browser.close()


def explorer(model: Model, folder: Path) -> None:
    """The explorer of a text, as its page shows it at first."""
    shoot(ld.explore(model, TEXT).save(folder / "explorer.html"), "explorer", 1440, 1150)


def strip(model: Model, folder: Path) -> None:
    """The figure of the README's first block."""
    reviews = ld.task("sample/sentiment").resolve(model)
    figure = ld.decompose(ld.contributions(model, reviews.select(range(44)))).plot()
    page = Page("")
    page.figure(figure)
    shoot(page.write(folder / "strip.html"), "strip", 760, int(figure.layout.height) + 120)


if __name__ == "__main__":
    loaded = ld.load_model()
    with tempfile.TemporaryDirectory() as own:
        explorer(loaded, Path(own))
        strip(loaded, Path(own))
