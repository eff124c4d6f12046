"""Exercises of the course, and predictions to compare with measured values.

Each notebook has a lesson of the same name, without its number, in `lessons/*.toml`:

>>> from layerdiv_tl.teaching import first_look as lesson
>>> lesson.center.check(lambda values: values - values.mean(0))
✗ not yet, though the form is right. lesson.center.hint(1) helps.
>>> lesson.center.badge
'4 min · difficulty ●●○○○ · importance ●●●●●'

Notebooks show exercises without their solutions; `lesson.center.hint(1)` and `lesson.center.solution()` help.
"""

from types import SimpleNamespace

from .exercise import LESSONS, Exercise, Shown, read_lesson
from .predict import Prediction, predict

__all__ = ["Exercise", "Prediction", "Shown", "predict", "read_lesson"]


def __getattr__(name: str) -> SimpleNamespace:
    if name not in __dir__():
        raise AttributeError(f"there is no lesson {name!r}: use one of {', '.join(sorted(__dir__()))}.")
    return read_lesson(LESSONS / f"{name}.toml")


def __dir__() -> list[str]:
    return [*__all__, *(path.stem for path in LESSONS.glob("*.toml"))]
