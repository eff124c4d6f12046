"""The benchmark that needs a GPU runs on a CPU in its tiny mode, every part of it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
def test_the_large_benchmark_runs_when_it_is_tiny():
    script = Path(__file__).parents[1] / "benchmarks" / "large.py"
    done = subprocess.run([sys.executable, script, "--tiny"], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 tasks × 8 rows by 2 processes on cpu" in done.stdout
    assert "8 cells" in done.stdout
    assert done.stdout.count(": ok\n") == 2
    assert "TOO LARGE" not in done.stdout
