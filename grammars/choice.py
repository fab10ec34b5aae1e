"""A choice between given strings, of any number.

The strings are sorted once; a subtree of their prefix tree is a range of the sorted list. Ranges
of many strings are rules, expanded when a text gets there, so that 100,000 strings cost a sort
and then what the text visits.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from radixgen.errors import InvalidGrammar
from radixgen.grammars.context_free import check_options
from radixgen.grammars.expr import EPSILON, Node, RuleSet, concat, literal, union
from radixgen.types import OptionValue

EAGER = 32  # strings of a subtree that is built at once


def compile_choice(source: str, options: Mapping[str, OptionValue], rules: RuleSet) -> Node:
    """The front end of kind "choice": `source` is a JSON list of strings."""
    check_options(options, ())
    try:
        strings = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"a choice is a JSON list of strings: {error}") from None
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise InvalidGrammar("a choice is a JSON list of strings")
    return choice(strings, rules)


def choice(strings: Iterable[str], rules: RuleSet | None = None) -> Node:
    """Exactly one of the strings, as a byte expression. Raises InvalidGrammar without any."""
    try:
        words = sorted({string.encode() for string in strings})
    except UnicodeEncodeError:
        raise InvalidGrammar("a choice holds a lone surrogate, which is no character") from None
    if not words:
        raise InvalidGrammar("a choice needs at least one string")
    return _Tree(words, RuleSet() if rules is None else rules).node(0, len(words), 0)


class _Tree:
    """The prefix tree of sorted, distinct words."""

    def __init__(self, words: list[bytes], rules: RuleSet) -> None:
        self._words = words
        self._rules = rules

    def node(self, low: int, high: int, depth: int) -> Node:
        """What follows the first `depth` bytes that the words of a range share."""
        if high - low <= EAGER:
            return self._branch(low, high, depth)
        return self._rules.rule(
            (self, low, high), lambda: self._branch(low, high, depth), productive=True
        )

    def _branch(self, low: int, high: int, depth: int) -> Node:
        first, last = self._words[low], self._words[high - 1]
        if high - low == 1:
            return literal(first[depth:])
        shared = _shared(first, last, depth)
        head = literal(first[depth:shared])
        branches: list[Node] = []
        if len(first) == shared:  # a word that is a prefix of the others
            branches.append(EPSILON)
            low += 1
        while low < high:
            byte = self._words[low][shared]
            end = bisect_right(self._words, byte, low, high, key=lambda word: word[shared])
            branches.append(concat(literal(bytes((byte,))), self.node(low, end, shared + 1)))
            low = end
        return concat(head, union(*branches))


def _shared(one: bytes, other: bytes, start: int) -> int:
    """How long the common prefix of two distinct words is, known to reach `start`."""
    end = min(len(one), len(other))
    if one[start:end] == other[start:end]:
        return end
    while end - start > 1:  # they are equal before `start` and differ before `end`
        middle = (start + end) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            end = middle
    return start
