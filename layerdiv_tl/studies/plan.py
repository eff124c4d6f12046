"""What a study will cost, before anything of it runs."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path, number, whole_number
from ..components import Unit
from ..errors import InputError
from ..results import Result
from ..tasks.baselines import bag_of_words
from ..tasks.task import Task
from .calibration import measure_costs
from .folder import failing
from .grid import load_claimed
from .runner import Job, read_job

if TYPE_CHECKING:
    import pandas as pd

_UNITS = {
    **dict.fromkeys(("rows", "rows_left"), "rows"),
    "tokens": "tokens",
    "flops": "floating-point operations",
    **dict.fromkeys(("disk_bytes", "memory_bytes"), "bytes"),
    **dict.fromkeys(("seconds", "cpu_seconds"), "seconds"),
}
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, eq=False)
class StudyPlan(Result):
    """What a study will cost, cell by cell. Made by `plan_study`.

    Attributes:
        cells: A dict for every cell: its model, task, unit and `rows`; the rest is of what is left to do, which is zero
            where a cell is finished. `rows_left`; `tokens` in forward passes, padding included; `flops`, where a
            multiplication and an addition are two; `disk_bytes`; `memory_bytes`, the most that the process (on a GPU:
            the model and its passes) holds at a time; `seconds` by the clock and `cpu_seconds` of processors, for one
            process on this machine.
        loading: {model: seconds} of loading and hashing it.
        failures: A sentence for every model or cell that could not be planned, which a run would say, too.
        workers: What was asked for. Times and memory are of one process all the same: how much several gain, and hold,
            depends on what of the machine they share.
    """

    cells: tuple[dict[str, Any], ...]
    loading: dict[str, float]
    failures: tuple[str, ...]
    workers: int = 1

    def frame(self) -> pd.DataFrame:
        """The cells, one a row; `attrs["units"]` has what the columns are measured in."""
        import pandas as pd

        frame = pd.DataFrame(list(self.cells), columns=["model", "task", "unit", *_UNITS])
        frame.attrs["units"] = dict(_UNITS)
        return frame

    def lines(self) -> list[dict[str, str]]:
        """The cells as people read them."""
        return [
            {name: str(cell[name]) for name in ("model", "task", "unit")}
            | {
                "rows left": f"{cell['rows_left']:,} of {cell['rows']:,}",
                "tokens": f"{cell['tokens']:,}",
                "operations": f"{cell['flops']:.2g}",
                "disk": size(cell["disk_bytes"]),
                "memory": size(cell["memory_bytes"]),
                "time": duration(cell["seconds"]) if cell["seconds"] else "finished",
            }
            for cell in self.cells
        ]

    @property
    def seconds(self) -> float:
        """All of it by one process, with loading models that have something left to do."""
        left = {cell["model"] for cell in self.cells if cell["seconds"]}
        return sum(cell["seconds"] for cell in self.cells) + sum(self.loading[name] for name in left)

    @property
    def sentence(self) -> str:
        """The plan in a sentence."""
        total = self.frame()[["rows", "rows_left", "tokens", "flops", "disk_bytes"]].sum()
        finished = sum(not cell["seconds"] for cell in self.cells)
        if finished == len(self.cells):
            return f"All {finished} cells are finished: nothing is left to do."
        of = f"{int(total.rows_left):,} of {int(total.rows):,} rows are left" if total.rows_left < total.rows else ""
        of = of or f"{int(total.rows):,} rows"
        memory = max(cell["memory_bytes"] for cell in self.cells)
        return (
            f"{of}, {int(total.tokens):,} tokens in passes, {total.flops:.2g} operations: about "
            f"{duration(self.seconds)} for one process on this machine, {size(memory)} of memory, "
            f"{size(total.disk_bytes)} on disk; {finished} of {len(self.cells)} cells are finished."
            + (f" workers={self.workers} is not counted: each holds a model of its own." if self.workers > 1 else "")
        )


def plan_study(
    models: Any,
    tasks: Any,
    units: Unit | list[Unit] | tuple[Unit, ...] = ("sublayer",),
    limit: int | None = None,
    out: Any = None,
    data: Any = None,
    *,
    calibration: float = 10.0,
    **settings: Any,
) -> StudyPlan:
    """What `run_study` with the same arguments will cost: rows, tokens, operations, disk, memory and time.

    Models are loaded, and some batches of each are run, to say how long all of them take here; nothing is written, and
    what lies in `out` already is not counted. Times are of one process alone on the machine as it is; of processors
    they were within 25 % of the run's on the default model (`tests/benchmarks/plan.py`).

    Args:
        models, tasks, units, limit, out, data, settings: Those of `run_study`.
        calibration: How many seconds of batches to run, shared by all models and units; every one has at least two
            passes of a row.

    Raises InputError for arguments that `run_study` refuses, and where nothing can be planned.

    >>> plan = plan_study("zoo/d1", "synthetic/recall", limit=8, calibration=0.5)
    >>> plan.frame()[["task", "rows_left", "tokens"]].values.tolist()
    [['synthetic/recall', 8, 208]]
    """
    workers = whole_number("workers", settings.pop("workers", 1), 1)
    if unknown := sorted(settings.keys() - (read_job.__kwdefaults__ or {}).keys()):
        raise InputError(f"{unknown[0]}= is no argument of run_study: give those of run_study.")
    calibration = number("calibration", calibration, least=0.0, most=3600.0)
    grid, job = read_job(models, tasks, units, limit, data, **settings)
    with tempfile.TemporaryDirectory() as empty:
        job = replace(job, out=Path(empty) if out is None else file_path("out", out))
        plan = _planned(grid, job, calibration / len(grid) / len(job.units))
    if not plan.cells:
        raise InputError(" ".join(plan.failures))
    return replace(plan, workers=workers)


def _planned(grid: dict[str, Any], job: Job, share: float) -> StudyPlan:
    """The plan of a grid, from so many seconds of runs for every model and unit."""
    cells: list[dict[str, Any]] = []
    failures: list[str] = []
    loading: dict[str, float] = {}
    counted: set[str] = set()  # tasks whose words a run counts once, for all models
    for name, x in grid.items():
        with failing(failures, name):
            start = time.perf_counter()
            model, identity = load_claimed(name, x, job.out, job.load, look_only=True)
            if model.engine is not None:
                raise InputError(f"it runs elsewhere ({model.engine.name}), and a plan measures this machine.")
            loading[name] = time.perf_counter() - start
            batch_tokens = model.checked_batch_tokens(job.asked["batch_tokens"])
            found = [cell for _, cell in job.cells(model, identity, batch_tokens, failures)]
            for unit in job.units:
                own = [cell for cell in found if cell.unit == unit]
                with failing(failures, f"{name} at unit {unit}"):
                    for cell, cost in zip(own, measure_costs(model, unit, own, batch_tokens, share), strict=True):
                        left = 0 if cell.finished else sum(len(cell.rows(number)) for number in cell.missing())
                        about = {"model": name, "task": cell.task.name, "unit": unit}
                        if not cell.finished and cell.task.name not in counted:
                            counted.add(cell.task.name)
                            words = _counting_words(cell.task)
                            cost = replace(cost, seconds=cost.seconds + words, cpu_seconds=cost.cpu_seconds + words)
                        cells.append(about | {"rows": len(cell.order), "rows_left": left} | asdict(cost))
            del model, found
    return StudyPlan(tuple(cells), loading, tuple(failures))


def _counting_words(t: Task, rows: int = 64) -> float:
    """Seconds of a task's bag of words, from those of its first rows."""
    some = {name: getattr(t, name)[:rows] for name in ("prompts", "texts", "labels")}
    start = time.process_time()
    with contextlib.suppress(InputError):  # too few rows of a class, or prompts that have options of their own
        bag_of_words(replace(t, **some))
    return (time.process_time() - start) * len(t) / min(rows, len(t))


def duration(seconds: float) -> str:
    """Seconds in the units that people use.

    >>> duration(0.2), duration(75), duration(5000)
    ('1 s', '1 min 15 s', '1 h 23 min')
    """
    whole = max(1, math.ceil(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes in a unit that leaves at most three digits.

    >>> size(0), size(51_000), size(2.7e9)
    ('0 B', '51 kB', '2.7 GB')
    """
    power = min(len(_SIZES) - 1, int(math.log10(count) // 3)) if count >= 1 else 0
    scaled = count / 1000**power
    return f"{scaled:.{0 if scaled >= 10 or not power else 1}f} {_SIZES[power]}"
