"""The explorer as a notebook widget: the exchange between browser and kernel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import anywidget
import traitlets

from ...attribution.source_tokens import TextSources
from ...errors import InputError
from ...model.load import Model
from .. import style
from .data import CSS, SCRIPT, pack_attention, pack_promotions, pack_text
from .effects import pack_effects
from .measure import STEPS, TextNumbers, measure_text
from .selection import Selection
from .sources import pack_sources, text_sources

_IDLE: dict[str, Any] = {"done": 0, "of": 0, "message": ""}


class Explored(Protocol):
    """The interface that a widget needs of an `Explorer`."""

    model: Model
    texts: tuple[TextNumbers, ...]

    @property
    def selection(self) -> Selection:
        """The current selection."""

    @selection.setter
    def selection(self, change: Any) -> None: ...

    def add(self, text: TextNumbers) -> None:
        """Add a text, or replace one that is not shown, and select its end."""

    def html(self) -> str:
        """The page."""


class _Superseded(Exception):
    """Another text was requested in the meantime."""


class ExplorerWidget(anywidget.AnyWidget):
    """An `Explorer` in Jupyter, JupyterLab and VS Code. Returned by `Explorer.widget`.

    Requests are computed in order in one background thread, so that cells can run and the widget stays responsive. Of
    several new texts only the last is computed. Cells should not use the model until the text appears.
    """

    _esm = SCRIPT
    _css = style.css_variables(".ld-explorer", scales=True) + CSS

    model = traitlets.Unicode().tag(sync=True)
    texts = traitlets.List().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict(_IDLE).tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)
    _traced: list[tuple[TextNumbers, TextSources]]

    @classmethod
    def of(cls, explorer: Explored) -> ExplorerWidget:
        """Make a widget of an explorer."""
        texts = [_packed(explorer, text) for text in explorer.texts]
        widget = cls(model=explorer.model.name, texts=texts, chosen=explorer.selection.record())
        widget._explorer = explorer
        widget._requests = 0
        widget._traced = []
        widget._worker = ThreadPoolExecutor(1, thread_name_prefix="layerdiv-explorer")
        widget.observe(widget._select, "chosen")
        widget.on_msg(widget._receive)
        return widget

    def __repr__(self) -> str:
        return repr(self._explorer) if hasattr(self, "_explorer") else super().__repr__()

    def put(self, number: int, text: TextNumbers) -> None:
        """Add a text, or replace the one with that number."""
        self.texts = [*self.texts[:number], _packed(self._explorer, text), *self.texts[number + 1 :]]

    def wait(self) -> None:
        """Wait until all requests are done."""
        self._worker.submit(lambda: None).result()

    def _select(self, change: Any) -> None:
        if change["new"] == self._explorer.selection.record():
            return
        try:
            self._explorer.selection = change["new"]
        except InputError as error:  # the browser may send anything
            self.progress = _IDLE | {"message": str(error)}
            self.chosen = self._explorer.selection.record()

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        if content.get("ask") == "text":
            self._requests += 1
            # Empty fields mean no target.
            targets = [str(t) for n in ("target", "minus") if (t := content.get(n))]
            generate = content.get("generate") or 0
            self._worker.submit(self._add_text, self._requests, str(content.get("text", "")), targets, generate)
        elif content.get("ask") == "promoted":
            self._worker.submit(self._send_found, "promoted", content, self._promoted)
        elif content.get("ask") == "effects":
            self._worker.submit(self._send_found, "effects", content, self._effects)
        elif content.get("ask") == "sources":
            self._worker.submit(self._send_found, "sources", content, self._sources)
        elif content.get("ask") == "page":
            self._worker.submit(self._send_page)

    def _add_text(self, request: int, text: str, targets: list[str], generate: Any) -> None:
        def on_step(step: str) -> None:
            if request != self._requests:
                raise _Superseded
            self.progress = {"done": STEPS.index(step), "of": len(STEPS), "message": f"measuring {step} …"}

        try:
            on_step(STEPS[0])
            self._explorer.add(measure_text(self._explorer.model, text, targets or None, generate, on_step=on_step))
            self.progress = _IDLE
        except _Superseded:
            pass
        except Exception as error:
            self.progress = _IDLE | {"message": str(error)}

    def _send_page(self) -> None:
        try:
            self.progress = {"done": 0, "of": 1, "message": "looking up what components promote …"}
            page = self._explorer.html().encode()
            self.progress = _IDLE
            self.send({"kind": "page"}, [page])
        except Exception as error:
            self.progress = _IDLE | {"message": str(error)}

    def _send_found(self, kind: str, content: Any, look_up: Callable[[TextNumbers, Any], bytes]) -> None:
        """Send the requested numbers of a text, if it still exists."""
        try:
            number, explorer = content.get("text"), self._explorer
            text = explorer.texts[number]
            blob = look_up(text, content)
            if explorer.texts[number] is text:
                self.send({"kind": kind, "text": number}, [blob])
        except Exception as error:
            self.progress = _IDLE | {"message": str(error)}

    def _promoted(self, text: TextNumbers, content: Any) -> bytes:
        (blob,) = pack_promotions(self._explorer.model, text, [content.get("position")])
        return blob

    def _effects(self, text: TextNumbers, content: Any) -> bytes:
        a, b = content.get("answers")
        return pack_effects(self._explorer.model, text, content.get("position"), (a, b), [content.get("component")])

    def _sources(self, text: TextNumbers, content: Any) -> bytes:
        if not any(known is text for known, _ in self._traced):
            self._traced = [(text, text_sources(self._explorer.model, text))]  # one text only: attention is large
        (component,) = (i for i, c in enumerate(text.shown) if c.label == content.get("component"))
        return pack_sources(self._traced[0][1], text, [(content.get("position"), component)])


def _packed(explorer: Explored, text: TextNumbers) -> dict[str, Any]:
    return {"core": pack_text(explorer.model, text), "attention": pack_attention(text), "promoted": []}
