"""What models with several residual streams do with them: rules for `topologies`, in the form that it describes.

A step mixes the streams [row, stream, d] by a matrix that the model makes for every token, or opens, picks and norms
single ones; and says how much of what is written next enters each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .affine_step import AffineStep, Dense, Linear, TokenGain, gain
from .architecture import WHY_WHOLE, HookPoint, OutputMap, StreamOp, Sublayer

if TYPE_CHECKING:
    from .structure import Structure

Item = Sublayer | StreamOp | HookPoint


def mixing(rows: list[list[float]], write_weights: list[float] | None = None, bias: Tensor | None = None) -> StreamOp:
    """A mixing that is the same at every token."""
    step = AffineStep(
        mix=torch.tensor(rows, dtype=torch.float64),
        write_weights=None if write_weights is None else torch.tensor(write_weights, dtype=torch.float64),
        bias=None if bias is None else bias.detach().double(),
    )
    return StreamOp(lambda: step, adds=bias is not None)


def copies(parts: Structure) -> Iterator[Item]:
    """Every stream starts as the embedding."""
    yield mixing([[1.0]] * (getattr(parts.config, "hc_mult", None) or parts.config.hc_count))


def hyper_connections(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← combᵀ X + post ⊗ write; in some families without comb."""
    dtype = parts.model.dtype
    for sublayer, module in zip(sublayers, (block.attn_hc, block.ffn_hc), strict=True):

        def step(post: Tensor, *comb: Tensor) -> AffineStep:
            mix = [c.to(dtype).double().unflatten(1, (post.shape[1], -1)).transpose(1, 2) for c in comb]
            return (
                AffineStep(mix=mix[0], write_weights=post.to(dtype).double())
                if mix
                else AffineStep(write_weights=post.double())
            )

        # The last thing that it returns is what the sublayer reads.
        has_comb = hasattr(module, "hc_sinkhorn_iters")
        yield StreamOp(step, tuple(HookPoint(module, item=item) for item in range(1 + has_comb)))
        yield (
            _grouped(sublayer, parts) if hasattr(block.self_attn, "o_a_proj") and sublayer.kind == "attn" else sublayer
        )


def hyper_head(parts: Structure) -> Iterator[Item]:
    """The read-out of hyper-connections: Σ_s pre_s X_s, with the weights that the module makes."""
    head = parts.model.base_model.hc_head

    def step(x: Tensor) -> AffineStep:
        x = x.double()
        scale = (x.square().mean(-1, keepdim=True) + head.input_norm.eps).rsqrt()
        made = x @ head.hc_fn.double().to(x.device).T * scale
        pre = (made * head.hc_scale.double().to(x.device) + head.hc_base.double().to(x.device)).sigmoid() + head.eps
        return AffineStep(mix=pre[:, None])

    yield StreamOp(step, (HookPoint(head, "in"),))


def _grouped(sublayer: Sublayer, parts: Structure) -> Sublayer:
    """DeepSeek-V4's attention, whose heads pass a projection of groups before the one that all share."""
    module: Any = sublayer.hook_point.module

    def projection() -> tuple[Tensor, None]:
        groups = module.o_a_proj.weight.detach().view(module.o_a_proj.n_groups, -1, module.o_a_proj.weight.shape[1])
        shared = module.o_b_proj.weight.detach().unflatten(1, (len(groups), -1))
        return torch.einsum("dgr,gri->gid", shared, groups).flatten(0, 1), None

    count = int(parts.config.num_attention_heads)
    output_map = OutputMap(count, HookPoint(module.o_a_proj, "in"), projection, False, sublayer.scale)
    return replace(sublayer, output_map=output_map, uncut_reason="")


def hrm_text(parts: Structure) -> Iterator[Item]:
    """low ← norm(low + high + low stack); high ← norm(high + low + high stack), in cycles. The first low is learned."""
    model, config = parts.model.base_model, parts.config
    zeros = torch.zeros_like(model.z_L_init)
    yield mixing([[0.0], [float(model.embedding_scale)]], bias=torch.stack([model.z_L_init, zeros]))
    width = len(model.L_module.layers)
    written: list[tuple[Item, ...]] = [
        (parts.block_points[n], *parts.sublayers(n, n)) for n in range(len(parts.blocks))
    ]

    def normed(stack: Any, stream: int) -> StreamOp:
        norm = parts.norm(stack.final_norm)

        def step(x: Tensor) -> AffineStep:
            sigma = norm.statistic(x.double())
            divisors = torch.ones(len(x), 2, dtype=torch.float64, device=x.device)
            divisors[:, stream] = sigma
            return AffineStep(mix=torch.diag_embed(1 / divisors))

        return StreamOp(step, (HookPoint(stack.final_norm, "in"),))

    low, high = normed(model.L_module, 0), normed(model.H_module, 1)
    for cycle in range(config.H_cycles):
        for _ in range(config.L_cycles):
            yield mixing([[1.0, 1.0], [0.0, 1.0]], [1.0, 0.0])
            yield from (item for items in written[:width] for item in items)
            yield low
        yield mixing([[1.0, 0.0], [1.0, 1.0]], [0.0, 1.0])
        yield from (item for items in written[width:] for item in items)
        if cycle + 1 < config.H_cycles:
            yield high
    yield mixing([[0.0, 1.0]])


def inkling2(parts: Structure) -> Iterator[Item]:
    """Every few layers the attention's write opens a new stream; the read-out attends to all of them."""
    count = 1
    for number, block in enumerate(parts.blocks):
        if number:
            yield parts.block_points[number]
        if block.is_block_boundary:
            rows = torch.eye(count + 1, count)
            count += 1
            yield mixing(rows.tolist(), [0.0] * (count - 1) + [1.0])
        yield from parts.sublayers(number, number)
    read_out = parts.model.base_model.final_input

    def step(closed: Tensor, opened: Tensor) -> AffineStep:
        streams = torch.cat([closed, opened], 1).double().unflatten(1, (-1, opened.shape[1]))
        sigma = (streams.square().mean(-1) + read_out.norm.eps).sqrt()
        query = read_out.query.detach().double().to(streams.device)
        weights = (streams @ query / sigma * opened.shape[1] ** -0.5).softmax(1)
        return AffineStep(mix=(weights / sigma)[:, None])

    yield StreamOp(step, (HookPoint(read_out, "in"), HookPoint(parts.blocks[-1])))


def gated_streams(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← X + injection ⊗ write; a per-layer input embedding has a vector for every stream."""
    if block.ple is not None:
        yield parts.uncut("ple", number, block.ple)
    for sublayer, module in zip(sublayers, (block.attn_hyper_connection, block.mlp_hyper_connection), strict=True):
        yield StreamOp(
            lambda write_weights: AffineStep(write_weights=write_weights.double()), (HookPoint(module, item=2),)
        )
        yield replace(sublayer, output_map=None, uncut_reason=WHY_WHOLE["streams"])


def gated_end(parts: Structure) -> Iterator[Item]:
    """The mean of the streams, each normed and gated number by number."""
    mixer, count = parts.model.base_model.hyper_connection_mixer, parts.config.hc_count

    def step(x: Tensor) -> AffineStep:
        normed = mixer.hc_norm(x.to(parts.model.dtype))
        gates = mixer.input_mix_weight_up(torch.nn.functional.silu(mixer.input_mix_weight_down(normed) / count))
        gains = gates.double().sigmoid() * (1 + mixer.hc_norm.weight.detach().double().to(x.device))
        sigma = (x.double().unflatten(1, (count, -1)).square().mean(-1) + mixer.hc_norm.eps).sqrt()
        maps = tuple(TokenGain(own) for own in gains.unflatten(1, (count, -1)).unbind(1))
        return AffineStep(maps, mix=(1 / (count * sigma))[:, None])

    yield StreamOp(step, (HookPoint(mixer, "in"),))


def _magnitudes(*streams: Tensor) -> Tensor:
    """Factors `[token, stream]` that make every stream as long as the first is."""
    sizes = torch.stack([stream.double().square().mean(-1).clamp_min(1e-5).sqrt() for stream in streams[1:]], 1)
    return torch.cat([torch.ones_like(sizes[:, :1]), streams[0].double().square().mean(-1, True).sqrt() / sizes], 1)


def altup_start(parts: Structure) -> Iterator[Item]:
    """The embedding, and projections of it that are as long."""
    model = parts.model.base_model
    yield mixing([[1.0]] * parts.config.altup_num_inputs)
    yield _projected(model.altup_projections)
    points = (HookPoint(model.embed_tokens), *map(HookPoint, model.altup_projections))
    yield StreamOp(lambda *streams: AffineStep(mix=torch.diag_embed(_magnitudes(*streams))), points)


def _projected(modules: Sequence[Any]) -> StreamOp:
    maps: list[Linear] = [gain(torch.ones(1)), *(Dense(module.weight.detach().double()) for module in modules)]
    return StreamOp(lambda: AffineStep(tuple(maps)))


def altup(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterator[Item]:
    """X ← (1 + P) X, then X ← X + c ⊗ ((active + attention + laurel) / √2 + MLP − active); the rest += `ple`."""
    active, count = parts.config.altup_active_idx, parts.config.altup_num_inputs
    attention, mlp = (replace(s, output_map=None, uncut_reason=WHY_WHOLE["streams"]) for s in sublayers)
    points = (HookPoint(block.altup.prediction_coefs), HookPoint(block.altup.correction_coefs))

    def predicted(coefficients: Tensor, corrections: Tensor) -> AffineStep:
        eye = torch.eye(count, dtype=torch.float64, device=coefficients.device)
        c = 1 + corrections.double()
        replaced = eye + (0.5**0.5 - 1) * c[:, :, None] * eye[active]
        mix = replaced @ (eye + coefficients.double().unflatten(1, (count, count)))
        return AffineStep(mix=mix, write_weights=c * 0.5**0.5)

    yield StreamOp(predicted, points)
    yield attention
    yield parts.uncut("laurel", number, block.laurel)
    yield StreamOp(lambda corrections: AffineStep(write_weights=1 + corrections.double()), points[1:])
    yield mlp
    first = torch.ones(count, dtype=torch.float64)
    first[0] = 0.0
    yield StreamOp(lambda: AffineStep(write_weights=first))
    yield parts.uncut("ple", number, block.post_per_layer_input_norm)


def altup_end(parts: Structure) -> Iterator[Item]:
    """The mean of the streams, projected and as long as the first."""
    model, count = parts.model.base_model, parts.config.altup_num_inputs
    yield _projected(model.altup_unembed_projections)
    points = (HookPoint(parts.blocks[-1], streams_first=True), *map(HookPoint, model.altup_unembed_projections))
    width = parts.width

    def step(streams: Tensor, *projected: Tensor) -> AffineStep:
        return AffineStep(mix=_magnitudes(streams[:, :width], *projected)[:, None] / count)

    yield StreamOp(step, points)
