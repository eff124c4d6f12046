"""Where a model writes to its residual stream, and how the stream is read out.

An `Anatomy` names places in a running model (`Tap`) and nothing else: it holds no activation and
changes nothing. `huggingface` and `transformerlens` each find the places of one kind of model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..components import Component, Kind, Unit
from ..errors import InputError
from .norm import Norm

# TransformerLens' names of modules between a final norm and an unembedding.
_BEHIND_THE_NORM = ("mlm_head", "prediction_head", "project_out", "hc_head", "sigma_map", "classifier_ln")

# Why a write has no finer parts.
MIXTURE = "it is a mixture of experts, in which every token goes to other neurons"
WRAPPED = "its output projection is wrapped or quantized, so its weights cannot be read"
HIDDEN = "it has no output projection that this package can see"

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class HookPoint:
    """A place in the running model: what `module` is given ("in") or what it returns ("out").

    `name` is TransformerLens' hook name of the same values, to find them in a cache.
    """

    module: nn.Module
    side: Literal["in", "out"] = "out"
    name: str = ""


@dataclass(frozen=True, eq=False)
class OutputMap:
    """How one write is the sum of smaller ones: an attention of its heads, an MLP of its neurons.

    count, tap
        How many there are, and where their values lie side by side before the output map.
    projection
        Gives the output map W `[count·width, d]` and its bias or None.
    bias
        Whether something is left that no part wrote: that bias where it is not zero, or the one of a norm
        behind the map.
    scale
        The factor on the way to the stream (Granite's residual multiplier).
    post, post_tap
        The norm between the map and the stream in sandwich- and post-norm models, and where its input,
        or its statistic itself, can be read.
    """

    count: int
    tap: HookPoint
    projection: Callable[[], tuple[Tensor, Tensor | None]]
    bias: bool
    scale: float = 1.0
    post: Norm | None = None
    post_tap: HookPoint | None = None


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One sublayer, and the place where what it adds to the stream can be read (times `scale`).

    `split` is None where the write cannot be cut finer, and `whole` then says why.
    """

    kind: Literal["attn", "mlp"]
    layer: int
    tap: HookPoint
    scale: float = 1.0
    split: OutputMap | None = None
    whole: str = ""

    def is_cut(self, unit: Unit) -> bool:
        """Whether this write is cut into parts at a unit: attentions into heads, MLPs into neurons."""
        return (unit, self.kind) in (("head", "attn"), ("neuron", "mlp"))

    def components(self, unit: Unit, repeat: int | None = None) -> list[Component]:
        """The names of the rows it gives at a unit. Raises InputError where it cannot be cut."""
        if not self.is_cut(unit):
            return [Component(self.kind, self.layer, repeat=repeat)]
        if self.split is None:
            raise InputError(
                f"the {'attention' if self.kind == 'attn' else 'MLP'} of layer {self.layer} has no rows at "
                f"unit={unit!r}: {self.whole}; use unit='sublayer'."
            )
        part: Kind = "head" if self.kind == "attn" else "neuron"
        rest: Kind = "attn_bias" if self.kind == "attn" else "mlp_bias"
        rows = [Component(part, self.layer, index, repeat) for index in range(self.split.count)]
        return rows + ([Component(rest, self.layer, repeat=repeat)] if self.split.bias else [])


@dataclass(frozen=True, eq=False)
class Architecture:
    """All the places of one model. `writes` stand in stream order.

    stream_in, stream_out
        The stream entering the first block and the final norm. What is there at the start and is not
        the position embedding is the embedding.
    blocks
        The stream entering every block, to find where a sum breaks.
    norm, norm_module, unembed, unembed_rows
        The read-out: the final norm as numbers and as a module, the unembedding, and its rows
        `[id, d]` and biases for some token ids.
    transform, logit_multiplier, soft_cap
        What the model does to the unembedding's output, and what that is.
    logits
        Runs the model: (ids, mask) -> logits.
    vocabulary, outputs, context
        How many ids go in and how many come out, and the longest text, in tokens.
    length_switch
        The length beyond which the model computes its positions in another way (LongRoPE), so that
        longer and shorter prompts must not share a batch.
    parallel
        Whether attention and MLP of a block read the same stream, so that none stands between them.
    constant
        Whether the read-out adds something that no component wrote.
    dtype
        The stream's precision. Half precisions round at every addition, and what they lose is a row.
    """

    root: nn.Module
    stream_in: HookPoint
    pos_embed: HookPoint | None
    writes: tuple[Sublayer, ...]
    stream_out: HookPoint
    blocks: tuple[HookPoint, ...]
    norm: Norm
    norm_module: nn.Module
    unembed: nn.Module
    unembed_rows: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    transform: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor, Tensor], Tensor]
    device: torch.device
    dtype: torch.dtype
    vocabulary: int
    outputs: int
    context: int | None
    length_switch: int | None
    parallel: bool
    constant: bool
    logit_multiplier: float
    soft_cap: float | None
    _carried: dict[tuple[int, int], Sublayer] = field(default_factory=dict, repr=False)

    def components(
        self, unit: Unit = "sublayer", order: Sequence[tuple[Sublayer, int | None]] | None = None
    ) -> tuple[Component, ...]:
        """The components of one pass in stream order; every layer used once, or as `order` says (write, use)."""
        rows = [Component("embed")]
        if self.pos_embed is not None:
            rows.append(Component("pos_embed"))
        for write, repeat in [(write, None) for write in self.writes] if order is None else order:
            rows += write.components(unit, repeat)
        if self.constant:
            rows.append(Component("constant"))
        if self.dtype in HALF:
            rows.append(Component("rounding"))
        return tuple(rows)

    def behind(self, write: Sublayer, times: int) -> Sublayer:
        """A write that is cut as it stands in a stream which has passed the final norm `times` times since.

        Raises InputError where a bias would have passed it, too, in parts that cannot be told from one another.
        """
        key, split = (id(write), times), write.split
        if key not in self._carried:
            assert split is not None
            gain, centered = self.norm.gain**times, False
            if split.post is not None:
                gain, centered = gain * split.post.gain, split.post.centered
                if split.post.bias is not None:
                    raise InputError(
                        f"what layer {write.layer} writes passes a norm with a bias and then, between loops, the final "
                        "norm, so its heads or neurons cannot be told apart: use unit='sublayer'."
                    )
            post = Norm(gain, None, centered, None)
            self._carried[key] = replace(write, split=replace(split, post=post))
        return self._carried[key]

    def taps(self, unit: Unit = "sublayer") -> list[HookPoint]:
        """Every place that has to be read at a unit."""
        taps = [self.stream_in, self.stream_out, *(write.tap for write in self.writes)]
        if self.pos_embed is not None:
            taps.append(self.pos_embed)
        for write in self.writes:
            if write.is_cut(unit) and write.split is not None:
                taps += [tap for tap in (write.split.tap, write.split.post_tap) if tap is not None]
        return taps


def logit_transform(transform: Callable[[Tensor], Tensor]) -> tuple[float, float | None]:
    """(multiplier, soft cap or None) of what stands behind the unembedding, found by asking it."""
    small, large = transform(torch.tensor([1e-4, 1e6], dtype=torch.float64)).tolist()
    multiplier = small / 1e-4
    return multiplier, None if abs(large / 1e6 / multiplier - 1) < 1e-6 else large


def refuse_unreadable(name: str, find: Callable[[str], object | None]) -> None:
    """Refuse, with the reason, a model whose logits are not `unembed(final norm(stream))`."""
    for part in _BEHIND_THE_NORM:
        if find(part) is not None:
            raise InputError(
                f"{name} has {part} between its final norm and its unembedding, so the logits are not a sum "
                "over the residual stream's components and the model cannot be decomposed."
            )
    if find("core_block") is not None:  # Raven (Huginn)
        raise InputError(
            f"{name} starts its loop from random numbers, so that no two passes agree, mixes its input into the stream "
            "anew in every round, and norms the whole stream after each sublayer: it cannot be decomposed."
        )
    for part, meaning in (("ln_final", "final norm"), ("unembed", "unembedding"), ("blocks", "list of blocks")):
        if find(part) is None:
            raise InputError(
                f"{name} has no {meaning} after its last block (as in post-norm models, encoders and some "
                "hybrids), so its logits are not a sum over residual-stream components: it cannot be decomposed."
            )
