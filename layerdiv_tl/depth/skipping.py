"""What changes after a layer that writes nothing: the effects of skipping layers, attentions and MLPs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._checks import choice, listed, number
from ..components import Component, component_columns
from ..ensemble.intervals import cluster_means
from ..errors import InputError
from ..model.batches import batches, inference_mode_for, upcast
from ..model.load import load_model
from ..model.patched_forward import PatchedForward
from ..results import Result
from .distributions import softmax, softmax_change
from .inputs import read_layers, read_texts
from .residual_norms import SMALLEST, Part
from .token_stats import QUANTILES, note, summarize

Mode = Literal["current", "future", "local", "future_local"]
FirstToken = Literal["kept", "changed"]
Cuts = Sequence[float] | Literal["published"]
_CUTS = "'published', or a list of shares of a text's length"


@dataclass(frozen=True, eq=False, repr=False)
class Skip(Result):
    """What each layer's computation and the answers become when one layer, attention or MLP writes nothing.

    With Δ_l what layer l adds to its stream, and primes where a component s < l is skipped:

    later, later_max
        `[text, skipped, layer]`: ‖Δ_l − Δ'_l‖ / ‖Δ_l‖, its mean and maximum over the measured tokens of a
        text; NaN for layers that are not behind the skipped one.
    output
        `[measurement, skipped]`: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2.
    loss
        `[measurement, skipped]`: how many nats the next token's cross-entropy grows; NaN behind the last token.
    text, position
        `[measurement]`: which token that is. With cuts a token comes once for every cut before it.
    components, layers
        What was skipped, and the layers that were watched.
    part, mode, first_token, cuts
        As asked for; `cuts` is "none" where there are none.

    The released code of *Do Language Models Use Their Depth Efficiently?* draws the maxima over tokens, cuts and
    texts: `by_pair().effect_max` and `frame().output_change_max`. Its map also has a diagonal, which is 1 for a whole layer.
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
        `downstream_change`: the mean over the layers behind it and their tokens, and its maximum; NaN for the last layer.
        """
        columns: dict[str, Any] = component_columns(self.components)
        columns |= summarize("output_change", self.output_change, self.text) | summarize("loss", self.loss, self.text)
        behind = np.isfinite(self.downstream_change)
        count = behind.sum(2)
        with np.errstate(invalid="ignore"):
            mean = np.where(behind, self.downstream_change, 0.0).sum(2) / count
        largest = np.where(behind, self.downstream_change_max, -np.inf).max((0, 2))
        columns |= self._over_texts("downstream_change", mean) | {
            "downstream_change_max": np.where(count.any(0), largest, np.nan)
        }
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {
            "output_change": "‖Δ softmax‖₂",
            "loss": "nats",
            "downstream_change": "share of the layer's write",
        }
        frame.attrs["intervals"] = note(self.text)
        return frame

    def by_pair(self) -> pd.DataFrame:
        """One row per skipped component and later layer.

        `effect` is the mean over tokens, with its 95 % interval over texts, quantiles over the texts' means and
        the maximum over tokens.
        """
        at = np.argwhere(np.isfinite(self.downstream_change).all(0))
        values = self.downstream_change[:, at[:, 0], at[:, 1]]
        columns: dict[str, Any] = component_columns([self.components[s] for s, _ in at])
        columns["downstream_layer"] = [self.layers[layer].label for _, layer in at]
        columns |= self._over_texts("effect", values)
        if len(at):
            spread = np.quantile(values, list(QUANTILES.values()), axis=0)
            columns |= {f"effect_{name}": row for name, row in zip(QUANTILES, spread, strict=True)}
        columns["effect_max"] = self.downstream_change_max[:, at[:, 0], at[:, 1]].max(0)
        frame = pd.DataFrame(columns)
        frame.attrs |= {"units": {"effect": "share of the layer's write"}, "intervals": note(self.text)}
        return frame

    def _over_texts(self, name: str, means: Float[np.ndarray, "text row"]) -> dict[str, np.ndarray]:
        """Mean and interval of texts' means, each text as heavy as it has measured tokens."""
        counts = np.bincount(self.text, minlength=len(means))[:, None].astype(float)
        return dict(zip((name, f"{name}_low", f"{name}_high"), cluster_means(means * counts, counts), strict=True))


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
        As in `sizes`; texts of at least two tokens.
    part
        What writes nothing: the "layer", its "attn" or its "mlp".
    mode
        "current": it is skipped at every token, and every token is measured. "future": it is skipped at the tokens
        before a cut, and the tokens from the cut on are measured: what later tokens need of it. "local" and
        "future_local": at the same tokens its write is taken out of the stream that each later layer, and the
        read-out, sees, and what they do about it goes no further: the direct effect.
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

    Of a layer that is used several times one use is skipped at a time (`L3@2.layer`), its other uses run as ever.
    The passes share what lies before the skipped layer: all L skips cost about half of L forward passes.
    Raises InputError for input that cannot be used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.skip(tiny, [[1, 2, 3], [4, 5]])
    >>> found.frame().component.tolist(), found.by_pair().downstream_layer.tolist()
    (['L0.layer', 'L1.layer', 'L2.layer'], ['L1.layer', 'L2.layer', 'L2.layer'])
    """
    known = {"part": (part, Part), "mode": (mode, Mode), "first_token": (first_token, FirstToken)}
    for name, (value, values) in known.items():
        choice(name, value, get_args(values))
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
    places = _cuts([len(row) for row in ids], cuts, first_token) if future else [None]
    from tqdm.auto import tqdm

    found: list[_Batch] = []
    with (
        inference_mode_for(model.architecture),
        tqdm(total=len(ids), desc=model.name, unit="text", delay=2, leave=False) as progress,
    ):
        for rows in batches(
            [len(r) for r in ids], model.checked_batch_tokens(batch_tokens), model.architecture.length_switch
        ):
            keep = mode.endswith("local") and part != "layer"
            replay = PatchedForward(model, [ids[row] for row in rows], keep_outputs=keep)
            wanted = [b for b in read_layers(layers, len(replay.layers)) if replay.zero_ablate(part, b)]
            if not wanted:
                raise InputError(f"these layers of {model.name} have no {part} that writes to the stream.")
            for cut in places:
                skipped, measured = _where(replay, None if cut is None else cut[rows], first_token)
                found.append(_Batch(replay, rows, part, mode, skipped, measured, wanted))
            names = tuple(replay.component(part, block) for block in wanted)
            watched = tuple(replay.component("layer", block) for block in range(len(replay.layers)))
            progress.update(len(rows))
    later, largest = _collect(found, len(ids), (len(names), len(watched)))
    text = np.concatenate([batch.text for batch in found])
    order = np.argsort(text, kind="stable")
    output, loss, position = (
        np.concatenate([getattr(b, name) for b in found])[order] for name in ("output_change", "loss", "position")
    )
    said = ("published" if isinstance(cuts, str) else ", ".join(f"{cut:g}" for cut in cuts)) if future else "none"
    return Skip(
        components=names,
        layers=watched,
        downstream_change=later,
        downstream_change_max=largest,
        output_change=output,
        loss=loss,
        text=text[order],
        position=position,
        part=part,
        mode=mode,
        model=model.name,
        first_token=first_token,
        cuts=said,
    )


def _cuts(lengths: list[int], cuts: Cuts, first_token: FirstToken) -> list[Any]:
    """For every cut, `[text]`: the first token that is measured; 0 where a text has no such cut."""
    size = np.array(lengths)
    if not isinstance(cuts, str):
        least = 2 - (first_token == "changed")
        return [np.clip(np.round(size * cut).astype(int), least, size - 1) for cut in cuts]
    draw = random.Random(123)
    table = np.zeros((4, len(size)), dtype=int)
    for text, length in enumerate(lengths):
        some = list(range(8, length - 4, 8))
        draw.shuffle(some)
        table[: len(some[:4]), text] = some[:4]
    return list(table)


def _where(
    replay: PatchedForward, cut: np.ndarray | None, first_token: FirstToken
) -> tuple[Bool[Tensor, "row token"] | None, Bool[Tensor, "row token"]]:
    """(tokens that are skipped at, None for all; tokens that are measured)."""
    real = replay.tokens
    places = torch.arange(real.shape[1], device=real.device).expand_as(real)
    touched = places >= (first_token == "kept")
    if cut is None:
        return (touched if first_token == "kept" else None), real
    start = torch.as_tensor(cut, device=real.device)[:, None]
    return touched & (places < start), real & (places >= start) & (start > 0)


class _Batch:
    """The skips of one batch at one cut."""

    def __init__(
        self,
        replay: PatchedForward,
        rows: list[int],
        part: Part,
        mode: Mode,
        skipped: Bool[Tensor, "row token"] | None,
        measured: Bool[Tensor, "row token"],
        wanted: list[int],
    ) -> None:
        self.replay, self.part, self.mode, self.skipped, self.measured = replay, part, mode, skipped, measured
        counts = measured.sum(1)
        self.rows, self.counts = rows, counts.cpu().numpy()
        self.text = np.repeat(rows, self.counts)
        self.position = measured.nonzero(as_tuple=True)[1].cpu().numpy()
        pairs = (len(rows), len(wanted), len(replay.layers))
        self.downstream_change, self.largest = np.full(pairs, np.nan), np.full(pairs, np.nan)
        self.clean = [
            upcast(after) - upcast(before) for before, after in zip(replay.streams, replay.block_outputs, strict=False)
        ]
        self.sizes = [delta.norm(dim=-1).clamp_min(SMALLEST) for delta in self.clean]
        finals = [self._final(number, block) for number, block in enumerate(wanted)]
        del self.clean, self.sizes
        self.output_change, self.loss = _answers(replay, finals, measured)

    def _final(self, number: int, block: int) -> Float[Tensor, "n d"]:
        """The final streams at the measured tokens; on the way, what becomes of the layers behind."""
        replay, streams = self.replay, self.replay.streams

        def see(layer: int, before: Tensor, after: Tensor) -> None:
            if layer == block:
                return
            off = upcast(after) - upcast(before) - self.clean[layer]
            effect = (off.norm(dim=-1) / self.sizes[layer]).masked_fill(~self.measured.to(off.device), 0.0)
            mean = effect.sum(1, dtype=torch.float64).cpu().numpy() / np.maximum(self.counts, 1)
            self.downstream_change[:, number, layer] = mean
            self.largest[:, number, layer] = effect.amax(1).cpu().numpy()

        if self.mode.endswith("local"):
            wrote = (
                replay.block_outputs[block] - streams[block]
                if self.part == "layer"
                else replay.sublayer_outputs[block, self.part]
            )
            if self.skipped is not None:
                wrote = wrote.masked_fill(~self.skipped.to(wrote.device)[..., None], 0.0)

            def without(layer: int, _: Tensor) -> Tensor:
                return streams[layer] - replay.through_loop_norms(wrote, block, layer).to(streams[layer].device)

            final = replay.resume(block + 1, without(block + 1, wrote), edit=without, see=see)
        else:
            silent = replay.zero_ablate(self.part, block, self.skipped)
            final = replay.resume(block, streams[block], silent, see=see)
        return final[self.measured.to(final.device)]


def _answers(replay: PatchedForward, finals: list[Tensor], measured: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(‖softmax − softmax'‖₂, growth of the loss), `[measurement, skipped]`; chunks of tokens, one skip at a time."""
    clean = replay.streams[-1][measured.to(replay.streams[-1].device)]
    targets = replay.targets()[measured[replay.tokens]]
    output, loss = np.empty((2, len(clean), len(finals)), dtype=np.float32)
    for chunk in replay.chunks(len(clean)):
        following = targets[chunk]
        p, before = softmax(replay.logits(clean[chunk]), following)
        for skipped, final in enumerate(finals):
            change, after = softmax_change(replay.logits(final[chunk]), p, following)
            output[chunk, skipped], loss[chunk, skipped] = change.cpu().numpy(), (after - before).cpu().numpy()
    return output, loss


def _collect(found: list[_Batch], texts: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """`downstream_change` and `later_max` of every text, over all its cuts."""
    sums, largest, counts = np.zeros((texts, *shape)), np.full((texts, *shape), -np.inf), np.zeros(texts)
    for batch in found:
        sums[batch.rows] += batch.downstream_change * batch.counts[:, None, None]
        largest[batch.rows] = np.maximum(largest[batch.rows], batch.largest)
        counts[batch.rows] += batch.counts
    return sums / counts[:, None, None], largest
