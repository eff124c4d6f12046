"""What lower rooms use of higher ones without naming them: figures and pages of results, models of the zoo.

`layerdiv_tl/__init__.py`, which names every room anyway, fills `PLACES`; an object is imported when first looked up.
`views` fills `FIGURES` with one `figure_of` for every kind of figure.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# {name: "module:object"}
PLACES: dict[str, str] = {}
# {name of a result class: {kind: function(result, **options) -> figure}}; the first kind is the default.
FIGURES: dict[str, dict[str, Callable[..., Any]]] = {}


def lookup(name: str) -> Any:
    """The object that `PLACES` names, imported now if it was not before."""
    return pkgutil.resolve_name(PLACES[name])


def figure_of(kind: str, *results: str, default: bool = False) -> Callable[[F], F]:
    """Register a function as the figure `kind` of some result classes, given by name so that no class is imported.

    The default of a class, which `plot()` draws, is the first kind, or the one that is registered as such.
    """

    def register(function: F) -> F:
        for result in results:
            others = FIGURES.get(result, {})
            FIGURES[result] = {kind: function, **others} if default else {**others, kind: function}
        return function

    return register
