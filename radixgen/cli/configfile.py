"""Options of a command from a file and from the environment, under the names of its flags.

    flag --max-open  >  RADIXGEN_MAX_OPEN  >  `max-open` in the file  >  default

Reading and precedence are the command-line library's (`envvar`, `default_map`); here a file becomes
such a map, and whatever cannot be used is told with the place where it stands.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import yaml

from radixgen import env
from radixgen.config import setting_names
from radixgen.errors import ConfigError
from radixgen.types import unknown_name

RUNTIME = "runtime"  # the table of a file that holds settings of the runtime
PREFIX = "RADIXGEN"
_META = "radixgen.runtime_settings"
_NOT_IN_FILES = ("config", "settings", "help")
# Settings of the runtime with a variable of their own, which is above a file.
_OWN_VARIABLE = {"threads": "RADIXGEN_THREADS", "check": "RADIXGEN_CHECK"}


def load(ctx: typer.Context, path: Path | None) -> Path | None:
    """The callback of `--config`: takes in file and environment before other options are read.

    Raises ConfigError, naming file or variable, for a name that is no option and a wrong value.
    """
    if ctx.resilient_parsing:
        return path
    options = _options(ctx)
    if path is not None:
        given = read(path)
        table = given.pop(RUNTIME, {})
        ctx.meta[_META] = _checked_table(path, table)
        ctx.default_map = {
            name: _checked(ctx, options, name, value, str(path))
            for name, value in _named(path, given, options).items()
        }
    for variable, value in env.with_prefix(PREFIX + "_").items():
        name = variable.removeprefix(PREFIX + "_").lower()
        if name in options:
            _check_variable(ctx, options, name, variable, value)
    return path


def runtime_settings(ctx: typer.Context) -> dict[str, Any]:
    """Settings of the runtime that the file gives and no variable overrides."""
    table: dict[str, Any] = ctx.meta.get(_META, {})
    return {
        name: value
        for name, value in table.items()
        if name not in _OWN_VARIABLE or not env.is_set(_OWN_VARIABLE[name])
    }


def unknown_variables(ctx: typer.Context) -> list[str]:
    """A sentence for each RADIXGEN_* variable that is near a known one and is not one."""
    twins = {f"{PREFIX}_{name.upper()}" for name in _options(ctx)}
    known = sorted(twins | env.VARIABLES.keys())
    said = []
    for variable in env.with_prefix(PREFIX + "_").keys() - set(known):
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
        if near:
            said.append(f"{variable} is set and not known; did you mean {near[0]}?")
    return sorted(said)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a TOML or YAML file. Raises ConfigError."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"--config {path}: expected a file that ends in .toml, .yaml or .yml")
    try:
        text = path.read_text("utf-8")
        value = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:  # ValueError: TOML, UTF-8
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--config {path}: expected names and values, as in `port: 9000`")
    return value


def _options(ctx: typer.Context) -> dict[str, Any]:
    """Name -> parameter of the command, for those that a file may set."""
    return {
        param.name: param
        for param in ctx.command.params
        if param.name and param.name not in _NOT_IN_FILES
    }


def _named(path: Path, given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The file's keys as parameters: `max-open` and `max_open` are one."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name in found:
            raise ConfigError(f"{path}: {key} is given twice")
        if name not in options and name in setting_names():
            raise ConfigError(f"{path}: {key} is a setting of the runtime: put it under {RUNTIME}")
        if name not in options:
            known = {*(option.replace("_", "-") for option in options), RUNTIME}
            raise ConfigError(f"{path}: {unknown_name('option', key.replace('_', '-'), known)}")
        found[name] = value
    return found


def _checked_table(path: Path, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {RUNTIME} holds names and values, such as page_size and 8")
    names = setting_names().keys() - {"model"}  # which is an argument of the command
    found = {str(key).replace("-", "_"): value for key, value in table.items()}
    for name in found:
        if name not in names:
            raise ConfigError(f"{path}: {RUNTIME}: {unknown_name('setting', name, names)}")
    return found


def _checked(
    ctx: typer.Context, options: Mapping[str, Any], name: str, value: Any, place: str
) -> Any:
    """The value as the library may take it. Raises ConfigError where it would refuse it."""
    param = options[name]
    if getattr(param, "multiple", False) and isinstance(value, str):
        value = [value]
    if value is None or isinstance(value, dict):
        raise ConfigError(f"{place}: {name.replace('_', '-')} has no value that it can have")
    try:
        param.process_value(ctx, value)
    except typer.BadParameter as error:
        raise ConfigError(f"{place}: {name.replace('_', '-')}={value!r}: {error.message}") from None
    return value


def _check_variable(
    ctx: typer.Context, options: Mapping[str, Any], name: str, variable: str, value: str
) -> None:
    param = options[name]
    try:
        param.process_value(ctx, value.split() if getattr(param, "multiple", False) else value)
    except typer.BadParameter as error:
        hint = ""
        if value.startswith("tcp://"):
            hint = (
                ". Kubernetes sets it for a Service called radixgen: give the Service another "
                "name, or the pod enableServiceLinks: false"
            )
        raise ConfigError(f"{variable}={value!r}: {error.message}{hint}") from None
