r"""Sets of code points: \d \w \s, general categories, and what (?i) takes for equal.

Owns the tables, read from Python's own Unicode data on first use, and the algebra of ranges.
Knows no regex syntax.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import MAX_CODE_POINT, Ranges

ASCII_DIGIT: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
# In ECMA-262: tab to carriage return, the separators (category Zs), the line terminators, U+FEFF.
ECMA_SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
SURROGATES: Ranges = ((0xD800, 0xDFFF),)
# Between these lies no assigned code point but private use, in any version of Unicode so far.
_TABLE_BLOCKS = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))


def join(*sets: Ranges) -> Ranges:
    """The union, sorted and merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for ranges in sets for pair in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


@lru_cache(256)
def invert(ranges: Ranges) -> Ranges:
    """Every code point that sorted, disjoint `ranges` lack, surrogates left out."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in join(ranges, SURROGATES):
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(gaps)


@lru_cache(1)
def _tables() -> tuple[tuple[int, str], ...]:
    """First code point and text of each block that holds assigned code points."""
    return tuple((low, _all_characters(low, high)) for low, high in _TABLE_BLOCKS)


def _all_characters(low: int, high: int) -> str:
    points = array("I", range(low, high + 1))
    order = "utf-32-le" if memoryview(points.tobytes())[0] == low & 0xFF else "utf-32-be"
    return points.tobytes().decode(order, "surrogatepass")


def _matching(pattern: str) -> Ranges:
    """The code points where Python's `re` finds the pattern, which is one `[…]+`."""
    found = [
        (base + match.start(), base + match.end() - 1)
        for base, text in _tables()
        for match in re.finditer(pattern, text)
    ]
    return join(tuple(found))


@lru_cache(1)
def digit() -> Ranges:
    r"""What `\d` is in Python's str patterns: category Nd."""
    return _matching(r"\d+")


@lru_cache(1)
def word() -> Ranges:
    r"""What `\w` is in Python's str patterns: alphanumeric, or an underscore."""
    return _matching(r"\w+")


@lru_cache(1)
def space() -> Ranges:
    r"""What `\s` is in Python's str patterns."""
    return _matching(r"\s+")


# --- properties ---------------------------------------------------------------------------------

_LONG_NAMES = {
    "L": "Letter",
    "Lu": "Uppercase_Letter",
    "Ll": "Lowercase_Letter",
    "Lt": "Titlecase_Letter",
    "LC": "Cased_Letter",
    "Lm": "Modifier_Letter",
    "Lo": "Other_Letter",
    "M": "Mark Combining_Mark",
    "Mn": "Nonspacing_Mark",
    "Mc": "Spacing_Mark",
    "Me": "Enclosing_Mark",
    "N": "Number",
    "Nd": "Decimal_Number digit",
    "Nl": "Letter_Number",
    "No": "Other_Number",
    "P": "Punctuation punct",
    "Pc": "Connector_Punctuation",
    "Pd": "Dash_Punctuation",
    "Ps": "Open_Punctuation",
    "Pe": "Close_Punctuation",
    "Pi": "Initial_Punctuation",
    "Pf": "Final_Punctuation",
    "Po": "Other_Punctuation",
    "S": "Symbol",
    "Sm": "Math_Symbol",
    "Sc": "Currency_Symbol",
    "Sk": "Modifier_Symbol",
    "So": "Other_Symbol",
    "Z": "Separator",
    "Zs": "Space_Separator",
    "Zl": "Line_Separator",
    "Zp": "Paragraph_Separator",
    "C": "Other",
    "Cc": "Control cntrl",
    "Cf": "Format",
    "Co": "Private_Use",
    "Cn": "Unassigned",
    "Cs": "Surrogate",
}


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").replace("-", "").lower()


_BY_NAME = {
    _plain(name): short for short, names in _LONG_NAMES.items() for name in (short, *names.split())
}


@lru_cache(1)
def _categories() -> dict[str, Ranges]:
    """General category to its code points, assigned ones and private use."""
    runs: dict[str, list[tuple[int, int]]] = {"Co": [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]}
    for base, text in _tables():
        start, current = base, ""
        for point, category in enumerate(map(unicodedata.category, text), base):
            if category != current:
                if current:
                    runs.setdefault(current, []).append((start, point - 1))
                start, current = point, category
        runs.setdefault(current, []).append((start, base + len(text) - 1))
    del runs["Cs"], runs["Cn"]
    return {category: join(tuple(found)) for category, found in runs.items()}


@lru_cache(256)
def in_property(name: str) -> Ranges:
    r"""The code points of `\p{name}`: a general category, `Any`, `ASCII` or `Assigned`.

    Raises InvalidGrammar for scripts and binary properties, which Python's data lack.
    """
    key, _, value = name.rpartition("=")
    if key and _plain(key) not in ("gc", "generalcategory", "category"):
        raise _unknown_property(name)
    if not key and value in ("Any", "ASCII", "Assigned"):
        return {"Any": invert(()), "ASCII": ((0, 0x7F),), "Assigned": invert(_unassigned())}[value]
    category = _BY_NAME.get(_plain(value))
    if category is None:
        raise _unknown_property(name)
    return _in_category(category)


def _in_category(category: str) -> Ranges:
    if category == "Cs":
        return ()  # no text holds one
    if category == "Cn":
        return _unassigned()
    if category == "LC":
        return join(*(_categories()[c] for c in ("Lu", "Ll", "Lt")))
    parts = [ranges for name, ranges in _categories().items() if name.startswith(category)]
    return join(*parts, _unassigned() if category == "C" else ())


@lru_cache(1)
def _unassigned() -> Ranges:
    return invert(join(*_categories().values()))


def _unknown_property(name: str) -> InvalidGrammar:
    return InvalidGrammar(
        rf"\p{{{name}}} is not known; general categories are (such as L, Lu, Nd or Letter), "
        "and Any, ASCII, Assigned; scripts and other properties are not"
    )


# --- case ---------------------------------------------------------------------------------------

# No letter between these has a case; they are skipped when the table is made.
_CASELESS = ((0x3100, 0xA63F), (0xAC00, 0xFAFF), (0x11900, 0x16DFF), (0x16F00, 0x1DFFF))


@lru_cache(1)
def _case_groups() -> dict[int, tuple[int, ...]]:
    """Cased code point to all that (?i) takes for equal to it.

    As in Python's `re`: two characters are equal when they have one lower case, or when their
    lower cases have one upper case (both small sigmas, s and long s, i and dotless i).
    """
    groups: dict[str, list[int]] = {}
    for point in _maybe_cased():
        character = chr(point)
        lower = character.lower()
        if lower != character or character.upper() != character:
            groups.setdefault(lower[0].upper(), []).append(point)
    return {point: tuple(group) for group in groups.values() for point in group if len(group) > 1}


def _maybe_cased() -> Iterator[int]:
    start = 0x41
    for low, high in (*_CASELESS, (0x1E944, MAX_CODE_POINT)):
        yield from range(start, low)
        start = high + 1


def fold(ranges: Ranges, ascii_only: bool = False) -> Ranges:
    """The ranges with every code point that differs from one of them in case only."""
    if ascii_only:
        return join(ranges, *_ascii_fold(ranges))
    added: list[tuple[int, int]] = []
    for low, high in ranges:
        added.extend((twin, twin) for twin in _twins(low, high))
    return join(ranges, tuple(added))


def _twins(low: int, high: int) -> Iterable[int]:
    groups = _case_groups()
    points = range(low, high + 1) if high - low < len(groups) else groups
    for point in points:
        if low <= point <= high:
            yield from groups.get(point, ())


def _ascii_fold(ranges: Ranges) -> Iterator[Ranges]:
    for low, high in ranges:
        for start, end, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
            if low <= end and high >= start:
                yield ((max(low, start) + shift, min(high, end) + shift),)
