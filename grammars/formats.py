"""The formats of JSON Schema (draft 2020-12, section 7.3) as text expressions.

Owns one regular language for each format. Where a format is not regular, its language here is a
subset, so that what is generated is always valid: NARROWED says which.

`idn-hostname` is refused: its rules take tables that Python does not have.
"""

from collections.abc import Callable
from functools import lru_cache

from radixgen.errors import InvalidGrammar
from radixgen.grammars.expr import (
    ANY_CHAR,
    Expr,
    Node,
    chars,
    concat,
    conj,
    optional,
    repeat,
    star,
    text,
    union,
)
from radixgen.grammars.regex import parse
from radixgen.grammars.regex_tree import regular

REGEX_DEPTH = 3  # of groups within each other

# What is left out of a format.
_YEAR = "the year 0000 is left out, which few parsers take"
_LEAP = "a leap second comes only where the offset is in whole or half hours"
_DOMAIN = "no A-labels (xn--…), whose validity takes a Punycode decoder"
NARROWED = {
    "date": _YEAR,
    "time": _LEAP,
    "date-time": f"{_YEAR}; {_LEAP}",
    "hostname": _DOMAIN,
    "email": f"domains have {_DOMAIN}; address literals are of IPv4 or IPv6",
    "idn-email": "beyond ASCII, domains have labels of up to 14 letters of some scripts, accents "
    "and single hyphens, whose A-labels always fit",
    "relative-json-pointer": "without index manipulation",
    "regex": "a portable subset of ECMA-262: no bare slashes or line ends, no assertions but of "
    f"words, groups up to {REGEX_DEPTH} deep",
}
_REFUSED = {"idn-hostname": "its rules (IDNA 2008) need tables of characters that are not at hand"}


def format_text(name: str) -> Expr | None:
    """The texts of a format, as a text expression; None for a format that nobody defined.

    JSON Schema lets an unknown format pass as an annotation. Raises InvalidGrammar for a format
    of the standard that cannot be enforced.
    """
    return _made(_FORMATS[name]) if is_known(name) else None


def is_known(name: str) -> bool:
    """Whether `format_text` gives the texts of a format, which may take long. Raises as it does."""
    if name in _REFUSED:
        raise InvalidGrammar(f"format {name!r} cannot be enforced: {_REFUSED[name]}")
    return name in _FORMATS


def is_refused(name: object) -> bool:
    """Whether a format of the standard cannot be enforced; every other has texts."""
    return name in _REFUSED


@lru_cache(None)
def _made(make: Callable[[], Expr]) -> Expr:
    return make()


def format_names() -> tuple[str, ...]:
    """The formats that are enforced, sorted."""
    return tuple(sorted(_FORMATS))


def _re(pattern: str) -> Expr:
    return parse(pattern, dialect="ecma")


# --- dates and times: RFC 3339, sections 5.6 and 5.7, appendix A --------------------------------

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_LEAP_YEAR = (
    r"(?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])|0[1-9](?:0[48]|[2468][048]|[13579][26])"
    r"|00(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE = (
    rf"{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29"
)
_FRACTION = r"(?:\.\d+)?"
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_DURATION = r"P(?:\d+W|(?:{date})(?:T(?:{time}))?|T(?:{time}))".replace(
    "{date}", r"\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D"
).replace("{time}", r"\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S")


def _time() -> Expr:
    usual = _re(rf"{_CLOCK}:[0-5]\d{_FRACTION}(?:[Zz]|[+\-]{_CLOCK})")
    return regular(union(usual, _leap_second()))


def _leap_second() -> Expr:
    """Second 60 stands only where it is 23:59 in UTC: a local time has one offset each way."""
    by_tens: dict[int, list[Node]] = {}
    for hour in range(24):
        local = union(_leap_minute(hour, 29), _leap_minute(hour, 59))
        by_tens.setdefault(hour // 10, []).append(concat(text(f"{hour % 10}:"), local))
    tens = (concat(text(str(ten)), union(*hours)) for ten, hours in by_tens.items())
    return regular(union(*tens))


def _leap_minute(hour: int, minute: int) -> Node:
    ahead = (hour * 60 + minute + 1) % 1440
    behind = (1439 - hour * 60 - minute) % 1440
    offsets: list[Node] = [
        text(f"+{ahead // 60:02}:{ahead % 60:02}"),
        text(f"-{behind // 60:02}:{behind % 60:02}"),
    ]
    if ahead == 0:
        offsets.append(_re("[Zz]"))
    return concat(text(f"{minute}:60"), _re(_FRACTION), union(*offsets))


def _date_time() -> Expr:
    return regular(concat(_re(_DATE), _re("[Tt]"), _time()))


# --- hosts and addresses: RFC 1123, 5321, 4291 --------------------------------------------------

# A label of up to 63 characters that does not begin with xn-- in any case, which needs no
# complement when it is told by its first four characters.
_LABEL = (
    r"[A-WYZa-wyz0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
    r"|[Xx](?:[A-MO-Za-mo-z0-9]|[A-MO-Za-mo-z0-9\-][A-Za-z0-9\-]{0,60}[A-Za-z0-9])?"
    r"|[Xx][Nn](?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,59}[A-Za-z0-9])?)?"
    r"|[Xx][Nn]-[A-Za-z0-9](?:[A-Za-z0-9\-]{0,58}[A-Za-z0-9])?"
)
# Letters of Latin, Greek, Cyrillic, Devanagari, Thai, Georgian, kana, Han and Hangul that IDNA
# takes as they are, whatever stands beside them.
_LETTERS = (
    r"\u{DF}-\u{F6}\u{F8}-\u{FF}\u{3AC}-\u{3CE}\u{430}-\u{45F}\u{905}-\u{939}\u{E01}-\u{E2E}"
    r"\u{10D0}-\u{10FA}\u{3041}-\u{3096}\u{30A1}-\u{30FA}\u{4E00}-\u{9FFF}\u{AC00}-\u{D7A3}"
)
_MARK = r"[\u{300}-\u{304}\u{306}-\u{30C}]"  # accents on the letter before
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_LAST = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"  # the last 32 bits
_IPV6 = "|".join(
    [
        rf"(?:{_GROUP}:){{6}}{_LAST}",
        rf"::(?:{_GROUP}:){{5}}{_LAST}",
        *(
            rf"(?:(?:{_GROUP}:){{0,{before}}}{_GROUP})?::(?:{_GROUP}:){{{4 - before}}}{_LAST}"
            for before in range(4)
        ),
        rf"(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST}",
        rf"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    ]
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_QUOTED = r'"(?:[\x20\x21\x23-\x5B\x5D-\x7E]|\\[\x20-\x7E])*"'


def _host(label: Expr) -> Expr:
    return regular(concat(label, star(concat(text("."), label))))


def _ascii_label() -> Expr:
    return _re(_LABEL)


def _hostname() -> Expr:
    return conj(_host(_ascii_label()), regular(repeat(ANY_CHAR, 1, 253)))


def _address_literal() -> Expr:
    return _re(rf"\[(?:{_IPV4}|[Ii][Pp][Vv]6:(?:{_IPV6}))\]")


def _email() -> Expr:
    local = _re(rf"{_ATOM}(?:\.{_ATOM})*|{_QUOTED}")
    return regular(concat(local, text("@"), union(_host(_ascii_label()), _address_literal())))


def _idn_email() -> Expr:
    beyond = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
    atom = repeat(union(_re(_ATOM).args[0], chars(beyond)), 1, None)
    inside = union(_re(r"[\x20\x21\x23-\x5B\x5D-\x7E]|\\[\x20-\x7E]"), chars(beyond))
    quoted = concat(text('"'), star(inside), text('"'))
    local = union(concat(atom, star(concat(text("."), atom))), quoted)
    letter = rf"[A-Za-z0-9{_LETTERS}]"
    label = regular(union(_ascii_label(), _re(rf"{letter}(?:-?{letter}|{_MARK}){{0,13}}")))
    return regular(concat(local, text("@"), union(_host(label), _address_literal())))


# --- URIs and IRIs: RFC 3986, 3987, 6570 --------------------------------------------------------

_UCS = (
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_PRIVATE = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"
_ESCAPED = r"%[0-9A-Fa-f]{2}"


def _identifier(beyond: str, private: str, reference: bool) -> Expr:
    """URI or IRI, by the characters allowed beyond ASCII; with `reference` also without scheme."""
    unreserved = rf"A-Za-z0-9\-._~{beyond}"
    sub = "!$&'()*+,;="
    pchar = rf"(?:[{unreserved}{sub}:@]|{_ESCAPED})"
    host = (
        rf"(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~{sub}:]+)\]"
        rf"|(?:[{unreserved}{sub}]|{_ESCAPED})*)"
    )
    authority = rf"(?:(?:[{unreserved}{sub}:]|{_ESCAPED})*@)?{host}(?::\d*)?"
    below = rf"(?:/{pchar}*)*"
    rest = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    absolute = rf"/(?:{pchar}+{below})?"
    with_scheme = (
        rf"[A-Za-z][A-Za-z0-9+\-.]*:(?://{authority}{below}|{absolute}|{pchar}+{below}|){rest}"
    )
    if not reference:
        return _re(with_scheme)
    no_colon = rf"(?:[{unreserved}{sub}@]|{_ESCAPED})"
    relative = rf"(?://{authority}{below}|{absolute}|{no_colon}+{below}|){rest}"
    return _re(rf"{with_scheme}|{relative}")


_TEMPLATE_NAME = rf"(?:[A-Za-z0-9_]|{_ESCAPED})(?:\.?(?:[A-Za-z0-9_]|{_ESCAPED}))*"
_TEMPLATE_SPEC = rf"{_TEMPLATE_NAME}(?::[1-9]\d{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[\x21\x23\x24\x26-\x3B\x3D\x3F-\x5B\x5D\x5F\x61-\x7A\x7E{_UCS}{_PRIVATE}]|{_ESCAPED}"
    rf"|\{{[+#./;?&=,!@|]?{_TEMPLATE_SPEC}(?:,{_TEMPLATE_SPEC})*\}})*"
)
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"


# --- regex --------------------------------------------------------------------------------------


def _regex() -> Expr:
    plain = r"[^\\\[\](){}*+?|^$./\u0000-\u001F\u007F]"
    escaped = (
        r"\\(?:[dDwWsSfnrtv\\\[\](){}*+?|^$./\-]|x[0-9A-Fa-f]{2}|u[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3})"
    )
    span = "(?:a-z|A-Z|0-9|a-f|A-F)"
    listed = r"(?:[^\\\[\]^\-\u0000-\u001F\u007F]|\\[dDwWsSfnrtv\\\[\]^\-]|" + span + ")"
    atom = _re(rf"{plain}|{escaped}|\.|\[\^?{listed}+-?\]")
    anchor = _re(r"[\^$]|\\[bB]")
    repeats = _re(r"(?:[*+?]|\{(?:\d{1,3},?|0,\d{1,3})\})\??")
    opening = _re(r"\((?:\?:)?")
    whole: Node = text("")
    for depth in range(REGEX_DEPTH + 1):
        group = concat(opening, whole, text(")")) if depth else atom
        term = union(concat(union(atom, group), optional(repeats)), anchor)
        whole = concat(star(term), star(concat(text("|"), star(term))))
    return regular(whole)


_FORMATS: dict[str, Callable[[], Expr]] = {
    "date": lambda: _re(_DATE),
    "time": _time,
    "date-time": _date_time,
    "duration": lambda: _re(_DURATION),
    "email": _email,
    "idn-email": _idn_email,
    "hostname": _hostname,
    "ipv4": lambda: _re(_IPV4),
    "ipv6": lambda: _re(_IPV6),
    "uri": lambda: _identifier("", "", False),
    "uri-reference": lambda: _identifier("", "", True),
    "iri": lambda: _identifier(_UCS, _PRIVATE, False),
    "iri-reference": lambda: _identifier(_UCS, _PRIVATE, True),
    "uri-template": lambda: _re(_TEMPLATE),
    "uuid": lambda: _re(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "json-pointer": lambda: _re(_POINTER),
    "relative-json-pointer": lambda: _re(rf"(?:0|[1-9]\d*)(?:#|{_POINTER})"),
    "regex": _regex,
}
