"""`radixgen serve`: the runtime behind an HTTP API that OpenAI's and Anthropic's clients speak."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from radixgen import env
from radixgen.cli import common
from radixgen.cli.common import err
from radixgen.client import EngineClient
from radixgen.errors import ConfigError
from radixgen.launch import AsyncRuntime, make_config
from radixgen.model.hub import resolve
from radixgen.serve.settings import ServeConfig

_DEFAULTS = ServeConfig()
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: Annotated[
        str,
        typer.Argument(help="A directory, a .gguf file or a hub id. Default: as for --model."),
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on.", rich_help_panel="Listening")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", help="0: any free one.", rich_help_panel="Listening")
    ] = 8000,
    uds: Annotated[
        str | None,
        typer.Option(
            help="Path of a Unix socket, in place of a port.", rich_help_panel="Listening"
        ),
    ] = None,
    ssl_certfile: Annotated[
        str | None, typer.Option(help="TLS certificate chain.", rich_help_panel="Listening")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, typer.Option(help="Its private key.", rich_help_panel="Listening")
    ] = None,
    ssl_ca_certs: Annotated[
        str | None,
        typer.Option(help="Clients need a certificate of these.", rich_help_panel="Listening"),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Needed by every request; may be repeated. RADIXGEN_API_KEY does the same without "
            "showing it to other users.",
            rich_help_panel="Access",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with one key a line.", rich_help_panel="Access")
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            help="Needed to flush and abort, in place of an API key. Or RADIXGEN_ADMIN_KEY.",
            rich_help_panel="Access",
        ),
    ] = None,
    open_metrics: Annotated[
        bool, typer.Option(help="/metrics without a key.", rich_help_panel="Access")
    ] = False,
    key_namespaces: Annotated[
        bool, typer.Option(help="Share prefixes within a key only.", rich_help_panel="Access")
    ] = False,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="The model's name in requests; may be repeated.", show_default="its own"),
    ] = None,
    max_open: Annotated[
        int, typer.Option(help="Prompts at once; more get 429.", rich_help_panel="Limits")
    ] = _DEFAULTS.max_open,
    max_body_mib: Annotated[
        int, typer.Option(help="Of one request.", rich_help_panel="Limits")
    ] = _DEFAULTS.max_body_bytes >> 20,
    max_choices: Annotated[
        int, typer.Option(help="`n` of one request.", rich_help_panel="Limits")
    ] = _DEFAULTS.max_choices,
    request_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds until a request is given up.", rich_help_panel="Limits"),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(help="Seconds that open requests get at the end.", rich_help_panel="Limits"),
    ] = _DEFAULTS.drain_seconds,
    log_requests: Annotated[
        bool, typer.Option(help="One line of JSON a request, on stderr.")
    ] = True,
    settings: common.Settings = None,
) -> None:
    """Serve a model over HTTP, on this machine only unless told otherwise.

    \b
    Examples:
      radixgen serve
      radixgen serve ./my-model --port 9000 --served-model-name my-model
      radixgen serve --host 0.0.0.0 --api-key-file keys.txt --set policy=fair

    \b
      curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hi"}]}'
    """
    # Only here: other commands need not wait for the web framework to load.
    from radixgen.serve.server import Listen
    from radixgen.serve.server import serve as run_server

    parsed = common.parse_settings(settings or [])
    listen = Listen(host, port, uds, ssl_certfile, ssl_keyfile, ssl_ca_certs)
    keys = _keys(api_key, api_key_file)
    make_config(model, **parsed)  # refuse a wrong setting before anything is fetched
    name = resolve(model).name
    names = tuple(served_model_name or dict.fromkeys([name, model or name]))
    config = ServeConfig(
        model_names=names,
        api_keys=keys,
        admin_key=admin_key or env.read("RADIXGEN_ADMIN_KEY") or None,
        open_metrics=open_metrics,
        key_namespaces=key_namespaces,
        max_open=max_open,
        max_body_bytes=max_body_mib << 20,
        max_choices=max_choices,
        request_seconds=request_timeout,
        drain_seconds=drain_timeout,
    )
    if host not in LOOPBACK and uds is None and not keys:
        err.print(f"[yellow]warning:[/] anybody who reaches {escape(host)} can use this server")
    _log(log_requests)
    common.run_async(run_server(Launcher(model, parsed), config, listen, _say_ready(names[0])))


class Launcher:
    """Starts runtimes of one model, and ends them."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._model = model
        self._settings = settings

    async def start(self) -> EngineClient:
        return await AsyncRuntime(self._model, **self._settings).start()

    async def stop(self, client: EngineClient, *, drain: bool, timeout: float) -> None:
        assert isinstance(client, AsyncRuntime)
        await client.shutdown(drain=drain, timeout=timeout)


def _keys(given: list[str] | None, file: Path | None) -> tuple[str, ...]:
    keys = list(given or [])
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {file}: {error}") from None
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise ConfigError(f"--api-key-file {file} holds no key")
    from_env = env.read("RADIXGEN_API_KEY")
    return tuple([*keys, from_env] if from_env else keys)


def _log(requests: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=env.read("RADIXGEN_LOG"), format="%(levelname)s %(message)s"
    )
    access = logging.getLogger("radixgen.serve.access")
    access.setLevel(logging.INFO if requests else logging.CRITICAL)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False


def _say_ready(name: str) -> Any:
    def say(url: str) -> None:
        err.print(f"[bold]{escape(name)}[/] is served at [bold]{escape(url)}[/]; see {url}/docs")

    return say
