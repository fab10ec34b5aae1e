"""Does a grammar derive these bytes: the two questions that every test of a front end asks.

Slow and plain, in Python, one byte at a time. Knows expressions. Knows no token and no mask.
"""

from radixgen.grammars.automaton import Automaton
from radixgen.grammars.expr import Node


def accepts(node: Node, data: bytes) -> bool:
    """Whether `data` is in the language of `node`."""
    automaton = Automaton()
    state = automaton.run(automaton.start(node), data)
    return state is not None and automaton.is_accepting(state)


def allows_prefix(node: Node, data: bytes) -> bool:
    """Whether some string of the language of `node` begins with `data`."""
    automaton = Automaton()
    return automaton.run(automaton.start(node), data) is not None
