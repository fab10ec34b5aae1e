"""Streaming text: whatever the pieces, the same text, whole characters, and exact stops."""

from typing import Any

import pytest
from helpers import write_byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import InvalidRequest
from radixgen.tokenizer import IncrementalDecoder, StopMatcher, Tokenizer

ALPHABET = "ab\néầ你🦄"
TEXTS = st.text(ALPHABET, max_size=12)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer.load(folder)


def first_stop(data: bytes, stop: list[str], after: int = 0) -> tuple[int, str] | None:
    """Oracle: where the text ends and by which string: the first complete, then the longest.

    after: strings that are complete before that many bytes do not count.
    """
    found = [
        (end, -len(text.encode()), text)
        for text in stop
        for end in range(max(after, 1), len(data) + 1)
        if data[:end].endswith(text.encode())
    ]
    if not found:
        return None
    end, length, text = min(found)
    return end + length, text


def pieces(draw: st.DrawFn, items: Any) -> list[Any]:
    cuts = sorted(draw(st.lists(st.integers(0, len(items)), max_size=5)))
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


@st.composite
def byte_pieces(draw: st.DrawFn) -> list[bytes]:
    data = draw(st.one_of(TEXTS.map(str.encode), st.binary(max_size=20)))
    return pieces(draw, data)


@st.composite
def id_pieces(draw: st.DrawFn) -> list[list[int]]:
    """Ids of text, of any bytes, and of special tokens, cut anywhere."""
    text = draw(st.one_of(TEXTS.map(lambda t: list(t.encode())), st.lists(st.integers(0, 258))))
    return pieces(draw, text)


@settings(max_examples=1000, deadline=None)
@given(byte_pieces(), STOPS)
def test_the_matcher_stops_where_the_oracle_does(
    given_pieces: list[bytes], stop: list[str]
) -> None:
    whole = b"".join(given_pieces)
    expected = first_stop(whole, stop)
    matcher = StopMatcher(stop)
    released = b""
    for piece in given_pieces:
        released += matcher.push(piece)
        assert whole.startswith(released)
    released += matcher.finish()
    if expected is None:
        assert (released, matcher.stopped) == (whole, None)
    else:
        assert (released, matcher.stopped) == (whole[: expected[0]], expected[1])


@settings(max_examples=500, deadline=None)
@given(byte_pieces(), STOPS)
def test_the_matcher_holds_back_no_more_than_it_must(
    given_pieces: list[bytes], stop: list[str]
) -> None:
    matcher, seen, released = StopMatcher(stop), b"", b""
    for piece in given_pieces:
        seen += piece
        released += matcher.push(piece)
        if matcher.stopped is None:
            held = seen[len(released) :]
            starts = [text.encode()[:n] for text in stop for n in range(1, len(text.encode()))]
            longest = max((len(s) for s in starts if seen.endswith(s)), default=0)
            assert len(held) == longest


@settings(max_examples=1000, deadline=None)
@given(id_pieces(), STOPS, st.booleans(), st.integers(0, 6))
def test_pieces_make_the_whole(
    tokenizer: Tokenizer, ids: list[list[int]], stop: list[str], skip: bool, min_tokens: int
) -> None:
    decoder = IncrementalDecoder(tokenizer, skip, stop, min_tokens=min_tokens)
    text = "".join(decoder.push(piece) for piece in ids) + decoder.finish()
    flat = [token for piece in ids for token in piece]
    parts = [tokenizer.token_bytes(token, not skip) for token in flat]
    whole = b"".join(parts)
    expected = first_stop(whole, stop, len(b"".join(parts[: max(min_tokens - 1, 0)])) + 1)
    if expected is None:
        assert text == tokenizer.decode(flat, skip)
        assert decoder.stopped is None
    else:
        assert text == whole[: expected[0]].decode("utf-8", "replace")
        assert decoder.stopped == expected[1]


@settings(max_examples=500, deadline=None)
@given(TEXTS, STOPS)
def test_no_piece_shows_an_unfinished_character(
    tokenizer: Tokenizer, text: str, stop: list[str]
) -> None:
    decoder = IncrementalDecoder(tokenizer, stop=stop)
    given_out = ""
    for token in tokenizer.encode(text):
        piece = decoder.push([token])
        assert "\ufffd" not in piece
        given_out += piece
        assert text.startswith(given_out)
    assert text.startswith(given_out + decoder.finish())


def test_a_character_appears_when_it_is_complete(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    assert [decoder.push([byte]) for byte in "a🦄é".encode()] == ["a", "", "", "", "🦄", "", "é"]
    assert decoder.push("🦄".encode()[:3]) == ""
    assert decoder.finish() == "\ufffd"


def test_a_stop_string_is_trimmed_exactly(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer, stop=("\n\nUser:", "END"))
    assert decoder.push(b"hello\n") == "hello"
    assert decoder.push(b"\nUs") == ""
    assert decoder.push(b"ed\n\nUser") == "\n\nUsed"
    assert decoder.push(b": more") == ""
    assert (decoder.stopped, decoder.push(b"more"), decoder.finish()) == ("\n\nUser:", "", "")


def test_a_stop_string_before_min_tokens_is_passed_over(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer, stop=("x",), min_tokens=3)
    assert decoder.push(b"axbxc") == "axb"
    assert decoder.stopped == "x"


def test_a_leading_space_is_dropped_once(tokenizer: Tokenizer, monkeypatch: Any) -> None:
    monkeypatch.setattr(Tokenizer, "strips_first_space", True)
    for ids in (b" a b", b"  a", b"a b", b""):
        decoder = IncrementalDecoder(tokenizer)
        text = "".join(decoder.push([token]) for token in ids) + decoder.finish()
        assert text == tokenizer.decode(ids)
        kept = IncrementalDecoder(tokenizer, continuation=True)
        assert kept.push(ids) == tokenizer.decode(ids, continuation=True) == ids.decode()


def test_a_long_stop_string_costs_no_more_a_byte() -> None:
    matcher = StopMatcher(["ab" * 50_000 + "c"])
    assert matcher.push(b"ab" * 100_000) == b"ab" * 50_000
    assert matcher.push(b"c") == b""
    assert matcher.stopped is not None


@pytest.mark.parametrize("stop", [["a", ""], ["\ud800"]])
def test_impossible_stop_strings_are_refused(stop: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(stop)
    assert caught.value.param == "stop"
