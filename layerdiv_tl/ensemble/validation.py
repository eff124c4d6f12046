"""Turn ensembles, labels and targets given by users into checked float64 numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from .._checks import listed, shown
from ..components import Component, labels_of, members
from ..errors import InputError

# Squares of larger numbers overflow.
LARGEST = 1e100
# `Contributions`, or an array `[example, member, option]`; labels are indices of options, or their texts.
EnsembleLike = Any
Labels = Sequence[int] | Sequence[str] | np.ndarray | None


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What is used of `Contributions`, where the fields are described; a plain array has values and components only."""

    values: Float[np.ndarray, "example member option"]
    components: tuple[Component, ...]
    options: tuple[Any, ...] = ()
    option_names: tuple[str, ...] = ()
    shared_options: tuple[str, ...] | None = None
    labels: Int[np.ndarray, " example"] | None = None
    junctions: tuple[Component, ...] | None = None
    partial_junctions: Bool[np.ndarray, " junction"] | None = None
    identity_gap: float | None = None
    soft_cap: float | None = None
    model: str = ""
    task: str = ""
    prompt_ends: tuple[str, ...] = ()
    score: str = "logits"


def as_ensemble(given: EnsembleLike, components: Sequence[str | Component] | None = None) -> Ensemble:
    """Return contributions, or an array with `components` as names (`M0`, `M1`, … by default).

    Contributions to options of several tokens become parts of their log-likelihoods: see `Contributions.scores`.
    Raises InputError for what cannot be an ensemble `[example, member, option]`.
    """
    if hasattr(given, "components"):
        if components is not None:
            raise InputError("these contributions name their components themselves: components= is for plain arrays.")
        known = getattr(given, "comparable", given)
        found = Ensemble(**{f.name: getattr(known, f.name) for f in fields(Ensemble) if hasattr(known, f.name)})
    else:
        u = numbers(given, "the ensemble")
        names = members(u.shape[1]) if u.ndim > 1 else ()
        if components is not None:
            names = tuple(Component.parse(label) for label in labels_of("components", components))
        found = Ensemble(u, names)
    u = found.values
    if u.ndim != 3 or not u.shape[0] or not u.shape[1]:
        raise InputError(f"an ensemble is [example, member, option], none of them empty; its shape is {u.shape}.")
    if u.shape[2] < 2:
        raise InputError("there is one option only, so every prediction is right: give at least two options.")
    _refuse_unbounded(u, "the members hold")
    names = found.components
    if len(names) != u.shape[1] or len(set(names)) != u.shape[1]:
        raise InputError(f"components must name each of {u.shape[1]} members once, but there are {len(names)} names.")
    return found


def gold_options(
    labels: Labels, shape: tuple[int, ...], options: tuple[Any, ...], name: str = "labels"
) -> Int[np.ndarray, " example"]:
    """Turn labels, indices of options or their texts exactly as these are written, into indices.

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
            if texts.count(label) != 1:
                how = "more than one" if label in texts else "none"
                raise InputError(
                    f"{name}: {shown(label)} of example {row} is {how} of its options {shown(texts)}: use indices."
                )
            gold[row] = texts.index(label)
        elif isinstance(label, Integral) and not isinstance(label, bool) and 0 <= int(label) < k:
            gold[row] = int(label)
        else:
            allowed = f"an option's index, 0 to {k - 1}, or its text"
            raise InputError(f"{name} holds {shown(label)} for example {row}: it must be {allowed}.")
    return gold


def dense_target(target: Any, shape: tuple[int, int], probabilities: bool) -> Float[np.ndarray, "example option"]:
    """A dense target `[example, option]`, in logits or in probabilities. Raises InputError for anything else."""
    t = numbers(target, "target")
    if t.shape != shape:
        raise InputError(f"target has the shape {t.shape}, but must be [example, option] = {shape}.")
    _refuse_unbounded(t, "target holds")
    if not probabilities:
        return t
    if not (np.all(t >= 0) and np.allclose(t.sum(1), 1, atol=1e-6)):
        raise InputError(
            "this loss compares probabilities, but the target's rows are not distributions over the options: give "
            "the softmax of logits over these options."
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


def _refuse_unbounded(x: np.ndarray, which: str) -> None:
    if not np.abs(x).max() <= LARGEST:
        raise InputError(f"{which} numbers that are not finite, or so large that their squares overflow.")
