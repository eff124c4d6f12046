"""Members that are silent at some examples, such as the experts of a mixture: what of their diversity that makes.

A silent member's row is exactly zero, so that its distance from the ensemble is the ensemble's own size, whatever the
member would have said. Of a member with the share p of active examples, and with d = ū − u, as means over examples:

    mean |d|²  =  (1 − p) · mean_silent |ū|²  +  p · |m|²  +  p · (mean_active |d|² − |m|²),     m = mean_active d

These are `idle`; what is the same at all examples where it writes, `fixed`; and what differs between these, `varying`.
|m|² is estimated without its bias, s²/n with the variance s² of n active examples, so that a member that only scatters
has nothing fixed. `losses.split_within` does the same for a group at one example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..components import Component, component_columns
from ..errors import InputError
from .intervals import jackknife, mean_interval, wilson
from .losses import Members, ratio
from .tables import with_ends

if TYPE_CHECKING:
    import pandas as pd


def activity_frame(parts: dict[str, Members], components: Sequence[Component]) -> pd.DataFrame:
    """One row per member that is silent somewhere: what its diversity is made of. `parts`: by suffix of columns.

    Raises InputError where no member is ever silent.
    """
    import pandas as pd

    active = (parts[""] != 0).any(2)
    wanted = np.flatnonzero(~active.all(0))
    if not len(wanted):
        raise InputError("no member is silent at any example, so there is nothing to split: use unit='expert'.")
    n, p = len(active), active[:, wanted].astype(np.float64)
    columns: dict[str, Any] = component_columns([components[i] for i in wanted.tolist()])
    columns |= with_ends("active", p.mean(0), *wilson(p.sum(0), n))
    for suffix, u in parts.items():
        d = u.mean(1, keepdims=True) - u[:, wanted]
        whole = (d**2).mean(2)
        columns |= with_ends(f"diversity{suffix}", whole.mean(0), *mean_interval(whole))
        idle = np.where(p > 0, 0.0, whole)
        columns |= with_ends(f"idle{suffix}", idle.mean(0), *mean_interval(idle))
        for name, (value, left_out) in _of_active(d, p).items():
            columns |= with_ends(f"{name}{suffix}", value, *jackknife(value, left_out))
    return pd.DataFrame(columns)


def _of_active(
    d: Members, p: Float[np.ndarray, "example member"]
) -> dict[str, tuple[np.ndarray, Float[np.ndarray, "example member"]]]:
    """(estimate, the same without each example) of `fixed` and `varying`; NaN for a member active at fewer than two.

    From sums over active examples, of d and of |d|²: no array is larger than `d`.
    """
    n, first, second = p.sum(0), (d * p[..., None]).sum(0), ((d**2).mean(2) * p).sum(0)
    count = len(p)

    def estimate(n: Any, first: Any, second: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        square = (first**2).mean(-1)
        scatter = ratio(second - ratio(square, n), n - 1)  # s², over options the mean
        scatter = np.where(n > 1, scatter, np.nan)
        varying = scatter * n / count
        return second / count - varying, varying

    values = estimate(n, first, second, count)
    fixed, varying = np.empty_like(p), np.empty_like(p)
    for i in range(count):  # one at a time, so that no [example, member, option] array is made again
        own = p[i]
        rest = estimate(n - own, first - d[i] * own[:, None], second - (d[i] ** 2).mean(1) * own, count - 1)
        fixed[i], varying[i] = rest
    return {"fixed": (values[0], fixed), "varying": (values[1], varying)}
