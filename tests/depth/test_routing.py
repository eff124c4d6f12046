"""Statistics of routers, against Transformers' own router logits and loops; their error rate without an effect."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth.routing import _most_taken, _share_ends
from tests.oracles import families

TEXTS = [[5, 1, 4, 1, 5, 9], [3, 9, 5], [7, 60, 2, 12, 40, 33, 5, 5], [11, 5], [8, 8, 9, 1], [44, 3, 5], [5], [6, 7, 5]]


@pytest.mark.parametrize("name", ["mixtral", pytest.param("qwen2_moe", marks=pytest.mark.full)])
def test_loads_gates_and_entropies_are_those_of_the_routers(name: str) -> None:
    model = families.family(name)
    r = ld.router_statistics(model, TEXTS, n_tokens=50)
    load, gate, entropy = np.zeros((3, 4)), np.zeros((3, 4)), np.zeros(3)
    taken: Counter[tuple[int, int, int]] = Counter()
    for text in TEXTS:
        with torch.no_grad():
            logits = model(torch.tensor([text]), output_router_logits=True).router_logits
        for layer, own in enumerate(logits):
            p = own.double().softmax(-1).numpy()
            entropy[layer] -= (p * np.log(p)).sum()
            for token, row in zip(text, p, strict=True):
                best = row.argsort()[-2:]
                whole = row[best].sum() if name == "mixtral" else 1.0
                for expert in best:
                    load[layer, expert] += 1
                    gate[layer, expert] += row[expert] / whole
                    taken[layer, expert, token] += 1
    tokens = sum(map(len, TEXTS))
    frame, layers = r.frame(), r.by_layer()
    np.testing.assert_allclose(frame["load"], load.ravel() / tokens)
    np.testing.assert_allclose(frame["gate"], (gate / load).ravel(), rtol=1e-5)
    np.testing.assert_allclose(layers["entropy"], entropy / tokens, rtol=1e-5)
    share = load / load.sum(1, keepdims=True)
    np.testing.assert_allclose(layers["load_entropy"], -(share * np.log(share)).sum(1), rtol=1e-8)
    counts = Counter(token for text in TEXTS for token in text)
    seen = {}
    for row in r.by_token().to_dict("records"):
        seen[row["layer"], row["index"], row["id"]] = row["routed"]
        assert row["count"] == counts[row["id"]]
        np.testing.assert_allclose(
            row["lift"], row["routed"] / row["count"] / (load[row["layer"], row["index"]] / tokens)
        )
    assert seen == dict(taken)


def test_padding_and_batches_change_nothing(tmp_path) -> None:
    model = families.family("mixtral")
    together, alone = (ld.router_statistics(model, TEXTS, batch_tokens=n) for n in (None, 8))
    np.testing.assert_array_equal(together.routed, alone.routed)
    np.testing.assert_array_equal(together.token_ids, alone.token_ids)
    path = together.save(tmp_path / "routing.safetensors")
    assert ld.RouterStatistics.load(path).by_token().equals(together.by_token())


def test_models_without_routers_are_refused() -> None:
    with pytest.raises(ld.InputError, match="mixture"):
        ld.router_statistics(families.family("llama"), TEXTS)
    with pytest.raises(ld.InputError, match="n_tokens"):
        ld.router_statistics(families.family("mixtral"), TEXTS, n_tokens=-1)


@pytest.mark.full
def test_tokens_are_rarely_named_where_routing_does_not_depend_on_them() -> None:
    """At most 2.5 % of experts have a token whose `lift_low` is above 1: the intervals hold for all tokens at once."""
    rng, named, experts = np.random.default_rng(0), 0, 0
    for _ in range(40):
        counts = rng.geometric(0.02, 300)  # rare and frequent tokens
        hits = rng.binomial(counts, 0.25, (25, 300))
        load = hits.sum(1) / counts.sum()
        top = _most_taken(hits, counts, load, 1)[:, 0]
        low, _ = _share_ends(hits[np.arange(25), top], counts[top], 300)
        named, experts = named + int((low / load > 1).sum()), experts + 25
    assert named / experts <= 0.025, named / experts
