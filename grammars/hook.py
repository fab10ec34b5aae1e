"""Rules that depend on the text before them, as no context-free rule does. Knows no automaton."""

from collections.abc import Callable, Hashable

from radixgen.grammars.expr import Node, Rule


class Hook(Rule):
    """A rule whose language depends on the text before it.

    Its body reads too much: what any text before might be followed by. `resolve` takes the text so
    far, or enough of its end, and gives what may follow that one; it is never empty. Whoever
    follows a text puts that in the rule's place as soon as the text stands before it
    (`following.py`). An automaton alone takes the body.
    """

    __slots__ = ("resolve", "spare", "surely")

    def __init__(
        self,
        key: Hashable,
        expand: Callable[[], Node],
        resolve: Callable[[bytes], Node],
        *,
        surely: Callable[[bytes], Callable[[bytes], bool]],
        spare: Callable[[], int | None],
        most: int | None,
    ) -> None:
        # `most`: of any resolved rule; None where no shortest text has to go through the hook.
        super().__init__(key, expand, productive=True, most=most)
        self.resolve = resolve
        # Of a text, whether what the body allows behind it may follow: False if it is not known.
        self.surely = surely
        # How many bytes longer than a shortest text of the body one of a resolved rule is, at most;
        # asked for only where a text has to end.
        self.spare = spare
