"""The residual stream of a Hugging Face model, found from the names of its modules.

This covers architectures that TransformerLens does not list, and hybrids, whose recurrent and linear-attention
sublayers (kind `mixer`) have no hook there. The result is a guess until the components sum to the logits, which every
forward pass checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .architecture import HALF, WHY_WHOLE, HookPoint, OutputMap, Sublayer, SublayerKind
from .capture import watching
from .experts import mixture_in
from .norm import Norm, probe
from .weights import device_of, inputs_of, is_present, linear_map, linear_rows, matrix_shape

# Children of a block that write to its stream, those that mix tokens first.
_MIXERS = ("mamba_decoder.mamba", "linear_attn", "mamba", "conv", "mlstm_layer", "mixer", "temporal_block")
_ATTENTIONS = ("self_attn", "attention", "attn", "self_attention", "multi_head_attention", "norm_attn_norm.attn")
_MLPS = ("mlp", "feed_forward", "ffn", "mlp_block", "fc2", "shared_mlp", "block_sparse_moe")
# Modules between these and the stream, in blocks that have both of a pair.
_POSTS = (
    ("post_attention_layernorm", "post_feedforward_layernorm"),
    ("post_self_attn_layernorm", "post_mlp_layernorm"),
    ("post_operator_norm", "post_ffn_norm"),
    ("post_norm1", "post_norm2"),
    ("attn_sconv", "mlp_sconv"),
    ("post_attention_convolution", "post_mlp_convolution"),
)
_PROJECTIONS = (
    *("o_proj", "out_proj", "dense", "linear_out", "down_proj", "w2", "dense_4h_to_h", "proj_down"),
    *("output_linear", "fc2", "c_proj", "wo", "layer_2"),
)
_HEADS = ("num_v_heads", "num_heads", "n_mamba_heads", "num_attention_heads", "n_heads")
_BLOCKS = ("layers", "h", "blocks", "layer")
_FINAL_NORMS = (
    *("norm", "final_layernorm", "final_layer_norm", "norm_f", "ln_f", "final_norm", "embedding_norm"),
    *("out_norm", "layer_norm", "layernorm", "ln_out"),
)
_NEEDED = {"list of blocks": "blocks", "final norm": "final_norm", "unembedding": "unembed"}
_POSITIONS = ("embed_positions", "wpe", "position_embeddings", "positions_embed")
# Class names of mixers whose name in the block may also be that of softmax attention.
_NOT_ATTENTION = re.compile("Delta|Rwkv|Mamba|Recurrent|Lightning|LSTM|Conv")
# Names of the factor on all writes of a block.
_SCALES = ("residual_multiplier", "residual_scale")


class ModuleFinder:
    """A model in which parts are looked up.

    Attributes:
        unembed, projection: The unembedding, and the matrix between it and the final norm; None where there is none.
        stream_divisor: The divisor of the normed stream there.
        end: The input of the unembedding, if no norm stands before it.
        streams_first: True if blocks take several streams, before the rows.
    """

    blocks: list[Any]
    unembed: Any
    projection: Any = None
    stream_divisor = 1.0
    end: HookPoint | None = None
    streams_first = False

    def __init__(self, model: Any) -> None:
        self.model, self.embedding = model, model.get_input_embeddings()
        self.device = device_of(self.embedding, torch.device("cpu"))

    @cached_property
    def block_points(self) -> tuple[HookPoint, ...]:
        """The inputs of all blocks."""
        return tuple(HookPoint(block, "in", streams_first=self.streams_first) for block in self.blocks)

    @cached_property
    def width(self) -> int:
        """The stream's width."""
        last = self.unembed if self.projection is None else self.projection
        if (shape := matrix_shape(last)) is None:
            raise InputError(
                f"this model's unembedding is a {type(last).__name__} without a plain weight matrix (wrapped "
                "or quantized), so it cannot be read: load the model with a plain one."
            )
        return shape[0]

    def norm(self, module: nn.Module) -> Norm:
        """Identify a norm's parameters."""
        return probe(module, self.width, self.model.dtype, device_of(module, self.device))

    def rows(self, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows `[id, d]` of the unembedding, with preceding maps folded in, and their biases; None for all."""
        rows, bias = linear_rows(self.unembed, ids)
        return (rows if self.projection is None else rows @ self.projection.weight.detach().to(rows)), bias

    def to_unembed(self, normed: Tensor) -> Tensor:
        """Map the normed stream to the unembedding's input."""
        read: Tensor = normed if self.projection is None else self.projection(normed)
        return read if self.stream_divisor == 1.0 else read / self.stream_divisor

    def output_map(self, projection: Any, count: int | None, scale: float, name: str) -> OutputMap | None:
        """A sublayer as a sum over `count` heads, or over its projection's inputs; None if it is no such sum."""
        width = inputs_of(projection, self.width)
        count = count if count is not None else width
        if width is None or not count or width % count:
            return None
        biased = is_present(getattr(projection, "bias", None))
        return OutputMap(count, HookPoint(projection, "in", name), partial(linear_map, projection), biased, scale)

    def with_parts(
        self, sublayer: Sublayer, block: Any, module: Any, output_map: OutputMap | None, post: Any, post_name: str
    ) -> Sublayer:
        """Give a sublayer its parts, experts or those of its output map, or the reason why it has none.

        `post` stands between the module and the stream.
        """
        inputs = None if module is None else HookPoint(module, "in")
        mixture, why = mixture_in(sublayer.kind, module, block, post, self.norm)
        if mixture or why or output_map is None or (post is not None and "Norm" not in type(post).__name__):
            reason = WHY_WHOLE["mixture" if mixture or why or hasattr(module, "experts") else "hidden"]
            return replace(sublayer, inputs=inputs, uncut_reason=reason, mixture=mixture, experts_reason=why)
        if post is not None:
            output_map = output_map.with_post(self.norm(post), HookPoint(post, "in", post_name))
        return replace(sublayer, inputs=inputs, output_map=output_map)


class Structure(ModuleFinder):
    """The parts of a model by their places in its modules.

    Parts that names do not identify are given: the list of blocks, and as paths the final norm (from the model, or
    after a "." from the last block) or the `end` in its place. Raises InputError for a model in which no blocks, final
    norm or unembedding can be found.
    """

    def __init__(
        self,
        model: Any,
        blocks: list[nn.Module] | None = None,
        final_norm: str = "",
        end: str = "",
        streams_first: bool = False,
    ) -> None:
        super().__init__(model)
        self.config, self.streams_first = model.config.get_text_config(), streams_first
        parent, found = self._blocks()
        self.blocks = blocks or found
        self.final_norm = _first(parent, _FINAL_NORMS)
        if final_norm:
            self.final_norm = (self.blocks[-1] if final_norm[0] == "." else model).get_submodule(final_norm.strip("."))
        if end:
            self.final_norm, self.end = nn.Identity(), HookPoint(model.get_submodule(end))
        self.unembed = model.get_output_embeddings()
        self.projection = _first(parent, ("project_out",))
        self.pos_embed = _first(parent, _POSITIONS)
        missing = [n for n, part in _NEEDED.items() if (x := getattr(self, part)) is None or x == []]
        if missing:
            hint = "as in post-norm models and encoders"
            if missing == ["unembedding"]:
                hint = "as in a base model: load it with AutoModelForCausalLM"
            raise InputError(
                f"{type(model).__name__} cannot be decomposed: TransformerLens does not say where it writes to its "
                f"residual stream, and no {' or '.join(missing)} is found in it ({hint})."
            )
        norms = [child for child in self.blocks[0].children() if "Norm" in type(child).__name__]
        self.parallel = len(norms) == 1 and len(list(self._writes(self.blocks[0]))) > 1
        self.stream_divisor, factor, cap = self._probe()
        self.transform = partial(transformed, factor=factor, cap=cap)

    def _blocks(self) -> tuple[nn.Module, list[nn.Module]]:
        """The list of blocks and the module that holds it."""
        for parent in self.model.base_model.modules():
            found = _first(parent, _BLOCKS)
            if isinstance(found, nn.ModuleList) and len(found) and any(self._writes(found[0])):
                return parent, list(found)
        return self.model, []

    def _writes(self, block: nn.Module) -> Iterator[tuple[SublayerKind, str, nn.Module]]:
        """Kind, name and module of every child that writes."""
        for name in (*_MIXERS, *_ATTENTIONS):
            if (module := _first(block, (name,))) is not None:
                yield _token_kind(name, module), name, module
        mlps = [(name, module) for name in _MLPS if (module := _first(block, (name,))) is not None]
        for number, (name, module) in enumerate(mlps):
            yield "moe" if number else "mlp", name, module

    def sublayers(self, position: int, layer: int) -> Iterator[Sublayer]:
        """The sublayers of the block at an index, with the given layer number."""
        block = self.blocks[position]
        posts = next((pair for pair in _POSTS if all(_first(block, (name,)) is not None for name in pair)), None)
        scale = next((float(getattr(block, name)) for name in _SCALES if hasattr(block, name)), 1.0)
        for kind, name, module in self._writes(block):
            factor = {"mixer": "ssm_out_multiplier", "attn": "attn_out_multiplier"}.get(kind, "")
            own = scale * float(getattr(block, factor, 1.0))
            post = None if posts is None else _first(block, (posts[kind in ("mlp", "moe")],))
            place = f"blocks.{position}.{name}"
            output = HookPoint(module if post is None else post, name=f"{place}.hook_out")
            made = self._output_map(kind, module, own, f"{place}.hook_values")
            yield self.with_parts(Sublayer(kind, layer, output, own), block, module, made, post, f"{place}.hook_scale")

    def _output_map(self, kind: SublayerKind, module: Any, scale: float, name: str) -> OutputMap | None:
        if hasattr(module, "o_a_proj"):
            return self._grouped(module, scale)
        projection = module if isinstance(module, nn.Linear) else _first(module, _PROJECTIONS)
        if isinstance(module, nn.Sequential):
            projection = list(module.children())[-1]
        count = None if kind in ("mlp", "moe") else self._heads(kind, module)
        # Falcon-H1's MLP multiplies the output of its projection.
        return self.output_map(projection, count, scale * float(getattr(module, "down_multiplier", 1.0)), name)

    def _grouped(self, module: Any, scale: float) -> OutputMap:
        """Handle DeepSeek-V4's attention, whose heads pass a grouped projection before the shared one."""

        def projection() -> tuple[Tensor, None]:
            groups = module.o_a_proj.weight.detach().view(module.o_a_proj.n_groups, -1, module.o_a_proj.weight.shape[1])
            shared = module.o_b_proj.weight.detach().unflatten(1, (len(groups), -1))
            return torch.einsum("dgr,gri->gid", shared, groups).flatten(0, 1), None

        return OutputMap(self.config.num_attention_heads, HookPoint(module.o_a_proj, "in"), projection, False, scale)

    def _heads(self, kind: SublayerKind, module: nn.Module) -> int:
        """The number of heads of a sublayer, from the module itself; 0 for a mixer that has none."""
        own = next((n for name in _HEADS if isinstance(n := getattr(module, name, None), int)), 0)
        count = own or (int(self.config.num_attention_heads) if kind == "attn" else 0)
        # A differential head is two halves of twice the width.
        return count // 2 if type(module).__name__.startswith("DiffLlama") else count

    def _probe(self) -> tuple[float, float, float | None]:
        """Measure, in one pass, the normed stream's divisor before the unembedding, and the factor and cap behind it.

        Raises InputError where these numbers do not explain the model's logits.
        """
        points = self.end or HookPoint(self.final_norm), HookPoint(self.unembed, "in"), HookPoint(self.unembed)
        ids = torch.arange(2, device=self.device)[None]
        with torch.no_grad(), watching(points) as seen:
            logits = self.model(input_ids=ids, use_cache=False, return_dict=True).logits.double()
        normed, read, output = (seen[point][-1].double() for point in points)
        if self.projection is not None:
            normed = self.projection(normed.to(self.model.dtype)).detach().double()
        divisor = float(normed.norm() / read.norm()) if normed.shape == read.shape else float("nan")
        divisor = 1.0 if abs(divisor - 1) < 1e-6 else divisor
        settings = {name: value for name, value in vars(self.config).items() if "logit" in name or "lm_head" in name}
        numbers = {abs(float(x)) for x in settings.values() if isinstance(x, int | float) and x}
        rtol = 3e-2 if self.model.dtype in HALF else 1e-3  # keeps a factor from being found twice within it
        close = torch.allclose(normed / divisor, read, rtol=rtol, atol=rtol * 1e-2 * float(read.abs().max()))
        for cap in (None, *numbers):
            for factor in (1.0, *numbers, *(1 / x for x in numbers)):
                answer = transformed(output, factor, cap)
                if close and torch.allclose(answer, logits, rtol=rtol, atol=rtol * 1e-2 * float(logits.abs().max())):
                    return divisor, factor, cap
        raise InputError(
            f"{type(self.model).__name__} cannot be decomposed: what stands between its final norm and its logits is "
            "not one unembedding with a factor or a soft cap."
        )


def transformed(logits: Tensor, factor: float, cap: float | None) -> Tensor:
    """Compute the logits from the unembedding's output."""
    return logits * factor if cap is None else cap * torch.tanh(logits * factor / cap)


def _token_kind(name: str, module: nn.Module) -> SublayerKind:
    """The kind of a sublayer that mixes tokens, by its class; a `mixer` may be an MLP (Nemotron-H)."""
    cls = type(module).__name__
    if name == "mixer" and re.search("MLP|MoE", cls):
        return "mlp"
    if name in _ATTENTIONS or name in ("mixer", "temporal_block"):
        return "mixer" if _NOT_ATTENTION.search(cls) or not re.search("[Aa]ttention", cls) else "attn"
    return "mixer"


def _first(module: nn.Module, names: tuple[str, ...]) -> Any:
    """Find the first child of these names, which may be paths; None if there is none."""
    for name in names:
        found: Any = module
        for step in name.split("."):
            found = getattr(found, step, None)
        if isinstance(found, nn.Module):
            return found
    return None
