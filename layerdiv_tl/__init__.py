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
    missing="layerdiv_tl:_missing",
)

# Parts of names that others use, and what is meant by them; the first one that fits counts.
_MEANT = {"ablat": "effects", "effect": "effects", "attribut": "contributions", "logit_attr": "contributions"}
_MEANT |= {"dla": "contributions", "cache": "contributions(cache, options=…)", "induction": "head_scores"}
_MEANT |= {"heads": "contributions(…, unit='head')", "neuron": "contributions(…, unit='neuron')"}
_MEANT |= {"lens": "depth.logit_lens", "skip": "depth.skip", "prun": "depth.drop_plan", "drop": "depth.drop_plan"}
_MEANT |= {"decomposition": "decompose", "diversity": "decompose", "compare": "compare", "models": "zoo.models"}
_MEANT |= {"sae": "dictionary", "transcoder": "dictionary", "hooked": "load_model", "bridge": "load_model"}
_MEANT |= {"pretrained": "load_model", "load": "load_model, or ld.Contributions.load of a saved file,"}
# The public names stand in `__init__.pyi`, once, for Python and for type checkers.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a public name. Raises AttributeError with the names that are spelled like it."""
    try:
        return _load(name)
    except AttributeError:
        raise _missing(__name__, name) from None


def _missing(module: str, name: str) -> AttributeError:
    """Make the error for a name that this module or `depth` lacks; it says which one may be meant."""
    import difflib

    places = dict[str, str]()
    if name[:1] != "_":  # tools look for names with underscores, which need not load torch
        places = {known: f"depth.{known}" for known in _load("depth").__all__} | {known: known for known in __all__}
    key = name.lower()
    close = [places[name]] if name in places else [place for part, place in _MEANT.items() if part in key][:1]
    alike = [known for known in places if min(len(key), len(known)) > 3 and (key in known.lower() or known in key)]
    alike = sorted(alike, key=lambda known: known[0].isupper())[:3]
    if not alike and len(name) > 3:  # three letters are too few to tell a slip from another word
        alike = difflib.get_close_matches(name, places, cutoff=0.65)
    close = close or [places[known] for known in alike]
    hint = f"is {' or '.join(f'ld.{place}' for place in close)} meant?"
    if not close:
        hint = f"dir({module}) lists public names; results have .frame(), .plot(kind=…), .save(path) and .load(path)."
    return AttributeError(f"{module} has no {name!r}: {hint}", name=name)
