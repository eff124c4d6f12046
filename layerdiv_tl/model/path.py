"""The residual path of a model: one pass records what its sublayers write, a second runs the path alone on that.

The path is everything between the writes and the logits: additions, norms, gates, mixing, the unembedding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from ..errors import InputError
from .batches import context_of, forget_lengths, rope_lengths, window_of
from .frozen import HALF, Frozen
from .passes import CutOf, Pass, Replay
from .patching import Keep, add_edits, frozen, hooks, modules_of, one_at_a_time, silent, swapped, tensor, watch_edits
from .writers import Writer


class Path:
    """A model's writers, and how it goes from their writes to its logits. Made by `find_path`; used inside `session()`.

    Attributes:
        module, unembed, norm: The model, its unembedding, and the last norm that the path passes outside of blocks.
        writers: In the order of their calls.
        by_token: True if no part of the path mixes tokens; then only tokens that are read are recorded and replayed.
        adds: True if the path is a sum of the writes, the final norm and the unembedding.
        dtype, wide: The precision of the stream, and that of the replay.
        context, window: The longest text and the smallest attention window, in tokens; None without one.
        length_switch: The length beyond which positions are computed differently.
        vocabulary, outputs: The number of token ids that it reads, and of those that it has logits of.
        width, read_width: The width of the stream, and of the unembedding's input.
        factor, soft_cap: What turns the unembedding's output into logits.
        constant_axes: The axis of the reads in each constant of a replay.
        calls: The calls of a pass of a few random tokens, `probe_ids`, read at the rows and positions `probe_reads`.
        found_in, names: What it was found in, and the names of modules that were given for it.
        kept, rows: What is computed from weights once; the components at each unit, and the weights that they are of.
    """

    vocabulary: int
    outputs: int
    width: int
    read_width: int
    factor: float
    soft_cap: float | None
    calls: list[tuple[Writer, int]]
    probe_ids: Tensor
    probe_reads: tuple[Tensor, Tensor]

    def __init__(self, module: nn.Module, unembed: nn.Module, writers: Sequence[Writer]) -> None:
        self.module, self.unembed, self.writers = module, unembed, list(writers)
        self.norm: nn.Module | None = None
        config: Any = self.module.config.get_text_config()  # type: ignore[operator, union-attr]
        self.context, self.window = context_of(config), window_of(config)
        self.length_switch, self.is_dynamic = rope_lengths(config)
        self.context = None if self.is_dynamic else self.context
        self.by_token, self.adds = True, False
        self.found_in: Any = None
        self.names: Any = None
        self.kept: dict[str, Any] = {}
        self.constant_axes: list[int] = []
        self.rows: dict[str, tuple[Any, tuple[Component, ...]]] = {}
        first = next(self.module.parameters())
        self.dtype, self.device = first.dtype, device_of(self.writers[0].owner, first.device)
        self.wide = torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def name(self) -> str:
        """The name of the model's class."""
        module = self.module
        return type(getattr(module, "model", module) if type(module).__name__ == "Hooked" else module).__name__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(None), ()  # a copy of its model, or a file of it, has none

    def run(self, ids: Tensor, mask: Tensor | None = None) -> Any:
        """Call the model."""
        if self.is_dynamic:
            forget_lengths(self.module)
        mask = None if mask is None else mask.to(self.device)
        return self.module(input_ids=ids.to(self.device), attention_mask=mask, use_cache=False)

    def logits(
        self,
        ids: Int[Tensor, "row token"],
        mask: Int[Tensor, "row token"] | None,
        at: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "row token v"]:
        """Compute the model's logits at every token, or `[n, 1, v]` at some rows and positions."""
        with hooks() as add:
            if at is not None:
                row, position = (x.cpu() for x in at)
                add(self.unembed.register_forward_pre_hook(lambda m, a: (a[0][row, position][:, None], *a[1:])))
            return self._checked(logits_in(self.run(ids, mask)), ids, mask)

    @contextmanager
    def session(self) -> Iterator[None]:
        """The frame of all passes: evaluation mode, one thread at a time, no graph but where one is asked for."""
        with one_at_a_time(self.module), torch.inference_mode(False), torch.no_grad():
            yield

    def check_gradients(self) -> None:
        """Raise InputError for weights that no graph can hold."""
        if any(p.is_inference() and not p.is_meta for p in self.module.parameters()):  # meta ones are offloaded
            raise InputError(
                f"{self.name} was made inside torch.inference_mode(), whose weights allow no gradients: make it "
                "outside, or give copy.deepcopy(model)."
            )

    def record(
        self,
        ids: Int[Tensor, "row token"],
        mask: Int[Tensor, "row token"] | None,
        row: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        cut_of: CutOf = lambda writer: None,
        whole: bool = False,
    ) -> Pass:
        """Run the model without a graph, and keep what is needed of the reads at `(row, position)`.

        With `whole`, all tokens of their rows are kept, also where the path needs only the one that is read.
        """
        keep = Keep(ids.shape, row.to(self.device), position.to(self.device), self.by_token and not whole)
        kept_mask = None if mask is None else keep(mask.to(self.device))
        seen = Pass(keep(ids.to(self.device)), keep.position * (not keep.by_token), kept_mask)
        # Logits of all tokens would be most of the memory; but a user's hook there may tell tokens apart.
        cuts = not (self.unembed._forward_hooks or self.unembed._forward_pre_hooks)

        def select(module: nn.Module, args: Any) -> Any:
            x = keep.at_reads(args[0])
            self.read_width = x.shape[-1]
            return (x, *args[1:]) if cuts else None

        def at_reads(x: Tensor) -> Tensor:
            return x[:, -1] if cuts else keep.at_reads(x)[:, 0]

        with torch.inference_mode(), hooks() as add:
            for module in self._edited(seen):
                watch_edits(module, keep.edit, seen.edits, add)
            for writer in self.writers:
                _listen(writer, cut_of(writer), keep, seen, add)
            if self.norm is not None:
                add(self.norm.register_forward_pre_hook(lambda m, a: seen.finals.append(keep(a[0]))))
            add(self.unembed.register_forward_pre_hook(select))
            add(self.unembed.register_forward_hook(lambda m, a, out: setattr(seen, "unembedded", at_reads(out))))
            output = self.run(ids, mask)
            seen.logits = self._checked(at_reads(logits_in(output)), ids, mask)
        return seen

    def _checked(self, logits: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return a pass's logits. Raises InputError where they are not finite: a second pass finds the first module."""
        if bool(logits.sum(dtype=torch.float32).isfinite()):  # a number that is not shows in the sum, and sooner
            return logits
        places: list[str] = []

        def look(name: str, module: nn.Module, args: Any, output: Any) -> None:
            x = tensor(output)
            if isinstance(x, Tensor) and not bool(x.isfinite().all()):
                places.append(name or "the model itself")

        with hooks() as add:
            for name, module in self.module.named_modules():
                add(module.register_forward_hook(partial(look, name)))
            self.run(ids, mask)
        raise self.not_finite(next(iter(places), "its logits"))

    def not_finite(self, place: str) -> InputError:
        """The error for logits that are not finite, where a module or component gave the first such number."""
        return InputError(
            f"{self.name} gives logits that are not finite, first in {place} ({self.dtype}): weights or a hook there "
            "are broken, it overflows in this precision (load it with dtype='float32'), or a sliding window meets "
            "padding (batch_tokens=1)."
        )

    def _edited(self, seen: Pass) -> list[nn.Module]:
        """Modules on the path with hooks of the user; keeps the writers that have some inside."""
        hooked = [m for m in modules_of(self.module) if m._forward_hooks or m._forward_pre_hooks]
        inside = set(self.unembed.modules())  # the sum shows what is changed there
        for writer in self.writers if hooked else []:
            own: set[nn.Module] = set()
            for module in dict.fromkeys((writer.owner, writer.place, *writer.maps)):
                own |= set(module.modules())
            if writer.place is not writer.owner and writer.place in set(writer.owner.modules()):
                own.discard(writer.owner)  # it does more behind its write
            if own & set(hooked):
                seen.hooked.add(writer)
            inside |= own
        return [m for m in hooked if m not in inside]

    def replay(
        self, seen: Pass, matrices: bool = False, observe: Callable[[Callable[[Any], None]], None] | None = None
    ) -> Replay:
        """Run the path alone: every sublayer returns what it wrote, and users' hooks are silent.

        With `matrices`, the graph includes those that the path passes. `observe` adds hooks to the run.
        """
        mode = Frozen(self.wide)
        adds = self.adds and not seen.edits and not matrices and observe is None

        def leaf(x: Tensor) -> Tensor:
            return x.detach().to(self.wide).clone().requires_grad_()

        writes = {call: leaf(x) for call, x in zip(seen.calls, seen.writes, strict=True)}
        edits = {key: [leaf(x) for x in found] for key, found in seen.edits.items()}
        count: dict[Writer, int] = defaultdict(int)
        rounding: list[Tensor] = []
        at_norm: list[tuple[Tensor, Tensor]] = []
        ends: list[Tensor] = []
        recorded = iter(seen.finals if self.dtype in HALF else [])

        def returns(writer: Writer) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                x = writes[writer, count[writer]].clone()  # a model may add in place
                count[writer] += 1
                return writer.form.of(x)

            return forward

        def enter_norm(module: nn.Module, args: Any) -> Any:
            x = args[0]
            known = next(recorded, None)
            if known is not None:  # the norm reads what the model's own additions gave
                rounding.append(leaf(known.to(x.device).to(x.dtype).view_as(x) - x.detach()))
                x = x + rounding[-1]
            return (x, *args[1:])

        def unembed(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            ends.append(x)
            return x

        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            root = self.norm if adds and self.norm is not None else self.module
            stack.enter_context(silent(root))
            stack.enter_context(frozen(root, matrices))
            add = stack.enter_context(hooks())
            if self.norm is not None:
                add(self.norm.register_forward_pre_hook(enter_norm))
                add(self.norm.register_forward_hook(lambda m, a, out: at_norm.append((a[0], tensor(out)))))
            if adds:
                stack.enter_context(mode)
                device = device_of(root, self.device)
                ends.append(tensor(root(sum(x.to(device) for x in writes.values()))))
            else:
                for writer in self.writers:
                    stack.enter_context(swapped(writer.place, "forward", returns(writer)))
                self._silence_sublayers(stack, seen.ids.shape, self.wide)
                stack.enter_context(swapped(self.unembed, "forward", unembed))
                for (module, side), found in edits.items():
                    add_edits(module, side, iter(found), add)
                if observe is not None:
                    observe(add)
                stack.enter_context(mode)
                self.run(seen.ids, None if self.by_token else seen.mask)
            end = ends[-1]
            position = seen.position.to(end.device, copy=True)  # no inference tensor
            normed = end[torch.arange(len(end), device=end.device), position]
        final, after_norm = at_norm[-1] if at_norm else (end, end)
        added = [x for found in edits.values() for x in found]
        axes = [0] * len(mode.constants) if adds else self.constant_axes
        return Replay(list(writes.values()), mode.constants, axes, added, rounding, final, after_norm, normed, adds)

    def unembed_rows(self, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows of the unembedding `[*ids, d]`, as it stores them, and biases `[*ids]` or None; all for None."""
        module = self.unembed
        weight: Any = getattr(module, "W_U", None)
        bias: Any = getattr(module, "b_U", None)
        weight = getattr(module, "weight", None) if weight is None else weight.T
        bias = getattr(module, "bias", None) if bias is None else bias
        is_plain = isinstance(weight, Tensor) and weight.dim() == 2 and not weight.is_meta
        if not is_plain or hasattr(weight, "__tensor_flatten__") or hasattr(module, "base_layer"):
            weight, bias = self._matrix_of(module)  # adapted, quantized or offloaded: what it does is its matrix
        some = slice(None) if ids is None else ids.to(weight.device)
        return weight.detach()[some], None if bias is None else bias.detach()[some]

    def _matrix_of(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.no_grad(), silent(module):
            unit = torch.eye(self.read_width, dtype=self.dtype, device=self.device)
            bias = module(torch.zeros_like(unit[:1]))[0]
            return (module(unit) - bias).T, bias

    def read_out(self, stream: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n v"]]:
        """Run the model's own code from the final norm on: the unembedding's output and the logits of final streams."""
        if self.adds and self.norm is not None and self.factor == 1 and self.soft_cap is None:
            with torch.inference_mode(not stream.requires_grad), silent(self.norm), silent(self.unembed):
                logits = self.unembed(tensor(self.norm(stream.to(self.dtype))))
            return logits, logits
        x, shown = stream.to(self.dtype)[:, None], list[Tensor]()
        end = self.unembed if self.norm is None else self.norm
        is_path = stream.requires_grad
        with torch.inference_mode(not is_path), torch.set_grad_enabled(is_path), ExitStack() as stack:
            stack.enter_context(silent(self.module))
            add = stack.enter_context(hooks())
            for writer in self.writers:
                nothing = torch.zeros(len(x), 1, writer.form.width, dtype=self.dtype, device=x.device)
                stack.enter_context(swapped(writer.place, "forward", _constantly(writer.form.of(nothing))))
            self._silence_sublayers(stack, (len(x), 1), self.dtype)
            add(end.register_forward_pre_hook(lambda m, a: (x.to(a[0].device), *a[1:])))
            add(self.unembed.register_forward_hook(lambda m, a, out: shown.append(out)))
            output = self.run(torch.zeros(len(x), 1, dtype=torch.long))
        return shown[-1][:, -1], logits_in(output)[:, -1]

    def normed(self, streams: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Apply the final norm to streams, in their precision."""
        if self.norm is None:
            return streams
        with torch.no_grad(), silent(self.norm), Frozen(streams.dtype):
            return tensor(self.norm(streams))

    def _silence_sublayers(self, stack: ExitStack, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Let sublayers with a norm between them and the stream return zeros, as the norm's output is known."""
        for writer in self.writers:
            if writer.behind is not None:
                module, form = writer.behind
                nothing = torch.zeros(*shape, form.width, dtype=dtype, device=self.device)
                stack.enter_context(swapped(module, "forward", _constantly(form.of(nothing))))


def _listen(writer: Writer, cut: str | None, keep: Keep, seen: Pass, add: Callable[[Any], None]) -> None:
    """Record a writer's calls: what it wrote, and what the module that is cut received."""
    received: list[Any] = []
    sources: list[Any] = [] if cut is None else [writer.owner if cut in ("expert", "input") else writer.source]
    if cut == "expert" and writer.experts is not writer.owner:
        sources.append(writer.experts)

    def receive(module: nn.Module, args: Any, kwargs: Any) -> None:
        if cut == "expert":
            received.append(keep.call(args, kwargs))
        else:
            received.append(keep(next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))).flatten(2))

    def write(module: nn.Module, args: Any, output: Any) -> None:
        found: Any = None
        if received and len(received) == len(sources):  # experts may not have been called
            found = (received[0], received[-1]) if cut == "expert" else received[0]
        seen.wrote(writer, keep(tensor(output)), found)
        received.clear()

    for module in sources:
        if type(module).__name__ == "HookPoint":  # behind the user's hooks on it
            add(module.register_forward_hook(lambda m, args, output: receive(m, (output,), {})))
        else:
            add(module.register_forward_pre_hook(receive, with_kwargs=True))
    add(writer.place.register_forward_hook(write))


def _constantly(output: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: output


def device_of(module: nn.Module, default: torch.device) -> torch.device:
    """The device of a module's input, which Accelerate's hook holds for an offloaded one."""
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    parameter = next(module.parameters(), None)
    known = default if parameter is None else parameter.device
    return torch.device("cpu") if known.type == "meta" else known


def logits_in(output: Any) -> Tensor:
    """The logits that a model returned."""
    return output if isinstance(output, Tensor) else output.logits
