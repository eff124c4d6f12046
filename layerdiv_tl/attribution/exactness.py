"""Check that the components of a model sum to its logits, unit by unit."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pandas as pd

from ..components import Unit
from ..errors import InputError
from ..model.load import as_model
from .contributions import contributions
from .question import read_question


def exactness(model: Any, prompts: Any = None) -> pd.DataFrame:
    """Check at every unit that the components of a model sum to its logits.

    Args:
        model: Anything `load_model` takes: an id, a folder, a model, a `TransformerBridge`, a `HookedTransformer`.
        prompts: As in `contributions`; None takes two rows of random token ids.

    Returns a row per unit: `rows`, the number of components; `identity_gap`, max |Σ u_i − logits| / max Σ|u_i|;
    `absolute_gap`, in logits; and `reason`, empty where the sum holds, else the sublayer or place where it breaks, or
    the reason why there are no such components. Raises InputError for a model that cannot be read at all.

    >>> frame = exactness("zoo/d2")
    >>> frame.loc[frame["reason"] == "", "unit"].tolist(), bool(frame["identity_gap"].max() < 1e-6)
    (['sublayer', 'head', 'neuron'], True)
    """
    model = as_model(model)
    if prompts is None:
        ids = np.random.default_rng(0).integers(1, max(2, model.vocabulary), 14)
        prompts = [ids[:8].tolist(), ids[8:].tolist()]
    options = list(range(min(2, model.vocabulary)))
    read_question(model, prompts, options)  # prompts that cannot be read are no fault of the model
    records = []
    for unit in get_args(Unit):
        record: dict[str, Any] = {"unit": unit, "rows": 0, "identity_gap": np.nan, "absolute_gap": np.nan, "reason": ""}
        try:
            c = contributions(model, prompts, options, unit=unit)
            record |= {"rows": len(c.components), "identity_gap": c.identity_gap, "absolute_gap": c.absolute_gap}
        except InputError as error:
            record["reason"] = str(error)
        records.append(record)
    return pd.DataFrame(records)
