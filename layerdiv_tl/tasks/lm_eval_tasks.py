"""Multiple-choice tasks of EleutherAI's `lm-eval`, through its own YAML and templates; its name is a task's prefix.

What a model reads and what is scored are the pairs that lm-eval itself would score, without demonstrations.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from ..errors import InputError
from ..model.hub import unreachable
from .readers import TaskData, cache_only, import_optional, one_line, open_rows

PREFIX = "lm_eval/"
_INSTALL = "pip install 'layerdiv-tl[lm-eval]'"


def lm_eval_rows(name: str, data: Any, limit: int | None) -> tuple[list[dict[str, Any]], str]:
    """Rows `{prompt, options, label}` of a task of lm-eval, and where they came from.

    Without `data`, lm-eval takes the data set from Hugging Face. Raises InputError where lm-eval is not installed, for
    a name it does not have, and for a task that is not multiple choice.
    """
    bare = name.removeprefix(PREFIX)
    with _quiet():
        known = _manager()
        if bare not in known.all_subtasks:
            raise InputError(_unknown(name, bare, known))
        if data is None:
            source, task = "", _from_hub(known, bare, name)
        else:
            given = open_rows(data, (bare, name.replace("/", "_")))
            source, task = given.source, _build(known, bare, name, given)
        _check(task, name)
        rows = list(_rows(task, name, limit))
        return rows, source or f"Hugging Face {task.DATASET_PATH} {task.DATASET_NAME or ''}".strip()


@functools.cache
def _manager() -> Any:
    """lm-eval's index of its tasks: thousands of files, read once."""
    return import_optional("lm_eval.tasks", _INSTALL).TaskManager()


def _unknown(name: str, bare: str, known: Any) -> str:
    if bare in (*known.all_groups, *known.all_tags):
        return f"{name} is a group of lm-eval's tasks: give one of them, as `lm-eval ls subtasks` lists them."
    close = [task for task in known.all_subtasks if bare.lower() in task.lower()][:6]
    hint = f": did you mean {', '.join(PREFIX + task for task in close)}?" if close else "."
    return f"lm-eval has no task {bare!r}{hint}"


def _from_hub(known: Any, bare: str, name: str) -> Any:
    instead = f"give data=, a file with the rows of its data set, or a folder with {bare}.jsonl"
    datasets = import_optional("datasets", "pip install 'layerdiv-tl[datasets]'")
    try:
        with cache_only(datasets) if unreachable() else contextlib.nullcontext():
            return _load(known, bare)
    except Exception as error:  # datasets, huggingface_hub and a task's own code each raise their own
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{name} could not be loaded from Hugging Face ({reason}): go online or {instead}.") from error


def _build(known: Any, bare: str, name: str, given: TaskData) -> Any:
    """The task on a user's rows, which stand for all of its splits."""
    datasets = import_optional("datasets", "pip install 'layerdiv-tl[datasets]'")
    try:
        rows = datasets.Dataset.from_list([dict(row) for row in given.rows])
        own = {"custom_dataset": lambda **kwargs: _EverySplit(rows), "dataset_kwargs": None}
        # A group is how lm-eval changes settings of the tasks it has.
        return _load(known, {"group": f"layerdiv_tl {bare}", "task": [{"task": bare, **own}]})
    except Exception as error:
        raise _unreadable(name, given.source, error) from error


def _unreadable(name: str, what: str, error: Exception) -> InputError:
    reason = f"{type(error).__name__}: {one_line(error)}"
    return InputError(f"{name} cannot read {what} ({reason}): give rows in the columns of its data set.")


class _EverySplit(dict[str, Any]):
    """The same rows whatever a task calls the split that it is measured on."""

    def __init__(self, rows: Any) -> None:
        super().__init__({split: rows for split in ("train", "validation", "test")})
        self.rows = rows

    def __missing__(self, split: str) -> Any:
        return self.rows


def _load(known: Any, spec: Any) -> Any:
    built = known.load([spec])["tasks"]
    return next(iter(built.values()))


def _check(task: Any, name: str) -> None:
    """Refuse what has no options to choose among after one text."""
    kind = task.OUTPUT_TYPE
    if kind != "multiple_choice" or not hasattr(task, "doc_to_choice"):
        raise InputError(f"{name} is no multiple-choice task of lm-eval (it is {kind}): its answers are not options.")
    if getattr(task, "MULTIMODAL", False):
        raise InputError(f"{name} shows pictures or sounds, which a language model's logits do not follow from.")
    if getattr(task, "multiple_input", False):
        raise InputError(
            f"{name} scores one ending after several texts, so its options are no continuations of one prompt: it "
            "cannot be taken apart as a choice."
        )
    if task.config.num_fewshot:
        raise InputError(f"{name} asks for {task.config.num_fewshot} demonstrations, which are not drawn here.")


def _rows(task: Any, name: str, limit: int | None) -> Iterator[dict[str, Any]]:
    for number, doc in enumerate(task.eval_docs):
        if limit is not None and number == limit:
            return
        try:
            context = task.fewshot_context(doc, 0, gen_prefix=task.doc_to_prefix(doc))
            pairs = [request.arguments for request in task.construct_requests(doc=doc, ctx=context)]
            choices, gold = task.doc_to_choice(doc), task.doc_to_target(doc)
        except Exception as error:  # jinja's errors, and those of a task's own code
            raise _unreadable(name, f"row {number + 1}", error) from error
        if isinstance(gold, list):
            raise InputError(f"{name} has several right answers to row {number + 1}, where a label is one of them.")
        # lm-eval counts the blanks at a prompt's end with its options.
        blanks = context[len(context.rstrip()) :]
        # A mutual information is asked for by further pairs after the options'.
        options = [blanks + option for _, option in pairs[: len(choices)]]
        yield {
            "prompt": context[: len(context) - len(blanks)],
            "options": options,
            "label": choices.index(gold) if isinstance(gold, str) and gold in choices else gold,
        }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval tells of every task that it looks at."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
