"""The ensemble oracle against numpy, torch and numbers worked by hand; its laws are tested with the package's."""

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


def test_squared_worked_by_hand():
    s = oracle.squared(np.array([[[0.0, 0.0], [2.0, 0.0]]]), np.array([[1.0, 0.0]]))
    assert (s.raw.loss, s.raw.bias, s.raw.diversity) == (0, 0.5, 0.5)
    assert (s.centered.bias, s.centered.diversity) == (0.25, 0.25)
    assert (s.shift.bias, s.shift.diversity) == (0.25, 0.25)
    assert s.raw.diversity_logit == 2
    assert s.coherence == 1


def test_squared_agrees_with_numpy(ut):
    u, t = ut
    s = oracle.squared(u, t)
    u_bar = u.mean(axis=1, keepdims=True)
    assert s.raw.loss == pytest.approx(((t - u_bar[:, 0]) ** 2).mean())
    np.testing.assert_allclose(s.raw.member_bias, ((t[:, None] - u) ** 2).mean(axis=(0, 2)))
    np.testing.assert_allclose(s.centered.member_diversity, (u_bar - u).var(axis=2).mean(axis=0))
    np.testing.assert_allclose(s.shift.member_bias, ((t[:, None] - u).mean(axis=2) ** 2).mean(axis=0))
    assert s.coherence == pytest.approx(((u.sum(1) ** 2).sum(1) / (u**2).sum((1, 2))).mean())


@pytest.mark.parametrize(("options", "uniform"), [(4, 0.1875), (3, 2 / 9), (2, 0.25)])
def test_paper_form(options, uniform):
    u, t = case(6, options=options)
    p = oracle.paper_form(u, t)
    assert p.uniform == pytest.approx(uniform)
    softmax = torch.softmax(torch.tensor(u), -1).numpy()
    assert p.bias == pytest.approx(((t[:, None] - softmax) ** 2).mean())
    assert p.diversity == pytest.approx(oracle.squared(u, t).raw.diversity, rel=1e-12)
    assert p.mismatch == pytest.approx(p.loss - p.bias + p.diversity)
    of_mean = torch.softmax(torch.tensor(u.mean(1)), -1).numpy()
    assert p.loss == pytest.approx(((t - of_mean) ** 2).mean())


@pytest.mark.parametrize("tau", [None, 1.0, 0.3, 25.0])
def test_cross_entropy(ut, tau):
    u, t = ut
    c = oracle.cross_entropy(u, t, tau)
    assert c.tau == (u.shape[1] if tau is None else tau)
    assert c.entropy + c.member_net_linear.sum() == pytest.approx(c.loss, rel=1e-9, abs=1e-9)
    # per member: net_i = H(p) + |L| times its share of the linear net
    np.testing.assert_allclose(c.member_net, c.entropy + u.shape[1] * c.member_net_linear, rtol=1e-8, atol=1e-8)
    ours, target = torch.tensor(c.tau * u.mean(axis=1)), torch.tensor(t)
    assert c.loss == pytest.approx(float(torch.nn.functional.cross_entropy(ours, target)), rel=1e-9, abs=1e-12)
    log_q = torch.log_softmax(torch.tensor(c.tau * u[:, 1]), -1)
    kl = torch.nn.functional.kl_div(log_q, torch.log_softmax(ours, -1), log_target=True, reduction="batchmean")
    assert c.member_diversity[1] == pytest.approx(float(kl), rel=1e-9, abs=1e-12)


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
