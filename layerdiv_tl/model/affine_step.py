"""Steps of the residual stream's path at the coefficients that the model used: maps, mixing of streams, biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from .norm import Norm


class Linear(Protocol):
    """A linear map of stream vectors. `static`: the same at every token."""

    @property
    def static(self) -> bool:
        """Whether no token changes it."""

    def linear(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... e"]:
        """The vectors after it."""

    def fold(self, directions: Float[Tensor, "n e"]) -> Float[Tensor, "n d"]:
        """Directions after it as directions before it."""


def gain(vector: Tensor) -> Norm:
    """Multiplication by a vector, or by one number."""
    return Norm(vector.detach().double().flatten(), None, False, None)


@dataclass(frozen=True, eq=False)
class Dense:
    """Multiplication by a matrix."""

    matrix: Float[Tensor, "e d"]
    static: ClassVar[bool] = True

    def linear(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... e"]:
        """The vectors after it."""
        return x @ self.matrix.to(x).T

    def fold(self, directions: Float[Tensor, "n e"]) -> Float[Tensor, "n d"]:
        """Directions after it as directions before it."""
        return directions @ self.matrix.to(directions)


@dataclass(frozen=True, eq=False)
class TokenGain:
    """Multiplication by a vector of each token's own."""

    gain: Float[Tensor, "row d"]
    static: ClassVar[bool] = False

    def linear(self, x: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
        """The vectors after it."""
        return x * self.gain.to(x)

    def fold(self, directions: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Tokens have no direction in common here."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AffineStep:
    """One step of the residual stream's path: X_i ← Σ_k mix_ik · map_k(X_k) / divisor + bias_i.

    Attributes:
        maps: One for all streams, one for each, or none.
        mix: `[out, in]`, or `[row, out, in]` where tokens differ; None does not mix.
        divisor: `[row]`, such as the statistic of a norm.
        bias: `[d]`, or `[out, d]` with one for each stream.
        write_weights: The share of every later write that enters each stream, `[out]` or `[row, out]`; None is all.
        after: After how many sublayer outputs the stream passes it.
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

    def absolute(self) -> AffineStep:
        """The step that bounds what it does to errors: every coefficient positive, no bias."""
        bounds: list[Linear] = []
        for own in self.maps:
            if isinstance(own, Dense):
                bounds.append(Dense(own.matrix.abs()))
            elif isinstance(own, TokenGain):
                bounds.append(TokenGain(own.gain.abs()))
            elif isinstance(own, Norm):
                bounds.append(gain(own.gain.abs() * (1 + own.centered)))
        mix = None if self.mix is None else self.mix.abs()
        return AffineStep(tuple(bounds), mix, None if self.divisor is None else self.divisor.abs())

    def rows(self, some: slice | Tensor) -> AffineStep:
        """The same at some tokens."""
        return replace(
            self,
            maps=tuple(TokenGain(m.gain[some]) if isinstance(m, TokenGain) else m for m in self.maps),
            mix=self.mix[some] if self.mix is not None and self.mix.dim() == 3 else self.mix,
            divisor=None if self.divisor is None else self.divisor[some],
            write_weights=self.write_weights[some]
            if self.write_weights is not None and self.write_weights.dim() == 2
            else self.write_weights,
        )
