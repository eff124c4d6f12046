"""Models of nnsight: a trace, here or on NDIF, as another source of the writes that a pass records.

Here is a skeleton: the model's modules with its vectors (gains, biases) and buffers, and random matrices. On it the
path is found and replayed. Of matrices a plain path needs only what they wrote, and some rows of the unembedding.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .attribute import rows_of
from .names import with_names
from .passes import Answers, CutOf, Pass, Replay
from .patching import one_at_a_time, swapped
from .path import Path
from .probe import find_path, missed_matrices

ELSEWHERE = "this model runs elsewhere, which gives options' contributions at unit='sublayer': load it here for more."


def is_remote(x: Any) -> bool:
    """Whether this is a model of nnsight."""
    return any(c.__module__.split(".")[0] == "nnsight" for c in type(x).__mro__)


class RemotePath(Path):
    """The path of a model of nnsight, found on a skeleton, whose passes are traces.

    Raises InputError for a path that is more than additions and norms.
    """

    def __init__(self, model: Any, remote: Any, names: Any = None) -> None:
        skeleton = _skeleton(model, remote)
        path = find_path(skeleton, skeleton.get_output_embeddings(), names=names)
        rows_of(path, "sublayer")
        with path.session():
            seen = path.record(path.probe_ids, None, *path.probe_reads)
            matrices = missed_matrices(path, path.replay(seen, matrices=True), with_names(None) | {"multipliers": ()})
        is_loop = len(seen.finals) > 1 or any(number for _, number in path.calls)
        if matrices or not path.by_token or is_loop or path.is_dynamic or type(path.unembed) is not nn.Linear:
            raise InputError(
                f"{type(skeleton).__name__}'s stream passes more than additions and a norm on its way to a linear "
                "unembedding (matrices, other tokens, repeats), or its positions change with length: load it here."
            )
        vars(self).update(vars(path))
        self.model, self.remote = model, remote
        for x in skeleton.parameters():  # nothing can be read from them
            x.data = x.data if x.dim() < 2 else x.new_full((1,), torch.nan).expand(x.shape)
        skeleton.forward = self.refuse

    def replay(self, *args: Any, **kwargs: Any) -> Replay:
        """Run the path alone, on the skeleton, which otherwise refuses to run."""
        with swapped(self.module, "forward", type(self.module).forward.__get__(self.module)):
            return super().replay(*args, **kwargs)

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise InputError for what is not here."""
        raise InputError(ELSEWHERE)

    unembed_rows = refuse

    def record(
        self, ids: Tensor, mask: Any, row: Tensor, position: Tensor, cut_of: CutOf | None = None, targets: Any = None
    ) -> Pass:
        """Trace the model; the pass has answers for `targets [n, K]`. Raises InputError without, and to cut writes."""
        if targets is None or (cut_of is not None and any(map(cut_of, self.writers))):
            raise InputError(ELSEWHERE)
        names = {module: name for name, module in self.module.named_modules()}
        places = [(names[writer.place], writer.form.others is not None) for writer in self.writers]
        norm, head = None if self.norm is None else names[self.norm], names[self.unembed]
        model, (rows, tokens), wanted = self.model, ids.shape, torch.as_tensor(targets)
        inputs, reads = {"input_ids": ids, "attention_mask": mask, "use_cache": False}, torch.arange(len(row))[:, None]
        # Inside is PyTorch alone: nothing of this package is where the model runs.
        with one_at_a_time(model._module), model.trace(**inputs, remote=self.remote):
            found: Any = []
            for name, is_first in places:
                x = model.get(name).output[0] if is_first else model.get(name).output
                x = x.reshape(-1, tokens, x.shape[-1])  # some merge rows and tokens, or have positions for one row
                found.append(x[row, position] if len(x) == rows else x[0, position])
            if norm is not None:
                found.append(model.get(norm).input[row, position])
            envoy = model.get(head)
            envoy.input = envoy.input[row, position][:, None]
            unembedded, weight, bias = envoy.output[:, 0].double(), envoy.weight, envoy.bias
            logits = model.output.logits[:, 0].double()
            log_partition = logits.logsumexp(1)
            p = (logits - log_partition[:, None]).exp()
            bias = torch.zeros_like(p[0]) if bias is None else bias.to(p)
            of_p = sum(q @ part.to(q) for q, part in zip(p.split(4096, 1), weight.split(4096), strict=True))
            of_all = (weight.sum(0, dtype=p.dtype) / len(weight)).to(p).expand_as(of_p)
            found.append(torch.cat([weight[wanted].to(p), of_p[:, None], of_all[:, None]], 1))
            found.append(torch.cat([bias[wanted], (p @ bias)[:, None], bias.mean().expand(len(p), 1)], 1))
            found += [unembedded[reads, wanted], logits[reads, wanted], log_partition, unembedded.mean(1)]
            found = [x.detach().cpu() for x in found].save()  # type: ignore[attr-defined]
        seen = Pass(ids[row, position][:, None], torch.zeros_like(position), answers=Answers(*found[-6:]))
        for writer, write in zip(self.writers, found, strict=False):
            seen.wrote(writer, write[:, None])
        seen.finals = [] if norm is None else [found[-7][:, None]]
        return seen


def _skeleton(model: Any, remote: Any) -> Any:
    """The model's modules with its vectors and buffers, fetched, and random matrices that take no memory."""
    whole: Any = model._module
    with torch.device("meta"):
        skeleton = type(whole)(deepcopy(whole.config)).eval()
    skeleton.config._experts_implementation = "eager"  # others read strides
    held: dict[str, Tensor] = dict(skeleton.named_parameters(remove_duplicate=False))
    matrices = {name for name, x in held.items() if x.dim() > 1}
    held |= dict(skeleton.named_buffers(remove_duplicate=False))
    places = [(name, *name.rpartition(".")[::2]) for name in held]
    with model.trace(input_ids=torch.ones(1, 1, dtype=torch.long), remote=remote):  # NDIF needs an input
        found: Any = {}
        for name, where, what in places:
            if name not in matrices:
                found[name] = getattr(model.get(where), what).detach().cpu()
        found = found.save()
    generator = torch.Generator().manual_seed(0)
    for name, where, what in places:
        if name in matrices:
            shape = held[name].shape
            numbers = torch.randn(sum(shape), generator=generator) * shape[-1] ** -0.5
            found[name] = numbers.to(whole.get_parameter(name).dtype).as_strided(shape, [1] * len(shape))
        value = nn.Parameter(found[name], False) if isinstance(held[name], nn.Parameter) else found[name]
        setattr(skeleton.get_submodule(where), what, value)
    return skeleton
