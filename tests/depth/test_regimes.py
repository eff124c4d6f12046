"""The test of regimes: an exact decomposition, planted networks recovered, and published scores by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth.ensemble_results import planted_regimes
from layerdiv_tl.depth.verdicts import judge
from layerdiv_tl.ensemble.averaging import Moments, common_share, error_terms, rotation_null

FAST = {"draws": 2, "null_draws": 10}


@pytest.fixture(scope="module")
def composed():
    regime = ld.zoo.regime("composition", layers=6, seed=25)
    return regime, ld.depth.ensemble_test(regime, **regime.question, **FAST)


def test_bias_variance_and_covariance_make_the_squared_error_of_the_mean():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(50, 6, 3))  # predictions; four members, the rest, the target; options
    moments = Moments((y @ y.swapaxes(1, 2)).sum(0)[None], y.sum(0)[None], np.array([50.0]))
    terms, n = error_terms(moments), 4
    error = y[:, :5].sum(1) - y[:, 5]
    assert terms.loss[0] == pytest.approx((error**2).sum(1).mean())
    parts = terms.bias + terms.variance / n + (1 - 1 / n) * terms.covariance
    assert parts[0] == pytest.approx(terms.loss[0])
    alone = n * y[:, :4] + (y[:, 4] - y[:, 5])[:, None]
    assert terms.single[0] == pytest.approx((alone**2).sum(2).mean())
    centered = alone - alone.mean(0)
    pairs = [(centered[:, i] * centered[:, j]).sum(1).mean() for i in range(n) for j in range(n) if i != j]
    assert terms.covariance[0] == pytest.approx(np.mean(pairs))


def test_what_does_not_vary_has_no_correlation():
    """One prediction, and the same one again and again: NaN, and not what rounding leaves over itself."""
    y = np.random.default_rng(0).normal(size=(1, 6, 3))
    for count in (1, 9):
        rows = np.repeat(y, count, 0)
        products = (rows @ rows.swapaxes(1, 2)).sum(0)
        _, covariances = Moments(products[None], rows.sum(0)[None], np.array([count])).means()
        assert not covariances.any()
        assert np.isnan(common_share(covariances[:, :4, :4])[0])


@pytest.mark.full
@pytest.mark.filterwarnings("error:invalid value:RuntimeWarning")
def test_few_rows_have_numbers_without_intervals():
    for count in (1, 3):
        found = ld.depth.ensemble_test("zoo/d4", ld.task("synthetic/recall", limit=count), draws=2, null_draws=10)
        assert found.verdict.word == "cannot tell"
        assert "8 rows" in str(found.verdict)
        found = found.frame().set_index("statistic")
        assert found[["value_low", "value_high"]].isna().all(axis=None)
        assert np.isfinite(found["value"]["damage"])
        assert np.isfinite(found["value"]["icc"]) == (count > 1)


def test_averages_of_independent_errors_have_kappa_1_and_of_one_error_n():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(4000, 8, 2))
    for errors, kappa in ((noise, 1.0), (np.repeat(noise[:, :1], 8, 1), 8.0)):
        members = errors / 8
        y = np.concatenate([members, np.zeros((4000, 2, 2))], 1)
        moments = Moments(np.einsum("pik,pjk->ij", y, y)[None], y.sum(0)[None], np.array([4000.0]))
        assert error_terms(moments).kappa[0] == pytest.approx(kappa, rel=0.08)


def test_the_rotation_null_keeps_sizes_and_breaks_directions():
    rng = np.random.default_rng(2)
    shared = rng.normal(size=(300, 1, 10)) + 0.3 * rng.normal(size=(300, 5, 10))
    null = rotation_null(shared, rng.normal(size=(4, 10)), 20, seed=0)
    means = (null.sum((1, 2)) - 5) / 20
    assert np.abs(means).mean() < 0.2
    covariance = np.einsum("pid,pjd->ij", shared, shared)[None]
    assert common_share(covariance)[0] > 0.8


def test_its_numbers_are_those_of_plain_passes(composed):
    """Leaving out, reversing and repeating layers by hand, in the Hugging Face model."""
    regime, found = composed
    layers, target = list(regime.model.model.layers), torch.as_tensor(regime.question["target"])
    ids = torch.tensor(regime.question["texts"])

    def loss(order):
        regime.model.model.layers = torch.nn.ModuleList([layers[i] for i in order])
        regime.model.config.num_hidden_layers = len(order)
        with torch.no_grad():
            logits = regime.model(input_ids=ids, use_cache=False).logits[:, -1, :8]
        return float(-(target * logits.log_softmax(-1)).sum(1).mean())

    try:
        whole, none, turned = loss(range(6)), loss([]), loss(range(5, -1, -1))
        skips = [loss([i for i in range(6) if i != skipped]) for skipped in found.skipped]
        repeats = sorted(loss([i] * 6) for i in range(6))
    finally:
        loss(range(6))
        regime.model.config.num_hidden_layers, regime.model.model.layers = 6, torch.nn.ModuleList(layers)
    said = {name: value for name, (value, *_) in found.statistics.items()}
    assert said["loss"] == pytest.approx(whole, abs=1e-6)
    assert said["damage"] == pytest.approx(none - whole, abs=1e-6)
    assert said["reverse"] == pytest.approx((turned - whole) / (none - whole), abs=1e-5)
    assert said["skip_one"] == pytest.approx((np.mean(skips) - whole) / (none - whole), abs=1e-5)
    least, most = ((x - whole) / (none - whole) for x in (repeats[0], repeats[-1]))
    assert least - 1e-5 <= said["repeat"] <= most + 1e-5


@pytest.mark.parametrize("name", ["averaging", "composition"])
def test_planted_regimes_are_told_apart(name):
    regime = ld.zoo.regime(name, seed=27)
    found = ld.depth.ensemble_test(regime, **regime.question, **FAST)
    assert found.verdict.word == regime.verdict


@pytest.mark.full
@pytest.mark.parametrize("name", ld.zoo.REGIMES)
def test_every_planted_regime_is_recovered_on_held_out_seeds(name):
    for seed in (41, 42, 43):
        regime = ld.zoo.regime(name, seed=seed)
        assert ld.depth.ensemble_test(regime, **regime.question).verdict.word == regime.verdict


@pytest.mark.full
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_of_functions_are_counted(groups):
    regime = ld.zoo.regime("averaging", groups=groups, seed=41)
    assert abs(max(1, ld.depth.ensemble_test(regime, **regime.question).groups) - groups) <= 1


def test_the_error_rates_that_ship_are_those_of_the_verdicts():
    table = planted_regimes()
    constructed = [row for row in table["error_rates"] if row["network"] in ld.zoo.REGIMES]
    assert len(constructed) == len(ld.zoo.REGIMES)
    seeds = [row["seeds"] for row in constructed]
    assert min(seeds) >= 20
    assert np.average([row["right"] for row in constructed], weights=seeds) >= 0.95
    assert all(row["wrong"] == 0 for row in table["error_rates"])
    assert set(table["regimes"]) == {row["network"] for row in table["error_rates"]}


def test_a_verdict_needs_what_it_rests_on(composed):
    regime, found = composed
    labels = regime.question["target"].argmax(1).tolist()
    texts, options = regime.question["texts"], regime.question["options"]
    bare = ld.depth.ensemble_test(regime, texts, options=options, labels=labels, group=range(6), draws=0, null_draws=10)
    assert bare.verdict.word == "cannot tell"
    assert bare.verdict.limits
    wide = {name: (value, -np.inf, np.inf) for name, (value, *_) in found.statistics.items()}
    assert judge(wide, True, 6.0).word == "cannot tell"


def test_results_are_saved_loaded_and_drawn(composed, tmp_path):
    _, found = composed
    back = type(found).load(found.save(tmp_path / "test"))
    assert back.frame().equals(found.frame())
    assert str(back.verdict) == str(found.verdict)
    assert back.plot().data
    assert found.error_terms().set_index("term").loc[
        ["bias", "variance", "covariance"], "share"
    ].sum() == pytest.approx(found.error_terms().set_index("term").loc["loss", "value"])
    assert found.members().component.tolist() == [c.label for c in found.components]
    assert {"planted_low", "planted_high"} <= set(found.beside_planted())


@pytest.mark.parametrize(
    ("more", "about"),
    [
        ({"draws": -1}, "draws"),
        ({"null_draws": 2}, "null_draws"),
        ({"group": [0, 1]}, "four|4"),
        ({"floor": -1.0}, "floor"),
        ({"floor": 0.1}, "floor"),
        ({"target": np.ones((2, 3))}, "target"),
    ],
)
def test_wrong_questions_are_refused(composed, more, about):
    regime, _ = composed
    with pytest.raises(ld.InputError, match=about):
        ld.depth.ensemble_test(regime, **{**regime.question, **more})


def test_a_floor_is_not_above_the_model_itself():
    task = ld.task("synthetic/recall", limit=16)
    loss = ld.depth.ensemble_test("zoo/d8", task, floor=0.0, draws=0).error_terms()
    assert np.isfinite(loss["value"]).all()
    with pytest.raises(ld.InputError, match="floor=50 is above"):
        ld.depth.ensemble_test("zoo/d8", task, floor=50, draws=0)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 40, size).tolist() for size in (7, 5, 9)]


@pytest.mark.parametrize("norm", ["recomputed", "none"])
def test_the_deep_thinking_ratio_is_that_of_a_plain_loop(texts, norm):
    model = ld.load_model("zoo/d4")
    found = ld.depth.deep_thinking(model, texts, threshold=0.3, depth=0.6, norm=norm)
    hf, rows, settled = model.hf_model, [], []
    for text in texts:
        with torch.no_grad():
            out = hf(torch.tensor([text]), output_hidden_states=True)
            final = out.logits[0].double().softmax(-1)
            for hidden in out.hidden_states[1:-1]:
                normed = hf.model.norm(hidden) if norm == "recomputed" else hidden
                p = hf.lm_head(normed)[0].double().softmax(-1)
                m = (p + final) / 2
                terms = [torch.where(q > 0, q * (q / m).log2(), 0.0).sum(-1) for q in (p, final)]
                rows.append(sum(terms) / 2)
        table = torch.stack([*rows, torch.zeros(len(text))], 1).numpy()
        settled += [next(i + 1 for i, d in enumerate(row) if d <= 0.3) for row in table]
        assert np.allclose(found.divergence[len(settled) - len(text) : len(settled)], table, atol=1e-5)
        rows = []
    assert found.settled.tolist() == settled
    least = int(np.ceil(0.6 * len(found.components)))
    assert found.ratio().ratio[0] == pytest.approx(np.mean(np.array(settled) >= least))


def test_the_null_of_a_token_measured_alone_is_the_lens_of_another_of_its_text():
    """Its own would be no null; a text of one token has no other."""
    model, text = ld.load_model("zoo/d4"), [3, 1, 4, 1, 5]
    alone = ld.depth.deep_thinking(model, [text], answers=1)
    whole = ld.depth.deep_thinking(model, [text])
    np.testing.assert_allclose(alone.divergence, whole.divergence[3:4], atol=1e-5)
    hf = model.hf_model
    with torch.no_grad():
        out = hf(torch.tensor([text]), output_hidden_states=True)
        p = hf.lm_head(hf.model.norm(out.hidden_states[1][0, 0])).double().softmax(-1)
        q = out.logits[0, 3].double().softmax(-1)
    m = (p + q) / 2
    expected = sum((x * (x / m).log2()).sum() for x in (p, q)) / 2
    assert alone.shuffled[0, 0] == pytest.approx(float(expected), abs=1e-5)
    with pytest.raises(ld.InputError, match="text 0 has one token"):
        ld.depth.deep_thinking(model, [[3]])


def test_guesses_and_their_ranks_are_those_of_a_plain_lens(texts):
    model = ld.load_model("zoo/d2")
    found, hf, guesses = ld.depth.guess_then_refine(model, texts, buckets=[3, 10]), model.hf_model, []
    for text in texts:
        with torch.no_grad():
            out = hf(torch.tensor([text]), output_hidden_states=True)
            lens = [hf.lm_head(hf.model.norm(hidden))[0].argmax(-1) for hidden in out.hidden_states[:-1]]
        guesses.append(torch.stack([*lens, out.logits[0].argmax(-1)], 1))
    assert (found.guesses == torch.cat(guesses).numpy()).all()
    counts = np.bincount(np.concatenate(texts), minlength=hf.config.vocab_size)
    order = sorted(range(len(counts)), key=lambda v: (-counts[v], v))
    assert (found.rank == np.array([order.index(v) + 1 for v in range(len(counts))])[found.guesses]).all()
    for wrong in ([1.0], np.zeros(len(counts)), {0: 0}):
        with pytest.raises(ld.InputError, match="counts"):
            ld.depth.guess_then_refine(model, texts, wrong)
    shares = found.frame().groupby("component", sort=False)["share"].sum()
    assert np.allclose(shares, 1)


def test_scores_of_the_lens_stand_in_one_table_and_are_drawn(texts):
    table = ld.depth.lens_scores("zoo/d2", texts)
    thinking = ld.depth.deep_thinking("zoo/d2", texts)
    assert np.allclose(table["settled"], thinking.frame()["settled"])
    assert {"kl", "topk_overlap", "frequent", "flips", "flips_by_chance"} <= set(table)
    for found in (thinking, ld.depth.guess_then_refine("zoo/d2", texts)):
        assert found.plot().data
