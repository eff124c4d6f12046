"""What a model expects next, and every component's logits averaged over that: the log-normalizers, taken apart.

With p the model's distribution at a position, H its entropy and l its logits, l = Σ_i u_i:

    log p(t) = l(t) − log Σ_v exp l(v) = Σ_i (u_i(t) − E_p[u_i]) − H(p)

E_p[u_i] is the inner product of component i with one direction, E_p[W_U], so the vocabulary's logits of a component are
never formed.
"""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.architecture import Architecture, OutputMap
from .stream_writes import Parts, VectorParts, pull_back
from .vocab_gram import CHUNK, log_sum_exp

# Positions whose probabilities are held at a time.
STEP = 128


class NextToken:
    """A distribution of the next token at each position of a pass, and means over it; on the CPU.

    Attributes:
        log_partition, mean_logit: `[position]`: log Σ_v exp of the logits, and the mean of the logits before any
            soft-cap.
        directions, constant: `[position, d]`, `[position]`: the means of the options' directions and of what the
            read-out adds.
    """

    def __init__(self, architecture: Architecture, logits: Tensor, unembedded: Tensor) -> None:
        pairs = zip(logits.split(STEP), unembedded.split(STEP), strict=True)
        steps = [_means(architecture, *pair) for pair in pairs]
        columns = (torch.cat(column).cpu() for column in zip(*steps, strict=True))
        self.log_partition, self.mean_logit, self.directions, self.constant = columns
        # Directions before each output map: the weights are read once for a pass, not for every few rows.
        self._before: dict[OutputMap, Tensor] = {}
        self._rows = slice(None)

    @classmethod
    def uniform(cls, architecture: Architecture) -> NextToken:
        """One position, which stands for all: every token of the vocabulary is as likely as any other."""
        flat = torch.zeros(1, architecture.outputs, dtype=torch.float64, device=architecture.device)
        return cls(architecture, flat, flat)

    def rows(self, some: slice) -> NextToken:
        """The same for some positions."""
        own = copy(self)
        own._rows = some
        own.log_partition, own.mean_logit = self.log_partition[some], self.mean_logit[some]
        own.constant = self.constant[some]
        return own

    def of_whole(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part"]:
        """The mean of `x @ direction`; the division by σ is the caller's."""
        return (x @ self.directions[self._rows][:, :, None])[:, :, 0]

    def of_parts(self, parts: Parts | VectorParts) -> Float[Tensor, "row part"]:
        """The same for the parts of one write and, last, their bias where there is one."""
        if isinstance(parts, VectorParts):
            return parts.scattered(self.of_whole(parts.slots.cpu()))
        before = self._before_map(parts.output_map)[self._rows]
        u = (parts.values.double().cpu().flatten(1) * before).unflatten(1, (parts.output_map.count, -1)).sum(2)
        u = u if parts.divisor is None else u / parts.divisor.cpu()[:, None]
        return torch.cat([u, self.of_whole(parts.bias().cpu()[:, None])], 1) if parts.output_map.bias else u

    def _before_map(self, output_map: OutputMap) -> Float[Tensor, "position _"]:
        if output_map not in self._before:
            self._before[output_map] = pull_back(output_map, self.directions)
        return self._before[output_map]


def _means(architecture: Architecture, logits: Tensor, unembedded: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four numbers of `NextToken` for some positions."""
    norm, device, multiplier = architecture.norm, logits.device, architecture.logit_multiplier
    log_partition = log_sum_exp(logits)
    p = (logits.double() - log_partition[:, None]).exp_()
    rows, bias = architecture.unembed_rows(None)
    direction = torch.zeros(len(p), rows.shape[1], dtype=torch.float64, device=device)
    for start in range(0, len(rows), CHUNK):
        ids = slice(start, start + CHUNK)
        direction += p[:, ids] @ rows[ids].to(device, p.dtype)
    direction *= multiplier
    constant = torch.zeros_like(log_partition)
    if norm.bias is not None:
        constant += direction @ norm.bias.to(device, torch.float64)
    if bias is not None:
        constant += (p @ bias.to(p)) * multiplier
    mean_logit = (p * unembedded).sum(1) * multiplier
    return log_partition, mean_logit, norm.fold(direction), constant
