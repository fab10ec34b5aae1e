"""`radixgen run`: programs from modules and files, their arguments, their errors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import write_tiny_model

from radixgen.cli.run import find
from radixgen.errors import InvalidRequest

PROGRAM = """
import asyncio
import radixgen as rg

@rg.function
def greet(s, name="you", n=3):
    s += f"Hello {name}, " + rg.gen("a", max_tokens=n, ignore_eos=True)

@rg.function
def broken(s):
    s += rg.gen("a", temperature=-1)

def tell(word):
    print("told", word)

async def later(word):
    await asyncio.sleep(0)
    print("told", word, "later")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "prog.py"
    path.write_text(PROGRAM)
    return str(path)


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "radixgen", "run", *args],
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_program_of_a_file(program: str, model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(f"{program}:greet", "-a", "name=Ann", "--model", model, "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello Ann, ")
    assert "1 request" in done.stdout
    assert 'class="generated"' in page.read_text("utf-8")


def test_a_function_of_a_file(program: str, model: str) -> None:
    assert run(f"{program}:tell", "--arg", "word=this", "--model", model).stdout == "told this\n"


def test_an_async_function_of_a_file(program: str, model: str) -> None:
    done = run(f"{program}:later", "--arg", "word=this", "--model", model)
    assert done.stdout == "told this later\n", done.stderr


@pytest.mark.parametrize(
    ("target", "args", "said"),
    [
        ("", (), "not one program but: greet, broken"),
        (":gret", (), "has no program or function 'gret'"),
        (":tell", (), "tell(): missing a required argument: 'word'"),
        (":tell", ("--html", "x"), "--html needs a program"),
        (":tell", ("-a", "n"), "--arg n: expected NAME=VALUE, such as n=3"),
    ],
)
def test_what_cannot_be_run(program: str, target: str, args: tuple[str, ...], said: str) -> None:
    if args:
        args = (*args, "-a", "word=x")
    done = run(program + target, *args)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_file.py", "there is no file no_such_file.py"),
        ("lang.programs.nothing", "there is no module lang.programs.nothing"),
    ],
)
def test_what_is_not_there(target: str, said: str) -> None:
    done = run(target)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "no program is named: give a file such as prog.py"),
        (":main", "no program is named: give a file such as prog.py"),
        ("./prog", "./prog is neither a .py file nor a module"),
    ],
)
def test_what_is_no_target(target: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        find(target)


def test_errors_say_the_line(program: str, model: str) -> None:
    done = run(f"{program}:broken", "--model", model)
    assert done.returncode == 2
    assert "temperature=-1 is not between" in done.stderr
    assert 's += rg.gen("a", temperature=-1)' in done.stderr
