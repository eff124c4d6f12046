"""Small models that need no download, as `load_model("zoo/…")`.

    ld.zoo.models()                trained ones: depth, width, sharing, experts, parameters, accuracy at each task
    ld.zoo.seeds(names)            shapes and training seeds of these models
    ld.zoo.NAMES, ld.zoo.TASKS     all trained models and their training tasks, as inputs of `Grid.run`
    ld.zoo.planted("copied")       handwritten weights whose measures are all known in closed form
    ld.zoo.PLANTED                 names of the planted models, with what each demonstrates

`MODEL_CARD.md` describes the training; `tests/training` in the repository reproduces it.
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
    """Return the source that `load_model("zoo/name")` loads. Raises InputError for a name that is not in the zoo."""
    if isinstance(name, str) and name.startswith("zoo/planted-"):
        return load_planted(name)
    return registry.load(name)


def __dir__() -> list[str]:
    return __all__
