"""Figures of information: what is drawn is what the frames say."""

from dataclasses import replace

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views.figures.information import gain_lines


@pytest.fixture(scope="module")
def found():
    """Six noisy copies of a label, in two halves that share their noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    noise = np.repeat(rng.normal(size=(600, 3)), 2, axis=1) + 0.7 * rng.normal(size=(600, 6))
    return ld.information(y[:, None] * 0.8 + noise, y, n_permutations=20, n_resamples=20)


def test_terms_stand_at_their_bits_over_their_nulls(found):
    frame = found.frame()
    band, marks, bound = found.plot().data
    np.testing.assert_allclose(marks.x, frame["bits"])
    np.testing.assert_allclose(marks.error_x.array, frame["high"] - frame["bits"])
    np.testing.assert_allclose(marks.error_x.arrayminus, frame["bits"] - frame["low"])
    np.testing.assert_allclose(np.array(band.base, dtype=float), frame["null_low"])
    np.testing.assert_allclose(np.array(band.base, dtype=float) + np.array(band.x, dtype=float), frame["null_high"])
    assert bound.x == (found.lower_bound.bits,)
    assert frame["term"][bound.y[0]] == "joint"
    shapes = found.plot().layout.shapes
    assert shapes[0].x0 == pytest.approx(found.label_entropy)


@pytest.mark.full
def test_terms_that_an_estimator_does_not_have_are_left_out(found):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 100)
    i = ld.information(
        y[:, None] + rng.normal(size=(100, 3)), y, estimator="variational", n_permutations=3, n_resamples=0
    )
    assert len(i.plot().data[1].x) == 3
    assert len(i.bounds().plot().layout.yaxis.ticktext) == len(i.bounds().frame())


def test_members_are_bars_of_relevancy_and_gain(found):
    frame, figure = found.by_component(), found.plot(kind="members")
    bars = [trace for trace in figure.data if trace.type == "bar"]
    np.testing.assert_allclose(bars[0].y, frame["relevancy"])
    np.testing.assert_allclose(bars[1].y, frame["gain"])
    np.testing.assert_allclose(bars[0].error_y.array, frame["high"] - frame["relevancy"])


def test_bounds_and_errors_are_the_frame_s(found):
    bounds = found.bounds()
    frame, drawn = bounds.frame(), bounds.plot().data[0]
    np.testing.assert_allclose(drawn.x, frame["error"])
    invalid = (frame["kind"] == "bound") & ~frame["valid"].fillna(True).astype(bool)
    assert [opacity < 1 for opacity in drawn.marker.opacity] == invalid.tolist()
    assert invalid.sum() == 2


def test_checks_are_drawn(found):
    """Every row of the lower bound."""
    bound = found.lower_bound
    np.testing.assert_allclose(bound.plot().data[0].x, bound.rows)
    assert bound.plot().layout.shapes[0].x0 == pytest.approx(max(0, bound.rows.mean()))


@pytest.mark.full
def test_gains_are_lines_with_dips_marked(found):
    curve = found.gain_curve(order="depth", n_permutations=10, n_resamples=10)
    frame = curve.frame()
    lines = {
        trace.name: trace for trace in curve.plot(terms=("joint", "diversity")).data if trace.mode == "lines+markers"
    }
    assert len(lines) == 2
    np.testing.assert_allclose(next(t.y for name, t in lines.items() if "joint" in name), frame["joint"])
    np.testing.assert_allclose(next(t.y for name, t in lines.items() if "diversity" in name), frame["diversity"])
    dips = [trace for trace in curve.plot().data if trace.name == "dips"]
    assert (len(dips[0].x) if dips else 0) == frame["dip"].sum()
    assert "members are added" in curve.plot().layout.title.text
    doubted = replace(found, doubts=("what the estimate leaves out",)).gain_curve(n_permutations=0, n_resamples=0)
    assert "what the estimate leaves out" in doubted.plot().layout.title.subtitle.text.replace("<br>", " ")
    assert doubted.frame().attrs["doubts"] == ["what the estimate leaves out"]
    for terms in (("bits",), "joint"):
        with pytest.raises(ld.InputError, match="terms="):
            gain_lines(curve, terms=terms)
