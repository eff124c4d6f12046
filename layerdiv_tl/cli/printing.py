"""Output of the command line: tables that fit the terminal, sentences, JSON; progress and failures on stderr."""

from __future__ import annotations

import functools
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from .._files import write_text
from ..errors import InputError
from .arguments import output_file

if TYPE_CHECKING:
    import pandas as pd


def print_progress(line: str) -> None:
    """Print one line on stderr for a slow step."""
    print(line, file=sys.stderr, flush=True)


def print_failures(failures: Iterable[str]) -> int:
    """Print sentences about failures on stderr; return the exit code."""
    failures = list(failures)
    for failure in failures:
        print(f"layerdiv: {failure}", file=sys.stderr)
    return 1 if failures else 0


def print_json(value: object) -> None:
    """Print a value as JSON, with null for NaN and infinity."""
    print(_json(value))


def write_json(value: object, out: str) -> str:
    """Write a value as JSON to the file of --out; return its path. Raises InputError if that fails."""
    try:
        return str(write_text(output_file(out), _json(value)))
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror}): give a file of yours.") from error


def _json(value: object) -> str:
    return json.dumps(_without_nan(value), indent=1, default=float)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_findings(sentences: Iterable[str]) -> None:
    """Print the findings as a list."""
    for line in sentences:
        print(textwrap.fill(f"* {line}", max(_width(), 40), subsequent_indent="  "))
    print()


def print_claims(claims: pd.DataFrame) -> None:
    """Print one line per variant of a claim."""
    from ..views.style import estimate
    from ..views.tables import claim_name, verdict_of

    for row in claims.to_dict("records"):
        found = row["estimate"], row["low"], row["high"]
        print(f"{claim_name(row)}: {verdict_of(row)}, {estimate(*found) if math.isfinite(found[0]) else '–'}")


def print_comparison(totals: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> None:
    """Print two models' totals and their largest component changes, or modules and relative depth if shapes differ."""
    shown: dict[str, Any] = {"index": False, "float_format": "{:.4g}".format}
    print(totals.to_string(**shown))
    for name, table in tables.items():
        heading = f"By {'module' if name == 'modules' else 'relative depth'}"
        if name == "components":
            size, heading = "own_size" if "own_size" in table else "size", "The components that changed most"
            names = ("component", "change", "own_change", "net_linear_change", "loss_change", size)
            table = table.sort_values(size, ascending=False, kind="stable")[[n for n in names if n in table]].head(10)
        print(f"\n{heading}\n{table.to_string(**shown)}")


def print_information(frame: pd.DataFrame, unit: str) -> None:
    """Print the terms of Eq. 13, one row per model, task and estimator, then the first warning of each."""
    estimates = ["model", "task", "estimator"]
    wide = frame.pivot(index=estimates, columns="term", values="bits")
    print(f"\nunit {unit}; bits\n{wide[list(frame['term'].unique())].to_string(float_format='%.3g')}")
    for row in frame.drop_duplicates(estimates).query("warnings != ''").to_dict("records"):
        print(f"{row['model']} on {row['task']}, {row['estimator']}: {str(row['warnings']).splitlines()[0]}")


def print_profile(model: str, numbers: Mapping[str, Any]) -> None:
    """Print the headline numbers of a text (`profile_record`) and its hardest tokens."""
    from ..views.html import quoted

    n = numbers
    print(f"{model}: {n['tokens']} tokens, {n['components']} components, mean loss {n['loss']:.4g} nats")
    gaps = f"{n['absolute_gap']:.1e} logits, {n['identity_gap']:.1e} of Σ|u|"
    print(f"  components sum to the logits: largest gap {gaps}")
    print(
        f"  net {n['net']:.4g} = bias {n['bias']:.4g} − diversity {n['diversity']:.4g}   (logits²; identity to "
        f"{n['theorem_gap']:.0e})"
    )
    print(
        f"  centered: {n['net_centered']:.4g} = {n['bias_centered']:.4g} − {n['diversity_centered']:.4g}   "
        f"({n['shift_share']:.1%} of raw diversity is a shift that softmax cannot see)\n"
    )
    rows = []
    for row in n["hardest"]:
        # A terminal interprets control characters.
        token, following = (
            "".join(c if c.isprintable() else ascii(c)[1:-1] for c in quoted(row[name]))
            for name in ("token", "next_token")
        )
        moved = {f"logit {way} by": ", ".join(label for label, _ in row[way]) for way in ("raised", "lowered")}
        rows.append(
            {"position": str(row["position"]), "after": token, "comes": following, "loss": f"{row['loss']:.3g}"} | moved
        )
    print_table(rows, right=("position", "loss"))


def print_paragraph(text: str, end: str = "\n") -> None:
    """Print a paragraph, wrapped to the terminal, and a blank line."""
    print(textwrap.fill(text, max(_width(), 40), break_long_words=False, break_on_hyphens=False), end=f"\n{end}")


def print_table(rows: Sequence[Mapping[str, str]], right: Sequence[str] = ()) -> None:
    """Print aligned columns under their names; cells wrap at spaces, in as few lines as fit the terminal."""
    texts = {name: [name, *(row[name] for row in rows)] for name in rows[0]}
    widths = {name: max(map(len, column)) for name, column in texts.items()}
    words = {name: max(len(word) for text in column for word in text.split()) for name, column in texts.items()}

    @functools.cache
    def wrapped(name: str, width: int) -> list[list[str]]:
        return [textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) for text in texts[name]]

    def count_lines(widths: Mapping[str, int]) -> int:
        return sum(max(map(len, row)) for row in zip(*(wrapped(*column) for column in widths.items()), strict=True))

    while sum(widths.values()) + 2 * (len(widths) - 1) > _width():
        narrower = [widths | {name: widths[name] - 1} for name in widths if widths[name] > words[name]]
        if not narrower:  # the terminal is too narrow for the table; words are never cut
            break
        widths = min(narrower, key=lambda tried: (count_lines(tried), max(tried.values())))
    for row in zip(*(wrapped(*column) for column in widths.items()), strict=True):
        for line in zip_longest(*row, fillvalue=""):
            cells = zip(widths, line, strict=True)
            aligned = [text.rjust(widths[name]) if name in right else text.ljust(widths[name]) for name, text in cells]
            print("  ".join(aligned).rstrip())


def _width() -> int:
    """Return the width in columns: the terminal's, COLUMNS, or 100 for output into a pipe or file."""
    return shutil.get_terminal_size((100, 24)).columns
