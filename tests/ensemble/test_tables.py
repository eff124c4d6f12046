"""The tables of a decomposition: groups, prefixes along depth, pairs, modules, and their intervals."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from layerdiv_tl.ensemble.grouping import shares
from tests.conftest import gpt2, llama
from tests.ensemble.cases import ensembles, gauges, grouped, near
from tests.oracles import brute_force_ensemble as brute


@settings(max_examples=40, deadline=None)
@given(grouped(), gauges)
@pytest.mark.full
def test_the_nested_cut_in_loops(case, gauge):
    """MSE = leaves' bias − within − between, in every gauge; the same for cross-entropy."""
    u, labels, t, groups = case
    d = ld.decompose(u, labels, gauge=gauge)
    frame, truth = d.nested(groups), getattr(brute.nested(u, t, groups), gauge)
    assert frame["group"].tolist() == [str(g) for g in dict.fromkeys(groups)]
    coarse = np.stack([u[:, np.array(groups) == g].sum(1) for g in dict.fromkeys(groups)], 1)
    assert frame["bias"].tolist() == near(truth.leaf_bias)
    assert frame["within"].tolist() == near(truth.within)
    assert frame["between"].mean() == near(truth.between)
    assert frame["between"].mean() == near(ld.decompose(coarse, labels, gauge=gauge).diversity)
    assert frame.attrs["loss"] == near(truth.loss)
    assert frame.attrs["gap"] < 1e-9

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
    d = ld.decompose(u, labels, gauge="raw")
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
    """Prefixes with the constant in each."""
    model = make()
    c = ld.contributions(model, [[1, 2, 3], [4, 5], [6, 7, 8, 9]], [7, 30, 11], unit=unit)
    labels, t = [0, 2, 1], np.eye(3)[[0, 2, 1]]
    d = ld.decompose(c, labels, gauge="raw")
    number = {junction: i for i, junction in enumerate(c.junctions)}
    places = [number.get(x.sublayer) for x in c.components]
    constant = [i for i, x in enumerate(c.components) if x.kind == "constant"]
    frame, truth = d.by_depth(), brute.prefixes(c.values, t, places, constant)
    assert frame["component"].tolist() == [x.label for x in c.junctions]
    for column in ("loss", "bias", "diversity", "accuracy"):
        assert frame[column].tolist() == near([getattr(prefix, column) for prefix in truth])
    assert frame["partial"].tolist() == [x.kind == "embed" and make is gpt2 for x in c.junctions]


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


@settings(max_examples=30, deadline=None)
@given(ensembles(least=2), st.sampled_from(["raw", "centered"]))
@pytest.mark.full
def test_pairs_in_loops(case, gauge):
    """Distances and cosines of every pair; half the mean distance is the diversity."""
    u, labels, _ = case
    d, truth, end = ld.decompose(u, labels, gauge=gauge), brute.pairwise(u), "_centered" * (gauge == "centered")
    frame = d.pairwise()
    count = u.shape[1]
    assert len(frame) == count * (count - 1) // 2
    number = {c.label: i for i, c in enumerate(d.components)}
    assert sorted(frame.attrs["order"]) == sorted(number)
    for row in frame.to_dict("records"):
        i, j = number[row["component"]], number[row["other"]]
        assert row["distance"] == near(getattr(truth, f"distance{end}")[i][j])
        cosine = getattr(truth, f"cosine{end}")[i][j]
        assert row["cosine"] == pytest.approx(cosine, rel=1e-6, abs=1e-6, nan_ok=True)
    assert frame["distance"].sum() / count**2 == near(d.diversity)


def test_duplicates_lie_side_by_side():
    """Members that say the same at another size or shift are neighbors in the order of cosines."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(50, 6, 3))
    u[:, 4] = 2 * u[:, 1] + 5
    frame = ld.decompose(u, rng.integers(0, 3, 50)).pairwise()
    order = frame.attrs["order"]
    assert abs(order.index("M1") - order.index("M4")) == 1
    pair = frame[(frame.component == "M1") & (frame.other == "M4")].iloc[0]
    assert pair["cosine"] == pytest.approx(1)
    assert pair["cosine_low"] == pytest.approx(1)


@pytest.mark.full
def test_intervals_are_of_the_mean_over_examples():
    """Every number has an interval that holds it; seven examples have none of a mean, and it is said."""
    rng = np.random.default_rng(0)
    u, labels = rng.normal(size=(40, 5, 3)), rng.integers(0, 3, 40)
    groups = [0, 0, 1, 1, 1]
    for loss in ("squared", "paper", "cross_entropy"):
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
                assert name in frame.attrs["units"] or name == "coherence"
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


def test_real_contributions_by_module_and_component():
    """On a model: modules are the paper's, shares sum to 1, a label may be an option's text."""
    c = ld.contributions(llama(), [[1, 2, 3], [4, 5], [6]], [7, 30], unit="head")
    by_index, by_text = ld.decompose(c, [0, 1, 0]), ld.decompose(c, ["token 7", "token 30", "token 7"])
    assert by_index.loss == by_text.loss
    modules = by_index.by_module()
    assert modules.module.tolist() == ["embedding", "attention", "mlp"]
    assert modules.members.tolist() == [1, 12, 3]
    assert modules.member_share.sum() == pytest.approx(1)
    assert modules.diversity_share.sum() == pytest.approx(1)
    frame = by_index.by_component(full=True)
    assert frame.component.tolist() == [x.label for x in c.components]
    assert frame.net.to_numpy() == pytest.approx((frame.bias - frame.diversity).to_numpy())
    assert frame.attrs["units"]["bias"] == "logits²"
    assert by_index.identity_gap == c.identity_gap
    few = by_index.by_component()
    labeled = [name + end for name in ("accuracy", "auc", "logit_difference") for end in ("", "_low", "_high")]
    numbers = ["bias", "diversity", "net", *labeled, "constant_share"]
    assert list(few) == ["component", *numbers, "kind", "module", "layer", "index", "repeat"]
    pd.testing.assert_frame_equal(few, frame[list(few)])
    assert set(few.attrs["units"]) == set(numbers)
    own = (c.values.argmax(2) == np.array([0, 1, 0])[:, None]).mean(0)
    np.testing.assert_array_equal(frame.accuracy, own)
    assert by_index.accuracy == (c.logits.argmax(1) == [0, 1, 0]).mean()


@given(ensembles())
@settings(deadline=None, max_examples=30)
@pytest.mark.full
def test_logit_differences_add_up_in_every_table(case):
    u, labels, _ = case
    d = ld.decompose(u, labels)
    whole = np.mean([row[g] - np.delete(row, g).mean() for row, g in zip(u.sum(1), labels, strict=True)])
    column = "logit_difference"
    for table in (d.by_component(), d.by_module()):
        assert table[column].sum() == pytest.approx(whole, abs=1e-9)
    assert d.frame()[column][0] == pytest.approx(whole, abs=1e-9)
    assert d.by_depth()[column].iloc[-1] == pytest.approx(whole, abs=1e-9)
    assert d.frame().attrs["units"][column] == "logits"


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
