"""The explorer: its numbers are the frames', everything chosen is chosen in all views, nothing leaves the page."""

import base64
import dataclasses
import json
import zlib

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.attribution.promoted_tokens import cosines, promotions
from layerdiv_tl.model.attention import attention_patterns
from layerdiv_tl.views.explorer.data import CSS, SCRIPT, pack_promotions, pack_text
from tests.conftest import llama
from tests.oracles.browser import save_hostile_model
from tests.oracles.families import FAMILIES

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]
OTHER = [3, 3, 8, 20, 21, 40]
TERMS, PARTS = ("net", "bias", "diversity"), ("raw", "centered")
SHAPES = ["gpt2", "gemma2", "mixtral"]


@pytest.fixture(scope="module")
def model():
    return ld.load_model(llama())


@pytest.fixture(scope="module")
def frames(model):
    """Every number of the first text by (unit): component × position, of the tidy frames."""
    return {unit: ld.profile(model, IDS, unit).frame() for unit in ("sublayer", "head")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_hostile_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def explorer(model):
    return ld.explore(model, [IDS, OTHER])


def unpacked(blob):
    """A second reading of what goes to the browser: (header, {name: array})."""
    raw = zlib.decompress(blob)
    size = int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4 : 4 + size])
    arrays = {}
    for a in header["arrays"]:
        start = 4 + size + a["start"]
        count = int(np.prod(a["shape"]))
        arrays[a["name"]] = np.frombuffer(raw, a["type"], count, start).reshape(a["shape"])
    return header, arrays


def own(frame, component, position, term, part):
    """One number of a tidy frame."""
    here = frame[(frame.component == component) & (frame.position == position)]
    return float(here[term if part == "raw" else f"{term}_{part}"].iloc[0])


def unit_of(label):
    return "head" if ".H" in label else "sublayer"


# What components write.


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_promotions_are_top_tokens_of_every_position(name, unit):
    """All at once say what Profile.top_tokens says one by one."""
    model = ld.load_model(FAMILIES[name]())
    found, p = promotions(model, IDS, unit, k=4), ld.profile(model, IDS, unit)
    assert found.components == p.components
    for position in (0, 5, 11):
        one = p.top_tokens(None, position, 4)
        for row, component in enumerate(p.components):
            here = one[one.component == component.label]
            assert found.ids[position, row].tolist() == here.token_id.tolist()
            np.testing.assert_allclose(found.logits[position, row], here.contribution_centered, rtol=1e-4, atol=1e-5)
    some = promotions(model, IDS, unit, [p.components[2]], at=[7, 3], k=4)
    np.testing.assert_array_equal(some.ids[:, 0], found.ids[[7, 3], 2])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_cosines_are_those_of_the_logits(name, unit):
    """Of the centered contributions to every id at every token, written out."""
    model = ld.load_model(FAMILIES[name]())
    names, found = cosines(model, IDS, unit)
    every = list(range(model.architecture.outputs))
    prompts = [IDS[: i + 1] for i in range(len(IDS))]
    c = ld.contributions(model, prompts, every, unit=unit)
    assert c.components == names
    u = c.values - c.values.mean(2, keepdims=True)
    long = u.transpose(1, 0, 2).reshape(len(names), -1)
    size = np.linalg.norm(long, axis=1)
    np.testing.assert_allclose(found, long @ long.T / np.outer(size, size), atol=2e-5)


def test_what_does_not_exist_is_refused(model):
    for call, sentence in (
        (lambda: promotions(model, IDS, at=[12]), "does not fit a text of 12 tokens"),
        (lambda: promotions(model, IDS, k=0), "k=0 must be"),
        (lambda: promotions(model, IDS, components=["L9.mlp"]), "no label 'L9.mlp'"),
        (lambda: cosines(model, [IDS, IDS]), "one text, but 2"),
        (lambda: ld.explore(llama(max_position_embeddings=600), [1] * 513), "shows at most 512"),
        (lambda: ld.explore(model, [IDS] * 5), "too many to compare"),
        (lambda: ld.explore(model, IDS, target=99), "holds the token id 99"),
        (lambda: ld.explore(model, IDS, target="a"), "without a tokenizer"),
    ):
        with pytest.raises(ld.InputError, match=sentence):
            call()


# The numbers that travel.


@pytest.mark.parametrize("name", [*SHAPES, "jetmoe"])
def test_what_travels_are_the_frames_numbers(name):
    """Every term, part, component and position of both cuts; weights to half a step of 1/255; sums over a whole cut."""
    model = ld.load_model(FAMILIES[name]())
    (findings,) = ld.explore(model, IDS).texts
    header, arrays = unpacked(pack_text(findings))
    labels = [c["label"] for c in header["components"]]
    units = ["sublayer"] if name == "jetmoe" else ["sublayer", "head"]
    frames = {unit: ld.profile(model, IDS, unit).frame() for unit in units}
    wanted = [c for c in frames["sublayer"].component.unique()]
    if name != "jetmoe":
        wanted += [c for c in frames["head"].component.unique() if ".H" in c]
    assert labels == wanted
    for term in TERMS:
        for part in PARTS:
            column = term if part == "raw" else f"{term}_{part}"
            tables = {u: f.pivot(index="component", columns="position", values=column) for u, f in frames.items()}
            sent = np.stack([tables[unit_of(label)].loc[label] for label in labels])
            np.testing.assert_allclose(arrays[f"{term}_{part}"], sent, rtol=1e-6, atol=1e-7)
            # Of NaN pandas would make 0.
            sums = np.stack([tables[unit].to_numpy().sum(0) for unit in units])
            np.testing.assert_allclose(arrays[f"sum_{term}_{part}"], sums, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays["loss"], frames["sublayer"].groupby("position").loss.first(), rtol=1e-6)
    if name == "jetmoe":
        assert "use unit='sublayer'" in header["no_heads"]
        assert header["no_attention"] == header["no_heads"]
        return
    patterns = attention_patterns(model, IDS).patterns
    query, key = np.tril_indices(len(IDS))
    assert np.abs(arrays["attention"] / 255 - patterns[:, query, key]).max() <= 0.5 / 255 + 1e-6
    assert header["no_heads"] == header["no_attention"] == ""


def test_a_component_that_adds_nothing_has_the_zero_terms(model):
    """Bias: mean of the squared target; diversity: of the squared mean of all; net: their difference."""
    (findings,) = ld.explore(model, IDS).texts
    every = list(range(61))
    for unit, row in (("sublayer", 0), ("head", 1)):
        c = ld.contributions(model, [IDS[:6]], every, unit=unit)
        target, mean = np.eye(61)[IDS[6]], c.values[0].mean(0)
        for part in PARTS:
            t, m = (x - (part == "centered") * x.mean() for x in (target, mean))
            bias, diversity = (t**2).mean(), (m**2).mean()
            for term, value in (("bias", bias), ("diversity", diversity), ("net", bias - diversity)):
                assert findings.zero_terms(term, part)[row, 5] == pytest.approx(value, rel=1e-4)


def test_neighbors_are_the_largest_cosines(model):
    """Five that write most alike and three most opposed, within the cut, without itself."""
    (findings,) = ld.explore(model, IDS).texts
    header, arrays = unpacked(pack_text(findings))
    labels = [c["label"] for c in header["components"]]
    for unit in ("sublayer", "head"):
        names, table = cosines(model, IDS, unit)
        names = [c.label for c in names]
        for label in [n for n in names if unit_of(n) == unit and n in labels]:
            row, others = table[names.index(label)], [i for i, n in enumerate(names) if n != label and n in labels]
            like = sorted([row[i] for i in others if row[i] > 0], reverse=True)[:5]
            against = sorted([row[i] for i in others if row[i] < 0])[:3]
            near, cosine = arrays["near"][labels.index(label)], arrays["cosine"][labels.index(label)]
            np.testing.assert_allclose(cosine[near >= 0], [*like, *against], rtol=1e-5)
            assert [labels[i] for i in near[near >= 0]] == [names[list(row).index(v)] for v in [*like, *against]]


def test_promoted_tokens_travel_with_three_digits(model):
    """Words and logits of every component shown, of each cut its own."""
    (findings,) = ld.explore(model, IDS).texts
    header, arrays = unpacked(pack_promotions(model, findings, [2, 9])[0])
    assert header["positions"] == [2, 9]
    for unit in ("sublayer", "head"):
        p = ld.profile(model, IDS, unit)
        for place, position in enumerate([2, 9]):
            for i, component in enumerate(findings.shown):
                if unit_of(component.label) != unit:
                    continue
                one = p.top_tokens(component, position, 5)
                assert [header["words"][w] for w in arrays["word"][place, i]] == one.token.tolist()
                np.testing.assert_allclose(arrays["logit"][place, i], one.contribution_centered, rtol=5e-4, atol=1e-6)


def test_a_target_is_held_against_the_last_position_only(model):
    """As if it were the next token; all before is as it was, and its own position is not there."""
    plain, held = ld.explore(model, IDS).texts[0], ld.explore(model, IDS, target=7).texts[0]
    longer = ld.profile(model, [*IDS, 7], "head")
    assert len(held.heads.tokens) == len(IDS)
    assert held.target == "token 7"
    for part in PARTS:
        for term in TERMS:
            a, b = plain.table(term, part), held.table(term, part)
            np.testing.assert_allclose(a[:, :-1], b[:, :-1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(held.heads.net[:, -1], longer.net[:, -2], rtol=1e-6)
    assert np.isnan(plain.heads.net[:, -1]).all()
    assert ld.explore(model, IDS, target=7).selection.position == len(IDS) - 1


# What is chosen.


def test_a_selection_begins_where_there_is_something_to_see(model, frames):
    """At the largest loss after the first position, with the head whose centered net is largest there."""
    e, heads = ld.explore(model, IDS), frames["head"]
    losses = heads.groupby("position").loss.first()[1:]
    assert e.selection.position == losses.idxmax()
    here = heads[(heads.position == losses.idxmax()) & (heads.kind == "head")]
    assert e.selection.component == here.loc[here.net_centered.abs().idxmax(), "component"]


def test_a_selection_is_read_and_set(explorer):
    """A dict changes some fields; what does not exist is refused and changes nothing."""
    explorer.selection = {"position": 3, "component": "L1.H2", "pins": [[0, 2], None]}
    explorer.selection = {"part": "raw"}
    s = explorer.selection
    assert (s.position, s.component, s.layer, s.part, s.pins) == (3, "L1.H2", 1, "raw", ((0, 2), None))
    for wrong, sentence in (
        ({"position": 12}, "position=12"),
        ({"position": -1}, "position=-1"),
        ({"text": 2}, "text=2"),
        ({"text": 1, "position": 6}, "position=6"),
        ({"component": "L9.H0"}, "no component 'L9.H0'"),
        ({"part": "shift"}, "part='shift'"),
        ({"term": "loss"}, "term='loss'"),
        ({"pins": [[0, 99], None]}, "position=99"),
        ({"pins": [3, None]}, "pins"),
        ({"pins": 3}, "must be two"),
        ({"color": []}, "is unknown"),
        ({"layer": 3}, "selection="),
        (7, "selection=7"),
    ):
        with pytest.raises(ld.InputError, match=sentence):
            explorer.selection = wrong
        assert explorer.selection == s


def test_another_text_keeps_what_is_chosen(explorer):
    """Component, part and pins stay; a full explorer gives up a text that is neither shown nor pinned."""
    explorer.selection = {"component": "L2.H1", "position": 8, "part": "raw", "pins": [[0, 2], [1, 3]]}
    explorer.show([9, 9, 8])
    s = explorer.selection
    assert (s.text, s.position, s.component, s.part, s.pins) == (2, 2, "L2.H1", "raw", ((0, 2), (1, 3)))
    explorer.show([9, 9, 7])
    explorer.show([9, 9, 6])
    assert [t.sublayers.token_ids.tolist()[-1] for t in explorer.texts] == [13, 40, 6, 7]
    assert explorer.selection.text == 2


# The page.


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    """The saved page of two texts."""
    e = ld.explore(model, [IDS, OTHER])
    e.selection = {"position": 4, "component": "L1.H2", "part": "centered"}
    return e.save(tmp_path_factory.mktemp("page") / "explorer.html")


@pytest.fixture
def opened(browser, page):
    with browser.open(page, 1600, height=1400) as opened:
        yield opened
        assert (opened.complaints, opened.requests) == ([], [])


def shown(opened, view, what="[data-component]"):
    """{what a mark is of: its value} of one view."""
    script = """(marks) => marks.map((m) => [m.dataset.component ?? m.dataset.position ?? m.dataset.key
        ?? m.dataset.row ?? m.dataset.term, +m.dataset.value])"""
    found = opened.page.locator(f".{view} {what}")
    return dict(found.evaluate_all(script))


def check_views(opened, frames, position, component, part="centered", term="net", color="loss"):
    """Every mark of every view against the frames."""
    heads, sublayers = frames["head"], frames["sublayer"]

    def column(frame, kind, term):
        here = frame[(frame.position == position) & (frame.kind == "head" if kind else True)]
        return dict(zip(here.component, here[term if part == "raw" else f"{term}_{part}"], strict=True))

    def same(found, wanted):
        assert found.keys() == wanted.keys()
        for label, value in wanted.items():
            assert found[label] == pytest.approx(value, rel=1e-5, abs=1e-8, nan_ok=True)

    every = column(heads, True, term)
    same(shown(opened, "depth"), column(sublayers, False, term))
    same(shown(opened, "grid"), every)
    same(shown(opened, "scatter"), column(heads, True, "bias"))
    across = opened.page.locator(".scatter circle").evaluate_all(
        "a => a.map(m => [m.dataset.component, +m.dataset.across])"
    )
    same(dict(across), column(heads, True, "diversity"))
    layer = component.split(".")[0] if "." in component else "L0"
    for one in TERMS:
        wanted = {k: v for k, v in column(heads, True, one).items() if k.startswith(f"{layer}.")}
        same(shown(opened, "layer", f"[data-term={one}]"), wanted)
    frame = frames[unit_of(component)]
    for one in TERMS:
        row = opened.page.locator(f".shares tr[data-term={one}]")
        value = own(frame, component, position, one, part)
        total = frame[frame.position == position][one if part == "raw" else f"{one}_{part}"].sum()
        assert float(row.get_attribute("data-value")) == pytest.approx(value, rel=1e-5, abs=1e-8)
        assert float(row.get_attribute("data-share")) == pytest.approx(value / total, rel=1e-3)
    strip = shown(opened, "tokens", "[data-position]")
    if color == "loss":
        wanted = sublayers.groupby("position").loss.first()
    else:
        wanted = sublayers.groupby("position")[color if part == "raw" else f"{color}_{part}"].mean()
    same(strip, {str(p): v for p, v in wanted.items()})
    chosen = opened.page.locator(".tokens .chosen")
    assert chosen.get_attribute("data-position") == str(position)
    for view in ("tokens", "attention") if ".H" in component else ("tokens",):  # where the prediction is made
        marked = opened.page.locator(f".{view} .token").evaluate_all(
            "a => a.flatMap((s, i) => (s.classList.contains('stands') ? [i] : []))"
        )
        assert marked == [position]
    assert opened.page.locator(".now").inner_text().endswith(f"chosen: {component} at position {position}")


@pytest.mark.full
def test_a_click_changes_all_views_to_the_numbers_of_the_frame(opened, frames, model):
    """Token, component, layer and head, one after another; then attention, promoted tokens and duplicates."""
    page = opened.page
    check_views(opened, frames, 4, "L1.H2")
    page.locator(".tokens [data-position='9']").click()
    check_views(opened, frames, 9, "L1.H2")
    page.locator(".depth [data-component='L2.mlp']").click()
    check_views(opened, frames, 9, "L2.mlp")
    page.locator(".layer [data-term=bias][data-component='L2.H3']").click()
    check_views(opened, frames, 9, "L2.H3")
    page.locator(".grid [data-component='L0.H1']").click()
    check_views(opened, frames, 9, "L0.H1")
    mark = page.locator(".scatter [data-component='L2.H0']").bounding_box()
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    check_views(opened, frames, 9, "L2.H0")
    weights = attention_patterns(model, IDS, ["L2.H0"]).patterns[0, 9]
    read = shown(opened, "attention", "[data-key]")
    assert len(read) == 10
    np.testing.assert_allclose(list(read.values()), weights[:10], atol=0.51 / 255)
    top = ld.profile(model, IDS, "head").top_tokens("L2.H0", 9, 5)
    said = page.locator(".promotes .entry").evaluate_all("a => a.map(m => [m.dataset.word, +m.dataset.value])")
    assert [word for word, _ in said] == top.token.tolist()
    np.testing.assert_allclose([v for _, v in said], top.contribution_centered, rtol=5e-4)
    names, table = cosines(model, IDS, "head")
    row = dict(zip([c.label for c in names], table[[c.label for c in names].index("L2.H0")], strict=True))
    near = shown(opened, "duplicates")
    assert len(near) >= 4
    for label, cosine in near.items():
        assert cosine == pytest.approx(row[label], abs=1e-5)
    first = page.locator(".duplicates button").first
    label = first.get_attribute("data-component")
    first.click()
    check_views(opened, frames, 9, label)


@pytest.mark.full
def test_buttons_change_part_term_and_color(opened, frames):
    """Raw and centered, what components are drawn by, what the text is colored by."""
    for field, option, now in (
        ("part", "raw", {"part": "raw"}),
        ("term", "diversity", {"part": "raw", "term": "diversity"}),
        ("color", "net", {"part": "raw", "term": "diversity", "color": "net"}),
        ("part", "centered", {"term": "diversity", "color": "net"}),
        ("term", "bias", {"term": "bias", "color": "net"}),
        ("color", "bias", {"term": "bias", "color": "bias"}),
    ):
        button = opened.page.locator(f"[data-field={field}][data-option={option}]")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        check_views(opened, frames, 4, "L1.H2", **now)


@pytest.mark.full
def test_keys_move_and_the_focus_stays(opened, frames):
    """Arrows in the text, along depth, in the grid, in a layer; a and b pin."""
    page = opened.page

    def press(view, *keys):
        page.locator(f".{view} .host").focus()
        for key in keys:
            page.keyboard.press(key)
        assert page.evaluate(
            "document.activeElement.parentElement.classList.contains(arguments)".replace("arguments", f"'{view}'")
        )

    press("tokens", "ArrowRight", "ArrowRight")
    check_views(opened, frames, 6, "L1.H2")
    press("tokens", "Home", "ArrowLeft")
    check_views(opened, frames, 0, "L1.H2")
    press("tokens", "End", "ArrowLeft")
    check_views(opened, frames, 10, "L1.H2")
    press("grid", "ArrowUp", "ArrowLeft")
    check_views(opened, frames, 10, "L2.H1")
    press("grid", "ArrowUp", "ArrowDown", "ArrowDown", "ArrowDown")
    check_views(opened, frames, 10, "L0.H1")
    press("layer", "ArrowRight", "ArrowRight", "ArrowRight")
    check_views(opened, frames, 10, "L0.H3")
    press("depth", "ArrowRight")
    check_views(opened, frames, 10, "L0.mlp")
    press("depth", "End", "ArrowRight")
    check_views(opened, frames, 10, "L2.mlp")
    press("scatter", "ArrowRight", "ArrowRight")
    check_views(opened, frames, 10, "L0.H1")
    press("tokens", "b")
    assert page.locator(".tokens .pin-b").count() == 1
    page.keyboard.press("Control+a")  # a key of the browser's own
    assert page.locator(".tokens .pin-a").count() == 0
    reached = set()
    page.locator("body").click(position={"x": 2, "y": 2})
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('.view')?.classList[1]"))
    assert {"tokens", "depth", "layer", "grid", "scatter", "duplicates"} <= reached
    outline = page.locator(".grid .host").evaluate("h => { h.focus(); return getComputedStyle(h).outlineStyle }")
    assert outline == "solid"


@pytest.mark.full
def test_pins_compare_two_texts(opened, frames, model):
    """Columns of numbers for A and B and their difference; dots of both along depth."""
    page = opened.page
    assert "Nothing is pinned" in page.locator(".compare .host").inner_text()
    page.locator("[data-pin=A]").click()
    page.get_by_role("button", name="2", exact=True).click()
    page.locator(".tokens [data-position='2']").click()
    page.locator("[data-pin=B]").click()
    there = {unit: ld.profile(model, OTHER, unit).frame() for unit in ("sublayer", "head")}
    check_views(opened, there, 2, "L1.H2")
    a, b = (f["sublayer"][f["sublayer"].position == p] for f, p in ((frames, 4), (there, 2)))
    wanted = {"loss, nats": (a.loss.iloc[0], b.loss.iloc[0])}
    for term in TERMS:
        wanted[f"{term}, mean of components"] = (a[f"{term}_centered"].mean(), b[f"{term}_centered"].mean())
        wanted[f"{term} of L1.H2"] = tuple(
            own(f["head"], "L1.H2", p, term, "centered") for f, p in ((frames, 4), (there, 2))
        )
    wanted["mean loss of the text, nats"] = tuple(f["sublayer"].loss.mean() for f in (frames, there))
    rows = page.locator(".compare tr[data-row]")
    assert {r.get_attribute("data-row") for r in rows.all()} == set(wanted)
    for row in rows.all():
        cells = [float(cell.get_attribute("data-value")) for cell in row.locator("td").all()]
        left, right = wanted[row.get_attribute("data-row")]
        assert cells == pytest.approx([left, right, right - left], rel=1e-4, abs=1e-7)
    for pin, frame in (("A", a), ("B", b)):
        dots = shown(opened, "compare", f"[data-pin={pin}][data-component]")
        assert dots == pytest.approx(dict(zip(frame.component, frame.net_centered, strict=True)), rel=1e-5, abs=1e-8)
    page.locator("[data-pin=none]").click()
    assert "Nothing is pinned" in page.locator(".compare .host").inner_text()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [600, 900, 1600])
def test_hostile_tokens_are_inert(browser, folder, tmp_path, width, scheme):
    """Tokens that look like HTML are text in every view; nothing is asked for, complained about or sticks out."""
    e = ld.explore(ld.load_model(folder), "w5 w1 </script> w5 <img w9 onerror=alert(1)> w2", target=" <img")
    e.selection = {"pins": [[0, 2], [0, 4]]}
    with browser.open(e.save(tmp_path / "page.html"), width, scheme) as opened:
        for span in opened.page.locator(".tokens [data-position]").all():
            span.click()
        assert opened.page.locator(".tokens .ghost").inner_text() == "<img"
        assert opened.page.locator("main img").count() == 0
        assert opened.page.locator(".tokens .token").nth(2).evaluate("s => s.firstChild.data") == "</script>"
        assert opened.wider_than_window() <= 0
        assert (opened.complaints, opened.requests) == ([], [])


@pytest.mark.full
def test_long_tokens_stay_inside(browser, model, tmp_path):
    """Tokens of hundreds of letters, as vocabularies have them, make no page wider than its window."""
    e = ld.explore(model, IDS)
    tokens = tuple("-" * 300 if i % 2 else "\u6f22" * 90 for i in range(len(IDS)))
    long = dataclasses.replace(e.texts[0].sublayers, tokens=tokens)
    e.texts = (dataclasses.replace(e.texts[0], sublayers=long, target="=" * 300),)
    with browser.open(e.save(tmp_path / "page.html"), 900) as opened:
        for button in opened.page.locator("[data-field]").all():
            button.click()
        opened.page.locator(".tokens [data-position='7']").click()
        assert opened.wider_than_window() <= 0
        assert (opened.complaints, opened.requests) == ([], [])


@pytest.mark.full
@pytest.mark.parametrize("name", [*SHAPES, "jetmoe"])
def test_families_have_a_page(browser, tmp_path, name):
    """Every component can be chosen; without heads the page says so, and has the rest."""
    path = ld.explore(FAMILIES[name](), IDS).save(tmp_path / "page.html")
    with browser.open(path, 1200) as opened:
        for stem in opened.page.locator(".depth .stem").all():
            stem.click()
            assert opened.page.locator(".promotes .entry").count() == 10
        sentences = opened.page.locator("text=There are no views of heads here: the attention of layer 0 has no rows")
        assert sentences.count() == (name == "jetmoe")
        for view in ("grid", "scatter", "attention"):
            assert opened.page.locator(f".{view}").is_visible() == (name != "jetmoe")
        assert (opened.complaints, opened.requests) == ([], [])


@pytest.mark.full
def test_a_page_without_promoted_tokens_says_so(browser, model, tmp_path):
    path = ld.explore(model, IDS).save(tmp_path / "page.html", promoted=False)
    with browser.open(path) as opened:
        assert "Not on this page" in opened.page.locator(".promotes").inner_text()
        assert (opened.complaints, opened.requests) == ([], [])


@pytest.mark.full
def test_a_large_text_is_drawn_at_once(browser, tmp_path):
    """128 tokens × 61 components × 270 heads: from click to the next frame; a page below 10 MB."""
    wide = llama(num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=36)
    wide.config.max_position_embeddings = 256
    ids = np.random.default_rng(0).integers(0, 61, 128).tolist()
    e = ld.explore(wide, ids)
    e.selection = {"pins": [[0, 2], [0, 4]]}
    path = e.save(tmp_path / "page.html")
    assert path.stat().st_size < 10e6
    with browser.open(path, 1600) as opened:
        assert opened.page.locator(".grid .cell").count() == 270
        took = opened.page.evaluate("""async () => {
            const times = [];
            for (const position of [5, 20, 100, 64, 9]) {
                const began = performance.now();
                document.querySelector(`.tokens [data-position="${position}"]`).click();
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - began);
            }
            return times.sort((a, b) => a - b);
        }""")
        assert took[2] < 250, took  # a loaded machine; 25 ms where it is not


@pytest.mark.full
def test_the_page_of_the_default_model_is_small(smol, browser, tmp_path):
    """128 tokens, all 331 sublayers and heads, with what each promotes at every token: below 10 MB, and it works."""
    ids = smol.tokenizer(SCRIPT)["input_ids"][:128]
    path = ld.explore(smol, ids).save(tmp_path / "page.html")
    assert 1e6 < path.stat().st_size < 10e6
    with browser.open(path, 1600) as opened:
        opened.page.locator(".grid [data-component='L12.H3']").click()
        opened.page.locator(".tokens [data-position='126']").click()
        assert opened.page.locator(".promotes .entry").count() == 10
        assert (opened.complaints, opened.requests) == ([], [])


def test_a_page_is_written_whole_or_not_at_all(explorer, tmp_path):
    with pytest.raises(ld.InputError, match="is a folder"):
        explorer.save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ld.InputError, match="cannot be written"):
        explorer.save(tmp_path / "file" / "page.html", promoted=False)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# The widget.


def asks(widget, **content):
    """A message of the front end's, and everything it leads to."""
    widget._handle_custom_msg(content, [])
    widget.wait()


def test_the_widget_is_the_explorer(explorer):
    """What is chosen in the browser is chosen in Python and the other way round; nonsense is put back."""
    w = explorer.widget
    assert w is explorer.widget
    assert w.chosen == explorer.selection.record()
    w.chosen = w.chosen | {"position": 2, "component": "L0.attn"}
    assert (explorer.selection.position, explorer.selection.component) == (2, "L0.attn")
    explorer.selection = {"component": "L1.H3"}
    assert w.chosen["component"] == "L1.H3"
    w.chosen = w.chosen | {"component": "L77.H3"}
    assert w.chosen == explorer.selection.record()
    assert explorer.selection.component == "L1.H3"
    assert "no component 'L77.H3'" in w.progress["message"]
    sent = w.get_state()
    assert sent["_esm"] == SCRIPT
    assert sent["_css"].endswith(CSS)
    assert "[data-jp-theme-light=false] .ld-explorer" in sent["_css"]


def test_a_reader_without_widgets_is_told_what_is_shown(explorer):
    """Beside the widget a notebook keeps the explorer's own words, the same at every run."""
    shown = explorer._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert data["text/plain"] == repr(explorer)


def test_a_text_typed_in_the_widget_is_measured(folder):
    """Text and target go to the kernel, with progress; what was chosen stays; an error is said and changes nothing."""
    e = ld.explore(ld.load_model(folder), "w5 w1 w4 w1 w2")
    e.selection = {"component": "L2.H1", "position": 3, "part": "raw", "pins": [[0, 1], None]}
    said = []
    e.widget.observe(lambda change: said.append(change["new"]), "progress")
    asks(e.widget, ask="text", text="w9 w9 w8 w7 w6 w5", target=" w3")
    assert [s["done"] for s in said] == [0, 1, 2, 3, 0]
    assert said[-1]["message"] == ""
    assert len(e.widget.texts) == 2
    assert unpacked(e.widget.texts[1])[0]["tokens"] == ["w9", "w9", "w8", "w7", "w6", "w5"]
    assert e.texts[1].target == "w3"
    s = e.selection
    assert (s.text, s.position, s.component, s.part, s.pins) == (1, 5, "L2.H1", "raw", ((0, 1), None))
    assert e.widget.chosen == s.record()
    for text, target, sentence in (("", "", "is empty"), ("w1 w2", " w1 w2", "must be a single one")):
        asks(e.widget, ask="text", text=text, target=target)
        assert sentence in e.widget.progress["message"]
        assert (e.selection, len(e.texts)) == (s, 2)


def test_of_several_texts_the_last_one_counts(folder):
    """Texts that nobody waits for any more are not measured to the end."""
    e = ld.explore(ld.load_model(folder), "w5 w1 w4 w1 w2")
    for text in ("w1 w2 w3", "w1 w2 w4", "w1 w2 w5"):
        e.widget._handle_custom_msg({"ask": "text", "text": text, "target": ""}, [])
    e.widget.wait()
    assert e.texts[-1].sublayers.tokens == ("w1", "w2", "w5")
    assert len(e.texts) <= 3
    assert e.widget.progress["of"] == 0


def test_the_widget_looks_tokens_up(explorer, monkeypatch):
    """What components promote at a position is asked for when it is looked at."""
    sent = []
    monkeypatch.setattr(type(explorer.widget), "send", lambda self, content, buffers: sent.append((content, buffers)))
    asks(explorer.widget, ask="promoted", text=1, position=3)
    ((content, (blob,)),) = sent
    assert content == {"kind": "promoted", "text": 1}
    assert unpacked(blob)[0]["positions"] == [3]
    asks(explorer.widget, ask="promoted", text=9, position=3)
    assert len(sent) == 1


@pytest.mark.full
def test_the_front_end_asks_and_hears(browser, explorer, tmp_path):
    """The same module with a stand-in for anywidget's model: it types, asks, hears, follows Python, and is put away."""
    blobs = [base64.b64encode(pack_text(text)).decode() for text in explorer.texts]
    answer = base64.b64encode(pack_promotions(explorer.model, explorer.texts[0], [4])[0]).decode()
    explorer.selection = {"position": 4, "component": "L1.H2"}
    data = {"texts": blobs, "answer": answer, "chosen": explorer.selection.record()}
    script = """
    const bytes = (t) => new DataView(Uint8Array.from(atob(t), (c) => c.charCodeAt(0)).buffer);
    const heard = {}, sent = [];
    const held = { model: "m", live: true, chosen: DATA.chosen, texts: DATA.texts.slice(0, 1).map(bytes),
      progress: { done: 0, of: 0, message: "" } };
    const model = { get: (n) => held[n], set: (n, v) => (held[n] = v), save_changes() {}, send: (m) => sent.push(m),
      on: (n, f) => (heard[n] ??= []).push(f), off: (n, f) => (heard[n] = heard[n].filter((g) => g !== f)) };
    const set = (n, v) => { held[n] = v; return Promise.all((heard["change:" + n] ?? []).map((f) => f())); };
    const away = await render({ model, el: document.body });
    const other = { ...held, texts: [bytes(DATA.texts[1])], chosen: { ...DATA.chosen, position: 1 } };
    const second = () => render({ el: document.body.appendChild(document.createElement("div")), model:
      { ...model, get: (n) => other[n], set: (n, v) => (other[n] = v), on() {} } });
    Object.assign(window, { held, other, second, sent, set, bytes, heard, away,
      answer: () => heard["msg:custom"][0]({ kind: "promoted", text: 0 }, [bytes(DATA.answer)]) });
    """
    path = tmp_path / "widget.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{CSS}</style><body>"
        f"<script type=module>{SCRIPT}\nconst DATA = {json.dumps(data)};\n{script}</script>",
        encoding="utf-8",
    )
    with browser.open(path) as opened:
        page = opened.page
        assert "Looking it up" in page.locator(".promotes").inner_text()
        page.wait_for_timeout(300)
        assert page.evaluate("sent") == [{"ask": "promoted", "text": 0, "position": 4}]
        page.evaluate("answer()")
        top = ld.profile(explorer.model, IDS, "head").top_tokens("L1.H2", 4, 5)
        words = page.locator(".promotes .entry").evaluate_all("a => a.map(m => m.dataset.word)")
        assert words == top.token.tolist()
        page.get_by_label("another text").fill("so it goes")
        page.get_by_role("textbox", name="target").fill(" on")
        page.get_by_role("button", name="Decompose").click()
        assert page.evaluate("sent.at(-1)") == {"ask": "text", "text": "so it goes", "target": " on"}
        page.evaluate("set('progress', { done: 1, of: 4, message: 'measuring heads …' })")
        assert page.locator("progress").get_attribute("value") == "0.25"
        assert "measuring heads" in page.locator(".progress-text").inner_text()
        page.locator(".grid [data-component='L0.H1']").click()  # nothing waits for the kernel
        assert page.evaluate("held.chosen.component") == "L0.H1"
        page.evaluate("set('chosen', { ...held.chosen, component: 'L2.H3', position: 6 })")
        assert page.locator(".now").inner_text().endswith("chosen: L2.H3 at position 6")
        page.evaluate("set('texts', DATA.map(bytes))".replace("DATA", json.dumps(blobs)))
        page.evaluate("set('chosen', { ...held.chosen, text: 1, position: 3 })")
        page.wait_for_timeout(200)
        assert page.locator(".tokens [data-position]").count() == len(OTHER)
        assert page.locator(".now").inner_text().endswith("chosen: L2.H3 at position 3")
        page.evaluate("second()")  # another explorer of the same notebook
        one = page.locator(".ld-explorer").first
        mark = one.locator(".scatter [data-component='L0.H2']")
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.evaluate("[held.chosen.component, other.chosen.component]") == ["L0.H2", "L1.H2"]
        page.evaluate("away()")
        assert page.evaluate("heard['change:chosen'].length + heard['msg:custom'].length") == 0
        assert (opened.complaints, opened.requests) == ([], [])
