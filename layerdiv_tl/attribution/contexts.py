"""Contexts in which options of several tokens are scored: each prompt, and each option prefix after it, runs once.

The prefixes of a prompt's options form a tree. Where the model supports it, they follow the prompt in one row, each at
its own position and attending only to the prompt and to what it continues; otherwise every leaf of the tree is a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import HALF, Architecture, UnitLike
from ..model.batches import inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.interventions import hooked_places
from ..model.load import Model
from ..model.options import NONE, OptionIds
from ..model.prompts import Ids

# The fields that have a row for every component.
TABLES = ("values", "expectations", "vocabulary_means")
# The sums over positions other than the components'.
SUMMED = ("logits", "log_likelihood", "normalizer", "likelihood_gap")
# The rounding difference of packed and plain passes, relative to the largest logit.
ROUNDING, HALF_ROUNDING = 1e-5, 5e-2


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
        place, column: `[option·alternative, token]`: the context that scores the token, and its target index there.
    """

    beginnings: tuple[Ids, ...]
    sides: tuple[int, ...]
    targets: tuple[Ids, ...]
    place: Int[np.ndarray, "sequence token"]
    column: Int[np.ndarray, "sequence token"]

    def of_side(self, side: int | None) -> list[Ids]:
        """The beginnings of one side; None selects all."""
        return [b for b, own in zip(self.beginnings, self.sides, strict=True) if side is None or own == side]

    def leaves(self, side: int | None = None) -> list[Ids]:
        """The beginnings of one side that no other continues; running them covers all."""
        beginnings = self.of_side(side)
        inner = {beginning[:-1] for beginning in beginnings if beginning}
        return [beginning for beginning in beginnings if beginning not in inner]


def tree_of(sequences: Int[np.ndarray, "sequence token"], prompt: int = 0, switch: int | None = None) -> Tree:
    """Build the contexts of some token sequences, padded by NONE, after a prompt of the given length.

    A sequence is read in one pass, as a model reads prompt and option. If that pass is longer than `switch`, its
    beginnings are not shared with a shorter option, even for the same tokens.
    """
    rows = [tuple(int(i) for i in row if i != NONE) for row in sequences]
    ends = [prompt + len(row) - 1 for row in rows]
    sides = [0 if switch is None or end <= switch else end for end in ends]
    known = {(side, row[:end]) for side, row in zip(sides, rows, strict=True) for end in range(len(row))}
    beginnings = sorted(known, key=lambda b: (b[0], len(b[1]), b[1]))
    number = {beginning: i for i, beginning in enumerate(beginnings)}
    targets: list[list[int]] = [[] for _ in beginnings]
    place, column = np.full((2, *sequences.shape), NONE)
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
        statistics, weights: Results of past passes: the final norm's statistic by context, and the probability of each
            alternative within its option, `[example, option, alternative]`.
        others: The contexts of another model, whose weights the columns of other readers use.
    """

    def __init__(self, prompts: Sequence[Ids], option_ids: OptionIds, switch: int | None = None) -> None:
        sequences = option_ids.reshape(len(option_ids), -1, option_ids.shape[3])
        self.prompts, self.option_ids = prompts, option_ids
        self.trees = [tree_of(row, len(prompt), switch) for prompt, row in zip(prompts, sequences, strict=True)]
        self.first = np.cumsum([0] + [len(tree.beginnings) for tree in self.trees])
        targets = [targets for tree in self.trees for targets in tree.targets]
        width = max(map(len, targets))
        self.target_ids = np.array([[*own, *own[:1] * (width - len(own))] for own in targets])
        self.statistics = np.full(self.first[-1], np.nan)
        self.weights = np.full(option_ids.shape[:3], np.nan)
        self.others: Contexts | None = None

    def numbers(self, examples: Sequence[int]) -> Int[np.ndarray, " context"]:
        """The indices of some examples' contexts."""
        return np.concatenate([np.arange(self.first[e], self.first[e + 1]) for e in examples])

    def length(self, example: int, packed: bool) -> int:
        """The number of tokens in an example's pass."""
        tree, prompt = self.trees[example], len(self.prompts[example])
        if packed:
            return prompt + len(tree.beginnings) - 1
        return len(tree.leaves()) * (prompt + max(map(len, tree.beginnings)))

    def longest(self) -> int:
        """The length of the longest context."""
        return max(len(p) + max(map(len, t.beginnings)) for p, t in zip(self.prompts, self.trees, strict=True))

    def passes(
        self, architecture: Architecture, examples: Sequence[int], unit: UnitLike, packed: bool
    ) -> Iterator[tuple[Int[np.ndarray, " context"], Activations]]:
        """List the passes that read all contexts of some examples, in order: one, or one for each side."""
        numbers, sides = self.numbers(examples), np.concatenate([self.trees[e].sides for e in examples])
        for side in np.unique(sides):
            yield numbers[sides == side], self.run(architecture, examples, unit, packed, int(side))

    def run(
        self, architecture: Architecture, examples: Sequence[int], unit: UnitLike, packed: bool, side: int | None = None
    ) -> Activations:
        """Run one pass over the contexts of some examples, of one side or of all, in their order."""
        if packed:
            return run(architecture, unit=unit, interventions=True, **self._packed(examples, architecture))
        rows, of, at = self.plain_rows(examples, side)
        return run(architecture, *pad(rows), unit, at, of, interventions=True)

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

    def _packed(self, examples: Sequence[int], architecture: Architecture) -> dict[str, Tensor]:
        """Make one row per example: its prompt followed by the last tokens of all beginnings, side by side."""
        rows = [self.prompts[e] + tuple(b[-1] for b in self.trees[e].beginnings[1:]) for e in examples]
        ids, _ = pad(rows)
        length = ids.shape[1]
        sees = torch.ones(length, length, dtype=torch.bool).tril().repeat(len(rows), 1, 1)
        positions = torch.arange(length).repeat(len(rows), 1)
        of: list[int] = []
        at: list[int] = []
        for row, example in enumerate(examples):
            start, beginnings = len(self.prompts[example]), self.trees[example].beginnings
            count = len(beginnings) - 1
            of += [row] * (count + 1)
            at += range(start - 1, start + count)
            # After its prompt, each beginning attends to the beginnings that it continues and to itself.
            sees[row, start:, start:] = torch.eye(length - start, dtype=torch.bool)
            for later, own in enumerate(beginnings[1:]):
                positions[row, start + later] = start + len(own) - 1
                for earlier, other in enumerate(beginnings[1 : later + 1]):
                    sees[row, start + later, start + earlier] = own[: len(other)] == other
            positions[row, start + count :] = 0
        hidden = torch.zeros(sees.shape, dtype=architecture.dtype)
        hidden = hidden.masked_fill_(~sees, torch.finfo(architecture.dtype).min)[:, None]
        places = {"of": torch.tensor(of), "at": torch.tensor(at)}
        return {"ids": ids, "mask": hidden, "position_ids": positions.to(architecture.device), **places}

    def places(self, examples: Sequence[int]) -> tuple[Int[np.ndarray, "e s t"], Int[np.ndarray, "e s t"]]:
        """`[example, sequence, token]`: these examples' context that scores each token, and its target index there."""
        place = np.stack([self.trees[e].place for e in examples])
        place = np.where(place == NONE, NONE, place + self._starts(examples)[:, None, None])
        return place, np.stack([self.trees[e].column for e in examples])

    def _starts(self, examples: Sequence[int]) -> Int[np.ndarray, " example"]:
        """The index of each of these examples' first context among theirs."""
        return np.cumsum([0] + [len(self.trees[e].beginnings) for e in examples])[:-1]

    def by_option(self, examples: Sequence[int], steps: Iterable[BatchContributions]) -> BatchContributions:
        """Sum the numbers of some examples' contexts over each option's positions.

        An option of several alternatives has the log-sum-exp of their log-likelihoods: their mean weighted by their
        probabilities, plus the entropy of these weights.
        """
        step, *others = steps
        columns = {name: x for name, x in vars(step).items() if isinstance(x, np.ndarray)}
        for name, x in columns.items():
            columns[name] = np.concatenate([x, *(getattr(other, name) for other in others)])
        starts, (place, column) = self._starts(examples), self.places(examples)
        self.statistics[columns["rows"]] = columns["statistic"]

        def summed(x: Float[np.ndarray, "context *rest target"]) -> Float[np.ndarray, "e option alternative *rest"]:
            """Sum over the tokens of each alternative."""
            scored = (place != NONE).reshape(*place.shape, *[1] * (x.ndim - 2))
            tokens = range(place.shape[2])
            taken = (np.moveaxis(x, -1, 1)[place[:, :, t], column[:, :, t]] * scored[:, :, t] for t in tokens)
            return sum(taken).reshape(*self.option_ids[list(examples)].shape[:3], *x.shape[1:-1])

        likely = np.where(self.option_ids[list(examples), :, :, 0] != NONE, summed(columns["log_likelihood"]), -np.inf)
        total = np.logaddexp.reduce(likely, axis=2)
        own = self.weights[list(examples)] = np.exp(likely - total[:, :, None])
        mixed = {name: (summed(columns[name]) * own).sum(2) for name in SUMMED}
        # [context, component, reading, target], as many targets for each read-out
        targets = self.target_ids.shape[1]
        values = summed(columns["values"].reshape(*columns["values"].shape[:2], -1, targets))
        theirs = own if self.others is None else self.others.weights[list(examples)]
        weights = np.stack([own, *[theirs] * (values.shape[4] - 1)], 3)
        mixed_values = np.einsum("eoamr,eoar->emro", values, weights)
        expected = np.repeat(columns["expectations"][:, :, None], targets, 2)
        return replace(
            step,
            rows=np.array(examples),
            values=mixed_values.reshape(*mixed_values.shape[:2], -1),
            expectations=np.einsum("eoam,eoa->emo", summed(expected), own),
            logits=mixed["logits"],
            log_likelihood=total,
            normalizer=mixed["normalizer"] + (total - mixed["log_likelihood"]),
            likelihood_gap=mixed["likelihood_gap"],
            junction_scale=columns["junction_scale"][starts],
            statistic=columns["statistic"][starts],
            stream_gap=np.maximum.reduceat(columns["stream_gap"], starts),
        )


def can_pack(model: Model, contexts: Contexts) -> bool:
    """Test once, on a few tokens, whether a model gives packed contexts the logits of plain rows.

    False where a context exceeds an attention window or the length at which positions change: our mask would then
    differ from the model's own.
    """
    limits = [x for x in (model.architecture.window, model.architecture.length_switch) if x is not None]
    # A recurrent sublayer ignores the mask and reads tokens in order; users' hooks may expect plain texts.
    recurrent = any(sublayer.kind == "mixer" for sublayer in model.architecture.sublayers)
    if recurrent or hooked_places(model.architecture) or contexts.longest() > min(limits, default=contexts.longest()):
        return False
    if "packs" not in model.cache:
        model.cache["packs"] = _packs(model.architecture)
    return bool(model.cache["packs"])


def _packs(architecture: Architecture) -> bool:
    # A model that takes no position ids would count the beginnings of options one after another.
    if "position_ids" not in inspect.signature(architecture.root.forward).parameters:
        return False
    token = [(7 * i + 3) % min(architecture.vocabulary, architecture.outputs) for i in range(8)]
    prompts = [tuple(token[:3]), tuple(token[3:5])]
    trial = Contexts(prompts, np.array([[[token[4:7]], [[token[7], token[1], NONE]]]] * 2))
    try:
        with inference_mode_for(architecture):
            packed, plain = (trial.run(architecture, [0, 1], "sublayer", way).logits for way in (True, False))
    except Exception:  # models reject masks and positions in many ways; plain rows will show any other error
        return False
    rounding = HALF_ROUNDING if architecture.dtype in HALF else ROUNDING
    return bool((packed - plain).abs().max() <= rounding * plain.abs().max())
