"""What the components of every cell tell about the label: Eq. 13 beside the decomposition, kept beside the metrics."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from .._checks import choice, some_of, whole_number
from .._files import written
from ..ensemble.information.estimator import EstimatorName
from ..ensemble.information.information import information
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from ..components import Unit
    from .study import Study

# Of files of estimates: another number whenever an estimator gives other numbers from the same shards.
PATTERN = "information-2-*.parquet"
# The column that says how an estimate was made; those of other settings are other estimates.
SETTINGS = "settings"


def told(
    study: Study,
    unit: Unit,
    estimator: str | Sequence[str],
    models: str | Sequence[str] | None,
    tasks: str | Sequence[str] | None,
    options: dict[str, Any],
) -> pd.DataFrame:
    """The frame that `Study.information` gives: what is kept beside a cell's metrics is not computed again."""
    import pandas as pd

    frames, left_out = [], []
    estimators = list(dict.fromkeys(some_of("estimator", estimator, get_args(EstimatorName))))
    options = {name: None if x is None else whole_number(name, x) for name, x in options.items()}
    choice("unit", unit, study.metrics["unit"].unique().tolist())
    cells = [settings for cell in study.cells if (settings := cell["settings"])["unit"] == unit]
    for name, given in (("model", models), ("task", tasks)):
        if given is None:
            continue
        wanted = some_of(f"{name}s", given, list(dict.fromkeys(settings[name] for settings in cells)))
        cells = [settings for settings in cells if settings[name] in wanted]
    if not cells:
        raise InputError("this study has no cell of these models on these tasks: leave out models or tasks.")
    for settings in cells:
        for one in estimators:
            try:
                frames.append(_cell(study, settings, {"estimator": one, **options}))
            except InputError as error:
                left_out.append(f"{settings['model']} on {settings['task']}, {one}: {error}")
    if not frames:
        raise InputError(left_out[0])
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["left_out"] = left_out
    return frame


def kept(study: Study) -> pd.DataFrame | None:
    """What was computed before, of all cells; None where nothing was."""
    import pandas as pd

    files = [(file, cell["settings"]) for cell in study.cells for file in sorted(Path(cell["folder"]).glob(PATTERN))]
    frames = [frame for file, settings in files if (frame := _read(file, settings)) is not None]
    return pd.concat(frames, ignore_index=True) if frames else None


def _read(file: Path, settings: dict[str, Any]) -> pd.DataFrame | None:
    """What was kept, by the names that the study has now; None for a file that is cut off or has no checks."""
    import pandas as pd

    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError):
        return None
    if not {"bits", "doubts", SETTINGS} <= set(frame):
        return None
    return frame.assign(**{name: settings[name] for name in ("model", "task", "unit")})


def _cell(study: Study, settings: dict[str, Any], options: dict[str, Any]) -> pd.DataFrame:
    names = {name: settings[name] for name in ("model", "task", "unit")}
    folder = next(Path(cell["folder"]) for cell in study.cells if cell["settings"] is settings)
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    file = folder / PATTERN.replace("*", digest)
    if file.is_file() and (frame := _read(file, settings)) is not None:
        return frame
    shard = study.contributions(**names)
    i = information(shard, shard.labels, **options)
    frame = i.frame().assign(
        **names,
        members=len(i.components),
        rows=len(i.labels),
        estimator=options["estimator"],
        label_entropy=i.label_entropy,
        warnings="\n".join(i.warnings),
        doubts="\n".join(i.doubts),
        fit_p=i.fit.p if i.fit else np.nan,
    )
    joint = frame["term"] == "joint"
    for name, field in (("lower_bound", "bits"), ("lower_bound_low", "low"), ("lower_bound_high", "high")):
        frame[name] = np.where(joint, getattr(i.lower_bound, field, np.nan), np.nan)
    frame[SETTINGS] = ", ".join(f"{name}={x}" for name, x in options.items() if name != "estimator")
    first = ["model", "task", "unit", "members", "rows", "estimator"]
    frame = frame[first + [column for column in frame if column not in first]]
    frame.attrs = {}
    # A folder may be one that may only be read: computed again another time.
    with contextlib.suppress(OSError), written(file) as partial:
        frame.to_parquet(partial, index=False)
    return frame
