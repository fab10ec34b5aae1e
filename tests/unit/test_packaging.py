"""The house stands: packages are listed, links lead home, imports are light, names are sorted."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import radixgen

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
LINKED = {"grammars", "kernels", "lang"}


def found_packages() -> set[str]:
    """Dotted names of every folder with an `__init__.py` under the mapped ones."""
    found = set()
    for name, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            if name == "radixgen" and inner and inner[0] in LINKED:
                continue  # the same files by their links
            found.add(".".join((name, *inner)))
    return found


def test_every_package_is_in_the_build() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(found_packages())


@pytest.mark.parametrize("name", sorted(LINKED))
def test_links_lead_to_the_mapped_folders(name: str) -> None:
    link = ROOT / "radixgen" / name
    assert link.is_symlink()
    assert link.resolve() == (ROOT / SETUPTOOLS["package-dir"][f"radixgen.{name}"]).resolve()


def test_kernels_hold_nothing_at_import() -> None:
    """transformers probes for a distribution of that name; see the root conftest."""
    (statement,) = ast.parse((ROOT / "kernels" / "__init__.py").read_text("utf-8")).body
    assert isinstance(statement, ast.Expr)


def test_public_names_are_sorted_and_there() -> None:
    assert radixgen.__all__ == sorted(radixgen.__all__)
    for name in radixgen.__all__:
        assert getattr(radixgen, name).__name__ == name
    assert set(radixgen.__all__) <= set(dir(radixgen))
    with pytest.raises(AttributeError, match="no attribute 'Runtimes'"):
        radixgen.Runtimes  # noqa: B018


HEAVY = ("torch", "transformers", "triton", "zmq")


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("radixgen", HEAVY),
        ("radixgen.lang", ("torch", "transformers", "triton")),
        ("radixgen.grammars", HEAVY),
        ("radixgen.schedule.scheduler", HEAVY),
        ("radixgen.launch", ("torch", "transformers", "triton")),
        ("radixgen.__main__", ("torch", "transformers", "triton")),
    ],
)
def test_imports_are_light(module: str, unloaded: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({unloaded!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_file_is_long() -> None:
    folders = ("radixgen", "lang", "kernels", "grammars", "tests", "benchmarks")
    sources = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    too_long = {
        str(file.relative_to(ROOT)): lines
        for file in sources
        if (lines := len(file.read_text("utf-8").splitlines())) > 450
    }
    assert not too_long
