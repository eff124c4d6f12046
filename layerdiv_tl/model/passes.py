"""What a pass shows of the tokens that are read, and what a replay of its path gives.

read   : a token of a row, whose logits are attributed; n of them in a pass
write  : [n, t, d], with t the tokens that the path needs: the token that is read, or all of its row
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from .writers import Writer

# What a writer's call is asked to keep of its input: decided by the unit.
CutOf = Callable[[Writer], str | None]
Edits = dict[tuple[nn.Module, str], list[Tensor]]


class Answers(NamedTuple):
    """What the read-out of some reads needs of the unembedding and the logits.

    Columns C are K targets, and the means over the next token's distribution and over the vocabulary.
    """

    rows: Float[Tensor, "n C d"]
    biases: Float[Tensor, "n C"]
    unembedded: Float[Tensor, "n K"]
    logits: Float[Tensor, "n K"]
    log_partition: Float[Tensor, " n"]
    mean_unembedded: Float[Tensor, " n"]


@dataclass(eq=False)
class Pass:
    """What a pass shows of its reads.

    Attributes:
        ids, mask, position: The tokens `[n, t]`, and the index in t of the token that is read, `[n]`.
        calls: Each call of each writer, in order, with the number of its earlier calls.
        writes: What each wrote, `[n, t, d]`.
        inputs: What the module that is cut received, `[n, t, width]`; for experts, the arguments of the mixture and of
            its experts; None for a write that stays whole.
        edits: What users' hooks added on the path: `{(module, side): [[n, t, d] of each call]}`.
        hooked: Writers with hooks of the user, whose writes may be more than the sum of their parts.
        finals: The final norm's inputs, one for each call, `[n, t, d]`.
        unembedded, logits: `[n, vocabulary]`: the unembedding's output, and the model's logits.
        answers: What is known in place of these of a model that runs elsewhere.
    """

    ids: Int[Tensor, "n t"]
    position: Int[Tensor, " n"]
    mask: Int[Tensor, "n t"] | None = None
    calls: list[tuple[Writer, int]] = field(default_factory=list)
    writes: list[Tensor] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    edits: Edits = field(default_factory=lambda: defaultdict(list))
    hooked: set[Writer] = field(default_factory=set)
    finals: list[Tensor] = field(default_factory=list)
    unembedded: Tensor | None = None
    logits: Tensor | None = None
    answers: Answers | None = None

    def wrote(self, writer: Writer, write: Tensor, received: Any = None) -> None:
        """Keep a call."""
        self.calls.append((writer, sum(known is writer for known, _ in self.calls)))
        self.writes.append(write)
        self.inputs.append(received)

    def components(self) -> list[Component]:
        """Names of the calls: `L3.attn`, or `L3@2.attn` where a layer runs several times."""
        repeated = {writer for writer, number in self.calls if number}
        return [replace(w.component, repeat=n + 1 if w in repeated else None) for w, n in self.calls]

    def take(self, some: slice) -> Pass:
        """Select some reads."""
        return replace(
            self,
            ids=self.ids[some],
            position=self.position[some],
            mask=None if self.mask is None else self.mask[some],
            writes=[x[some] for x in self.writes],
            inputs=[x[some] if isinstance(x, Tensor) else x for x in self.inputs],
            edits=defaultdict(list, {key: [x[some] for x in found] for key, found in self.edits.items()}),
            finals=[x[some] for x in self.finals],
            unembedded=None if self.unembedded is None else self.unembedded[some],
            logits=None if self.logits is None else self.logits[some],
            answers=None if self.answers is None else Answers(*(x[some] for x in self.answers)),
        )


@dataclass(eq=False)
class Replay:
    """The path alone, as a graph from its leaves.

    Attributes:
        writes: A leaf `[n, t, d]` for each write.
        constants: Leaves for what the path adds by itself, each with the shape of the sum.
        constant_axes: The axis of the reads in each constant.
        edits: Leaves for what users' hooks added.
        rounding: Leaves for what the additions of a half-precision model lost until the final norm.
        final, after_norm: The last input and output of the final norm, `[n, t, d]`.
        normed: The unembedding's input `[n, d]`.
        adds: True if `final` is the sum of the leaves, which then have one gradient.
    """

    writes: list[Tensor]
    constants: list[Tensor]
    constant_axes: list[int]
    edits: list[Tensor]
    rounding: list[Tensor]
    final: Tensor
    after_norm: Tensor
    normed: Float[Tensor, "n d"]
    adds: bool
