"""From text to bytes: UTF-8, and the inside of a JSON string.

Owns the two encodings of `expr.py`: every text expression becomes a byte expression for the
automaton. Knows no regex syntax and no schema.

An encoding maps each code point to a set of byte strings, no two code points to a common one and
none to a prefix of another's. So concatenation, repetition and union carry over part by part, and
intersection too; a complement is taken within the encodings of all texts.

A class of code points becomes a tree over digits: the value of a code point, written in the mixed
radix of the encoding (6 bits a continuation byte; 4 bits a hexadecimal digit), where equal
subtrees are shared. That gives the minimal automaton of the class.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from math import prod

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import (
    ANY_CHAR,
    EMPTY,
    EVERYTHING,
    MAX_CODE_POINT,
    And,
    Bytes,
    Chars,
    Concat,
    Expr,
    Literal,
    Node,
    Not,
    Ranges,
    Repeat,
    Union,
    byte_set,
    complement,
    concat,
    conj,
    literal,
    repeat,
    star,
    union,
)

MEMO_SIZE = 8192  # encoded nodes kept, so that common classes are shared between grammars


def utf8(node: Node) -> Expr:
    """The UTF-8 encoding of a text expression, lone surrogates left out.

    Raises InvalidGrammar for a node that is no text expression.
    """
    return _utf8(node)


def json_string(node: Node) -> Expr:
    """The inside of a JSON string (RFC 8259, without its quotes) that decodes to the text.

    Every spelling counts: raw, short escapes, and `\\uXXXX` in both cases of the digits, with
    surrogate pairs beyond U+FFFF. Raises InvalidGrammar for a node that is no text expression.
    """
    return _json_string(node)


@lru_cache(MEMO_SIZE)
def _utf8(node: Node) -> Expr:
    return _encode(node, _utf8, _utf8_class)


@lru_cache(MEMO_SIZE)
def _json_string(node: Node) -> Expr:
    return _encode(node, _json_string, _json_class)


Encoding = Callable[[Node], Expr]


def _encode(node: Node, encoding: Encoding, of_class: Callable[[Ranges], Expr]) -> Expr:
    match node:
        case Chars():
            return of_class(node.ranges)
        case Literal() if not node.value:
            return node
        case Concat():
            return _regular(concat(*map(encoding, node.args)))
        case Union():
            return _regular(union(*map(encoding, node.args)))
        case Repeat():
            return _regular(repeat(encoding(node.item), node.low, node.high))
        case And():
            return _encode_all(node.args, encoding)
        case Not():
            return _encode_all((node,), encoding)
    raise InvalidGrammar(f"{type(node).__name__} in a text expression, which holds code points")


def _encode_all(parts: tuple[Expr, ...], encoding: Encoding) -> Expr:
    """The intersection. One part that is no complement keeps the others within valid encodings."""
    encoded = [
        complement(_left_out(p.item, encoding)) if isinstance(p, Not) else encoding(p)
        for p in parts
    ]
    if all(isinstance(part, Not) for part in parts):
        encoded.append(encoding(_ANY_TEXT))
    return conj(*encoded)


def _left_out(node: Expr, encoding: Encoding) -> Expr:
    """What a complement leaves out among valid encodings. Where that ends in any text it may end in
    any bytes: what follows a text within a valid encoding is valid. So it is known at once, and not
    by a search through all characters, that no way is left."""
    match node:
        case Union():
            return _regular(union(*(_left_out(part, encoding) for part in node.args)))
        case Concat() if node.args[-1] is _ANY_TEXT:
            return _regular(concat(*map(encoding, node.args[:-1]), EVERYTHING))
    return EVERYTHING if node is _ANY_TEXT else encoding(node)


def _regular(node: Node) -> Expr:
    assert isinstance(node, Expr)  # encoded parts hold no rule
    return node


_ANY_TEXT = star(ANY_CHAR)


# --- classes as trees of digits ---------------------------------------------------------------

# A number's digits, the most significant first: for each, its byte by value (a set, as for `a` or
# `A`). A digit of one value is a constant, such as the backslash between two surrogates.
Digits = tuple[tuple[int, ...], ...]


def _span(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << byte for byte in range(low, high + 1))


def _letters(letters: str) -> tuple[int, ...]:
    return tuple(1 << ord(letter) | 1 << ord(letter.lower()) for letter in letters)


_NEXT = _span(0x80, 0xBF)
_UTF8_SHAPES: tuple[tuple[int, int, Digits], ...] = (
    (0x00, 0x7F, (_span(0x00, 0x7F),)),
    (0x80, 0x7FF, (_span(0xC0, 0xDF), _NEXT)),
    (0x800, 0xFFFF, (_span(0xE0, 0xEF), _NEXT, _NEXT)),
    (0x10000, 0x10FFFF, (_span(0xF0, 0xF4), _NEXT, _NEXT, _NEXT)),
)
_HEX = _letters("0123456789ABCDEF")
_D, _U, _BACKSLASH = _letters("D"), (1 << ord("u"),), (1 << ord("\\"),)
_UNIT: Digits = (_U, _HEX, _HEX, _HEX, _HEX)
_HIGH: Digits = (_U, _D, _letters("89AB"), _HEX, _HEX)  # 10 bits in each surrogate
_LOW: Digits = (_U, _D, _letters("CDEF"), _HEX, _HEX)
_PAIR: Digits = (*_HIGH, _BACKSLASH, *_LOW)  # of the value less 0x10000
_SURROGATES = (0xD800, 0xDFFF)
_SPECIAL = 1 << 0x22 | 1 << 0x2F | 1 << 0x5C  # printable, with short escapes
_NEVER_RAW = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_UNWRITTEN = sum((2 << high) - (1 << low) for low, high in _NEVER_RAW)
_ASCII = (1 << 128) - 1
_BEYOND = ((0x80, 0xD7FF), (0xE000, MAX_CODE_POINT))
_SHORT = {0x22: '"', 0x5C: "\\", 0x2F: "/", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}


def _utf8_class(ranges: Ranges) -> Expr:
    found: list[Node] = []
    valid = _without(ranges, (_SURROGATES,))
    for low, high, digits in _UTF8_SHAPES:
        part = _within(valid, low, high)
        if part:
            found.append(_tree(part, digits))
    return _regular(union(*found))


def _json_class(ranges: Ranges) -> Expr:
    points = 0
    if ranges and ranges[0][0] >= 0x20 and ranges[-1][1] <= 0x7F:
        points = sum((2 << high) - (1 << low) for low, high in ranges)
    if points and not points & _SPECIAL:
        return _plain_class(points)
    valid = _without(ranges, (_SURROGATES,))
    if _without(valid, ((0, 0x7F),)) == _BEYOND:
        points = sum((2 << min(high, 0x7F)) - (1 << low) for low, high in valid if low <= 0x7F)
        if points != _ASCII:
            return _most_class(points)
    return _any_class(ranges)


def _plain_class(points: int) -> Expr:
    """What `_any_class` gives for ASCII without control characters and short escapes, sooner: most
    classes of patterns are so."""
    by_last: dict[int, int] = {}
    for digit in range(2, 8):
        last = points >> 16 * digit & 0xFFFF
        if last:
            by_last[last] = by_last.get(last, 0) | 1 << digit
    heads = [concat(_hex_set(first), _hex_set(last)) for last, first in by_last.items()]
    return _regular(union(_mask(points), concat(literal(b"\\u00"), union(*heads))))


def _most_class(points: int) -> Expr:
    """What `_any_class` gives for some of ASCII and all beyond it, sooner: so are most classes that
    leave something out."""
    by_last: dict[int, int] = {}
    for digit in range(8):
        last = points >> 16 * digit & 0xFFFF
        if last:
            by_last[last] = by_last.get(last, 0) | 1 << digit
    by_last[0xFFFF] = by_last.get(0xFFFF, 0) | 0xFF00
    every = _hex_set(0xFFFF)
    below_256 = union(*[concat(_hex_set(first), _hex_set(last)) for last, first in by_last.items()])
    below_4096 = union(concat(_hex_set(1), below_256), concat(_hex_set(0xFFFE), every, every))
    unit = union(concat(_hex_set(1), below_4096), *_units_beyond())
    short = [ord(letter) for point, letter in _SHORT.items() if points >> point & 1]
    escaped = union(byte_set(short), concat(literal(b"u"), unit), _pairs())
    written = points & ~_UNWRITTEN
    raw = union(_mask(written) if written else EMPTY, _raw_beyond())
    return _regular(union(raw, concat(literal(b"\\"), escaped)))


@cache
def _units_beyond() -> tuple[Node, Node]:
    """The digits from 1000 to FFFF but for surrogates."""
    every = _hex_set(0xFFFF)
    d_row = concat(_hex_set(1 << 0xD), _hex_set(0xFF), every, every)
    return concat(_hex_set(0xDFFE), every, every, every), d_row


@cache
def _pairs() -> Expr:
    return _tree(((0, 0xFFFFF),), _PAIR)


@cache
def _raw_beyond() -> Expr:
    return _utf8_class(_BEYOND)


@lru_cache(1024)
def _hex_set(digits: int) -> Expr:
    """One hexadecimal digit of a set of values."""
    return _mask(sum(one for value, one in enumerate(_HEX) if digits >> value & 1))


def _any_class(ranges: Ranges) -> Expr:
    valid = _without(ranges, (_SURROGATES,))
    raw = _utf8_class(_without(valid, _NEVER_RAW))
    single = sum((2 << min(high, 0x7F)) - (1 << low) for low, high in valid if low <= 0x7F)
    short = [ord(letter) for point, letter in _SHORT.items() if single >> point & 1]
    escaped: list[Node] = [byte_set(short)]
    basic = _within(valid, 0, 0xFFFF)
    if basic:
        escaped.append(_tree(basic, _UNIT))
    astral = _within(valid, 0x10000, 0x10FFFF)
    if astral:
        shifted = tuple((low - 0x10000, high - 0x10000) for low, high in astral)
        escaped.append(_tree(shifted, _PAIR))
    return _regular(union(raw, concat(literal(b"\\"), union(*escaped))))


@lru_cache(MEMO_SIZE)
def _tree(ranges: Ranges, digits: Digits) -> Expr:
    """The values in `ranges` (sorted, disjoint, not adjacent), written in these digits."""
    masks, rest = digits[0], digits[1:]
    if not rest:
        return _mask(sum(_between(masks, low, high) for low, high in ranges))
    size = prod(map(len, rest))
    parts, whole = _split(ranges, size)
    by_rest: dict[Expr, int] = {}
    for digit, part in parts.items():
        tail = _tree(tuple(part), rest)
        by_rest[tail] = by_rest.get(tail, 0) | masks[digit]
    if whole:
        tail = _tree(((0, size - 1),), rest)
        mask = sum(_between(masks, low, high) for low, high in whole)
        by_rest[tail] = by_rest.get(tail, 0) | mask
    heads = sorted((mask & -mask, mask, tail) for tail, mask in by_rest.items())  # no two alike
    return _regular(union(*[concat(_mask(mask), tail) for _, mask, tail in heads]))


def _between(masks: tuple[int, ...], low: int, high: int) -> int:
    """The bytes of the digits from `low` to `high`."""
    if len(masks) > len(_HEX):  # one byte after another
        return (masks[high] << 1) - masks[low]
    return sum(masks[low : high + 1])


def _split(ranges: Ranges, size: int) -> tuple[dict[int, list[tuple[int, int]]], Ranges]:
    """The ranges by leading digit, each less its digit's value; and from which to which digit they
    are whole: most digits of most classes."""
    parts: dict[int, list[tuple[int, int]]] = {}
    whole: list[tuple[int, int]] = []
    for low, high in ranges:
        (first, start), (last, stop) = divmod(low, size), divmod(high, size)
        if first == last and (start or stop < size - 1):
            parts.setdefault(first, []).append((start, stop))
            continue
        if start:
            parts.setdefault(first, []).append((start, size - 1))
            first += 1
        if stop < size - 1:
            parts.setdefault(last, []).append((0, stop))
            last -= 1
        if first <= last:
            whole.append((first, last))
    return parts, tuple(whole)


def _mask(mask: int) -> Expr:
    """One byte of a set: a set of one as a literal, which joins its neighbours."""
    return literal(bytes((mask.bit_length() - 1,))) if mask & (mask - 1) == 0 else Bytes(mask)


def _within(ranges: Ranges, low: int, high: int) -> Ranges:
    return tuple([(max(a, low), min(b, high)) for a, b in ranges if a <= high and b >= low])


def _without(ranges: Ranges, holes: Ranges) -> Ranges:
    """The ranges less the holes, both sorted."""
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        start = low
        for first, last in holes:
            if start <= last and first <= high:
                if start < first:
                    found.append((start, first - 1))
                start = last + 1
        if start <= high:
            found.append((start, high))
    return tuple(found)
