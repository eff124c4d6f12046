"""Where rows come from, tasks of one's own, and rows from which a wrong number would follow."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from layerdiv_tl.tasks.rows import read_rows
from layerdiv_tl.tasks.templates import option_index, split_answer

ROWS = [
    {"sentence": "a fine film ", "label": 1},
    {"sentence": 'dull, "very" dull', "label": 0},
    {"sentence": "two\u2028lines\nor three", "label": 1},
    {"sentence": "NA", "label": 0},
]


def write(folder, suffix, rows=ROWS, name="sst2"):
    path = folder / f"{name}{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8-sig")
    elif suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False, encoding="utf-8")
    else:
        pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_format_gives_the_same_prompts(tmp_path, suffix):
    """Line separators inside texts, quotes, NA and a byte order mark survive every format; folder or file alike."""
    path = write(tmp_path, suffix)
    wanted = ld.task("sst2", pd.DataFrame(ROWS))
    for data in (path, str(path), tmp_path):
        t = ld.task("sst2", data=data)
        assert t.prompts == wanted.prompts
        assert t.labels.tolist() == [1, 0, 1, 0]
        assert t.source == str(path)
    assert wanted.prompts[2].startswith("two\u2028lines\nor three\n")
    assert wanted.source == "a pandas frame"


def test_a_data_set():
    datasets = pytest.importorskip("datasets")
    assert ld.task("sst2", datasets.Dataset.from_list(ROWS)).prompts == ld.task("sst2", pd.DataFrame(ROWS)).prompts


def _library(load_dataset):
    """Stands in for `datasets`."""
    return SimpleNamespace(load_dataset=load_dataset)


def test_without_data_the_hub_is_asked_for_the_papers_split(monkeypatch):
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", _library(load_dataset))
    t = ld.task("sst2")
    assert t.prompts == ld.task("sst2", pd.DataFrame(ROWS)).prompts
    assert t.source == "Hugging Face nyu-mll/glue sst2 validation"
    with pytest.raises(
        ld.InputError, match="fields \\[.text.\\], but the rows of .*ag_news test have the columns sentence, label"
    ):
        ld.task("ag_news")
    assert asked == [("nyu-mll/glue", "sst2", "validation"), ("fancyzhx/ag_news", None, "test")]


def test_offline_says_what_to_do(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("no\nroute")

    monkeypatch.setitem(sys.modules, "datasets", _library(load_dataset))
    with pytest.raises(
        ld.InputError, match=r"ConnectionError: no route\): go online or give data=, a folder with rte\{"
    ):
        ld.task("rte")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ld.InputError, match=r"pip install datasets, or give data="):
        ld.task("rte")


@pytest.mark.parametrize(
    ("template", "prompt", "prefix"),
    [
        ("Q: {text} A: {answer}", "Q: x A:", " "),
        ("Q: {text} A:", "Q: x A:", " "),
        ("Q: {text} A: ", "Q: x A:", " "),
        ("Q: {text}\n{answer}", "Q: x\n", ""),
        ("Q: {text}\n", "Q: x\n", ""),
        ("Q: {text}={answer}", "Q: x=", ""),
        ("{text} {answer}", "x", " "),
        ("Q:  {answer}", "Q: ", " "),
        ("{{{text}}} is {answer}", "{x} is", " "),
    ],
)
def test_the_template_decides_the_options_space(template, prompt, prefix):
    """The space in front of the answer is the options'; after a line break or a sign they have none."""
    text, space = split_answer(template)
    assert (text.format(text="x"), space) == (prompt, prefix)


@pytest.mark.full
@settings(deadline=None)
@given(st.text(), st.sampled_from(["{a} {answer}", "{a}  {answer}", "{a}\n{answer}", "x {a}={answer}", "{a}{answer}"]))
def test_prompt_and_option_together_are_the_template_filled_in(a, template):
    """Whatever a text ends in: no blank of it is lost, and none is added."""
    frame = pd.DataFrame({"a": ["q" + a], "label": [0]})
    t = ld.Task.from_frame(frame, template=template, options=["yes", "no"])
    assert t.prompts[0] + t.options[0] == template.format(a="q" + a, answer="yes")


@settings(deadline=None)
@given(st.lists(st.text("abcdefghij", min_size=1), min_size=2, max_size=5, unique=True), st.data())
def test_a_label_is_a_text_or_a_number(options, data):
    index = data.draw(st.integers(0, len(options) - 1))
    for label in (options[index], f" {options[index]}", index, np.int64(index), float(index), str(index)):
        assert option_index(label, options) == index
    for label in (len(options), -1, None, "", "K", float("nan"), float("inf")):
        assert option_index(label, options) is None


def test_a_folder_of_data_leaves_tasks_with_their_own_rows_alone(tmp_path):
    for name in ("sample/topic", "synthetic/recall"):
        assert ld.task(name, tmp_path, limit=4).prompts == ld.task(name, limit=4).prompts


@pytest.mark.parametrize(
    ("name", "content", "about"),
    [
        ("sst2.jsonl", b"", "no rows"),
        ("sst2.csv", b"sentence,label\n", "no rows"),
        ("sst2.parquet", b"PAR1", "sst2.parquet"),
        ("sst2.txt", b"a", "sst2.txt"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 1}\n{"sentence": \n', "sst2.jsonl"),
        ("sst2.jsonl", b"[" * 100_000, "sst2.jsonl"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 1}\n{"sentence": "\xff"}', "utf-8"),
        ("sst2.csv", b"sentence,label\nca\xe9,1\n", "utf-8"),
        ("sst2.csv", b"sentence,label\na,b,1\n", "sst2.csv"),
        ("sst2.csv", b"sentence,label\na,1\na,b,1\n", "sst2.csv"),
        ("sst2.csv", b"sentence,label\na\n", "row 1"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 0}\n{"sentence": "a", "label": 2}', "row 2 .*negative"),
        ("sst2.jsonl", b'{"sentence": "a", "label": -1}', "row 1 .*-1"),
        ("sst2.jsonl", b'{"sentence": null, "label": 1}', "row 1"),
    ],
)
def test_files_that_are_no_rows_with_answers(tmp_path, name, content, about):
    """No cell is lost or shifted, none guessed: an unreadable file, a missing cell, another label."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ld.InputError, match=about):
        ld.task("sst2", tmp_path / name)


def test_texts_are_not_converted(tmp_path):
    """What looks like a number, a date, a missing value or a time stamp is a text; a cell may be a whole document."""
    texts = ["007", "1e3", "2020-01-01", "NaN", "", "null", "True", "word " * 60_000]
    frame = pd.DataFrame({"date": texts, "answer": ["a", "b"] * 4})
    frame.to_csv(tmp_path / "own.csv", index=False)
    frame.to_json(tmp_path / "own.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "own.json", orient="records")
    for suffix in (".csv", ".jsonl", ".json"):
        assert [row["date"] for row in read_rows(tmp_path / f"own{suffix}", ()).rows] == texts


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"data": "nowhere"}, "'nowhere'"),
        ({"data": "."}, r"sst2\{.jsonl,.json,.csv,.parquet\}"),
        ({"data": pd.DataFrame(ROWS).rename(columns={"label": "sentence"})}, "two columns"),
        ({"limit": 0}, "limit=0"),
        ({"template": "revue"}, "sentence, label, text.*table3, review"),
        ({"template": "{label} {text}"}, "answer.*label"),
        ({"template": "{text} {answer} {text}"}, r"\{answer\}"),
        ({"template": "{}"}, "fields"),
        ({"template": "{txt}"}, "fields .*txt"),
    ],
)
def test_arguments_from_which_wrong_prompts_would_follow(tmp_path, monkeypatch, arguments, about):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ld.InputError, match=about):
        ld.task("sst2", **{"data": pd.DataFrame(ROWS), **arguments})


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ld.InputError, match=r"no task 'sst': choose among sample/.*, sst2, wic, synthetic/k_hop"):
        ld.task("sst")


PAIRS = pd.DataFrame(
    {
        "prompt": ["2 + 2 =", "3 + 4 =", "1 + 0 ="],
        "right": [" 4", " 7", " 1"],
        "wrong": [" 5", " 6", " 0"],
        "gold": [0, 1, 0],
    }
)


def test_two_columns_of_answers_are_options():
    """The first column is right unless a label says otherwise; texts and indices are labels."""
    t = ld.Task.from_frame(PAIRS, prompt="prompt", options=["right", "wrong"])
    assert t.prompts == tuple(PAIRS["prompt"])
    assert t.options == ((" 4", " 5"), (" 7", " 6"), (" 1", " 0"))
    assert (t.option_names, t.labels.tolist()) == (("right", "wrong"), [0, 0, 0])
    for labels in ([0, 1, 0], [" 4", "6", " 1"]):
        assert ld.Task.from_frame(PAIRS.assign(gold=labels), label="gold").labels.tolist() == [0, 1, 0]
    assert t.select(PAIRS["gold"] == 0).options == (t.options[0], t.options[2])
    assert t.select([1]).option_names == ("right", "wrong")
    same = ld.Task.from_frame(PAIRS.assign(right=" yes", wrong=" no"))
    assert (same.options, same.option_names) == ((" yes", " no"), ("right", "wrong"))
    asked = ld.Task.from_frame(PAIRS, template="Q: {prompt}{answer}", options=["right", "wrong"])
    assert asked.prompts[0] == "Q: 2 + 2 ="


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"options": ["right", "wrnog"]}, "not all"),
        ({"frame": PAIRS.drop(columns="wrong"), "options": ("right", "wrong")}, "not all"),
        ({"options": {"right", "wrong"}}, "options"),
        ({"options": [" one", " one"]}, "different"),
        ({"options": [" one"]}, "at least two"),
        ({"template": "{prompt}{right}"}, "answer"),
        ({"prompt": "right"}, "answer"),
        ({"prompt": "question"}, "question"),
        ({"label": "prompt"}, "row 1"),
        ({"frame": PAIRS.assign(wrong=PAIRS["right"])}, "row 1"),
        ({"frame": PAIRS.assign(wrong=[" 5", None, " 0"])}, "row 2"),
        ({"frame": PAIRS.assign(wrong=5)}, "row 1"),
        ({"frame": PAIRS.assign(prompt="")}, "empty"),
    ],
)
def test_frames_that_are_no_choice(change, about):
    with pytest.raises(ld.InputError, match=about):
        ld.Task.from_frame(**{"frame": PAIRS, "options": ["right", "wrong"], **change})


def test_options_with_a_space_are_taken_as_they_are():
    rows = pd.DataFrame({"q": ["a"], "label": [0]})
    assert ld.Task.from_frame(rows, template="{q}:\n", options=[" x", "y"]).options == (" x", "y")
