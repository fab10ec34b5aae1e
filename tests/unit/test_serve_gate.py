"""Who may come in, and that nobody learns more: every route denies by default."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from radixgen.cli.serve import _keys as read_keys
from radixgen.errors import ConfigError
from radixgen.serve.gate import ADMIN_PATHS, OPEN_PATHS, Gate
from radixgen.serve.settings import ServeConfig

KEYS = ServeConfig(model_names=("m",), api_keys=("key-one", "key-two"))
BOTH = ServeConfig(model_names=("m",), api_keys=("key-one",), admin_key="root")
ADMIN = ServeConfig(model_names=("m",), admin_key="root")


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    namespace = scope["state"]["namespace"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(namespace).encode()})


def ask(
    config: ServeConfig, path: str, headers: dict[str, str] | None = None, raw: bytes | None = None
) -> tuple[int, bytes]:
    """The status and body of a GET. `raw`: the path as it stood in the request line."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    pairs = [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": raw or path.encode(),
        "headers": pairs,
        "client": ("127.0.0.1", 1),
    }
    gate = Gate(_inner, config, lambda *_: None)
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("config", "key", "path", "status"),
    [
        (KEYS, None, "/v1/models", 401),
        (KEYS, "wrong", "/v1/models", 401),
        (KEYS, "key-on", "/v1/models", 401),
        (KEYS, "key-one", "/v1/models", 200),
        (KEYS, "key-two", "/v1/models", 200),
        (KEYS, "key-two", "/flush_cache", 200),
        (KEYS, None, "/health", 200),
        (KEYS, None, "/metrics", 401),
        (KEYS, None, "/docs", 401),
        (KEYS, None, "/openapi.json", 401),
        (KEYS, None, "/tokenize", 401),
        (KEYS, None, "/no/such/route", 401),
        (BOTH, "key-one", "/v1/models", 200),
        (BOTH, "key-one", "/flush_cache", 401),
        (BOTH, "root", "/flush_cache", 200),
        (BOTH, "key-one", "/cache_tree", 401),
        (BOTH, "root", "/v1/models", 401),
        (ADMIN, None, "/v1/models", 200),
        (ADMIN, None, "/abort_request", 401),
        (ADMIN, "root", "/abort_request", 200),
    ],
)
def test_who_may_do_what(config: ServeConfig, key: str | None, path: str, status: int) -> None:
    assert ask(config, path, bearer(key) if key else {})[0] == status
    if key:
        assert ask(config, path, {"x-api-key": key})[0] == status


@pytest.mark.parametrize(
    "raw",
    [b"/health/", b"//health", b"/%68ealth", b"/health%2f..%2fv1", b"/HEALTH", b"/health;x",
     b"/health/../v1/models", b"http://evil/health", b"/flush_cache/", b"/v1/models#/health"],
)  # fmt: skip
def test_only_the_very_path_is_open(raw: bytes) -> None:
    assert ask(KEYS, "/health", raw=raw)[0] == 401
    assert ask(KEYS, "/health", {"host": "health", "x-forwarded-path": "/health"}, raw)[0] == 401


def test_open_and_admin_routes_do_not_meet() -> None:
    assert not OPEN_PATHS & ADMIN_PATHS


def test_metrics_are_open_by_flag_only() -> None:
    config = ServeConfig(model_names=("m",), api_keys=("k",), open_metrics=True)
    assert ask(config, "/metrics")[0] == 200


def test_odd_credentials_are_refused_without_a_fault() -> None:
    for value in (
        "Bearer",
        "Bearer ",
        "Basic key-one",
        "key-one",
        "Bearer \xff\xfe",
        "bearer\tkey",
    ):
        assert ask(KEYS, "/v1/models", {"authorization": value})[0] == 401
    assert ask(KEYS, "/v1/models", {"authorization": "bearer key-one"})[0] == 200


def test_the_refusal_has_the_clients_shape() -> None:
    _, body = ask(KEYS, "/v1/models")
    assert json.loads(body)["error"]["type"] == "authentication_error"
    _, body = ask(KEYS, "/v1/messages")
    assert json.loads(body)["type"] == "error"


def test_keys_keep_their_namespaces_apart() -> None:
    config = ServeConfig(model_names=("m",), api_keys=("a", "b"), key_namespaces=True)
    _, first = ask(config, "/v1/models", bearer("a"))
    _, second = ask(config, "/v1/models", bearer("b"))
    assert first != second
    assert b'"a"' not in first


def test_keys_of_a_file_are_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two \n")
    assert read_keys(["zero"], file) == ("zero", "one", "two")
    for content in (b"", b"\n \n", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="--api-key-file"):
            read_keys(None, file)
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(None, tmp_path / "nothing")


@pytest.mark.parametrize(
    "options",
    [
        {"api_keys": ("",)},
        {"api_keys": ("a b",)},
        {"admin_key": ""},
        {"api_keys": ("\xff",)},
        {"max_open": 0},
        {"ping_seconds": 0},
        {"request_seconds": -1},
        {"drain_seconds": -1},
    ],
)
def test_settings_that_cannot_be(options: Any) -> None:
    with pytest.raises(ConfigError):
        ServeConfig(**options)
