"""Finds tool calls in a text that arrives in pieces. See `tools.py` for what they look like.

Linear in the text, and nothing of it is ever evaluated. A piece of text that may be the beginning
of a call is held back until that is decided.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from radixgen.serve.tools import CUSTOM_END, FUNCTION_END, OPENING, Tool, ToolChoice
from radixgen.types import Choice, FinishReason, Piece, SamplingParams

_HEADER = re.compile(
    r'<tool_call(?:>\n\{"name": "(?P<function>[^"]{1,128})", "arguments": '
    r'| name="(?P<custom>[^"]{1,128})">\n)'
)
MAX_HEADER = 300  # characters; what is longer without being a header is text


@dataclass(frozen=True, slots=True)
class Said:
    """Text beside calls."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call begins."""

    index: int
    name: str
    custom: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """The next piece of a call's arguments, or of its input."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A call is complete."""

    index: int


Event = Said | Called | Argument | Ended


class ToolCallParser:
    """Feed it text with `push`, and `finish` it once. Blanks around calls are not content.

    `last`: custom tools whose calls nothing follows, so that such a call ends with the text, and
    its input may hold what ends other calls.
    `stops`: the text may be cut within a call, which is none then: so a call is told at its end,
    and of one that was cut nothing is.
    """

    def __init__(self, last: frozenset[str] = frozenset(), *, stops: bool = False) -> None:
        self.num_calls = 0
        self._last = last
        self._stops = stops
        self._waiting: list[Event] = []  # of the call that is open, if such are told at their ends
        self._is_last = False  # whether the call that is open is one of these
        self._held = ""
        self._end = ""  # what closes the call that is open
        self._blank = ""  # may turn out to stand before a call

    def push(self, text: str) -> list[Event]:
        """What is certain after `text`."""
        self._held += text
        events = []
        while (event := self._next()) is not None:
            events.extend(event)
        return _joined(self._told(events))

    def finish(self, cut: str | None = None) -> list[Event]:
        """What was held back, now that nothing follows. `cut`: see `cut_of`; with `stops`, nothing
        is told of a call that it cut, as what is written of one is no text."""
        if cut is not None and self._stops and _begins_call(self._held, cut):
            self._held = ""
        events = self._told(self._rest())
        waiting, self._waiting = self._waiting, []
        return _joined([*events, *(waiting if cut is None else ())])

    def _told(self, events: list[Event]) -> list[Event]:
        """Those that may be told by now: all, or with `stops` none of a call that is open."""
        if not self._stops:
            return events
        told: list[Event] = []
        for event in events:
            is_inside = bool(self._waiting) or isinstance(event, Called)
            (self._waiting if is_inside else told).append(event)
            if isinstance(event, Ended):
                told += self._waiting
                self._waiting = []
        return told

    def _rest(self) -> list[Event]:
        """What was held back, as events."""
        held, self._held = self._held, ""
        if self._end:
            index, is_over = self.num_calls - 1, held.endswith(self._end)
            argument = held.removesuffix(self._end)
            events: list[Event] = [Argument(index, argument)] if argument else []
            return [*events, Ended(index)] if is_over else events
        text = self._blank + held
        return [Said(text)] if text.strip() or (text and not self.num_calls) else []

    def _next(self) -> list[Event] | None:
        """One step; None when more text is needed."""
        return self._inside() if self._end else self._outside()

    def _inside(self) -> list[Event] | None:
        index = self.num_calls - 1
        place = -1 if self._is_last else self._held.find(self._end)
        if place >= 0:
            argument, self._held = self._held[:place], self._held[place + len(self._end) :]
            self._end = ""
            events: list[Event] = [Argument(index, argument)] if argument else []
            return [*events, Ended(index)]
        cut = len(self._held) - _overlap(self._held, self._end)
        argument, self._held = self._held[:cut], self._held[cut:]
        return [Argument(index, argument)] if argument else None

    def _outside(self) -> list[Event] | None:
        place = self._held.find(OPENING)
        if place < 0:
            cut = len(self._held) - _overlap(self._held, OPENING)
            text, self._held = self._held[:cut], self._held[cut:]
            return list(self._say(text)) or None
        before, rest = self._held[:place], self._held[place:]
        header = _HEADER.match(rest)
        if header is None:
            if len(rest) < MAX_HEADER:
                self._held = rest
                return list(self._say(before)) or None
            self._held = rest[len(OPENING) :]
            return list(self._say(before + OPENING))
        events = list(self._say(before))
        self._blank = ""
        custom = header["custom"] is not None
        self._held, self._end = rest[header.end() :], CUSTOM_END if custom else FUNCTION_END
        self.num_calls += 1
        name = header["custom"] or header["function"]
        self._is_last = custom and name in self._last
        return [*events, Called(self.num_calls - 1, name, custom)]

    def _say(self, text: str) -> Iterator[Event]:
        """Text, with blanks at its end kept until something follows that is no call."""
        text = self._blank + text
        kept = text.rstrip()
        self._blank = text[len(kept) :]
        if kept:
            yield Said(kept)


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`, or all of it."""
    for length in range(min(len(mark), len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def _begins_call(held: str, cut: str) -> bool:
    """Whether a text that was cut before `cut` ends in the first line of a call, or may."""
    written = held + cut
    return written.startswith(OPENING) or (bool(cut) and OPENING.startswith(written))


def _joined(events: list[Event]) -> list[Event]:
    """Neighbouring texts and arguments as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Said) and isinstance(last, Said):
            joined[-1] = Said(last.text + event.text)
        elif isinstance(event, Argument) and isinstance(last, Argument):
            joined[-1] = Argument(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


Reader = Callable[[], ToolCallParser]


def sampling_of_calls(sampling: SamplingParams, choice: ToolChoice) -> SamplingParams:
    """Without stop strings where the whole answer is calls: they are for text, which there is
    none of."""
    return replace(sampling, stop=()) if choice.mode == "required" else sampling


def reader_of(tools: Sequence[Tool], choice: ToolChoice, sampling: SamplingParams) -> Reader | None:
    """Makes parsers for an answer that may hold calls; None where it may not. See `constrain`."""
    if not tools or choice.mode == "none":
        return None
    last = frozenset(tool.name for tool in tools if tool.is_last)
    return partial(ToolCallParser, last, stops=bool(sampling.stop or sampling.stop_token_ids))


def cut_of(end: Choice | Piece) -> str | None:
    """The stop string that cut a text, empty for a stop token; None where no stop did."""
    if end.finish_reason is not FinishReason.STOP:
        return None
    return end.stop_reason if isinstance(end.stop_reason, str) else ""


def told_reason(reason: FinishReason, last: Event | None) -> FinishReason:
    """Why an answer ended whose `last` event it is: one that has no tokens left behind a whole
    call is complete, and clients take what ran out of tokens for cut."""
    is_whole = reason is FinishReason.LENGTH and isinstance(last, Ended)
    return FinishReason.STOP if is_whole else reason


def parsed(text: str, reader: Reader, cut: str | None = None) -> list[Event]:
    """The events of a whole text; `cut`: see `ToolCallParser.finish`."""
    parser = reader()
    return _joined(parser.push(text) + parser.finish(cut))
