"""Norms of attention, MLP and layer outputs relative to the residual stream, block influence, and change points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..components import Component
from ..ensemble.intervals import percentile_interval
from ..errors import InputError
from ..model.frozen import upcast
from ..model.load import Model, as_model
from ..model.prompts import Ids, prompt_ends
from ..model.units import part_vectors
from ..results import Plot
from .inputs import Part, check_choices, read_texts
from .patched_forward import SMALLEST, PatchedForward
from .readings import Readings, read_tokens, resampled_ratio, sums_per_text, token_places

UNITS = {
    "relative_norm": "times the stream's norm",
    "cosine": "cosine",
    "norm": "norm",
    "block_influence": "1 − cosine",
}


class ResidualNorms(Readings):
    """Norms and directions of the outputs of attentions, MLPs and whole layers, at every token.

    With h the stream that enters a layer, a and m the outputs of its attention and its MLP, `values` has

    * `relative_norm`: ‖a‖/‖h‖, ‖m‖/‖h + a‖ (‖m‖/‖h‖ where both read the same stream) and ‖a + m‖/‖h‖;
    * `cosine`: cos(a, h), cos(m, h + a) and cos(a + m, h), likewise;
    * `norm`: ‖a‖, ‖m‖, ‖a + m‖;
    * `block_influence`: 1 − cos of the stream before and after the component (Men et al. 2024, *ShortGPT*).

    As in the released code of *Do Language Models Use Their Depth Efficiently?* (arXiv 2505.13898), except that the
    code divides an MLP parallel to its attention by ‖h + a‖. Its cosine of input and output is 1 − `block_influence`.
    """

    lead: ClassVar = "relative_norm"
    figures: ClassVar = {
        "bars": Plot(
            "Norms of outputs along depth",
            "The norm of each output relative to the stream before it, and the cosine of the two.",
            "shapes.bars",
            "frame",
            {"columns": ("relative_norm", "cosine"), "log": ("relative_norm",)},
        )
    }

    def change_point(self, part: Part = "layer") -> pd.Series:
        """Find the layer from which on the mean relative norm is smaller, by Pettitt's rank statistic (1979).

        `layer`, `low`, `high`: the first layer of the later part, counted from 0 in order of use, and its 95 % interval
        over texts. `before`, `after`: the medians of the layers' means on either side. `p`: Pettitt's approximate
        p-value; layers are not independent, so it only separates clear falls from others.

        Raises InputError for an unknown part, and for fewer than three layers.
        """
        check_choices(part=(part, Part))
        of_part = [i for i, component in enumerate(self.components) if component.kind == part]
        values = self.values["relative_norm"][:, of_part]
        return change_point(*resampled_ratio(*sums_per_text(values, self.places["text"])))


def residual_norms(model: Any, texts: Any, *, batch_tokens: int | None = None) -> ResidualNorms:
    """Relative norms and cosines of the outputs of attentions, MLPs and whole layers, over all tokens.

    Args:
        model: A `Model`, or anything `load_model` takes.
        texts: A text, a list of texts or of lists of token ids, or a `Task`. Every token counts, including a text's
            first, whose stream is often much longer than the others': compare the median with the mean.
        batch_tokens: The most padded tokens in one forward pass.

    Keeps 16 bytes for every token and component. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> norms = ld.depth.residual_norms("zoo/d2", [[1, 2, 3], [4, 5]])
    >>> norms.values["relative_norm"].shape, [c.label for c in norms.components[:3]]
    ((5, 6), ['L0.attn', 'L0.mlp', 'L0.layer'])
    """
    model = as_model(model)
    return measure_norms(model, read_texts(model, texts), batch_tokens)


def measure_norms(model: Model, ids: Sequence[Ids], batch_tokens: int | None, heads: bool = False) -> ResidualNorms:
    """Measure `residual_norms` of token ids; with `heads` also those of every head's output."""
    components, (relative, cosine, norm) = read_tokens(
        model, ids, batch_tokens, lambda rows: _measure(PatchedForward(model, rows, heads), heads)
    )
    influence = block_influence(relative, cosine).astype(np.float32)
    return ResidualNorms(
        components=components,
        values={"relative_norm": relative, "cosine": cosine, "norm": norm, "block_influence": influence},
        places=token_places(model, ids),
        units=UNITS,
        model=model.name,
        prompt_ends=prompt_ends(model, ids),
    )


def block_influence(relative_norm: Float[np.ndarray, "*n"], cosine: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Compute 1 − cos of a stream before and after an output, from the output's relative norm r and cosine c to it.

    With x = 1 + rc and y² = r²(1 − c²) it is 1 − x/√(x² + y²), written so that small influences keep their digits.
    """
    r, c = relative_norm.astype(np.float64), np.clip(cosine.astype(np.float64), -1, 1)
    along, across = 1 + r * c, r**2 * (1 - c**2)
    length = np.sqrt(along**2 + across)
    with np.errstate(invalid="ignore", divide="ignore"):
        near = across / (length * (length + along))
    return np.where(along > 0, near, 1 - along / np.maximum(length, SMALLEST))


def _measure(clean: PatchedForward, heads: bool) -> tuple[tuple[Component, ...], np.ndarray]:
    """Return components, and `[quantity, token, component]` of one pass."""
    components: list[Component] = []
    columns: list[Tensor] = []
    for block, (layer, repeat) in enumerate(clean.layers):
        entering = upcast(clean.streams[block][clean.tokens])
        before = entering  # the stream that the next sublayer reads
        written = torch.zeros_like(entering)
        for writer in clean.writers(block):
            output = upcast(clean.outputs[block, writer.kind][clean.tokens])
            components.append(clean.component(writer.kind, block))
            columns.append(_relative_to(before, output))
            if heads and writer.kind == "attn" and (block, "heads") in clean.outputs:
                for index, write in enumerate(_head_writes(clean, block)):
                    components.append(Component("head", layer, index, repeat))
                    columns.append(_relative_to(before, write.to(output)))
            written = written + output
            before = before if writer.is_partial else entering + written
        components.append(clean.component("layer", block))
        columns.append(_relative_to(entering, written))
    return tuple(components), torch.stack(columns, -1).float().cpu().numpy()


def _head_writes(clean: PatchedForward, block: int) -> Float[Tensor, "head token d"]:
    """What each head of a block's attention adds to the stream: its values behind the projection, without biases."""
    writer = next(writer for writer in clean.writers(block) if writer.kind == "attn")
    write, values = (clean.outputs[block, kind][clean.tokens][None] for kind in ("attn", "heads"))
    _, writes = next(part_vectors(writer, clean.component("attn", block), write, values, "head", writer.heads))
    return writes[:, 0] * clean.scales[block, "attn"]


def _relative_to(stream: Float[Tensor, "token d"], output: Float[Tensor, "token d"]) -> Float[Tensor, "3 token"]:
    """Compute relative norm, cosine and norm of an output."""
    norm, stream_norm = output.norm(dim=-1), stream.norm(dim=-1).clamp_min(SMALLEST)
    product = (output * stream).sum(-1)
    return torch.stack([norm / stream_norm, product / (norm * stream_norm).clamp_min(SMALLEST**2), norm])


def change_point(mean: Float[np.ndarray, " layer"], drawn: Float[np.ndarray, "draw layer"]) -> pd.Series:
    """Find the change point of `mean`, with its interval over resamples; ranks decide, not outlying layers.

    Raises InputError for fewer than three layers.
    """
    count = len(mean)
    if count < 3:
        raise InputError(f"a change along depth needs at least three layers, and this model has {count}.")
    (layer,), (statistic,) = _pettitt(mean[None])
    layers = _pettitt(drawn)[0].astype(float) if np.isfinite(drawn).all() else np.full(len(drawn), np.nan)
    low, high = percentile_interval(layers)
    before, after = float(np.median(mean[:layer])), float(np.median(mean[layer:]))
    p = float(min(1.0, np.exp(-6 * statistic**2 / (count**3 + count**2))))
    found = {"layer": int(layer), "low": float(low), "high": float(high), "before": before, "after": after, "p": p}
    return pd.Series(found, dtype=object)


def _pettitt(series: Float[np.ndarray, "draw layer"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the k with the largest U = Σ_{i<k≤j} sign(x_i − x_j), and that U."""
    ranks = series.argsort(1).argsort(1) + 1.0
    count = series.shape[1]
    u = (2 * ranks.cumsum(1) - np.arange(1, count + 1) * (count + 1))[:, :-1]
    return u.argmax(1) + 1, u.max(1)
