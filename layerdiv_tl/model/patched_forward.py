"""One clean pass with stored streams, and patched passes that resume from them at any block.

A patched pass calls the model's own blocks again, with their original arguments. A model that does not allow this (a
bridge, or a stream that also takes another path) is run whole, with the same changes inside, at twice the cost.

block   : one run of a layer, counted from 0 in the order in which they ran
stream  : [row, token, d], right-padded, in the model's own precision; all on one device, wherever the blocks lie
"""

from __future__ import annotations

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
from .architecture import HALF, Architecture, HookPoint, StreamOp, Sublayer
from .batches import pad, upcast
from .capture import answers, hook, only_at, output_tensor, unreached
from .forward_pass import locate_mismatch
from .load import Model
from .reconstruction import UNNAMED, ReconstructionError
from .stream_path import number_repeats, passes_norm

# The most logits formed at once: 32 MiB, and 64 MiB of clean probabilities in float64.
LOGITS = 1 << 23


@dataclass(frozen=True)
class ZeroAt:
    """Zero-ablates a sublayer's output at the tokens `where`."""

    where: Bool[Tensor, "row token"]

    def __call__(self, output: Float[Tensor, "row token d"]) -> Tensor:
        """Return the ablated output."""
        return output.masked_fill(self.where.to(output.device)[..., None], 0.0)


@dataclass(frozen=True)
class HeadsTo:
    """Replaces the values of some heads, before their output projection, by fixed ones at every token.

    `values` holds those of all heads of the attention.
    """

    heads: Sequence[int]
    values: Float[Tensor, "head width"]

    def __call__(self, given: Float[Tensor, "row token value"]) -> Tensor:
        """Return the values of all heads, those of the replaced ones changed."""
        heads = given.unflatten(-1, (len(self.values), -1)).clone()
        heads[:, :, list(self.heads)] = self.values[list(self.heads)].to(heads)
        return heads.flatten(-2)


# Replacements of sublayers' outputs, by block and kind: a function of the output, in the stream's shape; None is 0. A
# function that returns None changes nothing. An attention has two more places: "heads", the input of its output
# projection `[row, token, head·width]`, and "post", the input of the norm after that.
Instead = Mapping[tuple[int, str], Callable[[Float[Tensor, "row token _"]], Tensor | None] | None]
Edit = Callable[[int, Float[Tensor, "row token d"]], Tensor] | None
See = Callable[[int, Float[Tensor, "row token d"], Float[Tensor, "row token d"]], None] | None


class PatchedForward:
    """Some texts, their clean pass, and patched passes that resume from it. Use it inside `inference_mode_for`.

    Attributes:
        ids, mask: `[row, token]`.
        streams, block_outputs: The inputs of all blocks and of the final norm; and every block's output, which is the
            next block's input unless the stream passes the final norm in between, as after every round of a loop.
        layers: Layer and repeat (None where it runs once) of every block.
        scales: By block and kind: the factor on a sublayer's own output on its way to the stream.
        resumes: True if passes resume; else they run the whole model.

    Raises InputError for a model where something other than its sublayers writes to the stream.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]]) -> None:
        self.model, self.architecture = model, model.architecture
        if any(isinstance(item, StreamOp) for item in self.architecture.stream_ops):
            raise InputError(
                f"the stream of {model.name} passes norms, gates or a mixing of streams between its sublayers, but "
                "this analysis resumes passes from a layer, which only streams without these allow."
            )
        self.ids, self.mask = (x.to(self.architecture.device) for x in pad(rows))
        self.streams: list[Tensor] = []
        self.scales: dict[tuple[int, str], float | Tensor] = {}
        # Blocks, and their arguments besides the stream; positional ones are None where the stream is passed by name.
        self._calls: list[tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any]]] = []
        self._run_clean()

    @property
    def tokens(self) -> Bool[Tensor, "row token"]:
        """The mask of real tokens."""
        return self.mask.bool()

    def component(self, kind: Kind, block: int) -> Component:
        """The name of a block's sublayer, or of the block itself (`kind="layer"`)."""
        layer, repeat = self.layers[block]
        return Component(kind, layer, repeat=repeat)

    def zero_ablate(self, kind: str, block: int, where: Bool[Tensor, "row token"] | None = None) -> Instead:
        """Zero-ablate a block's sublayer, or all of them (`kind="layer"`), at all tokens or at some."""
        kinds = self._kinds[self.layers[block][0]]
        return {(block, k): None if where is None else ZeroAt(where) for k in kinds if kind in (k, "layer")}

    def head_count(self, block: int) -> int:
        """The number of heads of a block's attention."""
        layer = self.layers[block][0]
        maps = [s.output_map for s in self.architecture.sublayers if s.kind == "attn" and s.layer == layer]
        assert maps[0] is not None
        return maps[0].count

    def sublayer_output(self, kind: str, block: int) -> Float[Tensor, "row token d"]:
        """Compute a sublayer's addition to the stream by running its block once more."""
        seen: list[Tensor] = []
        look: Instead = {(block, kind): seen.append}
        if self.resumes:
            self._run_block(block, self.streams[block].clone(), look)
        else:
            self._run_whole(block, self.streams[block], look, None, None)
        return seen[0] * self.scales[block, kind]

    def resume(
        self, start: int, stream: Tensor, instead: Instead | None = None, edit: Edit = None, see: See = None
    ) -> Float[Tensor, "row token d"]:
        """Run the blocks from `start` on the input `stream`, and return the final norm's input.

        Args:
            instead: The replacements for outputs of sublayers of the blocks from `start` on.
            edit: (block, its input stream) → its new input stream, for every block after `start`, and for the final
                norm under the number of blocks.
            see: Called with (block, input stream, output stream) of every block that runs.
        """
        instead = instead or {}
        if not self.resumes:
            return self._run_whole(start, stream, instead, edit, see)
        last = len(self._calls)
        clean = start < last and stream is self.streams[start]
        stream = stream.clone()
        for block in range(start, last):
            if edit is not None and block > start:
                stream = edit(block, stream)
            before, stream = stream, self._run_block(block, stream, instead, clean and block == start)
            if see is not None:
                see(block, before, stream)
            if block in self._normed:
                stream = self.architecture.norm_module(stream).to(stream.device)
        return stream if edit is None else edit(last, stream)

    def through_loop_norms(self, output: Tensor, start: int, stop: int) -> Tensor:
        """Map an output of block `start` to the input stream of block `stop`: through the norms between them."""
        norm = self.architecture.norm
        for block in range(start, stop):
            if block in self._normed:
                left = upcast(self.block_outputs[block])
                factor = norm.gain.to(left) / norm.statistic(left)[..., None]
                output = (upcast(output).to(left.device) * factor).to(output.dtype)
        return output

    def normed(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Apply the model's final norm to stream vectors, as its unembedding reads them."""
        return self.architecture.to_unembed(self.architecture.norm_module(stream[:, None]))[:, 0].to(stream.device)

    def logits(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
        """Compute the model's logits from stream vectors, in float32 or wider."""
        return logits_of(self.architecture, self.normed(stream))

    def chunks(self, count: int) -> Iterator[slice]:
        """Divide `count` tokens into chunks whose logits may be formed at once."""
        step = max(1, LOGITS // self.architecture.outputs)
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def targets(self) -> Int[Tensor, " n"]:
        """The token after each real token, with texts concatenated; −1 after the last token of a text."""
        following = torch.full_like(self.ids, -1)
        following[:, :-1] = torch.where(self.tokens[:, 1:], self.ids[:, 1:], -1)
        return following[self.tokens]

    def _run_clean(self) -> None:
        points, device = {point.module: point for point in self.architecture.blocks}, self.architecture.device
        order: list[nn.Module] = []  # blocks' modules
        sums: list[Tensor] = []  # of one block's sublayers
        outputs: list[Tensor] = []  # of blocks
        finals: list[tuple[int, Tensor]] = []  # the blocks followed by the final norm, and its inputs

        def enter(point: HookPoint, args: Any, kwargs: Any, value: Tensor) -> None:
            order.append(point.module)
            self.streams.append(value.to(device, copy=True))
            others = {name: x for name, x in kwargs.items() if name != "hidden_states"}
            self._calls.append((point.module, args[1:] if args else None, others))
            sums.append(torch.zeros_like(self.streams[-1]))

        def add(sublayer: Sublayer, args: Any, kwargs: Any, value: Tensor) -> None:
            sums[-1] += value.reshape(self.streams[-1].shape).to(device) * sublayer.scale
            self.scales[len(sums) - 1, sublayer.kind] = sublayer.scale

        with ExitStack() as stack:
            for point in points.values():
                stack.enter_context(hook(point, partial(enter, point)))
                if point.side == "in":
                    stack.enter_context(hook(HookPoint(point.module), lambda a, k, x: outputs.append(x)))
            for sublayer in self.architecture.sublayers:
                stack.enter_context(hook(sublayer.hook_point, partial(add, sublayer)))
            final = self.architecture.stream_out
            stack.enter_context(hook(final, lambda a, k, x: finals.append((len(order) - 1, x.to(device, copy=True)))))
            unembedded, logits = answers(self.architecture, self.ids, self.mask, self.mask.sum(1) - 1)
        if not order or not finals:
            raise unreached("the final norm" if order else "the list of blocks")
        self.streams.append(finals[-1][1])
        # Blocks after which the stream went on normed. The norm may also only read it, or an embedding before block 0.
        self._normed = {block for block, read in finals[:-1] if block >= 0 and self._is_normed(block, read)}
        normed = {block: read for block, read in finals[:-1] if block in self._normed}
        self.block_outputs = [normed.get(block, stream) for block, stream in enumerate(self.streams[1:])]
        number = {module: layer for layer, module in enumerate(dict.fromkeys(order))}
        layers = [number[module] for module in order]
        self.layers: list[tuple[int, int | None]] = list(zip(layers, number_repeats(order), strict=True))
        self._kinds: dict[int, list[str]] = {layer: [] for layer in number.values()}
        for sublayer in self.architecture.sublayers:
            self._kinds[sublayer.layer].append(sublayer.kind)
        self._check_sums(sums, unembedded, logits)
        self.resumes = self._can_resume(outputs)

    def _is_normed(self, block: int, read: Tensor) -> bool:
        before, after = self._at_tokens(read, self.streams[block + 1])
        return passes_norm(self.architecture.norm, before, after)

    def _at_tokens(self, *streams: Tensor) -> list[Tensor]:
        """Select streams at the real tokens, `[n, d]`, on one device."""
        return [upcast(s[self.tokens.to(s.device)]).to(streams[0].device) for s in streams]

    def _check_sums(self, sums: list[Tensor], unembedded: Tensor, logits: Tensor) -> None:
        """Raise InputError unless only sublayers write to the stream and the read-out is the model's own."""
        gap, dtype = 0.0, self.streams[0].dtype
        for block, output in enumerate(sums):
            added, before, after = self._at_tokens(output, self.streams[block], self.block_outputs[block])
            size = before.abs().amax() + added.abs().amax()
            gap = max(gap, float((after - before - added).abs().amax() / size.clamp_min(1e-30)))
        if dtype in HALF and gap > 4 * torch.finfo(dtype).eps:
            raise InputError(f"the blocks of {self.model.name} cannot be skipped: {UNNAMED}.")
        last = self.mask.sum(1) - 1
        final = self.streams[-1][torch.arange(len(last), device=last.device), last]
        ours = upcast(self.architecture.unembed(self.normed(final)[:, None])[:, 0])
        answer = upcast(unembedded)
        logits, ours = logits.to(answer.device), ours.to(answer.device)
        error = ReconstructionError((dtype, unembedded.dtype), stream=gap, size=1.0)
        error.add("absolute", (ours - answer).abs() / answer.abs().max().clamp_min(1e-30))
        unexplained = (self.architecture.transform(answer) - logits).abs()
        error.add("unexplained", unexplained / logits.abs().max().clamp_min(1e-30))
        row = self.ids[0, self.tokens[0]].tolist()
        error.check(self.model.name, "sublayer", lambda: locate_mismatch(self.architecture, row))

    def _can_resume(self, outputs: list[Tensor]) -> bool:
        """Test whether each block only passes its output to the next one, and repeats it when called again."""
        if any(point.side != "in" for point in self.architecture.blocks):
            return False
        for block, (output, (_, args, kwargs)) in enumerate(zip(outputs, self._calls, strict=True)):
            others, stream = [*(args or ()), *kwargs.values()], self.streams[block]
            alike = any(isinstance(x, Tensor) and x.is_floating_point() and x.shape == stream.shape for x in others)
            following = self.architecture.norm_module(output) if block in self._normed else output
            if alike or not torch.equal(following.to(stream.device), self.streams[block + 1].to(stream.device)):
                return False
        last = len(self._calls) - 1
        return torch.equal(self._run_block(last, self.streams[last].clone(), {}), self.streams[-1])

    def _run_block(self, block: int, stream: Tensor, instead: Instead, clean: bool = False) -> Tensor:
        """Compute a block's output for a stream; `clean` if that is the stream of the clean pass."""
        module, args, kwargs = self._calls[block]
        kinds = self._kinds[self.layers[block][0]]
        replaced = [instead.get((block, kind), ...) for kind in kinds]
        if all(output is None for output in replaced):  # it would only pass on its input
            return stream
        where = [output.where for output in replaced if isinstance(output, ZeroAt)]
        if clean and len(where) == len(replaced) and all(mask is where[0] for mask in where):
            # Ablated tokens pass on their input, the others their clean output.
            return torch.where(where[0].to(stream.device)[..., None], stream, self.block_outputs[block])
        patched = any((block, kind) in instead for kind in (*kinds, "heads", "post"))
        with self._patched(lambda: block, instead if patched else {}):
            if args is None:
                return output_tensor(module(hidden_states=stream, **kwargs)).to(stream.device)
            return output_tensor(module(stream, *args, **kwargs)).to(stream.device)

    def _run_whole(self, start: int, stream: Tensor, instead: Instead, edit: Edit, see: See) -> Tensor:
        """Make the same changes inside a pass through the whole model."""
        block = -1  # that runs now
        entered: Tensor = stream
        left: Tensor | None = None  # the running block's output, where the final norm follows it
        final: Tensor = stream

        def enter(value: Tensor, at_norm: bool) -> Tensor | None:
            nonlocal block, entered, left, final
            there, value = value.device, value.to(stream.device)
            if at_norm and block + 1 < len(self.layers):
                left = value.clone() if block in self._normed else None
                return None
            block += 1
            if block > start and see is not None:
                see(block - 1, entered, value.clone() if left is None else left)
            left = None
            if block == start:
                value = stream.clone()
            elif block > start and edit is not None:
                value = edit(block, value)
            entered = value.clone()
            if at_norm:
                final = value
            return value.to(there) if block >= start else None

        rows = torch.zeros(len(self.ids), dtype=torch.long, device=self.ids.device)
        with ExitStack() as stack:
            for point in {point.module: point for point in self.architecture.blocks}.values():
                stack.enter_context(hook(point, lambda a, k, x: enter(x, False)))
            stack.enter_context(hook(self.architecture.stream_out, lambda a, k, x: enter(x, True)))
            stack.enter_context(only_at(self.architecture.unembed, rows))
            stack.enter_context(self._patched(lambda: block, instead))
            self.architecture.logits(self.ids, self.mask)
        return final

    @contextmanager
    def _patched(self, running: Callable[[], int], instead: Instead) -> Iterator[None]:
        """Replace sublayers' outputs within the context; `running` gives the block that runs."""

        def replace(kind: str, args: Any, kwargs: Any, value: Tensor) -> Tensor | None:
            if (running(), kind) not in instead:
                return None
            patch = instead[running(), kind]
            if patch is None:
                return torch.zeros_like(value)
            # OPT's MLP works on [row·token, d].
            changed = patch(value.reshape(*self.ids.shape, -1).to(self.ids.device))
            return None if changed is None else changed.reshape(value.shape).to(value.device)

        wanted = {(self.layers[block][0], kind) for block, kind in instead}
        with ExitStack() as stack:
            for sublayer in self.architecture.sublayers:
                places: dict[str, HookPoint | None] = {sublayer.kind: sublayer.hook_point}
                if sublayer.kind == "attn" and sublayer.output_map is not None:
                    places |= {"heads": sublayer.output_map.hook_point, "post": sublayer.output_map.post_hook_point}
                for place, point in places.items():
                    if point is not None and (sublayer.layer, place) in wanted:
                        stack.enter_context(hook(point, partial(replace, place)))
            yield


def logits_of(architecture: Architecture, normed: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
    """Compute the model's logits from vectors after its final norm, in float32 or wider."""
    return upcast(architecture.transform(architecture.unembed(normed[:, None])[:, 0])).to(normed.device)
