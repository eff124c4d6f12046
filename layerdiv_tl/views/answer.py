"""Which components decide an answer: one text, two tokens that could come next, and ranked bars of components."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from ..attribution.contributions import contributions
from ..components import Component
from ..model.load import Model
from ..model.predictions import top_tokens
from .html import Block, captioned
from .tables import PROSE

# Components with a bar of their own: those that add most to the difference, and those that take most from it.
ABOVE, BELOW = 6, 3
_PARTS = ("before", "after", "link", "sentence")


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
    probable, best = top_tokens(model, text, 1).iloc[-1], components[order[0]]
    says = {"right": right, "wrong": wrong, "prediction": probable["prediction"], "text": text}
    values: dict[str, Any] = {name: repr(each.strip()) for name, each in says.items()}
    values |= {"count": len(order), "sum": written.sum(), "total": total, "probability": probable["probability"]}
    values |= {"best": _words(best), "label": best.label, "most": _signed(written[order[0]])}
    values |= {"a": right.strip(), "b": wrong.strip()} | dict(
        zip(("to_a", "to_b"), map(_signed, to[order[0]]), strict=True)
    )
    before, after, link, sentence = (PROSE["answer"][part].format(**values) for part in _PARTS)
    block = Block(
        f"<p class=said>{escape(text)} <mark>{escape(right.strip())}</mark></p>"
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
