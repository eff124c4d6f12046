"""The whole vocabulary without its logits, against the logits."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from layerdiv_tl.ensemble.intervals import estimate
from tests.conftest import gpt2, llama
from tests.model.test_bridge import boot
from tests.model.test_families import NO_HEADS, NO_NEURONS
from tests.model.test_long_texts import network
from tests.oracles import brute_force_ensemble as brute
from tests.oracles.brute_force import sigma_of, writes_of
from tests.oracles.families import FAMILIES, each
from tests.oracles.hooked_forward import trace

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11]
MODEL = ld.load_model(llama())
GAUGES = ("raw", "centered", "shift")


def logits_form(model, ids, unit="sublayer"):
    """What the Gram form replaces: every component's logits over the vocabulary, `[component, position, id]`."""
    model = ld.load_model(model)
    places = list(range(len(ids)))
    c = ld.contributions(model, [list(ids)] * len(ids), list(range(model.path.outputs)), unit=unit, position=places)
    return c, c.values.transpose(1, 0, 2)


def agree(p, truth, tolerance):
    """Every number of a profile in each gauge, NaN where there is no target."""
    for name in GAUGES:
        expected, found = getattr(truth, name), replace(p, gauge=name)
        for term in ("bias", "diversity", "net"):
            close(getattr(found, term), getattr(expected, term), tolerance)
        close(found.mse, expected.loss, tolerance)
    close(p.target_logit, truth.target_logit, tolerance)


def close(found, expected, tolerance):
    """Equal to a tolerance relative to the largest number of each component, or of the column."""
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    known = ~np.isnan(expected).all(-1)
    scale = np.nanmax(np.abs(expected[known] if expected.ndim > 1 else expected), axis=-1, keepdims=True)
    off = np.abs(found - expected)[known] if expected.ndim > 1 else np.abs(found - expected)
    assert np.nanmax(off / np.where(scale > 0, scale, 1.0), initial=0.0) <= tolerance


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("make", [llama, gpt2, lambda: llama(attention_bias=True, mlp_bias=True)])
def test_equals_the_logits_form(make, unit):
    """Bias, diversity, net, raw and in halves: to 1e-9 in float64, with LayerNorm, biases and a constant too."""
    model = ld.load_model(make().double())
    _, u = logits_form(model, IDS, unit)
    truth = brute.whole_vocabulary(u, [*IDS[1:], None])
    p = ld.profile(model, IDS, unit)
    agree(p, truth, 1e-9)
    close(p.loss, truth.cross_entropy, 1e-6)  # some norms compute in float32 whatever the model is
    assert p.identity_gap < 1e-7


def center(x):
    return x - x.mean(-1, keepdims=True)


def members(root, ids, position, unit):
    """{label: what it writes to the stream of a Llama at a position}, by hooks."""
    sublayers, heads, _ = writes_of(root, ids, position)
    if unit != "neuron":
        return sublayers if unit == "sublayer" else heads
    held = []
    hooks = [x.mlp.down_proj.register_forward_pre_hook(lambda m, args: held.append(args[0])) for x in root.model.layers]
    trace(root, ids)
    for hook in hooks:
        hook.remove()
    for layer, (block, inner) in enumerate(zip(root.model.layers, held, strict=True)):
        columns = (block.mlp.down_proj.weight * inner[0, position]).detach().double().numpy().T
        sublayers |= {f"L{layer}.N{index}": write for index, write in enumerate(columns)}
    return sublayers


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("stories", unit) for unit in ("sublayer", "head", "neuron")),
        ("smol", "sublayer"),
        *(pytest.param("smol", unit, marks=pytest.mark.nightly) for unit in ("head", "neuron")),
    ],
)
def test_equals_the_logits_form_on_trained_models(name, unit, request):
    """512 and 49 152 ids, products in float32: each component against the size of the logits subtracted there."""
    model = request.getfixturevalue(name)
    root, ids = (
        model.hf_model,
        model.tokenizer("The capital of France is Paris, and the capital of Italy is")["input_ids"],
    )
    p = ld.profile(model, ids, unit)
    matrix = root.lm_head.weight.detach().double().numpy() * root.model.norm.weight.detach().double().numpy()
    chosen = range(0, len(p.components), 97 if len(p.components) > 9999 else 1)
    gauges = {"raw": lambda x: x, "centered": center, "shift": lambda x: x.mean(-1, keepdims=True)}
    for place in (3, len(ids) - 2):
        sublayers, writes = (members(root, ids, place, x) for x in ("sublayer", unit))
        final = sum(sublayers.values())
        read = matrix.T / sigma_of(root, final)
        target = (np.arange(p.vocabulary) == ids[place + 1]).astype(float)
        mean = final @ read / len(p.components)
        for start in range(0, len(chosen), 16):
            some = list(chosen[start : start + 16])
            u = np.stack([writes[p.components[i].label] for i in some]) @ read
            size = sum((x**2).mean(-1) for x in (u, mean, target))
            for half, gauge in gauges.items():
                bias, diversity = ((gauge(x - u) ** 2).mean(1) for x in (target, mean))
                found = replace(p, gauge=half)
                pairs = {"bias": bias, "diversity": diversity, "net": bias - diversity}
                for term, expected in pairs.items():
                    off = np.abs(getattr(found, term)[some, place] - expected)
                    assert (off <= 2e-6 * size).all(), (half, term)


@pytest.mark.full
def test_streaming_is_the_same_in_any_pieces(monkeypatch):
    """Vocabulary chunks, position blocks and batches change nothing but speed."""
    from layerdiv_tl.attribution import carried, profile_passes, vocabulary

    texts = [IDS, IDS[3:], [7], IDS[:4]]
    one = ld.profile(gpt2(), texts)
    monkeypatch.setattr(vocabulary, "CHUNK", 7)
    monkeypatch.setattr(profile_passes, "NUMBERS", 500)
    monkeypatch.setattr(carried, "NUMBERS", 500)
    other = ld.profile(gpt2(), texts, batch_tokens=12)
    for name in ("bias", "diversity", "net", "target_logit", "loss"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", each(FAMILIES))
def test_a_family(name):
    """Norms after sublayers, multipliers, caps, biases, experts: the logits form again, at every unit."""
    model = ld.load_model(FAMILIES[name]())
    for unit in ["sublayer"] + ["head"] * (name not in NO_HEADS) + ["neuron"] * (name not in NO_NEURONS):
        c, u = logits_form(model, IDS, unit)
        p = ld.profile(model, IDS, unit)
        assert p.components == c.components
        assert p.identity_gap <= 1e-6
        mean = u.mean(0)
        close(replace(p, gauge="raw").diversity, ((mean - u) ** 2).mean(2), 1e-4)
        close(p.diversity, (center(mean - u) ** 2).mean(2), 1e-4)
        target = np.eye(u.shape[2])[IDS[1:]]
        close(p.bias[:, :-1], (center(target - u[:, :-1]) ** 2).mean(2), 1e-4)
        close(p.target_logit[:, :-1], np.take_along_axis(u, np.array([*IDS[1:], 0])[None, :, None], 2)[:, :-1, 0], 1e-4)
        log_p = torch.log_softmax(torch.as_tensor(c.model_logits), 1).numpy()
        close(p.loss[:-1], -log_p[np.arange(len(IDS) - 1), IDS[1:]], 1e-4)


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_half_precision_names_its_rounding(unit):
    """A bfloat16 model: the rounding is a component, and the sum is the logit."""
    p = ld.profile(gpt2().bfloat16(), IDS, unit)
    assert p.components[-1].kind == "rounding"
    assert p.identity_gap < 2e-2
    total = p.target_logit.sum(0)[:-1]
    c = ld.contributions(
        gpt2().bfloat16(), [IDS] * 10, [[i, (i + 1) % 61] for i in IDS[1:]], unit=unit, position=list(range(10))
    )
    np.testing.assert_allclose(total, c.logits[:, 0], atol=0.1)


@pytest.mark.full
def test_centring_the_unembedding_moves_raw_numbers_only():
    """center_unembed takes a shift out of every component; centered numbers and nets do not see it."""
    bridge = boot(gpt2())
    before = ld.profile(bridge, IDS)
    logging.disable(logging.WARNING)
    bridge.enable_compatibility_mode(center_writing_weights=False, fold_value_biases=False)
    logging.disable(logging.NOTSET)
    after = ld.profile(bridge, IDS)
    assert after.components == before.components
    for term in ("bias", "diversity", "net"):
        close(getattr(after, term), getattr(before, term), 1e-5)
    before, after = (replace(p, gauge="shift") for p in (before, after))
    assert np.abs(after.diversity).max() < 1e-3 * np.abs(before.diversity).max()


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_a_bridge_gives_what_the_modules_give(unit):
    plain, bridged = ld.profile(gpt2(), IDS, unit), ld.profile(boot(gpt2()), IDS, unit)
    assert plain.components == bridged.components
    for name in ("bias", "diversity", "net", "target_logit", "loss"):
        close(getattr(bridged, name), getattr(plain, name), 1e-5)


def test_several_texts_stand_side_by_side():
    """Each text as if alone, whatever batch it was in; NaN at the end of each."""
    texts = [IDS, [3, 4], [9], IDS[2:7]]
    p = ld.profile(gpt2(), texts)
    start = 0
    for number, text in enumerate(texts):
        alone, columns = ld.profile(gpt2(), text), slice(start, start + len(text))
        assert set(p.documents[columns]) == {number}
        for name in ("bias", "diversity", "net", "target_logit"):
            np.testing.assert_allclose(getattr(p, name)[:, columns], getattr(alone, name), rtol=1e-4, atol=1e-5)
        assert np.isnan(p.loss[columns][-1])
        start += len(text)
    assert p.next_tokens[len(IDS) - 1] is None
    assert p.next_tokens[0] == p.tokens[1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=7), st.integers(1, 40))
@pytest.mark.full
def test_every_number_stands_at_its_token(lengths, batch_tokens):
    """Whatever the lengths and batches: each text's columns are those of the text alone."""
    rng, model = np.random.default_rng(sum(lengths)), MODEL
    texts = [rng.integers(0, 61, length).tolist() for length in lengths]
    p = ld.profile(model, texts, batch_tokens=batch_tokens)
    alone = [ld.profile(model, text) for text in texts]
    for name in ("bias", "net", "target_logit", "loss"):
        expected = np.concatenate([getattr(one, name) for one in alone], -1)
        np.testing.assert_allclose(getattr(p, name), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_top_tokens_are_the_largest_logits(unit):
    """The tokens a component promotes and suppresses, against its logits."""
    model = ld.load_model(gpt2())
    p = ld.profile(model, [IDS, IDS[2:6]], unit)
    c, u = logits_form(model, IDS, unit)
    labels = [p.components[i].label for i in (0, 2, len(p.components) // 2, len(p.components) - 1)]
    frame = p.top_tokens(labels, 6, k=4)
    assert frame["component"].drop_duplicates().tolist() == labels
    for label in labels:
        logits = u[[x.label for x in c.components].index(label), 6]
        for effect, order in (("promotes", np.argsort(-logits)), ("suppresses", np.argsort(logits))):
            rows = frame[(frame.component == label) & (frame.effect == effect)]
            np.testing.assert_allclose(rows.contribution, logits[order[:4]], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                rows.contribution_centered, logits[order[:4]] - logits.mean(), rtol=1e-4, atol=1e-5
            )
    last = p.top_tokens("L0.mlp" if unit != "neuron" else "L0.N3", -1, k=1)
    alone = ld.profile(model, IDS[2:6], unit).top_tokens(last["component"][0], 3, k=1)
    assert last["token_id"].tolist() == alone["token_id"].tolist()
    if unit == "sublayer":
        everything = p.top_tokens(position=2, k=1)
        assert len(everything) == 2 * len(p.components)


def test_by_component_and_frame():
    p = ld.profile(gpt2(), [IDS * 3, IDS])
    table, seen = p.by_component(), p.has_target
    np.testing.assert_allclose(table["bias"], p.bias[:, seen].mean(1))
    np.testing.assert_allclose(table["diversity"], p.diversity[:, seen].mean(1))
    assert table[["net_low", "net_high"]].isna().all(axis=None)
    assert table.attrs["intervals"].startswith("no intervals: 2 texts")
    assert table.attrs["units"]["bias_low"] == "logits²"
    frame = p.frame(kind="mlp", layer=[0, 2])
    assert frame["component"].unique().tolist() == ["L0.mlp", "L2.mlp"]
    row = frame[(frame.position == 4) & (frame.component == "L2.mlp")].iloc[0]
    place = [c.label for c in p.components].index("L2.mlp")
    assert row["net"] == pytest.approx(p.net[place, 4])
    assert (row["token"], row["next_token"]) == (p.tokens[4], p.tokens[5])
    assert frame["loss"].isna().sum() == 4
    assert len(p.frame()) == len(p.components) * len(p.tokens)


def test_saved_and_loaded(tmp_path):
    """Everything comes back but the model, and that is said."""
    p = ld.profile(gpt2(), [IDS, IDS[:3]])
    again = ld.load(p.save(tmp_path / "p.safetensors"))
    assert type(again) is type(p)
    np.testing.assert_array_equal(again.bias, p.bias)
    assert again.by_component().equals(p.by_component())
    assert repr(again) == repr(p)
    with pytest.raises(ld.InputError, match="file"):
        again.top_tokens("embed", 0)


@pytest.mark.full
def test_changed_weights_are_noticed():
    """What a Model keeps belongs to its weights: after an edit the numbers are those of a fresh one."""
    for edit in ("lm_head", "down_proj"):
        hf = llama()
        model = ld.load_model(hf)
        for unit in ("sublayer", "neuron"):
            ld.profile(model, IDS, unit)
        weight = hf.lm_head.weight if edit == "lm_head" else hf.model.layers[0].mlp.down_proj.weight
        with torch.no_grad():
            weight.mul_(2)
        for unit in ("sublayer", "neuron"):
            close(ld.profile(model, IDS, unit).diversity, ld.profile(hf, IDS, unit).diversity, 1e-6)
    ld.profile(model, IDS)
    hf.lm_head.weight.data.mul_(2)  # which torch itself does not count as a change
    close(ld.profile(model, IDS).diversity, ld.profile(hf, IDS).diversity, 1e-6)
    hf.lm_head.weight.data[5, :2] += torch.tensor([1.0, -1.0])  # nor is it seen in the sum of the weights
    with pytest.raises(ld.InputError, match="unembedding"):
        ld.profile(model, IDS)


def test_autocast_changes_nothing():
    """A user's autocast neither lowers the precision of a profile nor of what is kept for the next one."""
    model = ld.load_model(llama())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = ld.profile(model, IDS)
        c = ld.contributions(model, [IDS], [1, 2])
    close(within.diversity, ld.profile(llama(), IDS).diversity, 1e-6)
    close(ld.profile(model, IDS).diversity, within.diversity, 1e-6)
    np.testing.assert_allclose(c.values, ld.contributions(llama(), [IDS], [1, 2]).values, atol=1e-6)


def test_the_users_hooks_see_one_pass():
    """Norm and unembedding are asked again for other positions, past the user's hooks."""
    model, seen = llama(), []
    for module in (model.model.norm, model.lm_head):
        module.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    ld.profile(model, IDS)
    assert seen == ["LlamaRMSNorm", "Linear"]


def test_top_tokens_of_a_model_that_reads_long_texts_in_another_way():
    """LongRoPE: a token is looked at in the text it stood in, not in a shorter one."""
    ids = np.random.default_rng(1).integers(3, 61, 30).tolist()
    p = ld.profile(network("longrope"), ids)
    frame = p.top_tokens("L1.mlp", 5, 61)
    own = frame[(frame.effect == "promotes") & (frame.token_id == ids[6])].contribution.item()
    assert own == pytest.approx(p.target_logit[[c.label for c in p.components].index("L1.mlp"), 5], rel=1e-4)


def test_one_token_has_nothing_to_be_compared_with():
    """Columns of NaN where there is no next token."""
    table = ld.profile(llama(), [7]).by_component()
    assert table[["bias", "diversity", "net", "net_low"]].isna().all().all()


def test_texts_are_the_independent_units():
    """From eight texts on a mean over tokens has the interval of a ratio of sums over texts; fewer have none."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 61, int(n)).tolist() for n in rng.integers(2, 20, 9)]
    assert ld.profile(llama(), texts[:7]).by_component()["net_low"].isna().all()
    p = ld.profile(llama(), texts)
    table, seen = p.by_component(), p.has_target
    sums = np.stack([p.net[:, seen & (p.documents == text)].sum(1) for text in range(9)])
    counts = np.array([[len(text) - 1] for text in texts], dtype=float)
    for column, expected in zip(("net", "net_low", "net_high"), estimate(sums, counts=counts)[:3], strict=True):
        np.testing.assert_allclose(table[column], expected)


def test_tables_that_do_not_fit_are_refused_before_the_run(monkeypatch):
    import psutil

    free = type("Memory", (), {"available": 1000})()
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: free)
        with pytest.raises(ld.InputError, match="GiB"):
            ld.profile(llama(), IDS, "neuron")


def test_broken_weights_are_refused_by_name():
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(ld.InputError, match=r"layers\.1\.mlp"):
        ld.profile(model, IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text_or_ids": [[]]}, "prompt 0"),
        ({"text_or_ids": []}, "prompts"),
        ({"text_or_ids": "a text"}, "tokenizer"),
        ({"text_or_ids": [1, 99]}, " 60"),
        ({"unit": "layer"}, "unit='layer'"),
        ({"text_or_ids": [[1] * 65]}, "65 tokens"),
    ],
)
def test_bad_input_is_a_sentence(arguments, message):
    with pytest.raises(ld.InputError, match=message):
        ld.profile(**{"model": llama(), "text_or_ids": [1, 2, 3], **arguments})


def test_bad_questions_are_answered_in_a_sentence():
    p = ld.profile(llama(), IDS)
    for arguments, message in (
        (("L9.mlp", 0), "label 'L9.mlp'"),
        (("embed", 11), "position=11"),
        (("embed", "last"), "position="),
        (("embed", 0, 0), "k=0"),
        (("embed", 0, 62), "k=62"),
    ):
        with pytest.raises(ld.InputError, match=message):
            p.top_tokens(*arguments)
    with pytest.raises(ld.InputError, match="layer=99"):
        p.frame(layer=99)
    with pytest.raises(ld.InputError, match="component=5"):
        p.top_tokens(5, 0)
