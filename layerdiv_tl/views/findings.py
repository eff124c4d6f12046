"""Findings of a study or its depth analyses: sentences, each with its number and a value to compare it with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..components import Unit
from ..depth.agreement import Agreement
from ..depth.depth_score import DepthScore
from ..depth.effect_results import Effects
from ..depth.layer_maps import LayerMaps
from ..depth.pruning_results import INFLUENCE, OWN, RANDOM, DropPlan
from ..depth.residual_norms import ResidualNorms
from ..errors import InputError
from ..replication.layer_sharing import DEPTH, PARAMETERS
from ..studies.depth_study import DepthStudy
from ..studies.study import Study
from ..studies.tables import AVERAGE, QUANTITIES
from . import style

# Descriptions of the direct measures of `Agreement`.
MEASURES = {
    "diversity": "raw diversity",
    "diversity_centered": "centered diversity",
    "net": "net",
    "relevancy": "relevancy",
    "relative_norm": "relative norm",
    "block_influence": "block influence",
}


class Finding(NamedTuple):
    """A sentence, and the name of the report's figure or section that shows it; empty for none."""

    text: str
    figure: str = ""


def findings_of(study: Study | DepthStudy) -> list[str]:
    """Return the findings of a study, or of depth analyses alone, as sentences."""
    found = depth_findings(study) if isinstance(study, DepthStudy) else study_findings(study)
    return [finding.text for finding in found]


def study_findings(study: Study, unit: Unit = "sublayer") -> Iterator[Finding]:
    """Yield findings of a study, the simplest first."""
    summary, table, models = study.summary(unit), study.table(unit), study.models(unit)
    yield _accuracy(summary, models)
    with contextlib.suppress(InputError):  # no curves at this unit
        yield _half_of_the_depth(study.curves(unit), summary)
    yield _largest_module(study.shares(unit))
    if (finding := _most_diverse_model(table, models)) is not None:
        yield finding
    if (pairs := layer_sharing_pairs(study, unit)) is not None:
        yield from layer_sharing_findings(pairs)
    cells = {name: table[name].drop(columns=AVERAGE).stack().dropna() for name in QUANTITIES}
    shift = (1 - cells["diversity centered"] / cells["diversity"]).median()
    yield Finding(
        f"{shift:.1%} (median) of the diversity that the paper measures is a shift: it moves all options alike and "
        "changes no answer. Compare the numbers called centered, which leave it out.",
        "shares",
    )
    yield _cross_entropy(summary)
    yield _uniform(cells)
    yield Finding(
        f"The components sum to the logits: the largest gap of any row is {summary['absolute_gap'].max():.0e} logits, "
        f"{summary['identity_gap'].max():.0e} of Σ|u|."
    )


def _accuracy(summary: pd.DataFrame, models: pd.DataFrame) -> Finding:
    words = summary["bag_of_words"].dropna()
    who = f"{models['model'].iloc[0]} is" if len(models) == 1 else "The models are"
    text = f"{who} right on {summary['accuracy'].mean():.1%} of the rows{' on average' * (len(summary) > 1)}; guessing "
    text += f"would be right on {summary['chance'].mean():.1%}"
    if len(words) == len(summary):
        text += f", a bag of words on {words.mean():.1%}"
    above = int((summary["accuracy_low"] > summary["chance"]).sum())
    text += f". Accuracy is clearly above guessing in {above} of {len(summary)} pairs of model and task."
    one = summary[[max(shares.values()) > 0.95 for shares in summary["answers"]]]
    if len(one):
        where = [f"{row['model']} on {row['task']}" for _, row in one.head(3).iterrows()]
        where += [f"{len(one) - 3} more"] * (len(one) > 3)
        text += f" One answer is given to nearly all rows by {', '.join(where)}: accuracy there is that answer's share."
    return Finding(text, "table")


def _half_of_the_depth(curves: pd.DataFrame, summary: pd.DataFrame) -> Finding:
    runs = curves.groupby(["model", "task"], sort=False)["accuracy"]
    half = runs.apply(lambda curve: curve.iloc[(len(curve) - 1) // 2]).mean()
    accuracy, chance = summary["accuracy"].mean(), summary["chance"].mean()
    is_late = accuracy > chance and half - chance < (accuracy - chance) / 2
    text = f"ead out after half of the layers, {half:.1%} of the answers would be right; after all of them "
    return Finding(f"{'Most answers are decided late: r' if is_late else 'R'}{text}{accuracy:.1%} are.", "curves")


def _largest_module(shares: pd.DataFrame) -> Finding:
    some = shares.query("term == 'diversity' and gauge == 'centered'")
    mean = some.groupby("module")[["share", "member_share"]].mean()
    most = str(mean["share"].idxmax())
    share, members = mean.loc[most]
    return Finding(
        f"{style.MODULE_NAME[most]} components hold {share:.0%} of the centered diversity and are {members:.0%} of "
        "the components.",
        "shares",
    )


def _most_diverse_model(table: pd.DataFrame, models: pd.DataFrame) -> Finding | None:
    raw, fair = (table[name][AVERAGE].dropna() for name in ("diversity centered", "diversity_logit centered"))
    if models["members"].nunique() < 2 or len(raw) < 2:
        return None
    also = f"also in {fair.idxmax()}" if raw.idxmax() == fair.idxmax() else f"in {fair.idxmax()}"
    return Finding(
        f"Centered diversity is largest in {raw.idxmax()}; |L|² × diversity, which compares models with different "
        f"numbers of components, {also}.",
        "size",
    )


def _cross_entropy(summary: pd.DataFrame) -> Finding:
    nats, guess = summary["cross_entropy"], -np.log(summary["chance"])
    return Finding(
        f"The right answer costs {nats.mean():.3g} nats on average (a probability of {np.exp(-nats.mean()):.0%}), a "
        f"uniform guess {guess.mean():.3g} nats ({np.exp(-guess.mean()):.0%}); {(nats < guess).sum()} of "
        f"{len(summary)} pairs of model and task are better than that.",
        "table",
    )


def _uniform(cells: dict[str, pd.Series]) -> Finding:
    off, uniform = (cells["MSE"] - cells["uniform"]).abs(), cells["uniform"]
    text = (
        f"The paper's MSE (Eq. 14) is within {off.median():.2g} hundredths (median; at most {off.max():.2g}) of that "
    )
    text += f"of a uniform prediction, which is {uniform.median():.3g}"
    if (off < uniform / 10).all():
        text += ", because the softmax of a mean of |L| small logits is nearly uniform whatever the model does"
    return Finding(f"{text}.", "table")


def layer_sharing_pairs(study: Study, unit: Unit) -> pd.DataFrame | None:
    """Return the frame of `Study.layer_sharing`; None if there is no pair."""
    try:
        return study.layer_sharing(unit)
    except InputError:
        return None


def layer_sharing_findings(pairs: pd.DataFrame) -> Iterator[Finding]:
    """Yield a sentence for the pairs with the same number of parameters, and one for those of the same depth.

    It uses the pairs over seeds if there are any, otherwise all pairs.
    """
    over_seeds = pairs[pairs["interval_over"] == "seeds"]
    for matched in (PARAMETERS, DEPTH):
        some = over_seeds if (over_seeds["matched_on"] == matched).any() else pairs
        rows = some[some["matched_on"] == matched].to_dict("records")
        if not rows:
            continue
        points = np.mean([row["accuracy"] - row["accuracy_baseline"] for row in rows])
        many = "as many parameters" if matched == PARAMETERS else "as many layers, each used once"
        who, whose = "Models that reuse layers have", f"models with {many}"
        if len(rows) == 1:
            who, whose = f"{rows[0]['model']}, which reuses layers, has", f"{rows[0]['baseline']}, with {many}"
        text = f"{who} {_ratio(rows, 'diversity_centered')} the centered diversity of {whose}"
        if matched == PARAMETERS:
            text += f", {_ratio(rows, 'diversity_logit_centered')} after the size correction"
        text += f", and {abs(points):.1f} points {'less' if points < 0 else 'more'} accuracy."
        yield Finding(text, "layer-sharing")


def _ratio(rows: list[dict[Any, Any]], name: str) -> str:
    """Format one pair's ratio with its interval, or the geometric mean and the range of several pairs' ratios."""
    ratios = [row[f"{name}_ratio"] for row in rows]
    if len(rows) > 1:
        clear = sum(row[f"{name}_ratio_low"] > 1 or row[f"{name}_ratio_high"] < 1 for row in rows)
        ends = f"{len(rows)} pairs: {style.number(min(ratios))} to {style.number(max(ratios))}, {clear} clearly not 1"
        return f"{style.number(float(np.exp(np.mean(np.log(ratios)))))} times ({ends})"
    ends = style.interval(rows[0][f"{name}_ratio_low"], rows[0][f"{name}_ratio_high"], none="")
    return " ".join(filter(None, [style.number(ratios[0]), ends, "times"]))


def depth_findings(depth: DepthStudy) -> Iterator[Finding]:
    """Yield one sentence per model and analysis: residual norms, agreement, plan, depth score, layer maps, effects."""
    for kind, (describe, figure) in _ANALYSES.items():
        for model, result in depth.of(kind):
            if text := describe(model, result):
                yield Finding(text, figure)


def _residual_norms(model: str, norms: ResidualNorms) -> str:
    try:
        change = norms.change_point()
    except InputError:
        return ""
    ends = style.interval(change.low, change.high, ".0f")
    if change.p >= 0.05:
        return (
            f"{model}: no significant change point in what layers add (best candidate: layer {change.layer}, "
            f"p {style.number(change.p)})."
        )
    before, after = style.number(change.before), style.number(change.after)
    return (
        f"{model}: layers add less to the stream from layer {change.layer} {ends} on: {before} of its norm before "
        f"that, {after} after."
    )


def _agreement(model: str, agreement: Agreement) -> str:
    table = agreement.correlations().query("effect == 'loss' and kind == 'all'").dropna(subset="correlation")
    rows: dict[Any, dict[Any, Any]] = table.set_index("measure").to_dict("index")
    if not rows:
        return ""
    best = max(rows, key=lambda name: rows[name]["correlation"])
    parts = [f"{MEASURES[best]} (ρ {rows[best]['correlation']:.2f})"]
    for name in ("block_influence", "diversity", "diversity_centered"):
        if name != best and name in rows:
            parts.append(f"{MEASURES[name]} has {rows[name]['correlation']:.2f}")
    how = "best predicted by" if rows[best]["low_components"] > 0 else "predicted by no measure clearly, at best by"
    return f"{model} on {agreement.rows}: the loss that removing a sublayer costs is {how} {'; '.join(parts)}."


def _drop_plan(model: str, plan: DropPlan) -> str:
    budget = len(plan.dropped)
    rows = {(row["plan"], row["dropped"]): row for row in plan.frame().to_dict("records")}
    growth = {
        name: f"{round(row['loss_growth'], 2) + 0.0:+.2f}" for (name, count), row in rows.items() if count == budget
    }
    random = f", with random plans by {growth[RANDOM]}" if plan.random_dropped else ""
    return (
        f"{model} on {plan.provenance['rows']['where']}: without {budget} of {len(plan.candidates)} ({plan.part}, "
        f"chosen by {plan.score}) the loss changes by {growth[OWN]} nats an answer; with a plan by block "
        f"influence by {growth[INFLUENCE]}{random}. Accuracy goes from {rows['none', 0]['accuracy']:.0%} to "
        f"{rows[OWN, budget]['accuracy']:.0%}."
    )


def _depth_score(model: str, score: DepthScore) -> str:
    slope = score.slope
    if slope.reason:
        return ""
    return (
        f"{model}: each further hop moves the layers that an answer depends on by {slope.value:+.2f} "
        f"layers {style.interval(slope.low, slope.high, '+.2f')} of {len(score.components)}; "
        f"{score.correct.mean():.0%} of the answers are its first choice."
    )


def _effects(model: str, effects: Effects) -> str:
    most = effects.frame().sort_values("total").iloc[-1]
    if most["total"] <= 0:
        return ""
    ends = style.interval(most["total_low"], most["total_high"])
    direct = f"; its direct effect is {most['direct']:.3g}" if "direct" in most else ""
    return (
        f"{model} on {effects.source}: answers depend most on {most['component']}. With it ablated, the right answer "
        f"loses {most['total']:.3g} {ends} {effects.measured_in} to the others{direct}."
    )


def _layer_maps(model: str, maps: LayerMaps) -> str:
    best = maps.depth_alignment().iloc[0]
    return (
        f"The layer of {maps.source} that best predicts a layer of {model} lies {best['distance']:.2f} of the depth "
        f"away from its relative depth; by chance {best['chance']:.2f}."
    )


# {kind of analysis: (its sentence, the report's section that shows it)}.
_ANALYSES: dict[type[Any], tuple[Callable[[str, Any], str], str]] = {
    ResidualNorms: (_residual_norms, "residual_norms"),
    Agreement: (_agreement, "agreement"),
    DropPlan: (_drop_plan, "drop_plan"),
    DepthScore: (_depth_score, "depth_score"),
    LayerMaps: (_layer_maps, "map_layers"),
    Effects: (_effects, "effects"),
}
