"""The paper's eight tasks on one model, in every form of the decomposition: a table in Markdown.

    python tests/benchmarks/eight_tasks.py DATA [--limit 200] [--model PATH]

DATA is a folder with the tasks' rows, `<name>.jsonl` (columns of the Hugging Face data sets).
"""

from __future__ import annotations

import argparse

import layerdiv_tl as ld
from layerdiv_tl.studies.study_jobs import prepared
from layerdiv_tl.tasks.specs import EIGHT_TASKS


def row(model: ld.Model, task: ld.Task) -> dict[str, str]:
    """One line of the table."""
    task = prepared(task, model)
    c = ld.contributions(model, task.prompts, task.option_ids)
    squared, paper, nats = (ld.decompose(c, task.labels, loss=loss) for loss in ("squared", "paper", "cross_entropy"))
    net = nats.by_module().set_index("module")["net_linear"]
    return {
        "task": task.name,
        "rows": f"{len(task)}",
        "accuracy": f"{squared.accuracy:.3f}",
        "MSE ×100": f"{100 * paper.loss:.2f}",
        "uniform": f"{100 * paper.zero_bias:.2f}",
        "bias ×100": f"{100 * paper.bias:.2f}",
        "diversity raw": f"{squared.diversity:.3f}",
        "centered": f"{squared.centered.diversity:.4f}",
        "shift": f"{squared.shift.diversity / squared.diversity:.1%}",
        "diversity_logit raw": f"{squared.diversity_logit:.0f}",
        "diversity_logit centered": f"{squared.centered.diversity_logit:.1f}",
        "MSE logits raw": f"{squared.loss:.3f}",
        "CE": f"{nats.loss:.3f}",
        "ln K": f"{nats.zero_bias:.3f}",
        "H(p)": f"{nats.entropy:.3f}",
        "net": f"{nats.loss - nats.entropy:.3f}",
        "mean CE": f"{nats.bias:.2f}",
        "mean KL": f"{nats.diversity:.2f}",
        **{f"net {module}": f"{value:.3f}" for module, value in net.items()},
        "gap": f"{max(squared.gap, nats.gap):.0e}",
        "identity gap": f"{c.identity_gap:.0e}",
        "cut short": f"{task.truncated}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    model = ld.load_model(arguments.model)
    for number, name in enumerate(EIGHT_TASKS):
        line = row(model, ld.task(name, arguments.data, limit=arguments.limit))
        if not number:
            print("| " + " | ".join(line) + " |\n|" + " --- |" * len(line))
        print("| " + " | ".join(line.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
