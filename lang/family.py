"""Who was forked from whom: the states that end, fail and are counted together.

    root ─┬─ fork                     held by its parent until all that it was told is done
          └─ fork ─── fork of it      a state that has ended leaves: its forks become its parent's

So a program holds the states that still run or have failed, however many it has made. Knows
nothing of what states do.
"""

import weakref
from typing import Any, Self

from radixgen.errors import InvalidRequest
from radixgen.lang.steps import Asked

MAX_GENERATIONS = 10_000  # of forks of forks that a program may be ahead of the model


class Relative:
    """A state among its forks and theirs. Its forks are added on the backend's loop."""

    def __init__(self, parent: "Relative | None") -> None:
        self.asked: list[Asked] = []
        self.asked_by_forks: list[Asked] = []  # that have left
        self.children: set[Any] = set()  # of its own kind, like the parent
        self.waits_for_parent = parent is not None
        self._parent: weakref.ref[Any] | None = weakref.ref(parent) if parent else None
        # Of forks that wait for one another, when this one was made.
        self._generation: int = 1 if parent is None else parent._generation_of_fork()

    @property
    def is_fork(self) -> bool:
        return self._parent is not None

    def _generation_of_fork(self) -> int:
        return self._generation + 1 if self.waits_for_parent else 1

    def check_fork(self) -> None:
        """Raises InvalidRequest when forks of forks wait for one another too deeply: an endless
        chain of them would take all memory before the first one begins."""
        if self.waits_for_parent and self._generation >= MAX_GENERATIONS:
            self._generation = self._waiting()
            if self._generation >= MAX_GENERATIONS:
                raise InvalidRequest(
                    f"the program has forked {MAX_GENERATIONS} times from one fork to the next, "
                    "ahead of the model: an endless loop? Read a value, or sync, inside it"
                )

    def _waiting(self) -> int:
        """Itself and those before it that have not begun."""
        count = 0
        state: Any = self
        while state is not None and state.waits_for_parent:
            count += 1
            state = state._parent()
        return count

    def all_asked(self) -> list[Asked]:
        """What the model was asked by this state and its forks."""
        return [one for state in self.family() for one in (*state.asked, *state.asked_by_forks)]

    def family(self) -> list[Self]:
        """This state, its forks and theirs; a fork comes after what it is a fork of. They may be
        nested deeper than Python's stack is."""
        found = [self]
        for state in found:  # which grows meanwhile
            found.extend(state.children)
        return found

    def leave(self) -> None:
        """It has ended without an error: its parent takes over what is left of it, once."""
        parent = self._parent() if self._parent else None
        if parent is None:
            return
        try:
            parent.children.remove(self)  # by one thread alone, if two come at once
        except KeyError:
            return
        parent.asked_by_forks += self.asked + self.asked_by_forks
        for child in list(self.children):
            child._parent = weakref.ref(parent)
            parent.children.add(child)
