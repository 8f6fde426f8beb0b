"""Canonical bytes: the deterministic CBOR of RFC 8949, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from cbor2 import dumps
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from workflow_sdk import CodecError
from workflow_sdk.machines import canonical

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
atoms = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=5)
plain_data: st.SearchStrategy[Any] = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [
        ({}, "d9d9f7a0"),
        ([], "d9d9f780"),
        (None, "d9d9f7f6"),
        (True, "d9d9f7f5"),
        (0, "d9d9f700"),
        (24, "d9d9f71818"),
        (-1, "d9d9f720"),
        (2**64, "d9d9f7c249010000000000000000"),
        (1.5, "d9d9f7f93e00"),
        (0.1, "d9d9f7fb3fb999999999999a"),
        (float("nan"), "d9d9f7f97e00"),
        (float("inf"), "d9d9f7f97c00"),
        ("a", "d9d9f76161"),
        (b"a", "d9d9f74161"),
        ({"bb": 1, "c": 2, "a": 3}, "d9d9f7a361610361630262626201"),
    ],
)
def test_values_have_these_bytes(value: object, bytes_: str) -> None:
    assert canonical.encode(value).hex() == bytes_
    assert repr(canonical.decode(bytes.fromhex(bytes_))) == repr(
        dict(sorted(value.items(), key=lambda item: (len(item[0]), item[0]))) if isinstance(value, dict) else value
    )


@given(plain_data)
@examples(200)
def test_what_is_encoded_is_read_again_and_has_the_same_bytes(value: Any) -> None:
    data = canonical.encode(value)
    read = canonical.decode(data)
    assert canonical.encode(read) == data
    assert repr(_sorted(read)) == repr(_sorted(value))


@given(st.dictionaries(texts, st.integers(), min_size=2, max_size=6), st.randoms())
@examples(100)
def test_the_order_of_keys_makes_no_difference(value: dict[str, int], chance: Any) -> None:
    keys = list(value)
    chance.shuffle(keys)
    assert canonical.encode({key: value[key] for key in keys}) == canonical.encode(value)


@given(plain_data)
@examples(100)
def test_the_tag_may_be_missing(value: Any) -> None:
    data = canonical.encode(value)
    assert repr(canonical.decode(data.removeprefix(canonical.TAG))) == repr(canonical.decode(data))


@given(st.binary(max_size=12))
@examples(500)
def test_of_any_bytes_only_the_canonical_ones_are_read(data: bytes) -> None:
    try:
        value = canonical.decode(data)
    except CodecError:
        return
    assert canonical.encode(value) == canonical.TAG + data.removeprefix(canonical.TAG)


NOT_CANONICAL = {
    "a number that is longer than it has to be": "1800",
    "a length that is longer than it has to be": "780161",
    "keys that are not sorted": "a2616201616101",
    "a longer key before a shorter one": "a262616101616202",
    "a key that is there twice": "a2616101616102",
    "a float that is longer than it has to be": "fa3fc00000",
    "a nan with a payload": "f97e01",
    "text in chunks": "7f6161ff",
    "bytes in chunks": "5f4161ff",
    "a list without its length": "9f00ff",
    "a map without its length": "bf616100ff",
    "bytes behind the value": "0000",
    "a big number that is small": "c24101",
    "a big number with a zero in front": "c24a00010000000000000000",
    "the tag twice": "d9d9f7d9d9f700",
    "a value that is shared": "82d81c80d81d00",
    "a value in a tag for shared ones": "d81c80",
}

NO_PLAIN_DATA = {
    "a key that is a number": "a10001",
    "a key that is bytes": "a1416101",
    "a key that is null": "a1f601",
    "undefined": "f7",
    "a simple value": "e0",
    "a time": "c1187b",
    "a time as text": "c074323031332d30332d32315432303a30343a30305a",
    "a decimal": "c48221196ab3",
    "a set": "d9010281 01".replace(" ", ""),
    "a tag that nobody knows": "d9ffff00",
    "a time inside": "81a16161c1187b",
}

NO_CBOR = {
    "nothing": "",
    "the tag alone": "d9d9f7",
    "a list that ends too soon": "8200",
    "half a text": "6261",
    "no utf-8": "61ff",
}


@pytest.mark.parametrize("what", NOT_CANONICAL)
def test_what_is_not_canonical_is_refused(what: str) -> None:
    for tag in (b"", canonical.TAG):
        with pytest.raises(CodecError, match=r"not the canonical ones|no CBOR"):
            canonical.decode(tag + bytes.fromhex(NOT_CANONICAL[what]))


@pytest.mark.parametrize("what", NO_PLAIN_DATA)
def test_what_is_no_plain_data_is_refused(what: str) -> None:
    with pytest.raises(CodecError, match=r"is no text|no plain data"):
        canonical.decode(bytes.fromhex(NO_PLAIN_DATA[what]))


@pytest.mark.parametrize("what", NO_CBOR)
def test_what_is_no_cbor_is_refused(what: str) -> None:
    with pytest.raises(CodecError, match="no CBOR"):
        canonical.decode(bytes.fromhex(NO_CBOR[what]))


@pytest.mark.parametrize("value", [{1: 2}, [{None: 1}], {1, 2}, object(), (1, 2), 1j, "\ud800", {"a": bytearray(b"x")}])
def test_what_is_no_plain_data_has_no_canonical_bytes(value: object) -> None:
    with pytest.raises(CodecError):
        canonical.encode(value)


def test_a_value_that_holds_itself_has_no_canonical_bytes() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError):
        canonical.encode(value)


def test_what_is_nested_too_deeply_to_be_read_again_is_not_written() -> None:
    assert canonical.decode(canonical.encode(_nested(canonical.DEPTH_MAX))) == _nested(canonical.DEPTH_MAX)
    for depth in (canonical.DEPTH_MAX + 1, 500, 100_000):
        with pytest.raises(CodecError, match="nested too deeply"):
            canonical.encode(_nested(depth))


def test_bytes_that_are_nested_very_deeply_are_refused() -> None:
    with pytest.raises(CodecError):
        canonical.decode(b"\x81" * 1_000_000 + b"\x00")


def test_stored_bytes_that_are_damaged_are_told_as_such() -> None:
    assert canonical.restored(canonical.encode({"a": 1})) == {"a": 1}
    with pytest.raises(CodecError, match="damaged"):
        canonical.restored(dumps([1, 2])[:-1])


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value
