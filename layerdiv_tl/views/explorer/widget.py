"""The explorer in a notebook: what its front end hears from the kernel, and what it asks of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ...errors import InputError
from .. import style
from .assets import module, read
from .data import STEPS, find, packed, packed_promotions

if TYPE_CHECKING:
    from .explorer import Explorer

_QUIET: dict[str, Any] = {"done": 0, "of": 0, "says": ""}


class _Superseded(Exception):
    """Another text was asked for meanwhile."""


class ExplorerWidget(anywidget.AnyWidget):
    """An `Explorer` in Jupyter, JupyterLab and VS Code. Made by `Explorer.widget`.

    What the reader asks for is worked out in one thread beside the kernel's own, one thing after another, so that
    cells can run and everything can be clicked meanwhile; of several new texts the last one counts. The model should
    not be used by a cell until the text is there.
    """

    _esm = module()
    _css = style.css_variables(".ld-explorer", scales=True) + read("explorer.css")

    model = traitlets.Unicode().tag(sync=True)
    texts = traitlets.List().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict(_QUIET).tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)

    @classmethod
    def of(cls, explorer: Explorer) -> ExplorerWidget:
        """A widget of an explorer."""
        made = cls(
            model=explorer.model.name,
            texts=[packed(text) for text in explorer.texts],
            chosen=explorer.selection.record(),
        )
        made._explorer = explorer
        made._asked = 0
        made._worker = ThreadPoolExecutor(1, thread_name_prefix="layerdiv-explorer")
        made.observe(made._choose, "chosen")
        made.on_msg(made._hear)
        return made

    def __repr__(self) -> str:
        return repr(self._explorer) if hasattr(self, "_explorer") else super().__repr__()

    def put(self, place: int, blob: bytes) -> None:
        """A text is there, or another in its place."""
        self.texts = [*self.texts[:place], blob, *self.texts[place + 1 :]]

    def wait(self) -> None:
        """Until everything that was asked for is done."""
        self._worker.submit(lambda: None).result()

    def _choose(self, change: Any) -> None:
        explorer = self._explorer
        if change["new"] == explorer.selection.record():
            return
        try:
            explorer.selection = change["new"]
        except InputError as error:  # a browser may say anything
            self.progress = _QUIET | {"says": str(error)}
            self.chosen = explorer.selection.record()

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        if content.get("ask") == "text":
            self._asked += 1
            self._worker.submit(self._take, self._asked, str(content.get("text", "")), str(content.get("target", "")))
        elif content.get("ask") == "promoted":
            self._worker.submit(self._look, content.get("text"), content.get("position"))

    def _take(self, asked: int, text: str, target: str) -> None:
        def say(step: str) -> None:
            if asked != self._asked:
                raise _Superseded
            self.progress = {"done": STEPS.index(step), "of": len(STEPS), "says": f"measuring {step} …"}

        try:
            say(STEPS[0])
            # An empty field asks for no target.
            self._explorer._take(find(self._explorer.model, text, target or None, say))
            self.progress = _QUIET
        except _Superseded:
            pass
        except Exception as error:
            self.progress = _QUIET | {"says": str(error)}

    def _look(self, text: Any, position: Any) -> None:
        try:
            found = self._explorer.texts[text]
            (blob,) = packed_promotions(self._explorer.model, found, [position])
            if self._explorer.texts[text] is found:
                self.send({"kind": "promoted", "text": text}, [blob])
        except Exception as error:
            self.progress = _QUIET | {"says": str(error)}
