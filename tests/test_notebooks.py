"""The notebooks run from fresh kernels, say what they said before, and know right answers from wrong."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
_spec = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
assert _spec is not None
assert _spec.loader is not None
book = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(book)

NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])(?: ?%)?")
SOLUTION = re.compile(r"<details>\s*<summary>.*?</summary>\s*```python\n(.*?)```\s*</details>", re.DOTALL)
BEGUN, RIGHT, WRONG = "…", "✓", "✗"
COUNTED = 20  # whole numbers below are counts or labels, and not rounded ones
LARGEST = 5e6  # bytes of one notebook


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def said(cell: Any) -> str:
    """What a cell printed and showed, as text."""
    parts = []
    for output in cell.outputs:
        assert output.output_type != "error", "\n".join(output.traceback)
        if book.is_progress(output):  # there on a slow machine only
            continue
        parts.append(output.text if output.output_type == "stream" else output.data.get("text/plain", ""))
    return " ".join("\n".join(parts).split())


def differences(before: str, now: str) -> list[str]:
    """Where two texts differ in more than the last digit or a hundredth of a number; counts must be equal."""
    if NUMBER.sub("#", before) != NUMBER.sub("#", now):
        return [f"{before!r} is now {now!r}"]
    found = []
    for a, b in zip(NUMBER.findall(before), NUMBER.findall(now), strict=True):
        x, y = (float(text.rstrip(" %").replace("−", "-")) for text in (a, b))
        few = a == b or abs(x) >= COUNTED or any(sign in a for sign in ".e%")
        if not few or abs(x - y) > max(0.01 * max(abs(x), abs(y)), 1.5 * last_digit(a)):
            found.append(f"{a} is now {b}")
    return found


def last_digit(text: str) -> float:
    """What one more in the last digit of a printed number is worth."""
    mantissa, _, exponent = text.rstrip(" %").partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def exercises(cells: list[Any]) -> dict[int, tuple[int, str]]:
    """{index of an exercise: (index of its check, its solution)}."""
    found = {}
    for index, cell in enumerate(cells):
        if "exercise" in tags(cell):
            assert "check" in tags(cells[index + 1]), f"cell {index} is not followed by a check"
            solution = SOLUTION.search(cells[index + 2].source)
            assert solution, f"cell {index} has no solution after its check"
            found[index] = (index + 1, solution[1])
    return found


def test_numbers_are_compared_and_words_too() -> None:
    """Another number, another word or another count of numbers is a difference; the last digit is not."""
    assert differences("r 0.63 of 1200", "r 0.64 of 1201") == []
    assert differences("0.63", "0.66") == ["0.63 is now 0.66"]
    assert differences("0.63", "−0.63") == ["0.63 is now −0.63"]
    assert differences("5e-07", "5e-06") == ["5e-07 is now 5e-06"]
    assert differences("3 of 4", "4 of 4") == ["3 is now 4"]
    assert differences("3 % of 4", "4 % of 4") == []
    assert differences("L3.H5 wins", "L3.H6 wins")
    assert differences("1 2", "1 2 3")


@pytest.mark.parametrize("name", book.NAMES)
def test_a_reader_on_the_web_sees_it_all(name: str) -> None:
    """Every code cell was run, figures have a picture next to them, and nothing is an error or a machine's path."""
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST
    notebook = book.read(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "import layerdiv_tl" in code[0].source
    assert "pip install" in code[0].source
    exercises(notebook.cells)
    checked = [cell for cell in code if "checked" in tags(cell)]
    assert checked, "no cell's numbers are checked"
    for cell in checked:
        assert NUMBER.search(said(cell)), f"a checked cell has no number: {cell.source}"
    for cell in code:
        assert cell.execution_count is not None, f"was not run: {cell.source}"
        for output in cell.outputs:
            data = output.get("data", {})
            assert "application/vnd.plotly.v1+json" not in data or "image/png" in data, f"no picture: {cell.source}"
            text = json.dumps(output)
            assert not re.search(r"/(tmp|home|root|work|Users)/", text), f"a machine's path: {cell.source}"
            assert "Warning" not in output.get("text", ""), f"a warning: {cell.source}"


@pytest.mark.full
@pytest.mark.parametrize("name", book.NAMES)
def test_it_says_again_what_it_said(name: str) -> None:
    """From a fresh kernel, numbers that matter are the committed ones; exercises tell empty, wrong and right apart."""
    before, notebook = book.read(name), book.read(name)
    asked = exercises(notebook.cells)
    with book.kernel(notebook, "plotly_mimetype") as client:

        def run(source: str) -> str:
            cell = book.nbformat.v4.new_code_cell(source)
            client.execute_cell(cell, 0)
            return said(cell)

        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            client.execute_cell(cell, index)
            text = said(cell)
            if "checked" in tags(cell):
                assert differences(said(before.cells[index]), text) == [], cell.source
            if index in asked:
                check, solution = asked[index]
                source = notebook.cells[check].source
                assert run(source).startswith(BEGUN), f"an empty answer is not told so: {source}"
                wrong = notebook.cells[check].metadata.get("wrong", [])
                assert wrong, f"no wrong answer is tried: {source}"
                for answer in wrong:
                    run(answer)
                    assert run(source).startswith(WRONG), f"{answer} passes: {source}"
                run(solution)
                assert run(source).startswith(RIGHT), f"the solution fails: {source}"
