"""The zoo's tokenizer, and training rows made straight as its token ids, many at once.

A training row is the prompts of several questions about the same facts, which the model reads as if each stood
alone after them: token for token what the Task of the same name puts to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from layerdiv_tl.tasks.synthetic import COLORS, LETTERS

ENTITIES, HOPS, PAIRS, VALUES, MODULUS, LARGEST = 8, 4, 8, 4, 7, 19
PAD, BEGIN, UNKNOWN = "<pad>", "<begin>", "<unknown>"
NUMBERS = tuple(map(str, range(LARGEST + 1)))
# Phrases of the templates are one token each, which keeps rows short.
_START, _TO, _NEXT, _PLUS, _MOD = "\nStart at", "points to", ". ", "+", f") mod {MODULUS}="
_STEPS = tuple(f"and go {n} step{'s' * (n > 1)}. You arrive at" for n in range(1, HOPS + 1))
_PHRASES = (_START, *_STEPS, _TO, _NEXT, ".", "\n", "(", _PLUS, _MOD)
_WORDS = (PAD, BEGIN, UNKNOWN, *_PHRASES, *LETTERS, *(f"{letter}:" for letter in LETTERS), *COLORS, *NUMBERS)
IDS = {word: number for number, word in enumerate(_WORDS)}


def tokenizer() -> Any:
    """The tokenizer that all models of the zoo share; it begins every text with `<begin>`.

    A word is one token whether or not a space stands before it.

    >>> tokenizer().tokenize("B points to A. A points to B.\\nStart at B and go 1 step. You arrive at")
    ['B', 'points to', 'A', '. ', 'A', 'points to', 'B', '.', '\\nStart at', 'B', 'and go 1 step. You arrive at']
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel(IDS, unk_token=UNKNOWN))
    phrases = [re.escape(phrase) for phrase in (_START, _NEXT, _MOD)]
    phrases += [" " + re.escape(phrase) for phrase in (*_STEPS, _TO, _PLUS)]
    pattern = "|".join([*phrases, "[A-Z]:", " ?[A-Za-z]+", " ?[0-9]+", r"\s", "."])
    cut, strip = (pre_tokenizers.Split(Regex(x), how) for x, how in ((pattern, "isolated"), ("^ ", "removed")))
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, strip])
    made.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, IDS[BEGIN])])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=BEGIN, pad_token=PAD, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def _ids(words: Iterable[str]) -> Int[np.ndarray, " word"]:
    return np.array([IDS[word] for word in words])


_LETTER, _KEY, _COLOR, _NUMBER, _STEP = map(_ids, (LETTERS, [f"{x}:" for x in LETTERS], COLORS, NUMBERS, _STEPS))


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one task.

    Attributes:
        facts: `[row, token]`, what all questions of a row come after.
        questions: `[row, question, token]`, each the rest of a prompt, which ends where the model answers.
        answers: `[row, question]`, the gold option's token.
        hops: `[row, question]`, how far a chain is followed; 0 where there is none.
    """

    facts: Int[np.ndarray, "row token"]
    questions: Int[np.ndarray, "row question token"]
    answers: Int[np.ndarray, "row question"]
    hops: Int[np.ndarray, "row question"]

    @property
    def tokens(self) -> Int[np.ndarray, "row token"]:
        """A row's facts and all its questions, one after the other."""
        return np.concatenate([self.facts, self.questions.reshape(len(self.facts), -1)], axis=1)

    @property
    def positions(self) -> Int[np.ndarray, " token"]:
        """Where each token stands in the prompt it belongs to."""
        facts, (_, count, length) = self.facts.shape[1], self.questions.shape
        return np.concatenate([np.arange(facts), np.tile(facts + np.arange(length), count)])

    @property
    def sees(self) -> Bool[np.ndarray, "token token"]:
        """Which tokens each reads: those before it in its own prompt, and itself."""
        facts, (_, count, length) = self.facts.shape[1], self.questions.shape
        part = np.concatenate([np.zeros(facts, int), 1 + np.repeat(np.arange(count), length)])
        own = (part[:, None] == part) | (part == 0)
        return own & np.tri(len(part), dtype=bool)

    @property
    def asked(self) -> Int[np.ndarray, " question"]:
        """Where each question ends, counted in `tokens`."""
        _, count, length = self.questions.shape
        return self.facts.shape[1] + length * np.arange(1, count + 1) - 1


def k_hop(rng: np.random.Generator, rows: int, questions: int, hops: int, entities: int = ENTITIES) -> Batch:
    """Chains of pointers through `entities` of the letters; every question follows one for 1 to `hops` steps."""
    cycle = rng.permuted(np.tile(np.arange(ENTITIES), (rows, 1)), axis=1)[:, :entities]
    order = rng.permuted(np.tile(np.arange(entities), (rows, 1)), axis=1)
    start = rng.integers(entities, size=(rows, questions))
    return chains(cycle, order, start, rng.integers(1, 1 + min(hops, entities - 1), size=(rows, questions)))


def chains(cycle: Any, order: Any, start: Any, hops: Any) -> Batch:
    """The rows where pointers go along `cycle`, in the order `order`, asked from `cycle[start]`."""
    at = np.arange(len(cycle))[:, None]
    source, target = cycle[at, order], cycle[at, (order + 1) % cycle.shape[1]]
    words = (_LETTER[source], _like(source, _TO), _LETTER[target], _like(source, _NEXT))
    fact = np.stack(words, axis=2)
    fact[:, -1, -1] = IDS["."]
    question = np.stack([_like(start, _START), _LETTER[cycle[at, start]], _STEP[hops - 1]], axis=2)
    return Batch(_begun(fact), question, _LETTER[cycle[at, (start + hops) % cycle.shape[1]]], hops)


def recall(rng: np.random.Generator, rows: int, count: int = PAIRS) -> Batch:
    """Keys and their values; every key is asked."""
    keys = rng.permuted(np.tile(np.arange(len(LETTERS)), (rows, 1)), axis=1)[:, :count]
    return pairs(keys, rng.integers(VALUES, size=(rows, count)), np.tile(np.arange(count), (rows, 1)))


def pairs(keys: Any, values: Any, asked: Any) -> Batch:
    """The rows where `values` belong to `keys`, asked for the pairs `asked`."""
    at = np.arange(len(keys))[:, None]
    fact = np.stack([_KEY[keys], _COLOR[values], _like(keys, "\n")], axis=2)
    return Batch(_begun(fact), _KEY[keys[at, asked]][..., None], _COLOR[values[at, asked]], np.zeros_like(asked))


def modular(rng: np.random.Generator, rows: int) -> Batch:
    """Sums of two numbers; one a row, for two have nothing in common."""
    return sums(*rng.integers(LARGEST + 1, size=(2, rows)))


def sums(a: Any, b: Any) -> Batch:
    """The rows that ask for `a + b`."""
    question = np.stack([_like(a, "("), _NUMBER[a], _like(a, _PLUS), _NUMBER[b], _like(a, _MOD)], axis=1)[:, None]
    answer = _NUMBER[(a + b) % MODULUS][:, None]
    return Batch(np.full((len(a), 1), IDS[BEGIN]), question, answer, np.zeros_like(answer))


def _like(shape: Any, word: str) -> Int[np.ndarray, "*shape"]:
    return np.full(np.shape(shape), IDS[word])


def _begun(fact: Int[np.ndarray, "row fact token"]) -> Int[np.ndarray, "row token"]:
    """All facts of a row after the token that begins a text."""
    flat = fact.reshape(len(fact), -1)
    return np.concatenate([np.full((len(flat), 1), IDS[BEGIN]), flat], axis=1)
