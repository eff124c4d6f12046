"""The explorer as a notebook widget: the exchange between browser and kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, TypeVar

import anywidget
import traitlets

from ...attribution.source_tokens import TextSources
from ...errors import InputError
from ...model.load import Model
from .. import style
from .numbers import TextNumbers, measure_text
from .pack import CSS, SCRIPT, pack_attention, pack_effects, pack_promotions, pack_sources, pack_text

# What the page shows of any error but InputError: its words may hold anything.
FAILED = "The explorer could not answer this request."
T = TypeVar("T")


class ExplorerWidget(anywidget.AnyWidget):
    """An `Explorer` in Jupyter, JupyterLab and VS Code. Returned by `Explorer.widget`.

    Requests are computed in order in one background thread, so that cells can run and the widget stays responsive.
    Cells should not use the model until the text appears. The page can change nothing but `chosen`.
    """

    _esm = SCRIPT
    _css = style.css_variables(".ld-explorer", scales=True) + CSS

    model = traitlets.Unicode().tag(sync=True)
    text = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    progress = traitlets.Unicode().tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)
    _traced: tuple[TextNumbers, TextSources] | None

    @classmethod
    def of(cls, explorer: Any) -> ExplorerWidget:
        """Make a widget of an `Explorer`."""
        text, chosen = _packed(explorer.model, explorer.text, 0), asdict(explorer.selection)
        widget = cls(model=explorer.model.name, text=text, chosen=chosen)
        widget._explorer, widget._traced = explorer, None
        widget._worker = ThreadPoolExecutor(1, thread_name_prefix="layerdiv-explorer")
        widget.observe(widget._select, "chosen")
        return widget

    def __repr__(self) -> str:
        return repr(self._explorer) if hasattr(self, "_explorer") else super().__repr__()

    def put(self, text: TextNumbers) -> None:
        """Send a text that replaces the one shown."""
        self.text = _packed(self._explorer.model, text, self.text["version"] + 1)

    def wait(self) -> None:
        """Wait until all requests are done."""
        self._worker.submit(lambda: None).result()

    def set_state(self, sync_data: Any) -> None:
        """Take in what the page changed: `chosen` alone; every other trait is the kernel's."""
        if isinstance(chosen := sync_data.get("chosen"), dict):
            super().set_state({"chosen": chosen})

    def _handle_msg(self, msg: Any) -> None:
        """Take in a message of the front end, which may hold anything."""
        try:
            data = msg["content"]["data"]
            if data["method"] == "request_state":
                self.send_state()
            elif data["method"] == "update":
                self.set_state(data["state"])
            else:
                self._handle_custom_msg(data["content"], [])
        except Exception as error:
            self._say(error)

    def _handle_custom_msg(self, content: Any, buffers: Any) -> None:
        """Queue a request; `_answer` says what is wrong with it."""
        self._worker.submit(self._answer, content)

    def _say(self, error: Exception) -> None:
        self.progress = str(error) if isinstance(error, InputError) else FAILED

    def _select(self, change: Any) -> None:
        explorer = self._explorer
        if change["new"] == asdict(explorer.selection):
            return
        try:
            explorer.select(replace(explorer.selection, **change["new"]))
        except Exception as error:
            self._say(error)
            self.chosen = asdict(explorer.selection)

    def _answer(self, content: Any) -> None:
        """Answer a request in the background thread; an error becomes a message."""
        try:
            kinds = {"text": self._text, "token": self._token, "page": self._page}
            kinds |= dict.fromkeys(("promoted", "effects", "sources"), self._look_up)
            kinds[content["ask"]](content)
            self.progress = ""
        except Exception as error:
            self._say(error)

    def _text(self, content: Any) -> None:
        """Replace the text."""
        self.progress = "measuring the text …"
        text, generate = _field(content, "text", str), _field(content, "generate", int)
        tokens = [_field(content, name, str) for name in ("target", "minus")]
        targets = [token for token in tokens if token] or None  # empty fields mean no target
        self._explorer.put(measure_text(self._explorer.model, text, targets, generate))

    def _token(self, content: Any) -> None:
        """Select a typed token as `target` or `minus`."""
        name = {"target": "target", "minus": "minus"}[content["field"]]
        self._explorer.selection = {name: _field(content, "token", str)}

    def _page(self, content: Any) -> None:
        """Send the page."""
        self.progress = "writing the page …"
        self.send({"kind": "page"}, [self._explorer.html().encode()])

    def _look_up(self, content: Any) -> None:
        """Send what a component does at a position, unless the text was replaced meanwhile."""
        model, text, version = self._explorer.model, self._explorer.text, _field(content, "version", int)
        if self.text["version"] != version:
            return
        kind, label, position = content["ask"], content["component"], _field(content, "position", int)
        pair = (range(text.length).index(position), text.labels.index(label))
        if kind == "promoted":
            blob = pack_promotions(model, text, [pair])
        elif kind == "effects":
            a, b = content["answers"]
            known = text.candidates[:, position].tolist()
            blob = pack_effects(model, text, position, (known[known.index(a)], known[known.index(b)]), [label])
        else:
            if self._traced is None or self._traced[0] is not text:  # one text only: attention is large
                self._traced = (text, TextSources(model, text.token_ids.tolist(), text.candidates))
            blob = pack_sources(self._traced[1], text, [pair])
        if self.text["version"] == version:
            self.send({"kind": kind, "version": version}, [blob])


def _field(content: Any, name: str, kind: type[T]) -> T:
    """Return a field of a message. Raises KeyError or TypeError for a message that no page of ours sends."""
    if type(content[name]) is not kind:  # True is not 1
        raise TypeError(name)
    return content[name]


def _packed(model: Model, text: TextNumbers, version: int) -> dict[str, Any]:
    """Pack a text. `version` counts replacements, so that replies for a replaced text are dropped."""
    attention = None if text.attention is None else pack_attention(text)
    return {"version": version, "core": pack_text(model, text), "attention": attention}
