"""The result of a study (models × tasks × units): its tables and the analyses of both papers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import pandas as pd

from .. import _registry
from .._checks import choice, file_path, shown, text
from .._files import PARTIAL, written
from ..components import Unit
from ..ensemble.fits import LogFit, log_fit
from ..ensemble.information.estimator import EstimatorName
from ..ensemble.reweight import Reweighting, reweight
from ..errors import InputError
from ..replication.claim import Evidence, claim_tests, claims_frame
from ..replication.claims_over_seeds import claim_tests_over_seeds
from ..replication.correlation import correlations
from ..replication.depth_claims import depth_claim_tests
from ..replication.layer_sharing import Seeds, layer_sharing_table
from ..replication.shares import module_shares
from ..replication.tradeoff import TradeOff, tradeoff_signs
from ..results import ENDINGS, Figure, load_result
from .depth_study import DepthStudy
from .folder import CARD, OLD, SkippedFile, card_of, read_newest, refuse_two_models, write_page
from .information import CELL, PATTERN, study_information
from .over_training import OverTraining, checkpoints, over_training
from .shards import FORMAT, META, METRICS, Shard, digest_of, file_digest
from .tables import StudyTables

Form = Literal["squared", "paper"]


# A cell's description and metrics.
_Cell = tuple[dict[str, Any], pd.DataFrame]
# Files that only a cell's folder has.
_FILES = ("shard-*.safetensors", METRICS, META, PARTIAL)


@dataclass(frozen=True, eq=False, repr=False)
class Study(StudyTables):
    """A study of a grid of models, tasks and units. Returned by `run_study`, or read from its folders by `load`."""

    figures: ClassVar = {
        "table": "study.table_map",
        "size": "size.size_panels",
        "correlations": "study.correlation_bars",
        "curves": "curves.depth_panels",
        "shares": "study.share_bars",
        "scaling": "study.scaling_curve",
        "tradeoff": "tradeoff.tradeoff_of",
        "information": "size.information_of",
    }

    def plot(
        self,
        kind: Literal["table", "size", "correlations", "curves", "shares", "scaling", "tradeoff", "information"]
        | None = None,
        **options: Any,
    ) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Self:
        """Collect one or several folders. Unfinished cells are left out and named in `failures`.

        If a model, task and unit has cells with different settings (e.g. another limit), the latest is taken. Raises
        InputError for a missing folder, if no folder has a finished cell, and if two different models (weights or
        tokenizer) share a name.
        """
        return cls.collect((path, *more))

    @classmethod
    def collect(cls, folders: Sequence[str | os.PathLike[str]], only: set[Path] | None = None) -> Self:
        """Collect like `load`, optionally `only` the cells in these folders."""

        def find(root: Path) -> list[Path]:
            cells = {file.parent for name in _FILES for file in root.glob(f"*/*/*/{name}")}
            return [cell / META for cell in sorted(cells if only is None else cells & only, key=_natural)]

        cells, failures = read_newest(folders, "the study", find, _read_cell)
        if not cells:
            reason = " ".join(failures) or "run the same study again to go on with it."
            raise InputError(f"{str(folders[0])!r} holds no finished study: {reason}")
        metrics = pd.concat([frame for _, frame in cells], ignore_index=True)
        metrics = metrics[[*CELL, *metrics.columns.drop(list(CELL))]]
        return cls(metrics, tuple(about for about, _ in cells), tuple(failures), tuple(map(str, folders)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Copy metrics, information and settings, without shards, into a folder that `load` reads."""
        if (copy := file_path("path", path)).suffix.lower() in ENDINGS:
            raise InputError(f"save writes a folder, not {str(path)!r}: use report for a page, frame for a table.")
        for cell in self.cells:
            folder, root = Path(cell["folder"]), Path(cell["folder"]).parents[2]
            into = copy / folder.relative_to(root)
            try:
                if into.is_dir() and into.samefile(folder):
                    continue
                for file in (*folder.glob(PATTERN), *folder.parents[1].glob(CARD), folder / METRICS, folder / META):
                    with written(copy / file.relative_to(root)) as partial:
                        shutil.copyfile(file, partial)
            except OSError as error:
                raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give a folder.") from error
        return copy

    def contributions(self, model: str, task: str, unit: Unit = "sublayer") -> Shard:
        """Return the stored contributions of a cell in the task's order, an ensemble for `decompose`.

        Raises InputError for a cell that is not in this study, and for one whose shards are not in its folder.
        """
        self._metrics(unit)
        wanted = {"model": text("model", model), "task": text("task", task), "unit": unit}
        cells = [cell for cell in self.cells if wanted.items() <= cell["settings"].items()]
        if not cells:
            raise InputError(f"this study has no cell of {shown(model)} on {shown(task)} at unit {unit!r}.")
        folder, settings = Path(cells[-1]["folder"]), cells[-1]["settings"]
        files, digest = sorted(folder.glob("shard-*.safetensors")), digest_of(settings)
        if not files:
            raise InputError("this study was saved without its contributions: load the folder it was run in.")
        shards = [load_result(Shard, file, digest) for file in files]
        if (stored := sum(len(shard.rows) for shard in shards)) != settings["rows"]:
            raise InputError(
                f"{str(folder)!r} holds {stored} of {settings['rows']} rows: remove its metrics.parquet and run the "
                "study again, which computes the others."
            )
        return Shard.join(shards)

    def correlations(self, unit: Unit = "sublayer", n_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """Correlate metrics with accuracy along depth (Fig. 3), as in `correlations`; clusters are `shapes`."""
        return correlations(self.curves(unit), clusters=self.shapes(unit), n_resamples=n_resamples, seed=seed)

    def tradeoff_signs(
        self, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0
    ) -> TradeOff:
        """Apply `tradeoff_signs` to centered bias and diversity (section 5.4); clusters are `shapes`."""
        options: dict[str, Any] = {"bias": "bias_centered", "diversity": "diversity_centered", "still": still}
        options |= {"clusters": self.shapes(unit), "n_resamples": n_resamples, "seed": seed}
        return tradeoff_signs(self.curves(unit), **options)

    def shares(self, unit: Unit = "sublayer", form: Form = "squared") -> pd.DataFrame:
        """Return each module's share of bias and diversity, raw and centered (Fig. 4); see `module_shares`.

        In squared logits (Theorem 1); `form` "paper" takes the bias from Eq. 14, as the paper's figure does.
        """
        choice("form", form, get_args(Form))
        rows = self._metrics(unit, "modules")
        keys = ["model", "task", "module", "members"]
        wide = rows[rows["loss"] == form].pivot(index=keys, columns="term", values="mean").reset_index()
        return module_shares(wide.rename_axis(columns=None))

    def scaling(self, quantity: str = "accuracy", unit: Unit = "sublayer", least_parameters: float = 0.0) -> LogFit:
        """Fit a quantity of `table`, averaged over tasks, to the number of components (Fig. 6); see `log_fit`.

        `least_parameters` excludes smaller models; the paper's figure starts at 1e9. Training seeds of one shape
        (`shapes`) are averaged to one point. Raises InputError for an unknown quantity, and for fewer than two models
        with different numbers.
        """
        points = self.shape_means(quantity, unit, least_parameters)
        return log_fit(points["members"].to_numpy(), points["mean"].to_numpy())

    @cached_property
    def depth(self) -> DepthStudy | None:
        """The depth analyses in the same folders (`layerdiv depth`), or None.

        They are read once: load the study again after a later run. Raises InputError if they belong to another model
        of the same name.
        """
        study = DepthStudy.collect([folder for folder in self.folders if Path(folder).expanduser().is_dir()])
        if study is not None:
            cards = [(cell["folder"], card_of(cell)) for cell in self.cells]
            refuse_two_models([*cards, *((", ".join(study.folders), card_of(a.about)) for a in study.analyses)])
        return study

    def claims(
        self,
        unit: Unit = "sublayer",
        pairs: Mapping[str, str] | None = None,
        n_resamples: int = 1000,
        seed: int = 0,
        seeds: Seeds | None = None,
    ) -> pd.DataFrame:
        """Test the claims of both papers on this study: one row per variant of a claim.

        1. MSE tracks accuracy. 2. Spearman's correlation is below Pearson's. 3. Shares of bias follow the counts of
        members (within 0.05). 4. MLPs dominate diversity. 5. Bias and diversity trade off only where accuracy stands
        still. 6. Bias stays away from 0. 7. Returns diminish with the number of components. 8. Reuse of layers lowers
        diversity, before and after the size correction. 9-12: see `DepthStudy.claims`, for analyses in the same folder.

        `estimate` has a 95 % interval over the `n` units in `interval_over`: models if there are eight (training seeds
        of one shape count as one), otherwise eight tasks. The `verdict` is "confirmed" or "refuted" if the interval
        lies on one side of `null`, "within noise" if it contains it, otherwise "not tested"; it holds for the
        `population` only. The level is 5 %, without correction for the number of claims. Claims 1 and 5 are decided
        over models only and also need `p` below 0.05, from a test that permutes models of one depth (see
        `correlations`). Claim 2 is estimated but never decided.

        Args:
            pairs: {model that reuses layers: model that does not} for claim 8; None pairs models whose numbers of
                parameters are within 5 % of each other, with the same training seed if the zoo knows it.
            seeds: {model: (shape, seed)}, e.g. from `ld.zoo.seeds(names)`. Claims 1-8 are then means over seeds of the
                shapes that all seeds have, with Student's interval over three or more seeds and no p; a pair given for
                one seed stands for all. `attrs` holds `seeds`, `shapes` and what was `left out`.

        Raises InputError for a unit, a pair or a name in `seeds` that is not in the study, for fewer than two seeds or
        two models of one shape and seed, and if no shape has all seeds.

        >>> from layerdiv_tl import run_study, zoo
        >>> study = run_study(["zoo/d1", "zoo/d1-seed1", "zoo/d1-seed2"], "synthetic/recall", limit=8)
        >>> claims = study.claims(seeds=zoo.seeds(study.models()["model"]))
        >>> claims.loc[claims["number"] == 6, ["interval_over", "n"]].values.tolist()
        [['seeds', 3]]
        """
        metrics = self._metrics(unit)
        curves = self.curves(unit) if metrics["table"].eq("depth").any() else None
        evidence = Evidence(metrics, self.models(unit), curves, self.shapes(unit), pairs, n_resamples, seed)
        if seeds is None:
            tests, attrs = list(claim_tests(evidence)), {"n_resamples": n_resamples, "seed": seed}
        else:
            tests, attrs = claim_tests_over_seeds(evidence, seeds)
        depth = depth_claim_tests(None if self.depth is None else self.depth.claim_results)
        return claims_frame([*tests, *depth], **attrs | {"component unit": unit})

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
        """Estimate the information-theoretic diversity (Eq. 13) of every cell, in bits about the label.

        Args:
            estimator: One or several estimators of `ld.information`.
            models, tasks: One or several of the study's; None is all.
            n_groups, n_contrasts, n_permutations, n_resamples, seed: As in `ld.information`; one contrast per component
                makes 2000 rows suffice for dozens of components.

        Returns one row per model, task, estimator and term: members, rows, `bits` with interval, its null, H(Y) as
        `label_entropy`, `warnings` to read first, a variational `lower_bound` of the joint information, and
        `settings`. Estimates are stored with the cell's metrics. Cells with too few rows are listed in
        `attrs["left_out"]`. Raises InputError if no cell has enough rows, and for a model, task or unit that is not in
        the study.
        """
        options = {"n_groups": n_groups, "n_contrasts": n_contrasts, "n_permutations": n_permutations}
        options |= {"n_resamples": n_resamples, "seed": seed}
        choice("unit", unit, self.metrics["unit"].unique().tolist())
        cells = [cell for cell in self.cells if cell["settings"]["unit"] == unit]
        return study_information(cells, self.contributions, estimator, models, tasks, options)

    def over_training(
        self, unit: Unit = "sublayer", steps: Mapping[str, int] | None = None, estimator: str | None = None
    ) -> OverTraining:
        """Arrange a study of checkpoints by training step: accuracy, loss, bias, diversity, and their order of change.

        Args:
            unit: A unit of the study.
            steps: {model name: step}; None parses names like "step1000" or "d4-seed1@step1000", in which "d4-seed1" is
                the run and "seed1" the training seed. Other models are left out.
            estimator: Estimator of `information` whose terms (in bits) are added; None adds none.

        If the folder also has effects (`run_depth(models, tasks, analyses="effects", out=the same)`), `direct_effect`
        and `total_effect` are those of each sublayer on the logit difference, or their sums in the totals. Raises
        InputError for a study without two checkpoints of one run, and like `information`.

        >>> from layerdiv_tl import run_study
        >>> models = {"step1": "zoo/d2", "step2": "zoo/d2-seed1"}
        >>> training = run_study(models, "synthetic/recall", limit=8).over_training()
        >>> training.frame()[["run", "step", "accuracy"]].values.tolist()
        [['model', 1, 1.0], ['model', 2, 1.0]]
        """
        totals = self._metrics(unit, "totals")
        placed = checkpoints(totals["model"].unique().tolist(), steps)
        information = None
        if estimator is not None:
            name = choice("estimator", estimator, get_args(EstimatorName))
            information = self.information(name, unit, models=list(placed))
        about = [cell["settings"] for cell in self.cells]
        found = {(s["model"], s["task"]) for s in about if s["model"] in placed}
        effects = self.depth.effects(found) if self.depth is not None and unit == "sublayer" else {}
        sequences = tuple(dict.fromkeys(s["task"] for s in about if not s["option_ids"]))
        components = self.components(unit)
        return over_training(totals, components, placed, information, effects, unit=unit, sequences=sequences)

    def layer_sharing(
        self, unit: Unit = "sublayer", pairs: Mapping[str, str] | None = None, seeds: Seeds | None = None
    ) -> pd.DataFrame:
        """Compare models that reuse layers with baselines that do not (Table 1, 5.6): one row per pair.

        `matched_on` is "same parameters" (within 5 %) or "same depth" (equal number of members and training seed).
        Columns of `table` are averaged over the `tasks` that both models have; the baseline's end in `_baseline`.
        `<diversity>_ratio` is the geometric mean of reused over baseline, with an interval over eight or more tasks.
        The first rows, named by shapes, average two or more training seeds, with an interval over three or more.

        Args:
            pairs, seeds: As in `claims`; None pairs models of the same number of parameters and of the same depth, and
                takes the seeds that the zoo knows.

        Raises InputError for a unit, a pair or a seed's name that is not in the study, and if there is no pair, or none
        with a common task.

        >>> from layerdiv_tl import run_study
        >>> study = run_study(["zoo/d2", "zoo/d4", "zoo/d4-shared"], "synthetic/recall", limit=8)
        >>> study.layer_sharing()[["model", "baseline", "matched_on", "members", "members_baseline"]].values.tolist()
        [['zoo/d4-shared', 'zoo/d2', 'same parameters', 9, 5], ['zoo/d4-shared', 'zoo/d4', 'same depth', 9, 9]]
        """
        repeats = self._metrics(unit).groupby("model")["repeat"].max().to_dict()
        return layer_sharing_table(self.models(unit), self.table(unit), repeats, pairs, seeds)

    def reweight(self, model: str, task: str, unit: Unit = "sublayer", **options: Any) -> Reweighting:
        """Re-weight the components of a cell from a few of its rows, without running a model; see `reweight`."""
        shard = self.contributions(model, task, unit)
        return reweight(shard, shard.labels, **options)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the study as one offline page. Raises InputError for a file that cannot be written."""
        return write_page(_registry.lookup("study_page")(self), path)

    def __repr__(self) -> str:
        failed = f"; {len(self.failures)} failed or unfinished" if self.failures else ""
        counts = [self.metrics[name].nunique() for name in ("model", "task", "unit")]
        return f"Study({counts[0]} models × {counts[1]} tasks × {counts[2]} units, {len(self.cells)} cells{failed})"


def _read_cell(file: Path, about: dict[str, Any] | None) -> tuple[tuple[str, ...], dict[str, Any], _Cell]:
    """Return the key, the description and the contents of a cell."""
    cell = file.parent
    # An unfinished cell has no description, but its model has a card.
    if about.get("format") != FORMAT if about else not (cell.parents[1] / CARD).is_file():
        raise SkippedFile(cell.parents[1], f": {OLD}")
    if about is None or not (cell / METRICS).is_file():
        raise SkippedFile(cell, " is not finished: run the same study again")
    if file_digest(cell / METRICS) != about["metrics"]:
        raise InputError(f"its {METRICS} is not the one that was written")
    names = {name: about["settings"][name] for name in CELL}
    frame = pd.read_parquet(cell / METRICS).assign(**names)
    return tuple(names.values()), about, (about | {"folder": str(cell)}, frame)


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """Return a key that sorts d2 before d12, and d2 before d2-seed1."""
    names = [re.split(r"(\d+)", name) for name in path.parts[-3:]]
    return [[(int(part), "") if part.isdigit() else (-1, part) for part in name if part] for name in names]
