"""The law of the codec, over random values of random types: encode refuses, or decode gives the same again."""

# Types are put together at run time here, and values of all of them: no type checker can follow that.
# mypy: disable-error-code="valid-type, misc, no-any-return"
# pyright: basic, reportInvalidTypeForm=false, reportArgumentType=false, reportInvalidTypeArguments=false

from __future__ import annotations

import collections
import io
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.chaos import effort
from workflow_sdk.errors import CodecError
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(4)

T = TypeVar("T")
CODEC = Codec()
MODEST = settings(deadline=None, max_examples=effort(150), suppress_health_check=list(HealthCheck))


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)
    HALF = 0.5
    TRUE = True


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Rights(Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Bits(IntFlag):
    A = 1
    B = 8


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclass
class Leaf:
    name: str
    price: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    key: Any
    at: datetime | None = None


@dataclass
class Tree:
    value: Any
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(slots=True)
class SlottedBase:
    a: int


@dataclass
class MixedChild(SlottedBase):
    b: Any = None


@attrs.define
class Slim:
    x: int
    _y: Any = 1


@attrs.frozen(slots=False, cache_hash=True)
class Cached:
    x: str


class Record(msgspec.Struct):
    a: int
    b: Any = None


class FrozenRecord(msgspec.Struct, frozen=True, array_like=True, tag=True):
    a: int


UserId = NewType("UserId", int)
ZONES = [None, UTC, timezone(timedelta(hours=-3, minutes=7, seconds=5)), timezone(timedelta(hours=1), "CET")]
ZONED = [*ZONES, ZoneInfo("Europe/Paris"), ZoneInfo("UTC"), ZoneInfo("America/New_York")]

Pair = tuple[Any, st.SearchStrategy[Any]]

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS: list[Pair] = [
    (int, st.integers()),
    (int, st.integers(-5, 5)),
    (str, TEXT),
    (float, st.floats()),
    (bool, st.booleans()),
    (type(None), st.none()),
    (bytes, st.binary(max_size=8)),
    (datetime, st.datetimes(timezones=st.sampled_from(ZONED), allow_imaginary=True)),
    (date, st.dates()),
    (time, st.times(timezones=st.sampled_from(ZONES))),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals()),
    (Fraction, st.fractions()),
    (complex, st.complex_numbers()),
    (bytearray, st.binary(max_size=8).map(bytearray)),
    (timezone, st.sampled_from([z for z in ZONES if z])),
    (PurePosixPath, st.sampled_from([PurePosixPath("/a/b"), PurePosixPath("."), PurePosixPath("..")])),
    (PureWindowsPath, st.sampled_from([PureWindowsPath("c:/a"), PureWindowsPath("\\\\host\\share\\x")])),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Mood, st.sampled_from(Mood)),
    (Rights, st.integers(0, 7).map(Rights)),
    (Bits, st.integers(0, 64).map(Bits)),
    (UserId, st.integers()),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Point, st.builds(Point, st.integers(), st.floats(allow_nan=False))),
    (Movie, st.fixed_dictionaries({}, optional={"title": TEXT, "year": st.integers()})),
    (Slim, st.builds(Slim, st.integers(), st.integers())),
    (Cached, st.builds(Cached, TEXT)),
    (FrozenRecord, st.builds(FrozenRecord, st.integers())),
]


def hashable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def has_hash(value: object) -> bool:
        try:
            hash(value)
        except TypeError:
            return False
        return True

    return values.filter(has_hash)


def containers(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    one: list[Callable[[Pair], Pair]] = [
        lambda p: (list[p[0]], st.lists(p[1], max_size=3)),
        lambda p: (Sequence[p[0]], st.lists(p[1], max_size=3)),
        lambda p: (tuple[p[0], ...], st.lists(p[1], max_size=3).map(tuple)),
        lambda p: (dict[str, p[0]], st.dictionaries(TEXT, p[1], max_size=3)),
        lambda p: (Mapping[int, p[0]], st.dictionaries(st.integers(), p[1], max_size=3)),
        lambda p: (Optional[p[0]], st.none() | p[1]),  # noqa: UP045  # also for what has no `|`
        lambda p: (Annotated[p[0], "a note"], p[1]),
        lambda p: (collections.deque[p[0]], st.lists(p[1], max_size=3).map(lambda v: collections.deque(v, 5))),
        lambda p: (Box[p[0]], p[1].map(Box)),
        lambda p: (Leaf, st.builds(Leaf, TEXT, p[1])),
        lambda p: (Frozen, st.builds(Frozen, p[1], st.none() | st.datetimes())),
        lambda p: (Tree, st.builds(Tree, p[1], st.lists(st.builds(Tree, p[1]), max_size=2))),
        lambda p: (MixedChild, st.builds(MixedChild, st.integers(), p[1])),
        lambda p: (Record, st.builds(Record, st.integers(), p[1])),
    ]
    keyed: list[Callable[[Pair], Pair]] = [
        lambda p: (set[p[0]], st.sets(hashable(p[1]), max_size=3)),
        lambda p: (frozenset[p[0]], st.frozensets(hashable(p[1]), max_size=3)),
        lambda p: (dict[p[0], int], st.dictionaries(hashable(p[1]), st.integers(), max_size=3)),
        lambda p: (
            collections.OrderedDict[p[0], int],
            st.lists(st.tuples(hashable(p[1]), st.integers()), max_size=3).map(collections.OrderedDict),
        ),
    ]
    scalars = st.sampled_from(SCALARS[:20])
    two: list[Callable[[tuple[Pair, Pair]], Pair]] = [
        lambda pq: (tuple[pq[0][0], pq[1][0]], st.tuples(pq[0][1], pq[1][1])),
        lambda pq: (Union[pq[0][0], pq[1][0]], pq[0][1] | pq[1][1]),  # noqa: UP007  # also for what has no `|`
        lambda pq: (dict[str, Any], st.fixed_dictionaries({"a": pq[0][1], "b": pq[1][1]})),
    ]
    return st.one_of(
        st.builds(lambda make, pair: make(pair), st.sampled_from(one), inner),
        st.builds(lambda make, pair: make(pair), st.sampled_from(keyed), scalars),
        st.builds(lambda make, pairs: make(pairs), st.sampled_from(two), st.tuples(inner, inner)),
    )


PAIRS = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    """A hint, and a value that fits it."""
    hint, values = draw(PAIRS)
    return hint, draw(values)


def same(a: Any, b: Any) -> bool:
    """Equality with equal types all the way down, for which nan is nan and 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Enum):
        return a is b or (isinstance(a, Flag) and a == b)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, datetime | time):
        return (
            a.isoformat() == b.isoformat()
            and a.fold == b.fold
            and type(a.tzinfo) is type(b.tzinfo)
            and str(a.tzinfo) == str(b.tzinfo)
        )
    if isinstance(a, timezone):
        return repr(a) == repr(b)
    if isinstance(a, Mapping):
        return len(a) == len(b) and all(
            same(ka, kb) and same(a[ka], b[kb]) for ka, kb in zip(a.keys(), b.keys(), strict=True)
        )
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, list | tuple | collections.deque):
        return (
            len(a) == len(b)
            and getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
        )
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)) and same(
            getattr(a, "__dict__", None), getattr(b, "__dict__", None)
        )
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, n), getattr(b, n)) for n in a.__struct_fields__)
    return bool(a == b)


def nan_keyed(value: Any) -> bool:
    """Whether a nan is a key somewhere: two of them are two keys, and can't be told apart when comparing."""
    return "nan" in repr(value).lower()


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What became of a call that may refuse; anything but a refusal is raised."""
    try:
        call(*args, **options)
    except CodecError as error:
        return str(error)
    return "read"


def check_law(value: Any, written: Any, read: Any) -> None:
    data = CODEC.encode(value, written)
    assert same(CODEC.decode(data, read), value)
    assert CODEC.encode(value, read) == data or nan_keyed(value)


@MODEST
@given(cases())
def test_a_value_under_its_hint_comes_back(case: tuple[Any, Any]) -> None:
    hint, value = case
    check_law(value, hint, hint)


@MODEST
@given(cases())
def test_a_value_without_a_hint_comes_back(case: tuple[Any, Any]) -> None:
    _, value = case
    check_law(value, Any, Any)


@MODEST
@given(cases(), cases(), cases())
def test_a_hint_that_does_not_fit_changes_nothing(
    one: tuple[Any, Any], two: tuple[Any, Any], three: tuple[Any, Any]
) -> None:
    check_law(one[1], two[0], three[0])


@MODEST
@given(cases())
def test_the_round_trip_is_what_a_replay_sees(case: tuple[Any, Any]) -> None:
    hint, value = case
    data, seen = CODEC.roundtrip(value, hint)
    assert data == CODEC.encode(value, hint)
    assert same(seen, CODEC.decode(data, hint))
    assert same(seen, value)


@MODEST
@given(cases())
def test_a_value_that_fits_passes_the_check_and_is_not_converted(case: tuple[Any, Any]) -> None:
    hint, value = case
    data = CODEC.encode_checked(value, hint)
    assert same(CODEC.decode_checked(data, hint), value)


@MODEST
@given(cases())
def test_plain_reading_never_fails_and_holds_no_author_class(case: tuple[Any, Any]) -> None:
    hint, value = case
    plain = CODEC.decode(CODEC.encode(value, hint), plain=True)
    todo = [plain]
    while todo:
        part = todo.pop()
        assert type(part).__module__ != __name__
        if isinstance(part, dict):
            todo += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset | collections.deque):
            todo += part


JUNK: list[Callable[[], object]] = [
    object,
    threading.Lock,
    io.BytesIO,
    lambda: lambda: 1,
    lambda: (i for i in range(3)),
    lambda: int,
    lambda: math,
    lambda: range(3),
    lambda: slice(1),
    lambda: memoryview(b"x"),
    lambda: NotImplemented,
    lambda: ...,
    lambda: type("Text", (str,), {})("x"),
    lambda: type("Number", (int,), {})(1),
    lambda: type("List", (list,), {})([1]),
    lambda: ValueError("x"),
    lambda: {}.keys(),
    lambda: Leaf,
    lambda: "\ud800",
    lambda: collections.defaultdict(list),
    lambda: collections.ChainMap(),
]


@MODEST
@given(st.sampled_from(JUNK), st.lists(st.integers(0, 5), max_size=4), PAIRS)
def test_junk_is_refused_and_nothing_else_happens(junk: Callable[[], object], wraps: list[int], pair: Pair) -> None:
    value = junk()
    around: list[Callable[[Any], Any]] = [
        lambda v: [1, v],
        lambda v: {"k": v},
        lambda v: (v,),
        lambda v: Leaf("x", v),
        lambda v: {(1, 2): v},
        lambda v: Box(v),
    ]
    for wrap in wraps:
        value = around[wrap](value)
    with pytest.raises(CodecError):
        CODEC.encode(value, pair[0])


@MODEST
@given(st.binary(max_size=40))
def test_bytes_that_are_no_value_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for plain in (False, True):
        assert outcome(CODEC.decode, data, plain=plain)


@MODEST
@given(cases(), st.data())
def test_damaged_bytes_are_refused_or_read(case: tuple[Any, Any], data: st.DataObject) -> None:
    hint, value = case
    encoded = bytearray(CODEC.encode(value, hint))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    for read in (hint, Any):
        assert outcome(CODEC.decode, bytes(encoded), read)
        assert outcome(CODEC.decode_checked, bytes(encoded), read)
