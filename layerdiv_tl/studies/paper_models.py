"""The models of the two papers and the default model (the paper's Table 4), from paper_models.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pandas as pd

# The papers by topic.
DIVERSITY, DEPTH = "2505.24009", "2505.13898"


@cache
def catalog() -> pd.DataFrame:
    """Return the default model, the paper's sixteen in the order of its Table 4, and those of the paper on depth.

    Columns: `name` on Hugging Face, `license`, `gated`, the arXiv numbers of its `papers`, a `note` to read before
    loading, `components` at unit sublayer (the paper's layer size), `parameters` with tied ones counted once,
    `gigabytes` of bfloat16 weights, and the `config` that determines these.

    >>> catalog()["components"].tolist()[:5]
    [61, 61, 121, 65, 129]
    """
    frame = pd.DataFrame(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["models"])
    return frame.fillna({"note": ""}).assign(gigabytes=(2 * frame["parameters"] / 1e9).round(1))
