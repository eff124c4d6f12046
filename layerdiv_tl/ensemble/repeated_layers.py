"""Do the uses of one block do different things? Of ensembles with layers that run several times in a pass.

u : [example, member, option] in logits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

from ..components import Component
from ..errors import InputError
from .frames import ratio
from .intervals import jackknife, leave_one_out
from .losses import Members

# Groups whose products are held at a time.
_AT_ONCE = 1000
Column = Float[np.ndarray, " group"]


def blocks_of(components: Sequence[Component]) -> list[Component]:
    """What each member is a use of: `L3.attn` of `L3@2.attn`. Raises InputError where no layer is used twice."""
    blocks = [replace(c, repeat=None) for c in components]
    if len(set(blocks)) == len(blocks):
        raise InputError(
            "no layer is used twice here, so there are no uses to compare: this is about models that run a block "
            "several times in one pass (L3@1, L3@2)."
        )
    return blocks


def shares(
    within: Float[np.ndarray, "example group"], between: Float[np.ndarray, "example group"]
) -> tuple[tuple[Column, Column, Column], tuple[float, float, float]]:
    """(each group's `within` as a share of all `within + between`, that of all groups), each with its interval."""
    whole = (within + between).sum(1)
    rest, each = leave_one_out(whole), ratio(within.mean(0), whole.mean())
    ends = jackknife(each, ratio(leave_one_out(within), rest[:, None]), within=(0.0, 1.0))
    total = float(ratio(within.sum(1).mean(), whole.mean()))
    low, high = jackknife(total, ratio(leave_one_out(within.sum(1)), rest), within=(0.0, 1.0))
    return (each, *ends), (total, float(low), float(high))


def cosines(u: Members, group: Int[np.ndarray, " member"], wanted: Sequence[int]) -> tuple[Column, Column, Column]:
    """The mean cosine between the members of each wanted group, centered over options, with its interval.

    Pooled over examples and options, then averaged over pairs; NaN where a member says nothing.
    """
    centered = u - u.mean(2, keepdims=True)
    mean, low, high = (np.full(len(wanted), np.nan) for _ in range(3))
    members = {number: np.flatnonzero(group == number) for number in wanted}
    for count in {len(found) for found in members.values()}:
        alike = [place for place, number in enumerate(wanted) if len(members[number]) == count]
        for start in range(0, len(alike), _AT_ONCE):
            some = alike[start : start + _AT_ONCE]
            repeats = [centered[:, [members[wanted[place]][repeat] for place in some]] for repeat in range(count)]
            power = [(x**2).sum(2) for x in repeats]
            found, left_out = np.zeros(len(some)), np.zeros((len(u), len(some)))
            pairs = list(combinations(range(count), 2))
            for one, other in pairs:
                product = (repeats[one] * repeats[other]).sum(2)
                size = np.sqrt(power[one].mean(0) * power[other].mean(0))
                sizes = np.sqrt(leave_one_out(power[one]) * leave_one_out(power[other]))
                with np.errstate(invalid="ignore", divide="ignore"):
                    found += product.mean(0) / size / len(pairs)
                    left_out += leave_one_out(product) / sizes / len(pairs)
            mean[some] = found
            low[some], high[some] = jackknife(found, left_out, within=(-1.0, 1.0))
    return mean, low, high
