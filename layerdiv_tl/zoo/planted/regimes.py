"""Small residual networks whose layers are known to average, to repeat, to step along a flow, or to cooperate.

They are Llamas whose attention writes nothing. Every prompt is one token, its answer one of a few options, and the
target is the distribution of the function that the network stands for, so that the least possible loss is known.
All are constructed: what a member is fitted to, it is fitted to alone, by ridge regression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..._checks import choice, whole_number
from ...errors import InputError
from ...model.load import Loadable

# Options, prompts, intrinsic dimensions of an input; width of the stream, or of either half where writes are apart.
OPTIONS, ROWS, INTRINSIC, WIDTH = 8, 256, 6, 16
HIDDEN = 48
# Of the rows that members are fitted to, relative to what they are fitted to.
NOISE = 0.35
# How far the stream moves relative to where it starts, spread of the target's logits, and steps of an exact flow.
DISPLACEMENT, SPREAD, FINE = 1.5, 2.5, 96
REGIMES: Mapping[str, str] = MappingProxyType(
    {
        "averaging": "every member was fitted alone, to noisy rows of its own, and reads what no member writes",
        "copies": "one member of `averaging`, as often as there are layers, with 1 % noise on its weights",
        "slices": "one wide map, cut into layers that read what no layer writes, with 10 % noise on the weights",
        "flow": "equal steps along a field that stays as it is: every layer has the same weights, but for 2 % noise",
        "turning flow": "equal steps along a field that turns smoothly with depth",
        "composition": "different layers one after another, with 10 % noise on the weights of each",
    }
)
# What the test should say of each.
VERDICTS: Mapping[str, str] = MappingProxyType(
    {
        "averaging": "averages",
        "copies": "redundant, not independent",
        "slices": "cooperates",
        "flow": "discretizes",
        "turning flow": "discretizes",
        "composition": "cooperates",
    }
)


class Block(NamedTuple):
    """A gated MLP: `down @ (silu(gate @ x) * (up @ x))` of the normed stream."""

    gate: Float[Tensor, "hidden d"]
    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "d hidden"]

    def features(self, normed: Float[Tensor, "n d"]) -> Float[Tensor, "n hidden"]:
        """What the block's neurons hold."""
        return torch.nn.functional.silu(normed @ self.gate.T) * (normed @ self.up.T)

    def __call__(self, stream: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """What the block writes to a stream."""
        return self.features(normed(stream)) @ self.down.T

    def noisy(self, share: float, random: torch.Generator) -> Block:
        """The block with Gaussian noise on its weights, so large relative to their root mean square."""
        noise = (torch.randn(w.shape, generator=random, dtype=w.dtype) * w.square().mean().sqrt() for w in self)
        return Block(*(w + share * e for w, e in zip(self, noise, strict=True)))


@dataclass(frozen=True, eq=False)
class Regime(Loadable):
    """A planted network and what it is asked: `ld.depth.ensemble_test(regime, **regime.question)`.

    Attributes:
        name, verdict, groups: What is planted, what the test should say, and of how many groups of functions.
        model, tokenizer: The Hugging Face causal LM; None, for prompts are token ids.
        question: `texts`, `options`, `target` and `group` of the test.
    """

    name: str
    verdict: str
    groups: int
    question: Mapping[str, Any]


def normed(stream: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The root mean square norm of Llama, without gains."""
    return stream * (stream.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def plant(name: str, layers: int = 12, groups: int = 1, seed: int = 0) -> Regime:
    """A network of one of the `REGIMES`.

    Args:
        name: The regime.
        layers: How many members.
        groups: For "averaging": over how many functions the members are divided; the target is their sum.
        seed: Of everything.

    Raises InputError for a name that does not exist, and for more groups than half of the layers.

    >>> import layerdiv_tl as ld
    >>> regime = ld.zoo.regime("copies", layers=4)
    >>> ld.load_model(regime).name, len(regime.question["texts"])
    ('copies', 256)
    """
    choice("name", name, REGIMES)
    whole_number("layers", layers, 4, 64)
    whole_number("groups", groups, 1, layers // 2)
    if groups > 1 and name != "averaging":
        raise InputError(f"groups={groups} is for 'averaging': members of {name!r} are not divided into groups.")
    random = torch.Generator().manual_seed(1000 * whole_number("seed", seed, 0, 10**6) + 7)
    apart = name in ("averaging", "copies", "slices")
    start = inputs(random, ROWS, apart)
    if name == "slices":
        blocks, move = _slices(random, layers)
    elif apart:
        blocks, move = _averaging(random, layers, groups, copies=name == "copies")
    else:
        blocks, move = _steps(random, layers, name)
    head = read_out(random, move(start), apart)
    return assemble(name, blocks, start, head, answers(move(start), head), VERDICTS[name], groups)


def inputs(random: torch.Generator, rows: int, apart: bool) -> Float[Tensor, "row d"]:
    """Embeddings on a sphere, of few intrinsic dimensions; where writes are apart, the second half is empty."""
    if not apart:
        x = torch.randn(rows, WIDTH, generator=random, dtype=torch.float64)
        return normed(x)
    basis = torch.linalg.qr(torch.randn(WIDTH, INTRINSIC, generator=torch.Generator().manual_seed(5)))[0].double()
    x = torch.randn(rows, INTRINSIC, generator=random, dtype=torch.float64) @ basis.T
    x = 16 * x / x.norm(dim=-1, keepdim=True)
    return torch.cat([x, torch.zeros_like(x)], 1)


def random_block(random: torch.Generator, width: int = WIDTH, hidden: int = HIDDEN, reads: int | None = None) -> Block:
    """A random block, whose writes are of the size of what it reads; it may read the first dimensions only."""
    reads = width if reads is None else reads
    gate, up = (torch.randn(hidden, width, generator=random, dtype=torch.float64) / reads**0.5 for _ in range(2))
    gate[:, reads:], up[:, reads:] = 0, 0
    down = torch.randn(width, hidden, generator=random, dtype=torch.float64) / hidden**0.5
    if reads < width:
        down[:reads] = 0
    return Block(2 * gate, 2 * up, down)


def read_out(random: torch.Generator, final: Float[Tensor, "n d"], apart: bool) -> Float[Tensor, "option d"]:
    """A head that spreads the target's logits as wanted."""
    head = torch.randn(OPTIONS, final.shape[1], generator=random, dtype=torch.float64)
    if apart:
        head[:, :WIDTH] = 0
    logits = normed(final) @ head.T
    return head * SPREAD / (logits - logits.mean(-1, keepdim=True)).square().mean().sqrt()


def answers(final: Float[Tensor, "n d"], head: Float[Tensor, "option d"]) -> Float[Tensor, "n option"]:
    """The distribution over the options of final streams."""
    return (normed(final) @ head.T).softmax(-1)


def assemble(
    name: str,
    blocks: list[Block],
    start: Float[Tensor, "row d"],
    head: Float[Tensor, "option d"],
    target: Float[Tensor, "row option"],
    verdict: str,
    groups: int,
) -> Regime:
    """The Llama of some blocks, with one token for every option and every row."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, hidden = start.shape[1], blocks[0].gate.shape[0]
    config = LlamaConfig(
        vocab_size=OPTIONS + len(start),
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=len(blocks),
        num_attention_heads=1,
        max_position_embeddings=8,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = LlamaForCausalLM(config).double().eval()
        model.model.embed_tokens.weight[OPTIONS:] = start
        model.lm_head.weight.zero_()
        model.lm_head.weight[:OPTIONS] = head
        for layer, block in zip(model.model.layers, blocks, strict=True):
            layer.self_attn.o_proj.weight.zero_()
            for module, weight in zip(
                (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj), block, strict=True
            ):
                module.weight.copy_(weight)
    model.config.name_or_path = name
    question = {
        "texts": [[OPTIONS + row] for row in range(len(start))],
        "options": list(range(OPTIONS)),
        "target": target.numpy(),
        "group": list(range(len(blocks))),
    }
    return Regime(model, None, name=name, verdict=verdict, groups=groups, question=MappingProxyType(question))


Move = Callable[[Float[Tensor, "n d"]], Float[Tensor, "n d"]]


def _averaging(random: torch.Generator, layers: int, groups: int, copies: bool) -> tuple[list[Block], Move]:
    """Members fitted alone to noisy rows, and the sum of functions that they were fitted to."""
    functions = [random_block(random, 2 * WIDTH, 12, WIDTH) for _ in range(groups)]
    probe = inputs(random, 1024, True)
    functions = [f._replace(down=f.down * 5 / groups**0.5 / f(probe).norm(dim=-1).mean()) for f in functions]
    group = np.arange(layers) % groups
    blocks: list[Block] = []
    for member in range(layers):
        if copies and blocks:
            blocks.append(blocks[0].noisy(0.01, random))
            continue
        g = group[member]
        share = 1 / (group == g).sum()
        blocks.append(_fitted(random, functions[g], float(share)))

    def move(x: Tensor) -> Tensor:
        return x + torch.stack([f(x) for f in functions]).sum(0)

    return blocks, move


def _slices(random: torch.Generator, layers: int) -> tuple[list[Block], Move]:
    """The neurons of one wide map, a share of them in every layer."""
    wide = random_block(random, 2 * WIDTH, 2 * layers, WIDTH)
    wide = wide._replace(down=wide.down * 5 / wide(inputs(random, 1024, True)).norm(dim=-1).mean())
    cut = zip(wide.gate.chunk(layers), wide.up.chunk(layers), wide.down.chunk(layers, 1), strict=True)
    return [Block(*parts).noisy(0.1, random) for parts in cut], lambda x: x + wide(x)


def _fitted(random: torch.Generator, function: Block, share: float) -> Block:
    """Random neurons whose output is a ridge regression on rows of their own: `share` of the function, with noise."""
    block = random_block(random, 2 * WIDTH, HIDDEN, WIDTH)
    x = inputs(random, 160, True)
    features, wanted = block.features(normed(x)), function(x)
    noise = torch.randn(wanted.shape, generator=random, dtype=wanted.dtype)
    noise[:, :WIDTH] = 0
    wanted = wanted + NOISE * wanted.square().mean().sqrt() * noise
    ridge = 0.1 * features.square().mean() * len(x) / 10 * torch.eye(HIDDEN, dtype=features.dtype)
    down = torch.linalg.solve(features.T @ features + ridge, features.T @ wanted)
    return block._replace(down=share * down.T)


def _steps(random: torch.Generator, layers: int, name: str) -> tuple[list[Block], Move]:
    """Blocks one after another, and where the stream moves without their noise, or in finer steps."""
    if name == "composition":
        exact = scaled([random_block(random) for _ in range(layers)], inputs(random, 512, False))
        return [block.noisy(0.1, random) for block in exact], lambda x: run(exact, x)
    ends = [random_block(random) for _ in range(1 if name == "flow" else 3)]

    def at(time: float) -> Block:
        # One turn of three independent fields, each as strong as another: what a layer does changes, slowly.
        angle = np.pi * time
        weights = [np.cos(angle), np.sin(angle)] if len(ends) > 1 else [1.0]
        return Block(
            *(sum(w * part for w, part in zip(weights, parts, strict=False)) for parts in zip(*ends, strict=True))
        )

    fine = scaled([at((i + 0.5) / FINE) for i in range(FINE)], inputs(random, 512, False))
    size = float(fine[0].down.norm() / at(0.5 / FINE).down.norm()) * FINE / layers
    coarse = [at((i + 0.5) / layers) for i in range(layers)]
    coarse = [block._replace(down=block.down * size) for block in coarse]
    noise = 0.02 if name == "flow" else 0.0
    return [block.noisy(noise, random) for block in coarse], lambda x: run(fine, x)


def run(blocks: list[Block], stream: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The stream after some blocks."""
    for block in blocks:
        stream = stream + block(stream)
    return stream


def scaled(blocks: list[Block], probe: Float[Tensor, "n d"]) -> list[Block]:
    """Blocks that together move the stream by `DISPLACEMENT` of where it starts."""
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        trial = [block._replace(down=block.down * middle) for block in blocks]
        moved = ((run(trial, probe) - probe).norm(dim=-1) / probe.norm(dim=-1)).mean()
        low, high = (middle, high) if moved < DISPLACEMENT else (low, middle)
    return [block._replace(down=block.down * low) for block in blocks]
