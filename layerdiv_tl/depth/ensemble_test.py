"""Is depth an ensemble? A test on exact contributions and reruns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from .._checks import number, whole_number
from ..ensemble.averaging import best_scale, correlations, count_groups, eigenvalues, partition, rotation_null
from ..ensemble.validation import gold_options, numbers
from ..errors import InputError
from ..model.batches import inference_mode_for
from ..model.load import Model, as_model
from ..model.options import single_tokens
from ..model.patched_forward import PatchedForward
from ..model.prompts import Prompts
from .ensemble_passes import Question, measure, rerun
from .ensemble_results import EnsembleTest
from .inputs import read_layers, read_texts
from .passes import layer_components
from .quantities import PredictionRows, read_rows
from .readout import Readout
from .reruns import plan

LEAST_MEMBERS = 4


def ensemble_test(
    model: Any,
    texts: Any,
    group: Any = None,
    *,
    options: Any = None,
    labels: Any = None,
    target: Any = None,
    floor: float | None = None,
    draws: int = 8,
    null_draws: int = 20,
    predictions: int = 512,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> EnsembleTest:
    """Whether the layers of a group average one function, repeat it, step along a flow, or cooperate.

    Each member is read as a predictor: its contribution c_i to the logits times n, beside what all other layers wrote.
    The mean of these is the model. If their errors were independent, n of them would have a loss (above the least there
    can be) n times smaller than one has: κ = 1. The errors' bias, variance and covariance are those of Ueda and Nakano
    (1996; `ensemble.averaging.error_terms`). As κ says nothing where contributions cut one good prediction into pieces,
    layers are also run again: some of them alone (rescaled by n/k, or not), in reverse and random order, one in place
    of all of its part, and side by side. All costs are shares of what leaving the whole group out costs.

    *Inverse Depth Scaling From Most Layers Being Similar* (arXiv 2602.05970) argues from angles between updates that
    depth averages; orthogonal updates, cheap swaps and exponents of a loss occur in every planted regime, so the
    verdict rests on κ and reruns, with thresholds set on planted networks (`zoo.regime`). `beside_planted()` holds
    every number beside theirs; the error rates on other seeds are in the reference.

    Args:
        model, texts: As in `residual_norms`: the loss is that of next tokens, over the whole vocabulary; or a `Task`,
            or prompts with `options`, whose loss is that of the right option.
        group: Which layers, at least four; None leaves out the first and last two (fewer in shallow models).
        options, labels: Single tokens and which of them is right for each prompt.
        target: What the answer should be instead of labels: probabilities `[row, option]`, or another model (a
            teacher). Only then, or with `floor`, is the least possible loss known, without which no verdict can say
            "averages": noise in labels is an error that all members share.
        floor: The least possible loss in nats per prediction.
        draws: How many runs of each kind; 0 runs nothing again.
        null_draws: Draws of the rotation null, which counts groups of output directions.
        predictions: About how many predictions keep their writes for the null.
        seed: Of everything that is drawn.
        batch_tokens: As in `residual_norms`.

    Intervals are jackknife ones over rows: which members were repeated and which subsets were drawn is not in them, so
    that with fewer draws than layers a verdict may change with the seed. Raises InputError for input that cannot be
    used, for groups of fewer than four layers, and for models whose layers cannot be run in another order.

    >>> import layerdiv_tl as ld
    >>> regime = ld.zoo.regime("composition", layers=4)
    >>> found = ld.depth.ensemble_test(regime, **regime.question, draws=2, null_draws=10)
    >>> found.verdict.word, len(found.components)
    ('cooperates', 4)
    """
    model = as_model(model)
    rows, soft, about = _read(model, texts, options, labels, target)
    whole_number("draws", draws, 0, 1000)
    whole_number("null_draws", null_draws, 10, 1000)
    whole_number("predictions", predictions, 1)
    whole_number("seed", seed, 0)
    if floor is not None:
        floor = number("floor", floor, least=0)
        if soft is not None:
            raise InputError("a target says what the least possible loss is: leave floor out.")
    members, blocks, components = _members(model, rows, group, bool(draws))
    readout, places = Readout.of(model, rows.options)
    question = Question(model, rows, tuple(members), soft, readout, places, -(-predictions // len(rows)))
    found = measure(question, batch_tokens)
    moments, n = found.moments(), len(members)
    maps = readout.y_maps(found.places).cpu().numpy()
    null = rotation_null(found.z.cpu().numpy(), maps, null_draws, seed)
    own = correlations(moments.all().means()[1][:, :n, :n])
    parts = partition(own[0], count_groups(eigenvalues(own)[0], eigenvalues(null)))
    losses = found.losses(parts)
    if floor is not None:
        _check_floor(floor, losses[:, 2 * n], moments.predictions)
    runs = plan(blocks, members, parts, draws, seed) if draws else []
    run_loss, effects = np.zeros((len(rows), 0)), np.zeros((len(rows), 0, 2))
    if runs:
        run_loss, effects = rerun(question, runs, batch_tokens)
    least = found.by_row(found.target.entropy()) if floor is None else floor * moments.predictions
    return EnsembleTest(
        components=tuple(components[i] for i in members),
        count=moments.predictions,
        losses=losses,
        entropy=least,
        floor_known=floor is not None or soft is not None,
        products=moments.products,
        sums=moments.sums,
        scale=1.0 if soft is not None else best_scale(moments),
        cosines=found.cosines(),
        null=null,
        parts=parts,
        runs=tuple(run.name for run in runs),
        run_loss=run_loss,
        effects=effects,
        skipped=tuple(run.member for run in runs if run.name == "skip"),
        target=about,
        model=model.name,
        rows=f"{len(rows)} " + ("texts" if rows.options is None else f"rows of {rows.source}"),
        draws=draws,
        seed=seed,
    )


def _check_floor(floor: float, losses: Float[np.ndarray, " row"], count: Float[np.ndarray, " row"]) -> None:
    """Raise InputError for a least possible loss that the model itself is below, by more than its rows may vary."""
    excess = losses - floor * count
    if excess.sum() < -5 * np.sqrt(len(excess)) * excess.std() - 1e-6 * count.sum():
        raise InputError(
            f"floor={floor:g} is above the model's own loss, {losses.sum() / count.sum():.3g} nats per prediction, so "
            "it is not the least possible one: give that, in nats per prediction."
        )


def _read(model: Model, texts: Any, options: Any, labels: Any, target: Any) -> tuple[PredictionRows, Any, str]:
    """(rows, distributions or a model that gives them, what the target is)."""
    if options is None:
        if labels is not None:
            raise InputError("labels name options: give options, too, or a task, which brings both.")
        rows = read_rows(model, texts)
    else:
        ids = tuple(read_texts(model, texts))
        option_ids, names = single_tokens(model, options, Prompts(ids))
        given = np.zeros(len(ids), dtype=np.int64) if labels is None and target is not None else labels
        if given is None:
            raise InputError("options need labels, which of them is right for each text, or a target.")
        gold = gold_options(given, (len(ids), 1, option_ids.shape[1]), names)
        rows = PredictionRows(ids, option_ids, gold, "prompts")
    if target is None:
        return rows, None, "gold options" if rows.options is not None else "next tokens"
    if isinstance(target, np.ndarray | list | tuple | torch.Tensor):
        if rows.options is None:
            raise InputError("target is a table, but every next token is predicted: give a model as target, or a task.")
        table = numbers(target, "target", "[row, option]")
        if table.shape != rows.options.shape or (table < 0).any() or not np.allclose(table.sum(1), 1, atol=1e-6):
            shape = "×".join(map(str, rows.options.shape))
            raise InputError(f"target must be probabilities of every row's options, {shape} numbers that sum to 1.")
        return rows, table, "given distributions"
    other = as_model(target)
    if other.architecture.outputs != model.architecture.outputs:
        raise InputError(f"{other.name} has another vocabulary than {model.name}: its distribution is no target.")
    return rows, other, f"distributions of {other.name}"


def _members(model: Model, rows: PredictionRows, group: Any, reruns: bool) -> tuple[list[int], int, Any]:
    """(the blocks of the group, how many there are, the components of all)."""
    with inference_mode_for(model.architecture):
        forward = PatchedForward(model, [rows.ids[0]])
        if reruns:
            forward.replay([((block, 1.0),) for block in range(len(forward.layers))])
    count = len(forward.layers)
    end = min(2, count // 6)
    members = list(range(end, count - end)) if group is None else sorted(read_layers(group, count, "group"))
    if len(members) < LEAST_MEMBERS:
        have = f"{len(members)} layer{'s' * (len(members) != 1)}"
        raise InputError(f"the group has {have}: order and averages need at least {LEAST_MEMBERS}.")
    return members, count, layer_components(forward)
