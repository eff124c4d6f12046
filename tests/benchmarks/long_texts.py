"""Long texts at a large vocabulary: CPU seconds and peak memory of the profile and the logit lens, by length.

`python -m tests.benchmarks.long_texts [LENGTH …]`, by default 512, 2048 and 8192 tokens of a random Llama with 128 256
words, each in a process of its own. Aims: within 4 GiB, a peak that does not grow much, CPU time linear in the tokens.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

WORDS = 128_256


def measure(what: str, length: int) -> None:
    """Print the cost of one analysis of one text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import layerdiv_tl as ld

    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "max_position_embeddings": length}
    config = LlamaConfig(vocab_size=WORDS, num_attention_heads=4, num_key_value_heads=2, **size)
    model = ld.load_model(LlamaForCausalLM(config).eval())
    ids = torch.randint(0, WORDS, (length,)).tolist()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if what == "profile":
        ld.profile(model, ids)
    else:
        ld.depth.logit_lens(model, [ids])
    took, peak = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{what:8} {length:5} tokens: {took:6.1f} CPU s, peak {peak / 2**20:.2f} GiB ({before / 2**20:.2f} before)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        for what in ("profile", "lens"):
            for length in sys.argv[1:] or ("512", "2048", "8192"):
                subprocess.run([sys.executable, "-m", "tests.benchmarks.long_texts", "--one", what, length], check=True)
