"""Reading and changing what passes a hook point of a running model, for as long as a context lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from .architecture import HookPoint


@contextmanager
def on(point: HookPoint, do: Callable[[Any, Any, Tensor], Tensor | None]) -> Iterator[None]:
    """Call `do(args, kwargs, value)` when a hook point is passed; what it returns, if anything, goes on instead."""
    thread = threading.get_ident()  # another thread's pass through the same model is left alone

    def on_output(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        changed = do(args, kwargs, first(output)) if threading.get_ident() == thread else None
        if changed is None:
            return output
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def on_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
        value = args[0] if args else kwargs["hidden_states"]
        changed = do(args, kwargs, value) if threading.get_ident() == thread else None
        if changed is None:
            return None
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    if point.side == "out":
        handle = point.module.register_forward_hook(on_output, with_kwargs=True)
    else:
        handle = point.module.register_forward_pre_hook(on_input, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def only_at(unembed: nn.Module, at: Int[Tensor, " row"]) -> AbstractContextManager[None]:
    """Show the unembedding one token of each row."""
    rows = torch.arange(len(at), device=at.device)
    return on(HookPoint(unembed, "in"), lambda a, k, x: x[rows.to(x.device), at.to(x.device)][:, None])


def first(value: Any) -> Tensor:
    """What a module returns, or the first of several things."""
    return value[0] if isinstance(value, tuple | list) else value
