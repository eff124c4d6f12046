"""Does diversity rise before, with or after accuracy? The zoo's d2, d4, d8 and d4-shared, trained again.

    python -m assets.over_training FOLDER    trains what FOLDER lacks, measures, writes assets/over_training.*

Twelve trainings of 1.5 to 10 minutes on a free core, 24 checkpoints each (109 MB in half precision, which stay in
FOLDER), then the measurement in a few minutes. Kept are the table of all curves, which `curves()` reads, and the
figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import layerdiv_tl as ld
from layerdiv_tl.studies.over_training import QUANTITIES, OverTraining, checkpoints
from layerdiv_tl.zoo.trained import FOLDER
from tests.training import train
from tests.training.shapes import find_model

HERE = Path(__file__).parent
KEPT = ("accuracy", "loss", "bias_centered", "diversity", "diversity_centered", "coherence_centered")
TABLE, FIGURE = HERE / "over_training.parquet", HERE / "over_training.png"
RUNS = [f"{shape}{seed}" for seed in ("", "-seed1", "-seed2") for shape in ("d2", "d4", "d8", "d4-shared")]
STEPS = (*range(0, 301, 50), *range(400, 601, 100), *range(800, 2801, 200), 3200, 3600, 4000)
TASKS = {
    "recall": "synthetic/recall:seed=1",
    "sums": "synthetic/modular:largest=19,seed=1",
    "1 hop": "synthetic/k_hop:hops=1,seed=1",
    "2 hops": "synthetic/k_hop:seed=1",
}
ROWS = 256


def measured(folder: Path) -> pd.DataFrame:
    """One row per run, step and task: means over the task's rows, to four digits, and accuracy's interval."""
    rows = []
    for name, text in TASKS.items():
        task = ld.task(text, limit=ROWS).resolve(ld.load_model("zoo/d2"))
        for run in RUNS:
            for step in STEPS:
                place = folder / "checkpoints" / run / f"step{step}"
                model = ld.load_model(place, tokenizer=str(FOLDER), dtype="float32")
                c = ld.contributions(model, task.prompts, task.option_ids)
                found = {loss: ld.decompose(c, task.labels, loss=loss) for loss in ("squared", "cross_entropy")}
                tables = {loss: d.per_example("totals").frame().iloc[0] for loss, d in found.items()}
                row = {"run": run, "task": name, "step": step}
                for quantity, (loss, term) in ((name, QUANTITIES[name]) for name in KEPT):
                    ends = ("", "_low", "_high") if quantity == "accuracy" else ("",)
                    row |= {quantity + end: f"{tables[loss][term + end]:.4g}" for end in ends}
                rows.append(row)
            print(name, run, flush=True)
    return pd.DataFrame(rows).astype(
        {"step": "int32"} | {c: "float32" for c in rows[0] if c not in ("run", "task", "step")}
    )


def curves(table: Path = TABLE) -> OverTraining:
    """The stored curves as a result: `.frame() .order() .plot()`."""
    frame = pd.read_parquet(table)
    placed = checkpoints([f"{run}@step{step}" for run, step in frame[["run", "step"]].drop_duplicates().to_numpy()])
    places = [placed[f"{run}@step{step}"] for run, step in zip(frame["run"], frame["step"], strict=True)]
    frame = frame.assign(shape=[place[1] for place in places], seed=[place[2] for place in places])
    totals = {name: tuple(x) if name in ("run", "shape", "task") else x.to_numpy(float) for name, x in frame.items()}
    totals |= {name: frame[name].to_numpy(np.int64) for name in ("seed", "step")}
    return OverTraining(totals, parts={}, unit="sublayer")


def main(folder: Path) -> None:
    """Train, measure, and write."""
    torch.set_num_threads(1)
    for run in RUNS:
        if not (folder / run / "model.safetensors").is_file():
            train.train(find_model(run), folder, keep=STEPS)
    measured(folder).to_parquet(TABLE, index=False, compression="zstd")
    training = curves()
    print(training.order().to_string())
    figure = training.plot(quantities=["accuracy", "diversity_centered"], task="sums", dark=False)
    figure.update_layout(updatemenus=[]).write_image(FIGURE, width=760)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
