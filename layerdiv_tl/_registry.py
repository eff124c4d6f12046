"""What lower rooms use of higher ones without naming them: figures and pages of results, models of the zoo.

`layerdiv_tl/__init__.py`, which names every room anyway, fills `PLACES`; an object is imported when first looked up.
"""

from __future__ import annotations

import pkgutil
from typing import Any

# {name: "module:object"}
PLACES: dict[str, str] = {}


def lookup(name: str) -> Any:
    """The object that `PLACES` names, imported now if it was not before."""
    return pkgutil.resolve_name(PLACES[name])
