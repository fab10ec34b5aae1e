"""Libraries that people talk to servers with, each against a live server on a tiny random model.

What each is asked stands in tests/clients/ and runs in an environment of the library's own.
"""

import os
import re

import pytest
from client_environments import ASKS, run_there
from live_server import shared_server

CLIENTS = {
    "pydantic_ai": "current",
    "langchain": "current",
    "instructor": "older",
    "litellm": "older",
}


def test_every_client_is_asked() -> None:
    assert {file.stem.removesuffix("_asks") for file in ASKS.glob("*_asks.py")} == {*CLIENTS}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_what_it_asks_for(client: str) -> None:
    file = f"{client}_asks.py"
    said = run_there(
        CLIENTS[client],
        # Their warnings are theirs, and this project's settings are of no concern to them.
        *("-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "--noconftest"),
        *("-p", "no:cacheprovider", "-p", "no:warnings", file),
        RADIXGEN_URL=shared_server().url,
        LITELLM_LOCAL_MODEL_COST_MAP="True",  # or its import waits for a network
    )
    asked = len(re.findall(r"^def test_", (ASKS / file).read_text(), re.M))
    passed = re.search(r"(\d+) passed in", said)
    assert passed, said
    assert int(passed[1]) >= asked
    assert "skipped" not in said
