"""Do the direct measures of a sublayer say what happens when it is removed?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import rankdata

from .._checks import choice, whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, cluster_means, interval, interval_note, paired_interval, resamples
from ..errors import InputError
from ..model.load import load_model
from ..results import Result
from .ablation import ablatable_components, read_rows, scores
from .direct_measures import Direct, measures

Effect = Literal["loss", "accuracy"]
# Measures of which less means more needed.
INVERTED = ("net",)
UNITS: Mapping[str, str] = {
    "diversity": "share of the whole",
    "diversity_centered": "share of the whole",
    "net": "nats",
    "relevancy": "bits",
    "relative_norm": "share of the stream's norm",
    "block_influence": "1 − cosine",
    "loss": "nats",
    "accuracy": "share of answers",
}
# A rank that another sample of rows gives back as well as this counts as stable.
STABLE_CORRELATION = 0.9
# Less reliable ranks are mostly noise, and a correction for it mostly that of the reliability.
RELIABLE = 0.5
# Of `correlations`, which may have no rows.
_COLUMNS = ["measure", "effect", "kind", "correlation", "corrected", "spread_low", "spread_high"]
_COLUMNS += ["low_components", "high_components", "better", "better_low", "better_high", "components"]


@dataclass(frozen=True, eq=False, repr=False)
class Agreement(Result):
    """What every sublayer (or layer) is worth by direct measures, and what happens when it writes nothing.

    Every quantity is a ratio of sums over rows, Σ sums / Σ counts:

    sums, counts
        `[row, quantity, component]` and `[row, quantity]`.
    quantities
        Direct measures, then effects, see below.
    components
        What was measured, in stream order.
    loss, accuracy
        Of the model as it is: nats per answer, share of right answers.
    rows
        What it was asked, in words.

    Direct measures, all from one clean pass:

    diversity, diversity_centered
        The component's share of the diversity of all members, raw and centered: of 1, its part of the sum of
        mean_k(ū − u)² over them. A layer's is the sum of its sublayers'. Sums and counts are in squared logits.
    net
        Its additive share of the cross-entropy, E_p[u] − u(t), in nats: below 0 where it helps (MATHS 3).
    relevancy
        What it alone tells a linear classifier about rows it has not seen, in bits (a lower bound of I(u; Y));
        for tasks with at least 8 rows of every class.
    relative, influence
        ‖write‖ / ‖stream‖, and 1 − cos of the stream before and behind (`Sizes`).

    Effects, from passes in which it writes nothing:

    loss
        By how many nats per answer the cross-entropy grows.
    accuracy
        Which share of the right answers is lost, less those that are gained.
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

    def frame(self) -> pd.DataFrame:
        """One row per component: every quantity with its 95 % interval over rows, and its rank (1 is most needed).

        `_rank_low`, `_rank_high` are the middle 95 % of its ranks over resampled rows. Fewer than 8 rows have neither,
        but for `accuracy`, a difference of two shares.
        """
        columns: dict[str, Any] = component_columns(self.components)
        values, drawn = self._values(), self._drawn
        for number, name in enumerate(self.quantities):
            sums, counts = self.sums[:, number], self.counts[:, number, None]
            ends = paired_interval(sums, counts) if name == "accuracy" else cluster_means(sums, counts)[1:]
            columns |= {name: values[number], f"{name}_low": ends[0], f"{name}_high": ends[1]}
            ranks, at = _ranks(name, drawn[:, number]), _ranks(name, values[number])
            low, high = interval(ranks if len(self.sums) >= LEAST else np.full_like(ranks, np.nan))
            columns |= {f"{name}_rank": at, f"{name}_rank_low": low, f"{name}_rank_high": high}
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {name: UNITS[name] for name in self.quantities}
        frame.attrs["intervals"] = interval_note(len(self.sums))
        return frame

    def correlations(self) -> pd.DataFrame:
        """Does a direct measure rank components as their removal does? One row per measure, effect and kind.

        `correlation` is Spearman's over components, positive where the measure tells what is needed.

        Few rows pull it towards 0, for they blur both ranks. `corrected` is what it would be without that: divided by
        the root of the product of both reliabilities (Spearman 1904), which two halves of the rows give by the
        Spearman-Brown formula; NaN where one of them is below 0.5 or there are fewer than four rows.
        `spread_low`, `spread_high` are the middle 95 % over resampled rows. They are no interval of the
        correlation that more rows would give: resampling blurs the ranks a second time, so that they lie too low,
        and the estimate at their upper end. They hold the value of 512 rows in 28-42 % of samples of 16 rows, 36-56 %
        of 32, 45-65 % of 64 and 57-87 % of 128 (zoo/d12, two tasks).

        `low_components`, `high_components` resample components. `better` is by how much the correlation exceeds that
        of `block_influence`, with `better_low`, `better_high` over resampled rows and components at once, which have the
        same fault. `kind` "all" pools attention and MLPs. Kinds of fewer than three components, whose ranks
        always agree or not, have no rows.
        """
        values, drawn = self._values(), self._drawn
        kinds = [c.kind for c in self.components]
        groups = {"all": np.arange(len(kinds))}
        if len(set(kinds)) > 1:
            groups |= {kind: np.flatnonzero([k == kind for k in kinds]) for kind in dict.fromkeys(kinds)}
        place = {name: number for number, name in enumerate(self.quantities)}
        records = []
        for kind, here in groups.items():
            if len(here) < 3:
                continue
            reliable = self._reliability(here)
            again = np.random.default_rng([self.seed, 1]).integers(len(here), size=(len(drawn), len(here)))
            rows = np.arange(len(drawn))[:, None]
            for effect in get_args(Effect):
                held = _ranks(effect, values[place[effect], here]), _ranks(effect, drawn[:, place[effect]][:, here])
                fresh = _ranks(effect, values[place[effect], here][again])
                both = _ranks(effect, drawn[:, place[effect]][:, here][rows, again])
                found: dict[str, tuple[float, np.ndarray, np.ndarray, np.ndarray]] = {}
                for name in get_args(Direct):
                    if name not in place:
                        continue
                    own, other = values[place[name], here], drawn[:, place[name]][:, here]
                    found[name] = (
                        float(_pearson(_ranks(name, own), held[0])),
                        _pearson(_ranks(name, other), held[1]),
                        _pearson(_ranks(name, own[again]), fresh),
                        _pearson(_ranks(name, other[rows, again]), both),
                    )
                for name, (r, over_rows, over_components, over_both) in found.items():
                    low, high = interval(over_rows)
                    first, last = interval(over_components)
                    less, more = interval(over_both - found["block_influence"][3])
                    records.append(
                        {
                            "measure": name,
                            "effect": effect,
                            "kind": kind,
                            "correlation": r,
                            "corrected": _corrected(r, reliable[place[name]], reliable[place[effect]]),
                            "spread_low": float(low),
                            "spread_high": float(high),
                            "low_components": float(first),
                            "high_components": float(last),
                            "better": r - found["block_influence"][0],
                            "better_low": float(less) if name != "block_influence" else np.nan,
                            "better_high": float(more) if name != "block_influence" else np.nan,
                            "components": len(here),
                        }
                    )
        frame = pd.DataFrame(records, columns=_COLUMNS)
        frame.attrs["units"] = {"correlation": "Spearman's ρ", "better": "Spearman's ρ"}
        return frame

    def _reliability(self, here: Int[np.ndarray, " some"], splits: int = 100) -> Float[np.ndarray, " quantity"]:
        """How alike the ranks of so many other rows would be, from drawn halves; NaN for fewer than four rows."""
        count = len(self.sums)
        if count < 4:
            return np.full(len(self.quantities), np.nan)
        random = np.random.default_rng([self.seed, 3])
        order = np.argsort(random.random((splits, count)), 1)
        weights = [(order < count // 2).astype(float), (order >= count - count // 2).astype(float)]
        found = np.full(len(self.quantities), np.nan)
        halves = [self._of(w)[:, :, here] for w in weights]
        for i, name in enumerate(self.quantities):
            alike = _pearson(*(_ranks(name, half[:, i]) for half in halves))
            if np.isfinite(alike).mean() >= 0.5:
                # Two halves tell of half as many rows.
                r = float(alike[np.isfinite(alike)].mean())
                found[i] = 2 * r / (1 + r) if r > 0 else 0.0
        return found

    def stability(self, splits: int = 100) -> pd.DataFrame:
        """How alike are the ranks that two samples of rows give? One row per quantity and size of sample.

        `correlation` is Spearman's between the ranks from two disjoint samples of so many rows, its mean over
        `splits` drawn pairs, with the middle 95 % of them. `rows_needed` is how many rows would bring it to 0.9 by
        the Spearman-Brown formula, from the largest size; infinite where it is not above 0. All are NaN where in
        most pairs no two components differ.

        Raises InputError for fewer than four rows, and for `splits` that is no whole number.
        """
        whole_number("splits", splits, 1, 100_000)  # each is a row of weights over all examples
        count = len(self.sums)
        if count < 4:
            raise InputError(f"ranks of two halves need at least 4 rows, and there are {count}: measure more of them.")
        sizes = sorted({max(2, count // part) for part in (16, 8, 4, 2)})
        random = np.random.default_rng([self.seed, 2])
        orders = np.stack([random.permutation(count) for _ in range(splits)])
        found: dict[int, np.ndarray] = {}
        for size in sizes:
            halves = []
            for start in (0, size):
                weights = np.zeros((splits, count))
                np.put_along_axis(weights, orders[:, start : start + size], 1.0, 1)
                halves.append(self._of(weights))
            ranks = [
                np.stack([_ranks(name, half[:, i]) for i, name in enumerate(self.quantities)], 1) for half in halves
            ]
            found[size] = _pearson(*ranks)
        records = []
        for number, name in enumerate(self.quantities):
            drawn = {size: found[size][:, number] for size in sizes}
            # Pairs in which nearly all ranks are ties are left out; where most are, what is left tells of few.
            alike = {
                size: x[np.isfinite(x)].mean() if np.isfinite(x).mean() >= 0.5 else np.nan for size, x in drawn.items()
            }
            needed = _rows_needed(alike[sizes[-1]], sizes[-1])
            for size in sizes:
                low, high = interval(drawn[size]) if np.isfinite(alike[size]) else (np.nan, np.nan)
                record = {"quantity": name, "rows": size, "correlation": alike[size]}
                records.append(record | {"low": float(low), "high": float(high), "rows_needed": needed})
        frame = pd.DataFrame(records)
        frame.attrs["units"] = {"correlation": "Spearman's ρ", "rows_needed": "rows"}
        return frame

    def _of(self, weights: Float[np.ndarray, "draw row"]) -> Float[np.ndarray, "draw quantity component"]:
        with np.errstate(invalid="ignore", divide="ignore"):
            top = np.einsum("dr,rqc->dqc", weights, self.sums, optimize=True)
            return top / (weights @ self.counts)[:, :, None]

    def _values(self) -> Float[np.ndarray, "quantity component"]:
        return self._of(np.ones((1, len(self.sums))))[0]

    @cached_property
    def _drawn(self) -> Float[np.ndarray, "draw quantity component"]:
        # Whole weights, not shares: sums of right answers then stay exact, and ties stay ties.
        count = len(self.sums)
        return self._of(np.rint(count * resamples(count, seed=self.seed)))


def agreement(
    model: Any,
    rows: Any,
    part: Literal["sublayer", "layer"] = "sublayer",
    *,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> Agreement:
    """Measure every sublayer directly, remove each in turn, and compare.

    model
        A `Model`, or anything `load_model` takes.
    rows
        A `Task`, whose options are the answers; or texts, whose every next token is.
    part
        "sublayer": attention and MLPs, ranked together; "layer": whole layers.
    seed
        Of resamples.
    batch_tokens
        The most padded tokens in one forward pass.

    Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.agreement(tiny, [[i, (3 * i) % 16, 5, i // 2, 7] for i in range(16)])
    >>> found.frame().component.tolist()
    ['L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp', 'L2.attn', 'L2.mlp']
    >>> found.correlations().query("kind == 'all'").measure.unique().tolist()
    ['diversity', 'diversity_centered', 'net', 'relative_norm', 'block_influence']
    """
    choice("part", part, ("sublayer", "layer"))
    whole_number("seed", seed, 0)
    model = load_model(model)
    asked = read_rows(model, rows)
    names = ablatable_components(model, asked.ids[0], part)
    direct = measures(model, asked, names, batch_tokens=batch_tokens)
    told = scores(model, asked, [[c] for c in names], batch_tokens)
    grown = {"loss": told.loss[:, 1:] - told.loss[:, :1], "accuracy": told.correct[:, :1] - told.correct[:, 1:]}
    found = direct | {name: (sums, told.count) for name, sums in grown.items()}
    total = told.count.sum()
    return Agreement(
        components=names,
        quantities=tuple(found),
        sums=np.stack([sums for sums, _ in found.values()], 1),
        counts=np.stack([counts for _, counts in found.values()], 1),
        loss=float(told.loss[:, 0].sum() / total),
        accuracy=float(told.correct[:, 0].sum() / total),
        model=model.name,
        rows=f"{len(asked)} rows of {asked.where}" if asked.options is not None else f"{len(asked)} texts",
        seed=seed,
    )


def _corrected(r: float, *reliability: float) -> float:
    """A correlation without the noise of both sides; NaN where a side is mostly noise."""
    if not np.isfinite(r) or not min(reliability) >= RELIABLE:
        return np.nan
    return float(np.clip(r / np.sqrt(np.prod(reliability)), -1, 1))


def _rows_needed(alike: float, rows: int) -> float:
    """Spearman-Brown: how many rows make a correlation from so many rows STABLE_CORRELATION."""
    if not np.isfinite(alike):
        return np.nan
    if alike <= 0:
        return np.inf
    return float(np.ceil(max(1.0, rows * STABLE_CORRELATION / (1 - STABLE_CORRELATION) * (1 - alike) / alike)))


def _ranks(name: str, values: Float[np.ndarray, "*draw component"]) -> Float[np.ndarray, "*draw component"]:
    """Rank 1 is what is most needed by this measure; ties share their mean rank."""
    ranks = rankdata(values if name in INVERTED else -values, axis=-1)
    return np.where(np.isfinite(values).all(-1, keepdims=True), ranks, np.nan)


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Over the last axis; NaN where one does not vary."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
