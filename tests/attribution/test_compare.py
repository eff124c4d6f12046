"""Two models compared on the same rows: changes of components sum to those of the logits."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.ensemble.intervals import estimate
from tests.conftest import gpt2, llama

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0], [2, 7, 1, 8, 2, 8, 1]] * 3
OPTIONS = [7, 30, 2]
LONG = [[[7, 9], [30], [2, 5, 5]]] * 12


def run(model, options=OPTIONS, **how):
    return ld.contributions(model, PROMPTS, options, **how)


@pytest.mark.parametrize("unit", ["sublayer", "head"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_changes_sum_to_the_change_of_the_logits(make, unit):
    """Against plain passes of both models; compared the other way round, signs turn."""
    a, b = make(), make(seed=1)
    c, back = ld.compare(run(a, unit=unit), run(b, unit=unit)), ld.compare(run(b, unit=unit), run(a, unit=unit))
    with torch.no_grad():
        plain = [[m(torch.tensor([ids])).logits[0, -1, OPTIONS].double().numpy() for ids in PROMPTS] for m in (a, b)]
    np.testing.assert_allclose(c.change.sum(1), np.array(plain[1]) - np.array(plain[0]), atol=1e-5)
    np.testing.assert_array_equal(c.change, -back.change)


def test_a_change_of_one_matrix_is_found_at_its_component():
    """Of the last MLP: what is before it changes by the norm's statistic alone, one factor a row."""
    base = llama()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        tuned.model.layers[-1].mlp.down_proj.weight.mul_(1.5)
    c = ld.compare(run(base), run(tuned))
    factor = c.b[:, :-1] / c.a[:, :-1]
    np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1, :1], factor.shape), rtol=1e-4)
    assert c.frame().set_index("component")["size"].idxmax() == "L2.mlp"


def test_the_frame_has_paired_intervals_of_scores_and_their_sums():
    """The right option minus the mean of the others; the change over rows, not the difference of two intervals."""
    task = ld.task("synthetic/recall", limit=24)
    c = ld.compare(ld.contributions("zoo/d4", task), ld.contributions("zoo/d4-seed1", task))
    rows = np.arange(24)
    right = c.change[rows, :, task.labels]
    score = right - (c.change.sum(2) - right) / (c.change.shape[2] - 1)
    frame = c.frame()
    for column, values in zip(("change", "change_low", "change_high"), estimate(score)[:3], strict=True):
        np.testing.assert_allclose(frame[column], values)
    np.testing.assert_allclose(frame["b"] - frame["a"], frame["change"], atol=1e-9)
    np.testing.assert_allclose(frame.attrs["change"], frame["change"].sum())
    modules = c.by_module()
    np.testing.assert_allclose(modules["change"].sum(), frame.attrs["change"])
    assert len(c.plot().data)


def test_options_of_several_tokens_are_compared_by_log_likelihoods(tmp_path):
    a, b = (run(llama(seed=seed), LONG) for seed in (0, 1))
    c = ld.load(ld.compare(a, b).save(tmp_path / "c.safetensors"))
    np.testing.assert_allclose(c.change.sum(1), b.log_likelihood - a.log_likelihood, atol=1e-5)
    assert c.measured_in == "nats"


def test_a_row_that_one_model_lacks_is_zero_there():
    """Half precision has a rounding, float32 has none."""
    c = ld.compare(run(llama()), run(llama().bfloat16()))
    place = [x.label for x in c.components].index("rounding")
    assert not c.a[:, place].any()
    assert c.b[:, place].any()


@pytest.mark.parametrize(
    ("make", "about"),
    [
        (lambda: run(llama(num_hidden_layers=2)), "shape"),
        (lambda: run(llama(), [7, 30, 3]), "options"),
        (lambda: run(llama(), unit="head"), "unit"),
        (lambda: ld.contributions(llama(), PROMPTS[::-1], OPTIONS), "tokens"),
        (lambda: run(llama(), position=0), "positions"),
        (lambda: run(llama()).scores(), "log-likelihoods"),
        (lambda: replace(run(llama()), labels=np.ones(12, dtype=int)), "labels"),
        (lambda: run(llama()).select(kind="mlp"), "some of its components"),
    ],
)
def test_results_of_other_rows_options_or_shapes_are_refused(make, about):
    first = replace(run(llama()), labels=np.zeros(12, dtype=int))
    for pair in ((first, make()), (make(), first)):
        with pytest.raises(ld.InputError, match=about):
            ld.compare(*pair)


def test_caches_whose_tokens_are_unknown_are_not_compared():
    """Two caches of writes alone could be of two texts; with their ids they are compared."""
    model = ld.load_model("zoo/d4")
    names, results = list(model.hook_names("sublayer")), []
    for ids in ([1, 2, 3], [4, 5, 6]):
        cache = model.bridge.run_with_cache(
            torch.tensor([ids]), names_filter=[n for n in names if n != "embed.hook_in"]
        )[1]
        results.append(ld.contributions(cache, options=[7, 9]))
    with pytest.raises(ld.InputError, match="unknown"):
        ld.compare(*results)
