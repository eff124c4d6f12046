"""Direct logit contributions: the components' terms, which sum to the logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from .._checks import choice, whole_number
from ..components import Component, Unit, component_columns, labels_of
from ..components import positions as component_positions
from ..errors import InputError
from ..model import tokenization
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import locate_mismatch, read_cache, run, tokens_and_mask
from ..model.load import Model, load_model
from ..results import Result
from .stream_writes import ALIKE
from .unembedding import BatchContributions, OptionReadout, read_out

if TYPE_CHECKING:
    import pandas as pd

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """Direct logit contributions u_i of every component to every option: Σ_i u_i = logits (Eq. 3).

    Attributes:
        values: float64 `[example, component, option]`, in logits; components in stream order.
        model_logits: float64 `[example, option]`, what the model returns, after any `soft_cap`. From a cache: what the
            model's own norm and unembedding make of the cached stream.
        option_ids, options: Token ids `[example, option]`, and the texts: K of them, or K for every example.
        token_ids, lengths, positions: The prompts' ids one after another, their lengths, and the position read in each.
        junction_scale, junctions, partial_junctions: float64 `[example, junction]`: the final norm's statistic of the
            stream after each junction's component, divided by that of the whole stream (the last is 1). Partial ones
            are sums that the stream never holds: an embedding whose positions are still to be added, an attention that
            is parallel to its MLP.
        identity_gap, absolute_gap: max |Σ u_i − logits| / max Σ|u_i| over examples and options, and the same in logits,
            of all components and before any soft-cap.
        complete, soft_cap: False for a sub-ensemble made by `select`, whose `logits` are its own sum; where the model
            caps its logits.
    """

    values: Float[np.ndarray, "example component option"]
    components: tuple[Component, ...]
    model_logits: Float[np.ndarray, "example option"]
    option_ids: Int[np.ndarray, "example option"]
    options: tuple
    token_ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " example"]
    positions: Int[np.ndarray, " example"]
    junction_scale: Float[np.ndarray, "example junction"]
    junctions: tuple[Component, ...]
    partial_junctions: Bool[np.ndarray, " junction"]
    identity_gap: float
    absolute_gap: float
    complete: bool
    soft_cap: float | None
    model: str
    unit: Unit

    @property
    def logits(self) -> Float[np.ndarray, "example option"]:
        """The sum over the components here, `[example, option]`; before a soft-cap where there is one."""
        return self.values.sum(1)

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each prompt."""
        return tuple(tuple(ids.tolist()) for ids in np.split(self.token_ids, np.cumsum(self.lengths)[:-1]))

    @property
    def shared_options(self) -> tuple[str, ...] | None:
        """The options' texts where all examples share them, else None."""
        return self.options if isinstance(self.options[0], str) else None

    def select(
        self,
        *,
        kind: str | Iterable[str] | None = None,
        layer: int | Iterable[int] | None = None,
        index: int | Iterable[int] | None = None,
        repeat: int | Iterable[int] | None = None,
        module: str | Iterable[str] | None = None,
        label: str | Iterable[str] | None = None,
    ) -> Contributions:
        """The sub-ensemble of the components that meet every given condition.

        Raises InputError where nothing is left. `c.select(kind="mlp", layer=range(4))`.
        """
        rows = component_positions(
            self.components, kind=kind, layer=layer, index=index, repeat=repeat, module=module, label=label
        )
        if rows == list(range(len(self.components))):
            return self
        kept = tuple(self.components[i] for i in rows)
        return replace(self, values=self.values[:, rows], components=kept, complete=False)

    def frame(self) -> pd.DataFrame:
        """One row per example, component and option: its contribution in logits."""
        import pandas as pd

        n, members, k = self.values.shape
        options = np.array(self.options).reshape(-1, 1, k)  # one row where all examples share them
        texts = np.broadcast_to(options, (n, members, k)).reshape(-1)
        frame = pd.DataFrame(
            {"example": np.repeat(np.arange(n), members * k)}
            | component_columns(self.components, np.tile(np.repeat(np.arange(members), k), n))
            | {"option": texts, "contribution": self.values.reshape(-1)}
        )
        frame.attrs["units"] = {"contribution": "logits"}
        frame.attrs["identity_gap"] = self.identity_gap
        return frame

    def __repr__(self) -> str:
        n, members, k = self.values.shape
        shape = f"{n} examples × {members} components × {k} options{'' if self.complete else ', a sub-ensemble'}"
        gaps = f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits"
        return f"{type(self).__name__}({self.model}: {shape}; {gaps})"


def contributions(
    model: Any,
    prompts: Any = None,
    options: Any = None,
    unit: Unit = "sublayer",
    position: Any = "last",
    components: str | Component | Iterable[str | Component] | None = None,
    batch_tokens: int | None = None,
    *,
    top: int | None = None,
    cache: Any = None,
    tokens: Any = None,
    attention_mask: Any = None,
) -> Contributions:
    """Direct logit contributions of a model's components to the logits of answer options (Eq. 2-3).

    u_i = W_U (gain · center(z_i)) / σ, with z_i what component i adds to the final residual stream and σ the final
    norm's statistic of the whole stream. `constant` is what the read-out adds by itself, `rounding` what a
    half-precision model loses at every addition. A layer that runs several times has rows for every repeat
    (`L3@2.attn`); where the stream passes the final norm between the rounds of a loop, each such norm multiplies what
    was written before it by gain / σ, at its own statistic.

    Args:
        model: A `Model`, or anything `load_model` takes.
        prompts: Texts, or lists of token ids, which are taken as they are. A TransformerBridge begins a text with a
            beginning-of-text token where Hugging Face's tokenizer does not.
        options: K answer tokens: strings exactly as written (" Yes" with its space) that are single tokens, or ids, or
            one list of K per prompt.
        unit: "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads, MLPs whole; "neuron": MLPs cut
            into neurons, attentions whole.
        position: Where the logits are read: "last", an int counted in each prompt's own tokens (negative from the end),
            or one int per prompt.
        components, top: Labels or components to keep, or how many: those whose contributions, centered over the
            options, are largest on average, which costs a second pass. None keeps all; all are computed in any case, to
            check the sum.
        batch_tokens: The most padded tokens in one forward pass; None is what is fast on the model's device.
        cache, tokens, attention_mask: Instead of prompts: activations cached through TransformerLens (names:
            `Model.hook_names(unit)`), the token ids `[row, token]` they belong to, and which of these are real. That
            they belong together is not checked.

    Raises InputError for input that cannot be used, for weights that give no finite number, and for a
    model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> c = ld.contributions(tiny, [[1, 2, 3], [4, 5]], options=[7, 9])
    >>> [component.label for component in c.components]
    ['embed', 'L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp']
    >>> c.values.shape, bool(c.identity_gap < 1e-6)
    ((2, 5, 2), True)
    """
    model = load_model(model)
    choice("unit", unit, get_args(Unit))
    batch_tokens = model.checked_batch_tokens(batch_tokens)
    top = None if top is None else whole_number("top", top, 1)
    if top is not None and components is not None:
        raise InputError("top and components cannot be combined: both say which rows to keep.")
    ids, at, cached = _inputs(model, prompts, position, unit, cache, tokens, attention_mask)
    option_ids, option_texts = tokenization.options(model, options, len(ids))
    keep = _parse_components(components, model.architecture.components(unit))
    readout = OptionReadout(model.architecture, option_ids, unit)

    def passes() -> Iterator[tuple[list[int], Activations]]:
        """Row numbers and their pass, batch after batch."""
        if cached is not None:
            yield list(range(len(ids))), cached
            return
        for rows in batches([len(row) for row in ids], batch_tokens, model.architecture.length_switch):
            yield rows, run(model.architecture, *pad([ids[row] for row in rows]), unit, torch.as_tensor(at[rows]))

    keep = keep if top is None else _largest(top, _read_out(model, passes(), readout, None))
    parts = list(_read_out(model, passes(), readout, keep))
    names, junctions = parts[0].components, parts[0].junctions
    if any(part.components != names for part in parts):
        raise InputError(f"{model.name} ran its layers a different number of times for different prompts: {ALIKE}.")
    if unknown := [c for c in keep or () if c not in names]:
        reused = "a layer that is used once is L3.attn, the second use of a reused one L3@2.attn"
        raise InputError(f"components asks for {unknown[0].label}, but this run has no such row: {reused}.")
    order = np.argsort(np.concatenate([part.rows for part in parts]))

    def collect(name: str) -> np.ndarray:
        """An array of all batches in the prompts' order."""
        return np.concatenate([getattr(part, name) for part in parts])[order]

    def locate() -> str:
        if cached is not None:
            return "the cached writes do not add up to the cached stream"
        worst = int(collect("stream_gap").argmax())
        return locate_mismatch(model.architecture, ids[worst][: at[worst] + 1])

    readout.error.check(model.name, unit, locate)
    # The stream never stands at an embedding before its positions, or at an attention parallel to its MLP.
    halves = [("embed", "pos_embed")] + [("attn", "mlp")] * model.architecture.parallel
    partial = [a.layer == b.layer and (a.kind, b.kind) in halves for a, b in pairwise(junctions)]
    return Contributions(
        values=collect("values"),
        components=names,
        model_logits=collect("logits"),
        option_ids=option_ids,
        options=option_texts,
        token_ids=np.concatenate([np.array(row, dtype=np.int64) for row in ids]),
        lengths=np.array([len(row) for row in ids], dtype=np.int64),
        positions=at,
        junction_scale=collect("junction_scale"),
        junctions=junctions,
        partial_junctions=np.array([*partial, False]),
        identity_gap=readout.error.identity_gap,
        absolute_gap=readout.error.absolute,
        complete=len(names) == parts[0].count,
        soft_cap=model.architecture.soft_cap,
        model=model.name,
        unit=unit,
    )


def _inputs(
    model: Model, prompts: Any, position: Any, unit: Unit, cache: Any, tokens: Any, mask: Any
) -> tuple[list[tuple[int, ...]], Int[np.ndarray, " example"], Activations | None]:
    """Token ids, the position read in each row, and the cached pass, if one is given. InputError for none, or two."""
    if cache is not None:
        if prompts is not None:
            raise InputError("give either prompts or a cache with its tokens, not both.")
        tokens, mask = tokens_and_mask(tokens, mask)
        prompts = [row[real.bool()].tolist() for row, real in zip(tokens, mask, strict=True)]
    elif tokens is not None or mask is not None:
        raise InputError("tokens and attention_mask belong to a cache: give prompts alone, or cache= with tokens=.")
    elif prompts is None:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    ids = tokenization.encode(model, prompts)
    at = tokenization.positions(position, [len(row) for row in ids])
    column = None if cache is None else mask.argmax(1).cpu() + torch.as_tensor(at)
    return ids, at, None if column is None else read_cache(model, cache, tokens, column, unit)


def _read_out(
    model: Model, passes: Iterable[tuple[list[int], Activations]], readout: OptionReadout, keep: Set[Component] | None
) -> Iterator[BatchContributions]:
    """The contributions of some rows at a time; `keep` None keeps all components."""
    from tqdm.auto import tqdm

    architecture, (examples, options) = model.architecture, readout.option_ids.shape
    per_row = options * len(architecture.components(readout.walk.unit))
    step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
    progress = tqdm(total=examples, desc=model.name, unit="prompt", delay=2, leave=False)
    with inference_mode_for(architecture), progress:
        for rows, activations in passes:
            for start in range(0, len(rows), step):
                some = slice(start, start + step)
                yield read_out(readout, activations.rows(some), np.array(rows[some]), keep)
            del activations  # or it would be held during the next pass
            progress.update(len(rows))


def _largest(top: int, batches: Iterable[BatchContributions]) -> set[Component]:
    """The `top` components with the largest centered contributions on average over examples."""
    size: np.ndarray | float = 0.0
    for batch in batches:
        # One option has nothing to be centered against.
        centered = batch.values - (batch.values.mean(2, keepdims=True) if batch.values.shape[2] > 1 else 0.0)
        size = size + np.abs(centered).mean(2).sum(0)
    return {batch.components[i] for i in np.argsort(-np.asarray(size), kind="stable")[:top]}


def _parse_components(components: Any, known: tuple[Component, ...]) -> set[Component] | None:
    """The components to keep. Raises InputError, before the run, for labels that this model cannot have."""
    if components is None:
        return None
    labels = labels_of("components", list(components) if isinstance(components, Set) else components)
    wanted = {Component.parse(label) for label in labels}
    # A reused layer's repeats are known only after a run, so only layer and kind are looked up here.
    if unknown := [c for c in wanted if replace(c, repeat=None) not in known]:
        raise InputError(f"components asks for {unknown[0].label}, which this model does not have at this unit.")
    return wanted
