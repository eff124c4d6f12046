"""Direct logit contributions: the parts that sum to the logits."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from .._checks import choice, whole_number
from ..components import Component, Unit, component_columns, labels_of
from ..components import positions as component_positions
from ..errors import InputError
from ..model import tokenization as reading
from ..model.load import load_model
from ..model.reconstruction import ReconstructionError, check_reconstruction, locate_mismatch
from ..results import Result
from .passes import Source, open_source
from .unembedding import Readout

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """What every component adds to the logit of every option: Σ over components = logits (Eq. 3).

    values
        float64 `[example, component, option]`, in logits; rows in stream order.
    components
        The names of the rows.
    model_logits
        float64 `[example, option]`, what the model returns. It differs from `logits` by more than
        rounding only where the model caps its logits (`soft_cap`). From a cache: what the model's own
        norm and unembedding make of the cached stream.
    option_ids, options
        Token ids `[example, option]`, and the texts: K of them, or K for every example.
    token_ids, lengths, positions
        The prompts' ids one after another, their lengths, and the position read in each.
    junction_scale, junctions
        float64 `[example, junction]`: the final norm's statistic of the stream after each junction's
        component, divided by that of the whole stream (the last is 1).
    partial_junctions
        `[junction]`, True where the sum is one the stream never holds: an embedding whose positions are
        still to be added, an attention beside which the MLP of a parallel block reads the same stream.
    identity_gap, absolute_gap
        max |Σ u_i − logits| / max Σ|u_i| over examples and options (MATHS 10), and the same in logits,
        both against the model's own logits (before a soft-cap) and for all components.
    complete
        False for a sub-ensemble made by `select`, whose `logits` are its own sum.
    soft_cap
        The value at which the model caps its logits, or None.
    model, unit
        The model's name and how finely it was cut.
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
        cuts = np.split(self.token_ids, np.cumsum(self.lengths)[:-1])
        return tuple(tuple(int(i) for i in ids) for ids in cuts)

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
        keep = component_positions(
            self.components, kind=kind, layer=layer, index=index, repeat=repeat, module=module, label=label
        )
        return self._keep(keep)

    def _keep(self, rows: list[int]) -> Contributions:
        if rows == list(range(len(self.components))):
            return self
        kept = tuple(self.components[i] for i in rows)
        return replace(self, values=self.values[:, rows], components=kept, complete=False)

    def frame(self) -> pd.DataFrame:
        """One row per example, component and option: its contribution in logits."""
        import pandas as pd

        n, members, k = self.values.shape
        shared = self.shared_options
        texts = np.tile(np.array(shared), n) if shared else np.array(self.options).reshape(-1)
        texts = np.repeat(texts.reshape(n, 1, k), members, axis=1).reshape(-1)
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
        part = "" if self.complete else ", a sub-ensemble"
        return (
            f"{type(self).__name__}({self.model}: {n} examples × {members} components × {k} options{part}; "
            f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits)"
        )


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
    """Take a model's logits apart into the direct contributions of its components (Eq. 2-3).

    u_i = W_U (gain · center(z_i)) / σ, with z_i what component i wrote to the residual stream and σ
    the final norm's statistic of the whole stream; what the read-out adds by itself is `constant`, and
    what a half-precision model loses at every addition is `rounding`.

    A layer that runs several times in a pass has rows for every use (`L3@2.attn`). Where the stream passes the final
    norm between the rounds of a loop, what was written before is z_i times gain / σ of each such norm, too, at
    that norm's own statistic.

    model
        A `Model`, or anything `load_model` takes.
    prompts
        Texts, or lists of token ids, which are taken as they are. Text is tokenized by the model's own
        tokenizer, to which a TransformerBridge adds a beginning-of-text token where Hugging Face has none.
    options
        K answer tokens whose logits are wanted: strings exactly as written (" Yes" with its space) that
        are single tokens, or ids, or one list of K per prompt.
    unit
        "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads, MLPs whole;
        "neuron": MLPs cut into neurons, attentions whole.
    position
        Where the logits are read: "last", an int counted in each prompt's own tokens (negative from
        the end), or one int per prompt.
    components
        Labels or components to keep; None keeps all. All are computed either way, to check the sum.
    batch_tokens
        The most padded tokens in one forward pass; None is what is fast on the model's device. It changes
        speed, memory and last bits only.
    top
        Keep only so many components: those whose contributions, centered over the options, are largest
        on average over examples. Costs a second pass; memory does not grow with the number of neurons.
    cache, tokens, attention_mask
        Instead of prompts: activations cached through TransformerLens (names: `Model.hook_names(unit)`),
        the token ids `[row, token]` they belong to, and which of these are real. The cache is believed:
        that it is of this model and these tokens is the caller's word.

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
    if top is not None:
        top = whole_number("top", top, 1)
    if top is not None and components is not None:
        raise InputError("top and components cannot be combined: both say which rows to keep.")
    source = open_source(model, prompts, position, unit, batch_tokens, cache, tokens, attention_mask)
    option_ids, option_texts = reading.options(model, options, len(source.ids))
    keep = _wanted(components, model.architecture.components(unit))
    readout = Readout(model.architecture, option_ids)
    if top is not None:
        keep = _largest(top, source, readout, option_ids)

    parts = list(source.parts(readout, option_ids, keep))
    names = parts[0].components
    if any(part.components != names for part in parts):
        raise InputError(
            f"{model.name} ran its layers a different number of times for different prompts, so they have no "
            "common components: give prompts that run alike, or one at a time."
        )
    unknown = [c for c in keep or () if c not in names]
    if unknown:
        raise InputError(
            f"components asks for {unknown[0].label}, but this run has no such row: a layer that is used once is "
            "L3.attn, the second use of a reused one L3@2.attn."
        )
    order = np.argsort(np.concatenate([part.rows for part in parts]))

    def collect(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    size = max(float(part.size.max()) for part in parts)
    absolute = max(float(np.abs(part.total - part.unembedded).max()) for part in parts)
    relative = absolute / max(size, np.finfo(float).tiny)
    unexplained = max(float(part.unexplained.max()) for part in parts) / max(size, np.finfo(float).tiny)
    stream_gap = collect("stream_gap")
    split_gap, dtypes = max(part.split_gap for part in parts), (parts[0].dtype, parts[0].answer_dtype)
    closure = ReconstructionError(split_gap, float(stream_gap.max()), relative, unexplained, *dtypes)
    worst = int(stream_gap.argmax())
    check_reconstruction(
        model.name,
        unit,
        closure,
        lambda: (
            "the cached writes do not add up to the cached stream"
            if source.cached is not None
            else locate_mismatch(model.architecture, source.ids[worst][: source.at[worst] + 1])
        ),
    )
    return Contributions(
        values=collect("values"),
        components=names,
        model_logits=collect("logits"),
        option_ids=option_ids,
        options=option_texts,
        token_ids=np.concatenate([np.array(row, dtype=np.int64) for row in source.ids]),
        lengths=np.array([len(row) for row in source.ids], dtype=np.int64),
        positions=source.at,
        junction_scale=collect("junction_scale"),
        junctions=parts[0].junctions,
        partial_junctions=parts[0].partial_junctions,
        identity_gap=relative,
        absolute_gap=absolute,
        complete=len(names) == parts[0].members,
        soft_cap=model.architecture.soft_cap,
        model=model.name,
        unit=unit,
    )


def _largest(
    top: int, source: Source, readout: Readout, option_ids: Int[np.ndarray, "example option"]
) -> set[Component]:
    """The `top` components with the largest centered contributions on average over examples."""
    size: np.ndarray | float = 0.0
    names: tuple[Component, ...] = ()
    for part in source.parts(readout, option_ids, None):
        # One option has nothing to be centered against.
        centered = part.values - (part.values.mean(2, keepdims=True) if part.values.shape[2] > 1 else 0.0)
        size = size + np.abs(centered).mean(2).sum(0)
        names = part.components
    return {names[i] for i in np.argsort(-np.asarray(size), kind="stable")[:top]}


def _wanted(components: Any, known: tuple[Component, ...]) -> set[Component] | None:
    """The components to keep; a label of a component that does not exist is an error before the run."""
    if components is None:
        return None
    given = list(components) if isinstance(components, Set) else components
    wanted = {Component.parse(label) for label in labels_of("components", given)}
    # A reused layer's uses are known only after a run, so only layer and kind are looked up here.
    if unknown := [c for c in wanted if replace(c, repeat=None) not in known]:
        raise InputError(f"components asks for {unknown[0].label}, which this model does not have at this unit.")
    return wanted
