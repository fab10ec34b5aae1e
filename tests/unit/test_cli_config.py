"""Options of `serve` from flags, variables and a file: which goes first, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import typer.main
from command_line import radixgen

from radixgen import env
from radixgen.__main__ import app
from radixgen.cli import configfile
from radixgen.cli.common import check_utf8
from radixgen.errors import InvalidRequest

COMMAND: Any = typer.main.get_command(app)
SERVE: Any = COMMAND.commands["serve"]
OPTIONS = {p.name: p for p in SERVE.params if p.name not in ("config", "settings", "help")}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.with_prefix("RADIXGEN_"):
        if name != "RADIXGEN_CHECK":
            monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `radixgen serve` would have started, in place of starting it."""
    found: dict[str, Any] = {}

    async def serve(launcher: Any, config: Any, listen: Any, ready: Any) -> None:
        found.update(settings=launcher._settings, config=config, listen=listen)

    monkeypatch.setattr("radixgen.serve.server.serve", serve)
    return found


def params(*args: str) -> dict[str, Any]:
    values: dict[str, Any] = SERVE.make_context("serve", list(args)).params
    return values


def three_values(param: Any) -> tuple[list[str], str, Any, list[Any]]:
    """Arguments, a variable's text, a file's value, and the three as the command sees them."""
    default, flag = param.default, param.opts[0]
    if isinstance(default, bool):
        off = next(name for name in param.secondary_opts)
        return [off], "1", True, [False, True, True]
    if isinstance(default, int | float):
        kind = type(default)
        texts = ["11", "12"]
        return [flag, texts[0]], texts[1], kind(13), [kind(11), kind(12), kind(13)]
    if getattr(param, "multiple", False):
        return [flag, "a", flag, "b"], "c d", ["e"], [["a", "b"], ["c", "d"], ["e"]]
    if param.name == "request_timeout":
        return [flag, "11"], "12", 13.0, [11.0, 12.0, 13.0]
    wrap: Any = Path if param.name == "api_key_file" else str
    args = ["a"] if param.param_type_name == "argument" else [flag, "a"]
    return args, "b", "c", [wrap("a"), wrap("b"), wrap("c")]


@pytest.mark.parametrize("name", OPTIONS)
def test_flag_then_variable_then_file_then_default(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, text, value, (by_flag, by_variable, by_file) = three_values(OPTIONS[name])
    file = tmp_path / "server.toml"
    shown = value if isinstance(value, int | float | list) else f'"{value}"'
    if isinstance(value, bool):
        shown = str(value).lower()
    file.write_text(f"{name.replace('_', '-')} = {shown}\n")
    config = ("--config", str(file))
    default = params()[name]
    assert params(*config)[name] == by_file
    monkeypatch.setenv(f"RADIXGEN_{name.upper()}", text)
    assert params(*config)[name] == by_variable
    assert params()[name] == by_variable
    assert params(*config, *args)[name] == by_flag
    monkeypatch.delenv(f"RADIXGEN_{name.upper()}")
    assert params()[name] == default


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (
            ".toml",
            'port = 9000\nmax_open = 7\n[runtime]\npage-size = 8\nthreads = 2\npolicy = "lpm"',
        ),
        (".yaml", "port: 9000\nmax-open: 7\nruntime: {page_size: 8, threads: 2, policy: lpm}"),
    ],
)
def test_a_file_sets_server_and_runtime(
    suffix: str, text: str, tmp_path: Path, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"server{suffix}"
    file.write_text(text)
    monkeypatch.setenv("RADIXGEN_THREADS", "3")
    monkeypatch.setenv("RADIXGEN_SET", "policy=sjf max_running=5")
    monkeypatch.setattr("radixgen.cli.serve.resolve", lambda model: type("M", (), {"name": "m"}))
    done = radixgen("serve", "m", "--config", str(file), "--set", "max_running=9")
    assert done.status == 0, done.err
    assert served["listen"].port == 9000
    assert served["config"].max_open == 7
    assert served["settings"] == {"page_size": 8, "policy": "sjf", "max_running": 9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "there is no option 'prot'; did you mean 'port'?"),
        ("config = 'x'", "there is no option 'config'"),
        ("page_size = 8", "page_size is a setting of the runtime: put it under runtime"),
        ("runtime = 3", "runtime holds names and values"),
        ("[runtime]\npage_sze = 1", "there is no setting 'page_sze'; did you mean 'page_size'?"),
        ("[runtime]\nmodel = 'x'", "there is no setting 'model'"),
        ("port = 'abc'", "port='abc': "),
        ("log-requests = 'maybe'", "log-requests='maybe': "),
        ("max-open = 1\nmax_open = 2", "max_open is given twice"),
        ("[port]\nx = 1", "port has no value that it can have"),
        ("port = ", "Invalid value"),
        ("port = 99999", "port=99999 is not within 0 and 65535"),
        ("\x00", "server.toml: "),
    ],
)
def test_what_a_file_cannot_say(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text)
    done = radixgen("serve", "--config", str(file), columns=400)
    assert (done.status, done.out) == (2, "")
    assert said in done.said


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("server.yaml", "port: [1", "server.yaml: while parsing"),
        ("server.yaml", "- 1", "expected names and values"),
        ("server.yaml", "!!python/object/apply:os.system ['true']", "could not determine"),
        ("server.ini", "", "ends in .toml, .yaml or .yml"),
        ("missing.toml", None, "No such file"),
    ],
)
def test_files_that_cannot_be_read(name: str, text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = radixgen("serve", "--config", str(tmp_path / name), columns=400)
    assert done.status == 2
    assert said in done.said


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "abc", "RADIXGEN_PORT='abc': "),
        ("PORT", "tcp://10.0.0.1:8000", "Kubernetes sets it"),
        ("MAX_OPEN", "0", "max_open=0 must be at least 1"),
        ("SET", "polcy=3", "did you mean 'policy'"),
        ("CONFIG", "none.toml", "--config none.toml: No such file"),
        ("METRICS_COMPAT", "x", "is none of vllm, sglang"),
    ],
)
def test_variables_that_cannot_be(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RADIXGEN_{variable}", value)
    done = radixgen("serve", columns=400)
    assert (done.status, done.out) == (2, "")
    assert said in done.said


def test_a_misspelt_variable_is_noticed(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixgen.cli.serve.resolve", lambda model: type("M", (), {"name": "m"}))
    monkeypatch.setenv("RADIXGEN_MAX_OPENN", "4")
    monkeypatch.setenv("RADIXGEN_SERVICE_HOST", "10.0.0.1")
    done = radixgen("serve", "m")
    assert "RADIXGEN_MAX_OPENN is set and not known; did you mean RADIXGEN_MAX_OPEN?" in done.said
    assert "SERVICE_HOST" not in done.said


def test_files_of_tls_are_looked_at_first(tmp_path: Path) -> None:
    done = radixgen("serve", "--ssl-certfile", "no.pem", "--ssl-keyfile", "no.key")
    assert done.status == 2
    assert "--ssl-certfile no.pem: there is no such file" in done.said
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    done = radixgen("serve", "--ssl-certfile", str(wrong), "--ssl-keyfile", str(wrong))
    assert done.status == 2
    assert "--ssl-certfile, --ssl-keyfile or --ssl-ca-certs: " in done.said


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    for name in ("empty.toml", "empty.yaml"):
        (tmp_path / name).write_text("")
        assert configfile.read(tmp_path / name) == {}


def test_arguments_are_utf8_whatever_the_locale() -> None:
    """In the locale C Python keeps bytes beyond ASCII as surrogates."""
    (param,) = (p for p in SERVE.params if p.name == "model")
    for text in ("plain", "é → 日本"):
        kept = text.encode().decode("ascii", "surrogateescape")
        assert check_utf8(param, kept) == check_utf8(param, text) == text
        assert check_utf8(param, [kept]) == [text]
    for wrong in ("\udce9", "\ud800"):
        with pytest.raises(InvalidRequest, match="is not UTF-8"):
            check_utf8(param, wrong)
    assert check_utf8(param, None) is None
