"""Ensembles drawn at random, for the laws of decompositions."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

# Squares of smaller numbers are subnormal: they have few digits, in the package and in its double.
numbers = st.floats(-8, 8, allow_nan=False, width=64).map(lambda x: x if abs(x) > 1e-140 else 0.0)
NEAR = {"rel": 1e-9, "abs": 1e-9}
GAUGES = ("centered", "raw", "shift")
gauges = st.sampled_from(GAUGES)
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
