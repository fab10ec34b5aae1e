"""All C under AddressSanitizer and UndefinedBehaviorSanitizer: its tests, run anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixgen import native
from radixgen.grammars import native_engine
from radixgen.kernels.library import SOURCES

VECTORS = {"native": (), "avx2": ("-DRK_AVX2",), "portable": ("-DRK_PORTABLE",)}
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
# Checked plain C is so much code that a compiler takes minutes to make it faster.
LEVELS = {"native": "-O1", "avx2": "-O1", "portable": "-O0"}
# The process loads the sanitizer first; torch's own leaks and the interpreter's are not ours.
OPTIONS = "detect_leaks=0:abort_on_error=0:verify_asan_link_order=0"
# One test of each operation, and those of odd shapes and places.
CHOSEN = (
    "rounded_activations or float_linear or pointwise or heads or 1000 or shared or unaligned"
    " or narrow or embedded or choices or few_and_many or not_finite"
)
CODE = """
import sys
import pytest
import torch
from radixgen.kernels import library, packed
flags = sys.argv[1].split()
plain = library.load
library.load = lambda *extra: plain(*extra, *flags)
# Each weight in memory of its own, whose end the sanitizer knows.
packed.take = lambda shape, dtype: torch.empty(shape, dtype=dtype)
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", sys.argv[2], "-k", sys.argv[3]]))
"""


GRAMMAR_CODE = """
import sys
import pytest
from radixgen import native
flags = sys.argv[1].split()
plain = native.load
native.load = lambda name, sources, more: plain(name, sources, (*more, *flags))
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def runtime_of_sanitizer() -> str:
    try:
        compiler = native.find_compiler()
    except native.BuildError as error:
        pytest.skip(str(error))
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    if not Path(found.stdout.strip()).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    return found.stdout.strip()


def run_checked(runtime: str, code: str, *arguments: str) -> None:
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": OPTIONS,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )
    assert "skipped" not in done.stdout
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("vectors", VECTORS)
def test_kernels_touch_only_their_memory(vectors: str) -> None:
    runtime = runtime_of_sanitizer()
    # Built here, not in the process below, where the sanitizer would watch the compiler as well.
    flags = (*FLAGS, LEVELS[vectors])
    native.build("kernels", SOURCES, (*VECTORS[vectors], *flags), native.cache_folder())
    tests = Path(__file__).with_name("test_c_kernels.py")
    run_checked(runtime, CODE, " ".join(flags), str(tests), f"{vectors} and ({CHOSEN})")


@pytest.mark.slow
def test_grammars_touch_only_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtime_of_sanitizer()
    flags = (*FLAGS, "-O1")

    def build(name: str, sources: list[Path], more: list[str]) -> None:
        native.build(name, sources, (*more, *flags), native.cache_folder())

    monkeypatch.setattr(native, "load", build)
    assert native_engine.load_library() is None
    folder = Path(__file__).parent.parent
    tests = (
        "property/test_grammar_core.py",
        "unit/test_budget_masks.py",
        "unit/test_grammar_limits.py",
        "unit/test_native_schemas.py",
    )
    run_checked(runtime, GRAMMAR_CODE, " ".join(flags), *(str(folder / name) for name in tests))
