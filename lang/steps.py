"""A node on its way through an executor, and what comes of it. Knows no loops and no backends."""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from radixgen.lang.backends.protocol import Generation
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import ASKING, Gen, Node, Reasoning, ScopeBegin, Thoughts, thoughts_of
from radixgen.lang.place import Place
from radixgen.lang.stream import Stream
from radixgen.lang.variables import Variable
from radixgen.thoughts import THINK, Tags, Trimmed

REASONING_SUFFIX = "_reasoning_content"  # SGLang's name for the variable that holds the thought
REASONING_META = ("reasoning_content", "reasoning_tokens")  # of `get_meta_info`


@dataclass(frozen=True, slots=True)
class Asked:
    """Where in the text the model was asked, and how much of the prompt was in the cache."""

    position: int  # characters of text before the answer
    prompt_tokens: int
    cached_tokens: int
    spelled_tokens: int = sys.maxsize  # the first ones, that are the text's: no hidden thoughts


@dataclass(frozen=True, slots=True)
class Fork(Node):
    """Children begin here, with the conversation as it then is."""

    children: tuple[Any, ...] = field(repr=False)  # executors, which know of this module


@dataclass(frozen=True, slots=True)
class Barrier(Node):
    """Everything before it has been done. `last`: nothing comes after it."""

    reached: Future[None] = field(repr=False)
    last: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """A node in the queue, where it was added, and the variables that it gives values to."""

    node: Node
    place: Place | None
    variables: tuple[Variable, ...]

    @property
    def variable(self) -> Variable | None:
        """Of the answer."""
        return self.variables[0] if self.variables else None

    @property
    def thoughts(self) -> Variable | None:
        """Of the thoughts before it."""
        return self.variables[1] if len(self.variables) > 1 else None


class Listener:
    """Takes what a backend says of an answer into the streams of a state and of variables.

    `remember` is told once how much of the prompt was in the cache, when the backend says so.
    `visible`: thoughts that are a part of the state's text, with their tags.
    """

    __slots__ = (
        *("_answer", "_closing", "_gen", "_is_visible", "_opening", "_remember", "_stream"),
        *("_thought", "_told", "has_found"),
    )

    def __init__(
        self,
        stream: Stream,
        gen: Gen,
        told: Told,
        remember: Callable[[Mapping[str, Any]], None],
        visible: Thoughts | None = None,
    ) -> None:
        self._stream, self._gen, self._told = stream, gen, told
        self._remember = remember
        self._is_visible = visible is not None
        self._opening, self._closing = visible, visible
        self._thought = Trimmed(end=True)
        self._answer = Trimmed(end=False) if trims(gen) else None
        self.has_found = False

    def __call__(self, piece: str) -> None:
        self.end_thoughts()
        read = self._answer.push(piece) if self._answer else piece
        self._stream.push(piece if self._is_visible else read, self._gen)
        if self._told.variable is not None:
            self._told.variable.stream.push(read)

    def thought(self, piece: str) -> None:
        self._begin_thoughts()
        if self._closing is not None:
            self._stream.push(piece, self._closing)
        if self._told.thoughts is not None:
            self._told.thoughts.stream.push(self._thought.push(piece))

    def _begin_thoughts(self) -> None:
        if self._opening is not None and self._opening.tags is not None:
            self._stream.push(self._opening.tags.begin, self._opening)
        self._opening = None

    def end_thoughts(self) -> None:
        """The answer begins, or there is none."""
        self._begin_thoughts()
        if self._closing is not None and self._closing.tags is not None:
            self._stream.push(self._closing.tags.end, self._closing)
        self._closing = None

    def found(self, prompt_tokens: int, cached_tokens: int) -> None:
        if not self.has_found:
            self.has_found = True
            self._remember({"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens})


_NAMING = (*ASKING, ScopeBegin)


def names_of(node: Node) -> tuple[str, ...]:
    """Of the variables that a node gives values to."""
    if not isinstance(node, _NAMING):
        return ()
    if isinstance(node, Reasoning):
        name = node.inner.name if isinstance(node.inner, Gen) else None
        return (name, name + REASONING_SUFFIX) if name else ()
    if node.name is None:
        return ()
    return (node.name, node.name + REASONING_SUFFIX) if thoughts_of(node) else (node.name,)


def skip(told: Told, error: BaseException) -> None:
    """What a node owes to others when it is not executed."""
    for variable in told.variables:
        variable.fail(error)
    if isinstance(told.node, Fork):
        for child in told.node.children:
            child.fail(error)
    elif isinstance(told.node, Barrier) and not told.node.reached.done():
        told.node.reached.set_exception(error)


def lead_answer(
    conversation: Conversation, stream: Stream, wanted: Thoughts | None
) -> tuple[Thoughts | None, bool]:
    """Say what the chat template puts before an answer; returns the thoughts as they are to be
    asked for here, and whether the conversation keeps them."""
    if wanted is None:
        stream.push(conversation.lead(answer=True))
        return None, False
    chat = conversation.form.chat
    tags = wanted.tags or (chat.tags if chat else THINK)
    visible = conversation.keeps_thoughts(tags)
    stream.push(conversation.lead(answer=True) if visible else conversation.lead_thoughts())
    if tags.begin and conversation.ends_with(tags.begin):
        tags = Tags("", tags.end)
    return replace(wanted, tags=tags), visible


def trims(gen: Gen) -> bool:
    """Whether blanks before an answer belong to the end of its thoughts, not to it."""
    return gen.thoughts is not None and gen.grammar is None


def answer_of(gen: Gen, generation: Generation) -> str:
    """What the variable is read from."""
    return generation.text.lstrip() if trims(gen) else generation.text


def value_of(gen: Gen, generations: Sequence[Generation]) -> Any:
    """What the variable becomes: a value, or one of each choice where several are asked for."""
    parse = gen.parse or str
    values = [parse(answer_of(gen, generation)) for generation in generations]
    return values if (gen.options.n or 1) > 1 else values[0]


def settle_thoughts(told: Told, generations: Sequence[Generation]) -> None:
    """Give the variable of the thoughts its value: one text, or one of each choice."""
    if told.thoughts is not None:
        texts = [generation.thoughts.strip() for generation in generations]
        told.thoughts.settle(texts if len(texts) > 1 else texts[0])


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
