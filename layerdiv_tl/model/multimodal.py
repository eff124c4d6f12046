"""The text side of a multimodal model, as a causal language model that shares its modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import InputError

# Beyond what rounding explains, relative to the largest logit.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def text_side(model: Any) -> Any:
    """What a model that also takes pictures or sound does with text alone; a model of text is returned as it is.

    A shell of the causal language model that fits the text settings, whose parts are the model's own, not copies.
    Raises InputError where it answers otherwise than the model, and where there is no decoder with an unembedding.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config") or (text := config.get_text_config()) is config:
        return model
    base = model.get_decoder() if hasattr(model, "get_decoder") else model
    # Some hold a whole causal language model (Llama 4).
    whole = next((m for m in model.children() if getattr(m, "lm_head", None) is not None and m.config is text), None)
    head = model.get_output_embeddings()
    if whole is None and (head is None or base is model or getattr(config, "is_encoder_decoder", False)):
        raise InputError(f"{type(model).__name__} cannot be decomposed: it has no decoder of text with an unembedding.")
    reason = "it answers otherwise to text"
    for shell in [whole] if whole is not None else _shells(text, base, head):
        ids = torch.arange(4, 12, device=model.get_input_embeddings().weight.device)[None]
        try:
            with torch.no_grad():
                one, two = (m.eval()(input_ids=ids, use_cache=False, return_dict=True).logits for m in (model, shell))
        except Exception as error:  # a model of another shape fails in its own way
            reason = " ".join(str(error).split())[:200]
            continue
        if (one - two).abs().max() <= _TOLERANCE.get(model.dtype, 1e-5) * one.abs().max():
            return shell
    raise InputError(f"the text side of {type(model).__name__} cannot be taken by itself ({reason}).")


def _shells(text: Any, base: Any, head: Any) -> Iterator[Any]:
    """Causal language models of a text decoder and an unembedding: the settings' own, then one with nothing between."""
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    mapping = AutoModelForCausalLM._model_mapping
    if type(text) in mapping:
        with torch.device("meta"):
            shell = mapping[type(text)](text)
        setattr(shell, shell.base_model_prefix, base)
        shell.lm_head = head
        yield shell
    name = type(base).__name__.removesuffix("Model") + "TextSide"  # a name that TransformerLens does not list
    shell = LlamaForCausalLM.__new__(type(name, (LlamaForCausalLM,), {}))
    torch.nn.Module.__init__(shell)
    shell.config, shell.model, shell.lm_head = text, base, head
    yield shell
