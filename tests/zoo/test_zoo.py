"""The zoo: models that come with the package, and the script that trains them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.zoo import TASKS, training_log
from layerdiv_tl.zoo.trained import FOLDER, repeat_blocks
from tests.training import train as training
from tests.training import words
from tests.training.shapes import ACTIVE, SHIPPED, ZooModel, find_model

SMALL = training.Recipe(steps=6, every=3, warm=2, adding=1, longer=(1, 2, 4), tested=64, last=64)
each = pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.short)


def wilson(share, rows, z):
    """Wilson's interval of a share, z standard errors to each side."""
    middle, half = share + z**2 / (2 * rows), z * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return (middle - half) / (1 + z**2 / rows), (middle + half) / (1 + z**2 / rows)


def asked(name, rows, seed):
    return ld.task(f"{name}{',' if ':' in name else ':'}seed={seed}", limit=rows)


@each
def test_every_model_is_what_its_name_says(model):
    """Depth, width and sharing of what is loaded are those of the name; components are one per use of a block."""
    loaded = ld.load_model(model.name)
    assert (loaded.name, loaded.provenance["source"]) == (model.name, model.name)
    assert loaded.provenance["dtype"] == "float32"
    assert loaded.root.config.hidden_size == model.width
    components = loaded.components()
    assert len(components) == model.members
    repeats = [(c.layer, c.repeat) for c in components if c.kind == "mlp"]
    blocks = {id(block) for block in loaded.root.model.layers}
    if model.shared:
        assert repeats == [(layer, repeat) for layer in range(model.depth // 2) for repeat in (1, 2)]
        assert len(blocks) == model.depth // 2
    else:
        assert repeats == [(layer, None) for layer in range(model.depth)]
        assert len(blocks) == model.depth
    row = ld.zoo.models().set_index("name").loc[model.name]
    assert row["parameters"] == loaded.provenance["parameters"]
    config = loaded.root.config
    assert row["experts"] == model.experts == getattr(config, "num_local_experts", 0)
    assert not model.experts or config.num_experts_per_tok == ACTIVE


@pytest.mark.nightly
@each
def test_every_model_is_taken_apart_without_a_rest_and_answers_as_logged(model):
    """Components sum to the logits; right answers on rows of another seed agree with the log's share of them."""
    loaded, (_, evaluations) = ld.load_model(model.name), training_log(model.name)
    for name in TASKS:
        task = asked(name, 192, seed=7)
        found = ld.contributions(loaded, task.prompts, task.options)
        assert found.identity_gap <= 1e-6
        right = float((found.logits.argmax(1) == task.labels).mean())
        low, high = wilson(right, len(task), z=3.5)  # of ~100 comparisons none fails by chance
        assert low <= evaluations[-1]["accuracy"][name] <= high, name


def test_half_precision_costs_no_answers():
    """Weights are float16 on disk, float32 in memory; what the log says was measured before they were halved."""
    from safetensors import safe_open

    for model in SHIPPED:
        with safe_open(model.folder / "model.safetensors", framework="pt") as file:
            assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_the_zoo_is_small():
    """All files together stay far under what a wheel may weigh: 25 MB of 40."""
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 25e6
    assert {path.name for path in files} <= {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "known.json"),
        *(f"{model.short}.jsonl" for model in SHIPPED),
    }


def test_names_and_tasks_are_those_that_ship():
    """NAMES load, TASKS are known, and the frame has a row for each name with an accuracy for each task."""
    frame = ld.zoo.models()
    assert tuple(frame["name"]) == ld.zoo.NAMES
    assert ((frame[list(TASKS)] > 0) & (frame[list(TASKS)] <= 1)).all(axis=None)
    assert [ld.task(name, limit=1).name for name in ld.zoo.TASKS] == list(TASKS)
    assert set(ld.zoo.NAMES) == {model.name for model in SHIPPED}


def test_a_wrong_name_is_answered_with_the_names_there_are():
    """What the zoo lacks is said in a sentence, for loading and for training."""
    for name in ("zoo/d5", "zoo/", "zoo/../d4"):
        with pytest.raises(ld.InputError, match=rf"no '{name}' in the zoo: choose among zoo/d1, ") as error:
            ld.load_model(name)
        assert str(error.value).endswith(".")
    with pytest.raises(ld.InputError, match="zoo/d12"):
        find_model("d13")
    with pytest.raises(SystemExit):
        training.main(["d13", "--out", "nowhere"])


def test_a_model_takes_another_dtype_and_tokenizer():
    """The zoo's float32 and tokenizer are defaults that a user's own choice replaces."""
    name = SHIPPED[0].name
    assert ld.load_model(name, dtype="float64").provenance["dtype"] == "float64"
    own = words.tokenizer()
    assert ld.load_model(name, tokenizer=own).tokenizer is own


def test_the_shipped_tokenizer_is_the_one_of_the_code():
    """Every prompt of the zoo's tasks has the same ids in both, none of them unknown, nothing lost but spaces."""
    shipped, made = ld.load_model(SHIPPED[0].name).tokenizer, words.tokenizer()
    for name in TASKS:
        task = asked(name, 32, seed=3)
        for prompt in task.prompts:
            ids = made(prompt)["input_ids"]
            assert shipped(prompt)["input_ids"] == ids
            assert words.IDS[words.UNKNOWN] not in ids
            assert "".join(made.tokenize(prompt)).replace(" ", "") == prompt.replace(" ", "")
        assert all(len(made(option, add_special_tokens=False)["input_ids"]) == 1 for option in task.options)


def split(batch, row, question):
    """The ids of one prompt of a batch, and of its answer."""
    return [*batch.facts[row], *batch.questions[row, question]], batch.answers[row, question]


def told(name, rows):
    """A synthetic task's rows as numbers, read back from its prompts' text."""
    task = asked(name, rows, seed=5)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for prompt, label in zip(task.prompts, task.labels, strict=True):
        yield prompt, task.options[label], letters, prompt.split("\n")


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_rows_of_chains_are_the_tasks_prompts(hops):
    """The vectorized maker, given what a Task's row says, gives the Task's prompt and answer, token for token."""
    tokenizer = words.tokenizer()
    for prompt, answer, letters, (facts, question) in told(f"synthetic/k_hop:hops={hops}", 24):
        pairs = [(letters.index(f[0]), letters.index(f[-1])) for f in facts.rstrip(".").split(". ")]
        follows, start = dict(pairs), letters.index(question.split()[2])
        cycle = [start]
        while follows[cycle[-1]] != start:
            cycle.append(follows[cycle[-1]])
        order = [cycle.index(source) for source, _ in pairs]
        batch = words.chains(*(np.array([x]) for x in (cycle, order, [0], [hops])))
        ids, gold = split(batch, 0, 0)
        assert ids == tokenizer(prompt)["input_ids"]
        assert [gold] == tokenizer(answer, add_special_tokens=False)["input_ids"]


def test_rows_of_pairs_and_sums_are_the_tasks_prompts():
    """The same for recall and modular."""
    tokenizer = words.tokenizer()
    colors = ["red", "blue", "green", "black"]
    for prompt, answer, letters, lines in told("synthetic/recall", 24):
        keys = [letters.index(line[0]) for line in lines]
        values = [colors.index(line.split()[1]) for line in lines[:-1]]
        batch = words.pairs(*(np.array([x]) for x in (keys[:-1], values, [keys.index(keys[-1])])))
        assert split(batch, 0, 0)[0] == tokenizer(prompt)["input_ids"]
        assert [split(batch, 0, 0)[1]] == tokenizer(answer, add_special_tokens=False)["input_ids"]
    for prompt, answer, _, (line,) in told("synthetic/modular:largest=19", 24):
        a, b = (int(x) for x in line[1 : line.index(")")].split(" + "))
        batch = words.sums(np.array([a]), np.array([b]))
        assert split(batch, 0, 0)[0] == tokenizer(prompt)["input_ids"]
        assert [split(batch, 0, 0)[1]] == tokenizer(answer, add_special_tokens=False)["input_ids"]


def test_every_question_of_a_row_is_read_as_its_prompt_alone():
    """The logits of packed questions are those of one prompt each, in a plain pass."""
    net = training.build(ZooModel(2)).eval()
    batches = training.batches(training.Recipe(), seed=0, step=5000)
    with torch.no_grad():
        for batch, packed in zip(batches, training.answers(net, batches), strict=True):
            for row in range(2):
                for question in range(batch.questions.shape[1]):
                    ids = torch.tensor([split(batch, row, question)[0]])
                    plain = net(input_ids=ids).logits[0, -1]
                    torch.testing.assert_close(packed[row, question], plain, atol=1e-5, rtol=1e-4)


def test_answers_of_training_rows_are_right():
    """Followed by hand, pointers lead to the answer; letters are asked about equally often."""
    batch = words.k_hop(np.random.default_rng(0), 200, 8, 4)
    text = {number: word for word, number in words.IDS.items()}
    starts = []
    for row in range(200):
        facts = [text[i] for i in batch.facts[row]]
        follows = {facts[i - 1]: facts[i + 1] for i, word in enumerate(facts) if word == "points to"}
        for question in range(8):
            at = text[batch.questions[row, question, 1]]
            starts.append(at)
            for _ in range(batch.hops[row, question]):
                at = follows[at]
            assert text[batch.answers[row, question]] == at
    assert min(np.unique(starts, return_counts=True)[1]) > 150


def test_training_rows_share_no_randomness_with_rows_that_are_asked(monkeypatch):
    """No generator of training rows is seeded as a Task's row is, not even of a Task with the stream's own seed."""
    seeds, make = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(tuple(map(int, seed))) or make(seed))
    for seed, step in ((0, 0), (0, 1), (1, 2000)):
        training.batches(training.Recipe(), seed, step)
    ours, seeds[:] = list(seeds), []
    for name in TASKS:
        asked(name, 4, training.STREAM)
    first = {make(seed).integers(2**63) for seed in ours}
    assert len(first) == len(set(ours)) == 9
    assert seeds
    assert not first & {make(seed).integers(2**63) for seed in seeds}


@pytest.mark.full
def test_stopped_training_ends_with_the_same_weights(tmp_path, monkeypatch):
    """A run killed between evaluations and begun again gives, bit for bit, what an unbroken one gives."""
    model, kept = ZooModel(2, shared=True, width=32), training._State.step
    whole = training.train(model, tmp_path / "whole", SMALL, keep=(0, 6))

    def killed(state, made, number):
        if number == 5:
            raise KeyboardInterrupt
        return kept(state, made, number)

    monkeypatch.setattr(training._State, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        training.train(model, tmp_path / "broken", SMALL)
    monkeypatch.setattr(training._State, "step", kept)
    with pytest.raises(ld.InputError, match="other settings"):
        training.train(model, tmp_path / "broken", dataclasses.replace(SMALL, rate=1e-3))
    again = training.train(model, tmp_path / "broken", SMALL)
    name, kept_at = "model.safetensors", tmp_path / "whole/checkpoints/w32-d2-shared"
    assert (kept_at / "step6" / name).read_bytes() == (whole / name).read_bytes()
    assert (kept_at / "step0" / name).read_bytes() != (whole / name).read_bytes()
    assert (again / name).read_bytes() == (whole / name).read_bytes()
    steps = [json.loads(line).get("step") for line in (tmp_path / "broken/logs/w32-d2-shared.jsonl").open()]
    assert steps == [None, 3, 6]


@pytest.mark.parametrize("model", [ZooModel(2, width=32), ZooModel(4, width=32, shared=True)])
def test_what_is_saved_is_what_was_trained(model, tmp_path):
    """From disk come the logits of the model in memory, to half precision; shared blocks are stored once."""
    from safetensors.torch import load_file

    net = training.build(model)
    training._save(model, net, tmp_path / "x")
    words.tokenizer().save_pretrained(tmp_path / "x")
    stored = load_file(tmp_path / "x/model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in net.parameters())
    task = asked("synthetic/recall", 8, seed=2)
    loaded = ld.load_model(tmp_path / "x", dtype="float32")
    if model.shared:
        repeat_blocks(loaded.root)
        loaded = ld.load_model(loaded.root, tokenizer=loaded.tokenizer)
    found = ld.contributions(loaded, task.prompts, task.options)
    ids = torch.tensor(words.tokenizer()(list(task.prompts))["input_ids"])
    with torch.no_grad():
        plain = net(input_ids=ids).logits[:, -1, list(task.resolve(words.tokenizer()).option_ids)]
    np.testing.assert_allclose(found.logits, plain.numpy(), atol=5e-3 * float(plain.abs().max()))


@pytest.mark.nightly
def test_training_again_goes_the_same_way(tmp_path):
    """A small model trained anew for some of its steps has learned what its log says it had at that step.

    Processors round differently, so that paths part: when the next skill comes is another step on another machine.
    """
    model, stop = ZooModel(2), 1000
    _, evaluations = training_log(model.name)
    torch.set_num_threads(1)
    training.train(model, tmp_path, stop=stop)
    _, again = training_log(model.name, tmp_path)
    then = next(line for line in evaluations if line["step"] == stop)["accuracy"]
    learned = {name for name in TASKS if then[name] > 0.9}
    assert learned == {name for name in TASKS if again[-1]["accuracy"][name] > 0.8}
    assert 0 < len(learned) < len(TASKS)
