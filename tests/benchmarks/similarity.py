"""Does the similarity of heads' contributions foretell which make up for one another? Over training seeds of the zoo.

`python tests/benchmarks/similarity.py`. Of every trained model with at least four layers and every task it can do:
Spearman's correlation between similarity and share made up for (`Effects.foretold`), and its null of heads that trade
places within their layer; of models that all seeds have the mean, with a 95 % interval over the seeds' means.
"""

from __future__ import annotations

import argparse

import pandas as pd

import layerdiv_tl as ld
from layerdiv_tl.replication.claim_tests import student_mean

TASKS = ("synthetic/k_hop", "synthetic/recall", "synthetic/modular:largest=19")
CAN = 0.8  # accuracy of a model that can do a task


def measured(rows: int) -> pd.DataFrame:
    """One row per model, task and measure of similarity."""
    models, found = ld.zoo.models().set_index("name"), []
    for name, (shape, seed) in ld.zoo.seeds(models.index).items():
        for task in TASKS if models.depth[name] >= 4 else ():
            if models[task][name] < CAN:
                continue
            effects = ld.effects(ld.load_model(name), ld.task(task, limit=rows), unit="head")
            try:
                frame = effects.foretold(n_permutations=200, n_resamples=1)
            except ld.InputError:  # one or two heads write nearly all
                continue
            found.append(frame.assign(shape=shape, seed=seed, task=task))
    return pd.concat(found, ignore_index=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    frame = measured(parser.parse_args().rows)
    frame["beyond"] = frame["correlation"] - frame["null"]
    by = frame.groupby(["measure", "task", "shape"])[["correlation", "null", "beyond"]]
    print(
        by.agg(["mean", "count"])[[("correlation", "mean"), ("null", "mean"), ("beyond", "count")]].round(2).to_string()
    )
    for measure, some in frame.groupby("measure"):
        # Shapes that all seeds have, so that seeds differ in nothing else.
        wide = some.pivot_table(index=["task", "shape"], columns="seed", values=["correlation", "beyond"]).dropna()
        for column in ("correlation", "beyond"):
            e = student_mean(wide[column].mean().to_numpy())
            interval = f"[{e.low:+.2f}, {e.high:+.2f}] over {e.n} seeds of {len(wide)} cells"
            print(f"{measure}, {column}: {e.estimate:+.2f} {interval}")
        beyond, below = (some["p_value"] < 0.05).mean(), (some["beyond"] < 0).mean()
        print(f"{measure}: {beyond:.0%} of {len(some)} beyond their null at 5 %, {below:.0%} below it")


if __name__ == "__main__":
    main()
