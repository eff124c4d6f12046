"""A study of training checkpoints: its quantities by training step, and the order in which they change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from .._checks import choice, instance, number, some_of, whole_number
from ..components import Component, component_columns
from ..depth.effect_results import Effects
from ..ensemble.intervals import ENDS, estimate, estimates_frame
from ..ensemble.losses import LOSSES
from ..errors import InputError
from ..replication.populations import LEAST_SEEDS, mean_over_seeds
from ..results import Figure, Result
from .tables import widen

# Quantities of a checkpoint: {name: (loss, term of the totals)}.
_SQUARED = ("bias", "diversity", "diversity_logit", "coherence")
QUANTITIES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("squared", "accuracy"),
    "loss": ("cross_entropy", "loss"),
    "entropy": ("cross_entropy", "entropy"),
    **{name: ("squared", name) for term in _SQUARED for name in (term, f"{term}_centered")},
}
INFORMATION = ("joint", "relevancy", "redundancy", "conditional_redundancy")
EFFECTS = {"direct": "direct_effect", "total": "total_effect"}
COMPONENT_TERMS = ("bias", "diversity", "net", "bias_centered", "diversity_centered", "net_centered", "accuracy")
_UNITS = {name: LOSSES[loss].unit_of(term) or "ratio" for name, (loss, term) in QUANTITIES.items()}
_UNITS |= dict.fromkeys(INFORMATION, "bits") | dict.fromkeys(EFFECTS.values(), "logits")
_NAMES = ["run", "shape", "seed", "task", "step"]
_NAME = re.compile(r"((.*?)(?:[-_ ]*seed[-_ ]?(\d+))?)[@/ _-]*step[-_ ]?(\d+)")  # run (shape, seed), step


@dataclass(frozen=True, eq=False)
class OverTraining(Result):
    """Quantities of a study's checkpoints by training step; returned by `Study.over_training`.

    Attributes:
        totals: The columns of `frame`: run, shape, seed, task, step, then `{quantity: [row]}` with `_low` and `_high`
            over the task's rows. Runs of one shape differ only in their seed.
        parts: The columns of `by_component`: the same names, the component's label, and `{term: [row]}`.
        unit: The unit of the study.
        sequences: The tasks whose options are scored as sequences, by log-likelihoods.
    """

    totals: dict[str, Any]
    parts: dict[str, Any]
    unit: str
    sequences: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the measured quantities."""
        return tuple(name for name in self.totals if not name.endswith(("_low", "_high")) and name not in _NAMES)

    def units(self, task: str) -> dict[str, str]:
        """Return the unit of each quantity on a task. Raises InputError for a task that was not measured."""
        tasks = tuple(dict.fromkeys(self.totals["task"]))
        of_logits = "nats" if choice("task", task, tasks) in self.sequences else "logits"
        return {name: _UNITS[name].replace("logits", of_logits) for name in self.quantities}

    figures: ClassVar = {"curves": "curves.training_curves"}

    def plot(self, kind: Literal["curves"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """Return all quantities with 95 % intervals over the task's rows: one row per run, task and step."""
        return pd.DataFrame({name: list(column) for name, column in self.totals.items()})

    def by_component(self) -> pd.DataFrame:
        """Return bias, diversity, net and accuracy alone: one row per run, task, step and component."""
        named = component_columns(tuple(map(Component.parse, self.parts["component"])))
        names = {name: list(self.parts[name]) for name in _NAMES}
        return pd.DataFrame(names | named | {name: x for name, x in self.parts.items() if name not in names | named})

    def reached(self, share: float = 0.5) -> pd.DataFrame:
        """Return the step at which each quantity completes a `share` of its change: one row per run, task, quantity.

        The step is the first crossing, interpolated linearly between measured checkpoints; `resolution` is the gap
        between the two around it. It is NaN if the intervals of the first and the last checkpoint overlap. A quantity
        that rises and falls again needs a look at its curve. Raises InputError for an invalid share.
        """
        share = number("share", share, above=0, below=1)
        rows, keys = [], ["run", "shape", "seed", "task"]
        for key, curve in self.frame().groupby(keys, sort=False):
            for name in self.quantities:
                values, low, high = (curve.get(name + end, curve[name]).to_numpy() for end in ENDS)
                row = dict(zip(keys, key, strict=True)) | {"quantity": name, "first": values[0], "last": values[-1]}
                overlap = low[0] <= high[-1] and low[-1] <= high[0]
                ends = (np.nan, np.nan) if overlap else crossing(curve["step"].to_numpy(dtype=float), values, share)
                rows.append(row | dict(zip(("reached", "resolution"), ends, strict=True)))
        return pd.DataFrame(rows)

    def order(self, reference: str = "accuracy", share: float = 0.5) -> pd.DataFrame:
        """Order the quantities by the lag, in steps, at which each completes a share of its change after a reference.

        Returns one row per shape, task and quantity. `lag` is averaged over training seeds, with Student's interval
        over three or more. `order` is "before" or "later", "not told apart" if the interval contains 0 or is missing,
        or, without a lag of any seed, says which of the two does not move, or that it was "not measured". A lag below
        `resolution`, the mean gap between the checkpoints around both crossings, is not resolved. Raises InputError
        for a quantity that was not measured, and like `reached`.
        """
        choice("reference", reference, self.quantities)
        steps, keys = self.reached(share), ["run", "task"]
        steps = steps.merge(steps[steps["quantity"] == reference], on=keys, suffixes=("", "_of_reference"))
        rows = []
        for (shape, task, name), group in steps.groupby(["shape", "task", "quantity"], sort=False):
            lag = mean_over_seeds((group["reached"] - group["reached_of_reference"]).to_numpy())
            gap = group[["resolution", "resolution_of_reference"]].mean(axis=1).mean()
            order = "before" if lag.high < 0 else "later" if lag.low > 0 else "not told apart"
            if name == reference:
                order = ""
            elif not group[["first", "last"]].notna().all(axis=1).any():
                order = "not measured"
            elif lag.n == 0:
                order = f"{reference} does not move" if group["reached"].notna().any() else "does not move"
            row = {"shape": shape, "task": task, "quantity": name, "n": lag.n, "reached": group["reached"].mean()}
            rows.append(row | {"lag": lag, "resolution": gap, "order": order})
        note = f"95 % intervals over training seeds, none of fewer than {LEAST_SEEDS}"
        return estimates_frame(rows, intervals=note)

    def __repr__(self) -> str:
        counts = " × ".join(f"{len(set(self.totals[name]))} {name}s" for name in ("run", "step", "task"))
        return f"OverTraining({counts}; {', '.join(self.quantities)})"


def over_training(
    totals: pd.DataFrame,
    components: pd.DataFrame,
    placed: Mapping[str, tuple[str, str, int, int]],
    information: pd.DataFrame | None,
    effects: Mapping[tuple[str, str], Effects],
    **about: Any,
) -> OverTraining:
    """Arrange a study's totals, components and information of one unit, and {(model, task): effects}, along the step.

    `placed` are the models that `checkpoints` returns. Raises InputError if checkpoints of one shape have different
    components.
    """
    keys = ["model", "task"]
    frame = widen(totals, keys, {pair: name for name, pair in QUANTITIES.items()})
    if information is not None:
        bits = information.rename(columns={"bits": "mean"}).assign(loss="")
        frame = frame.merge(widen(bits, keys, {("", term): term for term in INFORMATION}), how="left", on=keys)
    parts = components[[*keys, "component", *(term for term in COMPONENT_TERMS if term in components)]]
    if effects:
        sums, means = [], []
        for key, e in effects.items():
            names = dict(zip(keys, key, strict=True))
            sums.append(names | {EFFECTS[x]: estimate(e.effect(x).sum(1)) for x in EFFECTS if x in e.effects})
            means.append(e.frame().rename(columns=EFFECTS).assign(**names))
        frame = frame.merge(estimates_frame(sums), how="left", on=keys)
        some = pd.concat(means).reindex(columns=[*keys, "component", *EFFECTS.values()]).dropna(axis=1, how="all")
        parts = parts.merge(some, how="left", on=[*keys, "component"])
    where = pd.DataFrame(list(placed.values()), list(placed), ["run", "shape", "seed", "step"])
    frame = frame.join(where, on="model", how="inner").sort_values(["shape", "seed", "task", "step"])
    parts = frame[[*keys, *where]].merge(parts, on=keys, sort=False)
    for (shape, _), group in parts.groupby(["shape", "task"], sort=False):
        labels = group.groupby("model", sort=False)["component"].agg(tuple).tolist()
        if other := [some for some in labels if some != labels[0]]:
            raise InputError(
                f"the checkpoints of {shape!r} have different components ({len(labels[0])} and {len(other[0])}): "
                "checkpoints of one run have one shape and one precision; give steps= for those that belong together."
            )
    return OverTraining(_stored(frame), _stored(parts), **about)


def _stored(frame: pd.DataFrame) -> dict[str, Any]:
    """Convert a frame to a result's columns, names first: numbers as arrays, texts as tuples."""
    ordered = frame[[*_NAMES, *frame.columns.drop([*_NAMES, "model"])]]
    return {str(name): x.to_numpy() if x.dtype.kind in "fi" else tuple(x) for name, x in ordered.items()}


def checkpoints(names: Sequence[str], steps: Mapping[str, int] | None = None) -> dict[str, tuple[str, str, int, int]]:
    """Return {model: (run, shape, seed, step)} from names like `d4-seed1@step1000`, or from `steps`.

    Raises InputError if no run has two checkpoints, and for two models of the same run and step.
    """
    if steps is not None:
        some_of("steps", list(instance("steps", steps, Mapping, "give {name of a model: step}")), names)
        steps = {name: whole_number(f"steps[{name!r}]", step, 0) for name, step in steps.items()}
    placed = {}
    for name in names:
        run, shape, seed, own = match.groups() if (match := _NAME.fullmatch(name)) else ("", "", None, None)
        step = own if steps is None else steps.get(name)
        if step is not None:
            placed[name] = (run or "model", shape or "model", int(seed or 0), int(step))
    if len(set(placed.values())) < len(placed):
        raise InputError("two checkpoints have the same run and step: give each model of the study a name of its own.")
    if len({run for run, *_ in placed.values()}) == len(placed):
        raise InputError(
            "this study has no two checkpoints of one run: name its models by their steps, as in "
            '{"step0": …, "step1000": …} or {"d4-seed1@step1000": …}, or give steps={name: step}.'
        )
    return placed


def crossing(
    steps: Float[np.ndarray, " step"], values: Float[np.ndarray, " step"], share: float = 0.5
) -> tuple[float, float]:
    """Return where values first complete a share of their total change, and the gap between the steps around it.

    Unmeasured values in between are skipped; both are NaN if the first or last is missing, or if these are equal.
    """
    way = values[-1] - values[0]
    if way == 0 or not np.isfinite(way):
        return float("nan"), float("nan")
    measured = np.isfinite(values)
    steps, gone = steps[measured], (values[measured] - values[0]) / way
    at = int((gone >= share).argmax())
    around = slice(at - 1, at + 1)
    return float(np.interp(share, gone[around], steps[around])), float(np.ptp(steps[around]))
