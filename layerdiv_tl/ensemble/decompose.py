"""`decompose`: from members and labels, or a target, to a decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from jaxtyping import Float

from .._checks import choice
from ..components import Component
from ..errors import InputError
from .decomposition import Decomposition
from .losses import LOSSES, Gauge
from .validation import EnsembleLike, Labels, as_ensemble, dense_target, gold_options


def decompose(
    ensemble: EnsembleLike,
    labels: Labels = None,
    *,
    target: Float[np.ndarray, "example option"] | None = None,
    loss: str = "squared",
    gauge: Gauge = "centered",
    components: Sequence[str | Component] | None = None,
) -> Decomposition:
    """Decompose an ensemble's loss into bias and diversity; exact for every loss except the paper's own.

    Args:
        ensemble: `Contributions`, whose array the result shares (for options of several tokens their `scores()`, parts
            of log-likelihoods, in nats), or an array `[example, member, option]` of logits.
        labels: The gold option of each example, as its index or its text, by default the contributions' own: the target
            is then one-hot.
        target: Any other target, `[example, option]`: another model's logits for the squared error, its probabilities
            over the options for the other losses.
        loss: "squared": Theorem 1 in logits; "cross_entropy": in nats; "paper": Eq. 14, as the paper computed its
            numbers, which mixes units. The formulas are in `ensemble.losses`.
        gauge: Of the squared error: "centered", members and target minus their mean over the options, as a softmax sees
            them; "shift", that mean alone; "raw", both together. Of other losses only `pairwise` has a gauge: Eq. 14's
            diversity is raw, and a softmax does not see the shift.
        components: Names for the members of a plain array, as components or labels like "L0.mlp".

    Raises InputError for labels that name no option or are of the wrong number, a target of the wrong shape or not a
    distribution where one is needed, fewer than two options, no members, and numbers that are not finite.

    >>> u = np.array([[[2.0, 0.0], [0.0, 0.0]]])
    >>> d = decompose(u, [0])
    >>> d.loss, d.bias, d.diversity
    (0.0, 0.25, 0.25)
    >>> decompose(u, [0], gauge="shift").diversity, decompose(u, [0], gauge="raw").diversity
    (0.25, 0.5)
    >>> ce = decompose(u, [0], loss="cross_entropy")
    >>> round(ce.loss, 3), round(ce.bias - ce.diversity, 3), round(ce.entropy + float(ce.net_linear.sum()), 3)
    (0.127, 0.127, 0.127)
    """
    strategy = LOSSES[choice("loss", loss, LOSSES)]
    choice("gauge", gauge, get_args(Gauge))
    if gauge == "shift" and not strategy.has_gauges:
        raise InputError(f"loss={loss!r} has no gauge: gauge='shift' is a part of the squared error.")
    known = as_ensemble(ensemble, components)
    if labels is None and target is None:
        labels = known.labels
    if (labels is None) == (target is None):
        raise InputError("give either labels (a gold option for each example) or target (e.g. another model's logits).")
    count, _, options = known.values.shape
    gold = None
    if labels is None:
        t = dense_target(target, (count, options), strategy.compares_probabilities)
    else:
        gold = gold_options(labels, known.values.shape, known.options)
        t = np.eye(options)[gold]
    shared = ("values", "components", "junctions", "partial_junctions", "identity_gap", "soft_cap")
    fields = {name: getattr(known, name) for name in (*shared, "model", "task", "prompt_ends", "score")}
    names = known.option_names or known.shared_options or ()
    return Decomposition(target=t, gold=gold, loss_name=loss, gauge=gauge, options=names, **fields)
