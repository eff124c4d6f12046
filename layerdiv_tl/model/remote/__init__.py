"""Models that run elsewhere: their contributions are projected where they run, and only these come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ...components import Unit
from ...errors import InputError
from ..architecture import HALF, Architecture
from ..cuts import unit_name
from ..huggingface import of_huggingface


class Engine(Protocol):
    """What runs a remote model. `received` counts the bytes of results so far."""

    units: tuple[Unit, ...]
    name: str
    skeleton: Any
    received: int

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
        """One pass of rows of tokens, read at `at` of rows `of`: what `projection.project` returns."""


def is_remote(x: Any) -> bool:
    """Whether this is a model of nnsight."""
    return any(c.__module__.split(".")[0] == "nnsight" for c in type(x).__mro__)


def engine_of(x: Any, remote: Any) -> Engine:
    """The engine of a remote model."""
    from .nnsight_engine import NNsightEngine

    return NNsightEngine(x, remote)


def architecture_of(engine: Engine) -> Architecture:
    """Where a remote model's parts are. Raises InputError for what cannot be projected remotely."""
    architecture = of_huggingface(engine.skeleton)
    if architecture.stream_ops:
        raise InputError("this model's stream passes more than additions, which is not read remotely: load it here.")
    return replace(architecture, device=torch.device("cpu"), remote=engine.name)


def plan_of(architecture: Architecture) -> dict[str, Any]:
    """The numbers of a model that `projection.project` needs."""
    norm, half = architecture.norm, architecture.dtype in HALF
    embeddings = 1 if architecture.pos_embed is None else 2
    return {
        "gain": norm.gain.double().cpu(),
        "bias": None if norm.bias is None else norm.bias.double().cpu(),
        "centered": norm.centered,
        "eps": norm.eps,
        "multiplier": architecture.logit_multiplier,
        "cap": architecture.soft_cap,
        "outputs": architecture.outputs,
        "scales": [1.0] * embeddings + [s.scale for s in architecture.sublayers],
        "constant": architecture.constant,
        "roundoff": torch.finfo(architecture.dtype).eps / 2 if half else None,
    }


def check_unit(engine: Engine, architecture: Architecture, unit: Any, name: str) -> Unit:
    """The unit. Raises InputError for one that this engine cannot cut this model into."""
    if unit not in engine.units:
        raise InputError(
            f"{name} runs on {engine.name}, which has no rows at unit={unit_name(unit)!r}: use unit='sublayer'."
        )
    architecture.components(unit)
    for sublayer in architecture.sublayers:
        output_map = sublayer.output_map
        cut = sublayer.cut(unit) is not None
        if sublayer.adapter or (cut and output_map is not None and (output_map.post or output_map.path)):
            raise InputError(f"{sublayer} of {name} has a norm or an adapter that is not read remotely: load it here.")
    return cast(Unit, unit)
