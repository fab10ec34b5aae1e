"""`radixgen complete` against a live server: text, constraints, and every way it can go wrong."""

import json
import re

import pytest
from command_line import radixgen
from live_server import CONTEXT, shared_server


@pytest.fixture(scope="module")
def url() -> str:
    return shared_server().url


def test_text_comes_and_its_cost_is_told_aside(url: str) -> None:
    done = radixgen("complete", "hello", "--url", url, "-n", "5")
    assert done.status == 0, done.err
    assert done.out.endswith("\n")
    assert "5 prompt tokens" in done.err
    assert "first text after" in done.err


def test_json_is_the_answer_of_the_server(url: str) -> None:
    piped = radixgen(
        "complete", "-", "--json", "--url", f"{url}/v1", "-n", "3", stdin="from a pipe"
    )
    answer = json.loads(piped.out)
    assert answer["object"] == "text_completion"
    assert answer["usage"]["prompt_tokens"] == 11
    told = radixgen("complete", "--url", url, "-n", "3", stdin="from a pipe")
    assert told.out == answer["choices"][0]["text"] + "\n"


SCHEMA = '{"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": false}'  # noqa: E501 - one word of a command line


@pytest.mark.parametrize(
    ("option", "value", "possible"),
    [
        ("--schema", SCHEMA, {'{"n": 1}', '{"n": 22}', '{"n":1}', '{"n":22}'}),
        ("--regex", "(ab|cd){2}", {"abab", "abcd", "cdab", "cdcd"}),
        ("--choice", "yes", {"yes"}),
        ("--grammar", 'start: "left" | "right"', {"left", "right"}),
    ],
)
def test_a_constraint_is_kept(option: str, value: str, possible: set[str], url: str) -> None:
    done = radixgen("complete", "--chat", "Hi", option, value, "--url", url, "-n", "40")
    assert done.status == 0, done.err
    text = done.out.strip()
    assert text in possible or json.loads(text)["n"] in (1, 22)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("x", "--url", "localhost:1"), 1, "start one with `radixgen serve`"),
        (("x", "--url", "ftp://x"), 2, "expected an address such as"),
        (("x", "--url", "http://x:99999"), 2, "expected an address such as"),
        (("x", "--url", "un host"), 2, "expected an address such as"),
        (("x", "--url", "unix:/no/such.sock"), 1, "no server answers at unix:/no/such.sock"),
        (("x", "--api-key", "schlüssel"), 2, "a character that no key has"),
        (("x", "--system", "be brief"), 2, "--system goes with --chat"),
        (("x", "--regex", "a", "--choice", "b"), 2, "--regex and --choice are both constraints"),
        (("x", "--schema", "no_such.json"), 2, "neither a file that can be read nor a JSON schema"),
        (("x", "--grammar", "no_such"), 2, "neither a file that can be read nor a grammar"),
    ],
)
def test_what_is_wrong_is_said_without_a_server(
    args: tuple[str, ...], status: int, said: str
) -> None:
    done = radixgen("complete", *args)
    assert (done.status, done.out) == (status, "")
    assert said in done.said


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        (("x", "--model", "other"), b"", "the model 'other' is not served here"),
        (("x", "--temperature", "900"), b"", "temperature=900.0 is not between 0 and 100"),
        (("x", "--regex", "("), b"", "a group has no ')'"),
        ((), b"", "the prompt is empty"),
        (("-",), b"\xff", "stdin is not UTF-8 (byte 0)"),
    ],
)
def test_what_the_server_refuses_is_said(
    args: tuple[str, ...], stdin: bytes, said: str, url: str
) -> None:
    done = radixgen("complete", *args, "--url", url, stdin=stdin)
    assert (done.status, done.out) == (2, "")
    assert said in done.said


def test_a_conversation_with_a_server(url: str) -> None:
    lines = (
        "Hello there, how are you today?\n/reset\nAgain\nAnd more\n" + "x" * CONTEXT + "\n/exit\n"
    )
    done = radixgen("chat", "--url", url, "--max-tokens", "3", "--seed", "1", stdin=lines)
    assert done.status == 0, done.err
    costs = re.findall(r"(\d+) prompt tokens, (\d+) of them cached", done.said)
    assert len(costs) == 3
    assert int(costs[2][0]) > int(costs[1][0])
    assert "/reset begins a new conversation" in done.said
    assert radixgen("chat", "--url", url, "--set", "page_size=4").status == 2
