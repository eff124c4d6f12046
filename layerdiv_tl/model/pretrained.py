"""Weights on disk or on the Hugging Face hub -> a causal LM and its tokenizer; what a misspelled name may mean."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .._checks import file_path, shown
from .._progress import shows_bars
from ..errors import InputError
from .checkpoint import load_gguf, load_whole, refuse_layers
from .converted import DEFAULT_NAME, GGUF_SHA256, REQUIREMENT, converted_gguf, default_model_folder

# Seconds that the hub has to answer in, unless HF_HUB_ETAG_TIMEOUT says otherwise. Its own client tries for a minute.
PATIENCE = 2.0
_SIGNS = ("config.json", "tokenizer_config.json", "tokenizer.json")
MOBILELLM = "mobilellm"
# Settings of a MobileLLM that a Llama's config has too.
_LLAMA = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings rms_norm_eps attention_bias mlp_bias bos_token_id eos_token_id "
    "initializer_range".split()
)


def from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any, known: Iterable[str]) -> tuple[Any, Any, str, str]:
    """(model, tokenizer, source, name) of something on disk or on the hub; `known` names may be meant, too."""
    kwargs, extra, text, of_hub = dict(kwargs), dict[str, Any](), str(x), False
    if x is None:
        place = text = str(default_model_folder(convert_gguf))
        source, name = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}", DEFAULT_NAME
    elif not text.strip():
        raise InputError("load_model('') names nothing: give a folder, a .gguf file, a Hugging Face id, or None.")
    else:
        path = file_path("model", x)
        place, source, name = str(path), text, path.name
        if path.suffix.lower() == ".gguf":
            if not os.path.isfile(path):
                raise InputError(f"there is no file {text!r}: check the path of the GGUF file{near(text)}")
            folder = converted_gguf(path, partial(convert_gguf, needs_tokenizer=False))
            place, extra = (str(path.parent), {"gguf_file": path.name}) if folder is None else (str(folder), {})
        elif os.path.exists(path):  # Path.exists raises for a name that is too long
            _check_folder(path, text)
        elif _is_path(text):
            raise InputError(
                f"there is no folder or file {text!r:.200}: check the path, or give a Hugging Face id{near(text)}"
            )
        else:
            name, of_hub, (place, at, revision) = text, True, text.partition("@")
            if at and not revision.strip():
                raise InputError(f"{text!r:.100} names no revision after @: write for example 'gpt2@main'.")
            kwargs |= {"revision": revision} if at else {}
            if is_local_only(place, known, revision or None):  # Transformers looks for adapters of its own, too
                kwargs |= {"local_files_only": True, "adapter_kwargs": {"local_files_only": True}}
    with without_progress_bars(keep=bool(extra)):
        model = _causal_lm(place, {**kwargs, **extra}, text, known)
        if of_hub and getattr(model.config, "_commit_hash", None) is None:  # newer versions of Transformers drop it
            model.config._commit_hash = _commit(place, kwargs.get("revision"))
        if tokenizer is None:
            way = {
                key: value
                for key, value in kwargs.items()
                if key in ("trust_remote_code", "local_files_only", "revision")
            }
            tokenizer = _tokenizer(place, {**way, **extra}, required=False)
        elif isinstance(tokenizer, str | os.PathLike):
            tokenizer = named_tokenizer(tokenizer, kwargs["trust_remote_code"])
    return model, tokenizer, source, name


def named_tokenizer(x: str | os.PathLike[str], trust_remote_code: bool) -> Any:
    """The tokenizer of a folder or a Hugging Face id. Raises InputError where there is none."""
    place, kwargs = str(file_path("tokenizer", x)), {"trust_remote_code": trust_remote_code}
    if not os.path.exists(place):
        place = str(x)
        if not place.strip() or _is_path(place):
            raise InputError(f"no tokenizer could be loaded from {place!r:.200}: there is no such folder.")
        kwargs |= {"local_files_only": True} if is_local_only(place) else {}
    return _tokenizer(place, kwargs, required=True)


def _commit(name: str, revision: str | None) -> str | None:
    """The commit that the machine's cache has of an id; None for adapters, which have no config of their own."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(file).parent.name if isinstance(file, str) else None


def _is_path(text: str) -> bool:
    """Whether a text can only be meant as a path, and not as a Hugging Face id."""
    return Path(text).is_absolute() or text.startswith((".", "~")) or text.count("/") > 1


def convert_gguf(gguf: Path, folder: Path, needs_tokenizer: bool = True) -> None:
    """A GGUF file as a Hugging Face folder with safetensors, float32. Raises OSError where there is no room for it."""
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


def _causal_lm(place: str, kwargs: dict[str, Any], shown: str, known: Iterable[str] = ()) -> Any:
    try:
        if "gguf_file" in kwargs:
            return load_gguf(place, kwargs, shown)
        refuse_layers(settings := _config(place, kwargs), shown)
        if settings.get("model_type") == MOBILELLM:
            return _load_mobilellm(place, settings, kwargs)
        return load_whole(_auto_class(place, kwargs), place, kwargs, shown, "text_config" in settings)
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
            f"{shown!r} is not a local folder and could not be loaded as a Hugging Face id ({reason})"
            f"{near(shown, known)}"
        ) from error


def _auto_class(place: str, kwargs: dict[str, Any]) -> Any:
    """The class that loads a checkpoint: of multimodal models, some are no causal language models by name."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    way = {name: kwargs[name] for name in ("trust_remote_code", "local_files_only", "revision") if name in kwargs}
    try:
        kind = type(AutoConfig.from_pretrained(place, **way))
    except Exception:  # loading the model has the better message
        return AutoModelForCausalLM
    of_text, of_pictures = AutoModelForCausalLM._model_mapping, AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if kind not in of_text and kind in of_pictures else AutoModelForCausalLM


def _config(place: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's config.json; nothing where none can be read."""
    from transformers import PretrainedConfig

    try:
        way = {key: kwargs[key] for key in ("local_files_only", "revision") if key in kwargs}
        return dict(PretrainedConfig.get_config_dict(place, **way)[0])
    except Exception:  # loading the model has the better message
        return {}


def _load_mobilellm(place: str, settings: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """A MobileLLM (Liu et al. 2024) as the Llama that it is; `layer_sharing` runs every block twice in a row.

    Its checkpoints come with code for an older Transformers, but with a Llama's blocks and names of tensors. Raises
    InputError for sharing that the config does not explain, and for tensors that are missing, misshapen or left over.
    """
    from torch import nn
    from transformers import LlamaConfig, LlamaForCausalLM

    for name in ("layer_sharing", "share_embedding"):
        if not isinstance(settings.get(name, False), bool):
            raise InputError(
                f"{place!r} says {name}: {settings[name]!r}, but true or false is all that is known of it."
            )
    if settings.get("share_embedding") is None and "tie_word_embeddings" not in settings:
        raise InputError(f"the config in {place!r} does not say whether it shares its embedding (share_embedding).")
    own = {name: settings[name] for name in _LLAMA if settings.get(name) is not None}
    # Older configs say rotary angles in two places, newer ones in one.
    rope = settings.get("rope_parameters") or {"rope_type": "default"} | (settings.get("rope_scaling") or {})
    rope.setdefault("rope_theta", settings.get("rope_theta", 10000.0))
    tied = bool(settings.get("share_embedding", settings.get("tie_word_embeddings")))
    config = LlamaConfig(**own, rope_parameters=rope, tie_word_embeddings=tied)
    kwargs = {name: value for name, value in kwargs.items() if name != "trust_remote_code"}
    model = load_whole(LlamaForCausalLM, place, kwargs | {"config": config}, place)
    if settings.get("layer_sharing"):
        model.model.layers = nn.ModuleList([block for block in model.model.layers for _ in range(2)])
        model.config.num_hidden_layers *= 2
        # Both uses of a block would write into the same place of a cache.
        model.config.use_cache = model.generation_config.use_cache = False
    return model


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
    if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):  # PEFT's names its base
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"give the file itself, {str(ggufs[0])!r}" if ggufs else "give the folder that holds config.json"
        raise InputError(f"the folder {shown!r} is not a model (it has no config.json): {hint}.")


@contextlib.contextmanager
def without_progress_bars(keep: bool = False) -> Iterator[None]:
    """Hugging Face draws a bar for every load, also for a short one and into a log; `keep` those that a reader sees."""
    from transformers.utils import logging

    if (keep and shows_bars()) or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def is_local_only(name: str, known: Iterable[str] = (), revision: str | None = None) -> bool:
    """Whether what has this id must come from the local cache, since the hub does not answer, or is off."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        ids = "a Hugging Face id, as 'gpt2' or 'Qwen/Qwen3-0.6B' are"
        raise InputError(f"{name!r:.100} is not a local folder, nor {ids}{near(name, known)}") from error
    cached = any(isinstance(try_to_load_from_cache(name, sign, revision=revision), str) for sign in _SIGNS)
    if constants.is_offline_mode():
        why = "HF_HUB_OFFLINE is set, so that it is not looked up"
    elif (reason := unreachable()) is not None:
        why = f"{constants.ENDPOINT} cannot be reached ({reason})"
    else:
        return False
    if not cached:
        refs = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "refs")
        here = sorted(str(path.relative_to(refs)) for path in refs.rglob("*") if path.is_file())
        if revision is not None and here:
            raise InputError(
                f"{name!r} is in this machine's cache, but not its revision {revision!r} (there are {shown(here)}), "
                f"and {why}."
            )
        name = name if revision is None else f"{name}@{revision}"
        raise InputError(
            f"{name!r} could not be loaded as a Hugging Face id: it is not in this machine's cache of models, and "
            f"{why}; give a local folder, or nothing for the default model{near(name, known)}"
        )
    return True


def unreachable() -> str | None:
    """Why the hub does not answer within PATIENCE; None where it does, whatever it answers."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    limit = PATIENCE
    with contextlib.suppress(KeyError, ValueError):
        limit = max(0.1, float(os.environ["HF_HUB_ETAG_TIMEOUT"]))
    answers: list[str | None] = []

    def request() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=limit)
            answers.append(None)
        except Exception as error:  # httpx, its successors and proxies each raise their own
            answers.append(" ".join(str(error).split())[:120] or type(error).__name__)

    # Looking up a host's address has no time limit of its own.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(limit + 0.5)
    return answers[0] if answers else f"no answer within {limit:g} s; HF_HUB_ETAG_TIMEOUT=30 waits longer"


def near(name: str, known: Iterable[str] = ()) -> str:
    """The end of a sentence: names like this one that can be loaded, among `known`, cached ids and local folders."""
    from huggingface_hub import constants

    meant = {"default": "default", DEFAULT_NAME.casefold(): "default"}
    cached = [
        path.name.removeprefix("models--").replace("--", "/") for path in Path(constants.HF_HUB_CACHE).glob("models--*")
    ]
    candidates = [*known, *cached, *_folders_near(name)]
    for candidate in candidates:
        meant |= {candidate.casefold(): candidate, candidate.rpartition("/")[2].casefold(): candidate}
    asked = sorted({name.casefold(), name.rpartition("/")[2].casefold()})
    close = [key for word in asked for key in difflib.get_close_matches(word, meant, n=3, cutoff=0.7)]
    likely = list(dict.fromkeys(meant[key] for key in close))[:3]
    return f". Is {' or '.join(map(repr, likely))} meant?" if likely else "."


def _folders_near(name: str) -> list[str]:
    """Models that lie where the name points to, or here."""
    try:
        place = Path(name).expanduser().parent
        names = sorted(os.listdir(place))[:1000]
    except (OSError, ValueError, RuntimeError):
        return []
    is_model = (n for n in names if n.endswith(".gguf") or (place / n / "config.json").is_file())
    return [str(place / n) for n in is_model]
