"""A plugin of pytest for authors of models and adapters: `pytest -p layerdiv_tl.pytest_plugin`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_exact() -> Callable[..., None]:
    """A function `assert_exact(model, prompts=None)`, which fails unless the sublayers sum to the logits.

    Its message names the sublayer or the place where the sum breaks; the model is whatever `load_model` takes.
    """
    from .attribution.exactness import exactness

    def check(model: Any, prompts: Any = None) -> None:
        reason = exactness(model, prompts)["reason"][0]
        assert not reason, reason

    return check
