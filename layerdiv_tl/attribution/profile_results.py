"""Bias and diversity over the whole vocabulary, for every token of a text: the results (MATHS 9).

Arrays are kept `[position, component]`, as they are made; the public ones are `[component, position]`.
What is needed of a component's logit vector u_i over V ids is a handful of numbers: its mean, its size
and its products with the mean of all components and with the target. Everything else is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import CONDITIONS, Component, component_columns, labels_of
from ..components import positions as component_positions
from ..ensemble.decomposition import Part
from ..ensemble.intervals import RunningMean, interval_note
from ..errors import InputError
from ..results import Result

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 5_000_000
# Numbers of one term that are averaged at a time: a text's neurons are many.
AT_ONCE = 1_000_000

Table = Float[np.ndarray, "position component"]
PerPosition = Float[np.ndarray, " position"]


@dataclass(frozen=True, eq=False)
class Profile(Result):
    """`loss = bias − diversity` for every component and every token of a text. Made by `profile`.

    Columns are tokens: position t is what the model says about token t + 1. The last token of a text has
    no next one, so what needs a target is NaN there.

    components
        The names of the rows.
    token_ids, tokens, documents, contexts
        `[position]`: ids, their texts, the number of the text each belongs to, and how many tokens of it
        the model saw, its own included (it reads long texts in windows).
    losses
        `[position]`, the model's own cross-entropy of the next token, in nats.
    means, centered_targets
        `[position, component]`: a component's logit averaged over the vocabulary, and what it adds to the
        next token's logit beyond that.
    identity_gap, absolute_gap
        max |Σ u_i − logit| / max Σ|u_i| at the next token, over positions; and the same in logits.
    vocabulary, window, stride
        The number of ids; how many tokens the model read at a time, and how far it then moved on.
    model, unit, soft_cap
        The model's name, how finely it was cut, where it caps its logits (components sum to those before).
    look
        Finds the tokens a component promotes; it needs the model, so it is not saved.
    """

    components: tuple[Component, ...]
    token_ids: Int[np.ndarray, " position"]
    tokens: tuple[str, ...]
    documents: Int[np.ndarray, " position"]
    contexts: Int[np.ndarray, " position"]
    losses: PerPosition
    means: Table
    centered_targets: Table
    identity_gap: float
    absolute_gap: float
    vocabulary: int
    window: int
    stride: int
    model: str
    unit: str
    soft_cap: float | None
    look: Callable[..., Any] | None = field(default=None, repr=False, kw_only=True, metadata={"saved": False})

    measured_in: ClassVar[str]

    @property
    def loss(self) -> PerPosition:
        """The model's own cross-entropy of each next token, `[position]`, in nats."""
        return self.losses

    @property
    def target_logit(self) -> Float[np.ndarray, "component position"]:
        """What each component adds to the next token's logit."""
        return self._target_logits().T

    def _target_logits(self, rows: Any = slice(None), columns: Any = slice(None)) -> Table:
        return self.centered_targets[rows][:, columns].astype(np.float64) + self.means[rows][:, columns]

    @property
    def bias(self) -> Float[np.ndarray, "component position"]:
        """Each component's own loss against the next token, undivided by |L|."""
        raise NotImplementedError

    @property
    def diversity(self) -> Float[np.ndarray, "component position"]:
        """Each component's distance from the ensemble, undivided by |L|."""
        raise NotImplementedError

    @property
    def net(self) -> Float[np.ndarray, "component position"]:
        """bias − diversity."""
        raise NotImplementedError

    @property
    def next_tokens(self) -> tuple[str | None, ...]:
        """The text of each next token; None at the end of a text."""
        ends = np.append(self.documents[1:] != self.documents[:-1], True)
        return tuple(None if end else text for end, text in zip(ends, (*self.tokens[1:], ""), strict=True))

    @property
    def has_target(self) -> np.ndarray:
        """`[position]`, whether there is a target."""
        return np.isfinite(self.losses)

    def top_tokens(
        self,
        component: str | Component | Sequence[str | Component] | None = None,
        position: int = -1,
        k: int = 10,
    ) -> pd.DataFrame:
        """What components promote and suppress at a position: their k largest and k smallest logits.

        component
            A label or component, several, or None for all; the model runs once for all of them.
        position
            A column of this profile; negative counts from the end.

        `contribution` is in logits, `contribution_centered` after the vocabulary mean, which no softmax
        sees, is taken away. Raises InputError for components and positions that do not exist here, and for a profile
        that was loaded from a file, which holds no model.
        """
        look = self.look
        if look is None:
            raise InputError(
                "this profile was loaded from a file, which holds no model: look at tokens in the profile of a model "
                "in memory (layerdiv_tl.profile(model, text))."
            )
        k, count = whole_number("k", k, 1, self.vocabulary), len(self.token_ids)
        place = whole_number("position", position, -count, count - 1) % count
        columns = list(range(len(self.components)))
        if component is not None:
            labels = labels_of("component", component)
            columns = [component_positions(self.components, label=label)[0] for label in labels]
        document = int(self.documents[place])
        within = place - int(np.flatnonzero(self.documents == document)[0])
        return look([self.components[i] for i in columns], columns, document, within, k)

    def by_component(self) -> pd.DataFrame:
        """One row per component: means over the tokens that have a target, with 95 % intervals over texts.

        A text's tokens have much in common, so texts are what is independent: fewer than 8 have no interval,
        `_low` and `_high` are then NaN, and `attrs["intervals"]` says so. `corpus_profile` is for many texts.
        """
        import pandas as pd

        rows = component_columns(self.components)
        running = {name: RunningMean() for name in self._terms(np.arange(0))}
        step = max(1, AT_ONCE // len(self.components))
        for document in np.unique(self.documents):
            inside = np.flatnonzero((self.documents == document) & self.has_target)
            sums: dict[str, Any] = {}
            for start in range(0, len(inside), step):
                for name, table in self._terms(inside[start : start + step]).items():
                    sums[name] = sums.get(name, 0.0) + table.sum(0)
            for name, total in sums.items():
                running[name].add(total, len(inside))
        if not running["bias"].count:
            columns = {name + end: np.nan for name in running for end in ("", "_low", "_high")}
            return self._finish(pd.DataFrame(rows | columns))
        frame = self._finish(pd.DataFrame(rows | intervals(running)))
        frame.attrs["intervals"] = interval_note(int(running["bias"].clusters), "texts")
        return frame

    def frame(self, **conditions: Any) -> pd.DataFrame:
        """One row per token and component; `conditions` choose components, as `Contributions.select` does.

        Raises InputError where it would have more than five million rows.
        """
        import pandas as pd

        if unknown := set(conditions) - set(CONDITIONS):
            raise InputError(f"there is no condition {min(unknown)}= on components: use {', '.join(CONDITIONS)}.")
        columns = component_positions(self.components, **conditions) if conditions else range(len(self.components))
        count, kept = len(self.token_ids), [self.components[i] for i in columns]
        if count * len(kept) > MOST_ROWS:
            raise InputError(
                f"{count} tokens × {len(kept)} components are {count * len(kept):,} rows: choose components, as in "
                "frame(kind='neuron', layer=3), or take by_component()."
            )
        following = self.next_tokens
        rows: dict[str, Any] = {
            "position": np.repeat(np.arange(count), len(kept)),
            "document": np.repeat(self.documents, len(kept)),
            "token": np.repeat(np.array(self.tokens, dtype=object), len(kept)),
            "next_token": np.repeat(np.array(following, dtype=object), len(kept)),
        }
        rows |= component_columns(kept, np.tile(np.arange(len(kept)), count))
        for name, table in self._terms(np.arange(count), list(columns)).items():
            rows[name] = table.reshape(-1)
        rows["loss"] = np.repeat(self.losses, len(kept))
        return self._finish(pd.DataFrame(rows))

    def _terms(self, rows: slice | np.ndarray, columns: Any = slice(None)) -> dict[str, Table]:
        """The tables of some positions and components."""
        raise NotImplementedError

    def _finish(self, frame: pd.DataFrame) -> pd.DataFrame:
        prefixes = ("bias", "diversity", "net")
        frame.attrs["units"] = {name: self.measured_in for name in frame.columns if name.startswith(prefixes)} | {
            name: "nats" if name == "loss" else "logits"
            for name in frame.columns
            if name.startswith(("loss", "target_logit"))
        }
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        return frame

    def _mean_loss(self) -> float:
        return float(self.losses[self.has_target].mean()) if self.has_target.any() else float("nan")

    def __repr__(self) -> str:
        texts = len(np.unique(self.documents))
        many = f" in {texts} texts" if texts > 1 else ""
        longest = int(np.bincount(self.documents).max())
        read = f", read {self.window} at a time, moving on by {self.stride}" if longest > self.window else ""
        capped = (
            "" if self.soft_cap is None else f"; components sum to the logits before a soft-cap at {self.soft_cap:g}"
        )
        shape = f"{len(self.token_ids)} tokens{many} × {len(self.components)} components, {self.vocabulary} ids"
        return (
            f"{type(self).__name__}({self.model}: {shape}{read}; loss {self._mean_loss():.4g} nats; "
            f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits{capped})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SquaredProfile(Profile):
    """Theorem 1 over the whole vocabulary, in squared logits; raw = shift + centered as in `ensemble.losses.SquaredError`.

    sizes, crosses
        `[position, component]`: Σ_v of a component's centered logits squared, and times those of the mean of
        all components.
    powers, ensemble_means
        `[position]`, of the mean of all components: Σ_v of its centered logits squared, and its mean logit.
    agreements, target_powers, target_means
        Σ_v of the centered target times the component's logits `[position, component]` (None for the next
        token, where it is `centered_targets`); of the target itself, and its mean `[position]`.
    part
        Which of the three this is.
    """

    sizes: Table = field(kw_only=True)
    crosses: Table = field(kw_only=True)
    powers: PerPosition = field(kw_only=True)
    ensemble_means: PerPosition = field(kw_only=True)
    agreements: Table | None = field(kw_only=True)
    target_powers: PerPosition = field(kw_only=True)
    target_means: PerPosition = field(kw_only=True)
    part: Part = field(default="raw", kw_only=True)

    measured_in: ClassVar[str] = "logits²"

    @property
    def bias(self) -> Float[np.ndarray, "component position"]:
        """mean_v (t − u_i)², against the next token's one-hot (or the dense target)."""
        return self._table("bias", self.part).T

    @property
    def diversity(self) -> Float[np.ndarray, "component position"]:
        """mean_v (ū − u_i)²."""
        return self._table("diversity", self.part).T

    @property
    def net(self) -> Float[np.ndarray, "component position"]:
        """bias − diversity, from its own linear form, in which a component's size does not occur."""
        return self._table("net", self.part).T

    @property
    def diversity_logit(self) -> Float[np.ndarray, "component position"]:
        """|L|² × diversity: comparable between models and cuts with different numbers of members."""
        return len(self.components) ** 2 * self.diversity

    @property
    def has_target(self) -> np.ndarray:
        """`[position]`, whether there is a target; a dense one is everywhere."""
        return np.isfinite(self.target_means)

    @property
    def mse(self) -> PerPosition:
        """mean_v (t − ū)², `[position]`: the mean over components of bias − diversity."""
        product = self._agreements().mean(1)
        centered = (self.target_powers - 2 * product + self.powers) / self.vocabulary
        shift = (self.ensemble_means - self.target_means) ** 2
        return {"raw": centered + shift, "centered": centered, "shift": shift}[self.part]

    @cached_property
    def centered(self) -> SquaredProfile | None:
        """The half a softmax sees, under the same names; None in the halves themselves."""
        return replace(self, part="centered") if self.part == "raw" else None

    @cached_property
    def shift(self) -> SquaredProfile | None:
        """The half that is common to all ids; None in the halves themselves."""
        return replace(self, part="shift") if self.part == "raw" else None

    def _means(self, rows: Any = slice(None), columns: Any = slice(None)) -> Table:
        return self.means[rows][:, columns].astype(np.float64)

    def _agreements(self, rows: Any = slice(None), columns: Any = slice(None)) -> Table:
        if self.agreements is not None:
            return self.agreements[rows][:, columns].astype(np.float64)
        return self.centered_targets[rows][:, columns].astype(np.float64)

    def _table(
        self, term: Literal["bias", "diversity", "net"], part: Part, rows: Any = slice(None), columns: Any = slice(None)
    ) -> Table:
        if part == "raw":  # the parts first, then their sum: raw − shift would cancel
            return self._table(term, "centered", rows, columns) + self._table(term, "shift", rows, columns)
        mean = self._means(rows, columns)
        if part == "shift":
            target, middle = self.target_means[rows, None], self.ensemble_means[rows, None]
            if term == "net":
                return target**2 - middle**2 + 2 * mean * (middle - target)
            return (mean - (target if term == "bias" else middle)) ** 2
        sizes, crosses = self.sizes[rows][:, columns], self.crosses[rows][:, columns]
        target, power = self.target_powers[rows, None], self.powers[rows, None]
        if term == "diversity":
            found = sizes - 2.0 * crosses + power
        elif term == "bias":
            found = target - 2.0 * self._agreements(rows, columns) + sizes
        else:
            return (target - power + 2.0 * (crosses - self._agreements(rows, columns))) / self.vocabulary
        return np.maximum(found, 0) / self.vocabulary  # below 0 by rounding only

    def _terms(self, rows: slice | np.ndarray, columns: Any = slice(None)) -> dict[str, Table]:
        found = {}
        parts: tuple[Part, ...] = ("raw", "centered", "shift") if self.part == "raw" else (self.part,)
        for part in parts:
            suffix = "" if part in ("raw", self.part) else f"_{part}"
            for term in ("bias", "diversity", "net"):
                found[term + suffix] = self._table(term, part, rows, columns)
        return found | {"target_logit": self._target_logits(rows, columns)}


@dataclass(frozen=True, eq=False, repr=False)
class CrossEntropyProfile(Profile):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i) over the whole vocabulary, in nats (MATHS 3).

    q_i = softmax(τu_i), p = softmax(τū). By default τ = |L|: p is the model's own distribution, before a
    soft-cap where there is one.

    log_partitions, expectations
        `[position, component]`: log Σ_v exp(τ u_i(v)) and E_p[u_i], of logits less their mean.
    entropies
        `[position]`, H(p) in nats.
    tau
        τ as used.
    """

    log_partitions: Table = field(kw_only=True)
    expectations: Table = field(kw_only=True)
    entropies: PerPosition = field(kw_only=True)
    tau: float = field(kw_only=True)

    measured_in: ClassVar[str] = "nats"

    @property
    def bias(self) -> Float[np.ndarray, "component position"]:
        """CE(t, q_i): each component's own cross-entropy of the next token."""
        return np.maximum(self.log_partitions - self.tau * self.centered_targets, 0).T  # below 0 by rounding only

    @property
    def diversity(self) -> Float[np.ndarray, "component position"]:
        """KL(p ‖ q_i)."""
        found = self.log_partitions - self.tau * self.expectations - self.entropies[:, None]
        return np.maximum(found, 0).T  # below 0 by rounding only

    @property
    def net(self) -> Float[np.ndarray, "component position"]:
        """bias − diversity = H(p) + τ(E_p[u_i] − u_i(t))."""
        return (self.entropies[:, None] + self.tau * (self.expectations - self.centered_targets)).T

    @property
    def net_linear(self) -> Float[np.ndarray, "component position"]:
        """(τ/|L|)(E_p[u_i] − u_i(t)): what each component adds to the loss beyond H(p); heads add to attention."""
        return self.tau / len(self.components) * (self.expectations - self.centered_targets).T

    @property
    def centered(self) -> CrossEntropyProfile:
        """This profile itself: a softmax sees no shift."""
        return self

    @property
    def cross_entropy(self) -> PerPosition:
        """CE(t, p) `[position]`: H(p) + Σ net_linear. It is `loss` where τ = |L| and nothing caps the logits."""
        return self.entropies + self.net_linear.sum(0)

    def _terms(self, rows: slice | np.ndarray, columns: Any = slice(None)) -> dict[str, Table]:
        names = ("bias", "diversity", "net", "net_linear", "target_logit")
        return {name: getattr(self, name).T[rows][:, columns] for name in names}


def intervals(running: dict[str, RunningMean]) -> dict[str, np.ndarray]:
    """Mean, low and high of every term, as columns."""
    columns: dict[str, np.ndarray] = {}
    for name, mean in running.items():
        low, high = mean.interval()
        columns |= {name: mean.mean, f"{name}_low": low, f"{name}_high": high}
    return columns
