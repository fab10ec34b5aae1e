"""What a program said, in colours: for terminals as it comes, for notebooks as HTML.

literal     the program's, or the chat template's
cached      of those, what the model had in its cache already
generated   the model's own choice
forced      the model had no choice: the constraint allowed nothing else
thought     what the model thought before it answered, where the conversation keeps that
"""

import html
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from radixgen.lang.constraints import ForcedText
from radixgen.lang.executor import Executor
from radixgen.lang.ir import Gen, Node, Thoughts
from radixgen.lang.steps import Asked
from radixgen.lang.stream import Written

if TYPE_CHECKING:
    from rich.console import Console

Kind = Literal["literal", "cached", "generated", "forced", "thought"]
Segment = tuple[Kind, str]
StateT = TypeVar("StateT")  # a ProgramState

TERMINAL = {"literal": "", "cached": "dim", "generated": "green", "forced": "bold blue"}
TERMINAL |= {"thought": "italic yellow"}
CSS = {
    "literal": "",
    "cached": "color:#8a8a8a",
    "generated": "background:#d7f5dd;color:#0b3d17",
    "forced": "background:#dbe7ff;color:#0b2a6b",
    "thought": "background:#fff3d1;color:#5c4300;font-style:italic",
}
_BOX = "white-space:pre-wrap;font-family:monospace;line-height:1.5"


def marked(pieces: Iterable[Written]) -> Iterator[Segment]:
    """Pieces as they come, with what the constraint of each forced told apart."""
    writer: Node | None = None
    follow = ForcedText(None)
    for origin, text in pieces:
        if origin is None:
            yield "literal", text
        elif isinstance(origin, Thoughts):
            yield "thought", text
        else:
            if origin is not writer:
                follow = ForcedText(origin.grammar if isinstance(origin, Gen) else None)
            for forced, part in follow.split(text):
                yield ("forced" if forced else "generated"), part
        writer = origin


def segments(executor: Executor) -> list[Segment]:
    """Everything that a state has said, neighbours of one kind joined."""
    found: list[Segment] = []
    for segment in coloured(executor, executor.stream.pieces):
        _join(found, segment)
    return found


def coloured(executor: Executor, pieces: Iterable[Written]) -> Iterator[Segment]:
    """Pieces as they come, literals told apart from what was cached of them.

    That is known once the model has been asked, so literals are held back until something else
    comes, or nothing does for a while. An error of `pieces` is raised after what came before it.
    """
    held, place = "", 0  # literals, and the characters before them
    try:
        for kind, text in marked(pieces):
            if kind == "literal" and text:
                held += text
                continue
            yield from _split_cached(held, place, executor)
            place, held = place + len(held) + len(text), ""
            if text:
                yield kind, text
    except Exception:
        yield from _split_cached(held, place, executor)
        raise
    yield from _split_cached(held, place, executor)


def _cached_characters(executor: Executor, asked: Asked) -> int:
    """Characters of the prompt that the model did not have to compute."""
    ids = executor.conversation.ids[: min(asked.cached_tokens, asked.spelled_tokens)]
    return min(len(executor.backend.decode(ids)), asked.position) if asked.cached_tokens else 0


def _split_cached(text: str, place: int, executor: Executor) -> Iterator[Segment]:
    """A literal is cached as far as the first request that contained it says."""
    asked = next((asked for asked in executor.asked if asked.position > place), None)
    cached = _cached_characters(executor, asked) if asked and text else 0
    split = min(max(cached - place, 0), len(text))
    if split:
        yield "cached", text[:split]
    if split < len(text):
        yield "literal", text[split:]


def _join(found: list[Segment], part: Segment) -> None:
    if found and found[-1][0] == part[0]:
        found[-1] = (part[0], found[-1][1] + part[1])
    else:
        found.append(part)


def as_html(executor: Executor) -> str:
    """The state as HTML, with a legend and its counts."""
    spans = "".join(
        f'<span class="{kind}" style="{CSS[kind]}" title="{kind}">{html.escape(text)}</span>'
        for kind, text in segments(executor)
    )
    legend = " ".join(f'<span style="{CSS[kind]}">{kind}</span>' for kind in CSS)
    notes = html.escape(summary(executor))
    if executor.error is not None:
        error = f"{type(executor.error).__name__}: {executor.error}"
        spans += f'<div style="color:#b00020">{html.escape(error)}</div>'
    return (
        f'<div class="radixgen"><div style="{_BOX}">{spans}</div>'
        f'<div style="font-size:85%">{legend} | {notes}</div></div>'
    )


def program_html(title: str, prefix: str) -> str:
    """A program as HTML: its signature, and the text that every run of it begins with."""
    begins = f'<div style="{_BOX}">{html.escape(prefix)}</div>' if prefix else ""
    return f'<div class="radixgen"><code>{html.escape(title)}</code>{begins}</div>'


def summary(executor: Executor) -> str:
    """How often the model was asked, forks included, and what of its prompts was reused."""
    everything = executor.all_asked()
    prompt = sum(asked.prompt_tokens for asked in everything)
    cached = sum(asked.cached_tokens for asked in everything)
    share = f" ({cached / prompt:.0%})" if prompt else ""
    times = len(everything)
    return f"{times} request{'s' * (times != 1)}, {prompt} prompt tokens, {cached} cached{share}"


def show(state: StateT, console: "Console | None" = None) -> StateT:
    """Write a state to the terminal, as it comes if it still runs; returns it when it is done.

    A literal appears with the answer that follows it, since only then it is known what of it came
    from the cache. Raises the program's error.
    """
    from rich.console import Console

    out = console or Console(highlight=False, soft_wrap=True)
    shown: Any = state
    executor: Executor = shown.executor
    stream = executor.stream
    parts: Iterable[Segment] = coloured(executor, stream.written())
    for kind, text in segments(executor) if stream.is_closed else parts:
        out.print(text, style=TERMINAL[kind], end="", markup=False)
    out.print()
    shown.sync()
    out.print(f"[{summary(executor)}]", style="dim", markup=False, highlight=False)
    return state
