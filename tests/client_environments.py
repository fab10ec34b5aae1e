"""Environments of other people's clients, which `make clients` makes: their versions clash with
the project's and with one another's, so a test runs them in a process of their own there."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASKS = ROOT / "tests" / "clients"
REQUIRED = "REQUIRE_CLIENTS"  # set to 1: an environment that is not there is a fault


def run_there(environment: str, *args: str, seconds: float = 250, **variables: str) -> str:
    """What `python ARGS` of an environment writes, run among the asks of clients.

    Skips the test where the environment was not made; fails it for any exit status but 0.
    """
    folder = ROOT / ".venv-clients" / environment
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        assert os.environ.get(REQUIRED) != "1", f"{folder} is not there: run `make clients`"
        pytest.skip(f"{folder.name} clients are not installed: run `make clients`")
    done = subprocess.run(
        [str(python), *args],
        cwd=ASKS,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout
