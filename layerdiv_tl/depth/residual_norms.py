"""How large what a layer writes is beside the stream it is added to, and which way it points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice
from ..components import Component, component_columns
from ..errors import InputError
from ..model.architecture import Architecture
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run_all_positions
from ..model.load import load_model
from ..model.looped import after_loop_norm
from ..results import Result
from .change_point import ChangePoint, change_point
from .inputs import read_texts
from .token_stats import note, resampled, summarize

Quantity = Literal["relative_norm", "cosine", "norm", "block_influence"]
Part = Literal["attn", "mlp", "layer"]
# Streams this short are all rounding.
SMALLEST = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class ResidualNorms(Result):
    """Norms and directions of what attentions, MLPs and whole layers write, at every token.

    With h the stream that enters a layer, a and m what its attention and its MLP write:

    relative
        `[token, component]`: ‖a‖/‖h‖, ‖m‖/‖h + a‖ (‖m‖/‖h‖ where both read the same stream) and ‖a + m‖/‖h‖.
    cosine
        cos(a, h), cos(m, h + a) and cos(a + m, h), likewise.
    norm
        ‖a‖, ‖m‖, ‖a + m‖.
    text
        `[token]`, which text a token is from.

    Norms, relative norms and cosines as in the released code of *Do Language Models Use Their Depth Efficiently?*
    (arXiv 2505.13898), but for an MLP that reads the same stream as its attention: there it divides by ‖h + a‖.
    The code's cosine of a layer's input and output is 1 − `block_influence`.
    """

    components: tuple[Component, ...]
    relative_norm: Float[np.ndarray, "token component"]
    cosine: Float[np.ndarray, "token component"]
    norm: Float[np.ndarray, "token component"]
    text: Int[np.ndarray, " token"]
    model: str

    @property
    def stream(self) -> Float[np.ndarray, "token component"]:
        """The norm of the stream that each is added to, such as ‖h‖; NaN where nothing is written."""
        return np.divide(
            self.norm, self.relative_norm, out=np.full_like(self.norm, np.nan), where=self.relative_norm > 0
        )

    @property
    def block_influence(self) -> Float[np.ndarray, "token component"]:
        """Block influence: 1 − cos of the stream before and behind the write (Men et al. 2024, *ShortGPT*).

        From the relative norm r and the cosine c: with x = 1 + rc and y² = r²(1 − c²) it is 1 − x/√(x² + y²),
        written so that small influences keep their digits.
        """
        r, c = self.relative_norm.astype(np.float64), np.clip(self.cosine.astype(np.float64), -1, 1)
        along, across = 1 + r * c, r**2 * (1 - c**2)
        length = np.sqrt(along**2 + across)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = across / (length * (length + along))
        return np.where(along > 0, near, 1 - along / np.maximum(length, SMALLEST))

    def frame(self) -> pd.DataFrame:
        """One row per component: means over tokens, 95 % intervals over texts, quantiles and maxima over tokens."""
        columns: dict[str, Any] = component_columns(self.components)
        for name in get_args(Quantity):
            columns |= summarize(name, getattr(self, name), self.text)
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"relative_norm": "share of the stream's norm", "cosine": "cosine", "norm": "norm"}
        frame.attrs["units"]["block_influence"] = "1 − cosine"
        frame.attrs["intervals"] = note(self.text)
        return frame

    def change_point(self, part: Part = "layer", quantity: Quantity = "relative_norm") -> ChangePoint:
        """The layer from which on the mean over tokens is smaller than before, with its interval over texts.

        Raises InputError for an unknown part or quantity, and for fewer than three layers.
        """
        for name, value, known in (("part", part, get_args(Part)), ("quantity", quantity, get_args(Quantity))):
            choice(name, value, known)
        here = [i for i, component in enumerate(self.components) if component.kind == part]
        return change_point(f"{quantity} of {part}", *resampled(getattr(self, quantity)[:, here], self.text))


def residual_norms(model: Any, texts: Any, *, batch_tokens: int | None = None) -> ResidualNorms:
    """Relative norms and cosines of what attentions, MLPs and whole layers write, over all tokens.

    model
        A `Model`, or anything `load_model` takes.
    texts
        A text, a list of texts or of lists of token ids, or a `Task`. Every token counts, the first of a
        text too: its stream is often much longer than that of others, so look at the median beside the mean.
    batch_tokens
        The most padded tokens in one forward pass.

    Keeps 12 bytes for every token and component. Raises InputError for input that cannot be used.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.residual_norms(tiny, [[1, 2, 3], [4, 5]])
    >>> found.relative_norm.shape, [c.label for c in found.components[:3]]
    ((5, 6), ['L0.attn', 'L0.mlp', 'L0.layer'])
    """
    model = load_model(model)
    ids = read_texts(model, texts)
    tables: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    names: tuple[Component, ...] = ()
    with inference_mode_for(model.architecture):
        for rows in batches(
            [len(r) for r in ids], model.checked_batch_tokens(batch_tokens), model.architecture.length_switch
        ):
            done = run_all_positions(model.architecture, *pad([ids[row] for row in rows]))
            here, table = _measure(done, model.architecture)
            if names and here != names:
                raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
            names = here
            tables.append(table)
            owners.append(np.repeat(rows, [len(ids[row]) for row in rows]))
    text = np.concatenate(owners)
    order = np.argsort(text, kind="stable")
    relative, cosine, norm = np.moveaxis(np.concatenate(tables, 1)[:, order], 0, 0)
    return ResidualNorms(names, relative, cosine, norm, text[order], model.name)


def _measure(done: Activations, architecture: Architecture) -> tuple[tuple[Component, ...], np.ndarray]:
    """Names, and `[quantity, token, component]` of one pass."""
    stream = done.embed if done.pos_embed is None else done.embed + done.pos_embed
    names: list[Component] = []
    columns: list[Tensor] = []
    sublayer_outputs = list(zip(done.sublayer_outputs, done.repeats, strict=True))
    while sublayer_outputs:
        layer, repeat = sublayer_outputs[0][0].sublayer.layer, sublayer_outputs[0][1]
        stream = after_loop_norm(done, stream, len(done.sublayer_outputs) - len(sublayer_outputs), architecture)
        entered, whole = stream, torch.zeros_like(stream)
        while sublayer_outputs and (sublayer_outputs[0][0].sublayer.layer, sublayer_outputs[0][1]) == (layer, repeat):
            firing, _ = sublayer_outputs.pop(0)
            names.append(Component(firing.sublayer.kind, layer, repeat=repeat))
            columns.append(_against(firing.output, entered if architecture.parallel else stream))
            stream, whole = stream + firing.output, whole + firing.output
        names.append(Component("layer", layer, repeat=repeat))
        columns.append(_against(whole, entered))
    return tuple(names), torch.stack(columns, -1).float().cpu().numpy()


def _against(wrote: Tensor, stream: Tensor) -> Tensor:
    """`[quantity, token]`: relative norm, cosine, norm."""
    size, of = wrote.norm(dim=-1), stream.norm(dim=-1).clamp_min(SMALLEST)
    product = (wrote * stream).sum(-1)
    return torch.stack([size / of, product / (size * of).clamp_min(SMALLEST**2), size])
