"""Two models on the same texts: what every component writes differently at every token, over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ..components import Component
from ..errors import InputError
from ..model.cuts import UnitLike
from ..model.fingerprint import fingerprint
from ..model.load import Model
from .profile import profile_columns, profile_of
from .profile_passes import ProfileRun, Texts, profile_run
from .profile_results import SquaredProfile
from .text_comparison import PerComponent, TextComparison
from .two_models import common_rows, difference, in_rows, one_shape
from .vocabulary import Vocabulary


def compare_texts(
    models: Sequence[Model], text_or_ids: Any, unit: UnitLike, batch_tokens: int | None
) -> TextComparison:
    """What `compare` gives for texts: `models` are two of one vocabulary, checked."""
    runs = [profile_run(model, unit, "squared", None, None, None, "float32", batch_tokens) for model in models]
    window = min(run.window for run in runs)  # both see as much of each token's past
    runs = [replace(run, window=window, stride=max(1, window // 2)) for run in runs]
    ids = [run.encode(text_or_ids) for run in runs]
    if ids[0] != ids[1]:
        raise InputError(
            f"{models[0].name} and {models[1].name} read this text as different tokens, so they predict different "
            "things: compare models of one tokenizer, or give token ids."
        )
    if all(len(row) < 2 for row in ids[0]):
        raise InputError("a text of one token has no next one to predict: give a longer text.")
    readings, readers = _readers(runs, ids[0])
    runs = [replace(run, readers=readers) for run in runs]
    profiles, columns = [], []
    for run in runs:
        found = profile_columns(run, ids[0])
        names = [name for name in found if name in ("expectations", "entropies", "statistics") or "reading" in name]
        columns.append({name: found.pop(name) for name in names})
        profile = profile_of(run, ids[0], found)
        assert isinstance(profile, SquaredProfile)
        profiles.append(profile)
    alike = one_shape(profiles[0].components, profiles[1].components)
    return TextComparison(
        a=profiles[0],
        b=profiles[1],
        nets=_pair(c["expectations"] - p.centered_targets for c, p in zip(columns, profiles, strict=True)),
        entropies=_pair(c["entropies"] for c in columns),
        parts=_parts(runs, profiles, columns, readings) if alike and readings is not None else None,
        same_weights=fingerprint(models[0]) == fingerprint(models[1]),
        roundoff=max(torch.finfo(model.architecture.dtype).eps / 2 for model in models),
    )


def _pair(values: Any) -> tuple[Any, Any]:
    a, b = values
    return a, b


def _readers(runs: Sequence[ProfileRun], ids: Texts) -> tuple[tuple[int, int] | None, list[Vocabulary]]:
    """Which reading is a's, and which a's unembedding after b's norm (0 is b's own), and what reads but b's own.

    As in `compare`: None where a cannot read what b writes; what is b's own anyway is not read twice.
    """
    mine, theirs = (run.model.architecture for run in runs)
    if mine.norm.gain.numel() != theirs.norm.gain.numel():
        return None, []
    tokens = torch.tensor(sorted({token for row in ids for token in row[1:]}))
    by_a, by_b = (run.readout.vocabulary for run in runs)
    # Minus their means: two unembeddings may differ in ids only that no text holds.
    known = [by_b.rows(tokens)[:, :-1].cpu()]
    readers, numbers = list[Vocabulary](), list[int]()
    for vocabulary in (by_a, Vocabulary(replace(mine, norm=theirs.norm))):
        vectors = vocabulary.rows(tokens)[:, :-1].cpu()
        same = [i for i, other in enumerate(known) if torch.equal(other, vectors)]
        numbers.append(same[0] if same else len(known))
        if not same:
            known.append(vectors)
            readers.append(vocabulary)
    return (numbers[0], numbers[1]), readers


def _parts(
    runs: Sequence[ProfileRun],
    profiles: Sequence[SquaredProfile],
    columns: Sequence[dict[str, np.ndarray]],
    readings: tuple[int, int],
) -> dict[str, PerComponent]:
    """The four parts of every change of the centered logit, in the rows of both models."""
    names = common_rows(profiles[0].components, profiles[1].components, (profiles[0].model, profiles[1].model))

    def reading(side: int, number: int) -> PerComponent:
        own = profiles[side].centered_targets
        values = columns[side][f"reading {number}"] if number else own
        # Where a text ends there is nothing to predict.
        return in_rows(names, profiles[side].components, np.where(np.isnan(own), np.nan, values).astype(np.float64))

    scale = (columns[1]["statistics"] / columns[0]["statistics"])[:, None]
    before, by_a = reading(0, readings[0]), reading(1, readings[0])
    by_both, by_b = reading(1, readings[1]), reading(1, 0)
    after = by_a * scale
    steps = {
        "own": (after, before),
        "statistic": (by_a, after),
        "gain": (by_both, by_a),
        "unembedding": (by_b, by_both),
    }
    parts = {name: difference(x, y, np.float32) for name, (x, y) in steps.items()}
    if (constant := Component("constant")) in names:
        at, mine = names.index(constant), reading(0, 0)
        a, b = (run.model.architecture for run in runs)
        added = _constants(Vocabulary(replace(a, norm=b.norm)), profiles[0])
        for part in ("own", "statistic"):
            parts[part][:, at] = np.where(np.isnan(mine[:, at]), np.nan, 0.0)
        parts["gain"][:, at] = difference(added, mine[:, at], np.float32)
        parts["unembedding"][:, at] = difference(by_b[:, at], added, np.float32)
    return parts


def _constants(reader: Vocabulary, profile: SquaredProfile) -> Float[np.ndarray, " position"]:
    """What a reader adds to each next token by itself; NaN at the end of a text."""
    following = np.append(profile.token_ids[1:], 0)
    added = reader.rows(torch.as_tensor(following))[:, -1].cpu().numpy()
    return np.where(profile.has_target, added, np.nan)
