"""What heads multiply: attention weights, and the values they weigh, as the model itself does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from ..errors import InputError
from .frozen import Frozen
from .load import Model
from .patching import by_token, frozen, hooks, tensor
from .path import Path
from .units import names_of
from .writers import Writer

_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
# The most that the weights of half-precision attention may sum to, which round.
_WHOLE = 1.02
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of what the heads of one attention put out, and how that counts for K numbers at n reads of a pass.

    t are the tokens of the path: the one that is read, or all of its row.

    Attributes:
        heads: Their names.
        weights: `[n, head, t, source]`, after softmax, mask and sinks.
        values: `[row, head, source, width]`, for every query head; `row` `[n]` is that of each read.
        gradients: `[K, n, head, t, width]`, at the product of the two.
        position: The index in t of the token that is read, `[n]`.
    """

    heads: tuple[Component, ...]
    weights: Float[Tensor, "n head t source"]
    values: Float[Tensor, "row head source width"]
    row: Int[Tensor, " n"]
    gradients: Float[Tensor, "K n head t width"]
    position: Int[Tensor, " n"]

    def patterns(self, heads: Any) -> Float[Tensor, "n head source"]:
        """The weights at the token that is read, in float64."""
        return self.weights[torch.arange(len(self.weights)), :, self.position][:, heads].double().cpu()

    def contributions(self, reads: Any, heads: Any) -> Float[Tensor, "K n head source"]:
        """Weight × value × gradient of some reads and heads (slices, or lists of numbers), in float64."""
        weights = self.weights[reads][:, heads].double().cpu()
        values = self.values[:, heads][self.row[reads]].double().cpu()
        gradients = self.gradients[:, reads][:, :, heads].double().cpu()
        return torch.stack([torch.einsum("nhts,nhtw,nhsw->nhs", weights, g, values) for g in gradients])


class _Product(Frozen):
    """A mode in which the product of an attention pattern and values is a leaf; until then nothing is changed.

    Attributes:
        is_awaited: True inside an attention whose product is still to come.
        found: The pattern, the values and the leaf.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.is_awaited = False
        self.found: tuple[Tensor, Tensor, Tensor] | None = None

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found is not None or func is torch._C._set_grad_enabled:
            return super().__torch_function__(func, types, args, kwargs)
        out = func(*args, **(kwargs or {}))
        if not (self.is_awaited and func in _PRODUCTS and len(args) > 1 and _is_pattern(args[0], args[1])):
            return out
        leaf = out.detach().to(self.dtype).requires_grad_()
        self.found = args[0], args[1], leaf
        return leaf.clone()  # a model may change it in place


def _is_pattern(weights: Tensor, values: Tensor) -> bool:
    """True for `[..., query, key]` weights of at least 0 that sum to at most 1."""
    if min(weights.dim(), values.dim()) < 3 or weights.shape[-1] != weights.shape[-2]:
        return False
    return bool((weights >= 0).all() and (weights.sum(-1) <= _WHOLE).all())


def read_factors(
    model: Model,
    ids: Int[Tensor, "row token"],
    mask: Int[Tensor, "row token"],
    row: Int[Tensor, " n"],
    position: Int[Tensor, " n"],
    gradients: Mapping[Component, Float[Tensor, "K n t d"]],
    read: Callable[[Factors], T],
) -> list[T]:
    """Run a batch, and `read` the factors of each call of an attention with heads, one after another.

    `gradients` are those at the writes of these calls. Inside an attention, a graph leads from the product of weights
    and values to the write, with gates and norms held; everything before runs without one. Use it inside `eager`.

    Raises InputError for an attention whose heads are not such products.
    """
    path, (rows, tokens) = model.path, ids.shape
    mode = _Product(torch.promote_types(path.dtype, torch.float32))
    remaining = iter(gradients.items())
    results: list[T] = []

    def enter(module: nn.Module, args: Any) -> None:
        mode.is_awaited = True

    def leave(writer: Writer) -> Callable[..., Any]:
        def wrote(module: nn.Module, args: Any, output: Any) -> Any:
            found, mode.found, mode.is_awaited = mode.found, None, False
            mode.constants.clear()
            write = tensor(output)
            heads = 0 if found is None else found[2].shape[:-1].numel() // (rows * tokens)
            if found is None or heads != writer.heads or not write.requires_grad:
                raise InputError(
                    f"{model.name} ({model.provenance['architecture']}) cannot be split by source token: the output of "
                    f"the heads of {writer.component} is not weight × value."
                )
            whole, at_write = next(remaining)
            factors = _factors(path, found, by_token(write, rows, tokens), row, position, at_write)
            results.append(read(Factors(names_of("head", whole, heads), *factors)))
            x = write.detach().to(found[1].dtype)
            return type(output)([x, *output[1:]]) if isinstance(output, tuple | list) else x

        return wrote

    path.check_gradients()
    with torch.inference_mode(False), torch.enable_grad(), frozen(path.module), hooks() as add:
        for writer in path.writers:
            if writer.kind == "attn" and writer.heads:
                add(writer.owner.register_forward_pre_hook(enter))
                add(writer.place.register_forward_hook(leave(writer)))
        add(path.unembed.register_forward_pre_hook(lambda m, args: (args[0][:, -1:], *args[1:])))
        with mode:
            path.run(ids, mask)
    return results


def _factors(
    path: Path, found: tuple[Tensor, Tensor, Tensor], write: Tensor, row: Tensor, position: Tensor, at_write: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Pull gradients at the reads' writes back to the product: the fields of `Factors` after `heads`."""
    pattern, values, product = found
    row, position = row.to(write.device), position.to(write.device)
    rows, tokens = write.shape[:2]
    lead = product.shape[:-2]
    weights = pattern.expand(*lead, *pattern.shape[-2:]).reshape(rows, -1, *pattern.shape[-2:])
    values = values.expand(*lead, *values.shape[-2:]).reshape(rows, -1, *values.shape[-2:])
    read = write[row, position][:, None] if path.by_token else write[row]
    pulled = [torch.autograd.grad(read, product, g.to(read), retain_graph=True)[0] for g in at_write]
    gradients = torch.stack(pulled).reshape(len(at_write), rows, -1, tokens, product.shape[-1])
    if not path.by_token:
        return weights[row], values, row, gradients[:, row], position
    here = weights.transpose(1, 2)[row, position][:, :, None]
    return here, values, row, gradients.transpose(2, 3)[:, row, position][:, :, :, None], torch.zeros_like(position)
