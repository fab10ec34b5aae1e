"""What a state has said so far: token ids, text and messages that only ever grow.

    token ids  | committed: literals and generations as the model saw them |
    text       | ........................................................ | pending literal |

A literal waits as text until the model is asked, so that neighbouring literals become tokens as
one; once tokenised, or generated, ids never change. So a conversation that grows is a prefix of
itself and the radix cache holds all of it. Thoughts that the chat template does not keep are in the
ids until their message ends, and never in the text: what follows them sees them, and the next
message continues as if they had not been. Knows no backend and no threads.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from radixgen.errors import InvalidRequest
from radixgen.lang.chat import ChatFormat, start_of
from radixgen.lang.ir import Role
from radixgen.lang.shared import Shared
from radixgen.thoughts import Tags

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


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A message before the first of its thoughts, which are to be forgotten."""

    ids: "Shared[int]"
    pending: str
    num_pieces: int


class Conversation:
    """Grows by `say`, `hear`, `open` and `close`. One writer: the executor of its state."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self._ids: Shared[int] = Shared(_no_ids)
        self._pending: list[str] = []
        self._pieces: Shared[str] = Shared(list)
        self.num_characters = 0  # of text
        self._messages: Shared[dict[str, str]] = Shared(list)  # closed ones
        self._turns = start_of(form.chat)  # the open one included
        self.role: Role | None = None
        self._lasting: _Lasting | None = None
        self._role_start = 0  # the piece that the open role's content begins with
        self._leads = ("", "")  # the template's text before an answer or a text that comes first

    def copy(self) -> "Conversation":
        """The same past, a future of its own. Takes no longer for a long one."""
        twin = Conversation(self.form)
        twin._ids = self._ids.copy()
        twin.pending, twin.role = self.pending, self.role
        twin._pieces, twin._messages = self._pieces.copy(), self._messages.copy()
        twin.num_characters, twin._turns = self.num_characters, self._turns
        twin._role_start, twin._leads = self._role_start, self._leads
        twin._lasting = self._lasting
        return twin

    @property
    def ids(self) -> "array[int]":
        """Those that are committed."""
        return array("i", self._ids.since(0))

    @property
    def num_spelled(self) -> int:
        """Of the committed ids, the first ones that spell the text: all, unless the open message
        has thoughts that are to be forgotten."""
        return len(self._lasting.ids if self._lasting else self._ids)

    @property
    def messages(self) -> Sequence[dict[str, str]]:
        """The closed ones."""
        return self._messages.since(0)

    @property
    def text(self) -> str:
        return self.text_since(0)

    @property
    def num_pieces(self) -> int:
        """Of text, as it was said."""
        return len(self._pieces)

    def text_since(self, piece: int) -> str:
        return "".join(self._pieces.since(piece))

    def text_later(self) -> Callable[[], str]:
        """The text as it is now, to be put together when it is called for."""
        pieces = self._pieces.copy()
        return lambda: "".join(pieces.since(0))

    @property
    def pending(self) -> str:
        """The literal that waits as text. Put together when it is asked for: it may be long, and
        grows in small parts."""
        if len(self._pending) > 1:
            self._pending = ["".join(self._pending)]
        return self._pending[0] if self._pending else ""

    @pending.setter
    def pending(self, text: str) -> None:
        self._pending = [text] if text else []

    @property
    def roles(self) -> tuple[str, ...]:
        """Of all messages, the open one included."""
        return self._turns.roles

    @property
    def _at_start(self) -> bool:
        """Whether the tokenizer should begin a sequence; a chat template does that itself."""
        return not len(self._ids) and self._turns.is_start

    @property
    def content(self) -> str:
        """What the open role has said."""
        return self.text_since(self._role_start)

    def say(self, text: str) -> None:
        """A literal."""
        if text:
            self._write(text)
            self._pending.append(text)

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self.num_characters += len(text)

    def prompt(self) -> "array[int]":
        """All of it as token ids; commits the pending literal."""
        encode = self.form.encode
        if encode is None:
            raise InvalidRequest("this backend takes text, not token ids")
        if self.pending:
            self._ids.extend(encode(self.pending, self._at_start))
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
        return [*self._ids.since(0), *wholes[0][:shared]], [whole[shared:] for whole in wholes]

    def settle(self, text: str, token_ids: Sequence[int]) -> None:
        """Continue with `text`; `token_ids` are those of the whole conversation then."""
        self._write(text)
        self.pending = ""
        self._ids = Shared(_no_ids)
        self._ids.extend(token_ids)

    def hear(self, text: str, token_ids: Sequence[int], tail: str = "") -> None:
        """What the model wrote after `prompt`; `tail`: the end that the ids do not spell."""
        self._write(text)
        self._ids.extend(token_ids)
        self.pending = tail

    def open(self, role: Role) -> str:
        """Begin a message; returns the template's text before its content."""
        if self.role is not None:
            raise InvalidRequest(
                f"{role} begins inside {self.role}: roles do not nest, end {self.role} first",
                "role",
            )
        turns = self._turns.then(role)
        opening = turns.opening
        self.say(opening.text)
        self._turns, self.role = turns, role
        self._role_start = len(self._pieces)
        self._leads = (opening.before_answer, opening.before_text)
        return opening.text

    def lead(self, *, answer: bool) -> str:
        """Say what the template puts between an opening and a content that now begins, by whether
        the model or the program writes it; returns it. Later calls in the same role say nothing."""
        text = self._leads[0 if answer else 1]
        self._leads = ("", "")
        if text:
            self.say(text)
            self._role_start = len(self._pieces)
        return text

    def keeps_thoughts(self, tags: Tags) -> bool:
        """Whether thoughts between these tags are a part of what goes on: outside messages, and in
        those whose template shows them when more follows."""
        if self.role is None:
            return True
        return self.form.chat is not None and self.form.chat.keeps(tags)

    def lead_thoughts(self) -> str:
        """As `lead`, before thoughts that this message is not to keep; returns what is visible."""
        if self._lasting is None:
            if self.form.encode is not None:
                self.prompt()  # what stays is what the next message goes on from, token by token
            self._lasting = _Lasting(self._ids.copy(), self.pending, len(self._pieces))
        before_answer, before_text = self._leads
        self._leads = ("", "")
        self.pending += before_answer
        if before_text:
            self._write(before_text)
            self._role_start = len(self._pieces)
        return before_text

    def _forget_thoughts(self) -> None:
        """Go on as if the message had been said without them."""
        kept, self._lasting = self._lasting, None
        if kept is not None:
            self._ids = kept.ids.copy()
            self.pending = kept.pending + self.text_since(kept.num_pieces)

    def ends_with(self, text: str) -> bool:
        """Whether what the model would go on from ends with `text`, blanks aside."""
        tail, place = self.pending, len(self._pieces)
        while not self.pending and place and len(tail.rstrip()) < len(text):
            place -= 1
            tail = self.text_since(place)
        return tail.rstrip().endswith(text)

    def close(self, role: Role) -> str:
        """End the open message; returns the template's text that this adds."""
        if self.role != role:
            raise InvalidRequest(f"{role} ends, but {self.role or 'no role'} is open", "role")
        before = self.lead(answer=False)  # of a message without content
        closing = self._turns.closing
        self._forget_thoughts()
        self._messages.append({"role": role, "content": self.content})
        self.role = None
        self.say(closing)
        return before + closing


def _no_ids() -> "array[int]":
    return array("i")
