"""What the analyses share of running a model: batches with a progress bar, clean streams, changes of the softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run_all_positions
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .distributions import softmax, softmax_change
from .inputs import Ids, read_layers


@contextmanager
def text_batches(
    model: Model, ids: Sequence[Ids], batch_tokens: int | None, unit: str = "text"
) -> Iterator[Iterator[list[int]]]:
    """Row numbers of texts of similar length, batch by batch, in inference mode and with a progress bar."""
    from tqdm.auto import tqdm

    rows = batches(
        [len(row) for row in ids], model.checked_batch_tokens(batch_tokens), model.architecture.length_switch
    )
    with (
        inference_mode_for(model.architecture),
        tqdm(total=len(ids), desc=model.name, unit=unit, delay=2, leave=False) as progress,
    ):

        def with_progress() -> Iterator[list[int]]:
            for batch in rows:
                yield batch
                progress.update(len(batch))

        yield with_progress()


def same_components(
    model: Model, components: tuple[Component, ...], others: tuple[Component, ...]
) -> tuple[Component, ...]:
    """The components of another batch. Raises InputError where they are not those of the ones before (if any)."""
    if components and components != others:
        raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
    return others


def measure_tokens(
    model: Model,
    ids: list[Ids],
    batch_tokens: int | None,
    measure: Callable[[Activations], tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"]]],
) -> tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"], Int[np.ndarray, " token"]]:
    """(components, their measure at every token of every text, text of each token), in the order of the texts."""
    components: tuple[Component, ...] = ()
    tables: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    with text_batches(model, ids, batch_tokens) as row_batches:
        for rows in row_batches:
            batch_components, table = measure(run_all_positions(model.architecture, *pad([ids[row] for row in rows])))
            components = same_components(model, components, batch_components)
            tables.append(table)
            owners.append(np.repeat(rows, [len(ids[row]) for row in rows]))
    text = np.concatenate(owners)
    order = np.argsort(text, kind="stable")
    return components, np.concatenate(tables, 1)[:, order], text[order]


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
    sums: list[Tensor] = []
    for rows in batches(
        [len(row) for row in ids], model.checked_batch_tokens(batch_tokens), model.architecture.length_switch
    ):
        forward = PatchedForward(model, [ids[row] for row in rows])
        tokens = forward.tokens
        tokens[:, :first] = False
        batch_sums = [stream[tokens.to(stream.device)].double().sum(0) for stream in forward.streams[:-1]]
        sums = [a + b for a, b in zip(sums, batch_sums, strict=True)] if sums else batch_sums
    count = sum(len(row) - first for row in ids)
    return [total / count for total in sums]


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
