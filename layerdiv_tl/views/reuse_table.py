"""Reuse of layers in words and as a table for a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..errors import InputError
from ..replication.layer_sharing import DEPTH, PARAMETERS
from ..studies.study import Study
from . import style

if TYPE_CHECKING:
    import pandas as pd

# Ratio of `Study.reuse` -> heading.
_RATIOS = {
    "diversity": "diversity, raw",
    "diversity_centered": "diversity, centered",
    "diversity_logit": "|L|² × diversity, raw",
    "diversity_logit_centered": "|L|² × diversity, centered",
}
CAPTION = (
    "Diversity of the model that reuses layers over that of the other, [95 % interval]: the diversity of a mean falls "
    "with the number of members, |L|² × diversity does not. Averaged over tasks that both have. An interval over tasks "
    "speaks of these two models; one over seeds, of models of these shapes. MSE and bias: Study.reuse."
)


def reuse_of(study: Study, unit: Unit) -> pd.DataFrame | None:
    """The frame of `Study.reuse`; None where there is no pair."""
    try:
        return study.layer_sharing(unit)
    except InputError:
        return None


def reuse_table(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each pair, as text."""
    import pandas as pd

    rows = []
    for row in frame.to_dict("records"):
        shown = {
            "reuses layers": f"{row['model']}\nagainst {row['baseline']}",
            "matched_on": f"{row['matched_on']}\n{row['members']} members against {row['members_baseline']}",
            "accuracy, %": f"{row['accuracy']:.1f}\nagainst {row['accuracy_plain']:.1f}",
        }
        rows.append(
            shown | {heading: _ratio(row, name) for name, heading in _RATIOS.items()} | {"interval_over": _over(row)}
        )
    return pd.DataFrame(rows)


def reuse_findings(frame: pd.DataFrame) -> Iterator[str]:
    """A sentence for the pairs of the same number of parameters, and one for those of the same depth.

    Of seeds where there are pairs over seeds, else of all pairs.
    """
    over = frame[frame["interval_over"] == "seeds"]
    for held in (PARAMETERS, DEPTH):
        rows = (over if (over["matched_on"] == held).any() else frame).query("matched_on == @held").to_dict("records")
        if not rows:
            continue
        points = np.mean([row["accuracy"] - row["accuracy_plain"] for row in rows])
        after = f", {_told(rows, 'diversity_logit_centered')} after the size correction" * (held == PARAMETERS)
        many = "as many parameters" if held == PARAMETERS else "as many layers, each used once"
        who, whose = "Models that reuse layers have", f"models with {many}"
        if len(rows) == 1:
            who, whose = f"{rows[0]['model']}, which reuses layers, has", f"{rows[0]['baseline']}, with {many}"
        yield (
            f"{who} {_told(rows, 'diversity_centered')} the centered diversity of {whose}{after}, and "
            f"{abs(points):.1f} points {'less' if points < 0 else 'more'} accuracy."
        )


def _told(rows: list[dict[Any, Any]], name: str) -> str:
    """One pair's ratio with its interval; of several their geometric mean and from where to where they lie."""
    ratios = [row[f"{name}_ratio"] for row in rows]
    if len(rows) > 1:
        clear = sum(row[f"{name}_ratio_low"] > 1 or row[f"{name}_ratio_high"] < 1 for row in rows)
        ends = f"{len(rows)} pairs: {style.number(min(ratios))} to {style.number(max(ratios))}, {clear} clearly not 1"
        return f"{style.number(float(np.exp(np.mean(np.log(ratios)))))} times ({ends})"
    low, high = rows[0][f"{name}_ratio_low"], rows[0][f"{name}_ratio_high"]
    ends = f" [{style.number(low)}, {style.number(high)}]" if np.isfinite(low) else ""
    return f"{style.number(ratios[0])}{ends} times"


def _ratio(row: dict[Any, Any], name: str) -> str:
    low, high = row[f"{name}_ratio_low"], row[f"{name}_ratio_high"]
    ends = f"\n[{style.number(low)}, {style.number(high)}]" if np.isfinite(low) else ""
    return f"{style.number(row[f'{name}_ratio'])}{ends}"


def _over(row: dict[Any, Any]) -> str:
    return f"{row['n']} {row['interval_over'] if row['n'] != 1 else row['interval_over'].removesuffix('s')}"
