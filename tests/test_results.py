"""What was saved comes back as it was, or not at all; foreign files end in one sentence."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.results import FORMAT
from tests.conftest import llama
from tests.views.figure_results import MAKERS, made


@pytest.fixture(scope="module")
def found():
    return ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30])


def same(one, other):
    """Equal in every field that is saved."""
    if dataclasses.is_dataclass(one) and not isinstance(one, ld.Component):
        assert type(one) is type(other)
        fields = [f.name for f in dataclasses.fields(one) if f.metadata.get("saved", True)]
        return all(same(getattr(one, name), getattr(other, name)) for name in fields)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("name", MAKERS)
def test_every_result_comes_back(name, tmp_path):
    path = made(name).save(tmp_path / "result.npz")
    assert same(made(name), ld.load(path))
    assert made(name).save(tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_every_damaged_byte_is_noticed(found, tmp_path):
    """A file that is cut anywhere, or in which any byte of what is read differs, is no result."""
    whole, path = found.save(tmp_path / "c.npz").read_bytes(), tmp_path / "damaged.npz"
    places = np.random.default_rng(0).integers(0, len(whole), 60)
    for place in places:
        path.write_bytes(whole[:place])
        with pytest.raises(ld.InputError, match="damaged"):
            ld.load(path)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with contextlib.suppress(ld.InputError):  # or it is a time or a size in the zip format that nobody reads
            assert same(found, ld.load(path))


def crafted(path, about, **arrays):
    """A file as anyone can write it."""
    buffer = io.BytesIO()
    np.savez(buffer, about=np.frombuffer(about.encode(errors="surrogatepass"), dtype=np.uint8), **arrays)
    path.write_bytes(buffer.getvalue())
    return path


CRAFTED = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "null": "null",
    "another format": json.dumps({"format": "layerdiv_tl.result/3", "result": 1}),
    "another class": json.dumps({"format": FORMAT, "result": {"$result": "Nothing", "fields": {}}}),
    "fields of another class": json.dumps({"format": FORMAT, "result": {"$result": "Skip", "fields": {"x": 1}}}),
    "no fields": json.dumps({"format": FORMAT, "result": {"$result": "Skip", "fields": 3}}),
    "a missing array": json.dumps({"format": FORMAT, "result": {"$array": "gone"}}),
    "no label": json.dumps({"format": FORMAT, "result": {"$component": 5}}),
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", CRAFTED)
def test_foreign_files_end_in_a_sentence(name, tmp_path):
    with pytest.raises(ld.InputError, match=r"c\.npz"):
        ld.load(crafted(tmp_path / "c.npz", CRAFTED[name]))


def test_no_pickle_is_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.abort, ()

    buffer = io.BytesIO()
    about = json.dumps({"format": FORMAT, "result": {"$array": "array0"}}).encode()
    np.savez(buffer, about=np.frombuffer(about, np.uint8), array0=np.array([Evil()], dtype=object))
    (tmp_path / "c.npz").write_bytes(buffer.getvalue())
    for path in (tmp_path / "c.npz", tmp_path / "nowhere.npz", tmp_path):
        with pytest.raises(ld.InputError, match="is not a saved result"):
            ld.load(path)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("text", "no result")
    with pytest.raises(ld.InputError, match="is not a saved result"):
        ld.load(tmp_path / "other.zip")


def test_numbers_that_contradict_one_another_are_refused(found, tmp_path):
    """Contributions that do not sum to the model's logits."""
    path = dataclasses.replace(found, model_logits=found.model_logits + 1).save(tmp_path / "c.npz")
    with pytest.raises(ld.InputError, match="logits off"):
        ld.load(path)


def test_a_pipe_is_no_file_of_rows(tmp_path):
    """Nobody writes to it, so reading it would never end."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ld.InputError, match="no such file"):
        ld.task("sst2", tmp_path / "pipe.jsonl")


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["cp1252", "cp932", "ascii"])
def test_what_is_printed_survives_any_console(encoding):
    """`print` of a result, a model, a task and an explorer, whose texts have signs that consoles lack."""
    code = (
        "import layerdiv_tl as ld; c = ld.contributions('zoo/d1', [[1, 2, 3]], [7, 9]);"
        "print(c, c.difference(), ld.decompose(c, [0]), ld.profile('zoo/d1', [1, 2, 3]), ld.explore('zoo/d1', [1, 2]),"
        "ld.load_model('zoo/d1'), ld.task('synthetic/recall', limit=4))"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"Decomposition" in done.stdout


def test_numbers_are_not_saved_as_a_page(found, tmp_path):
    with pytest.raises(ld.InputError, match=r"write_html\('numbers.html'\)"):
        found.save(tmp_path / "numbers.html")
    assert list(tmp_path.iterdir()) == []
