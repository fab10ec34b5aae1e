"""Masks that are put together of parts: those of wide loops, and of what stands beside them."""

import random

import numpy as np
import pytest

from radixgen.grammars.compiler import GrammarCompiler
from radixgen.grammars.matcher import GrammarMatcher, allocate_bitmask
from radixgen.grammars.vocabulary import Vocabulary
from radixgen.types import GrammarSpec

END = 256
VOCABULARY = Vocabulary.from_tokens([*(bytes([b]) for b in range(256)), None], [END])
# What comes before, so that the vocabulary was read for its loop; and loops of what may be empty,
# which lead to themselves, before and beside the wide one.
BEFORE = "[^a-z]{2}a"
PATTERNS = [
    "(?:(?:b?|c?)*[^a-z]{2}a)*b",
    "(?:(?:b?c?d?|e?)*[^a-z]{2}[ab])*b",
    "(?:(?:(?:b?|c)*d?)*|[^a-z]{2}a|(?:f?|g?)*h)*i",
    "(?:" + "|".join(f"[^{c}-z]{{2}}{c}" for c in "cdefghijklmnopqrst") + "|zz|z?y)*b",
]


def allowed(matcher: GrammarMatcher) -> set[int]:
    words = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(words, 0)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_has_all_that_is_accepted(pattern: str, seed: int) -> None:
    compiler, rng = GrammarCompiler(VOCABULARY), random.Random(seed)
    for source in (BEFORE, pattern):
        grammar = compiler.compile(GrammarSpec("regex", source))
        for _ in range(6):
            matcher, text = grammar.matcher(), b""
            while len(text) < 40 and (following := sorted(allowed(matcher) - {END})):
                accepted = [token for token in range(256) if matcher.fork().accept_token(token)]
                assert following == accepted, text
                text += bytes([rng.choice(following)])
                assert matcher.accept_token(text[-1])
