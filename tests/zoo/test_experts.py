"""The finding on the zoo's mixtures (assets/experts.py): its counts are right, the card says what its table has."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.zoo.trained import FOLDER

ASSETS = Path(__file__).parents[2] / "assets"


def imported(name):
    spec = importlib.util.spec_from_file_location(name, ASSETS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def finding():
    return imported("experts_table")


@pytest.fixture(scope="module")
def experts(finding):
    return imported("experts")


def test_information_of_known_distributions(experts):
    """A copy tells all, a coin nothing, what is known no more; a permutation within groups keeps the groups."""
    x, y = np.tile(np.arange(4), 8), np.repeat(np.arange(8), 4)
    assert experts.information(x, x) == pytest.approx(np.log(4))
    assert experts.information(x, y) == pytest.approx(0, abs=1e-12)
    assert experts.information(x, x // 2) == pytest.approx(np.log(2))
    assert experts.information(x, x // 2, x) == pytest.approx(0, abs=1e-12)
    assert experts.information(x, x, x // 2) == pytest.approx(np.log(2))
    drawn = experts.shuffled(x, y, np.random.default_rng(0))
    assert (np.sort(drawn.reshape(8, 4), 1) == np.arange(4)).all()
    assert (drawn != x).any()


def test_pairs_drawn_at_random_hold_four_sevenths(experts):
    """Of the diversity of eight members in four pairs, whatever the members are."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(8, 3)) * rng.gamma(1, size=(8, 1))
    draws = np.stack([u[rng.permutation(8)] for _ in range(4000)]).reshape(4000, 4, 2, 3)
    found = experts.within_pairs("", "", "", draws)
    assert found["low"] < 4 / 7 < found["high"]
    assert found["value"] == pytest.approx(4 / 7, abs=0.02)


@pytest.mark.full
def test_experts_by_hooks_are_those_of_the_unit(experts):
    """Two ways to the same numbers, on each mixture of the zoo."""
    for seed in experts.SEEDS:
        model = ld.load_model("zoo/moe" + seed)
        task = ld.task("synthetic/recall", limit=8).resolve(model)
        ids = [list(model.tokenizer(p)["input_ids"]) for p in task.prompts]
        seen = experts.look(model.root, ids, task.option_ids)
        assert experts.gap_to_library(model, task, seen) < 1e-6


@pytest.mark.full
def test_the_card_says_what_the_table_has(finding):
    """Every number of the paragraph on experts is one of the table or of what is derived from it."""
    card = (FOLDER.parent / "MODEL_CARD.md").read_text(encoding="utf-8")
    (paragraph,) = re.findall(r"- \*\*Experts\.\*\*(.*)", card)
    table = pd.read_csv(finding.TABLE)
    frames = (finding.routing(table), finding.ratios(table), finding.within(table))
    known = {f"{x:.2f}" for frame in frames for x in frame.select_dtypes("number").abs().to_numpy().ravel()}
    numbers = set(re.findall(r"\d\.\d\d", paragraph))
    assert len(numbers) > 10
    assert numbers <= known
