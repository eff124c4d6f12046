"""What a study costs beside a plain Hugging Face classification loop over the same prompts, as ratios in one run.

    python tests/benchmarks/studies.py DATA [--limit 50] [--model PATH] [--task NAME …] [--repeats 2]

DATA is a folder with the tasks' rows, `<name>.jsonl`. The loops only find the model's answers: batches of 8 padded
prompts, as they come or sorted by length, the logits of the last position asked for (`logits_to_keep=1`, the
stronger rival) or of all. The study takes every row apart, writes its shards and all tables of four losses.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.prompts import encode
from layerdiv_tl.studies.study_jobs import prepared
from layerdiv_tl.tasks.specs import EIGHT_TASKS

BATCH = 8


def classify(model: ld.Model, tasks: Sequence[ld.Task], by_length: bool, keep: dict[str, int]) -> list[np.ndarray]:
    """Every row's answer, by passes of the untouched Hugging Face model over left-padded batches."""
    answers = []
    for task in tasks:
        rows = encode(model, list(task.prompts))
        order = np.argsort([len(row) for row in rows], kind="stable") if by_length else np.arange(len(rows))
        found = np.zeros(len(rows), dtype=int)
        for batch in batches(order):
            width = max(len(rows[i]) for i in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for at, i in enumerate(batch):
                ids[at, width - len(rows[i]) :] = torch.as_tensor(rows[i])
                mask[at, width - len(rows[i]) :] = 1
            with torch.inference_mode():
                places = (mask.cumsum(1) - 1).clamp(min=0)
                out = model.architecture.root(
                    input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, **keep
                )
            logits = out.logits[:, -1]
            options = torch.as_tensor(np.asarray(task.option_ids)).expand(len(batch), -1)
            found[batch] = logits.gather(1, options).argmax(1).numpy()
        answers.append(found)
    return answers


def batches(order: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def study(model: ld.Model, tasks: Sequence[ld.Task]) -> list[np.ndarray]:
    """The same answers from a whole study."""
    with tempfile.TemporaryDirectory() as folder:
        made = ld.run_study(model, list(tasks), out=folder)
        assert not made.failures, made.failures
        return [made.contributions(model.name, task.name).model_logits.argmax(1) for task in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--model")
    parser.add_argument("--task", nargs="+", default=list(EIGHT_TASKS))
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    model = ld.load_model(arguments.model)
    tasks = [prepared(ld.task(name, arguments.data, limit=arguments.limit), model) for name in arguments.task]
    count = sum(map(len, tasks))
    one = {"logits_to_keep": 1}
    ways: dict[str, Callable[[], list[np.ndarray]]] = {
        "study": lambda: study(model, tasks),
        "loop, unsorted": lambda: classify(model, tasks, False, {}),
        "loop, unsorted, last logits only": lambda: classify(model, tasks, False, one),
        "loop, sorted": lambda: classify(model, tasks, True, {}),
        "loop, sorted, last logits only": lambda: classify(model, tasks, True, one),
    }
    best: dict[str, float] = {}
    answers: dict[str, list[np.ndarray]] = {}
    for _ in range(arguments.repeats):  # in turn, so that a busy moment of the machine meets all of them
        for name, way in ways.items():
            start = time.perf_counter()
            answers[name] = way()
            best[name] = min(best.get(name, np.inf), time.perf_counter() - start)
    print(f"{model.name}, {count} rows of {', '.join(arguments.task)}; best of {arguments.repeats}")
    for name, seconds in best.items():
        same = np.mean([np.mean(a == b) for a, b in zip(answers[name], answers["study"], strict=True)])
        print(
            f"{name:34} {seconds:7.1f} s  {count / seconds:6.1f} rows/s  {seconds / best['study']:5.2f}× the study's "
            f"time  {same:.1%} the same answers"
        )


if __name__ == "__main__":
    main()
