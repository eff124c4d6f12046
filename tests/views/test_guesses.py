"""What guessed names are answered with is there, and says what it promises."""

import re
from functools import reduce

import pytest

import layerdiv_tl as ld
from layerdiv_tl import _guesses

from .figure_results import made

OWN = [(owner, name) for owner, names in _guesses._FOR.items() for name in names]


def places(text):
    """The public names in a hint: ld.depth.drop_plan → ["depth", "drop_plan"]."""
    return [match.split(".") for match in re.findall(r"\bld\.([a-z_A-Z]+(?:\.[a-z_A-Z]+)*)", text)]


@pytest.mark.parametrize("table", [_guesses.FUNCTIONS, _guesses.ATTRIBUTES, *_guesses._FOR.values()])
def test_functions_that_are_named_exist(table):
    for text in table.values():
        for path in places(text):
            assert callable(reduce(getattr, path, ld)), text


@pytest.mark.parametrize(("owner", "name"), OWN)
def test_a_hint_on_a_result_runs(owner, name):
    """The code in front of "has it", "lists", "sums", …, on a result of that class."""
    result = made(owner)
    assert owner in [cls.__name__ for cls in type(result).__mro__]
    with pytest.raises(AttributeError) as raised:
        getattr(result, name)
    hint = str(raised.value).partition(": ")[2]
    assert hint == _guesses.attribute(type(result), name, result.figures)
    if hint.startswith(".") and "folder" not in hint:
        code = re.match(r"[^ ]+(?: [a-z_]+=[^ ]+\)[^ ]*)*", hint)[0].rstrip(",")
        code = code.replace("[column]", f"[{result.frame().columns[1]!r}]")
        assert eval(f"result{code}", {"result": result}) is not None


def test_sums_over_layers_are_the_whole():
    """The embedding, which is in no layer, is not left out."""
    difference = made("LogitDifference")
    hint = _guesses.attribute(ld.Contributions, "by_layer", {})
    code = hint.removeprefix(".difference()").removesuffix(" has it")
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
