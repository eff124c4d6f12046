"""Linear maps from the residual stream after every layer of one model to that after every layer of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.stats import spearmanr
from torch import Tensor

from .._checks import MOST_ITEMS, number, whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import Estimate, estimate, estimates_frame, percentile_interval
from ..errors import InputError
from ..model.batches import batches
from ..model.frozen import upcast
from ..model.load import Model, as_model
from ..model.prompts import Ids, encode
from ..results import Plot, Result
from .engine import layer_components
from .inputs import read_texts, unwrap_texts
from .patched_forward import PatchedForward
from .tokens import quantile_columns, resampled_ratio

# Entries of the right-hand sides that are accumulated at once: 512 MiB in float64.
ENTRIES = 1 << 26
# A text's ids in both models, and the positions of those of its tokens that end at the same character.
Aligned = tuple[tuple[Ids, Ids], tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]]


@dataclass(frozen=True, eq=False, repr=False)
class LayerMaps(Result):
    """Relative errors of linear maps from every layer's stream in one model to every layer's stream in another.

    Attributes:
        components, targets: The layers of the source and of the target.
        error, error_max: ‖y − ŷ‖ / ‖y‖ over the tokens of each held-out text, mean and maximum.
        counts, fitted: Number of tokens compared in each text, and of those of other texts that maps were fitted on.

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

    def __repr__(self) -> str:
        best = np.average(self.error, axis=0, weights=self.counts).min(0)
        what = f"{len(self.components)} × {len(self.targets)} layers, {len(self.counts)} held-out texts"
        left = f"the best map to a layer leaves {best.min():.3g} to {best.max():.3g} of its norm"
        return f"LayerMaps({self.source} → {self.target}: {what}; {left})"

    figures: ClassVar = {
        "map": Plot(
            "Error of linear maps between layers",
            "A map source × target layer of the error on held-out tokens.",
            "shapes.heat",
            "frame",
            {"row": "component", "column": "target", "value": "error"},
        )
    }

    def frame(self) -> pd.DataFrame:
        """One row per pair of layers.

        `error` is the mean over held-out tokens, with its 95 % interval over texts, quantiles over the texts'
        means and the maximum over tokens.
        """
        sources, targets = len(self.components), [c.label for c in self.targets]
        counts, error = self.counts[:, None].astype(float), self.error.reshape(len(self.counts), -1)
        columns: dict[str, Any] = component_columns(self.components, np.repeat(np.arange(sources), len(targets)))
        columns |= {"target": targets * sources, "error": estimate(error * counts, counts=counts, over="texts")}
        columns |= quantile_columns("error", error) | {"error_max": self.error_max.max(0).ravel()}
        return estimates_frame(columns, {"error": "share of the target's norm"})

    def depth_alignment(self) -> pd.DataFrame:
        """Measure how far the best-matching layers are from equal relative depth, in one row.

        `distance`: between a source layer and the target layer that it predicts best, as a share of depth, averaged
        over source layers, with the middle 95 % of resamples of the texts (none for fewer than 8); this spread is too
        narrow where several targets are nearly as good. `chance`: the same for a random target. `rank_correlation`:
        Spearman's, between a layer's number and its best target's.
        """
        distance, resampled, chance = self.distances()
        best = self._means()[0].argmin(1)
        row = Estimate(distance, *percentile_interval(resampled), len(self.counts), "texts").columns("distance")
        rank = float(spearmanr(np.arange(len(best)), best).statistic) if np.ptp(best) else np.nan
        return pd.DataFrame([row | {"chance": chance, "rank_correlation": rank}])

    def distances(self) -> tuple[float, Float[np.ndarray, " draw"], float]:
        """Return (`distance` of `depth_alignment`, its value for every resample of texts, `chance`)."""
        mean, resampled = self._means()
        source, target = (np.linspace(0, 1, n) if n > 1 else np.zeros(1) for n in mean.shape)
        known = np.isfinite(resampled).all()
        spread = np.abs(target[resampled.argmin(2)] - source).mean(1) if known else np.full(len(resampled), np.nan)
        chance = float(np.abs(target[None] - source[:, None]).mean())
        return float(np.abs(target[mean.argmin(1)] - source).mean()), spread, chance

    def _means(self) -> tuple[Float[np.ndarray, "source target"], Float[np.ndarray, "draw source target"]]:
        """Return (mean over tokens, its value for every resample of texts)."""
        counts = self.counts[:, None].astype(float)
        mean, resampled = resampled_ratio(self.error.reshape(len(counts), -1) * counts, counts)
        return mean.reshape(self.error.shape[1:]), resampled.reshape(-1, *self.error.shape[1:])


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
    """Fit ridge regressions from the stream after every layer of one model to that after every layer of another.

    The error is that of Csordás et al. (arXiv 2505.13898), whose maps were trained by AdamW. Least squares finds the
    best map directly, and needs the `ridge` where texts are few, so the numbers are not comparable.

    Args:
        source, target: Models, or anything `load_model` takes. Where their tokenizers differ, texts are compared where
            a token of both ends; lists of token ids need models of one vocabulary.
        texts: As in `residual_norms`; at least two, because maps are fitted on some texts and evaluated on others.
        ridge: The penalty, as a share of the mean square of the source's dimensions.
        held_out, seed: Share of the texts used for evaluation, and the seed of the split.
        first: Tokens before this index are left out: the stream of a text's first token would dominate the fit.

    Source layers are fitted in groups, as many at once as memory allows; each group runs both models over all texts.
    Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> maps = ld.depth.map_layers("zoo/d2", "zoo/d2", [[5, i, (3 * i) % 16, i // 2, 7] for i in range(16)])
    >>> float(maps.depth_alignment().distance.iloc[0])
    0.0
    """
    ridge, held_out = number("ridge", ridge, least=0), number("held_out", held_out, above=0, below=1)
    first, seed = whole_number("first", first, 0, MOST_ITEMS), whole_number("seed", seed, 0)
    models = as_model(source), as_model(target)
    texts = _aligned_tokens(models, texts, first)
    if len(texts) < 2:
        raise InputError("maps are fitted on some texts and evaluated on others: give at least two texts.")
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    count = max(1, min(len(texts) - 1, round(len(texts) * held_out)))
    held, fitting = ([texts[i] for i in sorted(some)] for some in (order[:count], order[count:]))
    limit = batch_tokens or min(model.batch_tokens for model in models)
    with models[0].path.session(), models[1].path.session(), torch.no_grad():
        components, targets = (
            layer_components(PatchedForward(model, [ids])) for model, ids in zip(models, texts[0][0], strict=True)
        )
        source_width, target_width = (model.path.width for model in models)
        group = max(1, ENTRIES // ((source_width + 1) * (source_width + 1 + target_width * len(targets))))
        error, largest = np.empty((2, len(held), len(components), len(targets)))
        for start in range(0, len(components), group):
            layers = range(start, min(start + group, len(components)))
            maps = _fit(_streams(models, fitting, limit), layers, ridge)
            for row, x, y in _streams(models, held, limit):
                for layer, weights in zip(layers, maps, strict=True):
                    residual = (_with_constant(x[layer]) @ weights).view(y.shape[1], len(y), -1).transpose(0, 1) - y
                    relative = residual.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
                    error[row, layer], largest[row, layer] = relative.mean(1).cpu(), relative.amax(1).cpu()
    counts, fitted = (np.array([len(positions[0]) for _, positions in some]) for some in (held, fitting))
    names = {"source": models[0].name, "target": models[1].name}
    return LayerMaps(components, targets, error, largest, counts, int(fitted.sum()), ridge, **names)


def _streams(
    models: tuple[Model, Model], texts: list[Aligned], limit: int
) -> Iterator[tuple[int, Float[Tensor, "layer pair d"], Float[Tensor, "layer pair e"]]]:
    """Yield (number, both models' streams after every layer at the paired tokens), text by text."""
    lengths = [max(map(len, ids)) for ids, _ in texts]
    for rows in batches(lengths, limit, models[0].path.length_switch):
        forwards = [PatchedForward(model, [texts[row][0][i] for row in rows]) for i, model in enumerate(models)]
        device = forwards[0].ids.device
        for i, row in enumerate(rows):
            x, y = (
                torch.stack([upcast(s[i, torch.as_tensor(at).to(s.device)]).to(device) for s in forward.block_outputs])
                for forward, at in zip(forwards, texts[row][1], strict=True)
            )
            yield row, x, y


def _fit(streams: Iterator[tuple[int, Tensor, Tensor]], layers: range, ridge: float) -> list[Tensor]:
    """Fit maps `[d + 1, target layer · e]` of some source layers: (XᵀX + λ) W = XᵀY, with the constant unpenalized."""
    gram, cross = ([torch.zeros(())] * len(layers) for _ in range(2))
    for _, x, y in streams:
        for i, layer in enumerate(layers):
            design = _with_constant(x[layer])
            gram[i] = gram[i].to(x.device) + (design.T @ design).double()
            cross[i] = cross[i].to(x.device) + (design.T @ y.transpose(0, 1).flatten(1)).double()
    maps = []
    for square, product in zip(gram, cross, strict=True):
        count = float(square[-1, -1])
        mean_square = (square.diagonal()[:-1].mean() / count).clamp_min(1e-30)
        # Never quite 0: with fewer tokens than dimensions many maps fit, and this selects the smallest.
        penalty = torch.full_like(square.diagonal(), max(ridge, 1e-9) * float(mean_square) * count)
        penalty[-1] = 0.0
        maps.append(torch.linalg.solve(square + penalty.diag(), product).float())
    return maps


def _with_constant(x: Float[Tensor, "n d"]) -> Float[Tensor, "n _"]:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def _aligned_tokens(models: tuple[Model, Model], texts: Any, first: int) -> list[Aligned]:
    """Tokenize every text with both models."""
    both = [encode(model, unwrap_texts(texts)) for model in (models if models[0].tokenizer else models[:1])]
    names = both[0].texts
    if None in names:
        if models[0].vocabulary != models[1].vocabulary:
            sizes = f"{models[0].name} has {models[0].vocabulary} token ids and {models[1].name} {models[1].vocabulary}"
            raise InputError(f"{sizes}, so the same ids are not the same text: give texts.")
        both = [read_texts(models[0], texts, first + 1, "its first tokens are left out")] * 2
    aligned: list[Aligned] = []
    for i, (source, target) in enumerate(zip(*both, strict=True)):
        paired = np.tile(np.arange(len(source)), (2, 1))
        if source != target:
            ends = [_token_ends(model, names[i], ids) for model, ids in zip(models, (source, target), strict=True)]
            shared = sorted(ends[0].keys() & ends[1].keys())
            paired = np.array([[of_model[end] for end in shared] for of_model in ends], int)
        paired = paired[:, (paired >= first).all(0)]
        if not paired.size:
            raise InputError(f"text {i} has no token after its first {first} that ends in both models alike.")
        aligned.append(((source, target), (paired[0], paired[1])))
    return aligned


def _token_ends(model: Model, text: str | None, ids: Ids) -> dict[int, int]:
    """Map each character at which a token ends to the last token that ends there."""
    try:
        offsets = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    except NotImplementedError as error:
        raise InputError(f"the tokenizer of {model.name} hides where tokens end: load a fast one.") from error
    front = len(ids) - len(offsets)  # the tokens before the text are not part of it
    return {stop: position for position, (start, stop) in enumerate(offsets, front) if stop > start}
