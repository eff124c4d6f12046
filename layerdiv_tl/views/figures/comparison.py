"""Per-component changes between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice
from .. import kit, layout, style
from .attribution import token_map

if TYPE_CHECKING:
    import pandas as pd

    from ...attribution.comparison import Comparison, TextComparison

Changed = Literal["loss", "logit", "own"]

_OWN = "Change in its own output (read out by model a)"
# Panels of a comparison on rows and on a text, if it has these columns.
_ROWS = {
    "change": "Change of its contribution",
    "own_change": _OWN,
    "net_linear_change": "Change of its part of the loss",
}
_TEXT = {
    "change": "Change of its contribution, centered",
    "own_change": _OWN,
    "loss_change": "Change of its part of the loss",
}
# Maps of a text: the array, its name and its unit.
_MAPS = {
    "loss": ("loss_change", "Per-component changes of the loss", "nats"),
    "logit": ("centered_change", "Per-component changes of the next token's logit", "logits"),
    "own": ("own_change", _OWN, "logits"),
}


def change_bars(comparison: Comparison, max_components: int = 200) -> go.Figure:
    """Draw the change of every component and of its own output in stream order, and with labels of its loss part.

    Bars are means over rows with 95 % intervals; only the components that changed most are shown. Use `sums_by_depth`
    for models of different shape.
    """
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    frame, total = comparison.frame(), comparison.totals().iloc[0]
    change = style.measured(*(total["change" + end] for end in ("", "_low", "_high"))).replace("\n", ", ")
    of = "the gold option" if comparison.labels is not None else "the first option"
    subtitle = f"Score: {of} minus the mean of the others, {len(comparison.a.values)} rows; it changes by {change}. "
    return _bars(comparison, frame, _ROWS, subtitle, max_components)


def text_change_bars(comparison: TextComparison, max_components: int = 200) -> go.Figure:
    """Draw every component's changes in stream order, means over tokens; whiskers are 95 % intervals over texts.

    Only the components with the largest changes are shown. Raises InputError for models of different shape.
    """
    texts, tokens = len(np.unique(comparison.a.documents)), int(comparison.a.has_target.sum())
    subtitle = f"Means over {tokens} tokens of {f'{texts} texts' if texts > 1 else 'one text'}. "
    return _bars(comparison, comparison.by_component(), _TEXT, subtitle, max_components)


def _bars(comparison: Any, frame: pd.DataFrame, wanted: dict[str, str], subtitle: str, count: int) -> go.Figure:
    kept, remark = kit.largest(frame, "own_size" if "own_size" in frame else "size", count)
    columns = {column: heading for column, heading in wanted.items() if column in frame}
    about = f"{_models(comparison)} {subtitle}{_first(comparison, frame.attrs.get('first_changed'))}{remark}"
    largest = kit.most(kept, "change")["component"]
    title = f"{largest} changes most: per-component changes between two models"
    return kit.component_bars(kept, columns, title, about)


def change_map(comparison: TextComparison, changed: Changed = "loss") -> go.Figure:
    """Draw a map component × token of the changes at every token, the embedding at the bottom.

    `changed` is "loss" (part of the next token's loss, in nats; gold raises it), "logit" (contribution to its logit,
    minus the mean over the vocabulary) or "own" (the component's own output). The 400 components that changed most are
    shown. Use `sums_by_depth` for models of different shape.
    """
    choice("changed", changed, _MAPS)
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    name, title, unit = _MAPS[changed]
    values = np.asarray(getattr(comparison, name), dtype=np.float64)
    loss = comparison.totals().set_index("quantity").loc["loss"]
    subtitle = f"{_models(comparison)} Loss {loss['a']:.3f} → {loss['b']:.3f} nats a token. "
    subtitle += _first(comparison, None if comparison.parts is None else comparison.first_changed)
    return token_map(_Text(comparison), values, title, subtitle.strip(), unit, signed=True)


class _Text:
    """The rows and columns of a comparison's map: its components and the tokens of its text."""

    def __init__(self, comparison: TextComparison) -> None:
        self.components = comparison.components
        self.tokens, self.next_tokens = comparison.a.tokens, comparison.a.next_tokens


def sums_by_depth(comparison: Comparison | TextComparison, n_bins: int = 4) -> go.Figure:
    """Draw sums over modules and over parts of the depth for both models side by side, for models of any shape.

    They are means of the score over a task's rows, or of the loss over a text's tokens. Hovers have the change with its
    95 % interval. `n_bins` is the number of equal parts into which the blocks are divided.
    """
    modules, depths = comparison.by_module(), comparison.by_depth(n_bins)
    depths = depths.assign(
        component=[x.capitalize() if isinstance(x, str) else f"{x - 1 / n_bins:.2g}–{x:.2g}" for x in depths["depth"]]
    )
    modules = modules.assign(component=[style.MODULE_NAME[module] for module in modules["module"]])
    unit, contents = modules.attrs["units"]["change"], list[list[go.Bar]]()
    for table in (modules, depths):
        table.attrs["units"] = dict.fromkeys(("a", "b", "change"), unit)
        contents.append([])
        for side, color in zip("ab", style.SERIES, strict=False):
            members = [f"{count} members" for count in table[f"members_{side}"]]
            texts = kit.hover(table, {getattr(comparison, side).model: side, "change": "change"}, members)
            name, marker = f"{getattr(comparison, side).model} ({side})", {"color": color}
            named: dict[str, Any] = {"name": name, "legendgroup": side, "marker": marker}
            contents[-1].append(go.Bar(x=table["component"], y=table[side], hovertext=texts, hoverinfo="text", **named))
    headings = ["by module", "by relative depth"]
    figure = layout.panels(contents, headings, units=[unit, unit], shared_xaxes=False, gap=0.5)
    what = "the loss, means over tokens" if hasattr(comparison, "nets") else "the score, means over rows"
    most = kit.most(modules, "change")["component"]
    subtitle = f"Sums of the components' parts of {what}. No bar: the model has none there."
    return layout.finish(figure, f"{most} changes most of two models' modules", subtitle, plot=420, barmode="group")


def _models(comparison: Any) -> str:
    return f"From {comparison.a.model} (a) to {comparison.b.model} (b)."


def _first(comparison: Any, first: Any) -> str:
    if comparison.same_weights:
        return "Both models are the same weights. "
    return f"First changed in stream order: {first}. " if first else ""
