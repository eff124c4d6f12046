"""The passes of a whole-vocabulary profile: windows of texts in batches, their terms, and the checks of both.

The terms of all components at some positions are means, norms and inner products of logit vectors over the vocabulary,
computed here. `profile_results` makes bias and diversity of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, whole_number
from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model import forward_pass
from ..model.architecture import UnitLike
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.cuts import unit_name, unit_of
from ..model.forward_pass import locate_mismatch
from ..model.load import Model, as_model
from ..model.prompts import encode
from ..model.reconstruction import ReconstructionError
from .blocks import ALIKE, Rows, check_finite
from .directions import Directions, reconstruct
from .profile_results import Profile
from .vocabulary import (
    PRECISIONS,
    VocabularyReadout,
    log_sum_exp,
    mean_and_power,
    model_logits,
    vocabulary_readout,
)

Texts = Sequence[tuple[int, ...]]


class Window(NamedTuple):
    """Tokens start to stop of a text; those from `first` on are measured here."""

    document: int
    start: int
    stop: int
    first: int


@dataclass(eq=False)
class ProfileRun:
    """The checked arguments of a profile, and the components and errors of its passes so far."""

    model: Model
    window: int
    stride: int
    batch_tokens: int
    readout: VocabularyReadout
    components: tuple[Component, ...] = ()
    error: ReconstructionError = field(default_factory=ReconstructionError)

    def result(self, columns: dict[str, np.ndarray], **about: Any) -> Profile:
        """Make a profile of its columns."""
        about |= {"components": self.components, "window": self.window, "stride": self.stride}
        about |= {"identity_gap": self.error.identity_gap, "absolute_gap": self.error.absolute}
        about |= {"vocabulary": self.readout.vocabulary.size, "unit": unit_name(self.readout.unit)}
        about |= {"model": self.model.name, "soft_cap": self.model.architecture.soft_cap}
        return Profile(**columns, **about)

    def encode(self, texts: Any) -> list[tuple[int, ...]]:
        """Encode each text as token ids. Raises InputError for ids without a logit, as they are next tokens."""
        ids = encode(self.model, texts, any_length=True)
        outputs = self.readout.vocabulary.size
        if any(token >= outputs for row in ids for token in row[1:]):
            raise InputError(f"{self.model.name} takes ids beyond the {outputs} that it has logits of, as next tokens.")
        return ids

    def windows(self, ids: Texts) -> Iterator[Window]:
        """Cut texts into windows, each token measured in the first window that holds it."""
        for document, row in enumerate(ids):
            start, done = 0, 0
            while done < len(row):
                stop = min(start + self.window, len(row))
                yield Window(document, start, stop, done)
                start, done = start + self.stride, stop


def profile_run(model: Any, unit: UnitLike, window: Any, stride: Any, precision: Any, batch_tokens: Any) -> ProfileRun:
    """Check the arguments of `profile`. Raises InputError for unusable ones."""
    model = as_model(model)
    unit = unit_of(unit)
    choice("precision", precision, PRECISIONS)
    # No more than the model's context; and windows with gaps between them would skip tokens.
    window = (model.context or 2048) if window is None else whole_number("window", window, 1, model.context)
    stride = max(1, window // 2) if stride is None else whole_number("stride", stride, 1, window)
    readout = vocabulary_readout(model, unit, precision)
    return ProfileRun(model, window, stride, model.checked_batch_tokens(batch_tokens), readout)


def profile_blocks(
    run: ProfileRun,
    ids: Texts,
    known: Activations | None = None,
    dtype: torch.dtype = torch.float64,
    total: int | None = None,
) -> Iterator[tuple[Int[np.ndarray, " position"], dict[str, Tensor]]]:
    """Yield the terms of texts some positions at a time: their slice of all positions, and their columns.

    `known` is the pass of a single window if it was run before, `dtype` that of tables, `total` the number of
    positions, for the progress bar. Raises InputError where the components do not sum to the logits.
    """
    architecture, readout = run.model.architecture, run.readout
    windows, starts = list(run.windows(ids)), np.cumsum([0] + [len(row) for row in ids])
    next_ids = np.concatenate([[*row[1:], -1] for row in ids])
    with inference_mode_for(architecture), progress(run.model.name, total, "token") as advance:
        for rows in batches([w.stop - w.start for w in windows], run.batch_tokens, architecture.length_switch):
            batch = [windows[row] for row in rows]
            texts = [ids[w.document][w.start : w.stop] for w in batch]
            tokens, mask = pad(texts)
            activations = known or forward_pass.run(architecture, tokens, mask, readout.unit, interventions=True)
            run.error.dtypes = (activations.dtype, activations.answer_dtype)
            # Compares the model's own logits at the last tokens with those of its norm and unembedding.
            ends = (mask.sum(1).cumsum(0) - 1).to(activations.final.device)
            ours = model_logits(architecture, activations.final[ends])[1]
            run.error.add("unexplained", (ours - activations.logits).abs())
            places = np.concatenate([starts[w.document] + np.arange(w.start, w.stop) for w in batch])
            measured = np.flatnonzero(np.concatenate([np.arange(w.start, w.stop) >= w.first for w in batch]))
            for start in range(0, len(measured), readout.step):
                some = measured[start : start + readout.step]
                at = places[some]
                # Adjacent positions as a slice, which copies nothing.
                neighbors = slice(int(some[0]), int(some[-1]) + 1) if some[-1] - some[0] + 1 == len(some) else None
                part = activations.at_positions(neighbors or torch.as_tensor(some))
                components, columns = _terms(run, part, next_ids[at], dtype)
                if run.components and components != run.components:
                    raise InputError(
                        f"{run.model.name} runs its layers a varying number of times in these texts: {ALIKE}."
                    )
                run.components = components
                yield at, columns
                advance(len(some))
            _check(run, texts[0])
            del activations, part, columns  # or they would be held during the next pass


def _check(run: ProfileRun, ids: Sequence[int]) -> None:
    """Raise InputError unless components sum to the model's logits and the vocabulary's sums use the same weights."""
    error, tolerance = run.error, max(*run.error.tolerances, 2e-4)
    error.check(run.model.name, run.readout.unit, lambda: locate_mismatch(run.model.architecture, ids))
    if not error.moments <= tolerance:
        raise InputError(
            f"the moments of {run.model.name}'s unembedding are {error.moments:.1e} off its own logits, where rounding "
            f"explains {tolerance:.0e}: its weights were changed in a way that leaves no trace (load it again), or "
            "products run in TF32 (set torch.set_float32_matmul_precision('highest'))."
        )


def _terms(
    run: ProfileRun,
    activations: Activations,
    next_ids: Int[np.ndarray, " position"],
    dtype: torch.dtype,
) -> tuple[tuple[Component, ...], dict[str, Tensor]]:
    """Compute the components of some positions, their tables `[position, component]` and columns `[position]` by name.

    NaN where there is no next token (an id below 0).
    """
    readout, vocabulary, device = run.readout, run.readout.vocabulary, activations.final.device
    unembedded, logits = model_logits(readout.architecture, activations.final)
    partition = log_sum_exp(logits)
    if not (activations.final.isfinite().all() and partition.isfinite().all()):
        check_finite(readout.walk.writes(activations), activations.final, logits)
    unembedded = unembedded * readout.architecture.logit_multiplier
    rows = readout.rows_of(activations)
    last = torch.as_tensor(next_ids < 0, device=device)
    # At the end of a text the sum is checked at the model's own prediction.
    token = torch.as_tensor(next_ids, device=device)
    token[last] = logits[last].argmax(1)
    losses = partition - logits.gather(1, token[:, None])[:, 0].double()
    direction, mean, power = _whole_stream(run, rows, unembedded)

    # The directions of all rows, by the name of the table; and the columns of positions.
    target, members = vocabulary.rows(token), len(rows.components)
    along = {"centered_targets": target, "crosses": direction / members}
    columns = {"losses": losses.masked_fill(last, torch.nan)}
    columns |= {"powers": power / members**2, "ensemble_means": mean / members}
    ones = torch.ones(len(last), dtype=torch.float64, device=device).masked_fill_(last, torch.nan)
    columns |= {"target_powers": ones * (1 - 1 / vocabulary.size), "target_means": ones / vocabulary.size}

    def table() -> Tensor:
        return torch.empty(len(token), len(rows.components), dtype=dtype, device=device)

    tables = {name: table() for name in along}
    stacked = torch.stack([x.to(device) for x in along.values()], 1).to(readout.dtype)
    Directions(stacked, precision=readout.dtype).fill(rows, list(tables.values()))
    targets, means = tables["centered_targets"], tables.setdefault("means", table())
    readout.means(rows, means)
    readout.sizes(rows, tables.setdefault("sizes", table()))
    own_logit = unembedded.gather(1, token[:, None]).double()
    of_token = Directions((target + vocabulary.mean)[:, None])
    reconstruct(run.error, rows, of_token, lambda some: (targets[:, some] + means[:, some])[:, :, None], own_logit)
    targets[last] = torch.nan
    return tuple(rows.components), tables | columns


def _whole_stream(run: ProfileRun, rows: Rows, logits: Float[Tensor, "position v"]) -> tuple[Tensor, ...]:
    """Compute the sum of all components over the vocabulary, and the error of the model's own logits.

    Returns the direction of the final stream, `[position, d+1]`, and mean and power of its logits, `[position]`.
    As ū·|L| = W · (final/σ, 1), its size and its products with other rows follow from the Gram matrix.
    """
    vocabulary = run.readout.vocabulary
    streams = torch.cat([rows.final / rows.sigma[:, None], torch.ones_like(rows.final[:, :1])], 1)
    direction, mean = streams @ vocabulary.gram(run.readout.dtype), streams @ vocabulary.mean
    power = (streams * direction).sum(1)
    own_mean, own_power = mean_and_power(logits)
    # Where all logits are 0, as in planted models, only rounding is left, which must not be compared with itself.
    least = 1e-20 * streams.square().sum(1) * vocabulary.gram(run.readout.dtype).trace() + 1e-300
    spread = (torch.maximum(power, least) / vocabulary.size).sqrt() + mean.abs()
    run.error.add("moments", (power - own_power).abs() / torch.maximum(power, least))
    run.error.add("moments", (mean - own_mean).abs() / spread)
    return direction, mean, power
