"""Nested cuts: diversity within and between groups of members, and between the repeats of a reused layer (MATHS 8).

The formulas are those of a loss (`losses.SquaredError.nested`, `losses.CrossEntropy.nested`); here they become tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .arrays import Members, Target, group_numbers
from .frames import ENDS, means, shares, with_ends
from .intervals import jackknife, leave_one_out, mean_interval
from .losses import Group, Loss

if TYPE_CHECKING:
    import pandas as pd

# Groups whose products are held at a time.
_AT_ONCE = 1000
Arrays = dict[str, np.ndarray]
Column = Float[np.ndarray, " group"]
# Members and target by the suffix of their columns: "", "_centered", "_shift".
Gauges = Mapping[str, tuple[Members, Target]]


def groups_of(components: Sequence[Component], groups: Sequence[object] | None) -> tuple[list, Group]:
    """(the groups' names, each member's number); None groups by sublayer. Raises InputError as `nested` says."""
    if groups is not None:
        groups = listed("groups", groups, "a list with a name for each member")
        if not all(isinstance(name, str | int | float | Component) and name == name for name in groups):
            raise InputError("groups must be texts, numbers or components, one for each member.")
        if len(groups) != len(components):
            raise InputError(f"groups names {len(groups)} members, but there are {len(components)}: one for each.")
    names, group = group_numbers([c.sublayer for c in components] if groups is None else groups)
    if len(names) == len(group):
        raise InputError(
            "every group has one member, so nothing is nested: use unit='head' or 'neuron', or name the groups."
        )
    return names, group


def nested_terms(loss: Loss, gauges: Gauges, group: Group) -> tuple[Arrays, Arrays]:
    """(the coarser ensemble's loss `[example]`; bias, within, between `[example, group]`), with suffixes."""
    losses: dict[str, np.ndarray] = {}
    terms: dict[str, np.ndarray] = {}
    for suffix, (u, t) in gauges.items():
        losses[suffix], measured = loss.nested(u, t, group)
        terms |= {name + suffix: values for name, values in measured.items()}
    if "_centered" in losses:  # as everywhere: the halves first, then their sum
        for values in (losses, terms):
            for name in [name.removesuffix("_shift") for name in values if name.endswith("_shift")]:
                values[name] = values[f"{name}_centered"] + values[f"{name}_shift"]
    return losses, terms


def nested_frame(
    names: list, group: Group, losses: dict[str, np.ndarray], terms: dict[str, np.ndarray]
) -> pd.DataFrame:
    """One row per group; the ensemble's totals with their intervals, and the gap of the identity, in `attrs`."""
    import pandas as pd

    columns: dict[str, Any] = {"group": [str(name) for name in names]}
    if all(isinstance(name, Component) for name in names):
        columns |= {
            column: values
            for column, values in component_columns(names).items()
            if column in ("kind", "layer", "repeat")
        }
    frame = pd.DataFrame(columns | {"members": np.bincount(group)} | means(terms))
    for suffix, loss in losses.items():
        totals = {name: float(terms[name + suffix].mean()) for name in ("bias", "within", "between")}
        gap = abs(loss.mean() - (totals["bias"] - totals["within"] - totals["between"]))
        scale = max(abs(float(loss.mean())), *totals.values(), np.finfo(float).tiny)
        per_example = {name: terms[name + suffix].mean(1) for name in totals}
        frame.attrs |= {f"loss{suffix}": float(loss.mean())} | {name + suffix: x for name, x in totals.items()}
        frame.attrs[f"gap{suffix}"] = float(gap / scale)
        for name, values in (per_example | {"loss": loss}).items():
            low, high = mean_interval(values)
            frame.attrs |= {f"{name}{suffix}_low": float(low), f"{name}{suffix}_high": float(high)}
    return frame


def blocks_of(components: Sequence[Component]) -> list[Component]:
    """The block that each member repeats: `L3.attn` of `L3@2.attn`. Raises InputError where no layer is repeated."""
    blocks = [replace(c, repeat=None) for c in components]
    if len(set(blocks)) == len(blocks):
        raise InputError(
            "no layer is used twice here, so there are no repeats to compare: this is about models that run a block "
            "several times in one pass (L3@1, L3@2)."
        )
    return blocks


def repeats_frame(loss: Loss, gauges: Gauges, components: Sequence[Component]) -> pd.DataFrame:
    """One row per repeated block: the nested cut with blocks for groups, shares of the diversity, cosines."""
    import pandas as pd

    names, group = group_numbers(blocks_of(components))
    losses, terms = nested_terms(loss, gauges, group)
    table = nested_frame(names, group, losses, terms)
    repeated = np.flatnonzero(np.bincount(group) > 1)
    columns: dict[str, Any] = component_columns([names[i] for i in repeated])
    del columns["repeat"]
    columns["repeats"] = table["members"].to_numpy()[repeated]
    attrs: dict[Any, Any] = dict(table.attrs)
    for suffix in gauges:
        for source, column in (("within_unscaled", "diversity"), ("within", "within"), ("between", "between")):
            for end in ENDS:
                if f"{source}{suffix}{end}" in table:
                    columns[f"{column}{suffix}{end}"] = table[f"{source}{suffix}{end}"].to_numpy()[repeated]
        # `within` as a share of all of both: of each block, and of all blocks together.
        within, whole = terms[f"within{suffix}"], (terms[f"within{suffix}"] + terms[f"between{suffix}"]).sum(1)
        columns |= with_ends(f"share{suffix}", *(values[repeated] for values in shares(within, whole)))
        total = shares(within.sum(1, keepdims=True), whole)
        attrs |= with_ends(f"share{suffix}", *(float(values[0]) for values in total))
    columns |= with_ends("cosine_centered", *cosines(gauges[""][0], group, repeated.tolist()))
    frame = pd.DataFrame(columns)
    frame.attrs |= attrs
    return frame


def cosines(u: Members, group: Group, wanted: Sequence[int]) -> tuple[Column, Column, Column]:
    """The mean cosine between the members of each wanted group, centered over options, with its interval.

    Pooled over examples and options, then averaged over pairs; NaN where a member is zero.
    """
    centered = u - u.mean(2, keepdims=True)
    mean, low, high = (np.full(len(wanted), np.nan) for _ in range(3))
    members = {number: np.flatnonzero(group == number) for number in wanted}
    # Groups with as many members at once, since there may be thousands (every neuron's repeats).
    for count in {len(inside) for inside in members.values()}:
        same_size = [row for row, number in enumerate(wanted) if len(members[number]) == count]
        for start in range(0, len(same_size), _AT_ONCE):
            rows = same_size[start : start + _AT_ONCE]
            repeats = [centered[:, [members[wanted[row]][repeat] for row in rows]] for repeat in range(count)]
            power = [(x**2).sum(2) for x in repeats]
            cosine, left_out = np.zeros(len(rows)), np.zeros((len(u), len(rows)))
            pairs = list(combinations(range(count), 2))
            for i, j in pairs:
                product = (repeats[i] * repeats[j]).sum(2)
                size = np.sqrt(power[i].mean(0) * power[j].mean(0))
                sizes = np.sqrt(leave_one_out(power[i]) * leave_one_out(power[j]))
                with np.errstate(invalid="ignore", divide="ignore"):
                    cosine += product.mean(0) / size / len(pairs)
                    left_out += leave_one_out(product) / sizes / len(pairs)
            mean[rows] = cosine
            low[rows], high[rows] = jackknife(cosine, left_out, within=(-1.0, 1.0))
    return mean, low, high
