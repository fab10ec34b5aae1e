"""What a state has said so far: token ids, text and messages that only ever grow.

    token ids  | committed: literals and generations as the model saw them |
    text       | ........................................................ | pending literal |

A literal waits as text until the model is asked, so that neighbouring literals become tokens as
one; once tokenised, or generated, ids never change. So a conversation that grows is a prefix of
itself and the radix cache holds all of it. Knows no backend and no threads.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from radixgen.errors import InvalidRequest
from radixgen.lang.chat import ChatFormat, Opening
from radixgen.lang.ir import Role

Encode = Callable[[str, bool], Sequence[int]]
"""(text, at the beginning of a sequence) -> token ids."""


class Format(Protocol):
    """How a backend wants its conversations: tokens or text, and roles."""

    @property
    def chat(
        self,
    ) -> ChatFormat | None: ...  # None: roles go as messages, without text of their own

    @property
    def encode(self) -> Encode | None: ...  # None: the backend takes text or messages

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the first tokens of a conversation, "" without tokens."""
        ...


class Conversation:
    """Grows by `say`, `hear`, `open` and `close`. One writer: the executor of its state."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.ids = array("i")
        self.pending = ""
        self.pieces: list[str] = []
        self.num_characters = 0  # of text
        self.messages: list[dict[str, str]] = []  # closed ones
        self.role: Role | None = None
        self._role_start = 0  # the piece that the open role's content begins with
        self._leads = ("", "")  # the template's text before an answer or a text that comes first

    def copy(self) -> "Conversation":
        """The same past, a future of its own."""
        twin = Conversation(self.form)
        twin.ids = self.ids[:]
        twin.pending, twin.role = self.pending, self.role
        twin.pieces, twin.messages = self.pieces[:], self.messages[:]
        twin.num_characters = self.num_characters
        twin._role_start, twin._leads = self._role_start, self._leads
        return twin

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def roles(self) -> tuple[str, ...]:
        """Of all messages, the open one included."""
        closed = tuple(message["role"] for message in self.messages)
        return (*closed, self.role) if self.role else closed

    @property
    def _at_start(self) -> bool:
        """Whether the tokenizer should begin a sequence; a chat template does that itself."""
        return not self.ids and not self.roles

    @property
    def content(self) -> str:
        """What the open role has said."""
        return "".join(self.pieces[self._role_start :])

    def say(self, text: str) -> None:
        """A literal."""
        if text:
            self._write(text)
            self.pending += text

    def _write(self, text: str) -> None:
        self.pieces.append(text)
        self.num_characters += len(text)

    def prompt(self) -> Sequence[int]:
        """All of it as token ids; commits the pending literal."""
        encode = self.form.encode
        if encode is None:
            raise InvalidRequest("this backend takes text, not token ids")
        if self.pending:
            self.ids.extend(encode(self.pending, self._at_start))
            self.pending = ""
        return self.ids

    def branches(self, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """The token ids that all of the continuations share, and the rest of each, never empty.

        The pending literal and a continuation are tokenised as one text, so that the boundary
        between them is where the tokenizer would put it. Changes nothing.
        """
        encode = self.form.encode
        if encode is None:
            raise InvalidRequest("this backend takes text, not token ids")
        wholes = [list(encode(self.pending + text, self._at_start)) for text in texts]
        shared, shortest = 0, min(map(len, wholes))
        while shared < shortest - 1 and len({whole[shared] for whole in wholes}) == 1:
            shared += 1
        return [*self.ids, *wholes[0][:shared]], [whole[shared:] for whole in wholes]

    def settle(self, text: str, token_ids: Sequence[int]) -> None:
        """Continue with `text`; `token_ids` are those of the whole conversation then."""
        self._write(text)
        self.pending = ""
        self.ids = array("i", token_ids)

    def hear(self, text: str, token_ids: Sequence[int], tail: str = "") -> None:
        """What the model wrote after `prompt`; `tail`: the end that the ids do not spell."""
        self._write(text)
        self.ids.extend(token_ids)
        self.pending = tail

    def open(self, role: Role) -> str:
        """Begin a message; returns the template's text before its content."""
        if self.role is not None:
            raise InvalidRequest(
                f"{role} begins inside {self.role}: roles do not nest, end {self.role} first",
                "role",
            )
        opening = self.form.chat.opening(self.roles, role) if self.form.chat else Opening("")
        self.say(opening.text)
        self.role = role
        self._role_start = len(self.pieces)
        self._leads = (opening.before_answer, opening.before_text)
        return opening.text

    def lead(self, *, answer: bool) -> str:
        """Say what the template puts between an opening and a content that now begins, by whether
        the model or the program writes it; returns it. Later calls in the same role say nothing."""
        text = self._leads[0 if answer else 1]
        self._leads = ("", "")
        if text:
            self.say(text)
            self._role_start = len(self.pieces)
        return text

    def close(self, role: Role) -> str:
        """End the open message; returns the template's text that this adds."""
        if self.role != role:
            raise InvalidRequest(f"{role} ends, but {self.role or 'no role'} is open", "role")
        before = self.lead(answer=False)  # of a message without content
        closing = self.form.chat.closing(self.roles) if self.form.chat else ""
        self.messages.append({"role": role, "content": self.content})
        self.role = None
        self.say(closing)
        return before + closing
