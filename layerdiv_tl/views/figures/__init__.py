"""Every result's natural figure. Figures draw numbers; they compute none."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition
from ...ensemble.profile import CorpusProfile, Profile
from ...errors import InputError
from ...results import Result
from ...stream.contributions import Contributions
from ...studies.measure import Measurement
from .. import style
from .bars import component_bars
from .logits import contribution_map
from .profiles import profile_map

__all__ = ["component_bars", "contribution_map", "figure", "profile_map"]


def figure(result: Result, *, dark: bool = False, **options: Any) -> go.Figure:
    """The natural figure of a result: what `result.plot(**options)` returns; `dark` for a dark page."""
    drawn = _natural(result, **options)
    return drawn.update_layout(template=style.template(style.DARK)) if dark else drawn


def _natural(result: Result, **options: Any) -> go.Figure:
    match result:
        case Decomposition() | CorpusProfile():
            return component_bars(result, **options)
        case Profile():
            return profile_map(result, **options)
        case Measurement():
            return component_bars(result.decomposition, **options)
        case Contributions():
            return contribution_map(result, **options)
    raise InputError(f"a {type(result).__name__} has no figure of its own: plot one of its parts.")
