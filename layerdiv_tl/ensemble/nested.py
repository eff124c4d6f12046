"""Nested cuts: diversity within and between groups of members, and between the repeats of a reused layer.

The formulas are those of a loss (`losses.SquaredError.nested`, `losses.CrossEntropy.nested`); here they become tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .intervals import mean_interval
from .losses import Group, Loss, Members, Target, group_numbers
from .pairs import mean_cosines
from .tables import ENDS, means, shares, with_ends

if TYPE_CHECKING:
    import pandas as pd

# Members and target by the suffix of their columns: "", "_centered", "_shift".
Parts = Mapping[str, tuple[Members, Target]]


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


def nested_frame(loss: Loss, parts: Parts, names: list, group: Group) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """One row per group, the ensemble's totals with their intervals and the identity's gap in `attrs`; and the terms.

    Terms are bias, within, between `[example, group]`, with suffixes.
    """
    import pandas as pd

    losses: dict[str, np.ndarray] = {}
    terms: dict[str, np.ndarray] = {}
    for suffix, (u, t) in parts.items():
        losses[suffix], measured = loss.nested(u, t, group)
        terms |= {name + suffix: values for name, values in measured.items()}
    if "_centered" in losses:  # as everywhere: the halves first, then their sum
        for arrays in (losses, terms):
            for name in [name.removesuffix("_shift") for name in arrays if name.endswith("_shift")]:
                arrays[name] = arrays[f"{name}_centered"] + arrays[f"{name}_shift"]
    columns: dict[str, Any] = {"group": [str(name) for name in names]}
    if all(isinstance(name, Component) for name in names):
        of_names = component_columns(names)
        columns |= {column: of_names[column] for column in ("kind", "layer", "repeat")}
    frame = pd.DataFrame(columns | {"members": np.bincount(group)} | means(terms))
    for suffix, values in losses.items():
        per_example = {name: terms[name + suffix].mean(1) for name in ("bias", "within", "between")}
        mean = {name: float(terms[name + suffix].mean()) for name in per_example} | {"loss": float(values.mean())}
        gap = abs(mean["loss"] - (mean["bias"] - mean["within"] - mean["between"]))
        frame.attrs[f"gap{suffix}"] = gap / max(*map(abs, mean.values()), np.finfo(float).tiny)
        for name, x in (per_example | {"loss": values}).items():
            frame.attrs |= with_ends(name + suffix, mean[name], *map(float, mean_interval(x)))
    return frame, terms


def repeats_frame(loss: Loss, parts: Parts, components: Sequence[Component]) -> pd.DataFrame:
    """One row per repeated block: the nested cut with blocks for groups, shares of the diversity, cosines.

    Raises InputError where no layer is repeated.
    """
    import pandas as pd

    # `L3.attn` of `L3@2.attn`.
    names, group = group_numbers([replace(c, repeat=None) for c in components])
    if len(names) == len(group):
        raise InputError(
            "no layer is used twice here, so there are no repeats to compare: this is about models that run a block "
            "several times in one pass (L3@1, L3@2)."
        )
    table, terms = nested_frame(loss, parts, names, group)
    repeated = np.flatnonzero(np.bincount(group) > 1)
    columns: dict[str, Any] = component_columns([names[i] for i in repeated])
    del columns["repeat"]
    columns["repeats"] = table["members"].to_numpy()[repeated]
    attrs: dict[Any, Any] = dict(table.attrs)
    for suffix in parts:
        for source, column in (("within_unscaled", "diversity"), ("within", "within"), ("between", "between")):
            for end in ENDS:
                if f"{source}{suffix}{end}" in table:
                    columns[f"{column}{suffix}{end}"] = table[f"{source}{suffix}{end}"].to_numpy()[repeated]
        # `within` as a share of all of both: of each block, and of all blocks together.
        within, whole = terms[f"within{suffix}"], (terms[f"within{suffix}"] + terms[f"between{suffix}"]).sum(1)
        columns |= with_ends(f"share{suffix}", *(values[repeated] for values in shares(within, whole)))
        total = shares(within.sum(1, keepdims=True), whole)
        attrs |= with_ends(f"share{suffix}", *(float(values[0]) for values in total))
    columns |= with_ends("cosine_centered", *mean_cosines(parts[""][0], group, repeated.tolist()))
    frame = pd.DataFrame(columns)
    frame.attrs |= attrs
    return frame
