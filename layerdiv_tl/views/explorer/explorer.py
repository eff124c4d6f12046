"""`explore`: linked views of one decomposed text, and their selection."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..._checks import choice, console_text, file_path, shown, whole_number
from ..._files import written
from ...errors import InputError
from ...model.load import Model, as_model
from .. import style
from ..html import page_html, script_json, templates
from . import pack
from .numbers import TextNumbers, measure_text, one_token

if TYPE_CHECKING:
    from .widget import ExplorerWidget

Measure = Literal["logit", "cross_entropy"]
Color = Literal["loss", "component"]


def explore(model: Any, text: Any, target: Any = None) -> Explorer:
    """Decompose a text and explore it in linked views, in a notebook or as one page.

    It opens at the end of the text, on the head that adds most to the model's answer there.

    Args:
        model: A `Model`, or any input of `load_model`.
        text: A text or a list of token ids, of at most 512 tokens.
        target: A token (its text or id), or a pair (A, B), e.g. `(" Mary", " John")`. The views show contributions to
            A, or to A − B and each of both, at every token, and compare the last prediction with A as the next token.
            The right token, the model's five likeliest tokens and the text's latest 24 are always available; set the
            `selection` to measure any other.

    Raises InputError for a text that cannot be shown and for a target that is not one token.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> e = explore(tiny, [1, 2, 3, 4], target=7)
    >>> e.selection = {"component": "L1.H0", "position": 3, "minus": 9}
    >>> e.selection.target, e.text.contributions.shape[1:]
    (7, (9, 4))
    """
    model = as_model(model)
    return Explorer(model, measure_text(model, text, target))


@dataclass(frozen=True)
class Selection:
    """The selection in an explorer, shared by all its views.

    Attributes:
        position: The token after which a prediction is made, from 0.
        component: A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
        measure: Contributions to the "logit" of the target, in logits, or to its "cross_entropy", in nats.
        target, minus: Token ids. A: None is the right token (at the end of the text, the likeliest). B: if given,
            contributions to the logit are to A − B.
        color: The number that colors the text: "loss", or that of the selected "component".
    """

    position: int = 0
    component: str = "embed"
    measure: Measure = "logit"
    target: int | None = None
    minus: int | None = None
    color: Color = "loss"

    def check(self, text: TextNumbers) -> Selection:
        """Return the selection. Raises InputError if it does not exist in this text."""
        position = whole_number("position", self.position, 0, text.length - 1)
        if not isinstance(self.component, str) or self.component not in text.labels:
            raise InputError(f"there is no component {shown(self.component)} here: give one as 'L3.attn' or 'L3.H5'.")
        choice("measure", self.measure, get_args(Measure))
        choice("color", self.color, get_args(Color))
        for name, token in (("target", self.target), ("minus", self.minus)):
            if token is not None and not (text.candidates == whole_number(name, token, 0)).any():
                raise InputError(f"{name}={shown(token)} was not measured in this text.")
        return replace(self, position=position)


class Explorer:
    """A `model`, a decomposed `text` and a selection. Returned by `explore`; shown at the end of a notebook's cell."""

    def __init__(self, model: Model, text: TextNumbers) -> None:
        self.model, self.text = model, text
        self._selection = first_selection(text)
        self._widget: ExplorerWidget | None = None

    @property
    def selection(self) -> Selection:
        """The selection shared by all views; set it to a `Selection` or a dict of some of its fields.

        Tokens may be texts, as in `{"target": " Paris"}`; contributions to a token that was not measured yet are
        computed. Raises InputError for a selection that does not exist.
        """
        return self._selection

    @selection.setter
    def selection(self, given: Selection | Mapping[str, Any]) -> None:
        chosen = given if isinstance(given, Selection) else replace(self._selection, **given)
        tokens: dict[str, Any] = {"target": chosen.target, "minus": chosen.minus}
        tokens = {name: one_token(self.model, token, name) for name, token in tokens.items() if token is not None}
        self.select(replace(chosen, **tokens), self.text.with_tokens(self.model, list(tokens.values())))

    def select(self, chosen: Selection, text: TextNumbers | None = None) -> None:
        """Select what was measured, in another text if one is given; raises InputError for what it does not have."""
        before, text = self.text, self.text if text is None else text
        self._selection, self.text = chosen.check(text), text
        if self._widget is not None:
            if text is not before:
                self._widget.put(text)
            self._widget.chosen = asdict(self._selection)

    def put(self, text: TextNumbers) -> None:
        """Replace the text by a measured one, which opens as if it were the first."""
        self.select(first_selection(text), text)

    def html(self) -> str:
        """Return the page as HTML."""
        blobs = pack.page_blobs(self.model, self.text, self.selection)
        # Each lies in an element of its own, which is read when it is wanted.
        stored = {name: base64.b64encode(blob).decode() for name, blob in blobs.items()}
        record = {"model": self.model.name, "chosen": asdict(self.selection), "text": {name: name for name in stored}}
        body = templates().explorer(script_json(record), stored, f"{pack.SCRIPT}\nopenPage();")
        css = style.css_variables() + pack.CSS
        return page_html(f"Explorer: {self.model.name}", css, (), body, "ld-page")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one page that needs no network and no kernel; it opens with the current selection.

        Promoted and source tokens are of all components at the selected position, and elsewhere of those that add most;
        effects are of the selected component and the seven that add most. Raises InputError for a file that cannot be
        written.
        """
        path = file_path("path", path)
        with written(path) as partial:
            partial.write_text(self.html(), encoding="utf-8")
        return path

    @property
    def widget(self) -> ExplorerWidget:
        """Return the Jupyter widget; all its displays share one state."""
        if self._widget is None:
            from .widget import ExplorerWidget

            self._widget = ExplorerWidget.of(self)
        return self._widget

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    __str__ = console_text

    def __repr__(self) -> str:
        return f"Explorer({self.model.name}: {self.text.length} tokens × {len(self.text.components)} components)"


def first_selection(text: TextNumbers) -> Selection:
    """Return the initial selection: at the last token, the head (or else sublayer) that adds most to the target.

    A head that mostly attends to the first token (an attention sink) has an uninformative pattern, and comes last.
    """
    position = text.length - 1
    table = text.contributions[:, :, position]
    logits = table[0] - (table[text.row(text.targets[1], position)] if len(text.targets) > 1 else 0)
    wanted = heads = np.array([c.kind == "head" for c in text.components])
    if text.attention is not None and position:
        wanted = heads & (logits > 0)
        wanted[heads] &= text.attention.patterns[:, position, 0] < 0.5
    if not wanted.any():
        wanted = heads if heads.any() else ~heads
    best = int(np.where(wanted, logits, -np.inf).argmax())
    target, minus = (*text.targets, None, None)[:2]
    return Selection(position=position, component=text.labels[best], target=target, minus=minus)
