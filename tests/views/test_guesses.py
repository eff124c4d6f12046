"""What guessed names are answered with is there, and says what it promises."""

import re
from functools import reduce

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl import _guesses

from .figure_results import MAKERS, made

OWN = [(owner, name) for owner, names in _guesses._FOR.items() for name in names]


def places(text):
    """The public names in a hint: ld.depth.drop_plan → ["depth", "drop_plan"]."""
    return [match.split(".") for match in re.findall(r"\bld\.([a-z_A-Z]+(?:\.[a-z_A-Z]+)*)", text)]


@pytest.mark.parametrize("table", [_guesses.FUNCTIONS, _guesses._FOR["Contributions"]])
def test_functions_that_are_named_exist(table):
    assert any(map(places, table.values()))
    for text in table.values():
        for path in places(text):
            assert callable(reduce(getattr, path, ld)), text


@pytest.mark.parametrize(("owner", "name"), OWN)
def test_a_hint_on_a_result_runs(owner, name):
    """The code in front of "has it", "lists", "sums", …, on a result of that class."""
    result, name = made(owner), f"other{name}" if name[0] == "_" else name  # ends of names
    assert owner in [cls.__name__ for cls in type(result).__mro__]
    with pytest.raises(AttributeError) as raised:
        getattr(result, name)
    hint = str(raised.value).partition(": ")[2]
    assert hint == _guesses.attribute(type(result), name, result.figures)
    if hint.startswith(".") and not re.search(r"\((folder|path)\)", hint):
        code = re.match(r"[^ ]+(?: [a-z_]+=[^ ]+\)[^ ]*)*", hint)[0].rstrip(",")
        code = code.replace("[column]", f"[{result.frame().columns[1]!r}]")
        assert eval(f"result{code}", {"result": result}) is not None


def test_a_wrong_or_missing_argument_is_answered_with_those_that_there_are():
    """And with the one that means the same; an error from inside a function stays what it is."""
    c = made("Contributions")
    cases = [
        (lambda: ld.attention_patterns(c, "a", components="L0.H0"), "'components': it is heads= here; it takes model"),
        (lambda: ld.effects("zoo/d1", heads=["L0.H0"]), "'heads': it is components= here"),
        (lambda: ld.contributions("zoo/d1", answers=[" a"]), "'answers': it is options= here"),
        (lambda: ld.contributions(model="zoo/d1", prompt="a"), "'prompt': it is prompts= here"),
        (lambda: ld.load_model(model_name="zoo/d1"), "'model_name': it is x= here"),
        (lambda: ld.depth.drop_plan("zoo/d1"), "lacks rows and budget; it takes model, rows"),
        (ld.task, "lacks name; it takes name, data, and by name limit"),
        (lambda: c.select(layers=3), "no argument 'layers': it is layer= here"),
        (lambda: ld.Task.from_frame([]), "lacks template and options; it takes frame, and by name.*label='answer'"),
        (lambda: ld.Task.from_frame([], "", []), "too many positional.*; it takes frame, and by name template"),
        (lambda: ld.Task(prompts=["a"]), r"Task\(\) lacks name.*ld.Task.from_frame\(frame, template="),
        (lambda: c.frame(3), "Contributions.frame.*takes no arguments"),
        (lambda: made("Decomposition").by_component(ci=True), "'ci': .*full=True.*; it takes full"),
        (lambda: ld.decompose(contributions=c), "'contributions': it is ensemble= here"),
        (lambda: ld.depth.drop_plan("zoo/d1", task="x"), "'task': it is rows= here"),
        (lambda: ld.load_model("zoo/d1").components(units="head"), "Model.components.*'units'; it takes unit"),
    ]
    for call, said in cases:
        with pytest.raises(TypeError, match=said):
            call()

    @_guesses.answering
    def inside(x):
        return x + "a"

    with pytest.raises(TypeError, match="unsupported operand"):
        inside(1)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_an_index_is_answered_with_the_rows_that_it_means(name):
    """The hint of `result["L0.attn"]` runs where there are rows of components; numpy still makes lists of results."""
    result = made(name)
    if hasattr(type(result), "__len__") or isinstance(result, ld.Contributions):
        return
    label = result.components[-1].label if isinstance(getattr(result, "components", None), tuple) else "x"
    with pytest.raises(TypeError, match="is not indexed by") as raised:
        result[label]
    with pytest.raises(TypeError, match="is not indexed by 0"):
        list(result)
    hint = str(raised.value).partition(": ")[2].rstrip(".")
    if found := re.fullmatch(r"(\.\w+\(\)) has it, with (\.query\(.*\))", hint):
        rows = eval(f"result{found[1]}{found[2]}", {"result": result})
        assert set(rows["component"]) == {label}
    assert np.array([result, result]).shape == (2,)


def test_another_maker_of_a_class_is_answered():
    with pytest.raises(AttributeError, match=r"from_csv': ld.Task.from_frame\(frame, template="):
        _ = ld.Task.from_csv
    assert not hasattr(ld.Task, "other")
    for name, meant in {"modles": "ld.zoo.models", "load": "ld.load_model"}.items():
        with pytest.raises(AttributeError, match=f"zoo has no '{name}': is {meant}"):
            getattr(ld.zoo, name)
    assert dir(ld.zoo) == sorted(ld.zoo.__all__)
    assert np.array([ld.task("sample/topic", limit=3)] * 2).shape == (2,)


def test_sums_over_layers_are_the_whole():
    """The embedding, which is in no layer, is not left out."""
    difference = made("LogitDifference")
    hint = _guesses.attribute(ld.Contributions, "by_layer", {})
    code = hint.removeprefix(".difference()").partition(" has it")[0]
    assert eval(f"d{code}.sum()", {"d": difference}) == pytest.approx(difference.frame()["difference"].sum())


def test_a_kind_of_figure_is_known_before_its_class_is_used():
    """In a fresh process, where nothing has imported `Decomposition` yet."""
    import subprocess
    import sys

    code = """
import layerdiv_tl as ld
try:
    ld.contributions("zoo/d1", [[1, 2, 3]] * 2, contrast=[7, 9]).plot(kind="roles")
except ld.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Decomposition, which ld.decompose(c, labels) makes" in done.stdout


def test_the_ends_of_an_interval_are_answered_with_their_columns():
    for result, name in ((made("Decomposition"), "bias_low"), (made("Effects"), "cost_high")):
        with pytest.raises(AttributeError, match=r"\.(by_component\(full=True\)|frame\(\)) has .*intervals"):
            getattr(result, name)


def test_contributions_know_their_labels_and_are_not_looped_over():
    c = made("Contributions")
    assert c.components[1].label in c
    assert c.components[1] in c
    assert "L99.mlp" not in c
    with pytest.raises(TypeError, match="not iterable"):
        list(c)
    assert np.array([c, c]).shape == (2,)
