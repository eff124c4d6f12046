"""One forward pass, and only the wanted activations at the wanted positions.

ids   : long [row, token], right-padded     mask : long [row, token], 1 on real tokens
at    : long [row], the wanted position     every captured activation: float32 [row, width]
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Unit
from ..errors import InputError
from .architecture import HALF, Architecture, HookPoint, Sublayer

UNNAMED = (
    "something that is no component (a hook, a wrapped module, a recurrent or linear-attention sublayer) writes to its "
    "residual stream"
)
# Modes and hooks are put on the user's own modules: two threads at once would take them for one another's.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True, eq=False)
class SublayerOutput:
    """What one use of one sublayer wrote, all `[row, …]`.

    `wrote` is the write itself; where it is cut into parts, `values` are theirs before the output map
    and `post` is the input, or the statistic (one number a row), of the norm behind that map.
    """

    write: Sublayer
    wrote: Float[Tensor, "row d"]
    values: Float[Tensor, "row part"] | None = None
    post: Float[Tensor, "row _"] | None = None

    def rows(self, part: slice | Tensor) -> SublayerOutput:
        """The same for some rows."""
        values, post = (None if x is None else x[part] for x in (self.values, self.post))
        return SublayerOutput(self.write, self.wrote[part], values, post)


@dataclass(frozen=True, eq=False)
class Activations:
    """One forward pass at the wanted positions, in float32 or wider, on the model's device.

    `logits` are the model's own answer, `unembedded` what its unembedding returned, before any
    multiplier or soft-cap; both `[row, vocabulary]`, or `[prompt, vocabulary]` after `run_whole`.
    `dtype` and `answer_dtype` are the precisions in which the stream and the unembedding's output came.
    `norms` tells where the stream itself passed the final norm and went on from there, as between the loops
    of a looped model: after how many firings, and the norm's statistic `[row]`.
    """

    embed: Float[Tensor, "row d"]
    pos_embed: Float[Tensor, "row d"] | None
    firings: tuple[SublayerOutput, ...]
    final: Float[Tensor, "row d"]
    unembedded: Float[Tensor, "row v"]
    logits: Float[Tensor, "row v"]
    dtype: torch.dtype
    answer_dtype: torch.dtype
    norms: tuple[tuple[int, Float[Tensor, " row"]], ...] = ()

    @property
    def repeats(self) -> list[int | None]:
        """The how-manieth use of its layer each firing is, from 1; None for a layer that is used once."""
        places = [(firing.write.kind, firing.write.layer) for firing in self.firings]
        often, seen = Counter(places), Counter[tuple[str, int]]()
        repeats: list[int | None] = []
        for place in places:
            seen[place] += 1
            repeats.append(seen[place] if often[place] > 1 else None)
        return repeats

    def onward(
        self, stream: Float[Tensor, "row d"], firings: int, architecture: Architecture
    ) -> Float[Tensor, "row d"]:
        """The stream after so many firings as it goes on: as it is, or as the norm returns it that it passes there."""
        return architecture.norm(stream) if any(after == firings for after, _ in self.norms) else stream

    def carried(self, architecture: Architecture) -> Activations:
        """The same with every write as it stands in the final stream.

        A norm that the stream passes is, at its own statistic, a matrix: what was written before it counts times
        gain / statistic of every norm since, and all of it still sums to the stream.
        """
        if not self.norms:
            return self

        def since(firings: int) -> tuple[int, Float[Tensor, " row"], Float[Tensor, "row d"]]:
            passed = [statistic.double() for after, statistic in self.norms if after >= firings]
            divisor = torch.stack([torch.ones_like(self.norms[0][1], dtype=torch.float64), *passed]).prod(0)
            gain = architecture.norm.gain.to(divisor.device) ** len(passed)
            return len(passed), divisor, gain / divisor[:, None]

        def carry(firing: SublayerOutput, number: int) -> SublayerOutput:
            times, divisor, factor = since(number + 1)
            if not times:
                return firing
            if firing.values is None:
                return replace(firing, wrote=firing.wrote * factor)
            write = architecture.behind(firing.write, times)
            split = firing.write.split
            if split is not None and split.post is not None and firing.post is not None:
                divisor = divisor * split.post.divisor(firing.post)
            return SublayerOutput(write, firing.wrote * factor, firing.values, divisor[:, None])

        _, _, factor = since(0)
        firings = tuple(carry(firing, number) for number, firing in enumerate(self.firings))
        pos_embed = None if self.pos_embed is None else self.pos_embed * factor
        return replace(self, embed=self.embed * factor, pos_embed=pos_embed, firings=firings, norms=())

    def streams(self, part: slice | Tensor) -> Activations:
        """What some positions wrote, with the answers as they are."""
        pos_embed = None if self.pos_embed is None else self.pos_embed[part]
        firings = tuple(firing.rows(part) for firing in self.firings)
        norms = tuple((after, statistic[part]) for after, statistic in self.norms)
        return replace(
            self, embed=self.embed[part], pos_embed=pos_embed, firings=firings, final=self.final[part], norms=norms
        )

    def rows(self, part: slice) -> Activations:
        """The same for some rows."""
        return replace(self.streams(part), unembedded=self.unembedded[part], logits=self.logits[part])


def run(
    architecture: Architecture,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    at: Int[Tensor, " row"],
    unit: Unit = "sublayer",
) -> Activations:
    """Run the model once. The unembedding sees only the wanted positions, whatever the family.

    `unit`: also read the values of the heads or neurons. Raises InputError where the model does not run
    the way its anatomy says, and where a half-precision stream moves by more than its additions can
    round: what they do lose is no gap, so it must be bounded here.
    """
    return _run(architecture, ids, mask, torch.arange(len(ids)), at, at, unit)


def run_whole(
    architecture: Architecture,
    ids: Int[Tensor, "prompt token"],
    mask: Int[Tensor, "prompt token"],
    unit: Unit = "sublayer",
) -> Activations:
    """Run the model once and read every real token, one prompt's after another's.

    The unembedding is shown each prompt's last token only, so logits are not formed. Raises as `run`.
    """
    prompt, at = mask.nonzero(as_tuple=True)
    return _run(architecture, ids, mask, prompt, at, mask.sum(1) - 1, unit)


def _run(
    architecture: Architecture, ids: Tensor, mask: Tensor, prompt: Tensor, at: Tensor, answer_at: Tensor, unit: Unit
) -> Activations:
    half = architecture.dtype in HALF
    taps = architecture.taps(unit) + (list(architecture.blocks) if half else [])
    watched = _watch(architecture, taps, ids, mask, prompt, at, answer_at)
    if half and (place := _break(architecture, watched)) is not None:
        raise InputError(f"this model cannot be decomposed: {UNNAMED} {place}.")
    return assemble(architecture, watched, unit)


def first_break(architecture: Architecture, ids: Sequence[int]) -> str | None:
    """Where, at the last token of a prompt, the stream stops being the sum of what was written so far."""
    token, mask = pad([ids])
    taps = [*architecture.taps(), *architecture.blocks]
    at = torch.tensor([len(ids) - 1])
    return _break(architecture, _watch(architecture, taps, token, mask, torch.tensor([0]), at, at))


@dataclass(frozen=True, eq=False)
class RawCapture:
    """What every tap showed (by its id, once for every use), in which order, and the two answers."""

    seen: dict[int, list[Tensor]]
    order: list[int]
    unembedded: Float[Tensor, "row v"]
    logits: Float[Tensor, "row v"]
    dtype: torch.dtype
    answer_dtype: torch.dtype


def order_of_repeats(architecture: Architecture) -> list[tuple[Sublayer, int | None]]:
    """The writes of a pass of one token as they happen, each with the how-manieth use of its layer it is."""
    with inference_mode_for(architecture):
        done = run(architecture, *pad([[0]]), torch.tensor([0]))
    return list(zip((firing.write for firing in done.firings), done.repeats, strict=True))


def _break(architecture: Architecture, watched: RawCapture) -> str | None:
    """Where the stream moved by more than the rounding of its additions, element by element."""
    blocks = {id(tap): number for number, tap in enumerate(architecture.blocks)}
    writes = {id(write.tap): write for write in architecture.writes}
    waiting = {tap: list(values) for tap, values in watched.seen.items()}
    # Two additions a block round twice by half an eps; single precision also sums in other orders.
    eps = torch.finfo(watched.dtype).eps * (2 if watched.dtype in HALF else 64)
    stream, since = watched.seen[id(architecture.stream_in)][0], "its embedding"
    size = stream.abs()
    normed: Tensor | None = None  # the stream behind the final norm, where it was just there
    first = watched.order.index(id(architecture.stream_in))
    for place, tap in enumerate(watched.order):
        value = waiting[tap].pop(0)
        if place < first:  # an embedding may be normed by the final norm, too
            continue
        if tap in writes:
            stream = stream + value * writes[tap].scale
            size = size + (value * writes[tap].scale).abs()
        elif tap in blocks or tap == id(architecture.stream_out):
            floor = torch.finfo(watched.dtype).tiny + 1e-6 * float(value.abs().max())
            if normed is not None and (normed - value).norm() < (stream - value).norm():
                stream, size = normed, 4 * normed.abs()  # its product with the gain rounds, too
            if bool(((stream - value).abs() > eps * size + floor).any()):
                return f"between {since} and " + (
                    f"the input of block {blocks[tap]}" if tap in blocks else "the final norm"
                )
            stream, size = value, value.abs()
            since = f"the input of block {blocks[tap]}" if tap in blocks else "the final norm between its loops"
            normed = architecture.norm(value) if tap == id(architecture.stream_out) else None
    return None


def _watch(
    architecture: Architecture,
    taps: Sequence[HookPoint],
    ids: Tensor,
    mask: Tensor,
    rows: Tensor,
    at: Tensor,
    answer_at: Tensor,
) -> RawCapture:
    """Run the model and keep what the taps show at the positions `at` of the prompts `rows`.

    The unembedding sees one position of each prompt, `answer_at`.
    """
    ids, mask, rows, at, answer_at = (x.to(architecture.device) for x in (ids, mask, rows, at, answer_at))
    prompts, length, thread = torch.arange(len(ids), device=architecture.device), ids.shape[1], threading.get_ident()
    seen: dict[int, list[Tensor]] = {}
    order: list[int] = []
    dtypes: dict[int, torch.dtype] = {}

    def gather(x: Tensor) -> Tensor:
        if x.dim() == 2 and len(x) == len(ids) * length:  # OPT's MLP works on [row·token, d]
            x = x.view(len(ids), length, -1)
        # Indexing copies, so that a model which adds in place later cannot change what was read.
        # Learned positions may come as one row for all.
        x = x[rows.to(x.device), at.to(x.device)] if len(x) == len(ids) else x[0, at.to(x.device)]
        return upcast(x.flatten(1)).to(architecture.device)

    def keep(tap: HookPoint) -> Callable[[Tensor], None]:
        def store(x: Tensor) -> None:
            if threading.get_ident() == thread:
                seen.setdefault(id(tap), []).append(gather(x))
                order.append(id(tap))
                dtypes[id(tap)] = x.dtype

        return store

    def only_wanted(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        if threading.get_ident() != thread:  # somebody else's pass through the same model
            return args
        return (x[prompts.to(x.device), answer_at.to(x.device)][:, None], *args[1:])

    said: list[Tensor] = []
    with ExitStack() as stack:
        for tap in taps:
            stack.callback(_attach(tap, keep(tap)))
        stack.callback(architecture.unembed.register_forward_pre_hook(only_wanted).remove)
        output = HookPoint(architecture.unembed)
        stack.callback(_attach(output, lambda x: said.append(x[:, 0]) if threading.get_ident() == thread else None))
        logits = upcast(architecture.logits(ids, mask)[:, 0]).to(architecture.device)
    if not said or id(architecture.stream_out) not in seen:
        raise InputError(
            "this model's final norm or unembedding was never reached in its forward pass (replaced since it was "
            "loaded, or fused): load it again, or load the plain model."
        )
    unembedded, dtype = upcast(said[-1]).to(architecture.device), dtypes[id(architecture.stream_out)]
    return RawCapture(seen, order, unembedded, logits, dtype, said[-1].dtype)


def assemble(architecture: Architecture, watched: RawCapture, unit: Unit) -> Activations:
    """A `Pass` from what was watched. Raises InputError for a place that was never reached."""
    seen = watched.seen

    def shown(tap: HookPoint, what: str) -> list[Tensor]:
        if id(tap) not in seen:
            raise InputError(
                f"the {what} of this model was never reached in its forward pass (a fused or rewritten forward "
                "goes around it), so its components cannot be read: load the plain model."
            )
        return seen[id(tap)]

    pos_embed = None if architecture.pos_embed is None else shown(architecture.pos_embed, "position embedding")[0]
    embed = shown(architecture.stream_in, "input of the first block")[0]
    if pos_embed is not None:
        embed = embed - pos_embed
    for write in architecture.writes:
        shown(write.tap, f"{'attention' if write.kind == 'attn' else 'MLP'} of layer {write.layer}")
    finals = shown(architecture.stream_out, "input of the final norm")
    firings = tuple(_firings(architecture, seen, watched.order, unit))
    norms = tuple(_norms(architecture, finals, firings, watched.order)) if len(finals) > 1 else ()
    answers = (watched.unembedded, watched.logits, watched.dtype, watched.answer_dtype)
    return Activations(embed, pos_embed, firings, finals[-1], *answers, norms)


def _norms(
    architecture: Architecture, finals: Sequence[Tensor], firings: Sequence[SublayerOutput], order: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, " row"]]]:
    """Where the stream went on from behind the final norm: `Pass.norms`.

    Being asked is not enough: a model may read its stream out on the way. What was written from there to the
    norm's next input tells whether the stream went on as it was, or as the norm returned it.
    """
    writes = {id(write.tap) for write in architecture.writes}
    # Before the first block an embedding may be normed by it, too: what entered that block is the embedding here.
    first = order.index(id(architecture.stream_in))
    asked = [place for place, tap in enumerate(order) if tap == id(architecture.stream_out)]
    finals = finals[sum(place < first for place in asked) :]
    after = [sum(tap in writes for tap in order[:place]) for place in asked if place > first]
    for here, then, start, stop in zip(finals, finals[1:], after, after[1:], strict=False):
        went_on = then - torch.stack([torch.zeros_like(then), *(f.wrote for f in firings[start:stop])]).sum(0)
        normed = architecture.norm(here)
        if (went_on - normed).norm() < (went_on - here).norm():
            if architecture.norm.centered or architecture.norm.bias is not None:
                raise InputError(
                    "this model's stream passes a LayerNorm on its way (between its loops), whose bias no component "
                    "wrote: it cannot be decomposed."
                )
            yield start, architecture.norm.statistic(here)


def _firings(
    architecture: Architecture, seen: dict[int, list[Tensor]], order: Sequence[int], unit: Unit
) -> Iterator[SublayerOutput]:
    """The firings in stream order: that of `writes`, unless layers are reused; then as they happened."""
    by_tap = {id(write.tap): write for write in architecture.writes}
    reused = any(len(seen[tap]) > 1 for tap in (*by_tap, id(architecture.stream_out)))
    sequence = [tap for tap in order if tap in by_tap] if reused else list(by_tap)
    count: dict[int, int] = {}
    for tap in sequence:
        write, repeat = by_tap[tap], count.setdefault(tap, 0)
        count[tap] += 1
        wrote = seen[tap][repeat] if write.scale == 1.0 else seen[tap][repeat] * write.scale
        split = write.split if write.is_cut(unit) else None
        if split is None:
            yield SublayerOutput(write, wrote)
        else:
            post = None if split.post_tap is None else seen[id(split.post_tap)][repeat]
            yield SublayerOutput(write, wrote, seen[id(split.tap)][repeat], post)


def _attach(tap: HookPoint, store: Callable[[Tensor], None]) -> Callable[[], None]:
    """Watch one tap; the returned function stops watching. What passes through is not changed."""

    def first(value: Any) -> Tensor:
        return value[0] if isinstance(value, tuple | list) else value

    def on_output(module: nn.Module, args: Any, output: Any) -> None:
        store(first(output))

    def on_input(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        store(first(args) if args else kwargs["hidden_states"])

    if tap.side == "out":
        return tap.module.register_forward_hook(on_output).remove
    return tap.module.register_forward_pre_hook(on_input, with_kwargs=True).remove


@contextmanager
def inference_mode_for(architecture: Architecture) -> Iterator[None]:
    """Evaluation mode without gradients or autocast; every module's own mode is put back afterwards."""
    with _ONE_AT_A_TIME:
        yield from _quiet(architecture)


def _quiet(architecture: Architecture) -> Iterator[None]:
    # A bridge keeps the model it wraps outside its own modules.
    roots = [architecture.root, *filter(None, [getattr(architecture.root, "original_model", None)])]
    training = {id(module): module for root in roots for module in root.modules() if module.training}
    try:
        architecture.root.eval()
        # Under a user's autocast, products would lose digits that nothing gives back.
        with torch.inference_mode(), torch.autocast(architecture.device.type, enabled=False):
            yield
    finally:
        for module in training.values():
            module.training = True


def upcast(x: Tensor) -> Tensor:
    """Half precisions to float32 before anything is added up; wider ones as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def batches(lengths: Sequence[int], batch_tokens: int, switch: int | None = None) -> list[list[int]]:
    """Row numbers cut into batches of similar length, at most `batch_tokens` padded tokens in each.

    Longest first, so that memory runs out at the start or not at all. A row longer than
    `batch_tokens` is a batch by itself. Rows beyond `switch` tokens never share a batch with shorter ones.

    >>> batches([3, 9, 8, 2], batch_tokens=20)
    [[1, 2], [0, 3]]
    """
    cut: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        longest = lengths[cut[-1][0]] if cut else 0
        alike = switch is None or (longest > switch) == (lengths[row] > switch)
        if cut and alike and (len(cut[-1]) + 1) * longest <= batch_tokens:
            cut[-1].append(row)
        else:
            cut.append([row])
    return cut


def pad(prompts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Ids and mask, padded on the right: there a causal model needs no position ids and sees no padding."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.as_tensor(prompt)
        mask[row, : len(prompt)] = 1
    return ids, mask
