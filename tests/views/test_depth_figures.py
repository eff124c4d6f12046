"""Figures of depth use: what is drawn is what the frames say, hostile text stays text."""

import dataclasses

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import style
from layerdiv_tl.views.figures import FIGURES
from tests.conftest import llama

HOSTILE = "</script><img src=x onerror=alert(1)>"
IDS = [[5, 1, 4, 1, 5, 9], [3, 14, 15], [17, 11, 60, 0, 7]]


@pytest.fixture(scope="module")
def results():
    model = ld.load_model(llama(num_hidden_layers=4))
    return {
        "sizes": ld.depth.residual_norms(model, IDS),
        "skip": ld.depth.skip(model, IDS),
        "lens": ld.depth.logit_lens(model, IDS),
        "erase": ld.depth.erase(model, IDS, layers=[0, 2, 3]),
        "gradients": ld.depth.integrated_gradients(model, IDS, "mlp", steps=8),
        "maps": ld.depth.map_layers(model, llama(seed=1), IDS),
    }


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("sizes", ["relative_norm", "cosine"]),
        ("skip", ["output_change", "loss", "downstream_change"]),
        ("lens", ["kl", "topk_overlap"]),
        ("erase", ["effect"]),
        ("gradients", ["attribution", "size"]),
    ],
)
def test_bars_are_the_frames(results, name, columns):
    """Each panel shows one column with its interval, each module in its color, every component once."""
    result = results[name]
    frame, figure = result.frame(), result.plot(kind="bars")
    modules = np.array([c.module for c in result.components])
    means = [trace for trace in figure.data if trace.error_y.array is not None]
    assert len(means) == len(columns) * len(set(modules))
    for number, at in enumerate(columns):
        axis = "y" if number == 0 else f"y{number + 1}"
        seen = np.full(len(frame), np.nan)
        for trace in (t for t in means if t.yaxis == axis):
            places = np.array(trace.x)
            assert {style.MODULE[module] for module in modules[places]} == {trace.marker.color}
            seen[places] = trace.y
            np.testing.assert_array_equal(trace.error_y.array, (frame[f"{at}_high"] - frame[at]).to_numpy()[places])
            np.testing.assert_array_equal(trace.error_y.arrayminus, (frame[at] - frame[f"{at}_low"]).to_numpy()[places])
            for place, text in zip(places, trace.hovertext, strict=True):
                assert text.startswith(f"<b>{frame['component'].iloc[place]}</b>")
                assert style.number(frame[f"{at}_max"].iloc[place]) in text
        np.testing.assert_array_equal(seen, frame[at])


def test_the_change_point_is_where_the_line_stands(results, monkeypatch):
    """The line stands before the first component of the change point's layer, and nowhere within noise."""
    sizes = results["sizes"]
    change = sizes.change_point()
    monkeypatch.setattr(type(sizes), "change_point", lambda self: dataclasses.replace(change, p=0.06))
    assert not sizes.plot().layout.shapes
    monkeypatch.setattr(type(sizes), "change_point", lambda self: dataclasses.replace(change, p=0.04))
    figure = sizes.plot()
    first = next(i for i, c in enumerate(sizes.components) if c.layer == change.layer)
    line = next(shape for shape in figure.layout.shapes if shape.type == "line")
    assert line.x0 == line.x1 == first - 0.5
    assert figure.layout.yaxis.type == "log"
    assert f"layer {change.layer}" in figure.layout.title.subtitle.text.replace("<br>", " ")
    assert list(change.plot().data[0].x) == [change.before, change.after]
    assert f"layer {change.layer}" in change.plot().layout.title.subtitle.text


def test_the_skip_map_holds_every_pair(results):
    """Cells are the means of by_pair; before and at the skipped layer there is none."""
    skip = results["skip"]
    z = np.array(skip.plot().data[0].z, dtype=float)
    pairs = skip.by_pair()
    for row in pairs.itertuples():
        place = int(row.downstream_layer[1:].split(".")[0])
        assert z[row.layer, place] == row.effect
    assert np.isfinite(z).sum() == len(pairs) == 6


def test_the_layer_map_holds_every_pair(results):
    """Cells are the errors of the frame, sources upwards and targets to the right."""
    maps = results["maps"]
    z = np.array(maps.plot().data[0].z, dtype=float)
    table = maps.frame().pivot(index="layer", columns="target", values="error")
    np.testing.assert_array_equal(z, table.to_numpy())
    assert z.shape == (4, 3)


@pytest.mark.parametrize(("name", "column"), [("erase", "effect"), ("gradients", "attribution")])
def test_token_maps_show_one_text(results, name, column):
    """Rows are layers, columns the tokens of the text that was asked for."""
    result = results[name]
    frame = result.by_token()
    heat = result.plot(text=2).data[0]
    table = frame[frame["text"] == 2].pivot(index="component", columns="position", values=column)
    table = table.loc[[c.label for c in result.components]]
    np.testing.assert_array_equal(np.array(heat.z, dtype=float), table.to_numpy())
    assert (heat.zmin == -heat.zmax) if name == "gradients" else heat.zmin == 0
    with pytest.raises(ld.InputError, match="text=3 .* 0 to 2"):
        result.plot(text=3)


@pytest.mark.full
def test_hostile_names_and_tokens_stay_text(results):
    """Nothing that a model or a text says becomes markup, in any figure of any result."""
    for result in results.values():
        changes = {name: HOSTILE for name in ("model", "source", "target") if hasattr(result, name)}
        if hasattr(result, "tokens"):
            changes["tokens"] = (HOSTILE,) * len(result.tokens)
        hostile = dataclasses.replace(result, **changes)
        for kind in FIGURES[type(result).__name__]:
            text = str(hostile.plot(kind=kind).to_dict())
            assert "<img" not in text
            assert "</script" not in text
            assert "&lt;" in text


@pytest.mark.full
def test_figures_leave_light_and_dark_to_the_template(results):
    """No figure names an ink, a grid or a ground of its own, and maps take their scale from the template."""
    own = [getattr(theme, part) for theme in (style.LIGHT, style.DARK) for part in ("ink", "grid", "muted", "paper")]
    for result in results.values():
        for kind in FIGURES[type(result).__name__]:
            figure = result.plot(kind=kind)
            for trace in figure.data:
                assert trace.type != "heatmap" or trace.autocolorscale
            said = str({**figure.to_dict()["layout"], "template": None}) + str(
                [t.marker for t in figure.data if "marker" in t]
            )
            assert not any(color in said for color in own)
