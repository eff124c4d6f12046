"""The parser of `layerdiv`, made from the commands and options in commands.toml."""

from __future__ import annotations

import argparse
import tomllib
from importlib import resources
from typing import Any

from .. import __version__
from . import commands

COMMANDS: dict[str, Any] = tomllib.loads((resources.files(__package__) / "commands.toml").read_text(encoding="utf-8"))


def make_parser() -> argparse.ArgumentParser:
    """The parser; each command's function is its option `run`."""
    parser = argparse.ArgumentParser(
        prog="layerdiv",
        description="Decompose a language model's logits; measure the bias and diversity of its components.",
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        if name == "shared":
            continue
        command = subparsers.add_parser(name, help=about["help"], description=about.get("description"))
        command.set_defaults(run=getattr(commands, f"run_{name}"))
        if "one_of" in about:
            _add_options(command.add_mutually_exclusive_group(required=True), about["one_of"])
        for options in (about["options"], *(COMMANDS["shared"][group] for group in about.get("shared", ()))):
            _add_options(command, options)
    return parser


def _add_options(command: argparse._ActionsContainer, options: dict[str, Any]) -> None:
    for name, given in options.items():
        settings: dict[str, Any] = dict(given)
        names = [settings.pop("short"), name] if "short" in settings else [name]
        if settings.get("type") == "int":
            settings["type"] = int
        if name.startswith("-") and settings.get("nargs") == "+":
            settings["action"] = "extend"
        command.add_argument(*names, **settings)
