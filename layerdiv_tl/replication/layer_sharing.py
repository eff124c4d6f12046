"""Diversity of models that reuse layers, over that of models that do not (Table 1, section 5.6)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..errors import InputError
from ..zoo import registry
from .claim_tests import hall_mean, student_mean
from .layer_pairs import TOLERANCE, Seeds, checked_pairs, checked_seeds, same_depth, same_parameters

if TYPE_CHECKING:
    import pandas as pd

    from ..studies.study import Study

PARAMETERS, DEPTH, GIVEN = "same parameters", "same depth", "as given"
# Quantities of `Study.table`; a column goes by the same name, with "_" for a space.
AVERAGED = ("accuracy", "MSE", "bias")
RATIOS = ("diversity", "diversity centered", "diversity_logit", "diversity_logit centered")
# Endings of the columns of the model that reuses layers, and of its baseline.
_ENDINGS = ("", "_baseline")
# Reuses, baseline, what is the same about them.
Match = tuple[str, str, str]


def layer_sharing_table(study: Study, unit: Unit, pairs: Mapping[str, str] | None, seeds: Seeds | None) -> pd.DataFrame:
    """The table that `Study.layer_sharing` gives."""
    import pandas as pd

    models = study.models(unit)
    known = registry.seeds(models["model"]) if seeds is None else checked_seeds(seeds, models["model"])
    matches = _matches(study, unit, models, pairs, {name: seed for name, (_, seed) in known.items()})
    if not matches:
        raise InputError("no model here reuses its layers next to one as large or deep that does not: name pairs.")
    table, about = study.table(unit), models.set_index("model")
    rows = [_row(table, about, [(reuses, baseline)], (reuses, baseline, held)) for reuses, baseline, held in matches]
    # A pair of shapes: its models, seed by seed.
    by_shape: dict[Match, dict[Hashable, tuple[str, str]]] = {}
    for reuses, baseline, matched_on in matches:
        if reuses in known and baseline in known and known[reuses][1] == known[baseline][1]:
            shapes = known[reuses][0], known[baseline][0], matched_on
            by_shape.setdefault(shapes, {})[known[reuses][1]] = reuses, baseline
    over_seeds = [_row(table, about, list(of.values()), shapes) for shapes, of in by_shape.items() if len(of) > 1]
    blocks = [
        pd.DataFrame(known_rows).sort_values(["members", "model"], kind="stable")
        for block in (over_seeds, rows)
        if (known_rows := [row for row in block if row is not None])
    ]
    if not blocks:
        raise InputError("no model that reuses its layers has a task in common with its pair: run both on one.")
    return pd.concat(blocks, ignore_index=True)


def _matches(
    study: Study, unit: Unit, models: pd.DataFrame, pairs: Mapping[str, str] | None, seeds: Mapping[str, Hashable]
) -> list[Match]:
    if pairs is None:
        repeats = study.metrics[study.metrics["unit"] == unit].groupby("model")["repeat"].max().to_dict()
        both = {PARAMETERS: same_parameters(models, seeds), DEPTH: same_depth(models, seeds, repeats)}
        return [(reuses, baseline, held) for held, of in both.items() for reuses, baseline in of.items()]
    about, matches = models.set_index("model"), []
    for reuses, baseline in checked_pairs(models, pairs).items():
        a, b = about.loc[reuses], about.loc[baseline]
        matched_on = DEPTH if a["members"] == b["members"] else GIVEN
        matched_on = PARAMETERS if abs(b["parameters"] / a["parameters"] - 1) <= TOLERANCE else matched_on
        matches.append((reuses, baseline, matched_on))
    return matches


def _row(
    table: pd.DataFrame, about: pd.DataFrame, pairs: Sequence[tuple[str, str]], names: Match
) -> dict[str, Any] | None:
    """One pair with intervals over tasks, or the same pair of several seeds with intervals over these.

    `names` are what stands in the row. None where they have no task in common.
    """
    tasks = table["accuracy"].columns.drop("Avg.")
    # [pair, model of the pair, task]
    values = {
        quantity: table[quantity][tasks].loc[np.ravel(pairs)].to_numpy(dtype=float).reshape(len(pairs), 2, -1)
        for quantity in (*AVERAGED, *RATIOS)
    }
    common = np.isfinite(values["accuracy"]).all((0, 1))
    if not common.any():
        return None
    one = len(pairs) == 1
    row: dict[str, Any] = dict(zip(("model", "baseline", "matched_on"), names, strict=True))
    row |= {"interval_over": "tasks" if one else "seeds", "n": int(common.sum()) if one else len(pairs)}
    row["tasks"] = int(common.sum())
    for count in ("parameters", "members"):
        row |= {f"{count}{end}": int(about[count][name]) for end, name in zip(_ENDINGS, pairs[0], strict=True)}
    for quantity, every in values.items():
        both, name = every[..., common], quantity.replace(" ", "_")
        row |= {f"{name}{end}": float(mean) for end, mean in zip(_ENDINGS, both.mean((0, 2)), strict=True)}
        if quantity in RATIOS:
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(both[:, 0] / both[:, 1])
            e = (hall_mean(logs[0], "tasks") if one else student_mean(logs.mean(1))).transformed(np.exp)
            row |= {f"{name}_ratio": e.estimate, f"{name}_ratio_low": e.low, f"{name}_ratio_high": e.high}
    return row
