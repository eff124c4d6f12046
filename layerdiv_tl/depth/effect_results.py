"""Effects as a result: the table of all components, who makes up for one, who stands in for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import choice
from ..components import Component, component_columns
from ..ensemble.hits import hits
from ..ensemble.intervals import interval_note, mean_interval, paired_interval
from ..ensemble.tables import shares
from ..errors import InputError
from ..results import Result
from .effect_passes import SCENARIOS
from .token_stats import labeled_frame, with_ends

# By the suffix of a column: what an effect is on, and its unit.
MEASURES = {"": "logits", "_loss": "nats", "_accuracy": "share of answers"}
EFFECTS = ("direct", "direct_recomputed", "total", "indirect", "norm")


@dataclass(frozen=True, eq=False, repr=False)
class Effects(Result):
    """Direct, total and indirect effects of components and groups; see `effects`.

    Attributes:
        components, groups: What was ablated alone, and together: {name: components}; the ablations, in this order.
        members: All components whose contributions sum to the logits, in stream order.
        values: float64 `[row, member, option]`: their contributions in the clean pass: to the logits, or, of options of
            several tokens, to the log-likelihoods (`Contributions.log_likelihood_parts`).
        score, logits: "logits": the model's own, before any soft-cap, `[row, option]`; or "log_likelihood", in nats,
            which logit differences are then differences of.
        without: float64 `[scenario, row, ablation, option]`: logits before any soft-cap, without the ablation's own
            writes, the final norm frozen ("direct") or recomputed ("direct_recomputed"), and with it ablated in the
            pass, the norm frozen ("total_frozen") or the model's own ("total").
        changes: `[row, ablation, member]`: the logit difference that each member writes in the clean pass, less what it
            writes without the ablation's, both at the clean pass's norm; None for more than 50 million numbers.
        labels: `[row]`, the right option.
        gap: max |Σ changes + the norm's share − total| / max Σ|u_i|, over all rows, ablations and options, the total
            being that of the model's own logits. Of options
            of several tokens it is that of what is linear in the logits.
    """

    components: tuple[Component, ...]
    groups: dict[str, tuple[Component, ...]]
    members: tuple[Component, ...]
    values: Float[np.ndarray, "row member option"]
    logits: Float[np.ndarray, "row option"]
    without: Float[np.ndarray, "scenario row ablation option"]
    changes: Float[np.ndarray, "row ablation member"] | None
    labels: Int[np.ndarray, " row"]
    options: tuple
    gap: float
    model: str
    unit: str
    ablation: str
    positions: str
    source: str
    soft_cap: float | None
    score: str

    @property
    def names(self) -> tuple[str, ...]:
        """What each ablation is called: a label, or a group's name."""
        return (*(c.label for c in self.components), *self.groups)

    @property
    def measured_in(self) -> str:
        """What logit differences are measured in: logits, or nats of log-likelihoods."""
        return "logits" if self.score == "logits" else "nats"

    @property
    def logit_difference(self) -> Float[np.ndarray, " row"]:
        """Of the model as it is: the right option's logit less the mean of the others'."""
        return self._measured(self.logits, "")

    @property
    def accuracy(self) -> float:
        """Of the model as it is."""
        return float(self._measured(self.logits, "_accuracy").mean())

    def effect(self, name: str = "total", on: str = "") -> Float[np.ndarray, "row ablation"]:
        """One effect of every ablation on every row.

        Args:
            name: "direct", "direct_recomputed", "total", "indirect" (total − direct), or "norm": of the total, what the
                final norm's reaction adds.
            on: "" for the logit difference, "_loss" or "_accuracy".
        """
        choice("name", name, EFFECTS)
        choice("on", on, MEASURES)
        # Whose answer, less whose: the total effect less a part of it.
        other = {"indirect": "direct", "norm": "total_frozen"}.get(name)
        clean = self.logits[:, None] if other is None else self.without[SCENARIOS.index(other)]
        without = self.without[SCENARIOS.index(name if other is None else "total")]
        return self._measured(clean, on) - self._measured(without, on)

    def __repr__(self) -> str:
        total, direct = (self.effect(name).mean(0) for name in ("total", "direct"))
        most = int(np.abs(total).argmax())
        largest = f"{self.names[most]} has the largest total effect, {total[most]:.3g} {self.measured_in}"
        what = f"{len(self.names)} ablated ({self.ablation}), {len(self.labels)} rows"
        return f"Effects({self.model}: {what}; {largest}, direct {direct[most]:.3g})"

    def frame(self) -> pd.DataFrame:
        """One row per component and group: mean effects over rows, with 95 % intervals over rows, paired.

        Columns are those of `effect`, each for the logit difference, with `_loss` and with `_accuracy`.
        """
        columns = self._named()
        units = {}
        for on, unit in (MEASURES | {"": self.measured_in}).items():
            for name in EFFECTS:
                effect = self.effect(name, on)
                ends = paired_interval(effect) if on == "_accuracy" else mean_interval(effect)
                columns |= with_ends(name + on, effect.mean(0), *ends)
                units[name + on] = unit
        frame = labeled_frame(columns, units, interval_note(len(self.labels)))
        frame.attrs["gap"] = self.gap
        return frame

    def repair(self, component: str | Component) -> pd.DataFrame:
        """Who makes up for one component or group: one row per later component, and last the final norm.

        `repair` is what the component's presence changes of the other's contribution, in logits of the difference, with
        its 95 % interval over rows: where it has the opposite sign of the component's direct effect, the other makes up
        for it. All rows sum to the indirect effect (`attrs["indirect"]`). Raises InputError for what was not ablated,
        and where there were too many rows to keep changes.
        """
        number = self._number(component)
        later = self._reached(number)
        repair = np.concatenate([self._changes[:, number, later], self.effect("norm")[:, [number]]], 1)
        named = component_columns([self.members[i] for i in later])
        norm = {"component": "norm", "kind": "norm", "layer": pd.NA, "index": pd.NA, "repeat": pd.NA}
        frame = pd.concat([pd.DataFrame(named), pd.DataFrame([norm]).astype({k: "Int64" for k in _NUMBERS})])
        frame = frame.reset_index(drop=True).assign(**with_ends("repair", repair.mean(0), *mean_interval(repair)))
        frame = labeled_frame(frame, {"repair": self.measured_in}, interval_note(len(self.labels)))
        frame.attrs |= {name: float(self.effect(name)[:, number].mean()) for name in ("direct", "indirect", "total")}
        frame.attrs["gap"] = self.gap
        return frame

    def stand_ins(self) -> pd.DataFrame:
        """Who stands in for whom: one row per ablated component and later component.

        `repair` is as in `repair()`; `share` is how much of what the ablated one writes directly the later one makes up
        for, −Σ repair · direct / Σ direct² over rows, below 0 where it adds to it; NaN where the interval of the direct
        effect holds 0. Raises InputError as `repair`.
        """
        ablated, later = self._pairs(range(len(self.components)))
        repair, direct = self._changes[:, ablated, later], self.effect("direct")[:, ablated]
        columns: dict[str, Any] = {"ablated": [self.components[i].label for i in ablated]}
        columns |= component_columns(self.members, later)
        columns |= with_ends("repair", repair.mean(0), *mean_interval(repair))
        columns |= with_ends("share", *shares(-repair * direct, direct**2, signed=direct))
        units = {"repair": self.measured_in, "share": "share of the direct effect"}
        return labeled_frame(columns, units, interval_note(len(self.labels)))

    def _pairs(self, ablated: Iterable[int]) -> Int[np.ndarray, "2 pair"]:
        """(an ablated component's number, that of a member which it can change) of every such pair."""
        return np.array([(i, j) for i in ablated for j in self._reached(i)], dtype=int).reshape(-1, 2).T

    def _measured(self, logits: Float[np.ndarray, "row *rest option"], on: str) -> Float[np.ndarray, "row *rest"]:
        """The logit difference, loss or correctness of logits before any soft-cap."""
        k = logits.shape[-1]
        gold = np.broadcast_to(self.labels.reshape(-1, *[1] * (logits.ndim - 1)), (*logits.shape[:-1], 1))
        if not on:
            right = np.take_along_axis(logits, gold, -1)[..., 0]
            return right - (logits.sum(-1) - right) / (k - 1)
        if self.soft_cap is not None:
            logits = self.soft_cap * np.tanh(logits / self.soft_cap)
        if on == "_accuracy":
            return hits(logits, gold[..., 0])
        largest, right = logits.max(-1, keepdims=True), np.take_along_axis(logits, gold, -1)
        return (np.log(np.exp(logits - largest).sum(-1, keepdims=True)) + largest - right)[..., 0]

    def _named(self) -> dict[str, Any]:
        columns = component_columns([*self.components, *[Component("member")] * len(self.groups)])
        columns["component"], kinds = list(self.names), [c.kind for c in self.components]
        return columns | {"kind": [*kinds, *["group"] * len(self.groups)]}

    def _number(self, component: Any) -> int:
        name = str(component)
        if name not in self.names:
            some = ", ".join(self.names[:6])
            raise InputError(f"{name!r:.60} was not ablated here: choose among {some}{', …' * (len(self.names) > 6)}.")
        return self.names.index(name)

    def _reached(self, number: int) -> list[int]:
        """The other members that an ablation can change: those of later sublayers, and through a post-norm its own."""
        together = [(c,) for c in self.components] + list(self.groups.values())
        own = together[number]
        first = min(self.members.index(c) for c in own)
        siblings = {c.sublayer for c in own}
        sizes = np.abs(self._changes[:, number]).max(0)
        changed = sizes > 1e-9 * sizes.max()
        return [
            i
            for i, c in enumerate(self.members)
            if c not in own and c.kind != "constant" and (changed[i] or (i > first and c.sublayer not in siblings))
        ]

    @property
    def _changes(self) -> Float[np.ndarray, "row ablation member"]:
        if self.changes is None:
            raise InputError("who makes up for whom was not kept for so many rows: give fewer, or fewer components.")
        return self.changes


_NUMBERS = ("layer", "index", "repeat")
