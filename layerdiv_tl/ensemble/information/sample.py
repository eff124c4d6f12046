"""An ensemble's rows as input to the estimate: read, turned into features, subsampled and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from ..._checks import whole_number
from ...components import Component, members
from ...errors import InputError
from ..validation import Ensemble, as_ensemble, gold_options, numbers
from .gaussian import SINGULAR, SMALLEST_DEVIATION, Columns, Gaussian, Labels, Owner, normal_scores

# Share of the rows in a subsample: subsample deviations then have half the full sample's standard error.
KEPT = 0.8
# With fewer rows of a class its spread cannot be measured.
LEAST_ROWS = 8
# Contributions are captured in float32: values below this share of a member are rounding.
ROUNDING = 1e-6

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Sample:
    """The rows of an ensemble with their labels.

    Attributes:
        features, owner: `[example, column]`, normal scores of contrasts; `[column]`, each column's member, in
            ascending order.
        labels, classes: `[example]`, classes from 0, and their names.
        options: The number of answers: K, or the classes where no options are known.
        components, spans: The members' names, and what each contains: a component's label, or the first and last of a
            group.
        warnings: Sentences on what was left out.
    """

    features: Columns
    owner: Owner
    labels: Labels
    classes: tuple[str, ...]
    seed: int
    options: int = 0
    components: tuple[Component, ...] = ()
    spans: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def members(self) -> int:
        """The number of members."""
        return int(self.owner[-1]) + 1

    def estimate(self, rows: Any = None, labels: Any = None, features: Any = None) -> Gaussian:
        """Return the estimate on all rows or some, with other labels, or with other features."""
        y = self.labels if labels is None else labels
        x = self.features if features is None else features
        if rows is not None:
            x, y = normal_scores(x[rows]), y[rows]
        return Gaussian(x, self.owner, y, len(self.classes))

    def standard_errors(
        self, statistic: Callable[[Gaussian], np.ndarray], value: np.ndarray, n_resamples: int
    ) -> np.ndarray:
        """Derive the standard errors of a statistic's value from its spread over subsamples of the rows.

        For b of n rows by √(b/(n − b)) (Politis et al. 1999); NaN for fewer than two subsamples.
        """
        drawn = subsamples(self.labels, len(self.owner) + 2, n_resamples, self.seed)
        values = self._collect(statistic, "rows", drawn)
        if len(values) < 2:
            return np.full_like(value, np.nan)
        kept = round(KEPT * len(self.labels))
        return float(np.sqrt(kept / (len(self.labels) - kept))) * np.stack(values).std(0, ddof=1)

    def with_shuffled_labels(self, statistic: Callable[[Gaussian], T], n_permutations: int) -> list[T]:
        """Compute a statistic of the estimates with labels shuffled, so that they are independent of the members."""
        rng = np.random.default_rng([self.seed, 3])
        return self._collect(statistic, "labels", (rng.permutation(self.labels) for _ in range(n_permutations)))

    def with_shuffled_members(self, statistic: Callable[[Gaussian], T], n_permutations: int) -> list[T]:
        """Compute a statistic of the estimates with each member's rows shuffled separately within every class.

        Members are then independent given the label, and otherwise unchanged.
        """
        rng = np.random.default_rng([self.seed, 4])

        def shuffled() -> np.ndarray:
            features = np.empty_like(self.features)
            for c in range(len(self.classes)):
                rows = np.flatnonzero(self.labels == c)
                order = rng.permuted(np.repeat(rows[:, None], self.members, 1), axis=0)
                features[rows] = np.take_along_axis(self.features, order[:, self.owner], 0)
            return features

        return self._collect(statistic, "features", (shuffled() for _ in range(n_permutations)))

    def _collect(self, statistic: Callable[[Gaussian], T], changed: str, draws: Iterable[np.ndarray]) -> list[T]:
        values = []
        for drawn in draws:
            # A draw may leave a member constant in a class: it has no Gaussian estimate, and is skipped.
            with suppress(np.linalg.LinAlgError):
                values.append(statistic(self.estimate(**{changed: drawn})))
        return values


def subsamples(y: Labels, least: int, n_resamples: int, seed: int) -> Iterator[Int[np.ndarray, " kept"]]:
    """Draw four fifths of the rows without replacement (rows drawn twice would break every bias correction).

    A draw with fewer than `least` rows of a class is repeated.
    """
    rng, count = np.random.default_rng([seed, 2]), round(KEPT * len(y))
    for _ in range(n_resamples):
        for _ in range(100):
            rows = np.sort(rng.permutation(len(y))[:count])
            if np.bincount(y[rows], minlength=y.max() + 1).min() >= least:
                break
        yield rows


def prepare(
    ensemble: Any,
    labels: Any,
    seed: int = 0,
    n_groups: int | None = None,
    components: Sequence[str | Component] | None = None,
) -> Sample:
    """Turn an ensemble and labels into a sample. Raises InputError as `information` documents."""
    is_array = not isinstance(ensemble, Ensemble)
    u = numbers(ensemble, "the ensemble") if is_array else ensemble
    if is_array and u.ndim == 2:  # numbers without options
        if (u == np.round(u)).all():
            raise InputError("whole numbers are votes, which have no density: give logits.")
        given = as_ensemble(np.stack([u, -u], 2) / np.sqrt(2), components)
        y, classes = _classes(labels, len(u))
        options = len(classes)
    else:
        given = as_ensemble(u, components)
        labels = getattr(given, "labels", None) if labels is None else labels
        y, classes = _classes_of_options(labels, given)
        options = given.values.shape[2]
    _check_classes(y, classes)
    u, names, notes = given.values, given.components, []
    # The constant is the same for every example by definition.
    kept = [i for i, c in enumerate(names) if c.kind != "constant" or np.ptp(u[:, i], axis=0).any()]
    if not is_array and len(kept) < len(names):
        if not kept:
            raise InputError("the constant alone is the same for every example: give other components too.")
        notes.append("The constant is the same for every example, so it carries no information: it is left out.")
        u, names = u[:, kept], tuple(names[i] for i in kept)
    spans = tuple(c.label for c in names)
    if n_groups is not None:  # neighbors along the stream are summed
        groups = np.array_split(np.arange(len(names)), min(whole_number("n_groups", n_groups, 1), len(names)))
        spans = tuple(spans[g[0]] if len(g) == 1 else f"{spans[g[0]]} … {spans[g[-1]]}" for g in groups)
        u, names = np.add.reduceat(u, [g[0] for g in groups], axis=1), members(len(groups))
    columns, owner = _leading(_contrasts(u, spans), int(np.bincount(y).min()), notes)
    sample = Sample(normal_scores(columns), owner, y, classes, seed, options, names, spans, tuple(notes))
    _refuse_singular(sample)
    return sample


def _classes_of_options(labels: Any, ensemble: Ensemble) -> tuple[Labels, tuple[str, ...]]:
    """Return (classes from 0, their names) of labels that are options."""
    if labels is None:
        raise InputError("information is about a label: give one for each example.")
    options = ensemble.options
    gold = gold_options(labels, ensemble.values.shape, options)
    texts = options if options and isinstance(options[0], str) else range(ensemble.values.shape[2])
    different, y = np.unique(gold, return_inverse=True)
    return y, tuple(str(texts[k]) for k in different)


def _classes(labels: Any, rows: int) -> tuple[Labels, tuple[str, ...]]:
    """Return (classes from 0, their names) of any labels, whole numbers or texts."""
    different, y = np.unique(np.asarray(labels), return_inverse=True)
    if different.dtype.kind not in "iubU":
        raise InputError("labels must be whole numbers or texts, one class for each example.")
    if len(y) != rows:
        raise InputError(f"there are {len(y)} labels for {rows} examples: give one for each.")
    return y, tuple(map(str, different))


def _check_classes(y: Labels, names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise InputError(f"all examples have the label {names[0]!r}, so there is nothing to know: give two classes.")
    counts = np.bincount(y)
    if counts.min() < LEAST_ROWS:
        small = names[int(counts.argmin())]
        raise InputError(
            f"class {small!r} has {counts.min()} of {len(y)} rows: each class needs at least {LEAST_ROWS}. Give more "
            "rows, or leave the class out."
        )


def _contrasts(u: np.ndarray, spans: Sequence[str]) -> list[Float[np.ndarray, "contrast example"]]:
    """Return each member's principal contrasts over options, the widest first; labels are not used.

    The part common to all options, which a softmax cannot see, is removed: at most K − 1 contrasts remain, fewer where
    a member's logits vary along fewer directions.
    """
    size = np.sqrt((u**2).mean((0, 2)))
    centered = u - u.mean(2, keepdims=True)
    centered = centered - centered.mean(0)
    # Principal components of each member's options.
    power, axes = np.linalg.eigh(np.einsum("nmk,nmj->mkj", centered, centered, optimize=True) / len(u))
    wide = [np.flatnonzero(np.sqrt(power[m].clip(0)) > ROUNDING * size[m])[::-1] for m in range(len(spans))]
    if constant := [span for span, columns in zip(spans, wide, strict=True) if not len(columns)]:
        names = ", ".join(constant[:5]) + (f" and {len(constant) - 5} more" if len(constant) > 5 else "")
        raise InputError(
            f"{names}: the same prediction for every example, so there is no density: leave out what never varies "
            "(select)."
        )
    return [(centered[:, m] @ axes[m][:, columns]).T for m, columns in enumerate(wide)]


def _leading(contrasts: list[np.ndarray], smallest: int, notes: list[str]) -> tuple[Columns, Owner]:
    """Return members' leading contrasts as columns, and their members; the smallest class limits how many."""
    sizes = np.array([len(c) for c in contrasts])
    most = int(sizes.max())
    count = most
    while count > 1 and 2 * sizes.clip(max=count).sum() > smallest:
        count -= 1
    if count < most:
        notes.append(
            f"Each member is read by its {count} leading contrast{'s' if count > 1 else ''} of {most}: the "
            f"smallest class has {smallest} rows, too few for all."
        )
    columns = np.ascontiguousarray(np.concatenate([c[:count] for c in contrasts]).T)
    return columns, np.repeat(np.arange(len(contrasts)), sizes.clip(max=count))


def _refuse_singular(sample: Sample) -> None:
    """Raise InputError for too few rows, and, naming members, for copies or a member determined by others."""
    counts, dims = np.bincount(sample.labels), len(sample.owner)
    if counts.min() < 2 * dims:
        groups = max(1, int(counts.min()) // 2 * len(sample.components) // dims)
        raise InputError(
            f"class {sample.classes[int(counts.argmin())]!r} has {counts.min()} rows for {dims} dimensions: a Gaussian "
            f"estimate needs twice as many rows as dimensions. Give more rows, or n_groups={min(groups, 12)}."
        )
    names = [sample.spans[member] for member in sample.owner]
    classes = [(f"within class {name!r}", sample.labels == c) for c, name in enumerate(sample.classes)]
    for where, rows in [("over all rows", slice(None)), *classes]:
        covariance = np.atleast_2d(np.cov(sample.features[rows].T))
        spread = np.sqrt(np.diagonal(covariance))
        if (constant := spread < SMALLEST_DEVIATION).any():
            name = names[int(constant.argmax())]
            raise InputError(f"{name} never varies {where}, so it has no density there: leave it out.")
        correlation = covariance / np.outer(spread, spread)
        if np.linalg.eigvalsh(correlation)[0] > SINGULAR:
            continue
        size = np.abs(correlation) - np.eye(len(correlation))
        one, other = (names[i] for i in np.unravel_index(int(size.argmax()), size.shape))
        what = f"{one} and {other} are copies" if size.max() > 1 - 1e-6 else "some members are fixed by the others"
        raise InputError(
            f"{what} {where}, so the covariance is singular and the redundancy infinite: leave one of them out."
        )
