"""Decompose a language model's logits along its residual stream; measure the bias and diversity of the components.

    model = ld.load_model()                                a name, a folder, a model in memory, a TransformerBridge
    c = ld.contributions(model, prompts, options, unit)    what each component writes to the options' logits; also
                                                           ld.contributions(cache, options=…) of TransformerLens
    ld.logit_difference(model, prompts, right, wrong)      … to the difference of two answers
    ld.contributions(model, prompt, generate=20)           … to every token of an answer
    ld.profile(model, text)                                … to the whole vocabulary, at every token of a text
    d = ld.decompose(c, labels)                            bias, diversity, and how often each is right alone
    ld.effects(model, prompts, contrast=…)                 what is lost without a component; compensation, backups
    ld.source_tokens, ld.promoted_tokens, ld.attention_patterns, ld.redundancy, ld.information, ld.compare
    ld.depth.logit_lens, skip, residual_norms, drop_plan   does the model use its depth, and what could go?
    ld.explore(model, text)                                all of it in linked views
    c.select(layer=23), c["L23.H3"]                        some of the components; numbers of one, [example, option]
    c.frame(), c.plot(kind=…), c.save(path)                of results, and Contributions.load(path); see `help(c.plot)`
    ld.task, ld.run_study, ld.run_depth, ld.zoo            many rows, many models; small models to try things on

`help(ld.contributions)` and the others have shapes, units and examples; `layerdiv docs` makes a site of them. Public
names are loaded when they are first used, so that importing this package is instant.

.. include:: reference.md
"""

import lazy_loader

from . import _registry

__version__ = "0.1.0"

# What lower rooms use of higher ones: imported when first looked up.
_registry.PLACES.update(
    figure="layerdiv_tl.views.figures:figure",
    study_page="layerdiv_tl.views.study_page:study_page",
    depth_page="layerdiv_tl.views.depth_page:depth_page",
    zoo_names="layerdiv_tl.zoo:NAMES",
    zoo_source="layerdiv_tl.zoo:source",
)

# What others call it.
_MEANT = {"ablate": "effects", "ablation": "effects", "attribution": "contributions", "logit_attrs": "contributions"}
_MEANT |= {"lens": "layerdiv_tl.depth.logit_lens", "prune": "layerdiv_tl.depth.drop_plan"}
_MEANT |= {"load": "load_model, or Contributions.load of a saved file,", "models": "layerdiv_tl.zoo.models"}
_MEANT |= {"list_models": _MEANT["models"], "direct_logit_attribution": "contributions", "dla": "contributions"}
# The public names stand in `__init__.pyi`, once, for Python and for type checkers.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a public name. Raises AttributeError with the names that are spelled like it."""
    import difflib

    try:
        return _load(name)
    except AttributeError:
        # Tools look for names with underscores, which need not load torch.
        in_depth = name[:1] != "_" and name in dir(_load("depth"))
        close = [f"layerdiv_tl.depth.{name}"] if in_depth else [_MEANT[key]] if (key := name.lower()) in _MEANT else []
        close = close or difflib.get_close_matches(name, __all__, cutoff=0.65)
        close = close or [known for known in __all__ if len(name) > 3 and name.lower() in known.lower()][:3]
        hint = f"is {' or '.join(close)} meant?" if close else "dir(layerdiv_tl) lists the public names."
        raise AttributeError(f"layerdiv_tl has no {name!r}: {hint}", name=name) from None
