"""Residual streams with more than additions: the items on each family's path, in order.

Most models only add to one stream. `FAMILIES` has the others. To add a family whose blocks gate the stream and its
writes, X ← r ⊙ X + g ⊙ write, give its model type and describe a block:

    def _mine(parts, number, block, sublayers):
        for sublayer, r, g in zip(sublayers, (block.attn_r, block.mlp_r), (block.attn_g, block.mlp_g), strict=True):
            yield fixed(r)
            yield sublayer.scaled(g)

    from layerdiv_tl.model.streams import FAMILIES, Family, fixed
    FAMILIES["mine"] = Family(_mine)

Nothing else in the package depends on a family; this works in your own script, too. "mine" is the `model_type` of your
configuration class: one that keeps "llama" would change every Llama. Each family is
verified, because every pass checks that the writes sum to the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import InputError
from .architecture import WHY_WHOLE, HookPoint, StreamItem, StreamOp, Sublayer, SublayerKind
from .norm import AffineStep, Dense, Norm, gain
from .structure import Structure

Items = Iterator[StreamItem]
# Items on the path outside of blocks; and in one: (structure, index of the block, the block, its sublayers).
Walk = Callable[[Structure], Iterable[StreamItem]]
Block = Callable[[Structure, int, Any, list[Sublayer]], Iterable[StreamItem]]


@dataclass(frozen=True)
class Family:
    """The stream of one family.

    Attributes:
        block: Yields the items on the path in one block, in order; None where blocks differ.
        opening, ending: Yield the items before and after the blocks.
        starts_inside: True if the stream starts after the input of the first block.
        start, start_side: The module whose output (or input) starts the stream, as a path from the model; "" is the
            input of the first block.
        final_norm: Its path from the model, or after a "." from the last block, if its name does not identify it.
        blocks: Returns the list of blocks, if their names do not identify it.
        end: The module whose output the unembedding reads, as a path from the model, if there is no norm.
        streams_first: True if blocks take their streams before the rows, `[stream, row, token, d]`.
    """

    block: Block | None = None
    opening: Walk = lambda parts: ()
    ending: Walk = lambda parts: ()
    starts_inside: bool = False
    start: str = ""
    start_side: Literal["in", "out"] = "out"
    final_norm: str = ""
    blocks: Callable[[Any], list[nn.Module]] | None = None
    end: str = ""
    streams_first: bool = False

    def structure(self, model: Any) -> Structure:
        """Find the parts of a model of this family. Raises InputError if some cannot be found."""
        return Structure(model, self.blocks and self.blocks(model), self.final_norm, self.end, self.streams_first)

    def walk(self, parts: Structure) -> Items:
        """Yield all items on the path, in order."""
        yield from self.opening(parts)
        if self.block is not None:
            for number, module in enumerate(parts.blocks):
                if number or not self.starts_inside:
                    yield parts.block_points[number]
                yield from self.block(parts, number, module, list(parts.sublayers(number, number)))
        yield from self.ending(parts)


def fixed(factor: Tensor | float | None = None, *, mix: Any = None, bias: Any = None, weights: Any = None) -> StreamOp:
    """X ← mix (factor ⊙ X) + bias, the same at every token; `weights` of later writes enter each stream."""
    mix, bias, weights = (
        None if x is None else torch.as_tensor(x, dtype=torch.float64).detach() for x in (mix, bias, weights)
    )
    maps = () if factor is None else (gain(factor),)
    return StreamOp(step=AffineStep(maps, mix, bias=bias, write_weights=weights))


def normed(parts: Structure, module: nn.Module, factor: float = 1.0) -> StreamOp:
    """X ← factor · norm(X)."""
    norm = parts.norm(module)
    bias = None if norm.bias is None else norm.bias * factor
    step = AffineStep((Norm(norm.gain * factor, centered=norm.centered),), bias=bias)
    return StreamOp((HookPoint(module, "in"),), lambda x: {"divisor": norm.statistic(x.double())}, step)


def written_by(module: nn.Module, kind: SublayerKind, number: int) -> Sublayer:
    """A write that is neither attention nor MLP."""
    return Sublayer(kind, number, HookPoint(module), uncut_reason=WHY_WHOLE["hidden"])


def _gemma4(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← s (X + attention + MLP + gated per-layer input)."""
    yield from sublayers
    if hasattr(block, "post_per_layer_input_norm"):
        yield written_by(block.post_per_layer_input_norm, "ple", number)
    yield fixed(block.layer_scalar)


def _doge(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← r ⊙ X + write."""
    for sublayer, residual in zip(sublayers, (block.input_residual, block.post_attention_residual), strict=True):
        yield fixed(residual)
        yield sublayer


def _zaya(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← (X + b) ⊙ s + (write + b') ⊙ s'."""
    scalings = (block.post_attention_residual_scale, block.post_mlp_residual_scale)
    for sublayer, own in zip(sublayers, scalings, strict=True):
        added = own.residual_bias * own.residual_scale + own.hidden_states_bias * own.hidden_states_scale
        yield fixed(own.residual_scale, bias=added)
        yield sublayer.scaled(own.hidden_states_scale)


def _beam(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← √((i − 1) / i) X + √(1 / i) write, with i = 2, 3, …"""
    for i, sublayer in enumerate(sublayers, 2 * number + 2):
        yield fixed(((i - 1) / i) ** 0.5)
        yield sublayer.scaled(i**-0.5)


def _rwkv(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← X + write, halved after every fixed number of blocks."""
    attention, mlp = sublayers
    yield from (attention, mlp.whole("gated"))
    every = parts.config.rescale_every
    if every > 0 and (number + 1) % every == 0:
        yield fixed(0.5)


def _post_norm(names: tuple[str, str], parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← norm(X + write); the last norm is the read-out's."""
    for sublayer, name in zip(sublayers, names, strict=True):
        yield sublayer
        if getattr(block, name) is not parts.final_norm:
            yield normed(parts, getattr(block, name))


def _minimax(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← α norm(X) + β write."""
    norms = (block.input_layernorm, block.post_attention_layernorm)
    for sublayer, norm, name in zip(sublayers, norms, ("attn", "mlp"), strict=True):
        yield normed(parts, norm, float(getattr(block, f"{name}_alpha_factor", 1.0)))
        yield sublayer.scaled(float(getattr(block, f"{name}_beta_factor", 1.0)))


def _bloom(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Iterable[StreamItem]:
    """X ← norm(X) + write, read at the output projections because the sublayers add the stream themselves."""
    inner = (block.self_attention.dense, block.mlp.dense_4h_to_h)
    written = [replace(s, hook_point=HookPoint(module)) for s, module in zip(sublayers, inner, strict=True)]
    return _minimax(parts, number, block, written)


def _copies(parts: Structure) -> Items:
    """Every stream starts as the embedding."""
    yield fixed(mix=[[1.0]] * (getattr(parts.config, "hc_mult", None) or parts.config.hc_count))


def _hyper_connections(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← combᵀ X + post ⊗ write; in some families without comb."""
    dtype = parts.model.dtype

    def measure(post: Tensor, *comb: Tensor) -> dict[str, Any]:
        if not comb:
            return {"write_weights": post.double()}
        mix = comb[0].to(dtype).double().unflatten(1, (post.shape[1], -1)).transpose(1, 2)
        return {"mix": mix, "write_weights": post.to(dtype).double()}

    for sublayer, module in zip(sublayers, (block.attn_hc, block.ffn_hc), strict=True):
        # The module returns these, and last the sublayer's input.
        count = 2 if hasattr(module, "hc_sinkhorn_iters") else 1
        yield StreamOp(tuple(HookPoint(module, item=item) for item in range(count)), measure)
        yield sublayer


def _hyper_head(parts: Structure) -> Items:
    """The read-out of hyper-connections: Σ_s pre_s X_s, with the module's own weights."""
    head = parts.model.base_model.hc_head

    def measure(x: Tensor) -> dict[str, Any]:
        x = x.double()
        scale = (x.square().mean(-1, keepdim=True) + head.input_norm.eps).rsqrt()
        made = x @ head.hc_fn.double().to(x.device).T * scale
        pre = (made * head.hc_scale.double().to(x.device) + head.hc_base.double().to(x.device)).sigmoid() + head.eps
        return {"mix": pre[:, None]}

    yield StreamOp((HookPoint(head, "in"),), measure)


def _hrm_text(parts: Structure) -> Items:
    """low ← norm(low + high + low stack); high ← norm(high + low + high stack), in cycles. The first low is learned."""
    model, config = parts.model.base_model, parts.config
    learned = torch.stack([model.z_L_init, torch.zeros_like(model.z_L_init)])
    yield fixed(mix=[[0.0], [float(model.embedding_scale)]], bias=learned)

    def norm_of(module: Any, stream: int) -> StreamOp:
        norm = parts.norm(module.final_norm)

        def measure(x: Tensor) -> dict[str, Any]:
            divisors = torch.ones(len(x), 2, dtype=torch.float64, device=x.device)
            divisors[:, stream] = norm.statistic(x.double())
            return {"mix": torch.diag_embed(1 / divisors)}

        return StreamOp((HookPoint(module.final_norm, "in"),), measure)

    written = [(parts.block_points[n], *parts.sublayers(n, n)) for n in range(len(parts.blocks))]
    low, high, width = norm_of(model.L_module, 0), norm_of(model.H_module, 1), len(model.L_module.layers)
    for cycle in range(config.H_cycles):
        for _ in range(config.L_cycles):
            yield fixed(mix=[[1.0, 1.0], [0.0, 1.0]], weights=[1.0, 0.0])
            yield from chain.from_iterable(written[:width])
            yield low
        yield fixed(mix=[[1.0, 0.0], [1.0, 1.0]], weights=[0.0, 1.0])
        yield from chain.from_iterable(written[width:])
        if cycle + 1 < config.H_cycles:
            yield high
    yield fixed(mix=[[0.0, 1.0]])


def _inkling2(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """In every few layers the attention's output opens a new stream."""
    if block.is_block_boundary:
        count = 1 + sum(before.is_block_boundary for before in parts.blocks[:number])
        yield fixed(mix=torch.eye(count + 1, count), weights=[0.0] * count + [1.0])
    yield from sublayers


def _inkling2_end(parts: Structure) -> Items:
    """The read-out attends to all streams."""
    read_out = parts.model.base_model.final_input

    def measure(closed: Tensor, opened: Tensor) -> dict[str, Any]:
        streams = torch.cat([closed, opened], 1).double().unflatten(1, (-1, opened.shape[1]))
        sigma = (streams.square().mean(-1) + read_out.norm.eps).sqrt()
        query = read_out.query.detach().double().to(streams.device)
        weights = (streams @ query / sigma * opened.shape[1] ** -0.5).softmax(1)
        return {"mix": (weights / sigma)[:, None]}

    yield StreamOp((HookPoint(read_out, "in"), HookPoint(parts.blocks[-1])), measure)


def _gated_streams(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← X + injection ⊗ write; a per-layer input embedding has a vector for every stream."""
    if block.ple is not None:
        yield written_by(block.ple, "ple", number)
    for sublayer, module in zip(sublayers, (block.attn_hyper_connection, block.mlp_hyper_connection), strict=True):
        yield StreamOp((HookPoint(module, item=2),), lambda weights: {"write_weights": weights.double()})
        yield sublayer.whole("streams")


def _gated_end(parts: Structure) -> Items:
    """The mean of the streams, each normed and gated elementwise."""
    mixer, count = parts.model.base_model.hyper_connection_mixer, parts.config.hc_count

    def measure(x: Tensor) -> dict[str, Any]:
        normed = mixer.hc_norm(x.to(parts.model.dtype))
        gates = mixer.input_mix_weight_up(torch.nn.functional.silu(mixer.input_mix_weight_down(normed) / count))
        gains = gates.double().sigmoid() * (1 + mixer.hc_norm.weight.detach().double().to(x.device))
        sigma = (x.double().unflatten(1, (count, -1)).square().mean(-1) + mixer.hc_norm.eps).sqrt()
        maps = tuple(Norm(own) for own in gains.unflatten(1, (count, -1)).unbind(1))
        return {"maps": maps, "mix": (1 / (count * sigma))[:, None]}

    yield StreamOp((HookPoint(mixer, "in"),), measure)


def _altup_start(parts: Structure) -> Items:
    """The embedding, and projections of it with the same length."""
    model = parts.model.base_model
    yield fixed(mix=[[1.0]] * parts.config.altup_num_inputs)
    yield _projected(model.altup_projections)
    points = (HookPoint(model.embed_tokens), *map(HookPoint, model.altup_projections))
    yield StreamOp(points, lambda *streams: {"mix": torch.diag_embed(_magnitudes(*streams))})


def _altup(parts: Structure, number: int, block: Any, sublayers: list[Sublayer]) -> Items:
    """X ← (1 + P) X, then X ← X + c ⊗ ((active + attention + laurel) / √2 + MLP − active); the rest += `ple`."""
    active, count = parts.config.altup_active_idx, parts.config.altup_num_inputs
    attention, mlp = (sublayer.whole("streams") for sublayer in sublayers)
    points = (HookPoint(block.altup.prediction_coefs), HookPoint(block.altup.correction_coefs))

    def predict(coefficients: Tensor, corrections: Tensor) -> dict[str, Any]:
        eye = torch.eye(count, dtype=torch.float64, device=coefficients.device)
        c = 1 + corrections.double()
        replaced = eye + (0.5**0.5 - 1) * c[:, :, None] * eye[active]
        mix = replaced @ (eye + coefficients.double().unflatten(1, (count, count)))
        return {"mix": mix, "write_weights": c * 0.5**0.5}

    yield StreamOp(points, predict)
    yield attention
    yield written_by(block.laurel, "laurel", number)
    yield StreamOp(points[1:], lambda corrections: {"write_weights": 1 + corrections.double()})
    yield mlp
    yield fixed(weights=[0.0] + [1.0] * (count - 1))
    yield written_by(block.post_per_layer_input_norm, "ple", number)


def _altup_end(parts: Structure) -> Items:
    """The mean of the streams, projected and scaled to the length of the first."""
    model, count, width = parts.model.base_model, parts.config.altup_num_inputs, parts.width
    yield _projected(model.altup_unembed_projections)
    points = (HookPoint(parts.blocks[-1], streams_first=True), *map(HookPoint, model.altup_unembed_projections))

    def measure(streams: Tensor, *projected: Tensor) -> dict[str, Any]:
        return {"mix": _magnitudes(streams[:, :width], *projected)[:, None] / count}

    yield StreamOp(points, measure)


def _projected(modules: Sequence[Any]) -> StreamOp:
    """All streams but the first pass their own matrices."""
    return StreamOp(step=AffineStep((gain(1.0), *(Dense(module.weight.detach().double()) for module in modules))))


def _magnitudes(*streams: Tensor) -> Tensor:
    """Factors `[token, stream]` that scale every stream to the length of the first."""
    sizes = torch.stack([stream.double().square().mean(-1).clamp_min(1e-5).sqrt() for stream in streams[1:]], 1)
    return torch.cat([torch.ones_like(sizes[:, :1]), streams[0].double().square().mean(-1, True).sqrt() / sizes], 1)


def _opt(config: Any) -> Family | None:
    """OPT with post-norms, or read out through a projection; other OPT models only add to the stream."""
    if not config.do_layer_norm_before:
        return _OPT
    return _PLAIN if config.word_embed_proj_dim != config.hidden_size else None


_PLAIN = Family(lambda parts, number, block, sublayers: sublayers)
_POST_NORM = partial(_post_norm, ("self_attn_layer_norm", "final_layer_norm"))
_OPT = Family(_POST_NORM, final_norm=".final_layer_norm")
_BART = Family(
    _POST_NORM,
    opening=lambda parts: [normed(parts, parts.model.base_model.decoder.layernorm_embedding)],
    start="model.decoder.layernorm_embedding",
    start_side="in",
    final_norm=".final_layer_norm",
)
_HYPER = Family(_hyper_connections, _copies, _hyper_head, start="model.embed_tokens")
# By the model type of the text configuration.
FAMILIES: dict[str, Family | Callable[[Any], Family | None]] = {
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), Family(_gemma4)),
    "doge": Family(_doge),
    "zaya": Family(_zaya),
    "beam": Family(_beam),
    "rwkv": Family(_rwkv, starts_inside=True, start="rwkv.blocks.0.pre_ln"),
    "openai-gpt": Family(partial(_post_norm, ("ln_1", "ln_2")), final_norm=".ln_2"),
    "opt": _opt,
    "bloom": lambda config: Family(_bloom) if config.apply_residual_connection_post_layernorm else None,
    "minimax": Family(_minimax),
    "marian": _OPT,
    **dict.fromkeys(("bart", "plbart", "trocr"), _BART),
    **dict.fromkeys(("deepseek_v4", "hy_v4"), _HYPER),
    "hrm_text": Family(
        opening=_hrm_text,
        start="model.embed_tokens",
        final_norm="model.H_module.final_norm",
        blocks=lambda model: [*model.base_model.L_module.layers, *model.base_model.H_module.layers],
    ),
    "inkling2_text": Family(_inkling2, ending=_inkling2_end, starts_inside=True),
    "qwen4_exp_text": Family(
        _gated_streams, _copies, _gated_end, start="model.embed_tokens", end="model.hyper_connection_mixer"
    ),
    "gemma3n_text": Family(_altup, _altup_start, _altup_end, start="model.embed_tokens", streams_first=True),
}


def family_of(model: Any) -> Family | None:
    """The family of a model's stream; None for a stream with additions only."""
    config = model.config.get_text_config()
    found = FAMILIES.get(config.model_type)
    if found is None or isinstance(found, Family):
        return found
    try:
        made = found(config)
    except TypeError as error:
        raise InputError(
            f"FAMILIES[{config.model_type!r}] must be a Family, not {found!r}: Family({error})."
        ) from error
    return made
