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

from .._checks import listed, number, shown, with_article
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
    if u.ndim != 3:
        raise InputError(f"an array must be [example, member, option], but this one has the shape {u.shape}.")
    n, count, k = u.shape
    if n == 0 or count == 0:
        raise InputError(f"there is nothing to decompose: {n} examples and {count} members.")
    if k < 2:
        raise InputError("there is one option only, so every prediction is right: give at least two options.")
    if not np.isfinite(u).all():
        raise InputError("the members hold numbers that are not finite (NaN or infinity): mend them first.")
    if np.abs(u).max() > LARGEST:
        raise InputError(f"the members hold numbers beyond {LARGEST:.0e}, whose squares overflow: give logits.")
    if not is_array:
        return known
    names = members(count)
    if components is not None:
        names = tuple(Component.parse(label) for label in labels_of("components", components))
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"components names {len(set(names))} members, but the array holds {count}: one name for each.")
    array: Any = SimpleNamespace(values=u, components=names, options=(), **_NOWHERE)
    return array


def gold_options(
    labels: Labels, shape: tuple[int, ...], options: tuple[Any, ...], name: str = "labels"
) -> Int[np.ndarray, " example"]:
    """Turn labels, indices of options or their texts, into indices; spaces around a text only break ties.

    `name` is the argument's. Raises InputError for what names no option.
    """
    own = f", {name}=task.labels of a task" * hasattr(labels, "prompts")
    given = listed(name, labels, f"a list with one gold option for each example{own}")
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


def dense_target(target: Any, members: Ensemble, probabilities: bool) -> Float[np.ndarray, "example option"]:
    """A dense target `[example, option]`, in logits or in probabilities. Raises InputError for anything else.

    Another model's contributions become its logits, or its probabilities, over the same options.
    """
    n, _, k = members.values.shape
    if isinstance(target, Ensemble):
        if target.options and members.options and target.options != members.options:
            raise InputError("target holds contributions to other options: take both models' to the same ones.")
        target = as_ensemble(target).values.sum(1)
        target = softmax(target, axis=1) if probabilities else target
    t = numbers(target, "target", "[example, option]")
    if t.shape != (n, k):
        raise InputError(f"target has the shape {t.shape}, but must be [example, option] = {(n, k)}.")
    if not np.isfinite(t).all() or np.abs(t).max() > LARGEST:
        raise InputError("target holds numbers that are not finite, or so large that their squares overflow.")
    if not probabilities:
        return t
    if not (np.all(t >= 0) and np.allclose(t.sum(1), 1, atol=1e-6)):
        raise InputError(
            "this loss compares probabilities, but the target's rows are not distributions over the options: give "
            "the softmax of the other model's logits over these options."
        )
    return t / t.sum(1, keepdims=True)


def factor(tau: Any) -> float | None:
    """A factor on logits, or None for a loss's own. Raises InputError for what is not a number above 0."""
    return None if tau is None else number("tau", tau, above=0, below=LARGEST)


def numbers(x: Any, name: str, shape: str = "[example, member, option]") -> np.ndarray:
    """Arrays, tensors and lists as float64. Raises InputError for what is none of them."""
    kind = type(x).__name__
    if kind in ("ActivationCache", "Model", "TransformerBridge", "HookedTransformer", "Task"):
        arguments = {"ActivationCache": "cache, options=...", "Task": "model, task"}.get(
            kind, "model, prompts, options"
        )
        raise InputError(f"{name} is {with_article(kind)}: give layerdiv_tl.contributions({arguments}).")
    try:
        if hasattr(x, "detach"):  # a tensor of any precision, on any device
            x = x.detach().cpu()
            x = (x if x.is_complex() else x.double()).numpy()
        array = np.asarray(x)
        is_masked = np.ma.is_masked(x)
    except Exception as error:  # ragged lists, tensors without storage, and other objects that are no array
        raise InputError(f"{name} is not an array of numbers ({error}): give {shape}.") from error
    if is_masked:
        raise InputError(f"{name} has masked entries: give numbers for all.")
    if np.iscomplexobj(array):
        raise InputError(f"{name} holds complex numbers: logits are real.")
    if array.dtype.kind not in "iuf":
        what = f"is a {type(x).__name__}" if array.ndim == 0 else f"holds {array.dtype}"
        raise InputError(f"{name} is not an array of numbers (it {what}): give {shape}.")
    return array.astype(np.float64)
