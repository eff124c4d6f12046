"""Component re-weighting: scale components from a few labeled rows (Chang et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.special import log_softmax

from .._checks import listed, number, whole_number
from ..components import Component, component_columns
from ..errors import InputError
from ..results import Result
from .intervals import estimate, estimates_frame, interval_note
from .losses import Members, OfEnsemble, Target, hits
from .validation import LARGEST, Ensemble, EnsembleLike, Labels, as_ensemble, gold_options

# Distance to the minimum, in nats, at which the search may stop, and the largest number of restarts.
ENOUGH = 1e-7
RESTARTS = 20


@dataclass(frozen=True, eq=False)
class Reweighting(Result):
    """Weights of components, fitted on some rows and evaluated on the others. Made by `reweight`.

    Attributes:
        weights, components: `[member]`, and the members' names: the logits become Σ_i w_i u_i. 1 keeps a component, 0
            zero-ablates it.
        before, after: Logits of all examples `[example, option]`, original and re-weighted; before a soft-cap.
        gold, is_train: The gold option's index `[example]`, and whether the example was used for training.
        l1, prior_weight, max_weight, seed: As given.
        gap: The objective is at most this far above its minimum, in nats: a proof, from convexity.
        identity_gap, soft_cap: As in `Contributions`; None for an array.
    """

    weights: Float[np.ndarray, " member"]
    components: tuple[Component, ...]
    before: Float[np.ndarray, "example option"]
    after: Float[np.ndarray, "example option"]
    gold: Int[np.ndarray, " example"]
    is_train: Bool[np.ndarray, " example"]
    l1: float
    prior_weight: float
    max_weight: float
    seed: int
    gap: float
    identity_gap: float | None
    soft_cap: float | None

    @property
    def accuracy(self) -> float:
        """Held-out accuracy after re-weighting."""
        return float(hits(self.after, self.gold)[~self.is_train].mean())

    @property
    def cross_entropy(self) -> float:
        """Held-out cross-entropy after re-weighting, in nats."""
        return float(_nats(self.after, self.gold)[~self.is_train].mean())

    figures: ClassVar = {"weights": "pruning.weight_bars"}

    def plot(self, kind: Literal["weights"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per predictor on held-out rows only: accuracy, cross-entropy in nats, and gains over the model.

        Predictors: `model` (all weights 1), `reweighted`, `majority` (the training rows' label frequencies, add-one
        smoothed) and `uniform`. An accuracy's interval is Wilson's; a gain's is paired (positive is better);
        cross-entropies have none for fewer than 8 rows. The intervals hold for these training rows, so vary `seed`.
        Options that tie for first place share the hit.
        """

        held_out = ~self.is_train
        counts = np.bincount(self.gold[self.is_train], minlength=self.before.shape[1]) + 1
        majority = np.broadcast_to(np.log(counts / counts.sum()), self.before.shape)
        predictors = {"model": self.before, "reweighted": self.after, "majority": majority}
        predictors["uniform"] = np.zeros_like(self.before)
        correct, nats = ({name: f(x, self.gold)[held_out] for name, x in predictors.items()} for f in (hits, _nats))
        rows = []
        for name in predictors:
            gain = estimate(correct[name] - correct["model"], "difference")
            if name == "model":  # compared with itself: zero on any rows
                gain = gain._replace(low=0.0, high=0.0)
            row = {"predictor": name, "rows": int(held_out.sum()), "accuracy": estimate(correct[name], "share")}
            row |= {"accuracy_gain": gain, "cross_entropy": estimate(nats[name])}
            rows.append(row | {"cross_entropy_gain": estimate(nats["model"] - nats[name])})
        frame = estimates_frame(rows)
        columns = frame.columns[2:]
        frame = frame.astype(dict.fromkeys(columns, float))
        units = {column: "nats" if column.startswith("cross_entropy") else "share" for column in columns}
        names = ("l1", "prior_weight", "max_weight", "seed", "gap", "identity_gap", "soft_cap")
        frame.attrs |= {"units": units} | {name: getattr(self, name) for name in names}
        frame.attrs |= {"is_train": int(self.is_train.sum()), "intervals": interval_note(int(held_out.sum()))}
        return frame

    def by_component(self) -> pd.DataFrame:
        """One row per component: its weight, and whether it was left alone (`kept`, 1) or zero-ablated (`silenced`)."""
        frame = pd.DataFrame(component_columns(self.components) | {"weight": self.weights})
        frame["kept"], frame["silenced"] = self.weights == 1, self.weights == 0
        return frame

    def apply(self, ensemble: EnsembleLike) -> Float[np.ndarray, "example option"]:
        """Re-weight other rows' logits to `[example, option]`: contributions of the same components, or an array.

        Raises InputError for other components.
        """
        members = as_ensemble(ensemble)
        others = isinstance(ensemble, Ensemble) and tuple(members.components) != self.components
        count = members.values.shape[1]
        if others or count != len(self.weights):
            own = f"{len(self.weights)} components from {self.components[0]} to {self.components[-1]}"
            raise InputError(f"there are weights for {own}, but these are {count}: decompose the model alike.")
        return np.einsum("nmk,m->nk", members.values, self.weights)

    def __repr__(self) -> str:
        before = float(hits(self.before, self.gold)[~self.is_train].mean())
        return (
            f"Reweighting({len(self.weights)} components from {self.is_train.sum()} rows: held-out accuracy "
            f"{before:.3f} -> {self.accuracy:.3f} on {(~self.is_train).sum()}; gap {self.gap:.0e} nats)"
        )


def reweight(
    ensemble: EnsembleLike,
    labels: Labels,
    *,
    train: int | float | Sequence[int] | np.ndarray = 24,
    l1: float = 0.01,
    prior_weight: float = 1.0,
    max_weight: float = 1.0,
    components: Sequence[str | Component] | None = None,
    seed: int = 0,
) -> Reweighting:
    """Fit weights 0 ≤ w_i ≤ `max_weight` that minimize mean CE(softmax(Σ_i w_i u_i)) + l1 · Σ_i |w_i − prior_weight|.

    Args:
        ensemble, labels, components: As in `decompose`.
        train: The training rows: their number (24 as in the paper), a share between 0 and 1 (both drawn at random by
            `seed`), or the rows' indices. All other rows are held out.
        l1: Nats per unit of weight: a component moves only where the training rows save more than this.
        prior_weight, max_weight: The values that weights shrink to and are clipped at. By default a component is left
            alone (w = 1) unless the rows contradict it, and can only be reduced; large l1 returns the model itself.
            Chang et al.'s code shrinks to 0 (`prior_weight=0.0`), so that large l1 zero-ablates everything, and stops
            early; `max_weight=inf` lets weights grow.

    Convex, and solved to its minimum; `gap` bounds what is left. Raises InputError for what `decompose`
    refuses, rows that do not exist, no row to train on or none held out, numbers outside their range, and l1 = 0
    without a finite `max_weight`, where separable rows have no minimum.

    >>> u = np.zeros((40, 2, 2))
    >>> labels = np.arange(40) % 2
    >>> u[np.arange(40), 0, labels] = 1.0     # the first member is right,
    >>> u[:, 1, 0] = 3.0                      # the second prefers option 0 always, and by more
    >>> found = reweight(u, labels, train=20)
    >>> found.weights.round(2).tolist(), found.accuracy
    ([1.0, 0.0], 1.0)
    """
    members = as_ensemble(ensemble, components)
    u = members.values
    if labels is None:
        raise InputError("re-weighting learns from labels: give a gold option for each example.")
    gold = gold_options(labels, u.shape, members.options)
    l1 = number("l1", l1, least=0, below=LARGEST)
    if not (isinstance(max_weight, float | np.floating) and max_weight == np.inf):
        max_weight = number("max_weight", max_weight, above=0, below=LARGEST)
    prior_weight = number("prior_weight", prior_weight, least=0, most=max_weight)
    if l1 == 0 and not np.isfinite(max_weight):
        raise InputError("with l1=0 and no largest weight the minimum may not exist: give l1 or max_weight.")
    is_train = np.zeros(len(u), dtype=bool)
    is_train[_rows(train, len(u), seed)] = True
    if is_train.all():
        raise InputError(f"all {len(u)} examples are trained on, so none is left to judge by: train on fewer.")
    weights, gap = _solve(u[is_train], gold[is_train], l1, prior_weight, max_weight)
    logits = u.sum(1), np.einsum("nmk,m->nk", u, weights)
    given: tuple[Any, ...] = (l1, prior_weight, max_weight, int(seed), gap, members.identity_gap, members.soft_cap)
    return Reweighting(weights, members.components, *logits, gold, is_train, *given)


def _solve(
    u: Members, gold: Int[np.ndarray, " example"], l1: float, prior_weight: float, max_weight: float
) -> tuple[Float[np.ndarray, " member"], float]:
    """Return (weights, a bound on the objective's distance from its minimum, in nats).

    w = prior + up − down, 0 ≤ up ≤ max − prior, 0 ≤ down ≤ prior, turns l1 · |w − prior| into the linear l1 · (up +
    down). The remaining problem is smooth with bounds, for scipy's L-BFGS-B.
    """
    # Centered over options: a softmax ignores shifts, and shifts are most of a contribution.
    centered = (u - u.mean(2, keepdims=True)).transpose(0, 2, 1)
    count, options, members = centered.shape
    target, size = np.eye(options)[gold], np.sqrt((centered**2).mean((0, 1)))
    reach = np.stack([np.full(members, max_weight - prior_weight), np.full(members, prior_weight)]) * size
    side, member = np.nonzero(reach > 0)
    # One column per variable, in units of its member's own spread, because these differ by orders of magnitude.
    sign, start, price = np.where(side == 0, 1.0, -1.0), prior_weight * centered.sum(2), l1 / size[member]
    columns = centered[:, :, member] / size[member] * sign
    top = reach[side, member]

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = log_softmax(start + columns @ z, 1)
        gradient = np.einsum("nk,nkv->v", np.exp(log_p) - target, columns, optimize=True) / count + price
        return -float((target * log_p).sum()) / count + float(price @ z), gradient

    def excess(z: np.ndarray) -> float:
        # f(z*) ≥ f(z) + gradient · (z* − z): no variable saves more than its linear part does at a bound. Without a
        # max_weight z* is near all the same: its price alone is at most the value here.
        value, gradient = objective(z)
        far = np.where(np.isfinite(top), top, value / np.maximum(price, np.finfo(float).tiny))
        return float(np.maximum(gradient * z, gradient * (z - far)).clip(0).sum())

    z, bounds = np.zeros_like(top), [(0.0, end) for end in top]
    limits = {"ftol": 1e-15, "gtol": 1e-12, "maxcor": 40, "maxiter": 5000, "maxfun": 20000}
    for _ in range(RESTARTS):  # a restart forgets distant curvature, which helps ill-conditioned members
        z = minimize(objective, z, jac=True, method="L-BFGS-B", bounds=bounds, options=limits).x
        if excess(z) < ENOUGH:
            break
    w = np.full(members, float(prior_weight))
    np.add.at(w, member, sign * z / size[member])
    return np.clip(w, 0, max_weight), excess(z)


def _rows(train: Any, count: int, seed: int) -> Int[np.ndarray, " row"]:
    """Return the training rows."""
    whole_number("seed", seed, 0)
    if isinstance(train, bool | np.bool_) or not isinstance(train, Real):
        what = "a number of rows, a share between 0 and 1, or a list of row indices"
        given = [whole_number("train", row, 0, count - 1) for row in listed("train", train, what)]
        if not given:
            raise InputError(f"train is empty: it must be {what}.")
        return np.array(given)
    if isinstance(train, Integral):
        wanted = whole_number("train", train, 1, count - 1)
    else:
        wanted = max(1, round(number("train", train, above=0, below=1) * count))
    if wanted >= count:
        raise InputError(f"train={train} of {count} examples leaves none to judge by.")
    return np.random.default_rng(seed).choice(count, wanted, replace=False)


def _nats(logits: Target, gold: Int[np.ndarray, " example"]) -> OfEnsemble:
    """−log p of the gold option, in nats."""
    return -log_softmax(logits, 1)[np.arange(len(gold)), gold]
