"""The scripts and style sheets of the explorer, for its page and its widget."""

from __future__ import annotations

from importlib import resources

# One ES module without a build step: these files, one after another.
SCRIPTS = ("data.js", "draw.js", "views.js", "chosen.js", "explorer.js")


def read(name: str) -> str:
    """A script or style sheet of this folder."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def module() -> str:
    """The one ES module that draws, on a page and in a notebook."""
    return "\n".join(read(name) for name in SCRIPTS)
