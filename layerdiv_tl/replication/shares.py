"""Each module's share of bias and of diversity, compared with its share of components (Fig. 4, Eq. 9-10)."""

from __future__ import annotations

import pandas as pd

from .._checks import number
from ..ensemble.intervals import LEVEL, estimate
from ..ensemble.validation import checked, framed
from ..errors import InputError

TERMS = ("bias", "bias_centered", "diversity", "diversity_centered")


def module_shares(frame: pd.DataFrame, *, confidence_level: float = LEVEL) -> pd.DataFrame:
    """Compute each module's share of a term, per model and averaged over its tasks (Fig. 4).

    Args:
        frame: Concatenated `Decomposition.by_module()` of several models and tasks, with columns `model`, `task`,
            `module`, `members`, and any of `bias`, `bias_centered`, `diversity`, `diversity_centered`, which must be
            additive over modules.

    Returns one row per model, module, term (`bias`, `diversity`) and gauge (`raw`, `centered`). `share` is the mean
    over `tasks` of part / whole, with an interval over tasks (NaN for fewer than 8); tasks with a whole of 0 are left
    out, and a missing `constant` counts as 0. `member_share` is the mean of n_g/|L|, the share if all members were
    alike, and `excess` is share − member_share. Raises InputError for missing columns, duplicate modules in a task, and
    a model whose other modules differ between tasks.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "module": ["attention", "mlp"], "members": [1, 3],
    ...                       "diversity": [1.0, 1.0]})
    >>> module_shares(frame)[["module", "share", "member_share", "excess"]].values.tolist()
    [['attention', 0.5, 0.25, 0.25], ['mlp', 0.5, 0.75, -0.25]]
    """
    number("level", confidence_level, above=0, below=1)
    terms = [term for term in TERMS if term in framed(frame)]
    if not terms:
        raise InputError(f"the frame has none of the columns {', '.join(TERMS)}: give that of by_module().")
    frame = checked(frame, ("model", "task", "module"), ("members", *terms))
    parts = []
    for model, of_model in frame.groupby("model", sort=False):
        members = of_model.pivot(index="task", columns="module", values="members")
        lacking = members.isna().any()
        if lacking.drop("constant", errors="ignore").any() or (members.nunique() > 1).any():
            raise InputError(f"the modules of {model!r} differ from task to task: give one unit at a time.")
        order = list(dict.fromkeys(of_model["module"]))
        member_share = members.fillna(0).div(members.sum(axis=1), axis=0).mean()[order].to_numpy()
        for term in terms:
            values = of_model.pivot(index="task", columns="module", values=term)[order]
            values = values.where(members[order].notna(), 0.0)
            shares = values.div(values.sum(axis=1), axis=0)[values.sum(axis=1) > 0].dropna().to_numpy()
            name, _, gauge = term.partition("_")
            part = pd.DataFrame({"model": model, "module": order, "term": name, "gauge": gauge or "raw"})
            part[["share", "low", "high"]] = float("nan")
            if len(shares):
                e = estimate(shares, over="tasks", confidence_level=confidence_level)
                part["share"], part["low"], part["high"] = e.value, e.low, e.high
            part["member_share"], part["excess"] = member_share, part["share"] - member_share
            parts.append(part.assign(tasks=len(shares)))
    table = pd.concat(parts, ignore_index=True)
    table.attrs["units"] = dict.fromkeys(("share", "low", "high", "member_share", "excess"), "share")
    return table
