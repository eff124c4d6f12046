"""From shards to metrics: every table of every loss, from running sums, so that memory does not grow with rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from ..ensemble.decomposition import Decomposition, decompose
from ..ensemble.intervals import RunningMean, wilson
from ..ensemble.losses import LOSSES
from ..ensemble.tables import Table
from ..errors import InputError
from .shards import Shard

if TYPE_CHECKING:
    import pandas as pd

# Numbers of one ensemble that are decomposed at a time: what thousands of neurons would otherwise need.
MAX_NUMBERS = 4_000_000
# With more members than this, and with neurons, a prefix ensemble for every junction costs more than the passes did.
MAX_MEMBERS_WITH_DEPTH = 3000
_NAMES = ("component", "kind", "layer", "index", "repeat", "module", "partial")


def metrics_of(shards: Iterable[Shard]) -> pd.DataFrame:
    """All tables of a cell in one long frame: loss, table, the row's names, term, mean, low, high.

    A mean's interval is over examples (none for fewer than 8), an accuracy's Wilson's. `share` is n_g/|L| for a module.
    Among the totals every loss has the `zero_bias`, and the loss "none" has the gaps; its table "answers" has
    the share of rows that the model answers with each option. At unit neuron, and above 3000 members, there is no
    depth table.
    """
    import pandas as pd

    answers = RunningMean()
    options: tuple[str, ...] = ()
    running: dict[tuple[str, Table], tuple[dict[str, Any], dict[str, RunningMean]]] = {}
    gaps = {"identity_gap": 0.0, "absolute_gap": 0.0}
    for shard in shards:
        gaps = {name: max(gap, getattr(shard, name)) for name, gap in gaps.items()}
        options = cast(tuple[str, ...], shard.options)
        answers.add_examples(np.eye(len(options))[shard.model_logits.argmax(1)])
        for loss, d in _decompositions(shard):
            for table in _tables(d):
                per_example = d.per_example(table)
                terms = running.setdefault((loss, table), (per_example.names, {}))[1]
                for term, values in per_example.terms.items():
                    terms.setdefault(term, RunningMean()).add_examples(values)
            totals = running.setdefault((loss, "totals"), ({}, {}))[1]
            totals.setdefault("zero_bias", RunningMean()).add_examples(d.terms.zero_biases[:, None])
    if not running:
        raise InputError("there are no rows to measure.")
    blocks = [
        _block(loss, table, names, term, mean)
        for (loss, table), (names, terms) in running.items()
        for term, mean in terms.items()
    ]
    count = int(np.max(answers.count))
    low, high = wilson(answers.total, count)
    shares = {"term": options, "mean": answers.mean, "low": low, "high": high, "examples": count}
    blocks.append(pd.DataFrame({"loss": "none", "table": "answers"} | shares, index=range(len(options))))
    blocks += [pd.DataFrame({"loss": ["none"], "table": "totals", "term": gap, "mean": gaps[gap]}) for gap in gaps]
    order = ["loss", "table", *_NAMES, "members", "share", "term", "mean", "low", "high", "examples"]
    return pd.concat(blocks, ignore_index=True).reindex(columns=order)


def _decompositions(shard: Shard) -> Iterator[tuple[str, Decomposition]]:
    """So many rows at a time, in every loss."""
    step = max(1, MAX_NUMBERS // shard.values[0].size)
    for start in range(0, len(shard.rows), step):
        part = shard.take(slice(start, start + step))
        for loss in LOSSES:
            yield loss, decompose(cast(Any, part), part.labels, loss=loss)


def _tables(d: Decomposition) -> list[Table]:
    if len(d.components) > MAX_MEMBERS_WITH_DEPTH or any(c.kind == "neuron" for c in d.components):
        return ["totals", "components", "modules"] if d.loss_name == "squared" else ["totals", "modules"]
    return list(get_args(Table))


def _block(loss: str, table: str, names: dict[str, Any], term: str, mean: RunningMean) -> pd.DataFrame:
    import pandas as pd

    low, high = wilson(mean.total, mean.count) if term == "accuracy" else mean.interval()
    columns: dict[str, Any] = {"loss": loss, "table": table}
    columns |= {name: names[name] for name in _NAMES if name in names}
    columns |= {"members": names.get("members"), "share": names.get("member_share"), "term": term}
    columns |= {"mean": mean.mean, "low": low, "high": high, "examples": mean.count}
    return pd.DataFrame(columns, index=range(len(np.atleast_1d(mean.mean))))
