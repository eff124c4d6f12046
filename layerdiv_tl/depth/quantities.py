"""Quantities of sublayers or layers on rows: direct measures from one clean pass, and the effects of ablating them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import choice
from .._progress import counted
from ..attribution.contributions import contributions
from ..attribution.profile import profile
from ..components import Component, Unit
from ..ensemble.decompose import decompose
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.load import Model
from ..model.options import is_task, single_tokens
from ..model.prompts import Ids
from .engine import Rows, Values, ablate, loss_and_hits, read_logits, run_patches
from .inputs import Part, read_texts
from .patched_forward import PatchedForward
from .readings import sums_per_text
from .residual_norms import measure_norms

AblatedPart = Literal["sublayer", "layer", "attn", "mlp", "head"]
UNITS: Mapping[str, str] = {
    "contribution": "logits",
    "diversity": "share of the sum",
    "net": "nats",
    "relative_norm": "times the stream's norm",
    "block_influence": "1 − cosine",
    "loss": "nats",
    "accuracy": "share of answers",
}

# `[row, component]` sums over each row, and the `[row]` counts that they are divided by.
Sums = tuple[Float[np.ndarray, "row component"], Float[np.ndarray, " row"]]


def read_rows(model: Model, given: Any) -> tuple[Rows, str]:
    """Read rows of a task at its options' predictions, or texts at all tokens but the last; and name them."""
    if not is_task(given):
        ids = read_texts(model, given, 2, "no other follows to be predicted")
        return Rows(ids, [range(len(row) - 1) for row in ids]), "texts"
    task = given.resolve(model)
    ids = read_texts(model, task)
    options, _ = single_tokens(model, task.option_ids or task.options, ids)
    labels = gold_options(task.labels, (len(ids), 1, options.shape[1]), tuple(task.options))
    return Rows(ids, [[len(row) - 1] for row in ids], options, list(labels[:, None])), task.name


def ablatable_components(model: Model, ids: Ids, part: AblatedPart) -> tuple[Component, ...]:
    """List the components of a part that add to the stream, in stream order. Raises InputError where there are none."""
    choice("part", part, get_args(AblatedPart))
    with model.path.session(), torch.no_grad():
        forward = PatchedForward(model, [ids])
    if part == "head":
        heads = tuple(c for c in model.components("head") if c.kind == "head")
        if not heads:
            raise InputError(f"{model.name} has no attention whose heads write to the stream.")
        return heads
    kinds: Sequence[Part] = ("attn", "mlp") if part == "sublayer" else (part,)
    blocks = range(len(forward.layers))
    ablatable = [(kind, block) for block in blocks for kind in kinds if forward.zero_ablate(kind, block)]
    if not ablatable:
        raise InputError(f"{model.name} has no {part} that writes to the stream.")
    return tuple(forward.component(kind, block) for kind, block in ablatable)


def score_ablations(
    model: Model,
    rows: Rows,
    ablations: Sequence[Collection[Component]],
    batch_tokens: int | None = None,
    values: Values | None = None,
) -> tuple[Float[np.ndarray, "row ablation"], Float[np.ndarray, "row ablation"]]:
    """Sum cross-entropy in nats, and correct predictions, over each row's predictions, first without any ablation.

    What is ablated is replaced by the `values` of its places, or by zero.
    """

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Tensor]]:
        return ablate(clean, ablations, values)

    _, tables = run_patches(model, rows, patches, read_logits(rows, loss_and_hits), 1 + len(ablations), batch_tokens)
    loss, correct = (rows.reduce(np.add, table) for table in tables)
    return loss, correct


def ablation_effects(rows: Rows, loss: np.ndarray, correct: np.ndarray) -> dict[str, Sums]:
    """Return growth of the loss, and correct predictions lost, over each row's predictions."""
    count = np.bincount(rows.row).astype(float)
    return {"loss": (loss[:, 1:] - loss[:, :1], count), "accuracy": (correct[:, :1] - correct[:, 1:], count)}


def direct_measures(
    model: Model, rows: Rows, components: Sequence[Component], batch_tokens: int | None = None
) -> dict[str, Sums]:
    """Compute the direct measures of components from clean passes, as (sums, counts) of every row.

    `contribution`: to the right option's logit minus the mean of the others'; in texts, to the next token's logit minus
    the vocabulary's mean. `diversity`: the component's share of the sum of centered diversities over all components; a
    layer's is the sum over its sublayers. `net`: its additive part of the cross-entropy, E_p[u] − u(t), in nats,
    negative where it helps; of tasks alone. `relative_norm`, `block_influence`: see `ResidualNorms`.
    """
    measures = (_of_texts if rows.options is None else _of_task)(model, rows, components, batch_tokens)
    norms = measure_norms(model, rows.ids, batch_tokens, _unit(components) == "head")
    columns = [norms.components.index(component) for component in components]
    for name in ("relative_norm", "block_influence"):
        sums, counts = sums_per_text(norms.values[name][:, columns].astype(np.float64), norms.places["text"])
        measures[name] = sums, counts[:, 0]
    return measures


def needs(score: str, measures: Mapping[str, Sums]) -> Float[np.ndarray, " component"]:
    """Average how much each component is needed, by one of these measures. Raises InputError for another one."""
    sums, counts = measures[choice("score", score, measures)]
    mean = sums.sum(0) / counts.sum()
    if score == "contribution":
        return np.abs(mean)
    return -mean if score == "net" else mean  # a smaller net is needed more


def _unit(components: Sequence[Component]) -> Unit:
    return "head" if components[0].kind == "head" else "sublayer"


def _of_task(model: Model, rows: Rows, components: Sequence[Component], batch_tokens: int | None) -> dict[str, Sums]:
    assert rows.options is not None
    labels = rows.targets
    ids, unit = [list(ids) for ids in rows.ids], _unit(components)
    c = contributions(model, ids, rows.options.tolist(), unit=unit, batch_tokens=batch_tokens)
    members, ones = _membership(c.components, components), np.ones(len(rows))
    diversities = decompose(c, labels).diversities
    right = np.take_along_axis(c.values, labels[:, None, None], 2)[..., 0]
    difference = right - (c.values.sum(2) - right) / (c.values.shape[2] - 1)
    return {
        "contribution": (difference @ members, ones),
        "diversity": (diversities @ members, diversities.sum(1)),
        "net": (decompose(c, labels, loss="cross_entropy").net_linear @ members, ones),
    }


def _of_texts(model: Model, rows: Rows, components: Sequence[Component], batch_tokens: int | None) -> dict[str, Sums]:
    sums, counts = np.zeros((2, len(rows), len(components))), np.zeros((2, len(rows)))
    for row, ids in enumerate(counted(rows.ids, model.name, len(rows.ids), "text")):
        p = profile(model, [list(ids)], _unit(components), batch_tokens=batch_tokens)
        last = len(ids) - 1
        contribution = p.centered_targets[:last].astype(np.float64).sum(0)
        diversity = p.diversity[:, :last].sum(1)
        sums[:, row] = np.stack([contribution, diversity]) @ _membership(p.components, components)
        counts[:, row] = last, diversity.sum()
    return {"contribution": (sums[0], counts[0]), "diversity": (sums[1], counts[1])}


def _membership(members: Sequence[Component], components: Sequence[Component]) -> Float[np.ndarray, "member component"]:
    """1 where a member is the component or, for a layer, one of its sublayers."""

    def belongs(member: Component, c: Component) -> bool:
        return member == c or (c.kind == "layer" and (member.layer, member.repeat) == (c.layer, c.repeat))

    return np.array([[float(belongs(member, c)) for c in components] for member in members])
