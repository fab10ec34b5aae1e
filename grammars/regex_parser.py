"""The structure of a regular expression: alternatives, groups, repeats, anchors.

Reads with a stack of its own, so that depth is bounded by MAX_NESTING and not by Python's.
Knows the symbols of `regex_symbols.py`. Knows no bytes.
"""

import string
from dataclasses import dataclass, field

from radixgen.grammars.regex_symbols import Flags, Scanner, bracket, character, dot, escape, refused
from radixgen.grammars.regex_tree import Anchor, Look, Part, choices, loop, sequence

MAX_NESTING = 64  # groups within groups
MAX_PATTERN = 200_000  # characters of a pattern
MAX_REPEAT = 1_000_000  # the largest count in braces
MAX_LEAST = 1 << 18  # of what has to be repeated: a longer text takes more memory than one may

_SYNTAX = frozenset("\\[](){}*+?|^$.")


@dataclass(slots=True)
class _Group:
    """An open group: what it has read so far."""

    flags: Flags
    position: int
    look: bool | None = None  # look-ahead: whether it is negative
    branches: list[Part] = field(default_factory=list)
    items: list[Part] = field(default_factory=list)
    repeatable: str = "nothing"  # the last item: nothing, item or repeat

    def add(self, part: Part) -> None:
        self.items.append(part)
        self.repeatable = "nothing" if isinstance(part, Anchor) else "item"

    def next_branch(self) -> None:
        self.branches.append(sequence(self.items))
        self.items, self.repeatable = [], "nothing"

    def close(self) -> Part:
        self.next_branch()
        whole = choices(self.branches)
        return whole if self.look is None else Look(whole, self.look, self.position)


def parse_tree(pattern: str, flags: Flags) -> Part:
    """The pattern as a tree. Raises InvalidGrammar with the position of what it cannot read."""
    source = Scanner(pattern)
    if len(pattern) > MAX_PATTERN:
        raise source.error(f"{len(pattern)} characters, at most {MAX_PATTERN} are read", 0)
    return _Parser(source, flags).parse()


class _Parser:
    def __init__(self, source: Scanner, flags: Flags) -> None:
        self._source = source
        self._open = [_Group(flags, 0)]
        self._names: set[str] = set()

    def parse(self) -> Part:
        source = self._source
        pattern = source.pattern
        while source.position < len(pattern):
            letter = pattern[source.position]
            source.position += 1
            group = self._open[-1]
            if letter in _SYNTAX or group.flags.verbose:
                self._step(source.position - 1, letter)
            else:
                group.items.append(character(letter, group.flags))
                group.repeatable = "item"
        if len(self._open) > 1:
            raise source.error("a group has no ')' at its end", self._open[-1].position)
        return self._open[0].close()

    def _step(self, start: int, letter: str) -> None:
        group = self._open[-1]
        flags = group.flags
        if letter not in _SYNTAX:
            self._literal(letter, flags)
        elif letter == "\\":
            group.add(escape(self._source, flags))
        elif letter == "[":
            group.add(bracket(self._source, flags))
        elif letter == ".":
            group.add(dot(flags))
        elif letter in "^$":
            group.add(_anchor(letter, flags))
        elif letter == "|":
            group.next_branch()
        elif letter == "(":
            self._open_group(start)
        elif letter == ")":
            self._close_group(start)
        else:
            self._quantifier(start, letter)

    def _literal(self, letter: str, flags: Flags) -> None:
        if flags.verbose and letter in string.whitespace:
            return
        if flags.verbose and letter == "#":
            end = self._source.pattern.find("\n", self._source.position)
            self._source.position = len(self._source.pattern) if end < 0 else end + 1
            return
        self._open[-1].add(character(letter, flags))

    # --- repeats ---

    def _quantifier(self, start: int, letter: str) -> None:
        counts = self._counts(letter)
        if counts is None:  # a brace that begins no count is a brace
            self._open[-1].add(character(letter, self._open[-1].flags))
            return
        source, group = self._source, self._open[-1]
        if group.repeatable == "repeat":
            raise source.error("a repeat follows a repeat; put the first in a group", start)
        if group.repeatable == "nothing":
            raise source.error("a repeat has nothing to repeat", start)
        low, high = counts
        if high is not None and high < low:
            raise source.error(f"a repeat from {low} to {high} runs backwards", start)
        if max(low, high or 0) > MAX_REPEAT:
            raise source.error(f"a repeat of {max(low, high or 0)}, at most {MAX_REPEAT}", start)
        if low > MAX_LEAST:
            raise source.error(
                f"{low} repeats have to come, at most {MAX_LEAST} may; lower it", start
            )
        if isinstance(group.items[-1], Look):
            raise refused(source, "a repeat of a look-ahead", start)
        group.items[-1] = loop(group.items[-1], low, high)
        group.repeatable = "repeat"
        if source.peek("+"):
            raise refused(source, "a possessive repeat", source.position)
        source.skip("?")  # lazy: another match, the same language

    def _counts(self, letter: str) -> tuple[int, int | None] | None:
        if letter != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(letter)
        source = self._source
        start = source.position
        low = source.take_while(string.digits)
        comma = source.skip(",")
        high = source.take_while(string.digits) if comma else low
        empty = not low and (not comma or self._open[-1].flags.ecma)
        if empty or not source.skip("}"):
            source.position = start
            return None
        return _count(low, 0), (_count(high, 0) if high else None)

    # --- groups ---

    def _open_group(self, start: int) -> None:
        source = self._source
        if len(self._open) > MAX_NESTING:
            raise source.error(f"groups nest more than {MAX_NESTING} deep", start)
        group = _Group(self._open[-1].flags, start)
        if source.skip("?") and not self._group_kind(group, start):
            return
        self._open.append(group)

    def _group_kind(self, group: _Group, start: int) -> bool:
        """Reads what follows `(?`. False when it opens no group: a comment, or flags for all."""
        source = self._source
        if source.skip(":"):
            return True
        if source.skip("#"):
            source.until(")", "a comment")
            return False
        if source.skip("P<"):
            return self._name(start)
        self._refuse_look_behind(start)
        if source.skip("<"):
            if not group.flags.ecma:
                raise source.error("a group is named with (?P<name>…)", start)
            return self._name(start)
        if source.peek("=") or source.peek("!"):
            group.look = source.take() == "!"
            if not group.flags.ecma:
                raise refused(source, "look-ahead", start)
            return True
        return self._flags(group, start)

    def _refuse_look_behind(self, start: int) -> None:
        for spelling, name in (
            ("<=", "look-behind"),
            ("<!", "look-behind"),
            ("P=", "a back-reference (?P=…)"),
            ("P>", "a call of a group (?P>…)"),
            (">", "an atomic group"),
            ("(", "a conditional group"),
        ):
            if self._source.peek(spelling):
                raise refused(self._source, name, start)

    def _name(self, start: int) -> bool:
        name = self._source.until(">", "the name of a group")
        if not name.isidentifier() and not name.replace("$", "_").isidentifier():
            raise self._source.error(f"{name!r} is no name for a group", start)
        if name in self._names:
            raise self._source.error(f"two groups are named {name!r}", start)
        self._names.add(name)
        return True

    def _flags(self, group: _Group, start: int) -> bool:
        source = self._source
        on = source.take_while(string.ascii_letters)
        off = source.take_while(string.ascii_letters) if source.skip("-") else ""
        unknown = (set(on) - set("imsxau")) | (set(off) - set("imsx"))
        if "L" in on:
            raise source.error("the flag L (locale) means nothing for text", start)
        if unknown or not (on or off) or {"a", "u"} <= set(on):
            raise source.error("unknown extension after '(?'", start)
        if set(on) & set(off):
            raise source.error("a flag is switched both on and off", start)
        group.flags = group.flags.switched(on, True).switched(off, False)
        if source.skip(":"):
            return True
        if off or not source.skip(")"):
            raise source.error("flags are followed by ':' or ')'", start)
        if start != 0:
            raise source.error("flags for all of a pattern stand at its start", start)
        self._open[-1].flags = group.flags
        return False

    def _close_group(self, start: int) -> None:
        if len(self._open) == 1:
            raise self._source.error("')' closes no group", start)
        self._open[-2].add(self._open.pop().close())
        if self._open[-1].repeatable == "nothing":  # (^) is an anchor, and can be repeated
            self._open[-1].repeatable = "item"


def _count(digits: str, default: int) -> int:
    if len(digits) > 10:
        return MAX_REPEAT + 1  # reported as too large by the caller; int() would take its time
    return int(digits) if digits else default


def _anchor(letter: str, flags: Flags) -> Part:
    if letter == "^":
        return Anchor("line_start" if flags.multiline else "start")
    if flags.multiline:
        return Anchor("line_end")
    return Anchor("end" if flags.ecma else "final")
