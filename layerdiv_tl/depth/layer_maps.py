"""Linear maps from the residual stream after every layer of one model to that after every layer of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from ..components import Component
from ..ensemble.intervals import Estimate, percentile_interval
from ..errors import InputError
from ..model.frozen import upcast
from ..model.load import Model, as_model
from ..model.prompts import Ids
from ..results import Plot
from .engine import layer_components
from .inputs import read_texts
from .patched_forward import PatchedForward
from .readings import Readings, read_tokens, resampled_ratio, sums_per_text, token_places

# The penalty of a map, as a share of the mean square of the source's dimensions.
RIDGE = 1e-3
# The share of the texts that maps are evaluated on.
HELD_OUT = 0.25


class LayerMaps(Readings):
    """Relative errors of linear maps from every layer's stream in one model to every layer's stream in another.

    `values` of each pair of a source (`components`) and a target layer, at every token of the held-out texts but their
    first: `error`, ‖y − ŷ‖ / ‖y‖. `settings` has the number of tokens, of other texts, that maps were fitted on.

    After *Do Language Models Use Their Depth Efficiently?*, "linear maps".
    """

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
        sums, counts = sums_per_text(self.values["error"], self.places["text"])
        mean, drawn = resampled_ratio(sums, counts)
        count = self.components.count(self.components[0])  # of target layers
        mean, drawn = mean.reshape(-1, count), drawn.reshape(len(drawn), -1, count)
        source, target = (np.linspace(0, 1, layers) for layers in mean.shape)
        best = mean.argmin(1)
        spread = np.full(len(drawn), np.nan)
        if np.isfinite(drawn).all():
            spread = np.abs(target[drawn.argmin(2)] - source).mean(1)
        distance = float(np.abs(target[best] - source).mean())
        row = Estimate(distance, *percentile_interval(spread), len(counts), "texts").columns("distance")
        row["chance"] = float(np.abs(target[None] - source[:, None]).mean())
        row["rank_correlation"] = float(spearmanr(np.arange(len(best)), best).statistic) if np.ptp(best) else np.nan
        return pd.DataFrame([row])


def map_layers(source: Any, target: Any, texts: Any, *, batch_tokens: int | None = None) -> LayerMaps:
    """Fit ridge regressions from the stream after every layer of one model to that after every layer of another.

    The error is that of Csordás et al. (arXiv 2505.13898), whose maps were trained by AdamW. Least squares finds the
    best map directly, and needs a ridge where texts are few, so the numbers are not comparable. Its penalty is a
    thousandth of the mean square of the source's dimensions.

    Args:
        source, target: Models of one tokenizer, or anything `load_model` takes.
        texts: As in `residual_norms`; at least two, because maps are fitted on a random three quarters of the texts and
            evaluated on the others.

    Keeps the streams of both models after every layer, for all tokens: 4 bytes for each number. Raises InputError for
    input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> maps = ld.depth.map_layers("zoo/d2", "zoo/d2", [[5, i, (3 * i) % 16, i // 2, 7] for i in range(16)])
    >>> float(maps.depth_alignment().distance.iloc[0])
    0.0
    """
    models = as_model(source), as_model(target)
    ids, others = (read_texts(model, texts, 2, "its first token is left out") for model in models)
    is_known = None not in ids.texts  # ids without texts may be of any tokenizer
    if list(ids) != list(others) or not (is_known or models[0].vocabulary == models[1].vocabulary):
        names = f"{models[0].name} and {models[1].name}"
        raise InputError(f"the tokens of {names} are not the same: maps are between models of one tokenizer.")
    if len(ids) < 2:
        raise InputError("maps are fitted on some texts and evaluated on others: give at least two texts.")
    order = np.random.default_rng(0).permutation(len(ids))
    count = max(1, min(len(ids) - 1, round(len(ids) * HELD_OUT)))
    (components, x), (targets, y) = (_streams(model, ids, batch_tokens) for model in models)
    places = token_places(models[0], ids)
    is_read, is_held = places["position"] > 0, np.isin(places["text"], order[:count])
    held, fitting = np.flatnonzero(is_read & is_held), np.flatnonzero(is_read & ~is_held)
    wanted, size = y[fitting].double().flatten(1), y[held].norm(dim=-1).clamp_min(1e-30)
    errors = []
    for layer in range(len(components)):
        maps = _fit(x[fitting, layer].double(), wanted)
        predicted = _with_constant(x[held, layer].double()) @ maps
        errors.append((predicted.view(y[held].shape) - y[held]).norm(dim=-1) / size)
    _, text = np.unique(places["text"][held], return_inverse=True)
    token = tuple(places["token"][place] for place in held)
    return LayerMaps(
        components=tuple(component for component in components for _ in targets),
        targets=targets * len(components),
        values={"error": torch.cat(errors, 1).numpy()},
        places={"text": text, "position": places["position"][held], "token": token},
        units={"error": "share of the target's norm"},
        model=f"{models[0].name} → {models[1].name}",
        settings={"fitted": len(fitting)},
    )


def _streams(
    model: Model, ids: Sequence[Ids], batch_tokens: int | None
) -> tuple[tuple[Component, ...], Float[Tensor, "token layer d"]]:
    """Return (layers, the stream after each at every token of the texts)."""

    def measure(rows: list[Ids]) -> tuple[tuple[Component, ...], list[np.ndarray]]:
        clean = PatchedForward(model, rows)
        streams = torch.stack([upcast(stream[clean.tokens]) for stream in clean.block_outputs], 1)
        return layer_components(clean), [streams.cpu().numpy()]

    components, (streams,) = read_tokens(model, ids, batch_tokens, measure)
    return components, torch.as_tensor(streams)


def _fit(x: Float[Tensor, "token d"], y: Float[Tensor, "token e"]) -> Float[Tensor, "d+1 e"]:
    """Fit the maps of one source layer to all targets: (XᵀX + λ) W = XᵀY, with the constant unpenalized."""
    design = _with_constant(x)
    gram = design.T @ design
    penalty = RIDGE * gram.diagonal()[:-1].mean().clamp_min(1e-30) * torch.ones_like(gram.diagonal())
    penalty[-1] = 0.0
    return torch.linalg.solve(gram + penalty.diag(), design.T @ y)


def _with_constant(x: Float[Tensor, "n d"]) -> Float[Tensor, "n _"]:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)
