"""A cell of a study on disk: one model on one task at one unit, in shards of at most 128 rows.

Rows are sorted by length and cut once, so that whoever computes a shard, and whenever, computes the same
batches and so the same bytes. A shard is written under another name and then moved into its place:
it is there whole, or not at all. What is missing is computed; nothing is locked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from .._files import write_text
from ..attribution.contributions import contributions
from ..components import Component, Unit
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from ..results import Result
from ..tasks.task import Task

ROWS = 128
# Of cells. 3: fingerprints are of all weights, and of the tokenizer.
FORMAT = "layerdiv_tl.study/3"


@dataclass(frozen=True, eq=False, repr=False)
class Shard(Result):
    """Some rows of a task, taken apart; an ensemble as `decompose` wants it. No text is in it.

    rows, labels, lengths
        `[example]`: each one's number in the task, its gold option, its length in tokens.
    values, components, options, model_logits, junctions, junction_scale, partial_junctions, identity_gap,
    absolute_gap, soft_cap
        As in `Contributions`.
    """

    rows: Int[np.ndarray, " example"]
    labels: Int[np.ndarray, " example"]
    lengths: Int[np.ndarray, " example"]
    values: Float[np.ndarray, "example component option"]
    components: tuple[Component, ...]
    options: tuple[str, ...]
    model_logits: Float[np.ndarray, "example option"]
    junctions: tuple[Component, ...]
    junction_scale: Float[np.ndarray, "example junction"]
    partial_junctions: Bool[np.ndarray, " junction"]
    identity_gap: float
    absolute_gap: float
    soft_cap: float | None

    @property
    def shared_options(self) -> tuple[str, ...]:
        """The options' texts, which all rows of a task share."""
        return self.options


@dataclass(frozen=True, eq=False)
class Cell:
    """One model on one task at one unit, and the folder where its numbers lie.

    settings
        Everything that the numbers follow from; its hash is part of the folder's name, so that other
        settings never share a folder.
    order
        `[example]`, the task's rows from the longest to the shortest.
    """

    task: Task
    unit: Unit
    settings: dict[str, Any]
    folder: Path
    order: Int[np.ndarray, " example"]

    @property
    def count(self) -> int:
        """How many shards there are."""
        return -(-len(self.order) // ROWS)

    def path(self, number: int) -> Path:
        """Where a shard lies."""
        return self.folder / f"shard-{number:05d}.safetensors"

    def rows(self, number: int) -> Int[np.ndarray, " example"]:
        """The task's rows in a shard."""
        return self.order[number * ROWS : (number + 1) * ROWS]

    def missing(self, first: int = 0) -> Iterator[int]:
        """Shards that nobody has written yet, in a circle from `first`; looked at only when asked for."""
        for step in range(self.count):
            number = (first + step) % self.count
            if not self.path(number).exists():
                yield number

    def compute(self, model: Model, number: int, batch_tokens: int) -> Path:
        """Take one shard's rows apart and write it."""
        rows = self.rows(number)
        c = contributions(
            model,
            [self.task.prompts[row] for row in rows],
            self.task.option_ids,
            unit=self.unit,
            batch_tokens=batch_tokens,
        )
        shard = Shard(
            rows=rows,
            labels=self.task.labels[rows],
            lengths=c.lengths,
            values=c.values,
            components=c.components,
            options=self.task.options,
            model_logits=c.model_logits,
            junctions=c.junctions,
            junction_scale=c.junction_scale,
            partial_junctions=c.partial_junctions,
            identity_gap=c.identity_gap,
            absolute_gap=c.absolute_gap,
            soft_cap=c.soft_cap,
        )
        return shard.save(self.path(number))

    def read(self, number: int) -> Shard:
        """A shard from disk. One that is not whole is removed, so that it is computed again: InputError."""
        path = self.path(number)
        try:
            shard = Shard.load(path)
            if not np.array_equal(shard.rows, self.rows(number)):
                raise InputError(f"{str(path)!r} holds other rows than its name says.")
        except (InputError, json.JSONDecodeError, KeyError) as error:
            path.unlink(missing_ok=True)
            raise InputError(f"{str(path)!r} was not whole and is removed ({error}): run the study again.") from error
        return shard


def cell_of(
    model: Model, identity: Identity, task: Task, unit: Unit, out: Path, ids: Sequence[Sequence[int]], batch_tokens: int
) -> Cell:
    """The cell of a resolved task, whose prompts are these token ids, and its folder below `out`."""
    settings = {
        "model": model.name,
        "fingerprint": identity.weights,
        "tokenizer": identity.tokenizer,
        **identity.settings,
        "tokens": hashlib.sha256(json.dumps([list(row) for row in ids]).encode()).hexdigest(),
        "dtype": model.provenance["dtype"],
        "task": task.name,
        "unit": unit,
        "template": task.template,
        "shots": task.shots,
        "rows": len(task),
        "prompts": task.prompt_hash,
        "options": list(task.options),
        "option_ids": list(task.option_ids),
        "labels": hashlib.sha256(task.labels.tobytes()).hexdigest(),
        "batch_tokens": batch_tokens,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = out / safe_name(model.name) / safe_name(task.name) / f"{unit}-{digest}"
    lengths = [len(row) for row in ids]
    return Cell(task, unit, settings, folder, np.lexsort((np.arange(len(lengths)), -np.asarray(lengths))))


def safe_name(name: str) -> str:
    """A name that every file system takes: at most 100 letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100].strip("-.") or "unnamed"


def read_json(file: Path) -> dict[str, Any] | None:
    """What a small file holds; None where it is not there, or not whole."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write a small file so that it is there whole or not at all."""
    try:
        write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a folder of yours.") from error
