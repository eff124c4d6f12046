"""Figures of every result, by kind. Figures draw numbers; they compute none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from ..._checks import choice, flag, keywords, whole_number
from ...attribution.contributions import Contributions
from ...attribution.corpus import CorpusProfile
from ...attribution.profile_base import Profile
from ...depth.agreement import Agreement
from ...depth.change_point import ChangePoint
from ...depth.depth_score import DepthScore
from ...depth.erasure import Erasure
from ...depth.integrated_gradients import IntegratedGradients
from ...depth.layer_maps import LayerMaps
from ...depth.logit_lens import LogitLens
from ...depth.pruning import DropPlan
from ...depth.residual_norms import ResidualNorms
from ...depth.skipping import Skip
from ...ensemble.decomposition import Decomposition
from ...ensemble.information import Bounds, GainCurve, GaussianFit, Information, LowerBound
from ...ensemble.reweight import Reweighting
from ...ensemble.scaling import LogFit
from ...errors import InputError
from ...model.attention import AttentionPatterns
from ...replication.tradeoff import TradeOff
from ...results import Result, with_article
from ...studies.depth_study import DepthStudy
from ...studies.shards import Shard
from ...studies.study import Study
from ...tasks.noisy_votes import Votes
from ...tasks.task import Task
from .. import style
from .agreement import agreement_correlations, agreement_ranks, agreement_stability
from .agreement_scatter import agreement_scatter
from .attention import attention_maps
from .bars import component_bars
from .correlations import correlation_bars
from .depth_analyses import (
    change_bars,
    erasure_bars,
    erasure_map,
    gradient_bars,
    gradient_map,
    layer_map,
    lens_bars,
    size_bars,
    skip_bars,
    skip_map,
)
from .depth_panels import depth_panels
from .depth_score import score_bars
from .depth_study import depth_use_lines
from .heads import head_grid
from .information import bound_bars, fit_marks, gain_lines, member_bars, row_histogram, term_bars
from .logits import contribution_map
from .loss import loss_curve
from .modules import module_shares
from .pairwise import pairwise_map
from .paper_figures import scaling_curve, share_bars, tradeoff_steps
from .prefix_curves import depth_curves
from .profiles import profile_depth, profile_map
from .pruning import drop_components, drop_curve
from .repeated_layers import repeat_bars
from .reweighting import reweighting_bars
from .scatter import bias_diversity_scatter
from .studies import STUDY_KINDS, study_table_map
from .tasks import label_bars, vote_bars
from .theorem3 import tradeoff_bars

__all__ = [
    "agreement_correlations",
    "agreement_ranks",
    "agreement_scatter",
    "agreement_stability",
    "attention_maps",
    "bias_diversity_scatter",
    "bound_bars",
    "change_bars",
    "component_bars",
    "contribution_map",
    "correlation_bars",
    "depth_curves",
    "depth_panels",
    "depth_use_lines",
    "drop_components",
    "drop_curve",
    "erasure_bars",
    "erasure_map",
    "figure",
    "fit_marks",
    "gain_lines",
    "gradient_bars",
    "gradient_map",
    "head_grid",
    "label_bars",
    "layer_map",
    "lens_bars",
    "loss_curve",
    "member_bars",
    "module_shares",
    "pairwise_map",
    "profile_depth",
    "profile_map",
    "reweighting_bars",
    "row_histogram",
    "scaling_curve",
    "score_bars",
    "share_bars",
    "size_bars",
    "skip_bars",
    "skip_map",
    "study_table_map",
    "term_bars",
    "tradeoff_bars",
    "tradeoff_steps",
    "use_bars",
    "vote_bars",
]

# In pixels: plotly draws no less than its margins, and browsers no more.
HEIGHTS = (100, 20_000)

# What can be drawn of each result, by kind; the first is its natural figure.
KINDS: dict[type[Result], dict[str, Callable[..., go.Figure]]] = {
    Decomposition: {
        "bars": component_bars,
        "scatter": bias_diversity_scatter,
        "depth": depth_curves,
        "modules": module_shares,
        "heads": head_grid,
        "pairwise": pairwise_map,
        "tradeoff": tradeoff_bars,
        "repeats": repeat_bars,
    },
    CorpusProfile: {"bars": component_bars, "scatter": bias_diversity_scatter},
    Profile: {"map": profile_map, "depth": profile_depth, "scatter": bias_diversity_scatter, "loss": loss_curve},
    Contributions: {"map": contribution_map},
    Shard: {"map": contribution_map},  # has all of Contributions that a map shows
    Study: STUDY_KINDS,
    LogFit: {"curve": scaling_curve},
    TradeOff: {"steps": tradeoff_steps},
    Reweighting: {"weights": reweighting_bars},
    AttentionPatterns: {"maps": attention_maps},
    Information: {"terms": term_bars, "members": member_bars},
    Bounds: {"bounds": bound_bars},
    GainCurve: {"curve": gain_lines},
    GaussianFit: {"tests": fit_marks},
    LowerBound: {"rows": row_histogram},
    Task: {"labels": label_bars},
    Votes: {"members": vote_bars},
    DepthStudy: {"depth": depth_use_lines},
    ResidualNorms: {"bars": size_bars},
    Skip: {"map": skip_map, "bars": skip_bars},
    ChangePoint: {"bars": change_bars},
    LogitLens: {"bars": lens_bars},
    LayerMaps: {"map": layer_map},
    Erasure: {"map": erasure_map, "bars": erasure_bars},
    Agreement: {
        "scatter": agreement_scatter,
        "ranks": agreement_ranks,
        "correlations": agreement_correlations,
        "stability": agreement_stability,
    },
    DropPlan: {"curve": drop_curve, "components": drop_components},
    IntegratedGradients: {"map": gradient_map, "bars": gradient_bars},
    DepthScore: {"bars": score_bars},
}


def figure(result: Result, *, kind: str | None = None, dark: bool = False, **given: Any) -> go.Figure:
    """A figure of a result: what `result.plot(kind=…, **options)` returns; `dark` for a dark page.

    `kind` None is the result's natural figure; other options are those of the kind's function, and are held against
    its annotations here, for all figures. Raises InputError for a kind or option that this result does not have, for a
    value that an option does not take, and for a result that has no figure.
    """
    kinds = next((kinds for of, kinds in KINDS.items() if isinstance(result, of)), None)
    if kinds is None:
        raise InputError(f"{with_article(type(result).__name__)} has no figure of its own: plot one of its parts.")
    kind = next(iter(kinds)) if kind is None else kind
    draw, dark = kinds[choice("kind", kind, kinds)], flag("dark", dark)
    keywords(draw, given)
    if given.get("height") is not None:
        whole_number("height", given["height"], *HEIGHTS)
    if "most" in given:
        whole_number("most", given["most"], 1)
    drawn = draw(result, **given)
    return drawn.update_layout(template=style.template(style.DARK)) if dark else drawn
