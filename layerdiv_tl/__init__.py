"""Take a language model apart along its residual stream; measure the bias and diversity of its parts.

The public names are loaded when they are first used, so that importing this package is instant.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Component": "components",
    "InputError": "errors",
    "Model": "stream.loading",
    "load_model": "stream.loading",
    "Contributions": "stream.contributions",
    "contributions": "stream.contributions",
    "Decomposition": "ensemble.decomposition",
    "decompose": "ensemble.decomposition",
    "Information": "ensemble.information",
    "information": "ensemble.information",
    "Profile": "ensemble.profile",
    "profile": "stream.profile",
    "CorpusProfile": "ensemble.profile",
    "corpus_profile": "stream.profile",
    "AttentionPatterns": "stream.attention",
    "attention_patterns": "stream.attention",
    "coloured_tokens": "views.tokens",
    "attention_heads": "views.tokens",
    "promoted_tokens": "views.tokens",
    "Study": "studies.study",
    "run_study": "studies.run",
    "DepthStudy": "studies.depth",
    "run_depth": "studies.depth",
    "run_zoo": "studies.zoo",
    "Task": "tasks.task",
    "task": "tasks.task",
    "Explorer": "views.explorer",
    "explore": "views.explorer",
}

_ROOMS = ("depth", "zoo")

__all__ = ["__version__", *_HOME, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'layerdiv_tl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
