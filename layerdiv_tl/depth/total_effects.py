"""Direct, total and indirect effects of heads and sublayers on an answer, by exact ablation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .._checks import shown, whole_number
from .._progress import Advance
from ..attribution.question import LogitQuestion, read_question
from ..attribution.sequences import teacher_forced
from ..components import Component
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.attribute import attribute, present
from ..model.frozen import TOLERANCE
from ..model.load import Model, as_model
from ..model.passes import Edits, Pass
from ..model.path import Path
from ..model.prompts import Ids, prompt_ends
from ..model.units import cut_of
from .effect_results import Effects
from .engine import Fill, Rows, Values, ablation_patch, by_zero, gather_rows, held_values, mean_values, score_ablations
from .inputs import check_choices, known_components
from .patched_forward import Key, PatchedForward

EffectUnit = Literal["sublayer", "head"]
Ablation = Literal["mean", "zero", "resample"]


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
    alone = tuple(known if components is None else known_components("components", components, known))
    together = {
        name: tuple(known_components(f"group {shown(name)}", some, known)) for name, some in dict(groups or {}).items()
    }
    if taken := sorted(together.keys() & {c.label for c in model.components(unit)}):
        raise InputError(f"groups holds one called {taken[0]}, which is a component: give the group another name.")
    members = (*((c,) for c in alone), *together.values())
    rows, of_example = _rows(model, asked)
    lengths = [len(asked.ids[example]) for example in of_example]
    fill: Fill = by_zero
    if ablation == "mean":
        fill = mean_filling(model, unit, rows.ids, lengths, batch_tokens)
    elif ablation == "resample":
        fill = partner_filling(model, unit, rows.ids, lengths, _partners(n, len(rows) // n, seed))
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

    # The log-likelihood of an option is the sum over its tokens.
    loss, _ = score_ablations(model, rows, members, fill, batch_tokens)
    scores = -loss.reshape(n, len(rows) // n, 1 + len(members)).swapaxes(1, 2)
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


def _partners(examples: int, count: int, seed: int) -> Int[np.ndarray, " row"]:
    """Return the row of another example for each row, of `count` an example, by a random cycle through all examples."""
    order, partner = np.random.default_rng(seed).permutation(examples), np.empty(examples, dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return (partner[:, None] * count + np.arange(count)).ravel()


def mean_filling(
    model: Model, unit: EffectUnit, ids: Sequence[Ids], prompts: Sequence[int], batch_tokens: int | None
) -> Fill:
    """Fill places with means over rows, apart for first tokens, prompts' last tokens, options' and all others."""
    kinds = [np.ones(len(row), dtype=int) for row in ids]
    for kind, end in zip(kinds, prompts, strict=True):
        kind[0] = 0
        kind[end - 1], kind[end:] = 2, 3
    means = mean_values(model, ids, kinds, batch_tokens, held_values, unit == "head")
    return lambda batch: partial(_gather, means, [torch.as_tensor(kinds[row]) for row in batch])


def partner_filling(
    model: Model, unit: EffectUnit, ids: Sequence[Ids], prompts: Sequence[int], partners: Int[np.ndarray, " row"]
) -> Fill:
    """Fill places with values of each row's partner, aligned from the prompt's end; first tokens take first ones."""

    def fill(batch: list[int]) -> Values:
        begin, index = 0, []
        for row in batch:
            other, prompt, end = ids[partners[row]], prompts[row], prompts[partners[row]]
            place = (np.arange(len(ids[row])) - prompt + end).clip(min(1, end - 1), len(other) - 1)
            place[0] = 0 if prompt > 1 else end - 1
            index.append(torch.as_tensor(begin + place))
            begin += len(other)
        others = PatchedForward(model, [ids[partners[row]] for row in batch], unit == "head")
        held = {key: value[others.tokens] for key, value in held_values(others)}
        return partial(_gather, held, index)

    return fill


def _gather(tables: dict[Key, Tensor], index: list[Int[Tensor, " token"]], key: Key) -> Tensor:
    """Look up each token's value of a key, `[row, token, width]`."""
    return tables[key][pad_sequence(index, batch_first=True).to(tables[key].device)]


def measure_contributions(
    model: Model,
    rows: Rows,
    gold: Int[np.ndarray, " row"],
    ablations: Sequence[Sequence[Component]],
    unit: EffectUnit,
    fill: Fill,
    batch_tokens: int | None,
) -> tuple[tuple[Component, ...], list[np.ndarray]]:
    """Measure contributions to each row's `answers` at its one position, and what every ablation leaves of them.

    Returns all components; their contributions in the clean pass, `[row, component, option]`; logits under each
    ablation in each of the `SCENARIOS` of `effect_results`, `[row, scenario, ablation, option]`; each component's
    contribution to the logit difference in the clean pass minus that under the ablation, both at the clean norm,
    `[row, ablation, component]`; and the largest error of a total effect, as the sum of components' against the
    model's own logits, `[row]`.

    Raises InputError for a stream that passes the final norm on its way, and where contributions do not sum to the
    logits.
    """
    path = model.path

    def measure(batch: list[int], advance: Advance) -> tuple[tuple[Component, ...], Any, list[np.ndarray]]:
        some = rows.take(batch)
        clean, values = PatchedForward(model, some.ids), fill(batch)
        if clean.normed:
            raise InputError(
                f"the stream of {model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        at = torch.as_tensor(some.row), torch.as_tensor(some.position)
        record = partial(path.record, clean.ids, clean.mask, *at, partial(cut_of, unit))
        known = record()
        targets = torch.as_tensor(some.targets, device=path.device)
        weight, bias = path.unembed_rows(targets)
        directions = weight.to(path.device, path.wide) * path.factor
        offset = 0 if bias is None else bias.to(directions) * path.factor
        own = attribute(path, known, directions, unit)
        u, answers = own.values, _answers(path, known, targets)
        constant = own.components.index(Component("constant"))
        u[:, constant] += offset
        if not (u.sum(1) - answers).abs().max() <= TOLERANCE[path.dtype] * u.abs().sum(1).max():
            raise InputError(f"the components of {model.name} do not sum to its logits: it cannot be decomposed.")
        n, count, k = u.shape
        contrast = u.new_full((n, k), -1.0 / (k - 1))  # the right option minus the mean of the others
        contrast[torch.arange(n), torch.as_tensor(gold[batch])] = 1.0
        without = u.new_empty(n, 3, len(ablations), k)
        changes = u.new_empty(n, len(ablations), count)
        gap = u.new_zeros(n)
        for number, members in enumerate(ablations):
            patch = ablation_patch(clean, members, values)
            start = min(block for block, _ in patch)
            with clean.patched(start, [clean.streams[start]], patch):
                patched = _whole(record(), known)
            advance(len(batch))
            # On the clean pass's path, where changes add up: u − u' of every component.
            ablated = attribute(path, patched, directions, unit, own.slopes)
            change, total = u - ablated.values, ablated.sums + offset
            change[:, constant] -= offset
            mine = [own.components.index(member) for member in members]
            without[:, 0, number] = u.sum(1) - change[:, mine].sum(1)
            without[:, 1, number] = u.sum(1) - change.sum(1)
            without[:, 2, number] = total
            changes[:, number] = torch.einsum("rmo,ro->rm", change, contrast)
            # Check the parts against the model's own answers.
            error = (u.sum(1) - total) - (answers - _answers(path, patched, targets))
            gap = torch.maximum(gap, error.abs().amax(1))
        return own.components, batch, [table.cpu().numpy() for table in (u, without, changes, gap)]

    return gather_rows(model, rows.ids, batch_tokens, measure, len(ablations))


def _answers(path: Path, seen: Pass, targets: Int[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """The model's own logits of the targets, before any soft-cap."""
    assert seen.unembedded is not None
    return seen.unembedded.gather(1, targets).to(path.wide) * path.factor


def _whole(patched: Pass, known: Pass) -> Pass:
    """Complete the record of a pass that resumed at some block by what the clean pass wrote before it."""
    ran = [i for i, (writer, _) in enumerate(patched.calls) if writer.block is not None]
    calls = [i for i, (writer, _) in enumerate(known.calls) if writer.block is not None]
    writes, inputs = list(known.writes), list(known.inputs)
    for i, mine in zip(calls[-len(ran) :], ran, strict=True):
        writes[i], inputs[i] = patched.writes[mine], patched.inputs[mine]
    edits: Edits = defaultdict(list)
    for key, found in known.edits.items():
        again = patched.edits.get(key, [])
        edits[key] = [*found[: len(found) - len(again)], *again]
    return replace(patched, calls=known.calls, writes=writes, inputs=inputs, edits=edits, hooked=known.hooked)
