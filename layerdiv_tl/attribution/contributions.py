"""Direct logit contributions: the components' terms, which sum to the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..components import Unit
from ..errors import InputError
from ..model.architecture import UnitLike
from ..model.cuts import unit_name, unit_of
from ..model.forward_pass import cached_tokens, locate_mismatch, read_cache, tokens_and_mask
from ..model.groups import Groups
from ..model.load import Model, as_model
from ..model.options import pair_options
from ..model.prompts import Prompts, encode, prompt_ends
from ..model.transformer_lens import is_cache
from .blocks import are_partial
from .contribution_results import Contributions
from .logit_difference import LogitDifference
from .passes import ContributionBuffer, ContributionPasses, RemoteReadOut
from .question import read_question


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

    u_i = W_U (gain · center(z_i)) / σ, with z_i component i's output in the final residual stream and σ the final
    norm's statistic of the whole stream. `constant` is the read-out's term, `rounding` the sum of what a
    half-precision model loses at every addition. A layer that runs several times has rows for every repeat
    (`L3@2.attn`). Where the stream itself passes norms (also between the rounds of a loop), gates or a mixing of
    several streams, z_i is the component's output after all of these, with the coefficients of the pass; `stream_bias`
    is the total effect of their biases (`model.stream_path`).

    Your hooks on the model run in the pass. If a hook changes a sublayer's output, the changed output is the
    component. `L3.intervention` is what a hook on a block, or on the final norm's input, adds to the stream (between
    block 3 and the next, or the final norm); at the embedding it is `intervention`. Where a changed sublayer is cut, it
    includes the part that heads or neurons no longer sum to. Partial junctions are then those of the layer before its
    intervention. A hook that moves the stream anywhere else raises InputError with the name of its module.

    Args:
        model: A `Model`, or anything `load_model` takes; or an `ActivationCache` of TransformerLens' `run_with_cache`,
            for single-token options, which brings its model.
        prompts: Texts, lists of token ids, padded batches, a tokenizer's output, or conversations, as `model.prompts`
            reads them; or a `Task`, which also provides the options. A TransformerBridge prepends a beginning-of-text
            token where Hugging Face's tokenizer does not. With a cache: None, or the token ids `[row, token]` that it
            was taken with. A bridge's cache holds these itself; without them the result's ids are −1, and no column
            counts as padding. A `names_filter` must have `Model.hook_names(unit)`; with a `pos_slice`, positions are
            those of the slice.
        options: K answers, or one list of K per prompt. An answer is a text exactly as written (" Yes" with its space),
            of one token or several; a token id, or a list of ids where prompts have lists of their own (one that all
            share: `[[[5, 6], [7]]]`). Lengths may differ, and one option may be a prefix of another, whose probability
            then includes that of the longer one. A word that would be glued to the prompt's last one gives a warning.
            Or `{name: vector}` of directions `[d_model]` (e.g. of a probe): the contributions are to the dot product of
            each with the residual stream after the final norm, gain and bias included, as the unembedding reads it.
        unit: "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads, MLPs whole; "neuron": MLPs cut
            into neurons, attentions whole; "expert": mixtures of experts cut, all else whole; or `groups`, or a
            `dictionary` of latents.
        position: Where the logits are read: "last", an int counted in each prompt's tokens (negative from the end), or
            one int per prompt.
        attention_mask: `[row, token]`, 1 for real token ids of `prompts`, 0 for padding; with None, pad tokens at the
            ends of rows are padding.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.

    In the source, the product is `Directions.of_block`, its rows are `blocks.Rows`, and each family whose stream passes
    more than additions is an entry of `model.streams`.

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
    batch_tokens = model.checked_batch_tokens(batch_tokens)
    model.architecture.components(unit)  # raises for a unit that this model does not have, before any pass
    question = read_question(model, prompts, options, position, attention_mask=attention_mask)
    if model.engine is None:
        return collect(ContributionPasses(model, question, unit, batch_tokens))
    if question.directions is not None:
        raise InputError(f"{model.name} runs elsewhere, where only options are read: give no directions.")
    return collect(RemoteReadOut(model, question, unit, batch_tokens))


def _of_cache(
    cache: Any, tokens: Any, options: Any, unit: UnitLike, position: Any, attention_mask: Any
) -> Contributions:
    """Read a cache of TransformerLens in place of a pass."""
    model = as_model(cache.model)
    if any(repeat is not None for _, repeat in model.sublayer_order):
        raise InputError("this model runs layers more than once, and a cache keeps their last run: give prompts.")
    given = tokens is not None
    tokens, mask = tokens_and_mask(tokens if given else cached_tokens(model.architecture, cache), attention_mask)
    is_known = bool((tokens >= 0).all())
    if is_known and attention_mask is None:
        mask = _without_padding(model, tokens)
    question = read_question(model, tokens.clamp_min(0), options, position, attention_mask=mask)
    column = mask.argmax(1).cpu() + torch.as_tensor(question.at)
    cached = read_cache(model.architecture, cache, tokens, mask, column, unit, given)
    if not is_known:
        question = replace(question, ids=Prompts((-1,) * len(row) for row in question.ids))
    return collect(ContributionPasses(model, question, unit, model.checked_batch_tokens(None), cached))


def collect(run: ContributionPasses) -> Contributions:
    """Collect and check the contributions of some passes."""
    model, unit, ids = run.model, run.unit, run.question.ids
    gathered = ContributionBuffer(len(ids))
    for part in run.batches():
        gathered.add(part)
    done = gathered.whole
    assert done is not None
    names, junctions = done.components, done.junctions

    def locate() -> str:
        if run.cached is not None:
            return "the cached writes do not add up to the cached stream"
        if model.engine is not None:
            return "what its engine shows does not add up to the stream (as where a norm or a factor follows)"
        worst = int(done.stream_gap.argmax())
        return locate_mismatch(model.architecture, run.question.beginnings[worst])

    error = run.reader.error
    error.check(model.name, unit, locate)
    has_prefixes = model.architecture.has_prefixes and not isinstance(unit, Groups)
    expectations, gap = done.expectations, done.likelihood_gap
    return Contributions(
        values=done.values,
        components=names,
        model_logits=done.logits,
        log_likelihood=done.log_likelihood,
        normalizer=done.normalizer,
        expectations=expectations[:, :, None] if expectations is not None and expectations.ndim == 2 else expectations,
        vocabulary_means=done.vocabulary_means,
        junction_scale=done.junction_scale if has_prefixes else None,
        junctions=junctions,
        partial_junctions=np.array(are_partial(junctions, model.architecture.parallel)),
        statistic=done.statistic,
        identity_gap=error.identity_gap,
        absolute_gap=error.absolute,
        likelihood_gap=None if gap is None else float(np.abs(gap).max()),
        complete=True,
        soft_cap=model.architecture.soft_cap if run.question.directions is None else None,
        model=model.name,
        task=run.question.task,
        prompt_ends=prompt_ends(model, run.question.beginnings),
        starts_with_bos=starts_with_bos(model, ids[0]),
        unit=unit_name(unit),
        error_shares={name.label: x / max(whole, 1e-300) for name, (x, whole) in run.reader.unexplained.items()},
        **run.question.fields(),
    )


def starts_with_bos(model: Model, ids: Prompts | tuple[int, ...]) -> bool:
    """Return whether a prompt begins with the tokenizer's beginning-of-text token."""
    bos = getattr(model.tokenizer, "bos_token_id", None)
    return bos is not None and len(ids) > 0 and ids[0] == bos


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


def _without_padding(model: Model, tokens: Int[torch.Tensor, "row token"]) -> Int[torch.Tensor, "row token"]:
    """Mark the tokens of a rectangular batch that are not padding, as prompts are read."""
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(encode(model, tokens.tolist())):
        first = 0 if tokens[row, : len(ids)].tolist() == list(ids) else tokens.shape[1] - len(ids)
        mask[row, first : first + len(ids)] = 1
    return mask
