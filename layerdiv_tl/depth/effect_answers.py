"""Where the options of some rows are scored in the passes of `effects`, and how the scores of tokens make an option's.

A single token's score is its logit before any soft-cap; an option of several tokens has its log-likelihood. What a
component does to that is linear where the clean pass's distribution p of each next token is held: with l the logits,
log p'(t) − log p(t) = (l' − l)(t) − E_p[l' − l] − KL(p ‖ p'), of which the first two terms are sums over components.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attribution.contexts import Contexts
from ..model.architecture import Architecture
from ..model.options import NONE


class Answers:
    """The options of some examples.

    Attributes:
        sequences, owner, prompt_lengths: What is run: every prompt, with the beginnings of its options where these have
            several tokens; the number of the example that each is of, and how long its prompt is.
        sequence, at: `[context]`: in which sequence and at which token options' tokens are scored.
        target_ids: `[context, target]`, the tokens.
        several: Whether there are options of several tokens, or of several alternatives.
        weights: `[row, option, alternative]`: how likely each alternative is; 1 before `weigh`.
    """

    def __init__(self, contexts: Contexts, examples: Sequence[int]) -> None:
        self.sequences, self.sequence, self.at = contexts.plain_rows(examples)
        leaves = [len(contexts.trees[e].leaves()) for e in examples]
        self.owner = torch.as_tensor(np.repeat(np.arange(len(examples)), leaves))
        self.prompt_lengths = [len(contexts.prompts[examples[row]]) for row in self.owner.tolist()]
        self.target_ids = contexts.target_ids[contexts.numbers(examples)]
        ids = contexts.option_ids[list(examples)]
        self._place, self._column = (torch.as_tensor(x).reshape(ids.shape) for x in contexts.places(examples))
        self._absent = torch.as_tensor(ids[:, :, :, 0] == NONE)
        self.several = ids.shape[2:] != (1, 1)
        self.weights = torch.ones(ids.shape[:3], dtype=torch.float64)

    def token_kinds(self) -> Int[Tensor, "sequence token"]:
        """0 for first tokens, 1 for those between, 2 for the prompts' last ones, 3 for those of options."""
        kinds = torch.ones(len(self.sequences), max(map(len, self.sequences)), dtype=torch.long)
        kinds[:, 0] = 0
        for row, length in enumerate(self.prompt_lengths):
            kinds[row, length - 1], kinds[row, length:] = 2, 3
        return kinds

    def of_targets(
        self, architecture: Architecture, unembedded: Float[Tensor, "context v"], logits: Float[Tensor, "context v"]
    ) -> Float[Tensor, "context target"]:
        """The score of every target: its logit before any soft-cap, or its log-probability."""
        targets = torch.as_tensor(self.target_ids).to(logits.device)
        if not self.several:
            return unembedded.gather(1, targets).double() * architecture.logit_multiplier
        return logits.gather(1, targets).double() - logits.double().logsumexp(1, keepdim=True)

    def weigh(self, scores: Float[Tensor, "context target"]) -> None:
        """Take the weights of alternatives from a pass."""
        by_alternative = self._by_alternative(scores)
        self.weights = (by_alternative - by_alternative.logsumexp(2, keepdim=True)).exp()

    def of_options(self, scores: Float[Tensor, "context target"]) -> Float[Tensor, "row option"]:
        """The score of every option: the sum over its tokens; the log-sum-exp of its alternatives."""
        return self._by_alternative(scores).logsumexp(2)

    def mixed(self, x: Float[np.ndarray, "context *rest target"]) -> Float[np.ndarray, "row *rest option"]:
        """Summands of targets' scores as summands of the options', at the weights of alternatives."""
        taken = self._taken(torch.as_tensor(np.moveaxis(x, -1, 1)))
        kept = self.weights[..., None] * (self._place != NONE)
        return np.moveaxis(torch.einsum("eoat,eoat...->eo...", kept, taken).numpy(), 1, -1)

    def by_row(self, x: Float[Tensor, "sequence *rest"]) -> Float[Tensor, "row *rest"]:
        """Sums over the sequences of every example."""
        return x.new_zeros(len(self.weights), *x.shape[1:]).index_add_(0, self.owner.to(x.device), x)

    def _taken(self, x: Float[Tensor, "context target *rest"]) -> Float[Tensor, "row option alternative token *rest"]:
        return x[self._place.clamp_min(0).to(x.device), self._column.clamp_min(0).to(x.device)]

    def _by_alternative(self, scores: Float[Tensor, "context target"]) -> Float[Tensor, "row option alternative"]:
        taken = self._taken(scores.cpu()).masked_fill(self._place == NONE, 0.0).sum(3)
        return taken.masked_fill(self._absent, -torch.inf)
