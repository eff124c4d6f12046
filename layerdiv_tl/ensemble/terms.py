"""The numbers of a decomposition: terms per example, their means, and the halves of the squared error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from ..components import Component
from ..errors import InputError
from .hits import hits
from .losses import LOSSES, LacksQuantityError, Loss, Terms
from .tables import mean_of

Part = Literal["raw", "centered", "shift"]
# Not typing.Self, which run-time checks of types refuse outside a class that they decorate.
SameT = TypeVar("SameT", bound="EnsembleTerms")


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleTerms:
    """Members, a target, a loss, and what the loss makes of them per example and on average.

    Attributes:
        values, components: The members, `[example, member, option]` in logits, and their names.
        target, gold: `[example, option]`, and the gold option's index `[example]`, None for a dense target.
        loss_name, tau: One of `losses.LOSSES`, and the factor on logits before a softmax, None for the loss's own
            default.
        junctions, junction_scale, partial_junctions, identity_gap, soft_cap: As in `Contributions`; None for a plain
            array, whose every member closes a junction.
        part: "raw", or the half of the squared error that this is; the shift half has one option for all.
        error_note: What the parts of cut sublayers leave, as `Contributions` say it; "" at units that leave nothing.

    Not every loss offers every number or table: asking for a missing one raises InputError, which names the losses
    that have it.
    """

    values: Float[np.ndarray, "example member option"]
    components: tuple[Component, ...]
    target: Float[np.ndarray, "example option"]
    gold: Int[np.ndarray, " example"] | None
    loss_name: str
    tau: float | None
    junctions: tuple[Component, ...] | None
    junction_scale: Float[np.ndarray, "example junction"] | None
    partial_junctions: Bool[np.ndarray, " junction"] | None
    identity_gap: float | None
    soft_cap: float | None
    part: Part = "raw"
    error_note: str = ""
    # Of a prefix ensemble: prefixes of the halves, which need not be split again. Everything else is split on demand.
    known_halves: dict[Part, Any] | None = field(default=None, metadata={"saved": False})

    @property
    def loss_function(self) -> Loss:
        """The strategy that has the loss's formulas."""
        return LOSSES[self.loss_name]

    @property
    def factor(self) -> float:
        """τ as used."""
        return self.loss_function.default_tau(self.values.shape[1]) if self.tau is None else self.tau

    @cached_property
    def terms(self) -> Terms:
        """Loss, biases, diversities per example."""
        if self.halves:  # raw − shift cancels, shift + centered does not
            return self.centered.terms + self.shift.terms
        return self.loss_function.terms(self.values, self.target, self.factor)

    @cached_property
    def extras(self) -> dict[str, np.ndarray]:
        """What only this loss has, `[example]` or `[example, member]`, by name."""
        return self.loss_function.extras(self.values, self.target, self.factor, self.terms)

    @cached_property
    def halves(self: SameT) -> dict[Part, SameT]:
        """The centered and the shift half of the squared error, whole decompositions; none of other losses."""
        if self.known_halves is not None:
            return self.known_halves
        if self.part != "raw" or "centered" not in self.loss_function.offers:
            return {}
        shift, target = self.values.mean(2, keepdims=True), self.target.mean(1, keepdims=True)
        return {
            "centered": replace(self, values=self.values - shift, target=self.target - target, part="centered"),
            # It prefers no option, so it has no accuracy.
            "shift": replace(self, values=shift, target=target, gold=None, part="shift"),
        }

    @property
    def parts(self: SameT) -> dict[str, SameT]:
        """This and its halves, by the suffix of their columns."""
        return {"": self} | {f"_{part}": half for part, half in self.halves.items()}

    @property
    def centered(self: SameT) -> SameT:
        """The half that a softmax sees. Raises InputError for other losses, and in the halves themselves."""
        return self._half("centered")

    @property
    def shift(self: SameT) -> SameT:
        """The half that is common to all options. Raises InputError as `centered`."""
        return self._half("shift")

    @property
    def losses(self) -> Float[np.ndarray, " example"]:
        """The ensemble's loss, `[example]`."""
        return self.terms.losses

    @property
    def biases(self) -> Float[np.ndarray, "example member"]:
        """The members' own losses, `[example, member]`, undivided by |L|."""
        return self.terms.biases

    @property
    def diversities(self) -> Float[np.ndarray, "example member"]:
        """The members' distances from the ensemble, `[example, member]`, undivided by |L|."""
        return self.terms.diversities

    @property
    def loss(self) -> float:
        """The ensemble's loss, mean over examples."""
        return float(self.losses.mean())

    @property
    def bias(self) -> float:
        """Mean loss of the members, each on its own."""
        return float(self.biases.mean())

    @property
    def diversity(self) -> float:
        """Mean distance of the members from the ensemble; *ambiguity* elsewhere."""
        return float(self.diversities.mean())

    @property
    def zero_bias(self) -> float:
        """The bias of a zero member (u = 0), the baseline of all biases; after a softmax that is uniform."""
        return float(self.terms.zero_biases.mean())

    @property
    def zero_net(self) -> float:
        """bias − diversity of a zero member: what its net is compared with. The cross-entropy's is H(p)."""
        return self.zero_bias - float(self.terms.zero_diversities.mean())

    @property
    def gap(self) -> float | None:
        """|loss − (bias − diversity)| relative to the largest of the three; None where units differ ("paper")."""
        if not self.loss_function.is_exact:
            return None
        scale = max(abs(self.loss), abs(self.bias), abs(self.diversity), np.finfo(float).tiny)
        return abs(self.loss - (self.bias - self.diversity)) / scale

    @property
    def diversity_logit(self) -> float:
        """|L|² × diversity in logits²: comparable between models and cuts with different numbers of members."""
        return self._extra_mean("diversity_logit")

    @property
    def coherence(self) -> float:
        """|Σu|² / Σ|u|², mean over examples with a member that is not 0: 1 orthogonal, |L| identical members."""
        return self._extra_mean("coherence")

    @property
    def entropy(self) -> float:
        """H(p) in nats: what the cross-entropy would be if p were the target's distribution."""
        return self._extra_mean("entropy")

    @property
    def net_linear(self) -> Float[np.ndarray, "example member"]:
        """What each member adds to the cross-entropy beyond H(p), `[example, member]` in nats; linear in u_i."""
        self.loss_function.require("net_linear")
        return self.extras["net_linear"]

    @property
    def model_loss(self) -> float:
        """The Brier loss of the model's own distribution over the options, softmax(Σu)."""
        return self._extra_mean("model_loss")

    @property
    def combiner_gap(self) -> float:
        """model_loss − loss: what it costs the model to combine its members by multiplying, not by averaging."""
        return self._extra_mean("combiner_gap")

    @property
    def mismatch(self) -> float:
        """loss − (bias − diversity) of Eq. 14, in mixed units: by how much it does not hold."""
        return self._extra_mean("mismatch")

    @cached_property
    def correct(self) -> Float[np.ndarray, "example member"] | None:
        """Whether a member alone prefers the gold option (1/n of equals), `[example, member]`; None without labels."""
        if self.gold is None:
            return None
        return hits(self.values, self.gold[:, None])

    @cached_property
    def differences(self) -> Float[np.ndarray, "example member"] | None:
        """A member's logit of the gold option less the mean of the others', `[example, member]`; None without labels.

        Their sum over members is the model's logit difference, of two options the right less the wrong one.
        """
        if self.gold is None:
            return None
        count = self.values.shape[2]
        weights = np.where(np.eye(count, dtype=bool)[self.gold], 1.0, -1.0 / (count - 1))
        return np.einsum("emk,ek->em", self.values, weights)

    @cached_property
    def ensemble_correct(self) -> Float[np.ndarray, " example"] | None:
        """Whether all together prefer the gold option (see `hits`), `[example]`; None without labels."""
        return None if self.gold is None else hits(self.values.sum(1), self.gold)

    @property
    def accuracy(self) -> float:
        """How often the ensemble prefers the gold option. Raises InputError without labels."""
        if self.ensemble_correct is None:
            raise InputError("this decomposition has no gold option for each example, so no accuracy: give labels.")
        return float(self.ensemble_correct.mean())

    def _half(self: SameT, part: Part) -> SameT:
        self.loss_function.require(part)
        if self.part != "raw":
            raise LacksQuantityError(f"this is the {self.part} half: ask the whole decomposition for its halves.")
        return self.halves[part]

    def _extra_mean(self, name: str) -> float:
        self.loss_function.require(name)
        return float(mean_of(self.extras[name].reshape(-1, 1))[0])
