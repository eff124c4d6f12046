"""All single-layer skips of the default model against as many full passes, as a ratio in one run.

`nice -n -19 python tests/benchmarks/depth.py`. A full pass is the Hugging Face model's own on the same
tokens, logits included. The ratio is the median of those of neighboring runs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import layerdiv_tl as ld


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=None)
    given = parser.parse_args()
    model = ld.load_model()
    ids = np.random.default_rng(0).integers(1000, 40_000, (given.rows, given.tokens)).tolist()
    layers = len(model.architecture.blocks)

    def full() -> float:
        """Seconds of as many full passes as there are layers, in the same batches."""
        size = max(1, (given.batch_tokens or model.batch_tokens) // given.tokens)
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(layers):
                for first in range(0, given.rows, size):
                    batch = torch.tensor(ids[first : first + size])
                    model.architecture.root(input_ids=batch, attention_mask=torch.ones_like(batch), use_cache=False)
        return time.perf_counter() - start

    def skips() -> float:
        start = time.perf_counter()
        ld.depth.skip(model, ids, batch_tokens=given.batch_tokens)
        return time.perf_counter() - start

    ratios = []
    for _ in range(given.repeats):
        a, b = skips(), full()
        ratios.append(a / b)
        print(f"skips {a:.1f} s, {layers} full passes {b:.1f} s, ratio {a / b:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} (aim ≤ 0.7)")


if __name__ == "__main__":
    main()
