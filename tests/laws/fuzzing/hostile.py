"""Bytes that nobody has written on purpose, or that somebody has on very much purpose."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hypothesis import strategies as st

__all__ = ["BOMBS", "FOREIGN", "SURROGATE", "bounded", "cbor", "hostile", "mutated"]

SURROGATE: Final = "\ud800"

BYTES_MAX: Final = 50_000_000
"""Of memory, for what comes out of a few bytes, or a few hundred thousand."""
SECONDS_MAX: Final = 20
"""Of the processor, traced and measured as it is here: a real bomb takes hours."""


@contextmanager
def bounded(*, bytes_max: int = BYTES_MAX) -> Generator[None]:
    """Fail if what is done inside takes long, or much memory.

    What is measured is the time of the processor: a machine may be busy with other things for as long as it likes.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        if frame is not None and "coverage" in frame.f_code.co_filename:
            # Whoever measures what is covered holds a lock just now, which nobody would give back.
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
            return
        raise AssertionError(f"not done in {SECONDS_MAX} s")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        tracemalloc.stop()
    assert peak < bytes_max, f"{peak:,} bytes of memory"


def _sized(major: int, size: int) -> bytes:
    return bytes([major << 5 | 27]) + size.to_bytes(8, "big")


def _tag(number: int, content: bytes) -> bytes:
    return b"\xda" + number.to_bytes(4, "big") + content


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"\x7a" + len(raw).to_bytes(4, "big") + raw


DEEP: Final = 100_000

FOREIGN: Final[dict[str, bytes]] = {
    "a list that holds itself": _tag(28, b"\x81" + _tag(29, b"\x00")),
    "a map that holds itself": _tag(28, b"\xa1\x00" + _tag(29, b"\x00")),
    "a shared value": _tag(28, b"\x80"),
    "a reference to nothing": _tag(29, b"\x05"),
    "texts by reference": _tag(256, b"\x82\x64text" + _tag(25, b"\x00")),
    "a reference to no text": _tag(25, b"\x00"),
    "a date that is none": _tag(0, b"\x61a"),
    "a date without end": _tag(1, b"\xfb\x7f\xf0" + bytes(6)),
    "a date of 2**62 seconds": _tag(1, _sized(0, 1 << 62)),
    "a day": _tag(100, b"\x00"),
    "a day as text": _tag(1004, b"\x6a2020-01-01"),
    "a decimal with 2**62 zeros": _tag(4, b"\x82" + _sized(0, 1 << 62) + b"\x01"),
    "a float with 2**31 zeros": _tag(5, b"\x82\x1a\x7f\xff\xff\xff\x01"),
    "a rational by zero": _tag(30, b"\x82\x01\x00"),
    "a rational of text": _tag(30, b"\x82" + _text("1e999999999") + b"\x01"),
    "a pattern": _tag(35, b"\x61a"),
    "a pattern that takes hours": _tag(35, _text("(?i)" + "[\x00-\U0010ffff]" * 2000)),
    "a deep pattern": _tag(35, _text("(" * DEEP)),
    "a email": _tag(36, _text("a: b\n\nc")),
    "a UUID": _tag(37, b"\x50" + bytes(16)),
    "an address": _tag(52, b"\x44" + bytes(4)),
    "an address of six": _tag(54, b"\x50" + bytes(16)),
    "a set": _tag(258, b"\x81\x00"),
    "an old address": _tag(260, b"\x44" + bytes(4)),
    "an old network": _tag(261, b"\xa1\x44" + bytes(4) + b"\x08"),
    "a complex number": _tag(43000, b"\x82\x00\x00"),
    "CBOR that says so": _tag(55799, b"\x00"),
}
"""What no value and no record of this library is written with."""

BOMBS: Final[dict[str, bytes]] = {
    "deep lists": b"\x81" * DEEP + b"\x00",
    "deep lists without a length": b"\x9f" * DEEP,
    "deep maps": b"\xa1\x00" * DEEP + b"\x00",
    "deep maps without a length": b"\xbf\x00" * DEEP,
    "deep maps as keys": b"\xa1" * DEEP,
    "deep tags": b"\xc6" * DEEP + b"\x00",
    "deep tuples": b"\xd9\xe1\x05\x81" * DEEP + b"\x00",
    "deep documents": b"\xd9\xe1\x00\x82\xd9\xe1\x01\x80" * DEEP + b"\x00",
    "deep shared values": b"\xd8\x1c\x81" * DEEP + b"\x00",
    **{
        f"{kind} of {size}": _sized(major, size)
        for kind, major in (("bytes", 2), ("text", 3), ("a list", 4), ("a map", 5))
        for size in (1 << 31, 1 << 60, (1 << 64) - 1)
    },
    "bytes in parts, one of 2**60": b"\x5f" + _sized(2, 1 << 60),
    "text in parts, one of 2**60": b"\x7f" + _sized(3, 1 << 60),
    "lists, each of 2**60": _sized(4, 1 << 60) * 1000,
    "a bytearray of 2**36": _tag(57609, _sized(0, 1 << 36)),
    "a bytearray of many lists": _tag(57609, b"\x99\x07\xd0" + b"\x80" * 2000),
    "a fraction with 10**9 digits": _tag(57619, b"\x81" + _text("1e999999999")),
    "a fraction of a decimal with 10**9 digits": _tag(57619, b"\x81" + _tag(57617, _text("1e999999999"))),
    "a fraction by zero": _tag(57619, b"\x82\x01\x00"),
    "a decimal with 10**18 digits": _tag(57617, _text("1e999999999999999999")),
    "a timedelta of 2**60 days": _tag(57613, b"\x83" + _sized(0, 1 << 60) + b"\x00\x00"),
    "a deque of 2**60": _tag(57621, b"\x81" + _sized(0, 1 << 60)),
    "a time zone of another folder": _tag(57615, _text("../../../../etc/passwd")),
    "an empty time zone": _tag(57615, _text("")),
    "a path of another system": _tag(57620, b"\x82\x6bWindowsPath\x61a"),
    "an object of no class": _tag(57602, b"\x81" + _sized(0, 1 << 60)),
    "an integer of a megabyte": b"\xc2\x5a\x00\x10\x00\x00" + b"\xff" * (1 << 20),
    **FOREIGN,
}
"""By what they would be."""


_TAGS = st.sampled_from([0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260]) | st.integers(57590, 57630)
_LEAVES = (
    st.binary(max_size=12).map(lambda raw: bytes([0x58, len(raw)]) + raw)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(_text)
    | st.integers(0, 300).map(lambda number: _sized(0, number))
    | st.sampled_from([b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xf9\x7e\x00", b"\xf9\x7c\x00", b"\xe0", b"\xff", b""])
    | st.tuples(st.integers(0, 7), st.integers(0, (1 << 64) - 1)).map(lambda head: _sized(*head))
)


def _containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    several = st.lists(inner, max_size=5)
    return (
        several.map(lambda items: bytes([0x80 | len(items)]) + b"".join(items))
        | several.map(lambda items: bytes([0xA0 | len(items) // 2]) + b"".join(items[: len(items) & -2]))
        | several.map(lambda items: b"\x9f" + b"".join(items) + b"\xff")
        | st.tuples(_TAGS, inner).map(lambda made: _tag(*made))
    )


cbor: Final = st.recursive(_LEAVES, _containers, max_leaves=12)
"""Bytes that are CBOR more or less, with tags of every kind."""

hostile: Final = st.binary(max_size=60) | cbor | cbor.map(lambda raw: b"\x01" + raw)
"""Any bytes; some of them look like a record."""


@st.composite
def mutated(draw: st.DrawFn, rows: Sequence[bytes]) -> bytes:
    """One of the rows, changed somewhere: a few bits, an end, a middle; or something else altogether."""
    raw = bytearray(draw(st.sampled_from(rows)))
    how = draw(st.sampled_from(["bits", "bits", "bits", "cut", "splice", "other", "row"]))
    if how == "row":
        return draw(st.sampled_from(rows))
    if how == "other" or not raw:
        return draw(hostile)
    place = st.integers(0, len(raw) - 1)
    if how == "cut":
        return bytes(raw[: draw(place)])
    if how == "splice":
        begin = draw(place)
        raw[begin : begin + draw(st.integers(0, 8))] = draw(hostile)
        return bytes(raw)
    for at in draw(st.lists(place, min_size=1, max_size=4)):
        raw[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(raw)
