"""Two models compared at every token of texts: changes sum to those of the logit and of the loss, to rounding."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.attribution.test_compare import planted
from tests.conftest import gpt2, llama

TEXTS = [[5, 1, 4, 1, 5, 9, 2, 6], [17, 11, 60, 0], [3], [2, 7, 1, 8, 2, 8]]
MANY = np.random.default_rng(0).integers(0, 61, (30, 6)).tolist()


def answers(model):
    """Of every token the logit of the next, the same less the mean over ids, and the loss, by plain passes."""
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0].double()
        following = torch.tensor([*text[1:], 0])
        own = logits.gather(1, following[:, None])[:, 0]
        row = torch.stack([own, own - logits.mean(1), logits.logsumexp(1) - own])
        row[:, -1] = torch.nan
        rows.append(row)
    return torch.cat(rows, 1).numpy()


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_changes_sum_to_those_of_logit_and_loss(make, unit):
    """Against plain passes; b less a is a less b with the sign turned; parts sum to the change that they divide."""
    a, b = make(), make(seed=1)
    c, back = ld.compare(a, b, TEXTS, unit=unit), ld.compare(b, a, TEXTS, unit=unit)
    logit, centered, loss = answers(b) - answers(a)
    np.testing.assert_allclose(c.change.sum(0), logit, atol=2e-6)
    np.testing.assert_allclose(c.centered_change.sum(0), centered, atol=2e-6)
    np.testing.assert_allclose(c.loss_change.sum(0) + c.entropies[1] - c.entropies[0], loss, atol=3e-6)
    np.testing.assert_allclose(c.cross_entropies[1] - c.cross_entropies[0], loss, atol=3e-6)
    np.testing.assert_allclose(c.b.losses - c.a.losses, loss, atol=3e-6)
    np.testing.assert_allclose(sum(c.parts.values()).T, c.centered_change, atol=1e-12)
    np.testing.assert_array_equal(c.change, -back.change)
    assert np.nanmax(np.abs(c.change.sum(0) - logit)) <= c.absolute_gap + 1e-6
    assert not c.same_weights


@pytest.mark.full
def test_changes_at_the_end_are_those_of_the_next_token_as_an_option():
    """A second way to the same numbers: the read-out of one option, after each beginning of the text."""
    a, b, text = gpt2(), gpt2(seed=1), TEXTS[0]
    c = ld.compare(a, b, text)
    for position in (1, 4, 6):
        row = ld.compare(a, b, [text[: position + 1]], [text[position + 1]])
        np.testing.assert_allclose(c.change[:, position], row.change[0, :, 0], atol=1e-6)
    ids = list(range(a.config.vocab_size))
    rows = ld.compare(a, b, [text[:5]], ids)
    for part, values in c.parts.items():
        others = rows.parts[part][0]
        np.testing.assert_allclose(values[4], others[:, text[5]] - others.mean(1), atol=1e-6, err_msg=part)


@pytest.mark.full
def test_the_same_weights_read_zero_to_the_bit():
    """A copy changes nothing, in any unit; a soft-cap and a half-precision copy are no exceptions to the sums."""
    model = llama()
    c = ld.compare(model, copy.deepcopy(model), TEXTS, unit="head")
    assert c.same_weights
    assert c.first_changed is None
    for values in (c.change, c.centered_change, c.loss_change, c.own_change):
        assert not np.nan_to_num(values).any()
    half = ld.compare(model, copy.deepcopy(model).to(torch.bfloat16), TEXTS)
    assert half.components[-1].kind == "rounding"
    assert half.first_changed is None
    np.testing.assert_allclose(half.change.sum(0), half.b.target_logit.sum(0) - half.a.target_logit.sum(0), atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_change_is_the_first(seed):
    """All before it wrote the same, to float32's rounding; the read-out is a's, to the bit."""
    model, layer = llama(), seed % 3
    name = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")[seed]
    c = ld.compare(model, planted(model, f"model.layers.{layer}.{name}", seed), TEXTS)
    first = c.first_changed
    assert (first.layer, first.module) == (layer, "attention" if "attn" in name else "mlp")
    assert np.nanmax(np.abs(c.own_change[: c.components.index(first)])) < 1e-6
    assert not np.nan_to_num(c.parts["gain"]).any()
    assert not np.nan_to_num(c.parts["unembedding"]).any()
    assert c.by_component().attrs["first_changed"] == first.label


def test_an_unembedding_that_differs_elsewhere_is_nobodys_own_change():
    """Only the row of an id that the texts lack: logits change by its share of the mean over the vocabulary."""
    a, b = llama(), llama()
    with torch.no_grad():
        b.lm_head.weight[40] += 1.0
    assert all(40 not in text for text in TEXTS)
    c = ld.compare(a, b, TEXTS)
    known = np.isfinite(c.own_change).all(0)
    assert not c.own_change[:, known].any()
    np.testing.assert_allclose(c.parts["unembedding"].T[:, known], c.centered_change[:, known], atol=1e-12)
    assert np.abs(c.centered_change[:, known]).max() > 1e-4


@pytest.mark.full
def test_tables_are_means_of_the_arrays_and_are_kept(tmp_path):
    """Tokens, components and totals; intervals over eight texts; a file; the figures are of these numbers."""
    a, b = llama(), llama(seed=1)
    c = ld.compare(a, b, TEXTS)
    known = c.a.has_target
    tokens, totals = c.by_token(), c.totals().set_index("quantity")
    np.testing.assert_allclose(tokens["entropy_change"] + tokens["net_change"], tokens["loss_change"], atol=1e-5)
    assert totals.loc["loss", "change"] == pytest.approx(tokens["loss_change"].mean())
    largest = np.abs(c.loss_change[:, 1]).argmax()
    assert tokens["most"][1] == c.components[largest].label
    means = c.by_component()
    np.testing.assert_allclose(means["loss_change"], c.loss_change[:, known].mean(1))
    assert means["change_low"].isna().all()
    many = ld.compare(a, b, [TEXTS[0][: n + 2] for n in range(8)]).by_component()
    assert (many["change_low"] < many["change"]).all()
    frame = c.frame(kind="mlp")
    np.testing.assert_array_equal(frame["change"], c.centered_change[[2, 4, 6]].T.ravel())
    kept = ld.TextComparison.load(c.save(tmp_path / "c.safetensors"))
    assert kept.by_token().equals(tokens)
    np.testing.assert_array_equal(c.plot().data[0].z, c.loss_change)
    np.testing.assert_array_equal(c.plot(changed="own").data[0].z, c.own_change)
    bars = np.concatenate([trace.y for trace in c.plot(kind="bars").data])
    expected = np.concatenate([means[name] for name in ("change", "own_change", "loss_change")])
    np.testing.assert_allclose(np.sort(bars), np.sort(expected))


def test_models_of_different_shape_are_compared_by_module_and_relative_depth():
    """Groups sum to the change of the loss less that of the entropy; tokens have their losses; the rest is refused."""
    few, c = (ld.compare(llama(), llama(seed=1, num_hidden_layers=5), texts) for texts in (TEXTS[:2], MANY))
    assert few.by_module()[["share_a", "share_b"]].isna().all(axis=None)  # two texts do not say that a whole is not 0
    total = c.totals().set_index("quantity").loc["net_linear", "change"]
    for frame in (c.by_module(), c.by_depth(3)):
        assert frame["change"].sum() == pytest.approx(total)
        for side in "ab":
            np.testing.assert_allclose(frame[f"share_{side}"] * frame[side].sum(), frame[side])
            assert frame[f"share_{side}"].sum() == pytest.approx(1)
        assert frame.attrs["units"]["share_a"] == "share"
    assert "most" not in c.by_token()
    for use in (lambda: c.change, lambda: c.own_change, c.frame):
        with pytest.raises(ld.InputError, match="by_depth"):
            use()


@pytest.mark.full
def test_texts_that_cannot_be_compared():
    """Nothing to predict; other vocabularies; arguments that belong to options."""
    a, b = llama(), llama(seed=1)
    for texts, about in (([3], "one token"), ([[3], [4]], "one token"), ("", "text"), ([], "no")):
        with pytest.raises(ld.InputError, match=about):
            ld.compare(a, b, texts)
    with pytest.raises(ld.InputError, match="vocabularies"):
        ld.compare(a, llama(vocab_size=64), TEXTS)
    for name, given in (
        ("labels", [0, 1]),
        ("position", 2),
        ("labels", np.array([0, 1])),
        ("position", np.array([0, 1])),
    ):
        with pytest.raises(ld.InputError, match=name):
            ld.compare(a, b, TEXTS, **{name: given})
