"""Effects of skipping layers, attentions and MLPs on later layers' outputs and on the predictions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._checks import choice, listed, number
from ..components import Component, component_columns
from ..errors import InputError
from ..model.batches import upcast
from ..model.load import load_model
from ..model.patched_forward import PatchedForward
from ..results import Result
from .inputs import check_choices, read_texts
from .passes import ablatable_blocks, layer_components, output_changes, text_batches
from .residual_norms import SMALLEST, Part
from .token_stats import interval_note_of, labeled_frame, mean_columns, quantile_columns, summarize

Mode = Literal["current", "future", "local", "future_local"]
FirstToken = Literal["kept", "changed"]
Cuts = Sequence[float] | Literal["published"]
_CUTS = "'published', or a list of shares of a text's length"


@dataclass(frozen=True, eq=False, repr=False)
class Skip(Result):
    """The change of each later layer's output and of the predictions when a layer, attention or MLP is zero-ablated.

    With Δ_l what layer l adds to its stream, and primes where a component s < l is skipped:

    downstream_change, downstream_change_max
        `[text, skipped, layer]`: ‖Δ_l − Δ'_l‖ / ‖Δ_l‖, its mean and maximum over the measured tokens of a
        text; NaN for layers up to the skipped one.
    output_change
        `[measurement, skipped]`: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2.
    loss
        `[measurement, skipped]`: growth of the next token's cross-entropy in nats; NaN at the last token.
    text, position
        `[measurement]`: which token that is. With cuts a token comes once for every cut before it.
    components, layers
        What was skipped, and the layers that were measured.

    The released code of *Do Language Models Use Their Depth Efficiently?* draws the maxima over tokens, cuts and texts:
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

    def frame(self) -> pd.DataFrame:
        """One row per skipped component.

        `output_change` and `loss`: means over tokens, 95 % intervals over texts, quantiles and maxima over tokens.
        `downstream_change`: the mean over later layers and their tokens, and its maximum; NaN for the last layer.
        """
        columns: dict[str, Any] = component_columns(self.components)
        columns |= summarize("output_change", self.output_change, self.text) | summarize("loss", self.loss, self.text)
        later = np.isfinite(self.downstream_change)
        count = later.sum(2)
        with np.errstate(invalid="ignore"):
            mean = np.where(later, self.downstream_change, 0.0).sum(2) / count
        largest = np.where(later, self.downstream_change_max, -np.inf).max((0, 2))
        columns |= self._over_texts("downstream_change", mean)
        columns["downstream_change_max"] = np.where(count.any(0), largest, np.nan)
        units = {"output_change": "‖Δ softmax‖₂", "loss": "nats", "downstream_change": "share of the layer's write"}
        return labeled_frame(columns, units, interval_note_of(self.text))

    def by_pair(self) -> pd.DataFrame:
        """One row per skipped component and later layer.

        `effect` is the mean over tokens, with its 95 % interval over texts, quantiles over the texts' means and
        the maximum over tokens.
        """
        skipped, layer = np.argwhere(np.isfinite(self.downstream_change).all(0)).T
        values = self.downstream_change[:, skipped, layer]
        columns: dict[str, Any] = component_columns(self.components, skipped)
        columns["downstream_layer"] = [self.layers[number].label for number in layer]
        columns |= self._over_texts("effect", values)
        if len(layer):
            columns |= quantile_columns("effect", values)
        columns["effect_max"] = self.downstream_change_max[:, skipped, layer].max(0)
        return labeled_frame(columns, {"effect": "share of the layer's write"}, interval_note_of(self.text))

    def _over_texts(self, name: str, means: Float[np.ndarray, "text row"]) -> dict[str, np.ndarray]:
        """Mean and interval of texts' means, weighted by their measured tokens."""
        counts = np.bincount(self.text, minlength=len(means))[:, None].astype(float)
        return mean_columns(name, means * counts, counts)


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
    """Skip every layer, attention or MLP in turn, and measure what changes after it.

    The effects of Csordás et al. (arXiv 2505.13898) by the rules of their released code. Its defaults are those here
    except for `cuts`.

    model, texts
        As in `residual_norms`; texts of at least two tokens.
    part
        What is zero-ablated: the "layer", its "attn" or its "mlp".
    mode
        "current": it is skipped at every token, and every token is measured. "future": it is skipped at the tokens
        before a cut, and the tokens from the cut on are measured: what later tokens need of it. "local" and
        "future_local": at the same tokens its output is subtracted from the stream that each later layer, and the
        read-out, reads, and their reaction is not passed on: the direct effect.
    first_token
        Whether the first token of a text is skipped at too: "kept" (published, and the default: heads rest on
        the first token whatever it is, and a change of it says little about the layer) or "changed".
    layers
        Which layers are skipped, in order of use; None is all.
    cuts
        For the future modes, shares of a text's length; or "published": up to four random ones of every eighth token,
        drawn for one text after another from Python's generator seeded with 123. The default is not the published
        one, because that needs texts of 13 tokens.
    batch_tokens
        The most padded tokens in one forward pass. Of each, the streams of all layers are kept, twice.

    Of a layer that is used several times one use is skipped at a time (`L3@2.layer`).
    The passes share what lies before the skipped layer: all L skips cost about half of L forward passes.
    Raises InputError for input that cannot be used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> skips = ld.depth.skip("zoo/d2", [[1, 2, 3], [4, 5]])
    >>> skips.frame().component.tolist(), skips.by_pair().downstream_layer.tolist()
    (['L0.layer', 'L1.layer'], ['L1.layer'])
    """
    check_choices(part=(part, Part), mode=(mode, Mode), first_token=(first_token, FirstToken))
    future = mode.startswith("future")
    if isinstance(cuts, str):
        choice("cuts", cuts, ("published",))
    else:
        cuts = [number("cuts", cut, above=0, below=1) for cut in listed("cuts", cuts, _CUTS)]
        if not cuts:
            raise InputError(f"cuts is empty: give {_CUTS}.")
    model = load_model(model)
    least, why = 2, "no other follows to be predicted"
    if future:
        least, why = 3 - (first_token == "changed"), "one is skipped and one is measured, besides a first that is kept"
        if cuts == "published":
            least, why = 13, "the first published cut is at token 8 and the last tokens are left out"
    ids = read_texts(model, texts, least, why)
    starts = _first_measured([len(row) for row in ids], cuts, first_token) if future else [None]
    keep_outputs = mode.endswith("local") and part != "layer"
    batches: list[_BatchSkips] = []
    with text_batches(model, ids, batch_tokens) as row_batches:
        for rows in row_batches:
            forward = PatchedForward(model, [ids[row] for row in rows], keep_outputs=keep_outputs)
            blocks = ablatable_blocks(model, forward, part, layers)
            for start in starts:
                skipped, measured = _positions(forward, None if start is None else start[rows], first_token)
                batches.append(_BatchSkips(forward, rows, part, mode, skipped, measured, blocks))
    order = np.argsort(np.concatenate([batch.text for batch in batches]), kind="stable")
    measurements = {
        name: np.concatenate([getattr(batch, name) for batch in batches])[order]
        for name in ("text", "position", "output_change", "loss")
    }
    mean, largest = _over_cuts(batches, len(ids))
    cut_names = "published" if isinstance(cuts, str) else ", ".join(f"{cut:g}" for cut in cuts)
    return Skip(
        components=tuple(forward.component(part, block) for block in blocks),
        layers=layer_components(forward),
        downstream_change=mean,
        downstream_change_max=largest,
        **measurements,
        part=part,
        mode=mode,
        model=model.name,
        first_token=first_token,
        cuts=cut_names if future else "none",
    )


def _first_measured(lengths: list[int], cuts: Cuts, first_token: FirstToken) -> list[Any]:
    """For every cut, `[text]`: the first token that is measured; 0 where a text has no such cut."""
    size = np.array(lengths)
    if not isinstance(cuts, str):
        least = 2 - (first_token == "changed")
        return [np.clip(np.round(size * cut).astype(int), least, size - 1) for cut in cuts]
    generator = random.Random(123)
    table = np.zeros((4, len(size)), dtype=int)
    for text, length in enumerate(lengths):
        candidates = list(range(8, length - 4, 8))
        generator.shuffle(candidates)
        table[: len(candidates[:4]), text] = candidates[:4]
    return list(table)


def _positions(
    forward: PatchedForward, start: np.ndarray | None, first_token: FirstToken
) -> tuple[Bool[Tensor, "row token"] | None, Bool[Tensor, "row token"]]:
    """(tokens that are skipped at, None for all; tokens that are measured)."""
    real = forward.tokens
    positions = torch.arange(real.shape[1], device=real.device).expand_as(real)
    skippable = positions >= (first_token == "kept")
    if start is None:
        return (skippable if first_token == "kept" else None), real
    cut = torch.as_tensor(start, device=real.device)[:, None]
    return skippable & (positions < cut), real & (positions >= cut) & (cut > 0)


class _BatchSkips:
    """The skips of one batch at one cut: the arrays of `Skip`, and `counts` of measured tokens per row."""

    def __init__(
        self,
        forward: PatchedForward,
        rows: list[int],
        part: Part,
        mode: Mode,
        skipped: Bool[Tensor, "row token"] | None,
        measured: Bool[Tensor, "row token"],
        blocks: list[int],
    ) -> None:
        self.forward, self.part, self.mode, self.skipped, self.measured = forward, part, mode, skipped, measured
        self.rows, self.counts = rows, measured.sum(1).cpu().numpy()
        self.text = np.repeat(rows, self.counts)
        self.position = measured.nonzero(as_tuple=True)[1].cpu().numpy()
        shape = (len(rows), len(blocks), len(forward.layers))
        self.mean, self.largest = np.full(shape, np.nan), np.full(shape, np.nan)
        self.clean = [
            upcast(after) - upcast(before)
            for before, after in zip(forward.streams, forward.block_outputs, strict=False)
        ]
        self.norms = [delta.norm(dim=-1).clamp_min(SMALLEST) for delta in self.clean]
        finals = [self._final_stream(number, block) for number, block in enumerate(blocks)]
        del self.clean, self.norms
        changes = output_changes(forward, finals, measured, forward.targets()[measured[forward.tokens]])
        self.output_change, self.loss = (values.astype(np.float32) for values in changes)

    def _final_stream(self, number: int, block: int) -> Float[Tensor, "n d"]:
        """The final stream at the measured tokens; on the way, the changes of later layers are kept."""
        forward, streams = self.forward, self.forward.streams

        def see(layer: int, before: Tensor, after: Tensor) -> None:
            if layer == block:
                return
            change = upcast(after) - upcast(before) - self.clean[layer]
            effect = (change.norm(dim=-1) / self.norms[layer]).masked_fill(~self.measured.to(change.device), 0.0)
            mean = effect.sum(1, dtype=torch.float64).cpu().numpy() / np.maximum(self.counts, 1)
            self.mean[:, number, layer], self.largest[:, number, layer] = mean, effect.amax(1).cpu().numpy()

        if self.mode.endswith("local"):
            output = (
                forward.block_outputs[block] - streams[block]
                if self.part == "layer"
                else forward.sublayer_outputs[block, self.part]
            )
            if self.skipped is not None:
                output = output.masked_fill(~self.skipped.to(output.device)[..., None], 0.0)

            def without(layer: int, _: Tensor) -> Tensor:
                return streams[layer] - forward.through_loop_norms(output, block, layer).to(streams[layer].device)

            final = forward.resume(block + 1, without(block + 1, output), edit=without, see=see)
        else:
            ablation = forward.zero_ablate(self.part, block, self.skipped)
            final = forward.resume(block, streams[block], ablation, see=see)
        return final[self.measured.to(final.device)]


def _over_cuts(batches: list[_BatchSkips], texts: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and maximum change of later layers `[text, skipped, layer]`, over all cuts of each text."""
    shape = (texts, *batches[0].mean.shape[1:])
    sums, largest, counts = np.zeros(shape), np.full(shape, -np.inf), np.zeros(texts)
    for batch in batches:
        sums[batch.rows] += batch.mean * batch.counts[:, None, None]
        largest[batch.rows] = np.maximum(largest[batch.rows], batch.largest)
        counts[batch.rows] += batch.counts
    return sums / counts[:, None, None], largest
