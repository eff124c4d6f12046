"""Integrated gradients of an answer's probability with respect to each layer's, attention's or MLP's output."""

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
from .engine import layer_count, map_batches, same_components
from .inputs import Part, ablatable_blocks, check_choices, read_answers, read_layers
from .patched_forward import PatchedForward
from .readings import Readings, token_places

# The answer's probability at each point, as a function of streams.
Value = Callable[[Float[Tensor, "point token d"]], Float[Tensor, " point"]]


class IntegratedGradients(Readings):
    """Integrated gradients of the answer's probability over the outputs of layers, attentions or MLPs.

    With F the sum of the probabilities of the answer's tokens, x a component's output (of a layer the stream after it)
    and x' its baseline, `values` has at each token but a text's last `attribution`: Σ_d (x − x') · ∫₀¹ ∂F/∂x (x' + α (x
    − x')) dα, in probability; and `size`, its absolute value. `frame()` averages their sums over each text, and has the
    completeness error of all texts, `gap`: Σ |Σ attribution − (F(x) − F(x'))| / Σ |F(x) − F(x')|.

    Sundararajan et al. (2017); for layers as in *Do Language Models Use Their Depth Efficiently?*.
    """

    over = "sums"
    lead: ClassVar = "attribution"
    figures: ClassVar = {
        "map": Plot(
            "Integrated gradients of each token",
            "A map layer × token of one `text`.",
            "shapes.heat",
            "of_text",
            {"row": "component", "column": "position", "value": "attribution", "column_name": "token"},
        ),
        "bars": Plot(
            "Integrated gradients of tokens by layer",
            "Means over texts.",
            "shapes.bars",
            "frame",
            {"columns": ("attribution", "size")},
        ),
    }


def integrated_gradients(
    model: Any,
    texts: Any,
    part: Part = "layer",
    *,
    answers: Any = None,
    steps: int = 24,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> IntegratedGradients:
    """Attribute the answer's probability to each layer's output by integrated gradients, token by token.

    Follows the released code of Csordás et al. (arXiv 2505.13898): the baseline is the mean vector over the text's
    tokens, answer included.

    Args:
        model, texts, batch_tokens: As in `residual_norms`; `batch_tokens` also limits how many steps run at once.
        part: The output to attribute to: the "layer"'s (the stream after it), its "attn"'s or its "mlp"'s.
        steps: Number of equal steps from the baseline to the output (published: 256), at whose starts gradients are
            taken; enough where the frame's `gap` is at most 0.01. More help little in half precision, and not where a
            token changes experts.
        answers, layers: As in `erase`.

    Makes steps · L/2 passes with gradients over every text for L layers. Raises InputError for input that cannot be
    used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> gradients = ld.depth.integrated_gradients("zoo/d2", [[1, 2, 3], [4, 5]], steps=64)
    >>> gradients.values["attribution"].shape, bool(gradients.frame().gap.max() < 0.2)
    ((3, 2), True)
    """
    check_choices(part=(part, Part))
    steps = whole_number("steps", steps, 1, MOST_REPEATS)
    model = as_model(model)
    ids, lengths = read_answers(model, texts, answers)
    size = batch_tokens or model.batch_tokens
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def integrate(rows: list[int], advance: Advance) -> tuple[Component, ...]:
        (number,) = rows
        row, length = ids[number], lengths[number]

        def probability(final: Float[Tensor, "point token d"]) -> Float[Tensor, " point"]:
            stream = final[:, -length - 1 : -1]
            logits = forward.logits(stream.reshape(-1, stream.shape[-1])).view(*stream.shape[:2], -1)
            return logits.double().softmax(-1)[:, torch.arange(length), forward.ids[0, -length:]].sum(1)

        # Each row is the text at another point of the path.
        forward = PatchedForward(model, [row] * max(1, min(steps, size // len(row))))
        blocks = ablatable_blocks(model, forward, part, layers)
        attribution, change = np.empty((len(row) - 1, len(blocks))), np.empty(len(blocks))
        change[:] = float(probability(forward.streams[-1])[0])
        for i, block in enumerate(blocks):
            output, value = _output_of(forward, part, block, probability)
            base = output.mean(1, keepdim=True)
            change[i] -= float(value(base.expand_as(output).clone())[0])
            attribution[:, i] = _path_integral(value, base, output, steps, advance)[:-1].cpu()
        found[number] = attribution, change
        return tuple(forward.component(part, block) for block in blocks)

    count = steps * len(read_layers(layers, layer_count(model)))
    components = same_components(model, map_batches(model, ids, 1, integrate, count))
    attributions, changes = zip(*(found[number] for number in range(len(ids))), strict=True)
    change = np.stack(changes)
    residual = np.stack([of_text.sum(0) for of_text in attributions]) - change
    attribution = np.concatenate(attributions)
    return IntegratedGradients(
        components=components,
        values={"attribution": attribution, "size": np.abs(attribution)},
        places=token_places(model, [row[:-1] for row in ids]),
        units={"attribution": "probability", "size": "probability", "gap": "share of the change"},
        model=model.name,
        settings={"part": part, "steps": steps},
        columns={"gap": np.abs(residual).sum(0) / np.maximum(np.abs(change).sum(0), 1e-30)},
    )


def _output_of(
    forward: PatchedForward, part: Part, block: int, probability: Value
) -> tuple[Float[Tensor, "point token d"], Value]:
    """Return (a component's output, the answer's probability as a function of it)."""
    if part == "layer":
        return forward.streams[block + 1], lambda x: probability(forward.resume(block + 1, x))
    stream, key, scale = forward.streams[block], (block, part), forward.scales[block, part]
    output = forward.outputs[key]
    return output, lambda x: probability(forward.resume(block, stream, {key: lambda _: x / scale}))


def _path_integral(
    value: Value,
    base: Float[Tensor, "point 1 d"],
    output: Float[Tensor, "point token d"],
    steps: int,
    advance: Advance,
) -> Float[Tensor, " token"]:
    """Integrate the gradient of `value` times the way from `base` to `output`, for as many points at once as rows."""
    total, size = torch.zeros(output.shape[1], dtype=torch.float64, device=output.device), len(output)
    way = (output - base)[:1].double() / steps
    for some in (torch.arange(steps, dtype=torch.float64) / steps).split(size):
        alpha = torch.zeros(size, dtype=torch.float64)
        alpha[: len(some)] = some
        with torch.enable_grad():
            x = base + alpha.to(output.device, output.dtype)[:, None, None] * (output - base)
            (gradient,) = torch.autograd.grad(value(x.requires_grad_()).sum(), x)
        advance(len(some))
        total += (gradient[: len(some)].double() * way).sum((0, 2))
    return total
