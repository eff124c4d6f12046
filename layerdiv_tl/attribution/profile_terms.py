"""The terms of Theorem 1, or of the cross-entropy, of all components at some positions.

They are means, norms and inner products of logit vectors; `profile_results` makes bias and diversity of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..model.capture import Activations
from ..model.reconstruction import ReconstructionError
from .full_vocab import ComponentTable, VocabularyReadout, component_table, model_logits
from .stream_writes import check_finite
from .unembedding import NOTICED

if TYPE_CHECKING:
    from .profile_passes import ProfileRun


def fill_terms(
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
    readout, error = run.readout, run.error
    vocabulary, device = readout.vocabulary, activations.final.device
    multiplier = readout.architecture.logit_multiplier
    unembedded, logits = model_logits(readout.architecture, activations.final)
    partition = _log_sum_exp(logits)
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
    own_mean, own_power = _mean_and_power(unembedded)
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
            query("agreements", *_weighted_rows(readout, centered))
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
        query("expectations", *_weighted_rows(readout, log_p.exp()))
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
    put("losses", torch.where(last, torch.nan, partition - logits.gather(1, token[:, None])[:, 0].double()))
    return table.components


def _log_sum_exp(logits: Float[Tensor, "position v"]) -> Float[Tensor, " position"]:
    """In the precision of the logits; NaN or infinite where a logit is."""
    sums = []
    for rows in logits.split(16):  # which stay in the processor's cache
        largest = rows.amax(1, keepdim=True)
        sums.append((rows - largest).exp_().sum(1).double().log() + largest[:, 0].double())
    return torch.cat(sums)


def _mean_and_power(logits: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
    """The mean of every row and Σ_v of its squared distance from that, float64."""
    moments = []
    for rows in logits.split(16):
        mean = rows.mean(1)
        moments.append(torch.stack([mean, (rows - mean[:, None]).square_().sum(1)]).double())
    mean, power = torch.cat(moments, 1)
    return mean, power


def _weighted_rows(readout: VocabularyReadout, weights: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
    """(Σ_v weight · W_v `[position, d]`, Σ_v weight · constant `[position]`), rows and constants less their means."""
    directions = torch.zeros(len(weights), readout.vocabulary.mean.numel(), dtype=torch.float64, device=weights.device)
    constants = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for ids, rows, constant in readout.vocabulary.chunks(readout.dtype):
        chunk = weights[:, ids].to(readout.dtype)
        directions += chunk @ rows
        constants += chunk @ constant
    return directions, constants


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
