"""What unit="expert" costs beside a plain pass, on a random Mixtral: CPU time, as a ratio in one run.

    python tests/benchmarks/experts.py [--rounds 15] [--length 128] [--batch 8]

The plain pass gives the logits at each prompt's last token, as the contributions do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM

import layerdiv_tl as ld
from layerdiv_tl.model.forward_pass import run


def seconds(do: Callable[[], Any]) -> float:
    """CPU time of one call."""
    started = time.process_time()
    do()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    config = MixtralConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    model = MixtralForCausalLM(config).eval()
    ids = torch.randint(3, 8000, (arguments.batch, arguments.length))
    prompts, mask = ids.tolist(), torch.ones_like(ids)
    loaded = ld.load_model(model)

    def plain() -> None:
        with torch.inference_mode():
            model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)

    def every_position() -> None:
        with torch.inference_mode():
            run(loaded.architecture, ids, mask, "expert")

    ways: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "unit='sublayer'": lambda: ld.contributions(loaded, prompts, [7, 30]),
        "unit='expert'": lambda: ld.contributions(loaded, prompts, [7, 30], unit="expert"),
        "the parts at every position": every_position,
        "router_statistics": lambda: ld.router_statistics(loaded, prompts),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds + 1):
        for name, do in ways.items():
            taken = seconds(do)
            if number:  # the first round warms up
                times[name].append(taken)
    for name, taken in times.items():
        ratios = [a / b for a, b in zip(taken, times["plain"], strict=True)]
        print(f"{name}: {statistics.median(taken):.3f} s of CPU, {statistics.median(ratios):.3f} × the plain pass")


if __name__ == "__main__":
    main()
