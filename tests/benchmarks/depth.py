"""CPU time of depth analyses of the default model, as ratios to a plain pass over the same rows, in one run.

`python -m tests.benchmarks.depth [NAME …] [--repeats N]`. A plain pass is the Hugging Face model's own on the same
tokens, logits included, on one thread; each ratio is to the mean of the passes before and after it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import layerdiv_tl as ld
from layerdiv_tl.model.batches import batches, inference_mode_for, pad
from layerdiv_tl.model.prompts import encode


def cpu(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def plain(model: Any, texts: Sequence[str]) -> Callable[[], None]:
    ids = encode(model, list(texts))

    def run() -> None:
        with inference_mode_for(model.architecture):
            for rows in batches([len(row) for row in ids], model.batch_tokens):
                tokens, mask = pad([ids[row] for row in rows])
                model.architecture.root(input_ids=tokens, attention_mask=mask, use_cache=False)

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each analysis."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = ld.load_model()
    few, more = (ld.task("sample/topic", limit=limit) for limit in (8, 16))
    texts, asked = few.prompts, [(text, " Paris", 1) for text in few.prompts[:4]]
    attentions = [f"L{layer}.attn" for layer in range(0, 30, 3)]
    analyses: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
        "logit_lens": (lambda: ld.depth.logit_lens(model, texts), texts),
        "logit_lens layers": (lambda: ld.depth.logit_lens(model, texts, junctions="layer"), texts),
        "skip": (lambda: ld.depth.skip(model, texts), texts),
        "erase 3 layers": (lambda: ld.depth.erase(model, texts[:1], layers=[5, 15, 25]), texts[:1]),
        "depth_score": (lambda: ld.depth.depth_score(model, asked), texts[:4]),
        "effects of 10": (lambda: ld.effects(model, few, components=attentions), texts),
        "drop_plan": (lambda: ld.depth.drop_plan(model, more, 1, random=4), more.prompts),
    }
    for name in given.names or analyses:
        call, rows = analyses[name]
        one_pass, ratios = plain(model, rows), []
        one_pass()
        for _ in range(given.repeats):
            before, took, after = cpu(one_pass), cpu(call), cpu(one_pass)
            ratios.append(2 * took / (before + after))
        print(f"{name}: {took:.1f} CPU s, {min(ratios):.1f} to {max(ratios):.1f} plain passes", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
