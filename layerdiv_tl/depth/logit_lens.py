"""The logit lens: the model's prediction if it stopped at a junction, compared with its final one.

A lens may first translate the stream after each layer: tuned lenses, TransformerLens' Jacobian lens, or a function.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attribution.carried import carried
from ..components import Component
from ..errors import InputError
from ..model.batches import pad
from ..model.frozen import upcast
from ..model.load import Model, as_model
from ..model.probe import transformed
from ..model.prompts import Ids, prompt_ends, token_texts
from ..results import Plot
from .engine import cross_entropy, divergence, layer_count, log_softmax
from .inputs import check_choices, read_texts
from .patched_forward import LOGITS, PatchedForward
from .readings import Readings, read_tokens, token_places

# The number of likeliest tokens that are compared, as published.
TOP = 5
NormAt = Literal["frozen", "recomputed"]
# A component, and the stream after it.
Junction = tuple[Component, Float[Tensor, "token d"]]
# Maps the stream after some layers to the basis of the final stream; None where there is no translator.
Translate = Callable[[Float[Tensor, "token d"], int], Float[Tensor, "token d"] | None]


class LogitLens(Readings):
    """Distance of every junction's prediction from the final one, at every token.

    `components` name the junctions, each by the component added last. `values`: `kl`, KL(junction ‖ final) in nats; and
    `topk_overlap`, the share of its five likeliest tokens that are among the final prediction's. `frame()` averages
    each text's mean over tokens, as the released code does; of one text it has the likeliest next token at its end, too
    (`top_token`).
    """

    by_text = True
    shares = ("topk_overlap",)
    lead: ClassVar = "kl"
    figures: ClassVar = {
        "bars": Plot(
            "Prediction at every junction",
            "The KL divergence from the last prediction, and the overlap of the likeliest tokens with its own.",
            "shapes.bars",
            "frame",
            {"columns": ("kl", "topk_overlap")},
        )
    }


def logit_lens(
    model: Any,
    texts: Any,
    norm: NormAt = "recomputed",
    *,
    lens: Any = None,
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
        lens: A translator for each layer, applied before the final norm, with norm="recomputed"; junctions are then not
            the ends of sublayers but of layers, those that it has one for, and the final stream. It is the folder of a
            tuned lens (config.json and params.pt, Belrose et al., arXiv 2303.08112), TransformerLens' `JacobianLens` or
            its .pt file, or a function `(stream [token, d], layers done) → [token, d]`, None for no translator.

    Makes one pass over every text, and one unembedding of every token for each junction. Raises InputError for input
    that cannot be used.

    >>> import layerdiv_tl as ld
    >>> frame = ld.depth.logit_lens("zoo/d1", [[1, 2, 3], [4, 5]]).frame()
    >>> frame.component.tolist(), float(frame.kl.iloc[-1]), float(frame.topk_overlap.iloc[-1])
    (['embed', 'L0.attn', 'L0.mlp'], 0.0, 1.0)
    """
    check_choices(norm=(norm, NormAt))
    model = as_model(model)
    path = model.path
    name, translate = "logit lens", None
    if lens is not None:
        if norm == "frozen" or any(number for _, number in path.calls):
            raise InputError(
                "a lens translates the ends of layers that run once, at their own norm: norm='recomputed'."
            )
        name, translate = read_translators(lens, layer_count(model), path.width)

    read = _recomputed_pass if norm == "recomputed" else _frozen_pass
    if norm == "frozen":  # it gives the logits of all its tokens at once
        batch_tokens = min(batch_tokens or model.batch_tokens, max(1, LOGITS // path.outputs))

    def measure(rows: list[Ids]) -> tuple[tuple[Component, ...], np.ndarray]:
        one = read(model, rows)
        if translate is not None:
            one.junctions = list(_translated(name, translate, layer_ends(one.junctions)))
        return tuple(component for component, _ in one.junctions), _compare(one, path.outputs)

    ids = read_texts(model, texts)
    components, (kl, overlap, tops, _) = read_tokens(model, ids, batch_tokens, measure)
    columns = {"top_token": tuple(token_texts(model, tops[-1].astype(int)))} if len(ids) == 1 else {}
    return LogitLens(
        components=components,
        values={"kl": kl, "topk_overlap": overlap},
        places=token_places(model, ids),
        units={"kl": "nats", "topk_overlap": f"share of the top {TOP}"},
        model=model.name,
        settings={"norm": norm, "lens": name},
        columns=columns,
        prompt_ends=prompt_ends(model, ids),
    )


@dataclass(eq=False)
class _Pass:
    """A pass to be read out: its junctions, the logits of vectors there, and the model's own logits of some tokens."""

    junctions: list[Junction]
    read: Callable[[Tensor], Tensor]
    final: Callable[[slice], Tensor]


def _recomputed_pass(model: Model, rows: Sequence[Ids]) -> _Pass:
    """The streams between sublayers, read out by the model's own norm."""
    clean = PatchedForward(model, rows)
    final = clean.streams[-1][clean.tokens]
    return _Pass(_junctions(clean), clean.logits, lambda some: clean.logits(final[some]))


def _frozen_pass(model: Model, rows: Sequence[Ids]) -> _Pass:
    """The sums of writes as they reach the unembedding, whatever they pass; the path's biases are in all of them."""
    path, (ids, mask) = model.path, pad(rows)
    row, position = mask.nonzero(as_tuple=True)
    seen = path.record(ids, mask, row, position)
    if any(bool(x.any()) for found in seen.edits.values() for x in found):
        raise InputError(f"hooks on the stream of {model.name} add what no junction holds: remove them.")
    writers = {component: writer for (writer, _), component in zip(seen.calls, seen.components(), strict=True)}
    writes: list[Junction] = []
    stream = torch.zeros(())
    for components, vectors in carried(path, seen, "sublayer"):
        for component, vector in zip(components, vectors[..., :-1] / path.factor, strict=True):
            if component in writers:
                writes.append((component, vector))
            else:  # biases, which are in all junctions
                stream = stream + vector
    junctions: list[Junction] = []
    for component, vector in writes:
        stream = stream + vector
        if not writers[component].is_partial:
            junctions.append((component, stream))
    weight, bias = path.unembed_rows(None)
    weight = upcast(weight)

    def read(normed: Tensor) -> Tensor:
        unembedded = normed.to(weight) @ weight.T
        if bias is not None:
            unembedded = unembedded + bias.to(unembedded)
        return transformed(unembedded, path.factor, path.soft_cap)

    logits = seen.logits
    assert logits is not None
    return _Pass(junctions, read, lambda some: upcast(logits[some]))


def _compare(one: _Pass, outputs: int) -> Float[np.ndarray, "4 token junction"]:
    """KL, overlap of the top k, likeliest token and its probability; the last junction is the model's own answer."""
    tokens, count, k = len(one.junctions[0][1]), len(one.junctions), min(TOP, outputs)
    table = torch.empty(4, tokens, count, dtype=torch.float64)
    for start in range(0, tokens, step := max(1, LOGITS // outputs)):
        final = one.final(slice(start, start + step))
        here = slice(start, start + len(final))
        final_log_p = log_softmax(final)
        in_top_k = torch.zeros_like(final, dtype=torch.bool).scatter_(1, final.topk(k).indices, True)
        for number, (_, stream) in enumerate(one.junctions):
            logits = final if number == count - 1 else one.read(stream[here])
            table[0, here, number] = divergence(logits, final_log_p).cpu()
            table[1, here, number] = in_top_k.gather(1, logits.topk(k).indices).double().mean(1).cpu()
            top = logits.max(1)
            table[2, here, number] = top.indices.cpu()
            table[3, here, number] = (-cross_entropy(logits, top.indices)).exp().cpu()
    return table.numpy()


def lens_answers(
    model: Model, ids: Ids, every: int = 1
) -> tuple[tuple[Component, ...], Int[np.ndarray, "junction token"], Float[np.ndarray, "junction token"]]:
    """Return the likeliest next token and its probability, after the embedding and after every few layers of a text.

    The last row is the model's own answer; the only one where its stream is not only added to. Call it inside
    `path.session()`.
    """
    try:
        one = _recomputed_pass(model, [ids])
        ends = layer_ends(one.junctions)
    except InputError:
        one = _frozen_pass(model, [ids])
        ends = layer_ends(one.junctions)[-1:]
    one.junctions = [ends[number] for number in sorted({0, *range(len(ends) - 1, 0, -every)})]
    table = _compare(one, model.path.outputs)
    return tuple(component for component, _ in one.junctions), table[2].T.astype(np.int64), table[3].T


def layer_ends(junctions: Sequence[Junction]) -> list[Junction]:
    """Return the last junction before all layers, and the last one of each layer."""
    places = [(component.layer, component.repeat) for component, _ in junctions]
    following = [*places[1:], None]
    return [junction for junction, here, after in zip(junctions, places, following, strict=True) if here != after]


def _junctions(clean: PatchedForward) -> list[Junction]:
    """Every stream between sublayers; none between two that read the same stream."""
    tokens = clean.tokens
    embedded = [writer.component for writer in clean.path.writers if writer.block is None]
    found = [(embedded[-1], upcast(clean.streams[0][tokens]))]
    for block in range(len(clean.layers)):
        stream = upcast(clean.streams[block][tokens])
        for writer in clean.writers(block):
            stream = stream + upcast(clean.outputs[block, writer.kind][tokens])
            if not writer.is_partial:
                found.append((clean.component(writer.kind, block), stream))
    return found


def _translated(name: str, translate: Translate, junctions: Sequence[Junction]) -> Iterator[Junction]:
    """Read the ends of layers through a lens; the final stream needs no translator."""
    *ends, last = junctions
    for done, (component, stream) in enumerate(ends):
        found = translate(stream, done)
        if found is None:
            continue
        if found.shape != stream.shape or not bool(found.isfinite().all()):
            raise InputError(f"{name} must map streams {tuple(stream.shape)} to finite ones of the same shape.")
        yield component, found.to(stream)
    yield last


def read_translators(lens: Any, layers: int, width: int) -> tuple[str, Translate]:
    """Return the name and translators of a lens for a model of some layers and width. Raises InputError for others."""
    if isinstance(lens, str | os.PathLike):
        path = Path(lens)
        if (path / "config.json").is_file() and (path / "params.pt").is_file():
            return _tuned_lens(path, layers, width)
        from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

        lens = JacobianLens.load(str(path))
    if hasattr(lens, "transport") and hasattr(lens, "source_layers"):
        own, fitted = getattr(lens, "d_model", width), set(lens.source_layers)
        last = max(fitted, default=0)
        if own != width or last >= layers - 1:
            raise InputError(f"this lens is for a stream of {own} and layers to {last}, not {width} and {layers - 2}.")
        return "Jacobian lens", lambda x, done: lens.transport(x, done - 1) if done - 1 in fitted else None
    return getattr(lens, "__name__", type(lens).__name__), lens


def _tuned_lens(path: Path, layers: int, width: int) -> tuple[str, Translate]:
    """Read the format of the tuned-lens library: x + W x + b, with one (W, b) for each stream before the final one."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    state = torch.load(path / "params.pt", map_location="cpu", weights_only=True)
    weights = [state[f"{done}.weight"] for done in range(config["num_hidden_layers"])]
    biases = [state.get(f"{done}.bias", torch.zeros(())) for done in range(len(weights))]
    if len(weights) != layers or any(tuple(weight.shape) != (width, width) for weight in weights):
        of = f"{len(weights)} layers and a stream of {weights[0].shape[-1] if weights else 0}"
        raise InputError(f"the tuned lens {path.name!r} is for {of}, and this model has {layers} and {width}.")

    def translate(stream: Tensor, done: int) -> Tensor:
        weight, bias = (x[done].to(stream.device).float() for x in (weights, biases))
        return stream + stream.float() @ weight.T + bias

    return f"tuned lens {path.name}", translate
