"""A small result of every class that has a figure: what the tests of figures draw."""

from functools import cache

import numpy as np

import layerdiv_tl as ld
from tests.conftest import llama, tied

PROMPTS = [[1, 2, 3], [4, 5], [6], [9, 2, 7], [3, 8], [5, 5, 1], [2], [7, 4]]
OPTIONS, LABELS = [7, 30, 11], [0, 1, 0, 2, 1, 2, 0, 1]
TEXTS = [[5, 1, 4, 1, 5, 9], [3, 14, 15], [17, 11, 60, 0, 7]]
ROWS = [[i % 61, (3 * i) % 61, 5, i // 2, 7, 11 + i, 40 - i] for i in range(12)]
LAYERS = {"2 layers": 2, "3 layers": 3, "5 layers": 5}
TASKS = ("first", "second", "third")


@cache
def deep():
    return ld.load_model(llama(num_hidden_layers=4))


def heads():
    """A model that runs two of its blocks twice, by heads."""
    return ld.contributions(tied(0, 1, 2, 0, 1), PROMPTS, OPTIONS, unit="head")


def effects():
    groups = {"a pair": ["L0.H0", "L1.mlp"]}
    ids = [[i % 61, (3 * i) % 61, 5, i // 2, 7] for i in range(9)]
    return ld.effects(llama(), ids, [7, 9, 12], np.arange(9) % 3, unit="head", groups=groups)


@cache
def information():
    """Six noisy copies of a label, in two halves that share their noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    noise = np.repeat(rng.normal(size=(600, 3)), 2, axis=1) + 0.7 * rng.normal(size=(600, 6))
    return ld.information(y[:, None] * 0.8 + noise, y)


MAKERS = {
    "Decomposition": lambda: ld.decompose(heads(), LABELS),
    "Contributions": lambda: ld.contributions(llama(), PROMPTS, OPTIONS),
    "Contributions of heads": heads,
    "Continuation": lambda: ld.continuation(llama(), PROMPTS[:2], max_new_tokens=5),
    "LogitDifference": lambda: ld.logit_difference(llama(), PROMPTS, [7] * 8, [8] * 8, unit="head"),
    "Comparison": lambda: ld.compare(*(ld.contributions(llama(seed=i), PROMPTS, OPTIONS) for i in range(2))),
    "Profile": lambda: ld.profile(llama(), [[1, 2, 3, 4, 5], [6, 7, 8]]),
    "AttentionPatterns": lambda: ld.attention_patterns(llama(), [1, 2, 3, 4]),
    "SourceTokens": lambda: ld.source_tokens(llama(), PROMPTS[:2], OPTIONS),
    "ResidualNorms": lambda: ld.depth.residual_norms(deep(), TEXTS),
    "Skip": lambda: ld.depth.skip(deep(), TEXTS),
    "LogitLens": lambda: ld.depth.logit_lens(deep(), TEXTS),
    "Erasure": lambda: ld.depth.erase(deep(), TEXTS),
    "IntegratedGradients": lambda: ld.depth.integrated_gradients(deep(), TEXTS, steps=8),
    "LayerMaps": lambda: ld.depth.map_layers(deep(), llama(seed=1), TEXTS),
    "DropPlan": lambda: ld.depth.drop_plan(deep(), ROWS, 3, part="sublayer", random=4),
    "Effects": effects,
    "DepthScore": lambda: ld.depth.depth_score("zoo/d4", ld.depth.questions("synthetic/k_hop", limit=6)),
    "Information": information,
}


@cache
def made(name):
    """The result of a name, computed once."""
    return MAKERS[name]()
