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
        task, labels, option_names: The task's name, its right options `[example]` and the names of its columns of
            options, if it was given.
        directions: Vectors `[K, d]` that are read after the final norm, instead of options; float64, on the CPU.
    """

    ids: Prompts
    at: Int[np.ndarray, " example"]
    option_ids: OptionIds
    options: tuple[Any, ...]
    directions: Float[torch.Tensor, "option d"] | None = None
    task: str = ""
    labels: Int[np.ndarray, " example"] | None = None
    option_names: tuple[str, ...] = ()

    @property
    def beginnings(self) -> list[Ids]:
        """Each prompt up to the position read."""
        return [row[: end + 1] for row, end in zip(self.ids, self.at, strict=True)]

    def fields(self, labels: bool = True) -> dict[str, Any]:
        """The fields of results that name the prompts and options; ids of single tokens are `[example, option]`."""
        of_task: dict[str, Any] = {"labels": self.labels, "option_names": self.option_names} if labels else {}
        return of_task | {
            "option_ids": self.option_ids[:, :, 0] if self.is_single else self.option_ids,
            "options": self.options,
            "token_ids": np.concatenate([np.array(row, dtype=np.int64) for row in self.ids]),
            "lengths": np.array([len(row) for row in self.ids], dtype=np.int64),
            "positions": self.at,
        }

    @property
    def is_single(self) -> bool:
        """True if all options are single tokens, or directions."""
        return self.option_ids.shape[2] == 1


def read_question(
    model: Model,
    prompts: Any,
    options: Any = None,
    position: Any = "last",
    *,
    attention_mask: Any = None,
    single: bool = False,
) -> LogitQuestion:
    """Parse the user's prompts and options as `contributions` describes; with `single`, options are one token each.

    Raises InputError for unusable input.
    """
    if prompts is None:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    about: dict[str, Any] = {}
    if is_task(prompts):
        task = prompts
        prompts, of_task = _prompts_and_options(model, task, needed=options is None)
        about = {"task": task.name, "labels": np.asarray(task.labels, dtype=np.int64)}
        if options is None:
            options, about["option_names"] = of_task, tuple(getattr(task, "option_names", ()))
        else:
            about["labels"] = None  # they number the task's own options
    ids = encode(model, with_mask(prompts, attention_mask))
    at = read_positions(position, [len(row) for row in ids])
    if isinstance(options, Mapping):
        vectors, texts = _read_directions(options, model)
        numbers = np.tile(np.arange(len(vectors))[:, None], (len(ids), 1, 1))
        return LogitQuestion(ids, at, numbers, texts, vectors, **about)
    at_end = all(place == len(row) - 1 for row, place in zip(ids, at, strict=True))
    read = single_tokens if single else read_options
    option_ids, texts = read(model, options, ids, at_end)
    warn_of_missing_spaces(ids, options)
    if single:
        option_ids = option_ids[:, :, None]
    return LogitQuestion(ids, at, option_ids, texts, **about)


def _prompts_and_options(model: Model, task: Any, needed: bool) -> tuple[Any, Any]:
    """Get a task's prompts, and if needed its options, as this model's tokenizer encodes them."""
    if not needed:
        return task.prompts, None
    resolved = task.resolve(model)
    if task.option_ids and task.option_ids != resolved.option_ids:
        raise InputError(f"this task was resolved for another tokenizer than {model.name}'s: resolve it for this one.")
    return resolved.prompts, resolved.option_ids or resolved.options


def _read_directions(
    directions: Mapping[Any, Any], model: Model
) -> tuple[Float[torch.Tensor, "option d"], tuple[str, ...]]:
    """Parse `{name: vector}` as `[K, d]` and names. Raises InputError for vectors that do not fit the stream."""
    width = model.path.read_width
    try:
        rows = torch.stack([torch.as_tensor(x).detach().double().cpu() for x in directions.values()])
    except (TypeError, ValueError, RuntimeError):
        rows = torch.empty(0, 0)
    if rows.dim() != 2 or rows.shape[1] != width or not bool(rows.isfinite().all() and rows.any(1).all()):
        raise InputError(f"options={{name: vector}} needs vectors of {width} finite numbers, none of them zero.")
    # A centering norm removes the direction along which its gains are equal; gains are known up to rounding.
    if model.path.norm is not None and model.path.width == width:
        streams = torch.randn(16, width, dtype=rows.dtype, generator=torch.Generator().manual_seed(0))
        normed = model.path.normed(streams.to(model.path.device, model.path.wide)).double().cpu()
        seen = (normed - normed.mean(0)) @ rows.T
        nothing = seen.norm(dim=0) <= 1e-5 * normed.norm() * rows.norm(dim=1)
        if bool(nothing.any()):
            name = list(directions)[int(nothing.nonzero()[0])]
            raise InputError(
                f"{name!r} is a direction that {model.name}'s final norm removes: no component writes to it."
            )
    return rows, tuple(map(str, directions))
