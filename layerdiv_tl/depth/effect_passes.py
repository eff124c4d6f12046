"""The passes behind `effects`: heads and sublayers ablated by zero, a mean or another row's values, and read out.

Only what an ablated component can change is run again: a pass resumes at its block, and every later write is read at
each row's last token, where the answer stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attribution.contexts import BatchContributions, Contexts
from ..attribution.passes import OptionReader
from ..attribution.vocabulary import NextTokenDistribution, vocabulary_of
from ..components import Component
from ..errors import InputError
from ..model.batches import pad, upcast
from ..model.capture import Activations, SublayerOutput
from ..model.forward_pass import locate_mismatch, run
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .effect_answers import Answers
from .passes import map_batches

EffectUnit = Literal["sublayer", "head"]
Ablation = Literal["mean", "zero", "resample"]
Positions = Literal["all", "last"]
# What a row's answer would be: without the component's own write, with the final norm as it was and as it then is; and
# with the component ablated, the norm as it was and as it then is.
SCENARIOS = ("direct", "direct_recomputed", "total_frozen", "total")

# Where a sublayer, or its heads before the output projection, stand: kind, layer and repeat.
Place = tuple[str, int | None, int | None]
Values = Mapping[Place, Float[Tensor, "row token _"]]


@dataclass(frozen=True, eq=False)
class Ablations:
    """What is ablated, and what takes its place.

    Attributes:
        members: Of every ablation, the components that go together.
        means: By place, the mean over tokens of each kind (`Answers.token_kinds`); only for the mean.
        partners: `[row]`, whose values a row takes; only for resampling.
    """

    members: tuple[tuple[Component, ...], ...]
    unit: EffectUnit
    kind: Ablation
    positions: Positions
    means: Mapping[Place, Float[Tensor, "4 _"]]
    partners: Int[np.ndarray, " row"]

    def values(self, model: Model, contexts: Contexts, rows: Sequence[int], answers: Answers) -> Values:
        """What ablated places of some rows hold, `[sequence, token, width]`; none for zero."""
        if self.kind == "mean":
            kinds = answers.token_kinds()
            return _Looked({place: (mean, kinds) for place, mean in self.means.items()})
        if self.kind == "zero":
            return {}
        owner, number = answers.owner.tolist(), [0] * len(answers.sequences)
        for sequence in range(1, len(owner)):
            number[sequence] = number[sequence - 1] + 1 if owner[sequence] == owner[sequence - 1] else 0
        others, ends = [], []
        for row, leaf in zip(owner, number, strict=True):
            partner = int(self.partners[rows[row]])
            leaves = contexts.trees[partner].leaves()
            others.append(contexts.prompts[partner] + leaves[min(leaf, len(leaves) - 1)])
            ends.append(len(contexts.prompts[partner]))
        done = run(model.architecture, *pad(others), self.unit)
        starts = np.cumsum([0, *map(len, others)])
        token = np.zeros((len(others), max(map(len, answers.sequences))), dtype=np.int64)
        lengths = zip(map(len, answers.sequences), answers.prompt_lengths, map(len, others), ends, strict=True)
        for sequence, (length, end, other, other_end) in enumerate(lengths):
            # Counted from the prompt's end, where prompts of one template are alike; a first token only takes a first.
            place = np.arange(length) - end + other_end
            place = place.clip(min(1, other_end - 1), other - 1)
            place[0] = 0 if end > 1 else other_end - 1
            token[sequence, :length] = starts[sequence] + place
        at = torch.as_tensor(token)
        return _Looked({place: (value, at) for place, value in _places(done, self.unit)})


class _Looked(dict[Place, Any]):
    """Tables that are indexed when they are looked up: values of one place at a time."""

    def __getitem__(self, place: Place) -> Tensor:
        table, index = super().__getitem__(place)
        looked: Tensor = table[index.to(table.device)]
        return looked


def _places(done: Activations, unit: EffectUnit) -> Iterator[tuple[Place, Float[Tensor, "position _"]]]:
    """Every place of a pass and what it held: heads' values, or a whole write as it was added to the stream."""
    for output, repeat in zip(done.sublayer_outputs, done.repeats, strict=True):
        place = (output.sublayer.kind, output.sublayer.layer, repeat)
        yield place, output.output if output.values is None else output.values


def mean_values(
    model: Model, contexts: Contexts, unit: EffectUnit, batch_tokens: int | None
) -> dict[Place, Float[Tensor, "4 _"]]:
    """The mean of every place over all rows' tokens of each kind; a row's sequences count as one."""
    sums: dict[Place, Tensor] = {}
    counts = torch.zeros(4, dtype=torch.float64)

    def add(rows: list[int]) -> None:
        answers = Answers(contexts, rows)
        ids, mask = pad(answers.sequences)
        weights = 1 / answers.owner.bincount()[answers.owner].double()
        member = torch.nn.functional.one_hot(answers.token_kinds(), 4) * weights[:, None, None]
        member = member[mask.bool()]
        counts.add_(member.sum(0))
        for place, value in _places(run(model.architecture, ids, mask, unit), unit):
            total = member.to(value.device).T @ value.double()
            sums[place] = sums[place] + total if place in sums else total

    map_batches(model, sequence_lengths(contexts), batch_tokens, add, "row")
    counts[counts == 0] = 1
    return {place: total / counts[:, None].to(total.device) for place, total in sums.items()}


def sequence_lengths(contexts: Contexts) -> list[range]:
    """As many items as tokens are run for every row."""
    return [range(contexts.length(row, False)) for row in range(len(contexts.prompts))]


@dataclass(eq=False)
class BatchEffects:
    """What the ablations do to some rows.

    Attributes:
        rows: Their numbers.
        members, values: All components, and their contributions to the options' scores in the pass as it is, `[row,
            member, option]`.
        logits: `[row, option]`: the scores: logits before any soft-cap, or log-likelihoods.
        without: `[scenario, row, ablation, option]`: the same without each ablation's members.
        changes: `[row, ablation, member]` weighed by `contrast`: by how much more each component writes to the answer
            in the clean pass, at the clean norm.
        gap: The largest |Σ changes + norm − total| relative to max Σ|u|.
    """

    rows: list[int]
    members: tuple[Component, ...]
    values: Float[np.ndarray, "row member option"]
    logits: Float[np.ndarray, "row option"]
    without: Float[np.ndarray, "scenario row ablation option"]
    changes: Float[np.ndarray, "row ablation member"] | None
    gap: float


class AblatedBatch:
    """Some rows, their clean pass, and what is read out of passes that resume from it. Use in inference mode."""

    def __init__(self, model: Model, contexts: Contexts, rows: list[int], ablations: Ablations) -> None:
        self.model, self.rows, self.ablations = model, rows, ablations
        self.answers = Answers(contexts, rows)
        architecture, texts = model.architecture, self.answers.sequences
        self.forward = PatchedForward(model, texts)
        device = self.forward.mask.device
        self.row, self.at = self.answers.sequence.to(device), self.answers.at.to(device)
        self.activations = run(architecture, *pad(texts), ablations.unit, self.answers.at, self.answers.sequence)
        if self.activations.path:
            raise InputError(
                f"the stream of {model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        self.reader = OptionReader(architecture, self.answers.target_ids, ablations.unit)
        # Log-likelihoods are read at the clean pass's distribution, there and wherever something is ablated.
        self.expected = (
            NextTokenDistribution(vocabulary_of(model), self.activations.logits, self.activations.unembedded)
            if self.answers.several
            else None
        )
        self.values = ablations.values(model, contexts, rows, self.answers)
        self.clean = self.read(self.reader, self.activations)
        scores = self.scores(self.activations)
        self.answers.weigh(scores)
        own = self.answers.mixed(self.clean.values)
        self.logits = self.answers.of_options(scores).numpy() if self.answers.several else own.sum(1)
        self._of_clean: dict[str, Any] = {"members": self.clean.components, "values": own, "logits": self.logits}
        self._sigma = architecture.norm.statistic(self.activations.final.double().cpu()).numpy()[:, None]
        self._fixed = [i for i, c in enumerate(self.clean.components) if c.kind == "constant"]
        # What no stream writes, and no norm scales.
        self._constant = self.clean.values[:, self._fixed].sum(1)
        self._texts = texts

    def measure(
        self, contrast: Float[np.ndarray, "row option"], keep_changes: bool, tell: Callable[[int], Any]
    ) -> BatchEffects:
        """All ablations, one after another; `tell` is told of the passes done."""
        count = len(self.ablations.members)
        n, members, options = self._of_clean["values"].shape
        without = np.empty((len(SCENARIOS), n, count, options))
        changes = np.empty((n, count, members)) if keep_changes else None
        gap, clean = 0.0, self.clean.values.sum(1)
        for number, group in enumerate(self.ablations.members):
            ablated = self.without(group)
            some, change = self._scenarios(group, ablated)
            without[:, :, number] = self.logits - self.answers.mixed((clean - some).swapaxes(0, 1)).swapaxes(0, 1)
            if self.answers.several:
                without[-1, :, number] = self.answers.of_options(self.scores(ablated)).numpy()
            if changes is not None:
                changes[:, number] = np.einsum("rmo,ro->rm", self.answers.mixed(change), contrast)
            # The parts against the model's own answers.
            parts = change.sum(1) + (some[2] - some[3])
            own = self._linear_scores(self.activations) - self._linear_scores(ablated)
            gap = max(gap, float(np.abs(parts - own).max() / (np.abs(self.clean.values).sum(1).max() or 1.0)))
            tell(n)
        self.reader.error.check(
            self.model.name, self.ablations.unit, lambda: locate_mismatch(self.model.architecture, self._texts[0])
        )
        return self.result(without, changes, gap)

    def result(self, without: np.ndarray, changes: np.ndarray | None, gap: float) -> BatchEffects:
        """What was found, beside the pass as it is."""
        return BatchEffects(self.rows, **self._of_clean, without=without, changes=changes, gap=gap)

    def without(self, members: Sequence[Component]) -> Activations:
        """The pass with some components ablated, at the rows' last tokens."""
        forward, architecture = self.forward, self.model.architecture
        block_of = {place: block for block, place in enumerate(forward.layers)}
        by_place: dict[tuple[int, str], list[Component]] = {}
        for member in members:
            assert member.layer is not None
            place = "heads" if member.kind == "head" else member.kind
            by_place.setdefault((block_of[member.layer, member.repeat], place), []).append(member)
        start = min(block for block, _ in by_place)
        seen: dict[tuple[int, str], Tensor] = {}
        instead = {
            (block, place): partial(self._pass_through, seen, (block, place), by_place.get((block, place), ()))
            for block in range(start, len(forward.layers))
            for place in ("attn", "mlp", "heads", "post")
            if place in ("attn", "mlp") or self.ablations.unit == "head"
        }
        final = forward.resume(start, forward.streams[start], instead)[self.row, self.at]
        outputs = []
        for output, repeat in zip(self.activations.sublayer_outputs, self.activations.repeats, strict=True):
            sublayer = output.sublayer
            block = block_of[sublayer.layer, repeat]
            if (block, sublayer.kind) in seen:
                value = seen[block, sublayer.kind] * sublayer.scale
                heads = None if output.values is None else seen[block, "heads"]
                post = None if output.post is None else seen[block, "post"]
                output = SublayerOutput(sublayer, value, heads, post, cut=output.cut)
            outputs.append(output)
        unembedded = architecture.unembed(forward.normed(final)[:, None])[:, 0]
        return replace(
            self.activations,
            sublayer_outputs=tuple(outputs),
            final=upcast(final).to(self.activations.final.device),
            unembedded=upcast(unembedded).to(self.activations.final.device),
            logits=upcast(architecture.transform(unembedded)).to(self.activations.final.device),
        )

    def _pass_through(
        self, seen: dict[tuple[int, str], Tensor], key: tuple[int, str], ablated: Sequence[Component], value: Tensor
    ) -> Tensor | None:
        """Ablate what goes at this place, and keep what the place then holds at the last tokens."""
        changed = self._ablate(key, ablated, value) if ablated else None
        held = value if changed is None else changed
        row, at = self.row.to(held.device), self.at.to(held.device)
        seen[key] = upcast(held[row, at]).to(self.activations.final.device)
        return changed

    def tokens(self, device: torch.device) -> Bool[Tensor, "row token"]:
        """Where components are ablated."""
        if self.ablations.positions == "all":
            return self.forward.tokens.to(device)
        last = torch.zeros_like(self.forward.tokens)
        last[self.row, self.at] = True
        return last.to(device)

    def left_over(self, key: tuple[int, str], value: Float[Tensor, "row token _"]) -> Float[Tensor, "row token _"]:
        """What a place holds instead of `value` where all that stands there is ablated."""
        block, place = key
        if self.ablations.kind == "zero":
            return torch.zeros_like(value)
        left = self.values["attn" if place == "heads" else place, *self.forward.layers[block]].to(value)
        # Whole writes are kept as the stream takes them.
        return left if place == "heads" else left / self.forward.scales[block, place]

    def head_count(self, layer: int | None) -> int:
        """How many heads a layer has."""
        maps = [s.output_map for s in self.model.architecture.sublayers if s.kind == "attn" and s.layer == layer]
        assert maps[0] is not None
        return maps[0].count

    def _ablate(self, key: tuple[int, str], ablated: Sequence[Component], value: Tensor) -> Tensor:
        goes = torch.ones(value.shape[-1], dtype=torch.bool, device=value.device)
        if key[1] == "heads":
            goes = torch.zeros_like(goes).view(self.head_count(ablated[0].layer), -1)
            goes[[c.index for c in ablated]] = True
            goes = goes.view(-1)
        return torch.where(self.tokens(value.device)[..., None] & goes, self.left_over(key, value), value)

    def _scenarios(
        self, members: Sequence[Component], ablated: Activations
    ) -> tuple[Float[np.ndarray, "scenario context target"], Float[np.ndarray, "context component target"]]:
        """(logits of every scenario, change of every component at the clean norm)."""
        norm, final = self.model.architecture.norm, self.activations.final.double().cpu()
        sigma = norm.statistic(ablated.final.double().cpu()).numpy()[:, None]
        there = self.read(self.reader, ablated).values
        total = there.sum(1)
        frozen = there * (sigma / self._sigma)[:, :, None]
        frozen[:, self._fixed] = there[:, self._fixed]
        change = self.clean.values - frozen
        clean = self.clean.values.sum(1)
        own = [self.clean.components.index(member) for member in members]
        direct = clean - change[:, own].sum(1)
        removed = self._vectors(self.activations, members) - self._vectors(ablated, members)
        after = norm.statistic(final - removed).numpy()[:, None]
        recomputed = (direct - self._constant) * (self._sigma / after) + self._constant
        return np.stack([direct, recomputed, frozen.sum(1), total]), change

    def _vectors(self, activations: Activations, members: Sequence[Component]) -> Float[Tensor, "row d"]:
        """What some components write to the stream at the last tokens."""
        total = torch.zeros(activations.final.shape, dtype=torch.float64)
        for write in self.reader.walk.writes(activations):
            for block in write.blocks:
                if mine := [i for i, component in enumerate(block.components) if component in members]:
                    total += block.vectors(mine).sum(1).cpu()
        return total

    def read(
        self, reader: OptionReader, activations: Activations, keep: Set[Component] | None = None
    ) -> BatchContributions:
        """The components' contributions to what targets score, `[context, component, target]`."""
        read = reader.read(activations, np.arange(len(self.at)), keep, self.expected)
        if read.expectations is None:
            return read
        return replace(read, values=read.values - read.expectations.reshape(*read.values.shape[:2], 1))

    def scores(self, activations: Activations) -> Float[Tensor, "context target"]:
        """The model's own."""
        passed = activations.unembedded, activations.logits
        return self.answers.of_targets(self.model.architecture, *passed).cpu()

    def _linear_scores(self, activations: Activations) -> Float[np.ndarray, "context target"]:
        """What components sum to, from the model's own logits."""
        own = activations.unembedded.double() * self.model.architecture.logit_multiplier
        options = torch.as_tensor(self.answers.target_ids).to(own.device)
        picked = own.gather(1, options)
        if self.expected is not None:
            picked -= (self.activations.logits.double().softmax(1) * own).sum(1, keepdim=True)
        return picked.cpu().numpy()
