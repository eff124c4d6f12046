"""Small models that need no download, as `load_model("zoo/…")`.

    ld.zoo.models()                trained ones: depth, width, sharing, experts, parameters, accuracy at each task
    ld.zoo.NAMES, ld.zoo.TASKS     all trained models and their training tasks, for a grid
    ld.zoo.planted("copied")       handwritten weights whose measures are all known in closed form
    ld.zoo.PLANTED                 names of the planted models, with what each demonstrates

`MODEL_CARD.md` describes the training; `tests/training` in the repository reproduces both kinds.
"""

from .planted import PLANTED, Planted, planted
from .trained import NAMES, TASKS, models, source, training_log

__all__ = ["NAMES", "PLANTED", "TASKS", "Planted", "models", "planted", "source", "training_log"]


def __dir__() -> list[str]:
    return __all__
