"""What cells of a model will cost, from short runs of their own batches.

The operations of a pass of r rows of T tokens that reads p positions are a·rT + b·rT² + c·p + e: four tiny passes under
PyTorch's counter give these numbers, whatever the architecture. Its time is taken to be α·operations + β·p + γ, fitted
to real batches, or to the beginnings of some where whole ones take too long.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from ..attribution.contributions import contributions
from ..attribution.passes import PassShape
from ..components import Unit
from ..model.load import Model
from ..model.measured import operations, peak_memory
from ..model.prompts import Prompts
from .shards import ROWS, Cell, Shard, metrics_of

# Rows and tokens of the passes in which operations are counted.
_COUNTED = ((1, 2), (1, 4), (1, 6), (2, 2))
# Which passes are timed, from the one with the fewest operations (0) to the one with the most (1).
_TIMED = (0.5, 0.95, 0.05, 0.75, 0.25, 1.0)
# Fields of a shard that have a number for every option.
_PER_OPTION = ("option_ids", "values", "model_logits", "log_likelihood", "normalizer", "option_sizes")
Pass = tuple[Cell, np.ndarray, PassShape]


@dataclass(frozen=True)
class Cost:
    """What is left to do in a cell: see `StudyPlan`."""

    tokens: int = 0
    flops: float = 0.0
    disk_bytes: float = 0.0
    memory_bytes: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def measure_costs(model: Model, unit: Unit, cells: Sequence[Cell], batch_tokens: int, limit: float) -> list[Cost]:
    """The costs of what is missing of a model's cells at one unit, from runs of about `limit` seconds."""
    unfinished = [cell for cell in cells if not cell.finished]
    if not unfinished:
        return [Cost()] * len(cells)
    left: dict[int, list[Pass]] = {id(cell): [] for cell in cells}
    for cell in unfinished:
        missing = [cell.rows(number) for number in cell.missing()]
        left[id(cell)] = [(cell, *x) for some in missing for x in cell.passes(model, some, batch_tokens)]
    by_shape = _count_operations(model, unit)
    # Cells without missing shards still need their metrics, and something to time these on.
    all_passes = [x for passes in left.values() for x in passes]
    all_passes = all_passes or [(c, *x) for c in unfinished for x in c.passes(model, c.rows(0), batch_tokens)]
    runs = _Runs(model, batch_tokens, by_shape)
    with peak_memory(model.architecture.device) as peak:
        runs.time(sorted(all_passes, key=lambda x: by_shape(x[2])), limit)
        grown = peak()
    tokens_of = [shape.rows * shape.tokens for _, _, shape in all_passes]
    memory = grown[0] + (grown[1] - grown[0]) * max(1.0, max(tokens_of) / runs.tokens)
    metrics = _Metrics.of(runs)
    costs = []
    for cell in cells:
        if cell.finished:
            costs.append(Cost())
            continue
        shapes = [shape for _, _, shape in left[id(cell)]]
        rows = sum(len(cell.rows(number)) for number in cell.missing())
        wall, cpu = runs.predicted(shapes)
        share = metrics.seconds(cell)
        costs.append(
            Cost(
                sum(shape.rows * shape.tokens for shape in shapes),
                sum(map(by_shape, shapes)),
                metrics.disk(cell, rows),
                memory,
                wall + share,
                cpu + share,
            )
        )
    return costs


def _count_operations(model: Model, unit: Unit) -> Callable[[PassShape], float]:
    """Floating-point operations by a pass's shape."""
    counted, features = [], [[r * t, r * t * t, r, 1.0] for r, t in _COUNTED]
    for r, t in _COUNTED:
        with operations() as count:
            contributions(model, Prompts([[0] * t] * r), [0, 1], unit, batch_tokens=r * t)
        counted.append(count())
    a, b, c, e = np.linalg.solve(np.array(features), np.array(counted, dtype=float))
    return lambda shape: float(
        a * shape.rows * shape.tokens + b * shape.rows * shape.tokens**2 + c * shape.positions + e
    )


class _Runs:
    """Timed passes of some cells; `shard` is the one of most rows, `tokens` the most in a pass."""

    def __init__(self, model: Model, batch_tokens: int, operations: Callable[[PassShape], float]) -> None:
        self.model, self.batch_tokens, self.operations = model, batch_tokens, operations
        self.work: list[list[float]] = []
        self.took: list[tuple[float, float]] = []
        self.tokens = 1
        self.shard: Shard | None = None
        self.cell: Cell | None = None

    def time(self, passes: Sequence[Pass], limit: float) -> None:
        """Time passes for so many seconds: at least the beginning of one."""
        end, (cell, rows, _) = time.perf_counter() + limit, passes[0]
        cell.shard(self.model, rows[:1], self.batch_tokens)  # the first pass is slower than all others
        middle = passes[len(passes) // 2]
        self._time(middle[0], middle[1][:1])
        for place in _TIMED:
            cell, rows, shape = passes[round(place * (len(passes) - 1))]
            left, expected = end - time.perf_counter(), self.predicted([shape])[0]
            # Half of what is left, so that others have their turn.
            part = rows[: max(1, int(len(rows) * min(1.0, left / 2 / max(expected, 1e-9))))]
            if expected * len(part) / len(rows) > left:
                break
            self._time(cell, part)

    def _time(self, cell: Cell, rows: np.ndarray) -> None:
        shapes = [shape for _, shape in cell.passes(self.model, rows, self.batch_tokens)]
        wall, cpu = time.perf_counter(), time.process_time()
        shard = cell.shard(self.model, rows, self.batch_tokens)
        self.took.append((time.perf_counter() - wall, time.process_time() - cpu))
        self.work.append(self._features(shapes))
        self.tokens = max([self.tokens, *(shape.rows * shape.tokens for shape in shapes)])
        if self.shard is None or len(rows) > len(self.shard.rows):
            self.shard, self.cell = shard, cell

    def _features(self, shapes: Sequence[PassShape]) -> list[float]:
        return [sum(map(self.operations, shapes)), float(sum(shape.positions for shape in shapes)), float(len(shapes))]

    def predicted(self, shapes: Sequence[PassShape]) -> tuple[float, float]:
        """The seconds of some passes, by the clock and of processors."""
        known, asked = np.array(self.work), np.array(self._features(shapes))
        scale = known.max(0)
        # Relative errors count, so that short runs say what a pass costs by itself.
        fits = (nnls(known / scale / took[:, None], np.ones(len(took)))[0] for took in np.array(self.took).T)
        wall, cpu = (float(asked / scale @ weights) for weights in fits)
        return wall, cpu


@dataclass(frozen=True)
class _Metrics:
    """What a cell needs besides its passes, measured on one shard, whose task has so many options."""

    shard: Shard
    options: int
    header: int
    table: int
    fixed: float
    per_row: float

    @classmethod
    def of(cls, runs: _Runs) -> _Metrics:
        assert runs.shard is not None
        whole = runs.shard.take(np.arange(ROWS) % len(runs.shard.rows))
        took = []
        for shards in ([whole], [whole, whole]):
            start = time.process_time()
            frame = metrics_of(shards)
            took.append(time.process_time() - start)
        with tempfile.TemporaryDirectory() as folder:
            frame.to_parquet(Path(folder) / "metrics", index=False)
            table = (Path(folder) / "metrics").stat().st_size
            header = whole.save(Path(folder) / "shard").stat().st_size - ROWS * _row_bytes(whole, 1.0)
        per_row = max(0.0, took[1] - took[0]) / ROWS
        return cls(whole, whole.values.shape[2], int(header), table, max(0.0, took[0] - ROWS * per_row), per_row)

    def seconds(self, cell: Cell) -> float:
        """Of a cell's metrics: they read all of its rows, also those that were measured before."""
        return self.fixed + self.per_row * len(cell.order) * self._ratio(cell)

    def disk(self, cell: Cell, rows: int) -> float:
        """Bytes of so many rows in shards, and of the metrics."""
        return -(-rows // ROWS) * self.header + rows * _row_bytes(self.shard, self._ratio(cell)) + self.table

    def _ratio(self, cell: Cell) -> float:
        return cell.task.option_count / self.options


def _row_bytes(shard: Shard, ratio: float) -> float:
    """Bytes of a row of a shard, with so many times its options."""
    arrays = {name: x for name, x in vars(shard).items() if isinstance(x, np.ndarray) and len(x) == len(shard.rows)}
    return sum(x.nbytes / len(x) * (ratio if name in _PER_OPTION else 1.0) for name, x in arrays.items())
