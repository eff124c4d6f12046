"""Which model that reuses its layers is compared with which that does not, and which training seed each has."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Numbers of parameters that differ by less than this part count as the same.
TOLERANCE = 0.05
# {model: (shape, seed)}: models of one shape differ in their training seed only.
Seeds = Mapping[str, tuple[str, Hashable]]


def checked_pairs(models: pd.DataFrame, pairs: Mapping[str, str]) -> dict[str, str]:
    """{reuses: baseline} as a user names them. Raises InputError for what is not a pair of two models of the study."""
    if not isinstance(pairs, Mapping):
        raise InputError(f"pairs={shown(pairs)} must be {{model that reuses layers: model that does not}}.")
    names = models["model"].tolist()
    unknown = [name for pair in pairs.items() for name in pair if name not in names]
    if unknown:
        raise InputError(f"pairs names {shown(unknown[0])}, but the study has {', '.join(names)}.")
    for reuses, baseline in pairs.items():
        if reuses == baseline:
            raise InputError(f"pairs compares {reuses!r} with itself: name another model.")
    return dict(pairs)


def checked_seeds(seeds: Seeds, models: Iterable[str]) -> dict[str, tuple[str, Hashable]]:
    """The seeds as given. Raises InputError for what is not {model: (shape, seed)} of models of the study."""
    names = list(models)
    example = '{"small-a": ("small", 0), "small-b": ("small", 1)}'
    if not isinstance(seeds, Mapping):
        raise InputError(f"seeds={shown(seeds)} must be {{model: (shape, seed)}}, such as {example}.")
    model_of: dict[tuple[str, Hashable], str] = {}
    for name, pair in seeds.items():
        if name not in names:
            raise InputError(f"seeds names {shown(name)}, but the study has {', '.join(names)}.")
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and _is_hashable(pair)):
            raise InputError(f"seeds has {shown(pair)} for {name!r}: give (shape, seed), such as {example}.")
        if pair in model_of:
            raise InputError(
                f"{model_of[pair]!r} and {name!r} are both seed {pair[1]!r} of shape {pair[0]!r}: give one of them."
            )
        model_of[pair] = name
    return dict(seeds)


def same_parameters(models: pd.DataFrame, seeds: Mapping[str, Hashable]) -> dict[str, str]:
    """{reuses: baseline} of nearly the same number of parameters; of the same training seed where there is one.

    models
        As `Study.models` gives it.
    seeds
        {model: seed}, as far as they are known.

    >>> import pandas as pd
    >>> models = pd.DataFrame({"model": ["a", "b", "shared"], "parameters": [100, 101, 101],
    ...                        "reuses": [False, False, True]})
    >>> same_parameters(models, {}), same_parameters(models, {"a": 1, "b": 0, "shared": 1})
    ({'shared': 'b'}, {'shared': 'a'})
    """
    # In the order of their names, so that of equals one is taken whatever order the study has them in.
    table = models.set_index("model").sort_index()
    baselines = table["parameters"][~table["reuses"]]
    pairs = {}
    for name in models.loc[models["reuses"], "model"]:
        difference = (baselines / table["parameters"][name] - 1).abs()
        difference = difference[difference <= TOLERANCE]
        same_seed = difference[[seeds.get(other) == seeds.get(name) for other in difference.index]]
        if len(difference):
            pairs[str(name)] = str((same_seed if len(same_seed) else difference).idxmin())
    return pairs


def same_depth(models: pd.DataFrame, seeds: Mapping[str, Hashable], repeats: Mapping[Any, int]) -> dict[str, str]:
    """{reuses: baseline} of as many members and the same seed: the model in which every repeat has its own layers.

    It has more parameters than the one that reuses, and at most as many times more as a layer is repeated
    (`repeats`, by model), which leaves out wider and narrower models of the same depth.

    >>> import pandas as pd
    >>> models = pd.DataFrame({"model": ["narrow", "twin", "wide", "shared"], "parameters": [50, 170, 400, 100],
    ...                        "members": 9, "reuses": [False, False, False, True]})
    >>> same_depth(models, {}, {"shared": 2})
    {'shared': 'twin'}
    """
    table = models.set_index("model").sort_index()
    pairs = {}
    for name in models.loc[models["reuses"], "model"]:
        parameters, own = table["parameters"], table["parameters"][name]
        fits = ~table["reuses"] & (table["members"] == table["members"][name])
        fits &= (parameters > own) & (parameters <= repeats[name] * own)
        fits &= np.array([seeds.get(other) == seeds.get(name) for other in table.index], dtype=bool)
        if fits.any():
            pairs[str(name)] = str(parameters[fits].idxmax())
    return pairs


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
