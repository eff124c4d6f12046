"""What components write at every token of one text: the tokens they promote, and which of them write alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component, Unit, positions
from ..errors import InputError
from ..model import tokenization as reading
from ..model.batches import inference_mode_for, pad
from ..model.forward_pass import run_all_positions
from ..model.load import Model, load_model
from .full_vocab import NUMBERS, Reader, Table, table_of
from .profile import _reader
from .vocab_gram import CHUNK

# Numbers of the stream vectors that are held at a time.
HELD = 32_000_000


@dataclass(frozen=True, eq=False)
class Promotions:
    """The ids with the largest and the smallest logits of components. Made by `promotions`.

    components, positions
        The names of the rows and the places in the text.
    ids, logits
        `[position, component, 2k]`: k that it promotes, most first, then k that it suppresses, most first; logits are
        those beyond the component's mean over the vocabulary, which no softmax sees.
    """

    components: tuple[Component, ...]
    positions: tuple[int, ...]
    ids: Int[np.ndarray, "position component rank"]
    logits: Float[np.ndarray, "position component rank"]


def promotions(
    model: Any,
    text_or_ids: Any,
    unit: Unit = "sublayer",
    components: Sequence[str | Component] | None = None,
    at: Sequence[int] | None = None,
    k: int = 5,
) -> Promotions:
    """What components promote and suppress at many tokens of one text, in one pass: `Profile.top_tokens` for all.

    model, text_or_ids, unit
        As in `profile`; one text, which the model reads at once.
    components, at
        Which components (labels) and positions; None is all of them.
    k
        How many ids of each kind.

    Raises InputError for components, positions and k that do not exist.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> promotions(tiny, [1, 2, 3], "head", k=3).ids.shape  # embed, 2 layers of 2 heads and an MLP
    (3, 7, 6)
    """
    model, ids = _one_text(model, text_or_ids)
    places = tuple(range(len(ids)) if at is None else [int(p) for p in at])
    if not places or not all(0 <= p < len(ids) for p in places):
        raise InputError(f"at={at!r:.60} does not fit a text of {len(ids)} tokens: give positions from 0.")
    reader = _reader(model, unit, "float32")
    if not 1 <= k <= reader.vocabulary.size:
        raise InputError(f"k={k!r} must be a whole number from 1 to {reader.vocabulary.size}.")
    names: list[Component] = []
    found: list[tuple[Tensor, Tensor]] = []
    with inference_mode_for(model.architecture), torch.inference_mode():
        for _, table in _tables(reader, model, ids, unit, places):
            columns = list(range(len(table.components)))
            if components is not None:
                columns = [positions(table.components, label=str(name))[0] for name in components]
            names = [table.components[column] for column in columns]
            found.append(_extremes(reader, table, columns, k))
    top, logits = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return Promotions(tuple(names), places, top, logits)


def cosines(
    model: Any, text_or_ids: Any, unit: Unit = "sublayer"
) -> tuple[tuple[Component, ...], Float[np.ndarray, "component component"]]:
    """The cosine between what every two components wrote to the logits, over a whole text: who duplicates whom.

    Of the centered contributions u(position, id), all positions and the whole vocabulary as one vector: exact, from
    products with the Gram matrix of the unembedding (MATHS 9). NaN where a component writes nothing a softmax sees.
    Returns the components and `[component, component]`; arguments as in `promotions`.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> names, cosine = cosines(tiny, [1, 2, 3])
    >>> len(names), bool(np.allclose(np.diag(cosine), 1))
    (5, True)
    """
    model, ids = _one_text(model, text_or_ids)
    reader = _reader(model, unit, "float32")
    vocabulary, total = reader.vocabulary, torch.zeros(())
    names: tuple[Component, ...] = ()
    with inference_mode_for(model.architecture), torch.inference_mode():
        for _, table in _tables(reader, model, ids, unit, tuple(range(len(ids)))):
            names = table.components
            z = table.vectors(range(len(names))).to(vocabulary.gram.device, reader.wide)
            seen = (z @ vocabulary.root.T.to(z)).transpose(0, 1).flatten(1)
            product = (seen @ seen.T).double()
            if table.constant is not None:  # it is no stream vector: its products are known by themselves
                column = (z.double() @ vocabulary.constant_product).sum(0)
                column[table.constant] = vocabulary.constant_power * len(z)
                product[table.constant], product[:, table.constant] = column, column
            total = total + product
    size = total.diagonal().clamp_min(0).sqrt()
    cosine = (total / (size[:, None] * size)).cpu().numpy()
    cosine[~np.isfinite(cosine)] = np.nan
    return names, cosine


def _one_text(model: Any, text_or_ids: Any) -> tuple[Model, tuple[int, ...]]:
    model = load_model(model)
    rows = reading.encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"this is about one text, but {len(rows)} were given: ask for one after another.")
    return model, rows[0]


def _tables(
    reader: Reader, model: Model, ids: Sequence[int], unit: Unit, places: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Table]]:
    """The components at some positions, a few positions at a time; the model runs once."""
    tokens, mask = pad([ids])
    done = run_all_positions(model.architecture, tokens, mask, unit)
    step = max(1, HELD // (reader.width * model.architecture.norm.gain.numel()))
    for start in range(0, len(places), step):
        some = places[start : start + step]
        yield some, table_of(reader, done.at_positions(torch.as_tensor(some, device=done.final.device)))


def _extremes(reader: Reader, table: Table, columns: list[int], k: int) -> tuple[Tensor, Tensor]:
    """`[position, column, 2k]` ids and logits, a few thousand ids of the vocabulary at a time.

    Every part of the vocabulary is read and folded once for all rows. Of most parts hardly a row holds one of its
    extremes, which its largest and smallest number tell; only these rows are sorted.
    """
    from tqdm.auto import tqdm

    device = table.final.device
    z = table.vectors(columns).to(device, reader.wide)
    rows = z.flatten(0, 1)
    constant = None
    if table.constant in columns:
        constant = torch.zeros(z.shape[:2], device=device, dtype=z.dtype)
        constant[:, columns.index(table.constant)] = 1
        constant = constant.flatten()
    # The largest first: of the logits, and of the logits with their signs turned.
    values = torch.full((2, len(rows), k), -torch.inf, dtype=z.dtype, device=device)
    ids = torch.zeros(2, len(rows), k, dtype=torch.int64, device=device)
    parts, count = reader.vocabulary.chunks(reader.wide), -(-reader.vocabulary.size // CHUNK)
    for some, directions, added in tqdm(parts, "promoted tokens", count, unit="part", delay=2, leave=False):
        step = max(1, NUMBERS // len(directions))
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            said = rows[block] @ directions.T
            if constant is not None:
                said += constant[block, None] * added
            least, most = said.aminmax(dim=1)
            for which, extreme in enumerate((most, -least)):
                better = (extreme > values[which, block, -1]).nonzero()[:, 0]
                here = said[better] if which == 0 else -said[better]
                new = here.topk(min(k, here.shape[1]), dim=1)
                better += start
                both = torch.cat([values[which, better], new.values], 1)
                names = torch.cat([ids[which, better], new.indices + some.start], 1)
                kept = both.topk(k, dim=1)
                values[which, better], ids[which, better] = kept.values, names.gather(1, kept.indices)
    shape = (*z.shape[:2], 2 * k)
    return torch.cat([*ids], 1).view(shape), torch.cat([values[0], -values[1]], 1).view(shape)
