"""What was saved comes back as it was, or not at all; foreign files end in one sentence."""

import dataclasses
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import layerdiv_tl as ld
from layerdiv_tl._files import parse_json
from layerdiv_tl.results import FORMAT, MOST_HEADER
from tests.conftest import llama


@pytest.fixture(scope="module")
def found():
    return ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30])


def header_of(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])["__metadata__"][FORMAT]


def rewrite(path, arrays=lambda x: x, text=lambda x: x):
    """The same file with other arrays or another header text, as anyone can write it."""
    save_file(arrays(load_file(path)), path, metadata={FORMAT: text(header_of(path))})


def test_an_edited_value_is_noticed(found, tmp_path):
    """One value, one bit, an array renamed, components reversed, another gap: the checksum is another."""
    for number, change in enumerate(
        [
            {"arrays": lambda x: x | {"values": np.where(x["values"] == x["values"].max(), 9, x["values"])}},
            {"arrays": lambda x: x | {"positions": x["positions"] + 1}},
            {"arrays": lambda x: x | {"values": x["values"].astype(np.float32)}},
            {"text": lambda x: x.replace("L0.attn", "L9.attn")},
            {"text": lambda x: json.dumps(reversed_components(json.loads(x)))},
        ]
    ):
        path = found.save(tmp_path / f"{number}.safetensors")
        rewrite(path, **change)
        with pytest.raises(ld.InputError, match="checksum"):
            ld.load(path)


def reversed_components(about):
    about["result"]["fields"]["components"].reverse()
    return about


def test_numbers_that_do_not_fit_one_another_are_refused(found, tmp_path):
    """Also where the checksum is right: shapes and types by the class, and contributions that do not sum."""
    changes = {
        "values": (found.values[:, :-1], "values"),
        "model_logits": (found.model_logits + 1, "logits off"),
        "positions": (found.positions.astype(float), "positions"),
        "components": (found.components[:-1], "values"),
        "log_likelihood": (found.log_likelihood[:1], "log_likelihood"),
    }
    for name, (value, about) in changes.items():
        path = dataclasses.replace(found, **{name: value}).save(tmp_path / f"{name}.safetensors")
        with pytest.raises(ld.InputError, match=about):
            ld.load(path)


def test_another_version_is_refused_by_its_version(found, tmp_path):
    path = found.save(tmp_path / "c.safetensors")
    save_file(load_file(path), path, metadata={"layerdiv_tl.result/3": header_of(path)})
    with pytest.raises(ld.InputError, match="not written by this version"):
        ld.load(path)


DEEP = "[" * 100_000
CRAFTED = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "a number": "5",
    "null": "null",
    "no result": '{"checksum": ""}',
    "keys twice": '{"checksum": "", "checksum": "", "result": 1}',
    "too deep": DEEP,
    "another class": '{"of": "", "checksum": "", "result": {"$result": "Nothing", "fields": {}}}',
    "a class without fields": '{"of": "", "checksum": "", "result": {"$result": "Contributions", "fields": 3}}',
    "a missing array": '{"of": "", "checksum": "", "result": {"$array": "gone"}}',
    "no label": '{"of": "", "checksum": "", "result": {"$component": 5}}',
    "a surrogate": '{"of": "\\ud800", "checksum": "\\ud800", "result": "\\ud800"}',
}


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("is_right", [False, True], ids=["", "with its checksum"])
def test_crafted_headers_end_in_a_sentence_that_names_the_file(found, tmp_path, name, is_right):
    from layerdiv_tl import results

    path = found.save(tmp_path / "c.safetensors")
    text = CRAFTED[name]
    if is_right and '"result": ' in text and "twice" not in name:
        about = json.loads(text)
        about["checksum"] = results._checksum(about["result"], load_file(path))
        text = json.dumps(about)
    rewrite(path, text=lambda x: text)
    with pytest.raises(ld.InputError, match=r"c\.safetensors"):
        ld.load(path)


@pytest.mark.parametrize("size", [0, 7, 2**40, 2**26 + 1, 200])
def test_headers_are_bounded_before_they_are_read(tmp_path, size):
    """A length that no header has, more than the file has, or nothing at all."""
    path = tmp_path / "c.safetensors"
    path.write_bytes(struct.pack("<Q", size)[: 8 if size else 0] + b"{}" * 40)
    with pytest.raises(ld.InputError, match=r"c\.safetensors"):
        ld.load(path)


@pytest.mark.full
def test_a_result_with_more_text_than_a_header_holds_is_not_saved(found, tmp_path):
    long = dataclasses.replace(found, options=("x" * MOST_HEADER, "y"))
    with pytest.raises(ld.InputError, match="MiB"):
        long.save(tmp_path / "c.safetensors")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "way"),
    [("rows.CSV", r"frame\(\)"), ("x.html", "write_html"), ("x.png", "write_image"), ("x.pkl", "safetensors")],
)
def test_a_table_or_a_figure_is_not_saved_under_its_name(found, tmp_path, name, way):
    with pytest.raises(ld.InputError, match=rf"{name[-4:].lower()} file.*{way}"):
        found.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_saved_result_is_no_model(found, tmp_path):
    with pytest.raises(ld.InputError, match="cannot be loaded"):
        ld.load_model(str(found.save(tmp_path / "plan")))


def test_json_says_everything_once():
    """Keys that stand twice, at any depth, and objects without end are no JSON; the rest is as `json` reads it."""
    for text in ('{"a": 1, "a": 1}', '{"b": [{"a": 1, "c": 2, "a": 3}]}', DEEP, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="twice|deep"):
            parse_json(text)
    text = '{"a": [1, 2.5, null, {"b": "\\u00e9"}], "c": {}}'
    assert parse_json(text) == json.loads(text)


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
