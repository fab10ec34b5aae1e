"""The real runtime on a tiny random model: what callers can do, and what they can do wrong."""

import asyncio
import gc
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zmq
from helpers import write_tiny_model

from radixgen import (
    AsyncRuntime,
    BlockingClient,
    EngineClient,
    FinishReason,
    GrammarSpec,
    InvalidGrammar,
    InvalidRequest,
    PromptTooLong,
    Runtime,
    RuntimeUnavailable,
    SamplingParams,
)

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONTEXT = 4096
NUM_PAGES = 1000
LONG = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)  # takes seconds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[Runtime]:
    with Runtime(model, num_pages=NUM_PAGES, threads=1) as runtime:
        yield runtime


def wait_until(condition: Any, seconds: float = 200.0) -> None:
    """Poll until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def is_idle(runtime: Runtime) -> bool:
    return runtime.stats()["open_requests"] == 0


# ---- results ----


def test_one_in_one_out_and_lists_keep_their_order(runtime: Runtime) -> None:
    one = runtime.generate("The quick brown fox", GREEDY)
    ids = list(b"The quick brown fox")
    results = runtime.generate(["something else", "The quick brown fox"], GREEDY)
    assert runtime.generate(ids, GREEDY).token_ids == one.token_ids
    assert runtime.generate([ids, list(b"x")], GREEDY)[0].token_ids == one.token_ids
    assert [r.token_ids for r in results][1] == one.token_ids
    nothing: list[str] = []
    assert runtime.generate(nothing, GREEDY) == []
    assert one.finish_reason is FinishReason.LENGTH
    assert one.usage.completion_tokens == len(one.token_ids) == 8
    assert one.usage.prompt_tokens == 19


def test_the_second_time_is_cached_and_equal(runtime: Runtime) -> None:
    runtime.flush_cache()
    cold = runtime.generate("A prompt that takes a few pages of the cache.", GREEDY)
    warm = runtime.generate("A prompt that takes a few pages of the cache.", GREEDY)
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens >= 32
    assert warm.token_ids == cold.token_ids
    before = runtime.stats()
    runtime.flush_cache()
    assert before["tree_pages"] > 0
    assert runtime.stats()["tree_pages"] == 0


def test_pieces_join_to_the_result(runtime: Runtime) -> None:
    pieces = list(runtime.generate("stream", GREEDY, stream=True, n=2))
    result = pieces[-1].result
    assert result is not None
    for choice in result.choices:
        mine = [piece for piece in pieces if piece.index == choice.index]
        assert "".join(piece.text for piece in mine) == choice.text
        assert sum((piece.token_ids for piece in mine), ()) == choice.token_ids
    for piece in pieces:
        piece.text.encode()


def test_a_list_can_be_streamed(runtime: Runtime) -> None:
    pieces = list(runtime.generate(["one", "two", "three"], GREEDY, stream=True))
    assert sorted(piece.prompt for piece in pieces if piece.result) == [0, 1, 2]


def test_a_stop_string_across_tokens_is_trimmed(runtime: Runtime) -> None:
    letters = SamplingParams(
        temperature=1.0, seed=5, max_tokens=40, logit_bias=tuple((i, 90.0) for i in range(97, 123))
    )
    free = runtime.generate("stop here", letters)
    assert len(free.text) == 40
    stop = free.text[10:13]
    cut = runtime.generate("stop here", letters, stop=["nowhere!", stop])
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.choices[0].stop_reason == stop
    late = runtime.generate("stop here", letters, stop=stop, min_tokens=20)
    assert len(late.text) >= 17


def test_the_same_seed_gives_the_same_tokens_in_any_company(runtime: Runtime) -> None:
    alone = runtime.generate("seeded", temperature=1.0, seed=3, max_tokens=12)
    crowd = runtime.generate(["a", "seeded", "bb"], temperature=1.0, seed=3, max_tokens=12)
    assert crowd[1].token_ids == alone.token_ids


def test_scores_are_those_of_the_prompt(runtime: Runtime) -> None:
    scored = runtime.score("The answer is ", ["yes", "no"])
    whole = runtime.generate("The answer is yes", max_tokens=1, prompt_logprobs=0)
    expected = [token.logprob for token in whole.prompt_logprobs[-3:] if token]
    assert [len(row) for row in scored.logprobs] == [3, 2]
    assert scored.logprobs[0] == pytest.approx(expected, abs=1e-5)
    assert scored.totals[0] == pytest.approx(sum(expected), abs=1e-4)


def test_a_prompt_is_scored_as_well_when_much_of_its_future_is_known(runtime: Runtime) -> None:
    """Drafts are of the future: nothing is told of them as of the prompt."""
    prompt = "one two one two one two one two"
    rows = [runtime.generate(prompt, GREEDY, prompt_logprobs=1).prompt_logprobs for _ in range(4)]
    assert [len(row) for row in rows] == [len(prompt)] * 4
    assert rows[0] == rows[3]


def test_chat_is_generate_on_the_template(runtime: Runtime) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = runtime.tokenizer.chat(messages)
    chatted = runtime.chat(messages, GREEDY)
    assert chatted.token_ids == runtime.generate(ids, GREEDY).token_ids
    pieces = list(runtime.chat(messages, GREEDY, stream=True))
    assert "".join(piece.text for piece in pieces) == chatted.text


def test_logprobs_come_with_tokens(runtime: Runtime) -> None:
    result = runtime.generate("logprobs", GREEDY, logprobs=3)
    for token_id, token in zip(result.token_ids, result.choices[0].logprobs, strict=True):
        assert token.token_id == token_id == token.top[0][0]
        assert len(token.top) == 3


# ---- leaving early ----


def test_abort_gives_what_there_is(runtime: Runtime) -> None:
    pieces = runtime.generate("to be cut", LONG, stream=True, rid="cut")
    first = next(pieces)
    runtime.abort("cut")
    rest = [first, *pieces]
    result = rest[-1].result
    assert result is not None
    assert result.finish_reason is FinishReason.ABORT
    assert 0 < len(result.token_ids) < 3000
    assert result.text == "".join(piece.text for piece in rest)
    runtime.abort("cut")  # it is gone, and that is no error


def test_a_closed_or_dropped_generator_is_aborted(runtime: Runtime) -> None:
    for close in (True, False):
        pieces = runtime.generate(["left", "early"], LONG, stream=True)
        next(pieces)
        if close:
            pieces.close()
        del pieces
        gc.collect()
        wait_until(lambda: is_idle(runtime))


def test_a_failing_prompt_of_a_list_ends_the_others(runtime: Runtime) -> None:
    with pytest.raises(PromptTooLong):
        runtime.generate(["fine", "x" * 2 * CONTEXT], LONG)
    wait_until(lambda: is_idle(runtime))


# ---- many at once ----


def test_threads_share_a_runtime(runtime: Runtime) -> None:
    prompts = [f"thread {number}" for number in range(16)]
    alone = [runtime.generate(prompt, GREEDY).token_ids for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda p: runtime.generate(p, GREEDY).token_ids, prompts))
    assert together == alone


def test_two_clients_share_a_runtime(runtime: Runtime) -> None:
    expected = runtime.generate("shared", GREEDY, rid="same").token_ids
    other = BlockingClient.connect(runtime.address)
    assert other.ready.pid == runtime.process.pid
    slow = runtime.generate("mine", LONG, stream=True, rid="same")
    next(slow)
    assert other.generate("shared", GREEDY, rid="same").token_ids == expected
    other.abort("same")  # not this client's any more: the other's goes on
    other.close()
    with pytest.raises(RuntimeUnavailable):
        other.generate("shared", GREEDY)
    assert len(list(islice(slow, 50))) == 50
    slow.close()


def test_ten_thousand_requests_wait_their_turn(runtime: Runtime) -> None:
    results = runtime.generate(
        [f"{number % 50}" for number in range(10_000)], max_tokens=1, temperature=0
    )
    assert len(results) == 10_000
    assert all(len(result.token_ids) == 1 for result in results)
    assert results[7].token_ids == results[57].token_ids


# ---- asyncio ----


def test_the_async_twin(model: Path, runtime: Runtime) -> None:
    expected = runtime.generate("async", GREEDY).token_ids

    async def work() -> None:
        async with AsyncRuntime(model, num_pages=300, threads=1) as rt:
            assert (await rt.generate("async", GREEDY)).token_ids == expected
            both = await asyncio.gather(rt.generate(["async", "b"], GREEDY), rt.stats())
            assert both[0][0].token_ids == expected
            text = [piece.text async for piece in rt.generate("async", GREEDY, stream=True)]
            assert "".join(text) == runtime.generate("async", GREEDY).text
            assert len((await rt.score("a", ["b", "cd"])).logprobs) == 2
            task = asyncio.create_task(rt.generate("cancelled", LONG))
            while (await rt.stats())["open_requests"] == 0:
                await asyncio.sleep(0.005)
            task.cancel()
            while (await rt.stats())["open_requests"]:
                await asyncio.sleep(0.005)
            await rt.flush_cache()
        with pytest.raises(RuntimeUnavailable):
            await rt.generate("after", GREEDY)

    asyncio.run(asyncio.wait_for(work(), 200))


def test_an_async_client_of_the_same_runtime(runtime: Runtime) -> None:
    expected = runtime.generate("async", GREEDY).token_ids

    async def work() -> None:
        client = await EngineClient.connect(runtime.address)
        assert (await client.generate("async", GREEDY)).token_ids == expected
        client.close()

    asyncio.run(asyncio.wait_for(work(), 200))


# ---- wrong arguments ----

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("", {}, InvalidRequest, "prompt is empty"),
    ([""], {}, InvalidRequest, "prompt is empty"),
    ([[]], {}, InvalidRequest, "prompt is empty"),
    (None, {}, InvalidRequest, "neither text nor a list"),
    ([None], {}, InvalidRequest, "neither text nor a list"),
    ([1, "a"], {}, InvalidRequest, "holds 'a'"),
    ([1.5], {}, InvalidRequest, "neither text"),
    ([259], {}, InvalidRequest, "token id 259; the vocabulary is 0 to 258"),
    ([-1], {}, InvalidRequest, "token id -1"),
    ([2**31], {}, InvalidRequest, "neither text nor a token id"),
    ("a\ud800b", {}, InvalidRequest, r"lone surrogate \(U\+D800 at character 1\)"),
    ("x" * CONTEXT, {}, PromptTooLong, "4096 tokens and 4095 fit the context of 4096"),
    ("x" * 10_000_000, {}, PromptTooLong, "fit the context"),
    ("x", {"temprature": 1}, InvalidRequest, "did you mean 'temperature'"),
    ("x", {"temperature": math.nan}, InvalidRequest, "temperature=nan"),
    ("x", {"top_p": 2}, InvalidRequest, "top_p=2"),
    ("x", {"max_tokens": -1}, InvalidRequest, "max_tokens=-1"),
    ("x", {"stop": [""]}, InvalidRequest, "empty string"),
    ("x", {"stop_token_ids": [999]}, InvalidRequest, "stop_token_ids names token id 999"),
    ("x", {"logit_bias": {999: 1.0}}, InvalidRequest, "logit_bias names token id 999"),
    ("x", {"priority": "high"}, InvalidRequest, "priority='high'"),
    ("x", {"priority": 2**40}, InvalidRequest, "priority is not within 32 bits"),
    ("x", {"namespace": "\ud800"}, InvalidRequest, "namespace holds a lone surrogate"),
    ("x", {"rid": ""}, InvalidRequest, "rid has 1 to 256"),
    ("x", {"rid": "y" * 257}, InvalidRequest, "rid has 1 to 256"),
    (["x", "y"], {"rid": "z"}, InvalidRequest, "rid names one request"),
    ("x", {"grammar": "a+"}, InvalidRequest, "GrammarSpec: give radixgen.GrammarSpec"),
]


@pytest.mark.parametrize(("prompt", "options", "kind", "said"), BAD)
def test_wrong_arguments_are_refused_at_the_call(
    runtime: Runtime, prompt: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        runtime.generate(prompt, **options)
    with pytest.raises(kind, match=said):
        list(runtime.generate(prompt, stream=True, **options))


def test_wrong_scores_and_chats_are_refused(runtime: Runtime) -> None:
    cases: tuple[tuple[str, Any, str], ...] = (
        ("", ["a"], "prefix is empty"),
        ("a", [], "continuations is empty"),
        ("a", "yes", "continuations='yes' is not a list"),
        ("a", 5, "continuations=5 is not a list"),
        ("a", [""], "continuations is empty"),
        ("a", ["b"] * 16_385, "16,385, over the limit of 16,384"),
        ("a", [[999]], "token id 999"),
    )
    unchecked: Any = runtime
    for prefix, continuations, said in cases:
        with pytest.raises(InvalidRequest, match=said):
            unchecked.score(prefix, continuations)
    with pytest.raises(PromptTooLong):
        runtime.score("x" * (CONTEXT - 12), ["y" * 20])
    with pytest.raises(PromptTooLong, match=r"messages\[0\]"):
        runtime.chat([{"role": "user", "content": "x" * 10_000_000}])
    for messages in ([], "hi", ["hi"], [{"content": "x"}], [{"role": "user", "content": "\udc00"}]):
        bad: Any = messages
        with pytest.raises(InvalidRequest, match="messages"):
            runtime.chat(bad)


def test_a_duplicate_rid_is_refused_and_the_first_goes_on(runtime: Runtime) -> None:
    pieces = runtime.generate("first", LONG, stream=True, rid="twice")
    next(pieces)
    with pytest.raises(InvalidRequest, match="'twice' is already in use"):
        runtime.generate("second", GREEDY, rid="twice")
    assert len(list(islice(pieces, 50))) == 50
    pieces.close()


def test_a_grammar_is_kept_or_refused(runtime: Runtime) -> None:
    result = runtime.generate("x", grammar=GrammarSpec("regex", "(ab|cd){3}"), max_tokens=20)
    assert re.fullmatch("(ab|cd){3}", result.text)
    assert result.finish_reason is FinishReason.STOP
    with pytest.raises(InvalidGrammar, match="unclosed"):
        runtime.generate("x", grammar=GrammarSpec("regex", "(unclosed"))
    with pytest.raises(InvalidRequest, match="6 tokens"):
        runtime.generate("x", grammar=GrammarSpec("regex", "(ab|cd){3}"), max_tokens=5)


def test_raw_garbage_hurts_nobody(runtime: Runtime) -> None:
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.set(zmq.LINGER, 1000)
    raw.connect(f"ipc://{runtime.address}")
    for frames in ([b"\x80\x04K\x01."], [b""], [b"{}"] * 5, [b"[" * 1000], [b"x" * (1 << 20)]):
        raw.send_multipart(frames)
    wait_until(lambda: runtime.stats()["dropped_messages"] >= 5)
    assert len(runtime.generate("fine", GREEDY).token_ids) == 8
    raw.close()
    context.term()


def test_after_everything_no_page_is_lost(runtime: Runtime) -> None:
    wait_until(lambda: is_idle(runtime))
    runtime.flush_cache()
    stats = runtime.stats()
    assert stats["free_pages"] == stats["total_pages"] == NUM_PAGES
    assert stats["failed_steps"] == 0
