"""Do the experts of the zoo's mixtures specialize, and are they as diverse as plain layers? Three seeds each.

    python -m assets.experts    measures, prints, writes assets/experts.csv and assets/experts.png, in a few minutes

Where a token is sent: the mutual information between the pair of experts that it goes to and what the token is, where
it stands and of which task it is, against permutations and against the router before training. What experts write: the
diversity of gate × output in the logits, beside that of as many MLPs of plain models. Experts are read by hooks here,
which are a second source of unit="expert": how far the two differ is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

import layerdiv_tl as ld
from assets.experts_table import FIGURE, SEEDS, TABLE, TASKS, figure, ratios, routing, within
from layerdiv_tl.attribution.results import Contributions
from layerdiv_tl.ensemble.intervals import jackknife, leave_one_out
from layerdiv_tl.model.load import Model
from tests.training.nets import build
from tests.training.shapes import find_model

FAMILY = {"recall": 0, "sums": 1, "1 hop": 2, "2 hops": 2}
ROWS, PERMUTATIONS, BLOCKS = 256, 99, 32


@dataclass
class Pass:
    """One pass of a mixture: what its routers chose, and what its experts wrote.

    `chosen` `[layer, row, token, rank]`, the experts; `entropy` `[layer, row, token]`, of the router's distribution;
    `experts` `[row, layer, rank, option]`, gate × output of the chosen ones at the last token, in logits; `mask`.
    """

    chosen: np.ndarray
    entropy: np.ndarray
    experts: np.ndarray
    mask: np.ndarray
    ids: np.ndarray


@torch.no_grad()
def look(net: Any, ids: list[list[int]], option_ids: np.ndarray) -> Pass:
    """Run a Mixtral once, with hooks on its routers, its experts and its final norm."""
    longest = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    last, seen, final, hooks = mask.sum(1) - 1, [], [], []
    for layer in net.model.layers:
        hooks.append(layer.mlp.experts.register_forward_pre_hook(lambda m, args: seen.append((m, *args))))
        hooks.append(layer.mlp.gate.register_forward_hook(lambda m, args, out: seen.append(out[0])))
    hooks.append(net.model.norm.register_forward_pre_hook(lambda m, args: final.append(args[0])))
    net(input_ids=tokens, attention_mask=mask)
    for hook in hooks:
        hook.remove()
    rows = torch.arange(len(ids))
    x = final[0][rows, last].double()
    sigma = (x.square().mean(1, keepdim=True) + net.model.norm.variance_epsilon).sqrt()
    read = net.model.norm.weight.double() * net.lm_head.weight.double()[torch.as_tensor(option_ids)]
    read = read.expand(len(ids), *read.shape[-2:])
    chosen, entropy, written = [], [], []
    for logits, (experts, hidden, index, gates) in zip(seen[::2], seen[1::2], strict=True):
        p = logits.softmax(1)
        entropy.append(-(p * p.log()).sum(1).view(tokens.shape))
        chosen.append(index.view(*tokens.shape, -1))
        here, gate = chosen[-1][rows, last], gates.view(*tokens.shape, -1)[rows, last]
        hidden = hidden.view(*tokens.shape, -1)[rows, last]
        a, b = torch.einsum("nd,nkwd->nkw", hidden, experts.gate_up_proj[here]).chunk(2, -1)
        out = torch.einsum("nkw,nkdw->nkd", experts.act_fn(a) * b, experts.down_proj[here]) * gate[..., None]
        written.append(torch.einsum("nkd,nod->nko", out.double() / sigma[..., None], read))
    return Pass(
        torch.stack(chosen).numpy(),
        torch.stack(entropy).numpy(),
        torch.stack(written, 1).numpy(),
        mask.numpy().astype(bool),
        tokens.numpy(),
    )


def information(x: np.ndarray, y: np.ndarray, given: np.ndarray | None = None) -> float:
    """I(X; Y), or I(X; Y | Z), of integers, in nats, by counting."""

    def entropy(*columns: np.ndarray) -> float:
        number = np.ravel_multi_index(columns, [c.max() + 1 for c in columns])
        counts = np.bincount(number)
        p = counts[counts > 0] / len(number)
        return float(-(p * np.log(p)).sum())

    if given is None:
        return entropy(x) + entropy(y) - entropy(x, y)
    return entropy(x, given) + entropy(y, given) - entropy(x, y, given) - entropy(given)


def shuffled(x: np.ndarray, within: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The values of x in another order among those of each group."""
    order, drawn = np.argsort(within, kind="stable"), np.lexsort((rng.random(len(x)), within))
    out = np.empty_like(x)
    out[order] = x[drawn]
    return out


def specialization(run: str, trained: bool, passes: dict[str, Pass]) -> list[dict[str, Any]]:
    """One row for each layer and question: information as a share of the entropy of pairs, its null and interval.

    The null of "token" swaps pairs within a row; of "position given token" among all of a token; of "task" among rows.
    The interval is the jackknife's over blocks of rows.
    """
    flat: dict[str, list[np.ndarray]] = {name: [] for name in ("pair", "token", "position", "task", "row")}
    for number, (name, seen) in enumerate(passes.items()):
        row, position = np.nonzero(seen.mask)
        pair = np.sort(seen.chosen, -1)[:, seen.mask]
        flat["pair"].append(4 * pair[..., 0] + pair[..., 1])
        flat["token"].append(seen.ids[seen.mask])
        flat["position"].append(position)
        flat["task"].append(np.full(len(row), FAMILY[name]))
        flat["row"].append(row + number * ROWS)
    pairs = np.concatenate(flat.pop("pair"), 1)
    token, position, task, row = (np.concatenate(flat[name]) for name in ("token", "position", "task", "row"))
    rng, rows, block = np.random.default_rng(0), [], row % BLOCKS
    place = np.zeros(len(row), dtype=int)
    task_of = np.zeros(row.max() + 1, dtype=int)
    task_of[row] = task
    for layer, pair in enumerate(pairs):
        whole = information(pair, pair)
        questions: dict[str, tuple[Any, Any, Callable[[], float]]] = {
            "token": (token, place, lambda: information(shuffled(pair, row, rng), token)),  # noqa: B023
            "position given token": (
                position,
                token,
                lambda: information(shuffled(pair, token, rng), position, token),  # noqa: B023
            ),
            "task": (task, place, lambda: information(pair, rng.permutation(task_of)[row])),  # noqa: B023
        }
        for question, (about, given, drawn) in questions.items():
            found = information(pair, about, given) / whole
            null = [drawn() / whole for _ in range(PERMUTATIONS)]
            left = [block != b for b in range(BLOCKS)]
            without = [information(pair[k], about[k], given[k]) / information(pair[k], pair[k]) for k in left]
            low, high = jackknife(found, np.array(without), within=(0.0, 1.0))
            p = (1 + sum(x >= found for x in null)) / (1 + PERMUTATIONS)
            row_of = {"what": "routing", "run": run, "trained": trained, "layer": layer, "about": question}
            row_of |= {"value": found, "low": float(low), "high": float(high), "null": float(np.mean(null)), "p": p}
            rows.append(row_of)
        loads = np.array([(pair // 4 == e).mean() + (pair % 4 == e).mean() for e in range(4)])
        entropy = np.concatenate([seen.entropy[layer][seen.mask] for seen in passes.values()])
        here = {"what": "router", "run": run, "trained": trained, "layer": layer}
        rows.append({**here, "about": "highest load", "value": float(loads.max())})
        rows.append({**here, "about": "lowest load", "value": float(loads.min())})
        rows.append({**here, "about": "entropy", "value": float(entropy.mean() / np.log(4))})
    return rows


def accuracy(run: str, task: str, c: Contributions, of: ld.Task) -> dict[str, Any]:
    """How often a model's own answer is right."""
    return {"what": "accuracy", "run": run, "task": task, "value": float((c.logits.argmax(1) == of.labels).mean())}


def diversities(run: str, task: str, ensembles: dict[str, np.ndarray], labels: np.ndarray) -> list[dict[str, Any]]:
    """Centered diversity of some ensembles `[row, member, option]`: as it is and size-fair."""
    rows = []
    for members, u in ensembles.items():
        d = ld.decompose(u, labels)
        frame = d.frame().iloc[0]
        for name in ("diversity_centered", "diversity_logit_centered"):
            column = name.removesuffix("_centered")
            value, low, high = (float(frame[column + end]) for end in ("", "_low", "_high"))
            row = {"what": "diversity", "run": run, "members": members, "task": task, "about": name}
            rows.append(row | {"value": value, "low": low, "high": high})
    return rows


def within_pairs(run: str, members: str, task: str, u: np.ndarray) -> dict[str, Any]:
    """The share of the centered diversity of members `[row, pair, 2, option]` that lies within pairs."""
    u = u - u.mean(3, keepdims=True)
    inside = np.square(u - u.mean(2, keepdims=True)).mean((1, 2, 3))
    total = np.square(u - u.mean((1, 2), keepdims=True)).mean((1, 2, 3))
    share, left = inside.sum() / total.sum(), leave_one_out(inside) / leave_one_out(total)
    low, high = jackknife(share, left, within=(0.0, 1.0))
    row = {"what": "diversity", "run": run, "members": members, "task": task, "about": "within pairs"}
    return row | {"value": share, "low": float(low), "high": float(high)}


def gap_to_library(model: Model, task: ld.Task, seen: Pass) -> float:
    """How far the experts seen by hooks are from those of unit="expert", relative to Σ|parts|."""
    found = ld.contributions(model, task.prompts, task.option_ids, unit="expert")
    own = np.zeros_like(found.select(kind="expert").values)
    last = seen.mask.sum(1) - 1
    for layer, chosen in enumerate(seen.chosen):
        for rank in range(chosen.shape[2]):
            column = 4 * layer + chosen[np.arange(len(last)), last, rank]
            own[np.arange(len(last)), column] = seen.experts[:, layer, rank]
    return float(np.abs(own - found.select(kind="expert").values).max() / np.abs(found.values).sum(1).max())


def measured() -> pd.DataFrame:
    """All of it, one row per number."""
    rows: list[dict[str, Any]] = []
    gaps: list[float] = []
    tasks = {name: ld.task(text, limit=ROWS).resolve(ld.load_model("zoo/moe")) for name, text in TASKS.items()}
    for run in (f"zoo/moe{seed}" for seed in SEEDS):
        model = ld.load_model(run)
        for trained, net in ((True, model.root), (False, build(find_model(run)).eval())):
            passes = {}
            for name, task in tasks.items():
                ids = [list(model.tokenizer(p)["input_ids"]) for p in task.prompts]
                passes[name] = look(net, ids, task.option_ids)
            rows += specialization(run, trained, passes)
            if not trained:
                continue
            for name, task in tasks.items():
                c, experts = ld.contributions(model, task.prompts, task.option_ids), passes[name].experts
                gaps.append(gap_to_library(model, task, passes[name]))
                rows.append(accuracy(run, name, c, task))
                flat = experts.reshape(len(experts), -1, experts.shape[3])
                others = c.select(kind=("embed", "attn")).values
                sets = {"all, experts": np.concatenate([others, flat], 1), "all": c.values, "experts": flat}
                rows += diversities(run, name, sets, task.labels)
                rows.append(within_pairs(run, "experts", name, experts))
    for shape in ("d4", "d6", "d8"):
        for run in (f"zoo/{shape}{seed}" for seed in SEEDS):
            model = ld.load_model(run)
            for name, task in tasks.items():
                c = ld.contributions(model, task.prompts, task.option_ids)
                rows.append(accuracy(run, name, c, task))
                sets = {"all": c.values, "MLPs": c.select(kind="mlp").values}
                rows += diversities(run, name, sets, task.labels)
                if shape == "d8":
                    rows.append(within_pairs(run, "MLPs", name, sets["MLPs"].reshape(ROWS, 4, 2, -1)))
    print(f'experts by hooks and by unit="expert" differ by at most {max(gaps):.1e} of Σ|parts|')
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, print, and write."""
    torch.set_num_threads(1)
    table = measured()
    for column in ("value", "low", "high", "null", "p"):
        table[column] = table[column].astype(float).map("{:.4g}".format, na_action="ignore")
    table.to_csv(TABLE, index=False)
    table = pd.read_csv(TABLE)
    print(table[table["what"] == "accuracy"].pivot(index="run", columns="task", values="value").to_string())
    for frame in (routing(table), ratios(table), within(table)):
        print(frame.round(3).to_string(index=False))
    figure(table).write_image(FIGURE, scale=1)


if __name__ == "__main__":
    main()
