"""The selection in an explorer, and its initial value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from ..._checks import choice, shown, whole_number
from ...components import Component
from ...errors import InputError
from .measure import TextNumbers

Measure = Literal["logit", "cross_entropy", "bias", "diversity", "net"]
Color = Literal["loss", "component"]
Gauge = Literal["centered", "raw"]


@dataclass(frozen=True)
class Selection:
    """The selection in an explorer, shared by all its views.

    Attributes:
        position: A column of the text's profile: the token after which a prediction is made.
        component: A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
        measure: The measure shown for components: "logit" (contribution to the target), "cross_entropy", "bias",
            "diversity" or "net".
        target, minus: Token ids. A: None is the right token (at the end of the text, the likeliest). B: if given,
            contributions are to A − B.
        part: Squared terms with ("raw") or without ("centered") the shift that softmax cannot see.
        color: The number that colors the text: "loss", or that of the selected "component".
    """

    position: int = 0
    component: str = "embed"
    measure: Measure = "logit"
    target: int | None = None
    minus: int | None = None
    part: Gauge = "centered"
    color: Color = "loss"

    @property
    def layer(self) -> int | None:
        """The layer of the selected component; None outside layers."""
        return Component.parse(self.component).layer

    @property
    def repeat(self) -> int | None:
        """The repeat of the component's layer, from 1; None for a layer that runs once."""
        return Component.parse(self.component).repeat

    def changed(self, given: Selection | Mapping[str, Any]) -> Selection:
        """Return another selection, or this one with some fields replaced. Raises InputError for unknown names.

        >>> Selection().changed({"component": "L3.H5"}).layer
        3
        """
        if isinstance(given, Selection):
            return given
        names = [field.name for field in fields(self)]
        if not isinstance(given, Mapping) or not set(given) <= set(names):
            allowed = f"a Selection, or a dict of {', '.join(names)}"
            raise InputError(f"selection={shown(given)} is not a selection: give {allowed}.")
        return replace(self, **given)

    def check(self, text: TextNumbers) -> Selection:
        """Return the selection if it exists in this text; otherwise raise InputError."""
        position = whole_number("position", self.position, 0, text.length - 1)
        labels = [c.label for c in text.shown]
        if not isinstance(self.component, str) or self.component not in labels:
            raise InputError(
                f"there is no component {shown(self.component)} here: choose among {', '.join(labels[:8])}, … as in "
                "'L3.attn' or 'L3.H5'."
            )
        for name, kind in (("part", Gauge), ("measure", Measure), ("color", Color)):
            choice(name, getattr(self, name), get_args(kind))
        tokens = {name: getattr(self, name) for name in ("target", "minus")}
        for name, token in tokens.items():
            if token is not None and not (text.candidates == whole_number(name, token, 0)).any():
                raise InputError(
                    f"{name}={token} was not measured: it is no next token of this text and never among the likeliest; "
                    "give it to explore, as in target=' Paris' or target=[' Paris', ' Rome']."
                )
        # The browser reads JSON, which takes only Python's own numbers.
        whole: dict[str, Any] = {name: None if token is None else int(token) for name, token in tokens.items()}
        return replace(self, position=int(position), **whole)

    def record(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


def targets_of(text: TextNumbers) -> dict[str, Any]:
    """Return the requested target tokens as fields of a selection."""
    return dict(zip(("target", "minus"), (*text.targets, None, None), strict=False))


def first_selection(text: TextNumbers) -> Selection:
    """Return the initial selection: at the last token, the head (or else sublayer) that adds most to the target.

    A head that mostly attends to the first token (an attention sink) has an uninformative pattern, and comes last.
    """
    position = text.length - 1
    rows = [int(np.flatnonzero(text.candidates[1:, position] == i)[0]) + 1 for i in text.targets] or [1]
    table = text.target_logits[:, :, position]
    logits = table[rows[0]] - (table[rows[1]] if len(rows) > 1 else 0)
    wanted = heads = np.array([c.kind == "head" for c in text.shown])
    if text.attention is not None and position:
        wanted = heads & (logits > 0)
        wanted[heads] &= text.attention.patterns[:, position, 0] < 0.5
    wanted = wanted if wanted.any() else heads if heads.any() else ~heads
    best = int(np.where(wanted, logits, -np.inf).argmax())
    return Selection(position=position, component=text.shown[best].label, **targets_of(text))
