"""The commands' options, named like the keyword arguments of the functions that they go to."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from .. import __version__
from . import commands, docs

UNITS = ("sublayer", "head", "neuron", "expert")
SCORES = (
    *("contribution", "loss", "accuracy", "diversity", "diversity_centered", "net", "relevancy", "relative_norm"),
    "block_influence",
)
ANALYSES = (
    *("residual_norms", "skip", "skip_future", "logit_lens", "depth_score", "agreement", "drop_plan", "map_layers"),
    "effects",
)


def option(metavar: str, help: str, default: Any = None, **settings: Any) -> dict[str, Any]:
    """Describe an option by argparse's settings."""
    return {"metavar": metavar, "help": help, "default": default, **settings}


def number(metavar: str, help: str, default: int | None = None) -> dict[str, Any]:
    """Describe an option that takes an integer."""
    return option(metavar, help, default, type=int)


def flag(help: str) -> dict[str, Any]:
    """Describe an option without a value."""
    return {"help": help, "action": "store_true", "default": False}


def one_of(choices: tuple[str, ...], help: str, default: str | None = None, **settings: Any) -> dict[str, Any]:
    """Describe an option that takes one of some names."""
    return {"choices": choices, "help": help, "default": default, **settings}


# Options of several commands; those of a command replace what they name.
_MODEL = option("M", "a Hugging Face id, a folder, a .gguf file, or 'default'", "default")
_MODELS = option("M", "Hugging Face ids, folders, .gguf files, 'default', 'zoo'", nargs="+")
_TASKS = option("T", "names, JSON files, 'all' for the eight, 'zoo'", nargs="+")
_OUT = option("DIR", "where to write, and to resume from")
_NEW = option("DIR", "where to write")
_DATA = option("DIR", "folder with the tasks' rows, <name>.jsonl, .csv or .parquet")
_LIMIT = number("N", "use the first N rows of each task")
_UNIT = one_of(UNITS, "components to decompose into", "sublayer")
_SEED = number("S", "seed of random choices, such as few-shot examples, and of resamples", 0)
_MULTI_TOKEN = flag("score options by their first distinguishing token")
_LIST = {"--out": option("FILE", "write the JSON list to a file")}
# Options of `load_model`, and those for models that fill a device or several.
LOADING = ("device", "dtype", "trust_remote_code", "device_map")
_LOAD = {
    "--device": option("D", "where models run, e.g. cpu or cuda:1 (default: a GPU if any)"),
    "--dtype": option("DTYPE", "precision of the weights, e.g. bfloat16 (default: the checkpoint's)"),
    "--trust-remote-code": flag("run code that comes with a checkpoint"),
}
_LOAD_LARGE = _LOAD | {
    "--batch-tokens": number("N", "tokens per forward pass (default: automatic)"),
    "--device-map": option("MAP", "'auto' spreads one large model over all devices"),
}

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {"--out": _OUT | {"default": "layerdiv-demo"}},
    "run": {
        "--model": _MODELS | {"required": True},
        "--task": _TASKS | {"required": True},
        "--out": _OUT | {"required": True},
        "--data": _DATA,
        "--limit": number("N", "use the first N rows (default: 2000 of the paper's)"),
        "--unit": one_of(UNITS, "components to decompose into (default: sublayer)", nargs="+"),
        "--template": option("T", "name of another of the tasks' templates, or a format string"),
        "--shots": number("K", "solved examples in front of every prompt", 0),
        "--train": option("DIR", "folder with the rows for few-shot examples (default: <name>_train in --data)"),
        "--seed": _SEED,
        "--chat": flag("put prompts through the tokenizer's chat template"),
        "--multi-token": _MULTI_TOKEN,
        "--keep-text": flag("also write the prompts"),
        "--workers": number("N", "processes that share many small models", 1),
        "--dry-run": flag("estimate remaining time from one trial batch; write nothing"),
        "--information": one_of(
            ("gaussian", "vote", "variational"),
            "also estimate the components' information about the label, by these estimators (2000 rows or more)",
            nargs="+",
        ),
        **_LOAD_LARGE,
    },
    "depth": {
        "--model": _MODELS | {"help": _MODELS["help"] + " (default: 'default')"},
        "--task": _TASKS | {"help": "as in run (default: the sample tasks, unless --text is given)"},
        "--text": option("FILE", "texts for norms, skips and the lens, blank lines between (default: 16 prompts)"),
        "--out": _OUT | {"required": True},
        "--data": _DATA,
        "--limit": _LIMIT | {"default": 64},
        "--analyses": one_of(ANALYSES, "only these of %(choices)s (default: all but effects)", nargs="+", metavar="A"),
        "--part": one_of(("layer", "sublayer", "attn", "mlp", "head"), "what the plan drops", "layer"),
        "--drop": number("N", "layers or sublayers that the plan drops (default: a fifth)"),
        "--score": one_of(SCORES, "what the plan ranks by", "loss"),
        "--ask": option(
            "SOURCE",
            "questions of the depth score: sample/hops (the default where the tokenizer knows its words), "
            "synthetic/k_hop, synthetic/modular, or a file of rows with text, answer and hops",
        ),
        "--questions": number("N", "questions per number of hops, 0 for none", 32),
        "--multi-token": _MULTI_TOKEN,
        "--seed": _SEED,
        **_LOAD_LARGE,
    },
    "effects": {
        "--model": _MODEL,
        "--task": option("T", "name of a task, or a JSON file", "sample/topic"),
        "--data": _DATA,
        "--limit": _LIMIT | {"default": 16},
        "--unit": one_of(("sublayer", "head"), "components to ablate", "sublayer"),
        "--ablation": one_of(
            ("mean", "zero", "resample"),
            "what replaces their output: its mean over the task's rows (one for prompts' first tokens, one for their "
            "last and one for all others), zeros, or another row's output",
            "mean",
        ),
        "--out": _NEW | {"default": "layerdiv-effects"},
        **_LOAD_LARGE,
    },
    "zoo": {
        "--model": option("M", "only these, e.g. zoo/d4", nargs="+"),
        "--workers": number("N", "processes (default: one for every core)"),
        "--out": _OUT | {"default": "layerdiv-zoo"},
    },
    "report": {
        "folders": option("DIR", "folder of a study; several are collected into one", nargs="+"),
        "-o --out": option("FILE", "the page", "report.html"),
    },
    "profile": {
        "text": option("TEXT", "the text, or - to read it from the standard input", nargs="?"),
        "--file": option("FILE", "a file with the text, in UTF-8"),
        "--model": _MODEL,
        "--unit": _UNIT | {"help": "components of the printed numbers; the page has sublayers and heads"},
        "--out": option("FILE", "the page", "layerdiv-profile.html"),
        **_LOAD,
    },
    "compare": {
        "a": _MODEL | {"metavar": "A"},
        "b": option("B", "the other model: changes are B minus A"),
        "--task": option("T", "name of a task, or a JSON file"),
        "--text": option("TEXT", "a text instead of a task"),
        "--data": _DATA,
        "--limit": _LIMIT | {"default": 128},
        "--unit": _UNIT,
        "--out": option("FILE", "the figure as a page", "layerdiv-compare.html"),
        **_LOAD,
    },
    "check": {"model": _MODEL | {"metavar": "MODEL"}, **_LOAD},
    "tasks": _LIST,
    "models": _LIST,
    "docs": {
        "--out": _NEW | {"default": "layerdiv-docs"},
        "--no-outputs": flag("in a clone: show the notebooks without running them"),
    },
}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser. A command's help is the docstring of its function, which is stored as `run`."""
    parser = argparse.ArgumentParser(
        prog="layerdiv",
        description="Decompose a language model's logits; measure the bias and diversity of its components.",
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, options in OPTIONS.items():
        run = docs.run_docs if name == "docs" else getattr(commands, f"run_{name}")
        about, _, more = inspect.cleandoc(run.__doc__ or name).partition("\n\n")
        command = subparsers.add_parser(name, help=about.rstrip("."), description=more or about)
        command.set_defaults(run=run)
        texts = command.add_mutually_exclusive_group(required=True) if name == "profile" else command
        for names, settings in options.items():
            where = texts if names in ("text", "--file") else command
            where.add_argument(*names.split(), **_settings(settings, names.startswith("-")))
        command.add_argument("--json", action="store_true", help="print JSON instead of tables and sentences")
    return parser


def _settings(settings: dict[str, Any], is_option: bool) -> dict[str, Any]:
    """Name an option's default in its help; an option with several values may be repeated."""
    if not is_option:
        return {name: value for name, value in settings.items() if name != "default"}
    if settings["default"] not in (None, False):
        settings = settings | {"help": settings["help"] + " (default: %(default)s)"}
    return settings | ({"action": "extend"} if settings.get("nargs") == "+" else {})
