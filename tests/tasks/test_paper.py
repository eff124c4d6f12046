"""The paper's tasks: Table 3 word for word, the labels of the Hugging Face data sets, on rows in their columns."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.tasks.specs import PACKAGED_TASKS

EIGHT_TASKS = ("ag_news", "arc", "boolq", "mnli", "qqp", "rte", "sst2", "wic")
DATA = Path(__file__).parent / "rows"  # our own, in the columns of the data sets, trailing spaces included
# The first row of each task put into Table 3 by hand.
EXPECTED = {
    "ag_news": (
        "What label best describes this news article?\nFerry workers vote   to strike after talks about night shifts "
        "fail, their union says."
    ),
    "arc": (
        "Pick the most correct option to answer the following question.\n\nWhich of these melts at room temperature? "
        "\n\nA: ice\nB: glass\nC: iron\nD: chalk"
    ),
    "boolq": (
        "The hill behind the old harbor rises eleven meters in a hundred. The line was built for a cable car; trams, "
        "whose wheels slip on more than nine in a hundred, turn around at its foot.\n\nAfter reading this passage, I "
        "have a question: can a tram climb the hill behind the old harbor True or False?"
    ),
    "mnli": (
        "Suppose it's true that The new timetable pleases most of the staff Then, is \"Everyone at work loves the "
        'timetable " Always, Sometimes, or Never true?'
    ),
    "qqp": (
        "I'm an administrator on the website Quora. There are two posts, one that asks \"How do I keep basil alive "
        'indoors?" and another that asks "How can I keep a basil plant alive in the house?" I can merge questions if '
        "they are asking the same thing. Can I merge these two questions?"
    ),
    "rte": (
        "Marta Lindqvist, who led the choir for forty years, has retired to a village near the coast. Using only the "
        "above description and what you know about the world, is Marta Lindqvist has stopped singing. definitely "
        "correct? Yes or No?"
    ),
    "sst2": "a warm and quietly funny film . \nQuestion: Was that sentence positive or negative? Answer:",
    "wic": (
        'Does the word "row" have the same meaning in these two sentences? Yes, No?\n They sat in the front row.\n We '
        "row across the lake."
    ),
}
# The options, and the answer to the first row.
OPTIONS = {
    "ag_news": ((" World", " Sports", " Business", " Science"), " Business"),
    "arc": ((" A", " B", " C", " D"), " A"),
    "boolq": ((" False", " True"), " False"),
    "mnli": ((" Always", " Sometimes", " Never"), " Sometimes"),
    "qqp": ((" no", " yes"), " yes"),
    "rte": ((" Yes", " No"), " No"),
    "sst2": ((" negative", " positive"), " positive"),
    "wic": ((" No", " Yes"), " No"),
}


@pytest.fixture(params=EIGHT_TASKS)
def name(request):
    return request.param


def raw(name):
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").split("\n") if line]


def test_the_first_prompt_is_table_3_filled_in_by_hand(name):
    t = ld.task(name, data=DATA)
    assert (t.options, t.answers[0]) == OPTIONS[name]
    assert t.prompts[0] == EXPECTED[name]


def test_labels_are_those_of_the_rows(name):
    """Class counts equal a count of the raw file's own labels, and every row is used."""
    t = ld.task(name, data=DATA)
    key = PACKAGED_TASKS[name].label_column
    counts = Counter(row[key] for row in raw(name))
    order = "ABCD" if name == "arc" else range(len(t.options))
    assert np.bincount(t.labels).tolist() == [counts[label] for label in order]
    assert len(t) == sum(counts.values())
    assert t.dropped == 0
    assert str(DATA / f"{name}.jsonl") == t.source
    assert t.license


def test_the_space_before_the_answer_belongs_to_the_options(name):
    for template in PACKAGED_TASKS[name].templates:
        t = ld.task(name, data=DATA, template=template)
        assert all(option.startswith(" ") for option in t.options)


def test_templates_differ_in_words_alone(name):
    """Another template changes the prompts; options and labels stay."""
    tasks = [ld.task(name, data=DATA, limit=20, template=template) for template in PACKAGED_TASKS[name].templates]
    assert len({t.prompts for t in tasks}) == len(tasks) >= 2
    assert len({(t.options, t.labels.tobytes()) for t in tasks}) == 1


def test_a_first_part_is_the_beginning_of_the_whole(name):
    whole, part = ld.task(name, data=DATA), ld.task(name, data=DATA, limit=3)
    assert part.prompts == whole.prompts[:3]


def test_the_printed_template_is_the_default(name):
    t = ld.task(name, data=DATA, limit=3)
    for template in ("table3", t.template):
        assert t.prompts == ld.task(name, data=DATA, limit=3, template=template).prompts


ARC = [
    {"question": "Which?", "choices": {"text": list("wxyz"), "label": list("1234")}, "answerKey": "3"},
    {"question": "Three?", "choices": {"text": list("xyz"), "label": list("ABC")}, "answerKey": "A"},
    {"question": "What?", "choices": {"text": list("stuv"), "label": list("ABCD")}, "answerKey": "D"},
    {"question": "Five?", "choices": {"text": list("vwxyz"), "label": list("ABCDE")}, "answerKey": "E"},
]


@pytest.fixture
def arc(tmp_path):
    """Folders with the same ARC rows in every format."""
    import pandas as pd

    lines = "\n".join(map(json.dumps, ARC))
    (tmp_path / "arc_easy.jsonl").write_text(lines)
    (tmp_path / "arc_challenge.json").write_text(json.dumps(ARC))
    pd.DataFrame(ARC).to_parquet(tmp_path / "arc.parquet")
    flat = pd.DataFrame(ARC)
    flat["choices"] = flat["choices"].map(json.dumps)
    flat.to_csv(tmp_path / "arc.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("file", ["arc_easy.jsonl", "arc_challenge.json", "arc.parquet", "arc.csv"])
def test_arc_renames_digits_drops_odd_rows_and_reads_every_format(arc, file):
    t = ld.task("arc", arc / file)
    assert t.labels.tolist() == [2, 3]
    assert t.dropped == 2
    assert t.prompts[0].endswith("Which? \n\nA: w\nB: x\nC: y\nD: z")
    bulleted = ld.task("arc", arc / file, template="promptsource").prompts[1]
    assert bulleted.endswith("question.\n\nWhat?\n\nOptions:\n- A: s\n- B: t\n- C: u\n- D: v")


def test_dropped_rows_are_those_in_front_of_the_last_one_used(arc):
    assert ld.task("arc", arc / "arc.csv", limit=1).dropped == 0
    assert ld.task("arc", arc / "arc.csv", limit=2).dropped == 1


def test_arc_and_arc_challenge_are_two_tasks(arc):
    """In a folder each finds its own file; without `arc.*`, arc reads `arc_easy.*`."""
    (arc / "arc.csv").unlink()
    (arc / "arc.parquet").unlink()
    assert ld.task("arc", arc).source.endswith("arc_easy.jsonl")
    assert ld.task("arc_challenge", arc).source.endswith("arc_challenge.json")


@pytest.mark.parametrize(
    ("row", "about"),
    [
        ({**ARC[0], "answerKey": "E"}, "answerKey 'E'"),
        ({**ARC[0], "choices": {"text": list("wxyz"), "label": []}}, "answerKey '3'"),
        (ARC[1], "none of 1 rows"),
    ],
)
def test_arc_rows_without_an_answer(tmp_path, row, about):
    (tmp_path / "arc.jsonl").write_text(json.dumps(row))
    with pytest.raises(ld.InputError, match=about):
        ld.task("arc", tmp_path)


def test_the_eight_are_the_papers(name):
    assert set(OPTIONS) == set(EIGHT_TASKS)
    assert PACKAGED_TASKS[name].limit == 2000
