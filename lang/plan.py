"""The order of roles as a program adds them, checked before anything is sent."""

from radixgen.errors import InvalidRequest
from radixgen.lang.chat import Turns
from radixgen.lang.ir import Node, RoleBegin, RoleEnd


class RolePlan:
    """Which messages there are and which is open, at the place where the next node goes.

    Asks the chat template at once, so that an order of roles that it refuses is an error at the
    line that adds it.
    """

    __slots__ = ("_open", "_turns")

    def __init__(self, turns: Turns, open_role: str | None = None) -> None:
        self._turns = turns  # the open one included
        self._open = open_role

    def copy(self) -> "RolePlan":
        return RolePlan(self._turns, self._open)

    def add(self, node: Node) -> None:
        """Raises InvalidRequest when a role begins or ends where it cannot."""
        if isinstance(node, RoleBegin):
            if self._open is not None:
                raise InvalidRequest(
                    f"{node.role} begins inside {self._open}: roles do not nest, "
                    f"end {self._open} first",
                    "role",
                )
            turns = self._turns.then(node.role)
            turns.opening  # noqa: B018  # raises where the template refuses it
            self._turns, self._open = turns, node.role
        elif isinstance(node, RoleEnd):
            if self._open != node.role:
                message = f"{node.role} ends, but {self._open or 'no role'} is open"
                raise InvalidRequest(message, "role")
            self._turns.closing  # noqa: B018
            self._open = None
