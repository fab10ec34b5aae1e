"""`radixgen run`: a program from a module or a file, in colours as it is written."""

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from radixgen.cli import common
from radixgen.cli.common import parse_settings
from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.lang import Program, set_default_backend
from radixgen.lang.transcript import as_html, show


def run(
    target: Annotated[
        str,
        typer.Argument(
            help="A module such as lang.programs.react, or a file such as prog.py; add :NAME to "
            "choose a program or function in it."
        ),
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="NAME=VALUE",
            help="An argument; may be repeated.",
            callback=common.check_utf8,
        ),
    ] = None,
    model: common.Model = "",
    url: Annotated[
        str, typer.Option(help="A radixgen or SGLang server to use instead of a local runtime.")
    ] = "",
    html: Annotated[
        Path | None, typer.Option(help="Write a program's transcript to this file as HTML.")
    ] = None,
    settings: common.Settings = None,
) -> None:
    """Run a program: its `main`, else the one program in it.

    Literals are plain, the model's text is green, forced text is blue.

    \b
    Examples:
      radixgen run lang.programs.chat
      radixgen run lang.programs.few_shot:classify --arg text="It works."
      radixgen run prog.py --arg n=3
    """
    chosen = find(target)
    arguments = parse_settings(arg or [], "--arg", "n=3")
    check_arguments(chosen, arguments)
    if html is not None and not isinstance(chosen, Program):
        raise InvalidRequest(f"--html needs a program, as in {target}:NAME", "html")
    with backend(model, url, settings) as served:
        set_default_backend(served)
        try:
            if isinstance(chosen, Program):
                state = show(chosen.run(stream=True, **arguments))
                if html is not None:
                    html.write_text(as_html(state.executor), "utf-8")
            else:
                finish(chosen(**arguments))
        except RadixgenError as error:
            for note in getattr(error, "__notes__", ()):
                common.err.print(note, markup=False, soft_wrap=True)
            raise
        finally:
            set_default_backend(None)


def finish(result: Any) -> None:
    """Run what an `async def` function returned."""
    if inspect.iscoroutine(result):
        asyncio.run(result)


@contextmanager
def backend(model: str, url: str, settings: list[str] | None) -> Iterator[Any]:
    """The runtime or server that the program talks to."""
    if not url:
        with common.started(model, settings) as runtime:
            yield runtime
        return
    if model or settings:
        raise InvalidRequest("--url names a server that runs already: leave out --model and --set")
    from radixgen.lang.backends.endpoint import RuntimeEndpoint

    endpoint = RuntimeEndpoint(url)
    try:
        yield endpoint
    finally:
        endpoint.close()


def find(target: str) -> Any:
    """The program or function that a target names. Raises InvalidRequest."""
    place, _, name = target.partition(":")
    module = load(place)
    if name:
        found = getattr(module, name, None)
        if not callable(found):
            raise InvalidRequest(f"{place} has no program or function {name!r}", "target")
        return found
    main = getattr(module, "main", None)
    if callable(main):
        return main
    programs = [value for value in vars(module).values() if isinstance(value, Program)]
    if len(programs) != 1:
        names = ", ".join(program.name for program in programs) or "none"
        raise InvalidRequest(
            f"{place} has no main() and not one program but: {names}; name one, {place}:NAME",
            "target",
        )
    return programs[0]


def load(place: str) -> ModuleType:
    """A module by file or by name; `lang.programs.x` is radixgen's. Raises InvalidRequest."""
    path = Path(place)
    if not place.strip():
        raise InvalidRequest(
            "no program is named: give a file such as prog.py, or lang.programs.NAME", "target"
        )
    if path.suffix == ".py":
        if not path.exists():
            raise InvalidRequest(f"there is no file {place}", "target")
        return _load_file(path)
    if place.startswith("."):  # which Python takes for a place inside a package
        raise InvalidRequest(
            f"{place} is neither a .py file nor a module: give a file such as prog.py, or "
            "lang.programs.NAME",
            "target",
        )
    name = f"radixgen.{place}" if place.split(".")[0] == "lang" else place
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # the module is there; what it imports is not
        raise InvalidRequest(
            f"there is no module {place}: give a file such as prog.py, or lang.programs.NAME",
            "target",
        ) from None


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} cannot be imported", "target")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses and pydantic look for names
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def check_arguments(chosen: Any, arguments: dict[str, Any]) -> None:
    """Raises InvalidRequest for a plain function's arguments; programs check their own."""
    if isinstance(chosen, Program):
        return
    try:
        inspect.signature(chosen).bind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"{getattr(chosen, '__name__', 'main')}(): {error}", "arg") from None
