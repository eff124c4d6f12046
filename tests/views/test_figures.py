"""Laws of all figures: every kind is named and drawn, text stays text, themes and buttons exchange what they say."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl import results
from layerdiv_tl.components import Component
from layerdiv_tl.results import Result
from layerdiv_tl.views import axes, kit, style
from layerdiv_tl.views.figures import function_of
from layerdiv_tl.views.figures.attribution import token_map
from layerdiv_tl.views.names import extreme_names
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer
from tests.views.figure_results import MAKERS, made

HOSTILE = "</script><img src=x onerror=alert(1)>"
# Results that are drawn by their parts, or not at all.
WITHOUT = {"Task"}


def classes():
    """Every class of results, by name."""
    for module in pkgutil.walk_packages(ld.__path__, "layerdiv_tl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {name: cls for name, cls in Result._classes.items() if cls.__module__.startswith("layerdiv_tl.")}


KINDS = [(name, kind) for name in MAKERS for kind in classes()[name.split()[0]].figures]
every_kind = pytest.mark.parametrize(("name", "kind"), KINDS, ids=[f"{name}-{kind}" for name, kind in KINDS])


def test_the_kinds_of_plot_are_those_that_can_be_drawn():
    """What Tab, help and type checkers see of `plot(kind=…)` is what the class names, and every function is there."""
    drawn = set()
    for name, cls in classes().items():
        if cls.__subclasses__() or not cls.figures:
            assert cls.__subclasses__() or name in WITHOUT, f"{name} has no figure"
            continue
        literal, _ = get_args(eval(cls.plot.__annotations__["kind"], vars(sys.modules[cls.plot.__module__])))
        assert get_args(literal) == tuple(cls.figures), name
        drawn |= {(base.__name__, kind) for base in cls.__mro__ if "figures" in vars(base) for kind in base.figures}
        for kind in cls.figures:
            first = next(iter(inspect.signature(function_of(cls, kind)).parameters.values()))
            assert first.default is first.empty
    drawn -= {("Result", kind) for _, kind in drawn}
    tested = {(classes()[name.split()[0]].__name__, kind) for name, kind in KINDS}
    assert drawn <= tested, "a figure is not among tests/views/figure_results.py"


@every_kind
def test_every_kind_is_drawn_and_escapes_what_models_and_texts_say(name, kind, monkeypatch):
    """Labels of components, names of models, tokens and options that look like HTML never become HTML."""
    result = hostile(made(name))
    label = Component.label.fget
    monkeypatch.setattr(Component, "label", property(lambda self: label(self) + HOSTILE))
    figure = result.plot(kind, title=HOSTILE)
    text = str(figure.to_dict())
    assert "<img" not in text
    assert "</script" not in text
    assert "&lt;img" in figure.layout.title.text
    assert not {
        name for trace in figure.data for name in ("hovertemplate", "texttemplate") if HOSTILE in str(trace[name])
    }


def hostile(result):
    """The same result of a model, tokens and options whose names look like HTML."""
    if not dataclasses.is_dataclass(result):
        return result
    changes = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name in ("model", "source", "target", "rows", "by") and isinstance(value, str):
            changes[field.name] = HOSTILE
        if (
            field.name in ("tokens", "next_tokens", "options")
            and isinstance(value, tuple)
            and isinstance(value[0], str)
        ):
            changes[field.name] = tuple(f"{HOSTILE}{i}" for i in range(len(value)))
        if field.name == "prompt_ends":
            changes[field.name] = (HOSTILE,)
        if field.name == "top_token" and isinstance(value, tuple):
            changes[field.name] = ((HOSTILE,) * len(result.components),)
        if field.name in ("a", "b"):
            changes[field.name] = hostile(value)
    return dataclasses.replace(result, **changes)


@pytest.mark.full
@every_kind
def test_light_and_dark_are_left_to_the_template(name, kind):
    """No figure says an ink, grid or ground color of either theme; its text has room, and heat maps a shared scale."""
    figure = made(name).plot(kind)
    own = {getattr(theme, at) for theme in (style.LIGHT, style.DARK) for at in ("muted", "grid", "zero", "ground")}
    bare = go.Figure(figure).update_layout(template=None).to_json()
    assert not [color for color in own if color in bare]
    assert all(trace.autocolorscale for trace in figure.data if trace.type == "heatmap")
    for dark, theme in ((True, style.DARK), (False, style.LIGHT), (None, style.BOTH)):
        assert made(name).plot(kind, dark=dark).layout.template.layout.paper_bgcolor == theme.paper
    lines = [*figure.layout.title.text.split("<br>"), *(figure.layout.title.subtitle.text or "").split("<br>")]
    assert max(map(len, lines)) <= 96
    assert figure.layout.height > figure.layout.margin.t + figure.layout.margin.b
    assert made(name).plot(kind, height=700).layout.height == 700


def test_unknown_kinds_and_options_are_told_the_others():
    d = made("Decomposition")
    with pytest.raises(ld.InputError, match=r"kind='pie' is unknown: use 'bars', .*'scatter'"):
        d.plot("pie")
    with pytest.raises(ld.InputError, match="there is no option color= here: use .*dark"):
        d.plot(color="red")
    for name, kind, wrong in (
        ("Decomposition", "pairwise", {"by": "color"}),
        ("Decomposition", "depth", {"norm": "melted"}),
        ("Decomposition", "bars", {"max_components": 0}),
        ("Decomposition", "bars", {"height": 1}),
        ("AttentionPatterns", "maps", {"max_heads": 0}),
        ("Profile", "map", {"term": "color"}),
        ("Contributions", "map", {"example": 9}),
        ("SourceTokens", "map", {"option": 9}),
        ("Erasure", "map", {"text": 3}),
        ("Effects", "compensation", {"component": "L9.mlp"}),
        ("DropPlan", "curve", {"quantity": "growth"}),
        ("Information", "along", {"terms": ("bits",)}),
    ):
        with pytest.raises(ld.InputError, match=f"{next(iter(wrong))}=|names for|was not ablated"):
            made(name).plot(kind, **wrong)


def test_a_figure_reads_in_every_notebook():
    """Text has contrast on the grounds of JupyterLab and VS Code, light and dark, and nothing covers these."""

    def luminance(color):
        channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for ground in ("#ffffff", "#111111", "#1f1f1f"):
        for text in (style.BOTH.ink, style.BOTH.muted):
            lower, higher = sorted(luminance(color) + 0.05 for color in (ground, text))
            assert higher / lower >= 4
    layout = style.template(style.BOTH).layout
    assert {layout.paper_bgcolor, layout.plot_bgcolor} == {style.CLEAR}
    for scale in (style.BOTH.sequential, style.BOTH.diverging):
        assert {color.split(",")[-1].strip(" )") for _, color in scale} == {"0", "1"}  # nothing is seen where zero is


def test_a_title_asserts_no_effect_whose_interval_holds_0():
    """A title that names a component by an effect says if the effect's interval holds 0; the same for differences."""
    effects, back = made("Effects"), made("Effects").backups()
    back = back[back["compensation_low"] * back["compensation_high"] > 0]  # the map names a clear reaction
    leaders = [
        *((effects, "scatter", {"on": on}, effects.frame(), f"total{end}") for on, end in ENDS.items()),
        (effects, "totals", {}, effects.frame(), "total"),
        (effects, "map", {}, back, "compensation"),
        (made("LogitDifference"), "bars", {}, made("LogitDifference").frame(), "difference"),
    ]
    held = []
    for result, kind, options, frame, column in leaders:
        first = kit.most(frame, column)
        held.append(bool(first[f"{column}_low"] <= 0 <= first[f"{column}_high"]))
        assert ("its interval includes 0" in said(result.plot(kind, **options))) == held[-1], (kind, column)
    assert set(held) == {True, False}
    assert "no clear slope" in said(made("DepthScore").plot())


ENDS = {"logit difference": "", "loss": "_loss", "accuracy": "_accuracy"}


def said(figure):
    """A figure's title, unwrapped."""
    return figure.layout.title.text.replace("<br>", "").replace("\u00a0", " ")


@every_kind
def test_numbers_in_titles_and_hovers_have_two_digits(name, kind):
    """Except where they must add up; minus signs are true ones, intervals are "(a to b)", shares have no unit."""
    figure = made(name).plot(kind)
    hovers = [str(text) for trace in figure.data if trace.hovertext is not None for text in np.ravel(trace.hovertext)]
    for text in (figure.layout.title.text, figure.layout.title.subtitle.text or "", *hovers):
        assert not re.search(r"\[-?[\d.]+, |(?<![\w.])-\d|\d share(?:<|$)|p = 0\.000", text), text
        alone = re.sub(r"−?[\d.,]+( [^\d<(]*)?(<br>95 %)? ?\(−?[\d.,]+ to −?[\d.,]+\)|arXiv [\d.]+", "", text)
        most = 3 if re.search("Loss|loss,|loss from|loss goes|mean bias|Ω, ", text) or kind == "table" else 2
        for number in re.findall(r"(?<![\w.@−,])\d+\.\d+(?![\w.])", alone):
            assert len(number.replace(".", "").lstrip("0")) <= most, (number, text)
    told = f"{figure.layout.title.text} {figure.layout.title.subtitle.text}"
    assert not re.search(r"\d \(?−?[\d.,]+ to −?[\d.,]+\)", told) or re.search(r"95\s?%|% interval", told)


def test_names_that_are_asked_for_are_drawn_and_others_where_they_cover_nothing():
    """All of twelve marks; of a cloud those asked for, each away from every mark in a narrow panel."""
    rng = np.random.default_rng(0)
    x, y, labels = *rng.normal(size=(2, 200)), [f"L{i}.mlp" for i in range(200)]
    ends = axes.linear_axis(x), axes.linear_axis(y)
    few = extreme_names(labels[:12], x[:12], y[:12], ends)[0]
    assert {text.strip() for text in few.text} == set(labels[:12])
    drawn, lead = extreme_names(labels, x, y, ends, always=["L7.mlp"])
    assert "L7.mlp" in {text.strip() for text in drawn.text}
    wide = [290 / np.ptp(ends[0]["range"]), 400 / np.ptp(ends[1]["range"])]
    at = np.stack([x, y], 1) * wide
    boxes = []
    for text, place, *mark in zip(drawn.text, drawn.textposition, drawn.x, drawn.y, strict=True):
        (up, side), mark, size = place.split(), np.array(mark) * wide, [6.5 * len(text.strip()) + 12, 14]
        low = mark + np.array([-size[0] * (side == "left"), {"top": 4, "middle": -7, "bottom": -18}[up]])
        boxes.append((low, low + size))
        assert not ((at > low + 1e-6) & (at < low + size - 1e-6)).all(1).any(), text  # its own mark is at an edge
    for i, (low, high) in enumerate(boxes):
        assert not any(((low < b) & (high > a)).all() for a, b in boxes[:i])
    assert (lead.x[0], lead.y[0]) == (x[7], y[7])  # its name is off its mark, which is in the cloud


def test_a_map_of_several_texts_names_no_first_token():
    """First tokens, here made the largest, have no context."""
    p = ld.profile("zoo/d2", [[5, 1, 4], [1, 5, 9, 2]])
    values = np.ones((len(p.components), 7))
    values[:, [0, 3]], values[2, 5] = 9.0, 2.0
    title = token_map(p, values, "Map", "", "logits", signed=False).layout.title.text.replace("<br>", " ")
    assert f"beyond first tokens: {p.components[2].label}" in title
    assert title.endswith("2 logits")


def test_of_two_close_marks_the_upper_one_is_named_above():
    ends = [axes.linear_axis([0.0, 1.0], 0.0)] * 2
    drawn, _ = extreme_names(["a", "b"], np.array([0.49, 0.5]), np.array([0.51, 0.5]), ends)
    assert [place.split()[0] for place in drawn.textposition] == ["top", "bottom"]


def test_names_cover_no_guide_line():
    """A mark on a diagonal is named beside it; where the line takes all places, the name is left out."""
    x = np.array([0.0, 0.5, 1.0])
    ends = [axes.linear_axis([-1.0, 2.0], 0.0)] * 2
    (drawn,) = extreme_names(["a", "b", "c"], x, x, ends, guides=[([-1, 2], [-1, 2])])[0].textposition[:1]
    assert drawn in ("top left", "bottom right")
    names = [f"L{i}.mlp" for i in range(20)]
    blocked = [([-1, 2], [level, level]) for level in np.linspace(-1, 2, 200)]
    assert extreme_names(names, np.linspace(0, 1, 20), np.zeros(20), ends, guides=blocked)[0].text == ()


@every_kind
def test_a_figure_of_a_model_names_it(name, kind):
    result = made(name)
    if type(result).__name__ == "Decomposition":
        result = dataclasses.replace(result, task="sample/topic")
        assert "Task: sample/topic." in result.plot(kind).layout.title.subtitle.text.replace("<br>", "")
    if model := getattr(result, "model", ""):
        figure = result.plot(kind)
        assert model in f"{figure.layout.title.text} {figure.layout.title.subtitle.text}".replace("<br>", "")
        assert model in result.plot(kind, title="mine").layout.title.subtitle.text.replace("<br>", "")


def test_a_figure_of_one_prompt_quotes_its_end_and_no_other_prompt(tmp_path):
    """Results of few prompts know their ends, also once saved; of ids, many prompts and older files, none is said."""
    model = ld.load_model(llama(), tokenizer=word_tokenizer(60))
    long = " ".join(f"w{i}" for i in range(40))

    def said(result, *kind, **options):
        text = result.plot(*kind, **options).layout.title.subtitle.text.replace("<br>", "")
        return re.findall(r"Prompt: '(.*?)'\.", text)

    def asked(prompts, options=(" w1", " w2")):
        return ld.contributions(model, prompts, list(options))

    one, two = asked(["w7 w8"]), asked(["w7 w8", long])
    effects = ld.effects(model, ["w7 w8"], options=(" w1", " w2"), ablation="zero")
    of_text = [f(model, "w7 w8") for f in (ld.profile, ld.depth.logit_lens, ld.depth.residual_norms, ld.depth.skip)]
    written = ld.continuation(model, "w7 w8", max_new_tokens=3)
    for result in (one, one.difference(), ld.decompose(one, [0]), effects, *of_text, written):
        assert said(result) == ["w7 w8"]
    assert said(written, "map", example=2) == ["w7 w8"]
    assert said(two) == said(two.difference()) == []
    (end,) = said(two, example=1)
    assert end.startswith("…")
    assert 85 < len(end) <= 100
    assert end[1:] == long[-len(end[1:]) :]
    assert long[-len(end)] == " "  # no part of a word
    assert long.endswith(end[1:])
    assert said(ld.contributions(model, ["w7 w8 w9"], [" w1", " w2"], position=1)) == ["w7 w8"]  # as far as it is read
    assert said(asked(["w7 w8"] * 9), example=0) == said(ld.contributions(llama(), [[7, 8]], [1, 2])) == []
    assert said(type(one).load(one.save(tmp_path / "one"))) == ["w7 w8"]
    packed = results._pack(one, arrays := {}, "")
    del packed["fields"]["prompt_ends"]
    assert said(results._unpack(packed, arrays)) == []


def test_a_token_axis_labels_the_token_of_the_title():
    tokens = [f" t{i}" for i in range(100)]
    for named in range(100):
        axis = axes.token_axis(tokens, named=named)
        assert f"␣t{named}" in axis["ticktext"]
        assert np.diff(sorted(axis["tickvals"])).min() >= 4
    assert "one of 4" in axis["title_text"]
    assert axes.token_axis(tokens[:30])["title_text"] == "token"


@pytest.mark.full
@pytest.mark.parametrize("y", [None, -0.16, -0.25, 1.1])
def test_a_legend_lies_in_its_figure_where_its_y_puts_it(y, tmp_path, browser):
    """Also in figures that a notebook makes with our template."""
    traces = [go.Scatter(x=[0, 1], y=[k, 1], name=f"line {k}") for k in range(4)]
    figure = go.Figure(traces).update_layout(template=style.template(), height=560, xaxis_title="x", title="lines")
    if y is not None:
        figure.update_layout(legend={"y": y, "yanchor": "bottom" if y > 0 else "top", "x": 0, "xanchor": "left"})
    page = tmp_path / "page.html"
    page.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    with browser.open(page, width=900) as opened:
        legend, panel, whole = (
            opened.page.query_selector(at).bounding_box()
            for at in (".legend .bg", ".plotbg, .cartesianlayer", ".main-svg")
        )
        assert whole["y"] <= legend["y"]
        assert legend["y"] + legend["height"] <= whole["y"] + whole["height"]
        assert y is None or (legend["y"] < panel["y"]) == (y > 0)


@pytest.mark.parametrize(
    ("low", "high"), [(0.11, 0.13), (0.026, 0.034), (0.3, 4.0), (1e-3, 2e2), (1e-9, 1e6), (5.0, 5.0)]
)
def test_logarithmic_axes_have_plain_ticks(low, high):
    """1, 10, 100, 1, 2 and 5 times these, or closer: two to seven, inside, and each labeled by its own number."""
    axis = axes.log_axis([low, high, 0.0, np.nan])
    ticks, (first, last) = np.array(axis["tickvals"]), axis["range"]
    assert first < np.log10(low) <= np.log10(high) < last
    assert 2 <= len(ticks) <= 7
    assert ((np.log10(ticks) >= first) & (np.log10(ticks) <= last)).all()
    digits = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    written = [f"1e{t[2:].translate(digits)}" if t[-1] in "⁰¹²³⁴⁵⁶⁷⁸⁹" else t for t in axis["ticktext"]]
    np.testing.assert_allclose(np.array(written, dtype=float), ticks)


def test_whiskers_that_would_dwarf_the_bars_are_cut():
    """An interval wider than twice the tallest bar ends half a bar beyond all bars, and is whole in the hover."""
    frame = made("Decomposition").by_component(full=True)
    for term, width in (("bias", 0.1), ("diversity", 1.9), ("net", 2.1)):
        tallest = frame[term].abs().max()
        frame[f"{term}_low"], frame[f"{term}_high"] = frame[term], frame[term] + width * tallest
    for term, is_cut in (("bias", False), ("diversity", False), ("net", True)):
        bars = kit.bars(frame, term, cut=kit.cut_whiskers(frame, term))
        assert all(bar.error_y.visible for bar in bars)
        ends = np.concatenate([np.array(bar.y) + bar.error_y.array for bar in bars])
        highest = frame[term].max() + frame[term].abs().max() / 2
        assert (ends.max() == pytest.approx(highest)) == is_cut
        assert np.allclose(np.sort(ends), np.sort(frame[f"{term}_high"])) != is_cut
        for row, text in zip(frame.itertuples(), kit.hover(frame, [term]), strict=True):
            assert (
                style.interval(getattr(row, f"{term}_low"), getattr(row, f"{term}_high"), of=getattr(row, term)) in text
            )
    many = pd.concat([frame] * 40, ignore_index=True)
    assert not any(bar.error_y.visible for bar in kit.bars(many, "net"))


def test_a_title_says_which_other_may_be_as_large():
    """Where the intervals of the first two meet; not where there are none, or a gap."""
    frame = pd.DataFrame({"component": ["a", "b", "c"], "x": [3.0, 2.0, -2.2], "x_high": [3.5, 2.6, -2.0]})
    for low, b, told in (
        (-2.4, 2.6, ", 3.0 (2.5 to 3.5)"),
        (-2.6, 2.4, ", 3.0 (2.5 to 3.5); c's may be as large in size"),
        (-2.6, 2.6, ", 3.0 (2.5 to 3.5); c's (and 1 more) may be as large in size"),
    ):
        frame["x_low"], frame.loc[1, "x_high"] = [2.5, 1.5, low], b
        assert kit.ahead(frame, kit.most(frame, "x"), "x") == told
    assert kit.named_in(
        "L1.H1's, a and b2 are L1.H11.", pd.DataFrame({"component": ["a", "b", "L1.H1", "L1.H11"]})
    ) == [*("a", "L1.H1", "L1.H11")]
    assert kit.ahead(frame[["component", "x"]], frame.iloc[0][["component", "x"]], "x") == ", 3"


def test_a_long_name_wraps_and_what_stands_beneath_makes_room():
    long = dataclasses.replace(made("LogitLens"), model="EleutherAI/pythia-160m-deduped-v0@step143000").plot()
    assert "EleutherAI/pythia-160m-deduped-v0@step143000" in long.layout.title.text.replace("<br>", "")
    assert long.layout.margin.t > made("LogitLens").plot(title="short").layout.margin.t


def test_a_figure_of_numbers_does_not_load_torch():
    """Nobody who decomposes an array waits for torch, whichever figure of it is drawn."""
    code = """
import sys, numpy as np, layerdiv_tl as ld
d = ld.decompose(np.random.default_rng(0).normal(size=(9, 5, 3)), [0, 1, 2] * 3)
for kind in set(d.figures) - {"heads"}:
    d.plot(kind)
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
