"""The README's picture, from the default model, in light and dark.

    python assets/pictures.py

Needs `pip install playwright` and a Chrome or Chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import layerdiv_tl as ld

HERE = Path(__file__).parent
TEXT = "The Eiffel Tower is in Paris, which is the capital of France. Berlin is the capital of Germany."


def explorer(model: ld.Model) -> None:
    """The explorer of a text, as its page shows it at first."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = ld.explore(model, TEXT).save(Path(folder) / "explorer.html")
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            size = {"width": 1440, "height": 1150}
            context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
            shown = context.new_page()
            shown.goto(page.resolve().as_uri())
            shown.wait_for_timeout(1000)
            shown.screenshot(path=HERE / f"explorer{'-dark' * (scheme == 'dark')}.png")
        browser.close()


if __name__ == "__main__":
    explorer(ld.load_model())
