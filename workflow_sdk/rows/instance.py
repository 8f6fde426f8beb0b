"""The rows of an instance beside its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from msgspec import Meta

from workflow_sdk.rows.keys import Field
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import MOMENT_MIN, Count, ErrorRow, Moment, Row, Text, damaged


class Death(Row, frozen=True):
    """The death of a worker, which may turn out to be alive."""

    lease: str
    """The name of the lease that the worker had."""
    noted: bool
    """Whether the worker had noted what it was executing."""


class Try(Row, frozen=True):
    """An operation whose code was called and did not come to an end, as far as is known."""

    WHAT: ClassVar[str] = "what was executed when a worker died"

    path: str
    leases: tuple[str, ...]
    """The leases under which it was called, and those of deaths that may have been at it, as nothing was noted."""


class Deaths(Row, frozen=True):
    """The deaths of an instance, as they are stored."""

    WHAT: ClassVar[str] = "the deaths of an instance"

    deaths: tuple[Death, ...] = ()


class Blame(NamedTuple):
    """The operation under which most workers have died."""

    path: str | None
    """None, if nobody knows which operation it was."""
    leases: tuple[str, ...]
    """The leases of the workers that died."""


def worker_of_lease(name: str) -> str:
    """The worker that had the lease of this name."""
    return name.rpartition("/")[0]


def worst(deaths: Iterable[Death], tries: Mapping[bytes, Try]) -> Blame:
    """The operation under which most workers have died. Deaths without a note count together, under no operation."""
    dead = {death.lease: death for death in deaths}
    found = Blame(None, tuple(name for name, death in dead.items() if not death.noted))
    for tried in tries.values():
        leases = tuple(name for name in tried.leases if name in dead)
        if len(leases) >= len(found.leases):
            found = Blame(tried.path, leases)
    return found


Due = Annotated[float, Meta(ge=MOMENT_MIN, le=253_402_300_800.0)]
"""A time at which something is due: up to the last microsecond that a `datetime` can be, as a float."""


class Lease(Row, frozen=True):
    """Who may write an instance. The row is absent while nobody runs it."""

    WHAT: ClassVar[str] = "the lease of an instance"

    worker: str
    epoch: int
    """Another one for every claim of the worker."""
    ttl: float

    @property
    def name(self) -> str:
        """What the lease is called where deaths are counted: no other claim has this name."""
        return f"{self.worker}/{self.epoch}"


class Head(Row, frozen=True):
    """What an instance is doing, and where it is found. It changes when an instance starts, is claimed, waits, ends."""

    WHAT: ClassVar[str] = "the head of an instance"

    workflow: str
    version: int
    """The version of the workflow's code that ran the instance last."""
    fingerprint: str
    """The fingerprint of that code. Empty if the client that started the instance did not know the workflow."""
    created_at: Moment
    status: Status
    changes: Count
    """How often the head was written, so that one `waiting` can be told from the next."""
    changed_at: Moment
    alarm: Due | None = None
    """When the instance is due, while nobody runs it."""
    purge_at: Due | None = None
    """When the instance is to be deleted, once it has ended."""
    cancelled: bool = False
    """Whether the instance is rolled back because it was cancelled, and so ends as cancelled."""


class Birth(Row, frozen=True):
    """What an instance began with. It changes only when the instance begins again."""

    WHAT: ClassVar[str] = "the birth of an instance"

    input: bytes
    seed: bytes
    """The bytes from which its ids and random numbers are made."""
    retention: float | None = None
    """How many seconds after its end the instance is deleted."""
    generation: Count = 1
    """How often it has begun."""
    began_at: Moment | None = None
    """When it has begun at last, if that is not when it was created."""
    first_input: bytes | None = None
    """The input that it was started with, if it has started over with another."""
    base: bytes | None = None
    """The public state with which it started over."""
    restarts: Count = 0
    """How often it was restarted after something was undone: the steps that run again get other idempotency keys."""
    seals: tuple[bytes, ...] = ()
    """A value by each codec that wrote values of it, beside the one that wrote its input."""
    is_cell: bool = False
    """Whether it is a cell of a machine: then it takes events only, and has no history."""


class Result(Row, frozen=True):
    """What an instance has come to: its output, or what stopped it."""

    WHAT: ClassVar[str] = "the result of an instance"

    output: bytes | None = None
    error: ErrorRow | None = None
    """What stopped it."""
    original: ErrorRow | None = None
    """If the instance is stuck in a rollback: the error that had made it fail before."""
    failed_operations: tuple[str, ...] = ()
    """The paths of the operations because of which the instance failed."""
    parts: bytes | None = None
    """Of an output that is larger than one value may be: what the keys of its parts begin with, in the instance's
    space.
    """


class Tally(Row, frozen=True):
    """What is counted with every commit of an instance."""

    WHAT: ClassVar[str] = "the tally of an instance"

    commits: Count = 0
    """How many commits have changed the instance."""
    taken: int = 0
    """How many messages these commits have taken."""


class State(Row, frozen=True):
    """The state that an instance shows, `ctx.state`."""

    WHAT: ClassVar[str] = "the state of an instance"

    value: bytes


class Shown(Row, frozen=True):
    """The reference and the progress that an instance shows."""

    WHAT: ClassVar[str] = "what an instance shows"

    reference: str | None = None
    """Its business reference."""
    progress: tuple[float | int, float | int | None, Text | None] | None = None
    """How much is done, of how much, and a note."""


class ChangesRow(Row, frozen=True):
    """What a scope has changed of the public state."""

    WHAT: ClassVar[str] = "a change of the state"

    changes: tuple[tuple[str, bytes | None, int], ...]
    """By name: the value, or None if it was removed; and the number of its last change."""


class Watchers(Row, frozen=True):
    """Who is told of the end of an instance: instances, and the tokens of their waits."""

    WHAT: ClassVar[str] = "the watchers of an instance"

    watchers: tuple[tuple[str, bytes], ...] = ()


class CountRow(Row, frozen=True):
    """A row that counts messages."""

    WHAT: ClassVar[str] = "a count of messages"

    count: int


class WaitRow(Row, frozen=True):
    """What a parked branch waits for."""

    WHAT: ClassVar[str] = "a wait"

    kind: str
    name: str
    path: str
    until: Due | None
    takes: int
    """How many messages it takes."""
    promised: int
    """How many of these messages are addressed to the wait already."""
    since: int = 0
    """The version of the instance that began to wait."""


class CellRow(Row, frozen=True):
    """What is counted of a cell, which is an instance of a machine."""

    WHAT: ClassVar[str] = "the counts of a cell"

    sequence: Count
    """How many transitions there were under its key, of cells that were deleted, too."""
    revision: Count
    """How many transitions it has made since it began."""
    changed_at: Moment
    """When it took its last message."""
    settled: str | None = None
    """The intent that it heard of last: what its executor has sent is kept until the next one."""


_CLASSES: Final[Mapping[Field, type[Row]]] = {
    Field.HEAD: Head,
    Field.RESULT: Result,
    Field.BIRTH: Birth,
    Field.DEATHS: Deaths,
    Field.TALLY: Tally,
    Field.STATE: State,
    Field.SHOWN: Shown,
    Field.WATCHERS: Watchers,
    Field.ANSWERED: CountRow,
    Field.HANDED: CountRow,
    Field.CELL: CellRow,
}


def unpack(field: Field, raw: bytes) -> Row:
    """The row that these bytes hold."""
    return _CLASSES[field].unpack(raw)


# The rows that stand for absent ones.
_NO_RESULT: Final = Result()
_NO_DEATHS: Final = Deaths()
_NO_TALLY: Final = Tally()
_NOTHING_SHOWN: Final = Shown()
_NO_WATCHERS: Final = Watchers()


def error_of(rows: InstanceRows) -> ErrorRow:
    """What stopped an instance that has failed or is stuck."""
    error = rows.result.error
    if error is None:
        raise damaged("an instance that was stopped, but not by anything,")
    return error


class InstanceRows:
    """The rows of one instance beside its history. Without a head, there is no such instance."""

    __slots__ = ("_rows", "raw")

    def __init__(self, raw: dict[Field, bytes] | None = None) -> None:
        self.raw: dict[Field, bytes] = {} if raw is None else raw
        """As they are stored."""
        self._rows: dict[Field, Any] = {field: unpack(field, value) for field, value in self.raw.items()}
        for field in (Field.HEAD, Field.BIRTH) if self.raw else ():
            if field not in self._rows:
                raise damaged(f"an instance without its {field.name.lower()}")

    def __bool__(self) -> bool:
        """Whether there is such an instance."""
        return bool(self.raw)

    def copy(self) -> InstanceRows:
        """The same rows, to be changed."""
        same = InstanceRows()
        same.raw, same._rows = dict(self.raw), dict(self._rows)  # of the same class
        return same

    def set(self, field: Field, row: Row | None) -> bytes | None:
        """Change a row, or remove it; return it as it is stored now."""
        if row is None:
            self.raw.pop(field, None)
            self._rows.pop(field, None)
            return None
        self._rows[field] = row
        raw = self.raw[field] = row.pack()
        return raw

    @property
    def head(self) -> Head:
        """What it is doing."""
        row: Head = self._rows[Field.HEAD]
        return row

    @property
    def status(self) -> Status:
        """The status in its head."""
        return self.head.status

    @property
    def birth(self) -> Birth:
        """What it began with."""
        row: Birth = self._rows[Field.BIRTH]
        return row

    @property
    def began_at(self) -> float:
        """When it has begun, at last."""
        at = self.birth.began_at
        return self.head.created_at if at is None else at

    @property
    def result(self) -> Result:
        """What it has come to."""
        row: Result = self._rows.get(Field.RESULT, _NO_RESULT)
        return row

    @property
    def deaths(self) -> Deaths:
        """Which workers died under it."""
        row: Deaths = self._rows.get(Field.DEATHS, _NO_DEATHS)
        return row

    @property
    def tally(self) -> Tally:
        """What is counted."""
        row: Tally = self._rows.get(Field.TALLY, _NO_TALLY)
        return row

    @property
    def state(self) -> bytes | None:
        """What it shows of its state."""
        row: State | None = self._rows.get(Field.STATE)
        return None if row is None else row.value

    @property
    def shown(self) -> Shown:
        """What else it shows."""
        row: Shown = self._rows.get(Field.SHOWN, _NOTHING_SHOWN)
        return row

    @property
    def watchers(self) -> tuple[tuple[str, bytes], ...]:
        """Who waits for its end."""
        row: Watchers = self._rows.get(Field.WATCHERS, _NO_WATCHERS)
        return row.watchers

    @property
    def cell(self) -> CellRow | None:
        """The counts of a cell; None of what is none, or has made no transition since it began."""
        row: CellRow | None = self._rows.get(Field.CELL)
        return row

    @property
    def answered(self) -> int:
        """Which state of it, by the number of commits, has been answered by a message; -1 if none has."""
        row: CountRow | None = self._rows.get(Field.ANSWERED)
        return -1 if row is None else row.count

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to it in the process of its worker; None if they are not counted there."""
        row: CountRow | None = self._rows.get(Field.HANDED)
        return None if row is None else row.count
