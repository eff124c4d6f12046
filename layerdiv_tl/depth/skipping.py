"""Effects of skipping layers, attentions and MLPs on later layers' outputs and on the predictions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._checks import choice, listed, number
from ..components import Component
from ..ensemble.intervals import Estimate, estimate
from ..errors import InputError
from ..model.frozen import upcast
from ..model.load import as_model
from ..model.prompts import prompt_ends
from ..results import Plot
from .engine import (
    Rows,
    layer_components,
    layer_count,
    read_logits,
    run_patches,
    same_components,
    softmax_change,
    tokens_between,
)
from .inputs import FirstToken, Part, ablatable_blocks, check_choices, read_layers, read_texts
from .patched_forward import PatchedForward, See
from .residual_norms import SMALLEST
from .tokens import SOFTMAX_CHANGE, TokenResult, quantile_columns, summarize

Mode = Literal["current", "future", "local", "future_local"]
Cuts = Sequence[float] | Literal["published"]
_CUTS = "'published', or a list of shares of a text's length"


@dataclass(frozen=True, eq=False, repr=False)
class Skip(TokenResult):
    """The change of each later layer's output and of the predictions when a layer, attention or MLP is zero-ablated.

    With Δ_l the output that layer l adds to its stream, and primes where a component s < l is skipped:

    Attributes:
        components, layers: The skipped components, and the measured layers.
        downstream_change, downstream_change_max: ‖Δ_l − Δ'_l‖ / ‖Δ_l‖, its mean and maximum over the measured tokens
            of a text; NaN for layers up to the skipped one.
        output_change: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2.
        loss: Growth of the next token's cross-entropy in nats; NaN at the last token.
        text, position: The token measured. With cuts a token comes once for every cut before it.
        prompt_ends: As in `Contributions`.

    The released code of *Do Language Models Use Their Depth Efficiently?* plots the maxima over tokens, cuts and texts:
    `by_pair().effect_max` and `frame().output_change_max`. Its map also has a diagonal, 1 for a whole layer.
    """

    components: tuple[Component, ...]
    layers: tuple[Component, ...]
    downstream_change: Float[np.ndarray, "text skipped layer"]
    downstream_change_max: Float[np.ndarray, "text skipped layer"]
    output_change: Float[np.ndarray, "measurement skipped"]
    loss: Float[np.ndarray, "measurement skipped"]
    text: Int[np.ndarray, " measurement"]
    position: Int[np.ndarray, " measurement"]
    part: str
    mode: str
    model: str
    first_token: str = "kept"
    cuts: str = "none"
    prompt_ends: tuple[str, ...] = ()

    lead: ClassVar = "output_change"
    figures: ClassVar = {
        "map": Plot(
            "Effect of a skip on later layers",
            "A map skipped × later layer of the mean relative change of the later one's output.",
            "shapes.heat",
            "by_pair",
            {"row": "component", "column": "downstream_layer", "value": "effect"},
        ),
        "bars": Plot(
            "Effect of skipping each layer",
            "The change of the answer's probabilities, the growth of the loss, and the change of later layers.",
            "shapes.bars",
            "frame",
            {"columns": ("output_change", "loss", "downstream_change")},
        ),
    }

    def frame(self) -> pd.DataFrame:
        """One row per skipped component.

        `output_change` and `loss`: means over tokens, 95 % intervals over texts, quantiles and maxima over tokens.
        `downstream_change`: the mean over later layers and their tokens, and its maximum; NaN for the last layer.
        """
        later = np.isfinite(self.downstream_change)
        with np.errstate(invalid="ignore"):
            mean = np.where(later, self.downstream_change, 0.0).sum(2) / later.sum(2)
        largest = np.where(later, self.downstream_change_max, -np.inf).max((0, 2))
        later_columns = {
            "downstream_change": self._over_texts(mean),
            "downstream_change_max": np.where(later.any((0, 2)), largest, np.nan),
        }
        columns = summarize("output_change", self.output_change, self.text) | summarize("loss", self.loss, self.text)
        units = {"output_change": SOFTMAX_CHANGE, "loss": "nats", "downstream_change": "times the output's norm"}
        return self._with_units(columns | later_columns, units)

    def by_pair(self) -> pd.DataFrame:
        """One row per skipped component and later layer.

        `effect` is the mean over tokens, with its 95 % interval over texts, quantiles over the texts' means and
        the maximum over tokens.
        """
        skipped, layer = np.argwhere(np.isfinite(self.downstream_change).all(0)).T
        values = self.downstream_change[:, skipped, layer]
        columns: dict[str, Any] = {"downstream_layer": [self.layers[number].label for number in layer]}
        columns |= {"effect": self._over_texts(values)} | (quantile_columns("effect", values) if len(layer) else {})
        columns["effect_max"] = self.downstream_change_max[:, skipped, layer].max(0)
        return self._with_units(columns, {"effect": "times the output's norm"}, skipped)

    def _over_texts(self, means: Float[np.ndarray, "text row"]) -> Estimate:
        """Mean and interval of texts' means, weighted by their measured tokens."""
        counts = np.bincount(self.text, minlength=len(means))[:, None].astype(float)
        return estimate(means * counts, counts=counts, over="texts")


def skip(
    model: Any,
    texts: Any,
    part: Part = "layer",
    mode: Mode = "current",
    *,
    first_token: FirstToken = "kept",
    layers: Any = None,
    cuts: Cuts = (0.25, 0.5, 0.75),
    batch_tokens: int | None = None,
) -> Skip:
    """Skip every layer, attention or MLP in turn, and measure the effect on later layers and predictions.

    Follows Csordás et al. (arXiv 2505.13898), with the defaults of their released code except for `cuts`.

    Args:
        model, texts, batch_tokens: As in `residual_norms`; texts need at least two tokens. All layers' streams of a
            batch are kept, twice.
        part: What is zero-ablated: the "layer", its "attn" or its "mlp".
        mode: "current": skip at every token, and measure every token. "future": skip at the tokens before a cut, and
            measure the tokens from the cut on. "local" and "future_local": the direct effect; subtract the output at
            the same tokens from the stream that each later layer and the read-out read, without their reaction.
        first_token: Whether a text's first token, an attention sink, is also skipped: "kept" (published) or "changed".
        layers: Layers to skip, in order of use; None means all.
        cuts: For the future modes, shares of a text's length; or "published": up to four random multiples of eight
            tokens, drawn for one text after another from Python's generator seeded with 123. It needs texts of 13
            tokens.

    A layer that is used several times is skipped one use at a time (`L3@2.layer`). Makes 1 + L/2 passes over every text
    for L layers, and as many for each cut. Raises InputError for input that cannot be used, and for a layer that does
    not exist.

    >>> import layerdiv_tl as ld
    >>> skips = ld.depth.skip("zoo/d2", [[1, 2, 3], [4, 5]])
    >>> skips.frame().component.tolist(), skips.by_pair().downstream_layer.tolist()
    (['L0.layer', 'L1.layer'], ['L1.layer'])
    """
    check_choices(part=(part, Part), mode=(mode, Mode), first_token=(first_token, FirstToken))
    future, kept = mode.startswith("future"), first_token == "kept"
    if isinstance(cuts, str):
        choice("cuts", cuts, ("published",))
    else:
        cuts = [number("cuts", cut, above=0, below=1) for cut in listed("cuts", cuts, _CUTS)]
        if not cuts:
            raise InputError(f"cuts is empty: give {_CUTS}.")
    model = as_model(model)
    least, why = 2, "no other follows to be predicted"
    if future:
        least, why = 2 + kept, "one is skipped and one is measured, besides a first that is kept"
        if cuts == "published":
            least, why = 13, "the first published cut is at token 8 and the last tokens are left out"
    ids = read_texts(model, texts, least, why)
    # A row is a text with one of its cuts, which is the first token that is measured.
    starts = _cuts([len(row) for row in ids], cuts, 1 + kept) if future else [[0]] * len(ids)
    text, cut = np.array([(text, start) for text, own in enumerate(starts) for start in own]).T
    rows = Rows([ids[i] for i in text], [range(start, len(ids[i])) for i, start in zip(text, cut, strict=True)])
    later: dict[int, Float[np.ndarray, "2 skipped layer"]] = {}
    after: list[tuple[Component, ...]] = []

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Component, Tensor]]:
        where = tokens_between(clean, int(kept), cut[batch] if future else clean.ids.shape[1])
        measured, blocks = rows.take(batch).places(clean), ablatable_blocks(model, clean, part, layers)
        outputs = [upcast(y) - upcast(x) for x, y in zip(clean.streams[:-1], clean.block_outputs, strict=True)]
        sizes = [output.norm(dim=-1).clamp_min(SMALLEST) for output in outputs]
        tables = np.full((len(batch), 2, len(blocks), len(outputs)), np.nan)
        after.append(layer_components(clean))
        later.update(zip(batch, tables, strict=True))

        def see(skipped: int, layer: int, before: Tensor, stream: Tensor) -> None:
            if layer > blocks[skipped]:
                change = (upcast(stream) - upcast(before) - outputs[layer]).norm(dim=-1) / sizes[layer]
                change = change.masked_fill(~measured, 0.0)
                tables[:, 0, skipped, layer] = change.sum(1, dtype=torch.float64).cpu() / measured.sum(1).cpu()
                tables[:, 1, skipped, layer] = change.amax(1).cpu()

        for i, block in enumerate(blocks):
            yield clean.component(part, block), _skip(clean, block, part, mode, where, partial(see, i))

    count, reading = len(read_layers(layers, layer_count(model))), read_logits(rows, softmax_change)
    skipped, (change, loss) = run_patches(model, rows, patches, reading, count, batch_tokens)
    mean, largest = np.stack([later[row] for row in range(len(rows))], 1)
    counts, first = np.bincount(rows.row)[:, None, None], np.flatnonzero(np.diff(text, prepend=-1))
    return Skip(
        skipped,
        same_components(model, after),
        downstream_change=np.add.reduceat(mean * counts, first) / np.add.reduceat(counts, first),
        downstream_change_max=np.maximum.reduceat(largest, first),
        output_change=change.astype(np.float32),
        loss=loss.astype(np.float32),
        text=text[rows.row],
        position=rows.position,
        **{"part": part, "mode": mode, "model": model.name, "first_token": first_token},
        cuts="none" if not future else cuts if isinstance(cuts, str) else ", ".join(f"{cut:g}" for cut in cuts),
        prompt_ends=prompt_ends(model, ids),
    )


def _cuts(lengths: list[int], cuts: Cuts, least: int) -> list[list[int]]:
    """Return the cuts of every text: the first tokens that are measured."""
    if not isinstance(cuts, str):
        return [np.clip(np.round(np.multiply(cuts, size)).astype(int), least, size - 1).tolist() for size in lengths]
    generator, drawn = random.Random(123), []
    for length in lengths:
        candidates = list(range(8, length - 4, 8))
        generator.shuffle(candidates)
        drawn.append(candidates[:4])
    return drawn


def _skip(
    clean: PatchedForward, block: int, part: Part, mode: Mode, where: Bool[Tensor, "row token"], see: See
) -> Float[Tensor, "row token d"]:
    """Run a pass without a component at some tokens; `see` is called on the layers after it."""
    streams = clean.streams
    if not mode.endswith("local"):
        return clean.resume(block, streams[block], clean.zero_ablate(part, block, where), see=see)
    output = clean.block_outputs[block] - streams[block] if part == "layer" else clean.outputs[block, part]
    output = output.masked_fill(~where[..., None], 0.0)

    def without(layer: int, _: Tensor) -> Tensor:
        return streams[layer] - clean.through_loop_norms(output, block, layer)

    return clean.resume(block + 1, without(block + 1, output), edit=without, see=see)
