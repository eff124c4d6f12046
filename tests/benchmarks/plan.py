"""A plan's cost against the run's: time of processors and by the clock, disk, memory. On the default model, on Linux.

python tests/benchmarks/plan.py [--model default] [--task sample/topic sample/sentiment] [--limit 80] [--unit sublayer]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import layerdiv_tl as ld


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--task", nargs="+", default=["sample/topic", "sample/sentiment"])
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--unit", nargs="+", default=["sublayer"])
    given = parser.parse_args()
    model = ld.load_model(given.model)
    grid = {"models": model, "tasks": given.task, "units": tuple(given.unit), "limit": given.limit, "data": given.data}
    start = time.perf_counter()
    plan = ld.plan_study(**grid)
    print(f"{plan.sentence}\nThe plan took {time.perf_counter() - start:.0f} s.")
    cells = plan.frame()[["seconds", "cpu_seconds", "disk_bytes"]].sum()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    with tempfile.TemporaryDirectory() as out:
        wall, cpu = time.perf_counter(), time.process_time()
        study = ld.run_study(**grid, out=out)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert not study.failures, study.failures
        disk = sum(f.stat().st_size for f in Path(out).rglob("*") if f.suffix in (".safetensors", ".parquet"))
    memory = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    for name, planned, took in (
        ("seconds by the clock", cells.seconds, wall),
        ("seconds of processors", cells.cpu_seconds, cpu),
        ("bytes on disk", cells.disk_bytes, disk),
        ("bytes of memory, the most", plan.frame()["memory_bytes"].max(), memory),
    ):
        print(f"{name:30} planned {planned:14,.1f}  measured {took:14,.1f}  planned / measured {planned / took:.2f}")


if __name__ == "__main__":
    main()
