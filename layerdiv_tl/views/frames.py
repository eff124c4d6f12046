"""The frames of a study as CSV files, next to the page of the same numbers."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..depth.pruning import DropPlan
from ..errors import InputError
from ..studies.depth_study import DepthStudy
from ..studies.shards import safe_name
from ..studies.study import Study


def write_study_frames(study: Study, folder: Path) -> None:
    """Write summary.csv, components.csv and modules.csv."""
    study.summary().drop(columns="answers").to_csv(folder / "summary.csv", index=False)
    study.components().to_csv(folder / "components.csv", index=False)
    study.modules().to_csv(folder / "modules.csv", index=False)


def write_depth_frames(study: DepthStudy, folder: Path) -> None:
    """Write a CSV file for every analysis, and for plans the components and the lists of layers to drop."""
    for a in study.analyses:
        path = folder / "depth" / safe_name(a.model) / safe_name(f"{a.name}-{a.dataset}")
        a.result.frame().to_csv(f"{path}.csv", index=False)
        if isinstance(a.result, DropPlan):
            a.result.export(f"{path}-components.csv")
            with contextlib.suppress(InputError):  # repeats of one layer, which lists of layers cannot distinguish
                a.result.export(f"{path}.json")
