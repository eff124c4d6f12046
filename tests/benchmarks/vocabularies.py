"""What 262k ids cost more than 49k, as ratios in one run: profile, explore, the explorer's page.

    python tests/benchmarks/vocabularies.py [--tokens 64] [--width 256]

A random Gemma 3 of four layers; processor time. 262144 / 49152 = 5.3 is what costs in proportion to the vocabulary.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import layerdiv_tl as ld

SIZES = (49152, 262144)


def gemma(vocabulary: int, width: int) -> ld.Model:
    """Random weights of a size that matters."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": width // 4}
    config = Gemma3TextConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=4, **heads
    )
    model = Gemma3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return ld.load_model(model)


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of processor time, what came of it)."""
    start = time.process_time()
    done = what()
    return time.process_time() - start, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    asked = parser.parse_args()
    ids = np.random.default_rng(0).integers(3, min(SIZES), asked.tokens).tolist()
    spent: dict[int, list[float]] = {}
    for size in SIZES:
        model = gemma(size, asked.width)
        first, _ = timed(lambda model=model: ld.profile(model, ids))
        second, _ = timed(lambda model=model: ld.profile(model, ids))
        looking, explorer = timed(lambda model=model: ld.explore(model, ids))
        with tempfile.TemporaryDirectory() as folder:
            page, _ = timed(lambda explorer=explorer, folder=folder: explorer.save(Path(folder) / "page.html"))
        spent[size] = [first, second, looking, page]
    print(f"{asked.tokens} tokens, width {asked.width}; seconds of processor time, and ratio (5.3: in proportion)")
    names = ("first profile", "second profile", "explore", "its page")
    for name, small, large in zip(names, *(spent[size] for size in SIZES), strict=True):
        print(f"{name:15} {small:7.2f} {large:7.2f}   × {large / small:.1f}")


if __name__ == "__main__":
    main()
