"""Compare two models on the same prompts or texts: the exact change of every component's contribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, Int

from ..components import Component
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.architecture import UnitLike
from ..model.batches import require_local
from ..model.cuts import unit_of
from ..model.fingerprint import fingerprint
from ..model.load import Model, as_model
from ..model.options import is_task
from ..model.prompts import with_mask
from .blocks import in_rows
from .comparison import Comparison, TextComparison
from .contributions import collect
from .directions import Directions, token_directions
from .passes import ContributionPasses
from .profile import run_profile
from .profile_passes import profile_run
from .profile_results import SquaredProfile
from .question import LogitQuestion, read_question
from .vocabulary import Vocabulary, vocabulary_of

# The parts of a change, in the order in which a's stream and read-out turn into b's.
PARTS = ("own", "statistic", "gain", "unembedding")


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
    """Attribute the change from model `a` to model `b` to components. Exact: Σ changes = the change of the logits.

    The models may be a base and a tuned model, two checkpoints, two seeds, or copies in two precisions. Let z_i be
    component i's output in the final stream, σ the final norm's statistic, g its gain and W the unembedding. The change
    of the contribution u_i = W (g · z_i) / σ is the sum of four parts:

        own change           W_a (g_a · (z_b − z_a)) / σ_a       it wrote something else
        of the statistic     W_a (g_a · z_b) (1/σ_b − 1/σ_a)     the whole stream is longer or shorter
        of the gain          W_a ((g_b − g_a) · z_b) / σ_b       the final norm was changed
        of the unembedding   (W_b − W_a) (g_b · z_b) / σ_b

    (norms that center do so in all four). A component's own change includes the effect of a changed input: everything
    before the first change stays the same, and everything after it may write something else without having been changed
    itself; see `Comparison.first_changed`. `constant`, the read-out's own term, has no own change.

    Args:
        a, b: Models, or anything `load_model` takes. A model without a tokenizer uses the other's.
        prompts, options, contrast, unit, position, batch_tokens, attention_mask: As in `contributions`. A `Task`
            provides its options and their labels. A text, a list of token ids, or several of either, without options,
            is compared at every token for the next token, which gives a `TextComparison`.
        labels: The index or the text of each prompt's gold option.

    For options of several tokens, the changes are those of the components' terms in their log-likelihoods. The four
    parts are then those of the tokens' logits minus the vocabulary mean, summed over tokens (for a set of alternatives,
    with a's weights). The rest is a fifth part, the change of the `expectation` that log-likelihoods are relative to:
    the component's mean contribution under the model's next-token distribution minus its plain mean, and the normalizer
    in `constant`. Models of different shape have no common components: their changes are by module and relative depth.
    Cost: the two passes of `contributions`; for texts two profiles, and all logits of each model at every token.

    Raises InputError for models that tokenize the prompts differently or have vocabularies of different sizes, for
    labels that name no option, and as `contributions`.

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
    unit, models = unit_of(unit), [as_model(a), as_model(b)]
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
        return _compare_texts(models, with_mask(prompts, attention_mask), unit, batch_tokens)
    if is_task(prompts) and options is None and contrast is None and labels is None:
        labels = prompts.labels  # they are numbers of its own options
    how = {"contrast": contrast, "attention_mask": attention_mask}
    questions = [read_question(model, prompts, options, position, **how) for model in models]
    first, second = questions
    if first.ids != second.ids or not np.array_equal(first.option_ids, second.option_ids):
        raise InputError(
            f"{names[0]} and {names[1]} read these prompts or options as different tokens, so their logits answer "
            "different questions: compare models of one tokenizer, or give token ids."
        )
    return _compare_options(models, questions, unit, batch_tokens, labels)


def _same_weights(models: Sequence[Model]) -> dict[str, Any]:
    """The fields `same_weights` and `roundoff` of a comparison."""
    coarsest = max(torch.finfo(model.architecture.dtype).eps / 2 for model in models)
    return {"same_weights": fingerprint(models[0]) == fingerprint(models[1]), "roundoff": coarsest}


class _ReadOuts(NamedTuple):
    """Three read-outs that are applied to both models' streams: b's, a's, and a's unembedding behind b's norm.

    Attributes:
        vocabularies, directions: The read-outs that differ on these tokens, and their directions `[token, d+1]`.
        added: `[token]`, the constant of a's unembedding behind b's norm.
        by_b, by_a, by_both: The index of each among these.
    """

    vocabularies: list[Vocabulary]
    directions: list[Float[torch.Tensor, "token d+1"]]
    added: Float[np.ndarray, " token"]
    by_b: int
    by_a: int
    by_both: int


def _read_outs(
    models: Sequence[Model], tokens: Int[torch.Tensor, " token"], centered: bool, constant: bool
) -> _ReadOuts | None:
    """Make the read-outs of two models; None where a cannot read b's stream.

    With `centered`, the mean over the vocabulary is subtracted. With `constant`, read-outs that differ only in their
    constants are kept apart.
    """
    a, b = models
    if a.architecture.norm.gain.numel() != b.architecture.norm.gain.numel():
        return None
    every = [vocabulary_of(b), vocabulary_of(a), Vocabulary(replace(a.architecture, norm=b.architecture.norm))]
    found = [(token_directions(v.architecture, tokens) - (v.mean if centered else 0.0)).cpu() for v in every]
    compared = [x if constant else x[:, :-1] for x in found]
    # After centering, two unembeddings may differ only in ids that no text contains.
    alike = [next(i for i, other in enumerate(compared) if torch.equal(own, other)) for own in compared]
    distinct = sorted(set(alike))
    numbers = [distinct.index(i) for i in alike]
    added = found[2][:, -1].numpy()
    return _ReadOuts([every[i] for i in distinct], [found[i] for i in distinct], added, *numbers)


def _compare_options(
    models: Sequence[Model], questions: Sequence[LogitQuestion], unit: UnitLike, batch_tokens: int | None, labels: Any
) -> Comparison:
    """Compare contributions to options.

    Single tokens are read directly, and b's own reading serves as its reading of itself. Longer options are read minus
    the mean over the vocabulary after b's own reading, and b's stream is read last by a with a's statistic.
    """
    first, second = (
        ContributionPasses(model, question, unit, model.checked_batch_tokens(batch_tokens))
        for model, question in zip(models, questions, strict=True)
    )
    long = not questions[0].is_single
    outs = _read_outs(models, second.reader.tokens, centered=long, constant=True)
    readers = [first.reader, second.reader]
    others = [] if outs is None else outs.directions if long else outs.directions[1:]
    for reader in readers:
        reader.along += [(Directions(x, reader.directions.index), None) for x in others]
        reader.walk.has_constant |= long and any(bool(x[:, -1].any()) for x in others)
    wide = [collect(first)]
    if outs is not None and first.contexts is not None and second.contexts is not None:
        # Divided by the statistics of a's passes.
        statistics, last = torch.as_tensor(first.contexts.statistics), second.reader.along[1 + outs.by_a][0]
        second.reader.along.append((last, statistics))
        second.contexts.others = first.contexts
    wide.append(collect(second))
    k = wide[0].model_logits.shape[1]
    a, b = (replace(c, values=np.ascontiguousarray(c.values[:, :, :k])).comparable for c in wide)
    labels = None if labels is None else gold_options(labels, a.values.shape, questions[0].options)
    found = Comparison(a=a, b=b, parts=None, labels=labels, **_same_weights(models))
    if outs is None or not found.one_shape:
        return found
    # [example, component, option] by each read-out in turn
    every = [
        np.split(in_rows(found.components, c.components, c.values), len(reader.along), axis=2)
        for c, reader in zip(wide, readers, strict=True)
    ]
    if long:
        parts = _parts(found.components, (every[0][1:], every[1][1:]), outs)
        own, theirs = (in_rows(found.components, side.components, side.values) for side in (a, b))
        parts["expectation"] = _difference(theirs - every[1][1 + outs.by_b], own - every[0][1 + outs.by_a])
        return replace(found, parts=parts)
    assert a.statistic is not None
    assert b.statistic is not None
    added = outs.added[np.unique(a.option_ids, return_inverse=True)[1].reshape(a.option_ids.shape)]
    return replace(found, parts=_parts(found.components, every, outs, b.statistic / a.statistic, added))


def _parts(
    names: Sequence[Component],
    readings: Sequence[Sequence[np.ndarray]],
    outs: _ReadOuts,
    ratio: Float[np.ndarray, " example"] | None = None,
    added: np.ndarray | None = None,
    dtype: type = np.float64,
) -> dict[str, np.ndarray]:
    """Compute the parts of every change, `[example, component, …]`, from every read-out of a's and of b's stream.

    With `ratio`, b's statistic over a's, a's first reading includes its own `constant`, and `added` is the constant of
    a's unembedding behind b's norm. Otherwise all readings include theirs, and the last is by a with a's statistic.
    """
    mine, theirs = readings
    before, by_a, by_both, by_b = mine[outs.by_a], theirs[outs.by_a], theirs[outs.by_both], theirs[outs.by_b]
    after = theirs[-1] if ratio is None else by_a * ratio.reshape(-1, *[1] * (by_a.ndim - 1))
    steps = pairwise((before, after, by_a, by_both, by_b))
    parts = {name: _difference(y, x, dtype) for name, (x, y) in zip(PARTS, steps, strict=True)}
    if (constant := Component("constant")) in names:  # the read-outs' constants are no component's own change
        at = names.index(constant)
        start, between = (before[:, at], by_both[:, at]) if added is None else (mine[0][:, at], added)
        parts["own"][:, at] = parts["statistic"][:, at] = np.where(np.isnan(start), np.nan, 0.0)
        parts["gain"][:, at] = _difference(between, start, dtype)
        parts["unembedding"][:, at] = _difference(by_b[:, at], between, dtype)
    return parts


def _difference(x: np.ndarray, y: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """x − y; 0 where the difference is within the rounding of the few products in `dtype` that made both."""
    found = x - y
    found[np.abs(found) <= 8 * np.finfo(dtype).eps * np.abs(x)] = 0.0
    return found


def _compare_texts(models: list[Model], texts: Any, unit: UnitLike, batch_tokens: int | None) -> TextComparison:
    """Compare profiles of texts: contributions to the next token at every token."""
    runs = [profile_run(model, unit, "squared", None, None, None, "float32", batch_tokens) for model in models]
    window = min(run.window for run in runs)  # both see the same context of each token
    runs = [replace(run, window=window, stride=max(1, window // 2)) for run in runs]
    ids = [run.encode(texts) for run in runs]
    if ids[0] != ids[1]:
        raise InputError(
            f"{models[0].name} and {models[1].name} read this text as different tokens, so they predict different "
            "things: compare models of one tokenizer, or give token ids."
        )
    if all(len(row) < 2 for row in ids[0]):
        raise InputError("a text of one token has no next one to predict: give a longer text.")
    tokens = torch.tensor(sorted({token for row in ids[0] for token in row[1:]}))
    outs = _read_outs(models, tokens, centered=True, constant=False)
    profiles, readings, nets, entropies, statistics = [], [], [], [], []
    for run in runs:
        run = replace(run, readers=[] if outs is None else outs.vocabularies[1:])
        profile, columns = run_profile(run, ids[0])
        assert isinstance(profile, SquaredProfile)
        own = profile.centered_targets
        profiles.append(profile)
        nets.append(columns.pop("expectations") - own)
        entropies.append(columns.pop("entropies"))
        statistics.append(columns.pop("statistics"))
        # The end of a text has nothing to predict.
        readings.append([own, *(np.where(np.isnan(own), np.nan, x) for x in columns.values())])
    a, b = profiles
    both: dict[str, Any] = {"nets": tuple(nets), "entropies": tuple(entropies)}
    found = TextComparison(a=a, b=b, parts=None, **both, **_same_weights(models))
    if outs is None or not found.one_shape:
        return found
    # The read-out's constant for the next token; NaN at the end of a text.
    following, added = np.append(a.token_ids[1:], 0), np.full(len(a.token_ids), np.nan)
    added[a.has_target] = outs.added[np.searchsorted(tokens.numpy(), following[a.has_target])]
    every = [
        [in_rows(found.components, side.components, x.astype(np.float64)) for x in own]
        for side, own in zip(profiles, readings, strict=True)
    ]
    ratio = statistics[1] / statistics[0]
    return replace(found, parts=_parts(found.components, every, outs, ratio, added, np.float32))
