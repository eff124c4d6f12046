"""Two models on the same texts: what every component writes differently at every token, over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import Architecture
from ..model.cuts import UnitLike, has_many
from ..model.fingerprint import fingerprint
from ..model.load import Model
from .full_vocab import ComponentTable
from .profile import measured
from .profile_passes import ColumnStore, ProfileRun, Rows, profile_run
from .profile_results import SquaredProfile
from .text_comparison import PerComponent, TextComparison
from .two_models import common_rows, difference, in_rows, one_shape
from .vocab_gram import folded_rows, probabilities, vocabulary_mean


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
    readers = _readers(runs, ids[0])
    more = [_Readings(run, sum(map(len, ids[0])), readers[1]) for run in runs]
    profiles = []
    for run, readings in zip(runs, more, strict=True):
        found = measured(run, ids[0], more=readings, tables=1 + len(readers[1]))
        assert isinstance(found, SquaredProfile)
        profiles.append(found)
    columns = [readings.store.arrays() for readings in more]
    alike = one_shape(profiles[0].components, profiles[1].components)
    return TextComparison(
        a=profiles[0],
        b=profiles[1],
        nets=_pair(c["expectations"] - p.centered_targets for c, p in zip(columns, profiles, strict=True)),
        entropies=_pair(c["entropies"] for c in columns),
        parts=_parts(runs, profiles, columns, readers[0]) if alike and readers[0] is not None else None,
        same_weights=fingerprint(models[0]) == fingerprint(models[1]),
        roundoff=max(torch.finfo(model.architecture.dtype).eps / 2 for model in models),
    )


def _pair(values: Any) -> tuple[Any, Any]:
    a, b = values
    return a, b


class _Reader:
    """An unembedding's rows behind a norm, less their means over the vocabulary."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.mean, self.constant_mean = vocabulary_mean(architecture, torch.float32)

    def rows(self, ids: Int[Tensor, " position"]) -> tuple[Float[Tensor, "position d"], Float[Tensor, " position"]]:
        """As `Vocabulary.rows`."""
        distinct, index = ids.unique(return_inverse=True)
        rows, constant = folded_rows(self.architecture, distinct, torch.float64)
        return (rows - self.mean)[index], (constant - self.constant_mean)[index]


def _readers(runs: Sequence[ProfileRun], ids: Rows) -> tuple[tuple[int, int] | None, list[_Reader]]:
    """Which reading is a's, and which a's unembedding after b's norm (0 is b's own), and what reads but b's own.

    As in `compare`: None where a cannot read what b writes; what is b's own anyway is not read twice.
    """
    mine, theirs = (run.model.architecture for run in runs)
    if mine.norm.gain.numel() != theirs.norm.gain.numel():
        return None, []
    tokens = torch.tensor(sorted({token for row in ids for token in row[1:]}))
    mixed = replace(mine, norm=theirs.norm)
    by_a, by_both, own = (folded_rows(reader, tokens, torch.float64)[0].cpu() for reader in (mine, mixed, theirs))
    readers: list[_Reader] = []
    readings = [0, 0]
    for number, (rows, architecture) in enumerate(((by_a, mine), (by_both, mixed))):
        if torch.equal(rows, own):
            continue
        if number and torch.equal(by_both, by_a):
            readings[1] = readings[0]
            continue
        readers.append(_Reader(architecture))
        readings[number] = len(readers)
    return (readings[0], readings[1]), readers


class _Readings:
    """What is read of a pass beyond its profile: the model's expectations, entropies, and its writes by other readers.

    Both models' passes are read by all readers: products of one shape are the same to the last bit where models are.
    """

    def __init__(self, run: ProfileRun, count: int, readers: Sequence[_Reader]) -> None:
        half = has_many(run.readout.unit)
        self.store = ColumnStore(count, torch.float32 if half else torch.float64)
        self.readers = readers

    def __call__(self, table: ComponentTable, logits: Tensor, token: Tensor, positions: Tensor) -> None:
        """Fill the columns of some positions."""
        readout, members = table.readout, len(table.components)
        column = partial(self.store.view, positions=positions, device=table.final.device)
        p, entropies = probabilities(logits)
        column("entropies", None).copy_(entropies)
        column("statistics", None).copy_(table.sigma)
        queries = [readout.vocabulary.weighted_rows(readout.dtype, p)]
        queries += [reader.rows(token) for reader in self.readers]
        names = ["expectations", *(f"reading {number + 1}" for number in range(len(self.readers)))]
        out = [column(name, members) for name in names]
        table.inner([direction.to(table.final.device) for direction, _ in queries], out)
        if table.constant is not None:
            for values, (_, constant) in zip(out, queries, strict=True):
                values[:, table.constant] = constant.to(values)
        self.store.settle()


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
        added = _constants(_Reader(replace(a, norm=b.norm)), profiles[0])
        for part in ("own", "statistic"):
            parts[part][:, at] = np.where(np.isnan(mine[:, at]), np.nan, 0.0)
        parts["gain"][:, at] = difference(added, mine[:, at], np.float32)
        parts["unembedding"][:, at] = difference(by_b[:, at], added, np.float32)
    return parts


def _constants(reader: _Reader, profile: SquaredProfile) -> Float[np.ndarray, " position"]:
    """What a reader adds to each next token by itself; NaN at the end of a text."""
    following = np.append(profile.token_ids[1:], 0)
    added = reader.rows(torch.as_tensor(following))[1].cpu().numpy()
    return np.where(profile.has_target, added, np.nan)
