"""Component re-weighting: the minimum is the minimum, and what is held out says what it is worth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from layerdiv_tl.ensemble.decompose import decompose
from layerdiv_tl.ensemble.reweight import Reweighting, reweight
from layerdiv_tl.errors import InputError


def planted(n=120, members=6, options=3, noise=1.0, seed=0):
    """Members of which the first two know the label; the last says the same option always."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, options, n)
    u = noise * rng.normal(size=(n, members, options))
    u[np.arange(n), :2, gold] += 1.5
    u[:, -1, 0] += 4.0
    return u, gold


def cost(w, u, gold, l1, prior_weight):
    """The objective, written out."""
    logits = np.einsum("nmk,m->nk", u, w)
    return -log_softmax(logits, 1)[np.arange(len(u)), gold].mean() + l1 * np.abs(w - prior_weight).sum()


SETTINGS = st.sampled_from(
    [(0.01, 1.0, 1.0), (0.05, 0.0, 1.0), (0.02, 1.0, np.inf), (0.0, 1.0, 1.5), (0.003, 0.5, 2.0), (1e-4, 0.0, np.inf)]
)


@settings(max_examples=25, deadline=None)
@given(SETTINGS, st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 4), st.floats(-2, 2))
@pytest.mark.full
def test_no_general_solver_finds_less(setting, seed, members, options, magnitude):
    """SLSQP on up and down parts, and random feasible weights, stay above the minimum that is claimed."""
    l1, prior_weight, max_weight = setting
    rng = np.random.default_rng(seed)
    u = 10**magnitude * rng.normal(size=(12, members, options))
    gold = rng.integers(0, options, 12)
    found = reweight(u, gold, train=range(11), l1=l1, prior_weight=prior_weight, max_weight=max_weight)
    assert found.gap < 1e-2  # a bound; the rivals below show how far it is from the truth
    u, gold = u[:11], gold[:11]
    reached = cost(found.weights, u, gold, l1, prior_weight)
    bounds = [(0, max_weight - prior_weight)] * members + [(0, prior_weight)] * members

    def split(x):
        up, down = np.split(x, 2)
        w = prior_weight + up - down
        return cost(w, u, gold, 0.0, prior_weight) + l1 * x.sum()

    rival = minimize(split, np.full(2 * members, min(prior_weight, 0.3)), bounds=bounds, method="SLSQP")
    up, down = np.split(np.clip(rival.x, 0, np.array(bounds)[:, 1]), 2)
    assert cost(prior_weight + up - down, u, gold, l1, prior_weight) >= reached - found.gap - 1e-12
    top = min(max_weight, 5.0)
    for w in rng.uniform(0, top, size=(50, members)):
        assert cost(w, u, gold, l1, prior_weight) >= reached - found.gap - 1e-12
    assert (found.weights >= 0).all()
    assert (found.weights <= max_weight).all()


def test_a_problem_solved_by_hand():
    """One member, two options at distance 1, l1 = 0.1 prior_weight 0: log(1 + e^−w) + 0.1 w is least at ln 9."""
    u = np.zeros((10, 1, 2))
    u[:, 0, 1] = 1.0
    found = reweight(u, [1] * 10, train=5, l1=0.1, prior_weight=0.0, max_weight=np.inf)
    assert found.weights == pytest.approx([np.log(9)], abs=1e-4)
    clipped = reweight(u, [1] * 10, train=5, l1=0.1, prior_weight=0.0)
    assert clipped.weights.tolist() == [1.0]
    assert reweight(u, [1] * 10, train=5, l1=0.6, prior_weight=0.0).weights.tolist() == [0.0]


def test_many_members_of_very_different_sizes_are_solved():
    """Ill-conditioned, more members than rows, large shifts: the proof still closes."""
    rng = np.random.default_rng(0)
    scale = np.exp(2 * rng.normal(size=400))
    u = rng.normal(size=(60, 400, 4)) * scale[:, None] / 20 + 50
    found = reweight(u, rng.integers(0, 4, 60), train=40, max_weight=np.inf)
    assert found.gap < 1e-6
    assert np.isfinite(found.weights).all()


def test_a_large_price_gives_the_model_back_or_silence():
    u, gold = planted()
    assert reweight(u, gold, l1=100.0).weights.tolist() == [1.0] * 6
    assert reweight(u, gold, l1=100.0, prior_weight=0.0).weights.tolist() == [0.0] * 6


def test_the_loud_member_is_turned_down_and_the_held_out_rows_gain():
    u, gold = planted()
    found = reweight(u, gold, train=40)
    table = found.frame().set_index("predictor")
    assert found.weights[-1] < 0.5 < found.weights[:2].min()
    assert table.loc["reweighted", "accuracy_gain_low"] > 0
    assert table.loc["reweighted", "cross_entropy_gain_low"] > 0
    assert table.loc["model", "accuracy_gain"] == 0
    assert found.by_component()["component"].tolist() == [f"M{i}" for i in range(6)]


def test_the_table_is_made_of_held_out_rows_only():
    u, gold = planted(n=50)
    found = reweight(
        u, gold, train=range(20), components=["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "constant"]
    )
    held = slice(20, None)
    table = found.frame().set_index("predictor")
    d = decompose(u[held], gold[held], loss="cross_entropy")
    assert table.loc["model", "accuracy"] == pytest.approx(d.accuracy)
    assert table.loc["model", "cross_entropy"] == pytest.approx(d.loss)
    assert table.loc["uniform", "accuracy"] == pytest.approx(1 / 3)
    assert table.loc["uniform", "cross_entropy"] == pytest.approx(np.log(3))
    counts = np.bincount(gold[:20], minlength=3)
    assert table.loc["majority", "accuracy"] == pytest.approx((gold[held] == counts.argmax()).mean())
    assert found.accuracy == pytest.approx((found.apply(u)[held].argmax(1) == gold[held]).mean())
    assert table.loc["reweighted", "cross_entropy"] == pytest.approx(found.cross_entropy)
    assert (found.apply(u[held]) == found.after[held]).all()
    assert found.by_component()["component"].iloc[1] == "L0.attn"


@pytest.mark.full
def test_noise_does_not_beat_the_baselines():
    """Members that know nothing: over many draws, no gain in accuracy over chance on held-out rows."""
    gains = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        u, gold = rng.normal(size=(224, 20, 2)), rng.integers(0, 2, 224)
        gains.append(reweight(u, gold, train=24, seed=seed).accuracy - 0.5)
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert abs(np.mean(gains)) < 3 * error


def test_shifts_common_to_all_options_change_nothing():
    u, gold = planted()
    shift = 1e3 * np.random.default_rng(1).normal(size=(*u.shape[:2], 1))
    assert reweight(u + shift, gold).weights == pytest.approx(reweight(u, gold).weights, abs=1e-4)


def test_rows_are_drawn_by_the_seed():
    u, gold = planted()
    one, same, other = (reweight(u, gold, train=0.25, seed=seed) for seed in (1, 1, 2))
    assert one.is_train.sum() == 30
    assert (one.is_train == same.is_train).all()
    assert (one.weights == same.weights).all()
    assert (one.is_train != other.is_train).any()
    assert reweight(u, gold, train=[0, 5, 7]).is_train.nonzero()[0].tolist() == [0, 5, 7]


def test_a_saved_reweighting_is_the_same(tmp_path):
    u, gold = planted()
    found = reweight(u, gold)
    loaded = Reweighting.load(found.save(tmp_path / "r.safetensors"))
    assert loaded.frame().equals(found.frame())
    assert loaded.is_train.dtype == bool
    assert "held-out accuracy" in repr(loaded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 120}, "train=120"),
        ({"train": 0}, "train=0"),
        ({"train": 1.5}, "train=1.5"),
        ({"train": [0, 500]}, "train=500"),
        ({"train": [True, False]}, "train=True"),
        ({"train": range(120)}, "trained"),
        ({"l1": -1}, "l1=-1"),
        ({"l1": np.nan}, "l1=nan"),
        ({"max_weight": 0}, "max_weight=0"),
        ({"prior_weight": 2.0}, "prior_weight=2.0"),
        ({"l1": 0, "max_weight": np.inf}, "l1=0"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    u, gold = planted()
    with pytest.raises(InputError, match=message):
        reweight(u, gold, **options)


def test_labels_and_components_have_to_fit():
    u, gold = planted()
    with pytest.raises(InputError, match="labels"):
        reweight(u, None)
    with pytest.raises(InputError, match="labels holds 119"):
        reweight(u, gold[:-1])
    with pytest.raises(InputError, match="components"):
        reweight(u, gold).apply(u[:, :3])
