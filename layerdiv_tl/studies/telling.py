"""What the components of every cell tell about the label: Eq. 13 beside the decomposition, kept beside the metrics."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ensemble.information import information
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from ..components import Unit
    from .study import Study

PATTERN = "information-*.parquet"


def told(
    study: Study,
    unit: Unit,
    estimators: Sequence[str],
    models: Sequence[str] | None,
    tasks: Sequence[str] | None,
    options: dict[str, Any],
) -> pd.DataFrame:
    """The frame that `Study.information` gives: what is kept beside a cell's metrics is not computed again."""
    import pandas as pd

    frames, left_out = [], []
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] == unit]
    for name, given in (("model", models), ("task", tasks)):
        there = list(dict.fromkeys(settings[name] for settings in cells))
        if given is not None and (unknown := [x for x in given if x not in there]):
            raise InputError(f"{name}s has {unknown[0]!r}, but the study has {', '.join(there)} at unit {unit!r}.")
        cells = [settings for settings in cells if given is None or settings[name] in given]
    if not cells:
        raise InputError(f"this study has no unit {unit!r}: it has {', '.join(study.metrics['unit'].unique())}.")
    for settings in cells:
        for estimator in estimators:
            try:
                frames.append(_cell(study, settings, {"estimator": estimator, **options}))
            except InputError as error:
                left_out.append(f"{settings['model']} on {settings['task']}, {estimator}: {error}")
    if not frames:
        raise InputError(left_out[0])
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["left_out"] = left_out
    return frame


def kept(study: Study) -> pd.DataFrame | None:
    """What was computed before, of all cells; None where nothing was."""
    import pandas as pd

    frames = [pd.read_parquet(file) for cell in study.cells for file in sorted(Path(cell["folder"]).glob(PATTERN))]
    return pd.concat(frames, ignore_index=True) if frames else None


def _cell(study: Study, settings: dict[str, Any], options: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    names = {name: settings[name] for name in ("model", "task", "unit")}
    folder = next(Path(cell["folder"]) for cell in study.cells if cell["settings"] is settings)
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    file = folder / f"information-{digest}.parquet"
    if file.is_file():
        return pd.read_parquet(file)
    shard = study.contributions(**names)
    i = information(shard, shard.labels, **options)
    frame = i.frame().assign(
        **names,
        members=len(i.components),
        rows=len(i.labels),
        estimator=options["estimator"],
        label_entropy=i.label_entropy,
        warnings="\n".join(i.warnings),
    )
    first = ["model", "task", "unit", "members", "rows", "estimator"]
    frame = frame[first + [column for column in frame if column not in first]]
    frame.attrs = {}
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        frame.to_parquet(partial, index=False)
        os.replace(partial, file)
    except OSError:  # a folder that may only be read: computed again another time
        partial.unlink(missing_ok=True)
    return frame
