"""What is meant by names that other libraries or papers use: of functions, of parts of results, of commands."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# How to make a task, for those who guess another way.
OWN_TASK = (
    "ld.Task.from_frame(frame, template='{prompt}', options=[…], label='answer') makes a task of a pandas frame; lists "
    "of prompts and options need none: c = ld.contributions(model, prompts, options), then ld.decompose(c, answers)."
)
_LAYERS = ".groupby('layer', dropna=False)"
# Parts of names of functions; the first one that fits counts.
FUNCTIONS = {
    **dict.fromkeys(("save_model", "smaller"), "ld.depth.drop_plan(…).save_model(folder)"),
    **dict.fromkeys(("prun", "drop", "remov", "delet", "compress", "shortgpt"), "ld.depth.drop_plan"),
    **dict.fromkeys(("redundan", "similar", "cluster"), "ld.redundancy"),
    **dict.fromkeys(("by_layer", "per_layer"), f"ld.logit_difference(…).frame(){_LAYERS}['difference'].sum()"),
    **dict.fromkeys(("counterweight", "reader", "role"), "ld.decompose(c, labels).plot(kind='roles')"),
    **dict.fromkeys(("accumulated", "lens"), "ld.depth.logit_lens"),
    **dict.fromkeys(("induction", "previous_token", "duplicate_token"), "ld.head_scores"),
    **dict.fromkeys(("stack_head", "heads"), "ld.contributions(…, unit='head')"),
    **dict.fromkeys(
        ("patch", "steer", "circuit", "to_tokens", "generate"), "ld.load_model(…).bridge, for TransformerLens' tools,"
    ),
    **dict.fromkeys(("perplexity", "loss", "cross_entropy"), "ld.profile(model, text, loss='cross_entropy')"),
    **dict.fromkeys(("bootstrap", "interval", "confidence"), "the columns _low and _high of result.frame()"),
    **dict.fromkeys(("ablat", "effect", "knock", "interven", "cost", "compensat", "backup", "repair"), "ld.effects"),
    **dict.fromkeys(("resid", "attribut", "logit_attr", "dla"), "ld.contributions"),
    **dict.fromkeys(("decomposition", "diversity", "bias"), "ld.decompose"),
    "cache": "ld.contributions(cache, options=…)",
    "neuron": "ld.contributions(…, unit='neuron')",
    "rout": "ld.router_statistics",
    **dict.fromkeys(("expert", "moe", "mixture"), "ld.contributions(…, unit='expert')"),
    **dict.fromkeys(("sae", "transcoder", "latent", "feature"), "ld.dictionary"),
    **dict.fromkeys(("probe", "direction"), "ld.contributions(…, directions=…)"),
    "skip": "ld.depth.skip",
    **dict.fromkeys(("compare", "finetun", "tuned", "model_diff"), "ld.compare"),
    "diff": "ld.logit_difference or ld.compare",
    "models": "ld.zoo.models",
    **dict.fromkeys(("hooked", "bridge", "pretrained", "boot"), "ld.load_model"),
    "hook": "ld.load_model(…).bridge, for TransformerLens' tools,",
    **dict.fromkeys(("test_prompt", "predict"), "ld.top_tokens"),
    **dict.fromkeys(("bits", "entropy", "synergy", "mutual"), "ld.information"),
    **dict.fromkeys(("from_frame", "dataframe", "dataset", "own_task"), "ld.Task.from_frame"),
    **dict.fromkeys(("html", "report", "dashboard", "visual", "widget"), "ld.explore, or .plot() of a result,"),
    **dict.fromkeys(("cookbook", "tutorial", "example", "docs"), "help(ld), or the page of `layerdiv docs`,"),
    "load_task": "ld.task",
    "load": "ld.load_model, or ld.Contributions.load of a saved file,",
    **dict.fromkeys(("save", "export", "to_csv"), "result.save(path), or result.frame().to_csv(path),"),
    "topk": "result.frame().nlargest(5, column)",
}
# Parts of kinds of figures.
KINDS = {**dict.fromkeys(("counterweight", "reader", "role"), "roles"), "heat": "map", "bar": "bars", "layer": "depth"}
# What other libraries call the frame of a result and its figure, and parts of it.
_FRAMES = (
    "df to_df to_frame to_pandas dataframe to_dataframe to_csv to_json to_dict to_latex to_markdown export summary "
    "table top topk nlargest sort sort_values head describe groupby query columns iloc loc numpy to_numpy array data "
    "tensor shape sum mean std max min examples example rows"
).split()
_FIGURES = ("show", "figure", "fig", "heatmap", "html", "to_html", "write_html", "savefig")
_INTERVALS = ("ci", "interval", "intervals", "confidence_interval", "confidence_intervals")
_ENDS = ("_low", "_high", "_ci")
ATTRIBUTES = {
    **dict.fromkeys(_ENDS, ".frame() has intervals, in the columns _low and _high"),
    **dict.fromkeys(_FRAMES, ".frame() is its pandas frame"),
    **dict.fromkeys(("top", "topk", "nlargest", "head"), ".frame() is its pandas frame, with .nlargest(5, column)"),
    **dict.fromkeys(_FIGURES, ".plot() is its plotly figure, with .show() and .write_html(path)"),
}
# The same for the results of one class; some have a row per component in their frame.
_LISTS = ("LogitDifference", "Effects")
_FOR = {
    "Contributions": {
        **dict.fromkeys(
            (
                "decompose",
                "bias",
                "diversity",
                "by_component",
                "accuracy",
                "roles",
                "readers",
                "counterweights",
            ),
            "ld.decompose(c, labels) has it",
        ),
        **dict.fromkeys(("bits", "information"), "ld.information(c, labels) has it"),
        **dict.fromkeys(("cost", "effects", "ablate"), "ld.effects(model, prompts, contrast=…) has it"),
        "labels": "it has no right answers, which ld.decompose(c, labels) takes; .components has its components",
        **dict.fromkeys(_INTERVALS, ".difference().frame() has those of two options, in the columns _low and _high"),
        "heads": "ld.contributions(…, unit='head') has them",
        "layers": ".select(layer=0) takes those of a layer",
        **dict.fromkeys(
            ("by_layer", "per_layer"), f".difference().frame(){_LAYERS}['difference'].sum() has it, of two options"
        ),
        **dict.fromkeys(("logit_difference", "logit_diff", "logit_attrs"), ".difference() has it, of two options"),
        **dict.fromkeys(
            ("cumsum", "cumulative", "accumulated", "accumulated_resid"),
            ".difference().frame()['difference'].cumsum() has it, of two options",
        ),
        "compare": "ld.compare(a, b, prompts, options) compares two models",
        "prompts": "a result holds .options, and .prompt_ends of few prompts",
    },
    "Decomposition": {
        **dict.fromkeys(("by_layer", "per_layer"), f".by_component(full=True){_LAYERS} has it, or .by_depth()"),
        **dict.fromkeys(
            ("readers", "counterweights", "reader", "counterweight"),
            ".plot(kind='roles') draws it, if there are labels",
        ),
        "net": ".by_component() has it",
        **dict.fromkeys(_FRAMES, ".by_component() has a row per component, .frame() the whole"),
        **dict.fromkeys(("by_group", "groups"), ".by_module() has it; .by_component() has kinds to group by"),
        **dict.fromkeys(
            ("auc", "logit_difference", "logit_diff"), ".by_component(full=True) has it, if there are labels"
        ),
        **dict.fromkeys(
            (*_INTERVALS, "_low", "_high", "_ci"),
            ".by_component(full=True) has all intervals, in the columns _low and _high",
        ),
        **dict.fromkeys(("by_head", "heads"), ".by_component() has a row per head, for contributions with unit='head'"),
    },
    "Effects": dict.fromkeys(("ablation_cost", "ablation_costs", "cost", "costs"), ".frame()['cost'] has it"),
    **dict.fromkeys(
        ("Study", "DepthStudy"),
        dict.fromkeys(("to_html", "html", "write_html", "page"), ".report(path) writes its page"),
    ),
    "Comparison": {"by_component": ".frame() has a row per component, .by_module() and .by_depth() are for any shapes"},
    "Information": {"bits": ".frame()['bits'] has it"},
    "LogitLens": dict.fromkeys(
        ("top_tokens", "tokens", "predictions", "answers"),
        ".top_token has the likeliest token after each junction, of few texts",
    ),
    "LogitDifference": dict.fromkeys(
        ("cumsum", "cumulative", "accumulated"), ".frame()['difference'].cumsum() has it, in stream order"
    ),
    "Profile": {
        "promoted": "ld.promoted_tokens(profile, component) has it",
        **dict.fromkeys(("cross_entropy", "net_linear"), "ld.profile(…, loss='cross_entropy') has it"),
    },
    "DropPlan": {
        **dict.fromkeys(
            ("save_pretrained", "to_hf", "push_to_hub", "smaller"),
            ".save_model(folder) writes the smaller model",
        ),
        **dict.fromkeys(("layers", "heads", "plan", "drop"), ".dropped lists what goes, first to last"),
    },
}
for _name in _LISTS:
    _FOR[_name] = {
        "by_component": ".frame() has one row per component",
        **dict.fromkeys(("by_layer", "per_layer"), f".frame(){_LAYERS}[column].sum() sums a column over layers"),
    } | _FOR.get(_name, {})
# Commands that a user may try: parts of their names, and what to run.
COMMANDS = {
    "neuron": "`layerdiv profile TEXT --unit neuron`",
    **dict.fromkeys(("expert", "moe"), "`layerdiv profile TEXT --unit expert`"),
    **dict.fromkeys(("prun", "drop", "lens", "skip", "layer"), "`layerdiv depth --model M --out DIR`"),
    **dict.fromkeys(
        ("head", "dla", "attrib", "explor", "contrib", "logit"), "`layerdiv profile 'TEXT ANSWER' --unit head`"
    ),
    "help": "`layerdiv COMMAND --help`",
    **dict.fromkeys(("ablat", "patch", "effect"), "`layerdiv effects --task T`"),
    **dict.fromkeys(("diff", "compar", "finetun", "tuned"), "`layerdiv compare A B --task T`"),
    **dict.fromkeys(("study", "diversity", "bias", "decomp"), "`layerdiv run --model M --task T --out DIR`"),
    **dict.fromkeys(("save", "smaller"), "ld.depth.drop_plan(…).save_model(folder), in Python,"),
    **dict.fromkeys(("sae", "dictionar"), "ld.dictionary, in Python,"),
    "attention": "ld.attention_patterns, in Python,",
}


# Names of arguments that mean the same; a function takes some of each group.
ARGUMENTS = (
    {"heads", "head", "components", "component", "layer", "layers", "label", "index"},
    {"prompts", "prompt", "text", "texts", "texts_or_ids", "text_or_ids", "task", "rows"},
    {"ensemble", "contributions", "c", "values"},
    {"options", "answers", "answer", "target", "targets"},
    {"position", "positions", "pos"},
    {"n_groups", "groups"},
    {"correct", "right", "wrong", "incorrect", "contrast"},
    {"budget", "n", "n_layers", "count", "drop"},
    {"ablation", "ablate", "method", "mode", "how"},
    {"given", "sae", "transcoder"},
    {"sublayer", "hook", "site"},
    {"b", "model_b", "other"},
    {"model", "models", "base", "a", "x", "model_a", "model_name", "name"},
)


def answering(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function answer an argument that it does not have, or lacks, with those that it takes."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            if misfit := _misfit(function, args, kwargs):
                raise TypeError(misfit) from None
            raise  # from inside

    return called


def _misfit(function: Callable[..., Any], args: tuple[object, ...], kwargs: Mapping[str, Any]) -> str:
    """Write the error of a call with other arguments than a function or class takes, or nothing."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        told = str(error)
    else:
        return ""
    parameters = {name: each for name, each in signature.parameters.items() if name not in ("self", "cls")}
    owner = type(args[0]) if args and len(parameters) < len(signature.parameters) else None  # of a method
    called = function.__qualname__.removesuffix(".__init__")
    text = f"{called}() {told}"
    if unknown := next((name for name in kwargs if name not in parameters), ""):
        same = sorted({name for group in ARGUMENTS if unknown in group for name in group if name in parameters})
        same = [name for name in same if name[:4] == unknown[:4]] or same
        text = f"{called}() has no argument {unknown!r}"
        text += f": it is {' or '.join(f'{name}=' for name in same)} here" * bool(same)
        if owner and not same and (hint := attribute(owner, unknown, ())):
            text += f": {hint}"
    elif told.startswith("missing"):
        known = signature.bind_partial(*args, **kwargs).arguments
        lacking = [name for name, each in signature.parameters.items() if each.default is each.empty]
        text = f"{called}() lacks {' and '.join(name for name in lacking if name not in known)}"
    named = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    listed = [name for name in parameters if name not in named]
    ways = [", ".join(listed)] * bool(listed) + [f"by name {', '.join(named)}"] * bool(named)
    text += f"; it takes {', and '.join(ways) or 'no arguments'}."
    if function.__qualname__.startswith("Task."):
        text += f" {OWN_TASK}" * (function.__name__ in ("__init__", "from_frame"))
    types = [cls.__name__ for given in (*args[:1], *kwargs.values()) for cls in type(given).__mro__]
    if "ActivationCache" in types:
        text += " An ActivationCache is taken by ld.contributions alone, first: ld.contributions(cache, options=[…])."
    return text


class _Named(type):
    """A class that answers a guess at another of its `from_…` methods."""

    if not TYPE_CHECKING:  # which would take any name

        def __getattr__(cls, name: str) -> Any:
            hint = f": {OWN_TASK}" * (cls.__name__ == "Task" and name.startswith(("from_", "read_")))
            raise AttributeError(f"{cls.__name__} has no {name!r}{hint}", name=name, obj=cls)


class Answering(metaclass=_Named):
    """Base of the classes whose methods answer a wrong or missing argument."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in list(vars(cls).items()):
            if name[:1] != "_" and isinstance(value, FunctionType):
                setattr(cls, name, answering(value))
            elif name[:1] != "_" and isinstance(value, classmethod):
                setattr(cls, name, classmethod(answering(value.__func__)))


def no_items(self: Any, key: object) -> None:
    """Refuse `result[key]`, and a loop over the result: the `__getitem__` of results without items."""
    place = ".by_component()" if hasattr(type(self), "by_component") else ".frame()"
    hint, named = "has its numbers", getattr(self, "components", ())
    if isinstance(key, str) and isinstance(named, tuple) and key in [getattr(one, "label", one) for one in named]:
        layers = {getattr(one, "kind", "") for one in named} == {"layer"}
        place = ".by_layer()" if layers and hasattr(type(self), "by_layer") else place
        hint = f"has it, with .query({f'component == {key!r}'!r})"
    raise TypeError(f"{type(self).__name__} is not indexed by {key!r:.40}: {place} {hint}.")


def meant(name: str, table: Mapping[str, str]) -> str:
    """Return what a table has for the first of its keys that is a part of a name, else nothing."""
    return next((place for part, place in table.items() if part in name.lower()), "")


def attribute(owner: type, name: str, kinds: Collection[str]) -> str:
    """Say what is meant by an attribute that the results of a class lack, which has figures of some kinds, or ""."""
    if name in kinds:
        return f".plot(kind={name!r}) draws it"
    name = next((end for end in _ENDS if name.endswith(end)), name)  # of a column
    own = (_FOR.get(cls.__name__, {}).get(name) for cls in owner.__mro__)
    general = ATTRIBUTES.get(name, "")
    return next(filter(None, own), "") or general * (bool(kinds) or not general.startswith(".plot"))


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three names that hold this one, are in it, or are spelled like it."""
    known, key = list(known), name.lower()
    close = [each for each in known if min(len(key), len(each)) > 3 and (key in each.lower() or each in key)]
    if close or len(name) < 4:  # three letters are too few to tell a slip from another word
        return sorted(close, key=lambda each: each[0].isupper())[:3]
    return difflib.get_close_matches(name, known, cutoff=0.65)
