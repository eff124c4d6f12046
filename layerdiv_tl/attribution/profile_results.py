"""Profiles: bias and diversity of every component at every token, over the whole vocabulary.

A profile holds a few sums of each component's logit vector u_i over V ids: its mean, its size, and its products with
the mean of all components and with the target. Bias and diversity follow from these. Arrays are stored `[position,
component]`, as they are made; the public ones are `[component, position]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, component_columns, labels_of
from ..components import positions as component_positions
from ..ensemble.decomposition import Gauge
from ..ensemble.intervals import RunningMean, interval_note
from ..errors import InputError
from ..results import Result

MOST_ROWS = 5_000_000
# Numbers of one term that are averaged at a time, which bounds memory for neurons.
AT_ONCE = 1_000_000

PerComponent = Float[np.ndarray, "position component"]
PerPosition = Float[np.ndarray, " position"]
ComponentByPosition = Float[np.ndarray, "component position"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ProfileSource(Result):
    """The inputs of a profile, and its components, the names of its rows.

    Attributes:
        identity_gap, absolute_gap: max |Σ u_i − logit| / max Σ|u_i| at the next token, over positions; and the same in
            logits.
        vocabulary, window, stride: The number of ids; how many tokens the model read at a time, and by how many it then
            moved on.
        soft_cap: The soft cap of the model's logits, if any (components sum to the logits before it).
    """

    components: tuple[Component, ...]
    identity_gap: float
    absolute_gap: float
    vocabulary: int
    window: int
    stride: int
    model: str
    unit: str
    soft_cap: float | None

    def _mean_frame(self, terms: dict[str, np.ndarray], measured_in: str, texts: int) -> pd.DataFrame:
        """Make one row per component: mean, `_low` and `_high` of every term, from tables of these three rows."""
        rows = component_columns(self.components)
        for name, ends in terms.items():
            rows |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = _units([name for name in frame.columns if name.startswith(tuple(terms))], measured_in)
        frame.attrs |= {"intervals": interval_note(texts, "texts")}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile(ProfileSource):
    """`loss = bias − diversity` for every component and every token of a text. Made by `profile`.

    Position t is the prediction of token t + 1. The last token of a text has none: values that need a target are NaN.

    Attributes:
        token_ids, tokens, documents, contexts: `[position]`: ids, their texts, the index of the text each belongs to,
            and how many tokens of it the model saw, its own included (it reads long texts in windows).
        losses: `[position]`, the model's own cross-entropy of the next token, in nats.
        means, centered_targets: `[position, component]`: a component's logit averaged over the vocabulary, and its
            contribution to the next token's logit minus that mean.
        token_lookup: Finds the tokens a component promotes; it needs the model, so it is not saved.
        prompt_ends: As in `Contributions`.
    """

    token_ids: Int[np.ndarray, " position"]
    tokens: tuple[str, ...]
    documents: Int[np.ndarray, " position"]
    contexts: Int[np.ndarray, " position"]
    losses: PerPosition
    means: PerComponent
    centered_targets: PerComponent
    token_lookup: Callable[..., Any] | None = field(default=None, repr=False, metadata={"saved": False})
    prompt_ends: tuple[str, ...] = ()

    measured_in: ClassVar[str]
    _term_names: ClassVar[Any]

    @property
    def loss(self) -> PerPosition:
        """The model's own cross-entropy of each next token, `[position]`, in nats."""
        return self.losses

    @property
    def target_logit(self) -> ComponentByPosition:
        """Each component's contribution to the next token's logit."""
        return (self.centered_targets.astype(np.float64) + self.means).T

    @property
    def bias(self) -> ComponentByPosition:
        """Each component's own loss against the next token, undivided by |L|."""
        return self._term("bias").T

    @property
    def diversity(self) -> ComponentByPosition:
        """Each component's distance from the ensemble, undivided by |L|."""
        return self._term("diversity").T

    @property
    def net(self) -> ComponentByPosition:
        """bias − diversity, from its own linear form, which does not contain the component's size."""
        return self._term("net").T

    @property
    def next_tokens(self) -> tuple[str | None, ...]:
        """The text of each next token; None at the end of a text."""
        ends = np.append(self.documents[1:] != self.documents[:-1], True)
        return tuple(None if end else text for end, text in zip(ends, (*self.tokens[1:], ""), strict=True))

    @property
    def has_target(self) -> np.ndarray:
        """`[position]`, True where there is a target."""
        return np.isfinite(self.losses)

    def top_tokens(
        self, component: str | Component | Sequence[str | Component] | None = None, position: int = -1, k: int = 10
    ) -> pd.DataFrame:
        """Find the tokens that components promote and suppress at a position: the k largest and k smallest logits.

        `component` is a label or component, several, or None for all; `position` a column of this profile, negative
        from the end. `contribution` is in logits; `contribution_centered` subtracts the vocabulary mean, which softmax
        cannot see. Raises InputError for unknown components and positions, and for a profile loaded from a file.
        """
        if self.token_lookup is None:
            raise InputError("this profile was loaded from a file, which holds no model: make it anew with profile().")
        k, count = whole_number("k", k, 1, self.vocabulary), len(self.token_ids)
        position = whole_number("position", position, -count, count - 1) % count
        columns = list(range(len(self.components)))
        if component is not None:
            labels = labels_of("component", component)
            columns = [component_positions(self.components, label=label)[0] for label in labels]
        document = int(self.documents[position])
        within = position - int(np.argmax(self.documents == document))
        return self.token_lookup(columns, document, within, k)

    def by_component(self) -> pd.DataFrame:
        """One row per component: means over the tokens that have a target, with 95 % intervals over texts.

        Texts are independent, tokens of one text are not. With fewer than 8 texts there is no interval: `_low` and
        `_high` are NaN, and `attrs["intervals"]` says so. For many texts use `corpus_profile`.

        With `loss="cross_entropy"`, `net_linear` is a component's part of the loss, in nats: these parts and the mean
        of `entropies` sum to the loss; below 0, scaling the component up would lower it.
        """
        running: dict[str, RunningMean] = {}
        for document in np.unique(self.documents):
            inside = np.flatnonzero((self.documents == document) & self.has_target)
            for name, total in self._sums(inside).items():
                running.setdefault(name, RunningMean()).add(total, len(inside))
        del running["loss"]
        terms = {name: np.stack([mean.mean, *mean.interval()]) for name, mean in running.items()}
        return self._mean_frame(terms, self.measured_in, int(running["bias"].clusters))

    figures: ClassVar = {
        "map": "attribution.profile_map",
        "depth": "ensemble.profile_bars",
        "loss": "attribution.loss_bars",
        "scatter": "ensemble.bias_diversity_scatter",
    }

    def plot(self, kind: Literal["map", "depth", "loss", "scatter"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self, **conditions: Any) -> pd.DataFrame:
        """One row per token and component; `conditions` select components, as in `Contributions.select`.

        Raises InputError for more than five million rows.
        """
        columns = component_positions(self.components, **conditions) if conditions else range(len(self.components))
        rows = row_columns(self, [self.components[i] for i in columns])
        terms = self._at(slice(None), list(columns))._terms()
        rows |= {name: table.reshape(-1) for name, table in terms.items()}
        frame = pd.DataFrame(rows | {"loss": np.repeat(self.losses, len(columns))})
        frame.attrs["units"] = _units(terms, self.measured_in) | {"loss": "nats"}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame

    def _at(self, rows: slice | np.ndarray, columns: Sequence[int] | slice = slice(None)) -> Self:
        """Select positions and columns of all tables; `components` stay, because terms are divided by their number."""
        arrays = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        kept: dict[str, Any] = {n: x[rows] if x.ndim == 1 else x[rows][:, columns] for n, x in arrays.items()}
        return replace(self, **kept)

    def _terms(self) -> dict[str, PerComponent]:
        """The tables of frames, `[position, component]`."""
        return {name: self._term(name) for name in self._term_names} | {"target_logit": self.target_logit.T}

    def _sums(self, positions: np.ndarray) -> dict[str, Any]:
        """Sum every term, and the model's loss, over some positions."""
        sums: dict[str, Any] = {"loss": self.losses[positions].sum()}
        step = max(1, AT_ONCE // len(self.components))
        for start in range(0, max(1, len(positions)), step):
            for name, table in self._at(positions[start : start + step])._terms().items():
                sums[name] = sums.get(name, 0.0) + table.sum(0)
        return sums

    def _term(self, name: str) -> PerComponent:
        raise NotImplementedError

    def __repr__(self) -> str:
        texts = len(np.unique(self.documents))
        many = f" in {texts} texts" if texts > 1 else ""
        cut = int(np.bincount(self.documents).max()) > self.window
        read = f", read {self.window} at a time, moving on by {self.stride}" if cut else ""
        cap = self.soft_cap
        capped = "" if cap is None else f"; components sum to the logits before a soft-cap at {cap:g}"
        shape = f"{len(self.token_ids)} tokens{many} × {len(self.components)} components, {self.vocabulary} ids"
        loss = self.losses[self.has_target].mean() if self.has_target.any() else float("nan")
        return (
            f"{type(self).__name__}({self.model}: {shape}{read}; loss {loss:.4g} nats; "
            f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits{capped})"
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SquaredProfile(Profile):
    """Theorem 1 over the whole vocabulary, in squared logits; raw = shift + centered.

    bias = mean_v (t − u_i)² against the next token's one-hot (or the dense target), diversity = mean_v (ū − u_i)².

    Attributes:
        sizes, crosses: `[position, component]`: Σ_v of a component's centered logits squared, and of their product with
            those of the mean of all components.
        powers, ensemble_means: `[position]`, for the mean of all components: Σ_v of its centered logits squared, and
            its mean logit.
        agreements, target_powers, target_means: Σ_v of the centered target times the component's logits `[position,
            component]` (None for the next token, where it is `centered_targets`); the target's own Σ_v of squares and
            its mean `[position]`.
        part: The name of this part: raw, shift or centered.
    """

    sizes: PerComponent
    crosses: PerComponent
    powers: PerPosition
    ensemble_means: PerPosition
    agreements: PerComponent | None
    target_powers: PerPosition
    target_means: PerPosition
    part: Gauge = "raw"

    measured_in: ClassVar[str] = "logits²"

    @property
    def diversity_logit(self) -> ComponentByPosition:
        """|L|² × diversity: comparable between models and cuts with different numbers of members."""
        return len(self.components) ** 2 * self.diversity

    @property
    def has_target(self) -> np.ndarray:
        """`[position]`, True where there is a target; a dense one is everywhere."""
        return np.isfinite(self.target_means)

    @property
    def mse(self) -> PerPosition:
        """mean_v (t − ū)², `[position]`: the mean over components of bias − diversity."""
        centered = (self.target_powers - 2 * self._products.mean(1) + self.powers) / self.vocabulary
        shift = (self.ensemble_means - self.target_means) ** 2
        return {"raw": centered + shift, "centered": centered, "shift": shift}[self.part]

    @cached_property
    def centered(self) -> SquaredProfile | None:
        """The centered part, which softmax sees, under the same names; None in the parts themselves."""
        return replace(self, part="centered") if self.part == "raw" else None

    @cached_property
    def shift(self) -> SquaredProfile | None:
        """The shift, which is common to all ids; None in the parts themselves."""
        return replace(self, part="shift") if self.part == "raw" else None

    @property
    def _products(self) -> PerComponent:
        """Σ_v of the centered target times each component's logit."""
        return (self.centered_targets if self.agreements is None else self.agreements).astype(np.float64)

    @property
    def _term_names(self) -> tuple[str, ...]:
        suffixes = ("", "_centered", "_shift") if self.part == "raw" else ("",)
        return tuple(term + suffix for suffix in suffixes for term in ("bias", "diversity", "net"))

    def _term(self, name: str) -> PerComponent:
        term, _, part = name.partition("_")
        part = part or self.part
        if part == "raw":  # the parts first, then their sum: raw − shift would cancel
            return self._term(f"{term}_centered") + self._term(f"{term}_shift")
        if part == "shift":
            mean, target, ensemble = self.means.astype(np.float64), self.target_means, self.ensemble_means
            if term == "net":
                return (target**2 - ensemble**2)[:, None] + 2 * mean * (ensemble - target)[:, None]
            return (mean - (target if term == "bias" else ensemble)[:, None]) ** 2
        # |x − u_i|² = |x|² − 2 x · u_i + |u_i|², for x the target or the mean of all components.
        target, power = self.target_powers[:, None], self.powers[:, None]
        if term == "net":
            return (target - power + 2.0 * (self.crosses - self._products)) / self.vocabulary
        square = power - 2.0 * self.crosses if term == "diversity" else target - 2.0 * self._products
        return np.maximum(square + self.sizes, 0) / self.vocabulary  # below 0 by rounding only


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CrossEntropyProfile(Profile):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i) over the whole vocabulary, in nats.

    q_i = softmax(τu_i), p = softmax(τū): bias is CE(t, q_i), diversity KL(p ‖ q_i), net H(p) + τ(E_p[u_i] − u_i(t)).
    By default τ = |L|: p is the model's own distribution, before a soft-cap where there is one.

    Attributes:
        log_partitions, expectations: `[position, component]`: log Σ_v exp(τ u_i(v)) and E_p[u_i], of logits minus their
            mean.
        entropies: `[position]`, H(p) in nats.
        tau: The value of τ.
    """

    log_partitions: PerComponent
    expectations: PerComponent
    entropies: PerPosition
    tau: float

    measured_in: ClassVar[str] = "nats"
    _term_names = ("bias", "diversity", "net", "net_linear")

    @property
    def net_linear(self) -> ComponentByPosition:
        """(τ/|L|)(E_p[u_i] − u_i(t)): each component's contribution to the loss beyond H(p); heads sum to attention."""
        return self._term("net_linear").T

    @property
    def centered(self) -> CrossEntropyProfile:
        """This profile itself, as softmax sees no shift."""
        return self

    @property
    def cross_entropy(self) -> PerPosition:
        """CE(t, p) `[position]`: H(p) + Σ net_linear. It is `loss` where τ = |L| and nothing caps the logits."""
        return self.entropies + self.net_linear.sum(0)

    def _term(self, name: str) -> PerComponent:
        entropies, targets = self.entropies[:, None], self.centered_targets
        if name == "bias":
            return np.maximum(self.log_partitions - self.tau * targets, 0)  # below 0 by rounding only
        if name == "diversity":
            return np.maximum(self.log_partitions - self.tau * self.expectations - entropies, 0)
        if name == "net":
            return entropies + self.tau * (self.expectations - targets)
        return self.tau / len(self.components) * (self.expectations - targets)


def token_columns(profile: Profile) -> dict[str, Any]:
    """The columns that name each token in frames."""
    columns: dict[str, Any] = {"position": np.arange(len(profile.token_ids)), "document": profile.documents}
    return columns | {name: np.array(getattr(profile, f"{name}s"), dtype=object) for name in ("token", "next_token")}


def row_columns(profile: Profile, kept: Sequence[Component]) -> dict[str, Any]:
    """The columns that name a frame's rows, one per token and component. Raises InputError for too many rows."""
    count = len(profile.token_ids)
    if count * len(kept) > MOST_ROWS:
        choose = "choose components, as in frame(kind='neuron', layer=3), or take by_component()"
        raise InputError(f"{count} tokens × {len(kept)} components are {count * len(kept):,} rows: {choose}.")
    rows = {name: np.repeat(column, len(kept)) for name, column in token_columns(profile).items()}
    return rows | component_columns(kept, np.tile(np.arange(len(kept)), count))


def _units(terms: Iterable[str], measured_in: str) -> dict[str, str]:
    return {name: "logits" if name.startswith("target_logit") else measured_in for name in terms}
