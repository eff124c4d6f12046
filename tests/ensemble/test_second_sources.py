"""Numbers held against libraries that know nothing of ours: npeet on neighbors, scikit-learn on AUCs.

Tried as well, and not among the requirements (they bring jax and mne): on the data below, hoi 0.0.7's Gaussian-copula
total correlation is 0.4162 bits where ours is 0.4162, frites 0.4.6's relevancies sum to 0.114 where ours do to 0.113.
"""

import npeet_plus as npeet
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import layerdiv_tl as ld


def test_gaussian_terms_are_those_of_nearest_neighbors():
    """Neighbors assume nothing: mutual information with the label, and total correlation within its classes."""
    rng, y = np.random.default_rng(0), np.arange(4000) % 2
    covariance = np.array([[1, 0.6, 0.2], [0.6, 1, 0.3], [0.2, 0.3, 1]])
    x = rng.normal(size=(4000, 3)) @ np.linalg.cholesky(covariance).T + y[:, None] * np.array([0.8, 0.4, 0.0])
    i = ld.information(x, y)
    assert i.joint == pytest.approx(float(np.squeeze(npeet.micd(x, y[:, None]))), abs=0.02)
    within = [x[y == label] for label in (0, 1)]
    given = [sum(npeet.entropy(z[:, [k]]) for k in range(3)) - npeet.entropy(z) for z in within]
    assert i.conditional_redundancy == pytest.approx(float(np.mean(given)), abs=0.06)


@pytest.mark.parametrize("options", [2, 3, 5])
def test_auc_is_the_mean_of_scikit_learns_over_options(options):
    rng = np.random.default_rng(options)
    u, labels = rng.normal(size=(40, 6, options)), rng.integers(0, options, 40)
    u[:20, 1:3], labels[:10] = u[20:, 1:3], labels[10:20]  # ties
    centered = u - u.mean(2, keepdims=True)
    of_options = [[roc_auc_score(labels == k, centered[:, i, k]) for k in range(options)] for i in range(6)]
    frame = ld.decompose(u, labels).by_component()
    np.testing.assert_allclose(frame["auc"], np.mean(of_options, 1), rtol=1e-12)
    # A constant per option changes the accuracy, and how often an answer is written; it does not change the AUC.
    moved = ld.decompose(u + np.linspace(0, 9, options), labels).by_component()
    np.testing.assert_allclose(moved["auc"], frame["auc"], rtol=1e-12)
    np.testing.assert_allclose(moved["auc_low"], frame["auc_low"], rtol=1e-9)
    assert not np.allclose(moved["accuracy"], frame["accuracy"])


def test_auc_of_one_class_of_few_rows_and_of_perfect_members():
    """No interval below 8 rows of either label; no column where all labels are the same."""
    u = np.random.default_rng(0).normal(size=(20, 3, 2))
    assert "auc" not in ld.decompose(u, [1] * 20).by_component()
    labels = np.arange(20) % 2
    u[:, 0] = np.eye(2)[labels]
    frame = ld.decompose(u, labels).by_component()
    assert frame["auc"][0] == frame["auc_high"][0] == 1
    assert 0.7 < frame["auc_low"][0] < 0.9
    for rare in (1, 7, 8):
        few = ld.decompose(u, (np.arange(20) < rare).astype(int)).by_component()
        assert few["auc"].notna().all()
        assert few["auc_low"].isna().all() == few["auc_high"].isna().all() == (rare < 8)
