"""The depth analyses of some models as one offline page, and what it shares with the page of a study."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import pandas as pd

from ..depth.agreement import Agreement
from ..depth.pruning_results import DropPlan
from ..ensemble.intervals import LEAST
from ..errors import InputError
from ..studies.depth_study import DepthStudy
from . import style, tables
from .findings import Finding, depth_findings
from .html import Block, Page, chart, frame_table, switch, templates

MOST_FINDINGS = 5  # on the first screen
# Further kinds of figures of depth analyses.
_KINDS = {
    "skip": ["bars"],
    "skip_future": ["bars"],
    "agreement": ["ranks", "correlations"],
    "drop_plan": ["components"],
}
_RHO = "Spearman's ρ with the ablation loss, and its 95 % interval over resampled components."


def depth_page(depth: DepthStudy, title: str | None = None) -> Page:
    """Make an offline page of some models' depth analyses: findings, figures, claims, provenance."""
    several = len(depth.models) > 1
    page = Page(
        title or f"How {f'{len(depth.models)} models use' if several else f'{depth.models[0]} uses'} depth", True
    )
    page.add("about_depth", several)
    first_screen(page, depth.failures, depth_findings(depth), (curves_by_layer(depth), ""), analysis_names(depth))
    depth_sections(page, depth, overview=False)
    page.heading("What the papers claim")
    add_claims(page, depth.claims())
    page.heading("Methods and sources")
    page.add("depth_methods", LEAST)
    with page.folded("Where the numbers come from"):
        page.table(tables.analysis_table(depth), "Analyses; weights by SHA-256, shortened.")
    return page


def first_screen(
    page: Page,
    failures: Iterable[str],
    findings: Iterable[Finding],
    main: tuple[Block | None, str],
    names: Mapping[str, str],
) -> None:
    """Add failures, the main figure with its name, and a few findings, which link to figures by `names`; other findings
    are folded away.
    """
    for failure in failures:
        page.text(failure, "note")
    page.heading("What came out")
    items = [(f.text, *((f.figure, names[f.figure]) if f.figure in names else ("", ""))) for f in findings]
    with page.within("opening"):
        if main[0] is not None:
            page.block(main[0], name=main[1])
        with page.within("findings"):
            if is_demo := main[0] is not None and not main[1]:
                page.add("subheading", "On all tasks")
            page.add("list", items[:MOST_FINDINGS])
            if more := items[MOST_FINDINGS:]:
                with page.folded(f"{len(more)} more"):
                    page.add("list", more)
            if is_demo:
                page.add("written_by")


def add_claims(page: Page, claims: pd.DataFrame) -> None:
    """Add the verdicts; claims that this study cannot test are listed in one folded line."""
    untested = claims["verdict"] == "not tested"
    if not untested.all():
        page.table(tables.claims_table(claims[~untested]), "Estimates with 95 % intervals below.", marked="verdict")
    if untested.any():
        with page.folded(f"{style.count(int(untested.sum()), 'claim')} cannot be tested here"):
            page.table(tables.claims_table(claims[untested])[["claim"]], "Each with what it would need.")


def curves_by_layer(depth: DepthStudy) -> Block | None:
    """Plot the curves over layers; None if no analysis has any."""
    with contextlib.suppress(InputError):
        return chart(depth.plot(), "Each point is a layer.")
    return None


def analysis_names(depth: DepthStudy) -> dict[str, str]:
    """Return the analyses' names in links."""
    return {a.name: a.name.replace("_", " ") for a in depth.analyses}


def depth_sections(page: Page, depth: DepthStudy, overview: bool) -> None:
    """Add the figures and tables of all analyses: a section for each kind, which shows one at a time."""
    page.heading("Depth, model by model")
    if overview and (curves := curves_by_layer(depth)) is not None:
        page.block(curves)
    for name, shown_name in analysis_names(depth).items():
        heading, caption = templates().depth_figures.get(name, (shown_name, ""))
        page.add("subheading", heading)
        shown: dict[str, Block] = {}
        for a in (a for a in depth.analyses if a.name == name):
            title = f"{a.model}: {shown_name}, {a.dataset}"
            for kind in (None, *_KINDS.get(name, ())):
                try:
                    shown[f"{title}: {kind}" if kind else title] = chart(a.result.plot(kind=kind), caption)
                except InputError as error:
                    page.text(f"{title}: left out, because {error}", "small")
            if isinstance(a.result, Agreement):
                shown[f"{title}: table"] = frame_table(tables.agreement_table(a.result), _RHO)
            if isinstance(a.result, DropPlan):
                shown[f"{title}: table"] = frame_table(tables.plan_table(a.result), "On rows that did not choose.")
        if shown:
            page.block(switch(shown, "Model, rows and figure"), name=name)
