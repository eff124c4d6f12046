"""Every exercise of the course: its solution passes, and wrong answers are told by value, sign, factor and form."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from layerdiv_tl import teaching
from layerdiv_tl.components import Component
from layerdiv_tl.errors import InputError
from layerdiv_tl.teaching import Exercise, predict, read_lesson
from layerdiv_tl.teaching.compare import same

BEGUN, RIGHT, WRONG = "…", "✓", "✗"
LESSONS = {name: getattr(teaching, name) for name in dir(teaching) if name not in teaching.__all__}
EXERCISES = {f"{lesson}.{name}": one for lesson, found in LESSONS.items() for name, one in vars(found).items()}


def toy_run(tokens: torch.Tensor, hooks: Any) -> torch.Tensor:
    """A one-layer model, [row, vocabulary]: each head of each token counts, and differently."""
    heads = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(3))[tokens]
    for _, hook in hooks:
        changed = hook(heads, hook=None)
        heads = heads if changed is None else changed  # as TransformerLens takes a hook without a return
    weights = torch.randn(heads.shape[1:], generator=torch.Generator().manual_seed(4))
    return (heads * weights).sum(1).tanh().flatten(1)


def toy_cache(tokens: torch.Tensor, names: list[str]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits and a cache, whose activations depend on the name and the tokens and stand in an order of its own."""
    made = {
        name: torch.randn(9, 1 if "scale" in name else 6, generator=torch.Generator().manual_seed(sum(name.encode())))
        for name in sorted(names, key=lambda name: name[::-1])
    }
    return torch.zeros(*tokens.shape, 5), {name: rows[tokens] + tokens.sum() for name, rows in made.items()}


# What a notebook gives to those whose cases need it.
DATA: dict[str, dict] = {
    "first_look.from_cache": {
        "writes": torch.randn(6, 8, generator=torch.Generator().manual_seed(0)),
        "scale": torch.tensor([1.7]),
        "gain": torch.linspace(0.5, 2, 8),
        "unembed": torch.randn(8, 3, generator=torch.Generator().manual_seed(1)),
    },
    "first_look.read_cache": {
        "run": toy_cache,
        "tokens": torch.tensor([[3, 1, 4, 8, 5]]),
        "points": [
            "hook_embed",
            *(f"blocks.{layer}.hook_{part}_out" for layer in (2, 0, 1) for part in ("mlp", "attn")),
        ],
    },
    "direct_is_not_total.ablate": {"z": torch.randn(2, 5, 5, 4, generator=torch.Generator().manual_seed(2))},
    "direct_is_not_total.patch": {
        "run": toy_run,
        "tokens": torch.tensor([[0, 1, 2, 3, 1, 2], [3, 2, 2, 0, 0, 1]]),
        "point": "hook_z",
        "z": torch.randn(2, 6, 5, 3, generator=torch.Generator().manual_seed(5)),
    },
}
# Exercises about what a student chose: two choices each.
_TOKENS = torch.tensor([[0, 1, 2, 3, 1, 2], [3, 2, 2, 0, 0, 1]])
_IDS = torch.tensor([[4, 13], [12, 3]])  # of toy_run's logits 3 to 5 are of head 1, 12 to 14 of head 4
_OWN: dict[str, list[dict]] = {
    "first_look.three_largest": [
        {"own": SimpleNamespace(values=values, components=[Component("mlp", layer) for layer in range(9)])}
        for values in np.random.default_rng(1).normal(size=(2, 1, 9, 2))
    ],
    "direct_is_not_total.fall": [
        {"run": toy_run, "tokens": _TOKENS, "partner": torch.tensor([1, 0]), "ids": _IDS, "own": own, "direct": 0.4}
        for own in ("L0.H1", "L3.H4")
    ],
}
FUNCTIONS = [
    name
    for name, one in EXERCISES.items()
    if one.cases is not None and (name in DATA or not one.cases.__code__.co_argcount)
]


@pytest.mark.parametrize("name", EXERCISES)
def test_each_has_three_hints_and_a_name(name: str) -> None:
    one = EXERCISES[name]
    assert one.name == name.partition(".")[2]
    assert len(set(one.hints)) == 3
    for hint in one.hints:
        assert not re.search(r"\*\*\S.*\*\*", re.sub("`[^`]*`", "", hint)), f"a page shows this bold: {hint}"
    assert one.difficulty in range(1, 6)
    assert one.importance in range(1, 6)
    assert one.source.startswith("def ")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_knows_right_empty_and_wrong(name: str) -> None:
    """On the exercise's own cases, or on data like a notebook's."""
    one, data = EXERCISES[name], DATA.get(name, {})
    assert one.check(one.solve, **data).startswith(RIGHT)
    assert one.check(..., **data).startswith(BEGUN)
    assert one.check(lambda *_: ..., **data).startswith(BEGUN)
    for odd in (None, 3, "x", lambda *_: None, lambda *_: "x", lambda: 0, lambda *_: 1 / 0, lambda *_: np.zeros(7)):
        assert one.check(odd, **data).startswith(WRONG)


@pytest.mark.parametrize("name", _OWN)
def test_the_truth_is_that_of_the_students_own_choice(name: str) -> None:
    """Each choice has its own right answer; the answer to another one is wrong."""
    one, answers = EXERCISES[name], []
    for data in _OWN[name]:
        answers.append(one.solve(**data))
        assert one.check(answers[-1], **data).startswith(RIGHT)
        assert one.check(..., **data).startswith(BEGUN)
    assert one.check(answers[0], **_OWN[name][1]).startswith(WRONG)


@pytest.mark.parametrize("form", [tuple, np.array, pd.Index, pd.Series, lambda x: np.array(x, dtype=object)])
def test_names_may_come_in_any_array(form: Any) -> None:
    """As numpy and pandas return them when labels are sorted."""
    one, data = EXERCISES["first_look.three_largest"], _OWN["first_look.three_largest"][0]
    right = one.solve(**data)
    assert one.check(form(right), **data).startswith(RIGHT)
    assert "another order" in one.check(form(right[::-1]), **data)


def test_what_is_left_is_not_taken_for_what_the_default_head_brings() -> None:
    """Of 6.063 logits the patch takes 3.017, so that what is left differs from it by 1 %."""
    assert not same(np.array(3.045), np.array(3.017), EXERCISES["direct_is_not_total.fall"].rtol)


def exercise(solve: Any, **fields: Any) -> Exercise:
    return Exercise(solve, "def total(x):\n    return x.sum(1)\n", "yes.", ("a", "b", "c"), **fields)


def row_sums(x: np.ndarray) -> np.ndarray:
    return x.sum(1)


total = exercise(row_sums, cases=lambda: [(np.arange(6.0).reshape(2, 3),)])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda x: x.sum(0), "shape"),
        (lambda x: -x.sum(1), "sign"),
        (lambda x: x.mean(1), "factor"),
        (lambda x: ["a", "b"], "numbers are expected"),
        (lambda x: np.add(x, np.ones(5)), "ValueError"),
        (lambda x: {"total": x.sum(1)}, "TypeError"),
        (lambda x: x.sum(1) + 1, "hint(1)"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_form_is_named(answer, told) -> None:
    assert told in total.check(answer)
    assert total.check(answer).startswith(WRONG)


def test_a_right_answer_of_another_form_passes_where_the_value_is_0() -> None:
    """There two right answers share no digit: one test of block influence has it, and a planted pair of two parts."""
    length = np.linalg.norm
    one_by_one = lambda x, w: np.mean([1 - a @ (a + b) / length(a) / length(a + b) for a, b in zip(x, w, strict=True)])  # noqa: E731
    assert LESSONS["depth_use"].block_influence.check(one_by_one).startswith(RIGHT)
    both = exercise(lambda: (3e-17, np.array([1.0, 2.0])), cases=lambda: [()])
    assert both.check(lambda: (-5e-17, np.array([1.0, 2.0]))).startswith(RIGHT)
    assert "number 1 differs" in both.check(lambda: (1e-9, np.array([1.0, 2.0])))


def test_an_array_may_come_as_a_tuple_of_its_parts() -> None:
    """And is judged by its values."""
    assert total.check(lambda x: tuple(x.sum(1))).startswith(RIGHT)
    assert "sign" in total.check(lambda x: tuple(-x.sum(1)))
    assert "numbers" in total.check(lambda x: (x.sum(1), 0.0))


def test_of_several_results_the_wrong_one_is_named() -> None:
    """By its number, with the sign or factor of the first wrong one."""
    pair = (np.array([1.0, 2.0]), np.array([3.0, -1.0]))
    both = exercise(lambda: pair, cases=lambda: [()])
    assert "number 1, 2 differs: the sign" in both.check(lambda: (-pair[0], -pair[1]))
    assert "number 2 differs: the sign" in both.check(lambda: (pair[0], -pair[1]))
    assert "number 1 differs." in both.check(lambda: (pair[0] + [1, 0], pair[1]))
    assert "another order" in both.check(lambda: pair[::-1])
    assert "number 1, 2 differs: right but for one factor: 2" in both.check(lambda: (2 * pair[0], 2 * pair[1]))
    word = exercise(lambda: "not tested", cases=lambda: [()])
    assert "hint(1)" in word.check(lambda: "confirmed")


def test_later_cells_go_on_with_the_reference(capsys) -> None:
    """Only where the answer is wrong, and then it is said."""
    mine = lambda x: x.sum(axis=-1)  # noqa: E731
    assert total.or_reference(mine) is mine
    assert capsys.readouterr().out == ""
    assert total.or_reference(lambda x: ...) is total.solve
    assert "row_sums" in capsys.readouterr().out


def test_hints_and_the_solution() -> None:
    assert "a" in total.hint(1)
    assert "return x.sum(1)" in total.solution()
    with pytest.raises(InputError):
        total.hint(4)


def test_a_value_is_computed_from_what_the_check_is_given() -> None:
    one = exercise(lambda labels: (labels[1], labels[0]))
    assert one.check(("b", "a"), labels=["a", "b"]).startswith(RIGHT)
    assert one.check(["b", "a"], labels=["a", "b"]).startswith(RIGHT)
    assert one.check("b", labels=["a", "b"]).startswith(WRONG)
    assert one.check((1, 2), labels=["a", "b"]).startswith(WRONG)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("heads.bootstrap_interval", lambda x, n, r: np.quantile(r.choice(x, (n, len(x) - 1)).mean(1), [0.025, 0.975])),
        ("information.auc", lambda s, y: max(one := EXERCISES["information.auc"].solve(s, y), 1 - one)),
        (
            "depth_use.block_influence",
            lambda x, w: np.mean(
                1 - abs((x * (x + w)).sum(1)) / np.linalg.norm(x, axis=1) / np.linalg.norm(x + w, axis=1)
            ),
        ),
    ],
)
def test_what_is_right_on_likely_rows_alone_is_not_accepted(name: str, answer: Any) -> None:
    """A sample one row short, an AUC that is never below one half, a stream that is never turned around."""
    assert EXERCISES[name].check(answer).startswith(WRONG)


def test_predictions_are_compared() -> None:
    assert "close" in predict(10).compare(10.5)
    assert "too high" in predict(12).compare(10)
    assert "2 of 3" in predict([1, 2, 9]).compare([1.05, 2.0, 3.0])
    assert "3 numbers would compare" in predict(1).compare([1, 2, 3])
    assert "wrote nothing" in predict(...).compare(1)
    assert "wrote nothing" in predict([..., 2]).compare([1, 2])
    assert "no" in predict("x").compare("early")
    assert "61 %" in predict("61 %").compare(0.6)
    assert predict(["a", "b", "c"]).compare(["a", "b"]).endswith("2 of 2 found, 1 wrong")
    assert predict([]).compare(["a", "b"]).endswith("0 of 2 found")
    assert "you wrote" in predict({"a": 1}).compare(2)


@pytest.mark.parametrize(("low", "is_right"), [(0.025, True), (0.03, False), (0.05, False), (0.25, False)])
def test_a_null_of_another_level_is_wrong(low: float, is_right: bool) -> None:
    """However the labels are shuffled."""

    def null_range(statistic: Any, rows: Any, labels: Any, n: int, rng: Any) -> Any:
        shuffled = rng.permuted(np.tile(labels, (n, 1)), axis=1)
        return tuple(np.quantile([statistic(rows, one) for one in shuffled], [low, 1 - low]))

    assert LESSONS["information"].null_range.check(null_range).startswith(RIGHT if is_right else WRONG)


LESSON = """
code = "rows = lambda: [(np.ones((2, 3)),)]"
[means]
hints = ["a", "b", "c"]
right = "yes."
cases = "rows"
solution = "def means(x): return x.mean(1)"
"""


def test_a_lesson_of_ones_own(tmp_path: Path) -> None:
    """It is read from TOML."""
    path = tmp_path / "mine.toml"
    path.write_text(LESSON)
    one = read_lesson(path).means
    assert one.check(lambda x: x.mean(1)) == "✓ yes."
    assert "factor: 3" in one.check(lambda x: x.sum(1))
    with pytest.raises(AttributeError, match="first_look"):
        _ = teaching.no_lesson
