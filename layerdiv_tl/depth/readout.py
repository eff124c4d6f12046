"""The answer's logits of stream vectors, and what they are compared with: gold answers or distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attribution.vocab_gram import folded_rows, vocabulary_of
from ..model.load import Model
from ..model.norm import Norm


@dataclass(frozen=True, eq=False)
class Readout:
    """How a final stream over its norm's statistic, z, becomes the answer's logits, before a soft-cap.

    Attributes:
        rows, constant: Of the token ids that are answers: the unembedding with gain and centering folded in, and what
            the read-out adds by itself; less their means where the answer is the whole vocabulary.
        root, constant_y: Of the whole vocabulary, R with |Rz|² = the centered logits', and the constant in these
            coordinates; None where there are options.
    """

    norm: Norm
    rows: Float[Tensor, "id d"]
    constant: Float[Tensor, " id"]
    root: Float[Tensor, "d d"] | None
    constant_y: Float[Tensor, " d"] | None

    @classmethod
    def of(cls, model: Model, options: Int[np.ndarray, "row option"] | None) -> tuple[Readout, Tensor | None]:
        """The read-out of a model, and the options as places among its rows."""
        architecture = model.architecture
        if options is None:
            vocabulary = vocabulary_of(architecture, torch.float32)
            chunks = list(vocabulary.chunks(torch.float32))
            rows, constant = torch.cat([c[1] for c in chunks]), torch.cat([c[2] for c in chunks])
            root = vocabulary.root
            y = torch.linalg.lstsq(root.T.cpu(), vocabulary.constant_product.cpu()[:, None]).solution[:, 0]
            return cls(architecture.norm, rows.float(), constant.float(), root, y.to(root)), None
        ids, places = torch.as_tensor(options).unique(return_inverse=True)
        rows, constant = folded_rows(architecture, ids, torch.float64)
        return cls(architecture.norm, rows, constant, None, None), places.to(rows.device)

    def z(self, final: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Final streams over the norm's statistic."""
        final = final.to(self.rows.device).double()
        return final / self.norm.statistic(final)[:, None]

    def logits(self, z: Float[Tensor, "*n d"], places: Int[Tensor, "n option"] | None) -> Float[Tensor, "*n k"]:
        """What z adds to the logits, without the constant; `[n, k]`, or `[n, member, k]`."""
        found = z.to(self.rows.dtype) @ self.rows.T
        if places is None:
            return found
        return found.gather(-1, places if z.ndim == 2 else places[:, None].expand(-1, z.shape[1], -1))

    def answer(self, z: Float[Tensor, "n d"], places: Int[Tensor, "n option"] | None) -> Float[Tensor, "n k"]:
        """The logits."""
        return self.logits(z, places) + (self.constant if places is None else self.constant[places])

    def y(self, z: Float[Tensor, "*n d"], places: Int[Tensor, "n option"] | None) -> Float[Tensor, "*n y"]:
        """Coordinates of what z adds to the logits, whose products are those of centered logits."""
        if self.root is not None:
            return z.double() @ self.root.T
        logits = self.logits(z, places)
        return logits - logits.mean(-1, keepdim=True)

    def answer_y(self, z: Float[Tensor, "n d"], places: Int[Tensor, "n option"] | None) -> Float[Tensor, "n y"]:
        """Coordinates of the logits themselves."""
        if self.constant_y is not None:
            return self.y(z, places) + self.constant_y
        logits = self.answer(z, places)
        return logits - logits.mean(-1, keepdim=True)

    def target_y(self, target: Target, places: Int[Tensor, "n option"] | None) -> Float[Tensor, "n y"]:
        """A target in these coordinates: 1 for what is right, or log-probabilities; as far as logits can express it."""
        if target.soft is not None:
            wanted = target.soft.double().clamp_min(1e-12).log()
            wanted = wanted - wanted.mean(-1, keepdim=True)
        elif places is not None:
            wanted = torch.nn.functional.one_hot(target.places, places.shape[1]).double()
            wanted = wanted - wanted.mean(-1, keepdim=True)
        if self.root is None:
            return wanted
        weighed = self.rows[target.places] if target.soft is None else wanted.to(self.rows) @ self.rows
        root = self.root.T.cpu()  # singular where the final norm centers
        return torch.linalg.lstsq(root, weighed.double().cpu().T, driver="gelsd").solution.T.to(self.rows.device)

    def y_maps(self, places: Int[Tensor, "n option"] | None) -> Float[Tensor, "*n y d"]:
        """The map from z to y: one for every prediction where there are options."""
        if self.root is not None:
            return self.root
        assert places is not None
        rows = self.rows[places]
        return rows - rows.mean(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Target:
    """What predictions are compared with: gold places `[n]`, or distributions `[n, k]`, which come first."""

    places: Int[Tensor, " n"]
    soft: Float[Tensor, "n k"] | None = None

    def __getitem__(self, some: slice) -> Target:
        return Target(self.places[some], None if self.soft is None else self.soft[some])

    def loss(self, logits: Float[Tensor, "n *m k"]) -> Float[Tensor, "n *m"]:
        """Cross-entropy in nats; `[n]`, or `[n, member]`."""
        total = logits.logsumexp(-1).double()
        if self.soft is not None:
            return total - torch.einsum("nk,n...k->n...", self.soft.to(logits), logits).double()
        places = self.places.reshape(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
        return total - logits.gather(-1, places)[..., 0].double()

    def entropy(self) -> Float[Tensor, " n"]:
        """The least loss there can be, in nats: of gold places 0."""
        if self.soft is None:
            return torch.zeros(len(self.places), dtype=torch.float64)
        return -torch.xlogy(self.soft.double(), self.soft.double()).sum(-1)

    @staticmethod
    def joined(several: Sequence[Target]) -> Target:
        """One after another."""
        soft = [target.soft for target in several if target.soft is not None]
        return Target(torch.cat([target.places for target in several]), torch.cat(soft) if soft else None)
