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
from ..components import Component
from ..errors import InputError
from ..model.batches import upcast
from ..model.load import as_model
from ..model.patched_forward import PatchedForward, See
from .inputs import FirstToken, Part, check_choices, read_texts
from .passes import ablatable_blocks, layer_components, map_batches, output_changes, same_components
from .residual_norms import SMALLEST
from .token_stats import SOFTMAX_CHANGE, TokenResult, mean_columns, quantile_columns, summarize

Mode = Literal["current", "future", "local", "future_local"]
Cuts = Sequence[float] | Literal["published"]
_CUTS = "'published', or a list of shares of a text's length"


@dataclass(frozen=True, eq=False, repr=False)
class Skip(TokenResult):
    """The change of each later layer's output and of the predictions when a layer, attention or MLP is zero-ablated.

    With Δ_l what layer l adds to its stream, and primes where a component s < l is skipped:

    Attributes:
        downstream_change, downstream_change_max: `[text, skipped, layer]`: ‖Δ_l − Δ'_l‖ / ‖Δ_l‖, its mean and maximum
            over the measured tokens of a text; NaN for layers up to the skipped one.
        output_change: `[measurement, skipped]`: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2.
        loss: `[measurement, skipped]`: growth of the next token's cross-entropy in nats; NaN at the last token.
        text, position: `[measurement]`: which token that is. With cuts a token comes once for every cut before it.
        components, layers: What was skipped, and the layers that were measured.

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

    def __repr__(self) -> str:
        cost = np.nanmean(self.loss, axis=0) if np.isfinite(self.loss).any() else np.zeros(len(self.components))
        least, most = (f"{self.components[i].label} {cost[i]:+.3g}" for i in (cost.argmin(), cost.argmax()))
        what = f"{len(cost)} components skipped one by one"
        return f"Skip({self.model}: {what}; the loss changes least without {least}, most without {most} nats)"

    def frame(self) -> pd.DataFrame:
        """One row per skipped component.

        `output_change` and `loss`: means over tokens, 95 % intervals over texts, quantiles and maxima over tokens.
        `downstream_change`: the mean over later layers and their tokens, and its maximum; NaN for the last layer.
        """
        later = np.isfinite(self.downstream_change)
        count = later.sum(2)
        with np.errstate(invalid="ignore"):
            mean = np.where(later, self.downstream_change, 0.0).sum(2) / count
        largest = np.where(later, self.downstream_change_max, -np.inf).max((0, 2))
        columns = summarize("output_change", self.output_change, self.text) | summarize("loss", self.loss, self.text)
        columns |= self._over_texts("downstream_change", mean)
        columns["downstream_change_max"] = np.where(count.any(0), largest, np.nan)
        units = {"output_change": SOFTMAX_CHANGE, "loss": "nats", "downstream_change": "share of the layer's write"}
        return self._with_units(columns, units)

    def by_pair(self) -> pd.DataFrame:
        """One row per skipped component and later layer.

        `effect` is the mean over tokens, with its 95 % interval over texts, quantiles over the texts' means and
        the maximum over tokens.
        """
        skipped, layer = np.argwhere(np.isfinite(self.downstream_change).all(0)).T
        values = self.downstream_change[:, skipped, layer]
        columns: dict[str, Any] = {"downstream_layer": [self.layers[number].label for number in layer]}
        columns |= self._over_texts("effect", values)
        if len(layer):
            columns |= quantile_columns("effect", values)
        columns["effect_max"] = self.downstream_change_max[:, skipped, layer].max(0)
        return self._with_units(columns, {"effect": "share of the layer's write"}, skipped)

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

    Args:
        model, texts, batch_tokens: As in `residual_norms`; texts of at least two tokens, for each of which all layers'
            streams are kept, twice.
        part: What is zero-ablated: the "layer", its "attn" or its "mlp".
        mode: "current": it is skipped at every token, and every token is measured. "future": it is skipped at the
            tokens before a cut, and the tokens from the cut on are measured: what later tokens need of it. "local" and
            "future_local": at the same tokens its output is subtracted from the stream that each later layer, and the
            read-out, reads, and their reaction is not passed on: the direct effect.
        first_token: Whether the first token of a text is skipped at too: "kept" (published, and the default: heads rest
            on the first token whatever it is, and a change of it says little about the layer) or "changed".
        layers: Which layers are skipped, in order of use; None is all.
        cuts: For the future modes, shares of a text's length; or "published": up to four random ones of every eighth
            token, drawn for one text after another from Python's generator seeded with 123. The default is not the
            published one, because that needs texts of 13 tokens.

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
    model = as_model(model)
    least, why = 2, "no other follows to be predicted"
    if future:
        least, why = 3 - (first_token == "changed"), "one is skipped and one is measured, besides a first that is kept"
        if cuts == "published":
            least, why = 13, "the first published cut is at token 8 and the last tokens are left out"
    ids = read_texts(model, texts, least, why)
    starts = _first_measured([len(row) for row in ids], cuts, first_token) if future else [None]

    def skip_batch(rows: list[int]) -> tuple[tuple[Component, ...], tuple[Component, ...], list[dict[str, np.ndarray]]]:
        keep_outputs = mode.endswith("local") and part != "layer"
        forward = PatchedForward(model, [ids[row] for row in rows], keep_outputs=keep_outputs)
        blocks = ablatable_blocks(model, forward, part, layers)
        at_cuts = [
            _measure(forward, rows, part, mode, *_positions(forward, start, rows, first_token), blocks)
            for start in starts
        ]
        return tuple(forward.component(part, block) for block in blocks), layer_components(forward), at_cuts

    components, later, batches = zip(*map_batches(model, ids, batch_tokens, skip_batch), strict=True)
    measured = [batch for at_cuts in batches for batch in at_cuts]
    fields = {name: np.concatenate([batch[name] for batch in measured]) for name in measured[0]}
    rows, shape = fields["rows"], (len(ids), *fields["mean"].shape[1:])
    sums, largest, counts = np.zeros(shape), np.full(shape, -np.inf), np.bincount(fields["text"], minlength=len(ids))
    np.add.at(sums, rows, fields["mean"] * fields["counts"][:, None, None])
    np.maximum.at(largest, rows, fields["largest"])
    order = np.argsort(fields["text"], kind="stable")
    cut_names = "published" if isinstance(cuts, str) else ", ".join(f"{cut:g}" for cut in cuts)
    return Skip(
        components=same_components(model, components),
        layers=same_components(model, later),
        downstream_change=sums / counts[:, None, None],
        downstream_change_max=largest,
        **{name: fields[name][order] for name in ("output_change", "loss", "text", "position")},
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
    forward: PatchedForward, starts: np.ndarray | None, rows: list[int], first_token: FirstToken
) -> tuple[Bool[Tensor, "row token"] | None, Bool[Tensor, "row token"]]:
    """(tokens that are skipped at, None for all; tokens that are measured), of some rows of `starts`."""
    real = forward.tokens
    positions = torch.arange(real.shape[1], device=real.device).expand_as(real)
    skippable = positions >= (first_token == "kept")
    if starts is None:
        return (skippable if first_token == "kept" else None), real
    cut = torch.as_tensor(starts[rows], device=real.device)[:, None]
    return skippable & (positions < cut), real & (positions >= cut) & (cut > 0)


def _measure(
    forward: PatchedForward,
    rows: list[int],
    part: Part,
    mode: Mode,
    skipped: Bool[Tensor, "row token"] | None,
    measured: Bool[Tensor, "row token"],
    blocks: list[int],
) -> dict[str, np.ndarray]:
    """The arrays of `Skip` for one batch at one cut, its `rows`, and how many tokens of each are measured, `counts`."""
    counts = measured.sum(1).cpu().numpy()
    later = np.full((2, len(rows), len(blocks), len(forward.layers)), np.nan)
    through = zip(forward.streams[:-1], forward.block_outputs, strict=True)
    clean = [upcast(after) - upcast(before) for before, after in through]
    norms = [delta.norm(dim=-1).clamp_min(SMALLEST) for delta in clean]
    finals = []
    for i, block in enumerate(blocks):

        def see(layer: int, before: Tensor, after: Tensor, i: int = i, block: int = block) -> None:
            if layer == block:
                return
            change = upcast(after) - upcast(before) - clean[layer]
            effect = (change.norm(dim=-1) / norms[layer]).masked_fill(~measured.to(change.device), 0.0)
            later[0, :, i, layer] = effect.sum(1, dtype=torch.float64).cpu().numpy() / np.maximum(counts, 1)
            later[1, :, i, layer] = effect.amax(1).cpu().numpy()

        final = _final_stream(forward, block, part, mode, skipped, see)
        finals.append(final[measured.to(final.device)])
    del clean, norms  # the vocabulary needs the memory
    output_change, loss = output_changes(forward, finals, measured, forward.targets()[measured[forward.tokens]])
    return {
        "rows": np.array(rows),
        "counts": counts,
        "text": np.repeat(rows, counts),
        "position": measured.nonzero(as_tuple=True)[1].cpu().numpy(),
        "mean": later[0],
        "largest": later[1],
        "output_change": output_change.astype(np.float32),
        "loss": loss.astype(np.float32),
    }


def _final_stream(
    forward: PatchedForward, block: int, part: Part, mode: Mode, skipped: Bool[Tensor, "row token"] | None, see: See
) -> Float[Tensor, "row token d"]:
    """The final stream without a component; `see` is shown the layers after it."""
    streams = forward.streams
    if not mode.endswith("local"):
        return forward.resume(block, streams[block], forward.zero_ablate(part, block, skipped), see=see)
    whole = part == "layer"
    output = forward.block_outputs[block] - streams[block] if whole else forward.sublayer_outputs[block, part]
    if skipped is not None:
        output = output.masked_fill(~skipped.to(output.device)[..., None], 0.0)

    def without(layer: int, _: Tensor) -> Tensor:
        return streams[layer] - forward.through_loop_norms(output, block, layer).to(streams[layer].device)

    return forward.resume(block + 1, without(block + 1, output), edit=without, see=see)
