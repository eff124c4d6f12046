"""Every decomposition against its formula in loops, and as the law it is."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from layerdiv_tl.ensemble.grouping import MOST_PAIRED
from tests.conftest import llama
from tests.ensemble.cases import GAUGES, NAMES, distribution, ensembles, gauges, near
from tests.oracles import brute_force_ensemble as brute


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.booleans(), gauges)
def test_squared_error_in_loops(case, dense, gauge):
    """All numbers of Theorem 1, in the three gauges, per member and per module."""
    u, labels, t = case
    t = np.random.default_rng(4).normal(size=t.shape) if dense else t
    truth, names = getattr(brute.squared(u, t), gauge), NAMES[: u.shape[1]]
    given = {"target": t} if dense else {"labels": labels}
    d = ld.decompose(u, components=names, gauge=gauge, **given)
    frame, modules = d.by_component(full=True), d.by_module().set_index("module")
    assert (d.loss, d.bias, d.diversity, d.diversity_logit) == near(
        (truth.loss, truth.bias, truth.diversity, truth.diversity_logit)
    )
    assert frame["bias"].tolist() == near(truth.member_bias)
    assert frame["diversity"].tolist() == near(truth.member_diversity)
    assert frame["net"].tolist() == near(truth.member_net)
    for name, module in brute.modules(u, t, [c.module for c in d.components])[gauge].items():
        row = modules.loc[name]
        assert (row["bias"], row["diversity"], row["net"]) == near((module.bias, module.diversity, module.net))


@settings(max_examples=60, deadline=None)
@given(ensembles(), st.booleans())
def test_theorem_1_holds_in_every_gauge(case, dense):
    """loss = bias − diversity, three times, and raw is centered + shift."""
    u, labels, t = case
    given = {"target": 5 * distribution(t, 1)} if dense else {"labels": labels}
    by_gauge = {gauge: ld.decompose(u, gauge=gauge, **given) for gauge in ("raw", "centered", "shift")}
    for d in by_gauge.values():
        assert d.loss == pytest.approx(d.bias - d.diversity, rel=1e-9, abs=1e-9)
        if d.loss > 1e-20:  # below, all three are what rounding leaves
            assert d.gap < 1e-9
    for term in ("loss", "bias", "diversity", "zero_bias"):
        raw, centered, shift = (getattr(d, term) for d in by_gauge.values())
        assert raw == pytest.approx(centered + shift, rel=1e-12, abs=1e-12)


def test_centered_is_the_default_and_raw_values_are_kept():
    """A gauge is chosen when decomposing; accuracies and logit differences have none."""
    u = np.random.default_rng(0).normal(size=(20, 4, 3))
    frames = {gauge: ld.decompose(u, [0, 1] * 10, gauge=gauge).by_component(full=True) for gauge in GAUGES}
    d = ld.decompose(u, [0, 1] * 10)
    pd.testing.assert_frame_equal(d.by_component(full=True), frames["centered"])
    assert d.gauge == d.frame()["gauge"][0] == "centered"
    np.testing.assert_array_equal(d.values, u)
    for column in ("accuracy", "auc", "logit_difference", "constant_share"):
        for frame in frames.values():
            np.testing.assert_array_equal(frame[column], frames["raw"][column])
    with pytest.raises(ld.InputError, match="gauge='shift'"):
        ld.decompose(u, [0, 1] * 10, loss="cross_entropy", gauge="shift")


@pytest.mark.parametrize("gauge", ["centered", "raw"])
def test_constant_share_is_what_a_mean_over_rows_explains(gauge):
    """Plain numpy; a planted constant has 1, a planted reader of balanced labels 0, half of each one half."""
    rng = np.random.default_rng(0)
    u, labels = rng.normal(size=(40, 5, 3)) + rng.normal(size=(5, 3)), rng.integers(0, 3, 40)
    found = ld.decompose(u, labels, gauge=gauge).by_component()["constant_share"]
    for i in range(5):
        x = u.mean(1) - u[:, i]
        x = x - x.mean(1, keepdims=True)
        assert found[i] == pytest.approx((x.mean(0) ** 2).mean() / (x**2).mean(), rel=1e-12)
    # The last member makes the mean zero in every row.
    reads, labels = np.array([[1.0, -1.0], [-1.0, 1.0]] * 10), [0, 1] * 10
    constant = np.tile([3.0, -3.0], (20, 1))
    members = [constant, reads, reads + constant / 3, np.zeros((20, 2))]
    planted = np.stack([*members, -np.sum(members, 0)], 1)
    shares = ld.decompose(planted, labels, gauge=gauge).by_component()["constant_share"]
    assert shares[:3].tolist() == near([1.0, 0.0, 0.5])
    assert np.isnan(shares[3])  # no diversity
    assert "constant_share" not in ld.decompose(planted, labels, loss="cross_entropy").by_component()


def test_guessing_is_the_share_of_the_largest_class():
    """At 70:30 a member that always writes the same is not above guessing."""
    labels = np.array([0] * 70 + [1] * 30)
    u = np.zeros((100, 2, 2))
    u[:, 0, 0] = 5.0
    u[:, 1] = 9 * np.eye(2)[labels]
    d = ld.decompose(u, labels)
    accuracy = d.by_component()["accuracy"]
    assert d.chance == d.frame()["chance"][0] == accuracy[0] == 0.7 < accuracy[1]
    assert ld.decompose(u, target=u[:, 1]).chance is None
    # Options named in columns of a frame are right in all rows or none: their place is no class.
    assert ld.decompose(u, [0] * 100).chance == 0.5


def test_labels_are_those_of_the_contributions():
    """Labels given, or a target, come first."""
    c = ld.contributions(llama(), [[1, 2, 3], [4, 5]], [7, 30])
    known = SimpleNamespace(**{f.name: getattr(c, f.name) for f in dataclasses.fields(c)} | {"labels": [0, 1]})
    assert ld.decompose(known).gold.tolist() == [0, 1]
    assert ld.decompose(known, [1, 1]).gold.tolist() == [1, 1]
    assert ld.decompose(known, target=c.logits).gold is None


@settings(max_examples=40, deadline=None)
@given(ensembles())
@pytest.mark.full
def test_the_papers_form_in_loops(case):
    """Eq. 14: probabilities for loss and bias, logits for diversity; no identity, and it says so."""
    u, labels, t = case
    d, truth = ld.decompose(u, labels, loss="paper"), brute.paper_form(u, t)
    assert (d.loss, d.bias, d.diversity) == near((truth.loss, truth.bias, truth.diversity))
    assert d.zero_bias == near(truth.uniform)
    assert d.gap is None
    frame = d.by_component(full=True)
    assert frame["bias"].tolist() == near(truth.member_bias)
    assert frame["diversity"].tolist() == near(truth.member_diversity)
    assert "net" not in frame
    assert (frame.attrs["units"]["bias"], frame.attrs["units"]["diversity"]) == ("probability²", "logits²")
    assert d.diversity == near(ld.decompose(u, labels, gauge="raw").diversity)


@pytest.mark.parametrize(("options", "uniform"), [(2, 0.25), (3, 2 / 9), (4, 0.1875)])
def test_the_uniform_baseline_of_the_paper(options, uniform):
    """A member that says nothing has the bias of the uniform predictor: 25.00, 22.22, 18.75 in the paper's units."""
    d = ld.decompose(np.zeros((1, 2, options)), [0], loss="paper")
    assert (d.loss, d.bias, d.zero_bias) == near((uniform, uniform, uniform))


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.booleans())
def test_cross_entropy_in_loops(case, dense):
    """CE = mean CE − mean KL = H + Σ linear net."""
    u, labels, t = case
    t = distribution(t, 3) if dense else t
    given = {"target": t} if dense else {"labels": labels}
    d = ld.decompose(u, loss="cross_entropy", **given)
    truth = brute.cross_entropy(u, t)
    found = (d.loss, d.bias, d.diversity, d.entropy, d.net_linear.mean(0).sum())
    assert found == near((truth.loss, truth.bias, truth.diversity, truth.entropy, truth.net_linear))
    assert d.loss == near(d.bias - d.diversity)
    assert d.gap < 1e-9
    frame = d.by_component(full=True)
    for column, expected in (
        ("bias", truth.member_bias),
        ("diversity", truth.member_diversity),
        ("net", truth.member_net),
        ("net_linear", truth.member_net_linear),
    ):
        assert frame[column].tolist() == near(list(expected))
    assert d.by_module()["net_linear"].sum() + d.entropy == near(d.loss)
    if not dense:
        assert d.zero_bias == near(np.log(u.shape[2]))
    assert np.isfinite(ld.decompose(1e4 * u, target=t, loss="cross_entropy").diversity)


@settings(max_examples=40, deadline=None)
@given(ensembles())
def test_halving_members_changes_no_fair_number(case):
    """Mean CE, mean KL at temperature |L| and diversity_logit do not see how finely the members are cut."""
    u, labels, _ = case
    halves = np.repeat(u / 2, 2, axis=1)
    whole, cut = (ld.decompose(x, labels, loss="cross_entropy") for x in (u, halves))
    assert (cut.loss, cut.bias, cut.diversity) == near((whole.loss, whole.bias, whole.diversity))
    whole, cut = (ld.decompose(x, labels) for x in (u, halves))
    assert (cut.diversity_logit, 4 * cut.diversity) == near((whole.diversity_logit, whole.diversity))


@settings(max_examples=30, deadline=None)
@given(ensembles(), st.integers(0, 2**31))
@pytest.mark.full
def test_softmax_losses_do_not_see_a_shift(case, seed):
    """A constant added to all options of a member moves raw numbers, and only these."""
    u, labels, _ = case
    moved = u + np.random.default_rng(seed).normal(scale=5, size=(*u.shape[:2], 1))
    before, after = (ld.decompose(x, labels, loss="cross_entropy") for x in (u, moved))
    for name in ("bias", "diversity", "net_linear"):
        np.testing.assert_allclose(after.terms[name], before.terms[name], rtol=1e-8, atol=1e-8)
    before, after = (ld.decompose(x, labels) for x in (u, moved))
    np.testing.assert_allclose(after.terms["diversity"], before.terms["diversity"], rtol=1e-7, atol=1e-8)
    # Nobody should 'fix' this: the paper's raw numbers do move with what no softmax sees.
    before, after = (ld.decompose(x, labels, gauge="raw") for x in (u, moved))
    assert np.abs(after.terms["bias"] - before.terms["bias"]).max() > 1e-6


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.booleans())
@pytest.mark.full
def test_theorem_3(case, dense):
    """The summands make bias and diversity; Ω is in both, and centered only v̄ is shared."""
    u, _, t = case
    t = np.random.default_rng(1).normal(size=t.shape) if dense else t
    d, centered = ld.decompose(u, target=t, gauge="raw"), ld.decompose(u, target=t)
    truth, exact = brute.theorem3(u, t).average, d.tradeoff()
    assert (exact["bias"].sum(), exact["diversity"].sum()) == near((d.bias, d.diversity))
    omega = exact["term"].str.contains("Ω")
    assert exact["bias"][omega].sum() == near(truth.omega)
    assert exact["diversity"][omega].sum() == near(truth.omega)
    assert centered.tradeoff()["diversity"].sum() == near(truth.centered_diversity)


@settings(max_examples=40, deadline=None)
@given(ensembles())
@pytest.mark.full
def test_theorem_2_exactly(case):
    """Diversity ≤ bias for the ensemble; for a module |√Div − √Bias| ≤ √MSE."""
    u, labels, t = case
    d = ld.decompose(u, labels, components=NAMES[: u.shape[1]], gauge="raw")
    frame = d.bounds().set_index("module")
    truth = brute.theorem2_bounds(u, t, [c.module for c in d.components])
    slack = 1e-9 * (1 + d.bias)
    assert d.diversity <= d.bias + slack
    assert (frame["lowest"] <= frame["diversity"] + slack).all()
    assert (frame["diversity"] <= frame["highest"] + slack).all()
    for name, module in truth.modules.items():
        assert (frame["bias"][name], frame["diversity"][name]) == near((module.mean_bias, module.mean_diversity))


def test_a_module_without_bias_may_keep_its_diversity():
    """Against the printed module limit: MLP bias 0, MLP diversity the whole loss."""
    u = np.array([[[4.0, 4.0], [1.0, 0.0]]])
    frame = ld.decompose(u, [0], components=["embed", "L0.mlp"], gauge="raw").bounds().set_index("module")
    assert frame["bias"]["mlp"] == 0
    assert frame["diversity"]["mlp"] == frame.attrs["loss"] > 0
    # The limit holds once the loss vanishes as well.
    for loss in (1.0, 1e-2, 1e-4):
        near_right = np.array([[[1.0, 0.0], [1 + loss, 0.0]]])
        d = ld.decompose(near_right, [0], components=["L0.mlp", "embed"], gauge="raw")
        assert d.bounds().set_index("module")["diversity"]["mlp"] <= d.loss + 1e-15


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
    for frame in (d.frame(), d.by_depth()[::-1], ld.decompose(u, gold, loss="paper").frame()):
        assert frame["accuracy"].iloc[0] == pytest.approx(whole.mean())
    own = [by_orders(u[:, i]).mean() for i in range(3)]
    np.testing.assert_allclose(d.by_component()["accuracy"], own)
    silent = ld.decompose(np.zeros((8, 3, 2)), [0] * 8)
    assert silent.accuracy == silent.frame()["accuracy"][0] == 0.5


def test_a_text_that_names_two_options_is_refused():
    """Two tokens may read alike; then a label must be an index."""
    c = ld.contributions(llama(), [[1, 2]], [7, 9])
    twins = dataclasses.replace(c, options=("the", "the"))
    with pytest.raises(ld.InputError, match="labels.*'the'"):
        ld.decompose(twins, ["the"])
    # A text is an option exactly as that is written, also where only one is like it.
    spaced = dataclasses.replace(c, options=(" the", "the"))
    assert [ld.decompose(spaced, [text]).target.argmax() for text in spaced.options] == [0, 1]
    for options, label in ((spaced.options, "the "), (("a", "the"), " the"), ((" a", " the"), "the")):
        with pytest.raises(ld.InputError, match="labels.*none of its options"):
            ld.decompose(dataclasses.replace(c, options=options), [label])


def test_a_dense_target_has_no_accuracy():
    d = ld.decompose(np.zeros((2, 3, 2)), target=np.zeros((2, 2)))
    with pytest.raises(ld.InputError, match="accuracy"):
        _ = d.accuracy
    assert "accuracy" not in d.by_component(full=True)


U, LABELS = np.random.default_rng(0).normal(size=(2, 3, 2)), [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "cross_entropy", "labels": None, "target": U[:, 0]}, "target"),
        ({"loss": "cross_entropy", "labels": None, "target": np.full((2, 2), 0.6)}, "target"),
        ({"components": ["embed"]}, "components"),
        ({"components": ["embed", "embed", "L0.mlp"]}, "components"),
        ({"ensemble": U * 1e120}, "overflow"),
        ({"ensemble": np.ma.masked_less(U, 0)}, "masked"),
        ({"ensemble": np.zeros((2, 3, 2), complex)}, "complex"),
        ({"ensemble": np.full((2, 3, 2), np.nan)}, "finite"),
        ({"ensemble": np.zeros((2, 3, 1)), "labels": [0, 0]}, "option"),
        ({"ensemble": np.zeros((2, 0, 2)), "labels": [0, 0]}, "empty"),
        ({"labels": None}, "labels .* target"),
        ({"labels": [0]}, "labels"),
        ({"labels": [0, 2]}, "labels holds 2"),
        ({"labels": [0, -1]}, "labels holds -1"),
        ({"labels": [0, 0.5]}, "labels holds 0.5"),
        ({"labels": ["a", "b"]}, "labels.*'a'"),
        ({"target": np.zeros((2, 2))}, "labels .* target"),
        ({"labels": None, "target": np.zeros((2, 1))}, "target"),
        ({"labels": None, "target": np.full((2, 2), np.nan)}, "target"),
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"gauge": "middle"}, "gauge='middle'"),
    ],
)
def test_what_would_give_a_wrong_number_is_refused(arguments, message):
    with pytest.raises(ld.InputError, match=message):
        ld.decompose(**{"ensemble": U, "labels": LABELS, **arguments})


def test_a_table_that_a_loss_or_an_ensemble_lacks_is_refused():
    d = ld.decompose(U, LABELS)
    assert not hasattr(d, "entropy")
    with pytest.raises(ld.InputError, match="pairs"):
        ld.decompose(U[:, :1], LABELS).pairwise()
    with pytest.raises(ld.InputError, match=f"{MOST_PAIRED + 1} members"):
        ld.decompose(np.zeros((1, MOST_PAIRED + 1, 2)), [0]).pairwise()
    with pytest.raises(ld.InputError, match="unit="):
        d.nested()
    with pytest.raises(ld.InputError, match="groups"):
        d.nested(["a", "a"])
    paper = ld.decompose(U, LABELS, loss="paper")
    for question in (paper.nested, paper.tradeoff, paper.bounds):
        with pytest.raises(ld.InputError, match="loss="):
            question()


def test_parts_of_log_likelihoods_are_in_nats_everywhere():
    c = ld.contributions("zoo/d2", [[1, 2, 3], [4, 5]], [[[7, 9], [11]]])
    d = ld.decompose(c, [0, 1])
    assert "in nats²" in repr(d)
    frames = [d.by_component(), d.by_module(), d.by_depth(), d.pairwise()]
    units = {unit for frame in frames for unit in frame.attrs["units"].values()}
    assert "nats²" in units
    assert not [unit for unit in units if "logit" in unit]


def test_coherence_is_known_at_its_corners():
    """1 for orthogonal members, their number for identical ones, 0 where they cancel, none where all are zero."""
    orthogonal, identical = np.array([[[3.0, 0, 0], [0, 4.0, 0]]]), np.ones((1, 3, 2)) * [1, 2]
    cancelling = np.array([[[1.0, 2.0], [-1.0, -2.0]]])
    for u, coherence in ((orthogonal, 1), (identical, 3), (cancelling, 0), (np.zeros((1, 2, 2)), np.nan)):
        assert ld.decompose(u, [0], gauge="raw").coherence == pytest.approx(coherence, nan_ok=True)


def test_the_papers_equation_fails_by_its_mismatch():
    """Eq. 14 mixes probabilities and logits: loss − (bias − diversity) is not zero."""
    u = np.random.default_rng(0).normal(size=(6, 5, 3))
    d = ld.decompose(u, np.arange(6) % 3, loss="paper")
    assert d.gap is None
    assert d.mismatch == pytest.approx(d.loss - (d.bias - d.diversity))
    assert d.diversity_logit == pytest.approx(25 * d.diversity)
