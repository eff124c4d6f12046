"""The modules of a remote model, without their matrices: where its parts are, and what is small enough to fetch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError


def make_skeleton(
    cls: Any, config: Any, dtype: torch.dtype, fetch: Callable[[Sequence[str]], dict[str, Tensor]]
) -> Any:
    """A Hugging Face model on the meta device with the remote one's vectors: gains and biases.

    `fetch` gives parameters by name (those that it does not know it leaves out, and they become ones), and under ""
    some rows of the unembedding. The hash of all that, which stands for the model in folders, is its `remote_hash`.
    """
    with torch.device("meta"):
        model = (cls.from_config(config) if hasattr(cls, "from_config") else cls(config)).to(dtype).eval()
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 1]
    found = fetch(names)
    digest = hashlib.sha256(json.dumps(config.to_diff_dict(), sort_keys=True, default=str).encode())
    for name in names:
        where, _, what = name.rpartition(".")
        module, old = model.get_submodule(where), model.get_parameter(name)
        value = found[name].to(dtype) if name in found else torch.ones(old.shape, dtype=dtype)
        if value.shape != old.shape:
            raise InputError(f"the remote model's {name} has the shape {tuple(value.shape)}, not {tuple(old.shape)}.")
        module._parameters[what] = nn.Parameter(value, requires_grad=False)
        digest.update(f"{name} {name in found}".encode() + value.float().numpy().tobytes())
    digest.update(found[""].float().numpy().tobytes())
    model.remote_hash = digest.hexdigest()
    return model


def sample_rows(unembedding: Any, count: int = 16) -> list[int]:
    """Which rows of an unembedding stand for all of them in a model's hash."""
    total = int(unembedding.weight.shape[0])
    return sorted({place * total // count for place in range(count)})


def path_of(root: nn.Module, module: nn.Module) -> str:
    """The name of a module in a model."""
    return next(name for name, other in root.named_modules() if other is module)
