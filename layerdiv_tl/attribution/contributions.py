"""Direct logit contributions: the components' terms, which sum to the logits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..components import Unit
from ..errors import InputError
from ..model.cache import cached_tokens, is_cache, read_cache
from ..model.load import Model, as_model
from ..model.options import pair_options
from ..model.prompts import Ids, Prompts, encode, prompt_ends
from ..model.units import UnitLike, check_unit, cut_of, unit_name, unit_of
from .logit_difference import LogitDifference
from .question import LogitQuestion, read_question
from .reading import Gathered, Reads, gather
from .results import Contributions
from .sequences import summed, teacher_forced


def contributions(
    model: Any,
    prompts: Any = None,
    options: Any = None,
    *,
    unit: UnitLike = "sublayer",
    position: Any = "last",
    attention_mask: Any = None,
    batch_tokens: int | None = None,
) -> Contributions:
    """Compute the direct logit contributions of a model's components to answer options (Eq. 2-3).

    One pass records what each component z_i writes to the residual stream. With everything nonlinear behind the writes
    held at its value in that pass (norm statistics, gates, mixing of streams), the logits are affine in them, and u_i
    is the gradient of the logit at z_i times z_i; for a model with one final norm W_U (gain · center(z_i)) / σ.
    `constant` is what no component writes (biases of norms and of the unembedding), `rounding` what a half-precision
    model loses at its additions to the stream. A layer that runs several times has rows for every repeat (`L3@2.attn`).

    Your hooks on the model run in the pass. If a hook changes a sublayer's output, the changed output is the component.
    What hooks do elsewhere on the stream is the row `added`: the value after them minus that before, whether they add,
    multiply or replace.

    Args:
        model: A `Model`, or anything `load_model` takes; or an `ActivationCache` of TransformerLens' `run_with_cache`,
            for single-token options, which brings its model.
        prompts: Texts, lists of token ids, or a tokenizer's output, as `model.prompts` reads them; or a `Task`, which
            also provides the options. A TransformerBridge prepends a beginning-of-text token where Hugging Face's
            tokenizer does not. With a cache: None, or the token ids `[row, token]` that it was taken with. A bridge's
            cache holds these itself; without them the result's ids are −1, and no column counts as padding. A
            `names_filter` must have `Model.hook_names(unit)`; with a `pos_slice`, positions are those of the slice.
        options: K answers, or one list of K per prompt. An answer is a text exactly as written (" Yes" with its space),
            of one token or several; a token id, or a list of ids where prompts have lists of their own (one that all
            share: `[[[5, 6], [7]]]`). Lengths may differ, and one option may be a prefix of another, whose probability
            then includes that of the longer one. A word that would be glued to the prompt's last one gives a warning.
            Or `{name: vector}` of directions `[d_model]` (e.g. of a probe): the contributions are to the dot product of
            each with the residual stream after the final norm, as the unembedding reads it.
        unit: "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads, MLPs whole; "neuron": MLPs cut
            into neurons, attentions whole; "expert": mixtures of experts cut, all else whole; or `groups`, or a
            `dictionary` of latents.
        position: Where the logits are read: "last", an int counted in each prompt's tokens (negative from the end), or
            one int per prompt.
        attention_mask: `[row, token]`, 1 for real token ids of `prompts`, 0 for padding.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.

    Raises InputError for unusable input (also an option that begins inside a token of its prompt), for weights that
    give no finite number, and for a model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> c = ld.contributions(tiny, [[1, 2, 3], [4, 5]], options=[7, 9])
    >>> [component.label for component in c.components]
    ['embed', 'L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp']
    >>> c.values.shape, bool(c.identity_gap < 1e-6)
    ((2, 5, 2), True)
    >>> c = ld.contributions(tiny, [[1, 2, 3]], options=[[[7, 9], [9, 4, 1]]])
    >>> sums = c.log_likelihood_parts.sum(1) + c.normalizer
    >>> c.log_likelihood.shape, bool(abs(sums - c.log_likelihood).max() < 1e-6)
    ((1, 2), True)
    """
    unit = unit_of(unit)
    if is_cache(model):
        return _of_cache(model, prompts, options, unit, position, attention_mask)
    model = as_model(model)
    check_unit(unit, model.path)
    question = read_question(model, prompts, options, position, attention_mask=attention_mask)
    return answer(model, question, unit, batch_tokens or model.batch_tokens)


def answer(model: Model, question: LogitQuestion, unit: UnitLike, batch_tokens: int) -> Contributions:
    """Compute the contributions that a question asks for."""
    if question.is_single:
        reads = Reads(
            question.ids, np.arange(len(question.ids)), question.at, question.option_ids[:, :, 0], question.directions
        )
        return result(model, question, unit, gather(model, reads, unit, batch_tokens))
    reads, of = teacher_forced(model, question.beginnings, question.option_ids)
    found = gather(model, reads, unit, batch_tokens)
    count = question.option_ids.shape[1]
    arrays = {
        name: x[..., 0] if name in ("values", "logits", "log_likelihood", "normalizer") else x
        for name, x in found.arrays.items()
    }
    kept = ("values", "logits", "log_likelihood", "normalizer", "expectations")
    found.arrays = {name: summed(arrays[name], of, count) for name in kept}
    return result(model, question, unit, found)


def result(model: Model, question: LogitQuestion, unit: UnitLike, found: Gathered) -> Contributions:
    """Make a result of what was gathered."""
    arrays = found.arrays
    expectations = arrays.get("expectations")
    if expectations is not None and expectations.ndim == 2:
        expectations = expectations[:, :, None]
    has_options = question.directions is None
    return Contributions(
        values=arrays["values"],
        components=found.components,
        model_logits=arrays["logits"],
        log_likelihood=arrays.get("log_likelihood"),
        normalizer=arrays.get("normalizer"),
        expectations=expectations,
        vocabulary_means=arrays.get("vocabulary_means"),
        junctions=found.junctions,
        partial_junctions=np.array(found.partial),
        identity_gap=found.gap / max(found.size, 1e-300),
        absolute_gap=found.gap,
        complete=True,
        soft_cap=model.path.soft_cap if has_options else None,
        model=model.name,
        task=question.task,
        prompt_ends=prompt_ends(model, question.beginnings),
        starts_with_bos=_starts_with_bos(model, question.ids[0]),
        unit=unit_name(unit),
        **question.fields(),
    )


def _starts_with_bos(model: Model, ids: Ids) -> bool:
    """Return whether a prompt begins with the tokenizer's beginning-of-text token."""
    bos = getattr(model.tokenizer, "bos_token_id", None)
    return bos is not None and len(ids) > 0 and ids[0] == bos


def _of_cache(
    cache: Any, tokens: Any, options: Any, unit: UnitLike, position: Any, attention_mask: Any
) -> Contributions:
    """Read a cache of TransformerLens in place of a pass."""
    model = as_model(cache.model)
    check_unit(unit, model.path)
    if any(number for _, number in model.path.calls):
        raise InputError("this model runs layers more than once, and a cache keeps their last run: give prompts.")
    tokens, mask = _tokens_and_mask(cached_tokens(model.path, cache) if tokens is None else tokens, attention_mask)
    is_known = bool((tokens >= 0).all())
    if is_known and attention_mask is None:
        mask = _without_padding(model, tokens)
    question = read_question(model, tokens.clamp_min(0), options, position, attention_mask=mask)
    if not question.is_single:
        raise InputError(
            "a cache ends with its prompts, so options of several tokens cannot be read from it: give the model and "
            "prompts."
        )
    column = mask.argmax(1).cpu() + torch.as_tensor(question.at)
    reads = Reads(question.ids, np.arange(len(tokens)), question.at, question.option_ids[:, :, 0], question.directions)
    with model.path.session():
        seen = read_cache(model.path, cache, tokens, mask, column, partial(cut_of, unit))
        found = gather(model, reads, unit, model.batch_tokens, seen)
    if not is_known:
        question = replace(question, ids=Prompts((-1,) * len(row) for row in question.ids))
    return result(model, question, unit, found)


def _tokens_and_mask(
    tokens: Any, attention_mask: Any
) -> tuple[Int[torch.Tensor, "row token"], Int[torch.Tensor, "row token"]]:
    """Convert ids and mask to `[row, token]` tensors. Raises InputError where their shapes do not fit."""
    ids = torch.atleast_2d(torch.as_tensor(tokens))
    if ids.dim() != 2 or ids.is_floating_point() or ids.numel() == 0:
        raise InputError(f"the prompts of a cache are its token ids [row, token], not of shape {tuple(ids.shape)}.")
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = torch.atleast_2d(torch.as_tensor(attention_mask, device=ids.device))
    if mask.shape != ids.shape:
        raise InputError(f"attention_mask has the shape {tuple(mask.shape)}, but tokens have {tuple(ids.shape)}.")
    mask = (mask != 0).long()
    if not bool(((mask.sum(1) > 0) & (mask.diff(dim=1).abs().sum(1) <= 1)).all()):  # a text has no gaps
        raise InputError("attention_mask must be 1 on one run of tokens in every row, with padding on one side only.")
    return ids, mask


def _without_padding(model: Model, tokens: Int[torch.Tensor, "row token"]) -> Int[torch.Tensor, "row token"]:
    """Mark the tokens of a rectangular batch that are not padding, as prompts are read."""
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(encode(model, tokens.tolist())):
        first = 0 if tokens[row, : len(ids)].tolist() == list(ids) else tokens.shape[1] - len(ids)
        mask[row, first : first + len(ids)] = 1
    return mask


def logit_difference(
    model: Any, prompts: Any, right: Any, wrong: Any, *, unit: Unit = "head", attention_mask: Any = None
) -> LogitDifference:
    """Attribute the logit of the right answer minus that of a wrong one to components.

    Args:
        model, prompts, unit, attention_mask: As in `contributions`.
        right, wrong: One answer for all prompts, or one per prompt: two lists, or two columns of a frame, whose names
            the result keeps. An answer is a text of any length, or a token id.

    Raises InputError for lists whose length differs from the prompts', for answers with the same tokens, and as
    `contributions`.

    >>> import layerdiv_tl as ld
    >>> d = ld.logit_difference("zoo/d4", [[1, 2, 3], [4, 5]], right=[7, 9], wrong=11)
    >>> d.values.shape, bool(abs(d.total - d.model_difference).max() < 1e-5)
    ((2, 13), True)
    """
    model = as_model(model)
    options, names = pair_options(right, wrong)
    c = contributions(model, prompts, options, unit=unit, attention_mask=attention_mask)
    return replace(c, option_names=names).difference()
