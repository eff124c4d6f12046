"""Small models that need no download, as `load_model("zoo/…")`.

    ld.zoo.models()                trained ones: depth, width, sharing, parameters, accuracy at each task
    ld.zoo.seeds(names)            which of them differ in their training seed only: for `study.claims(seeds=…)`
    ld.zoo.NAMES, ld.zoo.TASKS     all of those and what they were trained on, as `run_study` takes them
    ld.zoo.planted("copied")       weights written by hand, whose every measure is known in closed form
    ld.zoo.PLANTED                 their names, and what each shows

How the trained ones were made is in `MODEL_CARD.md`; `python -m layerdiv_tl.zoo.training.train` does it again. Names
are loaded when they are first used.
"""

from typing import Any

from . import registry as trained
from .planted import cases as planted_answers
from .planted.cases import PLANTED, Planted, planted
from .registry import NAMES, TASKS, models, seeds

__all__ = ["NAMES", "PLANTED", "TASKS", "Planted", "models", "planted", "seeds", "source"]


def source(name: str) -> Any:
    """What `load_model("zoo/name")` loads. Raises InputError for a name that is not in the zoo."""
    if isinstance(name, str) and name.startswith("zoo/planted-"):
        return planted_answers.by_zoo_name(name)
    return trained.load(name)
