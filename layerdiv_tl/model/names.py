"""Names of the modules that write to the residual stream, in the model families of Transformers and TransformerLens.

The only tables about families. A new one needs an entry here, or `load_model(..., names={"mlp": "my_feedforward"})`;
every pass checks that nothing was missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._checks import choice

# Each entry is the name of a child of its parent, or a path below it; the first that exists is taken.
NAMES: dict[str, tuple[str, ...]] = {
    # The list of blocks, in any module.
    "blocks": ("layers", "h", "blocks", "layer"),
    # The table of learned positions, next to the list of blocks.
    "positions": ("embed_positions", "wpe", "position_embeddings", "positions_embed"),
    # In a block, sublayers that mix tokens: recurrent or linear-attention ones, and attention.
    "mixer": ("mamba_decoder.mamba", "linear_attn", "mamba", "conv", "mlstm_layer", "mixer", "temporal_block"),
    "attention": (
        *("attn.attention", "self_attn", "attention", "attn", "self_attention", "multi_head_attention"),
        "norm_attn_norm.attn",
    ),
    # In a block, sublayers of single tokens; a second one next to an MLP is a mixture of experts.
    "mlp": ("mlp", "feed_forward", "ffn", "mlp_block", "fc2", "shared_mlp", "block_sparse_moe", "experts"),
    "ple": ("per_layer_projection", "ple"),
    "laurel": ("laurel.linear_right",),
    # In a sublayer, the matrix at its end, whose inputs are its heads or neurons.
    "projection": (
        *("o_proj.linear", "o_proj", "out_proj", "dense", "linear_out", "down_proj", "w2", "dense_4h_to_h"),
        *("proj_down", "fc_out"),
        *("Wo", "output_linear", "fc2", "c_proj", "wo", "layer_2", "linear_2", "o"),
    ),
    # In a mixture, the module that adds its routed experts' outputs.
    "experts": ("experts",),
    # Attributes of a sublayer with its number of heads.
    "heads": ("num_v_heads", "num_heads", "n_mamba_heads", "num_attention_heads", "n_heads"),
    # Modules whose matrices truly multiply the stream, so that a gradient may pass them.
    "multipliers": (
        *("project_in", "project_out", "altup", "altup_projections", "altup_unembed_projections"),
        *("attn_sconv", "mlp_sconv", "post_attention_convolution", "post_mlp_convolution"),
    ),
}


def with_names(more: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """The names, with a user's own in front. Raises InputError for a role that does not exist."""
    names = dict(NAMES)
    for role, given in (more or {}).items():
        choice("the role in names", role, NAMES)
        names[role] = (*([given] if isinstance(given, str) else given), *names[role])
    return names
