"""How a step's tokens are shared among prompts that do not fit into it together.

    oldest    |===================================|    half of the step, and what the others leave
    shorter   |===============|                        at most half as long: half of the rest
    shorter   |======|                                 at most half as long as that: likewise

In order of entry, but nobody waits for the end of a prompt of more than twice its length: each of
these leaves half of what it might take to the next. So a long prompt takes at most twice as long,
whatever comes meanwhile, and those of about the same length do not get in each other's way.
Knows lengths only.
"""

from collections.abc import Sequence


def nested(left: Sequence[int]) -> list[int]:
    """The places of those that take shares, in order of entry: each has at most half as many tokens
    `left` to compute as the one before."""
    places: list[int] = []
    for place, num_tokens in enumerate(left):
        if not places or is_shorter(num_tokens, left[places[-1]]):
            places.append(place)
    return places


def is_shorter(num_tokens: int, than: int) -> bool:
    """Whether a prompt need not wait for the end of another."""
    return 2 * num_tokens <= than


def shares(left: Sequence[int], budget: int) -> list[int]:
    """Of `budget` tokens, those for each prompt of which `left` tokens are to be computed."""
    places, given = nested(left), [0] * len(left)
    for depth, place in reversed(list(enumerate(places))):
        given[place] = min(left[place], (budget >> depth) - sum(given))
    for place, num_tokens in enumerate(left):
        if place not in places:
            given[place] = min(num_tokens, budget - sum(given))
    return given
