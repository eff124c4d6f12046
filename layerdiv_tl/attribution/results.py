"""`Contributions`: the components' terms, which sum to the logits of answer options, and to their log-likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from .._checks import shown, whole_number
from ..components import Component, component_columns, labels_of
from ..components import positions as component_positions
from ..ensemble.intervals import ENDS, estimate, estimates_frame
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..results import Plot, Result
from .logit_difference import LogitDifference, Score

if TYPE_CHECKING:
    from torch import Tensor

# The fields that have a row for every component.
TABLES = ("values", "expectations", "vocabulary_means")


def _mean_frame(contributions: Contributions) -> pd.DataFrame:
    """Means over examples, a column per option: minus the mean over options; of two options, the difference alone."""
    c = contributions.comparable
    values, names = c.values, list(c.names)
    if len(names) == 2:
        values, names = values[:, :, :1] - values[:, :, 1:], [" − ".join(names)]
    elif len(names) > 2:
        values = values - values.mean(2, keepdims=True)
    columns = {name: estimate(values[:, :, k]) for k, name in enumerate(names)}
    unit = "nats" if c.score == "log_likelihood" else "logits"
    return estimates_frame(component_columns(c.components) | columns, dict.fromkeys(names, unit))


def _head_frame(contributions: Contributions, option: int = 0) -> pd.DataFrame:
    """The column of one option of `_mean_frame`, as `contribution`."""
    frame = _mean_frame(contributions)
    columns = list(frame.attrs["units"])
    name = columns[whole_number("option", option, 0, len(columns) - 1)]
    renamed = frame.rename(columns={f"{name}{end}": f"contribution{end}" for end in ENDS})
    renamed.attrs = frame.attrs | {"units": {"contribution": frame.attrs["units"][name]}, "answers": name}
    return renamed


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """Direct logit contributions u_i of every component to every option: Σ_i u_i = logits (Eq. 3).

    An option of several tokens is scored by teacher forcing: its numbers are sums over its positions, each read after
    the prompt and the option's earlier tokens. Such sums of logits are meaningless alone, as each position has a free
    constant. Options are compared by log-likelihood, `scores()`, which `decompose` and `information` use.

    Attributes:
        values: float64 `[example, component, option]`, in logits; components in stream order.
        model_logits: float64 `[example, option]`, the model's own logits, after any `soft_cap`. From a cache: the
            output of the model's own norm and unembedding for the cached stream.
        log_likelihood: float64 `[example, option]`, log p of each option, after any soft-cap, in nats.
        normalizer: float64 `[example, option]`, the part of log p that no component holds: −Σ H(p) over the option's
            positions, with p the model's next-token distribution; where logits are capped, plus the cap's effect.
        expectations: float64 `[example, component, option]`, or one column for all options that are single tokens: Σ
            E_p[u_i] over the option's positions and the whole vocabulary. All three are None for `directions`.
        vocabulary_means: float64 `[example, component]`: the mean of u_i over the whole vocabulary, the one zero that
            no constant can move; None for options of several tokens and for `directions`.
        task, labels: The name of the given task, and its right options `[example]`; empty and None for prompts.
        option_names: The names of the columns that the options came from; empty where these have none.
        starts_with_bos: Whether the first prompt begins with a beginning-of-text token.
        prompt_ends: The last 100 characters of each of at most 8 prompts, up to the position read, for captions; empty
            for more, without a tokenizer, and in files written by older versions.
        option_ids, options: Token ids `[example, option]` (indices of directions), or for options of several tokens
            `[example, option, token]`, filled up with −1; and the texts: K of them, or K for every example.
        token_ids, lengths, positions: The prompts' ids concatenated, their lengths, and the position read in each.
        junctions, partial_junctions: The component after which each prefix of the stream ends, and True for sums that
            the stream never holds: an embedding before its positions are added, or an attention parallel to its MLP.
        identity_gap, absolute_gap: max |Σ u_i − logits| / max Σ|u_i| over examples and options, and the same in logits;
            over all components and positions, before any soft-cap.
        score: "logits", or "log_likelihood" in the result of `scores`.
        complete, soft_cap: False for a sub-ensemble made by `select`, whose `logits` are its own sum; the soft cap of
            the logits, if any.
    """

    values: Float[np.ndarray, "example component option"]
    components: tuple[Component, ...]
    model_logits: Float[np.ndarray, "example option"]
    log_likelihood: Float[np.ndarray, "example option"] | None
    normalizer: Float[np.ndarray, "example option"] | None
    expectations: Float[np.ndarray, "example component #option"] | None
    option_ids: Int[np.ndarray, "example option *place"]
    options: tuple[Any, ...]
    token_ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " example"]
    positions: Int[np.ndarray, " example"]
    junctions: tuple[Component, ...]
    partial_junctions: Bool[np.ndarray, " junction"]
    identity_gap: float
    absolute_gap: float
    complete: bool
    soft_cap: float | None
    model: str
    unit: str
    score: Score = "logits"
    vocabulary_means: Float[np.ndarray, "example component"] | None = None
    task: str = ""
    prompt_ends: tuple[str, ...] = ()
    labels: Int[np.ndarray, " example"] | None = None
    option_names: tuple[str, ...] = ()
    starts_with_bos: bool = False

    def check(self) -> None:
        """Raise InputError also where contributions do not sum to the model's logits within the stored gap."""
        super().check()
        if self.complete and self.soft_cap is None and self.score == "logits" and self.values.size:
            off = np.abs(self.logits - self.model_logits).max()
            if not off <= self.absolute_gap + 1e-5 * np.abs(self.values).sum(1).max():
                raise InputError(f"its contributions are {off:.3g} logits off the model's own")

    @property
    def logits(self) -> Float[np.ndarray, "example option"]:
        """The sum over the components here, `[example, option]`; before a soft-cap if there is one."""
        return self.values.sum(1)

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each prompt."""
        return tuple(tuple(ids.tolist()) for ids in np.split(self.token_ids, np.cumsum(self.lengths)[:-1]))

    @property
    def shared_options(self) -> tuple[str, ...] | None:
        """The options' texts if all examples share them, else None."""
        return self.options if isinstance(self.options[0], str) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The options' names: of the columns that they came from, or their texts where all examples share them."""
        return self.option_names or self.shared_options or tuple(f"option {k}" for k in range(self.values.shape[2]))

    @property
    def options_mass(self) -> float | None:
        """The probability that the model gives to all options together, its mean over examples; None for directions.

        Where it is small, the model would say something else, e.g. " negative" without its blank.
        """
        return None if self.log_likelihood is None else float(np.exp(self.log_likelihood).sum(1).mean())

    @property
    def log_likelihood_parts(self) -> Float[np.ndarray, "example component option"]:
        """Σ (u_i(token) − E_p[u_i]) over each option's positions, in nats; these plus `normalizer` sum to log p.

        Raises InputError for directions, which have no probability.
        """
        if self.expectations is None:
            raise InputError("these are contributions to directions, which have no probability: give options.")
        return self.values - self.expectations

    @property
    def sides(self) -> Float[np.ndarray, "example component option"] | None:
        """Contributions that are invariant to constants: logits minus the component's mean over the vocabulary.

        For `scores()` these are its `values`, the terms of log-likelihoods. None where neither is known.
        """
        if self.score == "log_likelihood":
            return self.values
        return None if self.vocabulary_means is None else self.values - self.vocabulary_means[:, :, None]

    def scores(self) -> Contributions:
        """The same components as terms of the options' log-likelihoods, which `decompose` takes for several tokens.

        The row `constant` includes the normalizer, so that the components sum to `model_logits`, here log-likelihoods;
        a sub-ensemble has a normalizer only with `constant`. For single-token options, scores differ between options as
        the logits do. Raises InputError for directions.
        """
        values, components = self.log_likelihood_parts, self.components
        assert self.log_likelihood is not None
        assert self.normalizer is not None
        constant = Component("constant")
        if constant in components:
            values[:, components.index(constant)] += self.normalizer
        elif self.complete:
            values = np.concatenate([values, self.normalizer[:, None]], 1)
            components = (*components, constant)
        return replace(
            self,
            values=values,
            components=components,
            model_logits=self.log_likelihood,
            expectations=np.zeros((len(values), len(components), 1)),
            vocabulary_means=None,
            normalizer=np.zeros_like(self.normalizer),
            soft_cap=None,  # its effect is in the normalizer
            score="log_likelihood",
        )

    @property
    def comparable(self) -> Contributions:
        """The input of a softmax over the options: these logits, or `scores()` for options of several tokens."""
        return self if self.option_ids.ndim == 2 or self.score == "log_likelihood" else self.scores()

    def difference(self, option: Any = 0, other: Any = 1) -> LogitDifference:
        """The logit difference between two options, component by component.

        Args:
            option, other: Indices or texts of options, or a list with one for every example.

        For options of several tokens it is the difference of the log-likelihoods, which for single tokens is the same.
        Raises InputError for an unknown option, and for the difference of an option and itself.

        >>> import layerdiv_tl as ld
        >>> c = ld.contributions("zoo/d4", [[1, 2, 3], [4, 5]], options=[7, 9])
        >>> d = c.difference()
        >>> bool(abs(d.total - (c.logits[:, 0] - c.logits[:, 1])).max() < 1e-9)
        True
        """
        c, count = self.comparable, len(self.values)
        if c.values.shape[2] < 2:
            raise InputError("a difference needs two options, but these are contributions to one.")
        numbers = []
        for name, given in (("option", option), ("other", other)):
            given = [given] * count if isinstance(given, str | int | np.integer) else given
            numbers.append(gold_options(given, c.values.shape, c.options, name))
        first, second = numbers
        if (same := np.flatnonzero(first == second)).size:
            raise InputError(
                f"the difference of an option and itself (example {same[0]}) is 0 for any model: name two options, not "
                f"{shown(option)} and {shown(other)}."
            )
        rows = np.arange(count)
        texts = [c.shared_options or c.options[row] for row in rows]
        pairs = tuple((text[a], text[b]) for text, a, b in zip(texts, first, second, strict=True))
        about: tuple[str, ...] = ("components", "identity_gap", "absolute_gap", "complete", "soft_cap", "score")
        about += ("model", "unit", "task", "prompt_ends")
        return LogitDifference(
            values=c.values[rows, :, first] - c.values[rows, :, second],
            sides=None if c.sides is None else np.stack([c.sides[rows, :, at] for at in numbers], 2),
            model_difference=c.model_logits[rows, first] - c.model_logits[rows, second],
            pairs=pairs[0] if len(set(pairs)) == 1 else pairs,
            names=self._names_of(first, second),
            **{name: getattr(c, name) for name in about},
        )

    def _names_of(self, first: np.ndarray, second: np.ndarray) -> tuple[str, ...]:
        """Return the columns' names of the two options, if all examples have the same two columns."""
        if not self.option_names or len(set(first)) > 1 or len(set(second)) > 1:
            return ()
        return self.option_names[first[0]], self.option_names[second[0]]

    def to_transformer_lens(self) -> tuple[Tensor, list[str]]:
        """The contributions in the layout of TransformerLens' `logit_attrs`, and the labels of its residual stacks.

        Returns a float64 tensor `[component, example, option]`, in logits, and labels (`L3H5`, `3_mlp_out`). Unlike a
        stack of TransformerLens, its sum over components is the model's logits.

        >>> import layerdiv_tl as ld
        >>> stack, labels = ld.contributions("zoo/d2", [[1, 2, 3]], options=[7, 9]).to_transformer_lens()
        >>> stack.shape, labels
        (torch.Size([5, 1, 2]), ['embed', '0_attn_out', '0_mlp_out', '1_attn_out', '1_mlp_out'])
        """
        import torch

        return torch.from_numpy(self.values).transpose(0, 1), [c.transformer_lens_label for c in self.components]

    def __getitem__(self, label: str | Component | Sequence[str | Component]) -> Float[np.ndarray, "..."]:
        """Contributions of a component by its label, `[example, option]`, in logits: `c["L20.mlp"]`.

        A list of labels gives `[example, component, option]`, in the list's order. Raises InputError for an unknown
        label.
        """
        rows = [component_positions(self.components, label=one)[0] for one in labels_of("label", label)]
        return self.values[:, rows[0] if isinstance(label, str | Component) else rows]

    __iter__ = None  # `for` would count up; a list of labels gives several

    def __contains__(self, label: object) -> bool:
        """Whether a component has this label."""
        return isinstance(label, str | Component) and any(label in (c, c.label) for c in self.components)

    def _ipython_key_completions_(self) -> list[str]:
        """Offer labels after `c["` in Jupyter."""
        return [c.label for c in self.components]

    def select(
        self,
        label: str | Component | Iterable[str | Component] | None = None,
        *,
        kind: str | Iterable[str] | None = None,
        layer: int | Iterable[int] | None = None,
        index: int | Iterable[int] | None = None,
        repeat: int | Iterable[int] | None = None,
        module: str | Iterable[str] | None = None,
    ) -> Contributions:
        """Select the sub-ensemble of the components that meet every given condition, in stream order.

        Raises InputError where nothing is left. `c.select("L20.mlp")`, `c.select(kind="mlp", layer=range(4))`.
        """
        rows = component_positions(
            self.components, kind=kind, layer=layer, index=index, repeat=repeat, module=module, label=label
        )
        if rows == list(range(len(self.components))):
            return self
        kept = tuple(self.components[i] for i in rows)
        own: dict[str, Any] = {name: x[:, rows] for name in TABLES if (x := getattr(self, name)) is not None}
        return replace(self, **own, components=kept, complete=False)

    figures: ClassVar = {
        "strip": Plot(
            "What each component writes on each row",
            "A mark per row and component at its contribution to the first option minus the second.",
            "strip.strip",
        ),
        "bars": Plot(
            "Mean contribution of every component",
            "A panel per option of mean contributions minus their mean over options; of two, the difference.",
            "shapes.bars",
            _mean_frame,
        ),
        "heads": Plot(
            "Contribution of every head and MLP",
            "Head × layer: mean contributions to one `option` (its number), of two to their difference; "
            "the MLPs are the last row.",
            "special.heads",
            _head_frame,
            {"value": "contribution"},
        ),
    }

    def _plots(self) -> Mapping[str, Plot]:
        """Heads have their map first; a strip needs several rows, and two options or labels."""
        kinds = ["heads"] if any(c.kind == "head" for c in self.components) else []
        if len(self.values) > 1 and (len(self.names) <= 2 or self.labels is not None):
            kinds.append("strip")
        return {kind: self.figures[kind] for kind in (*kinds, "bars")}

    def frame(self) -> pd.DataFrame:
        """One row per example, component and option: its contribution in logits."""
        n, members, k = self.values.shape
        options = np.array(self.options).reshape(-1, 1, k)  # one row where all examples share them
        texts = np.broadcast_to(options, (n, members, k)).reshape(-1)
        numbers = np.tile(np.arange(k), n * members)
        frame = pd.DataFrame(
            {"example": np.repeat(np.arange(n), members * k)}
            | component_columns(self.components, np.tile(np.repeat(np.arange(members), k), n))
            | {"option_index": numbers, "option": texts, "contribution": self.values.reshape(-1)}
        )
        if self.option_names:
            frame.insert(frame.columns.tolist().index("option"), "option_name", np.array(self.option_names)[numbers])
        frame.attrs["units"] = {"contribution": "logits" if self.score == "logits" else "nats"}
        frame.attrs |= {"identity_gap": self.identity_gap, "options_mass": self.options_mass}
        return frame

    def __repr__(self) -> str:
        n, members, k = self.values.shape
        shape = f"{n} example{'s' * (n > 1)} × {members} components × {k} options"
        shape += "" if self.complete else ", a sub-ensemble"
        bos = "with" if self.starts_with_bos else "without"
        prompt = f"first prompt of {self.lengths[0]} tokens, {bos} beginning-of-text token" if n else ""
        gaps = f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits"
        mass = "" if self.options_mass is None else f"options have {self.options_mass:.2g} of the probability"
        about = "; ".join(filter(None, [prompt, mass, gaps]))
        return f"{type(self).__name__}({self.model}: {shape}; {about})"
