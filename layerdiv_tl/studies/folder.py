"""Whose results lie in a folder: one name stands for one model there, and cells of other formats are not read."""

from __future__ import annotations

import json
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
# What tells the folder of a cell from any other that lies as deep.
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
        """The card of a model that results name."""
        versions = [f"{name} {provenance.get(name)}" for name in ("transformers", "transformer_lens")]
        known = (str(provenance["source"]), int(provenance["parameters"]), provenance["dtype"], provenance["through"])
        return cls(name, weights, tokenizer, *known, ", ".join(versions))

    def described_beside(self, other: Card) -> str:
        """What it is, with what makes it another one."""
        tokenizer = (self.tokenizer or "none")[:8]
        words = [f"{self.parameters:,} parameters", self.dtype, f"weights {self.weights[:8]}", f"tokenizer {tokenizer}"]
        words += [self.through] if self.through != other.through else []
        words += [self.versions] if self.versions != other.versions else []
        return f"{self.model!r} from {self.source!r} ({', '.join(words)})"


def claim(out: Path, model: Model, identity: Identity) -> None:
    """Let a name stand for this model in a folder. Raises InputError where it stands for another one already.

    Asked before anything of the model is computed. The first of several processes at once has the name.
    """
    mine = Card.of(model.name, identity.weights, identity.tokenizer, model.provenance)
    place = out / safe_name(model.name)
    written = read_json(place / CARD)
    if written is None:
        for file in place.glob("*/*/meta.json"):  # of a copy, which has no card
            if about := finished(file):
                _compare((str(out), card(about)), (str(out), mine))
        try:
            write_first(place / CARD, json.dumps(asdict(mine), indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise InputError(f"{str(place)!r} cannot be written ({error.strerror}): give a folder of yours.") from error
        written = read_json(place / CARD)
    try:
        first = Card(**(written or {}))
    except TypeError as error:
        raise InputError(
            f"{str(place / CARD)!r} is not whole, or of another version: remove {str(place)!r}."
        ) from error
    _compare((str(out), first), (str(out), mine))


def refuse_two_models(cards: Iterable[tuple[str, Card]]) -> None:
    """Raise InputError, naming both, where of (folder, card) two have one name and are of two models."""
    known: dict[str, tuple[str, Card]] = {}
    for folder, one in cards:
        _compare(known.setdefault(one.model, (folder, one)), (folder, one))


def _compare(before: tuple[str, Card], now: tuple[str, Card]) -> None:
    (there, first), (here, one) = before, now
    parts = [word for word in ("weights", "tokenizer") if getattr(first, word) != getattr(one, word)]
    if parts:
        raise InputError(
            f"two models have the name {one.model!r}, with other {' and '.join(parts)}: "
            f"{first.described_beside(one)} in {there!r}, and {one.described_beside(first)} in {here!r}. Give one of "
            "them another name (models={name: model}) or a folder of its own."
        )


def card(about: dict[str, Any]) -> Card:
    """The card of a finished cell or depth analysis, from what it says about itself."""
    settings = about["settings"]
    weights = settings["fingerprint"] if "fingerprint" in settings else settings["weights"]
    return Card.of(settings["model"], weights, settings["tokenizer"], about["provenance"])


def finished(file: Path) -> dict[str, Any] | None:
    """What a finished cell says about itself; None where it is not finished, or was by another version."""
    about = read_json(file)
    return about if about is not None and about.get("format") == FORMAT else None


def read_cells(
    folders: Sequence[Any], only: set[Path] | None = None
) -> tuple[list[tuple[dict[str, Any], pd.DataFrame]], list[str]]:
    """(what it says about itself, its metrics) of the newest cell of every model, task and unit; and what failed.

    `only` these folders of cells. Raises InputError for a folder that is not there, and for two models of one name.
    """
    import pandas as pd

    found: dict[tuple[str, ...], tuple[dict[str, Any], pd.DataFrame]] = {}
    failures: dict[str, None] = {}
    cards: list[tuple[str, Card]] = []
    for folder in folders:
        place = file_path("folder", folder)
        if not place.is_dir():
            raise InputError(f"there is no folder {str(folder)!r}: run a study there first.")
        there = {file.parent for name in _FILES for file in place.glob(f"*/*/*/{name}")}
        for at in sorted(there, key=_natural):
            if only is not None and at not in only:
                continue
            about = read_json(at / "meta.json")
            # A cell that is not finished says nothing about itself, but its model has a card since there are any.
            if about.get("format") != FORMAT if about else not (at.parents[1] / CARD).is_file():
                failures[f"{at.parents[1].relative_to(place)}: {OLD}."] = None
                continue
            if about is None or not (at / "metrics.parquet").is_file():
                failures[f"{at.relative_to(place)} is not finished: run the same study again."] = None
                continue
            try:
                frame = pd.read_parquet(at / "metrics.parquet")
                names = {name: about["settings"][name] for name in ("model", "task", "unit")}
                cards.append((str(place), card(about)))
            except (OSError, ValueError, KeyError) as error:
                failures[f"{at.relative_to(place)} cannot be read ({error}): remove it, run the study again."] = None
                continue
            before = found.get(tuple(names.values()))
            if before is None or before[0]["finished"] <= about["finished"]:
                found[tuple(names.values())] = (about | {"folder": str(at)}, frame.assign(**names))
    refuse_two_models(cards)
    return list(found.values()), list(failures)


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """What sorts d2 before d12, and d2 before d2-seed1."""
    names = [re.split(r"(\d+)", name) for name in path.parts[-3:]]
    return [[(int(part), "") if part.isdigit() else (-1, part) for part in name if part] for name in names]
