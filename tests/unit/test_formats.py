"""Formats against independent parsers, on generated texts near the edge of each language."""

import datetime
import functools
import ipaddress
import random
import re
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers import recognised
from jsonschema import Draft202012Validator

from radixgen.errors import InvalidGrammar
from radixgen.grammars.encode import utf8
from radixgen.grammars.expr import Expr
from radixgen.grammars.formats import format_names, format_text
from radixgen.grammars.regex import parse

CHECKER = Draft202012Validator.FORMAT_CHECKER


def _encoded(name: str) -> Expr:
    node = format_text(name)
    assert node is not None
    return utf8(node)


def _mutants(seeds: Sequence[str], letters: str, count: int = 400) -> list[str]:
    """The seeds, and what one to three edits make of them."""
    draw = random.Random(7)
    found = list(seeds)
    for _ in range(count):
        text = draw.choice(seeds)
        for _ in range(draw.randint(1, 3)):
            at = draw.randint(0, len(text))
            text = (
                text[:at]
                + draw.choice(["", draw.choice(letters)])
                + text[at + draw.randint(0, 1) :]
            )
        found.append(text)
    return found


def test_every_date() -> None:
    days = [
        f"{y:04}-{m:02}-{d:02}"
        for y in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024)
        for m in range(14)
        for d in range(33)
    ]
    assert recognised(_encoded("date"), days) == [CHECKER.conforms(d, "date") for d in days]


def _valid_time(text: str) -> bool:
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text, re.ASCII)
    if not match:
        return False
    hour, minute, second = map(int, match.group(1, 2, 3))
    zone = "+00:00" if match[5] in "Zz" else match[5]
    away = int(zone[1:3]) * 60 + int(zone[4:])
    if hour > 23 or minute > 59 or int(zone[1:3]) > 23 or int(zone[4:]) > 59:
        return False
    utc = (hour * 60 + minute + (away if zone[0] == "-" else -away)) % 1440
    return second < 60 or (second == 60 and utc == 1439 and away % 30 == 0)


def test_times_with_leap_seconds() -> None:
    draw = random.Random(3)
    times = [
        f"{draw.randint(0, 24):02}:{draw.randint(0, 60):02}:{draw.choice((0, 59, 60, 61)):02}"
        f"{draw.choice(('', '.5', '.', '.123456789'))}"
        f"{draw.choice(('Z', 'z', '', '+00:00', '-00:00', '+23:59', '-24:00', '+05:60'))}"
        for _ in range(300)
    ]
    for away in (*range(-1439, 1440, 41), *range(-1410, 1440, 30)):
        hour, minute = divmod((1439 + away) % 1440, 60)
        sign = "-" if away < 0 else "+"
        zone = f"{sign}{abs(away) // 60:02}:{abs(away) % 60:02}"
        times += [f"{hour:02}:{minute:02}:60{zone}", f"{hour:02}:{(minute + 1) % 60:02}:60{zone}"]
    found = recognised(_encoded("time"), times)
    assert found == [_valid_time(t) for t in times]
    assert sum(found) > 100
    stamps = [f"2024-02-29T{t}" for t in times[::5]]
    assert recognised(_encoded("date-time"), stamps) == found[::5]


def test_date_times_parse() -> None:
    seeds = ["2024-02-29T23:59:59.25+02:00", "1999-12-31t00:00:00Z", "2023-02-28T12:00:00-23:59"]
    texts = _mutants(seeds, "0123456789-:T.Z+")
    for text, inside in zip(texts, recognised(_encoded("date-time"), texts), strict=True):
        if inside and ":60" not in text:
            datetime.datetime.fromisoformat(
                re.sub(r"\.\d+", "", text.upper().replace("Z", "+00:00"))
            )


def _parses(call: Callable[[str], Any], text: str) -> bool:
    try:
        return bool(call(text))
    except ValueError:
        return False


def test_addresses() -> None:
    seeds = ["192.168.0.1", "255.255.255.255", "0.0.0.0", "1.22.33.44"]
    texts = _mutants(seeds, "0123456789.")
    expected = [_parses(lambda t: str(ipaddress.IPv4Address(t)) == t, t) for t in texts]
    assert recognised(_encoded("ipv4"), texts) == expected
    seeds = [
        "::",
        "::1",
        "1::",
        "1:2:3:4:5:6:7:8",
        "::ffff:1.2.3.4",
        "1:2::7:8",
        "a:B::",
        "1::3:4:5:6:7:8",
    ]
    seeds += ["1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4::1.2.3.4"]
    texts = _mutants(seeds, "0123456789abF:.", 1500)
    expected = [_parses(lambda t: ipaddress.IPv6Address(t).scope_id is None, t) for t in texts]
    assert recognised(_encoded("ipv6"), texts) == expected


def test_uuids() -> None:
    texts = _mutants(["2eb8aa08-AA98-11ea-b4aa-73b441d16380"], "0123456789abcdefABG-")
    dashed = re.compile(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", re.ASCII)
    expected = [_parses(lambda t: dashed.fullmatch(t) and str(uuid.UUID(t)), t) for t in texts]
    assert recognised(_encoded("uuid"), texts) == expected


def _duration(text: str) -> bool:
    """RFC 3339, appendix A: a part is followed by the next smaller one only, or by nothing."""
    match = re.fullmatch(r"P((?:\d+[YMWD])*)(T((?:\d+[HMS])+))?", text, re.ASCII)
    if not match or not (match[1] or match[2]):
        return False
    date, time = re.sub(r"\d", "", match[1]), re.sub(r"\d", "", match[3] or "")
    if "W" in date:
        return date == "W" and not time
    return date in "YMD" and time in "HMS"


def test_durations() -> None:
    seeds = ["P1Y2M3DT4H5M6S", "P2W", "PT36H", "P1D", "PT1M2S", "P1M2D"]
    texts = _mutants(seeds, "0123PTYMWDHS", 800)
    assert recognised(_encoded("duration"), texts) == [_duration(t) for t in texts]


def test_hostnames() -> None:
    label = re.compile(r"(?!-)(?![Xx][Nn]--)[A-Za-z0-9-]{1,63}(?<!-)")

    def valid(text: str) -> bool:
        return len(text) <= 253 and all(map(label.fullmatch, text.split(".")))

    texts = _mutants(["www.example.com", "a--b.c", "a" * 63 + ".b", "xn--a.b"], "ab-.0_", 300)
    texts += [".".join(["a" * 63] * 3 + ["b" * n]) for n in (60, 61, 62, 63)]
    assert recognised(_encoded("hostname"), texts) == [bool(valid(t)) for t in texts]


URIS = ["http://user:pw@example.com:80/a/b?q=1#f", "urn:isbn:123", "file:///etc", "mailto:a@b.c"]
URIS += [
    "http://[2001:db8::1]/",
    "ftp://1.2.3.4",
    "a:",
    "x://h?%20",
    "//host/p",
    "../a",
    "?q",
    "#f",
]


@functools.cache
def _uri_pattern() -> re.Pattern[str]:
    """The five parts of RFC 3986, appendix B, each of allowed characters."""
    some = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@{}]|%[0-9A-Fa-f]{{2}})*"
    path, query = some.format("/"), some.format("/?")
    return re.compile(
        rf"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?(?://([^/?#]*))?({path})(\?{query})?(#{query})?"
    )


def _uri(text: str, reference: bool) -> bool:
    match = _uri_pattern().fullmatch(text)
    if not match or not (match[1] or reference):
        return False
    scheme, authority, path = match.group(1, 2, 3)
    if authority is None:
        return not path.startswith("//") and (bool(scheme) or ":" not in path.split("/")[0])
    if path and not path.startswith("/"):
        return False
    user, at, host = authority.rpartition("@")
    port = re.fullmatch(r"(\[.*\]|[^:\[\]]*)(?::\d*)?", host, re.ASCII)
    name = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
    if not port or not re.fullmatch(name.replace(";=", ";=:"), user if at else ""):
        return False
    if port[1].startswith("["):
        return _parses(lambda t: ipaddress.IPv6Address(t).scope_id is None, port[1][1:-1])
    return bool(re.fullmatch(name, port[1]))


@pytest.mark.parametrize("name", ["uri", "uri-reference"])
def test_uris(name: str) -> None:
    texts = [t for t in _mutants(URIS, "a0:/?#[]@%.- ", 1500) if "[v" not in t]
    found = recognised(_encoded(name), texts)
    assert found == [_uri(t, name == "uri-reference") for t in texts]
    for text, inside in zip(texts, found, strict=True):
        if inside:
            urllib.parse.urlsplit(text)
    assert recognised(_encoded(name.replace("u", "i", 1)), texts) == found


def test_iris() -> None:
    texts = ["http://\u00e9.com/\u00fc?\u20ac", "http://a/\ue000", "http://a/?\ue000", "\u00e9:a"]
    assert recognised(_encoded("iri"), texts) == [True, False, True, False]
    assert recognised(_encoded("uri"), texts) == [False] * 4


EXAMPLES = {
    "email": (
        ["a.b@c.d", '"a b"@c', "a@[127.0.0.1]", "a@[IPv6:::1]", "a+b=c@x--y.z"],
        ["a", ".a@b", "a..b@c", "a@b..c", "a@-b", "a@[1.2.3]", "a b@c", "\u00e9@b", "a@xn--b"],
    ),
    "idn-email": (
        ["\uc2e4\ub840@\uc2e4\ub840.\ud14c\uc2a4\ud2b8", "a@b", '"\u00e9 a"@caf\u00e9.com'],
        ["a", "\u00e9@\u00a0", "@b", "a@\u0301b", "a@\u05d0", "a@xn--\u00e9", "a@-\u00e9"],
    ),
    "json-pointer": (["", "/", "/a/0", "/~0~1", "/\u00e9 \n"], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "0#", "12/a/~1"], ["01", "-1", "a", "0##", "", "1/~"]),
    "uri-template": (["", "a{b}", "{+x,y:3,z*}", "{?q.r}%20"], ["{", "{}", "a}", "{a:0}", "%2"]),
    "regex": (
        ["", "a|b*", "(?:a[^b-]?){2,}$", "\\d+\\u0041", "((a)+)?", "[a-z_]"],
        ["(", ")", "[", "a**", "*", "\\q", "a{2", "(?<n>a)", "[z-a]"],
    ),
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples(name: str) -> None:
    inside, outside = EXAMPLES[name]
    found = recognised(_encoded(name), inside + outside)
    assert found == [True] * len(inside) + [False] * len(outside)


def test_what_is_taken_for_a_regex_is_one() -> None:
    texts = _mutants(EXAMPLES["regex"][0], "ab()[]{}|*+?^$.\\d0,-", 2000)
    found = [
        t for t, inside in zip(texts, recognised(_encoded("regex"), texts), strict=True) if inside
    ]
    for text in found:
        parse(text, dialect="ecma")
        assert CHECKER.conforms(text, "regex"), text
    assert len(found) > 300


def test_known_unknown_and_refused() -> None:
    assert format_text("html") is None
    assert {"date-time", "email", "uuid", "uri", "regex"} <= set(format_names())
    with pytest.raises(InvalidGrammar, match="idn-hostname"):
        format_text("idn-hostname")
