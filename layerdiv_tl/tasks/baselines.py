"""A baseline for tasks that needs no language model: bag of words."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from .._checks import MOST_REPEATS, instance, whole_number
from ..errors import InputError
from .task import Task


def bag_of_words(task: Task, folds: int = 5, repeats: int = 5, seed: int = 0) -> Float[np.ndarray, " example"]:
    """Score a bag-of-words classifier on each example: the share of cross-validation repeats that answer it correctly.

    Word counts and L2-regularized logistic regression, with stratified cross-validation, repeated with other folds
    because on a hundred rows a single split is mostly luck. Raises InputError where a class has fewer rows than folds,
    and where prompts have options of their own, which are not classes.

    >>> import layerdiv_tl as ld
    >>> bag_of_words(ld.task("sample/sentiment", limit=20)).shape
    (20,)
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    instance("task", task, Task, "make one with layerdiv_tl.task(name)")
    if task.shared_options is None:
        raise InputError(f"the prompts of {task.name} have options of their own, so there is no class to learn.")
    folds, repeats = whole_number("folds", folds, 2, MOST_REPEATS), whole_number("repeats", repeats, 1, MOST_REPEATS)
    seed = whole_number("seed", seed, 0, 2**32 - 1 - MOST_REPEATS)
    smallest = int(np.bincount(task.labels, minlength=task.option_count).min())
    if smallest < folds:
        raise InputError(f"a class of {task.name} has {smallest} rows, too few for {folds} folds: use more rows.")
    classifier = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
    right = [
        cross_val_predict(classifier, list(task.texts), task.labels, cv=split) == task.labels
        for split in (StratifiedKFold(folds, shuffle=True, random_state=seed + r) for r in range(repeats))
    ]
    return np.mean(right, axis=0)
