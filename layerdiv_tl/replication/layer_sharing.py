"""Models that reuse layers beside models that do not, as in the paper's Table 1."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..errors import InputError
from ..zoo import registry as trained
from .claim_tests import averaged, scaled, student
from .layer_pairs import SAME, given, same_depth, same_parameters
from .seeds import Seeds, checked_seeds

if TYPE_CHECKING:
    import pandas as pd

    from ..studies.study import Study

PARAMETERS, DEPTH, GIVEN = "same parameters", "same depth", "as given"
# Quantities of `Study.table`; a column goes by the same name, with "_" for a space.
AVERAGED = ("accuracy", "MSE", "bias")
RATIOS = ("diversity", "diversity centered", "diversity_logit", "diversity_logit centered")


def reuse_of(study: Study, unit: Unit, pairs: Mapping[str, str] | None, seeds: Seeds | None) -> pd.DataFrame:
    """The table that `Study.reuse` gives."""
    import pandas as pd

    models = study.models(unit)
    known = trained.seeds(models["model"]) if seeds is None else checked_seeds(seeds, models["model"])
    found = _pairs(study, unit, models, pairs, {name: seed for name, (_, seed) in known.items()})
    if not found:
        raise InputError("no model here reuses its layers beside one as large or as deep that does not: name pairs.")
    table, about = study.table(unit), models.set_index("model")
    rows = [_row(table, about, [(reused, plain)], (reused, plain, held)) for reused, plain, held in found]
    # A pair of shapes -> its models, seed by seed.
    again: dict[tuple[str, str, str], dict[Hashable, tuple[str, str]]] = {}
    for reused, plain, held in found:
        if reused in known and plain in known and known[reused][1] == known[plain][1]:
            of = again.setdefault((known[reused][0], known[plain][0], held), {})
            of[known[reused][1]] = (reused, plain)
    over = [_row(table, about, list(of.values()), names) for names, of in again.items() if len(of) > 1]
    blocks = [
        pd.DataFrame(kept).sort_values(["members", "model"], kind="stable")
        for part in (over, rows)
        if (kept := [row for row in part if row is not None])
    ]
    if not blocks:
        raise InputError("no model that reuses its layers has a task in common with its pair: run both on one.")
    return pd.concat(blocks, ignore_index=True)


def _pairs(
    study: Study,
    unit: Unit,
    models: pd.DataFrame,
    pairs: Mapping[str, str] | None,
    seeds: Mapping[str, Hashable],
) -> list[tuple[str, str, str]]:
    """(reuses, plain, what is the same about them)"""
    if pairs is None:
        repeats = study.metrics[study.metrics["unit"] == unit].groupby("model")["repeat"].max().to_dict()
        both = {PARAMETERS: same_parameters(models, seeds), DEPTH: same_depth(models, seeds, repeats)}
        return [(reused, plain, held) for held, of in both.items() for reused, plain in of.items()]
    about, found = models.set_index("model"), []
    for reused, plain in given(models, pairs).items():
        a, b = about.loc[reused], about.loc[plain]
        held = DEPTH if a["members"] == b["members"] else GIVEN
        found.append((reused, plain, PARAMETERS if abs(b["parameters"] / a["parameters"] - 1) <= SAME else held))
    return found


def _row(
    table: pd.DataFrame, about: pd.DataFrame, pairs: Sequence[tuple[str, str]], names: tuple[str, str, str]
) -> dict[str, Any] | None:
    """One pair with intervals over tasks, or the same pair of several seeds with intervals over these.

    `names` are what stands in the row: reuses, plain, held. None where they have no task in common.
    """
    tasks = table["accuracy"].columns.drop("Avg.")
    # [pair, model of the pair, task]
    values = {
        quantity: table[quantity][tasks].loc[[name for both in pairs for name in both]].to_numpy(dtype=float)
        for quantity in (*AVERAGED, *RATIOS)
    }
    common = np.isfinite(values["accuracy"]).all(0)
    if not common.any():
        return None
    over = "tasks" if len(pairs) == 1 else "seeds"
    n = int(common.sum()) if len(pairs) == 1 else len(pairs)
    row: dict[str, Any] = dict(zip(("model", "baseline", "matched_on"), names, strict=True))
    row |= {"interval_over": over, "n": n, "tasks": int(common.sum())}
    for count in ("parameters", "members"):
        row |= {f"{count}{end}": int(about[count][name]) for end, name in zip(_ENDS, pairs[0], strict=True)}
    for quantity, found in values.items():
        kept = found[:, common].reshape(len(pairs), 2, -1)
        name = quantity.replace(" ", "_")
        row |= {f"{name}{end}": float(mean) for end, mean in zip(_ENDS, kept.mean((0, 2)), strict=True)}
        if quantity in RATIOS:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(kept[:, 0] / kept[:, 1])
            e = scaled(averaged(logs[0], over) if len(pairs) == 1 else student(logs.mean(1), over), np.exp)
            row |= {f"{name}_ratio": e.estimate, f"{name}_ratio_low": e.low, f"{name}_ratio_high": e.high}
    return row


# Ending of a column -> which model of a pair.
_ENDS = ("", "_plain")
