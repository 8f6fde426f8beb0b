"""Models of pydantic as values. They are not imported by the codec: who has one has imported it."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import cached_property
from typing import Any, Generic, TypeVar

import cbor2
import pydantic
import pytest

from tests.environment import clean_environment
from workflow_sdk.errors import CodecError
from workflow_sdk.values import Codec
from workflow_sdk.values.basics import Tag as tags

T = TypeVar("T")
CODEC = Codec()


class Item(pydantic.BaseModel):
    name: str
    price: float = 0.0


class Dear(Item):
    reason: str


class Cart(pydantic.BaseModel):
    items: list[Item]
    tags: set[str] = set()
    _token: int = pydantic.PrivateAttr(default=1)

    @cached_property
    def total(self) -> float:
        return sum(item.price for item in self.items)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Salted(pydantic.BaseModel):
    text: str

    @pydantic.field_validator("text")
    @classmethod
    def salt(cls, text: str) -> str:
        return text + "!"


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Held(pydantic.BaseModel):
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)


@pydantic.dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def check_back(value: object, hint: object = Any) -> Any:
    data, seen = CODEC.roundtrip(value, hint)
    assert type(seen) is type(value)
    assert seen == value
    assert CODEC.decode(data, hint) == value
    return seen


@pytest.mark.parametrize(
    "value",
    [
        Item(name="a"),
        Dear(name="a", reason="b"),
        Cart(items=[Item(name="a"), Dear(name="b", reason="c")], tags={"x"}),
        Open(a=1, b=[1, (2,)]),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        Numbers([1, 2]),
        Point(1),
        [Item(name="a"), {"k": Point(2)}],
    ],
)
def test_a_model_comes_back_with_and_without_its_hint(value: object) -> None:
    check_back(value)
    check_back(value, type(value))
    check_back(value, Item | Cart | None)


def test_a_subclass_in_a_field_of_its_base_stays_a_subclass() -> None:
    seen = check_back(Cart(items=[Dear(name="b", reason="c")]), Cart)
    assert type(seen.items[0]) is Dear


def test_validators_do_not_run_again() -> None:
    assert check_back(Salted(text="a"), Salted).text == "a!"


def test_private_attributes_and_the_fields_that_were_set_are_kept() -> None:
    cart = Cart(items=[])
    cart._token = 9  # pyright: ignore[reportPrivateUsage]
    assert cart.total == 0
    seen = check_back(cart)
    assert seen._token == 9
    assert seen.model_fields_set == {"items"}
    assert "total" not in vars(seen)


def test_a_generic_model_is_found_through_its_hint() -> None:
    page = Page[Item](items=[Item(name="a")])
    assert check_back(page, Page[Item]).items == [Item(name="a")]


def test_a_local_model_needs_a_hint() -> None:
    class Local(pydantic.BaseModel):
        x: int

    assert check_back(Local(x=1), Local) == Local(x=1)
    with pytest.raises(CodecError, match="local class"):
        CODEC.encode(Local(x=1))


def test_what_a_model_holds_and_can_not_be_stored_is_refused_with_its_path() -> None:
    with pytest.raises(CodecError, match=r"type _thread\.lock can't be stored at .*_lock"):
        CODEC.encode(Held())
    with pytest.raises(CodecError, match="has no value"):
        CODEC.encode(Item.model_construct())


def test_a_field_that_was_added_gets_its_default_and_one_without_is_told() -> None:
    def wire(*fields: tuple[str, object]) -> bytes:
        table = cbor2.CBORTag(tags.TABLE, [[f"{__name__}:Item", *(name for name, _ in fields)]])
        body = cbor2.CBORTag(tags.OBJECT, [0, *(value for _, value in fields)])
        return cbor2.dumps(cbor2.CBORTag(tags.DOCUMENT, [table, body]))

    state: list[tuple[str, object]] = [
        ("~extra", None),
        ("~set", cbor2.CBORTag(tags.SET, ["name"])),
        ("~private", None),
    ]
    assert CODEC.decode(wire(("name", "a"), *state)) == Item(name="a")
    with pytest.raises(CodecError, match="the field 'name'"):
        CODEC.decode(wire(("price", 1.0), *state))


def test_plain_reading_gives_the_fields() -> None:
    cart = Cart(items=[Item(name="a")])
    plain = {"items": [{"name": "a", "price": 0.0}], "tags": set[str]()}
    assert CODEC.decode(CODEC.encode(cart), plain=True) == plain


def test_at_the_doors_a_model_is_checked_and_made_by_its_own_rules() -> None:
    assert CODEC.decode_checked(CODEC.encode({"name": "a", "price": "2.5"}), Item) == Item(name="a", price=2.5)
    assert CODEC.decode_checked(CODEC.encode({"x": 1}), Point) == Point(1)
    assert CODEC.decode_checked(CODEC.encode_checked(Dear(name="a", reason="b"), Item), Item).name == "a"
    assert CODEC.decode_checked(CODEC.encode([1, 2]), Numbers) == Numbers([1, 2])
    with pytest.raises(CodecError, match=r"expected .*Item, got dict"):
        CODEC.encode_checked({"name": "a"}, Item)
    with pytest.raises(CodecError, match="refuses it"):
        CODEC.decode_checked(CODEC.encode({"price": 1}), Item)


def test_the_codec_does_not_import_pydantic() -> None:
    use = "import sys, workflow_sdk.values as c; c.Codec().encode_checked([1], list[int])"
    program = f"{use}; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean_environment()
    )
    assert done.stdout.strip() == "False"
