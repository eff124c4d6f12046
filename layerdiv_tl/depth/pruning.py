"""Choose layers or sublayers to drop, and measure the model's loss and accuracy without them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from .._checks import file_path, flag, number, one_of, whole_number
from .._files import write_text
from .._progress import progress
from ..components import Component, component_columns
from ..ensemble.intervals import Estimate, Kind, estimate, estimates_frame, interval
from ..errors import InputError
from ..model.fingerprint import identify
from ..model.load import Model, as_model
from ..results import Result
from .engine import Rows
from .quantities import (
    UNITS,
    AblatedPart,
    Effect,
    ablatable_components,
    ablation_effects,
    read_rows,
    score_ablations,
    score_components,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

# The plans of a frame: the chosen one, by block influence, by the same score of each component alone, random.
OWN, INFLUENCE, ALONE, RANDOM = "plan", "block_influence", "alone", "random"


@dataclass(frozen=True, eq=False, repr=False)
class DropPlan(Result):
    """Components to drop, in order, by a score on some rows; and loss and accuracy without them on others.

    candidates, values: Components that could be dropped, in stream order, and their scores; ties are dropped in this
        order. In a greedy plan a dropped component's score is measured with all dropped before it removed, and a kept
        one's with all but the last dropped removed.
        dropped, influence_dropped: Components in order of dropping: by the score, and by block influence.
        alone_dropped: For a greedy plan, what the same score of every component alone would drop; otherwise empty.
        random_dropped: The components that each random plan drops.
        loss, correct: `[row, plan]`: sums over the measured rows' predictions, of the unpruned model, then without the
            first 1, 2, … of `dropped`, then of `influence_dropped` and of `alone_dropped`, then of the random plans,
            which all drop the full budget.
        count: `[row]`: number of predictions in each row.
        score, provenance: The score asked for ("given" for one's own scores); the model, and the rows: their source,
            SHA-256 of their ids, options and labels, and how many scored and measured.

    Nothing is retrained: training after pruning recovers some of the loss, and may then favor another plan.
    """

    candidates: tuple[Component, ...]
    values: Float[np.ndarray, " candidate"]
    dropped: tuple[Component, ...]
    influence_dropped: tuple[Component, ...]
    random_dropped: tuple[tuple[Component, ...], ...]
    loss: Float[np.ndarray, "row plan"]
    correct: Float[np.ndarray, "row plan"]
    count: Float[np.ndarray, " row"]
    score: str
    part: str
    model: str
    provenance: dict[str, Any]
    alone_dropped: tuple[Component, ...] = ()

    def __repr__(self) -> str:
        budget, total = len(self.dropped), self.count.sum()
        (loss, after), (hits, left) = ((x.sum(0)[[0, budget]] / total) for x in (self.loss, self.correct))
        gone = ", ".join(c.label for c in self.dropped[:6]) + ", …" * (budget > 6)
        cost = f"loss {loss:.3g} → {after:.3g} nats, accuracy {hits:.0%} → {left:.0%}"
        return f"DropPlan({self.model}: {gone}, {budget} of {len(self.candidates)} by {self.score}; {cost})"

    figures: ClassVar = {"curve": "pruning.drop_curve", "components": "pruning.score_bars"}

    def plot(self, kind: Literal["curve", "components"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per plan and number of components dropped.

        `loss` is in nats per prediction and `accuracy` a share of predictions, with 95 % intervals over rows;
        `loss_growth` and `accuracy_lost` compare with the unpruned model on the same rows. For `random` plans the
        interval is the middle 95 % of the plans' means.
        """
        budget = len(self.dropped)
        plans = [("none", 0, [0])]
        plans += [(plan, k, [start + k]) for plan, start in self._starts.items() for k in range(1, budget + 1)]
        plans += [(RANDOM, budget, self._random_columns)] if self.random_dropped else []
        sums = {"loss": self.loss, "accuracy": self.correct}
        sums |= {"loss_growth": self.loss - self.loss[:, :1], "accuracy_lost": self.correct[:, :1] - self.correct}
        records = []
        for plan, dropped, columns in plans:
            record: dict[str, Any] = {"plan": plan, "dropped": dropped}
            for name, values in sums.items():
                means = values[:, columns].sum(0) / self.count.sum()
                if plan == RANDOM:
                    record[name] = Estimate(means.mean(), *interval(means), len(self.count))
                else:
                    record[name] = self._estimate(name, values[:, columns[0]])
                if plan == "none" and name == "accuracy_lost":  # compared with itself: zero on any rows
                    record[name] = Estimate(0.0, 0.0, 0.0, len(self.count))
            records.append(record)
        units = {"loss": "nats", "loss_growth": "nats", "accuracy": "share", "accuracy_lost": "share"}
        return estimates_frame(records, units)

    def compare(self) -> pd.DataFrame:
        """Compare this plan with others that drop as much, one row per other plan.

        `loss` and `accuracy`: this plan's minus the other's, on the same rows, with 95 % intervals over rows. Random
        plans enter by their mean; `win_rate` is the share of them with a higher loss.
        """
        budget, total_loss = len(self.dropped), self.loss.sum(0)
        others = {plan: [start + budget] for plan, start in self._starts.items() if plan != OWN}
        others |= {RANDOM: self._random_columns} if self.random_dropped else {}
        records = []
        for other, columns in others.items():
            record: dict[str, Any] = {"other": other, "dropped": budget}
            for name, kind, values in (("loss", "loss", self.loss), ("accuracy", "accuracy_lost", self.correct)):
                difference = values[:, budget] - values[:, columns].mean(1)
                record[name] = self._estimate(kind, difference)
            record["win_rate"] = float((total_loss[columns] > total_loss[budget]).mean())
            records.append(record)
        units = {"loss": "nats", "accuracy": "share", "win_rate": "share of plans"}
        return estimates_frame(records, units)

    @property
    def ordered(self) -> dict[str, tuple[Component, ...]]:
        """Map each plan except the random ones to its components in order of dropping."""
        alone = {ALONE: self.alone_dropped} if self.alone_dropped else {}
        return {OWN: self.dropped, INFLUENCE: self.influence_dropped} | alone

    @property
    def _starts(self) -> dict[str, int]:
        """The column before each of these plans."""
        return {plan: number * len(self.dropped) for number, plan in enumerate(self.ordered)}

    @property
    def _random_columns(self) -> list[int]:
        return list(range(len(self.ordered) * len(self.dropped) + 1, self.loss.shape[1]))

    def _estimate(self, name: str, sums: Float[np.ndarray, " row"]) -> Estimate:
        """A share of predictions, a difference of shares, or a mean, over rows."""
        if name == "accuracy" and (self.count == 1).all():
            return estimate(sums, "share")
        kinds: dict[str, Kind] = {"accuracy": "share", "accuracy_lost": "difference"}
        return estimate(sums, kinds.get(name, "mean"), counts=self.count)

    def random_plans(self) -> pd.DataFrame:
        """One row per random plan: dropped components, `loss` in nats per prediction, `accuracy` as a share of them."""
        names = [", ".join(c.label for c in dropped) for dropped in self.random_dropped]
        loss, accuracy = (x[:, self._random_columns].sum(0) / self.count.sum() for x in (self.loss, self.correct))
        columns = {"number": np.arange(1, len(names) + 1), "components": names, "loss": loss, "accuracy": accuracy}
        return estimates_frame(columns, {"loss": "nats", "accuracy": "share"})

    def scores(self) -> pd.DataFrame:
        """One row per candidate: score, order in the plan (from 1; 0 stays), and the provenance of the numbers."""
        order = {c: number for number, c in enumerate(self.dropped, start=1)}
        columns: dict[str, Any] = component_columns(self.candidates)
        columns |= {"score": self.values, "scored_by": self.score}
        columns["drop_order"] = [order.get(c, 0) for c in self.candidates]
        columns["drop"] = [c in order for c in self.candidates]
        columns["model"] = self.model
        columns |= {name: str(self.provenance.get(name) or "") for name in ("source", "revision", "weights", "dtype")}
        columns |= {f"rows_{name}": value for name, value in self.provenance["rows"].items()}
        return estimates_frame(columns, {"score": UNITS.get(self.score, "")})

    def llm_drop(self) -> dict[str, list[int]]:
        """Return `drop_attn_list` and `drop_mlp_list` of an LLM-Drop config (He et al. 2024), in order of dropping.

        Raises InputError for a model that repeats a layer: a layer's number does not identify a repeat, nor, after a
        repeated layer, a block of the model.
        """
        if any(c.repeat is not None for c in self.candidates):
            raise InputError(f"{self.model} repeats a layer, and a list of layers cannot name a repeat: write .csv.")
        return {
            f"drop_{kind}_list": [c.layer for c in self.dropped if c.kind in (kind, "layer") and c.layer is not None]
            for kind in ("attn", "mlp")
        }

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan for other tools, with its provenance: `.json` as `llm_drop`, `.csv` as `scores`.

        Raises InputError for another suffix, and where the file cannot be written.
        """
        file = file_path("path", path)
        if file.suffix == ".json":
            rows = self.frame().set_index(["plan", "dropped"])[["loss", "accuracy"]].to_dict("index")
            about: dict[str, Any] = {"model": self.provenance, "score": self.score, "part": self.part}
            about["greedy"] = bool(self.alone_dropped)
            about |= {"before": rows["none", 0], "after": rows[OWN, len(self.dropped)]}
            text = json.dumps(self.llm_drop() | {"layerdiv_tl": about}, indent=1, default=float) + "\n"
        elif file.suffix == ".csv":
            text = self.scores().to_csv(index=False)
        else:
            raise InputError(f"{str(path)!r} ends in neither .json (LLM-Drop's lists) nor .csv.")
        try:
            return write_text(file, text)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a file of yours.") from error


def drop_plan(
    model: Any,
    rows: Any,
    budget: int,
    score: str | Mapping[Any, float] = "loss",
    part: AblatedPart = "layer",
    *,
    greedy: bool = False,
    scoring: float = 0.5,
    random: int = 20,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> DropPlan:
    """Choose components to drop by a score on some rows, and measure loss and accuracy without them on others.

    Args:
        model, rows: As in `agreement`.
        budget: Number of components to drop.
        score: A quantity of `Agreement` ("loss" is the loss growth when a component alone is ablated); the least needed
            component is dropped first. Or one's own scores, {label: number}, with the smallest dropped first.
        part: What is dropped: a "layer", an "attn", an "mlp", or a "sublayer", attention and MLPs from one list.
        greedy: Choose one by one, each with the earlier choices removed, by the "loss" or "accuracy" of the remaining
            model, so that components that compensate for one another are not all dropped. Scoring every component alone
            does not see that; the plan it gives is measured for comparison.
        scoring: Share of the rows that score; the others measure, because rows that chose a plan would flatter it.
        random: Number of random plans to compare with; the plan by block influence (ShortGPT) is always included.
        seed: Seed of the split of rows and of the random plans.

    Makes 2 + C/2 passes over the scoring rows for C candidates, and 1 + P/2 over the others for P plans (each size of
    the plan, of that by block influence, and the random ones): 1.7 CPU seconds per row for the default model. Fewer
    rows (`task(…, limit=24)`) or `random=5` cost less. A greedy plan rescores the candidates after each choice, so that
    choosing costs `budget` times as much. Raises InputError for input that cannot be used: a budget of nothing or
    everything, a score that does not exist for these rows, labels that no component has; and for a model with hooks in
    it, which a plan cannot name.

    >>> import layerdiv_tl as ld
    >>> texts = [[i, (3 * i) % 16, 5, i // 2, 7] for i in range(16)]
    >>> plan = ld.depth.drop_plan("zoo/d2", texts, 1, {"L0.layer": 0.3, "L1.layer": 0.1}, random=2)
    >>> plan.llm_drop()
    {'drop_attn_list': [1], 'drop_mlp_list': [1]}
    >>> plan.frame()[["plan", "dropped"]].values.tolist()
    [['none', 0], ['plan', 1], ['block_influence', 1], ['random', 1]]
    """
    model = as_model(model)
    weights = identify(model).weights  # a plan names the model that it is for
    predictions, source = read_rows(model, rows)
    scoring = number("scoring", scoring, above=0, below=1)
    if len(predictions) < 2:
        raise InputError("some rows choose and others measure: give at least two.")
    candidates = ablatable_components(model, predictions.ids[0], part)
    if len(candidates) < 2:
        raise InputError(f"{candidates[0].label} is all that could go, and something must stay: choose another part.")
    whole_number("budget", budget, 1, len(candidates) - 1)
    whole_number("random", random, 0, 10_000)
    whole_number("seed", seed, 0)
    model.checked_batch_tokens(batch_tokens)
    given = None if isinstance(score, str) else _given_scores(score, candidates)  # before anything is run
    if flag("greedy", greedy) and (given is not None or score not in get_args(Effect)):
        ways = one_of(get_args(Effect))
        raise InputError(f"greedy=True goes by what is lost with each component that is gone: use {ways} as score.")
    order = np.random.default_rng([seed, 0]).permutation(len(predictions)).tolist()
    first = min(len(predictions) - 1, max(1, round(scoring * len(predictions))))
    choosing, measured = (predictions.take(sorted(some)) for some in (order[:first], order[first:]))
    draw = np.random.default_rng([seed, 1])
    drawn = [sorted(draw.permutation(len(candidates))[:budget].tolist()) for _ in range(random)]
    randoms = [[candidates[i] for i in some] for some in drawn]
    steps, plans = len(candidates) - np.arange(budget), (3 if greedy else 2) * budget + random
    total = len(choosing) * int((1 + steps).sum()) + len(measured) * (1 + plans) if greedy else None
    with progress(model.name, total, "pass") if greedy else nullcontext():
        influence = score_components(model, choosing, candidates, "block_influence", batch_tokens)
        usual = _lowest(candidates, influence, budget)
        alone: list[Component] = []
        if greedy:
            alone, plan, values = _one_after_another(model, choosing, candidates, str(score), budget, batch_tokens)
        else:
            values = score_components(model, choosing, candidates, str(score), batch_tokens) if given is None else given
            plan = _lowest(candidates, values, budget)
        sets = [some[:k] for some in (plan, usual, alone) if some for k in range(1, budget + 1)] + randoms
        distinct = list(dict.fromkeys(map(frozenset, sets)))  # each is run once
        loss, correct = score_ablations(model, measured, distinct, batch_tokens)
    columns = [0, *(1 + distinct.index(frozenset(members)) for members in sets)]
    labels = None if predictions.options is None else predictions.targets
    content = [predictions.ids, *(None if x is None else x.tolist() for x in (predictions.options, labels))]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    about = {"where": source, "sha256": digest, "scored": len(choosing)}
    about |= {"measured": len(measured), "seed": seed}
    provenance = dict(model.provenance) | {"name": model.name, "weights": weights, "rows": about}
    return DropPlan(
        candidates=candidates,
        values=values,
        dropped=tuple(plan),
        influence_dropped=tuple(usual),
        alone_dropped=tuple(alone),
        random_dropped=tuple(map(tuple, randoms)),
        loss=loss[:, columns],
        correct=correct[:, columns],
        count=np.bincount(measured.row).astype(float),
        score=score if isinstance(score, str) else "given",
        part=part,
        model=model.name,
        provenance=provenance,
    )


def _lowest(candidates: Sequence[Component], values: Float[np.ndarray, " candidate"], count: int) -> list[Component]:
    return [candidates[i] for i in np.argsort(values, kind="stable")[:count]]


def _one_after_another(
    model: Model,
    rows: Rows,
    candidates: tuple[Component, ...],
    score: str,
    budget: int,
    batch_tokens: int | None,
) -> tuple[list[Component], list[Component], Float[np.ndarray, " candidate"]]:
    """Return (components dropped by their scores alone, those dropped one by one, the last score of each)."""
    left, values = list(candidates), np.empty(len(candidates))
    gone: list[Component] = []
    alone: list[Component] = []
    for _ in range(budget):
        scores = score_ablations(model, rows, [[c] for c in left], batch_tokens, gone)
        sums, counts = ablation_effects(rows, *scores)[score]
        lost = sums.sum(0) / counts.sum()
        values[[candidates.index(c) for c in left]] = lost
        alone = alone or _lowest(left, lost, budget)
        gone.append(left.pop(int(np.argmin(lost))))
    return alone, gone, values


def _given_scores(score: Mapping[Any, float], components: tuple[Component, ...]) -> Float[np.ndarray, " component"]:
    if not isinstance(score, Mapping):
        raise InputError(f"score is a {type(score).__name__}: give a quantity's name, or {{label: number}}.")
    by_label = {getattr(key, "label", key): value for key, value in score.items()}
    labels = [c.label for c in components]
    if len(by_label) < len(score):
        raise InputError("score names a component twice: give one number for each.")
    if wrong := by_label.keys() ^ set(labels):
        label = min(wrong, key=str)
        raise InputError(f"score lacks or adds {label!r}: give one number for each of {labels[0]} to {labels[-1]}.")
    return np.array([number(f"the score of {label}", by_label[label]) for label in labels])
