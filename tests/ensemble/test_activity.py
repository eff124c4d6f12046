"""What silent members make of diversity, against loops over rows."""

from __future__ import annotations

import numpy as np
import pytest

import layerdiv_tl as ld

NAMES = ["embed", "L0.E0", "L0.E1", "L0.E2", "L0.E3", "L0.SE0", "L1.E0", "L1.E1", "L1.E2"]


def silent(n: int = 40, k: int = 3, seed: int = 0) -> np.ndarray:
    """Two layers of experts of which one to three write at an example."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(n, len(NAMES), k)) + rng.normal(size=(len(NAMES), k))
    for x in u:
        x[1 + rng.choice(4, rng.integers(1, 4), replace=False)] = 0
        x[6 + rng.choice(3, 2, replace=False)] = 0
    return u


def test_within_is_the_disagreement_of_those_that_write_and_the_silence_of_the_others() -> None:
    u = silent()
    frame = ld.decompose(u, labels=[0] * len(u), components=NAMES).nested().set_index("group")
    for group, rows in (("L0.mlp", range(1, 6)), ("L1.mlp", range(6, 9))):
        active, idle = [], []
        for x in u[:, list(rows)]:
            n, total = len(x), x.sum(0)
            writes = [row for row in x if row.any()]
            k = len(writes)
            active.append(n / k * np.mean([np.mean((total - k * row) ** 2) for row in writes]))
            idle.append((n - k) / k * np.mean(total**2))
        np.testing.assert_allclose(frame.loc[group, "within_active"], np.mean(active), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(frame.loc[group, "within_idle"], np.mean(idle), rtol=1e-10)
        np.testing.assert_allclose(frame.loc[group, "within"], np.mean(active) + np.mean(idle), rtol=1e-10)
        halves = [frame.loc[group, f"within_active_{part}"] for part in ("centered", "shift")]
        np.testing.assert_allclose(frame.loc[group, "within_active"], sum(halves), rtol=1e-10, atol=1e-12)


def test_an_experts_diversity_is_idle_fixed_and_varying() -> None:
    u = silent()
    d = ld.decompose(u, labels=[0] * len(u), components=NAMES)
    frame = d.by_activity().set_index("component")
    assert list(frame.index) == [name for name in NAMES if ".E" in name]
    for name, row in frame.iterrows():
        member = NAMES.index(str(name))
        distances = u.mean(1) - u[:, member]
        writes = u[:, member].any(1)
        assert row["active"] == writes.mean()
        np.testing.assert_allclose(row["diversity"], np.mean(distances**2), rtol=1e-10)
        np.testing.assert_allclose(row["idle"], np.sum(np.mean(distances[~writes] ** 2, 1)) / len(u), rtol=1e-10)
        varying = np.var(distances[writes], axis=0, ddof=1).mean() * writes.mean()
        np.testing.assert_allclose(row["varying"], varying, rtol=1e-10)
        np.testing.assert_allclose(row["idle"] + row["fixed"] + row["varying"], row["diversity"], rtol=1e-10)


def test_a_member_that_only_scatters_has_nothing_fixed() -> None:
    rng, estimates = np.random.default_rng(0), []
    for _ in range(60):
        u = rng.normal(size=(12, 2, 2)) * [[[0.0], [1.0]]]
        u[:4, 1] = 0
        frame = ld.decompose(u, labels=[0] * 12, components=["embed", "L0.E0"]).by_activity()
        estimates.append(frame.set_index("component").loc["L0.E0", "fixed"])
    assert abs(np.mean(estimates)) < 3 * np.std(estimates) / np.sqrt(len(estimates))


def test_where_nobody_is_silent_there_is_nothing_to_split() -> None:
    d = ld.decompose(np.ones((3, 2, 2)), labels=[0] * 3)
    with pytest.raises(ld.InputError, match="silent"):
        d.by_activity()
    with pytest.raises(ld.InputError, match="cross_entropy"):
        ld.decompose(silent(), labels=[0] * 40, components=NAMES, loss="cross_entropy").by_activity()


def test_members_that_always_write_have_the_same_columns_as_before() -> None:
    u = np.random.default_rng(0).normal(size=(9, 3, 2))
    frame = ld.decompose(u, labels=[0] * 9).nested(groups=["a", "a", "b"])
    assert not [column for column in frame if "idle" in column]
