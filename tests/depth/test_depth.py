"""What all analyses of depth have in common, and their tables; their numbers are those of test_published_depth."""

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth.engine import ablation_patch
from layerdiv_tl.depth.patched_forward import PatchedForward
from layerdiv_tl.depth.readings import Readings
from layerdiv_tl.depth.residual_norms import change_point
from tests.conftest import close, gpt2, llama, pair_table
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.oracles.tokenizers import word_tokenizer

IDS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3, 14, 15], [17, 11, 60, 0, 7]]


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    "llama gpt_neo gptj opt bloom mpt falcon_alibi granite gemma3 mixtral gpt_oss llama4 zamba2".split(),
)
def test_resuming_is_the_same_as_running_every_block(name):
    """Blocks that return what they returned before change nothing: a patch may start at its block."""
    model = ld.load_model((FAMILIES | BY_STRUCTURE)[name]())
    with model.path.session(), torch.no_grad():
        clean = PatchedForward(model, IDS)
        for part in ("layer", "attn", "mlp"):
            for block in range(len(clean.layers)):
                for where in (None, clean.tokens & (torch.arange(11) % 2 == 1)):
                    instead, found = ablation_patch(clean, [clean.component(part, block)], where=where), []
                    for start in (0, block):
                        seen = []
                        final = clean.resume(
                            start, [clean.streams[start]], instead, see=lambda n, a, b, seen=seen: seen.append((n, b))
                        )
                        found.append([final, *(x for n, x in seen if n >= block)])
                    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_layer_that_writes_nothing_can_go():
    """Skipping a layer whose output projections are zero changes nothing anywhere."""
    root = llama()
    with torch.no_grad():
        root.model.layers[1].self_attn.o_proj.weight.zero_()
        root.model.layers[1].mlp.down_proj.weight.zero_()
    for mode in ("current", "future", "local"):
        found = ld.depth.skip(root, IDS, mode=mode)
        assert np.abs(found.values["output_change"][:, 1]).max() < 1e-7
        assert np.nanmax(np.abs(found.values["loss"][:, 1])) < 1e-6
        assert pair_table(found)[:, 1, 2].max() < 1e-7
        assert found.values["output_change"][:, 0].max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"span": "prefix"}])
def test_texts_may_be_longer_than_the_vocabulary(options):
    """No position is read as an id: texts of byte-level models have more tokens than there are ids."""
    row = [token % 7 for token in range(40)]
    found = ld.depth.erase(llama(vocab_size=7), [row], **options)
    assert np.isfinite(found.values["output_change"][1:-1]).all()


ASKED = [([5, 1, 4, 1, 5, 9, 2, 6], [8, 30, 11], 3), ([3, 14, 15, 9], [26], 1), ([17, 11, 60, 7], [5, 35], 1)]
HEADS = {"unit": "head", "components": ["L1.mlp", "L1.H2"]}
# Every analysis of a model, and the numbers of its result that others are compared with.
ANALYSES = {
    "residual_norms": (lambda m, **more: ld.depth.residual_norms(m, IDS, **more), "relative_norm"),
    "skip": (lambda m, **more: ld.depth.skip(m, IDS, "attn", **more), "output_change"),
    "local": (lambda m, **more: ld.depth.skip(m, IDS, "mlp", "local", **more), "loss"),
    "future": (lambda m, **more: ld.depth.skip(m, IDS, "layer", "future", **more), "output_change"),
    "logit_lens": (lambda m, **more: ld.depth.logit_lens(m, IDS, **more), "kl"),
    "erase": (lambda m, **more: ld.depth.erase(m, IDS, **more), "output_change"),
    "gradients": (lambda m, **more: ld.depth.integrated_gradients(m, IDS[:1], steps=8, **more), "attribution"),
    "map_layers": (lambda m, **more: ld.depth.map_layers(m, m, IDS, **more), "error"),
    "depth_score": (lambda m, **more: ld.depth.depth_score(m, ASKED, **more), "effects"),
    "drop_plan": (lambda m, **more: ld.depth.drop_plan(m, IDS, 1, "block_influence", "head", random=1, **more), "loss"),
    "effects": (lambda m, **more: ld.effects(m, IDS, [7, 9], [0, 1, 1], **HEADS, **more), "without"),
}


def numbers(result, name):
    """The numbers of a result, by their name in `ANALYSES`."""
    return result.values[name] if isinstance(result, Readings) else getattr(result, name)


every_analysis = pytest.mark.parametrize("name", ANALYSES)


@pytest.mark.full
@every_analysis
def test_batches_do_not_matter(name):
    """One text at a time gives what all together give."""
    (analysis, wanted), model = ANALYSES[name], ld.load_model(llama())
    for batch_tokens in (1, 24):
        close(numbers(analysis(model, batch_tokens=batch_tokens), wanted), numbers(analysis(model), wanted), 1e-4)


@pytest.mark.full
def test_a_bridge_gives_the_same_numbers():
    """Through TransformerLens' hooks every analysis gives what it gives on the plain model; a plan names no bridge."""
    from tests.model.test_bridge import boot

    plain, bridge = ld.load_model(gpt2()), ld.load_model(boot(gpt2()))
    for analysis, wanted in (pair for name, pair in ANALYSES.items() if name != "drop_plan"):
        close(numbers(analysis(bridge), wanted), numbers(analysis(plain), wanted), 1e-4)


LOOKS = {
    "contributions": lambda m: ld.contributions(m, IDS, [7, 9], unit="head"),
    "profile": lambda m: ld.profile(m, IDS[0]),
    "source_tokens": lambda m: ld.source_tokens(m, IDS, [7, 9]),
    "attention_patterns": lambda m: ld.attention_patterns(m, IDS[0]),
}


@pytest.mark.parametrize("name", [*LOOKS, *(pytest.param(name, marks=pytest.mark.full) for name in ANALYSES)])
def test_the_users_model_and_tokenizer_are_left_as_they_were(name):
    """No hook, no gradient, no changed mode, weight, setting or way to attend is left over."""
    root, tokenizer = llama().train(), word_tokenizer(pad_token="w2")
    root.model.layers[1].eval()

    def state():
        hooks = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in root.modules()]
        settings = (root.config.to_dict(), root.config._attn_implementation)
        own = (tokenizer.pad_token, tokenizer.padding_side, tokenizer.backend_tokenizer.to_str())
        return hooks, settings, own, [(p.grad, p.requires_grad) for p in root.parameters()]

    before, weights = state(), [p.clone() for p in root.parameters()]
    (LOOKS[name] if name in LOOKS else ANALYSES[name][0])(ld.load_model(root, tokenizer=tokenizer))
    assert state() == before
    assert all(torch.equal(p, w) for p, w in zip(root.parameters(), weights, strict=True))


def test_intervals_hold_the_mean_and_widen_with_fewer_texts():
    """A mean lies in its interval; seven texts have none, and it is said."""
    rng = np.random.default_rng(0)
    many = [rng.integers(0, 61, 8).tolist() for _ in range(24)]
    frames = [ld.depth.skip(llama(), texts).frame() for texts in (many, many[:8])]
    for frame in frames:
        assert (
            (frame.output_change_low <= frame.output_change) & (frame.output_change <= frame.output_change_high)
        ).all()
        assert (frame.output_change_median <= frame.output_change_max).all()
    assert (frames[1].output_change_high - frames[1].output_change_low).sum() > (
        frames[0].output_change_high - frames[0].output_change_low
    ).sum()
    few = ld.depth.skip(llama(), many[:7])
    for frame in (few.frame(), few.by_pair()):
        assert frame.filter(regex="_(low|high)$").isna().all(axis=None)
        assert frame.attrs["intervals"].startswith("no intervals: 7 texts")
    assert "no intervals: 7 texts" in few.plot(kind="bars").layout.title.subtitle.text.replace("<br>", "")


def test_pairs_are_of_a_layer_and_each_after_it():
    """by_pair has a row for every layer after a skipped one; the change downstream is the mean over these."""
    found = ld.depth.skip(llama(), IDS)
    pairs, table = found.by_pair(), pair_table(found)
    assert list(zip(pairs.component, pairs.target, strict=True)) == [
        ("L0.layer", "L1.layer"),
        ("L0.layer", "L2.layer"),
        ("L1.layer", "L2.layer"),
    ]
    close(pairs.change.iloc[1], table[:, 0, 2].mean())
    close(pairs.change_max.iloc[1], table[:, 0, 2].max())
    close(found.values["downstream_change"][:, 0], table[:, 0, 1:].mean(1))
    close(found.frame().downstream_change.iloc[0], pairs.change.iloc[:2].mean())
    assert np.isnan(found.values["downstream_change"][:, 2]).all()


def test_a_model_maps_best_onto_itself(stories):
    """From a model to itself the error is nothing on the diagonal, and the best target is one's own layer."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 500, 60).tolist() for _ in range(32)]
    found = ld.depth.map_layers(stories, stories, texts)
    error = found.values["error"].mean(0).reshape(5, 5)
    assert (error.argmin(1) == np.arange(5)).all()
    assert error.diagonal().max() < 0.01 < (error + np.eye(5)).min()
    row = found.depth_alignment().iloc[0]
    assert (row.distance, row.distance_low, row.distance_high) == (0, 0, 0)
    frame = found.frame()
    assert ((frame.error_low <= frame.error) & (frame.error <= frame.error_high)).all()
    assert row.chance > 0.3
    assert np.isclose(row.rank_correlation, 1)


def test_a_change_point_is_found_where_it_was_planted():
    """A fall at layer 7 of 12 is found there, through noise and an outlying first layer; a flat series has none."""
    rng = np.random.default_rng(0)
    level = np.where(np.arange(12) < 7, 1.0, 0.4)
    level[0] = 30.0
    found = change_point(level, level + 0.05 * rng.normal(size=(500, 12)))
    assert found.layer == 7
    assert 5 <= found.low <= 7 == found.high
    assert found.p < 0.05 < change_point(rng.normal(size=12), rng.normal(size=(50, 12))).p
    by_hand = [sum(np.sign(level[i] - level[j]) for i in range(k) for j in range(k, 12)) for k in range(1, 12)]
    assert np.isclose(found.p, np.exp(-6 * max(by_hand) ** 2 / (12**3 + 12**2)), rtol=0.3)


def test_a_task_brings_its_prompts_and_answers(stories):
    """A task's prompts are read, and its gold options are the answers."""
    rows = pd.DataFrame({"word": ["hot", "big"], "opposite": ["a", "the"]})
    task = ld.Task.from_frame(rows, template="One {word} day Lily saw", options=["a", "the"], label="opposite")
    by_hand = ld.depth.erase(stories, list(task.prompts), answers=[" a", " the"])
    close(ld.depth.erase(stories, task).values["output_change"], by_hand.values["output_change"])
    assert ld.depth.residual_norms(stories, task).places["text"].max() == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: ld.depth.skip(m, IDS, layers=3), "layers=3 .* 0 to 2"),
        (lambda m: ld.depth.skip(m, [[1, 2], [3]]), "text 1"),
        (lambda m: ld.depth.skip(m, [[1, 2]], mode="future"), "text 0"),
        (lambda m: ld.depth.skip(m, IDS, part="head"), "part='head'"),
        (lambda m: ld.depth.erase(m, IDS, "prefix", answers=[[1], [2], [3]]), "answers="),
        (lambda m: ld.depth.erase(m, [[1, 2, 3]], "prefix"), "text 0"),
        (lambda m: ld.depth.integrated_gradients(m, [[1]]), "text 0 .*answer"),
        (lambda m: ld.depth.integrated_gradients(m, IDS, answers=[[1]]), "answers="),
        (lambda m: ld.depth.map_layers(m, llama(vocab_size=99), IDS), "one tokenizer"),
        (lambda m: ld.depth.map_layers(m, m, IDS[:1]), "two texts"),
        (lambda m: ld.depth.map_layers(m, m, [[1], [2, 3]]), "text 0"),
    ],
)
def test_what_would_measure_nothing_or_something_else_is_refused(call, says):
    with pytest.raises(ld.InputError, match=says):
        call(ld.load_model(llama()))


def test_a_stream_that_something_else_writes_to_is_refused():
    """A hook that adds to the stream would make every skip a lie."""
    root = llama()
    model = ld.load_model(root)
    root.model.layers[1].register_forward_hook(lambda module, args, output: output + 1.0)
    with pytest.raises(ld.InputError, match="a hook"):
        ld.depth.skip(model, IDS)


@pytest.mark.parametrize(
    ("ask", "passes"),
    [
        (lambda m: ld.depth.erase(m, IDS), sum(3 * (len(row) - 1) + 1 for row in IDS)),
        (lambda m: ld.depth.integrated_gradients(m, IDS, steps=5, batch_tokens=20), 15 * len(IDS)),
        (lambda m: ld.depth.depth_score(m, [(row, [1], 1) for row in IDS]), 4 * len(IDS)),
    ],
    ids=["erase", "integrated_gradients", "depth_score"],
)
def test_long_calls_say_how_many_passes_are_ahead_and_count_them(ask, passes, monkeypatch):
    """The totals of bars, known before the first text is done, are what the counts then add up to."""
    calls = []

    def lines(title, total, unit, done):
        calls.append((unit, total, []))
        return calls[-1][2].append

    monkeypatch.setattr("layerdiv_tl._progress._lines", lines)
    ask(llama())
    bars = [(total, counts) for unit, total, counts in calls if unit == "pass"]
    assert all(sum(counts) == total for total, counts in bars)
    assert sum(total for total, _ in bars) == passes
    assert max(len(counts) for _, counts in bars) > len(IDS) / 4
