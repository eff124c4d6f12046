"""Is depth ensemble averaging in the default model and in the zoo? Verdicts of `ld.depth.ensemble_test`.

    python assets/depth_verdicts.py           measures, some ten minutes on one core, writes assets/depth_verdicts.csv
    python assets/depth_verdicts.py FOLDER    the same over training, six minutes: of the checkpoints that
                                              assets/over_training.py keeps in FOLDER; depth_verdicts_training.csv

The zoo's tasks have one right answer, so the least possible loss is 0 and known; of the default model's tasks it is
not, and no verdict on it can be "averages".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

import layerdiv_tl as ld
from layerdiv_tl.zoo.registry import FOLDER

TABLE = Path(__file__).with_suffix(".csv")
OVER_TRAINING = TABLE.with_name("depth_verdicts_training.csv")
ZOO = ("d4", "d4-seed1", "d4-seed2", "d8", "d8-seed1", "d8-seed2", "d12", "d4-shared", "d8-shared")
ZOO_TASKS = ("synthetic/recall", "synthetic/k_hop:hops=1", "synthetic/modular:largest=19")
TASKS = ("sample/topic", "sample/sentiment")
RUNS = [f"{shape}{seed}" for shape in ("d4", "d4-shared", "d8") for seed in ("", "-seed1", "-seed2")]
STEPS = (0, 100, 200, 300, 400, 600, 800, 1200, 2000, 4000)
SHOWN = ("loss", "damage", "kappa", "gain", "repeat", "reverse", "parallel", "rescaled_to_dropped", "direct_share")


def verdict(model: Any, task: str, limit: int, floor: float | None, draws: int, **names: Any) -> dict[str, Any]:
    """One row of a table: the verdict, and what it rests on with intervals."""
    record = {**names, "task": task, "rows": limit}
    try:
        found = ld.depth.ensemble_test(model, ld.task(task, limit=limit), floor=floor, draws=draws)
    except ld.InputError as error:
        return record | {"verdict": f"refused: {error}"}
    record |= {"members": len(found.components), "groups": found.groups}
    record |= {"verdict": found.verdict.word, "reason": found.verdict.reasons[-1]}
    for statistic in SHOWN:
        value, low, high = found.statistics.get(statistic, (float("nan"),) * 3)
        record[statistic] = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    print(*names.values(), task, found.verdict, flush=True)
    return record


def trained() -> pd.DataFrame:
    """One row per model and task."""
    # Of the zoo's layers each one is repeated in place of the others; of the default model's, four.
    asked = [(f"zoo/{name}", task, 96, 0.0, 8) for name in ZOO for task in ZOO_TASKS]
    asked += [("default", task, 48, None, 4) for task in TASKS]
    return pd.DataFrame([verdict(ld.load_model(name), *settings, model=name) for name, *settings in asked])


def over_training(folder: Path) -> pd.DataFrame:
    """One row per run, step and task."""
    rows = []
    for run in RUNS:
        for step in STEPS:
            place = folder / "checkpoints" / run / f"step{step}"
            model = ld.load_model(place, tokenizer=str(FOLDER), dtype="float32")
            rows += [verdict(model, task, 96, 0.0, 8, run=run, step=step) for task in ZOO_TASKS]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    table, file = (over_training(Path(sys.argv[1])), OVER_TRAINING) if sys.argv[1:] else (trained(), TABLE)
    table.to_csv(file, index=False)
    print(table.to_string(index=False))
