"""Models of nnsight: their contributions are projected where they run, here or on NDIF, and only these come back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from ..._checks import shown
from ...components import Unit
from ...errors import InputError
from ..architecture import HALF, Architecture
from ..batches import pad
from ..cuts import unit_name
from ..huggingface import of_huggingface
from ..weights import is_conv1d
from . import projection


def is_remote(x: Any) -> bool:
    """Whether this is a model of nnsight."""
    return any(c.__module__.split(".")[0] == "nnsight" for c in type(x).__mro__)


class NNsightEngine:
    """A model wrapped by nnsight; `remote` goes to its traces: False runs them here, True on NDIF.

    Attributes:
        skeleton: Its modules on the meta device, without their matrices; only gains and biases are fetched. The hash of
            these, its configuration and some rows of its unembedding is the `remote_hash`.
        received: The bytes of results so far.

    Raises InputError for another `remote` than nnsight knows, and for a model that cannot be found there.
    """

    def __init__(self, model: Any, remote: bool | str) -> None:
        import nnsight
        from nnsight import ndif

        _check_place(model, remote)
        ndif.register(projection)  # what runs where the model is travels by value
        self.model, self.remote, self.received = model, remote, 0
        place = "NDIF" if remote is True else "here" if remote in (False, "local") else remote
        self.name = f"nnsight {nnsight.__version__}, {place}"
        self._make_skeleton()

    def _make_skeleton(self) -> None:
        whole: Any = self.model._module
        config, dtype = whole.config, next(whole.parameters()).dtype
        with torch.device("meta"):
            self.skeleton = type(whole)(config).to(dtype).eval()
        names = [name for name, parameter in self.skeleton.named_parameters() if parameter.dim() == 1]
        found = self._fetch(names)
        digest = hashlib.sha256(json.dumps(config.to_diff_dict(), sort_keys=True, default=str).encode())
        for name in names:
            where, _, what = name.rpartition(".")
            value, shape = found[name].to(dtype), self.skeleton.get_parameter(name).shape
            if value.shape != shape:
                raise InputError(f"the remote model's {name} has the shape {tuple(value.shape)}, not {tuple(shape)}.")
            self.skeleton.get_submodule(where)._parameters[what] = nn.Parameter(value, requires_grad=False)
            digest.update(name.encode() + value.float().numpy().tobytes())
        digest.update(found[""].float().numpy().tobytes())
        self.remote_hash = digest.hexdigest()

    def _fetch(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters by name, and under "" some rows of the unembedding, which stand for all of them in the hash."""
        model, head = self.model, self.model._module.get_output_embeddings()
        total = int(head.weight.shape[0])
        path = next(path for path, module in model._module.named_modules() if module is head)
        rows = sorted({place * total // 16 for place in range(16)})
        # NDIF runs a trace only if it has an input.
        with model.trace(**self._inputs(torch.zeros(1, 1, dtype=torch.long)), remote=self.remote):
            found: Any = {}
            for name in names:
                where, _, what = name.rpartition(".")
                found[name] = getattr(model.get(where), what).detach().cpu()
            found[""] = model.get(path).weight[rows].detach().cpu()
            found = found.save()
        return found

    def architecture(self) -> Architecture:
        """Where the model's parts are. Raises InputError for what cannot be projected remotely."""
        architecture = of_huggingface(self.skeleton)
        if architecture.stream_ops:
            raise InputError(
                "this model's stream passes more than additions, which is not read remotely: load it here."
            )
        return replace(architecture, device=torch.device("cpu"), remote=self.name)

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}

    def run(
        self,
        architecture: Architecture,
        unit: Unit,
        rows: Sequence[Sequence[int]],
        of: Tensor,
        at: Tensor,
        targets: Tensor,
    ) -> dict[str, Tensor]:
        """One pass of some rows of tokens, read at `at` of rows `of`: what `projection.project` returns."""
        model, plan, (ids, mask) = self.model, _plan_of(architecture), pad(rows)
        inputs = self._inputs(ids) | {"attention_mask": mask}
        paths = {module: path for path, module in self.skeleton.named_modules()}
        starts = [*filter(None, [architecture.pos_embed]), architecture.stream_in]
        points = [*starts, *(sublayer.hook_point for sublayer in architecture.sublayers), architecture.stream_out]
        places = [(paths[point.module], point.side, point.item) for point in points]
        cut: dict[int, tuple[str, bool, int, bool]] = {}
        for number, sublayer in enumerate(architecture.sublayers, len(starts)):
            if (output_map := sublayer.output_map) is not None and sublayer.cut(unit) is not None:
                module = output_map.hook_point.module
                cut[number] = (paths[module], is_conv1d(module), output_map.count, output_map.bias)
        head = paths[architecture.unembed]
        project: Any = projection.project  # nnsight gives all that is computed in a trace a `save`
        has_positions, count, remote = architecture.pos_embed is not None, len(ids), self.remote
        with model.trace(**inputs, remote=remote):
            seen, before = [], {}
            for number, (path, side, item) in enumerate(places):
                if number in cut:
                    x = model.get(cut[number][0]).input
                    before[number] = x.reshape(count, -1, x.shape[-1])[of, at]
                envoy = model.get(path)
                x = envoy.input if side == "in" else envoy.output
                x = x[item] if isinstance(x, tuple) else x
                if x.dim() == 2:  # OPT's [row·token, d], Marian's [token, d]
                    x = x.reshape(-1, mask.shape[1], x.shape[-1])
                # Indexing copies: a model that adds in place later cannot change what was read.
                seen.append(x[of, at] if len(x) == count else x[0, at])
            envoy = model.get(head)
            envoy.input = envoy.input[of, at][:, None]
            unembedded = envoy.output[:, 0]
            unembedding = (envoy.weight, getattr(envoy, "bias", None))
            logits = model.output.logits[:, 0]
            final = seen.pop()
            if has_positions:
                seen[:2] = [seen[1] - seen[0], seen[0]]
            cuts: Any = {}
            for number, (path, as_is, parts, biased) in cut.items():
                weight = model.get(path).weight
                bias = model.get(path).bias if biased else None
                cuts[number] = (before[number], weight if as_is else weight.T, bias, parts, biased)
            result: Any = project(plan, targets, seen, cuts, final, unembedded, logits, unembedding).save()
        self.received += sum(x.nbytes for x in result.values())
        return result


def _plan_of(architecture: Architecture) -> dict[str, Any]:
    """The numbers of a model that `projection.project` needs."""
    norm, half = architecture.norm, architecture.dtype in HALF
    embeddings = 1 if architecture.pos_embed is None else 2
    return {
        "gain": norm.gain.double().cpu(),
        "bias": None if norm.bias is None else norm.bias.double().cpu(),
        "centered": norm.centered,
        "eps": norm.eps,
        "multiplier": architecture.logit_multiplier,
        "scales": [1.0] * embeddings + [s.scale for s in architecture.sublayers],
        "constant": architecture.constant,
        "roundoff": torch.finfo(architecture.dtype).eps / 2 if half else None,
    }


def check_unit(engine: NNsightEngine, architecture: Architecture, unit: Any, name: str) -> Unit:
    """The unit. Raises InputError for one that this model cannot be cut into where it runs."""
    if unit not in ("sublayer", "head", "neuron"):
        raise InputError(
            f"{name} runs on {engine.name}, which has no rows at unit={unit_name(unit)!r}: use unit='sublayer'."
        )
    architecture.components(unit)
    for sublayer in architecture.sublayers:
        output_map = sublayer.output_map
        cut = sublayer.cut(unit) is not None
        if cut and output_map is not None and (output_map.post or output_map.path):
            raise InputError(f"{sublayer} of {name} has a norm or an adapter that is not read remotely: load it here.")
    return cast(Unit, unit)


def _check_place(model: Any, remote: Any) -> None:
    """Raise InputError for a place where nnsight cannot run a model's traces."""
    is_url = isinstance(remote, str) and urlsplit(remote).scheme in ("http", "https")
    if not (isinstance(remote, bool) or remote == "local" or is_url):
        raise InputError(f"remote is False, True (NDIF), 'local' or the URL of a server, not {shown(remote)}.")
    if remote is False:
        return
    if not hasattr(model, "to_model_key"):
        raise InputError(f"an nnsight {type(model).__name__} runs here only: take a TransformersModel for remote=.")
    if remote != "local":
        try:
            model.to_model_key()
        except Exception as error:  # of whatever nnsight and the hub's client raise
            raise InputError(f"servers find a model by its id on the hub, which could not be read: {error}") from error
