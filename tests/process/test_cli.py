"""The command line as a user sees it: what it prints, where, and with which exit status."""

import json
import re
import subprocess
import sys

import pytest
from helpers import write_tiny_model

COMMANDS = ("demo", "generate", "chat", "collect-env", "version")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=2048))


def radixgen(*args: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "radixgen", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_teaches_with_examples() -> None:
    top = radixgen("--help")
    assert top.returncode == 0
    for command in COMMANDS:
        assert command in top.stdout
        shown = radixgen(command, "--help")
        assert shown.returncode == 0
        assert re.search(rf"Examples?:\s+radixgen {command}", shown.stdout), shown.stdout


def test_version_and_environment() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", radixgen("version").stdout)
    shown = radixgen("collect-env").stdout
    for name in ("python", "torch", "memory", "RADIXGEN_CHECK"):
        assert re.search(rf"^{name}\s", shown, re.M)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ((), 2, "Usage"),
        (("frobnicate",), 2, "No such command"),
        (("generate",), 2, "Missing argument"),
        (("generate", "x", "--temperature", "hot"), 2, "--temperature"),
        (
            ("generate", "x", "--temperature", "200"),
            2,
            "temperature=200.0 is not between 0 and 100",
        ),
        (("generate", "x", "--set", "polcy=3"), 2, "did you mean 'policy'"),
        (("generate", "x", "--set", "polcy"), 2, "NAME=VALUE"),
        (("generate", "x", "--model", "/no/such/model"), 1, "no such file or directory"),
    ],
)
def test_wrong_usage_is_explained(args: tuple[str, ...], status: int, said: str) -> None:
    done = radixgen(*args)
    assert done.returncode == status
    text = " ".join((done.stdout + done.stderr).split())
    assert said in text
    assert "Traceback" not in text


def test_generate_streams_text_and_tells_the_cost_aside(model: str) -> None:
    done = radixgen("generate", "hello", "--model", model, "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "5 prompt tokens, 0 of them cached" in " ".join(done.stderr.split())


def test_generate_reads_stdin_and_prints_json(model: str) -> None:
    args = ("--model", model, "--max-tokens", "3", "--num", "2", "--temperature", "1", "--json")
    done = radixgen("generate", "-", *args, stdin="from a pipe")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    assert all(1 <= len(choice["token_ids"]) <= 3 for choice in result["choices"])
    assert result["usage"]["prompt_tokens"] == 11


def test_an_empty_prompt_is_refused(model: str) -> None:
    done = radixgen("generate", "-", "--model", model)
    assert done.returncode == 2
    assert "empty" in done.stderr


def test_chat_reuses_the_conversation(model: str) -> None:
    lines = "Hello there, how are you today?\n/nonsense\n/help\nAnd now?\n/reset\n/exit\n"
    args = ("--model", model, "--max-tokens", "3", "--set", "page_size=4")
    done = radixgen("chat", *args, stdin=lines)
    assert done.returncode == 0, done.stderr
    cached = [int(n) for n in re.findall(r"(\d+)\s+of\s+them\s+cached", done.stderr)]
    assert len(cached) == 2
    assert cached[0] == 0
    assert cached[1] > 30
    for said in ("no command /nonsense", "forget the conversation", "is forgotten"):
        assert said in done.stderr


def test_demo_reports_what_was_reused(model: str) -> None:
    done = radixgen("demo", "--model", model, "--json", "--set", "num_pages=2000")
    assert done.returncode == 0, done.stderr
    sections = json.loads(done.stdout)
    assert [section["requests"] for section in sections] == [8, 6]
    for section in sections:
        assert section["prompt_tokens"] == section["cached_tokens"] + section["prefilled_tokens"]
        assert section["hit_rate"] > 0.5
