"""Brute-force reference for the ensemble decompositions: a test oracle, slow and literal on purpose.

It is written from the formulas and the paper alone, one example and one member at a time, and never imports the package
it is used to check. u is [example, member, option], the members' logits (the constant among them where it is not
zero); t is [example, option]. Every quantity is formed per example and then averaged over examples. A list with one
name (or group label) per member says which module a member is in; modules and groups come out in the order in which
they first appear. Results are namespaces; arrays in them are `[member]` or `[group]` where nothing else is said.

Three gauges: raw, mean_k x^2; shift, (mean_k x)^2; centered, var_k x. Each is computed on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import torch

GAUGES = ("raw", "centered", "shift")


# --- small pieces: one vector over options --------------------------------------------------------------------------


def size(x: np.ndarray, gauge: str = "raw") -> float:
    """mean_k x^2, var_k x or (mean_k x)^2 of one vector over options."""
    middle = x.mean()
    return float({"raw": (x * x).mean(), "centered": ((x - middle) ** 2).mean(), "shift": middle * middle}[gauge])


def log_softmax(z: np.ndarray) -> np.ndarray:
    """log softmax(z) of one vector, stable."""
    return z - z.max() - math.log(np.exp(z - z.max()).sum())


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
    return float(((x - x.mean()) * (y - y.mean())).mean())


def members_of(names: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """name -> indices of its members, names in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(name, []).append(i)
    return found


def terms(
    loss: list[float], bias: list[list[float]], diversity: list[list[float]], **more: list[float]
) -> SimpleNamespace:
    """Means over examples of numbers by [example] and of bias and diversity by [example][member]."""
    b, d = np.mean(bias, axis=0), np.mean(diversity, axis=0)
    alone = {"member_bias": b, "member_diversity": d, "member_net": b - d}
    means = {name: float(np.mean(x)) for name, x in more.items()}
    return SimpleNamespace(loss=float(np.mean(loss)), bias=float(b.mean()), diversity=float(d.mean()), **alone, **means)


# --- Theorem 1, its columns and its modules -------------------------------------------------------------------------


def squared_terms(u: np.ndarray, t: np.ndarray, gauge: str) -> SimpleNamespace:
    """Theorem 1 in one gauge, and the diversity of the members |L| u_i, whose mean is the logits."""
    loss, bias, diversity, diversity_logit = [], [], [], []
    for members, target in zip(u, t, strict=True):
        u_bar, logits = members.mean(0), members.sum(0)
        loss.append(size(target - u_bar, gauge))
        bias.append([size(target - u_i, gauge) for u_i in members])
        diversity.append([size(u_bar - u_i, gauge) for u_i in members])
        diversity_logit.append(np.mean([size(logits - len(members) * u_i, gauge) for u_i in members]))
    return terms(loss, bias, diversity, diversity_logit=diversity_logit)


def squared(u: np.ndarray, t: np.ndarray) -> SimpleNamespace:
    """Theorem 1 in every gauge."""
    return SimpleNamespace(**{gauge: squared_terms(u, t, gauge) for gauge in GAUGES})


def modules(u: np.ndarray, t: np.ndarray, names: Sequence[Hashable]) -> dict[str, dict[Hashable, SimpleNamespace]]:
    """Eq. 9-10: gauge -> module name -> its means, and its parts n_g / |L| of bias, diversity and net."""
    result: dict[str, dict[Hashable, SimpleNamespace]] = {}
    for gauge in GAUGES:
        whole, result[gauge] = squared_terms(u, t, gauge), {}
        for name, members in members_of(names).items():
            share = len(members) / u.shape[1]
            b, d = (float(x[members].mean()) for x in (whole.member_bias, whole.member_diversity))
            parts = {"bias": share * b, "diversity": share * d, "net": share * (b - d)}
            result[gauge][name] = SimpleNamespace(count=len(members), mean_bias=b, mean_diversity=d, **parts)
    return result


def theorem2_bounds(u: np.ndarray, t: np.ndarray, names: Sequence[Hashable]) -> SimpleNamespace:
    """Theorem 2, squared error in raw units: bias and diversity of the whole, and the means of each module."""
    whole = squared_terms(u, t, "raw")
    return SimpleNamespace(bias=whole.bias, diversity=whole.diversity, modules=modules(u, t, names)["raw"])


# --- other losses ---------------------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    """softmax(z) of one vector."""
    return np.exp(log_softmax(z))


def paper_form(u: np.ndarray, t: np.ndarray) -> SimpleNamespace:
    """Eq. 14 in its own mixed units (not times 100): softmax in loss and bias, raw logits in diversity."""
    loss, bias, diversity, uniform = [], [], [], []
    for members, target in zip(u, t, strict=True):
        u_bar = members.mean(0)
        loss.append(size(target - softmax(u_bar)))
        bias.append([size(target - softmax(u_i)) for u_i in members])
        diversity.append([size(u_bar - u_i) for u_i in members])
        uniform.append(size(target - 1 / len(target)))
    return terms(loss, bias, diversity, uniform=uniform)


def cross_entropy(u: np.ndarray, t: np.ndarray, tau: float | None = None) -> SimpleNamespace:
    """CE(t, p) = mean_i CE(t, q_i) - mean_i KL(p || q_i), p = softmax(tau u_bar), q_i = softmax(tau u_i).

    tau is |L| by default; t is a distribution. `member_net_linear` is (tau/|L|)(E_p[u_i] - u_i(t)): their sum
    `net_linear` plus `entropy`, H(p), is the loss.
    """
    tau = float(u.shape[1]) if tau is None else float(tau)
    loss, entropy, ce, kl, linear = [], [], [], [], []
    for members, target in zip(u, t, strict=True):
        log_p = log_softmax(tau * members.mean(0))
        log_q = [log_softmax(tau * u_i) for u_i in members]
        loss.append(cross_entropy_of(target, log_p))
        entropy.append(entropy_of(log_p))
        ce.append([cross_entropy_of(target, q_i) for q_i in log_q])
        kl.append([kl_of(log_p, q_i) for q_i in log_q])
        linear.append([tau / len(members) * (np.exp(log_p) @ u_i - target @ u_i) for u_i in members])
    found = terms(loss, ce, kl, entropy=entropy, net_linear=[sum(row) for row in linear])
    found.tau, found.member_net_linear = tau, np.mean(linear, axis=0)
    return found


def theorem3_of_example(members: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Theorem 3 for one example (Eq. 11, exact)."""
    n = len(members)
    m = [u_i.mean() for u_i in members]
    m_bar, m_t = np.mean(m), target.mean()
    v_bar = np.mean([covariance(u_i, u_i) for u_i in members])
    pairs = [covariance(a, b) for a, b in itertools.permutations(members, 2)]
    c_bar = np.mean(pairs) if pairs else 0.0
    omega = v_bar + np.mean([(m_i - m_bar) ** 2 for m_i in m])
    bracket = v_bar / n + (1 - 1 / n) * c_bar
    cov_t = np.mean([covariance(u_i, target) for u_i in members])
    return {
        "omega": omega,
        "bias": (m_bar - m_t) ** 2 + omega + covariance(target, target) - 2 * cov_t,
        "diversity": omega - bracket,
        "centered_diversity": (1 - 1 / n) * (v_bar - c_bar),
    }


def theorem3(u: np.ndarray, t: np.ndarray) -> SimpleNamespace:
    """Theorem 3 averaged term by term."""
    examples = [theorem3_of_example(members, target) for members, target in zip(u, t, strict=True)]
    return SimpleNamespace(
        average=SimpleNamespace(**{name: np.mean([x[name] for x in examples]) for name in examples[0]})
    )


# --- junctions ------------------------------------------------------------------------------------------------------


def prefixes(
    u: np.ndarray,
    t: np.ndarray,
    junction_of_member: Sequence[int | None],
    constant_members: Iterable[int],
) -> list[SimpleNamespace]:
    """Prefix ensembles at junctions 0, 1, …: `members` (indices into u), their values `u`, and the squared terms.

    A constant member is in every prefix; its entry in junction_of_member is not read. `accuracy` is None unless every
    target is one-hot, and shared by options that tie.
    """
    constants, result = set(constant_members), []
    entered = {i: junction for i, junction in enumerate(junction_of_member) if i not in constants}
    one_hot = all(sorted(row.tolist()) == [0.0] * (len(row) - 1) + [1.0] for row in t)
    for junction in range(max(entered.values()) + 1):
        members = [i for i in range(u.shape[1]) if i in constants or entered[i] <= junction]
        values, right = np.zeros((len(u), len(members), u.shape[2])), 0.0
        for e in range(len(u)):
            for place, i in enumerate(members):
                values[e, place] = u[e, i]
            scores = values[e].sum(0)
            best = [k for k, x in enumerate(scores) if scores.max() - x <= 1e-9 * max(1.0, abs(x))]
            right += (int(np.argmax(t[e])) in best) / len(best)
        of_prefix = vars(squared_terms(values, t, "raw"))
        result.append(
            SimpleNamespace(members=members, u=values, accuracy=right / len(u) if one_hot else None, **of_prefix)
        )
    return result


# --- the nested cut ---------------------------------------------------------------------------------------------


def nested_terms(groups: list[Hashable], **by_group: list[list[float]]) -> SimpleNamespace:
    """Average [example][group] numbers over examples; `between`, the diversity of groups, over groups too."""
    means = {name: np.mean(x, axis=0) for name, x in by_group.items()}
    means["loss"], between = float(means["loss"]), float(means["group_diversity"].mean())
    return SimpleNamespace(groups=groups, between=between, **means)


def nested(u: np.ndarray, t: np.ndarray, groups: Sequence[Hashable]) -> SimpleNamespace:
    """Groups that are sums of their members, squared error: loss = mean_g leaf_bias - mean_g within - between."""
    found, result = members_of(groups), {}
    for gauge in GAUGES:
        loss, leaf_bias, within, diversity = [], [], [], []
        for u_e, target in zip(u, t, strict=True):
            a = [u_e[members].sum(0) for members in found.values()]
            a_bar = np.mean(a, axis=0)
            leaves = [[len(members) * u_e[h] for h in members] for members in found.values()]
            loss.append(size(target - a_bar, gauge))
            leaf_bias.append([np.mean([size(target - x, gauge) for x in own]) for own in leaves])
            within.append([np.mean([size(a_g - x, gauge) for x in own]) for a_g, own in zip(a, leaves, strict=True)])
            diversity.append([size(a_bar - a_g, gauge) for a_g in a])
        result[gauge] = nested_terms(
            list(found), loss=loss, leaf_bias=leaf_bias, within=within, group_diversity=diversity
        )
    return SimpleNamespace(**result)


def nested_cross_entropy(u: np.ndarray, t: np.ndarray, groups: Sequence[Hashable]) -> SimpleNamespace:
    """Groups that are sums of their members, cross-entropy at the model's own scale."""
    found = members_of(groups)
    loss, leaf_bias, within, diversity = [], [], [], []
    for u_e, target in zip(u, t, strict=True):
        a = [u_e[members].sum(0) for members in found.values()]
        log_p = log_softmax(len(found) * np.mean(a, axis=0))
        log_q = [log_softmax(len(found) * a_g) for a_g in a]
        leaves = [[log_softmax(len(found) * len(members) * u_e[h]) for h in members] for members in found.values()]
        loss.append(cross_entropy_of(target, log_p))
        leaf_bias.append([np.mean([cross_entropy_of(target, x) for x in own]) for own in leaves])
        within.append([np.mean([kl_of(q_g, x) for x in own]) for q_g, own in zip(log_q, leaves, strict=True)])
        diversity.append([kl_of(log_p, q_g) for q_g in log_q])
    return nested_terms(list(found), loss=loss, leaf_bias=leaf_bias, within=within, group_diversity=diversity)


# --- pairs of members -----------------------------------------------------------------------------------------------


def pairwise(u: np.ndarray) -> SimpleNamespace:
    """Matrices [member, member]: mean squared distance and pooled cosine, raw and centered, and disagreeing votes.

    A member that is zero has a cosine of NaN; of options that tie the first is the vote.
    """
    centered = np.array([[u_i - u_i.mean() for u_i in members] for members in u])
    count, found = u.shape[1], SimpleNamespace(disagreement=np.zeros((u.shape[1],) * 2))
    for suffix, x in (("", u), ("_centered", centered)):
        distance, cosine = np.zeros((count, count)), np.full((count, count), math.nan)
        for i, j in itertools.product(range(count), repeat=2):
            distance[i, j] = ((x[:, i] - x[:, j]) ** 2).mean()
            sizes = [math.sqrt((x[:, one] ** 2).sum()) for one in (i, j)]
            if min(sizes) > 0:
                cosine[i, j] = (x[:, i] * x[:, j]).sum() / (sizes[0] * sizes[1])
        setattr(found, f"distance{suffix}", distance)
        setattr(found, f"cosine{suffix}", cosine)
    for i, j in itertools.product(range(count), repeat=2):
        found.disagreement[i, j] = np.mean([np.argmax(u_e[i]) != np.argmax(u_e[j]) for u_e in u])
    return found


# --- the whole vocabulary -------------------------------------------------------------------------------------------


def whole_vocabulary(
    U: torch.Tensor | np.ndarray, next_tokens: Sequence[int | None], constant_rows: Iterable[int] = ()
) -> SimpleNamespace:
    """Squared and cross-entropy terms against the one-hot next token over the vocabulary, [component, position].

    U is [component, position, vocab] with the constant among the components. A constant row that is zero everywhere
    is not a member (the notation's "included where it is not zero"): it is not counted in |L| and its values are NaN.
    Where there is no next token, what needs one is NaN.
    """
    values = np.asarray(U, dtype=np.float64)
    members = [c for c in range(len(values)) if c not in set(constant_rows) or values[c].any()]
    columns = ("target_logit", "member_cross_entropy", "member_kl", "member_net_linear")
    found = SimpleNamespace(n_members=len(members), **{x: np.full(values.shape[:2], math.nan) for x in columns})
    found.entropy, found.cross_entropy = np.full((2, values.shape[1]), math.nan)
    for gauge in GAUGES:
        empty = {name: np.full(values.shape[:2], math.nan) for name in ("bias", "diversity", "net")}
        setattr(found, gauge, SimpleNamespace(**empty, loss=np.full(values.shape[1], math.nan)))
    for s, token in enumerate(next_tokens):
        u = values[members, s]
        for gauge in GAUGES:
            half = getattr(found, gauge)
            half.diversity[members, s] = [size(u.mean(0) - u_i, gauge) for u_i in u]
            if token is not None:
                target = np.eye(u.shape[1])[token]
                half.loss[s] = size(target - u.mean(0), gauge)
                half.bias[members, s] = [size(target - u_i, gauge) for u_i in u]
                half.net[members, s] = half.bias[members, s] - half.diversity[members, s]
        nats = cross_entropy(u[None], np.eye(u.shape[1])[[0 if token is None else token]])
        found.entropy[s], found.member_kl[members, s] = nats.entropy, nats.member_diversity
        if token is not None:
            found.cross_entropy[s], found.target_logit[members, s] = nats.loss, u[:, token]
            found.member_cross_entropy[members, s] = nats.member_bias
            found.member_net_linear[members, s] = nats.member_net_linear
    return found
