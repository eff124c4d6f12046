"""Small models that need no download, as `load_model("zoo/…")`.

    ld.zoo.models()                trained ones: depth, width, sharing, experts, parameters, accuracy at each task
    ld.zoo.seeds(names)            which of them differ in their training seed only: for `study.claims(seeds=…)`
    ld.zoo.NAMES, ld.zoo.TASKS     all of those and what they were trained on, as `run_study` takes them
    ld.zoo.planted("copied")       weights written by hand, whose every measure is known in closed form
    ld.zoo.PLANTED                 their names, and what each shows

`MODEL_CARD.md` says how the trained ones were made; `tests/training` in the repository makes them again.
"""

from typing import Any

from . import registry
from .planted.model import PLANTED, Planted, load_planted, planted
from .registry import NAMES, TASKS, models, seeds

__all__ = [
    "NAMES",
    "PLANTED",
    "TASKS",
    "Planted",
    "models",
    "planted",
    "seeds",
    "source",
]


def source(name: str) -> Any:
    """What `load_model("zoo/name")` loads. Raises InputError for a name that is not in the zoo."""
    if isinstance(name, str) and name.startswith("zoo/planted-"):
        return load_planted(name)
    return registry.load(name)
