"""Multiple-choice tasks of EleutherAI's `lm-eval`, from its own YAML and templates; names begin with `lm_eval/`.

Prompts and scored options are the pairs that lm-eval itself would score, without demonstrations.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..errors import InputError
from .rows import Row, Rows, asking_hub, import_optional, one_line, read_rows

PREFIX = "lm_eval/"


def lm_eval_rows(name: str, data: Any, limit: int | None) -> Rows:
    """Return rows of a task `lm_eval/…` with the columns prompt, options and label, and their source.

    Without `data`, lm-eval loads the data set from Hugging Face. Raises InputError where lm-eval is not installed, for
    an unknown name, and for a task that is not one choice among options after one prompt.
    """
    bare = name.removeprefix(PREFIX)
    with _quiet():
        known = _manager()
        if bare not in known.all_subtasks:
            close = [PREFIX + task for task in known.all_subtasks if bare.lower() in task.lower()][:6]
            is_group = bare in (*known.all_groups, *known.all_tags)
            fault = "is a group of lm-eval's tasks" if is_group else "is no task of lm-eval"
            raise InputError(
                f"{name} {fault}: give {'one of its tasks' if is_group else ', '.join(close) or 'another'}."
            )
        if data is None:
            with asking_hub(name, f"give data=, a file with the rows of its data set, or a folder with {bare}.jsonl"):
                task = _load(known, bare)
            source = f"Hugging Face {task.DATASET_PATH} {task.DATASET_NAME or ''}".strip()
        else:
            given = read_rows(data, (bare, name.replace("/", "_")))
            datasets, source = import_optional("datasets", "pip install datasets"), given.source
            with _reading(name, source):
                rows = datasets.Dataset.from_list([dict(row) for row in given.rows])
                splits = defaultdict(lambda: rows, dict.fromkeys(("train", "validation", "test"), rows))
                own = {"task": bare, "custom_dataset": lambda **kwargs: splits, "dataset_kwargs": None}
                # A group is lm-eval's way to change the settings of existing tasks.
                task = _load(known, {"group": f"layerdiv_tl {bare}", "task": [own]})
        _check(task, name)
        docs = enumerate(islice(task.eval_docs, limit), start=1)
        return Rows([Row(_row(task, doc, name, number), f"row {number} of {name}") for number, doc in docs], source)


@functools.cache
def _manager() -> Any:
    """Load lm-eval's index of its tasks: thousands of files, read once."""
    return import_optional("lm_eval.tasks", "pip install lm-eval datasets").TaskManager()


def _load(known: Any, spec: Any) -> Any:
    return next(iter(known.load([spec])["tasks"].values()))


def _check(task: Any, name: str) -> None:
    """Raise InputError for a task that has no options to choose among after one text."""
    fault = ""
    if task.OUTPUT_TYPE != "multiple_choice" or not hasattr(task, "doc_to_choice"):
        fault = f"is no multiple-choice task but {task.OUTPUT_TYPE}, and its answers are no options"
    elif getattr(task, "MULTIMODAL", False):
        fault = "shows pictures or sounds, from which a language model's logits do not follow"
    elif getattr(task, "multiple_input", False):
        fault = "scores one ending after several texts, so that its options do not continue one prompt"
    elif task.config.num_fewshot:
        fault = f"asks for {task.config.num_fewshot} demonstrations, which are not drawn here"
    if fault:
        raise InputError(f"{name} {fault}: give another task of lm-eval.")


def _row(task: Any, doc: Any, name: str, number: int) -> dict[str, Any]:
    with _reading(name, f"row {number}"):
        context = task.fewshot_context(doc, 0, gen_prefix=task.doc_to_prefix(doc))
        pairs = [request.arguments for request in task.construct_requests(doc=doc, ctx=context)]
        choices, gold = task.doc_to_choice(doc), task.doc_to_target(doc)
    if isinstance(gold, list):
        raise InputError(f"{name} has several right answers to row {number}, where a label is one: give another task.")
    # lm-eval counts trailing spaces of a prompt with its options. Extra pairs request a mutual information.
    prompt = context.rstrip()
    label = choices.index(gold) if isinstance(gold, str) and gold in choices else gold
    options = [context[len(prompt) :] + option for _, option in pairs[: len(choices)]]
    return {"prompt": prompt, "options": options, "label": label}


@contextlib.contextmanager
def _reading(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # jinja's errors, and those of a task's own code
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{name} cannot read {what} ({reason}): give rows in the columns of its data set.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval, which logs every task that it finds."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
