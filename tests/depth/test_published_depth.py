"""Every depth analysis against the released rules of arXiv 2505.13898, restated by plain hooks, in five architectures.

Both sides run the same float32 model and sum in float64: a batch of several texts may round otherwise than one text
alone, so numbers may differ by 2e-5 of the largest of their kind. They may by 1e-4 where there is more to round:
gradients, and what a layer adds to a first token's stream, which is a thousand times as long.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth import engine
from layerdiv_tl.depth.layer_maps import RIDGE
from layerdiv_tl.depth.skipping import CUTS
from tests.conftest import llama, pair_table
from tests.oracles import published_depth_rules as published
from tests.oracles.families import FAMILIES
from tests.oracles.hooked_forward import trace

TEXTS = [
    "Once upon a time there was a little girl who had a red ball and a big dog.",
    "Lily and Ben went to the park. They saw a cat on a tree and they were very happy to see it.",
]
IDS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3, 14, 15], [17, 11, 60, 0, 7]]
ASKED = [
    ("The capital of France is", " Paris", 1),
    ("Lily gave the ball to Ben, and Ben gave it to Tom. The ball is now with", " Tom.", 2),
    ("Seven minus three is", " four", 1),
]
ASKED_IDS = [
    ([5, 1, 4, 1, 5, 9, 2, 6], [8, 30, 11], 3),
    ([3, 14, 15, 9], [26], 1),
    ([17, 11, 60, 7], [5, 35], 1),
    ([2, 7, 18, 28, 18], [28], 2),
]
# The names here of what the released code skips.
PARTS = {"layer": "layer", "attn": "attention", "mlp": "mlp"}
MODELS = ["stories", "gpt2", "neox_parallel", "gemma2", "qwen3", pytest.param("smol", marks=pytest.mark.nightly)]
# Where every token and layer has a pass of its own the rules take minutes: a newcomer meets the trained model alone.
slow = pytest.mark.parametrize(
    "case",
    ["stories", *(pytest.param(name, marks=pytest.mark.full) for name in MODELS[1:5])],
    indirect=True,
)
on_stories = pytest.mark.parametrize("case", ["stories"], indirect=True)


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """(model, its Hugging Face model, the ids of the texts); of the default model one text, for it has 30 layers."""
    if request.param in FAMILIES:
        model = ld.load_model(FAMILIES[request.param]())
        return model, model.root, IDS
    model = request.getfixturevalue(request.param)
    ids = [model.tokenizer(text)["input_ids"] for text in TEXTS]
    return model, model.root, ids if request.param == "stories" else [ids[0][:14]]


def alike(found, wanted, tolerance=2e-5):
    """Equal up to a share of the largest number."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    assert found.shape == wanted.shape
    known = np.isfinite(found)
    assert (known == np.isfinite(wanted)).all()
    assert np.abs(found - wanted)[known].max() <= tolerance * np.abs(wanted[known]).max()


def is_parallel(model):
    """Whether an MLP reads the stream that its attention reads."""
    return any(writer.is_partial for writer in model.path.writers if writer.kind == "attn")


def later_only(table):
    """`[skipped, layer]` where the layer lies after the skipped one; the others are no effects here."""
    table = np.array(table, dtype=float)
    table[np.tril_indices(len(table))] = np.nan
    return table


def check_skips(found, text, rules):
    """All numbers of one text, whose rules (one for each cut) stand side by side."""
    rule = {name: np.concatenate([one[name] for one in rules], -1) for name in rules[0]}
    here = found.places["text"] == text
    change = pair_table(found)[here]
    alike(change.mean(0), later_only(rule["layers"].mean(-1)))
    alike(change.max(0), later_only(rule["layers"].max(-1)))
    alike(found.values["output_change"][here], rule["output_change"].T)
    if "loss" in rule and len(rules) == 1:
        alike(found.values["loss"][here], rule["loss"].T, 1e-4)


def test_sizes(case):
    """The released rules but for a parallel MLP, which adds to what its layer reads; 1 − cos is the influence."""
    model, root, ids = case
    found = ld.depth.residual_norms(model, ids)
    rules = [published.residual_norms(root, row, is_parallel(model)) for row in ids]
    rule = {name: np.concatenate([one[name] for one in rules], 1).T for name in rules[0]}
    frame = found.frame().set_index("component")
    for part, name in PARTS.items():
        here = [i for i, c in enumerate(found.components) if c.kind == part]
        labels = [found.components[i].label for i in here]
        assert labels == [f"L{i}.{part}" for i in range(len(here))]
        for ours, theirs in (("norm", "norm"), ("relative_norm", "relative"), ("cosine", "cosine")):
            table = rule[f"{theirs} {name}"]
            alike(found.values[ours][:, here], table, 1e-4)
            for column, wanted in (("", table.mean(0)), ("_max", table.max(0)), ("_median", np.median(table, 0))):
                alike(frame.loc[labels, ours + column], wanted)
        alike(1 - found.values["block_influence"][:, here], rule[f"io {name}"])


@pytest.mark.parametrize("first_token", ["kept", pytest.param("changed", marks=pytest.mark.full)])
@pytest.mark.parametrize("part", PARTS)
def test_current_skips(case, part, first_token):
    model, root, ids = case
    found = ld.depth.skip(model, ids, part, first_token=first_token)
    for text, row in enumerate(ids):
        check_skips(found, text, [published.skip_effects(root, row, PARTS[part], None, int(first_token == "kept"))])


@slow
@pytest.mark.parametrize(
    ("part", "first_token"), [("layer", "kept"), ("attn", "changed"), ("mlp", "kept"), ("layer", "changed")]
)
def test_future_skips(case, part, first_token):
    """Tokens up to a cut are skipped, and those from it on measured; of several cuts together."""
    model, root, ids = case
    begin = int(first_token == "kept")
    found = ld.depth.skip(model, ids, part, "future", first_token=first_token)
    for text, row in enumerate(ids):
        cuts = [min(max(1 + begin, round(len(row) * share)), len(row) - 1) for share in CUTS]
        check_skips(found, text, [published.skip_effects(root, row, PARTS[part], cut, begin) for cut in cuts])


@pytest.mark.parametrize(
    ("part", "first_token", "mode"),
    [
        ("layer", "kept", "local"),
        ("attn", "kept", "local"),
        ("mlp", "changed", "local"),
        ("layer", "kept", "future_local"),
    ],
)
def test_local_effects(case, part, first_token, mode):
    """Every later block sees its own clean stream minus the skipped write, whatever the others did."""
    model, root, ids = case
    found = ld.depth.skip(model, ids, part, mode, first_token=first_token)
    begin = int(first_token == "kept")
    for text, row in enumerate(ids):
        cuts = [None]
        if mode == "future_local":
            cuts = [min(max(1 + begin, round(len(row) * share)), len(row) - 1) for share in CUTS]
        check_skips(found, text, [published.direct_effects(root, row, PARTS[part], cut, begin) for cut in cuts])


@pytest.mark.parametrize("norm", ["recomputed", "frozen"])
def test_lens(case, norm):
    """At every junction; those of whole layers are what the released code reads out, in the mean over tokens."""
    model, root, ids = case
    found = ld.depth.logit_lens(model, ids, norm)
    rules = [published.logit_lens(root, row, 5, norm) for row in ids]
    labels = [c.label for c in found.components]
    for number, name in enumerate(("kl", "topk_overlap")):
        rule = {label: np.concatenate([one[label][number] for one in rules]) for label in rules[0]}
        rule[labels[0]] = rule["embed"]  # or the positions, where they are written after the embedding
        assert set(rule) - set(labels) <= {x for x in rule if x.endswith(".attn") or x == "embed"}
        assert is_parallel(model) or not set(rule) - set(labels) - {"embed"}
        alike(found.values[name], np.stack([rule[label] for label in labels], 1), 1e-4)
        text = found.places["text"]
        alike(found.frame()[name], np.mean([found.values[name][text == i].mean(0) for i in range(len(ids))], 0))


@slow
def test_erasure_where_answers_are_predicted(case):
    """One token at a time, overwritten by the mean where it enters a layer."""
    model, root, ids = case
    short = ids[0][:7]
    mean = published.mean_residuals(root, [short])
    found = ld.depth.erase(model, [short[:5]], answers=[short[5:]])
    for row, t in enumerate(found.places["position"]):
        for layer in range(found.values["output_change"].shape[1]):
            rule = published.erased(root, short, mean, layer, t, t + 1)[-3:-1]
            assert found.values["output_change"][row, layer] == pytest.approx(rule.mean(), rel=1e-4, abs=1e-6)
            assert found.values["largest_change"][row, layer] == pytest.approx(rule.max(), rel=1e-4, abs=1e-6)


@on_stories
def test_erasure_of_prefixes(case):
    """Of a prefix 1 to t − 1, measured after t: here the row of the last erased one."""
    model, root, ids = case
    short = ids[0][:7]
    mean = published.mean_residuals(root, [short])
    found = ld.depth.erase(model, [short], "prefix")
    for layer in range(found.values["output_change"].shape[1]):
        known = np.isfinite(found.values["largest_change"][:, layer])
        assert found.places["position"][known].tolist() == list(range(1, len(short) - 2))
        rule = [published.erased(root, short, mean, layer, 1, t)[t + 1 :].max() for t in range(2, len(short) - 1)]
        alike(found.values["largest_change"][known, layer], rule, 1e-4)


@slow
def test_integrated_gradients(case):
    """A loop over the same path."""
    model, root, ids = case
    found = ld.depth.integrated_gradients(model, [ids[0][:5]], answers=[ids[0][5:7]], steps=12)
    rule = published.integrated_gradients(root, ids[0][:7], 2, "layer", 12, "token_mean", "straight")
    assert np.abs(rule[:, -1]).max() <= 1e-9  # nothing reads the last token
    alike(found.values["attribution"], rule[:, :-1].T, 1e-4)


@pytest.fixture(scope="module")
def questions(case):
    """(what is asked, [(ids of question and answer, where the answer begins)])."""
    model, _, ids = case
    if ids is IDS:
        return ASKED_IDS, [([*question, *answer], len(question)) for question, answer, _ in ASKED_IDS]
    rows = [(model.tokenizer(text)["input_ids"], model.tokenizer(text + more)["input_ids"]) for text, more, _ in ASKED]
    assert all(whole[: len(text)] == text for text, whole in rows)
    return ASKED, [(whole, len(text)) for text, whole in rows]


def test_depth_score(case, questions):
    """Of a group the score of its mean effects; questions of different length in one batch."""
    model, root, _ = case
    asked, rows = questions
    found = ld.depth.depth_score(model, asked)
    effects = [published.skip_effects(root, ids, "layer", start)["output_change"].max(-1) for ids, start in rows]
    alike(found.effects, effects)
    for number, (ids, start) in enumerate(rows):
        p = trace(root, ids).probabilities[start - 1 : len(ids) - 1]
        gold = p[range(len(p)), ids[start:]]
        assert found.questions["probability"][number] == pytest.approx(float(gold.prod()), rel=1e-4)
        assert found.questions["rank"][number] == int((p >= gold[:, None]).sum(1).max())
    for row in found.frame().itertuples():
        some = [effect for effect, (*_, hops) in zip(effects, asked, strict=True) if hops == row.group]
        assert row.score == pytest.approx(published.depth_score(np.mean(some, 0)), rel=2e-5)


def test_linear_maps(stories):
    """Ridge regressions on the other texts."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(3, 500, 60).tolist() for _ in range(12)]
    other = ld.load_model(llama(vocab_size=512))
    found = ld.depth.map_layers(stories, other, ids)
    order = np.random.default_rng(0).permutation(12)
    fitted, held = ([ids[i] for i in sorted(some)] for some in (order[3:], order[:3]))
    rule = published.linear_maps(stories.root, other.root, fitted, held, RIDGE)[1:, 1:]
    frame = found.frame()
    assert np.abs(frame["error"].to_numpy().reshape(rule.shape) - rule).max() <= 1e-4 * rule.max()
    assert found.settings["fitted"] == 9 * 59
    assert frame[["error_low", "error_high"]].isna().all(axis=None)
    assert frame.attrs["intervals"].startswith("no intervals: 3 texts")


def test_sums_over_a_vocabulary_are_in_float64():
    """Of float32 logits, whatever is summed over 100 000 tokens is what numpy gives in float64, for all analyses.

    What is little off the answer is told to a millionth of itself, which float32 sums miss by a thousand times.
    """
    logits = torch.randn(5, 100_000, generator=torch.Generator().manual_seed(0)) * 3 + 7
    other = logits + 1e-2 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(5) * 17
    wide = logits.double().numpy()
    total = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    p, q = (x.double().softmax(-1).numpy() for x in (logits, other))
    rows = np.arange(5)
    change, growth = engine.softmax_change(logits, targets)(other)
    sums = {
        "cross-entropy": (engine.cross_entropy(logits, targets), total - wide[rows, targets]),
        "ablations": (engine.loss_and_hits(logits, targets)(logits)[0], total - wide[rows, targets]),
    }
    close_by = {
        "change of the softmax": (change, np.linalg.norm(q - p, axis=1)),
        "growth of the loss": (growth, np.log(p[rows, targets]) - np.log(q[rows, targets])),
        "divergence": (engine.divergence(other, engine.log_softmax(logits)), (q * (np.log(q) - np.log(p))).sum(1)),
    }
    for name, (found, expected) in (sums | close_by).items():
        np.testing.assert_allclose(found, expected, rtol=1e-12 if name in sums else 1e-8, atol=1e-13, err_msg=name)
