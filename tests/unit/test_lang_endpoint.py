"""A server with the native HTTP API as a backend: what is sent, read, mapped and refused."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers import write_byte_tokenizer
from http_servers import Handler, Server, sse
from scripted_backend import wait_until

from radixgen.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    RadixgenError,
    RequestAborted,
    RuntimeUnavailable,
)
from radixgen.lang import assistant, function, gen, select, user
from radixgen.lang.backends.endpoint import RuntimeEndpoint
from radixgen.lang.choices import unconditional_likelihood_normalized

Answer = dict[str, Any]

# ---- a server with the native API, whose tokens are bytes ----


class Native:
    """Says `answer`; the log-probability of a byte is -1, of one in `likely` -0.1."""

    def __init__(self, answer: str, likely: str = "", **info: Any) -> None:
        self.answer, self.likely, self.info = answer, likely.encode(), info

    def __call__(self, path: str, body: Any) -> Any:
        if path == "/model_info":
            return self.info
        if path != "/generate":
            return {"ok": path}
        prompts = body.get("input_ids", body.get("text"))
        many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        if body.get("stream"):
            halves = [self.answer[: len(self.answer) // 2], self.answer]
            return sse(*(self._one(prompts, body, text) for text in halves))
        if body["sampling_params"].get("n", 1) > 1:
            return [self._one(prompts, body, self.answer) for _ in range(2)]
        if many:
            return [self._one(prompt, body, self.answer) for prompt in prompts]
        return self._one(prompts, body, self.answer)

    def _one(self, prompt: Any, body: Any, text: str) -> Answer:
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        text = text if body["sampling_params"]["max_new_tokens"] else ""
        info = {
            "finish_reason": {"type": "stop", "matched": 258},
            "prompt_tokens": len(ids),
            "completion_tokens": len(text),
            "cached_tokens": 3,
        }
        if body.get("return_logprob"):
            scores = [[-0.1 if i in set(self.likely) else -1.0, i, None] for i in ids]
            scores[0][0] = None
            info["input_token_logprobs"] = scores[max(body.get("logprob_start_len", 0), 0) :]
        return {"text": text, "output_ids": [*text.encode(), 258], "meta_info": info}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(path)
    return path


Endpoint = Callable[..., tuple[RuntimeEndpoint, Server]]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made: list[RuntimeEndpoint] = []

    def make(handle: Handler, **options: Any) -> tuple[RuntimeEndpoint, Server]:
        server = Server(handle)
        made.append(RuntimeEndpoint("http://host:1/", transport=server.transport, **options))
        return made[-1], server

    yield make
    for backend in made:
        backend.close()


def test_conversations_go_as_growing_token_ids(endpoint: Endpoint, tokenizer: Path) -> None:
    backend, server = endpoint(Native("fine"), tokenizer=tokenizer)

    @function
    def program(s: Any) -> None:
        s += user("one")
        s += assistant(gen("a", max_tokens=7, temperature=0, stop="!", regex="[a-z]+", top_k=-1))
        s += user("two") + assistant(gen("b", seed=3, namespace="me", priority=2))

    state = program.run(backend=backend)
    assert (state["a"], state["b"]) == ("fine", "fine")
    first, second = server.bodies("/generate")
    assert bytes(first["input_ids"][1:4]) == b"use"
    assert second["input_ids"][: len(first["input_ids"])] == first["input_ids"]
    assert second["input_ids"][len(first["input_ids"]) :][:4] == list(b"fine")
    assert first["sampling_params"] == {
        "max_new_tokens": 7,
        "temperature": 0,
        "stop": ["!"],
        "regex": "[a-z]+",
    }
    assert second["sampling_params"]["sampling_seed"] == 3
    assert (second["extra_key"], second["priority"]) == ("me", 2)
    assert state.get_meta_info("a")["cached_tokens"] == 3


def test_pieces_of_cumulative_text(endpoint: Endpoint) -> None:
    backend, _ = endpoint(Native("abcdef"))

    @function
    def program(s: Any) -> None:
        s += "x" + gen("a")

    state = program.run(backend=backend, stream=True)
    assert list(state.text_iter()) == ["x", "abc", "def"]
    assert list(state.text_iter("a")) == ["abc", "def"]


def test_several_choices(endpoint: Endpoint) -> None:
    backend, _ = endpoint(Native("ab"))

    @function
    def program(s: Any) -> None:
        s += "x" + gen("a", n=2)

    assert program.run(backend=backend)["a"] == ["ab", "ab"]


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_select_by_scores(endpoint: Endpoint, tokenizer: Path, with_tokenizer: bool) -> None:
    options = {"tokenizer": tokenizer} if with_tokenizer else {}
    backend, server = endpoint(Native("", likely="yes"), **options)

    @function
    def program(s: Any) -> None:
        s += "Is it? " + select("a", ["no", "yes", "maybe"]) + "."

    state = program.run(backend=backend)
    assert state["a"] == "yes"
    assert state.text() == "Is it? yes."
    assert state.get_meta_info("a")["normalized_prompt_logprobs"] == pytest.approx(
        [-1.0, -0.1, -(1 + 1 + 0.1 + 1 + 0.1) / 5]
    )
    assert all(
        body["sampling_params"]["max_new_tokens"] == 0 for body in server.bodies("/generate")
    )


def test_unconditional_scores_need_the_tokenizer(endpoint: Endpoint, tokenizer: Path) -> None:
    @function
    def program(s: Any) -> None:
        s += "Q: " + select("a", ["x", "y"], choices_method=unconditional_likelihood_normalized)

    with pytest.raises(InvalidRequest, match="tokenizer=path"):
        program.run(backend=endpoint(Native(""))[0])
    backend, server = endpoint(Native("", likely="y"), tokenizer=tokenizer)
    program.run(backend=backend)
    assert len(server.bodies("/generate")) == 2


def test_a_prompt_that_merges_with_a_choice_is_scored_from_there() -> None:
    from radixgen.lang.backends.endpoint import _beyond

    own = [[-1.0, 10, None], [-1.0, 11, None]]
    apart = [[-1.0, 10, None], [-1.0, 11, None], [-2.0, 12, None]]
    merged = [[-1.0, 10, None], [-3.0, 99, None]]
    assert _beyond(apart, own) == apart[2:]
    assert _beyond(merged, own) == merged[1:]


def test_the_rest_of_the_endpoint(endpoint: Endpoint, tokenizer: Path) -> None:
    backend, server = endpoint(Native("", model_path=str(tokenizer)))
    assert backend.chat is not None  # the server's model is on this machine

    @function
    def program(s: Any) -> None:
        s += "shared"
        forks = s.fork(2)
        forks += gen("x")
        forks.join()

    program.run(backend=backend)
    warmed = server.bodies("/generate")[0]
    assert bytes(warmed["input_ids"]) == b"shared"
    assert warmed["sampling_params"]["max_new_tokens"] == 0
    asyncio.run_coroutine_threadsafe(backend.flush_cache(), backend.loop).result()
    info = asyncio.run_coroutine_threadsafe(backend.server_info(), backend.loop).result()
    assert info == {"ok": "/server_info"}
    assert server.requests[-2][0] == "/flush_cache"


def test_what_the_native_api_cannot_keep_is_refused(endpoint: Endpoint) -> None:
    backend, server = endpoint(Native("x"))

    @function
    def lark(s: Any) -> None:
        s += gen("a", grammar='start: "x"')

    @function
    def roles(s: Any) -> None:
        s += user("hi") + assistant(gen("a"))

    @function
    def bad_regex(s: Any) -> None:
        s += gen("a", regex="(")

    @function
    def thinking(s: Any) -> None:
        s += gen("a", thinking=20)

    for program, said in (
        (lark, "lark"),
        (roles, "chat template"),
        (bad_regex, "regular"),
        (thinking, "has no thoughts before a constraint"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            program.run(backend=backend)
    assert server.bodies("/generate") == []


def test_hints_go_to_servers_that_listen(endpoint: Endpoint, tokenizer: Path) -> None:
    @function
    def program(s: Any) -> None:
        s += "Once upon a time, " * 10
        forks = s.fork(2)
        forks += gen("a")
        forks.join()

    def hints(**info: Any) -> list[Any]:
        backend, server = endpoint(Native("x", **info), tokenizer=tokenizer)
        program.run(backend=backend)
        return [body.get("hint") for body in server.bodies("/generate")]

    warm, *asked = hints(features=["hint"])
    assert warm == {"program": "program", "forks": 2}
    assert [hint["program"] for hint in asked] == ["program"] * 2
    assert hints() == [None] * 3


def refusing(status: int, **headers: str) -> Handler:
    def handle(path: str, body: Any) -> Any:
        if path == "/model_info":
            return {}
        said = {"error": {"message": "because"}}
        return httpx2.Response(status, json=said, headers=headers)

    return handle


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, ConfigError),
        (429, Overloaded),
        (500, RuntimeUnavailable),
        (503, RuntimeUnavailable),
    ],
)
def test_statuses_become_our_errors(endpoint: Endpoint, status: int, kind: type) -> None:
    backend, _ = endpoint(refusing(status, **{"retry-after": "7"}))

    @function
    def program(s: Any) -> None:
        s += gen("a")

    with pytest.raises(kind, match="because") as caught:
        program.run(backend=backend)
    assert 's += gen("a")' in "".join(caught.value.__notes__)
    if isinstance(caught.value, Overloaded):
        assert caught.value.retry_after == 7


def test_nobody_there_and_broken_answers() -> None:
    def unreachable(path: str, body: Any) -> Any:
        raise httpx2.ConnectError("no route")

    with pytest.raises(RuntimeUnavailable, match="no route"):
        RuntimeEndpoint("http://host", transport=Server(unreachable).transport)
    with pytest.raises(InvalidRequest, match="chat_template_name"):
        RuntimeEndpoint("http://host", chat_template_name="chatml")


def test_an_error_in_a_stream(endpoint: Endpoint) -> None:
    def handle(path: str, body: Any) -> Any:
        return {} if path == "/model_info" else sse({"error": {"message": "out of pages"}})

    backend, _ = endpoint(handle)

    @function
    def program(s: Any) -> None:
        s += gen("a")

    with pytest.raises(RadixgenError, match="out of pages"):
        program.run(backend=backend)


class Endless(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield sse({"text": "", "meta_info": {}}, done=False)


def test_cancelling_aborts_at_the_server(endpoint: Endpoint) -> None:
    def handle(path: str, body: Any) -> Any:
        if path == "/generate":
            return httpx2.Response(200, stream=Endless())
        return {}

    backend, server = endpoint(handle)

    @function
    def program(s: Any) -> None:
        s += gen("a")

    state = program.run(backend=backend, stream=True)
    wait_until(lambda: bool(server.bodies("/generate")))
    state.cancel()
    with pytest.raises(RequestAborted):
        state.sync()
    wait_until(lambda: bool(server.bodies("/abort_request")))
    assert server.bodies("/abort_request")[0]["rid"] == server.bodies("/generate")[0]["rid"]
