"""`DropPlan`: components to drop, and the loss and accuracy without them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from .._checks import file_path, whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import Estimate, Kind, estimate, estimates_frame, percentile_interval
from ..errors import InputError
from ..model.load import Model, as_model
from ..results import Plot, Result
from .smaller_model import smaller_model, write_model

# Scores, and their units.
UNITS: Mapping[str, str] = {
    "contribution": "logits",
    "diversity": "share of the sum",
    "net": "nats",
    "relative_norm": "times the stream's norm",
    "block_influence": "1 − cosine",
    "loss": "nats",
}
# `[row, component]` sums over each row, and the `[row]` counts that they are divided by.
Sums = tuple[Float[np.ndarray, "row component"], Float[np.ndarray, " row"]]
# The plans of a frame: the chosen one, by block influence, random.
OWN, INFLUENCE, RANDOM = "plan", "block_influence", "random"


def _curve_frame(plan: DropPlan) -> pd.DataFrame:
    """The rows of `by_size()`, those of each plan but the random ones after that of the unpruned model."""
    frame = plan.by_size()
    start = frame[frame["plan"] == "none"]
    parts = [frame[frame["plan"] == name] for name in (*plan.plans, RANDOM)]
    starts = [start.assign(plan=name) for name in plan.plans]
    rows = pd.concat([*starts, *parts]).sort_values("dropped", kind="stable")
    rows.attrs = frame.attrs
    return rows


@dataclass(frozen=True, eq=False, repr=False)
class DropPlan(Result):
    """Components to drop, in order, by a score on some rows; and loss and accuracy without them on others.

    Attributes:
        candidates, scores: Components that could be dropped, in stream order, and their scores; ties are dropped in
            this order.
        plans: Components in order of dropping: by the score ("plan"), and by block influence ("block_influence").
        random_dropped: The components that each random plan drops.
        sizes: The numbers of dropped components at which plans are measured, up to `n_drop`.
        loss, correct: Sums over each measured row's predictions, of the unpruned model, then without the first
            components of each of `plans`, as many as each of `sizes` says, then without those of the random plans.
        count: Number of predictions in each row.
        score, provenance: The score asked for ("given" for one's own scores); the model, and the rows: their source,
            and how many scored and measured.
        ablation, means: "zero", or "mean" for heads replaced by their mean values; these, before the output projection,
            of all heads of each attention that loses some, by its label.
        measures: Direct measures of the scoring rows, by name: sums `[row, candidate]`, and the counts `[row]` that
            these are divided by.

    Nothing is retrained: training after pruning recovers some of the loss, and may then favor another plan.
    """

    candidates: tuple[Component, ...]
    scores: Float[np.ndarray, " candidate"]
    plans: dict[str, tuple[Component, ...]]
    random_dropped: tuple[tuple[Component, ...], ...]
    sizes: tuple[int, ...]
    loss: Float[np.ndarray, "row plan"]
    correct: Float[np.ndarray, "row plan"]
    count: Float[np.ndarray, " row"]
    score: str
    part: str
    ablation: str
    model: str
    provenance: dict[str, Any]
    measures: dict[str, Sums]
    means: dict[str, Float[np.ndarray, " value"]]

    @property
    def dropped(self) -> tuple[Component, ...]:
        """The components that this plan drops, in order."""
        return self.plans[OWN]

    def __repr__(self) -> str:
        after = self._columns[len(self.sizes)][2]
        loss, correct = (x[:, [0, *after]].sum(0) / self.count.sum() for x in (self.loss, self.correct))
        gone = ", ".join(c.label for c in self.dropped[:6])
        if len(self.dropped) > 6:
            gone += ", …"
        cost = f"loss {loss[0]:.3g} → {loss[1]:.3g} nats, accuracy {correct[0]:.0%} → {correct[1]:.0%}"
        return f"DropPlan({self.model}: {gone}, {len(self.dropped)} of {len(self.candidates)} by {self.score}; {cost})"

    figures: ClassVar = {
        "curve": Plot(
            "What dropping components costs",
            "Loss and accuracy by the number dropped, with intervals; of random plans the middle 95 %.",
            "shapes.lines",
            _curve_frame,
            {"columns": ("loss", "accuracy"), "x": "dropped", "by": "plan"},
        ),
        "bars": Plot(
            "Score of every candidate",
            "The score by which components are dropped.",
            "shapes.bars",
            "frame",
            {"columns": ("score",)},
        ),
    }

    def by_size(self) -> pd.DataFrame:
        """One row per plan and number of components dropped (`sizes`).

        `loss` is in nats per prediction and `accuracy` a share of predictions, with 95 % intervals over rows;
        `loss_growth` and `accuracy_lost` compare with the unpruned model on the same rows. For `random` plans the
        interval is the middle 95 % of the plans' means.
        """
        sums = {"loss": self.loss, "accuracy": self.correct}
        sums |= {"loss_growth": self.loss - self.loss[:, :1], "accuracy_lost": self.correct[:, :1] - self.correct}
        records = []
        for plan, dropped, columns in self._columns:
            record: dict[str, Any] = {"plan": plan, "dropped": dropped}
            for name, values in sums.items():
                means = values[:, columns].sum(0) / self.count.sum()
                if plan == RANDOM:
                    record[name] = Estimate(means.mean(), *percentile_interval(means), len(self.count))
                elif plan == "none" and name == "accuracy_lost":  # compared with itself: zero on any rows
                    record[name] = Estimate(0.0, 0.0, 0.0, len(self.count))
                else:
                    record[name] = self._estimate(name, values[:, columns[0]])
            records.append(record)
        return estimates_frame(records, dict(zip(sums, ("nats", "share", "nats", "share"), strict=True)))

    def compare(self) -> pd.DataFrame:
        """Compare this plan with others that drop as much, one row per other plan.

        `loss` and `accuracy`: this plan's minus the other's, on the same rows, with 95 % intervals over rows. Random
        plans enter by their mean; `win_rate` is the share of them with a higher loss.
        """
        (_, _, [own]), *others = (plan for plan in self._columns if plan[1] == len(self.dropped))
        lost, records = self.loss.sum(0), []
        for other, dropped, columns in others:
            loss, correct = (x[:, own] - x[:, columns].mean(1) for x in (self.loss, self.correct))
            record = {"other": other, "dropped": dropped, "loss": self._estimate("loss", loss)}
            record["accuracy"] = self._estimate("accuracy_lost", correct)
            records.append(record | {"win_rate": float((lost[columns] > lost[own]).mean())})
        return estimates_frame(records, {"loss": "nats", "accuracy": "share", "win_rate": "share of plans"})

    @property
    def _columns(self) -> list[tuple[str, int, list[int]]]:
        """Plan, number of components dropped, and columns of `loss`, of each row of `by_size()`."""
        rows = [("none", 0), *product(self.plans, self.sizes)]
        found = [(plan, size, [column]) for column, (plan, size) in enumerate(rows)]
        if self.random_dropped:
            found.append((RANDOM, len(self.dropped), list(range(len(rows), self.loss.shape[1]))))
        return found

    def _estimate(self, name: str, sums: Float[np.ndarray, " row"]) -> Estimate:
        """A share of predictions, a difference of shares, or a mean, over rows."""
        if name == "accuracy" and (self.count == 1).all():
            return estimate(sums, "share")
        kinds: dict[str, Kind] = {"accuracy": "share", "accuracy_lost": "difference"}
        return estimate(sums, kinds.get(name, "mean"), counts=self.count)

    def frame(self) -> pd.DataFrame:
        """One row per candidate, in stream order: its score, its place in the plan, and its direct measures.

        `order` counts from 1; missing where a component stays. The direct measures (`pruning.direct_measures`) are of
        the scoring rows, with 95 % intervals over rows: relative_norm, block_influence, and for a task contribution,
        diversity, net. A plan by "loss" thus has the cost of ablation beside what clean passes say of it.
        """
        place = {component: number for number, component in enumerate(self.dropped, 1)}
        columns: dict[str, Any] = component_columns(self.candidates) | {"score": self.scores}
        columns["order"] = pd.array([place.get(c) for c in self.candidates], dtype="Int64")
        for name, (sums, counts) in self.measures.items():
            columns[name] = estimate(sums, counts=counts[:, None])
        units = {name: UNITS[name] for name in self.measures} | {"score": UNITS.get(self.score, "")}
        return estimates_frame(columns, units)

    def apply(self, model: Any, n: int | None = None) -> Model:
        """Return a copy of the model without the first `n` components of the plan (None: all).

        Dropped layers are removed. Dropped heads and sublayers stay, with weights of their outputs that are zero; a
        head's mean is added to the bias of its output projection (`ablation="mean"`). The given model stays as it was.
        The copy is checked on a few tokens: its logits are those of the ablated pass.

        Raises InputError for another model than the plan's (by its fingerprint), and, with the reason, for one that
        cannot be changed so: with hooks, adapters, quantized weights or repeated layers, on several devices, where
        layers share weights or compute by their number, or where the config gives the kinds of layers by a rule that
        those that stay break (Jamba's period).

        >>> import layerdiv_tl as ld
        >>> plan = ld.depth.drop_plan("zoo/d4", ld.task("synthetic/k_hop", limit=16), 1, "contribution", random=1)
        >>> smaller = plan.apply("zoo/d4")
        >>> smaller.hf_model.config.num_hidden_layers
        3
        """
        count = len(self.dropped) if n is None else whole_number("n", n, 1, len(self.dropped))
        return smaller_model(as_model(model), self.provenance["weights"], self.dropped[:count], self.means)

    def save_model(self, folder: str | os.PathLike[str], model: Any, n: int | None = None) -> Path:
        """Write the plan's model without the first `n` components (None: all) as a Hugging Face checkpoint.

        `AutoModelForCausalLM.from_pretrained(folder)` loads it without code of this package: config, safetensors and
        tokenizer. Means of heads need biases, which the checkpoint's config switches on where its class has them. What
        was written is loaded again and compared, before it takes its place. The folder must be new or empty. Of mixed
        models, Transformers generates only from those that still have a layer with attention.

        Raises InputError as `apply`; for a folder that is not empty, and for a model whose checkpoint would not be the
        same model, as without biases for means (use `ablation="zero"`).
        """
        path = file_path("folder", folder)
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise InputError(f"folder={str(path)!r} is not empty: give a new folder, as nothing is overwritten.")
        return write_model(self.apply(model, n), path)
