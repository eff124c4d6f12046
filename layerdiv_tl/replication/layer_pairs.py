"""Which model that reuses its layers is held against which that does not."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from .._checks import shown
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Numbers of parameters that differ by less than this part count as the same.
SAME = 0.05


def given(models: pd.DataFrame, pairs: Mapping[str, str]) -> dict[str, str]:
    """{reuses: plain} as a user names them. Raises InputError for what is no pair of two models of the study."""
    if not isinstance(pairs, Mapping):
        raise InputError(f"pairs={shown(pairs)} must be {{model that reuses layers: model that does not}}.")
    names = models["model"].tolist()
    unknown = [name for pair in pairs.items() for name in pair if name not in names]
    if unknown:
        raise InputError(f"pairs names {shown(unknown[0])}, but the study has {', '.join(names)}.")
    for reused, plain in pairs.items():
        if reused == plain:
            raise InputError(f"pairs holds {reused!r} against itself: name another model.")
    return dict(pairs)


def same_parameters(models: pd.DataFrame, seeds: Mapping[str, Hashable]) -> dict[str, str]:
    """{reuses: plain} of nearly the same number of parameters; of the same training seed where there is one.

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
    size = models.set_index("model")["parameters"].sort_index()
    reuses = models.set_index("model")["reuses"]
    found = {}
    for name in reuses.index[reuses]:
        off = (size[~reuses[size.index]] / size[name] - 1).abs()
        off = off[off <= SAME]
        same = off[[seeds.get(other) == seeds.get(name) for other in off.index]]
        if len(off):
            found[str(name)] = str((same if len(same) else off).idxmin())
    return found


def same_depth(models: pd.DataFrame, seeds: Mapping[str, Hashable], repeats: Mapping[Any, int]) -> dict[str, str]:
    """{reuses: plain} of as many members and the same seed: what the model would be, had every use its own layers.

    Such a model has more parameters than the one that reuses, and at most as many times more as a layer is
    used (`uses`, by model): wider and narrower models of the same depth are none.

    >>> import pandas as pd
    >>> models = pd.DataFrame({"model": ["narrow", "twin", "wide", "shared"], "parameters": [50, 170, 400, 100],
    ...                        "members": 9, "reuses": [False, False, False, True]})
    >>> same_depth(models, {}, {"shared": 2})
    {'shared': 'twin'}
    """
    table = models.set_index("model").sort_index()
    found = {}
    for name in models.loc[models["reuses"], "model"]:
        size = table["parameters"][~table["reuses"] & (table["members"] == table["members"][name])]
        own = table["parameters"][name]
        size = size[(size > own) & (size <= repeats[name] * own)]
        size = size[[seeds.get(other) == seeds.get(name) for other in size.index]]
        if len(size):
            found[str(name)] = str(size.idxmax())
    return found
