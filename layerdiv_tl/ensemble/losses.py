"""Bias and diversity of an ensemble, for each loss: one class per loss, whose methods are pure functions of arrays.

    u : [example, member, option]   the members' predictions in logits; ū is their mean over the |L| members
    t : [example, option]           the target: logits for the squared error, else probabilities

| loss=           | class          | equation of arXiv 2505.24009         | in        |
|-----------------|----------------|--------------------------------------|-----------|
| "squared"       | `SquaredError` | Theorem 1, Eq. 7-10                  | logits²   |
| "paper"         | `PaperForm`    | Eq. 14, the form of the paper's tables | probability² and logits² |
| "cross_entropy" | `CrossEntropy` | not in the paper                     | nats      |

The squared error has three gauges. For each x among t−ū, t−u_i, ū−u_i: mean_k x² = (mean_k x)² + var_k x, so Theorem 1
holds twice: in the *shift* common to all options, which a softmax cannot see, and in the *centered* rest. *Raw* is
their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax, softmax

Members = Float[np.ndarray, "example member option"]
# Members, or one prediction for all of them: the target, or the ensemble's.
Predictions = Float[np.ndarray, "example #member option"]
Target = Float[np.ndarray, "example option"]
OfEnsemble = Float[np.ndarray, " example"]
PerMember = Float[np.ndarray, "example member"]
PerGroup = Float[np.ndarray, "example group"]
Group = Int[np.ndarray, " member"]
Gauge = Literal["centered", "raw", "shift"]
# By name: the ensemble's `[example]`, or each member's `[example, member]`, undivided by |L|.
Terms = dict[str, np.ndarray]

# Prefixes of the columns that are in the loss's unit.
_MEASURED = ("bias", "diversity", "net", "loss", "zero_bias", "within", "between", "lowest", "highest", "entropy")
# Logits (or nats) that differ by less, relative to the right option's where that is above 1, count as ties.
TIE = 1e-9


class Loss:
    """A loss of an ensemble, in float64: loss = cost of the ensemble, bias = cost of each member, diversity = each
    member's divergence from the ensemble. The base class compares logits by their mean square.

    Attributes:
        name, unit, is_exact: Its name in `decompose(loss=…)`, the unit of loss and bias, and whether loss = bias −
            diversity holds.
        has_gauges: Whether its terms differ between gauges.
        tables: Which of `nested`, `tradeoff` and `bounds` it has.
        diversity_unit: The unit of the diversity, if it is not `unit`.
        compares_probabilities: The target is a distribution over options, not logits.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    is_exact: ClassVar[bool] = True
    has_gauges: ClassVar[bool] = False
    compares_probabilities: ClassVar[bool] = True
    tables: ClassVar[tuple[str, ...]] = ()
    diversity_unit: ClassVar[str] = ""

    def predict(self, u: Predictions, count: int) -> Predictions:
        """Turn logits of one of `count` members into what is compared with the target."""
        return u

    def cost(self, t: Predictions, x: Predictions) -> Float[np.ndarray, "example #member"]:
        """Compute the cost of predictions x for targets t, `[example, 1, option]`."""
        return mean_square(t - x)

    def divergence(self, center: Predictions, x: Predictions) -> Float[np.ndarray, "example #member"]:
        """Compute the distance of predictions x from a center."""
        return mean_square(center - x)

    def terms(self, u: Members, t: Target) -> Terms:
        """Compute `loss`, `bias`, `diversity`, and `zero_bias`, the bias of u = 0."""
        count, target = u.shape[1], t[:, None]
        x, ensemble = self.predict(u, count), self.predict(u.mean(1, keepdims=True), count)
        return {
            "loss": self.cost(target, ensemble)[:, 0],
            "bias": self.cost(target, x),
            "diversity": self.divergence(ensemble, x),
            "zero_bias": self.cost(target, self.predict(np.zeros_like(u[:, :1]), count))[:, 0],
        }

    def extras(self, u: Members, t: Target, terms: Terms) -> Terms:
        """Return the terms that only this loss has."""
        return {}

    def nested(self, u: Members, t: Target, group: Group) -> tuple[OfEnsemble, dict[str, PerGroup]]:
        """Return (loss of the coarser ensemble; bias, within, between): loss = mean_g (bias − within − between)_g.

        The leaves of a group sum to its member a_g of the coarser ensemble, and n_g u_h is what leaf h alone predicts
        for a_g. For the cross-entropy q_h = softmax(L n_g u_h), q_g = softmax(L a_g), p = softmax(Σu), with L groups.
        """
        counts, sums = np.bincount(group).astype(np.float64), sum_by_group(u, group)
        leaves, groups = self.predict(counts[group][:, None] * u, len(counts)), self.predict(sums, len(counts))
        ensemble = self.predict(sums.mean(1, keepdims=True), len(counts))
        return self.cost(t[:, None], ensemble)[:, 0], {
            "bias": mean_by_group(self.cost(t[:, None], leaves), group),
            "within": mean_by_group(self.divergence(groups[:, group], leaves), group),
            "between": self.divergence(ensemble, groups),
        }

    def unit_of(self, column: str) -> str | None:
        """Return the unit of a table's column, or None."""
        if "_share" in column or column.startswith(("accuracy", "auc", "chance")):
            return "share"
        units = {"cosine": "cosine", "distance": "logits²", "logit_difference": "logits"}
        units["mismatch"] = "probability² and logits²"
        units |= dict.fromkeys(_MEASURED, self.unit) | {"diversity": self.diversity_unit or self.unit}
        return next((unit for start, unit in units.items() if column.startswith(start)), None)


class SquaredError(Loss):
    """Theorem 1: mean_k (t−ū)² = mean_i mean_k (t−u_i)² − mean_i mean_k (ū−u_i)² (Eq. 7-8)."""

    name, unit = "squared", "logits²"
    compares_probabilities, has_gauges = False, True
    tables = ("nested", "tradeoff", "bounds")

    def extras(self, u: Members, t: Target, terms: Terms) -> Terms:
        """diversity_logit = |L|² × diversity; coherence = |Σu|² / Σ|u|², NaN where all members are zero."""
        coherence = ratio(mean_square(u.sum(1, keepdims=True))[:, 0], mean_square(u).sum(1))
        return {"diversity_logit": u.shape[1] ** 2 * terms["diversity"], "coherence": coherence}


class PaperForm(Loss):
    """Eq. 14: loss and bias between probabilities, softmax(ū) and softmax(u_i), diversity between logits.

    The units differ, so loss = bias − diversity does not hold; `mismatch` is the difference. softmax(ū) is nearly
    uniform, so compare loss and bias with `zero_bias`, the uniform predictor's loss (0.25, 0.2222, 0.1875 for 2, 3, 4
    options). The paper's tables show loss and bias × 100.
    """

    name, unit = "paper", "probability²"
    is_exact = False
    diversity_unit = "logits²"

    def predict(self, u: Predictions, count: int) -> Predictions:
        """Return probabilities."""
        return softmax(u, 2)

    def terms(self, u: Members, t: Target) -> Terms:
        """Compute loss and biases in probability², diversities in logits² as in Theorem 1."""
        return super().terms(u, t) | {"diversity": mean_square(u.mean(1, keepdims=True) - u)}

    def extras(self, u: Members, t: Target, terms: Terms) -> Terms:
        """Compute |L|² × diversity, and mismatch = loss − (bias − diversity)."""
        diversity = terms["diversity"].mean(1)
        mismatch = terms["loss"] - (terms["bias"].mean(1) - diversity)
        return {"diversity_logit": u.shape[1] ** 2 * diversity, "mismatch": mismatch}


class CrossEntropy(Loss):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i), p = softmax(|L|ū), q_i = softmax(|L|u_i); in nats.

    It holds because log p and mean_i log q_i differ by a number that is the same for all options. p is the model's own
    distribution over the options, before any soft-cap. Bias and diversity depend on how finely the model is decomposed.
    `net_linear` does not, and heads add up to their attention: loss = entropy + Σ net_linear.
    """

    name, unit = "cross_entropy", "nats"
    tables = ("nested",)

    def predict(self, u: Predictions, count: int) -> Predictions:
        """Return log probabilities."""
        return log_softmax(count * u, 2)

    def cost(self, t: Predictions, x: Predictions) -> Float[np.ndarray, "example #member"]:
        """Compute the cross-entropy."""
        return -(t * x).sum(2)

    def divergence(self, center: Predictions, x: Predictions) -> Float[np.ndarray, "example #member"]:
        """Compute KL(center ‖ x)."""
        return (np.exp(center) * (center - x)).sum(2)

    def extras(self, u: Members, t: Target, terms: Terms) -> Terms:
        """entropy = H(p); net_linear = E_p[u_i] − E_t[u_i]: linear in u_i and blind to shifts."""
        log_p = self.predict(u.mean(1, keepdims=True), u.shape[1])
        p = np.exp(log_p)
        return {"entropy": self.cost(p, log_p)[:, 0], "net_linear": ((p - t[:, None]) * u).sum(2)}


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (SquaredError(), PaperForm(), CrossEntropy())}


def in_gauge(u: Members, t: Target, gauge: Gauge) -> tuple[Members, Target]:
    """Return members and target without their mean over options (centered), or as it alone (shift: one option)."""
    if gauge == "raw":
        return u, t
    shift, of_target = u.mean(2, keepdims=True), t.mean(1, keepdims=True)
    return (shift, of_target) if gauge == "shift" else (u - shift, t - of_target)


def measure(loss: Loss, u: Members, t: Target, gauge: Gauge) -> Terms:
    """Compute the terms of raw members and target in a gauge; a loss without gauges takes the logits as they are."""
    u, t = in_gauge(u, t, gauge if loss.has_gauges else "raw")
    terms = loss.terms(u, t)
    if loss.is_exact:
        terms["net"] = terms["bias"] - terms["diversity"]
    return terms | loss.extras(u, t, terms)


def hits(scores: Any, gold: Any) -> Any:
    """Return 1 where option `gold` `[*#rest]` has the largest of the scores `[*rest, option]`, 1/n where n options tie
    for first place, else 0; arrays of numpy, or tensors.

    >>> hits(np.array([[2.0, 1.0], [0.0, 0.0], [1.0, 2.0]]), np.array([0, 0, 0])).tolist()
    [1.0, 0.5, 0.0]
    """
    take = np.take_along_axis if isinstance(scores, np.ndarray) else type(scores).take_along_dim
    right = take(scores, gold[..., None], -1)
    ahead, tie = scores - right, TIE * abs(right).clip(min=1)
    return ~(ahead > tie).any(-1) / (abs(ahead) <= tie).sum(-1)


def relative_gap(loss: float, bias: float, *diversities: float) -> float:
    """Compute |loss − (bias − Σ diversities)| relative to the largest of these."""
    scale = max(map(abs, (loss, bias, *diversities, np.finfo(float).tiny)))
    return abs(loss - (bias - sum(diversities))) / scale


def mean_square(x: Members) -> PerMember:
    """Compute mean_k x²; for few options several times faster than numpy's mean over a short last axis."""
    return np.einsum("nmk,nmk->nm", x, x) / x.shape[2]


def ratio(part: Any, total: Any) -> np.ndarray:
    """Compute part / total, broadcast; NaN where the total is not above 0."""
    return np.divide(part, total, out=np.full(np.broadcast(part, total).shape, np.nan), where=total > 0)


def group_numbers(names: Sequence[object]) -> tuple[list[Any], Group]:
    """Return (distinct names in order, the number of each member's)."""
    number: dict[object, int] = {}
    group = [number.setdefault(name, len(number)) for name in names]
    return list(number), np.array(group, dtype=np.int64)


def sum_by_group(x: Members | PerMember, group: Group) -> np.ndarray:
    """Sum to `[example, group, *rest]`; there may be tens of thousands of groups (every neuron's repeats)."""
    order = np.argsort(group, kind="stable")
    return np.add.reduceat(x[:, order], np.searchsorted(group[order], np.arange(group.max() + 1)), axis=1)


def mean_by_group(x: PerMember, group: Group) -> PerGroup:
    """Average over the members of each group."""
    return sum_by_group(x, group) / np.bincount(group).astype(np.float64)
