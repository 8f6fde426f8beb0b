"""Values behind a codec: who can read them, and that everybody else gets an error and never data."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.codecs import fernet, plain, unmarked
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.rows.wire import ErrorRow, Text
from workflow_sdk.values import SEAL, Codec, SealedError
from workflow_sdk.values.basics import Tag as tags
from workflow_sdk.values.failures import describe, pack_error_info, pack_failure, unpack_error_info, unpack_failure

pytestmark = pytest.mark.law(15, 18)


class Xor:
    """A codec that reads everything: it can't tell by itself what another one has written."""

    def __init__(self, key: int) -> None:
        self.key = key

    def encode(self, data: bytes, /) -> bytes:
        return bytes(byte ^ self.key for byte in data)

    decode = encode


class Squeeze:
    def encode(self, data: bytes, /) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes, /) -> bytes:
        return zlib.decompress(data)


class Nonce:
    """Writes other bytes each time, as encryption does."""

    def encode(self, data: bytes, /) -> bytes:
        nonce = secrets.token_bytes(4)
        return nonce + Xor(nonce[0] | 1).encode(data)  # by zero, it would be in clear

    def decode(self, data: bytes, /) -> bytes:
        return Xor(data[0] | 1).decode(data[4:])


@dataclass
class Order:
    id: str
    lines: tuple[int, ...] = ()


KEY, OLD = "a" * 43 + "=", "b" * 43 + "="
VALUES: list[Any] = [None, True, 0, 1, "", "x" * 300, b"\x00", 2.5, [], {}, (1, "a"), Order("o", (1, 2)), ["Order"]]
CODECS: dict[str, Any] = {
    "xor": Xor(0x5A),
    "xor with all bits": Xor(0xFF),
    "nothing is changed": Xor(0),
    "squeeze": Squeeze(),
    "nonce": Nonce(),
    "fernet": fernet(KEY),
    "fernet with another key": fernet(OLD),
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_a_codec_has_written_it_reads(name: str, value: object) -> None:
    codec = Codec(wrapper=CODECS[name])
    data, seen = codec.roundtrip(value)
    assert data.startswith(SEAL)
    assert seen == codec.decode(data) == codec.decode(codec.encode(value)) == value
    assert codec.decode_checked(data, type(value) if value is not None else None) == value
    codec.check_readable(data)
    assert codec.is_own(data)


READERS: list[Callable[[Codec, bytes], object]] = [
    Codec.decode,
    lambda codec, data: codec.decode(data, plain=True),
    Codec.decode_checked,
    lambda codec, data: codec.check_readable(data),
]


@pytest.mark.parametrize("writer", CODECS)
@pytest.mark.parametrize("reader", [*CODECS, "none", "plain", "a list with plain"])
def test_a_reader_without_it_or_with_another_gets_an_error(writer: str, reader: str) -> None:
    if reader == writer:
        return
    given: Any = {"none": None, "plain": plain, "a list with plain": [Nonce(), plain]}.get(reader, CODECS.get(reader))
    if reader == "a list with plain" and writer == "nonce":
        given = [plain]
    for value in VALUES:
        data = Codec(wrapper=CODECS[writer]).encode(value)
        for read in READERS:
            with pytest.raises(SealedError, match="codec="):
                read(Codec(wrapper=given), data)
        assert not Codec(wrapper=given).is_own(data)


@given(st.integers(0, 255), st.integers(0, 255), st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_codecs_that_read_everything_read_nothing_of_others(one: int, other: int, value: object) -> None:
    data = Codec(wrapper=Xor(one)).encode(value)
    reader = Codec(wrapper=Xor(other))
    if one == other:
        assert reader.decode(data) == value
    else:
        with pytest.raises(SealedError):
            reader.decode(data)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_was_written_without_a_codec_is_read_only_with_plain(name: str, value: object) -> None:
    data = Codec().encode(value)
    for several in (CODECS[name], [CODECS[name]], [CODECS[name], Squeeze()]):
        with pytest.raises(SealedError, match="plain"):
            Codec(wrapper=several).decode(data)
    both = Codec(wrapper=[CODECS[name], plain])
    assert both.decode(data) == value
    assert both.decode(both.encode(value)) == value
    assert both.encode(value).startswith(SEAL)
    assert not both.is_own(data)
    for again in (plain(), "plain"):
        assert Codec(wrapper=[CODECS[name], again]).decode(data) == value  # type: ignore[list-item]
    back = Codec(wrapper=[plain, CODECS[name]])
    assert back.encode(value) == data
    assert back.decode(both.encode(value)) == value


def test_the_first_writes_and_all_read() -> None:
    old, new = Codec(wrapper=fernet(OLD)), Codec(wrapper=fernet(KEY))
    both = Codec(wrapper=(fernet(KEY), fernet(OLD)))
    assert both.decode(old.encode("old")) == "old"
    assert new.decode(both.encode("new")) == "new"
    with pytest.raises(SealedError):
        old.decode(both.encode("new"))
    assert both.is_own(new.encode(1))
    assert not both.is_own(old.encode(1))


def test_fernet_rotates_its_own_keys() -> None:
    rotated = Codec(wrapper=fernet([KEY, OLD]))
    assert rotated.decode(Codec(wrapper=fernet(OLD.encode())).encode("old")) == "old"
    assert Codec(wrapper=fernet(KEY)).decode(rotated.encode("new")) == "new"
    assert KEY not in repr(fernet(KEY))


@pytest.mark.parametrize("keys", ["", "short", b"x" * 44, [], [KEY, "short"], [None], "ä" * 44])
def test_what_is_no_key(keys: Any) -> None:
    with pytest.raises(DefinitionError) as caught:
        fernet(keys)
    assert "short" not in str(caught.value)


@pytest.mark.parametrize("given", ["codec", b"codec", 3, [], [None], [Squeeze], Squeeze, [Squeeze(), "x"], object()])
def test_what_is_no_codec(given: Any) -> None:
    with pytest.raises(DefinitionError, match="encode"):
        Codec(wrapper=given)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_it_wrote_before_there_were_marks(name: str, value: object) -> None:
    codec = CODECS[name]
    before = codec.encode(Codec().encode(value))
    if not before.startswith(SEAL):
        with pytest.raises(CodecError):
            Codec(wrapper=codec).decode(before)
    both = Codec(wrapper=[codec, unmarked(codec)])
    assert both.decode(before) == value
    assert both.decode(both.encode(value)) == value


def test_unmarked_does_not_write() -> None:
    with pytest.raises(DefinitionError, match="only reads"):
        Codec(wrapper=[unmarked(Squeeze()), Squeeze()])
    with pytest.raises(CodecError, match="only reads"):
        unmarked(Squeeze()).encode(b"")


class Broken:
    """A codec that raises, or gives what is no bytes."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def encode(self, data: bytes, /) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    decode = encode


@pytest.mark.parametrize("given", [OSError("no key"), CodecError("none"), None, "text", 3, [1]], ids=repr)
def test_a_codec_that_does_not_work_is_an_error(given: Any) -> None:
    codec = Codec(wrapper=Broken(given))
    with pytest.raises(CodecError):
        codec.encode("value")
    with pytest.raises(SealedError):
        codec.decode(Codec(wrapper=Squeeze()).encode("value"))
    # What went wrong is recorded all the same.
    assert "could not encode" in pack_error_info(describe(ValueError("no"), codec), codec).message.plain


@pytest.mark.parametrize("wrapper", [None, Squeeze()], ids=["plain", "squeeze"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("more", [b"\x00", b"\xf6", b"AAAA", b"\xff", b"\x80", SEAL], ids=repr)
def test_bytes_after_a_value_are_an_error(wrapper: Any, value: object, more: bytes) -> None:
    codec = Codec(wrapper=wrapper)
    data = codec.encode(value)
    for read in (Codec.decode, Codec.decode_checked, READERS[1]):
        for longer in (data + more, data + data):
            with pytest.raises(CodecError):
                read(codec, longer)


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists), st.binary(min_size=1))
def test_any_bytes_after_a_value_are_an_error(value: object, more: bytes) -> None:
    codec = Codec()
    with pytest.raises(CodecError):
        codec.decode(codec.encode(value) + more)


def test_a_token_is_not_read_as_data() -> None:
    """A token of Fernet begins with a letter, which is the head of a short text."""
    token = b"gAAAAABlYd0AAECAwQFBgcICQoLDA0ODw=="
    with pytest.raises(CodecError, match="after the value"):
        Codec().decode(token)


def test_an_encoded_value_inside_of_another_is_refused() -> None:
    inner = cbor2.CBORTag(tags.SEALED, Codec().encode("data"))
    for outer in ([inner], {"a": inner}, cbor2.CBORTag(tags.TUPLE, [inner])):
        for read in (Codec.decode, Codec.decode_checked, READERS[1]):
            with pytest.raises(CodecError):
                read(Codec(), cbor2.dumps(outer))


@pytest.mark.parametrize("name", CODECS)
def test_flipped_bits_are_noticed(name: str) -> None:
    codec = Codec(wrapper=CODECS[name])
    data = codec.encode({"amount": 100})
    for place in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[place] ^= bit
            try:
                seen = codec.decode(bytes(damaged))
            except CodecError:
                continue
            # A nonce may have bits that say nothing.
            assert seen == {"amount": 100}


SECRET = "card 4111-1111"


def error() -> Exception:
    try:
        try:
            raise LookupError(SECRET, 3)
        except LookupError as cause:
            raise ExceptionGroup(SECRET, [ValueError(SECRET)]) from cause
    except ExceptionGroup as found:
        return found


@pytest.mark.parametrize("name", ["xor", "squeeze", "fernet"])
def test_failures_are_covered_with_their_messages_and_tracebacks(name: str) -> None:
    codec = Codec(wrapper=CODECS[name])
    info = describe(error(), codec)
    assert SECRET in info.traceback
    record = pack_error_info(info, codec)
    failure = pack_failure(error(), codec)
    for stored in (record.pack(), cbor2.dumps(failure)):
        assert SECRET.encode() not in stored
    assert unpack_error_info(record, codec) == info
    seen = unpack_failure(failure, codec)
    assert isinstance(seen, ExceptionGroup)
    assert (seen.message, repr(seen.exceptions)) == (SECRET, repr((ValueError(SECRET),)))
    assert repr(seen.__cause__) == repr(LookupError(SECRET, 3))
    for other in (Codec(), Codec(wrapper=Nonce())):
        with pytest.raises(SealedError):
            unpack_error_info(record, other)
        with pytest.raises(SealedError):
            unpack_failure(failure, other)


def test_failures_that_were_recorded_in_clear_are_read() -> None:
    """They are, as long as there is no codec."""
    for codec in (Codec(), Codec(wrapper=Squeeze())):
        row = ErrorRow("app.Error", Text("no"), Text("Traceback ..."), "application", {})
        assert unpack_error_info(row, codec).message == "no"
        failure: list[Any] = [1, 0, ["builtins:ValueError"], "no", [codec.encode("no")], {}, None, None]
        assert repr(unpack_failure(failure, codec)) == repr(ValueError("no"))


def test_a_value_that_has_not_changed_keeps_its_bytes() -> None:
    codec = Codec(wrapper=Nonce())
    data = codec.encode([1])
    assert codec.encode_like(data, [1]) == data
    changed = codec.encode_like(data, [2])
    assert codec.decode(changed) == [2]
    assert codec.decode(codec.encode_like(Codec().encode([1]), [1])) == [1]
    assert codec.decode(codec.encode_like(None, [1])) == [1]
