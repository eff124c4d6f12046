"""One text through two models, and the rows of a task that two models answer most differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from ...attribution.compare import compare
from ...attribution.full_vocab import vocabulary_readout
from ...attribution.token_logits import model_answers, token_logits
from ...attribution.two_models import common_rows
from ...components import Unit
from ...errors import InputError
from ...model.batches import inference_mode_for
from ...model.fingerprint import fingerprint
from ...model.load import Model, as_model
from ...model.prompts import encode
from .measure import LIKELIEST, LONGEST, TextNumbers, measure_text

# Of how many of a task's rows an explorer holds the texts.
MOST_ROWS = 6


def load_pair(model: Any, other: Any) -> tuple[Model, Model]:
    """Two models of one vocabulary; where one has no tokenizer, the other's is used."""
    a, b = as_model(model), as_model(other)
    if a.architecture.outputs != b.architecture.outputs:
        raise InputError(
            f"{a.name} and {b.name} have vocabularies of {a.architecture.outputs} and {b.architecture.outputs} tokens: "
            "models that answer with the same tokens can be compared."
        )
    tokenizer = a.tokenizer or b.tokenizer
    a, b = (model if model.tokenizer is not None else replace(model, tokenizer=tokenizer) for model in (a, b))
    common_rows(a.components("sublayer"), b.components("sublayer"), (a.name, b.name))
    return a, b


def names_of(a: Model, b: Model | None) -> str:
    """What a page calls its model or models."""
    if b is None:
        return a.name
    same = " (the same weights)" if fingerprint(a) == fingerprint(b) else ""
    return f"{a.name} (a) → {b.name} (b){same}"


def measure_pair(
    a: Model,
    b: Model | None,
    text_or_ids: Any,
    target: Any = None,
    generate: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
) -> TextNumbers:
    """`measure_text` by model a, and by b, if there is one, as its `other`: of the same text and to the same tokens.

    What is written on, a writes. Raises InputError as `measure_text`, and where b reads other tokens.
    """
    first = measure_text(a, text_or_ids, target, generate, on_step)
    if b is None:
        return first
    given = first.sublayers.token_ids[: first.length - first.written].tolist()
    if encode(b, text_or_ids) != [tuple(given)]:
        raise InputError(
            f"{a.name} and {b.name} read this text as different tokens, so they predict different things: compare "
            "models of one tokenizer, or give token ids."
        )
    ids, targets = first.sublayers.token_ids.tolist(), list(first.targets)
    second = replace(measure_text(b, ids, targets or None, 0, on_step), written=first.written)
    likeliest = slice(1, 1 + LIKELIEST)
    candidates = np.concatenate([first.candidates[:1], *(text.candidates[likeliest] for text in (first, second))])
    candidates = np.concatenate([candidates, first.candidates[1 + LIKELIEST :]])
    return replace(_towards(a, first, candidates), other=_towards(b, second, candidates))


def _towards(model: Model, text: TextNumbers, candidates: Int[np.ndarray, "token position"]) -> TextNumbers:
    """A text whose contributions are measured to other tokens."""
    units: tuple[Unit, ...] = ("sublayer",) if text.heads is None else ("sublayer", "head")
    asked = np.where(candidates < 0, candidates[1], candidates)
    with inference_mode_for(model.architecture):
        readouts = {unit: vocabulary_readout(model, unit, "float32") for unit in units}
        known = model_answers(readouts["sublayer"], text.pass_at("sublayer"), 1, candidates).asked
        logits = tuple(token_logits(readouts[unit], text.pass_at(unit), asked) for unit in units)
    return replace(text, candidates=candidates, probabilities=known, logits=logits)


@dataclass(frozen=True)
class ChangedRow:
    """A row of a task: its number, its prompt, the tokens that are compared, and what changed, in a few words."""

    prompt: Any
    targets: list[int]
    name: str


def changed_rows(a: Model, b: Model, task: Any) -> list[ChangedRow]:
    """The rows of a task whose score changed most, largest change first, of those that fit a page.

    The gold option is held against the other whose score changed most relative to it; of options of several tokens the
    first ones are compared, if they differ.
    """
    found = compare(a, b, task)
    frame = found.by_row()
    scores = found.b.logits - found.a.logits
    limit = min(LONGEST, *(model.context or LONGEST for model in (a, b)))
    ids = found.a.option_ids.reshape(*found.a.option_ids.shape[:2], -1)[:, :, 0]
    rows = []
    for row in np.argsort(-frame["change"].abs().to_numpy(), kind="stable"):
        if found.a.lengths[row] > limit:
            continue
        gold = 0 if found.labels is None else int(found.labels[row])
        against = np.abs(scores[row, gold] - scores[row])
        other = int(np.argmax(np.where(np.arange(len(against)) == gold, -1, against)))
        targets = list(dict.fromkeys([int(ids[row, gold]), int(ids[row, other])]))
        rows.append(
            ChangedRow(list(found.a.tokens[row]), targets, f"row {row}: {frame['change'][row]:+.2f}".replace("-", "−"))
        )
        if len(rows) == MOST_ROWS:
            break
    if not rows:
        raise InputError(f"every row of this task has more than the {limit} tokens that an explorer shows.")
    return rows
