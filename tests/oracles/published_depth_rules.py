"""Brute-force reference for the depth-use analyses of arXiv 2505.13898: a test oracle, slow and literal on purpose.

Every rule here is the rule of the code released with the paper (github.com/RobertCsordas/llm_effective_depth,
commit f29a115), restated from reading it and written anew with plain forward hooks on a Hugging Face causal LM, with
the choices that the package offers beside it as arguments whose defaults are the released ones. It never imports the
package it is used to check. One prompt at a time, no padding, one forward pass per intervention. Forward passes run in
the model's own precision (float32 in the tests); everything after them is float64.

L layers, T tokens, V vocabulary, width d. Residual l is what layer l reads: 0 the embedding, L the final norm's.

What one would not guess, and is so in the released code:
  * skips and direct effects never touch the first token (position 0), in either mode;
  * "future" with cut t changes positions 1..t-1 and measures at t.. (t itself included);
  * a skipped layer's own change counts as an effect: the diagonal of the "current" map is 1 for whole layers;
  * erasure of one position does touch the first token, and is measured from the next one on; erasure of a prefix
    changes 1..t-1 and measures from t+1 (t itself is neither erased nor measured);
  * integrated gradients use the left Riemann sum, k/N for k = 0..N-1, from the mean over tokens;
  * the depth score's output effect is measured from the answer's first token on, so the position that predicts
    that first token (the question's last) is changed and not measured;
  * the linear maps were trained by AdamW with weight decay; least squares stands for them here.
The released figures take the maximum over tokens, cut points and prompts, of the lens the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.oracles.hooked_forward import Edits, Ids, Trace, hooked, layout_of, trace


def _where(value: Tensor, other: Tensor, first: int, stop: int | None) -> Tensor:
    """`value` with tokens first..stop-1 taken from `other` (stop None: to the end)."""
    out = value.clone()
    out[:, first:stop] = other.to(out)[:, first:stop]
    return out


def _relative(before: Tensor, after: Tensor) -> Tensor:
    """‖Δ − Δ'‖ / ‖Δ‖ with ‖Δ‖ at least 1e-6."""
    return (before - after).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-6)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) / (x.norm(dim=-1).clamp(min=1e-8) * y.norm(dim=-1).clamp(min=1e-8))


def residual_norms(model: nn.Module, ids: Ids, parallel: bool = False) -> dict[str, np.ndarray]:
    """Norms, relative norms and cosines for every token of one prompt (the first token included).

    `residual` [L + 1, T]; every other entry [L, T], by part of a layer, which writes w to a stream s: attention to h,
    the MLP to h + a (to h if `parallel`; the released code takes h + a there too), the layer h_out − h to h.
    `norm` ‖w‖, `relative` ‖w‖/‖s‖ (at least 1e-6), `cosine` cos(w, s), `io` cos(s + w, s).
    """
    seen = trace(model, ids)
    h, a, m = seen.inputs, seen.attention, seen.mlp
    found = {"residual": seen.residuals.norm(dim=-1)}
    for part, write, stream in (
        ("attention", a, h),
        ("mlp", m, h if parallel else h + a),
        ("layer", seen.out - h, h),
    ):
        found[f"norm {part}"] = write.norm(dim=-1)
        found[f"relative {part}"] = write.norm(dim=-1) / stream.norm(dim=-1).clamp(min=1e-6)
        found[f"cosine {part}"] = _cosine(write, stream)
        found[f"io {part}"] = _cosine(stream + write, stream)
    return {name: value.numpy() for name, value in found.items()}


def _losses(seen: Trace, ids: Ids) -> Tensor:
    """−log p of the next token; NaN at the last."""
    log_p = seen.logits.log_softmax(-1)
    return torch.stack([*(-log_p[t, token] for t, token in enumerate(ids[1:])), log_p.new_tensor(torch.nan)])


def skip_effects(
    model: nn.Module, ids: Ids, part: str = "layer", cut: int | None = None, keep_first: int = 1
) -> dict[str, np.ndarray]:
    """Skip each layer (it hands on what it read), or silence its attention or its MLP, at tokens keep_first..cut−1.

    `cut` None is the published "current" mode: skipped to the end, measured everywhere. A `cut` is "future": skipped
    before the cut, measured at the cut and after.
    `layers` [skipped, layer, tokens measured]: relative change of h_out − h_in (the skipped layer's own included);
    `output_change` [skipped, tokens measured]: Euclidean norm of the change of the softmax; `loss`: growth of −log p.
    """
    plain = trace(model, ids)
    layers, output, loss = [], [], []
    for skipped in range(len(plain.inputs)):

        def edit(value: Tensor, read: Tensor) -> Tensor:
            return _where(value, read if part == "layer" else torch.zeros_like(value), keep_first, cut)

        changed = trace(model, ids, {(part, skipped): edit})
        layers.append(_relative(plain.out - plain.inputs, changed.out - changed.inputs)[:, cut:])
        output.append((changed.probabilities - plain.probabilities)[cut:].norm(dim=-1))
        loss.append((_losses(changed, ids) - _losses(plain, ids))[cut:])
    found = {"layers": layers, "output_change": output, "loss": loss}
    return {name: torch.stack(values).numpy() for name, values in found.items()}


def direct_effects(
    model: nn.Module, ids: Ids, part: str = "layer", cut: int | None = None, keep_first: int = 1
) -> dict[str, np.ndarray]:
    """The same, nothing passed on: each later layer loses what the removed part wrote, and not what others made of it.

    The write is subtracted from the unchanged residual that every later layer, and the final norm, reads. Layers up to
    the removed one do not change.
    """
    plain = trace(model, ids)
    change = plain.out - plain.inputs
    layers, output = [], []
    for removed, write in enumerate({"layer": change, "attention": plain.attention, "mlp": plain.mlp}[part]):
        edits: Edits = {
            ("layer", later): lambda value, _, left=plain.out[later], write=write: _where(
                left[None].to(value), (left - write)[None], keep_first, cut
            )
            for later in range(removed, len(change))
        }
        changed = trace(model, ids, edits)
        layers.append(_relative(change, changed.raw_out - changed.inputs)[:, cut:])
        output.append((changed.probabilities - plain.probabilities)[cut:].norm(dim=-1))
    return {"layers": torch.stack(layers).numpy(), "output_change": torch.stack(output).numpy()}


@torch.no_grad()
def logit_lens(
    model: nn.Module, ids: Ids, k: int = 5, norm: str = "recomputed"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Final norm and unembedding applied to the stream behind each sublayer: {label: (kl [T], topk_overlap [T])}.

    "embed" and "L0.mlp" to "L(L−2).mlp" are what the layers read, which is all that the released code reads out. KL is
    KL(lens ‖ output) in nats; the overlap is the share of the lens's k likeliest tokens that are among the output's.
    "frozen" keeps the last residual's statistic.
    """
    layout, seen = layout_of(model), trace(model, ids)
    streams = {"embed": seen.inputs[0]}
    for index, (read, write, left) in enumerate(zip(seen.inputs, seen.attention, seen.out, strict=True)):
        streams |= {f"L{index}.attn": read + write, f"L{index}.mlp": left}
    weight = next(model.parameters())
    bias = getattr(layout.final_norm, "bias", None)
    bias, cap = 0.0 if bias is None else bias, getattr(model.config, "final_logit_softcapping", None)

    def scale(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if isinstance(layout.final_norm, nn.LayerNorm) else x
        eps = next(getattr(layout.final_norm, n) for n in ("eps", "variance_epsilon") if hasattr(layout.final_norm, n))
        return (x.square().mean(-1, keepdim=True) + eps).sqrt()

    final, found = seen.logits.log_softmax(-1), {}
    for label, stream in streams.items():
        normed = layout.final_norm(stream.to(weight)[None])
        if norm == "frozen":
            normed = (normed - bias) * (scale(stream) / scale(seen.out[-1])).to(weight) + bias
        logits = layout.head(normed)[0].double().cpu()
        lens = (logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1)
        same = (lens.topk(k).indices[:, :, None] == final.topk(k).indices[:, None, :]).any(-1)
        found[label] = ((lens.exp() * (lens - final)).sum(-1).numpy(), same.double().mean(-1).numpy())
    return found


def mean_residuals(model: nn.Module, prompts: Sequence[Ids], first: int = 0) -> Tensor:
    """[L + 1, d]: each residual's mean over all tokens of all prompts, the first token included."""
    return torch.cat([trace(model, ids).residuals[:, first:] for ids in prompts], dim=1).mean(1)


def erased(model: nn.Module, ids: Ids, mean: Tensor, residual: int, first: int, stop: int) -> np.ndarray:
    """[T]: norm of the change of the softmax, with a residual at tokens first..stop−1 replaced by its mean."""

    def edit(value: Tensor, _read: Tensor) -> Tensor:
        return _where(value, mean[residual].to(value).expand_as(value), first, stop)

    changed = trace(model, ids, {("input", residual): edit})
    return (changed.probabilities - trace(model, ids).probabilities).norm(dim=-1).numpy()


def integrated_gradients(
    model: nn.Module,
    ids: Ids,
    n_answer: int,
    part: str = "layer",
    steps: int = 256,
    baseline: str = "token_mean",
    path: str = "straight",
) -> np.ndarray:
    """[L, T]: of the sum of the answer tokens' probabilities, with respect to each layer's (attention's, MLP's) output.

    Gradient times (output − baseline), averaged over the path from the baseline and summed over d. The path is sampled
    at k/steps, k = 0..steps−1; if "graded", at u⁴ for the middles u of `steps` equal parts, weighted by 4u³.
    """
    plain = trace(model, ids)
    outputs = {"layer": plain.out, "attention": plain.attention, "mlp": plain.mlp}[part]
    parameter, tokens = next(model.parameters()), torch.tensor([list(ids)])
    middles = (torch.arange(steps) + 0.5) / steps
    points = {"straight": (torch.arange(steps) / steps, torch.ones(steps)), "graded": (middles**4, 4 * middles**3)}[
        path
    ]
    rows = []
    for index, output in enumerate(outputs):
        base = {
            "token_mean": output.mean(0, keepdim=True),
            "dimension_mean": output.mean(-1, keepdim=True),
            "zero": torch.zeros_like(output),
        }[baseline]
        total = torch.zeros_like(output)
        for alpha, weight in zip(*points, strict=True):
            point = (base + alpha * (output - base)).to(parameter)[None].requires_grad_()
            with torch.enable_grad(), hooked(model, {(part, index): lambda *_, point=point: point}):
                logits = model(input_ids=tokens.to(parameter.device), use_cache=False).logits[0, -n_answer - 1 : -1]
                wanted = logits.double().softmax(-1)[range(n_answer), list(ids)[-n_answer:]].sum()
                (gradient,) = torch.autograd.grad(wanted, point)
            total += weight * gradient[0].double().cpu() / steps
        rows.append((total * (output - base)).sum(-1))
    return torch.stack(rows).numpy()


def depth_score(effect: np.ndarray) -> float:
    """Σ l·e_l / Σ e_l, layers counted from 0; e_l is the mean over a group's questions of the largest effect."""
    return float((np.arange(len(effect)) * effect).sum() / effect.sum())


def linear_maps(
    source: nn.Module, target: nn.Module, train: Sequence[Ids], held_out: Sequence[Ids], ridge: float = 0.0
) -> np.ndarray:
    """[L_source + 1, L_target + 1]: mean over tokens of ‖error‖/‖target‖ of an affine map between residuals.

    Fitted on `train`, judged on `held_out`, the first token of a prompt left out of both. The paper draws it without
    row 0 and column 0, and trains it by AdamW; here it is least squares, or a ridge.
    """

    def residuals(model: nn.Module, prompts: Sequence[Ids]) -> np.ndarray:
        return np.concatenate([trace(model, ids).residuals[:, 1:].numpy() for ids in prompts], axis=1)

    (x, y), (x_new, y_new) = ([residuals(m, rows) for m in (source, target)] for rows in (train, held_out))
    relative, width = [], y.shape[-1]
    for row, new in zip(x, x_new, strict=True):
        design = np.column_stack([row, np.ones(len(row))])
        # A penalty on all but the constant, in units of the stream's sum of squares, as rows that should be zero.
        penalty = np.sqrt(ridge * (row**2).mean() * len(row)) * np.eye(design.shape[1])[:-1]
        wanted = np.concatenate(list(y), axis=1)
        rows = np.concatenate([design, penalty]), np.concatenate([wanted, np.zeros((len(penalty), wanted.shape[1]))])
        weights = np.linalg.lstsq(*rows, rcond=None)[0]
        guess = np.column_stack([new, np.ones(len(new))]) @ weights
        error = np.linalg.norm(guess.reshape(len(guess), -1, width) - y_new.transpose(1, 0, 2), axis=-1)
        relative.append((error / np.linalg.norm(y_new, axis=-1).T).mean(0))
    return np.stack(relative)
