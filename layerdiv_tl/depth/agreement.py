"""Compare how direct measures and ablation rank sublayers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import rankdata, spearmanr

from .._checks import choice, whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, Estimate, estimate, estimates_frame, percentile_interval
from ..model.load import as_model
from ..results import Figure, Result
from .quantities import (
    LOWER_IS_BETTER,
    UNITS,
    Direct,
    Effect,
    ablatable_components,
    ablation_effects,
    direct_measures,
    read_rows,
    score_ablations,
)
from .tokens import bootstrap_weights

# Columns of `correlations`, which may have no rows.
_COLUMNS = ["measure", "effect", "kind", "correlation", "low_components", "high_components", "components"]


@dataclass(frozen=True, eq=False, repr=False)
class Agreement(Result):
    """Direct measures of every sublayer (or layer), and the effects of ablating it.

    Attributes:
        sums, counts: Every quantity is a ratio of sums over rows, Σ sums / Σ counts.
        quantities: Direct measures, then effects, see below.
        components: The measured components, in stream order.
        loss, accuracy: The unablated model's, in nats per prediction and as a share of correct predictions.
        rows: The number of rows, and their source.

    Direct measures come from one clean pass. `diversity` and `diversity_centered` are the component's share of the sum
    of mean_k(ū − u)² over all members, raw and centered; a layer's is the sum over its sublayers. `net` is its additive
    share of the cross-entropy, E_p[u] − u(t), in nats, negative where it helps. `relevancy` is a lower bound of I(u; Y)
    in bits, from a linear classifier on held-out rows, for tasks with at least 8 rows of every class. `relative_norm`
    and `block_influence` are ‖output‖ / ‖stream‖ and 1 − cos of the stream before and after (`ResidualNorms`).

    Effects are those of zero-ablating the component. `loss` is the growth of the cross-entropy in nats per prediction;
    `accuracy` is the share of predictions that become wrong minus the share that become correct.
    """

    components: tuple[Component, ...]
    quantities: tuple[str, ...]
    sums: Float[np.ndarray, "row quantity component"]
    counts: Float[np.ndarray, "row quantity"]
    loss: float
    accuracy: float
    model: str
    rows: str
    seed: int

    def __repr__(self) -> str:
        loss = self._values()[self.quantities.index("loss")]
        worst = f"{self.components[loss.argmax()].label} costs most, {loss.max():.3g} nats"
        rho = {
            name: float(spearmanr(values, loss)[0])
            for name, values in zip(self.quantities, self._values(), strict=True)
            if name not in get_args(Effect) and np.isfinite(values).all() and len(set(values)) > 1
        }
        best = max(rho, key=lambda name: rho[name], default="")
        ranked = f"; {best} ranks them best, ρ {rho[best]:.2f}" if best else ""
        return f"Agreement({self.model} on {self.rows}: of {len(self.components)} components {worst}{ranked})"

    figures: ClassVar = {
        "scatter": "pruning.agreement_scatter",
        "ranks": "pruning.agreement_ranks",
        "correlations": "pruning.agreement_correlations",
    }

    def plot(self, kind: Literal["scatter", "ranks", "correlations"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per component: every quantity with its 95 % interval over rows, and its rank (1 is most needed).

        `_rank_low` and `_rank_high` bound the middle 95 % of its ranks over resampled rows. Fewer than 8 rows have no
        intervals, except that of the value of `accuracy`, a difference of two shares.
        """
        columns: dict[str, Any] = component_columns(self.components)
        values = self._values()
        ranks, resampled = self._ranks(values), self._ranks(self._resampled)
        for i, name in enumerate(self.quantities):
            sums, counts = self.sums[:, i], self.counts[:, i, None]
            found = estimate(sums, "difference" if name == "accuracy" else "mean", counts=counts)
            spread = resampled[:, i] if len(self.sums) >= LEAST else np.full_like(resampled[:, i], np.nan)
            columns |= {name: found, f"{name}_rank": Estimate(ranks[i], *percentile_interval(spread), len(self.sums))}
        return estimates_frame(columns, {name: UNITS[name] for name in self.quantities})

    def correlations(self) -> pd.DataFrame:
        """Compute Spearman's correlation of each direct measure with each effect, over components of one kind or all.

        `correlation` is positive where the measure ranks components as ablation does. Few rows blur both ranks and pull
        it towards 0, so no interval over rows is given. `low_components` and `high_components` bound its middle 95 %
        over resampled components, for these rows. `kind` "all" pools attention and MLPs. Kinds of fewer than three
        components have no rows.
        """
        kinds = np.array([c.kind for c in self.components])
        groups = {"all": np.arange(len(kinds))}
        if len(set(kinds)) > 1:
            groups |= {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(kinds.tolist())}
        index = {name: number for number, name in enumerate(self.quantities)}
        records = []
        for kind, group in groups.items():
            if len(group) < 3:
                continue
            chosen = np.random.default_rng([self.seed, 1]).integers(len(group), size=(1000, len(group)))
            own = self._values()[:, group]
            ranks = [self._ranks(own), self._ranks(own[:, chosen].swapaxes(0, 1))]
            for effect, name in product(get_args(Effect), (name for name in get_args(Direct) if name in index)):
                rho, drawn = (_pearson(r[..., index[name], :], r[..., index[effect], :]) for r in ranks)
                records.append((name, effect, kind, float(rho), *map(float, percentile_interval(drawn)), len(group)))
        columns = {column: [record[i] for record in records] for i, column in enumerate(_COLUMNS)}
        return estimates_frame(columns, {"correlation": "Spearman's ρ"})

    def _ranks(
        self, values: Float[np.ndarray, "*draw quantity component"]
    ) -> Float[np.ndarray, "*draw quantity component"]:
        """Rank components by a quantity: 1 is the most needed, and ties share their mean rank."""
        signs = np.array([1 if name in LOWER_IS_BETTER else -1 for name in self.quantities])[:, None]
        ranks = rankdata(values * signs, axis=-1)
        return np.where(np.isfinite(values).all(-1, keepdims=True), ranks, np.nan)

    def _weighted(self, weights: Float[np.ndarray, "draw row"]) -> Float[np.ndarray, "draw quantity component"]:
        """Σ w · sums / Σ w · counts."""
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = np.einsum("dr,rqc->dqc", weights, self.sums, optimize=True)
            return sums / (weights @ self.counts)[:, :, None]

    def _values(self) -> Float[np.ndarray, "quantity component"]:
        return self._weighted(np.ones((1, len(self.sums))))[0]

    @cached_property
    def _resampled(self) -> Float[np.ndarray, "draw quantity component"]:
        # Whole weights, not shares: sums of correct predictions then stay exact, and ties stay ties.
        count = len(self.sums)
        return self._weighted(np.rint(count * bootstrap_weights(count, seed=self.seed)))


def agreement(
    model: Any,
    rows: Any,
    part: Literal["sublayer", "layer"] = "sublayer",
    *,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> Agreement:
    """Measure every sublayer directly, zero-ablate each in turn, and compare.

    Args:
        model, batch_tokens: As in `residual_norms`.
        rows: A `Task`, whose gold options are predicted, or texts, in which every next token is.
        part: "sublayer": attention and MLPs, ranked together; "layer": whole layers, in half the time.
        seed: Seed of the resamples.

    Makes 1 + C/2 passes over every row for C components, and a few for the measures: some 6 CPU minutes for the 80 rows
    of a sample task with the default model. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> agreement = ld.depth.agreement("zoo/d2", [[i, (3 * i) % 16, 5, i // 2, 7] for i in range(16)])
    >>> agreement.frame().component.tolist()
    ['L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp']
    >>> agreement.correlations().query("kind == 'all'").measure.unique().tolist()
    ['diversity', 'diversity_centered', 'net', 'relative_norm', 'block_influence']
    """
    choice("part", part, ("sublayer", "layer"))
    whole_number("seed", seed, 0)
    model = as_model(model)
    predictions, source = read_rows(model, rows)
    components = ablatable_components(model, predictions.ids[0], part)
    measures = direct_measures(model, predictions, components, batch_tokens=batch_tokens)
    scores = score_ablations(model, predictions, [[c] for c in components], batch_tokens)
    quantities = measures | ablation_effects(predictions, *scores)
    sums, counts = (np.stack(arrays, 1) for arrays in zip(*quantities.values(), strict=True))
    loss, accuracy = (float(x[:, 0].sum() / len(predictions.row)) for x in scores)
    source = f"{len(predictions)} {'' if predictions.options is None else 'rows of '}{source}"
    return Agreement(components, tuple(quantities), sums, counts, loss, accuracy, model.name, source, seed)


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute Pearson's correlation over the last axis; NaN where one side does not vary."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
