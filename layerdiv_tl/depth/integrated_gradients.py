"""Integrated gradients of an answer's probability with respect to each layer's, attention's or MLP's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import MOST_REPEATS, whole_number
from .._progress import Advance
from ..components import Component
from ..errors import InputError
from ..model.load import as_model
from ..model.patched_forward import PatchedForward
from ..results import Figure
from .engine import layer_count, map_batches, same_components
from .inputs import Part, ablatable_blocks, check_choices, read_answers, read_layers
from .tokens import TokenResult, read_tokens, summarize, sums_per_text

Baseline = Literal["token_mean", "dimension_mean", "zero"]
Path = Literal["uniform", "graded"]
# Near a baseline of almost 0, norms turn a small change of the stream into a large one: a graded path is finer there.
POWER = 4


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
    baseline: str
    steps: int
    model: str
    path: str = "uniform"

    @property
    def gap(self) -> float:
        """Completeness error of the sums: Σ |residual| / Σ |change| over all texts and components."""
        return float(np.abs(self.residual).sum() / max(np.abs(self.change).sum(), 1e-30))

    def __repr__(self) -> str:
        texts, count = self.change.shape
        shape = f"{texts} texts × {count} components, {self.steps} {self.path} steps"
        return f"IntegratedGradients({self.model}: {shape}; the sums are {self.gap:.1%} off the change)"

    figures: ClassVar = {"map": "depth.gradient_map", "bars": "depth.gradient_bars"}

    def plot(self, kind: Literal["map", "bars"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

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
    baseline: Baseline = "token_mean",
    path: Path = "uniform",
    steps: int = 24,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> IntegratedGradients:
    """Attribute the answer's probability to each layer's output by integrated gradients, token by token.

    Follows Csordás et al. (arXiv 2505.13898), by default with the rules of their released code.

    Args:
        model, texts, batch_tokens: As in `residual_norms`; `batch_tokens` also limits how many steps run at once.
        part: The output to attribute to: the "layer"'s (the stream after it), its "attn"'s or its "mlp"'s.
        baseline: "token_mean" (published): the mean vector over the text's tokens, answer included; "dimension_mean":
            each token's own mean over the dimensions; or "zero".
        path: Where between baseline and output gradients are taken: "uniform" (published), at the start of each of
            `steps` equal steps; or "graded", in the middle of steps that are finer near the baseline, where norms turn
            small changes into large ones: other baselines than the published one need it.
        steps: Number of steps along the path (published: 256); enough where the result's `gap` is at most 0.01. More
            help little in half precision, and not where a token changes experts.
        answers, layers: As in `erase`.

    Makes steps · L/2 passes with gradients over every text for L layers. Raises InputError for input that cannot be
    used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> gradients = ld.depth.integrated_gradients("zoo/d2", [[1, 2, 3], [4, 5]], path="graded", steps=64)
    >>> gradients.attribution.shape, gradients.gap < 0.05
    ((3, 2), True)
    """
    check_choices(part=(part, Part), baseline=(baseline, Baseline), path=(path, Path))
    steps = whole_number("steps", steps, 1, MOST_REPEATS)
    if baseline == "zero" and part == "layer" and path == "uniform":
        raise InputError("baseline='zero' starts at a stream of 0, where norms have no gradient: use path='graded'.")
    model = as_model(model)
    ids, lengths = read_answers(model, texts, answers)
    size = model.checked_batch_tokens(batch_tokens)
    points, weights = _path_points(path, steps)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def integrate(rows: list[int], advance: Advance) -> tuple[Component, ...]:
        (number,) = rows
        row = ids[number]
        # Tensors made in inference mode cannot take part in a gradient.
        with torch.inference_mode(False), torch.no_grad():
            forward = PatchedForward(model, [row] * max(1, min(steps, size // len(row))))
            blocks = ablatable_blocks(model, forward, part, layers)
            of_text = _PathIntegral(forward, lengths[number], part, baseline, points, weights, advance)
            attributions, changes = zip(*map(of_text.integrate, blocks), strict=True)
        found[number] = np.stack(attributions, 1), np.array(changes)
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
        **{"part": part, "baseline": baseline, "steps": steps, "model": model.name, "path": path},
    )


@dataclass
class _PathIntegral:
    """Compute the path integrals of one text; each row of its forward is the text at another point of the path."""

    forward: PatchedForward
    length: int  # of the answer
    part: Part
    baseline: Baseline
    points: Float[Tensor, " step"]
    weights: Float[Tensor, " step"]
    advance: Advance

    @cached_property
    def clean(self) -> float:
        """F(x)."""
        return float(self._objective(self.forward.streams[-1])[0])

    def integrate(self, block: int) -> tuple[Float[np.ndarray, " token"], float]:
        """Return (attribution of every token but the last, F(x) − F(x')) of one component."""
        output, run = self._output_of(block)
        base = self._base(output)
        difference = (output - base)[:1].double()
        total = torch.zeros(output.shape[1], dtype=torch.float64, device=output.device)
        size = len(output)
        for points, weights in zip(self.points.split(size), self.weights.split(size), strict=True):
            alpha = torch.zeros(size, dtype=torch.float64)
            alpha[: len(points)] = points
            alpha = alpha.to(output.device, output.dtype)[:, None, None]
            with torch.enable_grad():
                x = (base + alpha * (output - base)).requires_grad_()
                (gradient,) = torch.autograd.grad(self._objective(run(x)).sum(), x)
            self.advance(len(points))
            weight = weights.to(output.device)[:, None, None]
            total += (gradient[: len(points)].double() * weight * difference).sum((0, 2))
        at_baseline = float(self._objective(run(base.expand_as(output).clone()))[0])
        return total[:-1].cpu().numpy(), self.clean - at_baseline

    def _base(self, output: Float[Tensor, "row token d"]) -> Tensor:
        """Return the start of the path, in a shape that broadcasts."""
        if self.baseline == "zero":
            return torch.zeros_like(output[..., :1])
        return output.mean(1 if self.baseline == "token_mean" else -1, keepdim=True)

    def _output_of(self, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return (a component's output, the final stream as a function of it)."""
        forward = self.forward
        if self.part == "layer":
            return forward.streams[block + 1], lambda x: forward.resume(block + 1, x)
        key, scale = (block, self.part), forward.scales[block, self.part]
        output = forward.sublayer_output(self.part, block)
        return output, lambda x: forward.resume(block, forward.streams[block], {key: lambda _: x / scale})

    def _objective(self, final: Float[Tensor, "row token d"]) -> Float[Tensor, " row"]:
        """Compute F, the sum of the probabilities of the answer's tokens."""
        stream = final[:, -self.length - 1 : -1]
        logits = self.forward.logits(stream.reshape(-1, stream.shape[-1])).view(*stream.shape[:2], -1)
        answer = self.forward.ids[0, -self.length :]
        return logits.double().softmax(-1)[:, torch.arange(self.length), answer].sum(1)


def _path_points(path: Path, steps: int) -> tuple[Float[Tensor, " step"], Float[Tensor, " step"]]:
    """Return (points between 0, the baseline, and 1, the output; their weights)."""
    start = torch.arange(steps, dtype=torch.float64)
    if path == "uniform":
        return start / steps, torch.full_like(start, 1 / steps)
    middle = (start + 0.5) / steps  # of a step in u, where the point is u^POWER
    return middle**POWER, POWER * middle ** (POWER - 1) / steps
