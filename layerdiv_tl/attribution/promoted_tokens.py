"""Tokens at positions of a text: those that components promote, and contributions to a few chosen ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from ..components import Component
from ..model.load import Model
from ..model.passes import Pass
from ..model.units import UnitLike
from .carried import carried
from .vocabulary import Vocabulary, extremes, log_sum_exp


def next_tokens(seen: Pass, k: int, asked: Int[np.ndarray, "token position"]) -> tuple[np.ndarray, ...]:
    """Compute the model's own distribution over the next token at every read of a pass.

    Returns ids and probabilities of the k likeliest tokens `[rank, position]`, the probabilities of the requested
    tokens `[token, position]`, NaN for an id below 0, and the entropies `[position]` in nats.
    """
    assert seen.logits is not None
    log_p = seen.logits.double().log_softmax(1)
    p, entropies = log_p.exp(), -(log_p.exp() * log_p.clamp_min(-1e30)).sum(1)
    ids, top = torch.as_tensor(asked.T, device=p.device), p.topk(k, 1)
    own = p.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, torch.nan)
    return tuple(x.cpu().numpy() for x in (top.indices.T, top.values.T, own.T, entropies))


def token_logits(
    model: Model, seen: Pass, unit: UnitLike, ids: Int[np.ndarray, "token position"]
) -> tuple[list[Component], Float[np.ndarray, "token component position"], Float[np.ndarray, "component position"]]:
    """Compute contributions u_i to some tokens at every read of a pass, and E_p[u_i] under the model's p.

    `ids` may differ from position to position. Both are minus the component's mean over the vocabulary; p is taken
    before a soft-cap, as the components are. A component's contribution to the cross-entropy of a token is its
    expectation minus its logit, in nats.
    """
    vocabulary = Vocabulary.of(model)
    assert seen.unembedded is not None
    logits = seen.unembedded * model.path.factor
    mean, bias = vocabulary.average(logits, log_sum_exp(logits, model.path.wide))
    expected = torch.cat([mean - vocabulary.mean, (bias - vocabulary.mean_bias)[:, None]], 1)
    along = torch.cat([vocabulary.centered(torch.as_tensor(ids)), expected[None].to(vocabulary.mean)])
    names: list[Component] = []
    tables = []
    for components, y in carried(model.path, seen, unit):
        names += components
        tables.append(torch.einsum("cnd,knd->kcn", y, along).detach())
    values = torch.cat(tables, 1).cpu().numpy()
    return names, values[:-1], values[-1]


def promotions_of_pairs(
    model: Model, seen: Pass, unit: UnitLike, pairs: Sequence[tuple[int, Component]], k: int
) -> tuple[Int[np.ndarray, "pair rank"], Float[np.ndarray, "pair rank"], Float[np.ndarray, " pair"]]:
    """Find the tokens that components promote and suppress, for pairs (read of a pass, component of a unit).

    A component may also be a sublayer that the unit cuts, the sum of its parts. All pairs share one pass through the
    vocabulary, which is the main cost.

    Returns ids and logits minus the component's mean over the vocabulary, both `[pair, 2k]`: the k most promoted, then
    the k most suppressed, each by size; and that mean.
    """
    vocabulary = Vocabulary.of(model)
    vectors = vocabulary.mean.new_zeros(len(pairs), len(vocabulary.mean) + 1)
    rows_of: dict[Component, list[int]] = {}
    for row, (_, component) in enumerate(pairs):
        rows_of.setdefault(component, []).append(row)
    for components, ys in carried(model.path, seen, unit):
        for component, y in zip(components, ys.detach(), strict=True):
            for one in {component, component.sublayer}:
                rows = rows_of.get(one, [])
                vectors[rows] += y[[pairs[row][0] for row in rows]].to(vectors)
    ids, logits = extremes(vocabulary, vectors.float(), k)
    means = vectors @ torch.cat([vocabulary.mean, vocabulary.mean_bias[None]])
    return ids.cpu().numpy(), logits.cpu().numpy(), means.cpu().numpy()
