"""Trained counterparts of `ld.zoo.regime`: stacks fitted as a whole, in the repository only.

    python -m layerdiv_tl.zoo.training.regimes FOLDER    trains what FOLDER lacks, in minutes on one core

All seeds of a kind are trained at once, as one batch of small matrices.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..planted import regimes
from ..planted.regimes import Block, Regime

SEEDS, LAYERS, HIDDEN, STEPS, BATCH = 40, 12, 16, 1500, 128
# What is trained, what its target is, and what the test should say of it.
KINDS = {
    "student of a composition": ("composition", "cooperates"),
    "student of one map": ("one map", "cooperates"),
    "student of a flow": ("flow", "cooperates"),
    "random depth": ("one map", "averages"),
}


def train(kind: str, seeds: int = SEEDS, steps: int = STEPS) -> dict[str, Tensor]:
    """Weights `[seed, layer, …]` of stacks that were fitted to a target as a whole.

    "random depth": at every step half of the layers are left out, the others write twice as much and run in random
    order, so that the layers become interchangeable.
    """
    teachers = [_teacher(KINDS[kind][0], seed) for seed in range(seeds)]
    heads = torch.stack([head for _, head in teachers]).float()
    random = torch.Generator().manual_seed(11)
    size = (seeds, LAYERS, HIDDEN, regimes.WIDTH)
    gate, up = (2 * torch.randn(size, generator=random) / regimes.WIDTH**0.5 for _ in range(2))
    down = torch.zeros(seeds, LAYERS, regimes.WIDTH, HIDDEN)
    weights = {"gate": gate, "up": up, "down": down}
    for w in weights.values():
        w.requires_grad_(True)
    optimizer = torch.optim.Adam(weights.values(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        with torch.no_grad():
            if step % 250 == 0:  # teachers cost more than a step: their answers are used again
                x = torch.stack([regimes.inputs(random, 32 * BATCH, False) for _ in range(seeds)])
                stacked = zip(teachers, x, strict=True)
                target = torch.stack([regimes.answers(move(rows), head) for (move, head), rows in stacked]).float()
                x = x.float()
            some = torch.randint(x.shape[1], (BATCH,), generator=random)
            rows, wanted = x[:, some], target[:, some]
        order, factor = list(range(LAYERS)), 1.0
        if kind == "random depth":
            order, factor = torch.randperm(LAYERS, generator=random)[: LAYERS // 2].tolist(), 2.0
        stream = rows
        for layer in order:
            read = regimes.normed(stream).transpose(1, 2)
            hidden = torch.nn.functional.silu(gate[:, layer] @ read) * (up[:, layer] @ read)
            stream = stream + factor * (down[:, layer] @ hidden).transpose(1, 2)
        log_p = (regimes.normed(stream) @ heads.transpose(1, 2)).log_softmax(-1)
        loss = -(wanted * log_p).sum(-1).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            entropy = -(wanted * wanted.clamp_min(1e-12).log()).sum(-1).mean(1).sum()
            print(kind, step, f"{float(loss.detach() - entropy) / seeds:.4f} nats", flush=True)
    return {name: w.detach() for name, w in weights.items()}


def assemble(kind: str, weights: dict[str, Tensor], seed: int) -> Regime:
    """One of the trained stacks, with the question of its teacher."""
    target, verdict = KINDS[kind]
    move, head = _teacher(target, seed)
    start = regimes.inputs(torch.Generator().manual_seed(10**6 + seed), regimes.ROWS, False)
    of_seed = [w[seed].double() for w in (weights["gate"], weights["up"], weights["down"])]
    blocks = [Block(*parts) for parts in zip(*of_seed, strict=True)]
    return regimes.assemble(kind, blocks, start, head, regimes.answers(move(start), head), verdict, 1)


def stored(folder: Path, kind: str) -> dict[str, Tensor]:
    """The weights of a kind, trained if the folder lacks them."""
    file = folder / f"{kind.replace(' ', '_')}.safetensors"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        save_file(train(kind), file)
    return load_file(file)


def _teacher(name: str, seed: int) -> tuple[regimes.Move, Tensor]:
    """Where a target moves the stream, and its head."""
    random = torch.Generator().manual_seed(77 + 1000 * seed)
    probe = regimes.inputs(random, 512, False)
    if name == "one map":
        blocks = [regimes.random_block(random, hidden=256)]
    elif name == "flow":
        blocks = [regimes.random_block(random)] * 48
    else:
        blocks = [regimes.random_block(random) for _ in range(6)]
    blocks = regimes.scaled(blocks, probe)

    def move(x: Tensor) -> Tensor:
        return regimes.run(blocks, x)

    return move, regimes.read_out(random, move(probe), False)


if __name__ == "__main__":
    for wanted in KINDS:
        stored(Path(sys.argv[1]), wanted)
