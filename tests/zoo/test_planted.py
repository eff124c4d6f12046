"""Planted models: what the tool measures is what was planted, to the last digits."""

import json
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.tasks.synthetic import COLORS
from layerdiv_tl.zoo.planted import votes_task
from layerdiv_tl.zoo.trained import FOLDER
from tests.oracles.noisy_votes import votes
from tests.training.planted import build_planted, known_numbers

MARKS = {"llama": (), "gpt2": pytest.mark.full}
SHAPES = [pytest.param(shape, marks=marks) for shape, marks in MARKS.items()]
NAMES = tuple(ld.zoo.PLANTED)
MODELS = [pytest.param(n, shape, id=f"{n}-{shape}", marks=marks) for n in NAMES for shape, marks in MARKS.items()]
CLOSE = 1e-9


@cache
def planted(name, shape="llama"):
    """What the builder makes; the tests below hold for it, and what ships equals it."""
    return build_planted(name, shape)


@cache
def taken_apart(name, shape, unit):
    """(all components, the members alone)."""
    p = planted(name, shape)
    c = ld.contributions(p, p.task.prompts, p.task.shared_options, unit=unit)
    return c, c.select(label=p.members(unit))


def entropy(rows):
    """Of the rows' own distribution, in bits."""
    counts = np.unique(rows, axis=0, return_counts=True)[1] / len(rows)
    return -(counts * np.log2(counts)).sum()


def given(entropy_of, rows, labels):
    return sum((labels == y).mean() * entropy_of(rows[labels == y]) for y in np.unique(labels))


@pytest.mark.parametrize("name", NAMES)
def test_what_ships_is_what_the_builder_makes(name):
    """Every weight to the bit (bfloat16 holds them), the prompts, options and labels, and every known number."""
    shipped, built = ld.zoo.planted(name), planted(name)
    weights, made = shipped.model.state_dict(), built.model.state_dict()
    assert weights.keys() == made.keys()
    for key, value in made.items():
        assert weights[key].dtype == torch.float64
        assert torch.equal(weights[key], value.to(torch.bfloat16).double()), key
    assert json.loads((FOLDER / f"planted-{name}" / "known.json").read_text(encoding="utf-8")) == known_numbers(built)
    assert (shipped.task.prompts, shipped.task.shared_options, shipped.components) == (
        built.task.prompts,
        built.task.shared_options,
        built.components,
    )
    assert shipped.tokenizer.get_vocab() == built.tokenizer.get_vocab()
    np.testing.assert_array_equal(shipped.task.labels, built.task.labels)
    np.testing.assert_equal(dict(shipped.expected), dict(built.expected))
    ids = torch.tensor(shipped.tokenizer(list(shipped.task.prompts[:128]))["input_ids"])
    with torch.no_grad():
        assert torch.equal(shipped.model(ids).logits, built.model(ids).logits)


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_the_model_says_what_the_words_say(name, shape):
    """A plain forward pass gives, over the whole vocabulary, the sum of what the members must write."""
    p = planted(name, shape)
    ids = torch.tensor(p.tokenizer(list(p.task.prompts[:128]))["input_ids"])
    with torch.no_grad():
        logits = p.model(ids).logits[:, -1]
    assert logits.dtype == torch.float64
    np.testing.assert_allclose(logits.numpy(), p.over_vocabulary[:128].sum(1), atol=CLOSE)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "shape", "unit"),
    # The voters' rows are many, and with one head a layer their heads are their sublayers.
    [
        pytest.param(n, s, u, marks=MARKS[s])
        for n, s, u in product(NAMES, MARKS, ("sublayer", "head"))
        if (n, u) != ("votes", "head")
    ],
)
def test_members_contribute_what_was_planted_and_all_others_nothing(name, shape, unit):
    """Contributions are the closed form, exactly."""
    p, (c, members) = planted(name, shape), taken_apart(name, shape, unit)
    assert [x.label for x in members.components] == list(p.members(unit))
    np.testing.assert_allclose(members.values, p.values, atol=CLOSE)
    others = c.select(label=[x.label for x in c.components if x.label not in p.members(unit)])
    assert np.abs(others.values).max() <= CLOSE
    assert c.identity_gap <= CLOSE


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_measures_are_the_closed_forms(name, shape):
    """Bias, diversity, their halves, net, cosine and accuracy of the members, to 1e-9."""
    p, (_, members) = planted(name, shape), taken_apart(name, shape, "sublayer")
    for gauge, suffix in (("raw", ""), ("centered", "_centered"), ("shift", "_shift")):
        d = ld.decompose(members, p.task.labels, gauge=gauge)
        for term in ("bias", "diversity", "loss"):
            assert getattr(d, term) == pytest.approx(p.expected[term + suffix], abs=CLOSE), term + suffix
        table = d.by_component()
        for term in ("bias", "diversity"):
            known = np.array(p.per_member[term if gauge == "raw" else f"{term}_shift"])
            known = np.array(p.per_member[term]) - known if gauge == "centered" else known
            np.testing.assert_allclose(table[term], known, atol=CLOSE, err_msg=f"{term} {gauge}")
    d = ld.decompose(members, p.task.labels, gauge="raw")
    for term in ("diversity_logit", "accuracy"):
        assert getattr(d, term) == pytest.approx(p.expected[term], abs=CLOSE), term
    assert d.by_component()["accuracy"].mean() == pytest.approx(p.expected["member_accuracy"], abs=CLOSE)
    for gauge, column in (("raw", "cosine"), ("centered", "cosine_centered")):
        pairs = ld.decompose(members, p.task.labels, gauge=gauge).pairwise()
        pair = pairs[pairs[["component", "other"]].isin(p.members()[:2]).all(axis=1)]
        assert pair["cosine"].item() == pytest.approx(p.expected[column], abs=CLOSE, nan_ok=True), column


@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_are_those_of_all_cases(name):
    """Second source: the same numbers counted over the rows, in which every case stands as often as it is likely."""
    p = planted(name)
    u, t = p.values, np.eye(len(p.task.shared_options))[p.task.labels]
    mean = u.mean(1, keepdims=True)
    bias, diversity = ((t[:, None] - u) ** 2).mean((0, 2)), ((mean - u) ** 2).mean((0, 2))
    np.testing.assert_allclose(p.per_member["bias"], bias, atol=1e-12)
    np.testing.assert_allclose(p.per_member["diversity"], diversity, atol=1e-12)
    assert p.expected["loss"] == pytest.approx(((t - mean[:, 0]) ** 2).mean(), abs=1e-12)
    votes = u.argmax(2)
    apart, apart_given = (
        sum(of(votes[:, [m]]) for m in range(votes.shape[1]))
        for of in (entropy, lambda column: given(entropy, column, p.task.labels))
    )
    whole, whole_given = entropy(votes), given(entropy, votes, p.task.labels)
    assert p.expected["relevancy"] == pytest.approx(apart - apart_given, abs=1e-9)
    assert p.expected["redundancy"] == pytest.approx(apart - whole, abs=1e-9)
    assert p.expected["conditional_redundancy"] == pytest.approx(apart_given - whole_given, abs=1e-9)
    assert p.expected["joint"] == pytest.approx(whole - whole_given, abs=1e-9)
    assert p.expected["information_diversity"] == pytest.approx(p.expected["joint"] - p.expected["relevancy"])


def test_pairs_of_equal_members_differ_in_what_they_are_together():
    """Independent, copied, complementary: the same bias, the same accuracy alone; not the same together."""
    pairs = [planted(name).expected for name in ("independent", "copied", "complementary")]
    for term in ("bias", "member_accuracy"):
        assert len({pair[term] for pair in pairs}) == 1
    assert [pair["diversity"] for pair in pairs] == [1 / 8, 0, 1 / 8]
    assert [pair["cosine"] for pair in pairs] == [1 / 2, 1, 0]
    assert [pair["accuracy"] for pair in pairs] == [3 / 4, 3 / 4, 1]
    assert [round(pair["joint"], 3) for pair in pairs] == [0.5, 0.189, 1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_voters_repeat_votes_that_were_never_planted(shape):
    """On rows drawn from another law, contributions are `Votes.values`."""
    p, law = planted("votes", shape), votes(40, members=5, right=0.6)
    rows = [", ".join(COLORS[vote] for vote in row) for row in law.votes]
    asked = votes_task("votes", rows, law.labels, 2)
    c = ld.contributions(p, asked.prompts, asked.options).select(label=p.members())
    np.testing.assert_allclose(c.values, law.values, atol=CLOSE)
    assert p.task.shared_options == asked.options


@pytest.mark.parametrize("unit", ["sublayer", "head"])
@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_profile_is_the_closed_form_over_the_vocabulary(name, shape, unit):
    """At a prompt's last token: Theorem 1 over all ids, of what the words make the members write."""
    p, rows = planted(name, shape), 16
    texts = [
        prompt + p.task.shared_options[y] for prompt, y in zip(p.task.prompts[:rows], p.task.labels[:rows], strict=True)
    ]
    raw, shift = (ld.profile(p, texts, unit=unit, gauge=gauge) for gauge in ("raw", "shift"))
    found = raw
    at = np.flatnonzero(np.isnan(found.losses)) - 1
    labels = [c.label for c in found.components]
    u = np.zeros((rows, len(labels), found.vocabulary))
    u[:, [labels.index(label) for label in p.members(unit)]] = p.over_vocabulary[:rows]
    gold = np.array([p.tokenizer.convert_tokens_to_ids(p.task.shared_options[y]) for y in p.task.labels[:rows]])
    t, mean = np.eye(found.vocabulary)[gold], u.mean(1, keepdims=True)
    np.testing.assert_allclose(found.bias[:, at].T, ((t[:, None] - u) ** 2).mean(2), atol=CLOSE)
    np.testing.assert_allclose(found.diversity[:, at].T, ((mean - u) ** 2).mean(2), atol=CLOSE)
    np.testing.assert_allclose(shift.diversity[:, at].T, (mean - u).mean(2) ** 2, atol=CLOSE)
    np.testing.assert_allclose(found.target_logit[:, at].T, u[np.arange(rows), :, gold], atol=CLOSE)
    logits = u.sum(1)
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(rows), gold]
    np.testing.assert_allclose(found.losses[at], loss, atol=CLOSE)


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_skipping_a_layer_takes_out_what_it_wrote(name, shape):
    """The answers move as the closed form says; what undoes a head that is skipped writes nothing, either."""
    p, rows = planted(name, shape), 16
    found = ld.depth.skip(p, list(p.task.prompts[:rows]))
    last = found.places["position"] == found.places["position"].max()
    z = p.over_vocabulary[:rows]
    for layer in range(len(found.components)):
        gone = [c.layer == layer for c in p.components]
        if name == "undo" and layer == 0:
            gone[1] = True
        less = z[:, ~np.array(gone)].sum(1)
        moved = np.linalg.norm(softmax(z.sum(1)) - softmax(less), axis=1)
        np.testing.assert_allclose(found.values["output_change"][last][:, layer], moved, atol=1e-6)  # kept in float32


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shift_moves_no_probability_and_an_undone_write_none_with_its_undoing(shape):
    """Skipping the layer of the shift, or the head and so its undoing, changes the softmax by 0; others do not."""
    shift, undo = (
        ld.depth.skip(planted(n, shape), list(planted(n, shape).task.prompts[:4])) for n in ("shift", "undo")
    )
    assert shift.values["output_change"][:, 1].max() < 1e-15 < shift.values["output_change"][:, 0].max()
    assert undo.values["output_change"][:, 0].max() < 1e-15 < 1e-3 < undo.values["output_change"][:, 1].max()
    # The MLP's whole write is gone where the head is: it undoes and does nothing else.
    assert undo.by_pair()["change_max"].iloc[0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_direct_effect_of_an_undone_write_is_all_of_it(shape):
    """Taken out of the final stream alone, a leaves b − a, in a stream whose mean square grew from 1 to 1 + 4/96."""
    p, rows = planted("undo", shape), 16
    found = ld.depth.skip(p, list(p.task.prompts[:rows]), mode="local")
    a, _, b = np.moveaxis(p.over_vocabulary[:rows], 1, 0)
    moved = np.linalg.norm(softmax(b) - softmax((b - a) / np.sqrt(1 + 4 / 96)), axis=1)
    np.testing.assert_allclose(
        found.values["output_change"][found.places["position"] == found.places["position"].max()][:, 0],
        moved,
        atol=1e-6,
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["copied", "together", "shift", "undo"])
def test_what_adds_nothing_to_a_logit_is_not_held_against_its_rounding(name):
    """Read where nothing is written, options say the same; LayerNorm's centring then leaves rounding where 0 was."""
    p = build_planted(name, "gpt2")
    p.model.lm_head.weight.clamp_(min=0)
    c = ld.contributions(p, p.task.prompts, p.task.shared_options, unit="head").select(label=p.members("head"))
    np.testing.assert_allclose(c.values, p.values, atol=CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_neuron_undoes_one_option(shape):
    """At unit neuron, L1.Nk writes −1 to option k where the head voted for it, and 0 elsewhere."""
    p = planted("undo", shape)
    c = ld.contributions(p, p.task.prompts, p.task.shared_options, unit="neuron")
    votes = p.values[:, 0]
    for k in range(2):
        expected = -votes * (np.arange(2) == k)
        np.testing.assert_allclose(c.select(label=f"L1.N{k}").values[:, 0], expected, atol=CLOSE)
    assert np.abs(c.select(kind="neuron", layer=1, index=(2, 3)).values).max() <= CLOSE


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_every_text_leaves_the_norms_alone(name, shape):
    """Of any words, at any token: heads still write whole numbers."""
    p, rng = planted(name, shape), np.random.default_rng(1)
    texts = [rng.integers(len(p.tokenizer), size=length).tolist() for length in (1, 2, 7, 19, 31, 32)]
    for place in (0, -1):
        c = ld.contributions(p, texts, p.task.shared_options, unit="head", position=place)
        np.testing.assert_allclose(c.values, c.values.round(), atol=CLOSE)
        assert c.identity_gap <= CLOSE


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_attention_is_one_hot_in_float32_too(name, shape):
    """Eager attention, which computes its softmax in float32, gives the same, and every head one token's weight."""
    p = build_planted(name, shape)
    p.model.set_attn_implementation("eager")
    ids = torch.tensor(p.tokenizer(list(p.task.prompts[:8]))["input_ids"])
    with torch.no_grad():
        out = p.model(ids, output_attentions=True)
    np.testing.assert_allclose(out.logits[:, -1].numpy(), p.over_vocabulary[:8].sum(1), atol=CLOSE)
    for component in p.components:
        if component.kind == "head":
            weights = out.attentions[component.layer][:, component.index].numpy()
            np.testing.assert_array_equal(weights.max(-1), 1)
            np.testing.assert_array_equal(np.sort(weights, -1)[..., :-1], 0)


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["copied", "undo"])
def test_in_float32_and_through_a_bridge(name, shape):
    """The same contributions from float32 weights, and from TransformerLens' own hook points."""
    from tests.model.test_bridge import boot

    p = planted(name, shape)
    ids = p.tokenizer(list(p.task.prompts))["input_ids"]
    options = p.tokenizer.convert_tokens_to_ids(list(p.task.shared_options))
    single = ld.load_model(p.model, tokenizer=p.tokenizer, dtype="float32")
    bridged = boot(build_planted(name, shape).model, p.tokenizer)
    for model in (single, bridged):
        c = ld.contributions(model, ids, options, unit="head").select(label=p.members("head"))
        np.testing.assert_allclose(c.values, p.values, atol=1e-6)


def test_planted_models_are_models():
    """`load_model` takes one as it is, or by its zoo name, with its tokenizer; text comes back as it was."""
    p = ld.zoo.planted("together")
    for x, name in ((p, "planted-together"), ("zoo/planted-together", "zoo/planted-together")):
        model = ld.load_model(x)
        assert (model.name, model.provenance["dtype"]) == (name, "float64")
        assert model.tokenizer.decode(model.tokenizer(p.task.prompts[0])["input_ids"]) == p.task.prompts[0]
    assert ld.load_model(p).root is p.model
    assert ld.load_model("zoo/planted-together").provenance["source"] == "zoo/planted-together"


@pytest.mark.parametrize("load", [ld.zoo.planted, lambda name: ld.load_model(f"zoo/planted-{name}")])
def test_a_name_that_does_not_exist_is_answered_with_those_that_do(load):
    with pytest.raises(ld.InputError, match="choose among"):
        load("copy")
