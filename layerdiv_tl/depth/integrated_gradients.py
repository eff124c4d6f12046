"""Integrated gradients of an answer's probability with respect to the stream after each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import MOST_REPEATS, whole_number
from .._progress import Advance
from ..components import Component
from ..model.load import as_model
from ..results import Plot
from .engine import gather_rows, layer_components, layer_count
from .inputs import read_answers
from .patched_forward import PatchedForward
from .readings import Readings, sums_per_text, token_places

# The answer's probability at each point, as a function of streams.
Value = Callable[[Float[Tensor, "point token d"]], Float[Tensor, " point"]]


class IntegratedGradients(Readings):
    """Integrated gradients of the answer's probability over the streams after layers.

    With F the sum of the probabilities of the answer's tokens, x the stream after a layer and x' its baseline, `values`
    has at each token but a text's last `attribution`: Σ_d (x − x') · ∫₀¹ ∂F/∂x (x' + α (x − x')) dα, in probability;
    and `size`, its absolute value. `frame()` has their means over tokens, and the completeness error of all texts,
    `gap`: Σ |Σ attribution − (F(x) − F(x'))| / Σ |F(x) − F(x')|.

    Sundararajan et al. (2017); for layers as in *Do Language Models Use Their Depth Efficiently?*.
    """

    lead: ClassVar = "attribution"
    figures: ClassVar = {
        "map": Plot(
            "Integrated gradients of each token",
            "A map layer × token of one `text`.",
            "shapes.heat",
            "of_text",
            {"row": "component", "column": "position", "value": "attribution", "column_name": "token"},
        ),
    }


def integrated_gradients(
    model: Any,
    texts: Any,
    *,
    answers: Any = None,
    steps: int = 24,
    batch_tokens: int | None = None,
) -> IntegratedGradients:
    """Attribute the answer's probability to the stream after each layer by integrated gradients, token by token.

    Follows the released code of Csordás et al. (arXiv 2505.13898): the baseline is the mean vector over the text's
    tokens, answer included.

    Args:
        model, texts, batch_tokens: As in `residual_norms`; `batch_tokens` also limits how many steps run at once.
        steps: Number of equal steps from the baseline to the stream (published: 256), at whose starts gradients are
            taken; enough where the frame's `gap` is at most 0.01. More help little in half precision, and not where a
            token changes experts.
        answers: As in `erase`.

    Makes steps · L/2 passes with gradients over every text for L layers. Raises InputError for input that cannot be
    used.

    >>> import layerdiv_tl as ld
    >>> gradients = ld.depth.integrated_gradients("zoo/d2", [[1, 2, 3], [4, 5]], steps=64)
    >>> gradients.values["attribution"].shape, bool(gradients.frame().gap.max() < 0.2)
    ((3, 2), True)
    """
    steps = whole_number("steps", steps, 1, MOST_REPEATS)
    model = as_model(model)
    model.path.check_gradients()
    ids, lengths = read_answers(model, texts, answers)
    size = batch_tokens or model.batch_tokens

    def integrate(rows: list[int], advance: Advance) -> tuple[tuple[Component, ...], Any, tuple[np.ndarray, ...]]:
        (number,) = rows
        row, length = ids[number], lengths[number]

        def probability(final: Float[Tensor, "point token d"]) -> Float[Tensor, " point"]:
            stream = final[:, -length - 1 : -1]
            logits = forward.logits(stream.reshape(-1, stream.shape[-1])).view(*stream.shape[:2], -1)
            return logits.double().softmax(-1)[:, torch.arange(length), forward.ids[0, -length:]].sum(1)

        # Each row is the text at another point of the path.
        forward = PatchedForward(model, [row] * max(1, min(steps, size // len(row))))
        layers = layer_components(forward)
        attribution, change = np.empty((len(row) - 1, len(layers))), np.empty(len(layers))
        change[:] = float(probability(forward.streams[-1])[0])
        for block, stream in enumerate(forward.streams[1:]):

            def value(x: Tensor, block: int = block) -> Float[Tensor, " point"]:
                return probability(forward.resume(block + 1, [x]))

            base = stream.mean(1, keepdim=True)
            change[block] -= float(value(base.expand_as(stream).clone())[0])
            attribution[:, block] = _path_integral(value, base, stream, steps, advance)[:-1].cpu()
        shares = np.broadcast_to(change / len(attribution), attribution.shape)  # so that both sum over tokens
        return layers, np.repeat(number, len(attribution)), (attribution, shares)

    places = token_places(model, [row[:-1] for row in ids])
    components, (attribution, change) = gather_rows(model, ids, 1, integrate, steps * layer_count(model))
    (total, _), (change, _) = (sums_per_text(x, places["text"]) for x in (attribution, change))
    return IntegratedGradients(
        components=components,
        values={"attribution": attribution, "size": np.abs(attribution)},
        places=places,
        units={"attribution": "probability", "size": "probability", "gap": "share of the change"},
        model=model.name,
        settings={"steps": steps},
        columns={"gap": np.abs(total - change).sum(0) / np.maximum(np.abs(change).sum(0), 1e-30)},
    )


def _path_integral(
    value: Value,
    base: Float[Tensor, "point 1 d"],
    stream: Float[Tensor, "point token d"],
    steps: int,
    advance: Advance,
) -> Float[Tensor, " token"]:
    """Integrate the gradient of `value` times the way from `base` to `stream`, for as many points at once as rows."""
    total, size = torch.zeros(stream.shape[1], dtype=torch.float64, device=stream.device), len(stream)
    way = (stream - base)[:1].double() / steps
    for some in (torch.arange(steps, dtype=torch.float64) / steps).split(size):
        alpha = torch.zeros(size, dtype=torch.float64)
        alpha[: len(some)] = some
        with torch.enable_grad():
            x = base + alpha.to(stream.device, stream.dtype)[:, None, None] * (stream - base)
            (gradient,) = torch.autograd.grad(value(x.requires_grad_()).sum(), x)
        advance(len(some))
        total += (gradient[: len(some)].double() * way).sum((0, 2))
    return total
