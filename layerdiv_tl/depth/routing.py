"""What the routers of a mixture of experts do with the tokens of some texts: loads, gates, entropies, and which tokens.

A router sends every token to k of n experts. The load of an expert is the share of tokens that go to it; over a layer
the loads sum to k, and k/n each is an even load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv

from .._checks import MOST_ITEMS, whole_number
from .._progress import Advance
from ..components import Component, component_columns
from ..ensemble.intervals import LEVEL, cluster_means, interval_note, jackknife, leave_one_out, share_means
from ..errors import InputError
from ..model.batches import pad
from ..model.experts import Mixture
from ..model.load import Model, as_model
from ..model.prompts import Ids, token_texts
from ..model.routing import read_routes
from ..model.stream_path import number_repeats
from ..results import Result
from .engine import map_batches
from .inputs import read_texts
from .tokens import labeled_frame, mean_columns, with_ends

_NATS = "nats"


@dataclass(frozen=True, eq=False, repr=False)
class RouterStatistics(Result):
    """Loads, gates and entropies of the routers of a model over the tokens of some texts.

    Attributes:
        components, layers: The routed experts, layer by layer, and the layers with a router, in the order they ran.
        routed: `[text, expert]`, how many tokens of a text went to an expert (with a gate that is not 0).
        gates: `[text, expert]`, the sum of their gates, by which the expert's output was multiplied.
        entropies: `[text, layer]`, the sum over tokens of the entropy of the router's scores of all experts, as shares
            of 1, in nats; NaN where the router's gates are no such scores (PhiMoE, ZAYA).
        lengths: `[text]`, how many tokens a text has.
        active: `[layer]`, to how many experts a token goes.
        token_ids, token_routed, token_counts: `[expert, rank]`, the tokens that an expert takes most beyond its load,
            how many of them it took, and how many there were; id −1 where there are fewer.
        tokens: Their texts, `[expert][rank]`.
        compared: How many different tokens there are, for which the intervals of `by_token` hold at once.
    """

    components: tuple[Component, ...]
    layers: tuple[Component, ...]
    routed: Float[np.ndarray, "text expert"]
    gates: Float[np.ndarray, "text expert"]
    entropies: Float[np.ndarray, "text layer"]
    lengths: Int[np.ndarray, " text"]
    active: Int[np.ndarray, " layer"]
    token_ids: Int[np.ndarray, "expert rank"]
    token_routed: Int[np.ndarray, "expert rank"]
    token_counts: Int[np.ndarray, "expert rank"]
    tokens: tuple
    compared: int
    model: str

    @property
    def loads(self) -> Float[np.ndarray, " expert"]:
        """The share of tokens that go to each expert."""
        return self.routed.sum(0) / self.lengths.sum()

    @property
    def layer_of(self) -> Int[np.ndarray, " expert"]:
        """Which of `layers` each expert is in."""
        numbers = {(layer.layer, layer.repeat): number for number, layer in enumerate(self.layers)}
        return np.array([numbers[expert.layer, expert.repeat] for expert in self.components])

    def __repr__(self) -> str:
        loads = self.loads
        least, most = (f"{self.components[i].label} {loads[i]:.1%}" for i in (loads.argmin(), loads.argmax()))
        what = f"{len(loads)} experts in {len(self.layers)} layers, {self.lengths.sum()} tokens"
        return f"RouterStatistics({self.model}: {what}; loads from {least} to {most})"

    def frame(self) -> pd.DataFrame:
        """One row per expert: `load`, the share of tokens that go to it, beside an `even_load`; mean `gate` of these.

        Intervals are over texts.
        """
        counts = np.bincount(self.layer_of)[self.layer_of]
        columns = with_ends("load", *share_means(self.routed, self.lengths[:, None]))
        columns |= {"even_load": self.active[self.layer_of] / counts}
        columns |= mean_columns("gate", self.gates, self.routed)
        columns |= {"tokens": self.routed.sum(0).astype(int)}
        return self._labeled(self.components, columns, {"load": "share of tokens", "gate": "gate", "tokens": "tokens"})

    def by_layer(self) -> pd.DataFrame:
        """One row per layer: how sure its router is of a token, and how evenly it uses its experts.

        `entropy` is the mean over tokens of the entropy of the router's scores of all experts; `load_entropy` that of
        the loads, as shares of 1: both lie between 0 and `highest_entropy` = ln(experts). A router that is sure of
        every token and uses all experts alike has a low `entropy` and a high `load_entropy`. `largest_load` and
        `smallest_load` are shares of tokens. Intervals are over texts; that of `load_entropy` is the jackknife's.
        """
        rows: dict[str, list[Any]] = {}
        for number in range(len(self.layers)):
            inside = self.layer_of == number
            routed, load = self.routed[:, inside], self.loads[inside]
            left_out = _entropy(leave_one_out(routed))
            ends = jackknife(_entropy(routed.sum(0)), left_out, within=(0.0, float(np.log(inside.sum()))))
            row: dict[str, Any] = {"experts": int(inside.sum()), "active": int(self.active[number])}
            row |= dict(zip(("entropy", "entropy_low", "entropy_high"), self._entropy_of(number), strict=True))
            row |= with_ends("load_entropy", float(_entropy(routed.sum(0))), *map(float, ends))
            row |= {"highest_entropy": float(np.log(inside.sum()))}
            row |= {"largest_load": float(load.max()), "smallest_load": float(load.min())}
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
        units = dict.fromkeys(("entropy", "load_entropy", "highest_entropy"), _NATS)
        return self._labeled(self.layers, rows, units | dict.fromkeys(("largest_load", "smallest_load"), "share"))

    def by_token(self) -> pd.DataFrame:
        """One row per expert and token that it takes most: how many of them it took, and how much beyond its load.

        `share` is that of the token's occurrences that went to the expert, `lift` the share over the expert's load (1:
        as any other token). Tokens are in order of the lower end of their `lift`. The ends are those of Clopper and
        Pearson for all `compared` tokens at once (Bonferroni): where routing does not depend on the token, fewer than
        2.5 % of experts have one whose `lift_low` is above 1 (with Wilson's, 6 %). Occurrences are taken for
        independent; those in one text are not, so that a token of one text only says little.
        """
        known = self.token_ids >= 0
        rows = np.nonzero(known)[0]
        hits, counts = self.token_routed[known], self.token_counts[known]
        low, high = _share_ends(hits, counts, self.compared)
        load = self.loads[rows]
        texts = [token for row, own in zip(known, self.tokens, strict=True) for token in own[: row.sum()]]
        columns = component_columns(self.components, rows)
        columns |= {"rank": np.nonzero(known)[1], "token": np.array(texts, dtype=object), "id": self.token_ids[known]}
        columns |= {"routed": hits, "count": counts} | with_ends("share", hits / counts, low, high)
        columns |= with_ends("lift", hits / counts / load, low / load, high / load)
        note = f"{LEVEL:.0%} intervals for {self.compared} tokens at once".replace("%", " %")
        return labeled_frame(columns, {"share": "share of the token's occurrences", "lift": "share / load"}, note)

    def _entropy_of(self, number: int) -> tuple[float, float, float]:
        """The mean entropy of a router's scores, with its interval."""
        sums = self.entropies[:, number]
        if np.isnan(sums).any():
            return (np.nan,) * 3
        mean, low, high = cluster_means(sums, self.lengths)
        return float(mean), float(low), float(high)

    def _labeled(self, components: Any, columns: dict[str, Any], units: dict[str, str]) -> pd.DataFrame:
        return labeled_frame(component_columns(components) | columns, units, interval_note(len(self.lengths), "texts"))


def router_statistics(
    model: Any, texts: Any, *, n_tokens: int = 10, batch_tokens: int | None = None
) -> RouterStatistics:
    """Where the routers of a mixture of experts send the tokens of some texts.

    Args:
        model: A `Model`, or anything `load_model` takes.
        texts: A text, a list of texts or of lists of token ids, or a `Task`. Every token counts.
        n_tokens: How many tokens to keep of those that each expert takes most.
        batch_tokens: The most padded tokens in one forward pass.

    Shared experts have no router and are not listed. Raises InputError for a model without a mixture of experts that
    can be read, and for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> r = ld.router_statistics("zoo/moe", [[1, 2, 3, 4], [4, 5, 6]])
    >>> r.components[0].label, r.routed.sum(1).tolist() == (r.lengths * r.active.sum()).tolist()
    ('L0.E0', True)
    """
    n_tokens = whole_number("n_tokens", n_tokens, 0, MOST_ITEMS)
    model = as_model(model)
    ids = read_texts(model, texts)
    return _Counts(model, ids).result(n_tokens, batch_tokens)


class _Counts:
    """Sums over the passes of a model."""

    def __init__(self, model: Model, ids: list[Ids]) -> None:
        self.model, self.ids = model, ids
        found = [s for s in model.architecture.sublayers if s.mixture is not None]
        if not found:
            reasons = {s.experts_reason for s in model.architecture.sublayers if s.experts_reason}
            why = min(reasons) if reasons else "it has no mixture of experts"
            raise InputError(f"{model.name} has no routers to look at: {why}.")
        self.sublayers = found
        self.distinct, self.places = np.unique(np.concatenate([np.asarray(row) for row in ids]), return_inverse=True)
        self.starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
        # By (number of the sublayer, which of its runs), in the order of the first pass.
        self.order: list[tuple[int, int]] = []
        self.sums: dict[tuple[int, int], dict[str, np.ndarray]] = {}

    def result(self, n_tokens: int, batch_tokens: int | None) -> RouterStatistics:
        """The statistics of all texts."""
        map_batches(self.model, self.ids, batch_tokens, self._add)
        repeats = number_repeats([number for number, _ in self.order])
        components: list[Component] = []
        layers: list[Component] = []
        for (number, _), repeat in zip(self.order, repeats, strict=True):
            sublayer = self.sublayers[number]
            assert isinstance(sublayer.mixture, Mixture)
            layers.append(Component(sublayer.kind, sublayer.layer, repeat=repeat))
            components += [Component("expert", sublayer.layer, i, repeat) for i in range(sublayer.mixture.count)]
        joined = {
            name: np.concatenate([self.sums[key][name] for key in self.order], -1) for name in ("routed", "gates")
        }
        lengths = np.array([len(row) for row in self.ids])
        counts = np.bincount(self.places, minlength=len(self.distinct))
        hits = np.concatenate([self.sums[key]["hits"] for key in self.order])
        top = _most_taken(hits, counts, joined["routed"].sum(0) / lengths.sum(), n_tokens)
        token_ids = np.where(top >= 0, self.distinct[top], -1)
        routed = np.where(top >= 0, np.take_along_axis(hits, np.maximum(top, 0), 1), 0)
        texts = [tuple(token_texts(self.model, [int(i) for i in row if i >= 0])) for row in token_ids]
        return RouterStatistics(
            tuple(components),
            tuple(layers),
            joined["routed"],
            joined["gates"],
            np.stack([self.sums[key]["entropy"] for key in self.order], 1),
            lengths,
            np.array([int(self.sums[key]["active"]) for key in self.order]),
            token_ids,
            routed,
            np.where(top >= 0, counts[top], 0),
            tuple(texts),
            len(self.distinct),
            self.model.name,
        )

    def _add(self, rows: list[int], advance: Advance) -> None:
        """One pass."""
        ids, mask = (x.to(self.model.architecture.device) for x in pad([self.ids[i] for i in rows]))
        mixtures = [s.mixture for s in self.sublayers if isinstance(s.mixture, Mixture)]
        text = np.repeat(rows, [len(self.ids[i]) for i in rows])
        place = np.concatenate([self.places[self.starts[i] : self.starts[i + 1]] for i in rows])
        real, runs = mask.flatten().bool(), dict.fromkeys(range(len(mixtures)), 0)
        for number, routes in read_routes(self.model.architecture, mixtures, ids, mask):
            key, count = (number, runs[number]), mixtures[number].count
            runs[number] += 1
            index, gates = routes.index[real].cpu().numpy(), routes.gates[real].double().cpu().numpy()
            entropy = routes.entropy()[real].double().cpu().numpy()
            if key not in self.sums:
                self.order.append(key)
                shape = (len(self.ids), count)
                self.sums[key] = {"routed": np.zeros(shape), "gates": np.zeros(shape)}
                self.sums[key] |= {"hits": np.zeros((count, len(self.distinct)), np.int32)}
                self.sums[key] |= {"entropy": np.zeros(len(self.ids)), "active": np.array(index.shape[1])}
            sums, taken = self.sums[key], gates != 0  # a router may also skip its experts (ZAYA)
            of = np.broadcast_to(text[:, None], index.shape)[taken], index[taken]
            np.add.at(sums["routed"], of, 1.0)
            np.add.at(sums["gates"], of, gates[taken])
            np.add.at(sums["hits"], (index[taken], np.broadcast_to(place[:, None], index.shape)[taken]), 1)
            np.add.at(sums["entropy"], text, entropy)
        advance(len(rows))


def _most_taken(
    hits: Int[np.ndarray, "expert token"],
    counts: Int[np.ndarray, " token"],
    load: Float[np.ndarray, " expert"],
    n_tokens: int,
) -> Int[np.ndarray, "expert rank"]:
    """The tokens that each expert takes most beyond its load, by the lower end of their share; −1 for none."""
    kept = min(n_tokens, len(counts))
    top = np.full((len(hits), kept), -1)
    for row, own in enumerate(hits):
        taken = np.flatnonzero(own)
        if load[row] > 0:
            low, _ = _share_ends(own[taken], counts[taken], len(counts))
            best = taken[np.argsort(-low, kind="stable")][:kept]
            top[row, : len(best)] = best
    return top


def _share_ends(hits: np.ndarray, counts: np.ndarray, compared: int) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's interval of each share, at the level at which `compared` of them hold at once."""
    tail, missed = (1 - LEVEL) / 2 / max(1, compared), counts - hits
    low = betaincinv(np.maximum(hits, 1), missed + 1, tail)
    high = betaincinv(hits + 1, np.maximum(missed, 1), 1 - tail)
    return np.where(hits > 0, low, 0.0), np.where(missed > 0, high, 1.0)


def _entropy(counts: np.ndarray) -> Any:
    """The entropy of counts as shares of 1, over the last axis, in nats."""
    total = counts.sum(-1, keepdims=True)
    return torch.special.entr(torch.as_tensor(counts / np.maximum(total, 1e-300))).sum(-1).numpy()
