"""What outputs of the same kind went on with: after these last tokens, which one came next?

    (namespace, constraint, program) ─▶ shelf: last LONG or SHORT tokens ─▶ next one, by majority

Requests of one kind write alike: the same keys, the same values, the same phrases. A shelf is a
suffix tree cut at two depths (G. Oliaro et al., SuffixDecoding, 2024), kept as two tables of
hashes: a collision costs a guess that is refused. Namespaces share nothing, so that nobody can
time what others wrote. Knows tokens only.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

LONG, SHORT = 6, 3  # tokens that must be the same
MAX_SHELVES = 64
MAX_CONTEXTS = 1 << 15  # of a shelf, about 170 bytes each; the oldest half goes
Entry = TypeVar("Entry")
_MOST = 4  # votes that a token can be ahead


class Shelf:
    """Outputs of one kind, as what followed their contexts."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}  # hash -> token, votes ahead

    def __len__(self) -> int:
        return len(self._next)

    def add(self, tokens: "array[int]", start: int) -> None:
        """Count what comes in `tokens` from `start` on; what is before is context."""
        for place in range(max(start, SHORT), len(tokens)):
            token = tokens[place]
            self._vote(hash(tokens[place - SHORT : place].tobytes()), token)
            if place >= LONG:
                self._vote(hash(tokens[place - LONG : place].tobytes()), token)
        if len(self._next) > MAX_CONTEXTS:
            for context in list(islice(self._next, len(self._next) // 2)):
                del self._next[context]

    def _vote(self, context: int, token: int) -> None:
        """By R. Boyer and J. Moore's majority vote: of a token seen in over half the cases, it
        remembers that one, in the room of one."""
        best, ahead = self._next.get(context, (token, 0))
        if token == best:
            self._next[context] = (best, min(ahead + 1, _MOST))
        elif ahead:
            self._next[context] = (best, ahead - 1)
        else:
            self._next[context] = (token, 1)

    def follow(self, last: Sequence[int], length: int, most: int) -> list[int]:
        """At most `most` tokens, each the usual one after the `length` tokens before it."""
        context, found = array("i", last[-length:]), list[int]()
        while len(context) == length and len(found) < most:
            best, ahead = self._next.get(hash(context.tobytes()), (0, 0))
            if not ahead:
                break
            found.append(best)
            context = context[1:]
            context.append(best)
        return found


class Recent(Generic[Entry]):
    """The entries used last, by key; one that is asked for and not there is made."""

    def __init__(self, make: Callable[[], Entry], most: int = MAX_SHELVES) -> None:
        self._make = make
        self._most = most
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def of(self, key: Hashable) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._make()
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry
