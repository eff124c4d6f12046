"""Tasks made by rule, any number of rows, offline; and votes whose numbers are known in closed form.

A name carries its parameters: `synthetic/k_hop:hops=3,entities=6,seed=1`. Gold options take turns, so every
class has the same number of rows, and row i is the same however many rows are made.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import comb, lgamma, log2, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ..errors import InputError
from ..results import Result
from .readers import Row, Rows
from .templates import Recipe

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "synthetic/"
ROWS = 256  # where the user gives no limit
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
COLORS = ("red", "blue", "green", "black", "white", "brown", "pink", "gray")


def k_hop(*, hops: int = 2, entities: int = 8, seed: int = 0) -> Recipe:
    """Follow a chain of pointers for `hops` steps.

    The pointers make one cycle through all entities, so a model that stops too early or goes too far is
    wrong, and every entity is named equally often.

    >>> print(k_hop(hops=2, entities=4).rows("test", 1).rows[0]["facts"])
    B points to D. A points to B. C points to A. D points to C.
    """
    _within("entities", entities, 2, len(LETTERS))
    _within("hops", hops, 1, entities - 1)

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        cycle = rng.permutation(entities)
        cycle = np.roll(cycle, hops - int(np.argmax(cycle == gold)))
        pointers = [f"{LETTERS[a]} points to {LETTERS[b]}." for a, b in zip(cycle, np.roll(cycle, -1), strict=True)]
        facts = " ".join(pointers[i] for i in rng.permutation(entities))
        return {"facts": facts, "start": LETTERS[cycle[0]], "steps": f"{hops} step{'s' * (hops > 1)}", "hops": hops}

    template = "{facts}\nStart at {start} and go {steps}. You arrive at {answer}"
    return _made("where a chain of pointers leads", template, LETTERS[:entities], row, seed)


def recall(*, pairs: int = 8, values: int = 4, seed: int = 0) -> Recipe:
    """Give the value that stood beside a key earlier in the prompt (associative recall).

    >>> print(recall(pairs=2).rows("test", 1).rows[0]["pairs"])
    T: red
    E: blue
    """
    _within("pairs", pairs, 1, len(LETTERS))
    _within("values", values, 2, len(COLORS))

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        keys = rng.permutation(len(LETTERS))[:pairs]
        said = rng.integers(values, size=pairs)
        asked = int(rng.integers(pairs))
        said[asked] = gold
        lines = [f"{LETTERS[key]}: {COLORS[value]}" for key, value in zip(keys, said, strict=True)]
        return {"pairs": "\n".join(lines), "key": LETTERS[keys[asked]]}

    return _made("which value stood beside a key", "{pairs}\n{key}: {answer}", COLORS[:values], row, seed)


def modular(*, modulus: int = 7, largest: int = 99, terms: int = 2, seed: int = 0) -> Recipe:
    """Add `terms` numbers from 0 to `largest`, modulo `modulus`.

    The default template puts no space before the answer, because most tokenizers make ` 5` two tokens;
    `spaced` does, for the others (or with `Task.resolve`).

    >>> modular(modulus=3, terms=3).rows("test", 1).rows[0]["sum"]
    '85 + 63 + 50'
    """
    _within("modulus", modulus, 2, 10)
    _within("largest", largest, modulus - 1, 10**6)
    _within("terms", terms, 2, 26)

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        numbers = [int(rng.integers(largest + 1)) for _ in range(terms - 1)]
        smallest = (gold - sum(numbers)) % modulus
        numbers.append(smallest + modulus * int(rng.integers((largest - smallest) // modulus + 1)))
        named = {letter.lower(): number for letter, number in zip(LETTERS, numbers, strict=False)}
        return {**named, "sum": " + ".join(map(str, numbers)), "modulus": modulus}

    templates = {
        "default": "({sum}) mod {modulus}={answer}",
        "spaced": "({sum}) mod {modulus} = {answer}",
    }
    return _made("the sum of numbers in modular arithmetic", templates, tuple(map(str, range(modulus))), row, seed)


def witnesses(*, members: int = 9, options: int = 2, right: float = 0.7, shared: float = 0.0, seed: int = 0) -> Recipe:
    """Say which color several unreliable witnesses saw: the votes of `votes`, in words.

    >>> witnesses(members=3).rows("test", 1).rows[0]["votes"].count(",")
    2
    """
    _within("options", options, 2, len(COLORS))
    _check_votes(members, options, right, shared)

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        said = _cast(np.array([gold]), members, options, right, shared, rng)[0]
        return {"votes": ", ".join(COLORS[vote] for vote in said), "members": members}

    template = "{members} witnesses name the color of a car: {votes}.\nThe car was most likely {answer}"
    return _made("which color unreliable witnesses saw", template, COLORS[:options], row, seed)


GENERATORS: Mapping[str, Callable[..., Recipe]] = {
    PREFIX + "k_hop": k_hop,
    PREFIX + "recall": recall,
    PREFIX + "modular": modular,
    PREFIX + "votes": witnesses,
}


def synthetic(name: str) -> Recipe:
    """The recipe of `synthetic/…`, parameters and all. Raises InputError for what it does not know.

    >>> synthetic("synthetic/modular:modulus=3").options
    ('0', '1', '2')
    """
    kind, _, said = name.partition(":")
    if kind not in GENERATORS:
        raise InputError(f"there is no task {kind!r}: choose among {', '.join(GENERATORS)}.")
    known = inspect.signature(GENERATORS[kind]).parameters
    given: dict[str, int | float] = {}
    for setting in filter(None, said.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            raise InputError(f"{kind} has no parameter {key!r}: it has {', '.join(known)}, as in {kind}:seed=1.")
        try:
            given[key] = type(known[key].default)(value)
        except ValueError as error:
            raise InputError(f"{setting!r} in {name!r} is no number: write it as in {kind}:seed=1.") from error
    changed = [f"{key}={given[key]}" for key in known if key in given and given[key] != known[key].default]
    full = kind + ":" * bool(changed) + ",".join(changed)
    return dataclasses.replace(GENERATORS[kind](**given), name=full)


def _made(
    about: str,
    template: str | Mapping[str, str],
    options: tuple[str, ...],
    row: Callable[[np.random.Generator, int], dict[str, Any]],
    seed: int,
) -> Recipe:
    """A recipe whose rows are made by `row(rng, gold)`."""
    _within("seed", seed, 0, 2**32)
    templates = {"default": template} if isinstance(template, str) else template

    def rows(split: str, count: int | None) -> Rows:
        made = []
        for number in range(count or ROWS):
            gold = number % len(options)
            # A generator of its own for every row and split: no row depends on how many there are.
            rng = np.random.default_rng([seed, split == "train", number])
            made.append(Row({**row(rng, gold), "label": gold}, f"row {number + 1}"))
        return Rows(made, f"generated by layerdiv_tl, seed {seed}")

    return Recipe("", about, templates, options, rows, "MIT")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name}={value} must be between {low} and {high}.")


@dataclass(frozen=True, eq=False, repr=False)
class Votes(Result):
    """Noisy votes about known labels, and what they must measure.

    Every member votes for the gold option with probability `right`, else for one of the others, each
    equally likely; given the gold option, members are independent. In a share `shared` of the rows, which
    nobody can see, one such vote is cast and all members repeat it.

    labels
        `[example]`, the gold option, uniform.
    votes
        `[example, member]`, the option a member votes for.
    options, right, shared
        The law above.

    The expected values of Theorem 1, of members that put 1 on their vote and 0 elsewhere, are `bias`,
    `diversity` and `loss`; those of Eq. 13, in bits, are `relevancy`, `redundancy`,
    `conditional_redundancy`, `joint` (the mutual information of all votes and the label) and
    `information_diversity`.
    """

    labels: Int[np.ndarray, " example"]
    votes: Int[np.ndarray, "example member"]
    options: int
    right: float
    shared: float

    @property
    def values(self) -> Float[np.ndarray, "example member option"]:
        """The members' contributions: 1 on their vote, 0 elsewhere."""
        return np.eye(self.options)[self.votes]

    @property
    def members(self) -> int:
        """How many vote."""
        return self.votes.shape[1]

    @property
    def bias(self) -> float:
        """A wrong vote is off by 1 at two of the K options, a right one nowhere: 2 (1 − p) / K."""
        return 2 * (1 - self.right) / self.options

    @property
    def diversity(self) -> float:
        """(1 − 1/|L|) (1 − c) / K, where c is the probability that two members agree."""
        alone = self.right**2 + (1 - self.right) ** 2 / (self.options - 1)
        agree = self.shared + (1 - self.shared) * alone
        return (1 - 1 / self.members) * (1 - agree) / self.options

    @property
    def loss(self) -> float:
        """Squared error of the mean vote: bias − diversity."""
        return self.bias - self.diversity

    @property
    def relevancy(self) -> float:
        """Σ I(u_i; Y), in bits."""
        return self.members * (log2(self.options) - self._noise)

    @property
    def redundancy(self) -> float:
        """TC(U) = Σ H(u_i) − H(U), in bits; a single vote is uniform."""
        return self.members * log2(self.options) - self._entropies[0]

    @property
    def conditional_redundancy(self) -> float:
        """TC(U|Y) = Σ H(u_i|Y) − H(U|Y), in bits; 0 where nothing is shared."""
        return self.members * self._noise - self._entropies[1]

    @property
    def joint(self) -> float:
        """I(U; Y) = H(U) − H(U|Y), in bits."""
        return self._entropies[0] - self._entropies[1]

    @property
    def information_diversity(self) -> float:
        """Conditional redundancy − redundancy = joint − relevancy, in bits."""
        return self.conditional_redundancy - self.redundancy

    def frame(self) -> pd.DataFrame:
        """One row per quantity: its expected value and unit."""
        import pandas as pd

        squared = ["loss", "bias", "diversity"]
        bits = ["relevancy", "redundancy", "conditional_redundancy", "joint", "information_diversity"]
        rows = [(name, getattr(self, name), "bits" if name in bits else "squared votes") for name in squared + bits]
        return pd.DataFrame(rows, columns=["quantity", "expected", "unit"])

    @property
    def _noise(self) -> float:
        """H(u_i|Y), in bits."""
        wrong = (1 - self.right) / (self.options - 1)
        return _entropy(np.array([self.right] + [wrong] * (self.options - 1)))

    @cached_property
    def _entropies(self) -> tuple[float, float]:
        """H(U) and H(U|Y): sums over how many votes each option gets, since the order does not matter."""
        members, options = self.members, self.options
        counts = np.array(list(_counts(members, options)))
        logs = np.array([lgamma(n + 1) for n in range(members + 1)])
        orders = np.exp(logs[members] - logs[counts].sum(1))  # how many rows of votes have these counts
        wrong = (1 - self.right) / (options - 1)
        alone = np.float_power(self.right, counts) * np.float_power(wrong, members - counts)  # [counts, gold]
        repeated = np.where(np.eye(options, dtype=bool), self.right, wrong)
        together = np.array([repeated[row.argmax()] * (row.max() == members) for row in counts])
        each = (1 - self.shared) * alone + self.shared * together
        pooled = each.mean(1)
        return _entropy(pooled, orders), _entropy(each[:, 0], orders)


def votes(
    rows: int = 2000,
    *,
    members: int = 9,
    options: int = 2,
    right: float = 0.7,
    shared: float = 0.0,
    seed: int = 0,
) -> Votes:
    """Draw noisy votes; see `Votes` for their law and what it implies.

    Raises InputError for parameters that are no such law; so do the entropies where they are too large a sum.

    >>> v = votes(members=3, right=0.75)
    >>> v.values.shape, v.bias, v.diversity
    ((2000, 3, 2), 0.25, 0.125)
    >>> round(v.joint - v.relevancy - v.information_diversity, 12)
    0.0
    """
    _within("rows", rows, 1, 10**9)
    _check_votes(members, options, right, shared)
    gold, cast = np.random.default_rng(seed).spawn(2)
    labels = gold.integers(options, size=rows)
    return Votes(labels, _cast(labels, members, options, right, shared, cast), options, right, shared)


def _cast(
    labels: Int[np.ndarray, " example"],
    members: int,
    options: int,
    right: float,
    shared: float,
    rng: np.random.Generator,
) -> Int[np.ndarray, "example member"]:
    streams = rng.spawn(5)

    def noisy(size: tuple[int, int], luck: np.random.Generator, choice: np.random.Generator) -> np.ndarray:
        wrong = (labels[:, None] + choice.integers(1, options, size=size)) % options
        return np.where(luck.random(size) < right, labels[:, None], wrong)

    led = streams[0].random((len(labels), 1)) < shared
    own = noisy((len(labels), members), *streams[1:3])
    return np.where(led, noisy((len(labels), 1), *streams[3:5]), own)


def _check_votes(members: int, options: int, right: float, shared: float) -> None:
    _within("members", members, 1, 10**6)
    _within("options", options, 2, 100)
    _within("right", right, 0, 1)
    _within("shared", shared, 0, 1)


def _counts(members: int, options: int) -> Iterable[tuple[int, ...]]:
    """All ways to share the votes among the options."""
    if comb(members + options - 1, options - 1) > 10**6 or members * log10(options) > 290:
        raise InputError(f"the entropies of {members} votes on {options} options are too large a sum: use fewer.")
    if options == 1:
        yield (members,)
        return
    for first in range(members + 1):
        yield from ((first, *rest) for rest in _counts(members - first, options - 1))


def _entropy(p: Float[np.ndarray, " event"], times: Any = 1.0) -> float:
    """−Σ times · p log2 p, where `times` events have probability p each."""
    return float(-np.sum(times * p * np.log2(p, out=np.zeros_like(p), where=p > 0)))
