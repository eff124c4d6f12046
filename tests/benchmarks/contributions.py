"""What taking the default model apart costs, as ratios in one run. `python tests/benchmarks/contributions.py`

Plain pass: the Hugging Face model on the same batches with `logits_to_keep=1`. Every ratio is the median
of ratios of neighboring runs, so that a machine whose speed drifts does not matter much.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.batches import batches, inference_mode_for, pad

OPTIONS = [" Negative", " Positive"]


def texts(rows: int, tokens: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return rng.integers(1000, 40_000, (rows, tokens)).tolist()


def plain(model: ld.Model, prompts: list[list[int]], batch_tokens: int = 4096) -> None:
    with inference_mode_for(model.architecture):
        for rows in batches([len(p) for p in prompts], batch_tokens):
            ids, mask = pad([prompts[row] for row in rows])
            model.architecture.root(input_ids=ids, attention_mask=mask, logits_to_keep=1, use_cache=False)


def shared_prefixes(model: ld.Model, prompts: list[list[int]], options: list[list[int]]) -> None:
    """Hugging Face's own way to score options: prompts once, with a cache, then all options as continuations."""
    from transformers import DynamicCache

    net, heads = model.architecture.root, [option[:-1] for option in options]
    with inference_mode_for(model.architecture):
        for rows in batches([len(p) for p in prompts], 1024):
            ids = torch.tensor([prompts[row] for row in rows])
            done = net(input_ids=ids, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)
            done.logits.log_softmax(-1)
            done.past_key_values.batch_repeat_interleave(len(options))
            more = torch.tensor(heads * len(rows))
            net(input_ids=more, past_key_values=done.past_key_values, use_cache=True).logits.log_softmax(-1)


def full_cache(bridge: object, prompts: list[list[int]], options: torch.Tensor) -> None:
    """TransformerLens' way: cache everything, stack the components, scale, unembed."""
    with torch.inference_mode():
        for rows in batches([len(p) for p in prompts], 4096):
            ids = torch.tensor([prompts[row] for row in rows])
            _, cache = bridge.run_with_cache(ids)  # type: ignore[attr-defined]
            names = ["hook_embed"] + [f"blocks.{i}.hook_{s}_out" for i in range(30) for s in ("attn", "mlp")]
            stack = torch.stack([cache[name][:, -1] for name in names])
            scaled = stack / cache["ln_final.hook_scale"][:, -1] * bridge.ln_final.weight  # type: ignore[attr-defined]
            (scaled @ bridge.W_U[:, options]).numpy()  # type: ignore[attr-defined]


def ratio(a: Callable[[], None], b: Callable[[], None], repeats: int) -> tuple[float, float, float]:
    """Median of a/b over neighboring runs, and both medians in seconds."""
    a(), b()
    times = {a: [], b: []}
    for turn in range(repeats):
        for f in (a, b) if turn % 2 else (b, a):
            start = time.perf_counter()
            f()
            times[f].append(time.perf_counter() - start)
    ratios = [x / y for x, y in zip(times[a], times[b], strict=True)]
    return statistics.median(ratios), statistics.median(times[a]), statistics.median(times[b])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    model = ld.load_model()
    print(f"torch threads {torch.get_num_threads()}, {given.repeats} repeats")
    for rows, tokens in ((64, 64), (4, 1024)):
        prompts = texts(rows, tokens)
        for unit in ("sublayer", "head"):
            r, a, b = ratio(
                lambda p=prompts, u=unit: ld.contributions(model, p, OPTIONS, unit=u),
                lambda p=prompts: plain(model, p),
                given.repeats,
            )
            print(f"{rows} × {tokens} tokens, {unit:8}: contributions / plain pass = {r:.3f}   ({a:.2f} s / {b:.2f} s)")

    options = texts(4, 4)
    for rows, tokens in ((16, 64), (64, 16)):
        prompts = texts(rows, tokens)
        for unit in ("sublayer", "head"):
            r, a, b = ratio(
                lambda p=prompts, u=unit: ld.contributions(model, p, [options], unit=u),
                lambda p=prompts: shared_prefixes(model, p, options),
                given.repeats,
            )
            what = f"{rows} × {tokens} tokens, {unit:8}: four options of four tokens"
            print(f"{what} / passes with a cache = {r:.3f}   ({a:.2f} s / {b:.2f} s)")

    from transformer_lens.model_bridge import TransformerBridge

    other = ld.load_model()
    bridge = TransformerBridge.boot_transformers(
        "a-label", hf_model=other.architecture.root, tokenizer=other.tokenizer, device="cpu"
    )
    options = torch.tensor([3, 5])
    for rows, tokens in ((16, 64), (1, 1024)):
        prompts = texts(rows, tokens)
        r, a, b = ratio(
            lambda p=prompts: full_cache(bridge, p, options),
            lambda p=prompts: ld.contributions(model, p, OPTIONS),
            max(3, given.repeats // 2),
        )
        print(
            f"{rows} × {tokens} tokens: TransformerLens' full cache / contributions = {r:.2f}   ({a:.2f} s / {b:.2f} s)"
        )


if __name__ == "__main__":
    main()
