"""The passes of `contributions` on a model that runs elsewhere: batches out, contributions back."""

from __future__ import annotations

from collections.abc import Iterator, Set
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .._progress import progress
from ..components import Component, Unit
from ..errors import InputError
from ..model.batches import batches
from ..model.load import Model
from ..model.options import Ids
from ..model.reconstruction import UNNAMED, ReconstructionError
from ..model.remote import check_unit
from .contexts import BatchContributions, Contexts
from .question import LogitQuestion

# How much more than its additions can round a half-precision stream may move.
SLACK = 2.0


class RemoteReadOut:
    """`ContributionPasses` of a model with an engine: the same batches, projected where the model runs."""

    cached = None

    def __init__(self, model: Model, question: LogitQuestion, unit: Any, batch_tokens: int) -> None:
        assert model.engine is not None
        self.unit: Unit = check_unit(model.engine, model.architecture, unit, model.name)
        self.model, self.question = model, question
        self.batch_tokens, self.engine = batch_tokens, model.engine
        self.reader = SimpleNamespace(error=ReconstructionError(), unexplained={})
        self.targets, self.contexts = question.option_ids[:, :, 0, 0], None
        if not question.is_single:
            self.contexts = Contexts(question.beginnings, question.option_ids, model.architecture.length_switch)
            self.targets = self.contexts.target_ids
            self.contexts.check(model)

    def batches(self, keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some examples at a time; `keep` None keeps all components."""
        switch, contexts = self.model.architecture.length_switch, self.contexts
        lengths = [len(row) for row in self.question.ids]
        if contexts is not None:
            lengths = [contexts.length(example, False) for example in range(len(self.question.ids))]
        with progress(self.model.name, len(self.question.ids), "prompt") as advance:
            limit = self.batch_tokens if contexts is None or switch is None else 1
            for examples in batches(lengths, limit, switch if contexts is None else None):
                if contexts is None:
                    of, at = torch.arange(len(examples)), torch.as_tensor(self.question.at[examples])
                    rows, numbers = [self.question.ids[example] for example in examples], np.array(examples)
                else:
                    rows, of, at = contexts.plain_rows(examples)
                    numbers = contexts.numbers(examples)
                part = self._part(rows, of, at, numbers, keep)
                yield part if contexts is None else contexts.by_option(examples, [part])
                advance(len(examples))

    def _part(
        self, rows: list[Ids], of: torch.Tensor, at: torch.Tensor, numbers: np.ndarray, keep: Set[Component] | None
    ) -> BatchContributions:
        """What one pass gives, checked as `read_out` checks it."""
        architecture, error = self.model.architecture, self.reader.error
        targets = torch.as_tensor(self.targets[numbers])
        with torch.no_grad():
            done = self.engine.run(architecture, self.unit, rows, of, at, targets)
        if not all(bool(x.isfinite().all()) for x in done.values()):
            raise InputError(f"{self.model.name} gives numbers that are not finite: are its weights broken?")
        if float(done["excess"].max()) > SLACK:
            raise InputError(f"this model cannot be decomposed: {UNNAMED}.")
        names, values, means = architecture.components(self.unit), done["values"], done["means"]
        total, size = values.sum(1), values.abs().sum(1)
        stream_gap = done["lost"].abs().amax(1) / size.max().clamp_min(1e-300)
        unembedded = done["unembedded"] * architecture.logit_multiplier
        error.dtypes = (architecture.dtype, architecture.dtype)
        error.add("split", done["split"])
        error.add("stream", stream_gap)
        error.add("unexplained", (architecture.transform(done["unembedded"]) - done["logits"]).abs())
        error.add("absolute", (total - unembedded).abs())
        error.add("size", size)
        log_likelihood = done["logits"] - done["log_partition"][:, None]
        normalizer = log_likelihood - (total - means.sum(1)[:, None])
        capped = 0.0 if architecture.soft_cap is None else done["logits"] - unembedded
        minus_entropy = (done["mean_logit"] - done["log_partition"])[:, None]
        chosen = [i for i, name in enumerate(names) if keep is None or name in keep]
        statistics = done["statistics"]
        junctions = [Component("embed")] + [Component("pos_embed")] * (architecture.pos_embed is not None)
        return BatchContributions(
            rows=numbers,
            count=len(names),
            components=tuple(names[i] for i in chosen),
            values=values[:, chosen].numpy(),
            logits=done["logits"].numpy(),
            junction_scale=(statistics / statistics[:, -1:]).numpy(),
            statistic=done["statistic"].numpy(),
            junctions=tuple(junctions + [Component(s.kind, s.layer) for s in architecture.sublayers]),
            stream_gap=stream_gap.numpy(),
            expectations=means[:, chosen].numpy(),
            log_likelihood=log_likelihood.numpy(),
            normalizer=normalizer.numpy(),
            likelihood_gap=(normalizer - minus_entropy - capped).numpy(),
        )
