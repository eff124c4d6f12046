"""Models of nnsight: a trace, here or on NDIF, as another source of the writes that a pass records.

Here is a skeleton: the model's modules with its vectors (gains, biases) and buffers, and random matrices. On it the path
is found and replayed; what the replay reads of matrices is their writes, which travel, as do the unembedding's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from .._checks import shown
from ..errors import InputError
from .attribute import rows_of
from .names import with_names
from .patching import one_at_a_time, swapped
from .path import Answers, CutOf, Pass, Path, Replay
from .probe import find_path, missed_matrices

# Unembedding rows that are up-cast at a time.
CHUNK = 4096
ELSEWHERE = "this model runs elsewhere, where only contributions to options are read: load it here for anything else."


def is_remote(x: Any) -> bool:
    """Whether this is a model of nnsight."""
    return any(c.__module__.split(".")[0] == "nnsight" for c in type(x).__mro__)


class RemotePath(Path):
    """The path of a model of nnsight, found on a skeleton, whose passes are traces; `place` says where these run.

    Raises InputError for another `remote` than nnsight knows, and for a path that is more than additions, numbers and
    norms of single tokens.
    """

    def __init__(self, model: Any, remote: Any, names: Any = None) -> None:
        import nnsight

        _check_place(model, remote)
        self.model, self.remote = model, remote
        where = "NDIF" if remote is True else "here" if remote in (False, "local") else remote
        self.place = f"nnsight {nnsight.__version__}, {where}"
        skeleton = _skeleton(model, remote)
        unembed = skeleton.get_output_embeddings()
        path = find_path(skeleton, unembed, names=names)
        rows_of(path, "sublayer")
        with path.session():
            seen = path.record(path.probe_ids, None, *path.probe_reads)
            matrices = missed_matrices(path, seen, with_names(None) | {"multipliers": ()})
        if matrices or not path.by_token or len(seen.finals) > 1 or any(n for _, n in path.calls):
            raise InputError(
                "this model's stream passes more than additions and a norm (matrices, other tokens, repeated layers), "
                "which is not read remotely: load it here."
            )
        if type(unembed) is not nn.Linear:
            raise InputError(f"an unembedding that is a {type(unembed).__name__} is not read remotely: load it here.")
        vars(self).update(vars(path))
        skeleton.forward = _refuse
        skeleton.register_buffer("elsewhere", torch.empty(0, device="meta"))  # its weights have no fingerprint

    def replay(self, *args: Any, **kwargs: Any) -> Replay:
        """Run the path alone, on the skeleton, which otherwise refuses to run."""
        with swapped(self.module, "forward", type(self.module).forward.__get__(self.module)):
            return super().replay(*args, **kwargs)

    def unembed_rows(self, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Raise InputError: the unembedding is elsewhere."""
        raise InputError(ELSEWHERE)

    def record(
        self,
        ids: Int[Tensor, "row token"],
        mask: Int[Tensor, "row token"] | None,
        row: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        cut_of: CutOf = lambda writer: None,
        targets: Int[np.ndarray, "n K"] | None = None,
    ) -> Pass:
        """Trace the model; the pass holds the answers for the targets in place of all logits.

        Raises InputError without targets, and for a unit that cuts writes.
        """
        if targets is None:
            raise InputError(ELSEWHERE)
        if any(cut_of(writer) is not None for writer in self.writers):
            raise InputError(
                "this model runs elsewhere, where writes are not cut: use unit='sublayer', or load it here."
            )
        paths = {module: path for path, module in self.module.named_modules()}
        places = [(paths[writer.place], writer.form.others is not None) for writer in self.writers]
        norm, head = None if self.norm is None else paths[self.norm], paths[self.unembed]
        mask = torch.ones_like(ids) if mask is None else mask
        inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        # What is computed where the model runs: PyTorch alone, as nothing of this package is there.
        model, (rows, tokens), wanted, chunk = self.model, ids.shape, torch.as_tensor(targets), CHUNK
        with model.trace(**inputs, remote=self.remote):
            found: Any = []
            for path, is_first in places:
                x = model.get(path).output
                x = (x[0] if is_first else x).detach()
                x = x.reshape(-1, tokens, x.shape[-1])  # some merge rows and tokens, or have one row of positions
                found.append((x[row, position] if len(x) == rows else x[0, position]).cpu())
            if norm is not None:
                found.append(model.get(norm).input.detach()[row, position].cpu())
            envoy = model.get(head)
            envoy.input = envoy.input[row, position][:, None]
            unembedded = envoy.output[:, 0].detach().double()
            weight, bias = envoy.weight.detach(), envoy.bias
            logits = model.output.logits[:, 0].detach().double()
            log_partition = logits.logsumexp(1)
            p = (logits - log_partition[:, None]).exp()
            wanted = wanted.to(p.device)
            expected = 0.0
            for start in range(0, len(weight), chunk):
                part = weight[start : start + chunk].to(p.device).double()
                expected = expected + p[:, start : start + chunk] @ part
            mean = (weight.sum(0, dtype=torch.float64) / len(weight)).to(p.device).expand_as(expected)
            own = weight[wanted.to(weight.device)].to(p.device).double()
            found.append(torch.cat([own, expected[:, None], mean[:, None]], 1).cpu())
            bias = torch.zeros_like(p[0]) if bias is None else bias.detach().to(p.device).double()
            of_p, of_all = p @ bias, bias.mean().expand(len(p))
            found.append(torch.cat([bias[wanted], of_p[:, None], of_all[:, None]], 1).cpu())
            found += [unembedded.gather(1, wanted).cpu(), logits.gather(1, wanted).cpu()]
            found += [log_partition.cpu(), unembedded.mean(1).cpu()]
            found = found.save()
        seen = Pass(ids[row, position][:, None], torch.zeros_like(position))
        for writer, write in zip(self.writers, found, strict=False):
            seen.wrote(writer, write[:, None])
        seen.finals = [x[:, None] for x in found[len(places) : -6]]
        seen.answers = Answers(*found[-6:])
        return seen


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise InputError(ELSEWHERE)


def _skeleton(model: Any, remote: Any) -> Any:
    """The model's modules with its vectors and buffers, fetched, and matrices of random numbers that take no memory."""
    whole: Any = model._module
    with torch.device("meta"):
        skeleton = type(whole)(whole.config).eval()
    own = {**dict(whole.named_parameters(remove_duplicate=False)), **dict(whole.named_buffers(remove_duplicate=False))}
    parameters = dict(skeleton.named_parameters(remove_duplicate=False))
    matrices = {name for name, x in parameters.items() if x.dim() > 1}
    held = [*parameters, *dict(skeleton.named_buffers(remove_duplicate=False))]
    places = [(name, *name.rpartition(".")[::2]) for name in held]
    with one_at_a_time(whole), model.trace(**_PROBE, remote=remote):  # NDIF runs a trace only if it has an input
        found: Any = {}
        for name, where, what in places:
            if name not in matrices:
                found[name] = getattr(model.get(where), what).detach().cpu()
        found = found.save()
    generator = torch.Generator().manual_seed(0)
    for name, where, what in places:
        module = skeleton.get_submodule(where)
        if name in matrices:
            shape: Sequence[int] = parameters[name].shape
            numbers = torch.randn(sum(shape), generator=generator) * shape[-1] ** -0.5
            found[name] = numbers.to(own[name].dtype).as_strided(shape, [1] * len(shape))  # each row shifted by one
        if name in parameters:
            module._parameters[what] = nn.Parameter(found[name], requires_grad=False)
        else:
            module._buffers[what] = found[name]
    return skeleton


_ONE = torch.ones(1, 1, dtype=torch.long)
_PROBE = {"input_ids": _ONE, "attention_mask": _ONE, "use_cache": False}


def _check_place(model: Any, remote: Any) -> None:
    """Raise InputError for a place where nnsight cannot run a model's traces."""
    is_url = isinstance(remote, str) and urlsplit(remote).scheme in ("http", "https")
    if not (isinstance(remote, bool) or remote == "local" or is_url):
        raise InputError(f"remote is False, True (NDIF), 'local' or the URL of a server, not {shown(remote)}.")
    if remote is not False and not hasattr(model, "to_model_key"):
        raise InputError(f"an nnsight {type(model).__name__} runs here only: take a TransformersModel for remote=.")
    if remote in (False, "local"):
        return
    try:
        model.to_model_key()
    except Exception as error:  # of whatever nnsight and the hub's client raise
        raise InputError(f"servers find a model by its id on the hub, which could not be read: {error}") from error
