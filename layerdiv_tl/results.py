"""The base of all results: a frame, a figure, a file. No pickle anywhere.

A result is a frozen dataclass of arrays, numbers, strings, components, tuples and dicts of these, or other results. A
field whose metadata says `saved: False` lives in memory only. A saved result is one safetensors file: the arrays as
tensors, the rest as JSON in the header.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from . import _registry
from ._checks import console_text, file_path, with_article
from ._files import parse_json, written
from .components import Component
from .errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure as Figure
else:
    Figure = Any  # lists of tasks and models load neither pandas nor plotly

FORMAT = "layerdiv_tl.result/6"
# The limit on the text in a file's header: labels, options, prompts.
MOST_HEADER = 2**25
# Array annotations of dataclasses, e.g. Float[np.ndarray, "example component"], and the dtypes they allow.
_ARRAY = re.compile(r"""(\w+)\[np\.ndarray, ["']([^"']*)["']\]""")
_KINDS = {"Float": "f", "Int": "iu", "Bool": "b", "Num": "fiu", "Shaped": "fiubUO"}
Kind = TypeVar("Kind", bound="Result")
# Endings of files that others write, and how.
ENDINGS = dict.fromkeys((".csv", ".tsv", ".xlsx", ".parquet", ".json"), ".frame() and pandas")
ENDINGS |= dict.fromkeys((".pkl", ".pickle", ".npz", ".npy", ".pt", ".joblib"), "a name that ends in .safetensors")
ENDINGS |= {".html": ".plot().write_html"} | dict.fromkeys((".png", ".svg", ".pdf"), ".plot().write_image")


class NumberProperty(property):
    """A property with a number as value, for results that define many of these."""

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> float: ...  # type: ignore[override]


class Result:
    """Base of all results: `.frame() .plot() .save(path) .load(path)`."""

    # {kind of figure: "module.function" of views.figures}; the first is the default.
    figures: ClassVar[Mapping[str, str]] = {}
    _classes: ClassVar[dict[str, type[Result]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Result._classes[cls.__name__] = cls

    def frame(self) -> pd.DataFrame:
        """The result as one tidy pandas frame; `frame.attrs["units"]` holds the units of its columns."""
        raise NotImplementedError

    def plot(self, kind: Any = None, **options: Any) -> Figure:
        """Draw the result's default figure (plotly), or another kind="…"; `options` go to its figure function.

        Raises InputError for a kind that this result does not have, and lists those it has.
        """
        figure: Figure = _registry.lookup("figure")(self, kind, **options)
        return figure

    def __repr__(self) -> str:
        # In a notebook: fields and shapes instead of thousands of numbers.
        fields: Any = getattr(self, "__dataclass_fields__", ())
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(getattr(self, name))}' for name in fields)})"

    __str__ = console_text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to one safetensors file, or nothing. Raises InputError for the ending of another kind."""
        if (ending := Path(file_path("path", path)).suffix.lower()) in ENDINGS:
            raise InputError(f"save writes a safetensors file, not a {ending} file: use {ENDINGS[ending]}.")
        return save_result(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Raises InputError if the file is of another format, holds another kind of result, or was changed: the checksum,
        the types and shapes of the arrays, and their required sums are checked.
        """
        return load_result(cls, path)

    def check(self) -> None:
        """Raise InputError if the numbers contradict one another."""
        check_arrays(self)


def load(path: str | os.PathLike[str]) -> Any:
    """Read any result that `save` wrote. Raises InputError as `Result.load`.

    >>> import tempfile, layerdiv_tl as ld
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = ld.contributions("zoo/d1", [[1, 2]], [7, 9]).save(f"{folder}/c.safetensors")
    ...     c = ld.load(path)
    >>> c.values.shape
    (1, 3, 2)
    """
    return load_result(Result, path)


def save_result(result: Result, path: str | os.PathLike[str], of: str = "") -> Path:
    """Write a result to one safetensors file; `of` names its owner, which `load_result` may check."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = file_path("path", path)
    arrays: dict[str, np.ndarray] = {}
    packed = _pack(result, arrays, "")
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry, because safetensors writes several in any order, and equal results should have equal bytes.
    text = json.dumps({"of": of, "checksum": _checksum(packed, contiguous), "result": packed})
    if len(text) > MOST_HEADER:
        size = f"{len(text) / 2**20:.0f} MiB of names and texts, above {MOST_HEADER / 2**20:.0f}"
        raise InputError(f"this {type(result).__name__} has {size}: save a part of it.")
    try:
        with written(path) as partial:
            save_file(contiguous, partial, metadata={FORMAT: text})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{str(path)!r} cannot be written ({error}): give the path of a file of yours.") from error
    return path


def load_result(cls: type[Kind], path: str | os.PathLike[str], of: str | None = None) -> Kind:
    """Read what `save_result` wrote; `of` None skips the check of the owner. Raises InputError as `Result.load`."""
    from safetensors import SafetensorError, safe_open

    path = file_path("path", path)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: save {with_article(cls.__name__)} there first.")
    try:
        with path.open("rb") as raw:
            if (
                int.from_bytes(raw.read(8), "little") > 2 * MOST_HEADER
            ):  # before parsing: JSON takes 40 times as much memory
                raise InputError(f"its header is above {2 * MOST_HEADER / 2**20:.0f} MiB")
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if FORMAT not in header:
                raise InputError(f"{str(path)!r} was not written by this version of layerdiv_tl.")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = parse_json(header[FORMAT])
        if about["checksum"] != _checksum(about["result"], arrays):
            raise InputError("its checksum differs: it was changed, or is damaged")
        if of is not None and about["of"] != of:
            raise InputError("it belongs to another model, task or setting than its name says")
        result = _unpack(about["result"], arrays)
        if isinstance(result, cls):
            result.check()
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, InputError) and str(path) in str(error):
            raise
        raise InputError(f"{str(path)!r} is not a saved {cls.__name__}, or not whole ({error}).") from error
    if not isinstance(result, cls):
        raise InputError(f"{str(path)!r} holds {with_article(type(result).__name__)}: load it with that class.")
    return result


def check_arrays(result: Result) -> None:
    """Raise InputError for arrays whose types or shapes contradict their class or one another."""
    sizes: dict[str, int] = {}
    if (components := getattr(result, "components", None)) is not None:
        sizes["component"] = len(components)
    for field in dataclasses.fields(result):  # type: ignore[arg-type]
        value, kinds = getattr(result, field.name), _ARRAY.findall(str(field.type))
        if isinstance(value, Result):
            value.check()
        if not isinstance(value, np.ndarray) or not kinds:
            continue
        for kind, shape in kinds:
            found = _fitted(value.shape, shape.split(), sizes)
            if found is not None and value.dtype.kind in _KINDS[kind]:
                sizes |= found
                break
        else:
            shape = f"{value.dtype}{list(value.shape)}"
            raise InputError(f"{field.name} is {shape}, which does not fit {type(result).__name__}")


def _fitted(shape: tuple[int, ...], names: Sequence[str], known: Mapping[str, int]) -> dict[str, int] | None:
    """Bind the dimension names of an annotation to a shape's sizes; None on any mismatch, also with known sizes."""
    if any(name.startswith(("*", "...")) for name in names):  # any number of dimensions
        return {}
    if len(shape) != len(names):
        return None
    sizes = dict(known)
    for size, name in zip(shape, names, strict=True):
        if name.isidentifier() and not name.startswith("_") and sizes.setdefault(name, size) != size:
            return None
        if name.isdigit() and size != int(name):
            return None
    return sizes


def _checksum(packed: Any, arrays: Mapping[str, np.ndarray]) -> str:
    """Hash everything in a file, as a protection against accidents, not against forgery."""
    digest = hashlib.blake2b(json.dumps(packed).encode(errors="surrogatepass"), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _brief(value: Any) -> str:
    """Summarize a field in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list | dict) and len(value) > 3:
        return f"{len(value)} of them"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return str(value) if isinstance(value, Component) else f"{value!r:.80}"


def _pack(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """Convert a value to JSON; arrays are collected under their dotted name."""
    match value:
        case np.ndarray():
            # An array shared by several fields of a result is written once.
            key = next((known for known, array in arrays.items() if array is value), name)
            arrays[key] = value
            return {"$array": key}
        case Component():
            return {"$component": value.label}
        case Result():
            fields = [f for f in dataclasses.fields(value) if f.metadata.get("saved", True)]  # type: ignore[arg-type]
            inner = {f.name: _pack(getattr(value, f.name), arrays, f"{name}.{f.name}".strip(".")) for f in fields}
            return {"$result": type(value).__name__, "fields": inner}
        case tuple() | list():
            return [_pack(item, arrays, f"{name}.{i}") for i, item in enumerate(value)]
        case dict():
            return {key: _pack(item, arrays, f"{name}.{key}") for key, item in value.items()}
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a result cannot hold {type(value).__name__} (field {name}).")


def _unpack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    match value:
        case {"$array": name}:
            return arrays[name]
        case {"$component": label}:
            return Component.parse(label)
        case {"$result": kind, "fields": fields}:
            if kind not in Result._classes:
                _registry.lookup("all_results")()  # classes register when their module is imported
            if kind not in Result._classes:
                raise InputError(f"the file holds {with_article(kind)}, which this version does not have.")
            inner = {key: _unpack(item, arrays) for key, item in fields.items()}
            try:
                return Result._classes[kind](**inner)
            except TypeError as error:
                kind = with_article(kind)
                raise InputError(f"the file holds {kind} of another version of layerdiv_tl: make it again.") from error
        case list():
            return tuple(_unpack(item, arrays) for item in value)
        case dict():
            return {key: _unpack(item, arrays) for key, item in value.items()}
    return value
