"""Roles as text, by the model's own chat template.

A template renders whole conversations; a program grows one piece by piece. `ChatFormat` asks the
template with placeholders for contents and cuts out what stands before and after each of them, so
that a conversation that grows is always a prefix of itself. Knows no tokens.
"""

from collections.abc import Callable, Sequence

from radixgen.errors import InvalidRequest

RenderChat = Callable[[list[dict[str, str]], bool], str]
"""(messages, add_generation_prompt) -> text."""


def _mark(index: int) -> str:
    """A content that no template changes and no template contains."""
    return f"content-{index}-of-a-message"


class ChatFormat:
    """What a template writes around contents, by the roles of the conversation so far."""

    def __init__(self, render: RenderChat) -> None:
        self._render = render
        self._known: dict[tuple[str, ...], tuple[str, str]] = {}

    def opening(self, roles: Sequence[str], role: str) -> str:
        """The text between the end of a conversation of these roles and a content of `role`."""
        return self._around((*roles, role))[0]

    def closing(self, roles: Sequence[str]) -> str:
        """The text after the content of the last of these roles."""
        return self._around(tuple(roles))[1]

    def _around(self, roles: tuple[str, ...]) -> tuple[str, str]:
        found = self._known.get(roles)
        if found is None:
            found = self._known[roles] = self._cut(roles)
        return found

    def _cut(self, roles: tuple[str, ...]) -> tuple[str, str]:
        *before, role = roles
        rendered = self._text(roles, generation=False)
        last = _mark(len(before))
        place = rendered.rfind(last)
        if place < 0:
            raise InvalidRequest(f"the model's chat template drops {role!r} messages here", "role")
        closing = rendered[place + len(last) :]
        if role == "assistant" and before:
            return self._generation_prompt(before), closing
        return self._between(before, rendered[:place]), closing

    def _between(self, before: Sequence[str], head: str) -> str:
        """What `head` says after the message before: all of it when there is none."""
        if not before:
            return head
        mark = _mark(len(before) - 1)
        gap = head[head.rfind(mark) + len(mark) :] if mark in head else head
        return gap.removeprefix(self.closing(before))

    def _generation_prompt(self, before: Sequence[str]) -> str:
        rendered = self._text(before, generation=True)
        return self._between(before, rendered)

    def _text(self, roles: Sequence[str], *, generation: bool) -> str:
        messages = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        try:
            return self._render(messages, generation)
        except Exception as error:  # a template may refuse an order of roles in its own words
            said = " ".join(str(error).split())
            raise InvalidRequest(
                f"the model's chat template refuses the roles {', '.join(roles)}: {said}", "role"
            ) from error
