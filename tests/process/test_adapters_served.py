"""LoRA adapters by name: from Python, from programs and over HTTP, against one tiny model."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx2
import pytest
from helpers import write_adapter, write_tiny_model
from live_server import LiveServer

import radixgen as rg
from radixgen import Runtime
from radixgen.errors import InvalidRequest

PROMPT = "A prompt of some tokens that both share."
GREEDY: Any = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    model = write_tiny_model(folder / "tiny")
    for seed, name in enumerate(("red", "blue")):
        write_adapter(folder / name, model, ["q_proj", "o_proj", "down_proj"], seed=seed)
    return model


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[Runtime]:
    adapters = {name: model.parent / name for name in ("red", "blue")}
    with Runtime(model, adapters=adapters, num_pages=400, threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def http(model: Path) -> Iterator[httpx2.Client]:
    named = " ".join(f"{name}={model.parent / name}" for name in ("red", "blue"))
    server = LiveServer(model, "--set", "num_pages=400", RADIXGEN_ADAPTERS=named)
    with server.client() as client:
        yield client
    server.kill()


@pytest.fixture(scope="module")
def texts(runtime: Runtime) -> dict[str, str]:
    """What the model and each adapter write."""
    names = ("", "red", "blue")
    made = {name: runtime.generate(PROMPT, lora=name, **GREEDY).text for name in names}
    assert len(set(made.values())) == 3
    return made


def test_a_request_names_its_adapter(runtime: Runtime, texts: dict[str, str]) -> None:
    assert runtime.generate(PROMPT, **GREEDY).text == texts[""]
    scores = {
        name: runtime.score(PROMPT, ["yes", "no"], lora=name).totals for name in ("", "red", "blue")
    }
    assert len(set(scores.values())) == 3
    for call in (
        lambda: runtime.generate(PROMPT, lora="green"),
        lambda: runtime.score(PROMPT, ["yes"], lora="green"),
    ):
        with pytest.raises(InvalidRequest, match="'blue', 'red'") as caught:
            call()
        assert caught.value.param == "lora"


@rg.function
def program(s: Any) -> None:
    s += PROMPT
    plain, red = s.fork(2)
    plain += rg.gen("text", **GREEDY)
    red += rg.gen("text", lora="red", **GREEDY)
    s["texts"] = [plain["text"], red["text"]]
    s += rg.gen("choice", choices=["yes", "no"], lora="blue")


def test_a_program_names_adapters(runtime: Runtime, texts: dict[str, str]) -> None:
    state = program.run(backend=runtime)
    assert state["texts"] == [texts[""], texts["red"]]
    as_a_whole = program.run(backend=runtime, lora="blue")
    assert as_a_whole["texts"] == [texts["blue"], texts["red"]]
    scores = runtime.score(PROMPT, ["yes", "no"], lora="blue")
    found = state.get_meta_info("choice")["normalized_prompt_logprobs"]
    assert found == pytest.approx([fmean(row) for row in scores.logprobs])
    with pytest.raises(InvalidRequest, match="'blue', 'red'"):
        program.run(backend=runtime, lora="green")


def test_http_names_an_adapter_as_a_model(http: httpx2.Client, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        body = {"model": name or "tiny", "prompt": PROMPT, **GREEDY}
        answer = http.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == text
        assert answer["model"] == (name or "tiny")
        params = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
        said = {"text": PROMPT, "sampling_params": params} | ({"lora_path": name} if name else {})
        assert http.post("/generate", json=said).json()["text"] == text
    listed = http.get("/v1/models").json()["data"]
    assert [(card["id"], card.get("parent")) for card in listed] == [
        ("tiny", None),
        ("red", "tiny"),
        ("blue", "tiny"),
    ]
    unknown = http.post("/v1/completions", json={"model": "green", "prompt": PROMPT})
    assert unknown.status_code == 404
    assert "'red'" in unknown.json()["error"]["message"]
    refused = http.post("/generate", json={"text": PROMPT, "lora_path": "green"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "lora_path"
    gone = http.post("/v1/load_lora_adapter", json={})
    assert gone.status_code == 400


def test_every_route_takes_the_adapter(http: httpx2.Client, runtime: Runtime) -> None:
    turns = [{"role": "user", "content": "Who are you?"}]
    question = {"type": "predicate", "instructions": "Is it wet?"}
    chances = set()
    for name in ("", "red", "blue"):
        said = {"model": name or "tiny", "temperature": 0}
        text = runtime.chat(turns, lora=name, temperature=0.0, max_tokens=9).text
        chat = post(http, "chat/completions", said | {"messages": turns, "max_tokens": 9})
        assert chat["choices"][0]["message"]["content"] == text
        message = post(http, "messages", said | {"messages": turns, "max_tokens": 9})
        assert "".join(part["text"] for part in message["content"]) == text
        response = post(http, "responses", said | {"input": turns, "max_output_tokens": 9})
        assert response["output"][0]["content"][0]["text"] == text
        asked = {"model": name or "tiny", "input": "It rains.", "questions": [question]}
        chances.add(post(http, "decisions", asked)["answers"][0]["probability"])
    assert len(chances) == 3


def post(http: httpx2.Client, route: str, body: Any) -> Any:
    answer = http.post(f"/v1/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_program_on_a_server_names_an_adapter(
    http: httpx2.Client, model: Path, texts: dict[str, str]
) -> None:
    backend = rg.RuntimeEndpoint(str(http.base_url), tokenizer=str(model))
    try:
        assert program.run(backend=backend)["texts"] == [texts[""], texts["red"]]
    finally:
        backend.close()
