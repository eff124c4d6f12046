"""Pages in a real browser without a network: what they ask for, what they complain about, what they show."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

# The last words of `save_hostile_model`'s vocabulary.
HOSTILE_WORDS = ["</script>", "<img", "onerror=alert(1)>"]


def save_hostile_model(folder: Path) -> str:
    """Save a tiny model whose words include pieces of HTML; returns the folder's name."""
    word_tokenizer([*(f"w{i}" for i in range(58)), *HOSTILE_WORDS]).save_pretrained(folder)
    llama().save_pretrained(folder)
    return str(folder)


@dataclass
class Opened:
    """A page that is open (`page`, Playwright's), and everything it did that it should not have."""

    page: Any
    complaints: list[str] = field(default_factory=list)  # console warnings and errors, exceptions, dialogs
    requests: list[str] = field(default_factory=list)  # whatever it asked for beside itself

    def scroll(self) -> None:
        """To the end and back, so that everything that waits to be seen is drawn."""
        height = self.page.evaluate("document.documentElement.scrollHeight")
        for y in [*range(0, height, 500), height, 0]:
            self.page.evaluate(f"window.scrollTo(0, {y})")
            self.page.wait_for_timeout(50)

    def wider_than_window(self) -> int:
        """By how many pixels the page's content is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2 at levels A and AA: contrast, names, keyboard."""
        self.page.evaluate(axe_core())
        found = self.page.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa'] })")["violations"]
        return [f"{rule['id']}: {node['html']:.200}" for rule in found for node in rule["nodes"]]


@functools.cache
def axe_core() -> str:
    """The script of axe-core: the file that LAYERDIV_AXE names, or from npm; skips the test where there is neither."""
    if path := os.environ.get("LAYERDIV_AXE"):
        return Path(path).read_text(encoding="utf-8")
    npm = shutil.which("npm") or pytest.skip("no npm on the PATH, and LAYERDIV_AXE names no axe-core")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("axe-core could not be downloaded from npm")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            return archive.extractfile("package/axe.min.js").read().decode()


class Browser:
    """A headless Chromium; skips the test where there is none."""

    def __init__(self) -> None:
        playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if path is None:
            pytest.skip("no chromium on the PATH: install it to test pages in a browser")
        self._playwright = playwright.sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])

    @contextlib.contextmanager
    def open(self, path: Path, width: int = 1200, scheme: str = "light", height: int = 900) -> Iterator[Opened]:
        """Open a file at a width and color scheme, offline; it is loaded and had a moment to draw."""
        viewport = {"width": width, "height": height}
        context = self._browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        opened = Opened(context.new_page())
        own = path.resolve().as_uri()

        def asked(route: Any) -> None:
            if route.request.url == own:
                route.continue_()
                return
            opened.requests.append(route.request.url)
            route.abort()

        def spoke(message: Any) -> None:
            if message.type in ("warning", "error"):
                opened.complaints.append(f"{message.type}: {message.text}")

        def asked_reader(dialog: Any) -> None:
            opened.complaints.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        context.route("**/*", asked)
        opened.page.on("console", spoke)
        opened.page.on("pageerror", lambda error: opened.complaints.append(f"exception: {error}"))
        opened.page.on("dialog", asked_reader)
        try:
            opened.page.goto(own)
            opened.page.wait_for_timeout(300)
            yield opened
        finally:
            context.close()

    def close(self) -> None:
        """End the browser."""
        self._browser.close()
        self._playwright.stop()
