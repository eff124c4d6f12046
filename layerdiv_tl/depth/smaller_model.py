"""Make a model without some layers, sublayers or heads, and write it as a Hugging Face checkpoint."""

from __future__ import annotations

import copy as copying
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._files import written_folder
from ..components import Component
from ..errors import InputError
from ..model.batches import pad
from ..model.cache import is_transformer_lens
from ..model.fingerprint import fingerprint, identify
from ..model.frozen import answer_gap, tolerance
from ..model.load import Loadable, Model, load_model
from ..model.pretrained import is_adapted, without_progress_bars
from ..model.writers import Writer
from .engine import ablate
from .patched_forward import Key, PatchedForward

# Settings that give an attention's projections biases; those that count all layers, and those before the first mixture.
_BIASES = ("attention_bias", "attention_out_bias", "use_bias", "enable_bias", "bias")
_COUNTS = ("num_hidden_layers", "decoder_layers", "num_blocks")
_DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
# The longest text on which a smaller model is compared, and the agreement of logits that is asked for.
_PROBE = 512
_SAME = 1e-4


def smaller_model(model: Model, weights: str, dropped: Sequence[Component], means: Mapping[str, np.ndarray]) -> Model:
    """Copy a model of a fingerprint without some components; see `DropPlan.apply`."""
    root = _plain(model, weights, dropped)
    paths = {module: path for path, module in root.named_modules()}
    writers = [writer for writer in model.path.writers if writer.block is not None]
    gone = {c.layer for c in dropped if c.kind == "layer"}
    if gone:
        blocks = dict.fromkeys(writer.block for writer in writers)
        twin = _without_layers(root, [paths[block] for block in blocks], gone)
    else:
        twin = copying.deepcopy(root)
    offsets: dict[str, Tensor] = {}  # what stays of heads, by their output projection
    with torch.no_grad():
        for c in dropped:
            if c.kind == "layer":
                continue
            kind = "attn" if c.kind == "head" else c.kind
            writer = next(w for w in writers if (w.kind, w.component.layer) == (kind, c.layer))
            if c.kind != "head":
                _silence(writer, twin, paths)
                continue
            path, rows = _head_rows(writer, twin, paths)
            own = rows[c.index].double()
            if means:
                mean = torch.as_tensor(means[writer.component.label]).view(writer.heads, -1)[c.index]
                offset = mean.to(own) @ own
                offsets[path] = offsets.get(path, torch.zeros_like(offset)) + offset
            rows[c.index] = 0
    if offsets:
        _add_biases(twin, offsets)
    labels, kinds = [c.label for c in dropped], {c.kind for c in dropped}
    smaller = load_model(Loadable(twin, model.tokenizer))
    what = labels[0] if len(labels) == 1 else f"{len(labels)} {min(kinds) if len(kinds) == 1 else 'sublayer'}s"
    about = {"of": weights, "dropped": labels, "ablation": "mean" if means else "zero"}
    smaller = replace(smaller, name=f"{model.name} without {what}", provenance=smaller.provenance | {"plan": about})
    _check_logits(model, smaller, dropped, means)
    return smaller


def write_model(model: Model, folder: Path) -> Path:
    """Write a smaller model as a checkpoint, load it again, and compare; see `DropPlan.save_model`."""
    root = model.hf_model
    if reason := _generation_fault(root):
        raise InputError(
            f"Transformers cannot generate from a checkpoint of {model.name} ({reason}): let other layers stay, or use "
            "what apply(model) returns in memory, without a cache."
        )
    with written_folder(folder) as partial:
        with without_progress_bars():
            root.save_pretrained(partial)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(partial)
        if reason := _difference(model, partial):
            raise InputError(
                f"a checkpoint of {model.name} would load as another model{reason}: use what apply(model) returns in "
                "memory, or a plan of heads or sublayers with ablation='zero', as its class may have no bias for means."
            )
    return folder


def _generation_fault(root: Any) -> str:
    """Explain why a model does not generate with its default cache; empty if it does."""
    if not root.can_generate():
        return ""
    ids = torch.ones(1, 3, dtype=torch.long, device=root.device)
    try:
        with torch.no_grad():
            root.generate(ids, attention_mask=ids, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
    except Exception as error:  # classes fail in many ways
        return _short(error)
    return ""


def _short(error: Exception) -> str:
    return shorten(str(error), 150, placeholder=" …")


def _difference(model: Model, folder: Path) -> str:
    """Explain why a checkpoint does not load as this model; empty if it does."""
    try:
        again = load_model(folder, device=str(model.path.device))
    except Exception as error:  # readers of files fail in many ways
        return f" ({str(error).replace(str(folder), 'written')})"
    if fingerprint(again) != (mine := fingerprint(model)):
        again.hf_model.to(model.path.dtype)  # casts rotary frequencies, too, as `to` may have cast the model's
    is_same = fingerprint(again) == mine
    return "" if is_same else ", with other weights or settings"


def _plain(model: Model, weights: str, dropped: Sequence[Component]) -> Any:
    """Return the Hugging Face module of a model that can be copied and changed. Raises InputError for any other."""
    fault = ""
    if is_transformer_lens(model.root):
        fault = "it is no Hugging Face model in this process: make the plan of that model itself"
    elif any(c.repeat is not None for c in dropped):
        fault = "it repeats a layer, whose weights all its repeats share"
    elif any(map(is_adapted, model.hf_model.modules())):
        fault = "it has adapters: merge them first (merge_and_unload), and make the plan of the result"
    elif _is_quantized(model.hf_model):
        fault = "its weights are quantized: make the plan of the model in full precision"
    elif len({p.device for p in model.hf_model.parameters()}) > 1 or next(model.hf_model.parameters()).is_meta:
        fault = "its layers lie on several devices or are offloaded: load it on one device"
    if fault:
        raise InputError(f"{model.name} cannot be made smaller: {fault}.")
    if identify(model).weights != weights:
        raise InputError(
            f"{model.name} is not the plan's model (by the fingerprint of weights and config): give the one that "
            "it was made for."
        )
    return model.hf_model


def _is_quantized(root: Any) -> bool:
    held = [*root.parameters(), *root.buffers()]
    packed = any(type(module).__module__.startswith("torch.ao.") for module in root.modules())
    declared = getattr(root, "hf_quantizer", None) is not None or hasattr(root.config, "quantization_config")
    is_wrapped = any(hasattr(x, "__tensor_flatten__") or hasattr(x, "quant_state") for x in held)
    return packed or declared or is_wrapped or any(x.is_quantized for x in held)


def _without_layers(root: Any, paths: Sequence[str], gone: Set[int | None]) -> Any:
    """Build a model of a config of fewer layers, with the weights of those that stay.

    Its class then decides what a layer is of which kind, as when it reads the checkpoint. Raises InputError where it
    cannot build the layers that stay.
    """
    where, count, name = paths[0].rpartition(".")[0], len(paths), type(root).__name__
    if not isinstance(root.get_submodule(where), nn.ModuleList) or [f"{where}.{i}" for i in range(count)] != [*paths]:
        raise InputError(f"{name} does not hold its layers in one list, so none can be removed.")
    kept = [layer for layer in range(count) if layer not in gone]
    held: dict[str, Tensor] = {}
    for path, x in _tensors(root):
        layer, _, rest = path.removeprefix(f"{where}.").partition(".")
        if not path.startswith(f"{where}."):
            held[path] = x
        elif int(layer) in kept:
            held[f"{where}.{kept.index(int(layer))}.{rest}"] = x
    config = copying.deepcopy(root.config)
    _keep_layers(config.get_text_config(decoder=True), kept, count)
    advice = "drop others, or drop heads or sublayers"
    try:
        with torch.device("meta"):
            twin = type(root)(config)
    except Exception as error:  # classes check their configs in many ways
        raise InputError(f"{name} cannot be built without these layers ({_short(error)}): {advice}.") from error
    built = dict(_tensors(twin))
    differing = {path for path, x in held.items() if isinstance(x, nn.Parameter) and path not in built}
    differing |= {path for path, x in built.items() if path not in held or held[path].shape != x.shape}
    if differing:
        raise InputError(
            f"{name} cannot be built without these layers: its config gives the kinds of layers by a rule, by which "
            f"those that stay would be of other kinds (see {min(differing)}): {advice}."
        )
    copies: dict[int, Tensor] = {}  # shared weights stay shared
    for path in built:
        owner, _, own = path.rpartition(".")
        module, x = twin.get_submodule(owner), held[path]
        if id(x) not in copies:
            copy = x.detach().clone()
            copies[id(x)] = nn.Parameter(copy, x.requires_grad) if isinstance(x, nn.Parameter) else copy
        table = module._parameters if own in module._parameters else module._buffers
        table[own] = copies[id(x)]
    twin.generation_config = copying.deepcopy(root.generation_config)
    return twin.train(root.training)


def _tensors(root: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all weights and buffers of a model by name, shared ones under each of their names."""
    return [*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False)]


def _keep_layers(config: Any, kept: Sequence[int], count: int) -> None:
    """Keep some of `count` layers in a config: in lists with an entry for each, and in lists of their numbers."""
    for name, value in list(vars(config).items()):
        if not isinstance(value, list | tuple) or name.endswith(("token_id", "token_ids")):
            continue
        if len(value) == count:
            setattr(config, name, type(value)(value[layer] for layer in kept))
        elif "layer" in name and all(isinstance(layer, int) and layer < count for layer in value):
            setattr(config, name, type(value)(kept.index(layer) for layer in value if layer in kept))
    for name in _DENSE_FIRST:
        if isinstance(value := getattr(config, name, None), int):
            setattr(config, name, sum(layer < value for layer in kept))
    if hasattr(config, "attention_types"):  # GPT-Neo's, from which its list of layers is made
        config.attention_types = [[list(config.attention_layers), 1]]
    for name in _COUNTS:
        if hasattr(config, name):
            setattr(config, name, len(kept))


def _silence(writer: Writer, twin: Any, paths: dict[nn.Module, str]) -> None:
    """Set to zero what a sublayer writes: its output projection or all its weights, and the bias of a norm behind."""
    held = list(twin.get_submodule(paths[writer.projection]).parameters())
    bias = getattr(twin.get_submodule(paths[writer.place]), "bias", None)
    for x in [*held, *([bias] if isinstance(bias, Tensor) else [])]:
        x.zero_()


def _head_rows(writer: Writer, twin: Any, paths: dict[nn.Module, str]) -> tuple[str, Tensor]:
    """Return the path of an attention's output projection in the copy, and its weight `[head, width, d]`, a view."""
    path = paths[writer.projection]
    projection = twin.get_submodule(path)
    is_conv1d = type(projection).__name__ == "Conv1D"  # which keeps its weight as [in, out]
    if not isinstance(projection, nn.Linear) and not is_conv1d:
        raise InputError(f"{writer.component} has no output projection of its own whose rows could be set to zero.")
    weight = projection.weight if is_conv1d else projection.weight.T
    return path, weight.unflatten(0, (writer.heads, -1))


def _add_biases(twin: Any, offsets: dict[str, Tensor]) -> None:
    """Add to the biases of output projections; where there are none, switch on those of the config's attentions."""
    missing = {f"{path}.bias" for path in offsets if twin.get_submodule(path).bias is None}
    for setting in _BIASES if missing else ():
        if getattr(twin.config, setting, None) is not False:
            continue
        wider = copying.deepcopy(twin.config)
        setattr(wider, setting, True)
        with torch.device("meta"):
            shapes = {name: x.shape for name, x in type(twin)(wider).named_parameters()}
        new = shapes.keys() - {name for name, _ in twin.named_parameters()}
        if missing <= new and all(name.endswith(".bias") for name in new):
            missing = set(new)
            setattr(twin.config, setting, True)
            break
    for path in (name.removesuffix(".bias") for name in missing):
        module = twin.get_submodule(path)
        module.bias = nn.Parameter(torch.zeros(len(module.weight)).to(module.weight))
    for path, offset in offsets.items():
        bias = twin.get_submodule(path).bias
        bias.data.copy_(bias.double() + offset)


def _check_logits(model: Model, smaller: Model, dropped: Sequence[Component], means: Mapping[str, np.ndarray]) -> None:
    """Raise InputError unless the smaller model's logits are those of the model with the components ablated."""
    path = model.path
    length = 24 if path.window is None else min(path.window + 8, _PROBE)
    length = min(length, path.context or length)
    ids = [int(i) for i in np.random.default_rng(0).integers(path.vocabulary, size=length)]
    with path.session(), torch.no_grad():
        clean = PatchedForward(model, [ids])

        def mean(key: Key) -> Tensor:
            return torch.as_tensor(means[clean.component("attn", key[0]).label])

        ((_, final),) = ablate(clean, [dropped], mean if means else None)
        wanted = clean.logits(final[0])
    with smaller.path.session(), torch.no_grad():
        logits = smaller.path.logits(*pad([ids]))[0]
    off = answer_gap(logits.to(wanted), wanted)
    if not off <= tolerance(path.dtype, _SAME):
        raise InputError(
            f"{model.name} cannot be made smaller: without {dropped[0].label} its logits are off by {off:.1e} from "
            "those of the ablated pass, because its layers share weights or compute by their number."
        )
