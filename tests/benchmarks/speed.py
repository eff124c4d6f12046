"""What the package costs next to what it replaces, as ratios of CPU time in one run.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.speed [NAME …] [--repeats 5]

A case is a list of ways to do one thing. The first, mostly the Hugging Face model's plain pass over the same rows, is
what the others are compared with: every way runs once unmeasured and then in turn with the others, and a ratio is the
median of those of single rounds, so that a machine whose speed drifts does not matter much.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, MixtralConfig, MixtralForCausalLM

import layerdiv_tl as ld
from layerdiv_tl.model.batches import batches, pad
from layerdiv_tl.model.load import Model
from layerdiv_tl.model.prompts import encode

OPTIONS = [" Negative", " Positive"]
Ways = Mapping[str, Callable[[], Any]]
Case = Iterator[tuple[str, Ways]]


def measure(ways: Ways, repeats: int, clock: Callable[[], float] = time.process_time) -> dict[str, tuple[float, float]]:
    """{way: (median seconds, median ratio to the first way)}."""
    rounds = []
    for _ in range(repeats + 1):
        times = []
        for way in ways.values():
            start = clock()
            way()
            times.append(clock() - start)
        rounds.append(times)
    took = np.array(rounds[1:]).T
    return {
        name: (statistics.median(own), statistics.median(own / took[0])) for name, own in zip(ways, took, strict=True)
    }


def texts(rows: int, tokens: int) -> list[list[int]]:
    """Random ids."""
    return np.random.default_rng(0).integers(1000, 40_000, (rows, tokens)).tolist()


def plain(model: Model, prompts: Sequence[Any], batch_tokens: int = 4096, **keep: int) -> None:
    """The untouched model on padded batches; `logits_to_keep=1` asks for those at the ends alone."""
    ids = encode(model, list(prompts))
    with model.path.session(), torch.inference_mode():
        for rows in batches([len(row) for row in ids], batch_tokens):
            tokens, mask = pad([ids[row] for row in rows])
            tokens, mask = (x.to(model.path.device) for x in (tokens, mask))
            model.root(input_ids=tokens, attention_mask=mask, use_cache=False, **keep)


def shared_prefixes(model: Model, prompts: list[list[int]], options: list[list[int]]) -> None:
    """Hugging Face's own way to score options: prompts once, with a cache, then all options as continuations."""
    net, heads = model.root, [option[:-1] for option in options]
    with model.path.session(), torch.inference_mode():
        for rows in batches([len(p) for p in prompts], 1024):
            ids = torch.tensor([prompts[row] for row in rows])
            done = net(input_ids=ids, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)
            done.logits.log_softmax(-1)
            done.past_key_values.batch_repeat_interleave(len(options))
            more = torch.tensor(heads * len(rows))
            net(input_ids=more, past_key_values=done.past_key_values, use_cache=True).logits.log_softmax(-1)


@torch.inference_mode()
def full_cache(bridge: Any, prompts: list[list[int]], options: torch.Tensor) -> None:
    """TransformerLens' way: cache everything, stack the components, scale, unembed."""
    _, cache = bridge.run_with_cache(torch.tensor(prompts))
    names = ["hook_embed"] + [f"blocks.{i}.hook_{s}_out" for i in range(30) for s in ("attn", "mlp")]
    stack = torch.stack([cache[name][:, -1] for name in names])
    (stack / cache["ln_final.hook_scale"][:, -1] * bridge.ln_final.weight @ bridge.W_U[:, options]).numpy()


def contributions() -> Case:
    """Next to plain passes, to options scored with a cache, and to a full cache of TransformerLens."""
    model, options = ld.load_model(), texts(4, 4)
    for rows, tokens in ((16, 64), (1, 1024)):
        prompts = texts(rows, tokens)
        ways = {"plain pass": lambda p=prompts: plain(model, p, logits_to_keep=1)}
        for count in (2, 4):
            for unit in ("sublayer", "head", "neuron"):
                some = list(range(3000, 3000 + count))
                ways[f"{unit}, K = {count}"] = lambda p=prompts, o=some, u=unit: ld.contributions(model, p, o, unit=u)
        yield f"{rows} × {tokens} tokens", ways
    for rows, tokens in ((16, 64), (64, 16)):
        prompts = texts(rows, tokens)
        ways = {"passes with a cache": lambda p=prompts: shared_prefixes(model, p, options)}
        for unit in ("sublayer", "head"):
            ways[unit] = lambda p=prompts, u=unit: ld.contributions(model, p, [options], unit=u)
        yield f"{rows} × {tokens} tokens, four options of four tokens", ways
    for rows, tokens in ((16, 64), (1, 1024)):
        prompts = texts(rows, tokens)
        ours = lambda p=prompts: ld.contributions(model, p, OPTIONS)  # noqa: E731
        theirs = lambda p=prompts: full_cache(model.bridge, p, torch.tensor([3, 5]))  # noqa: E731
        yield f"{rows} × {tokens} tokens", {"contributions": ours, "TransformerLens' full cache": theirs}


def cache() -> Case:
    """TransformerLens' `stack_head_results` and `logit_attrs` give heads and a remainder; ours gives all rows."""
    model = ld.load_model()
    bridge, names = model.bridge, (" Mary", " John")
    tokens = [bridge.to_single_token(name) for name in names]
    for count in (1, 32):
        prompts = ["When Mary and John went to the store, John gave a drink to"] * count
        _, cache = bridge.run_with_cache(bridge.to_tokens(prompts, prepend_bos=False))

        @torch.inference_mode()
        def theirs(cache: Any = cache) -> Any:
            stack = cache.stack_head_results(layer=-1, pos_slice=-1, incl_remainder=True)
            right, wrong = tokens
            return cache.logit_attrs(stack, tokens=right, incorrect_tokens=wrong, pos_slice=-1, has_batch_dim=True)

        yield (
            f"a cache of {count} prompts",
            {
                "TransformerLens": theirs,
                **{u: lambda c=cache, u=u: ld.contributions(c, options=names, unit=u) for u in ("sublayer", "head")},
            },
        )


def continuation() -> Case:
    """Along 64 written tokens, in one pass; and one prompt for each of them."""
    model = ld.load_model()
    prompt = "The three largest cities of France, with a sentence about each of them:"
    written = ld.continuation(model, prompt, max_new_tokens=64)
    ids = list(written.continued[0])
    start, pairs = len(ids) - len(written.values), written.option_ids.tolist()
    prefixes = [ids[:end] for end in range(start, len(ids))]
    for unit in ("sublayer", "head"):
        along = lambda u=unit: ld.continuation(model, prefixes[0], ids[start:], unit=u)  # noqa: E731
        each = lambda u=unit: ld.contributions(model, prefixes, pairs, unit=u)  # noqa: E731
        yield unit, {"plain pass": lambda: plain(model, [ids]), "continuation": along, "a prompt each": each}


def gemma(vocabulary: int, width: int = 256) -> Model:
    """A Gemma 3 of four layers with random weights of a size that matters."""
    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 4, "head_dim": width // 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1}
    model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=vocabulary, **shape, **heads)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return ld.load_model(model)


def profile() -> Case:
    """The whole vocabulary next to a plain pass with logits; and 262k ids next to 49k (5.3 is in proportion)."""
    model, ids = ld.load_model(), texts(1, 256)
    ways = {"plain pass with logits": lambda: plain(model, ids)}
    ways |= {unit: lambda u=unit: ld.profile(model, ids, u) for unit in ("sublayer", "head")}
    yield "256 tokens", ways
    small, large = (gemma(size) for size in (49_152, 262_144))
    few = np.random.default_rng(0).integers(3, 49_152, 64).tolist()
    yield "64 tokens", {"49 152 ids": lambda: ld.profile(small, few), "262 144 ids": lambda: ld.profile(large, few)}

    def page(model: Model) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ld.explore(model, few).save(Path(folder) / "page.html")

    yield "an explorer's page", {"49 152 ids": lambda: page(small), "262 144 ids": lambda: page(large)}


def long_texts() -> Case:
    """Source tokens, and opening and saving an explorer."""
    model = ld.load_model()
    for tokens in (512, 1024, 2048):
        prompts = texts(1, tokens)
        ways = {"plain pass": lambda p=prompts: plain(model, p, logits_to_keep=1)}
        ways["source_tokens"] = lambda p=prompts: ld.source_tokens(model, p, OPTIONS)
        yield f"1 × {tokens} tokens", ways
    for tokens in (14, 128, 512):
        (ids,) = texts(1, tokens)
        explorer = ld.explore(model, ids)
        ways = {"plain pass with logits": lambda i=ids: plain(model, [i])}
        yield f"{tokens} tokens", ways | {"explore": lambda i=ids: ld.explore(model, i), "its page": explorer.html}


def fingerprint() -> Case:
    """A model told by all its weights, next to SHA-256 of the same bytes."""
    from layerdiv_tl.model.fingerprint import fingerprint, identify

    model, prompts = ld.load_model(), [f"The answer to question {number} is" for number in range(8)]

    def sha256() -> None:
        digest = hashlib.sha256()
        for parameter in model.root.parameters():
            digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)

    yield (
        model.name,
        {
            "fingerprint": lambda: fingerprint(model),
            "with tokenizer and hooks": lambda: identify(model),
            "SHA-256 of the same bytes": sha256,
            "eight prompts taken apart": lambda: ld.contributions(model, prompts, [1, 2]),
        },
    )


def experts() -> Case:
    """Experts of a random Mixtral next to a plain pass with the logits of the last token."""
    torch.manual_seed(0)
    size = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    mixture = {"num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2}
    model = ld.load_model(MixtralForCausalLM(MixtralConfig(vocab_size=8000, **size, **mixture)).eval())
    prompts = torch.randint(3, 8000, (8, 128)).tolist()
    ways = {"plain pass": lambda: plain(model, prompts, logits_to_keep=1)}
    for unit in ("sublayer", "expert"):
        ways[unit] = lambda u=unit: ld.contributions(model, prompts, [7, 30], unit=u)
    yield "8 × 128 tokens", ways


NAMES = "Mary John Tom James David Mark Paul Kate Anna Sarah Mike Peter".split()
TEMPLATES = (
    "When {0} and {1} went to the store, {2} gave a drink to",
    "After {0} and {1} had lunch at the school, {2} handed a book to",
    "Then, {0} and {1} were working at the office. {2} decided to give a ring to",
)


def indirect_objects(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Prompts in which the answer is the name that comes once, and (that name, the other) for each."""
    prompts, pairs = [], []
    for number in range(count):
        first, second = NAMES[number % 12], NAMES[(number + 1 + number // 12) % 12]
        giver, other = (first, second) if number // 3 % 2 else (second, first)
        prompts.append(TEMPLATES[number % 3].format(first, second, giver))
        pairs.append((f" {other}", f" {giver}"))
    return prompts, pairs


def depth() -> Case:
    """Analyses of the default model in plain passes of the same rows; every head's effect should cost ≤ 0.6 passes."""
    model = ld.load_model()
    few, more = (ld.task("sample/topic", limit=limit) for limit in (8, 16))
    rows, asked = few.prompts, [(text, " Paris", 1) for text in few.prompts[:4]]
    short = [rows[0][:40]]
    attentions = [f"L{layer}.attn" for layer in range(0, 30, 3)]
    prompts, pairs = indirect_objects(48)
    heads = [c.label for c in model.components("head") if c.kind == "head"]
    for name, texts, call in (
        ("logit_lens", rows, lambda: ld.depth.logit_lens(model, rows)),
        ("skip", rows, lambda: ld.depth.skip(model, rows)),
        ("erase", short, lambda: ld.depth.erase(model, short)),
        ("depth_score", rows[:4], lambda: ld.depth.depth_score(model, asked)),
        ("effects of 10 attentions", rows, lambda: ld.effects(model, few, components=attentions)),
        ("drop_plan", more.prompts, lambda: ld.depth.drop_plan(model, more, 1, random=4)),
        (
            f"effects of {len(heads)} heads",
            prompts,
            lambda: ld.effects(model, prompts, options=pairs, unit="head", components=heads),
        ),
    ):
        yield f"{len(texts)} rows", {"plain pass": lambda texts=texts: plain(model, texts), name: call}


def information() -> Case:
    """129 members, 4 options, 2000 rows."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(2000) % 4)
    u = rng.normal(size=(2000, 129, 4)) + 0.2 * np.eye(4)[y][:, None]
    ways = {"information": lambda: ld.information(u, y), "12 groups": lambda: ld.information(u, y, n_groups=12)}
    yield "129 members", ways


CASES = (contributions, cache, continuation, profile, long_texts, fingerprint, experts, depth, information)


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(case.__name__ for case in CASES)])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for case in CASES:
        if not given.names or case.__name__ in given.names:
            print(f"{case.__name__}: {case.__doc__}")
            for title, ways in case():
                for name, (seconds, ratio) in measure(ways, given.repeats).items():
                    print(f"  {title:32} {name:32} {seconds:8.3f} s {ratio:8.2f} ×", flush=True)


if __name__ == "__main__":
    main()
