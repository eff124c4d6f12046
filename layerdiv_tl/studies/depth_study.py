"""Results of depth analyses of one or several models, stored in a folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

import pandas as pd

from .. import _registry
from .._checks import file_path
from ..components import COLUMNS
from ..depth.agreement import Agreement
from ..depth.depth_score import DepthScore
from ..depth.effect_results import Effects
from ..depth.layer_maps import LayerMaps
from ..depth.logit_lens import LogitLens
from ..depth.pruning_results import DropPlan
from ..depth.residual_norms import ResidualNorms
from ..depth.skipping import Skip
from ..errors import InputError
from ..replication.claim import claims_frame
from ..replication.depth_claims import DepthResults, depth_claim_tests
from ..results import ENDINGS, Figure, Result, load_result, save_result
from .folder import OLD, SkippedFile, read_newest, write_page
from .shards import digest_of, read_json, safe_name, write_json

FOLDER = "depth"
# Format version of analyses and their defaults. 5: results of format 4; 4: results name their analysis.
FORMAT = "layerdiv_tl.depth/7"
Kind = TypeVar("Kind", bound=Result)
# Analyses in order, with their classes: a result can be loaded once its class is imported.
ANALYSES: Mapping[str, type[Result]] = {
    "residual_norms": ResidualNorms,
    "skip": Skip,
    "skip_future": Skip,
    "logit_lens": LogitLens,
    "depth_score": DepthScore,
    "agreement": Agreement,
    "drop_plan": DropPlan,
    "map_layers": LayerMaps,
    "effects": Effects,
}
STANDARD = tuple(name for name in ANALYSES if name != "effects")


@dataclass(frozen=True)
class Analysis:
    """One finished analysis: its model, name, dataset, result and provenance."""

    model: str
    name: str
    dataset: str
    result: Result
    about: dict[str, Any]

    def write(self, folder: Path) -> Path:
        """Write the result, then the file that describes it, so that a description implies a complete result."""
        path = analysis_file(folder, self.about)
        result: Any = self.result
        # Licenses of texts may not allow to store them.
        result = replace(result, **{name: () for name in ("prompt_ends", "top_token") if hasattr(result, name)})
        save_result(result, path.with_suffix(".safetensors"), self.about["digest"])
        write_json(path, self.about)
        return path


@dataclass(frozen=True, eq=False)
class DepthStudy(Result):
    """Depth analyses of one or several models. Returned by `run_depth`, or read from its folders by `load`.

    Attributes:
        analyses: All finished analyses, model by model, in the order of the standard set.
        failures: One sentence for every model or analysis that failed.
        folders: The folders of the results.
    """

    analyses: tuple[Analysis, ...]
    failures: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Self:
        """Collect one or several folders; an analysis stored with several settings is read from its latest run.

        Raises InputError for a missing folder, if no folder has a finished analysis, and if two different models
        (weights or tokenizer) share a name.
        """
        study = cls.collect((path, *more))
        if study is None:
            raise InputError(f"{str(path)!r} holds no depth analyses: run layerdiv depth --out there first.")
        return study

    @classmethod
    def collect(cls, folders: Sequence[str | os.PathLike[str]], only: set[Path] | None = None) -> Self | None:
        """Collect like `load`, optionally `only` these files; return None if nothing is found."""

        def find(root: Path) -> list[Path]:
            files = sorted(root.glob(f"{FOLDER}/*/*-{12 * '[0-9a-f]'}.json"))  # an exported plan has no digest
            return [file for file in files if only is None or file in only]

        newest, failures = read_newest(folders, "layerdiv depth", find, read_analysis)
        if not newest:
            return None
        models, names = list(dict.fromkeys(a.model for a in newest)), list(ANALYSES)
        analyses = sorted(newest, key=lambda a: (models.index(a.model), names.index(a.name), a.dataset))
        return cls(tuple(analyses), tuple(failures), tuple(map(str, folders)))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(dict.fromkeys(a.model for a in self.analyses))

    def of(self, kind: type[Kind]) -> list[tuple[str, Kind]]:
        """Return (model, result) for every result of a class, e.g. `ResidualNorms` or `Agreement`."""
        return [(a.model, a.result) for a in self.analyses if isinstance(a.result, kind)]

    def newest(self, name: str) -> dict[str, Any]:
        """Return {model: result} of an analysis, e.g. "skip_future"; the latest if it was run on several texts."""
        by_time = sorted((a for a in self.analyses if a.name == name), key=lambda a: a.about["finished"])
        last = {a.model: a.result for a in by_time}
        return {model: last[model] for model in self.models if model in last}

    def effects(self, of: Collection[tuple[str, str]]) -> dict[tuple[str, str], Effects]:
        """Return {(model, task): effects} for these models, restricted to the rows of each task's latest effects.

        A run with another limit may have stopped before it reached every checkpoint.
        """
        rows = ("prompts", "labels", "options", "multi_token")
        own = (a for a in self.analyses if a.name == "effects" and (a.model, a.dataset) in of)
        done = sorted(own, key=lambda a: a.about["finished"])
        last = {a.dataset: [a.about["settings"][name] for name in rows] for a in done}
        kept = [a for a in done if [a.about["settings"][name] for name in rows] == last[a.dataset]]
        return {(a.model, a.dataset): cast(Effects, a.result) for a in kept}

    @property
    def claim_results(self) -> DepthResults:
        """Collect the results on which claims 9-12 are tested."""
        norms, skips, scores = map(self.newest, ("residual_norms", "skip_future", "depth_score"))
        return DepthResults(norms, skips, scores, [maps for _, maps in self.of(LayerMaps)])

    figures: ClassVar = {"depth": "curves.study_lines"}

    def plot(self, kind: Literal["depth"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """Return all numbers in tidy form: model, analysis, dataset, row names, quantity, value, low, high.

        `low` and `high` bound the 95 % interval of the quantity; they are NaN if it has none.
        """
        names = (*COLUMNS, "target", "plan", "dropped", "group", "text", "position", "token")
        ends = ("_low", "_high", "_q10", "_q90", "_median", "_max", "_rank")
        frames = []
        for a in self.analyses:
            wide = a.result.frame().rename(columns=str)
            keys = [name for name in names if name in wide]
            for quantity in [str(c) for c in wide if c not in keys and not str(c).endswith(ends)]:
                part = wide[keys].assign(quantity=quantity, value=pd.to_numeric(wide[quantity], errors="coerce"))
                for end in ("low", "high"):
                    part[end] = wide.get(f"{quantity}_{end}", float("nan"))
                frames.append(part.assign(model=a.model, analysis=a.name, dataset=a.dataset))
        frame = pd.concat(frames, ignore_index=True)
        rest = [name for name in (*names, "quantity", "value", "low", "high") if name in frame]
        return frame[["model", "analysis", "dataset", *rest]]

    def claims(self) -> pd.DataFrame:
        """Test claims 9-12 of the paper on depth on these models. Columns are those of `Study.claims`.

        9. The later half of the layers contributes less. 10. Skipping late layers disturbs later computation less.
        11. Models do not use deeper layers for more hops. 12. Layers at the same relative depth map best.

        Intervals are over models if there are at least eight, otherwise over texts (questions for claim 11) if each
        model has at least eight; otherwise a claim is not tested. Intervals over texts hold for these models only.
        """
        return claims_frame(depth_claim_tests(self.claim_results))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write all results as one offline page. Raises InputError for a file that cannot be written."""
        return write_page(_registry.lookup("depth_page")(self), path)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all analyses into a folder that `load` reads."""
        if (folder := file_path("path", path)).suffix.lower() in ENDINGS:
            raise InputError(f"save writes a folder, not {str(path)!r}: use report for a page, frame for a table.")
        for a in self.analyses:
            a.write(folder)
        return folder

    def __repr__(self) -> str:
        failed = f"; {len(self.failures)} failed" if self.failures else ""
        return f"DepthStudy({', '.join(self.models)}: {len(self.analyses)} analyses{failed})"


def analysis_file(folder: Path, about: Mapping[str, Any]) -> Path:
    """Return the path of the file that describes an analysis; its result is stored next to it."""
    name = "-".join(safe_name(about[key]) for key in ("analysis", "dataset", "digest"))
    return folder / FOLDER / safe_name(about["model"]) / f"{name}.json"


def is_whole(file: Path) -> bool:
    """Return whether an analysis can be read."""
    try:
        read_analysis(file, read_json(file))
    except (SkippedFile, InputError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return True


def read_analysis(file: Path, about: dict[str, Any] | None) -> tuple[tuple[str, ...], dict[str, Any], Analysis]:
    """Return the key, the description and the analysis."""
    if about is not None and about.get("format") != FORMAT:
        raise SkippedFile(file, f": {OLD}")
    if about is None:
        raise InputError("its JSON is not whole")
    key = about["model"], about["analysis"], about["dataset"]
    if digest_of(about["settings"], len(about["digest"])) != about["digest"]:
        raise InputError("its settings are not those that it was made with")
    result = load_result(ANALYSES[about["analysis"]], file.with_suffix(".safetensors"), about["digest"])
    return key, about, Analysis(*key, result, about)
