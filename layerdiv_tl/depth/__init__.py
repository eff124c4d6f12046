"""Does a model use its depth? Interventions on its layers, one analysis a file.

    ld.depth.sizes(model, texts)                  how large each layer's writes are beside the stream
    ld.depth.skip(model, texts)                   what a layer that writes nothing changes behind it
    ld.depth.lens(model, texts)                   how far each junction's answer is from the last one
    ld.depth.erase(model, texts)                  what a token's stream still carries at each layer
    ld.depth.integrated_gradients(model, texts)   what the answer's probability owes to each layer
    ld.depth.map_layers(model, other, texts)      which layer of another model says the same
    ld.depth.agreement(model, task)               does a direct measure tell what removing a sublayer does
    ld.depth.drop_plan(model, task, budget)       which layers could go, and what that costs
    ld.depth.depth_score(model, questions)        whether answers of more hops rest on deeper layers

Sizes, skips, lens, erasure, gradients and score are those of *Do Language Models Use Their Depth Efficiently?* (arXiv
2505.13898): the defaults are the rules of its released code, above all that the first token of a text, on which heads
rest whatever it is, is left alone; other choices are options with names. Texts are a text, a list of
texts, a list of lists of token ids, or a `Task`, whose prompts are read; questions come from
`ld.depth.questions(…)`. Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Agreement": "agreeing",
    "agreement": "agreeing",
    "DropPlan": "plans",
    "drop_plan": "plans",
    "ChangePoint": "change",
    "Sizes": "norms",
    "sizes": "norms",
    "Skip": "skipping",
    "skip": "skipping",
    "Lens": "junctions",
    "lens": "junctions",
    "Erasure": "erasure",
    "erase": "erasure",
    "LayerMaps": "maps",
    "map_layers": "maps",
    "IntegratedGradients": "gradients",
    "integrated_gradients": "gradients",
    "DepthScore": "score",
    "depth_score": "score",
    "Slope": "slope",
    # They are tasks' own, and read like them; here is where they are used.
    "Questions": ".tasks.questions",
    "questions": ".tasks.questions",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'layerdiv_tl.depth' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
