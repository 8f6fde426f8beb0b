"""The rows of a run of a graph: where it is, as the store has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import astuple

from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.wire import Count, Moment, Row

Stack = tuple[tuple[str, int], ...]
"""The fork instances that a token is in, outermost first: the step that has forked, and the number of the instance."""

HEAD, TOKENS, FIRINGS, STEPS, JOINS, VARS, ADDED, OUTLINE, PATCHES = range(1, 10)
"""The kinds of rows, as their keys begin."""

RowKey = tuple[Any, ...]


class MarkingHead(Row, frozen=True):
    """What a marking counts."""

    WHAT: ClassVar[str] = "the head of a graph's marking"

    events: Count = 0
    """How many events have changed it."""
    tokens: Count = 0
    """The number that the next token gets."""
    starts: Count = 0
    """How many firings there were: the number that the next one gets."""
    forks: Count = 0
    """How many fork instances there were."""
    vars: Count = 0
    """The number of the context's newest version."""
    is_final_due: bool = True
    """Whether the final step is still to be run."""
    is_stopped: bool = False
    """Whether the graph has failed at once: nothing but the final step is started any more."""
    free: tuple[tuple[str, int], ...] = ()
    """Numbers of firings that a rewind has left out, by step: the next firings of the step have them."""


class Head(Struct):
    """The head of a marking in memory. Every event changes it, and makes no new one."""

    events: int
    tokens: int
    starts: int
    forks: int
    vars: int
    is_final_due: bool
    is_stopped: bool
    free: tuple[tuple[str, int], ...]
    has_changed: bool = False
    """Whether the store knows another one."""

    def count(self, what: str) -> int:
        """The next number of its kind."""
        number: int = getattr(self, what)
        setattr(self, what, number + 1)
        self.has_changed = True
        return number

    def tell(self, **what: Any) -> None:
        """Note something of the run as a whole."""
        for name, value in what.items():
            setattr(self, name, value)
        self.has_changed = True

    @classmethod
    def of(cls, row: MarkingHead) -> Head:
        """The head that a row holds."""
        return cls(*astuple(row))

    def row(self) -> MarkingHead:
        """The row that holds it."""
        return MarkingHead(*astuple(self)[:-1])


class Token(Row, frozen=True):
    """Control that is ready to run a step."""

    WHAT: ClassVar[str] = "a token of a graph"

    step: str
    args: bytes
    stack: Stack = ()
    depth: Count = 0
    """How many submissions lie between the step and the declared graph."""
    place: Count = 0
    """Its place among those that are ready."""
    denied: str | None = None
    """Why its admission was denied; it is asked again when the context changes."""
    since: Count = 0
    """The version of the instance that began to wait for the admission, if it is awaited."""


class Firing(Row, frozen=True):
    """A step that has taken its token and has not ended."""

    WHAT: ClassVar[str] = "a firing of a graph"

    step: str
    count: Count
    """How often the step was fired before."""
    args: bytes
    stack: Stack
    depth: Count
    began: Count
    """The event that has started it."""
    at: Moment
    vars: Count = 0
    """The version of the context that it sees."""
    used: tuple[int, int, int, int] = (0, 0, 0, 0)
    """How much of the limits was used when it began."""
    attempts: Count = 1
    retry_at: float | None = None
    tried_at: float | None = None
    """When the present attempt began, if it is not the first."""
    details: bytes | None = None
    """What the details of the step came to when it began."""
    waits_for: tuple[str, ...] | None = None
    """Of a controller: the steps that it has added, and whose ends it waits for."""
    since: Count = 0
    """The version of the instance that began to wait for the next attempt, or for the end of the time that it has."""


class StepState(Row, frozen=True):
    """What a step has come to: by its last firing, or because it can't be fired."""

    WHAT: ClassVar[str] = "a step of a graph"

    status: str = ""
    """Empty while it has come to nothing."""
    reason: str = ""
    firings: Count = 0
    output: bytes | None = None
    """Of the last firing that was completed."""
    counts: bool = False
    """Whether it makes the graph fail: a failure that no arc has handled, or a step that may never start."""
    error: bytes | None = None
    """Of a failure that counts."""
    is_blocked: bool = False
    """Whether it was denied, and the run has ended without waiting for it."""
    unwinds: bool = False
    """Whether its failure ends the run, and the workflow around it."""
    lost: tuple[tuple[Count, tuple[str, ...]], ...] = ()
    """The firings that have failed so that it counts, and the paths of operations that have failed in them."""


class Arrival(Row, frozen=True):
    """A step that is done, at a join that waits for others."""

    WHAT: ClassVar[str] = "what a join of a graph waits with"

    output: bytes


class Outline(Row, frozen=True):
    """What has to be known of a graph to tell whether steps can be added to it."""

    WHAT: ClassVar[str] = "the outline of a graph"

    steps: tuple[str, ...] = ()
    """The names of the declared steps."""
    nodes: int | None = None
    """How many steps there may be."""
    depth: int | None = None
    """How many submissions deep steps may be added."""
    final: str | None = None
    """The final step."""


def packed(changed: Mapping[RowKey, Row | bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """Changed rows as they are stored, by their keys."""
    return [(_packed_key(key), row.pack() if isinstance(row, Row) else row) for key, row in changed.items()]


_KINDS = {kind: pack_segment(kind) for kind in range(HEAD, PATCHES + 1)}


def _packed_key(key: RowKey) -> bytes:
    """The bytes of `pack(key)`. There are several for each firing, and that takes longer."""
    kind, *rest = key
    found = _KINDS[kind]
    for part in rest:
        found += pack_segment(part) if type(part) is int else _packed_text(part)
    return found


def _packed_text(text: str) -> bytes:
    return b"\x02" + text.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
