"""Check whether the Hugging Face hub answers, and what the local cache has."""

from __future__ import annotations

import contextlib
import os
import threading

from ..errors import InputError

# Seconds to wait for the hub, unless HF_HUB_ETAG_TIMEOUT is set. Its own client tries for a minute.
PATIENCE = 2.0
_SIGNS = ("config.json", "tokenizer_config.json", "tokenizer.json")


def is_local_only(name: str, revision: str | None = None) -> bool:
    """True if this id must come from the local cache because the hub does not answer or is switched off."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        ids = "a Hugging Face id, as 'gpt2' or 'Qwen/Qwen3-0.6B' are"
        raise InputError(f"{name!r:.100} is not a local folder, nor {ids}.") from error
    cached = any(isinstance(try_to_load_from_cache(name, sign, revision=revision), str) for sign in _SIGNS)
    if constants.is_offline_mode():
        why = "HF_HUB_OFFLINE is set, so that it is not looked up"
    elif (reason := unreachable()) is not None:
        why = f"{constants.ENDPOINT} cannot be reached ({reason})"
    else:
        return False
    if not cached:
        name = name if revision is None else f"{name}@{revision}"
        raise InputError(
            f"{name!r} could not be loaded as a Hugging Face id: it is not in this machine's cache of models, and "
            f"{why}; give a local folder, or 'default'."
        )
    return True


def unreachable() -> str | None:
    """The reason why the hub does not answer within PATIENCE; None if it gives any answer."""
    from huggingface_hub import constants, get_session

    limit = PATIENCE
    with contextlib.suppress(KeyError, ValueError):
        limit = max(0.1, float(os.environ["HF_HUB_ETAG_TIMEOUT"]))
    answers: list[str | None] = []

    def request() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=limit)
            answers.append(None)
        except Exception as error:  # httpx, its successors and proxies each raise their own
            answers.append(" ".join(str(error).split())[:120] or type(error).__name__)

    # Address look-ups have no time limit of their own.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(limit + 0.5)
    return answers[0] if answers else f"no answer within {limit:g} s; HF_HUB_ETAG_TIMEOUT=30 waits longer"
