r"""The single symbols of a regular expression: literals, escapes and classes in brackets.

Owns what differs between Python's `re` and ECMA-262 in them. Knows nothing of groups and repeats.
"""

import re
import string
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import Chars, Expr, Ranges, chars, common
from radixgen.grammars.regex_tree import Anchor, Part
from radixgen.grammars.unicode_classes import (
    ASCII_DIGIT,
    ASCII_SPACE,
    ASCII_WORD,
    ECMA_SPACE,
    SURROGATES,
    digit,
    fold,
    in_property,
    invert,
    join,
    space,
    word,
)

_SHOWN = 60  # characters of a pattern in a message


class Flags(NamedTuple):
    """The flags in force. `unicode`: the classes and case of Unicode, else of ASCII.

    `ecma`: ECMA-262 where it differs from Python's `re`, and look-ahead allowed.
    """

    unicode: bool = True
    ecma: bool = False
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    verbose: bool = False

    def switched(self, letters: str, on: bool) -> "Flags":
        names = {"i": "ignore_case", "m": "multiline", "s": "dot_all", "x": "verbose"}
        changed = {names[letter]: on for letter in letters if letter in names}
        if "a" in letters or "u" in letters:
            changed["unicode"] = "u" in letters
        return self._replace(**changed)


class Scanner:
    """A position in a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0

    @property
    def done(self) -> bool:
        return self.position >= len(self.pattern)

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.position)

    def take(self) -> str:
        """The next character. Raises InvalidGrammar at the end."""
        if self.done:
            raise self.error("the pattern ends in the middle of something", self.position)
        self.position += 1
        return self.pattern[self.position - 1]

    def skip(self, text: str) -> bool:
        found = self.peek(text)
        if found:
            self.position += len(text)
        return found

    def take_while(self, letters: str, most: int | None = None) -> str:
        start = self.position
        end = len(self.pattern) if most is None else min(start + most, len(self.pattern))
        while self.position < end and self.pattern[self.position] in letters:
            self.position += 1
        return self.pattern[start : self.position]

    def until(self, text: str, what: str) -> str:
        start = self.position
        end = self.pattern.find(text, start)
        if end < 0:
            raise self.error(f"{what} has no {text!r} at its end", start)
        self.position = end + len(text)
        return self.pattern[start:end]

    def error(self, what: str, position: int) -> InvalidGrammar:
        start = max(0, position - _SHOWN // 2)
        shown = self.pattern[start : start + _SHOWN]
        dots = "…" if len(shown) < len(self.pattern) else ""
        return InvalidGrammar(
            f"{what}, at character {position} of the regular expression {shown!r}{dots}"
        )


def character(letter: str, flags: Flags) -> Expr:
    """A literal character."""
    value = ord(letter)
    if flags.ignore_case or SURROGATES[0][0] <= value <= SURROGATES[0][1]:
        return symbol(_point(value), flags)
    return Chars(_point(value))


def _point(value: int) -> Ranges:
    return ((value, value),)


def symbol(ranges: Ranges, flags: Flags) -> Expr:
    """One character out of the ranges, or one that (?i) takes for equal."""
    if flags.ignore_case:
        ranges = fold(ranges, ascii_only=not flags.unicode)
    return chars(common(ranges, _EVERY)) if _meets(ranges, SURROGATES) else chars(ranges)


_EVERY = invert(())
_NEWLINES: Ranges = ((0x0A, 0x0A),)
_ECMA_NEWLINES: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def _meets(ranges: Ranges, others: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in ranges for c, d in others)


def dot(flags: Flags) -> Expr:
    """`.`: any character, without (?s) any but a line terminator."""
    if flags.dot_all:
        return chars(_EVERY)
    return chars(invert(_ECMA_NEWLINES if flags.ecma else _NEWLINES))


def class_of(letter: str, flags: Flags) -> Ranges:
    r"""What `\d \w \s \D \W \S` denote under the flags."""
    ranges = _positive_class(letter.lower(), flags)
    return invert(ranges) if letter.isupper() else ranges


def _positive_class(letter: str, flags: Flags) -> Ranges:
    if letter == "s" and flags.ecma:
        return ECMA_SPACE  # in every mode of ECMA-262
    if not flags.unicode:
        return {"d": ASCII_DIGIT, "w": ASCII_WORD, "s": ASCII_SPACE}[letter]
    return {"d": digit, "w": word, "s": space}[letter]()


def boundary_word(flags: Flags) -> Ranges:
    return word() if flags.unicode else ASCII_WORD


# --- escapes ------------------------------------------------------------------------------------

_CONTROLS = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def escape(source: Scanner, flags: Flags) -> Part:
    r"""What follows a backslash outside brackets, which is already taken."""
    start = source.position - 1
    letter = source.take()
    if letter in "AZ":
        return Anchor("start" if letter == "A" else "end")
    if letter in "bB":
        return Anchor("boundary" if letter == "b" else "inside", boundary_word(flags))
    if letter == "k" and flags.ecma:
        raise refused(source, r"a back-reference (\k)", start)
    if letter in "123456789":
        return symbol(_octal_or_reference(source, letter, start, flags), flags)
    return symbol(_escaped(source, letter, start, flags), flags)


def refused(source: Scanner, what: str, position: int) -> InvalidGrammar:
    return source.error(f"{what} is not supported, since it is not regular or not exact", position)


def _octal_or_reference(source: Scanner, letter: str, start: int, flags: Flags) -> Ranges:
    r"""`\123` is octal in Python; every other digit is a back-reference."""
    digits = letter + source.take_while(string.octdigits, 2)
    octal = len(digits) == 3 and letter in string.octdigits and not flags.ecma
    if not octal:
        raise refused(source, f"a back-reference (\\{letter})", start)
    return _octal(source, digits, start)


def _octal(source: Scanner, digits: str, start: int) -> Ranges:
    value = int(digits, 8)
    if value > 0o377:
        raise source.error(f"octal escape \\{digits} is above 0o377", start)
    return _point(value)


def _escaped(source: Scanner, letter: str, start: int, flags: Flags) -> Ranges:
    """What an escape denotes inside and outside brackets alike."""
    if letter in "dwsDWS":
        return class_of(letter, flags)
    if letter in _CONTROLS:
        return _point(_CONTROLS[letter])
    if letter in "pP":
        return _property(source, letter, start)
    if letter in _HEX_DIGITS and not (letter == "U" and flags.ecma):
        return _hexadecimal(source, letter, start, flags)
    if letter == "0":
        digits = "0" if flags.ecma else "0" + source.take_while(string.octdigits, 2)
        return _octal(source, digits, start)
    return _other_escape(source, letter, start, flags)


def _other_escape(source: Scanner, letter: str, start: int, flags: Flags) -> Ranges:
    if letter == "a" and not flags.ecma:
        return _point(7)
    if letter == "N" and not flags.ecma and source.skip("{"):
        name = source.until("}", r"\N{")
        try:
            return _point(ord(unicodedata.lookup(name)))
        except (KeyError, TypeError):
            raise source.error(f"there is no character named {name!r}", start) from None
    if letter == "c" and flags.ecma:
        control = source.take()
        if control not in string.ascii_letters:
            raise source.error(f"\\c{control} names no control character", start)
        return _point(ord(control) % 32)
    if letter in string.ascii_letters or letter in string.digits:
        raise source.error(f"unknown escape \\{letter}", start)
    return _point(ord(letter))


def _property(source: Scanner, letter: str, start: int) -> Ranges:
    r"""`\p{name}`, `\P{name}`, and `\pL` with a name of one letter."""
    name = source.until("}", rf"\{letter}{{") if source.skip("{") else source.take()
    negated = name.startswith("^")
    try:
        ranges = in_property(name.removeprefix("^"))
    except InvalidGrammar as error:
        raise source.error(str(error), start) from None
    return invert(ranges) if negated != (letter == "P") else ranges


def _hexadecimal(source: Scanner, letter: str, start: int, flags: Flags) -> Ranges:
    if letter == "u" and flags.ecma and source.skip("{"):
        digits = source.until("}", r"\u{")
        well = 0 < len(digits) <= 8 and all(d in string.hexdigits for d in digits)
    else:
        digits = source.take_while(string.hexdigits, _HEX_DIGITS[letter])
        well = len(digits) == _HEX_DIGITS[letter]
    value = int(digits, 16) if well else -1
    if not 0 <= value <= 0x10FFFF:
        raise source.error(f"\\{letter}{digits} is no character", start)
    if flags.ecma and letter == "u" and 0xD800 <= value <= 0xDBFF:
        value = _joined_surrogates(source, value)
    return _point(value)


def _joined_surrogates(source: Scanner, high: int) -> int:
    r"""`\uD83D\uDE00` is one character; a surrogate without its partner stays alone."""
    start = source.position
    if source.skip("\\u"):
        digits = source.take_while(string.hexdigits, 4)
        low = int(digits, 16) if len(digits) == 4 else 0
        if 0xDC00 <= low <= 0xDFFF:
            return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
    source.position = start
    return high


# --- classes in brackets ------------------------------------------------------------------------


def bracket(source: Scanner, flags: Flags) -> Expr:
    """A class, after its opening bracket."""
    known = _CLASS.match(source.pattern, source.position) if flags.ecma else None
    found = _class_in(known[0], flags) if known is not None else None
    if known is None or found is None:  # and where it is wrong, to say at which place
        return _read_class(source, flags)
    source.position = known.end()
    return found


_CLASS = re.compile(r"(?:[^\\\]]|\\.)*\]", re.DOTALL)


@lru_cache(1024)  # patterns share most of their classes
def _class_in(text: str, flags: Flags) -> Expr | None:
    """The class of a text up to its closing bracket; None if it ends elsewhere or is wrong."""
    source = Scanner(text)
    try:
        found = _read_class(source, flags)
    except InvalidGrammar:
        return None
    return found if source.done else None


def _read_class(source: Scanner, flags: Flags) -> Expr:
    opened = source.position - 1
    negated = source.skip("^")
    found: list[Ranges] = []
    first = source.position
    while True:
        if source.done:
            raise source.error("a class has no ']' at its end", opened)
        if source.peek("]") and (source.position > first or flags.ecma):
            source.position += 1
            break
        found.append(_member(source, flags))
    ranges = join(*found)
    if flags.ignore_case:
        ranges = fold(ranges, ascii_only=not flags.unicode)
        flags = flags._replace(ignore_case=False)
    return chars(invert(ranges)) if negated else symbol(ranges, flags)


def _member(source: Scanner, flags: Flags) -> Ranges:
    """A character, a class or a range."""
    start = source.position
    low = _class_item(source, flags)
    after_dash = source.position + 1
    if not source.peek("-") or source.pattern[after_dash : after_dash + 1] in ("]", ""):
        return low
    source.position = after_dash
    high = _class_item(source, flags)
    if len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
        if low[0][0] > high[0][0]:
            shown = source.pattern[start : source.position]
            raise source.error(f"the range {shown!r} runs backwards", start)
        return ((low[0][0], high[0][0]),)
    if flags.ecma:
        return join(low, high, ((0x2D, 0x2D),))  # as in Annex B: a class is no end of a range
    raise source.error("a range ends in a class of characters", start)


def _class_item(source: Scanner, flags: Flags) -> Ranges:
    start = source.position
    letter = source.take()
    if letter != "\\":
        return _point(ord(letter))
    letter = source.take()
    if letter == "b":
        return _point(8)
    if letter in "1234567" and not flags.ecma:
        return _octal(source, letter + source.take_while(string.octdigits, 2), start)
    return _escaped(source, letter, start, flags)
