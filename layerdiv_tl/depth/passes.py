"""What the analyses share of running a model: batches with a progress bar, mean streams, changes of the softmax.

Sums over a vocabulary are in float64: in float32, over tens of thousands of tokens, they are off by up to 1e-3 of a
small divergence or change. A few rows at a time stay in the processor's cache, where float64 costs less than whole
float32 tables do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from ..model.prompts import Ids
from .inputs import read_layers

# Entries of one block of logits: 2 MiB in float64.
_BLOCK = 1 << 18

T = TypeVar("T")


def map_batches(
    model: Model,
    ids: Sequence[Sequence[int]],
    batch_tokens: int | None,
    measure: Callable[..., T],
    unit: str = "text",
    passes: Sequence[int] | None = None,
) -> list[T]:
    """`measure(row numbers)` of batches of texts of similar length, in inference mode and with a progress bar.

    Where a text costs many `passes`, the bar counts these, so that it says what is ahead before the first text is done:
    `measure` is then called with a second argument, a function that is told of each so many.
    """
    limit, switch = model.checked_batch_tokens(batch_tokens), model.architecture.length_switch
    total, unit = (len(ids), unit) if passes is None else (sum(passes), "pass")
    results = []
    with inference_mode_for(model.architecture), progress(model.name, total, unit) as advance:
        for rows in batches([len(row) for row in ids], limit, switch):
            results.append(measure(rows) if passes is None else measure(rows, advance))
            if passes is None:
                advance(len(rows))
    return results


def map_texts(
    model: Model, ids: Sequence[Ids], measure: Callable[[int, Callable[[int], Any]], T], passes: Sequence[int]
) -> list[T]:
    """`measure(number, count)` of every text alone, in the order of the texts; `passes` as in `map_batches`."""
    by_number = dict(map_batches(model, ids, 1, lambda rows, count: (rows[0], measure(rows[0], count)), passes=passes))
    return [by_number[number] for number in range(len(ids))]


def layer_count(model: Model) -> int:
    """How many layers a pass runs; a repeated layer counts every time."""
    return len({(sublayer.layer, repeat) for sublayer, repeat in model.sublayer_order})


def same_components(model: Model, of_batches: Sequence[tuple[Component, ...]]) -> tuple[Component, ...]:
    """The components of all batches. Raises InputError where they differ."""
    if any(components != of_batches[0] for components in of_batches):
        raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
    return of_batches[0]


def measure_tokens(
    model: Model,
    ids: list[Ids],
    batch_tokens: int | None,
    measure: Callable[[Activations], tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"]]],
) -> tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"], Int[np.ndarray, " token"]]:
    """(components, their measure at every token of every text, text of each token), in the order of the texts."""

    def measure_batch(rows: list[int]) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
        activations = run(model.architecture, *pad([ids[row] for row in rows]))
        return *measure(activations), np.repeat(rows, [len(ids[row]) for row in rows])

    components, tables, texts = zip(*map_batches(model, ids, batch_tokens, measure_batch), strict=True)
    text = np.concatenate(texts)
    order = np.argsort(text, kind="stable")
    return same_components(model, components), np.concatenate(tables, 1)[:, order], text[order]


def ablatable_blocks(model: Model, forward: PatchedForward, part: str, layers: Any = None) -> list[int]:
    """The wanted blocks (None: all) that have such a part. Raises InputError where none has."""
    blocks = [block for block in read_layers(layers, len(forward.layers)) if forward.zero_ablate(part, block)]
    if not blocks:
        raise InputError(f"these layers of {model.name} have no {part} that writes to the stream.")
    return blocks


def layer_components(forward: PatchedForward, part: Any = "layer") -> tuple[Component, ...]:
    """The component of every block: itself, or its attention or MLP."""
    return tuple(forward.component(part, block) for block in range(len(forward.layers)))


def mean_streams(model: Model, ids: list[Ids], batch_tokens: int | None, first: int = 0) -> list[Float[Tensor, " d"]]:
    """The mean stream entering every block, over the tokens of all texts from number `first` on."""

    def batch_sums(rows: list[int]) -> list[Tensor]:
        forward = PatchedForward(model, [ids[row] for row in rows])
        tokens = forward.tokens
        tokens[:, :first] = False
        return [stream[tokens.to(stream.device)].double().sum(0) for stream in forward.streams[:-1]]

    count = sum(len(row) - first for row in ids)
    by_block = zip(*map_batches(model, ids, batch_tokens, batch_sums), strict=True)
    return [torch.stack(sums).sum(0) / count for sums in by_block]


def output_changes(
    forward: PatchedForward,
    finals: Sequence[Float[Tensor, "n d"]],
    measured: Bool[Tensor, "row token"],
    targets: Int[Tensor, " n"] | None = None,
) -> tuple[Float[np.ndarray, "n final"], Float[np.ndarray, "n final"]]:
    """(‖softmax' − softmax‖₂, growth of the targets' cross-entropy in nats) of changed final streams.

    n are the measured positions, text by text. The vocabulary is formed for some of them at a time.
    """
    clean = forward.streams[-1][measured.to(forward.streams[-1].device)]
    change, growth = np.empty((2, len(clean), len(finals)))
    for chunk in forward.chunks(len(clean)):
        chunk_targets = None if targets is None else targets[chunk]
        p, clean_loss = softmax(forward.logits(clean[chunk]), chunk_targets)
        for number, final in enumerate(finals):
            distance, loss = softmax_change(forward.logits(final[chunk]), p, chunk_targets)
            change[chunk, number], growth[chunk, number] = distance.cpu().numpy(), (loss - clean_loss).cpu().numpy()
    return change, growth


def softmax(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"] | None = None) -> tuple[Tensor, Tensor]:
    """(softmax, cross-entropy of the targets), float64; NaN where there is no target, or a negative one.

    >>> p, loss = softmax(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> p.tolist(), round(float(loss), 6)
    ([[0.5, 0.5]], 0.693147)
    """
    p = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    loss = p.new_empty(len(p))
    for block in _blocks(logits):
        p[block], loss[block] = _softmax(logits[block], None if targets is None else targets[block])
    return p, loss


def cross_entropy(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """−log p of the targets in nats, float64, as in `softmax` but without a table of its size."""
    return torch.cat([_softmax(logits[block], targets[block])[1] for block in _blocks(logits)])


def softmax_change(
    logits: Float[Tensor, "n v"], clean: Float[Tensor, "n v"], targets: Int[Tensor, " n"] | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(‖softmax − clean‖₂, cross-entropy of the targets), float64; `clean` as `softmax` returns it."""
    change, loss = torch.empty(2, len(logits), dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        p, loss[block] = _softmax(logits[block], None if targets is None else targets[block])
        change[block] = p.sub_(clean[block].to(p.device)).norm(dim=-1)
    return change, loss


def log_softmax(logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """Logarithms of the softmax, float64."""
    table = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        table[block] = logits[block].double().log_softmax(-1)
    return table


def divergence(logits: Float[Tensor, "n v"], other: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """KL(softmax ‖ other) in nats, float64, `other` as `log_softmax` returns it.

    >>> kl = divergence(torch.tensor([[9.0, -900.0]]), log_softmax(torch.zeros(1, 2)))
    >>> bool(np.isclose(kl, np.log(2), rtol=1e-12))
    True
    """
    kl = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for block in _blocks(logits):
        log_p = logits[block].double().log_softmax(-1)
        # Where p underflows to 0 the log ratio may be −∞, and 0 · −∞ is NaN.
        log_ratio = (log_p - other[block]).clamp_min_(torch.finfo(torch.float64).min)
        kl[block] = torch.einsum("nv,nv->n", log_p.exp_(), log_ratio)
    return kl.clamp_min_(0)


def _softmax(logits: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.double() - logits.amax(-1, keepdim=True)
    targets = torch.full_like(logits[:, 0], -1, dtype=torch.long) if targets is None else targets.to(logits.device)
    target_logits = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    total = logits.exp_().sum(-1)
    return logits.div_(total[:, None]), (total.log() - target_logits).masked_fill(targets < 0, float("nan"))


def _blocks(table: Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK // table.shape[1])
    return (slice(start, start + step) for start in range(0, len(table), step))
