"""One clean pass with stored streams, and patched passes that resume from them at any block.

A patched pass runs the model's own code, in which the blocks before the first changed one return what they returned in
the clean pass, without being computed.

block   : one run of a layer, counted from 0 in the order in which they ran
stream  : [row, token, d], right-padded, in the model's own precision; all on one device, wherever the blocks lie
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..components import Component, Kind
from ..errors import InputError
from ..model.batches import pad
from ..model.frozen import HALF, TOLERANCE, Frozen, upcast
from ..model.load import Model
from ..model.patching import frozen, hooks, silent, swapped, tensor
from ..model.units import cut_of
from ..model.writers import Writer

# The most logits formed at once: 32 MiB, and 64 MiB of clean probabilities in float64.
LOGITS = 1 << 23
# Streams and outputs this short are only rounding error.
SMALLEST = 1e-6


# A block, and the kind of its sublayer, whose output is meant, in the stream's shape; or "heads", for the input of its
# attention's output projection, `[row, token, head·width]`.
Key = tuple[int, str]
# Replacements of these, as functions of the values.
Instead = Mapping[Key, Callable[[Float[Tensor, "row token _"]], Tensor]]
See = Callable[[int, Float[Tensor, "row token d"], Float[Tensor, "row token d"]], None] | None


class PatchedForward:
    """Some texts, their clean pass, and patched passes that resume from it. Use it inside `path.session()`.

    Attributes:
        ids, mask: `[row, token]`.
        streams, block_outputs: The inputs of all blocks and of the final norm; and every block's output, which is the
            next block's input unless the stream passes the final norm in between, as after every round of a loop.
        normed: The blocks after which the stream goes on behind the final norm.
        layers: Layer and repeat (None where it runs once) of every block.
        scales: By block and kind: the factor between a sublayer's own output and the stream (Granite's).
        outputs: By block and kind: what each sublayer adds to the stream; with `keep_heads` also attentions' "heads",
            the inputs of their output projections.

    Raises InputError for a model where something other than its sublayers writes to the stream.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]], keep_heads: bool = False) -> None:
        self.model, self.path = model, model.path
        self.scales: dict[Key, float] = {}
        self.ids, self.mask = (x.to(self.path.device) for x in pad(rows))
        self.streams: list[Tensor] = []
        self.outputs: dict[Key, Tensor] = {}
        self._blocks: dict[nn.Module, list[Writer]] = {}
        for writer in self.path.writers:
            if writer.block is not None:
                self._blocks.setdefault(writer.block, []).append(writer)
        # The module of each block in the order in which they ran, and what it returned.
        self._calls: list[tuple[nn.Module, Any]] = []
        self._run_clean(keep_heads)

    @property
    def tokens(self) -> Bool[Tensor, "row token"]:
        """The mask of real tokens."""
        return self.mask.bool()

    def component(self, kind: Kind, block: int) -> Component:
        """The name of a block's sublayer, or of the block itself (`kind="layer"`)."""
        layer, repeat = self.layers[block]
        return Component(kind, layer, repeat=repeat)

    def writers(self, block: int) -> list[Writer]:
        """The sublayers of a block, in order."""
        return self._blocks[self._calls[block][0]]

    def sublayers(self, part: str, block: int) -> list[Key]:
        """The keys of a block's sublayer of this kind, or of all of them (`part="layer"`)."""
        return [(block, writer.kind) for writer in self.writers(block) if part in (writer.kind, "layer")]

    def head_count(self, block: int) -> int:
        """The number of heads of a block's attention."""
        return next(writer.heads for writer in self.writers(block) if writer.kind == "attn")

    def resume(
        self, start: int, given: Sequence[Tensor], instead: Instead | None = None, see: See = None
    ) -> Float[Tensor, "row token d"]:
        """Run the blocks from `start` on, and return the final norm's input.

        Args:
            given: The input streams of block `start` and of those after it, as far as they do not follow from the
                blocks before; the final norm's is the last.
            instead: The replacements for outputs of sublayers of these blocks.
            see: Called with (block, input stream, output stream) of every block that runs.
        """
        last, final = len(self._calls) - start, given[0]

        def end(module: nn.Module, args: Any) -> Any:
            nonlocal final
            if running() + 1 - start < last:  # the end of a round, or an embedding that is normed
                return None
            final = given[last].clone() if last < len(given) else args[0].to(self.ids.device)
            return (final.to(args[0].device), *args[1:])

        first = torch.zeros(len(self.ids), dtype=torch.long, device=self.ids.device)
        with self.patched(start, given, instead or {}, see) as running, hooks() as add:
            add(self._end.register_forward_pre_hook(end))
            self.path.logits(self.ids, self.mask, (first, first))
        return final

    @contextmanager
    def patched(
        self, start: int, given: Sequence[Tensor], instead: Instead, see: See = None
    ) -> Iterator[Callable[[], int]]:
        """A scope in which the model's pass over these texts is the patched one (see `resume`).

        Yields a function that gives the number of the block that runs.
        """
        block = -1

        def run(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal block
            block += 1
            before, output = _given(args, kwargs), self._calls[block][1]
            there = before.device
            if block < start:
                return _with_output(output, tensor(output).clone())
            number = block - start
            before = given[number].clone() if number < len(given) else before.to(self.ids.device)
            args, kwargs = with_input(args, kwargs, before.to(there, copy=see is not None))
            output = forward(*args, **kwargs)
            if see is not None:
                see(block, before, tensor(output).to(self.ids.device))
            return output

        def changed(place: str, value: Tensor) -> Tensor | None:
            if (block, place) not in instead:
                return None
            # OPT's MLP works on [row·token, d].
            found = instead[block, place](value.reshape(*self.ids.shape, -1).to(self.ids.device))
            return found.reshape(value.shape).to(value.device)

        def wrote(writer: Writer, module: nn.Module, args: Any, output: Any) -> Any:
            x = changed(writer.kind, tensor(output))
            return None if x is None else _with_output(output, x)

        def read(module: nn.Module, args: Any, kwargs: Any) -> Any:
            x = changed("heads", _given(args, kwargs))
            return None if x is None else with_input(args, kwargs, x)

        wanted = {(self._calls[block][0], place) for block, place in instead}
        with ExitStack() as stack:
            for module in self._blocks:
                stack.enter_context(swapped(module, "forward", partial(run, module, module.forward)))
            add = stack.enter_context(hooks())
            for writer in self.path.writers:
                if (writer.block, writer.kind) in wanted:
                    add(writer.place.register_forward_hook(partial(wrote, writer)))
                if writer.kind == "attn" and (writer.block, "heads") in wanted:
                    add(writer.projection.register_forward_pre_hook(read, with_kwargs=True))
            yield lambda: block

    def through_loop_norms(self, output: Tensor, start: int, stop: int) -> Tensor:
        """Map an output of block `start` to the input stream of block `stop`: through the norms between them.

        These keep their statistics of the clean pass, so that what they do to an output is their derivative.
        """

        def norm(x: Tensor) -> Tensor:
            with Frozen(self.path.wide):
                return tensor(self._end(x))

        for block in range(start, stop):
            if block in self.normed:
                at, vector = (x.to(self.path.wide) for x in (self.block_outputs[block], output))
                with silent(self._end), frozen(self._end):
                    output = torch.autograd.functional.jvp(norm, at, vector)[1].to(output)
        return output

    def logits(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
        """Compute the model's logits from stream vectors, in float32 or wider."""
        return upcast(self.path.read_out(stream)[1].to(stream.device))

    @property
    def _end(self) -> nn.Module:
        return self.path.unembed if self.path.norm is None else self.path.norm

    def _norm(self, stream: Tensor) -> Tensor:
        return tensor(self._end(stream)).to(stream.device)

    def _run_clean(self, keep_heads: bool) -> None:
        device, ends = self.path.device, list[int]()

        def run(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self.streams.append(_given(args, kwargs).to(device, copy=True))
            output = forward(*args, **kwargs)
            self._calls.append((module, output))
            return output

        def end(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            ends.append(len(self._calls) - 1)
            return forward(*args, **kwargs)

        with ExitStack() as stack:
            for module in self._blocks:
                stack.enter_context(swapped(module, "forward", partial(run, module, module.forward)))
            if self.path.norm is not None:
                stack.enter_context(swapped(self._end, "forward", partial(end, self._end.forward)))
            last = torch.arange(len(self.ids)), self.mask.sum(1) - 1
            seen = self.path.record(
                self.ids, self.mask, *last, partial(cut_of, "head" if keep_heads else "sublayer"), whole=True
            )
        if not self._calls:
            raise InputError(f"{self.model.name} did not run the modules that it was loaded with: load it again.")
        finals = [x.to(device) for x in seen.finals] or [tensor(self._calls[-1][1]).to(device)]
        self.streams.append(finals[-1])
        # Blocks after which the stream went on normed. The norm may also only read it, or an embedding before block 0.
        normed = {
            block: x for block, x in zip(ends[:-1], finals, strict=False) if block >= 0 and self._is_normed(block, x)
        }
        self.normed = set(normed)
        self.block_outputs = [normed.get(block, stream) for block, stream in enumerate(self.streams[1:])]
        written = [
            (c, *of_call)
            for (writer, _), c, *of_call in zip(seen.calls, seen.components(), seen.writes, seen.inputs, strict=True)
            if writer.block is not None
        ]
        self.layers = list(dict.fromkeys((c.layer, c.repeat) for c, _, _ in written))
        for c, write, heads in written:
            block = self.layers.index((c.layer, c.repeat))
            self.outputs[block, c.kind] = write.to(device)
            if heads is not None:
                self.outputs[block, "heads"] = heads.to(device)
        assert seen.logits is not None
        self._check_sums(seen.logits)

    def _is_normed(self, block: int, read: Tensor) -> bool:
        before, after, normed = self._at_tokens(read, self.streams[block + 1], self._norm(read))
        return bool((normed - after).norm() < (before - after).norm())

    def _at_tokens(self, *streams: Tensor) -> list[Tensor]:
        """Select streams at the real tokens, `[n, d]`."""
        return [upcast(stream[self.tokens]) for stream in streams]

    def _check_sums(self, logits: Float[Tensor, "row v"]) -> None:
        """Scale outputs as they are added to the stream.

        Raises InputError unless only sublayers write to the stream and the read-out is the model's own.
        """
        dtype = self.streams[0].dtype
        precision = 4 * torch.finfo(dtype).eps if dtype in HALF else TOLERANCE[dtype]
        for block, (stream, output) in enumerate(zip(self.streams, self.block_outputs, strict=False)):
            keys = [key for key in self.outputs if key[0] == block and key[1] != "heads"]
            if not keys or any(self.outputs[key].shape != stream.shape for key in keys):
                raise self._not_additive(block)
            before, after, *written = self._at_tokens(stream, output, *(self.outputs[key] for key in keys))
            if not bool(after.isfinite().all()):
                raise self.path.not_finite(self.component("layer", block).label)
            change, scales = after - before, [1.0] * len(keys)
            limit = precision * float(before.abs().amax() + torch.stack(written).sum(0).abs().amax())
            if not _error(change, written, scales) <= limit:
                scales = self._fit_scales(written, change)
            if not _error(change, written, scales) <= limit:
                raise self._not_additive(block)
            for key, scale in zip(keys, scales, strict=True):
                self.scales[key] = scale
                self.outputs[key] = self.outputs[key] * scale
        last = self.mask.sum(1) - 1
        ours, wanted = self.logits(self.streams[-1][torch.arange(len(last)), last]), upcast(logits)
        if not (ours - wanted.to(ours)).abs().max() <= TOLERANCE[self.path.dtype] * wanted.abs().max().clamp_min(1e-30):
            raise InputError(f"the final norm and unembedding of {self.model.name} do not give its logits.")

    def _fit_scales(self, written: list[Float[Tensor, "n d"]], change: Float[Tensor, "n d"]) -> list[float]:
        """Fit the factors of outputs of which a change of the stream is the sum, to the digits that it has."""
        design = torch.stack([x.double().flatten() for x in written], 1)
        factors = torch.linalg.lstsq(design, change.double().flatten()[:, None]).solution[:, 0].tolist()
        digits = 3 if self.streams[0].dtype in HALF else 6
        return [float(f"{factor:.{digits}g}") for factor in factors]

    def _not_additive(self, block: int) -> InputError:
        return InputError(
            f"something other than its sublayers changes the stream of {self.model.name} in "
            f"{self.component('layer', block).label} (a hook, or a norm, a gate or a mixing between its sublayers), so "
            "no pass can resume from there (logit_lens(…, norm='frozen') reads any stream)."
        )


def with_input(args: tuple[Any, ...], kwargs: dict[str, Any], x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with another first one."""
    if args:
        return (x, *args[1:]), kwargs
    return args, {**kwargs, next(iter(kwargs)): x}


def _error(change: Float[Tensor, "n d"], written: list[Float[Tensor, "n d"]], scales: list[float]) -> float:
    """The largest difference of a change from the sum of scaled outputs."""
    left = change
    for output, scale in zip(written, scales, strict=True):
        left = left - output * scale
    return float(left.abs().amax())


def _given(args: Any, kwargs: Any) -> Tensor:
    """The first input of a call."""
    return next(iter((*args, *kwargs.values())))


def _with_output(output: Any, x: Tensor) -> Any:
    """What a module returns, with another first tensor."""
    return type(output)([x, *output[1:]]) if isinstance(output, tuple | list) else x
