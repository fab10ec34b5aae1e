r"""Anchors and look-ahead, resolved exactly: ^ $ \A \Z \b \B (?=…) (?!…) in plain expressions.

Knows the tree that the regex parser builds. Knows no syntax.

A gap is a place between two characters. An anchor is a condition on what stands before a gap
(the start, or a character of some class) and after it (the end, or a character), so gaps fall
into a few kinds:

        before \ after   end   word   other         the kinds for a pattern with \b and $
        start            .     .      .
        word             .     .      .
        other            .     .      .

`follow(tree, after)` maps "the language from a gap of each kind to the end of the text" over the
tree, from right to left. An anchor keeps the kinds where it holds; an expression L moves from one
kind to another by those of its strings whose first and last characters fit the two kinds; a
look-ahead intersects. A loop over anchors is a system of linear equations, solved by elimination
with Arden's lemma (D. Arden, "Delayed-logic and finite-state machines", 1961). What an anchor does
not touch stays as it is, so a pattern without anchors costs nothing here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    And,
    Chars,
    Concat,
    Expr,
    Literal,
    Node,
    Not,
    Ranges,
    Repeat,
    Union,
    chars,
    common,
    complement,
    concat,
    conj,
    repeat,
    star,
    union,
)
from radixgen.grammars.regex_tree import (
    Anchor,
    Choices,
    Look,
    Loop,
    Part,
    Sequence,
    regular,
    sequence,
)
from radixgen.grammars.text_emptiness import is_nullable
from radixgen.grammars.unicode_classes import invert, join

MAX_ANCHORED_REPEATS = 32  # copies made of a repeated group that has an anchor in it
MAX_STEPS = 20_000  # strings of work in one pattern, which bounds nested anchored repeats

_NEWLINE: Ranges = ((0x0A, 0x0A),)
_EVERY: Ranges = invert(())
_ANY_TEXT = regular(star(ANY_CHAR))
_START, _END = Anchor("start"), Anchor("end")


def resolve(tree: Part, search: bool) -> Expr:
    """The texts in which the tree matches: the whole text, or with `search` a part of it."""
    parts: list[Part] = list(tree.parts) if isinstance(tree, Sequence) else [tree]
    before = parts[0] == _START  # the usual places, where an anchor is a missing .*
    after = len(parts) > before and parts[-1] == _END
    parts = parts[before : len(parts) - after]
    if search:
        parts = [*([] if before else [_ANY_TEXT]), *parts, *([] if after else [_ANY_TEXT])]
    whole = sequence(parts)
    return whole if isinstance(whole, Expr) else _Resolver(_gap_kinds(whole)).language(whole)


# --- kinds of gaps ------------------------------------------------------------------------------

# What stands on one side of a gap: the truth of each condition that the pattern asks there.
Side = tuple[bool, ...]
Gap = tuple[Side, Side]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of gaps of one pattern: conditions asked before and after, and who meets them."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    word: Ranges
    last: dict[Side, Ranges] = field(default_factory=dict)  # characters before a gap
    first: dict[Side, Ranges] = field(default_factory=dict)  # characters after a gap
    gaps: list[Gap] = field(default_factory=list)

    @property
    def start(self) -> Side:
        return tuple(name in ("start", "line_start") for name in self.before)

    @property
    def end(self) -> Side:
        return tuple(name in ("end", "final", "line_end") for name in self.after)

    @property
    def final_newline(self) -> Side | None:
        """The side of a newline that ends the text, where the pattern tells it from others."""
        if "final" not in self.after:
            return None
        return tuple(name in ("final", "line_end") for name in self.after)


def _gap_kinds(tree: Part) -> _Kinds:
    anchors = list(_anchors(tree))
    words = {anchor.word for anchor in anchors if anchor.word}
    if len(words) > 1:
        raise InvalidGrammar("word boundaries in ASCII and in Unicode in one pattern; choose one")
    asked = {anchor.kind for anchor in anchors}
    boundary = bool(asked & {"boundary", "inside"})
    before = [name for name in ("start", "line_start") if name in asked]
    after = [name for name in ("end", "final", "line_end") if name in asked]
    if "final" in asked and "end" not in asked:
        after.append("end")  # so that the end is told from the newline before it
    word = ["word"] * boundary
    kinds = _Kinds((*before, *word), (*after, *word), words.pop() if words else ())
    for names, sides in ((kinds.before, kinds.last), (kinds.after, kinds.first)):
        for side, ranges in _characters_by_side(names, kinds.word):
            sides[side] = join(sides.get(side, ()), ranges)
    befores = dict.fromkeys([kinds.start, *kinds.last])
    afters = dict.fromkeys([kinds.end, *kinds.first])
    if kinds.final_newline is not None:
        afters[kinds.final_newline] = None
    kinds.gaps.extend((b, a) for b in befores for a in afters)
    return kinds


def _anchors(tree: Part) -> list[Anchor]:
    found: list[Anchor] = []
    stack = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Anchor):
            found.append(part)
        elif isinstance(part, Look | Loop):
            stack.append(part.item)
        elif isinstance(part, Sequence | Choices):
            stack.extend(part.parts)
    return found


def _characters_by_side(names: tuple[str, ...], word: Ranges) -> list[tuple[Side, Ranges]]:
    """The characters, split by which of the named conditions they meet beside a gap."""
    newline = tuple(name in ("line_start", "line_end") for name in names)
    within = tuple(name == "word" for name in names)
    neither = tuple(False for _ in names)
    boundary = "word" in names
    other = invert((*_NEWLINE, *word) if boundary else _NEWLINE)
    return [(newline, _NEWLINE), (within, word if boundary else ()), (neither, other)]


# --- languages from a gap to the end of the text ------------------------------------------------

# For each kind of gap what may follow; a kind that is absent has no way to go on.
After = dict[Gap, Expr]


class _Resolver:
    """One pattern's walk from right to left."""

    def __init__(self, kinds: _Kinds) -> None:
        self._kinds = kinds
        self._steps = 0

    def language(self, tree: Part) -> Expr:
        end = self._kinds.end
        at_end = {gap: EPSILON for gap in self._kinds.gaps if gap[1] == end}
        found = self._follow(tree, at_end)
        start = self._kinds.start
        return regular(union(*(item for gap, item in found.items() if gap[0] == start)))

    def _follow(self, tree: Part, after: After) -> After:
        """From each kind of gap: a string of the tree, then what `after` says of the next gap."""
        self._spend(1)
        match tree:
            case Expr():
                return self._through(tree, after)
            case Anchor():
                return {gap: rest for gap, rest in after.items() if self._holds(tree, gap)}
            case Sequence():
                for part in reversed(tree.parts):
                    after = self._follow(part, after)
                return after
            case Choices():
                return _either([self._follow(part, after) for part in tree.parts])
            case Look():
                return self._look(tree, after)
            case Loop():
                return self._repeat(tree, after)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise InvalidGrammar(
                "anchors inside repeated groups make this pattern too large; "
                "move the anchors out of the repeats"
            )

    def _holds(self, anchor: Anchor, gap: Gap) -> bool:
        before = dict(zip(self._kinds.before, gap[0], strict=True))
        after = dict(zip(self._kinds.after, gap[1], strict=True))
        if anchor.kind in ("start", "line_start"):
            return before[anchor.kind]
        if anchor.kind in ("boundary", "inside"):
            return (before["word"] != after["word"]) == (anchor.kind == "boundary")
        return after[anchor.kind]

    def _look(self, look: Look, after: After) -> After:
        end = self._kinds.end
        at_end = {gap: EPSILON for gap in self._kinds.gaps if gap[1] == end}
        ahead = self._follow(sequence([look.item, _ANY_TEXT]), at_end)
        found: After = {}
        for gap, rest in after.items():
            seen = ahead.get(gap, EMPTY)
            found[gap] = conj(complement(seen) if look.negative else seen, rest)
        return found

    def _through(self, item: Expr, after: After) -> After:
        if len(self._kinds.gaps) == 1:
            return {gap: regular(concat(item, rest)) for gap, rest in after.items()}
        self._spend(len(after) * len(self._kinds.gaps))
        nullable = is_nullable(item)
        found: After = {}
        for gap in self._kinds.gaps:
            ways = [concat(self._between(item, gap, to), rest) for to, rest in after.items()]
            if nullable and gap in after:
                ways.append(after[gap])
            language = regular(union(*ways))
            if language is not EMPTY:
                found[gap] = language
        return found

    def _between(self, item: Expr, start: Gap, end: Gap) -> Expr:
        """The strings of `item` that lead from one kind of gap to the other; the empty one is in
        if it does no harm."""
        kinds = self._kinds
        last = kinds.last.get(end[0], ())
        if start[1] == kinds.final_newline:
            alone = end[1] == kinds.end and has_newline(item)
            return chars(common(_NEWLINE, last)) if alone else EMPTY
        first = kinds.first.get(start[1], ())
        if start == end and first == _EVERY == last:
            return item
        found = ending(beginning(item, first), last)
        if kinds.final_newline is not None and end[1] == kinds.end and has_newline(found):
            return conj(found, complement(Chars(_NEWLINE)))  # that gap is of the other kind
        return found

    def _repeat(self, tree: Loop, after: After) -> After:
        bounded = tree.low if tree.high is None else tree.high
        if bounded > MAX_ANCHORED_REPEATS:
            raise InvalidGrammar(
                f"a group with an anchor in it is repeated {bounded} times, "
                f"at most {MAX_ANCHORED_REPEATS} are possible; move the anchor out of the group"
            )
        if _has_look(tree.item):
            raise InvalidGrammar("a look-ahead inside a repeated group cannot be enforced")
        if tree.high is None:
            after = self._star(tree.item, after)
        else:
            done = after
            for _ in range(tree.high - tree.low):
                after = _either([done, self._follow(tree.item, after)])
        for _ in range(tree.low):
            after = self._follow(tree.item, after)
        return after

    def _star(self, item: Part, after: After) -> After:
        """The least solution of X[g] = sum of M[g][h] X[h] + after[g], one unknown at a time."""
        gaps = self._kinds.gaps
        moves: dict[Gap, After] = {gap: {} for gap in gaps}  # M[g][h]
        for to in gaps:
            for gap, way in self._follow(item, {to: EPSILON}).items():
                moves[gap][to] = way
        ends = {gap: after.get(gap, EMPTY) for gap in gaps}
        for index, gap in enumerate(gaps):
            again = regular(star(moves[gap].pop(gap, EMPTY)))
            ends[gap] = regular(concat(again, ends[gap]))
            moves[gap] = {to: regular(concat(again, way)) for to, way in moves[gap].items()}
            for other in gaps[index + 1 :]:
                self._substitute(moves[other], gap, moves[gap], ends, other)
        for index in reversed(range(len(gaps))):
            for other in gaps[:index]:
                self._substitute(moves[other], gaps[index], {}, ends, other)
        return {gap: way for gap, way in ends.items() if way is not EMPTY}

    def _substitute(
        self, row: After, gap: Gap, ways: After, ends: dict[Gap, Expr], other: Gap
    ) -> None:
        """Replace the unknown of `gap` in the row of `other` by what it is equal to."""
        factor = row.pop(gap, EMPTY)
        if factor is EMPTY:
            return
        self._spend(len(ways) + 1)
        for to, way in ways.items():
            row[to] = regular(union(row.get(to, EMPTY), concat(factor, way)))
        ends[other] = regular(union(ends[other], concat(factor, ends[gap])))


def _either(found: list[After]) -> After:
    merged: dict[Gap, list[Node]] = {}
    for after in found:
        for gap, rest in after.items():
            merged.setdefault(gap, []).append(rest)
    return {gap: regular(union(*rests)) for gap, rests in merged.items()}


def _has_look(tree: Part) -> bool:
    if isinstance(tree, Loop):
        return _has_look(tree.item)
    if isinstance(tree, Sequence | Choices):
        return any(map(_has_look, tree.parts))
    return isinstance(tree, Look)


# --- strings by their ends ----------------------------------------------------------------------


def has_newline(node: Node) -> bool:
    """Whether a text expression denotes the text that is one newline."""
    match node:
        case Chars():
            return any(low <= 0x0A <= high for low, high in node.ranges)
        case Concat():
            solid = [part for part in node.args if not is_nullable(part)]
            return len(solid) < 2 and any(map(has_newline, solid or node.args))
        case Union():
            return any(map(has_newline, node.args))
        case And():
            return all(map(has_newline, node.args))
        case Repeat():
            return has_newline(node.item) and (node.low < 2 or is_nullable(node.item))
        case Not():
            return not has_newline(node.item)
    return False


def beginning(item: Node, first: Ranges) -> Expr:
    """The texts of `item` that begin with a character of `first`; the empty one does not."""
    match item:
        case Chars():
            return chars(common(item.ranges, first))
        case Concat():
            return _one_part(item.args, lambda part: beginning(part, first), 1)
        case Union():
            return regular(union(*(beginning(part, first) for part in item.args)))
        case Repeat():
            return regular(concat(beginning(item.item, first), _one_less(item)))
        case Literal():
            return EMPTY  # the only one in a text expression is the empty text
    return conj(regular(item), regular(concat(chars(first), _ANY_TEXT)))


def ending(item: Node, last: Ranges) -> Expr:
    """The texts of `item` that end with a character of `last`; the empty one does not."""
    match item:
        case Chars():
            return chars(common(item.ranges, last))
        case Concat():
            return _one_part(item.args[::-1], lambda part: ending(part, last), -1)
        case Union():
            return regular(union(*(ending(part, last) for part in item.args)))
        case Repeat():
            return regular(concat(_one_less(item), ending(item.item, last)))
        case Literal():
            return EMPTY
    return conj(regular(item), regular(concat(_ANY_TEXT, chars(last))))


def _one_part(parts: tuple[Node, ...], change: Callable[[Node], Expr], order: int) -> Expr:
    """The concatenation with its first nonempty part changed, counted in `order` (1 or -1)."""
    ways: list[Node] = []
    for index, part in enumerate(parts):
        ways.append(concat(*(change(part), *parts[index + 1 :])[::order]))
        if not is_nullable(part):
            break
    return regular(union(*ways))


def _one_less(item: Repeat) -> Node:
    """What is left of a repeat beside one nonempty item."""
    low = 0 if is_nullable(item.item) else max(item.low - 1, 0)
    return repeat(item.item, low, None if item.high is None else item.high - 1)
