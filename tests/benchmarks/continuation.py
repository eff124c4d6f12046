"""What contributions along a continuation cost: CPU time over that of a plain pass, and over one prompt per token.

`python -m tests.benchmarks.continuation [TOKENS]`, with the default model and by default 64 tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import layerdiv_tl as ld


def seconds(run: Callable[[], Any], times: int = 3) -> float:
    """The least CPU time of a few runs."""
    took = []
    for _ in range(times):
        start = time.process_time()
        run()
        took.append(time.process_time() - start)
    return min(took)


def main() -> None:
    """Print both ratios at two units."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    model = ld.load_model()
    prompt = "The three largest cities of France, with a sentence about each of them:"
    written = ld.contributions(model, prompt, generate=count)
    ids = written.continued[0]
    start = len(ids) - len(written.written)
    with torch.no_grad():
        plain = seconds(lambda: model.hf_model(torch.tensor([ids])))
    prefixes = [list(ids[:end]) for end in range(start, len(ids))]
    pairs = [[int(i) for i in row] for row in written.option_ids]
    for unit in ("sublayer", "head"):

        def along(unit: Any = unit) -> Any:
            return ld.contributions(model, prefixes[:1], continuation=list(ids[start:]), unit=unit)

        def each(unit: Any = unit) -> Any:
            return ld.contributions(model, prefixes, pairs, unit=unit)

        one, all_prefixes = seconds(along), seconds(each, 1)
        print(
            f"{unit}: {len(pairs)} tokens in {one / plain:.1f} plain passes; a prompt each: {all_prefixes / one:.1f} ×"
        )


if __name__ == "__main__":
    main()
