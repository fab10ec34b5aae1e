"""What a sequence is drawn from when that is not the masked law. Knows tokens and probabilities.

The scheduler asks before each draw and tells after it; what the law does with that is its own
matter (`radixgen.runtime.faithful`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from radixgen.batch import TokenMass


class Law(Protocol):
    """Follows one choice from its first token to its last, perhaps more than once."""

    def weights(self) -> Sequence[tuple[int, float]]:
        """(token id, natural log of its weight) for the next draw; all others have weight 1."""
        ...

    def take(self, token_id: int, mass: TokenMass) -> bool:
        """The next draw gave this. False: the choice is to begin anew, with nothing kept."""
        ...

    def restart(self) -> int:
        """Back to the beginning; returns the number of the attempt, which changes the draws."""
        ...

    def finish(self) -> None:
        """The choice is over as it is."""
        ...


LawFactory = Callable[[int], Law]
"""Takes the seed of a choice."""
