"""Profiles: bias and diversity of every component at every token, over the whole vocabulary.

A profile holds a few sums of each component's logit vector u_i over V ids: its mean, its size, and its products with
the mean of all components and with the target. Bias and diversity follow from these. Arrays are stored `[position,
component]`, as they are made; the public ones are `[component, position]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, component_columns, labels_of
from ..components import positions as component_positions
from ..ensemble.intervals import estimate, estimates_frame
from ..ensemble.losses import Gauge
from ..errors import InputError
from ..results import Plot, Result

MOST_ROWS = 5_000_000
# Numbers of one term that are averaged at a time, which bounds memory for neurons.
AT_ONCE = 1_000_000

_UNITS = {"bias": "logits²", "diversity": "logits²", "net": "logits²", "target_logit": "logits"}

PerComponent = Float[np.ndarray, "position component"]
PerPosition = Float[np.ndarray, " position"]
ComponentByPosition = Float[np.ndarray, "component position"]


def _loss_frame(profile: Profile) -> pd.DataFrame:
    """One row per predicted token: the token as `component`, and its loss."""
    known = np.flatnonzero(profile.has_target)
    frame = pd.DataFrame({"component": [profile.next_tokens[i] for i in known], "loss": profile.losses[known]})
    frame.attrs |= {"units": {"loss": "nats"}, "about": f"{len(known)} tokens"}
    return frame


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Profile(Result):
    """Theorem 1 over the whole vocabulary, for every component and token of a text; in logits².

    Position t is the prediction of token t + 1: bias = mean_v (t − u_i)² against the next token's one-hot, diversity =
    mean_v (ū − u_i)². The last token of a text has no next one: values that need a target are NaN.

    Attributes:
        token_ids, tokens, documents: `[position]`: ids, their texts, and the index of the text each belongs to.
        losses: `[position]`, the model's own cross-entropy of the next token, in nats.
        means, centered_targets: `[position, component]`: each component's mean logit over the vocabulary, and its logit
            of the next token minus this mean.
        sizes, crosses: `[position, component]`: Σ_v of a component's centered logits squared, and of their product with
            those of the mean of all components.
        powers, ensemble_means: `[position]`, for the mean of all components: Σ_v of its centered logits squared, and
            its mean logit.
        target_powers, target_means: `[position]`, the same of the centered target, and the target's mean.
        gauge: "centered" (what softmax sees), "shift" (common to all ids) or "raw", their sum.
        identity_gap, absolute_gap: max |Σ u_i − logit| / max Σ|u_i| at the next token, over positions; and the same in
            logits.
        vocabulary: The number of ids.
        soft_cap: The soft cap of the model's logits, if any (components sum to the logits before it).
        token_lookup: Computes `top_tokens`; not in a file.
    """

    components: tuple[Component, ...]
    token_ids: Int[np.ndarray, " position"]
    tokens: tuple[str, ...]
    documents: Int[np.ndarray, " position"]
    losses: PerPosition
    means: PerComponent
    centered_targets: PerComponent
    sizes: PerComponent
    crosses: PerComponent
    powers: PerPosition
    ensemble_means: PerPosition
    target_powers: PerPosition
    target_means: PerPosition
    gauge: Gauge
    identity_gap: float
    absolute_gap: float
    vocabulary: int
    model: str
    unit: str
    soft_cap: float | None
    token_lookup: Callable[..., Any] | None = field(default=None, repr=False, metadata={"saved": False})
    prompt_ends: tuple[str, ...] = ()

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
        """Each component's squared error against the next token, undivided by |L|."""
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
        """`[position]`, True where there is a next token."""
        return np.isfinite(self.losses)

    @property
    def mse(self) -> PerPosition:
        """mean_v (t − ū)², `[position]`: the mean over components of bias − diversity."""
        products = self.centered_targets.astype(np.float64).mean(1)
        centered = (self.target_powers - 2 * products + self.powers) / self.vocabulary
        shift = (self.ensemble_means - self.target_means) ** 2
        return {"raw": centered + shift, "centered": centered, "shift": shift}[self.gauge]

    @property
    def diversity_logit(self) -> ComponentByPosition:
        """|L|² × diversity: comparable between models and units with different numbers of members."""
        return len(self.components) ** 2 * self.diversity

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
        """One row per component: means over the tokens that have a next one, with 95 % intervals over texts.

        Texts are independent, tokens of one text are not. With fewer than 8 texts `_low` and `_high` are NaN, and
        `attrs["intervals"]` says so.
        """
        sums, counts = dict[str, list[np.ndarray]](), list[int]()
        for document in np.unique(self.documents):
            inside = np.flatnonzero((self.documents == document) & self.has_target)
            counts.append(len(inside))
            for name, total in self._sums(inside).items():
                sums.setdefault(name, []).append(total)
        tokens = np.array(counts, dtype=np.float64)[:, None]
        means = {name: estimate(np.stack(totals), counts=tokens, over="texts") for name, totals in sums.items()}
        frame = estimates_frame(component_columns(self.components) | means, _UNITS)
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame

    figures: ClassVar = {
        "map": Plot(
            "Every component at every token",
            'A map component × token of `value`: "net" = bias − diversity, "bias", "diversity" or "target_logit".',
            "shapes.heat",
            "frame",
            {"row": "component", "column": "position", "value": "net", "column_name": "token", "cell": 12},
        ),
        "bars": Plot(
            "Bias and diversity of every component",
            "Bias, diversity and net = bias − diversity, means over the predicted tokens.",
            "shapes.bars",
            "by_component",
            {"columns": ("bias", "diversity", "net")},
        ),
        "loss": Plot(
            "Loss of every token",
            "The model's cross-entropy of each token.",
            "shapes.bars",
            _loss_frame,
            {"columns": ("loss",)},
        ),
        "scatter": Plot(
            "Bias and diversity of every component",
            "A mark per component at bias and diversity, on logarithmic axes.",
            "shapes.marks",
            "by_component",
            {"x": "bias", "y": "diversity", "log": True, "diagonal": "net = 0"},
        ),
    }

    def frame(self, **conditions: Any) -> pd.DataFrame:
        """One row per token and component; `conditions` select components, as in `Contributions.select`.

        Raises InputError for more than five million rows.
        """
        columns = component_positions(self.components, **conditions) if conditions else range(len(self.components))
        count, kept = len(self.token_ids), [self.components[i] for i in columns]
        if count * len(kept) > MOST_ROWS:
            choose = "choose components, as in frame(kind='neuron', layer=3), or take by_component()"
            raise InputError(f"{count} tokens × {len(kept)} components are {count * len(kept):,} rows: {choose}.")
        tokens: dict[str, Any] = {"position": np.arange(count), "document": self.documents}
        tokens |= {"token": np.array(self.tokens, object), "next_token": np.array(self.next_tokens, object)}
        rows = {name: np.repeat(column, len(kept)) for name, column in tokens.items()}
        rows |= component_columns(kept, np.tile(np.arange(len(kept)), count))
        terms = self._at(slice(None), list(columns))._terms()
        rows |= {name: table.reshape(-1) for name, table in terms.items()}
        frame = pd.DataFrame(rows | {"loss": np.repeat(self.losses, len(kept))})
        frame.attrs["units"] = _UNITS | {"loss": "nats"}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame

    def _at(self, rows: slice | np.ndarray, columns: Sequence[int] | slice = slice(None)) -> Self:
        """Select positions and columns of all tables; `components` stay, because terms are divided by their number."""
        arrays = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        kept: dict[str, Any] = {n: x[rows] if x.ndim == 1 else x[rows][:, columns] for n, x in arrays.items()}
        return replace(self, **kept)

    def _terms(self) -> dict[str, PerComponent]:
        """The tables of frames, `[position, component]`."""
        return {name: self._term(name) for name in ("bias", "diversity", "net")} | {"target_logit": self.target_logit.T}

    def _sums(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Sum every term over some positions, a few at a time, `[component]`."""
        sums = {name: np.zeros(len(self.components)) for name in _UNITS}
        step = max(1, AT_ONCE // len(self.components))
        for start in range(0, len(positions), step):
            for name, table in self._at(positions[start : start + step])._terms().items():
                sums[name] += table.sum(0)
        return sums

    def _term(self, name: str, gauge: Gauge | None = None) -> PerComponent:
        """Compute bias, diversity or net in a gauge, `[position, component]`."""
        gauge = gauge or self.gauge
        if gauge == "raw":  # the summands first: raw − shift would cancel
            return self._term(name, "centered") + self._term(name, "shift")
        if gauge == "shift":
            mean, target, ensemble = self.means.astype(np.float64), self.target_means, self.ensemble_means
            if name == "net":
                return (target**2 - ensemble**2)[:, None] + 2 * mean * (ensemble - target)[:, None]
            return (mean - (target if name == "bias" else ensemble)[:, None]) ** 2
        # |x − u_i|² = |x|² − 2 x · u_i + |u_i|², for x the target or the mean of all components.
        target, power, products = self.target_powers[:, None], self.powers[:, None], self.centered_targets.astype(float)
        if name == "net":
            return (target - power + 2.0 * (self.crosses - products)) / self.vocabulary
        square = power - 2.0 * self.crosses if name == "diversity" else target - 2.0 * products
        return np.maximum(square + self.sizes, 0) / self.vocabulary  # below 0 by rounding only

    def __repr__(self) -> str:
        texts = len(np.unique(self.documents))
        many = f" in {texts} texts" if texts > 1 else ""
        cap = self.soft_cap
        capped = "" if cap is None else f"; components sum to the logits before a soft-cap at {cap:g}"
        shape = f"{len(self.token_ids)} tokens{many} × {len(self.components)} components, {self.vocabulary} ids"
        loss = self.losses[self.has_target].mean() if self.has_target.any() else float("nan")
        return (
            f"{type(self).__name__}({self.model}: {shape}; loss {loss:.4g} nats; "
            f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits{capped})"
        )
