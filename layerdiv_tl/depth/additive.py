"""What the analyses of depth ask of a path: factors on its writes, its read-out, and vectors carried along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import isclose
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from ..model.frozen import Frozen, is_on_path
from ..model.load import Model
from ..model.patching import frozen, silent, tensor
from ..model.writers import Writer, unwrapped


def with_input(args: tuple[Any, ...], kwargs: dict[str, Any], x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with another first one."""
    if args:
        return (x, *args[1:]), kwargs
    return args, {**kwargs, next(iter(kwargs)): x}


def stream_scales(model: Model) -> dict[Writer, float]:
    """Return the factor between each sublayer's write and the stream (Granite's), measured once per model.

    Raises InputError where it is no number: a pass can only resume where blocks add to their stream.
    """
    if "stream scales" not in model.path.kept:
        model.path.kept["stream scales"] = _measured_scales(model)
    return model.path.kept["stream scales"]


def _measured_scales(model: Model) -> dict[Writer, float]:
    path = model.path
    inputs: list[Tensor] = []  # of blocks, in the order in which they run
    outputs: list[Tensor] = []
    running: list[int] = []  # the block in which each call of a writer was

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(next(iter((*args, *kwargs.values()))))

    def observe(add: Callable[[Any], None]) -> None:
        for block in dict.fromkeys(w.block for w in path.writers if w.block is not None):
            add(block.register_forward_pre_hook(enter, with_kwargs=True))
            add(block.register_forward_hook(lambda m, a, output: outputs.append(tensor(output))))
        for writer in path.writers:
            add(writer.place.register_forward_hook(lambda m, a, output: running.append(len(inputs) - 1)))

    seen = path.record(path.probe_ids, None, *path.probe_reads)
    writes = path.replay(seen, observe=observe).writes
    scales: dict[Writer, float] = {}
    for block, (stream, output) in enumerate(zip(inputs, outputs, strict=True)):
        own = [number for number, where in enumerate(running) if where == block]
        v = torch.sin(torch.arange(output.numel(), device=output.device)).view_as(output).to(output)
        leaves = [stream, *(writes[i] for i in own)]
        found: tuple[Tensor | None, ...] = (None,)
        if is_on_path(stream):
            found = torch.autograd.grad(output, leaves, v, retain_graph=True, allow_unused=True)
        factors = [_factor(g, v) for g in found]
        if factors[0] != 1:
            raise _refusal(model)
        for number, factor in zip(own, factors[1:], strict=True):
            writer = seen.calls[number][0]
            if factor is None or not isclose(scales.setdefault(writer, factor), factor, rel_tol=1e-5):
                raise _refusal(model)
    return scales


def _refusal(model: Model) -> InputError:
    return InputError(
        f"the stream of {model.name} passes norms, gates or a mixing of streams between its sublayers, but this "
        "analysis resumes passes from a layer, which only streams without these allow (logit_lens(…, norm='frozen') "
        "reads any stream)."
    )


def _factor(gradient: Tensor | None, v: Tensor) -> float | None:
    """The number by which a gradient is a multiple of v, if there is one."""
    if gradient is None or gradient.shape != v.shape:
        return None
    factor = float((gradient * v).sum() / (v * v).sum())
    factor = 1.0 if abs(factor - 1) < 1e-6 else factor
    return factor if torch.allclose(gradient, factor * v, rtol=1e-4, atol=1e-5) else None


def carried_through(
    maps: Sequence[nn.Module], at: Float[Tensor, "*n width"], vectors: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Carry vectors through maps whose norms keep their statistics of the input `at`; biases are left out."""
    with torch.enable_grad(), ExitStack() as stack:
        for one in maps:
            stack.enter_context(silent(one))
            stack.enter_context(frozen(one))
        leaf = at.detach().to(dtype).clone().requires_grad_()
        with Frozen(dtype):
            y = leaf
            for one in maps:
                y = tensor(unwrapped(one).forward(y))
        # J z of the affine map is the derivative of Jᵀv · z in v.
        v = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, leaf, v, create_graph=True)
        found = []
        for z in vectors:
            (moved,) = torch.autograd.grad((pulled * z.detach().to(pulled)).sum(), v, retain_graph=True)
            found.append(moved.detach())
        return found
