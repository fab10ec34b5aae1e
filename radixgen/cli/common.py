"""What the commands share: consoles, options, and errors told in plain words."""

import asyncio
import io
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from radixgen import env
from radixgen.errors import ConfigError, InvalidRequest, RadixgenError
from radixgen.launch import Runtime, make_config
from radixgen.model.hub import resolve

T = TypeVar("T")

USAGE, FAILURE, INTERRUPTED = 2, 1, 130  # exit statuses

# Answers go to stdout, everything about them to stderr, so that output can be piped.
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

MODEL, SAMPLING = "Model and runtime", "Sampling"  # panels of the help


def check_utf8(param: typer.CallbackParam, value: T) -> T:
    """The callback of options and arguments that are sent on as text: their value.

    Raises InvalidRequest for bytes that are not UTF-8. Python keeps those as lone surrogates, and
    in a locale such as C those of UTF-8 as well, which are the text that they stand for.
    """
    if isinstance(value, list | tuple):
        return cast("T", type(value)(check_utf8(param, text) for text in value))
    return cast("T", _argument(value, param.opts[0])) if isinstance(value, str) else value


def _argument(text: str, name: str) -> str:
    try:
        data = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no bytes
        data = text.encode(errors="surrogatepass")
    return decoded(data, name)


def decoded(data: bytes, name: str) -> str:
    """The text that bytes stand for. Raises InvalidRequest, with their `name`, if not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"{name} is not UTF-8 (byte {error.start}); convert it first, such as by iconv"
        raise InvalidRequest(message) from None


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A directory, a .gguf file or a hub id. Default: RADIXGEN_MODEL, else the embedded "
        "SmolLM2-135M-Instruct, which is fetched once.",
        callback=check_utf8,
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        callback=check_utf8,
        help="A setting of the runtime, such as device=cuda or page_size=8; may be repeated. Or "
        "RADIXGEN_SET.",
        rich_help_panel=MODEL,
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens", "-n", help="Tokens to generate, at most.", rich_help_panel=SAMPLING
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        "-t",
        help="0 always takes the most probable token.",
        rich_help_panel=SAMPLING,
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        help="Sample from the most probable tokens of this mass.", rich_help_panel=SAMPLING
    ),
]
TopK = Annotated[
    int,
    typer.Option(help="Sample from so many tokens; 0: from all.", rich_help_panel=SAMPLING),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Leave out tokens below this share of the best one's.", rich_help_panel=SAMPLING
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="The same seed gives the same tokens.",
        show_default="random",
        rich_help_panel=SAMPLING,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@contextmanager
def started(model: str, settings: list[str] | None) -> Iterator[Runtime]:
    """A runtime that serves, its model fetched with a bar if need be."""
    parsed = runtime_settings(settings)
    make_config(model, **parsed)  # refuse a wrong setting before anything is fetched
    resolve(model)
    runtime = Runtime(model, **parsed)
    with err.status("starting the runtime"):
        runtime.start()
    try:
        yield runtime
    finally:
        runtime.shutdown()


def runtime_settings(given: list[str] | None) -> dict[str, Any]:
    """What `--set` says, and RADIXGEN_SET where it does not."""
    return parse_settings(env.read("RADIXGEN_SET").split()) | parse_settings(given or [])


def parse_settings(
    pairs: list[str], flag: str = "--set", example: str = "page_size=8"
) -> dict[str, Any]:
    """`name=value` texts; a value is JSON (8, 0.5, true, null) if it can be, else text.

    Raises ConfigError, which names the `flag` that they were given with and shows an `example`.
    """
    parsed: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} {pair}: expected NAME=VALUE, such as {example}")
        try:
            parsed[name] = json.loads(text)
        except ValueError:
            parsed[name] = text
    return parsed


def write(text: str) -> None:
    """Text of a model, at once and as it is: no markup, no wrapping."""
    sys.stdout.write(text)
    sys.stdout.flush()


def read_stdin() -> str:
    """All of stdin. Raises InvalidRequest for what is not UTF-8."""
    return decoded(sys.stdin.buffer.read(), "stdin")


def read_line(prompt: str) -> str:
    """A line of stdin, which a user at a terminal is asked for.

    Raises EOFError at its end, InvalidRequest for what is not UTF-8.
    """
    if not sys.stdin.isatty():
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        return decoded(data, "a line of stdin")
    try:
        return decoded(input(prompt).encode(errors="surrogatepass"), "the line")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the line is not UTF-8 (byte {error.start})") from None


def progress() -> Progress:
    """A bar on stderr with counts and the time that is left; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
    )


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run in a uvloop, where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def run(app: Callable[[], Any]) -> int:
    """Run the commands; returns the exit status. A RadixgenError is a sentence, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ?
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILURE
    except (InvalidRequest, ConfigError) as error:
        err.print("[bold red]error:[/]", escape(str(error)))
        return USAGE
    except RadixgenError as error:
        err.print("[bold red]error:[/]", escape(str(error)))
        return FAILURE
    except KeyboardInterrupt:
        err.print("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `radixgen ... | head`
        sys.stderr.close()
        return FAILURE
    except OSError as error:  # a file that cannot be read or written, a full disk
        err.print("[bold red]error:[/]", escape(_about(error)))
        return FAILURE
    return 0


def _about(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename is not None else what
