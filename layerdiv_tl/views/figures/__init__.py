"""Every result's natural figure. Figures draw numbers; they compute none."""

from __future__ import annotations

from typing import Any, cast

import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition
from ...ensemble.profile import CorpusProfile, Profile
from ...ensemble.reweight import Reweighting
from ...ensemble.scaling import LogFit
from ...ensemble.tradeoff import TradeOff
from ...errors import InputError
from ...results import Result
from ...stream.contributions import Contributions
from ...studies.shards import Shard
from ...studies.study import Study
from .. import style
from .bars import component_bars
from .claims import scaling_curve, share_bars, tradeoff_steps
from .correlations import correlation_bars
from .curves import depth_panels
from .logits import contribution_map
from .profiles import profile_map
from .studies import study_figure, study_table_map
from .weights import reweighting_bars

__all__ = [
    "component_bars",
    "contribution_map",
    "correlation_bars",
    "depth_panels",
    "figure",
    "profile_map",
    "reweighting_bars",
    "scaling_curve",
    "share_bars",
    "study_figure",
    "study_table_map",
    "tradeoff_steps",
]


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
        case Contributions():
            return contribution_map(result, **options)
        case Shard():  # has all of Contributions that a map shows
            return contribution_map(cast(Any, result), **options)
        case Study():
            return study_figure(result, **options)
        case LogFit():
            return scaling_curve(result, **options)
        case TradeOff():
            return tradeoff_steps(result, **options)
        case Reweighting():
            return reweighting_bars(result, **options)
    raise InputError(f"a {type(result).__name__} has no figure of its own: plot one of its parts.")
