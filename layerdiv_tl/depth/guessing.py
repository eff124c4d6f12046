"""What would be predicted after every layer, and how frequent that token is; the lens and its scores in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import listed, number, whole_number
from ..components import Component
from ..ensemble.intervals import cluster_means
from ..errors import InputError
from ..model.batches import pad
from ..model.forward_pass import run
from ..model.load import as_model
from .inputs import read_texts
from .logit_lens import lens_answers, logit_lens
from .passes import map_batches, same_components
from .settling import deep_thinking, readable
from .token_stats import TokenResult, sums_per_text, with_ends


@dataclass(frozen=True, eq=False, repr=False)
class Guesses(TokenResult):
    """What would be predicted after every layer, and how frequent that token is.

    Attributes:
        components: The embedding, and the layers.
        guesses: `[token, layer]`: the id of the likeliest next token after each; the last is the model's.
        rank: `[token, layer]`: that token's rank by frequency, from 1.
        text: `[token]`, which text a token is from.
        buckets: The last rank of every bucket but the last, which holds the others.
        counted: What frequencies were counted in.
    """

    components: tuple[Component, ...]
    guesses: Int[np.ndarray, "token layer"]
    rank: Int[np.ndarray, "token layer"]
    text: Int[np.ndarray, " token"]
    buckets: tuple[int, ...]
    counted: str
    model: str

    def frame(self) -> pd.DataFrame:
        """One row per layer and bucket of frequency, with 95 % intervals over texts.

        `share`: of the guesses that are in the bucket, `final_share` of the model's own predictions. `flips`: of the
        bucket's guesses, the share that the model's prediction replaces. `flips_by_chance`: what the frequencies of
        guesses and predictions alone give, 1 − Σ_v P(guess = v | bucket) P(prediction = v): flips beyond it say that
        the guess was about something else, fewer that it was about this token.
        """
        bounds = np.array(self.buckets)
        bucket, last = np.searchsorted(bounds, self.rank), np.searchsorted(bounds, self.rank[:, -1])
        names = _bucket_names(self.buckets)
        records: list[dict[str, Any]] = []
        rows: list[int] = []
        size = int(self.guesses.max()) + 1
        finals = np.bincount(self.guesses[:, -1], minlength=size) / len(self.guesses)
        for layer in range(len(self.components)):
            for number_, name in enumerate(names):
                inside = bucket[:, layer] == number_
                flips = np.where(inside, self.guesses[:, layer] != self.guesses[:, -1], np.nan).astype(float)
                table = np.stack([inside.astype(float), (last == number_).astype(float), flips], 1)
                means = cluster_means(*sums_per_text(table, self.text))
                record: dict[str, Any] = {"bucket": name}
                for i, column in enumerate(("share", "final_share", "flips")):
                    record |= with_ends(column, *(float(x[i]) for x in means))
                chance = np.bincount(self.guesses[inside, layer], minlength=size) @ finals
                record["flips_by_chance"] = 1 - chance / inside.sum() if inside.any() else np.nan
                records.append(record)
                rows.append(layer)
        columns = {name: [record[name] for record in records] for name in records[0]}
        share = "share of tokens"
        return self._with_units(
            columns, dict.fromkeys(("share", "final_share", "flips", "flips_by_chance"), share), rows
        )


def guess_then_refine(
    model: Any,
    texts: Any,
    counts: Any = None,
    *,
    buckets: Any = (10, 100, 1000),
    batch_tokens: int | None = None,
) -> Guesses:
    """How frequent the tokens are that a model would predict after each of its layers, and how often it moves on.

    *How Do LLMs Use Their Depth?* (arXiv 2510.18871): early layers guess frequent tokens, later ones replace them. The
    paper reads layers with a tuned lens, at the last token; here it is the logit lens, at every token.

    Args:
        model, texts, batch_tokens: As in `residual_norms`.
        counts: How often each token occurs: {id: count}, or a list of one count for each id. None: they are counted in
            the texts themselves, of which there should then be many.
        buckets: The last ranks of the buckets, increasing; one more holds the rest. Tokens of equal count rank by id.

    Every layer costs one unembedding of every token. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> found = ld.depth.guess_then_refine("zoo/d2", [[1, 2, 3], [4, 5]], buckets=[2])
    >>> found.frame().bucket.tolist()[:2], found.guesses.shape
    (['1-2', 'others'], (5, 3))
    """
    model = readable(as_model(model))
    ids, size = read_texts(model, texts), model.architecture.outputs
    limits = [whole_number("buckets", x, 1) for x in listed("buckets", buckets, "increasing ranks")]
    if not limits or sorted(set(limits)) != limits:
        raise InputError(f"buckets={limits} must be increasing ranks, at least one.")
    tally = np.bincount(np.concatenate([np.array(row) for row in ids]), minlength=size)[:size].astype(float)
    counted = f"{len(ids)} texts of {int(tally.sum())} tokens"
    if counts is not None:
        tally, counted = _given_counts(counts, size), "given counts"
    rank = np.empty(size, dtype=np.int64)
    rank[np.argsort(-tally, kind="stable")] = np.arange(1, size + 1)

    def measure(rows: list[int]) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
        components, found, _ = lens_answers(model.architecture, run(model.architecture, *pad([ids[r] for r in rows])))
        return components, found.T, np.repeat(rows, [len(ids[row]) for row in rows])

    components, tables, of_text = zip(*map_batches(model, ids, batch_tokens, measure), strict=True)
    text = np.concatenate(of_text)
    order = np.argsort(text, kind="stable")
    guesses = np.concatenate(tables)[order]
    named = same_components(model, components)
    return Guesses(named, guesses, rank[guesses], text[order], tuple(limits), counted, model.name)


def lens_scores(model: Any, texts: Any, counts: Any = None, *, batch_tokens: int | None = None) -> pd.DataFrame:
    """The logit lens and what is read from it in one table, one row per layer; all as in the functions of these names.

    `kl`, `topk_overlap` (`logit_lens`); `divergence`, `settled`, `settled_for_good` (`deep_thinking`); `frequent`,
    `flips`, `flips_by_chance`: the share of guesses in the first bucket, and those that are replaced
    (`guess_then_refine`).

    >>> import layerdiv_tl as ld
    >>> ld.depth.lens_scores("zoo/d2", [[1, 2, 3], [4, 5]]).component.tolist()
    ['L0.mlp', 'L1.mlp']
    """
    model = as_model(model)
    ids = [list(row) for row in read_texts(model, texts)]
    thinking = deep_thinking(model, ids, batch_tokens=batch_tokens)
    guesses = guess_then_refine(model, ids, counts, batch_tokens=batch_tokens).frame()
    frame, lens = thinking.frame(), logit_lens(model, ids, batch_tokens=batch_tokens).frame()
    first = guesses[guesses["bucket"] == guesses["bucket"].iloc[0]].rename(columns={"share": "frequent"})
    columns = [c for c in frame if not str(c).startswith(("divergence_shuffled", "settled_shuffled"))]
    table = frame[columns].merge(lens[["component", "kl", "topk_overlap"]], on="component", how="left")
    more = first[["component", "frequent", "flips", "flips_by_chance"]]
    table = table.merge(more, on="component", how="left")
    table.attrs = frame.attrs
    return table


def _bucket_names(buckets: tuple[int, ...]) -> list[str]:
    starts = [1, *(b + 1 for b in buckets[:-1])]
    return [f"{a}-{b}" for a, b in zip(starts, buckets, strict=True)] + ["others"]


def _given_counts(counts: Any, size: int) -> Float[np.ndarray, " id"]:
    """Counts by id. Raises InputError for ids and counts that are none."""
    tally = np.zeros(size)
    pairs = list(counts.items()) if isinstance(counts, Mapping) else list(enumerate(listed("counts", counts)))
    if not pairs or (len(pairs) != size and not isinstance(counts, Mapping)):
        raise InputError(f"counts has {len(pairs)} entries: give {{id: count}}, or one count for each of {size} ids.")
    for token, count in pairs:
        tally[whole_number("an id of counts", token, 0, size - 1)] = number("a count", count, least=0)
    if not tally.any():
        raise InputError("counts are all 0, so no token is frequent: count some text.")
    return tally
