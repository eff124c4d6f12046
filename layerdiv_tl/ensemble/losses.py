"""Bias and diversity of an ensemble, for each loss: one class per loss, whose methods are pure functions of arrays.

    u : [example, member, option]   the members' predictions in logits; ū is their mean over the |L| members
    t : [example, option]           the target: logits for the squared error, else probabilities

| loss=           | class          | equation of arXiv 2505.24009         | in        |
|-----------------|----------------|--------------------------------------|-----------|
| "squared"       | `SquaredError` | Theorem 1, Eq. 7-10                  | logits²   |
| "paper"         | `PaperForm`    | Eq. 14, the form of the paper's tables | probability² and logits² |
| "cross_entropy" | `CrossEntropy` | not in the paper                     | nats      |
| "brier"         | `Brier`        | Eq. 14 made exact                    | probability² |

Theorems 2 and 3 are in `theorems`. **To add a loss**, write a subclass of `Loss` here with `name`, `unit` and `terms`,
and `offers = ("tau",)` if it takes `tau`, and enter it in `LOSSES`: `decompose`, every table and figure, and studies
take it from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax, softmax

from .._checks import one_of
from ..errors import InputError

Members = Float[np.ndarray, "example member option"]
Target = Float[np.ndarray, "example option"]
OfEnsemble = Float[np.ndarray, " example"]
PerMember = Float[np.ndarray, "example member"]
PerGroup = Float[np.ndarray, "example group"]
Sums = Float[np.ndarray, "example group option"]
Group = Int[np.ndarray, " member"]
# Members and target by the suffix of their columns: "", "_centered", "_shift".
Gauges = dict[str, tuple[Members, Target]]

# Prefixes of the columns that are in the loss's unit.
_MEASURED = ("bias", "diversity", "net", "loss", "zero_bias", "within", "between", "lowest", "highest", "entropy")


@dataclass(frozen=True, eq=False)
class Terms:
    """An ensemble's loss, and each member's bias and diversity; `zero_…` belong to the zero baseline (u = 0).

    The ensemble's bias and diversity are the means of its members'. `extras` holds by name the quantities that only
    some losses have: the ensemble's `[example]`, or `[example, member]`.
    """

    losses: OfEnsemble
    biases: PerMember
    diversities: PerMember
    zero_biases: OfEnsemble
    zero_diversities: OfEnsemble
    extras: dict[str, OfEnsemble | PerMember] = field(default_factory=dict)

    def __add__(self, other: Terms) -> Terms:
        names = ("losses", "biases", "diversities", "zero_biases", "zero_diversities")
        return Terms(*(getattr(self, name) + getattr(other, name) for name in names))


class LacksQuantityError(InputError, AttributeError):
    """Raised for a quantity that a loss does not have; also an AttributeError, so that `hasattr` is False."""


class Loss(ABC):
    """A loss of an ensemble: its terms per example in float64, and the quantities that only this loss has.

    Attributes:
        name, unit, is_exact: Its name in `decompose(loss=…)`, the unit of loss and bias, and whether loss = bias −
            diversity holds.
        offers: Optional features: the argument `tau`, the names of `extras`, the methods `nested`, `tradeoff` and
            `bounds`, the parts `centered` and `shift`.
        additive: Extras `[example, member]` that add up to the ensemble's; others are averaged over members.
        column_units: Units other than `unit`, by a prefix of the column's name.
        compares_probabilities: The target is a distribution over options, not logits.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    is_exact: ClassVar[bool] = True
    compares_probabilities: ClassVar[bool] = True
    offers: ClassVar[tuple[str, ...]] = ()
    additive: ClassVar[tuple[str, ...]] = ()
    column_units: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def terms(self, u: Members, t: Target, tau: float) -> Terms:
        """Compute loss, biases and diversities; predictions are softmax(tau × logits)."""

    def extras(self, u: Members, t: Target, tau: float, terms: Terms) -> dict[str, OfEnsemble | PerMember]:
        """Return further columns of the tables, by name: the ensemble's `[example]`, or `[example, member]`."""
        return {}

    def module_extras(self, u: Members, is_in: Float[np.ndarray, "module member"]) -> dict[str, np.ndarray]:
        """Return a module's further quantities, `[example, module]`, that are not made of its members' extras."""
        return {}

    def nested(self, u: Members, t: Target, group: Group) -> tuple[OfEnsemble, dict[str, PerGroup]]:
        """Return (loss of the coarser ensemble; bias, within, between): loss = mean_g (bias − within − between)_g."""
        raise NotImplementedError(f"{self.name} offers 'nested' without having it")

    def default_tau(self, count: int) -> float:
        """Return the default temperature on logits for this many members."""
        return 1.0

    def require(self, quantity: str) -> None:
        """Raise InputError, with the losses that have it, where this loss has not this quantity."""
        if quantity not in self.offers:
            owners = one_of(name for name, loss in LOSSES.items() if quantity in loss.offers)
            raise LacksQuantityError(f"loss={self.name!r} has no {quantity!r}: decompose with loss={owners}.")

    def unit_of(self, column: str) -> str | None:
        """Return the unit of a table's column, or None."""
        if "_share" in column or column.startswith(("accuracy", "share", "active")):
            return "share"
        if column.startswith("cosine"):
            return "cosine"
        if column.startswith("logit_difference"):
            return "logits"
        named = next((unit for start, unit in self.column_units.items() if column.startswith(start)), None)
        return named or (self.unit if column.startswith((*_MEASURED, "model_loss", "combiner_gap")) else None)

    def equation(self, loss: float, bias: float, diversity: float, zero_bias: float, gap: float) -> str:
        """Format the three terms for a decomposition's repr."""
        return f"loss {loss:.4g} = bias {bias:.4g} − diversity {diversity:.4g}; gap {gap:.0e}"


class SquaredError(Loss):
    """Theorem 1: mean_k (t−ū)² = mean_i mean_k (t−u_i)² − mean_i mean_k (ū−u_i)² (Eq. 7-8).

    For each x among t−ū, t−u_i, ū−u_i: mean_k x² = (mean_k x)² + var_k x, so the theorem holds twice, in the *shift*
    common to all options, which a softmax cannot see, and in the *centered* rest; raw is their sum.
    """

    name, unit = "squared", "logits²"
    compares_probabilities = False
    offers = ("centered", "shift", "diversity_logit", "coherence", "nested", "tradeoff", "bounds")

    def terms(self, u: Members, t: Target, tau: float = 1.0) -> Terms:
        """Compute the terms in logits²."""
        mean = u.mean(1)
        return Terms(
            losses=((t - mean) ** 2).mean(1),
            biases=mean_square(t[:, None] - u),
            diversities=mean_square(mean[:, None] - u),
            zero_biases=(t**2).mean(1),
            zero_diversities=(mean**2).mean(1),
        )

    def extras(self, u: Members, t: Target, tau: float, terms: Terms) -> dict[str, OfEnsemble | PerMember]:
        """diversity_logit = |L|² × diversity; coherence = |Σu|² / Σ|u|², NaN where all members are zero."""
        coherence = ratio(mean_square(u.sum(1, keepdims=True)), mean_square(u).sum(1, keepdims=True))
        return {"diversity_logit": u.shape[1] ** 2 * terms.diversities, "coherence": coherence[:, 0]}

    def module_extras(self, u: Members, is_in: Float[np.ndarray, "module member"]) -> dict[str, np.ndarray]:
        """Compute the coherence of each module."""
        sums = np.einsum("nmk,sm->nsk", u, is_in, optimize=True)
        return {"coherence": ratio(mean_square(sums), mean_square(u) @ is_in.T)}

    def nested(self, u: Members, t: Target, group: Group) -> tuple[OfEnsemble, dict[str, PerGroup]]:
        """Compute in logits²; `within_unscaled` and `between_unscaled` split the diversity of the unscaled leaves.

        The leaves of a group sum to its member a_g of the coarser ensemble, and n_g u_h is what leaf h alone predicts
        for a_g. The unscaled terms have weights n_g/N.
        """
        counts, sums = np.bincount(group).astype(np.float64), sum_by_group(u, group)
        coarse_mean, means, leaves = sums.mean(1, keepdims=True), sums / counts[:, None], counts[group][:, None] * u
        within = mean_by_group(((sums[:, group] - leaves) ** 2).mean(2), group)
        return ((t - coarse_mean[:, 0]) ** 2).mean(1), {
            "bias": mean_by_group(((t[:, None] - leaves) ** 2).mean(2), group),
            "within": within,
            "between": ((sums - coarse_mean) ** 2).mean(2),
            "within_unscaled": mean_by_group(((u - means[:, group]) ** 2).mean(2), group),
            "between_unscaled": ((means - u.mean(1, keepdims=True)) ** 2).mean(2),
        }


class PaperForm(Loss):
    """Eq. 14: loss and bias between probabilities, softmax(ū) and softmax(u_i), diversity between logits.

    The units differ, so loss = bias − diversity does not hold; `mismatch` is the difference. softmax(ū) is nearly
    uniform, so compare loss and bias with `zero_bias`, the uniform predictor's loss (0.25, 0.2222, 0.1875 for 2, 3, 4
    options). The paper's tables show loss and bias × 100.
    """

    name, unit = "paper", "probability²"
    is_exact = False
    offers = ("diversity_logit", "mismatch")
    column_units: ClassVar[dict[str, str]] = {"diversity": "logits²", "mismatch": "probability² and logits²"}

    def terms(self, u: Members, t: Target, tau: float) -> Terms:
        """Compute loss and biases in probability², diversities in logits²."""
        return Terms(
            losses=((t - softmax(u.mean(1), 1)) ** 2).mean(1),
            biases=mean_square(t[:, None] - softmax(u, 2)),
            # As in Theorem 1: no softmax here.
            diversities=mean_square(u.mean(1, keepdims=True) - u),
            zero_biases=((t - 1 / u.shape[2]) ** 2).mean(1),
            zero_diversities=(u.mean(1) ** 2).mean(1),
        )

    def extras(self, u: Members, t: Target, tau: float, terms: Terms) -> dict[str, OfEnsemble | PerMember]:
        """Compute diversity's centered and shift parts, |L|² × diversity, and mismatch = loss − (bias − diversity)."""
        shift = u.mean(2, keepdims=True)
        diversity = terms.diversities.mean(1)
        return {
            "diversity_centered": SquaredError().terms(u - shift, t).diversities,
            "diversity_shift": SquaredError().terms(shift, t[:, :1]).diversities,
            "diversity_logit": u.shape[1] ** 2 * diversity,
            "mismatch": terms.losses - (terms.biases.mean(1) - diversity),
        }

    def equation(self, loss: float, bias: float, diversity: float, zero_bias: float, gap: float) -> str:
        """Format as in the paper's tables, which is not an equation."""
        return (
            f"loss {100 * loss:.4g} and bias {100 * bias:.4g} in 100 × probability², uniform {100 * zero_bias:.4g}; "
            f"diversity {diversity:.4g} in logits²; two units, so bias − diversity is not the loss"
        )


class CrossEntropy(Loss):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i), p = softmax(τū), q_i = softmax(τu_i); in nats.

    It holds because log p and mean_i log q_i differ by a number that is the same for all options. By default τ = |L|,
    so that p is the model's own distribution over the options, before any soft-cap. Bias and diversity depend on how
    finely the model is decomposed. `net_linear` does not, and heads add up to their attention: loss = entropy + Σ
    net_linear.
    """

    name, unit = "cross_entropy", "nats"
    offers = ("tau", "entropy", "net_linear", "nested")
    additive = ("net_linear",)

    def default_tau(self, count: int) -> float:
        """Return |L|."""
        return float(count)

    def terms(self, u: Members, t: Target, tau: float) -> Terms:
        """Compute the terms in nats."""
        log_p, log_q = log_softmax(tau * u.mean(1), 1), log_softmax(tau * u, 2)
        return Terms(
            losses=-(t * log_p).sum(1),
            biases=-(t[:, None] * log_q).sum(2),
            diversities=(np.exp(log_p)[:, None] * (log_p[:, None] - log_q)).sum(2),
            zero_biases=t.sum(1) * np.log(u.shape[2]),
            zero_diversities=(np.exp(log_p) * log_p).sum(1) + np.log(u.shape[2]),
        )

    def extras(self, u: Members, t: Target, tau: float, terms: Terms) -> dict[str, OfEnsemble | PerMember]:
        """entropy = H(p); net_linear = (τ/|L|)(E_p[u_i] − E_t[u_i]): linear in u_i and blind to shifts."""
        log_p = log_softmax(tau * u.mean(1), 1)
        p = np.exp(log_p)
        return {"entropy": -(p * log_p).sum(1), "net_linear": tau / u.shape[1] * ((p - t)[:, None] * u).sum(2)}

    def nested(self, u: Members, t: Target, group: Group) -> tuple[OfEnsemble, dict[str, PerGroup]]:
        """Compute in nats: q_h = softmax(L n_g u_h), q_g = softmax(L a_g), p = softmax(Σu), with L groups."""
        counts, sums = np.bincount(group).astype(np.float64), sum_by_group(u, group)
        log_p = log_softmax(len(counts) * sums.mean(1), 1)[:, None]
        log_group = log_softmax(len(counts) * sums, 2)
        log_leaf = log_softmax(len(counts) * counts[group][:, None] * u, 2)
        own = log_group[:, group]
        return -(t * log_p[:, 0]).sum(1), {
            "bias": mean_by_group(-(t[:, None] * log_leaf).sum(2), group),
            "within": mean_by_group((np.exp(own) * (own - log_leaf)).sum(2), group),
            "between": (np.exp(log_p) * (log_p - log_group)).sum(2),
        }


class Brier(Loss):
    """Eq. 14 made exact: mean_k (t−q̄)² = mean_i mean_k (t−q_i)² − mean_i mean_k (q̄−q_i)², q_i = softmax(τu_i).

    The ensemble is q̄, the mean of the members' distributions (τ = 1 by default, where the bias is Eq. 14's). It is not
    the model's own softmax(Σu), their geometric mean, whose loss is `model_loss`.
    """

    name, unit = "brier", "probability²"
    offers = ("tau", "model_loss", "combiner_gap")

    def terms(self, u: Members, t: Target, tau: float) -> Terms:
        """Compute the terms in probability²."""
        q = softmax(tau * u, 2)
        zero = {"zero_biases": t, "zero_diversities": q.mean(1)}
        uniform = {name: ((x - 1 / u.shape[2]) ** 2).mean(1) for name, x in zero.items()}
        return replace(SquaredError().terms(q, t), **uniform)

    def extras(self, u: Members, t: Target, tau: float, terms: Terms) -> dict[str, OfEnsemble | PerMember]:
        """Compute the Brier loss of softmax(Σu), and the cost of multiplying members instead of averaging them."""
        model_loss = ((t - softmax(u.sum(1), 1)) ** 2).mean(1)
        return {"model_loss": model_loss, "combiner_gap": model_loss - terms.losses}


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (SquaredError(), PaperForm(), CrossEntropy(), Brier())}


def split_gauges(loss: Loss, u: Members, t: Target) -> Gauges:
    """Split members and target by column suffix: raw, and for a loss with gauges `_centered` and `_shift`.

    The shift is the part common to all options (it has one option for all); raw is the sum of the two.
    """
    if "centered" not in loss.offers:
        return {"": (u, t)}
    shift, of_target = u.mean(2, keepdims=True), t.mean(1, keepdims=True)
    return {"": (u, t), "_centered": (u - shift, t - of_target), "_shift": (shift, of_target)}


def measure(loss: Loss, gauges: Gauges, tau: float) -> dict[str, Terms]:
    """Compute the terms of each gauge; raw ones are sums of the two parts, since raw − shift cancels."""
    found = {suffix: loss.terms(*part, tau) for suffix, part in gauges.items() if suffix or len(gauges) == 1}
    if len(gauges) > 1:
        found = {"": found["_centered"] + found["_shift"]} | found
    return {suffix: replace(terms, extras=loss.extras(*gauges[suffix], tau, terms)) for suffix, terms in found.items()}


def relative_gap(loss: float, bias: float, *diversities: float) -> float:
    """Compute |loss − (bias − Σ diversities)| relative to the largest of these."""
    scale = max(map(abs, (loss, bias, *diversities, np.finfo(float).tiny)))
    return abs(loss - (bias - sum(diversities))) / scale


def mean_square(x: Members) -> PerMember:
    """Compute mean_k x²; for few options several times faster than numpy's mean over a short last axis."""
    return np.einsum("nmk,nmk->nm", x, x) / x.shape[2]


def ratio(part: Any, whole: Any) -> np.ndarray:
    """Compute part / whole, broadcast; NaN where the whole is not above 0."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)


def mean_of(values: Float[np.ndarray, "example *rest"]) -> np.ndarray:
    """Average over the examples that have a value; NaN where none has."""
    known = np.isfinite(values)
    return ratio(np.where(known, values, 0.0).sum(0), known.sum(0))


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
