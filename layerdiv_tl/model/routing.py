"""Expert routing in a pass: the chosen experts of each token, their gates, and the routers' entropies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .architecture import Architecture
from .batches import upcast
from .capture import answers
from .experts import Mixture, RoutedOutputs

# Maps from routers' outputs to scores: a softmax, a function of each logit, or the identity.
_SCORES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda logits: logits.softmax(-1),
    torch.sigmoid,
    lambda logits: torch.nn.functional.softplus(logits).sqrt(),
    lambda probabilities: probabilities,
)


@dataclass(frozen=True, eq=False)
class Routes:
    """The routing of a pass's tokens by one run of a router.

    `probabilities`: its scores of all experts as shares of 1; None if its gates are not such shares, renormalized or
    not, of its logits.
    """

    index: Int[Tensor, "token k"]
    gates: Float[Tensor, "token k"]
    probabilities: Float[Tensor, "token expert"] | None

    def entropy(self) -> Float[Tensor, " token"]:
        """The entropy of every token's probabilities, in nats; NaN where they are unknown."""
        if self.probabilities is None:
            return torch.full_like(self.gates[:, 0], torch.nan)
        return torch.special.entr(self.probabilities).sum(1)


def read_routes(
    architecture: Architecture, mixtures: list[Mixture], ids: Tensor, mask: Tensor
) -> Iterator[tuple[int, Routes]]:
    """Read (index of the mixture, its routes) for every run of every mixture in a pass, in execution order."""
    ran: list[tuple[int, RoutedOutputs]] = []
    returned: list[list[Any]] = [[] for _ in mixtures]
    with ExitStack() as stack:
        for number, mixture in enumerate(mixtures):

            def keep(args: Any, kwargs: Any, packed: Tensor, number: int = number) -> None:
                slots = RoutedOutputs.unpacked(packed)
                ran.append((number, RoutedOutputs(slots.index, slots.gates.clone(), slots.vectors[:0])))

            def keep_returned(module: Any, args: Any, output: Any, number: int = number) -> None:
                returned[number].append(output)

            stack.enter_context(mixture.slots.attach(keep))
            if mixture.router is not None:
                stack.callback(mixture.router.register_forward_hook(keep_returned).remove)
        answers(architecture, ids, mask, mask.sum(1) - 1)
    for number, slots in ran:
        output = returned[number].pop(0) if returned[number] else ()
        yield number, Routes(slots.index, slots.gates, _probabilities(mixtures[number], output, slots))


def _probabilities(mixture: Mixture, output: Any, slots: RoutedOutputs) -> Float[Tensor, "token expert"] | None:
    """Find the router's scores of all experts, to which its gates are proportional, as shares of 1."""
    outputs = [x for x in (output if isinstance(output, tuple | list) else (output,)) if isinstance(x, Tensor)]
    tables = [upcast(x).flatten(0, -2).double() for x in outputs if x.is_floating_point() and x.dim() > 1]
    own = getattr(mixture.router, "per_expert_scale", None)  # Gemma 4 scales its gates again
    gates = slots.gates.double() if own is None else slots.gates.double() / own.double()[slots.index]
    tables = [table for table in tables if table.shape == (len(gates), mixture.count)]
    for scores, table in product(_SCORES, tables):
        probable = scores(table)
        ratio = gates / probable.gather(1, slots.index)
        # With one active expert the gate is its score; with several, gates are proportional to scores.
        target = ratio[:, :1] if gates.shape[1] > 1 else torch.ones_like(ratio)
        if bool((probable >= 0).all()) and torch.allclose(ratio, target.expand_as(ratio), rtol=2e-2, atol=0):
            return probable / probable.sum(1, keepdim=True)
    return None
