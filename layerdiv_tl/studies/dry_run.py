"""Estimate of a study's remaining rows, tokens and time, from one timed batch of each model."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._checks import file_path
from ..errors import InputError
from ..model.load import Model
from .folder import failing
from .grid import load_registered
from .shards import Cell
from .study_jobs import read_work


def dry_run(
    models: Any, tasks: Any, units: Any, limit: Any, out: Any, data: Any, **settings: Any
) -> tuple[pd.DataFrame, list[str]]:
    """Estimate the work that `run_study` with the same arguments has left; write nothing.

    Returns a frame with one row per model, task and unit, and one sentence for every model or cell that cannot be
    estimated. `rows` counts all rows; `rows_left`, `tokens` (prompts without padding) and `seconds` (one process at
    the speed of the timed batch) count what is not in `out` yet.

    Raises InputError for arguments that `run_study` rejects, and if nothing can be estimated.

    >>> frame, _ = dry_run("zoo/d1", "synthetic/recall", "sublayer", 8, None, None)
    >>> frame[["model", "rows", "rows_left", "tokens"]].values.tolist()
    [['zoo/d1', 8, 8, 208]]
    """
    grid, work = read_work(models, tasks, units, limit, Path(), data, **settings)
    records: list[dict[str, Any]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as empty:
        work = replace(work, out=Path(empty) if out is None else file_path("out", out))
        for name, x in grid.items():
            with failing(failures, name):
                model, identity = load_registered(name, x, work.out, work.load, look_only=True)
                batch_tokens = model.checked_batch_tokens(work.asked["batch_tokens"])
                per_token: dict[str, float] = {}
                for where, cell in work.cells(model, identity, batch_tokens, failures):
                    with failing(failures, where):
                        missing = [] if cell.finished else [cell.rows(number) for number in cell.missing()]
                        left = np.concatenate([np.empty(0, dtype=int), *missing])
                        tokens = int(cell.lengths[left].sum())
                        if len(left) and cell.unit not in per_token:
                            per_token[cell.unit] = _seconds_per_token(model, cell, left, batch_tokens)
                        about = {"model": name, "task": cell.task.name, "unit": cell.unit, "rows": len(cell.order)}
                        about |= {"rows_left": len(left), "tokens": tokens}
                        records.append(about | {"seconds": tokens * per_token.get(cell.unit, 0.0)})
    if not records:
        raise InputError(" ".join(failures))
    return pd.DataFrame(records), failures


def _seconds_per_token(model: Model, cell: Cell, rows: np.ndarray, batch_tokens: int) -> float:
    """Time the middle batch of these rows and divide by its tokens."""
    cell.shard(model, rows[-1:], batch_tokens)  # the first pass is slower than all others
    middle = rows[len(rows) // 2 :]
    batch = middle[: max(1, batch_tokens // int(cell.lengths[middle[0]]))]
    start = time.perf_counter()
    cell.shard(model, batch, batch_tokens)
    return (time.perf_counter() - start) / int(cell.lengths[batch].sum())
