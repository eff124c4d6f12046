"""Bias and diversity of an ensemble: one result for each loss, and the function that makes them.

The mathematics is in `losses` and `relations`; here it gets names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_args, overload, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from .._checks import choice, flag, listed
from ..components import Component, component_columns
from ..errors import InputError
from ..results import Result
from . import losses
from . import repeated_layers as repeats
from . import theorems as relations
from .frames import PerExample, accuracy_term, clustered, coherence_of, mean_of, means, pair_columns, ratio
from .intervals import interval_note, jackknife, leave_one_out, mean_interval, wilson
from .losses import Terms
from .validation import check_members, dense_target, factor, gold_options, named, numbers

if TYPE_CHECKING:
    import pandas as pd

Part = Literal["raw", "centered", "shift"]
NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]
TERMS = ("bias", "diversity", "net")
_MEASURED = ("bias", "diversity", "net", "loss", "zero_bias", "within", "between", "entropy")
# Kinds that no sublayer writes: the first is in every prefix, the second in the last.
_NO_WRITES = ("constant", "rounding")
# A table of all pairs of more members is neither read nor drawn.
MOST_PAIRED = 1000
_NO_NESTED = "the nested cut is exact for loss='squared' and loss='cross_entropy' only: decompose with one."


@runtime_checkable
class Ensemble(Protocol):
    """What `decompose` reads of `Contributions`: values with names, and where they stand in the stream."""

    @property
    def values(self) -> np.ndarray:
        """`[example, member, option]`, in logits."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The members' names."""

    @property
    def options(self) -> tuple:
        """The options' texts: K of them, or K for every example."""

    @property
    def identity_gap(self) -> float:
        """How well the members summed to the model's logits."""

    @property
    def junctions(self) -> tuple[Component, ...]:
        """The component that closes each junction."""

    @property
    def junction_scale(self) -> np.ndarray:
        """`[example, junction]`, the final norm's statistic there relative to that of the whole stream."""

    @property
    def partial_junctions(self) -> np.ndarray:
        """`[junction]`, True where the stream never stands: half-way through a parallel block."""

    @property
    def soft_cap(self) -> float | None:
        """Where the model caps its logits; the members sum to the logits before it."""


@dataclass(frozen=True, eq=False)
class Decomposition(Result):
    """`loss = bias − diversity` of one ensemble; a subclass for every loss. Made by `decompose`.

    values, components
        The members, `[example, member, option]` in logits, and their names.
    target, gold
        `[example, option]`, and the gold option's index `[example]`, None for a dense target.
    tau
        The factor on logits before a softmax, as given; None is the loss's own default.
    junctions, junction_scale, partial_junctions
        Where the members stand in the stream (`Contributions`); None for a plain array, whose every
        member closes a junction.
    identity_gap, soft_cap
        How well the components summed to the model's logits, and where the model caps these; None for an array.
    """

    values: Float[np.ndarray, "example member option"]
    components: tuple[Component, ...]
    target: Float[np.ndarray, "example option"]
    gold: Int[np.ndarray, " example"] | None
    tau: float | None
    junctions: tuple[Component, ...] | None
    junction_scale: Float[np.ndarray, "example junction"] | None
    partial_junctions: Bool[np.ndarray, " junction"] | None
    identity_gap: float | None
    soft_cap: float | None

    measured_in: ClassVar[str]
    baseline: ClassVar[str] = "a component that writes nothing: uniform"

    @cached_property
    def terms(self) -> Terms:
        """Loss, biases, diversities per example."""
        raise NotImplementedError

    @property
    def losses(self) -> Float[np.ndarray, " example"]:
        """The ensemble's loss, `[example]`."""
        return self.terms.losses

    @property
    def biases(self) -> Float[np.ndarray, "example member"]:
        """The members' own losses, `[example, member]`, undivided by |L|."""
        return self.terms.biases

    @property
    def diversities(self) -> Float[np.ndarray, "example member"]:
        """The members' distances from the ensemble, `[example, member]`, undivided by |L|."""
        return self.terms.diversities

    @property
    def loss(self) -> float:
        """The ensemble's loss, mean over examples."""
        return float(self.losses.mean())

    @property
    def bias(self) -> float:
        """Mean loss of the members, each on its own."""
        return float(self.biases.mean())

    @property
    def diversity(self) -> float:
        """Mean distance of the members from the ensemble; *ambiguity* elsewhere."""
        return float(self.diversities.mean())

    @property
    def zero_bias(self) -> float:
        """The bias of a member that says nothing (u = 0): the baseline of all biases."""
        return float(self.terms.silences.mean())

    @property
    def gap(self) -> float | None:
        """|loss − (bias − diversity)| relative to the largest of the three: the identity, as measured."""
        scale = max(abs(self.loss), abs(self.bias), abs(self.diversity), np.finfo(float).tiny)
        return abs(self.loss - (self.bias - self.diversity)) / scale

    @cached_property
    def correct(self) -> Float[np.ndarray, "example member"] | None:
        """Whether a member alone prefers the gold option, `[example, member]`; None without labels.

        1/n where the gold option shares the first place among n, as in a member that says nothing.
        """
        if self.gold is None:
            return None
        first = self.values == self.values.max(2, keepdims=True)
        return np.take_along_axis(first, self.gold[:, None, None], 2)[:, :, 0] / first.sum(2)

    @cached_property
    def ensemble_correct(self) -> Bool[np.ndarray, " example"] | None:
        """Whether all members together prefer the gold option, `[example]`; None without labels.

        Of equal options the first counts, as where a model decodes.
        """
        return None if self.gold is None else self.values.sum(1).argmax(1) == self.gold

    @property
    def accuracy(self) -> float:
        """How often the ensemble prefers the gold option. Raises InputError without labels."""
        if self.ensemble_correct is None:
            raise InputError("this decomposition has no gold option for each example, so no accuracy: give labels.")
        return float(self.ensemble_correct.mean())

    def by_component(self) -> pd.DataFrame:
        """One row per member: bias, diversity and what else its loss tells, undivided by |L|.

        `bias_share` and `diversity_share` are a member's part of the ensemble's sum; `accuracy` is the
        member's own; `_low` and `_high` are 95 % intervals over examples, NaN for fewer than 8.
        """
        table = self.per_example("components")
        return self._finish(self._frame_of(table, self._shares(table)))

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|, the share a module would have if
        its members were like all others; `_mean` is undivided.
        """
        table = self.per_example("modules")
        rows = self._frame_of(table, self._shares(table))
        for suffix, _ in self._parts():
            for term in ("bias", "diversity"):
                for end in ("", "_low", "_high"):
                    rows[f"{term}_mean{suffix}{end}"] = rows[f"{term}{suffix}{end}"] / rows["member_share"]
        return self._finish(rows)

    def by_depth(self, norm: NormAt = "frozen") -> pd.DataFrame:
        """One row per junction: the prefix ensemble of all that was written up to there (Fig. 5 and 7).

        norm
            "frozen" (as the paper decodes): every prefix is read out with the whole stream's norm
            statistic; "recomputed": with its own, as if the model ended there. The constant belongs to
            every prefix, and what half precision lost in between (`rounding`) to the last one only.

        `partial` rows are sums that the stream never holds: half-way through a parallel block, and an
        embedding whose positions are still to be added. Raises InputError for an unknown norm, and for
        "recomputed" with a plain array, which has no norm.
        """
        choice("norm", norm, get_args(NormAt))
        frame = self._finish(self._frame_of(self.per_example("depth" if norm == "frozen" else "depth_recomputed")))
        frame.attrs["norm"] = norm
        return frame

    def per_example(self, table: Table) -> PerExample:
        """The numbers behind a frame before they are averaged: every term, `[example, row]`.

        table
            "totals" (`frame`), "components" (`by_component`), "modules" (`by_module`), "depth" and
            "depth_recomputed" (`by_depth`). Raises InputError for any other.
        """
        match choice("table", table, get_args(Table)):
            case "totals":
                terms = {
                    name + suffix: values[:, None]
                    for suffix, part in self._parts()
                    for name, values in part._total_terms().items()
                }
                return PerExample({"members": [len(self.components)]}, terms | accuracy_term(self.ensemble_correct))
            case "components":
                terms = {
                    name + suffix: values
                    for suffix, part in self._parts()
                    for name, values in part._member_terms().items()
                }
                return PerExample(component_columns(self.components), terms | accuracy_term(self.correct))
            case "modules":
                return self._modules()
        return self._depth("frozen" if table == "depth" else "recomputed")

    def _modules(self) -> PerExample:
        modules, group = relations.group_numbers([c.module for c in self.components])
        member = np.eye(len(modules))[group].T
        counts = member.sum(1)
        terms: dict[str, np.ndarray] = {}
        for suffix, part in self._parts():
            for name, values in part._member_terms().items():
                # What is additive by itself is summed, what is an average over members weighted by their number.
                terms[name + suffix] = values @ member.T / (1.0 if name in part._ADDITIVE else counts.sum())
            terms |= {name + suffix: values for name, values in part._module_terms(member).items()}
        names = {"module": modules, "members": counts.astype(int), "member_share": counts / counts.sum()}
        return PerExample(names, terms)

    def _depth(self, norm: NormAt) -> PerExample:
        if norm == "recomputed" and self.junction_scale is None:
            raise InputError("a plain array has no norm to recompute: use norm='frozen', or give Contributions.")
        places = self._places()
        if max(places) < 0:
            raise InputError("nothing here is written to the stream, so there is no depth: keep other components too.")
        reached = sorted(set(places) - {-1})
        stacked: dict[str, list[np.ndarray]] = {}
        counts = []
        for place in reached:
            prefix = self._prefix(places, place, place == reached[-1], norm)
            totals = prefix.per_example("totals")
            counts += totals.names["members"]
            for name, values in totals.terms.items():
                stacked.setdefault(name, []).append(values[:, 0])
        names = component_columns([(self.junctions or self.components)[place] for place in reached])
        partial = [self.partial_junctions is not None and bool(self.partial_junctions[p]) for p in reached]
        terms = {name: np.stack(values, 1) for name, values in stacked.items()}
        return PerExample(names | {"partial": partial, "members": counts}, terms)

    def _shares(self, table: PerExample) -> dict[str, np.ndarray]:
        """Each row's share of the sum of bias and of diversity, with its interval."""
        columns: dict[str, np.ndarray] = {}
        for suffix, _ in self._parts():
            for term in ("bias", "diversity"):
                values = table.terms[term + suffix]
                share, rest = (ratio(x, x.sum(-1, keepdims=True)) for x in (values.mean(0), leave_one_out(values)))
                low, high = jackknife(share, rest, within=(0.0, 1.0))
                name = f"{term}_share{suffix}"
                columns |= {name: share, f"{name}_low": low, f"{name}_high": high}
        return columns

    def _frame_of(self, rows: PerExample, more: dict[str, np.ndarray] | None = None) -> pd.DataFrame:
        """Means over examples with their intervals: Wilson's for accuracy."""
        import pandas as pd

        columns = means({name: values for name, values in rows.terms.items() if name != "accuracy"})
        if "accuracy" in rows.terms:
            right = rows.terms["accuracy"]
            low, high = wilson(right.sum(0), len(right))
            columns |= {"accuracy": right.mean(0), "accuracy_low": low, "accuracy_high": high}
        return pd.DataFrame(rows.names | columns | (more or {}))

    def pairwise(self, by: Literal["cosine", "distance", "disagreement"] = "cosine") -> pd.DataFrame:
        """One row per pair of members: how far what they say is apart, to find duplicates.

        `distance` is the mean squared distance over examples and options, in logits² (diversity is half
        its mean over all |L|² pairs); `cosine` is pooled over examples and options; `_centered` is over
        options, which is what a softmax sees; `disagreement` is how often the preferred options differ.
        `attrs["order"]` lists the members by hierarchical clustering (average linkage) of `by`, centered,
        and the pairs stand in that order; `attrs["linkage"]` is the tree, as
        scipy's `linkage`. Raises InputError for an unknown `by` and for too many members.
        """
        import pandas as pd
        from scipy.cluster.hierarchy import leaves_list

        count = len(self.components)
        choice("by", by, ("cosine", "distance", "disagreement"))
        if count > MOST_PAIRED:
            raise InputError(
                f"{count} members have {count * (count - 1) // 2} pairs: keep at most {MOST_PAIRED} of them, with "
                "contributions(..., top=...) or select(...)."
            )
        if count < 2:
            raise InputError("there is one member only, so there are no pairs.")
        columns = pair_columns(self.values)
        joined = clustered(columns[by if by == "disagreement" else f"{by}_centered"], count, by)
        order = leaves_list(joined)
        one, other = np.triu_indices(count, 1)
        rank = np.argsort(order)
        swap = rank[one] > rank[other]
        one, other = np.where(swap, other, one), np.where(swap, one, other)
        labels = np.array([c.label for c in self.components], dtype=object)
        frame = pd.DataFrame({"component": labels[one], "other": labels[other], **columns})
        frame = frame.iloc[np.lexsort((rank[other], rank[one]))].reset_index(drop=True)
        unit = {"distance": "logits²", "cosine": "cosine", "disagreement": "share"}
        frame.attrs["units"] = {column: unit[column.split("_")[0]] for column in columns}
        frame.attrs |= {"order": [labels[i] for i in order], "linkage": joined.tolist()}
        frame.attrs |= {"identity_gap": self.identity_gap, "intervals": interval_note(len(self.values))}
        return frame

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """Diversity within and between groups. Only for the squared error and the cross-entropy."""
        raise InputError(_NO_NESTED)

    def by_repeat(self) -> pd.DataFrame:
        """One row per sublayer, head or neuron that runs several times in a pass: do its uses do different things?

        The nested cut (MATHS 8) with blocks for groups and their uses for leaves, so that what the leaves differ
        by is `within`, what lies between the uses of one block, plus `between`, what lies between blocks.
        `share` is a block's `within` as a part of all of both; `attrs["share"]`, with `_low` and `_high`, is that of
        all blocks together, and `attrs` holds the totals as those of `nested`. `cosine_centered` is the mean cosine
        between two uses, centered over options and pooled over examples. For the squared error `diversity` is that of
        the ensemble of a block's uses alone, `within` / uses²: 0 where all uses say the same.

        Raises InputError where no layer is used twice, and for losses that have no nested cut.

        >>> from layerdiv_tl import decompose
        >>> two = np.array([[[0.0, 0.0], [3.0, 1.0], [1.0, 3.0]]])
        >>> d = decompose(two, labels=[0], components=["embed", "L0@1.mlp", "L0@2.mlp"])
        >>> d.by_repeat()[["component", "repeats", "diversity", "within", "share", "cosine_centered"]].values.tolist()
        [['L0.mlp', 2, 1.0, 4.0, 0.3333333333333333, -1.0]]
        """
        import pandas as pd

        names, group = relations.group_numbers(repeats.blocks_of(self.components))
        errors, blocks = self._nested_blocks(group)
        table = self._nested_frame(names, group, errors, blocks)
        again = np.flatnonzero(np.bincount(group) > 1)
        columns: dict[str, Any] = component_columns([names[i] for i in again])
        del columns["repeat"]
        columns["repeats"] = table["members"].to_numpy()[again]
        attrs = table.attrs
        for suffix, _ in self._parts():
            for name, plain in (("within_unscaled", "diversity"), ("within", "within"), ("between", "between")):
                for end in ("", "_low", "_high"):
                    if f"{name}{suffix}{end}" in table:
                        columns[f"{plain}{suffix}{end}"] = table[f"{name}{suffix}{end}"].to_numpy()[again]
            each, every = repeats.shares(blocks[f"within{suffix}"], blocks[f"between{suffix}"])
            for end, values, total in zip(("", "_low", "_high"), each, every, strict=True):
                columns[f"share{suffix}{end}"] = values[again]
                attrs[f"share{suffix}{end}"] = total
        cosine = repeats.cosines(self.values, group, again.tolist())
        columns |= {f"cosine_centered{end}": x for end, x in zip(("", "_low", "_high"), cosine, strict=True)}
        frame = self._finish(pd.DataFrame(columns))
        frame.attrs |= {name: value for name, value in attrs.items() if name not in frame.attrs}
        return frame

    def _nested_blocks(self, group: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(the coarser ensemble's loss, by part, `[example]`; the columns of `nested`, `[example, group]`)."""
        raise InputError(_NO_NESTED)

    def tradeoff(self, paper: bool = False) -> pd.DataFrame:
        """Theorem 3. Only for the squared error."""
        raise InputError("Theorem 3 is about the squared error: decompose with loss='squared'.")

    def bounds(self) -> pd.DataFrame:
        """Theorem 2. Only for the squared error."""
        raise InputError("Theorem 2 is about the squared error: decompose with loss='squared'.")

    def frame(self) -> pd.DataFrame:
        """The totals, with intervals; one row each for raw, centered and shift where there are halves."""
        import pandas as pd

        rows = []
        for suffix, part in self._parts():
            terms = {name: values[:, None] for name, values in part._total_terms().items()}
            terms["zero_bias"] = part.terms.silences[:, None]
            names = {"part": [suffix.removeprefix("_") or "raw"], "members": [len(self.components)]}
            row = part._frame_of(PerExample(names, terms | accuracy_term(part.ensemble_correct)))
            rows.append(row.iloc[0].to_dict() | part._notes())
        return self._finish(pd.DataFrame(rows))

    def _grouped(self, groups: Sequence[object] | None) -> tuple[list, np.ndarray]:
        """(the groups' names, each member's number)."""
        if groups is not None:
            groups = listed("groups", groups, "a list with a name for each member")
            if not all(isinstance(name, str | int | float | Component) and name == name for name in groups):
                raise InputError("groups must be texts, numbers or components, one for each member.")
            if len(groups) != len(self.components):
                count = len(self.components)
                raise InputError(f"groups names {len(groups)} members, but there are {count}: one for each.")
        names, group = relations.group_numbers([c.sublayer for c in self.components] if groups is None else groups)
        if len(names) == len(group):
            raise InputError(
                "every group has one member, so nothing is nested: use unit='head' or 'neuron', or name the groups."
            )
        return names, group

    def _nested_frame(
        self, names: list, group: np.ndarray, errors: dict[str, np.ndarray], blocks: dict[str, np.ndarray]
    ) -> pd.DataFrame:
        import pandas as pd

        sublayers = all(isinstance(name, Component) for name in names)
        rows: dict[str, Any] = {"group": [str(name) for name in names]}
        if sublayers:
            rows |= {
                column: values
                for column, values in component_columns(names).items()
                if column in ("kind", "layer", "repeat")
            }
        rows |= {"members": np.bincount(group)} | means(blocks)
        frame = self._finish(pd.DataFrame(rows))
        for suffix, error in errors.items():
            bias, within, between = (float(blocks[name + suffix].mean()) for name in ("bias", "within", "between"))
            loss = float(error.mean())
            gap = abs(loss - (bias - within - between)) / max(abs(loss), bias, within, between, np.finfo(float).tiny)
            totals = {"loss": loss, "bias": bias, "within": within, "between": between, "gap": gap}
            sums = {name: blocks[name + suffix].mean(1) for name in ("bias", "within", "between")}
            for name, values in (sums | {"loss": error}).items():
                low, high = mean_interval(values)
                totals |= {f"{name}_low": float(low), f"{name}_high": float(high)}
            frame.attrs |= {
                name.replace("_low", f"{suffix}_low").replace("_high", f"{suffix}_high")
                if name.endswith(("_low", "_high"))
                else name + suffix: value
                for name, value in totals.items()
            }
        return frame

    # What a subclass adds to the tables. Names of columns, values per example.
    _ADDITIVE: ClassVar[tuple[str, ...]] = ()

    def _member_terms(self) -> dict[str, Float[np.ndarray, "example member"]]:
        return {"bias": self.biases, "diversity": self.diversities, "net": self.biases - self.diversities}

    def _module_terms(self, member: Float[np.ndarray, "module member"]) -> dict[str, np.ndarray]:
        return {}

    def _total_terms(self) -> dict[str, Float[np.ndarray, " example"]]:
        return {"loss": self.losses, "bias": self.biases.mean(1), "diversity": self.diversities.mean(1)}

    def _notes(self) -> dict[str, Any]:
        return {"gap": self.gap}

    def _parts(self) -> list[tuple[str, Decomposition]]:
        return [("", self)]

    def _places(self) -> list[int]:
        """The number of each member's junction; −1 for what is no write to the stream."""
        if self.junctions is None:
            return [-1 if c.kind in _NO_WRITES else i for i, c in enumerate(self.components)]
        number = {junction: i for i, junction in enumerate(self.junctions)}
        return [number.get(c.sublayer, -1) for c in self.components]

    def _prefix(self, places: list[int], place: int, last: bool, norm: NormAt) -> Self:
        """The ensemble of what was written up to a junction, with the constant."""
        everywhere = [-1 if c.kind == "constant" else len(places) for c in self.components]
        own = [e if p < 0 else p for e, p in zip(everywhere, places, strict=True)]
        keep = [i for i, at in enumerate(own) if last or at <= place]
        # A view where it can be one: there are as many prefixes as junctions.
        values = self.values[:, : len(keep)] if keep == list(range(len(keep))) else self.values[:, keep]
        if norm == "recomputed":
            assert self.junction_scale is not None
            written = np.array([places[i] >= 0 for i in keep])
            values = np.where(written[None, :, None], values / self.junction_scale[:, place, None, None], values)
        return replace(self, values=values, components=tuple(self.components[i] for i in keep))

    def _finish(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.attrs["units"] = {column: unit for column in frame.columns if (unit := self._unit(column))}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        frame.attrs |= {"intervals": interval_note(len(self.values))}
        return frame

    def _unit(self, column: str) -> str | None:
        """The unit of a column, by what its name begins with."""
        if "_share" in column or column.startswith(("accuracy", "share")):
            return "share"
        if column.startswith("cosine"):
            return "cosine"
        if column.removeprefix("plain_").startswith(_MEASURED):
            return self.measured_in
        return None

    def _equation(self) -> str:
        return f"loss {self.loss:.4g} = bias {self.bias:.4g} − diversity {self.diversity:.4g}; gap {self.gap:.0e}"

    def __repr__(self) -> str:
        n, count, _ = self.values.shape
        capped = "" if self.soft_cap is None else f"; before a soft-cap at {self.soft_cap:g}"
        return f"{type(self).__name__}({n} examples × {count} members, {self.measured_in}: {self._equation()}{capped})"


@dataclass(frozen=True, eq=False, repr=False)
class SquaredError(Decomposition):
    """Theorem 1: MSE of ū against the target in logit space, in squared logits (Eq. 7-10, MATHS 1).

    For each x among t−ū, t−u_i, ū−u_i: mean_k x² = (mean_k x)² + var_k x, so the theorem holds twice, in
    the *shift* common to all options, which a softmax cannot see, and in the *centered* rest; raw is
    their sum. `part` says which of the three this is.
    """

    part: Part = "raw"

    measured_in: ClassVar[str] = "logits²"
    baseline: ClassVar[str] = "a component that writes nothing"

    @cached_property
    def terms(self) -> Terms:
        """Loss, biases, diversities per example."""
        if self.part == "shift":  # all options are alike, so one of them will do
            return losses.squared(self.values[:, :, :1], self.target[:, :1])
        if self.centered is None or self.shift is None:
            return losses.squared(self.values, self.target)
        # raw − shift cancels, shift + centered does not.
        return self.centered.terms + self.shift.terms

    @cached_property
    def centered(self) -> SquaredError | None:
        """The half a softmax sees, a whole decomposition; None in the halves themselves."""
        if self.part != "raw":
            return None
        target = self.target - self.target.mean(1, keepdims=True)
        return replace(self, values=self.values - self.values.mean(2, keepdims=True), target=target, part="centered")

    @cached_property
    def shift(self) -> SquaredError | None:
        """The half that is common to all options; it prefers none, so it has no accuracy."""
        if self.part != "raw":
            return None
        values = np.broadcast_to(self.values.mean(2, keepdims=True), self.values.shape)
        target = np.broadcast_to(self.target.mean(1, keepdims=True), self.target.shape)
        return replace(self, values=values, target=target, gold=None, part="shift")

    @property
    def diversity_logit(self) -> float:
        """|L|² × diversity: comparable between models and cuts with different numbers of members (MATHS 1)."""
        return len(self.components) ** 2 * self.diversity

    @cached_property
    def coherences(self) -> Float[np.ndarray, " example"]:
        """|Σu|² / Σ|u|², `[example]`; NaN where all members are zero."""
        values = self.values[:, :, :1] if self.part == "shift" else self.values
        power = losses.mean_square(values).sum(1, keepdims=True)
        return coherence_of(values.sum(1, keepdims=True), power)[:, 0]

    @property
    def coherence(self) -> float:
        """|Σu|² / Σ|u|², mean over examples: 1 orthogonal, |L| identical, below 1 cancelling members.

        Examples in which all members are zero have none, and are left out.
        """
        return float(mean_of(self.coherences[:, None])[0])

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group: does what is inside a layer disagree, or the layers with one another? (MATHS 8)

        groups
            A name for each member; None is the sublayer it is cut from, so that an attention is the
            **sum** of its heads and an MLP of its neurons.

        n_g u_h is what leaf h alone says of its group's a_g = Σ_h u_h. `bias` is the leaves' mean error,
        `within` their distance from a_g, `between` that of a_g from the mean over groups, whose mean is
        the coarser diversity: the coarser ensemble's loss = mean over rows of (bias − within − between);
        `attrs` holds these totals and the gap. `within_unscaled`, `between_unscaled` split the diversity of the
        leaves as they are, with weights n_g/N. Raises InputError where no group has two members.

        >>> from layerdiv_tl import decompose
        >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]]), labels=[0])
        >>> d.nested(groups=["a", "a", "b"])[["group", "members", "within", "between"]].values.tolist()
        [['a', 2, 2.0, 0.25], ['b', 1, 0.0, 0.25]]
        """
        names, group = self._grouped(groups)
        return self._nested_frame(names, group, *self._nested_blocks(group))

    def _nested_blocks(self, group: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        blocks: dict[str, np.ndarray] = {}
        errors: dict[str, np.ndarray] = {}
        for suffix, part in self._parts():
            errors[suffix], bias, within, between = relations.nested_squared(part.values, part.target, group)
            within_unscaled, between_unscaled = relations.plain_split(part.values, group)
            blocks |= {
                f"bias{suffix}": bias,
                f"within{suffix}": within,
                f"between{suffix}": between,
                f"within_unscaled{suffix}": within_unscaled,
                f"between_unscaled{suffix}": between_unscaled,
            }
        if "bias_centered" in blocks:  # as everywhere: the parts first, then their sum
            for name in ("bias", "within", "between", "within_unscaled", "between_unscaled"):
                blocks[name] = blocks[f"{name}_centered"] + blocks[f"{name}_shift"]
        return errors, blocks

    def tradeoff(self, paper: bool = False) -> pd.DataFrame:
        """Theorem 3: the summands of bias and of diversity, and what the two share (MATHS 5).

        One row per summand with its part of either, in squared logits; the columns add up to bias and
        diversity. The rows marked Ω stand in both: moving them moves neither loss nor accuracy. For the
        centered half only v̄ is shared. `paper=True` gives Eq. 11 as printed. Its diversity is too large by
        (m̄−m_t)²; its bias is too, and the difference right, only for a target constant over options,
        since it leaves out the target's own terms.

        >>> from layerdiv_tl import decompose
        >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 1.0]]]), labels=[0])
        >>> table = d.tradeoff()
        >>> bool(table["bias"].sum() == d.bias), bool(table["diversity"].sum() == d.diversity)
        (True, True)
        """
        import pandas as pd

        rows = relations.theorem_3(self.values, self.target, flag("paper", paper))
        frame = pd.DataFrame({"term": [name for name, *_ in rows], "formula": [formula for _, formula, *_ in rows]})
        bias, diversity = (np.stack([row[at] for row in rows], 1) for at in (2, 3))
        for name, column in means({"bias": bias, "diversity": diversity}).items():
            frame[name] = column
        frame = self._finish(frame)
        frame.attrs["form"] = "as printed in Eq. 11" if paper else "exact"
        return frame

    def bounds(self) -> pd.DataFrame:
        """Theorem 2, exactly: where diversity can be, given bias and loss (MATHS 6).

        One row for the ensemble and one per module, with undivided means. (√bias − √MSE)² ≤ diversity ≤
        (√bias + √MSE)², columns `lowest` and `max_weight`; for the whole ensemble also diversity ≤ bias. A
        module's diversity vanishes with its bias only if MSE vanishes too, unlike in the printed theorem:
        here the MLP is right, so its bias is 0, and its diversity is the loss that the embedding causes.

        >>> from layerdiv_tl import decompose
        >>> d = decompose(np.array([[[4.0, 4.0], [1.0, 0.0]]]), labels=[0], components=["embed", "L0.mlp"])
        >>> d.bounds()[["module", "bias", "diversity"]].values.tolist()
        [['all', 6.25, 3.125], ['embedding', 12.5, 3.125], ['mlp', 0.0, 3.125]]
        >>> d.loss
        3.125
        """
        import pandas as pd

        modules, group = relations.group_numbers([c.module for c in self.components])
        sets = [np.ones(len(group), dtype=bool)] + [group == i for i in range(len(modules))]
        terms = {
            name: np.stack([values[:, inside].mean(1) for inside in sets], 1)
            for name, values in (("bias", self.biases), ("diversity", self.diversities))
        }
        frame = pd.DataFrame({"module": ["all", *modules], "members": [int(inside.sum()) for inside in sets]})
        for name, column in means(terms).items():
            frame[name] = column
        root = np.sqrt(frame["bias"].to_numpy())
        # Rounding may leave less than nothing where all examples but one are 0.
        roots, loss = (np.sqrt(leave_one_out(x).clip(0)) for x in (terms["bias"], self.losses[:, None]))
        for name, sign in (("lowest", -1), ("max_weight", 1)):
            bound, left_out = (root + sign * np.sqrt(self.loss)) ** 2, (roots + sign * loss) ** 2
            if name == "max_weight":  # the whole ensemble is bounded by its bias
                bound[0], left_out[:, 0] = frame["bias"][0], roots[:, 0] ** 2
            low, high = jackknife(bound, left_out, within=(0.0, np.inf))
            frame[name], frame[f"{name}_low"], frame[f"{name}_high"] = bound, low, high
        frame = self._finish(frame)
        bounds = [name + end for name in ("lowest", "max_weight") for end in ("", "_low", "_high")]
        frame.attrs["units"] |= dict.fromkeys(bounds, self.measured_in)
        frame.attrs["loss"] = self.loss
        return frame

    def _prefix(self, places: list[int], place: int, last: bool, norm: NormAt) -> Self:
        prefix = super()._prefix(places, place, last, norm)
        if self.centered is not None and self.shift is not None:
            # Its halves are prefixes of the halves, which need not be split again.
            vars(prefix)["centered"] = self.centered._prefix(places, place, last, norm)
            vars(prefix)["shift"] = self.shift._prefix(places, place, last, norm)
        return prefix

    def _parts(self) -> list[tuple[str, Decomposition]]:
        halves = [("_centered", self.centered), ("_shift", self.shift)]
        return [("", self), *((suffix, half) for suffix, half in halves if half is not None)]

    def _member_terms(self) -> dict[str, np.ndarray]:
        size = len(self.components) ** 2
        return super()._member_terms() | {"diversity_logit": size * self.diversities}

    def _module_terms(self, member: Float[np.ndarray, "module member"]) -> dict[str, np.ndarray]:
        sums = np.einsum("nmk,sm->nsk", self.values, member, optimize=True)
        return {"coherence": coherence_of(sums, losses.mean_square(self.values) @ member.T)}

    def _total_terms(self) -> dict[str, np.ndarray]:
        size = len(self.components) ** 2
        return super()._total_terms() | {
            "diversity_logit": size * self.diversities.mean(1),
            "coherence": self.coherences,
        }

    def _equation(self) -> str:
        halves = ""
        if self.centered is not None:
            halves = f"; centered {self.centered.loss:.4g} = {self.centered.bias:.4g} − {self.centered.diversity:.4g}"
        return (
            f"loss {self.loss:.4g} = bias {self.bias:.4g} − diversity {self.diversity:.4g}{halves}; gap {self.gap:.0e}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class PaperForm(Decomposition):
    """Eq. 14, as the paper's numbers were made: loss and bias between probabilities, diversity between logits.

    The units do not agree, so there is no identity: `gap` is None and `mismatch` says by how much it
    fails. softmax(ū) is nearly uniform, so loss and bias have to be read beside `zero_bias`, the
    uniform predictor's loss (0.25, 0.2222, 0.1875 for 2, 3, 4 options). Tables of the paper show loss and
    bias × 100.
    """

    measured_in: ClassVar[str] = "probability²"

    @cached_property
    def terms(self) -> Terms:
        """Loss and biases in probability², diversities in logits², per example."""
        return losses.paper(self.values, self.target)

    @cached_property
    def squared(self) -> SquaredError:
        """Theorem 1 of the same members against the same target, with its halves."""
        return SquaredError(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def gap(self) -> None:
        """None: the three numbers have two units, so there is no identity. See `mismatch`, and loss="brier"."""
        return None

    @property
    def mismatch(self) -> float:
        """loss − (bias − diversity), which mixes probability² and logits²: by how much Eq. 14 does not hold."""
        return self.loss - (self.bias - self.diversity)

    @property
    def diversity_logit(self) -> float:
        """|L|² × diversity, in squared logits."""
        return len(self.components) ** 2 * self.diversity

    def _member_terms(self) -> dict[str, np.ndarray]:
        halves = {f"diversity{suffix}": half.diversities for suffix, half in self.squared._parts() if suffix}
        return {"bias": self.biases, "diversity": self.diversities} | halves

    def _total_terms(self) -> dict[str, np.ndarray]:
        halves = {f"diversity{suffix}": half.diversities.mean(1) for suffix, half in self.squared._parts() if suffix}
        logit = len(self.components) ** 2 * self.diversities.mean(1)
        mismatch = self.losses - (self.biases.mean(1) - self.diversities.mean(1))
        return super()._total_terms() | halves | {"diversity_logit": logit, "mismatch": mismatch}

    def _notes(self) -> dict[str, Any]:
        return {}

    def _unit(self, column: str) -> str | None:
        if column.startswith("mismatch"):
            return "probability² and logits²"
        unit = super()._unit(column)
        return "logits²" if column.startswith("diversity") and unit != "share" else unit

    def _equation(self) -> str:
        return (
            f"loss {100 * self.loss:.4g} and bias {100 * self.bias:.4g} in 100 × probability², "
            f"uniform {100 * self.zero_bias:.4g}; diversity {self.diversity:.4g} in logits²; "
            f"two units, so bias − diversity is not the loss: mismatch {self.mismatch:.4g}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class CrossEntropy(Decomposition):
    """CE(t, p) = mean_i CE(t, q_i) − mean_i KL(p ‖ q_i), exactly, in nats (MATHS 3).

    q_i = softmax(τu_i), p = softmax(τū). By default τ = |L|, so that p is the model's own distribution over
    the options, before a soft-cap where there is one. Bias and diversity depend on how finely the model
    is cut; `net_linear`, a member's E_p[u_i] − E_t[u_i], does not, and heads add up to their attention:
    loss = entropy + Σ net_linear.
    """

    measured_in: ClassVar[str] = "nats"
    _ADDITIVE: ClassVar[tuple[str, ...]] = ("net_linear",)

    @property
    def factor(self) -> float:
        """τ as used."""
        return len(self.components) if self.tau is None else self.tau

    @cached_property
    def terms(self) -> Terms:
        """Loss, cross-entropies and divergences per example."""
        return losses.cross_entropy(self.values, self.target, self.factor)

    @cached_property
    def entropies(self) -> Float[np.ndarray, " example"]:
        """H(p), `[example]`."""
        return losses.entropy(self.values, self.factor)

    @property
    def entropy(self) -> float:
        """H(p) in nats, mean over examples: what the loss would be if p were the target's distribution."""
        return float(self.entropies.mean())

    @cached_property
    def net_linear(self) -> Float[np.ndarray, "example member"]:
        """`[example, member]`: what each member adds to the loss beyond H(p), in nats; linear in u_i."""
        return losses.linear_net(self.values, self.target, self.factor)

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group, as `SquaredError.nested`, in nats: do heads of a layer disagree, or layers? (MATHS 8)

        q_h = softmax(L n_g u_h), q_g = softmax(L a_g), p = softmax(Σu), with L the number of groups:
        `bias` is the leaves' mean CE(t, q_h), `within` their KL(q_g ‖ q_h), `between` KL(p ‖ q_g). It is
        at the model's own scale, so it needs tau=None. Raises InputError where no group has two members.
        """
        names, group = self._grouped(groups)
        return self._nested_frame(names, group, *self._nested_blocks(group))

    def _nested_blocks(self, group: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        if self.tau is not None:
            raise InputError("the nested cross-entropy is that of the model's own distribution: decompose without tau.")
        error, bias, within, between = relations.nested_cross_entropy(self.values, self.target, group)
        return {"": error}, {"bias": bias, "within": within, "between": between}

    def _member_terms(self) -> dict[str, np.ndarray]:
        return super()._member_terms() | {"net_linear": self.net_linear}

    def _total_terms(self) -> dict[str, np.ndarray]:
        return super()._total_terms() | {"entropy": self.entropies, "net_linear": self.net_linear.sum(1)}

    def _notes(self) -> dict[str, Any]:
        return super()._notes() | {"tau": self.factor}

    def _equation(self) -> str:
        net = self.loss - self.entropy
        return f"{super()._equation()}; = entropy {self.entropy:.4g} + net {net:.4g}; τ = {self.factor:g}"


@dataclass(frozen=True, eq=False, repr=False)
class Brier(Decomposition):
    """Eq. 14 made exact: everything between probabilities, in probability² (MATHS 4).

    The ensemble here is q̄, the mean of the members' q_i = softmax(τu_i) (τ = 1 by default, where the bias
    is Eq. 14's), not the model's own softmax(Σu), whose loss stands beside it as `model_loss`.
    """

    measured_in: ClassVar[str] = "probability²"

    @property
    def factor(self) -> float:
        """τ as used."""
        return 1.0 if self.tau is None else self.tau

    @cached_property
    def terms(self) -> Terms:
        """Loss of q̄, biases, diversities per example."""
        return losses.brier(self.values, self.target, self.factor)

    @cached_property
    def model_losses(self) -> Float[np.ndarray, " example"]:
        """mean_k (t − softmax(Σu))², `[example]`."""
        return losses.paper(self.values.sum(1, keepdims=True), self.target).losses

    @property
    def model_loss(self) -> float:
        """The Brier loss of the model's own distribution over the options, softmax(Σu)."""
        return float(self.model_losses.mean())

    @property
    def combiner_gap(self) -> float:
        """model_loss − loss: what it costs the model to combine its members by multiplying, not by averaging."""
        return self.model_loss - self.loss

    def _total_terms(self) -> dict[str, np.ndarray]:
        return super()._total_terms() | {
            "model_loss": self.model_losses,
            "combiner_gap": self.model_losses - self.losses,
        }

    def _notes(self) -> dict[str, Any]:
        return super()._notes() | {"tau": self.factor}

    def _unit(self, column: str) -> str | None:
        return self.measured_in if column.startswith(("model_loss", "combiner_gap")) else super()._unit(column)

    def _equation(self) -> str:
        return f"{super()._equation()}; the model's own {self.model_loss:.4g}; τ = {self.factor:g}"


FORMS: dict[str, type[Decomposition]] = {
    "squared": SquaredError,
    "paper": PaperForm,
    "cross_entropy": CrossEntropy,
    "brier": Brier,
}


Given = Ensemble | Float[np.ndarray, "example member option"]
Labels = Sequence[int] | Sequence[str] | np.ndarray | None


@overload
def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Any = None,
    loss: Literal["squared"] = "squared",
    *,
    components: Sequence[str | Component] | None = None,
) -> SquaredError: ...


@overload
def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Any = None,
    *,
    loss: Literal["paper"],
    components: Sequence[str | Component] | None = None,
) -> PaperForm: ...


@overload
def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Any = None,
    *,
    loss: Literal["cross_entropy"],
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> CrossEntropy: ...


@overload
def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Any = None,
    *,
    loss: Literal["brier"],
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> Brier: ...


@overload
def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Any = None,
    loss: str = "squared",
    *,
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> Decomposition: ...


def decompose(
    ensemble: Given,
    labels: Labels = None,
    target: Float[np.ndarray, "example option"] | None = None,
    loss: str = "squared",
    *,
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> Decomposition:
    """Bias and diversity of an ensemble, for the loss you choose; exact for all but the paper's own.

    ensemble
        `Contributions`, whose array the result shares, or a plain array `[example, member, option]` of
        logits, which is copied.
    labels
        The gold option of each example, as its index or its text: the target is then one-hot.
    target
        Any other target, `[example, option]`: another model's logits for the squared error, its
        probabilities over the options for the other losses. Give exactly one of the two.
    loss
        "squared": Theorem 1 in logits (`SquaredError`); "cross_entropy": in nats (`CrossEntropy`);
        "brier": between probabilities (`Brier`); "paper": Eq. 14 as the paper's numbers were made, which
        mixes units (`PaperForm`).
    tau
        What logits are multiplied by before a softmax, for "cross_entropy" (default |L|: the model's own
        distribution) and "brier" (default 1: the paper's scale).
    components
        Names for the members of a plain array, as components or labels like "L0.mlp".

    Raises InputError for labels out of range or of the wrong number, a target of the wrong shape or of
    no distribution where one is needed, fewer than two options, no members, and numbers that are not finite.

    >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0])
    >>> d.loss, d.bias, d.diversity
    (0.0, 0.5, 0.5)
    >>> d.centered.diversity, d.shift.diversity
    (0.25, 0.25)
    >>> ce = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0], loss="cross_entropy")
    >>> round(ce.loss, 3), round(ce.bias - ce.diversity, 3), round(ce.entropy + float(ce.net_linear.sum()), 3)
    (0.127, 0.127, 0.127)
    """
    choice("loss", loss, FORMS)
    if tau is not None and loss not in ("cross_entropy", "brier"):
        raise InputError(f"tau belongs to loss='cross_entropy' and 'brier': loss={loss!r} has none.")
    if isinstance(ensemble, Ensemble):
        if components is not None:
            raise InputError("these contributions name their components themselves: components= is for plain arrays.")
        u, names, options = ensemble.values, ensemble.components, ensemble.options
        place: dict[str, Any] = {
            "junctions": ensemble.junctions,
            "junction_scale": ensemble.junction_scale,
            "partial_junctions": ensemble.partial_junctions,
            "identity_gap": ensemble.identity_gap,
            "soft_cap": ensemble.soft_cap,
        }
    else:
        u, options = numbers(ensemble, "the ensemble"), ()
        check_members(u)
        names = named(components, u.shape[1])
        place = dict.fromkeys(("junctions", "junction_scale", "partial_junctions", "identity_gap", "soft_cap"))
    check_members(u)
    if (labels is None) == (target is None):
        raise InputError("give exactly one of labels (a gold option for each example) and target (logits).")
    gold = None if labels is None else gold_options(labels, u.shape, options)
    t = dense_target(target, u.shape, loss != "squared") if gold is None else np.eye(u.shape[2])[gold]
    return FORMS[loss](values=u, components=names, target=t, gold=gold, tau=factor(tau), **place)
