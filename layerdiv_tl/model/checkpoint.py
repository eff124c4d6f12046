"""Checkpoints are loaded whole, or refused: Transformers itself fills up what is missing with random numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InputError

# Ten times as many as any published model has.
MOST_LAYERS = 4096
# What older versions of Transformers stored of a causal mask.
_MASK = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask)$")
_LAYERS = re.compile("(n|num|num_hidden|num_decoder|decoder)_layers?")


def load_whole(auto: Any, place: str, kwargs: dict[str, Any], shown: str, has_parts: bool = False) -> Any:
    """A model whose every number its checkpoint says. Raises InputError for tensors that it lacks or does not take.

    Transformers would give missing tensors random numbers and leave others out. A folder of adapters is loaded in two
    steps, since Transformers reports on one of the two only. A checkpoint that `has_parts` beside its text side, for
    pictures or sound, has to be whole in its text side.
    """
    from transformers.utils import find_adapter_config_file, is_peft_available

    way = {name: kwargs[name] for name in ("revision", "local_files_only") if name in kwargs}
    is_asked = "gguf_file" not in kwargs and is_peft_available()
    adapters: str | None = find_adapter_config_file(place, **way) if is_asked else None
    base = place
    if adapters is not None:
        if not Path(place, "config.json").is_file():
            base = json.loads(Path(adapters).read_text(encoding="utf-8"))["base_model_name_or_path"]
        # Where there are none, so that the base comes by itself.
        kwargs = {**kwargs, "adapter_kwargs": {**way, "subfolder": "without-adapters"}}
    # Mismatched tensors, too, are to be named.
    report: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, loading = auto.from_pretrained(base, **report, **kwargs)
    except RuntimeError as error:
        if "CONVERSION" not in str(error):
            raise
        raise InputError(
            f"the checkpoint {shown!r} lacks some of the tensors that Transformers puts together as one (of experts, "
            "say), as its log says: get a whole copy."
        ) from error
    # With and without the prefix of the inner model, as checkpoints have them.
    buffers = {name.removeprefix(f"{model.base_model_prefix}.") for name, _ in model.named_buffers()}
    if has_parts:
        loading = of_text(model, loading)
    _refuse_tensors(loading, shown, buffers)
    if adapters is not None:
        as_base = {"dtype": model.dtype, "dtype_plan": model._get_dtype_plan(model.dtype)}
        loading = model.load_adapter(place, adapter_kwargs=way, ignore_mismatched_sizes=True, **as_base)
        _refuse_tensors(loading.to_dict(), shown)
    return model


def load_gguf(place: str, kwargs: dict[str, Any], shown: str) -> Any:
    """A GGUF's model; InputError also for blocks beyond those that it says it has, which Transformers leaves out."""
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    reader = GGUFReader(Path(place, kwargs["gguf_file"]))
    blocks = max((int(x.contents()) for name, x in reader.fields.items() if name.endswith(".block_count")), default=0)
    refuse_layers({"num_layers": blocks}, shown)
    numbers = {tensor.name: re.match(r"blk\.(\d+)\.", tensor.name) for tensor in reader.tensors}
    beyond = [name for name, number in numbers.items() if number and int(number[1]) >= blocks]
    _refuse_tensors({"unexpected_keys": beyond}, shown)
    return load_whole(AutoModelForCausalLM, place, kwargs, shown)


def refuse_layers(settings: dict[str, Any], shown: str) -> None:
    """Raise InputError for more layers than there can be, which would be built before their weights are missed."""
    for name, value in settings.items():
        if isinstance(value, dict):
            refuse_layers(value, shown)
        elif _LAYERS.fullmatch(name) and isinstance(value, int) and value > MOST_LAYERS:
            raise InputError(f"{shown!r} says {name}: {value}, above {MOST_LAYERS}: correct its config.")


def of_text(model: Any, loading: dict[str, Any]) -> dict[str, Any]:
    """What a report says of a model's text side: of its decoder and its unembedding, or of a model of text alone."""
    text = {p for side in (model.get_decoder(), model.get_output_embeddings()) if side for p in side.parameters()}
    base = getattr(model, model.base_model_prefix, model)
    held = {name: set(m.parameters()) for each in (model, base) for name, m in each.named_children()}
    own = {name for name, parameters in held.items() if parameters & text} | {model.base_model_prefix}

    def is_text(key: Any) -> bool:
        names = (key if isinstance(key, str) else key[0]).split(".")
        return names[0] in own and (names[0] != model.base_model_prefix or names[1] in own)

    return {what: [key for key in keys if is_text(key)] for what, keys in loading.items() if what.endswith("_keys")}


def _refuse_tensors(loading: dict[str, Any], shown: str, made: Iterable[str] = ()) -> None:
    """Raise InputError for a checkpoint of which a model lacks tensors, or does not take all; the first three by name.

    What a class declares as tied or ignorable Transformers has removed from its report. `made` are buffers that modules
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
