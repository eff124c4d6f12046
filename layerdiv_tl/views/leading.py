"""The two largest rows of a frame with their intervals: the line of a result on a page and in the terminal."""

from __future__ import annotations

import pandas as pd

from . import shapes, style


def leading(frame: pd.DataFrame, column: str, count: int = 2) -> str:
    """Write the rows with the largest absolute values of a column.

    >>> frame = pd.DataFrame({"component": ["a", "b", "c"], "loss": [1.0, -3.0, 2.0]})
    >>> frame.attrs["units"] = {"loss": "nats"}
    >>> leading(frame, "loss")
    'loss, nats: b −3; c 2; of 3'
    """
    rows = frame.loc[frame[column].abs().nlargest(count).index]
    ends = rows.reindex(columns=[column, f"{column}_low", f"{column}_high"]).to_numpy(dtype=float)
    texts = [f"{name} {style.estimate(*end)}" for name, end in zip(rows["component"], ends, strict=True)]
    unit = shapes.unit_of(frame, column)
    note = str(frame.attrs.get("intervals", ""))
    of = f"of {len(frame)}" + (f" ({note})" if note else "")
    return f"{column.replace('_', ' ')}{f', {unit}' if unit else ''}: {'; '.join([*texts, of])}"
