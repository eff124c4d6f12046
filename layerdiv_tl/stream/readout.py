"""From what was written to the stream to logits: one read-out for all families and units."""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component, Unit
from ..errors import InputError
from .anatomy import HALF, Anatomy
from .capture import Firing, Pass, first_break, quiet

# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones up to 2e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


class Readout:
    """Option directions: a stream vector x contributes `x @ direction / σ` to an option's logit.

    Gain, centring and logit multiplier are folded into the directions, once for every distinct option
    token; `index` `[example, option]` says which direction belongs where.
    """

    def __init__(self, anatomy: Anatomy, option_ids: Int[np.ndarray, "example option"]) -> None:
        distinct, index = np.unique(option_ids, return_inverse=True)
        rows, bias = anatomy.unembed_rows(torch.as_tensor(distinct))
        rows = rows.double().cpu() * anatomy.logit_multiplier
        self.index = torch.as_tensor(index.reshape(option_ids.shape))
        self.directions: Float[Tensor, "token d"] = anatomy.norm.fold(rows)
        self.constant: Float[Tensor, " token"] | None = None
        if anatomy.constant:
            self.constant = torch.zeros(len(rows), dtype=torch.float64)
            if anatomy.norm.bias is not None:
                self.constant += rows @ anatomy.norm.bias
            if bias is not None:
                self.constant += bias.double().cpu() * anatomy.logit_multiplier

    def of(self, rows: Int[Tensor, " row"]) -> Readout:
        """The read-out of some examples only, with no direction that they do not need."""
        part = copy(self)
        needed, part.index = self.index[rows].unique(return_inverse=True)
        part.directions = self.directions[needed]
        part.constant = None if self.constant is None else self.constant[needed]
        return part

    def __call__(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part option"]:
        """`x @ direction` for each row's own options; the division by σ is the caller's."""
        return self._own(x @ self.directions.T)

    def parts(self, firing: Firing) -> Float[Tensor, "row part option"]:
        """The same for the heads or neurons of one write, and last for their bias where there is one."""
        split = firing.write.split
        assert split is not None
        assert firing.values is not None
        weight, bias = split.projection()
        directions = self.directions * split.scale
        offset = None
        if split.post is not None:
            offset = None if split.post.bias is None else directions @ split.post.bias
            directions = split.post.fold(directions)
        # Option directions are taken back through the output map: K products a layer, not one for every row.
        wide = torch.promote_types(weight.dtype, torch.float32)
        through = directions.to(weight.device, wide) @ weight.to(wide).T
        values = firing.values.double().cpu().unflatten(1, (split.count, -1))
        parts = torch.einsum("rpe,tpe->rpt", values, through.double().cpu().unflatten(1, (split.count, -1)))
        if bias is not None:
            parts = torch.cat([parts, (directions @ bias.double().cpu()).expand(len(parts), 1, -1)], 1)
        if split.post is not None:
            assert firing.post is not None
            post = firing.post.double().cpu()
            statistic = post[:, 0] if post.shape[1] == 1 else split.post.statistic(post)
            parts = parts / statistic[:, None, None]
        if offset is not None:
            rest = parts[:, split.count :].sum(1, keepdim=True) + offset
            parts = torch.cat([parts[:, : split.count], rest], 1)
        return self._own(parts)

    def own_constant(self) -> Float[Tensor, "row 1 option"]:
        """What the read-out itself adds to each row's own options."""
        assert self.constant is not None
        return self.constant[self.index][:, None]

    def _own(self, per_token: Float[Tensor, "row part token"]) -> Float[Tensor, "row part option"]:
        return per_token.gather(2, self.index[:, None].expand(-1, per_token.shape[1], -1))


@dataclass(frozen=True, eq=False)
class Part:
    """The numbers of some rows of a pass, float64.

    `values` and `components` hold the rows that were asked for; `total` and `size` are Σ u_i and Σ |u_i|
    over all of them, `unembedded` and `logits` what the model says; `[row, option]`.
    """

    rows: Int[np.ndarray, " row"]
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    total: Float[np.ndarray, "row option"]
    size: Float[np.ndarray, "row option"]
    unembedded: Float[np.ndarray, "row option"]
    logits: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    junctions: tuple[Component, ...]
    stream_gap: float


def take_apart(
    anatomy: Anatomy,
    readout: Readout,
    done: Pass,
    rows: Int[np.ndarray, " row"],
    option_ids: Int[np.ndarray, "example option"],
    unit: Unit,
    keep: Set[Component] | None,
) -> Part:
    """Contributions of some rows of a pass, in float64 on the CPU; `keep` None keeps all components."""
    readout = readout.of(torch.as_tensor(rows))
    options = torch.as_tensor(option_ids[rows]).to(done.logits.device)
    unembedded = done.unembedded.gather(1, options).double().cpu() * anatomy.logit_multiplier
    logits = done.logits.gather(1, options).double().cpu()

    junctions, uses = [Component("embed")], []
    seen: dict[int, int] = {}
    written = [done.embed]
    if done.pos_embed is not None:
        junctions.append(Component("pos_embed"))
        written.append(done.pos_embed)
    first = len(written)
    reused = len(done.firings) > len({id(firing.write) for firing in done.firings})
    for firing in done.firings:
        seen[id(firing.write)] = seen.get(id(firing.write), 0) + 1
        uses.append(seen[id(firing.write)] if reused else None)
        junctions.append(Component(firing.write.kind, firing.write.layer, use=uses[-1]))
        written.append(firing.wrote)

    stream = torch.stack(written, 1).double().cpu()
    final = done.final.double().cpu()
    _check_finite(junctions, stream, final, logits)
    sigma = anatomy.norm.statistic(final)[:, None, None]
    whole = readout(stream) / sigma

    names: list[Component] = []
    values: list[Tensor] = []
    total, size = torch.zeros_like(logits), torch.zeros_like(logits)

    def add(components: list[Component], u: Float[Tensor, "row part option"]) -> None:
        total.add_(u.sum(1))
        size.add_(u.abs().sum(1))
        chosen = [i for i, component in enumerate(components) if keep is None or component in keep]
        names.extend(components[i] for i in chosen)
        values.append(u if len(chosen) == len(components) else u[:, chosen])

    add(junctions[:first], whole[:, :first])
    for row, (firing, use) in enumerate(zip(done.firings, uses, strict=True), start=first):
        u = whole[:, row : row + 1] if firing.values is None else readout.parts(firing) / sigma
        add(firing.write.components(unit, use), u)
    # What half precision lost at every addition, so that the parts still sum to the whole.
    lost = (readout(final[:, None]) / sigma)[:, 0] - total
    if readout.constant is not None:
        add([Component("constant")], readout.own_constant())
    if anatomy.dtype in HALF:
        add([Component("rounding")], lost[:, None])

    scale = anatomy.norm.statistic(stream.cumsum(1)) / sigma[:, :, 0]
    return Part(
        rows=rows,
        components=tuple(names),
        values=torch.cat(values, 1).numpy(),
        total=total.numpy(),
        size=size.numpy(),
        unembedded=unembedded.numpy(),
        logits=logits.numpy(),
        junction_scale=scale.numpy(),
        junctions=tuple(junctions),
        stream_gap=float(lost.abs().max() / size.max().clamp_min(1e-300)),
    )


def check_closure(anatomy: Anatomy, name: str, gap: float, stream_gap: float, example: Sequence[int]) -> None:
    """The parts must sum to the whole: refuse with the place where the sum breaks.

    `example`: a prompt to find that place with.
    """
    tolerance = TOLERANCE.get(anatomy.dtype, 1e-4)
    if stream_gap > tolerance:
        with quiet(anatomy):
            place = first_break(anatomy, example, tolerance)
        where = f"its components do not add up to its residual stream {place}"
    elif gap > tolerance:
        where = "its final norm and unembedding do not give its logits"
    else:
        return
    raise InputError(
        f"{name} cannot be decomposed: {where} (off by {max(gap, stream_gap):.1e} of Σ|u|, where rounding explains "
        f"{tolerance:.0e}); something besides the components named here writes to it."
    )


def _check_finite(writers: list[Component], stream: Float[Tensor, "row part d"], final: Tensor, logits: Tensor) -> None:
    if stream.isfinite().all() and final.isfinite().all() and logits.isfinite().all():
        return
    finite = stream.isfinite().all(2).all(0).tolist()
    first = next((writer.label for writer, fine in zip(writers, finite, strict=True) if not fine), "the read-out")
    raise InputError(
        f"the model gives numbers that are not finite, first in {first}: its weights or its precision are "
        "broken (NaN weights, an overflow in float16), so nothing is computed."
    )
