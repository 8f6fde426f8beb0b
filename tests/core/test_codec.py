"""What the codec keeps, what it refuses, and what it says."""

from __future__ import annotations

import collections
import functools
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, Required, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import cbor2
import msgspec
import pytest

from workflow_sdk.errors import CodecError, PayloadTooLargeError
from workflow_sdk.values import Codec
from workflow_sdk.values.basics import Tag as tags
from workflow_sdk.values.hints import remember_scope

T = TypeVar("T")
CODEC = Codec()


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Order:
    id: str
    items: list[Item] = field(default_factory=list[Item])


@dataclass(frozen=True)
class Shape:
    name: str


@dataclass(frozen=True)
class Circle(Shape):
    radius: float


@dataclass
class Titled:
    name: str
    title: str = ""


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Node:
    value: int
    next: Node | None = None


@dataclass
class Account:
    owner: str
    seed: InitVar[int] = 7
    number: int = field(init=False)
    runs: int = field(init=False, default=0)

    def __post_init__(self, seed: int) -> None:
        self.number = seed * 2
        self.runs += 1
        self.note = "made"


@dataclass
class Lazy:
    base: int

    @functools.cached_property
    def double(self) -> int:
        return self.base * 2


@dataclass
class Mapped(dict[str, int]):
    name: str = ""


class Reply(NamedTuple):
    text: str
    score: int = 1


class Patch(TypedDict, total=False):
    id: Required[int]
    title: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen(cache_hash=True)
class Key:
    _name: str
    size: int = attrs.field(init=False, default=3)


class Counted(msgspec.Struct):
    n: int
    seen: int = 0

    def __post_init__(self) -> None:
        self.seen += 1


def back(value: object, hint: object = Any) -> Any:
    seen = CODEC.decode(CODEC.encode(value, hint), hint)
    assert type(seen) is type(value)
    return seen


def refusal(value: object, hint: object = Any) -> str:
    with pytest.raises(CodecError) as caught:
        CODEC.encode(value, hint)
    return str(caught.value)


def wire_of(name: str, *fields: tuple[str, object]) -> bytes:
    """An object as some other release of its module would have written it."""
    table = cbor2.CBORTag(tags.TABLE, [[name, *(f for f, _ in fields)]])
    body = cbor2.CBORTag(tags.OBJECT, [0, *(v for _, v in fields)])
    return cbor2.dumps(cbor2.CBORTag(tags.DOCUMENT, [table, body]))


# -- Objects ----------------------------------------------------------------------------------------------------------


def test_an_object_comes_back_with_and_without_its_hint() -> None:
    order = Order("o-1", [Item("tea", 2.5)])
    assert back(order) == back(order, Order) == order
    assert CODEC.decode(CODEC.encode(order, Order)) == order


def test_a_subclass_under_the_hint_of_its_base_stays_a_subclass() -> None:
    assert back(Circle("c", 2.0), Shape) == Circle("c", 2.0)
    assert back([Shape("s"), Circle("c", 2.0)], list[Shape]) == [Shape("s"), Circle("c", 2.0)]


def test_values_of_another_type_than_their_hint_stay_as_they_are() -> None:
    cases: list[tuple[object, object]] = [
        ("5", int),
        (1, float),
        (True, int),
        (1, bool),
        ({"id": "x"}, Order),
        ((1,), list[int]),
    ]
    for value, hint in cases:
        assert back(value, hint) == value
    assert type(back(Item("x", 1), Item).price) is int


def test_a_dataclass_is_restored_and_not_made_again() -> None:
    account = Account("ann", seed=4)
    seen = back(account, Account)
    assert vars(seen) == vars(account) == {"owner": "ann", "number": 8, "runs": 1, "note": "made"}


def test_what_is_computed_on_demand_is_not_stored() -> None:
    lazy = Lazy(2)
    assert lazy.double == 4
    seen = back(lazy)
    assert vars(seen) == {"base": 2}
    assert seen.double == 4


def test_the_note_that_typing_leaves_on_a_generic_object_is_not_stored() -> None:
    box = Box[int](1)
    assert "__orig_class__" in vars(box)
    assert vars(back(box, Box[int])) == {"content": 1}


def test_a_field_that_was_deleted_does_not_come_back_with_its_default() -> None:
    item = Item("x")
    del item.price
    assert "the field 'price'" in refusal(item)


def test_a_dataclass_that_is_also_a_dict_is_refused() -> None:
    assert "is a dict with fields" in refusal(Mapped("x"))


def test_an_attrs_class_with_a_cached_hash_can_be_hashed_after_it_was_read() -> None:
    key = Key("a")
    assert hash(key) == hash(back(key)) == hash(back(key, Key))


def test_a_struct_has_the_values_it_had_before_its_post_init_ran_again() -> None:
    counted = Counted(1)
    assert back(counted).seen == counted.seen == 1


def test_shared_objects_become_copies_and_a_round_trip_is_a_copy_too() -> None:
    item = Item("x")
    seen = CODEC.roundtrip([item, item])[1]
    assert seen == [item, item]
    assert seen[0] is not seen[1]
    plain: list[int] = [1]
    assert CODEC.roundtrip(plain)[1] is not plain


@pytest.mark.law(4)
def test_a_typed_dict_and_a_named_tuple_keep_their_types() -> None:
    assert back({"id": 1, "title": "x"}, Patch) == {"id": 1, "title": "x"}
    assert back(Reply("x")) == Reply("x")
    assert back({(1, Colour.RED): Reply("x")}) == {(1, Colour.RED): Reply("x")}


# -- Classes by name --------------------------------------------------------------------------------------------------


def test_a_local_class_needs_a_hint_that_leads_to_it() -> None:
    @dataclass
    class Local:
        x: int

    assert back(Local(1), Local) == Local(1)
    assert back({"a": [Local(1), None]}, dict[str, list[Local | None]]) == {"a": [Local(1), None]}
    message = refusal({"a": [Local(1)]})
    assert "the local class" in message
    assert "at ['a'][0]" in message
    assert "annotate what holds it" in message


def test_classes_made_in_a_function_may_name_each_other_where_their_scope_is_known() -> None:
    @dataclass
    class Inner:
        x: int

    @dataclass
    class Outer:
        one: Inner
        rest: list[Any] = field(default_factory=list[Any])

    value = Outer(Inner(1), [Inner(2)])
    assert "the local class" in refusal(value, Outer)
    remember_scope(locals())
    assert Codec().decode(Codec().encode(value, Outer), Outer) == value


def test_two_local_classes_of_one_name_are_not_mistaken_for_each_other() -> None:
    def make() -> type[Any]:
        @dataclass
        class Twin:
            x: int

        return Twin

    one, two = make(), make()
    assert "would not be found again" in refusal(one(1), one | two)
    assert "would not be found again" in refusal(one(1), two)
    assert back(one(1), one) == one(1)


@pytest.mark.law(18)
def test_a_class_that_is_not_loaded_is_named_with_its_module_and_nothing_is_imported() -> None:
    data = wire_of("this:s", ("x", 1))
    assert "this" not in sys.modules
    with pytest.raises(CodecError, match="import the module this before"):
        CODEC.decode(data)
    assert "this" not in sys.modules
    assert CODEC.decode(data, plain=True) == {"x": 1}


def test_a_class_that_is_gone_asks_for_an_alias() -> None:
    with pytest.raises(CodecError, match="keep its old name there as an alias"):
        CODEC.decode(wire_of(f"{__name__}:Gone", ("x", 1)))


def test_a_class_that_has_moved_is_found_through_the_hint() -> None:
    assert CODEC.decode(wire_of("an.old.module:Item", ("name", "x"), ("price", 1.5)), list[Item]) == Item("x", 1.5)


def test_a_class_under_an_old_name_is_found_through_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OldItem", Item, raising=False)
    assert CODEC.decode(wire_of(f"{__name__}:OldItem", ("name", "x"), ("price", 1.5))) == Item("x", 1.5)


@pytest.mark.law(18)
def test_no_hook_of_a_module_runs_when_a_class_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    module = types.ModuleType("curious")
    module.__dict__["__getattr__"] = asked.append
    monkeypatch.setitem(sys.modules, "curious", module)
    with pytest.raises(CodecError, match="does not exist any more"):
        CODEC.decode(wire_of("curious:Thing", ("x", 1)))
    assert asked == []


@pytest.mark.law(18)
def test_only_classes_for_data_are_made() -> None:
    for name in ("builtins:object", "subprocess:Popen", "threading:Thread", "builtins:eval", "sys:modules"):
        with pytest.raises(CodecError):
            CODEC.decode(wire_of(name, ("args", ["x"])))


def test_fields_may_be_added_with_a_default_and_taken_away() -> None:
    assert CODEC.decode(wire_of(f"{__name__}:Item", ("name", "x"))) == Item("x", 0.0)
    assert CODEC.decode(wire_of(f"{__name__}:Order", ("id", "x"))) == Order("x", [])
    assert CODEC.decode(wire_of(f"{__name__}:Reply", ("text", "x"), ("gone", 1))) == Reply("x", 1)
    assert CODEC.decode(wire_of(f"{__name__}:Counted", ("n", 1), ("gone", 1))).n == 1
    with pytest.raises(CodecError, match=r"the field 'name' of .*Item is missing; give the field a default"):
        CODEC.decode(wire_of(f"{__name__}:Item", ("price", 1.0)))


def test_an_enum_member_is_known_by_its_value_and_its_loss_is_told() -> None:
    table = cbor2.CBORTag(tags.TABLE, [[f"{__name__}:Colour"]])
    red, gone = ([table, cbor2.CBORTag(tags.ENUM_VALUE, [0, v])] for v in ("red", "green"))
    assert CODEC.decode(cbor2.dumps(cbor2.CBORTag(tags.DOCUMENT, red))) is Colour.RED
    with pytest.raises(CodecError, match=r"'green' is not a member of .*Colour any more"):
        CODEC.decode(cbor2.dumps(cbor2.CBORTag(tags.DOCUMENT, gone)))


# -- Plain values -----------------------------------------------------------------------------------------------------


@pytest.mark.law(4)
def test_insertion_order_is_kept_and_equal_sets_are_equal_bytes() -> None:
    assert list(back({"b": 1, "a": 2})) == ["b", "a"]
    names = [f"name-{i}" for i in range(50)]
    backwards = names[::-1]
    assert CODEC.encode(set(names)) == CODEC.encode(set(backwards))
    mixed: list[object] = [(1, "a"), "a", 1, None, Colour.RED, frozenset({1, 2})]
    dexim = mixed[::-1]
    assert CODEC.encode(set(mixed)) == CODEC.encode(set(dexim))


def test_a_datetime_keeps_its_zone_by_key_and_its_fold() -> None:
    paris = ZoneInfo("Europe/Paris")
    for fold in (0, 1):
        twice = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=paris)
        seen = back(twice)
        assert (seen.tzinfo, seen.fold, seen.utcoffset()) == (paris, fold, twice.utcoffset())
    assert back(datetime(2024, 1, 1)).tzinfo is None  # noqa: DTZ001  # naive on purpose
    assert back(datetime(2024, 1, 1, tzinfo=UTC)).tzinfo is UTC


def test_a_zone_whose_rules_have_changed_keeps_the_instant() -> None:
    zone = cbor2.CBORTag(tags.ZONE, "Europe/Paris")
    hours_9 = 9 * 3_600_000_000
    data = cbor2.dumps(cbor2.CBORTag(tags.DATETIME, ["2024-01-01T12:00:00", 0, zone, hours_9]))
    assert CODEC.decode(data) == datetime(2024, 1, 1, 3, tzinfo=UTC)
    assert CODEC.decode(data).tzinfo is ZoneInfo("Europe/Paris")


def test_a_zone_that_another_process_could_not_make_is_refused() -> None:
    class Odd(tzinfo):
        def utcoffset(self, dt: datetime | None, /) -> timedelta:
            return timedelta(0)

        dst = utcoffset

        def tzname(self, dt: datetime | None, /) -> str:
            return "odd"

    assert "use zoneinfo.ZoneInfo or timezone" in refusal(datetime(2024, 1, 1, tzinfo=Odd()))
    with pytest.raises(CodecError, match="no time zone 'Mars/Base'"):
        CODEC.decode(cbor2.dumps(cbor2.CBORTag(tags.ZONE, "Mars/Base")))


def test_large_numbers_and_special_floats_are_exact() -> None:
    for value in (2**64, -(2**64) - 1, 10**400, -0.0, 5e-324, float("inf")):
        assert repr(back(value)) == repr(value)
    assert repr(back(float("nan"))) == "nan"


# -- Refusals ---------------------------------------------------------------------------------------------------------


def test_a_refusal_names_the_path_the_type_and_the_remedy() -> None:
    order = Order("x", [Item("a"), Item("b", price=object())])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    message = refusal(order)
    assert "type object can't be stored" in message
    assert "at .items[1].price" in message
    assert "pass what it stands for as data" in message


def test_a_path_goes_through_every_kind_of_container() -> None:
    lock = object()
    assert "at ['a'][0]['b'][1]" in refusal({"a": ({"b": [1, lock]},)})
    assert "at [(1, 2)]" in refusal({(1, 2): lock})
    assert "at [3][0].content" in refusal({3: collections.deque([Box(lock)])})


def test_a_subclass_of_a_plain_type_is_refused_with_what_to_pass() -> None:
    class Email(str):
        __slots__ = ()

    assert "pass a plain str, made by str(value)" in refusal([Email("x")])
    assert "pass a plain dict" in refusal(collections.defaultdict[str, int](int))


def test_half_a_surrogate_pair_is_refused_with_its_path() -> None:
    assert "'\\ud800' holds half of a surrogate pair" in refusal("\ud800")
    assert "at .items[0].name" in refusal(Order("x", [Item("a\udfff")]))
    assert "at ['k\\ud800']" in refusal({"k\ud800": 1})
    assert "surrogate" in refusal({("\ud800",): 1})
    assert "surrogate" in refusal({frozenset({"\ud800"}), 1})


def test_a_value_that_holds_itself_or_is_too_deep_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    assert "or holds itself" in refusal(cycle)
    node = Node(1)
    node.next = node
    assert "or holds itself" in refusal(node, Node)
    with pytest.raises(CodecError, match="holds itself"):
        CODEC.encode_checked(node, Node)
    deep: list[Any] = []
    for _ in range(250):
        deep = [deep]
    assert "nested more than 200 levels" in refusal(deep)


def test_what_may_be_written_may_be_read_however_deep() -> None:
    deep: Any = Box(1)
    for _ in range(199):
        deep = Box(deep)
    read = CODEC.decode(CODEC.encode(deep))
    # Not compared as a whole: `==` of dataclasses takes more of Python's stack than the codec does.
    levels = 0
    while isinstance(read, Box):
        read = read.content
        levels += 1
    assert (levels, read) == (200, 1)


def test_an_object_that_raises_when_it_is_looked_at_is_refused() -> None:
    @dataclass
    class Hostile:
        x: int

        def __getattribute__(self, name: str) -> Any:
            raise KeyError(name)

    assert "the value can't be read: KeyError" in refusal(Hostile(1), Hostile)


def test_the_limit_is_in_encoded_bytes() -> None:
    codec = Codec(max_value_bytes=100)
    assert len(codec.encode("x" * 98)) == 100
    with pytest.raises(PayloadTooLargeError, match=r"101 bytes encoded, and the limit is 100"):
        codec.encode("x" * 99)
    with pytest.raises(PayloadTooLargeError):
        codec.roundtrip(["x" * 99])
    assert len(Codec().encode("x" * 1_999_995)) == 2_000_000


def test_bytes_of_a_later_release_say_so() -> None:
    for tag in (tags.SEALED + 1, tags.LAST, 99_999):
        with pytest.raises(CodecError, match=f"tag {tag} is not known here"):
            CODEC.decode(cbor2.dumps([1, cbor2.CBORTag(tag, 1)]))


def test_reading_names_the_path_inside_the_value() -> None:
    table = cbor2.CBORTag(tags.TABLE, [[f"{__name__}:Order", "id", "items"]])
    bad = cbor2.CBORTag(tags.DECIMAL, "seven")
    body = cbor2.CBORTag(tags.OBJECT, [0, "x", [1, {"k": bad}]])
    with pytest.raises(CodecError, match=r"InvalidOperation.* at \.items\[1\]\['k'\]"):
        CODEC.decode(cbor2.dumps(cbor2.CBORTag(tags.DOCUMENT, [table, body])))


# -- Wrapper ----------------------------------------------------------------------------------------------------------


class Squeeze:
    def encode(self, data: bytes, /) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes, /) -> bytes:
        return zlib.decompress(data)


def test_a_wrapper_sees_every_value_and_its_failure_is_a_codec_error() -> None:
    codec = Codec(wrapper=Squeeze())
    for value in (None, 1, "x" * 1000, Order("x")):
        data, seen = codec.roundtrip(value)
        assert codec.decode(data) == seen == value
        assert zlib.decompress(cbor2.loads(data).value)[8:] == CODEC.encode(value)
    assert len(codec.encode("x" * 1000)) < 100
    with pytest.raises(CodecError, match="wrapper failed: error"):
        codec.decode(cbor2.dumps(cbor2.CBORTag(tags.SEALED, b"not squeezed")))


# -- Hints that are not hashable, or lead nowhere ---------------------------------------------------------------------


def test_every_kind_of_hint_is_taken() -> None:
    hints: list[Any] = [
        None,
        Annotated[int, ["a list"]],
        Literal["a"],
        T,
        "a string",
        Callable[[int], str],
        type[int],
        list["Nowhere"],  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        Box[Any],
        ...,
        7,
    ]
    for hint in hints:
        assert back(1, hint) == 1
        assert back([Item("x")], hint) == [Item("x")]


# -- The doors --------------------------------------------------------------------------------------------------------

MISFITS: list[tuple[object, Any, str]] = [
    ("1", int, "expected int, got str"),
    (None, int, "expected int, got None"),
    (["a", 1], list[str], r"expected str, got int at \[1\]"),
    (Order("x", [Item("a"), Item(3)]), Order, r"expected str, got int at \.items\[1\]\.name"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ({"id": "x"}, Order, r"expected .*Order, got dict"),
    ({"title": "x"}, Patch, "missing the key 'id'"),
    ({"id": "x"}, Patch, r"expected int, got str at \['id'\]"),
    ({1: "x"}, dict[str, str], r"expected str, got int at \[1\]"),
    ((1, 2), tuple[int], "expected a tuple of 1 items, got 2"),
    ("c", Literal["a", "b"], "expected one of 'a', 'b', got 'c'"),
    (Box("x"), Box[int], r"expected int, got str at \.content"),
    (1.5, int | str | None, r"expected int \| str \| None, got float"),
    (Node(1, Node("x")), Node | None, r"expected int, got str at \.next\.value"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ("x", bytes, "expected bytes, got str"),
    ("2024-01-01", date, "expected date, got str"),
    ("red", Colour, r"expected .*Colour, got str"),
]


@pytest.mark.parametrize(("value", "hint", "message"), MISFITS)
def test_an_input_that_does_not_fit_is_refused(value: object, hint: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        CODEC.encode_checked(value, hint)


def test_a_value_that_is_nested_as_deeply_as_can_be_stored_fits_its_hint() -> None:
    node: Node | None = None
    for number in range(199):
        node = Node(number, node)
    data = CODEC.encode_checked(node, Node)
    assert CODEC.decode_checked(data, Node) == node


FITS: list[tuple[object, Any]] = [
    (1, float),
    (1, complex),
    (1.5, complex),
    (True, int),
    (Circle("c", 1.0), Shape),
    (Order("x", [Item("a", 1)]), Order),
    ({"id": 1}, Patch),
    ([1, None], list[int | None]),
    ((1, 2, 3), tuple[int, ...]),
    ((1, "a"), tuple[int, str]),
    ({"a": {1}}, dict[str, set[int]]),
    (Node(1, Node(2)), Node),
    (Box([1]), Box[list[int]]),
    (Key("a"), Key),
    (Counted(1), Counted | None),
    ("a", Literal["a", "b"]),
    (5, Annotated[int, "positive"]),
    (None, None),
]


@pytest.mark.parametrize(("value", "hint"), FITS)
def test_an_input_that_fits_is_taken_as_it_is(value: object, hint: Any) -> None:
    data = CODEC.encode_checked(value, hint)
    assert data == CODEC.encode(value, hint)
    assert CODEC.decode_checked(data, hint) == value


CONVERSIONS: list[tuple[object, Any, object]] = [
    ({"id": "x", "items": [{"name": "a", "price": 1}]}, Order, Order("x", [Item("a", 1)])),
    ({"id": "x", "unknown": 1}, Order, Order("x")),
    ({"owner": "ann", "seed": 4}, Account, Account("ann", 4)),
    ({"name": "a"}, Key, Key("a")),
    ({"n": 1}, Counted, Counted(1)),
    ({"text": "a"}, Reply, Reply("a")),
    (["a", 2], Reply, Reply("a", 2)),
    ("2024-01-01T00:00:00Z", datetime, datetime(2024, 1, 1, tzinfo=UTC)),
    ("12345678-1234-5678-1234-567812345678", UUID, UUID("12345678-1234-5678-1234-567812345678")),
    ("red", Colour, Colour.RED),
    ("red", Colour | None, Colour.RED),
    ([1, 2], set[int], {1, 2}),
    ([1, "a"], tuple[int, str], (1, "a")),
    (collections.OrderedDict(a="red"), dict[str, Colour], {"a": Colour.RED}),
    ({"7": ["red"]}, dict[int, list[Colour]], {7: [Colour.RED]}),
    ({"content": {"name": "a"}}, Box[Item], Box(Item("a"))),
    ({"value": 1, "next": {"value": 2}}, Node, Node(1, Node(2))),
    ({"name": "a", "radius": 2.0}, Circle | Item, Circle("a", 2.0)),
    ({"name": "a"}, dict[str, str] | Item, {"name": "a"}),
    ("5", int | str, "5"),
]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Reply("a", 2), tuple[str, int]),
        (collections.OrderedDict(a=1), dict[str, int]),
        (collections.Counter("a"), Mapping[str, int]),
    ],
)
def test_what_fits_already_keeps_its_own_type(value: object, hint: Any) -> None:
    seen = CODEC.decode_checked(CODEC.encode(value), hint)
    assert seen == value
    assert type(seen) is type(value)


@pytest.mark.parametrize(("sent", "hint", "wanted"), CONVERSIONS)
def test_plain_data_becomes_what_is_asked_for(sent: object, hint: Any, wanted: object) -> None:
    seen = CODEC.decode_checked(CODEC.encode(sent), hint)
    assert seen == wanted
    assert type(seen) is type(wanted)


@pytest.mark.parametrize(
    ("sent", "hint", "message"),
    [
        ({"items": []}, Order, "missing the field 'id'"),
        ({"id": 1}, Order, r"expected str, got int at \.id"),
        ("5", int, "expected int, got str"),
        ("soon", datetime, "expected datetime, got str"),
        ("green", Colour, "one of 'red', 'blue'"),
        ({"name": "a"}, Item | Titled, "fits several of"),
        ([[1]], set[list[int]], "can't make a set"),
    ],
)
def test_data_of_the_wrong_shape_is_refused(sent: object, hint: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        CODEC.decode_checked(CODEC.encode(sent), hint)


def test_the_object_of_a_class_that_only_the_sender_has_is_read_as_data() -> None:
    data = wire_of("the.senders.module:Thing", ("name", "x"), ("price", 2.5))
    assert CODEC.decode_checked(data, Item) == Item("x", 2.5)
    assert CODEC.decode_checked(data) == {"name": "x", "price": 2.5}


def test_an_object_sent_without_a_hint_is_read_as_its_class() -> None:
    assert CODEC.decode_checked(CODEC.encode(Item("x")), Item) == Item("x")
    assert CODEC.decode(CODEC.encode(Item("x"))) == Item("x")


def test_the_constructor_of_an_author_may_refuse_data() -> None:
    @dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("negative")

    with pytest.raises(CodecError, match="refuses it: ValueError: negative"):
        CODEC.decode_checked(CODEC.encode({"n": -1}), Positive)


def test_plain_reading_gives_data_for_what_is_not_known_here() -> None:
    value = {"o": Order("x", [Item("a", 1.5)]), "c": [Colour.RED], "r": Reply("t"), "t": (1,), "d": date(2024, 1, 2)}
    assert CODEC.decode(CODEC.encode(value), plain=True) == {
        "o": {"id": "x", "items": [{"name": "a", "price": 1.5}]},
        "c": ["red"],
        "r": {"text": "t", "score": 1},
        "t": (1,),
        "d": date(2024, 1, 2),
    }
    assert CODEC.decode(CODEC.encode({Shape("a")}), plain=True) == [{"name": "a"}]
    assert CODEC.decode(CODEC.encode({Shape("a"): 1}), plain=True) == {"{'name': 'a'}": 1}
    assert CODEC.decode(cbor2.dumps([cbor2.CBORTag(tags.ZONE, "Mars/Base")]), plain=True) == ["Mars/Base"]
    assert CODEC.decode(cbor2.dumps(cbor2.CBORTag(99_999, "x")), plain=True) == "x"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type aliases by statement came with Python 3.12")
def test_a_type_alias_is_followed() -> None:
    names: dict[str, Any] = {"Item": Item}
    exec("type Items[T] = list[T]\ntype Json = dict[str, Json] | list[Json] | int\ntype Mine = Items[Item]", names)
    assert CODEC.decode_checked(CODEC.encode([{"name": "a"}]), names["Mine"]) == [Item("a")]
    assert CODEC.decode_checked(CODEC.encode({"a": [1]}), names["Json"]) == {"a": [1]}
    with pytest.raises(CodecError, match="expected"):
        CODEC.encode_checked({"a": "x"}, names["Json"])
