"""Files are there whole or not at all, and workers end with the command that started them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl import _files

WRITER = """
import sys, time
from pathlib import Path
from layerdiv_tl import _files
_files.socket.gethostname = lambda: "a-host"
_files.os.getpid = lambda: 1
folder, word = Path(sys.argv[1]), sys.argv[2]
for number in range(300):
    with _files.written(folder / "shared.txt") as partial:
        partial.write_text(word * 5000)
"""


@pytest.mark.full
def test_two_processes_of_one_id_write_one_file(tmp_path):
    """Containers may share host names and process ids: neither takes the other's partial file for its own."""
    both = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, word]) for word in "ab"]
    seen = set()
    while any(process.poll() is None for process in both):
        if (tmp_path / "shared.txt").exists():
            text = (tmp_path / "shared.txt").read_text()
            assert text in ("a" * 5000, "b" * 5000)
            seen.add(text[0])
    assert [process.returncode for process in both] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["shared.txt"]


@pytest.mark.parametrize("path", [".", "..", "/", "folder"])
def test_a_folder_is_no_file_to_write(path, tmp_path, monkeypatch):
    """Results and pages say so, and leave nothing half written."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    result = ld.decompose(np.ones((1, 2, 2)), [0])
    with pytest.raises(ld.InputError, match="directory"):
        result.save(path)
    with pytest.raises(IsADirectoryError):
        _files.write_text(Path(path), "text")
    assert [file.name for file in tmp_path.rglob("*")] == ["folder"]


def test_a_sweep_takes_what_is_old_only(tmp_path):
    """An hour: what is written now stays, what a killed process left goes."""
    old, new = (tmp_path / f".shard.h-1.{name}.partial" for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    _files.sweep(tmp_path)
    assert not old.exists()
    assert new.exists()


@pytest.mark.full
def test_a_sweep_does_not_fail_where_files_go_away(tmp_path):
    """Two processes sweep and finish files of one folder at a time, thousands of times, and neither fails."""
    code = """
import sys
from pathlib import Path
from layerdiv_tl import _files
folder = Path(sys.argv[1])
for number in range(1500):
    (folder / f".x{number % 50}.h-1.0.partial").write_bytes(b"")
    _files.sweep(folder, age=-1)
"""
    both = [subprocess.Popen([sys.executable, "-c", code, tmp_path]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]


def test_what_fails_leaves_nothing(tmp_path):
    """A failure removes the partial file and keeps the old one; modes are those of any new file."""
    file = tmp_path / "new" / "numbers.txt"
    _files.write_text(file, "old")

    def fail() -> None:
        with _files.written(file) as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert file.read_text() == "old"
    assert list(file.parent.iterdir()) == [file]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    result = ld.contributions("zoo/d1", [[1, 2]], [7, 9]).save(tmp_path / "result.safetensors")
    assert stat.S_IMODE(result.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_long_names_are_no_hindrance(tmp_path):
    """The partial file's name is no longer than a file system takes, whatever the file is called."""
    file = tmp_path / ("é" * 120 + ".txt")
    _files.write_text(file, "text")
    assert file.read_text() == "text"
