"""Check whether the Hugging Face hub answers, and what the local cache has."""

from __future__ import annotations

import os

from ..errors import InputError

# Seconds to wait for the hub, unless HF_HUB_ETAG_TIMEOUT is set. Its own client tries for a minute.
PATIENCE = 2.0
_SIGNS = ("config.json", "tokenizer_config.json", "tokenizer.json")


def is_local_only(name: str, revision: str | None = None) -> bool:
    """True if this id must come from the local cache because the hub does not answer or is switched off."""
    from huggingface_hub import constants, try_to_load_from_cache

    cached = any(isinstance(try_to_load_from_cache(name, sign, revision=revision), str) for sign in _SIGNS)
    reason = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else unreachable()
    if reason is not None and not cached:
        raise InputError(
            f"{name!r} (revision {revision or 'main'}) is no local folder and not in this machine's cache of models, "
            f"and {constants.ENDPOINT} cannot be asked: {reason}."
        )
    return reason is not None


def unreachable() -> str | None:
    """The reason why the hub does not answer within PATIENCE; None if it gives any answer."""
    from huggingface_hub import constants, get_session

    limit = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", PATIENCE))
    try:
        get_session().head(constants.ENDPOINT, timeout=limit)
    except Exception as error:  # httpx, its successors and proxies each raise their own
        return " ".join(str(error).split()) or type(error).__name__
    return None
