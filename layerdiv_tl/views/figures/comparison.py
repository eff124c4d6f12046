"""Per-component changes between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from .. import kit

if TYPE_CHECKING:
    from ...attribution.compare import Comparison


def change_bars(comparison: Comparison, max_components: int = 200) -> go.Figure:
    """Draw the mean change of every component's score, with 95 % intervals over rows."""
    frame, remark = kit.largest(comparison.frame(), "size", max_components)
    subtitle = f"{' → '.join(comparison.models)} · {len(comparison.a)} rows · {comparison.measured_in}. {remark}"
    return kit.component_bars(frame, {"change": "Change of its contribution"}, "Change of every component", subtitle)
