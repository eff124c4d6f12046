"""The passes behind contributions: rows in batches, recorded once, attributed, checked and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.attribute import attribute, present
from ..model.batches import batches, pad
from ..model.frozen import TOLERANCE
from ..model.load import Model
from ..model.passes import Answers, Pass
from ..model.path import Path
from ..model.probe import check_finite, transformed
from ..model.prompts import Ids
from ..model.remote import RemotePath
from ..model.units import UnitLike, cut_of
from .vocabulary import Vocabulary, log_sum_exp

# Reads are attributed together until they make this many numbers (64 MiB in float64), which bounds memory.
NUMBERS = 8_000_000

# The advice for layers that run a varying number of times.
ALIKE = "give texts for which they run alike, or each alone"


@dataclass(frozen=True, eq=False)
class Reads:
    """What is read: tokens of some rows.

    Attributes:
        rows: The token ids of each row.
        row, position: Of each read.
        targets: `[read, K]`, the options' tokens there; indices of `directions` if these are given.
        directions: Vectors `[K, d]` in the unembedding's input, float64.
    """

    rows: Sequence[Ids]
    row: Int[np.ndarray, " read"]
    position: Int[np.ndarray, " read"]
    targets: Int[np.ndarray, "read K"]
    directions: Float[Tensor, "K d"] | None = None


@dataclass(eq=False)
class Gathered:
    """Numbers of all reads, in their order, and the largest errors.

    Attributes:
        components: The rows of `values` and of the means, in stream order; absent ones are left out at the end.
        arrays: By name: `values [read, component, K]`, `logits`, `log_likelihood` and `normalizer` `[read, K]`,
            `expectations` and `vocabulary_means` `[read, component]`.
        junctions, partial: The names of junctions, and which of these the stream never holds.
        vocabulary: That of the model, checked once.
        checks: `[4]`, the largest of all reads, in logits: |Σ u − logits|, Σ|u|, the rounding row, and the error of a
            mean over the vocabulary.
    """

    count: int
    components: tuple[Component, ...] = ()
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    junctions: tuple[Component, ...] = ()
    partial: tuple[bool, ...] = ()
    vocabulary: Vocabulary | None = None
    checks: Float[np.ndarray, "4"] = field(default_factory=lambda: np.zeros(4))

    @property
    def gap(self) -> float:
        """The largest |Σ u − logits|."""
        return float(self.checks[0])

    @property
    def size(self) -> float:
        """The largest Σ|u|."""
        return float(self.checks[1])

    def put(self, reads: Int[np.ndarray, " n"], found: dict[str, Tensor]) -> None:
        """Keep the numbers of some reads."""
        for name, x in found.items():
            if name not in self.arrays:
                self.arrays[name] = np.empty((self.count, *x.shape[1:]))
            self.arrays[name][reads] = x.cpu().numpy()

    def finish(self, path: Path) -> Gathered:
        """Leave out biases, constants and what hooks added where all are zero."""
        kept = present(path, self.components, self.arrays["values"])
        if len(kept) < len(self.components):
            for name in ("values", "expectations", "vocabulary_means"):
                if name in self.arrays:
                    self.arrays[name] = np.ascontiguousarray(self.arrays[name][:, kept])
            self.components = tuple(self.components[i] for i in kept)
        return self


def gather(model: Model, reads: Reads, unit: UnitLike, batch_tokens: int, known: Pass | None = None) -> Gathered:
    """Compute the contributions at all reads; `known` is their pass if it was run before.

    Raises InputError for a model whose components do not sum to its logits.
    """
    path, gathered = model.path, Gathered(len(reads.row))
    of_row: list[list[int]] = [[] for _ in reads.rows]
    for read, row in enumerate(reads.row):
        of_row[row].append(read)
    lengths = [len(row) for row in reads.rows]
    with path.session(), progress(model.name, len(lengths), "prompt") as advance:
        for rows in (
            batches(lengths, batch_tokens, path.length_switch) if known is None else [list(range(len(lengths)))]
        ):
            own = [read for row in rows for read in of_row[row]]
            number = {row: place for place, row in enumerate(rows)}
            seen = known
            if seen is None:
                at = torch.tensor([number[reads.row[read]] for read in own]), torch.as_tensor(reads.position[own])
                record = path.record
                if isinstance(path, RemotePath):
                    record = partial(path.record, targets=None if reads.directions is not None else reads.targets[own])
                seen = record(*pad([reads.rows[row] for row in rows]), *at, partial(cut_of, unit))
            _read_pass(model, reads, unit, seen, np.array(own), gathered)
            advance(len(rows))
    _check(model, gathered)
    return gathered.finish(path)


def _read_pass(
    model: Model, reads: Reads, unit: UnitLike, seen: Pass, own: Int[np.ndarray, " n"], gathered: Gathered
) -> None:
    """Read a pass out, some reads at a time."""
    path = model.path
    per_read = (reads.targets.shape[1] + 2) * max(len(path.writers), len(gathered.components)) + path.outputs
    per_read += 2 * len(seen.calls) * path.width  # writes in float64, and their sum
    step = max(1, NUMBERS // per_read) if unit != "expert" else len(own)
    for start in range(0, len(own), step):
        some = slice(start, start + step)
        part = seen if step >= len(own) else seen.take(some)
        found, checks = _contributions(model, reads, unit, part, reads.targets[own[some]], gathered)
        checked = checks.double().cpu().numpy()  # everything before ran without waiting for the device
        if not np.isfinite(checked).all():
            check_finite(path, part)  # of a cache
            raise path.not_finite("its logits")
        gathered.checks = np.maximum(gathered.checks, checked)
        gathered.put(own[some], found)


def _contributions(
    model: Model, reads: Reads, unit: UnitLike, seen: Pass, targets: Int[np.ndarray, "n K"], gathered: Gathered
) -> tuple[dict[str, Tensor], Float[Tensor, "4"]]:
    """Contributions to the targets and the means that log-likelihoods need, of some reads, and their checks."""
    path, count = model.path, targets.shape[1]
    if reads.directions is None:
        if seen.answers is None and gathered.vocabulary is None:
            gathered.vocabulary = Vocabulary.of(model)
        known = seen.answers or _answers(path, gathered.vocabulary, seen, targets)
        directions, offsets, answers = (x * path.factor for x in known[:3])
    else:
        directions = reads.directions[torch.as_tensor(targets)].to(path.device, path.wide)
        offsets = torch.zeros_like(directions[..., 0])
        answers = torch.einsum("nd,nkd->nk", path.replay(seen).normed.detach(), directions)
    found = attribute(path, seen, directions, unit)
    names = found.components
    values = found.values
    values[:, names.index(Component("constant"))] += offsets
    if gathered.components and gathered.components != names:
        raise InputError(f"{model.name} ran its layers a different number of times for different prompts: {ALIKE}.")
    gathered.components = names
    gathered.junctions = tuple(seen.components())
    gathered.partial = tuple(writer.is_partial for writer, _ in seen.calls)
    u = values[:, :, :count]
    gap, size = (u.sum(1) - answers).abs().max(), u.abs().sum(1).max()
    rounding, error = u[:, names.index(Component("rounding"))].abs().max(), torch.zeros_like(gap)
    result = {"values": u, "logits": answers}
    if reads.directions is None:
        error = (values[:, :, count + 1].sum(1) - known.mean_unembedded * path.factor).abs().max()
        result |= {"expectations": values[:, :, count], "vocabulary_means": values[:, :, count + 1]}
        # −H(p) and a soft-cap's effect are what no component holds.
        parts = u.sum(1) - values[:, :, count].sum(1, keepdim=True)
        log_likelihood = known.logits - known.log_partition[:, None]
        result |= {"logits": known.logits, "log_likelihood": log_likelihood, "normalizer": log_likelihood - parts}
        capped = transformed(answers, 1.0, path.soft_cap)
        # An infinite log-likelihood is a broken model's, too.
        gap = torch.maximum(gap, (capped - known.logits).abs().max()) + 0 * known.log_partition.sum()
    return result, torch.stack([gap, size, rounding, error])


def _answers(path: Path, vocabulary: Vocabulary | None, seen: Pass, targets: Int[np.ndarray, "n K"]) -> Answers:
    """The model's own numbers for the targets, and their directions in the unembedding's input."""
    assert vocabulary is not None
    assert seen.unembedded is not None
    assert seen.logits is not None
    ids = torch.as_tensor(targets, device=seen.unembedded.device)
    rows, bias = path.unembed_rows(ids)
    log_partition = log_sum_exp(seen.logits, path.wide)
    means, of_p = vocabulary.average(seen.logits, log_partition)
    of_all = vocabulary.mean_bias.to(of_p).expand_as(of_p)
    rows = torch.cat([rows.to(means), means[:, None], vocabulary.mean.to(means).expand_as(means)[:, None]], 1)
    own = torch.zeros_like(ids, dtype=means.dtype) if bias is None else bias.to(means)
    biases = torch.cat([own, of_p[:, None], of_all[:, None]], 1)
    unembedded, logits = (x.gather(1, ids).to(path.wide) for x in (seen.unembedded, seen.logits))
    mean = seen.unembedded.mean(1, dtype=torch.float32).to(path.wide)
    return Answers(rows, biases, unembedded, logits, log_partition, mean)


def _check(model: Model, gathered: Gathered) -> None:
    """Raise InputError unless components sum to the model's logits."""
    tolerance = TOLERANCE.get(model.path.dtype, 1e-4)
    gap, size, rounding, error = gathered.checks
    for miss, what in ((gap, "miss its logits by"), (rounding, "miss its residual stream by")):
        share = miss / max(size, 1e-300)
        if not share <= tolerance:
            raise InputError(
                f"{model.name} cannot be decomposed: its components {what} {share:.1e} of Σ|u|, where rounding "
                f"explains {tolerance:.0e}. Something on the way to its logits is not linear even with norms and gates "
                "held (a custom kernel, an error function), or a hook changes its final norm or unembedding."
            )
    if not error <= tolerance * max(size, 1e-300):
        raise InputError(
            f"the unembedding of {model.name} does not give the means of its logits: its weights were changed in a way "
            "that leaves no trace (load it again)."
        )
