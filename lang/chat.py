"""Roles as text, by the model's own chat template.

A template renders whole conversations; a program grows one piece by piece. `ChatFormat` asks the
template with placeholders for contents and cuts out what stands around each of them, so that a
conversation that grows is always a prefix of itself. Knows no tokens.

    … content | closing | opening | before an answer or before a text | content | closing …

Templates differ: some write a system message into the user's that follows, some end what they take
for the end of everything, some put a space or a tag before an answer that they keep, and others
where they ask for one. So each gap is looked at with what may follow it as well.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radixgen.errors import InvalidRequest
from radixgen.thoughts import THINK, Tags

RenderChat = Callable[[list[dict[str, str]], bool], str]
"""(messages, add_generation_prompt) -> text."""

MEMO_SIZE = 256
_MARK = re.compile(r"content-[0-9]+-of-a-message")
_NEXT = {"assistant": ("user", "tool"), "system": ("user",)}


def _mark(index: int) -> str:
    """A content that no template changes and no template contains."""
    return f"content-{index}-of-a-message"


@dataclass(frozen=True, slots=True)
class Opening:
    """The template's text before a content: `text`, and then what depends on who writes first."""

    text: str
    before_answer: str = ""  # the model
    before_text: str = ""  # the program


class Turns:
    """The roles of a conversation so far, and what the template writes there.

    Conversations of the same roles stand at the same place, so that each asks the template once;
    and a place is found from the one before it, in a time that does not grow with the conversation.

        start ── system ── user ── assistant ── user ── …
                   └────── assistant ── …
    """

    __slots__ = ("_after", "_before", "_chat", "_closing", "_opening", "_role")

    def __init__(
        self, chat: "ChatFormat | None", before: "Turns | None" = None, role: str = ""
    ) -> None:
        self._chat = chat  # None: roles have no text of their own
        self._before = before
        self._role = role
        self._after: dict[str, Turns] = {}
        self._opening = None if chat else Opening("")
        self._closing = None if chat else ""

    def then(self, role: str) -> "Turns":
        """One message more. From any thread."""
        found = self._after.get(role)
        if found is None:
            found = self._after.setdefault(role, Turns(self._chat, self, role))
        return found

    @property
    def is_start(self) -> bool:
        """Whether there is no message yet."""
        return self._before is None

    @property
    def roles(self) -> tuple[str, ...]:
        """From the first message to the last."""
        found: list[str] = []
        place = self
        while place._before is not None:
            found.append(place._role)
            place = place._before
        return tuple(reversed(found))

    @property
    def opening(self) -> Opening:
        """The text before the last content. Raises InvalidRequest for an order of roles that the
        template refuses."""
        if self._opening is None:
            assert self._chat is not None
            assert self._before is not None
            self._opening = self._chat.opening(self._before.roles, self._role)
        return self._opening

    @property
    def closing(self) -> str:
        """The text after the last content, whatever follows."""
        if self._closing is None:
            assert self._chat is not None
            self._closing = self._chat.closing(self.roles)
        return self._closing


def start_of(chat: "ChatFormat | None") -> Turns:
    """Where conversations begin."""
    return chat.start if chat else Turns(None)


class ChatFormat:
    """What a template writes around contents, by the roles of the conversation so far."""

    def __init__(self, render: RenderChat, tags: Tags = THINK) -> None:
        self.tags = tags  # around the model's thoughts
        self.start = Turns(self)  # of every conversation
        self._render = render
        self._keeping: dict[Tags, bool] = {}
        self._rendered = lru_cache(MEMO_SIZE)(self._try)

    def opening(self, roles: Sequence[str], role: str) -> Opening:
        """The text between the end of a conversation of these roles and a content of `role`.

        Raises InvalidRequest for an order of roles that the template refuses.
        """
        return self._open((*roles, role))

    def keeps(self, tags: Tags) -> bool:
        """Whether an answer's thoughts are still there when the conversation goes on."""
        found = self._keeping.get(tags)
        if found is None:
            found = self._keeping[tags] = self._keep(tags)
        return found

    def _keep(self, tags: Tags) -> bool:
        content = f"{tags.begin}{_mark(1)}{tags.end}{_mark(2)}"
        contents = {"user": _mark(0), "assistant": content}
        messages = [{"role": r, "content": contents[r]} for r in ("user", "assistant", "user")]
        try:
            return _mark(1) in self._render(messages, False)
        except Exception:  # it refuses the roles, or what it takes for a wrong answer
            return False

    def _open(self, roles: tuple[str, ...]) -> Opening:
        *before, role = roles
        kept = self._gap(roles)
        if role != "assistant" or not before:
            return Opening(self._after_closing(before, kept))
        text = self._after_closing(before, kept)
        asked = self._after_closing(before, self._gap(tuple(before), generation=True))
        shared = _shared([text, asked])
        return Opening(shared, asked[len(shared) :], text[len(shared) :])

    def _after_closing(self, before: Sequence[str], gap: str) -> str:
        return gap.removeprefix(self.closing(before)) if before else gap

    def closing(self, roles: Sequence[str]) -> str:
        """The text after the content of the last of these roles, whatever follows."""
        roles = tuple(roles)
        gaps = [gap for gap in self._gaps_after(roles) if gap is not None]
        mark = _mark(len(roles) - 1)
        end = self._rendered(roles, False)
        if isinstance(end, str) and mark in end:
            last = end[end.rfind(mark) + len(mark) :]
            if all(gap.startswith(last) for gap in gaps):
                return last
            gaps.append(last)
        return _whole_tags(_shared(gaps)) if len(gaps) > 1 else "".join(gaps)

    def _gaps_after(self, roles: tuple[str, ...]) -> list[str | None]:
        """What follows the last content where something follows, as far as the template has it."""
        mark = _mark(len(roles) - 1)
        found: list[str | None] = []
        if roles[-1] != "assistant":
            found.append(_between(self._rendered(roles, True), mark, None))
        for role in ("user", "assistant"):
            text = self._rendered((*roles, role), False)
            found.append(_between(text, mark, _mark(len(roles))))
        return found

    def _gap(self, roles: tuple[str, ...], *, generation: bool = False) -> str:
        """The text before the last content and after the one before it, or from the beginning.

        `generation`: before an answer that follows the last content.
        """
        texts = [self._rendered(roles, generation)]
        if not generation:  # as it stands once more follows, where the template has that
            more = [self._rendered((*roles, r), False) for r in _NEXT.get(roles[-1], ())]
            texts = [*(text for text in more if isinstance(text, str)), *texts]
        last = len(roles) - 1
        start, end = (last, None) if generation else (last - 1, _mark(last))
        for text in texts:
            gap = _between(text, _mark(start) if start >= 0 else None, end)
            if gap is not None:
                return gap
        if "system" in roles[:-1]:  # a template may move that to where it cannot go any more
            return self._gap(tuple(r for r in roles if r != "system"), generation=generation)
        raise self._refusal(roles, texts[-1])

    def _refusal(self, roles: Sequence[str], found: str | Exception) -> InvalidRequest:
        if isinstance(found, str):
            message = f"the model's chat template drops {roles[-1]!r} messages here"
            return InvalidRequest(message, "role")
        said = " ".join(str(found).split())
        listed = ", ".join(roles)
        message = f"the model's chat template refuses the roles {listed}: {said}"
        return InvalidRequest(message, "role")

    def _try(self, roles: tuple[str, ...], generation: bool) -> str | Exception:
        messages = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        try:
            return self._render(messages, generation)
        except Exception as error:  # a template may refuse an order of roles in its own words
            return error.with_traceback(None)


def _between(text: str | Exception, before: str | None, after: str | None) -> str | None:
    """The text between two marks (None: the ends), if both are there and no other between them."""
    if isinstance(text, Exception):
        return None
    start = 0 if before is None else text.rfind(before)
    end = len(text) if after is None else text.rfind(after)
    if start < 0 or end < start:
        return None
    gap = text[start + len(before or "") : end]
    return None if _MARK.search(gap) else gap


def _shared(texts: Sequence[str]) -> str:
    """The longest beginning of all."""
    low, high = min(texts), max(texts)
    end = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:end]


def _whole_tags(text: str) -> str:
    """Without the beginning of a tag that others end differently."""
    return text[: max(text.rfind(">"), text.rfind("\n"), text.rfind("]")) + 1]
