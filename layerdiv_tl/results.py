"""The base of all results: a frame, a figure, a file. No pickle anywhere.

A result is a frozen dataclass of arrays, numbers, strings, components, tuples and dicts of these, or other results. A
field whose metadata says `saved: False` lives in memory only. A saved result is one npz file: its arrays, and the rest
as JSON. The checksums of the zip format show damage.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from . import _registry
from ._checks import choice, console_text, file_path, with_article
from ._files import written
from .components import Component
from .errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

FORMAT = "layerdiv_tl.result/7"


@dataclasses.dataclass(frozen=True)
class Plot:
    """A kind of figure, as data beside its result.

    Attributes:
        title: At most eight words.
        shows: One sentence for `help(result.plot)`.
        draw: The function of `layerdiv_tl.views` that draws it, as "module.function".
        frame: The result's frame that is drawn: a method's name, or a function of the result and of options; None where
            `draw` takes the result itself.
        how: What `draw` is given besides.
    """

    title: str
    shows: str
    draw: str
    frame: str | Callable[..., pd.DataFrame] | None = None
    how: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class NumberProperty(property):
    """A property with a number as value, for results that define many of these."""

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> float: ...  # type: ignore[override]


class Result:
    """Base of all results: `.frame() .plot() .save(path) .load(path)`."""

    # The kinds of figures; the first is the default.
    figures: ClassVar[Mapping[str, Plot]] = {}
    # The column of `frame()` whose largest values are printed.
    lead: ClassVar[str] = ""
    _classes: ClassVar[dict[str, type[Result]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Result._classes[cls.__name__] = cls
        if "figures" in vars(cls):
            cls.plot = _plot_of(cls)  # type: ignore[method-assign]

    def frame(self) -> pd.DataFrame:
        """The result as one tidy pandas frame; `frame.attrs["units"]` holds the units of its columns."""
        raise NotImplementedError

    def plot(
        self, kind: str | None = None, *, title: str = "", height: int = 0, dark: bool | None = None, **options: Any
    ) -> Figure:
        """Draw the result's default figure (plotly), or another kind."""
        plots = self._plots()
        kind = next(iter(plots), "") if kind is None else choice("kind", kind, plots)
        figure: Figure = _registry.lookup("figure")(self, plots[kind], options, title=title, height=height, dark=dark)
        return figure

    def _plots(self) -> Mapping[str, Plot]:
        """The kinds of figures that these numbers have, the default first."""
        return self.figures

    def __repr__(self) -> str:
        if self.lead:
            model = str(getattr(self, "model", "") or " → ".join(map(str, getattr(self, "models", ()))))
            return f"{type(self).__name__}({model}: {_registry.lookup('leading')(self.frame(), self.lead)})"
        # In a notebook: fields and shapes instead of thousands of numbers.
        fields: Any = getattr(self, "__dataclass_fields__", ())
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(getattr(self, name))}' for name in fields)})"

    __str__ = console_text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the numbers to one file (npz), or nothing. Raises InputError for a file that cannot be written."""
        path, arrays = file_path("path", path), dict[str, np.ndarray]()
        if path.suffix.lower() in (".html", ".htm"):
            raise InputError(f"{path.name!r} would hold numbers: save a page with plot().write_html({path.name!r}).")
        about = json.dumps({"format": FORMAT, "result": _pack(self, arrays)}, ensure_ascii=True)
        with written(path) as partial, partial.open("wb") as file:
            np.savez(file, about=np.frombuffer(about.encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raises InputError for a file that is damaged, foreign, or of another class."""
        path = file_path("path", path)
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(bytes(file["about"]))
                found = _unpack(about["result"], file) if about["format"] == FORMAT else about["format"]
            if isinstance(found, Result):
                found.check()
        except _UNREADABLE as error:
            name = "result" if cls is Result else cls.__name__
            raise InputError(f"{str(path)!r} is not a saved {name}, or is damaged ({error}).") from error
        if not isinstance(found, cls):
            raise InputError(f"{str(path)!r} holds {with_article(type(found).__name__)} ({found!s:.40}).")
        return found

    def check(self) -> None:
        """Raise InputError if the numbers contradict one another."""


_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, AttributeError, RecursionError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError),
)


def load(path: str | os.PathLike[str]) -> Any:
    """Read any result that `save` wrote. Raises InputError as `Result.load`.

    >>> import tempfile, layerdiv_tl as ld
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = ld.contributions("zoo/d1", [[1, 2]], [7, 9]).save(f"{folder}/c.npz")
    ...     c = ld.load(path)
    >>> c.values.shape
    (1, 3, 2)
    """
    return Result.load(path)


def _plot_of(cls: type[Result]) -> Callable[..., Figure]:
    """Make a class's `plot`, whose help lists its kinds of figures."""

    def plot(
        self: Result,
        kind: str | None = None,
        *,
        title: str = "",
        height: int = 0,
        dark: bool | None = None,
        **options: Any,
    ) -> Figure:
        return Result.plot(self, kind, title=title, height=height, dark=dark, **options)

    kinds = "".join(f'\n    "{kind}": {plot.shows}' for kind, plot in cls.figures.items())
    plot.__doc__ = f"""Draw one kind of figure (plotly), by default a map of heads where there are
    some, else the first that these numbers have.

    Kinds:{kinds.replace(chr(10), chr(10) + "    ")}

    `title` and `height` (pixels) replace the figure's own; `dark` True or False is for a page of that kind, None suits
    both. Other options are those of the kind. Raises InputError for a kind that this result does not have.
    """
    return plot


def _brief(value: Any) -> str:
    """Summarize a field in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list | dict) and len(value) > 3:
        return f"{len(value)} of them"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return str(value) if isinstance(value, Component) else f"{value!r:.80}"


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Convert a value to JSON; arrays are collected, each once."""
    match value:
        case np.ndarray():
            name = next((known for known, array in arrays.items() if array is value), f"array{len(arrays)}")
            arrays[name] = value
            return {"$array": name}
        case Component():
            return {"$component": value.label}
        case Result():
            fields = [f.name for f in dataclasses.fields(value) if f.metadata.get("saved", True)]  # type: ignore[arg-type]
            return {"$result": type(value).__name__, "fields": {f: _pack(getattr(value, f), arrays) for f in fields}}
        case tuple() | list():
            return [_pack(item, arrays) for item in value]
        case dict():
            return {key: _pack(item, arrays) for key, item in value.items()}
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a result cannot hold {type(value).__name__}.")


def _unpack(value: Any, arrays: Any) -> Any:
    match value:
        case {"$array": name}:
            return arrays[name]
        case {"$component": label}:
            return Component.parse(label)
        case {"$result": kind, "fields": fields}:
            if kind not in Result._classes:
                _registry.lookup("all_results")()  # classes register when their module is imported
            return Result._classes[kind](**{name: _unpack(item, arrays) for name, item in fields.items()})
        case list():
            return tuple(_unpack(item, arrays) for item in value)
        case dict():
            return {key: _unpack(item, arrays) for key, item in value.items()}
    return value
