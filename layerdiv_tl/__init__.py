"""Decompose a language model's logits along its residual stream; measure the bias and diversity of the components.

    model = ld.load_model()                                a name, a folder, a model in memory, a TransformerBridge
    c = ld.contributions(model, prompts, options)          what each component writes to the options' logits; also
                                                           ld.contributions(cache, options=…) of TransformerLens
    ld.logit_difference(model, prompts, right, wrong)      … to the difference of two answers
    ld.continuation(model, prompt)                         … to every token that the model writes
    ld.profile(model, text)                                … to the whole vocabulary, at every token of a text
    d = ld.decompose(c, labels)                            bias, diversity, and how often each is right alone
    ld.effects(model, prompts, options)                    what is lost without a component; compensation
    ld.compare(a, b)                                       the difference of two contributions
    ld.source_tokens, ld.promoted_tokens, ld.attention_patterns, ld.top_tokens, ld.head_scores, ld.information
    ld.depth.logit_lens, skip, residual_norms, drop_plan   does the model use its depth, and what could go?
    ld.explore(model, text)                                all of it in linked views
    c.select(layer=23), c["L23.H3"]                        some of the components; numbers of one, [example, option]
    c.frame(), c.plot(), c.save(path)                      of any result, and ld.load(path)
    ld.task, ld.Task.from_frame, ld.Grid, ld.zoo           many rows, many models; small models to try things on
    unit="sublayer", "head", "neuron", "expert"            what components are; also ld.groups({name: labels}) and
                                                           ld.dictionary(sae, "L12.mlp") for the latents of an SAE

`help(ld.contributions)` and the others have shapes, units and examples. Public names are loaded when they are first
used, so that importing this package is instant. `layerdiv --help` has the commands for the shell; `reference.md`, in
the package's folder, has equations, models and limits.

.. include:: reference.md
"""

import lazy_loader

from . import _registry

__version__ = "0.1.0"

# What lower rooms use of higher ones: imported when first looked up.
_registry.PLACES.update(
    figure="layerdiv_tl.views.figures:figure",
    leading="layerdiv_tl.views.leading:leading",
    zoo_source="layerdiv_tl.zoo:source",
    all_results="layerdiv_tl:_import_results",
)

# The public names stand in `__init__.pyi`, once, for Python and for type checkers. Without `__all__`, `help` of this
# package is the page above, and not that of every function.
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)


def _import_results() -> None:
    """Import every public function, and with each the class of its results."""
    for name in _names:
        __getattr__(name)
