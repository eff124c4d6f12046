"""What of an earlier token still matters at each layer: its stream replaced by the mean one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..results import Result
from ..stream.capture import batches, quiet, upcast
from ..stream.loading import Model, load_model
from .replay import Replay
from .skipping import probabilities
from .summary import note, summarise
from .texts import Ids, describe, read_answers, read_layers, read_texts, spelled, token_columns

Span = Literal["position", "prefix"]


@dataclass(frozen=True, eq=False, repr=False)
class Erasure(Result):
    """What the answers become when tokens are made the average token where they enter a layer.

    effect, effect_max
        `[token, layer]`: ‖softmax − softmax'‖₂ over the vocabulary, mean and maximum over the positions that
        predict the answer, when this token (span "position") or it and all before it (span "prefix") is erased
        from the stream that enters the layer.
    text, position, tokens
        `[token]`: which text, where in it, and how the token is spelt.
    components
        The layers.
    span
        As asked for.
    """

    components: tuple[Component, ...]
    effect: Float[np.ndarray, "token layer"]
    effect_max: Float[np.ndarray, "token layer"]
    text: Int[np.ndarray, " token"]
    position: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    span: str
    model: str

    def frame(self) -> pd.DataFrame:
        """One row per layer: mean over tokens, 95 % interval over texts, quantiles over tokens, and the maximum."""
        frame = pd.DataFrame(describe(self.components) | summarise("effect", self.effect, self.text))
        frame["effect_max"] = self.effect_max.max(0)
        frame.attrs |= {"units": {"effect": "‖Δ softmax‖₂"}, "intervals": note(self.text)}
        return frame

    def by_token(self) -> pd.DataFrame:
        """One row per token and layer."""
        columns = token_columns(self.text, self.position, self.tokens, self.components)
        frame = pd.DataFrame(columns | {"effect": self.effect.ravel(), "effect_max": self.effect_max.ravel()})
        frame.attrs["units"] = {"effect": "‖Δ softmax‖₂", "effect_max": "‖Δ softmax‖₂"}
        return frame


def erase(
    model: Any,
    texts: Any,
    span: Span = "position",
    *,
    answers: Any = None,
    reference: Any = None,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> Erasure:
    """Erase every token from the stream that enters every layer, in turn.

    An erased token's stream becomes the mean one over all tokens of `reference`; the layers from there on
    cannot read the token any more, but what they read before stays.

    model, texts
        As in `sizes`; every token before the answer's first is erased in turn, that which predicts it too.
    span
        "position": one token; "prefix": it and all before it.
    answers
        How many tokens at the end of each text are its answer (default 1); or the answers themselves, one text
        or list of ids for each text; a task brings its gold options.
    reference
        Texts whose mean stream erases; None is `texts`.
    layers
        Which layers, in order of use; None is all.
    batch_tokens
        The most padded tokens in one forward pass.

    Costs about half a pass for every token and layer. Raises InputError for input that cannot be used, and
    for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> ld.depth.erase(tiny, [[1, 2, 3, 4], [4, 5]]).effect.shape
    (4, 2)
    """
    if span not in get_args(Span):
        raise InputError(f"span={span!r} is unknown: use 'position' or 'prefix'.")
    model = load_model(model)
    ids, lengths = read_answers(model, texts, answers)
    batch_tokens = model.at_once(batch_tokens)
    from tqdm.auto import tqdm

    effects: list[np.ndarray] = []
    with quiet(model.anatomy), tqdm(total=len(ids), desc=model.name, unit="text", delay=2, leave=False) as progress:
        means = _means(model, ids if reference is None else read_texts(model, reference), batch_tokens)
        wanted = read_layers(layers, len(means))
        for row, length in zip(ids, lengths, strict=True):
            names, table = _erase_one(model, row, length, span, means, wanted, batch_tokens)
            effects.append(table)
            progress.update()
    counts = [len(row) - length for row, length in zip(ids, lengths, strict=True)]
    mean, largest = np.concatenate(effects, 1)
    return Erasure(
        components=names,
        effect=mean,
        effect_max=largest,
        text=np.repeat(np.arange(len(ids)), counts),
        position=np.concatenate([np.arange(count) for count in counts]),
        tokens=spelled(model, [row[:count] for row, count in zip(ids, counts, strict=True)]),
        span=span,
        model=model.name,
    )


def _means(model: Model, ids: list[Ids], batch_tokens: int) -> list[Float[Tensor, " d"]]:
    """The mean stream entering every block, over all tokens."""
    sums: list[Tensor] = []
    for rows in batches([len(r) for r in ids], batch_tokens, model.anatomy.length_switch):
        replay = Replay(model, [ids[row] for row in rows])
        here = [stream[replay.tokens.to(stream.device)].double().sum(0) for stream in replay.streams[:-1]]
        sums = [a + b for a, b in zip(sums, here, strict=True)] if sums else here
    count = sum(map(len, ids))
    return [total / count for total in sums]


def _erase_one(
    model: Model, row: Ids, length: int, span: Span, means: list[Tensor], wanted: list[int], batch_tokens: int
) -> tuple[tuple[Component, ...], np.ndarray]:
    """Names, and `[mean and maximum, token, layer]` of one text."""
    count = len(row) - length
    table = np.empty((2, count, len(wanted)))
    size = min(count, max(1, batch_tokens // len(row)))
    # One clean pass serves all tokens: each row of the batch is the same text with another token erased.
    replay = Replay(model, [row] * size)
    predict = slice(count - 1, len(row) - 1)
    places = torch.arange(len(row), device=replay.ids.device)
    clean, _ = probabilities(replay.logits(replay.streams[-1][0, predict]), places[:length] * 0)
    for first in range(0, count, size):
        erased = torch.arange(first, first + size, device=places.device)[:, None]
        gone = places <= erased if span == "prefix" else places == erased
        kept = min(size, count - first)
        for number, block in enumerate(wanted):
            stream = replay.streams[block]
            changed = torch.where(gone[..., None].to(stream.device), means[block].to(stream), stream)
            finals = replay.resume(block, changed)[:kept, predict]
            effect = _effects(replay, finals, clean)
            table[:, first : first + kept, number] = torch.stack([effect.mean(1), effect.amax(1)]).cpu().numpy()
    return tuple(replay.component("layer", block) for block in wanted), table


def _effects(replay: Replay, finals: Float[Tensor, "row answer d"], clean: Tensor) -> Float[Tensor, "row answer"]:
    """‖softmax − softmax'‖₂, some of them at a time."""
    rows, answers, _ = finals.shape
    flat = finals.reshape(rows * answers, -1)
    which = torch.arange(answers, device=clean.device).repeat(rows)
    found = torch.empty(len(flat), dtype=torch.float64)
    for chunk in replay.chunks(len(flat)):
        q, _ = probabilities(replay.logits(flat[chunk]), which[chunk] * 0)
        found[chunk] = upcast(q - clean[which[chunk]]).norm(dim=-1).double().cpu()
    return found.view(rows, answers)
