"""Which token's value heads wrote to a logit."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import whole_number
from ..._registry import figure_of
from .. import plotting as kit
from .. import style
from ..html import quoted

if TYPE_CHECKING:
    from ...attribution.source_tokens import SourceTokens

_BIAS = "value bias"


@figure_of("map", "SourceTokens")
def source_map(sources: SourceTokens, example: int = 0, option: int = 0, max_heads: int = 24) -> go.Figure:
    """A map head × source token of what the token's value wrote, through the head, to an option of an example.

    Where there are several options it is the contribution to this one less the mean of those to the others. Shown are
    the heads whose parts are the largest (Σ|parts|), in stream order. Raises InputError for an example or an option
    that does not exist.
    """
    parts, of, tokens = _score(sources, example, option)
    kept = np.sort(kit.largest(np.abs(parts).sum(1), max_heads))
    weights = sources.weights[example][kept][:, : len(tokens)]
    shown = parts[kept]
    labels = [html.escape(sources.heads[i].label) for i in kept]
    hover = [
        [
            f"<b>{head}</b> reads {html.escape(quoted(token))}<br>{style.number(v)} logits"
            for token, v in zip(tokens, row, strict=True)
        ]
        for head, row in zip(labels, shown, strict=True)
    ]
    for row, weight in zip(hover, weights, strict=True):
        for place, w in enumerate(weight):
            row[place] += f"<br>attention {w:.1%}"
    figure = go.Figure(kit.heat_map(shown, hover, "logits", signed=True, xgap=1, ygap=1))
    some = f"the {len(kept)} largest of {len(sources.heads)} heads; " if len(kept) < len(sources.heads) else ""
    names = {"tickvals": list(range(len(kept))), "ticktext": labels, "tickmode": "array"}
    y = names | {"showgrid": False, "zeroline": False}
    place = sources.positions[example]
    at = f"{quoted(sources.tokens[example][place])} (token {place})"
    return kit.arrange(
        figure,
        "Heads by the token whose value they read",
        f"What they wrote to {of}; {some}read at {at}; colors end at the 99th percentile.",
        x=_token_axis(tokens),
        y=y,
        plot=max(200, 16 * len(kept)),
    )


@figure_of("tokens", "SourceTokens")
def source_bars(sources: SourceTokens, example: int = 0, option: int = 0) -> go.Figure:
    """What the values of each source token wrote to an option of an example through all heads here together.

    Bars are the sums of all parts that speak for the option and of all against it, marks their sum; where there are
    several options it is the contribution to this one less the mean of those to the others. Raises InputError for
    an example or an option that does not exist.
    """
    parts, of, tokens = _score(sources, example, option)
    places = np.arange(len(tokens))
    sides = {"for": np.maximum(parts, 0.0).sum(0), "against": np.minimum(parts, 0.0).sum(0)}
    hover = [
        f"<b>{html.escape(quoted(token))}</b><br>{style.number(a + b)} = {style.number(a)} − {style.number(-b)} logits"
        for token, a, b in zip(tokens, *sides.values(), strict=True)
    ]
    colors = {"for": style.SERIES[3], "against": style.SERIES[0]}
    traces: list[Any] = [
        kit.bar(places, values, colors[side], name=f"heads {side} it", hover=hover) for side, values in sides.items()
    ]
    traces.append(
        kit.dots(places, sides["for"] + sides["against"], style.SERIES[1], size=7, name="their sum", hover=hover)
    )
    count = len(sources.heads)
    return kit.arrange(
        go.Figure(traces),
        "What was written, by the token whose value was read",
        f"To {of}, by {count} head{'s' * (count > 1)}.",
        x=_token_axis(tokens),
        y={"title_text": "logits", "zeroline": True},
        plot=300,
        barmode="relative",
    )


def _score(sources: SourceTokens, example: int, option: int) -> tuple[np.ndarray, str, list[str]]:
    """Parts `[head, source]` of an option's score, with the value bias last where there is one; their names."""
    n, _, _, k = sources.values.shape
    example = whole_number("example", example, 0, n - 1)
    option = whole_number("option", option, 0, k - 1)
    end = sources.positions[example] + 1
    values = np.concatenate([sources.values[example, :, :end], sources.value_bias[example, :, None]], 1)
    tokens, texts = [*sources.tokens[example][:end], _BIAS], sources.option_texts(example)
    if not sources.value_bias.any():
        values, tokens = values[:, :-1], tokens[:-1]
    others = [j for j in range(k) if j != option]
    score = values[:, :, option] - (values[:, :, others].mean(2) if others else 0.0)
    of = repr(texts[option])
    if len(others) == 1:
        of += f" − {texts[others[0]]!r}"
    elif others:
        of += f" − the mean of {len(others)} others"
    return score, of, tokens


def _token_axis(tokens: list[str]) -> dict[str, Any]:
    axis = kit.token_axis(tokens) | {"title_text": "source token"}
    names = [_BIAS if token == quoted(_BIAS) else token for token in axis["ticktext"]]
    return axis | {"ticktext": names}
