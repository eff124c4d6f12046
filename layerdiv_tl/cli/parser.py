"""The commands of `layerdiv` and their options."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from .. import __version__
from . import commands, docs

UNITS = ("sublayer", "head", "neuron", "expert")
SCORES = (
    *("contribution", "loss", "accuracy", "diversity", "diversity_centered", "net", "relevancy", "relative_norm"),
    "block_influence",
)
ONE_MODEL = "a Hugging Face id, a folder, a .gguf file, or 'default'"


class Command(argparse.ArgumentParser):
    """The parser of one command, with the options that several commands have."""

    def add(self, *names: str, **settings: Any) -> None:
        """Add an argument; an option with several values may be repeated."""
        self.add_argument(*names, **({"action": "extend"} if settings.get("nargs") == "+" else {}) | settings)

    def number(self, name: str, metavar: str, help: str, default: int | None = None) -> None:
        """Add an option that takes an integer."""
        self.add(name, metavar=metavar, type=int, default=default, help=help)

    def out(self, default: str | None, help: str, metavar: str = "DIR") -> None:
        """Add --out, which is required where it has no default."""
        help += "" if default is None else " (default: %(default)s)"
        self.add("--out", metavar=metavar, default=default, required=default is None, help=help)

    def json(self, what: str) -> None:
        """Add --json, which prints numbers as JSON instead of tables and sentences."""
        self.add("--json", action="store_true", help=f"print {what} as JSON")

    def loading(self, large: bool = True) -> None:
        """Add the options of `load_model`, and those for models that fill a device or several."""
        self.add("--device", metavar="D", help="where models run, e.g. cpu or cuda:1 (default: a GPU if any)")
        self.add("--dtype", help="precision of the weights, e.g. bfloat16 (default: the checkpoint's)")
        self.add("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
        if large:
            self.number("--batch-tokens", "N", "tokens per forward pass (default: automatic)")
            self.add("--device-map", metavar="MAP", help="'auto' spreads one large model over all devices")


def make_parser() -> argparse.ArgumentParser:
    """Make the parser. A command's help is the docstring of its function, which is stored as `run`."""
    parser = argparse.ArgumentParser(
        prog="layerdiv",
        description="Decompose a language model's logits; measure the bias and diversity of its components.",
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Command)
    for name, add_options in OPTIONS.items():
        run = docs.run_docs if name == "docs" else getattr(commands, f"run_{name}")
        about, _, more = inspect.cleandoc(run.__doc__ or name).partition("\n\n")
        command = subparsers.add_parser(name, help=about.rstrip("."), description=more or about)
        command.set_defaults(run=run)
        add_options(command)
    return parser


def _demo(command: Command) -> None:
    command.out("layerdiv-demo", "where to write")
    command.json("the numbers")


def _run(command: Command) -> None:
    command.add(
        "--model",
        nargs="+",
        metavar="M",
        required=True,
        help="Hugging Face ids, folders, .gguf files, 'default', 'zoo'",
    )
    command.add("--task", nargs="+", metavar="T", required=True, help="names, JSON files, 'all' for the eight, 'zoo'")
    command.out(None, "where to write, and to resume from")
    command.add("--data", metavar="DIR", help="folder with the tasks' rows, <name>.jsonl, .csv or .parquet")
    command.number("--limit", "N", "use the first N rows (default: 2000 of the paper's)")
    command.add("--unit", nargs="+", choices=UNITS, help="components to decompose into (default: sublayer)")
    command.add("--template", help="name of another of the tasks' templates, or a format string")
    command.number("--shots", "K", "solved examples in front of every prompt", 0)
    command.add(
        "--train", metavar="DIR", help="folder with the rows for few-shot examples (default: <name>_train in --data)"
    )
    command.number("--seed", "S", "seed for drawing few-shot examples (default: %(default)s)", 0)
    command.add("--chat", action="store_true", help="put prompts through the tokenizer's chat template")
    command.add("--multi-token", action="store_true", help="score options by their first distinguishing token")
    command.add("--keep-text", action="store_true", help="also write the prompts")
    command.number("--workers", "N", "processes that share many small models", 1)
    command.add("--dry-run", action="store_true", help="estimate remaining time from one trial batch; write nothing")
    command.json("the table")
    command.add(
        "--information",
        nargs="+",
        choices=("gaussian", "vote", "variational"),
        help="also estimate the components' information about the label, by these estimators (2000 rows or more)",
    )
    command.loading()


def _depth(command: Command) -> None:
    command.add(
        "--model", nargs="+", metavar="M", help="as in run; several models are also mapped onto their neighbors"
    )
    command.add("--task", nargs="+", metavar="T", help="as in run (default: the sample tasks, unless --text is given)")
    command.add("--data", metavar="DIR", help="folder with the tasks' rows")
    command.number("--limit", "N", "rows of each task (default: %(default)s)", 64)
    command.add("--analyses", nargs="+", metavar="A", help="only these; 'effects' is not in the standard set")
    command.number("--drop", "N", "layers or sublayers that the plan drops (default: a fifth)")
    command.number("--questions", "N", "questions per number of hops (default: %(default)s; 0 for none)", 32)
    command.add("--multi-token", action="store_true", help="score options by their first distinguishing token")
    command.number("--seed", "S", "seed of choices and resamples (default: %(default)s)", 0)
    command.out(None, "where to write, and to resume from")
    command.json("claims and findings")
    command.add(
        "--text",
        metavar="FILE",
        help="texts for norms, skips and the lens, blank lines between them (default: the first 16 prompts of a task)",
    )
    command.add(
        "--part",
        choices=("layer", "sublayer", "attn", "mlp", "head"),
        default="layer",
        help="what the plan drops (default: %(default)s)",
    )
    command.add("--score", choices=SCORES, default="loss", help="what the plan ranks by (default: %(default)s)")
    command.add(
        "--ask",
        metavar="SOURCE",
        help="questions of the depth score: sample/hops (the default where the tokenizer knows its words), "
        "synthetic/k_hop, synthetic/modular, or a file of rows with text, answer and hops",
    )
    command.loading()


def _effects(command: Command) -> None:
    command.add("--model", metavar="M", default="default", help=ONE_MODEL)
    command.add("--task", metavar="T", default="sample/topic", help="as in run (default: %(default)s)")
    command.add("--data", metavar="DIR", help="folder with the task's rows")
    command.number("--limit", "N", "rows (default: %(default)s)", 16)
    command.add("--unit", choices=("sublayer", "head"), default="sublayer", help="default: %(default)s")
    command.add("--ablation", choices=("mean", "zero", "resample"), default="mean", help="default: %(default)s")
    command.out("layerdiv-effects", "where to write")
    command.json("the numbers")
    command.loading()


def _zoo(command: Command) -> None:
    command.add("--model", nargs="+", metavar="M", help="only these, e.g. zoo/d4")
    command.number("--workers", "N", "processes (default: one for every core)")
    command.out("layerdiv-zoo", "where to write")
    command.json("claims")


def _report(command: Command) -> None:
    command.add("folders", metavar="DIR", nargs="+", help="folder of a study; several are collected into one")
    command.add("-o", "--out", metavar="FILE", default="report.html", help="the page (default: %(default)s)")
    command.json("findings and the page's path")


def _profile(command: Command) -> None:
    texts = command.add_mutually_exclusive_group(required=True)
    texts.add_argument("text", metavar="TEXT", nargs="?", help="the text, or - to read it from the standard input")
    texts.add_argument("--file", metavar="FILE", help="a file with the text, in UTF-8")
    command.add("--model", metavar="M", default="default", help=ONE_MODEL)
    command.out("layerdiv-profile.html", "the page", metavar="FILE")
    command.json("the numbers")
    command.add(
        "--unit",
        choices=UNITS,
        default="sublayer",
        help="components of the printed numbers; the page has sublayers and heads (default: %(default)s)",
    )
    command.loading(large=False)


def _compare(command: Command) -> None:
    command.add("a", metavar="A", help=ONE_MODEL)
    command.add("b", metavar="B", help="the other model: changes are B minus A")
    command.add("task", metavar="TASK", nargs="?", help="name of a task: see layerdiv tasks")
    command.add("--text", metavar="TEXT", help="a text instead of a task")
    command.add("--data", metavar="DIR", help="folder with the task's rows (default: download them)")
    command.number("--limit", "N", "at most this many rows (default: %(default)s)", 128)
    command.out("layerdiv-compare.html", "the figure as a page", metavar="FILE")
    command.json("the numbers")
    command.add("--unit", choices=UNITS, default="sublayer", help="components to compare (default: %(default)s)")
    command.loading(large=False)


def _check(command: Command) -> None:
    command.add("model", metavar="MODEL", help=ONE_MODEL)
    command.json("the table")
    command.loading(large=False)


def _list(command: Command) -> None:
    command.json("a list")
    command.add("--out", metavar="FILE", help="write the JSON list to a file")


def _docs(command: Command) -> None:
    command.out("layerdiv-docs", "where to write")
    command.add("--no-outputs", action="store_true", help="in a clone: show the notebooks without running them")
    command.json("the page's path")


OPTIONS: dict[str, Callable[[Command], None]] = {
    **{"demo": _demo, "run": _run, "depth": _depth, "effects": _effects, "zoo": _zoo, "report": _report},
    **{"profile": _profile, "compare": _compare, "check": _check, "tasks": _list},
    **{"models": _list, "docs": _docs},
}
