"""Models spread over devices, memory and disk give the numbers that they give whole, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama
from tests.oracles.families import FAMILIES

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3, 7, 8], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2, 9]
SPREAD = ["gpt2", "gemma2", "bloom", "granite", "mixtral"]


def mixed(model: Any, folder: Path) -> Any:
    """Every second block on disk, and so are the final norm and an untied unembedding; the rest in memory."""
    from accelerate import dispatch_model

    path = ld.load_model(model).path
    names = {module: name for name, module in model.named_modules()}
    blocks = [names[block] for block in dict.fromkeys(w.block for w in path.writers if w.block is not None)]
    away = {*blocks[::2], names[path.norm]}
    if path.unembed.weight is not model.get_input_embeddings().weight:
        away.add(names[path.unembed])
    places: dict[str, str] = {}

    def place(prefix: str, module: Any) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if path not in away and any(other.startswith(f"{path}.") for other in away):
                place(f"{path}.", child)
            else:
                places[path] = "disk" if path in away else "cpu"
        places.update({f"{prefix}{name}": "cpu" for name, _ in module.named_parameters(recurse=False)})

    place("", model)
    return dispatch_model(model, places, main_device="cpu", offload_dir=str(folder))


def in_memory(model: Any, folder: Path) -> Any:
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=torch.device("cpu"))


def on_disk(model: Any, folder: Path) -> Any:
    from accelerate import disk_offload

    return disk_offload(model, str(folder), execution_device=torch.device("cpu"))


def assert_same(whole: Any, offloaded: Any, unit: Any, texts: Any = PROMPTS[:1]) -> None:
    expected, found = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (whole, offloaded))
    assert found.components == expected.components
    for name in ("values", "expectations", "model_logits"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6, err_msg=name)
    labels = [0, 1, 2]
    np.testing.assert_allclose(ld.decompose(found, labels).bias, ld.decompose(expected, labels).bias, atol=1e-6)
    if unit == "expert":  # a gate's part is no vector in the stream
        return
    expected, found = (ld.profile(m, texts, unit=unit) for m in (whole, offloaded))
    for name in ("bias", "diversity", "losses"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("offload", [mixed, on_disk])
def test_some_weights_in_memory_and_some_on_disk(unit: Any, offload: Any, tmp_path: Path) -> None:
    """Biases, gains, output projections and the unembedding are read where they are, and are put away again."""
    shape = {"attention_bias": True, "mlp_bias": True}
    offloaded = offload(llama(**shape), tmp_path)
    away = [name for name, parameter in offloaded.named_parameters() if parameter.is_meta]
    assert {"model.layers.0.self_attn.o_proj.bias", "model.norm.weight", "lm_head.weight"} <= set(away)
    assert ("model.layers.1.mlp.down_proj.weight" in away) == (offload is on_disk)
    assert_same(llama(**shape), offloaded, unit)
    assert [name for name, parameter in offloaded.named_parameters() if parameter.is_meta] == away


@pytest.mark.nightly
@pytest.mark.parametrize("offload", [on_disk, mixed])
@pytest.mark.parametrize("family", SPREAD)
def test_families_offloaded(family: str, offload: Any, tmp_path: Path) -> None:
    for unit in ("sublayer", "head", "expert") if family == "mixtral" else ("sublayer", "head", "neuron"):
        whole = FAMILIES[family]()
        try:
            ld.contributions(whole, PROMPTS, OPTIONS, unit=unit)
        except ld.InputError:  # it has no such rows
            continue
        assert_same(whole, offload(FAMILIES[family](), tmp_path / unit), unit)


@pytest.mark.full
def test_analyses_of_an_offloaded_model(tmp_path: Path) -> None:
    """Blocks that are called again, attention, gradients and whole-vocabulary read-outs bring their weights, too."""
    whole, offloaded = llama(), mixed(llama(), tmp_path)
    for measure in (
        lambda m: ld.depth.skip(m, PROMPTS).frame(),
        lambda m: ld.depth.erase(m, PROMPTS[:1]).frame(),
        lambda m: ld.depth.integrated_gradients(m, PROMPTS[:1], steps=4).frame(),
        lambda m: ld.depth.logit_lens(m, PROMPTS).frame(),
        lambda m: ld.effects(m, PROMPTS, OPTIONS, labels=[0, 1, 2], unit="head").frame(),
        lambda m: ld.source_tokens(m, PROMPTS[:1], OPTIONS).frame(),
        lambda m: ld.profile(m, PROMPTS[:1], unit="head").top_tokens("L1.H1", position=3),
        lambda m: ld.profile(m, PROMPTS[:1], gauge="raw").frame(),
    ):
        a, b = (measure(m).select_dtypes("number").to_numpy(float, na_value=np.nan) for m in (whole, offloaded))
        np.testing.assert_allclose(b, a, atol=1e-6)


@pytest.mark.full
def test_a_model_that_does_not_run_offloaded_is_refused() -> None:
    """JetMoE's own pass fails where accelerate has put its weights away."""
    with pytest.raises(ld.InputError, match="cannot be replayed"):
        ld.contributions(in_memory(FAMILIES["jetmoe"](), Path()), PROMPTS, OPTIONS)
