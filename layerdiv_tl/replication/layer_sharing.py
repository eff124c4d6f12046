"""Diversity of models that reuse layers, relative to that of models that do not (Table 1, section 5.6)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .._checks import shown
from ..errors import InputError
from ..zoo import registry
from .populations import mean_over, mean_over_seeds, on_scale

# Numbers of parameters with a smaller relative difference count as equal.
TOLERANCE = 0.05
# {model: (shape, seed)}: models of one shape differ only in their training seed.
Seeds = Mapping[str, tuple[str, Hashable]]
PARAMETERS, DEPTH, GIVEN = "same parameters", "same depth", "as given"
# Quantities of `Study.table`; columns have the same name, with "_" for a space.
AVERAGED = ("accuracy", "MSE", "bias")
RATIOS = ("diversity", "diversity centered", "diversity_logit", "diversity_logit centered")
# Column suffixes of the model that reuses layers and of its baseline.
_ENDINGS = ("", "_baseline")
# The model that reuses layers, its baseline, and what they are matched on.
Match = tuple[str, str, str]


def layer_sharing_table(
    models: pd.DataFrame,
    table: pd.DataFrame,
    repeats: Mapping[Any, int],
    pairs: Mapping[str, str] | None,
    seeds: Seeds | None,
) -> pd.DataFrame:
    """Make the table of `Study.layer_sharing` of one unit; `repeats` are {model: number of runs of a layer}."""
    known = registry.seeds(models["model"]) if seeds is None else checked_seeds(seeds, models["model"])
    matches = _matches(models, repeats, pairs, {name: seed for name, (_, seed) in known.items()})
    if not matches:
        raise InputError("no model here reuses its layers next to one as large or deep that does not: name pairs.")
    about = models.set_index("model")
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
    models: pd.DataFrame, repeats: Mapping[Any, int], pairs: Mapping[str, str] | None, seeds: Mapping[str, Hashable]
) -> list[Match]:
    if pairs is None:
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
    """Make the row of a pair over tasks, or of a pair of shapes over seeds; None without a common task."""
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
            e = on_scale(mean_over(logs[0], "tasks") if one else mean_over_seeds(logs.mean(1)), np.exp)
            row |= e.columns(f"{name}_ratio")
    return row


def checked_pairs(models: pd.DataFrame, pairs: Mapping[str, str]) -> dict[str, str]:
    """Validate {reuses: baseline} from the user. Raises InputError for anything but two models of the study."""
    if not isinstance(pairs, Mapping):
        raise InputError(f"pairs={shown(pairs)} must be {{model that reuses layers: model that does not}}.")
    names = models["model"].tolist()
    unknown = [name for pair in pairs.items() for name in pair if name not in names]
    if unknown:
        raise InputError(f"pairs names {shown(unknown[0])}, but the study has {', '.join(names)}.")
    for reuses, baseline in pairs.items():
        if reuses == baseline:
            raise InputError(f"pairs compares {reuses!r} with itself: name another model.")
    return dict(pairs)


def checked_seeds(seeds: Seeds, models: Iterable[str]) -> dict[str, tuple[str, Hashable]]:
    """Validate seeds. Raises InputError for anything but {model: (shape, seed)} of models of the study."""
    names = list(models)
    example = '{"small-a": ("small", 0), "small-b": ("small", 1)}'
    if not isinstance(seeds, Mapping):
        raise InputError(f"seeds={shown(seeds)} must be {{model: (shape, seed)}}, such as {example}.")
    model_of: dict[tuple[str, Hashable], str] = {}
    for name, pair in seeds.items():
        if name not in names:
            raise InputError(f"seeds names {shown(name)}, but the study has {', '.join(names)}.")
        try:
            shape, seed = pair if isinstance(pair, tuple) and isinstance(pair[0], str) else ()
            first = model_of.setdefault((shape, seed), name)
        except (TypeError, ValueError, IndexError):
            raise InputError(f"seeds has {shown(pair)} for {name!r}: give (shape, seed), such as {example}.") from None
        if first != name:
            raise InputError(f"{first!r} and {name!r} are both seed {seed!r} of shape {shape!r}: give one of them.")
    return dict(seeds)


def same_parameters(models: pd.DataFrame, seeds: Mapping[str, Hashable]) -> dict[str, str]:
    """Pair models that reuse layers with ones of nearly as many parameters, if possible of the same training seed."""
    # Sorted by name, so that ties do not depend on the study's order.
    table = models.set_index("model").sort_index()
    baselines = table["parameters"][~table["reuses"]]
    pairs = {}
    for name in models.loc[models["reuses"], "model"]:
        difference = (baselines / table["parameters"][name] - 1).abs()
        difference = difference[difference <= TOLERANCE]
        same_seed = difference[[seeds.get(other) == seeds.get(name) for other in difference.index]]
        if len(difference):
            pairs[str(name)] = str((same_seed if len(same_seed) else difference).idxmin())
    return pairs


def same_depth(models: pd.DataFrame, seeds: Mapping[str, Hashable], repeats: Mapping[Any, int]) -> dict[str, str]:
    """Pair models that reuse layers with ones of as many members and the same seed, whose repeats have own layers.

    The baseline has more parameters, by at most the factor by which layers are repeated (`repeats`, by model): this
    excludes wider and narrower models of the same depth.
    """
    table = models.set_index("model").sort_index()
    pairs = {}
    for name in models.loc[models["reuses"], "model"]:
        parameters, own = table["parameters"], table["parameters"][name]
        fits = ~table["reuses"] & (table["members"] == table["members"][name])
        fits &= (parameters > own) & (parameters <= repeats[name] * own)
        fits &= np.array([seeds.get(other) == seeds.get(name) for other in table.index], dtype=bool)
        if fits.any():
            pairs[str(name)] = str(parameters[fits].idxmax())
    return pairs
