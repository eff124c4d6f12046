"""Tasks whose rows bring their own options: JSONL files, and lm-eval's, against lm-eval's own runner."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.tasks import lm_eval

ROWS = [
    {"prompt": "Once upon a", "options": [" time", " day"], "label": 0},
    {"prompt": "She was very", "options": [" happy", " sad"], "label": " sad"},
    {"prompt": "They went to the", "options": [" park", " tree"], "label": "park"},
    {"prompt": "One", "options": [" day", " time", " park"], "label": 0},
]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_with_options_of_their_own(tmp_path):
    """Options follow their rows through everything; rows with another number of them are counted."""
    file = written(tmp_path / "mine.jsonl", ROWS)
    t = ld.task(file)
    assert (t.name, len(t), t.dropped, t.labels.tolist()) == ("mine", 3, 1, [0, 1, 0])
    assert t.answers == [" time", " sad", " park"] == t.frame()["option"].tolist()
    assert ld.task(str(file), limit=2).options == t.options[:2]
    shared = ld.task(written(tmp_path / "shared.jsonl", [row | {"options": [" a", " b"], "label": 1} for row in ROWS]))
    assert shared.options == (" a", " b")


def test_a_frame_with_options_of_each_row(tmp_path):
    """`Task.from_frame` takes the column that holds them; the task of the JSONL file is the same."""
    frame = pd.DataFrame(ROWS[:1] + ROWS[3:] + ROWS[1:3])
    t = ld.Task.from_frame(frame, template="{prompt}{answer}", options="options")
    of_file = ld.task(written(tmp_path / "rows.jsonl", ROWS))
    assert (t.prompts, t.options, t.labels.tolist()) == (of_file.prompts, of_file.options, of_file.labels.tolist())
    assert t.dropped == 1
    assert ld.Task.from_frame(frame, prompt="prompt", options="options").prompts == t.prompts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": [" one"]}, "row 2 .*options"),
        ({"options": [" one", " one"]}, "row 2 .*options"),
        ({"options": " yes no"}, "row 2 .*options"),
        ({"label": 2}, "row 2 .*label"),
        ({"label": "none of them"}, "row 2 .*label"),
        ({"prompt": ""}, "prompt"),
    ],
)
def test_rows_that_are_no_choice_are_refused(tmp_path, change, reason):
    file = written(tmp_path / "bad.jsonl", [ROWS[1], ROWS[0] | change])
    with pytest.raises(ld.InputError, match=reason):
        ld.task(file)
    with pytest.raises(ld.InputError, match="template"):
        ld.task(written(file, ROWS), template="{text}")


ARC = [
    ("Which of these is hot?", ["ice", "the sun", "snow in winter", "rain"], "B"),
    ("Which animal can fly?", ["a dog", "an eagle", "a cat", "a fish"], "2"),
    ("What do plants need?", ["only stones", "light and water", "a telephone", "salt"], "B"),
    ("Which of these three is a color?", ["red", "seven", "Monday"], "A"),
]


def lm_eval_data(tmp_path):
    """Rows of our own in the columns of three of lm-eval's data sets."""
    arc = [
        {
            "question": question,
            "choices": {"text": texts, "label": list("1234" if key == "2" else "ABCD")[: len(texts)]},
            "answerKey": key,
        }
        for question, texts, key in ARC
    ]
    rte = [
        {"sentence1": f"{texts[1]} is here.", "sentence2": f"There is {texts[1]}.", "label": i % 2}
        for i, (_, texts, _) in enumerate(ARC)
    ]
    piqa = [
        {"goal": "To open a door,", "sol1": "turn the handle and push.", "sol2": "sing to the moon.", "label": 0},
        {"goal": "To cool a drink,", "sol1": "put it in the oven.", "sol2": "add some ice cubes to it.", "label": 1},
        {"goal": "To dry clothes,", "sol1": "hang them in the sun.", "sol2": "leave them in the water.", "label": 0},
    ]
    return {
        name: written(tmp_path / f"{name}.jsonl", rows)
        for name, rows in {"arc_easy": arc, "rte": rte, "piqa": piqa}.items()
    }


@pytest.mark.full
def test_lm_eval_tasks_are_scored_as_lm_eval_scores_them(tmp_path):
    """Log-likelihoods of every option are those of lm-eval's own Hugging Face runner, to 1e-4."""
    pytest.importorskip("lm_eval.tasks", reason="lm-eval is not installed")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = ld.load_model()
    runner = HFLM(pretrained=model.root, tokenizer=model.tokenizer, backend="causal", batch_size=4)
    for name, file in lm_eval_data(tmp_path).items():
        t = ld.task(f"lm_eval/{name}", data=file if name == "rte" else tmp_path)
        assert ld.task(f"lm_eval/{name}", file, limit=2).frame().equals(t.frame()[:2])
        assert t.dropped == (name == "arc_easy")
        pairs = [
            (prompt, option) for prompt, options in zip(t.prompts, t.row_options, strict=True) for option in options
        ]
        asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
        expected = np.array([score for score, _ in runner.loglikelihood(asked, disable_tqdm=True)])
        c = ld.contributions(model, t)
        # Its softmax is in float32, and the longest options have 30 nats.
        np.testing.assert_allclose(c.log_likelihood.ravel(), expected, atol=1e-4, rtol=1e-5)
        whole = c.log_likelihood_parts.sum(1) + c.normalizer
        np.testing.assert_allclose(whole, c.log_likelihood, atol=1e-6)
    with pytest.raises(ld.InputError, match="no single task"):
        ld.task("lm_eval/mmlu")


@pytest.fixture
def library(monkeypatch):
    """Stands in for lm-eval: a task of templates, rendered in whatever environment `lm_eval.utils` has at the time."""
    from jinja2 import BaseLoader, Environment

    utils = SimpleNamespace(env=Environment(loader=BaseLoader()))
    asked = SimpleNamespace(text="{{ goal }}")

    class Task:
        OUTPUT_TYPE, DATASET_PATH, DATASET_NAME = "multiple_choice", "rows", None
        config = SimpleNamespace(num_fewshot=0)
        eval_docs = ({"goal": "To open a door,", "label": 0}, {"goal": "To dry,", "label": 1})

        def fewshot_context(self, doc, shots, gen_prefix):
            return utils.env.from_string(asked.text).render(**doc)

        def construct_requests(self, doc, ctx):
            return [SimpleNamespace(arguments=(ctx, option)) for option in self.doc_to_choice(doc)]

        doc_to_choice = staticmethod(lambda doc: [" push.", " sing."])
        doc_to_target = staticmethod(lambda doc: doc["label"])
        doc_to_prefix = staticmethod(lambda doc: None)

    manager = SimpleNamespace(all_subtasks=["own"], load=lambda specs: {"tasks": {"own": Task()}})
    tasks = SimpleNamespace(TaskManager=lambda: manager)
    lm_eval._manager.cache_clear()
    for name, module in (("", SimpleNamespace(utils=utils, tasks=tasks)), (".utils", utils), (".tasks", tasks)):
        monkeypatch.setitem(sys.modules, f"lm_eval{name}", module)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())
    yield asked
    lm_eval._manager.cache_clear()


def test_a_task_of_lm_eval(library):
    t = ld.task("lm_eval/own")
    assert t.prompts == ("To open a door,", "To dry,")
    assert (t.options, t.labels.tolist(), t.source) == ((" push.", " sing."), [0, 1], "Hugging Face rows")


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ goal.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ nothing }}",
    ],
)
def test_templates_of_lm_eval_run_in_a_sandbox(library, text):
    """One that loops, reads files or reaches into Python is answered with a sentence; afterwards all is as it was."""
    library.text = text
    before = sys.modules["lm_eval.utils"].env
    with pytest.raises(ld.InputError, match="lm_eval/own cannot read row 1"):
        ld.task("lm_eval/own")
    assert sys.modules["lm_eval.utils"].env is before


def test_lm_eval_is_optional(monkeypatch):
    """Without it, the message says how to install it."""
    lm_eval._manager.cache_clear()
    for name in ("lm_eval", "lm_eval.utils", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ld.InputError, match="pip install"):
        ld.task("lm_eval/arc_easy")
