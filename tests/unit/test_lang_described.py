"""Python types that pydantic describes too widely: what their constraint lets pass can be read."""

from datetime import datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Interface
from typing import Annotated, Any

import pytest
from pydantic import (
    UUID4,
    Base64Bytes,
    BaseModel,
    Field,
    FilePath,
    FileUrl,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    PastDate,
)

from radixgen.errors import InvalidRequest
from radixgen.grammars.compiler import build
from radixgen.grammars.expr import RuleSet
from radixgen.grammars.oracle import accepts
from radixgen.lang.schema import constraint_of


def _decimal(**limits: Any) -> Any:
    return Annotated[Decimal, Field(**limits)]


def _sized(**limits: Any) -> Any:
    return Annotated[bytes, Field(**limits)]


Keyed = dict[Annotated[str, Field(pattern="^[a-c]{1,2}$")], int]


class Price(BaseModel):
    amount: Annotated[Decimal, Field(max_digits=6, decimal_places=2, gt=0)]
    valid: timedelta | None


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (Decimal, ['"0.1000000000000000000000001"', '"-7"'], ['"x"', '"1e9"', '""', "true"]),
        (_decimal(max_digits=5, decimal_places=2), ['"123.45"', '"-0.5"'], ['"1234"', '"0.123"']),
        (_decimal(max_digits=3), ['"0.123"', '"12.3"', '"123"'], ['"12.34"', '"1234"']),
        (_decimal(max_digits=2, decimal_places=2), ['"0.12"', '"-0.0"'], ['"0"', '"1.2"']),
        (_decimal(decimal_places=0), ['"12"'], ['"1.2"']),
        (_decimal(ge=0), ['"0"', '"2.5"'], ['"-1"']),
        (_decimal(gt=0), ["0.000001", "999999999"], ["0", "-1", "1e400"]),
        (_decimal(ge=Decimal("0.1"), lt=1), ["0.1", "0.999999"], ["1", "0.09"]),
        (_decimal(multiple_of=Decimal("0.05")), ["1.15", "-0.05"], ["0.01"]),
        (timedelta, ['"P1D"', '"-PT1H30M"', '"P3DT0.5S"'], ['"P"', '"PT"', '"P9999999999D"']),
        (_sized(min_length=2, max_length=3), ['"ab"', '"\\n\\u0000c"'], ['"a"', '"éé"', '"abcd"']),
        (_sized(min_length=2), ['"abcde"'], ['"a"', '"é"']),
        (bytes, ['"é"'], ["1"]),
        (
            HttpUrl,
            ['"https://a.example:80/b?c"'],
            ['"http://"', '"ftp://a.b"', '"http://1.2.3.4.5"'],
        ),
        (FileUrl, ['"file:///a"'], ['"http://a"']),
        (UUID4, ['"12345678-1234-4234-9234-123456789abc"'], ['"1"']),
        (IPvAnyAddress, ['"10.0.0.1"', '"1:2:3:4:5:6:7:8"'], ['"1.2.3"', '"1.2.3.256"']),
        (IPv4Interface, ['"10.0.0.1/8"', '"10.0.0.1"'], ['"1.2.3.4/33"']),
        (dict[int, bool], ['{"-12":true,"0":false}'], ['{"a":true}', '{"01":true}']),
        (dict[float, int], ['{"0.5":1}'], ['{"x":1}']),
        (dict[bool, int], ['{"true":1}'], ['{"":1}']),
        (Keyed, ['{"a":1,"ca":2}', "{}"], ['{"d":1}', '{"aaa":1}', '{"a":true}']),
        (Price, ['{"amount": 1.25, "valid": "P2W"}'], ['{"amount": 10000, "valid": null}']),
    ],
)
def test_what_a_type_lets_pass_is_read(schema: Any, good: list[str], bad: list[str]) -> None:
    spec, parse = constraint_of(schema)
    node = build(spec, RuleSet())
    for text in good:
        assert accepts(node, text.encode()), text
        parse(text)
    for text in bad:
        assert not accepts(node, text.encode()), text


def test_a_string_of_a_decimal_keeps_every_digit() -> None:
    text = "0.1000000000000000000000001"
    assert constraint_of(Decimal)[1](f'"{text}"') == Decimal(text)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (PastDate, "bounds of a date .past."),
        (dict[Annotated[int, Field(gt=3)], str], "bounds of a dict's int keys .gt."),
        (dict[tuple[int, int], str], "take a list of pairs"),
        (Base64Bytes, "base64 cannot be enforced"),
        (list[FilePath], "file-path cannot be enforced"),
        (Annotated[datetime, Field(lt=datetime(2020, 1, 1))], "bounds of a datetime .lt."),
        (Annotated[time, Field(ge=time(8))], "bounds of a time .ge."),
        (NaiveDatetime, "a datetime is written with its offset"),
        (Json[int], "Json is a text that holds JSON"),
        (complex, "no complex numbers"),
        (list[complex], "no complex numbers"),
        (Annotated[timedelta, Field(gt=timedelta(0))], "bounds"),
        (_decimal(le=10**20), "at most 15 digits"),
        (_decimal(gt=0, max_digits=3), "decimal_places"),
        (_decimal(max_digits=200), "decimal_places"),
        (_decimal(multiple_of=2, decimal_places=1), "multiple_of"),
    ],
)
def test_what_no_schema_says_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        constraint_of(schema)
