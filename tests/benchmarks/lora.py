"""What fine-tuning writes: LoRA on the default model, trained on rows of one task, taken apart both ways.

    python tests/benchmarks/lora.py DATA [--task sst2] [--seconds 60]

DATA is a folder with the tasks' rows, `<name>.jsonl`. Needs `pip install peft`.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from peft import LoraConfig, get_peft_model

import layerdiv_tl as ld


def train(model: torch.nn.Module, task: ld.Task, seconds: float, rows: int = 8) -> int:
    """Adam on the cross-entropy of each prompt's gold option; returns the number of steps."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    generator, options = torch.Generator().manual_seed(0), torch.tensor(task.option_ids)
    started, steps = time.process_time(), 0
    model.train()
    while time.process_time() - started < seconds:
        batch = torch.randint(len(task), (rows,), generator=generator).tolist()
        ids = [model.tokenizer(task.prompts[i])["input_ids"] for i in batch]
        longest = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        logits = model(input_ids=tokens, attention_mask=mask).logits[range(rows), mask.sum(1) - 1][:, options]
        torch.nn.functional.cross_entropy(logits, torch.tensor(task.labels)[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    model.eval()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    base = ld.load_model()
    task = ld.task(arguments.task, arguments.data, limit=200).resolve(base)
    before = ld.contributions(base, task)
    torch.manual_seed(0)
    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base.hf_model, config)
    model.tokenizer = base.tokenizer
    steps = train(model, task, arguments.seconds)
    split = ld.load_model(model, tokenizer=base.tokenizer, adapters="component")
    two, heads = (ld.contributions(split, task, unit=unit) for unit in ("sublayer", "head"))
    one = ld.contributions(ld.load_model(model, tokenizer=base.tokenizer), task)
    plain = copy.deepcopy(model).merge_and_unload()
    merged = ld.contributions(ld.load_model(plain, tokenizer=base.tokenizer), task)
    size = np.abs(one.values).sum(1).max()
    rows = [two.select(module=c.module, layer=c.layer).logits if c.layer is not None else None for c in one.components]
    sums = max(np.abs(x - one.values[:, i]).max() for i, x in enumerate(rows) if x is not None)
    accuracy = [ld.decompose(c, task.labels).accuracy for c in (before, one)]
    print(f"{steps} steps of 8 rows of {task.name}: accuracy {accuracy[0]:.2f} -> {accuracy[1]:.2f} (trained on them)")
    gaps = ", ".join(f"{c.identity_gap:.0e}" for c in (one, two, heads))
    print(f"identity gap: merged, with rows of adapters, with these and heads: {gaps}")
    print(f"merged against merge_and_unload: {np.abs(one.values - merged.values).max() / size:.0e} of Σ|u|")
    print(f"base + adapter rows against merged rows: {sums / size:.0e} of Σ|u|")
    difference = two.values[:, :, 0] - two.values[:, :, 1]
    top = np.argsort(-np.abs(difference).mean(0))
    written = {two.components[i].label: round(float(np.abs(difference[:, i]).mean()), 3) for i in top}
    largest = [item for item in written.items() if "lora" in item[0]][:5]
    print(f"largest rows of adapters, mean |difference of the first two options|: {largest}")


if __name__ == "__main__":
    main()
