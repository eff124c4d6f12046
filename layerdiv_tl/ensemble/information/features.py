"""What users give as an ensemble and labels -> columns of numbers, or votes, with names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..._checks import whole_number
from ...components import Component, members
from ...errors import InputError
from ..validation import Ensemble, check_members, gold_options, named, numbers

# Fewer rows of a class say nothing about its spread.
LEAST = 8
# More draws tell no more than this many, and would take days. Seeds are written to files as 64 bits.
MAX_DRAWS, MAX_SEED = 10_000, 2**63 - 1
# Contributions are captured in float32: what is smaller than this share of a member is rounding.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Members:
    """An ensemble as the estimators take it.

    features, owner
        `[example, column]`: contrasts (logits), or one column of votes (categories from 0) per member;
        `[column]`, the member of each, in rising order.
    labels, classes
        `[example]`, classes from 0, and their names.
    options
        How many answers there are: K, or the classes where no options are known.
    correct
        `[example]`, whether all members together answer rightly (shared where several are first); None where
        they give no answer.
    components, spans
        The members' names, and what each holds: a component's label, or the first and last of a group.
    notes
        Sentences about what was left out.
    all_contrasts
        `[example, column]`: every contrast of every member, where `features` has fewer; else None.
    """

    features: np.ndarray
    owner: Int[np.ndarray, " column"]
    labels: Int[np.ndarray, " example"]
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
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or dtype is None:
        try:
            array = np.asarray(array)
        except ValueError:
            return False
        shape, dtype = array.shape, array.dtype
    return len(shape) == 2 and any(kind in str(dtype) for kind in ("int", "bool"))


def prepare(
    ensemble: Any,
    labels: Any,
    estimator: str,
    n_groups: int | None,
    n_contrasts: int | None,
    components: Sequence[str | Component] | None,
) -> Members:
    """Checked members of an ensemble. Raises InputError as `information` says."""
    given = ensemble if isinstance(ensemble, Ensemble) else None
    if given is not None and components is not None:
        raise InputError("these contributions name their components themselves: components= is for plain arrays.")
    u = given.values if given else numbers(ensemble, "the ensemble", "[example, member(, option)]")
    if u.ndim not in (2, 3):
        raise InputError(
            f"an array must be [example, member] or [example, member, option], but has the shape {u.shape}."
        )
    check_members(u if u.ndim == 3 else np.repeat(u[:, :, None], 2, 2))
    names = given.components if given else named(components, u.shape[1])
    voting = given is None and are_votes(ensemble)
    y, classes, gold = _classes(labels, u, given.options if given else ())
    notes: list[str] = []
    if given and estimator != "vote":
        u, names = _without_constant(u, names, notes)
    correct = _correct(u, gold, voting)
    spans = tuple(c.label for c in names)
    if n_groups is not None:
        if voting:
            raise InputError("votes cannot be summed up to groups: give the logits, or fewer members.")
        u, names, spans = _grouped(u, names, whole_number("groups", n_groups, 1))
    if voting or estimator == "vote":
        features, owner, everything = _votes(u, voting, estimator, spans, notes), np.arange(len(names)), None
    else:
        smallest = int(np.bincount(y).min()) if estimator == "gaussian" else None
        leading = _contrasts(u, spans)
        features, owner = _columns(leading, n_contrasts, smallest, notes)
        everything = np.concatenate(leading).T if sum(map(len, leading)) > len(owner) else None
    return Members(
        features=features,
        owner=owner,
        labels=y,
        classes=classes,
        options=max(u.shape[2], len(classes)) if u.ndim == 3 else len(classes),
        correct=correct,
        components=names,
        spans=spans,
        votes=voting or estimator == "vote",
        notes=tuple(notes),
        all_contrasts=everything,
    )


def _without_constant(
    u: np.ndarray, names: tuple[Component, ...], notes: list[str]
) -> tuple[np.ndarray, tuple[Component, ...]]:
    """The constant is the same for every example by definition: it carries no information, nor any redundancy."""
    kept = [i for i, c in enumerate(names) if c.kind != "constant" or np.ptp(u[:, i], axis=0).any()]
    if not kept:
        raise InputError("the constant alone is the same for every example: give other components too.")
    if len(kept) == len(names):
        return u, names
    notes.append("The constant is the same for every example, so it carries no information: it is left out.")
    return u[:, kept], tuple(names[i] for i in kept)


def _votes(
    u: np.ndarray, voting: bool, estimator: str, spans: Sequence[str], notes: list[str]
) -> Int[np.ndarray, "example member"]:
    """Each member's vote, from 0; of equal options the first."""
    if voting and estimator == "gaussian":
        raise InputError("whole numbers are votes, which have no density: use estimator='vote', or give floats.")
    if not voting and u.ndim == 2:
        raise InputError("these members give one number each, and no votes: give options too, or whole numbers.")
    votes = np.unique(u, return_inverse=True)[1].reshape(u.shape) if voting else u.argmax(2)
    constant = [span for span, column in zip(spans, votes.T, strict=True) if (column == column[0]).all()]
    if constant:
        notes.append(f"{_listed(constant)} always cast the same vote, which tells nothing.")
    return votes


def _columns(
    contrasts: list[Float[np.ndarray, "contrast example"]], wanted: int | None, smallest: int | None, notes: list[str]
) -> tuple[Float[np.ndarray, "example column"], Int[np.ndarray, " column"]]:
    """Each member's leading contrasts side by side, and their members; as many as the smallest class bears."""
    most = max(map(len, contrasts))
    taken = most if wanted is None else min(whole_number("contrasts", wanted, 1), most)
    if wanted is None and smallest is not None:
        while taken > 1 and 2 * sum(min(taken, len(c)) for c in contrasts) > smallest:
            taken -= 1
    if wanted is None and taken < most:
        notes.append(
            f"Each member is read by its {taken} leading contrast{'s' if taken > 1 else ''} of {most}: the smallest "
            f"class has {smallest} rows, too few for all."
        )
    owner = np.repeat(np.arange(len(contrasts)), [min(taken, len(c)) for c in contrasts])
    return np.ascontiguousarray(np.concatenate([c[:taken] for c in contrasts]).T), owner


def _classes(labels: Any, u: np.ndarray, options: tuple) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None]:
    """(classes from 0, their names, labels that compare with options or votes)."""
    if labels is None:
        raise InputError("information is about a label: give one for each example.")
    if u.ndim == 3:
        gold: Any = gold_options(labels, u.shape, options)
        texts = options if options and isinstance(options[0], str) else ()
        different, y = np.unique(gold, return_inverse=True)
        names = tuple(str(texts[k]) if texts else str(k) for k in different)
    else:
        listed = labels.tolist() if hasattr(labels, "tolist") else labels
        if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
            raise InputError(f"labels={labels!r:.60} must be a list with one label for each example.")
        listed = [*listed]
        whole = all(isinstance(x, int | np.integer) for x in listed)
        if not whole and not all(isinstance(x, str) for x in listed):
            raise InputError("labels must be whole numbers or texts, one class for each example.")
        if len(listed) != len(u):
            raise InputError(f"there are {len(listed)} labels for {len(u)} examples: give one for each.")
        different, y = np.unique(np.array(listed), return_inverse=True)
        names, gold = tuple(map(str, different)), np.array(listed, dtype=np.float64) if whole else None
    if len(names) < 2:
        raise InputError(f"all examples have the label {names[0]!r}, so there is nothing to know: give two classes.")
    counts = np.bincount(y)
    if counts.min() < LEAST:
        few = names[int(counts.argmin())]
        raise InputError(
            f"class {few!r} has {counts.min()} of {len(y)} rows: each class needs at least {LEAST}. Give more rows, or "
            "leave the class out."
        )
    return y, names, gold


def _grouped(
    u: np.ndarray, names: tuple[Component, ...], n_groups: int
) -> tuple[np.ndarray, tuple[Component, ...], tuple[str, ...]]:
    """Neighbors along the stream summed up, so that at most `groups` members are left."""
    parts = np.array_split(np.arange(len(names)), min(n_groups, len(names)))
    spans = tuple(names[p[0]].label if len(p) == 1 else f"{names[p[0]].label} … {names[p[-1]].label}" for p in parts)
    return np.add.reduceat(u, [p[0] for p in parts], axis=1), members(len(parts)), spans


def _contrasts(u: np.ndarray, spans: Sequence[str]) -> list[Float[np.ndarray, "contrast example"]]:
    """Each member's principal contrasts over options, the widest first; no label is looked at.

    What is common to all options is left out, which no softmax sees: K − 1 contrasts at most, fewer where a
    member's logits move along fewer directions.
    """
    if u.ndim == 2:
        u = np.stack([u, -u], 2) / np.sqrt(2)
    size = np.sqrt((u**2).mean((0, 2)))
    centered = u - u.mean(2, keepdims=True)
    centered = centered - centered.mean(0)
    power, axes = np.linalg.eigh(np.einsum("nmk,nmj->mkj", centered, centered, optimize=True) / len(u))
    found, constant = [], []
    for m, span in enumerate(spans):
        wide = np.flatnonzero(np.sqrt(np.maximum(power[m], 0.0)) > ROUNDING * size[m])[::-1]
        found.append((centered[:, m] @ axes[m][:, wide]).T)
        if not len(wide):
            constant.append(span)
    if constant:
        raise InputError(
            f"{_listed(constant)}: the same prediction for every example, so there is no density to estimate: leave "
            "out what never varies (select), or use estimator='vote'."
        )
    return found


def _correct(u: np.ndarray, gold: np.ndarray | None, voting: bool) -> np.ndarray | None:
    """Whether the sum of logits, or most votes, name the label; 1/n where n answers share the first place."""
    if gold is None or (u.ndim == 2 and not voting):
        return None
    if voting:
        answers, codes = np.unique(u, return_inverse=True)
        score = (codes.reshape(u.shape)[:, :, None] == np.arange(len(answers))).sum(1)
        right = gold[:, None] == answers
    else:
        score, right = u.sum(1), gold[:, None] == np.arange(u.shape[2])
    first = score == score.max(1, keepdims=True)
    return (first & right).sum(1) / first.sum(1)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
