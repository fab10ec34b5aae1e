"""What a program says before it depends on anything: found by running it on a state that records.

Arguments are stand-ins that may be added to the state but not looked into; the first use of one,
of a value, or of a fork ends the trace. So a program's own code runs once more, up to there.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from radixgen.lang.backends.protocol import Backend
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import (
    GenOptions,
    Node,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Text,
    as_nodes,
)
from radixgen.types import CacheHint


class _Stop(BaseException):
    """The trace has seen what it can. Not an Exception, so that a program's `except` lets it by."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The constant prefix. `complete`: the program ended before depending on anything."""

    nodes: tuple[Node, ...]
    complete: bool = False
    text: str = field(default="")


class _Argument:
    """Stands for an argument whose value is not known yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _stop(self, *_: Any, **__: Any) -> NoReturn:
        raise _Stop

    __str__ = __format__ = __len__ = __iter__ = __getitem__ = __call__ = _stop
    __bool__ = __int__ = __float__ = __index__ = __add__ = __radd__ = _stop
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __getattr__ = _stop
    __hash__ = None  # type: ignore[assignment]  # a dict look-up depends on the value


class _Recorder:
    """A state that only listens."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __iadd__(self, other: Any) -> Self:
        if isinstance(other, _Argument):
            raise _Stop
        for node in as_nodes(other):
            if not isinstance(node, Text | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd):
                raise _Stop
            self.nodes.append(node)
        return self

    def _role(self, role: Any, content: Any) -> Any:
        self.nodes.append(RoleBegin(role))
        if content is None:
            return _Block(self, RoleEnd(role))
        self.__iadd__(content)
        self.nodes.append(RoleEnd(role))
        return self

    def system(self, content: Any = None) -> Any:
        return self._role("system", content)

    def user(self, content: Any = None) -> Any:
        return self._role("user", content)

    def assistant(self, content: Any = None) -> Any:
        return self._role("assistant", content)

    def var_scope(self, name: str) -> Any:
        return _Block(self, None)

    def __getattr__(self, name: str) -> NoReturn:
        raise _Stop

    def __getitem__(self, name: str) -> NoReturn:
        raise _Stop

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise _Stop


class _Block:
    def __init__(self, recorder: _Recorder, end: Node | None) -> None:
        self._recorder, self._end = recorder, end

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, *_: object) -> None:
        if self._end is not None and kind is None:
            self._recorder.nodes.append(self._end)


def trace_program(
    function: Callable[..., Any], arg_names: Sequence[str], known: Mapping[str, Any]
) -> Trace:
    """The constant prefix of a program, given the arguments that are known.

    An error of the program ends the trace like anything else: the real run will raise it.
    """
    recorder = _Recorder()
    arguments = {name: known.get(name, _Argument(name)) for name in arg_names}
    complete = False
    try:
        result = function(recorder, **arguments)
        complete = _drive(result) if inspect.iscoroutine(result) else True
    except (_Stop, Exception):
        pass
    nodes = tuple(recorder.nodes)
    text = "".join(node.value for node in nodes if isinstance(node, Text))
    return Trace(nodes, complete, text)


def _drive(coroutine: Any) -> bool:
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    finally:
        coroutine.close()
    return False


async def constant_prefix(
    backend: Backend, trace: Trace, options: GenOptions, num_runs: int
) -> None:
    """Put a trace's text into the backend's cache, for that many runs."""
    conversation = Conversation(backend)
    for node in trace.nodes:
        match node:
            case Text(value):
                conversation.lead(answer=False)
                conversation.say(value)
            case RoleBegin(role):
                conversation.open(role)
            case RoleEnd(role):
                conversation.close(role)
    hint = CacheHint(program=options.program or "", forks=num_runs)
    await backend.warm(conversation, options, hint)
