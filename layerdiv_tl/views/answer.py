"""Which components decide an answer: one text, two tokens that could come next, and ranked bars of components."""

from __future__ import annotations

from html import escape

import numpy as np

from ..attribution.contributions import contributions
from ..components import Component
from ..model.load import Model
from ..model.predictions import top_tokens
from .html import Block, captioned

# Components with a bar of their own: those that add most to the difference, and those that take most from it.
ABOVE, BELOW = 6, 3


def answer(model: Model, text: str, right: str, wrong: str, explorer: str) -> tuple[Block, str, str]:
    """What every head and MLP adds to the logit of one token minus that of another: the largest as bars.

    Returns these, a sentence, and the label of the component that the sentence names. A difference stands with its two
    sides, relative to the mean over the vocabulary. `explorer` is the address of the text's explorer. Raises InputError
    as `contributions` does.
    """
    c = contributions(model, [text], [right, wrong], unit="head")
    difference, total = c.difference(), float(c.model_logits[0] @ [1, -1])
    written, sides = difference.values[0], difference.sides
    assert sides is not None
    to = sides[0]
    order = np.argsort(-written)
    below = max(0, min(BELOW, len(order) - ABOVE))
    some = [*order[:ABOVE], *order[len(order) - below :]]
    components = difference.components
    rows = [(components[i].label, _words(components[i]), float(written[i]), to[i]) for i in some]
    if others := len(order) - len(some):
        rest = order[ABOVE : len(order) - below]
        rows.append((f"{others} others", "together", float(written[rest].sum()), to[rest].sum(0)))
    low, high = (limit(0.0, *(value for *_, value, _ in rows)) for limit in (min, max))
    high += low == high
    bars = "".join(
        f"<tr><th scope=row>{label}</th><td>{words}</td><td><i class={'less' if value < 0 else 'more'} style="
        f'"margin-left:{(min(value, 0) - low) / (high - low):.1%};width:{abs(value) / (high - low):.1%}"></i></td>'
        f"{''.join(f'<td>{_signed(x)}</td>' for x in (value, *pair))}</tr>"
        for label, words, value, pair in rows
    )
    heads = ["", "", *(escape(x) for x in (f"{right.strip()} − {wrong.strip()}", "", right.strip(), wrong.strip()))]
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    predicted = top_tokens(model, text, 1).iloc[-1]
    to_right, to_wrong = (x.strip() for x in (right, wrong))
    best = components[order[0]]
    sentence = (
        f"After {text.strip()!r} the model prefers {to_right!r} to {to_wrong!r} by {total:.2f} logits. "
        f"{_words(best).capitalize()} ({best.label}) raises {to_right} − {to_wrong} most, by "
        f"{_signed(written[order[0]])}: {_signed(to[order[0], 0])} to {to_right}, {_signed(to[order[0], 1])} to "
        f"{to_wrong}, relative to the mean over the vocabulary."
    )
    before = (
        f"The model's next token is {predicted['prediction'].strip()!r}, with a probability of "
        f"{predicted['probability']:.0%}. Which of its {len(order)} components (heads, MLPs, the embedding) decided "
        f"that? A bar is what one adds to the logit of {to_right!r} minus what it adds to that of {to_wrong!r}. The "
        "last two columns are these two sides, relative to the component's mean over the vocabulary: a component can "
        f"raise the difference because it lowers {to_wrong!r}."
    )
    after = f"All of them together: {written.sum():.2f} logits. The model itself: {total:.2f}."
    link = "Open this text in the explorer, to click through its tokens, layers and heads."
    block = Block(
        f"<p class=said>{escape(text)} <mark>{escape(to_right)}</mark></p>"
        f"<p>{escape(before)}</p><div class=rolled tabindex=0><table><tr>{head}</tr>{bars}</table></div>"
        f'<p>{escape(after)} <a href="{escape(explorer)}">{escape(link)}</a></p>'
    )
    return captioned(block, "", "answer"), sentence, best.label


def _signed(value: float) -> str:
    """A number with its sign.

    >>> _signed(2.857), _signed(-0.079)
    ('+2.86', '−0.08')
    """
    return f"{'−' if value < 0 else '+'}{abs(value):.2f}"


def _words(component: Component) -> str:
    """A component of a language model in words.

    >>> _words(Component("head", layer=23, index=3)), _words(Component("mlp", layer=28)), _words(Component("embed"))
    ('head 3 of layer 23', 'the MLP of layer 28', 'the embedding')
    """
    kind, layer = component.kind, f" of layer {component.layer}" if component.layer is not None else ""
    named = {"head": f"head {component.index}", "mlp": "the MLP", "embed": "the embedding"}
    return named.get(kind, kind.replace("_", " ")) + layer
