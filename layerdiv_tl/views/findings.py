"""What a study or its depth analyses show, in sentences: each has its number and what that is to be compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..depth.agreement import Agreement
from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.pruning import INFLUENCE, OWN, RANDOM, DropPlan
from ..depth.residual_norms import ResidualNorms
from ..errors import InputError
from ..replication.layer_sharing import DEPTH, PARAMETERS
from ..studies.depth_study import DepthStudy
from ..studies.study import AVERAGE, QUANTITIES, Study
from . import style
from .tables import PROSE, interval

if TYPE_CHECKING:
    import pandas as pd


def study_findings(study: Study, unit: Unit = "sublayer") -> Iterator[str]:
    """Accuracy, Eq. 14 against the uniform prediction, the shift, cross-entropy, size, layer sharing, exactness."""
    summary, table = study.summary(unit), study.table(unit)
    above = int((summary["accuracy_low"] > summary["chance"]).sum())
    words = summary["bag_of_words"].dropna()
    counted = f" and word counts {words.mean():.1%}" if len(words) == len(summary) else ""
    yield (
        f"Accuracy is {summary['accuracy'].mean():.1%} on average, where guessing gives {summary['chance'].mean():.1%}"
        f"{counted}; in {above} of {len(summary)} cells its interval lies above guessing."
    )
    same = summary[[max(shares.values()) > 0.95 for shares in summary["answers"]]]
    if len(same):
        where = ", ".join(f"{row['model']} on {row['task']}" for _, row in same.head(4).iterrows())
        more = f" and {len(same) - 4} more" if len(same) > 4 else ""
        yield f"Nearly all rows get one and the same answer in {where}{more}: such an accuracy is the answer's share."
    cells = {name: table[name].drop(columns=AVERAGE).stack().dropna() for name in QUANTITIES}
    off = (cells["MSE"] - cells["uniform"]).abs()
    near = (off < cells["uniform"] / 10).all()
    why = ": softmax of a mean of |L| small logits is nearly uniform whatever the model does" if near else ""
    yield (
        f"The paper's MSE (Eq. 14) lies {off.median():.2g} hundredths (median; at most {off.max():.2g}) from that of a "
        f"uniform prediction, which is {cells['uniform'].median():.3g}{why}."
    )
    shift = 1 - cells["diversity centered"] / cells["diversity"]
    yield (
        f"Of the raw diversity {shift.median():.1%} (median; {shift.min():.1%} to {shift.max():.1%}) is a shift common "
        "to all options, which softmax cannot see."
    )
    nats, uniform = summary["cross_entropy"], -np.log(summary["chance"])
    yield (
        f"The models' own answers lose {nats.mean():.3g} nats on average, a uniform answer {uniform.mean():.3g}; "
        f"{(nats < uniform).sum()} of {len(summary)} cells are better than uniform."
    )
    models = study.models(unit)
    if len(models) > 1 and models["members"].nunique() > 1:
        raw, fair = (table[name][AVERAGE].dropna() for name in ("diversity centered", "diversity_logit centered"))
        if len(raw) > 1:
            also = f"still in {fair.idxmax()}" if raw.idxmax() == fair.idxmax() else f"in {fair.idxmax()}"
            yield f"Centered diversity is largest in {raw.idxmax()}; corrected for the number of components, {also}."
    if (pairs := layer_sharing_pairs(study, unit)) is not None:
        yield from layer_sharing_findings(pairs)
    yield (
        f"The components sum to the logits: the largest gap of any row is {summary['absolute_gap'].max():.0e} logits, "
        f"{summary['identity_gap'].max():.0e} of Σ|u|."
    )


def layer_sharing_pairs(study: Study, unit: Unit) -> pd.DataFrame | None:
    """The frame of `Study.layer_sharing`; None where there is no pair."""
    try:
        return study.layer_sharing(unit)
    except InputError:
        return None


def layer_sharing_findings(pairs: pd.DataFrame) -> Iterator[str]:
    """A sentence for the pairs with the same number of parameters, and one for those of the same depth.

    Of seeds where there are pairs over seeds, else of all pairs.
    """
    over_seeds = pairs[pairs["interval_over"] == "seeds"]
    for matched in (PARAMETERS, DEPTH):
        some = over_seeds if (over_seeds["matched_on"] == matched).any() else pairs
        rows = some[some["matched_on"] == matched].to_dict("records")
        if not rows:
            continue
        points = np.mean([row["accuracy"] - row["accuracy_baseline"] for row in rows])
        after = f", {_ratio(rows, 'diversity_logit_centered')} after the size correction" * (matched == PARAMETERS)
        many = "as many parameters" if matched == PARAMETERS else "as many layers, each used once"
        who, whose = "Models that reuse layers have", f"models with {many}"
        if len(rows) == 1:
            who, whose = f"{rows[0]['model']}, which reuses layers, has", f"{rows[0]['baseline']}, with {many}"
        yield (
            f"{who} {_ratio(rows, 'diversity_centered')} the centered diversity of {whose}{after}, and "
            f"{abs(points):.1f} points {'less' if points < 0 else 'more'} accuracy."
        )


def _ratio(rows: list[dict[Any, Any]], name: str) -> str:
    """One pair's ratio with its interval; of several pairs the geometric mean and the range of their ratios."""
    ratios = [row[f"{name}_ratio"] for row in rows]
    if len(rows) > 1:
        clear = sum(row[f"{name}_ratio_low"] > 1 or row[f"{name}_ratio_high"] < 1 for row in rows)
        ends = f"{len(rows)} pairs: {style.number(min(ratios))} to {style.number(max(ratios))}, {clear} clearly not 1"
        return f"{style.number(float(np.exp(np.mean(np.log(ratios)))))} times ({ends})"
    ends = interval(rows[0][f"{name}_ratio_low"], rows[0][f"{name}_ratio_high"])
    return f"{style.number(ratios[0])}{f' {ends}' if ends else ''} times"


def depth_findings(depth: DepthStudy) -> Iterator[str]:
    """A sentence on each model's residual norms, agreement, plan, depth score and layer maps, where it has them."""
    for kind, describe in _SENTENCES.items():
        for model, result in depth.of(kind):
            if sentence := describe(model, result):
                yield sentence


def _residual_norms(model: str, norms: ResidualNorms) -> str | None:
    try:
        change = norms.change_point()
    except InputError:
        return None
    if change.p >= 0.05:
        return f"{model}: there is no clear layer from which on layers add less (p {style.number(change.p)})."
    return (
        f"{model}: layers add less from layer {change.layer} {_ends(change.low, change.high, '.0f')} on: "
        f"{style.number(change.before)} of the stream before, {style.number(change.after)} after."
    )


def _agreement(model: str, agreement: Agreement) -> str | None:
    table = agreement.correlations().query("effect == 'loss' and kind == 'all'").set_index("measure")
    if not table["correlation"].notna().any():
        return None
    best = str(table["correlation"].idxmax())
    first = table.loc[best]
    clear = first["spread_low"] > 0 and first["low_components"] > 0
    parts = [f"{PROSE['measures'][best]} (ρ {_rho(first)})"]
    for name in ("block_influence", "diversity", "diversity_centered"):
        row = table.loc[name]
        if name == best or not np.isfinite(row["correlation"]):
            continue
        than = "better" if row["better_low"] > 0 else "worse" if row["better_high"] < 0 else "neither better nor worse"
        versus = "" if name == "block_influence" else f", {than} than block influence"
        parts.append(f"{PROSE['measures'][name]} has {_rho(row)}{versus}")
    how = "best by" if clear else "by no measure clearly, at most by"
    return f"{model} on {agreement.rows}: what removing a sublayer costs is ranked {how} {'; '.join(parts)}."


def _drop_plan(model: str, plan: DropPlan) -> str:
    budget = len(plan.dropped)
    rows = {(row["plan"], row["dropped"]): row for row in plan.frame().to_dict("records")}
    growth = {name: rows[name, budget]["loss_growth"] for name in (OWN, INFLUENCE)}
    random = f", with {RANDOM} ones by {rows[RANDOM, budget]['loss_growth']:.2f}" if plan.random_dropped else ""
    return (
        f"{model} on {plan.provenance['rows']['where']}: without {budget} of {len(plan.candidates)} "
        f"({plan.part}, chosen by {plan.score}) its loss grows by {growth[OWN]:.2f} nats an answer; with a "
        f"plan by block influence by {growth[INFLUENCE]:.2f}{random}. Accuracy goes from "
        f"{rows['none', 0]['accuracy']:.0%} to {rows[OWN, budget]['accuracy']:.0%}."
    )


def _depth_score(model: str, score: DepthScore) -> str | None:
    slope = score.slope
    if slope.reason:
        return None
    return (
        f"{model}: each further hop moves the depth score by {slope.value:+.2f} layers "
        f"{_ends(slope.low, slope.high, '+.2f')} of {len(score.components)}; {(score.rank == 1).mean():.0%} of the "
        "answers are its first choice."
    )


def _layer_maps(model: str, maps: LayerMaps) -> str:
    row = maps.depth_alignment().iloc[0]
    return (
        f"{maps.source} to {model}: the best target layer is {row['distance']:.2f} of the depth away from the same "
        f"relative depth, by chance {row['chance']:.2f}."
    )


_SENTENCES: dict[type[Any], Callable[[str, Any], str | None]] = {
    ResidualNorms: _residual_norms,
    Agreement: _agreement,
    DropPlan: _drop_plan,
    DepthScore: _depth_score,
    LayerMaps: _layer_maps,
}


def _rho(row: Any) -> str:
    """A correlation, and what it is without the noise of few rows."""
    corrected = f"; {row['corrected']:.2f} without the noise of few rows" if np.isfinite(row["corrected"]) else ""
    return f"{row['correlation']:.2f}{corrected}"


def _ends(low: Any, high: Any, form: str) -> str:
    return interval(low, high, form, none="(no interval)")
