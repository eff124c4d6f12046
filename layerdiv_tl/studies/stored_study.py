"""A study as it lies in its folders: metrics, cells and their tables."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from .._checks import choice, file_path, flag, one_of, shown, some_of, text, whole_number
from .._files import PARTIAL, written
from ..components import Unit
from ..ensemble.decomposition import NormAt
from ..errors import InputError
from ..replication.curve_statistics import z_scores
from ..results import Result
from ..zoo import registry
from .folder import CARD, OLD, Unread, read_newest
from .information import CELL, PATTERN
from .shards import FORMAT, META, METRICS, Shard
from .tables import AVERAGE, CURVES, curves_table, models_table, quantity_table, summary_row, wide_table

if TYPE_CHECKING:
    import pandas as pd

    # A cell's description and metrics.
    _Cell = tuple[dict[str, Any], pd.DataFrame]

# Files that only the folder of a cell holds.
_FILES = ("shard-*.safetensors", METRICS, META, PARTIAL)


@dataclass(frozen=True, eq=False)
class StoredStudy(Result):
    """Metrics of a grid of models, tasks and units, as they lie in folders, and their tables.

    metrics
        A long frame: model, task, unit, then loss, table, the row's names, term, mean, low, high (see
        `studies.metrics`).
    cells
        One dict for every finished cell: settings, where rows and model came from, versions, times.
    failures
        One sentence for every model or cell that could not be measured.
    folders
        Where it lies; the first holds the shards.
    """

    metrics: pd.DataFrame
    cells: tuple[dict[str, Any], ...]
    failures: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Self:
        """Collect one or several folders. Cells that are not finished are left out and named in `failures`.

        Of cells of one model, task and unit with different settings (another limit, say) the one that was
        finished last is taken. Raises InputError where there is no such folder, or no finished cell in any, and where
        two models (other weights, another tokenizer) have one name.
        """
        return cls.collect((path, *more))

    @classmethod
    def collect(cls, folders: Sequence[str | os.PathLike[str]], only: set[Path] | None = None) -> Self:
        """The same; `only` the cells in these folders."""
        import pandas as pd

        def find(root: Path) -> list[Path]:
            cells = {file.parent for name in _FILES for file in root.glob(f"*/*/*/{name}")}
            return [cell / META for cell in sorted(cells if only is None else cells & only, key=_natural)]

        cells, failures = read_newest(folders, "the study", find, _read_cell)
        if not cells:
            reason = "; ".join(failures) or "run the same study again to go on with it."
            raise InputError(f"{str(folders[0])!r} holds no finished study: {reason}")
        metrics = pd.concat([frame for _, frame in cells], ignore_index=True)
        metrics = metrics[[*CELL, *metrics.columns.drop(list(CELL))]]
        return cls(metrics, tuple(about for about, _ in cells), tuple(failures), tuple(map(str, folders)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy metrics, information and settings, without shards, into a folder that `load` reads."""
        copy = file_path("path", path)
        for cell in self.cells:
            folder = Path(cell["folder"])
            into = copy / folder.relative_to(folder.parents[2])
            try:
                if into.is_dir() and into.samefile(folder):
                    continue
                for name in (*(file.name for file in folder.glob(PATTERN)), METRICS, META):
                    with written(into / name) as partial:
                        shutil.copyfile(folder / name, partial)
            except OSError as error:
                raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a folder.") from error
        return copy

    def frame(self) -> pd.DataFrame:
        """All numbers, tidy: one row per model, task, unit, loss, table, row and term."""
        return self.metrics

    def _metrics(self, unit: Any, table: str | None = None) -> pd.DataFrame:
        """The metrics of a unit that the study has, of one table."""
        choice("unit", unit, get_args(Unit))
        if unit not in (units := self.metrics["unit"].unique().tolist()):
            has = one_of(units, "and")
            raise InputError(f"unit={unit!r} is not in this study, which has {has}: run it at unit {unit!r} first.")
        rows = self.metrics[self.metrics["unit"] == unit]
        return rows if table is None else rows[rows["table"] == table]

    def totals(self) -> pd.DataFrame:
        """The rows that are about a whole cell."""
        return self.metrics[self.metrics["table"] == "totals"]

    def table(self, unit: Unit = "sublayer", intervals: bool = False) -> pd.DataFrame:
        """The paper's Table 1 for any models: a row per model, columns (quantity, task) and their average.

        Accuracy, MSE, bias and `uniform`, the loss of the uniform predictor, are in hundredths and after
        Eq. 14, as in the paper; then diversity as softmax sees it (`centered`), the size-fair
        `diversity_logit`, and the cross-entropy in nats. `intervals` gives texts with 95 % intervals.
        """
        return quantity_table(self._metrics(unit, "totals"), flag("intervals", intervals))

    def summary(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """One row per model and task: accuracy and its baselines, Theorem 1 raw and centered, the gaps.

        `accuracy` and `bag_of_words`, a cross-validated word-counting classifier (NaN where a class has fewer
        than 5 rows), are shares with 95 % intervals; `answers` is {option: share of rows the model answers
        with it}; `loss`, `bias`, `diversity` are in squared logits; `cross_entropy` and `entropy` in nats.
        """
        import pandas as pd

        m = self._metrics(unit)
        rows = []
        for cell in self.cells:
            s = cell["settings"]
            if s["unit"] == unit:
                rows.append(summary_row(m[(m["model"] == s["model"]) & (m["task"] == s["task"])], cell))
        return pd.DataFrame(rows)

    def components(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """Bias, diversity, net and more of every component, one row per model, task and component.

        Values are a component's own, undivided, with intervals in `<term>_low`, `<term>_high`; `loss` is that of
        `decompose`. Raises InputError for a unit or loss that the study does not have.
        """
        return self._wide("components", unit, loss, ["component", "kind", "layer", "index", "repeat"])

    def modules(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """The same per module (Eq. 9-10), weighted so that they add up to the ensemble's; `share` is n_g/|L|."""
        return self._wide("modules", unit, loss, ["module", "members", "share"])

    def _wide(self, table: str, unit: Unit, loss: str, names: list[str]) -> pd.DataFrame:
        rows = self._metrics(unit, table)
        return wide_table(rows[rows["loss"] == choice("loss", loss, rows["loss"].unique().tolist())], names)

    def models(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """The paper's Table 4 for these models: parameters, members |L|, dtype, where each came from.

        `reuses`: whether some block runs more than once in a pass. Raises InputError for a unit that the
        study does not have.
        """
        return models_table(self._metrics(unit), [cell for cell in self.cells if cell["settings"]["unit"] == unit])

    def best(self, count: int, unit: Unit = "sublayer") -> list[str]:
        """The `count` models of highest accuracy, averaged over tasks, best first (the paper's Fig. 5 shows five)."""
        whole_number("count", count, 1)
        means = self.table(unit)["accuracy"][AVERAGE].dropna().sort_values(ascending=False, kind="stable")
        return means.index[:count].tolist()

    def contributions(self, model: str, task: str, unit: Unit = "sublayer") -> Shard:
        """The stored contributions of a cell in the task's order; an ensemble that `decompose` takes.

        Raises InputError for a cell that this study does not have, and one whose shards do not lie in its folder.
        """
        self._metrics(unit)
        wanted = {"model": text("model", model), "task": text("task", task), "unit": unit}
        cells = [cell for cell in self.cells if wanted.items() <= cell["settings"].items()]
        if not cells:
            raise InputError(f"this study has no cell of {shown(model)} on {shown(task)} at unit {unit!r}.")
        folder, rows = cells[-1]["folder"], cells[-1]["settings"]["rows"]
        shards = [Shard.load(file) for file in sorted(Path(folder).glob("shard-*.safetensors"))]
        if not shards:
            raise InputError("this study was saved without its contributions: load the folder it was run in.")
        stored = sum(len(shard.rows) for shard in shards)
        if stored != rows:
            raise InputError(
                f"{folder!r} holds {stored} of {rows} rows: remove its metrics.parquet and run the study again, which "
                "computes the others."
            )
        return Shard.join(shards)

    def curves(
        self,
        unit: Unit = "sublayer",
        norm: NormAt = "frozen",
        standardized: bool = False,
        models: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Accuracy, MSE, bias, diversity and more of the prefix ensembles (Fig. 5 and 7), wide.

        One row per model, task and junction, numbered from 0; junctions that the stream never holds are left out.
        `standardized`: each curve less its mean, over its standard deviation, as in the figures; NaN if it never
        moves. `models`: these only, such as `best(5)`. Raises InputError for a unit that has no depth tables here,
        and for a model that is not in the study.
        """
        choice("norm", norm, get_args(NormAt))
        flag("standardized", standardized)
        rows = self._metrics(unit, "depth" if norm == "frozen" else "depth_recomputed")
        rows = rows[~rows["partial"].astype(bool)]
        if rows.empty:
            raise InputError(f"this study has no curves at unit {unit!r}: run it at unit 'sublayer'.")
        if models is not None:
            rows = rows[rows["model"].isin(some_of("models", models, rows["model"].unique().tolist()))]
        frame = curves_table(rows)
        if standardized:
            curves = frame.groupby(["model", "task"], sort=False)[list(CURVES)]
            frame[list(CURVES)] = curves.transform(lambda curve: z_scores(curve.to_numpy(dtype=float)))
        return frame

    def shapes(self, unit: Unit = "sublayer") -> dict[str, str]:
        """{model: shape} of the zoo's models, whose training seeds are not independent models."""
        return {name: shape for name, (shape, _) in registry.seeds(self._metrics(unit)["model"].unique()).items()}


def _read_cell(file: Path, about: dict[str, Any] | None) -> tuple[tuple[str, ...], dict[str, Any], _Cell]:
    """Key, description, and both description and metrics of a cell."""
    import pandas as pd

    cell = file.parent
    # A cell that is not finished has no description, but its model has a card since there are any.
    if about.get("format") != FORMAT if about else not (cell.parents[1] / CARD).is_file():
        raise Unread(cell.parents[1], f": {OLD}")
    if about is None or not (cell / METRICS).is_file():
        raise Unread(cell, " is not finished: run the same study again")
    names = {name: about["settings"][name] for name in CELL}
    frame = pd.read_parquet(cell / METRICS).assign(**names)
    return tuple(names.values()), about, (about | {"folder": str(cell)}, frame)


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts d2 before d12, and d2 before d2-seed1."""
    names = [re.split(r"(\d+)", name) for name in path.parts[-3:]]
    return [[(int(part), "") if part.isdigit() else (-1, part) for part in name if part] for name in names]
