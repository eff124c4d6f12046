"""A cell of a study on disk: the metrics of one model on one task at one unit, and its shards of up to 128 rows.

Rows are sorted by length and split once, so that every process computes the same batches and the same bytes. Shards
are written atomically, missing ones are computed, and nothing is locked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from jaxtyping import Int

from .._files import parse_json, read_bytes, write_text
from ..attribution.contribution_results import Contributions
from ..attribution.contributions import contributions
from ..components import COLUMNS, Unit
from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition, Table
from ..ensemble.intervals import RunningMean
from ..ensemble.losses import LOSSES, hits
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from ..model.options import NONE
from ..results import MOST_HEADER, load_result, save_result
from ..tasks.task import Task

ROWS = 128
# Files of a finished cell next to its shards: its description and its metrics.
META, METRICS = "meta.json", "metrics.parquet"
# Format version of cells. 9: component rows have their module; 8: results of format 4; 7: shards name their cell.
FORMAT = "layerdiv_tl.study/10"
# Maximal count of numbers decomposed at a time, which bounds the memory for thousands of neurons.
MAX_NUMBERS = 4_000_000
# Above this many members, and for neurons, prefix ensembles at every junction cost more than the passes.
MAX_MEMBERS_WITH_DEPTH = 3000
_NAMES = (*COLUMNS, "partial")
# Fields of a shard with one entry per example.
PER_EXAMPLE = (
    *("rows", "labels", "lengths", "positions", "option_ids", "values", "model_logits", "junction_scale"),
    *("log_likelihood", "normalizer", "expectations", "option_sizes", "statistic", "vocabulary_means"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Shard(Contributions):
    """Contributions and gold options of some rows of a task, by the rows' indices in it. `token_ids` is empty: no text.

    For options scored as sequences, `values` holds parts of log-likelihoods in nats, ids are −1, and `option_sizes` the
    numbers of tokens and of UTF-8 bytes of each option.
    """

    rows: Int[np.ndarray, " example"] = field(kw_only=True)
    labels: Int[np.ndarray, " example"] = field(kw_only=True)
    option_sizes: Int[np.ndarray, "example option 2"] | None = field(kw_only=True)

    def take(self, examples: slice | np.ndarray) -> Shard:
        """Select some examples as a shard."""
        own = {name: held[examples] for name in PER_EXAMPLE if (held := getattr(self, name)) is not None}
        if self.shared_options is None:
            own["options"] = tuple(np.array(self.options, dtype=object)[examples].tolist())
        return replace(self, **own)

    @classmethod
    def join(cls, shards: Sequence[Shard]) -> Shard:
        """Join shards of one task in the task's order; gaps are the maxima."""
        order = np.argsort(np.concatenate([shard.rows for shard in shards]))
        gaps = ("identity_gap", "absolute_gap")
        joined: dict[str, Any] = {name: max(getattr(shard, name) for shard in shards) for name in gaps}
        for name in PER_EXAMPLE:
            if any(getattr(shard, name) is None for shard in shards):
                continue
            joined[name] = np.concatenate([getattr(shard, name) for shard in shards])[order]
        if shards[0].shared_options is None:
            options: list[Any] = [of_row for shard in shards for of_row in shard.options]
            joined["options"] = tuple(options[place] for place in order)
        return replace(shards[0], **joined)


@dataclass(frozen=True, eq=False)
class Cell:
    """One model on one task at one unit, and the folder of its numbers.

    `settings` determine the numbers: their hash is part of the folder's name, so that different ones never share it.
    `lengths` are the numbers of tokens of the task's prompts.
    """

    task: Task
    unit: Unit
    settings: dict[str, Any]
    folder: Path
    lengths: Int[np.ndarray, " example"]

    @cached_property
    def order(self) -> Int[np.ndarray, " example"]:
        """The task's rows sorted from the longest to the shortest."""
        return np.argsort(-self.lengths, kind="stable")

    @property
    def count(self) -> int:
        """The number of shards."""
        return -(-len(self.order) // ROWS)

    @property
    def digest(self) -> str:
        """A hash of its settings, which its shards carry."""
        return digest_of(self.settings)

    @property
    def finished(self) -> bool:
        """Whether complete metrics of this format version exist."""
        about = read_json(self.folder / META)
        if about is None or about.get("format") != FORMAT or digest_of(about.get("settings")) != self.digest:
            return False
        return file_digest(self.folder / METRICS) == about.get("metrics")

    def path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"shard-{number:05d}.safetensors"

    def rows(self, number: int) -> Int[np.ndarray, " example"]:
        """Return the task's rows in a shard."""
        return self.order[number * ROWS : (number + 1) * ROWS]

    def missing(self, first: int = 0) -> Iterator[int]:
        """Yield the shards that are not written yet, cyclically from `first`; each is checked only when reached."""
        for step in range(self.count):
            number = (first + step) % self.count
            if not self.path(number).exists():
                yield number

    def compute(self, model: Model, number: int, batch_tokens: int) -> Path:
        """Compute the contributions of one shard's rows and write them."""
        return save_result(self.shard(model, self.rows(number), batch_tokens), self.path(number), self.digest)

    def shard(self, model: Model, rows: Int[np.ndarray, " example"], batch_tokens: int) -> Shard:
        """Compute the contributions of some of the task's rows."""
        prompts = [self.task.prompts[row] for row in rows]
        options: Any = self.task.shared_options or tuple(self.task.row_options[row] for row in rows)
        c = contributions(model, prompts, self.task.option_ids or options, unit=self.unit, batch_tokens=batch_tokens)
        sizes = None
        if not self.task.option_ids:  # also in shards whose options happen to be single tokens
            texts = np.broadcast_to(np.array(options, dtype=object), c.model_logits.shape)
            sizes = np.stack([c.option_lengths, np.vectorize(lambda text: len(text.encode()))(texts)], 2)
            c = c.scores()
            c = replace(c, option_ids=np.full(c.model_logits.shape, NONE), junction_scale=None)
        own = {f.name: getattr(c, f.name) for f in fields(c)}
        own |= {"options": options, "token_ids": np.empty(0, dtype=np.int64), "task": self.task.name, "prompt_ends": ()}
        return Shard(**own, rows=rows, labels=self.task.labels[rows], option_sizes=sizes)

    def read(self, number: int) -> Shard:
        """Read a shard. A damaged one is deleted, so that it is computed again, and raises InputError."""
        path = self.path(number)
        try:
            shard = load_result(Shard, path, self.digest)
            if not np.array_equal(shard.rows, self.rows(number)):
                raise InputError(f"{str(path)!r} holds other rows than its name says.")
        except InputError as error:
            path.unlink(missing_ok=True)
            raise InputError(f"{str(path)!r} was not whole and is removed ({error}): run the study again.") from error
        return shard


def metrics_of(shards: Iterable[Shard]) -> pd.DataFrame:
    """Compute all tables of a cell as one long frame: loss, table, row names, term, mean, low, high.

    Intervals of means are over examples (none for fewer than 8); those of accuracies are Wilson's. The totals of every
    loss include the zero baseline (`zero_bias`). Those of the loss "none" have the gaps and, for options scored as
    sequences, the accuracy per token and per byte; its table "answers" has the share of rows answered with each option.
    There is no depth table at unit neuron or above 3000 members.
    """
    answers = RunningMean()
    options: tuple[str, ...] = ()
    running: dict[tuple[str, Table], tuple[dict[str, Any], dict[str, RunningMean]]] = {}
    gaps = {"identity_gap": 0.0, "absolute_gap": 0.0}
    per_size: dict[str, RunningMean] = {}
    for shard in shards:
        gaps = {name: max(gap, getattr(shard, name)) for name, gap in gaps.items()}
        # Options that differ between prompts are named by their index.
        options = shard.shared_options or tuple(f"option {k}" for k in range(shard.model_logits.shape[1]))
        answers.add_examples(hits(shard.model_logits[:, None], np.arange(len(options))[None]))
        if shard.option_sizes is not None:
            for size, length in zip(("token", "byte"), np.moveaxis(shard.option_sizes, 2, 0), strict=True):
                right = hits(shard.model_logits / length, shard.labels)[:, None]
                per_size.setdefault(f"accuracy_{size}", RunningMean()).add_examples(right)
        for loss, d in _decompositions(shard):
            for table in _tables(d):
                per_example = d.per_example(table)
                terms = running.setdefault((loss, table), (per_example.names, {}))[1]
                for term, values in per_example.terms.items():
                    terms.setdefault(term, RunningMean()).add_examples(values)
            totals = running.setdefault((loss, "totals"), ({}, {}))[1]
            totals.setdefault("zero_bias", RunningMean()).add_examples(d.terms.zero_biases[:, None])
    if not running:
        raise InputError("there are no rows to measure.")
    blocks = [
        _block(loss, table, names, term, mean)
        for (loss, table), (names, terms) in running.items()
        for term, mean in terms.items()
    ]
    given = answers.estimate("share")
    shares = {"term": options, "mean": given.value, "low": given.low, "high": given.high, "examples": given.n}
    blocks.append(pd.DataFrame({"loss": "none", "table": "answers"} | shares, index=range(len(options))))
    blocks += [pd.DataFrame({"loss": ["none"], "table": "totals", "term": gap, "mean": gaps[gap]}) for gap in gaps]
    blocks += [_block("none", "totals", {}, term, mean) for term, mean in per_size.items()]
    order = ["loss", "table", *_NAMES, "members", "share", "term", "mean", "low", "high", "examples"]
    return pd.concat(blocks, ignore_index=True).reindex(columns=order)


def _decompositions(shard: Shard) -> Iterator[tuple[str, Decomposition]]:
    """Yield decompositions of batches of rows, for every loss."""
    step = max(1, MAX_NUMBERS // shard.values[0].size)
    for start in range(0, len(shard.rows), step):
        part = shard.take(slice(start, start + step))
        for loss in LOSSES:
            yield loss, decompose(cast(Any, part), part.labels, loss=loss)


def _tables(d: Decomposition) -> list[Table]:
    if len(d.components) > MAX_MEMBERS_WITH_DEPTH or any(c.kind == "neuron" for c in d.components):
        return ["totals", "components", "modules"] if d.loss_name == "squared" else ["totals", "modules"]
    return [table for table in get_args(Table) if table != "depth_recomputed" or d.junction_scale is not None]


def _block(loss: str, table: str, names: dict[str, Any], term: str, mean: RunningMean) -> pd.DataFrame:
    e = mean.estimate("share" if term.startswith("accuracy") else "mean")
    columns: dict[str, Any] = {"loss": loss, "table": table}
    columns |= {name: names[name] for name in _NAMES if name in names}
    columns |= {"members": names.get("members"), "share": names.get("member_share"), "term": term}
    columns |= {"mean": e.value, "low": e.low, "high": e.high, "examples": mean.count}
    return pd.DataFrame(columns, index=range(len(np.atleast_1d(e.value))))


def cell_of(
    model: Model, identity: Identity, task: Task, unit: Unit, out: Path, ids: Sequence[Sequence[int]], batch_tokens: int
) -> Cell:
    """Make the cell of a resolved task with these prompt token ids, in a folder below `out`."""
    settings = {
        "model": model.name,
        "fingerprint": identity.weights,
        "tokenizer": identity.tokenizer,
        **identity.settings,
        "tokens": digest_of([list(row) for row in ids]),
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
    folder = out / safe_name(model.name) / safe_name(task.name) / f"{unit}-{digest_of(settings, 12)}"
    return Cell(task, unit, settings, folder, np.array([len(row) for row in ids]))


def digest_of(settings: Any, length: int | None = None) -> str:
    """Return the SHA-256 of settings as JSON, or its first digits."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:length]


def file_digest(file: Path) -> str | None:
    """Return the SHA-256 of a file; None if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


def safe_name(name: str) -> str:
    """Return a name valid on every file system: at most 100 letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100].strip("-.") or "unnamed"


def read_json(file: Path) -> dict[str, Any] | None:
    """Read a small file; None if it is missing or damaged."""
    try:
        held = parse_json(read_bytes(file, MOST_HEADER).decode())
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write a small file atomically."""
    try:
        write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a folder of yours.") from error
