"""Contributions, profiles and source tokens as maps and bars; attention patterns; the loss of every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import whole_number
from ...components import component_columns
from ...ensemble.intervals import ENDS, estimate, estimates_frame
from .. import axes, kit, layout, style
from ..html import quoted

if TYPE_CHECKING:
    from ...attribution.continuation import Continuation
    from ...attribution.logit_difference import LogitDifference
    from ...attribution.profile_results import Profile
    from ...attribution.results import Contributions
    from ...attribution.source_tokens import SourceTokens
    from ...model.attention import AttentionPatterns

Term = Literal["bias", "diversity", "net", "target_logit"]
# More rows than this are thinner than a pixel; fewer neurons or latents are shown, because each needs its name.
MOST_ROWS, _MOST_NEURONS = 400, 40
_SHARP = "Sharp: the mean over rows after the first of the largest weight on a token other than the first. "
_MEANING: dict[Term, str] = {
    "bias": "The squared distance from the target, 1 for the next token and 0 for all others.",
    "diversity": "The squared distance from the mean of all components.",
    "net": "Net is bias − diversity: below 0 (purple) a component is nearer to the target than to the mean of all.",
    "target_logit": "Above 0 (gold) a component raises the logit of the next token.",
}


def contribution_map(contributions: Contributions, example: int | None = None, centered: bool = True) -> go.Figure:
    """Draw a map option × component of direct contributions, summed over the tokens of an option.

    `example` None takes the mean. `centered` subtracts the mean over the options; for two options it shows their
    difference and, if known, its two `sides`. Heads are a map layer × head per option. Raises InputError for an unknown
    example.
    """
    u, n = contributions.values, contributions.values.shape[2]
    if example is not None:
        whole_number("example", example, -len(u), len(u) - 1)
    texts = contributions.shared_options
    if texts is None and (example is not None or len(u) == 1):
        texts = contributions.options[example or 0]
    is_continued = hasattr(contributions, "continued")
    columns = [*map(quoted, contributions.option_names)] or [f"option {k}" for k in range(n)]
    unnamed = ["each token", "its rival"] if is_continued else columns
    names, zero, values = unnamed if texts is None else [*map(quoted, texts)], "raw", u
    if centered and n == 2:
        values, zero = u[:, :, :1] - u[:, :, 1:], "the difference of the options"
        if contributions.sides is not None:
            values = np.concatenate([values, contributions.sides], 2)
            zero = f"first {' − '.join(names)}; then the contribution to each option"
            if contributions.score == "logits":
                zero += ", minus the component's mean over the vocabulary"
        names = [" − ".join(names), *names][: values.shape[2]]
    elif centered and n > 1:  # one option has no others to be centered over
        values, zero = u - u.mean(2, keepdims=True), "centered over the options"
    values = values if example is None else values[[example]]
    shown, unit = values.mean(0), "nats" if contributions.score == "log_likelihood" else "logits"
    each = "tokens" if is_continued else "examples"
    rows = f"Example {example} of {len(u)}, counted from 0" if example is not None else f"Mean over {len(u)} {each}"
    summed = ", summed over each option's tokens" * (contributions.option_ids.ndim > 2)
    subtitle = f"{'One example' if len(u) == 1 and example is None else rows}: {zero}{summed}."
    frame = pd.DataFrame(component_columns(contributions.components))
    labels = frame["component"].tolist()
    compared = shown[:, :1] if centered and n == 2 else shown  # the sides have another zero than their difference
    largest = np.unravel_index(np.abs(compared).argmax(), compared.shape)
    cells = [(label, name) for label in labels for name in names[: compared.shape[1]]]
    each_cell = estimate(values[:, :, : compared.shape[1]].reshape(len(values), -1))
    named = {"component": [label for label, _ in cells], "option": [name for _, name in cells]}
    sizes = estimates_frame(named | {"size": each_cell}, {"size": unit})
    title = f"{labels[largest[0]]} has the largest {'mean ' * (len(values) > 1)}contribution to {names[largest[1]]}"
    if zero.startswith("centered"):  # the contribution itself may have another sign
        way = f"{'raises' if compared[largest] > 0 else 'lowers'} {names[largest[1]]} most"
        title = f"{'On average, ' * (len(values) > 1)}{labels[largest[0]]} {way} against the mean of the options"
    other = "{component}'s" + " to {option}" * (compared.shape[1] > 1)
    title += kit.ahead(sizes, sizes.iloc[int(np.ravel_multi_index(largest, compared.shape))], "size", other=other)
    if (frame["kind"] == "head").any():
        return _head_panels(frame, shown, names, unit, title, subtitle, largest)
    x = axes.component_axis(frame, kit.STREAM)
    if frame["kind"].str.match("neuron|.*_latent").any() and len(frame) > _MOST_NEURONS:  # each needs its name
        kept = kit.top(np.abs(shown).max(1), _MOST_NEURONS)
        subtitle += f" The {_MOST_NEURONS} largest of {len(labels):,} components."
        labels, shown = [labels[i] for i in kept], shown[kept]
        x = axes.named_columns(labels, range(len(labels)))
    look: dict[str, Any] = {"x": x, "y": axes.named_rows(names), "plot": 20 + 44 * len(names), "signed": True}
    limit = kit.robust_limit(shown, 1.0)
    look |= {"limit": limit, "ygap": 1, "named": largest if len(shown) == len(frame) else None}
    return kit.heat_figure(shown.T, (names, labels), unit, title, subtitle, **look)


def _head_panels(
    frame: pd.DataFrame, values: np.ndarray, names: list[str], unit: str, title: str, subtitle: str, framed: Any
) -> go.Figure:
    """Draw a map layer × head for every option, with a column of MLPs; `values` `[component, option]`.

    The cell of `framed`, a component and an option, gets a frame.
    """
    limit, contents, columns = kit.robust_limit(values), list[list[go.Heatmap]](), min(2, len(names))
    for name, row in zip(names, values.T, strict=True):
        texts = kit.hovers([name], frame["component"], row[None], unit)[0]
        layers, z, text, of_layer = kit.head_table(frame, row, texts)
        heads, mlps = z.shape[1], np.flatnonzero((frame["kind"] == "mlp") & (of_layer >= 0))
        if len(mlps):  # an empty column stands between
            wide = ((0, 0), (0, 2))
            z, text = np.pad(z, wide, constant_values=np.nan), np.pad(text, wide, constant_values="")
            z[of_layer[mlps], -1], text[of_layer[mlps], -1] = row[mlps], texts[mlps]
        contents.append([kit.heat(z, text, unit, limit, signed=True, showscale=not contents, xgap=1, ygap=1)])
    ticks = {number: str(number) for number in range(0, heads, max(1, -(-heads * columns // 16)))}
    ticks |= {heads + 1: "MLP"} if len(mlps) else {}
    figure = layout.panels(contents, map(layout.clipped, names), columns, x_title="head", shared_xaxes=False)
    absent = frame["component"][~((frame["kind"] == "head") | frame.index.isin(mlps))].tolist()
    subtitle += f" Not in the maps: {layout.clipped(', '.join(absent), 40)}." * bool(absent)
    look: dict[str, Any] = {"x": axes.ticks(ticks, ticks.values()), "y": axes.layer_axis(layers)}
    plot, (named, option) = max(180, 11 * len(layers)) * -(-len(names) // columns), framed
    if of_layer[named] >= 0 and frame["kind"].iloc[named] in ("head", "mlp"):
        column = heads + 1 if frame["kind"].iloc[named] == "mlp" else int(frame["index"].iloc[named])
        kit.frame_cell(figure, column, of_layer[named], **layout.cell(int(option), columns))
        subtitle += " Framed: the cell of the title."
    return layout.finish(figure, title, f"{subtitle} {kit.ends_at(limit)}", plot=plot, **look)


def continuation_map(continuation: Continuation, prompt: int = 0, max_components: int = 40) -> go.Figure:
    """Draw a map component × token: the contribution to each token of a continuation minus that to its strongest rival.

    Of heads, MLPs and other components the heads alone are shown.

    Raises InputError for a prompt that does not exist.
    """
    whole_number("prompt", prompt, 0, len(continuation.continued) - 1)
    own = np.flatnonzero(continuation.prompt_number == prompt)
    values = (continuation.values[own, :, 0] - continuation.values[own, :, 1]).T
    heads = np.array([i for i, c in enumerate(continuation.components) if c.kind == "head"], dtype=int)
    who, among = ("heads", heads) if len(heads) else ("components", np.arange(len(values)))
    kept, remark = kit.strongest(values[among], max_components, who)
    kept = among[kept[::-1]]  # the last layer at the top
    labels = [continuation.components[i].label for i in kept]
    names = [" against ".join(f"'{quoted(text)}'" for text in continuation.options[i]) for i in own]
    margins = continuation.model_logits[own, 0] - continuation.model_logits[own, 1]
    least = int(margins.argmin())
    best = among[int(values[among, least].argmax())]
    margin, part = (style.number(x) for x in (margins[least], values[best, least]))
    token, rival = (f"'{quoted(text)}'" for text in continuation.options[own[least]])
    title = f"Of {len(own)} tokens, {token} has the smallest margin over its rival, {rival}, {margin} logits; "
    title = title if len(own) > 1 else f"The margin of {token} over its rival, {rival}, is {margin} logits; "
    title += f"of the {who}, {continuation.components[best].label} adds most to it, {part}"
    how = continuation.sampling["method"]
    subtitle = f"Tokens {how if how == 'given' else f'generated ({how})'}. Contributions to each minus those to its "
    subtitle += f"strongest rival.{remark}"
    tokens = axes.token_axis([continuation.written[i] for i in own], "token / its strongest rival", named=least)
    tokens["ticktext"] = [" / ".join(quoted(t, 12) for t in continuation.options[own[i]]) for i in tokens["tickvals"]]
    look: dict[str, Any] = {"x": tokens, "y": axes.named_rows(labels)}
    plot = max(240, 13 * len(kept))
    texts = (labels, names)
    return kit.heat_figure(values[kept], texts, "logits", title, subtitle, signed=True, plot=plot, below=110, **look)


def difference_bars(difference: LogitDifference, max_components: int = 24) -> go.Figure:
    """Draw the sums of positive and of negative contributions, and the components with the largest difference.

    Bars are means over examples with 95 % intervals; marks are the difference's two sides (`LogitDifference.sides`).
    """
    frame = difference.frame()
    unit, columns = frame.attrs["units"]["difference"], ["difference", "difference_low", "difference_high"]
    kept, remark = kit.largest(frame, "difference", max_components)
    kept = kept.iloc[np.argsort(-np.abs(kept["difference"].to_numpy()), kind="stable")]
    sums = {"all above 0": difference.positive, "all below 0": difference.negative, "total": difference.total}
    whole = pd.DataFrame([estimate(x)[:3] for x in sums.values()], columns=columns)
    shown = pd.concat([whole.assign(component=list(sums), module="constant"), kept], ignore_index=True)
    shown.attrs, first, logits = frame.attrs, len(sums), difference.score == "logits"
    traces: list[Any] = kit.bars(shown, "difference", shape="across")
    traces[0].update(name="sums", legendgroup="sums")
    pair = difference.pairs if isinstance(difference.pairs[0], str) else difference.names
    of = " − ".join(map(quoted, pair)) if pair else "Each prompt's first answer minus its second"
    count = len(difference.values)
    share = f"in {style.percent(difference.accuracy)} of {count} examples" if count > 1 else "in this example"
    prefers = "prefers the first" if count > 1 or difference.accuracy > 0.5 else "does not prefer the first"
    subtitle = f"{of}. The model {prefers} {share}. "
    subtitle += "All above and all below 0: means of each example's sums. " * (count > 1)
    if difference.sides is not None:
        for side, symbol in ((0, "circle"), (1, "diamond")):
            name = f"to {quoted(pair[side])}" if pair else f"to the {('first', 'second')[side]}"
            values = [difference.sides[:, :, side].sum(1).mean(), *difference.sides[:, kept.index, side].mean(0)]
            texts, rows = [f"{style.signed(x)} {unit} {name}" for x in values], [first - 1, *range(first, len(shown))]
            look: dict[str, Any] = {"name": name, "marker": {"symbol": symbol}}
            traces.append(kit.trace(shown, values, rows, style.SERIES[1 - side], texts, **look))
        zero = "relative to the mean over the vocabulary" if logits else "in its log-likelihood"
        subtitle += f"Marks: what is added to either answer, {zero}. "
    size = style.estimate(*whole.iloc[2], unit=unit)
    what = f"{of} is {size}" if pair else f"{'Logit' if logits else 'Log-likelihood'} difference {size}"
    x = {"title_text": f"{'mean ' * (count > 1)}contribution, {unit}", "zeroline": True}
    look = {"x": x, "y": axes.named_rows(shown["component"]), "plot": 40 + 20 * len(shown), "barmode": "overlay"}
    most, subtitle = kept.iloc[0], f"{subtitle}{remark} {kit.intervals(frame)}"
    part = "+" * bool(most["difference"] >= 0) + style.estimate(*(most[f"difference{end}"] for end in ENDS))
    title = f"{what}; the largest part, {part}, from {most['component']}"
    title += kit.doubt(most, "difference") or kit.rival(frame, most, "difference")
    return layout.finish(traces, title, subtitle, **look).add_hline(y=first - 0.5, line=kit.DOTTED)


def profile_map(profile: Profile, term: Term = "net") -> go.Figure:
    """Draw a map component × token of one number of a profile. Raises InputError for an unknown term."""
    values = np.asarray(getattr(profile, term), dtype=np.float64)
    unit = "logits" if term == "target_logit" else "logits²"
    name = "Contribution to the next token's logit"
    name = name if term == "target_logit" else f"{profile.gauge.capitalize()} {term}"
    title = f"{name} of every component at every token"
    return token_map(profile, values, title, _MEANING[term], unit, term in ("net", "target_logit"))


def token_map(text: Any, values: np.ndarray, title: str, subtitle: str, unit: str, signed: bool) -> go.Figure:
    """Draw a map component × token of the values of a text, limited to components with the largest mean size.

    The title names the cell farthest from 0, which is framed.
    """
    kept, remark = kit.strongest(values, MOST_ROWS)
    rows = [text.components[i] for i in kept]
    pairs = zip(text.tokens, text.next_tokens, strict=True)
    tokens = [f"at '{quoted(token)}'" + (f", next '{quoted(after)}'" if after else "") for token, after in pairs]
    shown, labels = values[kept], [c.label for c in rows]
    # A text's first token has no context, and is often an outlier.
    starts = np.array([True, *(after is None for after in text.next_tokens[:-1])])
    others = starts.size > 2 and not starts.all()
    sizes = np.where(starts & others, 0.0, np.nan_to_num(np.abs(shown)))
    row, token = np.unravel_index(sizes.argmax(), sizes.shape)
    beyond = f" beyond {'the first token' if starts.sum() == 1 else 'first tokens'}" * others
    title += f". Farthest from 0{beyond}: {labels[row]} {tokens[token]}, "
    title += f"{style.number(shown[row, token])} {unit}"
    look: dict[str, Any] = {"x": axes.token_axis(text.tokens, "token before the predicted one", int(token))}
    look |= {"y": axes.component_axis(rows), "plot": 500, "below": 50, "signed": signed}
    subtitle += remark
    subtitle += " The last token has no next one." * bool(np.isnan(shown[:, -1]).all())
    return kit.heat_figure(shown, (labels, tokens), unit, title, subtitle, named=(token, row), **look)


def loss_bars(profile: Profile) -> go.Figure:
    """Draw the model's cross-entropy of every token, in nats, at the predicted token."""
    predicted = np.flatnonzero(np.isfinite(profile.losses))
    losses, uniform = profile.losses[predicted], float(np.log(profile.vocabulary))
    names = [quoted(profile.tokens[i + 1]) for i in predicted]
    texts = [
        f"{name} at {i + 1}\n{style.number(loss)} nats\nprobability {style.number(np.exp(-loss))}"
        for name, i, loss in zip(names, predicted, losses, strict=True)
    ]
    bars = go.Bar(x=predicted + 1, y=losses, hovertext=texts, hoverinfo="text")
    most = int(losses.argmax()) if len(losses) else 0
    hardest = ""
    if len(losses):
        hardest = f"; most, {style.number(losses[most])}, at '{names[most]}' (token {predicted[most] + 1})"
    title = f"Mean loss {style.number(losses.mean())} nats{hardest}"
    subtitle = (
        f"Dotted: a uniform guess over the vocabulary, {style.number(uniform)} nats. A first token is not predicted."
    )
    named = int(predicted[most]) + 1 if len(losses) else None
    x = axes.token_axis(profile.tokens, named=named) | {"range": [-0.6, len(profile.tokens) - 0.4]}
    y = {"title_text": "nats", "rangemode": "tozero"}
    return layout.finish(bars, title, subtitle, x=x, y=y, below=50).add_hline(y=uniform, line=kit.DOTTED)


def attention_maps(patterns: AttentionPatterns, max_heads: int = 12) -> go.Figure:
    """Draw the attention of heads: from rows to columns, from 0 to 1.

    The `max_heads` heads are those that attend most sharply to single tokens other than the first, to which many heads
    attend when they have nothing to do.
    """
    p = patterns.patterns
    sharpness = p[:, 1:, 1:].max(-1, initial=0.0).sum(-1) / max(p.shape[1] - 1, 1)  # the first row has no other token
    heads = np.sort(np.argsort(-sharpness, kind="stable")[:max_heads])
    tokens, maps = [quoted(token, 12) for token in patterns.tokens], list[list[go.Heatmap]]()
    labels = [patterns.components[i].label for i in heads]
    for label, head in zip(labels, heads, strict=True):
        past = np.where(np.tri(len(tokens), dtype=bool), p[head], np.nan)
        texts = ([f"{label}\nfrom {token}" for token in tokens], [f"to {token}" for token in tokens])
        maps.append([kit.heat(past, texts, "attention", 1.0, showscale=not maps)])
    columns = min(2, len(heads))
    down = -(-len(heads) // columns)
    figure = layout.panels(maps, labels, columns, gap=min(0.3, 0.1 * down), across=0.05, shared_xaxes="all")
    some = (
        f"The {len(heads)} of {len(p)} heads that attend most to single tokens beyond the first (mean over later rows "
    )
    some = (some + "of the largest weight). ") if len(heads) < len(p) else _SHARP
    total = "1" if np.allclose(p.sum(2), 1, atol=1e-2) else "at most 1: a sink takes the rest"
    x = axes.token_axis(patterns.tokens, "") | {"tickfont": {"size": 10}}
    y = x | {"tickangle": 0, "autorange": "reversed"}
    most = int(sharpness.argmax())
    title = (
        f"Of {style.count(len(p), 'head')}, {patterns.components[most].label} attends most sharply beyond the first "
    )
    title += f"token, with a largest weight of {style.number(sharpness[most])} on average"
    if len(p) == 1:
        title = f"{labels[0]}'s largest weight beyond the first token is {style.number(sharpness[most])} on average"
    if len(tokens) < 2:
        title = "With a single token, every head attends to itself"
    return layout.finish(
        figure,
        title,
        f"One text. Attention from the row's token to the column's. {some}Each row sums to {total}.",
        x=x,
        y=y,
        plot=down * max(260, 12 * len(tokens)),
        below=40,
    )


def source_map(sources: SourceTokens, example: int = 0, option: int = 0, max_heads: int = 24) -> go.Figure:
    """Draw a map head × source token of each head's contribution to an option by source token (attention × value).

    It is the contribution to this option minus the mean over the others; the `max_heads` heads with the largest
    Σ|parts| are shown. Raises InputError for an unknown example or option.
    """
    parts, of, tokens = _score(sources, example, option)
    kept, remark = kit.strongest(parts, max_heads, "heads")
    shown, labels = parts[kept], [sources.heads[i].label for i in kept]
    texts = kit.hovers(labels, [f"from {quoted(token)}" for token in tokens], shown, "logits")
    weights = sources.weights[example][kept][:, : len(tokens)]
    texts[:, : weights.shape[1]] += np.array(
        [[f"\nattention {style.percent(w)}" for w in row] for row in weights], dtype=object
    )
    head, token = np.unravel_index(np.abs(shown).argmax(), shown.shape)
    place = sources.positions[example]
    title = f"Contribution of each head by source token: most by {labels[head]} from "
    title += f"'{quoted(tokens[token])}' (token {token})"
    title += f", {style.number(shown[head, token])} logits"
    which = f"Example {example} of {len(sources.tokens)}. " * (len(sources.tokens) > 1)
    subtitle = f"{which}To {of} at '{quoted(sources.tokens[example][place])}' (token {place}).{remark}"
    look: dict[str, Any] = {
        "x": axes.token_axis(tokens, "source token", int(token)),
        "y": axes.ticks(range(len(kept)), labels),
    }
    look |= {
        "signed": True,
        "xgap": 1,
        "ygap": 1,
        "plot": max(200, 16 * len(kept)),
        "below": 60,
        "named": (token, head),
    }
    return kit.heat_figure(shown, texts, "logits", title, subtitle, **look)


def source_bars(sources: SourceTokens, example: int = 0, option: int = 0) -> go.Figure:
    """Draw the contribution of each source token's values to an option, summed over all heads.

    It is the contribution to this option minus the mean over the others. Bars are the sums of the positive and of the
    negative parts, marks their sum.
    """
    parts, of, tokens = _score(sources, example, option)
    plus, minus, total = np.maximum(parts, 0.0).sum(0), np.minimum(parts, 0.0).sum(0), parts.sum(0)
    rows = zip(tokens, plus, minus, strict=True)
    texts = [f"{quoted(t)}\n{style.number(a + b)} = {style.number(a)} − {style.number(-b)} logits" for t, a, b in rows]
    frame, sums = pd.DataFrame(index=range(len(tokens))), {"positive parts": (plus, 3), "negative parts": (minus, 0)}
    traces = [
        kit.trace(frame, frame.index, values, style.SERIES[color], texts, shape="bars", name=name)
        for name, (values, color) in sums.items()
    ]
    traces.append(kit.trace(frame, frame.index, total, style.SERIES[1], texts, name="sum"))
    most = int(np.abs(total).argmax())
    named = f"'{quoted(tokens[most])}' (token {most})"
    title = f"Head contributions by source token: most from {named}, {style.number(total[most])} logits"
    about = f"Example {example} of {len(sources.tokens)}. " * (len(sources.tokens) > 1)
    at = sources.positions[example]
    about += (
        f"To {of} at '{quoted(sources.tokens[example][at])}' (token {at}), by {len(sources.heads)} heads. Bars: sums "
    )
    about += "of the heads' parts above 0 and below 0; dots: of all."
    y = {"title_text": "logits", "zeroline": True}
    return layout.finish(
        traces, title, about, x=axes.token_axis(tokens, "source token", most), y=y, below=60, barmode="relative"
    )


def _score(sources: SourceTokens, example: int, option: int) -> tuple[np.ndarray, str, list[str]]:
    """Parts `[head, source]` of an option's score; their names."""
    n, _, _, k = sources.values.shape
    example, option = whole_number("example", example, 0, n - 1), whole_number("option", option, 0, k - 1)
    end, texts = sources.positions[example] + 1, sources.option_texts(example)
    values, tokens = sources.values[example, :, :end], list(sources.tokens[example][:end])
    others = [j for j in range(k) if j != option]
    score = values[:, :, option] - (values[:, :, others].mean(2) if others else 0.0)
    minus = f" − {quoted(texts[others[0]])}" if len(others) == 1 else f" − the mean of {len(others)} others"
    return score, quoted(texts[option]) + minus * bool(others), tokens
