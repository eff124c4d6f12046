"""Integrated gradients of an answer's probability with respect to each layer's, attention's or MLP's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import MOST_REPEATS, whole_number
from .._progress import Advance
from ..components import Component
from ..model.load import as_model
from ..results import Plot
from .engine import layer_count, map_batches, same_components
from .inputs import Part, ablatable_blocks, check_choices, read_answers, read_layers
from .patched_forward import PatchedForward
from .tokens import TokenResult, read_tokens, summarize, sums_per_text

# The answer's probability at each point, as a function of streams.
Value = Callable[[Float[Tensor, "point token d"]], Float[Tensor, " point"]]


def _text_frame(result: IntegratedGradients, text: int = 0) -> pd.DataFrame:
    frame = result.by_token()
    whole_number("text", text, 0, int(result.text.max()))
    some = frame[frame["text"] == text]
    some.attrs = frame.attrs | {"about": f"text {text}"}
    return some


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedGradients(TokenResult):
    """Integrated gradients of the answer's probability over the outputs of layers, attentions or MLPs.

    With F the sum of the probabilities of the answer's tokens, x a component's output (of a layer the stream after it)
    and x' its baseline:

    Attributes:
        attribution: Σ_d (x − x') · ∫₀¹ ∂F/∂x (x' + α (x − x')) dα, in probability.
        change, residual: F(x) − F(x'), to which the attributions of a text's tokens should sum; their sum minus it.
        text, position, tokens: Index of the text, position in it, and spelling of each token but a text's last.

    Sundararajan et al. (2017); for layers as in *Do Language Models Use Their Depth Efficiently?*.
    """

    components: tuple[Component, ...]
    attribution: Float[np.ndarray, "token component"]
    change: Float[np.ndarray, "text component"]
    residual: Float[np.ndarray, "text component"]
    text: Int[np.ndarray, " token"]
    position: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    part: str
    steps: int
    model: str

    @property
    def gap(self) -> float:
        """Completeness error of the sums: Σ |residual| / Σ |change| over all texts and components."""
        return float(np.abs(self.residual).sum() / max(np.abs(self.change).sum(), 1e-30))

    lead: ClassVar = "attribution"
    figures: ClassVar = {
        "map": Plot(
            "Integrated gradients of each token",
            "A map layer × token of one `text`.",
            "shapes.heat",
            _text_frame,
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

    def frame(self) -> pd.DataFrame:
        """One row per component: means over texts with 95 % intervals, quantiles and maxima over texts.

        `attribution`: the sum over a text's tokens; `size`: the sum of their absolute values; `gap`: the completeness
        error relative to the change.
        """
        texts = np.arange(len(self.change))
        columns: dict[str, Any] = {"gap": np.abs(self.residual).sum(0) / np.maximum(np.abs(self.change).sum(0), 1e-30)}
        for name, values in (("size", np.abs(self.attribution)), ("attribution", self.attribution)):
            columns = summarize(name, sums_per_text(values, self.text)[0], texts) | columns
        units = {"attribution": "probability", "size": "probability", "gap": "share of the change"}
        return self._with_units(columns, units)

    def by_token(self) -> pd.DataFrame:
        """One row per token and component."""
        return self._by_token({"attribution": "probability"})


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
            taken; enough where the result's `gap` is at most 0.01. More help little in half precision, and not where a
            token changes experts.
        answers, layers: As in `erase`.

    Makes steps · L/2 passes with gradients over every text for L layers. Raises InputError for input that cannot be
    used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> gradients = ld.depth.integrated_gradients("zoo/d2", [[1, 2, 3], [4, 5]], steps=64)
    >>> gradients.attribution.shape, gradients.gap < 0.2
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
    return IntegratedGradients(
        components=components,
        attribution=np.concatenate(attributions),
        change=change,
        residual=np.stack([of_text.sum(0) for of_text in attributions]) - change,
        **read_tokens(model, [row[:-1] for row in ids]),
        part=part,
        steps=steps,
        model=model.name,
    )


def _output_of(
    forward: PatchedForward, part: Part, block: int, probability: Value
) -> tuple[Float[Tensor, "point token d"], Value]:
    """Return (a component's output, the answer's probability as a function of it)."""
    if part == "layer":
        return forward.streams[block + 1], lambda x: probability(forward.resume(block + 1, x))
    stream, key, scale = forward.streams[block], (block, part), forward.scale(block, part)
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
