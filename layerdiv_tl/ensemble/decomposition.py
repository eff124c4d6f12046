"""Theorem 1: the squared error of an ensemble is its members' bias minus their diversity.

    mean_k (t − ū)² = mean_i mean_k (t − u_i)² − mean_i mean_k (ū − u_i)²        (Eq. 7-8)

    u : [example, member, option]   what each member says, in logits; ū is its mean over members
    t : [example, option]           the target: one-hot for a gold option, or dense

Everything is computed per example in float64 and then averaged. For each x among t−ū, t−u_i, ū−u_i:
mean_k x² = (mean_k x)² + var_k x, so the theorem holds twice, in the *shift* common to all options,
which a softmax cannot see, and in the *centred* rest; raw is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from ..components import Component, members
from ..errors import InputError
from ..results import Result
from .uncertainty import bootstrap, wilson

if TYPE_CHECKING:
    import pandas as pd

Part = Literal["raw", "centred", "shift"]
TERMS = ("bias", "diversity", "net")


@runtime_checkable
class Ensemble(Protocol):
    """What `decompose` reads of `Contributions`: values with names."""

    @property
    def values(self) -> np.ndarray:
        """`[example, member, option]`, in logits."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The members' names."""

    @property
    def options(self) -> tuple:
        """The options' texts: K of them, or K for every example."""

    @property
    def identity_gap(self) -> float:
        """How well the members summed to the model's logits."""


@dataclass(frozen=True, eq=False)
class Decomposition(Result):
    """Theorem 1 for one ensemble: `loss = bias − diversity`, all in squared logits.

    components
        The members' names.
    losses, biases, diversities, coherences
        Per example: `[example]`, `[example, member]`, `[example, member]`, `[example]`; a member's own
        terms, undivided by |L|.
    silences
        `[example]`, the squared error of a member that says nothing (u = 0): where every bias starts.
    correct
        `[example, member]`, whether a member alone prefers the gold option (1/n where it shares the first
        place among n, as a member that says nothing does); None without labels.
    ensemble_correct
        `[example]`, the same for all members together.
    centred, shift
        The two halves, each a whole Decomposition; None in the halves themselves.
    identity_gap
        How well the components summed to the model's logits; None for a plain array.
    """

    components: tuple[Component, ...]
    losses: Float[np.ndarray, " example"]
    biases: Float[np.ndarray, "example member"]
    diversities: Float[np.ndarray, "example member"]
    coherences: Float[np.ndarray, " example"]
    silences: Float[np.ndarray, " example"]
    correct: Float[np.ndarray, "example member"] | None
    ensemble_correct: Bool[np.ndarray, " example"] | None
    centred: Decomposition | None
    shift: Decomposition | None
    identity_gap: float | None

    @property
    def loss(self) -> float:
        """MSE of the ensemble mean ū against the target, in squared logits (Eq. 6)."""
        return float(self.losses.mean())

    @property
    def bias(self) -> float:
        """Mean squared error of the members, each on its own (Eq. 8)."""
        return float(self.biases.mean())

    @property
    def diversity(self) -> float:
        """Mean squared distance of the members from their mean (Eq. 8); *ambiguity* elsewhere."""
        return float(self.diversities.mean())

    @property
    def silent_bias(self) -> float:
        """The bias of a member that says nothing (u = 0), in squared logits: the baseline of all biases."""
        return float(self.silences.mean())

    @property
    def gap(self) -> float:
        """|loss − (bias − diversity)| relative to the largest of the three: the identity, as measured."""
        scale = max(abs(self.loss), abs(self.bias), abs(self.diversity), np.finfo(float).tiny)
        return abs(self.loss - (self.bias - self.diversity)) / scale

    @property
    def diversity_logit(self) -> float:
        """|L|² × diversity: comparable between models and cuts with different numbers of members (MATHS 1)."""
        return len(self.components) ** 2 * self.diversity

    @property
    def coherence(self) -> float:
        """|Σu|² / Σ|u|², mean over examples: 1 orthogonal, |L| identical, below 1 cancelling members."""
        return float(self.coherences.mean())

    @property
    def accuracy(self) -> float:
        """How often the ensemble prefers the gold option. Raises InputError without labels."""
        if self.ensemble_correct is None:
            raise InputError("a decomposition against a dense target has no gold option, so no accuracy.")
        return float(self.ensemble_correct.mean())

    def by_component(self) -> pd.DataFrame:
        """One row per member: bias, diversity, net in raw, centred and shift, undivided by |L|.

        `bias_share` and `diversity_share` are a member's part of the ensemble's sum; `accuracy` is the
        member's own; `_low` and `_high` are bootstrap intervals over examples, 95 %.
        """
        import pandas as pd

        rows: dict[str, Any] = {
            "component": [c.label for c in self.components],
            "kind": [c.kind for c in self.components],
            "layer": pd.array([c.layer for c in self.components], dtype="Int64"),
            "index": pd.array([c.index for c in self.components], dtype="Int64"),
            "use": pd.array([c.use for c in self.components], dtype="Int64"),
        }
        for suffix, part in self._parts():
            rows |= _columns(part._terms(), suffix)
            for term in ("bias", "diversity"):
                mean = rows[term + suffix]
                rows[f"{term}_share{suffix}"] = _share(mean, mean.sum())
        if self.correct is not None:
            rows["accuracy"] = self.correct.mean(0)
            bounds = [wilson(float(hits), len(self.correct)) for hits in self.correct.sum(0)]
            rows["accuracy_low"], rows["accuracy_high"] = np.array(bounds).T
        return self._finish(pd.DataFrame(rows))

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns bias, diversity and net add up to the ensemble's; `count_share` is n_g/|L|, the
        share a module would have if its members were like all others; `_mean` is undivided.
        """
        import pandas as pd

        modules = list(dict.fromkeys(c.module for c in self.components))
        member = np.array([[c.module == module for c in self.components] for module in modules], dtype=float)
        counts = member.sum(1)
        rows: dict[str, Any] = {
            "module": modules,
            "members": counts.astype(int),
            "count_share": counts / counts.sum(),
        }
        for suffix, part in self._parts():
            terms = {name: values @ member.T / counts.sum() for name, values in part._terms().items()}
            rows |= _columns(terms, suffix)
            for term in ("bias", "diversity"):
                mean = rows[term + suffix]
                rows[f"{term}_share{suffix}"] = _share(mean, mean.sum())
                rows[f"{term}_mean{suffix}"] = mean * counts.sum() / counts
        return self._finish(pd.DataFrame(rows))

    def frame(self) -> pd.DataFrame:
        """The totals, one row each for raw, centred and shift, with bootstrap intervals."""
        import pandas as pd

        rows = []
        for suffix, part in self._parts():
            row: dict[str, Any] = {"part": suffix.removeprefix("_") or "raw", "members": len(self.components)}
            totals = {
                "loss": part.losses,
                "bias": part.biases.mean(1),
                "diversity": part.diversities.mean(1),
                "diversity_logit": len(self.components) ** 2 * part.diversities.mean(1),
                "coherence": part.coherences,
            }
            for name, values in totals.items():
                low, high = bootstrap(values)
                row |= {name: values.mean(), f"{name}_low": float(low), f"{name}_high": float(high)}
            rows.append(row | {"gap": part.gap})
        return self._finish(pd.DataFrame(rows))

    def _parts(self) -> list[tuple[str, Decomposition]]:
        halves = [("_centred", self.centred), ("_shift", self.shift)]
        return [("", self), *((suffix, half) for suffix, half in halves if half is not None)]

    def _terms(self) -> dict[str, Float[np.ndarray, "example member"]]:
        return {"bias": self.biases, "diversity": self.diversities, "net": self.biases - self.diversities}

    def _finish(self, frame: pd.DataFrame) -> pd.DataFrame:
        measured = ("bias", "diversity", "net", "loss")
        frame.attrs["units"] = {
            column: "share" if "_share" in column else "logits²"
            for column in frame.columns
            if column.startswith(measured)
        } | {column: "share" for column in frame.columns if column.startswith(("accuracy", "count_share"))}
        frame.attrs["identity_gap"] = self.identity_gap
        return frame

    def __repr__(self) -> str:
        n, count = self.biases.shape
        halves = ""
        if self.centred is not None:
            halves = f"; centred {self.centred.loss:.4g} = {self.centred.bias:.4g} − {self.centred.diversity:.4g}"
        return (
            f"Decomposition({n} examples × {count} members, logits²: "
            f"loss {self.loss:.4g} = bias {self.bias:.4g} − diversity {self.diversity:.4g}{halves}; gap {self.gap:.0e})"
        )


def decompose(
    ensemble: Ensemble | Float[np.ndarray, "example member option"],
    labels: Sequence[int] | Sequence[str] | np.ndarray | None = None,
    target: Float[np.ndarray, "example option"] | None = None,
    loss: Literal["squared"] = "squared",
) -> Decomposition:
    """Bias, diversity and their halves (Theorem 1), exactly.

    ensemble
        `Contributions`, or a plain array `[example, member, option]` of logits.
    labels
        The gold option of each example, as its index or its text: the target is then one-hot.
    target
        Any other target, `[example, option]` in logits (a teacher). Give exactly one of the two.
    loss
        "squared".

    Raises InputError for labels out of range or of the wrong number, a target of the wrong shape,
    fewer than two options, no members, and numbers that are not finite.

    >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0])
    >>> d.loss, d.bias, d.diversity
    (0.0, 0.5, 0.5)
    >>> d.centred.diversity, d.shift.diversity
    (0.25, 0.25)
    """
    if loss != "squared":
        raise InputError(f"loss={loss!r} is unknown: use 'squared'.")
    if isinstance(ensemble, Ensemble):
        u, components = ensemble.values, ensemble.components
        options, gap = ensemble.options, ensemble.identity_gap
    else:
        u = _array(ensemble, "the ensemble")
        components, options, gap = members(u.shape[1] if u.ndim == 3 else 0), (), None
    _check_members(u)
    gold = None if labels is None else gold_options(labels, u.shape, options)
    t = _target(gold, target, u.shape)

    means, target_means = u.mean(2), t.mean(1)
    shift = _squared(means[:, :, None], target_means[:, None])
    centred = _squared(u - means[:, :, None], t - target_means[:, None])
    correct = ensemble_correct = None
    if gold is not None:
        first = u == u.max(2, keepdims=True)
        correct = np.take_along_axis(first, gold[:, None, None], 2)[:, :, 0] / first.sum(2)
        ensemble_correct = u.sum(1).argmax(1) == gold
    totals = {name: shift[name] + centred[name] for name in shift}

    def build(terms: dict[str, np.ndarray], **halves: Decomposition | None) -> Decomposition:
        return Decomposition(
            components=components,
            losses=terms["losses"],
            biases=terms["biases"],
            diversities=terms["diversities"],
            silences=terms["silences"],
            coherences=_coherence(terms["power_of_sum"], terms["sum_of_power"]),
            correct=correct,
            ensemble_correct=ensemble_correct,
            identity_gap=gap,
            centred=halves.get("centred"),
            shift=halves.get("shift"),
        )

    return build(totals, centred=build(centred), shift=build(shift))


def _squared(
    u: Float[np.ndarray, "example member option"], t: Float[np.ndarray, "example option"]
) -> dict[str, np.ndarray]:
    """Theorem 1's three terms, the silent member's error, and the two powers of the coherence, per example."""
    mean = u.mean(1)
    return {
        "losses": ((t - mean) ** 2).mean(1),
        "biases": ((t[:, None] - u) ** 2).mean(2),
        "diversities": ((mean[:, None] - u) ** 2).mean(2),
        "silences": (t**2).mean(1),
        "power_of_sum": (u.sum(1) ** 2).mean(1),
        "sum_of_power": (u**2).mean(2).sum(1),
    }


def _coherence(power_of_sum: np.ndarray, sum_of_power: np.ndarray) -> np.ndarray:
    """Members that are all zero have no direction: NaN."""
    return np.divide(power_of_sum, sum_of_power, out=np.full_like(sum_of_power, np.nan), where=sum_of_power > 0)


def gold_options(
    labels: Sequence[int] | Sequence[str] | np.ndarray, shape: tuple[int, ...], options: tuple
) -> Int[np.ndarray, " example"]:
    """Labels as option indices. Raises InputError for what names no option."""
    given = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"labels={labels!r} must be a list with one gold option for each example.")
    given = list(given)
    n, _, k = shape
    if len(given) != n:
        raise InputError(f"there are {len(given)} labels for {n} examples: give one for each.")
    gold = np.empty(n, dtype=np.int64)
    for row, label in enumerate(given):
        texts = options[row] if options and not isinstance(options[0], str) else options
        if isinstance(label, str):
            if list(texts).count(label) != 1:
                how = "none" if label not in texts else "more than one"
                raise InputError(
                    f"label {label!r} of example {row} is {how} of its options {list(texts)}: use indices."
                )
            gold[row] = list(texts).index(label)
        elif isinstance(label, int | np.integer) and not isinstance(label, bool) and 0 <= label < k:
            gold[row] = label
        else:
            raise InputError(f"label {label!r} of example {row} must be an option's index, 0 to {k - 1}, or its text.")
    return gold


def _target(gold: np.ndarray | None, target: Any, shape: tuple[int, ...]) -> Float[np.ndarray, "example option"]:
    n, _, k = shape
    if (gold is None) == (target is None):
        raise InputError("give exactly one of labels (a gold option for each example) and target (logits).")
    if gold is not None:
        return np.eye(k)[gold]
    t = _array(target, "target")
    if t.shape != (n, k):
        raise InputError(f"target has the shape {t.shape}, but must be [example, option] = {(n, k)}.")
    if not np.isfinite(t).all():
        raise InputError("target holds numbers that are not finite.")
    return t


def _array(x: Any, name: str) -> np.ndarray:
    """Arrays, tensors and lists as float64. Raises InputError for what is none of them."""
    if hasattr(x, "detach"):  # a tensor of any precision, on any device
        x = x.detach().cpu().double().numpy()
    try:
        array = np.asarray(x)
        if np.iscomplexobj(array):
            raise InputError(f"{name} holds complex numbers: logits are real.")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} is no array of numbers ({error}): give [example, member, option].") from error


def _check_members(u: np.ndarray) -> None:
    if u.ndim != 3:
        raise InputError(f"an array must be [example, member, option], but this one has the shape {u.shape}.")
    n, count, k = u.shape
    if n == 0 or count == 0:
        raise InputError(f"there is nothing to decompose: {n} examples and {count} members.")
    if k < 2:
        raise InputError("there is one option only, so every prediction is right: give at least two options.")
    if not np.isfinite(u).all():
        raise InputError("the members hold numbers that are not finite (NaN or infinity): mend them first.")


def _columns(terms: dict[str, np.ndarray], suffix: str) -> dict[str, np.ndarray]:
    """Mean over examples with its interval, for every term."""
    columns: dict[str, np.ndarray] = {}
    for term in TERMS:
        low, high = bootstrap(terms[term])
        columns |= {term + suffix: terms[term].mean(0), f"{term}{suffix}_low": low, f"{term}{suffix}_high": high}
    return columns


def _share(part: np.ndarray, whole: float) -> np.ndarray:
    return part / whole if whole > 0 else np.full_like(part, np.nan)
