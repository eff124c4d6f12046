"""Where options of several tokens are scored: each prompt, and each beginning of an option after it, run once.

The beginnings of a prompt's options are a tree. Where the model lets them, they stand behind the prompt in one row,
each at its own position and shown only the prompt and what it continues; elsewhere every leaf of the tree is a row.
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
from ..model.options import NONE, Ids, OptionIds

# The fields that have a row for every component.
TABLES = ("values", "expectations", "vocabulary_means")
# What is summed over positions, beside the components.
SUMMED = ("logits", "log_likelihood", "normalizer", "likelihood_gap")
# Packed and plain passes differ by their rounding: relative to the largest logit.
ROUNDING, HALF_ROUNDING = 1e-5, 5e-2


@dataclass(frozen=True, eq=False)
class BatchContributions:
    """Contributions of some rows of a pass, float64.

    Attributes:
        components, values: The components, and what they add `[row, component, option]`; after the options, along other
            directions.
        logits: The model's own, `[row, option]`, after any soft-cap.
        expectations, vocabulary_means: E_p of the components' logits, with p the model's next-token distribution, and
            their means over the vocabulary, `[row, component]`.
        log_likelihood, normalizer, likelihood_gap: `[row, option]`: log p of each, what of it no component holds, how
            far that is from −H(p) and a soft-cap's effect. These five are None where they were not asked for.
        statistic: The final norm's, of the whole stream.
        stream_gap: What the stream holds beyond all that was written, `[row]`, relative to max Σ|u_i|.
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
        beginnings: What is read after the prompt: nothing, then the beginnings of options, shorter ones first.
        sides: For each the length of the pass that reads it, where positions depend on that; else 0. Beginnings of one
            side stand together.
        targets: The tokens that are scored after each.
        place, column: `[option·alternative, token]`: which context scores the token, and which of its targets it is.
    """

    beginnings: tuple[Ids, ...]
    sides: tuple[int, ...]
    targets: tuple[Ids, ...]
    place: Int[np.ndarray, "sequence token"]
    column: Int[np.ndarray, "sequence token"]

    def of_side(self, side: int | None) -> list[Ids]:
        """The beginnings of one side; None is all."""
        return [b for b, own in zip(self.beginnings, self.sides, strict=True) if side is None or own == side]

    def leaves(self, side: int | None = None) -> list[Ids]:
        """Beginnings of one side that no other continues: running these shows all."""
        beginnings = self.of_side(side)
        inner = {beginning[:-1] for beginning in beginnings if beginning}
        return [beginning for beginning in beginnings if beginning not in inner]


def tree_of(sequences: Int[np.ndarray, "sequence token"], prompt: int = 0, switch: int | None = None) -> Tree:
    """The contexts of some sequences of tokens, padded by NONE, after a prompt of so many tokens.

    A sequence is read in one pass, as a model reads prompt and option: where that is longer than `switch`, its
    beginnings are not those of a shorter option, even of the same tokens.
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
    """The contexts of all examples, one example's after another's.

    Attributes:
        prompts, trees, first: Of every example: its tokens up to the position that is read, its tree, and the number of
            its first context.
        target_ids: `[context, target]`, with a context's first target where it has fewer.
        statistics, weights: What passes have shown: the final norm's statistic by context, and how likely each of an
            option's alternatives is, `[example, option, alternative]`.
        others: Those of a model whose weights the columns of other readers take.
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
        """The contexts of some examples."""
        return np.concatenate([np.arange(self.first[e], self.first[e + 1]) for e in examples])

    def length(self, example: int, packed: bool) -> int:
        """The number of tokens that are run for an example."""
        tree, prompt = self.trees[example], len(self.prompts[example])
        if packed:
            return prompt + len(tree.beginnings) - 1
        return len(tree.leaves()) * (prompt + max(map(len, tree.beginnings)))

    def longest(self) -> int:
        """The most tokens that any context holds."""
        return max(len(p) + max(map(len, t.beginnings)) for p, t in zip(self.prompts, self.trees, strict=True))

    def passes(
        self, architecture: Architecture, examples: Sequence[int], unit: UnitLike, packed: bool
    ) -> Iterator[tuple[Int[np.ndarray, " context"], Activations]]:
        """The passes that read all contexts of some examples, in their order: one, or one for each side."""
        numbers, sides = self.numbers(examples), np.concatenate([self.trees[e].sides for e in examples])
        for side in np.unique(sides):
            yield numbers[sides == side], self.run(architecture, examples, unit, packed, int(side))

    def run(
        self, architecture: Architecture, examples: Sequence[int], unit: UnitLike, packed: bool, side: int | None = None
    ) -> Activations:
        """One pass that reads the contexts of some examples, of one side or of all, in their order."""
        if packed:
            return run(architecture, unit=unit, interventions=True, **self._packed(examples, architecture))
        rows, of, at = self.plain_rows(examples, side)
        return run(architecture, *pad(rows), unit, at, of, interventions=True)

    def check(self, model: Model, sides: bool = False) -> None:
        """Raise InputError where a prompt and its option are longer than the model reads.

        And, unless `sides` are read one by one, where options of one prompt are read at different positions.
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
        """(a row of tokens for every leaf of some examples, in which of them and at which token each context ends)."""
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
        """A row for every example: its prompt and, side by side, the last tokens of all beginnings."""
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
            # Behind its prompt, each beginning sees the beginnings that it continues, and itself.
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
        """`[example, sequence, token]`: which of these examples' contexts scores each token, and as which target."""
        place = np.stack([self.trees[e].place for e in examples])
        place = np.where(place == NONE, NONE, place + self._starts(examples)[:, None, None])
        return place, np.stack([self.trees[e].column for e in examples])

    def _starts(self, examples: Sequence[int]) -> Int[np.ndarray, " example"]:
        """The first context of each of these examples, among theirs."""
        return np.cumsum([0] + [len(self.trees[e].beginnings) for e in examples])[:-1]

    def by_option(self, examples: Sequence[int], steps: Iterable[BatchContributions]) -> BatchContributions:
        """The numbers of some examples' contexts, summed over each option's positions.

        An option of several alternatives has the log-sum-exp of their log-likelihoods: the mean over them, weighted by
        how likely each is, and the entropy of these weights.
        """
        step, *others = steps
        columns = {name: x for name, x in vars(step).items() if isinstance(x, np.ndarray)}
        for name, x in columns.items():
            columns[name] = np.concatenate([x, *(getattr(other, name) for other in others)])
        starts, (place, column) = self._starts(examples), self.places(examples)
        self.statistics[columns["rows"]] = columns["statistic"]

        def summed(x: Float[np.ndarray, "context *rest target"]) -> Float[np.ndarray, "e option alternative *rest"]:
            """Sums over the tokens of each alternative."""
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
    """Try once, on a few tokens, whether a model gives packed contexts the logits of plain rows.

    Not where a context is longer than some attention looks back, or than where positions change: a mask of ours would
    be another than the model's own.
    """
    limits = [x for x in (model.architecture.window, model.architecture.length_switch) if x is not None]
    # A recurrent sublayer sees the tokens in their order, whatever a mask says; hooks may be made for plain texts.
    recurrent = any(sublayer.kind == "mixer" for sublayer in model.architecture.sublayers)
    if recurrent or hooked_places(model.architecture) or contexts.longest() > min(limits, default=contexts.longest()):
        return False
    if "packs" not in model.cache:
        model.cache["packs"] = _packs(model.architecture)
    return bool(model.cache["packs"])


def _packs(architecture: Architecture) -> bool:
    # A model that is not told where each token stands would count the beginnings of options one after another.
    if "position_ids" not in inspect.signature(architecture.root.forward).parameters:
        return False
    token = [(7 * i + 3) % min(architecture.vocabulary, architecture.outputs) for i in range(8)]
    prompts = [tuple(token[:3]), tuple(token[3:5])]
    trial = Contexts(prompts, np.array([[[token[4:7]], [[token[7], token[1], NONE]]]] * 2))
    try:
        with inference_mode_for(architecture):
            packed, plain = (trial.run(architecture, [0, 1], "sublayer", way).logits for way in (True, False))
    except Exception:  # models refuse masks and positions in many ways; what else is wrong, the plain rows will say
        return False
    rounding = HALF_ROUNDING if architecture.dtype in HALF else ROUNDING
    return bool((packed - plain).abs().max() <= rounding * plain.abs().max())
