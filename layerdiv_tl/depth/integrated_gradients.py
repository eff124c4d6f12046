"""Integrated gradients of an answer's probability with respect to each layer's, attention's or MLP's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import MOST_REPEATS, choice, whole_number
from ..components import Component, component_columns
from ..errors import InputError
from ..model.batches import inference_mode_for
from ..model.load import Model, load_model
from ..model.patched_forward import PatchedForward
from ..results import Result
from .inputs import Ids, read_answers, read_layers, spelled, token_columns
from .residual_norms import Part
from .token_stats import note, summarize

Baseline = Literal["token_mean", "dimension_mean", "zero"]
Path = Literal["uniform", "graded"]
# Near a baseline of nearly nothing the norms turn the smallest change of the stream into a large one: there a graded
# path is cut finer.
POWER = 4


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedGradients(Result):
    """Integrated gradients of the answer's probability over the outputs of layers, attentions or MLPs.

    With F the sum of the probabilities of the answer's tokens and x what a component hands on (for a layer
    the stream behind it), x' its baseline:

    attribution
        `[token, component]`: Σ_d (x − x') · ∫₀¹ ∂F/∂x (x' + α (x − x')) dα, in probability.
    change
        `[text, component]`: F(x) − F(x'), to which the attributions of a text's tokens should sum.
    residual
        `[text, component]`: what they sum to beyond it.
    text, position, tokens
        `[token]`: which text, where in it, and how the token is spelled. Of each text, the tokens that the answer is
        predicted from.
    components, part, baseline, path, steps
        As asked for.

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
        """How far the sums are from complete: Σ |residual| / Σ |change| over all texts and components."""
        return float(np.abs(self.residual).sum() / max(np.abs(self.change).sum(), 1e-30))

    def frame(self) -> pd.DataFrame:
        """One row per component: means over texts with 95 % intervals, quantiles and maxima over texts.

        `attribution`: the sum over a text's tokens; `size`: the sum of their absolute values; `gap`: how far
        the sums are from complete, relative to the change.
        """
        sums, sizes = np.zeros((2, *self.change.shape))
        np.add.at(sums, self.text, self.attribution)
        np.add.at(sizes, self.text, np.abs(self.attribution))
        text = np.arange(len(sums))
        columns = (
            component_columns(self.components) | summarize("attribution", sums, text) | summarize("size", sizes, text)
        )
        columns["gap"] = np.abs(self.residual).sum(0) / np.maximum(np.abs(self.change).sum(0), 1e-30)
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"attribution": "probability", "size": "probability", "gap": "share of the change"}
        frame.attrs["intervals"] = note(text)
        return frame

    def by_token(self) -> pd.DataFrame:
        """One row per token and component."""
        columns = token_columns(self.text, self.position, self.tokens, self.components)
        frame = pd.DataFrame(columns | {"attribution": self.attribution.ravel()})
        frame.attrs["units"] = {"attribution": "probability"}
        return frame


def integrated_gradients(
    model: Any,
    texts: Any,
    part: Part = "layer",
    *,
    answers: Any = None,
    baseline: Baseline = "token_mean",
    path: Path = "uniform",
    steps: int = 256,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> IntegratedGradients:
    """Attribute the probability of each text's answer to its tokens at every layer.

    The integrated gradients of Csordás et al. (arXiv 2505.13898) by the rules of their released code, which are the
    defaults.

    model, texts
        As in `sizes`.
    part
        Over what "layer"s hand on (the stream), or over what their "attn" or "mlp" writes.
    answers
        How many tokens at the end of each text are its answer (default 1); or the answers themselves, one text
        or list of ids for each text; a task brings its gold options.
    baseline
        "token_mean" (published): every token's vector becomes the mean over the text's tokens, answer included;
        "dimension_mean": its own mean over the dimensions; or "zero".
    path
        Where between baseline and output the gradients are taken: "uniform" (published), at the start of each of
        `steps` equal steps; or "graded", in the middle of steps that are finer near the baseline, which other
        baselines need, for close to them the norms turn small changes into large ones.
    steps
        How finely the path is cut (published: 256). `gap` says whether that was enough; it should be at most 0.01.
        More steps do not help a mixture of experts, which jumps where a token changes experts, nor much a model in half
        precision, whose gradients are rounded.
    layers
        Which layers, in order of use; None is all.
    batch_tokens
        The most tokens in one pass; so many steps of one text are worked on together.

    Costs `steps` passes and their gradients for every component and text, from the component on. Raises
    InputError for input that cannot be used, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.integrated_gradients(tiny, [[1, 2, 3], [4, 5]], steps=64)
    >>> found.attribution.shape, found.gap < 0.05
    ((3, 2), True)
    """
    known = {"part": (part, Part), "baseline": (baseline, Baseline), "path": (path, Path)}
    for name, (value, values) in known.items():
        choice(name, value, get_args(values))
    steps = whole_number("steps", steps, 1, MOST_REPEATS)
    if baseline == "zero" and part == "layer" and path == "uniform":
        raise InputError(
            "baseline='zero' starts where the stream is nothing and norms have no gradient: use path='graded', or "
            "baseline='token_mean'."
        )
    model = load_model(model)
    ids, lengths = read_answers(model, texts, answers)
    from tqdm.auto import tqdm

    found: list[_Text] = []
    with (
        inference_mode_for(model.architecture),
        tqdm(total=len(ids), desc=model.name, unit="text", delay=2, leave=False) as progress,
    ):
        # What was made in inference mode cannot take part in a gradient.
        for row, length in zip(ids, lengths, strict=True):
            with torch.inference_mode(False), torch.no_grad():
                found.append(_Text(model, row, length, part, baseline, path, steps, layers, batch_tokens))
            progress.update()
    counts = [len(row) - 1 for row in ids]
    attribution, text = np.concatenate([f.attribution for f in found]), np.repeat(np.arange(len(ids)), counts)
    change = np.stack([f.change for f in found])
    residual = -change
    np.add.at(residual, text, attribution)
    return IntegratedGradients(
        components=found[0].components,
        attribution=attribution,
        change=change,
        residual=residual,
        text=text,
        position=np.concatenate([np.arange(count) for count in counts]),
        tokens=spelled(model, [row[:-1] for row in ids]),
        part=part,
        baseline=baseline,
        steps=steps,
        model=model.name,
        path=path,
    )


class _Text:
    """`attribution` [token, component] and `change` [component] of one text."""

    def __init__(
        self,
        model: Model,
        row: Ids,
        length: int,
        part: Part,
        baseline: Baseline,
        path: Path,
        steps: int,
        layers: Any,
        batch_tokens: int | None,
    ) -> None:
        size = max(1, min(steps, model.checked_batch_tokens(batch_tokens) // len(row)))
        # Every row of the batch is this text, at another point of the path.
        self.replay = replay = PatchedForward(model, [row] * size, keep_outputs=part != "layer")
        self.size, self.part, self.baseline = size, part, baseline
        self.points, self.weights = _points(path, steps)
        self.predict = slice(len(row) - length - 1, len(row) - 1)
        self.answer = replay.ids[0, len(row) - length :]
        wanted = [b for b in read_layers(layers, len(replay.layers)) if replay.zero_ablate(part, b)]
        if not wanted:
            raise InputError(f"these layers of {model.name} have no {part} that writes to the stream.")
        self.components = tuple(replay.component(part, block) for block in wanted)
        self.attribution = np.empty((len(row) - 1, len(wanted)))
        self.change = np.empty(len(wanted))
        whole = float(self._objective(replay.streams[-1])[0])
        for number, block in enumerate(wanted):
            attribution, empty = self._along(block)
            self.attribution[:, number], self.change[number] = attribution[:-1], whole - empty

    def _along(self, block: int) -> tuple[np.ndarray, float]:
        """(attribution of every token, F at the baseline) of one component."""
        output, run = self._place(block)
        base = self._base(output)
        way = (output - base)[:1].double()
        total = torch.zeros(output.shape[1], dtype=torch.float64, device=output.device)
        for some, weights in zip(self.points.split(self.size), self.weights.split(self.size), strict=True):
            alpha = torch.zeros(self.size, dtype=torch.float64)
            alpha[: len(some)] = some
            alpha = alpha.to(output.device, output.dtype)[:, None, None]
            weight = weights.to(output.device)[:, None, None]
            with torch.enable_grad():
                x = (base + alpha * (output - base)).requires_grad_()
                (gradient,) = torch.autograd.grad(self._objective(run(x)).sum(), x)
            total += (gradient[: len(some)].double() * weight * way).sum((0, 2))
        empty = float(self._objective(run(base.expand_as(output).clone()))[0])
        return total.cpu().numpy(), empty

    def _base(self, output: Float[Tensor, "row token d"]) -> Tensor:
        """What the path starts from, of a shape that broadcasts."""
        if self.baseline == "zero":
            return torch.zeros_like(output[..., :1])
        return output.mean(1 if self.baseline == "token_mean" else -1, keepdim=True)

    def _place(self, block: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """(what a component hands on, the final stream as a function of it)."""
        replay = self.replay
        if self.part == "layer":
            return replay.streams[block + 1], lambda x: replay.resume(block + 1, x)
        key, scale = (block, self.part), replay.scales[block, self.part]
        return replay.sublayer_outputs[key], lambda x: replay.resume(
            block, replay.streams[block], {key: lambda _: x / scale}
        )

    def _objective(self, final: Float[Tensor, "row token d"]) -> Float[Tensor, " row"]:
        """F of every row."""
        at = final[:, self.predict]
        logits = self.replay.logits(at.reshape(-1, at.shape[-1])).view(*at.shape[:2], -1)
        return logits.softmax(-1)[:, torch.arange(len(self.answer)), self.answer].sum(1)


def _points(path: Path, steps: int) -> tuple[Float[Tensor, " step"], Float[Tensor, " step"]]:
    """(points between 0, the baseline, and 1, the output; their weights)."""
    start = torch.arange(steps, dtype=torch.float64)
    if path == "uniform":
        return start / steps, torch.full_like(start, 1 / steps)
    middle = (start + 0.5) / steps  # of a step in u, where the point is u^POWER
    return middle**POWER, POWER * middle ** (POWER - 1) / steps
