"""Does a grammar derive these bytes: the two questions that every test of a front end asks.

Slow and plain, in Python, one byte at a time. Knows expressions. Knows no token and no mask.
"""

from radixgen.grammars.automaton import Automaton, State
from radixgen.grammars.expr import Node


def accepts(node: Node, data: bytes) -> bool:
    """Whether `data` is in the language of `node`."""
    automaton = Automaton()
    state = run(automaton, automaton.start(node), data)
    return state is not None and automaton.is_accepting(state)


def allows_prefix(node: Node, data: bytes) -> bool:
    """Whether some string of the language of `node` begins with `data`."""
    automaton = Automaton()
    return run(automaton, automaton.start(node), data) is not None


def run(automaton: Automaton, state: State | None, data: bytes) -> State | None:
    """The state after a whole text, what depends on the text before it included."""
    for place in range(len(data)):
        state = automaton.run(state, data[place : place + 1])
        hooks = automaton.hooks(state) if state is not None else ()
        if state is not None and hooks:
            so_far = data[: place + 1]
            state = automaton.resolved(state, {hook: hook.resolve(so_far) for hook in hooks})
    return state
