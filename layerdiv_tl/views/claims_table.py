"""The claims as a table for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style

if TYPE_CHECKING:
    import pandas as pd


def named(row: Mapping[Any, Any]) -> str:
    """A claim's number, the claim, and the reading of it where it has several."""
    return f"{row['number']}. {row['claim']}" + (f" ({row['variant']})" if row["variant"] else "")


def claims_table(claims: pd.DataFrame) -> pd.DataFrame:
    """The claims as text for a page: one row each, the verdict beside its reason."""
    import pandas as pd

    def estimate(row: Mapping[Any, Any]) -> str:
        ends = f"\n[{style.number(row['low'])}, {style.number(row['high'])}]" if np.isfinite(row["low"]) else ""
        return f"{style.number(row['estimate'])}{ends}" if np.isfinite(row["estimate"]) else "–"

    rows = [
        {
            "claim": f"{named(row)}\n{row['rationale']}",
            "verdict": row["verdict"],
            "estimate": estimate(row),
            "null": style.number(row["null"]) if np.isfinite(row["null"]) else "–",
            "p": f"{row['p']:.3f}" if np.isfinite(row["p"]) else "–",
        }
        for row in claims.to_dict("records")
    ]
    return pd.DataFrame(rows)
