"""What came of models × tasks × units: frames, tables, the paper's analyses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import numpy as np

from .. import _registry
from .._checks import choice, file_path, flag, number, one_of, shown, some_of, text, whole_number
from .._files import written
from ..components import Unit
from ..ensemble.decomposition import NormAt
from ..ensemble.reweight import Reweighting, reweight
from ..ensemble.scaling import LogFit, log_fit
from ..errors import InputError
from ..replication.claims import claims_of
from ..replication.correlation import correlations, z_scores
from ..replication.layer_sharing import reuse_of
from ..replication.module_shares import module_shares
from ..replication.seeds import Seeds, claims_over_seeds
from ..replication.tradeoff import TradeOff, tradeoff_signs
from ..results import Result
from ..zoo import registry as trained
from .folder import card, read_cells, refuse_two_models
from .information import PATTERN, told
from .shards import Shard

if TYPE_CHECKING:
    import pandas as pd

    from .depth_study import DepthStudy

# Quantity of a table: (loss, term, factor). The paper shows accuracy, MSE and bias in hundredths.
QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "accuracy": ("squared", "accuracy", 100),
    "MSE": ("paper", "loss", 100),
    "uniform": ("paper", "zero_bias", 100),
    "bias": ("paper", "bias", 100),
    "diversity": ("squared", "diversity", 1),
    "diversity centered": ("squared", "diversity_centered", 1),
    "diversity_logit": ("squared", "diversity_logit", 1),
    "diversity_logit centered": ("squared", "diversity_logit_centered", 1),
    "cross-entropy": ("cross_entropy", "loss", 1),
    "entropy": ("cross_entropy", "entropy", 1),
}
AVERAGE = "Avg."
Form = Literal["squared", "paper"]
# Ending of a column -> column of the metrics.
_ENDS = {"": "mean", "_low": "low", "_high": "high"}
# Column of a curve along depth: (loss, term). MSE, bias and diversity are Eq. 14's, as in the paper's figures.
CURVES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("squared", "accuracy"),
    "mse": ("paper", "loss"),
    "bias": ("paper", "bias"),
    "diversity": ("squared", "diversity"),
    "bias_centered": ("squared", "bias_centered"),
    "diversity_centered": ("squared", "diversity_centered"),
    "diversity_logit": ("squared", "diversity_logit"),
    "diversity_logit_centered": ("squared", "diversity_logit_centered"),
    "cross_entropy": ("cross_entropy", "loss"),
    "cross_entropy_bias": ("cross_entropy", "bias"),
    "cross_entropy_diversity": ("cross_entropy", "diversity"),
    "entropy": ("cross_entropy", "entropy"),
}


@dataclass(frozen=True, eq=False)
class Study(Result):
    """What a grid of models, tasks and units gave. Made by `run_study`, or read from its folders by `load`.

    metrics
        A long frame: model, task, unit, then loss, table, the row's names, term, mean, low, high (see
        `studies.metrics`).
    cells
        One dict for every finished cell: settings, where rows and model came from, versions, times.
    failures
        One sentence for every model or cell that could not be measured.
    folders
        Where it lies; the first holds the shards.
    """

    metrics: pd.DataFrame
    cells: tuple[dict[str, Any], ...]
    failures: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Self:
        """Collect one or several folders. Cells that are not finished are left out and named in `failures`.

        Of cells of one model, task and unit with different settings (another limit, say) the one that was
        finished last is taken. Raises InputError where there is no such folder, or no finished cell in any, and where
        two models (other weights, another tokenizer) have one name.
        """
        return cls.collect((path, *more))

    @classmethod
    def collect(cls, folders: Sequence[str | os.PathLike[str]], only: set[Path] | None = None) -> Self:
        """What `load` gives; `only` the cells in these folders."""
        import pandas as pd

        found, failures = read_cells(folders, only)
        if not found:
            told = "; ".join(failures) or "run the same study again to go on with it."
            raise InputError(f"{str(folders[0])!r} holds no finished study: {told}")
        metrics = pd.concat([frame for _, frame in found], ignore_index=True)
        cells = tuple(about for about, _ in found)
        first = ["model", "task", "unit"]
        metrics = metrics[first + [column for column in metrics.columns if column not in first]]
        return cls(metrics, cells, tuple(failures), tuple(map(str, folders)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy metrics, information and settings, without shards, into a folder that `load` reads."""
        place = file_path("path", path)
        for cell in self.cells:
            into = place / Path(cell["folder"]).relative_to(Path(cell["folder"]).parents[2])
            try:
                if into.is_dir() and into.samefile(cell["folder"]):
                    continue
                found = [file.name for file in Path(cell["folder"]).glob(PATTERN)]
                for name in (*found, "metrics.parquet", "meta.json"):
                    with written(into / name) as partial:
                        shutil.copyfile(Path(cell["folder"]) / name, partial)
            except OSError as error:
                raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a folder.") from error
        return place

    def frame(self) -> pd.DataFrame:
        """All numbers, tidy: one row per model, task, unit, loss, table, row and term."""
        return self.metrics

    def table(self, unit: Unit = "sublayer", intervals: bool = False) -> pd.DataFrame:
        """The paper's Table 1 for any models: a row per model, columns (quantity, task) and their average.

        Accuracy, MSE, bias and `uniform`, the loss of the uniform predictor, are in hundredths and after
        Eq. 14, as in the paper. Beside them stand diversity as softmax sees it (`centered`), the size-fair
        `diversity_logit`, and the cross-entropy in nats. `intervals` gives texts with 95 % intervals.
        """
        import pandas as pd

        flag("intervals", intervals)
        totals = self.totals()
        totals = totals[totals["unit"] == self._unit(unit)]
        models, tasks = totals["model"].unique().tolist(), totals["task"].unique().tolist()
        columns: dict[tuple[str, str], list[Any]] = {}
        for quantity, (loss, term, factor) in QUANTITIES.items():
            rows = totals[(totals["loss"] == loss) & (totals["term"] == term)].set_index(["model", "task"])
            for name in tasks:
                cells = [rows.loc[(model, name)] if (model, name) in rows.index else None for model in models]
                columns[quantity, name] = [_shown(cell, factor, intervals) for cell in cells]
            means = [rows["mean"].get(model, pd.Series(dtype=float)) for model in models]
            whole = [factor * mean.mean() if len(mean) == len(tasks) else np.nan for mean in means]
            columns[quantity, AVERAGE] = [f"{x:.4g}" for x in whole] if intervals else whole
        header = pd.MultiIndex.from_tuples(list(columns), names=["quantity", "task"])
        values = dict(enumerate(columns.values()))
        return pd.DataFrame(values, index=pd.Index(models, name="model")).set_axis(header, axis=1)

    def _unit(self, unit: Any) -> Unit:
        """A unit that the study has."""
        choice("unit", unit, get_args(Unit))
        if unit not in (there := self.metrics["unit"].unique().tolist()):
            has = one_of(there, "and")
            raise InputError(f"unit={unit!r} is not in this study, which has {has}: run it at unit {unit!r} first.")
        return cast(Unit, unit)

    def totals(self) -> pd.DataFrame:
        """The rows that are about a whole cell."""
        return self.metrics[self.metrics["table"] == "totals"]

    def summary(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """One row per model and task: accuracy beside its baselines, Theorem 1 raw and centered, the gaps.

        `accuracy` and `bag_of_words`, a cross-validated word-counting classifier (NaN where a class has fewer
        than 5 rows), are shares with 95 % intervals; `answers` is {option: share of rows the model answers
        with it}; `loss`, `bias`, `diversity` are in squared logits; `cross_entropy` and `entropy` in nats.
        """
        import pandas as pd

        self._unit(unit)
        rows = []
        for cell in self.cells:
            settings, baselines = cell["settings"], cell["baselines"]
            if settings["unit"] != unit:
                continue
            m = self.metrics
            m = m[(m["model"] == settings["model"]) & (m["task"] == settings["task"]) & (m["unit"] == unit)]
            of = m[m["table"] == "totals"].set_index(["loss", "term"])
            words = baselines["bag_of_words"] or [np.nan] * 3
            row = {"model": settings["model"], "task": settings["task"], "rows": settings["rows"]}
            row |= {"members": int(of["members"].dropna().iloc[0]), "chance": baselines["chance"]}
            accuracy = of.loc[("squared", "accuracy")]
            row |= {f"accuracy{end}": float(accuracy[name]) for end, name in _ENDS.items()}
            row |= {f"bag_of_words{end}": value for end, value in zip(_ENDS, words, strict=True)}
            chosen = m[m["table"] == "answers"]
            row["answers"] = dict(zip(chosen["term"], chosen["mean"].tolist(), strict=True))
            for part in ("", "_centered"):
                row |= {f"{x}{part}": float(of["mean"]["squared", x + part]) for x in ("loss", "bias", "diversity")}
            row |= {
                f"diversity_logit{x}": float(of["mean"]["squared", f"diversity_logit{x}"]) for x in ("", "_centered")
            }
            row |= {"cross_entropy": float(of["mean"]["cross_entropy", "loss"])}
            row |= {"entropy": float(of["mean"]["cross_entropy", "entropy"])}
            row |= {gap: float(of["mean"]["none", gap]) for gap in ("identity_gap", "absolute_gap")}
            rows.append(row)
        return pd.DataFrame(rows)

    def components(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """Bias, diversity, net and more of every component, one row per model, task and component.

        Values are a component's own, undivided, with intervals in `<term>_low`, `<term>_high`; `loss` is that of
        `decompose`. Raises InputError for a unit or loss that the study does not have.
        """
        return self._wide("components", unit, loss, ["component", "kind", "layer", "index", "repeat"])

    def modules(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """The same per module (Eq. 9-10), weighted so that they add up to the ensemble's; `share` is n_g/|L|."""
        return self._wide("modules", unit, loss, ["module", "members", "share"])

    def _wide(self, table: str, unit: Unit, loss: str, names: list[str]) -> pd.DataFrame:
        m = self.metrics
        m = m[(m["table"] == table) & (m["unit"] == self._unit(unit))]
        rows = m[m["loss"] == choice("loss", loss, m["loss"].unique().tolist())]
        keys = ["model", "task", *names]
        wide = rows.pivot(index=keys, columns="term", values=["mean", "low", "high"])
        ends = {name: end for end, name in _ENDS.items()}
        wide = wide.set_axis([f"{pair[1]}{ends[pair[0]]}" for pair in wide.columns], axis=1)
        wide = wide[[f"{term}{end}" for term in rows["term"].unique() for end in _ENDS]]
        order = rows.drop_duplicates(keys)[keys]
        return order.merge(wide.reset_index(), on=keys, how="left", sort=False)

    def models(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """The paper's Table 4 for these models: parameters, members |L|, dtype, where each came from.

        `reuses`: whether some block runs more than once in a pass. Raises InputError for a unit that the
        study does not have.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        self._unit(unit)
        cells = {c["settings"]["model"]: c for c in self.cells if c["settings"]["unit"] == unit}
        for model, m in self.metrics[self.metrics["unit"] == unit].groupby("model", sort=False):
            found = cells[str(model)]["provenance"]
            whole = m[(m["table"] == "totals") & m["members"].notna()]
            rows.append(
                {
                    "model": model,
                    "parameters": found["parameters"],
                    "members": int(whole["members"].iloc[0]),
                    "reuses": bool(m["repeat"].notna().any()),
                    "architecture": found["architecture"],
                    "dtype": found["dtype"],
                    "source": found["source"],
                }
            )
        return pd.DataFrame(rows)

    def best(self, count: int, unit: Unit = "sublayer") -> list[str]:
        """The `count` models of highest accuracy, averaged over tasks, best first (the paper's Fig. 5 shows five)."""
        whole_number("count", count, 1)
        means = self.table(unit)["accuracy"][AVERAGE].dropna().sort_values(ascending=False, kind="stable")
        return means.index[:count].tolist()

    def contributions(self, model: str, task: str, unit: Unit = "sublayer") -> Shard:
        """The stored contributions of a cell in the task's order; an ensemble that `decompose` takes.

        Raises InputError for a cell that this study does not have, and one whose shards are not beside it.
        """
        asked = (text("model", model), text("task", task), self._unit(unit))
        found = [
            cell
            for cell in self.cells
            if (cell["settings"]["model"], cell["settings"]["task"], cell["settings"]["unit"]) == asked
        ]
        if not found:
            raise InputError(f"this study has no cell of {shown(model)} on {shown(task)} at unit {unit!r}.")
        files = sorted(Path(found[-1]["folder"]).glob("shard-*.safetensors"))
        if not files:
            raise InputError("this study was saved without its contributions: load the folder it was run in.")
        shards = [Shard.load(file) for file in files]
        there, wanted = sum(len(shard.rows) for shard in shards), found[-1]["settings"]["rows"]
        if there != wanted:
            raise InputError(
                f"{found[-1]['folder']!r} holds {there} of {wanted} rows: remove its metrics.parquet and run the study "
                "again, which computes the others."
            )
        return Shard.join(shards)

    def curves(
        self,
        unit: Unit = "sublayer",
        norm: NormAt = "frozen",
        standardized: bool = False,
        models: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Accuracy, MSE, bias, diversity and more of the prefix ensembles (Fig. 5 and 7), wide.

        One row per model, task and junction, numbered from 0; junctions that the stream never holds are
        left out. `standardized`: each curve less its mean, over its standard deviation, as in the figures; NaN if
        it never moves.
        `models`: these only, such as `best(5)`. Raises InputError for a unit that has no depth tables here,
        and for a model that is not in the study.
        """
        table = "depth" if choice("norm", norm, get_args(NormAt)) == "frozen" else "depth_recomputed"
        flag("standardized", standardized)
        rows = self.metrics[(self.metrics["table"] == table) & (self.metrics["unit"] == self._unit(unit))]
        rows = rows[~rows["partial"].astype(bool)]
        if rows.empty:
            raise InputError(f"this study has no curves at unit {unit!r}: run it at unit 'sublayer'.")
        if models is not None:
            rows = rows[rows["model"].isin(some_of("models", models, rows["model"].unique().tolist()))]
        keys = ["model", "task", "component", "members"]
        frame: pd.DataFrame | None = None
        for name, (loss, term) in CURVES.items():
            one = rows[(rows["loss"] == loss) & (rows["term"] == term)][[*keys, "mean"]].rename(columns={"mean": name})
            frame = one if frame is None else frame.merge(one, on=keys, how="left", sort=False)
        assert frame is not None
        frame.insert(3, "junction", frame.groupby(["model", "task"], sort=False).cumcount())
        if standardized:
            curves = frame.groupby(["model", "task"], sort=False)[list(CURVES)]
            frame[list(CURVES)] = curves.transform(lambda curve: z_scores(curve.to_numpy(dtype=float)))
        return frame

    def correlations(self, unit: Unit = "sublayer", n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """How MSE, bias, diversity and more go with accuracy along depth (Fig. 3); see `correlations`.

        Three readings, the paper's p-values and ones that hold, per task and on average. Training seeds of one
        shape that the zoo knows count as one model.
        """
        return correlations(self.curves(unit), clusters=self._shapes(unit), n_resamples=n_resamples, seed=seed)

    def tradeoff_signs(
        self, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0
    ) -> TradeOff:
        """Do centered bias and diversity trade off only where accuracy stands still (5.4)? See `tradeoff_signs`.

        Training seeds of one shape that the zoo knows count as one model.
        """
        return tradeoff_signs(
            self.curves(unit),
            bias="bias_centered",
            diversity="diversity_centered",
            still=still,
            clusters=self._shapes(unit),
            n_resamples=n_resamples,
            seed=seed,
        )

    def _shapes(self, unit: Unit) -> dict[str, str]:
        """{model: shape} of the zoo's models, whose training seeds are not independent models."""
        known = self.metrics.loc[self.metrics["unit"] == self._unit(unit), "model"].unique()
        return {name: shape for name, (shape, _) in trained.seeds(known).items()}

    def shares(self, unit: Unit = "sublayer", form: Form = "squared") -> pd.DataFrame:
        """Which module holds how much of bias and diversity, raw and centered (Fig. 4); see `module_shares`.

        In squared logits (Theorem 1); `form` "paper" takes the bias from Eq. 14, as the paper's figure does.
        """
        choice("form", form, get_args(Form))
        metrics = self.metrics[self.metrics["unit"] == self._unit(unit)]
        rows = metrics[(metrics["table"] == "modules") & (metrics["loss"] == form)]
        keys = ["model", "task", "module", "members"]
        wide = rows.pivot(index=keys, columns="term", values="mean").reset_index()
        return module_shares(wide.rename_axis(columns=None))

    def scaling(self, quantity: str = "accuracy", unit: Unit = "sublayer", least_parameters: float = 0.0) -> LogFit:
        """A quantity of `table`, averaged over tasks, against the number of components (Fig. 6); see `log_fit`.

        `least_parameters` leaves smaller models out; the paper's figure has those of 1e9 and more. Raises
        InputError for an unknown quantity, and for fewer than two models with different numbers.
        """
        choice("quantity", quantity, QUANTITIES)
        number("least_parameters", least_parameters, least=0)
        models = self.models(unit).set_index("model")
        models = models[models["parameters"] >= least_parameters]
        means = self.table(unit)[quantity][AVERAGE].dropna()
        means = means[means.index.isin(models.index)]
        return log_fit(models["members"][means.index].to_numpy(dtype=float), means.to_numpy(dtype=float))

    @cached_property
    def depth(self) -> DepthStudy | None:
        """The depth analyses that lie in the same folders (`layerdiv depth`), or None.

        Raises InputError where they are of another model that has the same name.
        """
        from .depth_study import DepthStudy

        found = DepthStudy.collect([folder for folder in self.folders if os.path.isdir(os.path.expanduser(folder))])
        if found is not None:
            theirs = [(", ".join(found.folders), card(a.about)) for a in found.analyses]
            refuse_two_models([*((cell["folder"], card(cell)) for cell in self.cells), *theirs])
        return found

    def claims(
        self,
        unit: Unit = "sublayer",
        pairs: Mapping[str, str] | None = None,
        n_resamples: int = 1000,
        seed: int = 0,
        seeds: Seeds | None = None,
    ) -> pd.DataFrame:
        """What the paper claims and what this study says about it: a row for every reading of a claim (MATHS 13).

        `estimate` with a 95 % interval (`low`, `high`), the `null` it is held against, `unit`, and `verdict`:
        "confirmed" or "refuted" where the interval lies on one side of the null, "within noise" where it
        holds it, "not tested" where the study has too little for an interval, nothing that the claim is about, or
        no null that holds. `interval_over` says what the interval is over, and `n` how many: models if there are eight
        (training seeds of one shape that the zoo knows count as one), else eight tasks, which speaks of these models
        only. `rationale` says it in words.

        Claims 1 and 5 are about curves along depth, where tasks share the model's curve and all models may change at
        the same depth. They are decided over models only, and where `p` is below 0.05 too: it gives models the other
        curve of models of their depth (see `correlations`), and needs five of one depth, or several of each of a few.
        Claim 2 is estimated and never decided: accuracies counted over rows put ranks below values by themselves.
        `tests/calibration` measures how often verdicts are false.

        1. MSE tracks accuracy. 2. Spearman's correlation is below Pearson's. 3. Shares of bias follow the
           counts of members (equivalence within 0.05). 4. MLPs dominate diversity. 5. Bias and diversity trade off
           only where accuracy stands still. 6. Bias stays away from 0. 7. Returns diminish with the number of
           components. 8. Reuse of layers lowers diversity, before and after the size correction. 9-12. What the
           second paper says, from depth analyses in the same folder: see `DepthStudy.claims`.

        pairs
            {model that reuses layers: model that does not} for claim 8; None takes those whose numbers of
            parameters are within 5 % of each other, of the same training seed where the zoo knows one.
        seeds
            {model: (shape, seed)}, as `ld.zoo.seeds(names)` makes it for the zoo's models, where models of one
            shape differ in their training seed only. Every estimate of claims 1-8 is then made once for each
            seed, from the shapes that all seeds have; their mean stands in the table (of logarithms for
            ratios of claim 8, of Fisher's z for the correlation of claim 1) with Student's interval over seeds,
            which three are needed for. It says how far the same shapes trained again would differ, not other
            shapes. There is no p, `draws` and `seed` play no part, and models that are not named, or whose shape a
            seed lacks, are left out. `pairs` speak of shapes: one of one seed stands for all. `attrs` holds
            `seeds`, `shapes` and what was `left out`.

        Each verdict is at 5 %, not corrected for their number. Raises InputError for a unit, a pair or a name
        in `seeds` that the study does not have, fewer than two seeds, two models of one shape and seed, and
        where no shape has all seeds.

        >>> from layerdiv_tl import run_study, zoo
        >>> study = run_study(["zoo/d1", "zoo/d1-seed1", "zoo/d1-seed2"], "synthetic/recall", limit=8)
        >>> claims = study.claims(seeds=zoo.seeds(study.models()["model"]))
        >>> claims.loc[claims["number"] == 6, ["interval_over", "n"]].values.tolist()
        [['seeds', 3]]
        """
        self._unit(unit)
        if seeds is not None:
            return claims_over_seeds(self, unit, pairs, seeds)
        return claims_of(self, unit, pairs, n_resamples, seed)

    def information(
        self,
        estimator: str | Sequence[str] = "gaussian",
        unit: Unit = "sublayer",
        *,
        models: str | Sequence[str] | None = None,
        tasks: str | Sequence[str] | None = None,
        n_groups: int | None = None,
        n_contrasts: int | None = 1,
        n_permutations: int = 50,
        n_resamples: int = 50,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Information-theoretic diversity (Eq. 13) of every cell: what its components tell about the label, in bits.

        estimator
            "gaussian", "vote", "variational", one or several: see `ld.information`.
        models, tasks
            One or several, these only; None is all.
        groups, contrasts, null, draws, seed
            As in `ld.information`; one contrast of each component, by default, so that 2000 rows suffice for dozens.

        One row per model, task, estimator and term: members, rows, `bits` with interval, its null, H(Y) as
        `label_entropy`, `warnings` to read first, of these `doubts` (a test of fit, `fit_p`, or a nonlinear
        `lower_bound` of the joint information contradicts the estimate), and `settings`. What is computed is kept
        beside the cell's metrics and shown in the report. Cells with too few rows are named in
        `attrs["left_out"]`; where there are no others, and for a model, task or unit that the study does not have:
        InputError.
        """
        options = {
            "n_groups": n_groups,
            "n_contrasts": n_contrasts,
            "n_permutations": n_permutations,
            "n_resamples": n_resamples,
            "seed": seed,
        }
        return told(self, unit, estimator, models, tasks, options)

    def layer_sharing(
        self, unit: Unit = "sublayer", pairs: Mapping[str, str] | None = None, seeds: Seeds | None = None
    ) -> pd.DataFrame:
        """Models that reuse layers beside ones that do not, as in the paper's Table 1 (5.6): a row for each pair.

        `matched_on` says what is the same about the two: "same parameters" (within 5 %) or "same depth", as
        many members and the same training seed. Averaged over the `tasks` that both have: accuracy, `MSE` and
        `bias` of Eq. 14 in hundredths, diversity in squared logits, raw and `_centered`, and the same after the size
        correction, `diversity_logit` = |L|² × diversity. Columns that end in `_plain` are of the model that
        does not reuse; `<diversity>_ratio` is reused over plain, the geometric mean, with Student's interval
        of its logarithm in `_ratio_low` and `_ratio_high`.

        Rows whose `interval_over` is "seeds" come first: of two or more training seeds of one pair of shapes, which
        go by the shapes' names; the interval is over these `n` seeds. That of the others is over their `n`
        tasks, and speaks of these two models only. An interval needs eight tasks, or three
        seeds.

        pairs
            {model that reuses layers: model that does not}; None takes those of the same number of parameters,
            and those of the same depth.
        seeds
            As in `claims`; None takes those that the zoo knows.

        Raises InputError for a unit, a pair or a seed's name that the study does not have, and where there is
        no pair, or none with a common task.

        >>> from layerdiv_tl import run_study
        >>> study = run_study(["zoo/d2", "zoo/d4", "zoo/d4-shared"], "synthetic/recall", limit=8)
        >>> study.layer_sharing()[["model", "baseline", "matched_on", "members", "members_baseline"]].values.tolist()
        [['zoo/d4-shared', 'zoo/d2', 'same parameters', 9, 5], ['zoo/d4-shared', 'zoo/d4', 'same depth', 9, 9]]
        """
        return reuse_of(self, self._unit(unit), pairs, seeds)

    def reweight(self, model: str, task: str, unit: Unit = "sublayer", **options: Any) -> Reweighting:
        """Re-weight the components of a cell from a few of its rows, without a model; see `reweight`."""
        shard = self.contributions(model, task, unit)
        return reweight(shard, shard.labels, **options)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the study as one offline page: what the numbers say, claims, tables, figures, methods, provenance.

        Raises InputError for a file that cannot be written.
        """
        page = _registry.lookup("study_page")(self)
        try:
            return page.write(path)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give the path of a file.") from error

    def __repr__(self) -> str:
        failed = f"; {len(self.failures)} failed or unfinished" if self.failures else ""
        counts = [self.metrics[name].nunique() for name in ("model", "task", "unit")]
        return f"Study({counts[0]} models × {counts[1]} tasks × {counts[2]} units, {len(self.cells)} cells{failed})"


def _shown(cell: Any, factor: float, intervals: bool) -> Any:
    if cell is None:
        return "" if intervals else np.nan
    if not intervals:
        return factor * cell["mean"]
    low, high = factor * cell["low"], factor * cell["high"]
    return f"{factor * cell['mean']:.4g}" + (f" [{low:.4g}, {high:.4g}]" if low == low else "")
