"""What telling a model by all its weights costs, as ratios of CPU time in one run.

    python tests/benchmarks/fingerprint.py [--model PATH] [--repeats 5]

Next to it: SHA-256 of the same bytes, and eight short prompts taken apart. A command tells each model once.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable

import torch

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint, identify, tokenizer_fingerprint

PROMPTS = [f"The answer to question {number} is" for number in range(8)]


def sha256(model: ld.Model) -> str:
    digest = hashlib.sha256()
    for parameter in model.architecture.root.parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model = ld.load_model(arguments.model)
    options = [[1, 2]] * len(PROMPTS)
    ways: dict[str, Callable[[], object]] = {
        "fingerprint": lambda: fingerprint(model),
        "tokenizer": lambda: tokenizer_fingerprint(model.tokenizer),
        "fingerprint, tokenizer, hooks": lambda: identify(model),
        "SHA-256 of the same bytes": lambda: sha256(model),
        "eight prompts taken apart": lambda: ld.contributions(model, PROMPTS, options),
    }
    best: dict[str, float] = {}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            start = time.process_time()
            way()
            best[name] = min(best.get(name, float("inf")), time.process_time() - start)
    size = sum(p.numel() * p.element_size() for p in model.architecture.root.parameters()) / 1e6
    print(f"{model.name}, {size:.0f} MB; CPU time, best of {arguments.repeats}")
    for name, seconds in best.items():
        print(f"{name:32} {1000 * seconds:8.1f} ms  {seconds / best['fingerprint']:6.2f}× the fingerprint's")


if __name__ == "__main__":
    main()
