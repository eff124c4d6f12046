"""Every decomposition against its formula in loops, and as the law it is."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import layerdiv_tl as ld
from layerdiv_tl.ensemble.grouping import MOST_PAIRED, shares
from layerdiv_tl.ensemble.reweight import reweight
from tests.conftest import gpt2, llama
from tests.oracles import brute_force_ensemble as brute

# Squares of smaller numbers are subnormal: they have few digits, in the package and in its double.
numbers = st.floats(-8, 8, allow_nan=False, width=64).map(lambda x: x if abs(x) > 1e-140 else 0.0)
NEAR = {"rel": 1e-9, "abs": 1e-9}
NAMES = ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "constant"]


def near(value):
    return pytest.approx(value, **NEAR)


@st.composite
def ensembles(draw, least=1):
    """Members and a one-hot target: (u, labels, t)."""
    n, members, k = draw(st.integers(1, 3)), draw(st.integers(least, 6)), draw(st.integers(2, 4))
    u = draw(arrays(np.float64, (n, members, k), elements=numbers))
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    return u, labels, np.eye(k)[labels]


@st.composite
def grouped(draw):
    """An ensemble, and a group for each member, at least one with two."""
    u, labels, t = draw(ensembles(least=2))
    groups = draw(st.lists(st.integers(0, 2), min_size=u.shape[1], max_size=u.shape[1]))
    groups[1] = groups[0]
    return u, labels, t, groups


def distribution(t, seed):
    """A dense target that is a distribution."""
    return np.random.default_rng(seed).dirichlet(np.ones(t.shape[1]), size=len(t))


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.booleans())
def test_squared_error_in_loops(case, dense):
    """All numbers of Theorem 1, in the three gauges, per member and per module."""
    u, labels, t = case
    t = np.random.default_rng(4).normal(size=t.shape) if dense else t
    truth, names = brute.squared(u, t), NAMES[: u.shape[1]]
    d = ld.decompose(u, target=t, components=names) if dense else ld.decompose(u, labels, components=names)
    frame, modules = d.by_component(full=True), d.by_module().set_index("module")
    parts = brute.modules(u, t, [c.module for c in d.components])
    for gauge, suffix, half in (("raw", "", d), ("centered", "_centered", d.centered), ("shift", "_shift", d.shift)):
        expected = getattr(truth, gauge)
        assert (half.loss, half.bias, half.diversity) == near((expected.loss, expected.bias, expected.diversity))
        assert half.diversity_logit == near(expected.diversity_logit)
        assert frame["bias" + suffix].tolist() == near(expected.member_bias)
        assert frame["diversity" + suffix].tolist() == near(expected.member_diversity)
        assert frame["net" + suffix].tolist() == near(expected.member_net)
        logit = [u.shape[1] ** 2 * x for x in expected.member_diversity]
        assert frame["diversity_logit" + suffix].tolist() == near(logit)
        for name, module in parts[gauge].items():
            row = modules.loc[name]
            assert (row["bias" + suffix], row["diversity" + suffix]) == near((module.bias, module.diversity))
            assert row["bias_mean" + suffix] == near(module.mean_bias)
            assert row["net" + suffix] == near(module.net)
    # An example in which all members are zero has no coherence, and is left out of the mean.
    alone = [brute.squared(u[e : e + 1], t[e : e + 1]) for e in range(len(u))]
    for found, values in (
        (d.coherence, [x.coherence for x in alone]),
        (d.centered.coherence, [x.coherence_centered for x in alone]),
    ):
        known = [x for x in values if np.isfinite(x)]
        assert found == pytest.approx(np.mean(known) if known else np.nan, nan_ok=True, rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(ensembles())
@pytest.mark.full
def test_the_papers_form_in_loops(case):
    """Eq. 14: probabilities for loss and bias, logits for diversity; no identity, and it says so."""
    u, labels, t = case
    d, truth = ld.decompose(u, labels, loss="paper"), brute.paper_form(u, t)
    assert (d.loss, d.bias, d.diversity, d.mismatch) == near((truth.loss, truth.bias, truth.diversity, truth.mismatch))
    assert d.zero_bias == near(truth.uniform)
    assert d.gap is None
    frame = d.by_component(full=True)
    assert frame["bias"].tolist() == near(truth.member_bias)
    assert frame["diversity"].tolist() == near(truth.member_diversity)
    assert (frame["diversity_centered"] + frame["diversity_shift"]).tolist() == near(truth.member_diversity)
    assert "net" not in frame
    assert (frame.attrs["units"]["bias"], frame.attrs["units"]["diversity"]) == ("probability²", "logits²")
    squared = ld.decompose(u, labels)
    assert d.diversity == near(squared.diversity)


@pytest.mark.parametrize(("options", "uniform"), [(2, 0.25), (3, 2 / 9), (4, 0.1875)])
def test_the_uniform_baseline_of_the_paper(options, uniform):
    """A member that says nothing has the bias of the uniform predictor: 25.00, 22.22, 18.75 in the paper's units."""
    d = ld.decompose(np.zeros((1, 2, options)), [0], loss="paper")
    assert (d.loss, d.bias, d.zero_bias) == near((uniform, uniform, uniform))
    assert f"{100 * uniform:.4g}" in repr(d)


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.sampled_from([None, 1.0, 2.5]), st.booleans())
def test_cross_entropy_in_loops(case, tau, dense):
    """CE = mean CE − mean KL = H + Σ linear net, at the model's scale, the paper's, and another."""
    u, labels, t = case
    t = distribution(t, 3) if dense else t
    d = ld.decompose(u, None if dense else labels, t if dense else None, loss="cross_entropy", tau=tau)
    truth = brute.cross_entropy(u, t, tau)
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
@given(ensembles(), st.sampled_from([None, 3.0]))
def test_brier_in_loops(case, tau):
    """Brier is exact for the mean of the members' distributions, and at τ = 1 its bias is Eq. 14's."""
    u, labels, t = case
    d, truth = ld.decompose(u, labels, loss="brier", tau=tau), brute.brier(u, t, tau or 1.0)
    assert (d.loss, d.bias, d.diversity) == near((truth.loss, truth.bias, truth.diversity))
    assert (d.model_loss, d.combiner_gap) == near((truth.model_loss, truth.combiner_gap))
    assert d.gap < 1e-9
    if tau is None:
        assert d.bias == near(ld.decompose(u, labels, loss="paper").bias)


@settings(max_examples=40, deadline=None)
@given(ensembles())
def test_halving_members_changes_no_fair_number(case):
    """Mean CE, mean KL at τ = |L| and diversity_logit do not see how finely the members are cut."""
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
    for loss in ("cross_entropy", "brier"):
        before, after = (ld.decompose(x, labels, loss=loss) for x in (u, moved))
        np.testing.assert_allclose(after.biases, before.biases, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(after.diversities, before.diversities, rtol=1e-8, atol=1e-8)
    before, after = (ld.decompose(x, labels, loss="cross_entropy") for x in (u, moved))
    np.testing.assert_allclose(after.net_linear, before.net_linear, rtol=1e-8, atol=1e-8)
    before, after = (ld.decompose(x, labels) for x in (u, moved))
    np.testing.assert_allclose(after.centered.diversities, before.centered.diversities, rtol=1e-7, atol=1e-8)
    # Nobody should 'fix' this: the paper's raw numbers do move with what no softmax sees.
    assert np.abs(after.biases - before.biases).max() > 1e-6


@settings(max_examples=40, deadline=None)
@given(ensembles(), st.booleans())
@pytest.mark.full
def test_theorem_3_exact_and_as_printed(case, dense):
    """The exact summands make bias and diversity; the printed ones are off by (m̄ − m_t)² and the target's terms."""
    u, _, t = case
    t = np.random.default_rng(1).normal(size=t.shape) if dense else t
    d = ld.decompose(u, target=t)
    truth = brute.theorem3(u, t).average
    exact, printed = d.tradeoff(), d.tradeoff(paper=True)
    assert (exact["bias"].sum(), exact["diversity"].sum()) == near((d.bias, d.diversity))
    assert (printed["bias"].sum(), printed["diversity"].sum()) == near((truth.printed_bias, truth.printed_diversity))
    omega = exact["term"].str.contains("Ω")
    assert exact["bias"][omega].sum() == near(truth.omega)
    assert exact["diversity"][omega].sum() == near(truth.omega)
    shared = d.centered.tradeoff()
    assert shared["diversity"].sum() == near(truth.centered_diversity)
    assert printed.attrs["form"] != exact.attrs["form"]


@settings(max_examples=40, deadline=None)
@given(ensembles(), numbers)
@pytest.mark.full
def test_printed_theorem_3_for_a_constant_target(case, level):
    """With a target that is constant over options both printed terms are too large by (m̄ − m_t)²."""
    u, _, t = case
    d = ld.decompose(u, target=np.full_like(t, level))
    exact, printed = d.tradeoff(), d.tradeoff(paper=True)
    excess = ((u.mean((1, 2)) - level) ** 2).mean()
    for term in ("bias", "diversity"):
        assert printed[term].sum() - exact[term].sum() == near(excess)


@settings(max_examples=40, deadline=None)
@given(ensembles())
@pytest.mark.full
def test_theorem_2_exactly(case):
    """Diversity ≤ bias for the ensemble; for a module |√Div − √Bias| ≤ √MSE."""
    u, labels, t = case
    d = ld.decompose(u, labels, components=NAMES[: u.shape[1]])
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
    frame = ld.decompose(u, [0], components=["embed", "L0.mlp"]).bounds().set_index("module")
    assert frame["bias"]["mlp"] == 0
    assert frame["diversity"]["mlp"] == frame.attrs["loss"] > 0
    # The limit holds once the loss vanishes as well.
    for loss in (1.0, 1e-2, 1e-4):
        near_right = np.array([[[1.0, 0.0], [1 + loss, 0.0]]])
        d = ld.decompose(near_right, [0], components=["L0.mlp", "embed"])
        assert d.bounds().set_index("module")["diversity"]["mlp"] <= d.loss + 1e-15


@settings(max_examples=40, deadline=None)
@given(grouped())
@pytest.mark.full
def test_the_nested_cut_in_loops(case):
    """MSE = leaves' bias − within − between, raw, centered and shift; the same for cross-entropy."""
    u, labels, t, groups = case
    d = ld.decompose(u, labels)
    frame, truth, plain = d.nested(groups), brute.nested(u, t, groups), brute.plain_split(u, groups)
    assert frame["group"].tolist() == [str(g) for g in truth.raw.groups]
    coarse = np.stack([u[:, np.array(groups) == g].sum(1) for g in truth.raw.groups], 1)
    for gauge, suffix in (("raw", ""), ("centered", "_centered"), ("shift", "_shift")):
        expected = getattr(truth, gauge)
        assert frame["bias" + suffix].tolist() == near(expected.leaf_bias)
        assert frame["within" + suffix].tolist() == near(expected.within)
        assert frame["between" + suffix].mean() == near(expected.between)
        assert frame.attrs["loss" + suffix] == near(expected.loss)
        assert frame.attrs["gap" + suffix] < 1e-9
        split = getattr(plain, gauge)
        assert frame["within_unscaled" + suffix].tolist() == near(split.within)
        assert frame["between_unscaled" + suffix].tolist() == near(split.distance)
    between = ld.decompose(coarse, labels)
    assert frame["between"].mean() == near(between.diversity)
    weight = frame["members"] / frame["members"].sum()
    assert (weight * (frame["within_unscaled"] + frame["between_unscaled"])).sum() == near(d.diversity)

    ce, nats = ld.decompose(u, labels, loss="cross_entropy"), brute.nested_cross_entropy(u, t, groups)
    frame = ce.nested(groups)
    assert frame["bias"].tolist() == near(nats.leaf_bias)
    assert frame["within"].tolist() == near(nats.within)
    assert frame["between"].mean() == near(nats.between)
    assert frame["between"].mean() == near(ld.decompose(coarse, labels, loss="cross_entropy").diversity)
    assert frame.attrs["loss"] == near(ce.loss)
    assert frame.attrs["gap"] < 1e-9


@settings(max_examples=30, deadline=None)
@given(ensembles(least=2), st.integers(0, 2**31))
@pytest.mark.full
def test_prefix_ensembles_in_loops(case, seed):
    """by_depth on an array: the first member, the first two, …; for every loss."""
    u, labels, t = case
    truth = brute.prefixes(u, t, list(range(u.shape[1])), [])
    d = ld.decompose(u, labels)
    frame = d.by_depth()
    for column in ("loss", "bias", "diversity", "accuracy"):
        assert frame[column].tolist() == near([getattr(prefix, column) for prefix in truth])
    last = frame.iloc[-1]
    assert (last["loss"], last["bias"], last["diversity"], last["accuracy"]) == near(
        (d.loss, d.bias, d.diversity, d.accuracy)
    )
    paper = ld.decompose(u, labels, loss="paper").by_depth()
    expected = [brute.paper_form(prefix.u, t) for prefix in truth]
    for column in ("loss", "bias", "diversity"):
        assert paper[column].tolist() == near([getattr(prefix, column) for prefix in expected])
    nats = ld.decompose(u, labels, loss="cross_entropy").by_depth()
    expected = [brute.cross_entropy(prefix.u, t) for prefix in truth]
    for column in ("loss", "bias", "diversity", "entropy"):
        assert nats[column].tolist() == near([getattr(prefix, column) for prefix in expected])


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_junctions_of_a_model(make, unit):
    """Prefixes with the constant unscaled in each, frozen and with every junction's own norm."""
    model = make()
    c = ld.contributions(model, [[1, 2, 3], [4, 5], [6, 7, 8, 9]], [7, 30, 11], unit=unit)
    labels, t = [0, 2, 1], np.eye(3)[[0, 2, 1]]
    d = ld.decompose(c, labels)
    number = {junction: i for i, junction in enumerate(c.junctions)}
    places = [number.get(x.sublayer) for x in c.components]
    constant = [i for i, x in enumerate(c.components) if x.kind == "constant"]
    for norm, scale in (("frozen", None), ("recomputed", c.junction_scale)):
        frame, truth = d.by_depth(norm), brute.prefixes(c.values, t, places, constant, scale)
        assert frame["component"].tolist() == [x.label for x in c.junctions]
        for column in ("loss", "bias", "diversity", "accuracy"):
            assert frame[column].tolist() == near([getattr(prefix, column) for prefix in truth])
        assert frame.attrs["norm"] == norm
    assert frame["partial"].tolist() == [x.kind == "embed" and make is gpt2 for x in c.junctions]


def test_a_recomputed_prefix_is_the_models_own_early_answer():
    """The second source: the model's norm and unembedding on the stream in the middle."""
    import torch

    model, ids = gpt2(), [1, 2, 3, 4]
    c = ld.contributions(model, [ids], list(range(61)))
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        early = model.lm_head(model.transformer.ln_f(states[2][0, -1])).double().numpy()
    d = ld.decompose(c, [0], loss="cross_entropy")
    row = d.by_depth("recomputed").set_index("component").loc["L1.mlp"]
    expected = -torch.log_softmax(torch.tensor(early), 0)[0]
    assert row["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_selected_members_have_their_own_depth():
    """A sub-ensemble's prefixes are of what it holds, with rows where it grows."""
    c = ld.contributions(gpt2(), [[1, 2, 3], [4, 5]], [7, 30]).select(kind=["mlp", "constant"])
    frame = ld.decompose(c, [0, 1]).by_depth()
    assert frame["component"].tolist() == ["L0.mlp", "L1.mlp", "L2.mlp"]
    assert frame["members"].tolist() == [2, 3, 4]
    with pytest.raises(ld.InputError, match="depth"):
        ld.decompose(c.select(kind="constant"), [0, 1]).by_depth()


def test_a_named_constant_is_in_every_prefix():
    """An array whose members are named like a model's has the model's prefixes."""
    c = ld.contributions(gpt2(), [[1, 2, 3], [4, 5]], [7, 30])
    whole = ld.decompose(c, [0, 1]).by_depth()
    array = ld.decompose(c.values, [0, 1], components=[str(x) for x in c.components]).by_depth()
    for column in ("component", "members", "loss", "bias", "accuracy"):
        assert array[column].tolist() == whole[column].tolist()


def test_tables_before_they_are_averaged():
    """per_example holds what the frames average."""
    c = ld.contributions(gpt2(), [[1, 2, 3], [4, 5], [6, 7]], [7, 30])
    for loss in ("squared", "paper", "cross_entropy", "brier"):
        d = ld.decompose(c, [0, 1, 1], loss=loss)
        frames = {"components": d.by_component(full=True), "modules": d.by_module(), "depth": d.by_depth()}
        frames["depth_recomputed"] = d.by_depth("recomputed")
        for table, frame in frames.items():
            rows = d.per_example(table)
            for term, values in rows.terms.items():
                assert values.shape == (3, len(frame))
                np.testing.assert_allclose(values.mean(0), frame[term])
        assert d.per_example("totals").terms["loss"][:, 0].tolist() == d.losses.tolist()


@settings(max_examples=30, deadline=None)
@given(ensembles(least=2), st.sampled_from(["cosine", "distance", "disagreement"]))
@pytest.mark.full
def test_pairs_in_loops(case, by):
    """Distances, cosines and disagreeing votes of every pair; half the mean distance is the diversity."""
    u, labels, _ = case
    d, truth = ld.decompose(u, labels), brute.pairwise(u)
    frame = d.pairwise(by)
    count = u.shape[1]
    assert len(frame) == count * (count - 1) // 2
    number = {c.label: i for i, c in enumerate(d.components)}
    assert sorted(frame.attrs["order"]) == sorted(number)
    for row in frame.to_dict("records"):
        i, j = number[row["component"]], number[row["other"]]
        for column in ("distance", "distance_centered", "disagreement"):
            assert row[column] == near(getattr(truth, column)[i][j])
        for column in ("cosine", "cosine_centered"):
            assert row[column] == pytest.approx(getattr(truth, column)[i][j], rel=1e-6, abs=1e-6, nan_ok=True)
    assert frame["distance"].sum() / count**2 == near(d.diversity)
    assert frame["distance_centered"].sum() / count**2 == near(d.centered.diversity)


def test_duplicates_lie_side_by_side():
    """Members that say the same at another size or shift are neighbors in the order of cosines."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(50, 6, 3))
    u[:, 4] = 2 * u[:, 1] + 5
    frame = ld.decompose(u, rng.integers(0, 3, 50)).pairwise()
    order = frame.attrs["order"]
    assert abs(order.index("M1") - order.index("M4")) == 1
    pair = frame[(frame.component.isin(["M1", "M4"])) & frame.other.isin(["M1", "M4"])].iloc[0]
    assert pair["cosine_centered"] == pytest.approx(1)
    assert pair["cosine_centered_low"] == pytest.approx(1)
    assert pair["cosine"] < 0.9
    # Pairs stand in the clustered order, so that a matrix can be laid out from the frame.
    assert frame["component"].drop_duplicates().tolist() == order[:-1]


@pytest.mark.full
def test_intervals_are_of_the_mean_over_examples():
    """Every number has an interval that holds it; seven examples have none of a mean, and it is said."""
    rng = np.random.default_rng(0)
    u, labels = rng.normal(size=(40, 5, 3)), rng.integers(0, 3, 40)
    groups = [0, 0, 1, 1, 1]
    for loss in ("squared", "paper", "cross_entropy", "brier"):
        d = ld.decompose(u, labels, loss=loss)
        frames = [d.frame(), d.by_component(full=True), d.by_module(), d.by_depth(), d.pairwise()]
        if loss in ("squared", "cross_entropy"):
            frames.append(d.nested(groups))
        if loss == "squared":
            frames += [d.tradeoff(), d.bounds()]
        for frame in frames:
            lows = [column for column in frame if column.endswith("_low")]
            assert lows
            for low in lows:
                name = low.removesuffix("_low")
                known = frame[name].notna()
                assert (frame[low] <= frame[name] + 1e-9)[known].all()
                assert (frame[name] <= frame[name + "_high"] + 1e-9)[known].all()
                assert name in frame.attrs["units"] or name.startswith(("coherence", "accuracy"))
        few = ld.decompose(u[:7], labels[:7], loss=loss)
        for frame, low in (
            (few.by_component(full=True), "bias_low"),
            (few.pairwise(), "cosine_low"),
            (few.frame(), "loss_low"),
        ):
            assert frame[low].isna().all()
            assert frame.attrs["intervals"].startswith("no intervals: 7 rows")
        assert few.by_component(full=True)["accuracy_low"].notna().all()


def test_heads_add_to_their_attention_in_the_net():
    """On a model: the linear net of heads and their bias sums to that of their attention."""
    prompts, options, labels = [[1, 2, 3], [4, 5], [6]], [7, 30, 11], [0, 2, 1]
    whole = ld.decompose(ld.contributions(gpt2(), prompts, options), labels, loss="cross_entropy")
    heads = ld.decompose(ld.contributions(gpt2(), prompts, options, unit="head"), labels, loss="cross_entropy")
    assert heads.loss == pytest.approx(whole.loss, rel=1e-5)
    for i, component in enumerate(whole.components):
        parts = [j for j, c in enumerate(heads.components) if c.sublayer == component]
        np.testing.assert_allclose(heads.net_linear[:, parts].sum(1), whole.net_linear[:, i], rtol=1e-4, atol=1e-5)
    frame = heads.nested()
    assert frame["group"].tolist() == [c.label for c in whole.components]
    assert frame["between"].mean() == pytest.approx(whole.diversity, rel=1e-5)


@pytest.mark.parametrize("loss", ["squared", "paper", "cross_entropy", "brier"])
def test_saved_and_loaded(loss, tmp_path):
    """A decomposition of contributions comes back with all its tables."""
    c = ld.contributions(gpt2(), [[1, 2, 3], [4, 5]], [7, 30], unit="head")
    d = ld.decompose(c, [0, 1], loss=loss)
    again = ld.Decomposition.load(d.save(tmp_path / "d.safetensors"))
    assert type(again) is type(d)
    assert repr(again) == repr(d)
    assert again.by_component(full=True).equals(d.by_component(full=True))
    assert again.by_depth("recomputed").equals(d.by_depth("recomputed"))
    assert again.frame().attrs == d.frame().attrs
    again.by_module().to_parquet(tmp_path / "m.parquet")


@settings(max_examples=60, deadline=None)
@given(ensembles(), st.booleans())
def test_theorem_1_holds_in_raw_centered_and_shift(case, dense):
    """loss = bias − diversity, three times, and raw is centered + shift."""
    u, labels, t = case
    d = ld.decompose(u, target=5 * distribution(t, 1)) if dense else ld.decompose(u, labels)
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
    labeled = [name + end for name in ("accuracy", "auc", "logit_difference") for end in ("", "_low", "_high")]
    assert list(few) == [
        "component",
        "bias",
        "diversity",
        "net",
        *labeled,
        "kind",
        "module",
        "layer",
        "index",
        "repeat",
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
    u, labels, t = case
    d = ld.decompose(u, labels)
    assert ld.decompose(u, target=t).differences is None
    whole = np.mean([row[g] - np.delete(row, g).mean() for row, g in zip(u.sum(1), labels, strict=True)])
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


U, LABELS = np.random.default_rng(0).normal(size=(2, 3, 2)), [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 2}, "tau"),
        ({"loss": "paper", "tau": 2}, "tau"),
        ({"loss": "brier", "tau": 0}, "tau="),
        ({"loss": "brier", "tau": np.nan}, "tau="),
        ({"loss": "cross_entropy", "tau": "x"}, "tau="),
        ({"loss": "cross_entropy", "labels": None, "target": U[:, 0]}, "target"),
        ({"loss": "brier", "labels": None, "target": np.full((2, 2), 0.6)}, "target"),
        ({"components": ["embed"]}, "components"),
        ({"components": 5}, "components=5"),
        ({"components": [1, 2, 3]}, "components="),
        ({"ensemble": U[0], "components": ["embed"]}, "\\(3, 2\\)"),
        ({"ensemble": U * 1e120}, "1e\\+100"),
        ({"ensemble": np.ma.masked_less(U, 0)}, "masked"),
        ({"ensemble": np.zeros((2, 3, 2), "datetime64[s]")}, "datetime64"),
        ({"loss": ["squared"]}, "loss="),
        ({"loss": "brier", "tau": True}, "tau="),
        ({"loss": "brier", "tau": 10**400}, "tau="),
        ({"labels": b"ab"}, "labels="),
        ({"components": ["embed", "embed", "L0.mlp"]}, "components"),
        ({"components": ["embed", "what?", "L0.mlp"]}, "what"),
        ({"loss": "squared "}, "loss="),
        ({"labels": None}, "labels .* target"),
        ({"labels": [0]}, "labels"),
        ({"labels": 0}, "labels=0"),
        ({"labels": [0, 2]}, "labels holds 2"),
        ({"labels": [0, -1]}, "labels holds -1"),
        ({"labels": [0, True]}, "labels holds True"),
        ({"labels": [0, 0.5]}, "labels holds 0.5"),
        ({"labels": ["a", "b"]}, "labels.*'a'"),
        ({"labels": [0, 1], "target": np.zeros((2, 2))}, "labels .* target"),
        ({"labels": None, "target": np.zeros((2, 3))}, "target"),
        ({"labels": None, "target": np.full((2, 2), np.nan)}, "target"),
        ({"labels": [0, 1], "loss": "hinge"}, "loss='hinge'"),
        ({"ensemble": np.zeros((2, 3)), "labels": [0, 1]}, "\\(2, 3\\)"),
        ({"ensemble": np.zeros((2, 3, 1)), "labels": [0, 0]}, "option"),
        ({"ensemble": np.zeros((2, 0, 2)), "labels": [0, 0]}, "0 members"),
        ({"ensemble": np.zeros((0, 3, 2)), "labels": []}, "0 examples"),
        ({"ensemble": np.full((2, 3, 2), np.nan), "labels": [0, 0]}, "members"),
        ({"ensemble": np.zeros((2, 3, 2), complex), "labels": [0, 0]}, "complex"),
        ({"ensemble": [[[1.0, 2.0]], [[1.0]]], "labels": [0, 0]}, "ensemble"),
        ({"labels": None, "target": "x"}, "target"),
    ],
)
def test_bad_input_is_a_sentence(arguments, message):
    with pytest.raises(ld.InputError, match=message):
        ld.decompose(**{"ensemble": U, "labels": LABELS, **arguments})


def test_bad_questions_are_answered_in_a_sentence():
    d = ld.decompose(U, LABELS)
    with pytest.raises(ld.InputError, match="norm='warm'"):
        d.by_depth("warm")
    with pytest.raises(ld.InputError, match="norm="):
        d.by_depth("recomputed")
    with pytest.raises(ld.InputError, match="by='color'"):
        d.pairwise("color")
    with pytest.raises(ld.InputError, match="table='rows'"):
        d.per_example("rows")
    assert not hasattr(d, "entropy")
    with pytest.raises(ld.InputError, match="loss='cross_entropy'"):
        _ = d.entropy
    with pytest.raises(ld.InputError, match="centered"):
        _ = d.centered.shift
    with pytest.raises(ld.InputError, match="pairs"):
        ld.decompose(U[:, :1], LABELS).pairwise()
    with pytest.raises(ld.InputError, match=f"{MOST_PAIRED + 1} members"):
        ld.decompose(np.zeros((1, MOST_PAIRED + 1, 2)), [0]).pairwise()
    with pytest.raises(ld.InputError, match="unit="):
        d.nested()
    with pytest.raises(ld.InputError, match="groups"):
        d.nested(["a", "a"])
    for groups in (5, "aab", [[1], [1], [2]]):
        with pytest.raises(ld.InputError, match="groups"):
            d.nested(groups)
    assert len(d.nested(iter("aab"))) == 2
    assert len(d.nested(np.array([0, 0, 1]))) == 2
    for path in (None, ""):
        with pytest.raises(ld.InputError, match="path"):
            d.save(path)
    with pytest.raises(ld.InputError, match="tau"):
        ld.decompose(U, LABELS, loss="cross_entropy", tau=1).nested(["a", "a", "b"])
    for loss in ("paper", "brier"):
        other = ld.decompose(U, LABELS, loss=loss)
        for question in (other.nested, other.tradeoff, other.bounds):
            with pytest.raises(ld.InputError, match="loss="):
                question()
    c = ld.contributions(llama(), [[1, 2]], [7, 9])
    with pytest.raises(ld.InputError, match="components="):
        ld.decompose(c, [0], components=["embed"])


def test_a_share_lies_in_its_interval_also_where_terms_are_negative():
    """A term that may be negative has shares below 0 and above 1; what cannot be negative stays between them."""
    values = np.random.default_rng(0).normal([-0.5, 1.0, 1.5], 0.1, size=(40, 3))
    share, low, high = shares(values, values.sum(1))[:3]
    np.testing.assert_allclose(share, values.sum(0) / values.sum())
    assert share[0] < 0
    assert ((low <= share) & (share <= high)).all()
    _, low, high = shares(values**2, (values**2).sum(1))[:3]
    assert (low >= 0).all()
    assert (high <= 1).all()
