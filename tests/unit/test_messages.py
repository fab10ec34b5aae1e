"""What goes over the wire comes back equal, and what is no message is refused, never raised."""

import dataclasses
import json
import math
import sys
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen import messages
from radixgen.errors import InvalidRequest, from_code
from radixgen.messages import (
    AbortRequest,
    Ack,
    DecodeError,
    GenerateRequest,
    Hello,
    ScoreOutput,
    ScoreRequest,
    StepOutput,
    ToFrontend,
    ToRuntime,
    decode_to_frontend,
    decode_to_runtime,
    encode,
)
from radixgen.types import (
    CacheHint,
    FinishReason,
    GrammarSpec,
    SamplingParams,
    TokenLogprob,
    Usage,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
RIDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=50)
SMALL = st.integers(0, 999)
FLOATS = st.floats(allow_nan=False)
LOGPROBS = st.builds(
    TokenLogprob,
    st.integers(0, 10**6),
    FLOATS,
    st.lists(st.tuples(st.integers(0, 10**6), FLOATS), max_size=3).map(tuple),
)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(10, 100),
    min_tokens=st.integers(0, 10),
    temperature=st.floats(0, 100),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(TEXT.filter(bool), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 1000), max_size=3),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3),
    logprobs=st.none() | st.integers(0, 5),
    ignore_eos=st.booleans(),
    n=st.integers(1, 4),
)
HINTS = st.none() | st.builds(CacheHint, TEXT, st.booleans(), st.integers(0, 9), st.floats(0, 9))
GRAMMARS = st.none() | st.builds(
    GrammarSpec,
    st.sampled_from(["regex", "json_schema"]),
    TEXT,
    st.dictionaries(TEXT, st.none() | TEXT | st.integers() | st.booleans(), max_size=2).map(
        lambda options: tuple(options.items())
    ),
)


@st.composite
def scores(draw: st.DrawFn) -> tuple[ScoreRequest, list[int]]:
    lengths = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    prefix = draw(st.integers(0, 5))
    ids = draw(
        st.lists(st.integers(0, 9), min_size=prefix + sum(lengths), max_size=prefix + sum(lengths))
    )
    return ScoreRequest(draw(RIDS), prefix, lengths, draw(HINTS)), ids


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepOutput, list[int]]:
    counts = tuple(draw(st.lists(st.integers(0, 4), max_size=5)))

    def column(items: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(items, min_size=len(counts), max_size=len(counts))))

    output = StepOutput(
        column(RIDS),
        column(st.integers(0, 3)),
        counts,
        column(st.none() | st.sampled_from(FinishReason)),
        column(st.none() | TEXT | st.integers(0, 99)),
        column(st.lists(LOGPROBS, max_size=2).map(tuple)) if draw(st.booleans()) else (),
    )
    return output, list(range(sum(counts)))


USAGE = st.builds(Usage, *[st.integers(0, 99)] * 3, *[st.floats(0, 9)] * 3)
TO_RUNTIME: st.SearchStrategy[Any] = st.one_of(
    st.tuples(
        st.builds(GenerateRequest, RIDS, SAMPLING, GRAMMARS, HINTS, st.integers(-9, 9), TEXT, TEXT),
        IDS,
    ),
    scores(),
    st.tuples(
        st.one_of(
            st.builds(Hello, RIDS),
            st.builds(AbortRequest, RIDS, TEXT),
            st.builds(messages.FlushCache, RIDS),
            st.builds(messages.GetStats, RIDS),
            st.builds(messages.GetCacheTree, RIDS, SMALL, SMALL),
            st.builds(messages.Shutdown, RIDS, st.booleans()),
        ),
        st.just([]),
    ),
)
CACHE_NODES = st.builds(
    messages.CacheNode, SMALL, TEXT, *[SMALL] * 6, st.lists(SMALL, max_size=3).map(tuple)
)
TO_FRONTEND: st.SearchStrategy[Any] = st.one_of(
    steps(),
    st.tuples(
        st.one_of(
            st.builds(messages.Ready, RIDS, TEXT, *[st.integers(0, 9)] * 5),
            st.builds(
                messages.RequestFinished,
                RIDS,
                USAGE,
                st.lists(st.none() | LOGPROBS, max_size=3).map(tuple),
            ),
            st.builds(messages.RequestFailed, RIDS, TEXT, TEXT, st.none() | TEXT),
            st.builds(
                ScoreOutput,
                RIDS,
                st.lists(st.lists(FLOATS, max_size=3).map(tuple), max_size=3).map(tuple),
                USAGE,
            ),
            st.builds(messages.Stats, RIDS, st.dictionaries(TEXT, FLOATS, max_size=3)),
            st.builds(messages.CacheTree, RIDS, st.lists(CACHE_NODES, max_size=3).map(tuple)),
            st.builds(Ack, RIDS),
        ),
        st.just([]),
    ),
)


def test_the_strategies_cover_every_kind() -> None:
    kinds = {cls.__dataclass_fields__["kind"].default for cls in get_args(ToRuntime)}
    asked = {"hello", "generate", "score", "abort", "flush", "get_stats", "get_cache_tree"}
    assert kinds == asked | {"shutdown"}
    kinds = {cls.__dataclass_fields__["kind"].default for cls in get_args(ToFrontend)}
    ends = {"ready", "finished", "failed", "scored", "stats", "cache_tree", "ack"}
    assert kinds == ends | {"step"}


@given(TO_RUNTIME)
def test_round_trip_to_the_runtime(case: tuple[ToRuntime, list[int]]) -> None:
    message, ids = case
    back, back_ids = decode_to_runtime(encode(message, ids))
    assert back == message
    assert list(back_ids) == ids


@given(TO_FRONTEND)
def test_round_trip_to_the_frontend(case: tuple[ToFrontend, list[int]]) -> None:
    message, ids = case
    back, back_ids = decode_to_frontend(encode(message, ids))
    assert back == message
    assert list(back_ids) == ids


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_garbage_frames_raise_only_decode_errors(frames: list[bytes]) -> None:
    for decode in (decode_to_runtime, decode_to_frontend):
        with pytest.raises(DecodeError):
            decode(frames)


@settings(max_examples=200)
@given(TO_RUNTIME, st.data())
def test_a_damaged_message_decodes_or_is_refused(
    case: tuple[ToRuntime, list[int]], data: st.DataObject
) -> None:
    frames = encode(*case)
    which = data.draw(st.integers(0, len(frames) - 1))
    frame = bytearray(frames[which])
    if frame:
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frames[which] = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    try:
        decode_to_runtime(frames)
    except DecodeError as error:
        assert isinstance(error.error, InvalidRequest)  # noqa: PT017 (either outcome is right)


def test_minus_infinity_survives_and_nan_parameters_do_not() -> None:
    output = ScoreOutput("x", ((-math.inf, 0.5),), Usage(1, 0, 0))
    assert decode_to_frontend(encode(output))[0] == output
    header = encode(GenerateRequest("x", SamplingParams()))[0]
    for bad in (b"NaN", b"Infinity", b"null", b'"1"', b"true"):
        frames = [header.replace(b'"temperature":1.0', b'"temperature":' + bad), b""]
        with pytest.raises(DecodeError, match="temperature") as caught:
            decode_to_runtime(frames)
        assert caught.value.rid == "x"
        assert caught.value.error.param == "temperature"  # type: ignore[attr-defined]


def test_ids_travel_as_little_endian_int32() -> None:
    assert encode(GenerateRequest("x", SamplingParams()), [1, 258])[1] == (
        b"\x01\x00\x00\x00\x02\x01\x00\x00"
    )


def test_big_endian_machines_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = encode(GenerateRequest("x", SamplingParams()), [1, 258])
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    swapped = encode(GenerateRequest("x", SamplingParams()), [1, 258])
    assert swapped[1][:4] == plain[1][:4][::-1]
    assert list(decode_to_runtime(swapped)[1]) == [1, 258]


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 1.5, "a", None])
def test_an_id_outside_int32_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a token id"):
        encode(GenerateRequest("x", SamplingParams()), [1, bad])


def test_a_lone_surrogate_is_refused_before_it_leaves() -> None:
    with pytest.raises(InvalidRequest, match="cannot be encoded"):
        encode(Hello("\ud800"))


def _with(**changes: Any) -> list[bytes]:
    fields = json.loads(encode(GenerateRequest("x", SamplingParams()))[0])
    return [json.dumps(fields | changes).encode(), b"\0\0\0\0"]


@pytest.mark.parametrize(
    ("frames", "rid", "reason"),
    [
        (_with(colour="red"), "x", "colour"),
        (_with(priority="high"), "x", "priority"),
        (_with(sampling={"tempo": 1}), "x", "tempo"),
        (_with(kind="nothing"), "x", "kind"),
        (_with(rid=7), None, "rid"),
        (_with(rid=""), None, "rid of 0"),
        (_with(rid="y" * 257), None, "rid of 257"),
        ([_with()[0]], "x", "1 frames"),
        ([_with()[0], b"abc"], "x", "3 bytes"),
        ([*encode(Hello("h")), b""], "h", "2 frames"),
        ([], None, "0 frames"),
        ([b"{}"] * 3, None, "3 frames"),
        ([b"[" * 100_000], None, "Invalid JSON"),
        ([b'{"rid": "x", "kind": "hello"'], None, "Invalid JSON"),
        ([b" " * (messages.MAX_JSON_BYTES + 1)], None, "JSON frame of"),
        ([*_with()[:1], bytes(messages.MAX_IDS_BYTES + 4)], "x", "ids frame of"),
        (encode(ScoreRequest("s", 2, (1,)), [1, 2]), "s", "add up to 3 of 2"),
        (encode(ScoreRequest("s", 2, (-1,)), [1]), "s", "add up to 1 of 1"),
        (encode(Ack("a")), "a", "kind"),
    ],
)
def test_what_is_refused_and_why(frames: list[bytes], rid: str | None, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode_to_runtime(frames)
    assert caught.value.rid == rid


@pytest.mark.parametrize(
    "change",
    [
        {"counts": (2,)},
        {"counts": (-1, 1)},
        {"indices": ()},
        {"logprobs": ((), ())},
    ],
)
def test_step_columns_must_agree(change: dict[str, Any]) -> None:
    step = StepOutput(("a",), (0,), (1,), (None,), (None,))
    decode_to_frontend(encode(step, [5]))
    with pytest.raises(DecodeError, match="step output"):
        decode_to_frontend(encode(dataclasses.replace(step, **change), [5]))


def test_errors_are_rebuilt_with_their_parameter() -> None:
    error = from_code("invalid_request", "no", "top_p")
    assert isinstance(error, InvalidRequest)
    assert error.param == "top_p"
    assert from_code("unheard of", "no").code == "internal"
