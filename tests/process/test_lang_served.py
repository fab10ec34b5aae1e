"""Programs on a real runtime and, through each API, on a real server: SGLang's and our own."""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers import write_byte_tokenizer
from live_server import is_idle, shared_server, tiny_model, wait_until
from pydantic import BaseModel, Field
from sglang_programs import PROGRAMS, few_shot, multi_turn

import radixgen as rg
from radixgen import RuntimeEndpoint


@pytest.fixture(scope="module")
def endpoint() -> Iterator[RuntimeEndpoint]:
    backend = RuntimeEndpoint(shared_server().url, tokenizer=tiny_model())
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def runtime() -> Iterator[rg.Runtime]:
    made = rg.Runtime(model_path=tiny_model(), num_pages=1000, threads=1)
    yield made  # started by its first use, as SGLang's are by making them
    made.shutdown()


@pytest.fixture(scope="module", params=["runtime", "endpoint"])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_written_for_sglang(backend: Any, name: str) -> None:
    case = PROGRAMS[name]
    state = case.program.run(**case.arguments, backend=backend, seed=5)
    assert state.error() is None
    assert case.holds(state), state.text()


def test_ways_to_run_programs_written_for_sglang(backend: Any) -> None:
    rg.set_default_backend(backend)
    try:
        items: list[dict[str, Any]] = [
            {"question_1": f"{i}?", "question_2": "why?"} for i in range(3)
        ]
        states = multi_turn.run_batch(items, max_new_tokens=4, seed=1, num_threads=2)
        again = multi_turn.run_batch(items, max_new_tokens=4, seed=1, generator_style=True)
        assert [s.text() for s in states] == [s.text() for s in again]
        state = multi_turn.run(**items[0], seed=1, stream=True)
        assert "".join(state.text_iter()) == state.text()

        async def read() -> str:
            pieces = state.text_async_iter(var_name="answer_2", return_meta_data=True)
            return "".join([piece async for piece, _ in pieces])

        assert asyncio.run(read()) == state["answer_2"]
        bound = few_shot.bind(examples=[{"question": "2+2? " * 20, "answer": "4"}])
        bound.cache()
        state = bound.run(question="3?", seed=1, return_logprob=True, top_logprobs_num=2)
        meta = state.get_meta_info("answer")
        assert meta["cached_tokens"] > 80
        logprob, token_id, _ = meta["output_token_logprobs"][0]
        best = meta["output_top_logprobs"][0]
        assert (len(best), best[0][0] >= logprob) == (2, True)
        assert isinstance(token_id, int)
        assert rg.get_server_info()
        rg.flush_cache()
        with pytest.raises(rg.InvalidRequest, match="read text only"):
            rg.image("cat.png")
    finally:
        rg.set_default_backend(None)


@rg.function
def agent(s: Any) -> None:
    s += rg.system("You are an agent with tools. " * 4)
    for turn in range(8):
        s += rg.user(f"Turn {turn}: the key is {turn * 17}. Answer.")
        s += rg.assistant(rg.gen(f"a{turn}", max_tokens=9 + turn))
        s += rg.user("And as a number?")
        s += rg.assistant(rg.gen(f"n{turn}", regex="-?[0-9]{1,3}", max_tokens=8))


def test_a_server_says_what_the_runtime_says(
    endpoint: RuntimeEndpoint, runtime: rg.Runtime
) -> None:
    here = agent.run(backend=runtime, temperature=0)
    there = agent.run(backend=endpoint, temperature=0)
    assert there.messages() == here.messages()
    assert there.executor.conversation.ids == here.executor.conversation.ids
    metas = [there.get_meta_info(f"a{turn}") for turn in range(8)]
    for before, after in pairwise(metas):
        assert after["cached_tokens"] >= before["prompt_tokens"]

    @rg.function
    def choose(s: Any) -> None:
        s += "The way is " + rg.select("way", ["left", "right", "straight on"])

    pairs = [choose.run(backend=b).get_meta_info("way") for b in (runtime, endpoint)]
    assert pairs[0]["prompt_tokens"] == pairs[1]["prompt_tokens"] > len("The way is ")
    scores = [meta["normalized_prompt_logprobs"] for meta in pairs]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_a_stream_begins_with_what_was_cached(
    runtime: rg.Runtime, endpoint: RuntimeEndpoint
) -> None:
    prompt = "A prompt that is sent twice, to find itself in the cache. " * 2
    rest: Any = {"max_tokens": 3, "seed": 1, "ignore_eos": True}
    runtime.generate(prompt, **rest)
    pieces = list(runtime.generate(prompt, stream=True, n=2, **rest))
    result = pieces[-1].result
    assert result is not None
    said = [(piece.index, piece.cached_tokens) for piece in pieces if piece.cached_tokens]
    assert sorted(said) == [(0, result.usage.cached_tokens), (1, result.usage.cached_tokens)]

    @rg.function
    def twice(s: Any) -> None:
        s += prompt + rg.gen("a", **rest)

    for backend in (runtime, endpoint):
        twice.run(backend=backend)
        state = twice.run(backend=backend, stream=True)
        next(iter(state.text_iter("a")))
        assert state.executor.asked[0].cached_tokens > 64
        assert "cached" in str(state._repr_html_())
        state.sync()


def test_a_constraint_may_keep_the_models_own_law(backend: Any) -> None:
    @rg.function
    def program(s: Any) -> None:
        s += "A digit: " + rg.gen("a", regex="[0-9]", grammar_mass=True, max_tokens=4)
        s += rg.gen("b", regex="[ab]{2}", constrained_law="faithful", max_tokens=8)

    state = program.run(backend=backend, seed=1)
    assert 0 < state.get_meta_info("a")["grammar_mass"] < 1
    assert set(state["b"]) <= {"a", "b"}


def test_cancelling_frees_the_server(endpoint: RuntimeEndpoint) -> None:
    @rg.function
    def endless(s: Any) -> None:
        s += "never ends " + rg.gen("a", max_tokens=1900, ignore_eos=True, seed=1)

    state = endless.run(backend=endpoint, stream=True)
    next(iter(state.text_iter("a")))
    state.cancel()
    with pytest.raises(rg.RequestAborted):
        state.sync()
    with shared_server().client() as client:
        wait_until(lambda: is_idle(client))


def test_the_tokenizer_must_be_the_servers(tmp_path: Path) -> None:
    url = shared_server().url
    endpoint = RuntimeEndpoint(url)  # the server's name of its model is no path here
    try:
        assert endpoint.tokenizer is None
        with pytest.raises(rg.InvalidRequest, match="roles need the chat template"):
            multi_turn.run("a", "b", backend=endpoint)
        assert few_shot.run([], "a?", backend=endpoint, seed=1).error() is None
    finally:
        endpoint.close()
    other = tmp_path / "other"
    write_byte_tokenizer(other)
    file = other / "tokenizer.json"
    made = json.loads(file.read_text("utf-8"))
    vocabulary = made["model"]["vocab"]
    vocabulary["t"], vocabulary["n"] = vocabulary["n"], vocabulary["t"]
    file.write_text(json.dumps(made), "utf-8")
    with pytest.raises(rg.InvalidRequest, match="not the one of the server"):
        RuntimeEndpoint(url, tokenizer=other)


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=99)


def add(one: int, other: int) -> int:
    """The sum of two numbers."""
    return one + other


@rg.function
def conversation(s: Any) -> None:
    s += rg.system("You are brief.") + rg.user("Hello?")
    s += rg.assistant(rg.gen("hello", max_tokens=6))
    s += rg.user("Who?")
    s += rg.assistant(rg.gen("who", max_tokens=60, schema=Person, temperature=0))
    s += rg.user("Add.") + rg.assistant_begin()
    s += rg.call([add], "sum", max_tokens=60, temperature=0) + rg.assistant_end()
    forks = s.fork(2)
    forks += rg.user("And?") + rg.assistant(rg.gen("and", max_tokens=4))
    forks.join()


def apis() -> Iterator[tuple[str, Any]]:
    url = shared_server().url
    pytest.importorskip("openai", reason="the OpenAI SDK is an optional package")
    pytest.importorskip("anthropic", reason="the Anthropic SDK is an optional package")
    yield "OpenAI", rg.OpenAI("tiny", base_url=f"{url}/v1", api_key="x", max_retries=0)
    yield "Anthropic", rg.Anthropic("tiny", base_url=url, api_key="x", max_retries=0)


def test_their_sdks_reach_our_server() -> None:
    for name, backend in apis():
        try:
            state = conversation.run(backend=backend)
            assert isinstance(state["who"], Person), name
            assert state["sum"].result == sum(state["sum"].arguments.values())
            assert len(state["and"]) == 2
            assert state.get_meta_info("who")["prompt_tokens"] > 20
            streamed = conversation.run(backend=backend, stream=True)
            assert "".join(streamed.text_iter("hello")) == streamed["hello"]
        finally:
            backend.close()


def test_a_server_that_is_gone() -> None:
    with pytest.raises(rg.RuntimeUnavailable, match="localhost:9"):
        RuntimeEndpoint("http://localhost:9")
