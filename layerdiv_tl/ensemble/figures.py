"""The kinds of figures of a `Decomposition`, and the frames that they are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..results import Plot


def _full_frame(decomposition: Any) -> pd.DataFrame:
    frame: pd.DataFrame = decomposition.by_component(full=True)
    return frame


def _module_frame(decomposition: Any) -> pd.DataFrame:
    frame: pd.DataFrame = decomposition.by_module()
    frame["component"] = frame["module"]
    return frame


def _pair_frame(decomposition: Any, most: int = 60) -> pd.DataFrame:
    """Both halves of `pairwise`, of the components with the largest diversity, similar ones next to each other."""
    largest = np.sort(np.argsort(-decomposition.terms["diversity"].mean(0), kind="stable")[:most])
    kept = tuple(decomposition.components[i] for i in largest)
    frame = replace(decomposition, values=decomposition.values[:, largest], components=kept).pairwise()
    order = frame.attrs["order"]
    itself = pd.DataFrame({"component": order, "other": order})  # with it rows and columns have the same order
    both = pd.concat([frame, frame.rename(columns={"component": "other", "other": "component"}), itself])
    place = {label: number for number, label in enumerate(order)}
    both = both.sort_values(["component", "other"], key=lambda side: side.map(place), ignore_index=True)
    both.attrs = frame.attrs
    return both


FIGURES: Mapping[str, Plot] = {
    "strip": Plot(
        "What each component writes on each row",
        "A mark per row and component at its contribution to the first option minus the second (of more, to the "
        "right one minus the mean of the others). A constant stands off zero, a reader separates the colors.",
        "strip.strip",
    ),
    "bars": Plot(
        "Diversity and accuracy of each component",
        "Diversity on a logarithmic axis, and the accuracy of each component alone over that of guessing.",
        "special.accuracies",
    ),
    "heads": Plot(
        "Heads and MLPs by layer",
        'A map head × layer of a column of `by_component(full=True)`, `value="diversity"`; MLPs are the last row.',
        "special.heads",
        _full_frame,
        {"value": "diversity"},
    ),
    "modules": Plot(
        "Shares of bias and diversity by module",
        "Each module's share of bias, of diversity and of the components (Fig. 4).",
        "shapes.bars",
        _module_frame,
        {"columns": ("bias_share", "diversity_share", "member_share")},
    ),
    "depth": Plot(
        "Loss and accuracy along depth",
        "Bias and loss of the components up to each junction; the band between them is the diversity (Fig. 5, 7).",
        "special.depth",
    ),
    "scatter": Plot(
        "Bias and diversity of every component",
        "A mark per component at bias and diversity, on logarithmic axes; on the dashed line they are equal.",
        "shapes.marks",
        _full_frame,
        {"x": "bias", "y": "diversity", "log": True, "diagonal": "net = 0"},
    ),
    "pairwise": Plot(
        "Similarity of components",
        "A map of the cosines of `pairwise()`: similar components are neighbors.",
        "shapes.heat",
        _pair_frame,
        {"row": "component", "column": "other", "value": "cosine"},
    ),
}
