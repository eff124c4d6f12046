"""Peak memory of `contributions` above the plain pass of the same batches, by rows: fresh processes, a median of each.

    python tests/benchmarks/memory.py [--rows 500 1000 2000 4000] [--threads 1 2] [--tokens 16] [--repeats 3]

Plain pass: the Hugging Face model with `logits_to_keep=1`, which is where "flat" is measured from. What is returned,
float64 numbers for every row, component and option, is subtracted from nothing: the last column says how large it is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from contributions import OPTIONS, plain, texts

import layerdiv_tl as ld


def peak(kind: str, rows: int, tokens: int, threads: int) -> tuple[float, float]:
    """By how much a fresh process grew over its loaded model at most, and the size of what it returned, in MiB."""
    command = [sys.executable, __file__, "--once", kind, "--rows", str(rows), "--tokens", str(tokens)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    high, size = done.stdout.split()[-2:]
    return float(high), float(size)


def once(kind: str, rows: int, tokens: int) -> None:
    """Run one thing and print by how much the memory of this process grew at most since the model was loaded."""
    model = ld.load_model()
    prompts, size = texts(rows, tokens), 0.0
    # Loading has a peak of its own, which would hide the pass's; getrusage's cannot be begun anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = in_mib("VmRSS")
    if kind == "plain":
        plain(model, prompts, model.batch_tokens)
    else:
        c = ld.contributions(model, prompts, OPTIONS, unit=kind)  # type: ignore[arg-type]
        size = (c.values.nbytes + (0 if c.expectations is None else c.expectations.nbytes)) / 2**20
    print(in_mib("VmHWM") - before, size)


def in_mib(name: str) -> float:
    """A number of this process's status (Linux)."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", choices=["plain", "sublayer", "head", "neuron"])
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--units", nargs="+", default=["sublayer", "head"])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.once:
        return once(given.once, given.rows[0], given.tokens)

    print(f"prompts of {given.tokens} tokens, {len(OPTIONS)} options; MiB, median of {given.repeats} (least to most)")
    print("| threads | rows | plain pass | " + " | ".join(f"{u}, above it | returned" for u in given.units) + " |")
    print("| --- " * (3 + 2 * len(given.units)) + "|", flush=True)
    for threads in given.threads:
        for rows in given.rows:
            runs = range(given.repeats)
            base = [peak("plain", rows, given.tokens, threads)[0] for _ in runs]
            cells = [f"{threads}", f"{rows}", f"{statistics.median(base):.0f}"]
            for unit in given.units:
                high, size = zip(*(peak(unit, rows, given.tokens, threads) for _ in runs), strict=True)
                above = [x - statistics.median(base) for x in high]
                cells += [f"{statistics.median(above):+.0f} ({min(above):+.0f} to {max(above):+.0f})", f"{size[0]:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
