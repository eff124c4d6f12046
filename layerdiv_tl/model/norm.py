"""Affine maps on a residual stream's path: norms, identified by their outputs, gains, matrices, and steps of these."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError


@dataclass(frozen=True, eq=False)
class Norm:
    """A LayerNorm or RMSNorm as `gain * (x - centered * mean(x)) / statistic(x) + bias`, in float64.

    `eps` None is a linear map without a divisor: its statistic is 1. Only such a map may have a gain for each token,
    `[row, d]`.
    """

    gain: Float[Tensor, "*row d"]
    bias: Float[Tensor, " d"] | None = None
    centered: bool = False
    eps: float | None = None

    def statistic(self, x: Float[Tensor, "... d"]) -> Float[Tensor, ...]:
        """The norm's divisor: root mean square, or standard deviation where it centers."""
        if self.eps is None:
            return torch.ones_like(x[..., 0])
        if self.centered:
            x = x - x.mean(-1, keepdim=True)
        return (x.square().mean(-1) + self.eps).sqrt()

    def divisor(self, seen: Float[Tensor, "n _"]) -> Float[Tensor, " n"]:
        """The statistic, computed from the norm's inputs or taken from captured statistics (one number each)."""
        seen = seen.double()
        return seen[:, 0] if seen.shape[1] == 1 else self.statistic(seen)

    def __call__(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Apply the norm."""
        centered = x - x.mean(-1, keepdim=True) if self.centered else x
        normed = centered / self.statistic(x)[..., None] * self.gain.to(x)
        return normed if self.bias is None else normed + self.bias.to(x)

    def linear(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Apply the gain and the centering alone."""
        return (x - x.mean(-1, keepdim=True) if self.centered else x) * self.gain.to(x.device)

    def term(self, x: Float[Tensor, "row *part d"], divisor: Float[Tensor, " row"]) -> Float[Tensor, "row *part d"]:
        """Apply the norm, without its bias, to terms of an input whose statistic is `divisor`."""
        return self.linear(x) / divisor.reshape(-1, *[1] * (x.dim() - 1))

    def fold(self, directions: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Compute directions w' such that `w' @ x / statistic(x) == w @ norm(x)` without the bias."""
        folded = directions * self.gain.to(directions)
        return folded - folded.mean(-1, keepdim=True) if self.centered else folded


def gain(factor: Tensor | float) -> Norm:
    """Multiplication by a number or by a vector `[d]`."""
    return Norm(torch.as_tensor(factor).detach().double().flatten())


@dataclass(frozen=True, eq=False)
class Dense:
    """Multiplication by a matrix."""

    matrix: Float[Tensor, "e d"]

    def linear(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... e"]:
        """Apply the matrix to vectors."""
        return x @ self.matrix.to(x).T

    def fold(self, directions: Float[Tensor, "n e"]) -> Float[Tensor, "n d"]:
        """Pull directions back through the matrix."""
        return directions @ self.matrix.to(directions)


Linear = Norm | Dense


@dataclass(frozen=True, eq=False)
class AffineStep:
    """One step of the residual stream's path: X_i ← Σ_k mix_ik · map_k(X_k) / divisor + bias_i.

    Attributes:
        maps: One for all streams, one for each, or none.
        mix: `[out, in]`, or `[row, out, in]` where tokens differ; None does not mix.
        divisor: `[row]`, e.g. the statistic of a norm.
        bias: `[d]`, or `[out, d]` with one for each stream.
        write_weights: The share of every later write that enters each stream, `[out]` or `[row, out]`; None is all.
        after: The number of sublayer outputs before this step.
    """

    maps: tuple[Linear, ...] = ()
    mix: Float[Tensor, "... out stream"] | None = None
    divisor: Float[Tensor, " row"] | None = None
    bias: Float[Tensor, "... d"] | None = None
    write_weights: Float[Tensor, "... out"] | None = None
    after: int = 0

    def __call__(self, streams: Float[Tensor, "row stream d"]) -> Float[Tensor, "row out d"]:
        """The streams after the step, in float64."""
        x = streams.double()
        if len(self.maps) == 1:
            x = self.maps[0].linear(x)
        elif self.maps:
            x = torch.stack([own.linear(stream) for own, stream in zip(self.maps, x.unbind(1), strict=True)], 1)
        x = x if self.mix is None else self.mix.to(x) @ x
        x = x if self.divisor is None else x / self.divisor.to(x)[:, None, None]
        return x if self.bias is None else x + self.bias.to(x)

    @property
    def is_scalar(self) -> bool:
        """True if the step only multiplies the stream by one number, the same at every token."""
        is_plain = all(x is None for x in (self.mix, self.divisor, self.bias, self.write_weights))
        return is_plain and all(isinstance(own, Norm) and own.gain.numel() == 1 for own in self.maps)

    def absolute(self) -> AffineStep:
        """The step that bounds this one's effect on errors: all coefficients are positive, and there is no bias."""
        maps = [
            Dense(own.matrix.abs()) if isinstance(own, Dense) else Norm(own.gain.abs() * (1 + own.centered))
            for own in self.maps
        ]
        mix, divisor = (None if x is None else x.abs() for x in (self.mix, self.divisor))
        return AffineStep(tuple(maps), mix, divisor)

    def rows(self, some: slice | Tensor) -> AffineStep:
        """Select the step at some tokens, for coefficients that differ between tokens."""
        maps = [Norm(own.gain[some]) if isinstance(own, Norm) and own.gain.dim() == 2 else own for own in self.maps]
        mix, weights = self.mix, self.write_weights
        return replace(
            self,
            maps=tuple(maps),
            mix=mix[some] if mix is not None and mix.dim() == 3 else mix,
            divisor=None if self.divisor is None else self.divisor[some],
            write_weights=weights[some] if weights is not None and weights.dim() == 2 else weights,
        )


def probe(norm: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> Norm:
    """Identify the `Norm` that a module computes by its outputs for four inputs, in its own dtype and on its device.

    Class names and config flags are wrong for several families (`1 + w` gains, folded weights, `final_rms`). A copy is
    run, without the user's hooks, and in float32, because half precision rounds the outputs, not the parameters. Raises
    InputError if the outputs are not those of a LayerNorm, an RMSNorm, an Identity or gains alone.
    """
    # An offloaded norm, or one whose forward is wrapped, can only be run in place.
    if not any(p.is_meta for p in norm.parameters()) and "forward" not in vars(norm):
        norm = bare_copy(norm)
        if dtype in (torch.float16, torch.bfloat16):
            norm, dtype = norm.float(), torch.float32
            if hasattr(norm, "cfg"):  # a HookedTransformer's norms return the dtype of their settings
                norm.cfg = copy.copy(norm.cfg)
                norm.cfg.dtype = dtype
    # An input of mean zero, and zero nowhere.
    pattern = torch.ones(width, dtype=torch.float64)
    pattern[1::2] = -1.0
    if width % 2:
        pattern[-3:] = torch.tensor([1.0, 1.0, -2.0])[-width:]

    def answer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return norm(x.to(device, dtype)[None, None])[0, 0].double().cpu()

    bias = answer(torch.zeros(width))
    # At ±64 the epsilon is lost in rounding, so the output is the gain itself.
    large = 64.0
    root = float(pattern.square().mean().sqrt())
    gain = (answer(large * pattern) - bias) / pattern * root
    centered = bool((answer(torch.full((width,), large)) - bias).norm() < 1e-2 * gain.norm())
    small = 1e-3
    response, along = answer(small * pattern) - bias, gain * pattern
    ratio = float(response @ along / (along @ along).clamp_min(1e-300))
    eps: float | None = max(0.0, small**2 / ratio**2 - (small * root) ** 2) if ratio > 0 else float("nan")
    # The output of an Identity, or of gains alone, is proportional to the input, unlike that of a norm with epsilon.
    if abs(ratio * large * root / small - 1) < 1e-3:
        gain, eps = gain / (large * root), None
    fitted = Norm(gain, bias if bias.abs().max() > 0 else None, centered, eps)
    # The formula must give the module's own output for an input it was not fitted to.
    x = torch.linspace(-2.0, 3.0, width, dtype=torch.float64).to(dtype).double()
    expected = answer(x)
    worst = float((fitted(x) - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not worst <= (1e-4 if dtype in (torch.float32, torch.float64) else 3e-2):
        raise InputError(
            "a norm of this model is not a LayerNorm, an RMSNorm or an Identity "
            f"(its output differs by {worst:.1e}, or it holds NaN), so it cannot be decomposed."
        )
    return fitted


def bare_copy(module: nn.Module) -> nn.Module:
    """Copy a module with its own weights and without hooks. Not a deep copy: users' attributes are shared."""
    bare = copy.copy(module)
    state = vars(bare)
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        state[hooks] = type(state[hooks])()
    with torch.no_grad():
        state["_parameters"] = {
            name: None if p is None else nn.Parameter(p.detach().clone(), requires_grad=False)
            for name, p in module._parameters.items()
        }
        state["_buffers"] = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
    state["_modules"] = {name: None if m is None else bare_copy(m) for name, m in module._modules.items()}
    return bare
