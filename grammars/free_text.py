"""Free text up to a trigger string: a deterministic machine over the triggers' prefixes.

Source: A. Aho and M. Corasick, "Efficient string matching", CACM 18(6), 1975. Knows strings and
what follows each. Knows no tags.

A state is the longest end of the text so far that begins a pattern. Each state is a rule,
expanded when a text gets there.
"""

from collections.abc import Iterable, Mapping

from radixgen.errors import InvalidGrammar
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import (
    ANY_CHAR,
    EPSILON,
    Node,
    Rule,
    RuleSet,
    chars,
    concat,
    star,
    union,
)
from radixgen.grammars.unicode_classes import invert


class FreeText:
    """Text in which the first pattern that occurs decides what follows.

    `after` says what follows each trigger, `excluded` what never occurs; `may_end`: the text may
    end before any trigger. Raises InvalidGrammar when a pattern hides another or is empty.
    """

    def __init__(
        self,
        rules: RuleSet,
        after: Mapping[str, Node],
        excluded: Iterable[str] = (),
        *,
        may_end: bool,
    ) -> None:
        self._rules = rules
        self._after: dict[str, Node | None] = {**dict.fromkeys(excluded), **after}
        self._may_end = may_end
        self._alphabet = sorted({letter for pattern in self._after for letter in pattern})
        self._prefixes = {p[:size] for p in self._after for size in range(len(p))}
        for trigger in after:
            for other in self._after:
                if other != trigger and other in trigger:
                    raise InvalidGrammar(
                        f"the trigger {trigger!r} can never occur, since {other!r} is in it"
                    )

    def node(self) -> Node:
        """The texts from the beginning."""
        if not self._after:
            return star(utf8(ANY_CHAR))
        if "" in self._after:
            raise InvalidGrammar("an empty string occurs everywhere; it cannot be a trigger")
        return self._state("")

    def _state(self, prefix: str) -> Rule:
        # From any state, a letter of no pattern and then a trigger lead on, so none is a dead end.
        alive = self._may_end or any(node is not None for node in self._after.values())
        return self._rules.rule((self, prefix), lambda: self._body(prefix), productive=alive)

    def _body(self, prefix: str) -> Node:
        onward: dict[str, list[tuple[int, int]]] = {"": list(invert(self._points()))}
        ways: list[Node] = [EPSILON] if self._may_end else []
        for letter in self._alphabet:
            text = prefix + letter
            found = next((p for p in self._after if text.endswith(p)), None)
            if found is None:
                target = self._longest_end(text)
                onward.setdefault(target, []).append((ord(letter), ord(letter)))
            elif (rest := self._after[found]) is not None:
                ways.append(concat(utf8(chars([(ord(letter), ord(letter))])), rest))
        ways.extend(concat(utf8(chars(points)), self._state(to)) for to, points in onward.items())
        return union(*ways)

    def _points(self) -> tuple[tuple[int, int], ...]:
        return tuple((ord(letter), ord(letter)) for letter in self._alphabet)

    def _longest_end(self, text: str) -> str:
        return next(text[i:] for i in range(len(text) + 1) if text[i:] in self._prefixes)
