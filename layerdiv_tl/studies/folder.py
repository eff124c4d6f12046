"""Results in a folder: one name stands for one model there, and cells of other formats are not read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path
from .._files import PARTIAL, write_first
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from .shards import FORMAT, read_json, safe_name

if TYPE_CHECKING:
    import pandas as pd

CARD = "model.json"
# Files that only the folder of a cell holds.
_FILES = ("shard-*.safetensors", "metrics.parquet", "meta.json", PARTIAL)
OLD = "another version of layerdiv_tl wrote it, and its numbers are not mixed with this one's: run it again elsewhere"


@dataclass(frozen=True)
class Card:
    """Which model a name stands for: hashes of its weights and tokenizer, which alone count, and what it goes by."""

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


def claim_name(out: Path, model: Model, identity: Identity) -> None:
    """Let a name stand for this model in a folder. Raises InputError where it stands for another one already.

    Called before anything of the model is computed. The first of several processes at once has the name.
    """
    own = Card.of(model.name, identity.weights, identity.tokenizer, model.provenance)
    folder = out / safe_name(model.name)
    stored = read_json(folder / CARD)
    if stored is None:
        for file in folder.glob("*/*/meta.json"):  # of a copy, which has no card
            if about := read_finished(file):
                refuse_two_models([(str(out), card_of(about)), (str(out), own)])
        try:
            write_first(folder / CARD, json.dumps(asdict(own), indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise InputError(
                f"{str(folder)!r} cannot be written ({error.strerror}): give a folder of yours."
            ) from error
        stored = read_json(folder / CARD)
    try:
        first = Card(**(stored or {}))
    except TypeError as error:
        raise InputError(
            f"{str(folder / CARD)!r} is not whole, or of another version: remove {str(folder)!r}."
        ) from error
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
    weights = settings["fingerprint"] if "fingerprint" in settings else settings["weights"]
    return Card.of(settings["model"], weights, settings["tokenizer"], about["provenance"])


def read_finished(file: Path) -> dict[str, Any] | None:
    """The description of a finished cell; None where it is not finished, or was by another version."""
    about = read_json(file)
    return about if about is not None and about.get("format") == FORMAT else None


def write_page(page: Any, path: str | os.PathLike[str]) -> Path:
    """Write a report. Raises InputError for a file that cannot be written."""
    try:
        return page.write(path)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give the path of a file.") from error


def read_cells(
    folders: Sequence[Any], only: set[Path] | None = None
) -> tuple[list[tuple[dict[str, Any], pd.DataFrame]], list[str]]:
    """(description, metrics) of the newest cell of every model, task and unit; and what failed.

    `only` these folders of cells. Raises InputError for a folder that does not exist, and for two models of one name.
    """
    import pandas as pd

    newest: dict[tuple[str, ...], tuple[dict[str, Any], pd.DataFrame]] = {}
    failures: dict[str, None] = {}
    cards: list[tuple[str, Card]] = []
    for folder in folders:
        root = file_path("folder", folder)
        if not root.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: run a study there first.")
        cells = {file.parent for name in _FILES for file in root.glob(f"*/*/*/{name}")}
        for cell in sorted(cells if only is None else cells & only, key=_natural):
            about = read_json(cell / "meta.json")
            # A cell that is not finished has no description, but its model has a card since there are any.
            if about.get("format") != FORMAT if about else not (cell.parents[1] / CARD).is_file():
                failures[f"{cell.parents[1].relative_to(root)}: {OLD}."] = None
                continue
            if about is None or not (cell / "metrics.parquet").is_file():
                failures[f"{cell.relative_to(root)} is not finished: run the same study again."] = None
                continue
            try:
                frame = pd.read_parquet(cell / "metrics.parquet")
                names = {name: about["settings"][name] for name in ("model", "task", "unit")}
                cards.append((str(root), card_of(about)))
            except (OSError, ValueError, KeyError) as error:
                failures[f"{cell.relative_to(root)} cannot be read ({error}): remove it, run the study again."] = None
                continue
            before = newest.get(tuple(names.values()))
            if before is None or before[0]["finished"] <= about["finished"]:
                newest[tuple(names.values())] = (about | {"folder": str(cell)}, frame.assign(**names))
    refuse_two_models(cards)
    return list(newest.values()), list(failures)


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts d2 before d12, and d2 before d2-seed1."""
    names = [re.split(r"(\d+)", name) for name in path.parts[-3:]]
    return [[(int(part), "") if part.isdigit() else (-1, part) for part in name if part] for name in names]
