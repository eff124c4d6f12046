"""Dictionaries as a unit: a sublayer's write divided into the latents of a sparse autoencoder or transcoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import shown
from ..components import Component, Kind
from ..errors import InputError
from .path import Path
from .units import CustomUnit, Parts, names_of, total
from .writers import Writer

Reads = Literal["write", "input"]
_LATENTS: dict[str, tuple[Kind, Kind]] = {
    "attn": ("attn_latent", "attn_bias"),
    "mixer": ("mixer_latent", "mixer_bias"),
    "mlp": ("mlp_latent", "mlp_bias"),
    "moe": ("mlp_latent", "mlp_bias"),
}
# SAELens' methods that fold into the weights what a dictionary's own pass leaves to the caller.
_FOLDS = {
    "expected_average_only_in": "fold_activation_norm_scaling_factor",
    "covariance_whitening": "fold_activation_whitening",
}
# TransformerLens' hooks: sublayers' outputs, and those on the stream and within a sublayer that a unit cannot read.
_WRITES = re.compile(r"hook_(?P<kind>attn|mlp)_out$")
_BEFORE = re.compile(r"hook_resid_|hook_z$|hook_mlp_in$|hook_attn_in$")
_WITHIN = re.compile(_BEFORE.pattern + r"|mlp\.hook_(pre|post)$|ln[12]\.hook_normalized$")
# The tolerance for reconstruction minus latents times directions, relative to its size, by precision.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}


class _Latents:
    """One dictionary at one sublayer; reconstruction = latents · directions + bias."""

    def __init__(self, given: Any, place: Component, reads: Reads | None) -> None:
        self.what = f"the dictionary at {place}"
        if isinstance(given, tuple | list):
            W_enc, b_enc, W_dec, b_dec, activation = given if len(given) == 5 else (*given, torch.relu)
            given = SimpleNamespace(encode=lambda x: activation(x @ W_enc + b_enc), W_dec=W_dec, b_dec=b_dec)
        self.encode: Callable[[Tensor], Tensor] = given.encode
        self.decode: Callable[[Tensor], Tensor] | None = getattr(given, "decode", None)
        self.directions: Tensor = given.W_dec.detach()
        self.bias: Tensor | None = None if given.b_dec is None or not given.b_dec.any() else given.b_dec.detach()
        cfg = getattr(given, "cfg", None)
        is_transcoder = getattr(cfg, "d_out", None) is not None
        self.reads: Reads = reads or ("input" if is_transcoder else "write")
        hook = getattr(getattr(cfg, "metadata", None), "hook_name", None) or getattr(cfg, "hook_name", None) or ""
        fold = _FOLDS.get(getattr(cfg, "normalize_activations", "none"))
        if getattr(given, "W_skip", None) is not None:
            raise InputError(f"{self.what} has a skip connection, which is no latent.")
        if fold is not None:
            raise InputError(f"{self.what} expects scaled inputs: fold that into its weights first, sae.{fold}(...).")
        layer, wrote = re.search(r"blocks\.(\d+)\.", hook), _WRITES.search(hook)
        is_elsewhere = layer is not None and int(layer[1]) != place.layer
        is_other = wrote is not None and wrote["kind"] != ("mlp" if place.kind == "moe" else place.kind)
        if is_elsewhere or is_other or (_WITHIN if self.reads == "write" else _BEFORE).search(hook):
            raise InputError(
                f"{self.what} was trained at {hook}, but must read this sublayer's output (hook_mlp_out), or its input "
                "after the norm (a transcoder)."
            )

    def values(self, x: Float[Tensor, "row _"]) -> Float[Tensor, "row latent"]:
        """Encode inputs as latents. Raises InputError where they do not decode as declared."""
        given = x.to(self.directions)
        with torch.no_grad():
            latents = self.encode(given)
            if self.decode is not None:
                linear = latents @ self.directions + (0.0 if self.bias is None else self.bias)
                off = float((self.decode(latents) - linear).norm())
                if not off <= _ROUNDING.get(given.dtype, 5e-2) * float(linear.norm()):
                    raise InputError(
                        f"the output of {self.what} is not its latents times W_dec plus b_dec (its activations are "
                        "normalized or reshaped): fold that into its weights first."
                    )
        return latents.to(x)


class Dictionary(CustomUnit):
    """The unit that `dictionary` makes."""

    name = "dictionary"

    def __init__(self, latents: Mapping[Component, _Latents]) -> None:
        self._latents = dict(latents)

    def cut_of(self, writer: Writer) -> str | None:
        """A transcoder reads the sublayer's input."""
        latents = self._latents.get(writer.component)
        return "input" if latents is not None and latents.reads == "input" else None

    def split(self, writer: Writer, whole: Component, write: Tensor, received: Any, g: Tensor) -> list[Parts] | None:
        """Latents, the decoder's bias and the error."""
        if (latents := self._latents.get(writer.component)) is None:
            return None
        x = write if received is None else received
        active = latents.values(x.flatten(0, 1)).view(*x.shape[:2], -1).to(g)
        kind, bias_kind = _LATENTS[writer.kind]
        u = torch.einsum("kntl,ntl->knl", g @ latents.directions.to(g).T, active)
        error = total(g, write) - u.sum(-1)
        parts: list[Parts] = [(names_of(kind, whole, u.shape[-1]), u)]
        if latents.bias is not None:
            bias = (g @ latents.bias.to(g)).sum(-1)
            error = error - bias
            parts.append(((replace(whole, kind=bias_kind),), bias[..., None]))
        return [*parts, ((replace(whole, kind=cast(Kind, f"{whole.kind}.error")),), error[..., None])]

    def check(self, path: Path) -> None:
        """Raise InputError for a sublayer that the model does not have."""
        for place in self._latents:
            if place not in {writer.component for writer in path.writers}:
                raise InputError(f"there is a dictionary for {place}, but this model has no such sublayer.")


def dictionary(given: Any, sublayer: Any = None, reads: Reads | None = None) -> Dictionary:
    """Make a unit of the latents of sparse autoencoders or transcoders: `unit=ld.dictionary(sae, "L12.mlp")`.

    A sublayer's write z is divided into latent × direction for every latent (`L12.F7`; for an attention `L12.AF7`), the
    decoder's bias (`L12.mlp_bias`) and the reconstruction error, `L12.mlp.error`. The sum is exact however good the
    dictionary is, and results report the size of the error.

    Args:
        given: A SAELens SAE or transcoder; anything with `encode`, `W_dec` `[latent, d]` and `b_dec` `[d]`; or a tuple
            `(W_enc [d, latent], b_enc, W_dec, b_dec[, activation])` with ReLU by default. Or a dict of these by the
            labels of their sublayers.
        sublayer: The label of the sublayer whose write is divided.
        reads: "write": the sublayer's addition to the stream, as for SAEs; "input": its input after its norm, as for
            transcoders. None: as the object declares; "write" for a tuple.

    Raises InputError for a dictionary that was trained elsewhere or expects inputs on another scale, and where its
    reconstruction is not latents · W_dec + b_dec (found in the first pass).

    >>> import layerdiv_tl as ld, torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=1, num_attention_heads=2))
    >>> sae = torch.randn(16, 3), torch.zeros(3), torch.randn(3, 16), torch.zeros(16)
    >>> c = ld.contributions(tiny, [[1, 2, 3]], [7, 9], unit=ld.dictionary(sae, "L0.mlp"))
    >>> [component.label for component in c.components], bool(c.identity_gap < 1e-6)
    (['embed', 'L0.attn', 'L0.F0', 'L0.F1', 'L0.F2', 'L0.mlp.error'], True)
    """
    several = given if isinstance(given, Mapping) else {sublayer: given}
    latents: dict[Component, _Latents] = {}
    for place, one in several.items():
        component = Component.parse(str(place))
        if component.kind not in _LATENTS:
            raise InputError(f"{shown(place)} is not the label of a sublayer, such as 'L12.mlp' or 'L12.attn'.")
        latents[component] = _Latents(one, component, reads)
    kinds = [(place.layer, _LATENTS[place.kind]) for place in latents]
    if len(set(kinds)) < len(kinds):
        raise InputError("two dictionaries would give latents of one layer the same labels: give one at a time.")
    return Dictionary(latents)
