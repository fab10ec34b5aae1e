"""Constrained-decoding engines behind one small face, for `grammar_speed` and for other harnesses.

Each has setup(vocab), compile(schema), reset(), fill(), allowed(token) and accept(token); `vocab`
needs `path` (of a tokenizer.json), `size`, `eos`, `special`, `raw` and `bytes` by id. The harness
takes the times around the calls; `allowed` is not timed.
"""

import json
from importlib.metadata import version
from typing import Any

import numpy as np


class Adapter:
    """What they share: a mask of one row, read one bit at a time."""

    row: Any
    max_seconds: float | None = None  # a compile may take for ever: try it in a child first

    def __init__(self, opts: dict[str, Any] | None = None) -> None:
        self.opts = opts or {}

    def allowed(self, token: int) -> bool:
        return bool(int(self.row[token >> 5]) >> (token & 31) & 1)


class Radixgen(Adapter):
    """This project, with its defaults."""

    def version(self) -> str:
        return "radixgen"

    def setup(self, vocab: Any) -> None:
        from radixgen.grammars.compiler import GrammarCompiler
        from radixgen.grammars.matcher import allocate_bitmask
        from radixgen.grammars.vocabulary import Vocabulary
        from radixgen.types import GrammarSpec

        tokens = [None if i in vocab.special else data for i, data in enumerate(vocab.bytes)]
        vocabulary = Vocabulary.from_tokens(tokens, vocab.eos, vocab.special)
        self.compiler, self.spec = GrammarCompiler(vocabulary), GrammarSpec
        self.mask = allocate_bitmask(1, vocabulary.size)
        self.row = self.mask[0].view(np.uint32)
        # What a server does at start: one grammar, so that code and common rows are in place.
        self.compile({"type": "object"})
        for token in b'{"a':
            self.fill()
            self.matcher.accept_bytes(bytes([token]))
        self.fill()

    def compile(self, schema: Any) -> None:
        self.grammar = self.compiler.compile(self.spec("json_schema", json.dumps(schema)))
        self.reset()

    def reset(self) -> None:
        self.matcher = self.grammar.matcher()

    def fill(self) -> None:
        self.matcher.fill_bitmask(self.mask, 0)

    def accept(self, token: int) -> bool:
        return self.matcher.accept_token(token)


class LLGuidance(Adapter):
    """llguidance through its numpy call."""

    def version(self) -> str:
        return "llguidance " + version("llguidance")

    def setup(self, vocab: Any) -> None:
        import llguidance
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        self.matcher_type, self.fill_call = llguidance.LLMatcher, fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(vocab.path, n_vocab=vocab.size, eos_token=vocab.eos)
        self.mask = allocate_token_bitmask(1, vocab.size)
        self.row = self.mask[0].view(np.uint32)

    def compile(self, schema: Any) -> None:
        grammar = self.matcher_type.grammar_from_json_schema(json.dumps(schema))
        self.first = self.matcher_type(self.tokenizer, grammar, log_level=0)
        if self.first.is_error():
            raise ValueError(self.first.get_error())
        self.matcher = self.first

    def reset(self) -> None:
        self.matcher = self.first.deep_copy()

    def fill(self) -> None:
        self.fill_call(self.matcher, self.mask, 0)

    def accept(self, token: int) -> bool:
        return bool(self.matcher.consume_token(token))


class XGrammar(Adapter):
    """xgrammar with the library's defaults: closed objects, any whitespace."""

    def version(self) -> str:
        return "xgrammar " + version("xgrammar")

    def setup(self, vocab: Any) -> None:
        import xgrammar

        self.lib = xgrammar
        info = xgrammar.TokenizerInfo(
            vocab.raw,
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=vocab.size,
            stop_token_ids=list(vocab.eos),
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.mask = xgrammar.allocate_token_bitmask(1, vocab.size)
        self.row = self.mask.numpy()[0].view("uint32")

    def compile(self, schema: Any) -> None:
        self.grammar = self.compiler.compile_json_schema(json.dumps(schema))
        self.reset()

    def reset(self) -> None:
        self.matcher = self.lib.GrammarMatcher(self.grammar)

    def fill(self) -> None:
        self.matcher.fill_next_token_bitmask(self.mask)

    def accept(self, token: int) -> bool:
        return bool(self.matcher.accept_token(token))


class OutlinesCore(Adapter):
    """outlines-core: the schema as one regex, indexed over the whole vocabulary."""

    max_seconds = 5.0

    def version(self) -> str:
        return "outlines_core " + version("outlines_core")

    def setup(self, vocab: Any) -> None:
        import outlines_core

        self.lib = outlines_core
        table: dict[bytes, list[int]] = {}
        for i, data in enumerate(vocab.bytes):
            if data and i not in vocab.special:
                table.setdefault(data, []).append(i)
        self.vocabulary = outlines_core.Vocabulary(vocab.eos[-1], table)
        self.row = np.zeros((vocab.size + 31) // 32, np.uint32)

    def compile(self, schema: Any) -> None:
        from outlines_core.json_schema import build_regex_from_schema

        pattern = build_regex_from_schema(json.dumps(schema))
        self.index = self.lib.Index(pattern, self.vocabulary)
        self.reset()

    def reset(self) -> None:
        self.guide = self.lib.Guide(self.index)

    def fill(self) -> None:
        self.guide.write_mask_into(self.row.ctypes.data, self.row.size, 4)

    def accept(self, token: int) -> bool:
        self.guide.advance(token, False)
        return True


ADAPTERS: dict[str, type[Any]] = {
    "radixgen": Radixgen,
    "llguidance": LLGuidance,
    "xgrammar": XGrammar,
    "outlines-core": OutlinesCore,
}
