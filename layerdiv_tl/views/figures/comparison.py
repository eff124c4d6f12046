"""What two models' components contribute differently."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ..._registry import figure_of
from .. import plotting as kit

if TYPE_CHECKING:
    from ...attribution.comparison import Comparison

# Panels, those of them that a comparison has, and what each shows of a component.
_HEADINGS = {
    "change": "Change of its contribution to the score",
    "own_change": "What it writes differently itself, as a reads it",
    "net_linear_change": "Change of what it adds to the cross-entropy",
}


@figure_of("bars", "Comparison")
def change_bars(comparison: Comparison, max_components: int = 200) -> go.Figure:
    """The change of every component in stream order, what it wrote differently itself, and with labels in the loss.

    Bars are means over rows, whiskers their 95 % intervals; of more components those whose change is largest.
    """
    frame = comparison.frame()
    size = "own_size" if "own_size" in frame else "size"
    kept = kit.largest(frame[size].to_numpy(), max_components)
    shown, components = frame.iloc[kept], [comparison.components[i] for i in kept]
    shown.attrs |= frame.attrs
    headings = {column: heading for column, heading in _HEADINGS.items() if column in frame}
    contents = [
        kit.module_traces(
            components, shown[column], kit.hovers(shown, column), error=kit.whiskers(shown, column, visible=True)
        )
        for column in headings
    ]
    units = [frame.attrs["units"][column] for column in headings]
    figure = kit.panels(
        contents, map(html.escape, headings.values()), units=units, x_title="component, in stream order"
    )
    attrs, n = frame.attrs, len(comparison.a.values)
    of = "the gold option" if comparison.labels is not None else "the first option"
    subtitle = f"From {comparison.a.model} (a) to {comparison.b.model} (b). "
    subtitle += f"Score: {of} less the mean of the others, {n} rows. "
    if comparison.same_weights:
        subtitle += "Both models are the same weights. "
    elif attrs.get("first_changed"):
        subtitle += f"First changed in stream order: {attrs['first_changed']}. "
    if len(kept) < len(frame):
        subtitle += f"The {len(kept)} of {len(frame):,} components that changed most. "
    total = comparison.totals().iloc[0]
    change = kit.estimated(total["change"], total["change_low"], total["change_high"])
    subtitle += f"All together: {change} {units[0]}. {kit.whiskered(frame)}"
    several = len(list(kit.by_module(components))) > 1
    figure.update_layout(barmode="overlay", showlegend=several)
    return kit.arrange(
        figure,
        "What two models write differently, component by component",
        subtitle,
        x=kit.component_axis(components, edge=1),
        plot=170 * len(headings),
    )
