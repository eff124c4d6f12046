"""Parts shared by the pages of studies and of depth analyses: the first screen, claims, methods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from . import tables
from .findings import Finding
from .html import Block, Page

MOST_FINDINGS = 5  # on the first screen


def begin_page(
    title: str,
    about: str,
    failures: Iterable[str],
    findings: list[Finding],
    main: tuple[Block | None, str],
    names: Mapping[str, str],
) -> Page:
    """Begin a page with its subject, failures, main figure and a few findings, which link to figures by `names`;
    other findings are folded away.
    """
    page = Page(title, contents=True)
    page.text(about)
    for failure in failures:
        page.text(failure, "note")
    page.heading("What came out")
    with page.within("opening"):
        if main[0] is not None:
            page.block(main[0], name=main[1])
        with page.within("findings"):
            _list(page, findings[:MOST_FINDINGS], names)
            if more := findings[MOST_FINDINGS:]:
                with page.folded(f"{len(more)} more"):
                    _list(page, more, names)
    return page


def _list(page: Page, findings: Sequence[Finding], names: Mapping[str, str]) -> None:
    links = [(f.figure, f"Figure: {names[f.figure]}") if f.figure in names else ("", "") for f in findings]
    page.list([f.text for f in findings], links)


def add_claims(page: Page, claims: pd.DataFrame) -> None:
    """Add the verdicts; claims that this study cannot test are listed in one folded line."""
    untested = claims["verdict"] == "not tested"
    if not untested.all():
        page.table(tables.claims_table(claims[~untested]), "Estimates with 95 % intervals below.", marked="verdict")
    if untested.any():
        with page.folded(f"{count(int(untested.sum()), 'claim')} cannot be tested here"):
            page.table(tables.claims_table(claims[untested])[["claim"]], "Each with what it would need.")


@contextlib.contextmanager
def methods_section(page: Page, texts: Iterable[str], reading: Mapping[str, str] | None = None) -> Iterator[None]:
    """Add definitions and methods, folded away, then the provenance added inside the block, folded away too."""
    page.heading("Methods and sources")
    if reading:
        with page.folded("How to read raw, centered, net"):
            page.terms(reading)
    with page.folded("Methods"):
        for text in texts:
            page.text(text)
    with page.folded("Where the numbers come from"):
        yield


def count(n: int, noun: str) -> str:
    """Format a number with its noun: "1 model", "2 models"."""
    return f"{n} {noun}{'s' * (n != 1)}"
