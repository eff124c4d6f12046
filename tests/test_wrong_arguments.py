"""Arguments that could be read as something else raise InputError; none of them gives a number."""

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.errors import InputError

LABELS = {
    "a mapping": {0: "a", 1: "b"},
    "a set": {0, 1},
    "a frame": pd.DataFrame({0: [1, 1], 1: [0, 0]}),
    "a table": np.array([[0], [1]]),
    "bytes": b"\x00\x01",
    "shares": [0.5, 0.5],
    "counted from the end": [-1, 0],
    "answers to yes and no": [True, False],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_are_never_read_as_something_else(labels):
    """Two examples and two options, so that keys, columns and bits would all pass for labels."""
    u = np.random.default_rng(0).normal(size=(2, 3, 2))
    with pytest.raises(InputError, match="label"):
        ld.decompose(u, labels)


@pytest.mark.parametrize(
    "names", [{"embed": 1, "L0.mlp": 2}, {"embed", "L0.mlp"}, pd.DataFrame(columns=["embed", "L0.mlp"])]
)
def test_names_without_an_order_are_no_names(names):
    """Keys, a set's items and columns would name members in an order that nobody gave."""
    u = np.random.default_rng(0).normal(size=(4, 2, 2))
    with pytest.raises(InputError, match="components"):
        ld.decompose(u, [0, 1, 0, 1], components=names)
    with pytest.raises(InputError, match="groups"):
        ld.decompose(u, [0, 1, 0, 1]).nested(groups=names)


def test_truth_values_are_no_logits():
    with pytest.raises(InputError, match="bool"):
        ld.decompose(np.ones((2, 3, 2), dtype=bool), [0, 1])
