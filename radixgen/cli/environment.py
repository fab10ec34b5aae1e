"""`radixgen version` and `radixgen collect-env`: what runs here."""

import os
import platform
import shutil
import sys
from importlib import metadata

import psutil
from rich.table import Table

from radixgen import env
from radixgen.cli.common import out
from radixgen.errors import ConfigError
from radixgen.model.embedded import EMBEDDED

PACKAGES = ("radixgen", "torch", "triton", "transformers", "tokenizers", "safetensors", "gguf",
            "numpy", "pydantic", "pyzmq", "uvloop", "interegular", "lark", "fastapi", "uvicorn",
            "httpx2", "typer", "rich")  # fmt: skip


def version() -> None:
    """Print the version of radixgen.

    \b
    Example:
      radixgen version
    """
    out.print(installed("radixgen"))


def collect_env() -> None:
    """Print what a report of a problem should hold: machine, packages, settings. No secrets.

    \b
    Example:
      radixgen collect-env
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts().items():
        table.add_row(name, value)
    out.print(table)


def facts() -> dict[str, str]:
    """Name -> what is the case here, as text."""
    cores = psutil.cpu_count(logical=False) or 0
    memory = psutil.virtual_memory()
    model = env.cache_folder() / "models" / EMBEDDED.file_name
    return {
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": f"{cores} physical, {os.cpu_count()} logical",
        "memory": f"{memory.total >> 20:,} MiB, {memory.available >> 20:,} MiB free",
        "C compiler": shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "none",
        "GPU tool": shutil.which("nvidia-smi") or shutil.which("rocm-smi") or "none",
        "embedded model": f"{model}{'' if model.exists() else ' (not fetched yet)'}",
        **{name: installed(name) for name in PACKAGES},
        **{name: _variable(name) for name in env.VARIABLES},
        **{
            name: _shown(name, text)
            for name, text in env.with_prefix("RADIXGEN_").items()
            if name not in env.VARIABLES
        },
    }


def installed(name: str) -> str:
    """The version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _variable(name: str) -> str:
    try:
        value = env.read(name)
    except ConfigError as error:
        return f"malformed: {error}"
    return "" if value is None else _shown(name, str(value))


def _shown(name: str, text: str) -> str:
    return "(set, and not shown)" if text and name.endswith("_KEY") else text


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
