"""Several compilers in several threads at once: what they share is the same for all of them."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from radixgen.grammars import json_native
from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.engine import make_engine
from radixgen.grammars.matcher import allocate_bitmask
from radixgen.grammars.python_engine import PythonEngine
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

BYTES = [bytes([byte]) for byte in range(256)]
VOCABULARIES = [
    Vocabulary.from_tokens([*BYTES, None], [256]),
    Vocabulary.from_tokens([b'":', b'{"', b"12", b"aa", *BYTES, None], [260]),
]
THREADS = 4
# Scalars whose reading all compilers share (json_native.scalars), each in a schema of its own.
SCALARS: list[tuple[Any, Any]] = [
    *(({"type": "integer", "minimum": n, "maximum": 3 * n + 20}, 2 * n) for n in range(8)),
    *(({"type": "number", "multipleOf": n + 0.5}, 2 * n + 1) for n in range(4)),
    *(({"type": "string", "pattern": f"^a{{{n},}}b"}, "a" * n + "b") for n in range(4)),
    *(({"type": "string", "minLength": n, "maxLength": n + 3}, "x" * n) for n in range(4)),
    ({"type": "string", "format": "date"}, "2024-02-29"),
    ({"enum": [1, 2.5, "a", None]}, 2.5),
]
CASES = [
    (json.dumps({"type": "object", "properties": {"v": schema}, "required": ["v"]}), value)
    for schema, value in SCALARS
]


def masks(compiler: GrammarCompiler, source: str, value: Any) -> list[bytes]:
    """The masks along a text, each of which allows the next byte."""
    found = compiler.compile(GrammarSpec("json_schema", source)).matcher()
    vocabulary, rows = compiler.vocabulary, []
    for byte in json.dumps({"v": value}).encode():
        row = allocate_bitmask(1, vocabulary.size)
        found.fill_bitmask(row, 0)
        rows.append(row.tobytes())
        assert found.accept_bytes(bytes((byte,))), (source, found.error)
    assert found.is_accepting()
    return rows


@pytest.mark.parametrize("factory", [make_engine, PythonEngine])
def test_compilers_in_threads_find_what_one_alone_does(factory: Any) -> None:
    alone = [
        [masks(GrammarCompiler(one, engine_factory=factory), *case) for case in CASES]
        for one in VOCABULARIES
    ]
    json_native.scalars.cache_clear()
    compilers = [
        GrammarCompiler(VOCABULARIES[i % 2], engine_factory=factory) for i in range(THREADS)
    ]
    ready = threading.Barrier(THREADS)

    def work(index: int) -> None:
        ready.wait()
        for turn in range(len(CASES)):  # pairs of threads begin with the same, then part
            at = (turn + index // 2) % len(CASES)
            assert masks(compilers[index], *CASES[at]) == alone[index % 2][at], CASES[at]

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, index) for index in range(THREADS)]:
            done.result(60)
