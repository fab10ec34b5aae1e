"""What a server lives through: clients that leave, storms of aborts, a killed runtime, signals."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from live_server import CONTEXT, LiveServer, is_idle, tiny_model, wait_until

LONG: dict[str, Any] = {
    "model": "tiny",
    "prompt": "x",
    "max_tokens": CONTEXT - 100,  # for longer than any test waits
    "ignore_eos": True,
    "temperature": 0,
}
SHORT: dict[str, Any] = {"model": "tiny", "prompt": "y", "max_tokens": 4}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer(tiny_model(), "--set", "num_pages=4000", "--max-open", "64",
                        "--drain-timeout", "2")  # fmt: skip
    yield server
    server.kill()


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def answers(http: httpx2.Client) -> bool:
    return http.post("/v1/completions", json=SHORT).status_code == 200


def test_clients_that_give_up_leave_nothing_behind(http: httpx2.Client) -> None:
    def impatient(number: int) -> bool:
        body = LONG | {"prompt": f"{number}", "stream": number % 2 == 0}
        end = time.monotonic() + 0.5
        try:
            with http.stream("POST", "/v1/completions", json=body, timeout=0.5) as answer:
                for _ in answer.iter_lines():
                    if time.monotonic() > end:
                        return True
        except httpx2.TimeoutException:
            return True
        return False

    with ThreadPoolExecutor(40) as pool:
        gave_up = sum(pool.map(impatient, range(200)))
    assert gave_up  # where all the places were taken, some were turned away
    assert answers(http)
    wait_until(lambda: is_idle(http))


def test_a_storm_of_aborts_ends_every_request_once(http: httpx2.Client) -> None:
    def run(number: int) -> str:
        answer = http.post("/v1/completions", json=LONG | {"rid": f"storm-{number}"})
        return str(answer.json()["choices"][0]["finish_reason"])

    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(run, number) for number in range(30)]
        wait_until(lambda: http.get("/server_info").json()["open_prompts"] == 30)
        for number in range(30):
            for _ in range(2):
                http.post("/abort_request", json={"rid": f"storm-{number}"})
        reasons = [future.result(60) for future in waiting]
    assert reasons == ["abort"] * 30
    wait_until(lambda: is_idle(http))
    pages = http.get("/server_info").json()["runtime"]
    assert pages["free_pages"] + pages["tree_pages"] == pages["total_pages"]


def test_too_many_at_once_are_told_to_come_back(http: httpx2.Client) -> None:
    body = LONG | {"prompt": ["a"] * 60, "rid": "many"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/completions", json=body)
        wait_until(lambda: http.get("/server_info").json()["open_prompts"] == 60)
        answer = http.post("/v1/completions", json=SHORT | {"prompt": ["b"] * 5})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert answers(http)
        http.post("/abort_request", json={"rid": "many"})
        assert waiting.result(60).status_code == 200


def test_a_client_that_never_reads_delays_nobody(server: LiveServer, http: httpx2.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = json.dumps(LONG | {"stream": True, "logprobs": 20}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        deaf.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        time.sleep(0.5)
        assert answers(http)
    wait_until(lambda: is_idle(http))


def test_the_time_limit_ends_a_request() -> None:
    server = LiveServer(tiny_model(), "--set", "num_pages=2000", "--request-timeout", "2")
    try:
        with server.client() as http:
            answer = http.post("/v1/completions", json=LONG)
            assert answer.status_code == 504
            assert answer.json()["error"]["type"] == "timeout_error"
            streamed = http.post("/v1/completions", json=LONG | {"stream": True})
            events = streamed.text.strip().split("\n\n")
            assert events[-1] == "data: [DONE]"
            assert json.loads(events[-2][6:])["error"]["type"] == "timeout_error"
            wait_until(lambda: is_idle(http))
    finally:
        server.kill()


def test_a_killed_runtime_is_told_and_replaced(server: LiveServer, http: httpx2.Client) -> None:
    for round_number in range(3):
        pid = server.runtime_pid()
        seen: list[str] = []

        def read(into: list[str]) -> None:
            body = LONG | {"stream": True}
            with http.stream("POST", "/v1/completions", json=body) as answer:
                into.extend(answer.iter_lines())

        def wait() -> httpx2.Response:
            return http.post("/v1/completions", json=LONG | {"prompt": "other"})

        with ThreadPoolExecutor(2) as pool:
            stream, whole = pool.submit(read, seen), pool.submit(wait)
            wait_until(lambda seen=seen: len(seen) > 4)
            wait_until(lambda: http.get("/server_info").json()["open_prompts"] == 2)
            assert http.get("/server_info").json()["runtime"]["open_requests"] == 2
            os.kill(pid, signal.SIGKILL)
            # Its last words may be heard after the kill: who asks before them may have killed it.
            wait_until(lambda: http.get("/health").status_code == 503)
            # What comes from now on waits for the next runtime, or is known without one.
            assert answers(http)
            assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"
            stream.result(60)
            assert whole.result(60).status_code == 503
        lines = [line for line in seen if line]
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert error["code"] == "runtime_unavailable"
        assert str(pid) not in error["message"]
        wait_until(lambda: http.get("/health").status_code == 200)
        assert answers(http)
        assert server.runtime_pid() != pid
        assert http.get("/server_info").json()["runtime_restarts"] == round_number + 1


def test_sigterm_finishes_what_is_open_and_takes_nothing_new() -> None:
    server = LiveServer(tiny_model(), "--set", "num_pages=2000", "--drain-timeout", "300")
    runtime = server.runtime_pid()
    with server.client() as http, server.client() as other, ThreadPoolExecutor(1) as pool:
        assert other.get("/health").status_code == 200
        waiting = pool.submit(http.post, "/v1/completions", json=LONG | {"max_tokens": 1500})
        wait_until(lambda: other.get("/server_info").json()["open_prompts"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: other.get("/health").status_code == 503)
        refused = other.post("/v1/completions", json=SHORT)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        done = waiting.result(200)
        assert done.status_code == 200
        assert done.json()["usage"]["completion_tokens"] == 1500
    assert server.process.wait(60) == 0
    server.kill()
    assert not is_running(runtime)


def test_while_a_runtime_takes_nothing_new_health_says_so_and_requests_wait() -> None:
    server = LiveServer(tiny_model(), "--set", "num_pages=2000", "--drain-timeout", "0")
    try:
        runtime = server.runtime_pid()
        with server.client() as http, server.client() as other, ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(http.post, "/v1/completions", json=LONG)
            wait_until(lambda: other.get("/server_info").json()["runtime"]["open_requests"] == 1)
            os.kill(runtime, signal.SIGTERM)
            late = pool.submit(http.post, "/v1/completions", json=SHORT)
            wait_until(lambda: other.get("/health").status_code == 503)
            assert other.get("/health").json()["error"]["message"] == "restarting"
            assert other.get("/health_generate").status_code == 503
            os.kill(runtime, signal.SIGTERM)  # the second ends what is open
            assert waiting.result(60).status_code in (200, 503)
            assert late.result(60).status_code == 200
            assert other.get("/health").status_code == 200
    finally:
        server.kill()


def test_what_does_not_finish_in_time_is_aborted() -> None:
    server = LiveServer(tiny_model(), "--set", "num_pages=2000", "--drain-timeout", "0")
    runtime = server.runtime_pid()
    with server.client() as http, server.client() as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/completions", json=LONG)
        wait_until(lambda: other.get("/server_info").json()["open_prompts"] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert waiting.result(60).json()["choices"][0]["finish_reason"] == "abort"
    assert server.process.wait(60) == 0
    server.kill()
    assert not is_running(runtime)


def test_a_killed_server_takes_its_runtime_along() -> None:
    server = LiveServer(tiny_model(), "--set", "num_pages=100")
    runtime = server.runtime_pid()
    server.process.kill()
    server.kill()
    wait_until(lambda: not is_running(runtime))


def is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")
