"""Runs what a state is told, node by node, on the backend's event loop.

    caller's thread         submit(node) ─────▶ queue            returns at once
    backend's event loop                          └▶ drain: one task while there is work, then none

A state at rest costs no thread and no task, so there may be tens of thousands. What can be known to
be wrong with a node is raised where it is added. The first error after that ends the state:
everything later fails with that same error, and so does whoever waits for a value. Knows nodes,
conversations and the backend; nothing of how programs are written.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from radixgen.errors import InvalidRequest, RequestAborted, RuntimeUnavailable
from radixgen.lang.backends.protocol import Backend, Generation
from radixgen.lang.bell import Bell
from radixgen.lang.chat import start_of
from radixgen.lang.choices import needs_unconditional
from radixgen.lang.conversation import Conversation
from radixgen.lang.family import Relative
from radixgen.lang.habits import Habits
from radixgen.lang.ir import (
    ASKING,
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
    Thoughts,
    filled,
    gen_of,
    within,
)
from radixgen.lang.place import Place, note
from radixgen.lang.plan import RolePlan
from radixgen.lang.steps import (
    REASONING_META,
    Asked,
    Barrier,
    Fork,
    Listener,
    Told,
    answer_of,
    lead_answer,
    meta_of,
    names_of,
    settle_choice,
    settle_thoughts,
    skip,
    value_of,
)
from radixgen.lang.stream import Stream
from radixgen.lang.variables import Variable, running_loop
from radixgen.types import CacheHint, GrammarSpec

MAX_QUEUED = 100_000  # nodes that a program may be ahead of the model
TURN = 256  # nodes that are done one after the other, before others of the loop have their turn
_NOTHING = GrammarSpec("regex", "()")  # an answer of no characters


class Executor(Relative):
    """One state's queue, conversation and variables. `submit` from any thread."""

    def __init__(
        self,
        backend: Backend,
        options: GenOptions,
        program: str,
        parent: "Executor | None" = None,
        habits: Habits | None = None,
    ) -> None:
        super().__init__(parent)
        self.backend = backend
        self.options = options
        self.program = program
        self.habits: Habits = parent.habits if parent else habits or Habits()
        self.variables: dict[str, Variable] = dict(parent.variables) if parent else {}
        self.conversation = Conversation(backend)
        self.roles: RolePlan = parent.roles.copy() if parent else RolePlan(start_of(backend.chat))
        self.begin_text = 0  # characters of text that came from the parent
        self.stream = Stream()
        self.ret_value: Any = None  # of the program
        self.error: BaseException | None = None
        self.error_seen = False  # by whoever runs the program
        self.closed = False  # the program has returned: nothing more will come
        self.news = Bell()  # of variables and of the end
        self._queue: deque[Told] = deque()
        self._running: Told | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake_due = False
        self._cancelled = "the program was cancelled"
        self._scopes: dict[str, tuple[int, Variable]] = {}
        self._last_asked: Place | None = None

    # ---- from any thread ----

    @property
    def at_rest(self) -> bool:
        """The program has returned and everything it said is done."""
        runs = self._task is not None and not self._task.done()
        return self.closed and not self._queue and not runs

    def check(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes that would come next, with the run's options filled in.

        Raises InvalidRequest for what is known to be wrong with them.
        """
        if len(self._queue) >= MAX_QUEUED:
            raise InvalidRequest(
                f"the program is {MAX_QUEUED} steps ahead of the model: an endless loop? "
                "Read a value, or sync, inside it"
            )
        roles = self.roles.copy()
        said = [filled(node, self.options) for node in nodes]
        for node in said:
            if isinstance(node, ASKING):
                self.backend.check(gen_of(node) or node)
            else:
                roles.add(node)
        self.roles = roles
        return said

    def submit(self, node: Node, place: Place | None = None) -> None:
        """Do this after everything submitted before."""
        self._queue.append(Told(node, place, self._declare(node)))
        if self._task is not None or self._wake_due:
            return
        if running_loop() is self.backend.loop:
            self._wake()
            return
        self._wake_due = True
        try:
            self.backend.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # its loop is closed
            gone = RuntimeUnavailable("the backend of this program has been shut down")
            self.fail(gone)
            raise gone from None

    def cancel(self, reason: str = "the program was cancelled") -> None:
        """Stop what runs and drop what waits; the children's too. Done when nothing runs."""
        with contextlib.suppress(RuntimeError):  # a closed loop runs nothing
            self.backend.loop.call_soon_threadsafe(self._cancel, reason)

    def barrier(self, *, last: bool = False) -> Future[None]:
        """Done when everything submitted so far is; carries the state's error."""
        reached: Future[None] = Future()
        self.submit(Barrier(reached, last))
        return reached

    def end(self, error: BaseException) -> None:
        """The program raised: when this returns, the state has the error and nothing runs on."""
        ended = threading.Event()

        def end() -> None:
            try:
                self.fail(error)
                self._cancel(self._cancelled)
            except Exception as another:  # else whoever waits for the end would wait for ever
                error.add_note(f"while the program was being ended: {another!r}")
            finally:
                ended.set()

        loop = self.backend.loop
        if running_loop() is loop:
            end()
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)
        while not loop.is_closed():
            if ended.wait(0.5):
                return
        self.fail(error)

    def finish(self) -> Future[None]:
        """Nothing more will be submitted; done when all of it is."""
        self.closed = True
        reached = self.barrier(last=True)
        self.news.ring()
        return reached

    def drop(self) -> None:
        """`finish`, when nobody can add any more. A finalizer may call it in any thread, in the
        midst of anything."""
        with contextlib.suppress(RuntimeError):  # a closed loop runs nothing
            self.backend.loop.call_soon_threadsafe(self.finish)

    def await_name(self, name: str | None) -> None:
        """Block until the program has added a variable of that name, or has ended."""
        self.news.wait_for(lambda: name in self.variables or self.closed or self.error)

    def goes_on(self) -> None:
        """What this state said, another will continue. Called when all of it is done."""
        self.habits.went_on_after(self._last_asked)
        self._last_asked = None

    def _declare(self, node: Node) -> tuple[Variable, ...]:
        """Name the variables at once, so that reading one that never comes is an error."""
        names = names_of(node)
        if not names:
            return ()
        made = tuple(Variable() for _ in names)
        self.variables.update(zip(names, made, strict=True))
        self.news.ring()
        return made

    # ---- on the backend's loop ----

    def begin(self, conversation: Conversation) -> None:
        """A fork's start."""
        self.conversation = conversation
        self.begin_text = conversation.num_characters
        self.stream.begin(conversation.text_later())
        self.waits_for_parent = False
        self._wake()

    def _wake(self) -> None:
        self._wake_due = False
        if self.backend.loop.is_closed():
            return
        if self._task is None and not self.waits_for_parent and self._queue:
            self._task = self.backend.loop.create_task(self._drain())
            self._task.add_done_callback(self._drained)

    def _drained(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():  # before it could begin
            self.fail(RequestAborted(self._cancelled))
        elif (error := task.exception()) is not None:  # else whoever waits would wait for ever
            self.fail(error, self._running.place if self._running else None)
            self._running = None
        self._wake()

    async def _drain(self) -> None:
        num_done = 0
        while self._queue:
            told = self._running = self._queue.popleft()
            num_done += 1
            try:
                if num_done % TURN == 0:
                    await asyncio.sleep(0)
                if self.error is None:
                    await self._execute(told)
            except asyncio.CancelledError:
                self.fail(RequestAborted(self._cancelled), told.place)
            except Exception as error:
                self.fail(error, told.place)
            if self.error is not None:
                skip(told, self.error)
            self._running = None

    def fail(self, error: BaseException, place: Place | None = None) -> None:
        """The state's end: waiters see `error`, with the line of the program that met it."""
        if self.error is not None:
            return
        note(error, place)
        self.error = error
        self.waits_for_parent = False
        waiting = [self._running] if self._running else []
        for told in (*waiting, *self._queue):
            for variable in told.variables:
                variable.fail(error)
        for _, variable in self._scopes.values():
            variable.fail(error)
        self.stream.close(error)
        self.news.ring()
        self._wake()

    def _cancel(self, reason: str) -> None:
        for state in reversed(self.family()):
            state._stop(reason)

    def _stop(self, reason: str) -> None:
        self._cancelled = reason
        stops = self._task is not None and self._task.cancel()  # which one that has ended does not
        if not stops and not self.at_rest:
            self.fail(RequestAborted(reason))

    async def _execute(self, told: Told) -> None:
        match told.node:
            case Text(value):
                self._say(value)
            case Gen() as gen:
                self._settle(told, gen, await self._ask(gen, told))
            case Select() as select:
                await self._select(select, told)
            case RoleBegin(role):
                self.stream.push(self.conversation.open(role))
            case RoleEnd(role):
                self.stream.push(self.conversation.close(role))
            case ScopeBegin(name):
                self._scopes[name] = (self.conversation.num_pieces, told.variables[0])
            case ScopeEnd(name):
                start, variable = self._scopes.pop(name)
                text = self.conversation.text_since(start)
                variable.stream.push(text)
                variable.settle(text)
            case Reasoning() as reasoning:
                await self._reason(reasoning, told)
            case Call() as call:
                await self._call(call, told)
            case Fork(children):
                await self._fork(children)
            case Barrier() as barrier:
                self._reach(barrier)
            case _:
                raise InvalidRequest(f"a state cannot execute {type(told.node).__name__}")

    def _reach(self, barrier: Barrier) -> None:
        if barrier.last:
            self.habits.ended_after(self._last_asked)
            self.stream.close()
            if self.closed:
                self.leave()
        if not barrier.reached.done():
            barrier.reached.set_result(None)

    def _say(self, text: str, origin: Node | None = None) -> None:
        self._lead()
        self.conversation.say(text)
        self.stream.push(text, origin)

    def _lead(self) -> None:
        """What the chat template puts before a content that begins with the program's text."""
        self.stream.push(self.conversation.lead(answer=False))

    def _hint(self, place: Place | None, tool_seconds: float = 0.0) -> CacheHint:
        """What is known of the future: from the queue, else from earlier runs of the program."""
        self.habits.went_on_after(self._last_asked)
        self._last_asked = place
        following = self._queue[0].node if self._queue else None
        if following is None:
            last, forks = self.habits.is_last(place), self.habits.forks(place)
        else:
            last = isinstance(following, Barrier) and following.last
            forks = len(following.children) if isinstance(following, Fork) else 0
        name = self.options.program or self.program
        return CacheHint(name, last and not tool_seconds, forks, tool_seconds)

    async def _ask(self, gen: Gen, told: Told, tool_seconds: float = 0.0) -> Sequence[Generation]:
        """The model's answers; the first continues the conversation."""
        wanted = within(gen.thoughts, gen.options.max_tokens) if gen.thoughts else None
        thoughts, visible = lead_answer(self.conversation, self.stream, wanted)
        push = Listener(self.stream, gen, told, self._remember, thoughts if visible else None)
        said = gen if thoughts is gen.thoughts else replace(gen, thoughts=thoughts)
        hint = self._hint(told.place, tool_seconds)
        generations = await self.backend.generate(self.conversation, said, hint, push)
        push.end_thoughts()
        first = generations[0]
        first.meta["hint"] = hint
        if not push.has_found:
            self._remember(first.meta)
        text = answer_of(gen, first)
        if visible and thoughts is not None:
            text = thoughts.around(first.thoughts) + first.text
        self.conversation.hear(text, first.token_ids, first.tail)
        settle_thoughts(told, generations)
        return generations

    def _remember(self, meta: Mapping[str, Any]) -> None:
        prompt, cached = meta.get("prompt_tokens", 0), meta.get("cached_tokens", 0)
        conversation = self.conversation
        spelled = conversation.num_spelled
        self.asked.append(Asked(conversation.num_characters, prompt, cached, spelled))

    def _settle(self, told: Told, gen: Gen, generations: Sequence[Generation]) -> None:
        if told.variables:
            told.variables[0].settle(value_of(gen, generations), meta_of(generations))

    async def _select(self, node: Select, told: Told) -> None:
        thoughts = {} if node.thoughts is None else await self._think(node, node.thoughts, told)
        if len(node.choices) == 1 and not needs_unconditional(node.method):
            self._say(node.choices[0], node)
            meta = {"normalized_prompt_logprobs": [0.0]}
            settle_choice(told, node.choices[0], meta | thoughts)
            return
        hint = self._hint(told.place)
        self._lead()
        scored = await self.backend.score(self.conversation, node, hint)
        decision = node.method(scored.scores)
        text = node.choices[decision.index]
        self._remember(scored.meta)
        if scored.branches:
            self.conversation.settle(text, scored.branches[decision.index])
        else:
            self.conversation.say(text)
        self.stream.push(text, node)
        settle_choice(told, text, {**scored.meta, **decision.meta, **thoughts, "hint": hint})

    async def _think(self, node: Select, thoughts: Thoughts, told: Told) -> dict[str, Any]:
        """Have thoughts and no answer; returns what is told of them."""
        options = replace(node.options, max_tokens=thoughts.budget + 1, min_tokens=0, n=1)
        (generation,) = await self._ask(Gen(None, options, _NOTHING, thoughts=thoughts), told)
        return {name: generation.meta.get(name) for name in REASONING_META}

    async def _reason(self, node: Reasoning, told: Told) -> None:
        gen = node.inner
        if not isinstance(gen, Gen):
            raise InvalidRequest("separate_reasoning takes one gen")
        generations = await self._ask(gen, replace(told, variables=()))
        thought, closed, answer = generations[0].text.partition(node.end)
        if not closed:
            thought, answer = "", generations[0].text
        if told.variables:
            variable, reasoning = told.variables
            variable.stream.push(answer.strip())
            variable.settle((gen.parse or str)(answer.strip()), meta_of(generations))
            thought = thought.strip().removeprefix(node.begin).strip()
            reasoning.stream.push(thought)
            reasoning.settle(thought)

    async def _call(self, node: Call, told: Told) -> None:
        """Generate the call, carry it out, and add what came of it."""
        generations = await self._ask(node.gen, told, node.seconds())
        outcome = await node.run(generations[0].text)
        self._say(node.before + outcome.text + node.after)
        if told.variables:
            told.variables[0].settle(outcome, meta_of(generations))

    async def _fork(self, children: Sequence["Executor"]) -> None:
        self.habits.went_on_after(self._last_asked, len(children))
        self._last_asked = None
        self.children.update(children)
        self.stream.pause()
        if len(children) > 1 and self.conversation.num_characters:
            name = self.options.program or self.program
            hint = CacheHint(program=name, forks=len(children))
            await self.backend.warm(self.conversation, self.options, hint)
        for child in children:
            child.begin(self.conversation.copy())
