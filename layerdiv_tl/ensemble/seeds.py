"""Do the errors of members vary together over training seeds? Bias, variance and covariance of several models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .._checks import listed
from ..errors import InputError
from .intervals import jackknife, leave_one_out, mean_interval
from .validation import Ensemble, EnsembleLike, Labels, as_ensemble, dense_target, gold_options

if TYPE_CHECKING:
    import pandas as pd

# A variance is estimated from no fewer models.
LEAST_SEEDS = 3


def seed_covariance(
    ensembles: Sequence[EnsembleLike],
    labels: Labels = None,
    target: Float[np.ndarray, "example option"] | Ensemble | None = None,
) -> pd.DataFrame:
    """How the errors of n components vary over training seeds: loss = bias² + variance/n + (1 − 1/n)·covariance.

    Every component is read as the predictor n·u_i, whose mean over components is the logits; expectations are over
    seeds, estimated without bias (Ueda and Nakano 1996). In logits² of centered options, summed over them. Averaging
    of independent errors has no covariance; components that make up for one another have a negative one, down to
    −1/(n − 1) of the variance, which leaves no variance of the sum; one error in common has a ratio of 1.

    Args:
        ensembles: The same rows, options and components of at least three models: `Contributions` of equal seeds'
            shapes, components matched by their labels; or arrays `[example, member, option]`.
        labels, target: As in `decompose`, for the squared error; exactly one of the two.

    Returns one row per term (`loss`, `bias`, `variance`, `covariance`, which adds to the loss; `ratio`, of the mean
    covariance of two components to the mean variance of one), with 95 % intervals over rows (`low`, `high`; not over
    which seeds there are). `attrs` has `seeds`, `members` and the `floor` of the ratio. Raises InputError for fewer
    than three models, for ones that differ in rows, components or options, for one member, and as `decompose` does.

    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(4, 50, 6, 3))  # seeds, examples, members, options
    >>> table = seed_covariance(list(noise), labels=[0] * 50).set_index("term")["value"]
    >>> bool(abs(table["bias"] + table["variance"] + table["covariance"] - table["loss"]) < 1e-9)
    True
    >>> bool(abs(table["ratio"]) < 0.05)
    True
    """
    import pandas as pd

    members = [as_ensemble(x) for x in listed("ensembles", ensembles, "contributions of several seeds")]
    if len(members) < LEAST_SEEDS:
        raise InputError(f"ensembles holds {len(members)} models: a variance over seeds needs at least {LEAST_SEEDS}.")
    first = members[0]
    for number, other in enumerate(members[1:], start=1):
        for what, name in (("components", "components"), ("options", "options"), ("token_ids", "rows")):
            mine, theirs = (np.asarray(getattr(x, what, ()), dtype=object) for x in (first, other))
            if first.values.shape != other.values.shape or not np.array_equal(mine, theirs):
                raise InputError(f"ensembles[{number}] has other {name} than the first: take all of the same ones.")
    if (labels is None) == (target is None):
        raise InputError("give exactly one of labels (a gold option for each example) and target (logits).")
    _, n, k = first.values.shape
    if n < 2:
        raise InputError("ensembles have one member each, which nothing can vary with: give at least two.")
    if labels is None:
        t = dense_target(target, first, False)
    else:
        t = np.eye(k)[gold_options(labels, first.values.shape, first.options)]
    t = t - t.mean(1, keepdims=True)
    u = n * np.stack([np.asarray(x.values, dtype=np.float64) for x in members])
    u -= u.mean(3, keepdims=True)
    seeds, away = len(u), u - u.mean(0)
    variance = (away**2).sum((0, 2, 3)) / (seeds - 1) / n
    of_sum = (away.mean(2) ** 2).sum((0, 2)) / (seeds - 1)
    loss = ((u.mean(2) - t) ** 2).sum(2).mean(0)
    terms = {
        "loss": loss,
        "bias": ((u.mean((0, 2)) - t) ** 2).sum(1) - of_sum / seeds,
        "variance": variance / n,
        "covariance": of_sum - variance / n,
    }
    found = {name: (x.mean(), *mean_interval(x)) for name, x in terms.items()}
    of_pairs = (terms["covariance"], terms["variance"] * (n - 1))
    if terms["variance"].any():
        left_out = [leave_one_out(x) for x in of_pairs]
        ratio = of_pairs[0].mean() / of_pairs[1].mean()
        found["ratio"] = (ratio, *jackknife(ratio, left_out[0] / left_out[1], within=(-1 / (n - 1), 1.0)))
    rows = [(name, *map(float, numbers)) for name, numbers in found.items()]
    frame = pd.DataFrame(rows, columns=["term", "value", "low", "high"])
    frame.attrs |= {"units": {"value": "logits²; ratio: share"}, "seeds": seeds, "members": n, "floor": -1 / (n - 1)}
    return frame
