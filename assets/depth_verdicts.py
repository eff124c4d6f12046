"""Is depth ensemble averaging in the default model and in the zoo? Verdicts of `ld.depth.ensemble_test`.

    python assets/depth_verdicts.py    measures, some ten minutes on one core, writes assets/depth_verdicts.csv

The zoo's tasks have one right answer, so the least possible loss is 0 and known; of the default model's tasks it is
not, and no verdict on it can be "averages".
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import layerdiv_tl as ld

TABLE = Path(__file__).with_suffix(".csv")
ZOO = ("d4", "d4-seed1", "d4-seed2", "d8", "d8-seed1", "d8-seed2", "d12", "d4-shared", "d8-shared")
ZOO_TASKS = ("synthetic/recall", "synthetic/k_hop:hops=1", "synthetic/modular:largest=19")
TASKS = ("sample/topic", "sample/sentiment")
SHOWN = ("loss", "damage", "kappa", "gain", "repeat", "reverse", "parallel", "rescaled_to_dropped", "direct_share")


def verdicts() -> pd.DataFrame:
    """One row per model and task: the verdict, and what it rests on with intervals."""
    # Of the zoo's layers each one is repeated in place of the others; of the default model's, four.
    asked = [(f"zoo/{name}", task, 96, 0.0, 8) for name in ZOO for task in ZOO_TASKS]
    asked += [("default", task, 48, None, 4) for task in TASKS]
    records = []
    for name, task, limit, floor, draws in asked:
        model = ld.load_model(name)
        try:
            found = ld.depth.ensemble_test(model, ld.task(task, limit=limit), floor=floor, draws=draws)
        except ld.InputError as error:
            records.append({"model": name, "task": task, "verdict": f"refused: {error}"})
            continue
        record = {"model": name, "task": task, "rows": limit, "members": len(found.components), "groups": found.groups}
        record["verdict"] = found.verdict.word
        record["reason"] = found.verdict.reasons[-1]
        for statistic in SHOWN:
            value, low, high = found.statistics.get(statistic, (float("nan"),) * 3)
            record[statistic] = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        records.append(record)
        print(name, task, found.verdict, flush=True)
    return pd.DataFrame(records)


if __name__ == "__main__":
    table = verdicts()
    table.to_csv(TABLE, index=False)
    print(table.to_string(index=False))
