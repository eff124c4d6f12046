"""The comparison of two versions' numbers finds what differs, and nothing else."""

import numpy as np
import pandas as pd

from tests.oracles.baseline import compared, difference, flat, load, read, save


def test_what_is_written_is_what_is_compared(tmp_path):
    """Arrays and frames come back to the bit; what differs in numbers, gaps, shape or text is named, and what went."""
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    frame = pd.DataFrame({"component": ["embed", "L0.attn"], "bias": [0.1 + 0.2, np.nan]})
    one = dict(flat("m/case", {"values": x, "frame": frame, "long": np.arange(9001.0), "loss": 1 / 3}))
    for folder in ("a", "b"):
        save(tmp_path / folder, one)
    same, other = load(tmp_path / "a"), load(tmp_path / "b")
    assert (tmp_path / "a/arrays.npz").read_bytes() == (tmp_path / "b/arrays.npz").read_bytes()
    assert same["m/case/frame/bias"][0] == 0.1 + 0.2
    assert same["m/case/values"].dtype == np.float32
    assert len(same["m/case/long"]) <= 4000
    assert compared(same, other, 0) == []
    changed = same | {"m/case/values": x + np.float32(1e-3) * (np.arange(4) == 2), "m/case/more": x}
    assert compared(changed, other, 0.01) == []
    assert compared(changed, other, 1e-6) == ["m/case/values"]
    del changed["m/case/loss"]
    assert set(compared(changed, other, 1e-6)) == {"m/case/loss", "m/case/values"}
    for new, old in ((x, x[:2]), (np.array([1.0, np.nan]), np.ones(2)), (np.array(["a"]), np.array(["b"]))):
        assert difference(new, old) == (np.inf, np.inf)
    assert difference(np.array([1.0, np.nan, 4.0]), np.array([1.0, np.nan, 2.0])) == (2, 1)


def test_attributes_and_methods_are_read_alike():
    """A method is called; what is None is left out."""

    class Result:
        loss = None

        def compensation(self, component):
            return f"of {component}"

    assert read(Result(), "compensation", "L0.mlp") == {"compensation": "of L0.mlp"}
    assert read(Result(), "loss") == {}
