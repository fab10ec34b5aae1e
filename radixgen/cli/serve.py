"""`radixgen serve`: the runtime behind an HTTP API that OpenAI's and Anthropic's clients speak."""

import logging
import ssl
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from radixgen import env
from radixgen.cli import common, configfile
from radixgen.cli.common import err
from radixgen.client import EngineClient
from radixgen.errors import ConfigError
from radixgen.launch import AsyncRuntime, make_config
from radixgen.model.hub import resolve
from radixgen.serve.settings import METRICS_COMPAT, ServeConfig

_DEFAULTS = ServeConfig()
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MODEL, LISTENING, ACCESS = "Model and runtime", "Listening", "Access"
LIMITS, WATCHING = "Limits", "Watching"


def option(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a panel; that it has a twin in the environment is said once, above."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_envvar=False, **more)


def serve(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A directory, a .gguf file or a hub id. Default: RADIXGEN_MODEL, else the "
            "embedded SmolLM2-135M-Instruct.",
            callback=common.check_utf8,
            envvar="RADIXGEN_MODEL",
            show_envvar=False,
            show_default=False,
        ),
    ] = "",
    config: Annotated[
        Path | None,
        option(
            MODEL,
            "Read options from a .toml or .yaml file.",
            is_eager=True,
            callback=configfile.load,
            metavar="FILE",
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        option(
            MODEL,
            "The model's name in requests; may be repeated.",
            show_default="its own",
            callback=common.check_utf8,
        ),
    ] = None,
    reasoning_parser: Annotated[
        str,
        option(
            MODEL,
            "Whose tags are around the model's thoughts, such as qwen3 or deepseek-r1; auto: "
            "those that its chat template speaks of; none: thoughts are not told apart.",
            metavar="NAME",
        ),
    ] = _DEFAULTS.reasoning_parser,
    settings: Annotated[
        list[str] | None,
        option(
            MODEL,
            "A setting of the runtime, such as device=cuda or page_size=8; may be repeated. Or "
            "RADIXGEN_SET.",
            "--set",
            metavar="NAME=VALUE",
            callback=common.check_utf8,
            allow_from_autoenv=False,
        ),
    ] = None,
    host: Annotated[str, option(LISTENING, "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option(LISTENING, "0: any free one.", "--port", "-p")] = 8000,
    uds: Annotated[
        str | None, option(LISTENING, "Path of a Unix socket, in place of a port.", metavar="PATH")
    ] = None,
    ssl_certfile: Annotated[
        str | None, option(LISTENING, "TLS certificate chain.", metavar="FILE")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, option(LISTENING, "Its private key.", metavar="FILE")
    ] = None,
    ssl_ca_certs: Annotated[
        str | None, option(LISTENING, "Clients need a certificate of these.", metavar="FILE")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        option(
            ACCESS,
            "Needed by every request; may be repeated. Other users see flags: RADIXGEN_API_KEY is "
            "not shown to them.",
            metavar="KEY",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, option(ACCESS, "A file with one key a line.", metavar="FILE")
    ] = None,
    admin_key: Annotated[
        str | None,
        option(
            ACCESS,
            "Needed to flush, abort and see the cache, in place of an API key.",
            metavar="KEY",
        ),
    ] = None,
    key_namespaces: Annotated[bool, option(ACCESS, "Share prefixes within a key only.")] = False,
    max_open: Annotated[int, option(LIMITS, "Prompts at once; more get 429.")] = _DEFAULTS.max_open,
    max_body_mib: Annotated[int, option(LIMITS, "Size of one request.")] = _DEFAULTS.max_body_bytes
    >> 20,
    max_choices: Annotated[int, option(LIMITS, "`n` of one request.")] = _DEFAULTS.max_choices,
    request_timeout: Annotated[
        float | None,
        option(LIMITS, "Seconds until a request is given up.", show_default="none"),
    ] = None,
    drain_timeout: Annotated[
        float, option(LIMITS, "Seconds that open requests get at the end.")
    ] = _DEFAULTS.drain_seconds,
    log_requests: Annotated[
        bool, option(WATCHING, "One line of JSON a request, on stderr.")
    ] = True,
    open_metrics: Annotated[bool, option(WATCHING, "/metrics without a key.")] = False,
    metrics_compat: Annotated[
        str | None,
        option(
            WATCHING,
            f"/metrics also under the names of {' or '.join(METRICS_COMPAT)}.",
            metavar="NAME",
        ),
    ] = None,
    otlp_traces_endpoint: Annotated[
        str | None,
        option(WATCHING, "URL of an OpenTelemetry collector for traces.", metavar="URL"),
    ] = None,
) -> None:
    """Serve a model over HTTP, on this machine only unless told otherwise.

    Every option can also be set by a variable, --max-open by
    RADIXGEN_MAX_OPEN, and in a file, by `max-open = 64`; settings of the
    runtime stand there in a table `runtime`. A flag goes before a variable,
    and a variable before the file.

    \b
    Examples:
      radixgen serve
      radixgen serve ./my-model --port 9000 --served-model-name my-model
      radixgen serve --host 0.0.0.0 --api-key-file keys.txt --set policy=fair
      radixgen serve --config server.toml

    \b
      radixgen complete --chat "Hi"        # in another terminal
    """
    # Only here: other commands need not wait for the web framework to load.
    from radixgen.serve.server import Listen
    from radixgen.serve.server import serve as run_server

    parsed = configfile.runtime_settings(ctx) | common.runtime_settings(settings)
    listen = Listen(host, port, uds, ssl_certfile, ssl_keyfile, ssl_ca_certs)
    _check_tls(ssl_certfile, ssl_keyfile, ssl_ca_certs)
    keys = _keys(api_key, api_key_file)
    make_config(model, **parsed)  # refuse a wrong setting before anything is fetched
    name = resolve(model).name
    names = tuple(served_model_name or dict.fromkeys([name, model or name]))
    served = ServeConfig(
        model_names=names,
        api_keys=keys,
        admin_key=admin_key.strip() if admin_key else None,
        open_metrics=open_metrics,
        metrics_compat=metrics_compat,
        traces_endpoint=otlp_traces_endpoint,
        key_namespaces=key_namespaces,
        reasoning_parser=reasoning_parser,
        max_open=max_open,
        max_body_bytes=max_body_mib << 20,
        max_choices=max_choices,
        request_seconds=request_timeout,
        drain_seconds=drain_timeout,
    )
    for warning in configfile.unknown_variables(ctx):
        err.print("[yellow]warning:[/]", escape(warning))
    if host not in LOOPBACK and uds is None and not keys:
        err.print(f"[yellow]warning:[/] anybody who reaches {escape(host)} can use this server")
    _log(log_requests)
    common.run_async(run_server(Launcher(model, parsed), served, listen, _say_ready(names[0])))


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


def _check_tls(certificate: str | None, key: str | None, client_ca: str | None) -> None:
    """Raises ConfigError for files that TLS cannot use, before a model is loaded for nothing."""
    given = {"--ssl-certfile": certificate, "--ssl-keyfile": key, "--ssl-ca-certs": client_ca}
    for option, path in given.items():
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{option} {path}: there is no such file")
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:  # SSLError is one
        said = error.strerror or str(error)
        raise ConfigError(f"--ssl-certfile, --ssl-keyfile or --ssl-ca-certs: {said}") from None


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
    return tuple(keys)


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
        more = "ask by" if url.startswith("unix:") else f"see {url}/docs"
        more += f" `radixgen complete --url {url} …`" if url.startswith("unix:") else ""
        err.print(f"[bold]{escape(name)}[/] is served at [bold]{escape(url)}[/]; {escape(more)}")

    return say
