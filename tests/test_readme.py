"""What the README shows runs, and is what it says."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
from transformer_lens.model_bridge import TransformerBridge

import layerdiv_tl as ld

from .conftest import llama
from .test_notebooks import differences

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROMPT = "When Mary and John went to the store, John gave a drink to"


def test_it_is_short():
    assert len(README.splitlines()) <= 90
    text = re.sub(r"```.*?```|<picture>.*?</picture>|^\|.*?$", "", README, flags=re.S | re.M)
    assert len(text.split()) <= 800


def blocks():
    """The code blocks, each with the output shown below it, or an empty text."""
    return re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", README, flags=re.S)


@pytest.fixture(scope="module")
def names(smol):
    """What the blocks define, one after another; each prints what the page shows."""
    defined = {}
    for code, output in blocks():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), defined)
        assert differences(output, printed.getvalue()) == []
    return defined


@pytest.mark.full
def test_its_sentences_about_constants_are_true(names):
    """Costs of ablation on the other reviews; and the heads after folding."""
    others, said = names["reviews"].select(range(44, 88)), re.search(r"zero-ablating .*?\(\[", README)[0]
    costs = []
    for component in ("L29.mlp", "L21.attn"):
        for ablation in ("zero", "mean"):
            effects = ld.effects(names["model"], others, components=[component], ablation=ablation)
            costs.append(effects.frame().iloc[0][["cost", "cost_low", "cost_high"]].tolist())
    known = [*costs[0], *costs[1], costs[2][0], costs[3][0]]
    assert re.findall(r"−?\d\.\d\d", said) == [f"{x:.2f}".replace("-", "−") for x in known]


@pytest.mark.full
def test_a_folded_bridge_gives_the_same_heads(names):
    bridge = TransformerBridge.boot_transformers(
        "default", hf_model=ld.load_model().hf_model, tokenizer=names["model"].tokenizer, device="cpu"
    )
    bridge.enable_compatibility_mode()
    _, cache = bridge.run_with_cache(names["tokens"])
    stack = cache.stack_head_results(layer=-1, pos_slice=-1)
    answers = {"tokens": names["right"], "incorrect_tokens": names["wrong"]}
    theirs = cache.logit_attrs(stack, **answers, pos_slice=-1, has_batch_dim=True).detach().numpy().reshape(30, 9)
    heads = names["heads"].frame().set_index("component").difference
    ours = np.array([[heads[f"L{layer}.H{head}"] for head in range(9)] for layer in range(30)])
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert f"{theirs[23, 3]:+.2f} in both" in README
    assert f"{np.abs(ours - names['theirs']).max():.2f} logits for this head" in README


@pytest.mark.full
def test_each_question_has_a_line_that_runs(names, tmp_path, monkeypatch):
    """The lines of code of the table, on a tiny random model that reads like the default one."""
    smol = names["model"]
    model = ld.load_model(llama(vocab_size=smol.path.outputs, num_hidden_layers=30), tokenizer=smol.tokenizer)
    chosen = ld.task("sample/sentiment").resolve(model).select(range(8))
    monkeypatch.chdir(tmp_path)  # the grid writes a folder
    lines = re.findall(r"^\| [^|]*\? \| `([^`]*)`", README, flags=re.M)
    assert len(lines) == 6
    for line in lines:
        assert eval(line, names | {"model": model, "chosen": chosen}) is not None, line


@pytest.mark.full
def test_a_raw_bridge_does_not_sum_to_its_logits_and_contributions_do(smol):
    """The two sums and the logit difference that the reference compares."""
    ids = [smol.tokenizer(name)["input_ids"][0] for name in (" Mary", " John")]
    c = ld.contributions(smol, [PROMPT], [[" Mary", " John"]])
    bridge = TransformerBridge.boot_transformers(
        "default", hf_model=ld.load_model().hf_model, tokenizer=smol.tokenizer, device="cpu"
    )
    logits, cache = bridge.run_with_cache(smol.tokenizer(PROMPT, return_tensors="pt")["input_ids"])
    direction = bridge.W_U[:, ids[0]] - bridge.W_U[:, ids[1]]
    parts = cache.decompose_resid(layer=-1, pos_slice=-1, apply_ln=True)[:, 0] @ direction
    difference = (logits[0, -1, ids[0]] - logits[0, -1, ids[1]]).detach()
    ours = float((c.values[0, :, 0] - c.values[0, :, 1]).sum())
    reference = (Path(ld.__file__).parent / "reference.md").read_text(encoding="utf-8")
    said = re.search(
        r"sums to (\d+\.\d+) where the model's logit difference is (\d+\.\d+).*?sums to (\d+\.\d+)", reference, re.S
    )
    assert [f"{float(x):.2f}" for x in (parts.sum().detach(), difference, ours)] == list(said.groups())


def test_pictures_and_files_that_it_names_are_there():
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    named += re.findall(r"\]\(((?:assets|notebooks|layerdiv_tl)/[^)]+)\)", README)
    notebooks = (Path(__file__).parents[1] / "notebooks").glob("*.ipynb")
    assert {f"notebooks/{path.name}" for path in notebooks} <= set(named)
    for path in (each.partition("#")[0] for each in named):
        assert (Path(__file__).parents[1] / path).is_file(), path
