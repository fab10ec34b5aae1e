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
        if state is None:
            break
        state = step(automaton, state, data, place)
    return state


def step(automaton: Automaton, state: State, data: bytes, place: int) -> State | None:
    """The state after the byte at a place of a text."""
    after = automaton.step(state, data[place])
    hooks = automaton.hooks(after) if after is not None else []
    if after is None or not hooks:
        return after
    so_far = data[: place + 1]
    return automaton.resolved(after, {hook: hook.resolve(so_far) for hook in hooks})
