"""Brute-force reference for the depth-use analyses of arXiv 2505.13898: a test oracle, slow and literal on purpose.

Every rule here is the rule of the code released with the paper (github.com/RobertCsordas/llm_effective_depth,
commit f29a115), restated from reading it and written anew with plain forward hooks on a Hugging Face causal LM. It
never imports the package it is used to check. One prompt at a time, no padding, one forward pass per intervention.
Forward passes run in the model's own precision (float32 in the tests); everything after them is float64.

L layers, T tokens, V vocabulary, width d. Residual l is what layer l reads: 0 the embedding, L the final norm's.

What one would not guess, and is so in the released code:
  * skips and direct effects never touch the first token (position 0), in either mode;
  * "future" with cut t changes positions 1..t-1 and measures at t.. (t itself included);
  * a skipped layer's own change counts as an effect: the diagonal of the "current" map is 1 for whole layers;
  * erasure of one position does touch the first token; erasure of a prefix changes 1..t-1 and measures from t+1;
  * integrated gradients use the left Riemann sum, k/N for k = 0..N-1, from the mean over tokens;
  * the depth score's output effect is measured from the answer's first token on, so the position that predicts
    that first token (the question's last) is changed and not measured;
  * the linear maps were trained by AdamW with weight decay; least squares stands for them here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.oracles.hooked_forward import Edits, Ids, hooked, layout_of, logits_of, trace

PARTS = ("layer", "attention", "mlp")


def _where(value: Tensor, other: Tensor, first: int, stop: int | None) -> Tensor:
    """`value` with tokens first..stop-1 taken from `other` (stop None: to the end)."""
    out = value.clone()
    out[:, first:stop] = other.to(out)[:, first:stop]
    return out


# --- sizes of contributions -----------------------------------------------------------------------------------------


def residual_norms(model: nn.Module, ids: Ids) -> dict[str, np.ndarray]:
    """Norms, relative norms and cosines for every token of one prompt (the first token included).

    `residual` [L + 1, T]; every other entry [L, T]: `attention` ‖a‖, `mlp` ‖m‖, `layer` ‖h_out − h_in‖;
    `relative_attention` ‖a‖/‖h‖, `relative_mlp` ‖m‖/‖h + a‖, `relative_layer` ‖h_out − h_in‖/‖h‖ (denominators at
    least 1e-6); `cosine_attention` cos(a, h), `cosine_mlp` cos(m, h + a), `cosine_layer` cos(h_out − h_in, h),
    `cosine_io` cos(h_out, h). h + a is taken literally, also where a block is parallel and its MLP reads h.
    """
    seen = trace(model, ids)
    h, a, m, out = seen.inputs, seen.attention, seen.mlp, seen.out
    change, middle = out - h, h + a

    def norm(x: Tensor) -> Tensor:
        return x.norm(dim=-1)

    def cosine(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(-1) / (norm(x).clamp(min=1e-8) * norm(y).clamp(min=1e-8))

    values = {
        "residual": norm(seen.residuals),
        "attention": norm(a),
        "mlp": norm(m),
        "layer": norm(change),
        "relative_attention": norm(a) / norm(h).clamp(min=1e-6),
        "relative_mlp": norm(m) / norm(middle).clamp(min=1e-6),
        "relative_layer": norm(change) / norm(h).clamp(min=1e-6),
        "cosine_attention": cosine(a, h),
        "cosine_mlp": cosine(m, middle),
        "cosine_layer": cosine(change, h),
        "cosine_io": cosine(out, h),
    }
    return {name: value.numpy() for name, value in values.items()}


def over_tokens(prompts: Sequence[dict[str, np.ndarray]], how: str) -> dict[str, np.ndarray]:
    """[L] or [L + 1] per entry of `residual_norms`: `how` "mean" weighs all tokens of all prompts alike, or "max"."""
    joined = {name: np.concatenate([one[name] for one in prompts], axis=1) for name in prompts[0]}
    return {name: value.mean(1) if how == "mean" else value.max(1) for name, value in joined.items()}


# --- skipping -------------------------------------------------------------------------------------------------------


def published_cuts(n_tokens: int, generator: random.Random, count: int = 4) -> list[int]:
    """Cut points of the "future" mode: multiples of 8 from 8 below n_tokens − 4, shuffled, the first `count`."""
    cuts = list(range(8, n_tokens - 4, 8))
    generator.shuffle(cuts)
    return cuts[:count]


def _relative_change(before: Tensor, after: Tensor, cut: int | None) -> Tensor:
    """[L, tokens measured]: ‖Δ − Δ'‖ / ‖Δ‖ with ‖Δ‖ at least 1e-6, at tokens cut.. (None: all)."""
    before, after = before[:, cut:], after[:, cut:]
    return (before - after).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-6)


def skip_effects(
    model: nn.Module, ids: Ids, part: str = "layer", cut: int | None = None, keep_first: int = 1
) -> dict[str, np.ndarray]:
    """Skip each layer (it hands on what it read), or silence its attention or its MLP, at tokens keep_first..cut−1.

    `cut` None is the published "current" mode: skipped to the end, measured everywhere. A `cut` is "future": skipped
    before the cut, measured at the cut and after.
    `layers` [skipped, layer, tokens measured]: relative change of h_out − h_in (the skipped layer's own included);
    `output_change` [skipped, tokens measured]: Euclidean norm of the change of the softmax.
    """
    plain = trace(model, ids)
    layers, output = [], []
    for skipped in range(len(plain.inputs)):

        def edit(value: Tensor, read: Tensor) -> Tensor:
            return _where(value, read if part == "layer" else torch.zeros_like(value), keep_first, cut)

        changed = trace(model, ids, {(part, skipped): edit})
        layers.append(_relative_change(plain.out - plain.inputs, changed.out - changed.inputs, cut))
        output.append((changed.probabilities - plain.probabilities)[cut:].norm(dim=-1))
    return {"layers": torch.stack(layers).numpy(), "output_change": torch.stack(output).numpy()}


def published_skip_effects(
    model: nn.Module, prompts: Sequence[Ids], part: str = "layer", cuts: Sequence[Sequence[int | None]] | None = None
) -> dict[str, np.ndarray]:
    """As released: the maximum over tokens, cut points and prompts. `cuts` lists each prompt's (None: "current").

    `layers` [skipped, layer], `output_change` [skipped].
    """
    asked = [[None]] * len(prompts) if cuts is None else cuts
    found = [skip_effects(model, ids, part, t) for ids, chosen in zip(prompts, asked, strict=True) for t in chosen]
    return {
        "layers": np.max([one["layers"].max(-1) for one in found], axis=0),
        "output_change": np.max([one["output_change"].max(-1) for one in found], axis=0),
    }


def direct_effects(model: nn.Module, ids: Ids, cut: int | None = None, keep_first: int = 1) -> np.ndarray:
    """[removed, layer, tokens measured]: relative change of each layer's h_out − h_in, nothing passed on.

    What layer s adds is subtracted from the unchanged residual that layers s + 1.. read, at tokens keep_first..cut−1,
    so each of them sees the loss of s alone and not what others made of it. Layers up to s are 0. Measured at tokens
    cut.. (None: all). The released code takes the maximum over tokens, cut points and prompts.
    """
    plain = trace(model, ids)
    change = plain.out - plain.inputs
    count = len(change)
    rows = []
    for removed in range(count):
        edits: Edits = {}
        for later in range(removed, count):
            target = (plain.out[later] - change[removed])[None]

            def edit(value: Tensor, _read: Tensor, target: Tensor = target, later: int = later) -> Tensor:
                return _where(plain.out[later][None].to(value), target, keep_first, cut)

            edits["layer", later] = edit
        changed = trace(model, ids, edits)
        rows.append(_relative_change(change, changed.raw_out - changed.inputs, cut))
    return torch.stack(rows).numpy()


# --- logit lens -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def logit_lens(model: nn.Module, ids: Ids, k: int = 5) -> dict[str, np.ndarray]:
    """Final norm and unembedding applied to what layer l reads, l = 0..L−1 (row 0 is the embedding).

    `kl` [L, T]: KL(lens ‖ output) in nats; `topk_overlap` [L, T]: share of the lens's k likeliest tokens that are among
    the output's. Released as the mean over a prompt's tokens, then over prompts.
    """
    layout, log = layout_of(model), {}
    with hooked(model, {}, log):
        final = logits_of(model, ids)[0].double().cpu().log_softmax(-1)
    top = final.topk(k, -1).indices
    kl, overlap = [], []
    for index in range(len(layout.layers)):
        lens = layout.head(layout.final_norm(log["input", index]))[0].double().cpu().log_softmax(-1)
        kl.append((lens.exp() * (lens - final)).sum(-1))
        shared = (lens.topk(k, -1).indices[:, :, None] == top[:, None, :]).any(-1)
        overlap.append(shared.double().mean(-1))
    return {"kl": torch.stack(kl).numpy(), "topk_overlap": torch.stack(overlap).numpy()}


# --- erasure --------------------------------------------------------------------------------------------------------


def mean_residuals(model: nn.Module, prompts: Sequence[Ids]) -> np.ndarray:
    """[L + 1, d]: each residual's mean over all tokens of all prompts (first tokens included)."""
    seen = [trace(model, ids).residuals for ids in prompts]
    return torch.cat(seen, dim=1).mean(1).numpy()


def _erased(model: nn.Module, ids: Ids, mean: np.ndarray, residual: int, first: int, stop: int) -> Tensor:
    """[T, V] probabilities with residual `residual` at tokens first..stop−1 replaced by its mean."""
    value = torch.from_numpy(mean[residual])[None, None]

    def edit(hidden: Tensor, _read: Tensor) -> Tensor:
        return _where(hidden, value.to(hidden).expand_as(hidden), first, stop)

    where = ("input", 0) if residual == 0 else ("layer", residual - 1)
    return trace(model, ids, {where: edit}).probabilities


def residual_erasure(model: nn.Module, ids: Ids, n_answer: int, mean: np.ndarray) -> np.ndarray:
    """[L + 1, T, n_answer]: norm of the change of the softmax where each answer token is predicted.

    `ids` is question and answer, the last `n_answer` tokens the answer; one residual at one token is replaced at a
    time, the first token included. Released as the maximum over the answer's tokens (and drawn without the last token).
    """
    plain = trace(model, ids).probabilities[-n_answer - 1 : -1]
    return np.array(
        [
            [
                (_erased(model, ids, mean, row, t, t + 1)[-n_answer - 1 : -1] - plain).norm(dim=-1).numpy()
                for t in range(len(ids))
            ]
            for row in range(len(mean))
        ]
    )


def future_erasure(
    model: nn.Module, ids: Ids, mean: np.ndarray, prefix: bool = False, cuts: Sequence[int] | None = None
) -> np.ndarray:
    """[L − 1, cuts]: the largest norm of the change of the softmax at tokens t + 1.. for each t of `cuts`.

    Residual l = 0..L−2 is replaced at t alone, or with `prefix` at tokens 1..t−1 (t itself is neither erased nor
    measured; t of 0 and 1 erase nothing). `cuts` defaults to 0..T−2.
    """
    plain = trace(model, ids).probabilities
    asked = range(len(ids) - 1) if cuts is None else cuts
    rows = []
    for row in range(len(mean) - 2):
        spans = [(1, max(t, 1)) if prefix else (t, t + 1) for t in asked]
        changed = [_erased(model, ids, mean, row, *span) for span in spans]
        rows.append([float((new - plain)[t + 1 :].norm(dim=-1).max()) for t, new in zip(asked, changed, strict=True)])
    return np.array(rows)


# --- integrated gradients -------------------------------------------------------------------------------------------


def integrated_gradients(
    model: nn.Module, ids: Ids, n_answer: int, part: str = "layer", steps: int = 256, block: int = 16
) -> np.ndarray:
    """[L, T]: of the sum of the answer tokens' probabilities, with respect to each layer's (attention's, MLP's) output.

    The baseline is the output's mean over tokens; the path is sampled at k/steps, k = 0..steps−1; gradient times
    (output − baseline), averaged over the path and summed over d.
    """
    plain = trace(model, ids)
    outputs = {"layer": plain.out, "attention": plain.attention, "mlp": plain.mlp}[part]
    parameter = next(model.parameters())
    answer = torch.tensor(list(ids)[-n_answer:], device=parameter.device)
    rows = []
    for index, output in enumerate(outputs):
        baseline = output.mean(0, keepdim=True)
        total = torch.zeros_like(output)
        for start in range(0, steps, block):
            share = torch.arange(start, min(start + block, steps), dtype=torch.float64)[:, None, None] / steps
            point = (output * share + baseline * (1 - share)).to(parameter).requires_grad_()

            def edit(_value: Tensor, _read: Tensor, point: Tensor = point) -> Tensor:
                return point

            tokens = torch.tensor([list(ids)] * len(point), device=parameter.device)
            with torch.enable_grad(), hooked(model, {(part, index): edit}):
                logits = model(input_ids=tokens, use_cache=False).logits[:, -n_answer - 1 : -1]
                wanted = logits.double().softmax(-1).gather(-1, answer.expand(len(point), -1)[..., None])
                (gradient,) = torch.autograd.grad(wanted.sum(), point)
            total += gradient.double().cpu().sum(0)
        rows.append((total * (output - baseline)).sum(-1) / steps)
    return torch.stack(rows).numpy()


# --- depth score ----------------------------------------------------------------------------------------------------


def depth_effects(
    model: nn.Module, ids: Ids, n_answer: int, cuts: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Effects of skipping a layer at tokens 1..t−1, measured at t.., t being the answer's first token (or `cuts`).

    `ids` is question and answer. `output_change` [L]: e_l = the largest norm of the change of the softmax;
    `layers` [L, L]: the largest relative change of each layer's h_out − h_in. Both the maximum over tokens and cuts.
    """
    asked = [len(ids) - n_answer] if cuts is None else cuts
    return published_skip_effects(model, [ids], "layer", [asked])


def answer_cuts(n_question: int, n_answer: int, generator: random.Random, count: int = 4) -> list[int]:
    """Cuts inside long answers (the released rule for MATH): every 4th token of the answer but the last 4, shuffled."""
    cuts = list(range(0, n_answer - 4, 4))
    generator.shuffle(cuts)
    return [n_question + t for t in cuts[:count]]


def group_effect(
    questions: Sequence[dict[str, np.ndarray]], effect: str = "output_change", how: str = "mean"
) -> np.ndarray:
    """[L]: a group's effect by layer; `how` "mean" or "max" over its questions' `depth_effects`.

    `effect` "layers" sums the map over layers and divides by the number of later layers (at least 1).
    """
    together = np.stack([one[effect] for one in questions])
    together = together.mean(0) if how == "mean" else together.max(0)
    if effect == "output_change":
        return together
    count = len(together)
    return together.sum(-1) / np.maximum(np.arange(count - 1, -1, -1), 1)


def depth_score(effect: np.ndarray) -> float:
    """Σ l·e_l / Σ e_l, layers counted from 0."""
    return float((np.arange(len(effect)) * effect).sum() / effect.sum())


# --- linear maps ----------------------------------------------------------------------------------------------------


def linear_maps(
    source: nn.Module, target: nn.Module, train: Sequence[Ids], held_out: Sequence[Ids]
) -> dict[str, np.ndarray]:
    """Affine map from every source residual to every target residual, fitted on `train`, judged on `held_out`.

    The first token of a prompt is left out of both. Both entries [L_source + 1, L_target + 1]: `relative_norm` is the
    mean over tokens of ‖error‖/‖target‖ (what the paper draws, without row 0 and column 0), `norm` is mean ‖error‖ over
    mean ‖target‖. The map is least squares here (minimum norm where tokens are too few); the paper trains it by AdamW.
    """

    def residuals(model: nn.Module, prompts: Sequence[Ids]) -> np.ndarray:
        return np.concatenate([trace(model, ids).residuals[:, 1:].numpy() for ids in prompts], axis=1)

    x, y, x_new, y_new = (
        residuals(source, train),
        residuals(target, train),
        residuals(source, held_out),
        residuals(target, held_out),
    )
    relative, ratio = [], []
    width = y.shape[-1]
    for row in range(len(x)):
        design = np.column_stack([x[row], np.ones(x.shape[1])])
        weights = np.linalg.lstsq(design, np.concatenate(list(y), axis=1), rcond=None)[0]
        guess = np.column_stack([x_new[row], np.ones(x_new.shape[1])]) @ weights
        error = np.linalg.norm(guess.reshape(len(guess), -1, width) - y_new.transpose(1, 0, 2), axis=-1)
        size = np.linalg.norm(y_new, axis=-1).T
        relative.append((error / np.maximum(size, np.finfo(np.float32).tiny)).mean(0))
        ratio.append(error.mean(0) / size.mean(0))
    return {"relative_norm": np.stack(relative), "norm": np.stack(ratio)}
