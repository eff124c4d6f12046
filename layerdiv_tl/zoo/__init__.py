"""Small models whose answers are known: trained ones that come with the package.

    ld.zoo.models()                what there is: depth, width, sharing, parameters, accuracy at each task
    ld.load_model("zoo/d4")        one of them
    ld.zoo.NAMES, ld.zoo.TASKS     all of them and what they were trained on, as `run_study` takes them

How they were trained stands in `MODEL_CARD.md`; `python -m layerdiv_tl.zoo.train` does it again. Names are
loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "NAMES": "trained",
    "TASKS": "trained",
    "Trained": "trained",
    "models": "trained",
    "place": "trained",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'layerdiv_tl.zoo' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
