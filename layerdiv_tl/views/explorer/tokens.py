"""Display of tokens that distinguishes blanks and control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from ...model.load import Model
from ...model.prompts import token_texts

_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": " "}
# Invisible characters, and those that change the position of others.
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")


def drawn_tokens(model: Model, ids: Iterable[int]) -> list[str]:
    """Display every token on one line: a leading blank as a space, a control character by its number."""
    ids = [int(i) for i in ids]
    texts = token_texts(model, ids)
    if model.tokenizer is None:
        return list(texts)
    return [drawn(*pair) for pair in zip(texts, model.tokenizer.convert_ids_to_tokens(ids), strict=True)]


def drawn(text: str, piece: str | None = None) -> str:
    """Display a token by its text, completed from the tokenizer's own name for it if the text loses information.

    >>> drawn("a\\n"), drawn("\\u200b"), drawn("Mary", "▁Mary")
    ('a⏎', '⟨U+200B⟩', ' Mary')
    """
    piece = piece if isinstance(piece, str) else ""
    if piece.startswith("▁") and not text.startswith(" "):  # SentencePiece drops the blank of a single token
        text = " " * (len(piece) - len(piece.lstrip("▁"))) + text.lstrip(" ")
    unseen = {c for c in text if unicodedata.category(c) in _UNSEEN}
    return "".join(_SHOWN.get(c) or (f"⟨U+{ord(c):04X}⟩" if c in unseen else c) for c in text) or "∅"
