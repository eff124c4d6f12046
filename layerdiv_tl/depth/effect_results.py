"""Results of `effects`: a table of all components, and what compensates for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.special import logsumexp

from .._checks import choice, shown
from ..components import Component, component_columns, own_label
from ..ensemble.intervals import ENDS, Kind, estimate, estimates_frame
from ..ensemble.losses import hits
from ..errors import InputError
from ..results import Plot, Result

# The answer without a component: without its own write, at the clean final norm ("direct"); and with the component
# ablated in the pass, at the clean final norm and at the recomputed one ("total").
SCENARIOS = ("direct", "total_frozen", "total")
EFFECTS = ("direct", "indirect", "total", "norm")
# What an effect is measured on, and its unit: each is above 0 where the component helps.
MEASURES = {"difference": "logits", "cost": "nats", "accuracy_lost": "share of answers"}


def _compensation_frame(effects: Effects, component: str | None = None, most: int = 16) -> pd.DataFrame:
    """Direct effect, the `most` largest changes of later components, the sum of the others, the norm's, the total."""
    name = component or effects.names[int(np.abs(effects.effect("indirect").mean(0)).argmax())]
    changes = effects.compensation(name).rename(columns={f"compensation{end}": f"effect{end}" for end in ENDS})
    row = effects.frame().iloc[effects._number(name)]
    ends = {side: {f"effect{end}": row[f"{side}{end}"] for end in ENDS} for side in ("direct", "total")}
    later, norm = changes.iloc[:-1], changes.iloc[-1:].assign(component="final norm", module="norm")
    kept = later[later["effect"].abs().rank(ascending=False, method="first") <= most]
    parts = [pd.DataFrame([ends["direct"] | {"component": f"{name}, direct", "module": "total"}]), kept]
    others = later.drop(index=kept.index)
    if len(others):
        rest = {"component": f"{len(others)} others", "module": "others", "effect": others["effect"].sum()}
        parts.append(pd.DataFrame([rest]))
    parts += [norm, pd.DataFrame([ends["total"] | {"component": f"{name}, total", "module": "total"}])]
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs = changes.attrs | {"units": {"effect": effects.measured_in}}
    return frame


@dataclass(frozen=True, eq=False, repr=False)
class Effects(Result):
    """Direct, total and indirect effects of components and groups; see `effects`.

    Attributes:
        components, groups: The ablations, in this order: components alone, then groups together, {name: components}.
        score: "logits", or "log_likelihood" (in nats) where options have several tokens. These have only total effects:
            `members` is empty, and `values`, `changes` and the gap are missing.
        members, values: All components whose contributions sum to the logits, in stream order, and these contributions
            in the clean pass.
        logits: The model's own, before any soft-cap; or log-likelihoods.
        without: The same under each ablation: without its own writes, at the clean final norm ("direct"); or ablated in
            the pass, at the clean norm ("total_frozen") or the model's own ("total").
        changes: Each member's contribution to the logit difference in the clean pass minus that under the ablation,
            both at the clean norm.
        labels: The index of the right option.
        gap: max |Σ changes + the norm's share − total| / max Σ|u_i|, over all rows, ablations and options, where the
            total is that of the model's own logits.
        prompt_ends: As in `Contributions`.
    """

    components: tuple[Component, ...]
    groups: dict[str, tuple[Component, ...]]
    members: tuple[Component, ...]
    values: Float[np.ndarray, "row member option"] | None
    logits: Float[np.ndarray, "row option"]
    without: Float[np.ndarray, "scenario row ablation option"]
    changes: Float[np.ndarray, "row ablation member"] | None
    labels: Int[np.ndarray, " row"]
    options: tuple[Any, ...]
    gap: float
    model: str
    unit: str
    ablation: str
    source: str
    soft_cap: float | None
    score: str
    prompt_ends: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each ablation: a component's label, or a group's name."""
        return (*(c.label for c in self.components), *self.groups)

    @property
    def effects(self) -> tuple[str, ...]:
        """The available effects: only the total one where options have several tokens."""
        return EFFECTS if self.score == "logits" else ("total",)

    @property
    def measured_in(self) -> str:
        """The unit of logit differences: logits, or nats of log-likelihoods."""
        return "logits" if self.score == "logits" else "nats"

    @property
    def logit_difference(self) -> Float[np.ndarray, " row"]:
        """The model's own logit difference: the right option's logit minus the mean of the others."""
        return self._measured(self.logits, "difference")

    @property
    def accuracy(self) -> float:
        """The model's own accuracy, a share of the rows."""
        return float(self._measured(self.logits, "accuracy_lost").mean())

    def effect(self, name: str = "total", on: str = "difference") -> Float[np.ndarray, "row ablation"]:
        """Return one effect of every ablation on every row: above 0 where the component helps.

        Args:
            name: "direct", "total", "indirect" (total − direct), or "norm": the part of the total that comes from the
                final norm's reaction. Options of several tokens have only the total effect.
            on: "difference": the logit difference; "cost": the growth of the loss in nats; or "accuracy_lost".

        Raises InputError for an unknown name, and for one that these options do not have.
        """
        choice("name", name, self.effects)
        choice("on", on, MEASURES)
        # An effect is the difference of two answers; an indirect one is the total effect minus a part of it.
        before, after = self.logits[:, None], self.without[-1]
        if name == "direct":
            after = self.without[SCENARIOS.index("direct")]
        elif name == "indirect":
            before = self.without[SCENARIOS.index("direct")]
        elif name == "norm":
            before = self.without[SCENARIOS.index("total_frozen")]
        return self._measured(before, on) - self._measured(after, on)

    lead: ClassVar = "total"
    figures: ClassVar = {
        "scatter": Plot(
            "Direct and total effect of each ablation",
            "A mark per component; off the dashed line, later components compensate or depend on it.",
            "shapes.marks",
            "frame",
            {"x": "direct", "y": "total", "diagonal": "total = direct"},
        ),
        "bars": Plot(
            "Total effect and cost of each ablation",
            "The total effect on the logit difference, and the growth of the loss.",
            "shapes.bars",
            "frame",
            {"columns": ("total", "cost")},
        ),
        "compensation": Plot(
            "What follows an ablation",
            "The direct effect of a `component`, the changes of later components, and their sum, the total effect.",
            "special.across",
            _compensation_frame,
            {"column": "effect", "rule": 1},
        ),
    }

    def _plots(self) -> Mapping[str, Plot]:
        """Options of several tokens have total effects alone."""
        return self.figures if self.score == "logits" else {"bars": self.figures["bars"]}

    def frame(self, full: bool = False) -> pd.DataFrame:
        """One row per component and group: mean effects, with paired 95 % intervals over rows; NaN below eight rows.

        `direct`, `indirect` and `total` are of the logit difference; `cost`, the growth of the loss in nats, and
        `accuracy_lost` are total effects. All are above 0 where the component helps. With `full` also `norm` (see
        `effect`), and every effect on the loss (`direct_cost`, …) and on accuracy
        (`direct_accuracy_lost`, …).
        """
        columns = component_columns([*self.components, *[Component("member")] * len(self.groups)])
        columns["component"] = list(self.names)
        for name in ("kind", "module"):
            columns[name][len(self.components) :] = ["group"] * len(self.groups)
        units: dict[str, str] = {}
        effects = self.effects if full else self.effects[:3]
        for name in effects:
            columns[name], units[name] = estimate(self.effect(name)), self.measured_in
        for on in ("cost", "accuracy_lost"):
            kind: Kind = "difference" if on == "accuracy_lost" else "mean"
            for name in effects if full else ("total",):
                column = on if name == "total" else f"{name}_{on}"
                columns[column], units[column] = estimate(self.effect(name, on), kind), MEASURES[on]
        return estimates_frame(columns, units, gap=self.gap)

    def compensation(self, component: str | Component) -> pd.DataFrame:
        """Show what compensates for one component or group: one row per later component, then the final norm.

        `compensation` is the change of the other's contribution to the logit difference caused by the component's
        presence, in logits, with its 95 % interval over rows. Where its sign is opposite to the component's direct
        effect, the other compensates for the component when it is ablated (self-repair). All rows sum to the indirect
        effect (`attrs["indirect"]`). Raises InputError for a component that was not ablated, and for options of several
        tokens.
        """
        number = self._number(component)
        later = self._reached(number)
        change = np.concatenate([self._changes[:, number, later], self.effect("norm")[:, [number]]], 1)
        # The last row is the final norm's.
        columns = component_columns([*(self.members[i] for i in later), Component("constant")])
        for column in ("component", "kind", "module"):
            columns[column][-1] = "norm"
        means = {name: float(self.effect(name)[:, number].mean()) for name in ("direct", "indirect", "total")}
        columns["compensation"] = estimate(change)
        return estimates_frame(columns, {"compensation": self.measured_in}, gap=self.gap, **means)

    def _measured(self, logits: Float[np.ndarray, "row *rest option"], on: str) -> Float[np.ndarray, "row *rest"]:
        """Measure answers, from logits before any soft-cap, so that more is better."""
        gold = np.broadcast_to(self.labels.reshape(-1, *[1] * (logits.ndim - 1)), (*logits.shape[:-1], 1))
        if on == "difference":
            right = np.take_along_axis(logits, gold, -1)[..., 0]
            return right - (logits.sum(-1) - right) / (logits.shape[-1] - 1)
        if self.soft_cap is not None:
            logits = self.soft_cap * np.tanh(logits / self.soft_cap)
        if on == "accuracy_lost":
            return hits(logits, gold[..., 0])
        return np.asarray(np.take_along_axis(logits, gold, -1)[..., 0] - logsumexp(logits, -1))

    def _number(self, component: str | Component) -> int:
        """The place of an ablation by its name, or by TransformerLens' label."""
        name = str(component)
        name = name if name in self.names else own_label(name)
        if name not in self.names:
            raise InputError(f"{shown(name)} was not ablated here: the first of {len(self.names)} is {self.names[0]}.")
        return self.names.index(name)

    def _reached(self, number: int) -> list[int]:
        """List the other members that an ablation can change: later sublayers', and its own behind a post-norm."""
        sizes = np.abs(self._changes[:, number]).max(0)
        own = [*((c,) for c in self.components), *self.groups.values()][number]
        first, siblings = min(self.members.index(c) for c in own), {c.sublayer for c in own}
        reached = []
        for i, c in enumerate(self.members):
            is_later = i > first and c.sublayer not in siblings
            changes = sizes[i] > 1e-9 * sizes.max()
            if c.kind != "constant" and c not in own and (is_later or changes):
                reached.append(i)
        return reached

    @property
    def _changes(self) -> Float[np.ndarray, "row ablation member"]:
        if self.changes is None:
            raise InputError("options of several tokens have total effects alone: compensation needs single tokens.")
        return self.changes
