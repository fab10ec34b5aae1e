"""The order of roles as a program adds them, checked before anything is sent."""

from radixgen.errors import InvalidRequest
from radixgen.lang.chat import ChatFormat
from radixgen.lang.ir import Node, RoleBegin, RoleEnd


class RolePlan:
    """Which messages there are and which is open, at the place where the next node goes.

    Asks the chat template at once, so that an order of roles that it refuses is an error at the
    line that adds it.
    """

    __slots__ = ("_chat", "_open", "_roles")

    def __init__(self, chat: ChatFormat | None) -> None:
        self._chat = chat
        self._roles: tuple[str, ...] = ()  # the open one included
        self._open: str | None = None

    def copy(self) -> "RolePlan":
        twin = RolePlan(self._chat)
        twin._roles, twin._open = self._roles, self._open
        return twin

    def add(self, node: Node) -> None:
        """Raises InvalidRequest when a role begins or ends where it cannot."""
        if isinstance(node, RoleBegin):
            if self._open is not None:
                raise InvalidRequest(
                    f"{node.role} begins inside {self._open}: roles do not nest, "
                    f"end {self._open} first",
                    "role",
                )
            if self._chat is not None:
                self._chat.opening(self._roles, node.role)
            self._roles, self._open = (*self._roles, node.role), node.role
        elif isinstance(node, RoleEnd):
            if self._open != node.role:
                message = f"{node.role} ends, but {self._open or 'no role'} is open"
                raise InvalidRequest(message, "role")
            if self._chat is not None:
                self._chat.closing(self._roles)
            self._open = None
