"""Multiple-choice tasks of EleutherAI's `lm-eval`: prompts and options are the pairs that lm-eval itself scores."""

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
from .rows import Row, Rows, import_optional, read_rows, refusing

PREFIX = "lm_eval/"
_INSTALL = "pip install lm-eval datasets"
_ADVICE = "give rows in the columns of its data set"


@contextlib.contextmanager
def _quiet_in_a_sandbox() -> Iterator[None]:
    """Silence lm-eval, which logs every task that it finds; render its templates in a sandbox.

    There a template cannot read files or reach into objects, and its ranges have an end.
    """
    from jinja2 import BaseLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    utils, logger = import_optional("lm_eval.utils", _INSTALL), logging.getLogger("lm_eval")
    level, environment = logger.level, utils.env
    sandbox = SandboxedEnvironment(loader=BaseLoader(), undefined=StrictUndefined)
    sandbox.filters |= environment.filters
    logger.setLevel(logging.ERROR)
    utils.env = sandbox
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
        utils.env = environment


def lm_eval_rows(name: str, data: Any, limit: int) -> Rows:
    """Return rows of a task `lm_eval/…` with the columns prompt, options and label, and their source."""
    with _quiet_in_a_sandbox():
        bare, known = name.removeprefix(PREFIX), _manager()
        if bare not in known.all_subtasks:
            raise InputError(f"{name} is no single task of lm-eval: give one of its tasks, e.g. lm_eval/arc_easy.")
        task, source = _load(name, bare, known, data)
        _check(task, name)
        rows = [_row(task, doc, name, number) for number, doc in enumerate(islice(task.eval_docs, limit), start=1)]
    return Rows(rows, source)


@functools.cache
def _manager() -> Any:
    """Load lm-eval's index of its tasks: thousands of files, read once."""
    return import_optional("lm_eval.tasks", _INSTALL).TaskManager()


def _load(name: str, bare: str, known: Any, data: Any) -> tuple[Any, str]:
    """Load a task of lm-eval, with rows of the user's if given; return it and the source of its rows."""
    datasets = import_optional("datasets", _INSTALL)
    if data is None:
        instead = f"give data=, a file with the rows of its data set, or a folder with {bare}.jsonl"
        with refusing(f"{name} could not be loaded from Hugging Face", f"go online or {instead}"):
            task = next(iter(known.load([bare])["tasks"].values()))
        return task, f"Hugging Face {task.DATASET_PATH} {task.DATASET_NAME or ''}".strip()
    given = read_rows(data, (bare, name.replace("/", "_")))

    def splits(**settings: Any) -> Any:
        rows = datasets.Dataset.from_list(list(given.rows))
        return defaultdict(lambda: rows, dict.fromkeys(("train", "validation", "test"), rows))

    # A group is lm-eval's way to change the settings of existing tasks.
    settings = {"task": bare, "custom_dataset": splits, "dataset_kwargs": None}
    with refusing(f"{name} cannot read {given.source}", _ADVICE):
        loaded = known.load([{"group": f"layerdiv_tl {bare}", "task": [settings]}])
    return next(iter(loaded["tasks"].values())), given.source


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


def _row(task: Any, doc: Any, name: str, number: int) -> Row:
    with refusing(f"{name} cannot read row {number}", _ADVICE):  # jinja's errors, and those of a task's own code
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
