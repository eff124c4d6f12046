"""Which components wrote an answer: one text, two tokens that could come next, and ranked bars of components."""

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


def answer(model: Model, text: str, right: str, wrong: str, explorer: str) -> tuple[Block, str]:
    """What every head and MLP adds to the logit of one token less that of another: the largest as bars; and a sentence.

    `explorer` is the address of the text's explorer. Raises InputError as `contributions` does.
    """
    c = contributions(model, [text], [right, wrong], unit="head")
    written, total = c.values[0, :, 0] - c.values[0, :, 1], float(c.model_logits[0] @ [1, -1])
    order = np.argsort(-written)
    below = max(0, min(BELOW, len(order) - ABOVE))
    some = [*order[:ABOVE], *order[len(order) - below :]]
    rows = [(c.components[i].label, _words(c.components[i]), float(written[i])) for i in some]
    if others := len(order) - len(some):
        rows.append(("…", f"the other {others} together", float(written[order[ABOVE : len(order) - below]].sum())))
    low, high = (limit(0.0, *(value for *_, value in rows)) for limit in (min, max))
    high += low == high
    bars = "".join(
        f"<tr><th scope=row>{label}</th><td>{words}</td><td><i class={'less' if value < 0 else 'more'} style="
        f'"margin-left:{(min(value, 0) - low) / (high - low):.1%};width:{abs(value) / (high - low):.1%}"></i></td>'
        f"<td>{'−' if value < 0 else '+'}{abs(value):.2f}</td></tr>"
        for label, words, value in rows
    )
    probable, best = top_tokens(model, text, 1).iloc[-1], c.components[order[0]]
    says = {"right": right, "wrong": wrong, "prediction": probable["prediction"], "text": text}
    values: dict[str, Any] = {name: repr(each.strip()) for name, each in says.items()}
    values |= {"count": len(order), "sum": written.sum(), "total": total, "probability": probable["probability"]}
    values |= {"best": _words(best), "label": best.label, "most": written[order[0]]}
    before, after, link, sentence = (PROSE["answer"][part].format(**values) for part in _PARTS)
    block = Block(
        f"<p class=said>{escape(text)} <mark>{escape(right.strip())}</mark></p>"
        f"<p>{escape(before)}</p><table>{bars}</table>"
        f'<p>{escape(after)} <a href="{escape(explorer)}">{escape(link)}</a></p>'
    )
    return captioned(block, "", "answer"), sentence


def _words(component: Component) -> str:
    """A component of a language model in words.

    >>> _words(Component("head", layer=23, index=3)), _words(Component("mlp", layer=28)), _words(Component("embed"))
    ('head 3 of layer 23', 'the MLP of layer 28', 'the embedding')
    """
    kind, layer = component.kind, f" of layer {component.layer}" if component.layer is not None else ""
    named = {"head": f"head {component.index}", "mlp": "the MLP", "embed": "the embedding"}
    return named.get(kind, kind.replace("_", " ")) + layer
