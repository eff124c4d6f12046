"""Information-theoretic diversity of one model on the paper's eight tasks: tables in Markdown.

    python tests/benchmarks/information.py DATA [--limit 200] [--groups 12] [--model PATH] [--null 200] [--speed]

DATA is a folder with the tasks' rows, `<name>.jsonl` (columns of the Hugging Face data sets). Components are
summed up to at most `--groups` neighbors along the stream. --speed times 129 synthetic members instead.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import layerdiv_tl as ld
from layerdiv_tl.studies.study_jobs import prepared
from layerdiv_tl.tasks.specs import EIGHT_TASKS

ESTIMATORS = ("gaussian", "vote", "variational")


def value(row) -> str:
    """A term with its interval; a star where it lies outside its null."""
    if not np.isfinite(row.bits):
        return "–"
    return f"{row.bits:.2f} [{row.low:.2f}, {row.high:.2f}]{'' if row.inside_null else ' *'}"


def terms(name: str, count: int, i: ld.Information) -> dict[str, str]:
    """One line of the table of terms."""
    rows = {row.term: value(row) for row in i.frame().itertuples()}
    head = {"task": name, "rows": f"{count}", "estimator": i.method, "members": f"{len(i.components)}"}
    return head | {"columns": f"{len(i.owner)}", "H(Y)": f"{i.label_entropy:.2f}"} | rows


def bounds(name: str, i: ld.Information) -> dict[str, str]:
    """One line of the table of bounds and gains."""
    b = i.bounds()
    frame = b.frame().set_index("name")
    shown = {n: f"{r.error:.2f} [{r.low:.2f}, {r.high:.2f}]" for n, r in frame.iterrows()}
    curve = i.gain_curve(n_permutations=20, n_resamples=20, orders=5)
    share = curve.diminishing().iloc[0]
    fit = curve.log_fit().frame().set_index("term").loc["slope"]
    deep = curve.frame()
    return (
        {"task": name, "estimator": i.method, "I variational": f"{b.information:.2f} [{b.low:.2f}, {b.high:.2f}]"}
        | shown
        | {
            "dips (outside null)": f"{deep['dip'].sum()} of {len(deep)} ({(deep['dip'] & ~deep['inside_null']).sum()})",
            "submodular pairs": f"{share.share:.2f} (null {share.null_low:.2f} to {share.null_high:.2f})",
            "bits per ln k": f"{fit.estimate:.2f}",
        }
    )


def table(rows: list[dict[str, str]]) -> str:
    """Markdown."""
    head = "| " + " | ".join(rows[0]) + " |\n|" + " --- |" * len(rows[0])
    return "\n".join([head, *("| " + " | ".join(row.values()) + " |" for row in rows)])


def speed() -> None:
    """|L| = 129, K = 4, N = 2000, 200 shuffles and 200 subsamples, by every estimator."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(2000) % 4)
    u = rng.normal(size=(2000, 129, 4)) + 0.2 * np.eye(4)[y][:, None]
    for estimator in ESTIMATORS:
        wall, cpu = time.perf_counter(), time.process_time()
        i = ld.information(u, y, estimator, n_contrasts=None if estimator == "vote" else 1)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{i.method}: {wall:.1f} s, {cpu:.1f} s of processors, peak so far {peak:.2f} GiB; {i}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--model")
    parser.add_argument("--null", type=int, default=200)
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        return speed()
    if arguments.data is None:
        parser.error("give DATA, the folder with the tasks' rows, or --speed")
    model = ld.load_model(arguments.model)
    found, bounded, said = [], [], []
    for name in EIGHT_TASKS:
        task = prepared(ld.task(name, arguments.data, limit=arguments.limit), model)
        c = ld.contributions(model, task.prompts, task.option_ids)
        for estimator in ESTIMATORS:
            try:
                i = ld.information(c, task.labels, estimator, arguments.null, n_groups=arguments.groups)
            except ld.InputError as error:
                said.append(f"{name}, {estimator}: {error}")
                continue
            found.append(terms(name, len(task), i))
            bounded.append(bounds(name, i))
            said += [f"{name}, {i.method}: {warning}" for warning in i.warnings]
        print(f"{name} done", flush=True)
    print("\nBits, with 95 % intervals; * outside the null.\n\n" + table(found))
    print("\nErrors as shares of rows; fano is not valid for an I from below.\n\n" + table(bounded))
    print("\n" + "\n".join(f"- {sentence}" for sentence in said))


if __name__ == "__main__":
    main()
