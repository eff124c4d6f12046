"""Two models on the same prompts: what every component writes differently, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float

from ..components import Component
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model import tokenization
from ..model.batches import require_local
from ..model.cuts import UnitLike, unit_of
from ..model.fingerprint import fingerprint
from ..model.load import Model, as_model
from ..model.options import contrast_pairs, is_task
from ..model.options import options as read_options
from ..model.prompts import encode, with_mask
from .compare_texts import compare_texts
from .comparison import Comparison
from .contribution_results import Contributions
from .contributions import collect, prompts_and_options, reads_end
from .directions import token_directions
from .passes import ContributionPasses
from .text_comparison import TextComparison
from .two_models import common_rows, difference, in_rows, one_shape
from .vocabulary import Vocabulary

Values = Float[np.ndarray, "example component option"]


@overload
def compare(
    a: Any,
    b: Any,
    prompts: str | Sequence[Any],
    options: None = None,
    unit: UnitLike = "sublayer",
    *,
    contrast: None = None,
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> TextComparison: ...
@overload
def compare(
    a: Any,
    b: Any,
    prompts: Any,
    options: Any = None,
    unit: UnitLike = "sublayer",
    *,
    labels: Any = None,
    contrast: Any = None,
    position: Any = "last",
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Comparison: ...
def compare(
    a: Any,
    b: Any,
    prompts: Any,
    options: Any = None,
    unit: UnitLike = "sublayer",
    *,
    labels: Any = None,
    contrast: Any = None,
    position: Any = "last",
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Comparison | TextComparison:
    """What changes from model `a` to model `b`, component by component; exact: Σ changes = the change of the logits.

    For a base model and a tuned one, two checkpoints, two seeds, a model and its copy in another precision. With z_i
    what component i adds to the final stream, σ the final norm's statistic, g its gain and W the unembedding, the
    change of its contribution u_i = W (g · z_i) / σ has four parts, which sum to it:

        own change           W_a (g_a · (z_b − z_a)) / σ_a       it wrote something else
        of the statistic     W_a (g_a · z_b) (1/σ_b − 1/σ_a)     the whole stream is longer or shorter
        of the gain          W_a ((g_b − g_a) · z_b) / σ_b       the final norm was changed
        of the unembedding   (W_b − W_a) (g_b · z_b) / σ_b

    (norms that center do so in all four). A component's own change includes what follows from a changed input:
    everything before the first change is as it was, everything after it may write something else without having been
    changed itself; see `Comparison.first_changed`. `constant`, what the read-out adds by itself, has no own change.

    Args:
        a, b: Models, or anything `load_model` takes. Where one has no tokenizer, the other's is used.
        prompts, options, contrast, unit, position, batch_tokens, attention_mask: As in `contributions`. A `Task` brings
            its options and their labels. A text, a list of token ids, or several of either, without options, is
            compared at every token, with the token that comes next: a `TextComparison`.
        labels: The gold option of each prompt, as its index or its text.

    Of options of several tokens, the changes are those of the parts of their log-likelihoods. The four parts are then
    those of the tokens' logits less the means over the vocabulary, summed over tokens (of a set of alternatives, at
    a's weights of these); the rest is a fifth, of the `expectation` that log-likelihoods are relative to: what the
    component adds to the vocabulary on average over the model's next token, less its plain mean, and the normalizer in
    `constant`. Models of different shape have no component in common: their changes are by module and by relative
    depth. Cost: the two passes of `contributions`; of texts two profiles, and for each model all logits at every token.

    Raises InputError for models that read the prompts as different tokens, or have vocabularies of different sizes; for
    labels that name no option; and as `contributions`.

    >>> import layerdiv_tl as ld
    >>> c = ld.compare("zoo/d4", "zoo/d4-seed1", ld.task("synthetic/recall", limit=16))
    >>> c.change.shape, bool(abs(c.change.sum(1) - (c.b.model_logits - c.a.model_logits)).max() < 1e-4)
    ((16, 9, 4), True)
    >>> t = ld.compare("zoo/d4", "zoo/d4-seed1", [3, 1, 4, 1, 5])
    >>> t.change.shape, bool(abs(t.loss_change.sum(0) - t.by_token().net_change)[:4].max() < 1e-6)
    ((9, 5), True)
    >>> ld.compare("zoo/d4", "zoo/d4", ["A: red\\nB: blue\\nA:"], [" red", " blue"]).same_weights
    True
    """
    unit, prompts = unit_of(unit), with_mask(prompts, attention_mask)
    models = [as_model(a), as_model(b)]
    for model in models:
        require_local(model.architecture)
    tokenizer = models[0].tokenizer or models[1].tokenizer
    models = [model if model.tokenizer is not None else replace(model, tokenizer=tokenizer) for model in models]
    names, sizes = ([model.name for model in models], [model.architecture.outputs for model in models])
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{names[0]} and {names[1]} have vocabularies of {sizes[0]} and {sizes[1]} tokens: models that answer with "
            "the same tokens can be compared (after adding tokens to one, resize the other's embeddings, too)."
        )
    if options is None and contrast is None and not is_task(prompts):
        is_last = isinstance(position, str) and position == "last"
        for name, left_out in (("labels", labels is None), ("position", is_last)):
            if not left_out:
                raise InputError(f"{name}= needs options: give options too, or a text alone to compare at every token.")
        return compare_texts(models, prompts, unit, batch_tokens)
    if contrast is not None:
        if options is not None:
            raise InputError("contrast names two options itself: give either options or contrast.")
        options = contrast_pairs(contrast)
    if is_task(prompts) and options is None and labels is None:
        labels = prompts.labels  # they are numbers of its own options
    prepared = [_prepared(model, prompts, options, unit, position, batch_tokens) for model in models]
    runs, texts = [run for run, _ in prepared], prepared[0][1]
    if runs[0].ids != runs[1].ids or not np.array_equal(runs[0].option_ids, runs[1].option_ids):
        raise InputError(
            f"{names[0]} and {names[1]} read these prompts or options as different tokens, so their logits answer "
            "different questions: compare models of one tokenizer, or give token ids."
        )
    same_weights = fingerprint(models[0]) == fingerprint(models[1])
    readings = _read_by_both(*runs)
    wide = _collected(runs, texts)
    k = wide[0].model_logits.shape[1]
    scores = [replace(c, values=np.ascontiguousarray(c.values[:, :, :k])).comparable for c in wide]
    alike = one_shape(*(c.components for c in scores))
    return Comparison(
        a=scores[0],
        b=scores[1],
        parts=_parts(runs, wide, scores, readings) if readings is not None and alike else None,
        labels=None if labels is None else gold_options(labels, scores[0].values.shape, texts),
        same_weights=same_weights,
        roundoff=max(torch.finfo(run.model.architecture.dtype).eps / 2 for run in runs),
    )


def _prepared(
    model: Model, prompts: Any, options: Any, unit: UnitLike, position: Any, batch_tokens: int | None
) -> tuple[ContributionPasses, tuple]:
    """The passes of a model, not yet run, and the options' texts."""
    if is_task(prompts):
        prompts, options = prompts_and_options(model, prompts, options, True)
    ids = encode(model, prompts)
    at = tokenization.positions(position, [len(row) for row in ids])
    option_ids, texts = read_options(model, options, ids, reads_end(ids, at))
    return ContributionPasses(model, ids, at, option_ids, unit, model.checked_batch_tokens(batch_tokens)), texts


@dataclass(frozen=True, eq=False)
class _Readings:
    """Directions that both models' passes are read along: by a, by a's unembedding after b's norm, and by b.

    Attributes:
        by_a, by_both, by_b: Which group of columns holds each; 0 is the model's own.
        added: `[token]`, what a's unembedding after b's norm adds by itself.
    """

    by_a: int
    by_both: int
    by_b: int
    added: Float[np.ndarray, " token"]


def _read_by_both(a: ContributionPasses, b: ContributionPasses) -> _Readings | None:
    """Let both passes be read along the directions of both; None where a cannot read what b writes.

    Single tokens are read as they are, where b's own reading is its reading of itself. Those of longer options are read
    minus the mean over the vocabulary, and once more by a with a's statistic, last. Both passes get the same columns:
    products of one shape are the same to the last bit where models are the same.
    """
    mine, theirs = a.model.architecture, b.model.architecture
    if mine.norm.gain.numel() != theirs.norm.gain.numel():
        return None
    tokens, long = b.reader.tokens, a.contexts is not None
    groups, numbers, added = [b.reader.vectors], list[int](), np.zeros(0)
    for architecture in (mine, mixed := replace(mine, norm=theirs.norm), theirs):
        vectors = token_directions(architecture, tokens).cpu()
        if architecture is mixed:
            added = vectors[:, -1].numpy()
        if long:
            vectors = vectors - Vocabulary(architecture).mean.cpu()
        same = [i for i, other in enumerate(groups) if i >= long and torch.equal(other, vectors)]
        numbers.append(same[0] if same else len(groups))
        groups += [] if same else [vectors]
    if len(groups) > 1:
        for run in (a, b):
            run.reader.read_along(groups[1:], [*range(len(groups)), *numbers[:long]], constant=long)
    return _Readings(numbers[0], numbers[1], numbers[2], added)


def _collected(runs: list[ContributionPasses], texts: tuple) -> list[Contributions]:
    """Both models' contributions; to options of several tokens, b is also read with what a's passes have shown."""
    first = collect(runs[0], texts)
    before, after = (run.contexts for run in runs)
    if before is not None and after is not None:
        runs[1].reader.statistics, after.others = torch.as_tensor(before.statistics), before
    return [first, collect(runs[1], texts)]


def _parts(
    runs: list[ContributionPasses], wide: list[Contributions], scores: list[Contributions], readings: _Readings
) -> dict[str, Values]:
    """The four parts of every change, in the rows of both models; of options of several tokens five."""
    first, second = scores
    k, long = first.model_logits.shape[1], runs[0].contexts is not None
    names = common_rows(first.components, second.components, (first.model, second.model))
    mine, theirs = (in_rows(names, c.components, c.values) for c in wide)

    def reading(values: Values, number: int) -> Values:
        return values[:, :, k * number :][:, :, :k]

    by_a, by_both, by_b = (reading(theirs, n) for n in (readings.by_a, readings.by_both, readings.by_b))
    before = reading(mine, readings.by_a)
    if long:
        after = theirs[:, :, -k:]
    else:
        assert first.statistic is not None
        assert second.statistic is not None
        after = by_a * (second.statistic / first.statistic)[:, None, None]
    parts = {
        "own": difference(after, before),
        "statistic": difference(by_a, after),
        "gain": difference(by_both, by_a),
        "unembedding": difference(by_b, by_both),
    }
    if (constant := Component("constant")) in names:
        at = names.index(constant)
        own, added = before[:, at], by_both[:, at]
        if not long:
            place = np.searchsorted(runs[0].reader.tokens, runs[0].reader.option_ids)
            own, added = mine[:, at, :k], readings.added[place]
        for part in ("own", "statistic"):
            parts[part][:, at] = 0.0
        parts["gain"][:, at] = difference(added, own)
        parts["unembedding"][:, at] = difference(by_b[:, at], added)
    if long:
        rest = [in_rows(names, c.components, c.values) - x for c, x in zip(scores, (before, by_b), strict=True)]
        parts["expectation"] = difference(rest[1], rest[0])
    return parts
