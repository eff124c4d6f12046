"""Findings of a study or its depth analyses: sentences, each with its number and a value to compare it with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from ..ensemble.intervals import wilson
from ..errors import InputError
from ..replication.layer_sharing import DEPTH, PARAMETERS
from ..studies.depth_study import DepthStudy
from ..studies.study import Study
from ..studies.tables import AVERAGE, QUANTITIES
from . import style


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
    accuracy, chance = summary["accuracy"].mean(), summary["chance"].mean()
    yield Finding(_accuracy(summary, models), "table")

    with contextlib.suppress(InputError):  # no curves at this unit
        runs = study.curves(unit).groupby(["model", "task"], sort=False)["accuracy"]
        half = runs.apply(lambda curve: curve.iloc[(len(curve) - 1) // 2]).mean()
        is_late = accuracy > chance and half - chance < (accuracy - chance) / 2
        late, shares = (
            "Most answers are decided late: r" if is_late else "R",
            map(style.percent, (half, chance, accuracy)),
        )
        text = "{}ead out after half of the layers, {} of the answers would be right, where guessing has {}; after all "
        yield Finding(f"{text}{{}}.".format(late, *shares) + _falls(study.curves(unit), summary), "curves")

    some = study.shares(unit).query("term == 'diversity' and gauge == 'centered'")
    mean = some.groupby("module")[["share", "member_share"]].mean()
    most = str(mean["share"].idxmax())
    share, members = mean.loc[most].map(style.percent)
    text = f"{style.MODULE_NAME[most]} components hold {share} of the centered diversity and are {members} of the "
    yield Finding(f"{text}components.", "shares")

    raw, fair = (table[name][AVERAGE].dropna() for name in ("diversity centered", "diversity_logit centered"))
    if models["members"].nunique() > 1 and len(raw) > 1:
        also = "also " * bool(raw.idxmax() == fair.idxmax())
        yield Finding(
            f"Centered diversity is largest in {raw.idxmax()}; |L|² × diversity, which compares models with different "
            f"numbers of components, {also}in {fair.idxmax()}.",
            "size",
        )

    if (sharing := layer_sharing_pairs(study, unit)) is not None:
        yield from layer_sharing_findings(sharing)

    cells = {name: table[name].drop(columns=AVERAGE).stack().dropna() for name in QUANTITIES}
    shift = 1 - cells["diversity centered"] / cells["diversity"]
    share = f"{style.percent(shift.median())} (median)"
    if len(shift) <= 3:
        share = " to ".join(dict.fromkeys(map(style.percent, (shift.min(), shift.max()))))
    yield Finding(
        f"{share} of the diversity that the paper measures is a shift: it moves all options "
        "alike and changes no answer. Compare the numbers called centered, which leave it out.",
        "table",
    )

    nats, guess = summary["cross_entropy"], -np.log(summary["chance"])
    yield Finding(
        f"The right answer costs {style.number(nats.mean())} nats on average (a geometric mean "
        f"probability of {style.percent(np.exp(-nats.mean()))} among the options), a uniform guess "
        f"{style.number(guess.mean(), 3)} nats; on {(nats < guess).sum()} of {_cells(summary, models)} the model does "
        "better than that.",
        "table",
    )

    gaps = (style.number(summary[name].max()) for name in ("absolute_gap", "identity_gap"))
    off, uniform = (cells["MSE"] - cells["uniform"]).abs(), cells["uniform"]
    why = ", because the softmax of a mean of |L| small logits is nearly uniform whatever the model does"
    yield Finding(
        f"The paper's MSE (Eq. 14), times 100, differs from that of a uniform prediction, "
        f"{uniform.median():.2f}, by {style.number(off.median())} (median; at most {style.number(off.max())})"
        f"{why * bool((off < uniform / 10).all())}.",
        "table",
    )
    yield Finding(
        "The components sum to the logits: the largest gap of any row is {} logits, {} of Σ|u|.".format(*gaps)
    )


def _falls(curves: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Say on which tasks a single model's accuracy rises, clearly falls before the last component, and recovers."""
    told = ""
    if curves["model"].nunique() > 1:
        return told
    rows = summary.set_index("task")["rows"]
    for task, curve in curves.groupby("task", sort=False):
        share = curve["accuracy"].reset_index(drop=True)
        if len(share) < 4 or (peak := int(share.iloc[:-2].argmax())) == 0:
            continue
        *_, fallen, end = share
        low, high = wilson(rows[task] * np.array([share[peak], fallen, end]), rows[task])
        if low[0] > high[1] and low[2] > high[1]:
            names = [curve["component"].iloc[at] for at in (peak, -1)]
            shares = list(map(style.percent, (share[peak], fallen, end)))
            told += f" On {task} it rises to {shares[0]} after {names[0]}, falls to {shares[1]} before {names[1]}, and "
            told += f"is {shares[2]} with {names[1]}."
    return told


def _cells(summary: pd.DataFrame, models: pd.DataFrame) -> str:
    return f"{len(summary)} pairs of model and task" if len(models) > 1 else style.count(len(summary), "task")


def _accuracy(summary: pd.DataFrame, models: pd.DataFrame) -> str:
    pairs, words = len(summary), summary["bag_of_words"]
    who = f"{models['model'].iloc[0]} is" if len(models) == 1 else "The models are"
    above = int((summary["accuracy_low"] > summary["chance"]).sum())
    bag = f", a cross-validated bag of words on {style.percent(words.mean())}" if words.notna().all() else ""
    bag += " (the rows are too few for it to learn from)" * bool(words.mean() < summary["chance"].mean())
    right, chance = (style.percent(summary[name].mean()) for name in ("accuracy", "chance"))
    text = (
        f"{who} right on {right} of the rows{' on average' * (pairs > 1)}; guessing would be right on {chance}{bag}. "
        f"Accuracy is clearly above guessing on {above} of {_cells(summary, models)}."
    )
    one = summary[[max(shares.values()) > 0.95 for shares in summary["answers"]]]
    where = [*(one["model"] + " on " + one["task"]).head(3), *[f"{len(one) - 3} more"] * (len(one) > 3)]
    only = f" One answer is given to nearly all rows by {', '.join(where)}: accuracy there is that answer's share."
    return text + only * bool(where)


def layer_sharing_pairs(study: Study, unit: Unit) -> pd.DataFrame | None:
    """Return the frame of `Study.layer_sharing`; None if there is no pair."""
    with contextlib.suppress(InputError):
        return study.layer_sharing(unit)
    return None


def layer_sharing_findings(pairs: pd.DataFrame) -> Iterator[Finding]:
    """Yield a sentence for the pairs with the same number of parameters, and one for those of the same depth.

    It uses the pairs over seeds if there are any, otherwise all pairs.
    """
    over_seeds = pairs[pairs["interval_over"] == "seeds"]
    for matched in (PARAMETERS, DEPTH):
        some = over_seeds if (over_seeds["matched_on"] == matched).any() else pairs
        rows = some[some["matched_on"] == matched]
        if rows.empty:
            continue
        points = (rows["accuracy"] - rows["accuracy_baseline"]).mean()
        many = "as many parameters" if matched == PARAMETERS else "as many layers, each used once"
        who, whose = "Models that reuse layers have", f"models with {many}"
        if len(rows) == 1:
            who, whose = (
                f"{rows['model'].iloc[0]}, which reuses layers, has",
                f"{rows['baseline'].iloc[0]}, with {many}",
            )
        text = f"{who} {_ratio(rows, 'diversity_centered')} the centered diversity of {whose}"
        if matched == PARAMETERS:
            text += f", {_ratio(rows, 'diversity_logit_centered')} after the size correction"
        text += f", and {style.number(abs(points))} points {'less' if points < 0 else 'more'} accuracy."
        yield Finding(text, "layer-sharing")


def _ratio(rows: pd.DataFrame, name: str) -> str:
    """Format one pair's ratio with its interval, or the geometric mean and the range of several pairs' ratios."""
    ratios, low, high = (rows[f"{name}_ratio{end}"] for end in ("", "_low", "_high"))
    if len(rows) > 1:
        clear, ends = ((low > 1) | (high < 1)).sum(), " to ".join(map(style.number, (ratios.min(), ratios.max())))
        mean = float(np.exp(np.log(ratios).mean()))
        return f"{style.number(mean)} times ({len(rows)} pairs: {ends}, {clear} clearly not 1)"
    size = style.estimate(ratios.iloc[0], low.iloc[0], high.iloc[0])
    size = size.replace(")", ", not clearly 1)") if low.iloc[0] <= 1 <= high.iloc[0] else size
    return size.replace(" (", " times (") if "(" in size else f"{size} times"


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
    before, after = map(style.number, (change.before, change.after))
    if change.p >= style.SIGNIFICANT:
        return (
            f"{model}: there is no layer from which on layers clearly add less (best candidate: layer {change.layer}, "
            f"{style.p_value(change.p)})."
        )
    ends = style.interval(change.low, change.high, ".0f")
    where = f"from layer {change.layer} {ends} on"
    return f"{model}: layers add less to the stream {where}: {before} of its norm before that, {after} after."


def _agreement(model: str, agreement: Agreement) -> str:
    rows = agreement.correlations().query("effect == 'loss' and kind == 'all'").dropna(subset="correlation")
    if rows.empty:
        return ""
    rho, low = (rows.set_index("measure")[column] for column in ("correlation", "low_components"))
    best = str(rho.idxmax())
    others = [name for name in ("block_influence", "diversity", "diversity_centered") if name != best and name in rho]
    named = {"diversity": "raw diversity", "diversity_centered": "centered diversity"}
    parts = [f"{named.get(best, style.term_name(best))} (ρ {style.number(rho[best])})"]
    parts += [f"{named.get(name, style.term_name(name))} has {style.number(rho[name])}" for name in others]
    how = "best predicted by" if low[best] > 0 else "predicted by no measure clearly, at best by"
    return f"{model} on {agreement.rows}: the loss that removing a sublayer costs is {how} {'; '.join(parts)}."


def _drop_plan(model: str, plan: DropPlan) -> str:
    budget = len(plan.dropped)
    rows: dict[Any, Any] = plan.frame().set_index(["plan", "dropped"]).to_dict("index")
    growth = {
        name: style.signed(round(rows[name, budget]["loss_growth"], 2) + 0.0)
        for name in (OWN, INFLUENCE, *[RANDOM] * bool(plan.random_dropped))
    }
    random = f", with random plans by {growth[RANDOM]}" if plan.random_dropped else ""
    return (
        f"{model} on {plan.provenance['rows']['where']}: without {budget} of {len(plan.candidates)} ({plan.part}, "
        f"chosen by {plan.score}) the loss changes by {growth[OWN]} nats an answer; with a plan by block "
        f"influence by {growth[INFLUENCE]}{random}. Accuracy goes from {style.percent(rows['none', 0]['accuracy'])} "
        f"to {style.percent(rows[OWN, budget]['accuracy'])}."
    )


def _depth_score(model: str, score: DepthScore) -> str:
    slope = score.slope
    if slope.reason:
        return ""
    size = style.estimate(slope.value, slope.low, slope.high, unit=f"of {len(score.components)} layers")
    is_clear = not slope.low <= 0 <= slope.high
    what = f"each further hop {'moves' if is_clear else 'does not clearly move'} the layers that an answer depends on"
    right = style.percent(score.correct.mean())
    return f"{model}: {what}, by {size}; {right} of the answers are its first choice."


def _effects(model: str, effects: Effects) -> str:
    most = effects.frame().sort_values("total").iloc[-1]
    if most["total"] <= 0:
        return ""
    size = style.estimate(most["total"], most["total_low"], most["total_high"], unit=effects.measured_in)
    direct = f"; its direct effect is {style.number(most['direct'])}" if "direct" in most else ""
    how = "most on" if not most["total_low"] <= 0 else "clearly on no ablated component; the largest effect is that of"
    return (
        f"{model} on {effects.source}: answers depend {how} {most['component']}. With it ablated, the right answer "
        f"loses {size} to the others{direct}."
    )


def _layer_maps(model: str, maps: LayerMaps) -> str:
    best = maps.depth_alignment().iloc[0]
    return (
        f"The layer of {maps.source} that best predicts a layer of {model} lies {style.number(best['distance'])} of "
        f"the depth away from its relative depth; by chance {style.number(best['chance'])}."
    )


# {kind of analysis: (its sentence, the report's section that shows it)}.
_ANALYSES: dict[type[Any], tuple[Any, str]] = {
    ResidualNorms: (_residual_norms, "residual_norms"),
    Agreement: (_agreement, "agreement"),
    DropPlan: (_drop_plan, "drop_plan"),
    DepthScore: (_depth_score, "depth_score"),
    LayerMaps: (_layer_maps, "map_layers"),
    Effects: (_effects, "effects"),
}
