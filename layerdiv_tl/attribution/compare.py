"""Two models on the same prompts: what every component writes differently, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float

from ..components import Component
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model import tokenization
from ..model.cuts import UnitLike, unit_of
from ..model.fingerprint import fingerprint
from ..model.load import Model, load_model
from ..model.options import contrast_pairs, is_task
from ..model.options import options as read_options
from .compare_texts import compare_texts
from .comparison import Comparison
from .contribution_results import Contributions
from .contributions import collect, reads_end
from .read_out import ReadOut
from .text_comparison import TextComparison
from .two_models import common_rows, difference, in_rows, one_shape
from .unembedding import OptionReadout
from .vocab_gram import folded_rows

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
        prompts, options, contrast, unit, position, batch_tokens: As in `contributions`. A `Task` brings its options
            and labels. A text, a list of token ids, or several of either, without options, is compared at every token,
            with the token that comes next: a `TextComparison`.
        labels: The gold option of each prompt, as its index or its text.

    Of options of several tokens, the changes are those of the parts of their log-likelihoods, and are not divided
    further. Models of different shape have no component in common: their changes are by module and by relative depth.
    Cost: the two passes of `contributions`; of texts two profiles, and for each model all logits at every token.

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
    unit = unit_of(unit)
    models = [load_model(a), load_model(b)]
    tokenizer = models[0].tokenizer or models[1].tokenizer
    models = [model if model.tokenizer is not None else replace(model, tokenizer=tokenizer) for model in models]
    names, sizes = ([model.name for model in models], [model.architecture.outputs for model in models])
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{names[0]} and {names[1]} have vocabularies of {sizes[0]} and {sizes[1]} tokens: models that answer with "
            "the same tokens can be compared (after adding tokens to one, resize the other's embeddings, too)."
        )
    if options is None and contrast is None and not is_task(prompts):
        for name, given, otherwise in (("labels", labels, None), ("position", position, "last")):
            if given is not otherwise and given != otherwise:
                raise InputError(f"{name} belongs to options: give options, or a text alone to compare at every token.")
        return compare_texts(models, prompts, unit, batch_tokens)
    if contrast is not None:
        if options is not None:
            raise InputError("contrast names two options itself: give either options or contrast.")
        options = contrast_pairs(contrast)
    if is_task(prompts):
        labels = prompts.labels if labels is None else labels
    prepared = [_prepared(model, prompts, options, unit, position, batch_tokens) for model in models]
    runs, texts = [run for run, _ in prepared], prepared[0][1]
    if runs[0].ids != runs[1].ids or not np.array_equal(runs[0].option_ids, runs[1].option_ids):
        raise InputError(
            f"{names[0]} and {names[1]} read these prompts or options as different tokens, so their logits answer "
            "different questions: compare models of one tokenizer, or give token ids."
        )
    same_weights = fingerprint(models[0]) == fingerprint(models[1])
    readings = _add_readers(*runs)
    wide = [collect(run, texts) for run in runs]
    k = wide[0].model_logits.shape[1]
    narrow = [replace(c, values=np.ascontiguousarray(c.values[:, :, :k])) for c in wide]
    scores, rows = [c.comparable for c in narrow], [c.components for c in wide]
    return Comparison(
        a=scores[0],
        b=scores[1],
        parts=_parts(runs, wide, readings) if readings is not None and one_shape(*rows) else None,
        labels=None if labels is None else gold_options(labels, scores[0].values.shape, texts),
        same_weights=same_weights,
        roundoff=max(torch.finfo(run.model.architecture.dtype).eps / 2 for run in runs),
    )


def _prepared(
    model: Model, prompts: Any, options: Any, unit: UnitLike, position: Any, batch_tokens: int | None
) -> tuple[ReadOut, tuple]:
    """The passes of a model, not yet run, and the options' texts."""
    if is_task(prompts):
        if options is None:
            task = prompts.resolve(model, multi_token=True)
            prompts, options = task.prompts, task.option_ids or task.options
        else:
            prompts = prompts.prompts
    ids = tokenization.encode(model, prompts)
    at = tokenization.positions(position, [len(row) for row in ids])
    option_ids, texts = read_options(model, options, ids, prompts if reads_end(ids, at) else None)
    return ReadOut(model, ids, at, option_ids, unit, model.checked_batch_tokens(batch_tokens), None, None), texts


def _add_readers(a: ReadOut, b: ReadOut) -> tuple[int, int] | None:
    """Let both passes be read by model a, and by a's unembedding after b's norm, as far as these differ from b's own.

    Which columns hold the two readings, 0 for the model's own; None where a cannot read what b writes. Both passes get
    the same columns: products of one shape are the same to the last bit where models are the same.
    """
    mine, theirs = a.model.architecture, b.model.architecture
    if a.contexts is not None or mine.norm.gain.numel() != theirs.norm.gain.numel():
        return None
    mixed = replace(mine, norm=theirs.norm)
    own: OptionReadout = b.readout
    rows = own.directions
    by_a, by_both = (folded_rows(reader, own.tokens, torch.float64)[0].cpu() for reader in (mine, mixed))
    readers, readings = [], [0, 0]
    if not torch.equal(by_a, rows):
        readers.append(mine)
        readings[0] = 1
    if not torch.equal(by_both, rows):
        if torch.equal(by_both, by_a):
            readings[1] = readings[0]
        else:
            readers.append(mixed)
            readings[1] = len(readers)
    for run in (a, b) if readers else ():
        run.readout.add_readers(readers)
    return readings[0], readings[1]


def _parts(runs: list[ReadOut], wide: list[Contributions], readings: tuple[int, int]) -> dict[str, Values]:
    """The four parts of every change, in the rows of both models."""
    first, second = wide
    k = first.model_logits.shape[1]
    names = common_rows(first.components, second.components, (first.model, second.model))
    mine, theirs = (in_rows(names, c.components, c.values) for c in wide)

    def reading(values: Values, number: int) -> Values:
        return values[:, :, k * number : k * (number + 1)]

    assert first.statistic is not None
    assert second.statistic is not None
    scale = (second.statistic / first.statistic)[:, None, None]
    by_both, by_b = reading(theirs, readings[1]), reading(theirs, 0)
    by_a = reading(theirs, readings[0])
    before, after = reading(mine, readings[0]), by_a * scale
    parts = {
        "own": difference(after, before),
        "statistic": difference(by_a, after),
        "gain": difference(by_both, by_a),
        "unembedding": difference(by_b, by_both),
    }
    if (constant := Component("constant")) in names:
        at = names.index(constant)
        a, b = (run.readout for run in runs)
        mixed = replace(a.walk.architecture, norm=b.walk.architecture.norm)
        added = folded_rows(mixed, a.tokens, torch.float64)[1].cpu()[a.index[:, :k]].numpy()
        for part in ("own", "statistic"):
            parts[part][:, at] = 0.0
        parts["gain"][:, at] = difference(added, mine[:, at, :k])
        parts["unembedding"][:, at] = difference(by_b[:, at], added)
    return parts
