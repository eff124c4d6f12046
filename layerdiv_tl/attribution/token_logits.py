"""What every component adds to the logits of a few chosen tokens, and to the model's own expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..model.capture import Activations
from .full_vocab import VocabularyReadout, component_table, model_logits


@dataclass(frozen=True, eq=False)
class TokenLogits:
    """Contributions to chosen tokens at every position, all less the component's mean over the vocabulary.

    Attributes:
        logits: `[token, position, component]`: u_i of each token.
        expectations: `[position, component]`: E_p[u_i] under the model's own distribution p, before a soft-cap as the
            components are: what one adds to the cross-entropy of a token is its expectation less its logit, in nats.
    """

    components: tuple[Component, ...]
    logits: Float[np.ndarray, "token position component"]
    expectations: Float[np.ndarray, "position component"]


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's own distribution over the next token at every position.

    Attributes:
        ids, probabilities: `[rank, position]`, the likeliest tokens, the first one first.
        asked: `[token, position]`, the probabilities of the tokens that were asked for.
        entropies: `[position]`, in nats.
    """

    ids: Int[np.ndarray, "rank position"]
    probabilities: Float[np.ndarray, "rank position"]
    asked: Float[np.ndarray, "token position"]
    entropies: Float[np.ndarray, " position"]


def model_answers(
    readout: VocabularyReadout, activations: Activations, k: int, asked: Int[np.ndarray, "token position"]
) -> Answers:
    """The k likeliest next tokens at every position of a pass, by the model's own logits; of an id below 0, NaN."""
    parts = []
    for start in range(0, len(activations.final), readout.step):
        some = slice(start, start + readout.step)
        _, logits = model_logits(readout.architecture, activations.final[some])
        log_p = logits.double().log_softmax(1)
        p, ids = log_p.exp(), torch.as_tensor(asked[:, some].T, device=log_p.device)
        top = p.topk(k, 1)
        own = p.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, torch.nan)
        # A probability of 0 adds nothing to the entropy.
        parts.append((top.indices.T, top.values.T, own.T, -(p * log_p.clamp_min(-1e30)).sum(1)))
    return Answers(*(torch.cat(part, -1).cpu().numpy() for part in zip(*parts, strict=True)))


def token_logits(
    readout: VocabularyReadout, activations: Activations, ids: Int[np.ndarray, "token position"]
) -> TokenLogits:
    """What every component adds to some tokens at every position of a pass; `ids` may differ from place to place."""
    vocabulary, device = readout.vocabulary, activations.final.device
    logits, expectations = [], []
    for start in range(0, ids.shape[1], readout.step):
        some = slice(start, start + readout.step)
        part = activations.at_positions(some)
        table = component_table(readout, part)
        wanted = [vocabulary.rows(torch.as_tensor(row[some], device=device)) for row in ids]
        unembedded, _ = model_logits(readout.architecture, part.final)
        p = (unembedded.double() * readout.architecture.logit_multiplier).softmax(1)
        wanted.append(vocabulary.weighted_rows(readout.dtype, p))
        out = [torch.zeros(len(p), len(table.components), dtype=torch.float64, device=device) for _ in wanted]
        table.inner([direction for direction, _ in wanted], out)
        if table.constant is not None:
            for columns, (_, constant) in zip(out, wanted, strict=True):
                columns[:, table.constant] = constant
        logits.append(torch.stack(out[:-1]))
        expectations.append(out[-1])
    stacked: tuple[Tensor, Tensor] = torch.cat(logits, 1), torch.cat(expectations)
    return TokenLogits(table.components, *(x.cpu().numpy() for x in stacked))
