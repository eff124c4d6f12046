"""The numbers of the public surface on three models, to compare one version of the package with another.

    python -m tests.oracles.baseline --out FOLDER [--compare FOLDER] [--tolerance 1e-9]

Writes arrays to `arrays.npz` and frames to CSV files, and compares them with another run's: exit 1 where a number is
off by more than the tolerance (relative to the largest of its array; 0: to the bit) or gone, and where a case fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import layerdiv_tl as ld
from layerdiv_tl.studies import tables
from tests.conftest import STORIES

TASKS = ["synthetic/recall", "synthetic/modular:largest=19"]
# Of larger arrays every n-th number is kept, and of longer frames every n-th row.
MOST, MOST_ROWS = 4000, 90
# What is read of a result: attributes, and methods without arguments.
CONTRIBUTIONS = "values logits model_logits log_likelihood log_likelihood_parts normalizer identity_gap frame"
DECOMPOSITION = "loss bias diversity zero_bias accuracy frame by_component by_module by_depth"
SQUARED = " diversity_logit coherence gap pairwise bounds"
Cases = Iterator[tuple[str, Any]]
# A model; eight prompts with two options of one token, or of several, and which is called right; a few texts.
Inputs = namedtuple("Inputs", "model prompts options several texts labels", defaults=[np.arange(8) % 2])


def read(result: Any, names: str, *arguments: Any) -> dict[str, Any]:
    """Attributes of a result and what its methods return, by their names here; without those that are None."""
    values = {name: getattr(result, name) for name in names.split()}
    values = {name: value(*arguments) if callable(value) else value for name, value in values.items()}
    return {name: value for name, value in values.items() if value is not None}


def core(x: Inputs) -> Cases:
    """Contributions at every unit, differences, directions, and decompositions by every loss."""
    for unit in ("sublayer", "head", "neuron"):
        c = ld.contributions(x.model, x.prompts[: 2 if unit == "neuron" else None], x.options, unit=unit)
        yield f"contributions {unit}", read(c, CONTRIBUTIONS if unit != "neuron" else "values logits identity_gap")
    c = ld.contributions(x.model, x.prompts, x.options, unit="head")
    yield "nested", ld.decompose(c, x.labels, gauge="raw").nested()
    c = ld.contributions(x.model, x.prompts, x.options)
    yield "logit_difference", read(ld.logit_difference(x.model, x.prompts[:4], *x.options), "values accuracy frame")
    for gauge in ("raw", "centered", "shift"):
        d = ld.decompose(c, x.labels, gauge=gauge)
        yield f"decompose squared {gauge}", read(d, DECOMPOSITION + SQUARED + " tradeoff" * (gauge == "raw"))
    for loss in ("paper", "cross_entropy"):
        yield f"decompose {loss}", read(ld.decompose(c, x.labels, loss=loss, gauge="raw"), DECOMPOSITION)
    yield "sequences", read(ld.contributions(x.model, x.prompts[:4], x.several), CONTRIBUTIONS)
    vectors = np.random.default_rng(0).normal(size=(2, x.model.hf_model.config.hidden_size))
    yield (
        "directions",
        read(ld.contributions(x.model, x.prompts[:4], dict(zip("ab", vectors, strict=True))), "values logits"),
    )


def tokens(x: Inputs) -> Cases:
    """What is measured at every token of a text, or by the token that it comes from."""
    for gauge in ("raw", "centered"):
        p = ld.profile(x.model, x.texts[0], gauge=gauge)
        yield f"profile squared {gauge}", read(p, "loss bias diversity net by_component frame")
    yield "profile head", read(ld.profile(x.model, x.texts[0], unit="head", gauge="raw"), "loss diversity")
    yield "promoted_tokens", p.top_tokens(None, -1, 3)
    yield "source_tokens", read(ld.source_tokens(x.model, x.prompts[0], x.options), "values identity_gap frame")


def depth(x: Inputs) -> Cases:
    """Effects by every ablation, every analysis of the second paper, and plans of what to drop."""
    for ablation in ("mean", "zero", "resample"):
        e = ld.effects(x.model, x.prompts, x.options, x.labels, ablation=ablation)
        yield f"effects {ablation}", read(e, "effect logit_difference accuracy frame")
        yield f"compensation {ablation}", read(e, "compensation", e.components[0].label)
    yield "residual_norms", read(ld.depth.residual_norms(x.model, x.texts), "frame by_place")
    for mode, norm in (("current", "recomputed"), ("future", "frozen")):
        yield f"skip {mode}", ld.depth.skip(x.model, x.texts[:1], mode=mode).frame()
        yield f"logit_lens {norm}", read(ld.depth.logit_lens(x.model, x.texts, norm), "frame by_place")
    yield "erase", read(ld.depth.erase(x.model, x.texts[:1]), "frame by_place")
    yield "gradients", read(ld.depth.integrated_gradients(x.model, x.texts[:1], steps=4), "frame by_place")
    yield "map_layers", read(ld.depth.map_layers(x.model, x.model, x.prompts), "frame depth_alignment")
    asked = [(prompt, option, hops) for prompt in x.prompts[:2] for hops, option in enumerate(x.several, 1)]
    yield "depth_score", read(ld.depth.depth_score(x.model, asked), "effects frame by_layer")
    yield "drop_plan", read(ld.depth.drop_plan(x.model, x.prompts, 1, random=3), "loss correct frame by_size")


def zoo(x: Inputs) -> Cases:
    """Comparisons, groups, dictionaries, experts and information of models that come with the package."""
    rows = ld.task(TASKS[0], limit=16)
    before, after = (ld.contributions(model, rows) for model in ("zoo/d4", "zoo/d4-seed1"))
    yield "compare", read(ld.compare(before, after), "change frame by_module")
    task = ld.task(TASKS[0], limit=96)
    c = ld.contributions("zoo/d4", task)
    yield "information", read(ld.information(c, task.labels), "frame by_component")
    moe = ld.load_model("zoo/moe")
    yield "head_scores", ld.head_scores(moe, length=12)
    random, width = torch.Generator().manual_seed(0), moe.hf_model.config.hidden_size
    sae = tuple(torch.randn(*shape, generator=random) for shape in ((width, 5), (5,), (5, width), (width,)))
    units = {"groups": ld.groups({"a": ["L0.H0", "L1.mlp"]}), "dictionary": ld.dictionary(sae, "L1.attn")}
    for name, unit in ({"expert": "expert"} | units).items():
        yield name, read(ld.contributions(moe, task.prompts[:8], [" red", " blue"], unit=unit), "values identity_gap")


def study(x: Inputs) -> Cases:
    """A grid of two checkpoints and two tasks, and the tables of the first paper."""
    rows = {name: ld.task(name, limit=40) for name in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        grid = ld.Grid(folder).run(ld.contributions, {"d4@step1": "zoo/d4", "d4@step2": "zoo/d4-seed1"}, rows)
        yield "grid", {name: getattr(tables, name)(grid) for name in ("table", "components", "modules", "curves")}
        yield "grid shares", tables.shares(tables.modules(grid))
        yield "grid correlations", tables.correlations(tables.curves(grid))


def demo(x: Inputs) -> Cases:
    """What the demo takes apart."""
    text, options = "When Mary and John went to the store, John gave a drink to", [" Mary", " John"]
    for name, unit in {"demo": "head", "key_value_groups": ld.groups(ld.key_value_groups(x.model))}.items():
        yield name, read(ld.contributions(x.model, [text], options, unit=unit), "values model_logits identity_gap")
    yield "demo answer", ld.top_tokens(x.model, text).tail(1)


def inputs_of(name: str) -> Inputs:
    """The model and small inputs of a name."""
    if name == "d4":
        prompts = ld.task(TASKS[0], limit=8).prompts
        return Inputs(ld.load_model("zoo/d4"), prompts, [" red", " blue"], [" red blue", " black"], prompts[:3])
    begins = ["Once upon a time there was a", "The big dog saw the", "She was happy and the", "They went to the"]
    texts = ["One day a girl went to the park.", "The cat sat on the mat and ran."]
    prompts = [f"{first} {last}" for first in begins for last in ("little", "red")]
    if name == "stories":
        return Inputs(ld.load_model(STORIES), prompts, [317, 326], [" Lily", " Tim"], texts)
    return Inputs(ld.load_model(), prompts, [" dog", " house"], [" big dog", " house"], texts)


ALL = (core, tokens, depth)
CASES = {"stories": ALL, "d4": (*ALL, zoo, study), "default": (*ALL, demo)}


def flat(name: str, value: Any) -> Cases:
    """Arrays and frames by their path; of what is long every n-th number or row."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat(f"{name}/{key}", part)
    elif isinstance(value, pd.DataFrame):
        value = value.set_axis([" ".join(map(str, np.atleast_1d(column))) for column in value.columns], axis=1)
        yield name, value.iloc[:: -(-len(value) // MOST_ROWS) or 1]
    else:
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError(f"{name} is {type(value).__name__}, no array or frame.")
        yield name, array.ravel()[:: -(-array.size // MOST)] if array.size > MOST else array


def compute() -> tuple[dict[str, Any], list[str]]:
    """(All arrays and frames by name, the cases that failed); prints how long each takes."""
    found, failed = dict[str, Any](), list[str]()
    for name in CASES:
        if name == "stories" and not STORIES.is_dir():
            print(f"{name}: skipped, it is not here")
            continue
        given = inputs_of(name)
        for case in CASES[name]:
            start = time.perf_counter()
            try:
                found.update(part for path, value in case(given) for part in flat(f"{name}/{path}", value))
            except Exception:
                failed.append(f"{name} {case.__name__}")
                traceback.print_exc()
            print(f"{name} {case.__name__}: {time.perf_counter() - start:.1f} s", flush=True)
    return found, failed


def save(folder: Path, found: Mapping[str, Any]) -> None:
    """Write what `load` reads: arrays as they are, each frame as a CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*+*.csv"):
        file.unlink()
    np.savez_compressed(folder / "arrays.npz", **{name: x for name, x in found.items() if isinstance(x, np.ndarray)})
    for name, frame in found.items():
        if not isinstance(frame, np.ndarray):
            frame.to_csv(folder / f"{name.replace('/', '+').replace(' ', '_')}.csv", index=False)


def load(folder: Path) -> dict[str, np.ndarray]:
    """Every array, and every column of a frame, by name."""
    arrays = dict(np.load(folder / "arrays.npz"))
    for file in sorted(folder.glob("*.csv")):
        for column, values in pd.read_csv(file, float_precision="round_trip").items():
            array = values.to_numpy()
            arrays[f"{file.stem.replace('+', '/')}/{column}"] = array.astype(str) if array.dtype == object else array
    return arrays


def difference(new: np.ndarray, old: np.ndarray) -> tuple[float, float]:
    """(Largest absolute difference, the same relative to the largest number); infinite for other shapes or texts."""
    if new.shape != old.shape or new.dtype.kind in "US" or old.dtype.kind in "US":
        return (0.0, 0.0) if np.array_equal(new, old) else (np.inf, np.inf)
    one, other = new.astype(np.float64), old.astype(np.float64)
    known = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~known], other[~known], equal_nan=True):
        return np.inf, np.inf
    off, largest = (float(np.abs(x[known]).max(initial=0.0)) for x in (one - other, other))
    return off, off / largest if largest else off


def compared(new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray], tolerance: float) -> list[str]:
    """Print a line for every array, the farthest first; the names of those that are gone or too far."""
    rows = {name: difference(new[name], old[name]) if name in new else (np.inf, np.inf) for name in old}
    for name, (absolute, relative) in sorted(rows.items(), key=lambda row: -row[1][1]):
        print(f"{absolute:9.2e} {relative:9.2e}  {name}{' (gone)' * (name not in new)}")
    print(f"new: {', '.join(name for name in new if name not in old) or 'none'}")
    return [name for name, (_, relative) in rows.items() if not relative <= tolerance]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the order of sums depends on how many there are
    found, failed = compute()
    save(options.out, found)
    far = [] if options.compare is None else compared(load(options.out), load(options.compare), options.tolerance)
    print(f"failed: {', '.join(failed) or 'none'}\ntoo far or gone: {', '.join(far) or 'none'}")
    return 1 if failed or far else 0


if __name__ == "__main__":
    raise SystemExit(main())
