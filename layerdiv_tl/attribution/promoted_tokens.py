"""Tokens at every position of a text: those that components promote, and contributions to a few chosen ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model.capture import Activations
from .directions import Directions
from .vocabulary import VocabularyReadout, extremes, model_logits, probabilities

# The most numbers of stream vectors held at a time.
NUMBERS = 32_000_000


def next_tokens(
    readout: VocabularyReadout, activations: Activations, k: int, asked: Int[np.ndarray, "token position"]
) -> tuple[np.ndarray, ...]:
    """Compute the model's own distribution over the next token at every position of a pass.

    Returns ids and probabilities of the k likeliest tokens `[rank, position]`, the probabilities of the requested
    tokens `[token, position]`, NaN for an id below 0, and the entropies `[position]` in nats.
    """
    parts = []
    for start in range(0, len(activations.final), readout.step):
        some = slice(start, start + readout.step)
        _, logits = model_logits(readout.architecture, activations.final[some])
        p, entropies = probabilities(logits.double())
        ids, top = torch.as_tensor(asked[:, some].T, device=p.device), p.topk(k, 1)
        own = p.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, torch.nan)
        parts.append((top.indices.T, top.values.T, own.T, entropies))
    return tuple(torch.cat(part, -1).cpu().numpy() for part in zip(*parts, strict=True))


def token_logits(
    readout: VocabularyReadout, activations: Activations, ids: Int[np.ndarray, "token position"]
) -> tuple[Float[np.ndarray, "token position component"], Float[np.ndarray, "position component"]]:
    """Compute contributions u_i to some tokens at every position of a pass, and E_p[u_i] under the model's p.

    `ids` may differ from position to position. Both are minus the component's mean over the vocabulary; p is taken
    before a soft-cap, as the components are. A component's contribution to the cross-entropy of a token is its
    expectation minus its logit, in nats.
    """
    vocabulary, found = readout.vocabulary, list[Tensor]()
    for start in range(0, ids.shape[1], readout.step):
        some = slice(start, start + readout.step)
        part = activations.at_positions(some)
        rows = readout.rows_of(part)
        unembedded, _ = model_logits(readout.architecture, part.final)
        p = (unembedded.double() * readout.architecture.logit_multiplier).softmax(1)
        along = [vocabulary.rows(torch.as_tensor(row[some], device=p.device)) for row in ids]
        along.append(vocabulary.average(p, readout.dtype) - vocabulary.mean)
        own = Directions(torch.stack(along, 1).to(readout.dtype), precision=readout.dtype)
        tables = torch.zeros(len(along), len(p), len(rows.components), dtype=torch.float64, device=p.device)
        own.fill(rows, tables.unbind(0))
        found.append(tables)
    logits = torch.cat(found, 1).cpu().numpy()
    return logits[:-1], logits[-1]


def promotions_of_pairs(
    readout: VocabularyReadout, activations: Activations, pairs: Sequence[tuple[int, int]], k: int
) -> tuple[Int[np.ndarray, "pair rank"], Float[np.ndarray, "pair rank"], Float[np.ndarray, " pair"]]:
    """Find the tokens that components promote and suppress, for pairs (position, index of a component) of a pass.

    Returns ids and logits minus the component's mean over the vocabulary, both `[pair, 2k]`: the k most promoted, then
    the k most suppressed, each by size; and that mean. All pairs share one pass through the vocabulary, which is the
    main cost.
    """
    positions, columns = np.array(pairs).T
    vectors = torch.empty(len(pairs), readout.architecture.norm.gain.numel() + 1, dtype=torch.float64)
    step = max(1, NUMBERS // (readout.width * vectors.shape[1]))
    at = np.unique(positions)
    for some in (at[start : start + step] for start in range(0, len(at), step)):
        rows = readout.rows_of(activations.at_positions(torch.as_tensor(some, device=activations.final.device)))
        here = np.flatnonzero(np.isin(positions, some))
        wanted, number = np.unique(columns[here], return_inverse=True)
        vectors[here] = rows.vectors(wanted.tolist())[np.searchsorted(some, positions[here]), number].cpu()
    vectors = vectors.to(activations.final.device)
    ids, logits = extremes(readout, vectors, k)
    means = vectors @ readout.vocabulary.mean
    return ids.cpu().numpy(), logits.cpu().numpy(), means.cpu().numpy()
