"""Colours: who wrote what, what was cached, what a constraint forced; as text and as HTML."""

import io
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console
from scripted_backend import ScriptedBackend, chatml

from radixgen.lang import assistant, function, gen, select, user
from radixgen.lang.backends.protocol import Generation, Push
from radixgen.lang.chat import ChatFormat
from radixgen.lang.constraints import ForcedText
from radixgen.lang.conversation import Conversation
from radixgen.lang.ir import Gen
from radixgen.lang.transcript import as_html, coloured, marked, segments, show, summary
from radixgen.types import CacheHint, GrammarSpec


class CachingBackend(ScriptedBackend):
    """Says that the first `cached` tokens of a prompt were in the cache."""

    cached = 7
    early = False  # tell it before the answer

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        prompt_tokens = len(conversation.prompt())
        if self.early:
            push.found(prompt_tokens, self.cached)
        (first,) = await super().generate(conversation, gen, hint, push)
        first.meta.update(cached_tokens=self.cached, prompt_tokens=prompt_tokens)
        return [first]


@pytest.fixture
def backend() -> Iterator[CachingBackend]:
    made = CachingBackend()
    yield made
    made.close()


@function
def program(s: Any) -> None:
    s += "Once upon" + gen("a") + " & then " + gen("b", regex="[ab]c(de)+")


def run(backend: CachingBackend) -> Any:
    backend.answer = lambda text: "acde" if "then" in text else "<x>"
    return program.run(backend=backend)


def test_segments_tell_origins_apart(backend: CachingBackend) -> None:
    found = segments(run(backend).executor)
    assert found == [
        ("cached", "Once up"),
        ("literal", "on"),
        ("generated", "<x>"),
        ("literal", " & then "),
        ("generated", "a"),
        ("forced", "cde"),
    ]


def test_select_is_the_models(backend: CachingBackend) -> None:
    @function
    def chooses(s: Any) -> None:
        s += "yes or no? " + select("x", ["yes", "no"])

    assert segments(chooses.run(backend=backend).executor)[-1] == ("generated", "yes")


def test_html_is_escaped_and_whole(backend: CachingBackend) -> None:
    state = run(backend)
    page = state._repr_html_()
    assert page == as_html(state.executor)
    assert "&lt;x&gt;" in page
    assert "<x>" not in page
    for kind in ("literal", "cached", "generated", "forced"):
        assert f'class="{kind}"' in page
    assert "2 requests" in page
    assert "14 cached" in summary(state.executor)


def test_the_counts_include_forks(backend: CachingBackend) -> None:
    @function
    def forking(s: Any) -> None:
        s += "Once upon" + gen("a")
        forks = s.fork(3)
        forks += gen("x")
        forks.join()
        forks = s.fork(2)
        forks += gen("y")

    state = forking.run(backend=backend)
    assert summary(state.executor).startswith("6 requests, ")
    assert f"{6 * 7} cached" in summary(state.executor)


def test_html_of_a_failed_state_and_of_a_program(backend: CachingBackend) -> None:
    def broken(text: str) -> str:
        raise ValueError("<bad>")

    backend.answer = broken
    state = program.run(backend=backend, stream=True)
    with pytest.raises(ValueError, match="<bad>"):
        state.sync()
    assert "ValueError: &lt;bad&gt;" in state._repr_html_()
    shown = program._repr_html_()
    assert "Once upon" in shown
    assert "program(s)" in shown


@pytest.mark.parametrize("stream", [True, False])
def test_show_writes_the_text(backend: CachingBackend, stream: bool) -> None:
    backend.answer = lambda text: "acde" if "then" in text else "[b]x"
    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True)
    state = show(program.run(backend=backend, stream=stream), console)
    lines = out.getvalue().splitlines()
    assert lines[0] == "Once upon[b]x & then acde"
    assert lines[1].startswith("[2 requests, ")
    assert state["b"] == "acde"


def test_show_in_colours(backend: CachingBackend) -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, color_system="standard", soft_wrap=True, highlight=False
    )
    show(run(backend), console)
    assert "\x1b[32m<x>\x1b[0m" in out.getvalue()
    assert "\x1b[1;34mcde\x1b[0m" in out.getvalue()
    assert "\x1b[2mOnce up\x1b[0m" in out.getvalue()


def test_cached_text_is_known_with_the_first_piece_of_an_answer(backend: CachingBackend) -> None:
    go = threading.Event()

    def answer(text: str) -> str:
        if "then" in text:
            assert go.wait(60)
        return "x"

    backend.early, backend.answer = True, answer
    executor = program.run(backend=backend, stream=True).executor
    parts = coloured(executor, executor.stream.written())
    first = [next(parts) for _ in range(3)]
    go.set()
    assert first == [("cached", "Once up"), ("literal", "on"), ("generated", "x")]
    assert list(parts) == [("literal", " & then "), ("generated", "x")]
    assert len(executor.asked) == 2


def test_literals_before_a_fork_do_not_wait_for_it(backend: CachingBackend) -> None:
    go = threading.Event()

    def answer(_: str) -> str:
        assert go.wait(60)
        return "x"

    @function
    def forking(s: Any) -> None:
        s += "Once upon"
        forks = s.fork(2)
        forks += gen("a")
        forks.join()
        s += " a time"

    backend.answer = answer
    state = forking.run(backend=backend, stream=True)
    parts = coloured(state.executor, state.executor.stream.written())
    assert next(parts) == ("literal", "Once upon")
    go.set()
    assert list(parts) == [("literal", " a time")]
    assert list(state.text_iter()) == ["Once upon", " a time"]


def test_show_raises_what_the_program_raised(backend: CachingBackend) -> None:
    @function
    def fails(s: Any) -> None:
        s += user("hi")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        show(fails.run(backend=backend, stream=True), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        ("abc", "abc", "FFF"),
        ("a(b|c)d", "abd", "F.F"),
        ("(ab)*", "abab", ".F.F"),
        ("[xy]é!", "xé!", ".FF"),
        ("a", "ab", "F."),
    ],
)
def test_forced_text_is_where_nothing_else_was_allowed(pattern: str, text: str, shown: str) -> None:
    follow = ForcedText(GrammarSpec("regex", pattern))
    found = "".join(
        ("F" if forced else ".") * len(part)
        for piece in text
        for forced, part in follow.split(piece)
    )
    assert found == shown


def test_a_new_generation_follows_its_own_constraint() -> None:
    one, two = (gen("x", regex="ab"), gen("y", regex="(a|b)b"))
    pieces = [(one, "a"), (one, "b"), (None, "-"), (two, "ab")]
    assert list(marked(pieces)) == [
        ("forced", "a"),
        ("forced", "b"),
        ("literal", "-"),
        ("generated", "a"),
        ("forced", "b"),
    ]


def test_hidden_thoughts_are_no_cached_text(backend: CachingBackend) -> None:
    """They are in the prompt of what follows in their message, and not in the text."""

    def forgets(messages: list[dict[str, str]], generation: bool) -> str:
        kept = [m | {"content": m["content"].rpartition("</think>")[2]} for m in messages]
        return chatml(kept, generation)

    backend.chat = ChatFormat(forgets)
    backend.cached = 10**6
    backend.answer = lambda text: "<think>a long thought</think>A" if text.endswith("|>") else "B"

    @function
    def thinks(s: Any) -> None:
        s += user("Q") + assistant(gen("a", thinking=40) + " & " + gen("b"))

    found = segments(thinks.run(backend=backend).executor)
    assert [kind for kind, _ in found] == ["cached", "generated", "literal", "generated", "literal"]
    assert [text for _, text in found][1:] == ["A", " & ", "B", "<|end|>\n"]
