"""What the notebooks of the course need: exercises that know their usual mistakes, and predictions to compare.

Each lesson is a module of its own, in which an exercise is a reference solution with its hints and its mistakes:

>>> from layerdiv_tl.teaching import first_look as lesson
>>> lesson.center.check(lambda values: values - values.mean(0))
✗ that is the mean over the components (axis 0). The options are axis 1.
>>> lesson.center.badge
'4 min · difficulty ●●○○○ · importance ●●●●●'

Notebooks show an exercise, never its solution; `lesson.center.hint(1)` and `lesson.center.solution()` do.
"""

from .exercises import Exercise, Shown, exercise
from .predictions import Prediction, predict

__all__ = ["Exercise", "Prediction", "Shown", "exercise", "predict"]
