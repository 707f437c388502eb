"""Text comes out whole, piece by piece, whatever the tokenizer splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monodraft.checkpoint.shipped import TARGET
from monodraft.loop.pair import load_tokenizer
from monodraft.loop.text import TextStream, decoder, printable

pytestmark = pytest.mark.numbers

TOKENIZER = load_tokenizer(TARGET)
decode = decoder(TOKENIZER)


@given(text=st.text(max_size=40), context=st.sampled_from(["", "def f", "é"]))
def test_pieces_put_together_are_the_text(text: str, context: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(decode, TOKENIZER(context)["input_ids"])
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.flush() == decode(ids)


def test_a_character_of_several_tokens_comes_at_its_last() -> None:
    ids = TOKENIZER("😀", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    stream = TextStream(decode)
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["😀"]


def test_a_broken_character_at_the_end_is_shown_and_not_lost() -> None:
    ids = TOKENIZER("😀", add_special_tokens=False)["input_ids"][:-1]
    stream = TextStream(decode)
    assert "".join(stream.push(token) for token in ids) + stream.flush() == "�"


def test_bytes_that_never_become_a_character_are_not_held_back_forever() -> None:
    half = TOKENIZER("😀", add_special_tokens=False)["input_ids"][0]
    stream = TextStream(decode)
    pieces = [stream.push(half) for _ in range(9)]
    assert sum(piece.count("�") for piece in pieces) >= 5


def test_special_tokens_leave_no_text() -> None:
    stream = TextStream(decode)
    [end] = [TOKENIZER.eos_token_id]
    word = TOKENIZER("word", add_special_tokens=False)["input_ids"]
    assert "".join(stream.push(token) for token in [*word, end, *word]) + stream.flush() == "wordword"


def test_control_characters_of_a_model_cannot_reach_the_terminal() -> None:
    assert printable("a\tb\nc\x1b[2J\x07\x7f\x9b") == "a\tb\nc␛[2J␇␡�"
