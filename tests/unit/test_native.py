"""Libraries are built once, by any number of processes, and their absence is bearable."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radixgen import native

SOURCE = "int answer(void) { return ANSWER; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RADIXGEN_NATIVE", "1")
    path = tmp_path / "source" / "answer.c"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def built(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "native").glob("*.so"))


def test_builds_with_flags_and_finds_it_again(source: Path, tmp_path: Path) -> None:
    library = native.load("answer", [source], ["-DANSWER=42"])
    assert library is not None
    assert library.answer() == 42
    (made,) = built(tmp_path)
    before = made.stat().st_mtime_ns
    assert native.build("answer", [source], ["-DANSWER=42"], native.cache_folder()) == made
    assert made.stat().st_mtime_ns == before
    assert native.load("answer", [source], ["-DANSWER=42"]) is library


def test_sources_headers_and_flags_name_the_library(source: Path, tmp_path: Path) -> None:
    folder = native.cache_folder()
    names = {native.build("answer", [source], [f"-DANSWER={i}"], folder).name for i in (1, 2)}
    source.write_text(SOURCE + "/* changed */\n")
    names.add(native.build("answer", [source], ["-DANSWER=1"], folder).name)
    (source.parent / "part.h").write_text("/* a header */\n")
    names.add(native.build("answer", [source], ["-DANSWER=1"], folder).name)
    assert len(names) == len(built(tmp_path)) == 4


def test_an_edit_while_it_compiles_is_not_in_the_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that edits the source before it reads what it is given."""
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    real = native.find_compiler()
    compiler.write_text(f'#!/bin/sh\necho "int answer(;" > {source}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=os.pathsep)
    native._version(str(compiler))  # which it edits as well, once
    source.write_text(SOURCE)
    texts, options = native._read([source]), (*native.FLAGS, "-DANSWER=3")
    name = f"answer-{native._fingerprint(str(compiler), texts, options)}"
    library = native.load("answer", [source], ["-DANSWER=3"])
    assert library is not None
    assert library.answer() == 3
    assert [path.stem for path in built(tmp_path)] == [name]
    assert source.read_text() != SOURCE


def test_builds_used_longest_ago_are_removed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "KEPT", 2)
    folder = native.cache_folder()

    def make(answer: int) -> Path:
        path = native.build("answer", [source], [f"-DANSWER={answer}"], folder)
        os.utime(path.with_suffix(".sha256"), (answer, answer))  # one second after the other
        return path

    other = native.build("other", [source], ["-DANSWER=0"], folder)
    first = make(1)
    loaded = native.load("answer", [source], ["-DANSWER=1"])
    assert loaded is not None
    os.utime(first.with_suffix(".sha256"), (1, 1))
    second = make(2)
    native.build("answer", [source], ["-DANSWER=1"], folder)  # a use
    third = make(3)
    assert built(tmp_path) == sorted([other, first, third])
    assert list(folder.glob(f"{second.stem}*")) == []
    os.utime(first.with_suffix(".sha256"), (1, 1))
    make(4)
    assert not first.exists()
    assert loaded.answer() == 1, "who has loaded it keeps it"


def test_a_library_removed_before_it_is_loaded_is_built_anew(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = native.build
    removed = list[Path]()

    def build_and_remove(*args: Any) -> Path:
        path = build(*args)
        if not removed:
            path.unlink()
            path.with_suffix(".sha256").unlink()
            removed.append(path)
        return path

    monkeypatch.setattr(native, "build", build_and_remove)
    library = native.load("answer", [source], ["-DANSWER=6"])
    assert library is not None
    assert library.answer() == 6
    assert removed


def test_what_a_killed_build_left_is_removed(source: Path) -> None:
    scratch = native.cache_folder() / "answer.scratch"
    scratch.mkdir(parents=True)
    (scratch / "answer.c").write_text("half")
    native.build("answer", [source], ["-DANSWER=1"], native.cache_folder())
    assert not scratch.exists()


def test_a_source_that_does_not_compile_warns_once(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text("int answer(void) { return nonsense; }\n")
    with caplog.at_level(logging.WARNING):
        assert native.load("broken", [source]) is None
        assert native.load("broken", [source]) is None
    assert len(caplog.records) == 1
    assert "nonsense" in caplog.text
    assert built(tmp_path) == []


def test_no_compiler_and_a_broken_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    assert native.load("nothing", [source]) is None
    assert "no C compiler on PATH" in caplog.text
    compiler = folder / "cc"
    compiler.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    compiler.chmod(0o755)
    assert native.load("refused", [source]) is None
    assert "out of order" in caplog.text


def test_a_cache_that_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "file"))
    assert native.load("answer", [source], ["-DANSWER=1"]) is None
    assert "without its C kernels" in caplog.text


def test_switched_off_without_a_word(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RADIXGEN_NATIVE", "0")
    assert native.load("answer", [source], ["-DANSWER=1"]) is None
    assert caplog.text == ""


def test_concurrent_starts_build_once(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from radixgen import native;"
        "lib = native.load('answer', [Path(sys.argv[1])], ['-DANSWER=7']); print(lib.answer())"
    )
    command = [sys.executable, "-c", code, str(source)]
    starts = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(4)
    ]
    assert [start.communicate(timeout=250)[0].strip() for start in starts] == ["7"] * 4
    assert len(built(tmp_path)) == 1


def test_a_damaged_library_is_built_anew(source: Path, tmp_path: Path) -> None:
    path = native.build("answer", [source], ["-DANSWER=5"], native.cache_folder())
    path.write_bytes(b"not a library")
    library = native.load("answer", [source], ["-DANSWER=5"])
    assert library is not None
    assert library.answer() == 5


def test_a_cut_library_is_built_again(source: Path, tmp_path: Path) -> None:
    folder, flags = native.cache_folder(), ["-DANSWER=8"]
    path = native.build("answer", [source], flags, folder)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])  # a full disk, a copy that was interrupted
    library = native.load("answer", [source], flags)
    assert library is not None
    assert library.answer() == 8
