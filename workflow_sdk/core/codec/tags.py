"""The CBOR tags of user values. Bytes once written are an interface: numbers are added, never given another meaning.

A value is plain CBOR where CBOR has its exact type: None, bool, int, float, text, bytes, list, and dict whose keys are
such scalars. Every other type is a tag, so that bytes can be read back without knowing the hint that they were
written under. Authors' classes are named once per value, in a table in front of it:

    DOCUMENT([TABLE([["app.models:Order", "id", "items"], ...]), body])      body: ... OBJECT([0, id, items]) ...

A value without authors' classes is the body alone. A reader that meets a tag from this range that it does not know
has bytes of a later release before it, and says so.

| tag | name | content |
|---|---|---|
| 57600 | DOCUMENT | [TABLE, body] |
| 57601 | TABLE | list of [module:qualname, attribute names ...] |
| 57602 | OBJECT | [index into the table, attribute values ...] |
| 57603 | ENUM_VALUE | [index into the table, value of the member] |
| 57604 | ENUM_NAME | [index into the table, name of the member] |
| 57605 | TUPLE | list |
| 57606 | SET | list |
| 57607 | FROZENSET | list |
| 57608 | PAIRS | dict whose keys are not all scalars: [key, value, key, value ...] |
| 57609 | BYTEARRAY | bytes |
| 57610 | DATETIME | ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None, offset in µs or None] |
| 57611 | DATE | ISO text |
| 57612 | TIME | ISO text; or [ISO text without offset, fold, TIMEZONE or ZONE or None] |
| 57613 | TIMEDELTA | [days, seconds, microseconds] |
| 57614 | TIMEZONE | [offset in microseconds, name or None] |
| 57615 | ZONE | key of a zoneinfo.ZoneInfo |
| 57616 | UUID | 16 bytes |
| 57617 | DECIMAL | text |
| 57618 | COMPLEX | [real, imaginary] |
| 57619 | FRACTION | [numerator, denominator] |
| 57620 | PATH | [class name in pathlib, text] |
| 57621 | DEQUE | [maxlen or None, items ...] |
| 57622 | ORDERED_DICT | as PAIRS |
| 57623 | COUNTER | as PAIRS |
| 57624 | SEALED | what a codec of the author's has made of the value; see `sealing` |
| 57625-57727 | | reserved |
"""

from __future__ import annotations

from typing import Final

DOCUMENT: Final = 57600
TABLE: Final = 57601
OBJECT: Final = 57602
ENUM_VALUE: Final = 57603
ENUM_NAME: Final = 57604
TUPLE: Final = 57605
SET: Final = 57606
FROZENSET: Final = 57607
PAIRS: Final = 57608
BYTEARRAY: Final = 57609
DATETIME: Final = 57610
DATE: Final = 57611
TIME: Final = 57612
TIMEDELTA: Final = 57613
TIMEZONE: Final = 57614
ZONE: Final = 57615
UUID: Final = 57616
DECIMAL: Final = 57617
COMPLEX: Final = 57618
FRACTION: Final = 57619
PATH: Final = 57620
DEQUE: Final = 57621
ORDERED_DICT: Final = 57622
COUNTER: Final = 57623
SEALED: Final = 57624

FIRST: Final = DOCUMENT
LAST: Final = 57727
