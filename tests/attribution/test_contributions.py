"""Contributions: the parts sum to the whole, however the whole is asked for."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama
from tests.oracles.brute_force import reference
from tests.oracles.families import FAMILIES

MODELS = {
    "llama": llama,
    "llama with biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama tied": lambda: llama(tie_word_embeddings=True),
    "gpt2": gpt2,
}
PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0], [2, 7, 1, 8, 2, 8, 1]]
OPTIONS = [7, 30, 2]


@pytest.fixture(scope="module", params=MODELS, ids=list(MODELS))
def model(request):
    return MODELS[request.param]()


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_equals_the_brute_force_reference(model, unit):
    """Labels, values and logits are those of an independent one-prompt-at-a-time reference."""
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    for row, prompt in enumerate(PROMPTS):
        expected = reference(model, prompt, OPTIONS, unit=unit)
        assert [component.label for component in c.components] == expected.labels
        np.testing.assert_allclose(c.values[row], expected.values, atol=1e-5 * np.abs(expected.values).sum(0).max())
        np.testing.assert_allclose(c.model_logits[row], expected.model_logits, rtol=1e-5, atol=1e-5)


def test_one_neuron_by_hand():
    """A neuron's contribution is its activation times its output weights, through the frozen read-out."""
    model = llama()
    block, held = model.model.layers[1], {}
    hooks = [
        block.mlp.down_proj.register_forward_pre_hook(lambda m, a: held.update(values=a[0][0, -1])),
        model.model.norm.register_forward_pre_hook(lambda m, a: held.update(final=a[0][0, -1])),
    ]
    with torch.no_grad():
        model(torch.tensor(PROMPTS[:1]))
    for hook in hooks:
        hook.remove()
    sigma = (held["final"].double().square().mean() + model.config.rms_norm_eps).sqrt()
    wrote = held["values"][7].double() * block.mlp.down_proj.weight[:, 7].double() * model.model.norm.weight.double()
    expected = (model.lm_head.weight[OPTIONS].double() @ wrote / sigma).detach().numpy()
    c = ld.contributions(model, PROMPTS[:1], OPTIONS, unit="neuron")
    np.testing.assert_allclose(c["L1.N7"][0], expected, atol=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 8, 9, 20, 10_000])
def test_batches_change_nothing(model, batch_tokens):
    """Ragged prompts in a batch of any size give what one prompt at a time gives."""
    together = ld.contributions(model, PROMPTS, OPTIONS, batch_tokens=batch_tokens)
    for row, prompt in enumerate(PROMPTS):
        alone = ld.contributions(model, [prompt], OPTIONS)
        np.testing.assert_allclose(together.values[row], alone.values[0], atol=1e-5)
        assert together.tokens[row] == tuple(prompt)


def test_a_position_is_counted_in_the_prompts_own_tokens(model):
    """Reading position p of a prompt gives what the prompt cut after p gives: the model is causal."""
    at = [3, 0, -2, 5]
    c = ld.contributions(model, PROMPTS, OPTIONS, position=at)
    for row, (prompt, p) in enumerate(zip(PROMPTS, at, strict=True)):
        cut = prompt[: p % len(prompt) + 1]
        np.testing.assert_allclose(c.values[row], ld.contributions(model, [cut], OPTIONS).values[0], atol=1e-5)
    first = ld.contributions(model, PROMPTS, OPTIONS, position=0)
    assert first.positions.tolist() == [0, 0, 0, 0]


@pytest.mark.full
def test_options_of_each_prompt(model):
    """One list of options per prompt gives what each prompt with its own list gives, at both units."""
    lists = [[1, 2], [2, 1], [40, 3], [1, 60]]
    for unit in ("sublayer", "head"):
        c = ld.contributions(model, PROMPTS, lists, unit=unit)
        assert c.option_ids.tolist() == lists
        for row, (prompt, options) in enumerate(zip(PROMPTS, lists, strict=True)):
            alone = ld.contributions(model, [prompt], options, unit=unit)
            np.testing.assert_allclose(c.values[row], alone.values[0], atol=1e-5)


def test_select_keeps_the_named_rows(model):
    """In stream order; a part is not complete."""
    whole = ld.contributions(model, PROMPTS, OPTIONS)
    part = whole.select(["L1.mlp", ld.Component("embed")])
    assert [c.label for c in part.components] == ["embed", "L1.mlp"]
    assert not part.complete
    assert whole.complete
    np.testing.assert_array_equal(part.values, whole.select(label=["embed", "L1.mlp"]).values)
    assert whole.select(kind=["embed", "pos_embed", "attn", "mlp", "constant"]).complete
    mlp = ld.Component("mlp", 1)
    assert whole.select("L1.mlp").components == whole.select(mlp).components == (mlp,)
    np.testing.assert_array_equal(whole["L1.mlp"], whole.select(mlp).values[:, 0])
    np.testing.assert_array_equal(whole[[mlp, "embed"]], part.values[:, ::-1])
    for wrong in ("L9.mlp", 3, []):
        with pytest.raises(ld.InputError, match="label"):
            whole[wrong]


def test_no_hook_of_the_users_sees_a_question_of_ours():
    """Loading asks norms what they do; hooks on them see the user's own passes only."""
    model, seen = llama(), []
    for module in model.modules():
        module.register_forward_hook(lambda module, args, output: seen.append(module))
    ld.load_model(model)
    assert not seen


def test_hooks_are_gone_after_a_failure():
    """A forward pass that dies leaves no hook."""
    model = llama()
    loaded = ld.load_model(model)
    handle = model.model.layers[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ld.contributions(loaded, PROMPTS, OPTIONS)
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_model_in_train_mode_answers_as_in_eval_mode():
    """Dropout never reaches a number."""
    model = gpt2()
    inference_mode_for = ld.contributions(model, PROMPTS, OPTIONS).values
    np.testing.assert_array_equal(ld.contributions(model.train(), PROMPTS, OPTIONS).values, inference_mode_for)


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "phi", "half"])
def test_vocabulary_means_are_means_over_all_tokens(name, unit):
    """Those of the contributions to every id; no constant added to all logits moves `sides`, and parts keep theirs."""
    model = llama().bfloat16() if name == "half" else FAMILIES[name]()
    everything = ld.contributions(model, PROMPTS, list(range(model.config.vocab_size)), unit=unit)
    c = ld.contributions(model, PROMPTS, [7, 30], unit=unit)
    means = everything.values.mean(2)
    np.testing.assert_allclose(c.vocabulary_means, means, atol=1e-6 * np.abs(everything.values).max())
    kept = c.select(kind="mlp", layer=[1, 2]) if unit != "neuron" else c.select(layer=2)
    np.testing.assert_array_equal(kept.sides, c.sides[:, [c.components.index(x) for x in kept.components]])
    if name == "llama":
        with torch.no_grad():
            model.lm_head.weight += torch.linspace(-3, 3, model.lm_head.weight.shape[1])
        moved = ld.contributions(model, PROMPTS, [7, 30], unit=unit)
        assert np.abs(moved.values - c.values).max() > 0.1
        np.testing.assert_allclose(moved.sides, c.sides, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "granite", "cohere", "gemma2", "falcon"])
def test_log_likelihoods_are_the_models_own(name):
    """Parts and normalizer sum to log p, and the normalizer is the entropy (and a soft-cap's effect), for any scale."""
    model = FAMILIES[name]().eval()
    c = ld.contributions(model, [[5, 1, 4, 1], [3, 7, 11]], [7, 30])
    with torch.no_grad():
        log_p = [
            model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1) for ids in ([5, 1, 4, 1], [3, 7, 11])
        ]
    wanted = torch.stack(log_p)[:, [7, 30]].numpy()
    np.testing.assert_allclose(c.log_likelihood, wanted, atol=1e-5)
    np.testing.assert_allclose(c.log_likelihood_parts.sum(1) + c.normalizer, wanted, atol=1e-5)


def test_means_of_other_weights_are_never_given_back():
    """A change that no version counter sees is found in the rows."""
    model = llama()
    loaded = ld.load_model(model)
    before = ld.contributions(loaded, PROMPTS, OPTIONS).vocabulary_means
    torch.manual_seed(0)
    model.lm_head.weight.data.add_(0.5 * torch.rand_like(model.lm_head.weight))
    after = ld.contributions(loaded, PROMPTS, OPTIONS).vocabulary_means
    assert np.abs(after - before).max() > 0.1
    fresh = ld.contributions(copy.deepcopy(model), PROMPTS, OPTIONS).vocabulary_means
    np.testing.assert_allclose(after, fresh, atol=1e-6)


def test_a_difference_has_two_sides_or_says_that_it_has_none():
    """Of single tokens, of answers of several (parts of log-likelihoods), not of directions; their difference is it."""
    model = llama()
    for options in ([7, 30], [[[7, 30], [4, 1, 2]]]):
        c = ld.contributions(model, PROMPTS[:2], options if options[0] == 7 else options * 2)
        d = c.difference()
        np.testing.assert_allclose(d.sides[:, :, 0] - d.sides[:, :, 1], d.values, atol=1e-9)
        assert (c.vocabulary_means is None) == (options[0] != 7)
        assert {"first", "second"} <= set(d.frame().columns)
    np.testing.assert_allclose(d.sides.sum(1), c.log_likelihood)
    directions = ld.contributions(model, PROMPTS[:2], dict(zip("ab", np.eye(2, 32), strict=True))).difference()
    assert directions.sides is None
    assert "first" not in directions.frame()


def test_saved_and_loaded_it_is_the_same(model, tmp_path):
    """load(save(c)) equals c, field by field."""
    c = ld.contributions(model, PROMPTS, [[1, 2], [2, 1], [40, 3], [1, 60]], unit="head")
    again = ld.load(c.save(tmp_path / "c.safetensors"))
    for field in dataclasses.fields(c):
        old, new = getattr(c, field.name), getattr(again, field.name)
        assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new, field.name
    assert again.tokens == c.tokens
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_the_frame_holds_every_number_under_its_names(model):
    """frame() is values in long form."""
    c = ld.contributions(model, PROMPTS, OPTIONS, unit="head")
    frame = c.frame()
    assert len(frame) == c.values.size
    assert frame.attrs["units"] == {"contribution": "logits"}
    row = frame[(frame.example == 2) & (frame.component == "L1.H3")]
    np.testing.assert_array_equal(row.contribution, c.select(label="L1.H3").values[2, 0])
    assert row.option.tolist() == list(c.options)
    assert (row["layer"] == 1).all()
    assert (row["index"] == 3).all()


def test_a_task_brings_its_options(stories):
    """A task's numbers are those of its resolved prompts and option ids, also where it was resolved before."""
    task = ld.Task.from_frame(
        pd.DataFrame({"word": ["big", "red"], "label": [0, 1]}), template="One {word} day", options=["a", "the"]
    )
    resolved = task.resolve(stories)
    expected = ld.contributions(stories, resolved.prompts, resolved.option_ids)
    for given in (task, resolved):
        np.testing.assert_array_equal(ld.contributions(stories, given).values, expected.values)
    one = ld.contributions(stories, task, resolved.option_ids[:1])
    np.testing.assert_allclose(one.values, expected.values[..., :1], rtol=1e-12)
    with pytest.raises(ld.InputError, match="another tokenizer"):
        ld.contributions(stories, dataclasses.replace(resolved, option_ids=(300, 301)))


def test_top_tokens_are_the_softmax_of_the_module(stories):
    """top_tokens is the largest of the Hugging Face model's own distribution at every position."""
    ids = [1, 403, 407, 261]
    frame = ld.top_tokens(stories, ids, k=3)
    with torch.no_grad():
        p = torch.softmax(stories.hf_model(torch.tensor([ids])).logits[0].double(), -1).numpy()
    best = np.argsort(-p, kind="stable")[:, :3]
    np.testing.assert_array_equal(frame["prediction_id"].to_numpy().reshape(4, 3), best)
    np.testing.assert_allclose(frame["probability"].to_numpy().reshape(4, 3), np.take_along_axis(p, best, 1), rtol=1e-6)
    assert frame["token"][0::3].tolist() == ["<s>", " Once", " upon", " a"]


@pytest.mark.full
def test_two_threads_on_one_model():
    """Each thread gets its own numbers."""
    from concurrent.futures import ThreadPoolExecutor

    model = llama()
    loaded = ld.load_model(model)
    expected = ld.contributions(loaded, PROMPTS, OPTIONS, unit="head").values

    def ours(_):
        return ld.contributions(loaded, PROMPTS, OPTIONS, unit="head").values

    with ThreadPoolExecutor(3) as pool:
        for values in pool.map(ours, range(30)):
            np.testing.assert_array_equal(values, expected)


@pytest.mark.full
@pytest.mark.parametrize("as_what", [torch.tensor, np.array])
def test_tensors_and_arrays_everywhere(as_what):
    """Ids, options and positions may be tensors or arrays, alone or in lists."""
    model, prompts = llama(), [[5, 1, 4], [9, 2, 6]]
    expected = ld.contributions(model, prompts, [7, 9], position=[1, 2]).values
    for given in (as_what(prompts), [as_what(p) for p in prompts], [[as_what(i) for i in p] for p in prompts]):
        for options in (as_what([7, 9]), [as_what(7), as_what(9)], as_what([[7, 9]] * 2), [as_what([7, 9])] * 2):
            c = ld.contributions(model, given, options, position=as_what([1, 2]))
            np.testing.assert_array_equal(c.values, expected)
    assert ld.contributions(model, prompts, [7, 9], position=as_what(0)).positions.tolist() == [0, 0]
    d = ld.decompose(torch.tensor(expected, dtype=torch.bfloat16, requires_grad=True), labels=as_what([0, 1]))
    assert d.gap < 1e-9


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_contributions_to_directions_are_parts_of_the_normed_stream(name):
    """Their sum is the dot product with Hugging Face's last hidden state; they have no probability."""
    model, prompts = FAMILIES[name](), [[5, 1, 4, 1, 5, 9], [3, 7]]
    probes = np.random.default_rng(0).normal(size=(3, 32))
    with torch.no_grad():
        normed = [model.base_model(torch.tensor([ids])).last_hidden_state[0, -1].double().numpy() for ids in prompts]
    for unit in ("sublayer", "head"):
        c = ld.contributions(model, prompts, dict(zip("abc", probes, strict=True)), unit=unit)
        np.testing.assert_allclose(c.logits, np.stack(normed) @ probes.T, atol=1e-5)
        assert c.identity_gap < 1e-6
    named = ld.contributions(model, prompts, {"a": torch.tensor(probes[0])}, unit="head")
    np.testing.assert_allclose(named.values[:, :, 0], c.values[:, :, 0], atol=1e-5)
    assert named.options == ("a",)
    with pytest.raises(ld.InputError, match="directions"):
        c.scores()


@pytest.mark.parametrize("bad", [[1.0, 2.0], [0.0] * 32, [float("nan")] * 32, "x"])
def test_directions_are_vectors_of_the_stream(bad):
    """Other widths, zeros, NaN and texts are refused."""
    with pytest.raises(ld.InputError, match="vector"):
        ld.contributions(FAMILIES["gpt2"](), [[1, 2]], {"a": bad})


def test_a_direction_that_a_centering_norm_removes_is_refused():
    """One number along the whole stream, under a gain of one: every contribution would be zero."""
    centering = gpt2()
    torch.nn.init.ones_(centering.transformer.ln_f.weight)
    with pytest.raises(ld.InputError, match="'b' .*final norm"):
        ld.contributions(centering, [[1, 2]], {"a": np.eye(32)[0], "b": np.ones(32)})
    assert ld.contributions(llama(), [[1, 2]], {"b": np.ones(32)}).values.any()


def test_a_task_brings_labels_and_the_names_of_its_columns(stories, tmp_path):
    """They come with the contributions, through a file, into frames; the repr says how the first prompt begins."""
    frame = pd.DataFrame({"prompt": ["One day", "The big"], "right": [" a", " dog"], "wrong": [" the", " cat"]})
    task = ld.Task.from_frame(frame, prompt="prompt", options=["right", "wrong"])
    c = ld.load(ld.contributions(stories, task).save(tmp_path / "c.safetensors"))
    assert c.labels.tolist() == [0, 0]
    assert c.option_names == ("right", "wrong")
    assert c.frame()["option_name"].tolist() == ["right", "wrong"] * (2 * len(c.components))
    d = ld.logit_difference(stories, frame["prompt"], frame["right"], frame["wrong"], unit="sublayer")
    np.testing.assert_allclose(d.values, c.difference().values, atol=1e-6)
    assert {"right", "wrong"} <= set(d.frame()) & set(c.difference().frame())
    bos = "with" if c.tokens[0][0] == stories.tokenizer.bos_token_id else "without"
    assert f"first prompt of {len(c.tokens[0])} tokens, {bos} beginning-of-text token" in repr(c)


def test_options_that_the_model_would_not_say_are_seen(stories):
    """Their probability is the softmax's, over prompts; a result says it, where accuracy alone would not."""
    c = ld.contributions(stories, ["Once upon a time", "One day"], [" there", ","])
    with torch.no_grad():
        logits = [stories.hf_model(torch.tensor([ids])).logits[0, -1].double() for ids in c.tokens]
    p = [row.softmax(-1)[c.option_ids[0]] for row in logits]
    assert c.options_mass == pytest.approx(float(torch.stack(p).sum(1).mean()), rel=1e-5)
    assert c.frame().attrs["options_mass"] == c.options_mass
    assert f"options have {c.options_mass:.2g} of the probability" in repr(c)
    rare = ld.contributions(stories, ["Once upon a time", "One day"], ["7", "9"])
    assert rare.options_mass < 1e-3
    assert ld.contributions(stories, ["One day"], {"ones": torch.ones(64)}).options_mass is None


def test_a_classifier_is_told_how_its_rows_are_read():
    """The rows of its score are directions of the causal language model with the same stream."""
    from transformers import LlamaForSequenceClassification

    net = llama()
    net.config.pad_token_id, net.config.num_labels = 0, 2
    classifier = LlamaForSequenceClassification(net.config).eval()
    with pytest.raises(ld.InputError, match=r"AutoModelForCausalLM.*score\.weight"):
        ld.load_model(classifier)
    classifier.model = net.model
    c = ld.contributions(net, [[5, 4, 3]], dict(zip("ab", classifier.score.weight, strict=True)))
    wanted = classifier(torch.tensor([[5, 4, 3]])).logits.detach()
    np.testing.assert_allclose(c.model_logits, wanted, atol=1e-5)
