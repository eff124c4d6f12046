"""What is drawn is what the frames say: every kind of figure against the result that it is of."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import kit, style
from layerdiv_tl.views.figures.pruning import compared
from tests.conftest import llama
from tests.views.figure_results import PROMPTS, made

PARTS = ("raw", "centered", "shift")


def on(figure, number):
    """The traces of a panel."""
    return [t for t in figure.data if (t.yaxis or "y") == f"y{number + 1 if number else ''}"]


def places(traces):
    """{label: (x, y)} of bars and marks, by the first line of their hover."""
    shown = [t for t in traces if t.hovertext is not None and (t.type == "bar" or t.mode == "markers")]
    rows = [(h, t.x[i], t.y[i]) for t in shown for i, h in enumerate(np.ravel(t.hovertext))]
    return {text.split("</b>")[0].removeprefix("<b>"): (x, y) for text, x, y in rows}


def suffix(part):
    return "" if part == "raw" else f"_{part}"


BARS = [
    ("ResidualNorms", "bars", ["relative_norm", "cosine"]),
    ("Skip", "bars", ["output_change", "loss", "downstream_change"]),
    ("LogitLens", "bars", ["kl", "topk_overlap"]),
    ("Erasure", "bars", ["effect"]),
    ("IntegratedGradients", "bars", ["attribution", "size"]),
    ("Comparison", "bars", ["change", "net_linear_change"]),
    ("TextComparison", "bars", ["change", "loss_change"]),
    ("CorpusProfile", "bars", ["bias_centered", "diversity_centered", "net_centered"]),
    ("Profile", "depth", ["bias_centered", "diversity_centered", "net_centered"]),
    ("Effects", "totals", ["total"]),
    ("DropPlan", "components", ["score"]),
]


@pytest.mark.parametrize(("name", "kind", "columns"), BARS, ids=[name for name, *_ in BARS])
def test_bars_are_the_frame_in_modules_colors(name, kind, columns):
    """Each panel has one column with its interval; every component once, in stream order, in its module's color."""
    result = made(name)
    frame = {"DropPlan": "scores", "ResidualNorms": "frame", "Comparison": "frame", "Effects": "frame"}.get(name)
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
    directions = ld.contributions(model, PROMPTS, directions=np.eye(2, model.config.hidden_size), unit=unit)
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
    *(
        ("Profile", {"term": term, "part": part}, lambda p, t=term, part=part: getattr(half(p, part), t))
        for term in ("bias", "diversity", "net")
        for part in PARTS
    ),
    ("Profile", {"term": "target_logit"}, lambda p: p.target_logit),
    ("Skip", {}, lambda s: pairs(s.by_pair(), "component", "downstream_layer", "effect", [c.label for c in s.layers])),
    ("LayerMaps", {}, lambda m: pairs(m.frame(), "component", "target", "error", [c.label for c in m.targets])),
    ("Erasure", {"text": 2}, of_text("effect")),
    ("IntegratedGradients", {"text": 2}, of_text("attribution")),
    ("SourceTokens", {"example": 1, "option": 2, "max_heads": 99}, score_of_option),
    ("TextComparison", {"kind": "map"}, lambda x: x.loss_change),
    ("TextComparison", {"kind": "map", "changed": "logit"}, lambda x: x.centered_change),
    ("TextComparison", {"kind": "map", "changed": "own"}, lambda x: x.own_change),
]


def half(result, part):
    return result if part == "raw" else getattr(result, part)


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
        nats = ld.profile(llama(), [[1, 2, 3, 4]], loss="cross_entropy").plot(term=term).data[0]
        assert nats.colorbar.title.text == ("logits" if term == "target_logit" else "nats")
    assert len(ld.profile(llama(intermediate_size=200), [[1, 2, 3]], "neuron").plot().data[0].z) == 400
    routing = made("RouterStatistics")
    frame, shares, drawn = routing.frame(), routing.by_layer(), np.array(routing.plot().data[0].z, dtype=float)
    np.testing.assert_allclose(drawn[np.isfinite(drawn)], frame["load"] / frame["even_load"])
    np.testing.assert_allclose(routing.plot("entropy").data[0].y, shares["load_entropy"] / shares["highest_entropy"])
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
        values = np.nan_to_num(np.array(getattr(p.centered if term == "net" else p, term)))[:, 1:]
        row, token = np.unravel_index(np.abs(values).argmax(), values.shape)
        figure, words = p.plot(term=term), [text.replace(" ", "␣") for text in p.tokens[token + 1 :][:2]]
        assert f"{p.components[row]} at '{words[0]}', next '{words[1]}'" in figure.layout.title.text.replace("<br>", "")
        frame = figure.layout.shapes[0]
        assert (frame.x0 + 0.5, frame.y0 + 0.5) == (token + 1, row)
    sizes = np.array(p.centered.diversity)[:, :7]
    largest = int(sizes.sum(axis=1).argmax())
    for kind in ("scatter", "depth"):
        title = p.plot(kind).layout.title
        assert f"{p.components[largest]} has the largest centered diversity" in title.text.replace("<br>", "")
        held = sizes[largest, 0] / sizes[largest].sum()
        told = f"{style.number(100 * held)}\u00a0% of it at a text's first token" in title.text.replace("<br>", "")
        assert told == (held > 0.5)
    nats = ld.profile(llama(), [5, 1, 4, 1, 5], loss="cross_entropy").plot(term="bias").layout.title
    assert "CE(t, q_i)" in nats.subtitle.text  # no squared distance, and no gauge
    assert nats.text.startswith("Bias of")
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
    monkeypatch.setattr(type(norms), "change_point", lambda self: dataclasses.replace(change, p=0.06))
    assert not norms.plot().layout.shapes
    monkeypatch.setattr(type(norms), "change_point", lambda self: dataclasses.replace(change, p=0.04))
    first = next(i for i, c in enumerate(norms.components) if c.layer == change.layer)
    line = next(shape for shape in norms.plot().layout.shapes if shape.type == "line")
    assert line.x0 == line.x1 == first - 0.5
    assert norms.plot().layout.yaxis.type == "log"
    assert list(change.plot().data[0].x) == [change.before, change.after]


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


@pytest.mark.parametrize("effect", ["loss", "accuracy"])
@pytest.mark.parametrize("scale", ["rank", "value"])
def test_agreement_panels_have_every_component_where_the_frame_puts_it(effect, scale):
    """x is a measure's rank, y the effect or its rank; 1 is at the right and at the top; marks are named in place."""
    agreement = made("Agreement")
    frame, figure = agreement.frame().set_index("component"), agreement.plot(effect=effect, scale=scale)
    at = effect if scale == "value" else f"{effect}_rank"
    measures = ["diversity", "diversity_centered", "net", "relative_norm", "block_influence"]
    rho = agreement.correlations().query("kind == 'all' and effect == @effect").set_index("measure")["correlation"]
    for number, measure in enumerate(measures):
        truth = {c: (frame[f"{measure}_rank"][c], frame[at][c]) for c in frame.index}
        assert places(on(figure, number)) == truth
        (names,) = (t for t in on(figure, number) if t.mode == "markers+text")
        (lines,) = (t for t in on(figure, number) if t.mode == "lines" and not t.name)
        moved = {*zip(lines.x[::3], lines.y[::3], strict=True)}  # a line leads from a mark to a name that is off it
        at_mark = {t.strip(): (a, b) for t, a, b in zip(names.text, names.x, names.y, strict=True)}
        assert all(truth[t] == at_mark[t] or truth[t] in moved for t in at_mark)
        heading = figure.layout.annotations[number].text
        assert heading.endswith(f"ρ = {style.number(rho[measure])}") == bool(np.isfinite(rho[measure]))
    left, right = figure.layout.xaxis.range
    bottom, top = figure.layout.yaxis.range
    assert left > right
    assert (bottom > top) == (scale == "rank")
    drawn = np.array(agreement.plot("ranks").data[0].z, dtype=float)
    np.testing.assert_array_equal(drawn, frame[[f"{q}_rank" for q in ("loss", "accuracy", *measures)]].to_numpy().T)
    bars = agreement.plot("correlations", effect=effect).data
    for trace, (_, rows) in zip(
        bars, agreement.correlations().query("effect == @effect").groupby("kind", sort=False), strict=True
    ):
        np.testing.assert_array_equal(trace.y, rows["correlation"])
        assert all(style.number(low) in text for low, text in zip(rows["low_components"], trace.hovertext, strict=True))
    two = dataclasses.replace(agreement, components=agreement.components[:2], sums=agreement.sums[:, :, :2])
    assert isinstance(two.plot(), go.Figure)
    with pytest.raises(ld.InputError, match="fewer than three components"):
        two.plot("correlations")


@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_a_drop_curve_is_the_frame(quantity):
    """Lines begin at the whole model, bands are the intervals, every random plan has its ring at the budget."""
    plan = made("DropPlan")
    frame, figure = plan.frame(), plan.plot(quantity=quantity)
    bands = [t for t in figure.data if t.fill == "toself"]
    lines = [t for t in figure.data if t.mode == "lines+markers"]
    for key, band, line in zip(["plan", "block_influence"], bands, lines, strict=True):
        rows = frame[frame["plan"].isin(["none", key])]
        np.testing.assert_array_equal(line.x, [0, 1, 2, 3])
        np.testing.assert_array_equal(line.y, rows[quantity])
        np.testing.assert_array_equal(band.y, np.r_[rows[f"{quantity}_high"], rows[f"{quantity}_low"][::-1]])
        gone = plan.dropped if key == "plan" else plan.influence_dropped
        assert all(c.label in text for c, text in zip(gone, line.hovertext[1:], strict=True))
    rings, mean = figure.data[-2:]
    np.testing.assert_array_equal(rings.y, plan.random_plans()[quantity])
    assert mean.y[0] == pytest.approx(np.mean(rings.y))
    assert figure.layout.shapes[0].y0 == frame[quantity].iloc[0]
    button = figure.layout.updatemenus[0].buttons[1]
    assert button.args[0]["visible"][-2:] == [False, False]
    assert all(c.label in figure.layout.title.text for c in plan.dropped)
    far = plan.loss.copy()
    far[:, -1] *= 1e4  # the last random plan
    drawn = dataclasses.replace(plan, loss=far).plot("curve").data
    curves = np.concatenate([trace.y for trace in drawn if trace.mode != "markers"])
    assert max(drawn[-2].y) == pytest.approx(np.nanmax(curves) + np.ptp(curves[np.isfinite(curves)]))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_the_caption_says_on_which_side_another_plan_lies(sign, quantity):
    """Above or below, by a positive number and its interval's ends in order, as `compare` has them."""
    row = {"other": "block_influence", "dropped": 1, "win_rate": 0.5}
    ends = (0.05, 0.01, 0.09) if sign > 0 else (-0.05, -0.09, -0.01)
    row |= {f"{quantity}{end}": x for end, x in zip(("", "_low", "_high"), ends, strict=True)}
    frame = pd.DataFrame([row])
    frame.attrs["units"] = {"loss": "nats", "accuracy": "share"}
    said = compared(SimpleNamespace(compare=lambda: frame, dropped=(1,), score="own", ordered={}), quantity)
    itself = SimpleNamespace(compare=lambda: frame, dropped=(1,), score="block_influence", ordered={})
    assert compared(itself, quantity) == ""
    same = SimpleNamespace(compare=lambda: frame, dropped=(1,), score="own", ordered={"block_influence": (1,)})
    assert compared(same, quantity) == "Block influence drops the same ones."
    unit = " nats" if quantity == "loss" else ""
    assert f"is 0.050{unit} (0.010 to 0.090) {'above' if sign > 0 else 'below'} block influence's" in said


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


@pytest.mark.parametrize("name", ["Comparison", "TextComparison"])
def test_two_models_are_compared_by_module_and_depth(name):
    x, figure = made(name), made(name).plot("depth")
    for number, table in enumerate((x.by_module(), x.by_depth(4))):
        for trace, side in zip(on(figure, number), "ab", strict=True):
            np.testing.assert_allclose(trace.y, table[side])
