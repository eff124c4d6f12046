"""What of an earlier token still matters at each layer: its stream replaced by the mean one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, shown
from ..components import Component, component_columns
from ..errors import InputError
from ..model.batches import batches, inference_mode_for
from ..model.load import Model, load_model
from ..model.patched_forward import PatchedForward
from ..results import Result
from .distributions import softmax, softmax_change
from .inputs import Ids, read_answers, read_layers, read_texts, spelled, token_columns
from .skipping import FirstToken
from .token_stats import note, summarize

Span = Literal["position", "prefix"]
At = Literal["answer", "later"]


@dataclass(frozen=True, eq=False, repr=False)
class Erasure(Result):
    """What the answers become when tokens are made the average token where they enter a layer.

    effect, effect_max
        `[token, layer]`: ‖softmax − softmax'‖₂ over the vocabulary, mean and maximum over the measured positions,
        when this token (span "position") or it and those before it (span "prefix") are erased from the stream that
        enters the layer; NaN where nothing is erased or measured. The released code draws the maximum.
    text, position, tokens
        `[token]`: which text, where in it, and how the token is spelled.
    components
        The layers.
    span, measured, first_token
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
    measured: str = "answer"
    first_token: str = "kept"

    def frame(self) -> pd.DataFrame:
        """One row per layer: mean over tokens, 95 % interval over texts, quantiles over tokens, and the maximum."""
        frame = pd.DataFrame(component_columns(self.components) | summarize("effect", self.effect, self.text))
        frame["effect_max"] = np.nanmax(self.effect_max, 0)
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
    measured: At | None = None,
    first_token: FirstToken = "kept",
    answers: Any = None,
    reference: Any = None,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> Erasure:
    """Erase every token but the last from the stream that enters every layer, in turn.

    An erased token's stream becomes the mean one over all tokens of `reference`; the layers from there on
    cannot read the token any more, but what they read before stays. The residual erasure of Csordás et al.
    (arXiv 2505.13898) by the rules of their released code, which are the defaults; it erases the stream that leaves
    the last layer too, which only the erased token itself can feel.

    model, texts
        As in `sizes`.
    span
        "position": one token, the first of a text as well; "prefix": it and those before it.
    measured
        Where the probabilities are compared: "answer", where the answer's tokens are predicted; "later", at every
        token after the erased one, but for the one that follows a prefix. None is the published one: "answer" for a
        position, "later" for a prefix.
    first_token
        Of a prefix, whether the first token is erased too: "kept" (published) or "changed".
    answers
        How many tokens at the end of each text are its answer (default 1); or the answers themselves, one text
        or list of ids for each text; a task brings its gold options. Leave it out where later tokens are measured.
    reference
        Texts whose mean stream erases; None is `texts`. (The paper's are ten questions of GSM8K.)
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
    choice("span", span, get_args(Span))
    measured = ("later" if span == "prefix" else "answer") if measured is None else measured
    known = {"measured": (measured, At), "first_token": (first_token, FirstToken)}
    for name, (value, values) in known.items():
        choice(name, value, get_args(values))
    if measured == "later" and answers is not None:
        raise InputError(f"measured='later' has to do with no answers: leave answers={shown(answers)} out.")
    model = load_model(model)
    kept = first_token == "kept"
    if measured == "answer":
        ids, lengths = read_answers(model, texts, answers)
        for place, (row, length) in enumerate(zip(ids, lengths, strict=True)):
            if kept and span == "prefix" and len(row) - length < 2:
                raise InputError(f"text {place} has one token before its answer, which is kept: give a longer one.")
    else:
        least = 2 if span == "position" else 3 + kept
        ids = read_texts(model, texts, least, "a token is erased and a later one measured")
        lengths = [0] * len(ids)
    batch_tokens = model.checked_batch_tokens(batch_tokens)
    from tqdm.auto import tqdm

    effects: list[np.ndarray] = []
    with (
        inference_mode_for(model.architecture),
        tqdm(total=len(ids), desc=model.name, unit="text", delay=2, leave=False) as progress,
    ):
        means = _means(model, ids if reference is None else read_texts(model, reference), batch_tokens)
        wanted = read_layers(layers, len(means))
        for row, length in zip(ids, lengths, strict=True):
            names, table = _erase_one(model, row, length, span, kept, means, wanted, batch_tokens)
            effects.append(table)
            progress.update()
    counts = [len(row) - 1 for row in ids]
    mean, largest = np.concatenate(effects, 1)
    return Erasure(
        components=names,
        effect=mean,
        effect_max=largest,
        text=np.repeat(np.arange(len(ids)), counts),
        position=np.concatenate([np.arange(count) for count in counts]),
        tokens=spelled(model, [row[:-1] for row in ids]),
        span=span,
        model=model.name,
        measured=measured,
        first_token=first_token,
    )


def _means(model: Model, ids: list[Ids], batch_tokens: int) -> list[Float[Tensor, " d"]]:
    """The mean stream entering every block, over all tokens."""
    sums: list[Tensor] = []
    for rows in batches([len(r) for r in ids], batch_tokens, model.architecture.length_switch):
        replay = PatchedForward(model, [ids[row] for row in rows])
        here = [stream[replay.tokens.to(stream.device)].double().sum(0) for stream in replay.streams[:-1]]
        sums = [a + b for a, b in zip(sums, here, strict=True)] if sums else here
    count = sum(map(len, ids))
    return [total / count for total in sums]


def _erase_one(
    model: Model,
    row: Ids,
    length: int,
    span: Span,
    kept: bool,
    means: list[Tensor],
    wanted: list[int],
    batch_tokens: int,
) -> tuple[tuple[Component, ...], np.ndarray]:
    """Names, and `[mean and maximum, token, layer]` of one text; an answer of no tokens: later ones are measured."""
    count = len(row) - 1
    table = np.full((2, count, len(wanted)), np.nan)
    size = min(count, max(1, batch_tokens // len(row)))
    # One clean pass serves all tokens: each row of the batch is the same text with another token erased.
    replay = PatchedForward(model, [row] * size)
    places = torch.arange(len(row), device=replay.streams[-1].device)
    asked = places[count - length : count] if length else places
    clean, _ = softmax(replay.logits(replay.streams[-1][0, asked]))
    for first in range(0, count, size):
        erased = torch.arange(first, first + size, device=places.device)[:, None]
        gone = (places <= erased) & (places >= kept) if span == "prefix" else places == erased
        seen = (asked > erased + (span == "prefix")) | bool(length)
        seen &= gone.any(1, keepdim=True) & (erased < count)
        rows = seen.any(1).nonzero()[:, 0].cpu().numpy()
        of = seen.nonzero()[:, 1]
        for number, block in enumerate(wanted):
            stream = replay.streams[block]
            changed = torch.where(gone[..., None].to(stream.device), means[block].to(stream), stream)
            finals = replay.resume(block, changed)[:, asked][seen]
            effect = torch.zeros(seen.shape, dtype=torch.float64)
            effect[seen.cpu()] = _effects(replay, finals, clean, of)
            mean = effect.sum(1) / seen.sum(1).cpu()
            table[:, first + rows, number] = torch.stack([mean, effect.amax(1)])[:, rows].numpy()
    return tuple(replay.component("layer", block) for block in wanted), table


def _effects(
    replay: PatchedForward, finals: Float[Tensor, "n d"], clean: Float[Tensor, "asked v"], of: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """‖softmax − softmax'‖₂, some of them at a time."""
    found = torch.empty(len(finals), dtype=torch.float64)
    for chunk in replay.chunks(len(finals)):
        found[chunk] = softmax_change(replay.logits(finals[chunk]), clean[of[chunk]])[0].cpu()
    return found
