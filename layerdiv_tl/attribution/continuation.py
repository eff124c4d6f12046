"""Contributions along a continuation: every token of an answer against its strongest rival, from one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from .._checks import listed, number, shown, whole_number
from ..components import component_columns
from ..errors import InputError
from ..model.batches import pad
from ..model.load import Model, as_model
from ..model.options import read_options
from ..model.predictions import generate_tokens
from ..model.prompts import Ids, Prompts, encode, is_id, prompt_ends, text_after, token_texts, with_mask
from ..model.units import UnitLike, check_unit, unit_of
from ..results import Plot
from .contributions import result
from .question import LogitQuestion
from .reading import Reads, gather
from .results import Contributions


def _rival_frame(continuation: Continuation, prompt: int = 0) -> pd.DataFrame:
    """The rows of one prompt; of heads and other components, those of the heads."""
    frame = continuation.frame()
    frame["token / rival"] = [f"{token} / {rival}" for token, rival in zip(frame["token"], frame["rival"], strict=True)]
    some = frame[frame["prompt"] == prompt]
    if some.empty:
        raise InputError(f"prompt={prompt!r:.40} is not one of the {len(continuation.continued)} prompts.")
    heads = some[some["kind"] == "head"]
    return some if heads.empty else heads


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Continuation(Contributions):
    """Contributions to every token of a continuation, and to its strongest rival: an example per token.

    The two options of an example are the token and, at the same place, the likeliest other token. `log_likelihood[:,
    0]` sums to log p of the whole continuation, in nats.

    Attributes:
        prompt_number: int `[example]`, the prompt that each token continues.
        continued, text: For each prompt its token ids, continuation included, and the continuation as text.
        sampling: How the tokens were chosen: `method` ("greedy", "sampled" or "given"), `temperature`, `seed`, `asked`.
    """

    prompt_number: Int[np.ndarray, " example"]
    continued: tuple[tuple[int, ...], ...]
    text: tuple[str, ...]
    sampling: dict[str, Any]

    figures: ClassVar = {
        "rivals": Plot(
            "Each token against its strongest rival",
            "A map component × token of contributions to a written token minus those to its likeliest rival.",
            "shapes.heat",
            _rival_frame,
            {"row": "component", "column": "position", "value": "difference", "column_name": "token / rival"},
        )
    }

    def _plots(self) -> Mapping[str, Plot]:
        return self.figures

    @property
    def written(self) -> tuple[str, ...]:
        """The tokens of the continuations as text, one per example."""
        return tuple(token for token, _ in self.options)

    def frame(self) -> pd.DataFrame:
        """One row per token and component.

        `position` is the token's own in the whole text, from 0. `logit` and `rival_logit` are contributions in logits,
        and `difference` is the first minus the second. `log_likelihood` is the component's part of log p of the token,
        in nats: these parts and the `normalizer` sum to log p.
        """
        n, members, _ = self.values.shape
        of = np.repeat(np.arange(n), members)
        tokens, rivals = (np.array([pair[side] for pair in self.options], dtype=object) for side in (0, 1))
        columns: dict[str, Any] = {"prompt": self.prompt_number[of], "position": self.positions[of] + 1}
        columns |= {"token": tokens[of], "rival": rivals[of]}
        columns |= component_columns(self.components, np.tile(np.arange(members), n))
        logits = self.values.reshape(-1, 2)
        columns |= {"logit": logits[:, 0], "rival_logit": logits[:, 1], "difference": logits[:, 0] - logits[:, 1]}
        columns["log_likelihood"] = self.log_likelihood_parts[:, :, 0].reshape(-1)
        frame = pd.DataFrame(columns)
        unit = "logits" if self.score == "logits" else "nats"  # of `scores()`
        frame.attrs["units"] = dict.fromkeys(("logit", "rival_logit", "difference"), unit)
        frame.attrs["units"]["log_likelihood"] = "nats"
        frame.attrs |= {"identity_gap": self.identity_gap, "sampling": self.sampling}
        return frame

    def __repr__(self) -> str:
        margin = self.model_logits[:, 0] - self.model_logits[:, 1]
        least = int(margin.argmin())
        assert self.log_likelihood is not None
        token, rival = self.options[least]
        about = f"{len(self.written)} tokens, {self.log_likelihood[:, 0].sum():.3g} nats"
        closest = f"closest: {token!r} against {rival!r}, {margin[least]:+.3g} logits"
        gap = f"identity gap {self.identity_gap:.1e}"
        return f"Continuation({self.model}: {shown(self.text[0])}, {about}; {closest}; {gap})"


def continuation(
    model: Any,
    prompt: Any,
    text: Any = None,
    *,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    seed: int = 0,
    unit: UnitLike = "sublayer",
    attention_mask: Any = None,
) -> Continuation:
    """Compute the contributions to every token of a continuation and to its strongest rival, in one pass.

    Args:
        model, prompt, unit, attention_mask: As in `contributions`; one prompt, or several.
        text: What follows, a text or token ids, or a list of these for several prompts. None lets the model write.
        max_new_tokens: The most tokens that the model writes after each prompt; fewer where it ends the text.
        temperature, seed: 0 writes the likeliest token each time; otherwise tokens are drawn from the softmax of the
            logits divided by it, reproducibly by the seed.

    Raises InputError where the model ends the text right after a prompt, for texts longer than its context, and as
    `contributions`.

    >>> import layerdiv_tl as ld
    >>> k = ld.continuation("zoo/d2", [1, 2, 3], max_new_tokens=4)
    >>> len(k.written) <= 4, bool((k.model_logits[:, 0] >= k.model_logits[:, 1]).all())
    (True, True)
    """
    model, unit = as_model(model), unit_of(unit)
    check_unit(unit, model.path)
    max_new_tokens, seed = whole_number("max_new_tokens", max_new_tokens, 1), whole_number("seed", seed, 0)
    temperature = number("temperature", temperature, least=0)
    rows = encode(model, with_mask([prompt] if _is_ids(prompt) else prompt, attention_mask))
    sampling: dict[str, Any] = {"method": "given", "temperature": None, "seed": None, "asked": None}
    if text is not None:
        each = [text] if len(rows) == 1 else listed("text", text, "a list with one per prompt")
        if len(each) != len(rows):
            raise InputError(f"text holds {len(each)} continuations for {len(rows)} prompts: give one for each.")
        ids, _ = read_options(model, [[one] for one in each], rows)
        answers = [[int(i) for i in row[0] if i >= 0] for row in ids]
    else:
        method = "sampled" if temperature else "greedy"
        sampling = {"method": method, "temperature": temperature, "seed": seed, "asked": max_new_tokens}
        _check_length(model, [len(row) + max_new_tokens for row in rows])
        generator = torch.Generator().manual_seed(seed)
        answers = [generate_tokens(model, row, max_new_tokens, temperature, generator) for row in rows]
    if empty := [n for n, answer in enumerate(answers) if not answer]:
        raise InputError(f"the model ends the text right after prompt {empty[0]}: give a text= that follows it.")
    reads, question, about = _read(model, rows, answers)
    done = result(model, question, unit, gather(model, reads, unit, model.batch_tokens))
    values = {field.name: getattr(done, field.name) for field in fields(done)}
    return Continuation(**values | about | {"sampling": sampling})


def _is_ids(prompt: Any) -> bool:
    """True for one prompt as a list of token ids, which `encode` takes in a list."""
    return isinstance(prompt, list | tuple) and bool(prompt) and all(is_id(token) for token in prompt)


def _read(model: Model, rows: Prompts, answers: Sequence[Sequence[int]]) -> tuple[Reads, LogitQuestion, dict[str, Any]]:
    """Prepare one pass over each finished text, read at its continuation; also the fields of the result."""
    texts = [(*row, *answer) for row, answer in zip(rows, answers, strict=True)]
    _check_length(model, list(map(len, texts)))
    ends = [range(len(row), len(text)) for row, text in zip(rows, texts, strict=True)]
    of = np.array([n for n, places in enumerate(ends) for _ in places])
    pairs = np.concatenate([_with_rivals(model, text, places) for text, places in zip(texts, ends, strict=True)])
    names = np.array(token_texts(model, pairs.ravel()), dtype=object).reshape(pairs.shape)
    prefixes = Prompts(texts[n][:end] for n, places in enumerate(ends) for end in places)
    at = np.array([len(row) - 1 for row in prefixes])
    question = LogitQuestion(prefixes, at, pairs[:, :, None], tuple(map(tuple, names.tolist())))
    about: dict[str, Any] = {"prompt_number": of, "continued": tuple(texts)}
    about["prompt_ends"] = prompt_ends(model, rows) if len(rows) == 1 else ()  # examples are tokens
    about["text"] = tuple(_text_of(model, row, answer) for row, answer in zip(rows, answers, strict=True))
    return Reads([text[:-1] for text in texts], of, at, pairs), question, about


def _text_of(model: Model, before: Ids, answer: Sequence[int]) -> str:
    """A continuation as the text that reads as its tokens."""
    if model.tokenizer is None:
        return " ".join(token_texts(model, answer))
    return text_after(model.tokenizer, before, answer)


def _check_length(model: Model, lengths: list[int]) -> None:
    """Raise InputError for texts that are longer than the model's context; their last token is not read."""
    longest = max(lengths) - 1
    if model.context is not None and longest > model.context:
        raise InputError(f"prompt and continuation make {longest} tokens, but {model.name} reads {model.context}.")


def _with_rivals(model: Model, text: Ids, ends: range) -> Int[np.ndarray, "token 2"]:
    """The tokens at some places of a text, each with the likeliest other token there."""
    at = torch.arange(ends.start - 1, len(text) - 1)
    with model.path.session(), torch.inference_mode():
        logits = model.path.logits(*pad([text[:-1]]), (torch.zeros_like(at), at))[:, 0].float()
    own = torch.tensor(text[ends.start :], device=logits.device)
    best = logits.topk(2).indices
    rivals = torch.where(best[:, 0] == own, best[:, 1], best[:, 0])
    return torch.stack([own, rivals], 1).cpu().numpy()
