"""Profiles: bias and diversity of every component at every token, over the whole vocabulary.

Of a component's logit vector u_i over V ids a profile holds a few sums: its mean, its size and its products with the
mean of all components and with the target. Bias and diversity follow from these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..ensemble.terms import Part
from .profile_base import ComponentByPosition, PerComponent, PerPosition, Profile


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SquaredProfile(Profile):
    """Theorem 1 over the whole vocabulary, in squared logits; raw = shift + centered.

    bias = mean_v (t − u_i)² against the next token's one-hot (or the dense target), diversity = mean_v (ū − u_i)².

    Attributes:
        sizes, crosses: `[position, component]`: Σ_v of a component's centered logits squared, and times those of the
            mean of all components.
        powers, ensemble_means: `[position]`, of the mean of all components: Σ_v of its centered logits squared, and its
            mean logit.
        agreements, target_powers, target_means: Σ_v of the centered target times the component's logits `[position,
            component]` (None for the next token, where it is `centered_targets`); of the target itself, and its mean
            `[position]`.
        part: Which of the three this is.
    """

    sizes: PerComponent
    crosses: PerComponent
    powers: PerPosition
    ensemble_means: PerPosition
    agreements: PerComponent | None
    target_powers: PerPosition
    target_means: PerPosition
    part: Part = "raw"

    measured_in: ClassVar[str] = "logits²"

    @property
    def diversity_logit(self) -> ComponentByPosition:
        """|L|² × diversity: comparable between models and cuts with different numbers of members."""
        return len(self.components) ** 2 * self.diversity

    @property
    def has_target(self) -> np.ndarray:
        """`[position]`, whether there is a target; a dense one is everywhere."""
        return np.isfinite(self.target_means)

    @property
    def mse(self) -> PerPosition:
        """mean_v (t − ū)², `[position]`: the mean over components of bias − diversity."""
        product = self._agreements().mean(1)
        centered = (self.target_powers - 2 * product + self.powers) / self.vocabulary
        shift = (self.ensemble_means - self.target_means) ** 2
        return {"raw": centered + shift, "centered": centered, "shift": shift}[self.part]

    @cached_property
    def centered(self) -> SquaredProfile | None:
        """The half a softmax sees, under the same names; None in the halves themselves."""
        return replace(self, part="centered") if self.part == "raw" else None

    @cached_property
    def shift(self) -> SquaredProfile | None:
        """The half that is common to all ids; None in the halves themselves."""
        return replace(self, part="shift") if self.part == "raw" else None

    def _agreements(self, rows: Any = slice(None), columns: Any = slice(None)) -> PerComponent:
        table = self.centered_targets if self.agreements is None else self.agreements
        return table[rows][:, columns].astype(np.float64)

    @property
    def _term_names(self) -> tuple[str, ...]:
        suffixes = ("", "_centered", "_shift") if self.part == "raw" else ("",)
        return tuple(term + suffix for suffix in suffixes for term in ("bias", "diversity", "net"))

    def _term(self, name: str, rows: Any = slice(None), columns: Any = slice(None)) -> PerComponent:
        term, _, part = name.partition("_")
        part = part or self.part
        if part == "raw":  # the parts first, then their sum: raw − shift would cancel
            return self._term(f"{term}_centered", rows, columns) + self._term(f"{term}_shift", rows, columns)
        if part == "shift":
            mean = self.means[rows][:, columns].astype(np.float64)
            target, ensemble = self.target_means[rows, None], self.ensemble_means[rows, None]
            if term == "net":
                return target**2 - ensemble**2 + 2 * mean * (ensemble - target)
            return (mean - (target if term == "bias" else ensemble)) ** 2
        # |x − u_i|² = |x|² − 2 x · u_i + |u_i|², for x the target or the mean of all components.
        sizes, crosses = self.sizes[rows][:, columns], self.crosses[rows][:, columns]
        target, power = self.target_powers[rows, None], self.powers[rows, None]
        if term == "net":
            return (target - power + 2.0 * (crosses - self._agreements(rows, columns))) / self.vocabulary
        if term == "diversity":
            square = sizes - 2.0 * crosses + power
        else:
            square = target - 2.0 * self._agreements(rows, columns) + sizes
        return np.maximum(square, 0) / self.vocabulary  # below 0 by rounding only


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CrossEntropyProfile(Profile):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i) over the whole vocabulary, in nats.

    q_i = softmax(τu_i), p = softmax(τū): bias is CE(t, q_i), diversity KL(p ‖ q_i), net H(p) + τ(E_p[u_i] − u_i(t)).
    By default τ = |L|: p is the model's own distribution, before a soft-cap where there is one.

    Attributes:
        log_partitions, expectations: `[position, component]`: log Σ_v exp(τ u_i(v)) and E_p[u_i], of logits less their
            mean.
        entropies: `[position]`, H(p) in nats.
        tau: τ as used.
    """

    log_partitions: PerComponent
    expectations: PerComponent
    entropies: PerPosition
    tau: float

    measured_in: ClassVar[str] = "nats"
    _term_names = ("bias", "diversity", "net", "net_linear")

    @property
    def net_linear(self) -> ComponentByPosition:
        """(τ/|L|)(E_p[u_i] − u_i(t)): what each component adds to the loss beyond H(p); heads add to attention."""
        return self._term("net_linear").T

    @property
    def centered(self) -> CrossEntropyProfile:
        """This profile itself: a softmax sees no shift."""
        return self

    @property
    def cross_entropy(self) -> PerPosition:
        """CE(t, p) `[position]`: H(p) + Σ net_linear. It is `loss` where τ = |L| and nothing caps the logits."""
        return self.entropies + self.net_linear.sum(0)

    def _term(self, name: str, rows: Any = slice(None), columns: Any = slice(None)) -> PerComponent:
        log_partitions, expectations = self.log_partitions[rows][:, columns], self.expectations[rows][:, columns]
        targets, entropies = self.centered_targets[rows][:, columns], self.entropies[rows, None]
        if name == "bias":
            return np.maximum(log_partitions - self.tau * targets, 0)  # below 0 by rounding only
        if name == "diversity":
            return np.maximum(log_partitions - self.tau * expectations - entropies, 0)
        if name == "net":
            return entropies + self.tau * (expectations - targets)
        return self.tau / len(self.components) * (expectations - targets)
