"""What is chosen in an explorer, and where it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from ..._checks import choice, shown, whole_number
from ...components import Component
from ...errors import InputError
from .measure import TextNumbers

Measure = Literal["logit", "cross_entropy", "bias", "diversity", "net"]
Color = Literal["loss", "component", "change"]
Side = Literal["a", "b"]
Half = Literal["centered", "raw"]
Pin = tuple[int, int] | None


@dataclass(frozen=True)
class Selection:
    """What is chosen in an explorer, the same in all its views.

    Attributes:
        text, position: The number of the text, and a column of its profile: the token after which a prediction is made.
        component: A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
        measure: What components are drawn by: "logit" (what is added to the target), "cross_entropy", "bias",
            "diversity" or "net".
        target, minus: Token ids: A, None for the right token (where the text ends, the likeliest one); and B, if
            components are drawn by what they add to A − B.
        part: Squared terms with ("raw") or without ("centered") the shift that softmax cannot see.
        color: What the text is colored by: "loss", the chosen "component", or, of two models, the "change" of the loss.
        side: Of two models the one that views of one show, "a" or "b".
        pins: The two pins, A and B: (text, position), or None where there is none.
    """

    text: int = 0
    position: int = 0
    component: str = "embed"
    measure: Measure = "logit"
    target: int | None = None
    minus: int | None = None
    part: Half = "centered"
    color: Color = "loss"
    side: Side = "a"
    pins: tuple[Pin, Pin] = (None, None)

    @property
    def layer(self) -> int | None:
        """The layer of the chosen component; None outside the layers."""
        return Component.parse(self.component).layer

    @property
    def repeat(self) -> int | None:
        """Which repeat of its layer, from 1; None for a layer that runs once."""
        return Component.parse(self.component).repeat

    def changed(self, given: Selection | Mapping[str, Any]) -> Selection:
        """Another selection, or this one with some fields exchanged. Raises InputError for other names.

        >>> Selection().changed({"component": "L3.H5"}).layer
        3
        """
        if isinstance(given, Selection):
            return given
        names = [field.name for field in fields(self)]
        if not isinstance(given, Mapping) or not set(given) <= set(names):
            allowed = f"a Selection, or a dict of {', '.join(names)}"
            raise InputError(f"selection={shown(given)} is not a selection: give {allowed}.")
        pins = given.get("pins", self.pins)
        if not isinstance(pins, list | tuple) or len(pins) != 2:
            raise InputError(f"pins={shown(pins)} must be two: each (text, position), or None.")
        for pin in pins:
            if pin is not None and (not isinstance(pin, list | tuple) or len(pin) != 2):
                raise InputError(f"pins holds {shown(pin)}, which must be (text, position), or None.")
        return replace(self, **{**given, "pins": tuple(pin if pin is None else tuple(pin) for pin in pins)})

    def check(self, texts: Sequence[TextNumbers]) -> Selection:
        """Itself, where it exists in these texts; else raises InputError."""
        for text, position in [(self.text, self.position), *(pin for pin in self.pins if pin)]:
            length = texts[whole_number("text", text, 0, len(texts) - 1)].length
            whole_number("position", position, 0, length - 1)
        labels = [c.label for c in texts[0].shown]
        if not isinstance(self.component, str) or self.component not in labels:
            raise InputError(
                f"there is no component {shown(self.component)} here: choose among {', '.join(labels[:8])}, … as in "
                "'L3.attn' or 'L3.H5'."
            )
        for name, kind in (("part", Half), ("measure", Measure), ("color", Color), ("side", Side)):
            choice(name, getattr(self, name), get_args(kind))
        if texts[0].other is None and (self.color == "change" or self.side == "b"):
            raise InputError(
                "color='change' and side='b' are about two models: give the second one to explore as other=."
            )
        for name in ("target", "minus"):
            token = getattr(self, name)
            if token is not None and not (texts[self.text].candidates == whole_number(name, token, 0)).any():
                raise InputError(
                    f"{name}={token} was not measured: it is no next token of this text and never among the likeliest; "
                    "give it to explore, as in target=' Paris' or target=[' Paris', ' Rome']."
                )
        # A browser reads JSON, which has Python's own numbers only.
        a, b = (pin and (int(pin[0]), int(pin[1])) for pin in self.pins)
        whole: dict[str, Any] = {name: int(getattr(self, name)) for name in ("text", "position")}
        whole |= {n: None if (t := getattr(self, n)) is None else int(t) for n in ("target", "minus")}
        return replace(self, **whole, pins=(a, b))

    def record(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self) | {"pins": [list(pin) if pin else None for pin in self.pins]}


def targets_of(text: TextNumbers) -> dict[str, Any]:
    """The tokens that were asked for, as a selection has them."""
    return dict(zip(("target", "minus"), (*text.targets, None, None), strict=False))


def first_selection(text: TextNumbers) -> Selection:
    """Where to begin: at the last token, on the head, or else sublayer, that adds most to the target there.

    A head that reads mostly the first token (an attention sink) says little by where it looks, and comes last.
    """
    if text.other is not None:
        return _most_changed(text, text.other)
    position, targets = text.length - 1, targets_of(text)
    rows = [int(np.flatnonzero(text.candidates[1:, position] == i)[0]) + 1 for i in text.targets] or [1]
    table = text.target_logits[:, :, position]
    logits = table[rows[0]] - (table[rows[1]] if len(rows) > 1 else 0)
    wanted = heads = np.array([c.kind == "head" for c in text.shown])
    if text.attention is not None and position:
        looks = np.zeros(len(heads), dtype=bool)
        looks[heads] = text.attention.patterns[:, position, 0] < 0.5
        wanted = heads & looks & (logits > 0)
    wanted = wanted if wanted.any() else heads if heads.any() else ~heads
    best = int(np.where(wanted, logits, -np.inf).argmax())
    return Selection(position=position, component=text.shown[best].label, **targets)


def _most_changed(text: TextNumbers, other: TextNumbers) -> Selection:
    """Where to begin with two models: at the targets, or where the loss changed most; on what changed most there."""
    change = np.abs(np.nan_to_num(other.sublayers.losses - text.sublayers.losses))
    position = text.length - 1 if text.targets or not change.any() else int(change.argmax())
    targets = targets_of(text)
    rows = [int(np.flatnonzero(text.candidates[1:, position] == i)[0]) + 1 for i in text.targets]
    rows = rows or [0 if text.candidates[0, position] >= 0 else 1]
    logits: dict[tuple[str, bool], float] = {}
    for side in (text, other):
        table = side.target_logits[:, :, position]
        found = table[rows[0]] - (table[rows[1]] if len(rows) > 1 else 0)
        logits |= {(c.label, side is other): float(x) for c, x in zip(side.shown, found, strict=True)}
    labels = [c.label for c in text.sublayers.components]
    best = max(labels, key=lambda label: abs(logits.get((label, True), 0.0) - logits[label, False]))
    return Selection(position=position, component=best, color="change", **targets)
