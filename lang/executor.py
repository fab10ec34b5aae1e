"""Runs what a state is told, node by node, on the backend's event loop.

    caller's thread         submit(node) ─────▶ queue            returns at once
    backend's event loop                          └▶ drain: one task while there is work, then none

A state at rest costs no thread and no task, so there may be tens of thousands. The first error ends
the state: everything after it fails with that same error, and so does whoever waits for a value.
Knows nodes, conversations and the backend; nothing of how programs are written.
"""

import asyncio
import linecache
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from radixgen.errors import InvalidRequest, RadixgenError, RequestAborted
from radixgen.lang.backends.protocol import Backend, Generation
from radixgen.lang.choices import needs_unconditional
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import (
    Call,
    Gen,
    GenOptions,
    Node,
    Reasoning,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
)
from radixgen.lang.stream import Stream
from radixgen.types import CacheHint

REASONING_SUFFIX = "_reasoning_content"  # SGLang's name for the variable that holds the thought


class Variable:
    """A value that comes later, the text it is read from, and how it was made."""

    __slots__ = ("meta", "stream", "value")

    def __init__(self) -> None:
        self.value: Future[Any] = Future()
        self.stream = Stream()
        self.meta: dict[str, Any] = {}

    def settle(self, value: Any, meta: dict[str, Any] | None = None) -> None:
        self.meta = meta or {}
        if not self.value.done():
            self.value.set_result(value)
        self.stream.close()

    def fail(self, error: BaseException) -> None:
        if not self.value.done():
            self.value.set_exception(error)
        self.stream.close(error)


def constant(value: Any) -> Variable:
    """A variable that has its value already."""
    variable = Variable()
    variable.stream.push(value if isinstance(value, str) else str(value))
    variable.settle(value)
    return variable


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program."""

    program: str
    filename: str
    line: int

    def __str__(self) -> str:
        source = linecache.getline(self.filename, self.line).strip()
        where = f"in program {self.program!r}, {self.filename}:{self.line}"
        return f"{where}: {source}" if source else where


@dataclass(frozen=True, slots=True)
class Fork(Node):
    """Children begin here, with the conversation as it then is."""

    children: tuple["Executor", ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Barrier(Node):
    """Everything before it has been done."""

    reached: Future[None] = field(repr=False)


class Executor:
    """One state's queue, conversation and variables. `submit` from any thread."""

    def __init__(
        self,
        backend: Backend,
        options: GenOptions,
        program: str,
        parent: "Executor | None" = None,
    ) -> None:
        self.backend = backend
        self.options = options
        self.program = program
        self.variables: dict[str, Variable] = dict(parent.variables) if parent else {}
        self.inherited = frozenset(self.variables)
        self.conversation = Conversation(backend)
        self.begin_text = 0  # characters of text that came from the parent
        self.stream = Stream()
        self.error: BaseException | None = None
        self.closed = False  # the program has returned: nothing more will come
        self._queue: deque[tuple[Node, Place | None]] = deque()
        self._waits_for_parent = parent is not None
        self._task: asyncio.Task[None] | None = None
        self._scopes: dict[str, int] = {}
        self._children: list[Executor] = []

    # ---- from any thread ----

    @property
    def at_rest(self) -> bool:
        """The program has returned and everything it said is done."""
        return self.closed and not self._queue and self._task is None

    def submit(self, node: Node, place: Place | None = None) -> None:
        """Do this after everything submitted before."""
        self._declare(node)
        self._queue.append((node, place))
        self.backend.loop.call_soon_threadsafe(self._wake)

    def cancel(self) -> None:
        """Stop what runs and drop what waits; the children's too. Done when nothing runs."""
        self.backend.loop.call_soon_threadsafe(self._cancel)

    def barrier(self) -> Future[None]:
        """Done when everything submitted so far is; carries the state's error."""
        reached: Future[None] = Future()
        self.submit(Barrier(reached))
        return reached

    def end(self, error: BaseException) -> None:
        """The program raised: when this returns, the state has the error and nothing runs on."""
        ended = threading.Event()

        def end() -> None:
            self.fail(error)
            self._cancel()
            ended.set()

        if _running_loop() is self.backend.loop:
            end()
        else:
            self.backend.loop.call_soon_threadsafe(end)
            ended.wait()

    def finish(self) -> Future[None]:
        """Nothing more will be submitted; done when all of it is."""
        self.closed = True
        return self.barrier()

    def _declare(self, node: Node) -> None:
        """Name the variables at once, so that reading one that never comes is an error."""
        if isinstance(node, Gen | Select | Call | ScopeBegin) and node.name is not None:
            self.variables[node.name] = Variable()
        elif isinstance(node, Reasoning) and isinstance(node.inner, Gen) and node.inner.name:
            self.variables[node.inner.name] = Variable()
            self.variables[node.inner.name + REASONING_SUFFIX] = Variable()

    # ---- on the backend's loop ----

    def begin(self, conversation: Conversation) -> None:
        """A fork's start."""
        self.conversation = conversation
        self.begin_text = len(conversation.text)
        self.stream.push(conversation.text)
        self._waits_for_parent = False
        self._wake()

    def _wake(self) -> None:
        if self._task is None and not self._waits_for_parent and self._queue:
            self._task = self.backend.loop.create_task(self._drain())
            self._task.add_done_callback(self._drained)

    def _drained(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():  # before it could begin
            self.fail(RequestAborted("the program was cancelled"))
        self._wake()

    async def _drain(self) -> None:
        while self._queue:
            node, place = self._queue.popleft()
            try:
                if self.error is None:
                    await self._execute(node)
            except asyncio.CancelledError:
                self.fail(RequestAborted("the program was cancelled"), place)
            except Exception as error:
                self.fail(error, place)
            if self.error is not None:
                self._skip(node, self.error)

    def fail(self, error: BaseException, place: Place | None = None) -> None:
        """The state's end: waiters see `error`, with the line of the program that met it."""
        if self.error is not None:
            return
        if place is not None and str(place) not in getattr(error, "__notes__", ()):
            error.add_note(str(place))
        self.error = error
        self._waits_for_parent = False
        for name, variable in self.variables.items():
            if name not in self.inherited and not variable.value.done():
                variable.fail(error)
        self.stream.close(error)
        self._wake()

    def _skip(self, node: Node, error: BaseException) -> None:
        """What a node owes to others when it is not executed."""
        if isinstance(node, Fork):
            for child in node.children:
                child.fail(error)
        elif isinstance(node, Barrier) and not node.reached.done():
            node.reached.set_exception(error)
        elif isinstance(node, Gen | Select | Call | ScopeBegin) and node.name is not None:
            self.variables[node.name].fail(error)

    def _cancel(self) -> None:
        for child in self._children:
            child._cancel()
        if self._task is not None:
            self._task.cancel()
        elif not self.at_rest:
            self.fail(RequestAborted("the program was cancelled"))

    async def _execute(self, node: Node) -> None:
        match node:
            case Text(value):
                self._say(value)
            case Gen():
                await self._generate(node)
            case Select():
                await self._select(node)
            case RoleBegin(role):
                self.stream.push(self.conversation.open(role))
            case RoleEnd(role):
                self.stream.push(self.conversation.close(role))
            case ScopeBegin(name):
                self._scopes[name] = len(self.conversation.pieces)
            case ScopeEnd(name):
                text = "".join(self.conversation.pieces[self._scopes.pop(name) :])
                self.variables[name].stream.push(text)
                self.variables[name].settle(text)
            case Reasoning():
                await self._reason(node)
            case Call():
                await self._call(node)
            case Fork(children):
                await self._fork(children)
            case Barrier(reached):
                if self.closed and not self._queue:
                    self.stream.close()
                reached.set_result(None)
            case _:
                raise InvalidRequest(f"a state cannot execute {type(node).__name__}")

    def _say(self, text: str) -> None:
        self.conversation.say(text)
        self.stream.push(text)

    def _hear(self, generation: Generation) -> None:
        self.conversation.hear(generation.text, generation.token_ids, generation.tail)

    def _hint(self) -> CacheHint:
        """What the queue knows of the future: a fork that follows, or the end."""
        following = self._queue[0][0] if self._queue else None
        forks = len(following.children) if isinstance(following, Fork) else 0
        last = self.closed and isinstance(following, Barrier)
        return CacheHint(program=self.options.program or self.program, last_use=last, forks=forks)

    async def _generate(self, node: Gen) -> None:
        variable = self.variables[node.name] if node.name is not None else None
        generations = await self._ask(node, variable)
        first = generations[0]
        self._hear(first)
        if variable is not None:
            variable.settle(self._value(node, generations), self._meta(generations))

    async def _ask(self, node: Gen, variable: Variable | None) -> Sequence[Generation]:
        def push(piece: str) -> None:
            self.stream.push(piece)
            if variable is not None:
                variable.stream.push(piece)

        said = replace(node, options=node.options.over(self.options))
        return await self.backend.generate(self.conversation, said, self._hint(), push)

    def _value(self, node: Gen, generations: Sequence[Generation]) -> Any:
        parse = node.parse or str
        values = [parse(generation.text) for generation in generations]
        return values if (node.options.n or self.options.n or 1) > 1 else values[0]

    @staticmethod
    def _meta(generations: Sequence[Generation]) -> dict[str, Any]:
        first = dict(generations[0].meta)
        if len(generations) > 1:
            first["choices"] = [generation.meta for generation in generations]
            first["texts"] = [generation.text for generation in generations]
        return first

    async def _select(self, node: Select) -> None:
        said = replace(node, options=node.options.over(self.options))
        if len(node.choices) == 1 and not needs_unconditional(node.method):
            self._say(node.choices[0])
            self._chosen(node, node.choices[0], {"normalized_prompt_logprobs": [0.0]})
            return
        scored = await self.backend.score(self.conversation, said, self._hint())
        decision = node.method(scored.scores)
        text = node.choices[decision.index]
        if scored.branches:
            self.conversation.settle(text, scored.branches[decision.index])
        else:
            self.conversation.say(text)
        self.stream.push(text)
        self._chosen(node, text, decision.meta)

    def _chosen(self, node: Select, text: str, meta: dict[str, Any]) -> None:
        if node.name is not None:
            self.variables[node.name].stream.push(text)
            self.variables[node.name].settle(text, meta)

    async def _reason(self, node: Reasoning) -> None:
        gen = node.inner
        if not isinstance(gen, Gen):
            raise InvalidRequest("separate_reasoning takes one gen")
        generations = await self._ask(gen, None)
        first = generations[0]
        self._hear(first)
        thought, closed, answer = first.text.partition(node.end)
        if not closed:
            thought, answer = "", first.text
        thought = thought.removeprefix(node.begin).strip()
        if gen.name is not None:
            parse = gen.parse or str
            self.variables[gen.name].stream.push(answer.strip())
            self.variables[gen.name].settle(parse(answer.strip()), self._meta(generations))
            reasoning = self.variables[gen.name + REASONING_SUFFIX]
            reasoning.stream.push(thought)
            reasoning.settle(thought)

    async def _call(self, node: Call) -> None:
        """Generate the call, carry it out, and add what came of it."""
        variable = self.variables[node.name] if node.name is not None else None
        generations = await self._ask(node.gen, variable)
        self._hear(generations[0])
        outcome = await node.run(generations[0].text)
        self._say(node.before + outcome.text + node.after)
        if variable is not None:
            variable.settle(outcome, self._meta(generations))

    async def _fork(self, children: Sequence["Executor"]) -> None:
        if len(children) > 1 and self.conversation.text:
            hint = CacheHint(program=self.program, forks=len(children))
            await self.backend.warm(self.conversation, hint)
        self._children.extend(children)
        for child in children:
            child.begin(self.conversation.copy())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wait_for(future: Future[Any], *, what: str) -> Any:
    """Block for a value, on a thread that may be blocked."""
    running = _running_loop()
    if running is None or future.done():
        return future.result()
    raise RadixgenError(
        f"{what} is not there yet, and waiting for it here would block the event loop {running!r}: "
        "make the program an `async def` and await it"
    )
