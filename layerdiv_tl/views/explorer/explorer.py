"""`explore`: linked views of one decomposed text, and their selection."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._checks import console_text, file_path, flag
from ..._checks import text as string
from ..._files import write_text
from ...attribution.continuation import Continuation
from ...errors import InputError
from ...model.load import Model, as_model
from ...model.options import is_task, single_tokens
from ...model.prompts import Prompts
from .. import style
from ..html import page_html, script_json, templates
from . import data
from .measure import TextNumbers, measure_text
from .selection import Selection, first_selection, targets_of

if TYPE_CHECKING:
    from .widget import ExplorerWidget

# Number of positions whose promoted tokens a page stores in one chunk.
TOGETHER = 8


def explore(model: Any, text: Any, target: Any = None, *, generate: int = 0) -> Explorer:
    """Decompose a text and explore it in linked views, in a notebook or as one page.

    It opens at the end of the text, on the head that adds most to the model's answer there.

    Args:
        model: A `Model`, or any input of `load_model`.
        text: A text or a list of token ids, of at most 512 tokens; or the `Continuation` of one prompt.
        target: A token (its text or id), or a pair (A, B), e.g. `(" Mary", " John")`. The views show contributions to
            A, or to A − B and each of both, at every token, and compare the last prediction with A as the next token.
            The right token and the model's five likeliest tokens are always available.
        generate: Number of tokens that the model first generates greedily; fewer if it ends the text. All numbers are
            those of the completed text.

    Raises InputError for a text that cannot be shown and for a target that is not one token.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> e = explore(tiny, [1, 2, 3, 4], target=7)
    >>> e.selection = {"component": "L1.H0", "position": 3}
    >>> e.selection.layer, round(float(e.text.heads.loss[3]), 3) > 0
    (1, True)
    """
    model, written = as_model(model), 0
    if isinstance(text, Continuation):
        text, written = [list(ids) for ids in text.continued], len(text.written)
    if is_task(text):
        raise InputError("a task has many rows: give one of its texts to explore, as in task.prompts[0].")
    return Explorer(model, measure_text(model, text, target, generate, written))


# The endings of a page that a browser opens; a name may have none.
_PAGES = (".html", ".htm", "")


class Explorer:
    """A decomposed text and a selection. Returned by `explore`; shown by the last line of a notebook's cell.

    Attributes:
        model: The model.
        text: All numbers of the text as `TextNumbers`: profiles at both units, attention patterns.
    """

    def __init__(self, model: Model, text: TextNumbers) -> None:
        self.model = model
        self.text = text
        self._selection = first_selection(text)
        self._widget: ExplorerWidget | None = None

    @property
    def selection(self) -> Selection:
        """The selection shared by all views; set it to a `Selection` or a dict of some of its fields.

        Raises InputError for a selection that does not exist.
        """
        return self._selection

    @selection.setter
    def selection(self, given: Selection | Mapping[str, Any]) -> None:
        if isinstance(given, Mapping):  # tokens as they are written
            tokens = {n: t for n in ("target", "minus") if isinstance(t := given.get(n), str)}
            given = {
                **given,
                **{n: int(single_tokens(self.model, [t], Prompts([()]))[0][0, 0]) for n, t in tokens.items()},
            }
        self._selection = self._selection.changed(given).check(self.text)
        if self._widget is not None:
            self._widget.chosen = self._selection.record()

    def show(self, text: Any, target: Any = None, *, generate: int = 0) -> None:
        """Replace the text and select its end; the rest of the selection stays. Raises like `explore`."""
        self.replace(measure_text(self.model, text, target, generate))

    def replace(self, text: TextNumbers) -> None:
        """Replace the text by a measured one and select its end."""
        if self._widget is not None:
            self._widget.put(text)
        self.text = text
        self.selection = {"position": text.length - 1, **targets_of(text)}

    def html(self, promoted: bool = True, effects: bool = True, sources: bool = True, home: str = "") -> str:
        """Return the page as HTML; options are those of `save`."""
        flag("promoted", promoted)
        flag("effects", effects)
        flag("sources", sources)
        string("home", home, empty=True)
        stored: dict[str, str] = {}

        def put(blob: bytes | None) -> str | None:
            """Store bytes in a page element that is read on demand; return its id."""
            if blob is None:
                return None
            name = f"blob-{len(stored)}"
            stored[name] = base64.b64encode(blob).decode()
            return name

        model, text, chosen = self.model, self.text, self.selection
        at = list(range(text.length)) if promoted else []
        looked_up = [put(blob) for blob in data.pack_promotions(model, text, at, TOGETHER)]
        blobs = {"core": put(data.pack_text(model, text)), "attention": put(data.pack_attention(text))}
        if sources and text.heads is not None:
            pairs = data.page_pairs(text, chosen.position)
            blobs["sources"] = put(data.pack_sources(data.text_sources(model, text), text, pairs, exact=False))
        blobs["effects"] = put(self._effects()) if effects else None
        packed = {**blobs, "promoted": looked_up, "together": TOGETHER}
        record = {"model": model.name, "chosen": chosen.record(), "text": packed}
        body = templates().explorer(script_json(record), stored, f"{data.SCRIPT}\nopenPage();", home)
        return page_html(f"Explorer: {model.name}", style.css_variables(scales=True) + data.CSS, (), body, "ld-page")

    def _effects(self) -> bytes | None:
        text, now = self.text, self.selection
        answers = data.answers_at(text, now.position, now.target, now.minus)
        labels = answers and data.strongest(text, now.position, answers, now.component)
        return data.pack_effects(self.model, text, now.position, answers, labels) if answers and labels else None

    def save(
        self,
        path: str | os.PathLike[str],
        promoted: bool = True,
        effects: bool = True,
        sources: bool = True,
        home: str = "",
    ) -> Path:
        """Write one page that needs no network and no kernel; it opens with the current selection.

        `promoted` includes the tokens that components promote, for all components in a short text, otherwise for those
        that add most to the answer at each token; this is most of the work. `effects` includes ablation effects and
        compensation at the selected position and tokens, for the selected component and the 16 heads and 8 sublayers
        that add most there (fewer for more than 33 tokens). `sources` includes head contributions by source token, for
        all heads at the selected position and the top 8 at every other position (6 in a text of 512 tokens). `home` is
        the address of a page that it links back to. Raises InputError for a file that cannot be written.
        """
        path = file_path("path", path)
        if path.suffix.lower() not in _PAGES:
            raise InputError(f"save writes an HTML page: give a name such as {path.stem}.html, not {path.name}.")
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder: give the name of a file, such as explorer.html.")
        page = self.html(promoted, effects, sources, home)
        try:
            return write_text(path, page)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a file of yours.") from error

    @property
    def widget(self) -> ExplorerWidget:
        """Return the Jupyter widget; all its displays share one state."""
        if self._widget is None:
            from .widget import ExplorerWidget

            self._widget = ExplorerWidget.of(self)
        return self._widget

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown = self.widget._repr_mimebundle_(**options)
        data, rest = (shown[0], shown[1:]) if isinstance(shown, tuple) else (shown, None)
        # For viewers without widgets: a restricted editor, GitHub, nbviewer.
        text = f'{self!r}\nNothing to click here? .save("explorer.html") writes it as a page for any browser.'
        data = {**(data or {}), "text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        return data if rest is None else (data, *rest)

    __str__ = console_text

    def __repr__(self) -> str:
        return f"Explorer({self.model.name}: {self.text.length} tokens × {len(self.text.shown)} components)"
