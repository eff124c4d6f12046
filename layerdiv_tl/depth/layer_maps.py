"""Linear maps from the residual stream after every layer of one model to that after every layer of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from .._checks import number, whole_number
from ..ensemble.intervals import Estimate, percentile_interval
from ..errors import InputError
from ..model.batches import batches
from ..model.frozen import upcast
from ..model.load import Model, as_model
from ..model.prompts import Ids
from ..results import Plot
from .engine import layer_components
from .inputs import read_texts
from .patched_forward import PatchedForward
from .readings import Pairs, resampled_ratio

# Entries of the right-hand sides that are accumulated at once: 512 MiB in float64.
ENTRIES = 1 << 26
# The share of the texts that maps are evaluated on.
HELD_OUT = 0.25


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LayerMaps(Pairs):
    """Relative errors of linear maps from every layer's stream in one model to every layer's stream in another.

    `mean` and `largest` are of ‖y − ŷ‖ / ‖y‖ over the tokens of each held-out text, `[text, source, target]`.

    Attributes:
        models: The names of source and target.
        fitted: Number of tokens, of other texts, that maps were fitted on.

    After *Do Language Models Use Their Depth Efficiently?*, "linear maps".
    """

    models: tuple[str, str]
    fitted: int
    ridge: float

    lead: ClassVar = "error"
    figures: ClassVar = {
        "map": Plot(
            "Error of linear maps between layers",
            "A map source × target layer of the error on held-out tokens.",
            "shapes.heat",
            "frame",
            {"row": "component", "column": "target", "value": "error"},
        )
    }

    def depth_alignment(self) -> pd.DataFrame:
        """Measure how far the best-matching layers are from equal relative depth, in one row.

        `distance`: between a source layer and the target layer that it predicts best, as a share of depth, averaged
        over source layers, with the middle 95 % of resamples of the texts (none for fewer than 8); this spread is too
        narrow where several targets are nearly as good. `chance`: the same for a random target. `rank_correlation`:
        Spearman's, between a layer's number and its best target's.
        """
        counts = self.counts[:, None].astype(float)
        mean, drawn = resampled_ratio(self.mean.reshape(len(counts), -1) * counts, counts)
        mean, drawn = mean.reshape(self.mean.shape[1:]), drawn.reshape(-1, *self.mean.shape[1:])
        source, target = (np.linspace(0, 1, len(layers)) for layers in (self.components, self.targets))
        best = mean.argmin(1)
        spread = np.full(len(drawn), np.nan)
        if np.isfinite(drawn).all():
            spread = np.abs(target[drawn.argmin(2)] - source).mean(1)
        distance = float(np.abs(target[best] - source).mean())
        row = Estimate(distance, *percentile_interval(spread), len(self.counts), "texts").columns("distance")
        row["chance"] = float(np.abs(target[None] - source[:, None]).mean())
        row["rank_correlation"] = float(spearmanr(np.arange(len(best)), best).statistic) if np.ptp(best) else np.nan
        return pd.DataFrame([row])


def map_layers(
    source: Any,
    target: Any,
    texts: Any,
    *,
    ridge: float = 1e-3,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> LayerMaps:
    """Fit ridge regressions from the stream after every layer of one model to that after every layer of another.

    The error is that of Csordás et al. (arXiv 2505.13898), whose maps were trained by AdamW. Least squares finds the
    best map directly, and needs the `ridge` where texts are few, so the numbers are not comparable.

    Args:
        source, target: Models of one tokenizer, or anything `load_model` takes.
        texts: As in `residual_norms`; at least two, because maps are fitted on some texts and evaluated on others.
        ridge: The penalty, as a share of the mean square of the source's dimensions.
        seed: Seed of the split: maps are fitted on three quarters of the texts and evaluated on the others.

    Source layers are fitted in groups, as many at once as memory allows; each group runs both models over all texts.
    Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> maps = ld.depth.map_layers("zoo/d2", "zoo/d2", [[5, i, (3 * i) % 16, i // 2, 7] for i in range(16)])
    >>> float(maps.depth_alignment().distance.iloc[0])
    0.0
    """
    ridge, seed = number("ridge", ridge, least=0), whole_number("seed", seed, 0)
    models = as_model(source), as_model(target)
    ids, others = (read_texts(model, texts, 2, "its first token is left out") for model in models)
    is_known = None not in ids.texts  # ids without texts may be of any tokenizer
    if list(ids) != list(others) or not (is_known or models[0].vocabulary == models[1].vocabulary):
        names = f"{models[0].name} and {models[1].name}"
        raise InputError(f"the tokens of {names} are not the same: maps are between models of one tokenizer.")
    if len(ids) < 2:
        raise InputError("maps are fitted on some texts and evaluated on others: give at least two texts.")
    order = np.random.default_rng(seed).permutation(len(ids)).tolist()
    count = max(1, min(len(ids) - 1, round(len(ids) * HELD_OUT)))
    held, fitting = ([ids[i] for i in sorted(some)] for some in (order[:count], order[count:]))
    limit = batch_tokens or min(model.batch_tokens for model in models)
    with models[0].path.session(), models[1].path.session(), torch.no_grad():
        components, targets = (layer_components(PatchedForward(model, [ids[0]])) for model in models)
        source_width, target_width = (model.path.width for model in models)
        group = max(1, ENTRIES // ((source_width + 1) * (source_width + 1 + target_width * len(targets))))
        error, largest = np.empty((2, len(held), len(components), len(targets)))
        for start in range(0, len(components), group):
            layers = range(start, min(start + group, len(components)))
            maps = _fit(_streams(models, fitting, limit), layers, ridge)
            for row, x, y in _streams(models, held, limit):
                for layer, weights in zip(layers, maps, strict=True):
                    residual = (_with_constant(x[layer]) @ weights.to(x)).view(y.shape[1], len(y), -1).transpose(
                        0, 1
                    ) - y
                    relative = residual.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-30)
                    error[row, layer], largest[row, layer] = relative.mean(1).cpu(), relative.amax(1).cpu()
    return LayerMaps(
        components=components,
        targets=targets,
        mean=error,
        largest=largest,
        counts=np.array([len(row) - 1 for row in held]),
        quantity="error",
        unit="share of the target's norm",
        models=(models[0].name, models[1].name),
        fitted=sum(len(row) - 1 for row in fitting),
        ridge=ridge,
    )


def _streams(
    models: tuple[Model, Model], texts: list[Ids], limit: int
) -> Iterator[tuple[int, Float[Tensor, "layer token d"], Float[Tensor, "layer token e"]]]:
    """Yield (number, both models' streams after every layer), text by text.

    At its tokens but the first, which would dominate a fit.
    """
    for rows in batches([len(ids) for ids in texts], limit, models[0].path.length_switch):
        source, target = (PatchedForward(model, [texts[row] for row in rows]) for model in models)
        for i, row in enumerate(rows):
            here = slice(1, len(texts[row]))
            x, y = (torch.stack([upcast(s[i, here]) for s in forward.block_outputs]) for forward in (source, target))
            yield row, x, y.to(x.device)


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
        maps.append(torch.linalg.solve(square + penalty.diag(), product))
    return maps


def _with_constant(x: Float[Tensor, "n d"]) -> Float[Tensor, "n _"]:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)
