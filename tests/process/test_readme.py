"""The README's examples, run as they stand: Python here, Python and shell against a live server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from live_server import LiveServer

from radixgen.__main__ import app

pytestmark = pytest.mark.model
ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)
ADDRESS = "localhost:8000"


def blocks(language: str, *, served: bool) -> list[str]:
    return [
        code
        for name, code in BLOCKS
        if name == language and served == (ADDRESS in code or language == "sh")
    ]


def run(command: list[str], folder: Path, url: str = "") -> str:
    """The output of an example, which must succeed."""
    tools = Path(sys.executable).parent
    changed = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "RADIXGEN_CHECK": "0",
        "RADIXGEN_SET": "max_context=2048 threads=1",
        "RADIXGEN_URL": url,
    }
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **changed}, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer("", "--set", "max_context=2048", RADIXGEN_CHECK="0")
    yield server
    server.kill()


def test_every_example_is_of_a_kind_that_is_tested() -> None:
    assert {name for name, _ in BLOCKS} <= {"python", "sh", "toml", "text"}
    assert len(blocks("python", served=False)) >= 3
    assert len(blocks("python", served=True)) >= 1
    assert len(blocks("sh", served=True)) >= 3


def test_python_on_a_runtime_of_its_own(tmp_path: Path) -> None:
    """Each a program of its own, in one process: an interpreter and a model load slowly."""
    files = []
    for number, code in enumerate(blocks("python", served=False)):
        files.append(tmp_path / f"example_{number}.py")
        files[-1].write_text(code, "utf-8")
    driver = "import runpy, sys; [runpy.run_path(file) for file in sys.argv[1:]]"
    said = run([sys.executable, "-c", driver, *map(str, files)], tmp_path)
    assert "Paris" in said
    assert re.search(r"name=.* age=", said)


@pytest.mark.parametrize("code", blocks("python", served=True))
def test_python_with_a_server(code: str, tmp_path: Path, server: LiveServer) -> None:
    file = tmp_path / "example.py"
    file.write_text(code.replace(f"http://{ADDRESS}", server.url), "utf-8")
    assert "city=" in run([sys.executable, str(file)], tmp_path)


@pytest.mark.parametrize("code", blocks("sh", served=True))
def test_shell_with_a_server(code: str, tmp_path: Path, server: LiveServer) -> None:
    code = code.replace(ADDRESS, server.url.removeprefix("http://"))
    said = run(["bash", "-euo", "pipefail", "-c", code], tmp_path, server.url)
    if code.startswith("curl"):
        assert "error" not in json.loads(said)
    else:
        assert "goodput" in said
        assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("code", [code for name, code in BLOCKS if name == "toml"])
def test_files_of_options(code: str, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(code, "utf-8")
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert serve.make_context("serve", ["--config", str(file)]).params["port"] == 9000


def test_the_commands_are_those_that_there_are() -> None:
    listed = re.findall(r"^    radixgen ([\w-]+)(?: ([a-z|]+))? ", TEXT + " ", re.M)
    command = typer.main.get_command(app)
    there = {
        name: "|".join(getattr(found, "commands", {}))
        for name, found in command.commands.items()  # type: ignore[attr-defined]
    }
    named = {name: inner if there.get(name) else "" for name, inner in listed}
    named["version"] = ""  # the last of the list has nothing behind it
    assert named == there
