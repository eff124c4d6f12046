"""The explorer as a notebook widget: the exchange between browser and kernel."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

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
# The types of a request's fields.
FIELDS: dict[str, type] = {"version": int, "position": int, "answers": list}
FIELDS |= dict.fromkeys(("text", "target", "minus", "field", "token", "component"), str)


class ExplorerWidget(anywidget.AnyWidget):
    """An `Explorer` in Jupyter, JupyterLab and VS Code. Returned by `Explorer.widget`.

    Requests are computed in order in one background thread, so that cells can run and the widget stays responsive.
    Cells should not use the model until the text appears. The page can change nothing but `chosen`.
    """

    _esm = SCRIPT
    _css = style.css_variables(".ld-explorer") + CSS

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
                self._worker.submit(self._answer, data["content"])
        except Exception as error:
            self._say(error)

    def _say(self, error: Exception) -> None:
        self.progress = str(error) if isinstance(error, InputError) else FAILED

    def _select(self, change: Any) -> None:
        """Select what the page selected; what the text does not have is put back."""
        explorer = self._explorer
        try:
            explorer.select(replace(explorer.selection, **change["new"]))
        except Exception as error:
            self._say(error)
            self.chosen = asdict(explorer.selection)

    def _answer(self, content: Any) -> None:
        """Answer a request in the background thread; an error becomes a message."""
        try:
            kinds: dict[str, Any] = {"text": self._text, "token": self._token, "page": self._page}
            kinds |= {kind: partial(self._look_up, kind) for kind in ("promoted", "effects", "sources")}
            asked = dict(content)
            answer = kinds[asked.pop("ask")]
            if any(type(value) is not FIELDS[name] for name, value in asked.items()):  # True is not 1
                raise TypeError("no page of ours sends this")
            answer(**asked)
            self.progress = ""
        except Exception as error:
            self._say(error)

    def _text(self, text: str, target: str, minus: str) -> None:
        """Replace the text."""
        self.progress = "measuring the text …"
        targets = [token for token in (target, minus) if token] or None  # empty fields mean no target
        self._explorer.put(measure_text(self._explorer.model, text, targets))

    def _token(self, field: str, token: str) -> None:
        """Select a typed token as `target` or `minus`."""
        self._explorer.selection = {{"target": "target", "minus": "minus"}[field]: token}

    def _page(self) -> None:
        """Send the page."""
        self.progress = "writing the page …"
        self.send({"kind": "page"}, [self._explorer.html().encode()])

    def _look_up(self, kind: str, version: int, position: int, component: str, answers: Sequence[int] = ()) -> None:
        """Send what a component does at a position, unless the text was replaced meanwhile."""
        model, text = self._explorer.model, self._explorer.text
        if self.text["version"] != version:
            return
        pair = (range(text.length).index(position), text.labels.index(component))
        if kind == "promoted":
            blob = pack_promotions(model, text, [pair])
        elif kind == "effects":
            a, b = answers
            known = text.candidates[:, position].tolist()
            blob = pack_effects(model, text, position, (known[known.index(a)], known[known.index(b)]), [component])
        else:
            if self._traced is None or self._traced[0] is not text:  # one text only: attention is large
                self._traced = (text, TextSources(model, text.token_ids.tolist(), text.candidates))
            blob = pack_sources(self._traced[1], text, [pair])
        if self.text["version"] == version:
            self.send({"kind": kind, "version": version}, [blob])


def _packed(model: Model, text: TextNumbers, version: int) -> dict[str, Any]:
    """Pack a text. `version` counts replacements, so that replies for a replaced text are dropped."""
    attention = None if text.attention is None else pack_attention(text)
    return {"version": version, "core": pack_text(model, text), "attention": attention}
