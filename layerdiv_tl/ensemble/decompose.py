"""`decompose`: from members and labels, or a target, to a decomposition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .._checks import choice
from ..components import Component
from ..errors import InputError
from .decomposition import Decomposition
from .losses import LOSSES
from .validation import Ensemble, EnsembleLike, Labels, as_ensemble, dense_target, factor, gold_options


def decompose(
    ensemble: EnsembleLike,
    labels: Labels = None,
    target: Float[np.ndarray, "example option"] | Ensemble | None = None,
    loss: str = "squared",
    *,
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> Decomposition:
    """Decompose an ensemble's loss into bias and diversity; exact for every loss except the paper's own.

    Args:
        ensemble: `Contributions`, whose array the result shares (for options of several tokens their `scores()`, parts
            of log-likelihoods, in nats), or an array `[example, member, option]` of logits.
        labels: The gold option of each example, as its index or its text: the target is then one-hot.
        target: Any other target, `[example, option]`: another model's logits for the squared error, its probabilities
            over the options for the other losses; or that model's `Contributions` to the same options. Give either
            labels or target.
        loss: "squared": Theorem 1 in logits; "cross_entropy": in nats; "brier": between probabilities; "paper": Eq. 14,
            as the paper computed its numbers, which mixes units. The formulas are in `ensemble.losses`.
        tau: The temperature on logits before a softmax, for "cross_entropy" (default |L|: the model's own distribution)
            and "brier" (default 1: the paper's scale).
        components: Names for the members of a plain array, as components or labels like "L0.mlp".

    Raises InputError for labels out of range or of the wrong number, a target of the wrong shape or not
    a distribution where one is needed, fewer than two options, no members, and numbers that are not finite.

    >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0])
    >>> d.loss, d.bias, d.diversity
    (0.0, 0.5, 0.5)
    >>> d.centered.diversity, d.shift.diversity
    (0.25, 0.25)
    >>> ce = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0], loss="cross_entropy")
    >>> round(ce.loss, 3), round(ce.bias - ce.diversity, 3), round(ce.entropy + float(ce.net_linear.sum()), 3)
    (0.127, 0.127, 0.127)
    """
    strategy = LOSSES[choice("loss", loss, LOSSES)]
    if tau is not None:
        strategy.require("tau")
    members = as_ensemble(ensemble, components)
    if (labels is None) == (target is None):
        raise InputError("give exactly one of labels (a gold option for each example) and target (logits).")
    gold = None if labels is None else gold_options(labels, members.values.shape, members.options)
    if gold is None:
        t = dense_target(target, members, strategy.compares_probabilities)
    else:
        t = np.eye(members.values.shape[2])[gold]
    shared = ("values", "components", "junctions", "junction_scale", "partial_junctions", "identity_gap", "soft_cap")
    own = {name: getattr(members, name) for name in shared}
    # The note is on a cut's error.
    own |= {name: getattr(members, name, "") for name in ("error_note", "model", "task")}
    own["prompt_ends"] = getattr(members, "prompt_ends", ())
    return Decomposition(target=t, gold=gold, loss_name=loss, tau=factor(tau), **own)
