"""Which layer of one model says what a layer of another says: linear maps between their streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import MOST_ITEMS, listed, number, whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, cluster_means, interval, interval_note, resamples
from ..errors import InputError
from ..model import tokenization as reading
from ..model.batches import batches, inference_mode_for, upcast
from ..model.load import Model, load_model
from ..model.patched_forward import PatchedForward
from ..results import Result
from .inputs import Ids, given_texts, read_texts
from .token_stats import QUANTILES

# Numbers of the right-hand sides that are summed up at once: 512 MiB in float64.
SUMS = 1 << 26
Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]


@dataclass(frozen=True, eq=False, repr=False)
class LayerMaps(Result):
    """How well the stream behind each layer of one model foretells that behind each layer of another, linearly.

    error, error_max
        `[text, source, target]`: ‖y − ŷ‖ / ‖y‖ over the tokens of each held-out text, mean and maximum.
    counts
        `[text]`, how many tokens of it were compared.
    components, targets
        The layers of the source and of the target.
    fitted
        From how many tokens the maps were made.
    ridge
        As asked for.

    After *Do Language Models Use Their Depth Efficiently?*, "linear maps".
    """

    components: tuple[Component, ...]
    targets: tuple[Component, ...]
    error: Float[np.ndarray, "text source target"]
    error_max: Float[np.ndarray, "text source target"]
    counts: Int[np.ndarray, " text"]
    fitted: int
    ridge: float
    source: str
    target: str

    def frame(self) -> pd.DataFrame:
        """One row per pair of layers.

        `error` is the mean over held-out tokens, with its 95 % interval over texts, quantiles over the texts'
        means and the maximum over tokens.
        """
        sources, targets = len(self.components), len(self.targets)
        columns: dict[str, Any] = component_columns([c for c in self.components for _ in self.targets])
        columns["target"] = [c.label for _ in self.components for c in self.targets]
        counts = self.counts[:, None].astype(float)
        ends = cluster_means(self.error.reshape(len(counts), -1) * counts, counts)
        columns |= dict(zip(("error", "error_low", "error_high"), ends, strict=True))
        spread = np.quantile(self.error, list(QUANTILES.values()), axis=0).reshape(-1, sources * targets)
        columns |= {f"error_{name}": row for name, row in zip(QUANTILES, spread, strict=True)}
        frame = pd.DataFrame(columns | {"error_max": self.error_max.max(0).ravel()})
        frame.attrs["units"] = {"error": "share of the target's norm"}
        frame.attrs["intervals"] = interval_note(len(counts), "texts")
        return frame

    def depth_alignment(self) -> pd.DataFrame:
        """Does the same relative depth match best? One row.

        `distance`: how far, as a share of depth, a source layer is from the target layer that it foretells best,
        averaged over source layers, with the middle 95 % of resamples of the texts (none for fewer than 8): a spread,
        and too narrow where several targets are nearly as good; `chance`: what it would be were the best target any;
        `rank_correlation`: Spearman's, of a layer's place and its best target's.
        """
        from scipy.stats import spearmanr

        distance, drawn, chance = self.distances()
        low, high = interval(drawn)
        best = self._means()[0].argmin(1)
        told = min(len(set(best)), len(best)) > 1
        row = {
            "distance": distance,
            "distance_low": float(low),
            "distance_high": float(high),
            "chance": chance,
            "rank_correlation": float(spearmanr(np.arange(len(best)), best).statistic) if told else np.nan,
        }
        return pd.DataFrame([row])

    def distances(self) -> tuple[float, Float[np.ndarray, " draw"], float]:
        """(`distance` of `diagonal`, the same of every resample of texts, `chance`)."""
        mean, drawn = self._means()
        here, there = (np.linspace(0, 1, n) if n > 1 else np.zeros(1) for n in mean.shape)
        known = np.isfinite(drawn).all()
        spread = np.abs(there[drawn.argmin(2)] - here).mean(1) if known else np.full(len(drawn), np.nan)
        chance = float(np.abs(there[None] - here[:, None]).mean())
        return float(np.abs(there[mean.argmin(1)] - here).mean()), spread, chance

    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean over tokens, the same of every resample of texts)."""
        counts = self.counts[:, None].astype(float)
        flat = self.error.reshape(len(counts), -1) * counts
        weights = resamples(len(counts)) if len(counts) >= LEAST else np.full((1, len(counts)), np.nan)
        shape = self.error.shape[1:]
        drawn = ((weights @ flat) / (weights @ counts)).reshape(-1, *shape)
        return (flat.sum(0) / counts.sum()).reshape(shape), drawn


def map_layers(
    source: Any,
    target: Any,
    texts: Any,
    *,
    ridge: float = 1e-3,
    held_out: float = 0.25,
    first: int = 1,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> LayerMaps:
    """Fit a linear map from the stream behind every layer of one model to that behind every layer of another.

    The error is that of Csordás et al. (arXiv 2505.13898), and so is leaving out the first tokens. Their maps were
    trained by AdamW; least squares finds the best map at once, and needs the `ridge` where texts are few: numbers of
    the two are not to be compared.

    source, target
        Models, or anything `load_model` takes. Where their tokenizers differ, texts are compared where a token
        of both ends; lists of token ids need models of one vocabulary.
    texts
        As in `sizes`; at least two, for the maps are made from some texts and judged by others.
    ridge
        The penalty, as a share of the mean square of the source's dimensions.
    held_out
        Which share of the texts judges.
    first
        Tokens before this one are left out: the stream of a text's first is so long that it would be all the fit.
    seed
        Of the choice of texts.

    Normal equations are summed up batch by batch, for as many source layers at once as memory allows; each such
    group runs both models over all texts. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.map_layers(tiny, tiny, [[i, (3 * i) % 16, 5, i // 2, 7] for i in range(16)])
    >>> float(found.depth_alignment().distance.iloc[0])
    0.0
    """
    ridge, held_out = number("ridge", ridge, least=0), number("held_out", held_out, above=0, below=1)
    first, seed = whole_number("first", first, 0, MOST_ITEMS), whole_number("seed", seed, 0)
    models = load_model(source), load_model(target)
    rows, pairs = _aligned(models, texts, first)
    if len(pairs) < 2:
        raise InputError("maps are made from some texts and judged by others: give at least two texts.")
    order = np.random.default_rng(seed).permutation(len(pairs))
    judges = max(1, min(len(pairs) - 1, round(len(pairs) * held_out)))
    held, fitting = sorted(order[:judges].tolist()), sorted(order[judges:].tolist())
    limit = min(model.checked_batch_tokens(batch_tokens) for model in models)
    with inference_mode_for(models[0].architecture), inference_mode_for(models[1].architecture):
        names = _names(models[0], rows[0][0]), _names(models[1], rows[1][0])
        width, wide = (model.architecture.norm.gain.numel() for model in models)
        size = max(1, SUMS // ((width + 1) * (width + 1 + wide * len(names[1]))))
        error, largest = (np.empty((len(held), len(names[0]), len(names[1]))) for _ in range(2))
        for start in range(0, len(names[0]), size):
            layers = slice(start, min(start + size, len(names[0])))
            maps = _fit(_streams(models, rows, pairs, fitting, limit), layers, float(ridge))
            for row, x, y in _streams(models, rows, pairs, held, limit):
                for layer, weights in zip(range(layers.start, layers.stop), maps, strict=True):
                    off = (_with_one(x[layer]) @ weights).view(y.shape[1], len(y), -1).transpose(0, 1) - y
                    share = off.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
                    place = held.index(row)
                    error[place, layer], largest[place, layer] = share.mean(1).cpu(), share.amax(1).cpu()
    return LayerMaps(
        components=names[0],
        targets=names[1],
        error=error,
        error_max=largest,
        counts=np.array([len(pairs[text][0]) for text in held]),
        fitted=sum(len(pairs[text][0]) for text in fitting),
        ridge=float(ridge),
        source=models[0].name,
        target=models[1].name,
    )


def _names(model: Model, row: Ids) -> tuple[Component, ...]:
    replay = PatchedForward(model, [row])
    return tuple(replay.component("layer", block) for block in range(len(replay.layers)))


def _streams(
    models: tuple[Model, Model], rows: tuple[list[Ids], list[Ids]], pairs: list[Pairs], chosen: list[int], limit: int
) -> Iterator[tuple[int, Float[Tensor, "layer pair d"], Float[Tensor, "layer pair e"]]]:
    """(text, both models' streams behind every layer where their tokens meet), text by text."""
    lengths = [max(len(rows[0][text]), len(rows[1][text])) for text in chosen]
    for some in batches(lengths, limit, models[0].architecture.length_switch):
        texts = [chosen[i] for i in some]
        both = [PatchedForward(model, [own[text] for text in texts]) for model, own in zip(models, rows, strict=True)]
        device = both[0].ids.device
        for row, text in enumerate(texts):
            x, y = (
                torch.stack([upcast(s[row, torch.as_tensor(at).to(s.device)]).to(device) for s in replay.block_outputs])
                for replay, at in zip(both, pairs[text], strict=True)
            )
            yield text, x, y


def _fit(streams: Iterator[tuple[int, Tensor, Tensor]], layers: slice, ridge: float) -> list[Tensor]:
    """Maps `[d + 1, target layer · e]` of some source layers: (XᵀX + λ) W = XᵀY, the constant unpunished."""
    left: list[Tensor] = []
    right: list[Tensor] = []
    for _, x, y in streams:
        flat = y.transpose(0, 1).flatten(1)
        for place, layer in enumerate(range(layers.start, layers.stop)):
            ones = _with_one(x[layer])
            square, product = (ones.T @ ones).double(), (ones.T @ flat).double()
            if place == len(left):
                left.append(square)
                right.append(product)
            else:
                left[place] += square
                right[place] += product
    maps = []
    for square, product in zip(left, right, strict=True):
        count = float(square[-1, -1])
        size = (square.diagonal()[:-1].mean() / count).clamp_min(1e-30)
        # Never quite nothing: of fewer tokens than dimensions there are many maps, of which this is the smallest.
        penalty = torch.full_like(square.diagonal(), max(ridge, 1e-9) * float(size) * count)
        penalty[-1] = 0.0
        maps.append(torch.linalg.solve(square + penalty.diag(), product).float())
    return maps


def _with_one(x: Float[Tensor, "n d"]) -> Float[Tensor, "n _"]:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def _aligned(models: tuple[Model, Model], texts: Any, first: int) -> tuple[tuple[list[Ids], list[Ids]], list[Pairs]]:
    """(both models' ids of every text, where their tokens end together)."""
    given = reading.plain(given_texts(texts))
    texts_of = [given] if isinstance(given, str) else listed("texts", given, "a list of texts")
    if not all(isinstance(text, str) for text in texts_of):
        if models[0].vocabulary != models[1].vocabulary:
            raise InputError(
                f"{models[0].name} has {models[0].vocabulary} token ids and {models[1].name} {models[1].vocabulary}, "
                "so the same ids are not the same text: give texts, which are compared where tokens of both end."
            )
        ids = read_texts(models[0], texts, first + 1, "its first tokens are left out")
        places = [np.arange(first, len(row)) for row in ids]
        return (ids, ids), [(place, place) for place in places]
    rows = read_texts(models[0], texts_of), read_texts(models[1], texts_of)
    pairs: list[Pairs] = []
    for place, (text, here, there) in enumerate(zip(texts_of, *rows, strict=True)):
        if here == there:
            at = (np.arange(len(here)), np.arange(len(here)))
        else:
            one, other = (_ends(model, text) for model in models)
            both = sorted(one.keys() & other.keys())
            at = (np.array([one[end] for end in both], dtype=int), np.array([other[end] for end in both], dtype=int))
        kept = (at[0] >= first) & (at[1] >= first)
        if not kept.any():
            raise InputError(f"text {place} has no token behind its first {first} that ends in both models alike.")
        pairs.append((at[0][kept], at[1][kept]))
    return rows, pairs


def _ends(model: Model, text: str) -> dict[int, int]:
    """The last token that reaches up to each character at which one ends."""
    begins = model.tokenizer.bos_token
    special = not (begins and text.startswith(begins))
    try:
        found = model.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)["offset_mapping"]
    except NotImplementedError as error:
        raise InputError(
            f"the tokenizer of {model.name} does not say where its tokens end, so it cannot be compared with another "
            "one: load a fast tokenizer, or give models that share one."
        ) from error
    return {stop: place for place, (start, stop) in enumerate(found) if stop > start}
