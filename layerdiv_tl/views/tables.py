"""Tables of reports as text, and frames of a study as CSV files next to its page."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..attribution.comparison import Comparison, TextComparison
from ..components import Unit
from ..depth.agreement import Agreement
from ..depth.effect_results import Effects
from ..depth.pruning_results import DropPlan
from ..ensemble import intervals
from ..errors import InputError
from ..studies.depth_study import DepthStudy
from ..studies.folder import write_page
from ..studies.shards import safe_name
from ..studies.study import Study
from . import style
from .html import Page

# Ratios of `Study.layer_sharing`, and headings of the columns of `DropPlan.frame`.
_RATIOS = ("diversity", "diversity_centered", "diversity_logit", "diversity_logit_centered")
_PLANS = {"loss": "loss", "loss_growth": "growth of the loss", "accuracy": "accuracy"}
# {heading: field of the records of `Study.cells` and of `Analysis.about`}; some headings are the field's own name.
_SOURCES = {
    "task": "",
    "options": "",
    "rows from": "source",
    "license": "license",
    "dropped": "dropped",
    "template": "",
}
_CELLS = {"model": "", "task": "", "unit": "", "rows": "", "truncated": "truncated", "shots": "", "prompts": ""}
_CELLS |= {"weights": "settings.fingerprint", "dtype": "", "finished": "finished"}
_ANALYSES = {"model": "model", "analysis": "analysis", "dataset": "dataset", "weights": "", "dtype": ""}
_ANALYSES |= {"layerdiv_tl": "versions.layerdiv_tl", "seconds": "seconds", "finished": "finished"}
# Minimal share of a component's direct effect for a later change to be called compensation.
_NOTICED = 0.05
EFFECTS_CAPTION = "The largest total effects, and the later component that compensates most."


def estimate(row: Mapping[Any, Any], name: str, low: str = "", high: str = "") -> str:
    """Format a column of a row with its interval on the line below; – if there is no number.

    >>> estimate({"net": 1.0, "net_low": 0.5, "net_high": 1.5}, "net")
    '1.0\\n(0.5 to 1.5)'
    """
    if not np.isfinite(row[name]):
        return "–"
    return style.estimate(row[name], row[low or f"{name}_low"], row[high or f"{name}_high"], gap="\n")


def claim_name(row: Mapping[Any, Any]) -> str:
    """Format a claim's number and text, with its variant if it has several."""
    return f"{row['number']}. {row['claim']}" + (f" ({row['variant']})" if row["variant"] else "")


def verdict_of(row: Mapping[Any, Any], separator: str = " ") -> str:
    """Format a claim's verdict with its population, e.g. 8 models or 8 tasks of one model."""
    return row["verdict"] + (f"{separator}for {row['population']}" if row["verdict"] != "not tested" else "")


def claims_table(claims: pd.DataFrame) -> pd.DataFrame:
    """Make the table of claims, one row each, with the verdict next to its rationale."""
    return pd.DataFrame(
        {
            "claim": f"{claim_name(row)}\n{row['rationale']}",
            "verdict": verdict_of(row, "\n"),
            "estimate": estimate(row, "estimate", "low", "high"),
            "null": style.number(row["null"]) if np.isfinite(row["null"]) else "–",
            "p": f"{row['p']:.3f}" if np.isfinite(row["p"]) else "–",
        }
        for row in claims.to_dict("records")
    )


def layer_sharing_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Make the table of models that reuse layers and their baselines (`Study.layer_sharing`), one row per pair."""
    headings = {name: style.term_name(name) + ", raw" * (not name.endswith("_centered")) for name in _RATIOS}
    return pd.DataFrame(
        {
            "reuses layers": f"{row['model']}\nagainst {row['baseline']}",
            "matched on": f"{row['matched_on']}\n{row['members']} members against {row['members_baseline']}",
            "accuracy, %": f"{style.number(row['accuracy'])}\nagainst {style.number(row['accuracy_baseline'])}",
            **{headings[name]: estimate(row, f"{name}_ratio") for name in _RATIOS},
            "interval over": f"{row['n']} {row['interval_over'].removesuffix('s') + 's' * (row['n'] != 1)}",
        }
        for row in frame.to_dict("records")
    )


def model_table(study: Study, unit: Unit) -> pd.DataFrame:
    """Make the table of a study's models (Table 4): parameters, members, dtype."""
    frame = study.models(unit)
    frame["parameters"] = frame["parameters"].map("{:,}".format)
    frame["reuses"] = np.where(frame["reuses"], "yes", "no")
    return frame.rename(columns={"reuses": "reuses layers"})


def quantity_table(study: Study, units: Sequence[Unit], quantity: str) -> pd.DataFrame:
    """Make the table of one quantity of `Study.table` at all units, one row per model, with its baselines."""
    frames = []
    for unit in units:
        frame = pd.DataFrame(study.table(unit, intervals=True)[quantity])
        if quantity == "accuracy":  # in whole percents, as rows are few
            frame = frame.map(lambda text: style.estimate_of_text(text).replace(" (", "\n("))
        frame = frame.replace({"nan": "–", "": "–"})
        frame.insert(0, "members", study.models(unit).set_index("model")["members"].astype(str))
        frames.append(frame.set_axis([f"{name}, unit {unit}" for name in frame.index]) if len(units) > 1 else frame)
    frame = pd.concat(frames)
    if quantity == "accuracy":
        of_task = study.summary(units[0]).groupby("task", sort=False)[["chance", "bag_of_words"]].mean() * 100
        for name, column in (("guessing", "chance"), ("bag of words", "bag_of_words")):
            frame.loc[name] = of_task[column].map(style.number)
    if quantity in ("MSE", "bias"):
        frame.loc["uniform prediction"] = study.table(units[0])["uniform"].max().map("{:.2f}".format)
    frame = frame.fillna("").replace({"nan": "–"}).replace(r" \[(.*), (.*)\]", r"\n(\1 to \2)", regex=True)
    return frame.rename_axis("model").reset_index()


def source_table(study: Study) -> pd.DataFrame:
    """Make the table of tasks and the sources of their rows."""

    def in_words(options: Sequence[Any]) -> str:
        if isinstance(options[0], str):
            return ", ".join(option.strip() for option in options)
        return f"{len(options[0])} of each prompt's own"

    frame = _provenance(study.cells, _SOURCES)
    frame["options"], frame["template"] = frame["options"].map(in_words), frame["template"].str.replace("\n", "⏎")
    return frame.drop_duplicates(ignore_index=True)


def analysis_table(depth: DepthStudy) -> pd.DataFrame:
    """Make the table of depth analyses: model, dataset, settings, date."""
    frame = _provenance([a.about for a in depth.analyses], _ANALYSES)
    return frame.assign(analysis=frame["analysis"].str.replace("_", " "))


def cell_table(study: Study) -> pd.DataFrame:
    """Make the table of a study's cells: model, task, unit, and the software used."""
    return _provenance(study.cells, _CELLS)


def _provenance(records: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> pd.DataFrame:
    """Arrange fields of nested records (`settings.model`) under headings, with shortened hashes and times."""
    frame = pd.json_normalize([dict(record) for record in records], max_level=1)
    frame = frame[[path or f"settings.{name}" for name, path in fields.items()]].set_axis(list(fields), axis=1)
    for name in frame.columns.intersection(["prompts", "weights"]):
        frame[name] = frame[name].str[:10]
    if "finished" in frame:
        frame["finished"] = frame["finished"].str[:16].str.replace("T", " ")
    return frame


def agreement_table(agreement: Agreement) -> pd.DataFrame:
    """Make the table of Spearman's ρ between every direct measure and the ablation loss, over all sublayers."""
    table = agreement.correlations().query("effect == 'loss' and kind == 'all'")
    return pd.DataFrame(
        {
            "measure": style.term_name(row["measure"]),
            "ρ": style.number(row["correlation"]),
            "over components": style.interval(row["low_components"], row["high_components"]),
        }
        for row in table.to_dict("records")
    )


def plan_table(plan: DropPlan) -> pd.DataFrame:
    """Make the table of loss and accuracy without the components that each plan drops."""
    return pd.DataFrame(
        {"plan": row["plan"], "dropped": row["dropped"]}
        | {heading: estimate(row, name) for name, heading in _PLANS.items()}
        for row in plan.frame().to_dict("records")
    )


def effects_table(effects: Effects, count: int = 12) -> pd.DataFrame:
    """Make the table of the largest total effects, each with the later component that compensates most for it."""
    frame, single = effects.frame(), "direct" in effects.effects
    terms = ("direct", "total") if single else ("total",)
    clear = dict(zip(effects.names, intervals.estimate(effects.effect(terms[0])).excludes_zero, strict=True))
    rows = []
    for row in frame.iloc[np.argsort(-frame["total"].abs().to_numpy(), kind="stable")[:count]].to_dict("records"):
        name = row["component"]
        rows.append({"component": name} | {f"{term}, {effects.measured_in}": estimate(row, term) for term in terms})
        if single:
            change = effects.compensation(name).iloc[:-1].set_index("component")["compensation"]
            # A direct effect whose interval contains zero has nothing to compensate for.
            share = -change / row["direct"] if clear[name] and len(change) else change[:0]
            noticed = len(share) > 0 and share.max() >= _NOTICED
            rows[-1]["most compensated by"] = f"{share.idxmax()} ({style.percent(share.max())})" if noticed else ""
    return pd.DataFrame(rows)


def write_csv(frame: pd.DataFrame, path: Path | str) -> None:
    """Write a frame as CSV, with an apostrophe before texts that a spreadsheet would run as formulas.

    Texts of models and data may begin with =, +, - or @; numbers stay unchanged.
    """

    def safe(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value

    texts = frame.select_dtypes(exclude="number")
    frame.assign(**{str(column): texts[column].map(safe) for column in texts}).to_csv(path, index=False)


def write_study_frames(study: Study, folder: Path) -> None:
    """Write summary.csv, components.csv and modules.csv."""
    write_csv(study.summary().drop(columns="answers"), folder / "summary.csv")
    write_csv(study.components(), folder / "components.csv")
    write_csv(study.modules(), folder / "modules.csv")


def write_depth_frames(study: DepthStudy, folder: Path) -> None:
    """Write a CSV file per analysis, and for plans also the components and lists of layers to drop."""
    for a in study.analyses:
        path = folder / "depth" / safe_name(a.model) / safe_name(f"{a.name}-{a.dataset}")
        write_csv(a.result.frame(), f"{path}.csv")
        if isinstance(a.result, DropPlan):
            a.result.export(f"{path}-components.csv")
            with contextlib.suppress(InputError):  # repeats of one layer, which lists of layers cannot distinguish
                a.result.export(f"{path}.json")


def write_effects(effects: Effects, folder: Path) -> Path:
    """Write the frames of effects as CSV files and a page of their table and figures; return the page."""
    single = "direct" in effects.effects
    write_csv(effects.frame(), folder / "effects.csv")
    if single:
        write_csv(effects.backups(), folder / "backups.csv")
    page = Page(f"What components of {effects.model} are worth on {effects.source}")
    page.table(effects_table(effects), EFFECTS_CAPTION)
    for kind in ("scatter", "compensation", "map") if single else ():
        page.figure(effects.plot(kind=kind), "")
    return page.write(folder / "effects.html")


def write_comparison(comparison: Comparison | TextComparison, path: Path) -> Path:
    """Write the figure of a comparison as a page. Raises InputError for a file that cannot be written."""
    page = Page(f"What changes from {comparison.a.model} to {comparison.b.model}")
    page.figure(comparison.plot(), "")
    return write_page(page, path)
