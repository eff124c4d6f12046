"""What is read in a forward pass: only the wanted activations at the wanted positions.

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
    """What one run of one sublayer adds to the stream, and, where a unit cuts it, what that reads of its parts.

    These are `values` before an output map (heads', neurons'), with the input, or the statistic (one number a row), of
    the norm after it (`post`); or `vectors` of the stream.

    `hooked`: the user's hooks changed something on the way from these values to the output. `adapter`: what of the
    output its adapters wrote, where that is a row of its own. `path_divisor` `[row]`: the part of the divisor that
    comes after the post-norm, for an output carried to the final stream.
    """

    sublayer: Sublayer
    output: Float[Tensor, "row d"]
    values: Float[Tensor, "row part"] | None = None
    post: Float[Tensor, "row _"] | None = None
    hooked: bool = False
    adapter: Float[Tensor, "row d"] | None = None
    path_divisor: Float[Tensor, " row"] | None = None
    cut: SublayerCut | None = None
    vectors: Vectors | None = None

    def rows(self, some: slice | Tensor) -> SublayerOutput:
        """The same for some rows."""
        names = ("values", "post", "adapter", "path_divisor", "vectors")
        rest: Any = {name: None if (x := getattr(self, name)) is None else x[some] for name in names}
        return replace(self, output=self.output[some], **rest)


@dataclass(frozen=True, eq=False)
class Activations:
    """One forward pass at the wanted positions, in float32 or wider, on the model's device.

    Attributes:
        sublayer_outputs, repeats: In the order in which they were added, and which repeat of its layer each is, from 1;
            None where there is one.
        unembedded, logits: What the unembedding returned, before any multiplier or soft-cap, and the model's own
            answer; both `[row, vocabulary]`, or `[prompt, vocabulary]` where all positions were read.
        dtype, answer_dtype: The precisions in which the stream and the unembedding's output came.
        path, stream_bias: The steps that the stream passes between the writes, in order; or, where the writes stand
            as in the final stream, what the biases of all these steps come to there, if there are any.
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
        """The stream at some positions, with the answers as they are."""
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
        """The same for some rows."""
        return replace(self.at_positions(some), unembedded=self.unembedded[some], logits=self.logits[some])


@dataclass(frozen=True, eq=False)
class Change:
    """What the user's hooks changed at a place, after `after` hook points were passed.

    `by` `[row, width]` is None where that is not a vector at every token.
    """

    point: HookPoint
    after: int
    by: Float[Tensor, "row _"] | None


@dataclass(frozen=True, eq=False)
class RawCapture:
    """What every hook point showed (by its id, once for every repeat), in which order, and the two answers.

    `changes` are those of the user's hooks, at the places that were asked for; `hooked` the (hook point, repeat) of
    outputs that they changed; `interventions` what they add to the stream, by the place in `order` that it is before.
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
        """What a hook point showed. Raises InputError for one that was never reached."""
        if point not in self.seen:
            raise unreached(what)
        return self.seen[point]


@dataclass(frozen=True, eq=False)
class Positions:
    """Where a pass is read: the positions `at` of `rows` of padded tokens, all on the model's device."""

    ids: Int[Tensor, "row token"]
    mask: Int[Tensor, "row token"]
    rows: Int[Tensor, " n"]
    at: Int[Tensor, " n"]

    def of(self, x: Tensor) -> Float[Tensor, "n _"]:
        """What a hook point shows at these positions, up-cast and on their device."""
        if x.dim() == 2 and len(x) == self.ids.numel():  # OPT's MLP works on [row·token, d]
            x = x.view(*self.ids.shape, -1)
        elif x.dim() == 2 and len(x) == self.ids.shape[1]:  # Marian's positions, [token, d]
            x = x[None]
        # Indexing copies, so that a model which adds in place later cannot change what was read.
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
    """Memory for what a pass shows, allocated before it runs.

    Small arrays that stay, one after every layer, would lie between the large ones that the layers free, and keep the
    memory of these from being used again.
    """

    def __init__(self, numbers: int, device: torch.device) -> None:
        self._free = torch.empty(numbers, device=device)

    def put(self, x: Tensor) -> Tensor:
        """A copy of an array, or itself where it does not fit."""
        if x.dtype != self._free.dtype or x.numel() > len(self._free):
            return x
        place, self._free = self._free[: x.numel()], self._free[x.numel() :]
        return place.view(x.shape).copy_(x)


@contextmanager
def hook(point: HookPoint, do: Callable[[Any, Any, Tensor], Tensor | None], prepend: bool = False) -> Iterator[None]:
    """Call `do(args, kwargs, value)` when a hook point is passed; what it returns, if anything, goes on instead.

    It comes after all hooks that are there, or, with `prepend`, before them.
    """
    if hasattr(point, "attach"):  # what no single module shows
        with point.attach(do):
            yield
        return
    thread = threading.get_ident()  # another thread's pass through the same model is left alone

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
    """Keep what hook points show, as it is, once for every time they are passed."""
    seen: dict[HookPoint, list[Any]] = {point: [] for point in points}
    with ExitStack() as stack:
        for point, values in seen.items():
            stack.enter_context(hook(point, lambda args, kwargs, x, values=values: values.append(x)))  # type: ignore[misc]
        yield seen


def only_at(
    unembed: nn.Module, at: Int[Tensor, " n"], rows: Int[Tensor, " n"] | None = None
) -> AbstractContextManager[None]:
    """Show the unembedding some tokens, one of each row unless `rows` says which, each as a row by itself."""
    rows = torch.arange(len(at), device=at.device) if rows is None else rows
    return hook(HookPoint(unembed, "in"), lambda a, k, x: x[rows.to(x.device), at.to(x.device)][:, None])


def output_tensor(value: Any, item: int = 0) -> Tensor:
    """What a module returns, or one of several things."""
    return value[item] if isinstance(value, tuple | list) and value else value


def unreached(what: str) -> InputError:
    """The error for a place that a pass has not shown."""
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
    """Run the model: what its unembedding returned at the positions of `only_at`, and its logits, these up-cast.

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
    """Every wanted hook point has been passed: the rest of the pass is not needed."""


def first_values(
    architecture: Architecture, points: Sequence[HookPoint], ids: Tensor, mask: Tensor
) -> dict[HookPoint, Tensor]:
    """What hook points show when they are first passed, in a pass that ends with the last of them."""
    seen: dict[HookPoint, Tensor] = {}

    def keep(point: HookPoint, args: Any, kwargs: Any, x: Tensor) -> None:
        seen.setdefault(point, x)
        if len(seen) == len(points):
            raise _AllSeen

    with ExitStack() as stack:
        for point in points:
            stack.enter_context(hook(point, partial(keep, point)))
        with suppress(_AllSeen):
            architecture.logits(ids.to(architecture.device), mask.to(architecture.device))
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
    """Run the model and keep what the hook points show at some positions.

    The answers are there too or, if given, at `answer_at` of each row. `hooked` are the places of the user's
    hooks, whose changes are kept, too; `extra` goes to the model.
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
