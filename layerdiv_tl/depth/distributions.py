"""Softmax over a vocabulary, its L2 distance and KL divergence, in float64.

In float32 sums over tens of thousands of tokens are off by up to 1e-3 of a small divergence or change. A few rows at a
time stay in the processor's cache, where float64 costs less than whole float32 tables do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Entries of one block: 2 MiB in float64.
_BLOCK = 1 << 18


def softmax(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"] | None = None) -> tuple[Tensor, Tensor]:
    """(softmax, cross-entropy of the targets), float64; NaN where there is no target, or a negative one.

    >>> p, loss = softmax(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> p.tolist(), round(float(loss), 6)
    ([[0.5, 0.5]], 0.693147)
    """
    p = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    loss = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        p[block], loss[block] = _softmax(logits[block], None if targets is None else targets[block])
    return p, loss


def softmax_change(
    logits: Float[Tensor, "n v"], clean: Float[Tensor, "n v"], targets: Int[Tensor, " n"] | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(‖softmax − clean‖₂, cross-entropy of the targets), float64; `clean` as `softmax` returns it."""
    change, loss = torch.empty(2, len(logits), dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        p, loss[block] = _softmax(logits[block], None if targets is None else targets[block])
        change[block] = p.sub_(clean[block].to(p.device)).norm(dim=-1)
    return change, loss


def log_softmax(logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """Logarithms of the softmax, float64."""
    table = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        table[block] = logits[block].double().log_softmax(-1)
    return table


def divergence(logits: Float[Tensor, "n v"], other: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """KL(softmax ‖ other) in nats, float64, `other` as `log_softmax` returns it.

    >>> import numpy as np
    >>> kl = divergence(torch.tensor([[9.0, -900.0]]), log_softmax(torch.zeros(1, 2)))
    >>> bool(np.isclose(kl, np.log(2), rtol=1e-12))
    True
    """
    kl = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        log_p = logits[block].double().log_softmax(-1)
        # Where p underflows to 0 the log ratio may be −∞, and 0 · −∞ is NaN.
        log_ratio = (log_p - other[block]).clamp_min_(torch.finfo(torch.float64).min)
        kl[block] = torch.einsum("nv,nv->n", log_p.exp_(), log_ratio)
    return kl.clamp_min_(0)


def _softmax(logits: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.double() - logits.amax(-1, keepdim=True)
    targets = torch.full_like(logits[:, 0], -1, dtype=torch.long) if targets is None else targets.to(logits.device)
    target_logits = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    total = logits.exp_().sum(-1)
    return logits.div_(total[:, None]), (total.log() - target_logits).masked_fill(targets < 0, float("nan"))


def _blocks(table: Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK // table.shape[1])
    return (slice(start, start + step) for start in range(0, len(table), step))
