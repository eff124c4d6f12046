"""Direct logit contributions: the components' terms, which sum to the logits."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from .._checks import number, whole_number
from ..components import Component, Unit, instead_of, labels_of
from ..errors import InputError
from ..model.architecture import UnitLike
from ..model.cuts import unit_name, unit_of
from ..model.forward_pass import cached_tokens, locate_mismatch, read_cache, tokens_and_mask
from ..model.groups import Groups
from ..model.load import Model, as_model
from ..model.prompts import Prompts, encode, prompt_ends, to_python, with_mask
from ..model.transformer_lens import is_cache
from .blocks import are_partial
from .contexts import BatchContributions
from .continuation import Continuation, continuation_passes
from .contribution_results import Contributions
from .logit_difference import LogitDifference
from .passes import ContributionBuffer, ContributionPasses, RemoteReadOut
from .question import read_question


def contributions(
    model: Any,
    prompts: Any = None,
    options: Any = None,
    unit: UnitLike = "sublayer",
    position: Any = "last",
    components: str | Component | Iterable[str | Component] | None = None,
    batch_tokens: int | None = None,
    *,
    top: int | None = None,
    contrast: Any = None,
    directions: Any = None,
    cache: Any = None,
    tokens: Any = None,
    attention_mask: Any = None,
    generate: int = 0,
    continuation: Any = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Contributions:
    """Compute the direct logit contributions of a model's components to answer options (Eq. 2-3).

    u_i = W_U (gain · center(z_i)) / σ, with z_i component i's output in the final residual stream and σ the final
    norm's statistic of the whole stream. `constant` is the read-out's own term, `rounding` the sum of what a
    half-precision model loses at every addition. A layer that runs several times has rows for every repeat
    (`L3@2.attn`). Where the stream itself passes norms (also between the rounds of a loop), gates or a mixing of
    several streams, z_i is the component's output after all of these, with the coefficients of the pass; `stream_bias`
    is the total effect of their biases (`model.stream_path`).

    Your own hooks on the model run in the pass. If a hook changes a sublayer's output, the changed output is the
    component. `L3.intervention` is what a hook on a block, or on the final norm's input, adds to the stream (between
    block 3 and the next, or the final norm); at the embedding it is `intervention`. Where a changed sublayer is cut, it
    includes the part that heads or neurons no longer sum to. Partial junctions are then those of the layer before its
    intervention. A hook that moves the stream anywhere else raises InputError with the name of its module.

    Args:
        model: A `Model`, or anything `load_model` takes; or an `ActivationCache` of TransformerLens' `run_with_cache`,
            for single-token options: it brings its model and replaces the prompts.
        prompts: Texts, lists of token ids, padded batches, a tokenizer's output, or conversations, as `model.prompts`
            reads them; or a `Task`, which also provides the options. A TransformerBridge prepends a beginning-of-text
            token where Hugging Face's tokenizer does not.
        options: K answers, or one list of K per prompt. An answer is a text exactly as written (" Yes" with its space),
            of one token or several; a token id, or a list of ids where prompts have lists of their own (one that all
            share: `[[[5, 6], [7]]]`); or a set of these, e.g. `{" yes", " Yes"}`, whose probabilities are added.
            Lengths may differ, and one option may be a prefix of another, whose probability then includes that of the
            longer one. A word that would be glued to the prompt's last one gives a warning.
        contrast: Instead of options: two of them, or one pair per prompt, for `difference`.
        directions: Instead of options: vectors `[K, d_model]` (e.g. of a probe), or a dict of such vectors by name. The
            contributions are to the dot product of each with the residual stream after the final norm, gain and bias
            included, as the unembedding reads it.
        unit: "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads, MLPs whole; "neuron": MLPs cut
            into neurons, attentions whole; "expert": mixtures of experts cut, all else whole; or `groups`, a
            `dictionary` of latents, or a `Cut` of your own.
        position: Where the logits are read: "last", an int counted in each prompt's own tokens (negative from the end),
            or one int per prompt.
        components, top: Labels or components to keep, or the number of components to keep: those with the largest mean
            contribution, centered over the options, which costs a second pass. None keeps all. All are computed in any
            case, to check the sum.
        batch_tokens: The most padded tokens in one forward pass; None picks a fast size for the model's device.
        cache, tokens: The cache by name (a dict will do), with the model first; and the token ids `[row, token]` that
            it was taken with. A bridge's cache holds these itself. Without ids the result's are −1, and no column
            counts as padding. A `names_filter` must have `Model.hook_names(unit)`; with a `pos_slice`, positions are
            those of the slice.
        attention_mask: `[row, token]`, 1 for real token ids of `prompts` or `tokens`, 0 for padding; with None, pad
            tokens at the ends of rows are padding.
        generate, continuation: Instead of options: the number of tokens that the model writes after each prompt (fewer
            where it ends the text), or what follows: a text or token ids, a list of these for several prompts. The
            result is a `Continuation`, with an example per token: the token and its strongest rival, all read in one
            pass over the finished text.
        temperature, seed: 0 writes the likeliest token each time; otherwise tokens are drawn from the softmax of the
            logits divided by it, reproducibly by the seed.

    In the source, the product is `Directions.of_block`, its rows are `blocks.Rows`, and each family whose stream passes
    more than additions is an entry of `model.streams`.

    Each position of an option is read in one pass with the prompt's, where the model supports masks; see
    `attribution.contexts`.

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
    >>> c = ld.contributions(tiny, [[1, 2, 3]], generate=4)
    >>> len(c.written), bool((c.model_logits[:, 0] >= c.model_logits[:, 1]).all())
    (4, True)
    """
    if is_cache(model):
        if cache is not None or prompts is not None:
            raise InputError(
                "the cache has its own prompts: leave prompts= and cache= out, and write options=[...] by name."
            )
        cache, model = model, model.model
    model = as_model(model)
    unit = unit_of(unit)
    batch_tokens = model.checked_batch_tokens(batch_tokens)
    top = None if top is None else whole_number("top", top, 1)
    if top is not None and components is not None:
        raise InputError("top and components cannot be combined: both say which rows to keep.")
    keep = _parse_components(components, model.architecture.components(unit))
    generate, seed = whole_number("generate", generate, 0), whole_number("seed", seed, 0)
    temperature = number("temperature", temperature, least=0)
    if generate or continuation is not None:
        taken = {"options": options, "contrast": contrast, "directions": directions, "cache": cache, "tokens": tokens}
        if clash := [name for name, x in taken.items() if x is not None]:
            raise InputError(f"{clash[0]} and a continuation each say what is read: give one of them.")
        if not (isinstance(position, str) and position == "last"):
            raise InputError("a continuation is read at every token of it: leave position= out.")
        chosen = (generate, continuation, temperature, seed)
        along, about = continuation_passes(model, prompts, attention_mask, *chosen, unit, batch_tokens)
        done = collect(along, keep if top is None else _largest(top, along.batches()))
        return Continuation(**{field.name: getattr(done, field.name) for field in fields(done)} | about)
    if cache is not None:
        if prompts is not None:
            raise InputError("give either prompts or a cache with its tokens, not both.")
        if any(repeat is not None for _, repeat in model.sublayer_order):
            raise InputError("this model runs layers more than once, and a cache keeps their last run: give prompts.")
        given = tokens is not None
        tokens, mask = tokens_and_mask(tokens if given else cached_tokens(model.architecture, cache), attention_mask)
        known = bool((tokens >= 0).all())
        if known and attention_mask is None:
            mask = _without_padding(model, tokens)
        prompts, attention_mask = tokens.clamp_min(0), mask
    elif tokens is not None:
        raise InputError("tokens belong to a cache: give prompts alone, or cache= with tokens=.")
    how = {"contrast": contrast, "directions": directions, "attention_mask": attention_mask}
    question = read_question(model, prompts, options, position, **how)
    if model.engine is not None and (cache is not None or directions is not None):
        raise InputError(f"{model.name} runs elsewhere, where only options are read: give no cache or directions.")
    cached = None
    if cache is not None:
        column = attention_mask.argmax(1).cpu() + torch.as_tensor(question.at)
        cached = read_cache(model.architecture, cache, tokens, attention_mask, column, unit, given)
        if not known:
            question = replace(question, ids=Prompts((-1,) * len(row) for row in question.ids))
    passes = ContributionPasses if model.engine is None else RemoteReadOut
    run = passes(model, question, unit, batch_tokens, cached)
    return collect(run, keep if top is None else _largest(top, run.batches()))


def collect(run: ContributionPasses, keep: Set[Component] | None = None) -> Contributions:
    """Collect and check the contributions of some passes; `keep` None keeps all components."""
    model, unit, ids = run.model, run.unit, run.question.ids
    gathered = ContributionBuffer(len(ids), keep)
    for part in run.batches():
        gathered.add(part)
    done = gathered.whole
    assert done is not None
    names, junctions = done.components, done.junctions
    if unknown := [c for c in keep or () if c not in names]:
        reused = "a layer that is used once is L3.attn, the second use of a reused one L3@2.attn"
        raise InputError(f"components asks for {unknown[0].label}, but this run has no such row: {reused}.")

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
        complete=gathered.complete,
        soft_cap=model.architecture.soft_cap if run.question.directions is None else None,
        model=model.name,
        task=run.question.task,
        prompt_ends=prompt_ends(model, run.question.beginnings),
        unit=unit_name(unit),
        error_shares={name.label: x / max(whole, 1e-300) for name, (x, whole) in run.reader.unexplained.items()},
        **run.question.fields(),
    )


def logit_difference(
    model: Any,
    prompts: Any = None,
    correct: Any = None,
    wrong: Any = None,
    unit: Unit = "head",
    *,
    attention_mask: Any = None,
) -> LogitDifference:
    """Attribute the logit of the right answer minus that of a wrong one to components.

    Args:
        model, prompts, unit, attention_mask: As in `contributions`.
        correct, wrong: One answer for all prompts, or a list with one per prompt: texts of any length, token ids, or
            sets of these.

    Raises InputError for lists whose length differs from the prompts', for answers with the same tokens, and as
    `contributions`.

    >>> import layerdiv_tl as ld
    >>> d = ld.logit_difference("zoo/d4", [[1, 2, 3], [4, 5]], correct=[7, 9], wrong=11)
    >>> d.values.shape, bool(abs(d.total - d.model_difference).max() < 1e-5)
    ((2, 13), True)
    """
    if is_cache(model):
        raise InputError("a cache has its prompts: use ld.contributions(cache, options=[correct, wrong]).difference().")
    if isinstance(model, Contributions):
        raise InputError("these are contributions already: c.difference() is the difference of two of their options.")
    given = {"prompts": prompts, "correct": correct, "wrong": wrong}
    if lacking := [name for name, value in given.items() if value is None]:
        raise InputError(f"the difference of two answers lacks {' and '.join(lacking)}: give them.")
    model = as_model(model)
    prompts = encode(model, with_mask(prompts, attention_mask))
    answers = [to_python(answer) for answer in (correct, wrong)]
    counts = {len(answer) for answer in answers if isinstance(answer, list | tuple)}
    if not counts:
        return contributions(model, prompts, contrast=answers, unit=unit).difference()
    if len(counts) > 1:
        raise InputError(
            f"correct and wrong hold {len(correct)} and {len(wrong)} answers: give one per prompt, or one."
        )
    if (count := counts.pop()) != len(prompts):
        raise InputError(
            f"correct or wrong holds {count} answers for {len(prompts)} prompts: give one per prompt, or one."
        )
    columns = [answer if isinstance(answer, list | tuple) else [answer] * count for answer in answers]
    # A single answer is a text, an id or a set; the rows of these lists are pairs.
    return contributions(model, prompts, [list(pair) for pair in zip(*columns, strict=True)], unit).difference()


def _largest(top: int, batches: Iterable[BatchContributions]) -> set[Component]:
    """Find the `top` components with the largest centered contributions on average over examples."""
    size = dict[Component, float]()
    for batch in batches:
        # One option has nothing to be centered against.
        centered = batch.values - (batch.values.mean(2, keepdims=True) if batch.values.shape[2] > 1 else 0.0)
        for component, own in zip(batch.components, np.abs(centered).mean(2).sum(0).tolist(), strict=True):
            size[component] = size.get(component, 0.0) + own
    return set(sorted(size, key=lambda component: -size[component])[:top])


def _without_padding(model: Model, tokens: Int[torch.Tensor, "row token"]) -> Int[torch.Tensor, "row token"]:
    """Mark the tokens of a rectangular batch that are not padding, as prompts are read."""
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(encode(model, tokens.tolist())):
        first = 0 if tokens[row, : len(ids)].tolist() == list(ids) else tokens.shape[1] - len(ids)
        mask[row, first : first + len(ids)] = 1
    return mask


def _parse_components(components: Any, known: tuple[Component, ...]) -> set[Component] | None:
    """Parse the components to keep. Raises InputError, before the run, for labels that this model cannot have."""
    if components is None:
        return None
    labels = labels_of("components", list(components) if isinstance(components, Set) else components)
    wanted = {Component.parse(label) for label in labels}
    # A reused layer's repeats are known only after a run, so only layer and kind are looked up here.
    if unknown := [c for c in wanted if replace(c, repeat=None) not in known and c.kind != "intervention"]:
        instead = instead_of(unknown[0].label, known, [c.label for c in known])
        raise InputError(
            f"components asks for {unknown[0].label}, which this model does not have at this unit: {instead}."
        )
    return wanted
