"""The explorer as a notebook widget: the exchange between browser and kernel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anywidget
import traitlets

from ...attribution.source_tokens import TextSources
from ...errors import InputError
from ...model.load import Model
from .. import style
from .data import CSS, SCRIPT, pack_attention, pack_effects, pack_promotions, pack_sources, pack_text, text_sources
from .measure import STEPS, TextNumbers, measure_text

_IDLE: dict[str, Any] = {"done": 0, "of": 0, "message": ""}


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
    text = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict(_IDLE).tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)
    _traced: tuple[TextNumbers, TextSources] | None

    @classmethod
    def of(cls, explorer: Any) -> ExplorerWidget:
        """Make a widget of an `Explorer`."""
        text, chosen = _packed(explorer.model, explorer.text, 0), explorer.selection.record()
        widget = cls(model=explorer.model.name, text=text, chosen=chosen)
        widget._explorer, widget._requests, widget._traced = explorer, 0, None
        widget._worker = ThreadPoolExecutor(1, thread_name_prefix="layerdiv-explorer")
        widget.observe(widget._select, "chosen")
        widget.on_msg(widget._receive)
        return widget

    def __repr__(self) -> str:
        return repr(self._explorer) if hasattr(self, "_explorer") else super().__repr__()

    def put(self, text: TextNumbers) -> None:
        """Send a text that replaces the one shown."""
        self.text = _packed(self._explorer.model, text, self.text["version"] + 1)

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
        kind = content.get("ask")
        if kind == "text":
            self._requests += 1
            self._worker.submit(self._answer, self._replace_text, self._requests, content)
        elif kind == "page":
            self._worker.submit(self._answer, self._send_page)
        elif kind in ("promoted", "effects", "sources"):
            self._worker.submit(self._answer, self._send_found, kind, content, getattr(self, f"_{kind}"))

    def _answer(self, answer: Callable[..., None], *request: Any) -> None:
        """Answer a request in the background thread; an error becomes a message."""
        try:
            answer(*request)
            self.progress = _IDLE
        except _Superseded:
            pass
        except Exception as error:
            self.progress = _IDLE | {"message": str(error)}

    def _replace_text(self, request: int, content: Any) -> None:
        def on_step(step: str) -> None:
            if request != self._requests:
                raise _Superseded
            self.progress = {"done": STEPS.index(step), "of": len(STEPS), "message": f"measuring {step} …"}

        on_step(STEPS[0])
        # Empty fields mean no target.
        targets = [str(t) for n in ("target", "minus") if (t := content.get(n))] or None
        text, generate = str(content.get("text", "")), content.get("generate") or 0
        self._explorer.replace(measure_text(self._explorer.model, text, targets, generate, on_step=on_step))

    def _send_page(self) -> None:
        self.progress = {"done": 0, "of": 1, "message": "looking up what components promote …"}
        self.send({"kind": "page"}, [self._explorer.html().encode()])

    def _send_found(self, kind: str, content: Any, look_up: Callable[[TextNumbers, Any], bytes]) -> None:
        """Send the requested numbers, unless the text was replaced meanwhile."""
        version, text = content.get("version"), self._explorer.text
        if self.text["version"] == version:
            blob = look_up(text, content)
            if self.text["version"] == version:
                self.send({"kind": kind, "version": version}, [blob])

    def _promoted(self, text: TextNumbers, content: Any) -> bytes:
        (blob,) = pack_promotions(self._explorer.model, text, [content.get("position")])
        return blob

    def _effects(self, text: TextNumbers, content: Any) -> bytes:
        a, b = content.get("answers")
        return pack_effects(self._explorer.model, text, content.get("position"), (a, b), [content.get("component")])

    def _sources(self, text: TextNumbers, content: Any) -> bytes:
        if self._traced is None or self._traced[0] is not text:  # one text only: attention is large
            self._traced = (text, text_sources(self._explorer.model, text))
        (component,) = (i for i, c in enumerate(text.shown) if c.label == content.get("component"))
        return pack_sources(self._traced[1], text, [(content.get("position"), component)])


def _packed(model: Model, text: TextNumbers, version: int) -> dict[str, Any]:
    """Pack a text. `version` counts replacements, so that replies for a replaced text are dropped."""
    core, attention = pack_text(model, text), pack_attention(text)
    return {"version": version, "core": core, "attention": attention, "promoted": []}
