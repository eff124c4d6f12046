"""An ensemble and labels as users give them -> columns of numbers, or votes, with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..._checks import listed, whole_number
from ...components import Component, members
from ...errors import InputError
from ..validation import Ensemble, check_members, gold_options, named, numbers
from .estimator import Columns, Labels, Owner

# Fewer rows of a class have no spread to measure.
LEAST_ROWS = 8
# More draws show no more than this many, and would take days. Seeds are written to files as 64 bits.
MAX_DRAWS, MAX_SEED = 10_000, 2**63 - 1
# Contributions are captured in float32: what is smaller than this share of a member is rounding.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Features:
    """An ensemble as the estimators take it; fields that are not here are those of `Information`.

    features, owner
        `[example, column]`: contrasts (logits), or one column of votes (categories from 0) per member;
        `[column]`, the member of each, in rising order.
    options
        The number of answers: K, or the classes where no options are known.
    correct
        `[example]`, whether all members together answer rightly (shared where several are first); None where
        they give no answer.
    spans
        What each member holds: a component's label, or the first and last of a group.
    notes
        Sentences about what was left out.
    all_contrasts
        `[example, column]`: every contrast of every member, where `features` has fewer; else None.
    """

    features: np.ndarray
    owner: Owner
    labels: Labels
    classes: tuple[str, ...]
    options: int
    correct: Float[np.ndarray, " example"] | None
    components: tuple[Component, ...]
    spans: tuple[str, ...]
    votes: bool
    notes: tuple[str, ...]
    all_contrasts: np.ndarray | None


def are_votes(array: Any) -> bool:
    """Whether an array holds one whole number per example and member."""
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        try:
            array = np.asarray(array)
        except ValueError:
            return False
    return len(array.shape) == 2 and any(kind in str(array.dtype) for kind in ("int", "bool"))


def prepare(
    ensemble: Any,
    labels: Any,
    estimator: str,
    n_groups: int | None,
    n_contrasts: int | None,
    components: Sequence[str | Component] | None,
) -> Features:
    """Checked features of an ensemble. Raises InputError as `information` says."""
    contributions = ensemble if isinstance(ensemble, Ensemble) else None
    if contributions is not None and components is not None:
        raise InputError("these contributions name their components themselves: components= is for plain arrays.")
    u = contributions.values if contributions else numbers(ensemble, "the ensemble", "[example, member(, option)]")
    if u.ndim not in (2, 3):
        raise InputError(
            f"an array must be [example, member] or [example, member, option], but has the shape {u.shape}."
        )
    check_members(u if u.ndim == 3 else np.repeat(u[:, :, None], 2, 2))
    names = contributions.components if contributions else named(components, u.shape[1])
    is_vote_array = contributions is None and are_votes(ensemble)
    y, classes, gold = _classes(labels, u, contributions.options if contributions else ())
    notes: list[str] = []
    if contributions and estimator != "vote":
        # The constant is the same for every example by definition.
        kept = [i for i, c in enumerate(names) if c.kind != "constant" or np.ptp(u[:, i], axis=0).any()]
        if not kept:
            raise InputError("the constant alone is the same for every example: give other components too.")
        if len(kept) < len(names):
            notes.append("The constant is the same for every example, so it carries no information: it is left out.")
            u, names = u[:, kept], tuple(names[i] for i in kept)
    correct = _correct(u, gold, is_vote_array)
    spans = tuple(c.label for c in names)
    if n_groups is not None:
        if is_vote_array:
            raise InputError("votes cannot be summed up to groups: give the logits, or fewer members.")
        # Neighbors along the stream are summed up.
        groups = np.array_split(np.arange(len(names)), min(whole_number("n_groups", n_groups, 1), len(names)))
        spans = tuple(spans[g[0]] if len(g) == 1 else f"{spans[g[0]]} … {spans[g[-1]]}" for g in groups)
        u, names = np.add.reduceat(u, [g[0] for g in groups], axis=1), members(len(groups))
    votes = is_vote_array or estimator == "vote"
    everything = None
    if votes:
        features, owner = _votes(u, is_vote_array, estimator, spans, notes), np.arange(len(names))
    else:
        smallest = int(np.bincount(y).min()) if estimator == "gaussian" else None
        contrasts = _contrasts(u, spans)
        features, owner = _leading(contrasts, n_contrasts, smallest, notes)
        everything = np.concatenate(contrasts).T if sum(map(len, contrasts)) > len(owner) else None
    options = max(u.shape[2], len(classes)) if u.ndim == 3 else len(classes)
    return Features(features, owner, y, classes, options, correct, names, spans, votes, tuple(notes), everything)


def _classes(labels: Any, u: np.ndarray, options: tuple) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None]:
    """(classes from 0, their names, labels that compare with options or votes)."""
    if labels is None:
        raise InputError("information is about a label: give one for each example.")
    gold: np.ndarray | None
    if u.ndim == 3:
        gold = gold_options(labels, u.shape, options)
        texts = options if options and isinstance(options[0], str) else ()
        different, y = np.unique(gold, return_inverse=True)
        names = tuple(str(texts[k]) if texts else str(k) for k in different)
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


def _votes(
    u: np.ndarray, is_vote_array: bool, estimator: str, spans: Sequence[str], notes: list[str]
) -> Int[np.ndarray, "example member"]:
    """Each member's vote, from 0; of equal options the first."""
    if is_vote_array and estimator == "gaussian":
        raise InputError("whole numbers are votes, which have no density: use estimator='vote', or give floats.")
    if not is_vote_array and u.ndim == 2:
        raise InputError("these members give one number each, and no votes: give options too, or whole numbers.")
    votes = np.unique(u, return_inverse=True)[1].reshape(u.shape) if is_vote_array else u.argmax(2)
    constant = [span for span, column in zip(spans, votes.T, strict=True) if (column == column[0]).all()]
    if constant:
        notes.append(f"{_enumerated(constant)} always cast the same vote, which carries no information.")
    return votes


def _contrasts(u: np.ndarray, spans: Sequence[str]) -> list[Float[np.ndarray, "contrast example"]]:
    """Each member's principal contrasts over options, the widest first; labels are not used.

    What is common to all options is left out, which softmax cannot see: K − 1 contrasts at most, fewer where a
    member's logits move along fewer directions.
    """
    if u.ndim == 2:
        u = np.stack([u, -u], 2) / np.sqrt(2)
    size = np.sqrt((u**2).mean((0, 2)))
    centered = u - u.mean(2, keepdims=True)
    centered = centered - centered.mean(0)
    # Principal components of each member's options.
    power, axes = np.linalg.eigh(np.einsum("nmk,nmj->mkj", centered, centered, optimize=True) / len(u))
    contrasts = []
    for m in range(len(spans)):
        wide = np.flatnonzero(np.sqrt(np.maximum(power[m], 0.0)) > ROUNDING * size[m])[::-1]
        contrasts.append((centered[:, m] @ axes[m][:, wide]).T)
    constant = [span for span, contrast in zip(spans, contrasts, strict=True) if not len(contrast)]
    if constant:
        raise InputError(
            f"{_enumerated(constant)}: the same prediction for every example, so there is no density: leave "
            "out what never varies (select), or use estimator='vote'."
        )
    return contrasts


def _leading(
    contrasts: list[Float[np.ndarray, "contrast example"]], wanted: int | None, smallest: int | None, notes: list[str]
) -> tuple[Columns, Owner]:
    """Each member's leading contrasts as columns, and their members; as many as the smallest class bears."""
    most = max(map(len, contrasts))
    count = most if wanted is None else min(whole_number("n_contrasts", wanted, 1), most)
    if wanted is None and smallest is not None:
        while count > 1 and 2 * sum(min(count, len(c)) for c in contrasts) > smallest:
            count -= 1
    if wanted is None and count < most:
        notes.append(
            f"Each member is read by its {count} leading contrast{'s' if count > 1 else ''} of {most}: the smallest "
            f"class has {smallest} rows, too few for all."
        )
    owner = np.repeat(np.arange(len(contrasts)), [min(count, len(c)) for c in contrasts])
    return np.ascontiguousarray(np.concatenate([c[:count] for c in contrasts]).T), owner


def _correct(u: np.ndarray, gold: np.ndarray | None, is_vote_array: bool) -> np.ndarray | None:
    """Whether the sum of logits, or most votes, name the label; 1/n where n answers share the first place."""
    if gold is None or (u.ndim == 2 and not is_vote_array):
        return None
    if is_vote_array:
        answers, codes = np.unique(u, return_inverse=True)
        score = (codes.reshape(u.shape)[:, :, None] == np.arange(len(answers))).sum(1)
    else:
        answers, score = np.arange(u.shape[2]), u.sum(1)
    first = score == score.max(1, keepdims=True)
    return (first & (gold[:, None] == answers)).sum(1) / first.sum(1)


def _enumerated(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
