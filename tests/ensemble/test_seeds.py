"""Bias, variance and covariance over training seeds, against loops and closed forms."""

import numpy as np
import pytest

import layerdiv_tl as ld


def terms(u, **truth):
    frame = ld.seed_covariance(list(u), **truth)
    return frame.set_index("term")["value"], frame


def test_equals_the_formulas_in_loops():
    """Sample variances and covariances of every member and pair, row by row."""
    rng = np.random.default_rng(3)
    seeds, rows, n, k = 4, 5, 3, 2
    u, gold = rng.normal(size=(seeds, rows, n, k)), rng.integers(0, k, rows)
    c, t = n * (u - u.mean(3, keepdims=True)), np.eye(k)[gold] - 1 / k
    variance, covariance, loss = [], [], []
    for row in range(rows):
        for i in range(n):
            for j in range(n):
                both = sum(np.cov(c[:, row, i, o], c[:, row, j, o])[0, 1] for o in range(k))
                (variance if i == j else covariance).append(both)
        loss += [((c[s, row].mean(0) - t[row]) ** 2).sum() for s in range(seeds)]
    found, _ = terms(u, labels=gold)
    assert found["loss"] == pytest.approx(np.mean(loss))
    assert found["variance"] == pytest.approx(np.mean(variance) / n)
    assert found["covariance"] == pytest.approx((1 - 1 / n) * np.mean(covariance))
    assert found["ratio"] == pytest.approx(np.mean(covariance) / np.mean(variance))
    assert found["bias"] + found["variance"] + found["covariance"] == pytest.approx(found["loss"])


def test_copies_independent_and_cooperating_members_have_their_ratios():
    rng = np.random.default_rng(0)
    seeds, rows, n, k = 6, 400, 5, 4
    free, target = rng.normal(size=(seeds, rows, n, k)), rng.normal(size=(rows, k))
    copies, cooperating = np.broadcast_to(free[:, :, :1], free.shape), free - free.mean(2, keepdims=True)
    for u, ratio in ((free, 0.0), (copies, 1.0), (cooperating, -1 / (n - 1))):
        found, frame = terms(u, target=target)
        assert found["ratio"] == pytest.approx(ratio, abs=0.02)
        row = frame.set_index("term").loc["ratio"]
        assert row.low - 1e-9 <= ratio <= row.high + 1e-9
    assert found["variance"] + found["covariance"] == pytest.approx(0, abs=1e-9)  # their sum never varies
    assert frame.attrs["floor"] == -1 / (n - 1)


def test_intervals_over_rows_hold_the_truth_as_often_as_they_say():
    """Independent members with unequal rows: the ratio 0 is in 95 % of intervals, within the error of 200 draws."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        u = rng.normal(size=(3, 60, 4, 3)) * rng.gamma(2, 1, (60, 1, 1))
        row = ld.seed_covariance(list(u), labels=[0] * 60).set_index("term").loc["ratio"]
        held += row.low <= 0 <= row.high
    assert 0.89 <= held / 200 <= 0.99


def test_seeds_of_the_zoo_are_matched_by_their_components():
    task = ld.task("synthetic/recall", limit=16)
    cs = [ld.contributions(f"zoo/d2{seed}", task) for seed in ("", "-seed1", "-seed2")]
    found, frame = terms(cs, labels=task.labels)
    gold = np.eye(4)[task.labels] - 1 / 4
    away = [c.logits - c.logits.mean(1, keepdims=True) - gold for c in cs]
    assert found["loss"] == pytest.approx(np.mean(np.square(away).sum(2)))
    assert (frame.attrs["seeds"], frame.attrs["members"]) == (3, len(cs[0].components))


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda cs: cs[:2], "at least 3"),
        (lambda cs: [*cs[:2], cs[2].select(kind="attn")], "components"),
        (lambda cs: [*cs[:2], ld.contributions("zoo/d2", [[5, 6]], [9, 7])], "options"),
        (lambda cs: [*cs[:2], ld.contributions("zoo/d2", [[6, 5]], [7, 9])], "rows"),
        (lambda cs: [c.select("L0.mlp") for c in cs], "one member"),
    ],
)
def test_what_cannot_be_matched_is_refused(change, about):
    cs = [ld.contributions(f"zoo/d2{seed}", [[5, 6]], [7, 9]) for seed in ("", "-seed1", "-seed2")]
    with pytest.raises(ld.InputError, match=about):
        ld.seed_covariance(change(cs), labels=[0])
    with pytest.raises(ld.InputError, match="labels"):
        ld.seed_covariance(cs)
