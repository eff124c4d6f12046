"""The passes of `contributions` on a model that runs elsewhere: batches out, contributions back."""

from __future__ import annotations

from collections.abc import Iterator, Set
from types import SimpleNamespace

import numpy as np
import torch

from ..components import Component
from ..errors import InputError
from ..model.reconstruction import UNNAMED, ReconstructionError
from ..model.remote import check_unit
from .contexts import BatchContributions
from .passes import ContributionPasses, likelihoods

# How much more than its additions can round a half-precision stream may move.
SLACK = 2.0


class RemoteReadOut(ContributionPasses):
    """`ContributionPasses` of a model with an engine: the same batches, projected where the model runs."""

    is_packed = False

    def _reader(self) -> SimpleNamespace:
        assert self.model.engine is not None
        self._named = check_unit(self.model.engine, self.model.architecture, self.unit, self.model.name)
        return SimpleNamespace(error=ReconstructionError(), unexplained={})

    def _parts(self, examples: list[int], keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some examples, or of their contexts, checked as `OptionReader.read` checks them."""
        architecture, error, engine = self.model.architecture, self.reader.error, self.model.engine
        numbers = np.array(examples) if self.contexts is None else self.contexts.numbers(examples)
        targets = torch.as_tensor(self.targets[numbers])
        assert engine is not None
        with torch.no_grad():
            done = engine.run(architecture, self._named, *self._rows(examples), targets)
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
        parts = total - means.sum(1)[:, None]
        moments = done["log_partition"], done["mean_logit"]
        likelihood = likelihoods(architecture, parts, done["logits"], unembedded, *moments)
        chosen = [i for i, name in enumerate(names) if keep is None or name in keep]
        junctions = [Component("embed")] + [Component("pos_embed")] * (architecture.pos_embed is not None)
        yield BatchContributions(
            rows=numbers,
            count=len(names),
            components=tuple(names[i] for i in chosen),
            values=values[:, chosen].numpy(),
            logits=done["logits"].numpy(),
            junction_scale=(done["statistics"] / done["statistics"][:, -1:]).numpy(),
            statistic=done["statistic"].numpy(),
            junctions=tuple(junctions + [Component(s.kind, s.layer) for s in architecture.sublayers]),
            stream_gap=stream_gap.numpy(),
            expectations=means[:, chosen].numpy(),
            **{name: x.numpy() for name, x in likelihood.items()},
        )
