"""Turn ensembles, labels, targets and frames given by users into checked float64 numbers."""

# ruff: noqa: D102 (the fields of `Ensemble` are described in `Contributions`)

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from .._checks import listed, shown
from ..components import Component, labels_of, members
from ..errors import InputError

# Squares of larger numbers overflow.
LARGEST = 1e100


@runtime_checkable
class Ensemble(Protocol):
    """The fields of `Contributions` that are used here: members with names, and their places in the stream."""

    @property
    def values(self) -> np.ndarray: ...
    @property
    def components(self) -> tuple[Component, ...]: ...
    @property
    def options(self) -> tuple[Any, ...]: ...
    @property
    def identity_gap(self) -> float | None: ...
    @property
    def junctions(self) -> tuple[Component, ...] | None: ...
    @property
    def junction_scale(self) -> np.ndarray | None: ...
    @property
    def partial_junctions(self) -> np.ndarray | None: ...
    @property
    def soft_cap(self) -> float | None: ...


# What a plain array, whose members have no place in a model, lacks.
_NOWHERE = dict.fromkeys(("identity_gap", "junctions", "junction_scale", "partial_junctions", "soft_cap"))
EnsembleLike = Ensemble | Float[np.ndarray, "example member option"]
Labels = Sequence[int] | Sequence[str] | np.ndarray | None


def as_ensemble(ensemble: EnsembleLike, components: Sequence[str | Component] | None = None) -> Ensemble:
    """Return contributions, or an array with `components` as names (`M0`, `M1`, … by default).

    Contributions to options of several tokens become parts of their log-likelihoods: see `Contributions.scores`.
    Raises InputError for what cannot be an ensemble `[example, member, option]`.
    """
    is_array = not isinstance(ensemble, Ensemble)
    if not is_array and components is not None:
        raise InputError("these contributions name their components themselves: components= is for plain arrays.")
    known: Any = getattr(ensemble, "comparable", ensemble)
    u = numbers(ensemble, "the ensemble") if is_array else known.values
    if u.ndim != 3 or not u.shape[0] or not u.shape[1]:
        raise InputError(f"an ensemble is [example, member, option], none of them empty; its shape is {u.shape}.")
    if u.shape[2] < 2:
        raise InputError("there is one option only, so every prediction is right: give at least two options.")
    if not (np.abs(u).max() <= LARGEST):
        raise InputError("the members hold numbers that are not finite, or so large that their squares overflow.")
    if not is_array:
        return known
    names = members(u.shape[1])
    if components is not None:
        names = tuple(Component.parse(label) for label in labels_of("components", components))
    if len(names) != u.shape[1] or len(set(names)) != u.shape[1]:
        raise InputError(f"components must name each of {u.shape[1]} members once, but there are {len(names)} names.")
    array: Any = SimpleNamespace(values=u, components=names, options=(), **_NOWHERE)
    return array


def gold_options(
    labels: Labels, shape: tuple[int, ...], options: tuple[Any, ...], name: str = "labels"
) -> Int[np.ndarray, " example"]:
    """Turn labels, indices of options or their texts, into indices; spaces around a text only break ties.

    `name` is the argument's. Raises InputError for what names no option.
    """
    given = listed(name, labels, "a list with one gold option for each example")
    n, _, k = shape
    if len(given) != n:
        raise InputError(f"{name} holds {len(given)} for {n} examples: give one for each.")
    gold = np.empty(n, dtype=np.int64)
    for row, label in enumerate(given):
        if isinstance(label, str):
            texts = list(options[row] if options and not isinstance(options[0], str) else options)
            bare = [text.strip() for text in texts]
            if label not in texts and bare.count(label.strip()) == 1:  # a tokenizer may have dropped the space before
                label = texts[bare.index(label.strip())]
            if texts.count(label) != 1:
                how = "more than one" if label in texts else "none"
                advice = "use indices" if label in texts else "give one of them, or its index"
                raise InputError(
                    f"{name}: {shown(label)} of example {row} is {how} of its options {shown(texts)}: {advice}."
                )
            gold[row] = texts.index(label)
        elif isinstance(label, Integral) and not isinstance(label, bool) and 0 <= int(label) < k:
            gold[row] = int(label)
        else:
            allowed = f"an option's index, 0 to {k - 1}, or its text"
            raise InputError(f"{name} holds {shown(label)} for example {row}: it must be {allowed}.")
    return gold


def _refuse_other_rows(target: Any, members: Any) -> None:
    """Raise InputError where the target's rows have other labels than the members', or another order.

    Token ids alone decide nothing: the two models may have different tokenizers.
    """
    labels, others = (getattr(x, "labels", None) for x in (target, members))
    is_other = labels is not None and others is not None and not np.array_equal(labels, others)
    tokens = [tuple(getattr(x, "tokens", ())) for x in (target, members)]
    if any(token < 0 for rows in tokens for ids in rows for token in ids):
        raise InputError("token ids of a cache are unknown, so rows may differ: give them as the cache's prompts.")
    is_moved = tokens[0] != tokens[1] and sorted(tokens[0]) == sorted(tokens[1])
    if is_moved or is_other:
        raise InputError("target holds contributions of other rows, or in another order: take both of the same task.")


def dense_target(target: Any, members: Ensemble, probabilities: bool) -> Float[np.ndarray, "example option"]:
    """A dense target `[example, option]`, in logits or in probabilities. Raises InputError for anything else.

    Another model's contributions become its logits, or its probabilities, over the same options.
    """
    n, _, k = members.values.shape
    if isinstance(target, Ensemble):
        if target.options and members.options and target.options != members.options:
            raise InputError("target holds contributions to other options: take both models' to the same ones.")
        _refuse_other_rows(target, members)
        target = as_ensemble(target).values.sum(1)
        target = softmax(target, axis=1) if probabilities else target
    t = numbers(target, "target")
    if t.shape != (n, k):
        raise InputError(f"target has the shape {t.shape}, but must be [example, option] = {(n, k)}.")
    if not (np.abs(t).max() <= LARGEST):
        raise InputError("target holds numbers that are not finite, or so large that their squares overflow.")
    if not probabilities:
        return t
    if not (np.all(t >= 0) and np.allclose(t.sum(1), 1, atol=1e-6)):
        raise InputError(
            "this loss compares probabilities, but the target's rows are not distributions over the options: give "
            "the softmax of the other model's logits over these options."
        )
    return t / t.sum(1, keepdims=True)


def numbers(x: Any, name: str) -> np.ndarray:
    """Return arrays, tensors and lists as float64. Raises InputError for masked entries and complex numbers."""
    if hasattr(x, "detach"):  # a tensor of any precision, on any device
        x = x.detach().cpu()
        x = (x if x.is_complex() else x.double()).numpy()
    if np.ma.is_masked(x):
        raise InputError(f"{name} has masked entries: give numbers for all.")
    array = np.asarray(x)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} must hold real numbers, not {array.dtype}.")
    return array.astype(np.float64)
