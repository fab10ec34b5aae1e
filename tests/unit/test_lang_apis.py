"""Other people's APIs as backends: what is sent, read, mapped and refused."""

import json
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal

import httpx2
import pytest
from http_servers import Handler, Server, sse

from radixgen.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    RadixgenError,
)
from radixgen.lang import assistant, function, gen, system, user
from radixgen.lang.backends.anthropic_api import Anthropic
from radixgen.lang.backends.openai_api import LiteLLM, OpenAI

# ---- OpenAI ----


def chunks(text: str, finish: str = "stop", choices: int = 1) -> bytes:
    def chunk(delta: dict[str, Any], index: int, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        return {"id": "1", "object": "chat.completion.chunk", "choices": [choice]}

    pieces = [chunk({"content": letter}, i, None) for i in range(choices) for letter in text]
    ends = [chunk({}, i, finish) for i in range(choices)]
    usage = {"prompt_tokens": 9, "completion_tokens": len(text), "total_tokens": 9}
    return sse(*pieces, *ends, {"choices": [], "usage": usage})


OpenAIs = Callable[[Handler], tuple[OpenAI, Server]]


@pytest.fixture
def openai() -> Iterator[OpenAIs]:
    pytest.importorskip("openai", reason="the OpenAI SDK is an optional package")
    made: list[OpenAI] = []

    def make(handle: Handler) -> tuple[OpenAI, Server]:
        server = Server(handle)
        http = httpx2.AsyncClient(transport=server.transport)
        made.append(OpenAI("some-model", api_key="k", http_client=http, max_retries=0))
        return made[-1], server

    yield make
    for backend in made:
        backend.close()


def test_openai_messages_options_and_schema(openai: OpenAIs) -> None:
    backend, server = openai(lambda path, body: chunks('{"n":3}'))

    @function
    def program(s: Any) -> None:
        s += system("Be brief.") + user("How many?")
        s += assistant(gen("a", max_tokens=9, temperature=0, stop=["x"], schema=dict[str, int]))

    state = program.run(backend=backend)
    assert state["a"] == {"n": 3}
    (body,) = server.bodies("/v1/chat/completions")
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ]
    assert (body["max_completion_tokens"], body["temperature"], body["stop"]) == (9, 0, ["x"])
    assert body["response_format"]["json_schema"]["strict"] is True
    assert state.get_meta_info("a")["prompt_tokens"] == 9
    assert state.messages()[-1] == {"role": "assistant", "content": '{"n":3}'}


def test_openai_regexes_go_as_a_forced_tool(openai: OpenAIs) -> None:
    def handle(path: str, body: Any) -> Any:
        call = {"id": "c", "type": "custom", "custom": {"name": "answer", "input": "42"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return {"id": "1", "object": "chat.completion", "choices": [choice]}

    backend, server = openai(handle)

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", regex="[0-9]+"))

    assert program.run(backend=backend)["a"] == "42"
    (body,) = server.bodies("/v1/chat/completions")
    assert body["tools"][0]["custom"]["format"]["grammar"] == {
        "syntax": "regex",
        "definition": "[0-9]+",
    }
    assert body["tool_choice"]["custom"]["name"] == "answer"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grammar": 'root ::= "x"'}, "gbnf"),
        ({"choices": ["a", "b"]}, "Literal"),
        ({"top_k": 5}, "top_k=5"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"namespace": "me"}, "namespace"),
        ({"stop": list("abcde")}, "4 stop strings"),
        ({"thinking": 100}, "takes no budget of tokens"),
    ],
)
def test_openai_refuses_what_it_cannot_keep(
    openai: OpenAIs, options: dict[str, Any], said: str
) -> None:
    backend, server = openai(lambda path, body: chunks("x"))

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", **options))

    with pytest.raises(InvalidRequest, match=said):
        program.run(backend=backend)
    assert server.requests == []


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_openai_takes_an_effort_and_may_tell_thoughts(openai: OpenAIs, name: str) -> None:
    deltas: list[Any] = [
        {name: "\nso"},
        {name: " what\n"},
        {"content": "\n\nPa"},
        {"content": "ris"},
    ]
    ended: list[Any] = [{"delta": delta, "finish_reason": None} for delta in deltas]
    ended.append({"delta": {}, "finish_reason": "stop"})
    pieces = [{"id": "1", "choices": [{"index": 0, **choice}]} for choice in ended]
    counts: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    counts["completion_tokens_details"] = {"reasoning_tokens": 5}
    backend, server = openai(lambda path, body: sse(*pieces, {"choices": [], "usage": counts}))

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", thinking="low"))

    state = program.run(backend=backend)
    assert server.bodies("/v1/chat/completions")[0]["reasoning_effort"] == "low"
    assert (state["a"], state["a_reasoning_content"]) == ("Paris", "so what")
    assert "".join(state.text_iter("a_reasoning_content")) == "so what"
    assert state.get_meta_info("a")["reasoning_tokens"] == 5
    assert state.messages()[-1]["content"] == "Paris"


def test_openai_gen_outside_of_an_answer_is_refused(openai: OpenAIs) -> None:
    backend, _ = openai(lambda path, body: chunks("x"))

    @function
    def plain(s: Any) -> None:
        s += "text " + gen("a")

    @function
    def begun(s: Any) -> None:
        s += user("?") + assistant("The answer is " + gen("a"))

    for program, said in ((plain, "inside an assistant message"), (begun, "cannot continue")):
        with pytest.raises(InvalidRequest, match=said) as caught:
            program.run(backend=backend)
        assert "gen(" in "".join(caught.value.__notes__)


def test_openai_choices_cuts_and_errors(openai: OpenAIs) -> None:
    answers: Iterator[Any] = iter(
        [
            chunks("ab", choices=2),
            chunks('{"n"', finish="length"),
            chunks("", finish="content_filter"),
            httpx2.Response(401, json={"error": {"message": "bad key"}}),
            httpx2.Response(429, json={"error": {"message": "slow down"}}),
        ]
    )
    backend, _ = openai(lambda path, body: next(answers))

    def run(**options: Any) -> Any:
        @function
        def program(s: Any) -> None:
            s += user("?") + assistant(gen("a", **options))

        return program.run(backend=backend)

    assert run(n=2)["a"] == ["ab", "ab"]
    with pytest.raises(RadixgenError, match="max_tokens=3 before the answer met its constraint"):
        run(schema=dict[str, int], max_tokens=3)
    with pytest.raises(RadixgenError, match="declined"):
        run()
    with pytest.raises(ConfigError, match="bad key"):
        run()
    with pytest.raises(Overloaded, match="slow down"):
        run()


# ---- Anthropic ----


def claude(text: str, stop_reason: str = "end_turn") -> bytes:
    message: Any = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": []}
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 2}
    start = message | {"stop_reason": None, "stop_sequence": None, "usage": usage}
    block = {"type": "text", "text": ""}
    events: list[Any] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": letter},
            }
            for letter in text
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None},
            "usage": {"output_tokens": len(text)},
        },
        {"type": "message_stop"},
    ]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


Claudes = Callable[[Handler], tuple[Anthropic, Server]]


@pytest.fixture
def anthropic() -> Iterator[Claudes]:
    pytest.importorskip("anthropic", reason="the Anthropic SDK is an optional package")
    made: list[Anthropic] = []

    def make(handle: Handler) -> tuple[Anthropic, Server]:
        server = Server(handle)
        http = httpx2.AsyncClient(transport=server.transport)
        made.append(Anthropic("claude", api_key="k", http_client=http, max_retries=0))
        return made[-1], server

    yield make
    for backend in made:
        backend.close()


def test_anthropic_messages_options_and_schema(anthropic: Claudes) -> None:
    backend, server = anthropic(lambda path, body: claude('{"n":3}'))

    @function
    def program(s: Any) -> None:
        s += system("Be brief.") + user("How many?")
        s += assistant(gen("a", max_tokens=9, stop="x", top_k=4, schema=dict[str, int]))

    state = program.run(backend=backend)
    assert state["a"] == {"n": 3}
    (body,) = server.bodies("/v1/messages")
    assert body["system"] == "Be brief."
    assert body["messages"] == [{"role": "user", "content": "How many?"}]
    assert (body["max_tokens"], body["stop_sequences"], body["top_k"]) == (9, ["x"], 4)
    assert body["output_config"]["format"]["type"] == "json_schema"
    meta = state.get_meta_info("a")
    assert (meta["prompt_tokens"], meta["cached_tokens"]) == (7, 2)
    assert meta["finish_reason"] == "stop"


def test_anthropic_takes_a_budget_and_tells_thoughts(anthropic: Claudes) -> None:
    thought = [
        ("content_block_start", {"content_block": {"type": "thinking", "thinking": ""}}),
        ("content_block_delta", {"delta": {"type": "thinking_delta", "thinking": "so"}}),
        ("content_block_delta", {"delta": {"type": "signature_delta", "signature": "x"}}),
        ("content_block_stop", {}),
    ]
    events = [{"type": kind, "index": 0, **fields} for kind, fields in thought]
    told = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
    head, mark, rest = claude('{"n":3}').partition(b"event: content_block_start")
    rest = rest.replace(b'"index": 0', b'"index": 1')
    backend, server = anthropic(lambda path, body: head + told + mark + rest)

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", schema=dict[str, int], thinking=2000))

    state = program.run(backend=backend)
    (body,) = server.bodies("/v1/messages")
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert body["max_tokens"] == 2128
    assert (state["a"], state["a_reasoning_content"]) == ({"n": 3}, "so")
    assert state.get_meta_info("a")["reasoning_content"] == "so"


def test_anthropic_continues_an_answer(anthropic: Claudes) -> None:
    backend, server = anthropic(lambda path, body: claude("Paris"))

    @function
    def program(s: Any) -> None:
        s += user("Capital?") + assistant("It is " + gen("a"))

    state = program.run(backend=backend)
    assert server.bodies("/v1/messages")[0]["messages"][-1]["content"] == "It is "
    assert state.messages()[-1]["content"] == "It is Paris"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regex": "x+"}, "regex"),
        ({"n": 2}, "n=2"),
        ({"seed": 1}, "seed"),
        ({"temperature": 1.5}, "up to 1"),
        ({"choices": ["a", "b"]}, "Literal"),
        ({"thinking": 100}, "1024 tokens or more"),
        ({"thinking": 2000, "max_tokens": 2000}, "less than max_tokens=2000"),
        ({"thinking": "low", "temperature": 0.5}, "temperature 1"),
    ],
)
def test_anthropic_refuses_what_it_cannot_keep(
    anthropic: Claudes, options: dict[str, Any], said: str
) -> None:
    backend, server = anthropic(lambda path, body: claude("x"))

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", **options))

    with pytest.raises(InvalidRequest, match=said):
        program.run(backend=backend)
    assert server.requests == []


def test_anthropic_cut_and_refused(anthropic: Claudes) -> None:
    answers = iter([claude("{", "max_tokens"), claude("", "refusal")])
    backend, _ = anthropic(lambda path, body: next(answers))

    @function
    def program(s: Any) -> None:
        s += user("?") + assistant(gen("a", schema=list[int]))

    with pytest.raises(RadixgenError, match="before the answer met its constraint"):
        program.run(backend=backend)
    with pytest.raises(RadixgenError, match="declined"):
        program.run(backend=backend)


# ---- LiteLLM, and packages that are not there ----


def fake_litellm(keeps_schemas: bool) -> tuple[types.ModuleType, list[Any]]:
    calls: list[Any] = []
    module = types.ModuleType("litellm")

    class Chunk:
        def __init__(self, text: str, finish: str | None = None) -> None:
            delta = types.SimpleNamespace(content=text)
            choice = types.SimpleNamespace(index=0, delta=delta, finish_reason=finish)
            self.choices: Sequence[Any] = [choice]

    async def acompletion(**request: Any) -> AsyncIterator[Chunk]:
        calls.append(request)

        async def stream() -> AsyncIterator[Chunk]:
            yield Chunk('"a"')
            yield Chunk("", "stop")

        return stream()

    module.acompletion = acompletion  # type: ignore[attr-defined]
    module.supports_response_schema = lambda model: keeps_schemas  # type: ignore[attr-defined]
    return module, calls


def test_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    @function
    def program(s: Any, regex: str | None = None) -> None:
        constraint: Any = {"regex": regex} if regex else {"schema": Literal["a", "b"]}
        s += user("?") + assistant(gen("a", **constraint))

    for keeps, said in ((True, None), (False, None), (False, True)):
        module, calls = fake_litellm(keeps)
        monkeypatch.setitem(sys.modules, "litellm", module)
        backend = LiteLLM("x/y", json_schemas=said, api_key="k")
        try:
            if keeps or said:
                assert program.run(backend=backend)["a"] == "a"
                assert calls[0]["drop_params"] is False
                assert calls[0]["api_key"] == "k"
            else:
                with pytest.raises(InvalidRequest, match="json_schemas=True"):
                    program.run(backend=backend)
            with pytest.raises(InvalidRequest, match="cannot keep a regex"):
                program.run(regex="x", backend=backend)
        finally:
            backend.close()


@pytest.mark.parametrize("kind", [OpenAI, Anthropic, LiteLLM])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    package = kind.__name__.lower()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        kind("model")
