"""Score whether a model gives the right answer, with one rule for ties, and by what margin."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

# Logits (or nats) that differ by less, relative to the right option's where that is above 1, count as ties.
TIE = 1e-9


def hits(scores: Any, gold: Any) -> Any:
    """Return 1 where option `gold` has the largest score, 1/n where n options tie for first place, else 0.

    Args:
        scores: `[*rest, option]`, logits or log-probabilities: a numpy array or a tensor.
        gold: The right option's number, `[*#rest]`: integers of the same library.

    >>> hits(np.array([[2.0, 1.0], [0.0, 0.0], [1.0, 2.0]]), np.array([0, 0, 0])).tolist()
    [1.0, 0.5, 0.0]
    """
    take = np.take_along_axis if isinstance(scores, np.ndarray) else type(scores).take_along_dim
    right = take(scores, gold[..., None], -1)
    ahead, tie = scores - right, TIE * abs(right).clip(min=1)
    return ~(ahead > tie).any(-1) / (abs(ahead) <= tie).sum(-1)


def logit_differences(
    values: Float[np.ndarray, "example member option"], gold: Int[np.ndarray, " example"]
) -> Float[np.ndarray, "example member"]:
    """Compute each member's logit of the gold option minus the mean of the other options.

    >>> logit_differences(np.array([[[3.0, 1.0, 0.0]]]), np.array([0])).tolist()
    [[2.5]]
    """
    count = values.shape[2]
    weights = np.where(np.eye(count, dtype=bool)[gold], 1.0, -1.0 / (count - 1))
    return np.einsum("emk,ek->em", values, weights)
