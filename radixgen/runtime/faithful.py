"""The model's own law given that a text obeys its grammar: what `faithful` constraints draw from.

A mask forbids tokens one by one. What it draws has the law  prod p(v|x) / legal(x)  over a text's
prefixes x, not  p(text) / p(any legal text): the two differ by the product of the legal masses, so
texts that begin likely and go on unlikely come out too often. Here each prefix x that was visited
keeps a bound on how likely a text drawn from p after x is to be legal:

    bound(x) = sum over legal v of p(v|x) bound(xv)           1 where nobody has been

A draw at x takes v with p(v|x) bound(xv). When x was chosen with the bound b and turns out to have
bound(x) < b, the difference is illegal mass that the choice of x did not know of: the attempt is
given up with probability 1 - bound(x) / b, and the text begins anew. What is not given up has
exactly the wanted law, and every attempt makes the next ones likelier to last. After MAX_RESTARTS
attempts are no longer given up: then the law is near the wanted one, and nears it with each text.

Sources: CARS (P. Parys et al., Constrained Adaptive Rejection Sampling, 2025) for the rejection,
ASAp (K. Park et al., Grammar-Aligned Decoding, 2024) for what is left without it.

Prefixes are kept by prompt, grammar and sampling parameters, and shared by all requests that agree
on them; so what a request draws depends on its seed and on what was drawn before it. Knows tokens
and probabilities; no pages: prefixes are worth keeping when their KV is gone.
"""

import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, log

from radixgen.batch import TokenMass
from radixgen.types import GrammarSpec, SamplingParams

MAX_RESTARTS = 64  # of a choice
MAX_PREFIXES = 200_000  # kept in all, about 200 bytes each
_LEAST = 1e-300  # a bound whose logarithm is still a number
_ROUNDING = 1e-12  # of the legal mass: less than that is no mass that was never visited


@dataclass(frozen=True, slots=True)
class LawKey:
    """Texts under equal keys are drawn from one law."""

    namespace: str
    prompt: bytes
    grammar: GrammarSpec
    sampling: SamplingParams

    @classmethod
    def of(
        cls, namespace: str, prompt_ids: "array[int]", grammar: GrammarSpec, params: SamplingParams
    ) -> "LawKey":
        law = replace(
            params, seed=None, n=1, logprobs=None, prompt_logprobs=None, grammar_mass=False
        )
        return cls(namespace, prompt_ids.tobytes(), grammar, law)


class Prefix:
    """A prefix that was visited. `own`: p of its last token; `legal`: p of all legal next ones."""

    __slots__ = ("bound", "children", "legal", "own", "parent")

    def __init__(self, parent: "Prefix | None", own: float) -> None:
        self.parent = parent
        self.own = own
        self.bound = 1.0
        self.legal: float | None = None
        self.children: dict[int, Prefix] = {}

    def visited(self) -> tuple[float, float]:
        """The mass of the next tokens taken before: as p, and as far as it may be legal."""
        children = self.children.values()
        return fsum(c.own for c in children), fsum(c.own * c.bound for c in children)

    def settle(self) -> None:
        """Bring the bounds up to date from here to the root."""
        prefix: Prefix | None = self
        while prefix is not None:
            if prefix.legal is not None:
                prefix.bound = min(prefix.bound, bound_of(prefix.legal, *prefix.visited()))
            prefix = prefix.parent


def bound_of(legal: float, visited: float, bounded: float) -> float:
    """How likely a legal end is at most: what `visited` tokens leave, and all of the others."""
    rest = legal - visited
    return bounded + (rest if rest > _ROUNDING * legal else 0.0)


class PrefixStore:
    """The prefixes of every law drawn from of late; the longest unused law is forgotten first."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._roots: OrderedDict[LawKey, Prefix] = OrderedDict()
        self._sizes: dict[LawKey, int] = {}
        self.num_prefixes = 0

    def law(self, key: LawKey, seed: int) -> "FaithfulLaw":
        """For one choice."""
        if key not in self._roots:
            self._roots[key] = Prefix(None, 1.0)
            self._sizes[key] = 1
            self.num_prefixes += 1
        self._roots.move_to_end(key)
        return FaithfulLaw(self, key, self._roots[key], seed)

    def child(self, key: LawKey, parent: Prefix, token_id: int, own: float) -> Prefix | None:
        """The prefix one token on; None when there is no room to remember it."""
        child = parent.children.get(token_id)
        if child is None:
            if key not in self._sizes or not self._make_room(key):
                return None
            child = parent.children[token_id] = Prefix(parent, own)
            self._sizes[key] += 1
            self.num_prefixes += 1
        return child

    def _make_room(self, key: LawKey) -> bool:
        while self.num_prefixes >= self._max_prefixes and len(self._roots) > 1:
            oldest = next(iter(self._roots))
            if oldest == key:
                self._roots.move_to_end(key)
                continue
            del self._roots[oldest]
            self.num_prefixes -= self._sizes.pop(oldest)
        return self.num_prefixes < self._max_prefixes


class FaithfulLaw:
    """See `radixgen.schedule.law.Law`. Draws of its own, by `seed`, decide what is given up."""

    def __init__(self, store: PrefixStore, key: LawKey, root: Prefix, seed: int) -> None:
        self._store = store
        self._key = key
        self._root = root
        self._seed = seed
        self._attempt = 0
        self._begin()

    def _begin(self) -> None:
        self._coins = random.Random(f"{self._seed}:{self._attempt}")
        self._prefix: Prefix | None = self._root
        self._deepest = self._root
        self._believed = 0.0  # what the way here took this prefix's bound to be; none to the root
        self._offered: dict[int, float] = {}  # bounds in the draw under way
        self._visited = (0.0, 0.0)  # masses in that draw, as of Prefix.visited

    def weights(self) -> Sequence[tuple[int, float]]:
        prefix = self._prefix or Prefix(None, 1.0)
        self._visited = prefix.visited()
        self._offered = {
            token: max(child.bound, _LEAST)
            for token, child in prefix.children.items()
            if child.bound < 1
        }
        return [(token, log(bound)) for token, bound in self._offered.items()]

    def take(self, token_id: int, mass: TokenMass) -> bool:
        bound = bound_of(mass.legal, *self._visited)
        if self._prefix is not None:
            self._prefix.legal = mass.legal
        lasts = self._coins.random() * self._believed < bound
        if not lasts and self._attempt < MAX_RESTARTS:
            return False
        self._believed = self._offered.get(token_id, 1.0)
        if self._prefix is not None:
            self._prefix = self._store.child(self._key, self._prefix, token_id, mass.own)
        if self._prefix is not None:
            self._deepest = self._prefix
        return True

    def restart(self) -> int:
        self.finish()
        self._attempt += 1
        self._begin()
        return self._attempt

    def finish(self) -> None:
        self._deepest.settle()
