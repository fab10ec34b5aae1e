"""SGLang's routes and the server's own, against a live server on a tiny random model."""

import asyncio
import json
import re
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from live_server import CONTEXT, NUM_PAGES, is_idle, shared_server, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with shared_server().client() as client:
        yield client


def generate(http: httpx2.Client, **body: Any) -> Any:
    answer = http.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(answer: httpx2.Response) -> list[Any]:
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ---- /generate ----


def test_one_prompt_gives_one_answer(http: httpx2.Client) -> None:
    answer = generate(http, text="hello" * 9, sampling_params=GREEDY)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["prompt_tokens"] == 45
    again = generate(http, input_ids=list(b"hello" * 9), sampling_params=GREEDY, rid="mine")
    assert again["text"] == answer["text"]
    assert again["meta_info"]["id"] == "mine"
    assert again["meta_info"]["cached_tokens"] >= 32


def test_lists_and_choices_give_lists(http: httpx2.Client) -> None:
    one = generate(http, text="hello", sampling_params=GREEDY)
    many = generate(http, text=["hello", "world"], sampling_params=GREEDY)
    assert many[0]["text"] == one["text"]
    choices = generate(http, text=["a", "b"], sampling_params={"max_new_tokens": 3, "n": 2})
    assert len(choices) == 4


def test_a_stream_grows_to_the_answer(http: httpx2.Client) -> None:
    whole = generate(http, text="hello", sampling_params=GREEDY)
    body = {"text": "hello", "sampling_params": GREEDY, "stream": True}
    chunks = events(http.post("/generate", json=body))
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert chunks[-1]["text"] == whole["text"]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])


def test_log_probabilities_of_prompt_and_output(http: httpx2.Client) -> None:
    answer = generate(
        http,
        text="hello",
        sampling_params=GREEDY,
        return_logprob=True,
        logprob_start_len=2,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )
    meta = answer["meta_info"]
    assert [row[2] for row in meta["input_token_logprobs"]] == ["l", "l", "o"]
    assert [row[1] for row in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])
    whole = generate(
        http, text="hello", sampling_params=GREEDY, return_logprob=True, logprob_start_len=0
    )
    assert whole["meta_info"]["input_token_logprobs"][0] == [None, ord("h"), None]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("regex", [r"[0-9]{3}-[a-f]{2}", r"(yes|no)!", r"\d+\.\d{2}"])
def test_a_regex_is_kept(http: httpx2.Client, regex: str, n: int) -> None:
    params = {"regex": regex, "max_new_tokens": 20, "n": n, "temperature": 1.2}
    answer = generate(http, text="x", sampling_params=params)
    for item in [answer] if n == 1 else answer:
        assert re.fullmatch(regex, item["text"])


def test_schemas_and_grammars_are_kept(http: httpx2.Client) -> None:
    schema = json.dumps(
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    )
    answer = generate(http, text="x", sampling_params={"json_schema": schema})
    assert json.loads(answer["text"])["a"] in (True, False)
    anything = generate(http, text="x", sampling_params={"json_schema": "$$ANY$$"})
    json.loads(anything["text"])
    answer = generate(http, text="x", sampling_params={"ebnf": 'root ::= "cat" | "dog"'})
    assert answer["text"] in ("cat", "dog")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"input_ids": [[1], []]}, "text"),
        ({"input_ids": [4000]}, "prompt"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}}, "ebnf"),
        ({"text": "a", "sampling_params": {"json_schema": "{"}}, "json_schema"),
        ({"text": "a", "sampling_params": {"regex": "(?=a)b"}}, "regex"),
        (
            {"text": "a", "sampling_params": {"regex": "a{100}", "max_new_tokens": 5}},
            "max_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"stop_regex": "a"}}, "sampling_params.stop_regex"),
        ({"text": "a", "top_logprobs_num": 3}, "return_logprob"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
    ],
)
def test_faults_of_generate(http: httpx2.Client, body: Any, param: str) -> None:
    answer = http.post("/generate", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


# ---- control ----


def test_abort_by_name_and_of_all(http: httpx2.Client) -> None:
    params = {"max_new_tokens": CONTEXT - 100, "ignore_eos": True}

    def long(rid: str) -> Any:
        return generate(http, text="long", sampling_params=params, rid=rid)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(long, f"long-{i}") for i in range(3)]
        wait_until(lambda: http.get("/server_info").json()["open_prompts"] == 3)
        assert http.post("/abort_request", json={"rid": "long-1"}).json() == {"success": True}
        meta = waiting[1].result(60)["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        http.post("/abort_request", json={"abort_all": True})
        for future in waiting:
            assert future.result(60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert http.post("/abort_request", json={"rid": "gone"}).json() == {"success": False}
    wait_until(lambda: is_idle(http))


def test_a_flush_forgets(http: httpx2.Client) -> None:
    text = "a prefix that is long enough to be kept"
    generate(http, text=text, sampling_params=GREEDY)
    assert generate(http, text=text, sampling_params=GREEDY)["meta_info"]["cached_tokens"] > 0
    assert http.post("/flush_cache").status_code == 200
    assert generate(http, text=text, sampling_params=GREEDY)["meta_info"]["cached_tokens"] == 0


def test_what_the_server_says_of_itself(http: httpx2.Client) -> None:
    for path in ("/health", "/ping", "/ready", "/health_generate"):
        assert http.get(path).status_code == 200
        assert http.head(path).status_code == 200
    for path in ("/get_model_info", "/model_info"):
        assert http.get(path).json()["model_path"] == "tiny"
    for path in ("/get_server_info", "/server_info"):
        info = http.get(path).json()
        assert info["max_context"] == CONTEXT
        assert info["max_total_num_tokens"] == NUM_PAGES * info["page_size"]
    assert http.get("/version").json()["version"]


def test_tokens_of_a_text_and_back(http: httpx2.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "héllo"}).json()
    assert answer["tokens"] == list("héllo".encode())
    assert answer["count"] == 6
    back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back["text"] == "héllo"
    assert http.post("/detokenize", json={"tokens": [1 << 40]}).status_code == 400


def test_metrics_count(http: httpx2.Client) -> None:
    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", http.get("/metrics").text, re.M)
        assert found, name
        return float(found[1])

    names = ("radixgen:generation_tokens_total", "radixgen:e2e_request_latency_seconds_count",
             'radixgen:http_requests_total{path="/generate",status="200"}',
             'radixgen:http_requests_total{path="/v1/models/{name:path}",status="404"}',
             'radixgen:http_requests_total{path="other",status="404"}')  # fmt: skip

    def ask() -> list[float]:
        generate(http, text="hello", sampling_params=GREEDY)
        assert http.get("/v1/models/none").status_code == 404
        assert http.get("/no/such/route").status_code == 404
        return [value(name) for name in names]

    before, after = ask(), ask()
    assert [b - a for a, b in zip(before, after, strict=True)] == [8, 1, 1, 1, 1]
    wait_until(lambda: value("radixgen:runtime_up") == 1)
    assert value("radixgen:runtime_total_pages") == NUM_PAGES


def test_every_kind_of_work_is_counted(http: httpx2.Client) -> None:
    generate(http, text="x", sampling_params={"regex": "seen (once|twice)"})
    generate(http, text="x", sampling_params={"regex": "seen (once|twice)"})

    def values() -> dict[str, float]:
        rows = re.findall(r"^radixgen:runtime_(\w+) (\S+)$", http.get("/metrics").text, re.M)
        return {name: float(value) for name, value in rows}

    wait_until(lambda: values()["cached_grammars_total"] >= 1)
    found = values()
    assert found["compiled_grammars_total"] >= 1
    assert found["grammar_compile_seconds_total"] > 0
    for name in ("running_sequences", "waiting_requests", "waiting_grammars", "hit_rate",
                 "evicted_pages_total", "preemptions_total", "verified_drafts_total",
                 "accepted_drafts_total"):  # fmt: skip
        assert found[name] >= 0


def test_the_schema_and_its_page(http: httpx2.Client) -> None:
    schema = http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/generate"} <= schema["paths"].keys()
    body = schema["components"]["schemas"]["ChatRequest"]
    assert "response_format" in body["properties"]
    assert body["additionalProperties"] is False
    page = http.get("/docs").text
    assert "/v1/chat/completions" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


# ---- what is no request ----


def test_bodies_that_are_none(http: httpx2.Client) -> None:
    def post(content: bytes, kind: str = "application/json") -> httpx2.Response:
        return http.post("/v1/completions", content=content, headers={"content-type": kind})

    deep = (
        b'{"model":"tiny","prompt":"x","json_schema":' + b'{"not":' * 50_000 + b"1" + b"}" * 50_001
    )
    for content in (b"{", b"[]", b'"x"', b"\xff\xfe", b"", b"null", b'{"model": NaN}', deep):
        answer = post(content)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert post(b"model=tiny", "application/x-www-form-urlencoded").status_code == 415
    assert post(b"{}", "text/plain").status_code == 415
    large = http.post("/v1/completions", json={"model": "tiny", "prompt": "x" * (17 << 20)})
    assert large.status_code == 413
    assert http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert http.get("/v1/completions").status_code == 405
    assert http.options("/generate").headers["allow"] == "POST, PUT"
    assert http.post("/health").headers["allow"] == "GET, HEAD"
    assert http.post("/v1/completions/", json={}).status_code == 404  # and no redirect


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return schema


@pytest.mark.parametrize(
    ("spelling", "status"),
    [
        ({"guided_json": nested(20)}, 200),
        ({"guided_json": nested(400)}, 400),
        ({"guided_json": {"$ref": "#"}}, 400),
        ({"guided_regex": "(" * 3000 + "a" + ")" * 3000}, 400),
        ({"guided_regex": "(a|aa)+$"}, 200),
        ({"guided_regex": "(a+)+b"}, 200),
        ({"ebnf": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000}, 400),
    ],
)
def test_hostile_constraints_are_kept_or_refused(
    http: httpx2.Client, spelling: dict[str, Any], status: int
) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 60, **spelling}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"] == next(iter(spelling))


def test_a_thousand_streams_are_open_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = shared_server().url.removeprefix("http://").split(":")

    async def one(number: int) -> bytes:
        body = json.dumps({"model": "tiny", "prompt": f"{number % 50}", "max_tokens": 3,
                           "temperature": 0, "ignore_eos": True, "stream": True})  # fmt: skip
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        writer.write((head + body).encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def everyone() -> list[bytes]:
        return list(await asyncio.gather(*map(one, range(1000))))

    answers = asyncio.run(everyone())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def text(answer: bytes) -> str:
        chunks = map(json.loads, re.findall(rb"data: (\{.*\})\n", answer))
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    assert all(answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer for answer in answers)
    assert all(text(answers[i]) == text(answers[i % 50]) for i in range(1000))


def test_a_body_in_pieces_that_is_too_large(http: httpx2.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"model": "tiny", "prompt": "'
        for _ in range(18):
            yield b"x" * (1 << 20)
        yield b'"}'

    answer = http.post(
        "/v1/completions", content=pieces(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_a_request_keeps_its_id(http: httpx2.Client) -> None:
    answer = http.get("/health", headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    made = http.get("/health", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made)
    wait_until(lambda: any('"request_id": "abc-1"' in line for line in shared_server().lines))


def test_pages_of_other_sites_may_not_ask(http: httpx2.Client) -> None:
    headers = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    answer = http.post("/flush_cache", headers=headers)
    assert answer.status_code == 403
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_flood_of_headers_is_cut_off(http: httpx2.Client) -> None:
    try:
        answer = http.get("/health", headers={f"x-{i}": "y" * 1000 for i in range(1000)})
    except httpx2.HTTPError:  # the connection was closed in our face
        return
    assert answer.status_code >= 400


# ---- how a constraint draws ----


@pytest.mark.parametrize("law", ["masked", "faithful"])
def test_the_mass_of_a_constraint_is_told_on_every_route(http: httpx2.Client, law: str) -> None:
    params = {"regex": "[ab]c", "constrained_law": law, "grammar_mass": True}
    native = generate(http, text="hello", sampling_params=params | {"sampling_seed": 1})
    assert re.fullmatch("[ab]c", native["text"])
    bodies: dict[str, Any] = {
        "/v1/completions": {"prompt": "hello"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    }
    masses = [native["meta_info"]["grammar_mass"]]
    for path, body in bodies.items():
        answer = http.post(path, json=body | params | {"model": "tiny", "seed": 1})
        assert answer.status_code == 200, answer.text
        masses.append(answer.json()["choices"][0]["grammar_mass"])
    assert all(0 < mass < 0.1 for mass in masses)  # two or one of some 260 tokens, again and again
    assert masses[0] == masses[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar_mass": True, "stream": True}, "grammar_mass"),
        ({"constrained_law": "faithful"}, "constrained_law"),
        ({"constrained_law": "faithful", "regex": "a|b", "top_p": 0.5}, "constrained_law"),
        ({"constrained_law": "honest", "regex": "a|b"}, "constrained_law"),
    ],
)
def test_faults_of_laws_are_named(http: httpx2.Client, fields: Any, param: str) -> None:
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "a"} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
