"""Bytes as they were written: an interface. Fixtures are never edited, only added to."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

from workflow_sdk.values import Codec
from workflow_sdk.values.basics import Tag as tags

CODEC = Codec()


@dataclass
class Item:
    name: str
    price: float


@dataclass(frozen=True, slots=True)
class Frozen:
    key: tuple[int, ...]


class Pair(NamedTuple):
    a: int
    b: str


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)


class Rights(Flag):
    READ = 1
    WRITE = 2


@attrs.define
class Slim:
    x: int


class Record(msgspec.Struct):
    a: int
    b: str


class Model(pydantic.BaseModel):
    a: int


WRITTEN_BY_0_1: list[tuple[object, str]] = [
    (None, "f6"),
    (True, "f5"),
    (False, "f4"),
    (0, "00"),
    (-1, "20"),
    (2**64, "c249010000000000000000"),
    (-(2**70), "c3493fffffffffffffffff"),
    (1.5, "fb3ff8000000000000"),
    (-0.0, "fb8000000000000000"),
    (float("inf"), "f97c00"),
    ("", "60"),
    ("text é", "677465787420c3a9"),
    (b"\x00\xff", "4200ff"),
    ([1, "a", None], "83016161f6"),
    ({"b": 1, "a": [2]}, "a261620161618102"),
    ({1: "x", None: 2.5}, "a2016178f6fb4004000000000000"),
    ((1, ("a",)), "d9e1058201d9e105816161"),
    ((), "d9e10580"),
    ({3, 1, 2}, "d9e10683010203"),
    (frozenset({"b"}), "d9e107816162"),
    ({(1, 2): "x", "k": (3,)}, "d9e10884d9e1058201026178616bd9e1058103"),
    (bytearray(b"ab"), "d9e109426162"),
    (datetime(2024, 2, 29, 12, 30, 1, 5), "d9e10a781a323032342d30322d32395431323a33303a30312e303030303035"),  # noqa: DTZ001  # naive on purpose
    (datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "d9e10a7819323032342d30322d32395431323a33303a30302b30303a3030"),
    (
        datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=-3))),
        "d9e10a7819323032342d30322d32395431323a33303a30302d30333a3030",
    ),
    (
        datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=1), "CET")),
        "d9e10a8473323032342d30322d32395431323a33303a303000d9e10e821ad693a400634345541ad693a400",
    ),
    (
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
        "d9e10a8473323032342d31302d32375430323a33303a303001d9e10f6c4575726f70652f50617269731ad693a400",
    ),
    (date(2024, 2, 29), "d9e10b6a323032342d30322d3239"),
    (time(12, 30, 1, 5), "d9e10c6f31323a33303a30312e303030303035"),
    (time(12, 30, tzinfo=UTC), "d9e10c836831323a33303a303000d9e10e8200f6"),
    (timedelta(days=-1, seconds=5, microseconds=7), "d9e10d83200507"),
    (timezone(timedelta(hours=1), "CET"), "d9e10e821ad693a40063434554"),
    (UTC, "d9e10e8200f6"),
    (ZoneInfo("Europe/Paris"), "d9e10f6c4575726f70652f5061726973"),
    (UUID("12345678-1234-5678-1234-567812345678"), "d9e1105012345678123456781234567812345678"),
    (Decimal("1.50"), "d9e11164312e3530"),
    (Decimal("-0E+3"), "d9e111652d30452b33"),
    (complex(1.0, -2.5), "d9e11282fb3ff0000000000000fbc004000000000000"),
    (Fraction(1, 3), "d9e113820103"),
    (PurePosixPath("/a/b"), "d9e114826d50757265506f73697850617468642f612f62"),
    (PureWindowsPath("c:/a"), "d9e114826f5075726557696e646f77735061746864633a5c61"),
    (deque([1, 2], maxlen=5), "d9e11583050102"),
    (OrderedDict(b=1, a=2), "d9e11684616201616102"),
    (Counter({"a": 2}), "d9e11782616102"),
    (
        Item("tea", 2.5),
        "d9e10082d9e1018183782174657374732e636f72652e746573745f636f6465635f666f726d61743a4974656d646e616d65657072696365d9e102830063746561fb4004000000000000",
    ),
    (
        Frozen((1,)),
        "d9e10082d9e1018182782374657374732e636f72652e746573745f636f6465635f666f726d61743a46726f7a656e636b6579d9e1028200d9e1058101",
    ),
    (
        [Item("a", 1.0), Item("b", 2.0)],
        "d9e10082d9e1018183782174657374732e636f72652e746573745f636f6465635f666f726d61743a4974656d646e616d6565707269636582d9e10283006161fb3ff0000000000000d9e10283006162fb4000000000000000",
    ),
    (
        Pair(1, "x"),
        "d9e10082d9e1018183782174657374732e636f72652e746573745f636f6465635f666f726d61743a5061697261616162d9e1028300016178",
    ),
    (
        Colour.RED,
        "d9e10082d9e1018181782374657374732e636f72652e746573745f636f6465635f666f726d61743a436f6c6f7572d9e103820063726564",
    ),
    (
        Colour.PAIR,
        "d9e10082d9e1018181782374657374732e636f72652e746573745f636f6465635f666f726d61743a436f6c6f7572d9e10482006450414952",
    ),
    (
        Rights.READ | Rights.WRITE,
        "d9e10082d9e1018181782374657374732e636f72652e746573745f636f6465635f666f726d61743a526967687473d9e103820003",
    ),
    (
        Slim(1),
        "d9e10082d9e1018182782174657374732e636f72652e746573745f636f6465635f666f726d61743a536c696d6178d9e102820001",
    ),
    (
        Record(1, "x"),
        "d9e10082d9e1018183782374657374732e636f72652e746573745f636f6465635f666f726d61743a5265636f726461616162d9e1028300016178",
    ),
    (
        Model(a=1),
        "d9e10082d9e1018185782274657374732e636f72652e746573745f636f6465635f666f726d61743a4d6f64656c6161667e6578747261647e736574687e70726976617465d9e102850001f6d9e106816161f6",
    ),
]


@pytest.mark.parametrize(
    ("value", "written"), WRITTEN_BY_0_1, ids=lambda v: repr(v)[:40] if not isinstance(v, str) else None
)
def test_what_0_1_wrote_still_reads(value: object, written: str) -> None:
    seen = CODEC.decode(bytes.fromhex(written))
    assert type(seen) is type(value)
    assert repr(seen) == repr(value)
    assert CODEC.decode(bytes.fromhex(written), type(value)) == seen


@pytest.mark.parametrize(
    ("value", "written"), WRITTEN_BY_0_1, ids=lambda v: repr(v)[:40] if not isinstance(v, str) else None
)
def test_this_release_writes_the_same(value: object, written: str) -> None:
    assert CODEC.encode(value).hex() == written


def test_there_is_a_fixture_of_every_tag() -> None:
    every = {
        number for name, number in vars(tags).items() if name.isupper() and name not in ("FIRST", "LAST", "SEALED")
    }
    written = "".join(text for _, text in WRITTEN_BY_0_1)
    assert {number for number in every if f"d9{number:04x}" in written} == every
