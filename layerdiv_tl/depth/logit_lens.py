"""The logit lens: the model's prediction if it stopped at a junction, compared with its final one.

A lens may first translate the stream after each layer: tuned lenses, TransformerLens' Jacobian lens, or a function.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import shown, whole_number
from ..attribution.vocabulary import log_sum_exp
from ..components import Component
from ..ensemble.intervals import Kind, estimate
from ..errors import InputError
from ..model.architecture import Architecture
from ..model.capture import Activations
from ..model.load import Model, as_model
from ..model.patched_forward import LOGITS, logits_of
from ..model.prompts import prompt_ends, token_texts
from ..model.stream_path import stream_after, to_final_stream
from ..results import Figure
from .engine import divergence, layer_count, log_softmax
from .inputs import check_choices, read_texts
from .tokens import TokenResult, measure_tokens, sums_per_text

NormAt = Literal["frozen", "recomputed"]
Junctions = Literal["sublayer", "layer"]
Junction = tuple[Component, Float[Tensor, "token d"]]
# Lists the junctions of a pass with their streams.
Read = Callable[[Architecture, Activations], Iterable[Junction]]
# Maps the stream after some layers to the basis of the final stream; None where there is no translator.
Translate = Callable[[Float[Tensor, "token d"], int], Float[Tensor, "token d"] | None]


@dataclass(frozen=True, eq=False, repr=False)
class LogitLens(TokenResult):
    """Distance of every junction's prediction from the final one, at every token.

    Attributes:
        components: The junctions, each named by the component added last.
        kl: KL(junction ‖ final) in nats.
        topk_overlap: The share of its k likeliest tokens that are among the final prediction's.
        text: Index of the text that a token is from.
        lens: "logit lens", or the name of the lens whose translators were applied first.
        prompt_ends: As in `Contributions`.
        top_token: For each text of `prompt_ends`, the likeliest next token at its end, by junction.
    """

    components: tuple[Component, ...]
    kl: Float[np.ndarray, "token junction"]
    topk_overlap: Float[np.ndarray, "token junction"]
    text: Int[np.ndarray, " token"]
    k: int
    norm: str
    model: str
    lens: str = "logit lens"
    prompt_ends: tuple[str, ...] = ()
    top_token: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        kl, overlap = self.kl.mean(0), self.topk_overlap.mean(0)
        half = int(np.argmax(overlap >= 0.5))
        settled = f"half of the final {self.k} likeliest tokens are there after {self.components[half].label}"
        first = f"KL to the final prediction {kl[0]:.3g} nats after {self.components[0].label}"
        return f"LogitLens({self.model}, {self.lens}: {len(kl)} junctions at {len(self.kl)} tokens; {first}; {settled})"

    figures: ClassVar = {"bars": "depth.lens_bars"}

    def plot(self, kind: Literal["bars"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per junction: means over texts of each text's mean over tokens, as in the released code.

        Intervals (95 %) are over texts, quantiles and maxima over tokens. For one text, `top_token` is the likeliest
        next token at its end.
        """
        means: dict[str, Any] = {"top_token": list(self.top_token[0])} if len(self.top_token) == 1 else {}
        kinds: dict[str, Kind] = {"kl": "mean", "topk_overlap": "share"}
        for name, kind in kinds.items():
            sums, counts = sums_per_text(getattr(self, name), self.text)
            means[name] = estimate(sums / counts, kind, counts=np.ones_like(counts), over="texts")
        return self._summary({"kl": "nats", "topk_overlap": f"share of the top {self.k}"}, **means)


def logit_lens(
    model: Any,
    texts: Any,
    norm: NormAt = "recomputed",
    *,
    lens: Any = None,
    junctions: Junctions = "sublayer",
    k: int = 5,
    batch_tokens: int | None = None,
) -> LogitLens:
    """Apply the final norm and unembedding at every junction, and compare with the model's prediction.

    KL(junction ‖ final) and top-k overlap are those of Csordás et al. (arXiv 2505.13898), with sums over the vocabulary
    in float64. The frame of one text has the likeliest token at its end, `ld.explore(model, text)` those of every
    token; the logit difference of two answers as components are added, at the final stream's norm, is
    `ld.logit_difference(model, text, correct, wrong).frame()["difference"].cumsum()`.

    Args:
        model, texts, batch_tokens: As in `residual_norms`.
        norm: The statistic that the final norm divides by: the junction's own ("recomputed", as published), or the
            final stream's ("frozen", at which contributions add up). Where a loop passes the final norm in every round,
            "recomputed" is the prediction of a model that leaves the loop there.
        lens: A translator for each layer, applied before the final norm, with norm="recomputed"; junctions are then
            layers' ends, those that it has one for, and the final stream: the folder of a tuned lens (config.json and
            params.pt, Belrose et al., arXiv 2303.08112), TransformerLens' `JacobianLens` or its .pt file, or a function
            `(stream [token, d], layers done) → [token, d]`, None for no translator.
        junctions: "sublayer": after every attention and MLP; or "layer": after whole layers, as published, at half the
            cost.
        k: Number of likeliest tokens that are compared.

    Makes one pass over every text, and one unembedding of every token for each junction. Raises InputError for input
    that cannot be used.

    >>> import layerdiv_tl as ld
    >>> frame = ld.depth.logit_lens("zoo/d1", [[1, 2, 3], [4, 5]]).frame()
    >>> frame.component.tolist(), float(frame.kl.iloc[-1]), float(frame.topk_overlap.iloc[-1])
    (['embed', 'L0.attn', 'L0.mlp'], 0.0, 1.0)
    """
    check_choices(norm=(norm, NormAt), junctions=(junctions, Junctions))
    model = as_model(model)
    architecture = model.architecture
    if norm == "recomputed" and not architecture.has_prefixes:
        raise InputError(
            f"the stream of {model.name} passes norms, gates or a mixing of streams after its junctions, so what it "
            "would answer there has no meaning: use norm='frozen', the sum of what was written until then."
        )
    k = whole_number("k", k, 1, architecture.outputs)
    read: Read = layer_ends if junctions == "layer" else _junctions
    name = "logit lens"
    if lens is not None:
        if norm == "frozen" or any(repeat is not None for _, repeat in model.sublayer_order):
            raise InputError(
                "a lens translates the ends of layers that run once, at their own norm: norm='recomputed'."
            )
        name, translate = read_translators(lens, layer_count(model), architecture.norm.gain.numel())
        read, junctions = _translated(name, translate), "layer"

    def measure(activations: Activations, tell: Callable[[float], Any]) -> tuple[tuple[Component, ...], np.ndarray]:
        activations = to_final_stream(activations) if norm == "frozen" else activations
        components = tuple(component for component, _ in read(architecture, activations))
        table = torch.empty(3, tokens := len(activations.final), len(components), dtype=torch.float64)
        for start in range(0, tokens, step := max(1, LOGITS // architecture.outputs)):
            streams = activations.at_positions(slice(start, start + step))
            statistic = architecture.norm.statistic(streams.final) if norm == "frozen" else None
            final = read_out(architecture, streams.final, statistic)
            final_log_p, here = log_softmax(final), slice(start, start + len(final))
            in_top_k = torch.zeros_like(final, dtype=torch.bool).scatter_(1, final.topk(k).indices, True)
            for junction, (_, stream) in enumerate(read(architecture, streams)):
                logits = read_out(architecture, stream, statistic)
                table[0, here, junction] = divergence(logits, final_log_p).cpu()
                table[1, here, junction] = in_top_k.gather(1, logits.topk(k).indices).double().mean(1).cpu()
                table[2, here, junction] = logits.argmax(1).cpu()
                tell((start + len(final) * (junction + 1) / len(components)) / tokens)
        return components, table.numpy()

    ids, count = read_texts(model, texts), len(model.sublayer_order) if junctions == "sublayer" else layer_count(model)
    components, (kl, overlap, tops), text = measure_tokens(model, ids, batch_tokens, measure, count + 1)
    ends = prompt_ends(model, ids)
    last = np.cumsum([len(row) for row in ids]) - 1
    answers = tuple(token_texts(model, tops[at].astype(int)) for at in last[: len(ends)])
    return LogitLens(components, kl, overlap, text, k, norm, model.name, name, ends, answers)


def lens_answers(
    architecture: Architecture, activations: Activations, every: int = 1
) -> tuple[tuple[Component, ...], Int[np.ndarray, "junction token"], Float[np.ndarray, "junction token"]]:
    """Return the likeliest next token and its probability, after the embedding and after every few layers of a pass.

    The last row is the model's own answer. Call it inside `inference_mode_for`.
    """
    ends = [(Component("layer", architecture.sublayers[-1].layer), activations.final)]
    if architecture.has_prefixes:  # otherwise only the model's own answer is meaningful
        ends = layer_ends(architecture, activations)
    kept = [ends[n] for n in sorted({0, *range(len(ends) - 1, 0, -every)})]
    ids, probabilities = [], []
    step = max(1, LOGITS // architecture.outputs)
    for _, stream in kept:
        logits = [read_out(architecture, part, None) for part in stream.split(step)]
        tops = [part.max(1) for part in logits]
        ids.append(torch.cat([top.indices for top in tops]).cpu())
        sums = torch.cat([log_sum_exp(part) for part in logits])
        probabilities.append((torch.cat([top.values for top in tops]) - sums).exp().cpu())
    return tuple(component for component, _ in kept), torch.stack(ids).numpy(), torch.stack(probabilities).numpy()


def layer_ends(architecture: Architecture, activations: Activations) -> list[Junction]:
    """Return the last junction before all layers, and the last one of each layer."""
    junctions = list(_junctions(architecture, activations))
    places = [(component.layer, component.repeat) for component, _ in junctions]
    following = [*places[1:], None]
    return [junction for junction, here, after in zip(junctions, places, following, strict=True) if here != after]


def _junctions(architecture: Architecture, activations: Activations) -> Iterator[Junction]:
    """Yield every stream between sublayers; between attention and MLP only where one follows the other."""
    stream, last = activations.embed, len(activations.sublayer_outputs) - 1
    component = Component("embed")
    if activations.pos_embed is not None:
        stream, component = stream + activations.pos_embed, Component("pos_embed")
    yield component, stream
    for number, (found, repeat) in enumerate(zip(activations.sublayer_outputs, activations.repeats, strict=True)):
        stream = stream_after(activations, stream, number) + found.output
        here, following = found.sublayer, None if number == last else activations.sublayer_outputs[number + 1].sublayer
        pair = (here.kind, here.layer, *((following.kind, following.layer) if following else ()))
        if not (architecture.parallel and pair == ("attn", here.layer, "mlp", here.layer)):
            # The sum rounds in another order than the model did; the last junction is the model's own.
            is_last = following is None and activations.stream_bias is None
            yield Component(here.kind, here.layer, repeat=repeat), activations.final if is_last else stream
    if activations.stream_bias is not None:
        yield Component("stream_bias"), activations.final


def read_out(
    architecture: Architecture, stream: Float[Tensor, "n d"], statistic: Float[Tensor, " n"] | None
) -> Float[Tensor, "n v"]:
    """Compute the logits of stream vectors, normalized by a given statistic or by their own."""
    norm = architecture.norm
    divisor = norm.statistic(stream) if statistic is None else statistic
    centered = stream - stream.mean(-1, keepdim=True) if norm.centered else stream
    normed = centered / divisor[:, None] * norm.gain.to(stream)
    if norm.bias is not None:
        normed = normed + norm.bias.to(stream)
    return logits_of(architecture, normed.to(architecture.dtype))


def _translated(name: str, translate: Translate) -> Read:
    """Read the ends of layers through a lens; the final stream needs no translator."""

    def read(architecture: Architecture, activations: Activations) -> Iterator[Junction]:
        *ends, last = layer_ends(architecture, activations)
        for done, (component, stream) in enumerate(ends):
            shape = tuple(stream.shape)
            try:
                found = translate(stream, done)
            except Exception as error:  # of a user's function or a library's module
                reason = f"{type(error).__name__}, {error}"
                raise InputError(f"{name} cannot translate a stream {shape} after {done} layers: {reason}.") from error
            if found is None:
                continue
            if not isinstance(found, Tensor) or found.shape != stream.shape or not bool(found.isfinite().all()):
                raise InputError(f"{name} must map streams {shape} to finite ones of the same shape.")
            yield component, found.to(stream)
        yield last

    return read


def read_translators(lens: Any, layers: int, width: int) -> tuple[str, Translate]:
    """Return the name and translators of a lens for a model of some layers and width. Raises InputError for others."""
    if isinstance(lens, str | os.PathLike):
        path = Path(lens)
        if (path / "config.json").is_file() and (path / "params.pt").is_file():
            return _tuned_lens(path, layers, width)
        if not path.is_file():
            raise InputError(f"lens={shown(str(lens))} is neither a folder with config.json and params.pt nor a file.")
        try:
            from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

            lens = JacobianLens.load(str(path))
        except Exception as error:  # of unpickling, and of another TransformerLens
            raise InputError(f"{str(path)!r} is not a Jacobian lens that can be read ({error}).") from error
    if hasattr(lens, "transport") and hasattr(lens, "source_layers"):
        own, fitted = getattr(lens, "d_model", width), set(lens.source_layers)
        last = max(fitted, default=0)
        if own != width or last >= layers - 1:
            raise InputError(f"this lens is for a stream of {own} and layers to {last}, not {width} and {layers - 2}.")
        return "Jacobian lens", lambda x, done: lens.transport(x, done - 1) if done - 1 in fitted else None
    if not callable(lens) or isinstance(lens, Model):
        kinds = "the folder of a tuned lens, a JacobianLens or its .pt file, or a function of the stream and its layers"
        raise InputError(f"lens={shown(lens)} must be {kinds}.")
    return getattr(lens, "__name__", type(lens).__name__), lens


def _tuned_lens(path: Path, layers: int, width: int) -> tuple[str, Translate]:
    """Read the format of the tuned-lens library: x + W x + b, with one (W, b) for each stream before the final one."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        state = torch.load(path / "params.pt", map_location="cpu", weights_only=True)
        weights = [state[f"{done}.weight"] for done in range(config["num_hidden_layers"])]
        biases = [state.get(f"{done}.bias", torch.zeros(())) for done in range(len(weights))]
    except Exception as error:  # a damaged archive raises whatever its pieces do
        raise InputError(f"{str(path)!r} is not a tuned lens that can be read ({error}).") from error
    if len(weights) != layers or any(tuple(weight.shape) != (width, width) for weight in weights):
        of = f"{len(weights)} layers and a stream of {weights[0].shape[-1] if weights else 0}"
        raise InputError(f"the tuned lens {path.name!r} is for {of}, and this model has {layers} and {width}.")

    def translate(stream: Tensor, done: int) -> Tensor:
        weight, bias = (x[done].to(stream.device).float() for x in (weights, biases))
        return stream + stream.float() @ weight.T + bias

    return f"tuned lens {path.name}", translate
