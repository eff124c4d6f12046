"""Head contributions by source token: attention × value, on its way to a logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import check_memory, whole_number
from .._progress import progress
from ..components import Component, component_columns, labels_of, positions
from ..errors import InputError
from ..model.attention import check_same_answers, eager, heads_of, patterns_size
from ..model.batches import batches, pad
from ..model.frozen import SAME_ANSWERS, tolerance
from ..model.load import Model, as_model
from ..model.prompts import token_texts
from ..model.source_values import Factors, read_factors
from ..model.units import CustomUnit, Parts, cut_of, split
from ..model.writers import Writer
from ..results import Plot, Result
from .question import read_question
from .reading import Gathered, Reads, gather

# The tolerance for the gap between parts and their head, relative to max Σ|parts|; half precisions have their own.
_EXACT = 1e-6
_INSTEAD = "take fewer prompts, options or heads, or a shorter text"
T = TypeVar("T")


def _part_frame(sources: SourceTokens, example: int = 0, option: int = 0) -> pd.DataFrame:
    """One row per head and source token of an example: the contribution to an option minus the mean of the others."""
    frame = sources.frame()
    count = sources.values.shape[3]
    whole_number("example", example, 0, len(sources.values) - 1)
    whole_number("option", option, 0, count - 1)
    some = frame[(frame["example"] == example) & (frame["option_index"] == option)].copy()
    if count > 1:
        some["contribution"] = some["contribution_centered"] * (count / (count - 1))
    texts = sources.option_texts(example)
    some.attrs = frame.attrs | {"about": f"example {example}, to “{texts[option]}”"}
    return some


def _token_frame(sources: SourceTokens, example: int = 0, option: int = 0) -> pd.DataFrame:
    """One row per source token, as `component`: the sum over the heads."""
    frame = _part_frame(sources, example, option)
    sums = frame.groupby("source").agg(component=("source_token", "first"), contribution=("contribution", "sum"))
    sums.attrs = frame.attrs
    return sums.reset_index()


@dataclass(frozen=True, eq=False)
class SourceTokens(Result):
    """Direct logit contributions of heads, split by source token: the sum over sources is the head's own.

    Attributes:
        values: float64 `[example, head, source, option]`, in logits: weight × value on its way to the logits.
            A bias of the values belongs to them; that of the output projection is no head's, and not in here. Sources
            are the prompt's tokens; those after the position read have 0.
        weights: float64 `[example, head, source]`, the attention pattern's row at the position read.
        heads: The heads, in stream order.
        option_ids, options: Token ids `[example, option]` and the texts: K of them, or K for every example.
        tokens: The tokens of each prompt, as texts.
        token_ids, lengths, positions: The prompts' ids concatenated, their lengths, and the position read in each.
        identity_gap: max |Σ sources − head| / max Σ|sources| over examples, heads and options; the heads are those of
            `unit="head"` in the same pass.
        logit_gap: max |Σ components − logits| / max Σ|components| of that pass, as `Contributions.identity_gap`.
    """

    values: Float[np.ndarray, "example head source option"]
    weights: Float[np.ndarray, "example head source"]
    heads: tuple[Component, ...]
    option_ids: Int[np.ndarray, "example option"]
    options: tuple[Any, ...]
    tokens: tuple[tuple[str, ...], ...]
    token_ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " example"]
    positions: Int[np.ndarray, " example"]
    identity_gap: float
    logit_gap: float
    model: str

    @property
    def contributions(self) -> Float[np.ndarray, "example head option"]:
        """The heads' own direct contributions: the sum of their parts, in logits."""
        return self.values.sum(2)

    def option_texts(self, example: int) -> tuple[str, ...]:
        """The options of an example."""
        return self.options if isinstance(self.options[0], str) else self.options[example]

    figures: ClassVar = {
        "map": Plot(
            "Each head's contribution by source token",
            "A map head × source token (attention × value) to an option minus the mean of the others.",
            "shapes.heat",
            _part_frame,
            {"row": "component", "column": "source", "value": "contribution", "column_name": "source_token"},
        ),
        "tokens": Plot(
            "Contribution of each source token",
            "The sum over the heads here, to an option minus the mean of the others.",
            "shapes.bars",
            _token_frame,
            {"columns": ("contribution",)},
        ),
    }

    def frame(self) -> pd.DataFrame:
        """One row per example, head, source token up to the position read, and option.

        With the attention weight and the contribution in logits. `contribution_centered` subtracts the part's mean over
        the options, where there are several.
        """
        count, k = len(self.heads), self.values.shape[3]
        tables = []
        for example, end in enumerate(self.positions + 1):
            values = self.values[example, :, :end]
            texts = np.array(self.tokens[example][:end], dtype=object)
            options = np.array(self.option_texts(example), dtype=object)
            columns = {"example": example} | component_columns(self.heads, np.repeat(np.arange(count), end * k))
            columns["source"] = np.tile(np.repeat(np.arange(end), k), count)
            columns["source_token"] = np.tile(np.repeat(texts, k), count)
            columns["weight"] = np.repeat(self.weights[example, :, :end], k)
            columns["option_index"] = np.tile(np.arange(k), count * end)
            columns["option"] = np.tile(options, count * end)
            columns["contribution"] = values.reshape(-1)
            if k > 1:
                columns["contribution_centered"] = (values - values.mean(2, keepdims=True)).reshape(-1)
            tables.append(pd.DataFrame(columns))
        frame = pd.concat(tables, ignore_index=True)
        frame.attrs["units"] = {name: "logits" for name in frame.columns if name.startswith("contribution")}
        frame.attrs |= {"identity_gap": self.identity_gap, "logit_gap": self.logit_gap}
        return frame

    def __repr__(self) -> str:
        n, heads, sources, k = self.values.shape
        shape = f"{n} examples × {heads} heads × {sources} source tokens × {k} options"
        return f"SourceTokens({self.model}: {shape}; identity gap {self.identity_gap:.1e})"


def source_tokens(
    model: Any,
    prompts: Any,
    options: Any = None,
    heads: str | Component | Iterable[str | Component] | None = None,
    position: Any = "last",
    *,
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> SourceTokens:
    """Split the heads' direct logit contributions by source token (attention × value). Exact.

    A head's output at one token is Σ_source weight × value, mapped by its part of the output projection. Each term
    follows the head's path to the logits (gates, norms and the unembedding, at their values in the pass), so the terms
    sum to the head's direct contribution. One pass records the heads; in a second one, weights and values are the
    factors that the model itself multiplies: grouped or latent keys and values, windows, sinks. The split shows which
    tokens' values were *written*, with the attention pattern held fixed. It does not show why the head attends there,
    or which other tokens a value comes from, as the stream has mixed them.

    Args:
        model: A `Model`, or anything `load_model` takes. Attention is computed step by step ("eager") for the passes,
            as in `attention_patterns`; a TransformerBridge is read as it is.
        prompts, position, attention_mask: As in `contributions`; or a `Task`, which also provides the options.
        options: K answers of one token each, or one list of K per prompt: texts exactly as written (" Paris"), or ids;
            or `{name: vector}`, as in `contributions`.
        heads: Labels or components (`"L3.H5"`), or None for all. Recurrent and linear-attention sublayers have no
            source tokens, and are left out.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.

    Raises InputError for unusable input, for heads that are no such product (a difference of two patterns), and where
    parts do not sum to their head.

    >>> import layerdiv_tl as ld
    >>> s = ld.source_tokens("zoo/d4", [1, 2, 3], options=[7, 9])
    >>> s.values.shape, bool(s.identity_gap < 1e-6)
    ((1, 8, 3, 2), True)
    >>> heads = ld.contributions("zoo/d4", [1, 2, 3], [7, 9], unit="head").select(kind="head")
    >>> bool(abs(s.contributions - heads.values).max() < 1e-6)
    True
    """
    model = as_model(model)
    question = read_question(model, prompts, options, position, attention_mask=attention_mask, single=True)
    ids, at, option_ids = question.ids, question.at, question.option_ids[:, :, 0]
    kept = _chosen(heads_of(model), heads)
    lengths, k = [len(row) for row in ids], option_ids.shape[1]
    shape = (len(ids), len(kept), max(lengths))
    needed = f"{shape[0]} prompts × {shape[1]} heads × {shape[2]} tokens × {k} options"
    batch_tokens = batch_tokens or model.batch_tokens
    pattern = patterns_size(model, shape[2], max(batch_tokens, shape[2]))
    check_memory(8 * math.prod(shape) * (2 * k + 1) + pattern, needed, _INSTEAD)
    values, weights, own = np.zeros((*shape, k)), np.zeros(shape), np.zeros((shape[0], shape[1], k))
    logit_gap, logit_size = 0.0, 1e-300
    wanted = set(kept)

    def read(factors: Factors) -> tuple[Tensor, Tensor]:
        some = [number for number, head in enumerate(factors.heads) if head in wanted]
        return factors.contributions(slice(None), some), factors.patterns(some)

    with model.path.session(), progress(model.name, len(ids), "prompt"):
        for rows in batches(lengths, batch_tokens, model.path.length_switch):
            reads = Reads([ids[i] for i in rows], np.arange(len(rows)), at[rows], option_ids[rows], question.directions)
            found, of_attentions = _split(model, reads, lambda g: g[:k], read)
            parts, patterns = (torch.cat(x, -2).numpy() for x in zip(*of_attentions, strict=True))
            values[rows, :, : parts.shape[-1]] = np.moveaxis(parts, 0, -1)
            weights[rows, :, : parts.shape[-1]] = patterns
            own[rows] = found.arrays["values"][:, [head in wanted for head in found.components]]
            logit_gap, logit_size = max(logit_gap, found.gap), max(logit_size, found.size)
    gap = float(np.abs(values.sum(2) - own).max() / max(np.abs(values).sum(2).max(), 1e-300))
    if not gap <= tolerance(model.path.dtype, _EXACT):  # NaN too
        raise InputError(
            f"the heads of {model.name} are not the sum of weight × value over source tokens (off by {gap:.1e} of "
            "Σ|parts|): something between the two is hooked, or rounds its input."
        )
    return SourceTokens(
        values=values,
        weights=weights,
        heads=kept,
        tokens=tuple(token_texts(model, row) for row in ids),
        identity_gap=gap,
        logit_gap=logit_gap / logit_size,
        model=model.name,
        **question.fields(labels=False),
    )


class _Heads(CustomUnit):
    """`unit="head"`, which keeps the gradients `[K, n, t, d]` at what attentions write, some reads at a time."""

    name = "head"

    def __init__(self) -> None:
        self.gradients: dict[Component, list[Tensor]] = {}

    def cut_of(self, writer: Writer) -> str | None:
        return cut_of("head", writer)

    def split(self, writer: Writer, whole: Component, write: Tensor, received: Any, g: Tensor) -> list[Parts]:
        if writer.kind == "attn" and writer.heads:
            self.gradients.setdefault(whole, []).append(g)
        return split("head", writer, whole, write, received, g)


def _split(
    model: Model, reads: Reads, directions: Callable[[Tensor], Tensor], read: Callable[[Factors], T]
) -> tuple[Gathered, list[T]]:
    """Attribute the heads of a batch, and `read` the factors of each attention in a second run of it.

    `directions` picks from gradients of all targets' logits, and of their means over p and over the vocabulary. Raises
    InputError for a model that answers differently with step-by-step attention.
    """
    path, unit = model.path, _Heads()
    ids, mask = pad(reads.rows)
    at = torch.as_tensor(reads.row), torch.as_tensor(reads.position)
    with torch.inference_mode():
        plain = path.logits(ids, mask, at)[:, 0]
    with eager(model.root):
        seen = path.record(ids, mask, *at, unit.cut_of)
        assert seen.logits is not None
        check_same_answers(model, seen.logits, plain)
        found = gather(model, reads, unit, ids.numel(), seen)
        gradients = {whole: directions(torch.cat(parts, 1)) for whole, parts in unit.gradients.items()}
        return found, read_factors(model, ids, mask, *at, gradients, read)


class TextSources:
    """The heads of one text by source token; `asked` are ids `[token, position]`.

    Weights and values come from passes that run when the first head is requested.
    """

    def __init__(self, model: Model, ids: Sequence[int], asked: Int[np.ndarray, "token position"]) -> None:
        self.model, self.ids, self.asked = model, ids, asked

    @cached_property
    def _heads(self) -> dict[Component, tuple[Factors, int]]:
        """Every head's attention, and its index there."""
        model, count, k = self.model, len(self.ids), len(self.asked)
        if not model.path.by_token:
            raise InputError(
                f"{model.name} mixes tokens behind its heads: take ld.source_tokens, a position at a time."
            )
        heads = len(heads_of(model))
        needed = 8 * heads * count**2 + patterns_size(model, count, count)
        check_memory(needed, f"{heads} heads × {count}² tokens", _INSTEAD)
        reads = Reads([tuple(self.ids)], np.zeros(count, dtype=np.int64), np.arange(count), self.asked.T)
        with model.path.session():
            _, attentions = _split(model, reads, lambda g: g[:k] - g[k + 1 :], lambda factors: factors)
        return {head: (factors, number) for factors in attentions for number, head in enumerate(factors.heads)}

    def split(
        self, places: Mapping[Component, Sequence[int]]
    ) -> Iterator[tuple[Component, Float[np.ndarray, "place source token"]]]:
        """Yield each head, and the contributions of its sources to the requested tokens at its positions.

        Numbers are logits minus the mean over the vocabulary. Raises InputError for heads that are not of the form
        weights × values.
        """
        for head, at in places.items():
            factors, number = self._heads[head]
            values = factors.contributions(list(at), [number])[:, :, 0]
            yield head, np.moveaxis(values.numpy(), 0, -1)

    def gap(self, head: Component, values: np.ndarray, own: np.ndarray) -> Float[np.ndarray, " place"]:
        """max |Σ sources − head| / max Σ|sources| over tokens. Raises InputError for more than rounding.

        `own` `[place, token]` is the head's contribution in a pass with the model's own attention implementation.
        """
        size = np.abs(values).sum(1).max(1)
        gap = np.abs(values.sum(1) - own).max(1) / np.maximum(size, 1e-30)
        if not (gap <= tolerance(self.model.path.dtype, SAME_ANSWERS)).all():  # NaN too
            raise InputError(
                f"{self.model.name} gives other head outputs if attention is computed step by step ({head.label} is "
                f"off by {gap.max():.1e} of Σ|parts|): give one loaded with attn_implementation='eager'."
            )
        return gap


def _chosen(every: tuple[Component, ...], heads: Any) -> tuple[Component, ...]:
    """The heads to keep, in stream order. Raises InputError for labels that name none."""
    if heads is None:
        return every
    wanted = {positions(every, label=label)[0] for label in labels_of("heads", heads)}
    return tuple(every[i] for i in sorted(wanted))
