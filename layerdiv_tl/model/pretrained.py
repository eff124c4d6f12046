"""Load a causal LM and its tokenizer by name, from disk, or from the Hugging Face hub.

Incomplete checkpoints raise an error, because Transformers would fill up missing tensors with random numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .._checks import file_path
from .._progress import shows_bars
from ..errors import InputError
from .converted import DEFAULT_NAME, GGUF_SHA256, REQUIREMENT, converted_gguf, default_model_folder
from .hub import is_local_only
from .precision import TOLERANCE, answer_gap

# Transformers replaces methods of its classes while it loads; two threads would leave them replaced.
_ONE_AT_A_TIME = threading.Lock()
# Ten times as many as in any published model.
MOST_LAYERS = 4096
# Buffers of a causal mask that older versions of Transformers stored.
_MASK = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$")
_LAYERS = re.compile("(n|num|num_hidden|num_decoder|decoder)_layers?")
# Files of weights, whose names are no Hugging Face ids.
_FILES = (".gguf", ".safetensors", ".bin", ".pth", ".ckpt")
# Loading arguments of a model that its config and its tokenizer also take.
_SHARED = ("trust_remote_code", "local_files_only", "revision", "gguf_file")


def from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any) -> tuple[Any, Any, str, str]:
    """Load (model, tokenizer, source, name) of the default model (None), of something on disk, or of a hub id."""
    from huggingface_hub import try_to_load_from_cache

    place, source, name, more = _find(x)
    kwargs = {**kwargs, **more}
    with without_progress_bars(keep="gguf_file" in kwargs):
        model = _causal_lm(place, kwargs, source)
        if not os.path.exists(place) and getattr(model.config, "_commit_hash", None) is None:  # newer versions drop it
            file = try_to_load_from_cache(place, "config.json", revision=kwargs.get("revision"))  # none for adapters
            model.config._commit_hash = Path(file).parent.name if isinstance(file, str) else None
        if tokenizer is None:
            tokenizer = _tokenizer(place, _shared(kwargs), required=False)
        else:
            tokenizer = read_tokenizer(tokenizer, kwargs["trust_remote_code"])
    return model, tokenizer, source, name


def _find(x: Any) -> tuple[str, str, str, dict[str, Any]]:
    """Find (place for `from_pretrained`, its name in messages, name, arguments that the place needs)."""
    if x is None or (x == DEFAULT_NAME and not os.path.exists(x)):
        source = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}"
        return str(default_model_folder(convert_gguf)), source, DEFAULT_NAME, {}
    if not (text := str(x)).strip():
        raise InputError("load_model('') names nothing: give a folder, a .gguf file, a Hugging Face id, or None.")
    path = file_path("model", x)
    if path.suffix.lower() in _FILES and not os.path.isfile(path):
        raise InputError(f"there is no file {text!r}: check the path of a GGUF file, or give a model's folder.")
    if path.suffix.lower() == ".gguf":
        folder = converted_gguf(path, partial(convert_gguf, needs_tokenizer=False))
        if folder is None:
            return str(path.parent), text, path.name, {"gguf_file": path.name}
        return str(folder), text, path.name, {}
    if os.path.exists(path):  # Path.exists raises for a name that is too long
        _check_folder(path, text)
        return str(path), text, path.name, {}
    if _is_path(text):
        raise InputError(f"there is no folder or file {text!r:.200}: check the path, or give a Hugging Face id.")
    place, at, revision = text.partition("@")
    if at and not revision.strip():
        raise InputError(f"{text!r:.100} names no revision after @: write for example 'gpt2@main'.")
    more: dict[str, Any] = {"revision": revision} if at else {}
    if is_local_only(place, revision or None):  # Transformers also looks for adapters by itself
        more |= {"local_files_only": True, "adapter_kwargs": {"local_files_only": True}}
    return place, text, text, more


def read_tokenizer(x: Any, trust_remote_code: bool, owner: Any = None) -> Any:
    """Load the given tokenizer, or that of a folder or Hugging Face id; for None that of `owner`, if any.

    Raises InputError where there is none.
    """
    if not isinstance(x, str | os.PathLike):
        return getattr(owner, "tokenizer", None) if x is None else x
    place, kwargs = str(file_path("tokenizer", x)), {"trust_remote_code": trust_remote_code}
    if not os.path.exists(place):
        place = str(x)
        if not place.strip() or _is_path(place):
            raise InputError(f"no tokenizer could be loaded from {place!r:.200}: there is no such folder.")
        kwargs |= {"local_files_only": True} if is_local_only(place) else {}
    return _tokenizer(place, kwargs, required=True)


def convert_gguf(gguf: Path, folder: Path, needs_tokenizer: bool = True) -> None:
    """Convert a GGUF file to a Hugging Face folder with safetensors, float32. Raises OSError where there is no room."""
    with without_progress_bars(keep=True):
        model = _causal_lm(str(gguf.parent), {"gguf_file": gguf.name}, str(gguf))
        tokenizer = _tokenizer(str(gguf.parent), {"gguf_file": gguf.name}, required=needs_tokenizer)
    # The weights are plain numbers now, but saving refuses while the config calls them quantized.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    size, free = sum(p.numel() * p.element_size() for p in model.parameters()), shutil.disk_usage(folder.parent).free
    if free < 1.05 * size:
        raise OSError(f"it needs {size / 1e9:.2g} GB, and {free / 1e9:.2g} GB are free")
    with without_progress_bars():
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _causal_lm(place: str, kwargs: dict[str, Any], shown: str) -> Any:
    try:
        if "gguf_file" in kwargs:
            return _load_gguf(place, kwargs, shown)
        _refuse_layers(settings := _config(place, kwargs), shown)
        return _load_whole(_auto_class(place, kwargs), place, kwargs, shown, "text_config" in settings)
    except InputError:
        raise
    # Readers of foreign files fail in many ways; the user needs to know which file and why.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) < 300 else reason[:300] + " …"
        if "gguf_file" in kwargs:
            raise InputError(f"{shown!r} is not a GGUF file that can be read ({reason}).") from error
        if Path(place).exists():
            raise InputError(f"the model in {shown!r} cannot be loaded ({reason}).") from error
        raise InputError(
            f"{shown!r} is not a local folder and could not be loaded as a Hugging Face id ({reason})."
        ) from error


def _load_whole(auto: Any, place: str, kwargs: dict[str, Any], shown: str, has_parts: bool = False) -> Any:
    """Load a model whose checkpoint is complete. Raises InputError for missing or unused tensors.

    Transformers would fill missing tensors with random numbers and ignore unused ones. A folder of adapters is loaded
    in two steps, since Transformers reports on only one of them. If a checkpoint `has_parts` other than its text side,
    for pictures or sound, its text side has to be complete.
    """
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
    # Reports mismatched tensors, too.
    report: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with _ONE_AT_A_TIME:
            model, loading = auto.from_pretrained(base, **report, **kwargs)
    except RuntimeError as error:
        if "CONVERSION" not in str(error):
            raise
        raise InputError(
            f"the checkpoint {shown!r} lacks some of the tensors that Transformers puts together as one (of experts, "
            "say), as its log says: get a whole copy."
        ) from error
    # With and without the prefix of the inner model, as in checkpoints.
    buffers = {name.removeprefix(f"{model.base_model_prefix}.") for name, _ in model.named_buffers()}
    if has_parts:
        loading = _of_text(model, loading)
    _refuse_tensors(loading, shown, buffers)
    if adapters is not None:
        as_base = {"dtype": model.dtype, "dtype_plan": model._get_dtype_plan(model.dtype)}
        loading = model.load_adapter(place, adapter_kwargs=way, ignore_mismatched_sizes=True, **as_base)
        _refuse_tensors(loading.to_dict(), shown)
    return model


def _load_gguf(place: str, kwargs: dict[str, Any], shown: str) -> Any:
    """Load a GGUF's model. Raises InputError also for blocks beyond the declared ones, which Transformers ignores."""
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    reader = GGUFReader(Path(place, kwargs["gguf_file"]))
    blocks = max((int(x.contents()) for name, x in reader.fields.items() if name.endswith(".block_count")), default=0)
    _refuse_layers({"num_layers": blocks}, shown)
    numbers = {tensor.name: re.match(r"blk\.(\d+)\.", tensor.name) for tensor in reader.tensors}
    beyond = [name for name, number in numbers.items() if number and int(number[1]) >= blocks]
    _refuse_tensors({"unexpected_keys": beyond}, shown)
    return _load_whole(AutoModelForCausalLM, place, kwargs, shown)


def _refuse_layers(settings: dict[str, Any], shown: str) -> None:
    """Raise InputError for impossibly many layers, which would be built before missing weights are noticed."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _refuse_layers(value, shown)
        elif _LAYERS.fullmatch(name) and isinstance(value, int) and value > MOST_LAYERS:
            raise InputError(f"{shown!r} says {name}: {value}, above {MOST_LAYERS}: correct its config.")


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


def _auto_class(place: str, kwargs: dict[str, Any]) -> Any:
    """The class that loads a checkpoint: some multimodal models are not registered as causal language models."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        kind = type(AutoConfig.from_pretrained(place, **_shared(kwargs)))
    except Exception:  # loading the model has the better message
        return AutoModelForCausalLM
    of_text, of_pictures = AutoModelForCausalLM._model_mapping, AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if kind not in of_text and kind in of_pictures else AutoModelForCausalLM


def _config(place: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint's config.json; empty if there is none to read."""
    from transformers import PretrainedConfig

    try:
        return dict(PretrainedConfig.get_config_dict(place, **_shared(kwargs))[0])
    except Exception:  # loading the model has the better message
        return {}


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
        with path.open("rb") as file:
            is_result = b"layerdiv_tl.result" in file.read(4096)
        saved = "it holds a saved result; that of ld.depth.drop_plan writes its model by .save_model(folder)"
        where = saved if is_result else "give the folder that holds config.json"
        raise InputError(f"{shown!r} is a file, but not a .gguf file: {where}.")
    if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):  # PEFT's names its base
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"give the file itself, {str(ggufs[0])!r}" if ggufs else "give the folder that holds config.json"
        raise InputError(f"the folder {shown!r} is not a model (it has no config.json): {hint}.")


def _shared(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in _SHARED if name in kwargs}


def _is_path(text: str) -> bool:
    """True if a text can only be meant as a path, not as a Hugging Face id."""
    return Path(text).is_absolute() or text.startswith((".", "~")) or text.count("/") > 1


@contextlib.contextmanager
def without_progress_bars(keep: bool = False) -> Iterator[None]:
    """Hide the bars that Hugging Face draws for every load, even in logs; `keep` shows those that a reader sees."""
    from transformers.utils import logging

    if (keep and shows_bars()) or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
