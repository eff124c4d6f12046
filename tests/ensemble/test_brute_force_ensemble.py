"""The ensemble oracle's own identities and a few numbers worked by hand, so that it can be trusted."""

import math

import numpy as np
import pytest
import torch

from tests.oracles import brute_force_ensemble as oracle

NAMES = ["embed", "attn", "mlp", "attn", "mlp", "mlp", "constant"]
N_MEMBERS = len(NAMES)


def case(seed, options=4, examples=3, members=N_MEMBERS, dense=False, shift=0.0):
    """Random members and a target: one-hot, or a dense distribution."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(examples, members, options)) * rng.uniform(0.2, 3, size=(1, members, 1))
    u = u + shift * rng.normal(size=(examples, members, 1))
    t = (
        rng.dirichlet(np.ones(options), size=examples)
        if dense
        else np.eye(options)[rng.integers(options, size=examples)]
    )
    return u, t


CASES = [
    dict(seed=0),
    dict(seed=1, options=2),
    dict(seed=2, options=5, dense=True),
    dict(seed=3, shift=40.0),
    dict(seed=4, options=3, examples=1, dense=True, shift=5.0),
]


@pytest.fixture(params=CASES, ids=lambda c: "-".join(f"{k}{v}" for k, v in c.items()))
def ut(request):
    return case(**request.param)


def halved(u):
    """Every member cut in two equal halves."""
    return np.repeat(u / 2, 2, axis=1)


def test_squared_worked_by_hand():
    s = oracle.squared(np.array([[[0.0, 0.0], [2.0, 0.0]]]), np.array([[1.0, 0.0]]))
    assert (s.raw.loss, s.raw.bias, s.raw.diversity) == (0, 0.5, 0.5)
    assert (s.centered.bias, s.centered.diversity) == (0.25, 0.25)
    assert (s.shift.bias, s.shift.diversity) == (0.25, 0.25)
    assert s.raw.diversity_logit == 2
    assert s.coherence == 1


def test_theorem_1_in_every_gauge(ut):
    s = oracle.squared(*ut)
    for gauge in oracle.GAUGES:
        terms = getattr(s, gauge)
        assert terms.bias - terms.diversity == pytest.approx(terms.loss, rel=1e-10, abs=1e-10)
        assert terms.member_bias.mean() == pytest.approx(terms.bias, rel=1e-12)
        assert terms.member_diversity.mean() == pytest.approx(terms.diversity, rel=1e-12)
        assert terms.member_net.mean() == pytest.approx(terms.loss, rel=1e-10, abs=1e-10)
        assert terms.diversity_logit == pytest.approx(ut[0].shape[1] ** 2 * terms.diversity, rel=1e-12)
    for field in ("loss", "bias", "diversity", "diversity_logit", "member_bias", "member_diversity"):
        parts = getattr(s.centered, field) + getattr(s.shift, field)
        np.testing.assert_allclose(getattr(s.raw, field), parts, rtol=1e-10)


def test_squared_agrees_with_numpy(ut):
    u, t = ut
    s = oracle.squared(u, t)
    u_bar = u.mean(axis=1, keepdims=True)
    assert s.raw.loss == pytest.approx(((t - u_bar[:, 0]) ** 2).mean())
    np.testing.assert_allclose(s.raw.member_bias, ((t[:, None] - u) ** 2).mean(axis=(0, 2)))
    np.testing.assert_allclose(s.centered.member_diversity, (u_bar - u).var(axis=2).mean(axis=0))
    np.testing.assert_allclose(s.shift.member_bias, ((t[:, None] - u).mean(axis=2) ** 2).mean(axis=0))
    assert s.coherence == pytest.approx(((u.sum(1) ** 2).sum(1) / (u**2).sum((1, 2))).mean())


def test_net_is_linear_in_the_member():
    u, t = case(5)
    u_bar = u.mean(axis=1)
    expected = [((t**2 - u_bar**2) - 2 * u[:, i] * (t - u_bar)).mean() for i in range(N_MEMBERS)]
    np.testing.assert_allclose(oracle.squared(u, t).raw.member_net, expected, rtol=1e-10)


def test_coherence_of_identical_and_orthogonal_and_cancelling_members():
    t = np.array([[1.0, 0.0, 0.0]])
    assert oracle.squared(np.ones((1, 5, 3)), t).coherence == pytest.approx(5)
    assert oracle.squared(np.eye(3)[None], t).coherence == pytest.approx(1)
    assert oracle.squared(np.array([[[1.0, 2, 3], [-1, -2, -3]]]), t).coherence == 0


def test_cutting_members_in_halves(ut):
    u, t = ut
    whole, cut = oracle.squared(u, t), oracle.squared(halved(u), t)
    for gauge in oracle.GAUGES:
        assert getattr(cut, gauge).diversity_logit == pytest.approx(getattr(whole, gauge).diversity_logit, rel=1e-10)
        assert 4 * getattr(cut, gauge).diversity == pytest.approx(getattr(whole, gauge).diversity, rel=1e-10)
    whole, cut = oracle.cross_entropy(u, t), oracle.cross_entropy(halved(u), t)
    for field in ("loss", "bias", "diversity", "entropy", "net_linear"):
        assert getattr(cut, field) == pytest.approx(getattr(whole, field), rel=1e-10)


def test_modules_add_up(ut):
    u, t = ut
    s = oracle.squared(u, t)
    parts = oracle.modules(u, t, NAMES)
    for gauge in oracle.GAUGES:
        terms = getattr(s, gauge)
        assert list(parts[gauge]) == ["embed", "attn", "mlp", "constant"]
        assert sum(m.bias for m in parts[gauge].values()) == pytest.approx(terms.bias, rel=1e-12)
        assert sum(m.diversity for m in parts[gauge].values()) == pytest.approx(terms.diversity, rel=1e-12)
        assert sum(m.net for m in parts[gauge].values()) == pytest.approx(terms.loss, rel=1e-9)
        assert parts[gauge]["mlp"].count == 3
        assert parts[gauge]["mlp"].mean_bias == pytest.approx(terms.member_bias[[2, 4, 5]].mean())


@pytest.mark.parametrize(("options", "uniform"), [(4, 0.1875), (3, 2 / 9), (2, 0.25)])
def test_paper_form(options, uniform):
    u, t = case(6, options=options)
    p = oracle.paper_form(u, t)
    assert p.uniform == pytest.approx(uniform)
    softmax = torch.softmax(torch.tensor(u), -1).numpy()
    assert p.bias == pytest.approx(((t[:, None] - softmax) ** 2).mean())
    assert p.bias == pytest.approx(oracle.brier(u, t).bias, rel=1e-12)
    assert p.diversity == pytest.approx(oracle.squared(u, t).raw.diversity, rel=1e-12)
    assert p.mismatch == pytest.approx(p.loss - p.bias + p.diversity)
    of_mean = torch.softmax(torch.tensor(u.mean(1)), -1).numpy()
    assert p.loss == pytest.approx(((t - of_mean) ** 2).mean())


@pytest.mark.parametrize("tau", [None, 1.0, 0.3, 25.0])
def test_cross_entropy(ut, tau):
    u, t = ut
    c = oracle.cross_entropy(u, t, tau)
    assert c.tau == (u.shape[1] if tau is None else tau)
    assert c.bias - c.diversity == pytest.approx(c.loss, rel=1e-9, abs=1e-9)
    assert c.member_net.mean() == pytest.approx(c.loss, rel=1e-9, abs=1e-9)
    assert c.entropy + c.member_net_linear.sum() == pytest.approx(c.loss, rel=1e-9, abs=1e-9)
    assert c.net_linear == pytest.approx(c.member_net_linear.sum(), rel=1e-9, abs=1e-9)
    # per member: net_i = H(p) + |L| times its share of the linear net
    np.testing.assert_allclose(c.member_net, c.entropy + u.shape[1] * c.member_net_linear, rtol=1e-8, atol=1e-8)
    assert (c.member_diversity >= -1e-12).all()
    ours, target = torch.tensor(c.tau * u.mean(axis=1)), torch.tensor(t)
    assert c.loss == pytest.approx(float(torch.nn.functional.cross_entropy(ours, target)), rel=1e-9, abs=1e-12)
    log_q = torch.log_softmax(torch.tensor(c.tau * u[:, 1]), -1)
    kl = torch.nn.functional.kl_div(log_q, torch.log_softmax(ours, -1), log_target=True, reduction="batchmean")
    assert c.member_diversity[1] == pytest.approx(float(kl), rel=1e-9, abs=1e-12)


def test_cross_entropy_is_gauge_free():
    u, t = case(7)
    shifted = u + np.arange(u.shape[0] * u.shape[1]).reshape(u.shape[0], u.shape[1], 1)
    one, other = oracle.cross_entropy(u, t), oracle.cross_entropy(shifted, t)
    np.testing.assert_allclose(one.member_bias, other.member_bias, rtol=1e-9)
    np.testing.assert_allclose(one.member_diversity, other.member_diversity, rtol=1e-9)
    np.testing.assert_allclose(one.member_net_linear, other.member_net_linear, rtol=1e-9, atol=1e-10)


def test_cross_entropy_survives_extreme_logits_and_refuses_what_is_no_distribution():
    u, t = case(8)
    assert math.isfinite(oracle.cross_entropy(1e4 * u, t).diversity)
    with pytest.raises(ValueError, match="distribution"):
        oracle.cross_entropy(u, 2 * t)


@pytest.mark.parametrize("tau", [1.0, 7.0])
def test_brier(ut, tau):
    u, t = ut
    b = oracle.brier(u, t, tau)
    assert b.bias - b.diversity == pytest.approx(b.loss, rel=1e-10, abs=1e-12)
    assert b.member_bias.mean() - b.member_diversity.mean() == pytest.approx(b.loss, rel=1e-10, abs=1e-12)
    assert b.combiner_gap == b.model_loss - b.loss
    model = torch.softmax(torch.tensor(u.sum(1)), -1).numpy()
    assert b.model_loss == pytest.approx(((t - model) ** 2).mean())


def test_theorem_3_exact_equals_squared(ut):
    u, t = ut
    s, theorem = oracle.squared(u, t), oracle.theorem3(u, t).average
    assert theorem.bias == pytest.approx(s.raw.bias, rel=1e-10)
    assert theorem.diversity == pytest.approx(s.raw.diversity, rel=1e-10)
    assert theorem.spread_of_means == pytest.approx(s.shift.diversity, rel=1e-10)
    assert theorem.centered_diversity == pytest.approx(s.centered.diversity, rel=1e-10)
    assert theorem.printed_diversity - theorem.diversity == pytest.approx(theorem.gap_squared, rel=1e-8)


def test_theorem_3_as_printed_for_a_target_constant_over_options():
    u, _ = case(9)
    t = np.repeat([[0.5], [-2.0], [3.0]], 4, axis=1)
    result = oracle.theorem3(u, t)
    for x in [*result.examples, result.average]:
        assert x.printed_bias - x.bias == pytest.approx(x.gap_squared)
        assert x.printed_diversity - x.diversity == pytest.approx(x.gap_squared)
    assert result.average.printed_bias - result.average.printed_diversity == pytest.approx(
        oracle.squared(u, t).raw.loss
    )


def test_theorem_3_for_a_single_member():
    u, t = case(10, members=1)
    assert oracle.theorem3(u, t).average.diversity == pytest.approx(0, abs=1e-12)
    assert oracle.theorem3(u, t).average.bias == pytest.approx(oracle.squared(u, t).raw.loss)


def test_theorem_2_bounds(ut):
    u, t = ut
    result = oracle.theorem2_bounds(u, t, NAMES)
    assert result.diversity <= result.bias
    assert result.root_loss == pytest.approx(math.sqrt(oracle.squared(u, t).raw.loss))
    parts = oracle.modules(u, t, NAMES)["raw"]
    for name, bound in result.modules.items():
        assert bound.mean_bias == pytest.approx(parts[name].mean_bias)
        assert bound.mean_diversity == pytest.approx(parts[name].mean_diversity)
        assert bound.left <= bound.right + 1e-12
        assert (bound.example_left <= bound.example_right + 1e-12).all()


def test_theorem_2_module_diversity_tends_to_the_loss_not_to_zero():
    u, t = case(11)
    u[:, [2, 4, 5]] = t[:, None]  # the MLPs' bias is 0
    bound = oracle.theorem2_bounds(u, t, NAMES).modules["mlp"]
    assert bound.mean_bias == 0
    assert bound.mean_diversity == pytest.approx(oracle.squared(u, t).raw.loss)


def test_prefixes():
    u, t = case(12)
    junctions = [0, 1, 1, 2, 2, 3, None]  # two members share a junction; the constant has none
    scale = np.random.default_rng(0).uniform(0.3, 1.2, size=(3, 4))
    scale[:, -1] = 1
    for chosen in (None, scale):
        result = oracle.prefixes(u, t, junctions, [6], chosen)
        assert [p.members for p in result] == [[0, 6], [0, 1, 2, 6], [0, 1, 2, 3, 4, 6], list(range(7))]
        for p in result:
            assert p.bias - p.diversity == pytest.approx(p.loss, rel=1e-10)
            assert p.accuracy == pytest.approx((p.u.sum(1).argmax(1) == t.argmax(1)).mean())
            np.testing.assert_array_equal(p.u[:, -1], u[:, 6])  # the constant, unscaled
        assert result[-1].bias == pytest.approx(oracle.squared(u, t).raw.bias)
    np.testing.assert_allclose(result[1].u[:, 0], u[:, 0] / scale[:, [1]])
    assert oracle.prefixes(u, t, junctions, [6])[1].bias == oracle.squared(u[:, [0, 1, 2, 6]], t).raw.bias
    assert oracle.prefixes(u, case(12, dense=True)[1], junctions, [6])[0].accuracy is None


def test_nested(ut):
    u, t = ut
    result = oracle.nested(u, t, NAMES)
    sums = np.stack([u[:, [i for i, n in enumerate(NAMES) if n == g]].sum(1) for g in result.raw.groups], axis=1)
    coarse = oracle.squared(sums, t)
    for gauge in oracle.GAUGES:
        x = getattr(result, gauge)
        assert x.mean_leaf_bias - x.mean_within - x.between == pytest.approx(x.loss, rel=1e-9, abs=1e-9)
        assert x.between == pytest.approx(getattr(coarse, gauge).diversity, rel=1e-10)
        assert x.loss == pytest.approx(getattr(coarse, gauge).loss, rel=1e-10)
        np.testing.assert_allclose(x.group_bias, getattr(coarse, gauge).member_bias, rtol=1e-10)
        np.testing.assert_allclose(x.leaf_bias - x.within, x.group_bias, rtol=1e-7, atol=1e-9)
        assert x.within[0] == 0  # a group of one


def test_nested_cross_entropy(ut):
    u, t = ut
    x = oracle.nested_cross_entropy(u, t, NAMES)
    sums = np.stack([u[:, [i for i, n in enumerate(NAMES) if n == g]].sum(1) for g in x.groups], axis=1)
    coarse = oracle.cross_entropy(sums, t)
    assert x.mean_leaf_bias - x.mean_within - x.between == pytest.approx(x.loss, rel=1e-9, abs=1e-9)
    assert x.loss == pytest.approx(coarse.loss, rel=1e-9, abs=1e-12)
    assert x.loss == pytest.approx(oracle.cross_entropy(u, t).loss, rel=1e-9, abs=1e-12)
    assert x.between == pytest.approx(coarse.diversity, rel=1e-10)
    np.testing.assert_allclose(x.group_bias, coarse.member_bias, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(x.leaf_bias - x.within, x.group_bias, rtol=1e-7, atol=1e-9)


def test_plain_split(ut):
    u, t = ut
    result, whole = oracle.plain_split(u, NAMES), oracle.squared(u, t)
    for gauge in oracle.GAUGES:
        x = getattr(result, gauge)
        assert x.within_total + x.between == pytest.approx(x.total, rel=1e-10)
        assert x.total == pytest.approx(getattr(whole, gauge).diversity, rel=1e-12)
        assert x.weight.sum() == pytest.approx(1)


def test_pairwise(ut):
    u, t = ut
    p = oracle.pairwise(u)
    centered = u - u.mean(-1, keepdims=True)
    for x, distance, cosine in ((u, p.distance, p.cosine), (centered, p.distance_centered, p.cosine_centered)):
        flat = x.transpose(1, 0, 2).reshape(u.shape[1], -1)
        norm = np.linalg.norm(flat, axis=1)
        np.testing.assert_allclose(cosine, flat @ flat.T / np.outer(norm, norm), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(distance, ((flat[:, None] - flat[None]) ** 2).mean(-1), rtol=1e-9)
    # half the mean squared distance over ordered pairs is the diversity
    assert p.distance.mean() / 2 == pytest.approx(oracle.squared(u, t).raw.diversity, rel=1e-10)
    votes = u.argmax(-1)
    assert p.disagreement[0, 1] == pytest.approx((votes[:, 0] != votes[:, 1]).mean())


def test_whole_vocabulary():
    u, _ = case(13, options=30, examples=4, shift=3.0)  # [position, member, vocab]
    tokens = [3, 29, 0, None]
    w = oracle.whole_vocabulary(torch.tensor(u.transpose(1, 0, 2)), tokens, [6])
    assert w.n_members == N_MEMBERS
    for s, token in enumerate(tokens):
        t = np.eye(30)[[token if token is not None else 0]]
        sq, ce = oracle.squared(u[[s]], t), oracle.cross_entropy(u[[s]], t)
        np.testing.assert_allclose(w.member_kl[:, s], ce.member_diversity, rtol=1e-9, atol=1e-12)
        assert w.entropy[s] == pytest.approx(ce.entropy)
        for gauge in oracle.GAUGES:
            terms, ours = getattr(sq, gauge), getattr(w, gauge)
            np.testing.assert_allclose(ours.diversity[:, s], terms.member_diversity, rtol=1e-9)
            if token is None:
                assert np.isnan(ours.bias[:, s]).all()
                assert np.isnan(ours.net[:, s]).all()
            else:
                np.testing.assert_allclose(ours.bias[:, s], terms.member_bias, rtol=1e-9)
                np.testing.assert_allclose(ours.net[:, s], terms.member_net, rtol=1e-7, atol=1e-9)
                assert ours.net[:, s].mean() == pytest.approx(ours.loss[s], rel=1e-8, abs=1e-10)
        if token is None:
            assert math.isnan(w.cross_entropy[s])
            assert np.isnan(w.target_logit[:, s]).all()
            assert np.isnan(w.member_cross_entropy[:, s]).all()
        else:
            assert w.cross_entropy[s] == pytest.approx(ce.loss)
            np.testing.assert_allclose(w.target_logit[:, s], u[s, :, token])
            np.testing.assert_allclose(w.member_cross_entropy[:, s], ce.member_bias, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(w.member_net_linear[:, s], ce.member_net_linear, rtol=1e-9, atol=1e-9)
            mean_net = (w.member_cross_entropy - w.member_kl)[:, s].mean()
            assert mean_net == pytest.approx(w.cross_entropy[s], rel=1e-8)


def test_whole_vocabulary_leaves_out_a_constant_that_is_zero():
    u, _ = case(14, options=20, examples=2)
    values = u.transpose(1, 0, 2).copy()
    values[-1] = 0
    with_zero, without = (
        oracle.whole_vocabulary(values, [1, None], [6]),
        oracle.whole_vocabulary(values[:-1], [1, None]),
    )
    assert with_zero.n_members == N_MEMBERS - 1
    np.testing.assert_array_equal(with_zero.raw.diversity[:-1], without.raw.diversity)
    np.testing.assert_array_equal(with_zero.member_kl[:-1], without.member_kl)
    assert np.isnan(with_zero.raw.diversity[-1]).all()
