"""One pass, all its positions, the whole vocabulary: every component's numbers, and no table of logits.

What is asked of a component's logit vector u_i are inner products (with the next token, with the mean of
all components, with the model's distribution) and its size. A sublayer answers with its write z_i, a
head with the few values before its output map, a neuron with one number (MATHS 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..components import Component, Unit
from ..model.architecture import HALF, Architecture, OutputMap
from ..model.batches import upcast
from ..model.capture import Activations, SublayerOutput
from ..model.looped import to_final_stream
from .vocab_gram import Cut, Vocabulary, cut_of, sizes_of, through

# Numbers of one table (positions × rows × width, or positions × vocabulary) that are held at a time.
NUMBERS = 16_000_000


class Reader:
    """A model's read-out to the whole vocabulary, worked out once for a unit and a precision."""

    def __init__(self, vocabulary: Vocabulary, unit: Unit, wide: torch.dtype) -> None:
        self.architecture, self.unit, self.wide = vocabulary.architecture, unit, wide
        self.vocabulary = vocabulary
        self.cuts: dict[int, Cut] = {}
        self.names: dict[tuple[int, int | None], list[Component]] = {}

    def cut(self, split: OutputMap) -> Cut:
        """The cut of one write, made when it is first met."""
        if id(split) not in self.cuts:
            self.cuts[id(split)] = cut_of(split, self.vocabulary, self.wide)
        return self.cuts[id(split)]

    def components(self, firing: SublayerOutput, repeat: int | None) -> list[Component]:
        """The names of a firing's columns; an MLP has thousands."""
        key = (id(firing.sublayer), repeat)
        if key not in self.names:
            self.names[key] = firing.sublayer.components(self.unit, repeat)
        return self.names[key]

    @cached_property
    def width(self) -> int:
        """How many components there are, every listed block used once: a pass tells more, and costs one."""
        blocks = [id(tap.module) for tap in self.architecture.blocks]
        return len(self.architecture.components(self.unit)) * len(blocks) // len(set(blocks))

    @property
    def step(self) -> int:
        """How many positions are worked on together."""
        streams = (len(self.architecture.sublayers) + 2) * self.architecture.norm.gain.numel()
        return max(1, NUMBERS // max(streams, self.architecture.outputs, self.width))


@dataclass(frozen=True, eq=False)
class Piece:
    """Some columns of a table: whole stream vectors, or the parts of one write, which stand side by side.

    z, columns
        `[position, row, d]` and where the rows stand among the components.
    firing, start, stop, rest
        The write that is cut, where its parts stand, and the column of what none of them wrote.
    scale
        What the norm behind the sublayer divides by, `[position]`.
    """

    z: Tensor | None = None
    columns: tuple[int, ...] = ()
    firing: SublayerOutput | None = None
    start: int = 0
    stop: int = 0
    rest: int | None = None
    scale: Tensor | None = None

    @property
    def split(self) -> OutputMap:
        """How the write is cut."""
        assert self.firing is not None
        assert self.firing.sublayer.output_map is not None
        return self.firing.sublayer.output_map

    @property
    def values(self) -> Tensor:
        """`[position, part, width]`, what lies before the output map."""
        assert self.firing is not None
        assert self.firing.values is not None
        return self.firing.values.unflatten(1, (self.split.count, -1))


@dataclass(frozen=True, eq=False)
class Table:
    """The components of some positions of a pass, ready to be asked.

    Answers are written into `out` tables `[position, component]`, which the caller provides; the column
    of the constant, which is no stream vector, is left to the caller. `missing` `[position]` is what the
    stream holds beyond all that was written, relative to the sum of the writes' sizes.
    """

    reader: Reader
    components: tuple[Component, ...]
    pieces: tuple[Piece, ...]
    sigma: Float[Tensor, " position"]
    final: Float[Tensor, "position d"]
    constant: int | None
    missing: Float[Tensor, " position"]

    def inner(self, queries: Sequence[Float[Tensor, "position d"]], out: Sequence[Tensor]) -> None:
        """z_i · query / σ of every component, a table for every query."""
        asked = torch.stack([query / self.sigma[:, None] for query in queries], 1).to(self.reader.wide)
        for piece in self.pieces:
            if piece.z is not None:
                found = piece.z @ asked.transpose(1, 2)
                for number, table in enumerate(out):
                    table[:, piece.columns] = found[:, :, number].to(table.dtype)
                continue
            split, values = piece.split, piece.values.to(asked.dtype)
            here = asked if piece.scale is None else asked / piece.scale.to(asked)[:, None, None]
            back = through(split, here.transpose(0, 1).flatten(0, 1), split.projection()[0])
            for table, seen in zip(out, back.view(len(out), *values.shape), strict=True):
                into = table[:, piece.start : piece.stop]
                if values.shape[2] > 1:
                    into.copy_(torch.mul(seen, values, out=seen).sum(2))
                elif into.dtype == seen.dtype:
                    torch.mul(seen[:, :, 0], values[:, :, 0], out=into)
                else:
                    into.copy_(seen[:, :, 0] * values[:, :, 0])

    def moments(
        self, means: Float[Tensor, "position component"], sizes: Float[Tensor, "position component"] | None = None
    ) -> None:
        """Each component's logit averaged over the vocabulary, and Σ_v of its squared distance from that."""
        vocabulary = self.reader.vocabulary
        for piece in self.pieces:
            if piece.z is not None:
                # In float64: what all ids have in common is large along some directions, and these cancel.
                mean = piece.z.double() @ vocabulary.mean.to(piece.z.device) / self.sigma[:, None]
                means[:, piece.columns] = mean.to(means.dtype)
                if sizes is not None:
                    size = sizes_of(vocabulary.root, piece.z.flatten(0, 1)).view(mean.shape)
                    sizes[:, piece.columns] = (size / self.sigma[:, None].square()).to(sizes.dtype)
                continue
            cut, values, some = self.reader.cut(piece.split), self._scaled(piece), slice(piece.start, piece.stop)
            if values.shape[2] > 1:
                mean = (piece.values.double() * cut.means.view(values.shape[1:])).sum(2)
                means[:, some] = (mean / self._divisor(piece)[:, None]).to(means.dtype)
                if sizes is None:
                    continue
                seen = torch.bmm(values.transpose(0, 1), cut.roots.transpose(1, 2))
                sizes[:, some] = seen.square_().sum(2).T.to(sizes.dtype)
            elif means.dtype == values.dtype and sizes is not None:
                torch.mul(values[:, :, 0], cut.means.to(values.dtype), out=means[:, some])
                torch.mul(values[:, :, 0], cut.roots[:, 0, 0], out=sizes[:, some]).square_()
            else:
                means[:, some] = values[:, :, 0] * cut.means
                if sizes is not None:
                    sizes[:, some] = (values[:, :, 0] * cut.roots[:, 0, 0]).square()

    def log_partitions(self, tau: float, out: Float[Tensor, "position component"]) -> None:
        """log Σ_v exp(τ (u_i(v) − its mean)), a few thousand ids at a time; the constant's too."""
        out.fill_(-torch.inf)
        scale = (tau / self.sigma).to(self.reader.wide)
        # For a few positions parts are cheaper as stream vectors than all ids behind every output map.
        spread = {
            id(piece): _spread(piece).to(self.reader.wide)
            for piece in self.pieces
            if piece.z is None and len(self.sigma) < piece.values.shape[2]
        }
        for _, rows, constant in self.reader.vocabulary.chunks(self.reader.wide):
            for piece in self.pieces:
                z = piece.z if piece.z is not None else spread.get(id(piece))
                if z is not None:
                    columns = list(piece.columns) or list(range(piece.start, piece.stop))
                    found = self._whole(z, rows, scale)
                else:
                    split, values = piece.split, self._scaled(piece) * tau
                    back = through(split, rows, split.projection()[0]).unflatten(1, (split.count, -1))
                    logits = torch.bmm(values.transpose(0, 1), back.permute(1, 2, 0))
                    found, columns = logits.logsumexp(2).T, list(range(piece.start, piece.stop))
                out[:, columns] = torch.logaddexp(out[:, columns], found.double())
            if self.constant is not None:
                found = (tau * constant.double()).logsumexp(0)
                out[:, self.constant] = torch.logaddexp(out[:, self.constant], found)

    def vectors(self, columns: Sequence[int]) -> Float[Tensor, "position column d"]:
        """The stream vectors of some components, divided by σ; the constant's is zero."""
        out = torch.zeros(len(self.sigma), len(columns), self.final.shape[1], dtype=torch.float64)
        for piece in self.pieces:
            where = {c: i for i, c in enumerate(piece.columns or range(piece.start, piece.stop))}
            wanted = [(number, where[column]) for number, column in enumerate(columns) if column in where]
            if not wanted:
                continue
            numbers, which = (list(places) for places in zip(*wanted, strict=True))
            # All parts of a write together: one by one, hundreds of heads take seconds.
            found = _spread(piece, which) if piece.z is None else piece.z[:, which].double()
            out[:, numbers] = found.cpu()
        return out / self.sigma.cpu()[:, None, None]

    def _whole(self, z: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
        """Log-sum-exps of whole rows over some ids, without a table of all positions."""
        step = max(1, NUMBERS // (z.shape[1] * len(rows)))
        blocks = []
        for start in range(0, len(z), step):
            some = slice(start, start + step)
            blocks.append(((z[some] * scale[some, None, None]) @ rows.T).logsumexp(2))
        return torch.cat(blocks)

    def _scaled(self, piece: Piece) -> Float[Tensor, "position part width"]:
        """A cut write's values with σ and what the norm behind the sublayer divides by taken out."""
        return piece.values.to(self.reader.wide) / self._divisor(piece).to(self.reader.wide)[:, None, None]

    def _divisor(self, piece: Piece) -> Float[Tensor, " position"]:
        """σ, times what the norm behind a cut write divides by."""
        return self.sigma if piece.scale is None else self.sigma * piece.scale


def table_of(reader: Reader, done: Activations) -> Table:
    """The components of a pass (some of its positions), by name."""
    architecture, wide = reader.architecture, reader.wide
    done = to_final_stream(done, architecture)
    components: list[Component] = []
    whole: list[Tensor] = []
    columns: list[int] = []
    pieces: list[Piece] = []

    def add(component: Component, z: Tensor) -> None:
        columns.append(len(components))
        components.append(component)
        whole.append(z)

    add(Component("embed"), done.embed)
    if done.pos_embed is not None:
        add(Component("pos_embed"), done.pos_embed)
    for firing, repeat in zip(done.sublayer_outputs, done.repeats, strict=True):
        rows = reader.components(firing, repeat)
        if firing.values is None:
            add(rows[0], firing.output)
            continue
        split = firing.sublayer.output_map
        assert split is not None
        scale = _statistic(firing)
        start, stop = len(components), len(components) + split.count
        components += rows[: split.count]
        rest = stop if len(rows) > split.count else None
        pieces.append(Piece(firing=firing, start=start, stop=stop, rest=rest, scale=scale))
        if rest is not None:
            add(rows[-1], _rest(split, scale, firing.output))
    constant = None
    if architecture.constant:
        constant = len(components)
        components.append(Component("constant"))
    final = done.final.double()
    written, size = torch.zeros_like(final), torch.zeros_like(final[:, 0])
    embeddings = [done.embed] if done.pos_embed is None else [done.embed, done.pos_embed]
    for x in (*embeddings, *(firing.output for firing in done.sublayer_outputs)):
        written += x
        size += x.norm(dim=1)
    missing = (final - written).norm(dim=1) / size.clamp_min(1e-300)
    if done.dtype in HALF:
        # What half precision lost at every addition, so that the parts still sum to the whole.
        missing = torch.zeros_like(missing)
        parts = torch.stack(whole, 1).double().sum(1)
        for piece in pieces:
            assert piece.firing is not None
            parts += _together(piece.firing, piece.scale)
        add(Component("rounding"), final - parts)
    z = torch.stack([x.to(wide) for x in whole], 1)
    sigma = architecture.norm.statistic(final)
    # Scattered columns last: parts fill a new table side by side, and the first touch is what costs.
    return Table(reader, tuple(components), (*pieces, Piece(z, tuple(columns))), sigma, final, constant, missing)


def _statistic(firing: SublayerOutput) -> Tensor | None:
    """What the norm behind a sublayer divides by, `[position]`."""
    split = firing.sublayer.output_map
    if split is None or split.post is None:
        return None
    assert firing.post is not None
    return split.post.divisor(firing.post)


def _rest(split: OutputMap, scale: Tensor | None, like: Tensor) -> Tensor:
    """The stream vector that no part wrote: the output map's bias, and that of the norm behind it."""
    _, bias = split.projection()
    rest = torch.zeros_like(like, dtype=torch.float64)
    if bias is not None:
        rest = rest + _behind(split, bias.to(like.device).double().expand_as(rest), scale)
    if split.post is not None and split.post.bias is not None:
        rest = rest + split.post.bias.to(like.device) * split.scale
    return rest


def _behind(split: OutputMap, x: Tensor, scale: Tensor | None) -> Tensor:
    """What the norm behind an output map makes of a summand of its input, without its bias."""
    x = x * split.scale
    if split.post is None:
        return x
    if split.post.centered:
        x = x - x.mean(-1, keepdim=True)
    assert scale is not None
    return x * split.post.gain.to(x.device) / scale[:, None]


def _together(firing: SublayerOutput, scale: Tensor | None) -> Float[Tensor, "position d"]:
    """The stream vector of all parts of a write together; float64."""
    split = firing.sublayer.output_map
    assert split is not None
    assert firing.values is not None
    weight, _ = split.projection()
    values = firing.values.double()
    return _behind(split, values @ weight.to(values.device).double(), scale)


def _spread(piece: Piece, which: list[int] | slice = slice(None)) -> Float[Tensor, "position part d"]:
    """The stream vectors of some parts of a write, all without `which`; float64."""
    weight, _ = piece.split.projection()
    values = piece.values[:, which].double().transpose(0, 1)
    maps = weight.to(values.device).unflatten(0, (piece.split.count, -1))[which].double()
    return _behind(piece.split, torch.bmm(values, maps), piece.scale).transpose(0, 1)


def answers(architecture: Architecture, final: Float[Tensor, "position d"]) -> tuple[Tensor, Tensor]:
    """(what the unembedding returns, the logits) for some final streams, by the model's own modules.

    Called past their hooks, which are the user's and have seen the pass already.
    """
    normed = architecture.norm_module.forward(final.to(architecture.dtype)[:, None])
    said = architecture.unembed.forward(normed)
    return upcast(said[:, 0]).to(final.device), upcast(architecture.transform(said)[:, 0]).to(final.device)
