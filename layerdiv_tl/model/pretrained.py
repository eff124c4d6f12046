"""Weights on disk or on the Hugging Face hub -> a causal LM and its tokenizer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .._checks import file_path
from ..errors import InputError
from .converted import converted_gguf, require_room
from .default_model import GGUF_SHA256, NAME, REQUIREMENT, default_model_folder
from .hub import is_local_only, near
from .mobilellm import load_mobilellm, mobilellm_config


def from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any, known: Iterable[str]) -> tuple[Any, Any, str, str]:
    """(model, tokenizer, source, name) of something on disk or on the hub; `known` names may be meant, too."""
    kwargs, extra = dict(kwargs), dict[str, Any]()
    if x is None:
        place = str(default_model_folder(convert_gguf))
        source, name = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}", NAME
    else:
        if not str(x).strip():
            raise InputError("load_model('') names nothing: give a folder, a .gguf file, a Hugging Face id, or None.")
        path = file_path("model", x)
        place = str(path)
        source, name = str(x), path.name
        if path.suffix.lower() == ".gguf":
            if not os.path.isfile(path):
                raise InputError(f"there is no file {str(x)!r}: check the path of the GGUF file{near(str(x))}")
            folder = converted_gguf(path, partial(convert_gguf, needs_tokenizer=False))
            place, extra = (str(path.parent), {"gguf_file": path.name}) if folder is None else (str(folder), {})
        elif os.path.exists(path):  # Path.exists raises for a name that is too long
            _check_folder(path, str(x))
        elif path.is_absolute() or str(x).startswith((".", "~")) or str(x).count("/") > 1:
            raise InputError(
                f"there is no folder or file {str(x)!r:.200}: check the path, or give a Hugging Face id{near(str(x))}"
            )
        else:
            place = name = str(x)
            kwargs |= {"local_files_only": True} if is_local_only(place, known) else {}
    with without_progress_bars(keep=bool(extra)):
        model = _causal_lm(place, {**kwargs, **extra}, place if x is None else str(x), known)
        if tokenizer is None:
            way = {key: value for key, value in kwargs.items() if key in ("trust_remote_code", "local_files_only")}
            tokenizer = _tokenizer(place, {**way, **extra}, required=False)
        elif isinstance(tokenizer, str | os.PathLike):
            tokenizer = named_tokenizer(tokenizer, kwargs["trust_remote_code"])
    return model, tokenizer, source, name


def named_tokenizer(x: str | os.PathLike[str], trust_remote_code: bool) -> Any:
    """The tokenizer of a folder or a Hugging Face id. Raises InputError where there is none."""
    place, kwargs = str(file_path("tokenizer", x)), {"trust_remote_code": trust_remote_code}
    if not os.path.exists(place):
        place = str(x)
        if not place.strip() or Path(place).is_absolute() or place.startswith((".", "~")) or place.count("/") > 1:
            raise InputError(f"no tokenizer could be loaded from {place!r:.200}: there is no such folder.")
        kwargs |= {"local_files_only": True} if is_local_only(place) else {}
    return _tokenizer(place, kwargs, required=True)


def convert_gguf(gguf: Path, folder: Path, needs_tokenizer: bool = True) -> None:
    """A GGUF file as a Hugging Face folder with safetensors, float32. Raises OSError where there is no room for it."""
    with without_progress_bars(keep=True):
        model = _causal_lm(str(gguf.parent), {"gguf_file": gguf.name}, str(gguf))
        tokenizer = _tokenizer(str(gguf.parent), {"gguf_file": gguf.name}, required=needs_tokenizer)
    # The weights are plain numbers now, but saving refuses while the config calls them quantized.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    require_room(folder.parent, sum(p.numel() * p.element_size() for p in model.parameters()))
    with without_progress_bars():
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _causal_lm(place: str, kwargs: dict[str, Any], shown: str, known: Iterable[str] = ()) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        if (settings := mobilellm_config(place, kwargs)) is not None:
            return load_mobilellm(place, settings, kwargs)
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
            f"{shown!r} is not a local folder and could not be loaded as a Hugging Face id ({reason})"
            f"{near(shown, known)}"
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
        raise InputError(f"the folder {shown!r} is not a model (it has no config.json): {hint}.")


@contextlib.contextmanager
def without_progress_bars(keep: bool = False) -> Iterator[None]:
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
