"""`radixgen run-batch`: the format, what is refused, and going on after a kill."""

import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import radixgen
from live_server import tiny_model

from radixgen.cli import run_batch
from radixgen.cli.batch_file import Answers, Line, LineError, parse
from radixgen.errors import InvalidRequest

PATH = "/v1/completions"


def request(custom_id: str, url: str = PATH, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny"} | body}


def write(path: Path, requests: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in requests), "utf-8")
    return str(path)


def records(path: Path) -> dict[str, Any]:
    lines = path.read_text("utf-8").splitlines()
    read = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    found = {record["custom_id"]: record for record in read}
    assert len(found) == len(lines), "a request is answered twice"
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers for the Api of its class."""

    protocol_version = "HTTP/1.1"
    api: "Api"

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        prompt = json.loads(self.rfile.read(size))["prompt"]
        status = self.api.answer(prompt)
        usage = {"prompt_tokens": 4, "completion_tokens": 2}
        good = {"usage": usage, "echo": prompt} | self.api.more
        bad = {"error": {"message": "no"}}
        data = json.dumps(good if status == 200 else bad).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-request-id", f"id-{prompt}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


class Api:
    """A server that echoes prompts and counts them. `plan`: prompt -> statuses before success."""

    def __init__(self) -> None:
        self.plan: dict[str, list[int]] = {}
        self.seen: Counter[str] = Counter()
        self.more: dict[str, Any] = {}  # fields of every answer
        self.gate = threading.Semaphore(10**6)  # answers that may leave
        handler = type("ApiHandler", (Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, prompt: str) -> int:
        """The status for a prompt, once the gate lets it pass."""
        self.gate.acquire()
        self.seen[prompt] += 1
        return self.plan[prompt].pop(0) if self.plan.get(prompt) else 200


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(run_batch, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(run_batch, "MAX_PAUSE", 0.001)
    api = Api()
    yield api
    api.gate.release(10**6)
    api.server.shutdown()
    api.server.server_close()
    api.thread.join(60)


def batch(given: str, output: Path, *args: str, **more: Any) -> Any:
    return radixgen("run-batch", "-i", given, "-o", str(output), *args, **more)


def test_answers_and_errors_are_in_the_format(api: Api, tmp_path: Path) -> None:
    api.plan = {"refused": [400], "busy": [429, 503]}
    given = write(
        tmp_path / "in.jsonl",
        [
            *(request(name, prompt=name) for name in ("good", "ünï", "refused", "busy")),
            request("embed", "/v1/embeddings", prompt="x"),
            request("stream", prompt="x", stream=True),
            request("get", prompt="x") | {"method": "GET"},
            {"custom_id": "empty", "method": "POST", "url": PATH},
        ],
    )
    done = batch(given, tmp_path / "out.jsonl", "--url", api.url)
    assert done.status == 1
    assert "8 requests: 3 answered, 5 failed; 12 prompt tokens" in done.said
    found = records(tmp_path / "out.jsonl")
    good = found["good"]
    assert good["id"].startswith("batch_req_")
    assert good["error"] is None
    assert (good["response"]["status_code"], good["response"]["request_id"]) == (200, "id-good")
    assert good["response"]["body"]["echo"] == "good"
    assert found["ünï"]["response"]["body"]["echo"] == "ünï"
    assert found["busy"]["response"]["status_code"] == 200
    refused = found["refused"]
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["message"] == "no"
    codes = {name: found[name]["error"]["code"] for name in ("embed", "stream", "get", "empty")}
    assert codes == {
        "embed": "invalid_url",
        "stream": "invalid_body",
        "get": "invalid_method",
        "empty": "invalid_body",
    }
    assert all(found[name]["response"] is None for name in codes)
    assert api.seen == {"good": 1, "ünï": 1, "refused": 1, "busy": 3}


ODD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a\ud800": ({}, "invalid_custom_id", "custom_id 'a\\ud800': a lone surrogate"),
    "half": ({"prompt": "x\ud800"}, "invalid_body", "x': a lone surrogate"),
    "nan": ({"temperature": math.nan}, "invalid_body", "NaN or Infinity"),
    "huge": ({"temperature": -math.inf}, "invalid_body", "NaN or Infinity"),
}


def check_odd(path: Path) -> None:
    """The file is JSON in UTF-8, with the error of each of ODD beside one good answer."""
    found = records(path)
    assert set(found) == {"good", *ODD}
    assert found["good"]["response"]["status_code"] == 200
    for name, (_, code, said) in ODD.items():
        assert found[name]["response"] is None
        assert found[name]["error"]["code"] == code
        assert said in found[name]["error"]["message"]


def test_an_odd_line_is_an_error_of_its_own(api: Api, tmp_path: Path) -> None:
    requests = [request(name, **{"prompt": name, **body}) for name, (body, *_) in ODD.items()]
    given = write(tmp_path / "in.jsonl", [*requests, request("good", prompt="good")])
    output = tmp_path / "out.jsonl"
    for more, said in (
        ((), "1 answered, 4 failed"),
        ((), "0 answered, 4 failed, 5 were in the output already"),
        (("--retry-failed",), "0 answered, 4 failed, 1 were in the output already"),
    ):
        done = batch(given, output, "--url", api.url, *more)
        assert done.status == 1, done.err
        assert said in done.said
        check_odd(output)
    assert api.seen == {"good": 1}


def test_a_line_too_deep_where_it_is_sent_is_an_error_of_its_own() -> None:
    """It may have been read before, where less of the stack was in use."""
    raw = b'{"custom_id": "a", "body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(LineError, match="the request is nested too deeply"):
        parse(Line(1, "a", raw))


def test_an_odd_answer_is_written_as_json(api: Api, tmp_path: Path) -> None:
    api.more = {"half": "\ud800", "nan": math.nan, "huge": math.inf, "half a number": 0.5}
    given = write(tmp_path / "in.jsonl", [request("a", prompt="a")])
    done = batch(given, tmp_path / "out.jsonl", "--url", api.url)
    assert done.status == 0, done.err
    body = records(tmp_path / "out.jsonl")["a"]["response"]["body"]
    assert {name: body[name] for name in api.more} == {
        "half": "\ud800",
        "nan": None,
        "huge": None,
        "half a number": 0.5,
    }


def test_a_request_that_is_forbidden_fails_alone(api: Api, tmp_path: Path) -> None:
    api.plan = {"b": [403]}
    given = write(tmp_path / "in.jsonl", [request(name, prompt=name) for name in "abc"])
    output = tmp_path / "out.jsonl"
    done = batch(given, output, "--url", api.url, "-c", "1")
    assert done.status == 1
    assert "2 answered, 1 failed" in done.said
    statuses = {n: record["response"]["status_code"] for n, record in records(output).items()}
    assert statuses == {"a": 200, "b": 403, "c": 200}


def test_a_wrong_key_ends_the_run_and_is_no_answer(api: Api, tmp_path: Path) -> None:
    api.plan = {"b": [401]}
    given = write(tmp_path / "in.jsonl", [request(name, prompt=name) for name in "abc"])
    output = tmp_path / "out.jsonl"
    done = batch(given, output, "--url", api.url, "-c", "1")
    assert done.status == 2
    assert "the server lets nobody in with this key: no" in done.said
    assert "1 answered, 0 failed" in done.said
    assert "The same command goes on from here" in done.said
    assert set(records(output)) == {"a"}
    done = batch(given, output, "--url", api.url)
    assert done.status == 0, done.err
    assert set(records(output)) == {"a", "b", "c"}
    assert api.seen == {"a": 1, "b": 2, "c": 1}


def test_failures_are_tried_again_if_asked_for(api: Api, tmp_path: Path) -> None:
    api.plan = {"b": [400]}
    given = write(tmp_path / "in.jsonl", [request(name, prompt=name) for name in "abc"])
    output = tmp_path / "out.jsonl"
    assert batch(given, output, "--url", api.url).status == 1
    assert batch(given, output, "--url", api.url).status == 1, "a failure is an answer"
    assert api.seen == {"a": 1, "b": 1, "c": 1}
    done = batch(given, output, "--url", api.url, "--retry-failed")
    assert done.status == 0
    assert api.seen == {"a": 1, "b": 2, "c": 1}
    assert all(record["response"]["status_code"] == 200 for record in records(output).values())


def test_a_killed_run_is_continued_without_repeating(api: Api, tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(20)]
    given = write(tmp_path / "in.jsonl", [request(name, prompt=name) for name in names])
    output = tmp_path / "out.jsonl"
    api.gate = threading.Semaphore(7)
    command = [sys.executable, "-P", "-m", "radixgen", "run-batch", "-i", given, "-o", str(output)]
    process = subprocess.Popen([*command, "--url", api.url, "-c", "2"])
    end = time.monotonic() + 120
    while not output.exists() or output.read_bytes().count(b"\n") < 7:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait(60)
    written = set(records(output))
    assert len(written) == 7
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_1", "custom_id": "p19", "resp')  # as a kill may leave it
    before = Counter(api.seen)
    api.gate.release(10**6)
    done = batch(given, output, "--url", api.url)
    assert done.status == 0, done.err
    assert "20 requests: 13 answered, 0 failed, 7 were in the output already" in done.said
    assert set(records(output)) == set(names)
    assert not written & set(api.seen - before), "an answered request was asked again"


def test_nobody_there_is_no_answer(tmp_path: Path, api: Api) -> None:
    given = write(tmp_path / "in.jsonl", [request("a", prompt="a")])
    done = batch(given, tmp_path / "out.jsonl", "--url", "127.0.0.1:1")
    assert done.status == 1
    assert "no server answers at http://127.0.0.1:1" in done.said
    assert "The same command goes on from here" in done.said
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_runtime_of_its_own(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    given = "".join(
        json.dumps(one) + "\n"
        for one in (
            request("a", prompt="Hello", max_tokens=4),
            request("b", "/v1/chat/completions", **chat),
            request("c", "/v1/responses", input="Hi", max_output_tokens=4),
            request("half", prompt="x\ud800"),
            request("nan", prompt="x", temperature=math.nan),
        )
    )
    output = tmp_path / "out.jsonl"
    settings = ("--set", "num_pages=500", "--set", "threads=1")
    done = batch("-", output, "--model", str(tiny_model()), *settings, stdin=given)
    assert done.status == 1, done.err
    found = records(output)
    assert all(found.pop(odd)["error"]["code"] == "invalid_body" for odd in ("half", "nan"))
    bodies = {name: record["response"]["body"] for name, record in found.items()}
    assert {name: body["object"] for name, body in bodies.items()} == {
        "a": "text_completion",
        "b": "chat.completion",
        "c": "response",
    }
    assert "5 requests: 3 answered, 2 failed;" in done.said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no request"),
        ("\n\n", "holds no request"),
        ('{"custom_id": "a"}\nnonsense\n', "line 2: is no JSON"),
        ('{"custom_id": 7}', "line 1: custom_id is missing, or is no text"),
        ("[]", "line 1: is no JSON object"),
        ('{"custom_id": "a"}\n{"custom_id": "a"}', "custom_id 'a' is that of line 1 too"),
        ("[" * 5000, "line 1: is "),
        ("7\n" * 9, "… and 4 more"),
    ],
)
def test_a_file_that_is_no_batch(text: str, said: str, tmp_path: Path) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(text)
    done = batch(str(given), tmp_path / "out.jsonl")
    assert done.status == 2
    assert said in done.said
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-i", "no_such.jsonl"), "there is no file no_such.jsonl"),
        (("-c", "0"), "--concurrency 0 must be at least 1"),
        (("--url", "x", "--model", "y"), "leave out --model"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], said: str, tmp_path: Path) -> None:
    given = write(tmp_path / "in.jsonl", [request("a")])
    done = batch(given, tmp_path / "out.jsonl", *args)
    assert done.status == 2
    assert said in done.said


def test_the_output_is_not_something_else(tmp_path: Path) -> None:
    given = write(tmp_path / "in.jsonl", [request("a"), request("b")])
    assert "line 1 is no answer" in batch(given, Path(given)).said
    other = tmp_path / "other.jsonl"
    other.write_text('{"custom_id": "z", "response": null}\n')
    assert "line 1 answers 'z', which is not asked" in batch(given, other).said
    other.write_text('{"custom_id": "a", "respo\n{"custom_id": "b", "response": null}\n')
    assert "line 1 is no JSON" in batch(given, other).said


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Answers(path, {"a"}), pytest.raises(InvalidRequest, match="another run is writing"):
        Answers(path, {"a"})
