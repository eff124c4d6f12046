"""Display of tokens that distinguishes blanks, control characters and pieces of characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache

from ...model.load import Model
from ...model.prompts import token_texts

_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": " "}
# Invisible characters, and those that change the position of others.
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")


def drawn_tokens(model: Model, ids: Iterable[int]) -> list[str]:
    """Display every token on one line: a leading blank as a space, a broken character as its bytes, e.g. ⟨E2⟩⟨80⟩."""
    ids = [int(i) for i in ids]
    texts = token_texts(model, ids)
    if model.tokenizer is None:
        return list(texts)
    return [drawn(*pair) for pair in zip(texts, model.tokenizer.convert_ids_to_tokens(ids), strict=True)]


def drawn(text: str, piece: str | None = None) -> str:
    """Display a token by its text, completed from the tokenizer's own name for it if the text loses information.

    >>> drawn("a\\n"), drawn("\\u200b"), drawn("Mary", "▁Mary"), drawn("\\ufffd", "<0xE2>"), drawn("\\ufffd", "âĢ")
    ('a⏎', '⟨U+200B⟩', ' Mary', '⟨E2⟩', '⟨E2⟩⟨80⟩')
    """
    piece = piece if isinstance(piece, str) else ""
    if "\ufffd" in text:
        text = _pieces_of_characters(piece) or text
    elif piece.startswith("▁") and not text.startswith(" "):  # SentencePiece drops the blank of a single token
        text = " " * (len(piece) - len(piece.lstrip("▁"))) + text.lstrip(" ")
    unseen = {c for c in text if unicodedata.category(c) in _UNSEEN}
    return "".join(_SHOWN.get(c) or (f"⟨U+{ord(c):04X}⟩" if c in unseen else c) for c in text) or "∅"


def _pieces_of_characters(piece: str) -> str:
    """Decode a token that ends within a character, with leftover bytes in brackets; "" for an unknown name."""
    if len(piece) == 6 and piece.startswith("<0x"):
        return f"⟨{piece[3:5]}⟩"
    known = _bytes_of_characters()
    if not piece or not all(c in known for c in piece):
        return ""
    text = bytes(known[c] for c in piece).decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:02X}⟩" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Map the letters of byte-level tokenizers to bytes: printable bytes as themselves, others from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + n): byte for n, byte in enumerate(others)}
