"""The question to a model: prompts, the position read in each, and options or directions to read there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ..errors import InputError
from ..model.load import Model
from ..model.options import (
    OptionIds,
    contrast_pairs,
    is_task,
    read_options,
    read_positions,
    single_tokens,
    warn_of_missing_spaces,
)
from ..model.prompts import Ids, Prompts, encode, with_mask


@dataclass(frozen=True, eq=False)
class LogitQuestion:
    """The requested logits of some prompts.

    Attributes:
        ids, at: The prompts, and the position whose logits are read in each.
        option_ids, options: The options' tokens, and their texts: K, or K for every prompt. For `directions` their
            indices and names.
        task: The name of the task that they are of, if it was given.
        directions: Vectors `[K, d]` that are read after the final norm, instead of options; float64, on the CPU.
    """

    ids: Prompts
    at: Int[np.ndarray, " example"]
    option_ids: OptionIds
    options: tuple[Any, ...]
    directions: Float[torch.Tensor, "option d"] | None = None
    task: str = ""

    @property
    def beginnings(self) -> list[Ids]:
        """Each prompt up to the position read."""
        return [row[: end + 1] for row, end in zip(self.ids, self.at, strict=True)]

    def fields(self) -> dict[str, Any]:
        """The fields of results that name the prompts and options; ids of single tokens are `[example, option]`."""
        return {
            "option_ids": self.option_ids[:, :, 0, 0] if self.is_single else self.option_ids,
            "options": self.options,
            "token_ids": np.concatenate([np.array(row, dtype=np.int64) for row in self.ids]),
            "lengths": np.array([len(row) for row in self.ids], dtype=np.int64),
            "positions": self.at,
        }

    @property
    def is_single(self) -> bool:
        """True if all options are single tokens, or directions."""
        return self.option_ids.shape[2:] == (1, 1)


def read_question(
    model: Model,
    prompts: Any,
    options: Any = None,
    position: Any = "last",
    *,
    contrast: Any = None,
    directions: Any = None,
    attention_mask: Any = None,
    single: bool = False,
) -> LogitQuestion:
    """Parse the user's prompts and options as `contributions` describes; with `single`, options are one token each.

    Raises InputError for unusable input.
    """
    given = {"options": options, "contrast": contrast, "directions": directions}
    if len(names := [name for name, x in given.items() if x is not None]) > 1:
        raise InputError(f"{' and '.join(names)} each say what is read: give one of them.")
    if prompts is None:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    if contrast is not None:
        options = contrast_pairs(contrast)
    task = prompts.name if is_task(prompts) else ""
    if task:
        prompts, own = _prompts_and_options(model, prompts, needed=not names)
        options = options if names else own
    ids = encode(model, with_mask(prompts, attention_mask))
    at = read_positions(position, [len(row) for row in ids])
    if directions is not None:
        vectors, texts = _read_directions(directions, model)
        numbers = np.tile(np.arange(len(vectors))[:, None, None], (len(ids), 1, 1, 1))
        return LogitQuestion(ids, at, numbers, texts, vectors, task)
    at_end = all(place == len(row) - 1 for row, place in zip(ids, at, strict=True))
    if single:
        tokens, texts = single_tokens(model, options, ids, at_end)
        option_ids = tokens[:, :, None, None]
    else:
        option_ids, texts = read_options(model, options, ids, at_end)
    warn_of_missing_spaces(model, ids, options)
    return LogitQuestion(ids, at, option_ids, texts, task=task)


def _prompts_and_options(model: Model, task: Any, needed: bool) -> tuple[Any, Any]:
    """Get a task's prompts, and if needed its options, as this model's tokenizer encodes them."""
    if not needed:
        return task.prompts, None
    resolved = task.resolve(model, multi_token=bool(task.option_ids))
    if task.option_ids and task.option_ids != resolved.option_ids:
        raise InputError(f"this task was resolved for another tokenizer than {model.name}'s: resolve it for this one.")
    return resolved.prompts, resolved.option_ids or resolved.options


def _read_directions(directions: Any, model: Model) -> tuple[Float[torch.Tensor, "option d"], tuple[str, ...]]:
    """Parse directions as `[K, d]` and their names. Raises InputError for those that do not fit the model's stream."""
    width = model.architecture.norm.gain.numel()
    named = directions if isinstance(directions, Mapping) else None
    what = f"a vector of {width} finite numbers, a list of such vectors, or a dict of them by name"
    try:
        vectors = [
            torch.as_tensor(x).detach().double().cpu() for x in (directions if named is None else named.values())
        ]
        rows = torch.atleast_2d(torch.stack(vectors))
    except (TypeError, ValueError, RuntimeError):
        rows = torch.empty(0, 0)
    if rows.dim() != 2 or rows.shape[1] != width or not bool(rows.isfinite().all() and rows.any(1).all()):
        raise InputError(f"directions must be {what}, none of them zero.")
    # A centering norm removes the direction along which its gains are equal; gains are known up to rounding.
    norm = model.architecture.norm
    nothing = norm.fold(rows).norm(dim=1) <= 1e-5 * (rows * norm.gain.to(rows)).norm(dim=1)
    if bool(nothing.any()):
        number = int(nothing.nonzero()[0])
        raise InputError(
            f"direction {number} is one that {model.name}'s final norm removes: no component writes to it."
        )
    names = tuple(named) if named is not None else tuple(f"direction {i}" for i in range(len(rows)))
    if not all(isinstance(name, str) for name in names):
        raise InputError("directions={...} must have texts as names.")
    return rows, names
