"""What removing a sublayer does, and plans of what to drop: against plain forward passes with one hook a removal."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import layerdiv_tl as ld
from layerdiv_tl.depth.residual_norms import block_influence
from layerdiv_tl.ensemble.intervals import jackknife, wilson
from tests.conftest import close, llama, tied, unrolled
from tests.oracles import brute_force_ensemble as brute
from tests.oracles.families import FAMILIES
from tests.oracles.hooked_forward import layout_of, trace
from tests.oracles.published_depth_rules import residual_norms
from tests.oracles.tokenizers import word_tokenizer

VOCAB = 61
PLACES = {"attn": "attention", "mlp": "mlp", "layer": "layer"}
PARTS = {"sublayer": ("attn", "mlp"), "layer": ("layer",), "attn": ("attn",), "mlp": ("mlp",)}


def texts(count, longest=9, seed=0, vocabulary=VOCAB):
    """Texts of three or more tokens, of every length in turn."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, 3 + i % (longest - 2)).tolist() for i in range(count)]


def asked(rows, options, labels, name="made"):
    """A task whose prompts are these token ids, written as words."""
    prompts = tuple(" ".join(f"w{i}" for i in row) for row in rows)
    return ld.Task(
        name=name,
        prompts=prompts,
        options=tuple(f" w{i}" for i in options),
        labels=np.asarray(labels),
        template="{text}",
        source="made here",
        license="CC0-1.0",
    )


def names_of(root, part):
    return [f"L{i}.{kind}" for i in range(len(layout_of(root).layers)) for kind in PARTS[part]]


def answers(root, rows, task=None, gone=()):
    """`[row]` each: sum of cross-entropies, of right answers, and number of answers, without some parts."""
    edits = {
        (PLACES[kind], int(layer[1:])): lambda value, read, kind=kind: read if kind == "layer" else 0.0 * value
        for layer, kind in (label.split(".") for label in gone)
    }
    loss, right, count = [], [], []
    for number, row in enumerate(rows):
        logits = trace(root, row, edits).logits
        if task is None:
            logits, target = logits[:-1], torch.tensor(row[1:])
        else:
            options = [int(option.strip()[1:]) for option in task.options]
            logits, target = logits[-1:, options], torch.tensor([int(task.labels[number])])
        loss.append(cross_entropy(logits, target, reduction="sum").item())
        right.append((logits.argmax(-1) == target).sum().item())
        count.append(len(target))
    return np.array(loss), np.array(right, dtype=float), np.array(count, dtype=float)


def effects(root, rows, task, part):
    """{quantity: what each removal costs per answer}, one removal at a time."""
    clean, clean_right, count = answers(root, rows, task)
    found = {"loss": [], "accuracy": []}
    for label in names_of(root, part):
        loss, right, _ = answers(root, rows, task, [label])
        found["loss"].append((loss - clean).sum() / count.sum())
        found["accuracy"].append((clean_right - right).sum() / count.sum())
    return found


def sizes_of(root, row, part):
    """{quantity: [token, component]} from the hidden states and what the modules write."""
    rule = residual_norms(root, row, hasattr(root, "gpt_neox"))
    of_parts = {name: [rule[f"{name} {PLACES[kind]}"] for kind in PARTS[part]] for name in ("relative", "io")}
    by_layer = {name: np.stack(x, 1).reshape(-1, len(row)).T for name, x in of_parts.items()}
    return {"relative_norm": by_layer["relative"], "block_influence": 1 - by_layer["io"]}


def direct(root, model, rows, task, part):
    """{quantity: [component]}: sizes from the hidden states; of a task contribution, diversity and net in loops."""
    of_rows = [sizes_of(root, row, part) for row in rows]
    found = {name: np.concatenate([one[name] for one in of_rows]).mean(0) for name in of_rows[0]}
    if task is None:
        return found
    options = [int(option.strip()[1:]) for option in task.options]
    c = ld.contributions(model, rows, options)
    target = np.eye(len(options))[task.labels]
    squared, nats = brute.squared(c.values, target), brute.cross_entropy(c.values, target)
    names = [f"L{x.layer}.{x.kind if part == 'sublayer' else 'layer'}" for x in c.components]
    members = np.array([[name == label for name in names] for label in names_of(root, part)])
    found["diversity"] = members @ squared.centered.member_diversity / squared.centered.member_diversity.sum()
    weights = np.where(target > 0, 1.0, -1.0 / (len(options) - 1))
    found["contribution"] = members @ np.einsum("emo,eo->em", c.values, weights).mean(0)
    return found | {"net": members @ nats.member_net_linear}


@pytest.fixture(scope="module", params=["gpt2", "neox_parallel", "gemma2", "qwen3", "stories"])
def case(request):
    """(model, its Hugging Face model, rows as ids, task of the same rows)."""
    if request.param == "stories":  # where layers do something
        model, rows = request.getfixturevalue("stories"), texts(5, vocabulary=500)
        model = ld.load_model(model.root, tokenizer=word_tokenizer(500))
    else:
        model, rows = ld.load_model(FAMILIES[request.param](), tokenizer=word_tokenizer()), texts(10)
    return model, model.root, rows, asked(rows, [7, 11, 30], np.arange(len(rows)) % 3)


@pytest.mark.full
@pytest.mark.parametrize("part", ["sublayer", "layer"])
@pytest.mark.parametrize("of", ["texts", "task"])
def test_scores_and_direct_measures(case, part, of):
    """A score is what one plain pass without that module costs; direct measures are those of loops.

    All are of the rows that score.
    """
    model, root, rows, task = case
    if root.config.vocab_size == VOCAB:
        rows, task = rows[:6], asked(rows[:6], [7, 11, 30], [0, 1, 2, 0, 1, 2])
    plan = ld.depth.drop_plan(model, rows if of == "texts" else task, 1, "loss", part, random=0)
    order = np.random.default_rng([0, 0]).permutation(len(rows)).tolist()
    scored = sorted(order[: max(1, round(0.5 * len(rows)))])
    some = [rows[i] for i in scored]
    of_task = None if of == "texts" else asked(some, [7, 11, 30], task.labels[scored])
    frame = plan.frame().set_index("component").loc[names_of(root, part)]
    close(frame["score"], effects(root, some, of_task, part)["loss"])
    assert (plan.frame()["order"].notna() == [c in plan.dropped for c in plan.candidates]).all()
    if root.config.vocab_size == VOCAB:
        for name, wanted in direct(root, model, some, of_task, part).items():
            close(frame[name], wanted, 2e-5)
    assert ("net" in frame) == (of == "task")


def test_a_layer_is_the_sum_of_its_sublayers():
    """Shares of diversity and contributions add from sublayers to layers, row by row; scores by ablation do not."""
    model = ld.load_model(FAMILIES["gpt2"](), tokenizer=word_tokenizer())
    task = asked(texts(6), [7, 11, 30], [0, 1, 2] * 2)
    fine, coarse = (ld.depth.drop_plan(model, task, 1, "loss", part, random=0) for part in ("sublayer", "layer"))
    for name in ("diversity", "contribution"):
        a, b = (plan.measures[name][0] for plan in (fine, coarse))
        close(a.reshape(len(a), -1, 2).sum(2), b, 1e-9)
    assert not np.allclose(fine.scores.reshape(-1, 2).sum(1), coarse.scores, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_influences_keep_their_digits(dtype):
    """A layer of which the writes are a hundred-thousandth of the stream has an influence of 1e-10, not 0 or noise."""
    root = llama()
    with torch.no_grad():
        for module in (root.model.layers[1].self_attn.o_proj, root.model.layers[1].mlp.down_proj):
            module.weight *= 1e-4
    double = root.to(dtype).double()
    wanted = np.concatenate([sizes_of(double, row, "attn")["block_influence"] for row in texts(4)])[:, 1]
    sizes = ld.depth.residual_norms(ld.load_model(root.to(dtype)), texts(4))
    here = [c.label for c in sizes.components].index("L1.attn")
    assert wanted.max() < 1e-6
    np.testing.assert_allclose(
        sizes.values["block_influence"][:, here], wanted, rtol=1e-3 if dtype is torch.float32 else 0.2
    )


def test_influence_of_a_write_that_turns_the_stream_round_is_two():
    """1 − cos is 0 for a write along the stream, 1 at a right angle, 2 against it; never below or beyond."""
    relative = np.array([0.5, 2.0, 2.0, 1.0, 0.5], dtype=np.float32)
    cosine = np.array([1.0, -1.0, -0.5, 0.0, -1.0], dtype=np.float32)
    close(block_influence(relative, cosine), [0, 2, 1, 1 - 2**-0.5, 0], 1e-7)


LENGTHS = [np.random.default_rng(7 + n).integers(3, VOCAB, n).tolist() for n in range(3, 19)]


def halves(plan, rows):
    """(scoring rows, measured rows): texts of different lengths are known by how many answers they gave."""
    measured = [next(i for i, row in enumerate(rows) if len(row) - 1 == count) for count in plan.count]
    return [i for i in range(len(rows)) if i not in measured], measured


@pytest.mark.full
@pytest.mark.parametrize("part", ["layer", "attn", "mlp", "sublayer"])
@pytest.mark.parametrize("family", ["llama", pytest.param("neox_parallel", marks=pytest.mark.nightly)])
def test_a_plan_scores_on_some_rows_and_measures_on_others(family, part):
    """Scores by brute force on the rows that were not measured; every column a pass without so many at once."""
    root = llama(2, num_hidden_layers=4) if family == "llama" else FAMILIES[family]()
    plan = ld.depth.drop_plan(ld.load_model(root), LENGTHS, 2, part=part, random=3, seed=5)
    scored, measured = halves(plan, LENGTHS)
    assert len(set(measured)) == len(plan.count) == plan.provenance["rows"]["measured"]
    assert len(scored) == plan.provenance["rows"]["scored"] == len(LENGTHS) // 2
    labels = [c.label for c in plan.candidates]
    scores = dict(
        zip(names_of(root, part), effects(root, [LENGTHS[i] for i in scored], None, part)["loss"], strict=True)
    )
    every = dict(zip(names_of(root, part), effects(root, LENGTHS, None, part)["loss"], strict=True))
    assert set(labels) == set(scores)
    close(plan.scores, [scores[label] for label in labels])
    assert not np.allclose(plan.scores, [every[label] for label in labels], atol=1e-4)
    assert [c.label for c in plan.dropped] == sorted(labels, key=scores.__getitem__)[:2]
    bent = np.concatenate([sizes_of(root, LENGTHS[i], part)["block_influence"] for i in scored]).mean(0)
    bent = dict(zip(names_of(root, part), bent, strict=True))
    assert [c.label for c in plan.plans["block_influence"]] == sorted(labels, key=bent.__getitem__)[:2]
    assert plan.loss.shape == plan.correct.shape == (len(measured), 1 + 2 + 2 + 3)
    sets = [(), *(p[:k] for p in (plan.dropped, plan.plans["block_influence"]) for k in (1, 2)), *plan.random_dropped]
    for column, gone in enumerate(sets):
        loss, right, count = answers(root, [LENGTHS[i] for i in measured], None, [c.label for c in gone])
        close(plan.loss[:, column], loss, 2e-5)
        close(plan.correct[:, column], right)
        close(plan.count, count)
    for gone in plan.random_dropped:
        assert len(set(gone)) == 2
        assert set(gone) <= set(plan.candidates)


def test_options_that_are_no_single_tokens_are_refused():
    """Long, equal or unknown ones."""
    model = ld.load_model(llama(), tokenizer=word_tokenizer())
    task = asked(LENGTHS, [7, 8], np.arange(len(LENGTHS)) % 2)
    long = replace(task, options=(" w7 w9", " w8 w9"))
    for options, about in (
        (long.options, "token"),
        ((" w7", " w7"), "same token"),
        ((" unheard", " of"), "same token"),
    ):
        with pytest.raises(ld.InputError, match=about):
            ld.depth.drop_plan(model, replace(task, options=options), 1)


@pytest.fixture(scope="module")
def plan():
    return ld.depth.drop_plan(ld.load_model(llama(2, num_hidden_layers=4)), LENGTHS, 2, random=5)


def test_frames_of_a_plan_are_those_of_its_arrays(plan):
    """Means per answer of every plan and size, growth against none on the same rows; random plans pooled."""
    frame = plan.by_size()
    assert frame.plan.tolist() == ["none", "plan", "plan", "block_influence", "block_influence", "random"]
    assert frame.dropped.tolist() == [0, 1, 2, 1, 2, 2]
    loss, right = plan.loss.sum(0) / plan.count.sum(), plan.correct.sum(0) / plan.count.sum()
    pooled = [*loss[:5], loss[5:].mean()]
    close(frame.loss, pooled, 1e-12)
    close(frame.loss_growth, np.array(pooled) - loss[0], 1e-12)
    close(frame.accuracy, [*right[:5], right[5:].mean()], 1e-12)
    close(frame.accuracy_lost, right[0] - np.array([*right[:5], right[5:].mean()]), 1e-12)
    close(frame[["loss_low", "loss_high"]].iloc[-1], np.quantile(loss[5:], [0.025, 0.975]), 1e-9)
    for name in ("loss", "accuracy", "loss_growth", "accuracy_lost"):
        assert (frame[f"{name}_low"] <= frame[f"{name}_high"]).all()
    close(frame.loc[0, ["loss_growth", "loss_growth_low", "loss_growth_high"]].astype(float), 0, 1e-12)


def test_against_is_the_difference_on_the_same_rows(plan):
    """This plan's loss and accuracy less the others', and the share of random plans that lose more."""
    rows = plan.compare().set_index("other")
    loss, right = plan.loss.sum(0) / plan.count.sum(), plan.correct.sum(0) / plan.count.sum()
    close(rows.loss["block_influence"], loss[2] - loss[4], 1e-12)
    close(rows.loss["random"], loss[2] - loss[5:].mean(), 1e-12)
    close(rows.accuracy["block_influence"], right[2] - right[4], 1e-12)
    close(rows.accuracy["random"], right[2] - right[5:].mean(), 1e-12)
    close(rows.win_rate["random"], (loss[5:] > loss[2]).mean(), 1e-12)
    assert (rows.loss_low <= rows.loss).all()
    assert (rows.loss <= rows.loss_high).all()
    diff = plan.loss[:, 2] - plan.loss[:, 4]
    left_out = [np.delete(diff, i).sum() / np.delete(plan.count, i).sum() for i in range(len(diff))]
    by_hand = jackknife(diff.sum() / plan.count.sum(), np.array(left_out))
    close(rows.loc["block_influence", ["loss_low", "loss_high"]].astype(float), by_hand, 1e-9)
    # Rows on which both are as right are no proof that others are: accuracies differ by up to what one row may.
    assert (rows.accuracy_low < rows.accuracy).all()
    assert (rows.accuracy < rows.accuracy_high).all()


def test_equal_plans_lose_as_much(plan):
    """Random plans that happen to be the plan win none, whatever the order of a sum."""
    for seed in range(20):
        lost = np.random.default_rng(seed).exponential(size=(157, 1)).repeat(10, 1)
        same = replace(plan, loss=lost, correct=np.zeros_like(lost), count=np.ones(157), random_dropped=())
        assert (same.compare().win_rate == 0).all()


def test_own_scores_drop_the_smallest_first():
    """Of equal ones the first in stream order."""
    scores = {f"L{i}.layer": 1.0 for i in range(3)}
    plan = ld.depth.drop_plan(ld.load_model(llama()), LENGTHS, 2, scores, random=1)
    assert [c.label for c in plan.dropped] == ["L0.layer", "L1.layer"]
    assert plan.score == "given"
    assert plan.frame()["order"].fillna(0).tolist() == [1, 2, 0]


@pytest.mark.full
@pytest.mark.parametrize("score", ["contribution", "diversity", "net", "relative_norm", "block_influence"])
def test_every_quantity_can_score(score):
    """What is least needed by a quantity goes first: the largest net, and else the smallest."""
    model = ld.load_model(llama(num_hidden_layers=4), tokenizer=word_tokenizer())
    task = asked(LENGTHS, [7, 11], np.arange(len(LENGTHS)) % 2)
    plan = ld.depth.drop_plan(model, task, 2, score, "sublayer", random=1)
    frame = plan.frame()
    close(plan.scores, -frame[score] if score == "net" else frame[score].abs(), 1e-9)
    order = frame["score"].argsort(kind="stable")
    assert [c.label for c in plan.dropped] == frame.component[order].tolist()[:2]


def test_rows_that_are_drawn_follow_the_seed(plan):
    """The same seed gives the same plan, another seed other rows or other random plans."""
    model = ld.load_model(llama(2, num_hidden_layers=4))
    again, other = (ld.depth.drop_plan(model, LENGTHS, 2, random=5, seed=seed) for seed in (0, 1))
    assert again.random_dropped == plan.random_dropped
    assert (again.loss == plan.loss).all()
    assert set(other.count) != set(plan.count)
    assert other.random_dropped != plan.random_dropped


@pytest.mark.full
def test_uses_of_a_reused_layer_go_one_by_one():
    """A block listed twice: its uses are removed apart, and the frame names them."""
    root = tied(0, 1, 0)
    scores = {"L0@1.layer": 3, "L1.layer": 2, "L0@2.layer": 1}
    plan = ld.depth.drop_plan(root, LENGTHS, 1, scores, random=1)
    apart = ld.depth.drop_plan(unrolled(root), LENGTHS, 1, {"L0.layer": 3, "L1.layer": 2, "L2.layer": 1}, random=1)
    assert [c.label for c in plan.dropped] == ["L0@2.layer"]
    close(plan.loss[:, :2], apart.loss[:, :2])
    assert plan.frame().component.tolist() == ["L0@1.layer", "L1.layer", "L0@2.layer"]


@pytest.mark.full
def test_half_precision_agrees_with_itself_in_plain_passes():
    """In bfloat16 the effects are those of the bfloat16 model, up to its own rounding."""
    root = llama().bfloat16()
    plan = ld.depth.drop_plan(ld.load_model(root), LENGTHS, 1, "loss", "sublayer", random=0)
    scored, _ = halves(plan, LENGTHS)
    wanted = effects(root, [LENGTHS[i] for i in scored], None, "sublayer")
    close(plan.frame().set_index("component").loc[names_of(root, "sublayer"), "score"], wanted["loss"], 0.03)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"n_drop": 0}, "n_drop=0"),
        ({"n_drop": 3}, "n_drop=3"),
        ({"score": "size"}, "score='size'"),
        ({"part": "neuron"}, "part='neuron'"),
        ({"score": "contribution"}, "score='contribution'"),
        ({"rows": LENGTHS[:1]}, "at least two"),
    ],
)
def test_what_gives_no_plan_is_refused(wrong, match):
    with pytest.raises(ld.InputError, match=match):
        ld.depth.drop_plan(llama(), **({"rows": LENGTHS, "n_drop": 1} | wrong))


def test_one_row_and_one_layer():
    """One measured row has a loss, whose intervals are NaN; a plan leaves something."""
    small = ld.load_model(llama(num_hidden_layers=1))
    with pytest.raises(ld.InputError, match="part"):
        ld.depth.drop_plan(small, LENGTHS, 1)
    assert len(ld.depth.drop_plan(small, LENGTHS, 1, part="sublayer", random=1).candidates) == 2
    plan = ld.depth.drop_plan(ld.load_model(llama()), LENGTHS[:2], 1, random=3)
    assert len(plan.count) == 1
    assert np.isfinite(plan.by_size().loss).all()
    assert plan.by_size().loss_low[:3].isna().all()
    assert plan.compare()[["loss_low", "loss_high"]].isna().all(axis=None)


def test_shares_that_all_texts_agree_on_have_an_interval():
    """Overlap of the last junction (1), a plan's answers (1): 8 texts are 8 trials."""
    low, high = wilson(8, 8)
    lens = ld.depth.logit_lens(ld.load_model(llama()), LENGTHS[:8]).frame().iloc[-1]
    assert (lens.topk_overlap, lens.topk_overlap_low, lens.topk_overlap_high) == pytest.approx((1, low, high))
    plan = ld.depth.drop_plan(ld.load_model(llama()), LENGTHS, 1, random=0)
    count = np.full(8, 5.0)
    sure = replace(
        plan, correct=np.tile(count[:, None], plan.correct.shape[1]), loss=plan.loss[:8], count=count
    ).by_size()
    assert (sure.accuracy == 1).all()
    np.testing.assert_allclose(sure[["accuracy_low", "accuracy_high"]], [[low, high]] * len(sure))
