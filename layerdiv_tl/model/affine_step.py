"""One step of the residual stream's path, which is affine at the coefficients that the model used in a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from .norm import Norm


def gain(factor: Tensor | float) -> Norm:
    """Multiplication by a number or by a vector `[d]`."""
    return token_gain(torch.as_tensor(factor).detach().double().flatten())


def token_gain(factors: Float[Tensor, "*row d"]) -> Norm:
    """Multiplication by a vector, which may be each token's own."""
    return Norm(factors, None, False, None)


@dataclass(frozen=True, eq=False)
class Dense:
    """Multiplication by a matrix."""

    matrix: Float[Tensor, "e d"]

    def linear(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... e"]:
        """The vectors after it."""
        return x @ self.matrix.to(x).T

    def fold(self, directions: Float[Tensor, "n e"]) -> Float[Tensor, "n d"]:
        """Directions after it as directions before it."""
        return directions @ self.matrix.to(directions)


Linear = Norm | Dense


@dataclass(frozen=True, eq=False)
class AffineStep:
    """One step of the residual stream's path: X_i ← Σ_k mix_ik · map_k(X_k) / divisor + bias_i.

    Attributes:
        maps: One for all streams, one for each, or none.
        mix: `[out, in]`, or `[row, out, in]` where tokens differ; None does not mix.
        divisor: `[row]`, such as the statistic of a norm.
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
        """The streams after it, in float64."""
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
        """The step that bounds this one's effect on errors: every coefficient is positive, and there is no bias."""
        maps = [
            Dense(own.matrix.abs()) if isinstance(own, Dense) else token_gain(own.gain.abs() * (1 + own.centered))
            for own in self.maps
        ]
        mix, divisor = (None if x is None else x.abs() for x in (self.mix, self.divisor))
        return AffineStep(tuple(maps), mix, divisor)

    def rows(self, some: slice | Tensor) -> AffineStep:
        """The step at some tokens: coefficients that differ between tokens have these rows taken."""
        maps = [
            token_gain(own.gain[some]) if isinstance(own, Norm) and own.gain.dim() == 2 else own for own in self.maps
        ]
        mix, weights = self.mix, self.write_weights
        return replace(
            self,
            maps=tuple(maps),
            mix=mix[some] if mix is not None and mix.dim() == 3 else mix,
            divisor=None if self.divisor is None else self.divisor[some],
            write_weights=weights[some] if weights is not None and weights.dim() == 2 else weights,
        )
