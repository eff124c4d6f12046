"""What a whole-vocabulary profile of the default model costs, as ratios in one run.

    python tests/benchmarks/whole_vocabulary.py [--tokens 512]

Plain pass: the Hugging Face model on the same text with all its logits. "Extra" is the profile's time over
the plain pass, less one, as the median of neighboring runs; the Gram matrix of the vocabulary, which is
made once for a model, is timed apart.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from contributions import ratio
from torch import nn

import layerdiv_tl as ld
from layerdiv_tl.attribution.directions import Directions
from layerdiv_tl.attribution.vocabulary import Vocabulary
from layerdiv_tl.model.batches import inference_mode_for, pad
from layerdiv_tl.model.forward_pass import run


def logits_form(model: ld.Model, ids: list[int]) -> None:
    """The same sums by forming every component's logits, a few thousand ids at a time."""
    architecture = model.architecture
    with inference_mode_for(architecture):
        reader = model.cache["sublayer", "float32"]
        tokens, mask = pad([ids])
        done = run(architecture, tokens, mask)
        for start in range(0, len(ids), 64):
            z = reader.rows_of(done.at_positions(slice(start, start + 64))).streams.float()
            size = torch.zeros(z.shape[:2])
            cross, mean = torch.zeros_like(size), torch.zeros_like(size)
            for _, rows in reader.vocabulary.chunks(torch.float32):
                u = z @ rows[:, :-1].T
                size += (u * u).sum(2)
                mean += u.sum(2)
                cross += (u * u.mean(1, keepdim=True)).sum(2)


def smaller(model: ld.Model, share: int) -> ld.Model:
    """The same model with only the first ids of its vocabulary."""
    import copy

    root = copy.deepcopy(model.architecture.root)
    keep = root.config.vocab_size // share
    for holder, name in ((root.model, "embed_tokens"), (root, "lm_head")):
        getattr(holder, name).weight = nn.Parameter(getattr(holder, name).weight[:keep].clone(), requires_grad=False)
    root.lm_head.out_features = root.config.vocab_size = keep
    return ld.load_model(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    model = ld.load_model()
    ids = np.random.default_rng(0).integers(1000, 12_000, arguments.tokens).tolist()

    def plain(of: ld.Model = model) -> None:
        with torch.inference_mode():
            of.architecture.root(input_ids=torch.tensor([ids]), use_cache=False)

    start = time.perf_counter()
    with inference_mode_for(model.architecture):
        vocabulary = Vocabulary(model.architecture)
        vocabulary.root(torch.float32)
    once = time.perf_counter() - start
    for unit in ("sublayer", "head", "neuron"):
        found, ours, theirs = ratio(lambda unit=unit: ld.profile(model, ids, unit), plain, arguments.repeats)
        print(f"{unit:>9}: extra {found - 1:.2f} of a plain pass with logits ({ours:.3f} s against {theirs:.3f} s)")
    print(f"Gram matrix and root, once: {once:.2f} s = {once / theirs:.2f} plain passes")

    start = time.perf_counter()
    logits_form(model, ids)
    formed = time.perf_counter() - start
    start = time.perf_counter()
    with inference_mode_for(model.architecture):
        tokens, mask = pad([ids])
        done = run(model.architecture, tokens, mask)
    passed = time.perf_counter() - start
    start = time.perf_counter()
    ld.profile(model, ids)
    ours = time.perf_counter() - start
    del done
    sums = sums_alone(model, ids)
    print(
        f"forming the logits: {formed:.1f} s; {(formed - passed) / sums:.0f} times the profile's sums ({sums:.3f} s), "
        f"{(formed - passed) / (ours - passed):.0f} times sums, the model's own loss and checks ({ours - passed:.3f} s)"
    )
    quarter = smaller(model, 4)
    ld.profile(quarter, ids)
    for name, other in (("whole", model), ("quarter", quarter)):
        sums = sums_alone(other, ids)
        print(f"sums over the {name} vocabulary ({other.architecture.outputs} ids): {sums:.3f} s")


def sums_alone(model: ld.Model, ids: list[int]) -> float:
    """Seconds for means, sizes and inner products of all components, the best of five."""
    architecture, times = model.architecture, []
    with inference_mode_for(architecture):
        reader = model.cache["sublayer", "float32"]
        tokens, mask = pad([ids])
        done = run(architecture, tokens, mask)
        for _ in range(5):
            start = time.perf_counter()
            rows = reader.rows_of(done)
            out = [torch.empty(len(ids), len(rows.components), dtype=torch.float64) for _ in range(4)]
            reader.means(rows, out[0])
            reader.sizes(rows, out[1])
            along = torch.cat([rows.final, rows.final[:, :1]], 1).float()
            Directions(torch.stack([along, along], 1), precision=torch.float32).fill(rows, out[2:])
            times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
