"""`SourceTokens`: what heads wrote to logits, by the token whose value they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ..components import Component, component_columns
from ..results import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class SourceTokens(Result):
    """Direct logit contributions of heads, split by source token: Σ over sources + value bias = the head's own.

    Attributes:
        values: float64 `[example, head, source, option]`, in logits: attention weight × value (without its bias), on
            its way to the logits. Sources are the prompt's tokens; those after the position read have 0.
        value_bias: float64 `[example, head, option]`: Σ weights × the value that the attention has of an input of
            zeros. Weights that sum to less than 1 (sinks) leave as much less of it.
        output_bias, biases: float64 `[example, bias, option]`: what the attentions' output projections and the norms
            after them add by themselves, which is no head's, and these components.
        weights: float64 `[example, head, source]`, the attention pattern's row at the position read.
        heads: The heads, in stream order.
        option_ids, options: Token ids `[example, option]` and the texts: K of them, or K for every example.
        tokens: The tokens of each prompt, as texts.
        token_ids, lengths, positions: The prompts' ids one after another, their lengths, and the position read in each.
        identity_gap: max |Σ sources + value bias − head| / max (Σ|sources| + |value bias|) over examples, heads and
            options; the heads are those of the same pass, read before the output projection.
        logit_gap: max |Σ components − logits| / max Σ|components| of that pass, as `Contributions.identity_gap`.
    """

    values: Float[np.ndarray, "example head source option"]
    value_bias: Float[np.ndarray, "example head option"]
    output_bias: Float[np.ndarray, "example bias option"]
    weights: Float[np.ndarray, "example head source"]
    heads: tuple[Component, ...]
    biases: tuple[Component, ...]
    option_ids: Int[np.ndarray, "example option"]
    options: tuple
    tokens: tuple[tuple[str, ...], ...]
    token_ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " example"]
    positions: Int[np.ndarray, " example"]
    identity_gap: float
    logit_gap: float
    model: str

    @property
    def contributions(self) -> Float[np.ndarray, "example head option"]:
        """The heads' own direct contributions: the sum of their parts, in logits."""
        return self.values.sum(2) + self.value_bias

    def option_texts(self, example: int) -> tuple[str, ...]:
        """The options of an example."""
        return self.options if isinstance(self.options[0], str) else self.options[example]

    def frame(self) -> pd.DataFrame:
        """One row per example, head, part and option: attention weight and contribution in logits.

        Parts of a head are its source tokens up to the position read (`part` "token", with `source` and
        `source_token`) and, where there is one, its "value bias"; an attention's "output bias" has a row of its own
        component. `contribution_centered` is less the part's mean over the options, where there are several.
        """
        import pandas as pd

        tables = []
        for example, end in enumerate(self.positions + 1):
            texts, k = np.array(self.tokens[example][:end], dtype=object), self.values.shape[3]
            options = np.array(self.option_texts(example), dtype=object)
            parts = [
                (
                    np.arange(end),
                    texts,
                    "token",
                    self.heads,
                    self.values[example, :, :end],
                    self.weights[example, :, :end],
                )
            ]
            none, total = np.array([None]), self.weights[example].sum(1, keepdims=True)
            if self.value_bias.any():
                parts.append((none, none, "value bias", self.heads, self.value_bias[example, :, None], total))
            if self.biases:
                weights = np.full((len(self.biases), 1), np.nan)
                parts.append((none, none, "output bias", self.biases, self.output_bias[example, :, None], weights))
            for source, token, part, components, values, weights in parts:
                rows, n = len(components), len(source)
                columns = {"example": example} | component_columns(components, np.repeat(np.arange(rows), n * k))
                columns |= {"part": part, "source": pd.array(np.tile(np.repeat(source, k), rows), dtype="Int64")}
                columns |= {"source_token": np.tile(np.repeat(token, k), rows), "weight": np.repeat(weights, k)}
                columns |= {"option_index": np.tile(np.arange(k), rows * n), "option": np.tile(options, rows * n)}
                columns |= {"contribution": values.reshape(-1)}
                if k > 1:
                    columns |= {"contribution_centered": (values - values.mean(2, keepdims=True)).reshape(-1)}
                tables.append(pd.DataFrame(columns))
        frame = pd.concat(tables, ignore_index=True)
        frame.attrs["units"] = {name: "logits" for name in frame.columns if name.startswith("contribution")}
        return_gaps = {"identity_gap": self.identity_gap, "logit_gap": self.logit_gap}
        frame.attrs |= return_gaps
        return frame

    def __repr__(self) -> str:
        n, heads, sources, k = self.values.shape
        shape = f"{n} examples × {heads} heads × {sources} source tokens × {k} options"
        return f"SourceTokens({self.model}: {shape}; identity gap {self.identity_gap:.1e})"
