"""What effects of all heads of the default model cost, in plain passes of the same rows, as ratios in one run.

`nice -n -19 python tests/benchmarks/effects.py`. A plain pass is the Hugging Face model's own on the same tokens with
logits. Ratios are of processor time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import time

import torch

import layerdiv_tl as ld

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=48)
    given = parser.parse_args()
    model = ld.load_model()
    heads = [c.label for c in model.components("head") if c.kind == "head"]
    prompts, pairs = indirect_objects(given.rows)
    batch = model.tokenizer(prompts, return_tensors="pt", padding=True)

    def plain(count: int = 5) -> float:
        start = time.process_time()
        with torch.inference_mode():
            for _ in range(count):
                model.architecture.root(**batch, use_cache=False)
        return (time.process_time() - start) / count

    def effects() -> float:
        start = time.process_time()
        ld.effects(model, prompts, contrast=pairs, unit="head", components=heads)
        return time.process_time() - start

    plain(1)
    one = plain()
    exact = effects() / one
    one = (one + plain()) / 2
    each = exact / len(heads)
    print(f"a plain pass {one:.2f} s; {len(heads)} heads ablated: {exact:.0f} passes, {each:.2f} for each (aim ≤ 0.6)")


if __name__ == "__main__":
    main()
