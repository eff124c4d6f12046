"""What comparing two models costs beyond their two passes, in CPU time. `python tests/benchmarks/compare.py`

Every ratio is the median of ratios of neighboring runs: `ld.compare` against `ld.contributions` of one model, then of
the other; of texts, against two of `ld.profile`. The second model is a copy with another final norm and unembedding, so
that both are read in all ways.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import get_args

import torch

import layerdiv_tl as ld
from layerdiv_tl.components import Unit


def seconds(f: Callable[[], object]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def main() -> None:
    a = ld.load_model()
    module = copy.deepcopy(a.hf_model)
    with torch.no_grad():
        module.lm_head.weight = torch.nn.Parameter(1.01 * module.lm_head.weight)
        module.model.norm.weight.mul_(1.01)
    b = ld.load_model(module, tokenizer=a.tokenizer)
    text = " ".join(ld.task("sample/topic", limit=6).resolve(a).prompts)
    for unit in get_args(Unit)[:2]:

        def profiles(unit: Unit = unit) -> None:
            for model in (a, b):
                ld.profile(model, text, unit)

        def on_text(unit: Unit = unit) -> None:
            ld.compare(a, b, text, unit=unit)

        profiles(), on_text()
        ratios = [seconds(on_text) / seconds(profiles) for _ in range(5)]
        print(
            f"a text, {unit}: {statistics.median(ratios):.3f} x two profiles ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    for unit in ("sublayer", "head", "neuron"):
        task = ld.task("sample/topic", limit=8 if unit == "neuron" else 32).resolve(a)

        def two(unit: Unit = unit, task: ld.Task = task) -> None:
            for model in (a, b):
                ld.contributions(model, task.prompts, task.option_ids, unit)

        def compared(unit: Unit = unit, task: ld.Task = task) -> None:
            ld.compare(a, b, task, unit=unit)

        two(), compared()
        ratios = [seconds(compared) / seconds(two) for _ in range(5)]
        print(f"{unit}: {statistics.median(ratios):.3f} x two passes ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
