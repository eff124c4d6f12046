"""Fingerprints of models: hashes of configuration, weights and tokenizer, under which results are stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .load import Model

# Entries of configurations on which no logit depends.
_NOT_THE_MODEL = "_name_or_path transformers_version architectures dtype use_cache pad_token_id device n_devices seed"
# Attributes of PEFT's layers: which adapters are active, and how much.
_ADAPTERS = ("_active_adapter", "_disable_adapters", "scaling")
_OF_TOKENIZERS = ("bos_token", "eos_token", "unk_token", "add_bos_token", "add_eos_token", "chat_template")
# Libraries that put hooks of their own into a model.
_LIBRARIES = ("transformers", "accelerate", "peft", "transformer_lens", "torch", "layerdiv_tl")


@dataclass(frozen=True)
class Identity:
    """The key under which a model's results are stored, besides its name."""

    weights: str
    tokenizer: str | None


def identify(model: Model) -> Identity:
    """Compute the identity of a model and its tokenizer. Raises InputError for a model with a user's hooks."""
    for root in _roots(model):
        for path, module in root.named_modules():
            hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            # TransformerLens wraps the user's hooks in functions of its own.
            if getattr(module, "fwd_hooks", None) or not all(map(_is_of_library, hooks)):
                raise InputError(
                    f"{model.name} has a forward hook on {path or 'the model itself'}, which its weights do not show: "
                    "remove it, so that no results are kept as another model's."
                )
    return Identity(fingerprint(model), None if model.tokenizer is None else _sha256(_tokenizer(model.tokenizer)))


def fingerprint(model: Model) -> str:
    """Compute SHA-256 of a model's configuration, modules, weights and buffers."""
    known: dict[Tensor, Any] = {}
    parts: list[Any] = []
    for root in _roots(model):
        config: Any = getattr(root, "config", None) or getattr(root, "cfg", None)
        parts.append({name: x for name, x in config.to_dict().items() if name not in _NOT_THE_MODEL.split()})
        parts.append([(path, str(type(m)), [vars(m).get(x) for x in _ADAPTERS]) for path, m in root.named_modules()])
        held = nn.Module.state_dict(root, keep_vars=True) | dict(root.named_buffers(remove_duplicate=False))
        for name, x in held.items():
            # Rotary frequencies may follow the length of the last text: the original ones are the model's.
            if not name.endswith("inv_freq") or name.endswith("original_inv_freq"):
                parts.append((name, _contents(x, known)))
    return _sha256(parts)


def _contents(x: Any, known: dict[Tensor, Any]) -> Any:
    """Describe an entry of a model's state; a tensor is hashed once, however often it is used."""
    if not isinstance(x, Tensor):
        return x
    if x not in known:
        if hasattr(x, "__tensor_flatten__"):  # a quantized tensor, made of others (torchao)
            names, context = x.__tensor_flatten__()
            values: Any = [repr(context), [_contents(getattr(x, part), known) for part in names]]
        else:
            digest = hashlib.sha256()
            for part in x.detach().reshape(-1).split(1 << 24):  # so much is copied from a device at a time
                digest.update(part.cpu().view(torch.uint8).numpy().data)
            values = digest.hexdigest()
        known[x] = [str(x.dtype), list(x.shape), values]
    return known[x]


def _roots(model: Model) -> list[Any]:
    """The model, and the one that a bridge wraps, which is not among its modules."""
    return list(dict.fromkeys((model.root, model.hf_model)))


def _tokenizer(tokenizer: Any) -> Any:
    """How a tokenizer reads texts, without padding and truncation, which calls change."""
    settings = [getattr(tokenizer, name, None) for name in _OF_TOKENIZERS]
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        return settings, getattr(tokenizer, "get_vocab", dict)()
    return settings, {**json.loads(backend.to_str()), "padding": None, "truncation": None}


def _is_of_library(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)  # of a partial
    return str(getattr(hook, "__module__", "")).startswith(_LIBRARIES)


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
