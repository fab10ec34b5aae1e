"""What the results of native calls mean, and the exceptions of calls back into Python."""

from radixgen.errors import InvalidGrammar

_CALLBACK = 6
_FAULTS = {
    1: "there is no memory left for it",
    2: "it needs more memory than one step may take (64 MB) or all grammars together (a compiler's "
    "max_bytes); simplify it",
    3: "there are over 20000 ways to read the text at one place; it is too ambiguous",
    4: "it nests too deeply, or has too many parts in a row that may be left out; flatten it, or "
    "let some be needed",
    5: "whether an intersection or complement is empty, or its shortest text, takes over 20000 "
    "states to find; simplify its patterns or bounds",
    7: "one step takes too long; simplify its patterns or bounds",
}


class Faults:
    """`error` is what the last call back raised, until the native call ends."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def message(self, fault: int) -> str:
        """What a fault, below 0, says to a user."""
        if fault == -_CALLBACK and self.error is not None:
            error, self.error = self.error, None
            return str(error)
        return f"the grammar cannot be followed here: {_FAULTS.get(-fault, 'unknown fault')}"

    def checked(self, result: int) -> int:
        """The result of a native call. Raises InvalidGrammar, or what a call back raised."""
        if result >= 0:
            return result
        error, self.error = self.error, None
        if isinstance(error, RecursionError):
            raise InvalidGrammar("the constraint is nested too deeply; flatten it") from None
        if result == -_CALLBACK and error is not None:
            raise error
        raise InvalidGrammar(self.message(result))
