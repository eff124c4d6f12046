"""The passes of a whole-vocabulary profile: windows of texts in batches, their terms, and the checks of both.

The terms of all components at some positions are means, norms and inner products of logit vectors over the vocabulary.
The columns that a profile keeps are filled here; `profile_results` makes bias and diversity of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, shown, whole_number
from .._progress import progress
from ..components import Component
from ..ensemble.validation import factor
from ..errors import InputError
from ..model import forward_pass
from ..model.architecture import UnitLike
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.cuts import is_fine, unit_name, unit_of
from ..model.forward_pass import locate_mismatch
from ..model.load import Model, as_model
from ..model.prompts import encode
from ..model.reconstruction import ReconstructionError
from .blocks import ALIKE, Rows, check_finite
from .directions import Directions, reconstruct
from .profile_results import CrossEntropyProfile, Profile, SquaredProfile
from .vocabulary import (
    PRECISIONS,
    Vocabulary,
    VocabularyReadout,
    log_sum_exp,
    mean_and_power,
    model_logits,
    probabilities,
    vocabulary_readout,
)

Loss = Literal["squared", "cross_entropy"]
Texts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Window:
    """Tokens start to stop of a text, of which those from `first` on are measured here."""

    document: int
    start: int
    stop: int
    first: int


@dataclass(eq=False)
class ProfileRun:
    """The arguments of a profile, checked, and what its passes so far have shown: their components and errors."""

    model: Model
    loss: Loss
    tau: float | None
    window: int
    stride: int
    batch_tokens: int
    readout: VocabularyReadout
    # Other vocabularies that next tokens are read by, too, after which the model's expectations are kept.
    readers: Sequence[Vocabulary] | None = None
    components: tuple[Component, ...] = ()
    error: ReconstructionError = field(default_factory=ReconstructionError)

    def tau_of(self, members: int) -> float:
        """τ as used: |L| by default."""
        return float(members) if self.tau is None else float(self.tau)

    def source(self) -> dict[str, Any]:
        """The fields of `ProfileSource`."""
        fields = {"components": self.components, "window": self.window, "stride": self.stride}
        fields |= {"identity_gap": self.error.identity_gap, "absolute_gap": self.error.absolute}
        fields |= {"vocabulary": self.readout.vocabulary.size, "unit": unit_name(self.readout.unit)}
        return fields | {"model": self.model.name, "soft_cap": self.model.architecture.soft_cap}

    def result(self, **fields: Any) -> Profile:
        """A profile of these fields."""
        fields |= self.source()
        if self.loss == "cross_entropy":
            return CrossEntropyProfile(tau=self.tau_of(len(self.components)), **fields)
        return SquaredProfile(**{"agreements": None} | fields)

    def encode(self, texts: Any) -> list[tuple[int, ...]]:
        """Token ids of each text. Raises InputError for ids that have no logit, as next tokens."""
        ids = encode(self.model, texts, any_length=True)
        outputs = self.readout.vocabulary.size
        if any(token >= outputs for row in ids for token in row[1:]):
            raise InputError(f"{self.model.name} takes ids beyond the {outputs} that it has logits of, as next tokens.")
        return ids

    def windows(self, ids: Texts) -> Iterator[Window]:
        """Each token of each text in the first window that holds it."""
        for document, row in enumerate(ids):
            start, done = 0, 0
            while done < len(row):
                stop = min(start + self.window, len(row))
                yield Window(document, start, stop, done)
                start, done = start + self.stride, stop


def profile_run(
    model: Any, unit: UnitLike, loss: Loss, tau: Any, window: Any, stride: Any, precision: Any, batch_tokens: Any
) -> ProfileRun:
    """The arguments of `profile` and `corpus_profile`. Raises InputError for those that cannot be used."""
    model = as_model(model)
    unit = unit_of(unit)
    choice("loss", loss, get_args(Loss))
    if loss == "cross_entropy" and is_fine(unit):
        raise InputError(
            "the cross-entropy of every neuron or latent would need all their logits, too many: use loss='squared'."
        )
    if tau is not None and loss == "squared":
        raise InputError(f"tau={shown(tau)} belongs to loss='cross_entropy': the squared error has none.")
    choice("precision", precision, PRECISIONS)
    # No more than the model can read; and windows that lie apart would leave out tokens.
    window = (model.context or 2048) if window is None else whole_number("window", window, 1, model.context)
    stride = max(1, window // 2) if stride is None else whole_number("stride", stride, 1, window)
    readout = vocabulary_readout(model, unit, precision)
    return ProfileRun(model, loss, factor(tau), window, stride, model.checked_batch_tokens(batch_tokens), readout)


class ColumnStore:
    """Tables `[position, component]` and columns `[position]` of a result, filled some positions at a time.

    Neighboring positions are written to directly: for neurons, copies cost as much as the arithmetic.
    """

    def __init__(self, count: int, dtype: torch.dtype = torch.float64) -> None:
        self.count, self.dtype = count, dtype
        self._tables: dict[str, Tensor] = {}
        self._waiting: list[tuple[str, Tensor, Tensor]] = []

    def view(self, name: str, width: int | None, positions: Tensor, device: torch.device) -> Tensor:
        """Where to write some positions of a table, or with width None of a column."""
        if name not in self._tables:
            shape, dtype = ((self.count,), torch.float64) if width is None else ((self.count, width), self.dtype)
            # By torch, not numpy: numpy asks for huge pages, whose first touch costs up to ten times as much.
            self._tables[name] = torch.empty(shape, dtype=dtype)
        table = self._tables[name]
        if device.type == "cpu" and bool((positions.diff() == 1).all()):
            return table[int(positions[0]) : int(positions[-1]) + 1]
        apart = torch.empty(len(positions), *table.shape[1:], dtype=table.dtype, device=device)
        self._waiting.append((name, positions, apart))
        return apart

    def flush(self) -> None:
        """Copy what was written apart to its positions."""
        for name, positions, apart in self._waiting:
            self._tables[name][positions] = apart.cpu()
        self._waiting.clear()

    def arrays(self) -> dict[str, np.ndarray]:
        """All tables and columns by name."""
        return {name: table.numpy() for name, table in self._tables.items()}


def profile_blocks(
    run: ProfileRun,
    ids: Texts,
    store: ColumnStore | None = None,
    dense: Float[np.ndarray, "position vocabulary"] | None = None,
    known: Activations | None = None,
) -> Iterator[tuple[Int[np.ndarray, " position"], ColumnStore]]:
    """The terms of all positions of some texts, some at a time: the texts they are of, and their columns.

    Without a store every block has its own; `known` is the pass of a single window, where it was run before. Raises
    InputError where the components do not sum to the logits.
    """
    architecture, readout = run.model.architecture, run.readout
    windows, starts = list(run.windows(ids)), np.cumsum([0] + [len(row) for row in ids])
    total = None if store is None else store.count
    with inference_mode_for(architecture), progress(run.model.name, total, "token") as advance:
        for rows in batches([w.stop - w.start for w in windows], run.batch_tokens, architecture.length_switch):
            batch = [windows[row] for row in rows]
            tokens, mask = pad([ids[w.document][w.start : w.stop] for w in batch])
            activations = known or forward_pass.run(architecture, tokens, mask, readout.unit, interventions=True)
            run.error.dtypes = (activations.dtype, activations.answer_dtype)
            # The model's own logits at the last tokens against those that its norm and unembedding give.
            ends = (mask.sum(1).cumsum(0) - 1).to(activations.final.device)
            ours = model_logits(architecture, activations.final[ends])[1]
            run.error.add("unexplained", (ours - activations.logits).abs())
            documents = np.concatenate([np.full(w.stop - w.start, w.document) for w in batch])
            positions = np.concatenate([np.arange(w.start, w.stop) for w in batch])
            measured = np.flatnonzero(np.concatenate([np.arange(w.start, w.stop) >= w.first for w in batch]))
            for start in range(0, len(measured), readout.step):
                some = measured[start : start + readout.step]
                texts, places = documents[some], starts[documents[some]] + positions[some]
                following = [(*ids[d][p + 1 : p + 2], -1)[0] for d, p in zip(texts, positions[some], strict=True)]
                block_store = ColumnStore(len(some)) if store is None else store
                at = torch.arange(len(some)) if store is None else torch.as_tensor(places)
                # Neighbors as a slice, which copies nothing.
                neighbors = slice(int(some[0]), int(some[-1]) + 1) if some[-1] - some[0] + 1 == len(some) else None
                part = activations.at_positions(neighbors or torch.as_tensor(some))
                column = partial(block_store.view, positions=at, device=part.final.device)
                target = None if dense is None else dense[places]
                components = _fill_terms(run, part, np.array(following), target, column)
                block_store.flush()
                if run.components and components != run.components:
                    raise InputError(f"{run.model.name} ran its layers differently often for different texts: {ALIKE}.")
                run.components = components
                yield texts, block_store
                advance(len(some))
            _check(run, ids[batch[0].document][batch[0].start : batch[0].stop])
            del activations, part  # or they would be held during the next pass


def _check(run: ProfileRun, ids: Sequence[int]) -> None:
    """Refuse a model whose components do not sum to its logits, or whose vocabulary's sums are of other weights."""
    error, tolerance = run.error, max(*run.error.tolerances, 2e-4)
    error.check(run.model.name, run.readout.unit, lambda: locate_mismatch(run.model.architecture, ids))
    if not error.moments <= tolerance:
        raise InputError(
            f"the moments of {run.model.name}'s unembedding are {error.moments:.1e} off its own logits, where rounding "
            f"explains {tolerance:.0e}: its weights were changed in a way that leaves no trace (load it again), or "
            "products run in TF32 (set torch.set_float32_matmul_precision('highest'))."
        )


def _fill_terms(
    run: ProfileRun,
    activations: Activations,
    next_ids: Int[np.ndarray, " position"],
    dense: Float[np.ndarray, "position vocabulary"] | None,
    column: Callable[[str, int | None], Tensor],
) -> tuple[Component, ...]:
    """Fill the columns of some positions; NaN where there is no next token (an id below 0). The components' names.

    `dense` logits are compared with instead of the next token. `column` gives the table `[position, width]`, or with
    None the column `[position]`, of a name.
    """
    readout, vocabulary = run.readout, run.readout.vocabulary
    multiplier, device = readout.architecture.logit_multiplier, activations.final.device
    unembedded, logits = model_logits(readout.architecture, activations.final)
    partition = log_sum_exp(logits)
    if not (activations.final.isfinite().all() and partition.isfinite().all()):
        check_finite(readout.walk.writes(activations), activations.final, logits)
    rows = readout.rows_of(activations)
    members = len(rows.components)
    last = torch.as_tensor(next_ids < 0, device=device)
    # At the end of a text the sum is checked at the model's own prediction.
    token = torch.as_tensor(next_ids, device=device)
    token[last] = logits[last].argmax(1)
    target = vocabulary.rows(token)
    ensemble = _ensemble(run, rows, unembedded * multiplier)

    # What all rows are read along, by the name of the table, and what is known of positions, by that of the column.
    along, known = {"centered_targets": target}, {"losses": partition - logits.gather(1, token[:, None])[:, 0].double()}
    known["losses"][last] = torch.nan
    if run.loss == "squared":
        along["crosses"] = ensemble.direction / members
        known |= {"powers": ensemble.power / members**2, "ensemble_means": ensemble.mean / members}
        if dense is not None:
            answer = torch.as_tensor(dense, device=device)
            centered = answer - answer.mean(1, keepdim=True)
            along["agreements"] = vocabulary.average(centered, readout.dtype)
            known |= {"target_powers": centered.square().sum(1), "target_means": answer.mean(1)}
        else:  # a one-hot target
            ones = torch.ones(len(token), dtype=torch.float64, device=device).masked_fill_(last, torch.nan)
            known |= {"target_powers": ones * (1 - 1 / vocabulary.size), "target_means": ones / vocabulary.size}
    else:
        # p = softmax(τū) of what the components sum to, not of what the model rounded, so that the identity is exact.
        tau, wide = run.tau_of(members), ensemble.streams.to(readout.dtype)
        chunks = [(wide @ directions.T).double() for _, directions in vocabulary.chunks(readout.dtype)]
        log_p = (torch.cat(chunks, 1) * (tau / members)).log_softmax(1)
        along["expectations"] = vocabulary.average(log_p.exp(), readout.dtype) - vocabulary.mean
        known["entropies"] = -(log_p.exp() * log_p).sum(1)
        readout.log_partitions(rows, tau, column("log_partitions", members))
    if run.readers is not None:
        p, known["entropies"] = probabilities(unembedded.double() * multiplier)
        known["statistics"] = rows.sigma
        along["expectations"] = vocabulary.average(p, readout.dtype) - vocabulary.mean
        along |= {f"reading {number}": reader.rows(token) for number, reader in enumerate(run.readers, 1)}
    tables = {name: column(name, members) for name in along}
    stacked = torch.stack([x.to(device) for x in along.values()], 1).to(readout.dtype)
    Directions(stacked, precision=readout.dtype).fill(rows, list(tables.values()))
    targets, means = tables["centered_targets"], column("means", members)
    readout.means(rows, means)
    if run.loss == "squared":
        readout.sizes(rows, column("sizes", members))
    for name, values in known.items():
        column(name, None).copy_(values)
    own_logit = unembedded.gather(1, token[:, None]).double() * multiplier
    of_token = Directions((target + vocabulary.mean)[:, None])
    reconstruct(run.error, rows, of_token, lambda some: (targets[:, some] + means[:, some])[:, :, None], own_logit)
    targets[last] = torch.nan
    return tuple(rows.components)


@dataclass(frozen=True, eq=False)
class _Ensemble:
    """The sum of all components over the vocabulary: `streams` and `direction` `[position, d+1]`, `mean`, `power`."""

    streams: Tensor
    direction: Tensor
    mean: Tensor
    power: Tensor


def _ensemble(run: ProfileRun, rows: Rows, logits: Float[Tensor, "position v"]) -> _Ensemble:
    """What the final stream gives the whole vocabulary, from the Gram matrix; the error of the model's own logits.

    ū·|L| = W · (final/σ, 1), so its size is that of the Gram matrix, and so are products of other rows with it.
    """
    vocabulary = run.readout.vocabulary
    streams = torch.cat([rows.final / rows.sigma[:, None], torch.ones_like(rows.final[:, :1])], 1)
    direction, mean = streams @ vocabulary.gram(run.readout.dtype), streams @ vocabulary.mean
    power = (streams * direction).sum(1)
    own_mean, own_power = mean_and_power(logits)
    # Where all logits are 0, as in planted models, only rounding is left, which is not to be compared with itself.
    least = 1e-20 * streams.square().sum(1) * vocabulary.gram(run.readout.dtype).trace() + 1e-300
    spread = (torch.maximum(power, least) / vocabulary.size).sqrt() + mean.abs()
    run.error.add("moments", (power - own_power).abs() / torch.maximum(power, least))
    run.error.add("moments", (mean - own_mean).abs() / spread)
    return _Ensemble(streams, direction, mean, power)
