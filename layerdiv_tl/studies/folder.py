"""Folders of results: a name identifies one model, and files of other format versions are skipped."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from .._checks import file_path
from .._files import write_first
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from .shards import read_json, safe_name

T = TypeVar("T")
CARD = "model.json"
OLD = "another version of layerdiv_tl wrote it, and its numbers are not mixed with this one's: run it again elsewhere"


def model_card(name: str, weights: str, tokenizer: str | None, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the model that a name identifies: hashes of weights and tokenizer (its identity), and its origin."""
    card = {"model": name, "weights": weights, "tokenizer": tokenizer}
    card |= {key: provenance[key] for key in ("source", "parameters", "dtype", "through")}
    versions = ", ".join(f"{name} {provenance.get(name)}" for name in ("transformers", "transformer_lens"))
    return card | {"versions": versions}


def card_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """Make the card of a finished cell or depth analysis from its description."""
    settings = about["settings"]
    weights = settings.get("fingerprint") or settings["weights"]
    return model_card(settings["model"], weights, settings["tokenizer"], about["provenance"])


def register_model(out: Path, model: Model, identity: Identity, look_only: bool = False) -> None:
    """Register this model under a name in a folder, before any computation; the first of several processes gets it.

    `look_only` writes nothing. Raises InputError if the name identifies another model.
    """
    own = model_card(model.name, identity.weights, identity.tokenizer, model.provenance)
    file = out / safe_name(model.name) / CARD
    if (first := read_json(file)) is None:
        if look_only:
            return
        try:
            write_first(file, json.dumps(own, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise InputError(f"{str(file.parent)!r} cannot be written ({error.strerror}): give another.") from error
        first = read_json(file) or {}
    if first.keys() != own.keys():
        raise InputError(f"{str(file)!r} is of another version or not whole: remove its folder.")
    refuse_two_models([(str(out), first), (str(out), own)])


def refuse_two_models(cards: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Raise InputError, naming both, if two of these (folder, card) pairs give one name to different models."""
    known: dict[str, tuple[str, dict[str, Any]]] = {}
    for folder, card in cards:
        first_folder, first = known.setdefault(card["model"], (folder, card))
        if different := [word for word in ("weights", "tokenizer") if first[word] != card[word]]:
            raise InputError(
                f"two models have the name {card['model']!r}, with other {' and '.join(different)}: "
                f"{_described(first, card)} in {first_folder!r}, and {_described(card, first)} in {folder!r}. Give one "
                "of them another name (models={name: model}) or a folder of its own."
            )


def _described(card: dict[str, Any], other: dict[str, Any]) -> str:
    """Describe a model and its differences from the other."""
    words = [f"{card['parameters']:,} parameters", card["dtype"], f"weights {card['weights'][:8]}"]
    words += [f"tokenizer {(card['tokenizer'] or 'none')[:8]}"]
    words += [card[key] for key in ("through", "versions") if card[key] != other[key]]
    return f"{card['model']!r} from {card['source']!r} ({', '.join(words)})"


def write_page(page: Any, path: str | os.PathLike[str]) -> Path:
    """Write a report. Raises InputError for a file that cannot be written."""
    try:
        return page.write(path)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give the path of a file.") from error


def read_newest(
    folders: Sequence[Any],
    command: str,
    find: Callable[[Path], Iterable[Path]],
    read: Callable[[Path, dict[str, Any] | None], tuple[tuple[str, ...], dict[str, Any], T]],
) -> tuple[list[T], list[str]]:
    """Read the results in folders, the latest for each key, and list the files that could not be read.

    `read` returns key, description and result of a file that `find` yields, or raises SkippedFile. Raises InputError
    for a missing folder, and for two models of one name.
    """
    newest: dict[tuple[str, ...], tuple[str, T]] = {}
    failures: dict[str, None] = {}
    cards: list[tuple[str, dict[str, Any]]] = []
    for folder in folders:
        root = file_path("folder", folder)
        if not root.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: run {command} there first.")
        for file in find(root):
            try:
                key, about, result = read(file, read_json(file))
                cards.append((str(root), card_of(about)))
            except SkippedFile as unread:
                failures[f"{unread.path.relative_to(root)}{unread}."] = None
                continue
            except (InputError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                failures[f"{file.relative_to(root)} cannot be read ({error}): remove it, run {command} again."] = None
                continue
            if key not in newest or newest[key][0] <= about["finished"]:
                newest[key] = about["finished"], result
    refuse_two_models(cards)
    return [result for _, result in newest.values()], list(failures)


class SkippedFile(Exception):
    """A file in a folder that is not read; the message is the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


@contextlib.contextmanager
def failing(failures: list[str], what: str) -> Iterator[None]:
    """Turn an error in the block into a sentence in `failures` and continue after the block."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())
        failures.append(f"{what}: {text if isinstance(error, InputError) else f'{type(error).__name__}: {text}'}")


def made_by(model: Model) -> dict[str, Any]:
    """Return the provenance entries of a description: what computed the numbers, and when."""
    return {
        "provenance": model.provenance,
        "versions": {package: version(package) for package in ("layerdiv_tl", "numpy", "pandas")},
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
