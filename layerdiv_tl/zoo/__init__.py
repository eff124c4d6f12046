"""Small models that need no download, as `load_model("zoo/…")`.

    ld.zoo.models()                trained ones: depth, width, sharing, parameters, accuracy at each task
    ld.zoo.seeds(names)            which of them differ in their training seed only: for `study.claims(seeds=…)`
    ld.zoo.NAMES, ld.zoo.TASKS     all of those and what they were trained on, as `run_study` takes them
    ld.zoo.planted("copied")       weights written by hand, whose every measure is known in closed form
    ld.zoo.PLANTED                 their names, and what each shows

How the trained ones came about stands in `MODEL_CARD.md`; `python -m layerdiv_tl.zoo.train` does it again. Names
are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "NAMES": "trained",
    "TASKS": "trained",
    "models": "trained",
    "seeds": "trained",
    "PLANTED": "planted_answers",
    "Planted": "planted_answers",
    "planted": "planted_answers",
}

__all__ = [*_HOME, "source"]


def source(name: str) -> Any:
    """What `load_model("zoo/name")` loads. Raises InputError for a name that is not in the zoo."""
    if isinstance(name, str) and name.startswith("zoo/planted-"):
        return importlib.import_module(".planted_answers", __name__).by_zoo_name(name)
    return importlib.import_module(".trained", __name__).load(name)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'layerdiv_tl.zoo' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
