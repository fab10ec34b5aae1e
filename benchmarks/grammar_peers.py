"""What other engines say of a schema's instances, for `grammar_conformance`: one process an engine.

    python -m benchmarks.grammar_peers ENGINE [SITE] < rows > answers

A row of input is a JSON list, a schema and the texts of its instances; its answer is a list of
whether each text is in the language, or a string that says why the schema was refused. Texts are
read byte by byte under a vocabulary of single bytes, so no tokenizer has a part in it. An engine
that takes longer than a limit for one schema is ended, and that schema counts as refused.
"""

import importlib.util
import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from benchmarks.harness import ROOT

Answer = list[bool] | str
Accepts = Callable[[bytes], bool]
END = 256  # the id of the end token behind the single bytes
SECONDS = 20.0  # for one schema with its instances


def _llguidance(_: bool) -> Callable[[str], Accepts]:
    llguidance: Any = import_module("llguidance")
    tokenizer = llguidance.LLTokenizer("byte")

    def compile_schema(source: str) -> Accepts:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(source)
        first = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())

        def accepts(text: bytes) -> bool:
            matcher = first.deep_copy()
            return bool(matcher.consume_tokens(list(text)) and matcher.is_accepting())

        return accepts

    return compile_schema


def _xgrammar(is_closed: bool) -> Callable[[str], Accepts]:
    xgrammar: Any = import_module("xgrammar")
    tokens = [*(bytes((byte,)) for byte in range(256)), b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile_schema(source: str) -> Accepts:
        grammar = compiler.compile_json_schema(source, strict_mode=is_closed)

        def accepts(text: bytes) -> bool:
            matcher = xgrammar.GrammarMatcher(grammar)
            if not matcher.accept_string(text):
                return False
            matcher.fill_next_token_bitmask(mask)
            return bool(int(mask[0, END >> 5]) >> (END & 31) & 1)

        return accepts

    return compile_schema


def _outlines_core(_: bool) -> Callable[[str], Accepts]:
    outlines_core: Any = import_module("outlines_core")
    build_regex: Any = import_module("outlines_core.json_schema").build_regex_from_schema
    vocabulary = outlines_core.Vocabulary(END, {bytes((byte,)): [byte] for byte in range(256)})

    def compile_schema(source: str) -> Accepts:
        index = outlines_core.Index(build_regex(source), vocabulary)

        def accepts(text: bytes) -> bool:
            guide = outlines_core.Guide(index)
            for byte in text:
                if byte not in guide.get_tokens():
                    return False
                guide.advance(byte, False)
            return bool(guide.is_finished())

        return accepts

    return compile_schema


# Name -> the module, how it is set up, and whether objects are closed that do not say so.
PEERS: dict[str, tuple[str, Callable[[bool], Callable[[str], Accepts]], bool]] = {
    "llguidance": ("llguidance", _llguidance, False),
    "xgrammar": ("xgrammar", _xgrammar, True),
    "xgrammar-open": ("xgrammar", _xgrammar, False),
    "outlines-core": ("outlines_core", _outlines_core, False),
}


def installed() -> list[str]:
    """The engines that can be imported here."""
    return [name for name, (module, _, _) in PEERS.items() if importlib.util.find_spec(module)]


class Peer:
    """An engine in a process of its own, started again after a time-out or a crash."""

    def __init__(self, name: str, site: str | None) -> None:
        self._command = [sys.executable, "-m", "benchmarks.grammar_peers", name]
        self._command += [] if site is None else [site]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, source: str, texts: Sequence[str]) -> Answer:
        """Whether each text is in the language of a schema, or why there is none."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps([source, list(texts)]), file=process.stdin, flush=True)
            ready, _, _ = select.select([process.stdout], [], [], SECONDS)
            line = process.stdout.readline() if ready else ""
        except OSError:
            line, ready = "", []
        if not line:
            self.close()
            return "it ended" if ready else f"it took over {SECONDS:g} seconds"
        answer: Answer = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _answer(compile_schema: Callable[[str], Accepts], row: Any) -> Answer:
    source, texts = row
    try:
        accepts = compile_schema(source)
        return [accepts(text.encode(errors="surrogatepass")) for text in texts]
    except Exception as error:  # each engine has its own ways to refuse
        return f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    name, *site = sys.argv[1:]
    sys.path.extend(site)
    _, make, is_closed = PEERS[name]
    compile_schema = make(is_closed)
    for line in sys.stdin:
        print(json.dumps(_answer(compile_schema, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
