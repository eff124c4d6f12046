"""What the README shows runs, and is what it says."""

import re
from pathlib import Path

import pytest

import layerdiv_tl as ld

from .conftest import llama
from .test_notebooks import differences

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROMPT = "When Mary and John went to the store, John gave a drink to"


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def blocks():
    """The code blocks, each with the output shown below it, or None."""
    return re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", README, flags=re.S)


@pytest.mark.full
def test_the_finding_prints_what_it_shows(smol, capsys):
    """The blocks with output, one after another."""
    shown, names = [each for each in blocks() if each[1]], {}
    assert len(shown) == 3
    for code, output in shown:
        exec(compile(code, "README.md", "exec"), names)
        assert differences(output, capsys.readouterr().out) == []


@pytest.mark.full
def test_the_example_with_transformer_lens_says_what_its_comment_says(smol, capsys):
    code = blocks()[3][0]
    exec(compile(code, "README.md", "exec"), {"ld": ld, "model": smol})
    assert re.search(r"# (.*)", code.splitlines()[-1])[1] in capsys.readouterr().out


@pytest.mark.full
def test_each_question_has_a_line_that_runs(smol, capsys, tmp_path, monkeypatch):
    """The lines of code of the table, on a tiny random model that reads like the default one."""
    model = ld.load_model(llama(vocab_size=smol.path.outputs, num_hidden_layers=4), tokenizer=smol.tokenizer)
    names = {"ld": ld, "model": model}
    monkeypatch.chdir(tmp_path)  # the grid writes a folder
    exec(compile(blocks()[4][0], "README.md", "exec"), names)
    lines = re.findall(r"^\| [^|]*\? \| `(ld\.[^`]*)`", README, flags=re.M)
    assert len(lines) >= 10
    for line in lines:
        assert eval(line, names) is not None, line


@pytest.mark.full
def test_a_raw_bridge_does_not_sum_to_its_logits_and_contributions_do(smol):
    """The two sums and the logit difference that the reference compares."""
    from transformer_lens.model_bridge import TransformerBridge

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
