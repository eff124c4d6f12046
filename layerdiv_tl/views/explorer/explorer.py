"""`explore`: one text decomposed, in linked views, and what is chosen in them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..._checks import choice, file_path, flag, shown, whole_number
from ..._files import write_text
from ...components import Component
from ...errors import InputError
from ...model.load import Model, load_model
from ...model.tokenization import plain
from .. import style
from ..html import page_head, script_json
from .data import CSS, SCRIPT, TextNumbers, measure_text, pack_promotions, pack_text, promoted_positions

if TYPE_CHECKING:
    from .widget import ExplorerWidget

Term = Literal["net", "bias", "diversity"]
Color = Literal["loss", "net", "bias", "diversity"]
Half = Literal["centered", "raw"]
Pin = tuple[int, int] | None
# A browser keeps the numbers of all texts.
MOST_TEXTS = 4


@dataclass(frozen=True)
class Selection:
    """What is chosen in an explorer, the same in all its views.

    Attributes:
        text, position: The number of the text, and a column of its profile: the prediction of the next token there.
        component: A label: `"embed"`, `"L3.attn"` (layer 3), `"L3.H5"` (its head 5).
        part: Contributions with ("raw") or without ("centered") the shift that softmax cannot see.
        term: What components are drawn by: "net", "bias" or "diversity".
        color: What the text is colored by: "loss" or a term.
        pins: The two pins, A and B: (text, position), or None where there is none.
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


def explore(model: Any, text: Any, target: Any = None) -> Explorer:
    """Decompose a text and look at it from all sides: in a notebook, or as one page.

    Args:
        model: A `Model`, or anything `load_model` takes.
        text: A text, a list of token ids, or up to four of either, to compare; each of at most 512 tokens.
        target: A token (as written, or its id) that predictions at the end of the text are compared with, as if it came
            next.

    Raises InputError for a text that cannot be shown and for a target that is not one token.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> e = explore(tiny, [1, 2, 3, 4], target=7)
    >>> e.selection = {"component": "L1.H0", "position": 3}
    >>> e.selection.layer, round(float(e.texts[0].heads.loss[3]), 3) > 0
    (1, True)
    """
    model, given = load_model(model), plain(text)
    several = isinstance(given, list | tuple) and bool(given) and not isinstance(given[0], int | np.integer)
    texts = list(given) if several else [given]
    if len(texts) > MOST_TEXTS:
        raise InputError(f"{len(texts)} texts are too many to compare: give at most {MOST_TEXTS}.")
    return Explorer(model, [measure_text(model, each, target) for each in texts])


class Explorer:
    """Decomposed texts, and what is chosen of them. Made by `explore`; the last line of a notebook's cell shows it.

    Attributes:
        model: The model.
        texts: All numbers of each text, as `TextNumbers`: the profiles at both units, attention patterns, cosines.
    """

    def __init__(self, model: Model, texts: Sequence[TextNumbers]) -> None:
        self.model = model
        self.texts = tuple(texts)
        self._selection = first_selection(self.texts[0])
        self._widget: ExplorerWidget | None = None

    @property
    def selection(self) -> Selection:
        """What is chosen, the same in all views; set it with a `Selection` or a dict of some of its fields.

        Raises InputError for what does not exist.
        """
        return self._selection

    @selection.setter
    def selection(self, given: Selection | Mapping[str, Any]) -> None:
        lengths = [len(text.sublayers.tokens) for text in self.texts]
        self._selection = self._selection.changed(given).check(lengths, self._labels)
        if self._widget is not None:
            self._widget.chosen = self._selection.record()

    @cached_property
    def _labels(self) -> list[str]:
        return [c.label for c in self.texts[0].shown]

    def show(self, text: Any, target: Any = None) -> None:
        """Decompose another text and choose it; what else is chosen and pinned stays. Raises as `explore`."""
        self._add(measure_text(self.model, text, target))

    def _add(self, text: TextNumbers) -> None:
        """Add a text, or let it replace one that is neither shown nor pinned, and choose it."""
        now = self._selection
        held = {now.text, *(pin[0] for pin in now.pins if pin)}
        full = len(self.texts) == MOST_TEXTS
        number = next(i for i in range(MOST_TEXTS) if i not in held) if full else len(self.texts)
        self.texts = (*self.texts[:number], text, *self.texts[number + 1 :])
        if self._widget is not None:
            self._widget.put(number, pack_text(text))
        # The end of the text is what a target is compared with.
        last = len(text.sublayers.tokens) - 1
        self.selection = {"text": number, "position": last if text.target else min(now.position, last)}

    def html(self, promoted: bool = True) -> str:
        """The page. `promoted`: look up what every component promotes at every position, most of the time it takes."""
        flag("promoted", promoted)
        blobs = []
        for number, text in enumerate(self.texts):
            pins = [pin[1] for pin in self.selection.pins if pin and pin[0] == number]
            chosen = [self.selection.position if number == self.selection.text else 0, *pins]
            at = promoted_positions(self.model, text, chosen) if promoted else []
            packed = (pack_text(text), *pack_promotions(self.model, text, at))
            blobs.append([base64.b64encode(blob).decode() for blob in packed])
        data = {"model": self.model.name, "chosen": self.selection.record(), "texts": blobs}
        return (
            f"{page_head(f'Explorer: {self.model.name}', style.css_variables(scales=True) + CSS)}"
            '</head>\n<body class="ld-page"><main id="explorer"></main>\n'
            f'<script type="application/json" id="data">{script_json(data)}</script>\n'
            f'<script type="module">{SCRIPT}\nopenPage();</script></body></html>\n'
        )

    def save(self, path: str | os.PathLike[str], promoted: bool = True) -> Path:
        """Write all of it as one page that needs no network and no kernel; it opens with what is chosen now.

        `promoted=False` leaves out what components promote, which is most of the work (a minute for 128 tokens of the
        default model on two cores). Raises InputError where nothing can be written.
        """
        path = file_path("path", path)
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder: give the name of a file, such as explorer.html.")
        page = self.html(promoted)
        try:
            return write_text(path, page)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a file of yours.") from error

    @property
    def widget(self) -> ExplorerWidget:
        """The same as a widget of Jupyter; all places where it is shown are one."""
        if self._widget is None:
            from .widget import ExplorerWidget

            self._widget = ExplorerWidget.of(self)
        return self._widget

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        lengths = " + ".join(str(len(text.sublayers.tokens)) for text in self.texts)
        return f"Explorer({self.model.name}: {lengths} tokens × {len(self._labels)} components)"


def first_selection(text: TextNumbers) -> Selection:
    """Where to begin: the last position if there is a target, else the hardest token, and the head, or else
    sublayer, with the largest |net| there. The first position, where heads have but one token to read, comes last.
    """
    losses = text.sublayers.losses
    known = np.isfinite(losses)
    if known[1:].any():
        known[0] = False
    at_end = text.target or not known.any()
    position = len(losses) - 1 if at_end else int(np.where(known, losses, -1).argmax())
    net = np.abs(text.table("net", "centered")[:, position])
    heads = np.array([c.kind == "head" for c in text.shown])
    wanted = np.where(heads | (not heads.any()), np.nan_to_num(net), -1)
    return Selection(position=position, component=text.shown[int(wanted.argmax())].label)
