"""Effects of skipping layers, attentions and MLPs on later layers' outputs and on the predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..components import Component
from ..model.frozen import upcast
from ..model.load import as_model
from ..model.prompts import prompt_ends, token_texts
from ..results import Plot
from .engine import (
    Rows,
    ablation_patch,
    layer_components,
    layer_count,
    run_patches,
    softmax_change,
    tokens_between,
)
from .inputs import FirstToken, Part, ablatable_blocks, check_choices, read_layers, read_texts
from .patched_forward import SMALLEST, PatchedForward, See
from .readings import SOFTMAX_CHANGE, Readings

Mode = Literal["current", "future", "local", "future_local"]
# The cuts of the future modes, as shares of a text's length.
CUTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Skip(Readings):
    """The change of the predictions and of later layers' outputs when a layer, attention or MLP is zero-ablated.

    Attributes:
        values: At every measured token, `output_change`: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2;
            `loss`: the growth of the next token's cross-entropy in nats, NaN at the last token; and
            `downstream_change`: the mean over later layers of ‖Δ_l − Δ'_l‖ / ‖Δ_l‖, with Δ_l the output that layer l
            adds to its stream, NaN for the last layer. With cuts a token comes once for every cut before it.
        pairs: `change`: the same for each pair of a skipped component and a later layer.

    The released code of *Do Language Models Use Their Depth Efficiently?* plots the maxima over tokens, cuts and texts:
    `by_pair().change_max` and `frame().output_change_max`. Its map also has a diagonal, 1 for a whole layer.
    """

    pairs: Readings

    lead: ClassVar = "output_change"
    figures: ClassVar = {
        "map": Plot(
            "Effect of a skip on later layers",
            "A map skipped × later layer of the mean relative change of the later one's output.",
            "shapes.heat",
            "by_pair",
            {"row": "component", "column": "target", "value": "change"},
        ),
        "bars": Plot(
            "Effect of skipping each layer",
            "The change of the answer's probabilities, the growth of the loss, and the change of later layers.",
            "shapes.bars",
            "frame",
            {"columns": ("output_change", "loss", "downstream_change")},
        ),
    }

    def by_pair(self) -> pd.DataFrame:
        """One row per skipped component and later layer (`target`): the `change` of its output."""
        return self.pairs.frame()


def skip(
    model: Any,
    texts: Any,
    part: Part = "layer",
    mode: Mode = "current",
    *,
    first_token: FirstToken = "kept",
    layers: Any = None,
    batch_tokens: int | None = None,
) -> Skip:
    """Skip every layer, attention or MLP in turn, and measure the effect on later layers and predictions.

    Follows Csordás et al. (arXiv 2505.13898), with the defaults of their released code, which draws other cuts.

    Args:
        model, texts, batch_tokens: As in `residual_norms`; texts need at least two tokens. All layers' streams of a
            batch are kept, twice, and 4 bytes for every token and pair of layers.
        part: What is zero-ablated: the "layer", its "attn" or its "mlp".
        mode: "current": skip at every token, and measure every token. "future": skip at the tokens before a cut, and
            measure the tokens from the cut on, for cuts at a quarter, half and three quarters of a text. "local" and
            "future_local": the direct effect; subtract the output at the same tokens from the stream that each later
            layer and the read-out read, without their reaction.
        first_token: Whether a text's first token, an attention sink, is also skipped: "kept" (published) or "changed".
        layers: Layers to skip, in order of use; None means all.

    A layer that is used several times is skipped one use at a time (`L3@2.layer`). Makes 1 + L/2 passes over every text
    for L layers, and as many for each cut. Raises InputError for input that cannot be used, and for a layer that does
    not exist.

    >>> import layerdiv_tl as ld
    >>> skips = ld.depth.skip("zoo/d2", [[1, 2, 3], [4, 5]])
    >>> skips.frame().component.tolist(), skips.by_pair().target.tolist()
    (['L0.layer', 'L1.layer'], ['L1.layer'])
    """
    check_choices(part=(part, Part), mode=(mode, Mode), first_token=(first_token, FirstToken))
    future, kept = mode.startswith("future"), int(first_token == "kept")
    model = as_model(model)
    if not future:
        ids = read_texts(model, texts, 2, "no other follows to be predicted")
        starts = [np.zeros(1, dtype=int)] * len(ids)
    else:
        ids = read_texts(model, texts, 2 + kept, "one is skipped and one is measured, besides a first that is kept")
        starts = [np.clip(np.round(np.array(CUTS) * len(row)), 1 + kept, len(row) - 1).astype(int) for row in ids]
    # A row is a text with one of its cuts, which is the first token that is measured.
    text, cut = np.array([(text, start) for text, own in enumerate(starts) for start in own]).T
    rows = Rows([ids[i] for i in text], [range(start, len(ids[i])) for i, start in zip(text, cut, strict=True)])
    changes: dict[int, Float[np.ndarray, "position skipped layer"]] = {}
    targets: tuple[Component, ...] = ()

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Component, Tensor]]:
        nonlocal targets
        targets = layer_components(clean)
        where = tokens_between(clean, kept, cut[batch] if future else clean.ids.shape[1])
        measured, blocks = rows.take(batch).places(clean), ablatable_blocks(model, clean, part, layers)
        outputs = [upcast(y) - upcast(x) for x, y in zip(clean.streams[:-1], clean.block_outputs, strict=True)]
        sizes = [output.norm(dim=-1).clamp_min(SMALLEST) for output in outputs]
        table = torch.full((len(blocks), len(outputs), *clean.ids.shape), torch.nan)
        for skipped, block in enumerate(blocks):

            def see(layer: int, before: Tensor, stream: Tensor, skipped: int = skipped, block: int = block) -> None:
                if layer > block:
                    change = upcast(stream) - upcast(before) - outputs[layer]
                    table[skipped, layer] = change.norm(dim=-1) / sizes[layer]

            yield clean.component(part, block), _skip(clean, block, part, mode, where, see)
        for row, own, read in zip(batch, table.unbind(2), measured.cpu(), strict=True):
            changes[row] = own[..., read].permute(2, 0, 1).numpy()

    count = len(read_layers(layers, layer_count(model)))
    skipped, (change, loss) = run_patches(model, rows, patches, softmax_change, count, batch_tokens)
    tokens = [rows.ids[row][position] for row, position in zip(rows.row, rows.position, strict=True)]
    places = {"text": text[rows.row], "position": rows.position, "token": token_texts(model, tokens)}
    of_pairs = np.concatenate([changes[row] for row in range(len(rows))])
    before, after = np.argwhere(np.isfinite(of_pairs[0])).T
    pairs = Readings(
        components=tuple(skipped[i] for i in before),
        targets=tuple(targets[i] for i in after),
        values={"change": of_pairs[:, before, after]},
        places=places,
        units={"change": "times the output's norm"},
        model=model.name,
    )
    later = np.isfinite(of_pairs[0]).sum(1)
    downstream = np.where(later > 0, np.nansum(of_pairs, 2) / np.maximum(later, 1), np.nan)
    return Skip(
        components=skipped,
        values={
            "output_change": change.astype(np.float32),
            "loss": loss.astype(np.float32),
            "downstream_change": downstream,
        },
        places=places,
        units={"output_change": SOFTMAX_CHANGE, "loss": "nats", "downstream_change": "times the output's norm"},
        model=model.name,
        settings={"part": part, "mode": mode, "first_token": first_token},
        prompt_ends=prompt_ends(model, ids),
        pairs=pairs,
    )


def _skip(
    clean: PatchedForward, block: int, part: Part, mode: Mode, where: Bool[Tensor, "row token"], see: See
) -> Float[Tensor, "row token d"]:
    """Run a pass without a component at some tokens; `see` is called on the layers after it."""
    streams = clean.streams
    if not mode.endswith("local"):
        patch = ablation_patch(clean, [clean.component(part, block)], where=where)
        return clean.resume(block, [streams[block]], patch, see)
    output = clean.block_outputs[block] - streams[block] if part == "layer" else clean.outputs[block, part]
    output = output.masked_fill(~where[..., None], 0.0)
    later = range(block + 1, len(streams))
    given = [streams[layer] - clean.through_loop_norms(output, block, layer) for layer in later]
    return clean.resume(block + 1, given, see=see)
