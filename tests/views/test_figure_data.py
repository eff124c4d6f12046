"""What is drawn is what the frames say: every kind of figure against the result that it is of."""

import dataclasses

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import kit, style
from tests.conftest import llama
from tests.views.figure_results import PROMPTS, made


def on(figure, number):
    """The traces of a panel."""
    return [t for t in figure.data if (t.yaxis or "y") == f"y{number + 1 if number else ''}"]


def places(traces):
    """{label: (x, y)} of bars and marks, by the first line of their hover."""
    shown = [t for t in traces if t.hovertext is not None and (t.type == "bar" or t.mode == "markers")]
    rows = [(h, t.x[i], t.y[i]) for t in shown for i, h in enumerate(np.ravel(t.hovertext))]
    return {text.split("</b>")[0].removeprefix("<b>"): (x, y) for text, x, y in rows}


BARS = [
    ("ResidualNorms", "bars", ["relative_norm", "cosine"]),
    ("Skip", "bars", ["output_change", "loss", "downstream_change"]),
    ("LogitLens", "bars", ["kl", "topk_overlap"]),
    ("Erasure", "bars", ["effect"]),
    ("IntegratedGradients", "bars", ["attribution", "size"]),
    ("Comparison", "bars", ["change"]),
    ("Profile", "depth", ["bias", "diversity", "net"]),
    ("Effects", "totals", ["total"]),
    ("DropPlan", "components", ["score"]),
]


@pytest.mark.parametrize(("name", "kind", "columns"), BARS, ids=[name for name, *_ in BARS])
def test_bars_are_the_frame_in_modules_colors(name, kind, columns):
    """Each panel has one column with its interval; every component once, in stream order, in its module's color."""
    result = made(name)
    frame = {"DropPlan": "frame", "ResidualNorms": "frame", "Comparison": "frame", "Effects": "frame"}.get(name)
    frame = getattr(result, frame or ("by_component" if hasattr(result, "by_component") else "frame"))()
    if name == "Effects":
        frame.loc[frame.index[len(result.components) :], "module"] = "group"
    figure = result.plot(kind)
    for number, column in enumerate(columns):
        seen = np.full((len(frame), 3), np.nan)
        for trace in on(figure, number):
            if trace.type == "scatter" and (trace.fill or trace.marker.symbol == "line-ew-open"):  # a null, medians
                assert trace.fill or list(trace.y) == frame[f"{column}_median"].tolist()
                continue
            at = np.array(trace.x, dtype=int)
            assert {style.MODULE[module] for module in frame["module"].iloc[at]} == {trace.marker.color}
            base = np.zeros(len(at)) if trace.type != "bar" or trace.base is None else trace.base
            seen[at, 0], origin = trace.y + base, float(np.ravel(base)[0])
            if trace.error_y.array is not None:
                seen[at, 1:] = np.stack([seen[at, 0] - trace.error_y.arrayminus, seen[at, 0] + trace.error_y.array], 1)
            if f"{column}_max" in frame:
                assert all(
                    style.number(x) in t for x, t in zip(frame[f"{column}_max"].iloc[at], trace.hovertext, strict=True)
                )
        np.testing.assert_allclose(seen[:, 0], frame[column], atol=1e-12)
        if f"{column}_low" in frame:
            title = figure.layout.title.text
            drawn = kit.cut_whiskers(frame, column, origin, title) if trace.type == "bar" else None
            drawn = frame if drawn is None else drawn
            np.testing.assert_allclose(seen[:, 1:], drawn[[f"{column}_low", f"{column}_high"]], atol=1e-12)


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_a_difference_is_drawn_with_its_two_sides(unit):
    """Each relative to the vocabulary's mean: of a difference's figure, and of contributions to two options.

    The second source are contributions to every id, averaged.
    """
    model, first, second = llama(), 7, 30
    c = ld.contributions(model, PROMPTS, [first, second], unit=unit)
    vocabulary = ld.contributions(model, PROMPTS, list(range(model.config.vocab_size)), unit=unit).values
    sides = (vocabulary[:, :, [first, second]] - vocabulary.mean(2, keepdims=True)).mean(0)
    truth = [sides[:, 0] - sides[:, 1], *sides.T]
    figure = ld.logit_difference(model, PROMPTS, [first] * 8, [second] * 8, unit=unit).plot()
    labels, row = list(figure.layout.yaxis.ticktext), {c.label: i for i, c in enumerate(c.components)}
    marks = [t for t in figure.data if isinstance(t, go.Scatter)]
    for side, trace in enumerate(marks):
        for place, x in zip(trace.y, trace.x, strict=True):
            label = labels[int(place)]
            assert x == pytest.approx(sides[:, side].sum() if label == "total" else sides[row[label], side], abs=1e-6)
    bars = {labels[int(y)]: x for t in figure.data if t.type == "bar" for x, y in zip(t.x, t.y, strict=True)}
    assert bars["total"] == pytest.approx(truth[0].sum(), abs=1e-6)
    assert bars[labels[3]] == pytest.approx(truth[0][np.abs(truth[0]).argmax()], abs=1e-6)
    if unit == "sublayer":
        np.testing.assert_allclose(np.array(c.plot().data[0].z, dtype=float), truth, atol=1e-6)
    else:
        heads = [i for i, c in enumerate(c.components) if c.kind == "head"]
        for panel, values in zip(c.plot().data, truth, strict=True):
            np.testing.assert_allclose(np.array(panel.z, dtype=float)[:, :4].ravel(), values[heads], atol=1e-6)
    directions = ld.contributions(
        model, PROMPTS, dict(zip("ab", np.eye(2, model.config.hidden_size), strict=True)), unit=unit
    )
    assert directions.difference().sides is None
    assert len(directions.plot().data) == 1


def centered(values):
    return values - values.mean(-1, keepdims=True)


def of_text(column):
    """Values `[component, token]` of the third text, of `by_token`."""

    def table(result):
        frame = result.by_token()
        frame = frame[frame["text"] == 2].pivot(index="component", columns="position", values=column)
        return frame.loc[[c.label for c in result.components]]

    return table


def pairs(frame, row, column, values, labels):
    return frame.pivot(index=row, columns=column, values=values).reindex(columns=labels)


def score_of_option(sources):
    """Parts `[head, source]` of the last option minus the mean of the others, of the second example."""
    values = sources.values[1, :, : sources.positions[1] + 1]
    return values[:, :, 2] - values[:, :, :2].mean(2)


MAPS = [
    ("Contributions", {"example": 1, "centered": False}, lambda c: c.values[1].T),
    ("Contributions", {}, lambda c: centered(c.values.mean(0)).T),
    *(("Profile", {"term": term}, lambda p, t=term: getattr(p, t)) for term in ("bias", "diversity", "net")),
    ("Profile", {"term": "target_logit"}, lambda p: p.target_logit),
    ("Skip", {}, lambda s: pairs(s.by_pair(), "component", "downstream_layer", "effect", [c.label for c in s.layers])),
    ("LayerMaps", {}, lambda m: pairs(m.frame(), "component", "target", "error", [c.label for c in m.targets])),
    ("Erasure", {"text": 2}, of_text("effect")),
    ("IntegratedGradients", {"text": 2}, of_text("attribution")),
    ("SourceTokens", {"example": 1, "option": 2, "max_heads": 99}, score_of_option),
]


@pytest.mark.parametrize(("name", "options", "expected"), MAPS, ids=[f"{name}-{options}" for name, options, _ in MAPS])
def test_maps_are_the_numbers_of_their_result(name, options, expected):
    """Every cell, in stream order; cells without a number are empty."""
    drawn = np.array(made(name).plot(**options).data[0].z, dtype=float)
    wanted = np.asarray(expected(made(name)), dtype=float)
    drawn = drawn[:, : wanted.shape[1]]  # the last column of source tokens is the value bias
    np.testing.assert_allclose(drawn[: len(wanted)], wanted, atol=1e-12)
    assert np.isnan(drawn[len(wanted) :]).all()


def test_maps_are_colored_by_their_sign_in_their_unit():
    for term in ("bias", "net", "target_logit"):
        assert (made("Profile").plot(term=term).data[0].zmin < 0) == (term != "bias")
    assert len(ld.profile(llama(intermediate_size=200), [[1, 2, 3]], "neuron").plot().data[0].z) == 400
    total = next(t for t in made("SourceTokens").plot("tokens", example=1, option=2).data if t.name == "sum")
    parts = score_of_option(made("SourceTokens")).sum(0)
    np.testing.assert_allclose(total.y[: len(parts)], parts)


def points(trace):
    return list(zip(trace.x, trace.y, strict=True))


def test_a_map_needs_a_later_component():
    task = ld.task("synthetic/recall", limit=16)
    with pytest.raises(ld.InputError, match="not the last"):
        ld.effects("zoo/d4", task, components=["L3.mlp"]).plot("map")


def test_losses_and_attention_are_drawn_token_by_token():
    p = ld.profile(llama(), [5, 1, 4, 1, 5, 9, 2, 6])
    figure = p.plot("loss")
    assert list(figure.data[0].x) == list(range(1, 8))
    np.testing.assert_allclose(figure.data[0].y, p.loss[:7])
    assert figure.layout.shapes[0].y0 == pytest.approx(np.log(61))
    for term in ("net", "target_logit"):
        values = np.nan_to_num(np.array(getattr(p, term)))[:, 1:]
        row, token = np.unravel_index(np.abs(values).argmax(), values.shape)
        figure, words = p.plot(term=term), [text.replace(" ", "␣") for text in p.tokens[token + 1 :][:2]]
        assert f"{p.components[row]} at '{words[0]}', next '{words[1]}'" in figure.layout.title.text.replace("<br>", "")
        frame = figure.layout.shapes[0]
        assert (frame.x0 + 0.5, frame.y0 + 0.5) == (token + 1, row)
    patterns = made("AttentionPatterns")
    for drawn, pattern, component in zip(patterns.plot().data, patterns.patterns, patterns.components, strict=True):
        values = np.array(drawn.z, dtype=float)
        np.testing.assert_array_equal(np.isnan(values), np.triu(np.ones((4, 4), dtype=bool), 1))
        np.testing.assert_array_equal(np.nan_to_num(values), pattern)
        assert component.label in drawn.hovertext[0][0]
    first, previous = np.zeros((2, 4, 4))
    first[:, 0] = previous[0, 0] = 1
    previous[range(1, 4), range(3)] = 1
    planted = np.stack([first, *patterns.patterns[1:-1], previous])  # the sharpest attend to the first token, and not
    (few,) = dataclasses.replace(patterns, patterns=planted).plot(max_heads=1).layout.annotations
    assert few.text == patterns.components[-1].label
    sunk = dataclasses.replace(patterns, patterns=0.7 * patterns.patterns).plot()
    assert "at most 1" in sunk.layout.title.subtitle.text


def test_the_change_point_is_where_the_line_stands(monkeypatch):
    """The line stands before the first component of the change point's layer, and nowhere within noise."""
    norms = made("ResidualNorms")
    change = norms.change_point()
    monkeypatch.setattr(type(norms), "change_point", lambda self: pd.Series({**change, "p": 0.06}))
    assert not norms.plot().layout.shapes
    monkeypatch.setattr(type(norms), "change_point", lambda self: pd.Series({**change, "p": 0.04}))
    first = next(i for i, c in enumerate(norms.components) if c.layer == change.layer)
    line = next(shape for shape in norms.plot().layout.shapes if shape.type == "line")
    assert line.x0 == line.x1 == first - 0.5
    assert norms.plot().layout.yaxis.type == "log"


@pytest.mark.parametrize("on_", ["logit difference", "loss", "accuracy"])
def test_effects_stand_where_the_frame_puts_them(on_):
    """Every component and group at its direct and total effect, whiskers inside the axes."""
    effects, end = made("Effects"), {"loss": "_loss", "accuracy": "_accuracy"}.get(on_, "")
    frame, figure = effects.frame(), effects.plot(on=on_)
    columns = zip(frame["component"], frame[f"direct{end}"], frame[f"total{end}"], strict=True)
    assert places(figure.data) == {label: (x, y) for label, x, y in columns}
    low, high = figure.layout.yaxis.range
    assert low < frame[f"total{end}_low"].min()
    assert frame[f"total{end}_high"].max() < high


def test_compensation_leads_from_the_direct_to_the_total_effect():
    effects = made("Effects")
    for name in ("L0.mlp", "a pair"):
        figure, change = effects.plot("compensation", component=name, max_components=4), effects.compensation(name)
        bars = dict(sorted((y, x) for t in figure.data for x, y in zip(t.x, t.y, strict=True)))
        values = list(bars.values())
        assert values[0] == pytest.approx(change.attrs["direct"])
        assert values[-1] == pytest.approx(change.attrs["total"]) == pytest.approx(sum(values[:-1]))
        assert len(values) == 1 + 4 + 2 + 1  # direct, four components, all others, the norm, total
    for kind in ("scatter", "totals"):  # the largest of those ablated; of one there is none
        assert effects.plot(kind).layout.title.text.startswith(f"Of {len(effects.names)} ablated")
        one = ld.effects("zoo/d4", ld.task("synthetic/recall", limit=8), components="L3.mlp")
        assert "largest" not in one.plot(kind).layout.title.text
    drawn, frame = np.asarray(effects.plot("map").data[0].z, dtype=float), effects.backups()
    np.testing.assert_allclose(np.sort(drawn[np.isfinite(drawn)]), np.sort(frame.compensation))
    prompts = ld.task("synthetic/recall", limit=16).prompts
    several = ld.effects("zoo/d4", prompts, [" red", " blue black"], [0, 1] * 8)
    ends, frame = places(several.plot(on="loss").data), several.frame()
    assert {label: y for label, (_, y) in ends.items()} == dict(
        zip(frame["component"], frame["total_loss"], strict=True)
    )
    for kind in ("compensation", "map"):
        with pytest.raises(ld.InputError, match="several tokens"):
            several.plot(kind)


@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_a_drop_curve_is_the_frame(quantity):
    """Lines begin at the whole model, bands are the intervals, every random plan has its ring at the budget."""
    plan = made("DropPlan")
    frame, figure = plan.by_size(), plan.plot(quantity=quantity)
    bands = [t for t in figure.data if t.fill == "toself"]
    lines = [t for t in figure.data if t.mode == "lines+markers"]
    for key, band, line in zip(["plan", "block_influence"], bands, lines, strict=True):
        rows = frame[frame["plan"].isin(["none", key])]
        np.testing.assert_array_equal(line.x, [0, 1, 2, 3])
        np.testing.assert_array_equal(line.y, rows[quantity])
        np.testing.assert_array_equal(band.y, np.r_[rows[f"{quantity}_high"], rows[f"{quantity}_low"][::-1]])
        gone = plan.dropped if key == "plan" else plan.influence_dropped
        assert all(c.label in text for c, text in zip(gone, line.hovertext[1:], strict=True))
    np.testing.assert_array_equal(figure.data[-1].y, plan.random_plans()[quantity])
    assert figure.layout.shapes[0].y0 == frame[quantity].iloc[0]
    far = plan.loss.copy()
    far[:, -1] *= 1e4  # the last random plan
    drawn = dataclasses.replace(plan, loss=far).plot("curve").data
    curves = np.concatenate([trace.y for trace in drawn if trace.mode != "markers"])
    assert max(drawn[-1].y) == pytest.approx(np.nanmax(curves) + np.ptp(curves[np.isfinite(curves)]))


def test_a_lens_tells_what_is_there_before_the_last_component():
    lens = made("LogitLens")
    overlap = np.zeros_like(lens.topk_overlap)
    overlap[:, -1], overlap[:, -2] = 1.0, 0.25
    title = dataclasses.replace(lens, topk_overlap=overlap, top_token=()).plot().layout.title.text.replace("<br>", "")
    assert title.startswith(f"Before {lens.components[-1].label}, the last component, a share of 0.25")


def test_a_lens_of_one_text_tells_from_where_on_its_answer_is_the_likeliest():
    lens = made("LogitLens")
    names = [c.label for c in lens.components]
    tokens = ["a"] * (len(names) - 2) + ["b"] * 2
    for answers, told in (
        (tokens, f"From {names[-2]} on, b is"),
        ([*tokens[:-2], "a", "b"], f"Only after {names[-1]},"),
    ):
        title = dataclasses.replace(lens, top_token=(tuple(answers),)).plot().layout.title.text
        assert title.replace("<br>", "").startswith(told)


def caption(figure):
    return figure.layout.title.subtitle.text.replace("<br>", "")


def test_whiskers_of_effects_are_those_that_the_caption_says():
    """Where not all marks are named, the named ones alone have whiskers; mean and resampling say their values."""
    for ablation, baseline in (("mean", "mean over these rows"), ("resample", "another row"), ("zero", "")):
        effects = ld.effects("zoo/d8", ld.task("synthetic/recall", limit=16), ablation=ablation, unit="head")
        figure, frame = effects.plot(), effects.frame().set_index("component")
        whiskers, *marks = (trace for trace in figure.data if trace.mode == "markers")
        assert all(trace.error_y.array is None for trace in marks)
        names = [text.strip() for trace in figure.data if trace.mode == "markers+text" for text in trace.text]
        assert ("Whiskers of named marks" in caption(figure)) == (len(names) < len(frame))
        np.testing.assert_allclose(sorted(whiskers.y), sorted(frame.loc[names, "total"]))
        assert (baseline in caption(figure)) if baseline else ("becomes" not in caption(figure))
