"""Variables are declared, parsed and documented in one place."""

import re
from pathlib import Path

import pytest

from radixgen import env
from radixgen.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_unset_and_empty_give_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXGEN_NATIVE", raising=False)
    assert env.read("RADIXGEN_NATIVE") is True
    monkeypatch.setenv("RADIXGEN_NATIVE", " ")
    assert env.read("RADIXGEN_NATIVE") is True
    monkeypatch.setenv("RADIXGEN_NATIVE", "0")
    assert env.read("RADIXGEN_NATIVE") is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RADIXGEN_ADAPTERS", "law"),
        ("RADIXGEN_ADAPTERS", "law=a =b"),
        ("RADIXGEN_CHECK", "yes"),
        ("RADIXGEN_THREADS", "0"),
        ("RADIXGEN_THREADS", "many"),
        ("RADIXGEN_LOG", "loud"),
    ],
)
def test_a_malformed_value_is_an_error(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=rf"{name}='{text}' is not valid: expected (?!invalid)"):
        env.read(name)


def test_an_undeclared_name_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        env.read("RADIXGEN_UNHEARD_OF")


def test_the_readme_shows_the_variables() -> None:
    rows = re.findall(
        r"^\| `(RADIXGEN_\w+)` \| (.*) \|$", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    assert rows == [(v.name, v.meaning) for v in env.VARIABLES.values()]
    assert list(env.VARIABLES) == sorted(env.VARIABLES)


def test_nobody_else_reads_the_environment() -> None:
    readers = {
        str(file.relative_to(ROOT))
        for folder in ("radixgen", "lang", "kernels", "grammars")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"os\.(environ|getenv)", file.read_text("utf-8"))
    }
    assert readers <= {"radixgen/env.py"}
