"""Tokens that components promote at every position of a text, and cosines between the components' contributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, positions
from ..errors import InputError
from ..model.batches import inference_mode_for, pad
from ..model.capture import Activations
from ..model.cuts import UnitLike
from ..model.forward_pass import run
from ..model.load import as_model
from ..model.prompts import encode_one
from .full_vocab import ComponentTable, VocabularyReadout, component_table, extremes, vocabulary_readout

# Numbers of the stream vectors that are held at a time.
NUMBERS = 32_000_000


@dataclass(frozen=True, eq=False)
class Promotions:
    """The ids with the largest and the smallest logits of components, at places of a text. Made by `promotions`.

    Attributes:
        ids, logits: `[position, component, 2k]`: k that it promotes, most first, then k that it suppresses, most first;
            logits are those beyond the component's mean over the vocabulary, which no softmax sees.
    """

    components: tuple[Component, ...]
    positions: tuple[int, ...]
    ids: Int[np.ndarray, "position component rank"]
    logits: Float[np.ndarray, "position component rank"]


def promotions(
    model: Any,
    text_or_ids: Any,
    unit: UnitLike = "sublayer",
    components: Sequence[str | Component] | None = None,
    at: Sequence[int] | None = None,
    k: int = 5,
) -> Promotions:
    """What components promote and suppress at many tokens of one text, in one pass: `Profile.top_tokens` for all.

    `components` (labels) and positions `at`: None is all of them. k is how many ids of each kind; the other arguments
    are those of `profile`, for one text. Raises InputError for components, positions and k that do not exist.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> promotions(tiny, [1, 2, 3], "head", k=3).ids.shape  # embed, 2 layers of 2 heads and an MLP
    (3, 7, 6)
    """
    model = as_model(model)
    ids = encode_one(model, text_or_ids)
    at = tuple(range(len(ids)) if at is None else map(int, at))
    if not at or not all(0 <= position < len(ids) for position in at):
        raise InputError(f"at={at!r:.60} does not fit a text of {len(ids)} tokens: give positions from 0.")
    readout = vocabulary_readout(model, unit, "float32")
    whole_number("k", k, 1, readout.vocabulary.size)
    extremes = []
    with inference_mode_for(model.architecture):
        for table in _tables(readout, run(model.architecture, *pad([ids]), unit, interventions=True), at):
            columns = list(range(len(table.components)))
            if components is not None:
                columns = [positions(table.components, label=str(name))[0] for name in components]
            extremes.append(table.extreme_ids(columns, k))
    top_ids, logits = (torch.cat(blocks).cpu().numpy() for blocks in zip(*extremes, strict=True))
    return Promotions(tuple(table.components[column] for column in columns), at, top_ids, logits)


def cosines(
    model: Any, text_or_ids: Any, unit: UnitLike = "sublayer"
) -> tuple[tuple[Component, ...], Float[np.ndarray, "component component"]]:
    """The cosine between every two components' contributions to the logits over a whole text: who duplicates whom.

    Of the centered contributions, all positions and the whole vocabulary as one vector. Returns the components and
    `[component, component]`, NaN where one adds nothing a softmax sees; arguments as in `promotions`.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> names, cosine = cosines(tiny, [1, 2, 3])
    >>> len(names), bool(np.allclose(np.diag(cosine), 1))
    (5, True)
    """
    model = as_model(model)
    ids = encode_one(model, text_or_ids)
    readout = vocabulary_readout(model, unit, "float32")
    with inference_mode_for(model.architecture):
        return cosines_of_pass(readout, run(model.architecture, *pad([ids]), unit, interventions=True))


def cosines_of_pass(
    readout: VocabularyReadout, activations: Activations
) -> tuple[tuple[Component, ...], Float[np.ndarray, "component component"]]:
    """`cosines` over all positions of a pass."""
    vocabulary, total = readout.vocabulary, torch.zeros(())
    for table in _tables(readout, activations, range(len(activations.final))):
        names = table.components
        z = table.vectors(range(len(names))).to(vocabulary.gram.device, readout.dtype)
        # u · u' = Rz · Rz', summed over positions.
        rooted = (z @ vocabulary.root.T.to(z)).transpose(0, 1).flatten(1)
        product = (rooted @ rooted.T).double()
        if table.constant is not None:  # not a stream vector: its products are known by themselves
            column = (z.double() @ vocabulary.constant_product).sum(0)
            column[table.constant] = vocabulary.constant_power * len(z)
            product[table.constant], product[:, table.constant] = column, column
        total = total + product
    size = total.diagonal().clamp_min(0).sqrt()
    cosine = (total / (size[:, None] * size)).cpu().numpy()
    cosine[~np.isfinite(cosine)] = np.nan
    return names, cosine


def promotions_of_pairs(
    readout: VocabularyReadout, activations: Activations, pairs: Sequence[tuple[int, int]], k: int
) -> tuple[Int[np.ndarray, "pair rank"], Float[np.ndarray, "pair rank"]]:
    """`promotions` of some pairs (position, number of a component) of a pass: ids, and logits beyond the mean.

    All pairs go through the vocabulary together, because going through it is what costs.
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
