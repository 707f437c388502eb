"""Token ids to text as they come: pieces are held back until their characters are whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "�"
"""What a decoder puts for bytes that are not a whole character yet."""


LONGEST_CHARACTER = 4
"""Bytes, so tokens at most, of a UTF-8 character: more pending ones are not one incomplete character."""


class TextStream:
    """Decodes a growing list of ids piece by piece, for any Hugging Face tokenizer, fast or not.

    A token may hold half a character (byte-level BPE) or change how its neighbour is written (a leading space), so
    each step decodes a short tail twice, with and without the new ids, and yields the difference. The pieces and
    `flush` put together are `decode` of all ids with the context's tail in front.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(context[-8:])
        self._from = 0  # start of the tail that is decoded
        self._shown = len(self._ids)  # ids whose text is out

    def push(self, token: int) -> str:
        """Text that became whole with this token; empty while a character is incomplete."""
        self._ids.append(token)
        before = self._decode(self._ids[self._from : self._shown])
        text = self._decode(self._ids[self._from :])
        pending = len(self._ids) - self._shown
        if len(text) <= len(before) or (text.endswith(REPLACEMENT) and pending < LONGEST_CHARACTER):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return text[len(before) :]

    def flush(self) -> str:
        """What is left, incomplete characters as U+FFFD."""
        before = self._decode(self._ids[self._from : self._shown])
        text = self._decode(self._ids[self._from :])
        self._from = self._shown = len(self._ids)
        return text[len(before) :]


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text by a Hugging Face tokenizer, without special tokens and without tidying of spaces."""

    def decode(ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(tokenizer.decode(list(ids), **options))

    return decode


def printable(text: str) -> str:
    """Model output made safe for a terminal: control characters other than newline and tab are shown as symbols."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or (code >= 0x20 and not 0x7F <= code < 0xA0):
        return character
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else REPLACEMENT
