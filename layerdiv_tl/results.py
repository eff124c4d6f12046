"""The base of all results: a frame, a figure, a file. No pickle anywhere.

A result is a frozen dataclass of arrays, numbers, strings, components, tuples and dicts of these, or other results. A
field whose metadata says `saved: False` lives in memory only. A saved result is one npz file: its arrays, and the rest
as JSON. The checksums of the zip format show damage.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from . import _registry
from ._checks import choice, console_text, file_path
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


class Result:
    """Base of all results: `.frame() .plot() .save(path)`."""

    # The kinds of figures; the first is the default.
    figures: ClassVar[Mapping[str, Plot]] = {}
    # The column of `frame()` whose largest values are printed.
    lead: ClassVar[str] = ""
    _classes: ClassVar[dict[str, type[Result]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Result._classes[cls.__name__] = cls

        @functools.wraps(Result.plot)
        def plot(self: Result, *args: Any, **options: Any) -> Figure:
            return Result.plot(self, *args, **options)

        kinds = [f'        "{kind}": {plot.shows}' for kind, plot in cls.figures.items()]
        plot.__doc__ = "\n".join([f"{Result.plot.__doc__}", "    Kinds:", *kinds])
        cls.plot = plot  # type: ignore[method-assign]

    def frame(self) -> pd.DataFrame:
        """The result as one tidy pandas frame; `frame.attrs["units"]` holds the units of its columns."""
        raise NotImplementedError

    def plot(self, kind: str | None = None, *, title: str = "", **options: Any) -> Figure:
        """Draw one kind of figure (plotly), by default the first that these numbers have.

        `title` replaces the figure's own; other options are those of the kind. Raises InputError for a kind that this
        result does not have.
        """
        plots = self._plots()
        kind = next(iter(plots), "") if kind is None else choice("kind", kind, plots)
        figure: Figure = _registry.lookup("figure")(self, plots[kind], options, title=title)
        return figure

    def _plots(self) -> Mapping[str, Plot]:
        """The kinds of figures that these numbers have, the default first."""
        return self.figures

    def __repr__(self) -> str:
        model = str(getattr(self, "model", "") or " → ".join(map(str, getattr(self, "models", ()))))
        if self.lead:  # in a notebook: the largest rows instead of thousands of numbers
            model = f"{model}: {_registry.lookup('leading')(self.frame(), self.lead)}"
        return f"{type(self).__name__}({model})"

    __str__ = console_text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the numbers to one file (npz), or nothing. Raises InputError for a file that cannot be written."""
        path, arrays = file_path("path", path), dict[str, np.ndarray]()
        if path.suffix.lower() in (".html", ".htm"):
            raise InputError(f"{path.name!r} would hold numbers: save a page with plot().write_html({path.name!r}).")
        about = json.dumps({"format": FORMAT, "result": self}, default=functools.partial(_encode, arrays))
        with written(path) as partial, partial.open("wb") as file:
            np.savez(file, about=np.frombuffer(about.encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]
        return path

    def check(self) -> None:
        """Raise InputError if the numbers contradict one another."""


def load(path: str | os.PathLike[str]) -> Any:
    """Read any result that `save` wrote. Raises InputError for a file that is damaged or foreign.

    >>> import tempfile, layerdiv_tl as ld
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = ld.contributions("zoo/d1", [[1, 2]], [7, 9]).save(f"{folder}/c.npz")
    ...     c = ld.load(path)
    >>> c.values.shape
    (1, 3, 2)
    """
    path = file_path("path", path)
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]), object_hook=functools.partial(_decode, file))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}")
        about["result"].check()
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{str(path)!r} is not a saved result, or is damaged ({error}).") from error
    return about["result"]


def _encode(arrays: dict[str, np.ndarray], value: Any) -> Any:
    """Convert what JSON lacks; arrays are collected, each once."""
    match value:
        case np.ndarray():
            name = next((known for known, array in arrays.items() if array is value), f"array{len(arrays)}")
            arrays[name] = value
            return {"$array": name}
        case Component():
            return {"$component": value.label}
        case Result():
            fields = [f.name for f in dataclasses.fields(value) if f.metadata.get("saved", True)]  # type: ignore[arg-type]
            return {"$result": type(value).__name__, "fields": {name: getattr(value, name) for name in fields}}
        case np.generic():
            return value.item()
    raise TypeError(f"a result cannot hold {type(value).__name__}.")


def _decode(arrays: Mapping[str, np.ndarray], value: dict[str, Any]) -> Any:
    """Make what a JSON object stands for."""
    match value:
        case {"$array": name}:
            return arrays[name]
        case {"$component": label}:
            return Component.parse(label)
        case {"$result": kind, "fields": fields}:
            if kind not in Result._classes:
                _registry.lookup("all_results")()  # classes register when their module is imported
            return Result._classes[kind](**fields)
    return {key: _frozen(item) for key, item in value.items()}


def _frozen(value: Any) -> Any:
    """Make tuples of JSON's lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
