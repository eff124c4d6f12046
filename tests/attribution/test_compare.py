"""Two models compared, on options and at every token of texts: changes sum to those of logits and losses, to rounding,
and each of their parts is what it is said to be.
"""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import layerdiv_tl as ld
from layerdiv_tl.ensemble.intervals import estimate
from tests.conftest import gpt2, llama
from tests.oracles.brute_force import frozen_readout, sigma_of, writes_of

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0], [2, 7, 1, 8, 2, 8, 1]] * 3
OPTIONS = [7, 30, 2]
LONG = [[[7, 9], [30], [2, 5, 5]]] * 12
LABELS = [0, 2, 1, 1, 0, 2, 2, 0, 1, 2, 2, 0]
TEXTS = [[5, 1, 4, 1, 5, 9, 2, 6], [17, 11, 60, 0], [3], [2, 7, 1, 8, 2, 8]]
MANY = np.random.default_rng(0).integers(0, 61, (30, 6)).tolist()
RUNS = {
    "options": lambda a, b: ld.compare(a, b, PROMPTS, OPTIONS, labels=LABELS),
    "heads": lambda a, b: ld.compare(a, b, PROMPTS, OPTIONS, "head", labels=LABELS),
    "long options": lambda a, b: ld.compare(a, b, PROMPTS, LONG, "head"),
    "texts": lambda a, b: ld.compare(a, b, TEXTS),
}


def answers(model, prompt):
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1, OPTIONS].double().numpy()


def planted(model, name, seed, size=0.05):
    """A low-rank change of one matrix, as a LoRA adapter makes it, in a copy."""
    changed, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    weight = changed.get_submodule(name).weight
    update = torch.randn(len(weight), 2, generator=generator) @ torch.randn(2, weight.shape[1], generator=generator)
    with torch.no_grad():
        weight.add_(size * weight.norm() / update.norm() * update)
    return changed


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_changes_sum_to_the_change_of_the_logits(make, unit):
    """Against plain passes; b less a is a less b with the sign turned; the parts of every change sum to it."""
    a, b = make(), make(seed=1)
    c, back = ld.compare(a, b, PROMPTS, OPTIONS, unit), ld.compare(b, a, PROMPTS, OPTIONS, unit)
    plain = np.array([answers(b, prompt) - answers(a, prompt) for prompt in PROMPTS])
    np.testing.assert_allclose(c.change.sum(1), plain, atol=1e-5)
    np.testing.assert_allclose(c.model_change, plain, atol=1e-5)
    assert np.abs(c.change.sum(1) - c.model_change).max() <= c.absolute_gap
    assert c.identity_gap < 1e-6
    np.testing.assert_array_equal(c.change, -back.change)
    np.testing.assert_allclose(sum(c.parts.values()), c.change, atol=1e-12)
    assert c.own_change is c.parts["own"]
    assert not c.same_weights


@pytest.mark.parametrize("unit", ["sublayer", "head"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_parts_are_those_of_the_definition(make, unit):
    """Own, statistic, gain and unembedding, from hooked passes and float64 arithmetic on what they caught."""
    a, b = make(), make(seed=1)
    mixed = copy.deepcopy(b)  # b's norm, a's unembedding
    mixed.lm_head = copy.deepcopy(a.lm_head)
    c = ld.compare(a, b, PROMPTS[:4], OPTIONS, unit)
    labels = [component.label for component in c.components]
    for row, prompt in enumerate(PROMPTS[:4]):
        writes, sigmas = [], []
        for model in (a, b):
            sublayers, heads, _ = writes_of(model, prompt)
            writes.append(sublayers if unit == "sublayer" else heads)
            sigmas.append(sigma_of(model, sum(sublayers.values())))
        for name, after in writes[1].items():
            read = {
                "a": frozen_readout(a, writes[0][name], sigmas[0], OPTIONS),
                "own": frozen_readout(a, after, sigmas[0], OPTIONS),
                "statistic": frozen_readout(a, after, sigmas[1], OPTIONS),
                "gain": frozen_readout(mixed, after, sigmas[1], OPTIONS),
                "unembedding": frozen_readout(b, after, sigmas[1], OPTIONS),
            }
            steps = np.diff(np.array(list(read.values())), axis=0)
            for part, step in zip(list(read)[1:], steps, strict=True):
                np.testing.assert_allclose(c.parts[part][row, labels.index(name)], step, atol=2e-5)
    if "constant" in labels:
        at = labels.index("constant")
        gain = mixed.lm_head.weight[OPTIONS] @ (b.transformer.ln_f.bias - a.transformer.ln_f.bias)
        np.testing.assert_allclose(c.parts["gain"][0, at], gain.detach().numpy(), atol=1e-5)
        assert not c.parts["own"][:, at].any()
        assert not c.parts["statistic"][:, at].any()


@pytest.mark.full
@pytest.mark.parametrize("make", [llama, gpt2])
def test_parts_of_longer_options_are_those_of_the_definition(make):
    """Token by token, less the mean over the vocabulary, from hooked passes; alternatives at a's weights."""
    a, b = make(), make(seed=1)
    mixed = copy.deepcopy(b)  # b's norm, a's unembedding
    mixed.lm_head = copy.deepcopy(a.lm_head)
    every, options = list(range(a.config.vocab_size)), [[[7, 9], [30]], [[3, 1, 2]]]
    c = ld.compare(a, b, PROMPTS[:2], [[{(7, 9), (30,)}, (3, 1, 2)]] * 2)
    labels = [component.label for component in c.components]
    for row, prompt in enumerate(PROMPTS[:2]):
        for k, alternatives in enumerate(options):
            steps, likely = [], []
            for tokens in alternatives:
                found, log_p = 0.0, 0.0
                for t, token in enumerate(tokens):
                    context = [*prompt, *tokens[:t]]
                    with torch.no_grad():
                        log_p += float(a(torch.tensor([context])).logits[0, -1].log_softmax(0)[token])
                    writes, sigmas = [], []
                    for model in (a, b):
                        sublayers, _, _ = writes_of(model, context)
                        writes.append(sublayers)
                        sigmas.append(sigma_of(model, sum(sublayers.values())))
                    readers = [(a, 0, 0), (a, 1, 0), (a, 1, 1), (mixed, 1, 1), (b, 1, 1)]
                    read = [
                        [frozen_readout(m, writes[side][name], sigmas[at], every) for m, side, at in readers]
                        for name in writes[0]
                    ]
                    centered = np.array(read) - np.array(read).mean(2, keepdims=True)
                    found = found + np.diff(centered[:, :, token], axis=1)
                steps.append(found)
                likely.append(log_p)
            weights = np.exp(np.array(likely) - np.logaddexp.reduce(likely))
            wanted = np.einsum("a,acs->cs", weights, np.array(steps))
            rows = [labels.index(name) for name in writes[0]]
            for number, part in enumerate(("own", "statistic", "gain", "unembedding")):
                np.testing.assert_allclose(c.parts[part][row, rows, k], wanted[:, number], atol=2e-5)
    np.testing.assert_allclose(sum(c.parts.values()), c.change, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("run", RUNS)
def test_the_same_weights_read_zero_to_the_bit(run):
    """A copy is the same weights, and so is every number; nothing changed first."""
    model = llama()
    c = RUNS[run](model, copy.deepcopy(model))
    assert c.same_weights
    assert c.first_changed is None
    assert not np.nan_to_num(c.change).any()
    assert not np.nan_to_num(c.own_change).any()
    frame = c.frame()
    assert not frame.filter(like="change").fillna(0).to_numpy().any()
    if run != "texts":
        assert frame.attrs["same_weights"]
        assert "same weights" in repr(c)
        assert "same weights" in c.plot().layout.title.subtitle.text.replace("<br>", "")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("run", RUNS)
def test_a_planted_low_rank_change_is_found(seed, run):
    """What stands before it changed nothing itself, to the bit or, at every token, to rounding; the read-out is a's."""
    model, layer = llama(), seed % 3
    name = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")[seed % 4]
    c = RUNS[run](model, planted(model, f"model.layers.{layer}.{name}", seed))
    first, is_text = c.first_changed, run == "texts"
    assert (first.layer, first.module) == (layer, "attention" if "attn" in name else "mlp")
    before = np.moveaxis(c.own_change, 0 if is_text else 1, 0)[: c.components.index(first)]
    assert np.nanmax(np.abs(before)) <= 1e-6 * is_text
    assert not np.nan_to_num([c.parts["gain"], c.parts["unembedding"]]).any()
    assert (c.by_component() if is_text else c.frame()).attrs["first_changed"] == first.label


def test_an_adapter_is_a_row_that_the_base_lacks():
    """As rows of its own an adapter's first layer is found; what it writes is its own change, from nothing."""
    peft = pytest.importorskip("peft")
    base = llama()
    settings = {"target_modules": ["down_proj"], "layers_to_transform": [1], "init_lora_weights": False}
    tuned = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=2, **settings))
    merged = ld.compare(base, tuned, PROMPTS, OPTIONS)
    assert merged.first_changed.label == "L1.mlp"
    c = ld.compare(base, ld.load_model(tuned, adapters="component"), PROMPTS, OPTIONS)
    assert c.first_changed.label == "L1.mlp.lora"
    np.testing.assert_allclose(c.change.sum(1), merged.change.sum(1), atol=1e-5)
    at = c.components.index(c.first_changed)
    np.testing.assert_allclose(c.change[:, at], c.b["L1.mlp.lora"], atol=1e-12)
    np.testing.assert_allclose(sum(c.parts.values()), c.change, atol=1e-12)


@pytest.mark.parametrize("changed", ["gain", "unembedding"])
def test_a_changed_read_out_is_nobodys_own_change(changed):
    """Only the final norm, or only the unembedding, differs: nothing else changes, and in its part alone."""
    a = llama()
    b = copy.deepcopy(a)
    with torch.no_grad():
        (b.model.norm if changed == "gain" else b.lm_head).weight.mul_(1.5)
    c = ld.compare(a, b, PROMPTS, OPTIONS)
    assert not c.own_change.any()
    for part, values in c.parts.items():  # a norm's epsilon is found from its answers, to rounding
        assert (np.abs(values).max() > 1e-5) == (part == changed)
    np.testing.assert_allclose(c.parts[changed], 0.5 * c.a.values, atol=1e-6)
    long = ld.compare(a, b, PROMPTS, LONG)
    assert not long.own_change.any()
    assert {part for part, values in long.parts.items() if np.abs(values).max() > 1e-5} == {changed, "expectation"}


def test_a_bias_of_the_unembedding_is_its_change():
    """Of one token and of several, whether it came or went: nothing else changed, and components sum to it."""
    a = llama()
    b = copy.deepcopy(a)
    b.lm_head = torch.nn.Linear(b.config.hidden_size, b.config.vocab_size)
    b.lm_head.weight = a.lm_head.weight
    bias = b.lm_head.bias.detach().double().numpy()
    for sign, models in ((1, (a, b)), (-1, (b, a))):
        c, long = (ld.compare(*models, PROMPTS[:2], options) for options in (OPTIONS, LONG[:2]))
        np.testing.assert_allclose(c.parts["unembedding"].sum(1)[0], sign * bias[OPTIONS], atol=1e-7)
        wanted = [(bias[ids] - bias.mean()).sum() for ids in LONG[0]]
        np.testing.assert_allclose(long.parts["unembedding"].sum(1)[0], sign * np.array(wanted), atol=1e-6)
        for parts in (c.parts, long.parts):
            assert not any(parts[name].any() for name in ("own", "statistic", "gain"))


def test_the_loss_changes_by_its_exact_parts():
    """Against softmaxes of plain passes; components' linear nets and the entropy sum to it; bias − diversity too."""
    a, b = llama(), llama(seed=1)
    c = ld.compare(a, b, PROMPTS, OPTIONS, labels=LABELS)
    losses = []
    for model in (a, b):
        logits = torch.tensor(np.array([answers(model, prompt) for prompt in PROMPTS]))
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS)).item())
    totals, frame = c.totals().set_index("quantity"), c.frame()
    change = totals["change"]
    assert change["cross_entropy"] == pytest.approx(losses[1] - losses[0], abs=1e-5)
    assert change["entropy"] + frame["net_linear_change"].sum() == pytest.approx(change["cross_entropy"])
    assert change["bias"] - change["diversity"] == pytest.approx(change["loss"])
    assert frame["net_change"].mean() == pytest.approx(change["loss"])
    assert frame["net_change_centered"].mean() == pytest.approx(change["loss_centered"])
    assert frame["change"].sum() == pytest.approx(change["score"])
    logits = [side.logits for side in (c.a, c.b)]
    score = [x[np.arange(12), LABELS] - (x.sum(1) - x[np.arange(12), LABELS]) / 2 for x in logits]
    assert change["score"] == pytest.approx((score[1] - score[0]).mean())
    assert change["accuracy"] == pytest.approx(
        np.mean(logits[1].argmax(1) == LABELS) - np.mean(logits[0].argmax(1) == LABELS)
    )
    assert (totals["change_low"] <= change).all()


def test_models_of_different_shape_are_compared_by_module_and_relative_depth():
    """Groups sum to the change of the score; components are refused."""
    a, b = llama(), llama(seed=1, num_hidden_layers=5)
    c = ld.compare(a, b, PROMPTS, OPTIONS, labels=LABELS)
    total = c.totals().set_index("quantity").loc["score", "change"]
    for frame in (c.by_module(), c.by_depth(3), c.by_depth()):
        assert frame["change"].sum() == pytest.approx(total)
        for side in "ab":
            logits = (c.a if side == "a" else c.b).logits
            gold = np.eye(logits.shape[1])[LABELS] > 0
            score = logits[gold] - (logits.sum(1) - logits[gold]) / (logits.shape[1] - 1)
            _, low, high, *_ = estimate(score)
            if low <= 0 <= high:  # no whole to have shares of
                assert frame[f"share_{side}"].isna().all()
            else:
                np.testing.assert_allclose(frame[f"share_{side}"] * frame[side].sum(), frame[side])
                assert frame[f"share_{side}"].sum() == pytest.approx(1)
        assert frame.attrs["units"]["share_a"] == "share"
        assert (frame["members_a"].sum(), frame["members_b"].sum()) == (7, 11)
    assert c.by_depth(3)["depth"].tolist() == ["embedding", 1 / 3, 2 / 3, 1.0]
    for use in (lambda: c.change, lambda: c.own_change, c.frame):
        with pytest.raises(ld.InputError, match="by_depth"):
            use()
    same = ld.compare(a, llama(seed=2), PROMPTS, OPTIONS, labels=LABELS)
    by_layer = same.frame().groupby("layer")["change"].sum()
    np.testing.assert_allclose(same.by_depth(3)["change"][1:], by_layer)


@pytest.mark.parametrize("options", [OPTIONS, LONG])
def test_models_of_different_width_read_their_own_streams(options):
    """a cannot read what b writes, so the sums of both are those of their own contributions, without parts."""
    a, b = llama(), llama(seed=1, hidden_size=64)
    c = ld.compare(a, b, PROMPTS, options)
    for side, model in ((c.a, a), (c.b, b)):
        own = ld.contributions(model, PROMPTS, options).comparable
        np.testing.assert_allclose(side.values, own.values, atol=1e-12)
    assert c.parts is None
    with pytest.raises(ld.InputError, match="no parts"):
        c.own_change.sum()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_half_precision_copy_stays_within_rounding(make, seed):
    """No component of a bfloat16 copy changes by more than is taken for rounding; both models have the row."""
    a = make(seed=seed)
    b = copy.deepcopy(a).to(torch.bfloat16)
    c = ld.compare(a, b, PROMPTS, OPTIONS)
    assert c.first_changed is None
    assert c.change.any()
    assert c.components[-1].kind == "rounding"
    assert "rounding" not in [row.kind for row in c.a.components]
    assert (np.abs(c.change).max((1, 2)) < c.rounding).all()
    np.testing.assert_allclose(sum(c.parts.values()), c.change, atol=1e-12)
    c = ld.compare(a, b, TEXTS)
    assert c.components[-1].kind == "rounding"
    assert c.first_changed is None
    np.testing.assert_allclose(c.change.sum(0), c.b.target_logit.sum(0) - c.a.target_logit.sum(0), atol=1e-9)


@pytest.mark.full
def test_tasks_and_long_options(stories):
    """A task brings options and labels; options of several tokens compare parts of log-likelihoods."""
    task = ld.task("synthetic/recall", limit=12)
    c = ld.compare("zoo/d4", "zoo/d4-seed1", task)
    assert c.labels.tolist() == task.labels.tolist()
    long = ld.compare(llama(), llama(seed=1), PROMPTS, [[[7, 9], [3, 1, 2]]] * 12, labels=LABELS[:1] * 12)
    np.testing.assert_allclose(long.change.sum(1), long.b.log_likelihood - long.a.log_likelihood, atol=1e-5)
    np.testing.assert_allclose(sum(long.parts.values()), long.change, atol=1e-12)
    units = long.frame().attrs["units"]
    assert {units[name] for name in ("change", "own_change", "expectation_change")} == {"nats"}
    untold = ld.load_model(stories.hf_model)  # without a tokenizer: the other's is used
    assert ld.compare(stories, untold, ["Once upon a time"], [" there", " was"]).same_weights


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        (" red blue", " blue"),
        ((" red", " blue"), (" green", " black")),
        ((" red", " blue"), (" green", " black red")),
    ],
)
def test_a_tasks_options_are_scored_as_its_contributions_are(options):
    """As sequences where they have several tokens, shared or each prompt's own."""
    rows = ld.task("synthetic/recall", limit=4)
    own = isinstance(options[0], tuple)
    labels = np.array([0, 1, 1, 0])
    task = ld.Task("mine", rows.prompts, options * 2 if own else options, labels, rows.texts, "", "", "")
    c = ld.compare("zoo/d2", "zoo/d2-seed1", task)
    for one, name in ((c.a, "zoo/d2"), (c.b, "zoo/d2-seed1")):
        alone = ld.contributions(name, task).comparable
        assert one.score == alone.score
        np.testing.assert_allclose(one.model_logits, alone.model_logits, atol=1e-5)
    assert c.labels.tolist() == labels.tolist()
    other = ld.compare("zoo/d2", "zoo/d2-seed1", task, contrast=(" black", " green"))
    assert other.labels is None, "labels are numbers of the task's own options"


def test_models_that_read_other_tokens_are_refused(stories, stories_folder):
    """Other vocabularies, other tokenizers, two ways to name options."""
    with pytest.raises(ld.InputError, match="vocabularies"):
        ld.compare(llama(), llama(vocab_size=64), PROMPTS, OPTIONS)
    tokenizer = AutoTokenizer.from_pretrained(stories_folder, add_bos_token=False)
    other = ld.load_model(stories.hf_model, tokenizer=tokenizer)
    if other.tokenizer("One day")["input_ids"] == stories.tokenizer("One day")["input_ids"]:
        pytest.skip("this tokenizer ignores add_bos_token")
    with pytest.raises(ld.InputError, match="different tokens"):
        ld.compare(stories, other, ["One day"], [" there", " was"])
    with pytest.raises(ld.InputError, match="contrast"):
        ld.compare(llama(), llama(), PROMPTS, OPTIONS, contrast=[1, 2])


@pytest.mark.full
def test_results_are_kept_and_drawn(tmp_path):
    """A file holds all of it; the bars are the frame's numbers."""
    c = ld.compare(llama(), llama(seed=1), PROMPTS, OPTIONS, labels=LABELS)
    kept = ld.Comparison.load(c.save(tmp_path / "c.safetensors"))
    assert kept.frame().equals(c.frame())
    assert kept.totals().equals(c.totals())
    assert c.totals().select_dtypes("float").columns.tolist() == ["a", "b", "change", "change_low", "change_high"]
    np.testing.assert_array_equal(kept.own_change, c.own_change)
    tuned = llama()
    tuned.model.layers[1].mlp.down_proj.weight.data *= 2
    same_basis = ld.compare(llama(), tuned, PROMPTS, OPTIONS, labels=LABELS)
    # One model cannot read out another's own outputs where the unembeddings differ.
    for compared, columns in (
        (c, ["change", "net_linear_change"]),
        (same_basis, ["change", "own_change", "net_linear_change"]),
    ):
        drawn = np.concatenate([trace.y for trace in compared.plot().data])
        frame = compared.frame()
        np.testing.assert_allclose(np.sort(drawn), np.sort(np.concatenate([frame[column] for column in columns])))
        assert sum(len(trace.y) for trace in compared.plot(max_components=2).data) == 2 * len(columns)


@pytest.mark.full
def test_a_change_planted_in_the_default_model_is_found(smol):
    """In every seed tried, at unit sublayer: everything before it is as it was, to the bit."""
    task = ld.task("sample/topic", limit=4)
    for seed in range(3):
        name = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")[seed + 1]
        layer = (11 * seed + 2) % 30
        changed = planted(smol.hf_model, f"model.layers.{layer}.{name}", seed, 0.01)
        c = ld.compare(smol, changed, task)
        assert c.first_changed.label == f"L{layer}.{'attn' if 'attn' in name else 'mlp'}"
        assert not c.own_change[:, : c.components.index(c.first_changed)].any()
        assert np.abs(c.change.sum(1) - c.model_change).max() < 1e-4


def next_tokens(model):
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
def test_changes_at_every_token_sum_to_those_of_logit_and_loss(make, unit):
    """Against plain passes; b less a is a less b with the sign turned; parts sum to the change that they divide."""
    a, b = make(), make(seed=1)
    c, back = ld.compare(a, b, TEXTS, unit=unit), ld.compare(b, a, TEXTS, unit=unit)
    logit, centered, loss = next_tokens(b) - next_tokens(a)
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
    expected = np.concatenate([means[name] for name in ("change", "loss_change")])  # unembeddings differ
    np.testing.assert_allclose(np.sort(bars), np.sort(expected))


def test_texts_of_models_of_different_shape_are_compared_by_module_and_relative_depth():
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
