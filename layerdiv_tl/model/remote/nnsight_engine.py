"""Models of nnsight: a trace that runs here or, with the same code, on NDIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from ..._checks import shown
from ...components import Unit
from ...errors import InputError
from ..architecture import Architecture, HookPoint
from ..batches import pad
from ..weights import is_conv1d
from . import projection
from .skeleton import make_skeleton, path_of, sample_rows


class NNsightEngine:
    """A model wrapped by nnsight; `remote` goes to its traces: False runs them here, True on NDIF.

    Raises InputError for another `remote` than nnsight knows, and for a model that cannot be found there.
    """

    units: tuple[Unit, ...] = ("sublayer", "head", "neuron")

    def __init__(self, model: Any, remote: bool | str) -> None:
        import nnsight
        from nnsight import ndif

        _check_place(model, remote)
        ndif.register(projection)  # what runs where the model is travels by value
        self.model, self.remote, self.version = model, remote, nnsight.__version__
        self.received = 0
        module = model._module
        dtype = next(module.parameters()).dtype
        self.skeleton = make_skeleton(type(module), module.config, dtype, self._vectors)
        place = "NDIF" if remote is True else "here" if remote in (False, "local") else remote
        self.name = f"nnsight {self.version}, {place}"

    def _vectors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters by name, and some rows of the unembedding."""
        model, names = self.model, list(names)
        rows = sample_rows(model._module.get_output_embeddings())
        head = path_of(model._module, model._module.get_output_embeddings())
        # NDIF runs a trace only if it has an input.
        with model.trace(**self._inputs(torch.zeros(1, 1, dtype=torch.long)), remote=self.remote):
            found: Any = {}
            for name in names:
                where, _, what = name.rpartition(".")
                found[name] = getattr(model.get(where), what).detach().cpu()
            found[""] = model.get(head).weight[rows].detach().cpu()
            found = found.save()
        return found

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}

    def run(
        self,
        architecture: Architecture,
        plan: dict[str, Any],
        unit: Unit,
        rows: Sequence[Sequence[int]],
        of: Tensor,
        at: Tensor,
        targets: Tensor,
    ) -> dict[str, Tensor]:
        """One pass of some rows of tokens, read at `at` of rows `of`: what `project` returns."""
        model, root = self.model, self.skeleton
        ids, mask = pad(rows)
        inputs = self._inputs(ids) | {"attention_mask": mask}
        places = [_place(root, architecture.stream_in)]
        if architecture.pos_embed is not None:
            places.insert(0, _place(root, architecture.pos_embed))
        cut: dict[int, tuple[str, bool, int, bool]] = {}
        first = len(places)
        for number, sublayer in enumerate(architecture.sublayers, first):
            if sublayer.output_map is not None and sublayer.cut(unit) is not None:
                module = sublayer.output_map.hook_point.module
                about = is_conv1d(module), sublayer.output_map.count, sublayer.output_map.bias
                cut[number] = (path_of(root, module), *about)
            places.append(_place(root, sublayer.hook_point))
        end, head = _place(root, architecture.stream_out), path_of(root, architecture.unembed)
        project: Any = projection.project  # nnsight gives all that is computed in a trace a `save`
        has_positions = architecture.pos_embed is not None
        count, remote = len(ids), self.remote
        with model.trace(**inputs, remote=remote):
            seen, before = [], {}
            for number, (path, side, item) in enumerate([*places, end]):
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


def _place(root: Any, point: HookPoint) -> tuple[str, str, int]:
    if point.streams_first:
        raise InputError("a remote model whose blocks work on several residual streams cannot be read.")
    return path_of(root, point.module), point.side, point.item
