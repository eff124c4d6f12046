"""One clean pass whose streams are kept, and changed passes that resume from them at any block.

A changed pass calls the model's own blocks again, with the arguments they had, from the first block that
sees something new. A model whose blocks cannot be called so (a bridge, a stream that also takes another
way) is run whole, with the same changes made inside: the same numbers, at twice the cost.

block   : a use of a layer, counted from 0 in the order in which they ran
stream  : [row, token, d], right-padded, in the model's own precision
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..components import Component, Kind
from ..errors import InputError
from .architecture import HALF, Architecture, HookPoint, Sublayer
from .capture import UNNAMED, pad, upcast
from .hooks import first, on, only_at
from .load import Model
from .reconstruction import ReconstructionError, check_reconstruction, locate_mismatch

# Logits that are formed at once: 32 MiB, beside 64 MiB of clean probabilities in float64.
LOGITS = 1 << 23


@dataclass(frozen=True)
class Muted:
    """A write that is nothing at the tokens `where`, and what it was at the others."""

    where: Bool[Tensor, "row token"]

    def __call__(self, write: Float[Tensor, "row token d"]) -> Tensor:
        """The write as it is then."""
        return write.masked_fill(self.where.to(write.device)[..., None], 0.0)


# What sublayers write instead, by block and kind: of their write, in the shape of the stream; None is nothing.
Instead = Mapping[tuple[int, str], Callable[[Float[Tensor, "row token d"]], Tensor] | None]
Edit = Callable[[int, Float[Tensor, "row token d"]], Tensor]
See = Callable[[int, Float[Tensor, "row token d"], Float[Tensor, "row token d"]], None]


class Replay:
    """Some texts, their clean pass, and changed passes that resume from it. Use it inside `quiet`.

    ids, mask
        `[row, token]`.
    streams
        What enters every block, and last the final norm; one more than there are blocks.
    left
        What leaves every block. It is what enters the next, unless the stream passes the final norm in between,
        as behind every round of a loop.
    layers
        Layer and use (None where it is used once) of every block.
    writes
        With `keep_writes`: what the sublayers wrote to the stream, by block and kind.
    scales
        What a sublayer's own output is multiplied by on its way to the stream, by block and kind.
    resumes
        Whether passes resume; else they are whole ones.

    Raises InputError for a model whose sublayers are not all that writes to its stream.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]], keep_writes: bool = False) -> None:
        self.model, self.architecture = model, model.architecture
        self.ids, self.mask = (x.to(self.architecture.device) for x in pad(rows))
        self.streams: list[Tensor] = []
        self.left: list[Tensor] = []
        self.writes: dict[tuple[int, str], Tensor] = {}
        # Blocks, and what they were given beside the stream; None where that came by its name, too.
        self._calls: list[tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any]]] = []
        self._outputs: list[Tensor] = []
        self.scales: dict[tuple[int, str], float] = {}
        self._clean(keep_writes)

    @property
    def tokens(self) -> Bool[Tensor, "row token"]:
        """Which tokens are real."""
        return self.mask.bool()

    def component(self, kind: Kind, block: int) -> Component:
        """The name of a block's sublayer, or of the block itself (`kind="layer"`)."""
        layer, repeat = self.layers[block]
        return Component(kind, layer, repeat=repeat)

    def zero_ablate(self, kind: str, block: int, where: Bool[Tensor, "row token"] | None = None) -> Instead:
        """A sublayer of a block, or all of them (`kind="layer"`), write nothing, at all tokens or only at some."""
        kinds = self._kinds[self.layers[block][0]]
        return {(block, k): None if where is None else Muted(where) for k in kinds if kind in (k, "layer")}

    def resume(
        self,
        start: int,
        stream: Tensor,
        instead: Instead | None = None,
        edit: Edit | None = None,
        see: See | None = None,
    ) -> Float[Tensor, "row token d"]:
        """Run the blocks from `start` on, and return what enters the final norm.

        stream
            What enters block `start`.
        instead
            What sublayers of the blocks from `start` on write instead.
        edit
            (block, stream entering it) → the stream to enter it instead, for every block behind `start`,
            and for the final norm under the number of blocks.
        see
            Called with (block, stream entering, stream leaving) of every block that runs.
        """
        instead = instead or {}
        if not self.resumes:
            return self._whole(start, stream, instead, edit, see)
        last = len(self._calls)
        clean = start < last and stream is self.streams[start]
        stream = stream.clone()
        for block in range(start, last):
            if edit is not None and block > start:
                stream = edit(block, stream)
            before, stream = stream, self._block(block, stream, instead, clean and block == start)
            if see is not None:
                see(block, before, stream)
            if block in self._normed:
                stream = self.architecture.norm_module(stream)
        return stream if edit is None else edit(last, stream)

    def onward(self, write: Tensor, start: int, stop: int) -> Tensor:
        """What block `start` wrote as it stands in the stream that enters block `stop`: behind the norms in between."""
        for block in range(start, stop):
            if block in self._normed:
                left = upcast(self.left[block])
                factor = self.architecture.norm.gain.to(left) / self.architecture.norm.statistic(left)[..., None]
                write = (upcast(write).to(left.device) * factor).to(write.dtype)
        return write

    def normed(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The model's final norm of stream vectors."""
        return self.architecture.norm_module(stream[:, None])[:, 0]

    def logits(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
        """The model's answers to stream vectors, in float32 or wider."""
        return logits_of(self.architecture, self.normed(stream))

    def chunks(self, count: int) -> Iterator[slice]:
        """`count` tokens cut into as many at once as logits may be formed."""
        step = max(1, LOGITS // self.architecture.outputs)
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def targets(self) -> Int[Tensor, " n"]:
        """The token that follows each real token, one text's after another's; −1 behind the last of a text."""
        following = torch.full_like(self.ids, -1)
        following[:, :-1] = torch.where(self.tokens[:, 1:], self.ids[:, 1:], -1)
        return following[self.tokens]

    def _block(self, block: int, stream: Tensor, instead: Instead, clean: bool = False) -> Tensor:
        module, args, kwargs = self._calls[block]
        kinds = self._kinds[self.layers[block][0]]
        writes = [instead.get((block, kind), ...) for kind in kinds]
        if all(write is None for write in writes):  # it would only hand on its input
            return stream
        where = [write.where for write in writes if isinstance(write, Muted)]
        if clean and len(where) == len(writes) and all(mask is where[0] for mask in where):
            # Of a clean input it hands on that input where it is silent, and elsewhere what it did in the clean pass.
            return torch.where(where[0].to(stream.device)[..., None], stream, self.left[block])
        here = any((block, kind) in instead for kind in kinds)
        with self._replaced(lambda: block, instead if here else {}):
            if args is None:
                return first(module(hidden_states=stream, **kwargs))
            return first(module(stream, *args, **kwargs))

    def _clean(self, keep_writes: bool) -> None:
        taps = {id(tap.module): tap for tap in self.architecture.blocks}
        order, kept = [], keep_writes
        sums: list[Tensor] = []  # of one block's writes

        def enter(tap: HookPoint, args: Any, kwargs: Any, value: Tensor) -> None:
            order.append(id(tap.module))
            self.streams.append(value.clone())
            others = {name: x for name, x in kwargs.items() if name != "hidden_states"}
            self._calls.append((tap.module, args[1:] if args else None, others))
            sums.append(torch.zeros_like(value))

        def wrote(place: Sublayer, args: Any, kwargs: Any, value: Tensor) -> None:
            write = value.reshape(self.streams[-1].shape) * place.scale
            sums[-1] += write
            self.scales[len(sums) - 1, place.kind] = place.scale
            if kept:
                self.writes[len(sums) - 1, place.kind] = write

        said: list[Tensor] = []
        ends: list[tuple[int, Tensor]] = []  # behind which block; the same norm may have been used before, too
        at = self.mask.sum(1) - 1
        with ExitStack() as stack:
            for tap in taps.values():
                stack.enter_context(on(tap, partial(enter, tap)))
                if tap.side == "in":
                    leave = HookPoint(tap.module)
                    stack.enter_context(on(leave, lambda a, k, x: self._outputs.append(x)))
            for write in self.architecture.writes:
                stack.enter_context(on(write.tap, partial(wrote, write)))
            final = self.architecture.stream_out
            stack.enter_context(on(final, lambda a, k, x: ends.append((len(order) - 1, x.clone()))))
            stack.enter_context(only_at(self.architecture.unembed, at))
            stack.enter_context(on(HookPoint(self.architecture.unembed), lambda a, k, x: said.append(x[:, 0])))
            logits = upcast(self.architecture.logits(self.ids, self.mask)[:, 0])
        if not order or not ends or not said:
            raise InputError(
                "this model's blocks, final norm or unembedding were not reached in its forward pass (replaced since "
                "it was loaded, or fused): load it again, or load the plain model."
            )
        self.streams.append(ends[-1][1])
        self.left = self.streams[1:]
        self._normed = {block for block, left in ends[:-1] if self._passed(block, left)}
        for block, left in ends[:-1]:
            if block in self._normed:
                self.left[block] = left
        number = {module: layer for layer, module in enumerate(dict.fromkeys(order))}
        often, seen = Counter(order), Counter[int]()
        self.layers: list[tuple[int, int | None]] = []
        for module in order:
            seen[module] += 1
            self.layers.append((number[module], seen[module] if often[module] > 1 else None))
        self._kinds: dict[int, list[str]] = {layer: [] for layer in number.values()}
        for write in self.architecture.writes:
            self._kinds[write.layer].append(write.kind)
        self._check(sums, said[-1], logits)
        self.resumes = self._can_resume()
        self._outputs.clear()

    def _check(self, sums: list[Tensor], said: Tensor, logits: Tensor) -> None:
        """The sublayers must be all that writes to the stream, and the read-out the model's own."""
        real, eps = self.tokens, torch.finfo(self.streams[0].dtype).eps
        gap = 0.0
        for block, wrote in enumerate(sums):
            before, after = (upcast(s[real.to(s.device)]) for s in (self.streams[block], self.left[block]))
            wrote = upcast(wrote[real.to(wrote.device)])
            size = before.abs().amax() + wrote.abs().amax()
            gap = max(gap, float(((after - before).to(wrote.device) - wrote).abs().amax() / size.clamp_min(1e-30)))
        if self.streams[0].dtype in HALF and gap > 4 * eps:
            raise InputError(f"the blocks of {self.model.name} cannot be skipped: {UNNAMED}.")
        last = self.mask.sum(1) - 1
        final = self.streams[-1][torch.arange(len(last), device=last.device), last]
        ours = upcast(self.architecture.unembed(self.normed(final)[:, None])[:, 0])
        said, logits = upcast(said), logits.to(said.device)
        readout = float((ours.to(said.device) - said).abs().max() / said.abs().max().clamp_min(1e-30))
        unexplained = (self.architecture.transform(said) - logits).abs().max() / logits.abs().max().clamp_min(1e-30)
        closure = ReconstructionError(0.0, gap, readout, float(unexplained), self.streams[0].dtype, said.dtype)
        row = self.ids[0, self.tokens[0]].tolist()
        check_reconstruction(self.model.name, "sublayer", closure, lambda: locate_mismatch(self.model, row))

    def _passed(self, block: int, left: Tensor) -> bool:
        """Whether the stream went on as the final norm returned it behind a block: the model may only have asked."""
        if block < 0:  # an embedding may be normed by it, too
            return False
        left, then = (upcast(s[self.tokens.to(s.device)]) for s in (left, self.streams[block + 1]))
        then = then.to(left.device)
        return bool((self.architecture.norm(left) - then).norm() < (left - then).norm())

    def _can_resume(self) -> bool:
        """Whether each block hands its output to the next alone, and answers the same when it is called again."""
        if any(tap.side != "in" for tap in self.architecture.blocks):
            return False
        for block, (output, (_, args, kwargs)) in enumerate(zip(self._outputs, self._calls, strict=True)):
            others = [*(args or ()), *kwargs.values()]
            stream = self.streams[block]
            alike = any(isinstance(x, Tensor) and x.is_floating_point() and x.shape == stream.shape for x in others)
            onward = self.architecture.norm_module(output) if block in self._normed else output
            if alike or not torch.equal(onward.to(stream.device), self.streams[block + 1].to(stream.device)):
                return False
        last = len(self._calls) - 1
        return torch.equal(self._block(last, self.streams[last].clone(), {}), self.streams[-1])

    def _whole(self, start: int, stream: Tensor, instead: Instead, edit: Edit | None, see: See | None) -> Tensor:
        """The same changes inside a pass through the whole model."""
        entered: list[Tensor] = []
        left: list[Tensor] = []
        final: list[Tensor] = []
        now = [-1]

        def enter(value: Tensor, last: bool) -> Tensor | None:
            if last and now[0] + 1 < len(self.layers):
                left[:] = [value.clone()] if now[0] in self._normed else []
                return None
            now[0] += 1
            block = now[0]
            if block > start and see is not None:
                see(block - 1, entered[-1], left[-1] if left else value.clone())
            left.clear()
            if block == start:
                value = stream.clone()
            elif block > start and edit is not None:
                value = edit(block, value)
            entered[:] = [value.clone()]
            if last:
                final.append(value)
            return value if block >= start else None

        rows = torch.arange(len(self.ids), device=self.ids.device) * 0
        with ExitStack() as stack:
            for tap in {id(tap.module): tap for tap in self.architecture.blocks}.values():
                stack.enter_context(on(tap, lambda a, k, x: enter(x, False)))
            stack.enter_context(on(self.architecture.stream_out, lambda a, k, x: enter(x, True)))
            stack.enter_context(only_at(self.architecture.unembed, rows))
            stack.enter_context(self._replaced(lambda: now[0], instead))
            self.architecture.logits(self.ids, self.mask)
        return final[-1]

    @contextmanager
    def _replaced(self, now: Callable[[], int], instead: Instead) -> Iterator[None]:
        def change(kind: str, args: Any, kwargs: Any, value: Tensor) -> Tensor | None:
            if (now(), kind) not in instead:
                return None
            other = instead[now(), kind]
            if other is None:
                return torch.zeros_like(value)
            return other(value.reshape(self.streams[0].shape)).reshape(value.shape)

        wanted = {(self.layers[block][0], kind) for block, kind in instead}
        with ExitStack() as stack:
            for write in self.architecture.writes:
                if (write.layer, write.kind) in wanted:
                    stack.enter_context(on(write.tap, partial(change, write.kind)))
            yield


def logits_of(architecture: Architecture, normed: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
    """The model's answers to vectors behind its final norm, in float32 or wider."""
    return upcast(architecture.transform(architecture.unembed(normed[:, None])[:, 0]))
