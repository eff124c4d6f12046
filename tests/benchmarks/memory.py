"""Peak memory above a loaded model, in MiB: fresh processes, a median of each.

    python tests/benchmarks/memory.py [--rows 500 1000 2000 4000] [--tokens 16] [--repeats 3]
    python tests/benchmarks/memory.py --rows 1 --tokens 8192
    python tests/benchmarks/memory.py --rows 64 --words 256000
    python tests/benchmarks/memory.py --lengths 512 2048 8192 --words 128256

By rows: `contributions` next to the plain pass of the same batches, and the size of what is returned (float64 numbers
for every row, component and option), which is subtracted from nothing. By lengths: profile and logit lens of one text
(aims: within 4 GiB, a peak that grows little, CPU time linear in tokens). Of the default model, or with `--words` of a
random one of four layers with so many words.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from speed import OPTIONS, plain, texts
from transformers import LlamaConfig, LlamaForCausalLM

import layerdiv_tl as ld


def in_mib(name: str) -> float:
    """A number of this process's status (Linux)."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) / 1024


def once(kind: str, rows: int, tokens: int, words: int) -> None:
    """Run one thing; print by how much this process grew at most, the MiB of what came of it, and CPU seconds."""
    if words:
        shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
        model = ld.load_model(
            LlamaForCausalLM(LlamaConfig(vocab_size=words, max_position_embeddings=tokens, **shape)).eval()
        )
    else:
        model = ld.load_model()
    prompts, size = texts(rows, tokens), 0.0
    options = [5, 7] if words else OPTIONS
    # Loading has a peak of its own, which would hide the pass's; getrusage's cannot be begun anew.
    Path("/proc/self/clear_refs").write_text("5")
    before, start = in_mib("VmRSS"), time.process_time()
    if kind == "plain":
        plain(model, prompts, model.batch_tokens, logits_to_keep=1)
    elif kind in ("profile", "logit_lens"):
        ld.profile(model, prompts) if kind == "profile" else ld.depth.logit_lens(model, prompts)
    else:
        c = ld.contributions(model, prompts, options, unit=kind)  # type: ignore[arg-type]
        size = (c.values.nbytes + (0 if c.expectations is None else c.expectations.nbytes)) / 2**20
    print(in_mib("VmHWM") - before, size, time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", nargs=4, metavar=("KIND", "ROWS", "TOKENS", "WORDS"))
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.once:
        torch.manual_seed(0)
        return once(given.once[0], *map(int, given.once[1:]))
    if given.lengths:
        asked = [(kind, 1, length) for kind in ("profile", "logit_lens") for length in given.lengths]
    else:
        asked = [(kind, rows, given.tokens) for rows in given.rows for kind in ("plain", "sublayer", "head")]
    for kind, rows, tokens in asked:
        command = [sys.executable, __file__, "--once", kind, str(rows), str(tokens), str(given.words)]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(given.repeats)]
        peaks, sizes, seconds = zip(*(map(float, run.stdout.split()[-3:]) for run in runs), strict=True)
        peak = f"{statistics.median(peaks):.0f} ({min(peaks):.0f} to {max(peaks):.0f}) MiB, returned {sizes[0]:.1f}"
        print(f"{rows} × {tokens} tokens, {kind}: {peak}, {min(seconds):.1f} CPU s", flush=True)
    return None


if __name__ == "__main__":
    main()
