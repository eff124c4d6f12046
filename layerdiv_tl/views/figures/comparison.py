"""Per-component changes between two models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from .. import kit, layout, style
from .attribution import token_map

if TYPE_CHECKING:
    from ...attribution.comparison import Comparison, TextComparison

Changed = Literal["loss", "logit", "own"]

_OWN = "Change in its own output (read out by model a)"
_OTHER_BASIS = 0.5
# Panels of bars, of which a comparison on rows and one on a text have some, and its maps: the array, name and unit.
_BARS = {
    "change": "Change of its contribution",
    "own_change": _OWN,
    "net_linear_change": "Change of its part of the loss",
    "loss_change": "Change of its part of the loss",
}
_MAPS = {
    "loss": ("loss_change", "Per-component changes of the loss", "nats"),
    "logit": ("centered_change", "Per-component changes of the next token's logit", "logits"),
    "own": ("own_change", _OWN, "logits"),
}


def change_bars(comparison: Comparison, max_components: int = 200) -> go.Figure:
    """Draw the change of every component, of its own output and, with labels, of its part of the loss.

    Bars are means over rows with 95 % intervals. Models of different shape are drawn by `sums_by_depth`.
    """
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    frame, total = comparison.frame(), comparison.totals().iloc[0]
    unit = frame.attrs["units"]["change"]
    change = style.estimate(*(total["change" + end] for end in ("", "_low", "_high")), unit=unit)
    of = "the right option" if comparison.labels is not None else "the first option"
    rows = style.count(len(comparison.a.values), "row")
    subtitle = f"Score: {of} minus the mean of the others, {rows}; it changes by {change}. "
    return _bars(comparison, frame, "own_size", subtitle, max_components)


def text_change_bars(comparison: TextComparison, max_components: int = 200) -> go.Figure:
    """Draw every component's changes, means over tokens with 95 % intervals over texts.

    Raises InputError for models of different shape.
    """
    texts, tokens = len(np.unique(comparison.a.documents)), int(comparison.a.has_target.sum())
    subtitle = f"Centered; means over {tokens} tokens of {f'{texts} texts' if texts > 1 else 'one text'}. "
    return _bars(comparison, comparison.by_component(), "size", subtitle, max_components)


def _bars(comparison: Any, frame: pd.DataFrame, size: str, subtitle: str, count: int) -> go.Figure:
    alike = _read_out_alike(comparison)
    kept, remark = kit.largest(frame, size if size in frame and alike else "size", count)
    columns = {column: heading for column, heading in _BARS.items() if column in frame}
    if not alike and columns.pop("own_change", ""):
        subtitle += "The models' unembeddings differ too much for one to read out the other's components. "
    about = f"{subtitle}{_first(comparison, frame.attrs.get('first_changed'))}{remark}"
    models = _models(comparison).removesuffix(".").replace("{}", "{ }")
    title = f"{models}, {{}} has the largest change"
    return kit.component_bars(kept, columns, title, about)


def _read_out_alike(comparison: Any) -> bool:
    """Return whether the unembeddings agree so far that b's components mean something to a's.

    Separately trained models write in different bases: the part of the change that is the unembedding's is then as
    large as the contributions.
    """
    if comparison.parts is None:
        return False
    sizes = comparison.parts["unembedding"], comparison._compared.logits[0]
    if np.ndim(sizes[1]) > 2:  # centered over the options
        sizes = tuple(x - x.mean(-1, keepdims=True) for x in sizes)
    changed, whole = (np.sqrt(np.nanmean(np.square(x))) for x in sizes)
    return bool(changed < _OTHER_BASIS * whole)


def change_map(comparison: TextComparison, changed: Changed = "loss") -> go.Figure:
    """Draw a map component × token of the changes at every token.

    `changed` is "loss" (part of the next token's loss, in nats), "logit" (contribution to its logit, minus the mean
    over the vocabulary) or "own" (its own output). Models of different shape are drawn by `sums_by_depth`.
    """
    choice("changed", changed, _MAPS)
    if not comparison.one_shape:
        return sums_by_depth(comparison)
    name, title, unit = _MAPS[changed]
    a, totals = comparison.a, comparison.totals().set_index("quantity")
    before, after = (style.number(float(totals[side].loc["loss"]), 3) for side in "ab")
    subtitle = f"{_models(comparison)} Loss {before} → {after} nats a token. "
    subtitle += _first(comparison, None if comparison.parts is None else comparison.first_changed)
    text = SimpleNamespace(components=comparison.components, tokens=a.tokens, next_tokens=a.next_tokens)
    values = np.asarray(getattr(comparison, name), dtype=np.float64)
    return token_map(text, values, title, subtitle.strip(), unit, signed=True)


def sums_by_depth(comparison: Comparison | TextComparison, n_bins: int = 4) -> go.Figure:
    """Draw sums over modules and over `n_bins` equal parts of the depth for both models, of any shape.

    They are means of the score over a task's rows, or of the loss over a text's tokens.
    """
    modules, depths = comparison.by_module(), comparison.by_depth(n_bins)
    parts = [x.capitalize() if isinstance(x, str) else f"{x - 1 / n_bins:.2g}–{x:.2g}" for x in depths["depth"]]
    depths = depths.assign(component=parts)
    modules = modules.assign(component=modules["module"].map(style.MODULE_NAME))
    unit, contents = modules.attrs["units"]["change"], list[list[go.Bar]]()
    for table in (modules, depths):
        table.attrs["units"] = dict.fromkeys(("a", "b", "change"), unit)
        contents.append([])
        for side, color in zip("ab", style.SERIES, strict=False):
            model = getattr(comparison, side).model
            members = [f"{count} members" for count in table[f"members_{side}"]]
            texts = kit.hover(table, {model: side, "change": "change"}, members)
            look: dict[str, Any] = {"name": f"{model} ({side})", "width": None, "shape": "bars"}
            contents[-1].append(kit.trace(table, table["component"], table[side], color, texts, **look))
    headings = ["by module", "by relative depth"]
    figure = layout.panels(contents, headings, units=[unit, unit], shared_xaxes=False, gap=0.5)
    which = "first" if getattr(comparison, "labels", None) is None else "right"
    score = f"{which} option minus the others' mean"
    what = "the loss, means over tokens" if hasattr(comparison, "nets") else f"the score ({score}), means over rows"
    subtitle = f"{_models(comparison)} Sums of the components' parts of {what}. No whiskers, since both models "
    subtitle += "have the same rows; the hover has the change."
    subtitle += f" {kit.intervals(modules, 'Title and hover')}" * ("change_low" in modules)
    lacks = any(table[["a", "b"]].isna().any(axis=None) for table in (modules, depths))
    subtitle += " No bar: the model has no such component." * lacks
    most = kit.most(modules, "change")
    title = f"By module, {most['component']} has the largest change{kit.ahead(modules, most, 'change')}"
    return layout.finish(figure, title, subtitle, plot=420, barmode="group")


def _models(comparison: Any) -> str:
    return f"From {comparison.a.model} (a) to {comparison.b.model} (b)."


def _first(comparison: Any, first: Any) -> str:
    if comparison.same_weights:
        return "Both models are the same weights. "
    return f"The first in stream order that differs by more than rounding: {first}. " if first else ""
