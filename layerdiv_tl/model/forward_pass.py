"""One forward pass of a model as `Activations`, and its errors.

A model is refused where its components do not sum to its logits, with the place where the sum breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .affine_step import AffineStep, gain
from .architecture import HALF, Architecture, HookPoint, Sublayer, UnitLike, Vectors
from .batches import inference_mode_for, pad
from .capture import Activations, RawCapture, SublayerOutput, capture
from .foreign_code import users_hooks
from .interventions import hooked_places, with_interventions
from .stream_gaps import find_mismatch
from .stream_path import number_repeats, trace

UNNAMED = (
    "something that is not a component (a hook, a wrapped module, a recurrent or linear-attention sublayer) writes to "
    "its residual stream"
)
# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones up to 2e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@dataclass(eq=False)
class ReconstructionError:
    """The largest reconstruction errors of some passes: how far the components are from the logits.

    Attributes:
        dtypes: The precisions of the stream and of the answer.
        split, stream: Heads or neurons against their sublayer, all components against the stream; relative to Σ|u_i|.
        absolute, unexplained, size: In logits: Σ u_i against what the unembedding returned, what the model returns
            against the known transform of that, and max Σ|u_i|, which these two are relative to.
        moments: Relative: sums over the vocabulary from the moments of the unembedding against those of the model's own
            logits.
    """

    dtypes: tuple[torch.dtype, ...] = ()
    split: float = 0.0
    stream: float = 0.0
    absolute: float = 0.0
    unexplained: float = 0.0
    size: float = float(torch.finfo(torch.float64).tiny)
    moments: float = 0.0

    @property
    def identity_gap(self) -> float:
        """max |Σ u_i − logits| / max Σ|u_i|."""
        return self.absolute / self.size

    @property
    def tolerances(self) -> list[float]:
        """What rounding explains, for each of the precisions."""
        return [TOLERANCE.get(dtype, 1e-4) for dtype in self.dtypes]

    def add(self, name: str, values: Any) -> None:
        """Keep the largest of an error; NaN is the largest of all."""
        setattr(self, name, float(np.maximum(getattr(self, name), float(values.max()))))

    def check(self, name: str, unit: UnitLike, locate: Callable[[], str]) -> None:
        """Raise InputError, with the place where the sum breaks, unless the components of a model sum to its logits.

        `locate` finds, when called, why the sublayers do not sum to the stream: see `locate_mismatch`.
        """
        stream, answer = self.tolerances[0], max(self.tolerances)
        heads = (
            f"its {unit}s do not add up to their sublayers (as with an output projection that is hooked, packed, or "
        )
        heads += "rounds what it is given)"
        early = (
            "its final norm and unembedding do not give its logits (as where it may exit early, or rounds its input)"
        )
        unknown = "it changes what its unembedding returned in a way this package does not know"
        for gap, tolerance, reason in (
            (self.split, stream, heads),
            (self.stream, stream, None),
            (self.identity_gap, answer, early),
            (self.unexplained / self.size, answer, unknown),
        ):
            if not gap <= tolerance:  # NaN too
                raise InputError(
                    f"{name} cannot be decomposed: {reason or locate()} (off by {gap:.1e} of Σ|u|, where rounding "
                    f"explains {tolerance:.0e})."
                )


def run(
    architecture: Architecture,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    unit: UnitLike = "sublayer",
    at: Int[Tensor, " n"] | None = None,
    of: Int[Tensor, " n"] | None = None,
    interventions: bool = False,
    **extra: Tensor,
) -> Activations:
    """Run the model once and read one position of each row, or, with `at` None, every real token, row after row.

    `of` says of which rows the positions are, where not one of each. The unembedding is shown these positions, or each
    row's last token. `unit`: also read heads or neurons. `interventions`: what the user's hooks write to the stream is
    an output of its own. `extra` goes to the model. Raises InputError where a hook point is not reached, and where a
    half-precision stream moves by more than its additions can round: what they do lose becomes the rounding component
    and not a gap, so it must be bounded here.
    """
    half, hooked = architecture.dtype in HALF, hooked_places(architecture) if interventions else []
    points = architecture.hook_points(unit) + (list(architecture.blocks) if half or hooked else [])
    answer_at = mask.sum(1) - 1 if at is None else None
    rows, at = mask.nonzero(as_tuple=True) if at is None else (torch.arange(len(ids)) if of is None else of, at)
    raw = capture(architecture, points, ids, mask, rows, at, answer_at, hooked, **extra)
    if raw.changes and not architecture.stream_ops:
        architecture, raw = with_interventions(architecture, raw, hooked, ids, mask, rows, at)
    if half and (place := find_mismatch(architecture, raw)) is not None:
        raise InputError(f"this model cannot be decomposed: {UNNAMED} {place}.")
    return assemble(architecture, raw, unit)


def assemble(architecture: Architecture, raw: RawCapture, unit: UnitLike) -> Activations:
    """The activations of a pass from what was captured. Raises InputError for a place that was never reached."""
    pos_embed = None if architecture.pos_embed is None else raw.at(architecture.pos_embed, "the position embedding")[0]
    embed = raw.at(architecture.stream_in, "the input of the first block")[0]
    if embed.shape != raw.at(architecture.stream_out, "the input of the final norm")[-1].shape:
        raise InputError(
            "this model cannot be decomposed: its blocks work on several residual streams, or on one of another width "
            "than its final norm."
        )
    if pos_embed is not None:
        embed = embed - pos_embed
    for sublayer in architecture.sublayers:
        raw.at(sublayer.hook_point, str(sublayer))
    outputs: list[SublayerOutput] = []
    path: list[AffineStep] = []
    for _, item, number in trace(architecture, raw):
        if isinstance(item, Sublayer):
            outputs.append(_sublayer_output(raw, item, number, unit))
        elif isinstance(item, AffineStep):
            path.append(replace(item, after=len(outputs)))
    repeats = number_repeats([(output.sublayer.kind, output.sublayer.layer) for output in outputs])
    return Activations(
        embed=embed,
        pos_embed=pos_embed,
        sublayer_outputs=tuple(outputs),
        repeats=repeats,
        final=raw.seen[architecture.stream_out][-1],
        unembedded=raw.unembedded,
        logits=raw.logits,
        dtype=raw.dtype,
        answer_dtype=raw.answer_dtype,
        path=tuple(path),
    )


def _sublayer_output(raw: RawCapture, sublayer: Sublayer, repeat: int, unit: UnitLike) -> SublayerOutput:
    """The output of one run of a sublayer, as it is added to the stream."""
    output = sublayer.added(raw.seen[sublayer.hook_point][repeat])
    adapter = None if sublayer.adapter is None else _adapter_write(sublayer, raw, repeat)
    if (cut := sublayer.cut(unit)) is None:
        return SublayerOutput(sublayer, output, adapter=adapter)

    def seen(point: HookPoint) -> Tensor:
        return raw.at(point, f"what a cut of {sublayer} reads")[repeat]

    point = None if cut.output_map is None else cut.output_map.post_hook_point
    post = None if point is None else seen(point)
    hooked = (sublayer.hook_point, repeat) in raw.hooked
    parts = cut.read(seen, output)
    values, vectors = (None, parts) if isinstance(parts, Vectors) else (parts, None)
    return SublayerOutput(sublayer, output, values, post, hooked, adapter, None, cut, vectors)


def _adapter_write(sublayer: Sublayer, raw: RawCapture, repeat: int) -> Tensor:
    """What of a sublayer's output its adapters wrote, after the norm at its statistic, where there is one."""
    assert sublayer.adapter is not None
    assert sublayer.output_map is not None
    if users_hooks(sublayer.adapter[0].module, "out"):
        raise InputError(f"a hook changes what the adapter of {sublayer} wrote: remove it, or use adapters='merged'.")
    adapted, base = (raw.at(point, f"an adapter of {sublayer}")[repeat] for point in sublayer.adapter)
    written, post = adapted - base, sublayer.output_map.post
    if post is not None:
        assert sublayer.output_map.post_hook_point is not None
        seen = raw.seen[sublayer.output_map.post_hook_point][repeat]
        written = post.term(written.double(), post.divisor(seen)).to(written.dtype)
    return gain(sublayer.output_map.scale).linear(written)


def locate_mismatch(architecture: Architecture, ids: Sequence[int]) -> str:
    """Why the sublayers do not sum to the stream at the last token of a prompt, found by running it once more."""
    points, hooked = [*architecture.hook_points(), *architecture.blocks], hooked_places(architecture)
    row, at, (tokens, mask) = torch.tensor([0]), torch.tensor([len(ids) - 1]), pad([ids])
    with inference_mode_for(architecture):
        raw = capture(architecture, points, tokens, mask, row, at, hooked=hooked)
        if not architecture.stream_ops:
            architecture, raw = with_interventions(architecture, raw, hooked, tokens, mask, row, at)
        place = find_mismatch(architecture, raw)
    if place is not None:
        paths = {
            module: path for root in architecture.roots if root is not None for path, module in root.named_modules()
        }
        names = ", ".join(dict.fromkeys(paths.get(point.module) or "the model" for point in hooked))
        hint = "; a hook may stand on a block, a sublayer's output, the embedding or the final norm's input, and yours"
        return f"{UNNAMED} {place}" + (f"{hint} stand on {names}" if hooked else "")
    if hooked:
        return "hooks on it add to its residual stream, which only contributions and profile take apart: remove them"
    return "its sublayers do not add up to its residual stream"
