"""All numbers of one text in an explorer, from one pass of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from ...attribution.promoted_tokens import next_tokens, token_logits
from ...components import Component, Unit
from ...depth.logit_lens import lens_answers
from ...errors import InputError
from ...model.attention import AttentionPatterns, attention_patterns, heads_of
from ...model.batches import pad
from ...model.load import Model
from ...model.options import single_tokens
from ...model.passes import Pass
from ...model.prompts import Prompts, encode, to_python
from ...model.units import cut_of

# Maximal number of tokens of a text, and of characters.
LONGEST, LETTERS = 512, 100_000
# Number of the model's likeliest next tokens available as targets at every position.
LIKELIEST = 5
# Maximal number of the text's distinct tokens available as targets everywhere, and of contributions to them.
WORDS, NUMBERS = 24, 300_000
# Maximal count of attention weights on a page, over all heads; half of them take a byte each.
_WEIGHTS = 160_000_000
# Maximal count of multiplications for the logit lens; beyond it, only every second, third … layer is read out.
_LENS_WORK = 2e10
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TextNumbers:
    """All numbers of one text. Returned by `measure_text`.

    Attributes:
        token_ids: `[position]`.
        components: All sublayers, then all heads.
        targets: The requested tokens: A, or A and B.
        candidates: `[token, position]`, ids of the tokens to which contributions are measured: the right one, the
            model's likeliest, then `targets`, then tokens of the text. At the last position A stands for the right one,
            or else the likeliest.
        probabilities: The model's, `[token, position]`.
        losses: Cross-entropies of the right token, `[position]`, in nats; NaN where it is unknown.
        contributions: `[token, component, position]`, in logits minus the component's mean over the vocabulary.
        expectations: Means of the contributions under the model's distribution, `[component, position]`.
        lens: The junctions, and the likeliest token after each with its probability, `[junction, position]`.
        attention: The attention patterns of every head; None for the reason `no_attention`.
        seen, unit: The pass, and "head", or "sublayer" for a model without heads, for later requests.
    """

    token_ids: Int[np.ndarray, " position"]
    components: tuple[Component, ...]
    targets: tuple[int, ...]
    candidates: Int[np.ndarray, "token position"]
    probabilities: Float[np.ndarray, "token position"]
    losses: Float[np.ndarray, " position"]
    contributions: Float[np.ndarray, "token component position"]
    expectations: Float[np.ndarray, "component position"]
    lens: tuple[tuple[Component, ...], Int[np.ndarray, "junction position"], Float[np.ndarray, "junction position"]]
    attention: AttentionPatterns | None
    no_attention: str
    seen: Pass = field(repr=False)
    unit: Unit

    @property
    def length(self) -> int:
        """The number of tokens of the text."""
        return len(self.token_ids)

    @property
    def labels(self) -> list[str]:
        """The labels of the components."""
        return [c.label for c in self.components]

    @property
    def heads(self) -> list[int]:
        """The indices of the heads."""
        return [i for i, c in enumerate(self.components) if c.kind == "head"]

    def row(self, token: int | None, position: int) -> int:
        """Return the row of a candidate at a position; 0, the right token's, for any other token."""
        return int((self.candidates[:, position] == token).argmax())

    def with_tokens(self, model: Model, ids: Sequence[int]) -> TextNumbers:
        """Return the same text with contributions to more tokens, at every position."""
        rows = _everywhere(ids, self.candidates)
        if not len(rows):
            return self
        with model.path.session():
            _, _, probabilities, _ = next_tokens(self.seen, 1, rows)
            _, contributions, _ = _contributions(model, self.seen, self.unit, rows)
        return replace(
            self,
            candidates=np.concatenate([self.candidates, rows]),
            probabilities=np.concatenate([self.probabilities, probabilities]),
            contributions=np.concatenate([self.contributions, contributions]),
        )


def measure_text(model: Model, text_or_ids: Any, target: Any = None) -> TextNumbers:
    """Measure one text; arguments are those of `explore`.

    Raises InputError like `explore`, and for a model whose components do not sum to its logits.
    """
    (ids, targets), path = _checked(model, text_or_ids, target), model.path
    if max(ids[1:], default=0) >= path.outputs:
        raise InputError(f"{model.name} takes ids beyond the {path.outputs} that it has logits of, as next tokens.")
    heads, why = _or_reason(lambda: heads_of(model))
    unit: Unit = "head" if heads else "sublayer"
    # The latest tokens of the text, as many as a page can hold.
    count = min(WORDS, NUMBERS // (len(model.components()) + len(heads or ())) // len(ids))
    words = [i for i in dict.fromkeys(reversed(ids)) if i < path.outputs][:count]
    with path.session():
        tokens, mask = pad([ids])
        position = mask[0].cumsum(0) - 1
        seen = path.record(tokens, mask, 0 * position, position, partial(cut_of, unit))
        right = np.array([[*ids[1:], *targets[:1], -1][: len(ids)]])
        likeliest, p_likeliest, p_right, _ = next_tokens(seen, min(LIKELIEST, path.outputs), right)
        is_known = right >= 0
        candidates = np.concatenate([np.where(is_known, right, likeliest[:1]), likeliest])
        rows = _everywhere([*targets, *words], candidates)
        *_, p_rows, _ = next_tokens(seen, 1, rows)
        candidates = np.concatenate([candidates, rows])
        probabilities = np.concatenate([np.where(is_known, p_right, p_likeliest[:1]), p_likeliest, p_rows])
        components, contributions, expectations = _contributions(model, seen, unit, candidates)
        layers = len({(writer.block, number) for writer, number in path.calls})
        work = len(ids) * layers * path.outputs * path.width
        lens = lens_answers(model, tuple(ids), max(1, round(work / _LENS_WORK + 0.49)))
        attention = None
        if heads and len(heads) * len(ids) ** 2 > _WEIGHTS:
            why = f"{len(heads)} heads over {len(ids)} tokens have more weights than a page holds."
        elif heads:
            attention, why = _or_reason(lambda: attention_patterns(model, ids))
    return TextNumbers(
        token_ids=np.array(ids),
        components=components,
        targets=targets,
        candidates=candidates,
        probabilities=probabilities,
        losses=-np.log(np.maximum(p_right[0], 1e-300)),
        contributions=contributions,
        expectations=expectations,
        lens=lens,
        attention=attention,
        no_attention=why,
        seen=seen,
        unit=unit,
    )


def one_token(model: Model, given: Any, name: str) -> int:
    """Return the id of a token given as a text or an id. Raises InputError for anything that is not one token."""
    _check_letters(name, given)
    return int(single_tokens(model, [given], Prompts([()]), name=name)[0][0, 0])


def _checked(model: Model, text_or_ids: Any, target: Any) -> tuple[list[int], tuple[int, ...]]:
    """Return the ids of a text and of its targets, after checking that an explorer can show them."""
    _check_letters("the text", text_or_ids)
    _check_letters("target", target)
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"an explorer shows one text, but {len(rows)} were given: explore them one by one.")
    limit = min(LONGEST, model.context or LONGEST)
    if len(rows[0]) > limit:
        raise InputError(f"an explorer shows at most {limit} tokens of this model, not {len(rows[0])}.")
    target = to_python(target)
    wanted = list(target) if isinstance(target, list | tuple) else [] if target is None else [target]
    if len(wanted) > 2:
        raise InputError(f"target holds {len(wanted)} tokens: give one, or two whose difference is to be explained.")
    ids = single_tokens(model, wanted, rows, name="target")[0][0] if wanted else ()
    return list(rows[0]), tuple(int(i) for i in ids)


def _check_letters(name: str, given: Any) -> None:
    """Raise InputError for a text that would take long to tokenize and could not be shown."""
    for text in given if isinstance(given, list | tuple) else [given]:
        if isinstance(text, str) and len(text) > LETTERS:
            raise InputError(f"{name} has {len(text):,} characters, but an explorer takes at most {LETTERS:,}.")


def _or_reason(make: Callable[[], T]) -> tuple[T | None, str]:
    """Return a result, or why there is none."""
    try:
        return make(), ""
    except InputError as error:
        return None, str(error)


def _everywhere(ids: Sequence[int], known: Int[np.ndarray, "token position"]) -> Int[np.ndarray, "token position"]:
    """Rows of some tokens at every position, but of those that have one."""
    missing = [i for i in dict.fromkeys(ids) if not (known == i).all(1).any()]
    return np.repeat(np.array(missing, dtype=known.dtype)[:, None], known.shape[1], 1)


def _contributions(
    model: Model, seen: Pass, unit: Unit, ids: Int[np.ndarray, "token position"]
) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
    """Return all sublayers, the sums of their parts, and then all heads: contributions to tokens, and expectations."""
    names, values, expected = token_logits(model, seen, unit, ids)
    sublayers = list(dict.fromkeys(c.sublayer for c in names))
    starts = [next(i for i, c in enumerate(names) if c.sublayer == one) for one in sublayers]
    heads = [i for i, c in enumerate(names) if c.kind == "head"]
    contributions = np.concatenate([np.add.reduceat(values, starts, axis=1), values[:, heads]], 1)
    expectations = np.concatenate([np.add.reduceat(expected, starts, axis=0), expected[heads]])
    return (*sublayers, *(names[i] for i in heads)), contributions, expectations
