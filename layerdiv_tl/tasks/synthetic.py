"""Generated tasks: any number of rows, offline.

A name includes its parameters: `synthetic/k_hop:hops=3,entities=6,seed=1`. Gold options alternate, so every class has
the same number of rows, and row i does not depend on the number of rows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._checks import whole_number
from ..errors import InputError
from .rows import Rows
from .templates import TaskSpec

PREFIX = "synthetic/"
DEFAULT_ROWS = 256
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
COLORS = ("red", "blue", "green", "black", "white", "brown", "pink", "gray")


def k_hop(*, hops: int = 2, entities: int = 8, seed: int = 0) -> TaskSpec:
    """Follow a chain of pointers for `hops` steps.

    The pointers form one cycle through all entities, so a model that stops early or goes too far is wrong, and every
    entity is named equally often.

    >>> print(k_hop(hops=2, entities=4).load_rows(1).rows[0]["facts"])
    B points to D. A points to B. C points to A. D points to C.
    """
    whole_number("entities", entities, 2, len(LETTERS))
    whole_number("hops", hops, 1, entities - 1)

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        cycle = rng.permutation(entities)
        cycle = np.roll(cycle, hops - int(np.argmax(cycle == gold)))
        pointers = [f"{LETTERS[a]} points to {LETTERS[b]}." for a, b in zip(cycle, np.roll(cycle, -1), strict=True)]
        facts = " ".join(pointers[i] for i in rng.permutation(entities))
        return {"facts": facts, "start": LETTERS[cycle[0]], "steps": f"{hops} step{'s' * (hops > 1)}", "hops": hops}

    template = "{facts}\nStart at {start} and go {steps}. You arrive at {answer}"
    return _generated(template, LETTERS[:entities], row, seed)


def recall(*, pairs: int = 8, values: int = 4, seed: int = 0) -> TaskSpec:
    """Associative recall: give the value that was next to a key earlier in the prompt.

    >>> print(recall(pairs=2).load_rows(1).rows[0]["pairs"])
    T: red
    E: blue
    """
    whole_number("pairs", pairs, 1, len(LETTERS))
    whole_number("values", values, 2, len(COLORS))

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        keys = rng.permutation(len(LETTERS))[:pairs]
        colors = rng.integers(values, size=pairs)
        query = int(rng.integers(pairs))
        colors[query] = gold
        lines = [f"{LETTERS[key]}: {COLORS[color]}" for key, color in zip(keys, colors, strict=True)]
        return {"pairs": "\n".join(lines), "key": LETTERS[keys[query]]}

    return _generated("{pairs}\n{key}: {answer}", COLORS[:values], row, seed)


def modular(*, modulus: int = 7, largest: int = 99, terms: int = 2, seed: int = 0) -> TaskSpec:
    """Modular addition: `terms` numbers from 0 to `largest`, modulo `modulus`.

    The template puts no space before the answer, because most tokenizers split ` 5` into two tokens.

    >>> modular(modulus=3, terms=3).load_rows(1).rows[0]["sum"]
    '85 + 63 + 50'
    """
    whole_number("modulus", modulus, 2, 10)
    whole_number("largest", largest, modulus - 1, 10**6)
    whole_number("terms", terms, 2, 26)

    def row(rng: np.random.Generator, gold: int) -> dict[str, Any]:
        numbers = [int(rng.integers(largest + 1)) for _ in range(terms - 1)]
        smallest = (gold - sum(numbers)) % modulus
        numbers.append(smallest + modulus * int(rng.integers((largest - smallest) // modulus + 1)))
        named = {letter.lower(): number for letter, number in zip(LETTERS, numbers, strict=False)}
        return {**named, "sum": " + ".join(map(str, numbers)), "modulus": modulus}

    return _generated("({sum}) mod {modulus}={answer}", tuple(map(str, range(modulus))), row, seed)


GENERATORS: Mapping[str, Callable[..., TaskSpec]] = {
    PREFIX + "k_hop": k_hop,
    PREFIX + "recall": recall,
    PREFIX + "modular": modular,
}


def synthetic(name: str) -> TaskSpec:
    """Build the task of a name `synthetic/…` with its parameters. Raises InputError for an unknown parameter.

    >>> synthetic("synthetic/modular:modulus=3").options
    ('0', '1', '2')
    """
    generator, _, settings = name.partition(":")
    known = inspect.signature(GENERATORS[generator]).parameters
    given: dict[str, int | float] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            raise InputError(f"{generator} has no parameter {key!r}: choose among {', '.join(known)}.")
        given[key] = type(known[key].default)(value)
    changed = [f"{key}={given[key]}" for key in known if key in given and given[key] != known[key].default]
    full = generator + ":" * bool(changed) + ",".join(changed)
    return dataclasses.replace(GENERATORS[generator](**given), name=full)


def _generated(
    template: str,
    options: tuple[str, ...],
    row: Callable[[np.random.Generator, int], dict[str, Any]],
    seed: int,
) -> TaskSpec:
    """Build a task whose rows are made by `row(rng, gold)`."""
    whole_number("seed", seed, 0, 2**32)

    def load_rows(count: int | None) -> Rows:
        rows = []
        for n in range(count or DEFAULT_ROWS):
            gold = n % len(options)
            # Each row has its own generator, so no row depends on how many there are.
            rows.append({**row(np.random.default_rng([seed, 0, n]), gold), "label": gold})
        return Rows(rows, f"generated by layerdiv_tl, seed {seed}")

    return TaskSpec("", {"default": template}, options, "MIT", load_rows)
