"""Router statistics of a mixture of experts on some texts: loads, gates, entropies and over-represented tokens.

A router sends every token to k of n experts. The load of an expert is the share of tokens that go to it: k/n if even.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv

from .._checks import MOST_ITEMS, whole_number
from .._progress import Advance
from ..components import Component, component_columns
from ..ensemble.intervals import LEVEL, Estimate, estimate, estimate_function, estimates_frame, interval_note
from ..errors import InputError
from ..model.batches import pad
from ..model.experts import Mixture
from ..model.load import as_model
from ..model.prompts import token_texts
from ..model.routing import read_routes
from ..model.stream_path import number_repeats
from ..results import Figure, Result
from .engine import map_batches
from .inputs import read_texts


@dataclass(frozen=True, eq=False, repr=False)
class RouterStatistics(Result):
    """Loads, gates and entropies of the routers of a model over the tokens of some texts.

    Attributes:
        components, layers: The routed experts, layer by layer, and the layers with a router, in the order they ran.
        routed, gates: Number of a text's tokens routed to an expert (with a nonzero gate), and the sum of their gates,
            the factors on the expert's output.
        entropies: Sum over tokens of the entropy of the router's scores of all experts, normalized to sum 1, in nats;
            NaN where the router's gates are not such scores (PhiMoE, ZAYA).
        lengths, active: Number of tokens in a text; number of experts per token.
        token_ids, tokens, token_routed, token_counts: The tokens that an expert takes most beyond its load, their
            spellings, how many of them it took, and how many there were; id −1 where there are fewer.
        compared: Number of distinct tokens, for which the intervals of `by_token` hold jointly.
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
    tokens: tuple[Any, ...]
    compared: int
    model: str

    @property
    def loads(self) -> Float[np.ndarray, " expert"]:
        """The share of tokens that go to each expert."""
        return self.routed.sum(0) / self.lengths.sum()

    @property
    def layer_of(self) -> Int[np.ndarray, " expert"]:
        """The index in `layers` of each expert's layer."""
        numbers = {(layer.layer, layer.repeat): number for number, layer in enumerate(self.layers)}
        return np.array([numbers[expert.layer, expert.repeat] for expert in self.components])

    def __repr__(self) -> str:
        loads = self.loads
        least, most = (f"{self.components[i].label} {loads[i]:.1%}" for i in (loads.argmin(), loads.argmax()))
        what = f"{len(loads)} experts in {len(self.layers)} layers, {self.lengths.sum()} tokens"
        return f"RouterStatistics({self.model}: {what}; loads from {least} to {most})"

    figures: ClassVar = {"map": "depth.load_map", "entropy": "depth.entropy_lines"}

    def plot(self, kind: Literal["map", "entropy"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per expert: `load`, the share of tokens routed to it, the `even_load`, and the mean `gate` of these.

        Intervals are over texts.
        """
        counts = np.bincount(self.layer_of)[self.layer_of]
        columns = {
            "load": estimate(self.routed, "share", counts=self.lengths[:, None], over="texts"),
            "even_load": self.active[self.layer_of] / counts,
            "gate": estimate(self.gates, counts=self.routed, over="texts"),
            "tokens": self.routed.sum(0).astype(int),
        }
        return self._labeled(self.components, columns, {"load": "share of tokens", "gate": "gate", "tokens": "tokens"})

    def by_layer(self) -> pd.DataFrame:
        """One row per layer: how certain its router is about a token, and how evenly it uses its experts.

        `entropy` is the mean over tokens of the entropy of the router's scores of all experts; `load_entropy` is that
        of the loads, normalized to sum 1. Both lie between 0 and `highest_entropy` = ln(experts). A router that is
        certain of every token and uses all experts evenly has a low `entropy` and a high `load_entropy`. `largest_load`
        and `smallest_load` are shares of tokens. Intervals are over texts; that of `load_entropy` is the jackknife's.
        """
        rows = []
        for number in range(len(self.layers)):
            inside, entropy = self.layer_of == number, self.entropies[:, number]
            load, highest = self.loads[inside], float(np.log(inside.sum()))
            row: dict[str, Any] = {"experts": int(inside.sum()), "active": int(self.active[number])}
            # NaN where the router's gates are not scores of all experts.
            row["entropy"] = estimate(entropy, counts=self.lengths, over="texts")
            evenness = estimate_function(_entropy, self.routed[:, inside], within=(0.0, highest), over="texts")
            row |= {"load_entropy": evenness, "highest_entropy": highest}
            rows.append(row | {"largest_load": load.max(), "smallest_load": load.min()})
        units = dict.fromkeys(("entropy", "load_entropy", "highest_entropy"), "nats")
        units |= dict.fromkeys(("largest_load", "smallest_load"), "share")
        return self._labeled(self.layers, dict(estimates_frame(rows)), units)

    def by_token(self) -> pd.DataFrame:
        """One row per expert and token that it takes most: how many of them it took, and how much beyond its load.

        `share` is the share of the token's occurrences routed to the expert; `lift` is that share over the expert's
        load (1: as any other token). Tokens are ordered by the lower end of their `lift`. Intervals are Clopper and
        Pearson's, for all `compared` tokens jointly (Bonferroni). Occurrences are treated as independent; those in one
        text are not, so a token of a single text is weak evidence.
        """
        known = self.token_ids >= 0
        rows = np.nonzero(known)[0]
        hits, counts = self.token_routed[known], self.token_counts[known]
        low, high = _share_ends(hits, counts, self.compared)
        load = self.loads[rows]
        texts = [token for row, own in zip(known, self.tokens, strict=True) for token in own[: row.sum()]]
        columns = component_columns(self.components, rows)
        share = Estimate(hits / counts, low, high, int(counts.sum()), "tokens")
        lift = share._replace(value=hits / counts / load, low=low / load, high=high / load)
        columns |= {"rank": np.nonzero(known)[1], "token": np.array(texts, dtype=object), "id": self.token_ids[known]}
        columns |= {"routed": hits, "count": counts, "share": share, "lift": lift}
        units = {"share": "share of the token's occurrences", "lift": "share / load"}
        note = f"{100 * LEVEL:.0f} % intervals for {self.compared} tokens at once"
        return estimates_frame(columns, units, intervals=note)

    def _labeled(self, components: Any, columns: Any, units: dict[str, str]) -> pd.DataFrame:
        columns = component_columns(components) | dict(columns)
        return estimates_frame(columns, units, intervals=interval_note(len(self.lengths), "texts"))


def router_statistics(
    model: Any, texts: Any, *, n_tokens: int = 10, batch_tokens: int | None = None
) -> RouterStatistics:
    """Measure where the routers of a mixture of experts send the tokens of some texts.

    Args:
        model: A `Model`, or anything `load_model` takes.
        texts: A text, a list of texts or of lists of token ids, or a `Task`. Every token counts.
        n_tokens: Number of tokens to list for each expert.
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
    ids, architecture = read_texts(model, texts), model.architecture
    sublayers = [s for s in architecture.sublayers if s.mixture is not None]
    mixtures = [s.mixture for s in sublayers if isinstance(s.mixture, Mixture)]
    if not mixtures:
        reasons = {s.experts_reason for s in architecture.sublayers if s.experts_reason}
        why = min(reasons) if reasons else "it has no mixture of experts"
        raise InputError(f"{model.name} has no routers to look at: {why}.")
    distinct, flat = np.unique(np.concatenate([np.asarray(row) for row in ids]), return_inverse=True)
    lengths = np.array([len(row) for row in ids])
    token_of = np.split(flat, np.cumsum(lengths)[:-1])
    # By (number of the mixture, which of its runs), in the order of the first pass: routed, gates, entropy, hits, k.
    sums: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def add(rows: list[int], advance: Advance) -> None:
        tokens, mask = (x.to(architecture.device) for x in pad([ids[i] for i in rows]))
        text, token = np.repeat(rows, lengths[rows]), np.concatenate([token_of[i] for i in rows])
        real, runs = mask.flatten().bool(), Counter[int]()
        for number, routes in read_routes(architecture, mixtures, tokens, mask):
            key, shape = (number, runs[number]), (len(ids), mixtures[number].count)
            runs[number] += 1
            index, gates, entropy = (x[real].cpu().numpy() for x in (routes.index, routes.gates, routes.entropy()))
            empty = np.zeros(shape), np.zeros(shape), np.zeros(len(ids)), np.zeros((shape[1], len(distinct)), np.int32)
            routed, gate_sums, entropies, hits, _ = sums.setdefault(key, (*empty, np.array(index.shape[1])))
            taken = gates != 0  # a router may also skip its experts (ZAYA)
            row, word = (np.broadcast_to(x[:, None], index.shape)[taken] for x in (text, token))
            np.add.at(routed, (row, index[taken]), 1.0)
            np.add.at(gate_sums, (row, index[taken]), gates[taken].astype(np.float64))
            np.add.at(hits, (index[taken], word), 1)
            np.add.at(entropies, text, entropy.astype(np.float64))
        advance(len(rows))

    map_batches(model, ids, batch_tokens, add)
    components: list[Component] = []
    layers: list[Component] = []
    for (number, _), repeat in zip(sums, number_repeats([number for number, _ in sums]), strict=True):
        sublayer = sublayers[number]
        layers.append(Component(sublayer.kind, sublayer.layer, repeat=repeat))
        components += [Component("expert", sublayer.layer, i, repeat) for i in range(mixtures[number].count)]
    routed, gates, entropies, hits, active = zip(*sums.values(), strict=True)
    counts, of_expert, taken = np.bincount(flat), np.concatenate(hits), np.concatenate(routed, 1)
    top = _most_taken(of_expert, counts, taken.sum(0) / lengths.sum(), n_tokens)
    known = top >= 0
    token_ids = np.where(known, distinct[top], -1)
    return RouterStatistics(
        components=tuple(components),
        layers=tuple(layers),
        routed=taken,
        gates=np.concatenate(gates, 1),
        entropies=np.stack(entropies, 1),
        lengths=lengths,
        active=np.array(active),
        token_ids=token_ids,
        token_routed=np.where(known, np.take_along_axis(of_expert, np.maximum(top, 0), 1), 0),
        token_counts=np.where(known, counts[top], 0),
        tokens=tuple(tuple(token_texts(model, [int(i) for i in row if i >= 0])) for row in token_ids),
        compared=len(distinct),
        model=model.name,
    )


def _most_taken(
    hits: Int[np.ndarray, "expert token"],
    counts: Int[np.ndarray, " token"],
    load: Float[np.ndarray, " expert"],
    n_tokens: int,
) -> Int[np.ndarray, "expert rank"]:
    """Return the tokens that each expert takes most beyond its load, by the lower end of their share; −1 for none."""
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
    """Compute Clopper and Pearson's interval of each share, at the level at which `compared` of them hold jointly."""
    tail, missed = (1 - LEVEL) / 2 / max(1, compared), counts - hits
    low = betaincinv(np.maximum(hits, 1), missed + 1, tail)
    high = betaincinv(hits + 1, np.maximum(missed, 1), 1 - tail)
    return np.where(hits > 0, low, 0.0), np.where(missed > 0, high, 1.0)


def _entropy(counts: np.ndarray) -> Any:
    """The entropy of counts as shares of 1, over the last axis, in nats."""
    total = counts.sum(-1, keepdims=True)
    return torch.special.entr(torch.as_tensor(counts / np.maximum(total, 1e-300))).sum(-1).numpy()
