"""Contributions, profiles and attention patterns as maps; the loss of every token; what tasks and votes hold."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._checks import whole_number
from ..._registry import figure_of
from ...attribution.profile_results import Profile, SquaredProfile
from ...components import Component
from ...ensemble.decomposition import Part
from .. import plotting as kit
from .. import style
from ..html import quoted

if TYPE_CHECKING:
    from ...attribution.contributions import Contributions
    from ...model.attention import AttentionPatterns
    from ...tasks.task import Task

Term = Literal["bias", "diversity", "net", "target_logit"]
# More rows than this are thinner than a pixel: the largest are shown. Columns of attention maps.
_MAX_ROWS, _COLUMNS = 400, 4
# Of more neurons or latents the largest are shown, with their names.
_MAX_NEURONS = 40
_MANY = ("neuron", "mlp_latent", "attn_latent", "mixer_latent")
_STREAM = "component, in stream order"


@figure_of("map", "Contributions", "Shard")
def contribution_map(contributions: Contributions, example: int | None = None, centered: bool = True) -> go.Figure:
    """A map option × component of direct contributions in logits, those of several tokens summed over their positions.

    Of `scores()` they are parts of log-likelihoods, in nats. `example` None takes the mean over examples; of neurons
    the 40 largest are shown. `centered` subtracts each component's mean over the options, which softmax cannot see; of
    two options, whose rows would then mirror one another, it shows their difference and, where they are known, its two
    `sides`.
    Raises InputError for an example that does not exist.
    """
    u = contributions.values
    if example is not None:
        whole_number("example", example, -len(u), len(u) - 1)
    values = u.mean(0) if example is None else u[example]
    texts = contributions.shared_options
    if texts is None:
        only = 0 if len(u) == 1 else example
        texts = contributions.options[only] if only is not None else tuple(f"option {k}" for k in range(u.shape[2]))
    centered = centered and u.shape[2] > 1  # one option has no others to be centered over
    names, zero = [repr(text) for text in texts], "centered over the options" if centered else "raw"
    if centered and u.shape[2] == 2:
        names, values, sides = [" − ".join(names)], values[:, :1] - values[:, 1:], contributions.sides
        zero = "the difference of the options"
        if sides is not None:
            names += [repr(text) for text in texts]
            values = np.c_[values, sides.mean(0) if example is None else sides[example]]
            zero += " and what is added to either"
            zero += ", relative to the mean over the vocabulary" * (contributions.score == "logits")
    elif centered:
        values = values - values.mean(1, keepdims=True)
    components, remark = contributions.components, ""
    if any(c.kind in _MANY for c in components) and len(components) > _MAX_NEURONS:
        kept = kit.largest(np.abs(values).max(1), _MAX_NEURONS)
        remark = f"the {_MAX_NEURONS} largest of {len(components):,} components; "
        components, values = tuple(components[i] for i in kept), values[kept]
    labels = [html.escape(c.label) for c in components]
    is_score = contributions.score == "log_likelihood"
    unit, of = ("nats", "log-likelihoods") if is_score else ("logits", "logits")
    hover = [
        [f"<b>{c}</b><br>{html.escape(name)}<br>{style.number(v)} {unit}" for c, v in zip(labels, row, strict=True)]
        for name, row in zip(names, values.T, strict=True)
    ]
    limit = kit.robust_limit(values, 1.0)
    title = f"Direct contributions to the options' {of}"
    shown = f"{remark}{'mean over examples' if example is None else f'example {example}'}, "
    shown += zero
    shown += ", summed over each option's tokens" if contributions.option_ids.ndim > 2 else ""
    if any(c.kind == "head" for c in components):
        return _head_panels(components, values.T, hover, names, title, shown, unit)
    figure = go.Figure(kit.heat_map(values.T, hover, unit, limit, signed=True, side="right", ygap=1))
    ticks = {"tickvals": list(range(len(names))), "ticktext": [html.escape(name) for name in names]}
    y = ticks | {"tickmode": "array", "autorange": "reversed", "showgrid": False, "zeroline": False}
    x, height = kit.component_axis(components, _STREAM), 168 + 44 * len(names)
    if remark:  # with gaps between them, each needs its name
        x = kit.named_columns([c.label for c in components], range(len(components)))
        height += 60
    return kit.arrange(figure, title, shown, x=x, y=y, height=height)


def _head_panels(
    components: Sequence[Component],
    values: np.ndarray,
    hover: Any,
    names: Sequence[str],
    title: str,
    shown: str,
    unit: str,
) -> go.Figure:
    """A map layer × head for every option, its MLPs in a column of their own; `values` `[option, component]`."""
    limit = kit.robust_limit(values)
    contents: list[list[go.Heatmap]] = []
    layer = {(c.layer, c.repeat): i for i, c in enumerate(components) if c.kind == "mlp"}
    for row, told in zip(values, hover, strict=True):
        rows, (z, text) = kit.head_tables(components, row, np.array(told, dtype=object))
        width = z.shape[1]
        mlp = [layer.get((c.layer, c.repeat)) for c in rows]
        if layer:  # an empty column stands between
            z = np.c_[z, np.full(len(rows), np.nan), [np.nan if i is None else row[i] for i in mlp]]
            text = np.c_[text, np.full(len(rows), ""), ["" if i is None else told[i] for i in mlp]]
        bar: dict[str, Any] = {"showscale": not contents, "ygap": 1, "xgap": 1}
        contents.append([kit.heat_map(z, text, unit, limit, signed=True, **bar)])
    headings = [html.escape(name) for name in names]
    across = min(_COLUMNS, len(contents))
    figure = kit.panels(contents, headings, across, gap=0.2, x_title="head")
    every = max(1, -(-width * across // 24))
    ticks = [*range(0, width, every), *([width + 1] if layer else [])]
    marked = [*map(str, range(0, width, every)), *(["MLP"] if layer else [])]
    x = {
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": marked,
        "showgrid": False,
        "zeroline": False,
        "tickangle": 0,
    }
    rest = len(components) - sum(c.kind == "head" for c in components) - len(layer)
    shown += "; colors end at the 99th percentile" + (
        f"; {rest} other component{'s' * (rest > 1)} left out" * bool(rest)
    )
    plot = max(240, 11 * len(rows)) * -(-len(contents) // across)
    return kit.arrange(figure, title, shown, x=x, y=kit.layer_axis(list(rows)), plot=plot)


@figure_of("map", "Profile", default=True)
def profile_map(profile: Profile, term: Term = "net", part: Part = "centered") -> go.Figure:
    """A map component × token of one number of a profile, the embedding at the bottom.

    `part` is the half of a squared profile; a profile in nats has none. Colors end at the 99th percentile,
    so that one component does not hide the others; the hover has the value. Of more than 400 components
    those with the largest mean size are shown. Raises InputError for an unknown term or part.
    """
    halved = isinstance(profile, SquaredProfile) and term != "target_logit"
    half = kit.half_of(profile, part) if halved and getattr(profile, "part", "") == "raw" else None
    values = np.asarray(getattr(half or profile, term), dtype=np.float64)
    unit = "logits" if term == "target_logit" else profile.measured_in
    kept = kit.largest(np.nan_to_num(np.abs(values)).mean(1), _MAX_ROWS)
    values, components = values[kept], [profile.components[i] for i in kept]
    tokens = [
        f" at {html.escape(repr(token))}<br>next: {html.escape(repr(after)) if after else '–'}<br>"
        for token, after in zip(profile.tokens, profile.next_tokens, strict=True)
    ]
    name = term.replace("_", " ")
    hover = [
        [f"<b>{html.escape(c.label)}</b>{at}{name} {style.number(v)} {unit}" for at, v in zip(tokens, row, strict=True)]
        for c, row in zip(components, values, strict=True)
    ]
    figure = go.Figure(kit.heat_map(values, hover, unit, signed=term in ("net", "target_logit"), hoverongaps=True))
    count = len(profile.components)
    remarks = [part] * halved + [f"the {len(kept)} largest of {count}"] * (len(kept) < count)
    title = style.LABELS["title"]["profile"][term] + (f" ({', '.join(remarks)})" if remarks else "")
    x = kit.token_axis(profile.tokens) | {"title_text": "token"}
    return kit.arrange(figure, title, x=x, y=kit.component_axis(components, _STREAM), height=720)


@figure_of("loss", "Profile")
def loss_curve(profile: Profile) -> go.Figure:
    """The model's own cross-entropy of every token, in nats, at the token that was to be predicted.

    The dotted line is the loss of a guess that takes all tokens of the vocabulary as equally likely. The first
    token of a text, which is not predicted, has no bar.
    """
    predicted = np.flatnonzero(np.isfinite(profile.losses))
    losses, tokens = profile.losses[predicted], [html.escape(quoted(profile.tokens[i + 1])) for i in predicted]
    hover = [
        f"<b>{token}</b> at {i + 1}<br>{style.number(loss)} nats<br>probability {style.number(float(np.exp(-loss)))}"
        for token, i, loss in zip(tokens, predicted, losses, strict=True)
    ]
    uniform = float(np.log(profile.vocabulary))
    figure = go.Figure(kit.bar(predicted + 1, losses, None, width=None, hover=hover))
    figure.add_hline(y=uniform, line=kit.DOTTED)
    # In the title: next to its line it would lie on bars.
    title = f"Loss at every token (dotted: a guess among all tokens, {uniform:.1f} nats)"
    x = kit.token_axis(profile.tokens) | {"range": [-0.6, len(profile.tokens) - 0.4]}
    return kit.arrange(figure, title, x=x, y={"title_text": "nats", "rangemode": "tozero"}, height=340)


@figure_of("maps", "AttentionPatterns")
def attention_maps(patterns: AttentionPatterns, max_heads: int = 12) -> go.Figure:
    """A map of every head: rows are the tokens that look, columns those they look at, from 0 to 1.

    Of more than `max_heads` heads those are shown that look most unlike all tokens alike (lowest mean entropy).
    """
    p = patterns.patterns
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(-1).mean(-1)
    heads = np.sort(np.argsort(entropy, kind="stable")[:max_heads])
    labels = [html.escape(patterns.components[i].label) for i in heads]
    tokens = np.array([html.escape(quoted(token, 12)) for token in patterns.tokens], dtype=object)
    rows, columns = np.meshgrid(tokens, tokens, indexing="ij")
    maps: list[list[go.Heatmap]] = []
    for label, head in zip(labels, heads, strict=True):
        hover = f"<b>{label}</b><br>%{{text}} looks at %{{customdata}}<br>%{{z:.3f}}<extra></extra>"
        past = np.where(np.tri(len(tokens), dtype=bool), p[head], np.nan)
        options: dict[str, Any] = {"showscale": not maps, "hovertemplate": hover, "x": None, "y": None}
        maps.append([kit.heat_map(past, None, "attention", 1.0, text=rows, customdata=columns, **options)])
    across = min(_COLUMNS, len(heads))
    down = -(-len(heads) // across)
    shared: dict[str, Any] = {"shared_xaxes": True, "shared_yaxes": True}
    figure = kit.panels(maps, labels, across, gap=min(0.3, 0.1 * down), across=0.025, **shared)
    some = f", the {len(heads)} most pointed of {len(p)} heads" if len(heads) < len(p) else ""
    total = "1" if np.allclose(p.sum(2), 1, atol=1e-2) else "at most 1: a sink takes the rest"
    ticks = kit.token_axis(patterns.tokens, 24) | {"tickfont": {"size": 10}}
    return kit.arrange(
        figure,
        f"Attention patterns{some}",
        f"Rows look at columns; each row sums to {total}.",
        x=ticks,
        y=ticks | {"tickangle": None, "autorange": "reversed"},
        plot=down * (250 if across > 1 else 460),
        below=84,
    )


@figure_of("labels", "Task")
def label_bars(task: Task) -> go.Figure:
    """How many rows have each option as their gold answer; the dotted line is what an even share would be."""
    counts = np.bincount(task.labels, minlength=task.option_count)
    options = task.shared_options or [f"option {number}" for number in range(task.option_count)]
    names = [option.strip() or repr(option) for option in options]
    hover = {"hovertemplate": "%{x} rows<extra></extra>"}
    figure = go.Figure(kit.bar(counts, np.arange(len(names)), style.SERIES[0], across=True, width=0.7, **hover))
    figure.add_vline(x=len(task) / len(names), line=kit.DOTTED)
    best = f"{counts.max() / len(task):.0%}"
    subtitle = f"{len(task)} rows ({task.source}). One and the same answer would be right in {best}."
    title, plot = f"Gold answers of {task.name}", 44 * len(names) + 20
    return kit.arrange(figure, title, subtitle, x={"title_text": "rows"}, y=kit.named_rows(names), plot=plot)
