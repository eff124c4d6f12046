"""Head contributions by source token: attention × value, on its way to a logit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import check_memory
from .._progress import progress
from ..components import Component, component_columns, labels_of, positions
from ..errors import InputError
from ..model.architecture import Sublayer
from ..model.attention import SourceValues, SourceWatch, check_same_answers, value_biases
from ..model.batches import batches, inference_mode_for, pad, require_local
from ..model.capture import Activations, answers
from ..model.forward_pass import locate_mismatch, run
from ..model.load import Model, as_model
from ..model.prompts import token_texts
from ..model.reconstruction import SAME_ANSWERS, tolerance
from ..results import Result
from .blocks import Block, StreamWalk
from .directions import Directions
from .passes import OptionReader
from .question import read_question
from .vocabulary import vocabulary_of

# The tolerance for the gap between parts and their head, relative to max Σ|parts|; half precisions have their own.
_EXACT = 1e-6
_INSTEAD = "take fewer prompts, options or heads, or a shorter text"


@dataclass(frozen=True, eq=False)
class SourceTokens(Result):
    """Direct logit contributions of heads, split by source token: Σ over sources + value bias = the head's own.

    Attributes:
        values: float64 `[example, head, source, option]`, in logits: attention weight × value (without its bias), on
            its way to the logits. Sources are the prompt's tokens; those after the position read have 0.
        value_bias: float64 `[example, head, option]`: Σ weights × the attention's value for an input of zeros. Weights
            that sum to less than 1 (sinks) scale it down accordingly.
        output_bias, biases: float64 `[example, bias, option]`: the constants of the attentions' output projections and
            of the norms after them, which belong to no head, and these components.
        weights: float64 `[example, head, source]`, the attention pattern's row at the position read.
        heads: The heads, in stream order.
        option_ids, options: Token ids `[example, option]` and the texts: K of them, or K for every example.
        tokens: The tokens of each prompt, as texts.
        token_ids, lengths, positions: The prompts' ids concatenated, their lengths, and the position read in each.
        identity_gap: max |Σ sources + value bias − head| / max (Σ|sources| + |value bias|) over examples, heads and
            options; the heads are those of the same pass, read before the output projection.
        logit_gap: max |Σ components − logits| / max Σ|components| of that pass, as `Contributions.identity_gap`.
    """

    values: Float[np.ndarray, "example head source option"]
    value_bias: Float[np.ndarray, "example head option"]
    output_bias: Float[np.ndarray, "example bias option"]
    weights: Float[np.ndarray, "example head source"]
    heads: tuple[Component, ...]
    biases: tuple[Component, ...]
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
        return self.values.sum(2) + self.value_bias

    def option_texts(self, example: int) -> tuple[str, ...]:
        """The options of an example."""
        return self.options if isinstance(self.options[0], str) else self.options[example]

    figures: ClassVar = {"map": "attribution.source_map", "tokens": "attribution.source_bars"}

    def plot(self, kind: Literal["map", "tokens"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per example, head, part and option: attention weight and contribution in logits.

        Parts of a head are its source tokens up to the position read (`part` "token", with `source` and `source_token`)
        and, where there is one, its "value bias"; an attention's "output bias" has a row of its own component.
        `contribution_centered` subtracts the part's mean over the options, where there are several.
        """
        tables, k = [], self.values.shape[3]
        for example, end in enumerate(self.positions + 1):
            none, texts = np.array([None]), np.array(self.tokens[example][:end], dtype=object)
            shown, bias = self.weights[example, :, :end], self.value_bias[example, :, None]
            parts = [("token", self.heads, np.arange(end), texts, self.values[example, :, :end], shown)]
            if self.value_bias.any():
                parts.append(("value bias", self.heads, none, none, bias, shown.sum(1, keepdims=True)))
            if self.biases:
                unweighted = np.full((len(self.biases), 1), np.nan)
                parts.append(("output bias", self.biases, none, none, self.output_bias[example, :, None], unweighted))
            options = np.array(self.option_texts(example), dtype=object)
            for part, components, source, token, values, weights in parts:
                rows, n = len(components), len(source)
                columns = {"example": example} | component_columns(components, np.repeat(np.arange(rows), n * k))
                columns |= {"part": part, "source": pd.array(np.tile(np.repeat(source, k), rows), dtype="Int64")}
                columns |= {"source_token": np.tile(np.repeat(token, k), rows), "weight": np.repeat(weights, k)}
                columns |= {"option_index": np.tile(np.arange(k), rows * n), "option": np.tile(options, rows * n)}
                columns |= {"contribution": values.reshape(-1)}
                if k > 1:
                    columns |= {"contribution_centered": (values - values.mean(2, keepdims=True)).reshape(-1)}
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
    follows the head's path to the logits (a norm after the projection, a gate, the final norm and the unembedding, at
    their statistics of the pass), so the terms sum to the head's direct contribution. Weights and values are the
    factors that the model itself multiplies: grouped or latent keys and values, windows, sinks. The split shows which
    tokens' values were *written*, with the attention pattern held fixed. It does not show why the head attends there,
    or which other tokens a value comes from, as the stream has mixed them.

    Args:
        model: A `Model`, or anything `load_model` takes. Attention is computed step by step ("eager") for the pass, as
            in `attention_patterns`; a TransformerBridge is read as it is.
        prompts, position, attention_mask: As in `contributions`; or a `Task`, which also provides the options.
        options: K answers of one token each, or one list of K per prompt: texts exactly as written (" Paris"), or ids.
        heads: Labels or components (`"L3.H5"`), or None for all. Recurrent and linear-attention sublayers have no
            source tokens, and are left out.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.

    Raises InputError for unusable input, for heads that are no such product (a difference of two patterns, values that
    depend on the query position), and where parts do not sum to their head.

    >>> import layerdiv_tl as ld
    >>> s = ld.source_tokens("zoo/d4", [1, 2, 3], options=[7, 9])
    >>> s.values.shape, bool(s.identity_gap < 1e-6)
    ((1, 8, 3, 2), True)
    >>> heads = ld.contributions("zoo/d4", [1, 2, 3], [7, 9], unit="head").select(kind="head")
    >>> bool(abs(s.contributions - heads.values).max() < 1e-6)
    True
    """
    model = as_model(model)
    architecture, batch_tokens = model.architecture, model.checked_batch_tokens(batch_tokens)
    require_local(architecture)
    question = read_question(model, prompts, options, position, attention_mask=attention_mask, single=True)
    ids, at, option_ids = question.ids, question.at, question.option_ids[:, :, 0]
    wanted = _parse_heads(model, heads)
    shape = (len(ids), len(wanted or model.components("head")), max(map(len, ids)), option_ids.shape[1])
    needed = f"{shape[0]} prompts × {shape[1]} heads × {shape[2]} tokens × {shape[3]} options"
    check_memory(8 * math.prod(shape[:3]) * (2 * shape[3] + 1), needed, _INSTEAD)
    arrays: dict[str, np.ndarray] = {}
    reader, longest, gap, size = OptionReader(architecture, option_ids, "head"), max(map(len, ids)), 0.0, 0.0
    with inference_mode_for(architecture), progress(model.name, len(ids), "prompt") as advance:
        biases = value_biases(architecture)
        for rows in batches([len(row) for row in ids], batch_tokens, architecture.length_switch):
            (tokens, mask), places = pad([ids[row] for row in rows]), torch.as_tensor(at[rows])
            watch = SourceWatch(architecture, tokens)
            with watch.watching():
                done = run(architecture, tokens, mask, "head", places, interventions=True)
            if not arrays:
                check_same_answers(model, done.logits, answers(architecture, tokens, mask, places)[1])
            whole = reader.read(done, np.array(rows))
            along, names, parts = reader.directions.at(torch.as_tensor(rows)), list[Component](), []
            for attention in heads_of_pass(model, done, watch, biases):
                some = [i for i, head in enumerate(attention.heads) if wanted is None or head in wanted]
                names += [attention.heads[i] for i in some]
                if some:
                    parts.append((*attention.read(along, places, some), attention.weights(places)[:, some]))
            values, value_bias, weights = (torch.cat(x, 1) for x in zip(*parts, strict=True))
            # Compared with the heads of `contributions` for the same pass.
            split = torch.as_tensor(whole.values[:, [whole.components.index(head) for head in names]])
            gap = max(gap, float((values.sum(2) + value_bias - split).abs().max()))
            size = max(size, float((values.abs().sum(2) + value_bias.abs()).max()))
            biased = [i for i, c in enumerate(whole.components) if c.kind == "attn_bias"]
            found = {"values": values.numpy(), "value_bias": value_bias.numpy(), "output_bias": whole.values[:, biased]}
            for name, x in (found | {"weights": weights.numpy()}).items():
                if name not in arrays:  # sources come third, up to the longest prompt's
                    third = longest if name in ("values", "weights") else x.shape[2]
                    arrays[name] = np.zeros((len(ids), x.shape[1], third, *x.shape[3:]))
                arrays[name][rows, :, : x.shape[2]] = x
            del done, watch, attention, parts  # or they would be held during the next pass
            advance(len(rows))
    reader.error.check(model.name, "head", lambda: locate_mismatch(architecture, ids[0]))
    gap /= max(size, 1e-300)
    if not gap <= tolerance(architecture.dtype, _EXACT):  # NaN too
        raise InputError(
            f"the heads of {model.name} are not the sum of weight × value over source tokens (off by {gap:.1e} of "
            "Σ|parts|): something between the two is hooked, or rounds its input."
        )
    fields: dict[str, Any] = arrays | question.fields(labels=False)
    return SourceTokens(
        **fields,
        heads=tuple(names),
        biases=tuple(whole.components[i] for i in biased),
        tokens=tuple(token_texts(model, row) for row in ids),
        identity_gap=gap,
        logit_gap=reader.error.identity_gap,
        model=model.name,
    )


@dataclass(frozen=True, eq=False)
class HeadSources:
    """The heads of one run of one attention in a pass, by source token, and their path to the logits.

    `bias` `[head, width]` is the attention's value for an input of zeros; `divisor` `[position]` is the divisor of
    their contributions, σ included.
    """

    heads: tuple[Component, ...]
    block: Block
    factors: SourceValues
    bias: Float[Tensor, "head width"]
    divisor: Float[Tensor, " position"]

    def weights(self, at: Int[Tensor, " n"]) -> Float[Tensor, "n head source"]:
        """The pattern's rows at one position of each row, or at several positions of the only row."""
        return _shown(self.factors.weights, at)

    def read(
        self, along: Directions, at: Int[Tensor, " n"], some: Sequence[int]
    ) -> tuple[Float[Tensor, "n head source column"], Float[Tensor, "n head column"]]:
        """Multiply the values of each source, and their bias, with each position's directions, for some heads."""
        before = along.before(self.block)
        before = (before if along.index is None else before[along.index])[:, :, some].double().cpu()
        if self.factors.gate is not None:
            before = before * _shown(self.factors.gate, at)[:, None, some]
        # The divisor of the position read in each row, or of all positions of the only row.
        divisor = self.divisor if len(self.divisor) == len(at) else self.divisor[at]
        before = before / divisor[:, None, None, None]
        weights, bias = self.weights(at)[:, some, :, None], self.bias[some]
        values = self.factors.values[:, some].double().cpu() - bias[:, None]  # one row's are those of all positions
        of_bias = torch.einsum("hw,nohw->nho", bias, before)
        return torch.einsum("nhsw,nohw->nhso", values, before) * weights, of_bias * weights.sum(2)


def _shown(x: Float[Tensor, "row head token *rest"], at: Int[Tensor, " n"]) -> Float[Tensor, "n head *rest"]:
    """Numbers at one position of each row, or at several positions of the only row."""
    rows = torch.arange(len(at)) if len(x) > 1 else torch.zeros_like(at)
    return x[rows, :, at].double().cpu()


def heads_of_pass(
    model: Model, activations: Activations, watch: SourceWatch, biases: dict[Sublayer, Tensor | None]
) -> list[HeadSources]:
    """Get the heads of every run of every attention in a pass. Raises InputError if one cannot be split by source."""
    architecture = model.architecture
    attentions = {sublayer.layer: sublayer for sublayer in watch.sublayers}
    sigma, found = architecture.norm.statistic(activations.final.double()).cpu(), []
    for write in StreamWalk(architecture, "head").writes(activations):
        block, junction = write.blocks[0], write.junction
        if block.output_map is None or junction is None or junction.kind != "attn" or junction.layer not in attentions:
            continue
        key = attentions[junction.layer]
        factors = watch.seen[key][(junction.repeat or 1) - 1]
        if factors is None:
            raise InputError(
                f"{model.name} ({model.provenance['architecture']}) cannot be split by source token: the output of "
                f"the heads of {junction} is not attention weight × value (e.g. two patterns are subtracted, values "
                "depend on the query position, or a hook changes it)."
            )
        bias = biases[key]
        bias = torch.zeros(factors.values.shape[1], factors.values.shape[3]) if bias is None else bias
        divisor = sigma if block.divisor is None else sigma * block.divisor.cpu()
        found.append(HeadSources(tuple(block.components), block, factors, bias.double().cpu(), divisor))
    return found


class TextSources:
    """The heads of one text by source token; `asked` are ids `[token, position]`.

    Weights and values come from one more pass, which runs when the first head is requested.
    """

    def __init__(self, model: Model, ids: Sequence[int], asked: Int[np.ndarray, "token position"]) -> None:
        self.model, self.ids, self.asked = model, ids, asked

    @cached_property
    def _heads(self) -> dict[str, tuple[HeadSources, int]]:
        """Every head's attention, and its index there."""
        model, architecture = self.model, self.model.architecture
        count = sum(c.kind == "head" for c in model.components("head"))
        check_memory(8 * count * len(self.ids) ** 2, f"{count} heads × {len(self.ids)}² tokens", _INSTEAD)
        tokens, mask = pad([self.ids])
        with inference_mode_for(architecture):
            biases, watch = value_biases(architecture), SourceWatch(architecture, tokens)
            with watch.watching():
                done = run(architecture, tokens, mask, "head", interventions=True)
            attentions = heads_of_pass(model, done, watch, biases)
        return {head.label: (a, number) for a in attentions for number, head in enumerate(a.heads)}

    def split(
        self, places: Mapping[Component, Sequence[int]]
    ) -> Iterator[tuple[Component, Float[np.ndarray, "place source token"], Float[np.ndarray, "place token"]]]:
        """Yield each head, and the contributions of its sources' values and their bias to the requested tokens.

        `places` are each head's positions. Numbers are logits minus the mean over the vocabulary. Raises InputError for
        heads that are not of the form weights × values.
        """
        architecture, heads, vocabulary = self.model.architecture, self._heads, vocabulary_of(self.model)
        with inference_mode_for(architecture):
            for head, at in places.items():
                attention, number = heads[head.label]
                ids = torch.as_tensor(self.asked[:, at], device=architecture.device)
                along = Directions(vocabulary.rows(ids.flatten()).unflatten(0, ids.shape).transpose(0, 1))
                values, bias = attention.read(along, torch.as_tensor(at), [number])
                yield head, values[:, 0].numpy(), bias[:, 0].numpy()

    def gap(
        self, head: Component, values: np.ndarray, bias: np.ndarray, own: np.ndarray
    ) -> Float[np.ndarray, " place"]:
        """max |Σ sources + value bias − head| / max Σ|parts| over tokens. Raises InputError for more than rounding.

        `own` `[place, token]` is the head's contribution in a pass with the model's own attention implementation.
        """
        size = (np.abs(values).sum(1) + np.abs(bias)).max(1)
        gap = np.abs(values.sum(1) + bias - own).max(1) / np.maximum(size, 1e-30)
        if not (gap <= tolerance(self.model.architecture.dtype, SAME_ANSWERS)).all():  # NaN too
            raise InputError(
                f"{self.model.name} gives other head outputs if attention is computed step by step ({head.label} is "
                f"off by {gap.max():.1e} of Σ|parts|): give one loaded with attn_implementation='eager'."
            )
        return gap


def _parse_heads(model: Model, heads: Any) -> set[Component] | None:
    """Parse the heads to keep. Raises InputError for labels that name none, and for a model without any."""
    every = [c for c in model.components("head") if c.kind == "head"]
    if not every:
        raise InputError(f"{model.name} has no attention heads, so nothing that it writes has source tokens.")
    if heads is None:
        return None
    return {every[positions(every, label=label)[0]] for label in labels_of("heads", heads)}
