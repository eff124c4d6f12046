"""Theorem 1 and its gauges, as laws on random ensembles and against loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import layerdiv_tl as ld
from layerdiv_tl.ensemble.reweight import reweight
from tests.conftest import llama

numbers = st.floats(-50, 50, allow_nan=False, width=64)


@st.composite
def ensembles(draw):
    """Members, a one-hot or a dense target, as arguments of decompose."""
    n, members, k = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(2, 5))
    u = draw(arrays(np.float64, (n, members, k), elements=numbers))
    if draw(st.booleans()):
        return u, {"labels": draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))}
    return u, {"target": draw(arrays(np.float64, (n, k), elements=numbers))}


@settings(max_examples=60, deadline=None)
@given(ensembles())
def test_theorem_1_holds_in_raw_centered_and_shift(case):
    """loss = bias − diversity, three times, and raw is centered + shift."""
    u, truth = case
    d = ld.decompose(u, **truth)
    for part in (d, d.centered, d.shift):
        assert part.loss == pytest.approx(part.bias - part.diversity, rel=1e-9, abs=1e-9)
        if part.loss > 1e-20:  # below, all three are what rounding leaves
            assert part.gap < 1e-9
    for term in ("loss", "bias", "diversity", "zero_bias"):
        assert getattr(d, term) == pytest.approx(
            getattr(d.centered, term) + getattr(d.shift, term), rel=1e-12, abs=1e-12
        )


def test_coherence_is_known_at_its_corners():
    """1 for orthogonal members, |L| for identical ones, 0 for two that cancel."""
    orthogonal = np.eye(3)[None]
    identical = np.ones((1, 3, 3))
    cancelling = np.array([[[1.0, 2.0], [-1.0, -2.0]]])
    assert ld.decompose(orthogonal, [0]).coherence == pytest.approx(1)
    assert ld.decompose(identical, [0]).coherence == pytest.approx(3)
    assert ld.decompose(cancelling, [0]).coherence == 0
    assert np.isnan(ld.decompose(np.zeros((1, 2, 2)), [0]).coherence)


def test_real_contributions_by_module_and_component():
    """On a model: modules are the paper's, shares sum to 1, a label may be an option's text."""
    c = ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30], unit="head")
    by_index, by_text = ld.decompose(c, [0, 1, 0]), ld.decompose(c, ["token 7", "token 30", "token 7"])
    assert by_index.loss == by_text.loss
    modules = by_index.by_module()
    assert modules.module.tolist() == ["embedding", "attention", "mlp"]
    assert modules.members.tolist() == [1, 12, 3]
    assert modules.member_share.sum() == pytest.approx(1)
    assert modules.diversity_share_centered.sum() == pytest.approx(1)
    frame = by_index.by_component(full=True)
    assert frame.component.tolist() == [x.label for x in c.components]
    assert frame.net.to_numpy() == pytest.approx((frame.bias - frame.diversity).to_numpy())
    assert frame.attrs["units"]["bias"] == "logits²"
    assert by_index.identity_gap == c.identity_gap
    few = by_index.by_component()
    labeled = [name + end for name in ("accuracy", "logit_difference") for end in ("", "_low", "_high")]
    assert list(few) == [
        "component",
        "kind",
        "module",
        "layer",
        "index",
        "repeat",
        "bias",
        "diversity",
        "net",
        *labeled,
    ]
    pd.testing.assert_frame_equal(few, frame[list(few)])
    assert set(few.attrs["units"]) == {"bias", "diversity", "net", *labeled}
    own = (c.values.argmax(2) == np.array([0, 1, 0])[:, None]).mean(0)
    np.testing.assert_array_equal(frame.accuracy, own)
    assert by_index.accuracy == (c.logits.argmax(1) == [0, 1, 0]).mean()


@given(ensembles())
@settings(deadline=None, max_examples=30)
@pytest.mark.full
def test_logit_differences_add_up_in_every_table(case):
    u, arguments = case
    d = ld.decompose(u, **arguments)
    if "target" in arguments:
        assert d.differences is None
        return
    logits = u.sum(1)
    whole = np.mean([row[g] - np.delete(row, g).mean() for row, g in zip(logits, arguments["labels"], strict=True)])
    column = "logit_difference"
    for table in (d.by_component(), d.by_module()):
        assert table[column].sum() == pytest.approx(whole, abs=1e-9)
    assert d.frame()[column][0] == pytest.approx(whole, abs=1e-9)
    assert d.by_depth()[column].iloc[-1] == pytest.approx(whole, abs=1e-9)
    assert d.frame().attrs["units"][column] == "logits"


def test_a_tie_is_a_share_of_an_answer():
    """A member that says nothing is right once in K, whatever the label."""
    for gold in (0, 1, 2):
        frame = ld.decompose(np.array([[[0.0, 0, 0], [1, 1, 0]]]), [gold]).by_component(full=True)
        assert frame.accuracy.tolist() == pytest.approx([1 / 3, 0.5 if gold < 2 else 0])


@pytest.mark.full
def test_ties_count_in_part_in_every_number():
    """Accuracy is the mean over all orders in which equal options may be preferred: the second source draws them all.

    Equal is what rounding alone tells apart (0.1 + 0.2 and 0.3), and nothing else is: 1e-6 logits are a difference.
    """
    rng = np.random.default_rng(3)
    u, gold = rng.integers(-1, 2, (60, 3, 3)).astype(float), np.arange(60) % 3
    u[:2], u[2], u[3] = 0.0, [[0.1, 0.3, 0], [0.2, 0, 0], [0, 0, 0]], [[1e-6, 0, 0], [0, 0, 0], [0, 0, 0]]

    def by_orders(scores):
        orders = [np.array(order) for order in itertools.permutations(range(3))]
        return np.mean([order[scores.round(9)[..., order].argmax(-1)] == gold for order in orders], 0)

    whole = by_orders(u.sum(1))
    assert set(whole.round(6)) == {0, 0.333333, 0.5, 1}
    d = ld.decompose(u, gold)
    assert d.accuracy == pytest.approx(whole.mean())
    for frame in (d.frame(), d.by_depth()[::-1], ld.decompose(u, gold, loss="brier").frame()):
        assert frame["accuracy"].iloc[0] == pytest.approx(whole.mean())
    own = [by_orders(u[:, i]).mean() for i in range(3)]
    np.testing.assert_allclose(d.by_component()["accuracy"], own)
    held = reweight(u, gold, train=range(30)).frame().set_index("predictor")["accuracy"]
    assert held["model"] == pytest.approx(whole[30:].mean())
    bounds = ld.information(u, gold, estimator="vote", n_permutations=0, n_resamples=0).bounds()
    assert bounds.errors["ensemble"][0] == pytest.approx(1 - whole.mean())
    silent = ld.decompose(np.zeros((8, 3, 2)), [0] * 8)
    assert silent.accuracy == silent.frame()["accuracy"][0] == 0.5


def test_a_text_that_names_two_options_is_refused():
    """Two tokens may read alike; then a label must be an index."""
    import dataclasses

    c = ld.contributions(llama(), [[1, 2]], [7, 9])
    twins = dataclasses.replace(c, options=("the", "the"))
    with pytest.raises(ld.InputError, match="labels.*'the'"):
        ld.decompose(twins, ["the"])
    # The space around a text tells two options apart, and is left out where it need not.
    spaced = dataclasses.replace(c, options=(" the", "the"))
    assert [ld.decompose(spaced, [text]).target.argmax() for text in spaced.options] == [0, 1]
    assert ld.decompose(dataclasses.replace(c, options=("a", "the")), [" the"]).target.argmax() == 1
    with pytest.raises(ld.InputError, match="labels.*none of its options"):
        ld.decompose(spaced, ["the "])


def test_a_dense_target_has_no_accuracy():
    d = ld.decompose(np.zeros((2, 3, 2)), target=np.zeros((2, 2)))
    with pytest.raises(ld.InputError, match="accuracy"):
        _ = d.accuracy
    assert "accuracy" not in d.by_component(full=True)
