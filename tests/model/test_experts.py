"""unit="expert": the parts of a mixture of experts, against its own output, formulas from its weights, and ablation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import layerdiv_tl as ld
from tests.oracles import families
from tests.oracles.families import each

PROMPTS = [[5, 1, 4, 1, 5], [3, 9], [7, 60, 2, 12, 40, 33]]
OPTIONS = [7, 30]
# Families whose configurations in `families` have no mixture, or not all that one may have.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2_moe_shared": ("cohere2_moe", {"logit_scale": 0.4, "num_shared_experts": 1}),
    "laguna_scaled": ("laguna", {"moe_routed_scaling_factor": 2.5}),
    "nemotron_latent": ("nemotron_h", {"moe_latent_size": 16, "mlp_bias": True}),
    "glm_moe_dsa_sparse": (
        "glm_moe_dsa",
        families._OTHERS["glm_moe_dsa"][1] | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
}
MIXTURES = (
    *("afmoe", "aria", "axk2", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v4", "dots1", "ernie4_5_moe"),
    *(
        "exaone_moe",
        "flex_olmo",
        "flint",
        "gemma4_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "granite_hybrid",
        "granite_moe",
    ),
    *("granite_moe_swa", "granite_shared", "hunyuan_moe", "hy_v3", "hy_v4", "jamba", "kimi_linear"),
    *("kolibri1", "laguna", "lfm2_moe", "llama4", "mellum", "mimo_v2_flash", "minimax", "minimax_m2", "minimax_m3"),
    *("mixtral", "nemotron_h", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen4_exp"),
    *("solar_open", "zaya", *VARIANTS),
)


def tiny(name: str, double: bool = False) -> Any:
    """A tiny random model of a family or variant; in double precision its experts run one after another."""
    if double:
        model = tiny(name)
        model.set_experts_implementation("eager")
        return model.double()
    if name not in VARIANTS:
        return families.family(name)
    families._PATHS[name] = VARIANTS[name]
    try:
        return families.family(name)
    finally:
        del families._PATHS[name]


def vectors(model: Any, prompt: list[int]) -> dict[str, Tensor]:
    """What each part of a mixture adds to the stream at a prompt's last token, `[d]`, undone from the final norm."""
    streams: list[Tensor] = []
    norm = model.model.norm
    axes = {str(i): axis for i, axis in enumerate(np.eye(model.config.hidden_size))}
    with norm.register_forward_pre_hook(lambda m, a: streams.append(a[0][0, -1].double())):
        c = ld.contributions(ld.load_model(model), [prompt], axes, unit="expert")
    sigma = (streams[-1].square().mean() + norm.variance_epsilon).sqrt()
    normed = torch.as_tensor(c.values[0]) * sigma / norm.weight.detach().double()
    return {component.label: x for component, x in zip(c.components, normed, strict=True)}


@pytest.mark.parametrize("name", each(MIXTURES))
def test_parts_sum_to_the_sublayer_and_leave_the_model_as_it_is(name: str) -> None:
    model = ld.load_model(tiny(name))
    whole = ld.contributions(model, PROMPTS, OPTIONS)
    cut = ld.contributions(model, PROMPTS, OPTIONS, unit="expert")
    assert cut.identity_gap < 1e-6
    np.testing.assert_array_equal(cut.model_logits, whole.model_logits)  # to the last bit
    layers = {c.layer for c in cut.components if c.kind == "expert"}
    assert layers
    for layer in layers:
        parts, sublayer = (x.select(module="mlp", layer=layer) for x in (cut, whole))
        assert np.abs(parts.logits - sublayer.logits).max() <= 1e-5 * max(1, np.abs(sublayer.values).max())
    # At some positions an expert writes, at others nothing: exactly.
    silent = [i for i, c in enumerate(cut.components) if c.kind == "expert" and (cut.values[:, i] == 0).all(1).any()]
    assert silent


@pytest.mark.parametrize("name", ["mixtral", pytest.param("deepseek_v3", marks=pytest.mark.full)])
def test_rows_do_not_depend_on_how_prompts_are_batched(name: str) -> None:
    model = tiny(name)
    together = ld.contributions(model, PROMPTS, OPTIONS, unit="expert")
    alone = [ld.contributions(model, [p], OPTIONS, unit="expert").values[0] for p in PROMPTS]
    np.testing.assert_allclose(together.values, np.stack(alone), atol=2e-6 * np.abs(together.values).max())


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", pytest.param("deepseek_v3", marks=pytest.mark.full)])
def test_without_a_gate_the_sublayer_lacks_exactly_that_part(name: str) -> None:
    """Of every expert; what is left is the shared expert, in the model's own pass in double precision."""
    model, prompt = tiny(name, double=True), PROMPTS[2]
    layer = len(model.model.layers) - 1
    parts, mlp = vectors(model, prompt), model.model.layers[-1].mlp
    own = {label.partition(".")[2]: x.float() for label, x in parts.items() if label.startswith(f"L{layer}.")}

    def output() -> Tensor:
        seen: list[Tensor] = []
        handle = mlp.register_forward_hook(lambda m, a, out: seen.append(out[0, -1].float()))
        with torch.no_grad():
            model(torch.tensor([prompt]))
        handle.remove()
        return seen[0]

    def without(gone: tuple[int, ...]) -> Tensor:
        def closed(module: Any, args: Any) -> Any:
            shut = torch.isin(args[1], torch.tensor(gone))
            return args[0], args[1], torch.where(shut, 0.0, args[2])

        handle = mlp.experts.register_forward_pre_hook(closed)
        found = output()
        handle.remove()
        return found

    whole, active = output(), [e for e in range(4) if own[f"E{e}"].any()]
    assert len(active) == 2
    for expert in range(4):
        torch.testing.assert_close(whole - without((expert,)), own[f"E{expert}"], rtol=1e-5, atol=1e-6)
    shared = sum((x for label, x in own.items() if label.startswith("SE")), torch.zeros_like(whole))
    torch.testing.assert_close(without((0, 1, 2, 3)), shared, rtol=1e-5, atol=1e-6)


def test_models_without_experts_and_unreadable_ones_say_why() -> None:
    with pytest.raises(ld.InputError, match="expert"):
        ld.contributions(families.family("llama"), PROMPTS, OPTIONS, unit="expert")
    with pytest.raises(ld.InputError, match="neurons"):
        ld.contributions(families.family("mixtral"), PROMPTS, OPTIONS, unit="neuron")


def test_the_users_own_hook_on_experts_still_sees_and_changes_their_sum() -> None:
    model, shapes = families.family("mixtral"), []
    experts = model.model.layers[1].mlp.experts
    handle = experts.register_forward_hook(lambda m, a, out: shapes.append(out.shape))
    ld.contributions(model, [PROMPTS[0]], OPTIONS, unit="expert")
    handle.remove()
    assert {tuple(shape) for shape in shapes} == {(5, families.D_MODEL)}


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_half_precision_is_left_as_it_is(name: str, dtype: torch.dtype) -> None:
    model = tiny(name).to(dtype)
    whole = ld.contributions(model, PROMPTS, OPTIONS)
    cut = ld.contributions(model, PROMPTS, OPTIONS, unit="expert")
    np.testing.assert_array_equal(cut.model_logits, whole.model_logits)
    assert cut.identity_gap < 2e-2
