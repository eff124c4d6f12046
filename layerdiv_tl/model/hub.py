"""Check what the Hugging Face hub and the local cache have, and suggest names for a misspelled one."""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
from pathlib import Path

from .. import _registry
from .._checks import shown
from ..errors import InputError
from .converted import DEFAULT_NAME

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
        raise InputError(f"{name!r:.100} is not a local folder, nor {ids}{near(name)}") from error
    cached = any(isinstance(try_to_load_from_cache(name, sign, revision=revision), str) for sign in _SIGNS)
    if constants.is_offline_mode():
        why = "HF_HUB_OFFLINE is set, so that it is not looked up"
    elif (reason := unreachable()) is not None:
        why = f"{constants.ENDPOINT} cannot be reached ({reason})"
    else:
        return False
    if not cached:
        refs = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "refs")
        here = sorted(str(path.relative_to(refs)) for path in refs.rglob("*") if path.is_file())
        if revision is not None and here:
            raise InputError(
                f"{name!r} is in this machine's cache, but not its revision {revision!r} (there are {shown(here)}), "
                f"and {why}."
            )
        name = name if revision is None else f"{name}@{revision}"
        raise InputError(
            f"{name!r} could not be loaded as a Hugging Face id: it is not in this machine's cache of models, and "
            f"{why}; give a local folder, or 'default'{near(name)}"
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


def near(name: str) -> str:
    """Make the end of an error: loadable names like this one, from the zoo, the cache or a local folder."""
    from huggingface_hub import constants

    meant = {"default": "default", DEFAULT_NAME.casefold(): "default"}
    cached = [
        path.name.removeprefix("models--").replace("--", "/") for path in Path(constants.HF_HUB_CACHE).glob("models--*")
    ]
    folders: list[str] = []  # models in the folder that the name points to, or here
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        place = Path(name).expanduser().parent
        here = sorted(os.listdir(place))[:1000]
        folders = [str(place / n) for n in here if n.endswith(".gguf") or (place / n / "config.json").is_file()]
    is_path = os.path.isabs(name) or name.startswith(".")
    for candidate in folders if is_path else (*_registry.lookup("zoo_names"), *cached, *folders):
        meant |= {candidate.casefold(): candidate, candidate.rpartition("/")[2].casefold(): candidate}
    asked = sorted({name.casefold(), name.rpartition("/")[2].casefold()})
    close = [key for word in asked for key in difflib.get_close_matches(word, meant, n=3, cutoff=0.7)]
    likely = list(dict.fromkeys(meant[key] for key in close))[:3]
    return f". Is {' or '.join(map(repr, likely))} meant?" if likely else "."
