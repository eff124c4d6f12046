"""Quantities of sublayers or layers on rows: direct measures from one clean pass, and the effects of ablating them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, one_of
from .._progress import counted
from ..attribution.contributions import contributions
from ..attribution.profile import profile
from ..attribution.profile_results import SquaredProfile
from ..components import Component
from ..ensemble.decomposition import decompose
from ..ensemble.hits import hits
from ..ensemble.information.estimator import single_threaded_blas
from ..ensemble.information.features import prepare
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.batches import inference_mode_for, upcast
from ..model.load import Model
from ..model.options import is_task, single_tokens
from ..model.patched_forward import PatchedForward
from ..model.prompts import Ids
from .inputs import Part, read_texts, resolved
from .passes import cross_entropy, map_batches, softmax
from .residual_norms import residual_norms

Direct = Literal["diversity", "diversity_centered", "net", "relevancy", "relative_norm", "block_influence"]
Effect = Literal["loss", "accuracy"]
AblatedPart = Literal["sublayer", "layer", "attn", "mlp"]
UNITS: Mapping[str, str] = {
    "diversity": "share of the whole",
    "diversity_centered": "share of the whole",
    "net": "nats",
    "relevancy": "bits",
    "relative_norm": "share of the stream's norm",
    "block_influence": "1 − cosine",
    "loss": "nats",
    "accuracy": "share of answers",
}
# Quantities of which a smaller value means a more needed component.
INVERTED = ("net",)
# Relevancy is measured where every class has this many rows.
_LEAST = 8

# Of every row, the sums of each component, and what they are divided by.
Sums = tuple[Float[np.ndarray, "row component"], Float[np.ndarray, " row"]]
# Of every row, sums over its predictions: cross-entropy in nats (over the options, or the vocabulary), how many are
# correct, and how many there are. The first ablation is empty: the model as it is.
Scores = tuple[Float[np.ndarray, "row ablation"], Float[np.ndarray, "row ablation"], Float[np.ndarray, " row"]]


@dataclass(frozen=True)
class PredictionRows:
    """What a model is to predict: a task's gold options, or every next token of texts.

    Attributes:
        options, labels: `[row, option]` token ids, and `[row]` the gold one's index; None for texts.
        source: The task's name, or "texts".
    """

    ids: tuple[Ids, ...]
    options: Int[np.ndarray, "row option"] | None
    labels: Int[np.ndarray, " row"] | None
    source: str

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """The SHA-256 of the token ids, options and labels."""
        content = [self.ids, *(None if x is None else x.tolist() for x in (self.options, self.labels))]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def take(self, rows: Sequence[int]) -> PredictionRows:
        """Some of the rows."""
        options, labels = (None if x is None else x[list(rows)] for x in (self.options, self.labels))
        return PredictionRows(tuple(self.ids[row] for row in rows), options, labels, self.source)


def read_rows(model: Model, rows: Any) -> PredictionRows:
    """The rows of a `Task`, or of texts as in `residual_norms`.

    Raises InputError for a text of one token, options that are not single tokens of this model, and labels that
    name no option.
    """
    if not is_task(rows):
        ids = tuple(read_texts(model, rows, 2, "no other follows to be predicted"))
        return PredictionRows(ids, None, None, "texts")
    rows = resolved(model, rows)
    prompts = read_texts(model, rows)
    try:
        options, _ = single_tokens(model, rows.option_ids or rows.options, prompts)
    except InputError as error:
        if rows.shared_options is None:
            raise
        instead = "or score the first that differs: give task.resolve(model, multi_token=True)"
        raise InputError(f"{str(error)[:-1]}; {instead}.") from error
    labels = gold_options(rows.labels, (len(prompts), 1, options.shape[1]), tuple(rows.options))
    return PredictionRows(tuple(prompts), options, labels, rows.name)


def ablatable_components(model: Model, ids: Ids, part: AblatedPart) -> tuple[Component, ...]:
    """The components of a part that add to the stream, in stream order. Raises InputError where there are none."""
    choice("part", part, get_args(AblatedPart))
    kinds: Sequence[Part] = ("attn", "mlp") if part == "sublayer" else (part,)
    with inference_mode_for(model.architecture):
        forward = PatchedForward(model, [ids])
    blocks = range(len(forward.layers))
    ablatable = [(kind, block) for block in blocks for kind in kinds if forward.zero_ablate(kind, block)]
    if not ablatable:
        raise InputError(f"{model.name} has no {part} that writes to the stream.")
    return tuple(forward.component(kind, block) for kind, block in ablatable)


def score_ablations(
    model: Model,
    rows: PredictionRows,
    ablations: Sequence[Collection[Component]],
    batch_tokens: int | None = None,
    gone: Collection[Component] = (),
) -> Scores:
    """`Scores` of the model without what is `gone`, and with each set of sublayers or layers ablated, too.

    Every batch is run once; what lies before the first ablated block of a set is not run again.
    """
    loss, correct = np.zeros((2, len(rows), len(ablations) + 1))
    count = np.zeros(len(rows))

    def score_batch(batch: list[int], tell: Callable[[int], Any]) -> None:
        forward = PatchedForward(model, [rows.ids[row] for row in batch])
        predicting, targets, options = predicted(forward, rows, batch)
        counts = predicting.sum(1).cpu().numpy()
        count[batch] = counts
        owner = np.repeat(batch, counts)
        without = _ablation(forward, gone)
        streams = _streams(forward, without)
        for number, members in enumerate([(), *ablations]):
            final = _final_stream(forward, _ablation(forward, members), without, streams)
            final = final[predicting.to(final.device)]
            for chunk in forward.chunks(len(final)):
                logits = forward.logits(final[chunk])
                if options is not None:
                    logits = logits.gather(1, options[chunk].to(logits.device))
                chunk_loss, chunk_correct = _score(logits, targets[chunk].to(logits.device))
                np.add.at(loss[:, number], owner[chunk], chunk_loss)
                np.add.at(correct[:, number], owner[chunk], chunk_correct)
            tell(len(batch))

    map_batches(model, rows.ids, batch_tokens, score_batch, passes=[1 + len(ablations)] * len(rows))
    return loss, correct, count


def ablation_effects(scores: Scores) -> dict[str, Sums]:
    """Over each row's predictions: growth of the loss, and correct predictions lost."""
    loss, correct, count = scores
    return {"loss": (loss[:, 1:] - loss[:, :1], count), "accuracy": (correct[:, :1] - correct[:, 1:], count)}


def predicted(
    forward: PatchedForward, rows: PredictionRows, batch: list[int]
) -> tuple[Tensor, Int[Tensor, " n"], Int[Tensor, "n option"] | None]:
    """(where a batch predicts `[row, token]`, the targets there, the options there or None)."""
    real, device = forward.tokens, forward.ids.device
    predicting = torch.zeros_like(real)
    if rows.options is None or rows.labels is None:
        following = forward.targets()
        predicting[real] = following >= 0
        return predicting, following[following >= 0], None
    predicting[torch.arange(len(batch), device=device), real.sum(1) - 1] = True
    targets, options = (torch.as_tensor(x[batch], device=device) for x in (rows.labels, rows.options))
    return predicting, targets, options


def _ablation(forward: PatchedForward, members: Collection[Component]) -> dict[tuple[int, str], Any]:
    """Some sublayers or layers zero-ablated."""
    ablated: dict[tuple[int, str], Any] = {}
    for block in range(len(forward.layers)):
        for kind in ("attn", "mlp", "layer"):
            if forward.component(kind, block) in members:
                ablated |= forward.zero_ablate(kind, block)
    return ablated


def _streams(forward: PatchedForward, without: dict[tuple[int, str], Any]) -> list[Tensor]:
    """What enters every block, and last the final norm, without what is gone."""
    streams = list(forward.streams)
    if without:
        start = min(block for block, _ in without)

        def keep(block: int, before: Tensor, after: Tensor) -> None:
            streams[block] = before

        streams[-1] = forward.resume(start, streams[start], without, see=keep)
    return streams


def _final_stream(
    forward: PatchedForward,
    ablated: dict[tuple[int, str], Any],
    without: dict[tuple[int, str], Any],
    streams: Sequence[Tensor],
) -> Tensor:
    """The final stream with some sublayers ablated besides those that are gone; from the streams without these."""
    if not ablated:
        return streams[-1]
    start = min(block for block, _ in ablated)
    return forward.resume(start, streams[start], without | ablated)


def _score(logits: Float[Tensor, "n k"], targets: Int[Tensor, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """(cross-entropy, correctness) of each prediction."""
    return cross_entropy(logits, targets).cpu().numpy(), hits(logits, targets).double().cpu().numpy()


def direct_measures(
    model: Model,
    rows: PredictionRows,
    components: Sequence[Component],
    wanted: Collection[str] = get_args(Direct),
    batch_tokens: int | None = None,
) -> dict[str, Sums]:
    """The wanted direct measures of components, as (sums, counts) of every row; see `Agreement`."""
    measures: dict[str, Sums] = {}
    if {"diversity", "diversity_centered", "net", "relevancy"} & set(wanted):
        if rows.options is None:
            measures = _of_texts(model, rows, components, batch_tokens)
        else:
            measures = _of_task(model, rows, components, "relevancy" in wanted, batch_tokens)
    if {"relative_norm", "block_influence"} & set(wanted):
        norms = residual_norms(model, [list(ids) for ids in rows.ids], batch_tokens=batch_tokens)
        columns = [norms.components.index(component) for component in components]
        counts = np.bincount(norms.text).astype(float)
        for name, values in (("relative_norm", norms.relative_norm), ("block_influence", norms.block_influence)):
            sums = np.zeros((len(rows), len(components)))
            np.add.at(sums, norms.text, values[:, columns])
            measures[name] = sums, counts
    return {name: measures[name] for name in get_args(Direct) if name in measures and name in wanted}


def score_components(
    model: Model, rows: PredictionRows, components: tuple[Component, ...], score: str, batch_tokens: int | None
) -> Float[np.ndarray, " component"]:
    """How much each component is needed, by one quantity. Raises InputError for one that these rows do not have."""
    if score not in UNITS:
        raise InputError(f"score={score!r:.40} is unknown: use {one_of(UNITS)}, or give {{label: number}}.")
    if score in get_args(Effect):
        measures = ablation_effects(score_ablations(model, rows, [[c] for c in components], batch_tokens))
    else:
        measures = direct_measures(model, rows, components, (score,), batch_tokens)
    if score not in measures:
        raise InputError(f"score={score!r} needs a task with at least 8 scoring rows of every class: choose another.")
    sums, counts = measures[score]
    return (-1 if score in INVERTED else 1) * sums.sum(0) / counts.sum()


def _of_task(
    model: Model, rows: PredictionRows, components: Sequence[Component], relevancy: bool, batch_tokens: int | None
) -> dict[str, Sums]:
    assert rows.options is not None
    assert rows.labels is not None
    c = contributions(model, [list(ids) for ids in rows.ids], rows.options.tolist(), batch_tokens=batch_tokens)
    members, ones = _membership(c.components, components), np.ones(len(rows))
    squared = decompose(c, rows.labels)
    raw, centered = squared.diversities, squared.centered.diversities
    measures = {
        "diversity": (raw @ members, raw.sum(1)),
        "diversity_centered": (centered @ members, centered.sum(1)),
        "net": (decompose(c, rows.labels, loss="cross_entropy").net_linear @ members, ones),
    }
    classes, y = np.unique(rows.labels, return_inverse=True)
    if relevancy and len(classes) > 1 and np.bincount(y).min() >= _LEAST:
        values = np.einsum("rmo,mc->rco", c.values, members)
        # A component with the same contrast between options in all rows has nothing to classify by.
        varies = np.ptp(values - values.mean(2, keepdims=True), axis=(0, 2)) > 0
        bits = np.zeros((len(rows), len(components)))
        if varies.any():
            with single_threaded_blas():
                bits[:, varies] = prepare(values[:, varies], y, "variational").classifier.single_rows.T
        measures["relevancy"] = bits, ones
    return measures


def _of_texts(
    model: Model, rows: PredictionRows, components: Sequence[Component], batch_tokens: int | None
) -> dict[str, Sums]:
    sums, counts = np.zeros((3, len(rows), len(components))), np.zeros((3, len(rows)))
    for row, ids in enumerate(counted(rows.ids, model.name, len(rows.ids), "text")):
        # With its own prediction as target, products with it are the expectations that the net needs.
        p = profile(model, [list(ids)], target=_predictions_at(model, ids), batch_tokens=batch_tokens)
        assert isinstance(p, SquaredProfile)
        assert p.centered is not None
        assert p.agreements is not None
        last = len(ids) - 1
        diversity, centered = (values[:, :last].sum(1) for values in (p.diversity, p.centered.diversity))
        net = (p.agreements - p.centered_targets)[:last].astype(np.float64).sum(0)
        sums[:, row] = np.stack([diversity, centered, net]) @ _membership(p.components, components)
        counts[:, row] = diversity.sum(), centered.sum(), last
    return dict(zip(("diversity", "diversity_centered", "net"), zip(sums, counts, strict=True), strict=True))


def _predictions_at(model: Model, ids: Sequence[int]) -> Float[np.ndarray, "position vocabulary"]:
    """The model's distributions, before a soft-cap where there is one."""
    architecture = model.architecture
    with inference_mode_for(architecture):
        forward = PatchedForward(model, [ids])
        logits = upcast(architecture.unembed(forward.normed(forward.streams[-1][0])[:, None])[:, 0])
        # A long text's are large, so that they are kept in the precision of the logits.
        return softmax(logits * architecture.logit_multiplier)[0].to(logits.dtype).cpu().numpy()


def _membership(members: Sequence[Component], components: Sequence[Component]) -> Float[np.ndarray, "member component"]:
    """1 where a member is the component or, for a layer, one of its sublayers."""

    def belongs(member: Component, c: Component) -> bool:
        return member == c or (c.kind == "layer" and (member.layer, member.repeat) == (c.layer, c.repeat))

    return np.array([[float(belongs(member, c)) for c in components] for member in members])
