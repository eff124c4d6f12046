"""The unembedding as a whole: its mean row, means of its rows under a distribution, and sizes of logit vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import counted
from ..model.load import Model

# Ids that are read at once, and the most numbers held at a time.
CHUNK, NUMBERS = 8192, 32_000_000


@dataclass(eq=False)
class Vocabulary:
    """Rows W_v of the unembedding and their biases b_v.

    A vector with d + 1 entries is one in the unembedding's input and the weight of the bias.

    Attributes:
        rows, bias: `[v, d]` and `[v]` or None, as the model stores them.
        mean, mean_bias: Their means, float64.
    """

    rows: Float[Tensor, "v d"]
    bias: Float[Tensor, " v"] | None
    mean: Float[Tensor, " d"]
    mean_bias: Float[Tensor, ""]
    _roots: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model) -> Vocabulary:
        """Get a model's vocabulary, which is kept as long as its unembedding is the same."""
        rows, bias = model.path.unembed_rows(None)
        # Changes that leave no trace are seen in some of the rows, or by the means of the logits.
        some = rows[:: max(1, len(rows) // 64)]
        key = rows.data_ptr(), 0 if rows.is_inference() else rows._version, float(some.sum(dtype=torch.float64))
        known: tuple[object, Vocabulary] | None = model.path.kept.get("vocabulary")
        if known is None or known[0] != key:
            wide = model.path.wide
            mean = torch.stack([part.sum(0, dtype=wide) for part in rows.split(CHUNK)]).sum(0) / len(rows)
            mean_bias = mean.new_zeros(()) if bias is None else bias.mean(dtype=wide)
            known = key, cls(rows, bias, mean, mean_bias)
            model.path.kept["vocabulary"] = known
        return known[1]

    def average(
        self, logits: Float[Tensor, "n v"], log_partition: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
        """Σ_v p_v W_v and Σ_v p_v b_v for p = exp(logits − log_partition), some ids at a time.

        Products are in the precision of the rows or float32, sums in that of `log_partition`.
        """
        precise = torch.promote_types(self.rows.dtype, torch.float32)
        device, n = log_partition.device, len(log_partition)
        total = torch.zeros(n, self.rows.shape[1], dtype=log_partition.dtype, device=device)
        bias = total.new_zeros(n)
        for start in range(0, len(self.rows), CHUNK):
            some = slice(start, start + CHUNK)
            p = (logits[:, some].to(total) - log_partition[:, None]).exp()
            total += (p.to(precise) @ self.rows[some].to(device, precise)).to(total)
            if self.bias is not None:
                bias += p @ self.bias[some].to(p)
        return total, bias

    def centered(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n d+1"]:
        """Rows and biases of some ids minus their means over the vocabulary, float64."""
        rows = self.rows[ids.to(self.rows.device)].to(self.mean) - self.mean
        bias = (
            torch.zeros_like(rows[..., 0])
            if self.bias is None
            else self.bias[ids.to(self.bias.device)].to(rows) - self.mean_bias
        )
        return torch.cat([rows, bias[..., None]], -1)

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[slice, Float[Tensor, "id d+1"]]]:
        """Yield a slice of ids and their rows minus the mean, with the biases, CHUNK ids at a time."""
        for start in range(0, len(self.rows), CHUNK):
            ids = torch.arange(start, min(start + CHUNK, len(self.rows)))
            yield slice(start, start + len(ids)), self.centered(ids).to(dtype)

    def root(self, dtype: torch.dtype) -> Float[Tensor, "d+1 d+1"]:
        """R with |R x|² = Σ_v of x's squared logits, minus their mean; `dtype` is that of products."""
        if dtype not in self._roots:
            gram = torch.zeros(len(self.mean) + 1, len(self.mean) + 1, dtype=self.mean.dtype, device=self.mean.device)
            for _, rows in self.chunks(dtype):
                gram += (rows.T @ rows).to(gram)
            values, vectors = torch.linalg.eigh(gram)  # not Cholesky: without biases G is singular
            self._roots[dtype] = torch.linalg.qr(values.clamp_min(0).sqrt()[:, None] * vectors.T).R
        return self._roots[dtype]


def extremes(
    vocabulary: Vocabulary, vectors: Float[Tensor, "row d+1"], k: int
) -> tuple[Int[Tensor, "row rank"], Float[Tensor, "row rank"]]:
    """Find ids and centered logits of the k largest, then the k smallest, for some vectors.

    In each chunk of the vocabulary, only rows whose extremes there would enter the result are sorted.
    """
    # The largest of the logits and of the negated logits.
    values = torch.full((2, len(vectors), k), -torch.inf, dtype=vectors.dtype, device=vectors.device)
    ids = torch.zeros(2, len(vectors), k, dtype=torch.int64, device=vectors.device)
    count = -(-len(vocabulary.rows) // CHUNK)
    for chunk, rows in counted(vocabulary.chunks(vectors.dtype), "promoted tokens", count, "part"):
        step = max(1, NUMBERS // len(rows))
        for start in range(0, len(vectors), step):
            some = slice(start, start + step)
            logits = vectors[some] @ rows.to(vectors).T
            smallest, largest = logits.aminmax(dim=1)
            for sign, extreme in enumerate((largest, -smallest)):
                better = (extreme > values[sign, some, -1]).nonzero()[:, 0]
                new = (logits[better] if sign == 0 else -logits[better]).topk(min(k, logits.shape[1]), dim=1)
                better += start
                known = torch.cat([values[sign, better], new.values], 1)
                names = torch.cat([ids[sign, better], new.indices + chunk.start], 1)
                best = known.topk(k, dim=1)
                values[sign, better], ids[sign, better] = best.values, names.gather(1, best.indices)
    return torch.cat([*ids], 1), torch.cat([values[0], -values[1]], 1)


def log_sum_exp(logits: Float[Tensor, "n v"], dtype: torch.dtype = torch.float64) -> Float[Tensor, " n"]:
    """log Σ_v exp of each row, in some precision; NaN or infinite where a logit is."""
    step = max(1, NUMBERS // (16 * logits.shape[1]))  # a copy of all in that precision would be most of the memory
    return torch.cat([rows.to(dtype).logsumexp(1) for rows in logits.split(step)])
