"""Brute-force reference for the ensemble decompositions: a test oracle, slow and literal on purpose.

It is written from the formulas and the paper alone, in Python loops over examples, members and
options, and never imports the package it is used to check. u is [example, member, option], the members' logits
(the constant among them where it is not zero); t is [example, option]. Every quantity is formed per example and
then averaged over examples. A list with one name (or group label) per member says which module a member is in;
modules and groups come out in the order in which they first appear.

Three gauges: raw, mean_k x^2; shift, (mean_k x)^2; centered, var_k x. Each is computed on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

GAUGES = ("raw", "centered", "shift")


# ---------------------------------------------------------------------------------------------------------------
# Small pieces


def mean(numbers: Iterable[float]) -> float:
    """The plain average."""
    numbers = [float(x) for x in numbers]
    return math.fsum(numbers) / len(numbers)


def size(x: Sequence[float] | np.ndarray, gauge: str = "raw") -> float:
    """mean_k x^2, var_k x or (mean_k x)^2 of one vector over options."""
    if gauge == "raw":
        return mean(x_k * x_k for x_k in x)
    middle = mean(x)
    if gauge == "shift":
        return middle * middle
    if gauge == "centered":
        return mean((x_k - middle) ** 2 for x_k in x)
    raise ValueError(f"gauge must be one of {GAUGES}, not {gauge!r}")


def mean_vector(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The average of some vectors, option by option."""
    return np.array([mean(v[k] for v in vectors) for k in range(len(vectors[0]))])


def sum_vector(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of some vectors, option by option."""
    return np.array([math.fsum(v[k] for v in vectors) for k in range(len(vectors[0]))])


def log_softmax(z: np.ndarray) -> np.ndarray:
    """log softmax(z) of one vector, stable."""
    top = max(float(z_k) for z_k in z)
    log_total = math.log(math.fsum(math.exp(z_k - top) for z_k in z))
    return np.array([(z_k - top) - log_total for z_k in z])


def softmax(z: np.ndarray) -> np.ndarray:
    """softmax(z) of one vector."""
    return np.array([math.exp(log_p) for log_p in log_softmax(z)])


def cross_entropy_of(t: np.ndarray, log_q: np.ndarray) -> float:
    """CE(t, q) = -sum_k t_k log q_k; options of target 0 are left out."""
    return -math.fsum(t_k * log_q_k for t_k, log_q_k in zip(t, log_q, strict=True) if t_k != 0)


def kl_of(log_p: np.ndarray, log_q: np.ndarray) -> float:
    """KL(p || q) = sum_k p_k (log p_k - log q_k)."""
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def entropy_of(log_p: np.ndarray) -> float:
    """H(p) = -sum_k p_k log p_k."""
    return -math.fsum(math.exp(a) * a for a in log_p)


def covariance(x: np.ndarray, y: np.ndarray) -> float:
    """cov_k(x, y) with 1/K."""
    x_mean, y_mean = mean(x), mean(y)
    return mean((x_k - x_mean) * (y_k - y_mean) for x_k, y_k in zip(x, y, strict=True))


def checked(u: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u and t as float64 with shapes that agree."""
    u, t = np.asarray(u, dtype=np.float64), np.asarray(t, dtype=np.float64)
    if u.ndim != 3 or t.ndim != 2 or (u.shape[0], u.shape[2]) != t.shape:
        raise ValueError(f"u must be [example, member, option] and t [example, option], not {u.shape} and {t.shape}")
    return u, t


def checked_distribution(t: np.ndarray) -> None:
    """Refuse a target that is not a distribution over options: cross-entropy needs sum_k t_k = 1."""
    for row in t:
        if min(row) < 0 or abs(math.fsum(row) - 1) > 1e-9:
            raise ValueError("each row of t must be a probability distribution over options")


def members_of(names: Sequence[Hashable], n_members: int) -> dict[Hashable, list[int]]:
    """name -> indices of its members, names in order of first appearance."""
    if len(names) != n_members:
        raise ValueError(f"{len(names)} names for {n_members} members")
    found: dict[Hashable, list[int]] = {}
    for i in range(n_members):
        found.setdefault(names[i], []).append(i)
    return found


# ---------------------------------------------------------------------------------------------------------------
# Theorem 1 and its three columns


@dataclass(frozen=True)
class SquaredTerms:
    """One gauge of Theorem 1: loss = bias - diversity."""

    loss: float
    bias: float
    diversity: float
    diversity_logit: float  # of the members |L| u_i, whose mean is the logits
    member_bias: np.ndarray  # [member], undivided
    member_diversity: np.ndarray  # [member], undivided
    member_net: np.ndarray  # [member], bias - diversity


@dataclass(frozen=True)
class Squared:
    """Theorem 1 raw, centered and shift; coherence raw and of the options' centered values."""

    raw: SquaredTerms
    centered: SquaredTerms
    shift: SquaredTerms
    coherence: float
    coherence_centered: float


def squared_terms(u: np.ndarray, t: np.ndarray, gauge: str) -> SquaredTerms:
    """Theorem 1 in one gauge."""
    n_examples, n_members, _ = u.shape
    loss, bias, diversity, diversity_logit = [], [], [], []
    for e in range(n_examples):
        u_bar = mean_vector(u[e])
        logits = sum_vector(u[e])
        loss.append(size(t[e] - u_bar, gauge))
        bias.append([size(t[e] - u[e, i], gauge) for i in range(n_members)])
        diversity.append([size(u_bar - u[e, i], gauge) for i in range(n_members)])
        diversity_logit.append(mean(size(logits - n_members * u[e, i], gauge) for i in range(n_members)))
    member_bias = np.array([mean(row[i] for row in bias) for i in range(n_members)])
    member_diversity = np.array([mean(row[i] for row in diversity) for i in range(n_members)])
    return SquaredTerms(
        loss=mean(loss),
        bias=mean(mean(row) for row in bias),
        diversity=mean(mean(row) for row in diversity),
        diversity_logit=mean(diversity_logit),
        member_bias=member_bias,
        member_diversity=member_diversity,
        member_net=member_bias - member_diversity,
    )


def coherence_of(u: np.ndarray, centered: bool = False) -> float:
    """|sum_i u_i|^2 / sum_i |u_i|^2 per example, then averaged; NaN where every member is zero."""
    ratios = []
    for members in u:
        vectors = [v - mean(v) for v in members] if centered else list(members)
        above = math.fsum(x * x for x in sum_vector(vectors))
        below = math.fsum(x * x for v in vectors for x in v)
        ratios.append(above / below if below > 0 else math.nan)
    return mean(ratios)


def squared(u: np.ndarray, t: np.ndarray) -> Squared:
    """Theorem 1 with its net, gauge and size columns."""
    u, t = checked(u, t)
    return Squared(
        **{gauge: squared_terms(u, t, gauge) for gauge in GAUGES},
        coherence=coherence_of(u),
        coherence_centered=coherence_of(u, centered=True),
    )


@dataclass(frozen=True)
class ModuleTerms:
    """One module of Eq. 9-10 in one gauge."""

    count: int
    mean_bias: float  # over the module's members
    mean_diversity: float
    bias: float  # (n_g / |L|) * mean_bias: adds up to the whole over modules
    diversity: float
    net: float


def modules(u: np.ndarray, t: np.ndarray, names: Sequence[Hashable]) -> dict[str, dict[Hashable, ModuleTerms]]:
    """Eq. 9-10: gauge -> module name -> its part of bias and diversity."""
    u, t = checked(u, t)
    n_examples, n_members, _ = u.shape
    result: dict[str, dict[Hashable, ModuleTerms]] = {}
    for gauge in GAUGES:
        result[gauge] = {}
        for name, members in members_of(names, n_members).items():
            bias, diversity = [], []
            for e in range(n_examples):
                u_bar = mean_vector(u[e])
                bias.append(mean(size(t[e] - u[e, i], gauge) for i in members))
                diversity.append(mean(size(u_bar - u[e, i], gauge) for i in members))
            share = len(members) / n_members
            result[gauge][name] = ModuleTerms(
                count=len(members),
                mean_bias=mean(bias),
                mean_diversity=mean(diversity),
                bias=share * mean(bias),
                diversity=share * mean(diversity),
                net=share * mean(bias) - share * mean(diversity),
            )
    return result


# ---------------------------------------------------------------------------------------------------------------
# Eq. 14


@dataclass(frozen=True)
class PaperForm:
    """Eq. 14, in its own mixed units (not times 100)."""

    loss: float  # MSE with softmax(u_bar)
    bias: float
    diversity: float  # of the raw logits
    mismatch: float  # loss - (bias - diversity)
    uniform: float  # MSE of the uniform predictor
    member_bias: np.ndarray  # [member], with softmax(u_i)
    member_diversity: np.ndarray  # [member], of the raw logits


def paper_form(u: np.ndarray, t: np.ndarray) -> PaperForm:
    """Eq. 14: softmax in loss and bias, raw logits in diversity."""
    u, t = checked(u, t)
    n_examples, n_members, n_options = u.shape
    loss, bias, diversity, uniform = [], [], [], []
    for e in range(n_examples):
        u_bar = mean_vector(u[e])
        loss.append(size(t[e] - softmax(u_bar)))
        bias.append([size(t[e] - softmax(u[e, i])) for i in range(n_members)])
        diversity.append([size(u_bar - u[e, i]) for i in range(n_members)])
        uniform.append(mean((t_k - 1 / n_options) ** 2 for t_k in t[e]))
    total_loss = mean(loss)
    total_bias = mean(mean(row) for row in bias)
    total_diversity = mean(mean(row) for row in diversity)
    return PaperForm(
        loss=total_loss,
        bias=total_bias,
        diversity=total_diversity,
        mismatch=total_loss - (total_bias - total_diversity),
        uniform=mean(uniform),
        member_bias=np.array([mean(row[i] for row in bias) for i in range(n_members)]),
        member_diversity=np.array([mean(row[i] for row in diversity) for i in range(n_members)]),
    )


# ---------------------------------------------------------------------------------------------------------------
# Cross-entropy


@dataclass(frozen=True)
class CrossEntropy:
    """CE(t, p) = mean_i CE(t, q_i) - mean_i KL(p || q_i), p = softmax(tau u_bar), q_i = softmax(tau u_i)."""

    tau: float
    loss: float  # CE(t, p)
    bias: float  # mean CE
    diversity: float  # mean KL
    entropy: float  # H(p)
    member_bias: np.ndarray  # [member] CE(t, q_i), undivided
    member_diversity: np.ndarray  # [member] KL(p || q_i), undivided
    member_net: np.ndarray  # [member] CE_i - KL_i, undivided: their mean is the loss
    member_net_linear: np.ndarray  # [member] (tau/|L|)(E_p[u_i] - u_i(t)): their sum plus H(p) is the loss
    net_linear: float  # the sum of those


def cross_entropy(u: np.ndarray, t: np.ndarray, tau: float | None = None) -> CrossEntropy:
    """The exact cross-entropy decomposition at scale tau, by default |L|; t is a distribution."""
    u, t = checked(u, t)
    checked_distribution(t)
    n_examples, n_members, n_options = u.shape
    tau = float(n_members) if tau is None else float(tau)
    loss, entropy, ce, kl, linear = [], [], [], [], []
    for e in range(n_examples):
        log_p = log_softmax(tau * mean_vector(u[e]))
        log_q = [log_softmax(tau * u[e, i]) for i in range(n_members)]
        loss.append(cross_entropy_of(t[e], log_p))
        entropy.append(entropy_of(log_p))
        ce.append([cross_entropy_of(t[e], log_q[i]) for i in range(n_members)])
        kl.append([kl_of(log_p, log_q[i]) for i in range(n_members)])
        row = []
        for i in range(n_members):
            expected = math.fsum(math.exp(log_p[k]) * u[e, i, k] for k in range(n_options))  # E_p[u_i]
            at_target = math.fsum(t[e, k] * u[e, i, k] for k in range(n_options))  # u_i(t)
            row.append(tau / n_members * (expected - at_target))
        linear.append(row)
    member_bias = np.array([mean(row[i] for row in ce) for i in range(n_members)])
    member_diversity = np.array([mean(row[i] for row in kl) for i in range(n_members)])
    return CrossEntropy(
        tau=tau,
        loss=mean(loss),
        bias=mean(mean(row) for row in ce),
        diversity=mean(mean(row) for row in kl),
        entropy=mean(entropy),
        member_bias=member_bias,
        member_diversity=member_diversity,
        member_net=member_bias - member_diversity,
        member_net_linear=np.array([mean(row[i] for row in linear) for i in range(n_members)]),
        net_linear=mean(math.fsum(row) for row in linear),
    )


# ---------------------------------------------------------------------------------------------------------------
# Brier


@dataclass(frozen=True)
class Brier:
    """loss = bias - diversity for q_bar = mean_i q_i, q_i = softmax(tau u_i)."""

    tau: float
    loss: float  # of q_bar
    bias: float
    diversity: float
    model_loss: float  # of softmax(sum_i u_i), whatever tau
    combiner_gap: float  # model_loss - loss
    member_bias: np.ndarray  # [member], undivided
    member_diversity: np.ndarray  # [member], undivided


def brier(u: np.ndarray, t: np.ndarray, tau: float = 1.0) -> Brier:
    """Eq. 14 made exact: the arithmetic mean of the members' softmaxes."""
    u, t = checked(u, t)
    n_examples, n_members, _ = u.shape
    loss, bias, diversity, model_loss = [], [], [], []
    for e in range(n_examples):
        q = [softmax(tau * u[e, i]) for i in range(n_members)]
        q_bar = mean_vector(q)
        loss.append(size(t[e] - q_bar))
        bias.append([size(t[e] - q[i]) for i in range(n_members)])
        diversity.append([size(q_bar - q[i]) for i in range(n_members)])
        model_loss.append(size(t[e] - softmax(sum_vector(u[e]))))
    return Brier(
        tau=float(tau),
        loss=mean(loss),
        bias=mean(mean(row) for row in bias),
        diversity=mean(mean(row) for row in diversity),
        model_loss=mean(model_loss),
        combiner_gap=mean(model_loss) - mean(loss),
        member_bias=np.array([mean(row[i] for row in bias) for i in range(n_members)]),
        member_diversity=np.array([mean(row[i] for row in diversity) for i in range(n_members)]),
    )


# ---------------------------------------------------------------------------------------------------------------
# Theorem 3


@dataclass(frozen=True)
class Theorem3Terms:
    """Theorem 3 exact and as printed; each field for one example, or averaged over examples."""

    mean_members: float  # m_bar
    mean_target: float  # m_t
    gap_squared: float  # (m_bar - m_t)^2
    spread_of_means: float  # mean_i (m_i - m_bar)^2 = shift diversity
    mean_var: float  # v_bar
    mean_cov: float  # c_bar over i != j; 0 for a single member
    omega: float
    var_target: float
    mean_cov_target: float  # mean_i cov(u_i, t)
    bias: float
    diversity: float
    centered_diversity: float  # (1 - 1/|L|)(v_bar - c_bar)
    printed_omega: float  # v_bar + mean_i (m_i - m_t)^2
    printed_bias: float
    printed_diversity: float


@dataclass(frozen=True)
class Theorem3:
    """Theorem 3 per example and averaged term by term."""

    examples: list[Theorem3Terms]
    average: Theorem3Terms


def theorem3_of_example(members: np.ndarray, target: np.ndarray) -> Theorem3Terms:
    """Theorem 3 for one example (Eq. 11)."""
    n = len(members)
    m = [mean(members[i]) for i in range(n)]
    m_bar, m_t = mean(m), mean(target)
    v_bar = mean(covariance(members[i], members[i]) for i in range(n))
    pairs = [covariance(members[i], members[j]) for i in range(n) for j in range(n) if i != j]
    c_bar = math.fsum(pairs) / (n * (n - 1)) if n > 1 else 0.0
    var_t = covariance(target, target)
    cov_t = mean(covariance(members[i], target) for i in range(n))

    gap_squared = (m_bar - m_t) ** 2
    spread = mean((m_i - m_bar) ** 2 for m_i in m)
    omega = v_bar + spread
    printed_omega = v_bar + mean((m_i - m_t) ** 2 for m_i in m)
    bracket = v_bar / n + (1 - 1 / n) * c_bar
    return Theorem3Terms(
        mean_members=m_bar,
        mean_target=m_t,
        gap_squared=gap_squared,
        spread_of_means=spread,
        mean_var=v_bar,
        mean_cov=c_bar,
        omega=omega,
        var_target=var_t,
        mean_cov_target=cov_t,
        bias=gap_squared + omega + var_t - 2 * cov_t,
        diversity=omega - bracket,
        centered_diversity=(1 - 1 / n) * (v_bar - c_bar),
        printed_omega=printed_omega,
        printed_bias=gap_squared + printed_omega,
        printed_diversity=printed_omega - bracket,
    )


def theorem3(u: np.ndarray, t: np.ndarray) -> Theorem3:
    """Theorem 3, exact and printed."""
    u, t = checked(u, t)
    examples = [theorem3_of_example(u[e], t[e]) for e in range(len(u))]
    average = Theorem3Terms(**{f.name: mean(getattr(x, f.name) for x in examples) for f in fields(Theorem3Terms)})
    return Theorem3(examples=examples, average=average)


# ---------------------------------------------------------------------------------------------------------------
# Theorem 2


@dataclass(frozen=True)
class Bound:
    """|sqrt(diversity) - sqrt(bias)| <= sqrt(MSE) for one module: of the averages, and example by example."""

    mean_bias: float
    mean_diversity: float
    left: float  # |sqrt(mean_diversity) - sqrt(mean_bias)|
    right: float  # sqrt(MSE averaged over examples)
    example_left: np.ndarray  # [example]
    example_right: np.ndarray  # [example]


@dataclass(frozen=True)
class Theorem2:
    """Theorem 2: diversity <= bias for the whole, and each module's bound."""

    bias: float
    diversity: float
    loss: float
    root_loss: float
    modules: dict[Hashable, Bound]


def theorem2_bounds(u: np.ndarray, t: np.ndarray, names: Sequence[Hashable]) -> Theorem2:
    """The exact form of Theorem 2's limits, squared error in raw units."""
    u, t = checked(u, t)
    n_examples, n_members, _ = u.shape
    averages = [mean_vector(u[e]) for e in range(n_examples)]
    loss = [size(t[e] - averages[e]) for e in range(n_examples)]
    bias = [[size(t[e] - u[e, i]) for i in range(n_members)] for e in range(n_examples)]
    diversity = [[size(averages[e] - u[e, i]) for i in range(n_members)] for e in range(n_examples)]
    bounds: dict[Hashable, Bound] = {}
    for name, members in members_of(names, n_members).items():
        module_bias = [mean(bias[e][i] for i in members) for e in range(n_examples)]
        module_diversity = [mean(diversity[e][i] for i in members) for e in range(n_examples)]
        bounds[name] = Bound(
            mean_bias=mean(module_bias),
            mean_diversity=mean(module_diversity),
            left=abs(math.sqrt(mean(module_diversity)) - math.sqrt(mean(module_bias))),
            right=math.sqrt(mean(loss)),
            example_left=np.array(
                [abs(math.sqrt(d) - math.sqrt(b)) for d, b in zip(module_diversity, module_bias, strict=True)]
            ),
            example_right=np.array([math.sqrt(x) for x in loss]),
        )
    return Theorem2(
        bias=mean(mean(row) for row in bias),
        diversity=mean(mean(row) for row in diversity),
        loss=mean(loss),
        root_loss=math.sqrt(mean(loss)),
        modules=bounds,
    )


# ---------------------------------------------------------------------------------------------------------------
# Junctions


@dataclass(frozen=True)
class Prefix:
    """The ensemble of one junction, |L| = len(members)."""

    junction: int
    members: list[int]  # indices into u, the constant among them
    u: np.ndarray  # [example, member, option], rescaled: for any other loss
    loss: float
    bias: float
    diversity: float
    squared: Squared  # the same with gauges and members
    accuracy: float | None  # None unless every target is one-hot


def is_one_hot(t: np.ndarray) -> bool:
    """Whether every row has a single 1 and zeros elsewhere."""
    return all(sorted(row.tolist()) == [0.0] * (len(row) - 1) + [1.0] for row in t)


def prefixes(
    u: np.ndarray,
    t: np.ndarray,
    junction_of_member: Sequence[int | None],
    constant_members: Iterable[int],
    scale: np.ndarray | None = None,
) -> list[Prefix]:
    """Prefix ensembles at junctions 0, 1, ....

    scale is [example, junction], sigma_junction / sigma_final; None is the frozen norm. A constant member's entry
    in junction_of_member is not read.
    """
    u, t = checked(u, t)
    n_examples, n_members, _ = u.shape
    constants = set(constant_members)
    first_in: dict[int, int] = {}  # member -> the junction it enters at
    for i, junction_of in enumerate(junction_of_member):
        if i not in constants:
            if junction_of is None:
                raise ValueError(f"member {i} is not a constant and has no junction")
            first_in[i] = junction_of
    result: list[Prefix] = []
    for junction in range(max(first_in.values()) + 1):
        members = [i for i in range(n_members) if i in constants or first_in[i] <= junction]
        values = np.zeros((n_examples, len(members), u.shape[2]))
        right = 0.0
        for e in range(n_examples):
            for place, i in enumerate(members):
                factor = 1.0 if scale is None or i in constants else 1.0 / float(scale[e, junction])
                values[e, place] = u[e, i] * factor
            scores = [float(x) for x in sum_vector(values[e])]
            best = [k for k, x in enumerate(scores) if max(scores) - x <= 1e-9 * max(1.0, abs(x))]
            right += (int(np.argmax(t[e])) in best) / len(best)
        terms = squared(values, t)
        result.append(
            Prefix(
                junction=junction,
                members=members,
                u=values,
                loss=terms.raw.loss,
                bias=terms.raw.bias,
                diversity=terms.raw.diversity,
                squared=terms,
                accuracy=right / n_examples if is_one_hot(t) else None,
            )
        )
    return result


# ---------------------------------------------------------------------------------------------------------------
# The nested cut and the plain split


@dataclass(frozen=True)
class NestedTerms:
    """loss = mean_g leaf_bias - mean_g within - between, for squared error (one gauge) or cross-entropy."""

    groups: list[Hashable]
    loss: float
    between: float  # the sublayer diversity
    leaf_bias: np.ndarray  # [group]
    within: np.ndarray  # [group]
    group_bias: np.ndarray  # [group], of the group as one member: leaf_bias - within
    group_diversity: np.ndarray  # [group], whose mean is between
    mean_leaf_bias: float
    mean_within: float


@dataclass(frozen=True)
class Nested:
    """The squared nested cut in the three gauges."""

    raw: NestedTerms
    centered: NestedTerms
    shift: NestedTerms


def nested_terms(
    groups: list[Hashable],
    loss: list[float],
    leaf_bias: list[list[float]],
    within: list[list[float]],
    group_bias: list[list[float]],
    group_diversity: list[list[float]],
) -> NestedTerms:
    """Average [example][group] numbers over examples, then over groups."""
    n = range(len(groups))
    return NestedTerms(
        groups=groups,
        loss=mean(loss),
        between=mean(mean(row) for row in group_diversity),
        leaf_bias=np.array([mean(row[g] for row in leaf_bias) for g in n]),
        within=np.array([mean(row[g] for row in within) for g in n]),
        group_bias=np.array([mean(row[g] for row in group_bias) for g in n]),
        group_diversity=np.array([mean(row[g] for row in group_diversity) for g in n]),
        mean_leaf_bias=mean(mean(row) for row in leaf_bias),
        mean_within=mean(mean(row) for row in within),
    )


def nested_squared_terms(u: np.ndarray, t: np.ndarray, found: dict[Hashable, list[int]], gauge: str) -> NestedTerms:
    """The squared nested cut in one gauge."""
    loss, leaf_bias, within, group_bias, group_diversity = [], [], [], [], []
    for e in range(len(u)):
        a = {g: sum_vector([u[e, h] for h in members]) for g, members in found.items()}
        a_bar = mean_vector(list(a.values()))
        loss.append(size(t[e] - a_bar, gauge))
        leaf_bias.append(
            [mean(size(t[e] - len(members) * u[e, h], gauge) for h in members) for members in found.values()]
        )
        within.append(
            [mean(size(a[g] - len(members) * u[e, h], gauge) for h in members) for g, members in found.items()]
        )
        group_bias.append([size(t[e] - a[g], gauge) for g in found])
        group_diversity.append([size(a_bar - a[g], gauge) for g in found])
    return nested_terms(list(found), loss, leaf_bias, within, group_bias, group_diversity)


def nested(u: np.ndarray, t: np.ndarray, groups: Sequence[Hashable]) -> Nested:
    """Groups that are sums of their members, squared error; one group label per member."""
    u, t = checked(u, t)
    found = members_of(groups, u.shape[1])
    return Nested(**{gauge: nested_squared_terms(u, t, found, gauge) for gauge in GAUGES})


def nested_cross_entropy(u: np.ndarray, t: np.ndarray, groups: Sequence[Hashable]) -> NestedTerms:
    """Groups that are sums of their members, cross-entropy at the model's own scale."""
    u, t = checked(u, t)
    checked_distribution(t)
    found = members_of(groups, u.shape[1])
    n_groups = len(found)
    loss, leaf_bias, within, group_bias, group_diversity = [], [], [], [], []
    for e in range(len(u)):
        a = {g: sum_vector([u[e, h] for h in members]) for g, members in found.items()}
        log_p = log_softmax(n_groups * mean_vector(list(a.values())))
        log_q = {g: log_softmax(n_groups * a[g]) for g in found}
        log_leaf = {h: log_softmax(n_groups * len(members) * u[e, h]) for members in found.values() for h in members}
        loss.append(cross_entropy_of(t[e], log_p))
        leaf_bias.append([mean(cross_entropy_of(t[e], log_leaf[h]) for h in members) for members in found.values()])
        within.append([mean(kl_of(log_q[g], log_leaf[h]) for h in members) for g, members in found.items()])
        group_bias.append([cross_entropy_of(t[e], log_q[g]) for g in found])
        group_diversity.append([kl_of(log_p, log_q[g]) for g in found])
    return nested_terms(list(found), loss, leaf_bias, within, group_bias, group_diversity)


@dataclass(frozen=True)
class PlainSplitTerms:
    """total = sum_g weight_g within_g + between, for the unit members' diversity in one gauge."""

    groups: list[Hashable]
    weight: np.ndarray  # [group], n_g / N
    within: np.ndarray  # [group], mean over the group's members of |a_g/n_g - u_h|^2, unweighted
    distance: np.ndarray  # [group], |a_g/n_g - u_bar|^2, unweighted
    within_total: float  # sum_g weight_g within_g
    between: float  # sum_g weight_g distance_g
    total: float  # mean_h |u_bar - u_h|^2


@dataclass(frozen=True)
class PlainSplit:
    """The plain split in the three gauges."""

    raw: PlainSplitTerms
    centered: PlainSplitTerms
    shift: PlainSplitTerms


def plain_split_terms(u: np.ndarray, found: dict[Hashable, list[int]], gauge: str) -> PlainSplitTerms:
    """The plain split in one gauge."""
    n_examples, n_members, _ = u.shape
    within, distance, total = [], [], []
    for e in range(n_examples):
        u_bar = mean_vector(u[e])
        center = {g: mean_vector([u[e, h] for h in members]) for g, members in found.items()}
        within.append([mean(size(center[g] - u[e, h], gauge) for h in members) for g, members in found.items()])
        distance.append([size(center[g] - u_bar, gauge) for g in found])
        total.append(mean(size(u_bar - u[e, h], gauge) for h in range(n_members)))
    weight = np.array([len(members) / n_members for members in found.values()])
    within_of = np.array([mean(row[g] for row in within) for g in range(len(found))])
    distance_of = np.array([mean(row[g] for row in distance) for g in range(len(found))])
    return PlainSplitTerms(
        groups=list(found),
        weight=weight,
        within=within_of,
        distance=distance_of,
        within_total=math.fsum(w * x for w, x in zip(weight, within_of, strict=True)),
        between=math.fsum(w * x for w, x in zip(weight, distance_of, strict=True)),
        total=mean(total),
    )


def plain_split(u: np.ndarray, groups: Sequence[Hashable]) -> PlainSplit:
    """Unit-member diversity split by group means a_g/n_g with weights n_g/N (the second view)."""
    u = np.asarray(u, dtype=np.float64)
    found = members_of(groups, u.shape[1])
    return PlainSplit(**{gauge: plain_split_terms(u, found, gauge) for gauge in GAUGES})


# ---------------------------------------------------------------------------------------------------------------
# Pairs of members


@dataclass(frozen=True)
class Pairwise:
    """Matrices [member, member]."""

    distance: np.ndarray  # mean over examples and options of (u_i - u_j)^2
    distance_centered: np.ndarray
    cosine: np.ndarray  # pooled over examples and options; NaN where a member is zero
    cosine_centered: np.ndarray
    disagreement: np.ndarray  # share of examples in which the argmax differs (ties: the first option)


def pairwise(u: np.ndarray) -> Pairwise:
    """Squared distance, pooled cosine and vote disagreement of every pair of members."""
    u = np.asarray(u, dtype=np.float64)
    n_examples, n_members, n_options = u.shape
    centered = np.zeros_like(u)
    for e, i in itertools.product(range(n_examples), range(n_members)):
        centered[e, i] = u[e, i] - mean(u[e, i])

    def distances(x: np.ndarray) -> np.ndarray:
        cells = list(itertools.product(range(n_examples), range(n_options)))
        result = np.zeros((n_members, n_members))
        for i, j in itertools.product(range(n_members), repeat=2):
            result[i, j] = mean((x[e, i, k] - x[e, j, k]) ** 2 for e, k in cells)
        return result

    def cosines(x: np.ndarray) -> np.ndarray:
        cells = list(itertools.product(range(n_examples), range(n_options)))
        result = np.zeros((n_members, n_members))
        for i, j in itertools.product(range(n_members), repeat=2):
            dot = math.fsum(x[e, i, k] * x[e, j, k] for e, k in cells)
            first = math.fsum(x[e, i, k] ** 2 for e, k in cells)
            second = math.fsum(x[e, j, k] ** 2 for e, k in cells)
            result[i, j] = dot / (math.sqrt(first) * math.sqrt(second)) if first > 0 and second > 0 else math.nan
        return result

    disagreement = np.zeros((n_members, n_members))
    for i, j in itertools.product(range(n_members), repeat=2):
        disagreement[i, j] = mean(float(np.argmax(u[e, i]) != np.argmax(u[e, j])) for e in range(n_examples))
    return Pairwise(
        distance=distances(u),
        distance_centered=distances(centered),
        cosine=cosines(u),
        cosine_centered=cosines(centered),
        disagreement=disagreement,
    )


# ---------------------------------------------------------------------------------------------------------------
# The whole vocabulary


@dataclass(frozen=True)
class VocabularyTerms:
    """One gauge of Theorem 1 over the vocabulary; bias, net and loss are NaN where there is no next token."""

    bias: np.ndarray  # [component, position]
    diversity: np.ndarray  # [component, position]
    net: np.ndarray  # [component, position]
    loss: np.ndarray  # [position]


@dataclass(frozen=True)
class WholeVocabulary:
    """Every quantity over the whole vocabulary, per component and position."""

    n_members: int  # |L|
    raw: VocabularyTerms
    centered: VocabularyTerms
    shift: VocabularyTerms
    target_logit: np.ndarray  # [component, position] u_i(next token), NaN without one
    member_cross_entropy: np.ndarray  # [component, position] CE(t, softmax(|L| u_i)), NaN without a next token
    member_kl: np.ndarray  # [component, position] KL(softmax(sum U) || softmax(|L| u_i))
    member_net_linear: np.ndarray  # [component, position] E_p[u_i] - u_i(t), NaN without a next token
    entropy: np.ndarray  # [position] H(softmax(sum U))
    cross_entropy: np.ndarray  # [position] CE(t, softmax(sum U)), NaN without a next token


def vocabulary_size(x: Tensor, gauge: str) -> float:
    """mean_v x^2, var_v x or (mean_v x)^2."""
    if gauge == "raw":
        return float((x * x).mean())
    if gauge == "shift":
        return float(x.mean() * x.mean())
    return float(((x - x.mean()) ** 2).mean())


def whole_vocabulary(
    U: Tensor | np.ndarray,
    next_tokens: Sequence[int | None],
    constant_rows: Iterable[int] = (),
) -> WholeVocabulary:
    """Squared and cross-entropy terms against the one-hot next token over the vocabulary.

    U is [component, position, vocab] with the constant among the components. A constant row that is zero everywhere
    is not a member (the notation's "included where it is not zero"): it is not counted in |L| and its values are NaN.
    """
    values = torch.as_tensor(U, dtype=torch.float64)
    n_components, n_positions, n_vocab = values.shape
    if len(next_tokens) != n_positions:
        raise ValueError(f"{len(next_tokens)} next tokens for {n_positions} positions")
    absent = {row for row in constant_rows if not bool((values[row] != 0).any())}
    members = [c for c in range(n_components) if c not in absent]
    n_members = len(members)

    def blank() -> np.ndarray:
        return np.full((n_components, n_positions), math.nan)

    bias, diversity = {g: blank() for g in GAUGES}, {g: blank() for g in GAUGES}
    loss = {g: np.full(n_positions, math.nan) for g in GAUGES}
    target_logit, member_ce, member_kl, member_net_linear = blank(), blank(), blank(), blank()
    entropy, cross = np.full(n_positions, math.nan), np.full(n_positions, math.nan)

    for s in range(n_positions):
        logits = torch.zeros(n_vocab, dtype=torch.float64)
        for c in members:
            logits = logits + values[c, s]
        u_bar = logits / n_members
        log_p = torch.log_softmax(logits, dim=0)
        p = log_p.exp()
        entropy[s] = -float((p * log_p).sum())
        token = next_tokens[s]
        target = None
        if token is not None:
            target = torch.zeros(n_vocab, dtype=torch.float64)
            target[token] = 1.0
            cross[s] = -float(log_p[token])
            for gauge in GAUGES:
                loss[gauge][s] = vocabulary_size(target - u_bar, gauge)
        for c in members:
            u = values[c, s]
            log_q = torch.log_softmax(n_members * u, dim=0)
            member_kl[c, s] = float((p * (log_p - log_q)).sum())
            for gauge in GAUGES:
                diversity[gauge][c, s] = vocabulary_size(u_bar - u, gauge)
            if target is not None:
                for gauge in GAUGES:
                    bias[gauge][c, s] = vocabulary_size(target - u, gauge)
                target_logit[c, s] = float(u[token])
                member_ce[c, s] = -float(log_q[token])
                member_net_linear[c, s] = float((p * u).sum()) - float(u[token])

    return WholeVocabulary(
        n_members=n_members,
        **{
            g: VocabularyTerms(bias=bias[g], diversity=diversity[g], net=bias[g] - diversity[g], loss=loss[g])
            for g in GAUGES
        },
        target_logit=target_logit,
        member_cross_entropy=member_ce,
        member_kl=member_kl,
        member_net_linear=member_net_linear,
        entropy=entropy,
        cross_entropy=cross,
    )
