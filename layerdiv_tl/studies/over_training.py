"""Checkpoints as the models of a study: how each quantity moves along training, and which moves first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import choice, instance, number, some_of, whole_number
from ..components import Component, component_columns
from ..depth.effect_results import Effects
from ..ensemble.information.estimator import EstimatorName
from ..ensemble.intervals import mean_interval
from ..errors import InputError
from ..replication.populations import LEAST_SEEDS, mean_over_seeds
from ..results import Result

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..components import Unit
    from .study import Study

# Quantities of a checkpoint: {name: (loss, term of the totals)}.
QUANTITIES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("squared", "accuracy"),
    "loss": ("cross_entropy", "loss"),
    "entropy": ("cross_entropy", "entropy"),
    **{
        term + half: ("squared", term + half)
        for term in ("bias", "diversity", "diversity_logit", "coherence")
        for half in ("", "_centered")
    },
}
INFORMATION = ("joint", "relevancy", "redundancy", "conditional_redundancy")
EFFECTS = ("direct", "total")
COMPONENT_TERMS = ("bias", "diversity", "net", "bias_centered", "diversity_centered", "net_centered", "accuracy")
# What quantities are measured in, where it is not squared logits; of log-likelihoods, these are in nats.
_UNITS = {
    "accuracy": "share",
    **dict.fromkeys(("loss", "entropy"), "nats"),
    **dict.fromkeys(("coherence", "coherence_centered"), "ratio"),
    **dict.fromkeys(INFORMATION, "bits"),
    **{f"{name}_effect": "logits" for name in EFFECTS},
}
# Settings that say which rows effects are of.
_ROWS = ("prompts", "labels", "options", "multi_token")
_ENDS = {"": "mean", "_low": "low", "_high": "high"}
_STEP = re.compile(r"(?P<run>.*?)[@/ _-]*step[-_ ]?(?P<step>\d+)")
_SEED = re.compile(r"(?P<shape>.*?)[-_ ]*seed[-_ ]?(?P<seed>\d+)")


@dataclass(frozen=True, eq=False)
class OverTraining(Result):
    """Quantities of a study's checkpoints along the training step; made by `Study.over_training`.

    Attributes:
        runs, tasks, shapes: The run, task and shape of each row: a checkpoint on a task. Runs of one shape differ in
            their seed only.
        seeds, steps: The training seed and step of each row.
        totals: `{quantity: [row]}`, with `_low` and `_high` over the task's rows.
        components: The components of each shape, in stream order.
        terms: `{term: [row, component]}` of each component, NaN where a shape has fewer.
        unit: As in the study.
        sequences: The tasks whose options are scored as sequences, by log-likelihoods.
    """

    runs: tuple[str, ...]
    shapes: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: Int[np.ndarray, " row"]
    steps: Int[np.ndarray, " row"]
    totals: dict[str, Float[np.ndarray, " row"]]
    components: dict[str, tuple[Component, ...]]
    terms: dict[str, Float[np.ndarray, "row component"]]
    unit: str
    sequences: tuple[str, ...] = ()

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """The names of what was measured."""
        return tuple(name for name in self.totals if not name.endswith(("_low", "_high")))

    def units(self, task: str) -> dict[str, str]:
        """What each quantity is measured in on a task. Raises InputError for a task that was not measured."""
        of_logits = "nats" if choice("task", task, tuple(dict.fromkeys(self.tasks))) in self.sequences else "logits"
        return {name: _UNITS.get(name, "logits²").replace("logits", of_logits) for name in self.quantities}

    def _names(self) -> dict[str, Any]:
        names = {"run": self.runs, "shape": self.shapes, "seed": self.seeds, "task": self.tasks, "step": self.steps}
        return {name: list(column) for name, column in names.items()}

    def plot(self, kind: Literal["curves"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per run, task and step, in this order: all quantities, with 95 % intervals over the task's rows."""
        return pd.DataFrame(self._names() | self.totals)

    def by_component(self) -> pd.DataFrame:
        """One row per run, task, step and component: bias, diversity, net, and its own accuracy."""
        frames = []
        names = pd.DataFrame(self._names())
        for row, shape in enumerate(self.shapes):
            components = self.components[shape]
            columns = names.iloc[[row] * len(components)].reset_index(drop=True)
            own = pd.DataFrame({t: x[row, : len(components)] for t, x in self.terms.items()})
            named = pd.concat([columns, pd.DataFrame(component_columns(components)), own], axis=1)
            frames.append(named[own.notna().any(axis=1)])  # not every task has all of them
        return pd.concat(frames, ignore_index=True)

    def reached(self, share: float = 0.5) -> pd.DataFrame:
        """One row per run, task and quantity: the step at which it has gone a share of its way, from first to last.

        The first crossing, straight between the checkpoints where it was measured; `resolution` is how far the two
        around it are apart. NaN where the intervals of the first and the last checkpoint overlap: it did not move. A
        quantity that goes up and comes down again has a way that is shorter than its path: look at the curve. Raises
        InputError for no share.
        """
        share = number("share", share, above=0, below=1)
        rows = []
        frame = self.frame()
        for (run, shape, seed, task), curve in frame.groupby(["run", "shape", "seed", "task"], sort=False):
            steps = curve["step"].to_numpy(dtype=float)
            for name in self.quantities:
                values = curve[name].to_numpy()
                step, resolution = crossing(steps, values, share)
                low, high = (curve.get(name + end, curve[name]).to_numpy() for end in ("_low", "_high"))
                if low[0] <= high[-1] and low[-1] <= high[0]:
                    step = resolution = np.nan
                row = {"run": run, "shape": shape, "seed": seed, "task": task, "quantity": name}
                ends = {"first": values[0], "last": values[-1]}
                rows.append(row | ends | {"reached": step, "resolution": resolution})
        return pd.DataFrame(rows)

    def order(self, reference: str = "accuracy", share: float = 0.5) -> pd.DataFrame:
        """Which quantity moves first: how many steps each goes a share of its way later than a reference does.

        One row per shape, task and quantity: `lag` is the mean over training seeds of the step that it reached less
        that of the reference, with Student's interval over seeds (three or more); `order` says "before", "later" or,
        where the interval holds 0 or there is none, "not told apart"; where no seed has a lag, which of the two does
        not move, or that the quantity is "not measured" at both ends. `resolution` is the mean gap between the
        checkpoints around both crossings: a lag below it says little. Raises InputError for a quantity that was not
        measured, and as `reached`.
        """
        choice("reference", reference, self.quantities)
        steps, keys = self.reached(share), ["run", "task"]
        other = steps[steps["quantity"] == reference].set_index(keys)[["reached", "resolution"]]
        joined = steps.join(other.add_suffix("_of_reference"), on=keys)
        joined["lag"] = joined["reached"] - joined["reached_of_reference"]
        joined["gap"] = joined[["resolution", "resolution_of_reference"]].mean(axis=1)
        rows = []
        for (shape, task, name), group in joined.groupby(["shape", "task", "quantity"], sort=False):
            lag = mean_over_seeds(group["lag"].to_numpy())
            told = "before" if lag.high < 0 else "later" if lag.low > 0 else "not told apart"
            if name == reference:
                told = ""
            elif lag.n == 0:
                told = f"{reference} does not move" if group["reached"].notna().any() else "does not move"
                told = told if group[["first", "last"]].notna().all(axis=1).any() else "not measured"
            row = {"shape": shape, "task": task, "quantity": name, "n": lag.n, "reached": group["reached"].mean()}
            row |= {"lag": lag.value, "lag_low": lag.low, "lag_high": lag.high, "resolution": group["gap"].mean()}
            rows.append(row | {"order": told})
        frame = pd.DataFrame(rows)
        frame.attrs["intervals"] = f"95 % intervals over training seeds, none of fewer than {LEAST_SEEDS}"
        return frame

    def __repr__(self) -> str:
        counts = f"{len(set(self.runs))} runs × {len(set(self.steps.tolist()))} steps × {len(set(self.tasks))} tasks"
        return f"OverTraining({counts}; {', '.join(self.quantities)})"


def over_training(study: Study, unit: Unit, steps: Mapping[str, int] | None, estimator: str | None) -> OverTraining:
    """What `Study.over_training` gives."""
    totals = study._metrics(unit, "totals")
    placed = checkpoints(list(totals["model"].unique()), steps)
    wide: dict[str, pd.Series] = {}
    for name, (loss, term) in QUANTITIES.items():
        rows = totals[(totals["loss"] == loss) & (totals["term"] == term)].set_index(["model", "task"])
        wide |= {name + end: rows[column] for end, column in _ENDS.items()}
    frame = pd.DataFrame(wide)
    frame = frame[frame.index.isin(placed, level="model")]
    if estimator is not None:
        choice("estimator", estimator, get_args(EstimatorName))
        found = study.information(estimator, unit, models=list(placed)).set_index(["model", "task"])
        for bits in INFORMATION:
            ends = found.loc[found["term"] == bits, ["bits", "low", "high"]]
            frame = frame.join(ends.set_axis([bits + end for end in _ENDS], axis=1))
    where = [placed[model] for model, _ in frame.index]
    frame = frame.assign(shape=[w[1] for w in where], seed=[w[2] for w in where], step=[w[3] for w in where])
    frame = frame.assign(run=[w[0] for w in where]).reset_index().sort_values(["shape", "seed", "task", "step"])
    components, terms = _component_terms(study, unit, frame)
    cells = list(zip(frame["model"], frame["task"], strict=True))
    for name, values, sums in _effects(study, unit, cells, [components[shape] for shape in frame["shape"]]):
        terms[name] = values
        for end, column in zip(_ENDS, sums.T, strict=True):
            frame[name + end] = column
    names = ["model", "task", "shape", "seed", "step", "run"]
    settings = [cell["settings"] for cell in study.cells]
    return OverTraining(
        runs=tuple(frame["run"]),
        shapes=tuple(frame["shape"]),
        tasks=tuple(frame["task"]),
        seeds=frame["seed"].to_numpy(dtype=np.int64),
        steps=frame["step"].to_numpy(dtype=np.int64),
        totals={str(name): frame[name].to_numpy(dtype=float) for name in frame.columns.drop(names)},
        components=components,
        terms=terms,
        unit=unit,
        sequences=tuple(dict.fromkeys(s["task"] for s in settings if not s["option_ids"])),
    )


def _effects(
    study: Study, unit: Unit, cells: Sequence[tuple[str, str]], components: Sequence[tuple[Component, ...]]
) -> Iterator[tuple[str, Float[np.ndarray, "cell component"], Float[np.ndarray, "cell 3"]]]:
    """(quantity, each component's, their sum with its ends) of the effects that lie in a study's folders, if any do.

    NaN where a cell or a component has none, or where a cell's are of other rows than those that were finished last: a
    run with another limit may have been stopped before it came to every checkpoint.
    """
    depth = study.depth if unit == "sublayer" else None
    some = () if depth is None else depth.analyses
    done = [(a, a.result) for a in some if isinstance(a.result, Effects) and (a.model, a.dataset) in cells]
    rows = {(a.model, a.dataset): [a.about["settings"][name] for name in _ROWS] for a, _ in done}
    last = {a.dataset: rows[a.model, a.dataset] for a, _ in sorted(done, key=lambda found: found[0].about["finished"])}
    stored = {(a.model, a.dataset): x for a, x in done if rows[a.model, a.dataset] == last[a.dataset]}
    for name in EFFECTS if any(cell in stored for cell in cells) else ():
        found = np.full((len(cells), max(map(len, components))), np.nan)
        sums = np.full((len(cells), 3), np.nan)
        for row, cell in enumerate(cells):
            if (effects := stored.get(cell)) is None or name not in effects.effects:
                continue
            values = effects.effect(name)
            of = dict(zip(effects.components, values.mean(0), strict=True))
            found[row, : len(components[row])] = [of.get(component, np.nan) for component in components[row]]
            total = values.sum(1)
            sums[row] = total.mean(), *mean_interval(total)
        yield f"{name}_effect", found, sums


def _component_terms(
    study: Study, unit: Unit, frame: pd.DataFrame
) -> tuple[dict[str, tuple[Component, ...]], dict[str, np.ndarray]]:
    """The components of every shape on any task, and each one's terms in the rows of a frame."""
    table = study.components(unit)
    cells = {key: rows.set_index("component") for key, rows in table.groupby(["model", "task"], sort=False)}
    keys = list(zip(frame["model"], frame["task"], strict=True))
    found: dict[str, dict[str, pd.Index]] = {}
    for shape, (model, task) in zip(frame["shape"], keys, strict=True):
        labels, of_run = (cells[model, task].index, found.setdefault(shape, {}))
        if not of_run.setdefault(task, labels).equals(labels):
            raise InputError(
                f"the checkpoints of {shape!r} have different components ({len(of_run[task])} and {len(labels)}): "
                "checkpoints of one run have one shape and one precision; give steps= for those that belong together."
            )
    # Log-likelihoods have a component more than logits, the normalizer in `constant`.
    names = {shape: max(tasks.values(), key=len) for shape, tasks in found.items()}
    most = max(map(len, names.values()))
    terms = {}
    for term in (t for t in COMPONENT_TERMS if t in table):
        terms[term] = np.full((len(keys), most), np.nan)
        for row, (key, shape) in enumerate(zip(keys, frame["shape"], strict=True)):
            terms[term][row, : len(names[shape])] = cells[key][term].reindex(names[shape])
    return {shape: tuple(map(Component.parse, labels)) for shape, labels in names.items()}, terms


def checkpoints(names: Sequence[str], steps: Mapping[str, int] | None = None) -> dict[str, tuple[str, str, int, int]]:
    """{model: (run, shape, seed, step)} from names such as `d4-seed1@step1000`, or from `steps`.

    Raises InputError where no two names are checkpoints of one run, and for two of the same run and step.

    >>> checkpoints(["d4@step0", "d4@step50", "d4-seed1@step50", "gpt2"])["d4-seed1@step50"]
    ('d4-seed1', 'd4', 1, 50)
    """
    if steps is not None:
        some_of("steps", list(instance("steps", steps, Mapping, "give {name of a model: step}")), names)
        steps = {name: whole_number(f"steps[{name!r}]", step, 0) for name, step in steps.items()}
    placed = {}
    for name in names:
        match = _STEP.fullmatch(name)
        if (steps is None and match is None) or (steps is not None and name not in steps):
            continue
        run = match["run"] if match else ""
        seeded = _SEED.fullmatch(run)
        step = int(match["step"]) if steps is None and match else (steps or {})[name]
        shape, seed = (seeded["shape"], int(seeded["seed"])) if seeded else (run, 0)
        placed[name] = (run or "model", shape or "model", seed, step)
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
    """(where values have first gone a share of the way from the first to the last, the gap of the two steps around it).

    What lies between is where values were measured; NaN where the first or last was not, and where they are equal.

    >>> crossing(np.array([0.0, 100.0, 200.0]), np.array([0.0, 1.0, 3.0]))
    (125.0, 100.0)
    >>> crossing(np.array([0.0, 100.0, 200.0]), np.array([0.0, np.nan, 1.0]))
    (100.0, 200.0)
    """
    way = values[-1] - values[0]
    if way == 0 or not np.isfinite(way):
        return float("nan"), float("nan")
    measured = np.isfinite(values)
    steps, gone = steps[measured], (values[measured] - values[0]) / way
    at = int((gone >= share).argmax())
    gap = steps[at] - steps[at - 1]
    return float(steps[at - 1] + (share - gone[at - 1]) / (gone[at] - gone[at - 1]) * gap), float(gap)
