"""Tokens that components promote at every position of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from ..model.capture import Activations
from .full_vocab import ComponentTable, VocabularyReadout, component_table, extremes

# Numbers of the stream vectors that are held at a time.
NUMBERS = 32_000_000


def promotions_of_pairs(
    readout: VocabularyReadout, activations: Activations, pairs: Sequence[tuple[int, int]], k: int
) -> tuple[Int[np.ndarray, "pair rank"], Float[np.ndarray, "pair rank"]]:
    """What components promote and suppress, for pairs (position, number of a component) of a pass.

    Returns ids and logits beyond a component's mean over the vocabulary, both `[pair, 2k]`: k that it promotes, most
    first, then k that it suppresses, most first. All pairs go through the vocabulary together: that is what costs.
    """
    rows, constant = [], []
    wanted: dict[int, list[int]] = {}
    for number, (position, _) in enumerate(pairs):
        wanted.setdefault(position, []).append(number)
    at, order = sorted(wanted), []
    for table in _tables(readout, activations, at):
        vectors = table.vectors(range(len(table.components))).to(table.final.device, readout.dtype)
        here, at = at[: len(vectors)], at[len(vectors) :]
        for row, position in enumerate(here):
            columns = [pairs[number][1] for number in wanted[position]]
            rows.append(vectors[row, columns])
            constant += [column == table.constant for column in columns]
            order += wanted[position]
    stacked = torch.cat(rows)
    ids, logits = extremes(readout, stacked, torch.tensor(constant, device=stacked.device), k)
    back = np.argsort(np.array(order))
    return ids.cpu().numpy()[back], logits.cpu().numpy()[back]


def _tables(readout: VocabularyReadout, activations: Activations, at: Sequence[int]) -> Iterator[ComponentTable]:
    """The components at some positions of a pass, a few positions at a time."""
    step = max(1, NUMBERS // (readout.width * readout.architecture.norm.gain.numel()))
    for start in range(0, len(at), step):
        positions = torch.as_tensor(at[start : start + step], device=activations.final.device)
        yield component_table(readout, activations.at_positions(positions))
