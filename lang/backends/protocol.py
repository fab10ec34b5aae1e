"""What the language asks of a backend, and what it answers with."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from radixgen.lang.conversation import Conversation, Format
from radixgen.lang.ir import Gen, GenOptions, Node, Scores, Select
from radixgen.types import CacheHint

MIN_WARM_CHARACTERS = 64  # of new text; for less a request of its own costs more than it saves
MIN_SHARED_CHARACTERS = 512  # of less, over all that share it
MIN_CHARACTERS = 16


def is_worth_warming(num_characters: int, num_sharing: int) -> bool:
    """Whether text that so many will share is to be computed before they come."""
    if num_characters >= MIN_WARM_CHARACTERS:
        return True
    return num_characters >= MIN_CHARACTERS and (
        num_characters * num_sharing >= MIN_SHARED_CHARACTERS
    )


class Push(Protocol):
    """Where a backend puts the first choice's text, as it comes."""

    def __call__(self, piece: str, /) -> None:
        """The next piece of the answer."""
        ...

    def thought(self, piece: str, /) -> None:
        """The next piece of the thoughts, without their tags: all of them before the answer."""
        ...

    def found(self, prompt_tokens: int, cached_tokens: int) -> None:
        """What of the prompt was in the cache: told before the first piece, or never."""
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """One choice: its text, its token ids (empty where the backend has none) and how it went.

    `tail`: the end of `text` that `token_ids` do not spell, because it was cut inside a token.
    `thoughts`: without their tags, which `token_ids` do spell.
    """

    text: str
    token_ids: Sequence[int] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    tail: str = ""
    thoughts: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of the options, and the conversation's token ids after each of them."""

    scores: Scores
    branches: Sequence[Sequence[int]] = ()
    meta: dict[str, Any] = field(default_factory=dict)


class Backend(Format, Protocol):
    """Its coroutines run on `loop`; a cancelled one leaves nothing running behind it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def check(self, node: Node) -> None:
        """Raises InvalidRequest for what this backend cannot do or keep, before it is sent.

        `node`: a Gen or a Select, with the run's options filled in."""
        ...

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        """Continue the conversation, without changing it: one Generation a choice."""
        ...

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        """Score the options as continuations of the conversation."""
        ...

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        """Have the conversation so far in the cache; a backend without one does nothing."""
        ...

    async def flush_cache(self) -> None: ...

    async def server_info(self) -> Mapping[str, Any]: ...
