"""Dictionaries as a unit: a sublayer's write divided into the latents of a sparse autoencoder or transcoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import choice, shown
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
        self.place, self.what, self.decode = place, f"the dictionary at {place}", getattr(given, "decode", None)
        if isinstance(given, tuple | list):
            given = _of_tensors(self.what, *given)
        encode, directions, bias = (getattr(given, name, None) for name in ("encode", "W_dec", "b_dec"))
        if not callable(encode) or not isinstance(directions, Tensor) or not isinstance(bias, Tensor | None):
            raise InputError(
                f"{self.what} must be a SAELens object, anything with encode, W_dec [latent, d] and b_dec [d], or "
                f"(W_enc, b_enc, W_dec, b_dec[, activation]), not {shown(given)}."
            )
        _check_array(f"W_dec of {self.what}", directions, ("latent", "d"))
        if bias is not None:
            _check_array(f"b_dec of {self.what}", bias, (directions.shape[1],))
        cfg = getattr(given, "cfg", None)
        is_transcoder = getattr(cfg, "d_out", None) is not None
        self.reads: Reads = reads or ("input" if is_transcoder else "write")
        hook = getattr(getattr(cfg, "metadata", None), "hook_name", None) or getattr(cfg, "hook_name", None)
        fold = _FOLDS.get(getattr(cfg, "normalize_activations", "none"))
        fault = self._misfit(hook) if isinstance(hook, str) else ""
        if getattr(given, "W_skip", None) is not None:
            fault = "it has a skip connection, which is no latent"
        elif fold is not None:
            fault = (
                f"its inputs are scaled outside its pass: fold that into its weights first (SAELens: sae.{fold}(...))"
            )
        if fault:
            raise InputError(f"{self.what} cannot be a unit: {fault}.")
        self.encode: Callable[[Tensor], Tensor] = encode
        self.directions = directions.detach()
        self.bias = None if bias is None or not bool(bias.detach().any()) else bias.detach()

    def _misfit(self, hook: str) -> str:
        """Explain why a dictionary trained at a hook point of TransformerLens cannot be used here; empty if it can."""
        kind = "mlp" if self.place.kind == "moe" else self.place.kind
        layer, wrote = re.search(r"blocks\.(\d+)\.", hook), _WRITES.search(hook)
        if (layer and int(layer[1]) != self.place.layer) or (wrote and wrote["kind"] != kind):
            return f"it was trained at {hook}, not at this sublayer"
        if (_WITHIN if self.reads == "write" else _BEFORE).search(hook):
            return (
                f"it was trained at {hook}, but it must read a sublayer's output (hook_mlp_out, hook_attn_out), or its "
                "input after the norm (a transcoder)"
            )
        return ""

    def values(self, x: Float[Tensor, "row _"]) -> Float[Tensor, "row latent"]:
        """Encode inputs as latents. Raises InputError where they do not fit, or do not decode as declared."""
        given = x.to(self.directions)
        try:
            with torch.no_grad():
                latents = self.encode(given)
                decoded = None if self.decode is None else self.decode(latents)
        except RuntimeError as error:
            raise InputError(f"{self.what} cannot read vectors of {x.shape[1]} numbers.") from error
        name, shape = f"latents of {self.what}", (len(x), len(self.directions))
        _check_array(name, latents, shape, finite=bool(x.isfinite().all()))
        if decoded is not None:
            linear = latents @ self.directions + (0.0 if self.bias is None else self.bias)
            off = float((decoded - linear).norm()) if decoded.shape == linear.shape else float("inf")
            if not off <= _ROUNDING.get(given.dtype, 5e-2) * float(linear.norm()):
                raise InputError(
                    f"the output of {self.what} is not its latents times W_dec plus b_dec (its activations are "
                    "normalized or reshaped): fold that into its weights first."
                )
        return latents.to(x)


def _of_tensors(what: str, *given: Any) -> SimpleNamespace:
    """Make a dictionary of plain weights: latents = activation(x · W_enc + b_enc)."""
    activation = given[4] if len(given) == 5 else torch.relu
    tensors = [torch.as_tensor(x).detach() for x in given[:4] if isinstance(x, Tensor) or hasattr(x, "__array__")]
    if len(given) not in (4, 5) or len(tensors) < 4 or not callable(activation):
        raise InputError(
            f"{what} must be (W_enc [d, latent], b_enc [latent], W_dec [latent, d], b_dec [d]), four tensors, and "
            "perhaps an activation function; ReLU is the default."
        )
    W_enc, b_enc, W_dec, b_dec = tensors
    return SimpleNamespace(encode=lambda x: activation(x @ W_enc + b_enc), W_dec=W_dec, b_dec=b_dec)


def _check_array(name: str, x: Any, shape: Sequence[int | str], finite: bool = True) -> None:
    """Raise InputError for anything but a tensor of finite numbers of a shape, whose named axes have any length."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dim() == len(shape)
    fits = fits and all(isinstance(n, str) or n == length for n, length in zip(shape, x.shape, strict=True))
    if not fits or (finite and not bool(x.isfinite().all())):
        got = f"a tensor of the shape {tuple(x.shape)} and type {x.dtype}" if isinstance(x, Tensor) else shown(x)
        axes = ", ".join(map(str, shape))
        raise InputError(f"{name} must hold finite floating-point numbers [{axes}], but is {got}.")


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
        """Raise InputError for a sublayer that the model does not have, and for directions of another width."""
        writers = {writer.component: writer for writer in path.writers}
        for place, latents in self._latents.items():
            if place not in writers:
                raise InputError(f"there is a dictionary for {place}, but this model has no such sublayer.")
            wide, width = latents.directions.shape[1], writers[place].form.width
            if wide != width:
                raise InputError(f"{latents.what} writes {wide} numbers, but the residual stream has {width}.")

    def __repr__(self) -> str:
        return f"dictionary({', '.join(f'{at}: {len(x.directions)} latents' for at, x in self._latents.items())})"


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

    Raises InputError for anything but a dictionary, for one that was trained elsewhere or expects inputs on another
    scale, and where its reconstruction is not latents · W_dec + b_dec (found in the first pass).

    >>> import layerdiv_tl as ld, torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=1, num_attention_heads=2))
    >>> sae = torch.randn(16, 3), torch.zeros(3), torch.randn(3, 16), torch.zeros(16)
    >>> c = ld.contributions(tiny, [[1, 2, 3]], [7, 9], unit=ld.dictionary(sae, "L0.mlp"))
    >>> [component.label for component in c.components], bool(c.identity_gap < 1e-6)
    (['embed', 'L0.attn', 'L0.F0', 'L0.F1', 'L0.F2', 'L0.mlp.error'], True)
    """
    if reads is not None:
        choice("reads", reads, get_args(Reads))
    if not isinstance(given, Mapping) and sublayer is None:
        raise InputError("a dictionary needs the label of its sublayer, as in ld.dictionary(sae, 'L12.mlp').")
    several = given if isinstance(given, Mapping) else {sublayer: given}
    if isinstance(given, Mapping) and sublayer is not None:
        raise InputError("a dict of dictionaries names their sublayers itself: leave sublayer out.")
    latents: dict[Component, _Latents] = {}
    for place, one in several.items():
        component = Component.parse(str(place) if isinstance(place, Component) else place)
        if component.kind not in _LATENTS or component.repeat is not None or component.name is not None:
            raise InputError(f"{shown(place)} is not the label of a sublayer, such as 'L12.mlp' or 'L12.attn'.")
        latents[component] = _Latents(one, component, reads)
    if not latents:
        raise InputError("there is no dictionary: give one, or a dict of them by the labels of their sublayers.")
    kinds = [(place.layer, _LATENTS[place.kind]) for place in latents]
    if len(set(kinds)) < len(kinds):
        raise InputError("two dictionaries would give latents of one layer the same labels: give one at a time.")
    return Dictionary(latents)
