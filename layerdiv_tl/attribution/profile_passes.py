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
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.cuts import UnitLike, has_many, unit_name, unit_of
from ..model.forward_pass import ReconstructionError, locate_mismatch
from ..model.load import Model, as_model
from ..model.prompts import encode
from .full_vocab import PRECISIONS, ComponentTable, VocabularyReadout, component_table, model_logits, vocabulary_readout
from .profile_base import Profile
from .profile_results import CrossEntropyProfile, SquaredProfile
from .stream_writes import ALIKE, check_finite
from .unembedding import NOTICED
from .vocab_gram import log_sum_exp, mean_and_power

Loss = Literal["squared", "cross_entropy"]
Rows = Sequence[tuple[int, ...]]


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

    def windows(self, ids: Rows) -> Iterator[Window]:
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
    if loss == "cross_entropy" and has_many(unit):
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

    def settle(self) -> None:
        """Copy what was written apart to its positions."""
        for name, positions, apart in self._waiting:
            self._tables[name][positions] = apart.cpu()
        self._waiting.clear()

    def arrays(self) -> dict[str, np.ndarray]:
        """All tables and columns by name."""
        return {name: table.numpy() for name, table in self._tables.items()}


def profile_blocks(
    run: ProfileRun,
    ids: Rows,
    store: ColumnStore | None = None,
    dense: Float[np.ndarray, "position vocabulary"] | None = None,
    known: Activations | None = None,
    more: Callable[..., None] | None = None,
) -> Iterator[tuple[Int[np.ndarray, " position"], ColumnStore]]:
    """The terms of all positions of some texts, some at a time: the texts they are of, and their columns.

    Without a store every block has its own; `known` is the pass of a single window, where it was run before; `more` is
    called with each block's components, logits before a soft-cap, next tokens and `positions`. Raises InputError where
    the components do not sum to the logits.
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
                further = None if more is None else partial(more, positions=at)
                components = _fill_terms(run, part, np.array(following), target, column, further)
                block_store.settle()
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
    more: Callable[..., None] | None,
) -> tuple[Component, ...]:
    """Fill the columns of some positions; NaN where there is no next token (an id below 0). The components' names.

    `dense` logits are compared with instead of the next token. `column` gives the table `[position, width]`, or with
    None the column `[position]`, of a name.
    """
    readout, error = run.readout, run.error
    vocabulary, device = readout.vocabulary, activations.final.device
    multiplier = readout.architecture.logit_multiplier
    unembedded, logits = model_logits(readout.architecture, activations.final)
    partition = log_sum_exp(logits)
    if not (activations.final.isfinite().all() and partition.isfinite().all()):
        check_finite(readout.walk.writes(activations), activations.final, logits)
    table = component_table(readout, activations)
    members = len(table.components)

    last = torch.as_tensor(next_ids < 0, device=device)
    # At the end of a text the sum is checked at the model's own prediction.
    token = torch.as_tensor(next_ids, device=device)
    token[last] = logits[last].argmax(1)
    queries: list[tuple[Tensor, Tensor, Tensor]] = []

    def query(name: str, direction: Tensor, constant: Tensor) -> None:
        """Fill a table with inner products: of stream vectors with a direction, of the constant as given."""
        queries.append((direction, constant, column(name, members)))

    def put(name: str, values: Tensor) -> None:
        column(name, None).copy_(values)

    direction, constant = vocabulary.rows(token)
    query("centered_targets", direction, constant)
    means = column("means", members)

    # The mean of all components is ū = (W · final/σ + constant) / |L|. Its size and mean, from the Gram matrix, must be
    # those of the model's own logits.
    streams = table.final / table.sigma[:, None]
    cross, product = streams @ vocabulary.constant_product, streams @ vocabulary.gram
    power = (streams * product).sum(1) + 2 * cross + vocabulary.constant_power
    mean = streams @ vocabulary.mean + vocabulary.constant_mean
    own_mean, own_power = mean_and_power(unembedded)
    spread = (power / vocabulary.size).sqrt() + mean.abs()
    error.add("moments", (power - own_power * multiplier**2).abs() / power.clamp_min(1e-300))
    error.add("moments", (mean - own_mean * multiplier).abs() / spread.clamp_min(1e-300))
    if run.loss == "squared":
        put("powers", power / members**2)
        put("ensemble_means", mean / members)
        ensemble = (product + vocabulary.constant_product) / members
        query("crosses", ensemble, (cross + vocabulary.constant_power) / members)
        if dense is not None:
            target = torch.as_tensor(dense, device=device)
            centered = target - target.mean(1, keepdim=True)
            query("agreements", *vocabulary.weighted_rows(readout.dtype, centered))
            put("target_powers", centered.square().sum(1))
            put("target_means", target.mean(1))
        else:  # a one-hot target
            nan_at_ends = torch.zeros(len(token), dtype=torch.float64, device=device).masked_fill_(last, torch.nan)
            put("target_powers", nan_at_ends + (1 - 1 / vocabulary.size))
            put("target_means", nan_at_ends + 1 / vocabulary.size)
        sizes = column("sizes", members)
        table.moments(means, sizes)
        if table.constant is not None:
            sizes[:, table.constant] = vocabulary.constant_power
    else:
        table.moments(means)
        # p = softmax(τū) of what the components sum to, not of what the model rounded, so that the identity is exact.
        wide = streams.to(readout.dtype)
        chunks = [(wide @ rows.T + shift).double() for _, rows, shift in vocabulary.chunks(readout.dtype)]
        log_p = (torch.cat(chunks, 1) * (run.tau_of(members) / members)).log_softmax(1)
        query("expectations", *vocabulary.weighted_rows(readout.dtype, log_p.exp()))
        put("entropies", -(log_p.exp() * log_p).sum(1))
        table.log_partitions(run.tau_of(members), column("log_partitions", members))
    table.inner([direction for direction, _, _ in queries], [out for _, _, out in queries])
    if table.constant is not None:
        means[:, table.constant] = vocabulary.constant_mean
        for _, constant, out in queries:
            out[:, table.constant] = constant.to(out.dtype)
    targets = queries[0][2]
    own_logit = unembedded.gather(1, token[:, None])[:, 0].double() * multiplier

    def target_logits(columns: Any) -> Tensor:
        return targets[:, columns] + means[:, columns]

    _add_errors(error, table, target_logits, direction + vocabulary.mean, own_logit)
    targets[last] = torch.nan
    if more is not None:
        more(table, unembedded.double() * multiplier, token)
    put("losses", torch.where(last, torch.nan, partition - logits.gather(1, token[:, None])[:, 0].double()))
    return table.components


def _add_errors(
    error: ReconstructionError, table: ComponentTable, u: Callable[..., Tensor], direction: Tensor, own_logit: Tensor
) -> None:
    """How far the sum of components is from the model's own logit of one id, and parts from their sublayer."""
    total, size = torch.zeros_like(own_logit), torch.zeros_like(own_logit)

    def add(columns: slice | list[int]) -> tuple[Tensor, Tensor]:
        # Sublayer by sublayer: thousands of neurons lose digits in one sum of float32.
        some = u(columns)
        added, norm = some.sum(1).double(), torch.linalg.vector_norm(some, 1, dim=1).double()
        total.add_(added)
        size.add_(norm)
        return added, norm

    splits: list[tuple[Tensor, Tensor]] = []
    for block in table.cut:
        added, norm = add(block.columns)
        bias = 0.0 if block.bias is None else u(block.bias).double()
        whole = (direction * block.vector).sum(1) / table.sigma
        splits.append(((added + bias - whole).abs(), norm))
    add(list(table.columns))
    if table.constant is not None:
        add([table.constant])
    for off, norm in splits:
        error.add("split", off / norm.clamp_min(max(NOTICED * float(size.max()), 1e-30)))
    error.add("size", size)
    error.add("absolute", (total - own_logit).abs())
    error.add("stream", table.missing)
