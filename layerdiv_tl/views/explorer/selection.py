"""What is chosen in an explorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from ...components import Component
from ...errors import InputError

Term = Literal["net", "bias", "diversity"]
Colour = Literal["loss", "net", "bias", "diversity"]
Half = Literal["centred", "raw"]
Pin = tuple[int, int] | None


@dataclass(frozen=True)
class Selection:
    """What is chosen in an explorer, the same in all its views.

    text, position
        The number of the text, and a column of its profile: what the model says there about the next token.
    component
        A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
    part
        Contributions with ("raw") or without ("centred") the shift that softmax cannot see.
    term
        What components are drawn by: "net", "bias" or "diversity".
    colour
        What the text is coloured by: "loss" or a term.
    pins
        The two pins, A and B: (text, position), or None where there is none.
    """

    text: int = 0
    position: int = 0
    component: str = "embed"
    part: Half = "centred"
    term: Term = "net"
    colour: Colour = "loss"
    pins: tuple[Pin, Pin] = (None, None)

    @property
    def layer(self) -> int | None:
        """The layer of the chosen component; None outside the layers."""
        return Component.parse(self.component).layer

    @property
    def use(self) -> int | None:
        """Which use of its layer, from 1; None for a layer that is used once."""
        return Component.parse(self.component).use

    def changed(self, given: Selection | Mapping[str, Any]) -> Selection:
        """Another selection, or this one with some fields exchanged. Raises InputError for what is no field.

        >>> Selection().changed({"component": "L3.H5"}).layer
        3
        """
        if isinstance(given, Selection):
            return given
        names = [field.name for field in fields(self)]
        if not isinstance(given, Mapping) or not set(given) <= set(names):
            raise InputError(f"selection={given!r:.80} is none: give a Selection, or a dict of {', '.join(names)}.")
        pins = given.get("pins", self.pins)
        if not isinstance(pins, list | tuple) or len(pins) != 2:
            raise InputError(f"pins={pins!r:.60} must be two: each (text, position), or None.")
        return replace(self, **{**given, "pins": tuple(_pin(pin) for pin in pins)})

    def check(self, lengths: list[int], labels: list[str]) -> Selection:
        """Itself, where it exists in texts of so many tokens with these components; else raises InputError."""
        for text, position in [(self.text, self.position), *(pin for pin in self.pins if pin)]:
            if not _whole(text) or not 0 <= text < len(lengths):
                raise InputError(f"text {text!r} does not exist: there are {len(lengths)}, counted from 0.")
            if not _whole(position) or not 0 <= position < lengths[text]:
                raise InputError(f"position {position!r} does not exist: text {text} has {lengths[text]} tokens.")
        if self.component not in labels:
            raise InputError(
                f"there is no component {self.component!r} here: choose among {', '.join(labels[:8])}, … as in "
                "'L3.attn' or 'L3.H5'."
            )
        for name, kind in (("part", Half), ("term", Term), ("colour", Colour)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"{name}={getattr(self, name)!r} is unknown: use one of {get_args(kind)}.")
        return self

    def record(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self) | {"pins": [list(pin) if pin else None for pin in self.pins]}


def _pin(pin: Any) -> Pin:
    if pin is None:
        return None
    if not isinstance(pin, list | tuple) or len(pin) != 2:
        raise InputError(f"the pin {pin!r:.40} must be (text, position), or None.")
    return (pin[0], pin[1])


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
