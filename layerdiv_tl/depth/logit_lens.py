"""What the model would answer if it stopped at a junction: the logit lens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, whole_number
from ..components import Component, component_columns
from ..errors import InputError
from ..model.architecture import Architecture
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run_all_positions
from ..model.load import load_model
from ..model.looped import after_loop_norm, to_final_stream
from ..model.patched_forward import LOGITS, logits_of
from ..results import Result
from .distributions import divergence, log_softmax
from .inputs import read_texts
from .token_stats import note, summarize

NormAt = Literal["frozen", "recomputed"]


@dataclass(frozen=True, eq=False, repr=False)
class LogitLens(Result):
    """How far the answer of every junction is from the last one's, at every token.

    components
        The junctions, each named by what was written last; those that the stream holds.
    kl
        `[token, junction]`: KL(junction ‖ last) in nats.
    overlap
        `[token, junction]`: which share of the k likeliest tokens is the same.
    text
        `[token]`, which text a token is from.
    k, norm
        As asked for.
    """

    components: tuple[Component, ...]
    kl: Float[np.ndarray, "token junction"]
    topk_overlap: Float[np.ndarray, "token junction"]
    text: Int[np.ndarray, " token"]
    k: int
    norm: str
    model: str

    def frame(self) -> pd.DataFrame:
        """One row per junction: means over texts of each text's mean over tokens, as the released code has them.

        Intervals (95 %) are over texts, quantiles and maxima over tokens.
        """
        columns: dict[str, Any] = component_columns(self.components)
        texts = np.unique(self.text)
        for name in ("kl", "topk_overlap"):
            values = getattr(self, name)
            each = np.stack([values[self.text == text].mean(0) for text in texts])
            mean = summarize(name, each, np.arange(len(texts)))
            ends = (name, f"{name}_low", f"{name}_high")
            columns |= summarize(name, values, self.text) | {end: mean[end] for end in ends}
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"kl": "nats", "topk_overlap": f"share of the top {self.k}"}
        frame.attrs["intervals"] = note(self.text)
        return frame


def logit_lens(
    model: Any, texts: Any, norm: NormAt = "recomputed", *, k: int = 5, batch_tokens: int | None = None
) -> LogitLens:
    """Read every junction out as if it were the last, and compare with what the model says.

    KL(junction ‖ last) and top-k overlap of Csordás et al. (arXiv 2505.13898), whose released code reads out the
    streams that enter the layers; the junctions between attention and MLP are in addition. Sums over the vocabulary
    are in float64: in float32, as there, a small divergence is off by up to 1e-2 of itself.

    model, texts
        As in `sizes`.
    norm
        Whose statistic the final norm divides by: the junction's own ("recomputed", as published), or the last
        one's ("frozen", by which components' contributions add up). Where a loop passes
        the final norm in every round, "recomputed" is what the model would say if it left the loop there.
    k
        How many of the likeliest tokens are compared.
    batch_tokens
        The most padded tokens in one forward pass; logits are formed for some tokens of one junction at a time.

    Every junction costs one unembedding of every token. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> frame = ld.depth.logit_lens(tiny, [[1, 2, 3], [4, 5]]).frame()
    >>> frame.component.tolist(), float(frame.kl.iloc[-1]), float(frame.topk_overlap.iloc[-1])
    (['pos_embed', 'L0.attn', 'L0.mlp'], 0.0, 1.0)
    """
    choice("norm", norm, get_args(NormAt))
    model = load_model(model)
    architecture = model.architecture
    k = whole_number("k", k, 1, architecture.outputs)
    ids = read_texts(model, texts)
    from tqdm.auto import tqdm

    names: tuple[Component, ...] = ()
    tables: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    with (
        inference_mode_for(architecture),
        tqdm(total=len(ids), desc=model.name, unit="text", delay=2, leave=False) as progress,
    ):
        for rows in batches(
            [len(r) for r in ids], model.checked_batch_tokens(batch_tokens), architecture.length_switch
        ):
            done = run_all_positions(architecture, *pad([ids[row] for row in rows]))
            done = to_final_stream(done, architecture) if norm == "frozen" else done
            here = tuple(name for name, _ in _junctions(architecture, done))
            if names and here != names:
                raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
            names = here
            tables.append(_compare(architecture, done, norm, k, len(names)))
            owners.append(np.repeat(rows, [len(ids[row]) for row in rows]))
            progress.update(len(rows))
    text = np.concatenate(owners)
    order = np.argsort(text, kind="stable")
    kl, overlap = np.concatenate(tables, 1)[:, order]
    return LogitLens(names, kl, overlap, text[order], k, norm, model.name)


def _junctions(architecture: Architecture, done: Activations) -> Iterator[tuple[Component, Float[Tensor, "token d"]]]:
    """Every point that the stream passes; between attention and MLP only where one follows the other."""
    stream, last = done.embed, len(done.sublayer_outputs) - 1
    name = Component("embed")
    if done.pos_embed is not None:
        stream, name = stream + done.pos_embed, Component("pos_embed")
    yield name, stream
    for number, (firing, repeat) in enumerate(zip(done.sublayer_outputs, done.repeats, strict=True)):
        stream = after_loop_norm(done, stream, number, architecture) + firing.output
        follows = done.sublayer_outputs[number + 1].sublayer if number < last else None
        beside = follows is not None and follows.layer == firing.sublayer.layer and firing.sublayer.kind == "attn"
        if not (architecture.parallel and beside and follows is not None and follows.kind == "mlp"):
            # The sum rounds in another order than the model did; the last junction is the model's own.
            yield (
                Component(firing.sublayer.kind, firing.sublayer.layer, repeat=repeat),
                done.final if follows is None else stream,
            )


def _compare(architecture: Architecture, done: Activations, norm: NormAt, k: int, count: int) -> np.ndarray:
    """`[kl and overlap, token, junction]` of one pass."""
    tokens = len(done.final)
    table = torch.empty(2, tokens, count, dtype=torch.float64)
    step = max(1, LOGITS // architecture.outputs)
    frozen = architecture.norm.statistic(done.final) if norm == "frozen" else None
    for start in range(0, tokens, step):
        some = slice(start, start + step)
        part = done.at_positions(some)
        statistic = None if frozen is None else frozen[some]
        final = _read_out(architecture, part.final, statistic)
        last, best = log_softmax(final), final.topk(k).indices
        likely = torch.zeros_like(final, dtype=torch.bool).scatter_(1, best, True)
        for junction, (_, stream) in enumerate(_junctions(architecture, part)):
            here = _read_out(architecture, stream, statistic)
            table[0, some, junction] = divergence(here, last).cpu()
            table[1, some, junction] = likely.gather(1, here.topk(k).indices).double().mean(1).cpu()
    return table.numpy()


def _read_out(
    architecture: Architecture, stream: Float[Tensor, "n d"], statistic: Float[Tensor, " n"] | None
) -> Float[Tensor, "n v"]:
    """The answers to stream vectors, normed by a given statistic or by their own."""
    norm = architecture.norm
    divisor = norm.statistic(stream) if statistic is None else statistic
    centered = stream - stream.mean(-1, keepdim=True) if norm.centered else stream
    normed = centered / divisor[:, None] * norm.gain.to(stream)
    if norm.bias is not None:
        normed = normed + norm.bias.to(stream)
    return logits_of(architecture, normed.to(architecture.dtype))
