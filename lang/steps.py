"""A node on its way through an executor, and what comes of it. Knows no loops and no backends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixgen.lang.backends.protocol import Generation
from radixgen.lang.ir import Call, Gen, Node, Reasoning, ScopeBegin, Select
from radixgen.lang.place import Place
from radixgen.lang.stream import Stream
from radixgen.lang.variables import Variable

REASONING_SUFFIX = "_reasoning_content"  # SGLang's name for the variable that holds the thought


@dataclass(frozen=True, slots=True)
class Asked:
    """Where in the text the model was asked, and how much of the prompt was in the cache."""

    position: int  # characters of text before the answer
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """A node in the queue, where it was added, and the variables that it gives values to."""

    node: Node
    place: Place | None
    variables: tuple[Variable, ...]


class Listener:
    """Takes what a backend says of an answer into the streams of a state and of a variable.

    `remember` is told once how much of the prompt was in the cache, when the backend says so.
    """

    __slots__ = ("_gen", "_remember", "_stream", "_variable", "has_found")

    def __init__(
        self,
        stream: Stream,
        gen: Gen,
        variable: Variable | None,
        remember: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._stream, self._gen, self._variable = stream, gen, variable
        self._remember = remember
        self.has_found = False

    def __call__(self, piece: str) -> None:
        self._stream.push(piece, self._gen)
        if self._variable is not None:
            self._variable.stream.push(piece)

    def found(self, prompt_tokens: int, cached_tokens: int) -> None:
        if not self.has_found:
            self.has_found = True
            self._remember({"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens})


def names_of(node: Node) -> tuple[str, ...]:
    """Of the variables that a node gives values to."""
    if isinstance(node, Reasoning):
        name = node.inner.name if isinstance(node.inner, Gen) else None
        return (name, name + REASONING_SUFFIX) if name else ()
    if isinstance(node, Gen | Select | Call | ScopeBegin) and node.name is not None:
        return (node.name,)
    return ()


def meta_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """What `get_meta_info` shows: of the first choice, and of all where there are several."""
    first = dict(generations[0].meta)
    if len(generations) > 1:
        first["choices"] = [generation.meta for generation in generations]
        first["texts"] = [generation.text for generation in generations]
    return first


def settle_choice(told: Told, text: str, meta: dict[str, Any]) -> None:
    """A select has decided."""
    if told.variables:
        told.variables[0].stream.push(text)
        told.variables[0].settle(text, meta)
