"""schemathesis against a live server: requests made from `/openapi.json`, and what is answered.

Every check of it is on, with keys, but one: a schema cannot say all of what makes a request valid,
as that a grammar is one, so that a request which fits it may be refused.
"""

import re
from collections.abc import Iterator

import pytest
from client_environments import run_there
from helpers import write_tiny_model
from live_server import LiveServer

KEY = "the-key"
CONTEXT = 128  # of the model, so that an answer without a limit is a short one
# Other names of routes that are asked under one, and a route of the same body as another.
TWINS = r"^/v1/(de)?tokenize$|^/get_.*|/render$|/input_tokens$"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    model = write_tiny_model(
        tmp_path_factory.mktemp("fuzzed") / "tiny", max_position_embeddings=CONTEXT
    )
    server = LiveServer(model, "--set", "num_pages=500", RADIXGEN_API_KEY=KEY)
    yield server
    server.kill()


def test_what_is_documented_is_what_is_answered(server: LiveServer) -> None:
    said = run_there(
        "current",
        *("-m", "schemathesis.cli", "--no-color", "run", f"{server.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {KEY}"),
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        *("--exclude-method", "PUT", "--exclude-path-regex", TWINS),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "6", "--seed", "1"),
        *("--generation-database", "none", "--no-shrink", "--request-timeout", "60"),
    )
    counted = re.search(r"(\d+) generated, (\d+) passed", said)
    assert counted, said
    assert int(counted[1]) == int(counted[2]) > 1000
    # Each documented body is one that works.
    lines = "".join(server.lines)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                 "/v1/decisions", "/generate"):  # fmt: skip
        assert re.search(f'"path": "{path}", "status": 200', lines), path
