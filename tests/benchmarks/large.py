"""Tokens per second of `contributions` over the plain pass on a large random Llama in bfloat16.

`python tests/benchmarks/large.py` has the shape of an 8B model and needs a GPU of 24 GB;
`--device cpu --layers 2` shows that it runs.
"""

from __future__ import annotations

import argparse

import torch
from contributions import plain, ratio, texts
from transformers import LlamaConfig, LlamaForCausalLM

import layerdiv_tl as ld


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=given.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(given.device):
        network = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model = ld.load_model(network)
    print(model)
    prompts = texts(given.rows, given.tokens)

    def wait() -> None:
        if given.device != "cpu":
            torch.cuda.synchronize()

    for unit in ("sublayer", "head"):
        r, a, b = ratio(
            lambda u=unit: (ld.contributions(model, prompts, [3000, 5000], unit=u), wait()),
            lambda: (plain(model, prompts), wait()),
            given.repeats,
        )
        speed = given.rows * given.tokens / a
        print(f"{unit:8}: {speed:,.0f} tokens/s, {1 / r:.3f} of the plain pass ({a:.2f} s / {b:.2f} s)")


if __name__ == "__main__":
    main()
