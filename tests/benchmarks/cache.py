"""From a TransformerLens cache to contributions: CPU time next to TransformerLens' own tools, in one run.

`python -m tests.benchmarks.cache [--prompts N …]`. TransformerLens' `stack_head_results` with `logit_attrs` gives heads
and one remainder; `contributions` gives every head, MLP, the embedding and the means over the vocabulary, with the gap.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import layerdiv_tl as ld

PROMPT = "When Mary and John went to the store, John gave a drink to"
OPTIONS = (" Mary", " John")


def cpu(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median CPU seconds of a call, after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each number of prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 32])
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = ld.load_model()
    bridge = model.bridge
    loaded = ld.load_model(bridge)
    right, wrong = (bridge.to_single_token(option) for option in OPTIONS)
    for count in given.prompts:
        _, cache = bridge.run_with_cache(bridge.to_tokens([PROMPT] * count, prepend_bos=False))

        def theirs(cache: Any = cache) -> Any:
            stack = cache.stack_head_results(layer=-1, pos_slice=-1, incl_remainder=True)
            return cache.logit_attrs(stack, tokens=right, incorrect_tokens=wrong, pos_slice=-1, has_batch_dim=True)

        def ours(cache: Any = cache) -> Any:
            return ld.contributions(cache, options=OPTIONS, unit="head")

        def with_model(cache: Any = cache) -> Any:
            return ld.contributions(loaded, cache=cache, options=OPTIONS, unit="head")

        with torch.inference_mode():
            base = cpu(theirs)
        times = {"cache alone": cpu(ours), "with its model loaded": cpu(with_model)}
        said = ", ".join(f"{name} {1e3 * x:.0f} ms ({x / base:.1f} times)" for name, x in times.items())
        print(f"{count} prompts: TransformerLens {1e3 * base:.1f} ms; contributions {said}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
