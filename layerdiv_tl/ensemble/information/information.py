"""`information`: the terms of Eq. 13 from an ensemble and labels, with their intervals, in bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.optimize import brentq

from ..._checks import whole_number
from ...components import Component, component_columns
from ...errors import InputError
from ...results import Plot, Result
from ..intervals import Estimate, estimates_frame
from ..validation import EnsembleLike
from ..validation import Labels as GivenLabels
from .classifier import classifier_bound
from .law import TERMS, Law, inequality
from .members import LabeledMembers, prepare

# Estimates on samples of the law, for the intervals.
DRAWS = 100
# The normal quantiles of a 95 % interval, and of a bound above the law, one-sided.
Z, ONE_SIDED = 1.96, 1.64
# Bits that change no conclusion, and the excess over the lower bound at which an estimate is far too large.
NEGLIGIBLE, LARGE = 0.02, 0.1
# z of the likelihood ratio from which on the covariances of the classes clearly differ.
CLEARLY_UNEQUAL = 5.0


def information(
    ensemble: EnsembleLike | Float[np.ndarray, "example member"],
    labels: GivenLabels = None,
    *,
    n_groups: int | None = None,
    components: Sequence[str | Component] | None = None,
    seed: int = 0,
) -> Information:
    """Information-theoretic diversity (Theorem 4): I(U; Y) = relevancy + TC(U|Y) − TC(U), in bits.

    All terms come from one law (`Law`): members' contrasts over options, each transformed monotonically, which leaves
    its information unchanged, are Gaussian within classes with one covariance. Each term is corrected for the errors of
    covariance and means; the intervals are its spread when the estimate is repeated on samples of the law. Next to it
    stands what classifiers find on rows that they have not seen, a lower bound of I(U; Y) under any law
    (`lower_bound`).

    Args:
        ensemble: `Contributions`, an array `[example, member, option]` of logits, or `[example, member]` of numbers.
        labels: One for each example, by default the contributions' own: option indices or texts, or any classes where
            there are no options. Where every example has options of its own, its class is the index of the right one.
        n_groups: First sum neighbors along the stream to at most this many members.
        components: Names for the members of a plain array.
        seed: Equal seeds give equal intervals and bounds.

    Rows must be independent. Read `i.warnings` before the numbers: they say where rows contradict the law.

    Raises InputError for one class, classes of fewer than 8 rows, fewer than four rows for each dimension (member ×
    contrast), numbers that are not finite, votes, and members that are fixed by the others (copies).

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(2000) % 2
    >>> i = information(rng.normal(size=(2000, 2)) + y[:, None], y)
    >>> [f"{x:.2f}" for x in (i.relevancy, i.redundancy, i.joint, i.diversity)]
    ['0.33', '0.02', '0.30', '-0.02']
    """
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    seed = whole_number("seed", seed, 0, 2**32 - 1)
    given = prepare(ensemble, labels, n_groups, components)
    with threadpool_limits(1, "blas"):  # for many small matrices several threads cost more than they save
        law = Law.fit(given.scores, given.owner, given.labels, len(given.components))
        bound = classifier_bound(given.columns, given.labels, seed)
        draws = law.draws(np.random.default_rng(seed), DRAWS)
    joint = Estimate(*_with_interval(law.chain()[3, -1], draws[:, 3, -1]), law.rows)
    return Information(
        means=law.means,
        covariance=law.covariance,
        owner=law.owner,
        share=law.share,
        rows=law.rows,
        components=given.components,
        spans=given.spans,
        draws=draws,
        bound=bound,
        warnings=tuple(_warnings(given, joint, bound)),
        model=str(getattr(ensemble, "model", "")),
        task=str(getattr(ensemble, "task", "")),
    )


def _bits(term: str, doc: str) -> property:
    return property(lambda information: information.terms[term], doc=doc)


def _with_interval(value: Any, drawn: np.ndarray) -> tuple[Any, Any, Any]:
    """Return value, low and high, from the spread of `[draw, …]`."""
    half = Z * drawn.std(0, ddof=1)
    return value, value - half, value + half


def _term_frame(information: Information) -> pd.DataFrame:
    frame = information.frame().rename(columns={"term": "component"})
    bound = information.lower_bound.columns("bits")
    rows = pd.concat([frame, pd.DataFrame([{"component": "joint, at least"} | bound])], ignore_index=True)
    rows["component"] = rows["component"].str.replace("_", " ")
    rows.attrs = frame.attrs | {"about": _counts(information)}
    return rows


def _member_frame(information: Information) -> pd.DataFrame:
    frame = information.by_component().assign(component=list(information.spans))
    frame.attrs["about"] = _counts(information)
    return frame


def _along_frame(information: Information) -> pd.DataFrame:
    frame = information.along()
    frame.attrs["about"] = _counts(information)
    return frame


def _counts(information: Information) -> str:
    return f"{len(information.components)} members, {information.rows} rows"


@dataclass(frozen=True, eq=False, repr=False)
class Information(Result):
    """Relevancy, redundancies, joint information and diversity of an ensemble (Eq. 13). Made by `information`.

    Attributes:
        means, covariance, owner, share, rows: The fitted `Law`.
        components, spans: The members' names, and what each contains: a component's label, or the first and last of a
            group.
        draws: `[draw, term, prefix]`, estimates for the first 1, 2, … members on samples of the law.
        bound: Bits that classifiers find on unseen rows, a lower bound of I(U; Y), and their standard error.
        warnings: Sentences to read before the numbers: reasons why the terms may be wrong.
        model, task: Names of the model and task whose contributions the members are; "" for an array.
    """

    means: Float[np.ndarray, "column contrast"]
    covariance: Float[np.ndarray, "column column"]
    owner: Int[np.ndarray, " column"]
    share: Float[np.ndarray, " class"]
    rows: int
    components: tuple[Component, ...]
    spans: tuple[str, ...]
    draws: Float[np.ndarray, "draw term prefix"]
    bound: tuple[float, float]
    warnings: tuple[str, ...]
    model: str = ""
    task: str = ""

    relevancy = _bits("relevancy", "Σ_i I(u_i; Y), bits.")
    redundancy = _bits("redundancy", "TC(U), the members' total correlation, bits.")
    conditional_redundancy = _bits("conditional_redundancy", "TC(U|Y), the total correlation within classes, bits.")
    joint = _bits("joint", "I(U; Y), bits.")
    diversity = _bits("diversity", "Information-theoretic diversity, TC(U|Y) − TC(U) = I(U; Y) − relevancy, bits.")

    figures: ClassVar = {
        "terms": Plot(
            "Information about the label",
            "Every term of Eq. 13 with its interval. Last, the classifiers' lower bound.",
            "special.across",
            _term_frame,
            {"column": "bits"},
        ),
        "members": Plot(
            "Information by member",
            "Relevancy I(u_i; Y), and the information that no other member has.",
            "shapes.bars",
            _member_frame,
            {"columns": ("relevancy", "gain")},
        ),
        "along": Plot(
            "Information as members are added",
            "The joint information of the first members in stream order (Fig. 2).",
            "shapes.lines",
            _along_frame,
            {"columns": ("joint",), "x": "members"},
        ),
    }

    @cached_property
    def law(self) -> Law:
        """The fitted law."""
        return Law(self.means, self.covariance, self.owner, self.share, self.rows, len(self.components))

    @cached_property
    def terms(self) -> dict[str, float]:
        """Every term of Eq. 13 by name, in bits."""
        return dict(zip(TERMS, self.law.chain()[:, -1].tolist(), strict=True))

    @property
    def label_entropy(self) -> float:
        """H(Y), plug-in, bits: the upper limit of information about the label."""
        return float(-(self.share * np.log2(self.share)).sum())

    @property
    def lower_bound(self) -> Estimate:
        """A variational lower bound of I(U; Y) in bits, with its interval, of which only the low end bounds I too."""
        bits, error = self.bound
        low, high = np.clip([bits - Z * error, bits + Z * error], 0.0, self.label_entropy).tolist()
        return Estimate(bits, low, high, self.rows)

    def frame(self) -> pd.DataFrame:
        """One row per term: `bits` with `bits_low` and `bits_high`. `attrs` has the `warnings` and `lower_bound`."""
        value, low, high = _with_interval(np.array(list(self.terms.values())), self.draws[:, :, -1])
        high[TERMS.index("joint")] = min(high[TERMS.index("joint")], self.label_entropy)
        return self._finish({"term": TERMS, "bits": Estimate(value, low, high, self.rows)})

    def by_component(self) -> pd.DataFrame:
        """One row per member, in bits: `relevancy` I(u_i; Y), and `gain` I(U; Y) − I(U without it; Y).

        `span` is what the member contains; `gain` is its information that all the others together lack.
        """
        drawn = np.diff(self.draws[:, 0], axis=1, prepend=0.0)
        relevancy = Estimate(*_with_interval(self.law.relevancies(), drawn), self.rows)
        columns = component_columns(self.components) | {"span": self.spans}
        return self._finish(columns | {"relevancy": relevancy, "gain": self.law.gains()})

    def along(self) -> pd.DataFrame:
        """One row per member added: every term of Eq. 13 for the members up to it, and the `gain` of the joint.

        These are Theorems 5-8. True information never falls when a member is added (chain rule): a negative gain is an
        error of the estimate. Theorems 7 and 8 assume members that are independent given the label; where they are
        not, gains may grow, which refutes nothing. The order is that of the stream. Raises InputError for groups, which
        have no place along depth.
        """
        groups = [c.label for c in self.components if c.kind == "group"]
        if groups:
            raise InputError(f"{groups[0]} has no place along depth.")
        terms = self.law.chain()
        columns: dict[str, Any] = {"members": np.arange(1, len(self.components) + 1)}
        columns |= component_columns(self.components) | {"span": self.spans}
        for place, term in enumerate(TERMS):
            columns[term] = Estimate(*_with_interval(terms[place], self.draws[:, place]), self.rows)
        joint, drawn = (np.diff(x, prepend=0.0) for x in (terms[3], self.draws[:, 3]))
        return self._finish(columns | {"gain": Estimate(*_with_interval(joint, drawn), self.rows)})

    def error_bounds(self) -> pd.DataFrame:
        """Bounds of the error of predicting the label (Eq. 12), as shares of rows; one row per estimate of I(U; Y).

        `fano` is the sharp lower bound, `fano_printed` that of Eq. 12 (at most 0 for two classes): valid where I is
        not too small. `hellman_raviv` is the upper bound of the best rule's error, valid where I is not too large: the
        row `lower bound`, from what classifiers find, keeps it. A model's own answer may exceed it.
        """
        classes, rows = len(self.share), []
        for name, bits in (("estimate", self.joint), ("lower bound", self.bound[0])):
            remaining = self.label_entropy - min(max(bits, 0.0), self.label_entropy)
            printed = (remaining - 1) / float(np.log2(classes))
            bounds = {"fano": fano(remaining, classes), "fano_printed": printed, "hellman_raviv": remaining / 2}
            rows.append({"information": name, "bits": bits} | bounds)
        frame = self._finish(rows)
        frame.attrs["units"] |= dict.fromkeys(("fano", "fano_printed", "hellman_raviv"), "share")
        return frame

    def _finish(self, columns: Any) -> pd.DataFrame:
        """Make a frame; `attrs` has what its reader needs."""
        units = dict.fromkeys(("bits", "relevancy", "gain", *TERMS), "bits")
        attrs = {"label_entropy": self.label_entropy, "lower_bound": list(self.lower_bound[:3])}
        frame = estimates_frame(columns, units, warnings=list(self.warnings), **attrs)
        frame.attrs["units"] = {name: unit for name, unit in frame.attrs["units"].items() if name in frame}
        return frame

    def __repr__(self) -> str:
        terms = ", ".join(f"{term} {bits:.3g}" for term, bits in self.terms.items())
        found = f"classifiers find {self.bound[0]:.3g} of {self.label_entropy:.3g}"
        warned = f"; {self.warnings[0].partition(': ')[0].rstrip('.')}" if self.warnings else ""
        return f"Information({_counts(self)}: {terms} bits; {found}{warned})"


def fano(remaining: float, classes: int) -> float:
    """The smallest error e with h(e) + e·log2(K − 1) ≥ `remaining` = H(Y|U) bits, K classes (Fano 1961).

    >>> fano(1.0, 2), fano(0.0, 4), round(fano(2.0, 4), 3)
    (0.5, 0.0, 0.75)
    """

    def allowed(e: float) -> float:
        h = 0.0 if e in (0.0, 1.0) else -e * np.log2(e) - (1 - e) * np.log2(1 - e)
        return float(h + e * np.log2(classes - 1))

    most = 1 - 1 / classes
    if remaining <= 0:
        return 0.0
    if remaining >= allowed(most):
        return most
    return float(brentq(lambda e: allowed(e) - remaining, 0.0, most, xtol=1e-12))


def _warnings(given: LabeledMembers, joint: Estimate, bound: tuple[float, float]) -> list[str]:
    """List at most four reasons why the terms may be wrong, each a short sentence and after a colon its numbers."""
    bits, error = bound
    found = f"classifiers find {bits:.2g} ± {Z * error:.2g} bits on unseen rows, the law {joint.value:.2g}"
    sentences = []
    if bits - joint.value > ONE_SIDED * np.hypot((joint.value - joint.low) / Z, error) + NEGLIGIBLE:
        sentences.append(f"The members tell more than this law holds: {found}.")
    if joint.low - bits - Z * error > max(bits, LARGE):
        sentences.append(f"The joint information may be far too large: {found}.")
    z = inequality(given.scores, given.labels)
    if z > CLEARLY_UNEQUAL:
        difference = "the law pools them, and what lies in their difference is in no term"
        sentences.append(f"The covariances of the classes differ: z = {z:.0f}; {difference}.")
    repeats = len(given.columns) - len(np.unique(given.columns, axis=0))
    if repeats:
        sentences.append(f"Rows occur more than once: {repeats}; the estimates take rows for independent.")
    return sentences
