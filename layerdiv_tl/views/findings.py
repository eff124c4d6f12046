"""What a study or its depth analyses show, in sentences: each has its number and what that is to be compared with."""

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
from ..depth.pruning import INFLUENCE, OWN, RANDOM, DropPlan
from ..depth.residual_norms import ResidualNorms
from ..errors import InputError
from ..replication.layer_sharing import DEPTH, PARAMETERS
from ..studies.depth_study import DepthStudy
from ..studies.study import QUANTITIES, Study
from ..studies.tables import AVERAGE
from . import style
from .tables import PROSE


class Finding(NamedTuple):
    """What the numbers show, in a sentence, and the name of the figure or section of a report that shows it."""

    text: str
    figure: str


def _say(finding: str, **values: Any) -> Finding:
    said = PROSE["findings"][finding]
    return Finding(said["text"].format(**values), said["figure"])


def findings_of(study: Study | DepthStudy) -> list[str]:
    """All sentences of a study, or of depth analyses alone."""
    found = depth_findings(study) if isinstance(study, DepthStudy) else study_findings(study)
    return [finding.text for finding in found]


def study_findings(study: Study, unit: Unit = "sublayer") -> Iterator[Finding]:
    """What a study shows, the plainest first: accuracy, half of the depth, modules, size, layer sharing, the shift,
    cross-entropy, Eq. 14 against the uniform prediction, exactness.
    """
    summary, table = study.summary(unit), study.table(unit)
    models, words = study.models(unit), summary["bag_of_words"].dropna()
    said = {name: summary[name].mean() for name in ("accuracy", "chance")}
    who = f"{models['model'].iloc[0]} is" if len(models) == 1 else "The models are"
    counted = f", counting words on {words.mean():.1%}" if len(words) == len(summary) else ""
    above = f"{int((summary['accuracy_low'] > summary['chance']).sum())} of {len(summary)}"
    accuracy = _say("accuracy", **said, who=who, mean=" on average" * (len(summary) > 1), counted=counted, above=above)
    same = summary[[max(shares.values()) > 0.95 for shares in summary["answers"]]]
    some = [f"{row['model']} on {row['task']}" for _, row in same.head(3).iterrows()]
    some += [f"{len(same) - 3} more"] * (len(same) > 3)
    once = " " + _say("one_answer", where=", ".join(some)).text if some else ""
    yield accuracy._replace(text=accuracy.text + once)
    with contextlib.suppress(InputError):  # no curves at this unit
        curves = study.curves(unit).groupby(["model", "task"], sort=False)["accuracy"]
        half = curves.apply(lambda curve: curve.iloc[(len(curve) - 1) // 2])
        is_late = half.mean() - said["chance"] < (said["accuracy"] - said["chance"]) / 2
        late = PROSE["findings"]["late"] if is_late and said["accuracy"] > said["chance"] else "R"
        yield _say("depth", late=late, half=half.mean(), accuracy=said["accuracy"])
    shares = study.shares(unit).query("term == 'diversity' and gauge == 'centered'")
    mean = shares.groupby("module")[["share", "member_share"]].mean()
    most = str(mean["share"].idxmax())
    share, count = mean.loc[most]
    yield _say("modules", module=style.MODULE_NAME[most], share=share, count=count)
    if len(models) > 1 and models["members"].nunique() > 1:
        raw, fair = (table[name][AVERAGE].dropna() for name in ("diversity centered", "diversity_logit centered"))
        if len(raw) > 1:
            also = f"still in {fair.idxmax()}" if raw.idxmax() == fair.idxmax() else f"in {fair.idxmax()}"
            yield _say("size", model=raw.idxmax(), also=also)
    if (pairs := layer_sharing_pairs(study, unit)) is not None:
        yield from layer_sharing_findings(pairs)
    cells = {name: table[name].drop(columns=AVERAGE).stack().dropna() for name in QUANTITIES}
    shift = 1 - cells["diversity centered"] / cells["diversity"]
    yield _say("shift", median=shift.median())
    nats, guess = summary["cross_entropy"], -np.log(summary["chance"])
    values = {"nats": nats.mean(), "guess": guess.mean()}
    odds = {"right": np.exp(-nats.mean()), "even": np.exp(-guess.mean())}
    yield _say("cross_entropy", **values, **odds, better=(nats < guess).sum(), cells=len(summary))
    off, uniform = (cells["MSE"] - cells["uniform"]).abs(), cells["uniform"]
    why = PROSE["findings"]["why_uniform"] if (off < uniform / 10).all() else ""
    yield _say("mse", median=off.median(), largest=off.max(), uniform=uniform.median(), why=why)
    yield _say("gap", absolute=summary["absolute_gap"].max(), relative=summary["identity_gap"].max())


def layer_sharing_pairs(study: Study, unit: Unit) -> pd.DataFrame | None:
    """The frame of `Study.layer_sharing`; None where there is no pair."""
    try:
        return study.layer_sharing(unit)
    except InputError:
        return None


def layer_sharing_findings(pairs: pd.DataFrame) -> Iterator[Finding]:
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
        values = {"ratio": _ratio(rows, "diversity_centered"), "points": abs(points)}
        more = "less" if points < 0 else "more"
        yield _say("layer_sharing", who=who, whose=whose, after=after, more=more, **values)


def _ratio(rows: list[dict[Any, Any]], name: str) -> str:
    """One pair's ratio with its interval; of several pairs the geometric mean and the range of their ratios."""
    ratios = [row[f"{name}_ratio"] for row in rows]
    if len(rows) > 1:
        clear = sum(row[f"{name}_ratio_low"] > 1 or row[f"{name}_ratio_high"] < 1 for row in rows)
        ends = f"{len(rows)} pairs: {style.number(min(ratios))} to {style.number(max(ratios))}, {clear} clearly not 1"
        return f"{style.number(float(np.exp(np.mean(np.log(ratios)))))} times ({ends})"
    ends = style.interval(rows[0][f"{name}_ratio_low"], rows[0][f"{name}_ratio_high"], none="")
    return " ".join(filter(None, [style.number(ratios[0]), ends, "times"]))


def depth_findings(depth: DepthStudy) -> Iterator[Finding]:
    """A sentence on each model: residual norms, agreement, plan, depth score, layer maps, effects; those it has."""
    for kind, describe in _SENTENCES.items():
        for model, result in depth.of(kind):
            if finding := describe(model, result):
                yield finding


def _residual_norms(model: str, norms: ResidualNorms) -> Finding | None:
    try:
        change = norms.change_point()
    except InputError:
        return None
    values = {name: style.number(getattr(change, name)) for name in ("p", "before", "after")}
    ends = style.interval(change.low, change.high, ".0f")
    kind = "no_change_point" if change.p >= 0.05 else "change_point"
    return _say(kind, model=model, layer=change.layer, ends=ends, **values)


def _agreement(model: str, agreement: Agreement) -> Finding | None:
    table = agreement.correlations().query("effect == 'loss' and kind == 'all'").set_index("measure")
    if not table["correlation"].notna().any():
        return None
    best = str(table["correlation"].idxmax())
    first = table.loc[best]
    clear = first["low_components"] > 0
    parts = [f"{PROSE['measures'][best]} (ρ {first['correlation']:.2f})"]
    for name in ("block_influence", "diversity", "diversity_centered"):
        row = table.loc[name]
        if name == best or not np.isfinite(row["correlation"]):
            continue
        parts.append(f"{PROSE['measures'][name]} has {row['correlation']:.2f}")
    how = "best by" if clear else "by no measure clearly, at most by"
    return _say("agreement", model=model, rows=agreement.rows, how=how, measures="; ".join(parts))


def _drop_plan(model: str, plan: DropPlan) -> Finding:
    budget = len(plan.dropped)
    rows = {(row["plan"], row["dropped"]): row for row in plan.frame().to_dict("records")}
    own, influence = rows[OWN, budget], rows[INFLUENCE, budget]
    random = f", with {RANDOM} ones by {rows[RANDOM, budget]['loss_growth']:.2f}" if plan.random_dropped else ""
    values = {"growth": own["loss_growth"], "influence": influence["loss_growth"], "after": own["accuracy"]}
    values |= {"where": plan.provenance["rows"]["where"], "all": len(plan.candidates), "random": random}
    return _say("plan", model=model, plan=plan, budget=budget, before=rows["none", 0]["accuracy"], **values)


def _depth_score(model: str, score: DepthScore) -> Finding | None:
    slope, first = score.slope, score.correct.mean()
    ends = style.interval(slope.low, slope.high, "+.2f")
    values = {"slope": slope.value, "ends": ends, "layers": len(score.components), "first": first}
    return None if slope.reason else _say("depth_score", model=model, **values)


def _effects(model: str, effects: Effects) -> Finding | None:
    most = effects.frame().sort_values("total").iloc[-1]
    ends = style.interval(most["total_low"], most["total_high"])
    values = {name: most[name] for name in ("component", "total")}
    values["direct"] = f"; its direct effect is {most['direct']:.3g}" if "direct" in most else ""
    values |= {"model": model, "source": effects.source, "unit": effects.measured_in, "ends": ends}
    return _say("effects", **values) if most["total"] > 0 else None


def _layer_maps(model: str, maps: LayerMaps) -> Finding:
    best = maps.depth_alignment().iloc[0]
    return _say("layer_maps", model=model, source=maps.source, distance=best["distance"], chance=best["chance"])


_SENTENCES: dict[type[Any], Callable[[str, Any], Finding | None]] = {
    ResidualNorms: _residual_norms,
    Agreement: _agreement,
    DropPlan: _drop_plan,
    DepthScore: _depth_score,
    LayerMaps: _layer_maps,
    Effects: _effects,
}
