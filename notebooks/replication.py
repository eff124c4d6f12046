"""Replicate arXiv 2505.24009 and 2505.13898 on any models: print the papers' tables, and a line for each statement.

    python notebooks/replication.py --out FOLDER --models zoo/d2 zoo/d4 --limit 64

A line has the estimate, its 95 % interval (Student's of the jackknife over models; training seeds of one shape count as
one; over tasks or texts where there are fewer than 8 models), and the null, the value if the statement did not hold.
The folder is a grid: the same command continues a stopped run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import t

import layerdiv_tl as ld
from layerdiv_tl.studies import tables
from layerdiv_tl.tasks.specs import SAMPLE_TASKS

LEAST, LEAST_SIZES = 8, 4  # units of an interval, different numbers of components of a curvature
TOLERANCE = 0.05  # relative difference of parameters between a model that reuses layers and its pair
DIVERSITY = "2505.24009"  # the arXiv number of the paper with Table 4
TEXTS, QUESTIONS = 16, 12  # of the depth analyses; questions for each number of hops


class Estimate(NamedTuple):
    """A number, its interval (NaN: none) and the units of the interval."""

    value: float
    low: float = np.nan
    high: float = np.nan
    n: int = 0
    over: str = "models"


class Statement(NamedTuple):
    """A numbered statement of the papers, measured."""

    number: int
    text: str
    estimate: Estimate
    null: float = np.nan

    def __str__(self) -> str:
        e = self.estimate
        if np.isnan(e.value):
            return f"({self.number}) {self.text}: no data"
        ends = f"({e.low:.3g} to {e.high:.3g})" if np.isfinite(e.low) else f"(no interval below {LEAST})"
        null = "" if np.isnan(self.null) else f"; null {self.null:g}"
        return f"({self.number}) {self.text}: {e.value:.3g} {ends} over {e.n} {e.over}{null}"


def catalog() -> pd.DataFrame:
    """Return the default model, the sixteen of Table 4 in its order, and those of the paper on depth.

    Columns: `name` on Hugging Face, `license`, `gated`, the arXiv numbers of its `papers`, a `note` to read before
    loading, `components` at unit sublayer, `parameters` with tied ones counted once, and the `config` that determines
    these.
    """
    path = Path(__file__).with_name("paper_models.json")
    return pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["models"])


def maps_to(model: Any, texts: Any, *, target: str, weights: str) -> Any:
    """Map the layers of a model to those of another, whose `weights` identify it, as an analysis of one model."""
    return ld.depth.map_layers(model, ld.load_model(target), texts)


def jackknife(function: Callable[[list[Any]], float], units: Sequence[Any], over: str = "models") -> Estimate:
    """Estimate a function of units, with Student's interval of the jackknife over them."""
    units, count = list(units), len(units)
    value = function(units)
    if count < LEAST:
        return Estimate(value, n=count, over=over)
    left_out = np.array([function(units[:i] + units[i + 1 :]) for i in range(count)])
    half = t.ppf(0.975, count - 1) * np.sqrt((count - 1) * left_out.var())
    return Estimate(value, value - half, value + half, count, over)


def exp(e: Estimate) -> Estimate:
    """Return an estimate of a logarithm as one of a ratio."""
    return e._replace(value=np.exp(e.value), low=np.exp(e.low), high=np.exp(e.high))


class Replication:
    """The frames of a grid, and the statements tested on them."""

    def __init__(self, grid: ld.Grid) -> None:
        self.grid = grid
        self.totals = tables.totals(grid).set_index(["model", "rows"])
        self.sizes = tables.sizes(grid).set_index("model")
        self.curves = tables.curves(grid)
        keys = ["model", "rows", "metric"]
        self.r = tables.correlations(self.curves).pivot(index=keys, columns="coefficient", values="r")
        zoo = ld.zoo.models().set_index("name")  # other models are shapes by themselves
        self.shapes = {model: model for model in self.sizes.index} | zoo["shape"].to_dict()
        self.seeds = dict.fromkeys(self.sizes.index, 0) | zoo["seed"].to_dict()

    def results(self, analysis: str, **wanted: Any) -> dict[str, Any]:
        """Return {model: result} of an analysis."""
        return {cell.about["model"]: cell.result for cell in self.grid.cells(analysis=analysis, **wanted)}

    def mean(self, values: pd.Series) -> Estimate:
        """Average values by (model, rows) over shapes, or where these are few, over tasks."""
        values = values[np.isfinite(values)]
        if values.empty:
            return Estimate(np.nan)
        of_models = values.groupby(level="model").mean()
        over_models = jackknife(np.mean, of_models.groupby(self.shapes).mean().tolist())
        of_tasks = values.groupby(level="rows").mean()
        if over_models.n < LEAST <= len(of_tasks):
            return jackknife(np.mean, of_tasks.tolist(), f"tasks of {len(of_models)} models")
        return over_models

    def mean_r(self, r: pd.Series) -> Estimate:
        """Average correlations by (model, rows), as Fisher's z."""
        e = self.mean(np.arctanh(r.clip(-1 + 1e-12, 1 - 1e-12)))
        return e._replace(value=np.tanh(e.value), low=np.tanh(e.low), high=np.tanh(e.high))

    def statements(self) -> Iterator[Statement]:
        """Yield (1)-(12); those without data have no estimate."""
        yield from self.mse_and_accuracy()
        yield from self.shares_of_modules()
        yield from self.tradeoff()
        ratio = self.totals["bias"] / self.totals["uniform"]
        yield Statement(6, "Bias of Eq. 14 over that of a uniform prediction", self.mean(ratio), 0.5)
        yield from self.returns()
        yield from self.reuse()
        yield from self.halves()
        yield from self.hops()
        yield from self.places()

    def mse_and_accuracy(self) -> Iterator[Statement]:
        """(1) MSE tracks accuracy; (2) Spearman's correlation is below Pearson's."""
        frame = self.r.xs("mse", level="metric")
        e = self.mean_r(frame["pearson"])
        swapped = self.swapped()
        more = "" if np.isnan(swapped) else f" ({swapped:.2f} with the MSE of other models as deep)"
        yield Statement(1, f"Pearson's r of −MSE and accuracy along depth{more}", e, 0)
        yield Statement(2, "Spearman's minus Pearson's r", self.mean(frame["spearman"] - frame["pearson"]))

    def swapped(self) -> float:
        """Average r where every model has the MSE of another one of its depth: what all models' curves share."""
        found = []
        for _, of_task in self.curves.groupby("rows"):
            curves = dict(list(of_task.groupby("model")))
            for model, other in ((m, n) for m in curves for n in curves if self.shapes[m] != self.shapes[n]):
                if len(curves[model]) == len(curves[other]):
                    mixed = curves[model].assign(mse=curves[other]["mse"].to_numpy())
                    found.append(tables.correlations(mixed[["model", "rows", "accuracy", "mse"]])["r"][0])
        known = np.array(found)[np.isfinite(found)] if found else np.empty(0)
        return float(np.tanh(np.arctanh(known.clip(-1 + 1e-12, 1 - 1e-12)).mean())) if len(known) else np.nan

    def shares_of_modules(self) -> Iterator[Statement]:
        """(3) Bias lies where members do; (4) MLPs hold most of the diversity."""
        modules = {
            "Eq. 14": tables.modules(self.grid, "paper", "raw"),
            "raw": tables.modules(self.grid, gauge="raw"),
            "centered": tables.modules(self.grid, gauge="centered"),
        }

        def shares(frame: pd.DataFrame, term: str) -> pd.DataFrame:
            wide = frame.pivot(index=["model", "rows"], columns="module", values=term).fillna(0)
            return wide.div(wide.sum(axis=1), axis=0)

        for kind, frame in modules.items():
            distance = (shares(frame, "bias") - shares(frame, "members")).abs().sum(axis=1) / 2
            yield Statement(3, f"Share of {kind} bias that lies elsewhere than members do", self.mean(distance), 0)
        for kind in ("raw", "centered"):
            found, members = (shares(modules[kind], term) for term in ("diversity", "members"))
            text = f"MLPs' share of {kind} diversity (they are {members['mlp'].mean():.2f} of the members)"
            yield Statement(4, text, self.mean(found["mlp"]), 0.5)

    def tradeoff(self) -> Iterator[Statement]:
        """(5) Bias and diversity move together only where accuracy stands still."""
        kinds = {"centered": ("bias_centered", "diversity_centered"), "Eq. 14": ("bias", "diversity")}
        for kind, (bias, diversity) in kinds.items():
            counts: dict[str, np.ndarray] = {}
            for (model, _), curve in self.curves.groupby(["model", "rows"], sort=False):
                shape = self.shapes[str(model)]
                steps = count_steps(curve["accuracy"], curve[bias], curve[diversity])
                counts[shape] = counts.get(shape, np.zeros((2, 2))) + steps
            e = jackknife(lambda kept: share_difference(np.sum(kept, axis=0)), list(counts.values()))
            text = f"Share of steps in which {kind} bias and diversity move together, accuracy still minus moving"
            yield Statement(5, text, e, 0)

    def returns(self) -> Iterator[Statement]:
        """(7) Returns diminish with the number of components."""
        for name, sign in (("accuracy", 1), ("mse", -1)):
            means = sign * 100 * self.totals[name].groupby(level="model").mean()
            points = pd.DataFrame({"x": self.sizes["members"], "y": means}).groupby(self.shapes).mean()
            if points["x"].nunique() < LEAST_SIZES:
                yield Statement(7, f"Curvature of {name} against |L|", Estimate(np.nan), 0)
                continue
            x = (points["x"] - points["x"].mean()) / points["x"].std(ddof=0)
            pairs = list(zip(x, points["y"], strict=True))
            doubling = np.log(2) * np.polyfit(np.log(points["x"]), points["y"], 1)[0]
            e = jackknife(lambda kept: float(np.polyfit(*zip(*kept, strict=True), 2)[0]), pairs)
            text = f"Curvature of {'−' * (sign < 0)}{name} ×100 against |L| in standard deviations"
            yield Statement(7, f"{text} (a doubling adds {doubling:.3g})", e, 0)

    def reuse(self) -> Iterator[Statement]:
        """(8) Reusing layers lowers diversity, before and after the size correction."""
        baselines = self.sizes["parameters"][~self.sizes["reuses"]]
        pairs = {}
        for model in self.sizes.index[self.sizes["reuses"]]:
            of_seed = [name for name in baselines.index if self.seeds[name] == self.seeds[model]]
            difference = (baselines[of_seed] / self.sizes["parameters"][model] - 1).abs()
            if (difference <= TOLERANCE).any():
                pairs[model] = difference.idxmin()
        for term in ("diversity", "diversity_centered", "diversity_logit", "diversity_logit_centered"):
            values = self.totals[term]
            ratios = {model: np.log(values[model] / values[other]) for model, other in pairs.items()}
            e = self.mean(pd.concat(ratios, names=["model"])) if ratios else Estimate(np.nan)
            yield Statement(8, f"{term} over that of a model of its size without reuse", exp(e), 1)

    def halves(self) -> Iterator[Statement]:
        """(9) Later layers contribute less; (10) skipping them disturbs later computation less."""
        norms, skips = {}, {}
        for model, result in self.results("residual_norms").items():
            layers = [i for i, c in enumerate(result.components) if c.kind == "layer"]
            norms[model] = sums_per_text(result.values["relative_norm"][:, layers], result.places["text"])
        for model, result in self.results("skip", mode="future").items():
            # No token attends to a layer after the last one, so its effect is 0 in every model.
            skips[model] = sums_per_text(
                result.values["output_change"][:, :-1], result.places["text"], len(result.components)
            )
        yield Statement(9, "‖write‖ / ‖stream‖, later over earlier layers", self.ratio(norms), 1)
        yield Statement(10, "Change of later answers if skipped, later over earlier layers", self.ratio(skips), 1)

    def ratio(self, of_models: Mapping[str, tuple[np.ndarray, np.ndarray, int]]) -> Estimate:
        """Average the log ratio of later to earlier layers over models, or over the texts that they all read."""

        def log_ratio(model: str, texts: list[int]) -> float:
            sums, counts, layers = of_models[model]
            means = sums[texts].sum(0) / counts[texts].sum(0)
            late = np.arange(len(means)) >= layers / 2
            return float(np.log(means[late].mean() / means[~late].mean()))

        models = [m for m, (sums, _, layers) in of_models.items() if layers / 2 <= sums.shape[1] - 1]
        if not models:
            return Estimate(np.nan)
        texts = list(range(len(of_models[models[0]][0])))
        values = pd.Series({model: log_ratio(model, texts) for model in models})
        over_models = jackknife(np.mean, values.groupby(self.shapes).mean().tolist())
        if over_models.n >= LEAST:
            return exp(over_models)
        over_texts = jackknife(lambda kept: float(np.mean([log_ratio(m, kept) for m in models])), texts)
        return exp(over_texts)._replace(over=f"texts, {len(models)} models")

    def hops(self) -> Iterator[Statement]:
        """(11) Models use no deeper layers for more hops."""
        slopes = {}
        for model, score in self.results("depth_score").items():
            last = len(score.components) - 1
            if last and (score.questions["rank"] == 1).sum() >= LEAST:  # the depth of a wrong answer is no evidence
                s = score.slope_at_length
                slopes[model] = Estimate(s.value / last, s.low / last, s.high / last, s.n, f"questions of {model}")
        e = next(iter(slopes.values()), Estimate(np.nan))
        if len(slopes) > 1:
            values = pd.Series({model: one.value for model, one in slopes.items()}).dropna()
            e = jackknife(np.mean, values.groupby(self.shapes).mean().tolist())
        yield Statement(11, "Growth of the depth score with each hop, in shares of the depth, at equal length", e, 0)

    def places(self) -> Iterator[Statement]:
        """(12) Layers at the same relative depth map best."""
        ratios = {}
        for cell in self.grid.cells(analysis="maps_to"):
            found = cell.result.depth_alignment().iloc[0]
            if found.chance > 0:
                ratios[cell.about["model"], cell.about["options"]["target"]] = float(found.distance / found.chance)

        def mean(kept: list[str]) -> float:
            known = [ratio for pair, ratio in ratios.items() if set(pair) <= set(kept)]
            return float(np.mean(known)) if known else np.nan

        e = jackknife(mean, sorted({model for pair in ratios for model in pair})) if ratios else Estimate(np.nan)
        yield Statement(12, f"Depth distance of the best target layer over chance, {len(ratios)} pairs", e, 1)


def count_steps(accuracy: pd.Series, bias: pd.Series, diversity: pd.Series) -> np.ndarray:
    """Count steps, [accuracy stands still or moves, bias and diversity move together or apart]."""
    still = np.abs(np.diff(accuracy)) <= 1e-12
    sign = np.sign(np.diff(bias)) * np.sign(np.diff(diversity))
    return np.array([[(where & (sign == side)).sum() for side in (1, -1)] for where in (still, ~still)], dtype=float)


def share_difference(counts: np.ndarray) -> float:
    """Subtract the shares of steps in which both move together; NaN where there is no step."""
    with np.errstate(invalid="ignore"):
        still, moving = counts[:, 0] / counts.sum(1)
    return float(still - moving)


def sums_per_text(values: np.ndarray, text: np.ndarray, layers: int = 0) -> tuple[np.ndarray, np.ndarray, int]:
    """Return sums and counts over each text's tokens, `[text, layer]`, and the number of layers."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(text.max()) + 1, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    return sums, counts, layers or values.shape[1]


def measure(out: str, models: Sequence[str], tasks: Sequence[str], limit: int | None, executor: Any) -> ld.Grid:
    """Run contributions and the depth analyses of all models."""
    grid = ld.Grid(out).run(ld.contributions, list(models), list(tasks), limit=limit, executor=executor)
    texts = {"texts": ld.task(tasks[0], limit=TEXTS)}
    source = "synthetic/k_hop" if all(name.startswith("zoo/") for name in models) else "sample/hops"
    questions = ld.depth.questions(source, limit=QUESTIONS)
    grid.run(ld.depth.residual_norms, list(models), texts, executor=executor)
    grid.run(ld.depth.skip, list(models), texts, executor=executor, mode="future")
    grid.run(ld.depth.depth_score, list(models), {"questions": questions}, executor=executor)
    by_depth = tables.sizes(grid).sort_values("members").drop_duplicates("members")["model"].tolist()
    weights = {cell.about["model"]: cell.about["weights"] for cell in grid.cells()}
    for shallow, deep in pairwise(by_depth):
        grid.run(maps_to, shallow, texts, executor=executor, target=deep, weights=weights[deep])
    return grid


def main(arguments: Sequence[str] | None = None) -> list[Statement]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the grid")
    parser.add_argument("--models", nargs="+", default=list(ld.zoo.NAMES), help="names, or `paper`; by default the zoo")
    parser.add_argument("--tasks", nargs="+", help="by default those of the zoo, or the sample tasks")
    parser.add_argument("--limit", type=int, default=256, help="rows of each task")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.models == ["paper"]:
        given.models = [row["name"] for _, row in catalog().iterrows() if DIVERSITY in row["papers"]]
    is_zoo = all(name.startswith("zoo/") for name in given.models)
    tasks = given.tasks or (ld.zoo.TASKS if is_zoo else SAMPLE_TASKS)
    context = multiprocessing.get_context("spawn")
    options = {"mp_context": context, "initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(given.workers, **options) if given.workers > 1 else nullcontext() as executor:
        grid = measure(given.out, given.models, tasks, given.limit, executor)
    pd.set_option("display.width", 200, "display.max_columns", 99, "display.precision", 3)
    print("Table 1 (accuracy, MSE, uniform and bias ×100)", tables.table(grid).T.to_string(), sep="\n")
    print("\nTable 4", tables.sizes(grid).to_string(index=False), sep="\n")
    shares = tables.shares(tables.modules(grid)).groupby(["term", "module"])[["share", "member_share"]].mean()
    print("\nFig. 4: shares of modules, centered, mean over models", shares.to_string(), sep="\n")
    replication = Replication(grid)
    print("\nFig. 3: correlation with accuracy along depth")
    for metric, coefficient in product(("mse", "bias", "diversity"), tables.COEFFICIENTS):
        e = replication.mean_r(replication.r.xs(metric, level="metric")[coefficient])
        print(f"{metric:10} {coefficient:9} {e.value:6.3f} ({e.low:.3f} to {e.high:.3f}) over {e.n} {e.over}")
    statements = list(replication.statements())
    print(*statements, *(f"Failed: {failure}" for failure in grid.failures), sep="\n")
    return statements


if __name__ == "__main__":
    main()
