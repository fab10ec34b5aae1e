"""Packs a step's events into the messages of each client. Knows rids and messages, no sockets.

Inside the runtime a request is called `"<client number>:<rid>"`, so that two clients may choose the
same rid and neither can name the other's request.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from radixgen.messages import StepOutput, Terminal, encode
from radixgen.schedule.request import Event, SequenceOutput

Frames = list[bytes]


def scoped(client: int, rid: str) -> str:
    """The name inside the runtime of a client's request."""
    return f"{client}:{rid}"


def unscoped(name: str) -> tuple[int, str]:
    """The inverse of `scoped`."""
    client, _, rid = name.partition(":")
    return int(client), rid


@dataclass(slots=True)
class _Mail:
    rows: list[tuple[str, SequenceOutput]] = field(default_factory=list)
    terminals: list[Terminal] = field(default_factory=list)

    def frames(self) -> list[Frames]:
        """Tokens first: a terminal message is the last that is said of its request."""
        steps = [encode(*_columns(self.rows))] if self.rows else []
        return steps + [encode(message) for message in self.terminals]


def pack(events: Iterable[Event]) -> dict[int, list[Frames]]:
    """Client number -> its messages, as frames, in the order in which they are to be sent."""
    mail: dict[int, _Mail] = {}
    for event in events:
        client, rid = unscoped(event.rid)
        box = mail.setdefault(client, _Mail())
        if isinstance(event, SequenceOutput):
            box.rows.append((rid, event))
        else:
            box.terminals.append(replace(event, rid=rid))
    return {client: box.frames() for client, box in mail.items()}


def _columns(rows: list[tuple[str, SequenceOutput]]) -> "tuple[StepOutput, array[int]]":
    ids = array("i")
    for _, row in rows:
        ids.extend(row.token_ids)
    logprobs = tuple(row.logprobs for _, row in rows)
    masses = tuple(row.grammar_masses for _, row in rows)
    cached = tuple(row.cached_tokens for _, row in rows)
    thoughts = tuple(row.num_thoughts for _, row in rows)
    step = StepOutput(
        rids=tuple(rid for rid, _ in rows),
        indices=tuple(row.index for _, row in rows),
        counts=tuple(len(row.token_ids) for _, row in rows),
        finish_reasons=tuple(row.finish_reason for _, row in rows),
        stop_reasons=tuple(row.stop_reason for _, row in rows),
        logprobs=logprobs if any(logprobs) else (),
        grammar_masses=masses if any(masses) else (),
        cached_tokens=cached if any(count is not None for count in cached) else (),
        num_thoughts=thoughts if any(thoughts) else (),
    )
    return step, ids
