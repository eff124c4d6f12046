"""Direct, total and indirect effects: against plain passes with hooks, and against planted models' closed forms."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import t

import layerdiv_tl as ld
from layerdiv_tl.depth.effect_results import SCENARIOS
from tests.conftest import tied, unrolled
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.oracles.hooked_forward import trace
from tests.oracles.loops import ouro
from tests.training.planted import build_planted

OPTIONS = [7, 9, 12]
FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("neox_parallel", "mixtral", "stories")]


def rows(count, vocabulary=61, seed=0):
    """Texts of different lengths, and labels."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, 2 + i % 4).tolist() for i in range(count)], np.arange(count) % len(OPTIONS)


def place_of(c):
    return ("values" if c.kind == "head" else "mlp", c.layer)


def run(root, ids, edits=()):
    """Logits of the last token, where heads' values or MLPs' outputs are replaced: (component, [token, width])."""

    def replaced(value, _read, own):
        value = value.clone()
        for c, instead in own:
            width = value.shape[-1] // root.config.num_attention_heads
            here = slice(c.index * width, (c.index + 1) * width) if c.kind == "head" else slice(None)
            value[..., here] = instead[:, here].to(value)
        return value

    places = {place_of(c) for c, _ in edits}
    own = {place: [edit for edit in edits if place_of(edit[0]) == place] for place in places}
    changes = {place: partial(replaced, own=some) for place, some in own.items()}
    return trace(root, ids, changes).logits[-1].numpy()


def means(root, ids, components):
    """[row][component]: what a mean ablation puts at each token."""
    seen = [trace(root, row) for row in ids]
    found = [{} for _ in ids]
    for c in components:
        kind, layer = place_of(c)
        held = [getattr(one, kind)[layer] for one in seen]
        between = torch.cat([h[1:-1] for h in held])
        first, last = (torch.stack([h[i] for h in held]).mean(0) for i in (0, -1))
        for row, of_row in zip(ids, found, strict=True):
            of_row[c] = torch.stack([first, *[between.mean(0)] * (len(row) - 2), last])
    return found


def difference(logits, label):
    right = logits[OPTIONS[label]]
    return right - np.mean([logits[o] for o in OPTIONS if o != OPTIONS[label]])


def loss(logits, label):
    logits = logits[OPTIONS]
    return np.log(np.exp(logits - logits[label]).sum())


def uncapped(logits, cap):
    return logits if cap is None else cap * np.arctanh(logits / cap)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", *FULL])
def test_total_effects_are_those_of_plain_passes(name, stories):
    """Total effects of heads, MLPs and a group, mean and zero, as plain passes give them."""
    root = stories.root if name == "stories" else FAMILIES[name]()
    model, (ids, labels) = ld.load_model(root), rows(5, root.config.vocab_size)
    chosen = ("L0.H0", "L0.H3", "L0.mlp", "L1.H2", "L2.H1", "L2.mlp")
    components = [c for c in model.components("head") if c.label in chosen]
    group = [components[0], components[-1]]
    cap = model.path.soft_cap
    for ablation in ("mean", "zero"):
        effects = ld.effects(
            model,
            ids,
            OPTIONS,
            labels,
            unit="head",
            ablation=ablation,
            components=[c.label for c in components],
            groups={"two": group},
        )
        left = means(root, ids, components)
        if ablation == "zero":
            left = [{c: torch.zeros_like(v) for c, v in of.items()} for of in left]
        for r, (row, label) in enumerate(zip(ids, labels, strict=True)):
            clean = run(root, row)
            for i, members in enumerate([*([c] for c in components), group]):
                without = run(root, row, [(c, left[r][c]) for c in members])
                expected = difference(uncapped(clean, cap), label) - difference(uncapped(without, cap), label)
                size = max(1.0, abs(difference(uncapped(clean, cap), label)))
                assert abs(effects.effect("total")[r, i] - expected) < 1e-5 * size
                assert abs(effects.effect("total", "cost")[r, i] + loss(clean, label) - loss(without, label)) < 1e-5
        check_sums(effects)


def check_sums(effects, tolerance=1e-6):
    """Direct, the others' changes and the norm's share make the total effect, row by row and in the tables."""
    total, norm = effects.effect("total"), effects.effect("norm")
    size = max(1.0, np.abs(total).max())
    assert np.abs(effects.changes.sum(2) + norm - total).max() < tolerance * size
    assert effects.gap < tolerance
    for name in effects.names:
        frame = effects.compensation(name)
        assert frame.component.iloc[-1] == "norm"
        assert abs(frame.compensation.sum() - frame.attrs["indirect"]) < tolerance * size
        assert abs(frame.attrs["direct"] + frame.attrs["indirect"] - frame.attrs["total"]) < tolerance * size


def check_what_an_eraser_undoes(effects, undo):
    """The eraser compensates for all of a and for nothing of others."""
    a, eraser, _ = (effects.names.index(c.label) for c in undo.components)
    direct, members = effects.effect("direct"), [effects.members.index(c) for c in undo.components]
    np.testing.assert_allclose(effects.changes[:, a, members[1]], -direct[:, a], atol=1e-9)
    np.testing.assert_allclose(effects.changes[:, [a, eraser], members[2]], 0, atol=1e-9)


@pytest.mark.parametrize("shape", ["llama", pytest.param("gpt2", marks=pytest.mark.full)])
def test_planted_models_measure_their_closed_forms(shape):
    """Heads that vote are worth what they write; what an MLP undoes is worth nothing, and the MLP compensates."""
    copied = build_planted("copied", shape)
    effects = ld.effects(copied, copied.task, unit="head", ablation="zero", groups={"both": ["L0.H0", "L1.H1"]})
    frame = effects.frame(full=True).set_index("component")
    # Two equal heads, right in 3 of 4 rows: each is worth 3/4 − 1/4 logits, both together twice that.
    for name, worth in (("L0.H0", 0.5), ("L1.H1", 0.5), ("both", 1.0)):
        for column in ("direct", "total"):
            assert frame[column][name] == pytest.approx(worth, abs=1e-9)
    # One alone answers as both; none leaves a tie, right in half of the rows.
    assert frame.accuracy_lost[["L0.H0", "L1.H1", "both"]].tolist() == pytest.approx([0, 0, 1 / 4], abs=1e-9)
    two, one = (np.log(1 + np.exp(-x)) * 3 / 4 + np.log(1 + np.exp(x)) / 4 for x in (2, 1))
    assert frame.cost["L0.H0"] == pytest.approx(one - two, abs=1e-9)
    check_sums(effects, 1e-9)
    undo = build_planted("undo", shape)
    for ablation in ("zero", "resample"):
        effects = ld.effects(undo, undo.task, unit="head", ablation=ablation)
        a, eraser, b = (c.label for c in undo.components)
        total = effects.effect("total")[:, [effects.names.index(x) for x in (a, eraser, b)]]
        direct = effects.effect("direct")[:, [effects.names.index(x) for x in (a, eraser, b)]]
        if ablation == "zero":
            vote = undo.values @ np.array([1.0, -1.0]) * np.where(undo.task.labels == 0, 1, -1)[:, None]
            np.testing.assert_allclose(direct, vote, atol=1e-9)
        else:
            assert np.ptp(direct, 0).min() == pytest.approx(4, abs=1e-9)  # a vote for another's, either way
        # The first head's vote is undone whatever it is; ablating what undoes it brings it back. (Another row's output
        # in place of the eraser's gives the stream another size, which norms then see.)
        columns = [0, 1, 2] if ablation == "zero" else [0, 2]
        np.testing.assert_allclose(total[:, columns], (direct * [0, 1, 1])[:, columns], atol=1e-9)
        change = effects.compensation(a).set_index("component").compensation
        assert change[eraser] == pytest.approx(-direct[:, 0].mean(), abs=1e-9)
        if ablation == "zero":
            check_what_an_eraser_undoes(effects, undo)
        check_sums(effects, 1e-9 if ablation == "zero" else 1e-6)  # Llama's norms answer in float32


@pytest.fixture(scope="module")
def tiny():
    return ld.load_model(FAMILIES["gpt2"]())


def test_effects_of_a_saved_result_are_the_same(tiny, tmp_path):
    ids, labels = rows(8)
    effects = ld.effects(tiny, ids, OPTIONS, labels, components=["L1.mlp"], groups={"two": ["L1.mlp", "L2.attn"]})
    loaded = ld.load(effects.save(tmp_path / "effects.safetensors"))
    assert loaded.frame().equals(effects.frame())
    assert loaded.compensation("two").equals(effects.compensation("two"))


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_the_clean_passs_values_are_its_contributions(tiny, unit):
    ids, labels = rows(4)
    effects = ld.effects(tiny, ids, OPTIONS, labels, unit=unit, components=["L0.mlp"])
    c = ld.contributions(tiny, ids, OPTIONS, unit=unit)
    assert effects.members == c.components
    np.testing.assert_allclose(effects.values, c.values, atol=1e-6)


def test_without_labels_the_first_option_is_right(tiny):
    ids, _ = rows(4)
    pairs = [(7, 9), (9, 7), (12, 7), (7, 12)]
    one, other = (ld.effects(tiny, ids, pairs, labels, components=["L0.mlp"]) for labels in (None, [0] * 4))
    assert one.frame().equals(other.frame())


def test_a_task_with_options_of_each_prompt_is_its_rows_and_options(stories):
    rows = [(" time", " was"), (" play", " said")]
    about = dict.fromkeys(("name", "template", "source", "license"), "own")
    prompts = ("Once upon a", "Lily had a")
    task = ld.Task(prompts=prompts, options=tuple(rows), labels=np.array([0, 1]), **about)
    one = ld.effects(stories, task, components=["L0.mlp"])
    other = ld.effects(stories, task.prompts, rows, [0, 1], components=["L0.mlp"])
    assert one.options == task.options
    np.testing.assert_array_equal(one.without, other.without)
    for options in (((" time", " xylophone"), rows[1]), (" xylophone", " was")):
        longer = dataclasses.replace(task, options=options)
        assert ld.effects(stories, longer, components=["L0.mlp"]).score == "log_likelihood"


LONGER = [[7, [9, 4], [5, 8, 2]]]


def log_likelihoods(root, ids, edits=()):
    """Of LONGER, from passes of the prompt and each beginning of an option; `edits` are made at every token."""

    def one(option):
        total = 0.0
        for end, token in enumerate(option):
            row = [*ids, *option[:end]]
            logits = run(root, row, [(c, value.expand(len(row), -1)) for c, value in edits])
            total += logits[token] - np.log(np.exp(logits).sum())
        return total

    return np.array([one([7]), one([9, 4]), one([5, 8, 2])])


@pytest.mark.parametrize("name", ["gpt2", pytest.param("gemma2", marks=pytest.mark.full)])
def test_options_of_several_tokens_are_compared_by_their_log_likelihoods(name):
    """Against plain passes of every beginning of an option, at the same ablation."""
    root = FAMILIES[name]().double()
    model, (ids, labels) = ld.load_model(root), rows(4)
    chosen = ["L0.H1", "L1.mlp", "L2.H2"]
    given = {"unit": "head", "ablation": "zero", "components": chosen}
    effects = ld.effects(model, ids, LONGER, labels, **given, batch_tokens=24)
    width = {c: means(root, ids, [c])[0][c].shape[1] for c in effects.components}
    for r, (row, label) in enumerate(zip(ids, labels, strict=True)):
        scores = log_likelihoods(root, row)
        np.testing.assert_allclose(effects.logits[r], scores, atol=1e-6)
        for i, c in enumerate(effects.components):
            without = log_likelihoods(root, row, [(c, torch.zeros(1, width[c]))])
            gone = [x[label] - np.delete(x, label).mean() for x in (scores, without)]
            assert effects.effect()[r, i] == pytest.approx(gone[0] - gone[1], abs=1e-6)
    assert effects.frame(full=True).filter(regex="direct|norm").empty
    with pytest.raises(ld.InputError, match="name='direct'"):
        effects.effect("direct")
    with pytest.raises(ld.InputError, match="several tokens"):
        effects.compensation("L1.mlp")


def test_single_tokens_among_longer_options_are_single_tokens(tiny):
    """A third option of two tokens changes nothing about two that are compared in the same context."""
    ids, _ = rows(6)
    for ablation in ("mean", "resample"):
        one, other = (
            ld.effects(tiny, ids, options, [0] * 6, ablation=ablation, components=["L1.mlp"])
            for options in ([7, 9], [[7, 9, [12, 3]]])
        )
        between = [x.without[-1, :, 0, 0] - x.without[-1, :, 0, 1] for x in (one, other)]
        np.testing.assert_allclose(*between, atol=1e-5)


GIVEN = {"prompts": [[3, 4, 5], [6, 7]], "options": OPTIONS, "labels": [0, 1]}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"groups": {"none": []}}, "group 'none'"),
        ({"groups": {"g": ["L9.mlp"]}}, "L9.mlp"),
        ({"groups": {"L0.mlp": ["L1.mlp", "L2.mlp"]}}, "L0.mlp, which is a component"),
        ({"components": ["embed"]}, "embed"),
        ({"components": []}, "components"),
        ({"unit": "neuron"}, "unit"),
        ({"ablation": "median"}, "ablation"),
        ({"prompts": [[3, 4]], "labels": [0]}, "two different prompts: the mean"),
        ({"prompts": [[3, 4]], "labels": [0], "ablation": "resample"}, "two different prompts: no other"),
        ({"prompts": [[3, 4], [3, 4]]}, "two different prompts: the mean"),
        ({"options": [7]}, "two options"),
        ({"options": {"a probe": np.ones(32), "another": np.arange(32.0)}}, "two options"),
        ({"options": None}, "options"),
    ],
)
def test_bad_input_is_refused_with_the_reason(tiny, change, match):
    with pytest.raises(ld.InputError, match=match):
        ld.effects(tiny, **(GIVEN | change))


def test_layers_that_run_twice_are_ablated_one_run_at_a_time():
    """Against the same model with its shared blocks written out, whose runs are layers of their own."""
    shared, ids, labels = tied(0, 1, 1, 2), *rows(8)
    one, other = (
        ld.effects(ld.load_model(m), ids, OPTIONS, labels, unit="head", components=labels_)
        for m, labels_ in ((shared, ["L1@1.H2", "L1@2.mlp"]), (unrolled(shared), ["L1.H2", "L2.mlp"]))
    )
    np.testing.assert_allclose(one.without, other.without, atol=1e-5)
    check_sums(one)


def test_a_stream_that_passes_the_final_norm_on_its_way_is_refused():
    with pytest.raises(ld.InputError, match="between rounds"):
        ld.effects(ouro(), [[3, 4, 5], [6, 7, 8]], OPTIONS, [0, 1])


@pytest.mark.nightly
def test_heads_of_the_default_model_make_up_for_one_another_on_indirect_objects(smol):
    """L23.H0 to H2 write the name and are not missed: L24.H4 takes less away. Totals are those of plain passes."""
    from tests.benchmarks.speed import indirect_objects

    prompts, pairs = indirect_objects(18)
    group = ["L23.H0", "L23.H1", "L23.H2"]
    effects = ld.effects(
        smol, prompts, options=pairs, unit="head", components=["L23.H3", "L24.H4", "L29.mlp"], groups={"0-2": group}
    )
    frame = effects.frame().set_index("component")
    assert effects.accuracy == 1
    assert frame.direct["L23.H3"] == pytest.approx(2.2, abs=0.4)
    assert frame.total["L23.H3"] == pytest.approx(frame.direct["L23.H3"], abs=0.5)
    assert frame.direct["0-2"] > 1.3
    assert frame.total["0-2"] < 0.3 * frame.direct["0-2"]
    change = effects.compensation("0-2").set_index("component").compensation
    assert change.idxmin() == "L24.H4"
    assert change["L24.H4"] < -0.5
    check_sums(effects)
    ids = [smol.tokenizer(prompt)["input_ids"] for prompt in prompts]
    heads = [ld.Component.parse(label) for label in group]
    left = means(smol.root, ids, heads)
    for row in (0, 1, 2):
        names = [smol.tokenizer(name)["input_ids"][0] for name in pairs[row]]
        clean, without = (run(smol.root, ids[row], [(c, left[row][c]) for c in some])[names] for some in ([], heads))
        expected = (clean[0] - clean[1]) - (without[0] - without[1])
        assert effects.effect("total")[row, -1] == pytest.approx(expected, abs=1e-5 * np.abs(clean).max())


def test_a_stream_with_more_than_attentions_and_mlps_is_refused():
    with pytest.raises(ld.InputError, match="mixer"):
        ld.effects(BY_STRUCTURE["falcon_h1"](), **GIVEN)


def answered(effects, clean, direct, total):
    """The same result with these answers (0 or 1, `[row]`) as it is, without what is written, and ablated."""

    def logits(right):
        signs = np.where(effects.labels[:, None] == np.arange(2), 1.0, -1.0)
        return signs * np.where(right, 1, -1)[:, None]

    without = np.repeat(logits(direct)[None, :, None], len(SCENARIOS), 0)
    without[SCENARIOS.index("total")] = logits(total)[:, None]
    return dataclasses.replace(effects, logits=logits(clean), without=without)


@pytest.mark.full
def test_differences_of_accuracies_have_bonett_and_prices_interval():
    """Direct, total, indirect: one more row won, one more lost, by hand; held in 95 % of samples, and no wider."""
    ids, labels = rows(24)
    found = ld.effects(tied(0, 1), ids, [7, 9], labels % 2, ablation="zero", components=["L0.mlp"])
    rng = np.random.default_rng(5)
    drawn = rng.random((300, 3, 24)) < np.array([0.8, 0.7, 0.5])[:, None]
    drawn[0] = True  # nothing changes: all three are the same number of the same rows
    truths, inside, widths = {"direct": 0.1, "total": 0.3, "indirect": 0.2}, [], []
    for clean, direct, total in drawn:
        row = answered(found, clean, direct, total).frame(full=True).iloc[0]
        sides = {"direct": (clean, direct), "total": (clean, total), "indirect": (direct, total)}
        for name, (before, after) in sides.items():
            p, q = (((x & ~y).sum() + 1) / 26 for x, y in ((before, after), (after, before)))
            half = t.ppf(0.975, 25) * np.sqrt((p + q - (p - q) ** 2) / 26)
            column = "accuracy_lost" if name == "total" else f"{name}_accuracy_lost"
            ends = row[f"{column}_low"], row[f"{column}_high"]
            assert ends == pytest.approx((max(p - q - half, -1), min(p - q + half, 1)))
            inside.append(ends[0] <= truths[name] <= ends[1])
            widths.append(half)
    assert 0.93 <= np.mean(inside) <= 0.985
    assert widths[0] == widths[1] == widths[2]
