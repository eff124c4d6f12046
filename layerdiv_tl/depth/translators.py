"""Lenses with a translator per layer: tuned lenses, TransformerLens' Jacobian lens, or a function."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import shown
from ..errors import InputError

_KINDS = "the folder of a tuned lens, a JacobianLens or its .pt file, or a function of the stream and its layers"


@dataclass(frozen=True)
class Translators:
    """A name, and a map of the stream after some layers to the basis of the final stream; None where there is none."""

    name: str
    translate: Callable[[Float[Tensor, "token d"], int], Float[Tensor, "token d"] | None]

    def __call__(self, stream: Float[Tensor, "token d"], done: int) -> Float[Tensor, "token d"] | None:
        """Translate streams after `done` layers. Raises InputError for a result of another shape, or not finite."""
        try:
            found = self.translate(stream, done)
        except Exception as error:  # of a user's function or a library's module
            raise InputError(
                f"{self.name} cannot translate a stream {tuple(stream.shape)} after {done} layers: "
                f"{type(error).__name__}, {error}."
            ) from error
        if found is None:
            return None
        if not isinstance(found, Tensor) or found.shape != stream.shape or not bool(found.isfinite().all()):
            raise InputError(f"{self.name} must map streams {tuple(stream.shape)} to finite ones of the same shape.")
        return found.to(stream)


def read_translators(lens: Any, layers: int, width: int) -> Translators:
    """Read a lens for a model of some layers and width, as `logit_lens` describes.

    Raises InputError for anything else, for files that cannot be read, and for a lens of another model's size.
    """
    if isinstance(lens, str | os.PathLike):
        path = Path(lens)
        if (path / "config.json").is_file() and (path / "params.pt").is_file():
            return _tuned_lens(path, layers, width)
        if not path.is_file():
            raise InputError(f"lens={shown(str(lens))} is neither a folder with config.json and params.pt nor a file.")
        try:
            from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

            lens = JacobianLens.load(str(path))
        except Exception as error:  # of unpickling, and of another TransformerLens
            raise InputError(f"{str(path)!r} is not a Jacobian lens that can be read ({error}).") from error
    if hasattr(lens, "transport") and hasattr(lens, "source_layers"):
        own, last = getattr(lens, "d_model", width), max(lens.source_layers, default=0)
        if own != width or last >= layers - 1:
            raise InputError(f"this lens is for a stream of {own} and layers to {last}, not {width} and {layers - 2}.")
        fitted = set(lens.source_layers)
        return Translators("Jacobian lens", lambda x, done: lens.transport(x, done - 1) if done - 1 in fitted else None)
    if not callable(lens):
        raise InputError(f"lens={shown(lens)} must be {_KINDS}.")
    return Translators(getattr(lens, "__name__", type(lens).__name__), lens)


def _tuned_lens(path: Path, layers: int, width: int) -> Translators:
    """Read the format of the tuned-lens library: x + W x + b, with one (W, b) for each stream before the final one."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        state = torch.load(path / "params.pt", map_location="cpu", weights_only=True)
        weights = [state[f"{done}.weight"] for done in range(config["num_hidden_layers"])]
        biases = [state.get(f"{done}.bias") for done in range(len(weights))]
    except Exception as error:  # a damaged archive raises whatever its pieces do
        raise InputError(f"{str(path)!r} is not a tuned lens that can be read ({error}).") from error
    if len(weights) != layers or any(tuple(weight.shape) != (width, width) for weight in weights):
        of = f"{len(weights)} layers and a stream of {weights[0].shape[-1] if weights else 0}"
        raise InputError(f"the tuned lens {path.name!r} is for {of}, and this model has {layers} and {width}.")

    def translate(stream: Tensor, done: int) -> Tensor:
        bias = biases[done]
        moved = stream.float() @ weights[done].to(stream.device).float().T
        return stream + moved + (0.0 if bias is None else bias.to(stream.device).float())

    return Translators(f"tuned lens {path.name}", translate)
