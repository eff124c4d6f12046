"""From what was written to the stream to logits: one read-out for all families and units."""

from __future__ import annotations

from collections.abc import Set
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..components import Component, Unit
from ..errors import InputError
from ..model.architecture import HALF, Architecture
from ..model.capture import Activations, SublayerOutput
from ..model.looped import to_final_stream

# Parts are compared with their own size, but with no less than this share of everybody's.
NOTICED = 0.01


class Readout:
    """Option directions: a stream vector x contributes `x @ direction / σ` to an option's logit.

    Gain, centring and logit multiplier are folded into the directions, once for every distinct option
    token; `index` `[example, option]` says which direction belongs where. `through` keeps what does not
    change between batches while the directions stay the same ones.
    """

    def __init__(self, architecture: Architecture, option_ids: Int[np.ndarray, "example option"]) -> None:
        distinct, index = np.unique(option_ids, return_inverse=True)
        rows, bias = architecture.unembed_rows(torch.as_tensor(distinct))
        rows = rows.double().cpu() * architecture.logit_multiplier
        self.index = torch.as_tensor(index.reshape(option_ids.shape))
        self.directions: Float[Tensor, "token d"] = architecture.norm.fold(rows)
        self.through: dict[int, Float[Tensor, "token part width"]] = {}
        self.names: dict[tuple[int, int | None], list[Component]] = {}
        self.constant: Float[Tensor, " token"] | None = None
        if architecture.constant:
            self.constant = torch.zeros(len(rows), dtype=torch.float64)
            if architecture.norm.bias is not None:
                self.constant += rows @ architecture.norm.bias
            if bias is not None:
                self.constant += bias.double().cpu() * architecture.logit_multiplier

    def of(self, rows: Int[Tensor, " row"]) -> Readout:
        """The read-out of some examples only, with no direction that they do not need."""
        part = copy(self)
        needed, index = self.index[rows].unique(return_inverse=True)
        if len(needed) < len(self.directions):
            part.directions, part.through = self.directions[needed], {}
            part.constant = None if self.constant is None else self.constant[needed]
            part.index = index
        else:
            part.index = self.index[rows]
        return part

    def components(self, firing: SublayerOutput, unit: Unit, repeat: int | None) -> list[Component]:
        """The names of a firing's rows; an MLP has thousands."""
        key = (id(firing.sublayer), repeat)
        if key not in self.names:
            self.names[key] = firing.sublayer.components(unit, repeat)
        return self.names[key]

    def __call__(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part option"]:
        """`x @ direction` for each row's own options; the division by σ is the caller's."""
        return self._own(x @ self.directions.T)

    def parts(self, firing: SublayerOutput) -> Float[Tensor, "row part option"]:
        """The same for the heads or neurons of one write, and last for their bias where there is one."""
        split = firing.sublayer.output_map
        assert split is not None
        assert firing.values is not None
        weight, bias = split.projection()
        bias = bias if split.bias else None
        directions = self.directions * split.scale
        offset = None
        if split.post is not None:
            offset = None if split.post.bias is None else directions @ split.post.bias
            directions = split.post.fold(directions)
        # Option directions are taken back through the output map: a product for every option, not for every row.
        if id(split) not in self.through:
            wide = torch.promote_types(weight.dtype, torch.float32)
            back = directions.to(weight.device, wide) @ weight.to(wide).T
            self.through[id(split)] = back.double().cpu().unflatten(1, (split.count, -1))
        values = firing.values.double().cpu().unflatten(1, (split.count, -1))
        parts = torch.einsum("rpe,tpe->rpt", values, self.through[id(split)])
        if bias is not None:
            parts = torch.cat([parts, (directions @ bias.double().cpu()).expand(len(parts), 1, -1)], 1)
        if split.post is not None:
            assert firing.post is not None
            parts = parts / split.post.divisor(firing.post.cpu())[:, None, None]
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

    `values` and `components` hold the rows that were asked for, of `members` in all; `total` and `size`
    are Σ u_i and Σ |u_i| over all of them, `unembedded` and `logits` what the model says before and after any soft-cap,
    `unexplained` by how much the second is not the first one's transform; `[row, option]`. `stream_gap`
    `[row]` is what the stream holds beyond all that was written, relative to the largest Σ |u_i|;
    `split_gap` how far the heads or neurons of a write are from it, relative to their own Σ |u_i|, or to a
    hundredth of everybody's where that is more.
    `dtype` and `answer_dtype` are those of the pass.
    """

    rows: Int[np.ndarray, " row"]
    members: int
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    total: Float[np.ndarray, "row option"]
    size: Float[np.ndarray, "row option"]
    unembedded: Float[np.ndarray, "row option"]
    logits: Float[np.ndarray, "row option"]
    unexplained: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    junctions: tuple[Component, ...]
    partial_junctions: Bool[np.ndarray, " junction"]
    stream_gap: Float[np.ndarray, " row"]
    split_gap: float
    dtype: torch.dtype
    answer_dtype: torch.dtype


def read_out(
    architecture: Architecture,
    readout: Readout,
    done: Activations,
    rows: Int[np.ndarray, " row"],
    option_ids: Int[np.ndarray, "example option"],
    unit: Unit,
    keep: Set[Component] | None,
) -> Part:
    """Contributions of some rows of a pass, in float64 on the CPU; `keep` None keeps all components."""
    done = to_final_stream(done, architecture)
    readout = readout.of(torch.as_tensor(rows))
    options = torch.as_tensor(option_ids[rows]).to(done.logits.device)
    said = done.unembedded.gather(1, options).double().cpu()
    logits = done.logits.gather(1, options).double().cpu()

    junctions, repeats = [Component("embed")], done.repeats
    written = [done.embed]
    if done.pos_embed is not None:
        junctions.append(Component("pos_embed"))
        written.append(done.pos_embed)
    first = len(written)
    for firing, repeat in zip(done.sublayer_outputs, repeats, strict=True):
        junctions.append(Component(firing.sublayer.kind, firing.sublayer.layer, repeat=repeat))
        written.append(firing.output)

    stream = torch.stack(written, 1).double().cpu()
    final = done.final.double().cpu()
    check_finite(junctions, stream, final, logits)
    sigma = architecture.norm.statistic(final)[:, None, None]
    whole = readout(stream) / sigma

    names: list[Component] = []
    values: list[Tensor] = []
    total, size = torch.zeros_like(logits), torch.zeros_like(logits)

    members, split_gap = 0, 0.0
    # Of a write that adds nothing to some logit only rounding is left, and that is not to be compared with itself.
    least = max(NOTICED * float(whole.abs().sum(1).max()), 1e-30)

    def add(components: list[Component], u: Float[Tensor, "row part option"]) -> None:
        nonlocal members
        members += len(components)
        total.add_(u.sum(1))
        size.add_(u.abs().sum(1))
        chosen = [i for i, component in enumerate(components) if keep is None or component in keep]
        names.extend(components[i] for i in chosen)
        values.append(u if len(chosen) == len(components) else u[:, chosen])

    add(junctions[:first], whole[:, :first])
    for row, (firing, repeat) in enumerate(zip(done.sublayer_outputs, repeats, strict=True), start=first):
        u = whole[:, row : row + 1]
        if firing.values is not None:
            u = readout.parts(firing) / sigma
            off = (u.sum(1) - whole[:, row]).abs() / u.abs().sum(1).clamp_min(least)
            split_gap = max(split_gap, float(off.max()))
        add(readout.components(firing, unit, repeat), u)
    # What half precision lost at every addition, so that the parts still sum to the whole.
    lost = (readout(final[:, None]) / sigma)[:, 0] - total
    if readout.constant is not None:
        add([Component("constant")], readout.own_constant())
    if done.dtype in HALF:
        add([Component("rounding")], lost[:, None])

    statistics = architecture.norm.statistic(stream.cumsum(1))
    return Part(
        rows=rows,
        members=members,
        components=tuple(names),
        values=torch.cat(values, 1).numpy(),
        total=total.numpy(),
        size=size.numpy(),
        unembedded=(said * architecture.logit_multiplier).numpy(),
        logits=logits.numpy(),
        unexplained=(architecture.transform(said) - logits).abs().numpy(),
        junction_scale=(statistics / statistics[:, -1:]).numpy(),
        junctions=tuple(junctions),
        partial_junctions=_partial(junctions, architecture.parallel),
        split_gap=split_gap,
        dtype=done.dtype,
        answer_dtype=done.answer_dtype,
        stream_gap=(lost.abs().amax(1) / size.max().clamp_min(1e-300)).numpy(),
    )


def _partial(junctions: list[Component], parallel: bool) -> Bool[np.ndarray, " junction"]:
    """Where the stream never stands: an embedding before its positions, an attention beside its MLP."""
    behind = zip(junctions, [*junctions[1:], None], strict=True)
    halves = [("embed", "pos_embed")] + [("attn", "mlp")] * parallel
    return np.array(
        [
            after is not None and here.layer == after.layer and (here.kind, after.kind) in halves
            for here, after in behind
        ]
    )


def check_finite(writers: list[Component], stream: Float[Tensor, "row part d"], final: Tensor, logits: Tensor) -> None:
    """Raise InputError for numbers that are not finite, with the component that wrote the first of them."""
    if stream.isfinite().all() and final.isfinite().all() and logits.isfinite().all():
        return
    finite = stream.isfinite().all(2).all(0).tolist()
    first = next((writer.label for writer, fine in zip(writers, finite, strict=True) if not fine), "the read-out")
    raise InputError(
        f"the model gives numbers that are not finite, first in {first}: its weights or its precision are "
        "broken (NaN weights, an overflow in float16), so nothing is computed."
    )
