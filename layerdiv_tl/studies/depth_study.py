"""The depth analyses of one or several models in one folder, that can be gone on with and reported."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args

from .. import _registry
from .._checks import choice, file_path, flag, listed, whole_number
from ..depth.ablation import AblatedPart, ablatable_components
from ..depth.agreement import Agreement
from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.logit_lens import LogitLens
from ..depth.pruning import SCORES, DropPlan
from ..depth.residual_norms import ResidualNorms
from ..depth.skipping import Skip
from ..errors import InputError
from ..model.fingerprint import Identity, identify
from ..model.load import Model, load_model
from ..model.tokenization import encode, plain
from ..replication.claim_tests import table_of
from ..replication.depth_claims import depth_readings
from ..results import Result
from ..tasks.multihop import Questions
from ..tasks.multihop import questions as read_questions
from ..tasks.samples import SAMPLE_QUESTIONS
from ..tasks.task import SAMPLE_TASKS, Task, task
from .arguments import load_options, made_folder, models_of, reason, tasks_of
from .folder import OLD, card, claim, refuse_two_models
from .shards import safe_name, write_json

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "depth"
# Of analyses, their defaults included. 2: fingerprints are of all weights and of the tokenizer, and analyses follow the
# released code of arXiv 2505.13898.
FORMAT = "layerdiv_tl.depth/2"
# Shorter texts have no token that is skipped, one that is measured, and a cut between them.
LEAST = 4
# Prompts of each task that sizes, skips and the lens read where no texts are given.
TEXTS = 16
Kind = TypeVar("Kind", bound=Result)
# The standard set, in order. A file names its class, which is known where it has been imported only.
ANALYZES: Mapping[str, type[Result]] = {
    "residual_norms": ResidualNorms,
    "skip": Skip,
    "skip_future": Skip,
    "logit_lens": LogitLens,
    "depth_score": DepthScore,
    "agreement": Agreement,
    "drop_plan": DropPlan,
    "map_layers": LayerMaps,
}


@dataclass(frozen=True)
class Analysis:
    """One finished analysis: of which model, what it is called, on what, its result and how it was made."""

    model: str
    name: str
    dataset: str
    result: Result
    about: dict[str, Any]


@dataclass(frozen=True, eq=False)
class DepthStudy(Result):
    """What depth analyses of some models gave. Made by `run_depth`, or read from its folders by `load`.

    analyses
        All that are finished, model by model, in the order of the standard set.
    failures
        One sentence for every model or analysis that could not be measured.
    folders
        Where it lies.
    """

    analyses: tuple[Analysis, ...]
    failures: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Self:
        """Collect one or several folders; of an analysis with different settings the one finished last.

        Raises InputError where there is no such folder, or no finished analysis in any, and where two models (other
        weights, another tokenizer) have one name.
        """
        found = cls.collect((path, *more))
        if found is None:
            raise InputError(f"{str(path)!r} holds no depth analyses: run layerdiv depth --out there first.")
        return found

    @classmethod
    def collect(cls, folders: Sequence[str | os.PathLike[str]], only: set[Path] | None = None) -> Self | None:
        """What `load` gives, or None where there is nothing; `only` these files."""
        found: dict[tuple[str, str, str], Analysis] = {}
        failures: list[str] = []
        cards = []
        for folder in folders:
            place = file_path("folder", folder)
            if not place.is_dir():
                raise InputError(f"there is no folder {str(folder)!r}: run layerdiv depth --out there first.")
            for file in sorted(place.glob(f"{FOLDER}/*/*-{12 * '[0-9a-f]'}.json")):  # an exported plan has no digest
                if only is not None and file not in only:
                    continue
                try:
                    about = json.loads(file.read_text(encoding="utf-8"))
                    if not isinstance(about, dict) or about.get("format") != FORMAT:
                        failures.append(f"{file.relative_to(place)}: {OLD}.")
                        continue
                    key = about["model"], about["analysis"], about["dataset"]
                    kind = ANALYZES.get(about["analysis"], Result)
                    one = Analysis(*key, kind.load(file.with_suffix(".safetensors")), about)
                    cards.append((str(place), card(about)))
                except (InputError, OSError, ValueError, KeyError) as error:
                    failures.append(f"{file.relative_to(place)} cannot be read ({error}): remove it, run depth again.")
                    continue
                if key not in found or found[key].about["finished"] <= about["finished"]:
                    found[key] = one
        refuse_two_models(cards)
        if not found:
            return None
        models = list(dict.fromkeys(model for model, _, _ in found))
        order = {name: number for number, name in enumerate(ANALYZES)}
        analyses = sorted(
            found.values(), key=lambda a: (models.index(a.model), order.get(a.name, len(order)), a.dataset)
        )
        return cls(tuple(analyses), tuple(failures), tuple(map(str, folders)))

    @property
    def models(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(dict.fromkeys(a.model for a in self.analyses))

    def of(self, kind: type[Kind]) -> list[tuple[str, Kind]]:
        """(model, result) of every result of a class, such as `Sizes` or `Agreement`."""
        return [(a.model, a.result) for a in self.analyses if isinstance(a.result, kind)]

    def newest(self, name: str) -> dict[str, Any]:
        """{model: result} of an analysis such as "skip_future"; of several, on other texts, the one finished last."""
        some = sorted((a for a in self.analyses if a.name == name), key=lambda a: a.about["finished"])
        found = {a.model: a.result for a in some}
        return {model: found[model] for model in self.models if model in found}

    def frame(self) -> pd.DataFrame:
        """All numbers of all analyses, tidy: model, analysis, on, the row's names, quantity, value, low, high.

        `low` and `high` are the 95 % intervals that an analysis has for the quantity; NaN where it has none.
        """
        import pandas as pd

        names = ("component", "kind", "layer", "plan", "dropped", "group", "text", "position", "token")
        frames = []
        for a in self.analyses:
            wide = a.result.frame().rename(columns=str)
            here = [name for name in names if name in wide]
            ends = ("_low", "_high", "_q10", "_q90", "_median", "_max", "_rank")
            for quantity in [str(c) for c in wide if c not in here and not str(c).endswith(ends)]:
                part = wide[here].assign(quantity=quantity, value=pd.to_numeric(wide[quantity], errors="coerce"))
                for end in ("low", "high"):
                    part[end] = wide.get(f"{quantity}_{end}", float("nan"))
                frames.append(part.assign(model=a.model, analysis=a.name, on=a.dataset))
        frame = pd.concat(frames, ignore_index=True)
        first = ["model", "analysis", "dataset"]
        rest = [name for name in (*names, "quantity", "value", "low", "high") if name in frame]
        return frame[[*first, *rest]]

    def claims(self) -> pd.DataFrame:
        """Claims 9-12 (MATHS 13): what the second paper says, held against these models. See `Study.claims`.

        9. The later half of the layers contributes less. 10. Skipping late layers disturbs later computation less.
        11. Models do not use deeper layers for more hops. 12. Layers at the same relative depth map best.

        Intervals are over models if there are six, else over texts (for 11, questions) of which a model has eight at
        least; with fewer a claim is not tested. Over texts they speak of these models only.
        """
        return table_of(list(depth_readings(self)))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write everything as one offline page. Raises InputError for a file that cannot be written."""
        page = _registry.lookup("depth_page")(self)
        try:
            return page.write(path)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}): give the path of a file.") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all analyses into a folder that `load` reads."""
        place = file_path("path", path)
        for a in self.analyses:
            _write(place, a)
        return place

    def __repr__(self) -> str:
        failed = f"; {len(self.failures)} failed" if self.failures else ""
        return f"DepthStudy({', '.join(self.models)}: {len(self.analyses)} analyses{failed})"


@dataclass(frozen=True)
class _Asked:
    """What the analyses of a model read, and how."""

    texts: list[str]
    tasks: list[Task]
    drop: int | None
    part: AblatedPart
    score: str
    questions: Questions | None
    multi_token: bool
    seed: int
    batch_tokens: int | None


def run_depth(
    models: Any = "default",
    tasks: Any = None,
    texts: Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    data: Any = None,
    limit: int | None = 64,
    drop: int | None = None,
    part: AblatedPart = "layer",
    score: str = "loss",
    ask: Any = SAMPLE_QUESTIONS,
    questions: int = 32,
    multi_token: bool = False,
    seed: int = 0,
    batch_tokens: int | None = None,
    load: Mapping[str, Any] | None = None,
) -> DepthStudy:
    """Run the standard depth analyses of one or several models, in a folder that can be gone on with.

    Sizes, skips (at all tokens; at earlier ones for later ones), the lens, the depth score, and for each task, or
    for the texts where no task is named, the agreement of direct measures with removal and a plan of what to drop;
    between models that are named together, linear maps from each to the next.

    models
        One or several of what `load_model` takes, or {name: x}; "default" is the default model.
    tasks
        Names or `Task`s, as in `run_study`; None is the authored sample tasks, or none where there are texts.
    texts
        What sizes, skips and the lens read, of which some must have 4 tokens; None is the first 16 prompts of each
        task.
    out
        The folder; a study may lie in it too, and its report then shows both. What is finished there is not
        computed again. None keeps nothing but a temporary folder.
    data, limit
        As in `task`; the first 64 rows of each, by default. None takes all.
    drop, part, score
        How many layers the plan drops (None: a fifth), of which part and by which score: see `drop_plan`.
    ask, questions
        What the depth score asks, as the source of `ld.depth.questions`, and how many of each number of steps; 0
        leaves it out.
    multi_token
        Score options of several tokens by their first distinguishing one.
    seed, batch_tokens
        As in the analyses.
    load
        Options for `load_model`.

    A model or analysis that fails is named in `failures` and the others go on. Raises InputError for input that
    names nothing, and where nothing at all could be measured.
    """
    grid, options = models_of(models), load_options(load)
    how: dict[str, Any] = {"limit": limit, "seed": seed}
    tasks = ([] if texts is not None else list(SAMPLE_TASKS)) if tasks is None else tasks
    given = tasks_of(tasks) if not isinstance(tasks, list | tuple) or tasks else []
    ready = [t if isinstance(t, Task) else task(t, data, **how) for t in given]
    questions, seed = whole_number("questions", questions, 0), whole_number("seed", seed, 0)
    flag("multi_token", multi_token)
    choice("part", part, get_args(AblatedPart))
    choice("score", score, SCORES)
    if drop is not None:
        drop = whole_number("drop", drop, 1)
    if texts is None:
        texts = [prompt for t in ready for prompt in t.prompts[:TEXTS]]
    texts = listed("texts", texts, "a list of texts")
    if not texts:
        raise InputError("texts is empty: give a list of texts.")
    some = read_questions(ask, limit=questions) if questions else None  # before models are loaded
    asked = _Asked(plain(texts), ready, drop, part, score, some, multi_token, seed, batch_tokens)
    place = made_folder(out)
    failures: list[str] = []
    mine: set[Path] = set()
    before: tuple[Model, Identity] | None = None
    for name, x in grid.items():
        try:
            model = load_model(x, **(options if not isinstance(x, Model) else {}))
            model = model if x is None and name == "default" else replace(model, name=name)
            identity = identify(model)
            claim(place, model, identity)
            jobs = _standard(model, before, asked)
        except Exception as error:
            failures.append(f"{name}: {reason(error)}")
            continue
        for analysis, on, settings, make in jobs:
            try:
                mine.add(_run(place, model, identity, analysis, on, settings, make))
            except Exception as error:
                failures.append(f"{analysis} of {model.name} ({on}): {reason(error)}")
        before = model, identity
    study = DepthStudy.collect([place], mine) if mine else None
    if study is None:
        raise InputError("; ".join(failures))
    return replace(study, failures=(*failures, *study.failures))


Job = tuple[str, str, dict[str, Any], Callable[[], Result]]


def _standard(model: Model, before: tuple[Model, Identity] | None, asked: _Asked) -> list[Job]:
    """The analyses of a model, each with what it follows from."""
    from .. import depth

    most = model.checked_batch_tokens(asked.batch_tokens)
    size: dict[str, Any] = {"batch_tokens": most}
    rows = [ids for ids in encode(model, asked.texts, any_length=True) if len(ids) >= LEAST]
    if not rows:
        raise InputError(f"no text has {LEAST} tokens: give longer ones.")
    texts = [list(ids if model.context is None else ids[: model.context]) for ids in rows]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    on = f"{len(texts)} texts"
    read = {"texts": digest, **size}
    jobs: list[Job] = [
        ("residual_norms", on, read, lambda: depth.residual_norms(model, texts, **size)),
        ("skip", on, read, lambda: depth.skip(model, texts, **size)),
        ("skip_future", on, read, lambda: depth.skip(model, texts, mode="future", **size)),
        ("logit_lens", on, read, lambda: depth.logit_lens(model, texts, **size)),
    ]
    if (some := asked.questions) is not None:

        def scored(some: Questions = some) -> Result:
            return depth.depth_score(model, some, effect="published", seed=asked.seed, **size)

        told = {"questions": [some.texts, some.answers], "effect": "published", "seed": asked.seed, **size}
        jobs.append(("depth_score", f"{len(some.texts)} questions", told, scored))
    for place in [t.name for t in asked.tasks] or [on]:
        t = next((t for t in asked.tasks if t.name == place), None)
        given = read | {"seed": asked.seed}
        if t is not None:
            labels = hashlib.sha256(t.labels.tobytes()).hexdigest()
            given = {"prompts": t.prompt_hash, "options": list(t.options), "labels": labels, "seed": asked.seed, **size}
            given["multi_token"] = asked.multi_token
        plan = {"drop": asked.drop, "part": asked.part, "score": asked.score}

        def asking(t: Task | None = t) -> Any:
            return texts if t is None else t.resolve(model, asked.multi_token)

        def agree(asking: Callable[[], Any] = asking) -> Result:
            return depth.agreement(model, asking(), seed=asked.seed, **size)

        def dropped(asking: Callable[[], Any] = asking) -> Result:
            fifth = len(ablatable_components(model, rows[0], asked.part)) / 5
            budget = max(1, int(fifth + 0.5)) if asked.drop is None else asked.drop
            return depth.drop_plan(model, asking(), budget, asked.score, asked.part, seed=asked.seed, **size)

        jobs.append(("agreement", place, given, agree))
        if asked.drop is not None or len(ablatable_components(model, rows[0], asked.part)) > 1:  # of one, none can go
            jobs.append(("drop_plan", place, given | plan, dropped))
    if before is not None:
        shallow, theirs = before
        seen = hashlib.sha256(json.dumps(asked.texts).encode()).hexdigest()

        def mapped() -> Result:
            return depth.map_layers(shallow, model, _comparable(shallow, model, asked.texts), seed=asked.seed, **size)

        of = {"texts": seen, "from": asdict(theirs), "seed": asked.seed, **size}
        jobs.append(("map_layers", f"from {shallow.name}", of, mapped))
    return jobs


def _comparable(before: Model, model: Model, texts: Sequence[Any]) -> list[Any]:
    """The texts that both models read whole; where their tokens are the same, what both read of each."""
    here, there = (encode(each, texts, any_length=True) for each in (before, model))
    most = [len(max(here + there, key=len)) if each.context is None else each.context for each in (before, model)]
    if here == there and before.vocabulary == model.vocabulary:
        return [row[: min(most)] for row in here if len(row) >= LEAST]
    both = zip(texts, here, there, strict=True)
    return [text for text, *rows in both if all(LEAST <= len(r) <= m for r, m in zip(rows, most, strict=True))]


def _run(
    place: Path,
    model: Model,
    of: Identity,
    name: str,
    dataset: str,
    settings: dict[str, Any],
    make: Callable[[], Result],
) -> Path:
    """The analysis from the folder, or computed and written there; the file that tells about it."""
    from importlib.metadata import version

    # Names too: two that make one name of a file are two analyses.
    settings = settings | {"model": model.name, "dataset": dataset, "dtype": model.provenance["dtype"]}
    settings |= {"weights": of.weights, "tokenizer": of.tokenizer, **of.settings, "format": FORMAT}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    about: dict[str, Any] = {
        "format": FORMAT,
        "model": model.name,
        "analysis": name,
        "dataset": dataset,
        "settings": settings,
        "digest": digest,
    }
    file = _file(place, about)
    if file.is_file() and file.with_suffix(".safetensors").is_file():
        return file
    start = time.time()
    result = make()
    about |= {
        "provenance": model.provenance,
        "versions": {package: version(package) for package in ("layerdiv_tl", "numpy", "pandas")},
        "seconds": round(time.time() - start, 3),
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return _write(place, Analysis(model.name, name, dataset, result, about))


def _write(place: Path, a: Analysis) -> Path:
    """The numbers first: what tells about them is there only when they are."""
    file = _file(place, a.about)
    a.result.save(file.with_suffix(".safetensors"))
    write_json(file, a.about)
    return file


def _file(place: Path, about: Mapping[str, Any]) -> Path:
    name = "-".join(safe_name(about[key]) for key in ("analysis", "dataset", "digest"))
    return place / FOLDER / safe_name(about["model"]) / f"{name}.json"
