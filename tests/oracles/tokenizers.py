"""A word-level tokenizer for tiny models: no files, no hub."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.oracles.families import VOCAB


def word_tokenizer(words: Iterable[str] | int = VOCAB, **special_tokens: str) -> Any:
    """A Hugging Face tokenizer whose tokens are these words, divided by white space, with ids in their order.

    words
        A number n stands for the words w0 … w(n − 1). The first word takes the place of every unknown one.
    special_tokens
        Words by their role, as in `eos_token="w2"`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [f"w{i}" for i in range(words)] if isinstance(words, int) else list(words)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=vocabulary[0], **special_tokens)
