"""Contexts in which options of several tokens are scored: each prompt, and each option prefix after it, runs once.

The prefixes of a prompt's options form a tree, and every leaf of the tree is a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import Architecture, UnitLike
from ..model.batches import pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from ..model.options import NONE, OptionIds
from ..model.prompts import Ids

# The fields that have a row for every component.
TABLES = ("values", "expectations", "vocabulary_means")


@dataclass(frozen=True, eq=False)
class BatchContributions:
    """Contributions of some rows of a pass, float64.

    Attributes:
        components, values: The components, and their contributions `[row, component, option]`; columns after the
            options are along other directions.
        logits: The model's own, `[row, option]`, after any soft-cap.
        expectations, vocabulary_means: E_p of the components' logits, with p the model's next-token distribution, and
            their means over the vocabulary, `[row, component]`.
        log_likelihood, normalizer, likelihood_gap: `[row, option]`: log p of each option, the part that no component
            holds, and how far that is from −H(p) and a soft-cap's effect. These five are None unless requested.
        statistic: The final norm's statistic of the whole stream.
        stream_gap: The part of the stream that was not written by any component, `[row]`, relative to max Σ|u_i|.
    """

    rows: Int[np.ndarray, " row"]
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    logits: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    statistic: Float[np.ndarray, " row"]
    junctions: tuple[Component, ...]
    stream_gap: Float[np.ndarray, " row"]
    expectations: Float[np.ndarray, "row component *option"] | None = None
    vocabulary_means: Float[np.ndarray, "row component"] | None = None
    log_likelihood: Float[np.ndarray, "row option"] | None = None
    normalizer: Float[np.ndarray, "row option"] | None = None
    likelihood_gap: Float[np.ndarray, "row option"] | None = None


@dataclass(frozen=True, eq=False)
class Tree:
    """The contexts of one prompt's options.

    Attributes:
        beginnings: The token sequences read after the prompt: the empty one, then the option prefixes, shortest first.
        sides: For each, the length of the pass that reads it, where positions depend on that; else 0. Beginnings of one
            side are adjacent.
        targets: The tokens scored after each.
        place, column: `[option, token]`: the context that scores the token, and its target index there.
    """

    beginnings: tuple[Ids, ...]
    sides: tuple[int, ...]
    targets: tuple[Ids, ...]
    place: Int[np.ndarray, "option token"]
    column: Int[np.ndarray, "option token"]

    def of_side(self, side: int | None) -> list[Ids]:
        """The beginnings of one side; None selects all."""
        return [b for b, own in zip(self.beginnings, self.sides, strict=True) if side is None or own == side]

    def leaves(self, side: int | None = None) -> list[Ids]:
        """The beginnings of one side that no other continues; running them covers all."""
        beginnings = self.of_side(side)
        inner = {beginning[:-1] for beginning in beginnings if beginning}
        return [beginning for beginning in beginnings if beginning not in inner]


def tree_of(options: Int[np.ndarray, "option token"], prompt: int = 0, switch: int | None = None) -> Tree:
    """Build the contexts of some options' tokens, padded by NONE, after a prompt of the given length.

    An option is read in one pass, as a model reads prompt and option. If that pass is longer than `switch`, its
    beginnings are not shared with a shorter option, even for the same tokens.
    """
    rows = [tuple(int(i) for i in row if i != NONE) for row in options]
    ends = [prompt + len(row) - 1 for row in rows]
    sides = [0 if switch is None or end <= switch else end for end in ends]
    known = {(side, row[:end]) for side, row in zip(sides, rows, strict=True) for end in range(len(row))}
    beginnings = sorted(known, key=lambda b: (b[0], len(b[1]), b[1]))
    number = {beginning: i for i, beginning in enumerate(beginnings)}
    targets: list[list[int]] = [[] for _ in beginnings]
    place, column = np.full((2, *options.shape), NONE)
    for s, row in enumerate(rows):
        for t, token in enumerate(row):
            place[s, t] = at = number[sides[s], row[:t]]
            if token not in targets[at]:
                targets[at].append(token)
            column[s, t] = targets[at].index(token)
    split = (tuple(b for _, b in beginnings), tuple(side for side, _ in beginnings))
    return Tree(*split, tuple(map(tuple, targets)), place, column)


class Contexts:
    """The contexts of all examples, grouped by example.

    Attributes:
        prompts, trees, first: For every example: its tokens up to the position read, its tree, and the index of its
            first context.
        target_ids: `[context, target]`, filled up with a context's first target.
    """

    def __init__(self, prompts: Sequence[Ids], option_ids: OptionIds, switch: int | None = None) -> None:
        self.prompts, self.option_ids = prompts, option_ids
        self.trees = [tree_of(row, len(prompt), switch) for prompt, row in zip(prompts, option_ids, strict=True)]
        self.first = np.cumsum([0] + [len(tree.beginnings) for tree in self.trees])
        targets = [targets for tree in self.trees for targets in tree.targets]
        width = max(map(len, targets))
        self.target_ids = np.array([[*own, *own[:1] * (width - len(own))] for own in targets])

    def numbers(self, examples: Sequence[int]) -> Int[np.ndarray, " context"]:
        """The indices of some examples' contexts."""
        return np.concatenate([np.arange(self.first[e], self.first[e + 1]) for e in examples])

    def length(self, example: int) -> int:
        """The number of tokens in an example's rows."""
        tree, prompt = self.trees[example], len(self.prompts[example])
        return len(tree.leaves()) * (prompt + max(map(len, tree.beginnings)))

    def longest(self) -> int:
        """The length of the longest context."""
        return max(len(p) + max(map(len, t.beginnings)) for p, t in zip(self.prompts, self.trees, strict=True))

    def passes(
        self, architecture: Architecture, examples: Sequence[int], unit: UnitLike
    ) -> Iterator[tuple[Int[np.ndarray, " context"], Activations]]:
        """Run the passes that read all contexts of some examples, in order: one, or one for each side."""
        numbers, sides = self.numbers(examples), np.concatenate([self.trees[e].sides for e in examples])
        for side in np.unique(sides):
            rows, of, at = self.plain_rows(examples, int(side))
            yield numbers[sides == side], run(architecture, *pad(rows), unit, at, of, interventions=True)

    def check(self, model: Model, sides: bool = False) -> None:
        """Raise InputError where a prompt and its option are longer than the model's context.

        Unless `sides` are read one by one, also raise it where options of one prompt are read at different positions.
        """
        if not sides and (split := [n for n, tree in enumerate(self.trees) if len(set(tree.sides)) > 1]):
            raise InputError(
                f"options of prompt {split[0]} lie on both sides of {model.architecture.length_switch} tokens, where "
                f"{model.name} changes its positions: give options of one length, or a shorter prompt."
            )
        longest, limit = self.longest(), model.context
        if limit is not None and longest > limit:
            raise InputError(f"a prompt and its option make {longest} tokens, but {model.name} reads {limit}.")

    def plain_rows(
        self, examples: Sequence[int], side: int | None = None
    ) -> tuple[list[Ids], Int[Tensor, " context"], Int[Tensor, " context"]]:
        """Return a row of tokens for every leaf of some examples, and the row and token at which each context ends."""
        rows: list[Ids] = []
        places: list[tuple[int, int]] = []
        for example in examples:
            prompt, tree = self.prompts[example], self.trees[example]
            leaves = tree.leaves(side)
            for beginning in tree.of_side(side):
                holder = next(n for n, leaf in enumerate(leaves) if leaf[: len(beginning)] == beginning)
                places.append((len(rows) + holder, len(prompt) + len(beginning) - 1))
            rows += [prompt + leaf for leaf in leaves]
        of, at = torch.tensor(places).T
        return rows, of, at

    def places(self, examples: Sequence[int]) -> tuple[Int[np.ndarray, "e o t"], Int[np.ndarray, "e o t"]]:
        """`[example, option, token]`: these examples' context that scores each token, and its target index there."""
        place = np.stack([self.trees[e].place for e in examples])
        place = np.where(place == NONE, NONE, place + self._starts(examples)[:, None, None])
        return place, np.stack([self.trees[e].column for e in examples])

    def _starts(self, examples: Sequence[int]) -> Int[np.ndarray, " example"]:
        """The index of each of these examples' first context among theirs."""
        return np.cumsum([0] + [len(self.trees[e].beginnings) for e in examples])[:-1]

    def by_option(self, examples: Sequence[int], steps: Iterable[BatchContributions]) -> BatchContributions:
        """Sum the numbers of some examples' contexts over each option's positions."""
        step, *others = steps
        columns = {name: x for name, x in vars(step).items() if isinstance(x, np.ndarray)}
        for name, x in columns.items():
            columns[name] = np.concatenate([x, *(getattr(other, name) for other in others)])
        starts, (place, column) = self._starts(examples), self.places(examples)

        def summed(x: Float[np.ndarray, "context *rest target"]) -> Float[np.ndarray, "example *rest option"]:
            """Sum over the tokens of each option."""
            total = np.zeros((*place.shape[:2], *x.shape[1:-1]))
            for token in range(place.shape[2]):
                scored = (place[:, :, token] != NONE).reshape(*place.shape[:2], *[1] * (x.ndim - 2))
                total += np.moveaxis(x, -1, 1)[place[:, :, token], column[:, :, token]] * scored
            return np.moveaxis(total, 1, -1)

        expected = np.repeat(columns["expectations"][:, :, None], self.target_ids.shape[1], 2)
        return replace(
            step,
            rows=np.array(examples),
            values=summed(columns["values"]),
            expectations=summed(expected),
            junction_scale=columns["junction_scale"][starts],
            statistic=columns["statistic"][starts],
            stream_gap=np.maximum.reduceat(columns["stream_gap"], starts),
            logits=summed(columns["logits"]),
            log_likelihood=summed(columns["log_likelihood"]),
            normalizer=summed(columns["normalizer"]),
            likelihood_gap=summed(columns["likelihood_gap"]),
        )
