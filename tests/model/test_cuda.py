"""The core analyses on a GPU give what they give on a CPU: `pytest tests/model/test_cuda.py`, where there is one."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.oracles.families import FAMILIES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
IDS, OPTIONS = [[5, 1, 4, 1, 5, 9], [3, 14], [17, 11, 60, 2]], [7, 30, 2]
# Each as an array; float32 products differ by their order alone.
ANALYSES = {
    "sublayers": lambda m: ld.contributions(m, IDS, OPTIONS).values,
    "heads": lambda m: ld.contributions(m, IDS, OPTIONS, unit="head").values,
    "neurons": lambda m: ld.contributions(m, IDS, OPTIONS, unit="neuron").values,
    "answers of several tokens": lambda m: ld.contributions(m, IDS, [[[7, 9], [30]]]).log_likelihood,
    "a continuation": lambda m: ld.contributions(m, IDS, continuation=[[7, 9], [2], [3, 3]]).values,
    "top tokens": lambda m: ld.top_tokens(m, IDS[0])["probability"],
    "profile": lambda m: ld.profile(m, IDS[0]).bias,
    "effects": lambda m: ld.effects(m, IDS, OPTIONS[:2], [0, 1, 0], unit="head").frame()["total"],
    "skip": lambda m: ld.depth.skip(m, IDS).values["output_change"],
    "lens": lambda m: ld.depth.logit_lens(m, IDS).values["kl"],
    "integrated gradients": lambda m: ld.depth.integrated_gradients(m, IDS[:1]).frame()["attribution"],
}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "neox_parallel"])
@pytest.mark.parametrize("analysis", ANALYSES)
def test_a_gpu_gives_the_numbers_of_a_cpu(name, analysis):
    model = FAMILIES[name]()
    here, there = (np.asarray(ANALYSES[analysis](ld.load_model(x))) for x in (model, copy.deepcopy(model).to("cuda")))
    np.testing.assert_allclose(there, here, atol=1e-4 * max(1, np.nanmax(np.abs(here))))
