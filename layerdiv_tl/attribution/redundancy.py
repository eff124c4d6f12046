"""How well every component's contribution is predicted by the others', on rows that the prediction has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, component_columns
from ..ensemble.grouping import pairwise_frame
from ..ensemble.intervals import Estimate, estimate_function, estimates_frame
from ..ensemble.losses import ratio
from ..ensemble.validation import EnsembleLike, Labels, as_ensemble, gold_options
from ..errors import InputError
from ..model.load import as_model
from ..results import Result

# The penalties that are tried, relative to the mean square of a row of predictors.
PENALTIES = np.logspace(-6, 2, 17)
_UNITS = {"r2": "share of variance", "r2_permuted": "share of variance", "r2_gain": "share of variance"}
_UNITS |= {"spread": "logits", "cosine": "cosine", "affinity": "share of the subspace"}


@dataclass(frozen=True, eq=False, repr=False)
class Redundancy(Result):
    """How well each component's centered contribution is predicted by the others'; see `redundancy`.

    Attributes:
        components: The components, in stream order.
        variation: float64 `[row, component]`: Σ over options of (contribution − mean over the training rows)², centered
            over options, in logits².
        error: float64 `[row, component]`: the same of contribution − prediction, for held-out rows.
        permuted_error: float64 `[row, component]`: the same where the rows of the others are permuted.
        nearest: `[component]`, the index of the other component with the largest cosine.
        cosine: float64 `[component]`: that cosine, of centered contributions pooled over rows and options.
        affinity: float64 `[component]`: the overlap of the subspaces that a head and its nearest head write to,
            |UᵀV|² / rank, from 0 to 1; NaN where either is no head, None without a model or TransformerLens 4.
        random_affinity: The expected overlap of random subspaces of this rank, rank / d_model.
        within_labels: True if rows were permuted among those with the same label.
        n_options, n_folds: The number of options, and of folds of rows.
        model, task: The names of the model, and of the task if one was given.
    """

    components: tuple[Component, ...]
    variation: Float[np.ndarray, "row component"]
    error: Float[np.ndarray, "row component"]
    permuted_error: Float[np.ndarray, "row component"]
    nearest: Int[np.ndarray, " component"]
    cosine: Float[np.ndarray, " component"]
    affinity: Float[np.ndarray, " component"] | None
    random_affinity: float | None
    within_labels: bool
    n_options: int
    n_folds: int
    model: str
    task: str = ""

    @property
    def r2(self) -> Estimate:
        """1 − Σ error / Σ variation of every component, with its 95 % interval over rows."""
        return self._estimate(_r2, self.error, self.variation)

    def _estimate(self, function: Callable[..., Any], *sums: np.ndarray) -> Estimate:
        """Estimate a function of means over rows; the variance is corrected for training sets that share rows.

        The jackknife takes the rows' errors for independent, but each row trains the predictions of others: its
        variance is multiplied by 1 + K / (K − 1), after Nadeau and Bengio (2003, *Machine Learning* 52).
        """
        found = estimate_function(function, *sums)
        wider = np.sqrt(1 + self.n_folds / (self.n_folds - 1))
        low, high = (found.value + wider * (end - found.value) for end in (found.low, found.high))
        return found._replace(low=low, high=np.minimum(high, 1.0))

    def frame(self) -> pd.DataFrame:
        """One row per component: held-out R², that with permuted rows, their difference, and the nearest component.

        `spread` is the standard deviation of the centered contribution over rows: R² says nothing of how large a
        component is. The interval of `r2_gain` is of the paired difference `r2` − `r2_permuted`.
        """
        columns: dict[str, Any] = component_columns(self.components)
        columns["spread"] = np.sqrt(self.variation.mean(0) / self.n_options)
        columns["r2"] = self.r2
        columns["r2_permuted"] = self._estimate(_r2, self.permuted_error, self.variation)
        columns["r2_gain"] = self._estimate(ratio, self.permuted_error - self.error, self.variation)
        columns |= {"nearest": [self.components[i].label for i in self.nearest], "cosine": self.cosine}
        if self.affinity is not None:
            columns["affinity"] = self.affinity
        about = {"permuted": "within labels" if self.within_labels else "over all rows"}
        return estimates_frame(columns, _UNITS, random_affinity=self.random_affinity, **about)

    figures: ClassVar = {"scatter": "pairwise.redundancy_scatter", "components": "pairwise.redundancy_by_depth"}

    def plot(self, kind: Literal["scatter", "components"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def __repr__(self) -> str:
        r2 = self.r2
        most = int(np.nanargmax(r2.value))
        found = f"the others predict {self.components[most].label} best, held-out R² {r2.value[most]:.2f}"
        found += f" ({r2.low[most]:.2f}, {r2.high[most]:.2f})" if np.isfinite(r2.low[most]) else ""
        about = f"{self.model}: {len(self.components)} components, {len(self.error)} rows in {self.n_folds} folds"
        return f"Redundancy({about}; {found}; median {np.nanmedian(r2.value):.2f})"


def _r2(error: np.ndarray, variation: np.ndarray) -> np.ndarray:
    return 1 - ratio(error, variation)


def redundancy(
    ensemble: EnsembleLike, labels: Labels = None, *, model: Any = None, n_folds: int = 5, seed: int = 0
) -> Redundancy:
    """Measure how well every component's contribution is predicted from those of all others, on held-out rows.

    The prediction is a ridge regression from the centered contributions of the other components to all options, in
    logits and not scaled, to those of the component (Hoerl and Kennard 1970; scikit-learn's `RidgeCV`). Folds of rows
    are held out in turn; the penalty is chosen inside the training rows, by leaving out each in turn. R² is 1 −
    error / variation about the mean of the training rows: 0 is as good as that mean, and below 0 is worse than it.

    Rows that nearly repeat others, such as prompts of one template, are predicted from their copies: R² is too high.
    A large R² does not say that the others take over when the component is ablated: see `ld.effects(...).backups()`.

    Args:
        ensemble: `Contributions` of any unit, or an array `[row, component, option]`, of at least two components and
            two rows per fold; `contributions(..., unit="head").select(kind="head")` for heads among themselves.
        labels: The gold option of each row. Components that follow the right answer predict one another by it alone;
            with labels, `r2_permuted` permutes the others' rows among those of one label: what the label predicts,
            as ridge regression finds it, often less than means by label do. Without, it permutes all rows: about 0.
        model: The model of these contributions, for TransformerLens' `projection_kernel` (4.0 and later) of the
            subspaces that two heads write to: a second view, of weights instead of rows.
        n_folds: The number of folds, at least 2.
        seed: Seed of the folds and of the permutation.

    Takes 5 s for 270 heads and 40 rows. The 95 % interval is for the R² of these predictions on new rows: it holds that
    in 95 to 97 % of samples of linear Gaussian laws (`tests/calibration`). The best linear prediction is often better,
    as few rows cannot find it. Raises InputError for one component, for too few rows, and for contributions that are
    the same in all rows.

    >>> import layerdiv_tl as ld
    >>> planted = ld.zoo.planted("copied")
    >>> c = ld.contributions(planted, planted.prompts * 8, planted.options, unit="head")
    >>> found = ld.redundancy(c.select(label=planted.members("head")))
    >>> found.frame()["r2"].round(2).tolist()
    [1.0, 1.0]
    """
    members, n_folds, seed = as_ensemble(ensemble), whole_number("n_folds", n_folds, 2), whole_number("seed", seed, 0)
    u = members.values - members.values.mean(2, keepdims=True)
    rows, count, options = u.shape
    if rows < 2 * n_folds:
        raise InputError(f"{rows} rows are too few for {n_folds} folds: give at least {2 * n_folds}, or fewer folds.")
    pairs = pairwise_frame(u, members.components, "cosine")  # raises for one component, and for too many
    if np.ptp(u, axis=0).max() <= 1e-12 * max(1.0, np.abs(u).max()):
        raise InputError("every component writes the same in all rows, so there is nothing to predict: vary the rows.")
    gold = np.zeros(rows, dtype=int) if labels is None else gold_options(labels, u.shape, members.options)
    shuffled, rng = np.arange(rows), np.random.default_rng(seed)
    for label in np.unique(gold):
        shuffled[gold == label] = rng.permutation(shuffled[gold == label])
    variation, error = _held_out_errors(u, u, n_folds, seed)
    cosines = _square(pairs, members.components)
    nearest = cosines.argmax(1)
    affinity, chance = (None, None) if model is None else _affinities(model, members.components, nearest)
    return Redundancy(
        components=members.components,
        variation=variation,
        error=error,
        permuted_error=_held_out_errors(u, u[shuffled], n_folds, seed)[1],
        nearest=nearest,
        cosine=cosines[np.arange(count), nearest],
        affinity=affinity,
        random_affinity=chance,
        within_labels=labels is not None,
        n_options=options,
        n_folds=n_folds,
        model=str(getattr(members, "model", "array")),
        task=str(getattr(members, "task", "")),
    )


def _held_out_errors(u: np.ndarray, others: np.ndarray, n_folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (variation, error), `[row, component]`, of u predicted from the other components of `others`."""
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold

    variation, error = np.zeros(u.shape[:2]), np.zeros(u.shape[:2])
    for train, test in KFold(n_folds, shuffle=True, random_state=seed).split(u):
        y, x = u - u[train].mean(0), others - others[train].mean(0)
        variation[test] = (y[test] ** 2).sum(2)
        for i in range(u.shape[1]):
            predictors = np.delete(x, i, axis=1).reshape(len(u), -1)
            scale = (predictors[train] ** 2).sum(1).mean() or 1.0
            fitted = RidgeCV(PENALTIES * scale).fit(predictors[train], y[train, i])
            error[test, i] = ((y[test, i] - fitted.predict(predictors[test])) ** 2).sum(1)
    return variation, error


def _square(pairs: pd.DataFrame, components: tuple[Component, ...]) -> Float[np.ndarray, "component other"]:
    """Arrange the cosines of all pairs; a component that writes nothing is similar to no other (−1)."""
    place = {c.label: i for i, c in enumerate(components)}
    square = np.full((len(components), len(components)), -np.inf)
    one, other = (pairs[side].map(place).to_numpy(int) for side in ("component", "other"))
    square[one, other] = square[other, one] = pairs["cosine_centered"].fillna(-1.0)
    return square


def _affinities(model: Any, components: tuple[Component, ...], nearest: np.ndarray) -> tuple[Any, float | None]:
    """Compute the overlap of the subspaces that every head and its nearest head write to, and that of random ones."""
    model = as_model(model)
    try:
        from transformer_lens.tools.analysis.projection_kernel import orthonormal_subspace, projection_kernel
    except ImportError:  # before version 4
        return None, None
    maps = {s.layer: s.output_map for s in model.architecture.sublayers if s.kind == "attn" and s.output_map}
    if missing := [c.label for c in components if c.kind == "head" and c.layer not in maps]:
        raise InputError(f"model= has no head {missing[0]}: give the model of these contributions, or none.")
    bases: dict[Component, Any] = {}
    for i in {*range(len(components)), *nearest.tolist()}:
        if (c := components[i]).kind == "head":
            weight = maps[c.layer].projection()[0].unflatten(0, (maps[c.layer].count, -1))
            bases[c] = orthonormal_subspace(weight[c.index].float().T)
    affinity = np.full(len(components), np.nan)
    for i, c in enumerate(components):
        if c in bases and (other := components[nearest[i]]) in bases:
            affinity[i] = float(projection_kernel(bases[c], bases[other]).normalized)
    some = next(iter(bases.values()), None)
    return affinity, None if some is None else some.rank / some.ambient_dim
