"""How a model's modules are changed for one pass, and restored afterwards, also where it is interrupted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Modes and hooks are set on the user's own modules, where two threads at once would interfere.
_LOCK = threading.RLock()
# Models in that frame now, so that a second one inside it need not look at all modules again.
_RUNNING: set[nn.Module] = set()


def modules_of(*roots: nn.Module) -> list[nn.Module]:
    """List all modules of some models, each once: torch's own walk also makes names, which takes four times as long."""
    found, open_ = dict[nn.Module, None](), [root for root in reversed(roots)]
    while open_:
        module = open_.pop()
        if module not in found:
            found[module] = None
            open_ += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found)


def parameters_of(*roots: nn.Module) -> list[nn.Parameter]:
    """List all parameters of some models, each once."""
    held = (p for module in modules_of(*roots) for p in module._parameters.values() if p is not None)
    return list(dict.fromkeys(held))


def tensor(output: Any) -> Tensor:
    """A module's output, or its first."""
    return output[0] if isinstance(output, tuple | list) else output


def noise(like: Tensor) -> Tensor:
    """Normal numbers in the shape of a tensor, the same every time; the global random state stays as it is."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=random, dtype=torch.float64).to(like)


def is_by_token(x: Any, rows: int, tokens: int) -> bool:
    """True for a tensor with a number or a vector for every token."""
    return isinstance(x, Tensor) and x.dim() > 0 and (x.shape[:2] == (rows, tokens) or len(x) == rows * tokens)


def by_token(x: Tensor, rows: int, tokens: int) -> Tensor:
    """`[row, token, ...]` of what a module gives, also where it merges rows and tokens, or all rows share it."""
    if x.shape[:2] == (rows, tokens):
        return x
    if len(x) == rows * tokens:
        return x.unflatten(0, (rows, tokens))
    x = x if x.dim() > 2 else x[None]
    return x.expand(rows, *x.shape[1:])


@dataclass(frozen=True)
class Keep:
    """What is kept of tensors of a pass: `[n, t, ...]` at the reads `(row, position)`.

    t is 1 where `by_token`; otherwise it is all tokens of the row.
    """

    shape: Any
    row: Tensor
    position: Tensor
    by_token: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Keep the reads of what a module gives."""
        return self.at_reads(x) if self.by_token else by_token(x, *self.shape)[self.row.to(x.device)]

    def at_reads(self, x: Tensor) -> Tensor:
        """`[n, 1, ...]`."""
        return by_token(x, *self.shape)[self.row.to(x.device), self.position.to(x.device)][:, None]

    def edit(self, x: Tensor) -> Tensor | None:
        """Keep the reads of a stream, or of several that stand in front of the rows; None for anything else."""
        if is_by_token(x, *self.shape):
            return self(x)
        return self(x.movedim(0, 2)) if x.dim() == 4 and x.shape[1:3] == self.shape else None

    def call(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Keep the reads of a module's arguments, in the form that they have."""

        def cut(x: Any) -> Any:
            if not is_by_token(x, *self.shape):
                return x
            return self(x) if x.shape[:2] == self.shape else self(x).flatten(0, 1)

        return tuple(map(cut, args)), {name: cut(x) for name, x in kwargs.items()}


@contextmanager
def one_at_a_time(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode without autocast; every module's own mode is restored, and other threads wait."""
    with _LOCK:
        if module in _RUNNING:
            yield
            return
        training = [m for m in modules_of(module) if m.training]
        try:
            _RUNNING.add(module)
            for m in training:
                m.training = False
            # Under a user's autocast, products would irrecoverably lose digits.
            with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
                yield
        finally:
            _RUNNING.discard(module)
            for m in training:
                m.training = True


@contextmanager
def hooks() -> Iterator[Callable[[Any], None]]:
    """A scope for hooks: call the given function with each handle."""
    with ExitStack() as stack:

        def add(handle: Any) -> None:
            stack.callback(handle.remove)

        yield add


@contextmanager
def swapped(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """An attribute of a module itself is another; wrappers that pass attributes on do not see it."""
    own, missing = vars(module), object()
    before = own.get(name, missing)
    own[name] = value
    try:
        yield
    finally:
        if before is missing:
            del own[name]
        else:
            own[name] = before


@contextmanager
def silent(module: nn.Module) -> Iterator[None]:
    """No module has hooks."""
    with ExitStack() as stack:
        for m in modules_of(module):
            for name in ("_forward_hooks", "_forward_pre_hooks"):
                if getattr(m, name):
                    stack.enter_context(swapped(m, name, OrderedDict()))
        yield


@contextmanager
def frozen(module: nn.Module, matrices: bool = False) -> Iterator[None]:
    """No parameter requires a gradient, or only matrices do."""
    wanted = [(p, matrices and p.dim() > 1) for p in parameters_of(module) if p.is_floating_point()]
    # Offloaded ones are made anew by each pass, also in inference mode, where none can be set to require a gradient.
    changed = [(p, needed) for p, needed in wanted if p.requires_grad != needed and not (needed and p.is_inference())]
    try:
        for p, needed in changed:
            p.requires_grad_(needed)
        yield
    finally:
        for p, needed in changed:
            with torch.inference_mode(p.is_inference()):
                p.requires_grad_(not needed)


def watch_edits(
    module: nn.Module,
    keep: Callable[[Tensor], Tensor | None],
    edits: dict[Any, list[Tensor]],
    add: Callable[[Any], None],
) -> None:
    """Record what the hooks that a module has add to its first input and to its output."""
    kept: list[Tensor | None] = []

    def before(x: Any) -> None:
        kept.append(keep(x) if isinstance(x, Tensor) and x.dim() > 1 else None)

    def after(side: str, x: Any) -> None:
        old, new = kept.pop(), None if not isinstance(x, Tensor) else keep(x)
        if old is not None and new is not None:
            edits[module, side].append(new - old)

    def given(args: Any, kwargs: Any) -> Any:
        return next(iter((*args, *kwargs.values())), None)

    if module._forward_pre_hooks:
        add(module.register_forward_pre_hook(lambda m, a, k: before(given(a, k)), with_kwargs=True, prepend=True))
        add(module.register_forward_pre_hook(lambda m, a, k: after("input", given(a, k)), with_kwargs=True))
    if module._forward_hooks:
        add(module.register_forward_hook(lambda m, a, out: before(tensor(out)), prepend=True))
        add(module.register_forward_hook(lambda m, a, out: after("output", tensor(out))))


def add_edits(module: nn.Module, side: str, edits: Iterator[Tensor], add: Callable[[Any], None]) -> None:
    """Add in a replay what hooks added in the pass."""

    def edited(x: Any) -> Any:
        edit = next(edits, None)
        if edit is None or not isinstance(x, Tensor) or not x.requires_grad:  # it is not on the path
            return x
        if edit.dim() == 4 and edit.shape != x.shape:
            edit = edit.movedim(2, 0)
        return x + edit.reshape(x.shape)

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (edited(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, kwargs | {name: edited(kwargs[name])}

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        x = edited(tensor(output))
        return type(output)([x, *output[1:]]) if isinstance(output, tuple | list) else x

    if side == "input":
        add(module.register_forward_pre_hook(before, with_kwargs=True))
    else:
        add(module.register_forward_hook(after))
