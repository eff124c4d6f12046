"""Information-theoretic diversity (Eq. 13) of a study's cells, stored with their metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from .._checks import some_of, whole_number
from .._files import written
from ..ensemble.information.estimator import EstimatorName
from ..ensemble.information.information import information
from ..errors import InputError
from .shards import Shard, digest_of

# Format version of estimates: it changes whenever an estimator returns other numbers for the same shards.
PATTERN = "information-4-*.parquet"
# The column with an estimate's settings; other settings make another estimate.
SETTINGS = "settings"
CELL = ("model", "task", "unit")


def study_information(
    cells: Sequence[dict[str, Any]],
    read: Callable[..., Shard],
    estimator: str | Sequence[str],
    models: str | Sequence[str] | None,
    tasks: str | Sequence[str] | None,
    options: dict[str, Any],
) -> pd.DataFrame:
    """Make the frame of `Study.information` for cells of one unit; `read` returns a cell's contributions."""
    frames, left_out = [], []
    estimators = list(dict.fromkeys(some_of("estimator", estimator, get_args(EstimatorName))))
    options = {name: None if x is None else whole_number(name, x) for name, x in options.items()}
    for name, names in (("model", models), ("task", tasks)):
        if names is not None:
            wanted = some_of(f"{name}s", names, list(dict.fromkeys(cell["settings"][name] for cell in cells)))
            cells = [cell for cell in cells if cell["settings"][name] in wanted]
    if not cells:
        raise InputError("this study has no cell of these models on these tasks: leave out models or tasks.")
    for cell, name in product(cells, estimators):
        try:
            frames.append(_cell_information(read, cell, {"estimator": name, **options}))
        except InputError as error:
            left_out.append(f"{cell['settings']['model']} on {cell['settings']['task']}, {name}: {error}")
    if not frames:
        raise InputError(left_out[0])
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["left_out"] = left_out
    return frame


def stored_information(cells: Sequence[dict[str, Any]]) -> pd.DataFrame | None:
    """Collect all stored estimates of these cells; None if there are none."""
    files = [(file, cell) for cell in cells for file in sorted(Path(cell["folder"]).glob(PATTERN))]
    frames = [frame for file, cell in files if (frame := _read(file, cell)) is not None]
    return pd.concat(frames, ignore_index=True) if frames else None


def _read(file: Path, cell: dict[str, Any]) -> pd.DataFrame | None:
    """Read a stored estimate under the study's current names; None for a truncated file or one without checks."""
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError):
        return None
    if not {"bits", "warnings", SETTINGS} <= set(frame):
        return None
    return frame.assign(**{name: cell["settings"][name] for name in CELL})


def _cell_information(read: Callable[..., Shard], cell: dict[str, Any], options: dict[str, Any]) -> pd.DataFrame:
    file = Path(cell["folder"]) / PATTERN.replace("*", digest_of(options, 12))
    if (frame := _read(file, cell)) is not None:
        return frame
    names = {name: cell["settings"][name] for name in CELL}
    shard = read(**names)
    i = information(shard, shard.labels, **options)
    frame = i.frame().assign(
        **names,
        members=len(i.components),
        rows=len(i.labels),
        estimator=options["estimator"],
        label_entropy=i.label_entropy,
        warnings="\n".join(i.warnings),
    )
    joint = frame["term"] == "joint"
    for name, field in (("lower_bound", "value"), ("lower_bound_low", "low"), ("lower_bound_high", "high")):
        frame[name] = np.where(joint, getattr(i.lower_bound, field, np.nan), np.nan)
    frame[SETTINGS] = ", ".join(f"{name}={x}" for name, x in options.items() if name != "estimator")
    first = [*CELL, "members", "rows", "estimator"]
    frame = frame[first + [column for column in frame if column not in first]]
    frame.attrs = {}
    # The folder may be read-only; the estimate is then computed again next time.
    with contextlib.suppress(OSError), written(file) as partial:
        frame.to_parquet(partial, index=False)
    return frame
