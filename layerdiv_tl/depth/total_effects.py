"""Direct, total and indirect effects of heads and sublayers on an answer, by exact ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from .._checks import shown, whole_number
from ..attribution.question import LogitQuestion, read_question
from ..attribution.sequences import teacher_forced
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.attribute import present
from ..model.load import Model, as_model
from ..model.prompts import prompt_ends
from .ablations import Ablation, EffectUnit, Partner, mean_filling, measure_contributions, partner_filling
from .effect_results import Effects
from .engine import Rows, Values, ablate, cross_entropy, read_logits, run_patches
from .inputs import check_choices, known_components
from .patched_forward import PatchedForward


def effects(
    model: Any,
    prompts: Any,
    options: Any = None,
    labels: Any = None,
    *,
    unit: EffectUnit = "sublayer",
    ablation: Ablation = "mean",
    components: Any = None,
    groups: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Effects:
    """Measure the direct and total effect of every component on the answer, and what later components compensate.

    An effect is the answer with the component minus the answer without it: above 0 where the component helps. It is
    measured on the logit difference (the right option minus the mean of the others, in logits), on the loss
    (cross-entropy over the options, in nats; its growth is the `cost`) and on accuracy. The *direct* effect replaces
    only the component's own write to the logits by what the ablation leaves of it. The *total* effect lets every later
    component and the final norm react; *indirect* is total − direct. Behind a post-norm (Gemma 2, OLMo 2), what the
    ablation leaves of a head is read at that norm's statistic in the ablated pass. Options of several tokens are
    compared by their log-likelihoods, in nats, which are no sums over components: they have only total effects.

    Args:
        model, batch_tokens, attention_mask: As in `contributions`.
        prompts, options: As in `contributions`; or a `Task`, which brings options and labels.
        labels: The right option of each prompt, as its index or text; None means the first option.
        unit: "sublayer": attentions and MLPs; "head": heads and MLPs.
        ablation: "zero"; "mean": the component's mean over all of `prompts`, one for first tokens (the attention sink),
            one for last tokens, one for all tokens in between and one for options' tokens, so that rows may differ in
            length; or "resample": its values in another row, aligned from the end of the prompt.
        components: Labels of the components to ablate; None means all of the unit.
        groups: Components to ablate together, as rows of their own: {name: labels}.
        seed: Seed of the rows that resampling draws.

    Of fewer than eight prompts there are no intervals: `_low` and `_high` are NaN, and `attrs["intervals"]` says so.
    Makes 2 + A/2 passes over every row for A ablations (plus one for means). Raises InputError for input that cannot be
    used, and for models whose stream is not only added to.

    >>> import layerdiv_tl as ld
    >>> planted = ld.zoo.planted("undo")
    >>> effects = ld.effects(planted, planted.task, unit="head", ablation="zero")
    >>> effects.frame().set_index("component").loc["L0.H0", ["direct", "total"]].round(6).abs().tolist()
    [0.0, 0.0]
    """
    check_choices(unit=(unit, EffectUnit), ablation=(ablation, Ablation))
    whole_number("seed", seed, 0)
    model = as_model(model)
    if others := {writer.kind for writer in model.path.writers if writer.block is not None} - {"attn", "mlp"}:
        raise InputError(f"{model.name} has a {min(others)} on its stream: effects are of attentions and MLPs alone.")
    asked = read_question(model, prompts, options, attention_mask=attention_mask)
    n, count = asked.option_ids.shape[:2]
    if count < 2 or asked.directions is not None:
        raise InputError("effects are on an answer, compared with others: give at least two options, as texts or ids.")
    labels = asked.labels if labels is None else labels
    gold = gold_options(np.zeros(n, dtype=np.int64) if labels is None else labels, (n, 1, count), asked.options)
    if len(set(asked.ids)) == 1 and ablation != "zero":
        why = "the mean over one prompt is that prompt" if ablation == "mean" else "no other has values to take"
        raise InputError(f"ablation={ablation!r} needs two different prompts: {why}; give more, or ablation='zero'.")
    known = [c for c in model.components(unit) if c.kind in ("attn", "mlp", "head")]
    alone = tuple(known if components is None else known_components("components", components, known, not groups))
    together = {
        name: tuple(known_components(f"group {shown(name)}", some, known)) for name, some in dict(groups or {}).items()
    }
    if taken := sorted(together.keys() & {c.label for c in model.components(unit)}):
        raise InputError(f"groups holds one called {taken[0]}, which is a component: give the group another name.")
    members = (*((c,) for c in alone), *together.values())
    rows, of_example = _rows(model, asked)
    lengths = [len(asked.ids[example]) for example in of_example]
    fill: Callable[[list[int]], Values | None] = lambda batch: None  # noqa: E731
    if ablation == "mean":
        fill = mean_filling(model, unit, rows.ids, lengths, batch_tokens)
    elif ablation == "resample":
        fill = partner_filling(model, unit, rows.ids, lengths, _partners(asked, rows, seed))
    about = {"components": alone, "groups": together, "labels": gold, "options": asked.options, "model": model.name}
    about |= {"unit": unit, "ablation": ablation, "source": asked.task or "prompts"}
    about |= {"prompt_ends": prompt_ends(model, asked.ids)}
    if asked.is_single:
        everything, (values, without, changes, error) = measure_contributions(
            model, rows, gold, members, unit, fill, batch_tokens
        )
        kept = present(model.path, everything, values)
        values = values[:, kept]
        return Effects(
            members=tuple(everything[i] for i in kept),
            values=values,
            logits=values.sum(1),
            without=np.moveaxis(without, 1, 0),
            changes=changes[:, :, kept],
            gap=float(error.max() / max(np.abs(values).sum(1).max(), 1e-300)),
            soft_cap=model.path.soft_cap,
            score="logits",
            **about,
        )

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Tensor]]:
        return ablate(clean, members, fill(batch))

    reading = read_logits(rows, _log_probabilities)
    _, (table,) = run_patches(model, rows, patches, reading, 1 + len(members), batch_tokens)
    # The log-likelihood of an option is the sum over its tokens.
    scores = rows.reduce(np.add, table).reshape(n, len(rows) // n, 1 + len(members)).swapaxes(1, 2)
    return Effects(
        members=(),
        values=None,
        logits=scores[:, 0],
        without=scores[None, :, 1:],
        changes=None,
        gap=float("nan"),
        soft_cap=None,  # log-likelihoods are those of capped logits
        score="log_likelihood",
        **about,
    )


def _log_probabilities(clean: Tensor, targets: Int[Tensor, " n"]) -> Callable[[Tensor], Tensor]:
    """Read the log-probability of each target."""
    del clean
    return lambda logits: -cross_entropy(logits, targets)[None]


def _rows(model: Model, asked: LogitQuestion) -> tuple[Rows, Int[np.ndarray, " row"]]:
    """Return the rows that are read, and the example of each.

    One for each prompt, or one for each prompt and option, which is read wherever a token of the option is predicted.
    """
    n, count = asked.option_ids.shape[:2]
    if asked.is_single:
        answers = list(asked.option_ids[:, None, :, 0])
        return Rows(asked.ids, [[len(ids) - 1] for ids in asked.ids], answers=answers), np.arange(n)
    reads, of = teacher_forced(model, asked.ids, asked.option_ids)
    starts = np.flatnonzero(np.diff(of)) + 1
    at, answers = (np.split(x, starts) for x in (reads.position, reads.targets[:, 0]))
    return Rows(reads.rows, [own.tolist() for own in at], answers=answers), np.repeat(np.arange(n), count)


def _partners(asked: LogitQuestion, rows: Rows, seed: int) -> list[Partner]:
    """Return another example's tokens and prompt length for each row, by a random cycle through all examples."""
    n = len(asked.ids)
    order = np.random.default_rng(seed).permutation(n)
    partner = dict(zip(order, np.roll(order, 1), strict=True))
    count = len(rows) // n
    found = []
    for row in range(len(rows)):
        other = partner[row // count]
        found.append((rows.ids[other * count + row % count], len(asked.ids[other])))
    return found
