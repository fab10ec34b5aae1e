"""What a regular expression says beyond plain expressions: anchors, look-ahead and what holds them.

Owns the tree between the parser and `anchors.py`. A part without an anchor is an expression from
the start, so the tree of a pattern without anchors is one expression.
"""

from dataclasses import dataclass
from typing import Literal as Choice

from radixgen.grammars.expr import Expr, Node, Ranges, Repeat, concat, repeat, union

AnchorKind = Choice["start", "line_start", "end", "final", "line_end", "boundary", "inside"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A condition on a gap. `final` is Python's `$`: the end, or before a newline that ends it.

    `word` is what `boundary` and `inside` take for word characters.
    """

    kind: AnchorKind
    word: Ranges = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What follows must begin (or, if `negative`, must not begin) with a string of `item`."""

    item: "Part"
    negative: bool
    position: int  # in the pattern, for messages


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """Any of them."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`item`, which holds an anchor, from `low` to `high` times (None: without bound)."""

    item: "Part"
    low: int
    high: int | None


Part = Expr | Anchor | Look | Sequence | Choices | Loop


def regular(node: Node) -> Expr:
    """The node, known to hold no rule."""
    assert isinstance(node, Expr)
    return node


def sequence(parts: list[Part]) -> Part:
    """The parts one after the other, neighbouring expressions joined."""
    joined: list[Part] = []
    run: list[Expr] = []
    for part in parts:
        for item in part.parts if isinstance(part, Sequence) else (part,):
            if isinstance(item, Expr):
                run.append(item)
                continue
            if run:
                joined.append(regular(concat(*run)))
                run = []
            joined.append(item)
    if run or not joined:
        joined.append(regular(concat(*run)))
    return joined[0] if len(joined) == 1 else Sequence(tuple(joined))


def choices(parts: list[Part]) -> Part:
    """Any of the parts, expressions among them in one union."""
    plain = [part for part in parts if isinstance(part, Expr)]
    rest: list[Part] = [part for part in parts if not isinstance(part, Expr)]
    if not rest:
        return regular(union(*plain))
    if plain:
        rest.insert(0, regular(union(*plain)))
    return rest[0] if len(rest) == 1 else Choices(tuple(rest))


def loop(item: Part, low: int, high: int | None) -> Part:
    """The item repeated; repeats of repeats in one count where that says the same."""
    if not isinstance(item, Expr):
        return Loop(item, low, high)
    if isinstance(item, Repeat):
        joined = _joined_counts(item.low, item.high, low, high)
        if joined is not None:
            return regular(repeat(item.item, *joined))
    return regular(repeat(item, low, high))


def _joined_counts(a: int, b: int | None, c: int, d: int | None) -> tuple[int, int | None] | None:
    """(x{a,b}){c,d} as x{low,high}, or None where the counts leave gaps.

    k rounds give k*a to k*b; rounds k and k+1 leave no gap when (k+1)*a <= k*b + 1, which holds
    for all k once it holds for the least.
    """
    least = max(c, 1)
    if d is not None and d < 1:
        return 0, 0
    gapless = c == d or b is None or (least + 1) * a <= least * b + 1
    if not gapless or (c == 0 and a > 1):
        return None
    return c * a, None if b is None or d is None else b * d
