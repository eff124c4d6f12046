"""A grid as one page that needs no network: the papers' tables, and each cell's result, figure and frame."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError
from ..studies import tables
from ..studies.grid import Cell, Grid
from .html import Page

# The first rows of a frame that a page shows.
MOST_ROWS = 20
# Quantities of the table of models and tasks, with their headings.
QUANTITIES = {
    "accuracy": "Accuracy, %",
    "mse": "MSE of Eq. 14, ×100",
    "uniform": "MSE of Eq. 14 of a uniform prediction, ×100",
    "bias": "Bias of Eq. 14, ×100",
    "diversity": "Diversity, raw, logits²",
    "diversity_centered": "Diversity, centered, logits²",
    "cross_entropy": "Cross-entropy, nats",
}


def report(grid: Grid, path: str | os.PathLike[str], title: str = "A grid of analyses") -> Path:
    """Write a page of all cells of a grid; return its path.

    Each cell has its result's line, its default figure and the first rows of its frame. Where all contributions are of
    one kind, the papers' tables come first. Raises InputError for an empty grid and for a file that cannot be written.

    >>> import tempfile
    >>> import layerdiv_tl as ld
    >>> folder = tempfile.mkdtemp()
    >>> grid = ld.Grid(folder).run(ld.contributions, "zoo/d1", "synthetic/recall", limit=4)
    >>> report(grid, folder + "/report.html").name
    'report.html'
    """
    cells = list(grid.cells())
    if not cells:
        raise InputError(f"{str(grid.folder)!r} has no finished cells: run some first.")
    page = Page(title)
    page.text(repr(grid))
    for failure in grid.failures:
        page.text(failure, "note")
    if any(cell.about["analysis"] == "contributions" for cell in cells):
        _add_tables(page, grid)
    for cell in cells:
        _add_cell(page, cell)
    return page.write(path)


def _add_tables(page: Page, grid: Grid) -> None:
    """Add the papers' tables; contributions with several options have none, as their numbers cannot be joined."""
    try:
        table, shares = tables.table(grid), tables.shares(tables.modules(grid))
    except InputError as error:
        page.text(f"No tables of the paper: {error}", "small")
        return
    page.heading("Models and tasks")
    for quantity, heading in QUANTITIES.items():
        page.table(table.xs(quantity, axis=1).reset_index(), f"{heading} (Table 1)")
    page.table(tables.sizes(grid), "Models (Table 4)")
    page.heading("Modules and depth")
    page.table(shares, "Each module's share of centered bias and diversity (Fig. 4)")


def _add_cell(page: Page, cell: Cell) -> None:
    """Add a cell's title, line, figure and frame."""
    about, result = cell.about, cell.result
    page.heading(str(cell))
    given = [f"{name}={value!r}" for name, value in about["options"].items() if value is not None]
    page.text(", ".join([f"{about['count']} rows", *given]), "small")
    page.add("code", repr(result))
    if result.figures:
        page.figure(result.plot())
    page.table(result.frame().head(MOST_ROWS))
