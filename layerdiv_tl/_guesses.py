"""What is meant by names that other libraries or papers use: of functions, of parts of results, of commands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# Parts of names of functions; the first one that fits counts.
FUNCTIONS = {
    "save_model": "ld.depth.drop_plan(…).save_model(folder)",
    "smaller": "ld.depth.drop_plan(…).save_model(folder)",
    **dict.fromkeys(("prun", "drop", "remov", "delet", "compress", "shortgpt"), "ld.depth.drop_plan"),
    "redundan": "ld.redundancy",
    **dict.fromkeys(("by_layer", "per_layer"), "ld.contributions(…).difference().frame().groupby('layer')"),
    **dict.fromkeys(("counterweight", "reader", "role"), "ld.decompose(c, labels).plot(kind='roles')"),
    **dict.fromkeys(("decomposition", "diversity", "bias"), "ld.decompose"),
    **dict.fromkeys(("ablat", "effect", "knock", "interven", "cost"), "ld.effects"),
    **dict.fromkeys(("attribut", "logit_attr", "dla"), "ld.contributions"),
    "cache": "ld.contributions(cache, options=…)",
    "induction": "ld.head_scores",
    "heads": "ld.contributions(…, unit='head')",
    "neuron": "ld.contributions(…, unit='neuron')",
    **dict.fromkeys(("expert", "moe", "mixture"), "ld.contributions(…, unit='expert')"),
    **dict.fromkeys(("sae", "transcoder", "latent", "feature"), "ld.dictionary"),
    "lens": "ld.depth.logit_lens",
    "skip": "ld.depth.skip",
    **dict.fromkeys(("compare", "finetun", "tuned", "model_diff"), "ld.compare"),
    "diff": "ld.logit_difference or ld.compare",
    "models": "ld.zoo.models",
    **dict.fromkeys(("hooked", "bridge", "pretrained"), "ld.load_model"),
    **dict.fromkeys(("patch", "hook", "circuit"), "ld.load_model(…).bridge, for TransformerLens' own tools,"),
    **dict.fromkeys(("perplexity", "loss", "cross_entropy"), "ld.profile"),
    **dict.fromkeys(("bits", "entropy", "synergy", "mutual"), "ld.information"),
    **dict.fromkeys(("from_frame", "dataset", "own_task"), "ld.Task.from_frame"),
    **dict.fromkeys(("html", "report", "dashboard"), "ld.explore, or .plot() of a result,"),
    "load": "ld.load_model, or ld.Contributions.load of a saved file,",
    "save": "result.save(path)",
    "topk": "result.frame().nlargest(5, column)",
}
# What other libraries call the frame of a result and its figure, and parts of it.
_FRAME, _FIGURE = ".frame() is its pandas frame", ".plot() is its plotly figure, with .show() and .write_html(path)"
_FRAMES = ("df", "to_df", "to_frame", "to_pandas", "dataframe", "to_dataframe", "to_csv", "to_json", "export")
_OF_FRAMES = (
    "top",
    "topk",
    "nlargest",
    "sort_values",
    "head",
    "describe",
    "groupby",
    "query",
    "columns",
    "iloc",
    "loc",
)
ATTRIBUTES = {
    **dict.fromkeys((*_FRAMES, *_OF_FRAMES, "numpy", "to_numpy", "array", "data", "cost", "bits"), _FRAME),
    **dict.fromkeys(("show", "figure", "fig", "html", "to_html", "write_html", "savefig"), _FIGURE),
    **dict.fromkeys(("by_layer", "per_layer", "cumulative"), ".frame().groupby('layer') has its layers"),
    **dict.fromkeys(
        ("decompose", "bias", "diversity", "by_component"), "ld.decompose(c, labels) of contributions has it"
    ),
    **dict.fromkeys(("roles", "readers", "counterweights"), "ld.decompose(c, labels).plot(kind='roles') draws it"),
    **dict.fromkeys(("top_tokens", "promoted"), "ld.promoted_tokens(model, components) has it"),
}
# Commands that a user may try: parts of their names, and what to run.
COMMANDS = {
    **dict.fromkeys(("head", "dla", "attrib", "explor", "neuron", "contrib", "logit_d"), "profile TEXT --unit head"),
    **dict.fromkeys(("prun", "drop", "lens", "skip", "layer"), "depth --model M --out DIR"),
    **dict.fromkeys(("ablat", "patch", "effect"), "effects --task T"),
    **dict.fromkeys(("diff", "compar"), "compare A B --task T"),
    **dict.fromkeys(("study", "diversity", "bias", "decomp"), "run --model M --task T --out DIR"),
}


def meant(name: str, table: Mapping[str, str]) -> str:
    """Return what a table has for the first of its keys that is a part of a name, else nothing."""
    return next((place for part, place in table.items() if part in name.lower()), "")


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three names that hold this one, are in it, or are spelled like it."""
    known, key = list(known), name.lower()
    close = [each for each in known if min(len(key), len(each)) > 3 and (key in each.lower() or each in key)]
    if close or len(name) < 4:  # three letters are too few to tell a slip from another word
        return sorted(close, key=lambda each: each[0].isupper())[:3]
    return difflib.get_close_matches(name, known, cutoff=0.65)
