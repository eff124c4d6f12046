"""`explore`: one text decomposed, in linked views, and what is chosen in them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..._checks import choice, file_path, flag, shown, whole_number
from ..._files import write_text
from ...components import Component
from ...errors import InputError
from ...model.load import Model, load_model
from ...model.options import single_tokens
from ...model.tokenization import plain
from .. import style
from ..html import page_head, script_json
from .data import CSS, SCRIPT, pack_attention, pack_promotions, pack_text
from .effects import answers_at, pack_effects, strongest
from .measure import TextNumbers, measure_text

if TYPE_CHECKING:
    from .widget import ExplorerWidget

Measure = Literal["logit", "cross_entropy", "bias", "diversity", "net"]
Color = Literal["loss", "component"]
Half = Literal["centered", "raw"]
Pin = tuple[int, int] | None
# A browser keeps the numbers of all texts.
MOST_TEXTS = 4
# Positions of which a page looks up promoted tokens together.
TOGETHER = 8


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
        color: What the text is colored by: "loss", or the chosen "component".
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
        for name, kind in (("part", Half), ("measure", Measure), ("color", Color)):
            choice(name, getattr(self, name), get_args(kind))
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


def explore(model: Any, text: Any, target: Any = None, *, generate: int = 0) -> Explorer:
    """Decompose a text and look at it from all sides: in a notebook, or as one page.

    It opens at the end of the text, on the head that adds most to the model's answer there.

    Args:
        model: A `Model`, or anything `load_model` takes.
        text: A text, a list of token ids, or up to four of either, to compare; each of at most 512 tokens.
        target: A token (as written, or its id), or two, A and B: what components add to A, or to A − B, is shown at
            every token, and predictions at the end of the text are compared with A, as if it came next. The right
            token and the model's five likeliest ones are there at every token anyway.
        generate: How many tokens the model first writes on, each its likeliest; fewer where it ends the text. All
            numbers are those of the finished text.

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
    return Explorer(model, [measure_text(model, each, target, generate) for each in texts])


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
        if isinstance(given, Mapping):  # tokens as they are written
            tokens = {n: t for n in ("target", "minus") if isinstance(t := given.get(n), str)}
            given = {**given, **{n: int(single_tokens(self.model, [t], 1)[0][0, 0]) for n, t in tokens.items()}}
        self._selection = self._selection.changed(given).check(self.texts)
        if self._widget is not None:
            self._widget.chosen = self._selection.record()

    def show(self, text: Any, target: Any = None, *, generate: int = 0) -> None:
        """Decompose another text and choose it; what else is chosen and pinned stays. Raises as `explore`."""
        self._add(measure_text(self.model, text, target, generate))

    def _add(self, text: TextNumbers) -> None:
        """Add a text, or let it replace one that is neither shown nor pinned, and choose its end."""
        now = self._selection
        held = {now.text, *(pin[0] for pin in now.pins if pin)}
        full = len(self.texts) == MOST_TEXTS
        number = next(i for i in range(MOST_TEXTS) if i not in held) if full else len(self.texts)
        self.texts = (*self.texts[:number], text, *self.texts[number + 1 :])
        if self._widget is not None:
            self._widget.put(number, text)
        self.selection = {"text": number, "position": text.length - 1, **_targets(text)}

    def html(self, promoted: bool = True, effects: bool = True) -> str:
        """The page, with what `save` says."""
        flag("promoted", promoted)
        flag("effects", effects)
        scripts: list[str] = []

        def put(blob: bytes | None) -> str | None:
            """Bytes as an element of the page that nothing reads until it is wanted; its id."""
            if blob is None:
                return None
            name = f"blob-{len(scripts)}"
            scripts.append(f'<script type="text/plain" id="{name}">{base64.b64encode(blob).decode()}</script>\n')
            return name

        texts = []
        for number, text in enumerate(self.texts):
            at = list(range(text.length)) if promoted else []
            looked_up = [put(blob) for blob in pack_promotions(self.model, text, at, TOGETHER)]
            packed = {"core": put(pack_text(self.model, text)), "attention": put(pack_attention(text))}
            ablated = put(self._effects(text)) if effects and number == self.selection.text else None
            texts.append({**packed, "promoted": looked_up, "together": TOGETHER, "effects": ablated})
        data = {"model": self.model.name, "chosen": self.selection.record(), "texts": texts}
        return (
            f"{page_head(f'Explorer: {self.model.name}', style.css_variables(scales=True) + CSS)}"
            '</head>\n<body class="ld-page"><main id="explorer"></main>\n'
            f'<script type="application/json" id="data">{script_json(data)}</script>\n{"".join(scripts)}'
            f'<script type="module">{SCRIPT}\nopenPage();</script></body></html>\n'
        )

    def _effects(self, text: TextNumbers) -> bytes | None:
        now = self.selection
        answers = answers_at(text, now.position, now.target, now.minus)
        labels = None if answers is None else strongest(text, now.position, answers, now.component)
        return pack_effects(self.model, text, now.position, answers, labels) if answers and labels else None

    def save(self, path: str | os.PathLike[str], promoted: bool = True, effects: bool = True) -> Path:
        """Write all of it as one page that needs no network and no kernel; it opens with what is chosen now.

        What components promote is there for all of them in a short text, else for those that add most to the answer at
        each token; `promoted=False` leaves it out, which is most of the work. What ablating a component costs, and who
        makes up for it, is there at the position and for the tokens that are chosen: of the component that is chosen,
        and of 16 heads and 8 sublayers that add most there (of fewer for more than 33 tokens); `effects=False` leaves
        it out. Raises InputError where nothing can be written.
        """
        path = file_path("path", path)
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder: give the name of a file, such as explorer.html.")
        page = self.html(promoted, effects)
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
        lengths = " + ".join(str(text.length) for text in self.texts)
        return f"Explorer({self.model.name}: {lengths} tokens × {len(self.texts[0].shown)} components)"


def _targets(text: TextNumbers) -> dict[str, Any]:
    return dict(zip(("target", "minus"), (*text.targets, None, None), strict=False))


def first_selection(text: TextNumbers) -> Selection:
    """Where to begin: at the last token, on the head, or else sublayer, that adds most to the target there.

    A head that reads mostly the first token (an attention sink) says little by where it looks, and comes last.
    """
    position, targets = text.length - 1, _targets(text)
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
