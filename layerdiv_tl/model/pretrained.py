"""Load a causal LM and its tokenizer by name, from disk, or from the Hugging Face hub.

Incomplete checkpoints raise an error, because Transformers would fill up missing tensors with random numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from .._checks import file_path
from ..errors import InputError
from .converted import DEFAULT_NAME, GGUF_SHA256, REQUIREMENT, converted_gguf, default_model_folder
from .hub import is_local_only
from .precision import TOLERANCE, answer_gap

# Transformers replaces methods of its classes while it loads; two threads would leave them replaced.
_ONE_AT_A_TIME = threading.Lock()
# Buffers of a causal mask that older versions of Transformers stored.
_MASK = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$")
# Loading arguments of a model that its config and its tokenizer also take.
_SHARED = ("trust_remote_code", "local_files_only", "revision")


def from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any) -> tuple[Any, Any, str, str]:
    """Load (model, tokenizer, source, name) of the default model (None), of something on disk, or of a hub id."""
    from huggingface_hub import try_to_load_from_cache

    with _naming(x), without_progress_bars():
        place, source, name, more = _find(x)
        kwargs = {**kwargs, **more}
        model = _load_whole(place, kwargs, source)
        if not os.path.exists(place) and getattr(model.config, "_commit_hash", None) is None:  # newer versions drop it
            file = try_to_load_from_cache(place, "config.json", revision=kwargs.get("revision"))  # none for adapters
            model.config._commit_hash = Path(file).parent.name if isinstance(file, str) else None
    if tokenizer is not None:
        return model, read_tokenizer(tokenizer, kwargs["trust_remote_code"]), source, name
    with contextlib.suppress(InputError):  # ids work without one, and text says what is missing
        tokenizer = _tokenizer(place, _shared(kwargs))
    return model, tokenizer, source, name


def _find(x: Any) -> tuple[str, str, str, dict[str, Any]]:
    """Find (place for `from_pretrained`, its name in messages, name, arguments that the place needs)."""
    if x is None or (x == DEFAULT_NAME and not os.path.exists(x)):
        source = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}"
        return str(default_model_folder(convert_gguf)), source, DEFAULT_NAME, {}
    path, text = file_path("model", x), str(x)
    if path.suffix.lower() == ".gguf" and path.is_file():
        return str(converted_gguf(path, convert_gguf)), text, path.name, {}
    if path.exists():
        return str(path), text, path.name, {}
    if path.is_absolute() or text.startswith(".") or text.count("/") > 1 or path.suffix in (".gguf", ".safetensors"):
        raise InputError(f"there is no folder or file {text!r}: check the path, or give a Hugging Face id.")
    place, _, revision = text.partition("@")
    more: dict[str, Any] = {"revision": revision} if revision else {}
    if is_local_only(place, revision or None):  # Transformers also looks for adapters by itself
        more |= {"local_files_only": True, "adapter_kwargs": {"local_files_only": True}}
    return place, text, text, more


def read_tokenizer(x: Any, trust_remote_code: bool, owner: Any = None) -> Any:
    """Load the given tokenizer, or that of a folder or Hugging Face id; for None that of `owner`, if any."""
    if not isinstance(x, str | os.PathLike):
        return getattr(owner, "tokenizer", None) if x is None else x
    place = file_path("tokenizer", x)
    if place.exists():
        return _tokenizer(str(place), {"trust_remote_code": trust_remote_code})
    with _naming(x):
        local = {"local_files_only": True} if is_local_only(str(x)) else {}
    return _tokenizer(str(x), {"trust_remote_code": trust_remote_code, **local})


def _tokenizer(place: str, kwargs: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    with _naming(f"the tokenizer of {place}"):
        return AutoTokenizer.from_pretrained(place, **kwargs)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file to a Hugging Face folder with safetensors, float32."""
    kwargs = {"gguf_file": gguf.name}
    with _naming(gguf):
        model = _load_whole(str(gguf.parent), kwargs, str(gguf))
    with contextlib.suppress(InputError):
        _tokenizer(str(gguf.parent), kwargs).save_pretrained(folder)
    # The weights are plain numbers now, but saving refuses while the config calls them quantized.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(folder)


@contextlib.contextmanager
def _naming(source: Any) -> Iterator[None]:
    """Put the name of a source in front of what readers of foreign files raise, who fail in many ways."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{str(source)!r} cannot be loaded ({reason:.300}).") from error


def _load_whole(place: str, kwargs: dict[str, Any], shown: str) -> Any:
    """Load a model whose checkpoint is complete. Raises InputError for missing or unused tensors.

    Transformers would fill missing tensors with random numbers and ignore unused ones. A folder of adapters is loaded
    in two steps, since Transformers reports on only one of them. Of a checkpoint with parts for pictures or sound, the
    text side has to be complete.
    """
    from transformers import AutoConfig
    from transformers.utils import find_adapter_config_file, is_peft_available

    way = {name: kwargs[name] for name in ("revision", "local_files_only") if name in kwargs}
    is_asked = "gguf_file" not in kwargs and is_peft_available()
    adapters: str | None = find_adapter_config_file(place, **way) if is_asked else None
    base = place
    if adapters is not None:
        if not Path(place, "config.json").is_file():
            base = json.loads(Path(adapters).read_text(encoding="utf-8"))["base_model_name_or_path"]
        # A folder without adapters, so that the base is loaded alone.
        kwargs = {**kwargs, "adapter_kwargs": {**way, "subfolder": "without-adapters"}}
    config = None if "gguf_file" in kwargs else AutoConfig.from_pretrained(base, **_shared(kwargs))
    # Reports mismatched tensors, too.
    report: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with _ONE_AT_A_TIME:
        model, loading = _auto_class(config).from_pretrained(base, **report, **kwargs)
    # With and without the prefix of the inner model, as in checkpoints.
    buffers = {name.removeprefix(f"{model.base_model_prefix}.") for name, _ in model.named_buffers()}
    if hasattr(config, "text_config"):
        loading = _of_text(model, loading)
    _refuse_tensors(loading, shown, buffers)
    if adapters is not None:
        as_base = {"dtype": model.dtype, "dtype_plan": model._get_dtype_plan(model.dtype)}
        loading = model.load_adapter(place, adapter_kwargs=way, ignore_mismatched_sizes=True, **as_base)
        _refuse_tensors(loading.to_dict(), shown)
    return model


def _of_text(model: Any, loading: dict[str, Any]) -> dict[str, Any]:
    """Select a report's entries on a model's text side: its decoder and unembedding, or a model of text alone."""
    text = {p for side in (model.get_decoder(), model.get_output_embeddings()) if side for p in side.parameters()}
    base = getattr(model, model.base_model_prefix, model)
    held = {name: set(m.parameters()) for each in (model, base) for name, m in each.named_children()}
    own = {name for name, parameters in held.items() if parameters & text} | {model.base_model_prefix}

    def is_text(key: Any) -> bool:
        names = (key if isinstance(key, str) else key[0]).split(".")
        return names[0] in own and (names[0] != model.base_model_prefix or names[1] in own)

    return {what: [key for key in keys if is_text(key)] for what, keys in loading.items() if what.endswith("_keys")}


def _refuse_tensors(loading: dict[str, Any], shown: str, made: Iterable[str] = ()) -> None:
    """Raise InputError, naming the first three tensors, for a checkpoint with missing or unused tensors.

    Transformers' report excludes tensors that a class declares as tied or ignorable. `made` are buffers that modules
    make themselves (positions), which older versions of Transformers stored.
    """
    made = tuple(f".{name}" for name in made)
    unexpected = [
        name for name in loading["unexpected_keys"] if not _MASK.search(name) and not f".{name}".endswith(made)
    ]
    for what, names in (
        ("lacks", loading.get("missing_keys", ())),
        ("has tensors that the model of its config does not take:", unexpected),
        ("has tensors of other shapes than its config says:", [key[0] for key in loading.get("mismatched_keys", ())]),
    ):
        if names:
            first, more = ", ".join(sorted(names)[:3]), f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(f"the checkpoint {shown!r} {what} {first}{more}: get a whole copy, or correct its config.")


def _auto_class(config: Any) -> Any:
    """The class that loads a checkpoint: some multimodal models are not registered as causal language models."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    of_text, of_pictures = AutoModelForCausalLM._model_mapping, AutoModelForImageTextToText._model_mapping
    is_of_pictures = type(config) not in of_text and type(config) in of_pictures
    return AutoModelForImageTextToText if is_of_pictures else AutoModelForCausalLM


def _shared(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in _SHARED if name in kwargs}


def text_side(model: Any) -> Any:
    """Extract the text side of a multimodal model; a text model is returned unchanged.

    The result is a shell of the causal language model that fits the text settings; its parts are the model's own, not
    copies. Raises InputError if its logits differ from the model's, and without a decoder and an unembedding.
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
    reason = "its logits for text differ"
    for shell in [whole] if whole is not None else _shells(text, base, head):
        ids = torch.arange(4, 12, device=model.get_input_embeddings().weight.device)[None]
        try:
            with torch.no_grad():
                one, two = (m.eval()(input_ids=ids, use_cache=False, return_dict=True).logits for m in (model, shell))
        except Exception as error:  # a model of another shape may raise anything
            reason = " ".join(str(error).split())[:200]
            continue
        if answer_gap(two, one) <= TOLERANCE[model.dtype]:
            return shell
    raise InputError(f"the text side of {type(model).__name__} cannot be taken by itself ({reason}).")


def _shells(text: Any, base: Any, head: Any) -> Iterator[Any]:
    """Build causal LMs from a text decoder and an unembedding: by the settings, then one with nothing in between."""
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


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the bars that Hugging Face draws for every load, even in logs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
