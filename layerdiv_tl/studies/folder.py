"""Results in a folder: one name stands for one model there, and what other versions wrote is not read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from .._checks import file_path
from .._files import write_first
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from .shards import FORMAT, read_json, safe_name

T = TypeVar("T")
CARD = "model.json"
OLD = "another version of layerdiv_tl wrote it, and its numbers are not mixed with this one's: run it again elsewhere"


@dataclass(frozen=True)
class Card:
    """The model that a name stands for: hashes of its weights and tokenizer, which alone count, and a description."""

    model: str
    weights: str
    tokenizer: str | None
    source: str
    parameters: int
    dtype: str
    through: str
    versions: str

    @classmethod
    def of(cls, name: str, weights: str, tokenizer: str | None, provenance: dict[str, Any]) -> Card:
        """The card of a model with this provenance."""
        versions = ", ".join(f"{name} {provenance.get(name)}" for name in ("transformers", "transformer_lens"))
        source, parameters = str(provenance["source"]), int(provenance["parameters"])
        return cls(name, weights, tokenizer, source, parameters, provenance["dtype"], provenance["through"], versions)

    def described(self, other: Card) -> str:
        """The model in words, with what differs from the other."""
        tokenizer = (self.tokenizer or "none")[:8]
        words = [f"{self.parameters:,} parameters", self.dtype, f"weights {self.weights[:8]}", f"tokenizer {tokenizer}"]
        words += [getattr(self, x) for x in ("through", "versions") if getattr(self, x) != getattr(other, x)]
        return f"{self.model!r} from {self.source!r} ({', '.join(words)})"


def register_model(out: Path, model: Model, identity: Identity, look_only: bool = False) -> None:
    """Let a name stand for this model in a folder. Raises InputError where it stands for another one already.

    Called before anything of the model is computed. The first of several processes at once has the name; `look_only`
    takes none and writes nothing.
    """
    own = Card.of(model.name, identity.weights, identity.tokenizer, model.provenance)
    folder = out / safe_name(model.name)
    stored = read_json(folder / CARD)
    if stored is None:
        for file in folder.glob("*/*/meta.json"):  # of a copy, which has no card
            if (card := card_of_file(file)) is not None:
                refuse_two_models([(str(out), card), (str(out), own)])
        if look_only:
            return
        try:
            write_first(folder / CARD, json.dumps(asdict(own), indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise InputError(f"{str(folder)!r} cannot be written ({error.strerror}): give another.") from error
        stored = read_json(folder / CARD)
    try:
        first = Card(**(stored or {}))
    except TypeError as error:
        raise InputError(f"{str(folder / CARD)!r} is of another version or not whole: remove its folder.") from error
    refuse_two_models([(str(out), first), (str(out), own)])


def refuse_two_models(cards: Iterable[tuple[str, Card]]) -> None:
    """Raise InputError, naming both, where of (folder, card) two have one name and are of two models."""
    known: dict[str, tuple[str, Card]] = {}
    for folder, card in cards:
        first_folder, first = known.setdefault(card.model, (folder, card))
        different = [word for word in ("weights", "tokenizer") if getattr(first, word) != getattr(card, word)]
        if different:
            raise InputError(
                f"two models have the name {card.model!r}, with other {' and '.join(different)}: "
                f"{first.described(card)} in {first_folder!r}, and {card.described(first)} in {folder!r}. Give one of "
                "them another name (models={name: model}) or a folder of its own."
            )


def card_of(about: dict[str, Any]) -> Card:
    """The card of a finished cell or depth analysis, from its description."""
    settings = about["settings"]
    weights = settings.get("fingerprint") or settings["weights"]
    return Card.of(settings["model"], weights, settings["tokenizer"], about["provenance"])


def card_of_file(file: Path) -> Card | None:
    """The card of a finished cell; None where it is not finished, not whole, or of another version."""
    about = read_json(file)
    try:
        return card_of(about) if about is not None and about.get("format") == FORMAT else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


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
    """Read what lies in folders, of each key the one finished last; name what could not be read.

    `find` gives the files that describe what lies below a folder; `read` takes such a file and what it holds, and gives
    key, description and result, or raises SkippedFile. Raises InputError for a folder that does not exist, and for two
    models of one name.
    """
    newest: dict[tuple[str, ...], tuple[str, T]] = {}
    failures: dict[str, None] = {}
    cards: list[tuple[str, Card]] = []
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
    """Something in a folder that is not read, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


@contextlib.contextmanager
def failing(failures: list[str], what: str) -> Iterator[None]:
    """An error in the block is a sentence in `failures`, and what comes after the block goes on."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())
        failures.append(f"{what}: {text if isinstance(error, InputError) else f'{type(error).__name__}: {text}'}")


def made_by(model: Model) -> dict[str, Any]:
    """The part of a description that says what computed the numbers, and when."""
    return {
        "provenance": model.provenance,
        "versions": {package: version(package) for package in ("layerdiv_tl", "numpy", "pandas")},
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
