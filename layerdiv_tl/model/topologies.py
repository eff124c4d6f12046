"""Residual streams that pass more than additions: what each family's stream meets, in order.

Most models only add to one stream. The table below has the others: a function yields, block by block, the sublayers
and, between them, the steps that the stream passes. Nothing else in the package knows a family; and each is accepted
because what was written then sums to the stream, which every pass checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from . import several_streams as several
from .affine_step import AffineStep, Linear, gain
from .architecture import WHY_WHOLE, HookPoint, StreamOp, Sublayer
from .norm import Norm
from .several_streams import Item

if TYPE_CHECKING:
    from .structure import Structure

# What the stream meets in one block: (parts, number of the block, the block, its sublayers) → items in order.
Block = Callable[["Structure", int, Any, list[Sublayer]], Iterator[Item]]
Part = Callable[["Structure"], Iterator[Item]]


def by_block(
    block: Block, opening: Part | None = None, ending: Part | None = None, starts_inside: bool = False
) -> Part:
    """The same in every block, between what comes before the first and after the last.

    `starts_inside`: what enters the first block is not yet what starts the stream.
    """

    def program(parts: Structure) -> Iterator[Item]:
        if opening is not None:
            yield from opening(parts)
        for number, module in enumerate(parts.blocks):
            if number or not starts_inside:
                yield parts.block_points[number]
            yield from block(parts, number, module, list(parts.sublayers(number, number)))
        if ending is not None:
            yield from ending(parts)

    return program


@dataclass(frozen=True)
class Topology:
    """The path of one family's stream.

    Attributes:
        program: Yields all that the stream meets, in order.
        has_prefixes: Whether a junction's stream, read out by the final norm, is what the model would say there, which
            is so where nothing but scalars stands behind it.
        start, start_side: The module whose output (or input) starts the stream, as a path from the model; "" is what
            enters the first block.
        final_norm, blocks: The final norm, and the list of blocks, where their names do not say it.
        end: The module whose output the unembedding reads, as a path from the model, where no norm stands there.
        streams_first: Whether blocks are given their streams before the rows, `[stream, row, token, d]`.
        applies: Whether a model of this configuration has this path.
    """

    program: Part
    has_prefixes: bool = False
    start: str = ""
    start_side: Literal["in", "out"] = "out"
    final_norm: Callable[[Structure], nn.Module] | None = None
    blocks: Callable[[Any], list[nn.Module]] | None = None
    end: str = ""
    streams_first: bool = False
    applies: Callable[[Any], bool] = lambda config: True


def topology_of(model: Any) -> Topology | None:
    """The path of a model's stream; None where it is only added to."""
    config = model.config.get_text_config()
    return next((found for found in TOPOLOGIES.get(config.model_type, ()) if found.applies(config)), None)


def static(*maps: Linear, bias: Tensor | None = None) -> StreamOp:
    """Gains and a bias that are the same in every pass."""
    step = AffineStep(maps, bias=None if bias is None else bias.detach().double())
    return StreamOp(lambda: step, adds=bias is not None)


def passed(parts: Structure, module: nn.Module, factor: float = 1.0) -> StreamOp:
    """A norm that the stream itself passes, and a factor after it."""
    norm = parts.norm(module)
    own = Norm(norm.gain * factor, None, norm.centered, None)
    bias = None if norm.bias is None else norm.bias * factor

    def step(x: Tensor) -> AffineStep:
        return AffineStep((own,), divisor=norm.statistic(x.double()), bias=bias)

    return StreamOp(step, (HookPoint(module, "in"),), bias is not None)


def _gemma4(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← s (X + attention + MLP + gated per-layer input)."""
    yield from sublayers
    if hasattr(block, "post_per_layer_input_norm"):
        yield parts.uncut("ple", number, block.post_per_layer_input_norm)
    yield static(gain(block.layer_scalar))


def _doge(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← r ⊙ X + write."""
    for sublayer, residual in zip(sublayers, (block.input_residual, block.post_attention_residual), strict=True):
        yield static(gain(residual))
        yield sublayer


def _zaya(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← (X + b) ⊙ s + (write + b') ⊙ s'."""
    scalings = (block.post_attention_residual_scale, block.post_mlp_residual_scale)
    for sublayer, own in zip(sublayers, scalings, strict=True):
        added = own.residual_bias * own.residual_scale + own.hidden_states_bias * own.hidden_states_scale
        yield static(gain(own.residual_scale), bias=added)
        yield gated(sublayer, gain(own.hidden_states_scale))


def _beam(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← √((i − 1) / i) X + √(1 / i) write, with i = 2, 3, …"""
    for i, sublayer in enumerate(sublayers, 2 * number + 2):
        yield static(gain(torch.tensor(((i - 1) / i) ** 0.5)))
        yield scaled(sublayer, i**-0.5)


def _rwkv(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """Halved after every so many blocks."""
    attention, mlp = sublayers
    yield from (attention, replace(mlp, uncut_reason=WHY_WHOLE["gated"]))
    every = parts.config.rescale_every
    if every > 0 and (number + 1) % every == 0:
        yield static(gain(torch.tensor(0.5)))


def _plain(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← X + write."""
    yield from sublayers


def _post_norm(
    first: str, second: str, parts: Structure, number: int, block: Any, sublayers: list[Sublayer]
) -> Iterator[Item]:
    """X ← norm(X + write); the last norm is the read-out's."""
    for sublayer, name in zip(sublayers, (first, second), strict=True):
        yield sublayer
        if getattr(block, name) is not parts.final_norm:
            yield passed(parts, getattr(block, name))


def _normed(
    factors: tuple[str, ...], parts: Structure, number: int, block: Any, sublayers: list[Sublayer]
) -> Iterator[Item]:
    """X ← α norm(X) + β write."""
    alpha, beta = ([float(getattr(block, name, 1.0)) for name in factors[i::2]] or [1.0, 1.0] for i in (0, 1))
    norms = (block.input_layernorm, block.post_attention_layernorm)
    for sublayer, norm, kept, added in zip(sublayers, norms, alpha, beta, strict=True):
        yield passed(parts, norm, kept)
        yield scaled(sublayer, added)


def _bloom(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← norm(X) + write, which the output projections return: their modules add the stream themselves."""
    inner = (block.self_attention.dense, block.mlp.dense_4h_to_h)
    written = [replace(s, hook_point=HookPoint(module)) for s, module in zip(sublayers, inner, strict=True)]
    yield from _normed((), parts, number, block, written)


def _normed_embedding(parts: Structure) -> Iterator[Item]:
    """The norm after BART's embedding."""
    yield passed(parts, parts.model.base_model.decoder.layernorm_embedding)


def gated(sublayer: Sublayer, gate: Linear) -> Sublayer:
    """A sublayer with a gain between it and the stream."""
    output_map = sublayer.output_map
    cut = None if output_map is None else replace(output_map, path=(*output_map.path, gate))
    return replace(sublayer, gate=gate, output_map=cut)


def scaled(sublayer: Sublayer, factor: float) -> Sublayer:
    """A sublayer whose output goes to the stream times a factor."""
    output_map = sublayer.output_map
    cut = None if output_map is None else replace(output_map, scale=output_map.scale * factor)
    return replace(sublayer, scale=sublayer.scale * factor, output_map=cut)


MINIMAX = ("attn_alpha_factor", "attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor")
OPT = partial(_post_norm, "self_attn_layer_norm", "final_layer_norm")
HYPER = Topology(by_block(several.hyper_connections, several.copies, several.hyper_head), start="model.embed_tokens")


def _last(name: str) -> Callable[[Structure], nn.Module]:
    """The last block's norm of a name."""
    return lambda parts: parts.blocks[-1].get_submodule(name)


BART = Topology(
    by_block(OPT, _normed_embedding),
    start="model.decoder.layernorm_embedding",
    start_side="in",
    final_norm=_last("final_layer_norm"),
)
# By the model type of the text's configuration.
TOPOLOGIES: dict[str, tuple[Topology, ...]] = {
    "gemma4_text": (Topology(by_block(_gemma4), has_prefixes=True),),
    "gemma4_unified_text": (Topology(by_block(_gemma4), has_prefixes=True),),
    "doge": (Topology(by_block(_doge)),),
    "zaya": (Topology(by_block(_zaya)),),
    "beam": (Topology(by_block(_beam), has_prefixes=True),),
    "rwkv": (Topology(by_block(_rwkv, starts_inside=True), has_prefixes=True, start="rwkv.blocks.0.pre_ln"),),
    "openai-gpt": (Topology(by_block(partial(_post_norm, "ln_1", "ln_2")), final_norm=_last("ln_2")),),
    "opt": (
        Topology(
            by_block(OPT),
            final_norm=_last("final_layer_norm"),
            applies=lambda config: not config.do_layer_norm_before,
        ),
        Topology(
            by_block(_plain),
            has_prefixes=True,
            applies=lambda config: config.word_embed_proj_dim != config.hidden_size,
        ),
    ),
    "bloom": (Topology(by_block(_bloom), applies=lambda config: config.apply_residual_connection_post_layernorm),),
    "minimax": (Topology(by_block(partial(_normed, MINIMAX))),),
    "marian": (Topology(by_block(OPT), final_norm=_last("final_layer_norm")),),
    **dict.fromkeys(("bart", "plbart", "trocr"), (BART,)),
    "deepseek_v4": (HYPER,),
    "hy_v4": (HYPER,),
    "hrm_text": (
        Topology(
            several.hrm_text,
            start="model.embed_tokens",
            final_norm=lambda parts: parts.model.base_model.H_module.final_norm,
            blocks=lambda model: [*model.base_model.L_module.layers, *model.base_model.H_module.layers],
        ),
    ),
    "inkling2_text": (Topology(several.inkling2),),
    "qwen4_exp_text": (
        Topology(
            by_block(several.gated_streams, several.copies, several.gated_end),
            start="model.embed_tokens",
            end="model.hyper_connection_mixer",
        ),
    ),
    "gemma3n_text": (
        Topology(
            by_block(several.altup, several.altup_start, several.altup_end),
            start="model.embed_tokens",
            streams_first=True,
        ),
    ),
}
