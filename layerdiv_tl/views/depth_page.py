"""The depth analyses of some models as one offline page: findings, figures, claims, provenance."""

from __future__ import annotations

from ..depth.agreement import Agreement
from ..depth.pruning_results import DropPlan
from ..ensemble.intervals import LEAST
from ..errors import InputError
from ..studies.depth_study import DepthStudy
from . import tables
from .findings import depth_findings
from .html import Block, Page, chart, frame_table, switch
from .report import add_claims, begin_page, methods_section

_DEPTH_METHODS = (
    "Residual norms, skips, the logit lens and the depth score follow the code released with Do Language Models Use "
    "Their Depth Efficiently? (arXiv 2505.13898), except that cuts are at quarters of a text and that means stand next "
    "to the maxima, which are all that it draws. A skipped layer or sublayer adds nothing to the stream, and "
    "everything after it is computed again. The first token of a text is never skipped: it is the attention sink. "
    "Agreement and plans are about removal at every token. Nothing is retrained: a pruned model recovers with "
    "training, and may then rank its layers differently.",
    "Means are over tokens, intervals over texts, rows or questions, because tokens of one text are not independent; "
    f"fewer than {LEAST} of these have no interval. The depth score of a group is Σ l·e_l / Σ e_l: e_l is the mean "
    "over its questions of the largest change of the probabilities from the answer's first token on when layer l is "
    "skipped at the tokens before it.",
    "Direct measures and effects are compared by Spearman's rank correlation over components; its interval is over "
    "rows, and next to it one over components, which is wider. Half of the rows choose a plan, the other half measures "
    "it.",
)
# Depth analyses: their headings and the captions of their figures; further kinds of these.
_DEPTH_CAPTIONS = {
    "residual_norms": ("Norm that each attention, MLP and layer adds, relative to the stream it is added to", ""),
    "skip": ("Change of the answer when one layer adds nothing at any token but the first", ""),
    "skip_future": (
        "Effect of a layer on later tokens",
        "The layer adds nothing at the tokens before a cut; the tokens from the cut on are measured.",
    ),
    "logit_lens": ("Prediction read out at every junction of the stream", ""),
    "depth_score": ("Depth of the layers that an answer depends on, by the number of hops of the question", ""),
    "agreement": (
        "Do cheap measures predict the ablation loss of sublayers?",
        "Direct measures need one clean pass; the ablation loss needs a pass for each sublayer.",
    ),
    "drop_plan": ("Loss and accuracy without the layers that a plan drops, on rows that did not choose them", ""),
    "map_layers": ("Which layer of one model linearly predicts a layer of the other", ""),
    "effects": (
        "Direct and total effect of each sublayer on the answer",
        "The total effect is the cost of mean-ablating a sublayer, with everything after it reacting; the direct "
        "effect is that of its own output.",
    ),
}
_DEPTH_KINDS = {
    **{"skip": ("bars",), "skip_future": ("bars",), "agreement": ("ranks", "correlations")},
    **{"drop_plan": ("components",)},
}


def depth_page(depth: DepthStudy, title: str | None = None) -> Page:
    """Make an offline page of some models' depth analyses: findings, figures, claims, provenance."""
    several = len(depth.models) > 1
    page = begin_page(
        title or f"How {f'{len(depth.models)} models use' if several else f'{depth.models[0]} uses'} depth",
        f"{'Models' if several else 'A model'} without one layer at a time: how much each layer adds to the stream, "
        "how later layers and the answer change without it, and which layers could go.",
        depth.failures,
        list(depth_findings(depth)),
        (curves_by_layer(depth), ""),
        analysis_names(depth),
    )
    depth_sections(page, depth, overview=False)
    page.heading("What the papers claim")
    add_claims(page, depth.claims())
    with methods_section(page, _DEPTH_METHODS):
        page.table(tables.analysis_table(depth), "Analyses; weights by SHA-256, shortened.")
    return page


def curves_by_layer(depth: DepthStudy) -> Block | None:
    """Plot the curves over layers; None if no analysis has any."""
    try:
        return chart(depth.plot(), "Each point is a layer.")
    except InputError:
        return None


def analysis_names(depth: DepthStudy) -> dict[str, str]:
    """Return the analyses' names in links."""
    return {a.name: a.name.replace("_", " ") for a in depth.analyses}


def depth_sections(page: Page, depth: DepthStudy, overview: bool) -> None:
    """Add the figures and tables of all analyses: a section for each kind, which shows one at a time."""
    page.heading("Depth, model by model")
    if overview and (curves := curves_by_layer(depth)) is not None:
        page.block(curves)
    for name in dict.fromkeys(a.name for a in depth.analyses):
        heading, caption = _DEPTH_CAPTIONS.get(name, (name.replace("_", " "), ""))
        page.subheading(heading)
        shown: dict[str, Block] = {}
        for a in (a for a in depth.analyses if a.name == name):
            title = f"{a.model}: {name.replace('_', ' ')}, {a.dataset}"
            for kind in (None, *_DEPTH_KINDS.get(name, ())):
                try:
                    shown[f"{title}: {kind}" if kind else title] = chart(a.result.plot(kind=kind), caption)
                except InputError as error:
                    page.text(f"{title}: left out, because {error}", "small")
            if isinstance(a.result, Agreement):
                table = tables.agreement_table(a.result)
                shown[f"{title}: table"] = frame_table(
                    table, "Spearman's ρ with the ablation loss, and its 95 % interval over resampled components."
                )
            if isinstance(a.result, DropPlan):
                shown[f"{title}: table"] = frame_table(tables.plan_table(a.result), "On rows that did not choose.")
        if shown:
            page.block(switch(shown, "Model, rows and figure"), name=name)
