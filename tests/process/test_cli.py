"""The command line as a user sees it: what it prints, where, and with which exit status."""

import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any
from unittest import mock

import pytest
import typer.main
from command_line import radixgen as radixgen_here
from helpers import write_tiny_model

from radixgen import Runtime
from radixgen.__main__ import app
from radixgen.cli import common
from radixgen.cli.chat import Conversation


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and its words."""
    top: Any = typer.main.get_command(app)
    for name, command in top.commands.items():
        inner = getattr(command, "commands", {})
        yield from (((name, word), found) for word, found in inner.items())
        if not inner:
            yield (name,), command


COMMANDS = dict(commands())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=2048))


@pytest.fixture(scope="module")
def shared_runtime(model: str) -> Iterator[Runtime]:
    with Runtime(model, page_size=4, num_pages=4000, threads=1) as runtime:
        yield runtime


@pytest.fixture
def _started(shared_runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands use one runtime, with nothing in its cache, and leave it running."""

    @contextlib.contextmanager
    def given(model: str, settings: list[str] | None) -> Iterator[Runtime]:
        yield shared_runtime

    shared_runtime.flush_cache()
    monkeypatch.setattr(common, "started", given)


def radixgen(*args: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "radixgen", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_teaches_in_80_columns(words: tuple[str, ...]) -> None:
    shown = radixgen_here(*words, "--help", columns=80)
    assert shown.status == 0
    assert re.search(rf"Examples?:\s+radixgen {' '.join(words)}", shown.out), shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "…" not in shown.out.replace("NAME:MS …", ""), "a name was cut"
    prose, *examples = inspect.cleandoc(COMMANDS[words].callback.__doc__).split("\b")
    for line in "".join(examples).splitlines():
        if line.startswith("  "):  # a command, which is to be copied as it stands
            assert line.strip().replace("\\[", "[") in shown.out
    assert r"\b" not in shown.out, "a mark of the source is shown"
    _, _, rest = prose.partition("\n\n")  # of the first paragraph lines are joined
    assert max(map(len, rest.splitlines()), default=0) <= 79, "a kept line would break twice"


def test_help_names_every_command() -> None:
    shown = radixgen_here("--help", columns=80)
    for words in COMMANDS:
        assert f"│ {words[0]} " in shown.out
    assert radixgen_here().status == 2


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
        (("generate", "x", "--max-tokns", "3"), 2, "--max-tokens"),
        (("generat", "x"), 2, "Did you mean 'generate'"),
        (("generate", "x", "--schema", "{}", "--regex", "a"), 2, "are both constraints"),
        (("run-batch", "-i", "x"), 2, "Missing option '--output'"),
        (("bench", "frobnicate"), 2, "No such command"),
    ],
)
def test_wrong_usage_is_explained(args: tuple[str, ...], status: int, said: str) -> None:
    done = radixgen_here(*args)
    assert done.status == status
    assert said in done.said
    assert "Traceback" not in done.said


def test_what_cannot_be_written_is_told(tmp_path: "os.PathLike[str]") -> None:
    given = os.path.join(tmp_path, "in.jsonl")
    with open(given, "w", encoding="utf-8") as file:
        file.write('{"custom_id": "a"}')
    done = radixgen_here("run-batch", "-i", given, "-o", str(tmp_path))
    assert done.status == 1
    assert f"error: {tmp_path}: Is a directory" in done.said


def test_generate_streams_text_and_tells_the_cost_aside(model: str) -> None:
    done = radixgen("generate", "hello", "--model", model, "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "5 prompt tokens, 0 of them cached" in " ".join(done.stderr.split())


@pytest.mark.usefixtures("_started")
def test_generate_keeps_a_constraint() -> None:
    done = radixgen_here("generate", "hello", "--choice", "left", "--choice", "right")
    assert done.status == 0, done.err
    assert done.out in ("left\n", "right\n")


def start(*args: str, **options: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", "radixgen", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, **pipes, **options)  # type: ignore[call-overload, no-any-return]


LONG = ("generate", "hello", "--max-tokens", "2000", "--temperature", "0.5", "--seed", "1")


def test_a_closed_pipe_ends_in_silence(model: str) -> None:
    """As in `radixgen generate … | head`."""
    with start(*LONG, "--model", model, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(280) in (0, 1)  # 0: all was written before the pipe was closed
        assert b"Traceback" not in process.stderr.read()


def test_an_interrupt_ends_with_its_own_status(model: str) -> None:
    with start(*LONG, "--model", model, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
        assert process.wait(280) in (0, 130)  # 0: it was done before the signal came
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.usefixtures("_started")
def test_generate_reads_stdin_and_prints_json() -> None:
    args = ("--max-tokens", "3", "--num", "2", "--temperature", "1", "--seed", "1", "--json")
    done = radixgen_here("generate", "-", *args, stdin="from a pipe")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    assert all(1 <= len(choice["token_ids"]) <= 3 for choice in result["choices"])
    assert result["usage"]["prompt_tokens"] == 11


@pytest.mark.usefixtures("_started")
def test_an_empty_prompt_is_refused() -> None:
    done = radixgen_here("generate", "-")
    assert done.status == 2
    assert "empty" in done.err


@pytest.mark.usefixtures("_started")
def test_chat_reuses_the_conversation() -> None:
    lines = "Hello there, how are you today?\n/nonsense\n/help\nAnd now?\n/reset\n/exit\n"
    done = radixgen_here("chat", "--max-tokens", "3", "--seed", "1", stdin=lines)
    assert done.status == 0, done.err
    cached = [int(n) for n in re.findall(r"(\d+) of them cached", done.said)]
    assert len(cached) == 2
    assert cached[0] == 0
    assert cached[1] > 30
    for said in ("no command /nonsense", "forget the conversation", "is forgotten"):
        assert said in done.said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("generate", "ü\udcff"), "prompt is not UTF-8 (byte 2); convert it first"),
        (("generate", "x", "--stop", "a", "--stop", "\udcff"), "--stop is not UTF-8 (byte 0)"),
        (("generate", "x", "--regex", "\udcff"), "--regex is not UTF-8"),
        (("generate", "x", "--choice", "\udcff"), "--choice is not UTF-8"),
        (("generate", "x", "--schema", "\udcff"), "neither a file that can be read nor a JSON"),
        (("generate", "x", "--model", "/no/\udcff"), "--model is not UTF-8 (byte 4)"),
        (("generate", "x", "--set", "polcy=\udcff"), "--set is not UTF-8 (byte 6)"),
        (("complete", "\udcff"), "prompt is not UTF-8"),
        (("complete", "x", "--chat", "--system", "\udcff"), "--system is not UTF-8"),
        (("complete", "x", "--model", "\udcff"), "--model is not UTF-8"),
        (("complete", "x", "--stop", "\udcff"), "--stop is not UTF-8"),
        (("chat", "--system", "\udcff"), "--system is not UTF-8"),
        (("run", "lang.programs.chat", "--arg", "a=\udcff"), "--arg is not UTF-8"),
        (("run-batch", "-i", "\udcff", "-o", "x"), "there is no file"),
        (("run-batch", "-i", "x", "-o", "x", "--served-model-name", "\udcff"), "is not UTF-8"),
        (("bench", "serve", "--model", "\udcff"), "--model is not UTF-8"),
        (("serve", "\udcff"), "model is not UTF-8"),
        (("serve", "--served-model-name", "\udcff"), "--served-model-name is not UTF-8"),
        (("grammar", "check", "[a-z]\udcff"), "the constraint is not UTF-8 (byte 5)"),
        (("grammar", "check", "[a-z]+", "a\udcff"), "(byte 1)"),
    ],
)
def test_an_argument_that_is_not_utf8_is_told(args: tuple[str, ...], said: str) -> None:
    done = radixgen_here(*args)
    assert done.status in (1, 2)
    assert said in done.said


LINES = b"Hello\n\xffWorld\nAnd now?\n"


@pytest.mark.usefixtures("_started")
def test_chat_ends_at_a_piped_line_that_is_not_utf8() -> None:
    done = radixgen_here("chat", "--max-tokens", "3", "--seed", "1", stdin=LINES)
    assert done.status == 2
    assert "error: a line of stdin is not UTF-8 (byte 0); convert it first" in done.said
    assert done.err.count("of them cached") == 1


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_chat_goes_on_after_a_typed_line_that_is_not_utf8(
    errors: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Python's locales have it, such a line is an error or holds surrogates."""
    typed = iter(LINES.splitlines())
    heard: list[str] = []

    def ask(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line.decode("utf-8", errors)

    def answer(messages: list[dict[str, Any]]) -> Generator[tuple[str, str]]:
        heard.append(messages[-1]["content"])
        yield "yes", ""

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
    Conversation("someone", answer, "").run()
    assert heard == ["Hello", "And now?"]
    assert "the line is not UTF-8 (byte 0)" in capfd.readouterr().err


@pytest.mark.usefixtures("_started")
def test_demo_reports_what_was_reused() -> None:
    done = radixgen_here("demo", "--json")
    assert done.status == 0, done.err
    sections = json.loads(done.out)
    assert [section["requests"] for section in sections] == [8, 6]
    for section in sections:
        assert section["prompt_tokens"] == section["cached_tokens"] + section["prefilled_tokens"]
        assert section["hit_rate"] > 0.5
