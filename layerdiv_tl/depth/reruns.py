"""Passes in which a group of layers is thinned, rescaled, reordered, repeated or run side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from ..model.patched_forward import Slot

# The runs of every test: the model as it is, and without the whole group.
CLEAN, WITHOUT = "clean", "without"


class Run(NamedTuple):
    """One pass: what it is a run of, which member it is about (−1: none), and what stands at every place."""

    name: str
    member: int
    slots: tuple[Slot, ...]


def plan(blocks: int, group: Sequence[int], parts: Int[np.ndarray, " member"], draws: int, seed: int) -> list[Run]:
    """The runs of a test, at most `draws` of every kind.

    Args:
        blocks, group: How many blocks the model has, and which of them are the members.
        parts: Which part of the group each member is in: subsets keep as much of every part, and a member is repeated
            in place of those of its own part.
    """
    group = list(group)
    n, random = len(group), np.random.default_rng([seed, 1])
    members = np.arange(n)

    def at(content: dict[int, Slot]) -> tuple[Slot, ...]:
        """The model's own order, but for the places of some members."""
        slots: list[Slot] = [((block, 1.0),) for block in range(blocks)]
        for member, slot in content.items():
            slots[group[member]] = slot
        return tuple(slots)

    def keep(factors: Sequence[float] | np.ndarray) -> tuple[Slot, ...]:
        return at({i: ((group[i], f),) if f else () for i, f in enumerate(factors)})

    def order(members: Sequence[int]) -> tuple[Slot, ...]:
        return at({i: ((group[j], 1.0),) for i, j in enumerate(members)})

    def scaled(kept: np.ndarray) -> np.ndarray:
        """n/k for what is kept of each part, 0 for the rest."""
        factors = np.zeros(n)
        for part in np.unique(parts):
            here = parts == part
            factors[here & kept] = here.sum() / max(1, (here & kept).sum())
        return factors

    def runs() -> Iterator[Run]:
        yield Run(CLEAN, -1, at({}))
        yield Run(WITHOUT, -1, keep([0.0] * n))
        for i in spread(n, draws):
            yield Run("skip", i, at({i: ()}))
        half = [_subset(parts, 0.5, random) for _ in range(draws)]
        for kept in half:
            yield Run("keep half, rescaled", -1, keep(scaled(kept)))
            yield Run("keep half", -1, keep(kept.astype(float)))
        for share, name in ((0.25, "keep quarter, rescaled"), (0.75, "keep three quarters, rescaled")):
            for _ in range(min(draws, 4)):
                yield Run(name, -1, keep(scaled(_subset(parts, share, random))))
        k = n // 2
        for offset in (0, 1):
            yield Run("keep spaced half, rescaled", -1, keep(np.where(_spaced(n, k, offset), n / k, 0.0)))
        for first in spread(n - k + 1, min(draws, 4)):
            inside = (members >= first) & (members < first + k)
            yield Run("keep contiguous half, rescaled", -1, keep(np.where(inside, n / k, 0.0)))
        yield Run("reverse", -1, order(members[::-1].tolist()))
        for _ in range(draws):
            yield Run("shuffle", -1, order(random.permutation(n).tolist()))
        for i in spread(n - 1, min(draws, 4)):
            yield Run("swap neighbors", i, order([*range(i), i + 1, i, *range(i + 2, n)]))
        for i in spread(n, draws):
            yield Run("repeat", i, order(_repeated(parts, i, random)))
        yield Run("parallel", -1, at(_side_by_side(group)))

    return list(runs())


def spread(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, evenly spaced.

    >>> spread(10, 4), spread(2, 4)
    ([1, 3, 6, 8], [0, 1])
    """
    if most >= count:
        return list(range(count))
    return sorted({int((i + 0.5) * count / most) for i in range(most)})


def _subset(parts: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Which members stay: such a share of every part, and at least one of it."""
    kept = np.zeros(len(parts), dtype=bool)
    for part in np.unique(parts):
        here = np.flatnonzero(parts == part)
        kept[random.permutation(here)[: max(1, round(share * len(here)))]] = True
    return kept


def _spaced(n: int, k: int, offset: int) -> np.ndarray:
    kept = np.zeros(n, dtype=bool)
    kept[[min(n - 1, i * n // k + offset) for i in range(k)]] = True
    return kept


def _repeated(parts: np.ndarray, member: int, random: np.random.Generator) -> list[int]:
    """Which member runs at every place: this one at those of its part, one of each other part at those of that."""
    chosen = {int(part): int(random.choice(np.flatnonzero(parts == part))) for part in np.unique(parts)}
    chosen[int(parts[member])] = member
    return [chosen[int(part)] for part in parts]


def _side_by_side(group: list[int]) -> dict[int, Slot]:
    """Members that follow one another all read what the first reads; their writes are summed."""
    content: dict[int, Slot] = {}
    for i, block in enumerate(group):
        start = i
        while start and group[start - 1] == group[start] - 1:
            start -= 1
        content[i] = ()
        content[start] = (*content[start], (block, 1.0))
    return content
