"""What a large random Llama costs to take apart, and what two precisions make of it.

`python tests/benchmarks/large.py` has the shape of an 8B model in bfloat16 and needs a GPU of 40 GB; `--tiny` runs
every part on a CPU, with a small model, to show that it does. Printed: tokens per second of `contributions` over the
plain pass (aim: 0.95), peak memory above it (aim on a GPU: 3 %), the time of the whole-vocabulary profile over that of
the pass, CPU against GPU in float32 and bfloat16, and a grid of 8 tasks × 2 000 synthetic rows by one process and by
two on one device (`--tiny`: 8 rows, by two).
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import in_mib
from speed import measure, plain, texts
from transformers import LlamaConfig, LlamaForCausalLM

import layerdiv_tl as ld
from layerdiv_tl.model.load import Model

TASKS = [f"synthetic/k_hop:hops={hops},entities=6,seed={seed}" for hops in (1, 2, 3, 4) for seed in (1, 2)]


def llama(device: str, tiny: bool, dtype: str, seed: int = 0) -> Model:
    """A random Llama with the shape of an 8B model, or with a vocabulary of that size alone."""
    sizes: dict[str, Any] = dict(hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32)
    heads: dict[str, Any] = dict(num_attention_heads=32, num_key_value_heads=8)
    if tiny:
        sizes, heads = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2), dict(num_attention_heads=4)
    config = LlamaConfig(vocab_size=128_256, max_position_embeddings=8192, dtype=dtype, **sizes, **heads)
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    return ld.load_model(model)


def speed(model: Model, prompts: list[list[int]], repeats: int) -> None:
    """Time and peak memory of contributions, and of a profile, against the plain pass."""
    on_gpu = model.path.device.type == "cuda"

    def clock() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def peak(call: Callable[[], object]) -> float:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")
        call()
        return torch.cuda.max_memory_allocated() / 2**20 if on_gpu else in_mib("VmHWM")

    tokens, some = sum(map(len, prompts)), prompts[: max(1, len(prompts) // 8)]
    ways = {"plain": lambda: plain(model, prompts, model.batch_tokens, logits_to_keep=1)}
    for unit in ("sublayer", "head"):
        ways[unit] = lambda unit=unit: ld.contributions(model, prompts, [3000, 5000], unit=unit)
    for name, (seconds, ratio) in measure(ways, repeats, clock).items():
        own = f"{tokens / seconds:,.0f} tokens/s, {1 / ratio:.3f} of the plain pass"
        print(f"{name:8}: {own} ({seconds:.2f} s), peak {peak(ways[name]):.0f} MiB")
    ways = {"plain": lambda: plain(model, some, model.batch_tokens, logits_to_keep=1)}
    ratio = measure(ways | {"profile": lambda: ld.profile(model, some)}, repeats, clock)["profile"][1]
    print(f"profile of 128 256 tokens / plain pass: {ratio:.2f}")


def agreement(device: str) -> None:
    """Contributions on a device against the CPU's, the same weights."""
    prompts = texts(8, 32)
    for dtype, allowed in (("float32", 1e-5), ("bfloat16", 5e-2)):
        model = llama("cpu", True, dtype)
        here = ld.contributions(model, prompts, [3000, 5000], unit="head")
        there = ld.contributions(ld.load_model(model.hf_model.to(device)), prompts, [3000, 5000], unit="head")
        size = np.abs(here.values).sum(1).max()
        gap = np.abs(there.values - here.values).max() / size
        verdict = "ok" if gap <= allowed and there.identity_gap <= allowed else "TOO LARGE"
        print(
            f"{dtype} on {device} against the CPU: {gap:.1e} of Σ|u|, identity gap {there.identity_gap:.1e}: {verdict}"
        )


def grid(model: str, device: str, rows: int, processes: int) -> None:
    """Cells of one model by so many processes on one device."""
    source = {model: {"x": model, "device": device}}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as out, ProcessPoolExecutor(processes, context) as executor:
        start = time.perf_counter()
        cells = list(ld.Grid(out).run(ld.contributions, source, list(TASKS), limit=rows, executor=executor).cells())
    took = time.perf_counter() - start
    print(f"{len(TASKS)} tasks × {rows} rows by {processes} processes on {device}: {took:.0f} s, {len(cells)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, each part once")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--study-rows", type=int, default=2000)
    given = parser.parse_args()
    device = "cpu" if given.tiny else "cuda"
    if given.tiny:
        given.rows, given.tokens, given.repeats, given.study_rows = 8, 16, 1, 8
    elif not torch.cuda.is_available():
        raise SystemExit("there is no GPU: --tiny shows on a CPU that every part runs")
    model = llama(device, given.tiny, "bfloat16")
    print(model)
    speed(model, texts(given.rows, given.tokens), given.repeats)
    del model
    agreement(device)
    for processes in (2,) if given.tiny else (1, 2):
        grid("zoo/d1" if given.tiny else "default", device, given.study_rows, processes)


if __name__ == "__main__":
    main()
