"""What a program says, as values: frozen nodes that the interpreter executes in order.

Owns the nodes and how they are put together with `+`. Knows no backend, no model and no state.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from radixgen.errors import InvalidRequest
from radixgen.thoughts import THINK, Tags, effort_budget
from radixgen.types import ConstrainedLaw, GrammarSpec, SamplingParams, Thinking

Role = Literal["system", "user", "assistant", "tool"]


class Node:
    """Anything that may be added to a state. `"text" + node + "text"` is a `Block`."""

    __slots__ = ()

    def __add__(self, other: "Node | str") -> "Block":
        return Block((*_parts(self), *_parts(other)))

    def __radd__(self, other: "Node | str") -> "Block":
        return Block((*_parts(other), *_parts(self)))


@dataclass(frozen=True, slots=True)
class Text(Node):
    """A literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Block(Node):
    """Nodes one after the other."""

    nodes: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    role: Role


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    role: Role


@dataclass(frozen=True, slots=True)
class ScopeBegin(Node):
    """From here on the text is also the value of the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd(Node):
    name: str


@dataclass(frozen=True)  # without slots: what is worked out from the settings is kept beside them
class GenOptions:
    """Sampling settings that a `gen`, a run or a backend may give; None: not said here.

    The one list of names: `over` lets a later voice win and `sampling` makes the request's
    parameters. Names are SGLang's and the OpenAI API's.
    """

    _over: ClassVar[tuple[Any, Any]] = None, None  # of an instance: the last other, and the outcome

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: off
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    token_healing: bool | None = None
    constrained_law: ConstrainedLaw | None = None
    grammar_mass: bool | None = None
    priority: int | None = None
    namespace: str | None = None
    lora: str | None = None  # an adapter of the runtime, by name
    program: str | None = None

    @cached_property
    def said(self) -> dict[str, Any]:
        """The settings that something is said of, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, other: Self) -> Self:
        """These settings, and `other`'s where nothing is said here."""
        if not other.said:
            return self
        below, both = self._over
        if below is not other:
            both = replace(other, **self.said)
            vars(self)["_over"] = other, both
        return both  # type: ignore[no-any-return]

    @cached_property
    def _params(self) -> SamplingParams:
        return self._sampling({})

    def _sampling(self, others: dict[str, Any]) -> SamplingParams:
        said = {name: value for name, value in self.said.items() if name not in _NOT_SAMPLING}
        said |= others
        said.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        if said.get("top_k") == -1:
            said["top_k"] = 0
        return SamplingParams(**said)

    def sampling(self, **others: Any) -> SamplingParams:
        """The request's parameters, with `others` instead of what is said here. Raises
        InvalidRequest for values out of range."""
        return self._sampling(others) if others else self._params


DEFAULT_MAX_TOKENS = 128
_NOT_SAMPLING = ("priority", "namespace", "lora", "program")


def as_texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    """One string or several, as a tuple."""
    return (stop,) if isinstance(stop, str) else tuple(stop)


@dataclass(frozen=True, slots=True)
class Thoughts(Node):
    """What the model is to think before it answers: at most `budget` tokens between `tags`, those
    of the model when None. `effort`: what was said instead of a number, for APIs that take that.

    A node of its own only as the writer of pieces of a stream.
    """

    budget: int
    tags: Tags | None = None
    effort: str | None = None

    def around(self, text: str) -> str:
        """Thoughts with their tags."""
        return f"{self.tags.begin}{text}{self.tags.end}" if self.tags else text

    def thinking(self) -> Thinking:
        """As a runtime takes it."""
        tags = self.tags or THINK
        return Thinking(self.budget, tags.begin, tags.end)


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """Let the model write. `parse` turns the text into the value of the variable `name`.

    With `thoughts` the model thinks first, and the text is what comes after.
    """

    name: str | None
    options: GenOptions = field(default_factory=GenOptions)
    grammar: GrammarSpec | None = None
    parse: Callable[[str], Any] | None = None
    extra_stop: tuple[str, ...] = ()  # of a dtype, beside those of `options`
    thoughts: Thoughts | None = None


ChoicesMethod = Callable[["Scores"], "Decision"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a choices method decides on: one entry an option, log-probabilities a token.

    `unconditional` is empty unless the method asked for it.
    """

    choices: tuple[str, ...]
    conditional: tuple[tuple[float, ...], ...]
    unconditional: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The option chosen, and what `get_meta_info` shows of how."""

    index: int
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Select(Node):
    """Choose the option that the model finds most likely here."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    options: GenOptions = field(default_factory=GenOptions)
    thoughts: Thoughts | None = None


@dataclass(frozen=True, slots=True)
class Reasoning(Node):
    """`inner`, whose generated text is split at `end` into thought and answer."""

    inner: Node
    begin: str
    end: str


def _parts(value: Node | str) -> tuple[Node, ...]:
    if isinstance(value, Block):
        return value.nodes
    if isinstance(value, Node):
        return (value,)
    if isinstance(value, str):
        return (Text(value),) if value else ()
    raise InvalidRequest(
        f"cannot add {type(value).__name__} to a program: a str or a node is needed"
    )


def as_nodes(value: Any) -> tuple[Node, ...]:
    """A str, a node or a list of them, flattened.

    Raises InvalidRequest for anything else, None included, with what it probably meant.
    """
    if isinstance(value, list | tuple):
        return tuple(node for item in value for node in as_nodes(item))
    if value is None:
        raise InvalidRequest(
            "cannot add None to a state: did a function forget to return its text?"
        )
    return _parts(value)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """Let the model choose one of `functions` and its arguments; run it; add what it returned."""

    name: str | None
    gen: Gen
    run: Callable[[str], Awaitable["ToolCall"]]
    before: str
    after: str
    seconds: Callable[[], float] = lambda: 0.0  # that running it will probably take


def max_tokens_of(gen: Gen) -> int:
    """Of the whole output; where nothing is said, thoughts are beside the answer's default."""
    if gen.options.max_tokens is not None:
        return gen.options.max_tokens
    return DEFAULT_MAX_TOKENS + (gen.thoughts.budget if gen.thoughts else 0)


def within(thoughts: Thoughts, max_tokens: int | None) -> Thoughts:
    """An effort is no number: it leaves tokens for the answer."""
    if thoughts.effort is None:
        return thoughts
    return replace(thoughts, budget=effort_budget(thoughts.effort, max_tokens))


ASKING = (Gen, Select, Call, Reasoning)  # nodes that the model is asked for


def filled(node: Node, options: GenOptions) -> Node:
    """A node, with `options` where it says nothing itself."""
    if not isinstance(node, ASKING):
        return node
    if isinstance(node, Call):
        return replace(node, gen=_filled_gen(node.gen, options))
    if isinstance(node, Reasoning):
        return replace(node, inner=filled(node.inner, options))
    if isinstance(node, Gen):
        return _filled_gen(node, options)
    own = node.options.over(options)
    return node if own is node.options else replace(node, options=own)


def _filled_gen(gen: Gen, options: GenOptions) -> Gen:
    own = gen.options.over(options)
    return gen if own is gen.options else replace(gen, options=own)


def gen_of(node: Node) -> Gen | None:
    """The `gen` that a node is or holds."""
    if isinstance(node, Gen):
        return node
    if isinstance(node, Call):
        return node.gen
    if isinstance(node, Reasoning):
        return gen_of(node.inner)
    return None


def thoughts_of(node: Node) -> Thoughts | None:
    """What the model thinks in a node before it answers."""
    if isinstance(node, Select):
        return node.thoughts
    gen = gen_of(node)
    return gen.thoughts if gen else None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made and the program carried out. The value of a `call` variable."""

    function: str
    arguments: dict[str, Any]
    result: Any
    text: str  # of the result, as the model sees it
