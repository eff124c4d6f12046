"""Depth analyses as a page, or as a section of a study's report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..depth.agreement import Agreement
from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.pruning import INFLUENCE, OWN, RANDOM, DropPlan
from ..depth.residual_norms import ResidualNorms
from ..ensemble.intervals import LEAST
from ..errors import InputError
from ..studies.depth_study import DepthStudy
from . import style
from .claims_table import claims_table
from .page import Page

if TYPE_CHECKING:
    import pandas as pd

_MEASURE = {
    "diversity": "raw diversity",
    "diversity_centered": "centered diversity",
    "net": "net",
    "relevancy": "relevancy",
    "relative_norm": "relative norm",
    "block_influence": "block influence",
}
_CAPTION = {
    "residual_norms": "What each attention, MLP and layer writes beside the stream it is added to.",
    "skip": "What changes when one layer writes nothing at any token but the first.",
    "skip_future": "The same where the layer is silent at the tokens before a cut and the tokens from the cut on are "
    "measured: what later tokens need of it.",
    "logit_lens": "What the model would answer at every junction of the stream.",
    "depth_score": "How deep the layers lie that an answer rests on, by the number of hops of the question.",
    "agreement": "Does a direct measure, from one clean pass, rank the sublayers as their removal does?",
    "drop_plan": "What the model is without the layers that a plan drops, on rows that did not choose them.",
    "map_layers": "Which layer of one model says what a layer of the other says.",
}
_MORE = {
    "skip": ["bars"],
    "skip_future": ["bars"],
    "agreement": ["ranks", "correlations", "stability"],
    "drop_plan": ["components"],
}
_CORRELATIONS = (
    "Spearman's ρ with the loss that removal costs; rows for a stable rank: how many make two samples of rows agree "
    "at 0.9."
)
_METHODS = (
    "Sizes, skips, the lens and the depth score follow the code released with Do Language Models Use Their Depth "
    "Efficiently? (arXiv 2505.13898), except that cuts are at quarters of a text and that means stand next to the "
    "maxima, which are all that it draws. A skipped layer or sublayer writes nothing to the stream, and everything "
    "after it is computed again. The first token of a text is never skipped at: heads rest on it, whatever it is. "
    "Agreement and plans are about removal, at every token. Nothing is retrained: a pruned model heals with training, "
    "and may then rank its layers differently.",
    "Means are over tokens, intervals over texts, rows or questions, because tokens of one text are not independent; "
    f"fewer than {LEAST} of these have no interval. The depth score of a group is Σ l·e_l / Σ e_l: e_l is the mean "
    "over its questions of the largest change of the probabilities from the answer's first token on when layer l is "
    "skipped at the tokens before it.",
    "Direct measures and effects are compared by Spearman's rank correlation over components; its interval is over "
    "rows, and beside it one over components, which is the wider. Half of the rows choose a plan, the other half "
    "measures it.",
)


def depth_page(depth: DepthStudy, title: str | None = None) -> Page:
    """The depth analyses of some models as one offline page: words, claims, figures, tables, provenance."""
    models = depth.models
    who = f"{models[0]} uses" if len(models) == 1 else f"{len(models)} models use"
    page = Page(title or f"How {who} depth", contents=True)
    page.text(
        f"{'Models' if len(models) > 1 else 'A model'} without one layer at a time: how much each writes, what the "
        "others and the answer do without it, and which could go."
    )
    for failure in depth.failures:
        page.note(failure)
    page.heading("What the numbers say")
    page.list(list(depth_findings(depth)))
    page.heading("What the paper claims")
    page.table(claims_table(depth.claims()), "Estimates with 95 % intervals below.", marked="verdict")
    add_depth(page, depth)
    page.heading("Methods")
    for text in _METHODS:
        page.text(text)
    page.heading("Where the numbers come from")
    page.table(made(depth), "Analyses; weights by SHA-256, shortened.")
    return page


def add_depth(page: Page, depth: DepthStudy) -> None:
    """The figures and tables of all analyses; the first of each stands open."""
    page.heading("Depth, model by model")
    page.figure(depth.plot(), "Each point is a layer.")
    opened: set[str] = set()
    for a in depth.analyses:
        if a.name not in opened:
            page.subheading(_CAPTION.get(a.name, a.name).split(".")[0])
        fold, first = f"{a.model}: {a.name.replace('_', ' ')}, {a.dataset}", a.name not in opened
        opened.add(a.name)
        for number, kind in enumerate([None, *_MORE.get(a.name, [])]):
            try:
                drawn = a.result.plot(kind=kind)
            except InputError as error:
                page.small(f"{fold}: left out, because {error}")
                continue
            line = fold if number == 0 else f"{fold}: {kind}"
            page.figure(drawn, _CAPTION.get(a.name, ""), fold=line, opened=first and number == 0)
        if isinstance(a.result, Agreement):
            page.table(_agreement(a.result), _CORRELATIONS, fold=f"{fold}: table")
        if isinstance(a.result, DropPlan):
            page.table(_plan(a.result), "On rows that did not choose.", fold=f"{fold}: table")


def depth_findings(depth: DepthStudy) -> Iterator[str]:
    """Sentences on what the analyses show, each with its number and what it is to be held against."""
    for model, sizes in depth.of(ResidualNorms):
        try:
            change = sizes.change_point()
        except InputError:
            continue
        if change.p >= 0.05:
            yield f"{model}: there is no clear layer from which on layers write less (p {style.number(change.p)})."
            continue
        yield (
            f"{model}: layers write less from layer {change.layer} {_ends(change.low, change.high, '.0f')} on: "
            f"{style.number(change.before)} of the stream before, {style.number(change.after)} behind."
        )
    for model, found in depth.of(Agreement):
        table = found.correlations()
        table = table[(table["effect"] == "loss") & (table["kind"] == "all")].set_index("measure")
        if not table["correlation"].notna().any():
            continue
        best = str(table["correlation"].idxmax())
        first = table.loc[best]
        clear = (
            "best by"
            if first["spread_low"] > 0 and first["low_components"] > 0
            else "by no measure clearly, at most by"
        )
        told = [f"{_MEASURE[best]} (ρ {_rho(first)})"]
        for name in ("block_influence", "diversity", "diversity_centered"):
            row = table.loc[name]
            if name == best or not np.isfinite(row["correlation"]):
                continue
            beside = ""
            if name != "block_influence":
                than = (
                    "better"
                    if row["better_low"] > 0
                    else "worse"
                    if row["better_high"] < 0
                    else "neither better nor worse"
                )
                beside = f", {than} than block influence"
            told.append(f"{_MEASURE[name]} has {_rho(row)}{beside}")
        yield f"{model} on {found.rows}: what removing a sublayer costs is ranked {clear} {'; '.join(told)}."
    for model, plan in depth.of(DropPlan):
        budget = len(plan.dropped)
        at = {(row["plan"], row["dropped"]): row for row in plan.frame().to_dict("records")}
        grown = {name: at[name, budget]["loss_growth"] for name in (OWN, INFLUENCE)}
        random = f", with {RANDOM} ones by {at[RANDOM, budget]['loss_growth']:.2f}" if plan.random_dropped else ""
        yield (
            f"{model} on {plan.provenance['rows']['where']}: without {budget} of {len(plan.candidates)} "
            f"({plan.part}, chosen by {plan.score}) its loss grows by {grown[OWN]:.2f} nats an answer; with a "
            f"plan by block influence by {grown[INFLUENCE]:.2f}{random}. Accuracy goes from "
            f"{at['none', 0]['accuracy']:.0%} to {at[OWN, budget]['accuracy']:.0%}."
        )
    for model, score in depth.of(DepthScore):
        slope = score.slope
        if slope.reason:
            continue
        right = (score.rank == 1).mean()
        yield (
            f"{model}: each further hop moves the depth score by {slope.value:+.2f} layers "
            f"{_ends(slope.low, slope.high, '+.2f')} of {len(score.components)}; {right:.0%} of the answers are its "
            "first choice."
        )
    for model, maps in depth.of(LayerMaps):
        row = maps.depth_alignment().iloc[0]
        yield (
            f"{maps.source} to {model}: the best target layer is {row['distance']:.2f} of the depth away from the same "
            f"relative depth, by chance {row['chance']:.2f}."
        )


def made(depth: DepthStudy) -> pd.DataFrame:
    """A line for every analysis: on what, with what, when."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "model": a.model,
                "analysis": a.name.replace("_", " "),
                "dataset": a.dataset,
                "weights": a.about["settings"]["weights"][:10],
                "dtype": a.about["settings"]["dtype"],
                "layerdiv_tl": a.about["versions"]["layerdiv_tl"],
                "seconds": a.about["seconds"],
                "finished": a.about["finished"][:16].replace("T", " "),
            }
            for a in depth.analyses
        ]
    )


def _agreement(found: Agreement) -> pd.DataFrame:
    import pandas as pd

    table = found.correlations()
    table = table[(table["effect"] == "loss") & (table["kind"] == "all")]
    try:
        stable = found.stability().drop_duplicates("quantity").set_index("quantity")["rows_needed"].to_dict()
    except InputError:  # too few rows to halve
        stable = {}
    rows: list[dict[str, str]] = []
    for row in table.to_dict("records"):
        needed = stable.get(row["measure"], np.nan)
        rows.append(
            {
                "measure": _MEASURE[row["measure"]],
                "ρ": f"{row['correlation']:.2f}",
                "corrected": f"{row['corrected']:.2f}" if np.isfinite(row["corrected"]) else "–",
                "over resampled rows": _ends(row["spread_low"], row["spread_high"]),
                "over components": _ends(row["low_components"], row["high_components"]),
                "beside influence": f"{row['better']:+.2f}\n[{row['better_low']:+.2f}, {row['better_high']:+.2f}]"
                if np.isfinite(row["better_low"])
                else "–",
                "rows for a stable rank": _rows(needed),
            }
        )
    itself = stable.get("loss", np.nan)
    rows.append(dict.fromkeys(rows[0], "–") | {"measure": "the loss itself"} if rows else {})
    rows[-1]["rows for a stable rank"] = _rows(itself)
    return pd.DataFrame(rows)


def _rho(row: Any) -> str:
    """A correlation, and what it is without the noise of few rows."""
    corrected = f"; {row['corrected']:.2f} without the noise of few rows" if np.isfinite(row["corrected"]) else ""
    return f"{row['correlation']:.2f}{corrected}"


def _ends(low: Any, high: Any, form: str = ".2f") -> str:
    return f"[{low:{form}}, {high:{form}}]" if np.isfinite(low) else "(no interval)"


def _rows(needed: float) -> str:
    return "–" if np.isnan(needed) else f"{needed:.0f}" if np.isfinite(needed) else "no number"


def _plan(plan: DropPlan) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for row in plan.frame().to_dict("records"):
        rows.append(
            {"plan": row["plan"], "dropped": row["dropped"]}
            | {
                name: f"{style.number(row[name])}\n{_ends(row[f'{name}_low'], row[f'{name}_high'], '.3g')}"
                for name in ("loss", "loss_growth", "accuracy")
            }
        )
    return pd.DataFrame(rows).rename(columns={"loss_growth": "growth of the loss"})
