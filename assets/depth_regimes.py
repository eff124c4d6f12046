"""Does `ld.depth.ensemble_test` tell planted regimes apart? Statistics of several hundred networks, and error rates.

    python assets/depth_regimes.py FOLDER    trains what FOLDER lacks, measures, writes assets/depth_regimes.parquet
    python assets/depth_regimes.py           prints the tables, and writes layerdiv_tl/depth/planted_regimes.json

Training takes some eight minutes on one core, measuring some twenty. The thresholds of `depth.verdicts` were set on
seeds below `SPLIT`; what is measured here, and all error rates, are of the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import layerdiv_tl as ld
from layerdiv_tl.depth.ensemble_results import UNITS
from layerdiv_tl.depth.verdicts import judge
from layerdiv_tl.ensemble.intervals import wilson
from layerdiv_tl.zoo.training import regimes as trained

TABLE = Path(__file__).parent / "depth_regimes.parquet"
SUMMARY = Path(ld.__file__).parent / "depth" / "planted_regimes.json"
SEEDS, SPLIT = 40, 20
HELD_OUT = range(SPLIT, SEEDS)
# Constructed networks: regime, groups, layers. The last ones are only tried, at other depths.
PLANTED = [(name, 1, 12) for name in ld.zoo.REGIMES] + [("averaging", groups, 12) for groups in (2, 3, 4)]
DEEPER = [(name, 1, layers) for layers in (8, 24) for name in ld.zoo.REGIMES]


def named(name: str, groups: int, layers: int = 12) -> str:
    """A kind of network in the tables."""
    several = f", {groups} groups" if groups > 1 else ""
    return name + several + (f", {layers} layers" if layers != 12 else "")


def measured(folder: Path) -> pd.DataFrame:
    """One row per network: every statistic with its interval."""
    rows = []

    def add(kind: str, seed: int, regime: ld.zoo.Regime, **more: object) -> None:
        test = ld.depth.ensemble_test(regime, **{**regime.question, **more})
        row = {"kind": kind, "seed": seed, "verdict": regime.verdict, "planted_groups": regime.groups}
        row |= {"members": len(test.components), "floor_known": test.floor_known}
        row |= {"largest_kappa": test.largest_kappa}
        for name, values in test.statistics.items():
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), map(float, values), strict=True))
        rows.append(row)

    for name, groups, layers in PLANTED + DEEPER:
        for seed in HELD_OUT if layers == 12 else HELD_OUT[:10]:
            add(named(name, groups, layers), seed, ld.zoo.regime(name, layers, groups, seed))
        print(named(name, groups, layers), flush=True)
    for name in ld.zoo.REGIMES:
        for seed in HELD_OUT[:10]:
            regime = ld.zoo.regime(name, seed=seed)
            p = regime.question["target"]
            labels = [int(np.random.default_rng([seed, i]).choice(len(row), p=row)) for i, row in enumerate(p)]
            add(f"{name}, sampled labels", seed, regime, target=None, labels=labels)
    for kind in trained.KINDS:
        weights = trained.stored(folder, kind)
        for seed in HELD_OUT:
            add(kind, seed, trained.assemble(kind, weights, seed))
        print(kind, flush=True)
    return pd.DataFrame(rows).astype({c: "float32" for c in pd.DataFrame(rows).select_dtypes("float64")})


def error_rates(table: pd.DataFrame) -> pd.DataFrame:
    """One row per kind of network: how often the verdict is the planted one, is wrong, and groups are found ± 1."""
    records = []
    for kind, rows in table.groupby("kind", sort=False):
        said = [_judged(row) for row in rows.to_dict("records")]
        planted, n = rows["verdict"].iloc[0], len(rows)
        right, open_ = sum(word == planted for word in said), sum(word == "cannot tell" for word in said)
        found = (rows["groups"].clip(lower=1) - rows["planted_groups"]).abs() <= 1
        record = {"network": kind, "planted": planted, "seeds": n, "right": right / n, "cannot tell": open_ / n}
        record["wrong"] = (n - right - open_) / n
        record["wrong, 95 %"] = "{:.2f} to {:.2f}".format(*wilson(n - right - open_, n))
        records.append(record | {"groups ± 1": found.mean(), "most often": max(set(said), key=said.count)})
    return pd.DataFrame(records)


def _judged(row: dict[str, float]) -> str:
    statistics = {
        name: (row[name], row[f"{name}_low"], row[f"{name}_high"])
        for name in UNITS
        if not np.isnan(row.get(name, np.nan))
    }
    return judge(statistics, bool(row["floor_known"]), row["largest_kappa"]).word


def summary(table: pd.DataFrame) -> dict[str, object]:
    """What the package holds a test beside: the middle 90 % of every statistic, and the error rates."""
    regimes = {}
    for kind, rows in table.groupby("kind", sort=False):
        ends = rows[[name for name in UNITS if name in rows]].quantile([0.05, 0.5, 0.95])
        shown = {name: [round(float(x), 4) for x in ends[name]] for name in ends if ends[name].notna().all()}
        regimes[kind] = {"verdict": rows["verdict"].iloc[0], "networks": len(rows), "statistics": shown}
    return {"regimes": regimes, "error_rates": error_rates(table).round(4).to_dict("records")}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measured(Path(sys.argv[1])).to_parquet(TABLE, index=False)
    table = pd.read_parquet(TABLE)
    SUMMARY.write_text(json.dumps(summary(table), indent=1) + "\n", encoding="utf-8")
    print(error_rates(table).to_string(index=False))
