"""What is chosen in an explorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from ..._checks import choice, shown, whole_number
from ...components import Component
from ...errors import InputError

Term = Literal["net", "bias", "diversity"]
Color = Literal["loss", "net", "bias", "diversity"]
Half = Literal["centered", "raw"]
Pin = tuple[int, int] | None


@dataclass(frozen=True)
class Selection:
    """What is chosen in an explorer, the same in all its views.

    text, position
        The number of the text, and a column of its profile: the prediction of the next token there.
    component
        A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
    part
        Contributions with ("raw") or without ("centered") the shift that softmax cannot see.
    term
        What components are drawn by: "net", "bias" or "diversity".
    color
        What the text is colored by: "loss" or a term.
    pins
        The two pins, A and B: (text, position), or None where there is none.
    """

    text: int = 0
    position: int = 0
    component: str = "embed"
    part: Half = "centered"
    term: Term = "net"
    color: Color = "loss"
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

    def check(self, lengths: list[int], labels: list[str]) -> Selection:
        """Itself, where it exists in texts of so many tokens with these components; else raises InputError."""
        for text, position in [(self.text, self.position), *(pin for pin in self.pins if pin)]:
            length = lengths[whole_number("text", text, 0, len(lengths) - 1)]
            whole_number("position", position, 0, length - 1)
        if not isinstance(self.component, str) or self.component not in labels:
            raise InputError(
                f"there is no component {shown(self.component)} here: choose among {', '.join(labels[:8])}, … as in "
                "'L3.attn' or 'L3.H5'."
            )
        for name, kind in (("part", Half), ("term", Term), ("color", Color)):
            choice(name, getattr(self, name), get_args(kind))
        # A browser reads JSON, which has Python's own numbers only.
        a, b = (pin and (int(pin[0]), int(pin[1])) for pin in self.pins)
        return replace(self, text=int(self.text), position=int(self.position), pins=(a, b))

    def record(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self) | {"pins": [list(pin) if pin else None for pin in self.pins]}
