"""Does a model use its depth? Interventions on its layers, one analysis per file.

    ld.depth.residual_norms(model, texts)        norms and cosines of layers' outputs relative to the stream
    ld.depth.skip(model, texts)                  effects of skipping a layer on later layers and predictions
    ld.depth.logit_lens(model, texts)            KL of every junction's prediction from the final one
    ld.depth.erase(model, texts)                 effects of erasing a token's stream at each layer
    ld.depth.integrated_gradients(model, texts)  attribution of the answer's probability to each layer's output
    ld.depth.map_layers(model, other, texts)     linear maps from the layers of one model to those of another
    ld.depth.drop_plan(model, task, n_drop)      which layers or heads could go, and the loss without them
    ld.depth.depth_score(model, questions)       whether answers of more hops depend on deeper layers

The norms, skips, lens, erasure, gradients and score are those of *Do Language Models Use Their Depth Efficiently?*
(arXiv 2505.13898). The defaults follow its released code; in particular, the first token of a text, an attention sink,
is left alone. Named options select other choices. Texts are a text, a list of texts, a list of lists of token ids, or a
`Task`, whose prompts are used; questions come from `ld.depth.questions(…)`.
"""

from ..tasks.questions import questions
from .depth_score import depth_score
from .erasure import erase
from .integrated_gradients import integrated_gradients
from .layer_maps import map_layers
from .logit_lens import logit_lens
from .pruning import drop_plan
from .residual_norms import residual_norms
from .skipping import skip

__all__ = [
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


def __dir__() -> list[str]:
    return __all__
