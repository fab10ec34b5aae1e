"""Pieces join to the text of the result, each choice by itself."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from radixgen.messages import RequestFinished
from radixgen.streams import RequestStream, Row
from radixgen.types import FinishReason, GenerateResult, Piece, Usage


class LateDecoder:
    """A token is a code point; the last one is kept back until another comes."""

    def __init__(self) -> None:
        self.held = ""
        self.num_passed = 0

    def pass_over(self, num_tokens: int) -> None:
        self.num_passed += num_tokens

    def push(self, ids: Sequence[int]) -> str:
        text = self.held + "".join(map(chr, ids))
        self.held = text[-1:]
        return text[:-1]

    def finish(self) -> str:
        held, self.held = self.held, ""
        return held


def result_of(piece: Piece) -> GenerateResult:
    assert piece.result is not None
    return piece.result


@given(st.text(max_size=12), st.integers(1, 4))
def test_pieces_join_to_the_text(text: str, width: int) -> None:
    request = RequestStream("r", 0, 1, LateDecoder)
    rows = [text[i : i + width] for i in range(0, len(text), width)] or [""]
    pieces = [request.push(Row(0, list(map(ord, row)), None, None)) for row in rows[:-1]]
    last = list(map(ord, rows[-1]))
    pieces.append(request.push(Row(0, last, FinishReason.LENGTH, None)))
    result = result_of(request.finish(RequestFinished("r", Usage(1, 0, len(text)))))
    assert "".join(piece.text for piece in pieces) == text == result.text
    assert result.token_ids == tuple(map(ord, text))
    assert pieces[-1].finish_reason is result.finish_reason is FinishReason.LENGTH


def test_a_token_that_ends_the_text_has_none() -> None:
    request = RequestStream("r", 0, 1, LateDecoder)
    piece = request.push(Row(0, [97, 98, 99], FinishReason.STOP, 99))
    assert (piece.text, piece.token_ids, piece.stop_reason) == ("ab", (97, 98, 99), 99)


def test_choices_do_not_mix() -> None:
    request = RequestStream("r", 3, 2, LateDecoder)
    request.push(Row(1, [98], None, None))
    request.push(Row(0, [97], FinishReason.LENGTH, None))
    piece = request.push(Row(1, [99], FinishReason.STOP, None))
    assert (piece.prompt, piece.index, piece.text) == (3, 1, "bc")
    result = result_of(request.finish(RequestFinished("r", Usage(1, 0, 3))))
    assert [choice.text for choice in result.choices] == ["a", "bc"]
    assert result.finish_reason is FinishReason.LENGTH


def test_a_choice_that_never_began_was_aborted() -> None:
    result = result_of(
        RequestStream("r", 0, 1, LateDecoder).finish(RequestFinished("r", Usage(1, 0, 0)))
    )
    assert (result.text, result.finish_reason) == ("", FinishReason.ABORT)


def test_thoughts_have_a_decoder_of_their_own() -> None:
    request = RequestStream("r", 0, 1, LateDecoder, LateDecoder)
    first = request.push(Row(0, [97, 98, 99], None, None, num_thoughts=3))
    second = request.push(Row(0, [100, 101, 102], None, None, num_thoughts=1))
    last = request.push(Row(0, [103], FinishReason.LENGTH, None))
    assert [(p.thoughts, p.text) for p in (first, second, last)] == [
        ("ab", ""),
        ("cd", "e"),
        ("", "fg"),
    ]
    (choice,) = result_of(request.finish(RequestFinished("r", Usage(1, 0, 7)))).choices
    assert (choice.thoughts, choice.text, choice.num_thought_tokens) == ("abcd", "efg", 4)


def test_thoughts_that_are_cut_are_told_to_their_end() -> None:
    request = RequestStream("r", 0, 1, LateDecoder, LateDecoder)
    piece = request.push(Row(0, [97, 98], FinishReason.ABORT, None, num_thoughts=2))
    assert (piece.thoughts, piece.text) == ("ab", "")
