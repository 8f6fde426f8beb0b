"""The CBOR tags of user values. Bytes once written are an interface: numbers are added, never given another meaning.

A value is plain CBOR where CBOR has its exact type: None, bool, int, float, text, bytes, list, and dict whose keys are
such scalars. Every other type is a tag, so that bytes can be read back without knowing the hint that they were
written under. Authors' classes are named once per value, in a table in front of it:

    DOCUMENT([TABLE([["app.models:Order", "id", "items"], ...]), body])      body: ... OBJECT([0, id, items]) ...

A value without authors' classes is the body alone. A reader that meets a tag from this range that it does not know
has bytes of a later release before it, and says so. Beside each tag stands what it holds.
"""

from __future__ import annotations

from typing import Final

DOCUMENT: Final = 57600  # [TABLE, body]
TABLE: Final = 57601  # list of [module:qualname, attribute names ...]
OBJECT: Final = 57602  # [index into the table, attribute values ...]
ENUM_VALUE: Final = 57603  # [index into the table, value of the member]
ENUM_NAME: Final = 57604  # [index into the table, name of the member]
TUPLE: Final = 57605  # list
SET: Final = 57606  # list
FROZENSET: Final = 57607  # list
PAIRS: Final = 57608  # dict whose keys are not all scalars: [key, value, key, value ...]
BYTEARRAY: Final = 57609  # bytes
DATETIME: Final = 57610  # ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None, offset in µs or None]
DATE: Final = 57611  # ISO text
TIME: Final = 57612  # ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None]
TIMEDELTA: Final = 57613  # [days, seconds, microseconds]
TIMEZONE: Final = 57614  # [offset in microseconds, name or None]
ZONE: Final = 57615  # key of a zoneinfo.ZoneInfo
UUID: Final = 57616  # 16 bytes
DECIMAL: Final = 57617  # text
COMPLEX: Final = 57618  # [real, imaginary]
FRACTION: Final = 57619  # [numerator, denominator]
PATH: Final = 57620  # [class name in pathlib, text]
DEQUE: Final = 57621  # [maxlen or None, items ...]
ORDERED_DICT: Final = 57622  # as PAIRS
COUNTER: Final = 57623  # as PAIRS
SEALED: Final = 57624  # what a codec of the author's has made of the value; see `sealing`

FIRST: Final = DOCUMENT
LAST: Final = 57727  # those from 57625 on are reserved
