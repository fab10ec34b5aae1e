"""What is known of a constraint without a model: whether it can be kept, was kept, what it forces.

Knows grammars; no backend, no vocabulary.
"""

import contextlib
import json
from collections.abc import Iterator
from functools import lru_cache

from radixgen.errors import InvalidGrammar, InvalidRequest
from radixgen.grammars.automaton import Automaton, State
from radixgen.grammars.compiler import build
from radixgen.grammars.expr import RuleSet
from radixgen.lang.ir import Gen
from radixgen.types import GrammarSpec

MEMO_SIZE = 1024


@lru_cache(MEMO_SIZE)
def check_constraint(spec: GrammarSpec) -> None:
    """Raises InvalidGrammar for a constraint that cannot be read, kept or met."""
    try:
        if Automaton().start(build(spec, RuleSet())) is None:
            raise InvalidGrammar("the constraint cannot be satisfied: no text at all meets it")
    except RecursionError:
        raise InvalidGrammar("the constraint is nested too deeply; flatten it") from None


def check_thoughts(gen: Gen) -> None:
    """Raises InvalidRequest for what does not go with thoughts."""
    if gen.thoughts is None:
        return
    if gen.options.token_healing:
        message = "token_healing draws the prompt's end again, and thoughts begin after it"
        raise InvalidRequest(f"{message}: leave one out", "token_healing")
    if gen.options.constrained_law == "faithful":
        message = "thoughts have no law of their own: leave thinking or constrained_law out"
        raise InvalidRequest(message, "thinking")


def is_kept(spec: GrammarSpec, text: str) -> bool:
    """Whether a text that somebody else generated is whole under its constraint. Of JSON it is only
    asked that it parses: its layout is the generator's, its members are checked where it is read.
    """
    if spec.kind == "json_schema":
        return _is_json(text)
    automaton = Automaton()
    state = automaton.run(automaton.start(build(spec, RuleSet())), text.encode())
    return state is not None and automaton.is_accepting(state)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class ForcedText:
    """Follows a text that is written under a constraint and tells which of it was forced.

    A byte is forced where the constraint allows no other and the text could not end. `spec` None:
    nothing is.
    """

    def __init__(self, spec: GrammarSpec | None) -> None:
        self._automaton = Automaton()
        self._state: State | None = None
        if spec is not None:
            with contextlib.suppress(InvalidGrammar):
                self._state = self._automaton.start(build(spec, RuleSet()))

    def split(self, text: str) -> Iterator[tuple[bool, str]]:
        """The next piece of the text in runs of (forced, text)."""
        start, kind = 0, False
        for place, character in enumerate(text):
            forced = self._step(character.encode())
            if forced != kind and place > start:
                yield kind, text[start:place]
                start = place
            kind = forced
        if start < len(text):
            yield kind, text[start:]

    def _step(self, data: bytes) -> bool:
        """Whether all bytes of a character are forced."""
        forced = True
        for byte in data:
            if self._state is None:
                return False
            allowed = self._automaton.next_bytes(self._state)
            forced = forced and allowed == 1 << byte
            forced = forced and not self._automaton.is_accepting(self._state)
            self._state = self._automaton.step(self._state, byte)
        return forced
