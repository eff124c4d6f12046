"""Capture in a forward pass: only the requested activations at the requested positions.

ids   : long [row, token], right-padded     mask : long [row, token], 1 on real tokens
at    : long [row], the wanted position     every captured activation: float32 [row, width]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .architecture import Architecture, HookPoint, Sublayer, SublayerCut, Vectors
from .batches import upcast
from .norm import AffineStep


@dataclass(frozen=True, eq=False)
class SublayerOutput:
    """The output that one run of a sublayer adds to the stream and, if a unit cuts it, the values of its parts.

    These are `values` before an output map (heads', neurons'), with the input or the statistic (one number a row) of
    the norm after it (`post`); or `vectors` of the stream.

    `hooked`: the user's hooks changed something between these values and the output. `path_divisor`
    `[row]`: the part of the divisor that comes after the post-norm, for an output carried to the final stream.
    """

    sublayer: Sublayer
    output: Float[Tensor, "row d"]
    values: Float[Tensor, "row part"] | None = None
    post: Float[Tensor, "row _"] | None = None
    hooked: bool = False
    path_divisor: Float[Tensor, " row"] | None = None
    cut: SublayerCut | None = None
    vectors: Vectors | None = None

    def rows(self, some: slice | Tensor) -> SublayerOutput:
        """Select some rows."""
        names = ("values", "post", "path_divisor", "vectors")
        rest: Any = {name: None if (x := getattr(self, name)) is None else x[some] for name in names}
        return replace(self, output=self.output[some], **rest)


@dataclass(frozen=True, eq=False)
class Activations:
    """One forward pass at the requested positions, in float32 or wider, on the model's device.

    Attributes:
        sublayer_outputs, repeats: The outputs in the order in which they were added, and each one's repeat of its
            layer, from 1; None if the layer runs once.
        unembedded, logits: The unembedding's output, before any multiplier or soft-cap, and the model's own logits;
            both `[row, vocabulary]`, or `[prompt, vocabulary]` where all positions were read.
        dtype, answer_dtype: The precisions of the stream and of the unembedding's output.
        path, stream_bias: The steps that the stream passes between the writes, in order; or, where the writes stand as
            in the final stream, the total of all these steps' biases there, if any.
    """

    embed: Float[Tensor, "row d"]
    pos_embed: Float[Tensor, "row d"] | None
    sublayer_outputs: tuple[SublayerOutput, ...]
    repeats: tuple[int | None, ...]
    final: Float[Tensor, "row d"]
    unembedded: Float[Tensor, "row v"]
    logits: Float[Tensor, "row v"]
    dtype: torch.dtype
    answer_dtype: torch.dtype
    path: tuple[AffineStep, ...] = ()
    stream_bias: Float[Tensor, "row d"] | None = None

    def at_positions(self, some: slice | Tensor) -> Activations:
        """Select the stream at some positions; the answers stay unchanged."""
        return replace(
            self,
            embed=self.embed[some],
            pos_embed=None if self.pos_embed is None else self.pos_embed[some],
            sublayer_outputs=tuple(output.rows(some) for output in self.sublayer_outputs),
            final=self.final[some],
            path=tuple(step.rows(some) for step in self.path),
            stream_bias=None if self.stream_bias is None else self.stream_bias[some],
        )

    def rows(self, some: slice) -> Activations:
        """Select some rows."""
        return replace(self.at_positions(some), unembedded=self.unembedded[some], logits=self.logits[some])


@dataclass(frozen=True, eq=False)
class Change:
    """The change by the user's hooks at a place, after `after` hook points were passed.

    `by` `[row, width]` is None where the change is not a vector at every token.
    """

    point: HookPoint
    after: int
    by: Float[Tensor, "row _"] | None


@dataclass(frozen=True, eq=False)
class RawCapture:
    """The values at every hook point (by its id, one for each repeat), their order, and the two answers.

    `changes` are those by the user's hooks at the requested places; `hooked` the (hook point, repeat) of outputs that
    they changed; `interventions` their additions to the stream, by the index in `order` that each precedes.
    """

    seen: dict[HookPoint, list[Tensor]]
    order: list[HookPoint]
    unembedded: Float[Tensor, "row v"]
    logits: Float[Tensor, "row v"]
    dtype: torch.dtype
    answer_dtype: torch.dtype
    changes: tuple[Change, ...] = ()
    hooked: frozenset[tuple[HookPoint, int]] = frozenset()
    interventions: dict[int, SublayerOutput] = field(default_factory=dict)

    def at(self, point: HookPoint, what: str) -> list[Tensor]:
        """Get the values at a hook point. Raises InputError for one that was never reached."""
        if point not in self.seen:
            raise unreached(what)
        return self.seen[point]


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions read in a pass: `at` in `rows` of padded tokens, all on the model's device."""

    ids: Int[Tensor, "row token"]
    mask: Int[Tensor, "row token"]
    rows: Int[Tensor, " n"]
    at: Int[Tensor, " n"]

    def of(self, x: Tensor) -> Float[Tensor, "n _"]:
        """Select a hook point's values at these positions, up-cast and on their device."""
        if x.dim() == 2 and len(x) == self.ids.numel():  # OPT's MLP works on [row·token, d]
            x = x.view(*self.ids.shape, -1)
        elif x.dim() == 2 and len(x) == self.ids.shape[1]:  # Marian's positions, [token, d]
            x = x[None]
        # Indexing copies, so that a model that later adds in place cannot change the captured values.
        # Learned positions may come as one row for all.
        rows, at = self.rows.to(x.device), self.at.to(x.device)
        x = x[rows, at] if len(x) == len(self.ids) else x[0, at]
        return upcast(x.flatten(1)).to(self.ids.device)

    def are_in(self, x: Any) -> bool:
        """True for a vector at every token of the pass."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return False
        shape = self.ids.shape
        return x.shape[:2] in (shape, (1, shape[1])) if x.dim() > 2 else x.dim() == 2 and len(x) == shape.numel()


class Preallocated:
    """Memory for captured values, allocated before the pass runs.

    Small arrays kept after every layer would lie between the large ones that the layers free, and fragment that memory.
    """

    def __init__(self, numbers: int, device: torch.device) -> None:
        self._free = torch.empty(numbers, device=device)

    def put(self, x: Tensor) -> Tensor:
        """Copy an array into it; return the array itself where it does not fit."""
        if x.dtype != self._free.dtype or x.numel() > len(self._free):
            return x
        place, self._free = self._free[: x.numel()], self._free[x.numel() :]
        return place.view(x.shape).copy_(x)


@contextmanager
def hook(point: HookPoint, do: Callable[[Any, Any, Tensor], Tensor | None], prepend: bool = False) -> Iterator[None]:
    """Call `do(args, kwargs, value)` when a hook point is passed; a returned value replaces the original.

    It comes after all hooks that are there, or, with `prepend`, before them.
    """
    if hasattr(point, "attach"):  # points that no single module has
        with point.attach(do):
            yield
        return
    thread = threading.get_ident()  # ignores another thread's pass through the same model

    def on_output(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        changed = do(args, kwargs, output_tensor(output, point.item)) if threading.get_ident() == thread else None
        if changed is None:
            return output
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def on_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
        value = args[0] if args else kwargs.get("hidden_states", kwargs.get("query_input"))
        changed = do(args, kwargs, value) if threading.get_ident() == thread else None
        if changed is None:
            return None
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    if point.side == "out":
        handle = point.module.register_forward_hook(on_output, prepend=prepend, with_kwargs=True)
    else:
        handle = point.module.register_forward_pre_hook(on_input, prepend=prepend, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def watching(points: Iterable[HookPoint]) -> Iterator[dict[HookPoint, list[Any]]]:
    """Record the values of hook points unchanged, once for every time they are passed."""
    seen: dict[HookPoint, list[Any]] = {point: [] for point in points}
    with ExitStack() as stack:
        for point, values in seen.items():
            stack.enter_context(hook(point, lambda args, kwargs, x, values=values: values.append(x)))  # type: ignore[misc]
        yield seen


def only_at(
    unembed: nn.Module, at: Int[Tensor, " n"], rows: Int[Tensor, " n"] | None = None
) -> AbstractContextManager[None]:
    """Pass the unembedding some tokens only, one of each row unless `rows` says which, each as a row by itself."""
    rows = torch.arange(len(at), device=at.device) if rows is None else rows
    return hook(HookPoint(unembed, "in"), lambda a, k, x: x[rows.to(x.device), at.to(x.device)][:, None])


def output_tensor(value: Any, item: int = 0) -> Tensor:
    """Get a module's output, or one of several."""
    return value[item] if isinstance(value, tuple | list) and value else value


def unreached(what: str) -> InputError:
    """Make the error for a hook point that a pass did not reach."""
    return InputError(
        f"{what} of this model was never reached in its forward pass (fused, rewritten, or replaced since it was "
        "loaded), so its components cannot be read: load it again, or load the plain model."
    )


def answers(
    architecture: Architecture,
    ids: Tensor,
    mask: Tensor,
    at: Int[Tensor, " n"],
    rows: Int[Tensor, " n"] | None = None,
    **extra: Tensor,
) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n v"]]:
    """Run the model; return the unembedding's output at the positions of `only_at` and the logits, both up-cast.

    `extra` goes to the model.
    """
    ids, mask, at = (x.to(architecture.device) for x in (ids, mask, at))
    answer = HookPoint(architecture.unembed)
    with only_at(architecture.unembed, at, rows), watching([answer]) as seen:
        logits = upcast(architecture.logits(ids, mask, **extra)[:, 0])
    if not seen[answer]:
        raise unreached("the unembedding")
    return seen[answer][-1][:, 0], logits.to(architecture.device)


class _AllSeen(Exception):
    """Every requested hook point has been passed: the rest of the pass is not needed."""


def first_values(
    architecture: Architecture, points: Sequence[HookPoint], ids: Tensor, mask: Tensor
) -> dict[HookPoint, Tensor]:
    """Get the values of hook points when first passed, in a pass that ends with the last of them."""
    seen: dict[HookPoint, Tensor] = {}

    def keep(point: HookPoint, args: Any, kwargs: Any, x: Tensor) -> None:
        seen.setdefault(point, x)
        if len(seen) == len(points):
            raise _AllSeen

    with ExitStack() as stack:
        for point in points:
            stack.enter_context(hook(point, partial(keep, point)))
        with suppress(_AllSeen):
            architecture.logits(ids, mask)
    if len(seen) < len(points):
        raise unreached("the first block")
    return seen


def capture(
    architecture: Architecture,
    points: Sequence[HookPoint],
    where: Positions,
    answer_at: Tensor | None = None,
    hooked: Sequence[HookPoint] = (),
    **extra: Tensor,
) -> RawCapture:
    """Run the model and keep the hook points' values at some positions.

    The answers are read there too or, if given, at `answer_at` of each row. `hooked` are the places of the user's
    hooks, whose changes are also kept; `extra` goes to the model.
    """
    places = (where.at, where.rows) if answer_at is None else (answer_at, None)
    seen: dict[HookPoint, list[Tensor]] = {}
    order: list[HookPoint] = []
    dtypes: dict[HookPoint, torch.dtype] = {}
    numbers = len(points) * len(where.at) * architecture.norm.gain.numel()
    memory = Preallocated(numbers, architecture.device)
    changes: list[Change] = []
    before: dict[HookPoint, Any] = {}

    def keep(point: HookPoint, args: Any, kwargs: Any, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise unreached("the input of a sublayer")
        dtypes[point] = x.dtype
        order.append(point)
        x = x.movedim(0, 2) if point.streams_first else x
        seen.setdefault(point, []).append(memory.put(where.of(x)))

    def keep_before(point: HookPoint, args: Any, kwargs: Any, x: Any) -> None:
        before[point] = where.of(x) if where.are_in(x) else None

    def keep_change(point: HookPoint, args: Any, kwargs: Any, x: Any) -> None:
        was = before.pop(point, None)
        by = where.of(x) - was if was is not None and where.are_in(x) else None
        if by is None or bool((by != 0).any()):
            changes.append(Change(point, len(order), by))

    with ExitStack() as stack:
        for point in hooked:
            stack.enter_context(hook(point, partial(keep_before, point), prepend=True))
            stack.enter_context(hook(point, partial(keep_change, point)))
        for point in points:
            stack.enter_context(hook(point, partial(keep, point)))
        unembedded, logits = answers(architecture, where.ids, where.mask, *places, **extra)
    if architecture.stream_out not in seen:
        raise unreached("the input of the final norm")
    answer, dtype = upcast(unembedded).to(architecture.device), dtypes[architecture.stream_out]
    return RawCapture(seen, order, answer, logits, dtype, unembedded.dtype, tuple(changes))
