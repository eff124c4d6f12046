"""What two models' components contribute differently."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice
from ..._registry import figure_of
from .. import plotting as kit
from .. import style
from ..html import quoted

if TYPE_CHECKING:
    import pandas as pd

    from ...attribution.comparison import Comparison, TextComparison
    from ...components import Component

Changed = Literal["loss", "logit", "own"]

# Panels, those of them that a comparison has, and what each shows of a component.
_HEADINGS = {
    "change": "Change of its contribution to the score",
    "own_change": "What it writes differently itself, as a reads it",
    "net_linear_change": "Change of what it adds to the cross-entropy",
}
_TEXT_HEADINGS = {
    "change": "Change of what it adds to the next token's logit, centered over the vocabulary",
    "own_change": "What it writes differently itself, as a reads it",
    "loss_change": "Change of what it adds to the loss",
}
# What a map of a text shows: the array, its name and its unit. More rows than a few hundred are thinner than a pixel.
_MAPS: dict[str, tuple[str, str, str]] = {
    "loss": ("loss_change", "Change of what each component adds to the loss", "nats"),
    "logit": ("centered_change", "Change of what each component adds to the next token's logit", "logits"),
    "own": ("own_change", "What each component writes differently itself, as a reads it", "logits"),
}
_MAX_ROWS = 400


@figure_of("bars", "Comparison")
def change_bars(comparison: Comparison, max_components: int = 200) -> go.Figure:
    """The change of every component in stream order, what it wrote differently itself, and with labels in the loss.

    Bars are means over rows, whiskers their 95 % intervals; of more components those whose change is largest. Of models
    of different shape it is `sums_by_depth`.
    """
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    frame = comparison.frame()
    figure, components, headings, units = _panels(frame, comparison.components, _HEADINGS, max_components)
    attrs, n = frame.attrs, len(comparison.a.values)
    of = "the gold option" if comparison.labels is not None else "the first option"
    subtitle = f"From {comparison.a.model} (a) to {comparison.b.model} (b). "
    subtitle += f"Score: {of} less the mean of the others, {n} rows. "
    subtitle += _told(comparison, attrs.get("first_changed"))
    if len(components) < len(frame):
        subtitle += f"The {len(components)} of {len(frame):,} components that changed most. "
    total = comparison.totals().iloc[0]
    change = kit.estimated(total["change"], total["change_low"], total["change_high"])
    subtitle += f"All together: {change} {units[0]}. {kit.whiskered(frame)}"
    return _arranged(figure, components, headings, subtitle)


@figure_of("map", "TextComparison", default=True)
def text_change_map(comparison: TextComparison, changed: Changed = "loss") -> go.Figure:
    """A map component × token of what changed at every token, the embedding at the bottom.

    `changed`: "loss", what each adds to the next token's loss, in nats (gold raises it); "logit", to its logit, less
    the mean over the vocabulary; "own", what it writes differently itself. Colors end at the 99th percentile. Of more
    than 400 components those that changed most are shown. Of models of different shape it is `sums_by_depth`. Raises
    InputError for another `changed`.
    """
    choice("changed", changed, _MAPS)
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    name, title, unit = _MAPS[changed]
    values = np.asarray(getattr(comparison, name), dtype=np.float64)
    kept = kit.largest(np.nan_to_num(np.abs(values)).mean(1), _MAX_ROWS)
    components = [comparison.components[i] for i in kept]
    p = comparison.a
    tokens = [
        f" after {html.escape(quoted(token))}<br>next: {html.escape(quoted(after)) if after else '–'}<br>"
        for token, after in zip(p.tokens, p.next_tokens, strict=True)
    ]
    hover = [
        [f"<b>{html.escape(c.label)}</b>{at}{style.number(v)} {unit}" for at, v in zip(tokens, row, strict=True)]
        for c, row in zip(components, values[kept], strict=True)
    ]
    figure = go.Figure(kit.heat_map(values[kept], hover, unit, signed=True, hoverongaps=True))
    totals = comparison.totals().set_index("quantity").loc["loss"]
    subtitle = (
        f"From {p.model} (a) to {comparison.b.model} (b). Loss {totals['a']:.3f} → {totals['b']:.3f} nats a token. "
    )
    first = None if comparison.parts is None else comparison.first_changed
    subtitle += _told(comparison, first)
    if len(kept) < len(values):
        subtitle += f"The {len(kept)} of {len(values):,} components that changed most. "
    x = kit.token_axis(p.tokens) | {"title_text": "token"}
    y = kit.component_axis(components, "component, in stream order")
    return kit.arrange(figure, title, subtitle.strip(), x=x, y=y, height=720)


@figure_of("bars", "TextComparison")
def text_change_bars(comparison: TextComparison, max_components: int = 200) -> go.Figure:
    """Means over tokens of every component's changes in stream order; whiskers are 95 % intervals over texts.

    Of more components those whose change is largest. Raises InputError for models of different shape.
    """
    frame = comparison.by_component()
    figure, components, headings, _ = _panels(frame, comparison.components, _TEXT_HEADINGS, max_components)
    p = comparison.a
    texts = len(np.unique(p.documents))
    subtitle = f"From {p.model} (a) to {comparison.b.model} (b), means over {int(p.has_target.sum())} tokens "
    subtitle += f"of {texts} texts. " if texts > 1 else "of one text. "
    subtitle += _told(comparison, frame.attrs.get("first_changed"))
    if len(components) < len(frame):
        subtitle += f"The {len(components)} of {len(frame):,} components that changed most. "
    return _arranged(figure, components, headings, subtitle + kit.whiskered(frame))


@figure_of("depth", "Comparison", "TextComparison")
def sums_by_depth(comparison: Comparison | TextComparison, n_bins: int = 4) -> go.Figure:
    """What both models' modules add up to, and their parts of the depth, side by side: for models of any shape.

    On a task means over rows of the score, on a text means over tokens of the loss. Hovers have the change, with its
    95 % interval over rows. `n_bins` is into how many parts of equal length the blocks are cut; raises InputError for
    none.
    """
    modules, depths = comparison.by_module(), comparison.by_depth(n_bins)
    ends = [x.capitalize() if isinstance(x, str) else f"{x - 1 / n_bins:.2g}–{x:.2g}" for x in depths["depth"]]
    sides = {"a": f"{comparison.a.model} (a)", "b": f"{comparison.b.model} (b)"}

    def bars(names: Sequence[str], table: pd.DataFrame) -> list[go.Bar]:
        changes = (table.get("change" + end, table["change"] * np.nan) for end in ("", "_low", "_high"))
        change = [f"change {kit.estimated(*numbers)} {unit}" for numbers in zip(*changes, strict=True)]
        drawn = []
        for (side, model), color in zip(sides.items(), style.SERIES, strict=False):
            counted = zip(names, table[side], table[f"members_{side}"], change, strict=True)
            hover = [f"<b>{n}</b><br>{side} {style.number(v)} {unit}, {m} members<br>{c}" for n, v, m, c in counted]
            drawn.append(kit.bar(names, table[side], color, width=None, name=html.escape(model), hover=hover))
        return drawn

    unit = modules.attrs["units"]["change"]
    contents = [bars([style.MODULE_NAME[m] for m in modules["module"]], modules), bars(ends, depths)]
    headings = ["by module", "by relative depth"]
    figure = kit.panels(contents, headings, units=[unit, unit], shared_xaxes=False, gap=0.5)
    figure.update_layout(barmode="group")
    what = "to the loss, means over tokens" if hasattr(comparison, "nets") else "to the score, means over rows"
    subtitle = f"Sums of what components add {what}. No bar: the model has none there."
    return kit.arrange(figure, "What two models' modules add, and at what depth", subtitle, plot=480)


def _told(comparison: Comparison | TextComparison, first: Any) -> str:
    if comparison.same_weights:
        return "Both models are the same weights. "
    return f"First changed in stream order: {first}. " if first else ""


def _panels(
    frame: pd.DataFrame, rows: Sequence[Component], wanted: dict[str, str], max_components: int
) -> tuple[go.Figure, list[Component], dict[str, str], list[str]]:
    """A panel of bars for each wanted column that a frame has: the figure, its components, panels and their units."""
    size = "own_size" if "own_size" in frame else "size"
    kept = kit.largest(frame[size].to_numpy(), max_components)
    shown, components = frame.iloc[kept], [rows[i] for i in kept]
    shown.attrs |= frame.attrs
    headings = {column: heading for column, heading in wanted.items() if column in frame}
    contents = [
        kit.module_traces(
            components, shown[column], kit.hovers(shown, column), error=kit.whiskers(shown, column, visible=True)
        )
        for column in headings
    ]
    units = [frame.attrs["units"][column] for column in headings]
    x_title = "component, in stream order"
    figure = kit.panels(contents, map(html.escape, headings.values()), units=units, x_title=x_title)
    return figure, components, headings, units


def _arranged(figure: go.Figure, components: Sequence[Component], headings: dict[str, str], subtitle: str) -> go.Figure:
    several = len(list(kit.by_module(components))) > 1
    figure.update_layout(barmode="overlay", showlegend=several)
    return kit.arrange(
        figure,
        "What two models write differently, component by component",
        subtitle,
        x=kit.component_axis(components, edge=1),
        plot=170 * len(headings),
    )
