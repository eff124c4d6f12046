"""Does a model use its depth? Interventions on its layers, one analysis a file.

    ld.depth.residual_norms(model, texts)                  how large each layer's writes are beside the stream
    ld.depth.skip(model, texts)                   what a layer that writes nothing changes behind it
    ld.depth.logit_lens(model, texts)                   how far each junction's answer is from the last one
    ld.depth.erase(model, texts)                  what a token's stream still carries at each layer
    ld.depth.integrated_gradients(model, texts)   what the answer's probability owes to each layer
    ld.depth.map_layers(model, other, texts)      which layer of another model says the same
    ld.depth.agreement(model, task)               does a direct measure tell what removing a sublayer does
    ld.depth.drop_plan(model, task, budget)       which layers could go, and what that costs
    ld.depth.depth_score(model, questions)        whether answers of more hops rest on deeper layers

Norms, skips, lens, erasure, gradients and score are those of *Do Language Models Use Their Depth Efficiently?* (arXiv
2505.13898): the defaults are the rules of its released code, above all that the first token of a text, on which heads
rest whatever it is, is left alone; other choices are options with names. Texts are a text, a list of
texts, a list of lists of token ids, or a `Task`, whose prompts are read; questions come from
`ld.depth.questions(…)`.
"""

from ..ensemble.regression import Slope
from ..tasks.multihop import Questions, questions
from .agreement import Agreement, agreement
from .change_point import ChangePoint
from .depth_score import DepthScore, depth_score
from .erasure import Erasure, erase
from .integrated_gradients import IntegratedGradients, integrated_gradients
from .layer_maps import LayerMaps, map_layers
from .logit_lens import LogitLens, logit_lens
from .pruning import DropPlan, drop_plan
from .residual_norms import ResidualNorms, residual_norms
from .skipping import Skip, skip

__all__ = [
    "Agreement",
    "ChangePoint",
    "DepthScore",
    "DropPlan",
    "Erasure",
    "IntegratedGradients",
    "LayerMaps",
    "LogitLens",
    "Questions",
    "ResidualNorms",
    "Skip",
    "Slope",
    "agreement",
    "depth_score",
    "drop_plan",
    "erase",
    "integrated_gradients",
    "logit_lens",
    "map_layers",
    "questions",
    "residual_norms",
    "skip",
]
