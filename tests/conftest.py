"""What tests share: models, and a run that fails where a test is skipped that should not be."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
STORIES = Path(__file__).parent / "stories260K"
# With NO_SKIPS=1, as in the public workflow, a skip for any other reason fails the run.
SKIPS = (
    "TransformerLens 4 has no HookedTransformer",
    "TransformerLens cannot fold",
    "lm-eval is not installed",
    "tuned-lens is not installed",
    "there is a GPU",
    "there is no GPU",
    "signals of POSIX",
)
TEXTS = [
    "Once upon a time there was",
    "Lily and Ben went to the park to play with a big red ball. They were",
    "One day",
]


def llama(seed: int = 0, **settings: object) -> torch.nn.Module:
    """A tiny random Llama whose norms are not the identity."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return randomized(LlamaForCausalLM(LlamaConfig(**{**shape, **settings})))


def tied(*order: int, **settings: object) -> torch.nn.Module:
    """A Llama whose list of blocks holds some more than once."""
    model = llama(**settings)
    blocks = model.model.layers
    model.model.layers = torch.nn.ModuleList([blocks[i] for i in order])
    model.config.num_hidden_layers = len(order)
    return model


def unrolled(model: torch.nn.Module) -> torch.nn.Module:
    """The same weights in blocks of their own: what a model with repeated blocks computes, without repeats."""
    model = copy.deepcopy(model)
    model.model.layers = torch.nn.ModuleList([copy.deepcopy(block) for block in model.model.layers])
    for number, block in enumerate(model.model.layers):
        block.self_attn.layer_idx = number
    return model


def gpt2(seed: int = 0) -> torch.nn.Module:
    """A tiny random GPT-2: LayerNorm, biases everywhere, learned positions, tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    return randomized(GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64)))


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Every vector (norm gains, biases) random and every matrix of a size that matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.eval()


def close(a, b, tolerance: float = 1e-5) -> None:
    """Arrays are equal up to a tolerance, relative or absolute."""
    np.testing.assert_allclose(np.asarray(a, dtype=float), np.asarray(b, dtype=float), rtol=tolerance, atol=tolerance)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say which tests were skipped for want of something that this machine should have, and fail."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("NO_SKIPS"):  # a worker of xdist has no reporter
        return
    reasons = {report.longrepr[2] for report in reporter.stats.get("skipped", [])}
    if wrong := sorted(reason for reason in reasons if not any(known in reason for known in SKIPS)):
        reporter.write_line(f"skipped, and should not have been: {wrong}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def stories_folder() -> Path:
    return STORIES


@pytest.fixture(scope="session")
def stories(stories_folder: Path):
    import layerdiv_tl as ld

    return ld.load_model(stories_folder)


@pytest.fixture(scope="session")
def smol():
    import layerdiv_tl as ld

    return ld.load_model()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty folder for converted models."""
    monkeypatch.setenv("LAYERDIV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def browser():
    """Opens pages in a real Chromium (see browser.py); tests that use it are skipped where there is none."""
    from tests.oracles.browser import Browser

    opened = Browser()
    yield opened
    opened.close()


def pair_table(skip):
    """The changes of later layers at every place, `[place, skipped, layer]`; NaN where no layer follows."""
    uses = [(c.layer, c.repeat) for c in skip.components]
    table = np.full((len(skip.places["text"]), len(uses), len(uses)), np.nan)
    for number, (c, later) in enumerate(zip(skip.pairs.components, skip.pairs.targets, strict=True)):
        where = uses.index((c.layer, c.repeat)), uses.index((later.layer, later.repeat))
        table[:, *where] = skip.pairs.values["change"][:, number]
    return table
