"""TransformerLens: a bridge or HookedTransformer as a model with writers, and its cache in place of a pass.

A bridge wraps the modules of a Hugging Face model, which are found as in any other. TransformerLens' own models (its
toys, and the HookedTransformer of version 3.9) get their writers from its names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component, Kind
from ..errors import InputError
from .passes import CutOf, Pass
from .patching import silent
from .path import Path
from .probe import find_path, transformed
from .writers import Writer

_KINDS: tuple[Kind, ...] = ("attn", "mlp")


def is_transformer_lens(x: Any) -> bool:
    """True for a TransformerBridge or a HookedTransformer (which version 4 no longer has)."""
    kinds = {cls.__name__ for cls in type(x).__mro__ if cls.__module__.startswith("transformer_lens.")}
    return bool(kinds & {"TransformerBridge", "HookedTransformer"})


def is_cache(x: Any) -> bool:
    """True for an `ActivationCache`, which knows its model."""
    return any(cls.__name__ == "ActivationCache" for cls in type(x).__mro__) and hasattr(x, "model")


def path_of(root: Any, names: Any = None) -> Path:
    """Find the path of a bridge or HookedTransformer. Raises InputError if it cannot be decomposed."""
    original = getattr(root, "original_model", None)
    if hasattr(original, "get_output_embeddings"):
        return find_path(original, root.unembed, names=names)
    return find_path(Native(root), root.unembed, _native_writers(root), names)


class Native(nn.Module):
    """A model of TransformerLens itself, called as Hugging Face's are."""

    def __init__(self, root: Any) -> None:
        super().__init__()
        self.root = root
        cfg = root.cfg
        text = SimpleNamespace(
            vocab_size=cfg.d_vocab, n_ctx=cfg.n_ctx, output_logits_soft_cap=getattr(cfg, "output_logits_soft_cap", 0)
        )
        self.config = SimpleNamespace(get_text_config=lambda: text)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, use_cache: bool = False) -> Tensor:
        """Return the logits."""
        more = {} if attention_mask is None else {"attention_mask": attention_mask}
        return self.root(input_ids, return_type="logits", **more)

    def get_input_embeddings(self) -> Any:
        """The embedding, whose rows are the token ids."""
        return SimpleNamespace(weight=self.root.W_E)


class Matrix(nn.Module):
    """The map from all heads or neurons to the stream, of TransformerLens' parameters."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.matrix, self.offset = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """x W + b."""
        return x @ self.matrix.detach().reshape(-1, self.matrix.shape[-1]) + self.offset.detach()


def _native_writers(root: Any) -> list[Writer]:
    """Writers by TransformerLens' names."""
    is_hooked = not hasattr(root, "original_model")
    embed = root.hook_embed if is_hooked else root.embed
    writers = [Writer(Component("embed"), embed, embed)]
    if getattr(root, "pos_embed", None) is not None and root.cfg.positional_embedding_type == "standard":
        place = root.hook_pos_embed if is_hooked else root.pos_embed
        writers.append(Writer(Component("pos_embed"), place, place))
    for layer, block in enumerate(root.blocks):
        for kind in _KINDS:
            if (owner := getattr(block, kind, None)) is None:
                continue
            writer = Writer(Component(kind, layer), owner, owner, block=block)
            writer.heads = root.cfg.n_heads if kind == "attn" else 0
            if is_hooked:
                _hooked(writer, block, kind)
            else:
                writer.projection = owner.o if kind == "attn" else owner.out
            writers.append(writer)
    return writers


def _hooked(writer: Writer, block: Any, kind: Kind) -> None:
    """Give a HookedTransformer's writer its places, which are hook points."""
    owner: Any = writer.owner
    writer.place = getattr(block, f"hook_{kind}_out")
    names = ("W_O", "b_O") if kind == "attn" else ("W_out", "b_out")
    weight, bias = (getattr(owner, name, None) for name in names)
    if weight is None or bias is None:  # a mixture of experts
        writer.maps = (owner,)
        return
    post = getattr(block, "ln1_post" if kind == "attn" else "ln2_post", None)
    writer.projection = writer.source = owner.hook_z if kind == "attn" else owner.hook_post
    writer.maps = (Matrix(weight, bias), *([] if post is None else [post]))


def hook_names(path: Path, cut_of: CutOf) -> tuple[str, ...]:
    """TransformerLens' names of all that a unit needs: a `names_filter` for `run_with_cache`."""
    names = [_name(path, _end(path), "hook_in")]
    if hasattr(path.unembed, "hook_in"):  # to which the components must sum
        names.append(_name(path, path.unembed, "hook_in"))
    if hasattr(path.writers[0].owner, "hook_in"):
        names.append(_TOKENS)
    for writer in path.writers:
        names.append(_name(path, writer.place, "hook_out"))
        if (source := _source(writer, cut_of(writer))) is not None:
            names.append(_name(path, source, "hook_in"))
    return tuple(dict.fromkeys(names))


def _end(path: Path) -> Any:
    """The module whose input is the end of the stream, or a hook point there."""
    if isinstance(path.module, Native) and not hasattr(path.norm or path.unembed, "hook_in"):
        return path.module.root.blocks[-1].hook_resid_post
    return path.unembed if path.norm is None else path.norm


def _source(writer: Writer, cut: str | None) -> nn.Module | None:
    """The module whose input is cut."""
    if cut == "expert":
        raise InputError("TransformerLens has no hook on single experts: give the model and prompts.")
    return None if cut is None else writer.owner if cut == "input" else writer.projection


def _name(path: Path, module: Any, side: str) -> str:
    """TransformerLens' name of a module's input or output, or of a hook point."""
    if type(module).__name__ != "HookPoint" and not hasattr(module, side):  # a module that a component wraps
        wrappers = (m for m in path.module.modules() if getattr(m, "original_component", None) is module)
        module = next(wrappers, module)
    point: Any = module if type(module).__name__ == "HookPoint" else getattr(module, side, None)
    if not isinstance(getattr(point, "name", None), str):
        raise InputError(f"TransformerLens has no hook on {type(module).__name__}: give the model and prompts.")
    return str(point.name)


def cached_tokens(path: Path, cache: Any) -> Int[Tensor, "row token"]:
    """The token ids that a cache was taken with, if it holds them (a bridge's does); else −1 for each."""
    name = _name(path, path.writers[0].place, "hook_out")
    if name not in cache:
        raise InputError(f"the cache lacks {name}: {_TAKE}")
    shape = cache[name].shape[:-1]
    own = [cache[name] for name in (_TOKENS,) if name in cache]
    own = [ids for ids in own if not ids.is_floating_point() and ids.shape == shape]
    return torch.atleast_2d(own[0] if own else torch.full(shape, -1))


_TOKENS = "embed.hook_in"  # a bridge's hook on the token ids
_TAKE = (
    "take it without names_filter=, or with names_filter=list(model.hook_names(unit)), where model = ld.load_model(…)."
)


def read_cache(
    path: Path,
    cache: Any,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    column: Int[Tensor, " row"],
    cut_of: CutOf,
) -> Pass:
    """What a cache shows at one column of each row. The read-out runs the model's own modules.

    Raises InputError for missing names, wrong shapes, and tokens that the cache was not taken with.
    """
    if not path.by_token:
        raise InputError("the path of this model mixes tokens, so a cache cannot be read: give prompts.")
    names = hook_names(path, cut_of)
    if missing := [name for name in names if name not in cache and name != _TOKENS]:
        raise InputError(f"the cache lacks {missing[0]} ({len(missing)} of {len(names)} names): {_TAKE}")
    rows, column = torch.arange(len(ids)), column.cpu()
    positions = next((w.place for w in path.writers if w.kind == "pos_embed"), None)

    def take(module: nn.Module, side: str) -> Tensor:
        x = cache[_name(path, module, side)]
        x = x[None] if x.shape[0] == ids.shape[1] and len(ids) == 1 and x.shape[:2] != ids.shape else x
        if module is positions and len(x) == 1:  # learned ones: one row for all
            x = x.expand(len(ids), *x.shape[1:])
        if x.shape[:2] != ids.shape:
            raise InputError(f"the cache has the shape {tuple(x.shape)}, but tokens have {tuple(ids.shape)}.")
        return x[rows, column][:, None].flatten(2)

    seen = Pass(ids[rows, column][:, None].clamp_min(0), torch.zeros_like(column))
    for writer in path.writers:
        source = _source(writer, cut_of(writer))
        seen.wrote(writer, take(writer.place, "hook_out"), None if source is None else take(source, "hook_in"))
    final = take(_end(path), "hook_in")
    seen.finals = [] if path.norm is None else [final]
    seen.unembedded, seen.logits = _read_out(path, cache, take, final)
    # A model may have multiplied its embedding in place, after it was cached.
    scale = _embedding_scale(path, ids, mask, cache[_name(path, path.writers[0].place, "hook_out")])
    seen.writes[0] = seen.writes[0] / scale
    return seen


def _read_out(
    path: Path, cache: Any, take: Callable[[nn.Module, str], Tensor], final: Float[Tensor, "row 1 d"]
) -> tuple[Float[Tensor, "row v"], Float[Tensor, "row v"]]:
    """The unembedding's output and the logits: the latest that the cache has, to which the components must sum.

    So they miss it if a hook changed something behind them, as on the final norm.
    """
    unembed: Any = path.unembed
    if hasattr(unembed, "hook_out") and _name(path, unembed, "hook_out") in cache:
        unembedded = take(unembed, "hook_out")[:, 0]
    elif hasattr(unembed, "hook_in"):
        with torch.inference_mode(), silent(unembed):
            unembedded = unembed(take(unembed, "hook_in"))[:, 0]
    else:
        return path.read_out(final[:, 0])
    return unembedded, transformed(unembedded, path.factor, path.soft_cap)


def _embedding_scale(
    path: Path, ids: Int[Tensor, "row token"], mask: Int[Tensor, "row token"], embedded: Float[Tensor, "row token d"]
) -> float:
    """What a cached embedding is multiplied by. Raises InputError for one that is not that of these tokens."""
    embed = path.writers[0]
    if bool((ids < 0).any()) or type(embed.owner).__name__ == "HookPoint":
        return 1.0
    with torch.inference_mode(), ExitStack() as stack:
        for one in dict.fromkeys((embed.owner, *embed.maps)):
            stack.enter_context(silent(one))
        own = embed.owner(ids.to(path.device))
        for one in embed.maps[1:]:
            own = one(own)
    own, embedded = own.float().cpu(), embedded.float().cpu().view(own.shape)
    off = torch.cosine_similarity(embedded, own, dim=2) < 0.99
    off &= mask.bool().cpu()
    if bool(off.any()):
        row, token = (int(i) for i in off.nonzero()[0])
        raise InputError(
            f"the cache was taken with other tokens: at row {row}, token {token} its stream does not begin with the "
            f"embedding of token {int(ids[row, token])}."
        )
    scale = float((embedded * own).sum() / own.square().sum())
    return 1.0 if abs(scale - 1) < 1e-2 else scale
