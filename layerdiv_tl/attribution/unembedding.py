"""Direct logit attribution for some answer options: from a pass to contributions `[row, component, option]`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component, Unit
from ..model.architecture import HALF, Architecture
from ..model.capture import Activations
from ..model.forward_pass import ReconstructionError
from .stream_writes import Parts, StreamWalk, check_finite, pull_back
from .vocab_gram import folded_rows

# Parts are compared with their own size, but with no less than this share of the largest.
NOTICED = 0.01


class OptionReadout:
    """Option directions: a stream vector x contributes `x @ direction / σ` to an option's logit.

    Gain, centering and logit multiplier are folded into the directions, once for every distinct option token; `index`
    `[example, option]` says which direction belongs where. `error` grows with everything that is read out.
    """

    def __init__(
        self, architecture: Architecture, option_ids: Int[np.ndarray, "example option"], unit: Unit = "sublayer"
    ) -> None:
        self.walk, self.error = StreamWalk(architecture, unit), ReconstructionError()
        distinct, index = np.unique(option_ids, return_inverse=True)
        directions, constant = folded_rows(architecture, torch.as_tensor(distinct), torch.float64)
        self.option_ids = option_ids
        self.index = torch.as_tensor(index.reshape(option_ids.shape))
        self.directions: Float[Tensor, "token d"] = directions.cpu()
        self.constant: Float[Tensor, " token"] | None = constant.cpu() if architecture.constant else None
        # Directions before each output map, the same for all batches that need the same options.
        self._before: dict[int, Float[Tensor, "token part width"]] = {}

    def for_rows(self, rows: Int[Tensor, " row"]) -> OptionReadout:
        """The read-out of some examples, without the directions that they do not need."""
        own = copy(self)
        needed, own.index = self.index[rows].unique(return_inverse=True)
        if len(needed) < len(self.directions):
            own.directions, own._before = self.directions[needed], {}
            own.constant = None if self.constant is None else self.constant[needed]
        return own

    def __call__(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part option"]:
        """`x @ direction` for each row's own options; the division by σ is the caller's."""
        return self._own(x @ self.directions.T)

    def read_parts(self, parts: Parts) -> Float[Tensor, "row part option"]:
        """The same for the heads or neurons of one write and, last, their bias where there is one."""
        key = id(parts.output_map)
        # Options are taken back through the output map: a product for every option, not for every row.
        if key not in self._before:
            before = pull_back(parts.output_map, self.directions).double()
            self._before[key] = before.unflatten(1, (parts.output_map.count, -1))
        u = torch.einsum("rpe,tpe->rpt", parts.values.double().cpu(), self._before[key])
        u = self._own(u if parts.divisor is None else u / parts.divisor.cpu()[:, None, None])
        return torch.cat([u, self(parts.bias().cpu()[:, None])], 1) if parts.output_map.bias else u

    def _own(self, per_token: Float[Tensor, "row part token"]) -> Float[Tensor, "row part option"]:
        return per_token.gather(2, self.index[:, None].expand(-1, per_token.shape[1], -1))


@dataclass(frozen=True, eq=False)
class BatchContributions:
    """Contributions of some rows of a pass, float64.

    Attributes:
        components, values, count: The components that were asked for, of `count` in all, and theirs `[row, component,
            option]`.
        logits: The model's own, `[row, option]`, after any soft-cap.
        stream_gap: What the stream holds beyond all that was written, `[row]`, relative to max Σ|u_i|.
    """

    rows: Int[np.ndarray, " row"]
    count: int
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    logits: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    junctions: tuple[Component, ...]
    stream_gap: Float[np.ndarray, " row"]


def read_out(
    readout: OptionReadout, activations: Activations, rows: Int[np.ndarray, " row"], keep: Set[Component] | None
) -> BatchContributions:
    """Contributions of some rows of a pass, on the CPU; `keep` None keeps all components."""
    walk, error, architecture = readout.walk, readout.error, readout.walk.architecture
    readout = readout.for_rows(torch.as_tensor(rows))
    options = torch.as_tensor(readout.option_ids[rows]).to(activations.logits.device)
    unembedded = activations.unembedded.gather(1, options).double().cpu()
    logits = activations.logits.gather(1, options).double().cpu()

    writes = walk.writes(activations)
    stream, final = torch.stack([write.vector for write in writes], 1).double().cpu(), activations.final.double().cpu()
    check_finite(writes, final, logits)
    # u_i = W_U (gain · center(z_i)) / σ, of whole writes; cut ones are compared with theirs.
    sigma = architecture.norm.statistic(final)[:, None, None]
    whole = readout(stream) / sigma

    names: list[Component] = []
    values: list[Tensor] = []
    total, size = torch.zeros_like(logits), torch.zeros_like(logits)
    count = 0
    # Of a write that adds nothing to some logit only rounding is left, which is not to be compared with itself.
    least = max(NOTICED * float(whole.abs().sum(1).max()), 1e-30)

    def add(components: Sequence[Component], u: Float[Tensor, "row part option"]) -> None:
        nonlocal count
        count += len(components)
        total.add_(u.sum(1))
        size.add_(u.abs().sum(1))
        chosen = [i for i, component in enumerate(components) if keep is None or component in keep]
        names.extend(components[i] for i in chosen)
        values.append(u if len(chosen) == len(components) else u[:, chosen])

    for number, write in enumerate(writes):
        u = whole[:, number : number + 1]
        if write.parts is not None:
            u = readout.read_parts(write.parts) / sigma
            error.add("split", (u.sum(1) - whole[:, number]).abs() / u.abs().sum(1).clamp_min(least))
        add(write.components, u)
    # What half precision lost at every addition, so that the parts still sum to the whole.
    lost = (readout(final[:, None]) / sigma)[:, 0] - total
    if readout.constant is not None:  # what the read-out itself adds to each row's own options
        add([Component("constant")], readout.constant[readout.index][:, None])
    if activations.dtype in HALF:
        add([Component("rounding")], lost[:, None])

    stream_gap = lost.abs().amax(1) / size.max().clamp_min(1e-300)
    error.dtypes = (activations.dtype, activations.answer_dtype)
    error.add("stream", stream_gap)
    error.add("absolute", (total - unembedded * architecture.logit_multiplier).abs())
    error.add("unexplained", (architecture.transform(unembedded) - logits).abs())
    error.add("size", size)
    statistics = architecture.norm.statistic(stream.cumsum(1))
    return BatchContributions(
        rows=rows,
        count=count,
        components=tuple(names),
        values=torch.cat(values, 1).numpy(),
        logits=logits.numpy(),
        junction_scale=(statistics / statistics[:, -1:]).numpy(),
        junctions=tuple(write.junction for write in writes),
        stream_gap=stream_gap.numpy(),
    )
