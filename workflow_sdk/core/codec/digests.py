"""A few bytes that tell whether a call was given the same arguments as before.

They are stored beside the outcome of an operation, and compared when the code asks for it again. So they are the same
in every process: sets and dicts in another order are equal, and what a type hint says does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from cbor2 import CBORTag, dumps

from workflow_sdk.core.codec.classes import Known
from workflow_sdk.core.codec.lowering import ATOMS, Writer, lower_with

__all__ = ["differ", "digest"]

VALUES_SIZE: Final = 8
CLASSES_SIZE: Final = 4
FIELDS_SIZE: Final = 4

UNKNOWN: Final = 57_700
"""Stands for an argument that can't be encoded. It is never stored: only its digest is."""


def digest(arguments: Sequence[object]) -> bytes:
    """The digest of the arguments: of their values; then, if there are objects, of their classes, and of their fields.

    An argument that can't be encoded (a connection, a function) counts by its type alone.
    """
    if ATOMS.issuperset(map(type, arguments)):
        try:
            return _hash(VALUES_SIZE, ascii(tuple(arguments)).encode())  # in a fifth of the time
        except ValueError:
            pass  # an int of thousands of digits
    writer = _Namer()
    values = _hash(VALUES_SIZE, b"".join([_encoded(argument, writer) for argument in arguments]))
    if not writer.entries:
        return values
    classes = _hash(CLASSES_SIZE, dumps([entry[0] for entry in writer.entries]))
    return values + classes + _hash(FIELDS_SIZE, dumps([entry[1:] for entry in writer.entries]))


def differ(recorded: bytes, asked: bytes) -> bool:
    """Whether two digests are of other arguments.

    If a class has other fields than it had, nobody can tell: its objects look different, and may be the same.
    """
    fields = VALUES_SIZE + CLASSES_SIZE
    if recorded[VALUES_SIZE:fields] != asked[VALUES_SIZE:fields]:
        return True
    return recorded[fields:] == asked[fields:] and recorded != asked


def _hash(size: int, data: bytes) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _encoded(argument: object, writer: Writer) -> bytes:
    count = len(writer.entries)
    try:
        return dumps(lower_with(argument, writer), canonical=True)
    except Exception:  # noqa: BLE001  # an author's class may raise anything when it is looked at
        for key in [key for key, index in writer.indexes.items() if index >= count]:
            del writer.indexes[key]
        del writer.entries[count:]
        return dumps(CBORTag(UNKNOWN, type(argument).__qualname__))


class _Namer(Writer):
    """The classes of some arguments. They need not be found again, and may move to another module."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Known())

    def index(self, cls: type, names: tuple[str, ...]) -> int:
        key: Any = (cls, names)
        if (index := self.indexes.get(key)) is None:
            self.entries.append([cls.__qualname__, *names])
            index = self.indexes[key] = len(self.indexes)
        return index
