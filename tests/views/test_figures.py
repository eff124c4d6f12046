"""Laws of all figures: what is drawn is the frame, text stays text, titles are short, nothing is clipped."""

import dataclasses
import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.components import Component
from layerdiv_tl.ensemble.intervals import estimate
from layerdiv_tl.results import Result
from layerdiv_tl.views import shapes, style
from layerdiv_tl.views.leading import leading
from layerdiv_tl.views.strip import strip
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer
from tests.views.figure_results import LABELS, MAKERS, OPTIONS, PROMPTS, made

HOSTILE = "</script><img src=x onerror=alert(1)>"
# Results without a figure.
WITHOUT = {"Task", "Readings"}


def classes():
    """Every class of results, by name."""
    for module in pkgutil.walk_packages(ld.__path__, "layerdiv_tl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {name: cls for name, cls in Result._classes.items() if cls.__module__.startswith("layerdiv_tl.")}


KINDS = [(name, kind) for name in MAKERS for kind in classes()[name.split()[0]].figures]
every_kind = pytest.mark.parametrize(("name", "kind"), KINDS, ids=[f"{name}-{kind}" for name, kind in KINDS])


def drawn(name, kind, **options):
    """The figure, or a skip where these numbers have none of this kind."""
    result = made(name)
    if kind not in result._plots():
        pytest.skip("these numbers have no figure of this kind")
    return result.plot(kind, **options)


def test_every_class_has_a_figure_with_a_short_title_and_its_help():
    for name, cls in classes().items():
        if name in WITHOUT:
            continue
        assert cls.figures, f"{name} has no figure"
        for kind, plot in cls.figures.items():
            assert len(plot.title.split()) <= 8
            assert f'"{kind}": {plot.shows}' in cls.plot.__doc__
    shown = {(name.split()[0], kind) for name, kind in KINDS if kind in made(name)._plots()}
    wanted = {(name, kind) for name, cls in classes().items() for kind in cls.figures}
    assert wanted - shown <= {("Contributions", "strip")}  # which the strip of a decomposition stands for


def numbers(figure):
    """All numbers that a figure draws, of every trace with a hover: heights of bars are from their base."""
    found = []
    for trace in figure.data:
        if trace.hoverinfo == "skip":
            continue
        if trace.type == "heatmap":
            found.append(np.ravel(np.array(trace.customdata, dtype=float)))
        else:
            across = getattr(trace, "orientation", None) == "h"
            values = np.array(trace.x if across else trace.y, dtype=float)
            found.append(values + (0.0 if getattr(trace, "base", None) is None else trace.base))
    found = np.concatenate(found)
    return found[np.isfinite(found)]


@every_kind
def test_what_is_drawn_is_the_frame(name, kind):
    """Every number of a bar, a mark, a line and a cell is one of the columns that the kind names, and the reverse."""
    figure, plot = drawn(name, kind), made(name).figures[kind]
    if plot.frame is None:
        return
    frame = plot.frame(made(name)) if callable(plot.frame) else getattr(made(name), plot.frame)()
    how = dict(plot.how)
    columns = how.get("columns") or [how[key] for key in ("value", "column", "y") if key in how]
    columns = [column for column in columns if column in frame and frame[column].dtype.kind == "f"]
    columns = columns or [column for column in frame.attrs["units"] if not column.endswith(("_low", "_high"))]
    known = frame[columns].to_numpy(dtype=float).ravel()
    known = known[np.isfinite(known)]
    values = numbers(figure)
    assert len(values)
    nearest = np.abs(known[:, None] - values).min(0)
    assert nearest.max() <= 1e-12 * max(1.0, np.abs(known).max())
    if plot.draw == "shapes.bars":
        np.testing.assert_allclose(np.sort(values), np.sort(known))


@every_kind
def test_text_of_models_and_data_stays_text(name, kind, monkeypatch):
    """Labels of components, names of models, tokens and options that look like HTML never become HTML."""
    result = hostile(made(name))
    if kind not in result._plots():
        pytest.skip("these numbers have no figure of this kind")
    label = Component.label.fget
    monkeypatch.setattr(Component, "label", property(lambda self: label(self) + HOSTILE))
    figure = result.plot(kind, title=HOSTILE)
    text = str(figure.to_dict())
    assert "<img" not in text
    assert "</script" not in text
    assert "&lt;img" in figure.layout.title.text


def hostile(result):
    """The same result of a model, tokens and options whose names look like HTML."""
    changes = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name in ("model", "source", "target") and isinstance(value, str):
            changes[field.name] = HOSTILE
        if field.name == "models":
            changes[field.name] = (HOSTILE, HOSTILE)
        texts = isinstance(value, tuple) and value and isinstance(value[0], str)
        if field.name in ("tokens", "next_tokens", "options") and texts:
            changes[field.name] = tuple(f"{HOSTILE}{i}" for i in range(len(value)))
        if field.name == "prompt_ends":
            changes[field.name] = (HOSTILE,)
    return dataclasses.replace(result, **changes)


@every_kind
def test_a_figure_names_its_model_and_follows_its_page(name, kind):
    figure, result = drawn(name, kind), made(name)
    if model := getattr(result, "model", ""):
        assert model in figure.layout.title.subtitle.text
    assert figure.layout.template.layout.font.color == style.BOTH.ink
    assert style.template(style.DARK).layout.paper_bgcolor == style.CLEAR
    ours = [getattr(theme, at) for theme in (style.LIGHT, style.DARK) for at in ("muted", "grid", "ground")]
    bare = figure.update_layout(template=None).to_json()
    assert not [color for color in ours if color in bare]


def strip_of(values, labels, **options):
    return ld.decompose(values, labels, components=["embed", "L0.attn", "L0.mlp", "L1.mlp"]).plot(**options)


def test_the_strip_is_each_row_and_the_sum():
    """Marks are contributions to the first option minus the second, ticks their means, and lines sum to the last."""
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(20, 4, 2)), np.arange(20) % 2
    values[:, 3, 0] += 3  # a constant, and the largest mean
    figure = strip_of(values, labels, n=2)
    x = values[..., 0] - values[..., 1]
    names = list(figure.layout.yaxis.ticktext)
    assert names[:2] == ["<b>all 4</b>", "2 others"]
    assert "L1.mlp" in names[2:]
    shown = [["embed", "L0.attn", "L0.mlp", "L1.mlp"].index(name) for name in names[2:]]
    others = [i for i in range(4) if i not in shown]
    lines = [x.sum(1), x[:, others].sum(1), *(x[:, i] for i in shown)]
    marks = [trace for trace in figure.data if trace.marker.symbol in style.SHAPES]
    means = [trace for trace in figure.data if trace.marker.symbol == "line-ns"]
    for label, (mark, mean) in enumerate(zip(marks, means, strict=True)):
        rows = labels == label
        np.testing.assert_allclose(mark.x, np.concatenate([line[rows] for line in lines]))
        expected = estimate(np.stack([line[rows] for line in lines], 1))
        np.testing.assert_allclose(mean.x, expected.value)
        np.testing.assert_allclose(mean.error_x.array, expected.high - expected.value)
        side = np.sign(mark.y - np.round(mark.y))
        assert set(side) == {1.0 if label == 0 else -1.0}  # the first label above its line, the second below
    order = [x[labels == 0, i].mean() + x[labels == 1, i].mean() for i in shown]
    assert order == sorted(order)
    texts = [a.text for a in figure.layout.annotations]
    assert f"{((x.sum(1) > 0) == (labels == 0)).mean():.0%}" in texts


def test_the_strip_of_more_options_is_the_right_one_minus_the_others():
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(30, 4, 3)), np.arange(30) % 3
    figure = strip_of(values, labels, n=4)
    right = values[np.arange(30), :, labels]
    x = right - (values.sum(2) - right) / 2
    (all_rows,) = [trace for trace in figure.data if trace.name == "option 0"]
    np.testing.assert_allclose(all_rows.x[:10], x.sum(1)[labels == 0])
    assert not [name for name in figure.layout.yaxis.ticktext if "other" in name]
    with pytest.raises(ld.InputError, match="labels"):
        strip(ld.contributions(llama(), PROMPTS, OPTIONS))


@pytest.mark.parametrize(("rows", "options"), [(12, 2), (400, 2), (44, 4), (44, 9)])
def test_the_strip_of_any_rows_and_options_is_drawn(rows, options):
    rng = np.random.default_rng(2)
    values, labels = rng.normal(size=(rows, 70, options)), rng.integers(0, options, rows)
    names = [f"L{i}.mlp" for i in range(70)]
    figure = ld.decompose(values, labels, components=names).plot(n=12)
    assert len(figure.layout.yaxis.ticktext) == 14
    assert any(trace.type == "violin" for trace in figure.data) == (rows > 300)


def test_the_strip_shows_costs_in_place_of_accuracies():
    d, effects = ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS), LABELS), _effects()
    figure = d.plot(effects=effects)
    (cost,) = [trace for trace in figure.data if trace.name == "zero ablation"]
    frame = effects.frame().set_index("component")["cost"]
    names = [name for name in figure.layout.yaxis.ticktext if name in frame.index]
    np.testing.assert_allclose(np.sort(cost.x)[: len(names)], np.sort(frame[names].to_numpy()))
    with pytest.raises(ld.InputError, match="effects= are of"):
        d.plot(effects=dataclasses.replace(effects, model="another"))


def _effects():
    return ld.effects(llama(), PROMPTS, OPTIONS, LABELS, ablation="zero")


def test_maps_of_heads_clip_nothing():
    """The largest cell has the end of the scale, every cell its value, MLPs the last row."""
    d = made("Decomposition")
    for value in ("diversity", "logit_difference"):
        figure = d.plot("heads", value=value)
        (heat,) = figure.data
        frame = d.by_component(full=True)
        frame = frame[frame["kind"].isin(("head", "mlp"))]
        z, cells = np.array(heat.z, dtype=float), np.array(heat.customdata, dtype=float)
        np.testing.assert_allclose(np.sort(cells[np.isfinite(cells)]), np.sort(frame[value].dropna()))
        assert np.nanmax(np.abs(z)) == pytest.approx(1.0)
        assert (np.sign(z[np.isfinite(z)]) == np.sign(cells[np.isfinite(cells)])).all()
        last = frame[frame["kind"] == "mlp"][value].to_numpy()
        np.testing.assert_allclose(cells[-1][np.isfinite(cells[-1])], last)
        assert list(figure.layout.yaxis.ticktext)[-1] == "MLP"
    with pytest.raises(ld.InputError, match="no heads"):
        ld.decompose(ld.contributions(llama(), PROMPTS, OPTIONS), LABELS).plot("heads")


def test_bars_and_depth_of_a_decomposition_are_its_frames():
    d = made("Decomposition")
    frame, figure = d.by_component(full=True), d.plot("bars")
    height = {"scatter": "diversity", "bar": "accuracy"}
    for kind, column in height.items():
        traces = [trace for trace in figure.data if trace.type == kind]
        values = np.concatenate([np.array(t.y) + (t.base if kind == "bar" else 0.0) for t in traces])
        places = np.concatenate([np.array(t.x) for t in traces])
        np.testing.assert_allclose(values[np.argsort(places)], frame[column], rtol=1e-12)
    levels = sorted(float(shape.y0) for shape in figure.layout.shapes if shape.type == "line")
    assert levels == sorted([d.chance, d.accuracy])
    depth, along = d.plot("depth"), d.by_depth()
    lines = {trace.name: trace.y for trace in depth.data if trace.name}
    for column in ("bias", "loss", "accuracy"):
        np.testing.assert_allclose(lines[column], along[column])
    np.testing.assert_allclose(lines["bias"] - lines["loss"], along["diversity"], atol=1e-12)  # the band


def test_bars_from_the_direct_to_the_total_effect_sum():
    effects = made("Effects")
    for name in effects.names[:3]:
        (figure,) = [effects.plot("compensation", component=name)]
        rows = {}
        for trace in figure.data:
            rows |= dict(zip(trace.y, trace.x, strict=True))
        values = np.array([rows[at] for at in range(len(rows))])
        assert values[:-1].sum() == pytest.approx(values[-1])
        assert values[-1] == pytest.approx(effects.effect("total")[:, effects.names.index(name)].mean())
    with pytest.raises(ld.InputError, match="was not ablated"):
        effects.plot("compensation", component="L9.mlp")


def test_a_drop_curve_has_every_plan_and_the_random_ones():
    plan = made("DropPlan")
    figure, frame = plan.plot("curve"), plan.by_size()
    start = frame[frame["plan"] == "none"]
    for name, some in frame[frame["plan"] != "none"].groupby("plan"):
        lines = [t for t in figure.data if t.name == name]
        for line, column in zip(lines, ("loss", "accuracy"), strict=True):
            values = some if name == "random" else pd.concat([start, some])
            np.testing.assert_allclose(line.y, values[column])


def test_unknown_kinds_and_options_are_refused():
    with pytest.raises(ld.InputError, match=r"kind='pie' is unknown: use 'strip', .*'pairwise'"):
        made("Decomposition").plot("pie")
    with pytest.raises(TypeError, match="color"):
        made("Decomposition").plot(color="red")
    for name, kind, wrong in (
        ("SourceTokens", "map", {"option": 9}),
        ("Erasure", "map", {"text": 3}),
    ):
        with pytest.raises(ld.InputError, match=f"{next(iter(wrong))}="):
            made(name).plot(kind, **wrong)


def test_a_figure_reads_on_every_background():
    """Text has contrast on the backgrounds of JupyterLab and VS Code, light and dark, and nothing covers these."""

    def luminance(color):
        channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for ground in ("#ffffff", "#111111", "#1f1f1f"):
        lower, higher = sorted(luminance(color) + 0.05 for color in (ground, style.BOTH.ink))
        assert higher / lower >= 4
        for color in style.PAIR:
            lower, higher = sorted(luminance(x) + 0.05 for x in (ground, color))
            assert higher / lower >= 2.6
    for scale in (style.SIGNS, style.SIZES):
        assert {color.split(",")[-1].strip(" )") for _, color in scale} == {"0", "1"}  # nothing is seen where zero is


def test_a_figure_of_one_prompt_shows_its_end():
    model = ld.load_model(llama(), tokenizer=word_tokenizer(60))
    one, two = (ld.contributions(model, prompts, [" w1", " w2"]) for prompts in (["w7 w8"], ["w7 w8", "w3"]))
    assert one.plot().layout.title.subtitle.text.endswith("· …w7 w8")
    assert "w7" not in two.plot().layout.title.subtitle.text


def test_names_of_marks_do_not_cover_one_another():
    frame = pd.DataFrame({"component": [f"L{i}.mlp" for i in range(40)], "x": np.r_[np.zeros(39), 1.0], "y": 1.0})
    frame["y"] += np.r_[np.linspace(0, 0.01, 39), 1.0]
    figure = shapes.marks(frame, "x", "y", names=6)
    places = [(a.x, a.y) for a in figure.layout.annotations]
    assert len(places) == 2
    assert (1.0, 2.0) in places


def test_leading_names_the_two_largest_with_their_intervals():
    frame = pd.DataFrame({"component": ["a", "b", "c"], "x": [1.0, -3.0, 2.0], "x_low": [0.5, -4, 1], "x_high": 2.5})
    frame.attrs = {"units": {"x": "nats"}, "intervals": "95 % intervals over 9 rows"}
    said = "x, nats: b −3 (−4 to 2.5); c 2 (1 to 2.5); of 3 (95 % intervals over 9 rows)"
    assert leading(frame, "x") == said
    effects = made("Effects")
    assert leading(effects.frame(), "total") in repr(effects)


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


def test_a_figure_of_a_difference_names_the_answers():
    """Where they have names."""
    model = ld.load_model(llama(), tokenizer=word_tokenizer())
    for unit in ("sublayer", "head"):
        named = ld.logit_difference(model, ["w1 w2"], [" w5"], [" w7"], unit=unit)
        assert named.plot().layout.title.subtitle.text.endswith("' w5' − ' w7'")
    assert "−" not in ld.logit_difference(model, [[1, 2], [3]], [5, 6], 7).plot().layout.title.subtitle.text


def test_numbers_without_rows_are_not_drawn():
    """No layer follows the one of this model."""
    with pytest.raises(ld.InputError, match="nothing to draw"):
        ld.depth.skip("zoo/d1", [[1, 2, 3]]).plot("map")
