"""Where rows come from, tasks of one's own, demonstrations; and one sentence for whatever is wrong with them."""

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
from layerdiv_tl.tasks.templates import Template, option_index

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
    assert wanted.texts[2] == "two\u2028lines\nor three"
    assert wanted.source == "a pandas frame"


def test_a_saved_data_set(tmp_path):
    """What `datasets` writes to disk is read, whole or by split."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one" / "sst2")
    datasets.DatasetDict(train=rows.select([1]), validation=rows).save_to_disk(tmp_path / "splits")
    wanted = ld.task("sst2", pd.DataFrame(ROWS)).prompts
    assert ld.task("sst2", tmp_path / "one").prompts == wanted
    assert ld.task("sst2", tmp_path / "splits").prompts == wanted
    assert ld.task("sst2", rows).prompts == wanted
    with pytest.raises(ld.InputError, match="'validation_matched'.* train, validation"):
        ld.task("mnli", tmp_path / "splits")


def _library(load_dataset):
    """Stands in for `datasets`."""
    return SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False))


@pytest.mark.parametrize("reason", [None, "no route"])
def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch, reason):
    """Then only the cache of data sets is looked into, and afterwards settings are as they were."""
    seen = []

    def load_dataset(*_, **__):
        seen.append(library.config.HF_HUB_OFFLINE)
        return ROWS

    library = _library(load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr("layerdiv_tl.tasks.rows.unreachable", lambda: reason)
    ld.task("sst2")
    assert seen == [reason is not None]
    assert library.config.HF_HUB_OFFLINE is False


def test_without_data_the_hub_is_asked_for_the_papers_split(monkeypatch):
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", _library(load_dataset))
    t = ld.task("sst2")
    assert t.prompts == ld.task("sst2", pd.DataFrame(ROWS)).prompts
    assert t.source == "Hugging Face nyu-mll/glue sst2 validation"
    ld.task("sst2", limit=2, shots=1)
    assert asked[1:] == [("nyu-mll/glue", "sst2", "validation"), ("nyu-mll/glue", "sst2", "train")]
    with pytest.raises(ld.InputError, match="row 1 of fancyzhx/ag_news .*'text'"):
        ld.task("ag_news")
    assert asked[-1] == ("fancyzhx/ag_news", None, "test")


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
    ("name", "content", "message"),
    [
        ("sst2.jsonl", b"", "sst2.jsonl"),
        ("sst2.json", b"[]", "sst2.json"),
        ("sst2.csv", b"sentence,label\n", "sst2.csv"),
        ("sst2.parquet", b"", "sst2.parquet"),
        ("sst2.parquet", b"PAR1", "sst2.parquet"),
        ("sst2.txt", b"a", ".jsonl, .json, .csv, .parquet"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 1}\n{"sentence": \n', "line 2 of sst2.jsonl"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 1}\n[1]', r"line 2 of sst2.jsonl .*\[1\]"),
        ("sst2.json", b"[1]", "row 1 of sst2.json"),
        ("sst2.jsonl", b'{"sentence": "a", "label": 1}\n{"sentence": "\xff"}', "utf-8"),
        ("sst2.csv", b"sentence,label\nca\xe9,1\n", "utf-8"),
        ("sst2.csv", b"sentence,label\na\n", "row 1 has 1 cells for 2"),
        ("sst2.csv", b"sentence,label\na,b,1\n", "row 1 has 3 cells for 2"),
        ("sst2.csv", b'sentence,label\n"a"b,1\n', "sst2.csv"),
        ("sst2.jsonl", b'{"text": "a", "label": 1}', r"'sentence' .*text, label"),
        ("sst2.jsonl", b'{"sentence": "a"}', r"line 1 of sst2.jsonl .*'label' .*sentence"),
        (
            "sst2.jsonl",
            b'{"sentence": "a", "label": 2}',
            r"label 2 .*0 negative, 1 positive",
        ),
        ("sst2.jsonl", b'{"sentence": "a", "label": -1}', "label -1"),
        ("sst2.jsonl", b'{"sentence": null, "label": 1}', "column 'text'"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ld.InputError, match=message) as caught:
        ld.task("sst2", path)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "nowhere"}, "'nowhere'"),
        ({"data": "."}, r"sst2\{.jsonl,.json,.csv,.parquet\}"),
        ({"data": 3}, "data"),
        ({"data": "x" * 5000}, "data="),
        ({"train": 3}, "train=3"),
        ({"shots": -1}, "shots=-1"),
        ({"shots": 2}, "sst2 .*train="),
        ({"shots": 2, "train": "nowhere"}, "'nowhere'"),
        ({"shots": 2, "train": pd.DataFrame(ROWS)}, "shots=2"),
        ({"limit": True}, "limit=True"),
        ({"template": 7}, "template=7"),
        (
            {"template": "revue"},
            r"\{sentence\}, \{text\} .*'table3', 'review'",
        ),
        ({"template": "{label} {text}"}, "template .* sst2"),
        ({"template": "{text} {answer} {text}"}, r"template .*\{answer\}"),
        ({"template": "{text} {answer} {answer}"}, r"template .*\{answer\}"),
        ({"template": "{text:>9}"}, r"template .*\{text\}"),
        ({"template": "{text.upper}"}, "template .* sst2"),
        ({"template": "{}"}, "template .* sst2"),
        ({"template": "{text"}, "template"),
        ({"limit": 2.5}, "limit=2.5"),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ld.InputError, match=message):
        ld.task("sst2", **{"data": pd.DataFrame(ROWS), **arguments})


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ld.InputError, match=r"no task 'sst': choose among sample/.*, sst2, wic, synthetic/k_hop"):
        ld.task("sst")
    for rows in (pd.DataFrame({"text": ["a"]}), ["a"]):
        with pytest.raises(ld.InputError, match="from_frame"):
            ld.task(rows)
    with pytest.raises(ld.InputError, match="is a list.*pandas frame"):
        ld.Task.from_frame([{"text": "a"}], template="{text}", options=["x", "y"])
    for name in (3, ["sst2"], None):
        with pytest.raises(ld.InputError, match="task"):
            ld.task(name)


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
    parsed = Template.parse(template)
    assert parsed.fill({"text": "x"})[0] == prompt
    assert parsed.option_prefix == prefix


@pytest.mark.full
@settings(deadline=None)
@given(st.text(), st.text())
def test_a_prompt_is_its_texts_between_the_templates_words(a, b):
    """Braces in texts are texts; the passage is the longer field."""
    prompt, (start, end) = Template.parse("<{a}|{b}> {answer}").fill({"a": a, "b": b})
    assert prompt == f"<{a}|{b}>"
    assert prompt[start:end] == max(a, b, key=len)


@pytest.mark.full
@settings(deadline=None)
@given(st.text(), st.sampled_from(["{a} {answer}", "{a}  {answer}", "{a}\n{answer}", "x {a}={answer}", "{a}{answer}"]))
def test_prompt_and_option_together_are_the_template_filled_in(a, template):
    """Whatever a text ends in: no blank of it is lost, and none is added."""
    parsed = Template.parse(template)
    assert parsed.fill({"a": a})[0] + parsed.option_prefix + "yes" == template.format(a=a, answer="yes")


@settings(deadline=None)
@given(st.lists(st.text("abcdefghij", min_size=1), min_size=2, max_size=5, unique=True), st.data())
def test_a_label_is_a_text_or_a_number(options, data):
    index = data.draw(st.integers(0, len(options) - 1))
    for label in (options[index], f" {options[index]}", index, np.int64(index), float(index), str(index)):
        assert option_index(label, options) == index
    for label in (len(options), -1, None, "", "K", float("nan"), float("inf")):
        assert option_index(label, options) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(0, 5))
def test_demonstrations_are_balanced_solved_and_never_asked(shots, seed):
    """k shots hold the classes alike, show right answers, no asked row, and depend on the seed alone."""
    rows = pd.DataFrame({"text": [f"n{i}" for i in range(30)], "label": np.arange(30) % 3})
    own = {"template": "{text} is {answer}", "options": ["a", "b", "c"], "shots": shots, "seed": seed, "train": rows}
    t = ld.Task.from_frame(rows[:6], **own)
    plain = ld.Task.from_frame(rows[:6], template="{text} is {answer}", options=["a", "b", "c"])
    assert t.shots == shots
    for row, prompt in enumerate(t.prompts):
        *shown, asked = prompt.split("\n\n")
        assert asked == plain.prompts[row]
        numbers, answers = (
            zip(*(line.removeprefix("n").split(" is ") for line in shown), strict=True) if shown else ([], [])
        )
        assert len(set(numbers)) == shots
        assert all(int(number) >= 6 for number in numbers)
        assert all("abc"[int(n) % 3] == a for n, a in zip(numbers, answers, strict=True))
        counts = [answers.count(option) for option in "abc"]
        assert max(counts) - min(counts) <= 1
    assert ld.Task.from_frame(rows[:6], **own).prompts == t.prompts
    assert [t.prompts[r][a:b] for r, (a, b) in enumerate(t.passages)] == [f"n{r}" for r in range(6)]


def test_training_rows_lie_beside_the_data(tmp_path):
    write(tmp_path, ".jsonl")
    with pytest.raises(ld.InputError, match="sst2_train"):
        ld.task("sst2", tmp_path, shots=1)
    write(tmp_path, ".csv", [{"sentence": "a treat", "label": 1}], name="sst2_train")
    t = ld.task("sst2", tmp_path, shots=1)
    assert t.prompts[0].startswith(
        "a treat\nQuestion: Was that sentence positive or negative? Answer: positive\n\na fine"
    )
    assert t.source.endswith("; 1 demonstrations of " + str(tmp_path / "sst2_train.csv") + ", seed 0")


def test_a_folder_of_data_leaves_tasks_with_their_own_rows_alone(tmp_path):
    for name in ("sample/topic", "synthetic/recall"):
        assert ld.task(name, tmp_path, limit=4).prompts == ld.task(name, limit=4).prompts


@pytest.fixture
def described(tmp_path):
    """A task described in JSON, its rows next to it."""
    pd.DataFrame({"word": ["hot", "big"], "gold": ["cold", "small"]}).to_csv(tmp_path / "rows.csv", index=False)
    pd.DataFrame({"word": ["cool"], "gold": [0]}).to_json(tmp_path / "more.jsonl", orient="records", lines=True)
    said = {
        "templates": {"plain": "The opposite of {word} is", "sign": "{word} <->\n"},
        "options": ["cold", "small"],
        "label": "gold",
        "data": "rows.csv",
        "train": "more.jsonl",
    }

    def make(**changes):
        path = tmp_path / "opposites.json"
        path.write_text(json.dumps({key: value for key, value in {**said, **changes}.items() if value is not None}))
        return path

    return make


def test_a_task_from_a_json_file(described):
    path = described()
    t = ld.task(path)
    assert (t.name, t.prompts[0], t.options) == ("opposites", "The opposite of hot is", (" cold", " small"))
    assert t.labels.tolist() == [0, 1]
    assert ld.task(str(path), template="sign").options == ("cold", "small")
    assert ld.task(path, shots=1).prompts[1] == "The opposite of cool is cold\n\nThe opposite of big is"
    assert ld.task(path, data=pd.DataFrame({"word": ["up"], "gold": [1]})).prompts == ("The opposite of up is",)
    assert len(ld.task(described(limit=1))) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"templates": None}, "template"),
        ({"options": ["one"]}, "options="),
        ({"options": "no"}, "'no'"),
        ({"options": ["no", " no"]}, "options="),
        ({"data": None}, "opposites .*data="),
        ({"data": "gone.csv"}, "gone.csv"),
        ({"data": 3}, "data=3"),
        ({"label": "Gold"}, r"'Gold' .*word, gold"),
        ({"limit": 0}, "limit=0"),
        ({"color": "red"}, "'color'"),
    ],
)
def test_bad_descriptions(described, changes, message):
    with pytest.raises(ld.InputError, match=message):
        ld.task(described(**changes))


def test_unreadable_descriptions(tmp_path):
    for content, message in [(b"{", "JSON"), (b"\xff", "utf-8"), (b"[]", "JSON object")]:
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(ld.InputError, match=message):
            ld.task(tmp_path / "t.json")
    with pytest.raises(ld.InputError, match=r"there is no file .gone\.json"):
        ld.task("gone.json")


def test_the_gold_column_is_no_field():
    rows = pd.DataFrame({"q": ["a"], "gold": ["x"]})
    for template in ("{q} {gold}", "no field"):
        with pytest.raises(ld.InputError, match=r"template .*\{q\}"):
            ld.Task.from_frame(rows, template=template, options=["x", "y"], label="gold")


def test_options_with_a_space_are_taken_as_they_are():
    rows = pd.DataFrame({"q": ["a"], "label": [0]})
    assert ld.Task.from_frame(rows, template="{q}:\n", options=[" x", "y"]).options == (" x", "y")


def test_every_field_survives_saving(tmp_path):
    t = ld.task("synthetic/recall", limit=5, shots=2)
    again = ld.Task.load(t.save(tmp_path / "t"))
    assert again.prompt_hash == t.prompt_hash
    assert (again.shots, again.dropped, again.source, again.option_ids) == (2, 0, t.source, ())
    np.testing.assert_array_equal(again.passages, t.passages)
    assert again.frame().equals(t.frame())


def test_columns_and_keys_that_stand_twice_are_refused(tmp_path):
    """The last would win without a word: in CSV, in JSON lines, in a JSON list and in a task's own file."""
    rows = '{"text": "a", "label": 0, "text": "b"}'
    files = {
        "sst2.csv": "text,label,text\na,0,b\n",
        "sst2.jsonl": rows + "\n",
        "sst2.json": f"[{rows}]",
        "own.json": '{"template": "{word}", "options": ["a", "b"], "options": ["a", "c"], "data": "rows.csv"}',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(ld.InputError, match=r"text|options"):
            ld.task(tmp_path / name) if name == "own.json" else ld.task("sst2", tmp_path / name)


def test_a_cell_may_be_a_whole_document(tmp_path):
    """Above the 128 KiB that csv reads by itself; what csv reads elsewhere is as before."""
    import csv

    limit, document = csv.field_size_limit(), "word " * 60_000
    path = tmp_path / "own.csv"
    path.write_text(f"text,gold\n{document},a\nshort,b\n", encoding="utf-8")
    rows = read_rows(path, ["any"]).rows
    assert rows[0]["text"] == document
    assert csv.field_size_limit() == limit


def test_json_without_end_is_refused(tmp_path):
    for name in ("own.json", "sst2.jsonl"):
        (tmp_path / name).write_text("[" * 100_000, encoding="utf-8")
        with pytest.raises(ld.InputError, match=name):
            ld.task(tmp_path / name) if name == "own.json" else ld.task("sst2", tmp_path / name)
