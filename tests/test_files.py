"""Files are there whole or not at all, and workers end with the command that started them."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl import _files
from layerdiv_tl.cli import main
from layerdiv_tl.views.html import Page

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


def write(file: Path, text: str) -> None:
    with _files.written(file) as partial:
        partial.write_text(text)


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
    with pytest.raises(ld.InputError, match="directory"):
        _files.check_writable(Path(path))
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
    write(file, "old")

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
    write(file, "text")
    assert file.read_text() == "text"


def special(folder: Path) -> dict[str, Path]:
    """What is no file to write, or one that must stay."""
    found = {name: folder / name for name in ("pipe", "socket", "loop", "read-only", "link to a pipe")}
    os.mkfifo(found["pipe"])
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(found["socket"]))
    found["loop"].symlink_to(found["loop"])
    found["read-only"].touch(mode=0o444)
    found["link to a pipe"].symlink_to(found["pipe"])
    return found | {"device": Path("/dev/null")}


@pytest.mark.parametrize("name", ["pipe", "socket", "loop", "read-only", "link to a pipe", "device"])
def test_only_files_are_replaced(name, tmp_path):
    """A superuser could rename a result onto a device: everyone's null device would be gone."""
    path = special(tmp_path)[name]
    before = os.lstat(path), sorted(tmp_path.iterdir())
    for call in (_files.check_writable, ld.decompose(np.ones((1, 2, 2)), [0]).save, Page("A page").write):
        with pytest.raises(ld.InputError, match="cannot be written"):
            call(path)
    assert (os.lstat(path).st_mode, os.lstat(path).st_ino) == (before[0].st_mode, before[0].st_ino)
    assert sorted(tmp_path.iterdir()) == before[1]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(tmp_path / "there" / f"{name}.txt")
    write(tmp_path / "there" / "old.txt", "old")
    for name in ("old", "new"):
        write(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / f"{name}.txt").read_text() == "text"


def test_a_page_that_cannot_be_written_is_refused_before_the_passes(tmp_path, capsys, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("layerdiv_tl.model.load.load_model", lambda *args, **how: pytest.fail("a model was loaded"))
    for command in (["explore", "text", "--out"], ["demo", "--out"]):
        place = tmp_path / "folder" if command[0] == "explore" else special(tmp_path)["read-only"]
        assert main([*command, str(place)]) == 1
        assert "cannot be written" in capsys.readouterr().err


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path), f"../{tmp_path.name}"):
        with pytest.raises(ld.InputError, match="give a new one"), _files.written_folder(Path(name)):
            pass
    assert list(tmp_path.iterdir()) == []
