"""How often intervals over questions and texts miss a known truth: nominal 5 %; measured rates are stated."""

import numpy as np
import pytest

from layerdiv_tl.components import Component
from layerdiv_tl.depth.layer_maps import LayerMaps
from layerdiv_tl.ensemble.fits import slope

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("by_length", [False, True])
def test_slopes_over_questions(by_length):
    """Depth scores: nominal 5 % of intervals over 20 questions of unequal noise miss 0.3; 2-5 %."""
    rng = np.random.default_rng(13)
    missed = []
    for _ in range(150):
        hops = rng.integers(1, 5, 20)
        scores = 0.3 * hops + hops * 0.3 * rng.normal(size=20)
        lengths = hops * 5 + rng.integers(0, 8, 20)
        found = slope(hops, scores, lengths if by_length else None)
        missed.append(not found.low <= 0.3 <= found.high)
    print(f"slopes, {by_length}: {np.mean(missed):.3f}")
    assert np.mean(missed) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 150)


def test_places_of_best_maps_over_texts():
    """Layer maps of one pair: nominal 5 % of percentile intervals over 16 texts miss; measured 2 %."""
    rng = np.random.default_rng(14)
    names = tuple(Component("layer", i) for i in range(6))

    def maps(error):
        pairs = [(source, target) for source in names for target in names]
        sources, targets = zip(*pairs, strict=True)
        values, places = {"error": error.reshape(len(error), -1)}, {"text": np.arange(len(error))}
        found = LayerMaps(
            components=sources, targets=targets, values=values, places=places, units={"error": ""}, model="a"
        )
        return found.depth_alignment()[["distance", "distance_low", "distance_high"]].iloc[0]

    missed = []
    for _ in range(100):
        truth = rng.random((6, 6))
        error = truth + 0.1 * rng.normal(size=(16, 6, 6))
        exact = maps(truth[None]).iloc[0]
        _, low, high = maps(error)
        missed.append(not low - 1e-9 <= exact <= high + 1e-9)
    print(f"places: {np.mean(missed):.3f}")
    assert np.mean(missed) <= 0.11
