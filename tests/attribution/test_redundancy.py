"""`ld.redundancy`: a plain ridge, planted heads, overlaps of subspaces by numpy, and what is no input."""

import numpy as np
import pytest
from sklearn.model_selection import KFold

import layerdiv_tl as ld
from layerdiv_tl.attribution.redundancy import PENALTIES
from tests.conftest import llama, tied

PROMPTS = [[1 + i, (7 * i) % 61, (5 * i) % 61] for i in range(12)]


@pytest.fixture(scope="module")
def heads():
    return ld.contributions(llama(), PROMPTS, [7, 30, 11], unit="head")


def ridge(x, y, penalty):
    """Ridge with an intercept by the normal equations: a function of new rows."""
    center, mean = x.mean(0), y.mean(0)
    weights = np.linalg.solve((x - center).T @ (x - center) + penalty * np.eye(x.shape[1]), (x - center).T @ (y - mean))
    return lambda new: (new - center) @ weights + mean


def test_errors_are_those_of_a_plain_ridge(heads):
    """By the normal equations; the penalty is that with the least error where each training row is left out in turn."""
    found = ld.redundancy(heads, n_folds=3, seed=4)
    u = heads.values - heads.values.mean(2, keepdims=True)
    for member in (0, 5):
        y, x = u[:, member], np.delete(u, member, 1).reshape(len(u), -1)
        for train, test in KFold(3, shuffle=True, random_state=4).split(u):
            scale = ((x[train] - x[train].mean(0)) ** 2).sum(1).mean()
            left_out = [
                sum(
                    (
                        (
                            ridge(np.delete(x[train], i, 0), np.delete(y[train], i, 0), p * scale)(x[train][[i]])
                            - y[train][i]
                        )
                        ** 2
                    ).sum()
                    for i in range(len(train))
                )
                for p in PENALTIES
            ]
            error = y[test] - ridge(x[train], y[train], PENALTIES[int(np.argmin(left_out))] * scale)(x[test])
            assert found.error[test, member] == pytest.approx((error**2).sum(1), rel=1e-5, abs=1e-12)
            assert found.variation[test, member] == pytest.approx(((y[test] - y[train].mean(0)) ** 2).sum(1))
    assert found.r2.value[5] == pytest.approx(1 - found.error[:, 5].sum() / found.variation[:, 5].sum())


def test_the_nearest_has_the_largest_cosine_of_pairwise(heads):
    frame = ld.redundancy(heads, n_folds=2).frame()
    pairs = ld.decompose(heads, [0] * 12).pairwise()
    both = [*zip(pairs["component"], pairs["other"], pairs["cosine_centered"], strict=True)]
    for row in frame[frame["spread"] > 0].itertuples():
        of_row = {a if b == row.component else b: cosine for a, b, cosine in both if row.component in (a, b)}
        assert max(of_row.values()) == of_row[row.nearest] == pytest.approx(row.cosine)


def test_a_copy_is_predicted_and_noise_is_not():
    """Of a sum of others nothing is left, though it is similar to none; independent members have no R² above 0."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60, 9, 3))
    noise -= noise.mean(2, keepdims=True)
    members = np.concatenate([noise, noise[:, :6].sum(1, keepdims=True)], 1)
    frame = ld.redundancy(members).frame()
    assert frame["r2"][9] > 0.999
    assert frame["cosine"][9] < 0.6
    assert (frame["r2_low"][6:9] < 0).all()
    assert (frame["r2_permuted_low"] < 0).all()


def test_what_the_label_predicts_is_no_gain():
    """Members that follow the label and have noise of their own: permuted within labels, as much is predicted."""
    rng = np.random.default_rng(1)
    labels = np.arange(90) % 3
    members = np.eye(3)[labels][:, None] * 3 + rng.normal(size=(90, 5, 3))
    within, over = (ld.redundancy(members, given).frame() for given in (labels, None))
    assert (within["r2"] > 0.5).all()
    assert (within["r2_permuted"] > 0.5).all()
    assert (within["r2_gain_low"] < 0).all()
    assert (over["r2_gain_low"] > 0.3).all()
    assert within.attrs["permuted"] == "within labels"


def test_a_member_that_never_varies_has_no_r2():
    members = np.random.default_rng(2).normal(size=(20, 3, 2))
    members[:, 1] = [1.0, 2.0]
    frame = ld.redundancy(members).frame()
    assert frame["r2"].isna().tolist() == [False, True, False]
    assert frame["spread"][1] == pytest.approx(0)


@pytest.mark.parametrize("make", [llama, lambda: tied(0, 1, 2, 0, 1)])
def test_affinity_is_the_overlap_of_the_output_matrices(make):
    """Of Hugging Face's own o_proj, by numpy's SVD: Σ cos² of principal angles over their number."""
    pytest.importorskip("transformer_lens.tools.analysis.projection_kernel")
    hf = make()
    c = ld.contributions(hf, PROMPTS, [7, 30, 11], unit="head").select(kind="head")
    found = ld.redundancy(c, model=hf, n_folds=2)
    width = hf.config.hidden_size // hf.config.num_attention_heads
    for head, near, affinity in zip(c.components, found.nearest, found.affinity, strict=True):
        bases = []
        for one in (head, c.components[near]):
            weight = hf.model.layers[one.layer].self_attn.o_proj.weight.detach().double().numpy()
            bases.append(np.linalg.svd(weight[:, one.index * width : (one.index + 1) * width], full_matrices=False)[0])
        cosines = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
        assert affinity == pytest.approx((cosines**2).sum() / width, abs=1e-5)
    assert found.random_affinity == width / hf.config.hidden_size


def test_it_comes_back_from_a_file(heads, tmp_path):
    found = ld.redundancy(heads, [0, 1, 2] * 4, model=llama(), n_folds=2)
    again = ld.Redundancy.load(found.save(tmp_path / "r.safetensors"))
    assert again.frame().equals(found.frame())
    assert again.frame().attrs == found.frame().attrs
    assert list(found.frame())[:2] == ["component", "spread"]  # what a terminal shows of a wide frame has numbers
    assert list(found.frame())[-5:] == ["kind", "module", "layer", "index", "repeat"]
    assert "affinity" not in ld.redundancy(heads, n_folds=2).frame()
    assert repr(again).startswith("Redundancy(")


def test_what_is_no_input_is_refused(heads):
    for given, about in [
        ({"ensemble": heads, "n_folds": 7}, "rows"),
        ({"ensemble": heads.select("L0.H0")}, "one member"),
        ({"ensemble": np.ones((12, 3, 2))}, "same in all rows"),
        ({"ensemble": heads, "labels": [0, 9] * 6}, "labels"),
        ({"ensemble": heads, "model": "zoo/d1"}, "no head"),
    ]:
        with pytest.raises(ld.InputError, match=about):
            ld.redundancy(**given)
