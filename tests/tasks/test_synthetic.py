"""Generated tasks: the answer follows from the text; votes: every number follows from the law."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from layerdiv_tl.tasks.synthetic import GENERATORS
from tests.oracles.noisy_votes import votes


def gold(t):
    return [t.options[label].strip() for label in t.labels]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.integers(0, 99))
def test_k_hop_answers_follow_the_pointers(hops, seed):
    """Walking the stated pointers from the start gives the gold answer, and no shorter walk does."""
    t = ld.task(f"synthetic/k_hop:hops={hops},seed={seed}", limit=16)
    for prompt, answer in zip(t.prompts, gold(t), strict=True):
        after = dict(re.findall(r"(\w) points to (\w)\.", prompt))
        here, steps = re.search(r"Start at (\w) and go (\d+) step", prompt).groups()
        walk = [here]
        for _ in range(int(steps)):
            walk.append(after[walk[-1]])
        assert int(steps) == hops
        assert walk[-1] == answer
        assert answer not in walk[:-1]


def test_recall_answers_stand_beside_their_key():
    t = ld.task("synthetic/recall:pairs=5,values=6", limit=30)
    for prompt, answer in zip(t.prompts, gold(t), strict=True):
        *pairs, asked = prompt.split("\n")
        assert dict(pair.split(": ") for pair in pairs)[asked.removesuffix(":")] == answer


@settings(deadline=None)
@given(st.integers(2, 10))
def test_modular_answers_are_sums(modulus):
    t = ld.task(f"synthetic/modular:modulus={modulus},largest=20", limit=20)
    for prompt, answer in zip(t.prompts, gold(t), strict=True):
        a, b, m = map(int, re.fullmatch(r"\((\d+) \+ (\d+)\) mod (\d+)=", prompt).groups())
        assert max(a, b) <= 20
        assert (a + b) % m == int(answer)


@pytest.mark.parametrize("name", GENERATORS)
def test_classes_take_turns_and_rows_do_not_depend_on_their_number(name):
    t, longer, other = ld.task(name, limit=10), ld.task(name, limit=40), ld.task(f"{name}:seed=1", limit=10)
    assert longer.prompts[:10] == t.prompts
    assert longer.labels.tolist() == [row % len(t.options) for row in range(40)]
    assert other.prompts != t.prompts
    assert (other.name, ld.task(f"{name}:seed=0").name, len(ld.task(name))) == (f"{name}:seed=1", name, 256)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic/k_hops", "'synthetic/k_hops': .*synthetic/k_hop, synthetic/recall"),
        ("synthetic/k_hop:hop=2", "'hop': .*hops, entities, seed"),
        ("synthetic/k_hop:hops=8", "hops=8 .* 1 to 7"),
        ("synthetic/modular:modulus=11", "modulus=11 .* 2 to 10"),
        ("synthetic/recall:seed=-1", "seed=-1"),
    ],
)
def test_bad_parameters(name, message):
    with pytest.raises(ld.InputError, match=message):
        ld.task(name)


LAWS = [(5, 2, 0.7, 0.0), (4, 3, 0.6, 0.0), (4, 3, 0.6, 0.3), (3, 2, 1.0, 0.0), (3, 4, 0.25, 0.5), (1, 2, 0.8, 0.2)]


@pytest.mark.full
@pytest.mark.parametrize(("members", "options", "right", "shared"), LAWS)
def test_drawn_votes_measure_what_the_law_says(members, options, right, shared):
    """Bias, diversity and loss of 40,000 drawn rows lie within five standard errors of the closed form."""
    v = votes(40_000, members=members, options=options, right=right, shared=shared)
    for name in ("loss", "bias", "diversity"):
        rows = [getattr(ld.decompose(part, some), name) for part, some in _hundredths(v)]
        assert abs(np.mean(rows) - getattr(v, name)) <= 5 * np.std(rows) / 10 + 1e-12


def _hundredths(v):
    return zip(np.split(v.values, 100), np.split(v.labels, 100), strict=True)


@pytest.mark.parametrize(("members", "options", "right", "shared"), LAWS)
def test_information_equals_the_sum_over_all_votes(members, options, right, shared):
    """A second route: the joint law of label and votes written out, entropies from it."""
    v = votes(1, members=members, options=options, right=right, shared=shared)
    wrong = (1 - right) / (options - 1)
    one = np.full((options, options), wrong)
    np.fill_diagonal(one, right)
    joint = np.array(
        [
            [
                ((1 - shared) * np.prod(one[y, list(said)]) + shared * (len(set(said)) == 1) * one[y, said[0]])
                / options
                for said in product(range(options), repeat=members)
            ]
            for y in range(options)
        ]
    )

    def entropy(p):
        return -sum(x * np.log2(x) for x in np.ravel(p) if x > 0)

    h_y = np.log2(options)
    single = np.log2(options) - (entropy(one / options) - h_y)
    assert joint.sum() == pytest.approx(1)
    assert v.joint == pytest.approx(h_y + entropy(joint.sum(0)) - entropy(joint), abs=1e-9)
    assert v.relevancy == pytest.approx(members * single, abs=1e-9)
    assert v.redundancy == pytest.approx(members * np.log2(options) - entropy(joint.sum(0)), abs=1e-9)
    assert v.joint == pytest.approx(v.relevancy + v.conditional_redundancy - v.redundancy, abs=1e-9)
    assert v.information_diversity == pytest.approx(v.joint - v.relevancy, abs=1e-9)
    if shared == 0:
        assert v.conditional_redundancy == pytest.approx(0, abs=1e-9)


def test_votes_of_many_members_and_of_a_prefix():
    """129 members, as in the paper, still have their entropies; the first rows do not depend on the number of rows."""
    v = votes(50, members=129, right=0.6)
    assert 0.5 < v.joint < 1
    np.testing.assert_array_equal(votes(20, members=129, right=0.6).votes, v.votes[:20])
    np.testing.assert_array_equal(votes(20, members=129, right=0.6).labels, v.labels[:20])
