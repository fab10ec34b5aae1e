"""The only reader of `RADIXGEN_*` variables: name, type, default and one sentence each.

A malformed value is an error, never ignored. The README's table is tested to equal `VARIABLES`.
Beside these, flags of `serve` have twins that its command line reads under their own names.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from radixgen.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable. `parse` raises ValueError on a malformed text."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    meaning: str


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("a whole number of at least 1")
    return int(text)


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("debug, info, warning or error")
    return text.upper()


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split()]
    if not all(name and path for name, _, path in pairs):
        raise ValueError("NAME=FOLDER NAME=FOLDER")
    return {name: path for name, _, path in pairs}


VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable("RADIXGEN_ADAPTERS", _pairs, None, "LoRA adapters of the runtime, as the setting `adapters`: NAME=FOLDER NAME=FOLDER"),
        Variable("RADIXGEN_ADMIN_KEY", str, "", "key of a server's admin routes, as `serve --admin-key`"),
        Variable("RADIXGEN_API_KEY", str, "", "key that a server asks of every request, as `serve --api-key`, and that commands show to a server"),
        Variable("RADIXGEN_CACHE", str, "", "folder for fetched models and built kernels; empty: the user's cache folder"),
        Variable("RADIXGEN_CHECK", _flag, False, "1: check every invariant of tree, pages and scheduler after each step"),
        Variable("RADIXGEN_FORCE_MISS", _flag, False, "1: the radix cache finds nothing, for comparing with the cache off"),
        Variable("RADIXGEN_LOG", _level, "WARNING", "log level: debug, info, warning or error"),
        Variable("RADIXGEN_MODEL", str, "", "model used where none is named; empty: the embedded default"),
        Variable("RADIXGEN_NATIVE", _flag, True, "0: do not build or load the C kernels, run the references"),
        Variable("RADIXGEN_OFFLINE", _flag, False, "1: never fetch a model, use what is in the cache"),
        Variable("RADIXGEN_SET", str, "", "settings of the runtime that a command starts, as `--set`: NAME=VALUE NAME=VALUE"),
        Variable("RADIXGEN_THREADS", _count, None, "compute threads of the runtime; empty: one a physical core"),
        Variable("RADIXGEN_URL", str, "", "server that `complete`, `bench serve` and `cache` talk to; empty: http://127.0.0.1:8000"),
    )
}  # fmt: skip


def read(name: str) -> Any:
    """The parsed value of a declared variable, or its default when unset or empty.

    Raises ConfigError when the text does not parse, KeyError when the name is not declared.
    """
    variable = VARIABLES[name]
    text = os.environ.get(name, "").strip()
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not valid: expected {error}") from None


def is_set(name: str) -> bool:
    """Whether a variable has a value, its default not counted."""
    return bool(os.environ.get(name, "").strip())


def with_prefix(prefix: str) -> dict[str, str]:
    """Every variable that is set, not empty, and begins so."""
    found = {name: text.strip() for name, text in os.environ.items() if name.startswith(prefix)}
    return {name: text for name, text in sorted(found.items()) if text}


def cache_folder() -> Path:
    """The folder for fetched models, prepared tokenizers and built kernels; may not exist yet."""
    chosen = Path(read("RADIXGEN_CACHE") or platformdirs.user_cache_dir("radixgen"))
    return chosen.expanduser().absolute()


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a child process: this one's with some variables set."""
    return {**os.environ, **changes}
