"""Plans of heads, and models made smaller: against plain hooks, and against Transformers alone on what was written."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint
from tests.conftest import close, llama
from tests.depth.test_pruning import LENGTHS, asked, halves
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.oracles.hooked_forward import hooked, layout_of, trace
from tests.oracles.tokenizers import word_tokenizer

WAYS = {
    "layer": ("layer", "zero"),
    "sublayer": ("sublayer", "zero"),
    "zero": ("head", "zero"),
    "mean": ("head", "mean"),
}
WRITTEN = (
    "llama",
    "gpt2",
    "gpt_neo",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi",
    "falcon",
    "neox_parallel",
    "qwen3_moe",
    "gpt_oss",
    "falcon_h1",
)


def loss_of(root, row):
    """The sum of cross-entropies of a text's next tokens."""
    with torch.no_grad():
        logits = root(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1].double()
    return cross_entropy(logits, torch.tensor(row[1:]), reduction="sum").item()


def heads_of(c, values):
    """Where a head's values stand among those that the output projection reads; every family here has four."""
    width = values.shape[-1] // 4
    return slice(c.index * width, (c.index + 1) * width)


def without(root, heads, means):
    """Loss of every text with some heads' slices of a projection's input replaced, by plain hooks."""

    def replaced(value, _read, layer):
        value = value.clone()
        for c in heads:
            if c.layer == layer:
                value[..., heads_of(c, value)] = means[layer, heads_of(c, value)].to(value)
        return value

    edits = {("values", c.layer): partial(replaced, layer=c.layer) for c in heads}
    with hooked(root, edits):
        return np.array([loss_of(root, row) for row in LENGTHS])


@pytest.mark.full
@pytest.mark.parametrize("ablation", ["zero", "mean"])
@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "neox_parallel", pytest.param("gemma2", marks=pytest.mark.nightly)]
)
def test_heads_are_replaced_as_plain_hooks_replace_them(family, ablation):
    """Every plan of every size, and the scores of single heads; means are those of the rows that scored."""
    root = FAMILIES[family]()
    plan = ld.depth.drop_plan(ld.load_model(root), LENGTHS, 3, part="head", ablation=ablation, random=2)
    scored, measured = halves(plan, LENGTHS)
    means = torch.cat([trace(root, LENGTHS[i]).values[:, :-1] for i in scored], 1).mean(1) * (ablation == "mean")
    sets = [
        (),
        *(p[:k] for p in (plan.dropped, plan.plans["block_influence"]) for k in (1, 2, 3)),
        *plan.random_dropped,
    ]
    for column, heads in enumerate(sets):
        close(plan.loss[:, column], without(root, heads, means)[measured], 2e-5)
    clean = np.array([loss_of(root, row) for row in LENGTHS])
    count = sum(len(LENGTHS[i]) - 1 for i in scored)
    for c, value in zip(plan.candidates, plan.scores, strict=True):
        close(value, (without(root, [c], means) - clean)[scored].sum() / count)


def test_the_contribution_score_is_the_mean_contribution_to_the_answer():
    """By `contributions`: the right option minus the mean of the others."""
    model = ld.load_model(llama(), tokenizer=word_tokenizer())
    rows, gold = LENGTHS[:8], np.arange(8) % 3
    plan = ld.depth.drop_plan(model, asked(rows, [7, 11, 30], gold), 1, "contribution", "head", random=1)
    used = sorted(np.random.default_rng([0, 0]).permutation(8)[:4])
    c = ld.contributions(model, [rows[i] for i in used], [7, 11, 30], unit="head")
    right = c.values[np.arange(4), :, gold[used]]
    expected = (right - (c.values.sum(2) - right) / 2).mean(0)
    by_label = {component.label: abs(x) for component, x in zip(c.components, expected, strict=True)}
    close(plan.scores, [by_label[component.label] for component in plan.candidates])
    assert plan.dropped[0].label == min((c.label for c in plan.candidates), key=by_label.__getitem__)


def test_block_influence_of_a_head_is_one_minus_the_cosine_of_the_stream_with_it():
    """1 − cos(h, h + what the head writes), over all tokens of the scoring rows."""
    root = llama()
    plan = ld.depth.drop_plan(ld.load_model(root), LENGTHS, 1, "block_influence", "head", random=1)
    rows = [LENGTHS[i] for i in halves(plan, LENGTHS)[0]]
    for c, value in zip(plan.candidates, plan.scores, strict=True):
        found = []
        for row in rows:
            seen, weight = trace(root, row), layout_of(root).projections[c.layer].weight.detach().double()
            stream, here = seen.inputs[c.layer], heads_of(c, seen.values)
            write = seen.values[c.layer, :, here] @ weight[:, here].T
            found.append(1 - cosine_similarity(stream, stream + write, dim=-1))
        close(value, torch.cat(found).mean())


@pytest.mark.parametrize("way", [pytest.param(w, marks=() if w == "mean" else pytest.mark.full) for w in WAYS])
@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f == "llama" else pytest.mark.full) for f in WRITTEN])
def test_what_is_written_loads_alone_with_the_plans_loss(family, way, tmp_path):
    """Transformers' own model has the loss of the plan to 1e-5, and generates with its cache what it would without."""
    part, ablation = WAYS[way]
    root = (FAMILIES | BY_STRUCTURE)[family]()
    model, before = ld.load_model(root, tokenizer=word_tokenizer()), fingerprint(ld.load_model(root))
    n_drop = 1 if part == "layer" else 2
    plan = ld.depth.drop_plan(model, LENGTHS, n_drop, "block_influence", part, ablation=ablation, random=1)
    folder = plan.save_model(tmp_path / "smaller", model)
    assert fingerprint(ld.load_model(root)) == before
    again = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(again) is type(root)
    layers = root.config.num_hidden_layers
    assert again.config.num_hidden_layers == layers - (part == "layer")
    assert len(getattr(again.config, "layer_types", None) or range(layers - (part == "layer"))) == layers - (
        part == "layer"
    )
    rows = [LENGTHS[i] for i in halves(plan, LENGTHS)[1]]
    found = np.array([loss_of(again, row) for row in rows]) / plan.count
    np.testing.assert_allclose(found, plan.loss[:, len(plan.sizes)] / plan.count, atol=1e-5)
    ids = longer = torch.tensor([LENGTHS[-1]])
    with torch.no_grad():
        for _ in range(6):
            longer = torch.cat([longer, again(input_ids=longer, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(
        again.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0), longer
    )
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == model.tokenizer.get_vocab()


@pytest.mark.parametrize("way", WAYS)
def test_the_smaller_model_is_decomposed_like_any_other(way):
    """Its contributions sum to its logits, dropped heads write nothing, and a part of the plan can be applied."""
    part, ablation = WAYS[way]
    model = ld.load_model(llama(2, num_hidden_layers=4))
    plan = ld.depth.drop_plan(model, LENGTHS, 2, "block_influence", part, ablation=ablation, random=1)
    measured = [LENGTHS[i] for i in halves(plan, LENGTHS)[1]]
    for n in (1, 2):
        smaller = plan.apply(model, n)
        close([loss_of(smaller.hf_model, row) for row in measured], plan.loss[:, n])
        assert smaller.provenance["plan"]["dropped"] == [c.label for c in plan.dropped[:n]]
        c = ld.contributions(smaller, [[1, 2, 3]], [7, 9], unit="head")
        assert c.identity_gap < 1e-6
        gone = [i for i, component in enumerate(c.components) if component in plan.dropped[:n] and part != "layer"]
        assert np.abs(c.values[:, gone]).max(initial=0) == 0


def test_many_heads_are_measured_at_twelve_sizes():
    """From the first steps to the last; a plan over chosen heads drops no other one."""
    model = ld.load_model(llama(2, num_hidden_layers=5))
    late = [c for c in model.components("head") if c.kind == "head" and c.layer > 0]
    plan = ld.depth.drop_plan(model, LENGTHS, 14, "block_influence", "head", components=late, random=3)
    assert plan.candidates == tuple(late)
    assert len(plan.sizes) == 12
    assert plan.sizes[-1] == 14
    frame = plan.by_size()
    assert frame[frame["plan"] == "plan"].dropped.tolist() == list(plan.sizes)
    assert frame[frame["plan"] == "random"].dropped.tolist() == [14]
    assert len(plan.random_dropped) == 3
    close(plan.compare().set_index("other").loss["random"], frame.loss.iloc[12] - frame.loss.iloc[-1], 1e-9)
    same = ld.depth.drop_plan(
        model, LENGTHS, 14, "block_influence", "head", components=[c.transformer_lens_label for c in late], random=3
    )
    pd.testing.assert_frame_equal(same.by_size(), frame)


def test_a_plan_of_heads_survives_the_disk(tmp_path):
    """The means come back with it: what a loaded plan makes is the same model."""
    model = ld.load_model(llama())
    plan = ld.depth.drop_plan(model, LENGTHS, 3, "block_influence", "head", random=1)
    again = ld.load(plan.save(tmp_path / "plan.safetensors"))
    assert fingerprint(again.apply(model)) == fingerprint(plan.apply(model))
    assert again.frame().equals(plan.frame())


def test_nothing_is_written_over(tmp_path):
    plan = ld.depth.drop_plan("zoo/d4", ld.task("synthetic/k_hop", limit=16), 1, "contribution", random=1)
    folder = plan.save_model(tmp_path / "smaller", "zoo/d4")
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 3
    for place in (folder, folder / "config.json"):
        with pytest.raises(ld.InputError, match="not empty"):
            plan.save_model(place, "zoo/d4")
    assert [path.name for path in tmp_path.iterdir()] == ["smaller"]


def test_what_cannot_be_made_smaller_is_refused_with_the_reason(tmp_path):
    """Another model, hooks, adapters, repeats, a bridge, shared weights, layers by number, heads without biases."""
    from peft import LoraConfig, get_peft_model

    root = llama()
    plan = ld.depth.drop_plan(root, LENGTHS, 1, "block_influence", random=1)
    heads = ld.depth.drop_plan(root, LENGTHS, 1, "block_influence", "head", random=1)
    for other in (llama(seed=1), root.double()):
        with pytest.raises(ld.InputError, match="not the plan's model"):
            plan.apply(other)
    root.float()
    handle = root.model.layers[0].register_forward_hook(lambda module, args, output: output)
    with pytest.raises(ld.InputError, match="hook"):
        plan.apply(root)
    handle.remove()
    adapted = get_peft_model(copy.deepcopy(root), LoraConfig(target_modules=["o_proj"]))
    with pytest.raises(ld.InputError, match="adapters"):
        heads.apply(adapted)
    with pytest.raises(ld.InputError, match="Hugging Face"):
        plan.apply(ld.load_model(root).bridge)
    with pytest.raises(ld.InputError, match="n=2"):
        plan.apply(root, 2)
    looped = llama()
    looped.model.layers[2] = looped.model.layers[0]
    repeated = ld.depth.drop_plan(looped, LENGTHS, 2, "block_influence", random=1)
    with pytest.raises(ld.InputError, match="repeats"):
        repeated.apply(looped)
    shared = llama(2)
    shared.model.layers[2].self_attn.o_proj.weight = shared.model.layers[0].self_attn.o_proj.weight
    scores = {c.label: float(c.layer) for c in heads.candidates}
    with pytest.raises(ld.InputError, match="share weights"):
        ld.depth.drop_plan(shared, LENGTHS, 1, scores, "head", random=1).apply(shared)
    torch.manual_seed(0)
    sizes = {"n_layer": 3, "n_head": 2, "n_embd": 16, "vocab_size": 61, "n_positions": 64, "eos_token_id": 2}
    numbered = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, scale_attn_by_inverse_layer_idx=True)).eval()
    scores = {f"L{i}.layer": float(i) for i in range(3)}
    with pytest.raises(ld.InputError, match="by their number"):
        ld.depth.drop_plan(numbered, LENGTHS, 1, scores, random=1).apply(numbered)
    mistral = FAMILIES["mistral"]()
    unbiased = ld.depth.drop_plan(mistral, LENGTHS, 1, "block_influence", "head", random=1)
    close(
        [loss_of(unbiased.apply(mistral).hf_model, LENGTHS[i]) for i in halves(unbiased, LENGTHS)[1]],
        unbiased.loss[:, 1],
    )
    with pytest.raises(ld.InputError, match="ablation='zero'"):
        unbiased.save_model(tmp_path / "none", mistral)
    assert not list(tmp_path.iterdir())


def without_layer(root, layer):
    """A plan without one layer, and the model."""
    model = ld.load_model(root)
    labels = dict.fromkeys(w.component.layer for w in model.path.writers if w.block is not None)
    scores = {f"L{i}.layer": float(i != layer) for i in labels}
    return ld.depth.drop_plan(model, LENGTHS[:4], 1, scores, random=1), model


MIXED = {
    "bamba": 0,
    "zamba2": 0,
    "zamba": 0,
    "olmo3": 3,
    "granite_hybrid": 0,
    "deepseek_v3": 0,
    "llama4": 1,
    "lfm2_moe": 1,
}


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f == "bamba" else pytest.mark.full) for f in MIXED])
def test_layers_of_mixed_models_keep_their_kinds(family, tmp_path):
    """What is applied and what is written generate with the default cache what they would without."""
    plan, model = without_layer((FAMILIES | BY_STRUCTURE)[family](), MIXED[family])
    smaller, ids = plan.apply(model).hf_model, torch.tensor([LENGTHS[-1]])
    again = AutoModelForCausalLM.from_pretrained(plan.save_model(tmp_path / "smaller", model)).eval()
    with torch.no_grad():
        longer = ids
        for _ in range(4):
            longer = torch.cat([longer, smaller(input_ids=longer, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        for root in (smaller, again):
            found = root.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
            assert torch.equal(found, longer)


@pytest.mark.parametrize(
    ("family", "layer", "match"),
    [
        ("jamba", 0, "by a rule"),
        ("jamba", 1, "by a rule"),
        ("zamba", 2, "cannot be built"),
        ("zamba2", 1, "by a rule"),
        ("diffllama", 0, "by their number"),
    ],
)
def test_kinds_that_a_config_cannot_give_are_refused(family, layer, match):
    """Jamba's kinds follow from a period; Zamba's layers share a block; DiffLlama's compute by their number."""
    plan, model = without_layer((FAMILIES | BY_STRUCTURE)[family](), layer)
    with pytest.raises(ld.InputError, match=match):
        plan.apply(model)


@pytest.mark.parametrize(("family", "layer"), [("granite_hybrid", 1), ("qwen3_next", 3), ("nemotron_h", 2)])
def test_a_checkpoint_that_cannot_generate_is_not_written(family, layer, tmp_path):
    """Transformers' cache needs an attention; in memory the model has the plan's loss."""
    plan, model = without_layer(BY_STRUCTURE[family](), layer)
    close([loss_of(plan.apply(model).hf_model, LENGTHS[i]) for i in halves(plan, LENGTHS[:4])[1]], plan.loss[:, 1])
    with pytest.raises(ld.InputError, match="cannot generate"):
        plan.save_model(tmp_path / "none", model)
    assert not list(tmp_path.iterdir())


def test_quantized_weights_are_refused():
    """Their numbers are codes: the plan is made of the model in full precision."""
    root = llama()
    plan = ld.depth.drop_plan(root, LENGTHS, 1, "block_influence", "head", random=1)
    packed = torch.ao.quantization.quantize_dynamic(copy.deepcopy(root), {torch.nn.Linear})
    model = ld.load_model(root)
    model = replace(model, root=packed)
    with pytest.raises(ld.InputError, match="load it again"):
        plan.apply(model)


def test_half_precision_stays(tmp_path):
    """A bfloat16 model stays one, and its checkpoint too."""
    root = llama().bfloat16()
    plan = ld.depth.drop_plan(root, LENGTHS, 2, "block_influence", "head", random=1)
    again = AutoModelForCausalLM.from_pretrained(plan.save_model(tmp_path / "half", root))
    assert again.dtype is torch.bfloat16


def test_arguments_of_plans_of_heads():
    model = ld.load_model(llama())
    for more, match in (
        ({"part": "layer", "ablation": "mean"}, "ablation='mean'"),
        ({"part": "head", "ablation": "resample"}, "ablation="),
        ({"part": "head", "components": ["L0.attn", "L1.H0"]}, "L0.attn"),
        ({"part": "head", "components": ["L0.H0", "L0.H0"]}, "something must stay"),
        ({"part": "head", "components": ["L0.H1"]}, "something must stay"),
    ):
        with pytest.raises(ld.InputError, match=match):
            ld.depth.drop_plan(model, LENGTHS, 1, **more)
