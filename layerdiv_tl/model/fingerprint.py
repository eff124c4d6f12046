"""Fingerprints of models: hashes of everything that determines their numbers. What cannot be hashed raises an error.

Hooks and functions that were put into a loaded model raise an error where results are stored under its name: see
`interventions`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from .batches import inference_mode_for
from .interventions import is_code, is_library, refuse_foreign_code
from .load import Model
from .weights import in_memory

# Entries on location, loading, generation and training, on which no logit depends.
_NOT_THE_MODEL = frozenset(
    "_name_or_path transformers_version torch_dtype dtype use_cache pad_token_id bos_token_id eos_token_id "
    "architectures id2label label2id output_hidden_states output_attentions return_dict problem_type "
    "device n_devices seed model_name tokenizer_name checkpoint_index checkpoint_label_type checkpoint_value".split()
)
# Attributes of modules that PyTorch keeps in every one (weights, children and hooks are handled separately), that
# say where a module is, that a pass changes, or that only training reads.
_NOT_SETTINGS = frozenset(vars(nn.Module())) | frozenset(
    "training gradient_checkpointing name_or_path hf_device_map loss_type padding_idx all_tied_weights_keys".split()
)
# Suffixes of what rotary embeddings keep of the longest text so far, which follows from the configuration.
_GROWN = ("max_seq_len_cached", "long_inv_freq")
# PEFT's attributes that say which adapters are active.
_ADAPTERS = ("_active_adapter", "_disable_adapters")
# Settings of a tokenizer outside its backend's state.
_TOKENIZER_SETTINGS = (
    "add_bos_token add_eos_token add_prefix_space split_special_tokens legacy do_lower_case "
    "bos_token eos_token unk_token chat_template".split()
)
_PROBES = ("Is 12 more than 7?", " a\n\nb  c")


@dataclass(frozen=True)
class Identity:
    """The key under which a model's results are stored, besides its name; `settings` say how it is computed."""

    weights: str
    tokenizer: str | None
    settings: dict[str, Any]


def identify(model: Model) -> Identity:
    """Compute the identity of a model and its tokenizer. Raises InputError for a model with foreign hooks.

    For a remote model, only its configuration, its gains and biases and some rows of its unembedding are hashed.
    """
    if model.engine is not None:
        engine = model.engine
        return Identity(engine.remote_hash, tokenizer_fingerprint(model.tokenizer), {"engine": engine.name})
    config = getattr(model.architecture.roots[-1], "config", None)
    settings = {
        "attention": getattr(config, "_attn_implementation", None),
        "experts": getattr(config, "_experts_implementation", None),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    with inference_mode_for(model.architecture):  # waits for another thread's pass, whose hooks are the package's own
        refuse_foreign_code(model.name, model.architecture)
        return Identity(fingerprint(model), tokenizer_fingerprint(model.tokenizer), settings)


def fingerprint(model: Model) -> str:
    """Compute SHA-256 of a model's configuration, modules, weights and buffers: equal for runs with the same model.

    Every number of every parameter and buffer counts, with its current value and place of use (hashed by XXH3, 0.06 s
    of CPU time for 540 MB); names do not. Raises InputError where weights have no values (the meta device).
    """
    roots, known = model.architecture.roots, dict[Tensor, Any]()
    modules = [(path, module) for root in roots for path, module in nn.Module.named_modules(root)]
    number = {module: place for place, (_, module) in enumerate(modules)}
    about = [model.provenance[name] for name in ("architecture", "adapters") if name in model.provenance]
    digest = hashlib.sha256(_json([*about, [_config(root) for root in roots]]))
    for path, module in modules:
        children = {name: number[child] for name, child in module.named_children() if child in number}
        digest.update(_json([_code(type(module)), children, _settings(module), _tensors(path, module, known)]))
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str | None:
    """Compute SHA-256 of how a tokenizer reads texts, without padding and truncation, which calls change."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest = hashlib.sha256()
    if backend is not None and hasattr(backend, "to_str"):
        # Truncation and padding come before the tokens; parsing the rest of a large tokenizer takes a second.
        before, mark, after = backend.to_str().partition('"added_tokens"')
        digest.update((mark + after or before).encode())
    else:
        vocabulary = tokenizer.get_vocab().items() if hasattr(tokenizer, "get_vocab") else []
        digest.update(_json([type(tokenizer).__name__, sorted(vocabulary)]))
        pieces: Any = getattr(tokenizer, "sp_model", None)
        if hasattr(pieces, "serialized_model_proto"):
            digest.update(pieces.serialized_model_proto())
    added = getattr(tokenizer, "added_tokens_decoder", {}) or {}
    settings = {name: getattr(tokenizer, name, None) for name in _TOKENIZER_SETTINGS}
    read = [tokenizer(text, add_special_tokens=special)["input_ids"] for text in _PROBES for special in (True, False)]
    digest.update(_json([settings, sorted((i, repr(token)) for i, token in added.items()), read]))
    return digest.hexdigest()


def _config(root: Any) -> Any:
    """A configuration's entries minus its class's defaults, so that entries added by new versions change nothing."""
    config, cfg = getattr(root, "config", None), getattr(root, "cfg", None)
    for read in ("to_diff_dict", "to_dict"):
        if hasattr(config, read):
            return _without_excluded(getattr(config, read)())
    return _without_excluded({name: x for name, x in vars(cfg).items() if _is_plain(x)}) if cfg is not None else None


def _without_excluded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_excluded(x) for key, x in value.items() if key not in _NOT_THE_MODEL}
    return [_without_excluded(x) for x in value] if isinstance(value, list | tuple) else value


def _code(cls: type) -> str:
    """Describe a class by its name, and outside libraries also by its source, which may change between runs."""
    text = ""
    if not is_library(cls):
        try:
            text = hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
        except (OSError, TypeError):  # typed at a prompt
            text = hashlib.sha256(cls.forward.__code__.co_code).hexdigest()  # type: ignore[attr-defined]
    return f"{cls.__module__}.{cls.__qualname__} {text}"


def _settings(module: nn.Module) -> dict[str, Any]:
    """Numbers, words and functions among a module's attributes; for classes outside libraries, private ones too."""
    own, held = not is_library(type(module)), vars(module)
    settings: dict[str, Any] = {name: held[name] for name in _ADAPTERS if name in held}
    for name, value in held.items():
        if name in _NOT_SETTINGS or name.endswith(_GROWN) or (name.startswith("_") and not own):
            continue
        if name == "forward" and "_hf_hook" in held:  # accelerate's, which moves weights
            continue
        if is_code(value) or _is_plain(value) or (own and not isinstance(value, Tensor)):
            settings[name] = _contents(value)
    return settings


def _contents(value: Any, depth: int = 3) -> Any:
    """Numbers, words, names of functions, tensors and arrays in lists, mappings, partials and objects, to a depth."""
    if _is_plain(value):
        return value
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, torch.dtype):
        return str(value)
    if is_code(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    if isinstance(value, nn.Module | type) or not depth:
        return None
    if isinstance(value, functools.partial):
        return [_contents(x, depth - 1) for x in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return [[str(key), _contents(x, depth - 1)] for key, x in value.items()]
    if isinstance(value, list | tuple):
        return [_contents(x, depth - 1) for x in value]
    return [type(value).__qualname__, _contents(vars(value), depth - 1) if hasattr(value, "__dict__") else None]


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(x) for key, x in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _tensors(path: str, module: nn.Module, known: dict[Tensor, Any]) -> dict[str, Any]:
    """{name: description and hash} of a module's own weights, buffers and other tensors."""
    offloaded = any(x is not None and x.is_meta for x in (*module._parameters.values(), *module._buffers.values()))
    hashes: dict[str, Any] = {}
    with in_memory(module, torch.device("cpu") if offloaded else None):
        held = {**module._parameters, **module._buffers}
        held |= {name: x for name, x in vars(module).items() if isinstance(x, Tensor)}
        for name, x in held.items():
            # Rotary frequencies that depend on the length of the last text: the initial ones are the model's.
            x = getattr(module, name.replace("inv_freq", "original_inv_freq"), x) if name in module._buffers else x
            if not isinstance(x, Tensor) or name.endswith(_GROWN):
                continue
            if x.is_meta:
                raise InputError(f"{path}.{name} lies on the meta device and has no values: load it with its weights.")
            if offloaded:  # hashed at once, as it is in memory only for now
                hashes[name] = _numbers(x)
            else:
                known[x] = hashes[name] = known.get(x) or _numbers(x)
    # PyTorch's quantized layers show their packed weights in their state only.
    if type(module).__module__.startswith("torch.ao."):
        state: dict[str, Any] = {}
        module._save_to_state_dict(state, "", True)
        hashes |= {name: _contents(x) for name, x in state.items() if name not in hashes}
    return hashes


def _numbers(x: Tensor) -> Any:
    """Type, shape and hash of a tensor, and everything else that scales its numbers."""
    what = [str(x.dtype), list(x.shape)]
    if x.is_quantized:
        per_channel = x.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
        scales = ["q_per_channel_scales", "q_per_channel_zero_points"] if per_channel else ["q_scale", "q_zero_point"]
        return [*what, _hash(x.int_repr()), [_contents(getattr(x, scale)()) for scale in scales]]
    if hasattr(x, "__tensor_flatten__"):  # a subclass around other tensors (torchao)
        names, context = x.__tensor_flatten__()
        return [*what, [[name, _numbers(getattr(x, name))] for name in names], repr(context)]
    # bitsandbytes stores scales and code books as attributes of its tensors.
    attached = [(name, value) for name, value in sorted(getattr(x, "__dict__", {}).items()) if name[0] != "_"]
    return [*what, _hash(x.detach()), [(name, _contents(x, 5)) for name, x in attached if not _is_plain(x)]]


def _hash(x: Tensor) -> str:
    digest = hashlib.sha256()
    flat = x.contiguous().reshape(-1)
    step = max(1, (1 << 26) // max(1, x.element_size()))  # 64 MiB are copied from a device at a time
    for start in range(0, len(flat), step):
        digest.update(flat[start : start + step].cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _json(value: Any) -> bytes:
    def as_text(x: Any) -> Any:
        return sorted(map(str, x)) if isinstance(x, set) else str(x)

    return json.dumps(value, sort_keys=True, default=as_text).encode()
