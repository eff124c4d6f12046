"""Train the zoo's models: `python -m tests.training.train --out DIR [NAME…]`.

Without names, all that DIR does not hold yet, in the order of the list. All models see the same rows in the same
order, those of another seed other rows. A run that is stopped goes on where it last evaluated, and ends with
the same weights: rows depend on the seed and the step alone. On one thread of the same kind of CPU the weights
are the same bit for bit.

Training rows come from generators seeded with five numbers, the rows of a Task from ones seeded with three, so no
row is made from the same randomness as one that is asked later. There are only 400 sums: training meets them
all, and what is asked of them later is new in its order only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import block_diag
from torch import nn

from layerdiv_tl._files import written
from layerdiv_tl.errors import InputError
from layerdiv_tl.tasks.task import task
from layerdiv_tl.zoo import TASKS

from . import words
from .nets import balance, build, config_of, matrices
from .shapes import MODELS, ZooModel, find_model

STREAM = 20  # begins the seed of every training row


@dataclass(frozen=True)
class Recipe:
    """How all models are trained.

    Attributes:
        steps, rows, questions, sums: Steps, and of what each is made: rows, each of which holds one set of chains with
            so many questions, one of pairs, of which all are asked, and so many sums.
        fewest: Chains go through `fewest` to 8 letters, and there are as few or many pairs, one number a step: few are
            easier, and teach what many need. With 8 alone, deep models often learn one of both skills and not the
            other.
        adding, longer, rarer: From which step on there are sums; from which on chains are followed for up to two,
            three, four steps. Once they are, pairs and sums, which are learned by then, come every `rarer` steps.
        turn, rate, decay: Learning rates of Muon, which changes the matrices of blocks, and of AdamW, which changes the
            rest; the weight decay of the first.
        warm, fall, floor, clip: Both rates rise for `warm` steps and fall in the last `fall` of all to their `floor`th
            part; the norm at which gradients are clipped.
        every, tested, last: Steps between evaluations, and rows of each task in one, and in the last.
        balance: How much the loss that keeps experts equally busy counts, in models that have experts.
    """

    steps: int = 4000
    rows: int = 12
    questions: int = 16
    sums: int = 3
    fewest: int = 2
    adding: int = 500
    longer: tuple[int, ...] = (800, 1600, 2600)
    rarer: int = 3
    turn: float = 5e-3
    rate: float = 3e-3
    decay: float = 0.01
    warm: int = 100
    fall: float = 0.2
    floor: float = 0.05
    clip: float = 1.0
    every: int = 200
    tested: int = 256
    last: int = 2048
    balance: float = 0.01


def batches(recipe: Recipe, seed: int, step: int) -> list[words.Batch]:
    """What a model reads in one step: chains, pairs, sums."""
    hops = 1 + sum(step >= start for start in recipe.longer)
    rngs = [np.random.default_rng([STREAM, seed, step, kind, 0]) for kind in range(3)]
    entities, pairs = (int(rng.integers(recipe.fewest, words.ENTITIES + 1)) for rng in rngs[:2])
    made = [words.k_hop(rngs[0], recipe.rows, recipe.questions, hops, entities)]
    if hops > 1 and step % recipe.rarer:
        return made
    made.append(words.recall(rngs[1], recipe.rows, pairs))
    return made + [words.modular(rngs[2], recipe.rows) for _ in range(recipe.sums if step >= recipe.adding else 0)]


def answers(model: Any, batches: Sequence[words.Batch]) -> tuple[Float[torch.Tensor, "row question vocabulary"], ...]:
    """For each batch the logits where its questions end, every question read as if it alone stood behind its facts.

    The batches, of as many rows each, go through the model side by side: one pass of long rows costs less than
    several of short ones.
    """
    tokens = torch.from_numpy(np.concatenate([batch.tokens for batch in batches], axis=1))
    positions = torch.from_numpy(np.concatenate([batch.positions for batch in batches]))
    sees = torch.from_numpy(block_diag(*[batch.sees for batch in batches]))
    starts = np.cumsum([0, *(batch.tokens.shape[1] for batch in batches[:-1])])
    stream = model.model(
        input_ids=tokens,
        attention_mask=torch.zeros(sees.shape).masked_fill(~sees, torch.finfo().min).expand(len(tokens), 1, -1, -1),
        position_ids=positions.expand(len(tokens), -1),
    ).last_hidden_state
    asked = [start + batch.asked for start, batch in zip(starts, batches, strict=True)]
    return model.lm_head(stream[:, torch.from_numpy(np.concatenate(asked))]).split([len(x) for x in asked], dim=1)


def accuracy(model: Any, rows: int) -> dict[str, float]:
    """The share of right answers at the first `rows` rows of every task of the zoo, made with seed 1."""
    tokenizer, found = words.tokenizer(), {}
    for name in TASKS:
        asked = task(f"{name}{',' if ':' in name else ':'}seed=1", limit=rows).resolve(tokenizer)
        ids = torch.tensor(tokenizer(list(asked.prompts))["input_ids"])
        with torch.no_grad():
            parts = [model.model(part).last_hidden_state[:, -1] for part in ids.split(128)]
            logits = model.lm_head(torch.cat(parts))[:, list(asked.option_ids)]
        found[name] = float((logits.argmax(1).numpy() == asked.labels).mean())
    return found


def train(
    model: ZooModel, out: Path, recipe: Recipe | None = None, stop: int | None = None, keep: Collection[int] = ()
) -> Path:
    """Train one model into `out/NAME`, with its log in `out/logs`, or go on with it; its folder.

    `stop` ends after so many steps of the recipe, with the weights as they are then; those after the steps `keep`
    stay in `out/checkpoints/NAME/step…`. Raises InputError where what is there was begun in another way.
    """
    recipe = recipe or Recipe()
    end = recipe.steps if stop is None else stop
    half, log = out / "unfinished" / f"{model.short}.safetensors", out / "logs" / f"{model.short}.jsonl"
    half.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    net = build(model)
    state = _State(net, recipe)
    step, seconds, settings = 0, 0.0, json.dumps(_settings(model, net, recipe))
    lines = []
    if half.exists():
        step, seconds = state.read(half)
        before, *lines = log.read_text(encoding="utf-8").splitlines()
        if before != settings:
            raise InputError(
                f"{str(half)!r} was begun with other settings or versions: remove it, or go on with those."
            )
        # What was written down after the step that training goes on from is to come again.
        lines = [line for line in lines if json.loads(line)["step"] <= step]
    log.write_text("".join(f"{line}\n" for line in [settings, *lines]), encoding="utf-8")
    begun, loss, since = time.monotonic() - seconds, 0.0, 0
    while step < end:
        if step in keep:
            _save(model, net, out / "checkpoints" / model.short / f"step{step}")
        loss, since = loss + state.step(batches(recipe, model.seed, step), step), since + 1
        step += 1
        if step % recipe.every == 0 or step == end:
            rows = recipe.last if step == recipe.steps else recipe.tested
            line: dict[str, Any] = {
                "step": step,
                "seconds": round(time.monotonic() - begun, 1),
                "loss": round(loss / since, 4),
            }
            line |= {"rows": rows, "accuracy": {k: round(v, 4) for k, v in accuracy(net, rows).items()}}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(model.name, json.dumps(line), flush=True)
            state.write(half, step, time.monotonic() - begun)
            loss, since = 0.0, 0
    if end in keep:
        _save(model, net, out / "checkpoints" / model.short / f"step{end}")
    _save(model, net, out / model.short)
    half.unlink(missing_ok=True)
    return out / model.short


class _State:
    """A model's weights and what its optimizers keep of them, and the one step that changes both."""

    def __init__(self, net: Any, recipe: Recipe) -> None:
        self.net, self.recipe = net, recipe
        self.parameters = dict(net.named_parameters())  # shared ones once
        self.blocks = {n: p for n, p in self.parameters.items() if p.ndim > 1 and "layers." in n}
        self.momentum = {name: torch.zeros_like(p) for name, p in self.blocks.items()}
        others = [p for name, p in self.parameters.items() if name not in self.blocks]
        self.balance = balance(net)
        self.adam = torch.optim.AdamW(others, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, made: Sequence[words.Batch], number: int) -> float:
        """One step; the loss in nats, over the whole vocabulary, summed over the three kinds of rows."""
        recipe, total = self.recipe, torch.zeros(())
        left = (recipe.steps - number) / (recipe.fall * recipe.steps)
        share = min((number + 1) / recipe.warm, 1.0) * (recipe.floor + (1 - recipe.floor) * min(left, 1.0))
        with self.balance() as uneven:
            answered = answers(self.net, made)
        for logits, batch in zip(answered, made, strict=True):
            total += nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.answers).flatten())
        (total + recipe.balance * uneven()).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), recipe.clip)
        for group in self.adam.param_groups:
            group["lr"] = recipe.rate * share
        self.adam.step()
        self._turn(recipe.turn * share)
        self.net.zero_grad()
        return total.item()

    @torch.no_grad()
    def _turn(self, rate: float) -> None:
        """Muon (Jordan et al. 2024): a step of equal size along every direction of a matrix's momentum."""
        alike: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name, p in self.blocks.items():
            momentum, gradient = self.momentum[name], p.grad
            momentum.lerp_(gradient, 0.05)
            pair = matrices(name, p), matrices(name, gradient.lerp(momentum, 0.95))
            alike.setdefault(pair[0].shape[1:], []).append(pair)
        for shape, pairs in alike.items():
            steps = orthogonal(torch.cat([step for _, step in pairs])).split([len(p) for p, _ in pairs])
            for (p, _), step in zip(pairs, steps, strict=True):
                p.mul_(1 - rate * self.recipe.decay).sub_(step, alpha=rate * 0.2 * max(shape) ** 0.5)

    def write(self, path: Path, step: int, seconds: float) -> None:
        """Keep all of it in one file, which is whole or not there."""
        from safetensors.torch import save_file

        tensors = {f"weight {name}": p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            kept = {"momentum": self.momentum[name]} if name in self.blocks else self.adam.state[p]
            tensors |= {f"{key} {name}": value for key, value in kept.items()}
        with written(path) as partial:
            save_file(tensors, partial, metadata={"step": str(step), "seconds": str(seconds)})

    def read(self, path: Path) -> tuple[int, float]:
        """Take up what was kept: the step and the seconds it stands at."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(file.get_tensor(f"weight {name}"))
                if name in self.blocks:
                    self.momentum[name] = file.get_tensor(f"momentum {name}")
                else:
                    keys = ("step", "exp_avg", "exp_avg_sq")
                    self.adam.state[p] = {key: file.get_tensor(f"{key} {name}") for key in keys}
            about = file.metadata()
        return int(about["step"]), float(about["seconds"])


def orthogonal(matrices: Float[torch.Tensor, "matrix row column"]) -> Float[torch.Tensor, "matrix row column"]:
    """The matrices with all singular values near 1 (between 0.68 and 1.13), by five Newton-Schulz steps.

    >>> torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([3.0, 1.0]))[None])).round()
    tensor([[1., 1.]])
    """
    upright = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if upright else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x.mT if upright else x


def _settings(model: ZooModel, net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "name": model.name,
        **asdict(model),
        "members": model.members,
        "parameters": sum(p.numel() for p in net.parameters()),
        "recipe": asdict(recipe),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("layerdiv_tl", "torch", "transformers", "numpy")},
    }


def _save(model: ZooModel, net: Any, folder: Path) -> None:
    """Weights in half precision, and the config that `load_model` reads."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=1) + "\n", encoding="utf-8")
    tensors = {}
    for name, tensor in net.state_dict().items():
        # The second use of a shared block is the same tensors again; blocks are stored by their own number.
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
        if model.shared and layer % 2:
            continue
        stored = name.replace(f"layers.{layer}.", f"layers.{layer // 2}.") if model.shared else name
        tensors[stored] = tensor.detach().half().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.training.train", description="Train the zoo's models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="as zoo/d4; without names all that are missing")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where models and logs go")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the same sums in the same order everywhere; run several processes to use more cores
    try:
        chosen = [find_model(name) for name in given.names] or list(MODELS)
    except InputError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    words.tokenizer().save_pretrained(given.out)
    for model in chosen:
        if (given.out / model.short / "model.safetensors").is_file():
            continue
        try:
            train(model, given.out)
        except InputError as error:
            parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
