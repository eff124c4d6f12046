"""A tokenizer whose tokens are whole words, each with the space in front of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# A word with its space, a line break, a space, or one other sign.
PIECE = r" ?\w+|\n| |[^\w\s]"
UNKNOWN = "<unk>"


def word_tokenizer(texts: Iterable[str]) -> Any:
    """A Hugging Face tokenizer that knows the words of these texts; decoding gives the text back exactly.

    >>> tokenizer = word_tokenizer(["The car was red."])
    >>> tokenizer("The car was not red.")["input_ids"], tokenizer.decode([1, 2, 4])
    ([1, 2, 3, 0, 4, 5], 'The car red')
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    cut = pre_tokenizers.Split(Regex(PIECE), "isolated")
    pieces = [piece for text in texts for piece, _ in cut.pre_tokenize_str(text)]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys([UNKNOWN, *pieces]))}
    tokenizer = Tokenizer(models.WordLevel(ids, UNKNOWN))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, clean_up_tokenization_spaces=False)
