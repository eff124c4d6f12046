"""The passes of a whole-vocabulary profile: texts in batches, sums over the vocabulary, and their checks.

The logits of components are never formed: with G = RᵀR the Gram matrix of the unembedding's centered rows, sums of
their squares and products are |R y_i|² and y_i · G y_j of the carried vectors y_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.batches import batches, pad
from ..model.frozen import TOLERANCE
from ..model.load import Model
from ..model.passes import Pass
from ..model.units import UnitLike, cut_of
from .carried import carried
from .reading import ALIKE
from .vocabulary import Vocabulary, log_sum_exp

# The most numbers of one table of positions and components or ids.
NUMBERS = 32_000_000
# The positions at which the vocabulary's sums are compared with those of the model's own logits.
_CHECKED = 4
Texts = Sequence[tuple[int, ...]]


@dataclass(eq=False)
class ProfileRun:
    """A profile's model and unit, and the components and largest errors of its passes so far.

    `gap` and `size` are max |Σ u_i − logit| and max Σ|u_i| at next tokens, in logits.
    """

    model: Model
    unit: UnitLike
    batch_tokens: int
    components: tuple[Component, ...] = ()
    gap: float = 0.0
    size: float = 0.0

    @property
    def dtype(self) -> torch.dtype:
        """The precision of products with the vocabulary; sums over it are float64."""
        return torch.promote_types(self.model.path.dtype, torch.float32)

    def blocks(self, ids: Texts) -> Iterator[tuple[Int[np.ndarray, " position"], dict[str, Tensor]]]:
        """Yield some positions' places among all tokens, and their columns.

        Raises InputError where the components do not sum to the logits.
        """
        path, lengths = self.model.path, [len(row) for row in ids]
        starts = np.cumsum([0, *lengths])
        next_ids = np.concatenate([[*row[1:], -1] for row in ids])
        with path.session(), progress(self.model.name, int(starts[-1]), "token") as advance:
            for rows in batches(lengths, self.batch_tokens, path.length_switch):
                row, position = torch.tensor([(n, t) for n, i in enumerate(rows) for t in range(lengths[i])]).T
                seen = path.record(*pad([ids[i] for i in rows]), row, position, partial(cut_of, self.unit))
                places = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in rows])
                step = max(1, NUMBERS // (8 * max(path.outputs, len(path.calls) * path.width)))
                for start in range(0, len(places), step):
                    part = slice(start, start + step)
                    yield places[part], self._columns(seen.take(part), next_ids[places[part]])
                    advance(len(places[part]))
        tolerance = TOLERANCE.get(path.dtype, 1e-4)
        if not self.gap <= tolerance * self.size:
            raise InputError(
                f"{self.model.name} cannot be decomposed: its components miss its logits by {self.gap / self.size:.1e} "
                f"of Σ|u|, where rounding explains {tolerance:.0e}."
            )

    def _columns(self, seen: Pass, next_ids: Int[np.ndarray, " position"]) -> dict[str, Tensor]:
        """Compute tables `[position, component]` and columns `[position]`; NaN without a next token."""
        vocabulary = Vocabulary.of(self.model)
        assert seen.unembedded is not None
        assert seen.logits is not None
        device = seen.unembedded.device
        known = torch.as_tensor(next_ids, device=device)
        target = known.clamp_min(0)
        root = vocabulary.root(self.dtype).to(self.dtype)
        mean = torch.cat([vocabulary.mean, vocabulary.mean_bias[None]])
        to_target = vocabulary.centered(target)
        # The sum of all components is the unembedding's input.
        replay = self.model.path.replay(seen)
        normed = replay.normed.detach()
        total = torch.cat([normed, torch.ones_like(normed[:, :1])], 1) * self.model.path.factor
        rooted = total.to(self.dtype) @ root.T
        crossing = rooted @ root
        names: list[Component] = []
        tables: dict[str, list[Tensor]] = {name: [] for name in ("means", "centered_targets", "sizes", "crosses")}
        for components, y in carried(self.model.path, seen, self.unit, replay):
            names += components
            precise = y.to(self.dtype)
            tables["means"].append(y @ mean)
            tables["centered_targets"].append((y * to_target).sum(-1))
            tables["sizes"].append((precise @ root.T).square().sum(-1).to(y))
            tables["crosses"].append((precise * crossing).sum(-1).to(y))
        if self.components and tuple(names) != self.components:
            raise InputError(f"{self.model.name} runs its layers a varying number of times in these texts: {ALIKE}.")
        self.components = tuple(names)
        columns = {name: torch.cat(parts).T for name, parts in tables.items()}
        floor = total.square().sum(1) * root.double().square().sum()
        some = slice(0, _CHECKED)
        self._check_moments(
            seen.take(some), rooted[some], (total @ mean)[some], floor[some], {n: x[some] for n, x in columns.items()}
        )
        count = len(names)
        columns["crosses"] = columns["crosses"] / count
        u = columns["means"] + columns["centered_targets"]
        logit = seen.unembedded.gather(1, target[:, None])[:, 0].to(u) * self.model.path.factor
        self.gap = max(self.gap, float((u.sum(1) - logit).abs().max()))
        self.size = max(self.size, float(u.abs().sum(1).max()))
        partition = log_sum_exp(seen.logits)
        losses = partition - seen.logits.gather(1, target[:, None])[:, 0].double()
        size = len(vocabulary.rows)
        columns |= {
            "losses": losses,
            "powers": rooted.square().sum(1).to(u) / count**2,
            "ensemble_means": total @ mean / count,
            "target_powers": torch.full_like(losses, 1 - 1 / size),
            "target_means": torch.full_like(losses, 1 / size),
        }
        for name in ("losses", "target_powers", "target_means", "centered_targets"):
            columns[name][known < 0] = torch.nan
        return columns

    def _check_moments(
        self, seen: Pass, rooted: Tensor, mean: Tensor, floor: Tensor, columns: dict[str, Tensor]
    ) -> None:
        """Raise InputError unless the vocabulary's sums use the weights that the model has now."""
        assert seen.unembedded is not None
        logits = seen.unembedded.double() * self.model.path.factor
        own = logits.var(1, correction=0) * logits.shape[1]
        power = rooted.double().square().sum(1)
        # Components may cancel, in planted models to nothing but rounding.
        scale = torch.maximum(own, power) + 1e-9 * columns["sizes"].sum(1) + 1e-12 * floor
        spread = (scale / logits.shape[1]).sqrt() + columns["means"].abs().sum(1)
        off = torch.maximum(((power - own) / scale).abs().max(), ((mean - logits.mean(1)) / spread).abs().max())
        tolerance = max(TOLERANCE.get(self.model.path.dtype, 1e-4), 2e-4)
        if not float(off) <= tolerance:
            raise InputError(
                f"the moments of {self.model.name}'s unembedding are {float(off):.1e} off its own logits, where "
                f"rounding explains {tolerance:.0e}: its weights were changed in a way that leaves no trace (load it "
                "again), or products run in TF32 (set torch.set_float32_matmul_precision('highest'))."
            )
