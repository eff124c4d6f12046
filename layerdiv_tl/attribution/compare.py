"""Two models on the same prompts or texts: what every component writes differently, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

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
from .comparison import Comparison, TextComparison, Values
from .contribution_results import Contributions
from .contributions import collect
from .directions import token_directions
from .passes import ContributionPasses
from .profile import profile_columns, profile_of
from .profile_passes import profile_run
from .profile_results import SquaredProfile
from .question import read_question
from .two_models import PerComponent
from .vocabulary import Vocabulary, vocabulary_of


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
    runs = [
        ContributionPasses(model, question, unit, model.checked_batch_tokens(batch_tokens))
        for model, question in zip(models, questions, strict=True)
    ]
    readings = _read_by_both(*runs)
    wide = _collect_both(*runs)
    k = wide[0].model_logits.shape[1]
    a, b = (replace(c, values=np.ascontiguousarray(c.values[:, :, :k])).comparable for c in wide)
    found = Comparison(a=a, b=b, parts=None, **_same_weights(models))
    if labels is not None:
        found = replace(found, labels=gold_options(labels, a.values.shape, first.options))
    return replace(found, parts=_parts(found, wide, readings)) if readings is not None and found.one_shape else found


def _same_weights(models: Sequence[Model]) -> dict[str, Any]:
    """What two models' weights have in common: the fields `same_weights` and `roundoff`."""
    coarsest = max(torch.finfo(model.architecture.dtype).eps / 2 for model in models)
    return {"same_weights": fingerprint(models[0]) == fingerprint(models[1]), "roundoff": coarsest}


@dataclass(frozen=True, eq=False)
class _Readings:
    """Read-outs of some tokens that both models' streams are read by.

    Attributes:
        read_outs: Those that differ on these tokens, of these three: b's, a's, and a's unembedding behind b's norm.
        vectors: Their directions `[token, d+1]`.
        added: `[token]`, what a's unembedding behind b's norm adds by itself.
        by_b, by_a, by_both: Which of them each of the three is.
    """

    read_outs: list[Vocabulary]
    vectors: list[Float[torch.Tensor, "token d+1"]]
    added: Float[np.ndarray, " token"]
    by_b: int
    by_a: int
    by_both: int


def _readings(models: Sequence[Model], tokens: Int[torch.Tensor, " token"], centered: bool, full: bool) -> _Readings:
    """Read-outs of two models; `centered` are minus their means over the vocabulary, and `full` with their constants.

    Without their means, two unembeddings may differ in ids only that no text holds.
    """
    a, b = models
    every = [vocabulary_of(b), vocabulary_of(a), Vocabulary(replace(a.architecture, norm=b.architecture.norm))]
    vectors = [token_directions(v.architecture, tokens) - (v.mean if centered else 0.0) for v in every]
    added = vectors[2][:, -1].cpu().numpy()
    vectors = [x.cpu() if full else x[:, :-1].cpu() for x in vectors]
    alike = [next(i for i, other in enumerate(vectors) if torch.equal(own, other)) for own in vectors]
    distinct = sorted(set(alike))
    numbers = [distinct.index(i) for i in alike]
    return _Readings([every[i] for i in distinct], [vectors[i] for i in distinct], added, *numbers)


def _read_by_both(a: ContributionPasses, b: ContributionPasses) -> _Readings | None:
    """Let both passes be read along the directions of both; None where a cannot read what b writes.

    Single tokens are read as they are, where b's own reading is its reading of itself. Those of longer options are read
    minus the mean over the vocabulary, after b's own, and once more by a with a's statistic, last. Both passes get the
    same columns: products of one shape are the same to the last bit where models are the same.
    """
    if a.model.architecture.norm.gain.numel() != b.model.architecture.norm.gain.numel():
        return None
    long = not a.question.is_single
    found = _readings([a.model, b.model], b.reader.tokens, centered=long, full=True)
    own = [b.reader.vectors] if long else []
    found = replace(found, **{name: getattr(found, name) + long for name in ("by_b", "by_a", "by_both")})
    groups = [*own, *found.vectors]
    if len(groups) > 1:
        for run in (a, b):
            run.reader.read_along(groups[1:], [*range(len(groups)), *[found.by_a] * long], constant=long)
    return found


def _collect_both(a: ContributionPasses, b: ContributionPasses) -> list[Contributions]:
    """Both models' contributions; to options of several tokens, b is also read with what a's passes have shown."""
    first = collect(a)
    if a.contexts is not None and b.contexts is not None:
        b.reader.statistics, b.contexts.others = torch.as_tensor(a.contexts.statistics), a.contexts
    return [first, collect(b)]


def _parts(found: Comparison, wide: Sequence[Contributions], readings: _Readings) -> dict[str, Values]:
    """The four parts of every change, in the rows of both models; of options of several tokens five."""
    names, k, long = found.components, found.a.model_logits.shape[1], wide[0].option_ids.ndim > 2
    # [example, component, option] by which read-out, then by a with its own statistic
    mine, theirs = (
        np.split(in_rows(names, c.components, c.values), range(k, c.values.shape[2], k), axis=2) for c in wide
    )
    before, by_a, by_both, by_b = (
        mine[readings.by_a],
        *(theirs[i] for i in (readings.by_a, readings.by_both, readings.by_b)),
    )
    if long:
        after, constants = theirs[-1], None
    else:
        assert found.a.statistic is not None
        assert found.b.statistic is not None
        after = by_a * (found.b.statistic / found.a.statistic)[:, None, None]
        place = np.unique(found.a.option_ids, return_inverse=True)[1].reshape(found.a.option_ids.shape)
        constants = readings.added[place]
    parts = _steps(names, (before, after, by_a, by_both, by_b), mine[0], constants)
    if long:
        a, b = (in_rows(names, side.components, side.values) for side in (found.a, found.b))
        parts["expectation"] = _difference(b - by_b, a - before)
    return parts


def _steps(
    names: Sequence[Component],
    readings: Sequence[np.ndarray],
    own: np.ndarray,
    added: np.ndarray | None,
    dtype: type = np.float64,
) -> dict[str, np.ndarray]:
    """The parts of a change, `[example, component, …]`, from what is read step by step on the way from a to b.

    `readings`: a's stream by a; b's by a with a's statistic, with b's, by a's unembedding behind b's norm, and by b.
    What the read-outs add by themselves is no component's own change: `own` is a's reading of itself and `added` what
    a's unembedding adds behind b's norm; None where the readings hold both.
    """
    parts = {
        name: _difference(x, y, dtype)
        for name, y, x in zip(("own", "statistic", "gain", "unembedding"), readings, readings[1:], strict=False)
    }
    if (constant := Component("constant")) in names:
        at = names.index(constant)
        before = readings[0][:, at] if added is None else own[:, at]
        between = readings[3][:, at] if added is None else added
        for part in ("own", "statistic"):
            parts[part][:, at] = np.where(np.isnan(before), np.nan, 0.0)
        parts["gain"][:, at] = _difference(between, before, dtype)
        parts["unembedding"][:, at] = _difference(readings[4][:, at], between, dtype)
    return parts


def _difference(x: np.ndarray, y: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """x − y; 0 where it is the rounding of the few products, of precision `dtype`, that made them."""
    found, least = x - y, 8 * np.finfo(dtype).eps
    for row, of in zip(np.atleast_2d(found), np.atleast_2d(x), strict=True):  # one at a time stays in the cache
        row[np.abs(row) <= least * np.abs(of)] = 0.0
    return found


def _compare_texts(models: list[Model], texts: Any, unit: UnitLike, batch_tokens: int | None) -> TextComparison:
    """What `compare` gives for texts: every token is read, with the token that comes next."""
    runs = [profile_run(model, unit, "squared", None, None, None, "float32", batch_tokens) for model in models]
    window = min(run.window for run in runs)  # both see as much of each token's past
    runs = [replace(run, window=window, stride=max(1, window // 2)) for run in runs]
    ids = [run.encode(texts) for run in runs]
    if ids[0] != ids[1]:
        raise InputError(
            f"{models[0].name} and {models[1].name} read this text as different tokens, so they predict different "
            "things: compare models of one tokenizer, or give token ids."
        )
    if all(len(row) < 2 for row in ids[0]):
        raise InputError("a text of one token has no next one to predict: give a longer text.")
    readings = None
    if models[0].architecture.norm.gain.numel() == models[1].architecture.norm.gain.numel():
        tokens = torch.tensor(sorted({token for row in ids[0] for token in row[1:]}))
        readings = _readings(models, tokens, centered=True, full=False)
    profiles, columns = [], []
    for run in runs:
        run = replace(run, readers=[] if readings is None else readings.read_outs[1:])
        found = profile_columns(run, ids[0])
        names = [name for name in found if name in ("expectations", "entropies", "statistics") or "reading" in name]
        columns.append({name: found.pop(name) for name in names})
        profile = profile_of(run, ids[0], found)
        assert isinstance(profile, SquaredProfile)
        profiles.append(profile)
    nets = [c["expectations"] - p.centered_targets for c, p in zip(columns, profiles, strict=True)]
    entropies = (columns[0]["entropies"], columns[1]["entropies"])
    made = TextComparison(
        a=profiles[0],
        b=profiles[1],
        parts=None,
        nets=(nets[0], nets[1]),
        entropies=entropies,
        **_same_weights(models),
    )
    return (
        replace(made, parts=_text_parts(made, columns, readings)) if readings is not None and made.one_shape else made
    )


def _text_parts(
    found: TextComparison, columns: Sequence[dict[str, np.ndarray]], readings: _Readings
) -> dict[str, PerComponent]:
    """The four parts of every change of the centered logit, in the rows of both models."""
    names, profiles = found.components, (found.a, found.b)

    def reading(side: int, number: int) -> PerComponent:
        own = profiles[side].centered_targets
        values = columns[side][f"reading {number}"] if number else own
        # Where a text ends there is nothing to predict.
        return in_rows(names, profiles[side].components, np.where(np.isnan(own), np.nan, values).astype(np.float64))

    before, by_a, by_both, by_b = (
        reading(0, readings.by_a),
        *(reading(1, n) for n in (readings.by_a, readings.by_both, readings.by_b)),
    )
    after = by_a * (columns[1]["statistics"] / columns[0]["statistics"])[:, None]
    # What the read-out adds to the next token by itself; NaN at the end of a text.
    following = np.append(found.a.token_ids[1:], 0)
    added, has_next = np.full(len(following), np.nan), found.a.has_target
    added[has_next] = readings.added[np.unique(following[has_next], return_inverse=True)[1]]
    return _steps(names, (before, after, by_a, by_both, by_b), reading(0, 0), added, np.float32)
