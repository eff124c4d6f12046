"""An ensemble's rows as input to the estimators: read, turned into features, subsampled and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from ..._checks import listed, whole_number
from ...components import Component, members
from ...errors import InputError
from ..losses import hits
from ..validation import Ensemble, as_ensemble, gold_options, numbers
from .estimator import Columns, Estimator, Labels, Owner
from .gaussian import SINGULAR, SMALLEST_DEVIATION, Gaussian, normal_scores
from .variational import Variational
from .votes import TableVotes, TreeVotes, Votes, table_fits

# Share of the rows in a subsample: subsample deviations then have half the full sample's standard error.
KEPT = 0.8
# With fewer rows of a class its spread cannot be measured.
LEAST_ROWS = 8
# More draws add nothing and would take days. Seeds are written to files as 64 bits.
MAX_DRAWS, MAX_SEED = 10_000, 2**63 - 1
# Contributions are captured in float32: values below this share of a member are rounding.
ROUNDING = 1e-6

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Sample:
    """The rows of an ensemble with their labels, and the method that estimates their information.

    Attributes:
        method: "gaussian"; "table" or "tree" (votes); "variational".
        features, owner: `[example, column]`, normal scores of contrasts, or votes as whole numbers from 0, one column
            for each member; `[column]`, each column's member, in ascending order.
        labels, classes: `[example]`, classes from 0, and their names.
        options, correct: The number of answers: K, or the classes where no options are known; `[example]`, whether the
            ensemble answers correctly (1/n for ties), None where it gives no answer.
        components, spans: The members' names, and what each contains: a component's label, or the first and last of a
            group.
        warnings, all_contrasts: Sentences on what was left out; `[example, column]`, every contrast of every member
            where `features` has fewer, else None.
    """

    method: str
    features: np.ndarray
    owner: Owner
    labels: Labels
    classes: tuple[str, ...]
    seed: int
    options: int = 0
    correct: Float[np.ndarray, " example"] | None = None
    components: tuple[Component, ...] = ()
    spans: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    all_contrasts: np.ndarray | None = field(default=None, metadata={"saved": False})

    @property
    def members(self) -> int:
        """The number of members."""
        return int(self.owner[-1]) + 1

    @property
    def votes(self) -> bool:
        """Whether the features are votes."""
        return not np.issubdtype(self.features.dtype, np.floating)

    @cached_property
    def classifier(self) -> Variational:
        """The variational estimator on all rows, whatever the method."""
        return self._classifier(self.features, self.labels)

    def estimate(self, rows: Any = None, labels: Any = None, features: Any = None) -> Estimator:
        """Return the estimator on all rows or some, with other labels, or with other features."""
        y = self.labels if labels is None else labels
        x = self.features if features is None else features
        # Half of the rows that each tree is chosen on.
        half = np.random.default_rng([self.seed, 5]).permutation(len(y)) % 2
        if rows is not None:
            y, x, half = y[rows], x[rows], half[rows]
        if self.method == "gaussian":
            return Gaussian(x if rows is None else normal_scores(x), self.owner, y, len(self.classes))
        if self.method == "variational":
            return self._classifier(x, y)
        options = int(self.features.max()) + 1
        if self.method == "table":
            return TableVotes(x, y, options, len(self.classes))
        return TreeVotes(x, y, options, len(self.classes), half)

    def standard_errors(
        self, statistic: Callable[[Estimator], np.ndarray], value: np.ndarray, n_resamples: int
    ) -> np.ndarray:
        """Derive the standard errors of a statistic's value from its spread over subsamples of the rows.

        For b of n rows by √(b/(n − b)) (Politis et al. 1999); NaN for fewer than two subsamples.
        """
        least = len(self.owner) + 2 if self.method == "gaussian" else 5
        values = self._collect(statistic, "rows", subsamples(self.labels, least, n_resamples, self.seed))
        if len(values) < 2:
            return np.full_like(value, np.nan)
        kept = round(KEPT * len(self.labels))
        return float(np.sqrt(kept / (len(self.labels) - kept))) * np.stack(values).std(0, ddof=1)

    def with_shuffled_labels(self, statistic: Callable[[Estimator], T], n_permutations: int) -> list[T]:
        """Compute a statistic of the estimates with labels shuffled, so that they are independent of the members."""
        rng = np.random.default_rng([self.seed, 3])
        return self._collect(statistic, "labels", (rng.permutation(self.labels) for _ in range(n_permutations)))

    def with_shuffled_members(self, statistic: Callable[[Estimator], T], n_permutations: int) -> list[T]:
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

    def _classifier(self, x: np.ndarray, y: Labels) -> Variational:
        x, owner = one_hot(x) if self.votes else (x, self.owner)
        return Variational(x, owner, y, len(self.classes), self.members, self.seed)

    def _collect(self, statistic: Callable[[Estimator], T], changed: str, draws: Iterable[np.ndarray]) -> list[T]:
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


def one_hot(votes: Int[np.ndarray, "example member"]) -> tuple[Columns, Owner]:
    """Return a column for each option that a member votes for, except its last; and the columns' members."""
    hot = [(column == option, member) for member, column in enumerate(votes.T) for option in np.unique(column)[:-1]]
    columns = np.array([column for column, _ in hot], dtype=np.float64).reshape(len(hot), len(votes))
    return columns.T, np.array([member for _, member in hot], dtype=np.int64)


def are_votes(ensemble: Any) -> bool:
    """Whether an array holds one whole number per example and member."""
    if isinstance(ensemble, Ensemble):
        return False
    with suppress(ValueError):  # ragged lists
        array = ensemble if hasattr(ensemble, "shape") and hasattr(ensemble, "dtype") else np.asarray(ensemble)
        return len(array.shape) == 2 and any(kind in str(array.dtype) for kind in ("int", "bool"))
    return False


def prepare(
    ensemble: Any,
    labels: Any,
    estimator: str,
    seed: int = 0,
    n_groups: int | None = None,
    n_contrasts: int | None = None,
    components: Sequence[str | Component] | None = None,
) -> Sample:
    """Check an ensemble's rows and choose their method. Raises InputError as `information` documents."""
    is_vote_array, is_array = are_votes(ensemble), not isinstance(ensemble, Ensemble)
    if is_array:
        ensemble = numbers(ensemble, "the ensemble", "[example, member(, option)]")
        if ensemble.ndim not in (2, 3):
            shape = ensemble.shape
            raise InputError(f"an array must be [example, member] or [example, member, option], but has shape {shape}.")
    has_options = not is_array or ensemble.ndim == 3
    given = as_ensemble(ensemble if has_options else np.repeat(ensemble[:, :, None], 2, 2), components)
    u, names = given.values if has_options else ensemble, given.components
    y, classes, gold = _classes(labels, u, given.options)
    notes: list[str] = []
    # The constant is the same for every example by definition.
    kept = [i for i, c in enumerate(names) if c.kind != "constant" or np.ptp(u[:, i], axis=0).any()]
    if not is_array and estimator != "vote" and len(kept) < len(names):
        if not kept:
            raise InputError("the constant alone is the same for every example: give other components too.")
        notes.append("The constant is the same for every example, so it carries no information: it is left out.")
        u, names = u[:, kept], tuple(names[i] for i in kept)
    correct = _correct(u, gold, is_vote_array)
    spans = tuple(c.label for c in names)
    if n_groups is not None:
        if is_vote_array:
            raise InputError("votes cannot be summed up to groups: give the logits, or fewer members.")
        # Neighbors along the stream are summed.
        groups = np.array_split(np.arange(len(names)), min(whole_number("n_groups", n_groups, 1), len(names)))
        spans = tuple(spans[g[0]] if len(g) == 1 else f"{spans[g[0]]} … {spans[g[-1]]}" for g in groups)
        u, names = np.add.reduceat(u, [g[0] for g in groups], axis=1), members(len(groups))
    everything, method = None, estimator
    if is_vote_array or estimator == "vote":
        features, owner = _votes(u, is_vote_array, estimator, spans, notes), np.arange(len(names))
        if estimator == "vote":
            fits = table_fits(len(y), int(features.max()) + 1, len(names), len(classes))
            method = "table" if fits else "tree"
    else:
        contrasts = _contrasts(u, spans)
        smallest = int(np.bincount(y).min()) if estimator == "gaussian" else None
        columns, owner = _leading(contrasts, n_contrasts, smallest, notes)
        everything = np.concatenate(contrasts).T if sum(map(len, contrasts)) > len(owner) else None
        features = normal_scores(columns)
    options = max(u.shape[2], len(classes)) if has_options else len(classes)
    about = (correct, names, spans, tuple(notes), everything)
    sample = Sample(method, features, owner, y, classes, seed, options, *about)
    if method == "gaussian":
        _refuse_singular(sample)
    return sample


def _classes(
    labels: Any, u: np.ndarray, options: tuple[Any, ...]
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None]:
    """Return (classes from 0, their names, labels that can be compared with options or votes)."""
    if labels is None:
        raise InputError("information is about a label: give one for each example.")
    gold: np.ndarray | None
    if u.ndim == 3:
        gold = gold_options(labels, u.shape, options)
        texts = options if options and isinstance(options[0], str) else range(u.shape[2])
        different, y = np.unique(gold, return_inverse=True)
        names = tuple(str(texts[k]) for k in different)
    else:
        given = listed("labels", labels, "a list with one label for each example")
        are_whole = all(isinstance(x, int | np.integer) for x in given)
        if not are_whole and not all(isinstance(x, str) for x in given):
            raise InputError("labels must be whole numbers or texts, one class for each example.")
        if len(given) != len(u):
            raise InputError(f"there are {len(given)} labels for {len(u)} examples: give one for each.")
        different, y = np.unique(np.array(given), return_inverse=True)
        names, gold = tuple(map(str, different)), np.array(given, dtype=np.float64) if are_whole else None
    if len(names) < 2:
        raise InputError(f"all examples have the label {names[0]!r}, so there is nothing to know: give two classes.")
    counts = np.bincount(y)
    if counts.min() < LEAST_ROWS:
        small = names[int(counts.argmin())]
        raise InputError(
            f"class {small!r} has {counts.min()} of {len(y)} rows: each class needs at least {LEAST_ROWS}. Give more "
            "rows, or leave the class out."
        )
    return y, names, gold


def _votes(u: np.ndarray, is_array: bool, estimator: str, spans: Sequence[str], notes: list[str]) -> Votes:
    """Return each member's vote, numbered from 0; ties go to the first option."""
    if is_array and estimator == "gaussian":
        raise InputError("whole numbers are votes, which have no density: use estimator='vote', or give floats.")
    if not is_array and u.ndim == 2:
        raise InputError("these members give one number each, and no votes: give options too, or whole numbers.")
    votes = np.unique(u, return_inverse=True)[1].reshape(u.shape) if is_array else u.argmax(2)
    if constant := [span for span, column in zip(spans, votes.T, strict=True) if (column == column[0]).all()]:
        notes.append(f"{_enumerated(constant)} always cast the same vote, which carries no information.")
    return votes


def _contrasts(u: np.ndarray, spans: Sequence[str]) -> list[Float[np.ndarray, "contrast example"]]:
    """Return each member's principal contrasts over options, the widest first; labels are not used.

    The part common to all options, which a softmax cannot see, is removed: at most K − 1 contrasts remain, fewer where
    a member's logits vary along fewer directions.
    """
    if u.ndim == 2:
        u = np.stack([u, -u], 2) / np.sqrt(2)
    size = np.sqrt((u**2).mean((0, 2)))
    centered = u - u.mean(2, keepdims=True)
    centered = centered - centered.mean(0)
    # Principal components of each member's options.
    power, axes = np.linalg.eigh(np.einsum("nmk,nmj->mkj", centered, centered, optimize=True) / len(u))
    wide = [np.flatnonzero(np.sqrt(power[m].clip(0)) > ROUNDING * size[m])[::-1] for m in range(len(spans))]
    if constant := [span for span, found in zip(spans, wide, strict=True) if not len(found)]:
        raise InputError(
            f"{_enumerated(constant)}: the same prediction for every example, so there is no density: leave "
            "out what never varies (select), or use estimator='vote'."
        )
    return [(centered[:, m] @ axes[m][:, found]).T for m, found in enumerate(wide)]


def _leading(
    contrasts: list[np.ndarray], wanted: int | None, smallest: int | None, notes: list[str]
) -> tuple[Columns, Owner]:
    """Return members' leading contrasts as columns, and their members; the smallest class limits how many."""
    sizes = np.array([len(c) for c in contrasts])
    most = int(sizes.max())
    count = most if wanted is None else min(whole_number("n_contrasts", wanted, 1), most)
    if wanted is None and smallest is not None:
        while count > 1 and 2 * sizes.clip(max=count).sum() > smallest:
            count -= 1
        if count < most:
            notes.append(
                f"Each member is read by its {count} leading contrast{'s' if count > 1 else ''} of {most}: the "
                f"smallest class has {smallest} rows, too few for all."
            )
    columns = np.ascontiguousarray(np.concatenate([c[:count] for c in contrasts]).T)
    return columns, np.repeat(np.arange(len(contrasts)), sizes.clip(max=count))


def _correct(u: np.ndarray, gold: np.ndarray | None, is_vote_array: bool) -> np.ndarray | None:
    """Mark rows where the summed logits, or most votes, name the label; 1/n where n answers tie for first place."""
    if gold is None or (u.ndim == 2 and not is_vote_array):
        return None
    if not is_vote_array:
        return hits(u.sum(1), gold)
    answers = np.union1d(u, gold)  # a label may be one that no member ever votes for
    return hits((u[:, :, None] == answers).sum(1), np.searchsorted(answers, gold))


def _refuse_singular(sample: Sample) -> None:
    """Raise InputError for too few rows, and, naming members, for copies or a member determined by others."""
    counts, dims, others = np.bincount(sample.labels), len(sample.owner), "use estimator='vote' or 'variational'."
    if counts.min() < 2 * dims:
        groups = max(1, int(counts.min()) // 2 * len(sample.components) // dims)
        raise InputError(
            f"class {sample.classes[int(counts.argmin())]!r} has {counts.min()} rows for {dims} dimensions: a Gaussian "
            f"estimate needs twice as many rows as dimensions. Give more rows, n_groups={min(groups, 12)}, or "
            "estimator='vote' or 'variational'."
        )
    names = [sample.spans[member] for member in sample.owner]
    classes = [(f"within class {name!r}", sample.labels == c) for c, name in enumerate(sample.classes)]
    for where, rows in [("over all rows", slice(None)), *classes]:
        covariance = np.atleast_2d(np.cov(sample.features[rows].T))
        spread = np.sqrt(np.diagonal(covariance))
        if (constant := spread < SMALLEST_DEVIATION).any():
            name = names[int(constant.argmax())]
            raise InputError(f"{name} never varies {where}, so it has no density there: leave it out, or {others}")
        correlation = covariance / np.outer(spread, spread)
        if np.linalg.eigvalsh(correlation)[0] > SINGULAR:
            continue
        size = np.abs(correlation) - np.eye(len(correlation))
        one, other = (names[i] for i in np.unravel_index(int(size.argmax()), size.shape))
        what = f"{one} and {other} are copies" if size.max() > 1 - 1e-6 else "some members are fixed by the others"
        raise InputError(
            f"{what} {where}, so the covariance is singular and the redundancy infinite: leave one of them out, or "
            f"{others}"
        )


def _enumerated(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
