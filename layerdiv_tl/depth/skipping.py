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
from .engine import Rows, layer_components, layer_count, read_logits, run_patches, softmax_change, tokens_between
from .inputs import FirstToken, Part, ablatable_blocks, check_choices, read_layers, read_texts
from .patched_forward import SMALLEST, PatchedForward, See
from .readings import SOFTMAX_CHANGE, Pairs, Readings, reduce_known

Mode = Literal["current", "future", "local", "future_local"]
# The cuts of the future modes, as shares of a text's length.
CUTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Skip(Readings):
    """The change of the predictions and of later layers' outputs when a layer, attention or MLP is zero-ablated.

    Attributes:
        values: At every measured token, `output_change`: ‖softmax − softmax'‖₂ over the vocabulary, between 0 and √2;
            and `loss`: the growth of the next token's cross-entropy in nats, NaN at the last token. With cuts a token
            comes once for every cut before it.
        columns: Of `frame()`: `downstream_change`, the mean over later layers and their tokens of ‖Δ_l − Δ'_l‖ /
            ‖Δ_l‖, with Δ_l the output that layer l adds to its stream, and its maximum; NaN for the last layer.
        pairs: The same for each pair of a skipped component and a later layer.

    The released code of *Do Language Models Use Their Depth Efficiently?* plots the maxima over tokens, cuts and texts:
    `by_pair().change_max` and `frame().output_change_max`. Its map also has a diagonal, 1 for a whole layer.
    """

    pairs: Pairs

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
        """One row per skipped component and later layer (`target`): the `change` of its output, as in `columns`."""
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
            batch are kept, twice.
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
    changes: dict[int, Float[np.ndarray, "2 skipped layer"]] = {}
    targets: tuple[Component, ...] = ()

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Component, Tensor]]:
        nonlocal targets
        targets = layer_components(clean)
        where = tokens_between(clean, kept, cut[batch] if future else clean.ids.shape[1])
        measured, blocks = rows.take(batch).places(clean), ablatable_blocks(model, clean, part, layers)
        outputs = [upcast(y) - upcast(x) for x, y in zip(clean.streams[:-1], clean.block_outputs, strict=True)]
        sizes = [output.norm(dim=-1).clamp_min(SMALLEST) for output in outputs]
        tables = np.full((len(batch), 2, len(blocks), len(outputs)), np.nan)
        changes.update(zip(batch, tables, strict=True))
        for skipped, block in enumerate(blocks):

            def see(layer: int, before: Tensor, stream: Tensor, skipped: int = skipped, block: int = block) -> None:
                if layer <= block:
                    return
                change = (upcast(stream) - upcast(before) - outputs[layer]).norm(dim=-1) / sizes[layer]
                change = change.masked_fill(~measured, 0.0)
                tables[:, 0, skipped, layer] = change.sum(1, dtype=torch.float64).cpu() / measured.sum(1).cpu()
                tables[:, 1, skipped, layer] = change.amax(1).cpu()

            yield clean.component(part, block), _skip(clean, block, part, mode, where, see)

    count, reading = len(read_layers(layers, layer_count(model))), read_logits(rows, softmax_change)
    skipped, (change, loss) = run_patches(model, rows, patches, reading, count, batch_tokens)
    mean, largest = np.stack([changes[row] for row in range(len(rows))], 1)
    counts, first = np.bincount(rows.row)[:, None, None], np.flatnonzero(np.diff(text, prepend=-1))
    pairs = Pairs(
        components=skipped,
        targets=targets,
        mean=np.add.reduceat(mean * counts, first) / np.add.reduceat(counts, first),
        largest=np.maximum.reduceat(largest, first),
        counts=np.bincount(text[rows.row]),
        quantity="change",
        unit="times the output's norm",
    )
    tokens = [rows.ids[row][position] for row, position in zip(rows.row, rows.position, strict=True)]
    return Skip(
        components=skipped,
        values={"output_change": change.astype(np.float32), "loss": loss.astype(np.float32)},
        places={"text": text[rows.row], "position": rows.position, "token": token_texts(model, tokens)},
        units={"output_change": SOFTMAX_CHANGE, "loss": "nats", "downstream_change": pairs.unit},
        model=model.name,
        settings={"part": part, "mode": mode, "first_token": first_token},
        columns=_over_later_layers(pairs),
        prompt_ends=prompt_ends(model, ids),
        pairs=pairs,
    )


def _over_later_layers(pairs: Pairs) -> dict[str, Float[np.ndarray, " skipped"]]:
    """Make columns of each component's mean change of later layers, with its interval, and of the maximum."""
    later = np.isfinite(pairs.mean)
    with np.errstate(invalid="ignore"):
        mean = np.where(later, pairs.mean, 0.0).sum(2) / later.sum(2)
    largest = pairs.largest.swapaxes(1, 2).reshape(-1, len(pairs.components))
    columns = pairs.over_texts(mean).columns("downstream_change")
    return columns | {"downstream_change_max": reduce_known(np.max, largest)}


def _skip(
    clean: PatchedForward, block: int, part: Part, mode: Mode, where: Bool[Tensor, "row token"], see: See
) -> Float[Tensor, "row token d"]:
    """Run a pass without a component at some tokens; `see` is called on the layers after it."""
    streams = clean.streams
    if not mode.endswith("local"):
        return clean.resume(block, streams[block], clean.zero_ablate(part, block, where), see=see)
    output = clean.block_outputs[block] - streams[block] if part == "layer" else clean.outputs[block, part]
    output = output.masked_fill(~where[..., None], 0.0)

    def without(layer: int, _: Tensor) -> Tensor:
        return streams[layer] - clean.through_loop_norms(output, block, layer)

    return clean.resume(block + 1, without(block + 1, output), edit=without, see=see)
